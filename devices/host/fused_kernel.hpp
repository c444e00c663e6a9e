#pragma once
// A group of ops as one kernel: a first op of any kind, and element-wise ones behind it, or
// element-wise ones only.
//
// Results of earlier steps may be used by any later step, so a group is a chain or a tree.
// Element-wise steps run tile by tile, so that intermediate results stay in the cache and never
// become tensors; behind a product or a convolution, piece by piece of that
// (devices/host/piecewise_kernel.hpp).
//
// FK-1  Bits equal those of the separate kernels.
// FK-2  The last step's output 0 is the group's only output; all steps' outputs have its shape,
//       each its own element type.
// FK-3  outputs[0] never aliases an input: a fused group does not run in place.

#include "troupe/devices/host/tile_team.hpp"
#include "troupe/devices/kernel.hpp"
#include "troupe/schema/error.hpp"

#include <cstdint>
#include <memory>
#include <vector>

namespace troupe {

struct fused_step {
  std::unique_ptr<kernel> op;  // from the host's table
  // >= 0: input port of the group; < 0: output 0 of step -1 - operand.
  std::vector<std::int32_t> operands;
  dtype type = dtype::f32;  // of its result
};

// Errors: no steps, a step behind the first that is not element-wise, an operand that is not
// earlier. `team`, which outlives it: whose threads share a large group.
result<std::unique_ptr<kernel>> make_fused_kernel(std::vector<fused_step> steps, tile_team& team);

}  // namespace troupe
