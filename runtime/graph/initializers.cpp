#include "troupe/runtime/graph/initializers.hpp"

#include "troupe/devices/host/initial_values.hpp"

#include <algorithm>
#include <cmath>

namespace troupe {

initializer_spec glorot_uniform(std::int64_t in, std::int64_t out) {
  return uniform(std::sqrt(6.0 / (static_cast<double>(in) + static_cast<double>(out))));
}
initializer_spec he_normal(std::int64_t in) {
  return normal(std::sqrt(2.0 / static_cast<double>(in)));
}

void initialize(std::span<float> out, const initializer_spec& spec, std::uint64_t seed,
                std::string_view variable) {
  switch (spec.type) {
    case initializer_spec::kind::zeros: return zeros_init(out);
    case initializer_spec::kind::uniform: return uniform_init(out, seed, variable, spec.limit);
    case initializer_spec::kind::normal: return normal_init(out, seed, variable, spec.limit);
    case initializer_spec::kind::constant:
      std::fill(out.begin(), out.end(), static_cast<float>(spec.limit));
      return;
    case initializer_spec::kind::first:
      zeros_init(out);
      if (!out.empty()) out[0] = static_cast<float>(spec.limit);
      return;
  }
}

}  // namespace troupe
