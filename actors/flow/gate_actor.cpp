#include "troupe/actors/flow/gate_actor.hpp"

#include "troupe/actors/base/scheduler.hpp"
#include "troupe/actors/base/tell.hpp"
#include "troupe/actors/flow/flow_run.hpp"
#include "troupe/actors/flow/topology_listing.hpp"
#include "troupe/actors/messages/stream_messages.hpp"
#include "troupe/actors/messages/work_messages.hpp"

#include <caf/event_based_actor.hpp>
#include <caf/stateful_actor.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <future>
#include <system_error>
#include <thread>
#include <utility>

namespace troupe {
namespace {

constexpr auto counts_each = std::chrono::milliseconds(100);
// Links between two nodes that have just met take some time.
constexpr std::int64_t link_limit_ns = 10'000'000'000;

// What both gates do: the streams to other processes, and what comes by them.
struct gate {
  caf::event_based_actor* self = nullptr;
  caf::actor node;
  job_id job{};
  std::uint32_t own = 0;
  topology_description what;
  std::shared_ptr<topology_view> view;
  std::function<void(const std::string& peer, const std::string& why)> on_garbage;
  std::shared_ptr<const flow_routes> routes;
  // As long as items pass by, the service worker takes no naps.
  std::optional<pinned_scheduler::waiter> awake;
  bool is_halted = true;
  struct kept_frame {
    std::uint32_t process = 0;
    tensor frame;
  };
  std::vector<kept_frame> kept;
  std::vector<bool> is_gone;     // by process: lost
  std::vector<bool> has_lasted;  // by edge: its last item has come
  struct peer {
    caf::actor link;
    std::string why_not;  // there is no stream yet
  };
  std::vector<std::optional<peer>> peers;  // by process; nullopt: no edge leads there

  void say(std::uint32_t process, std::vector<std::byte> word) {
    tell(self->context(), node,
         send_word{job, node_id{what.processes[process].id}, std::move(word)});
  }
  std::optional<std::uint32_t> process_of(node_id id) const {
    for (std::uint32_t i = 0; i < what.processes.size(); ++i)
      if (what.processes[i].id == raw(id)) return i;
    return std::nullopt;
  }

  // --- streams ---

  void bind_peers() {
    peers.assign(what.processes.size(), std::nullopt);
    is_gone.assign(what.processes.size(), false);
    has_lasted.assign(what.edges.size(), false);
    for (const auto& e : what.edges) {
      const auto from = what.stages[e.from].process, to = what.stages[e.to].process;
      if (from == to || (from != own && to != own)) continue;
      if (auto& p = peers[from == own ? to : from]; !p) p.emplace();
    }
    for (std::uint32_t i = 0; i < peers.size(); ++i)
      if (peers[i]) bind(i);
  }
  void bind(std::uint32_t process) {
    tell(self->context(), node,
         bind_stream{job, node_id{what.processes[process].id}, caf::actor(self)});
  }
  void bind_again() {
    for (std::uint32_t i = 0; i < peers.size(); ++i)
      if (peers[i] && !std::exchange(peers[i]->why_not, {}).empty()) bind(i);
  }
  // False: that stream is none of ours.
  bool bound(stream_bound& m) {
    const auto process = process_of(m.peer);
    if (!process || *process >= peers.size() || !peers[*process]) return false;
    auto& p = *peers[*process];
    p.link = m.error.empty() ? std::move(m.link) : nullptr;
    p.why_not = std::move(m.error);
    return true;
  }
  bool are_bound() const {
    return std::ranges::all_of(peers, [](const auto& p) { return !p || p->link; });
  }
  std::vector<std::optional<far_route>> far_routes() const {
    std::vector<std::optional<far_route>> far(what.edges.size());
    for (std::uint32_t i = 0; i < far.size(); ++i) {
      if (!is_far(*view->graph, i)) continue;
      const auto from = what.stages[what.edges[i].from].process;
      const auto other = from == own ? what.stages[what.edges[i].to].process : from;
      far[i] = far_route{
          peers[other]->link, job,
          far_end_of(*view->graph, i, what.processes[own].host == what.processes[other].host)};
    }
    return far;
  }

  // --- what comes ---

