#include "troupe/runtime/picture/picture.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <string>

using namespace troupe;

namespace {

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

picture three() {
  picture p{.title = "a <title>",
            .name = "job \"j\"",
            .legend = {"first", "second"},
            .boxes = {},
            .arrows = {}};
  p.boxes = {{"c", "node n10", "op", "tip\nline", "#bbf7d0"},
             {"b", "node n9", "", "b"},
             {"a", "node n9", "shard", "a"}};
  p.arrows = {{0, 2, "1/2", "c to a"},
              {2, 1, "0/2", "a to b", picture_arrow::kind::marked},
              {1, 0, "2/2", "b to c", picture_arrow::kind::crossing}};
  return p;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(pictures)

BOOST_AUTO_TEST_CASE(PC_1_layers_are_longest_paths_and_cycles_are_cut_where_they_are_marked) {
  const std::vector<std::pair<std::size_t, std::size_t>> edges{
      {0, 1}, {1, 2}, {0, 2}, {2, 3}, {3, 0}};
  const auto cut = rank(4, edges, {true, false, false, false});
  BOOST_TEST((cut.layers == std::vector<std::size_t>{0, 1, 2, 3}));
  BOOST_TEST((cut.is_back == std::vector<bool>{false, false, false, false, true}));
  const auto somewhere = rank(4, edges, std::vector<bool>(4));
  BOOST_TEST(std::ranges::count(somewhere.is_back, true) == 1);
  BOOST_TEST(rank(0, {}, {}).layers.empty());
  // To itself.
  BOOST_TEST(rank(1, std::vector<std::pair<std::size_t, std::size_t>>{{0, 0}}, {false}).is_back[0]);
}

BOOST_AUTO_TEST_CASE(PC_1_arranged_boxes_stand_by_layer_and_arrows_follow_them) {
  auto p = three();
  arrange(p, {false, false, true});
  BOOST_TEST(p.boxes[0].name == "a");
  BOOST_TEST(p.boxes[1].name == "b");
  BOOST_TEST(p.boxes[2].name == "c");
  BOOST_TEST(p.arrows[0].is_back);
  BOOST_TEST(p.arrows[0].from == 2U);
  BOOST_TEST(p.boxes[2].layer == 2U);
}

// A loop is drawn from its first op on, although a walk from elsewhere would cut it there.
BOOST_AUTO_TEST_CASE(PC_1_arrows_that_are_said_to_lead_back_do) {
  picture p;
  for (const auto* name : {"body", "enter", "end"})
    p.boxes.push_back({name, "node n1", "", "", "#ffffff"});
  p.arrows.push_back({1, 0, "", "", picture_arrow::kind::normal});
  p.arrows.push_back({0, 1, "", "", picture_arrow::kind::normal, true});
  p.arrows.push_back({0, 2, "", "", picture_arrow::kind::normal});
  arrange(p, {false, false, false});
  BOOST_TEST(p.boxes[0].name == "enter");
  BOOST_TEST(p.boxes[1].name == "body");
  BOOST_TEST(!p.arrows[0].is_back);
  BOOST_TEST(p.arrows[1].is_back);
}

BOOST_AUTO_TEST_CASE(a_long_path_does_not_use_the_stack) {
  std::vector<std::pair<std::size_t, std::size_t>> edges;
  for (std::size_t i = 1; i < 300'000; ++i) edges.emplace_back(i - 1, i);
  BOOST_TEST(rank(300'000, edges, std::vector<bool>(300'000)).layers.back() == 299'999U);
}

BOOST_AUTO_TEST_CASE(PC_2_texts_are_escaped_in_both_formats) {
  auto p = three();
  p.boxes[1].name = "<b> & \"c\"\x1b[31m";
  arrange(p, {false, false, true});
  const auto svg = draw_svg({&p, 1}, "");
  BOOST_TEST(has(svg, "a &lt;title&gt;"));
  BOOST_TEST(has(svg, "&lt;b&gt; &amp; &quot;c&quot;?[31m"));
  BOOST_TEST(has(svg, "tip&#10;line"));
  BOOST_TEST(has(svg, ">first</text>"));
  BOOST_TEST(has(svg, ">second</text>"));
  BOOST_TEST(has(svg, ">0/2</text>"));  // of the marked one
  BOOST_TEST(!has(svg, ">1/2</text>"));
  const auto dot = draw_dot({&p, 1});
  BOOST_TEST(has(dot, R"(label="node n9, job \"j\"")"));
  BOOST_TEST(has(dot, R"(label="c\nop", fillcolor="#bbf7d0")"));
  BOOST_TEST(has(dot, "color=red"));
  BOOST_TEST(has(dot, "color=blue"));
  BOOST_TEST(has(dot, "style=dashed"));
  BOOST_TEST(dot.find("node n9") < dot.find("node n10"));
}

BOOST_AUTO_TEST_CASE(no_picture_at_all_says_so) {
  BOOST_TEST(has(draw_svg({}, "nothing <here>"), "nothing &lt;here&gt;"));
  BOOST_TEST(draw_dot({}).ends_with("}\n"));
}

BOOST_AUTO_TEST_SUITE_END()
