// Steps of an optimizer over numbers that come from outside, for tests/optimizers_vs_torch.py:
//
//   optimizer_steps TYPE ELEMENTS STEPS [FIELD=NUMBER...]
//
// Standard input: f32 values, then the gradient of each step. Standard output: f32 values after
// each step. Fields are those of optimizer_spec.

#include "troupe/devices/host/host_device.hpp"
#include "troupe/runtime/shards/shard_update.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

using namespace troupe;

namespace {

int fail(const std::string& text) {
  fmt::print(stderr, "optimizer_steps: {}\n", text);
  return 2;
}

bool set(optimizer_spec& o, const std::string& field, double x) {
  const std::map<std::string, double*> numbers{{"learning_rate", &o.learning_rate},
                                               {"momentum", &o.momentum},
                                               {"weight_decay", &o.weight_decay},
                                               {"beta1", &o.beta1},
                                               {"beta2", &o.beta2},
                                               {"alpha", &o.alpha},
                                               {"epsilon", &o.epsilon},
                                               {"learning_rate_decay", &o.learning_rate_decay},
                                               {"initial_accumulator", &o.initial_accumulator}};
  if (field == "nesterov") o.nesterov = x != 0;
  if (field == "centered") o.centered = x != 0;
  if (const auto at = numbers.find(field); at != numbers.end()) *at->second = x;
  return field == "nesterov" || field == "centered" || numbers.contains(field);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return fail("TYPE ELEMENTS STEPS [FIELD=NUMBER...]");
  const std::string type = argv[1];
  auto o = type == "adam"      ? adam({})
           : type == "adamw"   ? adamw({})
           : type == "rmsprop" ? rmsprop({})
           : type == "adagrad" ? adagrad({})
                               : sgd({});
  o.type = type;
  for (int i = 4; i < argc; ++i) {
    const std::string text = argv[i];
    const auto equals = text.find('=');
    if (equals == std::string::npos ||
        !set(o, text.substr(0, equals), std::strtod(text.c_str() + equals + 1, nullptr)))
      return fail("unknown field: " + text);
  }
  if (auto ok = check(o); !ok) return fail(ok.error().text());
  const auto n = std::strtoull(argv[2], nullptr, 10), steps = std::strtoull(argv[3], nullptr, 10);

  set_up_kernel_thread();
  std::vector<float> values(n), gradient(n);
  std::vector<std::vector<float>> state;
  for (const auto& s : slots_of(o)) state.emplace_back(n, s.initial);
  if (std::fread(values.data(), sizeof(float), n, stdin) != n)
    return fail("the values are not whole");
  for (std::uint64_t t = 0; t < steps; ++t) {
    if (std::fread(gradient.data(), sizeof(float), n, stdin) != n)
      return fail(fmt::format("gradient {} is not whole", t));
    const std::vector<const float*> gradients{gradient.data()};
    std::vector<stepped> slots;
    for (auto& s : state) slots.push_back({s.data(), s.data()});
    update_shard(o, {}, {t + 1, t}, {values.data(), values.data()}, slots, gradients, n);
    if (std::fwrite(values.data(), sizeof(float), n, stdout) != n)
      return fail("the values cannot be written");
  }
  return 0;
}
