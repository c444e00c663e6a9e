// The graph of a job as a picture: what its boxes and arrows say.

#include "tools/troupe-tool/graph_view.hpp"
#include "tools/troupe-tool/lists.hpp"
#include "troupe/runtime/picture/picture.hpp"
#include "troupe/runtime/text/duration.hpp"

#include <fmt/format.h>

#include <string>
#include <vector>

namespace troupe {

namespace {

const char* colour_of(const graph_vertex& v) {
  if (v.actor == nullptr) return "#ffffff";
  switch (v.actor->state) {
    case actor_state::running: return "#b7e4c7";
    case actor_state::waiting_for_input: return "#cfe2ff";
    case actor_state::waiting_for_credit:
    case actor_state::waiting_for_resource: return "#ffd6ba";
    case actor_state::waiting_for_thread: return "#e5dbff";
    case actor_state::ended: return "#c9c9c9";
    default: return "#f1f1f1";
  }
}

picture_box box_of(const graph_vertex& v) {
  const auto what = describe(v);
  return {v.name,       group_of(v),
          what,         what.empty() ? v.name : fmt::format("{}: {}", v.name, what),
          colour_of(v), v.layer};
}

picture_arrow arrow_of(const graph_view& view, const graph_edge& e) {
  const auto ports = ports_text(e), credits = credits_text(e);
  auto tooltip = fmt::format(
      "{} to {}{}: {}{} queued{}", view.vertices[e.from].name, view.vertices[e.to].name,
      ports.empty() ? "" : " (" + ports + ")", credits.empty() ? "" : credits + " credits free, ",
      e.input != nullptr ? e.input->queued : 0, e.is_overdue() ? ", waited for" : "");
  return {e.from,
          e.to,
          credits,
          std::move(tooltip),
          e.is_overdue() ? picture_arrow::kind::marked : picture_arrow::kind::normal,
          e.is_back};
}

std::vector<picture> pictures_of(const std::vector<graph_view>& views) {
  std::vector<picture> out;
  for (const auto& view : views) {
    picture p;
    p.title = fmt::format("job {}, step {}", view.job->name, progress(*view.job));
    p.name = "job " + view.job->name;
    p.legend = {fmt::format(
        "green: runs, blue: waits for input, orange: waits for credit, grey: idle or ended; red edges have been waited for, for {} or more, dashed ones lead back",
        format_seconds(skew_seconds))};
    for (const auto& v : view.vertices) p.boxes.push_back(box_of(v));
    for (const auto& e : view.edges) p.arrows.push_back(arrow_of(view, e));
    out.push_back(std::move(p));
  }
  return out;
}

}  // namespace

std::string draw_graph_dot(const std::vector<graph_view>& views) {
  return draw_dot(pictures_of(views));
}

std::string draw_graph_svg(const std::vector<graph_view>& views) {
  return draw_svg(pictures_of(views), "no job has actors");
}

}  // namespace troupe
