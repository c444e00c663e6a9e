#include "tools/troupe-tool/graph_view.hpp"

#include "tests/tool/sample.hpp"

#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <random>
#include <string>
#include <vector>

using namespace troupe;

namespace {

std::string edges_of(const graph_view& v) {
  std::string out;
  for (const auto& e : v.edges)
    out += v.vertices[e.from].name + (e.is_back ? " ~> " : " -> ") + v.vertices[e.to].name + " " +
           credits_text(e) + "\n";
  return out;
}

std::size_t count(const std::string& text, std::string_view part) {
  std::size_t n = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size()))
    ++n;
  return n;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(graph_view)

BOOST_AUTO_TEST_CASE(GV_1_every_edge_appears_once_and_the_program_is_a_vertex) {
  const auto c = sample_cluster();
  const auto views = make_graph_views(c);
  BOOST_TEST_REQUIRE(views.size() == 1u);
  BOOST_TEST(views[0].vertices.size() == 7u);
  BOOST_TEST(edges_of(views[0]) ==
             "shard/0/w -> worker/0/matmul 1/2\n"
             "worker/0/reader -> worker/0/matmul 0/2\n"
             "worker/0/matmul -> loss 2/2\n"
             "worker/0/matmul -> worker/0/gradient/send 1/2\n"
             "loss -> program (fetches) 4/4\n"
             "worker/0/gradient/send -> worker/0/gradient/receive 1/2\n"
             "worker/0/gradient/receive ~> shard/0/w 2/2\n");
}

BOOST_AUTO_TEST_CASE(GV_1_an_edge_told_by_one_end_only_is_drawn_too) {
  auto c = sample_cluster();
  std::erase_if(c.actors, [](const auto& a) { return a.node == "n2"; });
  const auto views = make_graph_views(c);
  BOOST_TEST(edges_of(views[0]) ==
             "shard/0/w -> worker/0/matmul \n"
             "worker/0/reader -> worker/0/matmul 0/2\n"
             "worker/0/matmul -> loss 2/2\n"
             "worker/0/matmul -> worker/0/gradient/send 1/2\n"
             "loss -> program (fetches) 4/4\n"
             "worker/0/gradient/send -> worker/0/gradient/receive 1/2\n");
  BOOST_TEST(has_text(draw_graph_text(views), "[0] shard/0/w (not listed) -> worker/0/matmul"));
}

BOOST_AUTO_TEST_CASE(GV_1_two_edges_between_the_same_actors_are_two) {
  auto c = sample_cluster();
  c.actors.resize(3);
  c.actors[1].ports = {{"out0", "worker/0/matmul", "n1", 2, 2, 0, false, 0},
                       {"out10", "worker/0/matmul", "n1", 1, 2, 0, true, 5},
                       {"out2", "worker/0/matmul", "n1", 0, 2, 0, false, 0}};
  c.actors[2].ports = {{"in0", "worker/0/reader", "n1", 0, 2, 0, false, 0},
                       {"in1", "worker/0/reader", "n1", 0, 2, 1, false, 0}};
  c.actors[0].ports.clear();
  const auto views = make_graph_views(c);
  BOOST_TEST_REQUIRE(views[0].edges.size() == 3u);
  BOOST_TEST(views[0].edges[1].output->name == "out2");
  BOOST_TEST(views[0].edges[1].input->name == "in1");
  BOOST_TEST(views[0].edges[2].output->name == "out10");
  BOOST_TEST(views[0].edges[2].input == nullptr);
  BOOST_TEST(views[0].edges[2].is_waiting());
}

BOOST_AUTO_TEST_CASE(GV_1_a_wait_for_a_thread_a_resource_or_a_buffer_is_no_edge) {
  auto c = sample_cluster();
  const auto expected = graph_json(make_graph_views(c));
  c.actors[1].ports.push_back({"thread", "worker/0/matmul", "n1", 0, 0, 0, true, 5});
  c.actors[1].ports.push_back({"thread", "op of job other", "n1", 0, 0, 0, true, 5});
  c.actors[2].ports.push_back({"buffer", "worker/0/gradient/send", "n1", 0, 0, 0, true, 5});
  c.actors[3].ports.push_back({"resource gpu", "worker/0/reader", "n1", 0, 0, 0, true, 5});
  BOOST_TEST(graph_json(make_graph_views(c)) == expected);
}

