#pragma once
// Membership machines over a simulated network, in one thread, from a seed.
//
// A connection joins two lives of processes. On it messages are delayed (so reordered), lost and
// doubled, which is worse than any transport may be. Processes crash, freeze, restart; the network
// is cut in two and healed. A frozen process takes its events when it thaws.

#include "troupe/runtime/cluster/membership.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace troupe::test {

struct network_faults {
  std::int64_t delay_max_ns = 10'000'000;
  double loss = 0;
  double duplicates = 0;
  std::int64_t tick_jitter_ns = 10'000'000;
};

class cluster_simulation {
 public:
  static constexpr std::int64_t ms = 1'000'000;

  struct seen_event {
    std::int64_t at_ns = 0;
    std::size_t by = 0;
    membership_action_kind kind{};
    node_id about{};
    std::string text;
    node_id observer{};
  };

  struct process {
    std::unique_ptr<membership> member;
    std::string address;
    bool is_wildcard = false;            // tells its address when it has met somebody
    std::string announces;               // something else than its address; "": its address
    std::set<std::size_t> cannot_reach;  // by a dial
    bool is_running = false;
    bool is_frozen = false;
    int side = 0;  // of the cut
    std::uint64_t start = 0;
    std::vector<std::function<void()>> backlog;
    std::set<node_id> connected;  // links whose connection stands, as seen from here
    std::set<node_id> linking;    // links that are being redialled
  };

  cluster_simulation(std::size_t size, std::uint64_t seed, network_faults f = {})
      : faults(f), random_(seed), processes(size) {
    for (std::size_t i = 0; i < size; ++i)
      processes[i].address = "10.0.0.1:" + std::to_string(7000 + i);
  }

  network_faults faults;
  std::vector<seen_event> events;
  std::map<std::pair<std::size_t, std::string>, std::size_t> dials;  // by whom, where to: how many
  std::set<std::string> leads_to_itself;  // whoever dials there meets itself

  std::int64_t now() const { return now_; }
  std::uint64_t pick(std::uint64_t n) { return random_() % n; }
  process& at(std::size_t i) { return processes[i]; }
  std::size_t size() const { return processes.size(); }
  membership& member(std::size_t i) { return *processes[i].member; }

  // A process comes up and, as with discovery, knows the addresses of all that run.
  void start(std::size_t i) {
    std::vector<std::size_t> running;
    for (std::size_t j = 0; j < processes.size(); ++j)
      if (j != i && processes[j].is_running) running.push_back(j);
    start(i, running);
  }
  // Or those of some, as with --join.
  void start(std::size_t i, const std::vector<std::size_t>& seeds) {
    auto& p = processes[i];
    p.is_running = true;
    p.is_frozen = false;
    member_info self;
    self.id = fresh_id();
    self.start_time_ns = p.start = static_cast<std::uint64_t>(now_);
    self.address = !p.announces.empty() ? p.announces : p.is_wildcard ? "" : p.address;
    self.host = "h";
    self.pid = static_cast<std::uint32_t>(100 + i);
    p.member = std::make_unique<membership>(self, membership_options{}, now_);
    p.connected.clear();
    p.linking.clear();
    for (const auto j : seeds) p.member->add_seed(processes[j].address, true, now_);
    schedule_tick(i);
    act(i);
  }
  void crash(std::size_t i) {
    auto& p = processes[i];
    p.is_running = p.is_frozen = false;
    p.backlog.clear();
    drop_links(i);
  }
  void freeze(std::size_t i) { processes[i].is_frozen = processes[i].is_running; }
  void thaw(std::size_t i) {
    auto& p = processes[i];
    if (!p.is_running || !p.is_frozen) return;
    p.is_frozen = false;
    auto backlog = std::exchange(p.backlog, {});
    if (pick(2) == 0) tick(i);
    for (auto& e : backlog) e();
  }
  void cut(std::size_t i, int side) { processes[i].side = side; }
  void leave(std::size_t i) {
    member(i).leave("done");
    act(i);
    after(20 * ms, [this, i] { crash(i); });
  }
  // Both ends see the connection end; the links redial.
  void reset_connection(std::size_t i, std::size_t j) {
    if (!processes[i].is_running || !processes[j].is_running) return;
    const auto a = id(i), b = id(j);
    lose(i, b);
    lose(j, a);
  }
  node_id id(std::size_t i) const { return processes[i].member->self().id; }

