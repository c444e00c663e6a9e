// Topologies over several processes, all in one thread: random ones by seed, whose items go from
// process to process as bytes, while each process cuts its groups anew at random moments, beside
// the same topology in one group.

#include "troupe/runtime/flow/drain.hpp"
#include "troupe/runtime/flow/flow.hpp"
#include "troupe/runtime/flow/item_frames.hpp"
#include "troupe/runtime/flow/recovered_replicas.hpp"
#include "troupe/runtime/flow/topology_parts.hpp"

#include <boost/test/unit_test.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <map>
#include <random>
#include <stdexcept>

using namespace troupe;

namespace {

struct scaled {
  std::int64_t factor = 1;
  static constexpr auto fields = troupe::fields<&scaled::factor>("factor");
  std::int64_t operator()(std::int64_t x) const { return x * factor; }
};
struct twins {
  generator<std::int64_t> operator()(std::int64_t x) const {
    for (std::int64_t k = 0; k < x % 4; ++k) co_yield x + k;
  }
};
struct not_threes {
  std::optional<std::int64_t> operator()(std::int64_t x) const {
    return x % 3 != 0 ? std::optional(x) : std::nullopt;
  }
};
struct sum_up {
  std::int64_t state = 0;
  std::int64_t operator()(std::int64_t x) { return state += x; }
  std::int64_t finish() { return state; }
  static constexpr auto fields = troupe::fields<&sum_up::state>("state");
};
struct by_last_digit {
  std::int64_t operator()(const std::int64_t& x) const { return (x % 10 + 10) % 10; }
};
struct count_each {
  std::int64_t state = 0;
  void operator()(std::int64_t) { ++state; }
  std::int64_t finish(std::int64_t key) const { return key * 1'000'000 + state; }
  static constexpr auto fields = troupe::fields<&count_each::state>("state");
};
// Several items of one, each of which depends on all before.
struct running_sums {
  std::int64_t state = 0;
  generator<std::int64_t> operator()(std::int64_t x) {
    for (std::int64_t k = 0; k < (x % 4 + 4) % 4; ++k) co_yield state += x + k;
  }
  static constexpr auto fields = troupe::fields<&running_sums::state>("state");
};
struct no_elevens {
  std::int64_t operator()(std::int64_t x) const {
    if (x % 11 == 0) throw std::runtime_error("an eleven");
    return x;
  }
};
std::int64_t plus_one(std::int64_t x) { return x + 1; }

const stage_library& stages() {
  static const stage_library all(
      "numbers", "1.0",
      {stage_of<scaled>("scaled"), stage_of<twins>("twins"), stage_of<not_threes>("not_threes"),
       stage_of<sum_up>("sum_up"), stage_of<running_sums>("running_sums"),
       stage_by_key<running_sums, by_last_digit>("running_sums_by_digit"),
       stage_by_key<sum_up, by_last_digit>("sum_up_by_digit"),
       stage_by_key<count_each, by_last_digit>("count_each"), stage_of<no_elevens>("no_elevens"),
       stage_of<&plus_one>("plus_one")});
  return all;
}

const char* const places[] = {"", "/job:worker", "/node:n1", "/label:rack=2", "/job:worker/task:1"};
const std::vector<place_node> nodes{
    {"n1", "worker", {}}, {"n2", "worker", {"rack=2"}}, {"n3", "", {"rack=2"}}};

struct random_topology {
  std::mt19937_64 random;
  flow_graph g;
  struct end {
    std::shared_ptr<std::vector<std::int64_t>> items;
    bool is_ordered;
  };
  std::vector<end> ends;
  std::shared_ptr<std::vector<dead_letter>> dead;

