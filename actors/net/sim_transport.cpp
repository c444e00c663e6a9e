#include "troupe/actors/net/sim_transport.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace troupe {

// One end of a connection. Both ends know each other until one of them goes.
class sim_channel final : public channel {
 public:
  sim_channel(sim_network& net, std::string host, address peer)
      : net_(net),
        number_(++net.last_channel_),
        host_(std::move(host)),
        peer_address_(std::move(peer)) {
    net_.channels_.emplace(number_, this);
  }
  ~sim_channel() override { end(); }

  static void join(sim_channel& a, sim_channel& b) {
    a.peer_ = &b;
    b.peer_ = &a;
    a.last_ = b.last_ = a.net_.now_;
  }

  void start(channel_handler& handler) override {
    handler_ = &handler;
    while (!early_.empty() && handler_ == &handler) {
      auto f = std::move(early_.front());
      early_.erase(early_.begin());
      schedule_delivery(net_.now_, std::move(f));
    }
    if (!early_end_.empty()) notify_closed(net_.now_, std::exchange(early_end_, {}));
  }

  void send(outgoing_frame frame) override {
    if (peer_ == nullptr || is_ended_) return;
    ++net_.frames_;
    if (net_.filter_ && !net_.filter_(frame)) return;
    if (net_.forger_)
      for (auto& forged : net_.forger_(frame)) travel(std::move(forged));
    travel(std::move(frame));
  }

  std::size_t unsent_bytes() const override { return 0; }
  void on_writable(std::size_t, std::function<void()>) override {}
  void trust_peer() override {}
  void configure(const channel_options&) override {}
  void close() override { end(); }
  void abort() override { end(); }
  const address& peer_address() const override { return peer_address_; }
  const std::string& host() const { return host_; }
  sim_channel* peer() const { return peer_; }

  // The connection is broken; this end learns of it. What would arrive later than that is lost.
  void break_off(const std::string& why) {
    if (peer_ != nullptr) peer_->peer_ = nullptr;
    peer_ = nullptr;
    breaks_at_ = net_.now_ + net_.draw_delay();
    notify_closed(breaks_at_ + net_.draw_delay(), why);
  }

 private:
  // Order is kept by delivering no earlier than what went before.
  void travel(outgoing_frame frame) {
    const auto& c = net_.condition(host_, peer_->host_);
    if (c.is_blocked) {
      held_.push_back(std::move(frame));
      return;
    }
    if (net_.draw(c.lost_one_in)) return;
    const auto extra =
        c.slow_ns > 0
            ? static_cast<std::int64_t>(net_.random_() % static_cast<std::uint64_t>(c.slow_ns))
            : 0;
    const auto when = std::max(peer_->last_ + 1, net_.now_ + net_.draw_delay() + extra);
    auto shared = std::make_shared<outgoing_frame>(std::move(frame));
    if (net_.draw(c.doubled_one_in))
      peer_->schedule_delivery(when, std::make_shared<outgoing_frame>(*shared));
    // One that is overtaken comes after what is sent next.
    if (net_.draw(c.reordered_one_in))
      return peer_->schedule_delivery(when + 2 * net_.options_.delay_max_ns, std::move(shared));
    peer_->last_ = when;
    peer_->schedule_delivery(when, std::move(shared));
  }

 public:
  void go_on() {
    for (auto& f : std::exchange(held_, {}))
      if (peer_ != nullptr && !is_ended_) travel(std::move(f));
  }

 private:
  void schedule_delivery(std::int64_t when, std::shared_ptr<outgoing_frame> f) {
    net_.at(when, host_, [this, alive = std::weak_ptr<bool>(alive_), f] {
      if (!alive.expired()) deliver(f);
    });
  }

