#include "troupe/runtime/supervision/failure.hpp"

#include "troupe/runtime/jobs/gradient_ledger.hpp"
#include "troupe/runtime/jobs/participants.hpp"

#include "tests/support/repetitions.hpp"
#include "troupe/schema/error.hpp"

#include <boost/test/unit_test.hpp>

#include <deque>
#include <random>

using namespace troupe;

BOOST_TEST_DONT_PRINT_LOG_VALUE(troupe::loss_verdict)
BOOST_TEST_DONT_PRINT_LOG_VALUE(troupe::worker_totals)

namespace {

constexpr auto ps = node_id{1}, w0 = node_id{2}, w1 = node_id{3}, client = node_id{4};

failure failed(std::string node, std::string actor, std::uint64_t step, std::string text,
               bool is_derived, std::int64_t t = 0) {
  return {std::move(node), 123, std::move(actor), step, std::move(text), is_derived, t};
}

// Two workers that send gradients to one shard on a node of its own, and a client that fetches:
// tasks 0 ps, 1 and 2 workers, 3 client.
plan training_plan(update_kind update) {
  plan p;
  p.name = "mnist";
  p.update = update;
  p.workers = 2;
  p.shards = 1;
  p.tasks = {{"/job:ps/task:0", false, {}},
             {"/job:worker/task:0", false, {}},
             {"/job:worker/task:1", false, {}},
             {"/job:client/task:0", true, {}}};
  const auto add = [&](actor_kind kind, std::string name, std::uint32_t task) {
    planned_actor a;
    a.kind = kind;
    a.name = std::move(name);
    a.task = task;
    p.actors.push_back(a);
    return static_cast<std::uint32_t>(p.actors.size() - 1);
  };
  const auto join = [&](std::uint32_t from, std::uint32_t to) {
    p.edges.push_back(
        {{from, 0}, {to, static_cast<std::uint32_t>(p.actors[to].inputs.size())}, {}, 2});
    p.actors[to].inputs.push_back(static_cast<std::uint32_t>(p.edges.size() - 1));
  };
  const auto shard = add(actor_kind::shard, "shard/0/w", 0);
  for (std::uint32_t w = 0; w < 2; ++w) {
    const auto op = add(actor_kind::op, "worker/" + std::to_string(w) + "/gradient", 1 + w);
    const auto send = add(actor_kind::send, "send", 1 + w);
    const auto receive = add(actor_kind::receive, "receive", 0);
    join(op, send);
    join(send, receive);
    join(receive, shard);
  }
  add(actor_kind::fetch, "loss", 3);
  return p;
}

participants of(update_kind update) {
  const std::vector<node_id> nodes{ps, w0, w1, client};
  return {training_plan(update), nodes};
}

}  // namespace

BOOST_AUTO_TEST_SUITE(supervision)

BOOST_AUTO_TEST_CASE(the_line_names_job_node_process_actor_step_and_reason) {
  failure_log log("mnist");
  BOOST_TEST(log.line() == "");
  BOOST_TEST(!log.has_failed());
  BOOST_TEST(!log.is_settled(1'000'000'000'000));
  log.add(failed("n2", "worker/1/dense_1", 431, "matmul got [2, 3] and [4, 5]", false));
  BOOST_TEST(
      log.line() ==
      "job mnist failed: node n2 (pid 123), actor worker/1/dense_1, step 431: matmul got [2, 3] and [4, 5]");
  BOOST_TEST(log.is_settled(0));
  BOOST_TEST(!log.deadline_ns().has_value());
}

BOOST_AUTO_TEST_CASE(what_is_not_known_is_left_out_of_the_line) {
  failure f;
  BOOST_TEST(f.where_and_why() == "no reason given");
  f.node = "n2";
  f.text = "died: process 7 is gone";
  BOOST_TEST(f.where_and_why() == "node n2: died: process 7 is gone");
  f.pid = 7;
  f.step = 0;
  BOOST_TEST(f.where_and_why() == "node n2 (pid 7), step 0: died: process 7 is gone");
}

BOOST_AUTO_TEST_CASE(SV_1_a_derived_failure_waits_for_its_cause) {
  failure_log log("j");
  log.add(failed("n1", "shard/0", 5, "its producer worker/1 is lost", true, 1000));
  BOOST_TEST(log.has_failed());
  BOOST_TEST(!log.is_settled(1000));
  BOOST_TEST(*log.deadline_ns() == 1000 + failure_log::settle_ns);
  log.add(failed("n3", "shard/1", 5, "its producer worker/1 is lost", true, 1500));
  log.add(failed("n2", "", 4, "no sign of life for 1.0 s", false, 2000));
  log.add(failed("n9", "x", 4, "another one", false, 2500));
  BOOST_TEST(log.is_settled(2000));
  BOOST_TEST(log.line() == "job j failed: node n2 (pid 123), step 4: no sign of life for 1.0 s");
  BOOST_TEST(log.own_count() == 2u);
  BOOST_TEST(log.derived_count() == 2u);
  BOOST_TEST(log.derived().front().actor == "shard/0");
}

