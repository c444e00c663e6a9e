// Reductions over any axes, the place of the largest, sums along an axis, the k largest.

#include "troupe/devices/cuda/code/rows.hpp"
#include "troupe/devices/cuda/kernels/families.hpp"

#include <algorithm>
#include <vector>

namespace troupe::cuda {
namespace {

template <class Op, class T>
class reduction_of_type final : public kernel_of_chip {
 public:
  reduction_of_type(const code::reduction& r, chip_services& chip) : kernel_of_chip(chip), r_(r) {
    // Results that lie side by side take a thread each, which then reads along with its neighbours;
    // else a team for each, and where there are fewer of these than the chip has room for, several
    // teams, of at least `part_least` elements.
    constexpr std::int64_t part_least = 8192, teams_wanted_each = 4;
    const bool is_side_by_side = r_.kept > 0 && r_.kept_step[0] == 1;
    const auto wanted = teams_wanted_each * chip.multiprocessors();
    is_by_columns_ = is_side_by_side && (r_.results >= 64 * wanted || r_.count <= 64);
    if (is_by_columns_ || r_.results == 0) return;
    parts_ = std::clamp<std::int64_t>(wanted / r_.results, 1,
                                      std::max<std::int64_t>(1, r_.count / part_least));
  }

  result<void> prepare(std::span<const tensor_spec>, std::span<const tensor_spec>) override {
    return {};
  }
  std::size_t workspace_bytes() const noexcept override {
    return parts_ == 1 ? 0
                       : static_cast<std::size_t>(r_.results * parts_) * sizeof(code::wide<Op, T>);
  }
  result<void> enqueue(const launch_site& at, inputs_of inputs, outputs_of outputs) override {
    const auto* x = as<T>(inputs[0]);
    auto* out = as<T>(outputs[0]);
    if (is_by_columns_) return elements(at, code::reduce_columns<Op, T>{x, out, r_}, r_.results);
    auto* partial = as<code::wide<Op, T>>(at.workspace);
    if (auto ok = teams(at, code::reduce_parts<Op, T>{x, out, partial, r_, parts_},
                        r_.results * parts_, (r_.count + parts_ - 1) / parts_);
        !ok)
      return ok;
    return parts_ == 1 ? result<void>()
                       : elements(at, code::reduce_join<Op, T>{partial, out, parts_}, r_.results);
  }

 private:
  code::reduction r_;
  bool is_by_columns_ = false;
  std::int64_t parts_ = 1;
};

template <class Op, bool Logic>
class reduction final : public kernel_of_chip {
 public:
  reduction(std::string_view op, const attributes& attrs, chip_services& chip)
      : kernel_of_chip(chip), op_(op), attrs_(attrs) {}

  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) override {
    if (auto ok = check_ports(op_, inputs, 1, outputs, 1); !ok) return ok;
    const auto type = inputs[0].type;
    const auto r = reduction_over(inputs[0].shape, attrs_);
    if (outputs[0].type != type || outputs[0].shape.elements() != r.results ||
        (Logic ? type != dtype::boolean : !is_number(type)))
      return unfit(op_, "operand, axes and result do not fit", inputs);
    if constexpr (Logic) {
      each_ = std::make_unique<reduction_of_type<Op, std::uint8_t>>(r, chip_);
      return {};
    } else {
      return for_number(type, [&]<class T>(T) {
        each_ = std::make_unique<reduction_of_type<Op, T>>(r, chip_);
        return result<void>();
      });
    }
  }
  std::size_t workspace_bytes() const noexcept override { return each_->workspace_bytes(); }
  result<void> enqueue(const launch_site& at, inputs_of inputs, outputs_of outputs) override {
    return each_->enqueue(at, inputs, outputs);
  }

