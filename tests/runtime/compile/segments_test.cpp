// Graphs on devices as plans: which ops stand there, copies, segments, and what a plan says of them
// (PL-12).

#include "troupe/runtime/plan/segment.hpp"

#include "troupe/runtime/compile/compile.hpp"
#include "troupe/runtime/compile/compile_report.hpp"
#include "troupe/runtime/graph/op_table.hpp"
#include "troupe/runtime/graph/ops.hpp"
#include "troupe/runtime/layers/layers.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <random>
#include <span>
#include <string>
#include <vector>

using namespace troupe;

namespace {

const op_table& ops() {
  static const op_table all = make_op_table();
  return all;
}

plan planned(const graph& g, const std::vector<value>& fetches,
             const compile_options& options = {}) {
  auto p = compile_steps(g, fetches, options);
  BOOST_REQUIRE_MESSAGE(p, (p ? "" : p.error().text()));
  return *p;
}

std::size_t count(const plan& p, copy_kind k) {
  return static_cast<std::size_t>(
      std::count_if(p.actors.begin(), p.actors.end(), [&](const auto& a) { return a.copy == k; }));
}
std::vector<const planned_actor*> segments_of(const plan& p) {
  std::vector<const planned_actor*> out;
  for (const auto& a : p.actors)
    if (!a.kernels.empty()) out.push_back(&a);
  return out;
}

// y = f(x) on gpu:0, then g on `second`.
plan two_devices(const std::string& second, const compile_options& options = {}) {
  graph g(ops());
  const auto x = input(g, tensor_spec{dtype::f32, {4, 8}}, "x");
  value y;
  {
    const auto on = g.device_scope("/gpu:0");
    y = reduce_sum(tanh(x) * x, {1}, true);
  }
  {
    const auto on = g.device_scope(second);
    y = exp(y) + x;
  }
  return planned(g, {y}, options);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(segments)

BOOST_AUTO_TEST_CASE(ops_of_a_device_are_one_actor_with_a_copy_in_and_one_out) {
  const auto p = two_devices("/gpu:0");
  const auto all = segments_of(p);
  BOOST_REQUIRE_EQUAL(all.size(), 1u);
  BOOST_TEST(all[0]->stream == device_stream_of(0));
  BOOST_TEST(all[0]->kernels.size() == 3u);  // tanh and mul are a group
  BOOST_TEST(all[0]->inputs.size() == 1u);
  BOOST_TEST(all[0]->outputs.size() == 1u);
  BOOST_TEST(count(p, copy_kind::in) == 1u);
  BOOST_TEST(count(p, copy_kind::out) == 1u);
  BOOST_TEST(all[0]->arena_bytes > 0u);
  const auto apart = two_devices("/gpu:0", {.fuse = false});
  BOOST_TEST(segments_of(apart).size() == 5u);
}

BOOST_AUTO_TEST_CASE(two_devices_of_a_node_copy_across_and_share_what_both_take) {
  const auto p = two_devices("/gpu:1");
  BOOST_TEST(segments_of(p).size() == 2u);
  BOOST_TEST(count(p, copy_kind::across) == 1u);
  BOOST_TEST(count(p, copy_kind::in) == 2u);  // x, for each
  BOOST_TEST(count(p, copy_kind::out) == 1u);
  const auto back = two_devices("/cpu:0");
  BOOST_TEST(segments_of(back).size() == 1u);
  BOOST_TEST(count(back, copy_kind::out) == 1u);
}

BOOST_AUTO_TEST_CASE(what_leaves_a_device_and_comes_back_is_another_segment) {
  graph g(ops());
  const auto x = input(g, tensor_spec{dtype::f32, {4}}, "x");
  value a, b, c;
  {
    const auto on = g.device_scope("/gpu:0");
    a = tanh(x);
  }
  {
    const auto on = g.device_scope("/cpu:0");
    b = exp(a);
  }
  {
    const auto on = g.device_scope("/gpu:0");
    c = a + reduce_sum(b);
  }
  const auto p = planned(g, {c});
  BOOST_TEST(segments_of(p).size() == 2u);
  BOOST_TEST(count(p, copy_kind::out) == 2u);
  BOOST_TEST(count(p, copy_kind::in) == 2u);
}

BOOST_AUTO_TEST_CASE(values_of_an_arena_lie_where_dead_ones_lay) {
  const tensor_spec kib{dtype::f32, {256}};
  // A chain: each takes the one before.
  std::vector<planned_kernel> chain(10);
  for (std::size_t k = 0; k < chain.size(); ++k) {
    chain[k].first_op = static_cast<std::uint32_t>(k);
    chain[k].results = {kib};
    chain[k].places = {0};
    chain[k].operands = {k == 0 ? 0 : -static_cast<std::int32_t>(k)};
  }
  BOOST_TEST(place_values(chain) == 2048u);
  const auto last = last_readers(chain);
  BOOST_TEST(last[0] == 1u);
  BOOST_TEST(last[9] == 9u);
}

// Random graphs over devices and the host: every plan passes its own check (PL-12 among it), and
// comes through the codec.
BOOST_AUTO_TEST_CASE(PL_12_random_placements_give_plans_that_hold_and_travel) {
  std::size_t kernels = 0, parts = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](std::uint64_t n) { return static_cast<std::size_t>(random() % n); };
    static const std::vector<std::string> places{"/cpu:0", "/cpu:1", "/gpu:0", "/gpu:1"};
    graph g(ops());
    std::vector<value> made{input(g, tensor_spec{dtype::f32, {3, 5}}, "x"),
                            input(g, tensor_spec{dtype::f32, {3, 5}}, "y")};
    for (std::size_t i = 0; i < 30; ++i) {
      const auto on = g.device_scope(places[below(places.size())]);
      const auto a = made[below(made.size())], b = made[below(made.size())];
      switch (below(4)) {
        case 0: made.push_back(a + b); break;
        case 1: made.push_back(tanh(a)); break;
        case 2: made.push_back(a * reduce_sum(b, {1}, true)); break;
        default: made.push_back(softmax(a)); break;
      }
    }
    const auto p = planned(g, {made.back(), made[made.size() / 2]}, {.fuse = seed % 3 != 0});
    for (const auto* s : segments_of(p)) kernels += s->kernels.size(), ++parts;
    const auto bytes = encode(p);
    const auto again = decode_plan(bytes);
    BOOST_REQUIRE_MESSAGE(again, "seed " << seed << ": " << (again ? "" : again.error().text()));
    BOOST_TEST((*again == p), "seed " << seed);
  }
  BOOST_TEST(kernels > parts);
}

