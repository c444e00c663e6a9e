// Collectives that a program calls: what they take, and the plans that come of them.

#include "troupe/runtime/compile/compile.hpp"
#include "troupe/runtime/compile/compile_report.hpp"
#include "troupe/runtime/graph/collectives.hpp"
#include "troupe/runtime/graph/initializers.hpp"
#include "troupe/runtime/graph/op_table.hpp"
#include "troupe/runtime/layers/eager.hpp"

#include <boost/test/unit_test.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>

using namespace troupe;

namespace {

using build = std::function<value(value)>;  // of f32[8, 3], different on each worker

struct fixture {
  op_table ops = make_op_table();

  training_spec spec(std::vector<std::uint32_t> worker_task) const {
    training_spec s;
    s.workers = static_cast<std::uint32_t>(worker_task.size());
    s.steps = 5;
    const auto tasks = *std::max_element(worker_task.begin(), worker_task.end()) + 1;
    for (std::uint32_t t = 0; t < tasks; ++t)
      s.task_names.push_back(fmt::format("/job:worker/task:{}", t));
    s.worker_task = std::move(worker_task);
    s.shard_task = {0};
    s.client_task = tasks;
    s.task_names.push_back("/job:client/task:0");
    s.tasks = tasks + 1;
    return s;
  }

  result<plan> compiled(const training_spec& s, const build& b, compile_options o = {}) {
    graph g(ops);
    const auto x = input(g, {dtype::f32, {8, 3}}, "x");
    const auto v = variable(g, {dtype::f32, {3}}, filled_with(1), "v");
    const auto y = b(mul(x, v));
    return compile_training(g, y.is_valid() ? reduce_sum(y) : y, s, o);
  }

  plan made(const training_spec& s, const build& b, compile_options o = {}) {
    auto p = compiled(s, b, o);
    BOOST_REQUIRE_MESSAGE(p, (p ? std::string() : p.error().text()));
    const auto back = decode_plan(encode(*p));
    BOOST_REQUIRE_MESSAGE(back, (back ? std::string() : back.error().text()));
    BOOST_TEST((*back == *p));
    return std::move(*p);
  }

  void refused(const training_spec& s, const build& b,
               std::initializer_list<std::string_view> wanted) {
    const auto p = compiled(s, b);
    BOOST_REQUIRE(!p);
    for (const auto w : wanted)
      BOOST_TEST(p.error().text().find(w) != std::string::npos, p.error().text() << " lacks " << w);
    BOOST_TEST(p.error().text().find("collectives_plan_test.cpp:") != std::string::npos,
               p.error().text());
  }
};

std::vector<const planned_actor*> ranks(const plan& p) {
  std::vector<const planned_actor*> out;
  for (const auto& a : p.actors)
    if (a.kind == actor_kind::collective) out.push_back(&a);
  return out;
}

}  // namespace

BOOST_FIXTURE_TEST_SUITE(collectives_plan, fixture)

BOOST_AUTO_TEST_CASE(a_call_becomes_a_rank_on_every_task_with_a_part_for_each_worker_there) {
  const auto p = made(spec({0, 1, 0}), [](value x) {
    return mul(x, stop_gradient(all_reduce(x, reduction_kind::max)));
  });
  const auto all = ranks(p);
  BOOST_REQUIRE_EQUAL(all.size(), 2U);
  for (const auto* r : all) {
    BOOST_TEST((r->collective->spec.kind == collective_kind::all_reduce));
    BOOST_TEST((r->collective->spec.reduction == reduction_kind::max));
    BOOST_TEST((r->collective->spec.parts == std::vector<std::vector<std::uint32_t>>{{0, 2}, {1}}));
    BOOST_TEST(r->collective->spec.elements == 24);
    BOOST_TEST((r->collective->workers == r->collective->spec.parts[r->collective->spec.rank]));
    BOOST_TEST(r->source.file.find("collectives_plan_test.cpp") != std::string::npos);
  }
  // No op is left of the call.
  for (const auto& a : p.actors)
    for (const auto& op : a.ops) BOOST_TEST(!is_collective(op.type), a.name);
}

BOOST_AUTO_TEST_CASE(the_gradient_of_a_sum_or_a_mean_is_one_of_the_same_workers) {
  for (const auto r : {reduction_kind::sum, reduction_kind::mean}) {
    const auto p = made(spec({0, 1}), [&](value x) { return mul(all_reduce(x, r), x); });
    BOOST_TEST(ranks(p).size() == 4U);  // forth and back
    for (const auto* a : ranks(p)) BOOST_TEST((a->collective->spec.reduction == r));
  }
  const auto p = made(spec({0, 1}), [](value x) {
    return mul(all_gather(x, all_workers(2)), all_gather(x, all_workers(2)));
  });
  std::multiset<collective_kind> kinds;
  for (const auto* a : ranks(p)) kinds.insert(a->collective->spec.kind);
  BOOST_TEST(kinds.count(collective_kind::all_gather) == 2U);  // equal calls are one
  BOOST_TEST(kinds.count(collective_kind::reduce_scatter) == 2U);
}

