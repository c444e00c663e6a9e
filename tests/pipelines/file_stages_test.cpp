// Sources of files and ends that make files.

#include "tests/devices/temporary_folder.hpp"
#include "troupe/devices/files/npy_file.hpp"
#include "troupe/devices/files/scratch_folder.hpp"
#include "troupe/runtime/flow/drain.hpp"
#include "troupe/runtime/flow/file_stages.hpp"

#include <boost/test/unit_test.hpp>

#include <filesystem>
#include <fstream>
#include <sstream>

using namespace troupe;
using test::put;
using test::temporary_folder;
using test::text_of;
namespace fs = std::filesystem;

namespace {

flow_totals must(result<flow_totals> r) {
  if (!r) BOOST_FAIL(r.error().text());
  return std::move(*r);
}

struct reading {
  std::string who;
  std::int64_t at = 0;
  double value = 0;
  static constexpr auto fields =
      troupe::fields<&reading::who, &reading::at, &reading::value>("who", "at", "value");
};

}  // namespace

BOOST_AUTO_TEST_SUITE(file_stages)

BOOST_AUTO_TEST_CASE(files_come_in_the_order_of_their_names) {
  temporary_folder folder;
  for (const auto* name : {"b.txt", "a.txt", "c.log", ".a.txt"}) put(folder.file(name), name);
  flow_graph t;
  const auto all = collect(map(files(t, folder.file("*.txt")), read_file{}));
  must(drain(t));
  BOOST_REQUIRE_EQUAL(all->size(), 2U);
  BOOST_TEST((*all)[0].path == folder.file("a.txt"));
  BOOST_TEST((*all)[1].bytes.size() == 5U);
}

BOOST_AUTO_TEST_CASE(a_pattern_that_matches_nothing_is_an_error_with_its_line) {
  temporary_folder folder;
  flow_graph t;
  collect(files(t, folder.file("*.txt")));
  const auto r = drain(t);
  BOOST_REQUIRE(!r);
  BOOST_CHECK(r.error().code() == error_code::not_found);
  BOOST_TEST(r.error().text().find("file_stages_test.cpp:") != std::string::npos);
  flow_graph u;
  collect(files(u, folder.file("none/*.txt")));
  BOOST_CHECK(drain(u).error().code() == error_code::not_found);
}

BOOST_AUTO_TEST_CASE(links_inside_the_folder_are_followed_and_those_out_of_it_refused) {
  temporary_folder folder;
  fs::create_directories(folder.file("data/..2026"));
  put(folder.file("data/..2026/a.txt"), "a");
  put(folder.file("secret.txt"), "s");
  fs::create_symlink("..2026/a.txt", folder.file("data/a.txt"));
  {
    flow_graph t;
    const auto all = collect(files(t, folder.file("data/*.txt")));
    must(drain(t));
    BOOST_CHECK_EQUAL(all->size(), 1U);
  }
  fs::create_symlink("../secret.txt", folder.file("data/b.txt"));
  {
    flow_graph t;
    collect(files(t, folder.file("data/*.txt")));
    const auto r = drain(t);
    BOOST_REQUIRE(!r);
    BOOST_CHECK(r.error().code() == error_code::denied);
  }
  flow_graph t;
  const auto all = collect(files(t, folder.file("data/*.txt"), {.follows_links_out = true}));
  must(drain(t));
  BOOST_CHECK_EQUAL(all->size(), 2U);
}

BOOST_AUTO_TEST_CASE(lines_of_many_files_and_a_damaged_one_is_skipped) {
  temporary_folder folder;
  put(folder.file("1.txt"), "one\ntwo\r\nthree");
  put(folder.file("2.txt"), std::string("\x1f\x8b\x08\x00garbage", 11));
  put(folder.file("3.txt"), "four\n");
  flow_graph t;
  auto lost = dead_letters(t);
  const auto all =
      collect(read_lines(t, folder.file("*.txt"), {.on_error = skip(), .dead_letters = lost}));
  const auto letters = collect(lost);
  must(drain(t));
  BOOST_TEST(*all == (std::vector<std::string>{"one", "two", "three", "four"}),
             boost::test_tools::per_element());
  BOOST_REQUIRE_EQUAL(letters->size(), 1U);
  BOOST_TEST(letters->front().label == folder.file("2.txt"));
}

