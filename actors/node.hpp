#pragma once
// A node: the process as a member of a cluster. It holds the table of parts (part_table.hpp),
// answers questions, and routes control messages between jobs, parts and peers.
//
//   node_actor
//   message        from         effect                                    answer
//   member_up      member       a link to that peer works; jobs here      -
//                               learn of it
//   member_down    member       its parts and jobs learn of it            -
//   view_changed   member       what `nodes` answers                      -
//   peer_message   link,        route: place, start, halt, stop ... see   by to_node
//                  itself       wire.capnp
//   to_node        jobs,        pass on through the peer's link (or to    -
//                  supervisors  itself)
//   part_event     supervisors  tell the coordinator                      -
//   job_bound      links        the part is placed once all links know    -
//                               its edges
//   part_orphaned  supervisors  one fails: tell the coordinator, and end  -
//                               what is left of the part
//   job_orphaned   jobs         one fails: its parts end everywhere       job_failed to the program
//   part_on_disk   archive      tell the coordinator                      -
//   shards_loaded  archive      go on placing the part that waits for     -
//                               them
//   run_job        program      spawn a job actor that coordinates it     job_started, ... to the
//                                                                         program
//   get_view       program      -                                         view_changed
//   stop_own_job   program      pass on to that job                       -
//   job_over       job          forget it (stays listed for a minute)     -
//   ask            link,        collect a node_answer                     answered
//                  program
//   ask_trace      link         record a timeline, or give a page of it   send_control with a
//                                                                         trace_page
//   member_event   member, job  remember it among the events              -
//   rejoined       member       we were fenced: stop all parts and jobs,  jobs_changed
//                               be who we are
//   set_member     process      whom to tell how many parts run here      -
//   node_tick      timer        sample streams, drive jobs, forget what   -
//                               ended a minute ago
//   drain_node     program      ask coordinators to move the parts        node_drained, when they
//                               elsewhere                                 have
//   end_node       program      stop all parts and jobs, then end         node_ended to the program
//
// Supervision: node_policy. Without it the process ends: nobody else knows its parts.
// NO-4  A message for a part or job that is not here is dropped and counted. (The others are in
//       part_table.hpp.)
// NO-7  Who leaves takes no more work: what is placed here nevertheless moves on at once, and once
//       it ends nothing is placed.
// Ends: on end_node, after its parts.
// Threading: on the service worker; never blocks.

#include "actors/apply_probe.hpp"
#include "actors/messages.hpp"
#include "actors/port_actor.hpp"
#include "runtime/actor_record.hpp"
#include "runtime/checkpoint.hpp"
#include "runtime/control_message.hpp"
#include "runtime/job_coordinator.hpp"
#include "runtime/planted_bugs.hpp"
#include "runtime/resume.hpp"
#include "runtime/snapshot.hpp"
#include "runtime/supervision_tree.hpp"
#include "runtime/trace_recorder.hpp"

#include <caf/event_based_actor.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace troupe {

class device_streams;

struct member_up {
  member_info member;
  caf::actor link;
  std::shared_ptr<actor_record> record;
};
struct member_down {
  member_info member;  // with state and reason
};
struct view_changed {
  member_info self;
  std::vector<member_info> members;  // without self
  // Why a member that we dialled would not have us, the last time; empty: none did.
  std::string denied;
  std::set<node_id> linked;  // in the answer to get_view: who can be sent something already
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

struct job_request {
  // A plan that is placed once ...
  plan job_plan{};
  std::vector<node_id> nodes{};  // by task
  // Fetched values go to the program directly, not by way of the job.
  bool fetches_to_program = false;
  // ... or a training, which may be placed again.
  std::optional<training_program> program{};
  role_map roles{};
  failure_policy on_failure = failure_policy::stop;
  restart_limits limits{};
  checkpoint_policy checkpoints{};
  checkpoint_schedule schedule{};            // stands in every manifest
  std::uint32_t keep = 3;                    // checkpoints
  std::shared_ptr<const void> keeps_lock{};  // on the job's folder, while the job lives

