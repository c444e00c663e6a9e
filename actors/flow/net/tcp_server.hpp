#pragma once
// Sources that take connections and give what comes over them: lines, or frames of a length and
// bytes.
//
//   auto server = tcp_server::open({.listen = "127.0.0.1:0"});
//   topology t;
//   auto lines = tcp_lines(t, *server);  // of all connections
//   ... server->address() ...            // "127.0.0.1:40123": known before it runs
//
// TS-1  Items of one connection keep their order; connections take turns, and one that is slow or
//       silent holds nobody up.
// TS-2  Where there is no room behind the source, nothing is read: a connection then holds one
//       item and `read_bytes`, at most, and its peer is held back by TCP.
// TS-3  An item that is longer than `item_bytes_max` ends its connection. It is counted, and told
//       as a failure of the stage, which is left out unless .on_error says another: so it is found
//       among dead letters. A connection that is cut is told likewise.
// Ends: never by itself; on topology.stop(), when all connections are closed. What was not read
// then is lost; a sender that must know asks for answers (http_server.hpp).
// Threading: the source has a thread of its own, which does everything, and sleeps while nothing
// comes. Ownership: the server owns its socket; it feeds one source.
// Errors: open(): a wrong address, or one that is taken.

#include "troupe/runtime/flow/flow.hpp"
#include "troupe/schema/error.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace troupe {

struct tcp_server_options {
  std::string listen = "127.0.0.1:0";  // port 0: any that is free
  // At once; who comes then waits in the system's queue.
  std::uint32_t connections_max = 1024;
  // Of a line without its end, or of a frame's bytes.
  std::uint64_t item_bytes_max = std::uint64_t{1} << 20;
};

struct tcp_counts {
  std::uint64_t connections = 0;  // that were taken
  std::uint64_t open = 0;         // now
  std::uint64_t too_long = 0;     // closed because of an item that is longer than allowed
  std::uint64_t cut = 0;          // ended in the middle of an item, or by an error
};

class tcp_server {
 public:
  static constexpr std::size_t read_bytes = 64 << 10;

  // Listens from now on; who connects waits until the topology runs.
  static result<tcp_server> open(tcp_server_options options = {});
  // Where it listens, with the port that it got.
  const std::string& address() const noexcept;
  // From any thread.
  tcp_counts counts() const noexcept;

  struct state;
  const std::shared_ptr<state>& shared_state() const noexcept { return state_; }

 private:
  explicit tcp_server(std::shared_ptr<state> s) noexcept : state_(std::move(s)) {}
  std::shared_ptr<state> state_;
};

// Without its end ("\n" or "\r\n"). What comes after the last one is a line, too, if the peer
// closes in good order.
struct tcp_line {
  std::string text;
  std::string peer;  // "127.0.0.1:40124"
  static constexpr auto fields = troupe::fields<&tcp_line::text, &tcp_line::peer>("text", "peer");
};

// Over the wire: the number of bytes (u32, little-endian), and the bytes.
struct tcp_frame {
  std::vector<std::byte> bytes;
  std::string peer;
  std::size_t size_bytes() const noexcept { return bytes.size() + peer.size(); }
};

struct tcp_source_options {
  std::string name{};
  error_policy on_error = skip();  // of what a peer does wrong
  std::optional<flow<dead_letter>> dead_letters{};
};

flow<tcp_line> tcp_lines(flow_graph& t, const tcp_server& server, const tcp_source_options& o = {},
                         source_location where = source_location::current());
flow<tcp_frame> tcp_frames(flow_graph& t, const tcp_server& server,
                           const tcp_source_options& o = {},
                           source_location where = source_location::current());
// With a server of its own: run() says if it cannot listen.
flow<tcp_line> tcp_lines(flow_graph& t, const tcp_server_options& server,
                         const tcp_source_options& o = {},
                         source_location where = source_location::current());
flow<tcp_frame> tcp_frames(flow_graph& t, const tcp_server_options& server,
                           const tcp_source_options& o = {},
                           source_location where = source_location::current());

}  // namespace troupe
