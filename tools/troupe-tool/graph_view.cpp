#include "tools/troupe-tool/graph_view.hpp"

#include "troupe/runtime/picture/picture.hpp"
#include "troupe/runtime/text/duration.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

namespace troupe {

namespace {

// Other ports are there while the actor waits for its thread, a resource or a buffer, and lead to
// whoever has it: nothing flows there.
bool is_end_of_edge(const port_snapshot& p) noexcept {
  return p.name.starts_with("in") || p.name.starts_with("out");
}

class builder {
 public:
  builder(const cluster_snapshot& c, const job_snapshot& job) {
    view_.job = &job;
    std::vector<const actor_snapshot*> actors;
    for (const auto& a : c.actors)
      if (belongs(a, job)) actors.push_back(&a);
    std::sort(actors.begin(), actors.end(), [](auto* a, auto* b) {
      return std::tie(a->name, a->node, a->id) < std::tie(b->name, b->node, b->id);
    });
    for (const auto* a : actors) {
      by_name_.try_emplace(a->name, view_.vertices.size());
      view_.vertices.push_back({a, a->name, a->node, 0});
    }
  }

  graph_view build() {
    add_edges();
    set_layers();
    sort();
    return std::move(view_);
  }

 private:
  // The program feeds and takes: two ends, so that it does not close a circle.
  std::size_t peer_of(const port_snapshot& p) {
    const std::string name = p.peer != "program" ? p.peer
                             : p.is_input()      ? "program (feeds)"
                                                 : "program (fetches)";
    const auto [at, is_new] = by_name_.try_emplace(name, view_.vertices.size());
    if (is_new) view_.vertices.push_back({nullptr, name, p.peer_node, 0});
    return at->second;
  }

  // Both ends tell of an edge: the k-th output of a to b and the k-th input of b from a are one.
  void add_edges() {
    using ends = std::pair<std::vector<const port_snapshot*>, std::vector<const port_snapshot*>>;
    std::map<std::pair<std::size_t, std::size_t>, ends> pairs;
    const auto listed = view_.vertices.size();
    for (std::size_t v = 0; v < listed; ++v)
      for (const auto& p : view_.vertices[v].actor->ports) {
        if (p.peer.empty() || !is_end_of_edge(p)) continue;
        const auto peer = peer_of(p);
        if (p.is_input())
          pairs[{peer, v}].second.push_back(&p);
        else
          pairs[{v, peer}].first.push_back(&p);
      }
    const auto by_port = [](auto* a, auto* b) { return natural_less(a->name, b->name); };
    for (auto& [key, both] : pairs) {
      auto& [outputs, inputs] = both;
      std::sort(outputs.begin(), outputs.end(), by_port);
      std::sort(inputs.begin(), inputs.end(), by_port);
      const auto count = std::max(outputs.size(), inputs.size());
      for (std::size_t k = 0; k < count; ++k)
        view_.edges.push_back({.from = key.first,
                               .to = key.second,
                               .output = k < outputs.size() ? outputs[k] : nullptr,
                               .input = k < inputs.size() ? inputs[k] : nullptr,
                               .has_twin = count > 1});
    }
  }

  bool is_shard(std::size_t v) const {
    return view_.vertices[v].actor != nullptr && view_.vertices[v].actor->kind == "shard";
  }

  void set_layers() {
    std::vector<std::pair<std::size_t, std::size_t>> edges;
    for (const auto& e : view_.edges) edges.emplace_back(e.from, e.to);
    std::vector<bool> is_cut;
    for (std::size_t v = 0; v < view_.vertices.size(); ++v) is_cut.push_back(is_shard(v));
    const auto ranks = rank(view_.vertices.size(), edges, is_cut);
    for (std::size_t e = 0; e < edges.size(); ++e) view_.edges[e].is_back = ranks.is_back[e];
    for (std::size_t v = 0; v < ranks.layers.size(); ++v) view_.vertices[v].layer = ranks.layers[v];
  }

  void sort() {
    std::vector<std::size_t> order(view_.vertices.size()), position(order.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(), [&](auto a, auto b) {
      const auto& x = view_.vertices[a];
      const auto& y = view_.vertices[b];
      return x.layer != y.layer
                 ? x.layer < y.layer
                 : natural_less(x.name, y.name) || (x.name == y.name && x.node < y.node);
    });
    std::vector<graph_vertex> sorted;
    for (std::size_t i = 0; i < order.size(); ++i)
      position[order[i]] = i, sorted.push_back(std::move(view_.vertices[order[i]]));
    view_.vertices = std::move(sorted);
    for (auto& e : view_.edges) e.from = position[e.from], e.to = position[e.to];
    std::stable_sort(view_.edges.begin(), view_.edges.end(), [](auto& a, auto& b) {
      return std::tie(a.from, a.to) < std::tie(b.from, b.to);
    });
  }

  graph_view view_;
  std::map<std::string, std::size_t, std::less<>> by_name_;
};

}  // namespace

std::vector<graph_view> make_graph_views(const cluster_snapshot& c) {
  std::vector<graph_view> views;
  const job_snapshot* last = nullptr;
  for (const auto& j : c.jobs) {
    if (!is_over(j.state))
      views.push_back(builder(c, j).build());
    else if (last == nullptr ||
             std::tie(j.ended_seconds, j.id) < std::tie(last->ended_seconds, last->id))
      last = &j;
  }
  if (views.empty() && last != nullptr) views.push_back(builder(c, *last).build());
  std::erase_if(views, [](const auto& v) { return v.vertices.empty(); });
  return views;
}

std::string group_of(const graph_vertex& v) {
  if (v.actor == nullptr && v.name.starts_with("program")) return "the program";
  return v.node.empty() ? "an unknown node" : "node " + v.node;
}

std::string describe(const graph_vertex& v) {
  if (v.actor == nullptr) return v.name.starts_with("program") ? "" : "not listed";
  return fmt::format("{}, {} for {}", v.actor->kind, to_string(v.actor->state),
                     format_seconds(v.actor->since_seconds));
}

std::string credits_text(const graph_edge& e) {
  if (e.output == nullptr || e.output->credits_max == 0) return {};
  return fmt::format("{}/{}", e.output->credits, e.output->credits_max);
}

std::string ports_text(const graph_edge& e) {
  if (!e.has_twin) return {};
  const auto name = [](const port_snapshot* p) {
    return p != nullptr ? std::string_view(p->name) : "?";
  };
  return fmt::format("{} to {}", name(e.output), name(e.input));
}

}  // namespace troupe
