#pragma once
// A misbehaving piece of network: forwards loopback connections to an address, and by script
// damages, cuts, repeats or delays what goes through. Frames go through whole (their ends are
// known), other bytes as they come.
//
//   tcp_proxy proxy(target);
//   // byte 70 of the third frame
//   proxy.add({proxy_direction::to_target, proxy_action::flip, at_frame(2, 70)});
//   connect(proxy.listens_on());
//
// Threading: one thread accepts, two carry each connection. All calls from any thread. The
// destructor ends them all.

#include "troupe/runtime/text/address.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace troupe::test {

enum class proxy_direction : std::uint8_t { to_target, from_target };

// Where in a direction's stream a rule acts, counted per connection.
struct proxy_point {
  bool counts_frames = true;
  std::uint64_t index = 0;  // the n-th frame, or the n-th byte of the connection, from 0
  std::size_t offset = 0;   // byte of the frame
};
inline proxy_point at_frame(std::uint64_t n, std::size_t offset = 0) { return {true, n, offset}; }
inline proxy_point at_byte(std::uint64_t n) { return {false, n, 0}; }

enum class proxy_action : std::uint8_t {
  flip,      // one bit of the byte
  cut,       // bytes before the point still go through, then both ends are closed
  half_cut,  // the same, but only this direction ends; the other goes on
  repeat,    // the frame comes twice
  swallow,   // the frame does not come
  hold,      // bytes from the point on wait for `hold`, or until release()
};

// Acts once.
struct proxy_rule {
  proxy_direction direction = proxy_direction::to_target;
  proxy_action action = proxy_action::cut;
  proxy_point point;
  int connection = -1;  // in order of arrival, from 0; -1: the first that gets there
  std::chrono::milliseconds hold{60'000};
};

class tcp_proxy {
 public:
  explicit tcp_proxy(const address& target);  // throws std::runtime_error where it cannot listen
  ~tcp_proxy();

  address listens_on() const;
  void add(const proxy_rule& rule);
  // Everything that is held goes on.
  void release();
  // Closes what is connected now.
  void drop_connections();
  // New connections are closed at once, or carried again.
  void refuse(bool on);

  std::size_t connections() const;  // so far
  std::size_t rules_applied() const;
  std::uint64_t frames(proxy_direction d) const;  // forwarded so far, over all connections
  std::uint64_t bytes(proxy_direction d) const;

 private:
  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace troupe::test
