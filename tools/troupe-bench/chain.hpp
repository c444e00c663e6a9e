#pragma once
// The bare baseline of a hop: typed CAF actors that pass a tensor handle on, written as any user of
// CAF would.
//
// A chain is N actors behind a driver, which sends the first item, takes what comes out of the last
// actor, and keeps a number of items in flight. With an operand, every actor waits for a second
// message, from one actor that sends it to all.
//
// Threading: build, run and destroy from one thread; the actors run where they are placed.

#include <caf/actor_system.hpp>
#include <caf/execution_unit.hpp>

#include <cstdint>
#include <functional>
#include <memory>

namespace troupe {

class bare_chain {
 public:
  // Where actor i runs; null: wherever the scheduler puts it. Actor `length` is the driver.
  using placement = std::function<caf::execution_unit*(std::uint32_t i)>;

  bare_chain(caf::actor_system& sys, std::uint32_t length, bool has_operand,
             const placement& place);
  ~bare_chain();

  // Seconds for `items` items, `in_flight` of them at a time.
  double run(std::uint64_t items, std::uint64_t in_flight);

 private:
  struct actors;
  std::unique_ptr<actors> actors_;
};

}  // namespace troupe
