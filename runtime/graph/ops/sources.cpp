// Ops without operands: what the program feeds, variables, constants.

#include "troupe/runtime/graph/build.hpp"
#include "troupe/runtime/graph/initializers.hpp"
#include "troupe/runtime/graph/ops/op_rows.hpp"

#include <array>
#include <cmath>
#include <limits>

namespace troupe {
namespace ops {

attributes attributes_of(const tensor_spec& spec) {
  attributes attrs;
  attrs.set("dtype", std::int64_t{static_cast<std::uint8_t>(spec.type)});
  attrs.set("rank", static_cast<std::int64_t>(spec.shape.rank()));
  for (std::size_t i = 0; i < spec.shape.rank(); ++i) {
    attrs.set(fmt::format("dim{}", i), spec.shape.size(i));
    attrs.set(fmt::format("symbol{}", i), std::int64_t{spec.shape[i].symbol});
  }
  return attrs;
}

result<tensor_spec> spec_of(const attributes& attrs) {
  const auto type = attrs.integer("dtype", -1);
  const auto rank = attrs.integer("rank", -1);
  if (type < 0 || type >= dtype_count || rank < 0 ||
      rank > static_cast<std::int64_t>(shape::rank_max))
    return error(
        error_code::usage,
        fmt::format("attributes dtype {} and rank {} are not those of a tensor", type, rank));
  std::array<dim, shape::rank_max> dims;
  for (std::size_t i = 0; i < static_cast<std::size_t>(rank); ++i)
    dims[i] = {attrs.integer(fmt::format("dim{}", i), -1),
               static_cast<std::uint8_t>(attrs.integer(fmt::format("symbol{}", i)))};
  const auto s = shape::from(std::span(dims.data(), static_cast<std::size_t>(rank)));
  if (!s)
    return error(error_code::usage, "a size is negative, or the tensor has too many elements");
  return tensor_spec{static_cast<dtype>(type), *s};
}

bool is_number_of(dtype type, double value) noexcept {
  switch (type) {
    case dtype::i32: return value >= -0x1p31 && value < 0x1p31 && value == std::trunc(value);
    // f64 has no others.
    case dtype::i64: return value >= -0x1p53 && value <= 0x1p53 && value == std::trunc(value);
    case dtype::u8: return value >= 0 && value <= 255 && value == std::trunc(value);
    case dtype::boolean: return value == 0 || value == 1;
    default: return true;
  }
}

namespace {

result<specs> constant_spec(dtype type, double value) {
  if (!is_number_of(type, value))
    return error(error_code::usage,
                 fmt::format("a constant of {} cannot be {}", to_string(type), value));
  return specs{scalar(type)};
}

result<specs> constant_tensor_spec(const attributes& attrs, std::span<const tensor_spec>,
                                   const tag*) {
  auto spec = spec_of(attrs);
  if (!spec) return std::move(spec.error());
  const std::array one{*spec};
  if (spec->shape.is_symbolic()) return misfit(one, {}, "a constant must have exact sizes");
  const auto data = attrs.data("data");
  const auto bytes = data.view();
  const auto each = size_of(spec->type);
  if (bytes.size() % each != 0 ||
      bytes.size() / each != static_cast<std::size_t>(spec->shape.elements()))
    return misfit(one, {}, fmt::format("{} bytes do not fit its type and shape", bytes.size()));
  return specs{*spec};
}

}  // namespace

void add_sources(op_table& t) {
  const auto from_attributes = [](const attributes& attrs, std::span<const tensor_spec>,
                                  const tag*) -> result<specs> {
    auto spec = spec_of(attrs);
    if (!spec) return std::move(spec.error());
    return specs{*spec};
  };
  t.add("input", {.inputs = 0, .shapes = from_attributes, .gradient = {}, .is_source = true});
  t.add("variable", {.inputs = 0,
                     .shapes = [=](const attributes& attrs, std::span<const tensor_spec> in,
                                   const tag* at) -> result<specs> {
                       auto out = from_attributes(attrs, in, at);
                       if (out && out->front().shape.is_symbolic())
                         return misfit(*out, {},
                                       "a variable must have exact sizes: only batches can have a "
                                       "symbolic one");
                       if (out && out->front().type != dtype::f32)
                         return misfit(*out, {}, "a variable must be f32");
                       return out;
                     },
                     .gradient = {},
                     .is_source = true});
  t.add("constant", {.inputs = 0,
                     .shapes = [](const attributes& attrs, std::span<const tensor_spec>,
                                  const tag*) -> result<specs> {
                       if (!attrs.has("value"))
                         return error(error_code::usage, "a constant needs its value");
                       const auto type = attrs.integer("dtype");
                       if (type < 0 || type >= dtype_count)
                         return error(error_code::usage,
                                      fmt::format("a constant cannot have element type {}", type));
                       return constant_spec(static_cast<dtype>(type), attrs.real("value"));
                     },
                     .gradient = {},
                     .is_source = true,
                     .is_constant = true});
  // A spec as attributes, and "data": its bytes.
  t.add("constant_tensor", {.inputs = 0,
                            .shapes = constant_tensor_spec,
                            .gradient = {},
                            .is_source = true,
                            .is_constant = true});
  const auto forward = [&](std::string_view name, gradient_rule gradient,
                           std::uint32_t inputs_max = 0) {
    t.add(std::string(name), {.inputs = 1,
                              .shapes = [](const attributes&, std::span<const tensor_spec> in,
                                           const tag*) -> result<specs> { return specs{in[0]}; },
                              .gradient = std::move(gradient),
                              .is_forwarding = true,
                              .types = all_types,
                              .inputs_max = inputs_max});
  };
  // What a worker sees of a variable: the version that its shard sent, for everybody who uses it in
  // that step.
  forward("read", {});
  forward(relay_op, {});
  // Operand 0, once all others are there: the compiler adds those that must have come before
  // (runtime/compile/passes/draft/replicate.cpp).
  forward(
      "after",
      [](graph&, const graph_node& n, std::span<const value> dy) {
        std::vector<value> out(n.inputs.size());
        out[0] = dy[0];
        return out;
      },
      4096);
  forward("stop_gradient", no_gradient);
  // Operand 0 where operand 1 is true, else a dead token: of compilers only, who see to it that its
  // consumers may get one.
  t.add(std::string(pass_if_op), {.inputs = 2,
                                  .shapes = [](const attributes&, std::span<const tensor_spec> in,
                                               const tag*) -> result<specs> {
                                    if (in[1] != scalar(dtype::boolean))
                                      return misfit(in, {"value", "condition"},
                                                    "the condition must be bool[]");
                                    return specs{in[0]};
                                  },
                                  .gradient = {},
                                  .is_forwarding = true,
                                  .types = all_types});
}

}  // namespace ops

value input(graph& g, const tensor_spec& spec, std::string_view name, source_location where) {
  return g.add("input", {}, ops::attributes_of(spec), name, where);
}

value variable(graph& g, const tensor_spec& spec, initializer_spec init, std::string_view name,
               source_location where) {
  if (!std::isfinite(static_cast<float>(init.limit)) ||
      (init.limit < 0 && init.type != initializer_spec::kind::constant)) {
    g.record(
        error(error_code::usage,
              fmt::format("variable '{}': the {} {} of its initial values is not a finite number{}",
                          name,
                          init.type == initializer_spec::kind::constant ? "number"
                          : init.type == initializer_spec::kind::normal ? "deviation"
                                                                        : "limit",
                          init.limit, init.type == initializer_spec::kind::constant ? "" : " >= 0"))
            .at(where));
    return {};
  }
  return g.add("variable", {}, ops::attributes_of(spec), name, where, init);
}

value moving_average(value sample, std::string_view name, const moving_average_options& options,
                     source_location where) {
  if (!sample.is_valid()) return {};
  auto& g = *sample.owner;
  const auto refuse = [&](std::string why) {
    g.record(error(error_code::usage, fmt::format("moving_average '{}' of {}: {}", name,
                                                  to_string(sample.spec()), why))
                 .at(where));
    return value{};
  };
  if (!(options.rate >= 0 && options.rate <= 1))
    return refuse(fmt::format("its rate is {}, but must be from 0 to 1", options.rate));
  if (sample.spec().type != dtype::f32 || sample.spec().shape.is_symbolic())
    return refuse("a sample must be f32 and have exact sizes");
  const auto beside = options.beside.is_valid() ? options.beside : sample;
  if (beside.owner != &g) return refuse("options.beside belongs to another graph");
  const auto v = variable(g, sample.spec(), filled_with(options.initial), name, where);
  if (!v.is_valid()) return {};
  if (const auto& n = g.node(v.node); n.average_rate)
    return refuse(fmt::format(
        "the average '{}' is shared, and {}:{} moves it already: an average follows one sample, so make that of all parts outside of share_variables(), or the "
        "layer without one",
        n.name, n.source.file_name(), n.source.line()));
  // A mean of nothing, or of what has overflowed, would stay in it for ever.
  const auto is_finite = less_equal(
      abs(sample, where), constant(g, std::numeric_limits<float>::max(), "largest", where), where);
  const auto taken = troupe::where(is_finite, sample, v, where);
  if (taken.is_valid()) g.add_average({v, taken, beside}, options.rate);
  return v;
}

value constant(graph& g, double scalar, dtype type, std::string_view name, source_location where) {
  attributes attrs{{"value", scalar}};
  if (type != dtype::f32) attrs.set("dtype", std::int64_t{static_cast<std::uint8_t>(type)});
  return g.add("constant", {}, std::move(attrs), name, where);
}
value constant(graph& g, float scalar, std::string_view name, source_location where) {
  return constant(g, static_cast<double>(scalar), dtype::f32, name, where);
}
value constant(graph& g, const tensor& values, std::string_view name, source_location where) {
  const auto refuse = [&](std::string text) {
    g.record(error(error_code::usage, fmt::format("constant '{}': {}", name, text)).at(where));
    return value{};
  };
  if (!values) return refuse("there is no tensor");
  if (values.size_bytes() > constant_bytes_max)
    return refuse(
        fmt::format("{} bytes, at most {} are allowed", values.size_bytes(), constant_bytes_max));
  auto attrs = ops::attributes_of(values.spec());
  const auto bytes = values.bytes();
  attrs.set("data", shared_bytes({bytes.begin(), bytes.end()}));
  return g.add("constant_tensor", {}, std::move(attrs), name, where);
}
value after(value x, std::span<const value> others, source_location where) {
  std::vector<value> operands{x};
  operands.insert(operands.end(), others.begin(), others.end());
  return ops::append("after", operands, {}, where);
}
value after(value x, std::initializer_list<value> others, source_location where) {
  return after(x, std::span(others.begin(), others.size()), where);
}

value stop_gradient(value x, source_location where) {
  return ops::append("stop_gradient", {x}, {}, where);
}

}  // namespace troupe
