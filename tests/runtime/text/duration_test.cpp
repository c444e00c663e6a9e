#include "troupe/runtime/text/duration.hpp"

#include <boost/test/unit_test.hpp>

#include <limits>
#include <string>

using namespace troupe;

BOOST_AUTO_TEST_SUITE(duration)

BOOST_AUTO_TEST_CASE(every_unit_is_read_in_nanoseconds) {
  BOOST_TEST(*parse_duration("7ns") == 7);
  BOOST_TEST(*parse_duration("250us") == 250'000);
  BOOST_TEST(*parse_duration("500ms") == 500'000'000);
  BOOST_TEST(*parse_duration("1d") == 24 * 3600 * 1'000'000'000LL);
  BOOST_TEST(*parse_duration("20s") == 20'000'000'000);
  BOOST_TEST(*parse_duration("1.5s") == 1'500'000'000);
  BOOST_TEST(*parse_duration("2m") == 120'000'000'000);
  BOOST_TEST(*parse_duration("1h") == 3'600'000'000'000);
  BOOST_TEST(*parse_duration("0") == 0);
}

BOOST_AUTO_TEST_CASE(what_is_no_duration_is_a_usage_error_that_quotes_it) {
  for (const char* text : {"", "20", "s", "-1s", "1.5.2s", "1e3s", "inf s", "nan", "infs", "20 s",
                           "5 parsecs", "99999999999h", "900000h", " 1s"}) {
    const auto d = parse_duration(text);
    BOOST_TEST_REQUIRE(!d, text);
    BOOST_TEST((d.error().code() == error_code::usage), text);
    BOOST_TEST(d.error().message().find("'" + std::string(text) + "'") != std::string::npos,
               d.error().message());
  }
  BOOST_TEST(parse_duration("20").error().message().find("unit is missing") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(seconds_are_written_with_few_digits) {
  BOOST_TEST(format_seconds(0) == "0 s");
  BOOST_TEST(format_seconds(0.00025) == "250 us");
  BOOST_TEST(format_seconds(0.0035) == "3.5 ms");
  BOOST_TEST(format_seconds(0.4) == "400 ms");
  BOOST_TEST(format_seconds(0.99951) == "1.0 s");
  BOOST_TEST(format_seconds(3.21) == "3.2 s");
  BOOST_TEST(format_seconds(250) == "4 min 10 s");
  BOOST_TEST(format_seconds(7500) == "2 h 5 min");
  BOOST_TEST(format_seconds(std::numeric_limits<double>::quiet_NaN()) == "0 s");
  BOOST_TEST(format_seconds(std::numeric_limits<double>::max()) == "277777777777 h 46 min");
}

BOOST_AUTO_TEST_SUITE_END()
