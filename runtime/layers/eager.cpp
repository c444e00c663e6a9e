#include "troupe/runtime/layers/eager.hpp"

#include "troupe/devices/half.hpp"
#include "troupe/devices/host/host_device.hpp"
#include "troupe/devices/host/kernel_arithmetic.hpp"
#include "troupe/runtime/graph/initializers.hpp"
#include "troupe/runtime/graph/op_table.hpp"

#include <fmt/format.h>

#include <new>
#include <utility>

namespace troupe {
namespace {

result<tensor> room_for(const tensor_spec& s) {
  try {
    return tensor::make(s);
  } catch (const std::bad_alloc&) {
    return error(error_code::failed, fmt::format("there is no memory for {}", to_string(s)));
  }
}

}  // namespace

eager::eager(const op_table& ops, const kernel_table& kernels, host_device& device,
             std::uint64_t seed)
    : graph(ops), kernels_(kernels), device_(device), seed_(seed) {}

value eager::value_of(tensor t, std::string_view name, source_location where) {
  if (!t) {
    record(error(error_code::usage, fmt::format("'{}': there is no tensor", name)).at(where));
    return {};
  }
  const auto spec = t.spec();
  given_ = std::move(t);
  const auto v = input(*this, spec, name, where);
  given_ = {};
  return v;
}

result<tensor> eager::read(value v) const {
  if (!v.is_valid())
    return first_error() ? *first_error()
                         : error(error_code::usage,
                                 "the value is invalid: no gradient flows to it, or no op made it");
  if (v.owner != this || v.node >= tensors_.size() || v.output >= tensors_[v.node].size())
    return error(error_code::usage,
                 "the value does not belong to this eager graph, or its tape has ended");
  return tensors_[v.node][v.output];
}

std::optional<bool> eager::known(const value& v) const {
  const auto t = read(v);
  return t && t->type() == dtype::boolean && t->elements() == 1
             ? std::optional(bool(*t->data<boolean>()))
             : std::nullopt;
}

std::optional<error> eager::take_error() {
  auto e = first_error();
  forget_error();
  return e;
}

void eager::end_tape(std::size_t begin) {
  if (begin >= tensors_.size()) return;
  tensors_.erase(tensors_.begin() + static_cast<std::ptrdiff_t>(begin), tensors_.end());
  cut_back(begin);
}

result<void> eager::on_added(const graph_node& n) {
  std::vector<tensor> outputs;
  const auto* row = ops().find(n.type);
  if (n.type == "input") {
    if (!given_) return error(error_code::usage, "an input has no value here: use value_of()");
    outputs.push_back(given_);
  } else if (n.type == "variable") {
    auto t = initial(n);
    if (!t) return std::move(t.error());
    outputs.push_back(std::move(*t));
  } else if (row->is_forwarding) {
    outputs.push_back(tensors_[n.inputs[0].node][n.inputs[0].output]);
  } else if (auto ok = compute(n, outputs); !ok) {
    return ok;
  }
  tensors_.push_back(std::move(outputs));
  return {};
}

result<void> eager::compute(const graph_node& n, std::vector<tensor>& outputs) {
  const auto* kernels = kernels_.find(n.type);
  if (kernels == nullptr) return error(error_code::usage, "there is no kernel for this op");
  auto made = kernels->make(n.attrs, device_);
  if (!made) return std::move(made.error());
  if (*made == nullptr)
    return error(error_code::failed, "the kernel table returned no kernel for this op");
  std::vector<tensor> inputs;
  std::vector<tensor_spec> specs;
  for (const auto& in : n.inputs) {
    inputs.push_back(tensors_[in.node][in.output]);
    specs.push_back(inputs.back().spec());
  }
  // Whatever thread it is, with the bits of a stream's; its own arithmetic comes back.
  const kernel_arithmetic as_on_a_stream;
  set_up_kernel_thread();
  if (auto ok = (*made)->prepare(specs, n.outputs); !ok) return ok;
  for (const auto& s : n.outputs) {
    auto t = room_for(s);
    if (!t) return std::move(t.error());
    outputs.push_back(std::move(*t));
  }
  if (auto ok = (*made)->run(tag_, inputs, outputs); !ok) return ok;
  for (std::size_t i = 0; i < outputs.size(); ++i)
    if (!outputs[i] || outputs[i].spec() != n.outputs[i])
      return error(error_code::failed,
                   fmt::format("its kernel made {} as output {}, which must be {}",
                               outputs[i] ? to_string(outputs[i].spec()) : "nothing", i,
                               to_string(n.outputs[i])));
  return {};
}

void eager::set_variable(std::string name, tensor t) {
  variables_.insert_or_assign(std::move(name), std::move(t));
}

result<tensor> eager::initial(const graph_node& n) const {
  if (const auto set = variables_.find(n.name); set != variables_.end()) {
    if (!set->second || set->second.spec() != n.outputs[0])
      return error(error_code::usage,
                   fmt::format("the variable is {}, but was set to {}", to_string(n.outputs[0]),
                               set->second ? to_string(set->second.spec()) : "nothing"));
    return set->second;
  }
  auto made = room_for(n.outputs[0]);
  if (!made) return made;
  auto& t = *made;
  initialize({t.data<float>(), static_cast<std::size_t>(t.elements())},
             n.initializer.value_or(initializer_spec{}), seed_, n.name);
  return made;
}

}  // namespace troupe
