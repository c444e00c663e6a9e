// A round trip of 64 bytes between two processes: frames of the transport, messages of a link, and
// a tensor from op to op through two nodes of a cluster; beside blocking TCP, which wakes one
// thread each way.
//
// Link to link is one thread in each process, as in a node. From op to op every item crosses to the
// I/O worker and back in both processes: eight crossings and two sends where bare TCP has two.

#include "tools/troupe-bench/bare_tcp.hpp"
#include "tools/troupe-bench/folder.hpp"
#include "tools/troupe-bench/graph_driver.hpp"
#include "tools/troupe-bench/link_end.hpp"
#include "tools/troupe-bench/measure.hpp"
#include "tools/troupe-bench/peer.hpp"

#include <caf/scoped_actor.hpp>
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include <unistd.h>

namespace troupe {

namespace {

constexpr std::size_t message_bytes = 64;

// feed -> send =====> receive -> neg -> send =====> receive -> fetch
plan there_and_back() {
  const tensor_spec spec{dtype::f32, {message_bytes / sizeof(float)}};
  plan p;
  p.name = "roundtrip";
  p.tasks = {{"/job:client/task:0", true, {}}, {"/job:worker/task:0", false, {}}};
  const auto add = [&](actor_kind kind, std::string name, std::uint32_t task) {
    planned_actor a;
    a.kind = kind;
    a.name = std::move(name);
    a.task = task;
    const auto i = static_cast<std::uint32_t>(p.actors.size());
    if (i > 0) a.inputs = {i - 1};
    if (kind != actor_kind::fetch) {
      a.outputs = {{i}};
      a.output_specs = {spec};
      p.edges.push_back({{i, 0}, {i + 1, 0}, spec, 2});
    }
    if (kind == actor_kind::op)
      a.ops = {{.type = "neg", .name = "neg", .attrs = {}, .operands = {0}, .source = {}}};
    p.actors.push_back(std::move(a));
  };
  add(actor_kind::feed, "x", 0);
  add(actor_kind::send, "x/send/1", 0);
  add(actor_kind::receive, "x/receive/1", 1);
  add(actor_kind::op, "neg", 1);
  add(actor_kind::send, "neg/send/0", 1);
  add(actor_kind::receive, "neg/receive/0", 0);
  add(actor_kind::fetch, "fetch", 0);
  return p;
}

// Waits until the other node can be sent something, and gives our and its id.
result<std::vector<node_id>> wait_for_node(process& p) {
  caf::scoped_actor pause{p.system()};
  for (int i = 0; i < 500; ++i) {
    const auto view = view_of(p);
    for (const auto& m : view.members)
      if (m.kind == member_kind::node && m.state == member_state::alive &&
          view.linked.contains(m.id))
        return std::vector<node_id>{view.self.id, m.id};
    pause->receive(caf::after(std::chrono::milliseconds(20)) >> [] {});
  }
  return error(error_code::timed_out, "the other node was not found within 10 s");
}

struct two_nodes {
  std::unique_ptr<peer_process> peer;
  std::unique_ptr<process> client;
  std::unique_ptr<graph_driver> graph;
};

// A cluster of their own, in a folder of their own.
result<two_nodes> open_nodes(const std::string& folder, bool has_tls) {
  ::setenv("XDG_RUNTIME_DIR", folder.c_str(), 1);
  const auto cluster = fmt::format("bench-{}", ::getpid());
  two_nodes n;
  auto peer = peer_process::start({"node", cluster, has_tls ? "tls" : "auto"});
  if (!peer) return peer.error();
  n.peer = std::move(*peer);
  process_options options;
  options.cluster = cluster;
  options.kind = member_kind::client;
  options.protect.tls = has_tls;
  auto client = process::start(options);
  if (!client) return client.error();
  n.client = std::move(*client);
  auto nodes = wait_for_node(*n.client);
  if (!nodes) return nodes.error();
  auto graph = graph_driver::start(*n.client, there_and_back(), *nodes);
  if (!graph) return graph.error();
  n.graph = std::move(*graph);
  return n;
}

}  // namespace

result<void> bench_roundtrip(const bench_options& o, bench_report& report) {
  bench_folder folder;
  auto path = folder.path();
  if (!path) return path.error();
  auto nodes = open_nodes(*path, o.has_tls);
  if (!nodes) return nodes.error();
  auto peer = peer_process::start({"link", o.has_tls ? "tls" : "on"});
  if (!peer) return peer.error();
  unsigned bare_port = 0, link_port = 0;
  if (std::sscanf((*peer)->ready().c_str(), "%u %u", &bare_port, &link_port) != 2)
    return error(error_code::failed, "the other process said " + (*peer)->ready());
  auto bare = bare_client::connect(static_cast<std::uint16_t>(bare_port));
  if (!bare) return bare.error();
  link_end link(link_side::sender, o.has_tls ? link_guard::tls : link_guard::checksums);
  if (auto connected = link.connect(static_cast<std::uint16_t>(link_port)); !connected)
    return connected;

  const std::uint64_t count = o.is_quick ? 50 : 3000;
  const auto in_us = [&](result<double> seconds) {
    return seconds ? result<double>(*seconds * 1e6 / double(count)) : seconds;
  };
  auto figures =
      take_turns(o.runs, {[&] { return in_us((*bare)->ping_pong(message_bytes, count)); },
                          [&] { return in_us(link.ping_transport(message_bytes, count)); },
                          [&] { return in_us(link.ping_link(message_bytes, count)); },
                          [&] { return in_us(nodes->graph->run(count, 1)); }});
  if (!figures) return figures.error();
  const auto row = [&](std::string what, std::size_t i, std::uint64_t actors, std::string goal) {
    report.add({"roundtrip", std::move(what), "us", (*figures)[i], actors, "bare blocking TCP",
                (*figures)[0], bench_ratio::ours_to_baseline, std::move(goal)});
  };
  row("64 B, transport to transport", 1, 0, "");
  row("64 B, link to link", 2, 2, "<= 1.5");
  row("64 B, op to op", 3, nodes->graph->actors() + 2, "<= 2.5");
  return {};
}

}  // namespace troupe
