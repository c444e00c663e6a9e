#pragma once
// Where every gradient of a training went.
//
// SV-4  fed = applied + dropped + in flight, for every worker, at any moment, whatever reports came
//       or did not come.
//
// Threading: pure; one owner.

#include "troupe/runtime/jobs/training_totals.hpp"
#include "troupe/runtime/wire/control_message.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace troupe {

class ledger {
 public:
  // Of one epoch, in which worker w's first step is start[w] (empty: 0). What was applied before is
  // not counted.
  explicit ledger(std::uint32_t workers, std::vector<std::uint64_t> start = {});

  // The loss of one more step of `worker` was seen.
  void on_loss(std::uint32_t worker);
  // A shard's counters by worker; older or shorter ones than before take nothing back.
  void on_shard(const shard_report& r);

  std::uint32_t workers() const noexcept { return static_cast<std::uint32_t>(losses_.size()); }
  // fed: as many as anybody has seen, by their losses or gradients.
  worker_totals of(std::uint32_t worker) const;
  worker_totals total() const;

 private:
  std::vector<std::uint64_t> start_, losses_;
  std::map<std::uint32_t, shard_report> shards_;  // by actor
};

// "worker 1: fed 431 = applied 428 + dropped 0 + in flight 3"
std::string to_string(std::uint32_t worker, const worker_totals& l);

}  // namespace troupe
