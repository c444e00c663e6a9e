#include "troupe/devices/host/fused_kernel.hpp"

#include "troupe/devices/host/host_kernels.hpp"
#include "troupe/devices/host/loops/elementwise.hpp"
#include "troupe/devices/host/piecewise_kernel.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace troupe {
namespace {

using host::elementwise_kernel;

// 64 KiB of f32: a few operands share a second-level cache. Measured over 1,024 to 16,384 and no
// tiles at all: up to 2^15 elements it makes no difference; 4 million and eight ops take 2.0 ms so,
// 2.2 ms with 1,024, 5.4 ms without.
constexpr std::int64_t tile_elements = 16'384;

class fused_kernel final : public kernel {
 public:
  fused_kernel(std::vector<fused_step> steps, tile_team& team)
      : steps_(std::move(steps)), team_(team) {
    head_ = dynamic_cast<elementwise_kernel*>(steps_[0].op.get()) == nullptr ? steps_[0].op.get()
                                                                             : nullptr;
    piecewise_ = dynamic_cast<host::piecewise_kernel*>(head_);
    for (const auto& s : steps_)
      for (const auto o : s.operands)
        ports_ = std::max(ports_, static_cast<std::size_t>(std::max(o + 1, 0)));
    find_walked_ports();
    assign_slots();
  }

  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) override {
    if (inputs.size() < ports_ || outputs.size() != 1)
      return error(
          error_code::usage,
          fmt::format(
              "a fused group of {} ops takes {} operands and gives one result, the plan has {} and {}",
              steps_.size(), ports_, inputs.size(), outputs.size()));
    if (outputs[0].type != steps_.back().type)
      return error(error_code::usage,
                   fmt::format("a fused group gives {}, the plan has {}",
                               to_string(steps_.back().type), to_string(outputs[0])));
    if (auto ok = prepare_steps(inputs, outputs[0].shape); !ok) return ok;
    output_ = outputs[0];
    std::vector<shape> operands;
    for (auto& p : walked_) {
      operands.push_back(inputs[p.port].shape);
      p.element_bytes = static_cast<std::int64_t>(size_of(inputs[p.port].type));
    }
    const auto walk = host::broadcast_walk::over(outputs[0].shape, operands);
    if (!walk)
      return error(error_code::usage,
                   fmt::format("an operand of a fused group cannot be broadcast to {}",
                               to_string(outputs[0])));
    walk_ = *walk;
    tile_columns_ = std::min(walk_.columns(), tile_elements);
    tile_rows_ =
        tile_columns_ < walk_.columns()
            ? 1
            : std::clamp<std::int64_t>(tile_elements / std::max<std::int64_t>(1, tile_columns_), 1,
                                       std::max<std::int64_t>(1, walk_.rows()));
    for (auto& c : code_)
      for (std::size_t k = 0; k < c.operands.size(); ++k) c.row_steps[k] = row_step(c.operands[k]);
    find_cut(outputs[0].shape.elements());
    reserve_scratch();
    return {};
  }

  result<void> run(const tag& t, std::span<const tensor> inputs,
                   std::span<tensor> outputs) override {
    if (makes_pieces()) {
      rest_of_group rest(*this, inputs, outputs[0]);
      return with_head_inputs(inputs, [&](std::span<const tensor> in) {
        return piecewise_->run_by_pieces(t, in, outputs, rest);
      });
    }
    if (head_ != nullptr) {
      if (auto ok = with_head_inputs(
              inputs, [&](std::span<const tensor> in) { return head_->run(t, in, outputs); });
          !ok)
        return ok;
      // A user's may have put something else there, beyond which the others would write.
      if (!outputs[0] || outputs[0].spec() != output_)
        return error(
            error_code::failed,
            fmt::format("its kernel made {} as output 0, which is {}",
                        outputs[0] ? to_string(outputs[0].spec()) : "nothing", to_string(output_)));
    }
    if (walk_.rows() == 0 || walk_.columns() == 0) return {};
    if (cut_.each >= cut_.items) {  // small: one tile
      run_tiles(inputs, outputs[0], 0, cut_.items, desks_.front());
      return {};
    }
    return team_.run(cut_.tiles(), [&](std::size_t tile, std::size_t worker) -> result<void> {
      run_tiles(inputs, outputs[0], cut_.begin(tile), cut_.begin(tile) + cut_.size(tile),
                desks_[worker]);
      return {};
    });
  }

