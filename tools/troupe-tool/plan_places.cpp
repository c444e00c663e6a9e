#include "tools/troupe-tool/plan_places.hpp"

#include "troupe/runtime/jobs/placement.hpp"

#include <fmt/format.h>

#include <vector>

namespace troupe {

result<task_map> places_on(std::uint32_t nodes, const training_spec& spec) {
  std::vector<member_info> members(nodes);
  for (std::uint32_t i = 0; i < nodes; ++i)
    members[i].id = node_id{i + 1}, members[i].start_time_ns = i + 1;
  const node_id client{nodes + 1};
  if (nodes > 0 && spec.workers > nodes && !spec.is_recoverable)
    return error(
        error_code::usage,
        fmt::format(
            "--nodes {}: {} workers need as many, and --nodes 0 plans everything in the program",
            nodes, spec.workers));
  const auto roles = first_roles(members, client, spec.workers, spec.shards, spec.is_recoverable,
                                 spec.has_replicas && nodes > 0, spec.all_reduce);
  if (!roles) return roles.error();
  return task_map(place_roles(*roles, client));
}

}  // namespace troupe
