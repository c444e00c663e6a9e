#include "tools/troupe-bench/bare_tcp.hpp"

#include "tools/troupe-bench/peer.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <tuple>
#include <utility>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

namespace troupe {

namespace {

enum class order_kind : std::uint64_t { ping_pong, stream };
struct order {
  order_kind kind = order_kind::ping_pong;
  std::uint64_t bytes = 0, count = 0, buffers = 0;
};
using ring = std::vector<std::vector<std::byte>>;

error broken(const char* call) {
  return {error_code::failed, std::string(call) + ": " + std::strerror(errno)};
}

bool write_all(int fd, const void* data, std::size_t n) {
  for (auto* at = static_cast<const char*>(data); n > 0;) {
    const auto k = ::send(fd, at, n, MSG_NOSIGNAL);
    if (k < 0 && errno == EINTR) continue;
    if (k <= 0) return false;
    at += k;
    n -= static_cast<std::size_t>(k);
  }
  return true;
}

bool read_all(int fd, void* data, std::size_t n) {
  for (auto* at = static_cast<char*>(data); n > 0;) {
    const auto k = ::recv(fd, at, n, 0);
    if (k < 0 && errno == EINTR) continue;
    if (k <= 0) return false;
    at += k;
    n -= static_cast<std::size_t>(k);
  }
  return true;
}

void fit(ring& r, std::size_t bytes, std::uint64_t buffers) {
  if (r.size() == buffers && !r.empty() && r.front().size() == bytes) return;
  r.clear();
  for (std::uint64_t i = 0; i < buffers; ++i) r.emplace_back(bytes, std::byte{1});
}

void set_no_delay(int fd) {
  const int one = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  a.sin_port = htons(port);
  return a;
}

// A socket that listens on a free port, and that port.
result<std::pair<int, std::uint16_t>> listen_anywhere() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  auto at = loopback(0);
  socklen_t size = sizeof at;
  if (fd < 0 || ::bind(fd, reinterpret_cast<sockaddr*>(&at), size) != 0 || ::listen(fd, 1) != 0 ||
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&at), &size) != 0) {
    auto why = broken("listen");
    if (fd >= 0) ::close(fd);
    return why;
  }
  return std::pair(fd, ntohs(at.sin_port));
}
result<int> connect_to(std::uint16_t port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const auto at = loopback(port);
  if (fd < 0 || ::connect(fd, reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0) {
    auto why = broken("connect");
    if (fd >= 0) ::close(fd);
    return why;
  }
  set_no_delay(fd);
  return fd;
}

// An order is answered by a byte once the buffers are there, and by another when it is done.
bool carry_out(int fd, const order& o, ring& buffers) {
  const char done = 1;
  fit(buffers, o.bytes, o.buffers);
  if (!write_all(fd, &done, 1)) return false;
  for (std::uint64_t i = 0; i < o.count; ++i) {
    auto& b = buffers[i % o.buffers];
    if (!read_all(fd, b.data(), b.size())) return false;
    if (o.kind == order_kind::ping_pong && !write_all(fd, b.data(), b.size())) return false;
  }
  return o.kind == order_kind::ping_pong || write_all(fd, &done, 1);
}

}  // namespace

result<std::unique_ptr<bare_server>> bare_server::start() {
  std::unique_ptr<bare_server> s(new bare_server);
  auto at = listen_anywhere();
  if (!at) return at.error();
  std::tie(s->listener_, s->port_) = *at;
  s->thread_ = std::thread([raw = s.get()] { raw->serve(); });
  return s;
}

bare_server::~bare_server() {
  is_ending_ = true;
  if (listener_ >= 0) ::shutdown(listener_, SHUT_RDWR);  // wakes the thread, wherever it waits
  if (connection_ >= 0) ::shutdown(connection_, SHUT_RDWR);
  if (thread_.joinable()) thread_.join();
  if (connection_ >= 0) ::close(connection_);
  if (listener_ >= 0) ::close(listener_);
}

void bare_server::serve() {
  const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
  if (fd < 0) return;
  connection_ = fd;
  set_no_delay(fd);
  ring buffers;
  for (order o; !is_ending_ && read_all(fd, &o, sizeof o) && carry_out(fd, o, buffers);) {
  }
}

result<std::unique_ptr<bare_client>> bare_client::connect(std::uint16_t port) {
  std::unique_ptr<bare_client> c(new bare_client);
  auto fd = connect_to(port);
  if (!fd) return fd.error();
  c->fd_ = *fd;
  return c;
}

bare_client::~bare_client() {
  if (fd_ >= 0) ::close(fd_);
}