 private:
  // Steps on addresses: those of the ports, then the output, then scratch tiles.
  struct instruction {
    host::tile_function compute = nullptr;
    std::array<std::uint32_t, host::elementwise_operands_max> operands{};
    std::array<std::int64_t, host::elementwise_operands_max> row_steps{};
    std::uint32_t out = 0;
  };
  // A port that an element-wise step takes: that many of the walk's operands.
  struct walked_port {
    std::size_t port = 0;
    std::int64_t element_bytes = 0;
  };

  void find_walked_ports() {
    std::vector<bool> is_walked(ports_);
    for (const auto& s : steps_)
      for (const auto o : s.operands)
        if (o >= 0 && s.op.get() != head_) is_walked[static_cast<std::size_t>(o)] = true;
    walk_of_port_.assign(ports_, none);
    for (std::size_t p = 0; p < ports_; ++p)
      if (is_walked[p]) {
        walk_of_port_[p] = static_cast<std::uint32_t>(walked_.size());
        walked_.push_back({p, 0});
      }
  }

  // A result takes a slot of its element size that is free, the output's first, and gives it back
  // at its last use, to that very step: results are computed in place of operands that nobody needs
  // any more.
  void assign_slots() {
    std::vector<std::size_t> last_use(steps_.size());
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      last_use[i] = i;
      for (const auto o : steps_[i].operands)
        if (o < 0) last_use[static_cast<std::size_t>(-1 - o)] = i;
    }
    slot_bytes_ = {size_of(steps_.back().type)};
    std::vector<std::size_t> holder{0};  // per slot: the first step that may take it
    slot_.resize(steps_.size());
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      // The last step's result is the group's: whatever is in the output by then, it is the last to
      // need it. So is the first one's where it writes the whole output.
      std::size_t s = 0;
      const bool is_output = i + 1 == steps_.size() || (i == 0 && head_ != nullptr);
      if (!is_output)
        while (s < holder.size() && (holder[s] > i || slot_bytes_[s] != size_of(steps_[i].type)))
          ++s;
      if (s == holder.size()) {
        holder.push_back(0);
        slot_bytes_.push_back(size_of(steps_[i].type));
      }
      holder[s] = last_use[i];
      slot_[i] = static_cast<std::uint32_t>(s);
    }
    out_bytes_ = static_cast<std::int64_t>(slot_bytes_[0]);
  }

  result<void> prepare_steps(std::span<const tensor_spec> inputs, const shape& out) {
    code_.clear();
    std::vector<tensor_spec> specs;
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      specs.clear();
      for (const auto o : steps_[i].operands)
        specs.push_back(o >= 0 ? inputs[static_cast<std::size_t>(o)]
                               : tensor_spec{steps_[static_cast<std::size_t>(-1 - o)].type, out});
      const tensor_spec result{steps_[i].type, out};
      if (auto ok = steps_[i].op->prepare(specs, std::span(&result, 1)); !ok) return ok;
      if (steps_[i].op.get() == head_) continue;
      const auto& op = static_cast<elementwise_kernel&>(*steps_[i].op);
      instruction c;
      c.compute = op.compute();
      c.out = static_cast<std::uint32_t>(ports_) + slot_[i];
      for (std::size_t k = 0; k < op.operands(); ++k) {
        const auto o = steps_[i].operands[k];
        c.operands[k] =
            o >= 0 ? static_cast<std::uint32_t>(o)
                   : static_cast<std::uint32_t>(ports_) + slot_[static_cast<std::size_t>(-1 - o)];
      }
      code_.push_back(c);
    }
    return {};
  }

  // A tile has several rows only where these are whole, so that output and scratch tiles are dense.
  std::int64_t row_step(std::uint32_t address) const noexcept {
    return address < ports_ && walk_of_port_[address] != none
               ? walk_.row_step(walk_of_port_[address])
               : walk_.columns();
  }

  // What a thread needs to run tiles: where operands, the output and scratch tiles are.
  struct desk {
    std::vector<std::byte*> addresses;
    tensor scratch;
  };

  void find_cut(std::int64_t elements) {
    column_tiles_ = tile_columns_ == 0 ? 0 : (walk_.columns() + tile_columns_ - 1) / tile_columns_;
    row_tiles_ = (walk_.rows() + tile_rows_ - 1) / tile_rows_;
    const auto tiles = walk_.blocks() * row_tiles_ * column_tiles_;
    const auto each = tiles == 0 ? 0.0
                                 : host::elementwise_ns(code_.size(), walked_.size()) *
                                       static_cast<double>(elements) / static_cast<double>(tiles);
    cut_ = tile_cut::by_cost(tiles, each, host::tile_least_ns);
  }

  void reserve_scratch() {
    std::vector<std::size_t> at;
    std::size_t bytes = 0;
    for (std::size_t s = 1; s < slot_bytes_.size(); ++s) {
      at.push_back(bytes);
      bytes +=
          (static_cast<std::size_t>(tile_rows_ * tile_columns_) * slot_bytes_[s] + 63) / 64 * 64;
    }
    desks_.resize(makes_pieces() ? team_.threads() : std::min(team_.threads(), cut_.tiles() + 1));
    for (auto& d : desks_) {
      d.scratch = tensor::make({dtype::u8, {static_cast<std::int64_t>(bytes)}});
      d.addresses.resize(ports_ + slot_bytes_.size());
      for (std::size_t s = 1; s < slot_bytes_.size(); ++s)
        d.addresses[ports_ + s] = d.scratch.data<std::byte>() + at[s - 1];
    }
  }

  // What follows the first op, for pieces of its result.
  class rest_of_group final : public host::piece_user {
   public:
    rest_of_group(fused_kernel& group, std::span<const tensor> inputs, tensor& output)
        : group_(group), inputs_(inputs), output_(output) {}
    void finished(std::int64_t first, std::int64_t end, std::size_t worker) noexcept override {
      group_.run_elements(inputs_, output_, first, end, group_.desks_[worker]);
    }

   private:
    fused_kernel& group_;
    std::span<const tensor> inputs_;
    tensor& output_;
  };

  bool makes_pieces() const noexcept {
    return piecewise_ != nullptr && piecewise_->makes_pieces() && !code_.empty();
  }

  // Whole rows as many as a tile has, or what is there of one.
  void run_elements(std::span<const tensor> inputs, tensor& output, std::int64_t first,
                    std::int64_t end, desk& d) const noexcept {
    const auto rows = walk_.rows(), columns = walk_.columns();
    while (first < end) {
      const auto row = first / columns, column = first % columns, block = row / rows,
                 r = row % rows;
      const bool is_part = column != 0 || end - first < columns || tile_columns_ < columns;
      const auto some_rows =
          is_part ? 1 : std::min({(end - first) / columns, rows - r, tile_rows_});
      const auto some_columns =
          is_part ? std::min({columns - column, end - first, tile_columns_}) : columns;
      run_at(inputs, output, block, r, column, some_rows, some_columns, d);
      first += some_rows * some_columns;
    }
  }

  // Tiles `first` to `end` - 1, along columns, then rows, then blocks.
  void run_tiles(std::span<const tensor> inputs, tensor& output, std::int64_t first,
                 std::int64_t end, desk& d) const noexcept {
    const auto rows = walk_.rows(), columns = walk_.columns();
    std::int64_t b = 0, r = 0, c = 0;
    if (first > 0)
      b = first / (row_tiles_ * column_tiles_), r = first / column_tiles_ % row_tiles_ * tile_rows_,
      c = first % column_tiles_ * tile_columns_;
    for (auto tile = first; tile < end; ++tile) {
      run_at(inputs, output, b, r, c, std::min(tile_rows_, rows - r),
             std::min(tile_columns_, columns - c), d);
      if (c += tile_columns_; c < columns) continue;
      c = 0;
      if (r += tile_rows_; r < rows) continue;
      r = 0;
      ++b;
    }
  }

  // `rows` x `columns` elements from row r and column c of block b on.
  void run_at(std::span<const tensor> inputs, tensor& output, std::int64_t b, std::int64_t r,
              std::int64_t c, std::int64_t rows, std::int64_t columns, desk& d) const noexcept {
    for (std::size_t w = 0; w < walked_.size(); ++w) {
      const auto& p = walked_[w];
      const auto element = walk_.offset(w, b) + r * walk_.row_step(w) + (walk_.advances(w) ? c : 0);
      // Read only.
      d.addresses[p.port] =
          const_cast<std::byte*>(inputs[p.port].bytes().data()) + element * p.element_bytes;
    }
    d.addresses[ports_] =
        output.bytes().data() + ((b * walk_.rows() + r) * walk_.columns() + c) * out_bytes_;
    run_tile(d.addresses.data(), rows, columns);
  }

  template <class Run>
  result<void> with_head_inputs(std::span<const tensor> inputs, Run run) {
    const auto& operands = steps_[0].operands;
    bool in_order = true;
    for (std::size_t k = 0; k < operands.size(); ++k)
      in_order = in_order && operands[k] == static_cast<std::int32_t>(k);
    if (in_order) return run(inputs.first(operands.size()));
    head_inputs_.clear();
    for (const auto o : operands) head_inputs_.push_back(inputs[static_cast<std::size_t>(o)]);
    auto done = run(std::span<const tensor>(head_inputs_));
    head_inputs_.clear();
    return done;
  }

  void run_tile(std::byte* const* at, std::int64_t rows, std::int64_t columns) const noexcept {
    for (const auto& c : code_) {
      const std::byte* const operands[] = {at[c.operands[0]], at[c.operands[1]], at[c.operands[2]]};
      c.compute(at[c.out], operands, c.row_steps.data(), rows, columns);
    }
  }

  std::vector<fused_step> steps_;
  tile_team& team_;
  // The first step, where it is not element-wise: it writes the whole output.
  kernel* head_ = nullptr;
  host::piecewise_kernel* piecewise_ = nullptr;  // the same, if it can do so piece by piece
  std::size_t ports_ = 0;                        // input ports in use
  std::vector<std::size_t> slot_bytes_;          // of an element: the output, then scratch tiles
  std::vector<std::uint32_t> slot_;              // per step
  std::vector<instruction> code_;
  std::vector<desk> desks_;  // by worker
  std::vector<walked_port> walked_;
  static constexpr std::uint32_t none = 0xFFFF'FFFF;
  std::vector<std::uint32_t> walk_of_port_;  // its place in walked_; none
  std::vector<tensor> head_inputs_;
  tensor_spec output_;
  host::broadcast_walk walk_;
  std::int64_t tile_rows_ = 1, tile_columns_ = 1;
  std::int64_t column_tiles_ = 0, row_tiles_ = 0;
  tile_cut cut_;  // of all tiles
  std::int64_t out_bytes_ = 4;
};

}  // namespace

