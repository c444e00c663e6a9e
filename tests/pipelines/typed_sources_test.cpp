// Sources whose items have a type: what is read, and what is refused with which words.

#include "troupe/runtime/flow/typed_sources.hpp"

#include "tests/devices/idx_files.hpp"
#include "tests/devices/temporary_folder.hpp"
#include "troupe/devices/files/safetensors.hpp"
#include "troupe/runtime/flow/drain.hpp"

#include <boost/test/unit_test.hpp>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

using namespace troupe;
using test::put;
using test::temporary_folder;
namespace fs = std::filesystem;

namespace {

flow_totals must(result<flow_totals> r) {
  if (!r) BOOST_FAIL(r.error().text());
  return std::move(*r);
}
bool has(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos && text.find('\n') == std::string::npos) return true;
  BOOST_TEST_MESSAGE("'" << part << "' is not in '" << text << "'");
  return false;
}

struct reading {
  std::string who;
  std::int64_t at = 0;
  std::optional<double> value;
  bool is_good = false;
  static constexpr auto fields =
      troupe::fields<&reading::who, &reading::at, &reading::value, &reading::is_good>(
          "who", "at", "value", "good");
  friend bool operator==(const reading&, const reading&) = default;
};
const std::vector<reading> readings{{"a,b", -3, 0.1, true},
                                    {"", std::numeric_limits<std::int64_t>::max(), {}, false},
                                    {"line\nend \"ä\"", 0, -1e300, true}};

struct part {
  std::string name;
  std::vector<float> sizes;
  static constexpr auto fields = troupe::fields<&part::name, &part::sizes>("name", "sizes");
  friend bool operator==(const part&, const part&) = default;
};
struct order {
  std::uint64_t id = 0;
  double price = 0;
  char mark = ' ';
  std::uint8_t small = 0;
  std::vector<part> parts;
  std::optional<part> spare;
  std::vector<std::vector<int>> table;
  std::optional<std::string> note;
  static constexpr auto fields =
      troupe::fields<&order::id, &order::price, &order::mark, &order::small, &order::parts,
                     &order::spare, &order::table, &order::note>("id", "price", "mark", "small",
                                                                 "parts", "spare", "table", "note");
  friend bool operator==(const order&, const order&) = default;
};
struct tree {
  std::vector<tree> in;
  static constexpr auto fields = troupe::fields<&tree::in>("in");
};
struct pair_of_ints {
  int a = 0;
  std::optional<int> b;
  static constexpr auto fields = troupe::fields<&pair_of_ints::a, &pair_of_ints::b>("a", "b");
};

template <class Add>
std::string error_of(Add add) {
  flow_graph t;
  collect(add(t));
  const auto r = drain(t);
  BOOST_REQUIRE(!r);
  return r.error().text();
}
template <class T>
std::string csv_error(const std::string& text) {
  temporary_folder folder;
  put(folder.file("a.csv"), text);
  return error_of([&](flow_graph& t) { return read_csv<T>(t, folder.file("a.csv")); });
}
template <class T>
std::string json_error(const std::string& text) {
  temporary_folder folder;
  put(folder.file("a.jsonl"), text);
  return error_of([&](flow_graph& t) { return read_json_lines<T>(t, folder.file("a.jsonl")); });
}

