// Ops that move elements and compute nothing: boxes that are copied, as on the host
// (devices/host/ops/layout.cpp); and constants.

#include "troupe/devices/cuda/code/elements.hpp"
#include "troupe/devices/cuda/kernels/families.hpp"
#include "troupe/devices/half.hpp"

#include <cstring>
#include <vector>

namespace troupe::cuda {
namespace {

using integers = std::vector<std::int64_t>;

integers dense_steps(const shape& s) {
  integers steps(s.rank(), 1);
  for (auto i = s.rank(); i-- > 1;) steps[i - 1] = steps[i] * s.size(i);
  return steps;
}

struct loop {
  std::int64_t size, to, from;
};

// Outermost first in, innermost first out; loops of one vanish, neighbours that both sides walk as
// one become one. nullopt: more loops than a kernel takes.
std::optional<code::box> box_of(const std::vector<loop>& loops) {
  std::vector<loop> few;
  code::box b;
  for (const auto& l : loops) b.elements *= l.size;
  for (auto i = loops.size(); i-- > 0;) {
    const auto& l = loops[i];
    if (l.size == 1) continue;
    if (!few.empty() && l.to == few.back().to * few.back().size &&
        l.from == few.back().from * few.back().size)
      few.back().size *= l.size;
    else
      few.push_back(l);
  }
  if (few.size() > code::box::loops_max) return std::nullopt;
  for (const auto& l : few) {
    b.size[b.loops] = l.size;
    b.a_step[b.loops] = l.to;
    b.b_step[b.loops] = l.from;
    ++b.loops;
  }
  return b;
}

// A number as the bytes of an element.
std::uint64_t bits_of(dtype type, double value) {
  std::uint64_t bits = 0;
  const auto with = [&](auto x) { std::memcpy(&bits, &x, sizeof x); };
  switch (type) {
    case dtype::f32: with(static_cast<float>(value)); break;
    case dtype::f64: with(value); break;
    case dtype::i32: with(static_cast<std::int32_t>(value)); break;
    case dtype::i64: with(static_cast<std::int64_t>(value)); break;
    case dtype::u8: with(static_cast<std::uint8_t>(value)); break;
    case dtype::f16: with(to_f16(static_cast<float>(value))); break;
    case dtype::bf16: with(to_bf16(static_cast<float>(value))); break;
    case dtype::boolean: with(boolean(value != 0)); break;
  }
  return bits;
}

class filler : public kernel_of_chip {
 protected:
  using kernel_of_chip::kernel_of_chip;
  result<void> fill_all(const launch_site& at, const tensor_spec& out, std::uint64_t bits,
                        std::byte* to) {
    if (bits == 0) return chip_.fill_zero(at, to, out.size_bytes());
    return for_size(size_of(out.type), [&]<class W>(W) {
      return elements(at, code::fill<W>{as<W>(to), static_cast<W>(bits)}, out.shape.elements());
    });
  }
};

enum class move : std::uint8_t { reshape, transpose, slice, put_slice, pad, concat, tile };

class mover final : public filler {
 public:
  mover(std::string_view op, move how, const attributes& attrs, chip_services& chip)
      : filler(chip), op_(op), how_(how), attrs_(attrs) {}

  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) override {
    const std::size_t ports = how_ == move::concat      ? inputs.size()
                              : how_ == move::put_slice ? 2
                                                        : 1;
    if (auto ok = check_ports(op_, inputs, ports, outputs, 1); !ok) return ok;
    if (inputs.empty() || inputs[0].type != outputs[0].type)
      return unfit(op_, "the result has another element type", inputs);
    out_ = outputs[0];
    boxes_.clear();
    has_background_ = how_ == move::put_slice || how_ == move::pad;
    background_ = how_ == move::pad ? bits_of(out_.type, attrs_.real("value")) : 0;
    if (find_boxes(inputs)) return {};
    return unfit(op_, "operands and attributes do not fit", inputs);
  }

