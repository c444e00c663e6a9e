#include "troupe/runtime/analysis/memory_budget.hpp"
#include "troupe/runtime/compile/compile.hpp"
#include "troupe/runtime/compile/compile_report.hpp"
#include "troupe/runtime/firing/collective_state.hpp"
#include "troupe/runtime/graph/op_table.hpp"
#include "troupe/runtime/layers/layers.hpp"
#include "troupe/runtime/plan/segment.hpp"

#include <boost/test/unit_test.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>

using namespace troupe;

namespace {

struct fixture {
  op_table ops = make_op_table();

  // The classifier of the example over `workers` tasks of their own, with the first copies on
  // `shards` others (0: on the first worker's).
  training_spec spec(std::uint32_t workers, std::uint32_t shards = 0) const {
    training_spec s;
    s.workers = workers;
    s.shards = std::max(1U, shards);
    s.all_reduce = true;
    s.steps = 20;
    for (std::uint32_t w = 0; w < workers; ++w) {
      s.worker_task.push_back(w);
      s.task_names.push_back(fmt::format("/job:worker/task:{}", w));
    }
    for (std::uint32_t k = 0; k < s.shards; ++k) {
      s.shard_task.push_back(shards == 0 ? 0 : static_cast<std::uint32_t>(s.task_names.size()));
      if (shards != 0) s.task_names.push_back(fmt::format("/job:ps/task:{}", k));
    }
    s.client_task = static_cast<std::uint32_t>(s.task_names.size());
    s.task_names.push_back("/job:client/task:0");
    s.tasks = static_cast<std::uint32_t>(s.task_names.size());
    return s;
  }

  result<plan> compiled(const training_spec& s, compile_options o = {}) {
    graph g(ops);
    const auto data =
        idx_batch(g, {.path = "data", .samples = 1000, .rows = 28, .columns = 28}, {.batch = 128});
    auto x = relu(dense(data.images, 256, "dense_1"));
    x = relu(dense(x, 128, "dense_2"));
    return compile_training(
        g, softmax_cross_entropy(dense(x, 10, "dense_3"), data.labels, data.scale), s, o);
  }

  plan made(std::uint32_t workers, std::uint32_t shards = 0) {
    auto p = compiled(spec(workers, shards));
    BOOST_REQUIRE_MESSAGE(p, (p ? std::string() : p.error().text()));
    return std::move(*p);
  }
};

std::vector<const planned_actor*> of_kind(const plan& p, actor_kind k) {
  std::vector<const planned_actor*> out;
  for (const auto& a : p.actors)
    if (a.kind == k) out.push_back(&a);
  return out;
}

using spoiler = std::function<void(plan&, planned_actor&)>;

// A plan whose first rank is spoilt is refused with the name of a rank.
void is_refused(plan p, const char* what, const spoiler& spoil) {
  const auto at = std::find_if(p.actors.begin(), p.actors.end(),
                               [](const auto& a) { return a.kind == actor_kind::collective; });
  spoil(p, *at);
  const auto ok = check(p);
  BOOST_TEST_CONTEXT(what) {
    BOOST_REQUIRE(!ok);
    BOOST_TEST(ok.error().text().find("all_reduce/") != std::string::npos, ok.error().text());
  }
}

}  // namespace

BOOST_FIXTURE_TEST_SUITE(all_reduce_plan, fixture)

BOOST_AUTO_TEST_CASE(every_worker_reads_a_copy_on_its_own_task) {
  for (const auto shards : {0U, 2U}) {
    const auto p = made(3, shards);
    for (const auto* a : of_kind(p, actor_kind::op)) {
      if (a->ops.front().type != "read") continue;
      const auto& from = p.actors[p.edges[a->inputs[0]].from.actor];
      BOOST_TEST((from.kind == actor_kind::shard));
      BOOST_TEST(from.task == a->task);
    }
    // Six variables, a copy on each worker's task, and first ones.
    BOOST_TEST(of_kind(p, actor_kind::shard).size() == (shards == 0 ? 18U : 24U));
  }
}

BOOST_AUTO_TEST_CASE(large_gradients_are_a_collective_of_their_own_and_small_ones_share_one) {
  const auto p = made(2);
  const auto ranks = of_kind(p, actor_kind::collective);
  BOOST_REQUIRE_EQUAL(ranks.size(), 4U);
  std::vector<std::uint32_t> tensors;
  for (const auto* r : ranks) tensors.push_back(r->collective->tensors);
  std::sort(tensors.begin(), tensors.end());
  BOOST_TEST(tensors == (std::vector<std::uint32_t>{1, 1, 5, 5}), boost::test_tools::per_element());
  // Nothing but losses, and what is observed at the end: to the program.
  for (const auto* a : of_kind(p, actor_kind::send))
    BOOST_TEST(p.tasks[p.actors[p.edges[a->outputs[0][0]].to.actor].task].is_client);
}

