#pragma once
// Another function in the place of a stage's, while the topology runs: a new version of it.
//
// The new one takes over between two items, with what the one before has in `state`. On trial, its
// first items are kept until it has worked on them: the first one that it fails at goes to the
// function before it, which comes back, with all that was learnt meanwhile. So nothing is lost,
// doubled, or out of order, and nobody stands still.
//
// SRP-1  Each item is worked on by one of both; one that the new one has failed at, and of which
//        nothing has come yet, by the one before.
// SRP-2  Replicas go back together: those that have the new one still on trial, with their next
//        item.
// Threading: as stages; stage_change is read and written by the threads of all replicas and by who
// asked for it.

#include "troupe/runtime/flow/stage.hpp"

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace troupe {

// Of all replicas of one stage.
struct stage_change {
  std::string name;  // of the stage
  std::function<std::unique_ptr<stage>()> make;
  std::uint64_t trial = 0;                // items
  std::atomic<std::uint64_t> passed{0};   // items that the new ones have worked on
  std::atomic<std::uint32_t> waiting{0};  // replicas that have the one before
  // Called once: when none has, or one cannot have it, or the topology was over before.
  std::function<void(result<void>)> done = [](const result<void>&) {};
  enum class verdict : std::uint8_t { none, stays, goes_back };
  std::atomic<verdict> judged{verdict::none};
  std::atomic<bool> is_told_why{false};  // why_back is written
  std::string why_back;

  stage_change() = default;
  stage_change(const stage_change&) = delete;
  stage_change& operator=(const stage_change&) = delete;
  ~stage_change();
  // One replica more has it, or cannot have it.
  void count(result<void> how);

 private:
  std::atomic<bool> is_told_{false};
};

// The new one of a replica, open, which has not taken over yet.
struct stage_replacement {
  std::uint32_t stage = 0;
  std::unique_ptr<troupe::stage> what;
  std::shared_ptr<stage_change> change;
};

// What stands in the place of `before` from now on: `r.what`, with its state. `before` stays where
// that is an error: its state does not fit.
result<void> take_over(std::unique_ptr<stage>& before, stage_replacement&& r);

}  // namespace troupe