BOOST_AUTO_TEST_CASE(csv_in_and_out) {
  temporary_folder folder;
  put(folder.file("in.csv"), "name,n\nx,1\n\"a,b\",2\n");
  flow_graph t;
  auto rows = map(read_csv(t, folder.file("in.csv"), {.has_header = true}),
                  [](const csv_line& r) -> result<reading> {
                    const auto* name = r.find("name");
                    const auto* n = r.find("n");
                    if (name == nullptr || n == nullptr)
                      return error(error_code::failed, "a column is missing");
                    return reading{*name, std::stoll(*n), 0.1 * std::stod(*n)};
                  });
  write_csv(rows, folder.file("out.csv"));
  write_json_lines(rows, folder.file("out.jsonl"));
  must(drain(t));
  BOOST_TEST(text_of(folder.file("out.csv")) == "who,at,value\nx,1,0.1\n\"a,b\",2,0.2\n");
  BOOST_TEST(text_of(folder.file("out.jsonl")) ==
             "{\"who\":\"x\",\"at\":1,\"value\":0.1}\n{\"who\":\"a,b\",\"at\":2,\"value\":0.2}\n");
}

BOOST_AUTO_TEST_CASE(an_empty_flow_makes_an_empty_file_with_its_names) {
  temporary_folder folder;
  flow_graph t;
  write_csv(from(t, std::vector<reading>{}), folder.file("out.csv"));
  must(drain(t));
  BOOST_TEST(text_of(folder.file("out.csv")) == "who,at,value\n");
}

BOOST_AUTO_TEST_CASE(what_fails_leaves_no_file_under_the_name) {
  temporary_folder folder;
  flow_graph t;
  auto f = map(from(t, {1, 2, 3}), [](int x) -> result<int> {
    if (x == 3) return error(error_code::failed, "no");
    return x;
  });
  write_csv(f, folder.file("out.csv"));
  BOOST_REQUIRE(!drain(t));
  BOOST_CHECK(!fs::exists(folder.file("out.csv")));
}

BOOST_AUTO_TEST_CASE(an_end_that_cannot_be_written_is_told_before_anything_is_read) {
  temporary_folder folder;
  const auto said = [&](auto end) {
    flow_graph t;
    int made = 0;
    auto f = source(t, [&made]() { return ++made < 3 ? std::optional(made) : std::nullopt; });
    write_csv(f, folder.file("fine.csv"));
    end(f);
    const auto r = drain(t);
    BOOST_TEST(!r);
    BOOST_TEST(made == 0);
    return r ? std::string() : r.error().text();
  };
  const auto has = [](const std::string& text, const std::string& what) {
    BOOST_TEST(text.find(what) != std::string::npos, text);
  };
  const auto missing = folder.file("none/out");
  has(said([&](auto f) { write_csv(f, missing); }),
      "none/out.tmp: cannot be written: No such file");
  has(said([&](auto f) { write_json_lines(f, missing); }), "none/out.tmp: cannot be written");
  has(said([&](auto f) {
        write_npy(map(f, [](int) { return tensor::make({dtype::f32, {}}); }), missing);
      }),
      "none/out.tmp: cannot be written");
  has(said([&](auto f) {
        write_files(map(f, [](int) { return file_bytes{"a", {}}; }), folder.file("none"));
      }),
      "none: no files can be written there: No such file");
  has(said([&](auto f) { write_csv(f, ""); }),
      ".tmp: cannot be written: this is no name of a file");
  fs::create_directory(folder.file("folder"));
  has(said([&](auto f) { write_csv(f, folder.file("folder")); }),
      "folder.tmp: cannot be written: there is a folder of that name");
  fs::remove(folder.file("folder"));
  BOOST_TEST(fs::is_empty(folder.path()));  // nor does the one that could be written stay
}

// Whoever may write beside it would choose what is overwritten.
BOOST_AUTO_TEST_CASE(a_link_in_the_place_of_a_file_being_made_is_not_followed) {
  temporary_folder folder;
  put(folder.file("other"), "mine");
  fs::create_symlink(folder.file("other"), folder.file("out.csv.tmp"));
  flow_graph t;
  write_csv(from(t, {1, 2}), folder.file("out.csv"));
  BOOST_TEST(!drain(t));
  BOOST_TEST(text_of(folder.file("other")) == "mine");
}

