// "Why is my step stuck?", asked of jobs in which something runs: what runs is the answer, whatever
// waits for its thread. Ops that stand still until they are told to go on are put at random places
// of random graphs, by seed; nothing is ever stuck for another reason.

#include "tests/support/events.hpp"
#include "tests/support/two_nodes.hpp"
#include "troupe/actors/inspect/inspect.hpp"
#include "troupe/devices/half.hpp"
#include "troupe/devices/kernel.hpp"
#include "troupe/runtime/graph/build.hpp"
#include "troupe/runtime/graph/control_flow.hpp"
#include "troupe/runtime/graph/op_library.hpp"
#include "troupe/runtime/graph/ops.hpp"
#include "troupe/runtime/insight/why.hpp"

#include <boost/test/unit_test.hpp>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <vector>

using namespace troupe;
using namespace std::chrono_literals;

namespace {

// Kernels know nothing of a test but what is global.
struct held_op {
  std::atomic<bool> is_held{false};
  std::atomic<int> inside{0};
};
held_op held;

// Its input, once the op may go on; "held" says whether it asks.
class held_kernel final : public kernel {
 public:
  held_kernel(bool asks, std::int64_t milliseconds) : asks_(asks), milliseconds_(milliseconds) {}
  result<void> prepare(std::span<const tensor_spec>, std::span<const tensor_spec>) override {
    return {};
  }
  result<void> run(const tag&, std::span<const tensor> in, std::span<tensor> out) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds_));
    if (asks_) wait();
    for (std::int64_t i = 0; i < out[0].elements(); ++i) {
      auto sum = in.empty() ? 1.0F : 0.0F;
      for (const auto& t : in) sum += t.data<float>()[i];
      out[0].data<float>()[i] = sum / static_cast<float>(in.empty() ? 1 : in.size());
    }
    return {};
  }

 private:
  static void wait() {
    if (!held.is_held || held.inside.fetch_add(1) > 0) return;  // the first one alone
    const auto end = std::chrono::steady_clock::now() + test::hang;
    while (held.is_held && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(1ms);
  }
  bool asks_;
  std::int64_t milliseconds_;
};

// Whether the op is held: what a loop asks that nobody ends.
class is_held_kernel final : public kernel {
 public:
  result<void> prepare(std::span<const tensor_spec>, std::span<const tensor_spec>) override {
    return {};
  }
  result<void> run(const tag&, std::span<const tensor>, std::span<tensor> out) override {
    ++held.inside;
    *out[0].data<boolean>() = boolean(held.is_held.load());
    return {};
  }
};

result<std::vector<tensor_spec>> three_numbers(const attributes&, std::span<const tensor_spec>,
                                               const tag*) {
  return std::vector<tensor_spec>{{dtype::f32, {3}}};
}
result<std::vector<tensor_spec>> a_condition(const attributes&, std::span<const tensor_spec>,
                                             const tag*) {
  return std::vector<tensor_spec>{{dtype::boolean, {}}};
}

kernel_factory make_pass = [](const attributes& a,
                              host_device&) -> result<std::unique_ptr<kernel>> {
  return std::unique_ptr<kernel>(
      std::make_unique<held_kernel>(a.integer("asks", 0) != 0, a.integer("ms", 0)));
};

void add_ops(op_table& ops, kernel_table& kernels) {
  for (std::uint32_t inputs = 0; inputs <= 2; ++inputs) {
    const auto name = "pass" + std::to_string(inputs);
    ops.add(name, {.inputs = inputs, .shapes = three_numbers});
    kernels.add(name, {make_pass});
  }
  ops.add("is_held", {.inputs = 1, .shapes = a_condition});
  kernels.add("is_held", {[](const attributes&, host_device&) -> result<std::unique_ptr<kernel>> {
                return std::unique_ptr<kernel>(std::make_unique<is_held_kernel>());
              }});
}
const op_library passing{.name = "passing", .version = "1", .add = add_ops};

value pass(graph& g, std::vector<value> from, const std::string& name, attributes how = {}) {
  const auto v = g.add("pass" + std::to_string(from.size()), from, std::move(how), name,
                       source_location::current());
  g.node(v.node).name = name;
  return v;
}