  void deliver(const std::shared_ptr<outgoing_frame>& f) {
    if (is_ended_ || is_cut_short_) return;
    is_cut_short_ = breaks_at_ >= 0 && net_.now_ > breaks_at_;
    if (handler_ == nullptr) {
      early_.push_back(f);
      return;
    }
    std::vector<std::uint64_t> aligned((f->header.size() + 7) / 8);
    if (!f->header.empty()) std::memcpy(aligned.data(), f->header.data(), f->header.size());
    const auto header = std::as_bytes(std::span(aligned)).first(f->header.size());
    std::span<std::byte> to;
    const bool is_lost = is_cut_short_;
    if (f->length > 0) {
      to = handler_->payload_destination(f->kind, header, static_cast<std::uint32_t>(f->length));
      if (!to.empty())
        std::memcpy(to.data(), std::as_const(f->payload).bytes().data() + f->offset,
                    is_lost ? f->length / 2 : f->length);
    }
    if (is_lost) return;
    handler_->on_frame(
        {f->kind, f->sequence, f->ack, header, to, static_cast<std::uint32_t>(f->length)});
  }

  void notify_closed(std::int64_t when, const std::string& why) {
    net_.at(when, host_, [this, alive = std::weak_ptr<bool>(alive_), why] {
      if (alive.expired() || is_ended_) return;
      if (handler_ == nullptr) {
        early_end_ = why;
        return;
      }
      is_ended_ = true;
      handler_->on_closed(error(error_code::unreachable, why), frame_fault::none);
    });
  }

  void end() {
    net_.channels_.erase(number_);
    is_ended_ = true;
    alive_.reset();
    if (peer_ == nullptr) return;
    auto* other = std::exchange(peer_, nullptr);
    other->peer_ = nullptr;
    other->notify_closed(std::max(other->last_ + 1, net_.now_ + net_.draw_delay()),
                         "the peer closed the connection");
  }

