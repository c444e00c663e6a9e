#include "troupe/actors/flow/topology.hpp"

#include "troupe/actors/base/scheduler.hpp"
#include "troupe/actors/base/tell.hpp"
#include "troupe/actors/flow/director.hpp"
#include "troupe/actors/flow/topology_listing.hpp"
#include "troupe/actors/messages/work_messages.hpp"
#include "troupe/actors/net/io_loop.hpp"
#include "troupe/actors/session/session_process.hpp"
#include "troupe/runtime/flow/flow_placement.hpp"

#include <caf/event_based_actor.hpp>
#include <caf/scoped_actor.hpp>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <system_error>
#include <thread>
#include <utility>

namespace troupe {
namespace {

constexpr auto look_every = std::chrono::milliseconds(100);

std::int64_t monotonic() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

class loop_source final : public event_source {
 public:
  explicit loop_source(io_loop& loop) : loop_(loop) {}
  bool poll(int timeout_ms) override { return loop_.poll(timeout_ms) > 0; }
  void wake() override { loop_.wake(); }

 private:
  io_loop& loop_;
};

// Of the program that runs a topology by run().
std::atomic<int> signal_seen{0};
std::atomic<int> signals_seen{0};
void on_signal(int signal) {
  signal_seen.store(signal);
  signals_seen.fetch_add(1);
  if (signals_seen.load() > 1) std::signal(signal, SIG_DFL);
}

std::string rate(double per_second) {
  if (per_second >= 1e6) return fmt::format("{:.1f} M/s", per_second * 1e-6);
  if (per_second >= 1e4) return fmt::format("{:.1f} k/s", per_second * 1e-3);
  return fmt::format("{:.1f}/s", per_second);
}

std::string duration(std::int64_t ns) {
  if (ns >= 1'000'000'000) return fmt::format("{:.2f} s", double(ns) * 1e-9);
  if (ns >= 1'000'000) return fmt::format("{:.1f} ms", double(ns) * 1e-6);
  return fmt::format("{:.1f} us", double(ns) * 1e-3);
}

}  // namespace

struct topology::running {
  std::shared_ptr<topology_view> view;
  std::shared_ptr<topology_listing> listing;
  std::unique_ptr<session> member;  // of a cluster
  std::int64_t began_ns = 0, ended_ns = 0;
};

topology::topology(topology_options options) : options_(std::move(options)) {
  set_budget(options_.budget_bytes);
}
topology::~topology() = default;

std::string topology::explain() {
  const auto ok = check();
  if (!ok) return ok.error().text() + "\n";
  return troupe::explain(*this);
}

std::vector<stage_report> topology::report() const {
  std::vector<stage_report> all;
  if (running_ == nullptr) return all;
  const auto& v = *running_->view;
  const auto lasted = double(std::max<std::int64_t>(
      1, (running_->ended_ns != 0 ? running_->ended_ns : monotonic()) - running_->began_ns));
  for (std::size_t i = 0; i < stages().size(); ++i) {
    const auto& s = stages()[i];
    const auto& c = *v.stages[i];
    stage_report r;
    r.name = s.name;
    r.items_in = c.items_in.load(std::memory_order_relaxed);
    r.items_out = c.items_out.load(std::memory_order_relaxed);
    r.skipped = c.skipped.load(std::memory_order_relaxed);
    r.dropped = c.dropped.load(std::memory_order_relaxed);
    r.items_per_second = double(s.is_source ? r.items_out : r.items_in) / lasted * 1e9;
    r.busy = std::min(1.0, c.busy_ns() / lasted);
    r.blocked = std::min(1 - r.busy, double(c.blocked_ns.load(std::memory_order_relaxed)) / lasted);
    r.starved = 1 - r.busy - r.blocked;
    r.latency_p50_ns = c.latency.quantile(0.5);
    r.latency_p99_ns = c.latency.quantile(0.99);
    r.latency_worst_ns = c.latency.worst();
    if (s.is_hidden && r.busy < 0.01) continue;
    all.push_back(std::move(r));
  }
  return all;
}

std::string to_text(const std::vector<stage_report>& stages) {
  std::size_t width = 5;
  for (const auto& s : stages) width = std::max(width, s.name.size());
  auto text = fmt::format("{:<{}} {:>12} {:>10} {:>6} {:>8} {:>8}  {}\n", "STAGE", width, "ITEMS",
                          "RATE", "BUSY", "STARVED", "BLOCKED", "");
  for (const auto& s : stages) {
    std::string more;
    if (s.skipped > 0) more += fmt::format("{} skipped  ", s.skipped);
    if (s.dropped > 0) more += fmt::format("{} dropped  ", s.dropped);
    if (s.latency_p50_ns > 0)
      more += fmt::format("latency p50 {}, p99 {}, worst {}", duration(s.latency_p50_ns),
                          duration(s.latency_p99_ns), duration(s.latency_worst_ns));
    auto line = fmt::format("{:<{}} {:>12} {:>10} {:>5.0f}% {:>7.0f}% {:>7.0f}%  {}", s.name, width,
                            std::max(s.items_in, s.items_out), rate(s.items_per_second),
                            s.busy * 100, s.starved * 100, s.blocked * 100, more);
    while (line.ends_with(' ')) line.pop_back();
    text += line + "\n";
  }
  return text;
}

result<flow_totals> topology::run_to_end(const std::function<void(const topology&)>& look) {
  if (running_ != nullptr)
    return error(error_code::usage, "a topology runs once: describe another one");
  if (auto ok = check(); !ok) return std::move(ok.error());
  const auto threads =
      options_.threads != 0 ? options_.threads : std::max(1U, std::thread::hardware_concurrency());
  std::shared_ptr<const flow_graph> graph(std::shared_ptr<const void>(), this);
  auto whole = std::make_shared<flow_group>(graph);
  running_ = std::make_unique<running>();
  auto& r = *running_;
  r.view = std::make_shared<topology_view>(stages().size());
  r.view->graph = graph;
  for (std::uint32_t i = 0; i < stages().size(); ++i)
    r.view->stages.push_back(whole->shared_counters(i));
  for (std::uint32_t i = 0; i < edges().size(); ++i) r.view->edges.push_back(whole->meter(i));
  topology_ended ended;
  if (!options_.cluster.cluster.empty()) {
    auto member = session::open(options_.cluster);
    if (!member) return std::move(member.error());
    r.member = std::move(*member);
  }
  try {
    io_loop loop;
    loop_source events(loop);
    scheduler_config config;
    config.pinned();
    config.streams = threads + sleeping_stages(*this);
    config.io = &events;
    caf::actor_system system(config);
    auto& scheduler = static_cast<pinned_scheduler&>(system.scheduler());
    caf::scoped_actor self(system);
    director_setup setup;
    setup.graph = graph;
    setup.threads = threads;
    flow_groups groups{place_together(*this, threads), {}};
    for (std::uint32_t i = 0; i < config.streams; ++i) groups.thread_of.push_back(i);
    if (!options_.fuse) groups = place_apart(*this, threads);
    for (const auto thread : groups.thread_of) {
      setup.workers.push_back(scheduler.stream(thread));
      r.view->pulses.push_back(std::make_shared<group_pulse>());
    }
    setup.places = std::move(groups.group_of);
    setup.moves = options_.fuse;
    setup.clock = spawn_flow_clock(system, scheduler.io(), loop, monotonic);
    setup.program = caf::actor(self);
    setup.now_ns = monotonic;
    setup.view = r.view;
    setup.whole = std::move(whole);
    const auto clock = setup.clock;
    r.began_ns = monotonic();
    r.listing = std::make_shared<topology_listing>(r.view, options_.name, monotonic);
    if (r.member != nullptr)
      tell(nullptr, process_of(*r.member).node(),
           list_work{std::shared_ptr<const listed_work>(r.listing)});
    const auto director = spawn_director(system, scheduler.service(), std::move(setup));
    std::uint32_t told = 0;
    for (bool is_over = false; !is_over;) {
      self->receive([&](topology_ended& m) { ended = std::move(m), is_over = true; },
                    caf::after(look_every) >> [] {});
      const auto wishes = stop_wishes_.load();
      if (wishes != told) tell(nullptr, director, stop_topology{(wishes & 2) == 0});
      told = wishes;
      if (look && !is_over) look(*this);
    }
    r.ended_ns = monotonic();
    r.listing->end(ended.has_failed, ended.why.text());
    tell(nullptr, director, flow_end{});
    tell(nullptr, clock, flow_end{});
  } catch (const std::system_error& e) {
    return error(error_code::failed, fmt::format("the topology cannot start: {}", e.what()));
  }
  if (ended.has_failed) return std::move(ended.why);
  flow_totals totals;
  for (std::uint32_t i = 0; i < stages().size(); ++i)
    totals.stages.push_back(totals_of(stages()[i].name, *r.view->stages[i]));
  return totals;
}

int topology::run() {
  if (options_.explains_only) {
    const auto ok = check();
    if (!ok) {
      std::fprintf(stderr, "%s\n", ok.error().text().c_str());
      return static_cast<int>(ok.error().code());
    }
    std::fputs(troupe::explain(*this).c_str(), stdout);
    return 0;
  }
  signals_seen.store(0);
  const auto old_int = std::signal(SIGINT, on_signal), old_term = std::signal(SIGTERM, on_signal);
  // What was ignored at the start (nohup) stays ignored.
  if (old_int == SIG_IGN) std::signal(SIGINT, SIG_IGN);
  if (old_term == SIG_IGN) std::signal(SIGTERM, SIG_IGN);
  const bool is_terminal = ::isatty(STDERR_FILENO) == 1;
  const auto began = monotonic();
  auto shown = began;
  bool is_drawn = false;
  const auto done = run_to_end([&](const topology&) {
    const auto seen = signals_seen.load();
    if (seen > 0 && stop_wishes_.load() == 0) stop();
    if (seen > 1 && stop_wishes_.load() < 2) kill();
    const auto now = monotonic();
    if (options_.is_quiet || now - shown < (is_terminal ? 200'000'000 : 5'000'000'000)) return;
    shown = now;
    // The ends say how far it is, the busiest stage what bounds it.
    std::uint64_t items = 0;
    const stage_report* busiest = nullptr;
    const auto all = report();
    for (const auto& s : all) {
      if (busiest == nullptr || s.busy > busiest->busy) busiest = &s;
    }
    for (std::size_t i = 0; i < stages().size(); ++i)
      if (stages()[i].is_end())
        items += running_->view->stages[i]->items_in.load(std::memory_order_relaxed);
    const auto seconds = double(now - began) * 1e-9;
    const auto line = fmt::format("{} items done, {}, {:.0f} s; busiest: {} {:.0f}%", items,
                                  rate(double(items) / seconds), seconds,
                                  busiest != nullptr ? busiest->name : "nobody",
                                  busiest != nullptr ? busiest->busy * 100 : 0);
    std::fprintf(stderr, is_terminal ? "\r%-78s" : "%s\n", line.c_str());
    is_drawn = is_terminal;
  });
  if (is_drawn) std::fputs("\n", stderr);
  std::signal(SIGINT, old_int);
  std::signal(SIGTERM, old_term);
  const auto name = options_.name.empty() ? std::string() : options_.name + ": ";
  if (!done) {
    std::fprintf(stderr, "%s%s\n", name.c_str(), done.error().text().c_str());
    if (signals_seen.load() > 1) return 128 + signal_seen.load();
    return static_cast<int>(done.error().code());
  }
  if (!options_.is_quiet) std::fputs(to_text(report()).c_str(), stderr);
  return signals_seen.load() > 0 ? 128 + signal_seen.load() : 0;
}

}  // namespace troupe
