// Ops that move elements and compute nothing. Each is one or more boxes that are copied
// (strided_copy.hpp), which prepare() finds.

#include "troupe/devices/half.hpp"
#include "troupe/devices/host/host_kernels.hpp"
#include "troupe/devices/host/loops/strided_copy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace troupe::host {
namespace {

using integers = std::vector<std::int64_t>;

integers sizes_of(const shape& s) { return {s.sizes().begin(), s.sizes().end()}; }

// One number by element size, all over the output.
void fill(tensor& out, dtype type, double value) {
  const auto with = [&](auto x) { std::fill_n(out.data<decltype(x)>(), out.elements(), x); };
  switch (type) {
    case dtype::f32: return with(static_cast<float>(value));
    case dtype::f64: return with(value);
    case dtype::i32: return with(static_cast<std::int32_t>(value));
    case dtype::i64: return with(static_cast<std::int64_t>(value));
    case dtype::u8: return with(static_cast<std::uint8_t>(value));
    case dtype::f16: return with(to_f16(static_cast<float>(value)));
    case dtype::bf16: return with(to_bf16(static_cast<float>(value)));
    case dtype::boolean: return with(boolean(value != 0));
  }
}

// The boxes of an op: of which operand, from which element to which.
class mover : public kernel {
 public:
  mover(std::string_view op, std::size_t inputs, const attributes& attrs)
      : op_(op), inputs_(inputs), attrs_(attrs) {}

  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) final {
    if (auto ok = check_ports(op_, inputs, inputs_ == 0 ? inputs.size() : inputs_, outputs, 1); !ok)
      return ok;
    if (inputs.empty() || inputs[0].type != outputs[0].type)
      return unfit(op_, "the result has another element type", inputs);
    boxes_.clear();
    element_bytes_ = size_of(outputs[0].type);
    return find_boxes(inputs, outputs[0]);
  }

  result<void> run(const tag&, std::span<const tensor> inputs, std::span<tensor> outputs) final {
    if (background_) fill(outputs[0], outputs[0].type(), *background_);
    auto* out = outputs[0].bytes().data();
    for (const auto& b : boxes_)
      b.copy.run(
          out + b.to * static_cast<std::int64_t>(element_bytes_),
          inputs[b.operand].bytes().data() + b.from * static_cast<std::int64_t>(element_bytes_));
    return {};
  }

 protected:
  virtual result<void> find_boxes(std::span<const tensor_spec> inputs, const tensor_spec& out) = 0;

  void add_box(std::size_t operand, std::int64_t to, std::int64_t from,
               std::vector<strided_copy::loop> loops) {
    boxes_.push_back({operand, to, from, strided_copy(std::move(loops), element_bytes_)});
  }
  error does_not_fit(std::span<const tensor_spec> inputs) const {
    return unfit(op_, "operands and attributes do not fit", inputs);
  }

  std::string_view op_;
  std::size_t inputs_;
  attributes attrs_;
  std::optional<double> background_;  // what is where no box is

 private:
  struct box {
    std::size_t operand;
    std::int64_t to, from;
    strided_copy copy;
  };
  std::vector<box> boxes_;
  std::size_t element_bytes_ = 4;
};

class reshape final : public mover {
 public:
  using mover::mover;

 private:
  result<void> find_boxes(std::span<const tensor_spec> inputs, const tensor_spec& out) override {
    if (inputs[0].shape.elements() != out.shape.elements()) return does_not_fit(inputs);
    add_box(0, 0, 0, {{out.shape.elements(), 1, 1}});
    return {};
  }
};

class transpose final : public mover {
 public:
  using mover::mover;

 private:
  result<void> find_boxes(std::span<const tensor_spec> inputs, const tensor_spec& out) override {
    const auto rank = inputs[0].shape.rank();
    auto order = attrs_.integers("order");
    if (order.empty())
      for (std::size_t i = rank; i-- > 0;) order.push_back(static_cast<std::int64_t>(i));
    if (order.size() != rank || out.shape.rank() != rank) return does_not_fit(inputs);
    const auto from = dense_steps(sizes_of(inputs[0].shape)), to = dense_steps(sizes_of(out.shape));
    std::vector<strided_copy::loop> loops;
    for (std::size_t i = 0; i < rank; ++i) {
      const auto axis = static_cast<std::size_t>(
          order[i] < 0 ? order[i] + static_cast<std::int64_t>(rank) : order[i]);
      if (axis >= rank || inputs[0].shape.size(axis) != out.shape.size(i))
        return does_not_fit(inputs);
      loops.push_back({out.shape.size(i), to[i], from[axis]});
    }
    add_box(0, 0, 0, std::move(loops));
    return {};
  }
};

// A part of a tensor, and where it begins.
struct part_of {
  std::int64_t begin = 0;
  integers steps;  // of the tensor's elements, by axis

  static std::optional<part_of> read(const attributes& attrs, const shape& whole,
                                     const shape& part) {
    const auto rank = whole.rank();
    const auto begin = attrs.integers("begin"), step = attrs.integers("step", integers(rank, 1));
    if (begin.size() != rank || step.size() != rank || part.rank() != rank) return std::nullopt;
    const auto dense = dense_steps(sizes_of(whole));
    part_of p;
    for (std::size_t i = 0; i < rank; ++i) {
      if (part.size(i) > 0) {
        const auto last = begin[i] + (part.size(i) - 1) * step[i];
        if (begin[i] < 0 || begin[i] >= whole.size(i) || last < 0 || last >= whole.size(i))
          return std::nullopt;
        p.begin += begin[i] * dense[i];
      }
      p.steps.push_back(step[i] * dense[i]);
    }
    return p;
  }
};

