// Everything that must hold before anything is spawned from a plan, which may come from anywhere.

#include "troupe/runtime/plan/device_name.hpp"
#include "troupe/runtime/plan/loop_rules.hpp"
#include "troupe/runtime/plan/plan.hpp"
#include "troupe/runtime/plan/precision.hpp"
#include "troupe/runtime/plan/segment.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <string_view>
#include <unordered_set>

namespace troupe {
namespace {

constexpr std::size_t names_in_cycle_max = 12;
constexpr std::size_t name_bytes_max = 1024;

error blame(const planned_actor& a, std::string_view rule, std::string_view what) {
  error e(error_code::usage,
          fmt::format("{} '{}': {} ({})", to_string(a.kind), a.name, what, rule));
  if (!a.source.file.empty()) e.at(a.source.file, a.source.line);
  return e;
}

bool is_sane(const tensor_spec& s) noexcept {
  return static_cast<std::uint8_t>(s.type) < dtype_count &&
         s.shape.elements() <= tensor_bytes_max / static_cast<std::int64_t>(size_of(s.type));
}

// --- actors by themselves
// ------------------------------------------------------------------------------------------------

result<void> check_sticky(const planned_actor& a) {
  if (a.sticky.empty()) return {};
  if (a.loop_level == 0 || a.sticky.size() != a.inputs.size())
    return blame(a, "PL-9",
                 fmt::format("it has {} sticky flags for {} inputs: an actor in a loop has one for "
                             "each input, others none",
                             a.sticky.size(), a.inputs.size()));
  if (std::find(a.sticky.begin(), a.sticky.end(), 0) == a.sticky.end())
    return blame(a, "PL-9", "all of its inputs are sticky, so that nothing lets it fire");
  const auto& type = a.ops.front().type;
  for (std::size_t i = 0; i < a.sticky.size(); ++i)
    if (a.sticky[i] != 0 && is_control(type) && (type != branch_op || i != 0))
      return blame(a, "PL-9", fmt::format("input {} of a {} is sticky", i, type));
  return {};
}

// PL-9.
result<void> check_control(const planned_actor& a) {
  if (a.loop_level == 1)
    return blame(a, "PL-9", "its loop level is 1, but the body of a loop has level 2 or more");
  if (auto ok = check_sticky(a); !ok) return ok;
  const auto is_one = [](const planned_op& op) {
    return is_control(op.type) || op.type == loop_back_op || op.type == loop_end_op;
  };
  if (std::none_of(a.ops.begin(), a.ops.end(), is_one)) return {};
  const auto& op = a.ops.front();
  if (a.ops.size() > 1)
    return blame(
        a, "PL-9",
        fmt::format("op '{}' of type '{}' must be the only op of its actor", op.name, op.type));
  const auto has = [&](std::size_t inputs, std::size_t outputs) {
    return a.inputs.size() == inputs && a.outputs.size() == outputs;
  };
  const auto level = op.attrs.integer("level");
  const bool needs_level =
      op.type == branch_op || op.type == loop_enter_op || op.type == loop_next_op;
  if (needs_level && (level < 1 || level > region_level_max))
    return blame(a, "PL-9", fmt::format("its level is {}", level));
  const bool fits = op.type == branch_op || op.type == loop_next_op ? has(2, 2)
                    : op.type == merge_op                           ? has(3, 1)
                    : op.type == loop_enter_op                      ? has(2, 1)
                                               : has(1, 1) && is_control(op.type);
  if (!fits)
    return blame(a, "PL-9",
                 fmt::format("a {} cannot have {} inputs and {} outputs", op.type, a.inputs.size(),
                             a.outputs.size()));
  if (op.type != branch_op && op.type != merge_op && a.loop_level == 0)
    return blame(a, "PL-9", fmt::format("a {} must be in a loop", op.type));
  if (op.type != loop_stack_op) return {};
  const auto levels = op.attrs.integers("levels");
  const auto rises = [&] {
    return std::adjacent_find(levels.begin(), levels.end(), std::greater_equal<>()) == levels.end();
  };
  if (levels.empty() || levels.size() > loop_depth_max || levels.front() < 2 ||
      levels.back() > region_level_max || !rises())
    return blame(a, "PL-9",
                 "its loop levels must be at least one, increase and start at 2 or more");
  if (op.attrs.integer("tokens", -1) < 0)
    return blame(a, "PL-9", "its number of kept tokens is missing or negative");
  return {};
}

result<void> check_ops(const planned_actor& a) {
  if (a.ops.empty()) return blame(a, "PL-1", "it has no op to run");
  std::vector<bool> is_used(a.inputs.size());
  for (std::size_t k = 0; k < a.ops.size(); ++k)
    for (const auto operand : a.ops[k].operands) {
      const auto at = operand >= 0 ? static_cast<std::size_t>(operand)
                                   : static_cast<std::size_t>(-1 - std::int64_t{operand});
      if (at >= (operand >= 0 ? a.inputs.size() : k))
        return blame(
            a, "PL-1",
            fmt::format("op '{}' takes operand {}, which does not exist", a.ops[k].name, operand));
      if (operand >= 0) is_used[at] = true;
    }
  if (std::find(is_used.begin(), is_used.end(), false) != is_used.end())
    return blame(a, "PL-1", "one of its inputs is used by none of its ops");
  return check_control(a);
}

result<void> check_readers(const planned_actor& a, const plan& p) {
  const auto& s = a.shard;
  const auto longest = *std::max_element(s.steps.begin(), s.steps.end());
  for (const auto& r : s.readers) {
    if (r.worker < -1 || r.worker >= static_cast<std::int64_t>(p.workers))
      return blame(a, "PL-1", fmt::format("a reader is for worker {} of {}", r.worker, p.workers));
    if (r.worker < 0 && s.follows)
      return blame(a, "PL-1",
                   "a reader of a replica is not a worker: only workers may read replicas");
    if (r.at_end && r.worker >= 0)
      return blame(a, "PL-1",
                   "a reader for a worker must read every version, not only the last one");
    const bool observes = r.worker < 0 && !r.at_end;
    if (observes && (s.update != update_kind::sync || r.stride < 1 || r.first > longest))
      return blame(a, "PL-1",
                   fmt::format("an observer that reads from version {} on, every {} versions, "
                               "reads nothing: its shard must be synchronous, its stride at least "
                               "1 and its first version one that is made",
                               r.first, r.stride));
  }
  return {};
}

constexpr std::uint32_t keeps_max = 8;

// PL-6.
result<void> check_start(const planned_actor& a) {
  if (a.steps != 0 && a.start > a.steps)
    return blame(a, "PL-6", fmt::format("it starts at step {} of {}", a.start, a.steps));
  if (a.kind != actor_kind::shard) return {};
  const auto& s = a.shard;
  if (s.keeps > keeps_max)
    return blame(a, "PL-6",
                 fmt::format("it keeps {} versions, at most {} are allowed", s.keeps, keeps_max));
  if (!s.start.empty() && s.start.size() != s.steps.size())
    return blame(
        a, "PL-6",
        fmt::format("it has {} start steps for {} workers", s.start.size(), s.steps.size()));
  for (std::size_t w = 0; w < s.start.size(); ++w)
    if (s.start[w] > s.steps[w] || (s.update == update_kind::sync && s.start[w] != s.version))
      return blame(a, "PL-6",
                   fmt::format("worker {} starts at step {} of {}, and the variable at version {}",
                               w, s.start[w], s.steps[w], s.version));
  if (s.restore == restore_kind::handed && s.update == update_kind::async &&
      s.handed.size() != s.steps.size())
    return blame(a, "PL-6",
                 fmt::format("the handed-over state counts the gradients of {} workers, but the "
                             "job has {}",
                             s.handed.size(), s.steps.size()));
  if (s.forwards && s.update == update_kind::async && !s.handed.empty() &&
      s.handed.size() != s.steps.size())
    return blame(a, "PL-6",
                 fmt::format("its replica starts with {} gradient counts for {} workers",
                             s.handed.size(), s.steps.size()));
  for (std::size_t w = 0; w < std::min(s.handed.size(), s.steps.size()); ++w)
    if (s.handed[w] > s.steps[w] || s.handed[w] < (s.start.empty() ? 0 : s.start[w]))
      return blame(a, "PL-6",
                   fmt::format("it starts with {} gradients of worker {}, but the count must be "
                               "from that worker's start step to its {} steps",
                               s.handed[w], w, s.steps[w]));
  if (s.start.empty() && s.version != 0)
    return blame(
        a, "PL-6",
        fmt::format("it starts at version {}, but its workers start at step 0", s.version));
  return {};
}

result<void> check_shard(const planned_actor& a, const plan& p) {
  const auto& s = a.shard;
  // The number of ports depends on it.
  if (auto ok = check(s.optimizer); !ok) return blame(a, "PL-1", ok.error().message());
  if (s.variable.empty() || !is_sane(s.spec) || s.spec.shape.is_symbolic())
    return blame(a, "PL-1",
                 "its variable must have a name, a known element type and fixed sizes within the "
                 "limit");
  const auto sources = s.follows && s.update == update_kind::sync ? 1 : p.workers;
  if (s.follows && s.forwards)
    return blame(a, "PL-1", "a replica cannot have a replica of its own");
  if (s.takes_sums && (s.update != update_kind::sync || s.pushes_rows || s.follows || s.forwards))
    return blame(a, "PL-1",
                 "only a synchronous shard can take summed gradients, and only if it is no "
                 "replica, has none and gets no rows");
  if (s.steps.empty() || s.steps.size() != sources ||
      a.inputs.size() !=
          gradient_ports(s) + (s.restore == restore_kind::handed ? hand_over_ports(s) : 0))
    return blame(a, "PL-1",
                 fmt::format("its {} inputs and {} step counts do not fit {} workers",
                             a.inputs.size(), s.steps.size(), p.workers));
  if (a.outputs.size() != s.readers.size() + forward_ports(s))
    return blame(a, "PL-1",
                 fmt::format("its {} outputs do not fit {} readers and a replica with {} inputs",
                             a.outputs.size(), s.readers.size(), forward_ports(s)));
  if (s.update == update_kind::sync &&
      std::adjacent_find(s.steps.begin(), s.steps.end(), std::not_equal_to<>()) != s.steps.end())
    return blame(a, "PL-1", "synchronous workers have different numbers of steps");
  for (std::size_t i = 0; i < a.output_specs.size(); ++i) {
    // What a replica is to apply.
    const bool are_rows = i >= s.readers.size() && s.update == update_kind::async && s.pushes_rows;
    if (are_rows ? !are_rows_of(a.output_specs[i], s.spec) : a.output_specs[i] != s.spec)
      return blame(a, "PL-5", "the type or shape of an output does not fit the variable");
  }
  if (s.pushes_rows && s.follows && s.update == update_kind::sync)
    return blame(a, "PL-5", "a synchronous replica takes summed gradients, not rows");
  if (!std::isfinite(s.initializer.limit))
    return blame(a, "PL-1",
                 fmt::format("the limit {} of its initial values is not a finite number",
                             s.initializer.limit));
  if (s.average && (!(s.average->rate >= 0 && s.average->rate <= 1) || s.average->samples < 1))
    return blame(a, "PL-1",
                 fmt::format("a moving average of {} samples at rate {} is invalid: it needs at "
                             "least 1 sample and a rate from 0 to 1",
                             s.average->samples, s.average->rate));
  if (s.loss_scale && (s.average || s.pushes_rows || s.spec != tensor_spec{dtype::f32, {2}} ||
                       s.loss_scale->samples < 1 || s.loss_scale->grows_every < 1 ||
                       s.loss_scale->grows_every > growth_steps_max))
    return blame(
        a, "PL-1",
        fmt::format("a loss scale of type {}, with {} samples and doubled after {} good steps, is "
                    "invalid: it must be f32[2], with at least 1 sample, at least 1 good step, no "
                    "moving average and no gradients as rows",
                    to_string(s.spec), s.loss_scale->samples, s.loss_scale->grows_every));
  if (auto ok = check(s.schedule); !ok) return blame(a, "PL-1", ok.error().message());
  return check_readers(a, p);
}

// Of a rank on a device, and that others are not.
result<void> check_on_device(const planned_actor& a, const planned_collective& c) {
  if (c.is_on_device() != is_device_stream(a.stream))
    return blame(a, "PL-11",
                 "a rank must have buckets if it is on a device, and none if it is on the host");
  if (!c.is_on_device()) return {};
  if (c.spec.kind != collective_kind::all_reduce || c.spec.reduction != reduction_kind::sum ||
      c.spec.type != dtype::f32)
    return blame(a, "PL-11", "a rank on a device can only be of an all_reduce that sums f32");
  if (std::any_of(c.spec.parts.begin(), c.spec.parts.end(),
                  [](const auto& p) { return p.empty(); }))
    return blame(a, "PL-11", "on devices every rank must contribute");
  std::uint64_t tensors = 0;
  for (const auto b : c.buckets) tensors += b;
  if (tensors != c.tensors || std::find(c.buckets.begin(), c.buckets.end(), 0U) != c.buckets.end())
    return blame(a, "PL-11",
                 fmt::format("its {} buckets hold {} tensors in all, but it has {}, and no bucket "
                             "may be empty",
                             c.buckets.size(), tensors, c.tensors));
  return {};
}

// What a rank knows of itself (PL-11).
result<void> check_collective(const planned_actor& a) {
  if (!a.collective) return blame(a, "PL-11", "it has no description of its collective");
  const auto& c = *a.collective;
  if (auto ok = check(c.spec); !ok) return blame(a, "PL-11", ok.error().message());
  if (auto ok = check_on_device(a, c); !ok) return ok;
  const auto peers = peers_of(c);
  if (c.peers_from != peers.from || c.peers_to != peers.to)
    return blame(a, "PL-11", "its peers are not those of its algorithm");
  if (c.tensors < 1 || c.tensors > a.output_specs.size() ||
      a.outputs.size() != c.tensors + c.peers_to.size() ||
      a.inputs.size() != c.own_inputs() + c.peers_from.size())
    return blame(
        a, "PL-11",
        fmt::format(
            "its {} inputs and {} outputs do not fit {} tensors of {} parts, {} peers that send to "
            "it and {} peers that it sends to",
            a.inputs.size(), a.outputs.size(), c.tensors, c.spec.parts[c.spec.rank].size(),
            c.peers_from.size(), c.peers_to.size()));
  const std::span tensors(a.output_specs.data(), c.tensors);
  for (const auto& t : tensors)
    if (t.type != c.spec.type || t.shape.is_symbolic())
      return blame(a, "PL-11",
                   fmt::format("one of its tensors is {}, but must be {} with fixed sizes",
                               to_string(t), to_string(c.spec.type)));
  const bool scatters = c.spec.kind == collective_kind::reduce_scatter;
  if (has_slices(c.spec.kind) && c.tensors != (scatters ? c.own_parts() : 1))
    return blame(a, "PL-11",
                 fmt::format("it has {} results for {} parts: a reduce_scatter has one for each "
                             "part, an all_gather one in all",
                             c.tensors, c.own_parts()));
  const auto each = c.spec.elements / parts_of(c.spec);
  if (scatters ? std::any_of(tensors.begin(), tensors.end(),
                             [&](const auto& t) { return t.shape.elements() != each; })
               : offset_in_vector(tensors, tensors.size()) != c.spec.elements)
    return blame(
        a, "PL-11",
        fmt::format("the sizes of its tensors do not fit the {} elements of the collective",
                    c.spec.elements));
  if (c.workers.size() != c.own_parts())
    return blame(
        a, "PL-11",
        fmt::format("it names {} workers for its {} parts", c.workers.size(), c.own_parts()));
  for (std::size_t port = c.tensors; port < a.outputs.size(); ++port)
    if (a.outputs[port].size() != 1 || a.output_specs[port] != piece_spec(c))
      return blame(a, "PL-11",
                   "an output to another rank must carry pieces and have exactly one consumer");
  return {};
}

// How many ports a kind has.
result<void> check_kind(const planned_actor& a, const plan& p) {
  const auto ports = [&](bool fits) -> result<void> {
    if (fits) return {};
    return blame(
        a, "PL-2",
        fmt::format("it cannot have {} inputs and {} outputs", a.inputs.size(), a.outputs.size()));
  };
  switch (a.kind) {
    case actor_kind::op: return is_device_stream(a.stream) ? check_segment(a) : check_ops(a);
    case actor_kind::copy: return ports(a.inputs.size() == 1 && a.outputs.size() == 1);
    case actor_kind::shard: return check_shard(a, p);
    case actor_kind::send:
    case actor_kind::receive: return ports(a.inputs.size() == 1 && a.outputs.size() == 1);
    case actor_kind::feed: return ports(a.inputs.empty() && a.outputs.size() == 1);
    case actor_kind::fetch: return ports(!a.inputs.empty() && a.outputs.empty());
    case actor_kind::collective: return check_collective(a);
    default: return blame(a, "PL-1", "a plan has no actors of this kind");
  }
}

result<void> check_actor(const planned_actor& a, const plan& p) {
  if (a.name.empty()) return blame(a, "PL-1", "an actor has no name");
  if (a.name.size() > name_bytes_max)
    return error(error_code::usage,
                 fmt::format("a name of {} bytes, at most {} are allowed: {}... (PL-1)",
                             a.name.size(), name_bytes_max, a.name.substr(0, 60)));
  if (a.task >= p.tasks.size())
    return blame(a, "PL-1", fmt::format("it is on task {} of {}", a.task, p.tasks.size()));
  if (a.output_specs.size() != a.outputs.size())
    return blame(a, "PL-1",
                 fmt::format("{} specs for {} outputs", a.output_specs.size(), a.outputs.size()));
  for (const auto& spec : a.output_specs)
    if (!is_sane(spec))
      return blame(a, "PL-1", fmt::format("a tensor has more than {} bytes", tensor_bytes_max));
  for (std::size_t port = 0; port < a.outputs.size(); ++port)
    if (a.outputs[port].empty() && a.kind != actor_kind::op)
      return blame(a, "PL-2", fmt::format("nobody takes output {}", port));
  if (auto ok = check_kind(a, p); !ok) return ok;
  return check_start(a);
}

result<void> check_names(const plan& p) {
  std::unordered_set<std::string_view> names;
  names.reserve(p.actors.size());
  for (const auto& a : p.actors)
    if (!names.insert(a.name).second)
      return blame(a, "PL-1", "two actors have this name; rename an op, an input or a variable");
  return {};
}

// --- edges ---------------------------------------------------------------------------------------

// What a rank contributes may come of another collective's rank: that is an edge like any other.
bool is_between_ranks(const plan& p, const planned_edge& e) {
  const auto& to = p.actors[e.to.actor];
  return to.collective && p.actors[e.from.actor].kind == actor_kind::collective &&
         e.to.port >= to.collective->own_inputs();
}

result<void> check_edge(const plan& p, std::uint32_t i) {
  const auto& e = p.edges[i];
  if (e.from.actor >= p.actors.size() || e.to.actor >= p.actors.size())
    return error(error_code::usage, fmt::format("edge {} joins actors {} and {} of {} (PL-1)", i,
                                                e.from.actor, e.to.actor, p.actors.size()));
  const auto &producer = p.actors[e.from.actor], &consumer = p.actors[e.to.actor];
  if (e.from.port >= producer.outputs.size())
    return blame(producer, "PL-1",
                 fmt::format("edge {} leaves output {}, which it lacks", i, e.from.port));
  if (e.to.port >= consumer.inputs.size())
    return blame(consumer, "PL-1",
                 fmt::format("edge {} enters input {}, which it lacks", i, e.to.port));
  if (consumer.inputs[e.to.port] != i)
    return blame(consumer, "PL-2",
                 fmt::format("edge {} enters input {}, which belongs to edge {}", i, e.to.port,
                             consumer.inputs[e.to.port]));
  const bool is_transfer = producer.kind == actor_kind::send;
  if (is_transfer != (consumer.kind == actor_kind::receive))
    return blame(
        producer, "PL-3",
        fmt::format("edge {} goes to {} '{}', but only a send may, and must, go to a receive", i,
                    to_string(consumer.kind), consumer.name));
  const bool are_ranks = is_between_ranks(p, e);
  if (are_ranks && producer.task == consumer.task)
    return blame(producer, "PL-11",
                 fmt::format("it sends to rank '{}', which is on the same task", consumer.name));
  if (!is_transfer && !are_ranks && producer.task != consumer.task)
    return blame(producer, "PL-3",
                 fmt::format("edge {} to '{}' crosses from task {} to {} without a send", i,
                             consumer.name, producer.task, consumer.task));
  if (e.credits < 1 || e.credits > credits_max)
    return blame(producer, "PL-5",
                 fmt::format("edge {} to '{}' has {} credits, but needs 1..{}", i, consumer.name,
                             e.credits, credits_max));
  if (e.spec != producer.output_specs[e.from.port])
    return blame(
        producer, "PL-5",
        fmt::format("edge {} to '{}' carries {}, but output {} makes {}", i, consumer.name,
                    to_string(e.spec), e.from.port, to_string(producer.output_specs[e.from.port])));
  return {};
}

// Both ends name every edge: each input exactly once (by check_edge and the count), each output's
// list too.
result<void> check_ends(const plan& p) {
  std::size_t inputs = 0;
  std::vector<bool> is_named(p.edges.size());
  for (std::uint32_t i = 0; i < p.actors.size(); ++i) {
    const auto& a = p.actors[i];
    inputs += a.inputs.size();
    for (const auto e : a.inputs)
      if (e >= p.edges.size())
        return blame(a, "PL-1", fmt::format("it names edge {} of {}", e, p.edges.size()));
    for (std::uint32_t port = 0; port < a.outputs.size(); ++port)
      for (const auto e : a.outputs[port]) {
        if (e >= p.edges.size())
          return blame(a, "PL-1", fmt::format("it names edge {} of {}", e, p.edges.size()));
        if (p.edges[e].from.actor != i || p.edges[e].from.port != port || is_named[e])
          return blame(a, "PL-1",
                       fmt::format("output {} names edge {}, which starts elsewhere or is named "
                                   "twice",
                                   port, e));
        is_named[e] = true;
      }
  }
  if (inputs != p.edges.size() ||
      std::find(is_named.begin(), is_named.end(), false) != is_named.end())
    return error(error_code::usage,
                 fmt::format("{} edges, but {} inputs: an edge is not named at both ends (PL-2)",
                             p.edges.size(), inputs));
  return {};
}

// Fetches that have places put together what the program fetches (PL-10).
result<void> check_places(const plan& p) {
  std::size_t fetched = 0;
  for (const auto& a : p.actors) {
    if (a.places.empty()) continue;
    if (a.kind != actor_kind::fetch || a.fires_on_any || a.places.size() != a.inputs.size())
      return blame(a, "PL-10",
                   fmt::format("it has {} places for {} inputs: only a fetch that waits for all "
                               "inputs has places, one for each input",
                               a.places.size(), a.inputs.size()));
    fetched += a.places.size();
  }
  std::vector<bool> is_taken(fetched);
  for (const auto& a : p.actors)
    for (const auto place : a.places) {
      if (place >= fetched || is_taken[place])
        return blame(
            a, "PL-10",
            fmt::format("place {} of {} values is taken twice, or does not exist", place, fetched));
      is_taken[place] = true;
    }
  return {};
}

// Where gradients come as rows, they are rows of the variable.
result<void> check_pushes(const plan& p) {
  for (const auto& a : p.actors) {
    if (a.kind != actor_kind::shard || !a.shard.pushes_rows) continue;
    for (std::size_t w = 0; w < a.shard.steps.size(); ++w)
      if (const auto& spec = p.edges[a.inputs[w]].spec; !are_rows_of(spec, a.shard.spec))
        return blame(a, "PL-5",
                     fmt::format("worker {} pushes {}, which are no rows of {}", w, to_string(spec),
                                 to_string(a.shard.spec)));
  }
  return {};
}

// What comes in at a rank is a tensor of its own, or from the rank of the same collective that it
// expects there (PL-11).
result<void> check_groups(const plan& p) {
  for (const auto& a : p.actors) {
    if (a.kind != actor_kind::collective) continue;
    const auto& c = *a.collective;
    for (std::size_t port = 0; port < a.inputs.size(); ++port) {
      const auto& e = p.edges[a.inputs[port]];
      const auto& from = p.actors[e.from.actor];
      if (port < c.own_inputs()) {
        if (has_slices(c.spec.kind)) {
          const auto elements = c.spec.kind == collective_kind::reduce_scatter
                                    ? c.spec.elements
                                    : c.spec.elements / parts_of(c.spec);
          if (e.spec.type != c.spec.type || e.spec.shape.is_symbolic() ||
              e.spec.shape.elements() != elements)
            return blame(
                a, "PL-11",
                fmt::format("'{}' contributes {} to it, which takes {} elements of {}", from.name,
                            to_string(e.spec), elements, to_string(c.spec.type)));
          continue;
        }
        if (const auto& wanted = a.output_specs[port % c.tensors]; e.spec != wanted)
          return blame(a, "PL-11",
                       fmt::format("'{}' contributes {} to it, which takes {}", from.name,
                                   to_string(e.spec), to_string(wanted)));
        continue;
      }
      const auto peer = c.peers_from[port - c.own_inputs()];
      auto same = c.spec;
      same.rank = peer;
      const bool as_many = from.collective && (from.collective->tensors == c.tensors ||
                                               c.spec.kind == collective_kind::reduce_scatter);
      if (c.is_on_device() &&
          (!from.collective || from.collective->buckets != c.buckets ||
           from.collective->is_in_order != c.is_in_order || from.stream != a.stream))
        return blame(a, "PL-11",
                     fmt::format("'{}' has another device number, other buckets or another order "
                                 "of summation",
                                 from.name));
      if (!as_many || from.collective->spec != same || e.from.port < from.collective->tensors ||
          from.collective->peers_to[e.from.port - from.collective->tensors] != c.spec.rank)
        return blame(a, "PL-11",
                     fmt::format("'{}' is not rank {} of the same collective", from.name, peer));
      if (e.credits < fewest_credits(c.spec))
        return blame(
            a, "PL-11",
            fmt::format("the edge between ranks {1} and {2} has {0} credits, but needs {3}",
                        e.credits, peer, c.spec.rank, fewest_credits(c.spec)));
    }
  }
  return {};
}

// A transfer is one edge: several consumers hang on the receive.
result<void> check_transfers(const plan& p) {
  for (const auto& a : p.actors)
    if (a.kind == actor_kind::send && a.outputs[0].size() != 1)
      return blame(a, "PL-3", "a send has exactly one receive");
  for (const auto& a : p.actors)
    if (a.kind == actor_kind::receive &&
        p.actors[p.edges[a.inputs[0]].from.actor].kind != actor_kind::send)
      return blame(a, "PL-3", "a receive takes from a send");
  return {};
}

// --- cycles (PL-4) -------------------------------------------------------------------------------

bool is_loop_enter(const planned_actor& a) {
  return a.kind == actor_kind::op && a.ops.front().type == loop_enter_op;
}

// Kahn (1962) without the shards and what comes back in loops: what cannot be sorted is on a cycle,
// or behind one.
std::vector<std::uint32_t> unsorted_inputs(const plan& p) {
  std::vector<std::uint32_t> missing(p.actors.size()), ready;
  const auto is_shard = [&](std::uint32_t i) { return p.actors[i].kind == actor_kind::shard; };
  const auto are_ranks = [&](const planned_edge& e) { return is_between_ranks(p, e); };
  const auto counts = [&](const planned_edge& e) {
    return !is_shard(e.from.actor) && !is_shard(e.to.actor) &&
           !(e.to.port == 1 && is_loop_enter(p.actors[e.to.actor])) && !are_ranks(e);
  };
  for (const auto& e : p.edges)
    if (counts(e)) ++missing[e.to.actor];
  for (std::uint32_t i = 0; i < p.actors.size(); ++i)
    if (missing[i] == 0) ready.push_back(i);
  while (!ready.empty()) {
    const auto i = ready.back();
    ready.pop_back();
    if (is_shard(i)) continue;
    for (const auto& port : p.actors[i].outputs)
      for (const auto e : port)
        if (const auto to = p.edges[e].to.actor; counts(p.edges[e]) && --missing[to] == 0)
          ready.push_back(to);
  }
  return missing;
}

result<void> check_cycles(const plan& p) {
  const auto missing = unsorted_inputs(p);
  const auto stuck = std::find_if(missing.begin(), missing.end(), [](auto n) { return n != 0; });
  if (stuck == missing.end()) return {};
  // Every stuck actor has a stuck producer: walking back that way must come to an actor a second
  // time.
  std::vector<std::uint32_t> path;
  std::vector<std::uint32_t> position(p.actors.size(), 0);
  auto at = static_cast<std::uint32_t>(stuck - missing.begin());
  while (position[at] == 0) {
    path.push_back(at);
    position[at] = static_cast<std::uint32_t>(path.size());
    for (const auto e : p.actors[at].inputs)
      if (const auto from = p.edges[e].from.actor;
          missing[from] != 0 && !(p.edges[e].to.port == 1 && is_loop_enter(p.actors[at])) &&
          !is_between_ranks(p, p.edges[e])) {
        at = p.edges[e].from.actor;
        break;
      }
  }
  path.erase(path.begin(), path.begin() + (position[at] - 1));
  std::reverse(path.begin(), path.end());  // in the direction of the data
  std::string names;
  for (std::size_t i = 0; i < path.size() && i < names_in_cycle_max; ++i)
    names += fmt::format("'{}' -> ", p.actors[path[i]].name);
  if (path.size() > names_in_cycle_max)
    names += fmt::format("{} more -> ", path.size() - names_in_cycle_max);
  return blame(p.actors[path[0]], "PL-4",
               fmt::format("a cycle without a shard can never start: {}'{}'", names,
                           p.actors[path[0]].name));
}

result<void> check_sizes(const plan& p) {
  const auto limit = [](std::string_view what, std::size_t n, std::size_t most) -> result<void> {
    if (n <= most) return {};
    return error(error_code::usage,
                 fmt::format("a plan has at most {} {}, this one has {}", most, what, n));
  };
  if (auto ok = limit("actors", p.actors.size(), plan_actors_max); !ok) return ok;
  if (auto ok = limit("edges", p.edges.size(), plan_edges_max); !ok) return ok;
  if (auto ok = limit("tasks", p.tasks.size(), plan_tasks_max); !ok) return ok;
  if (p.tasks.empty()) return error(error_code::usage, "a plan needs at least one task");
  for (const auto& t : p.tasks)
    if (auto name = parse_device(t.name); !name)
      return std::move(name.error().while_doing("name of a task"));
  return {};
}

// PL-7.
result<void> check_libraries(const plan& p) {
  const auto refuse = [](std::string what) { return error(error_code::usage, what + " (PL-7)"); };
  if (p.libraries.size() > libraries_max)
    return refuse(fmt::format("a plan needs at most {} libraries, this one has {}", libraries_max,
                              p.libraries.size()));
  std::unordered_set<std::string_view> names, ops;
  for (const auto& [library, types] : p.libraries) {
    const auto is_text = [](const std::string& s) {
      return !s.empty() && s.size() <= library_text_bytes_max;
    };
    if (!is_text(library.name) || !is_text(library.version))
      return refuse(fmt::format("the name and the version of a library have 1..{} bytes",
                                library_text_bytes_max));
    if (!names.insert(library.name).second)
      return refuse(fmt::format("library '{}' is named twice", library.name));
    if (types.empty() || types.size() > plan_library_ops_max)
      return refuse(fmt::format("library '{}' has {} ops, and needs 1..{}", library.name,
                                types.size(), plan_library_ops_max));
    for (const auto& type : types)
      if (type.empty() || type.size() > name_bytes_max || !ops.insert(type).second)
        return refuse(fmt::format(
            "library '{}' names an op that has no name, has too long a name, or is named before by "
            "it or another library",
            library.name));
  }
  return {};
}

// --- buffers (PL-8) ------------------------------------------------------------------------------

// Walks the actors in their order and knows of every buffer whose result stands in it, and who is
// the last to read that.
class buffer_check {
 public:
  explicit buffer_check(const plan& p)
      : p_(p), current_(p.buffers.size(), none), uses_of_(p.actors.size()) {}

