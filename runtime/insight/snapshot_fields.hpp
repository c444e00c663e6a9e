#pragma once
// The fields of each struct of a snapshot, once: who writes them, who reads them and who picks some
// walks the same list, so that all agree. `v(name, member)` is called for each, in the order in
// which they are written; names are the keys of JSON.

#include "troupe/runtime/insight/snapshot.hpp"

#include <concepts>
#include <type_traits>

namespace troupe {

template <class T, class U>
concept is_of = std::same_as<std::remove_const_t<T>, U>;

template <class V, is_of<device_snapshot> T>
void fields(V& v, T& d) {
  v("name", d.name), v("hardware", d.hardware), v("memory_bytes", d.memory_bytes);
}

template <class V, is_of<node_snapshot> T>
void fields(V& v, T& n) {
  v("id", n.id), v("name", n.name), v("pid", n.pid), v("kind", n.kind), v("job", n.job),
      v("address", n.address);
  v("devices", n.devices), v("labels", n.labels), v("incarnation", n.incarnation),
      v("state", n.state), v("reason", n.reason);
  v("unreachable_seconds", n.unreachable_seconds), v("reaches", n.reaches);
  v("cores", n.cores), v("cpu_seconds", n.cpu_seconds);
  v("host", n.host), v("version", n.version), v("uptime_seconds", n.uptime_seconds);
  v("threads", n.threads), v("memory_bytes", n.memory_bytes),
      v("memory_max_bytes", n.memory_max_bytes), v("libraries", n.libraries);
}

template <class V, is_of<port_snapshot> T>
void fields(V& v, T& p) {
  v("name", p.name), v("peer", p.peer), v("peer_node", p.peer_node), v("credits", p.credits);
  v("credits_max", p.credits_max), v("queued", p.queued), v("is_waiting", p.is_waiting);
  v("since_seconds", p.since_seconds), v("is_sparse", p.is_sparse), v("items", p.items),
      v("returned", p.returned);
}

template <class V, is_of<actor_snapshot> T>
void fields(V& v, T& a) {
  v("id", a.id), v("kind", a.kind), v("name", a.name), v("node", a.node), v("job", a.job),
      v("job_id", a.job_id);
  v("state", a.state), v("since_seconds", a.since_seconds);
  v("messages_in", a.messages_in), v("messages_out", a.messages_out);
  v("bytes_in", a.bytes_in), v("bytes_out", a.bytes_out);
  v("busy_ratio", a.busy_ratio), v("queue", a.queue), v("steps", a.steps),
      v("iteration", a.iteration), v("thread", a.thread);
  v("ports", a.ports);
}

template <class V, is_of<job_snapshot> T>
void fields(V& v, T& j) {
  v("id", j.id), v("name", j.name), v("state", j.state), v("workers", j.workers),
      v("shards", j.shards);
  v("update", j.update), v("step", j.step), v("steps", j.steps),
      v("started_seconds", j.started_seconds);
  v("ended_seconds", j.ended_seconds), v("client", j.client), v("participants", j.participants),
      v("cause", j.cause);
  v("epoch", j.epoch), v("recoveries", j.recoveries), v("checkpoints", j.checkpoints);
}

template <class V, is_of<event> T>
void fields(V& v, T& e) {
  v("since_seconds", e.since_seconds), v("node", e.node), v("text", e.text);
  v("kind", e.kind), v("level", e.level), v("job", e.job), v("job_id", e.job_id),
      v("about", e.about), v("node_id", e.node_id), v("number", e.number);
}

template <class V, is_of<silent_node> T>
void fields(V& v, T& s) {
  v("name", s.name), v("reason", s.reason);
}

template <class V, is_of<node_answer> T>
void fields(V& v, T& a) {
  v("cluster", a.cluster), v("self", a.self), v("peers", a.peers), v("actors", a.actors),
      v("jobs", a.jobs);
  v("events", a.events), v("lines", a.lines), v("actors_left_out", a.actors_left_out),
      v("said", a.said);
}

template <class V, is_of<cluster_snapshot> T>
void fields(V& v, T& c) {
  v("cluster", c.cluster), v("nodes", c.nodes), v("actors", c.actors), v("jobs", c.jobs),
      v("events", c.events);
  v("silent", c.silent), v("actors_left_out", c.actors_left_out);
}

}  // namespace troupe
