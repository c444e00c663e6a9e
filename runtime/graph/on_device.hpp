#pragma once
// Ops that belong to a value stand where it stands: its gradient, the sum of its gradients, what
// scales and clips them. So towers on several devices have their backward pass there, too, and it
// moves no more than their forward pass does.
//
// Threading: as of graph.

#include "troupe/runtime/graph/graph.hpp"
#include "troupe/runtime/plan/device_name.hpp"

#include <string>
#include <utility>

namespace troupe {

// What `make` adds stands on `device`, as within a device_scope of it; empty: where it would
// anyway.
template <class Make>
auto on_device(graph& g, const std::string& device, const source_location& where, Make&& make) {
  if (device.empty()) return make();
  const auto scope = g.device_scope(device, where);
  return make();
}

// The wish of the op that makes `v`. A variable that is to stand on a task is there for its shard
// alone: what workers make of it stands where they do.
inline std::string device_of(const value& v) {
  if (!v.is_valid() || !v.owner->has(v)) return {};
  const auto& n = v.owner->node(v.node);
  if (n.device.empty() || n.type != "variable") return n.device;
  const auto wish = parse_device(n.device);
  return wish && !wish->job && !wish->task ? n.device : std::string();
}

// Where a + b is made that belongs to no value: where both stand, else `otherwise`.
inline std::string common_device(const value& a, const value& b, std::string otherwise = {}) {
  auto device = device_of(a);
  return device == device_of(b) ? device : std::move(otherwise);
}

// Where gradients a + b of `of` are added up: where both stand, else where the value does.
inline std::string device_of_sum(const value& of, const value& a, const value& b) {
  return common_device(a, b, device_of(of));
}

}  // namespace troupe
