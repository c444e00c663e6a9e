// The reader of a text: pieces that begin anywhere.

#include "troupe/devices/files/text_file.hpp"
#include "troupe/devices/host/host_kernels.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <utility>

namespace troupe::host {
namespace {

class text_batch final : public kernel {
 public:
  text_batch(std::shared_ptr<const std::vector<std::byte>> text, const attributes& attrs)
      : text_(std::move(text)),
        seed_(static_cast<std::uint64_t>(attrs.integer("seed", 1))),
        batch_(attrs.integer("batch")),
        context_(attrs.integer("context")),
        part_(attrs.integer("part")),
        parts_(attrs.integer("parts", 1)),
        is_global_(attrs.integer("global_scale", 1) != 0) {}

  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) override {
    if (auto ok = check_ports("text_batch", inputs, 0, outputs, 3); !ok) return ok;
    const tensor_spec pieces{dtype::i32, {batch_, context_}};
    if (outputs[0] != pieces || outputs[1] != pieces || outputs[2] != tensor_spec{dtype::f32, {}})
      return unfit("text_batch",
                   fmt::format("gives i32 [{}, {}] twice, and f32 []", batch_, context_), outputs);
    return {};
  }

  result<void> run(const tag& t, std::span<const tensor>, std::span<tensor> outputs) override {
    auto *tokens = outputs[0].data<std::int32_t>(), *targets = outputs[1].data<std::int32_t>();
    const auto places = text_->size() - static_cast<std::size_t>(context_);
    for (std::int64_t i = 0; i < batch_; ++i) {
      const auto* from =
          text_->data() +
          piece_of_text(seed_, t.step, static_cast<std::uint64_t>(part_ * batch_ + i), places);
      for (std::int64_t k = 0; k < context_; ++k) {
        *tokens++ = std::to_integer<std::int32_t>(from[k]);
        *targets++ = std::to_integer<std::int32_t>(from[k + 1]);
      }
    }
    outputs[2].data<float>()[0] =
        1.0F / static_cast<float>(batch_ * context_ * (is_global_ ? parts_ : 1));
    return {};
  }

 private:
  std::shared_ptr<const std::vector<std::byte>> text_;
  std::uint64_t seed_;
  std::int64_t batch_, context_, part_, parts_;
  bool is_global_;
};

// Reads the file when the kernel is made, so that a missing one is an error of placing, not of the
// first step.
result<std::unique_ptr<kernel>> make_text_batch(const attributes& attrs, host_device&) {
  constexpr std::int64_t most = std::int64_t{1} << 24;
  const auto batch = attrs.integer("batch"), context = attrs.integer("context"),
             part = attrs.integer("part"), parts = attrs.integer("parts", 1);
  if (batch < 1 || batch > most || context < 1 || context > most || parts < 1 || parts > 65536 ||
      part < 0 || part >= parts)
    return error(
        error_code::usage,
        fmt::format(
            "text_batch: {} pieces of {} as part {} of {}: expected 1 to 2^24 of each, as part of at most 65536",
            batch, context, part, parts));
  auto text = load_text({attrs.text("path"), attrs.integer("samples"),
                         static_cast<std::uint64_t>(attrs.integer("hash"))});
  if (!text) return std::move(text.error());
  if (static_cast<std::int64_t>((*text)->size()) <= context)
    return error(error_code::usage,
                 fmt::format("text_batch: {} has {} bytes, too few for pieces of {} and one more",
                             attrs.text("path"), (*text)->size(), context));
  return std::unique_ptr<kernel>(std::make_unique<text_batch>(std::move(*text), attrs));
}

}  // namespace

void add_text_kernels(kernel_table& table) { table.add("text_batch", {make_text_batch, false}); }

}  // namespace troupe::host
