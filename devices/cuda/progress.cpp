#include "troupe/devices/cuda/progress.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace troupe::cuda {

std::string progress::in_question(bool is_exact) const {
  if (done_ >= last_) return {};
  const auto count = last_ - done_;
  const auto first = std::max(done_, last_ > kept ? last_ - kept : 0);
  const auto name = [&](std::uint64_t place) { return names_[place % kept]; };
  if (count == 1 || is_exact) return fmt::format("op {}", name(first));
  return fmt::format("one of {} ops, from {} to {}", count, name(first), name(last_ - 1));
}

}  // namespace troupe::cuda