  void value(stream_value& m) {
    after_message();
    const auto process = process_of(m.from);
    if (!process || *process >= is_gone.size() || is_gone[*process]) return;
    if (is_halted)
      kept.push_back({*process, std::move(m.value)});
    else
      pass_on(*process, std::move(m.value));
  }
  void pass_on(std::uint32_t process, tensor frame) {
    if (routes == nullptr) return;
    const auto head = head_of(frame);
    const auto refuse = [&] {
      on_garbage(what.processes[process].name, "it sent what is no frame");
    };
    if (!head || head->edge >= what.edges.size()) return refuse();
    const auto edge = head->edge;
    const auto& e = what.edges[edge];
    const auto from = what.stages[e.from].process, to = what.stages[e.to].process;
    if (head->kind == frame_kind::items) {
      if (from != process || to != own) return refuse();
      if (head->is_last) has_lasted[edge] = true;
      return tell(nullptr, routes->to[edge], flow_frame{edge, std::move(frame)});
    }
    if (to != process || from != own) return refuse();
    if (head->kind == frame_kind::closed)
      return tell(nullptr, routes->from[edge], flow_closed{edge});
    const auto taken = taken_of(frame);
    auto& meter = *view->edges[edge];
    if (!taken || taken->items > meter.put_items.load() || taken->items < meter.taken_items.load())
      return refuse();
    meter.taken_bytes.store(taken->bytes);
    meter.taken_items.store(taken->items);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (meter.producer_waits.exchange(false)) tell(nullptr, routes->from[edge], flow_room{edge});
  }

  // --- director ---

  caf::actor director;

  std::uint32_t number() const { return static_cast<std::uint32_t>(view->pulses.size()); }
  void begin(flow_begin& m) {
    routes = std::move(m.routes);
    director = std::move(m.director);
    if (!awake) awake.emplace(static_cast<pinned_scheduler&>(self->system().scheduler()));
  }
  void halt(const flow_halt& m) {
    is_halted = true;
    if (director) tell(nullptr, director, group_halted{number(), m.number});
  }
  void surrender() {
    routes = nullptr;
    if (director) tell(nullptr, director, group_surrendered{number(), nullptr});
  }
  void resume() {
    is_halted = false;
    for (auto& k : std::exchange(kept, {})) pass_on(k.process, std::move(k.frame));
  }
  // Nobody of the topology's actor system is held any more.
  void let_go() {
    routes = nullptr;
    director = nullptr;
    awake.reset();
    kept.clear();
    is_halted = true;
  }
  void leave() {
    let_go();
    peers.clear();
    tell(self->context(), node, leave_work{job});
  }
};

// --- the program's -------------------------------------------------------------------------------

struct program_gate_state {
  static inline const char* name = "topology_gate";
  gate g;
  caf::actor program;
  std::vector<bool> placed, over;
  std::vector<std::string> refused;  // by process: what it lacks
  error_code refused_code = error_code::failed;
  std::vector<std::string> unlinked;  // by process; empty: it has its links, or has not said
  std::int64_t began_ns = 0;
  bool is_told_placed = false, has_failed = false, has_told_over = false;

  void start(program_gate_setup s) {
    program = std::move(s.program);
    g.node = std::move(s.node);
    g.job = s.job;
    g.what = std::move(s.what);
    g.view = std::move(s.view);
    g.on_garbage = [this](const std::string& peer, const std::string& why) {
      fail(error(error_code::failed, peer + ": " + why));
    };
    began_ns = flow_clock_ns();
    const auto n = g.what.processes.size();
    // Processes without a stage take no part.
    placed.assign(n, true);
    over.assign(n, true);
    unlinked.assign(n, {});
    refused.assign(n, {});
    for (const auto& st : g.what.stages)
      if (st.process != 0 && st.process != no_process)
        placed[st.process] = over[st.process] = false;
    tell(g.self->context(), g.node, join_work{g.job, caf::actor(g.self)});
    g.bind_peers();
    for (std::uint32_t i = 1; i < n; ++i)
      if (!placed[i]) g.say(i, word_bytes(part_word::place, place_word{i, raw(g.job), g.what}));
  }
  const std::string& name_of(std::uint32_t process) const { return g.what.processes[process].name; }
  void fail(error why) {
    if (std::exchange(has_failed, true) || !program) return;
    tell(nullptr, program, parts_ended{true, std::move(why)});
  }
  // A loss may still come: what a node has said that it sent, may never arrive.
  void look_over() {
    if (!std::ranges::all_of(over, std::identity()) || std::exchange(has_told_over, true)) return;
    tell(nullptr, program, parts_ended{});
  }

