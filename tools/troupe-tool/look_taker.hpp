#pragma once
// The thread that asks the cluster for `troupe serve`: about once a second while somebody looks,
// and not at all while nobody does.
//
// SE-7  At most one question is under way, and everybody who looks shares its answer.
//
// Threading: any thread may call want(), last() and before(); `on_look` is called on this thread.
// Ownership: looks are shared; what `ask` and `on_look` use outlives the taker.

#include "tools/troupe-tool/serve_look.hpp"

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace troupe {

inline std::int64_t steady_now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

class look_taker {
 public:
  using shared_look = std::shared_ptr<const cluster_look>;
  // `ask` blocks until the cluster has answered, within a time limit of its own.
  look_taker(std::function<result<cluster_snapshot>()> ask, std::function<void()> on_look);
  ~look_taker();  // waits for the question under way
  look_taker(const look_taker&) = delete;
  look_taker& operator=(const look_taker&) = delete;

  // Somebody looks: there is a look each second for the next wanted_ns, the first one soon.
  void want();
  // nullptr: there was none yet. `before`: the last one before it that had a snapshot.
  shared_look last() const;
  shared_look before() const;
  // No more questions; returns whether none is under way.
  bool stop();

 private:
  void run();
  void take();

  const std::function<result<cluster_snapshot>()> ask_;
  const std::function<void()> on_look_;
  look_totals totals_;  // of the thread
  mutable std::mutex lock_;
  std::condition_variable changed_;
  shared_look last_, before_, good_;
  std::int64_t wanted_until_ns_ = 0;
  bool is_over_ = false, is_asking_ = false;
  std::thread thread_;
};

}  // namespace troupe
