#pragma once
// The other ends of connections, for tests of sources and sinks of the network: plain sockets that
// wait, each for test::hang at most.

#include "tests/support/wait.hpp"
#include "troupe/actors/flow/topology.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <charconv>
#include <string>
#include <string_view>
#include <thread>

namespace troupe::test {

inline std::uint16_t port_of(std::string_view address) {
  return static_cast<std::uint16_t>(std::stoi(std::string(address.substr(address.rfind(':') + 1))));
}

// Checks nothing by itself: threads of a test may have some, and Boost.Test's checks are for one.
class client {
 public:
  explicit client(int socket) : socket_(socket) { set_limit(); }
  explicit client(const std::string& address) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    set_limit();
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(port_of(address));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    is_connected_ = ::connect(socket_, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0;
  }
  client(client&& o) noexcept
      : socket_(std::exchange(o.socket_, -1)),
        is_connected_(o.is_connected_),
        buffer_(std::move(o.buffer_)) {}
  client& operator=(client&&) = delete;
  ~client() { close(); }

  bool is_connected() const noexcept { return is_connected_; }
  // False: the peer has closed, or takes nothing.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const auto n = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(n));
    }
    return true;
  }
  // As much as the system takes now.
  std::size_t send_now(std::string_view bytes) {
    const auto n = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    return n > 0 ? static_cast<std::size_t>(n) : 0;
  }
  // Up to and with `end`; less: the peer has closed.
  std::string read_until(std::string_view end) {
    for (std::size_t from = 0;;) {
      if (const auto at = buffer_.find(end, from); at != buffer_.npos) return take(at + end.size());
      from = buffer_.size() - std::min(buffer_.size(), end.size());
      if (!receive()) return take(buffer_.size());
    }
  }
  std::string read_bytes(std::size_t n) {
    while (buffer_.size() < n && receive()) {
    }
    return take(std::min(n, buffer_.size()));
  }
  std::string read_all() {
    while (receive()) {
    }
    return take(buffer_.size());
  }
  void end_sending() { ::shutdown(socket_, SHUT_WR); }
  // Without good order: the peer sees an error.
  void reset() {
    const linger now{1, 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close();
  }
  void close() {
    if (socket_ >= 0) ::close(std::exchange(socket_, -1));
  }

 private:
  void set_limit() {
    const timeval limit{std::chrono::seconds(hang).count(), 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    ::setsockopt(socket_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  }
  bool receive() {
    char some[16384];
    const auto n = ::recv(socket_, some, sizeof some, 0);
    if (n > 0) buffer_.append(some, static_cast<std::size_t>(n));
    return n > 0;
  }
  std::string take(std::size_t n) {
    auto part = buffer_.substr(0, n);
    buffer_.erase(0, n);
    return part;
  }
  int socket_;
  bool is_connected_ = true;
  std::string buffer_;
};

// Somebody who listens.
class listener {
 public:
  explicit listener(std::uint16_t port = 0) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    const int on = 1;
    ::setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    const timeval limit{std::chrono::seconds(hang).count(), 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(port);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof at;
    BOOST_TEST_REQUIRE(::bind(socket_, reinterpret_cast<const sockaddr*>(&at), size) == 0);
    BOOST_TEST_REQUIRE(::listen(socket_, 16) == 0);
    ::getsockname(socket_, reinterpret_cast<sockaddr*>(&at), &size);
    port_ = ntohs(at.sin_port);
  }
  ~listener() { ::close(socket_); }
  listener(const listener&) = delete;
  listener& operator=(const listener&) = delete;
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  client accept() {
    const auto s = ::accept(socket_, nullptr, nullptr);
    BOOST_TEST_REQUIRE(s >= 0);
    return client(s);
  }

 private:
  int socket_;
  std::uint16_t port_ = 0;
};

// A topology that runs beside the test. It is stopped, at the latest, when this ends.
class running {
 public:
  explicit running(topology& t) : topology_(t) {
    thread_ = std::thread([this] { result_.emplace(topology_.run_to_end()); });
  }
  ~running() {
    if (thread_.joinable()) (void)stop();
  }
  running(const running&) = delete;
  running& operator=(const running&) = delete;
  result<flow_totals>& stop() {
    topology_.stop();
    return end();
  }
  result<flow_totals>& end() {
    const waiting_for wait("the end of the topology");
    if (thread_.joinable()) thread_.join();
    return *result_;
  }

 private:
  topology& topology_;
  std::optional<result<flow_totals>> result_;
  std::thread thread_;
};

}  // namespace troupe::test
