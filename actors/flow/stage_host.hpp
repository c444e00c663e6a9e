#pragma once
// What lets a node run parts of topologies: process_options::host_work of troupe-node.
//
// Threading: asked on an actor's thread. Ownership: libraries outlive the process.

#include "troupe/actors/process/process.hpp"
#include "troupe/runtime/flow/stage_library.hpp"
#include "troupe/runtime/flow/topology_parts.hpp"
#include "troupe/schema/error.hpp"

#include <functional>
#include <string>

namespace troupe {

// A gate (gate_actor.hpp) for each topology that asks for one.
std::function<caf::actor(const work_host&, job_id, node_id)> host_stages(library_list libraries);

// The stage library of a file; null: it has none, or cannot be opened, which load_ops() says.
// Errors (usage): another ABI, what check_library() finds, an entry that throws.
result<const stage_library*> load_stages(const std::string& file);

}  // namespace troupe
