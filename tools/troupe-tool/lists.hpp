#pragma once
// Lists and single objects as text. Every function is pure; `width` is the terminal's, 0 in a pipe.

#include "tools/troupe-tool/table.hpp"
#include "troupe/runtime/insight/snapshot.hpp"
#include "troupe/schema/error.hpp"

#include <cstddef>
#include <string>
#include <string_view>

namespace troupe {

// Who left as it should stays listed for so long, like ended actors.
inline constexpr double left_seconds_max = 60;

// Of top: nodes with their load, then the busiest actors; no more lines than `height`, 0: all.
std::string draw_top(const cluster_snapshot& c, std::size_t width, std::size_t height);

// Not a node that left long ago.
bool is_recent(const node_snapshot& n) noexcept;

// Those of `some`, which is a part of `c`.
drawn_table list_nodes(const cluster_snapshot& some, const cluster_snapshot& c, std::size_t width);
// Those that have ended come last, but where they are sorted.
drawn_table list_actors(const cluster_snapshot& c, std::size_t width, bool is_sorted = false);
// Actors that are all stages of one topology.
drawn_table list_stages(const cluster_snapshot& c, std::size_t width);
drawn_table list_jobs(const cluster_snapshot& c, std::size_t width);

// By name, else by id. An unknown one is a not_found error with near names; a name that several
// actors have means the only one that has not ended, else is one with their ids.
result<const node_snapshot*> find_node(const cluster_snapshot& c, std::string_view id);
result<const actor_snapshot*> find_actor(const cluster_snapshot& c, std::string_view id);

std::string show_node(const cluster_snapshot& c, const node_snapshot& n);
// With its actors by state, on each node.
std::string show_job(const cluster_snapshot& c, const job_snapshot& j);
std::string show_actor(const actor_snapshot& a, std::size_t width);

// "512/4690 (11 %)", "512", or "-".
std::string progress(const job_snapshot& j);

}  // namespace troupe
