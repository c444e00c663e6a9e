// A node's part of a job, with the test as its coordinator: what the node answers, whatever state
// the part is in.

#include "tools/troupe-sim/sim_job.hpp"
#include "troupe/runtime/jobs/blob_pull.hpp"
#include "troupe/runtime/jobs/placement.hpp"
#include "troupe/runtime/wire/control_message.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <vector>

using namespace troupe;

namespace {

constexpr std::int64_t ms = sim_cluster::ms;
constexpr job_id job{7};
constexpr std::uint32_t node = 0;

// A node and a client, from which the messages come; what the node answers is read on its way.
struct coordinated {
  sim_tables tables;
  sim_data data = [] {
    auto made = sim_data::make();
    BOOST_TEST_REQUIRE(bool(made));
    return std::move(*made);
  }();
  sim_cluster c;
  std::vector<part_placed> placed;
  std::vector<part_halted> halted;
  std::vector<std::byte> job_plan;
  std::vector<node_id> nodes;

  explicit coordinated(std::uint32_t nodes_of_it = 1)
      : c{tables, {.seed = 1, .nodes = nodes_of_it}} {
    BOOST_TEST_REQUIRE(c.form());
    const sim_job_shape shape{
        .workers = 1, .shards = 1, .observe_every = 0, .on_failure = failure_policy::resume};
    const auto client = c.info(c.client()).id;
    auto program = make_sim_program(tables, data, shape, c.nodes(), client);
    BOOST_TEST_REQUIRE(bool(program), (program ? "" : program.error().text()));
    const auto where = place_roles({{c.info(node).id}, {c.info(node).id}}, client);
    auto made = program->place(where, {});
    BOOST_TEST_REQUIRE(bool(made), (made ? "" : made.error().text()));
    job_plan = encode(*made);
    nodes = where.nodes;
    c.network().set_filter([this](const outgoing_frame& f) {
      if (f.kind != frame_kind::control || f.header.empty()) return true;
      const auto m = decode_control(f.header);
      if (!m) return true;
      if (const auto* p = std::get_if<part_placed>(&*m)) placed.push_back(*p);
      if (const auto* p = std::get_if<part_halted>(&*m)) halted.push_back(*p);
      return true;
    });
  }

