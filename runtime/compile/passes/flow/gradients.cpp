// Reverse-mode differentiation on the graph: every op's rule appends the ops that compute the
// gradients of its operands (Griewank, Walther: Evaluating Derivatives, 2008, chapter 3). Ops that
// nobody needs in the end are pruned later.
//
// The gradient of a value belongs to the region that the value belongs to, except for loops: a loop
// gets another one that goes back through its iterations, whose variables are the gradients of the
// variables, and whose body is that of the gradients of the body. So a region in a loop has a
// mirror, where its gradients are computed; what they need of it comes by stacks
// (runtime/graph/graph_regions.hpp).
//
// What is made for an op stands on its device, and a sum of gradients of one value where its
// summands or the value do (runtime/graph/on_device.hpp). What lies in branches and loops stands on
// the host, and no sum there wishes for more.

#include "troupe/runtime/compile/compile.hpp"
#include "troupe/runtime/graph/build.hpp"
#include "troupe/runtime/graph/guarded.hpp"
#include "troupe/runtime/graph/on_device.hpp"
#include "troupe/runtime/graph/op_table.hpp"
#include "troupe/runtime/graph/ops.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

namespace troupe {
namespace {

using regions = graph_regions;

error bad_request(std::string text) { return {error_code::usage, std::move(text)}; }

// Which nodes up to `last` depend on one of the values: a node on its operands, a variable of a
// loop also on what comes back for it.
std::vector<bool> dependants(const graph& g, std::uint32_t last, std::span<const value> of) {
  std::vector<bool> depends(last + 1);
  for (const auto& v : of)
    if (v.is_valid() && v.node <= last) depends[v.node] = true;
  for (bool is_new = true; is_new;) {
    is_new = false;
    for (std::uint32_t i = 0; i <= last; ++i) {
      const auto& n = g.node(i);
      for (const auto& in : n.inputs)
        if (depends[in.node]) depends[i] = true;
      if (n.type != loop_back_op || !depends[i]) continue;
      const auto& l = g.regions().loop_at(static_cast<std::uint32_t>(n.attrs.integer("loop")));
      const auto enter = l.variables[static_cast<std::size_t>(n.attrs.integer("variable"))].enter;
      if (depends[enter]) continue;
      depends[enter] = is_new = true;
    }
  }
  return depends;
}

class differentiator {
 public:
  differentiator(graph& g, value loss, std::span<const value> with_respect_to)
      : g_(g),
        r_(g.regions()),
        depends_(dependants(g, loss.node, with_respect_to)),
        sums_(loss.node + 1) {
    const auto scope = g.name_scope("gradients");
    const auto where = g.node(loss.node).source;
    accumulate(loss,
               on_device(g, r_.current() == 0 ? device_of(loss) : std::string(), where,
                         [&] { return constant(g, 1.0, loss.spec().type, "one", where); }),
               where);
    walk(r_.loop_around(r_.current()), loss.node, 0);
  }

  // d loss / d v, in the region of v.
  value of(const value& v) const {
    return v.node < sums_.size() && v.output < sums_[v.node].size() ? sums_[v.node][v.output]
                                                                    : value{};
  }

 private:
  // The nodes from `last` down to `first` that lie in this loop, but in none that lies in it.
  void walk(std::uint32_t loop, std::uint32_t last, std::uint32_t first) {
    for (auto i = last + 1; i-- > first;) {
      if (g_.first_error()) return;
      if (!depends_[i] || sums_[i].empty() || g_.node(i).inputs.empty()) continue;
      const auto n = g_.node(i);  // a copy: rules append to the graph
      if (r_.loop_around(n.region) != loop) continue;
      const auto is_on_path = std::any_of(n.inputs.begin(), n.inputs.end(),
                                          [&](const value& in) { return depends_[in.node]; });
      if (is_on_path || n.type == loop_end_op) visit(n);
    }
  }

