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
//   attach_job     program      ask all processes for a running job       the same | attach_failed
//   forget_attach  program      it waits for that job no longer           -
//   wish_of_own_job
//                  program      pass on to that job: finish, detach       -
//   get_view       program      -                                         view_changed
//   cancel_own_run program      loops of that step end, on all its nodes  -
//   stop_own_job   program      pass on to that job                       -
//   job_over       job          forget it (stays listed for a minute)     -
//   ask            link,        collect a node_answer                     answered
//                  program
//   ask_trace      link         record a timeline, or give a page of it   send_control with a
//                                                                         trace_page
//   member_event   member, job  remember it among the events, and tell    -
//                               on_line of it
//   rejoined       member       we were fenced: stop all parts and jobs,  jobs_changed
//                               be who we are
//   set_times      program      what earlier programs have measured       -
//   list_work      program      list it among jobs and actors             -
//   join_work      program,     words of that work go to `who`, and who   work_word_came, node_lost
//                  hosts        dies of the members                       to `who`
//   leave_work     likewise     they do not any more; its streams end     -
//   send_word      work         pass on through the peer's link (or to    -, or word_refused to
//                               itself)                                   `who`
//   bind_stream    work         pass on to the peer's link                stream_bound to `who`, by
//                                                                         the link
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
// NO-10 Of jobs that outlive their coordinator the node keeps the journals that it is given, and
//       goes on with those that are its own then (runtime/jobs/job_journal.hpp). A node that leaves
//       hands over what it coordinates so, and one that ends leaves it to successors.
// NO-7  Who leaves takes no more work: what is placed here nevertheless moves on at once, and once
//       it ends nothing is placed.
// NO-11 A word for work that nobody has joined goes to who host_work says joins it, before any
//       later word, and NO-4 where that is nobody; a node that leaves asks nobody. Work that is
//       joined when the node ends or is fenced is told that this node is lost, and is left.
// NO-16 The newest 512 events and 2,048 lines of the log are kept, fewer where their texts are
// long,
//       and of each text 4 KiB at most; events are numbered from 1 on without a gap, also from one
//       life to the next, and so are lines.
// Ends: on end_node, after its parts.
// Threading: on the service worker; never blocks.

#include "troupe/actors/messages/job_messages.hpp"
#include "troupe/actors/messages/node_messages.hpp"
#include "troupe/actors/messages/stream_messages.hpp"
#include "troupe/actors/plan/apply_probe.hpp"
#include "troupe/actors/plan/part_context.hpp"
#include "troupe/runtime/insight/actor_record.hpp"
#include "troupe/runtime/insight/snapshot.hpp"
#include "troupe/runtime/planted_bugs.hpp"
#include "troupe/runtime/supervision/supervision_tree.hpp"
#include "troupe/runtime/trace/trace_recorder.hpp"
#include "troupe/runtime/wire/control_message.hpp"

#include <caf/event_based_actor.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace troupe {

class device_streams;

// What a node is given (no globals): who it is, its clock, its tables, its workers.
struct node_environment {
  member_info self;
  std::string cluster;
  std::shared_ptr<coarse_clock> clock;
  std::function<std::uint64_t()> wall_clock_ns;  // for ids and ages of jobs
  // Of this process: what it may use of the machine, and has used; null: not known.
  std::function<process_use()> use{};
  std::function<std::int64_t()> now_ns;  // monotonic, for deadlines
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
  // A word has come from that node, for work that nobody has joined here: who joins it, and gets
  // the word (NO-11). Null, or a null actor: nobody does.
  std::function<caf::actor(job_id, node_id from)> host_work;
  apply_probe* probe = nullptr;  // the simulator's
  // A line of the log, with the time in it: what happened, and what is below an event. Null:
  // nobody. Never waits.
  std::function<void(const event&, std::uint64_t unix_ns)> on_line{};
};

inline constexpr supervision_policy node_policy{.restart = restart_kind::transient,
                                                .limits = no_restarts};

caf::actor spawn_node(caf::actor_system& sys, node_environment environment);

}  // namespace troupe
