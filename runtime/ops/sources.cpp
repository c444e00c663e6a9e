// Ops without operands: what the program feeds, variables, constants.

#include "runtime/ops/op_rows.hpp"

#include <array>
#include <cmath>

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
  if (type < 0 || type >= dtype_count || rank < 0 || rank > static_cast<std::int64_t>(shape::rank_max))
    return error(error_code::usage, fmt::format("attributes dtype {} and rank {} name no tensor", type, rank));
  std::array<dim, shape::rank_max> dims;
  for (std::size_t i = 0; i < static_cast<std::size_t>(rank); ++i)
    dims[i] = {attrs.integer(fmt::format("dim{}", i), -1),
               static_cast<std::uint8_t>(attrs.integer(fmt::format("symbol{}", i)))};
  const auto s = shape::from(std::span(dims.data(), static_cast<std::size_t>(rank)));
  if (!s) return error(error_code::usage, "a size is negative, or all sizes together are too many elements");
  return tensor_spec{static_cast<dtype>(type), *s};
}

void add_sources(op_table& t) {
  const auto from_attributes = [](const attributes& attrs, std::span<const tensor_spec>, const tag*) -> result<specs> {
    auto spec = spec_of(attrs);
    if (!spec) return std::move(spec.error());
    return specs{*spec};
  };
  t.add("input", {.inputs = 0, .shapes = from_attributes, .gradient = {}, .is_source = true});
  t.add("variable",
        {.inputs = 0,
         .shapes = [=](const attributes& attrs, std::span<const tensor_spec> in, const tag* at) -> result<specs> {
           auto out = from_attributes(attrs, in, at);
           if (out && out->front().shape.is_symbolic())
             return misfit(*out, {}, "a variable has exact sizes, a symbolic one is of batches");
           if (out && out->front().type != dtype::f32) return misfit(*out, {}, "a variable is f32");
           return out;
         },
         .gradient = {},
         .is_source = true});
  t.add("constant", {.inputs = 0,
                     .shapes = [](const attributes& attrs, std::span<const tensor_spec>, const tag*) -> result<specs> {
                       if (!attrs.has("value")) return error(error_code::usage, "a constant needs its value");
                       return specs{scalar(dtype::f32)};
                     },
                     .gradient = {},
                     .is_source = true});
}

}  // namespace ops

value input(graph& g, const tensor_spec& spec, std::string_view name, source_location where) {
  return g.add("input", {}, ops::attributes_of(spec), name, where);
}

value variable(graph& g, const tensor_spec& spec, initializer_spec init, std::string_view name, source_location where) {
  if (!std::isfinite(init.limit) || init.limit < 0) {
    g.record(error(error_code::usage,
                   fmt::format("variable '{}': the limit {} of its initial values is not a finite number >= 0", name,
                               init.limit))
                 .at(where));
    return {};
  }
  const auto v = g.add("variable", {}, ops::attributes_of(spec), name, where);
  if (v.is_valid()) g.node(v.node).initializer = init;
  return v;
}

value constant(graph& g, float scalar, std::string_view name, source_location where) {
  return g.add("constant", {}, attributes{{"value", static_cast<double>(scalar)}}, name, where);
}

}  // namespace troupe
