#include "troupe/actors/flow/topology.hpp"

#include "troupe/actors/base/deadline.hpp"
#include "troupe/actors/base/mailbox.hpp"
#include "troupe/actors/base/scheduler.hpp"
#include "troupe/actors/base/tell.hpp"
#include "troupe/actors/flow/flow_run.hpp"
#include "troupe/actors/flow/gate_actor.hpp"
#include "troupe/actors/flow/group_actor.hpp"
#include "troupe/actors/flow/topology_listing.hpp"
#include "troupe/actors/messages/work_messages.hpp"
#include "troupe/actors/session/session_process.hpp"
#include "troupe/devices/files/host_disk.hpp"
#include "troupe/devices/files/signals.hpp"
#include "troupe/runtime/flow/file_stages.hpp"
#include "troupe/runtime/flow/topology_parts.hpp"
#include "troupe/runtime/text/duration.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <future>
#include <random>
#include <system_error>
#include <thread>
#include <utility>

namespace troupe {
namespace {

constexpr auto look_every = std::chrono::milliseconds(100);

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

std::string age_of(std::int64_t unix_seconds) {
  const auto now = std::chrono::duration_cast<std::chrono::seconds>(
                       std::chrono::system_clock::now().time_since_epoch())
                       .count();
  return format_seconds(double(std::max<std::int64_t>(0, now - unix_seconds)));
}

std::string duration(std::int64_t ns) {
  if (ns >= 1'000'000'000) return fmt::format("{:.2f} s", double(ns) * 1e-9);
  if (ns >= 1'000'000) return fmt::format("{:.1f} ms", double(ns) * 1e-6);
  return fmt::format("{:.1f} us", double(ns) * 1e-3);
}

}  // namespace

static std::uint32_t threads_of(const topology_options& o) {
  return o.threads != 0 ? o.threads : std::max(1U, std::thread::hardware_concurrency());
}

struct topology::running {
  std::shared_ptr<topology_view> view;
  std::shared_ptr<topology_listing> listing;
  std::unique_ptr<session> opened;  // for it alone
  session* member = nullptr;        // of a cluster
  std::int64_t began_ns = 0, ended_ns = 0;
  std::vector<std::string> nodes;  // of stages; before it begins
  std::vector<std::string> notes;  // what people want to know, and have not been told
  std::unique_ptr<disk> kept_on;
  std::optional<checkpoint_place> kept_at;
  bool is_suspended = false;
};

topology::topology(topology_options options) : options_(std::move(options)) {
  set_budget(options_.budget_bytes);
  set_threads(threads_of(options_));
}
topology::~topology() = default;

bool topology::was_suspended() const noexcept {
  return running_ != nullptr && running_->is_suspended;
}

std::string topology::explain() {
  const auto ok = check();
  if (!ok) return ok.error().text() + "\n";
  auto text = troupe::explain(*this);
  if (options_.checkpoint.folder.empty()) return text;
  if (const auto kept = check_checkpoint(*this); !kept) return kept.error().text() + "\n";
  return text + fmt::format("kept in {} each {}\n", options_.checkpoint.folder,
                            format_seconds(double(options_.checkpoint.every_ns) * 1e-9));
}

std::vector<stage_report> topology::report() const {
  std::vector<stage_report> all;
  if (running_ == nullptr) return all;
  const auto& v = *running_->view;
  const auto lasted = double(std::max<std::int64_t>(
      1, (running_->ended_ns != 0 ? running_->ended_ns : flow_clock_ns()) - running_->began_ns));
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
    // Of a part of all the upper bound is known.
    r.latency_worst_ns = c.latency.worst();
    r.latency_p50_ns = std::min(c.latency.quantile(0.5), r.latency_worst_ns);
    r.latency_p99_ns = std::min(c.latency.quantile(0.99), r.latency_worst_ns);
    if (s.is_hidden && r.busy < 0.01) continue;
    // A replica that has had nothing to do, where their number may change.
    if (s.control != nullptr && r.items_in == 0 && s.replica > 0) continue;
    all.push_back(std::move(r));
  }
  return all;
}

result<void> topology::set_replicas(std::string_view stage, std::uint32_t count) {
  return replica_controls(*this).set(stage, count);
}
result<void> topology::move(std::string_view stage, std::string_view node) {
  if (!wishes_->has_begun.load())
    return error(error_code::failed, fmt::format("{}: the topology has not begun", stage));
  return replica_controls(*this).move(stage, node, running_->nodes);
}
result<void> topology::replace_by(std::string_view stage, replacing_function f) {
  if (!wishes_->has_begun.load())
    return error(error_code::failed, fmt::format("{}: the topology has not begun", stage));
  // Its thread would wait for itself.
  if (graph_that_runs_here() == static_cast<const flow_graph*>(this))
    return error(
        error_code::usage,
        fmt::format("{}: a stage of the topology asks for that, whose thread would wait for "
                    "itself: ask from another one",
                    stage));
  auto all = replacements_for(*this, stage, std::move(f));
  if (!all) return all.error();
  // Whoever sets it may be at it still when we have it.
  const auto promise = std::make_shared<std::promise<result<void>>>();
  auto done = promise->get_future();
  all->front()->change->done = [promise](result<void> how) { promise->set_value(std::move(how)); };
  wishes_->replace(std::move(*all));
  return done.get();
}
result<std::uint32_t> topology::replicas(std::string_view stage) const {
  return replica_controls(*this).working(stage);
}
std::string topology::chosen() const { return replica_controls(*this).text(); }

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

std::string to_json(const std::vector<stage_report>& stages) {
  std::string all;
  for (const auto& s : stages)
    all += fmt::format(
        R"({}{{"stage":{},"items_in":{},"items_out":{},"skipped":{},"dropped":{},"items_per_second":{:.6g},"busy":{:.4f},"starved":{:.4f},"blocked":{:.4f},"latency_p50":{:.9g},"latency_p99":{:.9g},"latency_worst":{:.9g}}})",
        all.empty() ? "" : ",", json_text(s.name), s.items_in, s.items_out, s.skipped, s.dropped,
        s.items_per_second, s.busy, s.starved, s.blocked, double(s.latency_p50_ns) * 1e-9,
        double(s.latency_p99_ns) * 1e-9, double(s.latency_worst_ns) * 1e-9);
  return "[" + all + "]";
}

// Of run(): the first signal drains, the second one ends.
void topology::take_signals() {
  if (!takes_signals_) return;
  const auto seen = signals_seen.load();
  if (seen > 0 && wishes_->stop.load() == 0) {
    const bool is_kept = !options_.checkpoint.folder.empty();
    is_kept ? suspend() : stop();
    if (!options_.is_quiet)
      std::fputs(is_kept
                     ? "\nends with a checkpoint when what is under way is done; again: at once\n"
                     : "\nends when what is under way is done; again: at once\n",
                 stderr);
  }
  if (seen > 1 && (wishes_->stop.load() & 2) == 0) kill();
}

void topology::use(const stage_library& l) {
  if (auto ok = check_library(l); !ok) note_mistake(ok.error());
  libraries_.push_back(&l);
}

// What nodes of the cluster do of a topology, as the program sees it.
class topology::far_parts {
 public:
  far_parts(topology& t, session& member) : t_(t), process_(process_of(member)), member_(member) {}
  ~far_parts() { end({true, error(error_code::failed, "its program gave it up")}); }
  far_parts(const far_parts&) = delete;
  far_parts& operator=(const far_parts&) = delete;

