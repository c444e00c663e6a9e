// Groups of stages, cut and put together at random moments, beside one that runs everything: random
// topologies, by seed.

#include "troupe/runtime/flow/drain.hpp"
#include "troupe/runtime/flow/flow.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <random>
#include <string_view>
#include <vector>

using namespace troupe;

namespace {

struct running_sum {
  std::int64_t state = 0;
  std::int64_t operator()(std::int64_t x) { return state += x; }
  std::int64_t finish() { return state; }
};

// What a topology of that seed makes: of each end its items, in order or (after a merge) sorted.
struct random_topology {
  std::mt19937_64 random;
  flow_graph g;
  struct end {
    std::shared_ptr<std::vector<std::int64_t>> items;
    bool is_ordered;
  };
  std::vector<end> ends;

  explicit random_topology(std::uint64_t seed) : random(seed) {
    struct open {
      flow<std::int64_t> f;
      bool is_ordered;
    };
    std::vector<open> flows;
    const auto sources = 1 + pick(2);
    for (std::uint64_t i = 0; i < sources; ++i)
      flows.push_back({source(g, numbers{std::int64_t(200 + pick(400))}), true});
    const auto stages = 2 + pick(8);
    for (std::uint64_t i = 0; i < stages; ++i) {
      const auto at = pick(flows.size());
      auto f = flows[at];
      switch (pick(10)) {
        case 0: f.f = map(f.f, [](std::int64_t x) { return x + 1; }); break;
        case 1:
          f.f = map(f.f, [](std::int64_t x) { return x * 3; },
                    {.replicas = std::uint32_t(2 + pick(3))});
          break;
        case 2: f.f = filter(f.f, [](std::int64_t x) { return x % 3 != 0; }); break;
        case 3:
          f.f = map(f.f,
                    [](std::int64_t x) -> generator<std::int64_t> {
                      for (std::int64_t k = 0; k < x % 4; ++k) co_yield x + k;
                    },
                    {.replicas = std::uint32_t(1 + pick(3))});
          break;
        case 4: {
          auto [a, b] = split(f.f, [](const std::int64_t& x) { return x % 2 == 0; });
          f.f = a;
          flows.push_back({b, f.is_ordered});
          break;
        }
        case 5: {
          const auto other = flows[pick(flows.size())];
          f.f = merge(f.f, map(other.f, [](std::int64_t x) { return x; }));
          f.is_ordered = false;
          break;
        }
        case 6:
          if (!f.is_ordered) break;
          f.f = unbatch(batch(f.f, {.count = 1 + pick(7)}));
          break;
        case 7:
          if (f.is_ordered) f.f = map(f.f, running_sum{});
          break;
        case 9:
          if (f.is_ordered) f.f = first(f.f, 1 + pick(300));
          break;
        case 8: {
          auto doubled = map(f.f, [](std::int64_t x) { return x * 2; });
          f.f = map(zip(f.f, doubled), [](std::tuple<std::int64_t, std::int64_t> p) {
            return std::get<0>(p) ^ std::get<1>(p);
          });
          break;
        }
      }
      flows[at] = f;
    }
    for (const auto& f : flows) ends.push_back({collect(f.f), f.is_ordered});
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
};

// Groups that send each other messages, in a random order; of one group to another in theirs.
struct simulated {
  std::mt19937_64 random;
  std::vector<flow_group> groups;
  std::vector<std::uint32_t> group_of;
  struct message {
    std::uint32_t edge;
    enum { items, room, close } what;
    std::vector<flow_item> of;
    bool is_last;
  };
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::deque<message>> under_way;
  std::int64_t now = 0;

  struct wire final : flow_wire {
    simulated& s;
    std::uint32_t from;
    wire(simulated& sim, std::uint32_t group) : s(sim), from(group) {}
    std::uint32_t end(std::uint32_t edge, bool to) const {
      const auto& e = s.groups[from].graph().edges()[edge];
      return s.group_of[to ? e.to : e.from];
    }
    void send(std::uint32_t edge, std::vector<flow_item>&& items, bool is_last) override {
      s.under_way[{from, end(edge, true)}].push_back(
          {edge, message::items, std::move(items), is_last});
    }
    void give_room(std::uint32_t edge) override {
      s.under_way[{from, end(edge, false)}].push_back({edge, message::room, {}, false});
    }
    void close(std::uint32_t edge) override {
      s.under_way[{from, end(edge, false)}].push_back({edge, message::close, {}, false});
    }
  };

