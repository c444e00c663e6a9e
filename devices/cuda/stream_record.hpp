#pragma once
// What streams of a CUDA device leave behind in the hands of others: events, with a time or
// without, and what a stream knows of itself, such as which op failed. Only for cuda_device.cpp.
//
// SR-1  The first failure stays. Who asks an event whose stream has failed is told that it is done,
//       and finds the failure at the stream.
// SR-2  An event goes back to its pool with its last handle, also after its stream.
//
// Threading: any.

#include "troupe/devices/cuda/code/elements.hpp"
#include "troupe/devices/cuda/cuda_error.hpp"
#include "troupe/devices/cuda/progress.hpp"
#include "troupe/devices/device/device.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace troupe::cuda {

// Events of one stream, which outlive it in the hands of others.
class event_pool {
 public:
  explicit event_pool(unsigned int flags = cudaEventDisableTiming) noexcept : flags_(flags) {}
  ~event_pool() {
    for (auto e : free_) (void)cudaEventDestroy(e);
  }
  result<cudaEvent_t> take(const call_site& where) {
    {
      const std::lock_guard l(mutex_);
      if (!free_.empty()) {
        auto e = free_.back();
        free_.pop_back();
        return e;
      }
    }
    cudaEvent_t e = nullptr;
    if (auto ok = check(cudaEventCreateWithFlags(&e, flags_), "cudaEventCreateWithFlags", where);
        !ok)
      return std::move(ok.error());
    return e;
  }
  void give(cudaEvent_t e) noexcept {
    const std::lock_guard l(mutex_);
    free_.push_back(e);
  }

 private:
  const unsigned int flags_;
  std::mutex mutex_;
  std::vector<cudaEvent_t> free_;
};

// An event that has a time; the last handle returns it to its pool.
class timed_event {
 public:
  timed_event(std::shared_ptr<event_pool> pool, cudaEvent_t e) noexcept
      : pool_(std::move(pool)), event_(e) {}
  ~timed_event() { pool_->give(event_); }
  timed_event(const timed_event&) = delete;
  timed_event& operator=(const timed_event&) = delete;
  cudaEvent_t get() const noexcept { return event_; }

 private:
  std::shared_ptr<event_pool> pool_;
  cudaEvent_t event_;
};

// Null where the driver gives or records none: that piece of work is in no timeline, and whatever
// is wrong shows at the work itself.
inline std::shared_ptr<timed_event> record_time(const std::shared_ptr<event_pool>& pool,
                                                cudaStream_t on) {
  auto e = pool->take({});
  std::shared_ptr<timed_event> made = e ? std::make_shared<timed_event>(pool, *e) : nullptr;
  if (made != nullptr && cudaEventRecord(made->get(), on) == cudaSuccess) return made;
  (void)cudaGetLastError();
  return nullptr;
}

// A point in the time of a device, and how far it is from that at which tracing began.
struct time_base {
  std::shared_ptr<timed_event> event;
  std::int64_t ns = 0;

  // Of an event that is done; nullopt: the base is not.
  std::optional<std::int64_t> of(const timed_event& e) const {
    float ms = 0;
    if (event != nullptr && cudaEventElapsedTime(&ms, event->get(), e.get()) == cudaSuccess)
      return ns + static_cast<std::int64_t>(double(ms) * 1e6);
    (void)cudaGetLastError();
    return std::nullopt;
  }
};

// What a stream knows of itself, which its events and functions share with it.
struct stream_record {
  std::string name;
  std::mutex mutex;
  progress ops;                  // under the mutex
  std::optional<error> failure;  // under the mutex
  std::atomic<bool> has_failed{false};
  std::atomic<bool> is_of_chip{false};  // the failure is one of the whole chip
  std::atomic<std::uint64_t> done{0};   // place that an event has shown to be done
  // Pinned; the place that the chip has come to, where each op is marked.
  std::uint32_t* mark = nullptr;
  std::atomic<code::fault*> faults{nullptr};                     // pinned
  std::unordered_map<std::string_view, unsigned int> number_of;  // under the mutex
  std::vector<std::string_view> names;                           // by number, under the mutex

  void fail(error e) {
    const std::lock_guard l(mutex);
    if (!failure) failure = std::move(e);
    has_failed.store(true, std::memory_order_release);
  }
  // What the driver reported at a call that may not be to blame.
  void fail_at_some_op(int status, std::string_view call) {
    const std::lock_guard l(mutex);
    if (failure) return;
    learn();
    // A stream runs in order: the first without a mark it is.
    const auto in_question = ops.in_question(mark != nullptr);
    failure = error(error_code::failed,
                    fmt::format("{}: {} failed: {} ({}), seen at {}", name,
                                in_question.empty() ? "something before" : in_question,
                                cudaGetErrorString(static_cast<cudaError_t>(status)),
                                cudaGetErrorName(static_cast<cudaError_t>(status)), call));
    if (is_lasting(status)) is_of_chip.store(true, std::memory_order_relaxed);
    has_failed.store(true, std::memory_order_release);
  }
  void learn() {
    ops.done(done.load(std::memory_order_acquire));
    if (mark != nullptr) {  // its lower 32 bits
      const auto low = *const_cast<volatile std::uint32_t*>(mark);
      const auto last = ops.last();
      const auto behind = static_cast<std::uint32_t>(last) - low;
      if (behind <= last) ops.done(last - behind);
    }
  }
  void look_for_faults() {
    const auto* f = faults.load(std::memory_order_acquire);
    if (f == nullptr || *const_cast<const volatile unsigned int*>(&f->state) != 2) return;
    std::atomic_thread_fence(std::memory_order_acquire);
    const std::lock_guard l(mutex);
    if (failure || faults.load(std::memory_order_acquire) == nullptr) return;
    const auto op = f->op < names.size() ? names[f->op] : std::string_view("an op");
    failure =
        error(error_code::failed, fmt::format("{}: op {}: element {} is {}, expected {} to {}",
                                              name, op, f->at, f->value, f->low, f->high));
    has_failed.store(true, std::memory_order_release);
  }
  result<void> state() {
    look_for_faults();
    if (!has_failed.load(std::memory_order_acquire)) return {};
    const std::lock_guard l(mutex);
    return *failure;
  }
};

struct event_state final : device_event::state {
  std::shared_ptr<event_pool> pool;
  std::shared_ptr<stream_record> of;
  cudaEvent_t event = nullptr;
  std::uint64_t place = 0;
  mutable std::atomic<bool> is_known{false};

  ~event_state() override { pool->give(event); }
  bool is_done() const noexcept override {
    if (is_known.load(std::memory_order_acquire)) return true;
    const auto status = cudaEventQuery(event);
    if (status == cudaErrorNotReady) {
      (void)cudaGetLastError();
      return false;
    }
    if (status == cudaSuccess) {
      auto seen = of->done.load(std::memory_order_relaxed);
      while (seen < place &&
             !of->done.compare_exchange_weak(seen, place, std::memory_order_release)) {
      }
    } else {
      of->fail_at_some_op(status, "cudaEventQuery");  // who waits goes on, and finds the failure
    }
    is_known.store(true, std::memory_order_release);
    return true;
  }
  // Whether its stream has failed: asks the driver, also about an event that was done before the
  // chip failed.
  bool has_lost_chip() const noexcept {
    if (of->has_failed.load(std::memory_order_acquire)) return true;
    const auto status = cudaEventQuery(event);
    if (is_lasting(status))
      of->fail_at_some_op(status, "cudaEventQuery");
    else
      (void)cudaGetLastError();
    return of->has_failed.load(std::memory_order_acquire);
  }
};

}  // namespace troupe::cuda
