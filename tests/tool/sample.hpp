#pragma once
// A cluster of a client and two nodes that trains one job: what the tool's tests draw.

#include "troupe/runtime/insight/snapshot.hpp"

#include <string>
#include <string_view>

namespace troupe {

inline node_snapshot sample_node(const std::string& name, const std::string& kind,
                                 std::uint64_t pid) {
  node_snapshot n;
  n.id = "00ab" + name;
  n.name = name;
  n.pid = pid;
  n.kind = kind;
  n.job = name == "n2" ? "ps" : kind == "node" ? "worker" : "";
  n.address = "127.0.0.1:4000" + name.substr(1);
  if (name == "n1")
    n.devices = {{"gpu:0", "NVIDIA H100 80GB HBM3", 40ULL << 30},
                 {"gpu:1", "NVIDIA H100 80GB HBM3", 40ULL << 30}};
  n.incarnation = 3;
  return n;
}

inline actor_snapshot sample_actor(const std::string& id, const std::string& kind,
                                   const std::string& name, actor_state state) {
  actor_snapshot a;
  a.id = id;
  a.kind = kind;
  a.name = name;
  a.node = id.substr(0, id.find('.'));
  a.job = "mnist", a.job_id = "1f";
  a.state = state;
  a.since_seconds = 0.25;
  a.messages_in = 512, a.messages_out = 511, a.bytes_in = 1 << 20, a.bytes_out = 5 << 20;
  a.busy_ratio = state == actor_state::running ? 0.75 : 0.05;
  a.queue = 1;
  a.steps = 511;
  return a;
}

// reader -> matmul -> send ~ receive -> shard -> (back) matmul, and matmul -> fetch on the client.
inline cluster_snapshot sample_cluster() {
  cluster_snapshot c;
  c.cluster = "default";
  c.nodes = {sample_node("c1", "client", 4100), sample_node("n1", "node", 4101),
             sample_node("n2", "node", 4102)};
  c.nodes[0].reaches = {"n1", "n2"};
  c.nodes[1].reaches = {"c1", "n2"};
  c.nodes[2].reaches = {"c1", "n1"};
  c.actors = {
      sample_actor("c1.0", "fetch", "loss", actor_state::waiting_for_input),
      sample_actor("n1.0", "op", "worker/0/reader", actor_state::waiting_for_credit),
      sample_actor("n1.1", "op", "worker/0/matmul", actor_state::running),
      sample_actor("n1.2", "send", "worker/0/gradient/send", actor_state::idle),
      sample_actor("n2.0", "receive", "worker/0/gradient/receive", actor_state::waiting_for_input),
      sample_actor("n2.1", "shard", "shard/0/w", actor_state::idle)};
  auto &loss = c.actors[0], &reader = c.actors[1], &matmul = c.actors[2], &send = c.actors[3],
       &receive = c.actors[4], &shard = c.actors[5];
  loss.ports = {{"in0", "worker/0/matmul", "n1", 0, 2, 0, true, 0.2},
                {"out0", "program", "", 4, 4, 0, false, 0}};
  reader.ports = {{"out0", "worker/0/matmul", "n1", 0, 2, 0, true, 0.1}};
  matmul.ports = {{"in0", "worker/0/reader", "n1", 0, 2, 2, false, 0},
                  {"in1", "shard/0/w", "n2", 0, 2, 1, false, 0},
                  {"out0", "worker/0/gradient/send", "n1", 1, 2, 0, false, 0},
                  {"out1", "loss", "c1", 2, 2, 0, false, 0}};
  send.ports = {{"in0", "worker/0/matmul", "n1", 0, 2, 0, false, 0},
                {"out0", "worker/0/gradient/receive", "n2", 1, 2, 0, false, 0}};
  receive.ports = {{"in0", "worker/0/gradient/send", "n1", 0, 2, 0, true, 0.3},
                   {"out0", "shard/0/w", "n2", 2, 2, 0, false, 0}};
  shard.ports = {{"in0", "worker/0/gradient/receive", "n2", 0, 2, 0, false, 0},
                 {"out0", "worker/0/matmul", "n1", 1, 2, 0, false, 0}};
  job_snapshot j;
  j.id = "1f";
  j.name = "mnist";
  j.workers = 1, j.shards = 1;
  j.update = "sync";
  j.step = 511, j.steps = 4690;
  j.started_seconds = 5.11;
  j.client = "c1";
  j.participants = {"c1", "n1", "n2"};
  c.jobs = {j};
  c.events = {{12.5, "n1", "joined"}, {3.25, "n2", "link to c1 is up"}};
  return c;
}

inline bool has_text(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace troupe
