#include "tools/troupe-tool/table.hpp"

#include <boost/test/unit_test.hpp>

#include <string>
#include <vector>

using namespace troupe;

BOOST_AUTO_TEST_SUITE(table)

BOOST_AUTO_TEST_CASE(columns_are_aligned_numbers_to_the_right) {
  troupe::table t({{"NAME"}, {"N", true}, {"STATE"}});
  t.add({"a", "1", "idle"});
  t.add({"longer", "1000", ""});
  BOOST_TEST(t.draw(0).text ==
             "NAME       N  STATE\n"
             "a          1  idle\n"
             "longer  1000\n");
}

BOOST_AUTO_TEST_CASE(an_empty_table_is_its_titles) {
  BOOST_TEST(troupe::table({{"A"}, {"B"}}).draw(80).text == "A  B\n");
}

BOOST_AUTO_TEST_CASE(TB_1_texts_are_shortened_in_the_middle_before_columns_are_dropped) {
  troupe::table t({{"NAME", false, 8}, {"STEPS", true, 0, 1}});
  t.add({"worker/0/dense_1/matmul", "12345"});
  BOOST_TEST(t.draw(20).text == "NAME           STEPS\nworke..matmul  12345\n");
  BOOST_TEST(t.draw(20).dropped.empty());
}

BOOST_AUTO_TEST_CASE(TB_2_dropped_columns_are_named_highest_order_first) {
  troupe::table t({{"NAME", false, 8}, {"STEPS", true, 0, 1}, {"QUEUE", true, 0, 2}});
  t.add({"worker/0/dense_1/matmul", "12345", "0"});
  const auto narrow = t.draw(16);
  BOOST_TEST(narrow.text == "NAME       STEPS\nwor..tmul  12345\n");
  BOOST_TEST((narrow.dropped == std::vector<std::string>{"QUEUE"}));
  BOOST_TEST((t.draw(9).dropped == std::vector<std::string>{"STEPS", "QUEUE"}));
  BOOST_TEST(t.draw(3).text == "NAME\nwor..mul\n");  // never below the least width
}

BOOST_AUTO_TEST_CASE(columns_are_dropped_before_a_text_is_shorter_than_wanted) {
  troupe::table t({{"NAME", false, 8, 0, 20}, {"STEPS", true, 0, 1}});
  t.add({"worker/0/dense_1/matmul", "12345"});
  BOOST_TEST(t.draw(27).dropped.empty());
  BOOST_TEST((t.draw(26).dropped == std::vector<std::string>{"STEPS"}));
  BOOST_TEST(t.draw(26).text == "NAME\nworker/0/dense_1/matmul\n");
  BOOST_TEST(t.draw(10).text == "NAME\nwork..tmul\n");
}

BOOST_AUTO_TEST_CASE(TB_1_no_line_is_wider_than_asked_for) {
  troupe::table t(
      {{"NAME", false, 6}, {"STATE", false, 5, 3}, {"N", true, 0, 1}, {"M", true, 0, 2}});
  for (int i = 0; i < 20; ++i)
    t.add({std::string(static_cast<std::size_t>(i), 'n'), "waiting for input", "17",
           std::to_string(i * i * i)});
  for (std::size_t width = 6; width < 60; ++width) {
    const auto text = t.draw(width).text;
    for (std::size_t at = 0; at < text.size(); at = text.find('\n', at) + 1)
      BOOST_TEST(text.find('\n', at) - at <= width, "width " << width << "\n" << text);
  }
}

BOOST_AUTO_TEST_CASE(characters_are_counted_not_bytes) {
  BOOST_TEST(characters("n\u00e9\u4e2d") == 3u);
  BOOST_TEST(shorten("\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9", 6) ==
             "\u00e9\u00e9..\u00e9\u00e9");
  BOOST_TEST(shorten("abcdef", 6) == "abcdef");
  BOOST_TEST(shorten("abcdef", 3) == "..");
  BOOST_TEST(shorten("abcdef", 1) == ".");
  BOOST_TEST(shorten("abcdef", 0) == "");
}

BOOST_AUTO_TEST_SUITE_END()