BOOST_AUTO_TEST_CASE(SV_1_a_derived_failure_without_a_cause_is_told_in_the_end) {
  failure_log log("j");
  log.add(failed("n1", "shard/0", 5, "its producer is lost", true, 1000));
  BOOST_TEST(!log.is_settled(999 + failure_log::settle_ns));
  BOOST_TEST(log.is_settled(1000 + failure_log::settle_ns));
  BOOST_TEST(log.line() ==
             "job j failed: node n1 (pid 123), actor shard/0, step 5: its producer is lost");
}

BOOST_AUTO_TEST_CASE(a_job_that_nobody_has_named_is_the_job) {
  failure_log log("job");
  log.add(failed("n1", "shard/0", 5, "no room", false));
  BOOST_TEST(log.line() == "the job failed: node n1 (pid 123), actor shard/0, step 5: no room");
}

BOOST_AUTO_TEST_CASE(SV_2_the_line_is_one_line_and_the_log_is_bounded) {
  failure_log log("a\nb");
  for (int i = 0; i < 1000; ++i) log.add(failed("n\r1", "x\ty", 1, "first\nsecond\n", i % 2 == 0));
  BOOST_TEST(log.line() == "job a b failed: node n 1 (pid 123), actor x y, step 1: first second");
  BOOST_TEST(log.own().size() == failure_log::kept_max);
  BOOST_TEST(log.derived_count() == 500u);
}

BOOST_AUTO_TEST_CASE(workers_are_found_behind_transfers) {
  BOOST_TEST((worker_tasks(training_plan(update_kind::sync)) == std::vector<std::int32_t>{1, 2}));
  const auto p = of(update_kind::async);
  BOOST_TEST((p.workers_on(w1) == std::vector<std::uint32_t>{1}));
  BOOST_TEST(p.workers_on(ps).empty());
  BOOST_TEST(p.describe(w1) == "/job:worker/task:1 (worker 1)");
  BOOST_TEST(p.describe(ps) == "/job:ps/task:0 (shard 0)");
  BOOST_TEST(p.describe(client) == "/job:client/task:0 (the program's side)");
}

BOOST_AUTO_TEST_CASE(SV_3_synchronous_training_loses_nobody) {
  for (auto n : {ps, w0, w1, client}) {
    auto p = of(update_kind::sync);
    BOOST_TEST(p.lose(n) == loss_verdict::fatal);
  }
}

BOOST_AUTO_TEST_CASE(SV_3_asynchronous_training_loses_workers_until_none_is_left) {
  auto p = of(update_kind::async);
  BOOST_TEST(p.lose(w0) == loss_verdict::tolerated);
  BOOST_TEST(p.lose(w0) == loss_verdict::irrelevant);  // once is enough
  BOOST_TEST(p.is_lost(w0));
  BOOST_TEST(p.lose(w1) == loss_verdict::fatal);
  for (auto n : {ps, client}) {
    auto q = of(update_kind::async);
    BOOST_TEST(q.lose(n) == loss_verdict::fatal);
  }
}

BOOST_AUTO_TEST_CASE(SV_3_who_takes_no_part_or_has_done_its_part_may_go) {
  auto p = of(update_kind::sync);
  BOOST_TEST(p.lose(node_id{99}) == loss_verdict::irrelevant);
  for (auto n : {w0, ps, client}) p.ended(n);
  BOOST_TEST(p.lose(w0) == loss_verdict::irrelevant);
  p.ended(w1);
  BOOST_TEST(p.all_over());
}

BOOST_AUTO_TEST_CASE(SV_3_what_a_part_sent_last_may_still_be_on_its_way) {
  auto p = of(update_kind::sync);
  p.ended(w0);
  BOOST_TEST(p.lose(w0) == loss_verdict::fatal);  // the shard's node waits for it
  auto a = of(update_kind::async);
  a.ended(w0);
  // Asynchronous training would go on in any case.
  BOOST_TEST(a.lose(w0) == loss_verdict::irrelevant);
}

BOOST_AUTO_TEST_CASE(SV_3_a_worker_that_shares_its_node_with_a_shard_may_not_be_lost) {
  const std::vector<node_id> nodes{w0, w0, w1, client};
  participants p(training_plan(update_kind::async), nodes);
  BOOST_TEST(p.describe(w0) == "/job:ps/task:0, /job:worker/task:0 (worker 0, shard 0)");
  BOOST_TEST(p.lose(w1) == loss_verdict::tolerated);
  participants q(training_plan(update_kind::async), nodes);
  BOOST_TEST(q.lose(w0) == loss_verdict::fatal);
  const std::vector<node_id> too_few{w0};
  BOOST_CHECK_THROW(participants(training_plan(update_kind::async), too_few), broken_invariant);
}

