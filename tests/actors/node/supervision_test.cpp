// Actors that fail, one of each kind: who ends with them, what is started again, and what a job
// makes of it.

#include "tools/troupe-sim/sim_job.hpp"
#include "troupe/runtime/jobs/placement.hpp"

#include <boost/test/unit_test.hpp>

#include <fmt/format.h>

#include <stdexcept>

using namespace troupe;

namespace {

constexpr std::int64_t ms = sim_cluster::ms;
constexpr std::int64_t s = 1000 * ms;
const std::string planted = "a planted failure";

#if defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t seeds = 10;
#else
constexpr std::uint64_t seeds = 60;
#endif

struct fixture {
  sim_tables tables;
  sim_data data = [] {
    auto made = sim_data::make();
    BOOST_TEST_REQUIRE(bool(made));
    return std::move(*made);
  }();
  sim_reference reference{tables, data};
  sim_job_shape shape{
      .workers = 2, .steps = 20, .observe_every = 0, .on_failure = failure_policy::resume};

  // The cluster, with the job under way.
  void start(sim_cluster& c) {
    BOOST_TEST_REQUIRE(c.form());
    const auto self = c.info(c.client());
    auto request = make_sim_request(tables, data, shape, nodes_in_order(c.nodes()), self.id);
    BOOST_TEST_REQUIRE(bool(request));
    if (!shape.checkpoints.folder.empty()) {
      auto opened = open_job_folder(c.disk_of(c.client()), shape.checkpoints, *(*request)->program,
                                    {self.name, self.host, self.pid, 1});
      BOOST_TEST_REQUIRE(bool(opened));
      std::vector<std::string> notes;
      take_over(std::move(*opened), shape.checkpoints, **request, notes);
    }
    (*request)->limits = {.failures_max = 1000, .in_vain_max = 1000};
    c.run_job(*request);
    const auto steps = c.random()() % 10;
    BOOST_TEST_REQUIRE(c.run_until([&] { return c.program().losses.size() >= steps; }, 10 * s));
  }

  // Whatever failed: the losses and variables of an undisturbed run, and nobody left over.
  void expect_whole(sim_cluster& c) {
    const auto& p = c.program();
    BOOST_TEST(c.run_until([&] { return p.is_over(); }, 30 * s));
    BOOST_TEST_REQUIRE(p.finished.has_value(), (p.failed ? p.failed->line : "it hangs"));
    BOOST_TEST(difference(collect(p), reference.of(shape)) == "");
    BOOST_TEST(check_ledger(*p.finished, shape, p.finished->recoveries == 0) == "");
    c.run_for(500 * ms);
    BOOST_TEST(left_over(c) == "");
  }

  template <class Test>
  void for_seeds(Test&& test) {
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
      BOOST_TEST_CONTEXT("seed " << seed) {
        sim_cluster c(tables, {.seed = seed, .is_one_machine = seed % 2 == 0});
        test(c);
      }
    }
  }