  void visit(const graph_node& n) {
    const auto* row = g_.ops().find(n.type);
    // The first of a loop's ops, or the last: where its loop was gone through.
    if (n.type == loop_enter_op || n.type == loop_next_op) return;
    const auto names = g_.name_scope(fmt::format("gradients/{}", n.name));
    sums_[n.index].resize(n.outputs.size());
    const regions::inside in(r_, mirror(n.region, n.source));
    if (g_.first_error()) return;
    if (n.type == branch_op) return through_branch(n);
    if (n.type == merge_op) return through_merge(n);
    if (n.type == loop_end_op) return through_loop(n);
    if (!row->gradient) {
      const bool is_second = n.type == loop_stack_op;
      g_.record(
          bad_request(
              is_second
                  ? "gradients of gradients of a loop are not supported: unroll the loop"
                  : fmt::format(
                        "{} '{}' is not differentiable, but the loss depends on variables through it",
                        n.type, n.name))
              .at(n.source));
      return;
    }
    const auto refuse = [&](std::string what) {
      g_.record(bad_request(fmt::format("{} '{}': {}", n.type, n.name, what)).at(n.source));
    };
    const auto made = on_device(g_, n.device, n.source, [&] {
      return guarded(
          [&]() -> result<std::vector<value>> { return row->gradient(g_, n, sums_[n.index]); });
    });
    if (!made) return refuse(fmt::format("its gradient rule failed: {}", made.error().message()));
    const auto& operand_gradients = *made;
    if (operand_gradients.size() > n.inputs.size())
      refuse(fmt::format("its gradient rule makes {} gradients for {} operands",
                         operand_gradients.size(), n.inputs.size()));
    for (std::size_t k = 0; k < std::min(operand_gradients.size(), n.inputs.size()); ++k) {
      const auto& one = operand_gradients[k];
      if (!one.is_valid() || !depends_[n.inputs[k].node]) continue;
      if (one.spec() != n.inputs[k].spec())
        refuse(fmt::format("its gradient rule makes {} for operand {}, which is {}",
                           to_string(one.spec()), k, to_string(n.inputs[k].spec())));
      accumulate(n.inputs[k], one, n.source);
    }
  }

  void accumulate(const value& of, value gradient, const source_location& where) {
    if (!gradient.is_valid() || of.node >= sums_.size()) return;
    auto& outputs = sums_[of.node];
    outputs.resize(g_.node(of.node).outputs.size());
    auto& sum = outputs[of.output];
    if (r_.is_trivial()) {
      if (!sum.is_valid()) {
        sum = gradient;
        return;
      }
      sum = on_device(g_, device_of_sum(of, sum, gradient), where, [&] {
        const auto one = joined(sum, gradient, where);
        return one.is_valid() ? one : sum_of(sum, gradient, where);
      });
      return;
    }
    const auto home = homes_.find({of.node, of.output});
    const regions::inside in(r_, home != homes_.end() ? home->second : mirror(r_.of(of), where));
    gradient = r_.import(gradient, where);
    if (!sum.is_valid()) {
      sum = gradient;
      return;
    }
    const bool is_outside = r_.of(sum) == 0 && r_.of(gradient) == 0 && r_.current() == 0;
    sum = on_device(g_, is_outside ? device_of_sum(of, sum, gradient) : std::string(), where,
                    [&] { return sum_of(sum, gradient, where); });
  }

  // Of f16 and bf16, which nothing but products computes in: rounded once.
  static value sum_of(const value& a, const value& b, const source_location& where) {
    if (!halves.has(a.spec().type)) return add(a, b, where);
    return cast(add(cast(a, dtype::f32, where), cast(b, dtype::f32, where), where), a.spec().type,
                where);
  }

