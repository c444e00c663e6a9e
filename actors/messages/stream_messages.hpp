#pragma once
// The messages of work that is no job: a topology of stages, say, whose `job_id` is its own. Its
// processes talk in words, small and on the control lane, and in streams of bytes, on the data
// lane.
//
//   join_work -> send_word, bind_stream -> send_stream -> leave_work
//
// Words to one node arrive in the order in which they were sent, each once, or word_refused or
// node_lost says why not. Values of a stream likewise, if both ends have bound it before the first
// one is sent: a link drops what nobody has bound, and all that follows it. Words and values do not
// wait for each other.
//
// There are no credits here: whoever uses words and streams bounds what is under way. Of words that
// a peer has not acknowledged a link holds 256 MiB; with more it fails (LS-5 of
// runtime/wire/link_session.hpp).
//
// Threading: values, inside one process.

#include "troupe/devices/tensor.hpp"
#include "troupe/schema/ids.hpp"

#include <caf/actor.hpp>
#include <caf/allowed_unsafe_message_type.hpp>

#include <cstddef>
#include <string>
#include <vector>

namespace troupe {

// --- to the own node -----------------------------------------------------------------------------

// Program or host of stages: what comes for that work is told to `who`, and who dies of the members
// (node_lost), until leave_work. Joined again: another `who`.
struct join_work {
  job_id job{};
  caf::actor who;
};
struct leave_work {
  job_id job{};
};
// A word for the same work on another node, or on this one. At most work_word_bytes_max
// (runtime/wire/control_message.hpp).
struct send_word {
  job_id job{};
  node_id to{};
  std::vector<std::byte> bytes;
};
// A stream in both directions with that peer: whose link answers `who` with stream_bound. Bound
// again: another `who`, and the stream goes on.
struct bind_stream {
  job_id job{};
  node_id peer{};
  caf::actor who;
};

// --- from the own node, to `who` -----------------------------------------------------------------

struct work_word_came {
  job_id job{};
  node_id from{};
  std::vector<std::byte> bytes;
};
// A word has not been sent: it is too long, or no link leads there.
struct word_refused {
  job_id job{};
  node_id to{};
  std::string reason;
};
// A member has died or left, or the link to it is given up. Of the own node: this process is out,
// and the work is left.
struct node_lost {
  node_id node{};
  std::string name;
  std::string reason;
};

// --- between `who` and a link --------------------------------------------------------------------

// A tensor of a stream is u8, of one dimension, and of 1 to so many bytes.
inline constexpr std::size_t stream_value_bytes_max = std::size_t{2} << 30;

// Link, or the node where there is no link, to `who`: `link` takes send_stream. With an error there
// is no stream; that comes later, too, when there is no memory for a value, or one is sent that is
// no stream_value.
struct stream_bound {
  node_id peer{};
  caf::actor link;
  std::string error;
};
// Node to links, by leave_work: what is half read goes, what was sent arrives.
struct unbind_stream {
  job_id job{};
};
// `who` to a link: the value comes out at the peer as stream_value. The link holds it until it is
// acknowledged.
struct send_stream {
  job_id job{};
  tensor value;
};
// Link to `who`.
struct stream_value {
  node_id from{};
  tensor value;
};

}  // namespace troupe

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::join_work)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::leave_work)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::send_word)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::bind_stream)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::work_word_came)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::word_refused)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::node_lost)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::stream_bound)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::unbind_stream)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::send_stream)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::stream_value)
