#pragma once
// The walk behind why(): depth first along the waits of one job's actors, oldest wait first.
//
// Linear in actors and ports (WH-1); everything is sorted before it is walked (WH-2). The snapshot
// must outlive the walk.

#include "troupe/runtime/insight/snapshot.hpp"
#include "troupe/runtime/insight/why.hpp"

#include <cstddef>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace troupe {

// Why a node cannot be waited for: it does not answer or is not alive. nullopt: it is fine.
struct lost_node {
  std::string_view name;
  std::uint64_t pid = 0;  // 0: not known
  // "does not answer", "is unreachable", "is dead", "has left", "is not known".
  std::string_view state;
  std::string_view reason;
  double since_seconds = 0;  // 0: not known
};
class node_index {
 public:
  explicit node_index(const cluster_snapshot& c);
  std::optional<lost_node> lost(std::string_view name) const;
  const node_snapshot* find(std::string_view name) const;

 private:
  std::unordered_map<std::string_view, const node_snapshot*> nodes_;
  std::unordered_map<std::string_view, const silent_node*> silent_;
};

class wait_walk {
 public:
  struct root {
    root_kind kind = root_kind::unexplained;
    std::string_view actor, node;  // at the root; a missing or lost actor's name
    double since_seconds = 0;
    bool is_settled = true;        // old enough to be believed
    std::size_t last_link = none;  // of its chain; of a cycle, the link that closes it
    std::size_t at = none;         // its actor, where that is known
  };
  static constexpr std::size_t none = static_cast<std::size_t>(-1);

  // `before`: an earlier look, or null.
  wait_walk(const cluster_snapshot& c, const job_snapshot& job, const node_index& nodes,
            const cluster_snapshot* before = nullptr);

  // All roots, the true one first. Empty: no actor of the job is listed.
  const std::vector<root>& roots() const noexcept { return roots_; }
  std::vector<wait_link> chain(const root& r) const;
  // How many links at the end of a cycle's chain form the circle.
  std::size_t circle_length(const root& r) const;
  const actor_snapshot* actor(const root& r) const {
    return r.at == none ? nullptr : actors_[r.at];
  }

 private:
  enum class mark : std::uint8_t { unseen, open, finished };
  struct link {
    std::size_t from;
    const port_snapshot* port;
  };

  void index_actors(const cluster_snapshot& c, const job_snapshot& job);
  void index_before(const cluster_snapshot& before, const job_snapshot& job);
  bool stands(std::size_t i) const;
  bool was_there(std::string_view name, std::string_view node) const;
  bool is_provable(std::size_t link) const;
  bool is_on_the_way(const actor_snapshot& waiter, const port_snapshot& port,
                     const actor_snapshot& peer) const;
  void start();
  void visit(std::size_t start);
  std::vector<const port_snapshot*> waits_of(const actor_snapshot& a) const;
  bool is_end(std::size_t i, std::size_t via);
  std::size_t follow(std::size_t link_index);
  std::size_t find(std::string_view name, std::string_view node) const;
  void add(root r) { roots_.push_back(r); }

  const node_index& nodes_;
  bool is_complete_;  // no actors were left out
  bool has_before_ = false;
  std::unordered_map<std::string_view, const actor_snapshot*> before_;     // by id
  std::unordered_multimap<std::string_view, std::string_view> was_there_;  // name -> node
  std::vector<const actor_snapshot*> actors_;
  std::unordered_multimap<std::string_view, std::size_t> by_name_;
  std::vector<mark> marks_;
  std::vector<std::size_t> reached_by_;  // link
  std::vector<link> links_;
  std::vector<root> roots_;
};

// Smaller is more likely the true one.
int severity(const wait_walk::root& r) noexcept;

}  // namespace troupe
