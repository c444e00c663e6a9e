#pragma once
// The cluster on a page: nodes, jobs with progress and rate, the busiest actors, the oldest waits
// but for those that last by design (port_snapshot::is_sparse).

#include "troupe/runtime/insight/snapshot.hpp"

#include <cstddef>
#include <string>

namespace troupe {

// `width` and `height` of the terminal, 0 in a pipe. Lists that are shortened say how many more
// there are, and where.
std::string draw_status(const cluster_snapshot& c, std::size_t width, std::size_t height);

}  // namespace troupe
