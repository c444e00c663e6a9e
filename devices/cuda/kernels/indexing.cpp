// Ops that choose by index. Who is added to one place is added by one thread in the order of the
// indices: bits are equal in every run.

#include "troupe/devices/cuda/code/elements.hpp"
#include "troupe/devices/cuda/kernels/families.hpp"

#include <bit>
#include <limits>

namespace troupe::cuda {
namespace {

class gather final : public kernel_of_chip {
 public:
  gather(const attributes& attrs, chip_services& chip)
      : kernel_of_chip(chip), axis_(attrs.integer("axis")) {}
  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) override {
    if (auto ok = check_ports("gather", inputs, 2, outputs, 1); !ok) return ok;
    const auto a = along_axis(inputs[0].shape, axis_);
    count_ = inputs[1].shape.elements();
    if (!a || !is_index(inputs[1]) || outputs[0].type != inputs[0].type ||
        outputs[0].shape.elements() != a->outer * count_ * a->inner)
      return unfit("gather", "operands and axis do not fit", inputs);
    a_ = *a;
    bytes_ = size_of(inputs[0].type);
    index_ = inputs[1].type;
    return {};
  }
  result<void> enqueue(const launch_site& at, inputs_of inputs, outputs_of outputs) override {
    return for_size(bytes_, [&]<class W>(W) {
      return for_index(index_, [&]<class I>(I) {
        return elements(at,
                        code::gather<W, I>{as<W>(outputs[0]),
                                           as<W>(inputs[0]),
                                           as<I>(inputs[1]),
                                           count_,
                                           a_.n,
                                           a_.inner,
                                           {at.faults, at.op_number}},
                        a_.outer * count_ * a_.inner);
      });
    });
  }

 private:
  std::int64_t axis_, count_ = 0;
  code::along a_;
  std::size_t bytes_ = 4;
  dtype index_ = dtype::i32;
};

// Indices are sorted, so that those of one place lie together in their order.
class scatter_add final : public kernel_of_chip {
 public:
  scatter_add(const attributes& attrs, chip_services& chip)
      : kernel_of_chip(chip), axis_(attrs.integer("axis")) {}
  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) override {
    if (auto ok = check_ports("scatter_add", inputs, 3, outputs, 1); !ok) return ok;
    const auto a = along_axis(inputs[0].shape, axis_);
    count_ = inputs[1].shape.elements();
    constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
    if (!a || !is_index(inputs[1]) || !is_number(inputs[0].type) || outputs[0] != inputs[0] ||
        inputs[2].type != inputs[0].type ||
        inputs[2].shape.elements() != a->outer * count_ * a->inner)
      return unfit("scatter_add", "operands and axis do not fit", inputs);
    if (count_ > most || a->n >= most)
      return unfit("scatter_add", "takes fewer than 2^31 indices and places", inputs);
    a_ = *a;
    spec_ = inputs[0];
    index_ = inputs[1].type;
    sort_bytes_ = chip_.sort_workspace_bytes(count_);
    return {};
  }
  std::size_t workspace_bytes() const noexcept override { return 4 * column_bytes() + sort_bytes_; }
  result<void> enqueue(const launch_site& at, inputs_of inputs, outputs_of outputs) override {
    if (auto ok = chip_.copy(at, outputs[0], inputs[0], spec_.size_bytes()); !ok || count_ == 0)
      return ok;
    const auto column = [&](std::size_t i) {
      return as<std::uint32_t>(at.workspace + i * column_bytes());
    };
    auto *keys = column(0), *positions = column(1), *sorted_keys = column(2),
         *sorted_positions = column(3);
    auto ok = for_index(index_, [&]<class I>(I) {
      return elements(
          at,
          code::scatter_keys<I>{keys, positions, as<I>(inputs[1]), a_.n, {at.faults, at.op_number}},
          count_);
    });
    if (!ok) return ok;
    // n itself is the key of what is outside.
    const auto bits = std::bit_width(static_cast<std::uint64_t>(a_.n));
    ok = chip_.check_launch(at, code::sort_pairs(at.on, keys, sorted_keys, positions,
                                                 sorted_positions, count_, static_cast<int>(bits),
                                                 at.workspace + 4 * column_bytes(), sort_bytes_));
    if (!ok) return ok;
    return for_number(spec_.type, [&]<class T>(T) {
      return elements(at,
                      code::scatter_runs<T>{as<T>(outputs[0]), as<T>(inputs[2]), sorted_keys,
                                            sorted_positions, count_, a_.n, a_.inner},
                      a_.outer * count_ * a_.inner);
    });
  }

 private:
  std::size_t column_bytes() const noexcept {
    return workspace_aligned(static_cast<std::size_t>(count_) * sizeof(std::uint32_t));
  }

