#pragma once
// Placement strings: "/job:NAME/task:N/cpu:N", "/node:NAME/gpu:N", "/label:KEY=VALUE". Every part
// may be left out, but not all of them, and the order is fixed: job, task, node, label, cpu or gpu.
//
// /job and /task choose a task of the plan, /node a node by its name (troupe-node --name), /label
// one that has it (--label rack=3); all that is there must hold. /cpu chooses a host stream (taken
// modulo the streams that its node has), /gpu a device, which has to be there.

#include "troupe/schema/error.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace troupe {

struct device_name {
  std::optional<std::string> job;  // letters, digits, '_' and '-'
  std::optional<std::uint32_t> task;
  std::optional<std::string> node;        // letters, digits, '_', '-' and '.'
  std::optional<std::string> label;       // "rack=3", of the same letters
  std::optional<std::uint32_t> cpu, gpu;  // one of them at most

  bool names_a_place() const noexcept { return job || task || node || label; }
  bool names_more_than_a_task() const noexcept { return node || label || cpu || gpu; }
  // The parts of `wish` where it has them, else those of this: how inner scopes refine outer ones.
  // A wish for a node leaves nothing of an outer job, task or label, one for a job or task nothing
  // of an outer node.
  device_name refined_by(const device_name& wish) const;
  // True where job and task, as far as they are given here, are those of `full`
  // ("/job:worker/task:0").
  bool admits(const device_name& full) const noexcept;

  friend bool operator==(const device_name&, const device_name&) = default;
};

// Whether a node may have this name, or this label ("rack=3").
bool is_node_name(std::string_view text) noexcept;
bool is_node_label(std::string_view text) noexcept;

// An error says which part is wrong and what devices there are; the caller adds the user's line.
result<device_name> parse_device(std::string_view text);
std::string to_string(const device_name& d);

}  // namespace troupe