  explicit random_topology(std::uint64_t seed) : random(seed) {
    struct open {
      flow<std::int64_t> f;
      bool is_ordered;
    };
    std::vector<open> flows;
    const auto letters = dead_letters(g);
    const auto sources = 1 + pick(2);
    for (std::uint64_t i = 0; i < sources; ++i)
      flows.push_back(
          {source(g, numbers{std::int64_t(200 + pick(seed % 4 == 1 ? 3000 : 400))}), true});
    const auto steps = 2 + pick(8);
    for (std::uint64_t i = 0; i < steps; ++i) {
      const auto at = pick(flows.size());
      auto f = flows[at];
      stage_options o{.replicas = std::uint32_t(1 + pick(4)), .on = places[pick(5)]};
      auto one = o;
      one.replicas = 1;
      switch (pick(14)) {
        case 0: f.f = map(f.f, plus_one, o); break;
        case 1: f.f = map(f.f, scaled{std::int64_t(pick(5)) - 2}, o); break;
        case 2: f.f = map(f.f, twins{}, o); break;
        case 3: f.f = map(f.f, not_threes{}, o); break;
        case 4:
          if (f.is_ordered) f.f = map(f.f, sum_up{}, one);
          break;
        case 5:
          o.on_error = skip(), o.dead_letters = letters;
          f.f = map(f.f, no_elevens{}, o);
          break;
        case 6: f.f = partition_by(f.f, by_last_digit{}, count_each{}, o); break;
        case 7: {
          auto [a, b] = split(f.f, [](const std::int64_t& x) { return x % 2 == 0; });
          f.f = a;
          flows.push_back({b, f.is_ordered});
          break;
        }
        case 8: {
          const auto other = flows[pick(flows.size())];
          f.f = merge(f.f, map(other.f, plus_one, one));
          f.is_ordered = false;
          break;
        }
        case 9:
          if (f.is_ordered) f.f = first(f.f, 1 + pick(300));
          break;
        case 12:
          if (f.is_ordered) f.f = map(f.f, running_sums{}, one);
          break;
        case 13:
          // Each key's items stay in their order, whatever lanes there are.
          if (f.is_ordered) f.f = partition_by(f.f, by_last_digit{}, running_sums{}, o);
          break;
        case 11: {
          // One branch is behind by as much as a window holds.
          if (!f.is_ordered) break;
          const auto s = map(f.f, scaled{1}, o);
          f.f = map(zip(window(s, {.count = 1 + pick(30), .step = 1}), s),
                    [](std::tuple<std::vector<std::int64_t>, std::int64_t> p) {
                      return std::get<0>(p).back() * 3 + std::get<1>(p);
                    });
          break;
        }
        case 10: {
          const auto doubled = map(f.f, scaled{2}, o);
          f.f = map(zip(f.f, doubled), [](std::tuple<std::int64_t, std::int64_t> p) {
            return std::get<0>(p) ^ std::get<1>(p);
          });
          break;
        }
      }
      flows[at] = f;
    }
    for (const auto& f : flows) ends.push_back({collect(f.f), f.is_ordered});
    dead = collect(letters);
  }

  struct numbers {
    std::int64_t n, at = 0;
    std::optional<std::int64_t> operator()() { return at < n ? std::optional(at++) : std::nullopt; }
  };
  std::uint64_t pick(std::uint64_t n) { return random() % n; }
  std::vector<std::vector<std::int64_t>> results() const {
    std::vector<std::vector<std::int64_t>> all;
    for (const auto& e : ends) {
      all.push_back(*e.items);
      if (!e.is_ordered) std::ranges::sort(all.back());
    }
    return all;
  }
  // Where each came from, whatever the order.
  std::vector<std::string> letters() const {
    std::vector<std::string> all;
    for (const auto& d : *dead)
      all.push_back(d.source + " " + std::to_string(d.number) + " " + d.reason);
    std::ranges::sort(all);
    return all;
  }
};

// Processes that send each other frames, in the order of each pair of them, and groups within.
struct processes {
  std::mt19937_64 random;
  std::int64_t now = 0;
  struct message {
    std::uint32_t edge;
    enum { items, room, close } what;
    std::vector<flow_item> of;
    bool is_last;
  };
  struct process {
    std::shared_ptr<const flow_graph> graph;
    std::vector<flow_group> groups;
    std::vector<std::uint32_t> group_of;
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::deque<message>> inside;
  };
  std::vector<process> all;
  std::vector<std::uint32_t> process_of;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::deque<tensor>> between;
  std::uint64_t frames = 0;
  std::vector<bool> is_gone = std::vector<bool>(4, false);
  int losses = 0, pauses = 0, partitions = 0, zombies = 0;
  std::uint64_t turn = 0;
  std::vector<std::uint64_t> stands_until = std::vector<std::uint64_t>(4, 0);
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint64_t> parted_until;  // one way
  std::uint64_t loads = 0;  // states that a lost process had, and another one has now

