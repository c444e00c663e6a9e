#pragma once
// Whether a worker is done with a variable's version when its gradient comes to the shard.
//
// A synchronous shard writes the next version over the one before unless somebody still has that
// (shard_state.hpp). Nobody has if all ops that read it ran on the stream that made the gradient,
// before that: an op drops what it took before its stream goes on. Then a version, and a gradient,
// are one tensor each for the whole job, since the next gradient is made of the next version
// (passes/draft/replicate.cpp sees to it).
//
// Threading: pure functions.
//
// RO-1  Whoever is `ordered` is: where a plan does not show it, it is not said.

#include "troupe/runtime/plan/plan.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace troupe {

// An actor and what it takes.
struct actor_view {
  const planned_actor* planned = nullptr;
  std::span<const port_ref> from;  // by input port
  bool forwards_input = false;     // its output 0 is its input 0
  bool may_be_dead = false;        // it lies in a branch or loop: what it makes may be a dead token
};

enum class read_order : std::uint8_t {
  ordered,  // every op that reads the version has run when the gradient is made
  late,     // those in `readers` may run behind it, or are it; they could be waited for
  unknown,  // some of it is on another stream or task, or in a branch or loop
};

// Of one worker's port of a synchronous shard.
struct version_reads {
  std::uint32_t shard = 0, input = 0;
  port_ref gradient;
  read_order order = read_order::unknown;
  std::vector<std::uint32_t> readers{};
  // What is handed on as the gradient is made after the version has come: the next one cannot be
  // made before this one is applied.
  bool is_made_of_it = false;
};

// Of all synchronous shards, in their order and that of their inputs; actors stand behind those
// whose outputs they take, but for shards.
std::vector<version_reads> reads_of_versions(std::span<const actor_view> actors);
std::vector<version_reads> reads_of_versions(const plan& p);

}  // namespace troupe
