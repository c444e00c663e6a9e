#pragma once
// What ops and plans mean, written as plainly as possible: one naive interpreter in f64 over graphs and over plans.
// Shapes come from the op table's rules with concrete operands, so that those are tested as well.

#include "devices/host/idx_sampler.hpp"
#include "runtime/graph.hpp"
#include "runtime/op_table.hpp"
#include "runtime/plan.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace troupe::reference {

struct array {
  tensor_spec spec;
  std::vector<double> at;
  friend bool operator==(const array&, const array&) = default;
};

inline array make(const tensor_spec& spec, const std::function<double(std::size_t)>& element) {
  array a{spec, std::vector<double>(static_cast<std::size_t>(spec.shape.elements()))};
  for (std::size_t i = 0; i < a.at.size(); ++i) a.at[i] = element(i);
  return a;
}

namespace detail {

inline std::size_t size(const array& a, std::size_t d) {
  return static_cast<std::size_t>(a.spec.shape.size(d));
}

// Element of b that goes with element i of a: the same, that of the last dimension, or the only one.
inline double spread(const array& b, std::size_t i) {
  return b.at[i % b.at.size()];
}

inline void matmul(const attributes& attrs, std::span<const array> in, array& out) {
  const bool ta = attrs.integer("transpose_a") != 0, tb = attrs.integer("transpose_b") != 0;
  const auto &a = in[0], &b = in[1];
  const auto inner = size(a, ta ? 0 : 1);
  for (std::size_t r = 0; r < size(out, 0); ++r)
    for (std::size_t c = 0; c < size(out, 1); ++c) {
      double sum = 0;
      for (std::size_t k = 0; k < inner; ++k)
        sum += a.at[ta ? k * size(a, 1) + r : r * size(a, 1) + k] * b.at[tb ? c * size(b, 1) + k : k * size(b, 1) + c];
      out.at[r * size(out, 1) + c] = sum;
    }
}

inline void cross_entropy(std::span<const array> in, std::vector<array>& out) {
  const auto &logits = in[0], &labels = in[1];
  const auto classes = size(logits, 1);
  out[0].at[0] = 0;
  for (std::size_t r = 0; r < size(logits, 0); ++r) {
    const auto* row = &logits.at[r * classes];
    const auto largest = *std::max_element(row, row + classes);
    double sum = 0;
    for (std::size_t c = 0; c < classes; ++c) sum += std::exp(row[c] - largest);
    const auto label = static_cast<std::size_t>(labels.at[r]);
    out[0].at[0] += in[2].at[0] * (std::log(sum) + largest - row[label]);
    for (std::size_t c = 0; c < classes; ++c)
      out[1].at[r * classes + c] = in[2].at[0] * (std::exp(row[c] - largest) / sum - (c == label ? 1 : 0));
  }
}

inline std::size_t largest_of_row(const array& x, std::size_t r) {
  const auto* row = &x.at[r * size(x, 1)];
  return static_cast<std::size_t>(std::max_element(row, row + size(x, 1)) - row);
}

// Sample i of the made-up dataset that stands for every path: pixels from a hash, the label is i modulo the classes.
inline double pixel(std::uint64_t sample, std::size_t p) {
  auto z = (sample * 1000 + p + 1) * 0x9e3779b97f4a7c15U;
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
  return static_cast<double>(z >> 40U) / static_cast<double>(1U << 24U);
}

inline void idx_batch(const attributes& attrs, std::uint64_t step, std::vector<array>& out) {
  const auto number = [&](const char* name) { return static_cast<std::uint64_t>(attrs.integer(name)); };
  const auto range = idx_schedule{number("samples"), number("batch"), number("parts"), number("part")}.range(step);
  const auto order = permutation(number("seed"), range.epoch, static_cast<std::uint32_t>(number("samples")));
  const auto pixels = size(out[0], 1);
  for (std::size_t r = 0; r < range.count; ++r) {
    const std::uint64_t sample = number("shuffle") != 0 ? order[range.first + r] : range.first + r;
    for (std::size_t p = 0; p < pixels; ++p) out[0].at[r * pixels + p] = pixel(sample, p);
    out[1].at[r] = static_cast<double>(sample % number("classes"));
  }
  const auto n = number("global_scale") != 0 ? range.global_count : range.count;
  out[2].at[0] = n == 0 ? 0 : 1 / static_cast<double>(n);
}

using element_rule = std::function<double(std::span<const array>, std::size_t)>;

inline const std::map<std::string, element_rule>& element_rules() {
  using in = std::span<const array>;
  static const std::map<std::string, element_rule> rules{
      {"add", [](in x, std::size_t i) { return x[0].at[i] + spread(x[1], i); }},
      {"sub", [](in x, std::size_t i) { return x[0].at[i] - spread(x[1], i); }},
      {"mul", [](in x, std::size_t i) { return x[0].at[i] * spread(x[1], i); }},
      {"maximum", [](in x, std::size_t i) { return std::max(x[0].at[i], spread(x[1], i)); }},
      {"neg", [](in x, std::size_t i) { return -x[0].at[i]; }},
      {"read", [](in x, std::size_t i) { return x[0].at[i]; }},
      {"relu", [](in x, std::size_t i) { return x[0].at[i] > 0 ? x[0].at[i] : 0.0; }},
      {"sigmoid", [](in x, std::size_t i) { return 1 / (1 + std::exp(-x[0].at[i])); }},
      {"tanh", [](in x, std::size_t i) { return std::tanh(x[0].at[i]); }},
      {"relu_grad", [](in x, std::size_t i) { return x[1].at[i] > 0 ? x[0].at[i] : 0.0; }},
      {"sigmoid_grad", [](in x, std::size_t i) { return x[0].at[i] * x[1].at[i] * (1 - x[1].at[i]); }},
      {"tanh_grad", [](in x, std::size_t i) { return x[0].at[i] * (1 - x[1].at[i] * x[1].at[i]); }},
      {"broadcast_like", [](in x, std::size_t i) { return spread(x[0], i); }},
  };
  return rules;
}

}  // namespace detail

