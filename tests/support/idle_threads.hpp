#pragma once
// Threads that have nothing to do but help, as idle streams of a process do: for tests of kernels
// that share their work.

#include "tests/support/wait.hpp"
#include "troupe/devices/host/host_device.hpp"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace troupe::test {

class idle_threads {
 public:
  // `threads` in all: the test's own is one of them.
  idle_threads(tile_team& team, std::size_t threads) : team_(team) {
    team.set_up(threads, [this](std::size_t wanted) { call(wanted); });
    for (std::size_t i = 1; i < threads; ++i)
      threads_.emplace_back([this] {
        set_up_kernel_thread();
        while (is_called())
          while (team_.help()) helped_.fetch_add(1);
      });
  }
  ~idle_threads() {
    {
      const std::lock_guard guard(lock_);
      is_over_ = true;
    }
    called_.notify_all();
    const waiting_for named("the end of the idle threads");
    for (auto& t : threads_) t.join();
    team_.set_up(1, {});
  }
  // Times that somebody joined a run.
  std::size_t helped() const { return helped_; }

 private:
  // Not by std::counting_semaphore: that of libstdc++ 12 may lose a wake-up, when a release meets
  // an acquire that has just failed (its bug 98033).
  void call(std::size_t wanted) {
    {
      const std::lock_guard guard(lock_);
      calls_ += wanted;
    }
    called_.notify_all();
  }
  // Waits for a call; false: there are no more.
  bool is_called() {
    std::unique_lock guard(lock_);
    called_.wait(guard, [this] { return is_over_ || calls_ > 0; });
    if (!is_over_) --calls_;
    return !is_over_;
  }

  tile_team& team_;
  std::mutex lock_;
  std::condition_variable called_;
  std::size_t calls_ = 0;  // that nobody has taken
  bool is_over_ = false;
  std::atomic<std::size_t> helped_{0};
  std::vector<std::thread> threads_;
};

}  // namespace troupe::test
