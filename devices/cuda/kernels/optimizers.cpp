#include "troupe/devices/cuda/optimizers.hpp"

#include "troupe/devices/cuda/code/rows.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace troupe::cuda {
namespace {

template <class F>
result<void> run(chip_services& chip, const launch_site& at, const F& f, std::int64_t n) {
  return chip.check_launch(at, code::launch_elements(at.on, f, n));
}

std::int64_t parts_of(std::int64_t n) noexcept {
  constexpr std::int64_t each = 16'384, most = 1024;
  return std::clamp<std::int64_t>(n / each, 1, most);
}

}  // namespace

result<code::gradient> gradient_of(const gradient_sum& g) {
  if (g.parts.size() > static_cast<std::size_t>(code::gradient::parts_max))
    return error(error_code::usage,
                 fmt::format("a gradient on CUDA has at most {} parts, here are {}",
                             code::gradient::parts_max, g.parts.size()));
  code::gradient out;
  out.parts = static_cast<int>(g.parts.size());
  std::ranges::copy(g.parts, out.part);
  out.limit = g.limit;
  out.scale = g.scale;
  return out;
}

result<void> sgd_step(chip_services& chip, const launch_site& at, code::variable w,
                      code::variable velocity, const code::gradient& g, std::int64_t n,
                      const sgd_numbers& k) {
  return run(chip, at,
             code::sgd{w, velocity, g, k.learning_rate, k.momentum, k.weight_decay, k.nesterov}, n);
}
result<void> adam_step(chip_services& chip, const launch_site& at, code::variable w,
                       code::variable first, code::variable second, const code::gradient& g,
                       std::int64_t n, const adam_numbers& k) {
  return run(chip, at,
             code::adam{w, first, second, g, k.step_size, k.root_correction, k.new_first, k.beta2,
                        k.new_second, k.epsilon, k.weight_decay, k.keep},
             n);
}
result<void> rmsprop_step(chip_services& chip, const launch_site& at, code::variable w,
                          code::variable square, code::variable velocity, code::variable average,
                          const code::gradient& g, std::int64_t n, const rmsprop_numbers& k) {
  return run(chip, at,
             code::rmsprop{w, square, velocity, average, g, k.learning_rate, k.momentum, k.alpha,
                           k.new_square, k.epsilon, k.weight_decay},
             n);
}
result<void> adagrad_step(chip_services& chip, const launch_site& at, code::variable w,
                          code::variable square, const code::gradient& g, std::int64_t n,
                          const adagrad_numbers& k) {
  return run(chip, at, code::adagrad{w, square, g, k.learning_rate, k.epsilon, k.weight_decay}, n);
}
result<void> average_step(chip_services& chip, const launch_site& at, code::variable w,
                          const code::gradient& g, std::int64_t n, const average_numbers& k) {
  return run(chip, at, code::average{w, g, k.rate, k.scale}, n);
}

std::size_t norm_workspace_bytes(std::int64_t n) noexcept {
  return static_cast<std::size_t>(parts_of(n)) * sizeof(double);
}

result<void> norm_of(chip_services& chip, const launch_site& at, const code::gradient& g,
                     std::int64_t n, double* norm) {
  auto* partial = reinterpret_cast<double*>(at.workspace);
  const auto parts = parts_of(n), each = (n + parts - 1) / parts;
  if (auto ok = chip.check_launch(
          at, code::launch_teams(at.on, code::square_parts{g, partial, n, parts}, parts, each));
      !ok)
    return ok;
  return chip.check_launch(
      at, code::launch_teams(at.on, code::root_of_parts{partial, norm, parts}, 1, parts));
}

}  // namespace troupe::cuda
