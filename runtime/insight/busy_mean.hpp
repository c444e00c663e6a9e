#pragma once
// How busy something was of late: the mean of samples "busy or not", each counting less by a
// constant factor than the next.
//
// Time is the number of samples taken so far, of whatever is sampled; who was not busy need not be
// told so. So a sampler that finds one of a thousand actors running writes to that one only.
//
// BM-1  The ratio is in 0..1. After a change of load it is within a seventh of the new one two
//       windows later.
// Threading: one owner, which samples and reads.

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace troupe {

class busy_mean {
 public:
  static constexpr double window_samples = 50;  // a second of a node's ticks

  // The sample number `now`, counted from 1, found it busy. Numbers ascend; those left out found it
  // idle.
  void add_busy(std::uint64_t now) noexcept {
    level_ = ratio(now) + (1 - std::exp(-1 / window_samples));
    last_ = now;
  }
  // After sample number `now`.
  double ratio(std::uint64_t now) const noexcept {
    const auto idle = now > last_ ? static_cast<double>(now - last_) : 0.0;
    return std::clamp(level_ * std::exp(-idle / window_samples), 0.0, 1.0);
  }

 private:
  double level_ = 0;  // after sample `last_`
  std::uint64_t last_ = 0;
};

}  // namespace troupe
