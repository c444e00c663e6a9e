#pragma once
// When a call of the program waits no longer.
//
// A program may give any duration: one below 0 is over at once, and one above `wait_max`, such as
// milliseconds::max(), is `wait_max`. So no sum with the clock overflows, here or in CAF.
//
// Threading: values.

#include <algorithm>
#include <chrono>

namespace troupe {

inline constexpr std::chrono::milliseconds wait_max = std::chrono::hours(24 * 365);

class deadline {
 public:
  using clock = std::chrono::steady_clock;

  explicit deadline(std::chrono::milliseconds from_now)
      : end_(clock::now() + std::clamp(from_now, std::chrono::milliseconds(0), wait_max)) {}

  bool is_over() const { return clock::now() >= end_; }
  // Rounded up, so that who waits for that long does not come too early; 0 when it is over.
  std::chrono::milliseconds left() const {
    return std::max(std::chrono::milliseconds(0),
                    std::chrono::ceil<std::chrono::milliseconds>(end_ - clock::now()));
  }

 private:
  clock::time_point end_;
};

}  // namespace troupe
