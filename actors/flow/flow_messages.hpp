#pragma once
// The messages of a running topology: between its groups, and with its director. Each is said of in
// the table of whoever takes it. Used in actors/flow only.
//
// Threading: values, inside one process. Groups and their director are in the topology's actor
// system, the gate and links in that of the process: whoever tells somebody of the other one does
// so with tell(nullptr, ...).

#include "troupe/runtime/flow/drain.hpp"
#include "troupe/runtime/flow/flow_group.hpp"
#include "troupe/runtime/flow/item_frames.hpp"
#include "troupe/runtime/flow/stage_replacement.hpp"
#include "troupe/schema/ids.hpp"

#include <caf/actor.hpp>
#include <caf/allowed_unsafe_message_type.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace troupe {

// The link to the process that has the other end of an edge.
struct far_route {
  caf::actor link;
  job_id job{};
  far_end end;
};
// Where the ends of each edge run, by edge; null: in another process.
struct flow_routes {
  std::vector<caf::actor> from, to;
  std::vector<std::optional<far_route>> far;  // empty: the whole topology is here
};

struct flow_items {
  std::uint32_t edge = 0;
  std::shared_ptr<std::vector<flow_item>> items;  // the receiver's alone
  bool is_last = false;
};
// Of another process: items_frame of runtime/flow/item_frames.hpp.
struct flow_frame {
  std::uint32_t edge = 0;
  tensor frame;
};
struct flow_room {
  std::uint32_t edge = 0;
};
struct flow_closed {
  std::uint32_t edge = 0;
};
struct flow_begin {
  std::shared_ptr<flow_group> group;  // the receiver's alone
  std::shared_ptr<const flow_routes> routes;
  caf::actor director{};  // of the gate's only, who has no other way to it
};
struct flow_go {};    // to itself: there is more to do
struct flow_wake {};  // the time has come
struct flow_halt {
  std::uint64_t number = 0;
};
struct flow_resume {};
struct flow_surrender {};
struct flow_finish {};
struct flow_pause {
  bool is_paused = false;
  bool is_held = false;  // for a checkpoint
};
// The number of that deal's replicas has changed.
struct flow_look {
  std::uint32_t stage = 0;
};
struct flow_replace {
  std::shared_ptr<stage_replacement> what;
};
struct flow_end {};

struct group_over {
  std::uint32_t group = 0;
};
struct group_failed {
  flow_failure why;
};
struct group_halted {
  std::uint32_t group = 0;
  std::uint64_t number = 0;  // of the halt: an answer to one that was called off counts for nothing
};
struct group_surrendered {
  std::uint32_t group = 0;
  std::shared_ptr<flow_group> part;
};
// Of the gate: the process that had these stages is gone, and what they had is to be made again
// (flow_group::lose).
struct lose_stages {
  std::vector<std::uint32_t> stages;
};
struct director_tick {};
// To the program: a line that people want to know.
struct topology_note {
  std::string text;
};
struct stop_topology {
  enum class how : std::uint8_t {
    drains,  // sources end, and what is under way goes on to its end
    at_once,
    suspends,  // with a checkpoint, as soon as there is one
  } how = how::drains;
};
// To the program, or to the host of a part.
struct topology_ended {
  bool has_failed = false;
  error why{error_code::failed, ""};
  bool is_suspended = false;
};
// To the same: the director is gone, and tells nobody of anything any more.
struct director_gone {};
// To the clock of the topology (director.hpp).
struct wake_me {
  std::int64_t at_ns = 0;
  caf::actor whom;
  bool is_director = false;
};

}  // namespace troupe

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::flow_items)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::flow_frame)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::flow_room)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::flow_closed)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::flow_begin)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::flow_go)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::flow_wake)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::flow_halt)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::flow_resume)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::flow_surrender)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::flow_finish)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::flow_pause)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::flow_look)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::flow_replace)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::flow_end)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::group_over)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::group_failed)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::group_halted)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::group_surrendered)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::lose_stages)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::director_tick)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::topology_note)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::stop_topology)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::topology_ended)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::director_gone)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::wake_me)
