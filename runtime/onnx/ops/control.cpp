// If, Loop and Scan. What is known while the graph is built is decided there: the branch that is
// taken, the iterations of a loop one after the other. Else they are branches and loops of the
// graph (runtime/graph/control_flow.hpp).

#include "troupe/devices/half.hpp"
#include "troupe/runtime/onnx/node.hpp"

#include <algorithm>

namespace troupe::onnx {
namespace {

constexpr std::int64_t written_out_max = 1024;  // iterations, of ops each

value condition_of(const node& n, value v) {
  if (spec(v).type != dtype::boolean || spec(v).shape.elements() != 1)
    n.refuse(fmt::format("a condition must be one bool, and is {}", to_string(spec(v))));
  return n.reshaped(v, {});
}

void refuse_narrow(const node& n, const values& all) {
  for (const auto& v : all)
    if (n.narrow(v) != 0)
      n.refuse(fmt::format("a result of a branch or loop is {}, which is not supported",
                           name_of_element(n.narrow(v))));
}

values if_rule(node& n) {
  const auto condition = condition_of(n, n.in(0));
  const auto &then = n.body("then_branch"), &otherwise = n.body("else_branch");
  if (const auto known = n.known_if_any(condition))
    return n.bodies.build_body(*known->data<boolean>() ? then : otherwise, {});
  n.bodies.prepare(then), n.bodies.prepare(otherwise);
  const auto branch = [&n](const onnx_format::Graph& body) {
    return [&n, &body] {
      auto out = n.bodies.build_body(body, {});
      refuse_narrow(n, out);
      return out;
    };
  };
  return cond(condition, branch(then), branch(otherwise));
}

// One behind the other along a new axis; of nothing, nobody can say the shape.
value collected(const node& n, std::vector<value> parts, std::int64_t axis) {
  if (parts.empty())
    n.refuse("a loop without iterations collects results, whose shape is not known");
  refuse_narrow(n, parts);
  return stack(parts, axis);
}

// Body: iteration, condition, what is carried -> condition, what is carried, what is collected.
struct loop_parts {
  const onnx_format::Graph& body;
  value trips, condition;  // invalid: left out
  values carried;
  std::size_t collected;
};

values loop_in_graph(const node& n, const loop_parts& p) {
  n.bodies.prepare(p.body);
  const auto trips = p.trips.is_valid() ? n.reshaped(p.trips, {}) : value{};
  values initial{n.number(0, dtype::i64),
                 p.condition.is_valid() ? p.condition : n.number(1, dtype::boolean)};
  initial.insert(initial.end(), p.carried.begin(), p.carried.end());
  refuse_narrow(n, p.carried);
  const auto goes_on = [&](std::span<const value> v) {
    return trips.is_valid() ? logical_and(v[1], less(v[0], trips)) : v[1];
  };
  const auto next = [&](std::span<const value> v) {
    auto out = n.bodies.build_body(p.body, {v.begin(), v.end()});
    refuse_narrow(n, out);
    out[0] = condition_of(n, out[0]);
    out.insert(out.begin(), add(v[0], n.number(1, dtype::i64)));
    return out;
  };
  auto out = while_loop(initial, goes_on, next);
  if (out.size() < 2) n.refuse("the body does not fit");
  out.erase(out.begin(), out.begin() + 2);
  return out;
}

// nullopt: whether it goes on is not known.
std::optional<values> written_out(const node& n, const loop_parts& p, std::int64_t trips) {
  auto carried = p.carried;
  std::vector<values> all(p.collected);
  bool goes_on = true;
  if (p.condition.is_valid()) {
    const auto known = n.known_if_any(p.condition);
    if (!known) return std::nullopt;
    goes_on = bool(*known->data<boolean>());
  }
  for (std::int64_t i = 0; goes_on && i < trips; ++i) {
    if (i == written_out_max) return std::nullopt;
    values in{n.number(static_cast<double>(i), dtype::i64), n.number(1, dtype::boolean)};
    in.insert(in.end(), carried.begin(), carried.end());
    const auto out = n.bodies.build_body(p.body, in);
    const auto known = n.known_if_any(condition_of(n, out[0]));
    if (!known) return std::nullopt;
    goes_on = bool(*known->data<boolean>());
    std::copy_n(out.begin() + 1, carried.size(), carried.begin());
    for (std::size_t k = 0; k < p.collected; ++k) all[k].push_back(out[1 + carried.size() + k]);
  }
  for (auto& parts : all) carried.push_back(collected(n, parts, 0));
  return carried;
}

values loop_rule(node& n) {
  const auto& body = n.body("body");
  loop_parts p{body, n.has(std::size_t{0}) ? n.in(0) : value{}, {}, {}, 0};
  if (n.has(1)) p.condition = condition_of(n, n.in(1));
  for (std::size_t i = 2; i < n.inputs(); ++i) p.carried.push_back(n.in(i));
  const auto results = static_cast<std::size_t>(body.outputs_size());
  if (results < 1 + p.carried.size())
    n.refuse(fmt::format("its body gives {} results, expected {} at least", results,
                         1 + p.carried.size()));
  p.collected = results - 1 - p.carried.size();
  std::optional<std::int64_t> trips = std::numeric_limits<std::int64_t>::max();
  if (p.trips.is_valid()) {
    const auto known = n.known_if_any(p.trips);
    trips = known ? std::optional(n.known_integer(0)) : std::nullopt;
  }
  const bool is_long = !trips || (*trips > written_out_max && p.trips.is_valid());
  if (!is_long || p.collected > 0)
    if (trips)
      if (auto out = written_out(n, p, *trips)) return *out;
  if (p.collected > 0)
    n.refuse(
        fmt::format("it collects results, so its iterations must be known while the graph is "
                    "built, and be {} at most",
                    written_out_max));
  return loop_in_graph(n, p);
}

// Body: states, one slice of each sequence -> states, what is collected.
values scan_rule(node& n) {
  if (n.opset < 9) n.refuse("before opset 9 it is not supported");
  const auto& body = n.body("body");
  const auto count = n.integer("num_scan_inputs");
  if (count < 1 || static_cast<std::size_t>(count) > n.inputs())
    n.refuse(fmt::format("attribute 'num_scan_inputs' is {} of {} inputs", count, n.inputs()));
  const auto scanned = static_cast<std::size_t>(count), states = n.inputs() - scanned;
  const auto results = static_cast<std::size_t>(body.outputs_size());
  if (results < states)
    n.refuse(fmt::format("its body gives {} results, expected {} at least", results, states));
  const auto made = results - states;
  const auto numbers = [&](std::string_view name, std::size_t size) {
    auto all = n.list(name, integers(size, 0));
    if (all.size() != size)
      n.refuse(fmt::format("attribute '{}' has {} numbers, expected {}", name, all.size(), size));
    return all;
  };
  const auto in_axes = numbers("scan_input_axes", scanned),
             in_ways = numbers("scan_input_directions", scanned),
             out_axes = numbers("scan_output_axes", made),
             out_ways = numbers("scan_output_directions", made);
  values state, sequences;
  for (std::size_t i = 0; i < states; ++i) state.push_back(n.in(i));
  std::int64_t steps = -1;
  for (std::size_t i = 0; i < scanned; ++i) {
    const auto x = n.in(states + i);
    const auto axis = n.axis(in_axes[i], spec(x).shape.rank());
    const auto size = n.sizes(x)[axis];
    if (steps >= 0 && size != steps)
      n.refuse(fmt::format("sequences have {} and {} elements", steps, size));
    steps = size;
    sequences.push_back(n.moved(x, axis, 0));
  }
  if (steps > written_out_max)
    n.refuse(fmt::format("{} steps, at most {} are supported", steps, written_out_max));
  std::vector<values> all(made);
  for (std::int64_t t = 0; t < steps; ++t) {
    values in = state;
    for (std::size_t i = 0; i < scanned; ++i) {
      const auto at = in_ways[i] != 0 ? steps - 1 - t : t;
      auto dims = n.sizes(sequences[i]);
      dims.erase(dims.begin());
      in.push_back(n.reshaped(slice(sequences[i], {range{.begin = at, .end = at + 1}}), dims));
    }
    const auto out = n.bodies.build_body(body, in);
    std::copy_n(out.begin(), states, state.begin());
    for (std::size_t k = 0; k < made; ++k) all[k].push_back(out[states + k]);
  }
  for (std::size_t k = 0; k < made; ++k) {
    if (out_ways[k] != 0) std::ranges::reverse(all[k]);
    state.push_back(collected(n, all[k], out_axes[k]));
  }
  return state;
}

}  // namespace

void add_control(rules& r) {
  r["If"] = if_rule;
  r["Loop"] = loop_rule;
  r["Scan"] = scan_rule;
}

}  // namespace troupe::onnx