  far_end far(std::uint32_t p, std::uint32_t edge) const {
    return far_end_of(*all[p].graph, edge, true);
  }
  std::uint32_t other(std::uint32_t p, std::uint32_t edge) const {
    const auto& e = all[p].graph->edges()[edge];
    return process_of[e.from] == p ? process_of[e.to] : process_of[e.from];
  }

  struct wire final : flow_wire {
    processes& s;
    std::uint32_t p, group;
    wire(processes& sim, std::uint32_t process, std::uint32_t g) : s(sim), p(process), group(g) {}
    process& here() const { return s.all[p]; }
    bool goes_far(std::uint32_t edge) const { return is_far(*here().graph, edge); }
    void post(std::uint32_t edge, tensor frame) {
      // Nor does anybody hear one that is held dead, and does not know it yet.
      if (s.is_gone[s.other(p, edge)] || s.is_gone[p]) return;
      s.between[{p, s.other(p, edge)}].push_back(std::move(frame));
      ++s.frames;
    }
    void put(std::uint32_t edge, bool to, message m) {
      const auto& e = here().graph->edges()[edge];
      here().inside[{group, here().group_of[to ? e.to : e.from]}].push_back(std::move(m));
    }
    void send(std::uint32_t edge, std::vector<flow_item>&& items, bool is_last) override {
      if (goes_far(edge)) {
        auto frame = items_frame(edge, items, is_last, s.far(p, edge), s.now, 1 << 20);
        BOOST_REQUIRE(frame);
        return post(edge, std::move(*frame));
      }
      put(edge, true, {edge, message::items, std::move(items), is_last});
    }
    void give_room(std::uint32_t edge) override {
      const auto& m = *here().groups[group].meter(edge);
      if (goes_far(edge)) return post(edge, taken_frame(edge, m.taken_items, m.taken_bytes));
      put(edge, false, {edge, message::room, {}, false});
    }
    void close(std::uint32_t edge) override {
      if (goes_far(edge)) return post(edge, closed_frame(edge));
      put(edge, false, {edge, message::close, {}, false});
    }
  };

