#pragma once
// The credits of all edges of a plan inside one process, laid out for the threads that write them.
//
// A firing writes a credit of every edge of its actor. So the edges between one pair of streams
// have cache lines of their own: two streams that run next to each other never write the same line,
// unless an edge joins them.
//
// Threading: as edge_credit says, edge by edge.

#include "troupe/runtime/firing/credit.hpp"
#include "troupe/runtime/plan/plan.hpp"

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

namespace troupe {

class edge_credits {
 public:
  edge_credits() = default;
  // `streams`: those of the host in this process; a plan's are taken modulo these. Throws
  // std::bad_alloc.
  edge_credits(const plan& p, std::uint32_t streams);

  // Both ends of an edge write it, and nobody else does.
  edge_credit& operator[](std::size_t edge) const noexcept { return credits_.get()[place_[edge]]; }

 private:
  struct freed {
    void operator()(edge_credit* c) const noexcept { std::free(c); }
  };
  std::vector<std::uint32_t> place_;  // by edge
  std::unique_ptr<edge_credit, freed> credits_;
};

// The actors in the order of their streams, and in their own order on each: what is made for one
// after the other lies together.
std::vector<std::uint32_t> by_stream(const plan& p, std::vector<std::uint32_t> actors,
                                     std::uint32_t streams);

}  // namespace troupe