BOOST_AUTO_TEST_CASE(GV_2_edges_go_up_but_for_those_that_close_a_cycle) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 100; ++trial) {
    cluster_snapshot c;
    c.jobs = {job_snapshot{}};
    c.jobs[0].id = "1f";
    const std::size_t size = 2 + random() % 30;
    for (std::size_t i = 0; i < size; ++i) {
      auto a = sample_actor("n1." + std::to_string(i), i == 0 ? "shard" : "op",
                            "a" + std::to_string(i), actor_state::idle);
      for (std::size_t p = 0; p < random() % 4; ++p)
        a.ports.push_back({"out" + std::to_string(p), "a" + std::to_string(random() % size), "n1",
                           1, 2, 0, false, 0});
      c.actors.push_back(a);
    }
    const auto views = make_graph_views(c);
    std::vector<std::vector<std::size_t>> forward(size);
    for (const auto& e : views[0].edges) {
      const auto from = views[0].vertices[e.from].layer, to = views[0].vertices[e.to].layer;
      BOOST_TEST((e.is_back || from < to));
      if (!e.is_back) forward[e.to].push_back(from);
    }
    for (std::size_t v = 0; v < size; ++v) {  // the longest path, not more
      const auto longest =
          forward[v].empty() ? 0 : *std::max_element(forward[v].begin(), forward[v].end()) + 1;
      BOOST_TEST(views[0].vertices[v].layer == longest);
    }
  }
}

BOOST_AUTO_TEST_CASE(GV_3_the_order_of_the_lists_changes_nothing) {
  auto c = sample_cluster();
  const auto expected = draw_graph_text(make_graph_views(c)) + draw_graph_svg(make_graph_views(c)) +
                        draw_graph_dot(make_graph_views(c));
  std::mt19937 random(3);
  for (int i = 0; i < 50; ++i) {
    std::shuffle(c.actors.begin(), c.actors.end(), random);
    for (auto& a : c.actors) std::shuffle(a.ports.begin(), a.ports.end(), random);
    const auto views = make_graph_views(c);
    BOOST_TEST_REQUIRE(draw_graph_text(views) + draw_graph_svg(views) + draw_graph_dot(views) ==
                       expected);
  }
}

BOOST_AUTO_TEST_CASE(GV_2_cycles_are_cut_at_every_shard) {
  // Two shards, each of which feeds one op; the ops feed each other and both shards.
  cluster_snapshot c;
  c.jobs = {job_snapshot{}};
  c.jobs[0].id = "1f";
  const auto to = [](int port, const std::string& peer) {
    return port_snapshot{"out" + std::to_string(port), peer, "n1", 1, 2, 0, false, 0};
  };
  c.actors = {sample_actor("n1.0", "shard", "shard/a", actor_state::idle),
              sample_actor("n1.1", "shard", "shard/b", actor_state::idle),
              sample_actor("n1.2", "op", "forward", actor_state::idle),
              sample_actor("n1.3", "op", "gradient", actor_state::idle)};
  c.actors[0].ports = {to(0, "forward")};
  c.actors[1].ports = {to(0, "gradient")};
  c.actors[2].ports = {to(0, "gradient"), to(1, "shard/b")};
  c.actors[3].ports = {to(0, "shard/a")};
  BOOST_TEST(edges_of(make_graph_views(c)[0]) ==
             "shard/a -> forward 1/2\n"
             "shard/b -> gradient 1/2\n"
             "forward ~> shard/b 1/2\n"
             "forward -> gradient 1/2\n"
             "gradient ~> shard/a 1/2\n");
}