BOOST_AUTO_TEST_CASE(PL_12_plans_that_lie_about_memory_are_refused) {
  const auto good = two_devices("/gpu:1");
  BOOST_REQUIRE(bool(check(good)));
  const auto refused = [&](const char* what, const std::function<void(plan&)>& spoil) {
    auto p = good;
    spoil(p);
    const auto c = check(p);
    BOOST_REQUIRE_MESSAGE(!c, what << " passes");
    BOOST_TEST(c.error().text().find("PL-12") != std::string::npos,
               what << ": " << c.error().text());
  };
  const auto segment = [](plan& p) -> planned_actor& {
    return *std::find_if(p.actors.begin(), p.actors.end(),
                         [](const auto& a) { return a.kernels.size() > 1; });
  };
  const auto copy = [](plan& p) -> planned_actor& {
    return *std::find_if(p.actors.begin(), p.actors.end(),
                         [](const auto& a) { return a.copy == copy_kind::in; });
  };
  refused("a value outside of the arena",
          [&](plan& p) { segment(p).kernels.front().places[0] = 1 << 20; });
  refused("a place that is not aligned",
          [&](plan& p) { segment(p).kernels.front().places[0] = 8; });
  refused("an arena that is too small", [&](plan& p) { segment(p).arena_bytes = 0; });
  refused("an operand of the future",
          [&](plan& p) { segment(p).kernels.front().operands[0] = -1000; });
  refused("an output that nobody makes", [&](plan& p) { segment(p).kernels.back().places[0] = 0; });
  refused("an op without kernels", [&](plan& p) { segment(p).kernels.clear(); });
  refused("a copy of no kind", [&](plan& p) { copy(p).copy = copy_kind::none; });
  refused("a copy the other way", [&](plan& p) { copy(p).copy = copy_kind::out; });
  refused("a copy on the host", [&](plan& p) { copy(p).stream = 0; });
  refused("a device that is none",
          [&](plan& p) { segment(p).stream = device_stream_of(devices_max); });
  refused("kernels on the host", [&](plan& p) {
    for (auto& a : p.actors)
      if (a.kind == actor_kind::fetch) a.kernels = segment(p).kernels;
  });
}

BOOST_AUTO_TEST_CASE(mutations_of_plans_with_devices_are_errors_or_plans_that_hold) {
  const auto good = encode(two_devices("/gpu:1"));
  std::mt19937_64 random(7);
  std::size_t errors = 0, survivors = 0;
  for (int i = 0; i < 5'000; ++i) {
    auto bytes = good;
    for (auto changes = 1 + random() % 6; changes > 0; --changes) {
      auto& b = bytes[random() % bytes.size()];
      b = random() % 2 == 0 ? b ^ static_cast<std::byte>(1U << (random() % 8))
                            : static_cast<std::byte>(random());
    }
    const auto p = decode_plan(bytes);
    ++(p ? survivors : errors);
    if (!p) continue;
    BOOST_TEST_REQUIRE(bool(check(*p)));
    for (const auto& a : p->actors)
      for (std::size_t k = 0; k < a.kernels.size(); ++k) BOOST_TEST_REQUIRE(!ops_of(a, k).empty());
    for (const auto d : devices_of(*p, 0)) BOOST_TEST_REQUIRE(d < devices_max);
    (void)memory_of_device(*p, 0, 0);
  }
  BOOST_TEST(errors > 500u);
  BOOST_TEST(survivors > 50u);
}

