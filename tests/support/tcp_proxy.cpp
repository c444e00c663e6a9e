#include "tests/support/tcp_proxy.hpp"

#include "tests/support/wait.hpp"
#include "troupe/actors/net/tcp_socket.hpp"
#include "troupe/runtime/wire/frame.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <list>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <thread>
#include <vector>

namespace troupe::test {
namespace {

constexpr std::size_t read_bytes = 64 * 1024;

struct connection {
  unique_fd caller, target;
  int index = 0;

  void end() const {
    ::shutdown(caller.get(), SHUT_RDWR);
    ::shutdown(target.get(), SHUT_RDWR);
  }
};

void make_blocking(int fd) { fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK); }

bool send_all(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
  return true;
}

// Bytes of the frame at the beginning of `bytes`: 0 if more are needed to know; all of them if it
// is none.
std::size_t frame_at(std::span<const std::byte> bytes, bool& is_frame) {
  is_frame = true;
  if (bytes.size() < prelude_bytes) return 0;
  std::uint32_t words[4];
  std::memcpy(words, bytes.data(), sizeof words);
  is_frame = words[0] == frame_magic && words[2] <= control_header_max && words[3] <= payload_max;
  if (!is_frame) return bytes.size();
  // The payload, which is not on the wire then.
  const bool stays = (std::to_integer<unsigned>(bytes[7]) & flag_payload_stays) != 0;
  const std::size_t size = prelude_bytes + words[2] + (stays ? 0 : words[3]);
  return size <= bytes.size() ? size : 0;
}

}  // namespace

struct tcp_proxy::state {
  address target, here;
  unique_fd listener;
  std::thread acceptor;
  mutable std::mutex mutex;  // of everything below
  std::condition_variable changed;
  std::list<connection> connections;
  std::vector<std::thread> pumps;
  std::vector<proxy_rule> rules;
  std::size_t rules_applied = 0;
  std::uint64_t releases = 0;
  bool refuses = false;
  bool ends = false;
  std::atomic<std::uint64_t> frames[2]{}, bytes[2]{};

  void accept_all();
  void pump(const connection& c, proxy_direction d);
  bool forward(const connection& c, proxy_direction d, std::span<std::byte> unit,
               std::uint64_t frame, std::uint64_t position);
  std::optional<proxy_rule> take_rule(const connection& c, proxy_direction d, std::uint64_t frame,
                                      std::uint64_t position, std::size_t size);
  void hold(std::chrono::milliseconds time);
};