BOOST_AUTO_TEST_CASE(SV_4_a_step_is_applied_when_every_shard_has_applied_it) {
  ledger l(2);
  BOOST_TEST((l.of(0) == worker_totals{}));
  for (int i = 0; i < 7; ++i) l.on_loss(1);
  l.on_loss(99);  // nobody
  l.on_shard({10, {0, 6}, {0, 5}, {0, 0}, {}});
  l.on_shard({11, {0, 8}, {0, 4}, {0, 2}, {}});
  BOOST_TEST((l.of(1) == worker_totals{8, 4, 2, 2}));
  BOOST_TEST((l.total() == l.of(1)));
  BOOST_TEST(to_string(1, l.of(1)) == "worker 1: fed 8 = applied 4 + dropped 2 + in flight 2");
  l.on_shard({11, {0, 3}, {0, 1}, {}, {}});  // an old report, cut short
  BOOST_TEST((l.of(1) == worker_totals{8, 4, 2, 2}));
  l.on_shard({11, {}, {}, {}, {}});
  BOOST_TEST((l.of(1) == worker_totals{8, 4, 2, 2}));
}

// Workers feed, shards apply or drop in order, messages are late, workers die, reports are lost:
// the sum holds at every moment and never says more than happened; without deaths it ends exact.
BOOST_AUTO_TEST_CASE(SV_4_holds_in_10000_random_schedules) {
  std::mt19937_64 random(11);
  const auto pick = [&](std::uint64_t n) { return random() % n; };
  std::uint64_t in_flight = 0, dropped = 0;
  for (std::uint64_t schedule = 0; schedule < repetitions(10'000); ++schedule) {
    const auto workers = static_cast<std::uint32_t>(1 + pick(3));
    const auto shards = static_cast<std::uint32_t>(1 + pick(3));
    const bool with_deaths = pick(2) == 0;
    ledger l(workers);
    std::vector<std::uint64_t> fed(workers), losses_on_way(workers);
    std::vector<bool> is_dead(workers, false), has_reported(shards, false);
    std::vector<std::vector<std::uint64_t>> on_way(shards, std::vector<std::uint64_t>(workers)),
        queued = on_way;
    std::vector<shard_report> truth;
    for (std::uint32_t s = 0; s < shards; ++s)
      truth.push_back({s, std::vector<std::uint64_t>(workers), std::vector<std::uint64_t>(workers),
                       std::vector<std::uint64_t>(workers), std::vector<std::uint64_t>(workers)});
    const auto check = [&] {
      for (std::uint32_t w = 0; w < workers; ++w) {
        const auto a = l.of(w);
        BOOST_REQUIRE_EQUAL(a.fed, a.applied + a.dropped + a.in_flight);
        BOOST_REQUIRE_LE(a.fed, fed[w]);
        std::uint64_t least = fed[w];  // applied by every shard that has reported
        for (const auto& s : truth)
          if (has_reported[s.actor]) least = std::min(least, s.applied[w]);
        BOOST_REQUIRE_LE(a.applied, least);
      }
    };
    const auto step = [&](std::uint64_t what, std::uint32_t w, std::uint32_t s) {
      switch (what) {
        case 0:
          if (is_dead[w] || fed[w] == 20) break;
          ++fed[w];
          ++losses_on_way[w];
          for (auto& shard : on_way) ++shard[w];
          break;
        case 1:
          if (losses_on_way[w] > 0) {
            --losses_on_way[w];
            l.on_loss(w);
          }
          break;
        case 2:
          if (on_way[s][w] > 0) {
            --on_way[s][w];
            ++queued[s][w];
            ++truth[s].received[w];
          }
          break;
        case 3:
          if (queued[s][w] > 0) {
            --queued[s][w];
            ++(with_deaths && pick(5) == 0 ? truth[s].dropped[w] : truth[s].applied[w]);
          }
          break;
        default: l.on_shard(truth[s]); has_reported[s] = true;
      }
    };
    for (int i = 0; i < 150; ++i) {
      const auto w = static_cast<std::uint32_t>(pick(workers)),
                 s = static_cast<std::uint32_t>(pick(shards));
      if (with_deaths && pick(100) == 0) {
        is_dead[w] = true;
        losses_on_way[w] = pick(losses_on_way[w] + 1);
        for (auto& shard : on_way) shard[w] = pick(shard[w] + 1);
      }
      step(pick(5), w, s);
      check();
    }
    // Everything that is still on its way arrives.
    for (std::uint32_t w = 0; w < workers; ++w)
      for (std::uint32_t s = 0; s < shards; ++s)
        for (std::uint64_t what = 1; what <= 4; ++what)
          for (int i = 0; i < 20; ++i) step(what, w, s);
    check();
    for (std::uint32_t w = 0; w < workers; ++w)
      if (!with_deaths) BOOST_REQUIRE((l.of(w) == worker_totals{fed[w], fed[w], 0, 0}));
    in_flight += l.total().in_flight;
    dropped += l.total().dropped;
  }
  BOOST_TEST(in_flight > 1000u);
  BOOST_TEST(dropped > 1000u);
}

BOOST_AUTO_TEST_SUITE_END()
