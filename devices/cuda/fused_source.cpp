#include "troupe/devices/cuda/fused_source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace troupe::cuda {
namespace {

constexpr std::array every_type{dtype::f32, dtype::f64, dtype::i32,  dtype::i64,
                                dtype::u8,  dtype::f16, dtype::bf16, dtype::boolean};
constexpr std::array floats{dtype::f32, dtype::f64};
constexpr std::array numbers{dtype::f32, dtype::f64, dtype::i32, dtype::i64};
constexpr std::array ordered{dtype::f32, dtype::f64, dtype::i32, dtype::i64, dtype::u8};
constexpr std::array comparable{dtype::f32, dtype::f64, dtype::i32,
                                dtype::i64, dtype::u8,  dtype::boolean};
constexpr std::array logic{dtype::boolean};

enum class form : std::uint8_t {
  same,       // T, T, ... -> T
  predicate,  // T, T, ... -> bool
  choice,     // bool, T, T -> T
  cast,       // any -> any
};

struct element_row {
  std::string_view op, function;
  std::size_t operands;
  std::span<const dtype> types;
  form f = form::same;
};

constexpr element_row rows[] = {
    {"add", "add_op", 2, numbers},
    {"sub", "sub_op", 2, numbers},
    {"mul", "mul_op", 2, numbers},
    {"div", "div_op", 2, numbers},
    {"maximum", "maximum_op", 2, numbers},
    {"minimum", "minimum_op", 2, numbers},
    {"pow", "pow_op", 2, floats},
    {"fmod", "fmod_op", 2, floats},
    {"neg", "neg_op", 1, numbers},
    {"abs", "abs_op", 1, numbers},
    {"sign", "sign_op", 1, numbers},
    {"square", "square_op", 1, numbers},
    {"reciprocal", "reciprocal_op", 1, floats},
    {"fused_multiply_add", "fused_multiply_add_op", 3, floats},
    {"exp", "exp_op", 1, floats},
    {"log", "log_op", 1, floats},
    {"sqrt", "sqrt_op", 1, floats},
    {"rsqrt", "rsqrt_op", 1, floats},
    {"erf", "erf_op", 1, floats},
    {"sin", "sin_op", 1, floats},
    {"cos", "cos_op", 1, floats},
    {"tan", "tan_op", 1, floats},
    {"expm1", "expm1_op", 1, floats},
    {"log1p", "log1p_op", 1, floats},
    {"asin", "asin_op", 1, floats},
    {"acos", "acos_op", 1, floats},
    {"atan", "atan_op", 1, floats},
    {"sinh", "sinh_op", 1, floats},
    {"cosh", "cosh_op", 1, floats},
    {"asinh", "asinh_op", 1, floats},
    {"acosh", "acosh_op", 1, floats},
    {"atanh", "atanh_op", 1, floats},
    {"floor", "floor_op", 1, floats},
    {"ceil", "ceil_op", 1, floats},
    {"round", "round_op", 1, floats},
    {"relu", "relu_op", 1, floats},
    {"leaky_relu", "leaky_relu_op", 2, floats},
    {"sigmoid", "sigmoid_op", 1, floats},
    {"tanh", "tanh_op", 1, floats},
    {"softplus", "softplus_op", 1, floats},
    {"gelu", "gelu_op", 1, floats},
    {"gelu_grad", "gelu_grad_op", 2, floats},
    {"gelu_tanh", "gelu_tanh_op", 1, floats},
    {"clip", "clip_op", 3, numbers},
    {"relu_grad", "relu_grad_op", 2, floats},
    {"sigmoid_grad", "sigmoid_grad_op", 2, floats},
    {"tanh_grad", "tanh_grad_op", 2, floats},
    {"equal", "equal_op", 2, comparable, form::predicate},
    {"not_equal", "not_equal_op", 2, comparable, form::predicate},
    {"less", "less_op", 2, ordered, form::predicate},
    {"less_equal", "less_equal_op", 2, ordered, form::predicate},
    {"greater", "greater_op", 2, ordered, form::predicate},
    {"greater_equal", "greater_equal_op", 2, ordered, form::predicate},
    {"logical_and", "and_op", 2, logic},
    {"logical_or", "or_op", 2, logic},
    {"logical_xor", "xor_op", 2, logic},
    {"logical_not", "not_op", 1, logic},
    {"is_nan", "is_nan_op", 1, floats, form::predicate},
    {"where", "where_op", 3, every_type, form::choice},
    {"cast", "cast_op", 1, every_type, form::cast},
    {"broadcast_like", "first_op", 2, every_type},
};

const element_row* find(std::string_view op) noexcept {
  const auto at = std::ranges::find(rows, op, &element_row::op);
  return at != std::end(rows) ? &*at : nullptr;
}

std::string_view name_of(dtype t) noexcept {
  constexpr std::array<std::string_view, dtype_count> names{
      "float", "double", "std::int32_t", "std::int64_t", "std::uint8_t", "f16", "bf16", "boolean"};
  return names[static_cast<std::size_t>(t)];
}

// A dimension of the result, or several that all operands walk alike: its size, and steps of every
// port.
struct loop {
  std::int64_t size;
  std::vector<std::int64_t> steps;
};

// Innermost first, as few as possible; nullopt: an operand cannot be broadcast.
std::optional<std::vector<loop>> loops_over(const shape& out, std::span<const shape> operands) {
  std::vector<loop> loops;
  std::vector<std::int64_t> dense(operands.size(), 1);
  for (const auto& o : operands)
    if (o.rank() > out.rank()) return std::nullopt;
  for (std::size_t from_end = 1; from_end <= out.rank(); ++from_end) {
    loop l{out.size(out.rank() - from_end), std::vector<std::int64_t>(operands.size())};
    for (std::size_t k = 0; k < operands.size(); ++k) {
      if (operands[k].rank() < from_end) continue;
      const auto size = operands[k].size(operands[k].rank() - from_end);
      if (size != l.size && size != 1) return std::nullopt;
      l.steps[k] = size == 1 ? 0 : dense[k];
      dense[k] *= size;
    }
    if (l.size == 1) continue;
    const auto continues = [&](const loop& inner) {
      for (std::size_t k = 0; k < operands.size(); ++k)
        if (l.steps[k] != inner.steps[k] * inner.size) return false;
      return true;
    };
    if (!loops.empty() && continues(loops.back()))
      loops.back().size *= l.size;
    else
      loops.push_back(std::move(l));
  }
  return loops;
}

bool fits(const element_row& row, std::span<const dtype> in, dtype out) {
  const auto has = [&](dtype t) { return std::ranges::find(row.types, t) != row.types.end(); };
  if (in.size() != row.operands) return false;
  switch (row.f) {
    case form::same:
      return has(in[0]) && out == in[0] &&
             std::ranges::all_of(in, [&](dtype t) { return t == in[0]; });
    case form::predicate:
      return has(in[0]) && out == dtype::boolean &&
             std::ranges::all_of(in, [&](dtype t) { return t == in[0]; });
    case form::choice:
      return in[0] == dtype::boolean && has(in[1]) && in[1] == in[2] && out == in[1];
    case form::cast: return has(in[0]) && has(out);
  }
  return false;
}

// "static_cast<float>(add_op::apply(v0, s1))"
std::string call_of(const element_row& row, dtype out, std::span<const std::string> operands) {
  auto function = std::string(row.function);
  if (row.f == form::cast) function += fmt::format("<{}>", name_of(out));
  return fmt::format("static_cast<{}>({}::apply({}))", name_of(out), function,
                     fmt::join(operands, ", "));
}

}  // namespace

