#pragma once
// The host in the place of a chip: kernels of devices/cuda/ are run by loops and threads, products
// and convolutions by plain sums, so that what they compute is tested where there is no GPU.
// Generated element-wise kernels are not run, but the compiled ones that stand in for them are:
// both call the functions of the host's loops.
//
// launch_elements() and launch_teams() are defined in chip_on_host.cpp, instead of those of the .cu
// files.

#include "tests/cuda_kernels/op_cases.hpp"
#include "troupe/devices/cuda/cuda_kernel.hpp"

#include <cstdint>
#include <vector>

namespace troupe::test {

// Threads of a team: 1, or more that wait for each other as those of a chip do.
extern int team_threads;

class chip_on_host final : public cuda::chip_services {
 public:
  explicit chip_on_host(int multiprocessors = 2) : multiprocessors_(multiprocessors) {}
  result<plan_ref> plan_product(const cuda::product& p) override;
  result<void> multiply(const cuda::launch_site&, const plan& p, const void* a, const void* b,
                        const void* bias, void* c, std::byte* workspace) override;
  result<plan_ref> plan_convolution(const cuda::convolution& c) override;
  result<void> convolve(const cuda::launch_site&, const plan& p, void* x, void* w, void* y,
                        std::byte* workspace) override;
  result<plan_ref> plan_elements(const cuda::fused_source& source, std::string_view what) override;
  result<void> run_elements(const cuda::launch_site&, const plan&, const cuda::fused_source&,
                            std::span<const std::byte* const>, std::byte*) override;
  result<void> copy(const cuda::launch_site&, void* to, const void* from,
                    std::size_t bytes) override;
  result<std::shared_ptr<const std::byte>> keep(std::span<const std::byte> bytes) override;
  result<void> fill_zero(const cuda::launch_site&, void* to, std::size_t bytes) override;
  result<void> check_launch(const cuda::launch_site&, int status) override;
  std::size_t sort_workspace_bytes(std::int64_t n) override;
  int multiprocessors() const noexcept override { return multiprocessors_; }
  int products = 0;  // calls so far
  bool has_epilogues = true;

 private:
  int multiprocessors_;
};

// Makes, prepares and enqueues; memory around results and the workspace is looked at afterwards.
// `faults`: what the kernel reported.
result<std::vector<tensor>> run_cuda_kernel(const op_case& c, chip_on_host& chip,
                                            cuda::code::fault* faults = nullptr);

}  // namespace troupe::test