  // A slice of a tensor along one axis, as put_slice puts it among zeros.
  struct piece {
    value part;
    std::int64_t axis, begin, size;
  };
  std::optional<piece> piece_of(const value& v) const {
    const auto& n = g_.node(v.node);
    if (n.type != "put_slice") return std::nullopt;
    const auto &whole = n.outputs[0].shape,
               &part = g_.node(n.inputs[0].node).outputs[n.inputs[0].output].shape;
    std::optional<piece> out;
    const auto begin = n.attrs.integers("begin"), step = n.attrs.integers("step");
    for (std::size_t i = 0; i < whole.rank(); ++i) {
      if (whole[i] == part[i]) continue;
      if (out || whole[i].symbol != 0 || (!step.empty() && step[i] != 1)) return std::nullopt;
      out = piece{n.inputs[0], static_cast<std::int64_t>(i), begin[i], part.size(i)};
    }
    return out;
  }

  // The sum of slices that lie side by side is one slice, and of all of them no slice at all: what
  // splits a tensor is put together again without a zero being written. Invalid: they are something
  // else.
  value joined(const value& a, const value& b, const source_location& where) {
    auto x = piece_of(a), y = piece_of(b);
    if (!x || !y || x->axis != y->axis || a.spec() != b.spec()) return {};
    if (y->begin < x->begin) std::swap(x, y);
    if (x->begin + x->size != y->begin) return {};
    std::vector<value> parts;
    for (const auto& p : {*x, *y}) {
      const auto& n = g_.node(p.part.node);
      if (n.type == "concat" && made_.contains(n.index))
        parts.insert(parts.end(), n.inputs.begin(), n.inputs.end());
      else
        parts.push_back(p.part);
    }
    const auto all = concat(parts, x->axis, where);
    if (!all.is_valid()) return {};
    made_.insert(all.node);
    if (all.spec() == a.spec()) return all;
    auto attrs = g_.node(a.node).attrs;
    auto begin = attrs.integers("begin"), size = attrs.integers("size");
    begin[static_cast<std::size_t>(x->axis)] = x->begin;
    size[static_cast<std::size_t>(x->axis)] = x->size + y->size;
    attrs.set("begin", std::move(begin));
    attrs.set("size", std::move(size));
    const value like = g_.node(a.node).inputs[1];
    return g_.add("put_slice", std::array{all, like}, std::move(attrs), "put_slice", where);
  }

  void forget(const value& of) {
    if (of.node < sums_.size() && of.output < sums_[of.node].size())
      sums_[of.node][of.output] = value{};
  }

  value zeros_like(const value& x, const source_location& where) {
    return broadcast_like(constant(g_, 0.0, x.spec().type, "zero", where), x, where);
  }

  // --- regions

  // Where the gradients of a region's values are computed.
  std::uint32_t mirror(std::uint32_t region, const source_location& where) {
    if (region == 0 || mirrors_.empty()) return region;
    if (const auto known = mirrors_.find(region); known != mirrors_.end()) return known->second;
    if (r_.at(region).type != regions::kind::branch) return region;
    const auto parent = r_.at(region).parent;
    const auto there = mirror(parent, where);
    if (there == parent) return region;
    const auto id = r_.at(region).of;
    const auto& c = r_.conditional_at(id);
    const std::uint32_t both[2] = {c.regions[0], c.regions[1]};
    const regions::inside in(r_, there);
    auto condition = r_.import(value{&g_, c.condition.node, c.condition.output}, where);
    if (condition.is_valid()) condition = r_.pace(condition, where);
    if (!condition.is_valid()) return region;
    const auto made = r_.begin_conditional(condition, both);
    for (const int k : {0, 1}) mirrors_[both[k]] = r_.conditional_at(made).regions[k];
    return mirrors_[region];
  }
  std::uint32_t mirror_of_conditional(std::uint32_t id, const source_location& where) {
    return r_.at(mirror(r_.conditional_at(id).regions[0], where)).of;
  }

  // --- branches: a branch turns into a merge, and a merge into a branch

