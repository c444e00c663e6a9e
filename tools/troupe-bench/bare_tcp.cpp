#include "tools/troupe-bench/bare_tcp.hpp"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>

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
  s->listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  auto at = loopback(0);
  socklen_t size = sizeof at;
  if (s->listener_ < 0 || ::bind(s->listener_, reinterpret_cast<sockaddr*>(&at), size) != 0 ||
      ::listen(s->listener_, 1) != 0 ||
      ::getsockname(s->listener_, reinterpret_cast<sockaddr*>(&at), &size) != 0)
    return broken("listen");
  s->port_ = ntohs(at.sin_port);
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
  c->fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const auto at = loopback(port);
  if (c->fd_ < 0 || ::connect(c->fd_, reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0)
    return broken("connect");
  set_no_delay(c->fd_);
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

}  // namespace troupe
