#pragma once
// Bare blocking TCP over loopback, as a careful C programmer would use it: the baseline of links.
//
// A server thread takes one connection and does what the client's orders say: echo messages, or
// read them into a ring of buffers and answer one byte behind the last.
//
// Threading: a client and a ring belong to one thread.

#include "troupe/schema/error.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace troupe {

class bare_server {
 public:
  static result<std::unique_ptr<bare_server>> start();
  ~bare_server();  // ends the connection
  std::uint16_t port() const { return port_; }

 private:
  bare_server() = default;
  void serve();

  int listener_ = -1;
  // Closed by the destructor only, so that it never shuts down another's.
  std::atomic<int> connection_{-1};
  std::atomic<bool> is_ending_{false};
  std::uint16_t port_ = 0;
  std::thread thread_;
};

class bare_client {
 public:
  static result<std::unique_ptr<bare_client>> connect(std::uint16_t port);
  ~bare_client();

  // Seconds for `count` round trips of `bytes` there and back.
  result<double> ping_pong(std::size_t bytes, std::uint64_t count);
  // Seconds until `count` messages of `bytes` have been read at the other end. Both ends cycle over
  // as many buffers as they are told, which are made before the clock starts, and again only when
  // sizes change.
  result<double> stream(std::size_t bytes, std::uint64_t count, std::uint64_t buffers_here,
                        std::uint64_t buffers_there);

 private:
  bare_client() = default;
  int fd_ = -1;
  std::vector<std::vector<std::byte>> buffers_;
};

// Takes one connection, connects to `next`, and writes what it reads, until that ends.
class bare_relay {
 public:
  static result<std::unique_ptr<bare_relay>> start(std::uint16_t next);
  ~bare_relay();
  std::uint16_t port() const { return port_; }

 private:
  bare_relay() = default;
  int listener_ = -1;
  std::uint16_t port_ = 0;
  std::thread thread_;
};

// From here through two other processes back to here: their relays.
class bare_ring {
 public:
  static result<std::unique_ptr<bare_ring>> start();
  ~bare_ring();

  // Seconds of each of `count` messages, one at a time.
  result<std::vector<double>> alone(std::size_t bytes, std::uint64_t count);
  // Seconds until `count` messages have come back, `at_once` of them written by a call.
  result<double> stream(std::size_t bytes, std::uint64_t count, std::size_t at_once);

 private:
  struct processes;
  bare_ring();
  std::unique_ptr<processes> others_;
  int out_ = -1, in_ = -1;
};

}  // namespace troupe
