// A band per group, layers from left to right, within a band and layer one box below the other,
// ordered by where their producers stand (the barycentre heuristic of Sugiyama, Tagawa and Toda,
// 1981, one sweep).

#include "troupe/runtime/insight/snapshot.hpp"
#include "troupe/runtime/picture/picture.hpp"
#include "troupe/runtime/text/printable.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <vector>

namespace troupe {

namespace {

constexpr double box_width = 190, line_height = 13, box_height = 8 + 3 * line_height,
                 column_gap = 60, row_gap = 12;
constexpr double margin = 20, band_head = 24, band_gap = 16, title_height = 36, legend_height = 16;
constexpr double legend_character_width = 5.6;  // at most, of 10 px, on average
// Characters of 11 px that fit into a line; what two lines cannot hold is in the tooltip.
constexpr std::size_t label_max = 30;

// Lines stay lines; what XML or a terminal does not take is replaced.
std::string escaped(std::string_view text) {
  std::string out;
  for (;;) {
    const auto end = text.find('\n');
    for (const char c : printable(text.substr(0, end))) switch (c) {
        case '<': out += "&lt;"; break;
        case '>': out += "&gt;"; break;
        case '&': out += "&amp;"; break;
        case '"': out += "&quot;"; break;
        default: out += c;
      }
    if (end == std::string_view::npos) return out;
    out += "&#10;";
    text.remove_prefix(end + 1);
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

struct natural_order {
  bool operator()(const std::string& a, const std::string& b) const noexcept {
    return natural_less(a, b);
  }
};

// Boxes come by layer, so a box's producers (but for arrows that lead back) have their places
// already.
layout place(const picture& p, double top) {
  layout l;
  l.boxes.resize(p.boxes.size());
  std::vector<double> weight(p.boxes.size(), 0);  // mean row of the producers
  std::vector<double> sums(p.boxes.size(), 0), counts(p.boxes.size(), 0);
  std::vector<std::vector<std::size_t>> outgoing(p.boxes.size());
  for (const auto& e : p.arrows)
    if (!e.is_back) outgoing[e.from].push_back(e.to);
  std::map<std::string, std::map<std::size_t, std::vector<std::size_t>>, natural_order> bands;
  std::size_t layers = 0;
  for (std::size_t v = 0; v < p.boxes.size(); ++v) {
    bands[p.boxes[v].group][p.boxes[v].layer].push_back(v);
    layers = std::max(layers, p.boxes[v].layer + 1);
  }
  for (std::size_t layer = 0; layer < layers; ++layer)
    for (auto& [name, columns] : bands) {
      const auto at = columns.find(layer);
      if (at == columns.end()) continue;
      auto& column = at->second;
      for (const auto v : column)
        weight[v] = counts[v] > 0 ? sums[v] / counts[v] : static_cast<double>(v);
      std::stable_sort(column.begin(), column.end(),
                       [&](auto a, auto b) { return weight[a] < weight[b]; });
      for (std::size_t row = 0; row < column.size(); ++row)
        for (const auto to : outgoing[column[row]])
          sums[to] += static_cast<double>(row), counts[to] += 1;
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

std::string draw_arrow(const layout& l, const picture_arrow& a) {
  const auto from = l.boxes[a.from], to = l.boxes[a.to];
  const double x1 = from.x + box_width, y1 = from.y + box_height / 2, x2 = to.x,
               y2 = to.y + box_height / 2;
  // Forward arrows leave to the right and bend half way; those that lead back make a loop around
  // both ends.
  const double bend = a.is_back ? column_gap : std::max((x2 - x1) / 2, 20.0);
  const bool is_marked = a.type == picture_arrow::kind::marked;
  auto out = fmt::format(
      R"(<path class="e{}{}" d="M{:.0f},{:.0f} C{:.0f},{:.0f} {:.0f},{:.0f} {:.0f},{:.0f}"><title>{}</title></path>)",
      is_marked                                 ? " w"
      : a.type == picture_arrow::kind::crossing ? " x"
                                                : "",
      a.is_back ? " b" : "", x1, y1, x1 + bend, y1, x2 - bend, y2, x2, y2, escaped(a.tooltip));
  if (is_marked && !a.label.empty())
    out += fmt::format(R"(<text class="s" x="{:.0f}" y="{:.0f}">{}</text>)", x1 + 4, y1 - 4,
                       escaped(a.label));
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

std::string draw_box(const picture_box& box, point at) {
  auto out = fmt::format(
      R"(<g><title>{}</title><rect class="v" x="{:.0f}" y="{:.0f}" width="{}" height="{}" rx="5" fill="{}"/>)",
      escaped(box.tooltip), at.x, at.y, box_width, box_height, escaped(box.colour));
  double y = at.y;
  for (const auto& line : label_of(box.name))
    out += fmt::format(R"(<text x="{:.0f}" y="{:.0f}">{}</text>)", at.x + 6, y += line_height,
                       escaped(line));
  return out + fmt::format(R"(<text class="s" x="{:.0f}" y="{:.0f}">{}</text></g>)"
                           "\n",
                           at.x + 6, at.y + box_height - 7,
                           escaped(shorten(box.detail, label_max + 5)));
}

double head_of(const picture& p) {
  return title_height + legend_height * static_cast<double>(p.legend.size());
}

std::string draw(const picture& p, const layout& l, double top) {
  auto out = fmt::format(R"(<text class="t" x="{}" y="{:.0f}">{}</text>)"
                         "\n",
                         margin, top + 24, escaped(p.title));
  double y = top + 28;
  for (const auto& line : p.legend)
    out += fmt::format(R"(<text class="s" x="{}" y="{:.0f}">{}</text>)"
                       "\n",
                       margin, y += legend_height, escaped(line));
  for (const auto& b : l.bands) {
    out +=
        fmt::format(R"(<rect class="n" x="{}" y="{:.0f}" width="{:.0f}" height="{:.0f}" rx="8"/>)",
                    margin, b.top, l.width - 2 * margin, b.height);
    out += fmt::format(R"(<text x="{}" y="{:.0f}" font-weight="bold">{}</text>)"
                       "\n",
                       margin + 8, b.top + 16, escaped(b.name));
  }
  for (const auto& a : p.arrows) out += draw_arrow(l, a);
  for (std::size_t v = 0; v < p.boxes.size(); ++v) out += draw_box(p.boxes[v], l.boxes[v]);
  return out;
}

}  // namespace

std::string draw_svg(std::span<const picture> pictures, std::string_view nothing) {
  std::string body;
  double width = 400, height = 0;
  for (const auto& p : pictures) {
    const auto l = place(p, height + head_of(p));
    body += draw(p, l, height);
    for (const auto& line : p.legend)
      width = std::max(width,
                       2 * margin + legend_character_width * static_cast<double>(characters(line)));
    width = std::max(width, l.width);
    height += head_of(p) + l.height + margin;
  }
  if (pictures.empty()) {
    height = 60;
    body = fmt::format("<text x=\"{}\" y=\"34\">{}</text>\n", margin, escaped(nothing));
  }
  return fmt::format(
             R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0:.0f} {1:.0f}" width="{0:.0f}" height="{1:.0f}">)"
             "\n<style>text{{font:11px sans-serif;fill:#222}} .t{{font-size:16px}} .s{{font-size:10px;fill:#555}} "
             ".n{{fill:#fafafa;stroke:#bbb}} .v{{stroke:#555}} .e{{fill:none;stroke:#888;marker-end:url(#a)}} "
             ".w{{stroke:#c1121f;stroke-width:2}} .x{{stroke:#1d4ed8;stroke-width:1.6}} "
             ".b{{stroke-dasharray:4 3}}</style>\n"
             R"(<defs><marker id="a" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" markerUnits="userSpaceOnUse" orient="auto">)"
             R"(<polygon points="0,0 8,4 0,8" fill="#666"/></marker></defs>)"
             "\n"
             R"(<rect width="100%" height="100%" fill="#fff"/>)"
             "\n",
             width, height) +
         body + "</svg>\n";
}

}  // namespace troupe
