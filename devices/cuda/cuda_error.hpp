#pragma once
// From what CUDA and its libraries return to errors that name the call, the device and the op.
// Checked at the call:
//
//   if (auto ok = check(cudaMemcpyAsync(...), "cudaMemcpyAsync", where); !ok) return ok;
//
// Threading: plain functions.

#include "troupe/schema/error.hpp"

#include <string>
#include <string_view>

namespace troupe::cuda {

// Where a call stands; what is empty is left out.
struct call_site {
  std::string_view device;  // "gpu:0"
  std::string_view op;      // name of the op that is being enqueued
};

// Pure: "gpu:0: op layer1/matmul: cudaMemcpyAsync failed: invalid argument
// (cudaErrorInvalidValue)".
std::string call_text(const call_site& where, std::string_view call, std::string_view text,
                      std::string_view name);

// `status` is a cudaError_t, cublasStatus_t, cudnnStatus_t, ncclResult_t, nvrtcResult, CUresult: 0
// is success for all of them, and each library has its texts. Their headers are not included here;
// the overloads stand in the files that use them.
error call_failed(const call_site& where, std::string_view call, std::string_view text,
                  std::string_view name);

// Of the CUDA runtime. cudaErrorMemoryAllocation is told by is_out_of_memory(); who allocates says
// more about it than this.
result<void> check(int cuda_status, std::string_view call, const call_site& where);
bool is_out_of_memory(int cuda_status) noexcept;
// Whether after this nothing on the chip works until the process ends ("sticky" errors: an illegal
// address, a kernel's assertion, a lost device).
bool is_lasting(int cuda_status) noexcept;

}  // namespace troupe::cuda
