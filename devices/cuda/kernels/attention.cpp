// attention: y = softmax(scale q k^T) v for each head, and its gradient. As
// devices/host/ops/attention.cpp, whose operands these are; scores are a workspace here.
//
// Products of all heads of a sample are one call. cuDNN's fused attention takes f16 and bf16 alone,
// in which nothing computes yet.

#include "devices/cuda/code/rows.hpp"
#include "devices/cuda/kernels/families.hpp"

#include <algorithm>
#include <cmath>

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
        if (outputs[i] != in[i]) return unfit(op_, "a gradient is like what it is of", outputs);
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
      return unfit(op_, "a causal one has as many keys as queries", inputs);
    if (y.shape != shape{samples_, queries_, wide_v})
      return unfit(op_, "the result does not fit", inputs);
    of_query_ = wide_q / heads_, of_value_ = wide_v / heads_;
    scale_ = scale_of_attrs_ != 0 ? scale_of_attrs_ : 1 / std::sqrt(static_cast<double>(of_query_));
    stride_q_ = is_packed ? 3 * wide_q : wide_q, stride_v_ = is_packed ? 3 * wide_v : wide_v,
    stride_y_ = wide_v;
    zeroed_.assign(outputs.begin(), outputs.end());
    plans_bytes_ = 0;
    return is_empty() ? result<void>() : make_plans();
  }

  // Scores of all heads of all samples, twice for the gradient, and what products need.
  std::size_t workspace_bytes() const noexcept override {
    return is_empty() ? 0 : (is_gradient_ ? 2 : 1) * scores_bytes() + plans_bytes_;
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
  bool is_empty() const noexcept {
    return samples_ == 0 || queries_ == 0 || keys_ == 0 || of_value_ == 0;
  }
  std::size_t scores_bytes() const noexcept {
    return workspace_aligned(static_cast<std::size_t>(samples_ * heads_ * queries_ * keys_) *
                             size_of(type_));
  }

  result<void> make_plans() {
    const auto scores = queries_ * keys_;
    const product base{.type = type_, .mode = mode_, .batches = heads_};
    const auto with = [&](chip_services::plan_ref& to, auto set) -> result<void> {
      auto p = base;
      set(p);
      auto made = chip_.plan_product(p);
      if (!made) return std::move(made.error()).while_doing(op_);
      to = std::move(*made);
      plans_bytes_ = std::max(plans_bytes_, workspace_aligned(to->workspace_bytes));
      return {};
    };
    // scores = q k^T
    auto ok = with(scores_, [&](product& p) {
      p.m = queries_, p.n = keys_, p.k = of_query_, p.transpose_b = true;
      p.stride_a = p.stride_b = stride_q_, p.stride_c = keys_, p.step_a = p.step_b = of_query_,
      p.step_c = scores;
    });
    if (!ok) return ok;
    if (!is_gradient_)
      return with(mixed_, [&](product& p) {  // y = p v
        p.m = queries_, p.n = of_value_, p.k = keys_;
        p.stride_a = keys_, p.stride_b = stride_v_, p.stride_c = stride_y_, p.step_a = scores,
        p.step_b = p.step_c = of_value_;
      });
    ok = with(of_weights_, [&](product& p) {  // dp = dy v^T
      p.m = queries_, p.n = keys_, p.k = of_value_, p.transpose_b = true;
      p.stride_a = stride_y_, p.stride_b = stride_v_, p.stride_c = keys_,
      p.step_a = p.step_b = of_value_, p.step_c = scores;
    });
    if (!ok) return ok;
    ok = with(of_values_, [&](product& p) {  // dv = p^T dy
      p.m = keys_, p.n = of_value_, p.k = queries_, p.transpose_a = true;
      p.stride_a = keys_, p.stride_b = stride_y_, p.stride_c = stride_v_, p.step_a = scores,
      p.step_b = p.step_c = of_value_;
    });
    if (!ok) return ok;
    ok = with(of_queries_, [&](product& p) {  // dq = ds k
      p.m = queries_, p.n = of_query_, p.k = keys_;
      p.stride_a = keys_, p.stride_b = p.stride_c = stride_q_, p.step_a = scores,
      p.step_b = p.step_c = of_query_;
    });
    if (!ok) return ok;
    return with(of_keys_, [&](product& p) {  // dk = ds^T q
      p.m = keys_, p.n = of_query_, p.k = queries_, p.transpose_a = true;
      p.stride_a = keys_, p.stride_b = p.stride_c = stride_q_, p.step_a = scores,
      p.step_b = p.step_c = of_query_;
    });
  }

  // What a sample has of queries (0), keys (1) or values (2).
  template <class Pointers>
  auto part(Pointers of, std::size_t which, std::int64_t sample) const {
    const auto positions = which == 0 ? queries_ : keys_;
    const auto stride = which == 2 ? stride_v_ : stride_q_;
    const auto begin = sample * positions * stride +
                       (is_packed_ ? static_cast<std::int64_t>(which) * stride_q_ / 3 : 0);
    return of[is_packed_ ? 0 : which] + begin * static_cast<std::int64_t>(size_of(type_));
  }
  template <class Pointer>
  auto of_result(Pointer y, std::int64_t sample) const {
    return y + sample * queries_ * stride_y_ * static_cast<std::int64_t>(size_of(type_));
  }
  std::byte* scores_of(std::byte* all, std::int64_t sample) const {
    return all + sample * heads_ * queries_ * keys_ * static_cast<std::int64_t>(size_of(type_));
  }

  template <class T>
  result<void> weigh(const launch_site& at, inputs_of in, std::byte* p, std::byte* rest) {
    for (std::int64_t s = 0; s < samples_; ++s)
      if (auto ok = chip_.multiply(at, *scores_, part(in, 0, s), part(in, 1, s), nullptr,
                                   scores_of(p, s), rest);
          !ok)
        return ok;
    return teams(
        at,
        code::attention_weights<T>{as<T>(p), keys_, queries_, static_cast<T>(scale_), is_causal_},
        samples_ * heads_ * queries_, keys_);
  }

  template <class T>
  result<void> forward(const launch_site& at, inputs_of in, outputs_of out) {
    auto *p = at.workspace, *rest = p + scores_bytes();
    if (auto ok = weigh<T>(at, in, p, rest); !ok) return ok;
    for (std::int64_t s = 0; s < samples_; ++s)
      if (auto ok = chip_.multiply(at, *mixed_, scores_of(p, s), part(in, 2, s), nullptr,
                                   of_result(out[0], s), rest);
          !ok)
        return ok;
    return {};
  }

  template <class T>
  result<void> backward(const launch_site& at, inputs_of inputs, outputs_of out) {
    const auto in = inputs.subspan(1);
    auto *p = at.workspace, *dp = p + scores_bytes(), *rest = dp + scores_bytes();
    if (auto ok = weigh<T>(at, in, p, rest); !ok) return ok;
    for (std::int64_t s = 0; s < samples_; ++s) {
      const auto* dy = of_result(inputs[0], s);
      if (auto ok =
              chip_.multiply(at, *of_weights_, dy, part(in, 2, s), nullptr, scores_of(dp, s), rest);
          !ok)
        return ok;
      if (auto ok =
              chip_.multiply(at, *of_values_, scores_of(p, s), dy, nullptr, part(out, 2, s), rest);
          !ok)
        return ok;
    }
    if (auto ok = teams(
            at, code::attention_weights_grad<T>{as<T>(p), as<T>(dp), keys_, static_cast<T>(scale_)},
            samples_ * heads_ * queries_, keys_);
        !ok)
      return ok;
    for (std::int64_t s = 0; s < samples_; ++s) {
      if (auto ok = chip_.multiply(at, *of_queries_, scores_of(dp, s), part(in, 1, s), nullptr,
                                   part(out, 0, s), rest);
          !ok)
        return ok;
      if (auto ok = chip_.multiply(at, *of_keys_, scores_of(dp, s), part(in, 0, s), nullptr,
                                   part(out, 1, s), rest);
          !ok)
        return ok;
    }
    return {};
  }

  std::string_view op_;
  bool is_gradient_;
  std::int64_t heads_;
  bool is_causal_, is_packed_ = false;
  double scale_of_attrs_, scale_ = 1;
  product_mode mode_;
  dtype type_ = dtype::f32;
  std::int64_t samples_ = 0, queries_ = 0, keys_ = 0, of_query_ = 0, of_value_ = 0;
  std::int64_t stride_q_ = 0, stride_v_ = 0, stride_y_ = 0;  // from a position to the next
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
