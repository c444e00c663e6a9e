#pragma once
// What `troupe serve` knows of the cluster: its last look, and totals that it has added up over all
// looks.
//
// SE-4  Totals of a job and a kind of actor never go down while the group is listed, whatever its
//       actors do: an actor that ends and is listed no more has added what it did, one that a node
//       answers for again after it was silent, however long, is not counted twice, and neither are
//       items that a stage has given back and takes again.
//
// Threading: values. Ownership: a look is shared and never changes.

#include "troupe/runtime/insight/snapshot.hpp"
#include "troupe/schema/error.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace troupe {

inline constexpr std::size_t actor_states = 7;

// Of all actors of one kind in the jobs of one name ("": in no job), or of the replicas of a stage.
struct actor_group {
  std::string job, kind;  // of a stage its name
  std::array<std::uint64_t, actor_states> by_state{};
  double busy_sum = 0, busy_max = 0;  // of those that have not ended
  std::uint64_t queue = 0, queued_items = 0, credits = 0, credits_max = 0;
  double wait_seconds_max = 0;  // but for waits that last by design
  // Of all looks; the first one adds what had been done before it.
  std::uint64_t messages_in = 0, messages_out = 0, bytes_in = 0, bytes_out = 0, items_in = 0,
                items_out = 0, steps = 0;

  std::uint64_t living() const noexcept;
};

struct cluster_look {
  std::uint64_t number = 0;                 // of the look, from 1
  std::uint64_t failed = 0;                 // looks up to this one
  std::int64_t began_ns = 0, ended_ns = 0;  // on the steady clock
  double unix_seconds = 0;                  // when it ended
  std::optional<cluster_snapshot> snapshot;
  std::optional<error> failure;              // where there is no snapshot
  std::vector<actor_group> groups;           // by job and kind
  std::vector<actor_group> stages;           // by job and name
  std::map<std::string, double> job_starts;  // unix seconds, by id
  // What a listed node that has answered once is, by its id: host and version.
  std::map<std::string, std::pair<std::string, std::string>> node_infos;

  double seconds() const noexcept { return static_cast<double>(ended_ns - began_ns) * 1e-9; }
};

// Adds looks up. What an actor had done is kept for as long as it may be listed again.
class look_totals {
 public:
  // Fills groups, stages, job_starts and node_infos of a look that has a snapshot. Looks come in
  // their order.
  void add(cluster_look& look);

 private:
  struct counted {
    std::array<std::uint64_t, 7> was{};
    std::int64_t seen_ns = 0;
    std::string job_id, node;
  };
  using key = std::pair<std::string, std::string>;
  std::unordered_map<std::string, counted> actors_;  // by id
  // And when it was seen.
  std::map<key, std::pair<actor_group, std::int64_t>> groups_, stages_;
  std::map<std::string, double> starts_;
  std::map<std::string, std::pair<std::string, std::string>> infos_;
};

}  // namespace troupe
