#pragma once
// Actors as a picture: boxes in layers from left to right, a band per group, arrows. Drawn here as
// SVG, or written for Graphviz. What boxes and arrows say is their owner's: live jobs
// (tools/troupe-tool/graph_view.hpp), plans (explain.hpp).
//
// PC-1  Layers are longest paths: an arrow goes from a lower layer to a higher one, except those
//       that lead back. All that lead into a vertex where cycles are cut do, and what closes a
//       cycle otherwise.
// PC-2  No two boxes overlap, and all are inside their band. Whatever a text is, the result is
//       well-formed.
// PC-3  A picture is a function of its arguments; its cost is linear but for sorting.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe {

struct picture_box {
  std::string name;
  std::string group;               // "node n1": whose band it is in, in their natural order
  std::string detail;              // small, below the name
  std::string tooltip;             // SVG only
  std::string colour = "#ffffff";  // "#rrggbb"
  std::size_t layer = 0;
};

struct picture_arrow {
  // marked: red, with its label; crossing: blue.
  enum class kind : std::uint8_t { normal, marked, crossing };
  std::size_t from = 0, to = 0;  // boxes
  std::string label;             // for Graphviz, and where it is marked
  std::string tooltip;           // SVG only
  kind type = kind::normal;
  bool is_back = false;
};

struct picture {
  std::string title;                // "job mnist, step 3 of 10"
  std::string name;                 // behind a group's in Graphviz: "job mnist"
  std::vector<std::string> legend;  // lines
  std::vector<picture_box> boxes;   // by layer
  std::vector<picture_arrow> arrows;
};

struct ranking {
  std::vector<std::size_t> layers;  // of the vertices
  std::vector<bool> is_back;        // of the edges
};
ranking rank(std::size_t vertices, std::span<const std::pair<std::size_t, std::size_t>> edges,
             const std::vector<bool>& cuts_cycles);
// Sets layers and is_back by rank(), and sorts the boxes by layer, then name. Arrows that are said
// to lead back do.
void arrange(picture& p, const std::vector<bool>& cuts_cycles);

// One below the other; `nothing` is what stands there if there are none.
std::string draw_svg(std::span<const picture> pictures, std::string_view nothing);
std::string draw_dot(std::span<const picture> pictures);

}  // namespace troupe
