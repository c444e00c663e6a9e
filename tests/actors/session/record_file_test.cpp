// Records of trainings for other tools, read back from the formats alone.

#include "troupe/actors/session/record_file.hpp"

#include "tests/devices/temporary_folder.hpp"

#include <boost/test/unit_test.hpp>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

using namespace troupe;

namespace {

const auto noon = std::chrono::system_clock::time_point(std::chrono::seconds(1'796'040'000));

struct in_a_folder {
  test::temporary_folder folder;
  std::string jsonl = folder.file("r.jsonl"), csv = folder.file("r.csv");

  static std::unique_ptr<record_file> open(const std::string& path) {
    auto opened = record_file::open(path);
    BOOST_TEST_REQUIRE(bool(opened), (opened ? "" : opened.error().text()));
    return std::move(*opened);
  }
  // Rows of these steps, each with its step as its loss.
  static void write(const std::string& path, std::uint64_t from, std::uint64_t to) {
    const auto r = open(path);
    must(r->begin_at(from));
    for (auto step = from; step < to; ++step)
      must(r->add({.step = step, .loss = static_cast<double>(step)}, noon));
    must(r->close());
  }
  static void must(const result<void>& done) {
    BOOST_TEST_REQUIRE(bool(done), (done ? "" : done.error().text()));
  }
  static std::string why_not(const std::string& path) {
    const auto opened = record_file::open(path);
    return opened ? std::string("no error") : opened.error().text();
  }
  static std::vector<std::string> lines(const std::string& path) {
    std::istringstream in(test::text_of(path));
    std::vector<std::string> out;
    for (std::string line; std::getline(in, line);) out.push_back(line);
    return out;
  }
};

constexpr const char* head =
    "step,time,loss,learning_rate,samples_per_second,recoveries,metric,value";

}  // namespace

BOOST_AUTO_TEST_SUITE(record_file)

BOOST_FIXTURE_TEST_CASE(a_line_has_what_is_known, in_a_folder) {
  for (const auto& path : {jsonl, csv}) {
    const auto r = open(path);
    must(r->begin_at(0));
    must(r->add({.step = 7,
                 .loss = 0.1f,
                 .learning_rate = 0.05,
                 .samples_per_second = 5120,
                 .recoveries = 2},
                noon + std::chrono::milliseconds(250)));
    must(r->add({.step = 8, .loss = std::nan("")}, noon));
    must(r->add({.step = 9, .metric = "a \"b\", c", .value = -0.5}, noon));
    must(r->add({.step = 9, .loss = -std::numeric_limits<double>::infinity()}, noon));
    must(r->close());
    BOOST_TEST(!r->add({.step = 10}));
  }
  BOOST_TEST(test::text_of(jsonl) ==
             "{\"step\":7,\"time\":\"2026-11-30T12:00:00.250Z\",\"loss\":0.100000001,"
             "\"learning_rate\":0.05,\"samples_per_second\":5120,\"recoveries\":2}\n"
             "{\"step\":8,\"time\":\"2026-11-30T12:00:00.000Z\",\"loss\":null,\"recoveries\":0}\n"
             "{\"step\":9,\"time\":\"2026-11-30T12:00:00.000Z\",\"recoveries\":0,\"a \\\"b\\\", "
             "c\":-0.5}\n"
             "{\"step\":9,\"time\":\"2026-11-30T12:00:00.000Z\",\"loss\":null,\"recoveries\":0}\n");
  BOOST_TEST(test::text_of(csv) == std::string(head) +
                                       "\n7,2026-11-30T12:00:00.250Z,0.100000001,0.05,5120,2,,\n"
                                       "8,2026-11-30T12:00:00.000Z,nan,,,0,,\n"
                                       "9,2026-11-30T12:00:00.000Z,,,,0,\"a \"\"b\"\", c\",-0.5\n"
                                       "9,2026-11-30T12:00:00.000Z,-inf,,,0,,\n");
}

BOOST_FIXTURE_TEST_CASE(RF_2_no_step_is_there_twice, in_a_folder) {
  for (const auto& path : {jsonl, csv}) {
    const std::size_t heads = path == csv ? 1 : 0;
    write(path, 0, 10);
    write(path, 6, 12);  // from a checkpoint of step 6
    BOOST_TEST(lines(path).size() == heads + 12);
    write(path, 12, 13);  // all of it was done
    BOOST_TEST(lines(path).size() == heads + 13);
    write(path, 3, 4);
    BOOST_TEST(lines(path).size() == heads + 4);
    write(path, 0, 2);  // another training
    BOOST_TEST(lines(path).size() == heads + 2);
  }
  BOOST_TEST(lines(csv)[0] == head);
  BOOST_TEST(lines(csv)[2].starts_with("1,"));
}

BOOST_FIXTURE_TEST_CASE(RF_2_holds_for_files_of_many_blocks, in_a_folder) {
  write(jsonl, 0, 5000);
  write(jsonl, 4321, 4400);
  const auto all = lines(jsonl);
  BOOST_TEST_REQUIRE(all.size() == 4400U);
  for (std::size_t i = 0; i < all.size(); ++i)
    BOOST_TEST_REQUIRE(all[i].starts_with("{\"step\":" + std::to_string(i) + ","), all[i]);
}

BOOST_FIXTURE_TEST_CASE(RF_1_a_part_of_a_line_is_cut_off, in_a_folder) {
  for (const auto& path : {jsonl, csv}) {
    write(path, 0, 3);
    const auto whole = test::text_of(path);
    for (std::size_t cut = 0; cut <= whole.size(); ++cut) {
      test::put(path, whole.substr(0, cut));
      {
        const auto r = open(path);
        must(r->begin_at(3));
      }
      const auto rest = test::text_of(path);
      const bool is_whole = (path == csv && rest == head + std::string("\n")) ||
                            (whole.starts_with(rest) && (rest.empty() || rest.back() == '\n'));
      BOOST_TEST_REQUIRE(is_whole, cut << ": " << rest);
    }
  }
}

BOOST_FIXTURE_TEST_CASE(RF_1_a_line_is_in_the_file_when_it_was_added, in_a_folder) {
  const auto r = open(csv);
  must(r->begin_at(0));
  for (std::uint64_t step = 0; step < 3; ++step) {
    must(r->add({.step = step, .loss = 1}, noon));
    BOOST_TEST(lines(csv).size() == 2 + step);
  }
}

BOOST_FIXTURE_TEST_CASE(RF_2_a_training_without_a_step_to_make_replaces_its_result, in_a_folder) {
  for (const auto& path : {jsonl, csv}) {
    write(path, 0, 60);
    const auto losses = test::text_of(path);
    for (const double found : {0.5, 0.75}) {
      const auto r = open(path);
      must(r->begin_at(60));
      must(r->begin_behind_losses());
      must(r->add({.step = 59, .metric = "result/a,b", .value = found}, noon));
      must(r->close());
      const auto text = test::text_of(path);
      BOOST_TEST(text.starts_with(losses));
      BOOST_TEST(std::count(text.begin(), text.end(), '\n') ==
                 1 + std::count(losses.begin(), losses.end(), '\n'));
      const auto last = lines(path).back();
      BOOST_TEST(last.ends_with(std::string(path == csv ? "," : ":") +
                                (found == 0.5 ? "0.5" : "0.75") + (path == csv ? "" : "}")),
                 last);
    }
  }
}

BOOST_FIXTURE_TEST_CASE(steps_that_a_file_lacks_are_known, in_a_folder) {
  for (const auto& path : {jsonl, csv}) {
    BOOST_TEST(!open(path)->lacking_before(300));  // it has nothing, and is a new one
    write(path, 0, 290);
    const auto r = open(path);
    const auto lacks = r->lacking_before(300);
    BOOST_TEST_REQUIRE(lacks.has_value());
    BOOST_TEST(lacks->first == 290U);
    BOOST_TEST(lacks->second == 299U);
    BOOST_TEST(!r->lacking_before(290));
    BOOST_TEST(!r->lacking_before(200));
  }
  // Of very many steps some are kept.
  {
    const auto r = open(jsonl);
    must(r->begin_at(0));
    for (std::uint64_t step = 0; step < 100; step += 10) must(r->add({.step = step, .loss = 1}));
  }
  BOOST_TEST(!open(jsonl)->lacking_before(100));
  BOOST_TEST(open(jsonl)->lacking_before(101).has_value());
}

BOOST_FIXTURE_TEST_CASE(RF_4_one_training_at_a_time_writes_a_file, in_a_folder) {
  for (const auto& path : {jsonl, csv}) {
    const auto first = open(path);
    must(first->begin_at(0));
    must(first->add({.step = 0, .loss = 1}, noon));
    BOOST_TEST(why_not(path).find("is being written by another training: give another name") !=
               std::string::npos);
    must(first->close());
    BOOST_TEST(why_not(path) == "no error");
  }
}

BOOST_FIXTURE_TEST_CASE(RF_2_holds_while_a_disk_is_full, in_a_folder) {
  for (const auto& path : {jsonl, csv}) {
    const auto r = open(path);
    must(r->begin_at(0));
    for (std::uint64_t step = 0; step < 3; ++step)
      must(r->add({.step = step, .loss = static_cast<double>(step)}, noon));
    rlimit before{};
    BOOST_TEST_REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
    auto* handler = std::signal(SIGXFSZ, SIG_IGN);
    const rlimit full{test::text_of(path).size() + 20, before.rlim_max};
    BOOST_TEST_REQUIRE(::setrlimit(RLIMIT_FSIZE, &full) == 0);
    for (std::uint64_t step = 3; step < 10; ++step)
      (void)r->add({.step = step, .loss = static_cast<double>(step)}, noon);
    // A recovery from step 3, then one from step 6.
    const auto cut = r->begin_at(3);
    for (std::uint64_t step = 3; step < 12; ++step)
      (void)r->add({.step = step, .loss = static_cast<double>(step)}, noon);
    const auto again = r->begin_at(6);
    for (std::uint64_t step = 6; step < 12; ++step)
      (void)r->add({.step = step, .loss = static_cast<double>(step)}, noon);
    ::setrlimit(RLIMIT_FSIZE, &before);
    std::signal(SIGXFSZ, handler);
    BOOST_TEST(bool(cut));
    BOOST_TEST(bool(again));
    must(r->close());
    const auto whole = folder.file(path == csv ? "whole.csv" : "whole.jsonl");
    write(whole, 0, 12);
    BOOST_TEST(test::text_of(path) == test::text_of(whole));
  }
}

BOOST_FIXTURE_TEST_CASE(RF_2_nothing_is_written_behind_what_could_not_be_cut, in_a_folder) {
  // A file that may grow but not shrink.
  const int memory = ::memfd_create("record", MFD_ALLOW_SEALING | MFD_CLOEXEC);
  BOOST_TEST_REQUIRE(memory >= 0);
  BOOST_TEST_REQUIRE(
      ::symlink(("/proc/self/fd/" + std::to_string(memory)).c_str(), jsonl.c_str()) == 0);
  const auto r = open(jsonl);
  must(r->begin_at(0));
  for (std::uint64_t step = 0; step < 10; ++step) must(r->add({.step = step, .loss = 1}, noon));
  BOOST_TEST_REQUIRE(::fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
  const auto before = test::text_of(jsonl);
  BOOST_TEST(!r->begin_at(3));
  for (std::uint64_t step = 3; step < 12; ++step) (void)r->add({.step = step, .loss = 1}, noon);
  BOOST_TEST(!r->close());
  BOOST_TEST(test::text_of(jsonl) == before);
  ::close(memory);
}

BOOST_FIXTURE_TEST_CASE(RF_3_what_a_full_disk_does_not_take_is_written_later, in_a_folder) {
  const auto r = open(jsonl);
  must(r->begin_at(0));
  rlimit before{};
  BOOST_TEST_REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  auto* handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit full{100, before.rlim_max};
  BOOST_TEST_REQUIRE(::setrlimit(RLIMIT_FSIZE, &full) == 0);
  for (std::uint64_t step = 0; step < 10; ++step) (void)r->add({.step = step, .loss = 1}, noon);
  const auto flushed = r->flush();
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  BOOST_TEST_REQUIRE(!flushed);
  BOOST_TEST(flushed.error().text().find("make room there, and what waits will be written") !=
             std::string::npos);
  BOOST_TEST(test::text_of(jsonl).size() == 100U);
  must(r->close());
  BOOST_TEST(lines(jsonl).size() == 10U);
}

BOOST_FIXTURE_TEST_CASE(nobodys_file_is_overwritten, in_a_folder) {
  BOOST_TEST(why_not(folder.file("r.txt")).find("it ends with .jsonl or .csv") !=
             std::string::npos);
  BOOST_TEST(why_not(folder.file("no/r.csv")).find("give a file in a folder that is there") !=
             std::string::npos);
  for (const auto* text : {"name,age\n1,2\n", "name", "{\"step\":\"x\"}\n", "[1]\n", "\n"}) {
    test::put(csv, text);
    test::put(jsonl, text);
    for (const auto& path : {jsonl, csv}) {
      BOOST_TEST(
          why_not(path).find("is there, and is no record of a training") != std::string::npos,
          text);
      BOOST_TEST(test::text_of(path) == text);
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
