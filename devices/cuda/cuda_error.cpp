#include "troupe/devices/cuda/cuda_error.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

namespace troupe::cuda {

std::string call_text(const call_site& where, std::string_view call, std::string_view text,
                      std::string_view name) {
  std::string out;
  if (!where.device.empty()) out += fmt::format("{}: ", where.device);
  if (!where.op.empty()) out += fmt::format("op {}: ", where.op);
  out += fmt::format("{} failed: {}", call, text);
  if (!name.empty() && name != text) out += fmt::format(" ({})", name);
  return out;
}

error call_failed(const call_site& where, std::string_view call, std::string_view text,
                  std::string_view name) {
  return {error_code::failed, call_text(where, call, text, name)};
}

result<void> check(int cuda_status, std::string_view call, const call_site& where) {
  const auto status = static_cast<cudaError_t>(cuda_status);
  if (status == cudaSuccess) return {};
  // Or the next call that asks would find this one's.
  if (!is_lasting(cuda_status)) (void)cudaGetLastError();
  return call_failed(where, call, cudaGetErrorString(status), cudaGetErrorName(status));
}

bool is_out_of_memory(int cuda_status) noexcept { return cuda_status == cudaErrorMemoryAllocation; }

bool is_lasting(int cuda_status) noexcept {
  switch (static_cast<cudaError_t>(cuda_status)) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorECCUncorrectable:
    case cudaErrorTensorMemoryLeak:
    case cudaErrorMpsClientTerminated:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorExternalDevice:
    case cudaErrorDevicesUnavailable: return true;
    default: return false;
  }
}

}  // namespace troupe::cuda