// A rank scatters to each of its parts, and others have fewer.
BOOST_AUTO_TEST_CASE(workers_that_share_a_task_have_a_slice_each) {
  const auto p = made(spec({0, 1, 0}),
                      [](value x) { return reduce_scatter(reshape(x, {3, 8}), all_workers(3)); });
  for (const auto* r : ranks(p))
    if (r->collective->spec.kind == collective_kind::reduce_scatter)
      BOOST_TEST(r->collective->tensors == r->collective->workers.size());
}

BOOST_AUTO_TEST_CASE(shapes_follow_from_the_size_of_the_group) {
  graph g(ops);
  const auto x = input(g, {dtype::f32, {8, 3}}, "x");
  BOOST_TEST((all_gather(x, all_workers(4)).spec() == tensor_spec{dtype::f32, {32, 3}}));
  BOOST_TEST((reduce_scatter(x, all_workers(4)).spec() == tensor_spec{dtype::f32, {2, 3}}));
  BOOST_TEST((all_reduce(x).spec() == x.spec()));
  BOOST_TEST((broadcast(x, 3).spec() == x.spec()));
  BOOST_TEST((barrier(x).spec() == x.spec()));
  BOOST_TEST(!g.first_error());
}

// Ranks of one collective may take what those of another made, and so may the ranks that add up
// gradients. What a rank contributes is no edge back: segments of a device come behind it (PL-4).
BOOST_AUTO_TEST_CASE(collectives_may_follow_each_other_at_once) {
  for (const std::string device : {"", "/gpu:0"})
    for (const bool all_reduces : {true, false}) {
      auto s = spec({0, 1, 0});
      s.all_reduce = all_reduces;
      compile_options o;
      o.device = device;
      const auto p = made(
          s,
          [](value x) {
            const auto all = all_reduce(all_reduce(barrier(x)), reduction_kind::mean);
            return tanh(all_reduce(all_reduce(exp(all) * x)));
          },
          o);
      std::size_t local = 0;
      for (const auto& e : p.edges) {
        const auto& from = p.actors[e.from.actor];
        const auto& to = p.actors[e.to.actor];
        if (from.kind != actor_kind::collective || to.kind != actor_kind::collective) continue;
        const bool is_own = e.to.port < to.collective->own_inputs();
        BOOST_TEST((from.task == to.task) == is_own);
        local += is_own;
      }
      BOOST_TEST(local > 0U);
    }
}

BOOST_AUTO_TEST_CASE(several_groups_are_several_collectives_and_who_is_in_none_keeps_its_own) {
  const auto p = made(spec({0, 1, 2, 3, 4}), [](value x) {
    return all_reduce(x, reduction_kind::sum, {{{3, 1}, {0, 4}}});
  });
  std::map<std::string, std::vector<std::uint32_t>> workers;
  for (const auto* a : ranks(p)) {
    const auto own = a->collective->workers;
    auto& all = workers[a->name.substr(0, a->name.rfind('/'))];
    all.insert(all.end(), own.begin(), own.end());
  }
  std::set<std::set<std::uint32_t>> groups;
  for (auto& [name, all] : workers) groups.emplace(all.begin(), all.end());
  BOOST_TEST((groups == std::set<std::set<std::uint32_t>>{{1, 3}, {0, 4}}));
}

BOOST_AUTO_TEST_CASE(who_is_alone_exchanges_nothing) {
  BOOST_TEST(ranks(made(spec({0}), [](value x) {
               return all_reduce(barrier(all_gather(x, all_workers(1))));
             })).empty());
  BOOST_TEST(ranks(made(spec({0, 1}), [](value x) {
               return all_reduce(x, reduction_kind::sum, {{{0}, {1}}});
             })).empty());
  graph g(ops);
  const auto x = input(g, {dtype::f32, {4}}, "x");
  const auto y = all_reduce(add(x, x), reduction_kind::mean);
  const auto p = compile_steps(g, {&y, 1}, {});
  BOOST_REQUIRE_MESSAGE(p, (p ? std::string() : p.error().text()));
  BOOST_TEST(ranks(*p).empty());
}

BOOST_AUTO_TEST_CASE(a_report_says_who_was_put_in_and_why_everybody_is_where_he_is) {
  compile_report report;
  compile_options o;
  o.report = &report;
  const auto p = compiled(spec({0, 1}), [](value x) { return all_reduce(x); }, o);
  BOOST_REQUIRE(p);
  const auto pass = std::find_if(report.passes.begin(), report.passes.end(),
                                 [](const auto& r) { return r.pass == "collectives"; });
  BOOST_REQUIRE(pass != report.passes.end());
  BOOST_TEST(pass->changes.size() == 2U);  // forth and back
  for (std::size_t i = 0; i < report.placements.size(); ++i)
    if (p->actors[i].kind == actor_kind::shard)
      BOOST_TEST((report.placements[i].owner == placement_reason::kind::shard), p->actors[i].name);
}