  std::int64_t axis_, count_ = 0;
  code::along a_;
  tensor_spec spec_;
  dtype index_ = dtype::i32;
  std::size_t sort_bytes_ = 0;
};

class one_hot final : public kernel_of_chip {
 public:
  one_hot(const attributes& attrs, chip_services& chip)
      : kernel_of_chip(chip), depth_(attrs.integer("depth")) {}
  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) override {
    if (auto ok = check_ports("one_hot", inputs, 1, outputs, 1); !ok) return ok;
    if (!is_index(inputs[0]) || depth_ < 1 || !is_number(outputs[0].type) ||
        outputs[0].shape.elements() != inputs[0].shape.elements() * depth_)
      return unfit("one_hot", "takes i32 or i64 indices", inputs);
    index_ = inputs[0].type;
    out_ = outputs[0];
    return {};
  }
  result<void> enqueue(const launch_site& at, inputs_of inputs, outputs_of outputs) override {
    return for_number(out_.type, [&]<class T>(T) {
      return for_index(index_, [&]<class I>(I) {
        return elements(at, code::one_hot<T, I>{as<T>(outputs[0]), as<I>(inputs[0]), depth_},
                        out_.shape.elements());
      });
    });
  }

 private:
  std::int64_t depth_;
  dtype index_ = dtype::i32;
  tensor_spec out_;
};

std::int64_t last_of(const shape& s) { return s.rank() == 0 ? 0 : s.size(s.rank() - 1); }

class take_last final : public kernel_of_chip {
 public:
  take_last(const attributes&, chip_services& chip) : kernel_of_chip(chip) {}
  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) override {
    if (auto ok = check_ports("take_last", inputs, 2, outputs, 1); !ok) return ok;
    if (!is_index(inputs[1]) || outputs[0] != tensor_spec{inputs[0].type, inputs[1].shape} ||
        inputs[0].shape.rank() != inputs[1].shape.rank() || inputs[0].shape.rank() == 0)
      return unfit("take_last", "takes rows and indices", inputs);
    bytes_ = size_of(inputs[0].type);
    index_ = inputs[1].type;
    elements_ = outputs[0].shape.elements();
    columns_ = last_of(outputs[0].shape);
    from_columns_ = last_of(inputs[0].shape);
    return {};
  }
  result<void> enqueue(const launch_site& at, inputs_of inputs, outputs_of outputs) override {
    return for_size(bytes_, [&]<class W>(W) {
      return for_index(index_, [&]<class I>(I) {
        return elements(at,
                        code::take_last<W, I>{as<W>(outputs[0]),
                                              as<W>(inputs[0]),
                                              as<I>(inputs[1]),
                                              columns_,
                                              from_columns_,
                                              {at.faults, at.op_number}},
                        elements_);
      });
    });
  }

 private:
  std::size_t bytes_ = 4;
  dtype index_ = dtype::i32;
  std::int64_t elements_ = 0, columns_ = 0, from_columns_ = 0;
};

class put_last final : public kernel_of_chip {
 public:
  put_last(const attributes&, chip_services& chip) : kernel_of_chip(chip) {}
  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) override {
    if (auto ok = check_ports("put_last", inputs, 3, outputs, 1); !ok) return ok;
    if (!is_index(inputs[1]) || !is_number(inputs[0].type) || outputs[0] != inputs[2] ||
        inputs[0].type != inputs[2].type || inputs[0].shape != inputs[1].shape ||
        inputs[0].shape.rank() != inputs[2].shape.rank() || inputs[0].shape.rank() == 0)
      return unfit("put_last", "takes rows, indices and the shape of the result", inputs);
    index_ = inputs[1].type;
    out_ = outputs[0];
    taken_ = last_of(inputs[0].shape);
    return {};
  }
  result<void> enqueue(const launch_site& at, inputs_of inputs, outputs_of outputs) override {
    return for_number(out_.type, [&]<class T>(T) {
      return for_index(index_, [&]<class I>(I) {
        return elements(at,
                        code::put_last<T, I>{as<T>(outputs[0]),
                                             as<T>(inputs[0]),
                                             as<I>(inputs[1]),
                                             last_of(out_.shape),
                                             taken_,
                                             {at.faults, at.op_number}},
                        out_.shape.elements());
      });
    });
  }

 private:
  dtype index_ = dtype::i32;
  tensor_spec out_;
  std::int64_t taken_ = 0;
};

}  // namespace

void add_indexing_kernels(cuda_kernel_table& table) {
  add_row<gather>(table, "gather");
  add_row<scatter_add>(table, "scatter_add");
  add_row<one_hot>(table, "one_hot");
  add_row<take_last>(table, "take_last");
  add_row<put_last>(table, "put_last");
}

}  // namespace troupe::cuda
