#pragma once
// Which op of a stream failed, by what is known to be done. Pure.
//
// The driver tells of a failed kernel at some later call, for the whole chip. A stream numbers what
// is enqueued and learns from events (and from marks, where each op leaves one) how far it came.
//
// PR-1  The text names one op where one alone is in question, else the first and the last, and how
//       many.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::cuda {

class progress {
 public:
  // An op is enqueued: its place.
  std::uint64_t begin(std::string_view op) {
    names_[last_++ % kept] = op;
    return last_;
  }
  // All up to this place are done.
  void done(std::uint64_t place) noexcept { done_ = place > done_ ? place : done_; }
  std::uint64_t last() const noexcept { return last_; }
  std::uint64_t finished() const noexcept { return done_; }
  // "op a", or "one of 12 ops, from a to b"; empty: nothing is under way. With `is_exact`, where
  // each op leaves a mark: the first that left none.
  std::string in_question(bool is_exact = false) const;

 private:
  static constexpr std::uint64_t kept = 4096;  // names; more are seldom under way
  std::vector<std::string_view> names_ = std::vector<std::string_view>(kept);
  std::uint64_t last_ = 0, done_ = 0;
};

}  // namespace troupe::cuda