  void tell(control_message m) { c.deliver(node, c.client(), std::move(m)); }
  void place(std::uint32_t epoch, bool may_move = false) {
    place_part p{job, epoch, job_plan, nodes, {}, {}};
    p.may_move = may_move;
    tell(std::move(p));
  }
  bool waits_for(const std::function<bool()>& done) { return c.run_until(done, 2000 * ms); }
  bool is_placed(std::uint32_t epoch) {
    return waits_for([&] {
      return !placed.empty() && placed.back().epoch == epoch && placed.back().error.empty();
    });
  }
  bool has_halted(std::uint32_t epoch) {
    return waits_for([&] { return !halted.empty() && halted.back().epoch == epoch; });
  }
};

// With a second node, which has nothing to do with the job.
struct beside_another : coordinated {
  beside_another() : coordinated(2) {}
  void another_tells(control_message m) {
    c.deliver(node, 1, std::move(m));
    c.run_for(100 * ms);
  }
  std::size_t times_said(const std::string& what) {
    const auto said = c.ask(node);
    return static_cast<std::size_t>(std::ranges::count_if(
        said.events, [&](const auto& e) { return e.text.find(what) != std::string::npos; }));
  }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(part_table)

BOOST_FIXTURE_TEST_CASE(a_part_is_placed_halted_and_placed_again, coordinated) {
  place(1);
  BOOST_TEST(is_placed(1));
  tell(halt_part{job, 1, "the test says so"});
  BOOST_TEST(has_halted(1));
  BOOST_TEST(!halted.back().kept.empty());
  place(2);
  BOOST_TEST(is_placed(2));
  tell(stop_part{job, "the test says so"});
  c.run_for(100 * ms);
  BOOST_TEST(c.job_actors(node) == 0U);
}

BOOST_FIXTURE_TEST_CASE(NO_13_what_anybody_but_the_coordinator_says_of_a_job_changes_nothing,
                        beside_another) {
  place(1);
  BOOST_TEST(is_placed(1));
  const auto actors = c.job_actors(node);
  BOOST_TEST(actors > 0U);
  another_tells(stop_part{job, "forged"});
  another_tells(halt_part{job, 1, "forged"});
  another_tells(halt_part{job, 9, "forged"});  // of an epoch that the job has not had
  another_tells(place_part{job, 9, job_plan, nodes, {}, {}});
  another_tells(start_part{job});
  another_tells(begin_cut{job, 1, 3});
  another_tells(cancel_run{job, 1, 3});
  another_tells(epoch_begun{job, 1});
  BOOST_TEST(c.job_actors(node) == actors);
  BOOST_TEST(times_said("ignored ") == 1U);
  BOOST_TEST(times_said("coordinates that job") == 1U);
  // And the job's own coordinator is heeded as before.
  tell(halt_part{job, 1, "the test says so"});
  BOOST_TEST(has_halted(1));
  place(2);
  BOOST_TEST(is_placed(2));
  tell(stop_part{job, "the test says so"});
  c.run_for(100 * ms);
  BOOST_TEST(c.job_actors(node) == 0U);
}

BOOST_FIXTURE_TEST_CASE(NO_13_a_job_that_may_move_obeys_whoever_goes_on_with_it, beside_another) {
  place(1, /*may_move=*/true);
  BOOST_TEST(is_placed(1));
  another_tells(stop_part{job, "forged"});
  another_tells(begin_cut{job, 1, 3});
  BOOST_TEST(c.job_actors(node) > 0U);
  another_tells(halt_part{job, 2, "it has the job now"});
  BOOST_TEST(has_halted(2));
}

// A giver of variables that was released, and is to take part in an epoch that ends before it has
// begun: its coordinator once waited 30 s for it.
BOOST_FIXTURE_TEST_CASE(
    a_halt_is_answered_for_its_own_epoch_also_while_the_part_of_an_older_one_ends, coordinated) {
  place(1);
  BOOST_TEST(is_placed(1));
  c.hold("stop_part_actors");  // its actors take their time
  tell(stop_part{job, "its work has moved"});
  place(2);
  tell(halt_part{job, 2, "the test says so"});
  c.run_for(100 * ms);
  BOOST_TEST(halted.empty());
  c.hold("");
  BOOST_TEST(has_halted(2));
  BOOST_TEST(halted.back().kept.empty());  // it was told to forget them
  c.run_for(100 * ms);
  BOOST_TEST(placed.size() == 1U);
  BOOST_TEST(c.job_actors(node) == 0U);
}

// A plan that no message has room for, from a coordinator that gives it piece by piece.
BOOST_FIXTURE_TEST_CASE(NO_14_a_node_asks_for_a_plan_that_it_does_not_have, coordinated) {
  const shared_bytes whole(job_plan);
  const auto id = id_of(whole.view());
  std::vector<want_blob> wants;
  c.network().set_filter([&](const outgoing_frame& f) {
    if (f.kind != frame_kind::control || f.header.empty()) return true;
    const auto m = decode_control(f.header);
    if (!m) return true;
    if (const auto* w = std::get_if<want_blob>(&*m)) wants.push_back(*w);
    if (const auto* p = std::get_if<part_placed>(&*m)) placed.push_back(*p);
    return true;
  });
  place_part by_id{job, 1, {}, nodes, {}, {}};
  by_id.plan_id = id;
  tell(by_id);
  BOOST_TEST_REQUIRE(waits_for([&] { return !wants.empty(); }));
  c.run_for(1000 * ms);
  BOOST_TEST(placed.empty());
  BOOST_TEST(wants.size() == 1U);
  tell(piece_of(wants.front(), {{id, whole}}));
  BOOST_TEST(is_placed(1));
  // One that the coordinator does not have.
  by_id.epoch = 2;
  by_id.plan_id = {1, 2, 1000};
  tell(by_id);
  BOOST_TEST_REQUIRE(waits_for([&] { return wants.size() == 2; }));
  tell(piece_of(wants.back(), {{id, whole}}));
  BOOST_TEST(waits_for([&] { return placed.size() == 2; }));
  BOOST_TEST(placed.back().epoch == 2U);
  BOOST_TEST(placed.back().error.find("no such constants") != std::string::npos);
}

// Its coordinator, a program that ends with its job, may be gone before the actors have ended: the
// node said for 30 s that the job recovers, and a tool that was to finish it waited for as long.
BOOST_FIXTURE_TEST_CASE(a_job_that_is_done_stays_so_when_its_coordinator_goes_at_once,
                        coordinated) {
  place(1, /*may_move=*/true);
  BOOST_TEST(is_placed(1));
  c.hold("stop_part_actors");
  tell(stop_part{job, std::string(job_done_reason)});
  c.run_for(100 * ms);
  c.kill(c.client());
  BOOST_TEST(c.run_until(
      [&] {
        const auto said = c.ask(node);
        return std::any_of(said.peers.begin(), said.peers.end(),
                           [](const auto& p) { return p.state == node_state::dead; });
      },
      20'000 * ms));
  c.hold("");
  BOOST_TEST(waits_for([&] { return c.job_actors(node) == 0; }));
  const auto said = c.ask(node);
  BOOST_TEST_REQUIRE(said.jobs.size() == 1U);
  BOOST_TEST(to_string(said.jobs.front().state) == "done");
}

// A coordinator may know this node, by another one, before this node knows it: without an answer it
// waited for ever.
BOOST_AUTO_TEST_CASE(NO_8_a_halt_of_a_coordinator_that_is_no_peer_yet_is_answered_once_it_is_one) {
  sim_tables tables;
  sim_cluster c{tables, {.seed = 1, .nodes = 1}};
  std::vector<std::uint32_t> epochs;
  c.network().set_filter([&](const outgoing_frame& f) {
    if (f.kind != frame_kind::control || f.header.empty()) return true;
    const auto m = decode_control(f.header);
    if (!m) return true;
    if (const auto* p = std::get_if<part_halted>(&*m)) epochs.push_back(p->epoch);
    return true;
  });
  for (const std::uint32_t epoch : {2U, 3U})
    c.deliver(node, c.client(), halt_part{job, epoch, "the test says so"});
  BOOST_TEST_REQUIRE(c.form());
  BOOST_TEST(c.run_until([&] { return !epochs.empty(); }, 2000 * ms));
  c.run_for(100 * ms);
  BOOST_TEST(epochs == std::vector<std::uint32_t>{3}, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_SUITE_END()