  void through_branch(const graph_node& n) {
    if (!depends_[n.inputs[0].node]) return;  // its condition alone does
    value made[2];
    for (std::uint32_t k = 0; k < 2; ++k) {
      made[k] = sums_[n.index][k];
      const value x{&g_, n.index, k};
      const regions::inside in(r_, mirror(r_.of(x), n.source));
      if (!made[k].is_valid()) made[k] = zeros_like(x, n.source);
    }
    if (g_.first_error()) return;
    accumulate(n.inputs[0],
               r_.merge(mirror_of_conditional(
                            static_cast<std::uint32_t>(n.attrs.integer("conditional")), n.source),
                        made[0], made[1], n.source),
               n.source);
  }

  void through_merge(const graph_node& n) {
    if (!any_floating.has(n.outputs[0].type)) return;
    auto made = r_.branch(
        mirror_of_conditional(static_cast<std::uint32_t>(n.attrs.integer("conditional")), n.source),
        r_.import(sums_[n.index][0], n.source), n.source);
    if (!made.is_valid()) return;
    for (std::uint32_t k = 0; k < 2; ++k) {
      made.output = k;
      if (depends_[n.inputs[1 + k].node]) accumulate(n.inputs[1 + k], made, n.source);
    }
  }

  // --- loops

  // Of the loop that goes back: a variable for the gradient of each variable, and for that of each
  // value from around the loop that is taken in it.
  struct carried {
    value of;       // what comes back for the variable, or the value from around
    value outside;  // to which the gradient goes in the end
    value sum;      // in the body
    std::optional<std::uint32_t> variable{};
  };

  std::vector<carried> carried_through(const regions::loop& l, const graph_node& end) const {
    std::vector<carried> all;
    for (std::uint32_t k = 0; k < l.variables.size(); ++k)
      if (any_floating.has(end.outputs[k].type) && depends_[l.variables[k].enter])
        all.push_back({g_.node(l.variables[k].back).inputs[0],
                       g_.node(l.variables[k].enter).inputs[0],
                       {},
                       k});
    std::set<std::pair<std::uint32_t, std::uint32_t>> known;
    for (auto i = end.index; i-- > l.first_node;) {
      const auto& n = g_.node(i);
      if (!depends_[i] || !r_.is_around(l.condition, n.region)) continue;
      if (n.type == loop_enter_op && n.region == l.condition) continue;
      for (const auto& in : n.inputs) {
        if (!depends_[in.node] || !any_floating.has(in.spec().type) ||
            r_.is_around(l.condition, r_.of(in)))
          continue;
        if (known.insert({in.node, in.output}).second) all.push_back({in, in, {}, {}});
      }
    }
    return all;
  }