BOOST_AUTO_TEST_CASE(one_process_adds_up_without_collectives) {
  training_spec s;
  s.workers = 2;
  s.all_reduce = true;
  s.steps = 20;
  const auto p = compiled(s);
  BOOST_REQUIRE(p);
  BOOST_TEST(of_kind(*p, actor_kind::collective).empty());
}

BOOST_AUTO_TEST_CASE(workers_that_share_a_task_are_parts_of_one_rank) {
  auto s = spec(3);
  s.worker_task = {0, 1, 0};
  const auto p = compiled(s);
  BOOST_REQUIRE_MESSAGE(p, (p ? std::string() : p.error().text()));
  for (const auto* r : of_kind(*p, actor_kind::collective))
    BOOST_TEST((r->collective->spec.parts == std::vector<std::vector<std::uint32_t>>{{0, 2}, {1}}));
}

BOOST_AUTO_TEST_CASE(is_the_same_after_a_way_over_the_wire) {
  for (const auto shards : {0U, 2U}) {
    const auto p = made(3, shards);
    const auto back = decode_plan(encode(p));
    BOOST_REQUIRE_MESSAGE(back, (back ? std::string() : back.error().text()));
    BOOST_TEST((*back == p));
  }
}

BOOST_AUTO_TEST_CASE(a_rank_needs_memory_for_results_and_for_what_its_peers_send) {
  const auto p = made(2);
  const auto needs = memory_by_actor(p);
  for (std::size_t i = 0; i < p.actors.size(); ++i)
    if (p.actors[i].kind == actor_kind::collective)
      BOOST_TEST(needs[i] > static_cast<std::uint64_t>(p.actors[i].collective->spec.elements) * 4);
}

BOOST_AUTO_TEST_CASE(PL_11_groups_that_do_not_fit_are_refused_with_the_name_of_the_rank) {
  const auto good = made(3);
  const auto refuse = [&](const char* what, const spoiler& spoil) {
    is_refused(good, what, spoil);
  };
  refuse("no collective", [](plan&, planned_actor& a) { a.collective.reset(); });
  refuse("another order", [](plan&, planned_actor& a) {
    a.collective->spec.algorithm = collective_algorithm::ring;
  });
  refuse("another shape", [](plan&, planned_actor& a) { a.collective->spec.elements += 16; });
  refuse("another type", [](plan&, planned_actor& a) { a.collective->spec.type = dtype::f64; });
  refuse("another reduction",
         [](plan&, planned_actor& a) { a.collective->spec.reduction = reduction_kind::max; });
  refuse("another rank", [](plan&, planned_actor& a) { a.collective->spec.rank = 1; });
  refuse("a rank beyond", [](plan&, planned_actor& a) { a.collective->spec.rank = 7; });
  refuse("fewer peers", [](plan&, planned_actor& a) { a.collective->peers_to.pop_back(); });
  refuse("no tensors", [](plan&, planned_actor& a) { a.collective->tensors = 0; });
  refuse("the same task", [](plan& p, planned_actor& a) {
    for (auto& other : p.actors)
      if (other.kind == actor_kind::collective) other.task = a.task;
  });
  refuse("no credits", [](plan& p, planned_actor& a) { p.edges[a.inputs.back()].credits = 0; });
}

BOOST_AUTO_TEST_CASE(
    PL_11_ranks_of_many_and_of_unequally_many_workers_have_credits_for_all_parts_of_a_piece) {
  for (const auto& [here, there] : {std::pair{9U, 8U}, std::pair{9U, 9U}, std::pair{17U, 1U}}) {
    auto s = spec(2);
    s.workers = here + there;
    s.worker_task.assign(here, 0);
    s.worker_task.resize(s.workers, 1);
    const auto p = compiled(s);
    BOOST_REQUIRE_MESSAGE(p, (p ? std::string() : p.error().text()));
    for (const auto* rank : of_kind(*p, actor_kind::collective)) {
      const auto& c = *rank->collective;
      for (auto port = c.own_inputs(); port < rank->inputs.size(); ++port)
        BOOST_CHECK_NO_THROW(collective_state(c.spec, p->edges[rank->inputs[port]].credits));
      for (auto port = std::size_t{c.tensors}; port < rank->outputs.size(); ++port)
        BOOST_CHECK_NO_THROW(
            collective_state(c.spec, p->edges[rank->outputs[port].front()].credits));
    }
    is_refused(*p, "one credit too few", [](plan& q, planned_actor& a) {
      q.edges[a.inputs.back()].credits = fewest_credits(a.collective->spec) - 1;
    });
  }
}

