#pragma once
// The families of ops, and what their rows share. Only runtime/ops/ includes this.

#include "runtime/op_table.hpp"

#include <fmt/format.h>

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe::ops {

void add_sources(op_table& t);  // input, variable, constant
void add_idx_batch(op_table& t);
void add_elementwise(op_table& t);  // add, relu, relu_grad, ...
void add_matmul(op_table& t);
void add_reductions(op_table& t);  // reduce_sum, broadcast_like, argmax, ...
void add_losses(op_table& t);      // softmax_cross_entropy, count_correct

using specs = std::vector<tensor_spec>;

// "a f32[128?, 784], b f32[10]: RULE", as an error of the user's.
inline error misfit(std::span<const tensor_spec> inputs, std::initializer_list<std::string_view> names,
                    std::string_view rule) {
  std::string text;
  auto name = names.begin();
  for (const auto& s : inputs) {
    text += fmt::format("{}{}{}{}", text.empty() ? "" : ", ", name != names.end() ? *name : "",
                        name != names.end() ? " " : "", to_string(s));
    if (name != names.end()) ++name;
  }
  return error(error_code::usage, text.empty() ? std::string(rule) : fmt::format("{}: {}", text, rule));
}

// Appends an op to the graph that the operands belong to. Operands that are invalid because of an earlier error give an
// invalid value; operands that never were of any graph are an error, if any other one is.
inline value append(std::string_view type, std::initializer_list<value> operands, attributes attrs,
                    const source_location& where) {
  graph* owner = nullptr;
  for (const auto& v : operands)
    if (v.is_valid()) owner = v.owner;
  if (owner == nullptr) return {};
  return owner->add(std::string(type), std::span(operands.begin(), operands.size()), std::move(attrs), type, where);
}

inline bool is_floating(const tensor_spec& s) noexcept {
  return s.type == dtype::f32 || s.type == dtype::f64;
}

inline tensor_spec scalar(dtype type) {
  return tensor_spec{type, shape{}};
}

// A spec as attributes ("dtype", "rank", "dim0", "symbol0", ...), for ops whose outputs do not follow from operands.
attributes attributes_of(const tensor_spec& spec);
result<tensor_spec> spec_of(const attributes& attrs);

}  // namespace troupe::ops
