#include "troupe/runtime/onnx/known_values.hpp"

#include "troupe/devices/host/kernel_arithmetic.hpp"
#include "troupe/runtime/graph/op_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <new>

namespace troupe::onnx {

std::optional<tensor> known_values::of(value v) {
  why_not_ = "depends on fed values";
  // Operands have smaller numbers: first who is needed and not known yet, then in ascending order.
  std::set<std::uint32_t> needed;
  std::vector<std::uint32_t> open{v.node};
  while (!open.empty()) {
    const auto n = open.back();
    open.pop_back();
    if (results_.contains(n) || !needed.insert(n).second) continue;
    for (const auto& in : graph_.node(n).inputs) open.push_back(in.node);
  }
  for (const auto n : needed)
    if (!compute(n)) results_[n] = {};
  // An input counts as used only where what follows from it is known.
  const auto& found = results_.at(v.node);
  if (v.output >= found.size()) return std::nullopt;
  open = {v.node};
  while (!open.empty()) {
    const auto n = open.back();
    open.pop_back();
    if (!asked_.insert(n).second) continue;
    if (graph_.node(n).type == "input") used_.insert(n);
    for (const auto& in : graph_.node(n).inputs) open.push_back(in.node);
  }
  return found[v.output];
}

bool known_values::compute(std::uint32_t number) {
  const auto& n = graph_.node(number);
  if (n.type == "input") {
    const auto given = inputs_.find(number);
    if (given == inputs_.end()) return false;
    results_[number] = {given->second};
    return true;
  }
  const auto* row = graph_.ops().find(n.type);
  std::size_t bytes = 0;
  for (const auto& o : n.outputs) {
    if (o.shape.is_symbolic() || o.shape.elements() > static_cast<std::int64_t>(node_bytes_max))
      return false;
    bytes += o.size_bytes();
  }
  if (row == nullptr || n.type == "variable" || row->depends_on_step || bytes > node_bytes_max ||
      bytes > all_bytes_max - bytes_)
    return false;
  std::vector<tensor> in;
  for (const auto& i : n.inputs) {
    const auto& from = results_.at(i.node);
    if (i.output >= from.size()) return false;
    in.push_back(from[i.output]);
  }
  if (row->is_forwarding) {
    results_[number] = {in.front()};
    return true;
  }
  // One of f64 takes memory of its image's size times its window's, which two small operands can
  // make anything; no size follows from it.
  if (n.type.starts_with("conv2d")) {
    why_not_ =
        fmt::format("depends on {} {} of {} and {}, which only a step computes", n.type,
                    to_string(n.outputs[0]), to_string(in[0].spec()), to_string(in[1].spec()));
    return false;
  }
  try {
    auto out = run(n, in);
    if (!out) return false;
    bytes_ += bytes;
    results_[number] = std::move(*out);
    return true;
  } catch (const std::bad_alloc&) {
    why_not_ = fmt::format("there is no memory left to compute {} {} for it", n.type,
                           to_string(n.outputs[0]));
    return false;
  }
}

std::optional<std::vector<tensor>> known_values::run(const graph_node& n,
                                                     const std::vector<tensor>& in) {
  // Kernels set the thread's arithmetic, and it is the caller's.
  const kernel_arithmetic as_in_a_step;
  if (!kernels_) kernels_ = make_host_kernels(), device_.emplace();
  const auto* kernel = kernels_->find(n.type);
  if (kernel == nullptr) return std::nullopt;
  std::vector<tensor> out;
  std::vector<tensor_spec> specs;
  for (const auto& t : in) specs.push_back(t.spec());
  auto made = kernel->make(n.attrs, *device_);
  if (!made || !(*made)->prepare(specs, n.outputs)) return std::nullopt;
  for (const auto& o : n.outputs) out.push_back(tensor::make(o));
  // An index that is outside: the step will say so.
  if (!(*made)->run(tag{}, in, out)) return std::nullopt;
  return out;
}

}  // namespace troupe::onnx
