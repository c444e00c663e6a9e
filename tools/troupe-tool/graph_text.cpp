// The graph of a job as a layered list and as JSON.

#include "tools/troupe-tool/graph_view.hpp"
#include "tools/troupe-tool/lists.hpp"
#include "troupe/runtime/text/duration.hpp"
#include "troupe/runtime/text/json_line.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <map>
#include <string>

namespace troupe {

namespace {

// Vertices by node, each group in the order of layers.
std::map<std::string, std::vector<std::size_t>, natural_order> groups_of(const graph_view& view) {
  std::map<std::string, std::vector<std::size_t>, natural_order> groups;
  for (std::size_t v = 0; v < view.vertices.size(); ++v)
    groups[group_of(view.vertices[v])].push_back(v);
  return groups;
}

// " -> a 1/2, b (out1 to in2) 0/2 !": a mark behind an edge that somebody has waited for long;
// ports where two edges lead to b.
std::string consumers(const graph_view& view, const std::vector<std::vector<std::size_t>>& outgoing,
                      std::size_t v) {
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

}  // namespace

std::string draw_graph_text(const std::vector<graph_view>& views) {
  std::string out;
  for (const auto& view : views) {
    std::vector<std::vector<std::size_t>> outgoing(view.vertices.size());
    for (std::size_t e = 0; e < view.edges.size(); ++e) outgoing[view.edges[e].from].push_back(e);
    out += fmt::format(
        "{}job {}, step {}: [layer] actor (kind, state) -> consumer free/all credits, ! = waited for, {} or more\n",
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
                       {"items", e.output != nullptr  ? e.output->items
                                 : e.input != nullptr ? e.input->items
                                                      : 0},
                       {"is_waiting", e.is_waiting()},
                       {"is_overdue", e.is_overdue()},
                       {"is_back", e.is_back},
                       {"is_sparse", e.is_sparse()}});
    jobs.push_back(
        {{"job", view.job->name}, {"id", view.job->id}, {"actors", actors}, {"edges", edges}});
  }
  return json_line(jobs);
}

}  // namespace troupe