  void deliver_inside(process& p, std::pair<std::uint32_t, std::uint32_t> way) {
    auto& queue = p.inside[way];
    auto m = std::move(queue.front());
    queue.pop_front();
    if (queue.empty()) p.inside.erase(way);
    auto& g = p.groups[way.second];
    if (m.what == message::items) g.deliver(m.edge, std::move(m.of), m.is_last);
    if (m.what == message::room) g.room(m.edge);
    if (m.what == message::close) g.close(m.edge);
  }
  void deliver_between(std::pair<std::uint32_t, std::uint32_t> way) {
    auto& queue = between[way];
    const auto frame = std::move(queue.front());
    queue.pop_front();
    if (queue.empty()) between.erase(way);
    auto& p = all[way.second];
    const auto head = head_of(frame);
    BOOST_REQUIRE(head);
    const auto& e = p.graph->edges()[head->edge];
    if (head->kind == frame_kind::items) {
      auto read = items_of(frame, far(way.second, head->edge), now);
      BOOST_REQUIRE(read);
      return p.groups[p.group_of[e.to]].deliver(head->edge, std::move(read->items), read->is_last);
    }
    auto& from = p.groups[p.group_of[e.from]];
    if (head->kind == frame_kind::closed) return from.close(head->edge);
    const auto taken = taken_of(frame);
    BOOST_REQUIRE(taken);
    auto& meter = *from.meter(head->edge);
    BOOST_REQUIRE_LE(meter.taken_items.load(), taken->items);
    BOOST_REQUIRE_LE(taken->items, meter.put_items.load());
    meter.taken_items = taken->items;
    meter.taken_bytes = taken->bytes;
    if (meter.producer_waits.exchange(false)) from.room(head->edge);
  }
  void cut_anew(process& p, troupe::flow_group whole) {
    const auto n = 1 + random() % 3;
    for (auto& x : p.group_of) x = std::uint32_t(random() % n);
    p.groups = flow_group::cut(std::move(whole), p.group_of);
  }
  void add(std::shared_ptr<const flow_graph> graph) {
    auto& p = all.emplace_back();
    p.group_of.assign(graph->stages().size(), 0);
    p.graph = graph;
    cut_anew(p, troupe::flow_group(graph));
  }
  // All that it has can be made again.
  bool can_go(std::uint32_t n) const {
    if (n == 0 || is_gone[n] || all[n].groups.empty()) return false;
    for (std::uint32_t i = 0; i < process_of.size(); ++i)
      if (process_of[i] == n && !all[0].graph->stages()[i].is_kept) return false;
    return true;
  }
  // Process n is killed: some of what it has sent still comes. Or it is held dead, since it was not
  // heard for too long, and goes on until it hears of that.
  void lose(std::uint32_t n, bool goes_on = false) {
    is_gone[n] = true;
    ++losses;
    zombies += goes_on ? 1 : 0;
    if (!goes_on) all[n].groups.clear();
    for (std::uint32_t other = 0; other < all.size(); ++other) {
      between.erase({other, n});
      const auto way = std::pair(n, other);
      for (auto left = between.contains(way) ? random() % (between[way].size() + 1) : 0; left > 0;
           --left)
        deliver_between(way);
      between.erase(way);
    }
    auto& program = all[0];
    while (!program.inside.empty()) deliver_inside(program, program.inside.begin()->first);
    auto whole = flow_group::put_together(std::move(program.groups));
    std::vector<std::uint32_t> stages;
    for (std::uint32_t i = 0; i < process_of.size(); ++i)
      if (process_of[i] == n) stages.push_back(i);
    for (const auto i : stages) {
      const auto& s = program.graph->stages()[i];
      const auto& deal = program.graph->stages()[program.graph->edges()[s.in[0]].from];
      if (s.is_recovered && deal.ledger->cuts(s.replica) > 0) ++loads;
    }
    whole.lose(stages);
    cut_anew(program, std::move(whole));
  }
  // Of every process: stages that are not over, and what waits before them.
  std::string what_waits() const {
    std::string text;
    for (std::uint32_t n = 0; n < all.size(); ++n)
      for (std::uint32_t i = 0; i < process_of.size() && !all[n].groups.empty(); ++i) {
        const auto& g = all[n].groups[all[n].group_of[i]];
        if (!g.has_stage(i) || g.counters(i).is_over.load()) continue;
        text += fmt::format("\n{}: {} has taken {}", n, g.graph().stages()[i].name,
                            g.counters(i).items_in.load());
        for (const auto e : g.graph().stages()[i].in)
          text += fmt::format(", {} of {} wait", g.meter(e)->put_items - g.meter(e)->taken_items,
                              g.meter(e)->put_items.load());
      }
    return text;
  }
  bool is_over() const {
    return std::ranges::all_of(all, [this](const auto& p) {
      return is_gone[std::size_t(&p - all.data())] ||
             std::ranges::all_of(p.groups, [](const auto& g) { return g.is_over(); });
    });
  }
  // A process stands still for a while; frames of two of them come later; or both are cut off from
  // each other, either way.
  void disturb() {
    const auto n = std::uint32_t(random() % all.size());
    const auto until = turn + 50 + random() % 400;
    if (random() % 2 == 0) {
      stands_until[n] = until;
      ++pauses;
      return;
    }
    const auto other = std::uint32_t(random() % all.size());
    if (other == n) return;
    ++partitions;
    parted_until[{n, other}] = until;
    if (random() % 2 == 0) parted_until[{other, n}] = until;
  }
  bool is_parted(std::pair<std::uint32_t, std::uint32_t> way) const {
    const auto at = parted_until.find(way);
    return at != parted_until.end() && turn < at->second;
  }
  // As far as it comes without the others.
  void run_program() {
    auto& p = all[0];
    const auto clock = [this] { return now += 100; };
    for (int idle = 0; idle < 200; ++idle) {
      if (!p.inside.empty()) {
        deliver_inside(p, p.inside.begin()->first);
        idle = 0;
      }
      const auto i = std::uint32_t(random() % p.groups.size());
      wire w(*this, 0, i);
      if (p.groups[i].run(clock, now + 10'000, &w) == flow_group::state::more) idle = 0;
    }
  }
  void run(bool loses, bool disturbs = false) {
    // Time goes on by more than a deal sleeps at its end.
    const auto clock = [this] { return now += 100; };
    for (int idle = 0; !is_over();) {
      if (idle >= 10'000) BOOST_FAIL("stuck: " << what_waits());
      ++turn;
      if (disturbs && random() % 150 == 0) disturb();
      const auto n = std::uint32_t(random() % all.size());
      auto& p = all[n];
      if (p.groups.empty()) continue;
      if (turn < stands_until[n]) continue;
      // It hears that it is held dead.
      if (is_gone[n] && random() % 100 == 0) {
        p.groups.clear();
        p.inside.clear();
        continue;
      }
      if (loses && random() % 200 == 0)
        if (const auto victim = std::uint32_t(random() % all.size()); can_go(victim)) {
          lose(victim, disturbs && random() % 2 == 0);
          // Now and then two at once.
          if (const auto next = std::uint32_t(random() % all.size());
              random() % 2 == 0 && can_go(next))
            lose(next);
          continue;
        }
      if (random() % 40 == 0) {
        while (!p.inside.empty()) deliver_inside(p, p.inside.begin()->first);
        cut_anew(p, flow_group::put_together(std::move(p.groups)));
        continue;
      }
      if (!between.empty() && random() % 3 == 0) {
        auto at = between.begin();
        std::advance(at, random() % between.size());
        idle = 0;
        if (!is_parted(at->first) && turn >= stands_until[at->first.second])
          deliver_between(at->first);
        continue;
      }
      if (!p.inside.empty() && random() % 2 == 0) {
        auto at = p.inside.begin();
        std::advance(at, random() % p.inside.size());
        deliver_inside(p, at->first);
        idle = 0;
        continue;
      }
      const auto i = std::uint32_t(random() % p.groups.size());
      wire w(*this, n, i);
      const auto state = p.groups[i].run(clock, now + 1 + std::int64_t(random() % 10'000), &w);
      if (state == flow_group::state::failed) BOOST_FAIL(p.groups[i].failure()->why.text());
      idle = state == flow_group::state::more ? 0 : idle + 1;
      if (idle > 100) now += 100'000;
    }
  }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(far_parts)

struct sums {
  std::size_t items = 0, letters = 0, far = 0;
  std::uint64_t frames = 0;
  int losses = 0;
  std::uint64_t cuts = 0, loads = 0;
  int pauses = 0, partitions = 0, zombies = 0;
};
sums compare(std::uint64_t seeds, bool loses, bool disturbs = false) {
  sums all;
  const auto* more = std::getenv("TROUPE_SEEDS");
  if (more != nullptr) seeds = std::strtoull(more, nullptr, 10);
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    random_topology alone(seed), parted(seed);
    const auto done = drain(alone.g);
    const auto ok = parted.g.check();
    BOOST_REQUIRE_EQUAL(bool(done), bool(ok));
    if (!ok) continue;
    // Tight edges, or so wide that much is under way.
    if (seed % 2 == 0) parted.g.set_budget(64 * parted.g.edges().size());
    const auto again = parted.g.check();
    BOOST_REQUIRE_MESSAGE(again, (again ? "" : again.error().text()));
    const auto process_of = place_on_nodes(parted.g, nodes);
    BOOST_REQUIRE(process_of);
    auto what = describe(parted.g, *process_of, {&stages()});
    BOOST_REQUIRE(what);
    what->processes = {{1, "program", "a"}, {2, "n1", "a"}, {3, "n2", "b"}, {4, "n3", "b"}};
    mark_elsewhere(parted.g, *process_of);
    for (std::uint32_t i = 0; i < process_of->size(); ++i) {
      all.far += (*process_of)[i] != 0 ? 1 : 0;
    }
    for (std::uint32_t i = 0; i < process_of->size(); ++i)
      if (const auto& l = parted.g.stages()[i].ledger; l != nullptr) {
        if (seed % 4 == 1) continue;  // seldom: much is made again at once
        l->cut_bytes = 100 + parted.pick(10'000);
        l->cut_ns = std::int64_t(1'000 + parted.pick(1'000'000));
      }
    processes s;
    s.random.seed(seed);
    s.process_of = *process_of;
    s.add(std::shared_ptr<const flow_graph>(std::shared_ptr<const void>(), &parted.g));
    for (std::uint32_t p = 1; p < 4; ++p) {
      if (std::ranges::find(*process_of, p) == process_of->end()) {
        s.all.emplace_back();  // nothing runs there
        continue;
      }
      // As it comes over a wire.
      const auto came = value_of<topology_description>(bytes_of(*what));
      BOOST_REQUIRE(came);
      auto part = part_of(*came, p, {&stages()});
      BOOST_REQUIRE_MESSAGE(part, (part ? "" : part.error().text()));
      s.add(*part);
    }
    BOOST_TEST_INFO("seed " << seed);
    s.run(loses, disturbs);
    all.pauses += s.pauses;
    all.partitions += s.partitions;
    all.zombies += s.zombies;
    all.frames += s.frames;
    all.losses += s.losses;
    all.loads += s.loads;
    for (const auto& st : parted.g.stages())
      for (std::uint32_t l = 0; st.kind == "deal" && st.ledger != nullptr &&
                                st.ledger->has_lanes() && l * lane_instances < st.outputs;
           ++l)
        all.cuts += st.ledger->cuts(l);
    const auto wanted = alone.results(), got = parted.results();
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      all.items += wanted[i].size();
      BOOST_REQUIRE_MESSAGE(wanted[i] == got[i], "seed " << seed << ", end " << i << ": "
                                                         << got[i].size() << " items of "
                                                         << wanted[i].size());
    }
    // How many fail behind a first() depends on how far ahead it ran.
    if (alone.letters().size() <= parted.letters().size()) all.letters += alone.letters().size();
  }
  return all;
}

BOOST_AUTO_TEST_CASE(over_any_processes_it_makes_what_it_makes_in_one) {
  const auto all = compare(200, false);
  BOOST_CHECK_GT(all.items, 40'000U);
  BOOST_CHECK_GT(all.letters, 500U);
  BOOST_CHECK_GT(all.frames, 10'000U);
  BOOST_CHECK_GT(all.far, 300U);
}

BOOST_AUTO_TEST_CASE(what_a_lost_process_had_is_made_again_once_and_in_order) {
  const auto all = compare(300, true);
  BOOST_CHECK_GT(all.items, 60'000U);
  BOOST_CHECK_GT(all.losses, 300);
  BOOST_CHECK_GT(all.cuts, 1'000U);
  BOOST_CHECK_GT(all.loads, 100U);
  BOOST_TEST_MESSAGE(all.losses << " losses, " << all.cuts << " cuts, " << all.loads << " loads");
}

BOOST_AUTO_TEST_CASE(pauses_and_partitions_lose_and_double_nothing) {
  const auto all = compare(200, true, true);
  BOOST_CHECK_GT(all.items, 40'000U);
  BOOST_CHECK_GT(all.losses, 200);
  BOOST_CHECK_GT(all.zombies, 100);
  BOOST_CHECK_GT(all.pauses, 1'000);
  BOOST_CHECK_GT(all.partitions, 1'000);
  BOOST_TEST_MESSAGE(all.losses << " losses, " << all.zombies << " of them held dead alone, "
                                << all.pauses << " pauses, " << all.partitions << " partitions");
}

// Numbers through `add`, with the nodes' parts: lost ones are lost when the program can go no
// further without them. What comes of them, beside what comes without nodes.
template <class Add>
void is_made_again(std::int64_t items, const std::vector<std::uint32_t>& lost, const Add& add) {
  const auto build = [&](flow_graph& g) {
    return collect(add(source(g, random_topology::numbers{items})));
  };
  flow_graph alone;
  const auto wanted = build(alone);
  BOOST_REQUIRE(drain(alone));
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    flow_graph again;
    const auto made = build(again);
    BOOST_REQUIRE(again.check());
    const auto process_of = place_on_nodes(again, nodes);
    BOOST_REQUIRE(process_of);
    auto what = describe(again, *process_of, {&stages()});
    BOOST_REQUIRE(what);
    what->processes = {{1, "program", "a"}, {2, "n1", "a"}, {3, "n2", "b"}, {4, "n3", "b"}};
    mark_elsewhere(again, *process_of);
    for (std::uint32_t e = 0; e < what->edges.size(); ++e)
      again.edge_at(e).items_max = what->edges[e].items_max;
    processes s;
    s.random.seed(seed);
    s.process_of = *process_of;
    s.add(std::shared_ptr<const flow_graph>(std::shared_ptr<const void>(), &again));
    for (std::uint32_t p = 1; p < 4; ++p) {
      if (std::ranges::find(*process_of, p) == process_of->end()) {
        s.all.emplace_back();
        continue;
      }
      auto part = part_of(*what, p, {&stages()});
      BOOST_REQUIRE(part);
      s.add(*part);
    }
    s.run_program();
    for (const auto p : lost) s.lose(p);
    s.run(false);
    BOOST_REQUIRE_MESSAGE(*made == *wanted, "seed " << seed << ": " << made->size() << " items of "
                                                    << wanted->size());
  }
}

// Each lane had more under way than its next instance holds, and the first ticket may be anywhere.
BOOST_AUTO_TEST_CASE(lanes_that_are_lost_together_wait_for_nobody) {
  for (const std::uint32_t replicas : {1U, 2U, 4U})
    is_made_again(4000, {1}, [&](const flow<std::int64_t>& f) {
      return partition_by(f, by_last_digit{}, sum_up{}, {.replicas = replicas, .on = "/node:n1"});
    });
}

// What lanes make at their ends comes when all tickets have, in the order of the lanes.
BOOST_AUTO_TEST_CASE(ends_of_lanes_come_last_and_in_order) {
  for (const auto& lost : {std::vector<std::uint32_t>{}, {1}, {2}})
    for (const std::int64_t items : {10, 100})
      is_made_again(items, lost, [&](const flow<std::int64_t>& f) {
        return partition_by(f, by_last_digit{}, sum_up{}, {.replicas = 4, .on = "/job:worker"});
      });
}

BOOST_AUTO_TEST_CASE(an_end_that_is_lost_twice_comes_once) {
  for (const auto& lost : {std::vector<std::uint32_t>{1, 2}, {2, 1}, {1}, {2}})
    is_made_again(50, lost, [&](const flow<std::int64_t>& f) {
      return map(f, sum_up{}, {.on = "/job:worker"});
    });
}

BOOST_AUTO_TEST_SUITE_END()
