#pragma once
// A buffer that several ops of one stream write in turn, because nobody needs what one made when
// the next begins.
//
// A plan numbers its buffers (plan.hpp, PL-8). The uses of a buffer are the output ports that write
// it, in the order of the plan's actors; each step that is in flight has a copy of every buffer,
// and there the uses take turns, step after step. So a buffer is a credit that its uses share:
//
//   event                                  effect
//   try_begin(use)                         true: it is this use's turn and nobody reads what was
//                                          there. Else the use is woken when it is
//   begin(use, readers)                    the use writes; so many readers will take what it makes
//   begin_nothing(use, readers)            the same, for a dead token (loop_rules.hpp)
//   add_readers(n)                         what is there was handed on as it is (a reshape): n more
//                                          readers
//   release()                              one reader is done; the last one ends the turn. Says
//                                          which actor to wake
//
// A use may begin in place: it is itself the last reader of what is there, and writes over it.
//
// SB-1  Turns follow the order of the uses, whatever order messages come in: the next one begins
//       when all readers of the one before are done.
// SB-2  An actor is woken only if it asked, and exactly once for each time.
// SB-3  Nobody waits for ever: a use waits for readers of an earlier use of its step, or of an
//       earlier step, and these need nothing that comes later.
//
// Threading: one stream's thread. Memory is taken at the first use.

#include "troupe/devices/tensor.hpp"
#include "troupe/schema/error.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace troupe {

class shared_buffer {
 public:
  shared_buffer(std::size_t bytes, std::uint32_t tags) : bytes_(bytes), copies_(tags) {
    expects(tags >= 1, "a step is in flight");
  }

  // By whoever makes the part, in the order of the plan; the number of the use.
  std::uint32_t add_use(std::uint32_t actor, bool is_in_place) {
    uses_.push_back({actor, is_in_place});
    for (auto& c : copies_) c.waits.push_back(false);
    return static_cast<std::uint32_t>(uses_.size()) - 1;
  }

  bool try_begin(std::uint32_t use, std::uint64_t step) {
    auto& c = copy(step);
    if (can_begin(c, use)) return true;
    c.waits[use] = true;
    return false;
  }

  // Memory for `spec`, which nobody else holds. Without readers the caller ends the turn by
  // end_turn() when it is done.
  tensor begin(std::uint32_t use, std::uint64_t step, std::uint32_t readers,
               const tensor_spec& spec) {
    auto& c = copy(step);
    expects(can_begin(c, use), "SB-1: a buffer is written in turn");
    c.turn = use;
    c.readers = readers;
    // A reader that keeps what it took (a library's kernel might) costs fresh memory.
    if (!c.memory || spec.size_bytes() > c.memory.capacity_bytes() ||
        (!uses_[use].is_in_place && !c.memory.is_unique()))
      c.memory = tensor::make(spec, std::max(bytes_, spec.size_bytes()));
    else if (c.memory.spec() != spec)
      c.memory.reshape(spec);
    return c.memory;
  }

  // The same turn, for what is not made in this step.
  void begin_nothing(std::uint32_t use, std::uint64_t step, std::uint32_t readers) {
    auto& c = copy(step);
    expects(can_begin(c, use), "SB-1: a buffer is written in turn");
    c.turn = use;
    c.readers = readers;
  }

  void add_readers(std::uint64_t step, std::uint32_t n) { copy(step).readers += n; }

  // The actor to wake, if any.
  std::optional<std::uint32_t> release(std::uint64_t step) {
    auto& c = copy(step);
    expects(c.readers > 0, "a buffer is released by its readers, once each");
    return --c.readers == 0
               ? end_turn(c)
               : wake(c, next(c.turn), uses_[next(c.turn)].is_in_place && c.readers == 1);
  }
  std::optional<std::uint32_t> end_turn(std::uint64_t step) { return end_turn(copy(step)); }

  // Of the readers of what is there; for people who ask what a use waits for.
  std::uint32_t readers(std::uint64_t step) const { return copies_[step % copies_.size()].readers; }
  // The actor of the use before `use`, maybe in an earlier step.
  std::uint32_t actor_before(std::uint32_t use) const {
    return uses_[use == 0 ? uses_.size() - 1 : use - 1].actor;
  }
  std::size_t bytes() const noexcept { return bytes_; }
  std::size_t uses() const noexcept { return uses_.size(); }
  // Taken so far, of all steps in flight.
  std::size_t bytes_taken() const noexcept {
    std::size_t sum = 0;
    for (const auto& c : copies_) sum += c.memory.capacity_bytes();
    return sum;
  }

 private:
  struct use {
    std::uint32_t actor = 0;
    bool is_in_place = false;
  };
  struct one {
    tensor memory;
    std::uint32_t turn = 0;     // the use that writes, or whose result is read; or that is next
    std::uint32_t readers = 0;  // that are not done
    std::vector<bool> waits;    // by use
  };

  one& copy(std::uint64_t step) { return copies_[step % copies_.size()]; }
  std::uint32_t next(std::uint32_t turn) const noexcept {
    return turn + 1 == uses_.size() ? 0 : turn + 1;
  }
  bool can_begin(const one& c, std::uint32_t use) const {
    if (c.readers == 0) return c.turn == use;
    return uses_[use].is_in_place && c.readers == 1 && next(c.turn) == use;
  }
  std::optional<std::uint32_t> end_turn(one& c) {
    c.turn = next(c.turn);
    return wake(c, c.turn, true);
  }
  std::optional<std::uint32_t> wake(one& c, std::uint32_t use, bool can_begin) {
    if (!can_begin || !c.waits[use]) return std::nullopt;
    c.waits[use] = false;
    return uses_[use].actor;
  }

  std::size_t bytes_;
  std::vector<use> uses_;
  std::vector<one> copies_;  // by step in flight
};

}  // namespace troupe
