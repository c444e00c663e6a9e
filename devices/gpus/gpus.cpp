#include "troupe/devices/gpus/gpus.hpp"

#include "troupe/devices/async_host/async_host_backend.hpp"
#include "troupe/devices/host/host_device.hpp"

#ifdef TROUPE_HAS_CUDA
#include "troupe/devices/cuda/cuda_backend.hpp"
#endif

#include <charconv>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

namespace troupe {

namespace {

constexpr std::uint32_t gpus_max = 256;

std::optional<std::uint32_t> number(std::string_view s) {
  std::uint32_t n = 0;
  const auto [end, code] = std::from_chars(s.data(), s.data() + s.size(), n);
  return code == std::errc{} && end == s.data() + s.size() && n >= 1 && n <= gpus_max
             ? std::optional(n)
             : std::nullopt;
}

found_gpus on_host(std::uint32_t count, const gpu_options& o, const kernel_table& kernels) {
  found_gpus out;
  auto chip = std::make_shared<async_host_chip>(
      async_host_options{.threaded = true, .delay_max_us = 0, .checker = nullptr, .on_thread = [] {
                           set_up_kernel_thread();
                         }});
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto name = "gpu:" + std::to_string(i);
    out.gpus.push_back({name, "asynchronous host", o.limit_bytes,
                        [name, chip, &kernels,
                         limit = o.limit_bytes]() -> result<std::shared_ptr<device_backend>> {
                          return make_async_host_backend(name, chip, kernels, limit);
                        }});
  }
  return out;
}

#ifdef TROUPE_HAS_CUDA

// Devices that share a chip share what is opened of it first.
struct chip_share {
  std::mutex lock;
  std::shared_ptr<cuda::cuda_chip> made;
};

found_gpus on_chips(const std::vector<cuda::chip>& chips, std::uint32_t count,
                    const gpu_options& o) {
  found_gpus out;
  std::vector<std::shared_ptr<chip_share>> shares;
  for (std::size_t i = 0; i < chips.size(); ++i) shares.push_back(std::make_shared<chip_share>());
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto at = i % chips.size();
    const auto each = count / chips.size() + (at < count % chips.size() ? 1 : 0);
    const auto name = "gpu:" + std::to_string(i);
    const auto limit = o.limit_bytes != 0 ? o.limit_bytes : chips[at].memory_bytes / 10 * 9 / each;
    out.gpus.push_back({name, chips[at].name, limit,
                        [name, limit, index = chips[at].index,
                         share = shares[at]]() -> result<std::shared_ptr<device_backend>> {
                          const std::lock_guard hold(share->lock);
                          if (share->made == nullptr) {
                            auto made = cuda::cuda_chip::make(
                                name, index, {.binary_folder = cuda::default_binary_folder()});
                            if (!made) return std::move(made.error());
                            share->made = std::move(*made);
                          }
                          auto device =
                              cuda::cuda_device::make(name, share->made, {.limit_bytes = limit});
                          if (!device) return std::move(device.error());
                          return cuda::make_cuda_backend(std::move(*device));
                        }});
  }
  return out;
}

result<found_gpus> find_chips(std::optional<std::uint32_t> wanted, const gpu_options& o) {
  const auto chips = cuda::find_chips();
  if (!chips) {
    if (wanted) return chips.error();
    return found_gpus{{}, chips.error().message()};
  }
  return on_chips(*chips, wanted.value_or(static_cast<std::uint32_t>(chips->size())), o);
}

#else

result<found_gpus> find_chips(std::optional<std::uint32_t> wanted, const gpu_options&) {
  const std::string why =
      "this program was built without CUDA (no version 13 or newer was found "
      "then)";
  if (wanted) return error(error_code::not_found, "no GPU: " + why);
  return found_gpus{{}, why};
}

#endif

}  // namespace

result<found_gpus> find_gpus(const gpu_options& o, const kernel_table& kernels) {
  const std::string_view which = o.which;
  if (which == "none") return found_gpus{{}, "this process was started with --gpus none"};
  if (which == "auto") return find_chips(std::nullopt, o);
  if (which.starts_with("host:"))
    if (const auto n = number(which.substr(5))) return on_host(*n, o, kernels);
  if (const auto n = number(which)) return find_chips(*n, o);
  return error(
      error_code::usage,
      "--gpus '" + o.which +
          "': use auto, none, a number of devices (1 to 256) that share the machine's chips, or host:N");
}

}  // namespace troupe
