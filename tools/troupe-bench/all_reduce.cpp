// An all-reduce of f32 over 2 and 4 processes on loopback, one after the other without a pause, as
// a program makes it: a rank is an actor of a plan, its contribution comes from an op of a stream,
// and its result goes to one. Every rank begins the next one when it has the result of the last, so
// that a step's time is that of a whole all-reduce. Beside it, blocking TCP that brings as many
// bytes to the other process and back.

#include "tools/troupe-bench/bare_tcp.hpp"
#include "tools/troupe-bench/bench_ops.hpp"
#include "tools/troupe-bench/folder.hpp"
#include "tools/troupe-bench/graph_driver.hpp"
#include "tools/troupe-bench/measure.hpp"
#include "tools/troupe-bench/peer.hpp"

#include <caf/scoped_actor.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <unistd.h>

namespace troupe {

namespace {

constexpr std::uint32_t rank_credits = 8;
constexpr std::int64_t piece_elements = 64 * 1024;

// feed -> rank 0 -> fetch, and on each other task standing -> rank -> relay, which nobody reads.
plan reduce_everywhere(std::int64_t elements, std::uint32_t ranks, collective_algorithm algorithm) {
  plan p;
  p.name = "all_reduce";
  p.tasks.push_back({"/job:client/task:0", true, {}});
  for (std::uint32_t r = 1; r < ranks; ++r)
    p.tasks.push_back({fmt::format("/job:worker/task:{}", r - 1), false, {}});
  planned_collective c;
  c.spec.algorithm = algorithm;
  c.spec.elements = elements;
  c.spec.piece_elements = piece_elements;
  for (std::uint32_t r = 0; r < ranks; ++r) c.spec.parts.push_back({r});
  const tensor_spec spec{dtype::f32, {elements}};
  const auto join = [&](port_ref from, port_ref to, std::uint32_t credits) {
    const auto e = static_cast<std::uint32_t>(p.edges.size());
    p.edges.push_back({from, to, p.actors[from.actor].output_specs[from.port], credits});
    p.actors[from.actor].outputs[from.port].push_back(e);
    p.actors[to.actor].inputs[to.port] = e;
  };
  for (std::uint32_t r = 0; r < ranks; ++r) {
    planned_actor source, rank, sink;
    source.task = rank.task = sink.task = r;
    source.output_specs = {spec};
    source.outputs.resize(1);
    c.spec.rank = r;
    c.workers = {r};
    const auto peers = peers_of(c.spec);
    c.peers_from = peers.from;
    c.peers_to = peers.to;
    rank.kind = actor_kind::collective;
    rank.name = fmt::format("all_reduce/{}", r);
    rank.collective = c;
    rank.output_specs = {spec};
    rank.output_specs.insert(rank.output_specs.end(), c.peers_to.size(), piece_spec(c.spec));
    rank.outputs.resize(rank.output_specs.size());
    rank.inputs.resize(1 + c.peers_from.size());
    sink.inputs.resize(1);
    if (r == 0) {
      source.kind = actor_kind::feed;
      source.name = "x";
      sink.kind = actor_kind::fetch;
      sink.name = "fetch";
    } else {
      source.name = fmt::format("x/{}", r);
      source.ops = {
          {.type = "standing", .name = source.name, .attrs = {}, .operands = {}, .source = {}}};
      source.ops.front().attrs.set("elements", elements);
      sink.name = fmt::format("result/{}", r);
      sink.ops = {{.type = std::string(relay_op),
                   .name = sink.name,
                   .attrs = {},
                   .operands = {0},
                   .source = {}}};
      sink.output_specs = {spec};
      sink.outputs.resize(1);
    }
    for (auto* a : {&source, &rank, &sink}) p.actors.push_back(std::move(*a));
  }
  for (std::uint32_t r = 0; r < ranks; ++r) {
    join({3 * r, 0}, {3 * r + 1, 0}, 1);
    join({3 * r + 1, 0}, {3 * r + 2, 0}, 1);
    const auto own = *p.actors[3 * r + 1].collective;
    for (std::uint32_t i = 0; i < own.peers_to.size(); ++i) {
      const auto peer = own.peers_to[i];
      const auto& from = p.actors[3 * peer + 1].collective->peers_from;
      const auto place =
          static_cast<std::uint32_t>(std::find(from.begin(), from.end(), r) - from.begin());
      join({3 * r + 1, 1 + i}, {3 * peer + 1, 1 + place}, rank_credits);
    }
  }
  return p;
}

// Waits until so many other nodes are seen, and gives our and their ids.
result<std::vector<node_id>> wait_for_nodes(process& p, std::size_t others) {
  caf::scoped_actor pause{p.system()};
  for (int i = 0; i < 500; ++i) {
    const auto view = view_of(p);
    std::vector<node_id> nodes{view.self.id};
    for (const auto& m : view.members)
      if (m.kind == member_kind::node && m.state == member_state::alive &&
          view.linked.contains(m.id))
        nodes.push_back(m.id);
    if (nodes.size() == others + 1) return nodes;
    pause->receive(caf::after(std::chrono::milliseconds(20)) >> [] {});
  }
  return error(error_code::timed_out, "the other nodes were not found within 10 s");
}

result<void> over_processes(std::uint32_t ranks, direct_reads reads, const bench_options& o,
                            bench_report& report, bare_client& bare) {
  bench_folder folder;
  auto path = folder.path();
  if (!path) return path.error();
  ::setenv("XDG_RUNTIME_DIR", path->c_str(), 1);
  const auto cluster = fmt::format("bench-{}-{}-{}", ::getpid(), ranks, static_cast<int>(reads));
  std::vector<std::unique_ptr<peer_process>> peers;
  for (std::uint32_t r = 1; r < ranks; ++r) {
    auto peer = peer_process::start({"node", cluster, reads == direct_reads::off ? "off" : "auto"});
    if (!peer) return peer.error();
    peers.push_back(std::move(*peer));
  }
  process_options options;
  options.cluster = cluster;
  options.kind = member_kind::client;
  options.reads = reads;
  options.libraries = {&bench_ops()};
  auto client = process::start(options);
  if (!client) return client.error();
  auto nodes = wait_for_nodes(**client, ranks - 1);
  if (!nodes) return nodes.error();
  std::vector<std::size_t> sizes{4 << 10, 64 << 10, 940'584, 1 << 20, 4 << 20, 16 << 20, 64 << 20};
  if (o.is_quick) sizes = {4 << 10, 1 << 20};
  for (const auto bytes : sizes) {
    const auto algorithm =
        choose_algorithm(collective_kind::all_reduce, bytes, ranks, ranks, false);
    auto p = reduce_everywhere(static_cast<std::int64_t>(bytes / sizeof(float)), ranks, algorithm);
    constexpr std::string_view own_types[] = {"standing"};
    p.libraries = libraries_of(own_types, (*client)->ops());
    auto graph = graph_driver::start(**client, std::move(p), *nodes);
    if (!graph) return graph.error();
    const std::uint64_t count =
        o.is_quick ? 3 : std::clamp<std::uint64_t>((std::uint64_t{256} << 20) / bytes, 5, 500);
    const auto in_us = [&](result<double> seconds) {
      return seconds ? result<double>(*seconds * 1e6 / double(count)) : seconds;
    };
    auto figures = take_turns(o.runs, {[&] { return in_us(bare.ping_pong(bytes, count)); },
                                       [&] { return in_us((*graph)->run(count, 1)); }});
    if (!figures) return figures.error();
    report.add({"all_reduce",
                fmt::format("{} processes, {} bytes, {}{}", ranks, bytes, to_string(algorithm),
                            reads == direct_reads::off ? ", sockets alone" : ""),
                "us", (*figures)[1], (*graph)->actors(), "bare blocking TCP", (*figures)[0],
                bench_ratio::ours_to_baseline, ""});
  }
  return {};
}

}  // namespace

result<void> bench_all_reduce(const bench_options& o, bench_report& report) {
  auto peer = peer_process::start({"link", "on"});
  if (!peer) return peer.error();
  unsigned bare_port = 0, link_port = 0;
  if (std::sscanf((*peer)->ready().c_str(), "%u %u", &bare_port, &link_port) != 2)
    return error(error_code::failed, "the other process said " + (*peer)->ready());
  auto bare = bare_client::connect(static_cast<std::uint16_t>(bare_port));
  if (!bare) return bare.error();
  for (const std::uint32_t ranks : {2U, 4U})
    for (const auto reads : {direct_reads::automatic, direct_reads::off})
      if (auto ok = over_processes(ranks, reads, o, report, **bare); !ok) return ok;
  return {};
}

}  // namespace troupe