BOOST_AUTO_TEST_CASE(
    edges_of_the_same_two_actors_are_told_by_their_ports_and_missing_credits_not_at_all) {
  auto c = sample_cluster();
  c.actors[0].ports[1].credits = c.actors[0].ports[1].credits_max = 0;  // loss to the program
  c.actors[2].ports.push_back({"out2", "loss", "c1", 1, 2, 0, false, 0});
  const auto text = draw_graph_text(make_graph_views(c));
  BOOST_TEST(has_text(text, " -> program (fetches)\n"), text);
  BOOST_TEST(
      has_text(text,
               "-> loss (out1 to in0) 2/2, loss (out2 to ?) 1/2, worker/0/gradient/send 1/2\n"),
      text);
  BOOST_TEST(has_text(draw_graph_svg(make_graph_views(c)),
                      "worker/0/matmul to loss (out1 to in0): 2/2 credits free, 0 q"));
}

BOOST_AUTO_TEST_CASE(waits_are_marked_once_they_are_old_and_not_by_design) {
  auto c = sample_cluster();
  c.actors[0].ports[0].since_seconds = 1.5;
  BOOST_TEST(has_text(draw_graph_text(make_graph_views(c)), "loss 2/2 !"));
  BOOST_TEST(count(draw_graph_text(make_graph_views(c)), " !") == 2u);  // one of them explains
  BOOST_TEST(has_text(draw_graph_dot(make_graph_views(c)), "color=red"));
  BOOST_TEST(has_text(draw_graph_svg(make_graph_views(c)), "class=\"e w\""));
  c.actors[0].ports[0].is_sparse = true;
  BOOST_TEST(!has_text(draw_graph_text(make_graph_views(c)), "2/2 !"));
  BOOST_TEST(!has_text(draw_graph_svg(make_graph_views(c)), "class=\"e w\""));
}

BOOST_AUTO_TEST_CASE(the_text_groups_actors_by_node) {
  const auto c = sample_cluster();
  BOOST_TEST(
      draw_graph_text(make_graph_views(c)) ==
      "job mnist, step 511/4690 (11%): [layer] actor (kind, state) -> consumer free/all credits, ! = waited for, 1.0 s or "
      "more\n"
      "\n"
      "node c1\n"
      "  [2] loss (fetch, waiting for input for 250 ms) -> program (fetches) 4/4\n"
      "\n"
      "node n1\n"
      "  [0] worker/0/reader (op, waiting for credit for 250 ms) -> worker/0/matmul 0/2\n"
      "  [1] worker/0/matmul (op, running for 250 ms) -> loss 2/2, worker/0/gradient/send 1/2\n"
      "  [2] worker/0/gradient/send (send, idle for 250 ms) -> worker/0/gradient/receive 1/2\n"
      "\n"
      "node n2\n"
      "  [0] shard/0/w (shard, idle for 250 ms) -> worker/0/matmul 1/2\n"
      "  [3] worker/0/gradient/receive (receive, waiting for input for 250 ms) -> shard/0/w 2/2\n"
      "\n"
      "the program\n"
      "  [3] program (fetches)\n");
}

