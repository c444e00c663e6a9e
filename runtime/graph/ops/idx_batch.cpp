// idx_batch: the reader of an image dataset as an op of the graph. It has no operands; what it
// reads in a step follows from the step alone (devices/files/idx_sampler.hpp). index_batch: the
// numbers of these samples, without a dataset.

#include "troupe/devices/files/idx_sampler.hpp"
#include "troupe/runtime/graph/build.hpp"
#include "troupe/runtime/graph/ops/op_rows.hpp"

#include <array>
#include <utility>

namespace troupe {
namespace ops {
namespace {

constexpr std::int64_t samples_max = 0xffffffff;  // sample ids are u32
constexpr std::int64_t batch_max = 1 << 24;
constexpr std::int64_t parts_max = 65536;
constexpr std::int64_t pixels_max = 1 << 30;

struct limit {
  std::string_view name;
  std::int64_t least, most;
};

result<void> check_limits(const attributes& attrs, std::initializer_list<limit> limits) {
  for (const auto& [name, least, most] : limits) {
    const auto n = attrs.integer(name, -1);
    if (n < least || n > most)
      return error(error_code::usage,
                   fmt::format("{} is {}, but must be in {}..{}", name, n, least, most));
  }
  return {};
}

result<void> check_schedule(const attributes& attrs) {
  return check_limits(attrs, {{"samples", 1, samples_max},
                              {"batch", 1, batch_max},
                              {"parts", 1, parts_max},
                              {"part", 0, attrs.integer("parts") - 1}});
}

result<void> check_images(const attributes& attrs) {
  if (auto ok = check_limits(
          attrs, {{"rows", 1, pixels_max}, {"columns", 1, pixels_max}, {"classes", 1, 1 << 30}});
      !ok)
    return ok;
  if (attrs.integer("rows") > pixels_max / attrs.integer("columns"))
    return error(error_code::usage, fmt::format("images of {} x {} are too large",
                                                attrs.integer("rows"), attrs.integer("columns")));
  return {};
}

idx_schedule schedule_of(const attributes& attrs) {
  const auto number = [&](std::string_view name) {
    return static_cast<std::uint64_t>(attrs.integer(name));
  };
  return {.samples = number("samples"),
          .batch = number("batch"),
          .parts = number("parts"),
          .part = number("part")};
}

// Every global batch may be the smaller last one, so that at compile time only the bound is known.
dim samples_of(const attributes& attrs, const tag* at) {
  return at == nullptr
             ? batch_of(attrs.integer("batch"))
             : dim{static_cast<std::int64_t>(schedule_of(attrs).range(at->step).count), 0};
}

result<specs> index_shapes(const attributes& attrs, std::span<const tensor_spec>, const tag* at) {
  if (auto ok = check_schedule(attrs); !ok) return std::move(ok.error());
  return specs{tensor_spec{dtype::i64, *shape::from(std::array{samples_of(attrs, at)})},
               scalar(dtype::f32)};
}

result<specs> shapes(const attributes& attrs, std::span<const tensor_spec>, const tag* at) {
  if (auto ok = check_schedule(attrs); !ok) return std::move(ok.error());
  if (auto ok = check_images(attrs); !ok) return std::move(ok.error());
  const auto rows = samples_of(attrs, at);
  const std::array<dim, 2> images{rows, dim{attrs.integer("rows") * attrs.integer("columns"), 0}};
  return specs{tensor_spec{dtype::f32, *shape::from(images)},
               tensor_spec{dtype::i32, *shape::from(std::span(images).first(1))},
               scalar(dtype::f32)};
}

}  // namespace

void add_idx_batch(op_table& t) {
  t.add("idx_batch", {.inputs = 0, .shapes = shapes, .is_source = true});
  t.add("index_batch", {.inputs = 0, .shapes = index_shapes, .is_source = true});
}

}  // namespace ops

namespace {

attributes reading_of(std::int64_t samples, const idx_batch_options& o) {
  return {{"samples", samples},
          {"batch", o.batch},
          {"seed", static_cast<std::int64_t>(o.seed)},
          {"shuffle", std::int64_t{o.shuffle}},
          {"part", o.part},
          {"parts", o.parts},
          {"global_scale", std::int64_t{o.global_scale}}};
}

}  // namespace

idx_batch_values idx_batch(graph& g, const idx_info& data, const idx_batch_options& options,
                           source_location where) {
  auto attrs = reading_of(data.samples, options);
  attrs.set("path", data.path);
  attrs.set("test", std::int64_t{data.test});
  attrs.set("rows", data.rows);
  attrs.set("columns", data.columns);
  attrs.set("classes", data.classes);
  const auto images = g.add("idx_batch", {}, std::move(attrs), "idx_batch", where);
  if (!images.is_valid()) return {};
  return {images, value{&g, images.node, 1}, value{&g, images.node, 2}};
}

index_batch_values index_batch(graph& g, std::int64_t samples, const idx_batch_options& options,
                               source_location where) {
  const auto ids = g.add("index_batch", {}, reading_of(samples, options), "index_batch", where);
  if (!ids.is_valid()) return {};
  return {ids, value{&g, ids.node, 1}};
}

std::uint64_t steps_per_epoch(const idx_info& data, const idx_batch_options& options) {
  return steps_per_epoch(data.samples, options);
}

std::uint64_t steps_per_epoch(std::int64_t samples, const idx_batch_options& options) {
  if (samples < 1 || options.batch < 1 || options.parts < 1) return 0;
  return idx_schedule{.samples = static_cast<std::uint64_t>(samples),
                      .batch = static_cast<std::uint64_t>(options.batch),
                      .parts = static_cast<std::uint64_t>(options.parts)}
      .steps_per_epoch();
}

}  // namespace troupe
