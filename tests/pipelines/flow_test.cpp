// What each shape makes, what is refused before it runs, and what shapes that hang elsewhere do.

#include "troupe/runtime/flow/drain.hpp"
#include "troupe/runtime/flow/file_stages.hpp"
#include "troupe/runtime/flow/flow.hpp"
#include "troupe/runtime/flow/flow_group.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <set>

using namespace troupe;
using namespace std::chrono_literals;

namespace {

flow_totals must(result<flow_totals> r) {
  if (!r) BOOST_FAIL(r.error().text());
  return std::move(*r);
}
// The mistake that is found before anything runs.
std::string mistake(flow_graph& t) {
  const auto ok = t.check();
  if (ok) return "";
  BOOST_CHECK(ok.error().code() == error_code::usage);
  const auto text = ok.error().text();
  BOOST_TEST(text.find("flow_test.cpp:") != std::string::npos);
  return text;
}
bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}
template <class T>
void is(const std::shared_ptr<std::vector<T>>& got, const std::vector<T>& wanted) {
  BOOST_TEST(*got == wanted, boost::test_tools::per_element());
}

}  // namespace

BOOST_AUTO_TEST_SUITE(flow)

BOOST_AUTO_TEST_CASE(what_a_function_returns_is_its_contract) {
  flow_graph t;
  auto numbers = from(t, {1, 2, 3, 4, 5, 6});
  auto value = collect(map(numbers, [](int x) { return x * 10; }));
  auto optional =
      collect(map(numbers, [](int x) { return x % 2 ? std::optional(x) : std::nullopt; }));
  auto several = collect(map(numbers, [](int x) -> generator<int> {
    for (int i = 0; i < x % 3; ++i) co_yield x * 10 + i;
  }));
  auto may_fail = collect(map(numbers,
                              [](int x) -> result<int> {
                                if (x == 4) return error(error_code::failed, "four");
                                return x;
                              },
                              {.on_error = skip()}));
  must(drain(t));
  is(value, {10, 20, 30, 40, 50, 60});
  is(optional, {1, 3, 5});
  is(several, {10, 20, 21, 40, 50, 51});
  is(may_fail, {1, 2, 3, 5, 6});
}

BOOST_AUTO_TEST_CASE(state_and_finish) {
  struct sum {
    int state = 0;
    void operator()(int x) { state += x; }
    int finish() { return state; }
  };
  flow_graph t;
  auto numbers = from(t, {1, 2, 3, 4});
  auto all = collect(map(numbers, sum{}));
  auto keyed = collect(partition_by(numbers, [](int x) { return x % 2; }, sum{}));
  must(drain(t));
  is(all, {10});
  is(keyed, {6, 4});
}

BOOST_AUTO_TEST_CASE(replicas_keep_the_order_also_of_what_filters_and_fails) {
  for (const std::uint32_t replicas : {1U, 2U, 3U, 7U}) {
    flow_graph t;
    std::vector<int> all(100);
    std::iota(all.begin(), all.end(), 0);
    auto lost = dead_letters(t);
    auto f = map(from(t, all),
                 [](int x) -> result<generator<int>> {
                   if (x % 10 == 9) return error(error_code::failed, "nine");
                   return [](int y) -> generator<int> {
                     for (int i = 0; i < y % 3; ++i) co_yield y;
                   }(x);
                 },
                 {.replicas = replicas, .on_error = skip(), .dead_letters = lost});
    auto got = collect(f);
    auto letters = collect(lost);
    must(drain(t));
    std::vector<int> wanted;
    for (int x = 0; x < 100; ++x)
      for (int i = 0; i < (x % 10 == 9 ? 0 : x % 3); ++i) wanted.push_back(x);
    is(got, wanted);
    BOOST_CHECK_EQUAL(letters->size(), 10U);
    std::set<std::uint64_t> seen;
    for (const auto& l : *letters) {
      seen.insert(l.number);
      BOOST_TEST(l.reason == "nine");
    }
    BOOST_CHECK_EQUAL(seen.size(), 10U);
  }
}