 private:
  std::string_view op_;
  attributes attrs_;
  std::unique_ptr<cuda_kernel> each_;
};

template <bool Largest>
class place_of_best final : public kernel_of_chip {
 public:
  place_of_best(std::string_view op, const attributes& attrs, chip_services& chip)
      : kernel_of_chip(chip), op_(op), axis_(attrs.integer("axis", -1)) {}

  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) override {
    if (auto ok = check_ports(op_, inputs, 1, outputs, 1); !ok) return ok;
    const auto a = along_axis(inputs[0].shape, axis_);
    if (!a || !is_number(inputs[0].type) || outputs[0].type != dtype::i32 ||
        outputs[0].shape.elements() != a->rows() || (a->n == 0 && a->rows() > 0))
      return unfit(op_, "gives i32 indices of at least one element", inputs);
    a_ = *a;
    type_ = inputs[0].type;
    return {};
  }
  result<void> enqueue(const launch_site& at, inputs_of inputs, outputs_of outputs) override {
    return for_number(type_, [&]<class T>(T) {
      return teams(at, code::arg_of<Largest, T>{as<T>(inputs[0]), as<std::int32_t>(outputs[0]), a_},
                   a_.rows(), a_.n);
    });
  }

 private:
  std::string_view op_;
  std::int64_t axis_;
  code::along a_;
  dtype type_ = dtype::f32;
};

class count_correct final : public kernel_of_chip {
 public:
  count_correct(const attributes&, chip_services& chip) : kernel_of_chip(chip) {}
  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) override {
    if (auto ok = check_ports("count_correct", inputs, 2, outputs, 1); !ok) return ok;
    const auto& x = inputs[0];
    if (!is_float(x.type) || x.shape.rank() != 2 || x.shape.size(1) == 0 ||
        inputs[1] != tensor_spec{dtype::i32, {x.shape.size(0)}} ||
        outputs[0] != tensor_spec{dtype::i64, {}})
      return unfit("count_correct", "takes f32 or f64 logits of rank 2 and one i32 label per row",
                   inputs);
    type_ = x.type;
    rows_ = x.shape.size(0);
    classes_ = x.shape.size(1);
    return {};
  }
  std::size_t workspace_bytes() const noexcept override {
    return static_cast<std::size_t>(rows_) * sizeof(std::int64_t);
  }
  result<void> enqueue(const launch_site& at, inputs_of inputs, outputs_of outputs) override {
    auto* each = as<std::int64_t>(at.workspace);
    auto ok = for_float(type_, [&]<class T>(T) {
      return teams(
          at, code::is_correct<T>{as<T>(inputs[0]), as<std::int32_t>(inputs[1]), each, classes_},
          rows_, classes_);
    });
    if (!ok) return ok;
    return teams(at,
                 code::scaled_sum<std::int64_t, std::int64_t>{each, nullptr,
                                                              as<std::int64_t>(outputs[0]), rows_},
                 1, rows_);
  }

 private:
  dtype type_ = dtype::f32;
  std::int64_t rows_ = 0, classes_ = 0;
};

class cumulative_sum final : public kernel_of_chip {
 public:
  cumulative_sum(const attributes& attrs, chip_services& chip)
      : kernel_of_chip(chip),
        axis_(attrs.integer("axis")),
        is_exclusive_(attrs.integer("exclusive") != 0),
        is_reverse_(attrs.integer("reverse") != 0) {}
  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) override {
    if (auto ok = check_ports("cumulative_sum", inputs, 1, outputs, 1); !ok) return ok;
    const auto a = along_axis(inputs[0].shape, axis_);
    if (!a || outputs[0] != inputs[0] || !is_number(inputs[0].type))
      return unfit("cumulative_sum", "the result has the type and shape of its operand", inputs);
    a_ = *a;
    type_ = inputs[0].type;
    return {};
  }
  result<void> enqueue(const launch_site& at, inputs_of inputs, outputs_of outputs) override {
    return for_number(type_, [&]<class T>(T) {
      return teams(at,
                   code::cumulative_sum<T>{as<T>(inputs[0]), as<T>(outputs[0]), a_, is_exclusive_,
                                           is_reverse_},
                   a_.rows(), a_.n);
    });
  }

 private:
  std::int64_t axis_;
  bool is_exclusive_, is_reverse_;
  code::along a_;
  dtype type_ = dtype::f32;
};

