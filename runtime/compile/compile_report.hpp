#pragma once
// What the passes of the compiler did to a graph, for people: filled in where
// compile_options::report asks for it. Whoever compiles twice into one report has both in it.
//
// RP-1  Passes stand in the order in which they ran. Up to `share` and `pack_pushes` they count ops
//       of one worker's graph, from `replicate` (of a training) or `lower` (of steps) on actors,
//       those of all workers.
// RP-2  A pass tells of at most changes_max changes, those that it made first, and counts the
//       others.
// RP-3  A plan is the same with and without a report.
// RP-4  placements[i] is about actor i of the plan; actors behind its end were put in by later
//       passes.

#include "troupe/runtime/plan/plan.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace troupe {

struct pass_change {
  std::string op;      // or an actor's name
  std::string what;    // and why: "is multiplied by 1: 'dense_1/relu' stands for it"
  source_line source;  // of the user, where there is one

  // "'add_1': ... (model.cpp:12)"
  std::string text() const;
};

struct pass_report {
  static constexpr std::size_t changes_max = 50;

  std::string pass;
  bool counts_actors = false;  // or ops
  std::size_t before = 0, after = 0;
  std::vector<pass_change> changes{};
  std::size_t more = 0;  // changes that are not listed

  // `what` is called where there is room only.
  template <class What>
  void add(const std::string& op, const source_line& source, What&& what) {
    if (changes.size() < changes_max)
      changes.push_back({op, std::forward<What>(what)(), source});
    else
      ++more;
  }
};

// Why an actor runs where it runs.
struct placement_reason {
  enum class kind : std::uint8_t { worker, shard, client } owner = kind::client;
  std::uint32_t index = 0;  // of the worker or shard
  std::string wish{};       // its device, as device_scope() said
  bool is_by_wish = false;  // the wish led it away from its worker or shard
  // Why the planner chose another stream than the first; empty: it did not.
  std::string spread{};
};

struct compile_report {
  std::vector<pass_report> passes;
  std::vector<placement_reason> placements;

  // Appended; valid until the next one is.
  pass_report& begin(std::string pass, std::size_t before, bool counts_actors = false) {
    passes.push_back({.pass = std::move(pass),
                      .counts_actors = counts_actors,
                      .before = before,
                      .after = before});
    return passes.back();
  }
};

}  // namespace troupe
