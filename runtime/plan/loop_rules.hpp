#pragma once
// What flows through branches and loops of a graph, as rules without actors.
//
// Branches and loops are made of ops that pass tokens on (runtime/graph/control_flow.hpp has what a
// program writes):
//
//   op              takes                                   makes
//   branch          x, a condition                          x for the branch that is taken, a dead
//                                                           token for the other one
//   merge           a condition, one value of each branch   that of the branch that was taken
//   loop_enter      the first value, then one per           these in turn, until a dead one comes
//                   iteration                               back
//   loop_condition  a condition                             the same, unless its step was cancelled
//                                                           or the loop has made too many
//                                                           iterations
//   loop_next       x, a condition                          x for the body, or (where the condition
//                                                           does not hold) a dead token, and x
//                                                           leaves the loop
//   loop_stack      a value of each iteration, all of them  the same, the last one first
//
// All other ops just fire: one that takes a dead token makes dead tokens, without its kernel. So a
// branch that is not taken costs a message per op and takes the same credits in the same order as
// one that is, and nobody needs to be told.
//
// A dead token has a level: how many branches and loops lie around, up to and with the outermost
// one that is not taken or has ended. A loop at level n has its condition at n and its body at
// n + 1. Its condition is evaluated once more than its body runs; then the body sees one dead token
// of level n + 1, which comes back to loop_enter, which sends one of level n through the condition.
// So whoever is in a loop sees the end of each run of it.
//
// LO-1  Tags of every edge in a loop ascend: step, then the iterations of the loops around, from
//       the outermost, then that of the loop itself.
// LO-2  What enters a loop with tag t leaves it with tag t.
// LO-3  The runs of a loop follow each other: the next one begins when the dead token of the one
//       before came back. Within a run, variables of a loop that do not wait for each other are as
//       many iterations apart as their edges have credits.
// LO-4  Of the run of a step, an actor that is in a loop sees exactly one token that is dead at or
//       below the level of the outermost body around it, its last.

#include "troupe/schema/error.hpp"
#include "troupe/schema/ids.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe {

inline constexpr std::string_view branch_op = "branch", merge_op = "merge",
                                  loop_enter_op = "loop_enter",
                                  loop_condition_op = "loop_condition", loop_next_op = "loop_next",
                                  loop_stack_op = "loop_stack";
// In graphs only; a plan has edges for them.
inline constexpr std::string_view loop_back_op = "loop_back", loop_end_op = "loop_end";

// Of the ops above that plans have.
bool is_control(std::string_view type) noexcept;

// --- tags

inline constexpr std::uint32_t loop_depth_max = 4;  // of loops in each other
// Of branches and loops in each other.
inline constexpr std::int64_t region_level_max = 65'535;
// Of a loop around another one.
inline constexpr std::uint32_t outer_iterations_max = (1U << 21U) - 2;

// Iteration 0 of a loop that begins at `outer`.
constexpr tag entered(tag outer) noexcept {
  outer.frame = outer.frame << 21U | (outer.iteration + 1U);
  outer.iteration = 0;
  return outer;
}
// Where the loop of `inner` began.
constexpr tag left(tag inner) noexcept {
  inner.iteration = static_cast<std::uint32_t>(inner.frame & ((std::uint64_t{1} << 21U) - 1)) - 1U;
  inner.frame >>= 21U;
  return inner;
}

// --- loop_enter

class loop_entry {
 public:
  // `level`: of the loop's condition.
  explicit loop_entry(std::uint16_t level = 1) : level_(level) {}

  // Where the next token has to come from: 0 the first value, 1 the body.
  std::uint32_t port() const noexcept { return is_inside_ ? 1 : 0; }
  // The tag of what it makes of the token that came there; nullopt: nothing. That carries the
  // token's value, if it is alive.
  std::optional<tag> take(const tag& t) {
    if (!is_inside_) {
      is_inside_ = true;
      return entered(t);
    }
    if (t.dead == 0) return next(t);
    is_inside_ = false;
    if (t.dead <= level_) return std::nullopt;  // the loop was not begun
    auto end = next(t);
    end.dead = level_;
    return end;
  }
  // An iteration that would be too many for a loop around.
  static bool is_too_far(const tag& t) noexcept { return t.iteration > outer_iterations_max; }

 private:
  static tag next(tag t) noexcept {
    ++t.iteration;
    return t;
  }
  std::uint16_t level_;
  bool is_inside_ = false;
};

// --- loop_stack

