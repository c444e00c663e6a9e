#include "troupe/runtime/compile/passes/passes.hpp"
#include "troupe/runtime/plan/loop_rules.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

namespace troupe::passes {
namespace {

// Which receive brings a producer's port into a task.
using crossings = std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>, std::uint32_t>;

draft_actor make_transfer(actor_kind kind, const draft_actor& producer, port_ref from,
                          std::uint32_t other_task) {
  return make_handing_on(kind, producer, from, fmt::format("{}/{}", to_string(kind), other_task));
}

// Who takes output `port` of an actor on another stream of its task.
using stream_readers = std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>,
                                std::vector<std::pair<std::uint32_t, std::size_t>>>;

stream_readers readers_elsewhere(const draft& d) {
  stream_readers out;
  for (std::uint32_t c = 0; c < d.actors.size(); ++c) {
    const auto& a = d.actors[c].planned;
    if (a.kind != actor_kind::op || is_control(a.ops[0].type)) continue;
    for (std::size_t port = 0; port < d.actors[c].from.size(); ++port) {
      const auto from = d.actors[c].from[port];
      const auto& p = d.actors[from.actor].planned;
      if (is_device_stream(a.stream)) continue;  // its device's copies hand on
      if (p.task == a.task && p.stream != a.stream)
        out[{from.actor, from.port, a.stream}].emplace_back(c, port);
    }
  }
  return out;
}

// A message to another thread takes twice the time of one on it: 1,000 readers on two streams take
// 541 ns each so, 780 without.
constexpr std::size_t relayed_from = 3;

// An item crosses from thread to thread once, and is handed on there.
void relay(draft& d, pass_report* report) {
  for (const auto& [crossing, readers] : readers_elsewhere(d)) {
    if (readers.size() < relayed_from) continue;
    const auto [actor, port, stream] = crossing;
    auto r = make_handing_on(actor_kind::op, d.actors[actor], {actor, port},
                             fmt::format("{}/{}", relay_op, stream));
    r.planned.task = d.actors[actor].planned.task;
    r.planned.stream = stream;
    planned_op op;
    op.type = relay_op;
    op.name = r.planned.name;
    op.operands = {0};
    op.source = r.planned.source;
    r.planned.ops.push_back(std::move(op));
    r.from = {{actor, port}};
    const auto next = static_cast<std::uint32_t>(d.actors.size());
    if (report != nullptr)
      report->add(r.planned.name, r.planned.source, [&] {
        return fmt::format("is put in: it forwards a value to {} readers on stream {}",
                           readers.size(), stream);
      });
    d.actors.push_back(std::move(r));
    for (const auto& [reader, input] : readers) d.actors[reader].from[input] = {next, 0};
  }
}

// A message to the program's thread, and an actor, are not worth fewer values.
constexpr std::size_t collected_from = 16;

// What the program fetches is collected on the streams that make it: a stream's values go to the
// program in one message, and no stream takes those of all others.
void collect(draft& d, pass_report* report) {
  const auto count = d.actors.size();
  for (std::size_t c = 0; c < count; ++c) {
    if (d.actors[c].planned.places.empty()) continue;
    // What a device makes is copied for whoever takes it.
    const auto stream_of = [&](std::size_t port) {
      const auto made = d.actors[d.actors[c].from[port].actor].planned.stream;
      return is_device_stream(made) ? d.actors[c].planned.stream : made;
    };
    std::map<std::uint32_t, std::vector<std::size_t>> by_stream;  // ports
    for (std::size_t port = 0; port < d.actors[c].from.size(); ++port)
      by_stream[stream_of(port)].push_back(port);
    auto& own = by_stream[d.actors[c].planned.stream];
    for (const auto& [stream, ports] : by_stream)
      if (&ports != &own && ports.size() < collected_from)
        own.insert(own.end(), ports.begin(), ports.end());
    std::sort(own.begin(), own.end());
    const auto part = [&](std::uint32_t stream, const std::vector<std::size_t>& ports) {
      auto a = d.actors[c];
      a.planned.stream = stream;
      a.planned.places.clear();
      a.from.clear();
      for (const auto port : ports) {
        a.from.push_back(d.actors[c].from[port]);
        a.planned.places.push_back(d.actors[c].planned.places[port]);
      }
      return a;
    };
    std::vector<draft_actor> parts;
    if (!own.empty()) parts.push_back(part(d.actors[c].planned.stream, own));
    for (const auto& [stream, ports] : by_stream)
      if (&ports != &own && ports.size() >= collected_from) parts.push_back(part(stream, ports));
    for (std::size_t i = 1; i < parts.size(); ++i) {
      parts[i].planned.name += fmt::format("/{}", parts[i].planned.stream);
      if (report != nullptr)
        report->add(parts[i].planned.name, parts[i].planned.source, [&] {
          return fmt::format("is put in: it collects {} values on stream {}", parts[i].from.size(),
                             parts[i].planned.stream);
        });
      d.actors.push_back(std::move(parts[i]));
    }
    d.actors[c] = std::move(parts[0]);
  }
}

}  // namespace

draft_actor make_handing_on(actor_kind kind, const draft_actor& producer, port_ref from,
                            std::string_view way) {
  const auto& p = producer.planned;
  draft_actor a;
  a.owner = producer.owner;
  a.index = producer.index;
  a.planned.kind = kind;
  // Several ports of one producer may go the same way: those of a shard to workers that share a
  // node.
  a.planned.name =
      fmt::format("{}{}/{}", p.name, from.port == 0 ? "" : fmt::format(":{}", from.port), way);
  a.planned.output_specs = {p.output_specs[from.port]};
  a.planned.start = items_before(p, from.port);
  a.planned.steps = items_of(p, from.port);
  a.planned.source = p.source;
  // What leaves the outermost loop is in none.
  const bool has_left = p.kind == actor_kind::op && p.ops[0].type == loop_next_op &&
                        from.port == 1 && p.ops[0].attrs.integer("level") == p.loop_level;
  a.planned.loop_level = has_left ? std::uint16_t{0} : p.loop_level;
  return a;
}

std::uint64_t items_of(const planned_actor& a, std::uint32_t port) {
  if (a.kind != actor_kind::shard) return a.steps;
  if (port >= a.shard.readers.size()) return a.shard.steps[port - a.shard.readers.size()];
  const auto& r = a.shard.readers[port];
  if (r.at_end) return 1;
  if (r.worker >= 0) return a.shard.steps[source_of(a.shard, r)];
  return (a.shard.steps[0] - r.first) / r.stride + 1;
}

std::uint64_t items_before(const planned_actor& a, std::uint32_t port) {
  if (a.kind != actor_kind::shard) return a.start;
  if (port >= a.shard.readers.size()) {
    const auto& begun = a.shard.update == update_kind::async && !a.shard.handed.empty()
                            ? a.shard.handed
                            : a.shard.start;
    return begun.empty() ? 0 : begun[port - a.shard.readers.size()];
  }
  const auto& r = a.shard.readers[port];
  return r.worker < 0 || a.shard.start.empty() ? 0 : a.shard.start[source_of(a.shard, r)];
}

draft partition(draft d, pass_report* report) {
  crossings made;
  const auto count = d.actors.size();
  for (std::uint32_t c = 0; c < count; ++c) {
    for (std::size_t port = 0; port < d.actors[c].from.size(); ++port) {
      const auto from = d.actors[c].from[port];
      const auto task = d.actors[c].planned.task;
      const auto source_task = d.actors[from.actor].planned.task;
      if (source_task == task) continue;
      // Between ranks.
      if (const auto& taker = d.actors[c].planned.collective; taker && port >= taker->own_inputs())
        continue;
      const auto next = static_cast<std::uint32_t>(d.actors.size());
      const auto [at, is_new] = made.try_emplace({from.actor, from.port, task}, next + 1);
      if (is_new) {
        auto send = make_transfer(actor_kind::send, d.actors[from.actor], from, task);
        send.planned.task = source_task;
        send.planned.stream = d.actors[from.actor].planned.stream;
        send.from = {from};
        auto receive = make_transfer(actor_kind::receive, d.actors[from.actor], from, task);
        receive.planned.task = task;
        receive.planned.stream = d.actors[c].planned.stream;
        receive.from = {{next, 0}};
        send.planned.awaits_receipt = receive.planned.awaits_receipt =
            d.actors[c].planned.awaits_receipt;
        if (report != nullptr)
          report->add(send.planned.name, send.planned.source, [&] {
            return fmt::format(
                "and its receive are put in: {} goes from task {} to task {}, {} bytes an item",
                to_string(send.planned.output_specs[0]), source_task, task,
                send.planned.output_specs[0].size_bytes());
          });
        d.actors.push_back(std::move(send));
        d.actors.push_back(std::move(receive));
      }
      d.actors[c].from[port] = {at->second, 0};
    }
  }
  relay(d, report);
  collect(d, report);
  return d;
}

}  // namespace troupe::passes