std::optional<code::plain_walk> plain_walk_over(const shape& out, std::span<const shape> operands) {
  code::plain_walk w;
  const auto loops = loops_over(out, operands);
  if (!loops || operands.size() > static_cast<std::size_t>(code::plain_walk::operands_max))
    return std::nullopt;
  w.elements = out.elements();
  w.loops = static_cast<int>(loops->size());
  for (std::size_t k = 0; k < operands.size(); ++k) {
    std::int64_t step = 1;
    w.is_dense[k] = true;
    for (std::size_t l = 0; l < loops->size(); ++l) {
      w.size[l] = (*loops)[l].size;
      w.step[k][l] = (*loops)[l].steps[k];
      w.is_dense[k] = w.is_dense[k] && w.step[k][l] == step;
      step *= w.size[l];
    }
  }
  return w;
}

bool is_element_op(std::string_view op) noexcept { return find(op) != nullptr; }

std::vector<std::string_view> element_ops() {
  std::vector<std::string_view> all;
  for (const auto& r : rows) all.push_back(r.op);
  return all;
}

std::vector<std::vector<dtype>> element_overloads(std::string_view op) {
  std::vector<std::vector<dtype>> all;
  const auto* row = find(op);
  if (row == nullptr) return all;
  for (const auto t : row->types) {
    if (row->f == form::cast) {
      for (const auto to : row->types) all.push_back({t, to});
      continue;
    }
    std::vector<dtype> one(row->operands, t);
    if (row->f == form::choice) one[0] = dtype::boolean;
    one.push_back(row->f == form::predicate ? dtype::boolean : t);
    all.push_back(std::move(one));
  }
  return all;
}

