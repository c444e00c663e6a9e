#include "troupe/runtime/analysis/memory_budget.hpp"

#include "troupe/runtime/analysis/read_order.hpp"
#include "troupe/runtime/plan/loop_rules.hpp"
#include "troupe/runtime/text/byte_size.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

namespace troupe {

namespace {

constexpr auto most = std::numeric_limits<std::uint64_t>::max();

std::uint64_t add(std::uint64_t a, std::uint64_t b) { return a > most - b ? most : a + b; }

std::uint64_t times(std::uint64_t n, std::uint64_t bytes) {
  std::uint64_t product = 0;
  return __builtin_mul_overflow(n, bytes, &product) ? most : product;
}

// Items of an output port that are out at once: consumers take them in order, and each needs a
// credit of every edge.
std::uint64_t credits_of(const plan& p, const std::vector<std::uint32_t>& edges) {
  std::uint64_t n = 0;
  for (auto e : edges) n = std::max<std::uint64_t>(n, p.edges[e].credits);
  return n;
}

// Of which there is never more than one: versions that workers have, and the gradients made of
// them.
struct single_tensors {
  std::vector<bool> shards;                                   // by actor
  std::set<std::pair<std::uint32_t, std::uint32_t>> outputs;  // actor and port
};

single_tensors single_tensors_of(const plan& p) {
  single_tensors out{std::vector<bool>(p.actors.size()), {}};
  const auto reads = reads_of_versions(p);
  std::vector<std::size_t> ordered(p.actors.size());
  for (const auto& r : reads) ordered[r.shard] += r.order == read_order::ordered ? 1 : 0;
  for (const auto& r : reads) {
    if (ordered[r.shard] != p.actors[r.shard].shard.steps.size()) continue;
    out.shards[r.shard] = true;
    if (!r.is_made_of_it) continue;
    // As far as it is handed on to the shard alone.
    for (auto at = r.gradient; p.actors[at.actor].outputs[at.port].size() == 1;) {
      out.outputs.emplace(at.actor, at.port);
      if (!p.actors[at.actor].forwards_input) break;
      at = p.edges[p.actors[at.actor].inputs[0]].from;
    }
  }
  return out;
}

// Versions that readers may still have while the newest is written. Synchronous ones get the same
// ones, in the same order.
std::uint64_t versions_out(const plan& p, const planned_actor& a, bool is_single) {
  std::uint64_t n = 0;
  for (std::size_t port = 0; port < a.outputs.size(); ++port) {
    const auto* reader = port < a.shard.readers.size() ? &a.shard.readers[port] : nullptr;
    if (is_single && reader != nullptr && (reader->worker >= 0 || reader->at_end)) continue;
    const auto credits = credits_of(p, a.outputs[port]);
    n = a.shard.update == update_kind::sync ? std::max(n, credits) : n + credits;
  }
  return n;
}

std::uint64_t own_memory(const plan& p, std::uint32_t actor, const single_tensors& single) {
  const auto& a = p.actors[actor];
  std::uint64_t bytes = 0;
  if (makes_device_memory(a)) return 0;  // segment.hpp counts it
  switch (a.kind) {
    case actor_kind::copy:
      return times(1 + credits_of(p, a.outputs[0]), a.output_specs[0].size_bytes());
    case actor_kind::op:
    case actor_kind::feed:
      for (std::size_t port = 0; port < a.outputs.size() && !a.forwards_input; ++port)
        if (a.kind == actor_kind::op && !a.ops.empty() && a.ops.front().type == loop_stack_op)
          bytes =
              add(bytes, times(static_cast<std::uint64_t>(a.ops.front().attrs.integer("tokens")),
                               a.output_specs[port].size_bytes()));
        else if (a.kind == actor_kind::op && !a.ops.empty() && is_control(a.ops.front().type))
          continue;  // it hands on what others made
        else if (buffer_of(a, port) < 0)
          bytes =
              add(bytes, times(single.outputs.contains({actor, static_cast<std::uint32_t>(port)})
                                   ? 1
                                   : 1 + credits_of(p, a.outputs[port]),
                               a.output_specs[port].size_bytes()));
      return bytes;
    case actor_kind::receive:
      return times(2 * std::uint64_t{p.edges[a.inputs[0]].credits} + 1,
                   p.edges[a.inputs[0]].spec.size_bytes());
    case actor_kind::shard: {
      const std::uint64_t state = slot_count(a.shard.optimizer);
      std::uint64_t buffers = std::uint64_t{version_slots(a.shard)} + state;
      buffers += a.shard.keeps * state;               // the optimizer state of each older version
      if (a.shard.cuts_at_end) buffers += 1 + state;  // a cut that is being written
      if (a.shard.pushes_rows) buffers += a.shard.steps.size();  // each worker's, unpacked
      return times(buffers + versions_out(p, a, single.shards[actor]), a.shard.spec.size_bytes());
    }
    case actor_kind::collective: {
      // The result, and copies of the parts where several tensors are one vector (or of slices,
      // where these are results); what peers send, twice as edges at a receive.
      const auto& c = *a.collective;
      const auto vector = static_cast<std::uint64_t>(c.spec.elements) * size_of(c.spec.type);
      std::uint64_t results = 1;
      for (std::size_t port = 0; port < c.tensors; ++port)
        results = std::max(results, 1 + credits_of(p, a.outputs[port]));
      const auto copies = c.spec.kind == collective_kind::reduce_scatter ? results
                          : c.tensors > 1                                ? c.own_parts()
                                                                         : 0;
      bytes = times(results + copies, vector);
      for (std::size_t port = c.own_inputs(); port < a.inputs.size(); ++port)
        bytes = add(bytes, times(2 * std::uint64_t{p.edges[a.inputs[port]].credits} + 1,
                                 p.edges[a.inputs[port]].spec.size_bytes()));
      return bytes;
    }
    default: return 0;
  }
}

}  // namespace

std::vector<std::uint64_t> memory_by_actor(const plan& p) {
  std::vector<std::uint64_t> needs(p.actors.size());
  std::vector<bool> is_told(p.buffers.size());
  const auto single = single_tensors_of(p);
  for (std::uint32_t i = 0; i < p.actors.size(); ++i) {
    const auto& a = p.actors[i];
    needs[i] = own_memory(p, i, single);
    for (std::size_t port = 0; port < a.buffers.size() && port < a.output_specs.size(); ++port) {
      const auto b = static_cast<std::size_t>(a.buffers[port]);
      // A buffer is as large as the largest of its uses.
      if (a.buffers[port] < 0 || b >= p.buffers.size() || is_told[b] ||
          a.output_specs[port].size_bytes() < p.buffers[b].bytes)
        continue;
      is_told[b] = true;
      needs[i] = add(needs[i], times(p.steps_in_flight, p.buffers[b].bytes));
    }
  }
  return needs;
}

memory_need memory_of_part(const plan& p, std::uint32_t task) {
  const auto needs = memory_by_actor(p);
  memory_need need;
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < needs.size(); ++i) {
    if (p.actors[i].task != task || needs[i] == 0) continue;
    need.bytes = add(need.bytes, needs[i]);
    order.push_back(i);
  }
  const auto shown = std::min(contributors_max, order.size());
  std::partial_sort(
      order.begin(), order.begin() + static_cast<std::ptrdiff_t>(shown), order.end(),
      [&](auto a, auto b) { return needs[a] != needs[b] ? needs[a] > needs[b] : a < b; });
  for (std::size_t k = 0; k < shown; ++k) {
    const auto& a = p.actors[order[k]];
    need.largest.push_back(
        {a.name, needs[order[k]],
         a.source.file.empty() && !a.ops.empty() ? a.ops.front().source : a.source});
  }
  return need;
}

std::string to_string(const std::vector<memory_need::contributor>& largest) {
  std::string text;
  for (const auto& c : largest) {
    text += fmt::format("{}{} ({}", text.empty() ? "" : ", ", c.actor, format_bytes(c.bytes));
    text += c.source.file.empty() ? ")" : fmt::format(", {}:{})", c.source.file, c.source.line);
  }
  return text;
}

std::uint64_t bytes_of_all_tensors(const plan& p, std::uint32_t task) {
  std::uint64_t sum = 0;
  for (const auto& a : p.actors)
    if (a.task == task && (a.kind == actor_kind::op || a.kind == actor_kind::feed) &&
        !a.forwards_input)
      for (const auto& spec : a.output_specs) sum = add(sum, spec.size_bytes());
  return sum;
}

}  // namespace troupe