  void run(std::int64_t duration_ns) {
    const auto end = now_ + duration_ns;
    while (!queue_.empty() && queue_.begin()->first.first <= end) {
      auto node = queue_.extract(queue_.begin());
      now_ = node.key().first;
      node.mapped()();
    }
    now_ = end;
  }

  // Every running process sees exactly the running ones, alive.
  bool all_agree() const {
    std::set<node_id> running;
    for (std::size_t i = 0; i < processes.size(); ++i)
      if (processes[i].is_running) running.insert(id(i));
    for (const auto& p : processes) {
      if (!p.is_running) continue;
      if (p.member->has_ended()) return false;
      std::set<node_id> seen{p.member->self().id};
      for (const auto& m : p.member->members()) {
        if (m.state == member_state::alive) seen.insert(m.id);
        if (m.state == member_state::unreachable) return false;
      }
      if (seen != running) return false;
    }
    return true;
  }
  std::size_t count(membership_action_kind kind) const {
    std::size_t n = 0;
    for (const auto& e : events) n += e.kind == kind;
    return n;
  }

 private:
  node_id fresh_id() { return node_id{random_() | 1}; }
  std::int64_t delay() {
    return 1 + static_cast<std::int64_t>(pick(static_cast<std::uint64_t>(faults.delay_max_ns)));
  }
  bool chance(double p) { return static_cast<double>(random_() >> 11) * 0x1p-53 < p; }
  bool can_talk(std::size_t i, std::size_t j) const {
    return processes[i].side == processes[j].side;
  }
  std::size_t owner(node_id n) const {
    for (std::size_t i = 0; i < processes.size(); ++i)
      if (processes[i].is_running && id(i) == n) return i;
    return processes.size();
  }

  void after(std::int64_t delay_ns, std::function<void()> f) {
    queue_.emplace(std::pair(now_ + delay_ns, sequence_++), std::move(f));
  }
  // An event of the life `n`, on its process: waits while that is frozen, is lost with it.
  void at_life(std::int64_t delay_ns, node_id n, std::function<void(std::size_t)> f) {
    after(delay_ns, [this, n, f = std::move(f)] { deliver(n, f); });
  }
  void deliver(node_id n, const std::function<void(std::size_t)>& f) {
    const auto i = owner(n);
    if (i == processes.size()) return;
    if (processes[i].is_frozen) {
      processes[i].backlog.push_back([this, n, f] { deliver(n, f); });
      return;
    }
    f(i);
    if (processes[i].is_running && id(i) == n) act(i);
  }

  void schedule_tick(std::size_t i) {
    const auto life = id(i);
    after(member_tick_ns + static_cast<std::int64_t>(
                               pick(static_cast<std::uint64_t>(faults.tick_jitter_ns) + 1)),
          [this, i, life] {
            if (!processes[i].is_running || id(i) != life) return;
            if (!processes[i].is_frozen) tick(i);
            if (processes[i].is_running) schedule_tick(i);
          });
  }
  void tick(std::size_t i) {
    member(i).tick(now_);
    act(i);
  }

  void drop_links(std::size_t i) {
    const auto self = id(i);
    for (std::size_t j = 0; j < processes.size(); ++j) {
      if (j == i || !processes[j].is_running || !processes[j].connected.contains(self)) continue;
      if (can_talk(i, j)) lose(j, self);  // else its peers learn nothing
    }
    processes[i].connected.clear();
    processes[i].linking.clear();
  }
  // Process j sees its connection to `peer` end, soon, and its link redials.
  void lose(std::size_t j, node_id peer) {
    at_life(pick(3 * ms), id(j), [this, peer](std::size_t i) {
      if (processes[i].connected.erase(peer) == 0) return;
      processes[i].linking.insert(peer);
      member(i).link_lost(peer, now_);
      const auto* info = member(i).find(peer);
      if (info == nullptr) return;
      redial(i, peer, raw(id(i)) < raw(peer) ? 0 : 20 * ms);
    });
  }
  void redial(std::size_t i, node_id peer, std::int64_t wait_ns) {
    at_life(wait_ns, id(i), [this, peer](std::size_t k) {
      if (!processes[k].linking.contains(peer)) return;
      dial(k, peer, member(k).address_of(peer), true);
    });
  }

