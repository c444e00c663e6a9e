#pragma once
// What the coordinator of a job leaves to whoever coordinates the job after it: in another process,
// when its own dies, when the program detaches, or when another program attaches.
//
//   job_recipe    how the training is made: a graph and the options. Once.
//   job_journal   how far it is. After every loss; each has the losses since the one before.
//   kept_journals what a node keeps of other coordinators' jobs, and when it takes one over.
//
// JJ-1  A journal's steps and losses are never ahead of its coordinator's, and nobody goes on
//       behind a loss that the journal lacks: the coordinator gives the credit of a loss back when
//       its successors have kept it (job_coordinator.hpp, JC-11).
// JJ-2  One successor takes over: the first of the list that lives, as it sees it. Where two do,
//       since they do not see each other, the epochs that they claim decide: the newer one has the
//       job, and the older one hears so (job_coordinator.hpp, JC-12).
// JJ-3  Decoding takes any bytes: memory in proportion to them, and what does not fit is an error
//       of one line.
// JJ-4  At most losses_max losses are kept for programs that come back, the newest ones.
//
// Threading: values; kept_journals has one owner.

#include "troupe/runtime/checkpoint/checkpoint_options.hpp"
#include "troupe/runtime/compile/compile.hpp"
#include "troupe/runtime/graph/op_table.hpp"
#include "troupe/runtime/jobs/placement.hpp"
#include "troupe/runtime/jobs/training_totals.hpp"
#include "troupe/runtime/supervision/failure.hpp"
#include "troupe/schema/error.hpp"
#include "troupe/schema/ids.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace troupe {

struct job_recipe {
  std::vector<std::byte> graph;  // encode_graph(), with the loss and the training
  failure_policy on_failure = failure_policy::resume;
  restart_limits limits{};
  checkpoint_policy checkpoints{};
  std::uint32_t keep = 3;  // checkpoints
};

std::vector<std::byte> encode(const job_recipe& r);
result<job_recipe> decode_recipe(std::span<const std::byte> bytes);

// The training of a recipe, and the graph file's name of the job. `client`: who coordinates it now.
// Errors: usage: an op that this process does not know, or what compile_program() says.
result<training_program> make_program(const job_recipe& r, const role_map& roles, node_id client,
                                      const op_table& ops);

struct told_loss {
  std::uint64_t step = 0;
  std::uint32_t worker = 0;
  float loss = 0;
  friend bool operator==(const told_loss&, const told_loss&) = default;
};

// What nodes have read from files of their own, and the name of the first one that said so.
struct read_data {
  std::string what;
  std::uint64_t hash = 0;
  std::string node;
  friend bool operator==(const read_data&, const read_data&) = default;
};

struct job_journal {
  std::uint32_t epoch = 0;
  node_id coordinator{};
  std::vector<node_id> successors{};
  role_map roles{};
  std::vector<std::uint64_t> first_steps{}, next_losses{};  // by worker
  std::vector<worker_totals> closed{};                      // by worker: fed and dropped
  std::uint64_t data_messages = 0, recoveries = 0, checkpoints = 0;
  std::uint64_t last_step = 0;  // where the job is to end; 0: where its training does
  bool is_finishing = false;    // it is to end where it has got to
  bool is_suspending = false;   // and there are steps left, for who resumes it
  // Coordinators that died one after the other without a step forward, and how many losses there
  // were when the last one of them began.
  std::uint32_t in_vain = 0;
  std::uint64_t progress = 0;
  std::uint64_t started_unix_ns = 0;
  std::vector<told_loss> losses{};  // since the journal before, oldest first
  std::vector<read_data> data{};

  friend bool operator==(const job_journal&, const job_journal&) = default;
};

std::vector<std::byte> encode(const job_journal& j);
result<job_journal> decode_journal(std::span<const std::byte> bytes);

// Losses for a program that comes back (JJ-4).
class loss_history {
 public:
  static constexpr std::size_t losses_max = 10'000;

  void add(const told_loss& l);
  void add(std::span<const told_loss> losses) {
    for (const auto& l : losses) add(l);
  }
  const std::deque<told_loss>& newest() const noexcept { return losses_; }

 private:
  std::deque<told_loss> losses_;
};

// A job that this node may have to coordinate.
struct kept_journal {
  node_id from{};
  std::uint64_t number = 0;
  std::shared_ptr<const job_recipe> recipe;
  job_journal journal;
  loss_history losses;
};

class kept_journals {
 public:
  explicit kept_journals(node_id self) : self_(self) {}

  // The answer goes to `from`. An error: the bytes do not fit, or a first one without a recipe;
  // what was kept stays.
  result<void> keep(node_id from, job_id job, std::uint64_t number,
                    std::span<const std::byte> recipe, std::span<const std::byte> journal);
  // `from`, which coordinates the job in that epoch, needs this node no more for it.
  void forget(node_id from, job_id job, std::uint64_t epoch);
  bool has(job_id job) const { return jobs_.contains(job); }
  std::size_t size() const noexcept { return jobs_.size(); }

  // Out of the table: the coordinator hands it over, if it is `from`'s.
  std::optional<kept_journal> take(node_id from, job_id job);
  // Somebody has died or left: the jobs that are this node's now, out of the table (JJ-2).
  std::vector<std::pair<job_id, kept_journal>> take_orphans(
      const std::function<bool(node_id)>& is_alive);
  // This node is another one now (it was held dead): it is nobody's successor any more.
  void on_rejoined(node_id self);

 private:
  node_id self_;
  std::map<job_id, kept_journal> jobs_;
};

}  // namespace troupe
