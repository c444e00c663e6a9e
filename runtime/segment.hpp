#pragma once
// Segments: ops of one device that are one actor, since its stream runs them in order anyhow (plan.hpp, PL-12).
//
// Pure functions of a plan.

#include "runtime/plan.hpp"
#include "schema/error.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace troupe {

// The ops of kernel `k`.
std::span<const planned_op> ops_of(const planned_actor& segment, std::size_t k) noexcept;
// A variable may be in a device's memory where nothing but the job's own ops, and an observer, has to do with its values.
bool may_be_on_device(const shard_spec& s) noexcept;
// For each value of a segment, in order: the last kernel that takes it; the one that makes it, if nobody does.
std::vector<std::size_t> last_readers(std::span<const planned_kernel> kernels);

// Gives every value of `kernels` that has no output port a place in an arena, first fit in the order of kernels: in a stream a value is dead once its last reader is
// enqueued. Returns the arena's size.
std::uint64_t place_values(std::vector<planned_kernel>& kernels);

// What is wrong with one segment by itself, and with where the plan's memory lies (PL-12).
result<void> check_segment(const planned_actor& a);
result<void> check_devices(const plan& p);

// What a task needs of device gpu:`device`: buffers of output ports, one more than their credits, and the largest arena, which segments of a stream take in turn.
struct device_need {
  std::uint64_t bytes = 0;
  std::string largest;  // of which how much is for whom, for people
};
device_need memory_of_device(const plan& p, std::uint32_t task, std::uint32_t device);
// Devices that the task's actors stand on, ascending.
std::vector<std::uint32_t> devices_of(const plan& p, std::uint32_t task);

}  // namespace troupe
