#include "devices/host/fused_kernel.hpp"

#include "devices/host/elementwise.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace troupe {
namespace {

using host::elementwise_kernel;

// 64 KiB of f32: a few operands share a second-level cache. Measured over 1,024 to 16,384 and no tiles at all: up to
// 2^15 elements it makes no difference; 4 million and eight ops take 2.0 ms so, 2.2 ms with 1,024, 5.4 ms without.
constexpr std::int64_t tile_elements = 16'384;

class fused_kernel final : public kernel {
 public:
  explicit fused_kernel(std::vector<fused_step> steps) : steps_(std::move(steps)) {
    head_ = dynamic_cast<elementwise_kernel*>(steps_[0].op.get()) == nullptr ? steps_[0].op.get() : nullptr;
    for (const auto& s : steps_)
      for (const auto o : s.operands) ports_ = std::max(ports_, static_cast<std::size_t>(std::max(o + 1, 0)));
    assign_slots();
  }

  result<void> prepare(std::span<const tensor_spec> inputs, std::span<const tensor_spec> outputs) override {
    if (inputs.size() < ports_ || outputs.size() != 1)
      return error(error_code::usage,
                   fmt::format("a fused group of {} ops takes {} operands and gives one result, the plan has {} and {}",
                               steps_.size(), ports_, inputs.size(), outputs.size()));
    if (auto ok = prepare_steps(inputs, outputs); !ok) return ok;
    const auto& out = outputs[0];
    const bool by_rows = std::any_of(code_.begin(), code_.end(), [](const auto& c) { return c.has_row; });
    extent_ = host::extent_of(out.shape, by_rows);
    element_bytes_ = size_of(out.type);
    advances_.assign(addresses_.size(), false);
    for (std::size_t p = 0; p < ports_; ++p) advances_[p] = inputs[p].shape == out.shape;
    advances_[ports_] = true;
    tile_ = extent_;
    if (by_rows)
      tile_.rows =
          std::min(extent_.rows, std::max<std::int64_t>(1, tile_elements / std::max<std::int64_t>(1, extent_.columns)));
    else
      tile_.columns = std::min(extent_.columns, tile_elements);
    const auto scratch = static_cast<std::int64_t>(slots_ - 1);
    const auto stride = (tile_.rows * tile_.columns * static_cast<std::int64_t>(element_bytes_) + 63) / 64 * 64;
    scratch_ = tensor::make({dtype::u8, {scratch * stride}});
    for (std::int64_t s = 0; s < scratch; ++s)
      addresses_[ports_ + 1 + static_cast<std::size_t>(s)] = scratch_.data<std::byte>() + s * stride;
    return {};
  }

  result<void> run(const tag& t, std::span<const tensor> inputs, std::span<tensor> outputs) override {
    if (head_ != nullptr)
      if (auto ok = run_head(t, inputs, outputs); !ok) return ok;
    for (std::size_t p = 0; p < ports_; ++p)
      addresses_[p] = const_cast<std::byte*>(inputs[p].bytes().data());  // read only
    addresses_[ports_] = outputs[0].bytes().data();
    // One of the two is the whole extent.
    for (std::int64_t r = 0; r < extent_.rows; r += tile_.rows)
      for (std::int64_t c = 0; c < extent_.columns; c += tile_.columns)
        run_tile(std::min(tile_.rows, extent_.rows - r), std::min(tile_.columns, extent_.columns - c));
    return {};
  }

 private:
  // Steps on addresses: those of the ports, then the output, then scratch tiles.
  struct instruction {
    host::tile_function compute = nullptr;
    std::array<std::uint32_t, host::elementwise_operands_max> operands{};
    std::uint32_t out = 0;
    bool has_row = false;
  };

