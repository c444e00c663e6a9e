#pragma once
// A job actor coordinates one job: it carries out what runtime/jobs/job_coordinator.hpp decides,
// and tells the program. It lives in the program that started the job; the program only observes.
//
//   job_actor
//   message        from     effect                                      to the program
//   peer_message   node     placed, ended, halted, saved of a           job_started | job_failed
//                           participant
//   local_part     node     the part in this process, with its handles  -
//   member_up      node     a node that may take work                   -
//   member_down    node     tolerated (async worker), recovered from,   worker_lost |
//                           or fatal                                    job_recovering | job_failed
//   rejoined       node     the cluster held this process dead: as if   job_recovering | job_failed
//                           all others were
//   fetched        fetch    losses become progress, variables become    job_progress, job_variables
//                           observations
//   epoch_claimed  archive  the next epoch may be placed                -
//   cut_written    archive  a checkpoint is there                       job_note
//   want_cut       node     make a checkpoint now                       -
//   stop_job       program, end all parts                               job_stopped | job_failed
//                  tool
//   finish_job     program, end the training where it is                job_finished
//                  tool
//   suspend_job    program  end it where it is, with a checkpoint to be     job_suspended |
//                           resumed from; where there can be none, stop it  job_stopped
//   detach_job     program, hand the job over to a node                 job_has_moved
//                  tool
//   let_go_job     node     leave it to whoever goes on with it         job_has_moved
//   hand_over_job  node     hand it over to a program that asks for it  job_has_moved
//   job_tick       node     deadlines, pauses, checkpoints by time      -
//
// JB-1  The program, if there is one, gets exactly one job_finished, job_suspended, job_stopped,
//       job_has_moved or job_failed, as the last message.
// JB-2  After that, unless the job has moved, no actor of the job runs on any node that can be
//       reached: every one was told to stop.
// JB-3  fed = applied + dropped + in flight, per worker, in the last message
//       (runtime/jobs/job_coordinator.hpp).
// Supervision: not restarted. Its account of the job is gone with it, so the job fails: its node
// tells the program, and all parts end. Restarts of the job itself, from what nodes keep or from
// its checkpoint, are up to its coordinator (runtime/jobs/job_coordinator.hpp).
// Ends: with its last message.

#include "troupe/actors/messages/job_messages.hpp"
#include "troupe/runtime/checkpoint/checkpoint_options.hpp"
#include "troupe/runtime/checkpoint/resume.hpp"
#include "troupe/runtime/insight/actor_record.hpp"
#include "troupe/runtime/insight/snapshot.hpp"
#include "troupe/runtime/planted_bugs.hpp"

#include <caf/actor.hpp>
#include <caf/actor_system.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace troupe {

// What the request has of a folder of checkpoints; its notes go to `notes`.
void take_over(opened_folder folder, const checkpoint_options& o, job_request& request,
               std::vector<std::string>& notes);

// What a plan says of its job: name, workers, shards, kind of update, steps.
void describe(const plan& p, job_snapshot& out);

struct job_arguments {
  job_id id{};
  std::shared_ptr<const job_request> request;
  caf::actor node, archive;
  caf::actor program;                // null: none is attached
  std::vector<member_info> members;  // who has a link to this process, and itself
  member_info self;
  std::function<std::int64_t()> now_ns;  // monotonic
  std::function<std::uint64_t()> wall_clock_ns;
  std::shared_ptr<actor_record> record;
  // What the job shows; read by the node, on the same worker.
  std::shared_ptr<job_snapshot> board;
  const planted_bugs* bugs = nullptr;  // tests only
};
caf::actor spawn_job(caf::actor_system& sys, caf::execution_unit* worker, job_arguments arguments);

}  // namespace troupe