  void look_placed() {
    if (is_told_placed || has_failed || !g.are_bound() || !are_answered() ||
        !std::ranges::all_of(placed, std::identity()))
      return;
    is_told_placed = true;
    tell(nullptr, program, parts_placed{g.far_routes()});
  }
  void bound(stream_bound& m) {
    if (!g.bound(m)) return;
    const auto process = g.process_of(m.peer);
    const auto& why_not = g.peers[*process]->why_not;
    if (!is_told_placed || why_not.empty()) return look_placed();
    if (!g.is_gone[*process]) fail(error(error_code::failed, why_not));
  }
  // Every node has said whether it can; those that cannot are named together.
  bool are_answered() {
    std::string all;
    for (std::uint32_t i = 0; i < placed.size(); ++i) {
      if (!placed[i] && refused[i].empty()) return false;
      if (!refused[i].empty()) all += (all.empty() ? "" : "; ") + refusal(i, refused[i]);
    }
    if (!all.empty()) fail(error(refused_code, all));
    return all.empty();
  }
  void tick() {
    if (is_told_placed || has_failed) return;
    std::string who;
    for (std::uint32_t i = 0; i < unlinked.size(); ++i) {
      if (g.peers[i] && !g.peers[i]->why_not.empty())
        who = g.peers[i]->why_not;
      else if (!unlinked[i].empty())
        who = fmt::format("{}: {}", name_of(i), unlinked[i]);
    }
    if (who.empty()) return;
    if (flow_clock_ns() - began_ns > link_limit_ns)
      return fail(error(error_code::unreachable, who));
    g.bind_again();
    for (std::uint32_t i = 0; i < unlinked.size(); ++i)
      if (!std::exchange(unlinked[i], {}).empty()) g.say(i, word_bytes(part_word::again));
  }

