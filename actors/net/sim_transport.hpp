#pragma once
// A network in memory with a virtual clock: many transports in one thread, every delay drawn from a
// seed.
//
// Links, members and jobs run over it unchanged. Frames of a channel keep their order (TR-1), those
// of different channels overtake each other. Nothing happens but in run_one(), and the same seed
// and the same calls give the same history.
//
// Threading: one thread.
//
// SI-1  A callback never comes from within a call, as actors/net/transport.hpp asks.
// SI-2  A connection that is cut or whose peer is killed may lose what was on its way, from some
//       frame on, and half of that frame may have arrived.
// SI-4  A condition between two hosts may hold frames back until it ends (what a network does to
//       TCP), or lose, double and reorder them, which breaks TR-1 on purpose: links have to bear
//       that, too.
// SI-3  Time stands still while a callback runs and goes on to the next event's time in run_one().

#include "troupe/actors/net/transport.hpp"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>

namespace troupe {

struct sim_options {
  std::int64_t delay_min_ns = 10'000;
  std::int64_t delay_max_ns = 400'000;
};

// What the network does to frames from one host to another.
struct sim_condition {
  bool is_blocked = false;        // nothing arrives, nor can a connection be made, until it ends
  std::int64_t slow_ns = 0;       // more delay, up to this much
  std::uint32_t lost_one_in = 0;  // 0: none
  std::uint32_t doubled_one_in = 0;
  std::uint32_t reordered_one_in = 0;
};

class sim_network {
 public:
  using filter = std::function<bool(const outgoing_frame&)>;
  using forger = std::function<std::vector<outgoing_frame>(const outgoing_frame&)>;

  explicit sim_network(std::uint64_t seed, const sim_options& options = {});
  ~sim_network();
  sim_network(const sim_network&) = delete;
  sim_network& operator=(const sim_network&) = delete;

  std::int64_t now_ns() const noexcept { return now_; }
  bool has_events() const noexcept { return !events_.empty(); }
  std::int64_t next_event_ns() const { return std::max(now_, events_.begin()->first.first); }
  // The earliest event; time goes on to it.
  void run_one();
  // Whose event ran last, or is running.
  const std::string& running_host() const noexcept { return running_host_; }
  // Time will stop there, even if nothing happens.
  void stop_at(std::int64_t when) {
    at(when, "", [] {});
  }

  // The process at `host` is gone: its connections break, its timers and listeners with them.
  void kill(const std::string& host);
  // The process at `host` stands still: nothing reaches it and its timers do not fire until thaw(),
  // when all that has come due happens at once, in order.
  void freeze(const std::string& host) { frozen_.try_emplace(host); }
  void thaw(const std::string& host);
  // Breaks every connection between two hosts; new ones may be made.
  void cut(const std::string& a, const std::string& b);
  // From `from` to `to`, in that direction only; the default condition ends it, and what was held
  // back goes on.
  void set_condition(const std::string& from, const std::string& to, const sim_condition& c);
  // Sees every frame before it travels; false: it never arrives (and TR-1 is broken on purpose).
  void set_filter(filter f) { filter_ = std::move(f); }
  // Sees every frame before it travels; what it returns travels before it.
  void set_forger(forger f) { forger_ = std::move(f); }
  std::uint64_t frames() const noexcept { return frames_; }

 private:
  friend class sim_transport;
  friend class sim_channel;
  struct listener {
    std::string host;
    transport::accept_handler accept;
  };
  using event_key = std::pair<std::int64_t, std::uint64_t>;
  struct event {
    std::string host;  // whose event it is
    std::function<void()> run;
  };

  std::int64_t draw_delay();
  bool draw(std::uint32_t one_in) { return one_in != 0 && random_() % one_in == 0; }
  const sim_condition& condition(const std::string& from, const std::string& to) const;
  std::uint64_t at(std::int64_t when, const std::string& host, std::function<void()> run);

  std::mt19937_64 random_;
  sim_options options_;
  std::int64_t now_ = 1'000'000'000;
  std::uint64_t last_event_ = 0;
  std::string running_host_;
  std::map<event_key, event> events_;
  std::map<std::uint64_t, std::int64_t> times_;  // event -> time, to cancel
  std::map<std::uint16_t, listener> listeners_;  // by port
  std::uint16_t last_port_ = 1000;
  std::map<std::string, std::map<event_key, event>> frozen_;  // with what has come due meanwhile
  std::set<std::string> dead_;
  std::map<std::pair<std::string, std::string>, sim_condition> conditions_;
  // By number: the order must not hang on addresses.
  std::map<std::uint64_t, class sim_channel*> channels_;
  std::uint64_t last_channel_ = 0;
  bool is_over_ = false;
  filter filter_;
  forger forger_;
  std::uint64_t frames_ = 0;
};

// One process's end of the network. `host` names the process.
class sim_transport final : public transport {
 public:
  sim_transport(sim_network& net, std::string host);
  ~sim_transport() override;

  result<address> listen(const address& at, accept_handler on_accept) override;
  void stop_listening() override;
  void connect(const address& to, std::int64_t timeout_ns, connect_handler on_connected) override;
  std::int64_t now_ns() const override { return net_.now_ns(); }
  timer_id after(std::int64_t delay_ns, std::function<void()> fn) override;
  void cancel(timer_id id) override;
  const fault_counters& faults() const override { return faults_; }

 private:
  sim_network& net_;
  std::string host_;
  std::uint16_t port_ = 0;
  fault_counters faults_;
};

}  // namespace troupe
