#pragma once
// What the parts of flow_group share: counters with one writer (stage_counters.hpp), and what a
// user's function has thrown.
//
// Threading: a counter has one writer.

#include "troupe/schema/error.hpp"

#include <atomic>
#include <exception>

namespace troupe {

template <class T>
[[gnu::always_inline]] inline void count(std::atomic<T>& c, T n) noexcept {
  c.store(c.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
}
template <class T>
inline T now_in(const std::atomic<T>& c) noexcept {
  return c.load(std::memory_order_relaxed);
}

// Called where something was caught.
inline error what_was_thrown() {
  try {
    throw;
  } catch (const std::exception& e) {
    return {error_code::failed, e.what()};
  } catch (...) {
    return {error_code::failed, "it threw something that is no exception"};
  }
}

}  // namespace troupe
