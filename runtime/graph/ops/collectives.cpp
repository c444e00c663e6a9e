// What workers exchange within a step. With one worker these ops hand their operand on;
// passes/draft/collectives.cpp replaces them where there are more.

#include "troupe/runtime/graph/build.hpp"
#include "troupe/runtime/graph/collectives.hpp"
#include "troupe/runtime/graph/ops/op_rows.hpp"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

namespace troupe {
namespace ops {
namespace {

constexpr std::string_view groups_name = "groups", reduction_name = "reduction", root_name = "root";

std::vector<std::int64_t> flat(const worker_groups& among) {
  std::vector<std::int64_t> out;
  for (const auto& g : among.groups) {
    out.push_back(static_cast<std::int64_t>(g.size()));
    out.insert(out.end(), g.begin(), g.end());
  }
  return out;
}

reduction_kind reduction_of(const attributes& attrs) {
  return static_cast<reduction_kind>(attrs.integer(reduction_name));
}

result<void> check_groups(const attributes& attrs, bool are_equal) {
  const auto list = attrs.integers(groups_name);
  std::set<std::int64_t> seen;
  std::int64_t size = -1;
  const auto refuse = [](std::string why) -> result<void> {
    return error(error_code::usage, std::move(why));
  };
  for (std::size_t at = 0; at < list.size();) {
    const auto n = list[at++];
    if (n < 1 || n > static_cast<std::int64_t>(parts_max) ||
        static_cast<std::size_t>(n) > list.size() - at)
      return refuse(fmt::format("a group has 1..{} workers, this one {}", parts_max, n));
    if (are_equal && size >= 0 && n != size)
      return refuse(fmt::format(
          "its groups have {} and {} workers, so their results would differ in shape: use groups "
          "of one size",
          size, n));
    size = n;
    for (const auto end = at + static_cast<std::size_t>(n); at < end; ++at) {
      if (list[at] < 0 || list[at] >= std::int64_t{65'536})
        return refuse(fmt::format("there is no worker {}", list[at]));
      if (!seen.insert(list[at]).second)
        return refuse(fmt::format("worker {} is in its groups twice", list[at]));
    }
  }
  if (are_equal && seen.empty())
    return refuse(
        "the shape of its result depends on the number of workers: give it with all_workers(n)");
  return {};
}

result<specs> exchanged(collective_kind kind, const attributes& attrs,
                        std::span<const tensor_spec> in) {
  const auto refuse = [&](std::string_view why) { return misfit(in, {"x"}, why); };
  if (auto ok = check_groups(attrs, has_slices(kind)); !ok) return refuse(ok.error().message());
  if (in[0].shape.is_symbolic())
    return refuse(
        "workers exchange tensors of fixed sizes, and a batch may have fewer rows on one of them: reduce it first");
  const auto reduction = attrs.integer(reduction_name);
  if (reduction < 0 || reduction > static_cast<std::int64_t>(reduction_kind::max))
    return refuse(fmt::format("there is no reduction {}", reduction));
  if (reduction == static_cast<std::int64_t>(reduction_kind::mean) && !floating.has(in[0].type))
    return refuse("a mean is of f32 or f64");
  const auto list = attrs.integers(groups_name);
  if (kind == collective_kind::broadcast) {
    const auto root = attrs.integer(root_name);
    for (std::size_t at = 0; at < list.size(); at += 1 + static_cast<std::size_t>(list[at]))
      if (root >= list[at])
        return refuse(fmt::format("its root is position {} of a group of {}: the first one is 0",
                                  root, list[at]));
    if (root < 0) return refuse("its root is negative: it must be a position in a group");
  }
  if (!has_slices(kind)) return specs{in[0]};
  if (in[0].shape.rank() == 0)
    return refuse(
        "it works along the first axis, but a scalar has none: give it one with reshape(x, {1})");
  const auto n = list[0];
  std::vector<dim> dims;
  for (std::size_t i = 0; i < in[0].shape.rank(); ++i) dims.push_back(in[0].shape[i]);
  if (kind == collective_kind::reduce_scatter && dims[0].size % n != 0)
    return refuse(
        fmt::format("the first axis, of {}, cannot be cut into {} equal slices", dims[0].size, n));
  dims[0].size = kind == collective_kind::all_gather ? dims[0].size * n : dims[0].size / n;
  const auto s = shape::from(dims);
  if (!s)
    return refuse(fmt::format("the results of {} workers have too many elements together", n));
  return specs{tensor_spec{in[0].type, *s}};
}

value call(std::string_view type, value x, attributes attrs, const worker_groups& among,
           const source_location& where) {
  if (!x.is_valid()) return {};
  attrs.set(std::string(groups_name), flat(among));
  auto& g = *x.owner;
  const auto is_alone =
      std::all_of(among.groups.begin(), among.groups.end(),
                  [](const auto& group) { return group.size() == 1 && group[0] == 0; });
  if (g.computes() && !is_alone) {
    g.record(
        error(error_code::usage, fmt::format("{}: an eager graph has one worker, number 0", type))
            .at(where));
    return {};
  }
  return append(type, {x}, std::move(attrs), where);
}

attributes with(reduction_kind r) {
  attributes attrs;
  attrs.set(std::string(reduction_name), static_cast<std::int64_t>(r));
  return attrs;
}

std::vector<value> no_way_back(graph& g, const graph_node& n, std::string_view why) {
  g.record(
      error(error_code::usage,
            fmt::format("{} '{}': {}; if no gradient should flow through it, put its result into "
                        "stop_gradient()",
                        n.type, n.name, why))
          .at(n.source));
  return {value{}};
}

std::vector<value> all_reduce_gradient(graph& g, const graph_node& n, std::span<const value> dy) {
  const auto r = reduction_of(n.attrs);
  if (r != reduction_kind::sum && r != reduction_kind::mean)
    return no_way_back(g, n, fmt::format("an all_reduce by {} has no gradient", to_string(r)));
  return {all_reduce(dy[0], r, groups_of(n.attrs), n.source)};
}

std::vector<value> reduce_scatter_gradient(graph& g, const graph_node& n,
                                           std::span<const value> dy) {
  const auto r = reduction_of(n.attrs);
  if (r != reduction_kind::sum && r != reduction_kind::mean)
    return no_way_back(g, n, fmt::format("a reduce_scatter by {} has no gradient", to_string(r)));
  const auto among = groups_of(n.attrs);
  auto dx = all_gather(dy[0], among, n.source);
  if (r == reduction_kind::mean && dx.is_valid())
    dx = mul(dx,
             constant(g, 1.0 / static_cast<double>(among.groups[0].size()), dx.spec().type, "share",
                      n.source),
             n.source);
  return {dx};
}

}  // namespace

void add_collectives(op_table& t) {
  const auto add = [&](std::string_view type, collective_kind kind, dtype_set types,
                       gradient_rule gradient) {
    t.add(std::string(type),
          {.inputs = 1,
           .shapes = [kind](const attributes& attrs, std::span<const tensor_spec> in,
                            const tag*) { return exchanged(kind, attrs, in); },
           .gradient = std::move(gradient),
           .is_forwarding = true,
           .types = types});
  };
  add(all_reduce_op, collective_kind::all_reduce, numbers, all_reduce_gradient);
  add(reduce_scatter_op, collective_kind::reduce_scatter, numbers, reduce_scatter_gradient);
  add(all_gather_op, collective_kind::all_gather, all_types,
      [](graph&, const graph_node& n, std::span<const value> dy) {
        return std::vector<value>{
            reduce_scatter(dy[0], groups_of(n.attrs), reduction_kind::sum, n.source)};
      });
  add(broadcast_op, collective_kind::broadcast, all_types,
      [](graph& g, const graph_node& n, std::span<const value>) {
        return no_way_back(g, n, "a broadcast has no gradient");
      });
}

}  // namespace ops

worker_groups all_workers(std::uint32_t n) {
  worker_groups among;
  auto& all = among.groups.emplace_back(n);
  std::iota(all.begin(), all.end(), 0U);
  return among;
}

bool is_collective(std::string_view type) noexcept {
  return type == all_reduce_op || type == reduce_scatter_op || type == all_gather_op ||
         type == broadcast_op;
}

collective_kind kind_of(std::string_view type) noexcept {
  return type == reduce_scatter_op ? collective_kind::reduce_scatter
         : type == all_gather_op   ? collective_kind::all_gather
         : type == broadcast_op    ? collective_kind::broadcast
                                   : collective_kind::all_reduce;
}

worker_groups groups_of(const attributes& attrs) {
  worker_groups among;
  const auto list = attrs.integers(ops::groups_name);
  for (std::size_t at = 0; at < list.size(); at += 1 + static_cast<std::size_t>(list[at])) {
    auto& g = among.groups.emplace_back();
    for (std::int64_t i = 1; i <= list[at]; ++i)
      g.push_back(static_cast<std::uint32_t>(list[at + static_cast<std::size_t>(i)]));
  }
  return among;
}

value all_reduce(value x, reduction_kind reduction, const worker_groups& among,
                 source_location where) {
  return ops::call(all_reduce_op, x, ops::with(reduction), among, where);
}

value reduce_scatter(value x, const worker_groups& among, reduction_kind reduction,
                     source_location where) {
  return ops::call(reduce_scatter_op, x, ops::with(reduction), among, where);
}

value all_gather(value x, const worker_groups& among, source_location where) {
  return ops::call(all_gather_op, x, {}, among, where);
}

value broadcast(value x, std::uint32_t root, const worker_groups& among, source_location where) {
  attributes attrs;
  attrs.set(std::string(ops::root_name), std::int64_t{root});
  return ops::call(broadcast_op, x, std::move(attrs), among, where);
}

// Everybody's number comes from its x, and x waits for the greatest of them.
value barrier(value x, const worker_groups& among, source_location where) {
  if (!x.is_valid()) return {};
  const auto scope = x.owner->name_scope("barrier", where);
  return after(x, {all_reduce(element_count(x, {}, where), reduction_kind::max, among, where)},
               where);
}

}  // namespace troupe