BOOST_AUTO_TEST_CASE(graphviz_gets_a_cluster_per_node_and_escaped_names) {
  auto c = sample_cluster();
  c.actors[2].name = "a \"quoted\" \\ name";
  const auto dot = draw_graph_dot(make_graph_views(c));
  BOOST_TEST(count(dot, "subgraph") == 4u + 0u);
  BOOST_TEST(has_text(dot, R"(label="a \"quoted\" \\ name\nop, running for 250 ms")"));
  BOOST_TEST(count(dot, "{") == count(dot, "}"));
}

BOOST_AUTO_TEST_CASE(the_picture_has_a_box_per_actor_inside_its_frame_and_escapes_names) {
  auto c = sample_cluster();
  c.actors[2].name = "<script>&\"";
  for (auto& a : c.actors)
    for (auto& p : a.ports)
      if (p.peer == "worker/0/matmul") p.peer = "<script>&\"";
  const auto svg = draw_graph_svg(make_graph_views(c));
  BOOST_TEST(count(svg, "class=\"v\"") == 7u);
  BOOST_TEST(count(svg, "<path") == 7u);
  BOOST_TEST(count(svg, "class=\"n\"") == 4u);
  BOOST_TEST(!has_text(svg, "<script>"));
  BOOST_TEST(has_text(svg, "&lt;script&gt;&amp;&quot;"));
  BOOST_TEST(svg.starts_with("<svg xmlns="));
  BOOST_TEST(svg.ends_with("</svg>\n"));
}

BOOST_AUTO_TEST_CASE(a_long_name_stands_on_two_lines_of_its_box) {
  auto c = sample_cluster();
  c.actors[0].name = "worker/1/gradients/dense_2/matmul/matmul_1";
  BOOST_TEST(has_text(draw_graph_svg(make_graph_views(c)), ">worker/1/gradients/</text>"));
  BOOST_TEST(has_text(draw_graph_svg(make_graph_views(c)), ">dense_2/matmul/matmul_1</text>"));
}

BOOST_AUTO_TEST_CASE(no_boxes_of_the_picture_overlap) {
  cluster_snapshot c = sample_cluster();
  for (int i = 0; i < 40; ++i) {
    auto a = sample_actor("n" + std::to_string(1 + i % 2) + "." + std::to_string(10 + i), "op",
                          "extra" + std::to_string(i), actor_state::idle);
    a.ports = {{"in0", i < 8 ? "worker/0/reader" : "extra" + std::to_string(i - 8), "n1", 0, 2, 0,
                false, 0}};
    c.actors.push_back(a);
  }
  const auto svg = draw_graph_svg(make_graph_views(c));
  std::vector<std::pair<double, double>> corners;
  for (auto at = svg.find("class=\"v\" x=\""); at != std::string::npos;
       at = svg.find("class=\"v\" x=\"", at + 1)) {
    const auto x = std::strtod(svg.c_str() + at + 13, nullptr);
    const auto y = std::strtod(svg.c_str() + svg.find("y=\"", at) + 3, nullptr);
    corners.emplace_back(x, y);
  }
  BOOST_TEST(corners.size() == 47u);
  for (std::size_t i = 0; i < corners.size(); ++i)
    for (std::size_t k = i + 1; k < corners.size(); ++k)
      BOOST_TEST((std::abs(corners[i].first - corners[k].first) >= 190 ||
                  std::abs(corners[i].second - corners[k].second) >= 47));
}

BOOST_AUTO_TEST_CASE(running_jobs_are_drawn_else_the_one_that_ended_last) {
  auto c = sample_cluster();
  auto second = c.jobs[0];
  second.id = "2a", second.name = "other";
  c.jobs.push_back(second);
  auto a = sample_actor("n1.9", "op", "x", actor_state::idle);
  a.job_id = "2a";
  c.actors.push_back(a);
  BOOST_TEST(make_graph_views(c).size() == 2u);
  c.jobs[0].state = job_state::done;
  BOOST_TEST(make_graph_views(c)[0].job->name == "other");
  c.jobs[1].state = job_state::failed;
  c.jobs[0].ended_seconds = 1, c.jobs[1].ended_seconds = 2;
  BOOST_TEST_REQUIRE(make_graph_views(c).size() == 1u);
  BOOST_TEST(make_graph_views(c)[0].job->name == "mnist");
  BOOST_TEST(draw_graph_text({}) == "no job has actors\n");
  BOOST_TEST(has_text(draw_graph_svg({}), "no job has actors"));
}

BOOST_AUTO_TEST_CASE(JSON_has_actors_and_edges) {
  const auto c = sample_cluster();
  const auto j = nlohmann::json::parse(graph_json(make_graph_views(c)));
  BOOST_TEST(j.at(0).at("actors").size() == 7u);
  BOOST_TEST(j.at(0).at("edges").at(1).at("credits_max") == 2);
  BOOST_TEST(j.at(0).at("edges").at(1).at("is_waiting") == true);
  BOOST_TEST(j.at(0).at("edges").at(6).at("is_back") == true);
  BOOST_TEST(j.at(0).at("edges").at(6).at("is_sparse") == false);
}

BOOST_AUTO_TEST_SUITE_END()