class slice final : public mover {
 public:
  using mover::mover;

 private:
  result<void> find_boxes(std::span<const tensor_spec> inputs, const tensor_spec& out) override {
    const auto part = part_of::read(attrs_, inputs[0].shape, out.shape);
    if (!part) return does_not_fit(inputs);
    const auto to = dense_steps(sizes_of(out.shape));
    std::vector<strided_copy::loop> loops;
    for (std::size_t i = 0; i < out.shape.rank(); ++i)
      loops.push_back({out.shape.size(i), to[i], part->steps[i]});
    add_box(0, 0, part->begin, std::move(loops));
    return {};
  }
};

class put_slice final : public mover {
 public:
  put_slice(std::string_view op, std::size_t inputs, const attributes& attrs)
      : mover(op, inputs, attrs) {
    background_ = 0;
  }

 private:
  result<void> find_boxes(std::span<const tensor_spec> inputs, const tensor_spec& out) override {
    const auto part = part_of::read(attrs_, out.shape, inputs[0].shape);
    if (!part || inputs[1] != out) return does_not_fit(inputs);
    const auto from = dense_steps(sizes_of(inputs[0].shape));
    std::vector<strided_copy::loop> loops;
    for (std::size_t i = 0; i < out.shape.rank(); ++i)
      loops.push_back({inputs[0].shape.size(i), part->steps[i], from[i]});
    add_box(0, part->begin, 0, std::move(loops));
    return {};
  }
};

class pad final : public mover {
 public:
  pad(std::string_view op, std::size_t inputs, const attributes& attrs) : mover(op, inputs, attrs) {
    background_ = attrs.real("value");
  }

 private:
  result<void> find_boxes(std::span<const tensor_spec> inputs, const tensor_spec& out) override {
    const auto& x = inputs[0].shape;
    const auto before = attrs_.integers("before");
    if (before.size() != x.rank() || out.shape.rank() != x.rank()) return does_not_fit(inputs);
    const auto from = dense_steps(sizes_of(x)), to = dense_steps(sizes_of(out.shape));
    std::vector<strided_copy::loop> loops;
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < x.rank(); ++i) {
      if (before[i] < 0 || before[i] + x.size(i) > out.shape.size(i)) return does_not_fit(inputs);
      begin += before[i] * to[i];
      loops.push_back({x.size(i), to[i], from[i]});
    }
    add_box(0, begin, 0, std::move(loops));
    return {};
  }
};

class concat final : public mover {
 public:
  using mover::mover;

 private:
  result<void> find_boxes(std::span<const tensor_spec> inputs, const tensor_spec& out) override {
    const auto rank = static_cast<std::int64_t>(out.shape.rank());
    const auto axis = attrs_.integer("axis");
    const auto along = static_cast<std::size_t>(axis < 0 ? axis + rank : axis);
    if (along >= out.shape.rank()) return does_not_fit(inputs);
    const auto to = dense_steps(sizes_of(out.shape));
    std::int64_t at = 0;
    for (std::size_t k = 0; k < inputs.size(); ++k) {
      const auto& x = inputs[k].shape;
      if (inputs[k].type != out.type || x.rank() != out.shape.rank()) return does_not_fit(inputs);
      const auto from = dense_steps(sizes_of(x));
      std::vector<strided_copy::loop> loops;
      for (std::size_t i = 0; i < x.rank(); ++i) {
        if (i != along && x.size(i) != out.shape.size(i)) return does_not_fit(inputs);
        loops.push_back({x.size(i), to[i], from[i]});
      }
      add_box(k, at * to[along], 0, std::move(loops));
      at += x.size(along);
    }
    if (at != out.shape.size(along)) return does_not_fit(inputs);
    return {};
  }
};

class tile final : public mover {
 public:
  using mover::mover;

 private:
  result<void> find_boxes(std::span<const tensor_spec> inputs, const tensor_spec& out) override {
    const auto& x = inputs[0].shape;
    const auto times = attrs_.integers("times");
    if (times.size() != x.rank() || out.shape.rank() != x.rank()) return does_not_fit(inputs);
    const auto from = dense_steps(sizes_of(x)), to = dense_steps(sizes_of(out.shape));
    std::vector<strided_copy::loop> loops;
    for (std::size_t i = 0; i < x.rank(); ++i) {
      if (times[i] < 0 || times[i] * x.size(i) != out.shape.size(i)) return does_not_fit(inputs);
      loops.push_back({times[i], to[i] * x.size(i), 0});
      loops.push_back({x.size(i), to[i], from[i]});
    }
    add_box(0, 0, 0, std::move(loops));
    return {};
  }
};

// `op` is a literal; inputs 0: any number.
template <class Kernel>
void add_mover(kernel_table& table, std::string_view op, std::size_t inputs) {
  table.add(std::string(op), {[op, inputs](const attributes& attrs,
                                           host_device&) -> result<std::unique_ptr<kernel>> {
              return std::unique_ptr<kernel>(std::make_unique<Kernel>(op, inputs, attrs));
            }});
}

}  // namespace

void add_layout_kernels(kernel_table& table) {
  add_mover<reshape>(table, "reshape", 1);
  add_mover<reshape>(table, "expand_dims", 1);
  add_mover<transpose>(table, "transpose", 1);
  add_mover<slice>(table, "slice", 1);
  add_mover<put_slice>(table, "put_slice", 2);
  add_mover<pad>(table, "pad", 1);
  add_mover<concat>(table, "concat", 0);
  add_mover<tile>(table, "tile", 1);
}

}  // namespace troupe::host
