#pragma once
// Work of a process that is no part of a job, and that its node lists among jobs and actors
// nevertheless: a topology of the program.
//
// Threading: asked on the node's thread, while the work runs on others: what it reads is atomic.

#include "troupe/runtime/insight/snapshot.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace troupe {

// The name of a port that an actor has while it waits for its thread, which runs `peer`.
inline constexpr std::string_view thread_port = "thread";
// The same while it waits for a resource, which `peer` has: its name stands behind this.
inline constexpr std::string_view resource_port = "resource ";
// "input", "a credit", "its thread", "a resource".
std::string_view what_is_waited_for(const port_snapshot& p) noexcept;

class listed_work {
 public:
  virtual ~listed_work() = default;
  // As it is now; `node`: the name of the node that lists it. Ages count up to now.
  virtual job_snapshot job(const std::string& node) const = 0;
  virtual std::vector<actor_snapshot> actors(const std::string& node) const = 0;
  // A tool asks for something: "drain", "replicas", and what that needs to know. What is said to it
  // ("refused: ..." where it cannot be); empty: it is not asked of this process.
  virtual std::string obey(std::string_view /*what*/, std::string_view /*rest*/) const {
    return {};
  }
};

}  // namespace troupe
