// attention: y = softmax(scale q k^T) v for each head, and its gradient, some queries at a time:
// their scores stay in the cache and are never a tensor. The gradient makes them again.
//
// Queries are taken in blocks of a size that follows from shapes; those of a causal one meet only
// the keys up to the last of the block. Every element is computed alike wherever its head or sample
// stands. Gradients of keys and values are added up over blocks, from the last to the first.

#include "troupe/devices/host/host_device.hpp"
#include "troupe/devices/host/host_kernels.hpp"
#include "troupe/devices/host/loops/gemm.hpp"
#include "troupe/devices/host/loops/largest.hpp"
#include "troupe/devices/host/loops/vector_math.hpp"
#include "troupe/devices/host/widened_kernel.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string_view>
#include <vector>

namespace troupe::host {
namespace {

constexpr std::int64_t lanes = 16;  // rows of scores are filled up to whole multiples

constexpr std::int64_t filled_up(std::int64_t n) noexcept {
  return (n + lanes - 1) / lanes * lanes;
}

float power_of_e(float x) noexcept { return vector_math::exp(x); }
double power_of_e(double x) noexcept { return std::exp(x); }

// The sum of term(0), .., term(n - 1), n a multiple of `lanes`.
template <class T, class Term>
T sum_in_lanes(std::int64_t n, Term term) noexcept {
  std::array<T, lanes> parts{};
  for (std::int64_t i = 0; i < n; i += lanes)
    for (std::int64_t k = 0; k < lanes; ++k) parts[static_cast<std::size_t>(k)] += term(i + k);
  for (std::size_t half = lanes / 2; half > 0; half /= 2)
    for (std::size_t k = 0; k < half; ++k) parts[k] += parts[k + half];
  return parts[0];
}

// Of a head: where its part of an operand begins, and from a position to the next.
template <class T>
struct head_rows {
  T* at = nullptr;
  std::int64_t stride = 0;

  T* row(std::int64_t i) const noexcept { return at + i * stride; }
};

class attention_base : public kernel {
 public:
  attention_base(std::string_view op, const attributes& attrs, host_device& device)
      : op_(op),
        team_(device.team()),
        heads_(attrs.integer("heads", 1)),
        is_causal_(attrs.integer("causal") != 0),
        scale_(attrs.real("scale")) {}

 protected:
  // `in`: queries, keys and values, or one that has them side by side; `y`: like the result;
  // `panels`: of scores that a thread needs.
  result<void> find(std::span<const tensor_spec> in, const tensor_spec& y, std::size_t panels) {
    is_packed_ = in.size() == 1;
    if (in.size() != 1 && in.size() != 3) return unfit(op_, "takes one operand or three", in);
    for (const auto& s : in)
      if ((s.type != dtype::f32 && s.type != dtype::f64) || s.type != y.type || s.shape.rank() != 3)
        return unfit(op_, "operands are all f32 or all f64, of rank 3", in);
    if (y.shape.rank() != 3) return unfit(op_, "the result has rank 3", in);
    const auto& q = in.front().shape;
    samples_ = q.size(0), queries_ = q.size(1);
    keys_ = is_packed_ ? queries_ : in[1].shape.size(1);
    const auto wide_q = is_packed_ ? q.size(2) / 3 : q.size(2),
               wide_v = is_packed_ ? wide_q : in[2].shape.size(2);
    if (heads_ < 1 || wide_q % heads_ != 0 || wide_v % heads_ != 0 ||
        (is_packed_ && q.size(2) % 3 != 0))
      return unfit(op_, fmt::format("features do not fit {} heads", heads_), in);
    if (!is_packed_ && (in[1].shape.size(0) != samples_ || in[2].shape.size(0) != samples_ ||
                        in[2].shape.size(1) != keys_ || in[1].shape.size(2) != wide_q))
      return unfit(op_, "keys and values do not fit queries", in);
    if (is_causal_ && queries_ != keys_)
      return unfit(op_, "causal attention needs as many keys as queries", in);
    if (y.shape.size(0) != samples_ || y.shape.size(1) != queries_ || y.shape.size(2) != wide_v)
      return unfit(op_, "the result does not match the operands", in);
    of_query_ = wide_q / heads_, of_value_ = wide_v / heads_;
    if (of_query_ < 1) return unfit(op_, "a head has at least one feature", in);
    if (scale_ == 0) scale_ = 1 / std::sqrt(static_cast<double>(of_query_));
    if (keys_ > std::numeric_limits<std::int32_t>::max())
      return unfit(op_, "has 2^31 keys or more", in);
    stride_ = filled_up(keys_);
    // 64 are 2 to 6 % faster up to 512 positions, 128 by as much from 1,024 on; fewer where their
    // scores would leave the cache.
    constexpr std::int64_t scores_max = 1 << 20, rows_least = 16;
    const auto rows =
        std::min(queries_ > 512 ? block_rows_max : block_rows_max / 2,
                 std::max(rows_least, scores_max / std::max<std::int64_t>(stride_, 1)));
    block_rows_ = std::clamp<std::int64_t>(queries_, 1, rows);
    const bool is_empty = samples_ == 0 || queries_ == 0 || keys_ == 0;
    scratch_.resize(team_.threads());
    for (auto& s : scratch_) {
      if (y.type == dtype::f64 && !is_empty)
        s.gemm.reserve(std::max({keys_, block_rows_, of_query_, of_value_}));
      s.bytes =
          is_empty
              ? nullptr
              : std::make_unique_for_overwrite<std::byte[]>(
                    panels * static_cast<std::size_t>(block_rows_ * stride_) * size_of(y.type));
    }
    return {};
  }

