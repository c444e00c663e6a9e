#include "troupe/devices/cuda/libraries/find_devices.hpp"

#include "troupe/devices/cuda/cuda_error.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

namespace troupe::cuda {

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

std::string why_none(const driver_answer& a) {
  // The version first: without a driver the runtime may call it "insufficient", too.
  if (a.driver_version == 0)
    return "no CUDA device: the NVIDIA driver is not installed or not loaded (libcuda.so.1 is missing); install it, or use the host's devices";
  if (a.status == cudaErrorInsufficientDriver || a.driver_version / 1000 < a.runtime_version / 1000)
    return fmt::format(
        "no CUDA device: the NVIDIA driver is too old, it is for CUDA {} and this program needs {}; update the driver",
        version_text(a.driver_version), version_text(a.runtime_version / 1000 * 1000));
  if (a.status == cudaErrorNoDevice || (a.status == cudaSuccess && a.devices == 0))
    return "no CUDA device: the NVIDIA driver is there and sees none (CUDA_VISIBLE_DEVICES may hide them)";
  if (a.status != cudaSuccess)
    return fmt::format("no CUDA device: the NVIDIA driver said: {}", a.status_text);
  return {};
}

result<void> check_index(const driver_answer& a, std::string_view device, int index) {
  if (const auto why = why_none(a); !why.empty())
    return error(error_code::not_found, fmt::format("{}: {}", device, why));
  if (index >= 0 && index < a.devices) return {};
  return error(
      error_code::not_found,
      a.devices == 1
          ? fmt::format("{}: there is no CUDA device {}: this machine has one, number 0", device,
                        index)
          : fmt::format("{}: there is no CUDA device {}: this machine has {}, numbers 0 to {}",
                        device, index, a.devices, a.devices - 1));
}

result<void> check_capability(std::string_view device, std::string_view name, int major,
                              int minor) {
  if (major * 10 + minor >= 75) return {};
  return error(
      error_code::not_found,
      fmt::format("{}: {} has compute capability {}.{}, and this program needs 7.5 or more", device,
                  name, major, minor));
}

driver_answer ask_driver() {
  driver_answer a;
  (void)cudaRuntimeGetVersion(&a.runtime_version);
  if (cudaDriverGetVersion(&a.driver_version) != cudaSuccess) a.driver_version = 0;
  const auto status = cudaGetDeviceCount(&a.devices);
  a.status = static_cast<int>(status);
  if (status != cudaSuccess) {
    a.status_text = cudaGetErrorString(status);
    a.devices = 0;
    (void)cudaGetLastError();
  }
  return a;
}

result<std::vector<chip>> find_chips() {
  const auto answer = ask_driver();
  if (auto why = why_none(answer); !why.empty())
    return error(error_code::not_found, std::move(why));
  std::vector<chip> chips;
  for (int i = 0; i < answer.devices; ++i) {
    cudaDeviceProp p{};
    if (auto ok = check(cudaGetDeviceProperties(&p, i), "cudaGetDeviceProperties",
                        {.device = fmt::format("CUDA device {}", i), .op = {}});
        !ok)
      return std::move(ok.error());
    chips.push_back({i, p.name, p.major, p.minor, p.totalGlobalMem, p.multiProcessorCount});
  }
  return chips;
}

}  // namespace troupe::cuda
