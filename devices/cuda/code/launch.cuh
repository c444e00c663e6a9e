#pragma once
// How kernels of elements.hpp and rows.hpp run on the device. For the .cu files of this folder.

#include "troupe/devices/cuda/code/device_team.cuh"
#include "troupe/devices/cuda/code/launch.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

namespace troupe::cuda::code {

template <class F>
__global__ void __launch_bounds__(block_threads) over_elements(const F f, std::int64_t n) {
  const auto threads = std::int64_t{gridDim.x} * block_threads;
  for (auto i = std::int64_t{blockIdx.x} * block_threads + threadIdx.x; i < n; i += threads) f(i);
}
template <class F>
__global__ void __launch_bounds__(block_threads) over_blocks(const F f, std::int64_t teams) {
  __shared__ alignas(16) unsigned char shared[block_warps * 16];
  block_team team{shared};
  // Alike for all threads of a block.
  for (std::int64_t t = blockIdx.x; t < teams; t += gridDim.x) f(team, t);
}
template <class F>
__global__ void __launch_bounds__(block_threads) over_warps(const F f, std::int64_t teams) {
  warp_team team;
  const auto warps = std::int64_t{gridDim.x} * block_warps;
  // Alike for all lanes of a warp.
  for (auto t = std::int64_t{blockIdx.x} * block_warps + threadIdx.x / warp_threads; t < teams;
       t += warps)
    f(team, t);
}

// Enough blocks to fill the chip several times, so that the last ones leave little of it idle.
inline unsigned int blocks_for(std::int64_t items, std::int64_t items_of_block,
                               int multiprocessors) {
  constexpr std::int64_t waves = 32;
  const auto all = (items + items_of_block - 1) / items_of_block;
  return static_cast<unsigned int>(
      std::clamp<std::int64_t>(all, 1, waves * std::max(multiprocessors, 1)));
}

template <class F>
int launch_elements(const stream_of_chip& on, const F& f, std::int64_t n) {
  if (n <= 0) return cudaSuccess;
  over_elements<F><<<blocks_for(n, block_threads, on.multiprocessors), block_threads, 0,
                     static_cast<cudaStream_t>(on.stream)>>>(f, n);
  return cudaGetLastError();
}

template <class F>
int launch_teams(const stream_of_chip& on, const F& f, std::int64_t teams, std::int64_t work) {
  if (teams <= 0) return cudaSuccess;
  constexpr std::int64_t work_of_warp = 256;
  if (work <= work_of_warp)
    over_warps<F><<<blocks_for(teams, block_warps, on.multiprocessors), block_threads, 0,
                    static_cast<cudaStream_t>(on.stream)>>>(f, teams);
  else
    over_blocks<F><<<blocks_for(teams, 1, on.multiprocessors), block_threads, 0,
                     static_cast<cudaStream_t>(on.stream)>>>(f, teams);
  return cudaGetLastError();
}

}  // namespace troupe::cuda::code
