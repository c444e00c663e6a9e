// Libraries of ops that something is wrong with, or different: one for each ODD that
// tests/CMakeLists.txt gives.

#include "troupe/devices/host/loops/elementwise_tiles.hpp"
#include "troupe/runtime/graph/op_library.hpp"

#include <stdexcept>

#undef TROUPE_OP_LIBRARY
#define TROUPE_OP_LIBRARY(...)
#include "apps/own_op/own_ops.cpp"

namespace {

enum class odd {
  other_version,
  other_abi,
  other_ops,
  throws,
  takes_a_name,
  no_kernel,
  no_name,
  kernel_throws,
  null_kernel,
  makes_nothing,
  elementwise
};

[[maybe_unused]] void add_other(op_table& ops, kernel_table& kernels) {
  ops.add("other_gate", {.inputs = 2, .shapes = shapes_of, .gradient = {}});
  kernels.add("other_gate", {make_kernel});
}
[[maybe_unused]] void add_and_throw(op_table& ops, kernel_table& kernels) {
  add_own_ops(ops, kernels);
  throw std::runtime_error("no such instruction set");
}
[[maybe_unused]] void add_relu(op_table& ops, kernel_table& kernels) {
  add_own_ops(ops, kernels);
  ops.add("relu", {.inputs = 2, .shapes = shapes_of, .gradient = {}});
  kernels.add("relu", {make_kernel});
}
[[maybe_unused]] void add_without_kernel(op_table& ops, kernel_table&) {
  ops.add("swish_gate", {.inputs = 2, .shapes = shapes_of, .gradient = {}});
}

struct throwing_kernel final : kernel {
  result<void> prepare(std::span<const tensor_spec>, std::span<const tensor_spec>) override {
    return {};
  }
  result<void> run(const tag& t, std::span<const tensor>, std::span<tensor>) override {
    if (t.step == 3) throw std::runtime_error("the gate is shut");
    return {};
  }
};
[[maybe_unused]] void add_throwing(op_table& ops, kernel_table& kernels) {
  add_own_ops(ops, kernels);
  kernels.add("swish_gate",
              {[](const attributes&, host_device&) -> result<std::unique_ptr<kernel>> {
                return std::unique_ptr<kernel>(std::make_unique<throwing_kernel>());
              }});
}

[[maybe_unused]] void add_null(op_table& ops, kernel_table& kernels) {
  add_own_ops(ops, kernels);
  kernels.add("swish_gate",
              {[](const attributes&, host_device&) -> result<std::unique_ptr<kernel>> {
                return std::unique_ptr<kernel>();
              }});
}
struct idle_kernel final : kernel {
  result<void> prepare(std::span<const tensor_spec>, std::span<const tensor_spec>) override {
    return {};
  }
  result<void> run(const tag&, std::span<const tensor>, std::span<tensor> out) override {
    out[0] = tensor();
    return {};
  }
};
[[maybe_unused]] void add_idle(op_table& ops, kernel_table& kernels) {
  add_own_ops(ops, kernels);
  kernels.add("swish_gate",
              {[](const attributes&, host_device&) -> result<std::unique_ptr<kernel>> {
                return std::unique_ptr<kernel>(std::make_unique<idle_kernel>());
              }});
}

// The same arithmetic for beta = 1.5, as an op that the compiler may fuse with Troupe's own.
struct gate_op {
  static auto apply(auto a, auto b) { return a * sigmoid_of(static_cast<decltype(b)>(1.5) * b); }
};
[[maybe_unused]] void add_elementwise(op_table& ops, kernel_table& kernels) {
  ops.add("swish_gate", {.inputs = 2,
                         .shapes = shapes_of,
                         .gradient = gradient_of,
                         .is_elementwise = true,
                         .types = floating});
  host::add_elementwise_row<gate_op, 2, float, double>(kernels, "swish_gate");
}

op_library make() {
  switch (odd::ODD) {
    case odd::other_version: return {.name = "own_ops", .version = "2.0", .add = add_own_ops};
    // What stands behind another ABI may be anything.
    case odd::other_abi:
      return {op_library_abi(op_interface + 1), reinterpret_cast<const char*>(1),
              reinterpret_cast<const char*>(1), nullptr};
    case odd::other_ops: return {.name = "own_ops", .version = "1.0", .add = add_other};
    case odd::throws: return {.name = "own_ops", .version = "1.0", .add = add_and_throw};
    case odd::takes_a_name: return {.name = "own_ops", .version = "1.0", .add = add_relu};
    case odd::no_kernel: return {.name = "own_ops", .version = "1.0", .add = add_without_kernel};
    case odd::kernel_throws: return {.name = "own_ops", .version = "1.0", .add = add_throwing};
    case odd::null_kernel: return {.name = "own_ops", .version = "1.0", .add = add_null};
    case odd::makes_nothing: return {.name = "own_ops", .version = "1.0", .add = add_idle};
    case odd::elementwise: return {.name = "own_ops", .version = "1.0", .add = add_elementwise};
    case odd::no_name: return {.version = "1.0", .add = add_own_ops};
  }
  return {};
}

}  // namespace

const troupe::op_library* troupe_op_library() {
  static const op_library library = make();
  return &library;
}