  const std::string& name() const { return program ? program->name() : job_plan.name; }
};
// What the request has of a folder of checkpoints; its notes go to `notes`.
void take_over(opened_folder folder, const checkpoint_options& o, job_request& request,
               std::vector<std::string>& notes);

struct run_job {
  std::shared_ptr<const job_request> request;
  caf::actor program;
};
struct job_over {
  job_id job{};
};
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
struct stop_own_job {  // program: end the job it started
  caf::actor program;
  std::string reason;
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

// What a node is given (no globals): who it is, its clock, its tables, its workers.
struct node_environment {
  member_info self;
  std::string cluster;
  std::shared_ptr<coarse_clock> clock;
  std::function<std::uint64_t()> wall_clock_ns;  // for ids and ages of jobs
  std::function<std::int64_t()> now_ns;          // monotonic, for deadlines
  const op_table* ops = nullptr;
  const kernel_table* kernels = nullptr;
  host_device* device = nullptr;
  std::uint64_t memory_bytes = 0;  // for all parts together; 0: no limit
  // Of the host, then of devices; null: wherever the scheduler puts it.
  std::vector<caf::execution_unit*> streams;
  std::vector<std::shared_ptr<device_streams>> devices;
  std::string why_no_devices;                         // where there are none
  std::vector<std::shared_ptr<stream_meter>> meters;  // by stream; none: the node makes them
  // Of timelines: of the workers that are no streams.
  std::vector<trace_source> lanes;
  caf::execution_unit* service = nullptr;
  // Where links are; null: wherever the scheduler puts it.
  caf::execution_unit* io = nullptr;
  // Of the process: is told that time passes; null: none.
  caf::actor supervisor;
  // Null: this node neither writes nor reads checkpoints.
  caf::actor archive;
  const planted_bugs* bugs = nullptr;  // tests only
  // A tool asks this process to leave; null: it does not do that.
  std::function<void()> on_leave_asked;
  apply_probe* probe = nullptr;  // the simulator's
};

inline constexpr supervision_policy node_policy{.restart = restart_kind::transient,
                                                .limits = no_restarts};

caf::actor spawn_node(caf::actor_system& sys, node_environment environment);

// The supervisor of one part: spawns its actors, wires them, ends them; reports part_events to the
// node.
//   actor_ready, actor_done, actor_failed   port actors
//   start_firing, mark_cut, stop_part_actors, task_lost   node
// Supervision: port_policy for its actors. What they have sent each other is gone with any one of
// them, so that a failure of one ends them all, by way of the job, which begins a new epoch.
// part_policy for itself: it is not restarted either; the job is told, and another supervisor ends
// what is left.
//
// PT-1  A part fails once: with the first failure that is not derived from a lost peer.
// Ends: on stop_part_actors, after all its actors have ended.
struct part_request {
  // Supervisor and program are filled in by the supervisor and the node.
  std::shared_ptr<part_context> context;
  std::vector<std::uint32_t> actors;  // indices in the plan
  std::vector<caf::actor> links;      // by task
  std::vector<caf::execution_unit*> streams;
  caf::execution_unit* io = nullptr;
  caf::actor node;
  std::shared_ptr<part_handles> handles;  // filled in by the supervisor
  // Another supervisor has failed: end the actors in `handles`.
  bool is_left_over = false;
};
inline constexpr supervision_policy part_policy{.restart = restart_kind::temporary,
                                                .limits = no_restarts};

caf::actor spawn_supervisor(caf::actor_system& sys, caf::execution_unit* worker,
                            part_request request);

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
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::run_job)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::job_over)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::ask)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::answered)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::ask_trace)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::get_view)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::stop_own_job)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::set_member)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::node_tick)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::end_node)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::node_ended)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::drain_node)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::node_drained)