  result<void> run() {
    if (p_.on_nan > nan_policy::skip)
      return error(error_code::usage,
                   fmt::format("there is no policy {} for NaN", static_cast<int>(p_.on_nan)));
    if (p_.steps_in_flight < 1 || p_.steps_in_flight > steps_in_flight_max)
      return error(error_code::usage, fmt::format("{} steps in flight: a plan has 1..{} (PL-8)",
                                                  p_.steps_in_flight, steps_in_flight_max));
    if (p_.buffers.size() > plan_buffers_max)
      return error(error_code::usage,
                   fmt::format("a plan has at most {} buffers, this one has {} (PL-8)",
                               plan_buffers_max, p_.buffers.size()));
    for (const auto& b : p_.buffers)
      if (b.bytes > static_cast<std::uint64_t>(tensor_bytes_max) || b.task >= p_.tasks.size())
        return error(error_code::usage,
                     fmt::format("a buffer of {} bytes on task {} of {} is too large, or on a task "
                                 "that does not exist (PL-8)",
                                 b.bytes, b.task, p_.tasks.size()));
    for (std::uint32_t i = 0; i < p_.actors.size(); ++i)
      if (auto ok = visit(i); !ok) return ok;
    return {};
  }

 private:
  static constexpr std::uint32_t none = 0xFFFF'FFFF;
  struct use {
    std::uint32_t last_reader = 0;
  };