  result<void> enqueue(const launch_site& at, inputs_of inputs, outputs_of outputs) override {
    if (has_background_)
      if (auto ok = fill_all(at, out_, background_, outputs[0]); !ok) return ok;
    const auto bytes = size_of(out_.type);
    for (const auto& b : boxes_) {
      if (b.how.elements == 0) continue;
      auto* to = outputs[0] + b.to * static_cast<std::int64_t>(bytes);
      const auto* from = inputs[b.operand] + b.from * static_cast<std::int64_t>(bytes);
      const bool is_dense =
          b.how.loops == 0 || (b.how.loops == 1 && b.how.a_step[0] == 1 && b.how.b_step[0] == 1);
      auto ok = is_dense
                    ? chip_.copy(at, to, from, static_cast<std::size_t>(b.how.elements) * bytes)
                    : for_size(bytes, [&]<class W>(W) {
                        return elements(at, code::copy_box<W>{as<W>(to), as<W>(from), b.how},
                                        b.how.elements);
                      });
      if (!ok) return ok;
    }
    return {};
  }

 private:
  struct placed_box {
    std::size_t operand;
    std::int64_t to, from;
    code::box how;
  };

  bool add(std::size_t operand, std::int64_t to, std::int64_t from,
           const std::vector<loop>& loops) {
    const auto b = box_of(loops);
    if (b) boxes_.push_back({operand, to, from, *b});
    return b.has_value();
  }

  bool find_boxes(std::span<const tensor_spec> inputs) {
    const auto& x = inputs[0].shape;
    const auto& out = out_.shape;
    const auto from = dense_steps(x), to = dense_steps(out);
    std::vector<loop> loops;
    if (how_ == move::reshape)
      return x.elements() == out.elements() && add(0, 0, 0, {{out.elements(), 1, 1}});
    if (how_ == move::concat) return find_parts(inputs);
    if (x.rank() != out.rank()) return false;
    const auto rank = x.rank();
    switch (how_) {
      case move::transpose: {
        auto order = attrs_.integers("order");
        if (order.empty())
          for (auto i = rank; i-- > 0;) order.push_back(static_cast<std::int64_t>(i));
        if (order.size() != rank) return false;
        for (std::size_t i = 0; i < rank; ++i) {
          const auto axis = static_cast<std::size_t>(
              order[i] < 0 ? order[i] + static_cast<std::int64_t>(rank) : order[i]);
          if (axis >= rank || x.size(axis) != out.size(i)) return false;
          loops.push_back({out.size(i), to[i], from[axis]});
        }
        return add(0, 0, 0, loops);
      }
      case move::slice:
      case move::put_slice: {
        const bool puts = how_ == move::put_slice;
        const auto &whole = puts ? out : x, &part = puts ? x : out;
        const auto &whole_steps = puts ? to : from, &part_steps = puts ? from : to;
        const auto begin = attrs_.integers("begin"),
                   step = attrs_.integers("step", integers(rank, 1));
        if (begin.size() != rank || step.size() != rank || (puts && inputs[1] != out_))
          return false;
        std::int64_t first = 0;
        for (std::size_t i = 0; i < rank; ++i) {
          if (part.size(i) > 0) {
            const auto last = begin[i] + (part.size(i) - 1) * step[i];
            if (begin[i] < 0 || begin[i] >= whole.size(i) || last < 0 || last >= whole.size(i))
              return false;
            first += begin[i] * whole_steps[i];
          }
          const auto of_whole = step[i] * whole_steps[i], of_part = part_steps[i];
          loops.push_back(puts ? loop{part.size(i), of_whole, of_part}
                               : loop{part.size(i), of_part, of_whole});
        }
        return puts ? add(0, first, 0, loops) : add(0, 0, first, loops);
      }
      case move::pad: {
        const auto before = attrs_.integers("before");
        if (before.size() != rank) return false;
        std::int64_t first = 0;
        for (std::size_t i = 0; i < rank; ++i) {
          if (before[i] < 0 || before[i] + x.size(i) > out.size(i)) return false;
          first += before[i] * to[i];
          loops.push_back({x.size(i), to[i], from[i]});
        }
        return add(0, first, 0, loops);
      }
      case move::tile: {
        const auto times = attrs_.integers("times");
        if (times.size() != rank) return false;
        for (std::size_t i = 0; i < rank; ++i) {
          if (times[i] < 0 || times[i] * x.size(i) != out.size(i)) return false;
          loops.push_back({times[i], to[i] * x.size(i), 0});
          loops.push_back({x.size(i), to[i], from[i]});
        }
        return add(0, 0, 0, loops);
      }
      default: return false;
    }
  }