BOOST_AUTO_TEST_CASE(what_does_not_fit_is_refused_with_the_line_of_the_call) {
  const auto two = spec({0, 1});
  const auto among = [](std::vector<std::vector<std::uint32_t>> groups) {
    return worker_groups{std::move(groups)};
  };
  refused(two, [&](value x) { return all_reduce(x, reduction_kind::sum, among({{0, 2}})); },
          {"all_reduce", "worker 2", "the job has 2", "0 to 1"});
  refused(two, [&](value x) { return all_reduce(x, reduction_kind::sum, among({{0, 1}, {1}})); },
          {"worker 1 is in its groups twice"});
  refused(two, [&](value x) { return all_reduce(cast(x, dtype::i32), reduction_kind::mean); },
          {"i32[8, 3]", "a mean is of f32 or f64"});
  refused(two, [&](value x) { return all_reduce(cast(x, dtype::boolean)); },
          {"all_reduce", "bool"});
  refused(two, [&](value x) { return reduce_scatter(x, all_workers(3)); },
          {"f32[8, 3]", "the first axis, of 8, cannot be cut into 3 equal slices"});
  refused(two, [&](value x) { return all_gather(reduce_sum(x), all_workers(2)); },
          {"a scalar has none"});
  refused(two, [&](value x) { return all_gather(x, {}); }, {"all_workers(n)"});
  refused(two, [&](value x) { return all_gather(x, all_workers(3)); },
          {"worker 2", "the job has 2"});
  refused(spec({0, 1, 2}), [&](value x) { return all_gather(x, all_workers(2)); },
          {"2 of 3 workers are in its groups"});
  refused(spec({0, 1, 2}), [&](value x) { return all_gather(x, among({{0, 1}, {2}})); },
          {"2 and 1 workers"});
  refused(two, [&](value x) { return broadcast(x, 2, all_workers(2)); },
          {"position 2 of a group of 2"});
  refused(two, [&](value x) { return broadcast(x); },
          {"broadcast has no gradient", "stop_gradient"});
  refused(two, [&](value x) { return all_reduce(x, reduction_kind::min); },
          {"by min has no gradient"});
  auto async = two;
  async.update = update_kind::async;
  refused(async, [&](value x) { return all_reduce(x); }, {"synchronous"});
  refused(two,
          [&](value x) {
            return cond(
                greater(reduce_sum(x), constant(*x.owner, 0.0F)), [&] { return all_reduce(x); },
                [&] { return x; });
          },
          {"branch or loop"});
  graph g(ops);
  BOOST_TEST(!all_reduce(input(g, {dtype::f32, batch_of(8, {3})}, "batch")).is_valid());
  BOOST_REQUIRE(g.first_error());
  BOOST_TEST(g.first_error()->text().find("fixed sizes") != std::string::npos,
             g.first_error()->text());
  graph stepped(ops);
  const auto y =
      all_reduce(input(stepped, {dtype::f32, {4}}, "x"), reduction_kind::sum, all_workers(2));
  const auto p = compile_steps(stepped, {&y, 1}, {});
  BOOST_REQUIRE(!p);
  BOOST_TEST(p.error().text().find("one worker, number 0") != std::string::npos, p.error().text());
}

// As may come over the wire.
BOOST_AUTO_TEST_CASE(PL_11_a_plan_whose_ranks_do_not_fit_together_is_refused) {
  const auto good = made(spec({0, 1}), [](value x) {
    return reduce_scatter(all_gather(x, all_workers(2)), all_workers(2));
  });
  const auto breaks = [&](const std::function<bool(planned_actor&)>& change) {
    auto p = good;
    bool has = false;
    for (auto& a : p.actors)
      if (a.collective && !has) has = change(a);
    BOOST_REQUIRE(has);
    const auto ok = check(p);
    BOOST_REQUIRE(!ok);
    BOOST_TEST(ok.error().text().find("PL-11") != std::string::npos, ok.error().text());
  };
  const auto of = [](collective_kind k, const std::function<void(planned_collective&)>& change) {
    return [=](planned_actor& a) {
      if (a.collective->spec.kind != k) return false;
      change(*a.collective);
      return true;
    };
  };
  for (const auto k : {collective_kind::all_gather, collective_kind::reduce_scatter}) {
    breaks(of(k, [](auto& c) { c.spec.type = dtype::i32; }));
    breaks(of(k, [](auto& c) { c.spec.elements *= 2; }));
    breaks(of(k, [](auto& c) { c.workers.push_back(7); }));
    breaks(of(k, [](auto& c) { c.spec.reduction = reduction_kind::min; }));  // the other rank sums
  }
}

BOOST_AUTO_TEST_SUITE_END()