result<fused_source> make_fused_source(std::span<const element_step> steps,
                                       std::span<const tensor_spec> inputs,
                                       const tensor_spec& output) {
  constexpr std::size_t ports_max = 128;  // 4 KiB of arguments hold them and what is broadcast
  if (steps.empty()) return error(error_code::usage, "a fused group has no ops");
  if (inputs.size() > ports_max)
    return error(error_code::usage, fmt::format("a fused group has {} operands, on CUDA at most {}",
                                                inputs.size(), ports_max));
  if (steps.back().type != output.type)
    return error(error_code::usage, fmt::format("a fused group gives {}, the plan has {}",
                                                to_string(steps.back().type), to_string(output)));

  std::vector<bool> is_used(inputs.size());
  std::string body;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const auto& s = steps[i];
    const auto* row = find(s.op);
    if (row == nullptr)
      return error(
          error_code::usage,
          fmt::format("no CUDA kernel for {} in a fused group: it is not element-wise", s.op));
    std::vector<dtype> types;
    std::vector<std::string> names;
    for (const auto o : s.operands) {
      const auto step = -1 - std::int64_t{o};
      if (o >= 0 ? static_cast<std::size_t>(o) >= inputs.size()
                 : step >= static_cast<std::int64_t>(i))
        return error(
            error_code::usage,
            fmt::format(
                "op {} of a fused group takes operand {}, which is neither a port nor an earlier op",
                i, o));
      if (o >= 0) is_used[static_cast<std::size_t>(o)] = true;
      types.push_back(o >= 0 ? inputs[static_cast<std::size_t>(o)].type
                             : steps[static_cast<std::size_t>(step)].type);
      names.push_back(o >= 0 ? fmt::format("v{}", o) : fmt::format("s{}", step));
    }
    if (!fits(*row, types, s.type)) {
      std::string text;
      for (const auto t : types)
        text += fmt::format("{}{}", text.empty() ? "" : ", ", to_string(t));
      return error(error_code::usage,
                   fmt::format("{}: there is no kernel for {} that gives {}", s.op,
                               text.empty() ? "nothing" : text, to_string(s.type)));
    }
    body += fmt::format("  const {} s{} = {};\n", name_of(s.type), i, call_of(*row, s.type, names));
  }

  fused_source out;
  std::vector<shape> walked;
  for (std::size_t p = 0; p < inputs.size(); ++p)
    if (is_used[p]) {
      out.ports.push_back(p);
      walked.push_back(inputs[p].shape);
    }
  const auto loops = loops_over(output.shape, walked);
  if (!loops)
    return error(
        error_code::usage,
        fmt::format("an operand of a fused group cannot be broadcast to {}", to_string(output)));
  out.elements = output.shape.elements();

  // Dense: as the result lies. One: the same element for all.
  enum class walk : std::uint8_t { dense, one, steps };
  std::vector<walk> how;
  for (std::size_t k = 0; k < walked.size(); ++k) {
    const bool is_one = std::ranges::all_of(*loops, [&](const loop& l) { return l.steps[k] == 0; });
    bool is_dense = true;
    std::int64_t step = 1;
    for (const auto& l : *loops) {
      is_dense = is_dense && l.steps[k] == step;
      step *= l.size;
    }
    how.push_back(loops->empty() || is_one ? walk::one : is_dense ? walk::dense : walk::steps);
  }
  const bool has_steps = std::ranges::find(how, walk::steps) != how.end();
  out.elements_per_thread = has_steps ? 1 : 4;
  // With a thread's stride it still fits 32 bits.
  const bool is_short = out.elements < (std::int64_t{1} << 30);

  std::string parameters, load_one, load_dense_packs, from_packs;
  for (std::size_t k = 0; k < out.ports.size(); ++k) {
    const auto p = out.ports[k];
    const auto type = name_of(inputs[p].type);
    parameters += fmt::format("const {}* p{}, ", type, p);
    if (how[k] == walk::one) load_one += fmt::format("  const {0} v{1} = *p{1};\n", type, p);
  }
  // Sizes of all loops but the outermost, then steps of each port that has some.
  std::string number_parameters, index_code;
  if (has_steps) {
    std::size_t n = 0;
    const auto add = [&](std::int64_t value) {
      out.numbers.push_back(value);
      number_parameters += fmt::format(", long long n{}", n);
      return fmt::format("index(n{})", n++);
    };
    std::vector<std::string> at(out.ports.size());
    for (std::size_t l = 0; l < loops->size(); ++l) {
      if (l + 1 < loops->size()) {
        const auto size = add((*loops)[l].size);
        index_code += fmt::format("    const index d{0} = rest % {1}; rest /= {1};\n", l, size);
      } else {
        index_code += fmt::format("    const index d{} = rest;\n", l);
      }
      for (std::size_t k = 0; k < out.ports.size(); ++k)
        if (how[k] == walk::steps && (*loops)[l].steps[k] != 0)
          at[k] +=
              fmt::format("{}d{} * {}", at[k].empty() ? "" : " + ", l, add((*loops)[l].steps[k]));
    }
    for (std::size_t k = 0; k < out.ports.size(); ++k)
      if (how[k] == walk::steps)
        index_code += fmt::format("    const {0} v{1} = p{1}[{2}];\n",
                                  name_of(inputs[out.ports[k]].type), out.ports[k], at[k]);
  }
  // Of 8 bytes, which a kernel takes on every chip: 4 KiB.
  constexpr std::size_t arguments_max = 500;
  if (out.ports.size() + out.numbers.size() + 2 > arguments_max)
    return error(
        error_code::usage,
        fmt::format(
            "a fused group of {} ops has {} operands with too many different ways to be broadcast for one CUDA kernel",
            steps.size(), out.ports.size()));
  const auto result_name = name_of(output.type);
  const auto last = fmt::format("s{}", steps.size() - 1);

  // The steps as a function of what comes from ports.
  std::string formal, actual, packed;
  for (std::size_t k = 0; k < out.ports.size(); ++k) {
    const auto p = out.ports[k];
    formal += fmt::format("{}const {} v{}", formal.empty() ? "" : ", ", name_of(inputs[p].type), p);
    actual += fmt::format("{}{}", actual.empty() ? "" : ", ",
                          how[k] == walk::dense ? fmt::format("p{}[i]", p) : fmt::format("v{}", p));
    packed +=
        fmt::format("{}{}", packed.empty() ? "" : ", ",
                    how[k] == walk::dense ? fmt::format("c{}.at[k]", p) : fmt::format("v{}", p));
    if (how[k] == walk::dense)
      load_dense_packs +=
          fmt::format("    const pack<{0}> c{1} = *reinterpret_cast<const pack<{0}>*>(p{1} + i);\n",
                      name_of(inputs[p].type), p);
  }

  out.text = fmt::format(
      "#include \"troupe/devices/element_ops.hpp\"\n"
      "using namespace troupe;\n"
      "using namespace troupe::host;\n"
      "using index = unsigned {};\n"
      "template <class T> struct alignas(sizeof(T) >= 4 ? 16 : 4 * sizeof(T)) pack {{ T at[4]; }};\n"
      "__device__ inline {} element({}) {{\n{}  return {};\n}}\n"
      "extern \"C\" __global__ void __launch_bounds__(256) fused({}{}* out, long long elements{}) {{\n"
      "  const index n = index(elements), threads = index(gridDim.x) * blockDim.x, first = index(blockIdx.x) * blockDim.x + threadIdx.x;\n{}",
      is_short ? "int" : "long long", result_name, formal, body, last, parameters, result_name,
      number_parameters, load_one);
  if (has_steps) {
    out.text += fmt::format(
        "  for (index i = first; i < n; i += threads) {{\n"
        "    index rest = i;\n{}"
        "    out[i] = element({});\n"
        "  }}\n}}\n",
        index_code, actual);
  } else {
    out.text += fmt::format(
        "  const index whole = n / 4 * 4;\n"
        "  for (index i = first * 4; i < whole; i += threads * 4) {{\n{}"
        "    pack<{}> r;\n"
        "#pragma unroll\n"
        "    for (int k = 0; k < 4; ++k) r.at[k] = element({});\n"
        "    *reinterpret_cast<pack<{}>*>(out + i) = r;\n"
        "  }}\n"
        "  if (first < n - whole) {{\n"
        "    const index i = whole + first;\n"
        "    out[i] = element({});\n"
        "  }}\n}}\n",
        load_dense_packs, result_name, packed, result_name, actual);
  }
  return out;
}

}  // namespace troupe::cuda
