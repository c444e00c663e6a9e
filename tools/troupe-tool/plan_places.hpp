#pragma once
// Where a training would run on so many nodes.

#include "troupe/runtime/compile/compile.hpp"
#include "troupe/runtime/graph/build.hpp"

#include <cstdint>

namespace troupe {

// Nodes as they would be if they had been started one after the other; none: everything in the
// program. usage: too few for the workers.
result<task_map> places_on(std::uint32_t nodes, const training_spec& spec);

}  // namespace troupe
