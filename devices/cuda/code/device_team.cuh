#pragma once
// Teams of threads on the device (team.hpp): a warp, and a block of 256 threads. Nothing but CUDA's
// own words, so that a test can give them another meaning and run this on the host.

#include <cstdint>
#include <cstring>

namespace troupe::cuda::code {

inline constexpr int block_threads = 256, warp_threads = 32,
                     block_warps = block_threads / warp_threads;

// x of the lane whose number differs in the bits of `mask`, word by word.
template <class T>
__device__ T of_lane(T x, int mask) {
  constexpr int words = (sizeof(T) + 3) / 4;
  unsigned int all[words] = {};
  memcpy(all, &x, sizeof(T));
  for (int w = 0; w < words; ++w) all[w] = __shfl_xor_sync(0xFFFFFFFFU, all[w], mask);
  memcpy(&x, all, sizeof(T));
  return x;
}
template <class T>
__device__ T of_lane_below(T x, int distance) {
  constexpr int words = (sizeof(T) + 3) / 4;
  unsigned int all[words] = {};
  memcpy(all, &x, sizeof(T));
  for (int w = 0; w < words; ++w) all[w] = __shfl_up_sync(0xFFFFFFFFU, all[w], distance);
  memcpy(&x, all, sizeof(T));
  return x;
}
template <class T>
__device__ T of_last_lane(T x) {
  constexpr int words = (sizeof(T) + 3) / 4;
  unsigned int all[words] = {};
  memcpy(all, &x, sizeof(T));
  for (int w = 0; w < words; ++w) all[w] = __shfl_sync(0xFFFFFFFFU, all[w], warp_threads - 1);
  memcpy(&x, all, sizeof(T));
  return x;
}
// op is commutative, so that all lanes have the same bits.
template <class T, class Op>
__device__ T join_warp(T x, Op op) {
  for (int mask = warp_threads / 2; mask > 0; mask /= 2) x = op(x, of_lane(x, mask));
  return x;
}
// The sum up to and with this lane.
template <class T>
__device__ T scan_warp(T x) {
  const int lane = static_cast<int>(threadIdx.x) % warp_threads;
  for (int d = 1; d < warp_threads; d *= 2) {
    const T lower = of_lane_below(x, d);
    if (lane >= d) x = lower + x;
  }
  return x;
}

struct warp_team {
  __device__ std::int64_t rank() const { return threadIdx.x % warp_threads; }
  __device__ std::int64_t size() const { return warp_threads; }
  template <class T, class Op>
  __device__ T join(T x, Op op) {
    return join_warp(x, op);
  }
  template <class T>
  __device__ T scan(T x, T& total) {
    const T up_to = scan_warp(x);
    total = of_last_lane(up_to);
    const T lower = of_lane_below(up_to, 1);
    return threadIdx.x % warp_threads == 0 ? T{} : lower;
  }
};

// All threads of a block take part in every call. The barrier behind each reading lets the next
// call write.
struct block_team {
  unsigned char* shared;  // 16 bytes a warp

  __device__ std::int64_t rank() const { return threadIdx.x; }
  __device__ std::int64_t size() const { return block_threads; }
  template <class T, class Op>
  __device__ T join(T x, Op op) {
    static_assert(sizeof(T) <= 16);
    x = join_warp(x, op);
    T* slots = reinterpret_cast<T*>(shared);
    if (threadIdx.x % warp_threads == 0) slots[threadIdx.x / warp_threads] = x;
    __syncthreads();
    T all = slots[0];
    for (int w = 1; w < block_warps; ++w) all = op(all, slots[w]);
    __syncthreads();
    return all;
  }
  template <class T>
  __device__ T scan(T x, T& total) {
    const T up_to = scan_warp(x);
    T* slots = reinterpret_cast<T*>(shared);
    const int warp = static_cast<int>(threadIdx.x) / warp_threads;
    if (threadIdx.x % warp_threads == warp_threads - 1) slots[warp] = up_to;
    const T below = of_lane_below(up_to, 1);
    __syncthreads();
    T before{}, all{};
    for (int w = 0; w < block_warps; ++w) {
      if (w == warp) before = all;
      all = all + slots[w];
    }
    __syncthreads();
    total = all;
    return threadIdx.x % warp_threads == 0 ? before : before + below;
  }
};

}  // namespace troupe::cuda::code
