// Random numbers as functions of where they stand: those of the host (devices/host/ops/random.cpp).

#include "troupe/devices/cuda/code/elements.hpp"
#include "troupe/devices/cuda/kernels/families.hpp"

#include <algorithm>

namespace troupe::cuda {
namespace {

// splitmix64's last steps.
std::uint64_t mixed(std::uint64_t z) noexcept {
  z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27U)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31U);
}

class random_numbers final : public kernel_of_chip {
 public:
  random_numbers(std::string_view op, code::law law, bool is_like, const attributes& attrs,
                 chip_services& chip)
      : kernel_of_chip(chip),
        op_(op),
        law_(law),
        is_like_(is_like),
        key_(mixed(static_cast<std::uint64_t>(attrs.integer("seed")) +
                   0x9E3779B97F4A7C15U *
                       (static_cast<std::uint64_t>(attrs.integer("stream")) | 1U))),
        a_(attrs.real(law == code::law::uniform  ? "low"
                      : law == code::law::normal ? "mean"
                                                 : "rate")),
        b_(law == code::law::mask
               ? 1 / (1 - a_)
               : attrs.real(law == code::law::uniform ? "high" : "deviation", 1)),
        part_(static_cast<std::uint64_t>(attrs.integer("part"))),
        rows_(static_cast<std::uint64_t>(attrs.integer("rows"))) {}

  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) override {
    if (auto ok = check_ports(op_, inputs, is_like_ ? 1 : std::min<std::size_t>(inputs.size(), 1),
                              outputs, 1);
        !ok)
      return ok;
    out_ = outputs[0];
    if (!is_float(out_.type)) return unfit(op_, "gives f32 or f64", outputs);
    const auto rows = out_.shape.rank() > 0 ? static_cast<std::uint64_t>(out_.shape.size(0)) : 1;
    first_ =
        rows == 0 ? 0 : part_ * rows_ * (static_cast<std::uint64_t>(out_.shape.elements()) / rows);
    return {};
  }
  result<void> enqueue(const launch_site& at, inputs_of, outputs_of outputs) override {
    return for_float(out_.type, [&]<class T>(T) {
      constexpr auto each = code::random_numbers<T>::each;
      const auto n = out_.shape.elements();
      const code::random_numbers<T> f{.out = as<T>(outputs[0]),
                                      .elements = n,
                                      .first = first_,
                                      .draw = draw_of(at.t),
                                      .draw_at = at.t.frame == 0 ? at.draw_at : nullptr,
                                      .key_low = static_cast<std::uint32_t>(key_),
                                      .key_high = static_cast<std::uint32_t>(key_ >> 32U),
                                      .kind = law_,
                                      .a = static_cast<T>(a_),
                                      .b = static_cast<T>(b_)};
      const auto counters =
          n == 0 ? 0 : (first_ + static_cast<std::uint64_t>(n) - 1) / each - first_ / each + 1;
      return elements(at, f, static_cast<std::int64_t>(counters));
    });
  }

 private:
  // The step; in a loop, another number for each iteration.
  static std::uint64_t draw_of(const tag& t) noexcept {
    return t.frame == 0 ? t.step
                        : mixed(t.step ^ (t.frame * 0xD1342543DE82EF95U + t.iteration) *
                                             0x9E3779B97F4A7C15U);
  }

  std::string_view op_;
  code::law law_;
  bool is_like_;
  std::uint64_t key_;
  double a_, b_;
  std::uint64_t part_, rows_, first_ = 0;
  tensor_spec out_;
};

}  // namespace

void add_random_kernels(cuda_kernel_table& table) {
  add_row<random_numbers>(table, "random_uniform", "random_uniform", code::law::uniform, false);
  add_row<random_numbers>(table, "random_normal", "random_normal", code::law::normal, false);
  add_row<random_numbers>(table, "random_uniform_like", "random_uniform_like", code::law::uniform,
                          true);
  add_row<random_numbers>(table, "random_normal_like", "random_normal_like", code::law::normal,
                          true);
  add_row<random_numbers>(table, "dropout_mask", "dropout_mask", code::law::mask, true);
}

}  // namespace troupe::cuda
