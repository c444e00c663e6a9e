#pragma once
// A topology as it is described: stages and the edges between them. Programs build one by the
// functions of flow.hpp; groups (flow_group.hpp) run it.
//
// FG-1  Edges make no circle, but for those into a feedback. They lead from stages that were added
//       earlier to later ones, but for those and for dead letters.
// FG-2  check() refuses what could not end: branches of one flow that are joined though one of them
//       makes more or fewer items, a feedback that nothing closes, a loop that keeps items or
//       leaves its group. What it lets through runs to its end, however slow a stage is.
//       Stages behind each other that run on the same nodes, with as many replicas each, are
//       chained: items go from replica to replica, without the gather and the deal between them.
// FG-3  Each edge is bounded in items and bytes. All edges together have `budget_bytes`, but each
//       may hold one item, however large it is.
// Threading: one owner; constant once it runs.

#include "troupe/runtime/flow/stage.hpp"
#include "troupe/schema/error.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

struct flow_edge_info {
  std::uint32_t from = 0, from_port = 0;
  std::uint32_t to = 0, to_port = 0;
  std::uint64_t items_max = 0, bytes_max = 0;  // bounds
  std::uint64_t items_min = 1;                 // that it holds, whatever their bytes
  std::uint32_t loop = no_port;                // the feedback whose loop it is part of
};

struct flow_stage_info : stage_info {
  std::vector<std::vector<std::uint32_t>> out;  // edges by port
  std::vector<std::uint32_t> in;                // edges by port
  std::uint32_t loop = no_port;                 // the feedback whose loop it is part of
};

// A feedback: where items come back in, and how many may be under way.
struct feedback_info {
  std::uint32_t stage = 0;           // passes on what comes back
  std::uint32_t entrance = no_port;  // the merge behind it, which admits others
  std::uint64_t credit = 1;
  bool is_closed = false;
  source_location where;
};

class flow_graph {
 public:
  static constexpr std::uint64_t default_budget_bytes = std::uint64_t{64} << 20;
  static constexpr std::uint64_t default_items_max = 1024;

  // Both as indices. A name that is taken, and was not given by the user, gets a number.
  std::uint32_t add_stage(stage_info info);
  std::uint32_t add_input(std::uint32_t stage);   // one more port; its number
  std::uint32_t add_output(std::uint32_t stage);  // the same
  std::uint32_t connect(std::uint32_t from, std::uint32_t from_port, std::uint32_t to,
                        std::uint32_t to_port, std::uint64_t items_max = default_items_max);
  // That keeps its number, between two stages that are removed.
  std::uint32_t add_removed_edge(std::uint32_t from, std::uint32_t to);
  std::uint32_t add_feedback(std::uint32_t stage, std::uint64_t credit, source_location where);

  // The first mistake of the description is kept, and check() says it.
  void note_mistake(error e);
  void set_budget(std::uint64_t bytes) noexcept { budget_bytes_ = bytes; }
  std::uint64_t budget_bytes() const noexcept { return budget_bytes_; }
  // That compute, before stages are added whose replicas are left to Troupe.
  void set_threads(std::uint32_t n) noexcept { threads_ = n; }
  std::uint32_t threads() const noexcept { return threads_; }

  // Finds mistakes, sizes the edges and numbers the loops. usage: with the user's line.
  result<void> check();

  const std::vector<flow_stage_info>& stages() const noexcept { return stages_; }
  const std::vector<flow_edge_info>& edges() const noexcept { return edges_; }
  const std::vector<feedback_info>& feedbacks() const noexcept { return feedbacks_; }
  flow_stage_info& stage_at(std::uint32_t i) { return stages_[i]; }
  flow_edge_info& edge_at(std::uint32_t i) { return edges_[i]; }
  feedback_info& feedback_at(std::uint32_t i) { return feedbacks_[i]; }
  // That stage of this graph, among all stages of all graphs of the process; not 0.
  std::uint64_t mark_of(std::uint32_t stage) const noexcept;
  // Of a mark that is one of this graph's.
  std::optional<std::uint32_t> stage_of(std::uint64_t mark) const noexcept;
  // "app.cpp:12"
  static std::string line_of(const source_location& where);

 private:
  result<void> check_names() const;
  result<void> check_order() const;
  result<void> check_loops();
  result<void> check_joins();
  void size_edges();
  void chain_replicas();
  bool is_back_edge(const flow_edge_info& e) const;
  bool parts_before(std::uint32_t fork, const flow_stage_info& join, std::uint32_t a,
                    std::uint32_t b) const;

  std::vector<flow_stage_info> stages_;
  std::vector<flow_edge_info> edges_;
  std::vector<feedback_info> feedbacks_;
  std::uint64_t budget_bytes_ = default_budget_bytes;
  std::uint32_t threads_ = 1;
  std::shared_ptr<error> mistake_;
};

// What is there before anything runs: each stage with its line, where it runs, what its edges hold.
std::string explain(const flow_graph& g);

}  // namespace troupe
