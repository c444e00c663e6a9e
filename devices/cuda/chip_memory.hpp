#pragma once
// Where the memory of a CUDA device comes from: segments of its chip's, and page-locked memory of
// the host. Only for cuda_device.cpp.
//
// Threading: any.

#include "troupe/devices/cuda/cuda_chip.hpp"
#include "troupe/devices/cuda/cuda_error.hpp"
#include "troupe/devices/device/device.hpp"
#include "troupe/devices/memory/caching_allocator.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace troupe::cuda {

// Segments of the chip's memory, for a cache of each device.
class chip_memory final : public system_memory {
 public:
  explicit chip_memory(std::shared_ptr<cuda_chip> c) : chip_(std::move(c)) {}
  std::byte* reserve(std::size_t bytes) override {
    void* at = nullptr;
    if (chip_->make_current() && cudaMalloc(&at, bytes) == cudaSuccess)
      return static_cast<std::byte*>(at);
    (void)cudaGetLastError();
    return nullptr;
  }
  void release(std::byte* p, std::size_t) noexcept override {
    (void)chip_->make_current();
    (void)cudaFree(p);  // waits for the chip
  }

 private:
  std::shared_ptr<cuda_chip> chip_;
};

// What a request takes: few sizes, so that buffers come back to those who ask for about as much.
inline std::size_t rounded_size(std::size_t bytes) noexcept {
  return caching_allocator::size_class(bytes);
}

class pinned_memory {
 public:
  explicit pinned_memory(std::string device) : device_(std::move(device)) {}
  ~pinned_memory() {
    for (auto& [size, blocks] : free_)
      for (auto* b : blocks) (void)cudaFreeHost(b);
  }
  result<device_memory> take(std::size_t bytes) {
    const auto size = rounded_size(bytes);
    {
      const std::lock_guard l(mutex_);
      if (auto& blocks = free_[size]; !blocks.empty()) {
        auto* b = blocks.back();
        blocks.pop_back();
        return device_memory{b, bytes};
      }
    }
    void* at = nullptr;
    const auto status = cudaHostAlloc(&at, size, cudaHostAllocPortable);
    if (is_out_of_memory(status)) {
      (void)cudaGetLastError();
      return error(error_code::failed,
                   fmt::format("{}: out of page-locked memory: {} bytes more, {} are in use",
                               device_, size, held_bytes()));
    }
    if (auto ok = check(status, "cudaHostAlloc", {device_, {}}); !ok) return std::move(ok.error());
    const std::lock_guard l(mutex_);
    held_ += size;
    return device_memory{static_cast<std::byte*>(at), bytes};
  }
  void give(device_memory m) noexcept {
    const std::lock_guard l(mutex_);
    free_[rounded_size(m.size_bytes)].push_back(m.bytes);
  }
  std::uint64_t held_bytes() const {
    const std::lock_guard l(mutex_);
    return held_;
  }
  void trim() noexcept {
    std::map<std::size_t, std::vector<std::byte*>> all;
    {
      const std::lock_guard l(mutex_);
      all.swap(free_);
      for (const auto& [size, blocks] : all) held_ -= size * blocks.size();
    }
    for (auto& [size, blocks] : all)
      for (auto* b : blocks) (void)cudaFreeHost(b);
  }

 private:
  std::string device_;
  mutable std::mutex mutex_;
  std::map<std::size_t, std::vector<std::byte*>> free_;
  std::uint64_t held_ = 0;
};

}  // namespace troupe::cuda
