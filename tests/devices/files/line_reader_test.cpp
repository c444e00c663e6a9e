#include "troupe/devices/files/line_reader.hpp"

#include "tests/devices/files/packed_bytes.hpp"

#include <unistd.h>

#include <random>

using namespace troupe;
using namespace troupe::test;

namespace {

result<std::vector<std::string>> lines_of(const byte_vector& bytes, std::size_t piece,
                                          std::size_t bytes_max = line_reader::line_bytes_max) {
  line_reader r(read_memory(bytes, "text", piece), bytes_max);
  std::vector<std::string> all;
  for (;;) {
    const auto line = r.next();
    if (!line) return line.error();
    if (!*line) break;
    all.emplace_back(**line);
    BOOST_TEST(r.line() == all.size());
    BOOST_TEST(text_of(bytes).substr(r.offset(), all.back().size()) == all.back());
  }
  const auto again = r.next();
  BOOST_TEST((again && !*again));
  return all;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(line_reader)

BOOST_AUTO_TEST_CASE(LR_2_lines_are_the_same_whatever_the_pieces) {
  using strings = std::vector<std::string>;
  const std::pair<std::string_view, strings> cases[] = {
      {"", {}},
      {"\n", {""}},
      {"\r\n", {""}},
      {"a", {"a"}},
      {"a\nb\r\nc", {"a", "b", "c"}},
      {"a\n\n\r\n", {"a", "", ""}},
      {"a\rb\nc\r", {"a\rb", "c\r"}},
      {"\r\r\n", {"\r"}},
      {"\xef\xbb\xbf"
       "a\n\xef\xbb\xbf"
       "b",
       {"a",
        "\xef\xbb\xbf"
        "b"}},
      {"\xef\xbb\xbf", {}},
      {"\xef\xbb", {"\xef\xbb"}},
      {"\xef\xbb\n", {"\xef\xbb"}},
  };
  for (const auto& [text, expected] : cases)
    for (const std::size_t piece : {1, 2, 3, 100}) {
      const auto all = lines_of(bytes_of(text), piece);
      BOOST_REQUIRE(all);
      BOOST_TEST(*all == expected, boost::test_tools::per_element());
    }
}

BOOST_AUTO_TEST_CASE(LR_2_a_line_is_given_before_the_next_one_is_written) {
  int ends[2];
  BOOST_REQUIRE(::pipe(ends) == 0);
  BOOST_REQUIRE(::write(ends[1], "one\ntw", 6) == 6);
  troupe::line_reader r(read_descriptor(ends[0], "pipe"));
  const auto line = r.next();
  BOOST_REQUIRE(line);
  BOOST_TEST(line->value() == "one");
  ::close(ends[1]);
  BOOST_TEST(r.next()->value() == "tw");
  ::close(ends[0]);
}

BOOST_AUTO_TEST_CASE(LR_1_lines_of_all_lengths_up_to_the_limit) {
  std::mt19937 bits(2);
  for (int trial = 0; trial < 30; ++trial) {
    std::vector<std::string> expected;
    std::string text;
    for (int k = 0; k < 40; ++k) {
      const auto size = bits() % (1U << (bits() % 20));
      expected.emplace_back(size, static_cast<char>('a' + k % 26));
      text += expected.back() + (bits() % 2 == 0 ? "\r\n" : "\n");
    }
    const auto all = lines_of(bytes_of(text), 1 + bits() % 300'000);
    BOOST_REQUIRE(all);
    BOOST_TEST((*all == expected));
  }
}

BOOST_AUTO_TEST_CASE(LR_1_a_line_over_the_limit_is_an_error_with_line_and_byte) {
  for (const std::size_t piece : {1, 4, 100}) {
    for (const std::string_view text : {"ab\n12345\n12345", "ab\n12345\r\n12345\r\n"})
      BOOST_TEST(bool(lines_of(bytes_of(text), piece, 5)));
    for (const std::string_view text :
         {"ab\n123456\nx", "ab\n123456", "ab\n123456\r\n", "ab\n12345\r", "ab\n1234567890"})
      check_refused(lines_of(bytes_of(text), piece, 5),
                    {"text: line 2 has more than 5 bytes; it begins at byte 3"});
  }
  check_refused(lines_of(byte_vector(17 << 20), 1 << 20), {"line 1 has more than 16777216 bytes"});
  const auto cut = gzip(bytes_of("a\nb\n"));
  troupe::line_reader r(gunzip(read_memory(std::span(cut).first(cut.size() - 1), "cut.gz")));
  BOOST_TEST(bool(r.next()));
  BOOST_TEST(bool(r.next()));
  check_refused(r.next(), {"cut.gz: the gzip data ends early"});
  check_refused(r.next(), {"cut.gz: the gzip data ends early"});
}

BOOST_AUTO_TEST_SUITE_END()
