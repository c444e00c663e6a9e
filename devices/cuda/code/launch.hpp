#pragma once
// Starts the kernels of elements.hpp and rows.hpp; those that exist are instantiated in the .cu files of this folder.
//
// Threading: as the stream. Each call gives a cudaError_t as a number; nothing waits.

#include <cstddef>
#include <cstdint>

namespace troupe::cuda::code {

struct stream_of_chip {
  void* stream = nullptr;   // a cudaStream_t
  int multiprocessors = 1;
};

// f(i) for 0 <= i < n, each by one thread.
template <class F>
int launch_elements(const stream_of_chip& on, const F& f, std::int64_t n);

// f(team, number) for 0 <= number < teams; `work`: what a team goes over, which says whether it is a warp or 256 threads.
template <class F>
int launch_teams(const stream_of_chip& on, const F& f, std::int64_t teams, std::int64_t work);

// Sorts by key; equal keys stay in order. `workspace`: sort_workspace_bytes(n), aligned to 256 bytes; n < 2^31.
std::size_t sort_workspace_bytes(std::int64_t n);
int sort_pairs(const stream_of_chip& on, const std::uint32_t* keys_in, std::uint32_t* keys_out, const std::uint32_t* values_in, std::uint32_t* values_out, std::int64_t n, int key_bits,
               void* workspace, std::size_t workspace_bytes);

}  // namespace troupe::cuda::code
