#pragma once
// Which edges of a plan carry something only at the end of the job, or many steps apart.
//
// A wait at such an edge lasts by design: what a program observes of a shard (its value at the end,
// or at every n-th version) goes from the shard over transfers and ops to a fetch, and all of them
// wait while the job runs as it should.

#include "troupe/runtime/plan/plan.hpp"

#include <vector>

namespace troupe {

// By edge. Sparse is an edge of a shard's port for an observer, unless that takes every version,
// and every edge of an actor that fires only with an item of a sparse edge. Linear in edges.
std::vector<bool> sparse_edges(const plan& p);

}  // namespace troupe