  result<void> visit(std::uint32_t i) {
    const auto& a = p_.actors[i];
    if (!a.buffers.empty() &&
        (a.kind == actor_kind::op && (a.loop_level != 0 || is_control(a.ops.front().type))))
      return blame(a, "PL-8",
                   "an op in a loop, or one of control flow, cannot use the plan's buffers");
    if (!a.buffers.empty() && (a.kind != actor_kind::op || a.buffers.size() != a.outputs.size()))
      return blame(
          a, "PL-8",
          fmt::format("it names {} buffers for {} outputs", a.buffers.size(), a.outputs.size()));
    if (a.in_place < -1 || a.in_place >= static_cast<std::int64_t>(a.inputs.size()))
      return blame(a, "PL-8", fmt::format("it writes over input {}, which it lacks", a.in_place));
    const bool is_simple = a.kind == actor_kind::op && !a.inputs.empty() && a.outputs.size() == 1;
    if ((a.forwards_input && (!is_simple || a.ops.size() != 1)) ||
        (a.in_place >= 0 && !is_simple) || (a.forwards_input && a.in_place >= 0))
      return blame(a, "PL-8",
                   "only an op with inputs and one output can forward its input or write over it, "
                   "and not both");
    uses_of_[i].assign(a.outputs.size(), none);
    if (a.forwards_input) return hand_on(i);
    for (std::size_t port = 0; port < a.buffers.size(); ++port)
      if (a.buffers[port] != -1)
        if (auto ok = begin(i, port); !ok) return ok;
    return {};
  }

