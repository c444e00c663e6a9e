#pragma once
// The transport over TCP: non-blocking sockets on one io_loop, gathered writes, payloads read into
// their destinations.
//
// Per readiness event a connection reads and writes about event_bytes_max (plus at most one chunk),
// so that one that streams tensors does not starve the others. Names other than "localhost" are
// looked up on a thread of their own, so that a slow name server holds nobody up.
//
// Threading: that of the io_loop (actors/net/transport.hpp). Invariants TR-1..TR-7 of
// actors/net/transport.hpp.

#include "troupe/actors/net/tls_context.hpp"
#include "troupe/actors/net/transport.hpp"

#include <memory>

namespace troupe {

class io_loop;

struct tcp_options {
  // Of frames sent; received ones are checked whenever they carry one.
  bool checksum_payloads = true;
  // Also where no wire is between the two ends: then no payload stays, since what is read in place
  // has no checksum.
  bool checksum_on_loopback = true;
  // Accepted connections that have not proven themselves; with one more one of the origin that has
  // most is closed, a silent one before one that has said something, the oldest first.
  std::size_t strangers_max = 64;
  std::size_t event_bytes_max = 512 * 1024;
  // What the kernel holds of a connection to this machine; 0: what it likes, which is 4 MiB. What
  // is written is read at once here, so that a little keeps both ends busy, and stays in a core's
  // cache on its way from one to the other.
  std::size_t loopback_send_buffer_bytes = 128 * 1024;
  // Payloads from here on stay where they are for a peer that reads them there: below, a call more
  // costs as much as two copies. Page-locked ones never do (LK-8).
  std::size_t stays_bytes_min = 16 * 1024;
  std::int64_t linger_ns = 500'000'000;  // how long close() goes on writing
};

struct tcp_counters {
  std::uint64_t accepted = 0;
  std::uint64_t turned_away = 0;  // too many strangers
  std::uint64_t strangers = 0;    // now
  std::uint64_t bytes_sent = 0;
  std::uint64_t bytes_received = 0;
  std::uint64_t bytes_read_in_place = 0;    // out of the memory of peers
  std::uint64_t protected_connections = 0;  // that have become so
};

class tcp_transport : public transport {
 public:
  explicit tcp_transport(io_loop& loop, const tcp_options& options = {});  // the loop outlives it
  // Ends every connection and every pending connect without a callback. Its channels may outlive
  // it; they are dead.
  ~tcp_transport() override;

  // Of connections from now on: before the first one.
  void protect(protection p);
  result<address> listen(const address& at, accept_handler on_accept) override;
  void stop_listening() override;
  void connect(const address& to, std::int64_t timeout_ns, connect_handler on_connected) override;
  std::int64_t now_ns() const override;
  timer_id after(std::int64_t delay_ns, std::function<void()> fn) override;
  void cancel(timer_id id) override;
  const fault_counters& faults() const override;

  const tcp_counters& counters() const;

 private:
  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace troupe
