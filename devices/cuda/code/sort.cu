// Sorting, by CUB.

#include "troupe/devices/cuda/code/launch.hpp"

#include <cub/device/device_radix_sort.cuh>
#include <cuda_runtime.h>

namespace troupe::cuda::code {

std::size_t sort_workspace_bytes(std::int64_t n) {
  std::size_t bytes = 0;
  const std::uint32_t* in = nullptr;
  std::uint32_t* out = nullptr;
  if (cub::DeviceRadixSort::SortPairs(nullptr, bytes, in, out, in, out, static_cast<int>(n)) !=
      cudaSuccess)
    (void)cudaGetLastError();
  return bytes;
}

int sort_pairs(const stream_of_chip& on, const std::uint32_t* keys_in, std::uint32_t* keys_out,
               const std::uint32_t* values_in, std::uint32_t* values_out, std::int64_t n,
               int key_bits, void* workspace, std::size_t workspace_bytes) {
  if (n <= 0) return cudaSuccess;
  return cub::DeviceRadixSort::SortPairs(workspace, workspace_bytes, keys_in, keys_out, values_in,
                                         values_out, static_cast<int>(n), 0, key_bits,
                                         static_cast<cudaStream_t>(on.stream));
}

}  // namespace troupe::cuda::code
