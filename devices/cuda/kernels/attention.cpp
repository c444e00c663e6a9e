// attention: y = softmax(scale q k^T) v for each head, and its gradient. As
// devices/host/ops/attention.cpp, whose operands these are; scores are a workspace here.
//
// A product of all heads of all samples is one call, which has one step from each to the next. So
// where there are several of both, operands are put side by side first, [samples, heads, positions,
// features]: a call for each sample would be some hundred launches for a small model's step.
// cuDNN's fused attention takes f16 and bf16 alone, in which attention does not compute here.

#include "troupe/devices/cuda/code/rows.hpp"
#include "troupe/devices/cuda/kernels/families.hpp"

#include <algorithm>
#include <cmath>
#include <type_traits>

namespace troupe::cuda {
namespace {

class attention final : public kernel_of_chip {
 public:
  attention(std::string_view op, bool is_gradient, const attributes& attrs, chip_services& chip)
      : kernel_of_chip(chip),
        op_(op),
        is_gradient_(is_gradient),
        heads_(attrs.integer("heads", 1)),
        is_causal_(attrs.integer("causal") != 0),
        scale_of_attrs_(attrs.real("scale")) {
    mode_ = attrs.integer("tf32") != 0 ? product_mode::tf32 : product_mode::exact;
  }

  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) override {
    const auto before = static_cast<std::size_t>(is_gradient_ ? 1 : 0);
    const bool is_packed = inputs.size() == before + 1;
    if (auto ok = check_ports(op_, inputs, before + (is_packed ? 1 : 3), outputs,
                              is_gradient_ && !is_packed ? 3 : 1);
        !ok)
      return ok;
    const auto in = inputs.subspan(before);
    const auto& y = is_gradient_ ? inputs[0] : outputs[0];
    for (const auto& s : inputs)
      if (!is_float(s.type) || s.type != y.type || s.shape.rank() != 3)
        return unfit(op_, "operands are all f32 or all f64, of rank 3", inputs);
    if (is_gradient_)
      for (std::size_t i = 0; i < outputs.size(); ++i)
        if (outputs[i] != in[i])
          return unfit(op_, "a gradient has the type and shape of its operand", outputs);
    is_packed_ = is_packed;
    type_ = y.type;
    const auto& q = in[0].shape;
    samples_ = q.size(0), queries_ = q.size(1), keys_ = is_packed ? queries_ : in[1].shape.size(1);
    const auto wide_q = is_packed ? q.size(2) / 3 : q.size(2),
               wide_v = is_packed ? wide_q : in[2].shape.size(2);
    if (heads_ < 1 || wide_q % heads_ != 0 || wide_v % heads_ != 0 || wide_q < heads_ ||
        (is_packed && q.size(2) % 3 != 0))
      return unfit(op_, fmt::format("features do not fit {} heads", heads_), inputs);
    if (!is_packed && (in[1].shape.size(0) != samples_ || in[2].shape.size(0) != samples_ ||
                       in[2].shape.size(1) != keys_ || in[1].shape.size(2) != wide_q))
      return unfit(op_, "keys and values do not fit queries", inputs);
    if (is_causal_ && queries_ != keys_)
      return unfit(op_, "causal attention needs as many keys as queries", inputs);
    if (y.shape != shape{samples_, queries_, wide_v})
      return unfit(op_, "the result does not match the operands", inputs);
    of_query_ = wide_q / heads_, of_value_ = wide_v / heads_;
    scale_ = scale_of_attrs_ != 0 ? scale_of_attrs_ : 1 / std::sqrt(static_cast<double>(of_query_));
    stride_q_ = is_packed ? 3 * wide_q : wide_q, stride_v_ = is_packed ? 3 * wide_v : wide_v;
    is_gathered_ = samples_ > 1 && heads_ > 1;
    const auto laid = [&](std::int64_t positions, std::int64_t features,
                          std::int64_t stride) -> layout {
      if (is_gathered_) return {features, positions * features};
      return {stride, samples_ > 1 ? positions * stride : features};
    };
    q_ = laid(queries_, of_query_, stride_q_), k_ = laid(keys_, of_query_, stride_q_);
    v_ = laid(keys_, of_value_, stride_v_), y_ = laid(queries_, of_value_, wide_v);
    zeroed_.assign(outputs.begin(), outputs.end());
    plans_bytes_ = 0;
    return is_empty() ? result<void>() : make_plans();
  }

  // Scores of all heads of all samples, twice for the gradient, operands that are put side by side,
  // and what products need.
  std::size_t workspace_bytes() const noexcept override {
    if (is_empty()) return 0;
    const std::size_t times = is_gradient_ ? 2 : 1;
    return times * scores_bytes() + plans_bytes_ +
           (is_gathered_ ? times * operands_bytes() + result_bytes() : 0);
  }

  result<void> enqueue(const launch_site& at, inputs_of inputs, outputs_of outputs) override {
    if (is_empty()) {
      for (std::size_t i = 0; i < outputs.size(); ++i)
        if (auto ok = chip_.fill_zero(at, outputs[i], zeroed_[i].size_bytes()); !ok) return ok;
      return {};
    }
    return for_float(type_, [&]<class T>(T) {
      return is_gradient_ ? backward<T>(at, inputs, outputs) : forward<T>(at, inputs, outputs);
    });
  }

