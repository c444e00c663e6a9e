#include "troupe/devices/files/idx_sampler.hpp"
#include "troupe/devices/half.hpp"
#include "troupe/devices/host/host_device.hpp"
#include "troupe/devices/host/host_kernels.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace troupe::host {
namespace {

class constant final : public kernel {
 public:
  explicit constant(const attributes& attrs) : value_(attrs.real("value")) {}

  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) override {
    return check_ports("constant", inputs, 0, outputs, 1);
  }

  result<void> run(const tag&, std::span<const tensor>, std::span<tensor> outputs) override {
    auto& out = outputs[0];
    const auto fill = [&](auto x) { std::fill_n(out.data<decltype(x)>(), out.elements(), x); };
    switch (out.type()) {
      case dtype::f32: fill(static_cast<float>(value_)); break;
      case dtype::f64: fill(value_); break;
      case dtype::i32: fill(static_cast<std::int32_t>(value_)); break;
      case dtype::i64: fill(static_cast<std::int64_t>(value_)); break;
      case dtype::u8: fill(static_cast<std::uint8_t>(value_)); break;
      case dtype::f16: fill(to_f16(static_cast<float>(value_))); break;
      case dtype::bf16: fill(to_bf16(static_cast<float>(value_))); break;
      case dtype::boolean: fill(boolean(value_ != 0)); break;
    }
    return {};
  }

 private:
  double value_;
};

class constant_tensor final : public kernel {
 public:
  explicit constant_tensor(const attributes& attrs) : data_(attrs.data("data")) {}

  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) override {
    if (auto ok = check_ports("constant_tensor", inputs, 0, outputs, 1); !ok) return ok;
    if (outputs[0].size_bytes() != data_.view().size())
      return unfit("constant_tensor", fmt::format("has {} bytes", data_.view().size()), outputs);
    return {};
  }

  result<void> run(const tag&, std::span<const tensor>, std::span<tensor> outputs) override {
    std::ranges::copy(data_.view(), outputs[0].bytes().begin());
    return {};
  }

 private:
  shared_bytes data_;
};

// u / 255, correctly rounded for all 256 values, without the division: u * high is exact, since
// high has 16 bits.
inline float unit_of(std::uint8_t u) noexcept {
  constexpr float high = 0x1.0102p-8F;  // 1/255 to 16 bits
  constexpr float low = static_cast<float>(1.0 / 255 - 0x1.0102p-8);
  const auto x = static_cast<float>(u);
  return x * high + x * low;
}

// Which samples a step takes, as the attributes of a reader say it.
class sample_order {
 public:
  sample_order(const idx_schedule& schedule, const attributes& attrs)
      : schedule_(schedule),
        seed_(static_cast<std::uint64_t>(attrs.integer("seed", 1))),
        shuffle_(attrs.integer("shuffle", 1) != 0),
        global_scale_(attrs.integer("global_scale", 1) != 0) {}

  // Of a step; sample() is then about its epoch.
  idx_range begin(std::uint64_t step) {
    const auto range = schedule_.range(step);
    if (shuffle_ && (order_.empty() || order_epoch_ != range.epoch)) {
      order_ = permutation(seed_, range.epoch, static_cast<std::uint32_t>(schedule_.samples));
      order_epoch_ = range.epoch;
    }
    return range;
  }
  std::uint64_t sample(std::uint64_t position) const noexcept {
    return shuffle_ ? order_[position] : position;
  }
  float scale(const idx_range& range) const noexcept {
    const auto divisor = global_scale_ ? range.global_count : range.count;
    return divisor == 0 ? 0.0F : 1.0F / static_cast<float>(divisor);
  }

 private:
  idx_schedule schedule_;
  std::uint64_t seed_;
  bool shuffle_, global_scale_;
  std::vector<std::uint32_t> order_;  // of order_epoch_
  std::uint64_t order_epoch_ = 0;
};

class index_batch final : public kernel {
 public:
  index_batch(const idx_schedule& schedule, const attributes& attrs) : order_(schedule, attrs) {}

  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) override {
    if (auto ok = check_ports("index_batch", inputs, 0, outputs, 2); !ok) return ok;
    if (outputs[0] != tensor_spec{dtype::i64, {outputs[0].shape.elements()}} ||
        outputs[1] != tensor_spec{dtype::f32, {}})
      return unfit("index_batch", "gives i64 [batch] and f32 []", outputs);
    return {};
  }

  result<void> run(const tag& t, std::span<const tensor>, std::span<tensor> outputs) override {
    const auto range = order_.begin(t.step);
    if (outputs[0].elements() != static_cast<std::int64_t>(range.count))
      return error(error_code::failed,
                   fmt::format("index_batch: step {} has {} samples, its output has room for {}",
                               t.step, range.count, outputs[0].elements()));
    auto* ids = outputs[0].data<std::int64_t>();
    for (std::uint64_t i = 0; i < range.count; ++i)
      ids[i] = static_cast<std::int64_t>(order_.sample(range.first + i));
    outputs[1].data<float>()[0] = order_.scale(range);
    return {};
  }

 private:
  sample_order order_;
};

