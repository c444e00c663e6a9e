#include "troupe/runtime/picture/picture.hpp"

#include "troupe/runtime/insight/snapshot.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

namespace troupe {

namespace {

// Cycles are cut at every vertex that is marked: cut at the first one only, a job with eight shards
// would be drawn as its eight shards in a row. Then depth first; an edge to a vertex on the current
// path closes a cycle.
class ranker {
 public:
  ranker(std::size_t vertices, std::span<const std::pair<std::size_t, std::size_t>> edges,
         const std::vector<bool>& cuts_cycles)
      : edges_(edges),
        outgoing_(vertices),
        out_{std::vector<std::size_t>(vertices), std::vector<bool>(edges.size())} {
    for (std::size_t e = 0; e < edges.size(); ++e) {
      out_.is_back[e] = cuts_cycles[edges[e].second];
      if (!out_.is_back[e]) outgoing_[edges[e].first].push_back(e);
    }
  }

  ranking run() {
    std::vector<int> state(outgoing_.size(), 0);  // 1: on the path, 2: finished
    for (std::size_t start = 0; start < outgoing_.size(); ++start) {
      if (state[start] != 0) continue;
      std::vector<std::pair<std::size_t, std::size_t>> path{{start, 0}};
      state[start] = 1;
      while (!path.empty()) {
        auto& [v, next] = path.back();
        if (next == outgoing_[v].size()) {
          state[v] = 2;
          finished_.push_back(v);
          path.pop_back();
          continue;
        }
        const auto e = outgoing_[v][next++];
        const auto to = edges_[e].second;
        out_.is_back[e] = state[to] == 1;
        if (state[to] == 0) state[to] = 1, path.push_back({to, 0});
      }
    }
    // Longest paths, in the order in which the walk left the vertices, reversed: a topological
    // order.
    for (auto v = finished_.rbegin(); v != finished_.rend(); ++v)
      for (const auto e : outgoing_[*v])
        if (!out_.is_back[e]) {
          auto& layer = out_.layers[edges_[e].second];
          layer = std::max(layer, out_.layers[*v] + 1);
        }
    return std::move(out_);
  }

 private:
  std::span<const std::pair<std::size_t, std::size_t>> edges_;
  // Edges that do not lead into a vertex where cycles are cut.
  std::vector<std::vector<std::size_t>> outgoing_;
  std::vector<std::size_t> finished_;
  ranking out_;
};

std::string dot_text(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

}  // namespace

ranking rank(std::size_t vertices, std::span<const std::pair<std::size_t, std::size_t>> edges,
             const std::vector<bool>& cuts_cycles) {
  return ranker(vertices, edges, cuts_cycles).run();
}

void arrange(picture& p, const std::vector<bool>& cuts_cycles) {
  std::vector<std::pair<std::size_t, std::size_t>> edges;
  std::vector<picture_arrow*> ranked;
  for (auto& a : p.arrows)
    if (!a.is_back) edges.emplace_back(a.from, a.to), ranked.push_back(&a);
  const auto ranks = rank(p.boxes.size(), edges, cuts_cycles);
  for (std::size_t e = 0; e < edges.size(); ++e) ranked[e]->is_back = ranks.is_back[e];
  for (std::size_t v = 0; v < p.boxes.size(); ++v) p.boxes[v].layer = ranks.layers[v];
  std::vector<std::size_t> order(p.boxes.size()), position(order.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) {
    const auto &x = p.boxes[a], &y = p.boxes[b];
    return x.layer != y.layer ? x.layer < y.layer : natural_less(x.name, y.name);
  });
  std::vector<picture_box> sorted;
  sorted.reserve(order.size());
  for (std::size_t i = 0; i < order.size(); ++i)
    position[order[i]] = i, sorted.push_back(std::move(p.boxes[order[i]]));
  p.boxes = std::move(sorted);
  for (auto& a : p.arrows) a.from = position[a.from], a.to = position[a.to];
}

std::string draw_dot(std::span<const picture> pictures) {
  std::string out =
      "digraph troupe {\n  rankdir=LR;\n  node [shape=box, style=\"rounded,filled\", fontname=\"sans-serif\"];\n";
  std::size_t cluster = 0, base = 0;
  for (const auto& p : pictures) {
    std::map<std::string, std::vector<std::size_t>,
             decltype([](const std::string& a, const std::string& b) {
               return natural_less(a, b);
             })>
        groups;
    for (std::size_t v = 0; v < p.boxes.size(); ++v) groups[p.boxes[v].group].push_back(v);
    for (const auto& [name, boxes] : groups) {
      out += fmt::format("  subgraph cluster_{} {{\n    label={};\n", cluster++,
                         dot_text(p.name.empty() ? name : fmt::format("{}, {}", name, p.name)));
      for (const auto v : boxes) {
        const auto& box = p.boxes[v];
        // \n is Graphviz's line break, so it stays between what is escaped.
        auto label = dot_text(box.name);
        label.pop_back();
        if (!box.detail.empty())
          label += "\\n" + dot_text(box.detail).substr(1, std::string::npos);
        else
          label += '"';
        out += fmt::format("    v{} [label={}, fillcolor=\"{}\"];\n", base + v, label, box.colour);
      }
      out += "  }\n";
    }
    for (const auto& a : p.arrows)
      out += fmt::format("  v{} -> v{} [label={}{}{}];\n", base + a.from, base + a.to,
                         dot_text(a.label), a.is_back ? ", constraint=false, style=dashed" : "",
                         a.type == picture_arrow::kind::marked     ? ", color=red"
                         : a.type == picture_arrow::kind::crossing ? ", color=blue"
                                                                   : "");
    base += p.boxes.size();
  }
  return out + "}\n";
}

}  // namespace troupe
