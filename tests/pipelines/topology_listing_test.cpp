// What tools are told of a topology: its job, and an actor for each stage, of counters that the
// test sets and at times that it chooses.

#include "troupe/actors/flow/topology_listing.hpp"

#include "troupe/actors/flow/flow_run.hpp"
#include "troupe/runtime/flow/flow.hpp"

#include <boost/test/unit_test.hpp>

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

using namespace troupe;

namespace {

constexpr std::int64_t second = 1'000'000'000;
constexpr std::uint32_t ticks_per_second = second / coarse_tick_ns;

// reads -> works -> writes, which nobody runs: stages 0, 1 and 2, edges 0 and 1.
struct listed {
  listed() {
    const auto read = source(*graph, [] { return std::optional<int>(); }, {.name = "reads"});
    for_each(map(read, [](int x) { return x; }, {.name = "works"}), [](int) {}, {.name = "writes"});
    BOOST_TEST_REQUIRE(bool(graph->check()));
    BOOST_TEST_REQUIRE(graph->stages().size() == 3U);
    BOOST_TEST_REQUIRE(graph->edges().size() == 2U);
  }
  void begin(std::string name = "lines", std::vector<std::string> nodes = {}) {
    whole.emplace(graph);
    view = view_of(graph, *whole);
    view->pulses.push_back(std::make_shared<group_pulse>());
    now_ns = 10 * second;
    listing.emplace(view, std::move(name), 0xabcU, [this] { return now_ns; }, std::move(nodes));
  }
  void after(std::int64_t seconds) { now_ns = (10 + seconds) * second; }
  stage_counters& stage(std::uint32_t i) { return *view->stages[i]; }
  edge_meter& edge(std::uint32_t i) { return *view->edges[i]; }
  static std::uint32_t ticks(std::uint32_t seconds) { return (10 + seconds) * ticks_per_second; }
  std::map<std::string, actor_snapshot> actors() const {
    std::map<std::string, actor_snapshot> all;
    for (auto& a : listing->actors("here")) {
      const auto name = a.name;
      all.emplace(name, std::move(a));
    }
    return all;
  }