  static constexpr std::int64_t block_rows_max = 128;
  std::int64_t blocks() const noexcept { return (queries_ + block_rows_ - 1) / block_rows_; }
  struct block {
    std::int64_t first, rows, keys;
  };
  block block_at(std::int64_t i) const noexcept {
    const auto first = i * block_rows_, rows = std::min(block_rows_, queries_ - first);
    return {first, rows, is_causal_ ? first + rows : keys_};
  }
  // Keys that a query meets.
  std::int64_t met_by(std::int64_t query) const noexcept { return is_causal_ ? query + 1 : keys_; }

  struct scratch {
    gemm_scratch gemm;
    std::unique_ptr<std::byte[]> bytes;  // which a thread that never comes does not touch
  };
  template <class T>
  T* panel_of(scratch& s, std::size_t which) const noexcept {
    return reinterpret_cast<T*>(s.bytes.get()) +
           which * static_cast<std::size_t>(block_rows_ * stride_);
  }

  // What a head of a sample has of an operand, or of its gradient: which is one of q, k, v.
  template <class T, class Tensors>
  head_rows<T> part_of(Tensors&& of, std::size_t which, std::int64_t sample,
                       std::int64_t head) const {
    const auto each = which == 2 ? of_value_ : of_query_, positions = which == 0 ? queries_ : keys_;
    const auto wide = each * heads_, row = is_packed_ ? 3 * wide : wide;
    return {of(is_packed_ ? 0 : which) + sample * positions * row +
                (is_packed_ ? static_cast<std::int64_t>(which) * wide : 0) + head * each,
            row};
  }
  template <class T>
  head_rows<T> of_result(T* y, std::int64_t sample, std::int64_t head) const noexcept {
    const auto row = of_value_ * heads_;
    return {y + sample * queries_ * row + head * of_value_, row};
  }

  // p = e^(scale q k^T - the largest of the row), 0 for keys that a query does not meet and up to
  // whole multiples; sums of the rows.
  template <class T>
  result<void> weigh(const block& b, const head_rows<const T>& q, const head_rows<const T>& k, T* p,
                     std::array<T, block_rows_max>& sums, scratch& s) const {
    const gemm_shape scores{.m = b.rows,
                            .n = b.keys,
                            .k = of_query_,
                            .transpose_b = true,
                            .strides = {q.stride, k.stride, stride_}};
    if (auto ok = gemm(scores, q.row(b.first), k.at, p, false, s.gemm); !ok) return ok;
    const auto scale = static_cast<T>(scale_);
    const auto end = filled_up(b.keys);
    for (std::int64_t r = 0; r < b.rows; ++r) {
      auto* row = p + r * stride_;
      const auto met = met_by(b.first + r), wide = filled_up(met);
      for (std::int64_t i = 0; i < met; ++i) row[i] *= scale;
      const auto largest = largest_of(row, met);
      std::fill(row + met, row + wide, -std::numeric_limits<T>::infinity());
      for (std::int64_t i = 0; i < wide; ++i) row[i] = power_of_e(row[i] - largest);
      std::fill(row + wide, row + end, T{});
      sums[static_cast<std::size_t>(r)] =
          sum_in_lanes<T>(wide, [row](std::int64_t i) { return row[i]; });
    }
    return {};
  }