  sim_network& net_;
  const std::uint64_t number_;
  std::string host_;
  address peer_address_;
  sim_channel* peer_ = nullptr;
  channel_handler* handler_ = nullptr;
  std::vector<std::shared_ptr<outgoing_frame>> early_;
  std::vector<outgoing_frame> held_;  // by a condition
  std::string early_end_;             // it ended before anybody listened
  std::int64_t last_ = 0;             // when the latest frame for this end arrives
  std::int64_t breaks_at_ = -1;       // what arrives later is lost; -1: the connection is whole
  bool is_cut_short_ = false;         // the first lost frame has been seen
  bool is_ended_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

sim_network::sim_network(std::uint64_t seed, const sim_options& options)
    : random_(seed), options_(options) {}

sim_network::~sim_network() {
  // Events own channels, and a channel that goes wants to tell its peer.
  is_over_ = true;
  auto all = std::move(events_);
  all.clear();
}

std::int64_t sim_network::draw_delay() {
  const auto range = static_cast<std::uint64_t>(options_.delay_max_ns - options_.delay_min_ns + 1);
  return options_.delay_min_ns + static_cast<std::int64_t>(random_() % range);
}

const sim_condition& sim_network::condition(const std::string& from, const std::string& to) const {
  static const sim_condition none;
  const auto at = conditions_.find({from, to});
  return at == conditions_.end() ? none : at->second;
}

void sim_network::set_condition(const std::string& from, const std::string& to,
                                const sim_condition& c) {
  conditions_.insert_or_assign({from, to}, c);
  if (c.is_blocked) return;
  const auto all = channels_;
  for (auto [number, channel] : all)
    if (channels_.contains(number) && channel->host() == from && channel->peer() != nullptr &&
        channel->peer()->host() == to)
      channel->go_on();
}

std::uint64_t sim_network::at(std::int64_t when, const std::string& host,
                              std::function<void()> run) {
  if (is_over_) return 0;
  const auto id = ++last_event_;
  when = std::max(when, now_);
  events_.emplace(event_key{when, id}, event{host, std::move(run)});
  times_.emplace(id, when);
  return id;
}

void sim_network::run_one() {
  auto first = events_.begin();
  auto [key, e] = std::move(*first);
  events_.erase(first);
  now_ = std::max(now_, key.first);
  if (const auto kept = frozen_.find(e.host); kept != frozen_.end() && !dead_.contains(e.host)) {
    kept->second.emplace(key, std::move(e));
    return;
  }
  times_.erase(key.second);
  running_host_ = e.host;
  if (!dead_.contains(e.host)) e.run();
}

void sim_network::thaw(const std::string& host) {
  if (const auto kept = frozen_.extract(host)) events_.merge(kept.mapped());
}

void sim_network::kill(const std::string& host) {
  dead_.insert(host);
  std::erase_if(listeners_, [&](const auto& l) { return l.second.host == host; });
  const auto all = channels_;
  for (auto [number, c] : all)
    if (c->host() != host && c->peer() != nullptr && c->peer()->host() == host)
      c->break_off("connection reset by peer");
}

void sim_network::cut(const std::string& a, const std::string& b) {
  const auto all = channels_;
  for (auto [number, c] : all) {
    if (c->peer() == nullptr || c->host() != a || c->peer()->host() != b) continue;
    auto* other = c->peer();
    c->break_off("the network was cut");
    other->break_off("the network was cut");
  }
}

sim_transport::sim_transport(sim_network& net, std::string host)
    : net_(net), host_(std::move(host)) {}

sim_transport::~sim_transport() { stop_listening(); }

result<address> sim_transport::listen(const address& at, accept_handler on_accept) {
  port_ = at.port != 0 ? at.port : ++net_.last_port_;
  if (net_.listeners_.contains(port_)) return error(error_code::usage, "port in use");
  net_.listeners_.emplace(port_, sim_network::listener{host_, std::move(on_accept)});
  return address{host_, port_};
}

void sim_transport::stop_listening() {
  if (port_ != 0) net_.listeners_.erase(port_);
  port_ = 0;
}

void sim_transport::connect(const address& to, std::int64_t timeout_ns,
                            connect_handler on_connected) {
  auto& net = net_;
  auto host = host_;
  net.at(
      net.now_ + net.draw_delay(), host,
      [&net, host, to, timeout_ns, on_connected = std::move(on_connected)] {
        auto at = net.listeners_.find(to.port);
        if (at == net.listeners_.end())
          return on_connected(
              error(error_code::unreachable, "connection to " + to_string(to) + " was refused"));
        if (net.condition(host, at->second.host).is_blocked ||
            net.condition(at->second.host, host).is_blocked) {
          net.at(net.now_ + timeout_ns, host, [on_connected] {
            on_connected(error(error_code::timed_out, "no answer in time"));
          });
          return;
        }
        auto mine = std::make_unique<sim_channel>(net, host, to);
        auto theirs = std::make_unique<sim_channel>(net, at->second.host, address{host, 1});
        sim_channel::join(*mine, *theirs);
        // The accepting side learns of it as its own event.
        auto handed = std::make_shared<std::unique_ptr<channel>>(std::move(theirs));
        net.at(net.now_ + 1, at->second.host, [&net, port = to.port, handed] {
          auto l = net.listeners_.find(port);
          if (l != net.listeners_.end()) l->second.accept(std::move(*handed));
        });
        on_connected(result<std::unique_ptr<channel>>(std::unique_ptr<channel>(std::move(mine))));
      });
}

timer_id sim_transport::after(std::int64_t delay_ns, std::function<void()> fn) {
  return timer_id{net_.at(net_.now_ + delay_ns, host_, std::move(fn))};
}

void sim_transport::cancel(timer_id id) {
  auto at = net_.times_.find(static_cast<std::uint64_t>(id));
  if (at == net_.times_.end()) return;
  const sim_network::event_key key{at->second, at->first};
  net_.events_.erase(key);
  if (const auto kept = net_.frozen_.find(host_); kept != net_.frozen_.end())
    kept->second.erase(key);
  net_.times_.erase(at);
}

}  // namespace troupe