// Samples of step after step, epoch after epoch, in the order that devices/files/idx_sampler.hpp
// decides.
class idx_batch final : public kernel {
 public:
  idx_batch(std::shared_ptr<const idx_dataset> data, const idx_schedule& schedule,
            const attributes& attrs)
      : data_(std::move(data)), order_(schedule, attrs) {}

  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) override {
    if (auto ok = check_ports("idx_batch", inputs, 0, outputs, 3); !ok) return ok;
    const auto& s = outputs[0].shape;
    const auto pixels = data_->info.rows * data_->info.columns;
    if (s.rank() != 2 || outputs[0] != tensor_spec{dtype::f32, {s.size(0), pixels}} ||
        outputs[1] != tensor_spec{dtype::i32, {s.size(0)}} ||
        outputs[2] != tensor_spec{dtype::f32, {}})
      return unfit("idx_batch",
                   fmt::format("gives f32 [batch, {}], i32 [batch] and f32 []", pixels), outputs);
    return {};
  }

  result<void> run(const tag& t, std::span<const tensor>, std::span<tensor> outputs) override {
    const auto range = order_.begin(t.step);
    if (outputs[1].elements() != static_cast<std::int64_t>(range.count))
      return error(
          error_code::failed,
          fmt::format("idx_batch: step {} of {} has {} samples, its output has room for {}", t.step,
                      data_->info.path, range.count, outputs[1].elements()));
    auto* images = outputs[0].data<float>();
    auto* labels = outputs[1].data<std::int32_t>();
    const auto pixels = static_cast<std::size_t>(data_->info.rows * data_->info.columns);
    for (std::uint64_t i = 0; i < range.count; ++i) {
      const std::uint64_t sample = order_.sample(range.first + i);
      const auto* from = data_->images.data() + sample * pixels;
      if (i + ahead < range.count)
        prefetch(data_->images.data() + order_.sample(range.first + i + ahead) * pixels, pixels);
      float* to = images + i * pixels;
      for (std::size_t p = 0; p < pixels; ++p) to[p] = unit_of(from[p]);
      labels[i] = data_->labels[sample];
    }
    outputs[2].data<float>()[0] = order_.scale(range);
    return {};
  }

 private:
  static constexpr std::uint64_t ahead = 4;  // images; 128 take 9 us, with 1 ahead 16, without 37

  // Samples lie anywhere, and the processor cannot guess where the next one is.
  static void prefetch(const std::uint8_t* image, std::size_t bytes) noexcept {
    for (std::size_t line = 0; line < bytes; line += 64) __builtin_prefetch(image + line);
  }

  std::shared_ptr<const idx_dataset> data_;
  sample_order order_;
};

constexpr auto count_limit = std::int64_t{std::numeric_limits<std::uint32_t>::max()};

// With the number of samples that the graph was built for.
result<idx_schedule> schedule_of(const attributes& attrs, std::string_view reader) {
  const auto samples = attrs.integer("samples"), batch = attrs.integer("batch", 1),
             part = attrs.integer("part"), parts = attrs.integer("parts", 1);
  if (batch < 1 || batch > count_limit || parts < 1 || parts > 65536 || part < 0 || part >= parts)
    return error(
        error_code::usage,
        fmt::format("{}: batch {} as part {} of {}: expected a batch from 1 to 2^32 - 1 and "
                    "a part below the number of parts, at most 65536",
                    reader, batch, part, parts));
  if (samples < 1 || samples > count_limit)
    return error(error_code::usage,
                 fmt::format("{}: {} samples, expected 1 to 2^32 - 1", reader, samples));
  return idx_schedule{.samples = static_cast<std::uint64_t>(samples),
                      .batch = static_cast<std::uint64_t>(batch),
                      .parts = static_cast<std::uint64_t>(parts),
                      .part = static_cast<std::uint64_t>(part)};
}

// Loads the files when the kernel is made, so that a missing folder is an error of placing, not of
// the first step.
result<std::unique_ptr<kernel>> make_idx_batch(const attributes& attrs, host_device& device) {
  const auto path = attrs.text("path");
  auto data = device.dataset(path, attrs.integer("test") != 0, attrs.integer("classes", 10));
  if (!data) return std::move(data.error());
  const auto& info = (*data)->info;
  if (info.samples != attrs.integer("samples") || info.rows != attrs.integer("rows") ||
      info.columns != attrs.integer("columns"))
    return error(
        error_code::usage,
        fmt::format(
            "idx_batch: {} holds {} images of {}x{} on this node, but the graph was built for {} of {}x{}: every node "
            "needs the same files",
            path, info.samples, info.rows, info.columns, attrs.integer("samples"),
            attrs.integer("rows"), attrs.integer("columns")));
  const auto schedule = schedule_of(attrs, fmt::format("idx_batch of {}", path));
  if (!schedule) return schedule.error();
  return std::unique_ptr<kernel>(std::make_unique<idx_batch>(std::move(*data), *schedule, attrs));
}

result<std::unique_ptr<kernel>> make_index_batch(const attributes& attrs, host_device&) {
  const auto schedule = schedule_of(attrs, "index_batch");
  if (!schedule) return schedule.error();
  return std::unique_ptr<kernel>(std::make_unique<index_batch>(*schedule, attrs));
}

}  // namespace

void add_source_kernels(kernel_table& table) {
  table.add("constant", row_of<constant>());
  table.add("constant_tensor", row_of<constant_tensor>());
  table.add("idx_batch", {make_idx_batch, false});
  table.add("index_batch", {make_index_batch, false});
}

}  // namespace troupe::host
