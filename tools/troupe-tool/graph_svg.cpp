// The graph of a job as a picture: a band per node, layers from left to right, within a band and layer one actor below
// the other, ordered by where their producers stand (the barycentre heuristic of Sugiyama, Tagawa and Toda, 1981, one sweep).

#include "runtime/duration.hpp"
#include "tools/troupe-tool/graph_view.hpp"
#include "tools/troupe-tool/lists.hpp"
#include "tools/troupe-tool/table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <vector>

namespace troupe {

namespace {

constexpr double box_width = 190, line_height = 13, box_height = 8 + 3 * line_height, column_gap = 60, row_gap = 12;
constexpr double margin = 20, band_head = 24, band_gap = 16, title_height = 60;
constexpr std::size_t label_max = 30;  // characters of 11 px that fit into a line; what two lines cannot hold is in the tooltip

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) switch (c) {
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '&': out += "&amp;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  return out;
}

const char* colour_of(const graph_vertex& v) {
  if (v.actor == nullptr) return "#ffffff";
  switch (v.actor->state) {
    case actor_state::running: return "#b7e4c7";
    case actor_state::waiting_for_input: return "#cfe2ff";
    case actor_state::waiting_for_credit: return "#ffd6ba";
    case actor_state::ended: return "#c9c9c9";
    default: return "#f1f1f1";
  }
}

struct point {
  double x = 0, y = 0;  // upper left corner of a box
};

struct band {
  std::string name;
  double top = 0, height = 0;
};

struct layout {
  std::vector<point> boxes;  // per vertex
  std::vector<band> bands;
  double width = 0, height = 0;
};

// Vertices come by layer, so a vertex's producers (but for back edges) have their places already.
layout place(const graph_view& view, double top) {
  layout l;
  l.boxes.resize(view.vertices.size());
  std::vector<double> weight(view.vertices.size(), 0);  // mean row of the producers
  std::vector<double> sums(view.vertices.size(), 0), counts(view.vertices.size(), 0);
  std::vector<std::vector<std::size_t>> outgoing(view.vertices.size());
  for (const auto& e : view.edges)
    if (!e.is_back) outgoing[e.from].push_back(e.to);
  std::map<std::string, std::map<std::size_t, std::vector<std::size_t>>, natural_order> bands;
  std::size_t layers = 0;
  for (std::size_t v = 0; v < view.vertices.size(); ++v) {
    bands[group_of(view.vertices[v])][view.vertices[v].layer].push_back(v);
    layers = std::max(layers, view.vertices[v].layer + 1);
  }
  for (std::size_t layer = 0; layer < layers; ++layer)
    for (auto& [name, columns] : bands) {
      const auto at = columns.find(layer);
      if (at == columns.end()) continue;
      auto& column = at->second;
      for (const auto v : column) weight[v] = counts[v] > 0 ? sums[v] / counts[v] : static_cast<double>(v);
      std::stable_sort(column.begin(), column.end(), [&](auto a, auto b) { return weight[a] < weight[b]; });
      for (std::size_t row = 0; row < column.size(); ++row)
        for (const auto to : outgoing[column[row]]) sums[to] += static_cast<double>(row), counts[to] += 1;
    }
  double y = top;
  for (const auto& [name, columns] : bands) {
    std::size_t rows = 0;
    for (const auto& [layer, column] : columns) {
      rows = std::max(rows, column.size());
      for (std::size_t row = 0; row < column.size(); ++row)
        l.boxes[column[row]] = {2 * margin + static_cast<double>(layer) * (box_width + column_gap),
                                y + band_head + static_cast<double>(row) * (box_height + row_gap)};
    }
    const double height = band_head + static_cast<double>(rows) * (box_height + row_gap);
    l.bands.push_back({name, y, height});
    y += height + band_gap;
  }
  l.width = 4 * margin + static_cast<double>(layers) * (box_width + column_gap) - column_gap;
  l.height = y - top;
  return l;
}

std::string draw_edge(const graph_view& view, const layout& l, const graph_edge& e) {
  const auto from = l.boxes[e.from], to = l.boxes[e.to];
  const double x1 = from.x + box_width, y1 = from.y + box_height / 2, x2 = to.x, y2 = to.y + box_height / 2;
  // Forward edges leave to the right and bend half way; back edges make a loop around both ends.
  const double bend = e.is_back ? column_gap : std::max((x2 - x1) / 2, 20.0);
  const auto ports = ports_text(e), credits = credits_text(e);
  const auto title = fmt::format("{} to {}{}: {}{} queued{}", view.vertices[e.from].name, view.vertices[e.to].name,
                                 ports.empty() ? "" : " (" + ports + ")",
                                 credits.empty() ? "" : credits + " credits free, ",
                                 e.input != nullptr ? e.input->queued : 0, e.is_overdue() ? ", waited for" : "");
  auto out = fmt::format(
      R"(<path class="{}{}" d="M{:.0f},{:.0f} C{:.0f},{:.0f} {:.0f},{:.0f} {:.0f},{:.0f}"><title>{}</title></path>)",
      e.is_overdue() ? "e w" : "e", e.is_back ? " b" : "", x1, y1, x1 + bend, y1, x2 - bend, y2, x2, y2,
      escaped(title));
  if (e.is_overdue() && !credits.empty())
    out += fmt::format(R"(<text class="s" x="{:.0f}" y="{:.0f}">{}</text>)", x1 + 4, y1 - 4, credits);
  return out + "\n";
}

// A name on up to two lines, broken behind the '/' that makes them most equal.
std::vector<std::string> label_of(std::string_view name) {
  if (characters(name) <= label_max) return {std::string(name)};
  std::size_t split = 0;
  const auto longer = [&](std::size_t at) { return std::max(at, name.size() - at); };
  for (auto at = name.find('/'); at != std::string_view::npos; at = name.find('/', at + 1))
    if (longer(at + 1) < longer(split)) split = at + 1;
  if (split == 0) return {shorten(name, label_max)};
  return {shorten(name.substr(0, split), label_max), shorten(name.substr(split), label_max)};
}

std::string draw_box(const graph_vertex& v, point at) {
  const auto what = describe(v);
  auto out = fmt::format(
      R"(<g><title>{}{}{}</title><rect class="v" x="{:.0f}" y="{:.0f}" width="{}" height="{}" rx="5" fill="{}"/>)",
      escaped(v.name), what.empty() ? "" : ": ", escaped(what), at.x, at.y, box_width, box_height, colour_of(v));
  double y = at.y;
  for (const auto& line : label_of(v.name))
    out += fmt::format(R"(<text x="{:.0f}" y="{:.0f}">{}</text>)", at.x + 6, y += line_height, escaped(line));
  return out + fmt::format(R"(<text class="s" x="{:.0f}" y="{:.0f}">{}</text></g>)"
                           "\n",
                           at.x + 6, at.y + box_height - 7, escaped(shorten(what, label_max + 5)));
}

std::string draw_view(const graph_view& view, const layout& l, double top) {
  auto out = fmt::format(R"(<text class="t" x="{}" y="{:.0f}">job {}, step {}</text>)"
                         "\n",
                         margin, top + 24, escaped(view.job->name), escaped(progress(*view.job)));
  out += fmt::format(
      R"(<text class="s" x="{}" y="{:.0f}">green: runs, blue: waits for input, orange: waits for credit, grey: idle or )"
      R"(ended; red edges have been waited for, for {} or more, dashed ones lead back</text>)"
      "\n",
      margin, top + 44, format_seconds(skew_seconds));
  for (const auto& b : l.bands) {
    out += fmt::format(R"(<rect class="n" x="{}" y="{:.0f}" width="{:.0f}" height="{:.0f}" rx="8"/>)", margin, b.top,
                       l.width - 2 * margin, b.height);
    out += fmt::format(R"(<text x="{}" y="{:.0f}" font-weight="bold">{}</text>)"
                       "\n",
                       margin + 8, b.top + 16, escaped(b.name));
  }
  for (const auto& e : view.edges) out += draw_edge(view, l, e);
  for (std::size_t v = 0; v < view.vertices.size(); ++v) out += draw_box(view.vertices[v], l.boxes[v]);
  return out;
}

}  // namespace

std::string draw_graph_svg(const std::vector<graph_view>& views) {
  std::string body;
  double width = 400, height = 0;
  for (const auto& view : views) {
    const auto l = place(view, height + title_height);
    body += draw_view(view, l, height);
    width = std::max(width, l.width);
    height += title_height + l.height + margin;
  }
  if (views.empty()) {
    height = 60;
    body = fmt::format("<text x=\"{}\" y=\"34\">no job has actors</text>\n", margin);
  }
  return fmt::format(
             R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0:.0f} {1:.0f}" width="{0:.0f}" height="{1:.0f}">)"
             "\n<style>text{{font:11px sans-serif;fill:#222}} .t{{font-size:16px}} .s{{font-size:10px;fill:#555}} "
             ".n{{fill:#fafafa;stroke:#bbb}} .v{{stroke:#555}} .e{{fill:none;stroke:#888}} "
             ".w{{stroke:#c1121f;stroke-width:2}} "
             ".b{{stroke-dasharray:4 3}}</style>\n"
             R"(<rect width="100%" height="100%" fill="#fff"/>)"
             "\n",
             width, height) +
         body + "</svg>\n";
}

}  // namespace troupe
