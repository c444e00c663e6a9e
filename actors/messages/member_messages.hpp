#pragma once
// The messages to and from the member of a process. Each is said of in the table of whoever takes
// it (actors/cluster/member.hpp, actors/node/node_actor.hpp).
//
// Threading: values, inside one process.

#include "troupe/runtime/insight/snapshot.hpp"
#include "troupe/runtime/wire/member_info.hpp"
#include "troupe/schema/ids.hpp"

#include <caf/actor.hpp>
#include <caf/allowed_unsafe_message_type.hpp>

#include <cstdint>
#include <string>

namespace troupe {

struct jobs_changed {
  std::uint32_t jobs = 0;
};
struct leave_cluster {
  std::string reason;
  caf::actor to;
};
struct left_cluster {};
struct link_failed {
  node_id peer{};
  std::uint64_t number = 0;
  std::string text;
};

struct member_event {
  event what;
};  // for the node's list of events
// We were fenced: all parts end, this is who we are now.
struct rejoined {
  member_info self;
};

}  // namespace troupe

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::jobs_changed)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::leave_cluster)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::left_cluster)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::link_failed)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::member_event)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::rejoined)
