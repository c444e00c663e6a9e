#include "troupe/runtime/text/byte_size.hpp"

#include <boost/test/unit_test.hpp>

#include <cstdint>
#include <string>

using namespace troupe;

BOOST_AUTO_TEST_SUITE(byte_size)

BOOST_AUTO_TEST_CASE(binary_and_decimal_units_are_read) {
  BOOST_TEST(*parse_byte_size("0") == 0u);
  BOOST_TEST(*parse_byte_size("4096") == 4096u);
  BOOST_TEST(*parse_byte_size("12B") == 12u);
  BOOST_TEST(*parse_byte_size("64KiB") == 65536u);
  BOOST_TEST(*parse_byte_size("2GiB") == std::uint64_t{2} << 30);
  BOOST_TEST(*parse_byte_size("2G") == std::uint64_t{2} << 30);
  BOOST_TEST(*parse_byte_size("2gib") == std::uint64_t{2} << 30);
  BOOST_TEST(*parse_byte_size("1.5GiB") == std::uint64_t{3} << 29);
  BOOST_TEST(*parse_byte_size("512MB") == 512'000'000u);
  BOOST_TEST(*parse_byte_size("1 TiB") == std::uint64_t{1} << 40);
  BOOST_TEST(*parse_byte_size("9223372036854775807") == 9223372036854775807u);
}

BOOST_AUTO_TEST_CASE(what_is_no_size_is_a_usage_error_that_quotes_it) {
  for (const char* text :
       {"", "-1", "GiB", "2XiB", "2GiBs", "1.2.3", ".", "9223372036854775808",
        "99999999999999999999", "99999999TiB", "99999999.5TiB", "0x10", "1e9", "2 Gi", "nan"}) {
    const auto size = parse_byte_size(text);
    BOOST_TEST_REQUIRE(!size, text);
    BOOST_TEST((size.error().code() == error_code::usage), text);
    BOOST_TEST(size.error().message().find("'" + std::string(text) + "'") != std::string::npos,
               size.error().message());
  }
}

BOOST_AUTO_TEST_CASE(bytes_are_written_with_the_unit_that_fits) {
  BOOST_TEST(format_bytes(0) == "0 B");
  BOOST_TEST(format_bytes(1023) == "1023 B");
  BOOST_TEST(format_bytes(4096) == "4.0 KiB");
  BOOST_TEST(format_bytes((1 << 20) - 1) == "1.0 MiB");
  BOOST_TEST(format_bytes(UINT64_MAX) == "16.0 EiB");
}

BOOST_AUTO_TEST_SUITE_END()
