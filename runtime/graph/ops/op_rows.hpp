#pragma once
// The families of ops, and what their rows share. Only runtime/graph/ops/ includes this.

#include "troupe/runtime/graph/op_table.hpp"

#include <fmt/format.h>

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe::ops {

void add_sources(op_table& t);  // input, variable, constant; read, after, stop_gradient
void add_control(op_table& t);  // branch, merge, loop_enter, ...
void add_idx_batch(op_table& t);
void add_text_batch(op_table& t);
void add_arithmetic(op_table& t);   // add, pow, ...
void add_math(op_table& t);         // exp, sqrt, ...
void add_activations(op_table& t);  // relu, gelu, relu_grad, ...
void add_comparisons(op_table& t);  // less, logical_and, where, cast, ...
void add_matmul(op_table& t);
void add_convolution(op_table& t);    // conv2d and its gradients
void add_pooling(op_table& t);        // max_pool2d, avg_pool2d
void add_normalisation(op_table& t);  // standardize
void add_softmax(op_table& t);        // softmax, log_softmax
void add_attention(op_table& t);      // attention
void add_reductions(op_table& t);     // reduce_sum, argmax, broadcast_like, ...
void add_layout(op_table& t);         // reshape, transpose, slice, concat, ...
void add_indexing(op_table& t);       // gather, one_hot, top_k, ...
void add_collectives(op_table& t);    // all_reduce, all_gather, ...
void add_losses(op_table& t);         // softmax_cross_entropy, count_correct
void add_random(op_table& t);         // random_uniform, dropout_mask, ...

using specs = std::vector<tensor_spec>;

// "a f32[128?, 784], b f32[10]: RULE", as an error of the user's.
inline error misfit(std::span<const tensor_spec> inputs, std::span<const std::string_view> names,
                    std::string_view rule) {
  std::string text;
  auto name = names.begin();
  for (const auto& s : inputs) {
    text += fmt::format("{}{}{}{}", text.empty() ? "" : ", ", name != names.end() ? *name : "",
                        name != names.end() ? " " : "", to_string(s));
    if (name != names.end()) ++name;
  }
  return error(error_code::usage,
               text.empty() ? std::string(rule) : fmt::format("{}: {}", text, rule));
}

inline error misfit(std::span<const tensor_spec> inputs,
                    std::initializer_list<std::string_view> names, std::string_view rule) {
  return misfit(inputs, std::span(names.begin(), names.size()), rule);
}

// Of ops whose result does not change with the operands, or jumps.
inline std::vector<value> no_gradient(graph&, const graph_node& n, std::span<const value>) {
  return std::vector<value>(n.inputs.size());
}

// Appends an op to the graph that the operands belong to. Operands that are invalid because of an
// earlier error give an invalid value; operands that never were of any graph are an error, if any
// other one is.
inline value append(std::string_view type, std::span<const value> operands, attributes attrs,
                    const source_location& where) {
  graph* owner = nullptr;
  for (const auto& v : operands)
    if (v.is_valid()) owner = v.owner;
  if (owner == nullptr) return {};
  return owner->add(std::string(type), operands, std::move(attrs), type, where);
}
inline value append(std::string_view type, std::initializer_list<value> operands, attributes attrs,
                    const source_location& where) {
  return append(type, std::span(operands.begin(), operands.size()), std::move(attrs), where);
}

inline tensor_spec scalar(dtype type) { return tensor_spec{type, shape{}}; }

// A spec as attributes ("dtype", "rank", "dim0", "symbol0", ...), for ops whose outputs do not
// follow from operands.
attributes attributes_of(const tensor_spec& spec);
result<tensor_spec> spec_of(const attributes& attrs);
// Whether the type has this number exactly; floating ones have all, rounded.
bool is_number_of(dtype type, double value) noexcept;

}  // namespace troupe::ops
