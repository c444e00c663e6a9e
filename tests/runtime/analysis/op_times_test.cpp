#include "troupe/runtime/analysis/op_times.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>

using namespace troupe;

namespace {

std::string key(const std::string& type, const std::string& name) {
  planned_op op;
  op.type = type;
  op.name = name;
  const tensor_spec in{dtype::f32, {2, 3}}, out{dtype::f32, {2}};
  return op_times::key_of({&op, 1}, {&in, 1}, {&out, 1});
}

}  // namespace

BOOST_AUTO_TEST_SUITE(op_times)

BOOST_AUTO_TEST_CASE(later_runs_count_more) {
  troupe::op_times t;
  BOOST_TEST(!t.mean_ns("a"));
  t.add("a", 10, 1000);
  BOOST_TEST(t.mean_ns("a").value() == 100.0);
  for (int i = 0; i < 100; ++i) t.add("a", 64, 64 * 5000.0);
  BOOST_TEST(t.mean_ns("a").value() > 4900.0);
  t.add("a", 0, 7);  // nothing ran
  t.add("a", 1, -1);
  t.add("a", 1, std::nan(""));
  BOOST_TEST(t.mean_ns("a").value() > 4900.0);
}

BOOST_AUTO_TEST_CASE(a_key_tells_types_names_and_shapes_apart_and_is_one_line) {
  BOOST_TEST(key("sleep", "a") != key("sleep", "b"));
  BOOST_TEST(key("sleep", "a") != key("nap", "a"));
  BOOST_TEST(key("sleep", "a\nb").find('\n') == std::string::npos);
  BOOST_TEST(key("sleep", std::string(5000, 'x')).size() <= 1024U);
}

BOOST_AUTO_TEST_CASE(text_and_back) {
  troupe::op_times t;
  t.add(key("sleep", "a"), 3, 3e8);
  t.add(key("read", "b c"), 1, 250);
  const auto back = troupe::op_times::parse(t.text());
  BOOST_TEST(back.mean_ns(key("sleep", "a")).value() == 1e8);
  BOOST_TEST(back.mean_ns(key("read", "b c")).value() == 250.0);
  BOOST_TEST(back.text() == t.text());
}

BOOST_AUTO_TEST_CASE(OT_1_bad_lines_are_left_out) {
  const auto t = troupe::op_times::parse(
      "100 1 good\nabc 1 x\n100 x y\n-5 1 z\nnan 1 n\ninf 1 i\n100 0 none\n100 1 \n\n7 2 also\n100 1");
  BOOST_TEST(t.mean_ns("good").value() == 100.0);
  BOOST_TEST(t.mean_ns("also").value() == 7.0);
  for (const char* name : {"x", "y", "z", "n", "i", "none", ""})
    BOOST_TEST(!t.mean_ns(name), "'" << name << "'");
  std::string many;
  for (int i = 0; i < 10'000; ++i) many += "5 1 op" + std::to_string(i) + "\n";
  const auto lines = troupe::op_times::parse(many).text();
  BOOST_TEST(static_cast<std::size_t>(std::count(lines.begin(), lines.end(), '\n')) ==
             troupe::op_times::entries_max);
}

BOOST_AUTO_TEST_CASE(OT_1_any_bytes_give_times_that_are_finite) {
  std::mt19937 random(1);
  const std::string alphabet = "0123456789eE+-. \nabnif\t\x01\xff";
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (auto n = random() % 80; n > 0; --n) text += alphabet[random() % alphabet.size()];
    const auto t = troupe::op_times::parse(text);
    const auto again = troupe::op_times::parse(t.text());
    BOOST_REQUIRE(again.text() == t.text());
    BOOST_REQUIRE(t.text().find("nan") == std::string::npos);
  }
}

BOOST_AUTO_TEST_SUITE_END()