// Ops of one or two earlier ones; one of them is held.
value random_net(graph& g, std::mt19937& random, value first, int ops,
                 const std::vector<std::string>& devices) {
  std::vector<value> all{first};
  const auto any = [&](std::size_t n) { return std::size_t(random() % n); };
  const auto slow = 1 + any(static_cast<std::size_t>(ops) - 1);
  for (int i = 1; i <= ops; ++i) {
    const auto there = g.device_scope(devices.empty() ? "/cpu:0" : devices[any(devices.size())]);
    std::vector<value> from{all[all.size() - 1 - any(std::min<std::size_t>(3, all.size()))]};
    if (random() % 2 == 0) from.push_back(all.back());
    const bool asks = static_cast<std::size_t>(i) == slow;
    attributes how;
    if (asks) how.set("asks", std::int64_t{1});
    all.push_back(pass(g, from, asks ? "slow" : "op" + std::to_string(i), std::move(how)));
  }
  // What nobody reads is read at the end.
  return pass(g, {all[slow], all.back()}, "last");
}

// TROUPE_SEEDS: more of them.
std::uint32_t seeds() {
  const auto* text = std::getenv("TROUPE_SEEDS");
  return text != nullptr ? static_cast<std::uint32_t>(std::stoul(text)) : 3;
}

why_answer ask_why(const std::string& cluster, const std::string& job) {
  ask_options o;
  o.cluster = cluster;
  o.timeout_ns = 60'000'000'000;
  o.parts = ask_part::actors | ask_part::jobs;
  const auto before = ask_cluster(o);
  BOOST_TEST_REQUIRE(bool(before), (before ? "" : before.error().text()));
  std::this_thread::sleep_for(100ms);
  const auto now = ask_cluster(o);
  BOOST_TEST_REQUIRE(bool(now), (now ? "" : now.error().text()));
  auto answer = explain(*now, job, &*before);
  BOOST_TEST_REQUIRE(bool(answer), (answer ? "" : answer.error().text()));
  BOOST_TEST_MESSAGE(answer->text());
  return std::move(*answer);
}

// Until the slow op has run, and others have waited for it, for longer than answers may differ.
void hold_for_long(const auto& begin) {
  held.inside = 0;
  held.is_held = true;
  begin();
  test::wait_until("the op runs", [] { return held.inside >= 1; });
  std::this_thread::sleep_for(1200ms);
}

struct release {
  ~release() { held.is_held = false; }
};

// Of asynchronous workers the others go on, and that is said first.
void is_slow(const why_answer& a, bool others_go_on = false) {
  const bool is_beside = others_go_on && a.kind == root_kind::moving;
  BOOST_TEST((is_beside || a.kind == root_kind::actor_running), a.text());
  BOOST_TEST_REQUIRE((!is_beside || !a.also.empty()), a.text());
  BOOST_TEST((is_beside ? a.also.front() : a.root).find("slow") != std::string::npos, a.text());
  for (const auto& s : a.also) BOOST_TEST(s.find("circle") == std::string::npos, a.text());
}

}  // namespace

BOOST_AUTO_TEST_SUITE(why_running)

BOOST_AUTO_TEST_CASE(an_op_that_runs_is_the_root_in_trainings_whose_steps_run_ahead) {
  for (std::uint32_t seed = 1; seed <= seeds(); ++seed) {
    BOOST_TEST_CONTEXT("seed " << seed) {
      std::mt19937 random(seed);
      const auto cluster = "why_trains" + std::to_string(seed);
      test::own_nodes nodes(cluster, {{.name = "a"}, {.name = "b"}, {.name = "c"}}, {&passing});
      graph g(nodes.client().ops());
      const auto w = variable(g, {dtype::f32, {3}}, {}, "w");
      const auto net = random_net(g, random, pass(g, {}, "source"), 12, {});
      training_options o;
      o.steps = 1'000'000'000;
      o.compile.name = "job";
      o.compile.credits = 1 + static_cast<std::uint32_t>(random() % 3);
      o.workers = 1 + static_cast<std::uint32_t>(random() % 3);
      o.shards = 1 + static_cast<std::uint32_t>(random() % 2);
      o.all_reduce = random() % 2 == 0;
      o.update = !o.all_reduce && random() % 3 == 0 ? update_kind::async : update_kind::sync;
      auto run = nodes.client().train(g, reduce_sum(w * net), o);
      BOOST_REQUIRE_MESSAGE(run, (run ? "" : run.error().text()));
      while (test::next_event(**run)->type != training_event::kind::loss) {
      }
      const release at_the_end;
      hold_for_long([] {});
      is_slow(ask_why(cluster, "job"), o.update == update_kind::async && o.workers > 1);
    }
  }
}