  std::string_view op_;
  tile_team& team_;
  std::int64_t heads_;
  bool is_causal_, is_packed_ = false;
  double scale_;
  std::int64_t samples_ = 0, queries_ = 0, keys_ = 0, of_query_ = 0, of_value_ = 0;
  std::int64_t block_rows_ = block_rows_max;
  std::int64_t stride_ = 0;       // of a row of scores
  std::vector<scratch> scratch_;  // by worker
  tile_cut cut_;
};

class attention final : public attention_base {
 public:
  attention(const attributes& attrs, host_device& device)
      : attention_base("attention", attrs, device) {}

  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) override {
    if (auto ok = check_ports(op_, inputs, inputs.size() == 1 ? 1 : 3, outputs, 1); !ok) return ok;
    if (auto ok = find(inputs, outputs[0], 1); !ok) return ok;
    const auto rows = std::min(block_rows_, queries_);
    const auto each =
        gemm_ns({.m = rows, .n = keys_, .k = of_query_ + of_value_}, size_of(outputs[0].type)) +
        static_cast<double>(rows * keys_);
    cut_ = tile_cut::by_cost(samples_ * heads_ * blocks(), each, tile_least_ns);
    return {};
  }

  result<void> run(const tag&, std::span<const tensor> inputs, std::span<tensor> outputs) override {
    set_up_kernel_thread();
    return outputs[0].type() == dtype::f32 ? run_as<float>(inputs, outputs[0])
                                           : run_as<double>(inputs, outputs[0]);
  }

 private:
  template <class T>
  result<void> run_as(std::span<const tensor> in, tensor& out) {
    const auto of = [&](std::size_t i) { return in[i].data<T>(); };
    auto* y = out.data<T>();
    if (keys_ == 0) {
      std::fill_n(y, out.elements(), T{});
      return {};
    }
    return team_.run(cut_.tiles(), [&](std::size_t tile, std::size_t worker) -> result<void> {
      auto& s = scratch_[worker];
      for (auto i = cut_.begin(tile); i < cut_.begin(tile) + cut_.size(tile); ++i) {
        const auto head = i / blocks() % heads_, sample = i / blocks() / heads_;
        const auto b = block_at(i % blocks());
        auto* p = panel_of<T>(s, 0);
        std::array<T, block_rows_max> sums;
        const auto part = [&](std::size_t which) {
          return part_of<const T>(of, which, sample, head);
        };
        if (auto ok = weigh<T>(b, part(0), part(1), p, sums, s); !ok) return ok;
        const auto v = part(2);
        const auto to = of_result(y, sample, head);
        const gemm_shape mixed{
            .m = b.rows, .n = of_value_, .k = b.keys, .strides = {stride_, v.stride, to.stride}};
        if (auto ok = gemm(mixed, p, v.at, to.row(b.first), false, s.gemm); !ok) return ok;
        for (std::int64_t r = 0; r < b.rows; ++r) {
          const auto factor = 1 / sums[static_cast<std::size_t>(r)];
          auto* row = to.row(b.first + r);
          for (std::int64_t c = 0; c < of_value_; ++c) row[c] *= factor;
        }
      }
      return {};
    });
  }
};

// (dy, q, k, v) -> (dq, dk, dv), or (dy, qkv) -> dqkv. With p the weights and dp = dy v^T: ds = p
// (dp - sum(dp p)), dq = scale ds k, dk = scale ds^T q, dv = p^T dy.
class attention_grad final : public attention_base {
 public:
  attention_grad(const attributes& attrs, host_device& device)
      : attention_base("attention_grad", attrs, device) {}

  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) override {
    if (auto ok = check_ports(op_, inputs, inputs.size() == 2 ? 2 : 4, outputs,
                              inputs.size() == 2 ? 1 : 3);
        !ok)
      return ok;
    if (auto ok = find(inputs.subspan(1), inputs[0], 2); !ok) return ok;
    for (std::size_t i = 0; i < outputs.size(); ++i)
      if (outputs[i] != inputs[i + 1])
        return unfit(op_, "a gradient has the type and shape of its operand", outputs);
    const auto each = gemm_ns({.m = queries_, .n = keys_, .k = 3 * of_query_ + 2 * of_value_},
                              size_of(inputs[0].type)) +
                      2 * static_cast<double>(queries_ * keys_);
    cut_ = tile_cut::by_cost(samples_ * heads_, each, tile_least_ns);
    return {};
  }