 private:
  // From a position to the next, and from a head, or a sample, to the next.
  struct layout {
    std::int64_t stride = 0, step = 0;
  };
  template <class Pointer>
  struct operands {
    Pointer q, k, v;
  };

  bool is_empty() const noexcept {
    return samples_ == 0 || queries_ == 0 || keys_ == 0 || of_value_ == 0;
  }
  std::size_t bytes_of(std::int64_t elements) const noexcept {
    return workspace_aligned(static_cast<std::size_t>(elements) * size_of(type_));
  }
  std::size_t scores_bytes() const noexcept {
    return bytes_of(samples_ * heads_ * queries_ * keys_);
  }
  std::size_t queries_bytes() const noexcept {
    return bytes_of(samples_ * heads_ * queries_ * of_query_);
  }
  std::size_t keys_bytes() const noexcept {
    return bytes_of(samples_ * heads_ * keys_ * of_query_);
  }
  std::size_t values_bytes() const noexcept {
    return bytes_of(samples_ * heads_ * keys_ * of_value_);
  }
  std::size_t result_bytes() const noexcept {
    return bytes_of(samples_ * heads_ * queries_ * of_value_);
  }
  std::size_t operands_bytes() const noexcept {
    return queries_bytes() + keys_bytes() + values_bytes();
  }

  result<void> make_plans() {
    const layout scores{keys_, queries_ * keys_};
    const auto with = [&](chip_services::plan_ref& to, std::int64_t m, std::int64_t n,
                          std::int64_t k, layout a, layout b, layout c, bool transpose_a,
                          bool transpose_b) -> result<void> {
      auto made = chip_.plan_product({.type = type_,
                                      .mode = mode_,
                                      .m = m,
                                      .n = n,
                                      .k = k,
                                      .transpose_a = transpose_a,
                                      .transpose_b = transpose_b,
                                      .stride_a = a.stride,
                                      .stride_b = b.stride,
                                      .stride_c = c.stride,
                                      .batches = samples_ * heads_,
                                      .step_a = a.step,
                                      .step_b = b.step,
                                      .step_c = c.step});
      if (!made) return std::move(made.error()).while_doing(op_);
      to = std::move(*made);
      plans_bytes_ = std::max(plans_bytes_, workspace_aligned(to->workspace_bytes));
      return {};
    };
    // scores = q k^T
    if (auto ok = with(scores_, queries_, keys_, of_query_, q_, k_, scores, false, true); !ok)
      return ok;
    if (!is_gradient_)  // y = p v
      return with(mixed_, queries_, of_value_, keys_, scores, v_, y_, false, false);
    // dp = dy v^T
    if (auto ok = with(of_weights_, queries_, keys_, of_value_, y_, v_, scores, false, true); !ok)
      return ok;
    // dv = p^T dy
    if (auto ok = with(of_values_, keys_, of_value_, queries_, scores, y_, v_, true, false); !ok)
      return ok;
    // dq = ds k
    if (auto ok = with(of_queries_, queries_, of_query_, keys_, scores, k_, q_, false, false); !ok)
      return ok;
    // dk = ds^T q
    return with(of_keys_, keys_, of_query_, queries_, scores, q_, k_, true, false);
  }

  // Where queries, keys and values, or their gradients, lie in one tensor or in three.
  template <class Pointers>
  auto given(Pointers of) const {
    const auto next = static_cast<std::int64_t>(size_of(type_)) * stride_q_ / 3;
    using pointer = std::decay_t<decltype(of[0])>;
    return is_packed_ ? operands<pointer>{of[0], of[0] + next, of[0] + 2 * next}
                      : operands<pointer>{of[0], of[1], of[2]};
  }
  operands<std::byte*> side_by_side(std::byte* at) const {
    return {at, at + queries_bytes(), at + queries_bytes() + keys_bytes()};
  }
  // Between tensors [samples, positions, features of all heads], of this stride, and [samples,
  // heads, positions, features]; `count` of both, `apart` and `together` elements from one to the
  // next.
  struct moved {
    std::int64_t positions, features, stride, count = 1, apart = 0, together = 0;
  };
  template <class T>
  result<void> move(const launch_site& at, const std::byte* from, std::byte* to, const moved& m,
                    bool is_back) {
    using bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
    code::box b;
    const auto loop = [&](std::int64_t size, std::int64_t apart, std::int64_t together) {
      b.size[b.loops] = size;
      b.a_step[b.loops] = is_back ? apart : together;
      b.b_step[b.loops] = is_back ? together : apart;
      ++b.loops;
      b.elements *= size;
    };
    loop(m.features, 1, 1);
    loop(m.positions, m.stride, m.features);
    loop(heads_, m.features, m.positions * m.features);
    loop(samples_, m.positions * m.stride, heads_ * m.positions * m.features);
    if (m.count > 1) loop(m.count, m.apart, m.together);
    return elements(at, code::copy_box<bits>{as<bits>(to), as<bits>(from), b}, b.elements);
  }
  template <class T>
  result<void> move_operands(const launch_site& at, const operands<const std::byte*>& from,
                             const operands<std::byte*>& to, bool is_back) {
    if (is_packed_)
      return move<T>(at, from.q, to.q,
                     {queries_, of_query_, stride_q_, 3, stride_q_ / 3,
                      static_cast<std::int64_t>(queries_bytes() / sizeof(T))},
                     is_back);
    if (auto ok = move<T>(at, from.q, to.q, {queries_, of_query_, stride_q_}, is_back); !ok)
      return ok;
    if (auto ok = move<T>(at, from.k, to.k, {keys_, of_query_, stride_q_}, is_back); !ok) return ok;
    return move<T>(at, from.v, to.v, {keys_, of_value_, stride_v_}, is_back);
  }
  std::int64_t stride_y() const noexcept { return heads_ * of_value_; }