  void word(work_word_came& m) {
    const auto from = g.process_of(m.from);
    const auto kind = word_of(m.bytes);
    if (!from || *from == 0 || has_failed || g.is_gone[*from]) return;
    const auto garbage = [&] { g.on_garbage(name_of(*from), "it sent a word that nobody knows"); };
    if (!kind) return garbage();
    switch (*kind) {
      case part_word::placed: placed[*from] = true; return look_placed();
      case part_word::unlinked: {
        const auto body = body_of<text_word>(m.bytes);
        if (!body) return garbage();
        unlinked[*from] = body->text.empty() ? "a link is missing" : body->text;
        return;
      }
      case part_word::refused:
      case part_word::failed: {
        auto body = body_of<refused_word>(m.bytes);
        if (!body) return garbage();
        const auto code = body->code >= 1 && body->code <= 6 ? static_cast<error_code>(body->code)
                                                             : error_code::failed;
        if (*kind == part_word::failed)
          return fail(error(code, fmt::format("{}; on {}", body->why, name_of(*from))));
        refused[*from] = body->why.empty() ? "refuses" : std::move(body->why);
        refused_code = code;
        return look_placed();
      }
      case part_word::counts: {
        const auto body = body_of<counts_word>(m.bytes);
        if (!body) return garbage();
        for (const auto& c : body->stages)
          if (c.stage < g.what.stages.size() && g.what.stages[c.stage].process == *from) {
            keep_count(c, *g.view->stages[c.stage]);
            g.view->busy[c.stage].store(c.busy, std::memory_order_relaxed);
          }
        return;
      }
      case part_word::over: over[*from] = true; return look_over();
      default: return garbage();
    }
  }
  std::string refusal(std::uint32_t process, const std::string& why) const {
    // It names the stage itself.
    if (why.find(": it cannot begin: ") != std::string::npos)
      return fmt::format("{}; on {}", why, name_of(process));
    std::string text = fmt::format("{} {}", name_of(process), why);
    for (const auto& s : g.what.stages)
      if (s.process == process) {
        text += fmt::format("; {} ({}) is to run there", s.name,
                            flow_graph::line_of(source_location(s.file.c_str(), s.line)));
        break;
      }
    if (why.find("has no stage library") != std::string::npos)
      return text + ": start it with --load FILE, the library's";
    if (why.starts_with("has "))
      return text + ": build the program and the node's library of the same source";
    return text;
  }
  void lost(const node_lost& m) {
    const auto process = g.process_of(m.node);
    if (!process || has_failed || g.is_gone[*process]) return;
    if (*process == 0)
      return fail(error(error_code::failed, "this program is out of its cluster: " + m.reason));
    if (over[*process] && has_all_of(*process)) return;
    std::string names, not_kept;
    std::vector<std::uint32_t> stages;
    const auto add_to = [](std::string& list, const std::string& name) {
      list += (list.empty() ? "" : ", ") + name;
    };
    for (std::uint32_t i = 0; i < g.what.stages.size(); ++i) {
      if (g.what.stages[i].process != *process) continue;
      const auto& s = g.view->graph->stages()[i];
      if (s.stands_by == 0 || g.view->stages[i]->items_in.load() > 0)
        add_to(names, g.what.stages[i].name);
      stages.push_back(i);
      if (!s.is_kept) add_to(not_kept, s.name);
      g.view->stages[i]->is_over.store(true, std::memory_order_relaxed);
    }
    auto text = fmt::format("{} was lost ({})", name_of(*process), m.reason);
    text += names.empty() ? "; nothing worked there" : fmt::format("; {} ran there", names);
    if (!not_kept.empty())
      text += fmt::format(
          "; what {} had learnt is lost: a stage that keeps it in a member `state` survives",
          not_kept);
    if (g.director == nullptr)
      return fail(error(error_code::unreachable, text + ", before the topology had begun"));
    if (!not_kept.empty()) return fail(error(error_code::failed, std::move(text)));
    g.is_gone[*process] = true;
    std::erase_if(g.kept, [&](const auto& k) { return k.process == *process; });
    tell(nullptr, g.director, lose_stages{std::move(stages)});
    tell(nullptr, program, part_lost{names.empty() ? text : text + ": what it had is made again"});
    over[*process] = true;
    look_over();
  }
  // Whatever it made has come here.
  bool has_all_of(std::uint32_t process) const {
    for (std::uint32_t i = 0; i < g.what.edges.size(); ++i) {
      const auto& e = g.what.edges[i];
      const auto from = g.what.stages[e.from].process, to = g.what.stages[e.to].process;
      if (from == process && to != process && (to != 0 || !g.has_lasted[i])) return false;
    }
    return true;
  }
  void leave(const end_parts& m) {
    refused_word how;
    if (m.has_failed) how = {static_cast<std::uint8_t>(m.why.code()), m.why.message()};
    const auto word = word_bytes(part_word::end, how);
    for (std::uint32_t i = 1; i < placed.size(); ++i)
      if (!g.is_gone[i]) g.say(i, word);
    g.leave();
    program = nullptr;
  }
};

caf::behavior run_program_gate(caf::stateful_actor<program_gate_state>* self,
                               program_gate_setup setup) {
  auto& s = self->state;
  s.g.self = self;
  s.start(std::move(setup));
  return {
      [&s](work_word_came& m) { s.word(m); },
      [&s](const node_lost& m) { s.lost(m); },
      [&s](const word_refused& m) {
        const auto process = s.g.process_of(m.to);
        if (process && !s.over[*process] && !s.g.is_gone[*process])
          s.fail(
              error(error_code::unreachable, fmt::format("{}: {}", s.name_of(*process), m.reason)));
      },
      [&s](stream_bound& m) { s.bound(m); },
      [&s](stream_value& m) { s.g.value(m); },
      [&s](gate_tick) { s.tick(); },
      [&s](flow_begin& m) { s.g.begin(m); },
      [&s](const flow_halt& m) { s.g.halt(m); },
      [&s](flow_surrender) { s.g.surrender(); },
      [&s](flow_resume) { s.g.resume(); },
      [&s](start_parts) {
        for (std::uint32_t i = 1; i < s.over.size(); ++i)
          if (!s.over[i]) s.g.say(i, word_bytes(part_word::start));
      },
      [&s, self](end_parts& m) {
        s.leave(m);
        m.left->set_value();
        self->quit();
      },
  };
}

// --- a node's ------------------------------------------------------------------------------------

struct node_gate_state {
  static inline const char* name = "topology_gate";
  gate g;
  node_gate_setup setup;
  std::shared_ptr<topology_part> part;
  std::shared_ptr<flow_group> whole;
  std::shared_ptr<topology_listing> listing;
  std::thread thread;
  caf::actor owner;  // in that thread
  bool is_placed = false, runs = false, is_ending = false, has_ended = false;
  bool has_lost_program = false, is_listed_ended = false;