  void keep_checkpoints() {
    shape.checkpoints.folder = "checkpoints";
    shape.checkpoints.every_steps = 2;
  }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(supervision)

BOOST_FIXTURE_TEST_CASE(
    AC_5_a_request_that_breaks_the_disk_actor_is_answered_and_the_next_one_carried_out, fixture) {
  keep_checkpoints();
  std::size_t restarts = 0, checkpoints = 0;
  for_seeds([&](sim_cluster& c) {
    const auto broken = c.disk().operations() + c.random()() % 100;
    c.disk().before_each([broken](std::uint64_t n) {
      if (n >= broken) throw std::runtime_error(planted);  // once: the disk forgets who threw
    });
    try {
      start(c);
    } catch (const std::runtime_error&) {
      return;  // it was the program itself that opened the folder
    }
    expect_whole(c);
    for (std::uint32_t i = 0; i < c.processes(); ++i) {
      BOOST_TEST(c.crash(i) == "");
      restarts += c.restarts(i).size();
      for (const auto& r : c.restarts(i))
        BOOST_TEST(r == "the disk actor was started again, after its failure: " + planted);
    }
    checkpoints += c.program().finished->checkpoints;
    BOOST_TEST(c.finish());
  });
  BOOST_TEST(restarts > seeds / 4);
  BOOST_TEST(checkpoints > seeds);
}

BOOST_FIXTURE_TEST_CASE(the_last_checkpoint_of_a_job_is_told_of, fixture) {
  keep_checkpoints();
  sim_cluster c(tables, {.seed = 1});
  start(c);
  expect_whole(c);
  BOOST_TEST(c.program().finished->checkpoints == 10U);
  std::vector<std::string> told;
  for (const auto& e : c.ask(c.client()).events)
    if (e.kind == event_kind::checkpoint_written) told.push_back(e.text);
  BOOST_TEST_REQUIRE(told.size() == 2U);
  BOOST_TEST(told[0].ends_with("the checkpoint of step 2 is written"), told[0]);
  BOOST_TEST(told[1].ends_with("the checkpoint of step 20 is written, and 8 before it since that "
                               "was last told"),
             told[1]);
}

BOOST_FIXTURE_TEST_CASE(
    a_disk_actor_that_fails_too_often_ends_its_process_and_the_job_goes_on_elsewhere, fixture) {
  keep_checkpoints();
  shape.steps = 400;
  sim_cluster c(tables, {.seed = 1});
  start(c);
  std::uint32_t victim = 0;  // somebody who saves
  for (int tries = 0; tries < 1000 && !c.fail_actor(victim, "disk", planted, 1 * ms); ++tries)
    victim = (victim + 1) % 3;
  for (int i = 1; i < 6; ++i) {
    BOOST_TEST(c.run_until([&] { return c.restarts(victim).size() == std::size_t(i); }, 5 * s));
    BOOST_TEST(c.crash(victim) == "");
    BOOST_TEST(c.fail_actor(victim, "disk", planted));
  }
  BOOST_TEST(c.run_until([&] { return !c.is_alive(victim); }, 5 * s));
  BOOST_TEST(c.crash(victim) == "actor disk/actor: " + planted + "; disk: 6 failures within 60 s");
  expect_whole(c);
}

BOOST_FIXTURE_TEST_CASE(ME_5_a_link_whose_actor_fails_is_replaced, fixture) {
  std::uint64_t recoveries = 0;
  for_seeds([&](sim_cluster& c) {
    start(c);
    BOOST_TEST_REQUIRE(c.fail_actor(static_cast<std::uint32_t>(c.random()() % 4), "link", planted));
    expect_whole(c);
    recoveries += c.program().finished->recoveries;
    BOOST_TEST(c.finish());
  });
  BOOST_TEST(recoveries > seeds / 2);
}

BOOST_FIXTURE_TEST_CASE(ME_5_links_that_fail_too_often_end_the_process, fixture) {
  shape.steps = 1'000'000;
  sim_cluster c(tables, {.seed = 1});
  start(c);
  int failures = 0;
  // At times there is no link that could fail, until the next one has come.
  for (int i = 0; i < 1'000 && c.crash(0).empty(); ++i) {
    failures += c.fail_actor(0, "link", planted);
    c.run_for(1 * ms);
  }
  // That a link failed is a message: while the member lags, a millisecond later another link of it
  // fails, one to each other process at most. And a link that fails when the member has given it up
  // does not count.
  BOOST_TEST(failures >= 11);
  BOOST_TEST(failures <= 11 + static_cast<int>(c.processes()) - 1);
  BOOST_TEST(c.crash(0).find("actor member: actor link/") == 0U);
  BOOST_TEST(c.crash(0).find(planted + "; links: 11 failures within 60 s") != std::string::npos);
}

BOOST_FIXTURE_TEST_CASE(
    PV_1_a_process_ends_with_its_node_its_member_or_its_archive_and_the_job_goes_on, fixture) {
  for (const std::string kind : {"node", "member", "archive"}) {
    keep_checkpoints();
    for (std::uint64_t seed = 1; seed <= seeds / 4; ++seed) {
      BOOST_TEST_CONTEXT(kind << ", seed " << seed) {
        sim_cluster c(tables, {.seed = seed});
        shape.steps = 60;
        start(c);
        BOOST_TEST_REQUIRE(c.fail_actor(1, kind, planted));
        BOOST_TEST(c.run_until([&] { return !c.is_alive(1); }, 1 * s));
        BOOST_TEST(c.crash(1) == "actor " + kind + ": " + planted);
        expect_whole(c);
      }
    }
  }
}

BOOST_FIXTURE_TEST_CASE(NO_6_a_part_whose_supervisor_fails_is_begun_again, fixture) {
  for_seeds([&](sim_cluster& c) {
    start(c);
    const auto victim = static_cast<std::uint32_t>(c.random()() % 3);
    BOOST_TEST_REQUIRE(c.fail_actor(victim, "supervisor", planted));
    expect_whole(c);
    BOOST_TEST(c.program().recovering.size() <= 1U);
    BOOST_TEST(c.finish());
  });
}

BOOST_FIXTURE_TEST_CASE(NO_6_a_job_that_may_not_recover_names_the_supervisor, fixture) {
  shape.on_failure = failure_policy::stop;
  shape.steps = 1000;
  sim_cluster c(tables, {.seed = 1});
  start(c);
  BOOST_TEST_REQUIRE(c.fail_actor(1, "supervisor", planted));
  BOOST_TEST_REQUIRE(c.run_until([&] { return c.program().is_over(); }, 2 * s));
  BOOST_TEST_REQUIRE(c.program().failed.has_value());
  BOOST_TEST(c.program().failed->line.find(
                 "actor supervisor, step 0: the supervisor of the part failed: " + planted) !=
             std::string::npos);
  c.run_for(500 * ms);
  BOOST_TEST(left_over(c) == "");
  BOOST_TEST(c.finish());
}

BOOST_FIXTURE_TEST_CASE(JB_1_a_program_hears_of_a_job_actor_that_fails_and_all_parts_end, fixture) {
  shape.steps = 1000;
  for_seeds([&](sim_cluster& c) {
    start(c);
    BOOST_TEST_REQUIRE(c.fail_actor(c.client(), "job", planted));
    BOOST_TEST_REQUIRE(c.run_until([&] { return c.program().is_over(); }, 2 * s));
    BOOST_TEST_REQUIRE(c.program().failed.has_value());
    BOOST_TEST(c.program().failed->line.find("actor job: " + planted) != std::string::npos);
    c.run_for(500 * ms);
    BOOST_TEST(left_over(c) == "");
    BOOST_TEST(c.finish());
  });
}

BOOST_AUTO_TEST_SUITE_END()