result<std::unique_ptr<kernel>> make_fused_kernel(std::vector<fused_step> steps, tile_team& team) {
  // Of a step; also bounds ports, which come from a plan.
  constexpr std::size_t operands_max = 1'000'000;
  if (steps.empty()) return error(error_code::usage, "a fused group has no ops");
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (i == 0 && steps[0].op != nullptr &&
        dynamic_cast<elementwise_kernel*>(steps[0].op.get()) == nullptr &&
        steps[0].type != steps.back().type)
      return error(error_code::usage,
                   fmt::format("the first op of a fused group writes {} into a result of {}",
                               to_string(steps[0].type), to_string(steps.back().type)));
    if (steps[i].op == nullptr)
      return error(error_code::usage, fmt::format("op {} of a fused group has no kernel", i));
    if (i > 0 && dynamic_cast<elementwise_kernel*>(steps[i].op.get()) == nullptr)
      return error(
          error_code::usage,
          fmt::format(
              "op {} of a fused group is not element-wise: only the first may be of another kind",
              i));
    for (const auto o : steps[i].operands)
      if ((o < 0 && -1 - std::int64_t{o} >= static_cast<std::int64_t>(i)) ||
          o >= static_cast<std::int64_t>(operands_max))
        return error(
            error_code::usage,
            fmt::format(
                "op {} of a fused group takes operand {}, which is neither a port nor an earlier op",
                i, o));
  }
  return std::unique_ptr<kernel>(std::make_unique<fused_kernel>(std::move(steps), team));
}

}  // namespace troupe