result<double> bare_client::ping_pong(std::size_t bytes, std::uint64_t count) {
  const order o{order_kind::ping_pong, bytes, count, 1};
  char ready = 0;
  fit(buffers_, bytes, 1);
  if (!write_all(fd_, &o, sizeof o) || !read_all(fd_, &ready, 1)) return broken("ping-pong");
  const auto began = std::chrono::steady_clock::now();
  for (std::uint64_t i = 0; i < count; ++i)
    if (!write_all(fd_, buffers_[0].data(), bytes) || !read_all(fd_, buffers_[0].data(), bytes))
      return broken("ping-pong");
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

result<double> bare_client::stream(std::size_t bytes, std::uint64_t count,
                                   std::uint64_t buffers_here, std::uint64_t buffers_there) {
  const order o{order_kind::stream, bytes, count, buffers_there};
  char ready = 0;
  fit(buffers_, bytes, buffers_here);
  if (!write_all(fd_, &o, sizeof o) || !read_all(fd_, &ready, 1)) return broken("stream");
  const auto began = std::chrono::steady_clock::now();
  for (std::uint64_t i = 0; i < count; ++i)
    if (!write_all(fd_, buffers_[i % buffers_.size()].data(), bytes)) return broken("stream");
  if (!read_all(fd_, &ready, 1)) return broken("stream");
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

// --- through other processes ---------------------------------------------------------------------

result<std::unique_ptr<bare_relay>> bare_relay::start(std::uint16_t next) {
  std::unique_ptr<bare_relay> r(new bare_relay);
  auto at = listen_anywhere();
  if (!at) return at.error();
  std::tie(r->listener_, r->port_) = *at;
  r->thread_ = std::thread([listener = r->listener_, next] {
    const int from = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (from < 0) return;
    set_no_delay(from);
    if (const auto to = connect_to(next)) {
      std::vector<char> bytes(256 << 10);
      for (ssize_t n = 1; n > 0;) {
        n = ::recv(from, bytes.data(), bytes.size(), 0);
        if (n > 0 && !write_all(*to, bytes.data(), static_cast<std::size_t>(n))) break;
      }
      ::close(*to);
    }
    ::close(from);
  });
  return r;
}
bare_relay::~bare_relay() {
  ::shutdown(listener_, SHUT_RDWR);
  if (thread_.joinable()) thread_.join();
  ::close(listener_);
}

struct bare_ring::processes {
  std::unique_ptr<peer_process> first, second;
};
bare_ring::bare_ring() : others_(std::make_unique<processes>()) {}
bare_ring::~bare_ring() {
  // The relays end with what they read.
  if (out_ >= 0) ::close(out_);
  if (in_ >= 0) ::close(in_);
}

result<std::unique_ptr<bare_ring>> bare_ring::start() {
  std::unique_ptr<bare_ring> r(new bare_ring);
  auto end = listen_anywhere();
  if (!end) return end.error();
  auto port = std::to_string(end->second);
  for (auto* peer : {&r->others_->second, &r->others_->first}) {
    auto started = peer_process::start({"relay", port});
    if (!started) return started.error();
    *peer = std::move(*started);
    port = (*peer)->ready();
  }
  auto out = connect_to(static_cast<std::uint16_t>(std::stoul(port)));
  if (!out) return out.error();
  r->out_ = *out;
  r->in_ = ::accept4(end->first, nullptr, nullptr, SOCK_CLOEXEC);
  ::close(end->first);
  if (r->in_ < 0) return broken("accept");
  return r;
}

result<std::vector<double>> bare_ring::alone(std::size_t bytes, std::uint64_t count) {
  std::vector<char> message(bytes);
  std::vector<double> all;
  all.reserve(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto began = std::chrono::steady_clock::now();
    if (!write_all(out_, message.data(), bytes) || !read_all(in_, message.data(), bytes))
      return broken("ring");
    all.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
  }
  return all;
}

result<double> bare_ring::stream(std::size_t bytes, std::uint64_t count, std::size_t at_once) {
  const auto began = std::chrono::steady_clock::now();
  bool is_written = true;
  std::thread writes([&] {
    const std::vector<char> messages(bytes * at_once);
    for (std::uint64_t i = 0; i < count && is_written; i += at_once)
      is_written =
          write_all(out_, messages.data(),
                    bytes * static_cast<std::size_t>(std::min<std::uint64_t>(at_once, count - i)));
  });
  std::vector<char> message(bytes);
  bool is_read = true;
  for (std::uint64_t i = 0; i < count && is_read; ++i)
    is_read = read_all(in_, message.data(), bytes);
  const auto seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  if (!is_read) ::shutdown(out_, SHUT_RDWR);
  writes.join();
  if (!is_read || !is_written) return broken("ring");
  return seconds;
}

}  // namespace troupe
