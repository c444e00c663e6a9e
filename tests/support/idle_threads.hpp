#pragma once
// Threads that have nothing to do but help, as idle streams of a process do: for tests of kernels
// that share their work.

#include "tests/support/wait.hpp"
#include "troupe/devices/host/host_device.hpp"

#include <atomic>
#include <semaphore>
#include <thread>
#include <vector>

namespace troupe::test {

class idle_threads {
 public:
  // `threads` in all: the test's own is one of them.
  idle_threads(tile_team& team, std::size_t threads) : team_(team) {
    team.set_up(threads, [this](std::size_t wanted) {
      tiles_.release(static_cast<std::ptrdiff_t>(wanted));
    });
    for (std::size_t i = 1; i < threads; ++i)
      threads_.emplace_back([this] {
        set_up_kernel_thread();
        for (tiles_.acquire(); !is_over_; tiles_.acquire())
          while (team_.help()) helped_.fetch_add(1);
      });
  }
  ~idle_threads() {
    is_over_ = true;
    tiles_.release(static_cast<std::ptrdiff_t>(threads_.size()));
    const waiting_for named("the end of the idle threads");
    for (auto& t : threads_) t.join();
    team_.set_up(1, {});
  }
  // Times that somebody joined a run.
  std::size_t helped() const { return helped_; }

 private:
  tile_team& team_;
  std::counting_semaphore<> tiles_{0};
  std::atomic<bool> is_over_{false};
  std::atomic<std::size_t> helped_{0};
  std::vector<std::thread> threads_;
};

}  // namespace troupe::test