// All outputs of an op in step `step`. Throws what the shape rule answers.
inline std::vector<array> run_op(const op_table& table, const std::string& type, const attributes& attrs,
                                 std::span<const array> in, std::uint64_t step) {
  std::vector<tensor_spec> specs;
  for (const auto& a : in) specs.push_back(a.spec);
  const tag t{.step = step};
  auto shapes = table.find(type)->shapes(attrs, specs, &t);
  if (!shapes) throw std::runtime_error(type + ": " + shapes.error().text());
  std::vector<array> out;
  for (const auto& s : *shapes) out.push_back(make(s, [](std::size_t) { return 0.0; }));
  auto& y = out[0];
  if (const auto rule = detail::element_rules().find(type); rule != detail::element_rules().end()) {
    for (std::size_t i = 0; i < y.at.size(); ++i) y.at[i] = rule->second(in, i);
  } else if (type == "maximum_grad") {
    for (std::size_t i = 0; i < y.at.size(); ++i) {
      const bool is_a = in[1].at[i] >= detail::spread(in[2], i);
      y.at[i] = is_a == (attrs.integer("side") == 0) ? in[0].at[i] : 0;
    }
  } else if (type == "constant") {
    y.at[0] = attrs.real("value");
  } else if (type == "matmul") {
    detail::matmul(attrs, in, y);
  } else if (type == "reduce_sum_rows") {
    for (std::size_t i = 0; i < in[0].at.size(); ++i) y.at[i % y.at.size()] += in[0].at[i];
  } else if (type == "reduce_sum") {
    for (const auto v : in[0].at) y.at[0] += v;
  } else if (type == "argmax") {
    for (std::size_t r = 0; r < y.at.size(); ++r) y.at[r] = static_cast<double>(detail::largest_of_row(in[0], r));
  } else if (type == "count_correct") {
    for (std::size_t r = 0; r < in[1].at.size(); ++r)
      y.at[0] += static_cast<double>(detail::largest_of_row(in[0], r)) == in[1].at[r] ? 1 : 0;
  } else if (type == "softmax_cross_entropy") {
    detail::cross_entropy(in, out);
  } else if (type == "idx_batch") {
    detail::idx_batch(attrs, step, out);
  } else {
    throw std::runtime_error("the reference does not know " + type);
  }
  return out;
}

using feeds = std::map<std::string, array>;  // inputs and variables by name

