#pragma once
// A model while it is written: its nodes, and the names of their results. Only runtime/onnx/
// includes this.
//
// A rule (export_ops.cpp) takes an op of a graph and gives the names of its results. What it cannot
// write leaves by `unwritable`.

#include "runtime/onnx/onnx_format.pb.h"
#include "troupe/devices/tensor.hpp"
#include "troupe/runtime/graph/graph.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace troupe::onnx {

// Why an op cannot be written.
struct unwritable {
  std::string what;
};

using names = std::vector<std::string>;
using written_attribute = std::variant<std::int64_t, float, std::string, std::vector<std::int64_t>>;
using written_attributes = std::vector<std::pair<std::string, written_attribute>>;

std::int32_t number_of_element(dtype t) noexcept;

class model_writer {
 public:
  onnx_format::Graph graph{};
  // By the number of an initializer: what it holds, which is put into the message, or into a file,
  // at the end.
  std::vector<tensor> data{};

  // A name that nothing has, made of this one.
  std::string fresh(std::string_view base);
  // Names of what is added until the next call begin so.
  void begin(std::string_view base) { base_ = base; }

  // A node with one result, or with several.
  std::string add(std::string_view op, names inputs, const written_attributes& attrs = {});
  names add_several(std::size_t results, std::string_view op, names inputs,
                    const written_attributes& attrs = {});
  // A node whose result has this name, which nothing else has.
  void add_named(std::string_view op, names inputs, const std::string& result,
                 const written_attributes& attrs = {});

  std::string constant(const tensor& t);
  std::string integers(const std::vector<std::int64_t>& all);  // i64 [n]
  std::string number(double x, dtype type);                    // of rank 0
  std::string cast(std::string x, dtype to);

 private:
  void put(std::string_view op, const names& inputs, const names& results,
           const written_attributes& attrs);

  std::string base_;
  std::map<std::string, int> next_;  // suffixes of names that are taken
  std::set<std::string> taken_;
  std::map<std::vector<std::int64_t>, std::string> lists_;
  std::map<std::pair<std::uint64_t, dtype>, std::string> numbers_;
};

// An op of a graph while it is written.
struct written_op {
  model_writer& w;
  const graph_node& n;
  const names& in;            // of its operands
  std::vector<bool> is_used;  // by result: something needs it

  const tensor_spec& operand(std::size_t i) const { return n.inputs[i].spec(); }
  std::size_t rank(std::size_t i) const { return operand(i).shape.rank(); }
};

using export_rule = std::function<names(const written_op&)>;
// By the type of op; "input", "variable" and constants are no rules.
std::map<std::string, export_rule, std::less<>> export_rules();

}  // namespace troupe::onnx
