#pragma once
// What tools see of a topology that runs (runtime/insight/listed_work.hpp): a job, and an actor for
// each of its stages, by the names that the user gave them. Of one over several processes each
// process lists its own stages, and all the same job.
//
// Threading: asked from any thread; what it reads is atomic. end() by the program's, once.

#include "troupe/actors/flow/director.hpp"
#include "troupe/runtime/insight/listed_work.hpp"

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace troupe {

class topology_listing final : public listed_work {
 public:
  // `id`: of the topology. `nodes`: by stage, the node that it runs on; empty: all on the one that
  // lists it.
  topology_listing(std::shared_ptr<topology_view> view, std::string name, std::uint64_t id,
                   std::function<std::int64_t()> now_ns, std::vector<std::string> nodes = {},
                   std::shared_ptr<topology_wishes> wishes = {});
  job_snapshot job(const std::string& node) const override;
  std::vector<actor_snapshot> actors(const std::string& node) const override;
  // "pause", "resume", "drain", and "replicas" with STAGE and N; of a part of a topology: nothing.
  std::string obey(std::string_view what, std::string_view rest) const override;
  // What is asked from now on is of what has ended.
  void end(bool has_failed, const std::string& cause);

 private:
  std::shared_ptr<topology_view> view_;
  std::string name_, id_;
  std::string prefix_;  // of the ids of its stages: its name, and which topology it is here
  std::function<std::int64_t()> now_ns_;
  std::shared_ptr<topology_wishes> wishes_;  // null: of a part
  replica_controls replicas_;
  std::int64_t began_ns_;
  // The names of stages and edges outlive the topology.
  struct stage_place {
    std::string name;
    bool is_source = false, is_end = false, is_elsewhere = false;
    bool is_idle_at_first = false;       // it stands by, or is a replica that may never work
    std::vector<std::uint32_t> in, out;  // edges
  };
  struct edge_place {
    std::uint32_t from = 0, to = 0;
    std::uint64_t items_max = 0, bytes_max = 0;
  };
  std::vector<stage_place> stages_;
  std::vector<std::string> nodes_;
  std::vector<edge_place> edges_;
  std::atomic<std::int64_t> ended_ns_{0};
  bool has_failed_ = false;  // these two are written before ended_ns_
  std::string cause_;
};

}  // namespace troupe
