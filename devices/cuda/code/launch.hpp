#pragma once
// Starts the kernels of elements.hpp and rows.hpp; those that exist are instantiated in the .cu
// files of this folder.
//
// Threading: as the stream. Each call gives a cudaError_t as a number; nothing waits.

#include "troupe/devices/device_code.hpp"
#include "troupe/schema/dtype.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace troupe::cuda::code {

struct stream_of_chip {
  void* stream = nullptr;  // a cudaStream_t
  int multiprocessors = 1;
};

// f(i) for 0 <= i < n, each by one thread.
template <class F>
int launch_elements(const stream_of_chip& on, const F& f, std::int64_t n);

// f(team, number) for 0 <= number < teams; `work`: what a team goes over, which says whether it is
// a warp or 256 threads.
template <class F>
int launch_teams(const stream_of_chip& on, const F& f, std::int64_t teams, std::int64_t work);

// Where the operands of an element-wise op lie: as the result, all on one element, or by steps.
struct plain_walk {
  static constexpr int operands_max = 3, loops_max = 8;
  std::int64_t elements = 0;
  int loops = 0;  // innermost first; of those that have steps alone
  bool is_dense[operands_max]{};
  std::int64_t size[loops_max]{}, step[operands_max][loops_max]{};

  TROUPE_DEVICE std::int64_t place(int operand, std::int64_t i) const {
    if (is_dense[operand]) return i;
    std::int64_t at = 0;
    for (int l = 0; l < loops; ++l) {
      at += i % size[l] * step[operand][l];
      i /= size[l];
    }
    return at;
  }
};
// An element-wise op for one combination of types (plain_elements.hpp).
struct plain_row {
  std::string_view op;
  std::size_t operands = 0;
  dtype in[plain_walk::operands_max]{};
  dtype out = dtype::f32;
  int (*launch)(const stream_of_chip& on, void* out, const void* const* in,
                const plain_walk& walk) = nullptr;
};
// Null: there is none.
const plain_row* find_plain(std::string_view op, std::span<const dtype> in, dtype out);

// Sorts by key; equal keys stay in order. `workspace`: sort_workspace_bytes(n), aligned to 256
// bytes; n < 2^31.
std::size_t sort_workspace_bytes(std::int64_t n);
int sort_pairs(const stream_of_chip& on, const std::uint32_t* keys_in, std::uint32_t* keys_out,
               const std::uint32_t* values_in, std::uint32_t* values_out, std::int64_t n,
               int key_bits, void* workspace, std::size_t workspace_bytes);

}  // namespace troupe::cuda::code
