#pragma once
// Ops that benchmarks need beside Troupe's own: `standing`, a source that makes a tensor of
// `elements` zeros once, and hands that on at every step.

#include "troupe/runtime/graph/op_library.hpp"

namespace troupe {

const op_library& bench_ops();

}  // namespace troupe