  result<void> run(const tag&, std::span<const tensor> inputs, std::span<tensor> outputs) override {
    set_up_kernel_thread();
    return outputs[0].type() == dtype::f32 ? run_as<float>(inputs, outputs)
                                           : run_as<double>(inputs, outputs);
  }

 private:
  template <class T>
  result<void> run_as(std::span<const tensor> in, std::span<tensor> out) {
    if (keys_ == 0 || queries_ == 0) {
      for (auto& o : out) std::fill_n(o.data<T>(), o.elements(), T{});
      return {};
    }
    return team_.run(cut_.tiles(), [&](std::size_t tile, std::size_t worker) -> result<void> {
      for (auto i = cut_.begin(tile); i < cut_.begin(tile) + cut_.size(tile); ++i)
        if (auto ok = run_head<T>(in, out, i / heads_, i % heads_, scratch_[worker]); !ok)
          return ok;
      return {};
    });
  }

  template <class T>
  result<void> run_head(std::span<const tensor> in, std::span<tensor> out, std::int64_t sample,
                        std::int64_t head, scratch& s) const {
    const auto of = [&](std::size_t i) { return in[i + 1].data<T>(); };
    const auto to = [&](std::size_t i) { return out[i].data<T>(); };
    const auto q = part_of<const T>(of, 0, sample, head), k = part_of<const T>(of, 1, sample, head),
               v = part_of<const T>(of, 2, sample, head);
    const auto dq = part_of<T>(to, 0, sample, head), dk = part_of<T>(to, 1, sample, head),
               dv = part_of<T>(to, 2, sample, head);
    const auto dy = of_result(in[0].data<T>(), sample, head);
    auto *p = panel_of<T>(s, 0), *dp = panel_of<T>(s, 1);
    // The last block meets all keys, and writes what the others add to.
    for (auto i = blocks(); i-- > 0;) {
      const auto b = block_at(i);
      const bool adds = i + 1 < blocks();
      std::array<T, block_rows_max> sums;
      if (auto ok = weigh<T>(b, q, k, p, sums, s); !ok) return ok;
      const gemm_shape of_weights{.m = b.rows,
                                  .n = b.keys,
                                  .k = of_value_,
                                  .transpose_b = true,
                                  .strides = {dy.stride, v.stride, stride_}};
      if (auto ok = gemm(of_weights, dy.row(b.first), v.at, dp, false, s.gemm); !ok) return ok;
      const auto scale = static_cast<T>(scale_);
      for (std::int64_t r = 0; r < b.rows; ++r) {
        auto *weights = p + r * stride_, *row = dp + r * stride_;
        const auto met = met_by(b.first + r), wide = filled_up(met);
        const auto factor = 1 / sums[static_cast<std::size_t>(r)];
        for (std::int64_t c = 0; c < wide; ++c) weights[c] *= factor;
        std::fill(row + met, row + wide, T{});
        const auto mean =
            sum_in_lanes<T>(wide, [=](std::int64_t c) { return row[c] * weights[c]; });
        for (std::int64_t c = 0; c < wide; ++c) row[c] = weights[c] * (row[c] - mean) * scale;
        std::fill(row + wide, row + filled_up(b.keys), T{});
      }
      const gemm_shape of_queries{
          .m = b.rows, .n = of_query_, .k = b.keys, .strides = {stride_, k.stride, dq.stride}};
      if (auto ok = gemm(of_queries, dp, k.at, dq.row(b.first), false, s.gemm); !ok) return ok;
      const gemm_shape of_keys{.m = b.keys,
                               .n = of_query_,
                               .k = b.rows,
                               .transpose_a = true,
                               .strides = {stride_, q.stride, dk.stride}};
      if (auto ok = gemm(of_keys, dp, q.row(b.first), dk.at, adds, s.gemm); !ok) return ok;
      const gemm_shape of_values{.m = b.keys,
                                 .n = of_value_,
                                 .k = b.rows,
                                 .transpose_a = true,
                                 .strides = {stride_, dy.stride, dv.stride}};
      if (auto ok = gemm(of_values, p, dy.row(b.first), dv.at, adds, s.gemm); !ok) return ok;
    }
    return {};
  }
};

}  // namespace

void add_attention_kernels(kernel_table& table) {
  table.add("attention", widened_row_of<attention>());
  table.add("attention_grad", widened_row_of<attention_grad>());
}

}  // namespace troupe::host
