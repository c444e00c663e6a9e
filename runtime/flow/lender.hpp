#pragma once
// Lends the units of something limited, such as three connections to a database: who has which, and
// whose turn is next. What a unit is, resource.hpp knows.
//
// LND-1  A unit is with one borrower at a time.
// LND-2  Who has waited longest gets the next one.
// Threading: any thread, at any time. take() sleeps in the kernel while all units are lent.

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace troupe {

class lender {
 public:
  lender(std::string name, std::uint32_t units);

  // The number of a unit; `who` is what holder() says of it, not 0. nullopt: all are lent, or
  // somebody waits already.
  std::optional<std::uint32_t> try_take(std::uint64_t who) noexcept;
  // The same, and waits for it.
  std::uint32_t take(std::uint64_t who) noexcept;
  void give_back(std::uint32_t unit) noexcept;

  const std::string& name() const noexcept { return name_; }
  std::uint32_t units() const noexcept { return static_cast<std::uint32_t>(holders_.size()); }
  std::uint32_t lent() const noexcept;
  std::uint32_t waiting() const noexcept;
  // Of those who have a unit now: who has had it longest; 0: nobody has one.
  std::uint64_t holder() const noexcept;

 private:
  struct held {
    std::atomic<std::uint64_t> who{0};  // 0: it is here
    std::atomic<std::uint64_t> turn{0};
  };
  std::uint32_t pick(std::uint64_t who, std::uint64_t turn) noexcept;

  std::string name_;
  std::vector<held> holders_;
  // Turns are given out in order; those below `served_` have a unit, or have had one.
  std::atomic<std::uint64_t> next_{0}, served_;
};

}  // namespace troupe
