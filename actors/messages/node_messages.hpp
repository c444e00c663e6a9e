#pragma once
// The messages of a process as a member of its cluster: between node, links, member, jobs and the
// supervisors of parts. Each is said of in the table of whoever takes it.
//
// Threading: values, inside one process.

#include "troupe/actors/messages/port_messages.hpp"
#include "troupe/runtime/analysis/op_times.hpp"
#include "troupe/runtime/insight/actor_record.hpp"
#include "troupe/runtime/plan/plan.hpp"
#include "troupe/runtime/trace/trace.hpp"
#include "troupe/runtime/wire/control_message.hpp"
#include "troupe/runtime/wire/member_info.hpp"
#include "troupe/schema/ids.hpp"

#include <caf/actor.hpp>
#include <caf/allowed_unsafe_message_type.hpp>

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace troupe {

struct member_up {
  member_info member;
  caf::actor link;
  std::shared_ptr<actor_record> record;
};
struct member_down {
  member_info member;       // with state and reason
  bool is_of_link = false;  // the link was given up, which has been noted: the member may live
};
struct view_changed {
  member_info self;
  std::vector<member_info> members;  // without self
  // Why a member that we dialled would not have us, the last time; empty: none did.
  std::string denied;
  std::set<node_id> linked;  // in the answer to get_view: who can be sent something already
  std::shared_ptr<const op_times> times{};  // likewise: what ops took here
};
struct peer_message {
  node_id from{};
  control_message body;
};
struct to_node {
  node_id to{};
  control_message body;
};
struct send_control {
  control_message body;
};  // node -> link
struct bind_job {  // node -> link: whom the edges of a job end at here
  job_id job{};
  std::uint32_t epoch = 0;
  std::shared_ptr<const plan> job_plan;
  std::shared_ptr<const part_handles> handles;
  caf::actor node;         // is told job_bound
  std::uint32_t part = 0;  // its number in this process
};
struct job_bound {
  job_id job{};
};
struct unbind_job {
  job_id job{};
};

enum class part_event_kind : std::uint8_t { placed, noted, failed, done, stopped };
struct part_event {
  job_id job{};
  std::uint32_t part = 0;  // its number in this process
  part_event_kind kind = part_event_kind::placed;
  std::string text, actor;  // of a failure
  std::uint64_t step = 0;
  std::shared_ptr<const part_handles> handles;  // of a placed part
  // A failure that may follow from the end of another node.
  bool is_derived = false;
};
struct part_orphaned {  // its supervisor has failed
  job_id job{};
  std::uint32_t part = 0;
  std::string text;
};
struct job_orphaned {  // its actor has failed
  job_id job{};
  std::string text;
};
struct stop_part_actors {
  std::string reason;
};  // node -> supervisor
// Node -> supervisor: the node of that task is dead.
struct task_lost {
  std::uint32_t task = 0;
  std::string reason;
};

struct job_over {
  job_id job{};
  bool has_moved = false;  // to another process, which lists it
};
struct set_times {
  std::shared_ptr<const op_times> times;
};  // program -> node, once: what earlier programs have measured
struct ask {
  std::uint64_t id = 0;
  std::string request;
  caf::actor to;
};
struct answered {
  std::uint64_t id = 0;
  std::string json;
};
struct ask_trace {
  trace_query query;
  caf::actor to;
};
struct get_view {
  caf::actor to;
};  // program: answer view_changed
struct cancel_own_run {  // program: it has given up that step of its job, and all before
  caf::actor program;
  std::uint64_t step = 0;
};
struct stop_own_job {  // program: end the job it started
  caf::actor program;
  std::string reason;
};
enum class job_wish : std::uint8_t { finish, suspend, detach };
struct wish_of_own_job {  // program: what is to become of its job
  caf::actor program;
  job_wish wish = job_wish::finish;
  std::uint64_t at_least = 0;  // of finish_job
  std::string reason{};        // of suspend_job
};
struct attach_job {  // program: give me that job, by name or id; job_started or attach_failed
  std::string job;
  caf::actor program;
};
struct forget_attach {  // program: it waits no longer
  caf::actor program;
};
struct set_member {
  caf::actor member;
};  // process -> node, once
struct node_tick {};
struct end_node {
  std::string reason;
  caf::actor to;  // gets node_ended
};
struct node_ended {};
struct drain_node {
  caf::actor to;
};  // gets node_drained
struct node_drained {};

}  // namespace troupe

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::member_up)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::member_down)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::view_changed)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::peer_message)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::to_node)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::send_control)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::bind_job)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::job_bound)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::unbind_job)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::part_event)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::part_orphaned)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::job_orphaned)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::stop_part_actors)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::task_lost)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::job_over)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::set_times)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::ask)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::answered)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::ask_trace)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::get_view)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::cancel_own_run)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::stop_own_job)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::wish_of_own_job)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::attach_job)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::forget_attach)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::set_member)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::node_tick)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::end_node)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::node_ended)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::drain_node)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::node_drained)