// --- on devices ---

BOOST_AUTO_TEST_CASE(
    on_devices_there_is_one_rank_on_each_for_all_buckets_and_nothing_of_a_step_leaves_but_losses) {
  for (const auto workers : {2U, 3U}) {
    const auto p = compiled(spec(workers), {.bucket_bytes = 64 << 10, .device = "/gpu:1"});
    BOOST_REQUIRE_MESSAGE(p, (p ? std::string() : p.error().text()));
    const auto ranks = of_kind(*p, actor_kind::collective);
    BOOST_REQUIRE_EQUAL(ranks.size(), workers);
    for (const auto* r : ranks) {
      const auto& c = *r->collective;
      BOOST_TEST(r->name == fmt::format("all_reduce/gpu:1/{}", c.spec.rank));
      BOOST_TEST(r->stream == device_stream_of(1));
      BOOST_TEST(c.tensors == 6U);
      // dense_3 and its bias, dense_2's and a bias, dense_1's: gradients in the order in which they
      // are made.
      std::uint32_t tensors = 0;
      for (const auto b : c.buckets) tensors += b;
      BOOST_TEST(tensors == 6U);
      BOOST_TEST(c.buckets.size() >= 3U);
      BOOST_TEST(c.is_in_order == (workers == 3));  // a + b is b + a
      for (std::size_t port = 0; port < c.own_inputs(); ++port)
        BOOST_TEST(p->actors[p->edges[r->inputs[port]].from.actor].task == r->task);
    }
    for (const auto* s : of_kind(*p, actor_kind::shard)) {
      BOOST_TEST(s->stream == device_stream_of(1));
      BOOST_TEST((s->shard.takes_sums || s->shard.follows));
    }
    BOOST_TEST(of_kind(*p, actor_kind::shard).size() == 6 * workers);
    for (const auto* a : of_kind(*p, actor_kind::send))
      BOOST_TEST(p->tasks[p->actors[p->edges[a->outputs[0][0]].to.actor].task].is_client);
    const auto back = decode_plan(encode(*p));
    BOOST_REQUIRE_MESSAGE(back, (back ? std::string() : back.error().text()));
    BOOST_TEST((*back == *p));
    // Results and what is gathered are memory of the device, not of the host.
    const auto needs = memory_by_actor(*p);
    for (std::size_t i = 0; i < p->actors.size(); ++i)
      if (p->actors[i].kind == actor_kind::collective) BOOST_TEST(needs[i] == 0U);
    const auto sum = ranks[0]->collective->spec.elements * 4;
    BOOST_TEST(memory_of_device(*p, ranks[0]->task, 1).bytes >
               static_cast<std::uint64_t>((2 + workers) * sum));
    BOOST_TEST(gathered_bytes(*ranks[0]->collective) == static_cast<std::uint64_t>(workers * sum));
  }
}

