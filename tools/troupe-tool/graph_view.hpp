#pragma once
// The actors of a job as a graph to draw: who feeds whom, in layers.
//
// GV-1  Every edge between two listed actors appears once, whichever of its ends tells of it; a
//       peer that is not listed (the program, an actor on a silent node) is a vertex of its own.
//       A wait for a thread, a resource or a buffer is no edge: the layers do not change with it.
// GV-2  An edge goes from a lower layer to a higher one, except those marked is_back: all that lead
//       into a shard, since a step reads its weights first and updates them last, and what closes a
//       cycle otherwise. Layers are longest paths, so layer 0 has no inputs but back edges.
// GV-3  The view depends on the snapshot only, not on the order of its lists; its cost is linear
//       but for sorting.

#include "troupe/runtime/insight/snapshot.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

struct graph_vertex {
  const actor_snapshot* actor = nullptr;  // null: not listed
  std::string name, node;
  std::size_t layer = 0;
};

struct graph_edge {
  std::size_t from = 0, to = 0;           // vertices
  const port_snapshot* output = nullptr;  // either may be null
  const port_snapshot* input = nullptr;
  bool is_back = false;
  bool has_twin = false;  // another edge joins the same two actors

  bool is_waiting() const noexcept {
    return (output != nullptr && output->is_waiting) || (input != nullptr && input->is_waiting);
  }
  // Somebody waits here for longer than answers differ by, and not by design.
  bool is_overdue() const noexcept {
    const auto is_late = [](const port_snapshot* p) {
      return p != nullptr && p->is_waiting && !p->is_sparse && p->since_seconds >= skew_seconds;
    };
    return is_late(output) || is_late(input);
  }
  bool is_sparse() const noexcept {
    return (output != nullptr && output->is_sparse) || (input != nullptr && input->is_sparse);
  }
};

struct graph_view {
  const job_snapshot* job = nullptr;
  std::vector<graph_vertex> vertices;  // by layer, then name
  std::vector<graph_edge> edges;       // by from, to, port
};

// One view per running job; where none runs, of the job that ended last, if its actors are still
// listed. The snapshot must outlive the views.
std::vector<graph_view> make_graph_views(const cluster_snapshot& c);

std::string draw_graph_text(const std::vector<graph_view>& views);
std::string draw_graph_dot(const std::vector<graph_view>& views);
std::string draw_graph_svg(const std::vector<graph_view>& views);
std::string graph_json(const std::vector<graph_view>& views);

// "node n1", or "the program": what is drawn together.
std::string group_of(const graph_vertex& v);
struct natural_order {
  bool operator()(const std::string& a, const std::string& b) const noexcept {
    return natural_less(a, b);
  }
};
// "op, running for 3.2 s"
std::string describe(const graph_vertex& v);
// "1/2": credits free, of all; "" where the producer is not listed or has none (to the program).
std::string credits_text(const graph_edge& e);
// "out0 to in1", for an edge with a twin, else "".
std::string ports_text(const graph_edge& e);

}  // namespace troupe
