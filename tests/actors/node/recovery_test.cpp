// Whole clusters with faults, by seed: the same histories as troupe-sim's, fewer of them.

#include "tools/troupe-sim/scenario.hpp"

#include <boost/test/unit_test.hpp>

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>

using namespace troupe;

namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t seeds_default = 16;
#else
constexpr std::uint64_t seeds_default = 100;  // actor.simulator.* has thousands
#endif

std::uint64_t seeds() {
  const char* text = std::getenv("TROUPE_SEEDS");
  return text == nullptr ? seeds_default : std::strtoull(text, nullptr, 10);
}

// Of histories beside the main ones of a test: release runs more of them (actor.simulator.*).
std::uint64_t some() { return (seeds_default < 100 ? 4 : 10) + seeds() / 4; }

struct fixture {
  std::unique_ptr<simulator> sim = [] {
    auto made = simulator::make();
    BOOST_TEST_REQUIRE(bool(made));
    return std::move(*made);
  }();

  // Totals over seeds first, first + 1, ..., with no violation. `limits`: what else than `faults`
  // is said of them.
  sim_verdict hold(std::uint64_t first, std::uint64_t n, std::string_view faults,
                   sim_limits limits = {}) {
    const auto kinds = parse_faults(faults);
    BOOST_TEST_REQUIRE(bool(kinds));
    limits.faults = *kinds;
    const auto flags = fmt::format("{}{}{}{}{}{}", limits.outlives ? " --outlive" : "",
                                   limits.draws_optimizer ? " --optimizers" : "",
                                   limits.all_reduce ? " --all-reduce" : "",
                                   limits.is_mixed ? " --mixed-precision" : "",
                                   limits.calls_collectives ? " --collectives" : "",
                                   limits.gpus > 0 ? fmt::format(" --gpus {}", limits.gpus) : "");
    sim_verdict all;
    const auto began = std::chrono::steady_clock::now();
    for (auto seed = first; seed < first + n; ++seed) {
      const auto v = sim->run(draw_scenario(seed, limits));
      if (!v.violation.empty())
        BOOST_ERROR(fmt::format("troupe-sim --seed {} --faults {}{}: {}", seed, faults, flags,
                                v.violation));
      all.recoveries += v.recoveries;
      all.resumed_from_disk += v.resumed_from_disk;
      all.checkpoints += v.checkpoints;
      all.faults += v.faults;
      all.device_steps += v.device_steps;
    }
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - began;
    BOOST_TEST_MESSAGE(fmt::format("{}: {} seeds, {:.1f} ms each",
                                   boost::unit_test::framework::current_test_case().p_name.get(), n,
                                   took.count() / double(n)));
    return all;
  }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(recovery)

BOOST_FIXTURE_TEST_CASE(all_that_must_hold_holds_whatever_goes_wrong, fixture) {
  const auto all = hold(1, seeds(), "all");
  BOOST_TEST(all.faults > seeds() / 2);
  BOOST_TEST(all.recoveries > 0U);
  BOOST_TEST(all.checkpoints > 0U);
}

BOOST_FIXTURE_TEST_CASE(a_job_goes_on_after_the_death_of_any_node, fixture) {
  const auto all = hold(20'000, seeds() / 4, "kill");
  BOOST_TEST(all.recoveries > seeds() / 16);
}

BOOST_FIXTURE_TEST_CASE(nodes_come_leave_and_die_while_the_work_moves, fixture) {
  const auto all = hold(40'000, seeds() / 2, "join,kill,leave");
  BOOST_TEST(all.recoveries > seeds() / 16);
}

// Four epochs within a moment, in which no acknowledgement is due: headers of frames once counted
// as tensors (IN-9).
BOOST_FIXTURE_TEST_CASE(IN_9_epochs_that_follow_each_other_at_once_keep_no_tensors_of_those_before,
                        fixture) {
  hold(441, 1, "join,kill,leave");
}

BOOST_FIXTURE_TEST_CASE(a_program_that_is_killed_and_started_again_resumes, fixture) {
  const auto all = hold(30'000, some(), "kill-client");
  BOOST_TEST(all.resumed_from_disk > 0U);
}

// IN-15: its coordinator dies, stands still, is cut off, again and again.
BOOST_FIXTURE_TEST_CASE(a_job_outlives_its_program, fixture) {
  hold(130'000, some(), "kill-client", {.outlives = true});
  const auto all = hold(140'000, some(), "kill-client,kill,freeze,leave", {.outlives = true});
  BOOST_TEST(all.recoveries > 0U);
  hold(150'000, some(), "all", {.outlives = true});
}

// Each optimizer with its slots, by every way that a variable takes: in memory, by hand-over, to
// replicas, from the disk.
BOOST_FIXTURE_TEST_CASE(every_optimizer_and_schedule_recovers_with_the_bits_of_an_undisturbed_run,
                        fixture) {
  const auto all = hold(60'000, seeds() / 2, "all", {.draws_optimizer = true});
  const auto of_disk = hold(70'000, some(), "kill-client,power", {.draws_optimizer = true});
  BOOST_TEST(of_disk.resumed_from_disk > 0U);
  // Few of "all" kill a node: where seeds are few, it is these that must.
  const auto of_members = hold(80'000, some(), "join,kill,leave", {.draws_optimizer = true});
  BOOST_TEST(all.recoveries + of_members.recoveries > seeds() / 16);
}

// Every node with workers has a copy of each variable, so that a death alone takes nothing away.
BOOST_FIXTURE_TEST_CASE(
    gradients_that_are_exchanged_by_all_reduce_give_the_bits_of_an_undisturbed_run_whatever_goes_wrong,
    fixture) {
  const auto all = hold(100'000, seeds() / 2, "all", {.draws_optimizer = true, .all_reduce = true});
  const auto of_members =
      hold(110'000, some(), "join,kill,leave", {.draws_optimizer = true, .all_reduce = true});
  const auto of_disk = hold(120'000, some(), "kill-client,power", {.all_reduce = true});
  BOOST_TEST(all.faults > seeds() / 4);
  BOOST_TEST(of_members.recoveries > 0U);
  BOOST_TEST(of_disk.resumed_from_disk > 0U);
}

// The scale of the loss, and which steps are left out, are those of an undisturbed run (LSC-1,
// LSC-2): with shards, replicas, checkpoints and all-reduce.
BOOST_FIXTURE_TEST_CASE(LSC_2_a_scaled_loss_recovers_with_the_bits_of_an_undisturbed_run, fixture) {
  const auto all = hold(130'000, seeds() / 2, "all", {.draws_optimizer = true, .is_mixed = true});
  const auto of_members = hold(140'000, some(), "join,kill,leave", {.is_mixed = true});
  const auto of_disk =
      hold(150'000, some(), "kill-client,power", {.draws_optimizer = true, .is_mixed = true});
  const auto exchanged = hold(160'000, some(), "join,kill,leave",
                              {.draws_optimizer = true, .all_reduce = true, .is_mixed = true});
  BOOST_TEST(all.recoveries + of_members.recoveries > seeds() / 16);
  BOOST_TEST(of_disk.resumed_from_disk > 0U);
  BOOST_TEST(exchanged.recoveries > 0U);
}

// Programs that call collectives, with shards and with copies.
BOOST_FIXTURE_TEST_CASE(
    collectives_that_a_program_calls_give_the_bits_of_an_undisturbed_run_whatever_goes_wrong,
    fixture) {
  const auto all = hold(170'000, seeds() / 4, "all", {.calls_collectives = true});
  const auto of_members =
      hold(180'000, some(), "join,kill,leave", {.all_reduce = true, .calls_collectives = true});
  hold(185'000, 4 + seeds() / 8, "all",
       {.all_reduce = true, .calls_collectives = true, .gpus = 1});  // between ops of a device
  BOOST_TEST(all.faults > seeds() / 8);
  BOOST_TEST(of_members.recoveries > 0U);
}

// Workers compute on devices that run late, by the seed; variables, which are kept, stay on the
// host.
BOOST_FIXTURE_TEST_CASE(
    IN_14_what_is_computed_on_devices_recovers_with_the_bits_of_an_undisturbed_run_on_the_host,
    fixture) {
  const auto all = hold(190'000, seeds() / 4, "all", {.draws_optimizer = true, .gpus = 1});
  const auto of_members = hold(200'000, some(), "join,kill,leave", {.gpus = 2});
  const auto exchanged = hold(210'000, 10 + seeds() / 8, "join,kill,leave",
                              {.all_reduce = true, .is_mixed = true, .gpus = 2});
  BOOST_TEST(all.device_steps > seeds());
  BOOST_TEST(of_members.recoveries > 0U);
  BOOST_TEST(exchanged.recoveries > 0U);
}

// Links to the program are slow when a node dies: gradients of later steps must not have been
// applied meanwhile (RC-2).
BOOST_FIXTURE_TEST_CASE(
    IN_10_one_death_takes_no_variable_away_where_nodes_have_copies_however_late_the_program_hears_of_losses,
    fixture) {
  std::uint64_t recoveries = 0;
  for (std::uint64_t seed = 1; seed <= 10 + seeds() / 8; ++seed)
    for (const std::uint32_t gpus : {0U, 1U, 2U}) {
      auto sc = draw_scenario(seed, {.nodes = 3, .all_reduce = true, .gpus = gpus});
      sc.ps_nodes = 0;
      sc.shape = {.workers = 2 + static_cast<std::uint32_t>(seed % 2),
                  .steps = 20,
                  .observe_every = 0,
                  .on_failure = failure_policy::resume,
                  .all_reduce = true,
                  .has_counter = false,
                  .gpus = gpus};
      for (std::uint32_t node = 0; node < sc.nodes; ++node)
        sc.faults.push_back({0, sim_fault_kind::slow, sc.nodes, node, false, 60'000'000'000});
      sc.faults.push_back({1'000 + 200 * (seed % 10), sim_fault_kind::kill,
                           static_cast<std::uint32_t>(seed), 0, false, 500'000'000});
      const auto v = sim->run(sc);
      BOOST_TEST(v.violation == "", "seed " << seed << ", gpus " << gpus << ": " << v.violation);
      recoveries += v.recoveries;
    }
  BOOST_TEST(recoveries > seeds() / 8);
}

// A mark comes from one worker, and shards of other nodes save their part of its cut.
BOOST_FIXTURE_TEST_CASE(
    checkpoints_that_time_asks_for_are_written_whatever_collectives_lie_on_the_way_of_their_marks,
    fixture) {
  for (const bool all_reduce : {false, true})
    for (const bool calls : {false, true})
      for (const std::uint32_t workers : {2U, 3U, 4U}) {
        auto sc = draw_scenario(workers, {.nodes = 3});
        sc.ps_nodes = 0;
        sc.faults.clear();  // but for links that are slow, so that it takes a while
        for (std::uint32_t a = 0; a < sc.nodes; ++a)
          for (auto b = a + 1; b <= sc.nodes; ++b)
            sc.faults.push_back({0, sim_fault_kind::slow, a, b, false, 60'000'000'000});
        sc.shape = {.workers = workers,
                    .shards = 2,
                    .steps = 40,
                    .observe_every = 0,
                    .on_failure = failure_policy::resume,
                    .all_reduce = all_reduce,
                    .calls_collectives = calls};
        sc.shape.checkpoints = {.folder = "/checkpoints", .every_ns = 1};
        const auto v = sim->run(sc);
        BOOST_TEST(v.violation == "");
        BOOST_TEST(v.checkpoints > 1U, "all-reduce " << all_reduce << ", calls " << calls
                                                     << ", workers " << workers
                                                     << ": none but that of the end");
      }
}

// It finds links that stalled (LK-6), to processes that are gone; seed 800 once ended the process
// by that.
BOOST_FIXTURE_TEST_CASE(nodes_stand_still_for_long_while_others_die, fixture) {
  hold(800, 1 + seeds() / 4, "freeze,kill-client,kill");
}

BOOST_FIXTURE_TEST_CASE(SC_1_the_same_seed_gives_the_same_history, fixture) {
  const auto kinds = parse_faults("all");
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    const auto sc = draw_scenario(seed, {0, 0, *kinds});
    const auto first = sim->run(sc), again = sim->run(sc);
    BOOST_TEST(first.trace_hash == again.trace_hash);
    BOOST_TEST(first.messages == again.messages);
    BOOST_TEST(first.virtual_ns == again.virtual_ns);
    BOOST_TEST(first.story == again.story, boost::test_tools::per_element());
  }
}

// Without faults two runs of one seed and different schedules differ, so that the hash says
// something.
BOOST_FIXTURE_TEST_CASE(different_seeds_give_different_histories, fixture) {
  std::set<std::uint64_t> hashes;
  for (std::uint64_t seed = 1; seed <= 20; ++seed)
    hashes.insert(sim->run(draw_scenario(seed, {3, 6, {}})).trace_hash);
  BOOST_TEST(hashes.size() == 20U);
}

BOOST_FIXTURE_TEST_CASE(a_failing_schedule_is_shrunk_to_the_faults_that_matter, fixture) {
  const planted_bugs bugs{.applies_twice = true};
  auto sc =
      draw_scenario(3, {3, 8, {sim_fault_kind::slow, sim_fault_kind::cut, sim_fault_kind::twice}});
  for (std::uint32_t i = 0; i < 5; ++i)
    sc.faults.push_back({100 + 100 * i, sim_fault_kind::cut, i, i + 1, false, 0});
  BOOST_TEST_REQUIRE(!sim->run(sc, &bugs).violation.empty());
  const auto shortest = sim->shrink(sc, &bugs);
  BOOST_TEST(shortest.faults.empty());  // this bug needs none
  BOOST_TEST(!sim->run(shortest, &bugs).violation.empty());
  BOOST_TEST(sim->run(sc).violation == "");
}

// Where no handler is there to end, the process ends, as production's does; the others are ended as
// ever, and what is told is the invariant.
BOOST_FIXTURE_TEST_CASE(
    SC_5_an_invariant_that_breaks_in_a_callback_ends_the_simulation_with_its_text, fixture) {
  const planted_bugs bugs{.breaks_in_callbacks = true};
  std::size_t broken = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const auto sc = draw_scenario(seed, {0, 0, *parse_faults("all")});
    const auto before = sim->run(sc);
    const auto v = sim->run(sc, &bugs);
    const auto after = sim->run(sc);
    BOOST_TEST(before.violation == "");
    BOOST_TEST(after.violation == "");
    BOOST_TEST(before.trace_hash == after.trace_hash);
    if (v.violation.empty()) continue;  // too few chunks
    BOOST_TEST(v.violation.find("ended by itself: network: ") != std::string::npos, v.violation);
    BOOST_TEST(v.violation.find("broken invariant: it was planted at every sixteenth chunk") !=
                   std::string::npos,
               v.violation);
    BOOST_TEST(v.trace_hash == sim->run(sc, &bugs).trace_hash);
    ++broken;
  }
  BOOST_TEST(broken > 15U);
}

BOOST_AUTO_TEST_CASE(faults_are_named) {
  BOOST_TEST(parse_faults("all")->size() == sim_fault_kinds);
  BOOST_TEST(parse_faults("none")->empty());
  BOOST_TEST(parse_faults("kill,disk-full")->size() == 2U);
  const auto wrong = parse_faults("kill,flood");
  BOOST_TEST_REQUIRE(!wrong);
  BOOST_TEST(wrong.error().message().find("'flood'") != std::string::npos);
}

BOOST_AUTO_TEST_SUITE_END()