void tcp_proxy::state::accept_all() {
  for (;;) {
    unique_fd caller(::accept(listener.get(), nullptr, nullptr));
    std::unique_lock lock(mutex);
    if (ends) return;
    if (!caller || refuses) continue;
    const auto to = known_addresses(target);
    unique_fd there(::socket(to.front().family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::connect(there.get(), to.front().get(), to.front().length) != 0) continue;
    set_stream_options(caller.get());
    set_stream_options(there.get());
    connections.push_back(
        {std::move(caller), std::move(there), static_cast<int>(connections.size())});
    const connection& c = connections.back();
    for (const auto d : {proxy_direction::to_target, proxy_direction::from_target})
      pumps.emplace_back([this, &c, d] { pump(c, d); });
  }
}

void tcp_proxy::state::pump(const connection& c, proxy_direction d) {
  const int from = d == proxy_direction::to_target ? c.caller.get() : c.target.get();
  const int to = d == proxy_direction::to_target ? c.target.get() : c.caller.get();
  std::vector<std::byte> pending;
  std::uint64_t frame = 0, position = 0;
  std::vector<std::byte> piece(read_bytes);
  for (;;) {
    const auto n = ::recv(from, piece.data(), piece.size(), 0);
    if (n <= 0) break;
    pending.insert(pending.end(), piece.begin(), piece.begin() + n);
    std::size_t done = 0;
    bool is_frame = true;
    for (std::size_t size; (size = frame_at(std::span(pending).subspan(done), is_frame)) > 0;
         done += size) {
      if (!forward(c, d, std::span(pending).subspan(done, size), frame, position)) return;
      position += size;
      frame += is_frame ? 1 : 0;
    }
    pending.erase(pending.begin(), pending.begin() + static_cast<std::ptrdiff_t>(done));
  }
  // A part of a frame that nothing follows goes through as it is.
  if (forward(c, d, pending, frame, position)) ::shutdown(to, SHUT_WR);
}

std::optional<proxy_rule> tcp_proxy::state::take_rule(const connection& c, proxy_direction d,
                                                      std::uint64_t frame, std::uint64_t position,
                                                      std::size_t size) {
  std::lock_guard lock(mutex);
  for (auto r = rules.begin(); r != rules.end(); ++r) {
    if (r->direction != d || (r->connection >= 0 && r->connection != c.index)) continue;
    const auto& p = r->point;
    const bool is_here = p.counts_frames ? p.index == frame && p.offset < size
                                         : p.index >= position && p.index < position + size;
    if (!is_here) continue;
    proxy_rule found = *r;
    if (!p.counts_frames) found.point.offset = static_cast<std::size_t>(p.index - position);
    rules.erase(r);
    ++rules_applied;
    return found;
  }
  return std::nullopt;
}

// False when this direction has ended.
bool tcp_proxy::state::forward(const connection& c, proxy_direction d, std::span<std::byte> unit,
                               std::uint64_t frame, std::uint64_t position) {
  const int to = d == proxy_direction::to_target ? c.target.get() : c.caller.get();
  auto write = [&](std::span<const std::byte> bytes_to_go) {
    bytes[static_cast<std::size_t>(d)] += bytes_to_go.size();
    return send_all(to, bytes_to_go);
  };
  std::size_t gone = 0;
  int copies = 1;
  while (const auto rule = take_rule(c, d, frame, position, unit.size())) {
    const std::size_t at = rule->point.offset;
    switch (rule->action) {
      case proxy_action::flip: unit[at] ^= std::byte{0x10}; break;
      case proxy_action::repeat: copies = 2; break;
      case proxy_action::swallow: copies = 0; break;
      case proxy_action::hold:
        if (at > gone && !write(unit.subspan(gone, at - gone))) return false;
        gone = std::max(gone, at);
        hold(rule->hold);
        break;
      case proxy_action::cut:
      case proxy_action::half_cut:
        if (at > gone) write(unit.subspan(gone, at - gone));
        if (rule->action == proxy_action::cut) {
          c.end();
        } else {
          ::shutdown(to, SHUT_WR);
        }
        return false;
    }
  }
  if (unit.size() >= prelude_bytes)
    frames[static_cast<std::size_t>(d)] += static_cast<std::uint64_t>(copies);
  if (copies == 0) return true;
  return write(unit.subspan(gone)) && (copies == 1 || write(unit));
}

void tcp_proxy::state::hold(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex);
  changed.wait_for(lock, time, [this, before = releases] { return ends || releases != before; });
}

tcp_proxy::tcp_proxy(const address& target) : state_(std::make_unique<state>()) {
  state_->target = target;
  auto fd = open_listener({"127.0.0.1", 0});
  if (!fd) throw std::runtime_error(fd.error().message());
  if (known_addresses(target).empty())
    throw std::runtime_error("the proxy's target is not numeric");
  state_->listener = std::move(*fd);
  make_blocking(state_->listener.get());
  state_->here = local_address_of(state_->listener.get());
  state_->acceptor = std::thread([s = state_.get()] { s->accept_all(); });
}

tcp_proxy::~tcp_proxy() {
  {
    std::lock_guard lock(state_->mutex);
    state_->ends = true;
    for (const auto& c : state_->connections) c.end();
  }
  state_->changed.notify_all();
  ::shutdown(state_->listener.get(), SHUT_RDWR);
  const test::waiting_for named("the end of the proxy's threads");
  state_->acceptor.join();
  for (auto& t : state_->pumps) t.join();
}

address tcp_proxy::listens_on() const { return state_->here; }

void tcp_proxy::add(const proxy_rule& rule) {
  std::lock_guard lock(state_->mutex);
  state_->rules.push_back(rule);
}

void tcp_proxy::release() {
  {
    std::lock_guard lock(state_->mutex);
    ++state_->releases;
  }
  state_->changed.notify_all();
}

void tcp_proxy::drop_connections() {
  std::lock_guard lock(state_->mutex);
  for (const auto& c : state_->connections) c.end();
}

void tcp_proxy::refuse(bool on) {
  std::lock_guard lock(state_->mutex);
  state_->refuses = on;
}

std::size_t tcp_proxy::connections() const {
  std::lock_guard lock(state_->mutex);
  return state_->connections.size();
}

std::size_t tcp_proxy::rules_applied() const {
  std::lock_guard lock(state_->mutex);
  return state_->rules_applied;
}

std::uint64_t tcp_proxy::frames(proxy_direction d) const {
  return state_->frames[static_cast<std::size_t>(d)];
}
std::uint64_t tcp_proxy::bytes(proxy_direction d) const {
  return state_->bytes[static_cast<std::size_t>(d)];
}

}  // namespace troupe::test
