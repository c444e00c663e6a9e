#include "troupe/devices/host/host_device.hpp"

#include "troupe/devices/host/host_kernels.hpp"

#include <fmt/format.h>
#include <xxhash.h>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include <cstdint>

// OpenMP's, declared here since not every compiler has the header of the library that oneDNN
// computes with.
extern "C" void omp_set_num_threads(int threads) noexcept;

namespace troupe {

namespace {

std::string key_of(const std::string& folder, bool test, std::int64_t classes) {
  return fmt::format("{}:{}:{}", test ? "t10k" : "train", classes, folder);
}

std::uint64_t hash_of(const idx_dataset& d) {
  return XXH3_64bits_withSeed(d.images.data(), d.images.size(),
                              XXH3_64bits(d.labels.data(), d.labels.size()));
}

}  // namespace

result<std::shared_ptr<const idx_dataset>> host_device::dataset(const std::string& folder,
                                                                bool test, std::int64_t classes) {
  const auto key = key_of(folder, test, classes);
  const std::lock_guard alone(loading_);  // nobody loads one that another thread is loading
  {
    const std::lock_guard lock(mutex_);
    if (const auto at = datasets_.find(key); at != datasets_.end())
      if (auto held = at->second.data.lock()) return held;
    std::erase_if(datasets_, [](const auto& entry) { return entry.second.data.expired(); });
  }
  auto loaded = load_idx(folder, test, classes);
  if (!loaded) return loaded;
  const auto hash = hash_of(**loaded);
  const std::lock_guard lock(mutex_);
  datasets_[key] = {*loaded, hash};
  return loaded;
}

std::vector<std::shared_ptr<const idx_dataset>> host_device::datasets_in_use() {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<const idx_dataset>> out;
  for (const auto& [key, dataset] : datasets_)
    if (auto held = dataset.data.lock()) out.push_back(std::move(held));
  return out;
}

std::optional<std::uint64_t> host_device::dataset_hash(const std::string& folder, bool test,
                                                       std::int64_t classes) {
  const std::lock_guard lock(mutex_);
  const auto at = datasets_.find(key_of(folder, test, classes));
  if (at == datasets_.end() || at->second.data.expired()) return std::nullopt;
  return at->second.hash;
}

void set_up_kernel_thread() noexcept {
  omp_set_num_threads(1);
#if defined(__SSE2__)
  constexpr unsigned flush_to_zero = 0x8000, denormals_are_zero = 0x0040;
  _mm_setcsr(_mm_getcsr() | flush_to_zero | denormals_are_zero);
#elif defined(__aarch64__)
  constexpr std::uint64_t flush_to_zero = std::uint64_t{1} << 24;
  std::uint64_t control;
  asm volatile("mrs %0, fpcr" : "=r"(control));
  asm volatile("msr fpcr, %0" : : "r"(control | flush_to_zero));
#endif
}

kernel_table make_host_kernels() {
  kernel_table table;
  host::add_arithmetic_kernels(table);
  host::add_math_kernels(table);
  host::add_activation_kernels(table);
  host::add_comparison_kernels(table);
  host::add_matmul_kernel(table);
  host::add_convolution_kernels(table);
  host::add_pooling_kernels(table);
  host::add_normalisation_kernels(table);
  host::add_softmax_kernels(table);
  host::add_attention_kernels(table);
  host::add_reduction_kernels(table);
  host::add_layout_kernels(table);
  host::add_indexing_kernels(table);
  host::add_loss_kernels(table);
  host::add_random_kernels(table);
  host::add_source_kernels(table);
  host::add_text_kernels(table);
  return table;
}

namespace host {

error unfit(std::string_view op, std::string_view what, std::span<const tensor_spec> specs) {
  std::string text;
  for (const auto& s : specs) text += (text.empty() ? "" : ", ") + to_string(s);
  return {error_code::usage,
          fmt::format("{}: {}, got {}", op, what, text.empty() ? "nothing" : text)};
}

result<void> check_ports(std::string_view op, std::span<const tensor_spec> inputs,
                         std::size_t inputs_expected, std::span<const tensor_spec> outputs,
                         std::size_t outputs_expected) {
  if (inputs.size() == inputs_expected && outputs.size() == outputs_expected) return {};
  return error(error_code::usage,
               fmt::format("{}: takes {} operands and gives {} results, the plan has {} and {}", op,
                           inputs_expected, outputs_expected, inputs.size(), outputs.size()));
}

}  // namespace host
}  // namespace troupe
