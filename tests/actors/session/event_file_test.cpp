// Event files for TensorBoard, read back by a reader of the test's own (support/event_reader.hpp).

#include "tests/support/event_reader.hpp"
#include "troupe/actors/session/crc32c.hpp"
#include "troupe/actors/session/event_file.hpp"
#include "troupe/devices/files/scratch_folder.hpp"

#include <boost/test/unit_test.hpp>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

using namespace troupe;
using namespace troupe::test;

namespace {

struct in_a_folder {
  std::shared_ptr<scratch_folder> scratch;
  std::string folder;

  in_a_folder() {
    auto made = scratch_folder::make("events");
    BOOST_TEST_REQUIRE(bool(made));
    scratch = std::move(*made);
    folder = scratch->path() + "/runs/1";
  }
  std::unique_ptr<event_file> open() const {
    auto opened = event_file::open(folder);
    BOOST_TEST_REQUIRE(bool(opened), (opened ? "" : opened.error().text()));
    return std::move(*opened);
  }
};

// As long as it lives, files of this process have at most so many bytes: a write beyond takes a
// part of its bytes, the next one none.
class full_disk {
 public:
  explicit full_disk(std::uint64_t bytes) {
    handler_ = std::signal(SIGXFSZ, SIG_IGN);
    BOOST_TEST_REQUIRE(::getrlimit(RLIMIT_FSIZE, &before_) == 0);
    const rlimit now{bytes, before_.rlim_max};
    BOOST_TEST_REQUIRE(::setrlimit(RLIMIT_FSIZE, &now) == 0);
  }
  ~full_disk() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int) = SIG_DFL;
};

void must(const result<void>& done) {
  BOOST_TEST_REQUIRE(bool(done), (done ? "" : done.error().text()));
}
void refuses(const result<void>& done, error_code code, const std::string& part) {
  BOOST_TEST_REQUIRE(!done);
  BOOST_TEST((done.error().code() == code), done.error().text());
  BOOST_TEST(done.error().text().find(part) != std::string::npos, done.error().text());
}

}  // namespace

BOOST_FIXTURE_TEST_SUITE(event_file, in_a_folder)

BOOST_AUTO_TEST_CASE(checksums_are_those_of_rfc_3720) {
  std::string rising, falling;
  for (int i = 0; i < 32; ++i) rising += static_cast<char>(i), falling += static_cast<char>(31 - i);
  using checksum = std::uint32_t (*)(std::string_view);
  for (const checksum of : {checksum{crc32c}, checksum{slow_crc32c}}) {
    BOOST_TEST(of("") == 0U);
    BOOST_TEST(of("123456789") == 0xe3069283U);
    BOOST_TEST(of(std::string(32, '\0')) == 0x8a9136aaU);
    BOOST_TEST(of(std::string(32, '\xff')) == 0x62a8ab43U);
    BOOST_TEST(of(rising) == 0x46dd794eU);
    BOOST_TEST(of(falling) == 0x113fdb5cU);
  }
}