  ~node_gate_state() {
    // After an exception of its own: the thread ends by itself, and waits for nobody's answer,
    // since a promise that is dropped is one.
    if (owner) tell(nullptr, std::exchange(owner, nullptr), flow_end{});
    if (thread.joinable()) thread.detach();
  }
  void say(std::vector<std::byte> word) {
    tell(g.self->context(), g.node, send_word{g.job, setup.program, std::move(word)});
  }
  void refuse(const error& why, part_word kind = part_word::refused) {
    say(word_bytes(kind, refused_word{static_cast<std::uint8_t>(why.code()), why.message()}));
  }
  void leave() {
    if (std::exchange(has_ended, true)) return;
    g.leave();
    g.self->quit();
  }

  void place(std::span<const std::byte> bytes) {
    auto body = body_of<place_word>(bytes);
    const auto none = [&](const error& why) {
      refuse(why);
      leave();
    };
    if (!body)
      return none(error(error_code::failed, "was told of a topology in bytes that are none"));
    try {
      auto made = part_of(std::move(body->what), body->own, setup.libraries);
      if (!made) return none(made.error());
      part = std::move(*made);
    } catch (const std::exception& e) {
      return none(error(error_code::failed, fmt::format("cannot make a stage: {}", e.what())));
    } catch (...) {
      return none(error(error_code::failed, "cannot make a stage: it threw no exception"));
    }
    g.own = body->own;
    g.what = part->description();
    if (node_id{g.what.processes[g.own].id} != setup.host.self)
      return none(error(error_code::failed, "was told of a topology as if it were another node"));
    try {
      whole = std::make_shared<flow_group>(part);
    } catch (const std::exception& e) {
      return none(error(error_code::failed, fmt::format("cannot make a stage: {}", e.what())));
    } catch (...) {
      return none(error(error_code::failed, "cannot make a stage: it threw no exception"));
    }
    if (whole->failure()) return none(whole->failure()->why);
    g.view = view_of(part, *whole);
    g.on_garbage = [this](const std::string& peer, const std::string& why) {
      refuse(error(error_code::failed, peer + ": " + why), part_word::failed);
      end();
    };
    g.bind_peers();
    look_placed();
  }
  void look_placed() {
    if (part == nullptr || is_placed || !g.are_bound()) return;
    is_placed = true;
    say(word_bytes(part_word::placed));
  }
  void bound(stream_bound& m) {
    if (part == nullptr || !g.bound(m)) return;
    const auto process = g.process_of(m.peer);
    const auto& why_not = g.peers[*process]->why_not;
    if (why_not.empty()) return look_placed();
    if (!is_placed) return say(word_bytes(part_word::unlinked, text_word{why_not}));
    refuse(error(error_code::failed, why_not), part_word::failed);
    end();
  }

  void start() {
    if (!is_placed || runs || is_ending) return;
    runs = true;
    try {
      thread = std::thread(
          [gate = caf::actor(g.self), graph = std::shared_ptr<flow_graph>(part),
           whole = std::exchange(whole, nullptr), view = g.view, far = g.far_routes(),
           threads = std::max({1U, setup.host.streams, std::thread::hardware_concurrency()}),
           fuses = g.what.fuses]() mutable {
            run_part(std::move(gate), std::move(graph), std::move(whole), std::move(view),
                     std::move(far), threads, fuses);
          });
    } catch (const std::system_error& e) {
      refuse(error(error_code::failed, fmt::format("its part cannot start: {}", e.what())),
             part_word::failed);
      leave();
    }
  }
  static void run_part(caf::actor gate, std::shared_ptr<flow_graph> graph,
                       std::shared_ptr<flow_group> whole, std::shared_ptr<topology_view> view,
                       std::vector<std::optional<far_route>> far, std::uint32_t threads,
                       bool fuses) {
    const auto failed = [&](const std::exception& e) {
      tell(nullptr, gate,
           topology_ended{
               true, error(error_code::failed, fmt::format("its part cannot run: {}", e.what()))});
    };
    try {
      flow_run run(graph, threads, fuses);
      run.start(std::move(whole), std::move(view), {}, gate, std::move(far));
      tell(nullptr, gate, part_up{run.owner().handle()});
      for (bool is_over = false; !is_over;)
        run.owner()->receive([&](topology_ended& m) { tell(nullptr, gate, std::move(m)); },
                             [&](flow_end) { is_over = true; },
                             caf::after(counts_each) >> [&] { tell(nullptr, gate, gate_tick{}); });
      run.end();
      auto left = std::make_shared<std::promise<void>>();
      const auto has_left = left->get_future();
      tell(nullptr, gate, end_parts{std::move(left)});
      has_left.wait();
    } catch (const std::exception& e) {
      failed(e);
    }
    tell(nullptr, gate, part_down{});
  }