std::string idx(std::vector<std::uint32_t> sizes, const std::string& elements) {
  std::string text{'\0', '\0', '\x08', static_cast<char>(sizes.size())};
  for (const auto n : sizes)
    for (int shift = 24; shift >= 0; shift -= 8) text += static_cast<char>(n >> shift & 0xff);
  return text + elements;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(typed_sources)

BOOST_AUTO_TEST_CASE(what_is_written_as_csv_is_read_as_equal_structs) {
  temporary_folder folder;
  flow_graph w;
  write_csv(from(w, readings), folder.file("a.csv"));
  must(drain(w));
  flow_graph t;
  const auto all = collect(read_csv<reading>(t, folder.file("a.csv")));
  must(drain(t));
  BOOST_CHECK(*all == readings);
}

BOOST_AUTO_TEST_CASE(columns_are_found_by_their_names) {
  temporary_folder folder;
  put(folder.file("a.csv"), "good;more;at;who;value\n True ;x; 7;me;\nFALSE;y;8 ;you;inf\n");
  flow_graph t;
  const auto all = collect(read_csv<reading>(t, folder.file("a.csv"), {}, {.separator = ';'}));
  must(drain(t));
  BOOST_REQUIRE_EQUAL(all->size(), 2U);
  BOOST_CHECK((all->front() == reading{"me", 7, {}, true}));
  BOOST_CHECK(std::isinf(all->back().value.value()));
}

BOOST_AUTO_TEST_CASE(a_column_that_is_missing_or_stands_twice_is_an_error_of_the_file) {
  BOOST_CHECK(
      has(csv_error<reading>("who,at,value\nx,1,2\n"), "a.csv: no column 'good' in its header"));
  BOOST_CHECK(has(csv_error<reading>("who,at,value,good,at\n"),
                  "a.csv: more than one column 'at' in its header"));
  BOOST_CHECK(has(csv_error<reading>(""), "a.csv: "));
}

BOOST_AUTO_TEST_CASE(cells_that_do_not_fit_are_errors_of_their_rows_alone) {
  temporary_folder folder;
  put(folder.file("1.csv"),
      "who,at,value,good\na,1,1,1\n\"b\nb\",2.0,1,1\nc,3,x,1\nd,4,1,yes\n"
      "e,9223372036854775808,1,1\nf,5,,0\n");
  put(folder.file("2.csv"), "who,at\n");
  put(folder.file("3.csv"), "who,at,value,good\ng,6,,0\n\"");
  flow_graph t;
  auto lost = dead_letters(t);
  const auto all = collect(
      read_csv<reading>(t, folder.file("*.csv"), {.on_error = skip(6), .dead_letters = lost}));
  const auto letters = collect(lost);
  must(drain(t));
  std::string names;
  for (const auto& r : *all) names += r.who;
  BOOST_TEST(names == "afg");
  BOOST_REQUIRE_EQUAL(letters->size(), 6U);
  BOOST_CHECK(has((*letters)[0].reason,
                  "1.csv: line 3, column 'at': expected a whole number, found '2.0'"));
  BOOST_CHECK(
      has((*letters)[1].reason, "1.csv: line 5, column 'value': expected a number, found 'x'"));
  BOOST_CHECK(has((*letters)[2].reason,
                  "1.csv: line 6, column 'good': expected true or false, found 'yes'"));
  BOOST_CHECK(has((*letters)[3].reason, "1.csv: line 7, column 'at'"));
  BOOST_CHECK(has((*letters)[4].reason, "2.csv: no column 'value'"));
  BOOST_CHECK(has((*letters)[5].reason, "3.csv: "));
  BOOST_TEST((*letters)[5].label == folder.file("3.csv"));
}

BOOST_AUTO_TEST_CASE(more_rows_that_do_not_fit_than_are_borne_stop) {
  temporary_folder folder;
  put(folder.file("a.csv"), "a,b\nx,1\ny,1\n1,1\n");
  flow_graph t;
  collect(read_csv<pair_of_ints>(t, folder.file("a.csv"), {.on_error = skip(1)}));
  const auto r = drain(t);
  BOOST_REQUIRE(!r);
  BOOST_CHECK(has(r.error().text(), "found 'y'"));
}

BOOST_AUTO_TEST_CASE(cells_that_a_ragged_row_lacks_are_empty) {
  temporary_folder folder;
  put(folder.file("a.csv"), "a,b\n1\n2,3\n");
  flow_graph t;
  const auto all =
      collect(read_csv<pair_of_ints>(t, folder.file("a.csv"), {}, {.is_ragged = true}));
  must(drain(t));
  BOOST_REQUIRE_EQUAL(all->size(), 2U);
  BOOST_CHECK(!all->front().b && all->back().b == 3);
}

BOOST_AUTO_TEST_CASE(what_is_written_as_json_lines_is_read_as_equal_structs) {
  const std::vector<order> orders{
      {std::numeric_limits<std::uint64_t>::max(), -0.0, '"', 255, {}, {}, {}, {}},
      {9007199254740993,
       123456789012345680000.0,
       '\\',
       0,
       {{"tab\t, bell\a, nul", {0.1F, -1e-45F, 3.4028235e38F, 16777216}}, {"", {}}},
       part{"ü", {1}},
       {{}, {1, -2}},
       "null"},
      {1, 5e-324, 'x', 7, {}, {}, {{std::numeric_limits<int>::min()}}, ""}};
  temporary_folder folder;
  flow_graph w;
  write_json_lines(from(w, orders), folder.file("a.jsonl"));
  write_json_lines(from(w, readings), folder.file("b.jsonl"));
  must(drain(w));
  flow_graph t;
  const auto all = collect(read_json_lines<order>(t, folder.file("a.jsonl")));
  const auto others = collect(read_json_lines<reading>(t, folder.file("b.jsonl")));
  must(drain(t));
  BOOST_CHECK(*all == orders);
  BOOST_CHECK(std::signbit(all->front().price));
  BOOST_CHECK(*others == readings);
}

BOOST_AUTO_TEST_CASE(numbers_that_are_not_finite_come_back_as_nan) {
  temporary_folder folder;
  flow_graph w;
  write_json_lines(from(w, {part{"x", {std::nanf(""), HUGE_VALF, 1}}}), folder.file("a.jsonl"));
  must(drain(w));
  flow_graph t;
  const auto all = collect(read_json_lines<part>(t, folder.file("a.jsonl")));
  must(drain(t));
  const auto& sizes = all->at(0).sizes;
  BOOST_CHECK(sizes.size() == 3 && std::isnan(sizes[0]) && std::isnan(sizes[1]) && sizes[2] == 1);
}

BOOST_AUTO_TEST_CASE(a_text_that_is_no_utf8_does_not_spoil_a_file_of_json) {
  temporary_folder folder;
  flow_graph w;
  write_json_lines(from(w, {part{"a\xff", {}}}), folder.file("a.jsonl"));
  must(drain(w));
  flow_graph t;
  const auto all = collect(read_json_lines<part>(t, folder.file("a.jsonl")));
  must(drain(t));
  BOOST_TEST(all->at(0).name == "a\xef\xbf\xbd");
}

BOOST_AUTO_TEST_CASE(keys_that_are_no_field_and_lines_of_blanks_are_passed_over) {
  temporary_folder folder;
  put(folder.file("a.jsonl"),
      "\xef\xbb\xbf{\"x\":{\"a\":[{\"a\":5}]},\"a\":1,\"y\":[[1],{}],\"z\":null}\r\n"
      " \t\n{\"b\":2,\"a\":-0,\"w\":1e5}");
  flow_graph t;
  const auto all = collect(read_json_lines<pair_of_ints>(t, folder.file("a.jsonl")));
  must(drain(t));
  BOOST_REQUIRE_EQUAL(all->size(), 2U);
  BOOST_CHECK(all->front().a == 1 && !all->front().b && all->back().a == 0 && all->back().b == 2);
}

BOOST_AUTO_TEST_CASE(errors_of_json_name_file_line_and_key) {
  const std::string good = "{\"a\":1}\n";
  BOOST_CHECK(has(json_error<pair_of_ints>(good + "{\"a\":\"x\"}"),
                  "a.jsonl: line 2, key 'a': expected a whole number of 32 bits, found 'x'"));
  BOOST_CHECK(has(json_error<pair_of_ints>("{\"b\":1}"), "line 1, key 'a': it is missing"));
  BOOST_CHECK(has(json_error<pair_of_ints>("{\"a\":1,\"a\":1}"), "key 'a': it stands twice"));
  BOOST_CHECK(has(json_error<pair_of_ints>("{\"a\":1.0}"), "found 1.0"));
  BOOST_CHECK(has(json_error<pair_of_ints>("{\"a\":2147483648}"), "found 2147483648"));
  BOOST_CHECK(has(json_error<pair_of_ints>("{\"a\":null}"), "found null"));
  BOOST_CHECK(has(json_error<pair_of_ints>("{\"a\":[1]}"), "found a list"));
  BOOST_CHECK(has(json_error<pair_of_ints>("{\"a\":1,\"b\":true}"), "key 'b': expected a whole"));
  BOOST_CHECK(has(json_error<pair_of_ints>("[1]"), "line 1: expected an object, found a list"));
  BOOST_CHECK(has(json_error<pair_of_ints>("1"), "line 1: expected an object, found 1"));
  BOOST_CHECK(has(json_error<pair_of_ints>("{\"a\":1"), "line 1: no JSON at byte"));
  BOOST_CHECK(has(json_error<pair_of_ints>("{\"a\":1} {}"), "line 1: no JSON at byte"));
  BOOST_CHECK(has(json_error<pair_of_ints>("{\"\xff\":1}"), "line 1: no JSON at byte"));
  BOOST_CHECK(has(json_error<pair_of_ints>("{\"a\":1e999}"), "larger than those of 64 bits"));
  BOOST_CHECK(has(json_error<part>("{\"name\":\"\",\"sizes\":[1,2,1e39]}"),
                  "key 'sizes[2]': expected a number of 32 bits, found 1e39"));
  BOOST_CHECK(
      has(json_error<order>("{\"spare\":{\"name\":3}}"), "key 'spare.name': expected a text"));
}

BOOST_AUTO_TEST_CASE(a_line_that_is_no_json_leaves_the_others) {
  temporary_folder folder;
  put(folder.file("a.jsonl"), "{\"a\":1}\n{\"a\":}\n\n{\"a\":3}\n");
  flow_graph t;
  const auto all =
      collect(read_json_lines<pair_of_ints>(t, folder.file("a.jsonl"), {.on_error = skip(1)}));
  must(drain(t));
  BOOST_CHECK(all->size() == 2 && all->back().a == 3);
}

BOOST_AUTO_TEST_CASE(what_lies_too_deep_or_is_too_long_is_an_error_and_no_crash) {
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "{\"in\":[";
  BOOST_CHECK(has(json_error<tree>(deep), "more than 100 objects and lists lie in each other"));
  const auto passed_over = "{\"a\":1,\"x\":" + std::string(1 << 20, '[');
  BOOST_CHECK(has(json_error<pair_of_ints>(passed_over), "no JSON at byte"));
  BOOST_CHECK(has(json_error<pair_of_ints>("{\"a\":1}\n" + std::string((16 << 20) + 2, ' ')),
                  "line 2 has more than 16777216 bytes"));
}

BOOST_AUTO_TEST_CASE(a_file_without_lines_has_no_items) {
  temporary_folder folder;
  put(folder.file("a.jsonl"), "");
  flow_graph t;
  const auto all = collect(read_json_lines<part>(t, folder.file("a.jsonl")));
  must(drain(t));
  BOOST_CHECK(all->empty());
}

BOOST_AUTO_TEST_CASE(images_of_idx_files_and_their_labels) {
  temporary_folder folder;
  std::string pixels;
  // More than the reader has in memory at a time.
  constexpr std::uint32_t images = 20'000;
  for (std::uint32_t i = 0; i < images; ++i)
    for (int p = 0; p < 6; ++p) pixels += static_cast<char>(i * 7 + static_cast<unsigned>(p));
  std::string labels(images, '\0');
  for (std::uint32_t i = 0; i < images; ++i) labels[i] = static_cast<char>(i % 251);
  put(folder.file("images"), idx({images, 2, 3}, pixels));
  const auto packed = folder.file("labels.gz");
  const auto text = idx({images}, labels);
  const auto bytes = test::gzip(std::as_bytes(std::span(text)));
  put(packed, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  flow_graph t;
  const auto alone = collect(read_idx(t, folder.file("images")));
  const auto pairs = collect(read_idx_pairs(t, folder.file("images"), packed));
  must(drain(t));
  BOOST_REQUIRE_EQUAL(alone->size(), images);
  BOOST_REQUIRE_EQUAL(pairs->size(), images);
  for (std::uint32_t i = 0; i < images; i += 997) {
    const auto& pair = (*pairs)[i];
    BOOST_REQUIRE((pair.pixels.spec() == tensor_spec{dtype::u8, {2, 3}}));
    BOOST_CHECK_EQUAL(pair.label, i % 251);
    BOOST_CHECK_EQUAL(pair.pixels.data<std::uint8_t>()[5], (i * 7 + 5) % 256);
    BOOST_CHECK_EQUAL((*alone)[i].data<std::uint8_t>()[0], i * 7 % 256);
  }
}

BOOST_AUTO_TEST_CASE(idx_files_that_are_damaged_are_errors_of_one_line) {
  temporary_folder folder;
  const auto refused = [&](const std::string& bytes) {
    put(folder.file("images"), bytes);
    return error_of([&](flow_graph& t) { return read_idx(t, folder.file("images")); });
  };
  BOOST_CHECK(has(refused(""), "it is cut"));
  BOOST_CHECK(has(refused("text"), "images: "));
  BOOST_CHECK(has(refused(idx({2, 2, 2}, "1234567")),
                  "images: row 1 of 2 is missing or cut, the file ends at byte 23"));
  BOOST_CHECK(has(refused(idx({2, 2, 2}, "123456789")), "bytes follow the last of its 2 rows"));
  BOOST_CHECK(has(refused(idx({4'000'000'000, 0, 2}, "")), "no pixels"));
  BOOST_CHECK(has(refused(idx({1, 60'000, 60'000}, "")), "is larger than 67108864"));
  BOOST_CHECK(has(refused(idx({4'000'000'000, 4'000'000'000, 2}, "")), "more than"));
  BOOST_CHECK(has(refused(idx({2}, "12")), "found 1 dimensions"));
  put(folder.file("images"), idx({2, 1, 1}, "ab"));
  put(folder.file("labels"), idx({3}, "abc"));
  const auto pairs = [&](const std::string& labels) {
    return error_of([&](flow_graph& t) {
      return read_idx_pairs(t, folder.file("images"), folder.file(labels));
    });
  };
  BOOST_CHECK(has(pairs("labels"), "they do not belong together"));
  BOOST_CHECK(has(pairs("none"), "none: no such file"));
  put(folder.file("labels2"), idx({2}, "ab"));
  BOOST_CHECK(has(pairs("labels*"), "matches 2 files, expected one"));
}

BOOST_AUTO_TEST_CASE(tensors_of_safetensors_files) {
  temporary_folder folder;
  const std::vector<named_tensor> tensors{{"b", tensor::of({1, 2, 3}, {3})},
                                          {"a", tensor::of({4}, {})},
                                          {"c", tensor::make({dtype::i64, {0, 2}})}};
  BOOST_REQUIRE(save_safetensors(folder.file("1.safetensors"), tensors));
  BOOST_REQUIRE(save_safetensors(folder.file("3.safetensors"), {}));
  flow_graph t;
  const auto all = collect(read_safetensors(t, folder.file("*.safetensors")));
  must(drain(t));
  BOOST_REQUIRE_EQUAL(all->size(), 3U);
  BOOST_TEST((*all)[0].name == "a");
  BOOST_TEST((*all)[1].values.data<float>()[2] == 3);
  BOOST_CHECK((*all)[2].values.spec() == tensors[2].values.spec());
}

BOOST_AUTO_TEST_CASE(safetensors_files_that_are_damaged_are_left_out) {
  temporary_folder folder;
  const std::vector<named_tensor> one{{"x", tensor::of({1, 2, 3}, {3})}};
  for (const auto* name : {"a", "b", "e"}) BOOST_REQUIRE(save_safetensors(folder.file(name), one));
  fs::resize_file(folder.file("a"), fs::file_size(folder.file("a")) - 1);
  fs::resize_file(folder.file("b"), 50);
  put(folder.file("c"), "");
  put(folder.file("d"), std::string(8, '\xff') + "{}");
  flow_graph t;
  auto lost = dead_letters(t);
  const auto all =
      collect(read_safetensors(t, folder.file("*"), {.on_error = skip(), .dead_letters = lost}));
  const auto letters = collect(lost);
  must(drain(t));
  BOOST_CHECK_EQUAL(all->size(), 1U);
  BOOST_REQUIRE_EQUAL(letters->size(), 4U);
  for (const auto& l : *letters) BOOST_CHECK(has(l.reason, "not a safetensors file"));
}

BOOST_AUTO_TEST_SUITE_END()
