#include "troupe/actors/net/tcp_transport.hpp"

#include "troupe/actors/net/io_loop.hpp"
#include "troupe/actors/net/tcp_connection.hpp"
#include "troupe/actors/net/tcp_socket.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <optional>
#include <unordered_set>
#include <utility>

namespace troupe {
namespace {

constexpr int accepts_per_event = 16;
constexpr std::int64_t pause_without_descriptors_ns = 100'000'000;

class listener final : public io_loop::fd_handler, public std::enable_shared_from_this<listener> {
 public:
  listener(std::shared_ptr<tcp_shared> shared, unique_fd fd, transport::accept_handler on_accept)
      : shared_(std::move(shared)), fd_(std::move(fd)), on_accept_(std::move(on_accept)) {}

  void begin() { shared_->loop.add(fd_.get(), shared_from_this(), true, false); }

  void end() {
    if (!fd_) return;
    shared_->loop.cancel(pause_);
    shared_->loop.remove(fd_.get());
    fd_.reset();
  }

  void on_ready(bool, bool) override {
    for (int i = 0; i < accepts_per_event && fd_; ++i) {
      unique_fd fd(::accept4(fd_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!fd) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) pause();
        if (errno == EINTR || errno == ECONNABORTED) continue;
        return;
      }
      if (shared_->counters.strangers >= shared_->options.strangers_max) {
        // Of those that have said nothing the oldest is the one least likely to prove itself yet:
        // silent connections keep nobody out, nor do many of one origin keep out another one.
        ++shared_->counters.turned_away;
        tcp_connection::turn_one_away(*shared_, peer_of(fd.get()));
      }
      ++shared_->counters.accepted;
      set_stream_options(fd.get());
      on_accept_(std::make_unique<tcp_channel>(tcp_connection::make(shared_, std::move(fd), true)));
    }
  }

 private:
  // Out of descriptors or memory: the waiting connection stays readable, and asking again at once
  // would only burn time.
  void pause() {
    shared_->loop.change(fd_.get(), false, false);
    pause_ = shared_->loop.after(pause_without_descriptors_ns, [weak = weak_from_this()] {
      if (const auto self = weak.lock(); self != nullptr && self->fd_)
        self->shared_->loop.change(self->fd_.get(), true, false);
    });
  }

  std::shared_ptr<tcp_shared> shared_;
  unique_fd fd_;
  transport::accept_handler on_accept_;
  timer_id pause_{};
};

// One connect: looks the name up, then tries its addresses in turn until one answers or the time is
// over.
class connecting final : public io_loop::fd_handler,
                         public std::enable_shared_from_this<connecting> {
 public:
  using set = std::unordered_set<std::shared_ptr<connecting>>;

  connecting(std::shared_ptr<tcp_shared> shared, set& all, const address& to,
             transport::connect_handler fn)
      : shared_(std::move(shared)), all_(all), to_(to), on_connected_(std::move(fn)) {}

  void begin(std::int64_t timeout_ns) {
    timer_ = shared_->loop.after(timeout_ns, [weak = weak_from_this(), timeout_ns] {
      if (const auto self = weak.lock())
        self->finish(error(error_code::timed_out,
                           fmt::format("no answer from {} within {} ms", to_string(self->to_),
                                       timeout_ns / 1'000'000)));
    });
    // No callback from within a call.
    shared_->loop.defer([weak = weak_from_this()] {
      if (const auto self = weak.lock(); self != nullptr && !self->is_over_) self->find_addresses();
    });
  }

  // Without a callback.
  void end() {
    is_over_ = true;
    shared_->loop.cancel(timer_);
    if (lookup_) shared_->loop.remove(lookup_->fd());
    if (fd_) shared_->loop.remove(fd_.get());
    lookup_.reset();
    fd_.reset();
  }

  void on_ready(bool, bool) override {
    const auto self = shared_from_this();
    if (lookup_) {
      auto found = lookup_->answer();
      shared_->loop.remove(lookup_->fd());
      lookup_.reset();
      if (!found) return finish(unreachable(found.error().message()));
      addresses_ = std::move(*found);
      return try_next();
    }
    int failure = 0;
    socklen_t length = sizeof failure;
    if (getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &failure, &length) != 0) failure = errno;
    shared_->loop.remove(fd_.get());
    if (failure == 0) return succeed();
    last_failure_ = system_message(failure);
    try_next();
  }

