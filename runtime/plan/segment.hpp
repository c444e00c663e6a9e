#pragma once
// Segments: ops of one device that are one actor, since its stream runs them in order anyhow
// (plan.hpp, PL-12).
//
// Pure functions of a plan.

#include "troupe/runtime/plan/plan.hpp"
#include "troupe/schema/error.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace troupe {

// The ops of kernel `k`.
std::span<const planned_op> ops_of(const planned_actor& segment, std::size_t k) noexcept;
// What it is called: "dense_1/matmul+add+relu".
std::string name_of_kernel(const planned_actor& segment, std::size_t k);
// A variable may be in a device's memory where nothing but the job's own ops, and an observer, has
// to do with its values.
bool may_be_on_device(const shard_spec& s) noexcept;
// For each value of a segment, in order: the last kernel that takes it; the one that makes it, if
// nobody does.
std::vector<std::size_t> last_readers(std::span<const planned_kernel> kernels);

// Gives every value of `kernels` that has no output port a place in an arena, first fit in the
// order of kernels: in a stream a value is dead once its last reader is enqueued. Returns the
// arena's size.
std::uint64_t place_values(std::vector<planned_kernel>& kernels);

// What is wrong with one segment by itself, and with where the plan's memory lies (PL-12).
result<void> check_segment(const planned_actor& a);
result<void> check_devices(const plan& p);

// What a rank on a device gathers at once: a piece of every part, as many of each rank as the one
// with the most has.
std::uint64_t gathered_bytes(const planned_collective& c) noexcept;
// What a task needs of device gpu:`device`: buffers of output ports, one more than their credits,
// and the largest arena, which segments of a stream take in turn.
struct device_need {
  std::uint64_t bytes = 0;
  std::string largest;  // of which how much is for whom, for people
};
device_need memory_of_device(const plan& p, std::uint32_t task, std::uint32_t device);
// The output port that made what a copy takes, behind those that only pass it on.
port_ref maker_of(const plan& p, const planned_actor& copy);
// How many buffers may hold what an output port of the host gives, at once, where it is copied to a
// device. Of a `receive`: twice the credits of its edge and one, as links keep; of an op: one that
// it writes, and what waits for its other consumers. And for each copy what waits for it and what
// it has under way. 0: nobody copies it there, or it has memory that the plan shares.
std::size_t landing_buffers(const plan& p, port_ref from);
// Devices that the task's actors stand on, ascending.
std::vector<std::uint32_t> devices_of(const plan& p, std::uint32_t task);

}  // namespace troupe
