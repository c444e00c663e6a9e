#pragma once
// A job actor coordinates one job: it carries out what runtime/job_coordinator.hpp decides, and
// tells the program. It lives in the program that started the job; the program only observes.
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
//   stop_job       program  end all parts                               job_failed
//   job_tick       node     deadlines, pauses, checkpoints by time      -
//
// JB-1  The program gets exactly one job_finished or job_failed, as the last message.
// JB-2  After that no actor of the job runs on any node that can be reached: every one was told to
//       stop.
// JB-3  fed = applied + dropped + in flight, per worker, in the last message
//       (runtime/job_coordinator.hpp).
// Supervision: job_policy. Its account of the job is gone with it, so the job fails: its node tells
// the program, and all parts end. Restarts of the job itself, from what nodes keep or from its
// checkpoint, are up to its coordinator (runtime/job_coordinator.hpp).
// Ends: with its last message.

#include "actors/node.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace troupe {

// An input of one worker, which the program feeds.
struct job_feed {
  std::uint32_t worker = 0;
  std::string input;        // its name in the graph
  std::uint32_t actor = 0;  // in the plan
  tensor_spec spec;
};
struct job_started {
  job_id job{};
  std::shared_ptr<const part_handles> handles;  // of the part in this process
  std::vector<job_feed> feeds{};                // of a training
};
// Sync: one per step, the loss of all workers; async: one per step of a worker.
struct job_progress {
  std::uint64_t step = 0;
  std::uint32_t worker = 0;
  float loss = 0;
};
struct job_variables {  // an observation: values in order of the variables' names
  std::uint64_t item = 0;
  std::vector<std::pair<std::string, tensor>> values;
};
struct worker_lost {
  std::string text;
};
// A failure that the job goes on after; or (resumed) it goes on now, from `step`.
struct job_recovering {
  bool has_resumed = false;
  std::uint64_t step = 0;
  std::string text;
};
struct job_note {
  std::string text;
};
struct local_part {  // node -> job
  std::uint32_t epoch = 0;
  std::shared_ptr<const part_handles> handles;
};
struct want_cut {};
struct job_tick {};
struct job_finished {
  job_totals totals;
};
struct job_failed {
  std::string line;
  job_totals totals;
};
struct stop_job {
  std::string reason;
};

// What a plan says of its job: name, workers, shards, kind of update, steps.
void describe(const plan& p, job_snapshot& out);

inline constexpr supervision_policy job_policy{.restart = restart_kind::temporary,
                                               .limits = no_restarts};

struct job_arguments {
  job_id id{};
  std::shared_ptr<const job_request> request;
  caf::actor node, archive, program;
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

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::job_started)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::job_progress)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::job_variables)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::worker_lost)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::job_finished)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::job_failed)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::stop_job)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::job_recovering)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::job_note)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::local_part)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::want_cut)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::job_tick)