BOOST_AUTO_TEST_CASE(variables_on_the_host_and_on_devices_are_groups_of_their_own) {
  graph g(ops);
  const auto data =
      idx_batch(g, {.path = "data", .samples = 1000, .rows = 28, .columns = 28}, {.batch = 128});
  value x = data.images;
  const std::array devices{"/gpu:0", "/gpu:1", "/cpu:0"};
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const auto on = g.device_scope(devices[i]);
    x = dense(x, 10, fmt::format("dense_{}", i));
  }
  const auto p =
      compile_training(g, softmax_cross_entropy(x, data.labels, data.scale), spec(2), {});
  BOOST_REQUIRE_MESSAGE(p, (p ? std::string() : p.error().text()));
  std::vector<std::string> names;
  for (const auto* r : of_kind(*p, actor_kind::collective)) {
    names.push_back(r->name);
    BOOST_TEST(r->collective->tensors == 2U);
  }
  std::sort(names.begin(), names.end());
  BOOST_TEST(names == (std::vector<std::string>{"all_reduce/0/0", "all_reduce/0/1",
                                                "all_reduce/gpu:0/0", "all_reduce/gpu:0/1",
                                                "all_reduce/gpu:1/0", "all_reduce/gpu:1/1"}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(what_keeps_gradients_from_devices_is_told) {
  const auto told = [&](const training_spec& s, compile_options o) {
    compile_report report;
    o.report = &report;
    o.device = "/gpu:0";
    const auto p = compiled(s, o);
    BOOST_REQUIRE_MESSAGE(p, (p ? std::string() : p.error().text()));
    for (const auto* r : of_kind(*p, actor_kind::collective))
      BOOST_TEST(!r->collective->is_on_device());
    BOOST_TEST(!of_kind(*p, actor_kind::collective).empty());
    std::string text;
    for (const auto& pass : report.passes)
      for (const auto& c : pass.changes) text += c.what + "\n";
    return text;
  };
  BOOST_TEST(
      told(spec(2), {.device_collectives = false})
          .find(
              "is held on the host, not on gpu:0: the options ask for gradients to be summed over links") !=
      std::string::npos);
  BOOST_TEST(told(spec(2, 1), {}).find("/job:ps/task:0, which holds it, has no worker") !=
             std::string::npos);
  auto recovers = spec(2);
  recovers.is_recoverable = true;
  BOOST_TEST(told(recovers, {}).find("the job keeps it for recovery or checkpoints") !=
             std::string::npos);
  compile_report report;
  BOOST_REQUIRE(compiled(spec(3), {.device = "/gpu:0", .report = &report}));
  std::string text;
  for (const auto& pass : report.passes)
    for (const auto& c : pass.changes) text += c.what + "\n";
  BOOST_TEST(text.find("in 1 operation, which gather the gradients of all workers and add them") !=
                 std::string::npos,
             text);
}

BOOST_AUTO_TEST_CASE(
    PL_11_groups_of_devices_that_do_not_fit_are_refused_with_the_name_of_the_rank) {
  const auto good = compiled(spec(3), {.device = "/gpu:0"});
  BOOST_REQUIRE(good);
  const auto refuse = [&](const char* what, const spoiler& spoil) {
    is_refused(*good, what, spoil);
  };
  refuse("no buckets", [](plan&, planned_actor& a) { a.collective->buckets.clear(); });
  refuse("too many tensors in buckets",
         [](plan&, planned_actor& a) { ++a.collective->buckets[0]; });
  refuse("an empty bucket", [](plan&, planned_actor& a) { a.collective->buckets.push_back(0); });
  refuse("on the host", [](plan&, planned_actor& a) { a.stream = 0; });
  refuse("on another device", [](plan&, planned_actor& a) { a.stream = device_stream_of(3); });
  refuse("another order", [](plan&, planned_actor& a) { a.collective->is_in_order = false; });
  refuse("another reduction", [](plan& p, planned_actor&) {
    for (auto& a : p.actors)
      if (a.collective) a.collective->spec.reduction = reduction_kind::max;
  });
  refuse("a rank without a part", [](plan& p, planned_actor&) {
    for (auto& a : p.actors)
      if (a.collective) a.collective->spec.parts = {{0, 1}, {2}, {}};
  });
  refuse("fewer peers", [](plan&, planned_actor& a) { a.collective->peers_to.pop_back(); });
  refuse("the same task", [](plan& p, planned_actor& a) {
    for (auto& other : p.actors)
      if (other.kind == actor_kind::collective) other.task = a.task;
  });
}

BOOST_AUTO_TEST_CASE(what_cannot_be_is_said_before_anything_is_made) {
  auto s = spec(2);
  s.update = update_kind::async;
  BOOST_TEST(compiled(s).error().text().find("synchronous") != std::string::npos);
  s = spec(2);
  s.has_replicas = true;
  BOOST_TEST(compiled(s).error().text().find("replicas at 0") != std::string::npos);
  BOOST_TEST(
      compiled(spec(2), {.on_nan = nan_policy::skip}).error().text().find("all-reduce cannot") !=
      std::string::npos);
}

BOOST_AUTO_TEST_CASE(the_report_tells_what_is_put_in) {
  compile_report report;
  const auto p = compiled(spec(2), {.report = &report});
  BOOST_REQUIRE(p);
  const auto pass = std::find_if(report.passes.begin(), report.passes.end(),
                                 [](const auto& x) { return x.pass == "all_reduce"; });
  BOOST_REQUIRE(pass != report.passes.end());
  BOOST_TEST(pass->after > pass->before);
}

BOOST_AUTO_TEST_SUITE_END()