  void dial(std::size_t i, node_id expected, const std::string& address, bool is_redial) {
    const auto self = id(i);
    ++dials[{i, address}];
    std::size_t to = 0;
    while (to < processes.size() && processes[to].address != address) ++to;
    const auto fail = [=, this](std::int64_t wait, dial_failure why) {
      at_life(wait, self, [=, this](std::size_t k) {
        member(k).dial_failed(expected, address, why, now_, "no route to host");
        if (is_redial && processes[k].linking.contains(expected)) redial(k, expected, 100 * ms);
      });
    };
    if (leads_to_itself.contains(address)) return fail(delay(), dial_failure::itself);
    if (processes[i].cannot_reach.contains(to)) return fail(delay(), dial_failure::other);
    if (to == processes.size() || (can_talk(i, to) && !processes[to].is_running))
      return fail(delay(), dial_failure::refused);
    if (!can_talk(i, to) || processes[to].is_frozen) return fail(300 * ms, dial_failure::other);
    const auto peer = id(to);
    if (raw(expected) != 0 && expected != peer) fail(delay(), dial_failure::other_life);
    at_life(delay(), peer, [this, self, address](std::size_t k) {
      const auto j = owner(self);
      if (j == processes.size()) return;
      processes[j].connected.insert(id(k));
      at_life(0, self, [this, n = id(k), address](std::size_t dialler) {
        connect_end(dialler, n, address);
      });
      processes[k].connected.insert(self);
      connect_end(k, self, "");
    });
  }
  void connect_end(std::size_t k, node_id peer, const std::string& dialled) {
    if (!processes[k].connected.contains(peer)) return;  // lost again
    processes[k].linking.erase(peer);
    auto& p = processes[k];
    if (p.is_wildcard && p.announces.empty()) member(k).set_address(p.address, now_);
    member(k).linked(peer, member_kind::node, now_, dialled, dialled);
  }

  void send(std::size_t i, node_id to, std::function<void(std::size_t, node_id)> f) {
    if (!processes[i].connected.contains(to)) return;
    const auto j = owner(to);
    if (j == processes.size()) return;
    const auto from = id(i);
    if (!processes[j].connected.contains(from)) {
      // The other end is closed already: the sender learns of it.
      if (can_talk(i, j)) lose(i, to);
      return;
    }
    for (int copies = chance(faults.duplicates) ? 2 : 1; copies > 0; --copies) {
      if (!can_talk(i, j) || chance(faults.loss)) continue;
      at_life(delay(), to, [this, from, f](std::size_t k) {
        if (!processes[k].connected.contains(from)) return;
        member(k).heard(from, now_);
        f(k, from);
      });
    }
  }

  void act(std::size_t i) {
    for (auto& a : member(i).take_actions()) act(i, a);
  }
  void act(std::size_t i, const membership_action& a) {
    using kind = membership_action_kind;
    switch (a.kind) {
      case kind::connect: return dial(i, a.node, a.text, false);
      case kind::close: {
        processes[i].linking.erase(a.node);
        if (processes[i].connected.erase(a.node) == 0) return;
        if (const auto j = owner(a.node); j != processes.size() && can_talk(i, j)) lose(j, id(i));
        return;
      }
      case kind::send_view:
        return send(i, a.node, [this, v = member(i).view()](std::size_t k, node_id from) {
          member(k).on_view(from, v, now_);
        });
      case kind::send_heartbeat: return send(i, a.node, [](std::size_t, node_id) {});
      case kind::send_fence:
        return send(i, a.node, [this, c = a.claim](std::size_t k, node_id from) {
          member(k).on_fenced(from, c, now_);
        });
      case kind::send_leave:
        return send(i, a.node, [this, t = a.text](std::size_t k, node_id from) {
          member(k).on_leave(from, t, now_);
        });
      case kind::check_process: {
        const auto gone = owner(a.node) == processes.size();
        if (gone)
          at_life(1, id(i), [this, n = a.node](std::size_t k) { member(k).process_gone(n, now_); });
        return;
      }
      case kind::rejoin: {
        events.push_back({now_, i, a.kind, id(i), a.text, id(i)});
        drop_links(i);
        auto& p = processes[i];
        p.member = std::make_unique<membership>(
            p.member->reborn(fresh_id(), static_cast<std::uint64_t>(now_), now_));
        schedule_tick(i);
        act(i);
        return;
      }
      default:
        events.push_back(
            {now_, i, a.kind, a.node, a.kind == kind::conflict ? a.text : a.about.reason, id(i)});
    }
  }

  static constexpr std::int64_t member_tick_ns = 50'000'000;
  std::mt19937_64 random_;
  std::vector<process> processes;
  std::map<std::pair<std::int64_t, std::uint64_t>, std::function<void()>> queue_;
  std::uint64_t sequence_ = 0;
  std::int64_t now_ = 1'000'000'000;
};

}  // namespace troupe::test