  // Decides who runs what, and marks in the graph what is elsewhere. Waits for nodes.
  result<void> place() {
    std::vector<member_info> nodes;
    std::vector<std::uint32_t> process_of;
    const mailbox waits(process_.system());
    const deadline until(t_.options_.cluster.timeout);
    while (true) {
      nodes = member_.nodes();
      std::vector<place_node> places;
      for (const auto& n : nodes) places.push_back({n.name, n.job, n.labels});
      auto placed = place_on_nodes(t_, places);
      if (placed) {
        process_of = std::move(*placed);
        break;
      }
      t_.take_signals();
      if (t_.wishes_->stop.load() != 0)
        return error(error_code::failed, "stopped while it waited for nodes");
      if (placed.error().code() != error_code::unreachable || until.is_over())
        return std::move(placed.error());
      waits->receive(caf::after(std::chrono::milliseconds(20)) >> [] {});
    }
    // Those that have a part, in the order of the nodes.
    std::vector<std::uint32_t> number(nodes.size() + 1, 0);
    std::vector<described_process> processes;
    const auto& self = process_.self();
    processes.push_back({raw(self.id), self.name, self.host});
    for (std::uint32_t n = 1; n <= nodes.size(); ++n)
      if (std::ranges::find(process_of, n) != process_of.end()) {
        number[n] = static_cast<std::uint32_t>(processes.size());
        const auto& node = nodes[n - 1];
        processes.push_back({raw(node.id), node.name, node.host});
      }
    for (auto& p : process_of)
      if (p != no_process) p = number[p];
    auto what = describe(t_, process_of, t_.libraries_);
    if (!what) return std::move(what.error());
    what_ = std::move(*what);
    what_.name = t_.options_.name.empty() ? "topology" : t_.options_.name;
    what_.fuses = t_.options_.fuse;
    what_.processes = std::move(processes);
    mark_elsewhere(t_, process_of);
    for (std::uint32_t i = 0; i < what_.edges.size(); ++i)
      t_.edge_at(i).items_max = what_.edges[i].items_max;
    return {};
  }
  std::vector<std::string> nodes_of() const { return nodes_of_stages(what_); }

