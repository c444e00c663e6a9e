#pragma once
// Sinks that connect to somebody and send lines, or frames of a length and bytes, as tcp_server.hpp
// reads them.
//
//   send_lines(texts, "127.0.0.1:7000");
//
// TC-1  A connection is made when the first item is here, with `tries` at most, and rests of 100 ms
//       between them, each twice the last one.
// TC-2  A peer that closes, or takes nothing for `timeout`, is a failure of the stage, at the item
//       that was to be sent. Where .on_error bears it, the next item connects anew.
// TC-3  Items leave together while more are here, and at once otherwise. What the system had taken
//       over a connection that broke may be lost; what it had not is sent again, whole, but for the
//       item at hand.
// Ends: when all is written; the connection is then closed in good order.
// Threading: the stage has a thread of its own, and waits there. Errors: usage: a wrong address
// (said before anything runs), or a text with a line's end in it; unreachable, failed, timed_out.

#include "troupe/runtime/flow/flow.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace troupe {

struct tcp_sink_options {
  std::string name{};
  std::uint32_t tries = 5;                            // to connect
  nanoseconds_of timeout = std::chrono::seconds(10);  // of a try, and of a peer that takes nothing
  error_policy on_error{};
  std::optional<flow<dead_letter>> dead_letters{};
};

// Each text with "\n" behind it.
void send_lines(const flow<std::string>& in, const std::string& address,
                const tcp_sink_options& o = {}, source_location where = source_location::current());
// The number of bytes (u32, little-endian), and the bytes.
void send_frames(const flow<std::vector<std::byte>>& in, const std::string& address,
                 const tcp_sink_options& o = {},
                 source_location where = source_location::current());

}  // namespace troupe