  template <class T>
  result<void> weigh(const launch_site& at, const operands<const std::byte*>& in, std::byte* p,
                     std::byte* rest) {
    if (auto ok = chip_.multiply(at, *scores_, in.q, in.k, nullptr, p, rest); !ok) return ok;
    return teams(
        at,
        code::attention_weights<T>{as<T>(p), keys_, queries_, static_cast<T>(scale_), is_causal_},
        samples_ * heads_ * queries_, keys_);
  }

  template <class T>
  result<void> forward(const launch_site& at, inputs_of inputs, outputs_of out) {
    auto *p = at.workspace, *rest = p + scores_bytes(), *y = out[0];
    auto in = given(inputs);
    if (is_gathered_) {
      const auto together = side_by_side(rest);
      if (auto ok = move_operands<T>(at, in, together, false); !ok) return ok;
      in = {together.q, together.k, together.v};
      y = rest + operands_bytes();
      rest = y + result_bytes();
    }
    if (auto ok = weigh<T>(at, in, p, rest); !ok) return ok;
    if (auto ok = chip_.multiply(at, *mixed_, p, in.v, nullptr, y, rest); !ok) return ok;
    return is_gathered_ ? move<T>(at, y, out[0], {queries_, of_value_, stride_y()}, true)
                        : result<void>();
  }

  template <class T>
  result<void> backward(const launch_site& at, inputs_of inputs, outputs_of out) {
    auto *p = at.workspace, *dp = p + scores_bytes(), *rest = dp + scores_bytes();
    const auto* dy = inputs[0];
    auto in = given(inputs.subspan(1));
    const auto results = given(out);
    auto made = results;
    if (is_gathered_) {
      const auto together = side_by_side(rest);
      if (auto ok = move_operands<T>(at, in, together, false); !ok) return ok;
      in = {together.q, together.k, together.v};
      made = side_by_side(rest + operands_bytes());
      auto* gathered = rest + 2 * operands_bytes();
      if (auto ok = move<T>(at, dy, gathered, {queries_, of_value_, stride_y()}, false); !ok)
        return ok;
      dy = gathered;
      rest = gathered + result_bytes();
    }
    if (auto ok = weigh<T>(at, in, p, rest); !ok) return ok;
    if (auto ok = chip_.multiply(at, *of_weights_, dy, in.v, nullptr, dp, rest); !ok) return ok;
    if (auto ok = chip_.multiply(at, *of_values_, p, dy, nullptr, made.v, rest); !ok) return ok;
    if (auto ok = teams(
            at, code::attention_weights_grad<T>{as<T>(p), as<T>(dp), keys_, static_cast<T>(scale_)},
            samples_ * heads_ * queries_, keys_);
        !ok)
      return ok;
    if (auto ok = chip_.multiply(at, *of_queries_, dp, in.k, nullptr, made.q, rest); !ok) return ok;
    if (auto ok = chip_.multiply(at, *of_keys_, dp, in.q, nullptr, made.k, rest); !ok) return ok;
    return is_gathered_ ? move_operands<T>(at, {made.q, made.k, made.v}, results, true)
                        : result<void>();
  }

  std::string_view op_;
  bool is_gradient_;
  std::int64_t heads_;
  bool is_causal_, is_packed_ = false;
  bool is_gathered_ = false;  // operands are put side by side
  double scale_of_attrs_, scale_ = 1;
  product_mode mode_;
  dtype type_ = dtype::f32;
  std::int64_t samples_ = 0, queries_ = 0, keys_ = 0, of_query_ = 0, of_value_ = 0;
  std::int64_t stride_q_ = 0, stride_v_ = 0;  // of operands, from a position to the next
  layout q_, k_, v_, y_;                      // as products see them
  std::vector<tensor_spec> zeroed_;
  chip_services::plan_ref scores_, mixed_, of_weights_, of_values_, of_queries_, of_keys_;
  std::size_t plans_bytes_ = 0;
};

}  // namespace

void add_attention_kernels(cuda_kernel_table& table) {
  add_row<attention>(table, "attention", "attention", false);
  add_row<attention>(table, "attention_grad", "attention_grad", true);
}

}  // namespace troupe::cuda