  void begin(std::uint64_t id, std::shared_ptr<topology_view> view, const caf::actor& program) {
    auto& scheduler = static_cast<pinned_scheduler&>(process_.system().scheduler());
    gate_ = spawn_program_gate(process_.system(), scheduler.service(),
                               {process_.node(), job_id{id}, what_, std::move(view), program});
    forget_logger();
  }
  const caf::actor& gate() const { return gate_; }
  void start() { tell(nullptr, gate_, start_parts{}); }
  void tick() { tell(nullptr, gate_, gate_tick{}); }
  // When the director is gone.
  void end(const topology_ended& how) {
    if (!gate_) return;
    auto left = std::make_shared<std::promise<void>>();
    const auto has_left = left->get_future();
    tell(nullptr, std::exchange(gate_, nullptr),
         end_parts{std::move(left), how.has_failed, how.why});
    has_left.wait();
  }

 private:
  topology& t_;
  process& process_;
  session& member_;
  topology_description what_;
  caf::actor gate_;
};

result<flow_totals> topology::run_to_end(const std::function<void(const topology&)>& look) {
  if (running_ != nullptr)
    return error(error_code::usage, "a topology runs once: describe another one");
  if (auto ok = check(); !ok) return std::move(ok.error());
  std::unique_ptr<disk> kept_on;
  std::optional<checkpoint_place> kept_at;
  if (!options_.checkpoint.folder.empty()) {
    if (auto ok = check_checkpoint(*this); !ok) return std::move(ok.error());
    kept_on = make_host_disk();
    auto place = checkpoint_place::open(*kept_on, options_.checkpoint, options_.name);
    if (!place) return std::move(place.error().while_doing("--checkpoint"));
    kept_at.emplace(std::move(*place));
  }
  std::unique_ptr<session> own;
  auto* member = options_.member;
  if (member != nullptr && member->is_alone()) member = nullptr;
  if (options_.member == nullptr && !options_.cluster.cluster.empty()) {
    auto opened = session::open(options_.cluster);
    if (!opened) return std::move(opened.error());
    own = std::move(*opened);
    member = own.get();
  }
  std::unique_ptr<far_parts> far;
  if (member != nullptr && has_places(*this)) {
    far = std::make_unique<far_parts>(*this, *member);
    if (auto ok = far->place(); !ok) return std::move(ok.error());
  }
  const auto threads = threads_of(options_);
  std::shared_ptr<const flow_graph> graph(std::shared_ptr<const void>(), this);
  std::optional<topology_checkpoint> from;
  if (kept_at) from = std::exchange(kept_at->found, std::nullopt);
  auto whole = std::make_shared<flow_group>(graph, from ? over_in(*from) : std::vector<bool>());
  if (whole->failure()) return whole->failure()->why;
  std::string resumed;
  if (from) {
    if (auto ok = whole->go_on_from(*from); !ok)
      return std::move(ok.error().while_doing(kept_at->path()));
    resumed = fmt::format("goes on with checkpoint {}, {} old: its sources had made {} items",
                          from->number, age_of(from->saved_unix), from->items);
  }
  from.reset();
  running_ = std::make_unique<running>();
  auto& r = *running_;
  r.kept_on = std::move(kept_on);
  r.kept_at = std::move(kept_at);
  if (!resumed.empty() && !options_.is_quiet) r.notes.push_back(std::move(resumed));
  r.opened = std::move(own);
  r.member = member;
  r.view = view_of(graph, *whole);
  topology_ended ended;
  try {
    flow_run run(graph, threads, options_.fuse);
    auto& self = run.owner();
    std::random_device random;
    const auto id = std::uint64_t{random()} << 32 | random();
    r.began_ns = flow_clock_ns();
    bool is_over_here = false, is_over_there = far == nullptr;
    std::optional<director_checkpoints> checkpoints;
    if (r.kept_at)
      checkpoints = director_checkpoints{
          nanoseconds_of(std::chrono::nanoseconds(options_.checkpoint.every_ns)).ns,
          [&place = *r.kept_at](topology_checkpoint c) {
            c.saved_unix = std::chrono::duration_cast<std::chrono::seconds>(
                               std::chrono::system_clock::now().time_since_epoch())
                               .count();
            return place.write(std::move(c));
          }};
    const auto take_end = [&](bool has_failed, error& why) {
      if (has_failed && !ended.has_failed) ended = {true, std::move(why)};
      if (has_failed) is_over_here = is_over_there = true;
    };
    // However it ends, by an exception of `look` too: nobody holds anything of it afterwards.
    struct at_end {
      flow_run& run;
      far_parts* far;
      const topology_ended& how;
      const std::atomic<std::uint32_t>& wishes;
      ~at_end() {
        run.end();
        if (far != nullptr) far->end((wishes.load() & 4) != 0 ? topology_ended{} : how);
      }
    };
    const at_end ends{run, far.get(), ended, wishes_->stop};
    const auto begin = [&](std::vector<std::optional<far_route>> routes) {
      if (far != nullptr) r.nodes = far->nodes_of();
      run.start(std::move(whole), r.view, wishes_, far != nullptr ? far->gate() : nullptr,
                std::move(routes), std::move(checkpoints));
      r.listing = std::make_shared<topology_listing>(r.view, options_.name, id, flow_clock_ns,
                                                     r.nodes, wishes_);
      if (r.member != nullptr)
        tell(nullptr, process_of(*r.member).node(),
             list_work{std::shared_ptr<const listed_work>(r.listing)});
    };
    if (far != nullptr)
      far->begin(id, r.view, self.handle());
    else
      begin({});
    std::uint32_t told = 0;
    while (!is_over_here || !is_over_there) {
      take_signals();
      self->receive(
          [&](topology_ended& m) {
            is_over_here = true;
            r.is_suspended = m.is_suspended;
            if (m.is_suspended) is_over_there = true;
            take_end(m.has_failed, m.why);
          },
          [&](parts_placed& m) {
            begin(std::move(m.far));
            far->start();
          },
          [&](part_lost& m) { r.notes.push_back(std::move(m.text)); },
          [&](topology_note& m) { r.notes.push_back(std::move(m.text)); },
          [&](parts_ended& m) {
            is_over_there = true;
            take_end(m.has_failed, m.why);
          },
          caf::after(look_every) >> [] {});
      const auto wishes = wishes_->stop.load();
      if (wishes != told && r.listing == nullptr)
        ended = {true, error(error_code::failed, "stopped before its nodes had begun")},
        is_over_here = is_over_there = true;
      if (wishes != told && r.listing != nullptr)
        run.stop({(wishes & 2) != 0                 ? stop_topology::how::at_once
                  : (wishes & 1) != 0 || !r.kept_at ? stop_topology::how::drains
                                                    : stop_topology::how::suspends});
      // Whoever still works, here or elsewhere.
      if (wishes != told && (wishes & 2) != 0 && r.listing != nullptr && far != nullptr) {
        auto why = error(error_code::failed, "stopped at once");
        take_end(true, why);
      }
      told = wishes;
      if (far != nullptr) far->tick();
      if (look && r.listing != nullptr && (!is_over_here || !is_over_there)) look(*this);
    }
    r.ended_ns = flow_clock_ns();
    wishes_->close();
    const bool is_unneeded = (wishes_->stop.load() & 4) != 0;
    if (r.listing != nullptr) r.listing->end(ended.has_failed && !is_unneeded, ended.why.text());
  } catch (const std::system_error& e) {
    return error(error_code::failed, fmt::format("the topology cannot start: {}", e.what()));
  }
  if (ended.has_failed) return std::move(ended.why);
  // An end that print() made, whose output broke, is not that of the sources.
  if (r.kept_at && !r.is_suspended && std::ferror(stdout) == 0)
    if (auto ok = r.kept_at->remove(); !ok)
      return std::move(ok.error().while_doing("--checkpoint"));
  flow_totals totals;
  for (std::uint32_t i = 0; i < stages().size(); ++i)
    totals.stages.push_back(totals_of(stages()[i].name, *r.view->stages[i]));
  return totals;
}

int topology::run() {
  if (options_.explains_only) {
    auto ok = check();
    if (ok && !options_.checkpoint.folder.empty()) ok = check_checkpoint(*this);
    if (!ok) {
      std::fprintf(stderr, "%s\n", ok.error().text().c_str());
      return static_cast<int>(ok.error().code());
    }
    std::fputs(explain().c_str(), stdout);
    return 0;
  }
  signals_seen.store(0);
  takes_signals_ = true;
  if (!options_.cluster.is_cancelled)
    options_.cluster.is_cancelled = [] { return signals_seen.load() > 0; };
  take_writes_as_errors();
  const scoped_signal on_int(SIGINT, on_signal), on_term(SIGTERM, on_signal);
  const bool is_terminal = ::isatty(STDERR_FILENO) == 1;
  const auto began = flow_clock_ns();
  auto shown = began;
  bool is_drawn = false;
  const auto title = options_.name.empty() ? std::string() : options_.name + ": ";
  const auto tell_notes = [&] {
    if (running_ == nullptr || running_->notes.empty()) return;
    if (std::exchange(is_drawn, false)) std::fputs("\n", stderr);
    for (const auto& note : std::exchange(running_->notes, {}))
      std::fprintf(stderr, "%s%s\n", title.c_str(), note.c_str());
  };
  bool is_unread = false;
  const auto done = run_to_end([&](const topology&) {
    tell_notes();
    // Who printed for `| head` needs no more: a source without an end would go on for nobody.
    if (std::ferror(stdout) != 0 && !std::exchange(is_unread, true)) {
      // What is printed from now on is lost, so no later checkpoint may count it, also not that of
      // a signal that came to both ends of a pipe.
      const bool is_kept = !options_.checkpoint.folder.empty();
      std::fprintf(stderr, "%sstandard output takes no more: %s\n", title.c_str(),
                   is_kept ? "ends at once; its last checkpoint stays (--resume)"
                           : "ends with what is under way");
      is_kept ? kill() : stop();
    }
    const auto now = flow_clock_ns();
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
  tell_notes();
  if (is_drawn) std::fputs("\n", stderr);
  if (!done) {
    std::fprintf(stderr, "%s%s\n", title.c_str(), done.error().text().c_str());
    // Before anything ran one is enough; and one ended it if who read its output got it, too.
    if (signals_seen.load() > 1 || (signals_seen.load() > 0 && (running_ == nullptr || is_unread)))
      return 128 + signal_seen.load();
    return static_cast<int>(done.error().code());
  }
  if (!options_.is_quiet) std::fputs((to_text(report()) + chosen()).c_str(), stderr);
  if (options_.ends_with_json) {
    const auto line =
        fmt::format(R"({{"topology":{},"ended":"{}","seconds":{:.6f},"stages":{},"replicas":{}}})",
                    json_text(options_.name),
                    was_suspended()                     ? "suspended"
                    : (wishes_->stop.load() & ~8U) != 0 ? "drained"
                                                        : "done",
                    double(running_->ended_ns - running_->began_ns) * 1e-9, to_json(report()),
                    replica_controls(*this).json());
    std::printf("%s\n", line.c_str());
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    if (!is_unread)
      std::fprintf(
          stderr, "%sstandard output takes no more: what was printed is not all there%s\n",
          title.c_str(),
          options_.checkpoint.folder.empty() ? "" : "; its last checkpoint stays (--resume)");
    return signals_seen.load() > 0 ? 128 + signal_seen.load()
                                   : static_cast<int>(error_code::failed);
  }
  // One that was done before it could be suspended has nothing left to do.
  const bool was_cut_short = was_suspended() || (wishes_->stop.load() & ~8U) != 0;
  return signals_seen.load() > 0 && was_cut_short ? 128 + signal_seen.load() : 0;
}

}  // namespace troupe
