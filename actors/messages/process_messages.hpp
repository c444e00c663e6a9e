#pragma once
// The messages to the supervisor of a process (actors/process/process_supervisor.hpp).
//
// Threading: values, inside one process.

#include "troupe/runtime/supervision/supervision_tree.hpp"

#include <caf/actor.hpp>
#include <caf/allowed_unsafe_message_type.hpp>

#include <string>

namespace troupe {

struct watch {
  std::string name;
  supervision_policy policy;
  caf::actor actor;
};
struct supervision_tick {};

}  // namespace troupe

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::watch)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::supervision_tick)
