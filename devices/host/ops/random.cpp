// Random numbers: element i of step t is a function of (seed, stream, t, i) alone (philox.hpp),
// where i counts from the beginning of the whole batch, of which a worker has a part.

#include "troupe/devices/host/host_kernels.hpp"
#include "troupe/devices/host/loops/philox.hpp"
#include "troupe/devices/host/loops/vector_math.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace troupe::host {
namespace {

// In [0, 1): the upper 24 bits of a word, the upper 53 of two.
float unit_of(std::uint32_t a) noexcept { return static_cast<float>(a >> 8U) * 0x1p-24F; }
double unit_of(std::uint32_t a, std::uint32_t b) noexcept {
  return static_cast<double>((std::uint64_t{a} << 32U | b) >> 11U) * 0x1p-53;
}

// How many elements a counter gives, and which.
template <class T>
struct draws;
template <>
struct draws<float> {
  static constexpr std::uint64_t each = 4;
  static void uniform(const std::array<std::uint32_t, 4>& words, float* out) noexcept {
    for (std::size_t k = 0; k < each; ++k) out[k] = unit_of(words[k]);
  }
  // Box and Muller: of two uniform numbers, the first in (0, 1], two normal ones.
  static void normal(const std::array<std::uint32_t, 4>& words, float* out) noexcept {
    for (std::size_t k = 0; k < each; k += 2) {
      const float length = std::sqrt(-2.0F * vector_math::log(unit_of(words[k]) + 0x1p-24F));
      const float angle = 6.28318531F * unit_of(words[k + 1]);
      out[k] = length * vector_math::cos_near(angle);
      out[k + 1] = length * vector_math::sin_near(angle);
    }
  }
};
template <>
struct draws<double> {
  static constexpr std::uint64_t each = 2;
  static void uniform(const std::array<std::uint32_t, 4>& words, double* out) noexcept {
    for (std::size_t k = 0; k < each; ++k) out[k] = unit_of(words[2 * k], words[2 * k + 1]);
  }
  static void normal(const std::array<std::uint32_t, 4>& words, double* out) noexcept {
    const double length = std::sqrt(-2 * std::log(unit_of(words[0], words[1]) + 0x1p-53)),
                 angle = 2 * std::numbers::pi * unit_of(words[2], words[3]);
    out[0] = length * std::cos(angle);
    out[1] = length * std::sin(angle);
  }
};

enum class law : std::uint8_t { uniform, normal, mask };

// uniform: low + (high - low) u. normal: mean + deviation n. mask: 0 with probability `rate`, else
// 1 / (1 - rate).
template <law Law, bool Like>
class random_numbers final : public kernel {
 public:
  explicit random_numbers(const attributes& attrs)
      : generator_(key_of(attrs)),
        a_(attrs.real(Law == law::uniform  ? "low"
                      : Law == law::normal ? "mean"
                                           : "rate")),
        b_(attrs.real(Law == law::uniform ? "high" : "deviation", 1)),
        part_(static_cast<std::uint64_t>(attrs.integer("part"))),
        rows_(static_cast<std::uint64_t>(attrs.integer("rows"))) {}

  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) override {
    constexpr std::string_view op = Law == law::uniform  ? "random_uniform"
                                    : Law == law::normal ? "random_normal"
                                                         : "dropout_mask";
    if (auto ok =
            check_ports(op, inputs, Like ? 1 : std::min<std::size_t>(inputs.size(), 1), outputs, 1);
        !ok)
      return ok;
    const auto& out = outputs[0];
    if (out.type != dtype::f32 && out.type != dtype::f64)
      return unfit(op, "gives f32 or f64", outputs);
    // Elements of the parts before this one.
    const auto rows = out.shape.rank() > 0 ? static_cast<std::uint64_t>(out.shape.size(0)) : 1;
    first_ =
        rows == 0 ? 0 : part_ * rows_ * (static_cast<std::uint64_t>(out.shape.elements()) / rows);
    return {};
  }

  result<void> run(const tag& t, std::span<const tensor>, std::span<tensor> outputs) override {
    outputs[0].type() == dtype::f32 ? run_as<float>(draw_of(t), outputs[0])
                                    : run_as<double>(draw_of(t), outputs[0]);
    return {};
  }

 private:
  static philox key_of(const attributes& attrs) {
    // Streams of one seed differ in all bits (splitmix64).
    auto z = static_cast<std::uint64_t>(attrs.integer("seed")) +
             0x9E3779B97F4A7C15U * (static_cast<std::uint64_t>(attrs.integer("stream")) | 1U);
    z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27U)) * 0x94D049BB133111EBU;
    z ^= z >> 31U;
    return {static_cast<std::uint32_t>(z), static_cast<std::uint32_t>(z >> 32U)};
  }

  // The step; in a loop, another number for each iteration.
  static std::uint64_t draw_of(const tag& t) noexcept {
    if (t.frame == 0) return t.step;
    auto z = t.step ^ (t.frame * 0xD1342543DE82EF95U + t.iteration) * 0x9E3779B97F4A7C15U;
    z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27U)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31U);
  }

  template <class T>
  void run_as(std::uint64_t step, tensor& to) const {
    constexpr auto each = draws<T>::each;
    auto* out = to.data<T>();
    const auto n = static_cast<std::uint64_t>(to.elements());
    T numbers[each];
    for (std::uint64_t i = 0; i < n;) {
      const auto at = first_ + i, skipped = at % each;
      const auto words = generator_(at / each, step);
      if constexpr (Law == law::normal)
        draws<T>::normal(words, numbers);
      else
        draws<T>::uniform(words, numbers);
      for (auto k = skipped; k < each && i < n; ++k, ++i) out[i] = numbers[k];
    }
    const auto a = static_cast<T>(a_), b = static_cast<T>(b_);
    const auto kept = static_cast<T>(1 / (1 - a_));
    for (std::uint64_t i = 0; i < n; ++i) {
      if constexpr (Law == law::uniform) out[i] = a + (b - a) * out[i];
      if constexpr (Law == law::normal) out[i] = a + b * out[i];
      if constexpr (Law == law::mask) out[i] = out[i] < a ? T{} : kept;
    }
  }

  philox generator_;
  double a_, b_;
  std::uint64_t part_, rows_;  // of the batch: the part of this worker, and rows of a part
  std::uint64_t first_ = 0;
};

}  // namespace

void add_random_kernels(kernel_table& table) {
  table.add("random_uniform", row_of<random_numbers<law::uniform, false>>());
  table.add("random_normal", row_of<random_numbers<law::normal, false>>());
  table.add("random_uniform_like", row_of<random_numbers<law::uniform, true>>());
  table.add("random_normal_like", row_of<random_numbers<law::normal, true>>());
  table.add("dropout_mask", row_of<random_numbers<law::mask, true>>());
}

}  // namespace troupe::host