BOOST_AUTO_TEST_CASE(shapes) {
  flow_graph t;
  auto numbers = from(t, {1, 2, 3, 4, 5, 6, 7});
  auto [even, odd] = split(numbers, [](const int& x) { return x % 2 == 0; });
  auto evens = collect(even), odds = collect(odd);
  auto sizes =
      collect(map(batch(numbers, {.count = 3}), [](std::vector<int> v) { return int(v.size()); }));
  auto back = collect(unbatch(batch(numbers, {.count = 4})));
  auto sums = collect(map(window(numbers, {.count = 3, .step = 1}),
                          [](std::vector<int> v) { return v[0] + v[1] + v[2]; }));
  auto pairs = collect(map(zip(numbers, map(numbers, [](int x) { return x * x; })),
                           [](std::tuple<int, int> p) { return std::get<1>(p) - std::get<0>(p); }));
  auto three = collect(first(numbers, 3));
  must(drain(t));
  is(evens, {2, 4, 6});
  is(odds, {1, 3, 5, 7});
  is(sizes, {3, 3, 1});
  is(back, {1, 2, 3, 4, 5, 6, 7});
  is(sums, {6, 9, 12, 15, 18});
  is(pairs, {0, 2, 6, 12, 20, 30, 42});
  is(three, {1, 2, 3});
}

BOOST_AUTO_TEST_CASE(joins_by_key_pair_each_item_once) {
  flow_graph t;
  auto a = from(t, {1, 2, 2, 3}), b = from(t, {2, 3, 2, 4});
  auto pairs = collect(map(join_by(a, b, [](int x) { return x; }),
                           [](std::pair<int, int> p) { return p.first * 10 + p.second; }));
  const auto totals = must(drain(t));
  std::ranges::sort(*pairs);
  is(pairs, {22, 22, 33});
  BOOST_CHECK_EQUAL(totals.of("join_by").dropped, 2U);
  flow_graph u;
  auto c = from(u, {1, 2, 3}), d = from(u, std::vector<int>{});
  collect(join_by(c, d, [](int x) { return x; }, {.hold = 2}));
  const auto r = drain(u);
  BOOST_REQUIRE(!r);
  BOOST_TEST(has(r.error().text(), ".hold allows (2)"));
}

BOOST_AUTO_TEST_CASE(a_loop_goes_round_until_nothing_is_in_it) {
  flow_graph t;
  auto loop = feedback<int>(t, {.credit = 2});
  auto next =
      map(merge(from(t, {27, 6, 1}), loop), [](int x) { return x % 2 ? 3 * x + 1 : x / 2; });
  auto [done, again] = split(next, [](const int& x) { return x == 1; });
  close(loop, again);
  auto all = collect(done);
  const auto totals = must(drain(t));
  is(all, {1, 1, 1});
  BOOST_CHECK_GT(totals.of("merge").items_in, 100U);
}

BOOST_AUTO_TEST_CASE(lossy_edges_keep_the_newest_and_count_the_rest) {
  // A consumer that is busy: it gets an item each 10 ms of the run's time.
  flow_graph t;
  int n = 0;
  class slow_source final : public stage {
   public:
    bool take(std::uint32_t, any_value&&, stage_output&) override { return false; }
    source_state produce(stage_output& out) override {
      if (n_ == 50) return source_state::over;
      out.put(0, any_value(n_++));
      return source_state::more;
    }

   private:
    int n_ = 0;
  };
  stage_info info;
  info.kind = "numbers";
  info.make = [] { return std::make_unique<slow_source>(); };
  troupe::flow<int> numbers(t, add_source(t, info), 0);
  auto kept = collect(latest(numbers));
  const auto totals = must(drain(t));
  n = int(kept->size());
  // In one thread the consumer is always ready: nothing is lost, and the count says so.
  BOOST_CHECK_EQUAL(n + int(totals.of("drop_oldest").dropped), 50);
  BOOST_TEST(kept->back() == 49);
}