BOOST_AUTO_TEST_CASE(an_op_that_runs_is_the_root_in_graphs_that_are_stepped_here_and_on_nodes) {
  for (std::uint32_t seed = 1; seed <= seeds(); ++seed) {
    BOOST_TEST_CONTEXT("seed " << seed) {
      std::mt19937 random(seed);
      const auto cluster = "why_steps" + std::to_string(seed);
      test::own_nodes nodes(cluster, {{.name = "a"}, {.name = "b"}}, {&passing});
      graph g(nodes.client().ops());
      const auto x = input(g, {dtype::f32, {3}}, "x");
      const auto net = random_net(g, random, x, 12, {"/job:client", "/node:a", "/node:b"});
      auto steps = nodes.client().compile(g, std::array{net}, {.name = "steps"});
      BOOST_REQUIRE_MESSAGE(steps, (steps ? "" : steps.error().text()));
      const std::pair<std::string_view, tensor> feeds[] = {{"x", tensor::of({1, 2, 3}, {3})}};
      BOOST_REQUIRE(bool((*steps)->step(feeds)));
      std::thread stepping;
      {
        const release at_the_end;
        hold_for_long([&] {
          stepping = std::thread([&] {
            for (int i = 0; i < 2; ++i) (void)(*steps)->step(feeds);
          });
        });
        is_slow(ask_why(cluster, "steps"));
      }
      stepping.join();
    }
  }
}

BOOST_AUTO_TEST_CASE(a_loop_that_does_not_end_is_named_with_how_often_it_has_gone_round) {
  test::own_nodes nodes("why_loops", {{.name = "a"}}, {&passing});
  for (const auto* device : {"/job:client", "/node:a"}) {
    graph g(nodes.client().ops());
    const auto x = input(g, {dtype::f32, {3}}, "x");
    const auto there = g.device_scope(device);
    const auto out = while_loop(
        {x},
        [&](auto v) {
          return g.add("is_held", std::array{v[0]}, {}, "asks", source_location::current());
        },
        [&](auto v) { return std::vector{pass(g, {v[0]}, "round")}; })[0];
    auto steps = nodes.client().compile(g, std::array{out}, {.name = "loops"});
    BOOST_REQUIRE_MESSAGE(steps, (steps ? "" : steps.error().text()));
    const std::pair<std::string_view, tensor> feeds[] = {{"x", tensor::of({1, 2, 3}, {3})}};
    BOOST_REQUIRE(bool((*steps)->step(feeds)));
    std::thread stepping;
    {
      const release at_the_end;
      hold_for_long([&] { stepping = std::thread([&] { (void)(*steps)->step(feeds); }); });
      const auto a = ask_why("why_loops", "loops");
      BOOST_TEST(to_string(a.kind) == "loop running", a.text());
      BOOST_TEST(a.root.find("goes round") != std::string::npos, a.text());
    }
    stepping.join();
  }
}

// Twenty ops, of which each is short; a step takes longer than answers may differ.
BOOST_AUTO_TEST_CASE(a_long_step_of_many_short_ops_goes_on) {
  test::own_nodes nodes("why_long", {{.name = "a"}}, {&passing});
  graph g(nodes.client().ops());
  const auto there = g.device_scope("/node:a");
  auto x = input(g, {dtype::f32, {3}}, "x");
  attributes slowly;
  slowly.set("ms", std::int64_t{100});
  for (int i = 0; i < 20; ++i) x = pass(g, {x}, "op" + std::to_string(i), slowly);
  auto steps = nodes.client().compile(g, std::array{x}, {.name = "long"});
  BOOST_REQUIRE_MESSAGE(steps, (steps ? "" : steps.error().text()));
  std::atomic<bool> is_over{false};
  std::thread stepping([&] {
    const std::pair<std::string_view, tensor> feeds[] = {{"x", tensor::of({1, 2, 3}, {3})}};
    for (int i = 0; i < 3; ++i) (void)(*steps)->step(feeds);
    is_over = true;
  });
  while (!is_over) {
    const auto a = ask_why("why_long", "long");
    const bool is_true = a.kind == root_kind::actor_running || a.kind == root_kind::moving ||
                         a.kind == root_kind::program_feed || a.kind == root_kind::on_the_way;
    BOOST_TEST(is_true, a.text());
    for (const auto& l : a.chain)
      if (l.since_seconds >= 1) BOOST_TEST(a.root.find("no wait is older") == std::string::npos);
  }
  stepping.join();
}

BOOST_AUTO_TEST_SUITE_END()
