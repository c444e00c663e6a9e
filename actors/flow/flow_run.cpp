#include "troupe/actors/flow/flow_run.hpp"

#include "troupe/actors/base/tell.hpp"
#include "troupe/runtime/flow/flow_placement.hpp"

#include <caf/event_based_actor.hpp>

#include <chrono>
#include <utility>

namespace troupe {

std::int64_t flow_clock_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::shared_ptr<topology_view> view_of(std::shared_ptr<const flow_graph> graph,
                                       const flow_group& whole) {
  auto view = std::make_shared<topology_view>(graph->stages().size());
  for (std::uint32_t i = 0; i < graph->stages().size(); ++i)
    if (whole.has_stage(i))
      view->stages.push_back(whole.shared_counters(i));
    else
      view->stages.push_back(std::make_shared<stage_counters>());
  for (std::uint32_t i = 0; i < graph->edges().size(); ++i)
    view->edges.push_back(whole.has_edge(i) ? whole.meter(i) : std::make_shared<edge_meter>());
  view->graph = std::move(graph);
  return view;
}

flow_run::flow_run(std::shared_ptr<const flow_graph> graph, std::uint32_t threads, bool fuse)
    : graph_(std::move(graph)), threads_(threads), fuse_(fuse) {
  config_.pinned();
  config_.streams = threads + sleeping_stages(*graph_);
  config_.io = &events_;
  system_ = std::make_unique<caf::actor_system>(config_);
  owner_.emplace(*system_);  // which also forgets the logger that the system has set
}

flow_run::~flow_run() { end(); }

void flow_run::start(std::shared_ptr<flow_group> whole, std::shared_ptr<topology_view> view,
                     std::shared_ptr<topology_wishes> wishes, caf::actor gate,
                     std::vector<std::optional<far_route>> far,
                     std::optional<director_checkpoints> checkpoints) {
  auto& scheduler = static_cast<pinned_scheduler&>(system_->scheduler());
  director_setup setup;
  setup.graph = graph_;
  setup.threads = threads_;
  flow_groups groups{place_together(*graph_, threads_), {}};
  for (std::uint32_t i = 0; i < config_.streams; ++i) groups.thread_of.push_back(i);
  if (!fuse_) groups = place_apart(*graph_, threads_);
  for (const auto thread : groups.thread_of) {
    setup.workers.push_back(scheduler.stream(thread));
    view->pulses.push_back(std::make_shared<group_pulse>());
  }
  setup.places = std::move(groups.group_of);
  setup.moves = fuse_;
  setup.clock = clock_ = spawn_flow_clock(*system_, scheduler.io(), loop_, flow_clock_ns);
  setup.program = owner_->handle();
  setup.now_ns = flow_clock_ns;
  setup.view = std::move(view);
  setup.wishes = std::move(wishes);
  setup.whole = std::move(whole);
  setup.gate = std::move(gate);
  setup.far = std::move(far);
  setup.checkpoints = std::move(checkpoints);
  director_ = spawn_director(*system_, scheduler.service(), std::move(setup));
  forget_logger();
}

void flow_run::stop(stop_topology how) {
  if (director_) tell(nullptr, director_, stop_topology(how));
}

void flow_run::end() {
  if (!director_) return;
  tell(nullptr, std::exchange(director_, nullptr), flow_end{});
  bool is_gone = false;
  while (!is_gone)
    (*owner_)->receive([&](director_gone) { is_gone = true; }, [](const topology_ended&) {});
  tell(nullptr, std::exchange(clock_, nullptr), flow_end{});
}

}  // namespace troupe