  void through_loop(const graph_node& n) {
    const auto id = static_cast<std::uint32_t>(n.attrs.integer("loop"));
    const auto l = r_.loop_at(id);
    const auto& where = l.source;
    if (l.iterations_max == 0) {
      const auto name = n.name.substr(0, n.name.rfind('/'));
      g_.record(
          bad_request(
              fmt::format(
                  "the gradient of loop '{}' keeps values of each iteration: set iterations_max to "
                  "the most iterations that it may make",
                  name))
              .at(where));
      return;
    }
    auto all = carried_through(l, n);
    if (all.empty()) return;
    const auto body_true = [&] {
      const regions::inside in(r_, l.body);
      return r_.goes_on_in_body(id, where);
    }();
    std::vector<value> first;
    for (const auto& c : all) {
      // The sum of a value from around goes on in the loop, so that it is added up in the order in
      // which it would be if the loop were written out.
      const auto known = c.variable ? sums_[n.index][*c.variable] : of(c.of);
      const auto like = c.variable ? value{&g_, n.index, *c.variable} : c.of;
      first.push_back(known.is_valid() ? r_.import(known, where)
                                       : r_.import(zeros_like(like, where), where));
    }
    if (g_.first_error()) return;
    const auto back = r_.begin_loop(l.iterations_max, where, l.body);
    if (!back) return;
    for (const auto& v : first) r_.add_variable(*back, v, where);
    if (g_.first_error()) return;
    {
      const regions::inside in(r_, r_.loop_at(*back).condition);
      const auto goes_on = r_.stack(body_true, true, where);
      if (!goes_on.is_valid()) return;
      r_.set_condition(*back, goes_on);
    }
    const auto body = r_.loop_at(*back).body;
    mirrors_[l.body] = body;
    // While the body is gone through, gradients of values from around it are its own.
    std::vector<std::optional<std::uint32_t>> homes(all.size());
    for (std::uint32_t k = 0; k < all.size(); ++k) {
      all[k].sum = r_.in_body(*back, k, where);
      if (all[k].variable) continue;
      forget(all[k].of);
      const auto [at, is_new] = homes_.try_emplace({all[k].of.node, all[k].of.output}, body);
      if (!is_new) homes[k] = std::exchange(at->second, body);
    }
    for (const auto& c : all) accumulate(c.of, c.sum, where);
    walk(id, n.index - 1, l.first_node);
    if (g_.first_error()) return;
    std::vector<value> next;
    {
      const regions::inside in(r_, body);
      for (const auto& c : all) {
        const auto sum = of(c.variable ? value{&g_, l.variables[*c.variable].next, 0} : c.of);
        next.push_back(sum.is_valid() ? r_.import(sum, where)
                                      : r_.import(zeros_like(c.sum, where), where));
      }
    }
    if (g_.first_error()) return;
    const auto made = r_.end_loop(*back, next, "end", where);
    if (g_.first_error()) return;
    for (std::uint32_t k = 0; k < all.size(); ++k) {
      if (all[k].variable) continue;
      forget(all[k].of);
      if (homes[k])
        homes_[{all[k].of.node, all[k].of.output}] = *homes[k];
      else
        homes_.erase({all[k].of.node, all[k].of.output});
    }
    for (std::size_t k = all.size(); k-- > 0;) accumulate(all[k].outside, made[k], where);
  }

  graph& g_;
  regions& r_;
  std::vector<bool> depends_;             // by node
  std::vector<std::vector<value>> sums_;  // d loss / d output, by node and output
  std::unordered_map<std::uint32_t, std::uint32_t> mirrors_;  // by region
  std::set<std::uint32_t> made_;                              // nodes that put slices together
  // By node and output: the region of its gradient, of what is taken in a loop from around it.
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> homes_;
};

result<void> check_request(const graph& g, value loss, std::span<const value> with_respect_to) {
  if (!g.has(loss)) return bad_request("the loss is not a value of this graph");
  const auto& n = g.node(loss.node);
  if (!floating.has(loss.spec().type) || loss.spec().shape.rank() != 0)
    return bad_request(fmt::format("loss '{}' is {}, but must be a scalar f32[] or f64[]", n.name,
                                   to_string(loss.spec())))
        .at(n.source);
  for (const auto& v : with_respect_to)
    if (!g.has(v)) return bad_request("a gradient is asked for a value that is not of this graph");
  return {};
}

}  // namespace

std::vector<value> gradients(graph& g, value loss, std::span<const value> with_respect_to) {
  std::vector<value> answers(with_respect_to.size());
  if (g.first_error()) return answers;
  if (auto ok = check_request(g, loss, with_respect_to); !ok) {
    g.record(std::move(ok.error()));
    return answers;
  }
  // In a branch or a body: of what values from around are there.
  const auto here = [&](const value& v) { return g.regions().import(v, g.node(v.node).source); };
  loss = here(loss);
  std::vector<value> of;
  for (const auto& v : with_respect_to) of.push_back(here(v));
  if (g.first_error()) return answers;
  const differentiator d(g, loss, of);
  if (g.first_error()) return answers;
  for (std::size_t k = 0; k < answers.size(); ++k) answers[k] = d.of(of[k]);
  return answers;
}

}  // namespace troupe
