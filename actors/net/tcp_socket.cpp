#include "troupe/actors/net/tcp_socket.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <thread>

namespace troupe {
namespace {

constexpr int listen_backlog = 256;

socket_address ipv4(const in_addr& host, std::uint16_t port) {
  sockaddr_in in{};
  in.sin_family = AF_INET;
  in.sin_port = htons(port);
  in.sin_addr = host;
  socket_address a;
  std::memcpy(&a.storage, &in, sizeof in);
  a.length = sizeof in;
  return a;
}

socket_address ipv6(const in6_addr& host, std::uint16_t port, std::uint32_t card = 0) {
  sockaddr_in6 in{};
  in.sin6_family = AF_INET6;
  in.sin6_port = htons(port);
  in.sin6_addr = host;
  in.sin6_scope_id = card;
  socket_address a;
  std::memcpy(&a.storage, &in, sizeof in);
  a.length = sizeof in;
  return a;
}

error listen_error(const address& at, int number) {
  const std::string name = to_string(at);
  switch (number) {
    case EADDRINUSE:
      return {
          error_code::usage,
          fmt::format(
              "cannot listen on {}: the port is in use; choose another one, or port 0 for any free port",
              name)};
    case EADDRNOTAVAIL:
      return {error_code::usage,
              fmt::format("cannot listen on {}: it is not an address of this machine", name)};
    case EACCES:
      return {error_code::usage,
              fmt::format("cannot listen on {}: ports below 1024 need privileges", name)};
    default:
      return {error_code::failed,
              fmt::format("cannot listen on {}: {}", name, system_message(number))};
  }
}

}  // namespace

void unique_fd::reset() noexcept {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

std::string system_message(int number) { return std::generic_category().message(number); }

address to_address(const socket_address& a) {
  char text[INET6_ADDRSTRLEN] = "?";
  if (a.family() == AF_INET) {
    sockaddr_in in;
    std::memcpy(&in, &a.storage, sizeof in);
    inet_ntop(AF_INET, &in.sin_addr, text, sizeof text);
    return {text, ntohs(in.sin_port)};
  }
  if (a.family() == AF_INET6) {
    sockaddr_in6 in;
    std::memcpy(&in, &a.storage, sizeof in);
    // A socket for both families has IPv4 peers, too, and their addresses are IPv4's.
    if (IN6_IS_ADDR_V4MAPPED(&in.sin6_addr)) {
      inet_ntop(AF_INET, &in.sin6_addr.s6_addr[12], text, sizeof text);
      return {text, ntohs(in.sin6_port)};
    }
    inet_ntop(AF_INET6, &in.sin6_addr, text, sizeof text);
    char card[IF_NAMESIZE] = {};
    if (in.sin6_scope_id != 0 && if_indextoname(in.sin6_scope_id, card) != nullptr)
      return {fmt::format("{}%{}", text, card), ntohs(in.sin6_port)};
    return {text, ntohs(in.sin6_port)};
  }
  return {"?", 0};
}

address peer_of(int fd) {
  socket_address a;
  a.length = sizeof a.storage;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&a.storage), &a.length) != 0) return {"?", 0};
  return to_address(a);
}

address local_address_of(int fd) {
  socket_address a;
  a.length = sizeof a.storage;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&a.storage), &a.length) != 0) return {"?", 0};
  return to_address(a);
}

std::vector<socket_address> known_addresses(const address& a) {
  if (a.host == "localhost")
    return {ipv4(in_addr{htonl(INADDR_LOOPBACK)}, a.port), ipv6(in6addr_loopback, a.port)};
  in_addr host4;
  if (is_ipv4(a.host) && inet_pton(AF_INET, a.host.c_str(), &host4) == 1)
    return {ipv4(host4, a.port)};
  in6_addr host6;
  const auto percent = a.host.find('%');
  if (!is_ipv6(a.host) || inet_pton(AF_INET6, a.host.substr(0, percent).c_str(), &host6) != 1)
    return {};
  // 0 where this machine has no such card; connect() then says that it is no address.
  const auto card =
      percent == std::string::npos ? 0U : if_nametoindex(a.host.substr(percent + 1).c_str());
  return {ipv6(host6, a.port, card)};
}

result<std::vector<socket_address>> look_up(const address& a) {
  auto found = known_addresses(a);
  if (!found.empty()) return found;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int failure = getaddrinfo(a.host.c_str(), std::to_string(a.port).c_str(), &hints, &list);
  if (failure != 0)
    return error(error_code::unreachable,
                 fmt::format("no address found for host '{}': {}", a.host, gai_strerror(failure)));
  for (const addrinfo* i = list; i != nullptr; i = i->ai_next) {
    socket_address one;
    if (i->ai_addrlen > sizeof one.storage) continue;
    std::memcpy(&one.storage, i->ai_addr, i->ai_addrlen);
    one.length = i->ai_addrlen;
    found.push_back(one);
  }
  freeaddrinfo(list);
  if (found.empty())
    return error(error_code::unreachable, fmt::format("no address found for host '{}'", a.host));
  return found;
}

result<unique_fd> open_stream_socket(int family) {
  unique_fd fd(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd)
    return error(error_code::failed,
                 fmt::format("cannot open a socket: {}", system_message(errno)));
  set_stream_options(fd.get());
  return fd;
}

void set_stream_options(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

result<unique_fd> open_listener(const address& at) {
  auto found = look_up(at);
  if (!found) return found.error();
  // A name may stand for this machine's loopback address and for others (Debian's 127.0.1.1 in
  // /etc/hosts): who gives a name other than localhost wants to be reached.
  const bool is_name = known_addresses(at).empty();
  const auto reaches_out = std::ranges::find_if(
      *found, [](const socket_address& one) { return !is_loopback(to_address(one)); });
  if (is_name && reaches_out == found->end())
    return error(error_code::usage,
                 fmt::format("cannot listen on {}: on this machine that name means {}, which no "
                             "other machine reaches; give an address of this machine, or "
                             "0.0.0.0:{} for all of them",
                             to_string(at), to_address(found->front()).host, at.port));
  const socket_address& a = is_name ? *reaches_out : found->front();
  unique_fd fd(::socket(a.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return listen_error(at, errno);
  const int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  // [::] takes IPv4, too, whatever this machine's default is.
  const int off = 0;
  if (a.family() == AF_INET6) setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  if (::bind(fd.get(), a.get(), a.length) != 0 || ::listen(fd.get(), listen_backlog) != 0)
    return listen_error(at, errno);
  return fd;
}

result<name_lookup> name_lookup::start(const address& a) {
  auto s = std::make_shared<shared>();
  s->ready = unique_fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!s->ready)
    return error(error_code::failed,
                 fmt::format("cannot look up host '{}': {}", a.host, system_message(errno)));
  try {
    std::thread([s, a] {
      s->found = std::make_unique<result<std::vector<socket_address>>>(look_up(a));
      s->is_done.store(true, std::memory_order_release);
      const std::uint64_t one = 1;
      [[maybe_unused]] const auto n = ::write(s->ready.get(), &one, sizeof one);
    }).detach();
  } catch (const std::system_error& e) {
    return error(error_code::failed, fmt::format("cannot look up host '{}': {}", a.host, e.what()));
  }
  return name_lookup(std::move(s));
}

result<std::vector<socket_address>> name_lookup::answer() const {
  expects(shared_->is_done.load(std::memory_order_acquire),
          "a name's answer was asked for before it was there");
  return *shared_->found;
}

}  // namespace troupe