  // A result takes a slot that is free, the output's first, and gives it back at its last use, to that very step:
  // results are computed in place of operands that nobody needs any more.
  void assign_slots() {
    std::vector<std::size_t> last_use(steps_.size());
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      last_use[i] = i;
      for (const auto o : steps_[i].operands)
        if (o < 0) last_use[static_cast<std::size_t>(-1 - o)] = i;
    }
    std::vector<std::size_t> holder;  // per slot: the last step that needs what is in it
    slot_.resize(steps_.size());
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      // The last step's result is the group's: whatever is in the output by then, it is the last to need it.
      std::size_t s = 0;
      if (i + 1 < steps_.size())
        while (s < holder.size() && holder[s] > i) ++s;
      if (s == holder.size()) holder.push_back(0);
      holder[s] = last_use[i];
      slot_[i] = static_cast<std::uint32_t>(s);
    }
    slots_ = holder.size();
    addresses_.resize(ports_ + slots_);
  }

  result<void> prepare_steps(std::span<const tensor_spec> inputs, std::span<const tensor_spec> outputs) {
    code_.clear();
    std::vector<tensor_spec> specs;
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      specs.clear();
      for (const auto o : steps_[i].operands)
        specs.push_back(o >= 0 ? inputs[static_cast<std::size_t>(o)] : outputs[0]);
      if (auto ok = steps_[i].op->prepare(specs, outputs); !ok) return ok;
      if (steps_[i].op.get() == head_) continue;
      const auto& tiles = static_cast<elementwise_kernel&>(*steps_[i].op).tiles();
      instruction c;
      c.compute = tiles.compute;
      c.out = static_cast<std::uint32_t>(ports_) + slot_[i];
      for (std::size_t k = 0; k < tiles.operands; ++k) {
        const auto o = steps_[i].operands[k];
        c.operands[k] = o >= 0 ? static_cast<std::uint32_t>(o)
                               : static_cast<std::uint32_t>(ports_) + slot_[static_cast<std::size_t>(-1 - o)];
        c.has_row = c.has_row || tiles.forms[k] == host::operand_form::row;
      }
      code_.push_back(c);
    }
    return {};
  }

  result<void> run_head(const tag& t, std::span<const tensor> inputs, std::span<tensor> outputs) {
    const auto& operands = steps_[0].operands;
    bool in_order = true;
    for (std::size_t k = 0; k < operands.size(); ++k)
      in_order = in_order && operands[k] == static_cast<std::int32_t>(k);
    if (in_order) return head_->run(t, inputs.first(operands.size()), outputs);
    head_inputs_.clear();
    for (const auto o : operands) head_inputs_.push_back(inputs[static_cast<std::size_t>(o)]);
    auto done = head_->run(t, head_inputs_, outputs);
    head_inputs_.clear();
    return done;
  }

  void run_tile(std::int64_t rows, std::int64_t columns) noexcept {
    auto* const at = addresses_.data();
    for (const auto& c : code_) {
      const std::byte* const operands[] = {at[c.operands[0]], at[c.operands[1]], at[c.operands[2]]};
      c.compute(at[c.out], operands, rows, columns);
    }
    const auto bytes = rows * columns * static_cast<std::int64_t>(element_bytes_);
    for (std::size_t i = 0; i <= ports_; ++i)
      if (advances_[i]) at[i] += bytes;
  }

  std::vector<fused_step> steps_;
  kernel* head_ = nullptr;  // the first step, where it is not element-wise: it writes the whole output
  std::size_t ports_ = 0;   // input ports in use
  std::size_t slots_ = 1;   // the output, then scratch tiles
  std::vector<std::uint32_t> slot_;
  std::vector<instruction> code_;
  std::vector<std::byte*> addresses_;
  std::vector<bool> advances_;
  std::vector<tensor> head_inputs_;
  host::tile_extent extent_, tile_;
  std::size_t element_bytes_ = 4;
  tensor scratch_;
};

}  // namespace

result<std::unique_ptr<kernel>> make_fused_kernel(std::vector<fused_step> steps) {
  constexpr std::size_t operands_max = 1'000'000;  // of a step; also bounds ports, which come from a plan
  if (steps.empty()) return error(error_code::usage, "a fused group has no ops");
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (steps[i].op == nullptr) return error(error_code::usage, fmt::format("op {} of a fused group has no kernel", i));
    if (i > 0 && dynamic_cast<elementwise_kernel*>(steps[i].op.get()) == nullptr)
      return error(error_code::usage,
                   fmt::format("op {} of a fused group is not element-wise: only the first may be of another kind", i));
    for (const auto o : steps[i].operands)
      if ((o < 0 && -1 - std::int64_t{o} >= static_cast<std::int64_t>(i)) ||
          o >= static_cast<std::int64_t>(operands_max))
        return error(
            error_code::usage,
            fmt::format("op {} of a fused group takes operand {}, which is neither a port nor an earlier op", i, o));
  }
  return std::unique_ptr<kernel>(std::make_unique<fused_kernel>(std::move(steps)));
}

}  // namespace troupe