 private:
  void find_addresses() {
    addresses_ = known_addresses(to_);
    if (!addresses_.empty()) return try_next();
    auto lookup = name_lookup::start(to_);
    if (!lookup) return finish(lookup.error());
    lookup_.emplace(std::move(*lookup));
    shared_->loop.add(lookup_->fd(), shared_from_this(), true, false);
  }

  void try_next() {
    while (next_ < addresses_.size()) {
      const socket_address& a = addresses_[next_++];
      auto opened = open_stream_socket(a.family());
      if (!opened) {
        last_failure_ = opened.error().message();
        continue;
      }
      fd_ = std::move(*opened);
      if (::connect(fd_.get(), a.get(), a.length) == 0) return succeed();
      if (errno == EINPROGRESS)
        return shared_->loop.add(fd_.get(), shared_from_this(), false, true);
      last_failure_ = system_message(errno);
    }
    finish(unreachable(last_failure_));
  }

  void succeed() {
    // With nobody listening on an ephemeral port, Linux may connect a socket to itself.
    if (peer_of(fd_.get()) == local_address_of(fd_.get())) {
      last_failure_ = system_message(ECONNREFUSED);
      fd_.reset();
      return try_next();
    }
    auto connection = tcp_connection::make(shared_, std::move(fd_), false);
    finish(result<std::unique_ptr<channel>>(std::make_unique<tcp_channel>(std::move(connection))));
  }

  error unreachable(const std::string& why) const {
    return {error_code::unreachable, fmt::format("cannot connect to {}: {}", to_string(to_), why)};
  }

  void finish(result<std::unique_ptr<channel>> outcome) {
    const auto self = shared_from_this();
    end();
    all_.erase(self);
    std::exchange(on_connected_, nullptr)(std::move(outcome));
  }

  std::shared_ptr<tcp_shared> shared_;
  set& all_;
  address to_;
  transport::connect_handler on_connected_;
  std::optional<name_lookup> lookup_;
  std::vector<socket_address> addresses_;
  std::size_t next_ = 0;
  unique_fd fd_;
  std::string last_failure_ = "it has no address";
  timer_id timer_{};
  bool is_over_ = false;
};

}  // namespace

struct tcp_transport::state {
  std::shared_ptr<tcp_shared> shared;
  std::vector<std::shared_ptr<listener>> listeners;
  connecting::set pending;
};

tcp_transport::tcp_transport(io_loop& loop, const tcp_options& options)
    : state_(std::make_unique<state>()) {
  state_->shared = std::make_shared<tcp_shared>(loop, options);
}

tcp_transport::~tcp_transport() {
  stop_listening();
  for (const auto& c : state_->pending) c->end();
  const auto connections = state_->shared->connections;
  for (const auto& [raw, weak] : connections)
    if (const auto c = weak.lock()) c->abort();
}

void tcp_transport::protect(protection p) { state_->shared->guard = std::move(p); }

result<address> tcp_transport::listen(const address& at, accept_handler on_accept) {
  auto fd = open_listener(at);
  if (!fd) return fd.error();
  const std::uint16_t port = local_address_of(fd->get()).port;
  auto l = std::make_shared<listener>(state_->shared, std::move(*fd), std::move(on_accept));
  l->begin();
  state_->listeners.push_back(std::move(l));
  return address{at.host, port};
}

void tcp_transport::stop_listening() {
  for (const auto& l : state_->listeners) l->end();
  state_->listeners.clear();
}

void tcp_transport::connect(const address& to, std::int64_t timeout_ns,
                            connect_handler on_connected) {
  auto c =
      std::make_shared<connecting>(state_->shared, state_->pending, to, std::move(on_connected));
  state_->pending.insert(c);
  c->begin(timeout_ns);
}

std::int64_t tcp_transport::now_ns() const { return state_->shared->loop.now_ns(); }
timer_id tcp_transport::after(std::int64_t delay_ns, std::function<void()> fn) {
  return state_->shared->loop.after(delay_ns, std::move(fn));
}
void tcp_transport::cancel(timer_id id) { state_->shared->loop.cancel(id); }
const fault_counters& tcp_transport::faults() const { return state_->shared->faults; }
const tcp_counters& tcp_transport::counters() const { return state_->shared->counters; }

}  // namespace troupe