  void send_counts() {
    if (has_ended || g.view == nullptr) return;
    counts_word w;
    for (std::uint32_t i = 0; i < g.what.stages.size(); ++i)
      if (g.what.stages[i].process == g.own)
        w.stages.push_back(
            count_of(i, *g.view->stages[i], g.view->busy[i].load(std::memory_order_relaxed)));
    say(word_bytes(part_word::counts, w));
  }
  // What its program says counts more than what is known here.
  void listed_end(bool has_failed, const std::string& why) {
    if (listing && !std::exchange(is_listed_ended, true)) listing->end(has_failed, why);
  }
  void ended(const topology_ended& m) {
    if (m.has_failed) listed_end(true, m.why.message());
    if (is_ending) return;
    if (m.has_failed) return refuse(m.why, part_word::failed);
    send_counts();
    say(word_bytes(part_word::over));
  }
  // Whatever it does: its program wants it no more, or is gone.
  void end() {
    if (std::exchange(is_ending, true)) return;
    if (!runs) return leave();
    if (owner) tell(nullptr, std::exchange(owner, nullptr), flow_end{});
    g.let_go();
  }
  void up(part_up& m) {
    owner = std::move(m.owner);
    // What tools read of it is there from now on.
    listing = std::make_shared<topology_listing>(g.view, g.what.name, raw(g.job), flow_clock_ns,
                                                 nodes_of_stages(g.what));
    tell(g.self->context(), g.node, list_work{std::shared_ptr<const listed_work>(listing)});
    if (is_ending) tell(nullptr, std::exchange(owner, nullptr), flow_end{});
  }
  void down() {
    listed_end(has_lost_program, "its program was lost");
    if (thread.joinable()) thread.join();
    leave();
  }

  void word(work_word_came& m) {
    const auto kind = word_of(m.bytes);
    if (m.from != setup.program || has_ended) return;
    if (part == nullptr && kind != part_word::place) return leave();
    if (!kind) return;
    switch (*kind) {
      case part_word::place:
        if (part == nullptr) place(std::span(m.bytes));
        return;
      case part_word::again: return g.bind_again();
      case part_word::start: return start();
      case part_word::end:
        if (const auto how = body_of<refused_word>(m.bytes); how && how->code != 0)
          listed_end(true, how->why);
        return end();
      default: return;
    }
  }
  void lost(const node_lost& m) {
    if (m.node != setup.program && m.node != setup.host.self) return;
    // What it said before it went counts.
    has_lost_program = has_lost_program || !is_ending;
    end();
  }
};

caf::behavior run_node_gate(caf::stateful_actor<node_gate_state>* self, node_gate_setup setup) {
  auto& s = self->state;
  s.g.self = self;
  s.g.node = setup.host.node;
  s.g.job = setup.job;
  s.setup = std::move(setup);
  return {
      [&s](work_word_came& m) { s.word(m); },
      [&s](const node_lost& m) { s.lost(m); },
      // The program is gone, or will hear that this node is.
      [](const word_refused&) {},
      [&s](stream_bound& m) { s.bound(m); },
      [&s](stream_value& m) { s.g.value(m); },
      [&s](gate_tick) { s.send_counts(); },
      [&s](flow_begin& m) {
        if (!s.is_ending) s.g.begin(m);
      },
      [&s](const flow_halt& m) { s.g.halt(m); },
      [&s](flow_surrender) { s.g.surrender(); },
      [&s](flow_resume) {
        if (!s.is_ending) s.g.resume();
      },
      [&s](const topology_ended& m) { s.ended(m); },
      [&s](end_parts& m) {
        s.owner = nullptr;
        s.g.let_go();
        m.left->set_value();
      },
      [&s](part_up& m) { s.up(m); },
      [&s](part_down) { s.down(); },
  };
}

}  // namespace

caf::actor spawn_program_gate(caf::actor_system& sys, caf::execution_unit* service,
                              program_gate_setup setup) {
  return spawn_on(sys, service, &run_program_gate, std::move(setup));
}

caf::actor spawn_node_gate(node_gate_setup setup) {
  auto& sys = *setup.host.system;
  auto* service = setup.host.service;
  return spawn_on(sys, service, &run_node_gate, std::move(setup));
}

}  // namespace troupe