BOOST_AUTO_TEST_CASE(failures_are_told_with_stage_item_and_source) {
  flow_graph t;
  auto f = map(from(t, {1, 2, 3}), [](int x) -> int {
    if (x == 2) throw 17;
    return x;
  });
  collect(f);
  const auto r = drain(t);
  BOOST_REQUIRE(!r);
  BOOST_TEST(has(r.error().text(), "map (flow_test.cpp:"));
  BOOST_TEST(has(r.error().text(), "item 1 of source: it threw something that is no exception"));
}

BOOST_AUTO_TEST_CASE(policies_bear_so_many_failures) {
  for (const std::uint64_t most : {1U, 2U, 3U}) {
    flow_graph t;
    struct moody {
      int state = 0;
      result<int> operator()(int x) {
        ++state;
        if (x % 2 == 0) return error(error_code::failed, "even");
        return state;
      }
    };
    auto skipped = collect(map(from(t, {1, 2, 3, 4, 5}), moody{}, {.on_error = skip(most)}));
    const auto r = drain(t);
    BOOST_CHECK_EQUAL(bool(r), most >= 2);
    if (!r) BOOST_TEST(has(r.error().text(), "1 failures were to be borne"));
    if (r) is(skipped, {1, 3, 5});
    flow_graph u;
    auto anew = collect(map(from(u, {1, 2, 3, 4, 5}), moody{}, {.on_error = restart(most)}));
    if (drain(u)) is(anew, {1, 1, 1});
  }
}

BOOST_AUTO_TEST_CASE(mistakes_are_told_before_it_runs_with_the_users_line) {
  {
    flow_graph t;
    auto a = from(t, {1});
    auto x = map(a, [](int i) { return i; }, {.name = "x"});
    collect(map(x, [](int i) { return i; }, {.name = "x"}));
    BOOST_TEST(has(mistake(t), "two stages are named x"));
  }
  {
    flow_graph t;
    auto a = from(t, {1});
    collect(zip(a, filter(a, [](int i) { return i > 0; })));
    BOOST_TEST(has(mistake(t), "pair them by a key (join_by)"));
  }
  {
    flow_graph t;
    auto [a, b] = split(from(t, {1}), [](const int& i) { return i > 0; });
    collect(zip(a, b));
    BOOST_TEST(has(mistake(t), "depends on the data"));
  }
  {
    flow_graph t;
    auto a = from(t, {1});
    collect(zip(batch(a, {.count = 2}), batch(a, {.count = 3})));
    BOOST_TEST(has(mistake(t), "unequal numbers of items"));
  }
  {
    flow_graph t;
    auto loop = feedback<int>(t);
    collect(merge(from(t, {1}), loop));
    BOOST_TEST(has(mistake(t), "close(loop, flow) is missing"));
  }
  {
    flow_graph t;
    auto loop = feedback<int>(t);
    auto all = merge(from(t, {1}), loop);
    close(loop, unbatch(batch(all, {.count = 2})));
    BOOST_TEST(has(mistake(t), "keeps items, and so cannot stand in the loop"));
  }
  {
    flow_graph t;
    collect(batch(from(t, {1}), {}));
    flow_graph u;
    collect(batch(from(u, {1}), {.count = 0}));
    BOOST_TEST(has(mistake(u), ".count is 0"));
  }
  {
    flow_graph t;
    collect(map(from(t, {1}), [](int i) { return i; }, {.replicas = 0}));
    BOOST_TEST(has(mistake(t), ".replicas is 0"));
    flow_graph u;
    split(from(u, {1}), [](const int& i) { return i > 0; }, {.replicas = 2});
    BOOST_TEST(has(mistake(u), "has no replicas"));
  }
  flow_graph none;
  BOOST_TEST(has(none.check().error().text(), "has no stage"));
}