  bool find_parts(std::span<const tensor_spec> inputs) {
    const auto& out = out_.shape;
    const auto axis = attrs_.integer("axis");
    const auto along =
        static_cast<std::size_t>(axis < 0 ? axis + static_cast<std::int64_t>(out.rank()) : axis);
    if (along >= out.rank()) return false;
    const auto to = dense_steps(out);
    std::int64_t at = 0;
    for (std::size_t k = 0; k < inputs.size(); ++k) {
      const auto& x = inputs[k].shape;
      if (inputs[k].type != out_.type || x.rank() != out.rank()) return false;
      const auto from = dense_steps(x);
      std::vector<loop> loops;
      for (std::size_t i = 0; i < x.rank(); ++i) {
        if (i != along && x.size(i) != out.size(i)) return false;
        loops.push_back({x.size(i), to[i], from[i]});
      }
      if (!add(k, at * to[along], 0, loops)) return false;
      at += x.size(along);
    }
    return at == out.size(along);
  }

  std::string_view op_;
  move how_;
  attributes attrs_;
  tensor_spec out_;
  bool has_background_ = false;
  std::uint64_t background_ = 0;
  std::vector<placed_box> boxes_;
};

class constant final : public filler {
 public:
  constant(const attributes& attrs, chip_services& chip)
      : filler(chip), value_(attrs.real("value")) {}
  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) override {
    if (auto ok = check_ports("constant", inputs, 0, outputs, 1); !ok) return ok;
    out_ = outputs[0];
    return {};
  }
  result<void> enqueue(const launch_site& at, inputs_of, outputs_of outputs) override {
    return fill_all(at, out_, bits_of(out_.type, value_), outputs[0]);
  }

 private:
  double value_;
  tensor_spec out_;
};

class constant_tensor final : public kernel_of_chip {
 public:
  constant_tensor(const attributes& attrs, chip_services& chip)
      : kernel_of_chip(chip), data_(attrs.data("data")) {}
  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) override {
    if (auto ok = check_ports("constant_tensor", inputs, 0, outputs, 1); !ok) return ok;
    if (outputs[0].size_bytes() != data_.view().size())
      return unfit("constant_tensor", fmt::format("has {} bytes", data_.view().size()), outputs);
    if (kept_ != nullptr || data_.view().empty()) return {};
    auto kept = chip_.keep(data_.view());
    if (!kept) return std::move(kept.error());
    kept_ = std::move(*kept);
    return {};
  }
  result<void> enqueue(const launch_site& at, inputs_of, outputs_of outputs) override {
    return chip_.copy(at, outputs[0], kept_.get(), data_.view().size());
  }

 private:
  shared_bytes data_;
  std::shared_ptr<const std::byte> kept_;
};

class element_count final : public filler {
 public:
  element_count(const attributes& attrs, chip_services& chip) : filler(chip), attrs_(attrs) {}
  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) override {
    if (auto ok = check_ports("element_count", inputs, 1, outputs, 1); !ok) return ok;
    if (outputs[0] != tensor_spec{inputs[0].type, {}} || !is_number(inputs[0].type))
      return unfit("element_count", "gives a scalar of its operand's type", inputs);
    out_ = outputs[0];
    count_ = reduction_over(inputs[0].shape, attrs_).count;
    return {};
  }
  result<void> enqueue(const launch_site& at, inputs_of, outputs_of outputs) override {
    std::uint64_t bits = 0;
    if (out_.type == dtype::i64)
      std::memcpy(&bits, &count_, sizeof count_);
    else
      bits = bits_of(out_.type, static_cast<double>(count_));
    return fill_all(at, out_, bits, outputs[0]);
  }

 private:
  attributes attrs_;
  tensor_spec out_;
  std::int64_t count_ = 1;
};

}  // namespace

void add_layout_kernels(cuda_kernel_table& table) {
  constexpr std::pair<const char*, move> all[] = {
      {"reshape", move::reshape},     {"expand_dims", move::reshape},
      {"transpose", move::transpose}, {"slice", move::slice},
      {"put_slice", move::put_slice}, {"pad", move::pad},
      {"concat", move::concat},       {"tile", move::tile}};
  for (const auto& [op, how] : all) add_row<mover>(table, op, op, how);
  add_row<constant>(table, "constant");
  add_row<constant_tensor>(table, "constant_tensor");
  add_row<element_count>(table, "element_count");
}

}  // namespace troupe::cuda