BOOST_AUTO_TEST_CASE(what_is_no_tensor_is_written_nowhere) {
  temporary_folder folder;
  flow_graph t;
  write_npy(from(t, {tensor()}), folder.file("out.npy"));
  const auto done = drain(t);
  BOOST_TEST_REQUIRE(!done);
  BOOST_TEST(done.error().text().find("an item is no tensor") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(rows_of_npy_and_back) {
  temporary_folder folder;
  auto all = tensor::make({dtype::f32, {3, 2}});
  for (int i = 0; i < 6; ++i) all.data<float>()[i] = float(i);
  BOOST_REQUIRE(save_npy(folder.file("in.npy"), all));
  flow_graph t;
  auto rows = read_npy_rows(t, folder.file("in.npy"));
  write_npy(map(rows,
                [](tensor x) {
                  auto y = tensor::make(x.spec());
                  for (int i = 0; i < 2; ++i) y.data<float>()[i] = x.data<float>()[i] * 10;
                  return y;
                }),
            folder.file("out.npy"));
  must(drain(t));
  const auto out = load_npy(folder.file("out.npy"));
  BOOST_REQUIRE(out);
  BOOST_REQUIRE(out->spec() == all.spec());
  for (int i = 0; i < 6; ++i) BOOST_CHECK_EQUAL(out->data<float>()[i], float(i) * 10);
}

BOOST_AUTO_TEST_CASE(tensors_of_different_shapes_do_not_make_one_file) {
  temporary_folder folder;
  flow_graph t;
  write_npy(
      map(from(t, {1, 2}), [](int n) { return tensor::make({dtype::f32, {std::int64_t{n}}}); }),
      folder.file("out.npy"));
  const auto r = drain(t);
  BOOST_REQUIRE(!r);
  BOOST_TEST(r.error().text().find("item 1 is f32[2], and those before it are f32[1]") !=
             std::string::npos);
}

BOOST_AUTO_TEST_CASE(watched_files_come_once_when_they_have_stopped_growing) {
  temporary_folder folder;
  put(folder.file("a.txt"), "a");
  flow_graph t;
  int seen = 0;
  // The run's clock goes on by itself where all wait for it.
  auto f = map(watch(t, folder.file("*.txt")), [&](std::string path) {
    ++seen;
    if (path.ends_with("a.txt")) put(folder.file("b.txt"), "b");
    if (path.ends_with("b.txt") && seen == 2) put(folder.file("a.txt"), "another");
    return path;
  });
  const auto all = collect(first(f, 3));
  must(drain(t));
  BOOST_TEST(*all == (std::vector<std::string>{folder.file("a.txt"), folder.file("b.txt"),
                                               folder.file("a.txt")}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_name_that_leaves_the_folder_stays_in_it) {
  temporary_folder folder;
  flow_graph t;
  write_files(from(t, {file_bytes{"../../x.txt", std::vector<std::byte>(3)}}), folder.file(""));
  must(drain(t));
  BOOST_CHECK(fs::exists(folder.file("x.txt")));
  flow_graph u;
  write_files(from(u, {file_bytes{"..", {}}}), folder.file(""));
  BOOST_CHECK(!drain(u));
}

BOOST_AUTO_TEST_CASE(a_file_that_cannot_be_read_leaves_the_others) {
  temporary_folder folder;
  fs::create_directories(folder.file("in"));
  put(folder.file("in/a.txt"), "a");
  put(folder.file("in/c.txt"), "c");
  fs::create_symlink("/etc/passwd", folder.file("in/b.txt"));
  fs::create_symlink("d.txt", folder.file("in/d.txt"));  // to itself
  flow_graph t;
  auto lost = dead_letters(t);
  const auto all =
      collect(files(t, folder.file("in/*.txt"), {.on_error = skip(), .dead_letters = lost}));
  const auto letters = collect(lost);
  must(drain(t));
  BOOST_TEST(*all == (std::vector<std::string>{folder.file("in/a.txt"), folder.file("in/c.txt")}),
             boost::test_tools::per_element());
  BOOST_REQUIRE_EQUAL(letters->size(), 2U);
  BOOST_TEST(letters->front().label == folder.file("in/b.txt"));
}

BOOST_AUTO_TEST_CASE(a_type_that_the_format_lacks_makes_no_file_without_a_head) {
  temporary_folder folder;
  flow_graph t;
  write_npy(map(from(t, {1, 2}), [](int) { return tensor::make({dtype::bf16, {2}}); }),
            folder.file("out.npy"), {.on_error = skip()});
  BOOST_CHECK_EQUAL(must(drain(t)).stages.back().skipped, 2U);
  const auto out = load_npy(folder.file("out.npy"));
  BOOST_REQUIRE(out);
  BOOST_CHECK_EQUAL(out->elements(), 0);
}

BOOST_AUTO_TEST_CASE(files_that_are_written_leave_each_other_alone) {
  temporary_folder folder;
  flow_graph t;
  const auto bytes = [](std::size_t n) { return std::vector<std::byte>(n, std::byte{7}); };
  write_files(from(t, {file_bytes{"a.tmp", bytes(3)}, file_bytes{"x/a", bytes(5)}}),
              folder.file(""));
  must(drain(t));
  BOOST_CHECK_EQUAL(fs::file_size(folder.file("a.tmp")), 3U);
  BOOST_CHECK_EQUAL(fs::file_size(folder.file("a")), 5U);
}

BOOST_AUTO_TEST_CASE(no_limit_is_one_that_ends) {
  temporary_folder folder;
  put(folder.file("a.txt"), std::string(100'000, 'a'));
  const auto all = read_file{.bytes_max = ~std::uint64_t{0}}(folder.file("a.txt"));
  BOOST_REQUIRE(all);
  BOOST_CHECK_EQUAL(all->bytes.size(), 100'000U);
}

BOOST_AUTO_TEST_SUITE_END()