  std::shared_ptr<flow_graph> graph = std::make_shared<flow_graph>();
  std::optional<flow_group> whole;
  std::shared_ptr<topology_view> view;
  std::int64_t now_ns = 0;
  std::optional<troupe::topology_listing> listing;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(topology_listing)

BOOST_FIXTURE_TEST_CASE(a_topology_is_a_job_whose_steps_are_the_items_that_have_arrived, listed) {
  begin();
  stage(0).items_out = 9;
  stage(1).items_in = 8;
  stage(2).items_in = 7;
  after(2);
  auto j = listing->job("here");
  BOOST_TEST(j.id == "0000000000000abc");
  BOOST_TEST(j.name == "lines");
  BOOST_TEST((j.state == job_state::running));
  BOOST_TEST(j.client == "here");
  BOOST_TEST(j.participants == std::vector<std::string>{"here"}, boost::test_tools::per_element());
  BOOST_TEST(j.step == 7U);
  BOOST_TEST(j.started_seconds == 2.0);
  BOOST_TEST(j.ended_seconds == 0.0);
  listing->end(false, "of no interest");
  after(5);
  j = listing->job("here");
  BOOST_TEST((j.state == job_state::done));
  BOOST_TEST(j.cause == "");
  BOOST_TEST(j.started_seconds == 5.0);
  BOOST_TEST(j.ended_seconds == 3.0);
}

BOOST_FIXTURE_TEST_CASE(one_that_has_failed_says_why_and_has_ended_however_short_ago, listed) {
  begin("");
  listing->end(true, "works: item of doom");
  const auto j = listing->job("here");
  BOOST_TEST(j.name == "topology");
  BOOST_TEST((j.state == job_state::failed));
  BOOST_TEST(j.cause == "works: item of doom");
  BOOST_TEST(j.ended_seconds > 0.0);  // 0 is one that runs
  for (const auto& [name, a] : actors()) BOOST_TEST((a.state == actor_state::ended), name);
}

BOOST_FIXTURE_TEST_CASE(a_stage_has_its_counts_and_an_id_of_its_own, listed) {
  begin();
  stage(1).items_in = 5;
  stage(1).items_out = 4;
  stage(1).bytes_in = 50;
  stage(1).bytes_out = 40;
  stage(0).items_out = 6;
  view->busy[1] = 0.25F;
  const auto all = actors();
  BOOST_TEST_REQUIRE(all.size() == 3U);
  const auto& a = all.at("works");
  BOOST_TEST(a.kind == "stage");
  BOOST_TEST(a.node == "here");
  BOOST_TEST(a.job == "lines");
  BOOST_TEST(a.job_id == "0000000000000abc");
  BOOST_TEST(a.messages_in == 5U);
  BOOST_TEST(a.messages_out == 4U);
  BOOST_TEST(a.steps == 5U);
  BOOST_TEST(a.bytes_in == 50U);
  BOOST_TEST(a.bytes_out == 40U);
  BOOST_TEST(a.busy_ratio == 0.25);
  BOOST_TEST(all.at("reads").steps == 6U);  // of a source: what it has made
  BOOST_TEST(a.id.starts_with("here.lines"), a.id);
  BOOST_TEST(a.id.ends_with(".1"), a.id);
  // Another one of that name in this process.
  const auto first = a.id;
  begin();
  BOOST_TEST(actors().at("works").id != first);
}

BOOST_FIXTURE_TEST_CASE(a_stage_waits_at_the_port_where_nothing_comes, listed) {
  begin();
  stage(0).last_ticks = ticks(4);
  stage(1).last_ticks = ticks(1);
  edge(0).put_items = 3;
  edge(0).taken_items = 3;
  edge(1).put_items = 2;
  after(4);
  const auto all = actors();
  const auto& works = all.at("works");
  BOOST_TEST((works.state == actor_state::waiting_for_input));
  BOOST_TEST(works.since_seconds == 3.0);
  BOOST_TEST_REQUIRE(works.ports.size() == 2U);
  const auto& in = works.ports[0];
  BOOST_TEST(in.name == "in0");
  BOOST_TEST(in.peer == "reads");
  BOOST_TEST(in.peer_node == "here");
  BOOST_TEST(in.queued == 0U);
  BOOST_TEST(in.credits_max == graph->edges()[0].items_max);
  BOOST_TEST(in.is_waiting);
  BOOST_TEST(in.since_seconds == 3.0);
  const auto& out = works.ports[1];
  BOOST_TEST(out.name == "out0");
  BOOST_TEST(out.peer == "writes");
  BOOST_TEST(!out.is_waiting);
  BOOST_TEST(out.credits == graph->edges()[1].items_max - 2);
  // There is something for this one, which has not been called since the beginning.
  const auto& writes = all.at("writes");
  BOOST_TEST((writes.state == actor_state::idle));
  BOOST_TEST(writes.queue == 2U);
  BOOST_TEST(writes.since_seconds == 4.0);
  // A source has nobody to wait for.
  BOOST_TEST((all.at("reads").state == actor_state::idle));
}

BOOST_FIXTURE_TEST_CASE(a_stage_waits_for_room_behind_it, listed) {
  begin();
  const auto most = graph->edges()[0].items_max;
  stage(0).is_blocked = true;
  stage(0).last_ticks = ticks(1);
  edge(0).put_items = most + 5;
  edge(0).taken_items = 5;
  after(3);
  auto reads = actors().at("reads");
  BOOST_TEST((reads.state == actor_state::waiting_for_credit));
  BOOST_TEST(reads.since_seconds == 2.0);
  BOOST_TEST_REQUIRE(reads.ports.size() == 1U);
  BOOST_TEST(reads.ports[0].is_waiting);
  BOOST_TEST(reads.ports[0].since_seconds == 2.0);
  BOOST_TEST(reads.ports[0].credits == 0U);
  BOOST_TEST(reads.ports[0].credits_max == most);
  // Few items of many bytes are as much.
  edge(0).put_items = 6;
  edge(0).put_bytes = graph->edges()[0].bytes_max + 10;
  edge(0).taken_bytes = 10;
  BOOST_TEST(actors().at("reads").ports[0].credits == 0U);
  edge(0).taken_bytes = 11;
  BOOST_TEST(actors().at("reads").ports[0].credits == most - 1);
  // While items are dealt again, more may have been taken than put.
  edge(0).taken_items = 7;
  BOOST_TEST(actors().at("reads").ports[0].credits == most);
  BOOST_TEST(actors().at("works").queue == 0U);
}

// Also those that were taken at once, which stand in no meter.
BOOST_FIXTURE_TEST_CASE(a_port_has_the_items_that_have_been_put_or_taken_there, listed) {
  begin();
  stage(0).items_out = 9;
  stage(1).items_in = 7;
  stage(1).items_out = 5;
  stage(2).items_in = 4;
  edge(0).put_items = 2;  // of the nine, which have waited
  auto all = actors();
  BOOST_TEST(all.at("reads").ports.at(0).items == 9U);
  BOOST_TEST(all.at("works").ports.at(0).items == 7U);
  BOOST_TEST(all.at("works").ports.at(1).items == 5U);
  BOOST_TEST(all.at("writes").ports.at(0).items == 4U);
  listing->end(false, "");
  all = actors();
  BOOST_TEST(all.at("works").ports.at(0).items == 7U);
}

BOOST_FIXTURE_TEST_CASE(whoever_does_not_run_waits_for_the_thread_of_who_does, listed) {
  begin();
  view->pulses[0]->running = 1;
  view->pulses[0]->since_ticks = ticks(2);
  stage(1).last_ticks = ticks(2);
  stage(0).is_blocked = true;
  edge(1).put_items = 1;
  stage(2).last_ticks = ticks(1);
  after(6);
  auto all = actors();
  BOOST_TEST((all.at("works").state == actor_state::running));
  BOOST_TEST(all.at("works").since_seconds == 4.0);
  for (const auto* name : {"reads", "writes"}) {
    const auto& a = all.at(name);
    BOOST_TEST((a.state == actor_state::waiting_for_thread), name);
    BOOST_TEST(a.since_seconds == 4.0, name);
    int waits = 0;
    for (const auto& p : a.ports) waits += p.is_waiting;
    BOOST_TEST(waits == 1, name);
    BOOST_TEST(a.ports.back().name == thread_port, name);
    BOOST_TEST(a.ports.back().peer == "works", name);
    BOOST_TEST(a.ports.back().peer_node == "here", name);
    BOOST_TEST(a.ports.back().since_seconds == 4.0, name);
  }
  // One that is over waits for nobody; nobody does at the end.
  stage(2).is_over = true;
  BOOST_TEST((actors().at("writes").state == actor_state::ended));
  BOOST_TEST(actors().at("writes").ports.size() == 1U);
  view->busy[0] = 0.5F;
  listing->end(false, "");
  all = actors();
  for (const auto& [name, a] : all) BOOST_TEST((a.state == actor_state::ended), name);
  BOOST_TEST(all.at("reads").busy_ratio == 0.0);
}

BOOST_FIXTURE_TEST_CASE(a_process_lists_its_own_stages_and_where_their_neighbours_are, listed) {
  graph->stage_at(1).is_elsewhere = true;
  begin("lines", {"here", "there", "here"});
  auto all = actors();
  BOOST_TEST_REQUIRE(all.size() == 2U);
  BOOST_TEST(all.at("reads").ports.at(0).peer == "works");
  BOOST_TEST(all.at("reads").ports.at(0).peer_node == "there");
  BOOST_TEST(all.at("writes").ports.at(0).peer_node == "there");
  BOOST_TEST(listing->job("here").client == "here");
  // The node, which has no source, leaves the end to the program.
  graph->stage_at(0).is_elsewhere = graph->stage_at(2).is_elsewhere = true;
  graph->stage_at(1).is_elsewhere = false;
  begin("lines", {"program", "here", "program"});
  all = actors();
  BOOST_TEST_REQUIRE(all.size() == 1U);
  const auto& ports = all.at("works").ports;
  BOOST_TEST_REQUIRE(ports.size() == 2U);
  BOOST_TEST(ports[0].peer_node == "program");
  BOOST_TEST(ports[1].peer_node == "program");
  BOOST_TEST(listing->job("here").client == "");
}

BOOST_FIXTURE_TEST_CASE(who_stands_by_is_seen_when_it_has_taken_over, listed) {
  graph->stage_at(1).stands_by = 1;
  begin();
  auto all = actors();
  BOOST_TEST(all.count("works") == 0U);
  BOOST_TEST(all.at("reads").ports.empty());
  BOOST_TEST(all.at("writes").ports.empty());
  stage(1).items_in = 1;
  all = actors();
  BOOST_TEST(all.at("works").ports.size() == 2U);
  BOOST_TEST(all.at("reads").ports.size() == 1U);
  BOOST_TEST(all.at("writes").ports.size() == 1U);
}

BOOST_AUTO_TEST_SUITE_END()
