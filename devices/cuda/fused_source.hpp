#pragma once
// A group of element-wise ops as the source of one CUDA kernel. Pure: texts and numbers, no CUDA.
//
// The list is that of a host's fused group (devices/host/fused_kernel.hpp), with names of ops
// instead of kernels; a single op is a group of one. The source calls the functions of
// devices/element_ops.hpp, as the host's loops do. Sizes are arguments, so that groups that differ
// in sizes alone share a source; what is written into it are the types and which operands are
// broadcast.
//
// FS-1  Bits of f32 are meant to be those of the host: the same functions, no contraction, no
//       denormal numbers.
// FS-2  outputs[0] may be an operand that is not broadcast: an element is read before it is
//       written, by one thread.
// FS-3  Operands are broadcast by NumPy's rules to the shape of the result (EW-1).

#include "troupe/devices/cuda/code/launch.hpp"
#include "troupe/schema/dtype.hpp"
#include "troupe/schema/error.hpp"
#include "troupe/schema/tensor_spec.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::cuda {

struct element_step {
  std::string op;
  // >= 0: input port of the group; < 0: output of step -1 - operand.
  std::vector<std::int32_t> operands;
  dtype type = dtype::f32;  // of its result
};

struct fused_source {
  std::string text;
  std::string entry = "fused";
  // Arguments: a pointer for each port that `ports` names, the result's, the number of elements,
  // then numbers (64 bits each).
  std::vector<std::size_t> ports;
  std::int64_t elements = 0;
  std::vector<std::int64_t> numbers;  // sizes and steps of what is broadcast
  std::int64_t elements_per_thread = 1;
};

// Errors: an op that is not element-wise or not for these types, operands that do not fit.
result<fused_source> make_fused_source(std::span<const element_step> steps,
                                       std::span<const tensor_spec> inputs,
                                       const tensor_spec& output);

// How an element-wise op walks over its operands, for kernels that were compiled before
// (code/plain_elements.hpp). nullopt: one cannot be broadcast.
std::optional<code::plain_walk> plain_walk_over(const shape& out, std::span<const shape> operands);

bool is_element_op(std::string_view op) noexcept;
std::vector<std::string_view> element_ops();
// Types of operands for which there is a result type, as {operands..., result}: all that the host
// has, for tests.
std::vector<std::vector<dtype>> element_overloads(std::string_view op);

}  // namespace troupe::cuda
