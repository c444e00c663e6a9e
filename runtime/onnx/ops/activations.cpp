#include "troupe/runtime/onnx/node.hpp"

namespace troupe::onnx {
namespace {

value zero_of(const node& n, value x) { return n.number_like(x, 0); }

values relu_rule(node& n) {
  n.ignore({"consumed_inputs"});
  const auto x = n.in(0);
  return {whole.has(spec(x).type) ? maximum(x, zero_of(n, x)) : relu(x)};
}

values leaky(node& n) {
  n.ignore({"consumed_inputs"});
  return {leaky_relu(n.in(0), n.real("alpha", 0.01))};
}

// The slope is broadcast to x alone; before opset 7 it was one number, or one for each channel.
values learned_leaky(node& n) {
  n.ignore({"consumed_inputs"});
  const auto x = n.in(0);
  auto slope = n.in(1);
  const auto rank = spec(x).shape.rank();
  if (n.opset < 7 && spec(slope).shape.rank() == 1 && rank > 2 && spec(slope).shape.size(0) != 1) {
    integers dims(rank - 1, 1);
    dims[0] = spec(slope).shape.size(0);
    slope = n.reshaped(slope, dims);
  }
  return {where(less(x, zero_of(n, x)), mul(x, slope), x)};
}

values selu(node& n) {
  n.ignore({"consumed_inputs"});
  const auto x = n.in(0);
  // The constants of Klambauer et al.: Self-Normalizing Neural Networks, 2017, as f32.
  const auto alpha = n.real("alpha", static_cast<double>(1.67326319217681884765625F)),
             gamma = n.real("gamma", static_cast<double>(1.05070102214813232421875F));
  return {mul(elu(x, alpha), n.number_like(x, gamma))};
}

values celu(node& n) {
  const auto x = n.in(0);
  const auto alpha = n.real("alpha", 1);
  const auto below =
      mul(expm1(div(minimum(x, zero_of(n, x)), n.number_like(x, alpha))), n.number_like(x, alpha));
  return {where(greater(x, zero_of(n, x)), x, below)};
}

value ramp(node& n, value x, double slope, double shift) {
  const auto line = add(mul(x, n.number_like(x, slope)), n.number_like(x, shift));
  return clip(line, 0, 1);
}

values softsign(node& n) {
  const auto x = n.in(0);
  return {div(x, add(abs(x), n.number_like(x, 1)))};
}

values thresholded(node& n) {
  const auto x = n.in(0);
  return {where(greater(x, n.number_like(x, n.real("alpha", 1))), x, zero_of(n, x))};
}

values shrink(node& n) {
  const auto x = n.in(0);
  const auto bias = n.number_like(x, n.real("bias", 0));
  const auto limit = n.real("lambd", 0.5);
  return {where(less(x, n.number_like(x, -limit)), add(x, bias),
                where(greater(x, n.number_like(x, limit)), sub(x, bias), zero_of(n, x)))};
}

values gelu_rule(node& n) {
  const auto form = n.text("approximate", "none");
  if (form != "none" && form != "tanh")
    n.refuse(fmt::format("attribute 'approximate' is '{}', expected none or tanh", form));
  return {form == "tanh" ? gelu_tanh(n.in(0)) : gelu(n.in(0))};
}

// x sigmoid(alpha x); with a second operand (SwiGLU) times that.
values swish(node& n) {
  const auto x = n.in(0);
  const auto alpha = n.real("alpha", 1);
  const auto y = alpha == 1 ? silu(x) : mul(x, sigmoid(mul(x, n.number_like(x, alpha))));
  return {n.has(1) ? mul(y, n.in(1)) : y};
}

}  // namespace

void add_activations(rules& r) {
  r["Relu"] = widening(relu_rule);
  r["LeakyRelu"] = widening(leaky);
  r["PRelu"] = widening(learned_leaky);
  r["Elu"] = widening([](node& n) -> values {
    return n.ignore({"consumed_inputs"}), values{elu(n.in(0), n.real("alpha", 1))};
  });
  r["Selu"] = widening(selu);
  r["Celu"] = widening(celu);
  r["Sigmoid"] = widening(
      [](node& n) -> values { return n.ignore({"consumed_inputs"}), values{sigmoid(n.in(0))}; });
  r["Tanh"] = widening(
      [](node& n) -> values { return n.ignore({"consumed_inputs"}), values{tanh(n.in(0))}; });
  r["HardSigmoid"] = widening([](node& n) -> values {
    return {ramp(n, n.in(0), n.real("alpha", static_cast<double>(0.2F)), n.real("beta", 0.5))};
  });
  r["HardSwish"] =
      widening([](node& n) -> values { return {mul(n.in(0), ramp(n, n.in(0), 1.0 / 6, 0.5))}; });
  r["Softplus"] = widening([](node& n) -> values { return {softplus(n.in(0))}; });
  r["Gelu"] = widening(gelu_rule);
  r["Swish"] = widening(swish);
  r["SwiGLU"] = widening(swish);
  r["Mish"] = widening([](node& n) -> values { return {mul(n.in(0), tanh(softplus(n.in(0))))}; });
  r["Softsign"] = widening(softsign);
  r["ThresholdedRelu"] = widening(thresholded);
  r["Shrink"] = widening(shrink);
}

}  // namespace troupe::onnx
