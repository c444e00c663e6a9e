#pragma once
// Writes small models in the ONNX format, good ones and bad ones.

#include "runtime/onnx/onnx_format.pb.h"
#include "tests/support/reference_array.hpp"
#include "tests/support/reference_tensor.hpp"
#include "troupe/runtime/onnx/onnx_import.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace troupe::test {

using onnx_attribute = std::variant<std::int64_t, float, std::string, std::vector<std::int64_t>,
                                    std::vector<float>, std::vector<std::string>, reference::array>;
using onnx_attributes = std::map<std::string, onnx_attribute>;

inline int onnx_number(dtype t) {
  constexpr int numbers[dtype_count] = {1, 11, 6, 7, 2, 10, 16, 9};
  return numbers[static_cast<std::size_t>(t)];
}

inline void put_tensor(onnx_format::Tensor& to, const reference::array& a,
                       std::string_view name = "") {
  to.set_type(onnx_number(a.spec.type));
  for (const auto n : a.spec.shape.sizes()) to.add_dims(n);
  if (!name.empty()) to.set_name(std::string(name));
  const auto t = reference::to_tensor(a);
  to.set_raw(std::string(reinterpret_cast<const char*>(t.bytes().data()), t.size_bytes()));
}

class onnx_writer {
 public:
  explicit onnx_writer(std::int64_t opset = 17) {
    model.set_ir_version(8);
    model.add_operator_sets()->set_version(opset);
    model.mutable_graph()->set_name("g");
  }

  onnx_format::Model model;
  onnx_format::Graph& graph() { return *model.mutable_graph(); }

  void port(onnx_format::Port& to, const std::string& name, const tensor_spec& spec) {
    to.set_name(name);
    auto& type = *to.mutable_type()->mutable_tensor();
    type.set_element(onnx_number(spec.type));
    for (const auto n : spec.shape.sizes()) type.mutable_shape()->add_dims()->set_size(n);
    type.mutable_shape();
  }
  void input(const std::string& name, const tensor_spec& spec) {
    port(*graph().add_inputs(), name, spec);
  }
  void output(const std::string& name) { graph().add_outputs()->set_name(name); }
  onnx_format::Tensor& initializer(const std::string& name, const reference::array& a) {
    auto& t = *graph().add_initializers();
    put_tensor(t, a, name);
    return t;
  }
  onnx_format::Node& node(const std::string& op, const std::vector<std::string>& in,
                          const std::vector<std::string>& out, const onnx_attributes& attrs = {}) {
    auto& n = *graph().add_nodes();
    n.set_op_type(op);
    n.set_name(op + "_node");
    for (const auto& i : in) n.add_inputs(i);
    for (const auto& o : out) n.add_outputs(o);
    for (const auto& [name, x] : attrs) {
      auto& a = *n.add_attributes();
      a.set_name(name);
      if (const auto* i = std::get_if<std::int64_t>(&x)) a.set_integer(*i), a.set_type(2);
      if (const auto* f = std::get_if<float>(&x)) a.set_real(*f), a.set_type(1);
      if (const auto* s = std::get_if<std::string>(&x)) a.set_text(*s), a.set_type(3);
      if (const auto* l = std::get_if<std::vector<std::int64_t>>(&x))
        for (const auto k : *l) a.add_integers(k), a.set_type(7);
      if (const auto* l = std::get_if<std::vector<float>>(&x))
        for (const auto k : *l) a.add_reals(k), a.set_type(6);
      if (const auto* l = std::get_if<std::vector<std::string>>(&x))
        for (const auto& k : *l) a.add_texts(k), a.set_type(8);
      if (const auto* t = std::get_if<reference::array>(&x))
        put_tensor(*a.mutable_tensor(), *t), a.set_type(4);
    }
    return n;
  }

  std::string bytes() const { return model.SerializeAsString(); }
  result<onnx_model> load(const std::string& folder = "") const {
    const auto text = bytes();
    return parse_onnx(std::as_bytes(std::span(text)), "model.onnx", folder);
  }
};

}  // namespace troupe::test