BOOST_AUTO_TEST_CASE(variables_stand_on_their_device_unless_somebody_keeps_them) {
  const auto compile = [&](training_spec spec, compile_report* report = nullptr) {
    graph g(ops());
    const auto x = input(g, tensor_spec{dtype::f32, {4, 8}}, "x");
    const auto loss = reduce_sum(relu(dense(x, 3, "layer")));
    spec.steps = 4;
    auto p = compile_training(g, loss, spec, {.device = "/gpu:0", .report = report});
    BOOST_REQUIRE_MESSAGE(p, (p ? "" : p.error().text()));
    return *p;
  };
  const auto on_device = [](const plan& p) {
    return std::count_if(p.actors.begin(), p.actors.end(), [](const auto& a) {
      return a.kind == actor_kind::shard && is_device_stream(a.stream);
    });
  };
  const auto p = compile({});
  BOOST_TEST(on_device(p) == 2);
  BOOST_TEST(std::none_of(p.actors.begin(), p.actors.end(), [](const auto& a) {
    return a.kind == actor_kind::op && a.ops[0].type == "read";
  }));
  const auto need = memory_of_device(p, 0, 0);
  BOOST_TEST(need.bytes > 0u);
  BOOST_TEST(need.largest.find("shard/0/layer/weights") != std::string::npos, need.largest);
  const auto devices = devices_of(p, 0);
  BOOST_REQUIRE_EQUAL(devices.size(), 1u);
  compile_report report;
  training_spec kept;
  kept.has_cuts = true;
  BOOST_TEST(on_device(compile(kept, &report)) == 0);
  bool is_told = false;
  for (const auto& pass : report.passes)
    for (const auto& c : pass.changes)
      is_told =
          is_told || c.text().find("is held on the host, not on '/gpu:0'") != std::string::npos;
  BOOST_TEST(is_told);
}

BOOST_AUTO_TEST_CASE(
    what_is_received_for_a_device_has_as_many_buffers_as_may_hold_it_and_nothing_else_has_any) {
  const auto compile = [&](const std::string& device, bool is_kept) {
    graph g(ops());
    const auto x = input(g, tensor_spec{dtype::f32, {4, 8}}, "x");
    const auto loss = reduce_sum(relu(dense(x, 3, "layer")));
    training_spec spec;
    spec.steps = 4;
    spec.tasks = 3;
    spec.task_names = {"/job:worker/task:0", "/job:ps/task:0", "/job:client/task:0"};
    spec.worker_task = {0};
    spec.shard_task = {1};
    spec.client_task = 2;
    spec.has_cuts = is_kept;
    auto p = compile_training(g, loss, spec, {.device = device});
    BOOST_REQUIRE_MESSAGE(p, (p ? "" : p.error().text()));
    return *p;
  };
  for (const bool is_kept : {false, true}) {
    const auto p = compile("/gpu:0", is_kept);
    std::size_t landed = 0, others = 0;
    for (std::uint32_t i = 0; i < p.actors.size(); ++i) {
      const auto n = landing_buffers(p, {i, 0});
      if (n == 0) {
        others += p.actors[i].kind == actor_kind::receive;
        continue;
      }
      ++landed;
      BOOST_TEST((p.actors[i].kind == actor_kind::receive));
      // The link's, what waits for the copy, and what the copy has under way.
      BOOST_TEST(n >= 2 * p.edges[p.actors[i].inputs[0]].credits + 1 + 1 + 1 + 1);
    }
    // Versions of two variables for the worker, also by way of a read; and gradients, where the
    // shards are on a device too.
    BOOST_TEST(landed >= (is_kept ? 2u : 4u));
    BOOST_TEST(others > 0u);  // for the program
    std::size_t found = 0;
    for (const auto& a : p.actors)
      if (a.copy == copy_kind::in) found += landing_buffers(p, maker_of(p, a)) > 0;
    BOOST_TEST(found == landed);
  }
  const auto p = compile("/cpu:0", false);
  for (std::uint32_t i = 0; i < p.actors.size(); ++i) BOOST_TEST(landing_buffers(p, {i, 0}) == 0u);
}

BOOST_AUTO_TEST_CASE(a_device_is_written_as_others_are) {
  graph g(ops());
  const auto x = input(g, tensor_spec{dtype::f32, {4}}, "x");
  for (const std::string wrong : {"/gpu", "/gpu:x", "/cpu:0/gpu:0", "/gpu:0/cpu:0", "/gpu:256"}) {
    graph h(ops());
    const auto y = input(h, tensor_spec{dtype::f32, {4}}, "x");
    const auto on = h.device_scope(wrong);
    const auto z = tanh(y);
    const auto p = compile_steps(h, std::vector{z}, {});
    BOOST_REQUIRE_MESSAGE(!p, wrong);
    BOOST_TEST(p.error().text().find("segments_test.cpp") != std::string::npos, p.error().text());
  }
  const auto far = compile_steps(g, std::vector{tanh(x)}, {.device = "/job:worker/gpu:0"});
  BOOST_TEST(!far);
}

BOOST_AUTO_TEST_SUITE_END()
