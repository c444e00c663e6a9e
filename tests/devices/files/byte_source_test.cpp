#include "troupe/devices/files/byte_source.hpp"

#include "tests/devices/files/packed_bytes.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <random>

using namespace troupe;
using namespace troupe::test;

namespace {

using source = std::unique_ptr<byte_source>;

source memory(const byte_vector& bytes, std::size_t piece = 1 << 20) {
  return read_memory(bytes, "data", piece);
}

byte_vector some_text(std::size_t bytes) {
  std::mt19937 bits(1);
  byte_vector out;
  while (out.size() < bytes) out.push_back(static_cast<std::byte>('a' + bits() % 7));
  return out;
}

// All of it, by reads of `piece` bytes.
result<byte_vector> drain(byte_source& s, std::size_t piece) {
  byte_vector all, part(piece);
  for (;;) {
    const auto got = s.read(part);
    if (!got) return got.error();
    if (*got == 0) break;
    all.insert(all.end(), part.begin(), part.begin() + static_cast<std::ptrdiff_t>(*got));
    BOOST_TEST(s.position() == all.size());
  }
  const auto again = s.read(part);
  BOOST_TEST((again && *again == 0));
  return all;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(byte_source)

BOOST_AUTO_TEST_CASE(BS_1_files_links_pipes_and_memory_give_all_their_bytes_and_then_the_end) {
  const temporary_folder folder;
  const auto text = some_text(300'000);
  write_file(folder.file("plain"), text);
  std::filesystem::create_symlink(folder.file("plain"), folder.file("link"));
  for (const auto* name : {"plain", "link"}) {
    auto file = open_file(folder.file(name));
    BOOST_REQUIRE(file);
    BOOST_TEST((*file)->name() == folder.file(name));
    const auto all = drain(**file, 7777);
    BOOST_REQUIRE(all);
    BOOST_TEST((*all == text));
  }
  int ends[2];
  BOOST_REQUIRE(::pipe(ends) == 0);
  BOOST_REQUIRE(::write(ends[1], "abc", 3) == 3);
  ::close(ends[1]);
  const auto pipe = read_descriptor(ends[0], "a pipe");
  const auto all = drain(*pipe, 2);
  BOOST_REQUIRE(all);
  BOOST_TEST(text_of(*all) == "abc");
  ::close(ends[0]);
  check_refused(pipe->read(std::span(*std::make_unique<std::array<std::byte, 4>>())),
                {"a pipe: cannot read on at byte 3"});
}

BOOST_AUTO_TEST_CASE(what_is_no_file_is_an_error_that_names_it) {
  const temporary_folder folder;
  BOOST_TEST((open_file(folder.file("none")).error().code() == error_code::not_found));
  check_refused(open_file(folder.path()), {folder.path(), "not a regular file"});
  BOOST_REQUIRE(::mkfifo(folder.file("fifo").c_str(), 0600) == 0);
  check_refused(open_any(folder.file("fifo")), {"fifo is not a regular file"});
}

BOOST_AUTO_TEST_CASE(members_and_frames_one_after_the_other_are_one_stream_whatever_the_pieces) {
  const auto one = some_text(200'000), two = bytes_of("second"), none = byte_vector();
  const auto zeros = byte_vector(600);
  const auto skippable = bytes_of(std::string_view("\x53\x2a\x4d\x18\x03\0\0\0xyz", 11));
  const std::pair<byte_vector, byte_vector> cases[] = {
      {gzip(one), one},
      {gzip(one) + gzip(two) + gzip(none), one + two},
      {gzip(two) + zeros, two},
      {gzip(two) + zeros + gzip(one), two + one},
      {zstd(one), one},
      {zstd(one, true) + zstd(two) + skippable + zstd(none), one + two},
      {skippable + zstd(two), two},
      {one, one},
      {two, two},
      {none, none},
      {bytes_of("\x1f"), bytes_of("\x1f")},
  };
  for (const auto& [packed, expected] : cases)
    for (const std::size_t in : {std::size_t{1}, std::size_t{13}, std::size_t{1} << 20})
      for (const std::size_t out : {std::size_t{1}, std::size_t{100}, std::size_t{1} << 20}) {
        if (in == 1 && out == 1 && packed.size() > 1000) continue;
        auto s = unpack(memory(packed, in));
        BOOST_REQUIRE(s);
        BOOST_TEST((*s)->name() == "data");
        const auto all = drain(**s, out);
        BOOST_REQUIRE_MESSAGE(all, (all ? "" : all.error().text()));
        BOOST_TEST((*all == expected));
      }
}

BOOST_AUTO_TEST_CASE(BS_3_a_stream_that_is_cut_anywhere_is_an_error_with_its_offset) {
  const auto text = some_text(3000);
  for (const auto& whole :
       {gzip(text) + gzip(bytes_of("more")), zstd(text) + zstd(bytes_of("x"))}) {
    const auto first =
        whole == gzip(text) + gzip(bytes_of("more")) ? gzip(text).size() : zstd(text).size();
    for (std::size_t n = 4; n < whole.size(); ++n) {
      const byte_vector part(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(n));
      auto s = unpack(memory(part, 50));
      BOOST_REQUIRE(s);
      const auto all = read_all(**s, 1 << 20);
      if (n == first) {
        BOOST_TEST((all && *all == text));
        continue;
      }
      check_refused(all, {"data: ", "ends early: the file is cut, at byte " + std::to_string(n)});
      BOOST_TEST((all.error().code() == error_code::usage));
      BOOST_TEST(read_all(**s, 1 << 20).error().message() == all.error().message());  // BS-1
    }
  }
}

BOOST_AUTO_TEST_CASE(BS_3_damage_and_what_follows_the_end_are_errors) {
  const auto text = some_text(3000);
  auto gzip_bad = gzip(text), zstd_bad = zstd(text);
  gzip_bad[gzip_bad.size() - 6] ^= std::byte{1};  // the checksums
  zstd_bad[zstd_bad.size() - 2] ^= std::byte{1};
  check_refused(read_all(*gunzip(memory(gzip_bad)), 1 << 20),
                {"data: the gzip data is damaged (incorrect data check), at byte"});
  check_refused(read_all(*unzstd(memory(zstd_bad)), 1 << 20),
                {"data: the zstd data is damaged", "checksum", "at byte"});
  const auto end = std::to_string(gzip(text).size());
  check_refused(read_all(*gunzip(memory(gzip(text) + bytes_of("tail"))), 1 << 20),
                {"neither zeros nor another member follow the gzip data, at byte " + end});
  check_refused(
      read_all(*gunzip(memory(gzip(text) + byte_vector(3) + bytes_of("\x1ftail"))), 1 << 20),
      {"damaged (incorrect header check)"});
  check_refused(read_all(*unzstd(memory(zstd(text) + bytes_of("tail"))), 1 << 20),
                {"the zstd data is damaged (Unknown frame descriptor), at byte"});
  check_refused(read_all(*gunzip(memory(bytes_of("plain"))), 100), {"damaged"});
  check_refused(read_all(*gunzip(memory({})), 100), {"ends early", "at byte 0"});
  check_refused(read_all(*unzstd(memory({})), 100), {"ends early", "at byte 0"});
}

BOOST_AUTO_TEST_CASE(BS_2_bombs_are_refused_by_ratio_and_size_together) {
  const auto zeros = byte_vector(8'000'000);
  const unpack_limits small{.ratio_max = 100, .bytes_max = 1'000'000};
  for (const auto& bomb : {gzip(zeros), zstd(zeros)}) {
    auto s = unpack(memory(bomb), small);
    BOOST_REQUIRE(s);
    check_refused(read_all(**s, 1 << 30),
                  {"data: unpacks to more than 100 times its size and more than 1000000 bytes"});
    BOOST_TEST((*s)->position() < 2'000'000);
    s = unpack(memory(bomb), {.ratio_max = 100, .bytes_max = 8'000'000});
    BOOST_TEST(bool(read_all(**s, 1 << 30)));
    s = unpack(memory(bomb), {.ratio_max = 1'000'000, .bytes_max = 1000});
    BOOST_TEST(bool(read_all(**s, 1 << 30)));
    s = unpack(memory(bomb));
    check_refused(read_all(**s, 4'000'000), {"data: more than 4000000 bytes, at byte 4"});
  }
}

BOOST_AUTO_TEST_CASE(BS_2_a_zstd_window_beyond_the_limit_is_refused) {
  const auto packed = zstd(some_text(3'000'000), true, 21);
  check_refused(read_all(*unzstd(memory(packed), {.window_bytes_max = 1 << 20}), 1 << 30),
                {"refers further back than window_bytes_max allows, at byte"});
  BOOST_TEST(bool(read_all(*unzstd(memory(packed), {.window_bytes_max = 1 << 21}), 1 << 30)));
}

BOOST_AUTO_TEST_CASE(files_that_others_packed_are_named) {
  const temporary_folder folder;
  run_python(folder,
             "import bz2, gzip, lzma\n"
             "open('a.xz', 'wb').write(lzma.compress(b'text'))\n"
             "open('a.bz2', 'wb').write(bz2.compress(b'text'))\n"
             "open('two.gz', 'wb').write(gzip.compress(b'one ') + gzip.compress(b'two'))\n"
             "open('BZh91', 'wb').write(b'BZh91 is a plain text')\n");
  check_refused(open_any(folder.file("a.xz")), {"a.xz: xz packed it", "at byte 0"});
  check_refused(open_any(folder.file("a.bz2")), {"a.bz2: bzip2 packed it"});
  auto two = open_any(folder.file("two.gz")), text = open_any(folder.file("BZh91"));
  BOOST_REQUIRE(two);
  BOOST_REQUIRE(text);
  BOOST_TEST(text_of(*read_all(**two, 100)) == "one two");
  BOOST_TEST(text_of(*read_all(**text, 100)) == "BZh91 is a plain text");
}

BOOST_AUTO_TEST_CASE(damaged_bytes_never_do_harm) {
  std::mt19937 bits(5);
  const auto text = some_text(2000);
  for (const auto& whole : {gzip(text), zstd(text)})
    for (int trial = 0; trial < 2000; ++trial) {
      auto bad = whole;
      for (auto n = 1 + bits() % 4; n > 0; --n)
        bad[4 + bits() % (bad.size() - 4)] = static_cast<std::byte>(bits());
      auto s = unpack(memory(bad, 1 + bits() % 500));
      if (!s) continue;
      const auto all = read_all(**s, 10'000);
      if (!all) {
        BOOST_TEST(all.error().message().starts_with("data: "));
        BOOST_TEST(all.error().message().find("at byte") != std::string::npos);
      }
    }
}

BOOST_AUTO_TEST_SUITE_END()