  result<void> hand_on(std::uint32_t i) {
    const auto& a = p_.actors[i];
    const auto& from = p_.edges[a.inputs[0]].from;
    if (buffer_of(p_.actors[from.actor], from.port) != buffer_of(a, 0))
      return blame(a, "PL-8", "it forwards an input that is in another buffer than its output");
    if (buffer_of(a, 0) == -1) return {};
    if (from.actor >= i)
      return blame(a, "PL-8", "it comes before the actor whose output it forwards");
    uses_of_[i][0] = uses_of_[from.actor][from.port];
    return add_readers(i, 0);
  }

  result<void> begin(std::uint32_t i, std::size_t port) {
    const auto& a = p_.actors[i];
    const auto b = a.buffers[port];
    if (b < -1 || static_cast<std::size_t>(b) >= p_.buffers.size())
      return blame(a, "PL-8", fmt::format("it names buffer {} of {}", b, p_.buffers.size()));
    const auto& buffer = p_.buffers[static_cast<std::size_t>(b)];
    if (buffer.task != a.task || buffer.stream != a.stream)
      return blame(a, "PL-8", fmt::format("buffer {} belongs to another stream or task", b));
    if (a.output_specs[port].size_bytes() > buffer.bytes)
      return blame(a, "PL-8", fmt::format("output {} is larger than buffer {}", port, b));
    auto& at = current_[static_cast<std::size_t>(b)];
    const bool is_in_place = a.in_place >= 0;
    if (is_in_place) {
      const auto& from = p_.edges[a.inputs[static_cast<std::size_t>(a.in_place)]].from;
      if (at == none || from.actor >= i || uses_of_[from.actor][from.port] != at)
        return blame(a, "PL-8",
                     fmt::format("buffer {} does not hold the input that it writes over", b));
      if (a.output_specs[port] != p_.actors[from.actor].output_specs[from.port])
        return blame(a, "PL-8",
                     "its output has another type or shape than the input that it writes over");
      if (std::count_if(a.inputs.begin(), a.inputs.end(),
                        [&](auto e) { return p_.edges[e].from == from; }) != 1)
        return blame(a, "PL-8", "it takes the input that it writes over more than once");
    }
    if (at != none && uses_[at].last_reader > (is_in_place ? i : i - 1))
      return blame(a, "PL-8",
                   fmt::format("it writes over buffer {}, whose value is still to be read", b));
    at = static_cast<std::uint32_t>(uses_.size());
    uses_.push_back({i});
    uses_of_[i][port] = at;
    return add_readers(i, port);
  }

