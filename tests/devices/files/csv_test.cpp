#include "troupe/devices/files/csv.hpp"

#include "tests/devices/files/packed_bytes.hpp"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <random>
#include <sstream>

using namespace troupe;
using namespace troupe::test;

namespace {

using strings = std::vector<std::string>;
using table = std::vector<strings>;

result<table> rows_of(std::string_view text, const csv_options& options = {},
                      std::size_t piece = 1 << 20) {
  const auto bytes = bytes_of(text);
  csv_reader r(read_memory(bytes, "table.csv", piece), options);
  table all;
  for (;;) {
    const auto row = r.next();
    if (!row) return row.error();
    if (!*row) break;
    all.emplace_back((*row)->begin(), (*row)->end());
    BOOST_TEST(r.row() == all.size());
  }
  const auto again = r.next();
  BOOST_TEST((again && !*again));
  return all;
}

std::string text_of_rows(const table& rows, char separator = ',') {
  std::string text;
  for (const auto& row : rows)
    text += csv_row(std::vector<std::string_view>(row.begin(), row.end()), separator);
  return text;
}

// Fields of what is special, and of nothing.
table some_rows(std::mt19937& bits, std::size_t rows, std::size_t fields) {
  constexpr std::string_view characters = "ab,;\"\"\n\r \t\xef\xbb\xbf";
  table all(rows, strings(fields));
  for (auto& row : all)
    for (auto& f : row)
      for (auto n = bits() % 6; n > 0; --n) f += characters[bits() % characters.size()];
  return all;
}

// "3:abc" for every field, "." behind every row: what both sides can write and compare.
std::string lengths_and_bytes(const table& rows) {
  std::string out;
  for (const auto& row : rows) {
    for (const auto& f : row) out += std::to_string(f.size()) + ":" + f;
    out += '.';
  }
  return out;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(csv)

BOOST_AUTO_TEST_CASE(CSV_2_rows_are_the_same_whatever_the_pieces) {
  const std::pair<std::string_view, table> cases[] = {
      {"", {}},
      {"\n\r\n\n", {}},
      {"a,b\r\nc,d\n", {{"a", "b"}, {"c", "d"}}},
      {"a,b\n\nc,d", {{"a", "b"}, {"c", "d"}}},
      {",\n,", {{"", ""}, {"", ""}}},
      {"\"\"\n\"\"", {{""}, {""}}},
      {"\"a\"\"b\",\"c,\n\r\nd\"\r\n", {{"a\"b", "c,\n\r\nd"}}},
      {"\"\"\"\"", {{"\""}}},
      {" a , b\n", {{" a ", " b"}}},
      {"a\rb,c\n", {{"a\rb", "c"}}},
      {"\xef\xbb\xbf\"a\",b\n", {{"a", "b"}}},
      {"\xef\xbb\xbf", {}},
      {"\"x\",\"y\"", {{"x", "y"}}},
  };
  for (const auto& [text, expected] : cases)
    for (const std::size_t piece : {1, 2, 3, 100}) {
      const auto rows = rows_of(text, {}, piece);
      BOOST_REQUIRE_MESSAGE(rows, (rows ? "" : rows.error().text()));
      BOOST_TEST(lengths_and_bytes(*rows) == lengths_and_bytes(expected));
    }
}

BOOST_AUTO_TEST_CASE(a_header_names_the_fields_and_is_no_row) {
  const auto bytes = bytes_of("name;size\nx;\"1\n\"\ny;2\n");
  csv_reader r(read_memory(bytes, "t"), {.separator = ';', .has_header = true});
  const auto names = r.header();
  BOOST_REQUIRE(names);
  BOOST_TEST((strings(names->begin(), names->end()) == strings{"name", "size"}));
  BOOST_TEST((**r.next())[0] == "x");
  BOOST_TEST(r.line() == 2U);
  BOOST_TEST((**r.next())[1] == "2");
  BOOST_TEST(r.row() == 2U);
  BOOST_TEST(r.line() == 4U);
  check_refused(rows_of("\n\n", {.has_header = true}),
                {"table.csv: a header is expected, and there is no row, at line 3"});
  csv_reader none(read_memory(bytes, "t"));
  BOOST_TEST(none.header()->empty());
}

BOOST_AUTO_TEST_CASE(rows_that_are_none_are_errors_with_row_and_line) {
  check_refused(rows_of("a,b\n\"1\n\n\",2\n3\n"),
                {"table.csv: 1 fields, and the first row has 2, row 3 at line 5"});
  check_refused(rows_of("a,b\n1,2,3\n"), {"3 fields, and the first row has 2, row 2 at line 2"});
  check_refused(rows_of("a,b\n1,2,3\n", {.has_header = true}), {"row 1 at line 2"});
  check_refused(rows_of("a,b\nc,d\"\n"), {"a quote in field 2, which does not begin with one"});
  check_refused(rows_of("a,b\nc,d\"", {.has_header = true}), {"row 1 at line 2"});
  check_refused(rows_of("\"a\"b\n", {.has_header = true}),
                {"field 1 goes on behind its closing quote, header at line 1"});
  check_refused(rows_of("x\n\"a\"\r", {}, 1), {"field 1 goes on behind its closing quote, row 2"});
  check_refused(rows_of("x\n\"a\n\n\"\"", {}, 1),
                {"the quote that line 2 opens is never closed, row 2 at line 2"});
  const auto ragged = rows_of("a,b\n1,2,3\n4\n", {.is_ragged = true});
  BOOST_REQUIRE(ragged);
  BOOST_TEST((*ragged == table{{"a", "b"}, {"1", "2", "3"}, {"4"}}));
}

BOOST_AUTO_TEST_CASE(CSV_3_rows_over_the_limits_are_errors) {
  BOOST_TEST(bool(rows_of("1,2,3\n", {.fields_max = 3})));
  check_refused(rows_of("1,2,3\n1,2,3,\n", {.fields_max = 3}),
                {"more than 3 fields, row 2 at line 2"});
  check_refused(rows_of("x\n" + std::string(2000, 'y'), {.row_bytes_max = 1000}, 100),
                {"more than 1000 bytes, row 2 at line 2"});
  const auto wide = std::string(1'000'000, 'a');
  const auto rows = rows_of("\"" + wide + "\",b\nc," + wide + "\n", {}, 9999);
  BOOST_REQUIRE(rows);
  BOOST_TEST((*rows == table{{wide, "b"}, {"c", wide}}));
  // A quote that is never closed takes no more than a row may.
  check_refused(rows_of("\"" + std::string(20'000'000, '\n')), {"more than 16777216 bytes, row 1"});
}

BOOST_AUTO_TEST_CASE(CSV_1_what_is_written_is_read_again) {
  std::mt19937 bits(3);
  for (int trial = 0; trial < 300; ++trial) {
    const auto rows = some_rows(bits, 1 + bits() % 5, 1 + bits() % 4);
    const char separator = ",;\t"[bits() % 3];
    const auto back =
        rows_of(text_of_rows(rows, separator), {.separator = separator}, 1 + bits() % 10);
    BOOST_REQUIRE_MESSAGE(back, (back ? "" : back.error().text()));
    BOOST_TEST(lengths_and_bytes(*back) == lengths_and_bytes(rows));
  }
  BOOST_TEST(csv_row(std::vector<std::string_view>{"a", "b c", "d,e", "f\"g", ""}) ==
             "a,b c,\"d,e\",\"f\"\"g\",\n");
}

BOOST_AUTO_TEST_CASE(pythons_csv_reads_what_we_write_and_writes_what_we_read) {
  const temporary_folder folder;
  std::mt19937 bits(4);
  const auto rows = some_rows(bits, 500, 3);
  write_file(folder.file("ours.csv"), bytes_of(text_of_rows(rows)));
  run_python(folder, R"(
import csv
rows = list(csv.reader(open('ours.csv', newline='', encoding='latin-1'), strict=True))
with open('seen', 'w', newline='', encoding='latin-1') as f:
  f.write(''.join(''.join(f'{len(x)}:{x}' for x in row) + '.' for row in rows))
with open('theirs.csv', 'w', newline='', encoding='latin-1') as f:
  csv.writer(f).writerows(rows)
)");
  BOOST_TEST(text_of(read_file(folder.file("seen"))) == lengths_and_bytes(rows));
  const auto back = rows_of(text_of(read_file(folder.file("theirs.csv"))));
  BOOST_REQUIRE_MESSAGE(back, (back ? "" : back.error().text()));
  BOOST_TEST(lengths_and_bytes(*back) == lengths_and_bytes(rows));
}

BOOST_AUTO_TEST_CASE(numbers_are_the_shortest_text_that_is_read_as_the_same) {
  BOOST_TEST(csv_number(0.1F) == "0.1");
  BOOST_TEST(csv_number(0.1) == "0.1");
  BOOST_TEST(csv_number(1e300) == "1e+300");
  BOOST_TEST(csv_number(-7) == "-7");
  BOOST_TEST(csv_number(std::uint64_t{18446744073709551615U}) == "18446744073709551615");
  BOOST_TEST(csv_number(std::nanf("")) == "nan");
  std::mt19937_64 bits(1);
  for (int k = 0; k < 1000; ++k) {
    const auto x = std::bit_cast<double>(bits());
    if (std::isnan(x)) continue;
    BOOST_TEST(std::strtod(csv_number(x).c_str(), nullptr) == x);
    const auto y = std::bit_cast<float>(static_cast<std::uint32_t>(bits()));
    if (!std::isnan(y)) BOOST_TEST(std::strtof(csv_number(y).c_str(), nullptr) == y);
  }
}

BOOST_AUTO_TEST_SUITE_END()