class top_k final : public kernel_of_chip {
 public:
  top_k(const attributes& attrs, chip_services& chip)
      : kernel_of_chip(chip), k_(attrs.integer("k")) {}
  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) override {
    if (auto ok = check_ports("top_k", inputs, 1, outputs, 2); !ok) return ok;
    const auto& x = inputs[0].shape;
    const auto a = along_axis(x, -1);
    if (!a || !is_number(inputs[0].type) || k_ < 0 || k_ > a->n ||
        outputs[0].type != inputs[0].type || outputs[1].type != dtype::i32 ||
        outputs[1].shape != outputs[0].shape ||
        (a->n > 0 && outputs[0].shape.elements() != a->outer * k_))
      return unfit("top_k", fmt::format("k is {}", k_), inputs);
    a_ = *a;
    type_ = inputs[0].type;
    return {};
  }
  result<void> enqueue(const launch_site& at, inputs_of inputs, outputs_of outputs) override {
    return for_number(type_, [&]<class T>(T) {
      return teams(at,
                   code::top_k<T>{as<T>(inputs[0]), as<T>(outputs[0]), as<std::int32_t>(outputs[1]),
                                  a_.n, k_},
                   k_ == 0 ? 0 : a_.outer, a_.n);
    });
  }

 private:
  std::int64_t k_;
  code::along a_;
  dtype type_ = dtype::f32;
};

}  // namespace

code::reduction reduction_over(const shape& x, const attributes& attrs) {
  const auto rank = x.rank();
  const auto axes = attrs.integers("axes");
  std::vector<bool> is_reduced(rank, axes.empty());
  for (const auto a : axes) {
    const auto i = a < 0 ? a + static_cast<std::int64_t>(rank) : a;
    if (i >= 0 && i < static_cast<std::int64_t>(rank))
      is_reduced[static_cast<std::size_t>(i)] = true;
  }
  code::reduction r;
  std::int64_t step = 1;
  for (auto i = rank; i-- > 0; step *= x.size(i)) {
    const auto n = x.size(i);
    (is_reduced[i] ? r.count : r.results) *= n;
    if (n == 1) continue;
    auto& loops = is_reduced[i] ? r.reduced : r.kept;
    auto* sizes = is_reduced[i] ? r.reduced_size : r.kept_size;
    auto* steps = is_reduced[i] ? r.reduced_step : r.kept_step;
    if (loops > 0 && steps[loops - 1] * sizes[loops - 1] == step) {
      sizes[loops - 1] *= n;
    } else {
      sizes[loops] = n;
      steps[loops] = step;
      ++loops;
    }
  }
  return r;
}

void add_reduction_kernels(cuda_kernel_table& table) {
  add_row<reduction<code::sum_of, false>>(table, "reduce_sum", "reduce_sum");
  add_row<reduction<code::product_of, false>>(table, "reduce_prod", "reduce_prod");
  add_row<reduction<code::max_of, false>>(table, "reduce_max", "reduce_max");
  add_row<reduction<code::min_of, false>>(table, "reduce_min", "reduce_min");
  add_row<reduction<code::any_of, true>>(table, "reduce_any", "reduce_any");
  add_row<reduction<code::all_of, true>>(table, "reduce_all", "reduce_all");
  add_row<place_of_best<true>>(table, "argmax", "argmax");
  add_row<place_of_best<false>>(table, "argmin", "argmin");
  add_row<count_correct>(table, "count_correct");
  add_row<cumulative_sum>(table, "cumulative_sum");
  add_row<top_k>(table, "top_k");
}

}  // namespace troupe::cuda
