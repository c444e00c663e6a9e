#include "devices/host/host_device.hpp"

#include "devices/host/host_kernels.hpp"

#include <fmt/format.h>
#include <omp.h>

namespace troupe {

result<std::shared_ptr<const idx_dataset>> host_device::dataset(const std::string& folder, bool test,
                                                                std::int64_t classes) {
  const auto key = fmt::format("{}:{}:{}", test ? "t10k" : "train", classes, folder);
  const std::lock_guard lock(mutex_);
  if (const auto at = datasets_.find(key); at != datasets_.end())
    if (auto held = at->second.lock()) return held;
  std::erase_if(datasets_, [](const auto& entry) { return entry.second.expired(); });
  auto loaded = load_idx(folder, test, classes);
  if (loaded) datasets_[key] = *loaded;
  return loaded;
}

void use_one_kernel_thread() noexcept { omp_set_num_threads(1); }

kernel_table make_host_kernels() {
  kernel_table table;
  host::add_elementwise_kernels(table);
  host::add_matmul_kernel(table);
  host::add_reduction_kernels(table);
  host::add_loss_kernels(table);
  host::add_source_kernels(table);
  return table;
}

namespace host {

error unfit(std::string_view op, std::string_view what, std::span<const tensor_spec> specs) {
  std::string text;
  for (const auto& s : specs) text += (text.empty() ? "" : ", ") + to_string(s);
  return {error_code::usage, fmt::format("{}: {}, got {}", op, what, text.empty() ? "nothing" : text)};
}

result<void> check_ports(std::string_view op, std::span<const tensor_spec> inputs, std::size_t inputs_expected,
                         std::span<const tensor_spec> outputs, std::size_t outputs_expected) {
  if (inputs.size() == inputs_expected && outputs.size() == outputs_expected) return {};
  return error(error_code::usage, fmt::format("{}: takes {} operands and gives {} results, the plan has {} and {}", op,
                                              inputs_expected, outputs_expected, inputs.size(), outputs.size()));
}

}  // namespace host
}  // namespace troupe
