#include "troupe/runtime/layers/layers.hpp"

#include "troupe/schema/dtype_set.hpp"

#include <fmt/format.h>

#include <cmath>

namespace troupe {
namespace {

// Records what is wrong with x, as an error of the layer; the answer is no value.
value refuse(value x, std::string_view layer, std::string_view name, std::string_view why,
             const source_location& where) {
  x.owner->record(error(error_code::usage,
                        fmt::format("{} '{}': x {}: {}", layer, name, to_string(x.spec()), why))
                      .at(where));
  return {};
}

// The size of a dimension that variables are made for; none: what is wrong with it.
result<std::int64_t> exact(value x, std::size_t axis, std::string_view what) {
  const auto d = x.spec().shape[axis];
  if (x.spec().type != dtype::f32) return error(error_code::usage, "the element type must be f32");
  if (d.symbol != 0 || d.size < 1)
    return error(error_code::usage,
                 fmt::format("the number of {} must be exact and at least 1", what));
  return d.size;
}

value variable_of(graph& g, std::initializer_list<std::int64_t> sizes, const initializer_spec& init,
                  std::string_view name, const source_location& where) {
  std::array<dim, shape::rank_max> dims{};
  std::size_t rank = 0;
  for (const auto n : sizes) dims[rank++] = {n, 0};
  const auto s = shape::from(std::span(dims).first(rank));
  if (!s) {
    g.record(error(error_code::usage, fmt::format("variable '{}' of {} elements is too large", name,
                                                  fmt::join(sizes, " x ")))
                 .at(where));
    return {};
  }
  return variable(g, {dtype::f32, *s}, init, name, where);
}

}  // namespace

value dense(value x, std::int64_t units, std::string_view name, source_location where) {
  if (!x.is_valid()) return {};
  if (x.spec().shape.rank() < 2)
    return refuse(x, "dense", name, "must have rank 2 or more: [samples, .., features]", where);
  const auto features = exact(x, x.spec().shape.rank() - 1, "features");
  if (!features) return refuse(x, "dense", name, features.error().message(), where);
  if (units < 1)
    return refuse(x, "dense", name, fmt::format("{} units, but at least 1 is needed", units),
                  where);
  auto& g = *x.owner;
  const auto in_scope = g.name_scope(name, where);
  const auto init = uniform(1 / std::sqrt(static_cast<double>(*features)));
  const auto weights = variable_of(g, {*features, units}, init, "weights", where);
  const auto bias = variable_of(g, {units}, init, "bias", where);
  return add(matmul(x, weights, false, false, where), bias, where);
}

value conv2d(value x, std::int64_t outputs, std::array<std::int64_t, 2> kernel,
             std::string_view name, const conv2d_options& options, source_location where) {
  if (!x.is_valid()) return {};
  if (x.spec().shape.rank() != 4)
    return refuse(x, "conv2d", name, "must have rank 4: [images, channels, height, width]", where);
  const auto channels = exact(x, 1, "channels");
  if (!channels) return refuse(x, "conv2d", name, channels.error().message(), where);
  if (outputs < 1 || kernel[0] < 1 || kernel[1] < 1)
    return refuse(x, "conv2d", name,
                  fmt::format("{} outputs of kernels of {} x {}, but at least 1 of each is needed",
                              outputs, kernel[0], kernel[1]),
                  where);
  if (options.groups < 1 || *channels % options.groups != 0)
    return refuse(
        x, "conv2d", name,
        fmt::format("{} channels are no multiple of {} groups", *channels, options.groups), where);
  auto& g = *x.owner;
  const auto in_scope = g.name_scope(name, where);
  const auto each = *channels / options.groups;
  const auto init =
      uniform(1 / std::sqrt(static_cast<double>(each) * static_cast<double>(kernel[0]) *
                            static_cast<double>(kernel[1])));
  const auto weights =
      variable_of(g, {outputs, each, kernel[0], kernel[1]}, init, "weights", where);
  const auto bias = variable_of(g, {outputs}, init, "bias", where);
  if (!bias.is_valid()) return {};
  return add(conv2d(x, weights, options, where), expand_dims(bias, {1, 2}, where), where);
}

value layer_norm(value x, std::string_view name, double epsilon, source_location where) {
  if (!x.is_valid()) return {};
  if (x.spec().shape.rank() < 1)
    return refuse(x, "layer_norm", name, "must have at least one dimension", where);
  const auto features = exact(x, x.spec().shape.rank() - 1, "features");
  if (!features) return refuse(x, "layer_norm", name, features.error().message(), where);
  auto& g = *x.owner;
  const auto in_scope = g.name_scope(name, where);
  const auto scale = variable_of(g, {*features}, filled_with(1), "scale", where);
  const auto shift = variable_of(g, {*features}, zeros(), "shift", where);
  return layer_norm(x, scale, shift, epsilon, where);
}

value batch_norm(value x, std::string_view name, const batch_norm_options& options,
                 source_location where) {
  if (!x.is_valid()) return {};
  if (x.spec().shape.rank() < 2)
    return refuse(x, "batch_norm", name, "must have channels as its second dimension", where);
  const auto channels = exact(x, 1, "channels");
  if (!channels) return refuse(x, "batch_norm", name, channels.error().message(), where);
  auto& g = *x.owner;
  const auto in_scope = g.name_scope(name, where);
  const auto scale = variable_of(g, {*channels}, filled_with(1), "scale", where);
  const auto shift = variable_of(g, {*channels}, zeros(), "shift", where);
  if (!shift.is_valid()) return {};
  if (!options.is_training) {
    // They follow themselves, which leaves them as they are.
    const auto kept = [&](float initial, std::string_view of) {
      const auto v = variable_of(g, {*channels}, filled_with(initial), of, where);
      // Else shared, and one already.
      if (v.is_valid() && !g.node(v.node).average_rate) g.add_average({v, v, v}, 0);
      return v;
    };
    const auto mean = kept(0, "mean"), variance = kept(1, "variance");
    return batch_norm(x, scale, shift, mean, variance, options.epsilon, where);
  }
  const auto normalized = batch_norm(x, scale, shift, options.epsilon, where);
  moving_average(normalized.mean, "mean",
                 {.rate = options.rate, .initial = 0, .beside = normalized.y}, where);
  moving_average(normalized.variance, "variance",
                 {.rate = options.rate, .initial = 1, .beside = normalized.y}, where);
  return normalized.y;
}

value embedding(value ids, std::int64_t rows, std::int64_t width, std::string_view name,
                source_location where) {
  if (!ids.is_valid()) return {};
  auto& g = *ids.owner;
  if (rows < 1 || width < 1) {
    g.record(error(error_code::usage,
                   fmt::format("embedding '{}': {} rows of {}, but at least 1 of each is needed",
                               name, rows, width))
                 .at(where));
    return {};
  }
  const auto in_scope = g.name_scope(name, where);
  const auto table = variable_of(g, {rows, width},
                                 normal(1 / std::sqrt(static_cast<double>(width))), "table", where);
  return embedding(table, ids, where);
}

value self_attention(value x, const attention_options& options, std::string_view name,
                     source_location where) {
  if (!x.is_valid()) return {};
  const auto& s = x.spec().shape;
  if (s.rank() != 3)
    return refuse(x, "self_attention", name, "must have rank 3: [samples, positions, features]",
                  where);
  const auto width = exact(x, 2, "features");
  if (!width) return refuse(x, "self_attention", name, width.error().message(), where);
  const auto heads = options.heads;
  if (heads < 1 || *width % heads != 0)
    return refuse(x, "self_attention", name,
                  fmt::format("{} features are no multiple of {} heads", *width, heads), where);
  auto& g = *x.owner;
  const auto in_scope = g.name_scope(name, where);
  return dense(attention(dense(x, 3 * *width, "projection", where), options, where), *width,
               "output", where);
}

}  // namespace troupe