// Shapes that hang in other libraries: each ends here, or is refused above.
BOOST_AUTO_TEST_CASE(shapes_that_hang_elsewhere_end) {
  {  // a source without items, into everything
    flow_graph t;
    auto none = from(t, std::vector<int>{});
    auto a = collect(zip(none, map(none, [](int x) { return x; })));
    auto b = collect(merge(none, from(t, {1, 2})));
    auto c = collect(map(none, [](int x) { return x; }, {.replicas = 4}));
    must(drain(t));
    BOOST_CHECK(a->empty() && c->empty());
    is(b, {1, 2});
  }
  {  // a join of unequal lengths: the endless one ends, too
    flow_graph t;
    auto endless = source(t, [n = 0]() mutable -> std::optional<int> { return n++; });
    auto all =
        collect(map(zip(endless, from(t, {1, 2, 3})), [](auto p) { return std::get<0>(p); }));
    must(drain(t));
    is(all, {0, 1, 2});
  }
  {  // split and merge, where one side gets nothing for long
    flow_graph t;
    t.set_budget(4096);
    std::vector<int> many(10'000);
    std::iota(many.begin(), many.end(), 0);
    auto [a, b] = split(from(t, many), [](const int& x) { return x < 9'990; });
    auto all = collect(merge(map(a, [](int x) { return x; }), b));
    must(drain(t));
    BOOST_CHECK_EQUAL(all->size(), many.size());
  }
  {  // a fork and a join round many replicas, with small bounds
    flow_graph t;
    t.set_budget(2048);
    std::vector<int> many(5000);
    std::iota(many.begin(), many.end(), 0);
    auto f = from(t, many);
    auto all = collect(map(zip(f, map(f, [](int x) { return x; }, {.replicas = 8})),
                           [](auto p) { return std::get<0>(p) == std::get<1>(p); }));
    must(drain(t));
    BOOST_CHECK_EQUAL(std::ranges::count(*all, true), 5000);
  }
  {  // a window beside what it is made of: it lags behind
    flow_graph t;
    t.set_budget(256);
    std::vector<int> many(500);
    std::iota(many.begin(), many.end(), 0);
    auto f = from(t, many);
    auto w = map(window(f, {.count = 64, .step = 1}), [](std::vector<int> v) { return v.front(); });
    auto all = collect(map(zip(f, w), [](auto p) { return std::get<0>(p) - std::get<1>(p); }));
    must(drain(t));
    BOOST_CHECK_EQUAL(all->size(), 500U - 63U);
  }
  {  // a branch that nobody needs any more, beside one that goes on
    flow_graph t;
    auto f = from(t, {1, 2, 3, 4, 5});
    auto two = collect(first(f, 2)), all = collect(f);
    must(drain(t));
    is(two, {1, 2});
    is(all, {1, 2, 3, 4, 5});
  }
  {  // a generator without an end, of which three are taken
    flow_graph t;
    auto f = map(from(t, {1}), [](int x) -> generator<int> {
      for (;;) co_yield x;
    });
    auto all = collect(first(f, 3));
    must(drain(t));
    is(all, {1, 1, 1});
  }
  {  // a loop whose items never leave but by being dropped
    flow_graph t;
    auto loop = feedback<int>(t, {.credit = 1});
    auto next = map(merge(from(t, {5, 6, 7}), loop),
                    [](int x) { return x > 0 ? std::optional(x - 1) : std::nullopt; });
    close(loop, next);
    const auto totals = must(drain(t));
    BOOST_CHECK_EQUAL(totals.of("map").items_in, 6U + 7U + 8U);
  }
}

BOOST_AUTO_TEST_CASE(what_leaves_items_out_is_joined_by_key_only) {
  flow_graph t;
  auto f = from(t, {1, 2, 3});
  collect(zip(f, map(f, [](int x) { return x; }, {.on_error = skip()})));
  BOOST_TEST(has(mistake(t), "depends on the data"));
}

BOOST_AUTO_TEST_CASE(a_join_ends_with_the_flow_that_ends_first) {
  flow_graph t;
  t.set_budget(1024);
  int made = 0;
  auto endless = source(t, [&]() -> std::optional<int> { return made++; });
  // The short one is there before the long one: its last item waits for a partner.
  auto all = collect(zip(from(t, {1, 2, 3}), map(endless, [](int x) { return x; })));
  must(drain(t));
  BOOST_CHECK_EQUAL(all->size(), 3U);
  BOOST_CHECK_LT(made, 100);
}

BOOST_AUTO_TEST_CASE(dead_letters_keep_nobody_and_end_nobody) {
  const auto picky = [](int x) -> result<int> {
    if (x % 2 == 1) return error(error_code::failed, "odd");
    return x;
  };
  {  // nobody needs its items any more, though its letters are taken
    flow_graph t;
    auto lost = dead_letters(t);
    auto endless = source(t, [n = 0]() mutable -> std::optional<int> { return n++; });
    auto three = collect(first(map(endless, picky, {.on_error = skip(), .dead_letters = lost}), 3));
    auto letters = collect(lost);
    must(drain(t));
    is(three, {0, 2, 4});
    BOOST_CHECK_GE(letters->size(), 2U);
  }
  {  // an end goes on when nobody takes its letters
    flow_graph t;
    auto lost = dead_letters(t);
    int sum = 0;
    for_each(from(t, {1, 2, 3, 4, 5, 6}),
             [&](int x) -> result<void> {
               if (x % 2 == 1) return error(error_code::failed, "odd");
               sum += x;
               return {};
             },
             {.on_error = skip(), .dead_letters = lost});
    auto one = collect(first(lost, 1));
    must(drain(t));
    BOOST_CHECK_EQUAL(sum, 12);
    BOOST_CHECK_EQUAL(one->size(), 1U);
  }
  {  // a circle through them
    flow_graph t;
    auto lost = dead_letters(t);
    auto again = map(lost, [](const dead_letter&) { return 2; });
    collect(map(merge(from(t, {1}), again), picky, {.on_error = skip(), .dead_letters = lost}));
    BOOST_TEST(has(mistake(t), "without a feedback"));
  }
}

BOOST_AUTO_TEST_CASE(one_key_that_fails_at_the_end_leaves_the_others) {
  for (const bool throws : {false, true}) {
    struct counting {
      bool throws;
      int state = 0;
      void operator()(int) { ++state; }
      result<int> finish(int key) {
        if (key == 2 && throws) throw std::runtime_error("two");
        if (key == 2) return error(error_code::failed, "two");
        return key * 100 + state;
      }
    };
    flow_graph t;
    auto all = collect(partition_by(from(t, {1, 2, 3, 4, 1}), [](int x) { return x; },
                                    counting{throws}, {.on_error = skip()}));
    must(drain(t));
    is(all, {102, 301, 401});
  }
}

BOOST_AUTO_TEST_CASE(a_source_that_throws_and_is_borne_goes_on) {
  flow_graph t;
  auto all = collect(source(t,
                            [n = 0]() mutable -> std::optional<int> {
                              if (n == 5) return std::nullopt;
                              if (n++ == 2) throw std::runtime_error("two");
                              return n - 1;
                            },
                            {.on_error = skip()}));
  must(drain(t));
  is(all, {0, 1, 3, 4});
  flow_graph u;
  collect(source(u, []() -> std::optional<int> { return 1; }, {.on_error = restart()}));
  BOOST_TEST(has(mistake(u), "would make its items again"));
}

BOOST_AUTO_TEST_CASE(a_loop_of_which_nothing_is_needed_any_more_ends) {
  flow_graph t;
  auto loop = feedback<int>(t, {.credit = 4});
  auto endless = source(t, [n = 0]() mutable -> std::optional<int> { return 1 + n++ % 9; });
  auto next = map(merge(endless, loop), [](int x) { return x - 1; });
  auto [done, more] = split(next, [](const int& x) { return x == 0; });
  close(loop, more);
  auto five = collect(first(done, 5));
  must(drain(t));
  BOOST_CHECK_EQUAL(five->size(), 5U);
  flow_graph u;
  auto slow = feedback<int>(u);
  close(slow, map(merge(from(u, {1}), slow), [](int x) { return x; }, {.blocks = true}));
  BOOST_TEST(has(mistake(u), "may sleep"));
}

BOOST_AUTO_TEST_CASE(what_cannot_be_copied_has_no_replicas) {
  flow_graph t;
  auto f = [p = std::make_unique<int>(7)](int x) { return x + *p; };
  auto all = collect(map(from(t, {1}), std::move(f)));
  must(drain(t));
  is(all, {8});
  flow_graph u;
  auto g = [p = std::make_unique<int>(7)](int x) { return x + *p; };
  collect(map(from(u, {1}), std::move(g), {.replicas = 2}));
  BOOST_TEST(has(mistake(u), "cannot be copied"));
  flow_graph v;
  collect(from(v, {1}), {.replicas = 2});
  BOOST_TEST(has(mistake(v), "has no replicas"));
}

BOOST_AUTO_TEST_CASE(time_goes_on_where_all_wait_for_it) {
  flow_graph t;
  auto all = collect(map(batch(from(t, {1, 2, 3, 4, 5}), {.count = 100, .within = 1h}),
                         [](std::vector<int> v) { return int(v.size()); }));
  must(drain(t));
  is(all, {5});
}

struct constant {
  static constexpr int state = 3;
  int operator()(int x) const { return x; }
};

// Opens in the order of the stages, before anything runs, and again where a stage begins anew.
struct opens {
  std::vector<std::string>* log;
  std::string name;
  bool fails = false;
  result<void> open() {
    log->push_back("open " + name);
    if (fails) return error(error_code::not_found, "no such thing");
    return {};
  }
  int operator()(int x) {
    log->push_back(name);
    if (x < 0) throw std::runtime_error("below 0");
    return x;
  }
};

BOOST_AUTO_TEST_CASE(stages_are_opened_before_the_first_item) {
  std::vector<std::string> log;
  {
    flow_graph t;
    const auto a = map(from(t, {1, -1, 2}), opens{&log, "a"}, {.on_error = restart()});
    collect(map(a, opens{&log, "b"}));
    must(drain(t));
    BOOST_TEST(
        log == (std::vector<std::string>{"open a", "open b", "a", "b", "a", "open a", "a", "b"}),
        boost::test_tools::per_element());
  }
  log.clear();
  flow_graph t;
  int made = 0;
  const auto numbers = source(t, [&made]() -> std::optional<int> {
    ++made;
    return std::nullopt;
  });
  collect(map(numbers, opens{&log, "a", true}, {.name = "reader", .on_error = skip()}));
  const auto done = drain(t);
  BOOST_REQUIRE(!done);
  BOOST_CHECK(done.error().code() == error_code::not_found);
  const auto text = done.error().text();
  BOOST_TEST(has(text, "reader (flow_test.cpp:"));
  BOOST_TEST(has(text, "it cannot begin: no such thing"));
  BOOST_TEST(made == 0);
}

BOOST_AUTO_TEST_CASE(keys_come_in_their_order_at_the_end) {
  struct counts {
    int n = 0;
    void operator()(const std::string&) { ++n; }
    std::pair<std::string, int> finish(const std::string& key) const { return {key, n}; }
  };
  for (const std::uint32_t replicas : {1U, 3U}) {
    flow_graph t;
    std::vector<std::string> words;
    std::map<std::string, int> wanted;
    for (int i = 0; i < 5000; ++i) {
      words.push_back("w" + std::to_string(i * i % 997));
      ++wanted[words.back()];
    }
    const auto all = collect(
        partition_by(from(t, words), [](const std::string& w) -> const std::string& { return w; },
                     counts{}, {.replicas = replicas}));
    must(drain(t));
    // With several replicas, those of each in their order.
    BOOST_TEST((std::map<std::string, int>(all->begin(), all->end()) == wanted));
    BOOST_TEST(all->size() == wanted.size());
    if (replicas == 1) BOOST_TEST(std::ranges::is_sorted(*all));
  }
}

BOOST_AUTO_TEST_CASE(whatever_a_key_does_at_its_end_leaves_the_others) {
  struct ends_badly {
    int n = 0;
    void operator()(int) { ++n; }
    generator<int> finish(int key) {
      co_yield key;
      if (key % 3 == 0) throw std::runtime_error("a third");
      if (key % 3 == 1) throw 7;
      co_yield n;
    }
  };
  for (const auto policy : {skip(), restart()}) {
    flow_graph t;
    const auto all =
        collect(partition_by(from(t, {0, 1, 2, 3, 4, 5, 5}), [](const int& x) { return x; },
                             ends_badly{}, {.name = "keyed", .on_error = policy}));
    const auto done = must(drain(t));
    is(all, {0, 1, 2, 1, 3, 4, 5, 2});
    BOOST_TEST(done.of("keyed").skipped == 4U);
  }
  // finish() that makes nothing is called, too.
  struct tells {
    std::shared_ptr<std::vector<int>> keys;
    int operator()(int x) { return x; }
    void finish(int key) { keys->push_back(key); }
  };
  flow_graph t;
  const auto keys = std::make_shared<std::vector<int>>();
  collect(partition_by(from(t, {3, 1, 2, 1}), [](const int& x) { return x; }, tells{keys}));
  must(drain(t));
  is(keys, {1, 2, 3});
}

BOOST_AUTO_TEST_CASE(filters_and_splits_are_opened) {
  struct wants {
    bool is_open = false;
    void open() { is_open = true; }
    bool operator()(const int& x) const { return is_open && x > 1; }
  };
  flow_graph t;
  const auto all = collect(filter(from(t, {1, 2, 3}), wants{}));
  const auto first = collect(split(from(t, {1, 2, 3}), wants{}).first);
  must(drain(t));
  is(all, {2, 3});
  is(first, {2, 3});
}

BOOST_AUTO_TEST_CASE(a_state_travels_with_the_function) {
  struct only_state {
    std::vector<int> state;
    int operator()(int x) { return state[0] += x; }
  };
  const auto prototype = prototype_of(only_state{{40, 2}});
  BOOST_REQUIRE(prototype);
  const auto again = function_of<only_state>(*prototype);
  BOOST_REQUIRE(again);
  BOOST_TEST((again->state == std::vector<int>{40, 2}));
  BOOST_TEST(!function_of<only_state>(std::span(*prototype).first(3)));
  struct both {
    std::vector<int> state;
    int factor = 0;
    int operator()(int x) { return x; }
  };
  BOOST_TEST(!prototype_of(both{}));  // `factor` is told nowhere
}

// What runs on a node with a state is the same as in one process without any deal.
BOOST_AUTO_TEST_CASE(a_stage_says_its_state_and_takes_it_again) {
  struct sums {
    std::map<std::string, std::vector<int>> state;
    void operator()(const std::string& w) { state[w].push_back(int(w.size())); }
    int finish() {
      int n = 0;
      for (const auto& [w, all] : state) n += int(all.size());
      return n;
    }
  };
  function_stage<sums, std::string> a{sums{}};
  sums told;
  told.state = {{"one", {3, 3}}, {"three", {5}}};
  function_stage<sums, std::string> b{told};
  const auto saved = b.save();
  BOOST_REQUIRE(saved);
  BOOST_TEST(a.load(*saved));
  const auto again = a.save();
  BOOST_REQUIRE(again);
  BOOST_TEST(again->size_bytes() == saved->size_bytes());
  BOOST_TEST(std::memcmp(again->bytes().data(), saved->bytes().data(), saved->size_bytes()) == 0);
  for (std::size_t n = 0; n < saved->size_bytes(); ++n)
    BOOST_TEST(!a.load(saved->part(0, {dtype::u8, {std::int64_t(n)}})));
  // Who learns elsewhere, or what would come back in another order, does not say.
  struct hides {
    int n = 0;
    int operator()(int x) { return n += x; }
  };
  static_assert(has_state<sums> && !has_state<hides> && !has_state<constant>);
  BOOST_TEST((!function_stage<hides, int>{hides{}}.save()));
}

// As many as wait when nobody else has anything to do; never more than it says.
BOOST_AUTO_TEST_CASE(a_batch_of_up_to_n_waits_for_nothing) {
  flow_graph t;
  std::vector<int> numbers(103);
  std::iota(numbers.begin(), numbers.end(), 0);
  const auto all = collect(batch(from(t, numbers), {.count = up_to(10)}));
  BOOST_TEST(bool(drain(t)));
  // The source always has more: they are full.
  BOOST_TEST_REQUIRE(all->size() == 11U);
  int next = 0;
  for (const auto& b : *all) {
    BOOST_TEST((b.size() == 10U || next == 100));
    for (const auto x : b) BOOST_TEST(x == next++);
  }
  BOOST_TEST(next == 103);

  // One that comes alone leaves alone, though no other one ever comes.
  flow_graph u;
  std::vector<std::size_t> sizes;
  for_each(batch(timer(u, std::chrono::milliseconds(1)), {.count = up_to(64)}),
           [&](const std::vector<std::uint64_t>& b) { sizes.push_back(b.size()); });
  BOOST_TEST_REQUIRE(bool(u.check()));
  flow_group whole(std::shared_ptr<const flow_graph>(std::shared_ptr<const void>(), &u));
  std::int64_t now = 1'000'000'000;
  const std::function<std::int64_t()> clock = [&] { return now; };
  for (int i = 0; i < 3; ++i) {
    while (whole.run(clock, never_ns, nullptr) == flow_group::state::more) {
    }
    BOOST_TEST(sizes == std::vector<std::size_t>(std::size_t(i) + 1, 1),
               boost::test_tools::per_element());
    BOOST_TEST(whole.wakes_at() > now);
    now = whole.wakes_at();
  }

  // Behind it nothing waits, as far as each becomes one: it would wait in batches of one.
  flow_graph narrow;
  const auto packed =
      map(batch(from(narrow, numbers), {.count = up_to(8)}), [](std::vector<int> b) { return b; });
  collect(unbatch(map(packed, [](std::vector<int> b) { return b; }, {.replicas = 2})));
  BOOST_TEST_REQUIRE(bool(narrow.check()));
  for (const auto& e : narrow.edges()) {
    const auto& from = narrow.stages()[e.from].kind;
    const bool is_wide = from == "source" || from == "unbatch";
    const bool to_gather = narrow.stages()[e.to].kind == "gather";
    BOOST_TEST(e.items_max == (is_wide     ? 1024U
                               : to_gather ? 4U
                                           : 1U),
               narrow.stages()[e.from].name << " -> " << narrow.stages()[e.to].name);
  }

  // Another pipeline of the same thread has always something to do.
  flow_graph both;
  std::size_t left = 0;
  for_each(source(both, [n = 0]() mutable { return std::optional(n++); }), [](int) {});
  for_each(batch(timer(both, std::chrono::hours(1)), {.count = up_to(64)}),
           [&](const std::vector<std::uint64_t>&) { ++left; });
  BOOST_TEST_REQUIRE(bool(both.check()));
  flow_group busy(std::shared_ptr<const flow_graph>(std::shared_ptr<const void>(), &both));
  std::int64_t passes = 1'000'000'000;
  const std::function<std::int64_t()> goes = [&] { return passes += 1000; };
  busy.run(goes, passes + 50'000'000, nullptr);
  BOOST_TEST(left == 1U);

  flow_graph wrong;
  collect(batch(from(wrong, numbers), {.count = up_to(4), .within = std::chrono::milliseconds(1)}));
  BOOST_TEST(drain(wrong).error().text().find("leave .within out") != std::string::npos);
  flow_graph none;
  collect(batch(from(none, numbers), {.count = up_to(0)}));
  BOOST_TEST(!drain(none));
  flow_graph automatic_ones;
  const auto few = collect(batch(from(automatic_ones, numbers), {.count = automatic}));
  BOOST_TEST(bool(drain(automatic_ones)));
  BOOST_TEST(few->size() == 1U);
}

BOOST_AUTO_TEST_SUITE_END()
