#pragma once
// Functions of the host that a stream calls once it has come to them, and a thread that calls those
// that the driver does not call any more, since the chip has failed. Only for cuda_device.cpp.
//
// HF-1  Each is called once, on whichever thread: the driver's, or that of call_watch when it is
//       overdue and what was before it is done or has failed.
//
// Threading: add() on any thread.

#include "troupe/devices/cuda/cuda_chip.hpp"
#include "troupe/devices/cuda/stream_record.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace troupe::cuda {

struct host_call {
  std::atomic<bool> is_taken{false};
  std::function<void()> fn;
  std::shared_ptr<stream_record> of;
  std::chrono::steady_clock::time_point since;

  void run() {
    if (is_taken.exchange(true)) return;
    of->look_for_faults();
    fn();
    fn = nullptr;
  }
};

// Calls what the driver does not call any more since the chip has failed.
class call_watch {
 public:
  explicit call_watch(const cuda_chip& chip) : chip_(chip), thread_([this] { run(); }) {}
  ~call_watch() {
    {
      const std::lock_guard l(mutex_);
      ends_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }
  void add(std::shared_ptr<host_call> c, std::shared_ptr<const event_state> behind) {
    bool was_empty = false;
    {
      const std::lock_guard l(mutex_);
      was_empty = calls_.empty();
      calls_.push_back({std::move(c), std::move(behind)});
    }
    if (was_empty) changed_.notify_one();
  }

 private:
  struct waiting {
    std::shared_ptr<host_call> call;
    std::shared_ptr<const event_state> behind;  // recorded just before it
  };
  static constexpr auto period = std::chrono::milliseconds(100),
                        overdue = std::chrono::milliseconds(300);

  void run() {
    // Or asking an event would set up the first chip, which may be another.
    (void)chip_.make_current();
    std::unique_lock l(mutex_);
    while (true) {
      changed_.wait(l, [&] { return ends_ || !calls_.empty(); });
      if (ends_ && calls_.empty()) return;
      if (!ends_) changed_.wait_for(l, period, [&] { return ends_; });
      std::deque<waiting> all;
      all.swap(calls_);
      l.unlock();
      std::deque<waiting> left;
      const auto now = std::chrono::steady_clock::now();
      for (auto& w : all) {
        if (w.call->is_taken.load(std::memory_order_acquire)) continue;
        const bool is_due = ends_now() || now - w.call->since > overdue;
        // Done and not called for a while, or failed: nobody else will.
        if (is_due && w.behind->is_done() && w.behind->has_lost_chip())
          w.call->run();
        else
          left.push_back(std::move(w));
      }
      all.clear();
      l.lock();
      for (auto& w : left) calls_.push_back(std::move(w));
      if (ends_) {  // synchronize() or failure has come before: what is left is called
        auto rest = std::exchange(calls_, {});
        l.unlock();
        for (auto& w : rest) w.call->run();
        return;
      }
    }
  }
  bool ends_now() {
    const std::lock_guard l(mutex_);
    return ends_;
  }

  const cuda_chip& chip_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<waiting> calls_;
  bool ends_ = false;
  std::thread thread_;  // the last: it uses the others
};

inline void CUDART_CB call_from_driver(void* data) {
  const std::unique_ptr<std::shared_ptr<host_call>> call(
      static_cast<std::shared_ptr<host_call>*>(data));
  (*call)->run();
}

}  // namespace troupe::cuda