  result<void> add_readers(std::uint32_t i, std::size_t port) {
    const auto& a = p_.actors[i];
    auto& last = uses_[uses_of_[i][port]].last_reader;
    for (const auto e : a.outputs[port]) {
      const auto to = p_.edges[e].to.actor;
      const auto& reader = p_.actors[to];
      if (reader.kind != actor_kind::op || reader.task != a.task || reader.stream != a.stream ||
          to <= i || reader.loop_level != 0 || is_control(reader.ops.front().type))
        return blame(
            a, "PL-8",
            fmt::format(
                "'{}' reads output {} from a buffer, but does not run after it on the same stream, "
                "exactly once in each step",
                reader.name, port));
      last = std::max(last, to);
    }
    return {};
  }

  const plan& p_;
  std::vector<std::uint32_t> current_;  // by buffer: its use, or none
  std::vector<use> uses_;
  std::vector<std::vector<std::uint32_t>> uses_of_;  // by actor and port
};

}  // namespace

result<void> check(const plan& p) {
  if (auto ok = check_sizes(p); !ok) return ok;
  if (auto ok = check_libraries(p); !ok) return ok;
  for (const auto& a : p.actors)
    if (auto ok = check_actor(a, p); !ok) return ok;
  for (std::uint32_t i = 0; i < p.edges.size(); ++i)
    if (auto ok = check_edge(p, i); !ok) return ok;
  if (auto ok = check_ends(p); !ok) return ok;
  if (auto ok = check_transfers(p); !ok) return ok;
  if (auto ok = check_devices(p); !ok) return ok;
  if (auto ok = check_pushes(p); !ok) return ok;
  if (auto ok = check_groups(p); !ok) return ok;
  if (auto ok = check_places(p); !ok) return ok;
  if (auto ok = check_names(p); !ok) return ok;
  if (auto ok = check_cycles(p); !ok) return ok;
  return buffer_check(p).run();
}

}  // namespace troupe
