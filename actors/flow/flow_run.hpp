#pragma once
// The threads, actors and clock of a topology, or of the part that one process runs. Its owner is
// told topology_ended as a scoped actor, in a loop of its own.
//
// Threading: one owner, whose thread makes and ends it; end() waits for the call that is under way.
// Ownership: it owns its actor system. Handles that others have of it they give up before it ends.

#include "troupe/actors/base/mailbox.hpp"
#include "troupe/actors/base/scheduler.hpp"
#include "troupe/actors/flow/director.hpp"
#include "troupe/actors/net/io_loop.hpp"

#include <caf/actor_system.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace troupe {

// Nanoseconds of the clock that topologies run by.
std::int64_t flow_clock_ns();

// With counters of its own for what is elsewhere.
std::shared_ptr<topology_view> view_of(std::shared_ptr<const flow_graph> graph,
                                       const flow_group& whole);

class flow_run {
 public:
  // `threads` compute, beside those of stages that may sleep. `fuse`: topology_options. Throws
  // std::system_error where no threads are to be had.
  flow_run(std::shared_ptr<const flow_graph> graph, std::uint32_t threads, bool fuse);
  ~flow_run();
  flow_run(const flow_run&) = delete;
  flow_run& operator=(const flow_run&) = delete;

  mailbox& owner() noexcept { return *owner_; }
  void start(std::shared_ptr<flow_group> whole, std::shared_ptr<topology_view> view,
             std::shared_ptr<topology_wishes> wishes = {}, caf::actor gate = {},
             std::vector<std::optional<far_route>> far = {},
             std::optional<director_checkpoints> checkpoints = {});
  void stop(stop_topology how);
  // All groups and the director end; nobody of it tells anybody of anything from then on.
  void end();

 private:
  class loop_source final : public event_source {
   public:
    explicit loop_source(io_loop& loop) : loop_(loop) {}
    bool poll(int timeout_ms) override { return loop_.poll(timeout_ms) > 0; }
    void wake() override { loop_.wake(); }

   private:
    io_loop& loop_;
  };

  std::shared_ptr<const flow_graph> graph_;
  std::uint32_t threads_;
  bool fuse_;
  io_loop loop_;
  loop_source events_{loop_};
  scheduler_config config_;
  std::unique_ptr<caf::actor_system> system_;
  std::optional<mailbox> owner_;
  caf::actor clock_, director_;
};

}  // namespace troupe
