#include "tools/troupe-tool/status.hpp"

#include "tests/tool/sample.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <string>

using namespace troupe;

BOOST_AUTO_TEST_SUITE(status)

BOOST_AUTO_TEST_CASE(the_page_shows_cluster_nodes_jobs_busiest_actors_and_waits) {
  const auto page = draw_status(sample_cluster(), 0, 0);
  BOOST_TEST(page.starts_with("cluster default: 2 nodes, 1 client, 1 job running, 6 actors\n"));
  for (const char* part :
       {"n2    alive", "511/4690 (11%)  [##..................]    100.0  41.8 s", "BUSIEST",
        "worker/0/matmul            n1.1  op", "75%", "WAITS", "input in0"})
    BOOST_TEST(has_text(page, part), part << "\n" << page);
  // The busiest and the oldest come first.
  BOOST_TEST(page.find("worker/0/matmul", page.find("BUSIEST")) <
             page.find("loss", page.find("BUSIEST")));
  BOOST_TEST(page.rfind("worker/0/gradient/receive  n2.0") <
             page.rfind("worker/0/reader            n1.0"));
}

BOOST_AUTO_TEST_CASE(short_lists_say_how_many_more_there_are) {
  auto c = sample_cluster();
  for (int i = 0; i < 10; ++i) c.actors.push_back(c.actors[1]);
  // Of 16 busy ones.
  BOOST_TEST(has_text(draw_status(c, 0, 0), "and 11 more: troupe list actors\n"));
  BOOST_TEST(has_text(draw_status(c, 0, 0), "and 8 more: troupe list actors\n"));  // of 13 waits
}

BOOST_AUTO_TEST_CASE(who_has_ended_is_not_among_the_busiest) {
  auto c = sample_cluster();
  c.actors[2].state = actor_state::ended;
  const auto page = draw_status(c, 0, 0);
  BOOST_TEST(!has_text(page, "75%"), page);
  c.actors[1].busy_ratio = 0.004;
  BOOST_TEST(!has_text(draw_status(c, 0, 0), "0%  511"), draw_status(c, 0, 0));
  BOOST_TEST(has_text(page, "BUSIEST"));
}

BOOST_AUTO_TEST_CASE(a_node_is_as_busy_as_its_streams) {
  auto c = sample_cluster();
  auto stream = sample_actor("n1.cpu0", "stream", "cpu:0", actor_state::running);
  stream.busy_ratio = 0.72;
  c.actors.push_back(stream);
  const auto page = draw_status(c, 0, 0);
  BOOST_TEST(has_text(page, "72%  -\n"), page);
}

BOOST_AUTO_TEST_CASE(waits_that_last_by_design_are_not_listed) {
  auto c = sample_cluster();
  c.actors.push_back(sample_actor("c1.1", "fetch", "variables", actor_state::waiting_for_input));
  c.actors.back().ports = {{"in0", "shard/0/w", "n2", 0, 2, 0, true, 95.0, true}};
  const auto page = draw_status(c, 0, 0);
  const auto waits = page.substr(page.find("WAITS"));
  BOOST_TEST(!has_text(waits, "variables"), page);
  BOOST_TEST(has_text(waits, "worker/0/gradient/receive"), page);
}

BOOST_AUTO_TEST_CASE(the_page_fits_the_height_of_a_terminal) {
  for (const std::size_t height : {12u, 20u, 24u, 50u}) {
    const auto page = draw_status(sample_cluster(), 80, height);
    BOOST_TEST(static_cast<std::size_t>(std::count(page.begin(), page.end(), '\n')) <= height,
               height << "\n"
                      << page);
  }
  BOOST_TEST(has_text(draw_status(sample_cluster(), 80, 12), "a taller terminal shows"));
}

BOOST_AUTO_TEST_CASE(lost_nodes_and_failed_jobs_are_told) {
  auto c = sample_cluster();
  c.nodes[2].state = node_state::dead;
  c.nodes[2].reason = "killed";
  c.jobs[0].state = job_state::failed;
  c.jobs[0].cause = "job mnist failed: node n2 died at step 511";
  const auto page = draw_status(c, 0, 0);
  BOOST_TEST(has_text(page, "1 node, 1 client, 1 not alive, 0 jobs running"));
  BOOST_TEST(has_text(page, "dead"));
  BOOST_TEST(has_text(page, "killed"));
  BOOST_TEST(has_text(page, "\nmnist failed: node n2 died at step 511\n"));
}

BOOST_AUTO_TEST_CASE(who_left_as_it_should_is_no_damage) {
  auto c = sample_cluster();
  auto gone = sample_node("c7", "client", 4107);
  gone.state = node_state::left;
  gone.reason = "the process ends";
  c.nodes.push_back(gone);
  c.nodes[0].state = node_state::left;
  const auto page = draw_status(c, 0, 0);
  BOOST_TEST(page.starts_with("cluster default: 2 nodes, 1 job running"), page);
  BOOST_TEST(!has_text(page, "the process ends"), page);
  c.nodes[1].state = node_state::unreachable;
  BOOST_TEST(draw_status(c, 0, 0).starts_with("cluster default: 1 node, 1 not alive, "));
}

BOOST_AUTO_TEST_CASE(actors_that_have_ended_are_counted_apart) {
  auto c = sample_cluster();
  c.actors[3].state = c.actors[4].state = actor_state::ended;
  BOOST_TEST(draw_status(c, 0, 0).starts_with(
      "cluster default: 2 nodes, 1 client, 1 job running, 4 actors and 2 ended\n"));
}

BOOST_AUTO_TEST_CASE(an_empty_cluster_is_a_page_too) {
  BOOST_TEST(draw_status({}, 0, 0) == "cluster : 0 nodes, 0 jobs running, 0 actors\n\nno jobs\n");
}

BOOST_AUTO_TEST_SUITE_END()
