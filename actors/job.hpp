#pragma once
// A job actor coordinates one run of a plan: it places the parts, starts them, watches nodes and failures, and tells the program.
// It lives in the program that started the job; the program only observes.
//
//   job_actor
//   message        from        effect                                                     to the program
//   peer_message   node        part_placed, part_ended of a participant                   job_started | job_failed
//   member_down    node        tolerated (async worker) or fatal                          worker_lost | job_failed
//   fetched        fetch       losses become progress, variables become observations      job_progress, job_variables
//   stop_job       program     end all parts                                              job_failed
//   placing_overdue node       fatal while a participant has not placed its part          job_failed
//
// JB-1  The program gets exactly one job_finished or job_failed, as the last message.
// JB-2  After that no actor of the job runs on any node that can be reached: every one was told to stop.
// JB-3  fed = applied + dropped + in flight, per worker, in the last message (runtime/supervision.hpp).
// Ends: with its last message.

#include "actors/node.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace troupe {

struct job_started {
  job_id job{};
  std::shared_ptr<const part_handles> handles;  // of the part in this process
};
struct job_progress {  // sync: one per step, the loss of all workers; async: one per step of a worker
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
struct worker_account {
  std::uint64_t fed = 0, applied = 0, dropped = 0, in_flight = 0;
};
struct job_totals {
  std::vector<worker_account> workers;
  std::uint64_t actors = 0;         // of the job, on all nodes
  std::uint64_t op_actors = 0;
  std::uint64_t data_messages = 0;  // items on edges, credits not counted
};
struct job_finished { job_totals totals; };
struct job_failed {
  std::string line;
  job_totals totals;
};
struct stop_job { std::string reason; };
struct placing_overdue {};  // node: by now every participant should have answered

// What a plan says of its job: name, workers, shards, kind of update, steps.
void describe(const plan& p, job_snapshot& out);

caf::actor spawn_job(caf::actor_system& sys, caf::execution_unit* worker, job_id id, std::shared_ptr<const job_request> request,
                     caf::actor node, caf::actor program, std::map<node_id, member_info> members, std::shared_ptr<actor_record> record,
                     std::shared_ptr<job_snapshot> board);

}  // namespace troupe

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::job_started)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::job_progress)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::job_variables)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::worker_lost)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::job_finished)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::job_failed)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::stop_job)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::placing_overdue)