BOOST_AUTO_TEST_CASE(what_is_added_is_read_back) {
  const auto at =
      troupe::event_file::clock::time_point(std::chrono::milliseconds(1'700'000'000'250));
  auto file = open();
  const auto path = file->path();
  must(file->begin_at(7));
  must(file->add_scalar("loss", 7, 0.5, at));
  must(file->add_scalar("validation/a \xc3\xa4", 300'000'000'000, -3.25, at));
  must(file->add_text("notes", 0, "node **1**\nhas died", at));
  must(file->add_text("notes", 1, "", at));
  must(file->add_text("notes", 2, "bad \xff byte\nand \x1b more", at));
  must(file->close());
  const auto events = events_of(path);
  BOOST_TEST_REQUIRE(events.size() == 7U);
  BOOST_TEST(events[0].version == "brain.Event:2");
  const auto now =
      std::chrono::duration<double>(troupe::event_file::clock::now().time_since_epoch()).count();
  BOOST_TEST(std::abs(now - events[0].wall_time) < 1000);
  BOOST_TEST((events[1].is_start && events[1].step == 7U));
  BOOST_TEST((events[2].tag == "loss" && events[2].step == 7U && events[2].value == 0.5F));
  BOOST_TEST(std::abs(events[2].wall_time - 1'700'000'000.25) < 1e-6);
  BOOST_TEST(events[3].tag == "validation/a \xc3\xa4");
  BOOST_TEST((events[3].step == 300'000'000'000U && events[3].value == -3.25F));
  BOOST_TEST((events[4].tag == "notes" && events[4].plugin == "text"));
  BOOST_TEST(events[4].text == "node **1**\nhas died");
  BOOST_TEST(events[5].text == "");
  BOOST_TEST(events[6].text == "bad ? byte\nand ? more");
}

// Bytes that TensorBoard's own messages (protobuf 7) gave for the same events.
BOOST_AUTO_TEST_CASE(bytes_are_those_that_another_writer_gives) {
  const auto at = troupe::event_file::clock::time_point(std::chrono::seconds(2));
  auto file = open();
  const auto path = file->path();
  must(file->add_scalar("a", 3, 1.0, at));
  must(file->add_text("t", 3, "x", at));
  must(file->close());
  const auto records = records_of(bytes_of_file(path));
  BOOST_TEST_REQUIRE(records.data.size() == 3U);
  const auto hex = [](const std::string& bytes) {
    std::string out;
    for (const char c : bytes)
      for (const int half : {4, 0}) out += "0123456789abcdef"[(c >> half) & 15];
    return out;
  };
  BOOST_TEST(hex(records.data[1]) == "09000000000000004010032a0a0a080a0161150000803f");
  BOOST_TEST(
      hex(records.data[2]) ==
      "09000000000000004010032a1e0a1c0a0174420b08071204120208014201784a0a0a060a04746578742002");
}

BOOST_AUTO_TEST_CASE(numbers_that_are_none_stay_what_they_are) {
  auto file = open();
  const auto path = file->path();
  const auto infinity = std::numeric_limits<double>::infinity();
  const std::vector<double> values{std::nan(""), infinity, -infinity, 1e300, -1e300, 1e-300, -0.0};
  for (std::size_t i = 0; i < values.size(); ++i) must(file->add_scalar("x", i, values[i]));
  must(file->close());
  const auto events = events_of(path);
  BOOST_TEST_REQUIRE(events.size() == 8U);
  BOOST_TEST(std::isnan(events[1].value));
  const std::vector<float> wanted{INFINITY, -INFINITY, INFINITY, -INFINITY, 0.0F, -0.0F};
  for (std::size_t i = 0; i < wanted.size(); ++i) BOOST_TEST(events[i + 2].value == wanted[i]);
  BOOST_TEST(std::signbit(events[7].value));
}

BOOST_AUTO_TEST_CASE(tags_and_texts_that_cannot_be_shown_are_refused) {
  auto file = open();
  const auto path = file->path();
  const auto bytes = std::filesystem::file_size(path);
  refuses(file->add_scalar("", 0, 1), error_code::usage, "it is empty: name what is added");
  refuses(file->add_text("", 0, "x"), error_code::usage, "it is empty");
  refuses(file->add_scalar("\xff", 0, 1), error_code::usage, "no UTF-8");
  refuses(file->add_scalar(std::string(1025, 'x'), 0, 1), error_code::usage, "at most 1024");
  refuses(file->add_text("t", 0, std::string((256 << 10) + 1, 'x')), error_code::usage,
          "a text of 262145 bytes, and at most 262144");
  must(file->add_scalar(std::string(1024, 'x'), 0, 1));
  must(file->add_text("t", 0, std::string(256 << 10, 'x')));
  BOOST_TEST(bytes == 0x10U + 9 + 15);  // the version alone was there
  must(file->close());
  must(file->close());
  refuses(file->add_scalar("x", 0, 1), error_code::usage, "is closed");
  BOOST_TEST(events_of(path).size() == 3U);
}

BOOST_AUTO_TEST_CASE(files_of_one_second_have_names_of_their_own) {
  std::vector<std::string> paths;
  for (int i = 0; i < 5; ++i) paths.push_back(open()->path());
  BOOST_TEST(files_in(folder).size() == 5U);
  const auto name = std::filesystem::path(paths.front()).filename().string();
  BOOST_TEST(name.starts_with("events.out.tfevents.1"), name);
  BOOST_TEST(name.find("." + std::to_string(::getpid())) != std::string::npos, name);
}

BOOST_AUTO_TEST_CASE(a_place_that_cannot_be_written_is_an_error) {
  const auto says = [](const std::string& at, error_code code, const std::string& part) {
    const auto opened = troupe::event_file::open(at);
    BOOST_TEST_REQUIRE(!opened);
    BOOST_TEST((opened.error().code() == code), opened.error().text());
    BOOST_TEST(opened.error().text().find(part) != std::string::npos, opened.error().text());
  };
  says("", error_code::usage, "the folder for TensorBoard is empty");
  const auto in_the_way = scratch->path() + "/file";
  std::ofstream(in_the_way) << "x";
  says(in_the_way, error_code::usage, "/file: Not a directory; give a folder");
  says(in_the_way + "/1", error_code::usage, "Not a directory; give a folder");
  says(scratch->path() + "/" + std::string(300, 'x'), error_code::usage, "too long");
  {
    const full_disk none(0);
    says(folder, error_code::failed, "make room there");
  }
  BOOST_TEST(files_in(folder).empty());
  if (::geteuid() == 0) {
    BOOST_TEST_MESSAGE("root may write everywhere: a folder without permission is not tried");
    return;
  }
  ::chmod(scratch->path().c_str(), 0500);
  says(scratch->path() + "/denied", error_code::usage, "Permission denied; give a folder");
  ::chmod(scratch->path().c_str(), 0700);
}

BOOST_AUTO_TEST_CASE(EF_1_a_file_that_ends_anywhere_is_read_up_to_there) {
  auto file = open();
  const auto path = file->path();
  for (std::uint64_t i = 0; i < 5; ++i) must(file->add_scalar("loss", i, static_cast<double>(i)));
  must(file->close());
  const auto all = bytes_of_file(path);
  const auto whole = records_of(all).data.size();
  BOOST_TEST_REQUIRE(whole == 6U);
  std::size_t most = 0;
  for (std::size_t n = 0; n <= all.size(); ++n) {
    const auto found = records_of(std::string_view(all).substr(0, n)).data.size();
    BOOST_TEST_REQUIRE((found == most || found == most + 1));
    most = found;
  }
  BOOST_TEST(most == whole);
  // And what is damaged is found.
  for (std::size_t i = 0; i < all.size(); ++i) {
    auto damaged = all;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
    BOOST_CHECK_THROW(records_of(damaged), std::runtime_error);
  }
}

BOOST_AUTO_TEST_CASE(EF_2_what_a_full_disk_does_not_take_is_written_later) {
  auto file = open();
  const auto path = file->path();
  {
    const full_disk after(std::filesystem::file_size(path) + 100);  // two records and a half
    for (std::uint64_t i = 0; i < 10; ++i)
      (void)file->add_scalar("loss", i, static_cast<double>(i));  // kept, whether it is said or not
    refuses(file->flush(), error_code::failed, "make room there");
    const auto found = records_of(bytes_of_file(path));
    BOOST_TEST((found.data.size() >= 2U && found.rest_bytes > 0));
    (void)file->add_scalar("loss", 10, 10);
    refuses(file->flush(), error_code::failed, path);
  }
  must(file->add_scalar("loss", 11, 11));
  must(file->close());
  const auto events = events_of(path);
  BOOST_TEST_REQUIRE(events.size() == 13U);
  for (std::size_t i = 0; i < 12; ++i) BOOST_TEST(events[i + 1].step == i);
}

BOOST_AUTO_TEST_CASE(EF_2_what_finds_no_room_is_left_out_whole) {
  auto file = open();
  const auto path = file->path();
  constexpr std::uint64_t count = 40'000;  // some 48 bytes each
  std::uint64_t refused = 0;
  {
    const full_disk now(std::filesystem::file_size(path) + 10);
    for (std::uint64_t i = 0; i < count; ++i)
      if (!file->add_scalar("loss", i, 1)) ++refused;
    BOOST_TEST(refused > count / 4);
    refuses(file->add_scalar("loss", count, 1), error_code::failed, path);
  }
  must(file->flush());
  must(file->add_scalar("loss", count + 1, 1));
  refuses(file->close(), error_code::failed, "lacks a part of what was added");
  const auto events = events_of(path);
  BOOST_TEST(events.size() > count / 4);
  BOOST_TEST(events.size() <= count - refused + 64);  // some calls only tried to write in vain
  BOOST_TEST(events.back().step == count + 1);
}

BOOST_AUTO_TEST_CASE(EF_3_what_was_added_waits_for_a_second_at_most) {
  auto file = open();
  const auto path = file->path();
  const auto bytes = std::filesystem::file_size(path);
  must(file->add_scalar("loss", 0, 1));
  std::this_thread::sleep_for(std::chrono::milliseconds(1010));
  must(file->flush_if_due());
  BOOST_TEST(std::filesystem::file_size(path) > bytes);
  must(file->add_scalar("loss", 1, 1));
  file.reset();  // its end writes what is left
  BOOST_TEST(events_of(path).size() == 3U);
}

BOOST_AUTO_TEST_CASE(of_very_many_numbers_fewer_and_fewer_are_kept) {
  std::uint64_t kept = 0;
  const std::uint64_t million = 1 << 20;
  for (std::uint64_t n = 0; n < 8 * million; ++n) {
    if (n == million) BOOST_TEST(kept == million);
    if (is_kept(n)) ++kept;
  }
  BOOST_TEST(kept == million + 3 * million / 2);
  BOOST_TEST(is_kept(std::uint64_t{1} << 63));
  BOOST_TEST(!is_kept(std::numeric_limits<std::uint64_t>::max()));
}

BOOST_AUTO_TEST_SUITE_END()
