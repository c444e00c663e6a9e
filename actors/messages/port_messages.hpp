#pragma once
// The messages inside a process, as structs, and the typed handles of those who take them.
//
// Nothing here crosses a process: what does is in schema/wire.capnp, and only link and member
// actors see both.

#include "troupe/devices/tensor.hpp"
#include "troupe/runtime/plan/plan.hpp"
#include "troupe/schema/ids.hpp"

#include <caf/actor.hpp>
#include <caf/allowed_unsafe_message_type.hpp>
#include <caf/typed_actor.hpp>
#include <caf/typed_event_based_actor.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace troupe {

class landing_pool;
struct part_handles;

// --- to port actors: op, shard, send, receive, feed, fetch ---------------------------------------

// Supervisor: who your neighbours are; build your kernels; answer actor_ready or actor_failed.
struct wire_ports {
  std::shared_ptr<const part_handles> handles;
};
struct start_firing {};  // supervisor: sources may fire
struct tensor_ready {    // producer, link or program: an item for input `port`
  std::uint32_t port = 0;
  std::uint32_t part = 0;  // between ranks of a collective: the key of a piece
  tag t;
  tensor value;
};
struct credit {  // consumer, link or program: `count` credits for outlet `outlet`
  std::uint32_t outlet = 0;
  std::uint32_t count = 1;
};
// Nothing more comes to `port` (a shard: from that worker); a send: nobody takes what it sends.
struct peer_lost {
  std::uint32_t port = 0;
  std::string reason;
};
// Supervisor, to those who mark cuts: what you make next is not in cut `mark` any more.
struct mark_cut {
  std::uint32_t mark = 0;
};
// Archive, to a shard: the cut that you gave out is saved, or given up.
struct cut_saved {
  std::uint64_t step = 0;
};
// Program, to the conditions of loops: nobody wants the steps up to this one any more.
struct cancel_step {
  std::uint64_t step = 0;
};
// Program, to a feed: who feeds it from now on, and is told feed_ready.
struct set_feeder {
  caf::actor to;
};
// A device: what was enqueued up to this number of the actor's own is done, or its stream has
// failed.
struct device_done {
  std::uint64_t number = 0;
};
struct end_actor {};  // supervisor: drop everything and end

using port_actor =
    caf::typed_actor<caf::reacts_to<wire_ports>, caf::reacts_to<start_firing>,
                     caf::reacts_to<tensor_ready>, caf::reacts_to<credit>,
                     caf::reacts_to<peer_lost>, caf::reacts_to<mark_cut>, caf::reacts_to<cut_saved>,
                     caf::reacts_to<cancel_step>, caf::reacts_to<set_feeder>,
                     caf::reacts_to<device_done>, caf::reacts_to<end_actor>>;

// Where a rank of a collective wants what its link reads: at port `port`, of step `step`, under key
// `part`; nothing: wherever the link has room. Both are on the links' worker; the rank sets it, and
// takes it back before it ends.
struct piece_desk {
  std::function<tensor(std::uint32_t port, std::uint64_t step, std::uint32_t part)> destination;
};

// All actors of a job's part in this process; kept by each of them until it ends.
struct part_handles {
  std::vector<port_actor> actors;  // by index in the plan; null where another process runs it
  std::vector<caf::actor> links;   // by task; null for our own
  std::map<std::uint32_t, std::shared_ptr<piece_desk>> desks;  // of ranks of collectives here
  // By actor and output port: where lands for a device what a receive actor is sent, or an op of
  // the host makes.
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::shared_ptr<landing_pool>> landings;
};

// --- to links ------------------------------------------------------------------------------------

// Send actor: `value` for edge `edge`; the link keeps it until it is acknowledged.
struct send_tensor {
  job_id job{};
  std::uint32_t edge = 0;
  std::uint64_t sequence = 0;
  tag t;
  tensor value;
};
// Rank of a collective: `length_bytes` of `value` from `offset_bytes` on, as an item of `edge`; the
// link keeps the tensor until it is acknowledged.
struct send_piece {
  job_id job{};
  std::uint32_t edge = 0;
  std::uint64_t sequence = 0;
  tag t;
  tensor value;
  std::size_t offset_bytes = 0, length_bytes = 0;
  std::uint32_t part = 0;
};
// Receive actor, rank: `count` items of `edge` have been passed on, or taken.
struct return_credit {
  job_id job{};
  std::uint32_t edge = 0;
  std::uint32_t count = 1;
};

// --- to the archive ------------------------------------------------------------------------------

struct save_shard {  // shard: part of a cut; the tensors stay as they are while they are held
  job_id job{};
  std::uint32_t epoch = 0;
  std::uint64_t step = 0;
  std::uint32_t actor = 0;
  std::string variable;
  std::vector<std::uint64_t> applied;  // by worker
  tensor values;
  std::vector<std::pair<std::string, tensor>> state;  // by name of the optimizer's slot
  caf::actor from;                                    // is told cut_saved
};

// --- to supervisors ------------------------------------------------------------------------------

struct actor_ready {
  std::uint32_t actor = 0;
};
struct actor_done {
  std::uint32_t actor = 0;
};  // fired as often as the plan says
struct actor_noted {  // people want to know it; the actor goes on
  std::uint32_t actor = 0;
  std::uint64_t step = 0;
  std::string text;
};
struct actor_failed {
  std::uint32_t actor = 0;
  std::uint64_t step = 0;
  std::string text;
  // It may follow from the end of another node (runtime/supervision/failure.hpp, SV-1)
  bool is_derived = false;
};

// --- to the program ------------------------------------------------------------------------------

// Fetch actor: one firing. The program answers credit{0, 1} when it is done with it.
struct fetched {
  std::uint32_t fetch = 0;  // index of the fetch actor in the plan
  std::uint32_t port = 0;   // the port that fired, for a fetch that fires on any
  tag t;
  std::vector<tensor> values;
};
inline constexpr std::uint32_t feed_room = 4;  // items that a feed actor holds
// feed actor: an item has been taken, there is room for another.
struct feed_ready {
  std::uint32_t feed = 0;
};

}  // namespace troupe

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::wire_ports)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::start_firing)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::tensor_ready)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::credit)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::peer_lost)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::mark_cut)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::cut_saved)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::save_shard)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::cancel_step)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::set_feeder)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::device_done)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::end_actor)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::send_tensor)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::send_piece)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::return_credit)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actor_ready)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actor_done)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actor_noted)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actor_failed)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::fetched)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::feed_ready)
