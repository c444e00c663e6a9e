// What each op of a graph is in the ONNX format.

#include "troupe/devices/half.hpp"
#include "troupe/runtime/onnx/model_writer.hpp"
#include "troupe/schema/dtype_set.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

namespace troupe::onnx {
namespace {

using list_of_integers = std::vector<std::int64_t>;
using rule_table = std::map<std::string, export_rule, std::less<>>;

export_rule as_it_is(std::string op) {
  return [op = std::move(op)](const written_op& o) -> names { return {o.w.add(op, o.in)}; };
}
export_rule forwarded() {
  return [](const written_op& o) -> names { return {o.in[0]}; };
}

std::string number_like_operand(const written_op& o, std::size_t operand, double x) {
  return o.w.number(x, o.operand(operand).type);
}

// --- element by element ---

// Whole numbers by 0 are 0, and the least one by -1 is itself, where other readers end.
names write_div(const written_op& o) {
  if (!whole.has(o.operand(0).type)) return {o.w.add("Div", o.in)};
  const auto zero = o.w.number(0, o.operand(1).type), one = o.w.number(1, o.operand(1).type);
  const auto is_0 = o.w.add("Equal", {o.in[1], zero});
  const auto type = o.operand(0).type;
  if (type != dtype::i32 && type != dtype::i64) {
    const auto quotient = o.w.add("Div", {o.in[0], o.w.add("Where", {is_0, one, o.in[1]})});
    return {o.w.add("Where", {is_0, zero, quotient})};
  }
  const auto is_minus_1 = o.w.add("Equal", {o.in[1], o.w.number(-1, type)});
  const auto is_odd = o.w.add("Or", {is_0, is_minus_1});
  const auto quotient = o.w.add("Div", {o.in[0], o.w.add("Where", {is_odd, one, o.in[1]})});
  const auto of_minus_1 = o.w.add("Where", {is_minus_1, o.w.add("Neg", {o.in[0]}), quotient});
  return {o.w.add("Where", {is_0, zero, of_minus_1})};
}

// e^x - 1 of small x by (e^x - 1) = 2 t / (1 - t) with t = tanh(x / 2), which keeps its digits.
names write_expm1(const written_op& o) {
  auto& w = o.w;
  const auto one = number_like_operand(o, 0, 1), two = number_like_operand(o, 0, 2),
             half = number_like_operand(o, 0, 0.5);
  const auto t = w.add("Tanh", {w.add("Mul", {o.in[0], half})});
  const auto small = w.add("Div", {w.add("Mul", {t, two}), w.add("Sub", {one, t})});
  const auto large = w.add("Sub", {w.add("Exp", {o.in[0]}), one});
  const auto is_small = w.add("Less", {w.add("Abs", {o.in[0]}), one});
  return {w.add("Where", {is_small, small, large})};
}

// ln(1 + x) = x ln(u) / (u - 1) with u = 1 + x, as rounded (Kahan); x where u is 1.
names write_log1p(const written_op& o) {
  auto& w = o.w;
  const auto one = number_like_operand(o, 0, 1), limit = number_like_operand(o, 0, 0x1p60);
  const auto u = w.add("Add", {o.in[0], one});
  const auto logarithm = w.add("Log", {u}), less = w.add("Sub", {u, one});
  const auto is_1 = w.add("Equal", {u, one}), is_large = w.add("Greater", {o.in[0], limit});
  // A divisor that is not 0 where the quotient is not taken.
  const auto quotient =
      w.add("Div", {w.add("Mul", {o.in[0], logarithm}), w.add("Where", {is_1, one, less})});
  // -1 gives -infinity times -1 over -1, and infinity a quotient that is none.
  return {w.add("Where", {is_large, logarithm, w.add("Where", {is_1, o.in[0], quotient})})};
}

names write_leaky_relu(const written_op& o) {
  const auto is_low = o.w.add("Less", {o.in[0], number_like_operand(o, 0, 0)});
  return {o.w.add("Where", {is_low, o.w.add("Mul", {o.in[0], o.in[1]}), o.in[0]})};
}

names write_cast(const written_op& o) { return {o.w.cast(o.in[0], o.n.outputs[0].type)}; }

void add_element_rules(rule_table& r) {
  for (const auto& [ours, theirs] : std::initializer_list<std::pair<const char*, const char*>>{
           {"abs", "Abs"},
           {"acos", "Acos"},
           {"acosh", "Acosh"},
           {"add", "Add"},
           {"asin", "Asin"},
           {"asinh", "Asinh"},
           {"atan", "Atan"},
           {"atanh", "Atanh"},
           {"ceil", "Ceil"},
           {"cos", "Cos"},
           {"cosh", "Cosh"},
           {"equal", "Equal"},
           {"erf", "Erf"},
           {"exp", "Exp"},
           {"floor", "Floor"},
           {"greater", "Greater"},
           {"is_nan", "IsNaN"},
           {"less", "Less"},
           {"log", "Log"},
           {"logical_and", "And"},
           {"logical_not", "Not"},
           {"logical_or", "Or"},
           {"logical_xor", "Xor"},
           {"maximum", "Max"},
           {"minimum", "Min"},
           {"mul", "Mul"},
           {"neg", "Neg"},
           {"pow", "Pow"},
           {"relu", "Relu"},
           {"reciprocal", "Reciprocal"},
           {"round", "Round"},
           {"sigmoid", "Sigmoid"},
           {"sign", "Sign"},
           {"sin", "Sin"},
           {"sinh", "Sinh"},
           {"softplus", "Softplus"},
           {"sqrt", "Sqrt"},
           {"sub", "Sub"},
           {"tan", "Tan"},
           {"tanh", "Tanh"},
           {"where", "Where"},
           {"greater_equal", "GreaterOrEqual"},
           {"less_equal", "LessOrEqual"}})
    r[ours] = as_it_is(theirs);
  r["after"] = r["stop_gradient"] = forwarded();
  r["cast"] = write_cast;
  r["div"] = write_div;
  r["expm1"] = write_expm1;
  r["log1p"] = write_log1p;
  r["leaky_relu"] = write_leaky_relu;
  r["not_equal"] = [](const written_op& o) -> names {
    return {o.w.add("Not", {o.w.add("Equal", o.in)})};
  };
  r["square"] = [](const written_op& o) -> names { return {o.w.add("Mul", {o.in[0], o.in[0]})}; };
  r["rsqrt"] = [](const written_op& o) -> names {
    return {o.w.add("Reciprocal", {o.w.add("Sqrt", o.in)})};
  };
  r["fmod"] = [](const written_op& o) -> names {
    return {o.w.add("Mod", o.in, {{"fmod", std::int64_t{1}}})};
  };
  r["fused_multiply_add"] = [](const written_op& o) -> names {
    return {o.w.add("Add", {o.w.add("Mul", {o.in[0], o.in[1]}), o.in[2]})};
  };
  r["gelu"] = as_it_is("Gelu");
  r["gelu_tanh"] = [](const written_op& o) -> names {
    return {o.w.add("Gelu", o.in, {{"approximate", std::string("tanh")}})};
  };
  r["clip"] = [](const written_op& o) -> names {
    return {o.w.add("Max", {o.in[1], o.w.add("Min", {o.in[0], o.in[2]})})};
  };
}

// --- products, windows, normalisation ---

// The last two dimensions change places.
std::string turned_matrix(const written_op& o, std::size_t i) {
  list_of_integers order(o.rank(i));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  std::swap(order[order.size() - 1], order[order.size() - 2]);
  return o.w.add("Transpose", {o.in[i]}, {{"perm", order}});
}

names write_matmul(const written_op& o) {
  const auto& a = o.n.attrs;
  if (a.integer("sum_batches") != 0)
    throw unwritable{"it adds up batches, which belongs to gradients"};
  return {o.w.add("MatMul", {a.integer("transpose_a") != 0 ? turned_matrix(o, 0) : o.in[0],
                             a.integer("transpose_b") != 0 ? turned_matrix(o, 1) : o.in[1]})};
}

written_attributes window_attributes(const attributes& a, const list_of_integers& window) {
  auto pads = a.integers("before", {0, 0});
  const auto after = a.integers("after", {0, 0});
  pads.insert(pads.end(), after.begin(), after.end());
  return {{"kernel_shape", window},
          {"strides", a.integers("strides", a.has("window") ? window : list_of_integers{1, 1})},
          {"pads", pads},
          {"dilations", a.integers("dilations", {1, 1})}};
}

list_of_integers kernel_of(const written_op& o) {
  return {o.operand(1).shape.size(2), o.operand(1).shape.size(3)};
}

// ONNX has no convolution of bf16; the sums of ours are f32.
std::string convolution_of(const written_op& o, std::string_view op,
                           const written_attributes& attrs) {
  if (o.operand(0).type != dtype::bf16) return o.w.add(op, o.in, attrs);
  const auto x = o.w.cast(o.in[0], dtype::f32), w = o.w.cast(o.in[1], dtype::f32);
  return o.w.cast(o.w.add(op, {x, w}, attrs), dtype::bf16);
}

names write_conv2d(const written_op& o) {
  auto attrs = window_attributes(o.n.attrs, kernel_of(o));
  attrs.emplace_back("group", o.n.attrs.integer("groups", 1));
  return {convolution_of(o, "Conv", attrs)};
}

// The transposed convolution: rows behind the last window are `output_padding`.
names write_conv2d_transposed(const written_op& o) {
  const auto& a = o.n.attrs;
  auto attrs = window_attributes(a, kernel_of(o));
  attrs.emplace_back("group", a.integer("groups", 1));
  const auto strides = a.integers("strides", {1, 1}), before = a.integers("before", {0, 0}),
             after = a.integers("after", {0, 0}), dilations = a.integers("dilations", {1, 1});
  list_of_integers more(2);
  for (std::size_t i = 0; i < 2; ++i) {
    const auto reach = (kernel_of(o)[i] - 1) * dilations[i] + 1;
    more[i] = o.n.outputs[0].shape.size(2 + i) -
              ((o.operand(0).shape.size(2 + i) - 1) * strides[i] + reach - before[i] - after[i]);
  }
  attrs.emplace_back("output_padding", more);
  return {convolution_of(o, "ConvTranspose", attrs)};
}

// Whether a last window that reaches beyond the padding is ONNX's, too. Where it would begin behind
// the image, readers of the format differ, and we have none: then (`pads` is changed) windows end
// with the padding along that axis, and padding is added along the other one.
bool rounds_up_alike(const written_op& o, std::vector<std::int64_t>& pads) {
  const auto& a = o.n.attrs;
  if (a.integer("round_up") == 0) return false;
  const auto window = a.integers("window"), strides = a.integers("strides", window),
             dilations = a.integers("dilations", {1, 1});
  std::array<std::int64_t, 2> more{};
  std::array<bool, 2> is_up{}, is_cut{};
  for (std::size_t i = 0; i < 2; ++i) {
    const auto reach = (window[i] - 1) * dilations[i] + 1;
    const auto room = o.operand(0).shape.size(2 + i) + pads[i] + pads[2 + i] - reach;
    const auto count = o.n.outputs[0].shape.size(2 + i);
    is_up[i] = count > room / strides[i] + 1;
    is_cut[i] = !is_up[i] && room % strides[i] != 0;
    more[i] = is_up[i] ? (count - 1) * strides[i] - room : 0;
  }
  if (!is_cut[0] && !is_cut[1]) return true;
  if (!is_up[0] && !is_up[1]) return false;
  if (a.integer("count_padding") != 0)
    throw unwritable{
        "it rounds up along one dimension and not along the other one, and counts its padding"};
  for (std::size_t i = 0; i < 2; ++i) pads[2 + i] += more[i];
  return false;
}

names write_pool(const written_op& o, std::string_view op) {
  const auto& a = o.n.attrs;
  auto attrs = window_attributes(a, a.integers("window"));
  auto& pads = std::get<list_of_integers>(
      std::ranges::find(attrs, "pads", &written_attributes::value_type::first)->second);
  const bool rounds_up = rounds_up_alike(o, pads);
  attrs.emplace_back("ceil_mode", std::int64_t{rounds_up});
  if (op == "AveragePool") {
    attrs.emplace_back("count_include_pad", std::int64_t{a.integer("count_padding") != 0});
    return {o.w.add(op, o.in, attrs)};
  }
  if (!o.is_used[1]) return {o.w.add(op, o.in, attrs), ""};
  // Theirs count over the whole tensor, ours in each image.
  const auto both = o.w.add_several(2, op, o.in, attrs);
  const auto& s = o.operand(0).shape;
  const auto image = o.w.number(static_cast<double>(s.size(2) * s.size(3)), dtype::i64);
  return {both[0], o.w.cast(o.w.add("Mod", {both[1], image}), o.n.outputs[1].type)};
}

names write_softmax(const written_op& o, std::string_view op) {
  return {o.w.add(op, o.in, {{"axis", o.n.attrs.integer("axis", -1)}})};
}

names with_axes(const written_op& o, const list_of_integers& axes) {
  return axes.empty() ? names{o.in[0]} : names{o.in[0], o.w.integers(axes)};
}

names write_standardize(const written_op& o) {
  auto& w = o.w;
  const auto axes = o.n.attrs.integers("axes");
  if (!o.operand(0).shape.is_symbolic() && o.operand(0).shape.elements() == 0) {
    // Mean and variance of nothing are 0 here, and no number there.
    const auto filled = [&](std::size_t i, double x) {
      const auto s = o.n.outputs[i].shape.sizes();
      return w.add("Expand", {number_like_operand(o, 0, x), w.integers({s.begin(), s.end()})});
    };
    return {o.in[0], filled(1, 0), filled(2, 1 / std::sqrt(o.n.attrs.real("epsilon", 1e-5)))};
  }
  const auto mean_of = [&](const std::string& x) {
    return w.add("ReduceMean", axes.empty() ? names{x} : names{x, w.integers(axes)},
                 {{"keepdims", std::int64_t{1}}});
  };
  const auto mean = mean_of(o.in[0]), apart = w.add("Sub", {o.in[0], mean});
  const auto variance = mean_of(w.add("Mul", {apart, apart}));
  const auto epsilon = number_like_operand(o, 0, o.n.attrs.real("epsilon", 1e-5));
  const auto scale = w.add("Reciprocal", {w.add("Sqrt", {w.add("Add", {variance, epsilon})})});
  return {w.add("Mul", {apart, scale}), mean, scale};
}

// [n, t, heads * e] -> [n, heads, t, e], or with the last two in the other order.
std::string heads_apart(const written_op& o, const std::string& x, std::int64_t heads,
                        std::int64_t each, bool is_turned) {
  const auto split = o.w.add("Reshape", {x, o.w.integers({0, 0, heads, each})});
  return o.w.add(
      "Transpose", {split},
      {{"perm", is_turned ? list_of_integers{0, 2, 3, 1} : list_of_integers{0, 2, 1, 3}}});
}

names write_attention(const written_op& o) {
  auto& w = o.w;
  const auto heads = o.n.attrs.integer("heads", 1);
  auto in = o.in;
  const auto features = o.operand(0).shape.size(2) / (in.size() == 1 ? 3 : 1);
  const auto features_of_v = in.size() == 1 ? features : o.operand(2).shape.size(2);
  if (in.size() == 1) {
    const auto part = [&](std::int64_t i) {
      return w.add("Slice", {o.in[0], w.integers({i * features}), w.integers({(i + 1) * features}),
                             w.integers({2})});
    };
    in = {part(0), part(1), part(2)};
  }
  const auto type = o.operand(0).type;
  const auto each = features / heads;
  const auto given = o.n.attrs.real("scale", 0);
  const auto scale = given != 0 ? given : 1 / std::sqrt(static_cast<double>(each));
  const auto q = w.add("Mul", {heads_apart(o, in[0], heads, each, false), w.number(scale, type)});
  auto scores = w.add("MatMul", {q, heads_apart(o, in[1], heads, each, true)});
  if (o.n.attrs.integer("causal") != 0) {
    const auto& s = o.operand(0).shape;
    if (s[1].symbol != 0) throw unwritable{"it is causal, and the number of positions is open"};
    const auto t = s.size(1);
    auto later = tensor::make({dtype::boolean, {t, t}});
    for (std::int64_t i = 0; i < t * t; ++i) later.data<boolean>()[i] = boolean(i % t > i / t);
    scores = w.add("Where", {w.constant(later),
                             w.number(-std::numeric_limits<double>::infinity(), type), scores});
  }
  const auto y = w.add("MatMul", {w.add("Softmax", {scores}, {{"axis", std::int64_t{-1}}}),
                                  heads_apart(o, in[2], heads, features_of_v / heads, false)});
  const auto back = w.add("Transpose", {y}, {{"perm", list_of_integers{0, 2, 1, 3}}});
  return {w.add("Reshape", {back, w.integers({0, 0, features_of_v})})};
}

void add_dense_rules(rule_table& r) {
  r["matmul"] = write_matmul;
  r["conv2d"] = write_conv2d;
  r["conv2d_input_grad"] = write_conv2d_transposed;
  r["max_pool2d"] = [](const written_op& o) { return write_pool(o, "MaxPool"); };
  r["avg_pool2d"] = [](const written_op& o) { return write_pool(o, "AveragePool"); };
  r["softmax"] = [](const written_op& o) { return write_softmax(o, "Softmax"); };
  r["log_softmax"] = [](const written_op& o) { return write_softmax(o, "LogSoftmax"); };
  r["standardize"] = write_standardize;
  r["attention"] = write_attention;
}

// --- reductions ---

export_rule reduced_by(std::string op) {
  return [op = std::move(op)](const written_op& o) -> names {
    return {o.w.add(op, with_axes(o, o.n.attrs.integers("axes")),
                    {{"keepdims", std::int64_t{o.n.attrs.integer("keep") != 0}}})};
  };
}

export_rule reduced_truth(std::string op) {
  return [op = std::move(op)](const written_op& o) -> names {
    auto in = with_axes(o, o.n.attrs.integers("axes"));
    in[0] = o.w.cast(in[0], dtype::i32);
    const auto y = o.w.add(op, in, {{"keepdims", std::int64_t{o.n.attrs.integer("keep") != 0}}});
    return {o.w.cast(y, dtype::boolean)};
  };
}

names write_arg(const written_op& o, std::string_view op) {
  return {o.w.cast(
      o.w.add(op, o.in, {{"axis", o.n.attrs.integer("axis", -1)}, {"keepdims", std::int64_t{0}}}),
      o.n.outputs[0].type)};
}

names write_count(const written_op& o) {
  auto sizes = o.w.add("Shape", o.in);
  if (const auto axes = o.n.attrs.integers("axes"); !axes.empty())
    sizes = o.w.add("Gather", {sizes, o.w.integers(axes)});
  return {o.w.cast(o.w.add("ReduceProd", {sizes}, {{"keepdims", std::int64_t{0}}}),
                   o.n.outputs[0].type)};
}

void add_reduction_rules(rule_table& r) {
  r["reduce_sum"] = reduced_by("ReduceSum");
  r["reduce_prod"] = reduced_by("ReduceProd");
  r["reduce_max"] = reduced_by("ReduceMax");
  r["reduce_min"] = reduced_by("ReduceMin");
  r["reduce_any"] = reduced_truth("ReduceMax");
  r["reduce_all"] = reduced_truth("ReduceMin");
  r["argmax"] = [](const written_op& o) { return write_arg(o, "ArgMax"); };
  r["argmin"] = [](const written_op& o) { return write_arg(o, "ArgMin"); };
  r["element_count"] = write_count;
  r["cumulative_sum"] = [](const written_op& o) -> names {
    const auto& a = o.n.attrs;
    return {o.w.add("CumSum",
                    {o.in[0], o.w.number(static_cast<double>(a.integer("axis")), dtype::i64)},
                    {{"exclusive", std::int64_t{a.integer("exclusive") != 0}},
                     {"reverse", std::int64_t{a.integer("reverse") != 0}}})};
  };
}

// --- layout ---

names write_slice(const written_op& o) {
  const auto begin = o.n.attrs.integers("begin"), size = o.n.attrs.integers("size");
  const auto step = o.n.attrs.integers("step", list_of_integers(begin.size(), 1));
  list_of_integers starts, ends, axes, steps;
  for (std::size_t i = 0; i < begin.size(); ++i) {
    if (begin[i] == 0 && size[i] == -1 && step[i] == 1) continue;
    auto end = size[i] == 0 ? begin[i] : begin[i] + size[i] * step[i];
    // Backwards, behind the first element is no place but this one.
    if (size[i] > 0 && end < 0) end = std::numeric_limits<std::int64_t>::min();
    starts.push_back(begin[i]), ends.push_back(end), steps.push_back(step[i]);
    axes.push_back(static_cast<std::int64_t>(i));
  }
  if (axes.empty()) return {o.in[0]};
  return {o.w.add("Slice", {o.in[0], o.w.integers(starts), o.w.integers(ends), o.w.integers(axes),
                            o.w.integers(steps)})};
}

names write_pad(const written_op& o) {
  auto pads = o.n.attrs.integers("before");
  const auto after = o.n.attrs.integers("after");
  if (o.rank(0) == 0) return {o.in[0]};  // other runtimes refuse a scalar
  pads.insert(pads.end(), after.begin(), after.end());
  return {o.w.add("Pad", {o.in[0], o.w.integers(pads),
                          o.w.number(o.n.attrs.real("value"), o.operand(0).type)})};
}

names write_transpose(const written_op& o) {
  auto order = o.n.attrs.integers("order");
  if (order.empty())
    for (auto i = static_cast<std::int64_t>(o.rank(0)); i-- > 0;) order.push_back(i);
  if (order.empty()) return {o.in[0]};
  for (auto& axis : order)
    if (axis < 0) axis += static_cast<std::int64_t>(o.rank(0));
  return {o.w.add("Transpose", o.in, {{"perm", order}})};
}

// Of no elements, 0 is a size and no reference to x.
names write_reshape(const written_op& o) {
  const auto& y = o.n.outputs[0].shape;
  if (y.is_symbolic() || y.elements() != 0)
    return {o.w.add("Reshape", {o.in[0], o.w.integers(o.n.attrs.integers("dims"))})};
  return {o.w.add("Reshape", {o.in[0], o.w.integers({y.sizes().begin(), y.sizes().end()})},
                  {{"allowzero", std::int64_t{1}}})};
}

void add_layout_rules(rule_table& r) {
  r["reshape"] = write_reshape;
  r["transpose"] = write_transpose;
  r["slice"] = write_slice;
  r["pad"] = write_pad;
  r["tile"] = [](const written_op& o) -> names {
    return {o.w.add("Tile", {o.in[0], o.w.integers(o.n.attrs.integers("times"))})};
  };
  r["concat"] = [](const written_op& o) -> names {
    return {o.w.add("Concat", o.in, {{"axis", o.n.attrs.integer("axis")}})};
  };
  r["expand_dims"] = [](const written_op& o) -> names {
    const auto axes = o.n.attrs.integers("axes");
    if (axes.empty()) return {o.in[0]};
    return {o.w.add("Unsqueeze", {o.in[0], o.w.integers(axes)})};
  };
  r["broadcast_like"] = [](const written_op& o) -> names {
    return {o.w.add("Expand", {o.in[0], o.w.add("Shape", {o.in[1]})})};
  };
}

// --- indices, losses ---

std::size_t axis_from_start(const written_op& o) {
  const auto axis = o.n.attrs.integer("axis");
  return static_cast<std::size_t>(axis < 0 ? axis + static_cast<std::int64_t>(o.rank(0)) : axis);
}

// Updates go to rows of the first axis; another one comes there and back.
names write_scatter_add(const written_op& o) {
  auto& w = o.w;
  const auto axis = axis_from_start(o), rank = o.rank(0), of_indices = o.rank(1);
  const auto first = [](std::size_t begin, std::size_t count, std::size_t all) {
    list_of_integers order;
    for (std::size_t i = 0; i < count; ++i) order.push_back(static_cast<std::int64_t>(begin + i));
    for (std::size_t i = 0; i < all; ++i)
      if (i < begin || i >= begin + count) order.push_back(static_cast<std::int64_t>(i));
    return order;
  };
  auto x = o.in[0], updates = o.in[2];
  const auto order = first(axis, 1, rank);
  if (axis != 0) {
    x = w.add("Transpose", {x}, {{"perm", order}});
    updates = w.add("Transpose", {updates}, {{"perm", first(axis, of_indices, o.rank(2))}});
  }
  const auto indices = w.add(
      "Unsqueeze",
      {o.operand(1).type == dtype::i64 ? o.in[1] : w.cast(o.in[1], dtype::i64), w.integers({-1})});
  auto y = w.add("ScatterND", {x, indices, updates}, {{"reduction", std::string("add")}});
  if (axis != 0) {
    list_of_integers back(rank);
    for (std::size_t i = 0; i < rank; ++i)
      back[static_cast<std::size_t>(order[i])] = static_cast<std::int64_t>(i);
    y = w.add("Transpose", {y}, {{"perm", back}});
  }
  return {y};
}

names write_put_last(const written_op& o) {
  const auto zeros = o.w.add("Expand", {number_like_operand(o, 2, 0), o.w.add("Shape", {o.in[2]})});
  return {o.w.add("ScatterElements", {zeros, o.in[1], o.in[0]},
                  {{"axis", std::int64_t{-1}}, {"reduction", std::string("add")}})};
}

// A row of zeros where the index is outside, which OneHot counts from the end.
names write_one_hot(const written_op& o) {
  const auto depth = o.n.attrs.integer("depth");
  const auto type = o.operand(0).type;
  auto all = tensor::make({type, {depth}});
  for (std::int64_t i = 0; i < depth; ++i) {
    if (type == dtype::i64)
      all.data<std::int64_t>()[i] = i;
    else
      all.data<std::int32_t>()[i] = static_cast<std::int32_t>(i);
  }
  const auto apart = o.w.add("Unsqueeze", {o.in[0], o.w.integers({-1})});
  return {o.w.cast(o.w.add("Equal", {apart, o.w.constant(all)}), o.n.outputs[0].type)};
}

names write_top_k(const written_op& o) {
  const auto both = o.w.add_several(2, "TopK", {o.in[0], o.w.integers({o.n.attrs.integer("k")})},
                                    {{"axis", std::int64_t{-1}}});
  return {both[0], o.is_used[1] ? o.w.cast(both[1], o.n.outputs[1].type) : ""};
}

names write_count_correct(const written_op& o) {
  const auto found =
      o.w.add("ArgMax", {o.in[0]}, {{"axis", std::int64_t{1}}, {"keepdims", std::int64_t{0}}});
  const auto is_right = o.w.add("Equal", {found, o.w.cast(o.in[1], dtype::i64)});
  return {o.w.add("ReduceSum", {o.w.cast(is_right, dtype::i64)}, {{"keepdims", std::int64_t{0}}})};
}

names write_cross_entropy(const written_op& o) {
  if (o.is_used[1]) throw unwritable{"its gradient is asked for"};
  auto& w = o.w;
  const auto logs = w.add("LogSoftmax", {o.in[0]}, {{"axis", std::int64_t{-1}}});
  const auto labels = w.add("Unsqueeze", {o.in[1], w.integers({1})});
  const auto taken = w.add("GatherElements", {logs, labels}, {{"axis", std::int64_t{1}}});
  const auto sum = w.add("ReduceSum", {taken}, {{"keepdims", std::int64_t{0}}});
  return {w.add("Neg", {w.add("Mul", {sum, o.in[2]})}), ""};
}

void add_index_rules(rule_table& r) {
  r["gather"] = [](const written_op& o) -> names {
    return {o.w.add("Gather", o.in, {{"axis", o.n.attrs.integer("axis")}})};
  };
  r["take_last"] = [](const written_op& o) -> names {
    return {o.w.add("GatherElements", o.in, {{"axis", std::int64_t{-1}}})};
  };
  r["scatter_add"] = write_scatter_add;
  r["put_last"] = write_put_last;
  r["one_hot"] = write_one_hot;
  r["top_k"] = write_top_k;
  r["count_correct"] = write_count_correct;
  r["softmax_cross_entropy"] = write_cross_entropy;
}

}  // namespace

rule_table export_rules() {
  rule_table r;
  add_element_rules(r);
  add_dense_rules(r);
  add_reduction_rules(r);
  add_layout_rules(r);
  add_index_rules(r);
  return r;
}

}  // namespace troupe::onnx