  void deliver_one(std::pair<std::uint32_t, std::uint32_t> way) {
    auto& queue = under_way[way];
    auto m = std::move(queue.front());
    queue.pop_front();
    if (queue.empty()) under_way.erase(way);
    auto& g = groups[way.second];
    if (m.what == message::items) g.deliver(m.edge, std::move(m.of), m.is_last);
    if (m.what == message::room) g.room(m.edge);
    if (m.what == message::close) g.close(m.edge);
  }
  void cut_anew(flow_group whole) {
    const auto n = 1 + random() % 4;
    group_of.assign(whole.graph().stages().size(), 0);
    for (auto& x : group_of) x = std::uint32_t(random() % n);
    groups = flow_group::cut(std::move(whole), group_of);
  }
  // How often it was cut.
  int run(flow_group whole) {
    int cuts = 1;
    cut_anew(std::move(whole));
    const auto clock = [this] { return now += 100; };
    for (int idle = 0;;) {
      if (std::ranges::all_of(groups, [](const auto& g) { return g.is_over(); })) return cuts;
      BOOST_REQUIRE_MESSAGE(idle < 10'000, "stuck");
      if (random() % 40 == 0) {
        while (!under_way.empty()) deliver_one(under_way.begin()->first);
        cut_anew(flow_group::put_together(std::move(groups)));
        ++cuts;
        continue;
      }
      if (!under_way.empty() && random() % 2 == 0) {
        auto at = under_way.begin();
        std::advance(at, random() % under_way.size());
        deliver_one(at->first);
        idle = 0;
        continue;
      }
      const auto i = std::uint32_t(random() % groups.size());
      wire w(*this, i);
      const auto state = groups[i].run(clock, now + 1 + std::int64_t(random() % 10'000), &w);
      BOOST_REQUIRE(state != flow_group::state::failed);
      idle = state == flow_group::state::more ? 0 : idle + 1;
    }
  }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(flow_group)

// Whoever waits for its thread, such as to end everything, waits for one call and no more.
BOOST_AUTO_TEST_CASE(after_each_slow_call_it_looks_at_the_clock) {
  flow_graph g;
  std::int64_t now = 0;
  int slow_calls = 0, quick = 0;
  std::vector<int> many(1000);
  const auto all = batch(from(g, many), {.count = 1000});
  for_each(map(unbatch(all), [&](int x) { return ++quick, x; }, {.blocks = true}), [&](int) {
    ++slow_calls;
    now += 1'000'000'000;
  });
  BOOST_REQUIRE(g.check());
  troupe::flow_group group(std::shared_ptr<const flow_graph>(std::shared_ptr<const void>(), &g));
  const auto clock = [&] { return now; };
  for (int turn = 0; turn < 50; ++turn) {
    const auto before = slow_calls;
    (void)group.run(clock, now + 1'000'000, nullptr);
    BOOST_REQUIRE(slow_calls - before <= 2);
  }
  BOOST_TEST(slow_calls > 10);
}

BOOST_AUTO_TEST_CASE(cut_anywhere_at_any_time_it_makes_the_same) {
  int cuts = 0;
  std::size_t items = 0;
  const auto* more = std::getenv("TROUPE_SEEDS");
  const auto seeds = more != nullptr ? std::strtoull(more, nullptr, 10) : 300;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    random_topology alone(seed), parted(seed);
    // A branch that cannot be joined is refused, in both alike.
    const auto done = drain(alone.g);
    const auto ok = parted.g.check();
    BOOST_REQUIRE_EQUAL(bool(done), bool(ok));
    if (!ok) continue;
    // Small bounds, so that groups wait for each other.
    parted.g.set_budget(64 * parted.g.edges().size());
    BOOST_REQUIRE(parted.g.check());
    simulated s;
    s.random.seed(seed);
    cuts += s.run(troupe::flow_group(
        std::shared_ptr<const flow_graph>(std::shared_ptr<const void>(), &parted.g)));
    const auto wanted = alone.results(), got = parted.results();
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      items += wanted[i].size();
      BOOST_REQUIRE_MESSAGE(wanted[i] == got[i], "seed " << seed << ", end " << i << ": "
                                                         << got[i].size() << " items of "
                                                         << wanted[i].size());
    }
  }
  BOOST_CHECK_GT(cuts, 1000);
  BOOST_CHECK_GT(items, 100'000U);
}

// Two groups of one topology, of which `elsewhere` says what the second one has.
struct two_groups : simulated {
  explicit two_groups(flow_graph& g, const std::vector<std::string_view>& elsewhere) {
    for (const auto& s : g.stages())
      group_of.push_back(std::ranges::find(elsewhere, s.name) != elsewhere.end() ? 1 : 0);
    groups = troupe::flow_group::cut(
        troupe::flow_group(std::shared_ptr<const flow_graph>(std::shared_ptr<const void>(), &g)),
        group_of);
  }
  auto go(std::uint32_t i) {
    wire w(*this, i);
    const std::function<std::int64_t()> clock = [this] { return now; };
    return groups[i].run(clock, now + 1, &w);
  }
  void deliver_all() {
    while (!under_way.empty()) deliver_one(under_way.begin()->first);
  }
  static std::uint32_t at(const flow_graph& g, std::string_view name) {
    return std::uint32_t(std::ranges::find(g.stages(), name, &flow_stage_info::name) -
                         g.stages().begin());
  }
};

// A replica in the deal's own thread is called, and the deal with it: whoever is in another thread
// has to live on what it has meanwhile. Others in the deal's thread may have nothing to do.
BOOST_AUTO_TEST_CASE(a_replica_in_another_thread_has_work_ahead) {
  for (const auto replicas : {replica_count(2), between(2, 3)})
    for (const std::int64_t call_ns : {20'000, 1'000'000}) {
      flow_graph g;
      std::int64_t* now = nullptr;
      const auto made = map(source(g, random_topology::numbers{100'000}),
                            [&now, call_ns](std::int64_t x) { return *now += call_ns, x; },
                            {.name = "works", .replicas = replicas, .order = any});
      const auto all = collect(made);
      BOOST_REQUIRE(g.check());
      two_groups two(g, {"works/1"});
      now = &two.now;
      // Nobody takes from it: it gets as many as 100 us of calls are, and no more.
      for (int turn = 0; turn < 20; ++turn) two.go(0);
      two.deliver_all();
      const auto other = two.at(g, "works/1");
      const auto& meter = *two.groups[1].meter(g.stages()[other].in[0]);
      const auto ahead = call_ns == 20'000 ? 5U : 1U;
      BOOST_TEST(meter.put_items == ahead);
      // Whoever has taken them gets as many again.
      while (two.go(1) == troupe::flow_group::state::more) {
      }
      BOOST_TEST(meter.taken_items == ahead);
      two.go(0);
      BOOST_TEST(meter.put_items == 2 * ahead);
    }
}

// Some replicas have heard that nobody needs more, and others are in a call: no item is lost to
// those, and the source does not run on.
BOOST_AUTO_TEST_CASE(a_deal_gives_nothing_to_replicas_that_take_no_more) {
  flow_graph g;
  auto made = map(source(g, random_topology::numbers{1'000'000}), [](std::int64_t x) { return x; },
                  {.name = "works", .replicas = 3});
  for_each(made, [](std::int64_t) {}, {.name = "ends"});
  BOOST_REQUIRE(g.check());
  two_groups two(g, {"works/0", "works/1", "works/2", "works/gather", "ends"});
  two.now = 1000;
  const auto edge_to = [&](std::string_view name) { return g.stages()[two.at(g, name)].in[0]; };
  two.groups[0].close(edge_to("works/0"));
  two.groups[0].close(edge_to("works/2"));
  for (int i = 0; i < 100; ++i) two.go(0);
  const auto& deal = two.groups[0].counters(two.at(g, "works/deal"));
  BOOST_TEST(deal.dropped.load() == 0U);
  BOOST_TEST(deal.items_out.load() < 100U);
  two.groups[0].close(edge_to("works/1"));
  two.go(0);
  BOOST_TEST(two.groups[0].is_over());
}

// Behind it nothing goes on: its replicas have one item each, and what is left waits before it.
BOOST_AUTO_TEST_CASE(a_deal_whose_replicas_take_nothing_is_blocked) {
  flow_graph g;
  auto made = map(source(g, random_topology::numbers{100'000}), [](std::int64_t x) { return x; },
                  {.name = "works", .replicas = 2});
  for_each(made, [](std::int64_t) {}, {.name = "ends"});
  BOOST_REQUIRE(g.check());
  two_groups two(g, {"ends"});
  two.now = 1000;
  while (two.go(0) == troupe::flow_group::state::more) {
  }
  const auto& deal = two.groups[0].counters(two.at(g, "works/deal"));
  BOOST_TEST(deal.is_blocked.load());
  BOOST_TEST(two.groups[0].counters(two.at(g, "source")).is_blocked.load());
  BOOST_TEST(two.groups[0].counters(two.at(g, "works/0")).is_blocked.load());
  // And goes on with it.
  two.deliver_all();
  while (two.go(1) == troupe::flow_group::state::more) {
  }
  two.deliver_all();
  two.now += 5000;
  const auto taken = deal.items_in.load();
  two.go(0);
  BOOST_TEST(deal.items_in.load() > taken);
  BOOST_TEST(deal.blocked_ns.load() > 0U);
}

BOOST_AUTO_TEST_SUITE_END()
