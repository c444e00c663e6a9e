// A library with one op, swish_gate(a, b) = a sigmoid(beta b), for f32 and f64. README.md shows how
// it is built outside of this tree.

#include <troupe/op_library.hpp>

#include <fmt/format.h>

#include <cmath>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace {

using namespace troupe;

// --- what it is: shapes and gradient ---

// a and b have one shape, which may be symbolic, and one type, f32 or f64; the result has both.
result<std::vector<tensor_spec>> shapes_of(const attributes& attrs, std::span<const tensor_spec> in,
                                           const tag*) {
  if (in[0] != in[1])
    return error(error_code::usage, fmt::format("a {}, b {}: both have one shape and one type",
                                                to_string(in[0]), to_string(in[1])));
  if (!std::isfinite(attrs.real("beta", 1)))
    return error(error_code::usage, "beta is not a finite number");
  return std::vector<tensor_spec>{in[0]};
}

// With s = sigmoid(beta b): s in a, a beta s (1 - s) in b. Of ops that have gradients themselves,
// so that gradients of these exist, too.
std::vector<value> gradient_of(graph&, const graph_node& n, std::span<const value> dy) {
  const auto a = n.inputs[0], b = n.inputs[1];
  const double beta = n.attrs.real("beta", 1);
  const auto s = sigmoid(b * beta);
  return {dy[0] * s, dy[0] * a * (s * (1.0 - s)) * beta};
}

// --- what computes it ---

float sigmoid_of(float x) { return vector_math::sigmoid(x); }
double sigmoid_of(double x) { return 1 / (1 + std::exp(-x)); }

class swish_gate_kernel final : public kernel {
 public:
  explicit swish_gate_kernel(double beta) : beta_(beta) {}

  result<void> prepare(std::span<const tensor_spec>, std::span<const tensor_spec>) override {
    return {};
  }

  result<void> run(const tag&, std::span<const tensor> in, std::span<tensor> out) override {
    if (in[0].type() == dtype::f32)
      compute<float>(in[0], in[1], out[0]);
    else
      compute<double>(in[0], in[1], out[0]);
    return {};
  }

 private:
  template <class T>
  void compute(const tensor& a_in, const tensor& b_in, tensor& y_out) const {
    const T* a = a_in.data<T>();
    const T* b = b_in.data<T>();
    T* y = y_out.data<T>();
    const auto beta = static_cast<T>(beta_);
    const auto n = y_out.elements();
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) y[i] = a[i] * sigmoid_of(beta * b[i]);
  }

  double beta_;
};

result<std::unique_ptr<kernel>> make_kernel(const attributes& attrs, host_device&) {
  return std::unique_ptr<kernel>(std::make_unique<swish_gate_kernel>(attrs.real("beta", 1)));
}

void add_own_ops(op_table& ops, kernel_table& kernels) {
  ops.add("swish_gate",
          {.inputs = 2, .shapes = shapes_of, .gradient = gradient_of, .types = floating});
  // It reads an element before it writes it, so in place is fine.
  kernels.add("swish_gate", {make_kernel, true});
}

}  // namespace

TROUPE_OP_LIBRARY({.name = "own_ops", .version = "1.0", .add = add_own_ops})