// The value of `v`. Everything up to it is computed, in order.
inline array evaluate(const graph& g, value v, const feeds& fed, std::uint64_t step = 0) {
  std::vector<bool> is_needed(v.node + 1);
  is_needed[v.node] = true;
  for (auto i = v.node + 1; i-- > 0;)
    if (is_needed[i])
      for (const auto& in : g.node(i).inputs) is_needed[in.node] = true;
  std::vector<std::vector<array>> values(v.node + 1);
  for (std::uint32_t i = 0; i <= v.node; ++i) {
    if (!is_needed[i]) continue;
    const auto& n = g.node(i);
    if (n.type == "input" || n.type == "variable") {
      values[i] = {fed.at(n.name)};
      continue;
    }
    std::vector<array> in;
    for (const auto& x : n.inputs) in.push_back(values[x.node][x.output]);
    values[i] = run_op(g.ops(), n.type, n.attrs, in, step);
  }
  return values[v.node][v.output];
}

// Runs a plan step by step, every actor once a step, synchronous shards only.
class plan_runner {
 public:
  plan_runner(const plan& p, const op_table& table, feeds fed) : p_(p), table_(table), fed_(std::move(fed)) {
    for (const auto& a : p.actors)
      if (a.kind == actor_kind::shard) {
        variables_[a.name] = fed_.at(a.shard.variable);
        velocity_[a.name] = make(a.shard.spec, [](std::size_t) { return 0.0; });
      }
  }

  // What arrives at each port of the fetch `name` in the next step.
  std::vector<array> step(const std::string& name) {
    values_.assign(p_.actors.size(), std::nullopt);
    std::vector<array> fetched;
    for (std::uint32_t i = 0; i < p_.actors.size(); ++i)
      if (p_.actors[i].kind == actor_kind::fetch && p_.actors[i].name == name) fetched = inputs_of(i);
    std::map<std::string, std::vector<array>> gradients;
    for (std::uint32_t i = 0; i < p_.actors.size(); ++i)
      if (p_.actors[i].kind == actor_kind::shard) gradients[p_.actors[i].name] = inputs_of(i);
    for (const auto& a : p_.actors)
      if (a.kind == actor_kind::shard) apply(a, gradients[a.name]);
    ++step_;
    return fetched;
  }

  // Variables as the fetch "variables" would show them.
  std::vector<array> variables() {
    values_.assign(p_.actors.size(), std::nullopt);
    for (std::uint32_t i = 0; i < p_.actors.size(); ++i)
      if (p_.actors[i].kind == actor_kind::fetch && p_.actors[i].name == "variables") return inputs_of(i);
    return {};
  }

 private:
  void apply(const planned_actor& a, const std::vector<array>& gradients) {
    auto &w = variables_.at(a.name), &v = velocity_.at(a.name);
    for (std::size_t i = 0; i < w.at.size(); ++i) {
      double g = 0;
      for (const auto& x : gradients) g += x.at.at(i);
      v.at[i] = a.shard.optimizer.momentum * v.at[i] + g;
      w.at[i] -= a.shard.optimizer.learning_rate * v.at[i];
    }
  }

  std::vector<array> inputs_of(std::uint32_t actor) {
    std::vector<array> in;
    for (const auto e : p_.actors[actor].inputs) {
      const auto from = p_.edges[e].from;
      in.push_back(outputs_of(from.actor).at(from.port));
    }
    return in;
  }

  // By recursion: for small plans.
  std::vector<array> outputs_of(std::uint32_t i) {
    if (values_[i]) return *values_[i];
    const auto& a = p_.actors[i];
    std::vector<array> out;
    if (a.kind == actor_kind::shard) {
      out.assign(a.outputs.size(), variables_.at(a.name));
    } else if (a.kind == actor_kind::feed) {
      out = {fed_.at(a.name)};
    } else if (a.kind == actor_kind::send || a.kind == actor_kind::receive) {
      out = inputs_of(i);
    } else {
      const auto in = inputs_of(i);
      std::vector<std::vector<array>> results;
      for (const auto& op : a.ops) {
        std::vector<array> operands;
        for (const auto o : op.operands)
          operands.push_back(o >= 0 ? in.at(static_cast<std::size_t>(o))
                                    : results.at(static_cast<std::size_t>(-1 - o)).at(0));
        results.push_back(run_op(table_, op.type, op.attrs, operands, step_));
      }
      out = results.back();
    }
    for (std::size_t port = 0; port < out.size(); ++port)
      if (!a.output_specs.at(port).shape.admits(out[port].spec.shape))
        throw std::runtime_error(a.name + ": larger than its bound");
    values_[i] = out;
    return out;
  }

  const plan& p_;
  const op_table& table_;
  feeds fed_;
  std::map<std::string, array> variables_, velocity_;
  std::vector<std::optional<std::vector<array>>> values_;
  std::uint64_t step_ = 0;
};

}  // namespace troupe::reference
