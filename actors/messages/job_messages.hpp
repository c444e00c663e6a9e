#pragma once
// What is asked of a job, and what its program is told. Each message is said of in the table of
// actors/job/job_actor.hpp.
//
// Threading: values, inside one process.

#include "troupe/actors/messages/port_messages.hpp"
#include "troupe/devices/tensor.hpp"
#include "troupe/runtime/checkpoint/checkpoint.hpp"
#include "troupe/runtime/checkpoint/checkpoint_options.hpp"
#include "troupe/runtime/compile/compile.hpp"
#include "troupe/runtime/jobs/job_journal.hpp"
#include "troupe/runtime/jobs/placement.hpp"
#include "troupe/runtime/jobs/training_totals.hpp"
#include "troupe/runtime/plan/plan.hpp"
#include "troupe/runtime/supervision/failure.hpp"
#include "troupe/schema/ids.hpp"

#include <caf/actor.hpp>
#include <caf/allowed_unsafe_message_type.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace troupe {

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
  // encode(job_recipe): it outlives its coordinator; null: it does not.
  std::shared_ptr<const std::vector<std::byte>> recipe{};
  // It goes on where another coordinator stopped, for that reason.
  std::shared_ptr<const kept_journal> after{};
  std::string why_after{};
  bool has_failed_before = false;

  const std::string& name() const { return program ? program->name() : job_plan.name; }
};

struct run_job {
  std::shared_ptr<const job_request> request;
  caf::actor program;
};
// An input of one worker, which the program feeds.
struct job_feed {
  std::uint32_t worker = 0;
  std::string input;        // its name in the graph
  std::uint32_t actor = 0;  // in the plan
  tensor_spec spec;
  std::uint64_t first_step = 0;  // of its worker, that it is fed for
};
// Of a training with feeds also when it has resumed, before job_recovering says so.
struct job_started {
  job_id job{};
  std::shared_ptr<const part_handles> handles;  // of the part in this process
  std::vector<job_feed> feeds{};                // of a training
  std::uint64_t step = 0;                       // async: of all workers together
};
// Sync: one per step, the loss of all workers; async: one per step of a worker.
struct job_progress {
  std::uint64_t step = 0;
  std::uint32_t worker = 0;
  float loss = 0;
};
struct job_variables {  // an observation: values in order of the variables' names
  std::uint64_t item = 0;
  std::uint64_t version = 0;  // sync: of all; async: gradients in them, if nothing was lost
  std::vector<std::pair<std::string, tensor>> values;
};
struct worker_lost {
  std::uint32_t worker = 0;
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
  training_totals totals;
};
struct job_failed {
  std::string line;
  training_totals totals;
};
struct job_stopped {
  std::string reason;
  training_totals totals;
};
struct job_suspended {
  std::uint64_t step = 0;  // of its last checkpoint
  std::string text;
  training_totals totals;
};
// Another process coordinates it: `is_lost`: without the program's wish.
struct job_has_moved {
  bool is_lost = false;
  std::string text;
};
struct stop_job {
  std::string reason;
};
struct finish_job {
  std::uint64_t at_least = 0;  // steps of each worker
};
struct suspend_job {
  std::string reason;
};
struct detach_job {};
struct let_go_job {};  // its process ends, and successors may go on
struct hand_over_job {
  node_id to{};
  std::string job;  // as it was asked for
};
// A job that was asked for will not come.
struct attach_failed {
  std::string text;
};

}  // namespace troupe

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::run_job)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::job_started)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::job_progress)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::job_variables)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::worker_lost)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::job_finished)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::job_failed)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::stop_job)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::job_stopped)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::job_suspended)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::job_has_moved)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::finish_job)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::suspend_job)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::detach_job)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::let_go_job)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::hand_over_job)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::attach_failed)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::job_recovering)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::job_note)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::local_part)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::want_cut)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::job_tick)
