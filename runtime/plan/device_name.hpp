#pragma once
// Placement strings: "/job:NAME/task:N/cpu:N", "/job:NAME/task:N/gpu:N". Every part may be left
// out, but not all of them, and the order is fixed.
//
// /job and /task choose a task of the plan, /cpu chooses a host stream of it (taken modulo the
// streams that its node has), /gpu a device of it, which has to be there.

#include "troupe/schema/error.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace troupe {

struct device_name {
  std::optional<std::string> job;  // letters, digits, '_' and '-'
  std::optional<std::uint32_t> task;
  std::optional<std::uint32_t> cpu, gpu;  // one of them at most

  // The parts of `wish` where it has them, else those of this: how inner scopes refine outer ones.
  device_name refined_by(const device_name& wish) const;
  // True where job and task, as far as they are given here, are those of `full`
  // ("/job:worker/task:0").
  bool admits(const device_name& full) const noexcept;

  friend bool operator==(const device_name&, const device_name&) = default;
};

// An error says which part is wrong and what devices there are; the caller adds the user's line.
result<device_name> parse_device(std::string_view text);
std::string to_string(const device_name& d);

}  // namespace troupe