// Takes the tokens of a value in a body, those of all iterations (and of all runs, if loops lie in
// each other), and gives them back the other way round, for the loops that go back through them.
template <class Value>
class loop_stack {
 public:
  struct token {
    tag t;
    Value value{};
  };

  // `levels`: of the bodies of the loops that are gone through backwards, from the outermost.
  // `is_condition`: what it makes is the condition of the innermost of them: alive for each
  // iteration and at its end, then dead at the level of its condition. `tokens_max`: of those that
  // are kept.
  loop_stack(std::vector<std::uint16_t> levels, bool is_condition, std::size_t tokens_max)
      : levels_(std::move(levels)),
        counts_(levels_.size()),
        is_condition_(is_condition),
        tokens_max_(tokens_max) {
    expects(!levels_.empty(), "a stack is of a loop at least");
  }

  bool can_take() const noexcept { return !is_full_; }
  // False: it has as many as it may keep.
  bool take(const tag& t, Value value) {
    expects(can_take(), "a stack is emptied before the next run begins");
    mark_ = std::max(mark_, t.mark);
    if (t.dead != 0 && t.dead <= levels_.front()) {
      is_full_ = true;
      end_ = t;
      for (auto& c : counts_) c = 0;
      return true;
    }
    if (kept_.size() == tokens_max_) return false;
    kept_.push_back({t.dead, std::move(value)});
    return true;
  }

  // All have come: give() until it is false again.
  bool can_give() const noexcept { return is_full_ || !due_.empty(); }
  // The next one; `holds`: of a condition, whether it does.
  token give(bool* holds = nullptr) {
    if (due_.empty()) find_due();
    auto d = std::move(due_.front());
    due_.erase(due_.begin());
    if (holds != nullptr) *holds = d.holds;
    return {d.t, std::move(d.value)};
  }

 private:
  struct kept {
    std::uint16_t dead = 0;
    Value value{};
  };
  struct due {
    tag t;
    Value value{};
    bool holds = false;
  };

  std::size_t nesting_of(std::uint16_t level) const {
    std::size_t j = 0;
    while (levels_[j] < level) ++j;
    return j;
  }
  bool is_position(const kept& k) const { return k.dead == 0 || k.dead > levels_.back(); }

  tag now() const {
    auto t = end_;
    for (std::size_t i = 0; i < levels_.size(); ++i) t = left(t);
    for (const auto c : counts_) {
      t = entered(t);
      t.iteration = c;
    }
    t.mark = mark_;
    t.dead = 0;
    return t;
  }
  void add(std::uint16_t dead, Value value, bool holds) {
    auto t = now();
    t.dead = dead;
    due_.push_back({t, std::move(value), holds});
  }

  // The end of a run, as it was seen at nesting j.
  void add_end(std::uint16_t level) {
    const auto j = nesting_of(level);
    for (auto k = j + 1; k < counts_.size(); ++k) counts_[k] = 0;
    if (is_condition_ && level == levels_.back()) {
      add(0, {}, false);
      ++counts_.back();
      add(static_cast<std::uint16_t>(level - 1), {}, false);
    } else {
      add(level, {}, false);
    }
    if (j > 0) ++counts_[j - 1];
    for (auto k = j; k < counts_.size(); ++k) counts_[k] = 0;
  }

  // Goes backwards by one, at least until there is something to give.
  void find_due() {
    while (due_.empty()) {
      if (kept_.empty()) {
        while (!ends_.empty()) pop_end();
        add_end(end_.dead);
        is_full_ = false;
        mark_ = 0;
        return;
      }
      auto k = std::move(kept_.back());
      kept_.pop_back();
      if (is_position(k)) {
        // A dead token of a branch in the body keeps its level.
        add(k.dead, std::move(k.value), k.dead == 0);
        ++counts_.back();
        continue;
      }
      while (!ends_.empty() && nesting_of(ends_.back()) >= nesting_of(k.dead)) pop_end();
      ends_.push_back(k.dead);
    }
  }
  void pop_end() {
    add_end(ends_.back());
    ends_.pop_back();
  }

  std::vector<std::uint16_t> levels_;
  std::vector<std::uint32_t> counts_;  // iterations that were given back, by loop
  bool is_condition_;
  std::size_t tokens_max_;
  std::vector<kept> kept_;
  std::vector<std::uint16_t> ends_;  // of runs that are being given back
  std::vector<due> due_;
  tag end_;
  bool is_full_ = false;
  std::uint32_t mark_ = 0;
};

}  // namespace troupe
