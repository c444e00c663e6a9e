// The graph of a job as a layered list and for Graphviz.

#include "runtime/duration.hpp"
#include "tools/troupe-tool/graph_view.hpp"
#include "tools/troupe-tool/lists.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <map>
#include <string>

namespace troupe {

namespace {

std::string dot_text(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

// Vertices by node, each group in the order of layers.
std::map<std::string, std::vector<std::size_t>, natural_order> groups_of(const graph_view& view) {
  std::map<std::string, std::vector<std::size_t>, natural_order> groups;
  for (std::size_t v = 0; v < view.vertices.size(); ++v) groups[group_of(view.vertices[v])].push_back(v);
  return groups;
}

// " -> a 1/2, b (out1 to in2) 0/2 !": a mark behind an edge that somebody has waited for long; ports where two edges lead
// to b.
std::string consumers(const graph_view& view, const std::vector<std::vector<std::size_t>>& outgoing, std::size_t v) {
  std::string out;
  for (const auto e : outgoing[v]) {
    const auto& edge = view.edges[e];
    const auto ports = ports_text(edge), credits = credits_text(edge);
    out += (out.empty() ? " -> " : ", ") + view.vertices[edge.to].name;
    if (!ports.empty()) out += fmt::format(" ({})", ports);
    if (!credits.empty()) out += " " + credits;
    if (edge.is_overdue()) out += " !";
  }
  return out;
}

const char* colour_of(const graph_vertex& v) {
  if (v.actor == nullptr) return "white";
  switch (v.actor->state) {
    case actor_state::running: return "palegreen";
    case actor_state::waiting_for_input: return "lightblue";
    case actor_state::waiting_for_credit: return "lightsalmon";
    case actor_state::ended: return "grey";
    default: return "lightgrey";
  }
}

}  // namespace

std::string draw_graph_text(const std::vector<graph_view>& views) {
  std::string out;
  for (const auto& view : views) {
    std::vector<std::vector<std::size_t>> outgoing(view.vertices.size());
    for (std::size_t e = 0; e < view.edges.size(); ++e) outgoing[view.edges[e].from].push_back(e);
    out += fmt::format("{}job {}, step {}: [layer] actor (kind, state) -> consumer free/all credits, ! = waited for, {} or more\n",
                       out.empty() ? "" : "\n", view.job->name, progress(*view.job), format_seconds(skew_seconds));
    for (const auto& [name, vertices] : groups_of(view)) {
      out += fmt::format("\n{}\n", name);
      for (const auto v : vertices) {
        const auto what = describe(view.vertices[v]);
        out += fmt::format("  [{}] {}{}{}\n", view.vertices[v].layer, view.vertices[v].name,
                           what.empty() ? "" : " (" + what + ")", consumers(view, outgoing, v));
      }
    }
  }
  return out.empty() ? "no job has actors\n" : out;
}

std::string draw_graph_dot(const std::vector<graph_view>& views) {
  std::string out =
      "digraph troupe {\n  rankdir=LR;\n  node [shape=box, style=\"rounded,filled\", fontname=\"sans-serif\"];\n";
  std::size_t cluster = 0, base = 0;
  for (const auto& view : views) {
    for (const auto& [name, vertices] : groups_of(view)) {
      out += fmt::format("  subgraph cluster_{} {{\n    label={};\n", cluster++,
                         dot_text(fmt::format("{}, job {}", name, view.job->name)));
      for (const auto v : vertices) {
        const auto what = describe(view.vertices[v]);
        // \n is Graphviz's line break, so it stays outside of what is escaped.
        const auto label = dot_text(view.vertices[v].name);
        out += fmt::format("    v{} [label={}{}\", fillcolor={}];\n", base + v, label.substr(0, label.size() - 1),
                           what.empty() ? "" : "\\n" + what, colour_of(view.vertices[v]));
      }
      out += "  }\n";
    }
    for (const auto& e : view.edges)
      out += fmt::format("  v{} -> v{} [label={}{}{}];\n", base + e.from, base + e.to, dot_text(credits_text(e)),
                         e.is_back ? ", constraint=false, style=dashed" : "", e.is_overdue() ? ", color=red" : "");
    base += view.vertices.size();
  }
  return out + "}\n";
}

std::string graph_json(const std::vector<graph_view>& views) {
  using json = nlohmann::ordered_json;
  json jobs = json::array();
  for (const auto& view : views) {
    json actors = json::array(), edges = json::array();
    for (const auto& v : view.vertices)
      actors.push_back({{"name", v.name},
                        {"id", v.actor != nullptr ? v.actor->id : ""},
                        {"node", v.node},
                        {"kind", v.actor != nullptr ? v.actor->kind : ""},
                        {"state", v.actor != nullptr ? to_string(v.actor->state) : "not listed"},
                        {"layer", v.layer}});
    for (const auto& e : view.edges)
      edges.push_back({{"from", view.vertices[e.from].name},
                       {"output", e.output != nullptr ? e.output->name : ""},
                       {"to", view.vertices[e.to].name},
                       {"input", e.input != nullptr ? e.input->name : ""},
                       {"credits", e.output != nullptr ? e.output->credits : 0},
                       {"credits_max", e.output != nullptr ? e.output->credits_max : 0},
                       {"queued", e.input != nullptr ? e.input->queued : 0},
                       {"is_waiting", e.is_waiting()},
                       {"is_back", e.is_back},
                       {"is_sparse", e.is_sparse()}});
    jobs.push_back({{"job", view.job->name}, {"id", view.job->id}, {"actors", actors}, {"edges", edges}});
  }
  return jobs.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace troupe
