#include "troupe/devices/files/tar_reader.hpp"

#include "tests/devices/files/packed_bytes.hpp"

#include <fmt/format.h>

#include <map>
#include <random>

using namespace troupe;
using namespace troupe::test;

namespace {

void seal(std::string& block) {
  block.replace(148, 8, 8, ' ');
  unsigned sum = 0;
  for (const char c : block) sum += static_cast<unsigned char>(c);
  block.replace(148, 8, fmt::format("{:06o}", sum) + std::string("\0 ", 2));
}

// A header as v7 had it, or with `magic`.
std::string header(std::string_view name, std::size_t size, char type = '0',
                   std::string_view magic = "") {
  std::string block(512, '\0');
  block.replace(0, name.size(), name);
  block.replace(100, 8, std::string("0000644\0", 8));
  block.replace(124, 12, fmt::format("{:011o} ", size));
  block[156] = type;
  block.replace(257, magic.size(), magic);
  seal(block);
  return block;
}

std::string filled(std::string data) {
  data.resize((data.size() + 511) / 512 * 512);
  return data;
}

std::string file(std::string_view name, const std::string& data, char type = '0') {
  return header(name, data.size(), type) + filled(data);
}

std::string pax(const std::vector<std::pair<std::string, std::string>>& records, char type = 'x') {
  std::string data;
  for (const auto& [key, value] : records) {
    const auto rest = " " + key + "=" + value + "\n";
    auto length = rest.size() + 1;
    while (std::to_string(length).size() + rest.size() != length) ++length;
    data += std::to_string(length) + rest;
  }
  return file("pax", data, type);
}

const std::string end(1024, '\0');

using files = std::vector<std::pair<std::string, std::string>>;

result<files> files_of(const std::string& archive, const tar_options& options = {},
                       std::size_t piece = 1 << 20) {
  const auto bytes = bytes_of(archive);
  tar_reader r(read_memory(bytes, "a.tar", piece), options);
  files all;
  for (;;) {
    auto got = r.next();
    if (!got) {
      const auto again = r.next();
      BOOST_TEST((!again && again.error().message() == got.error().message()));
      return got.error();
    }
    if (!*got) break;
    BOOST_TEST((*got)->size == (*got)->bytes.size());
    all.emplace_back((*got)->name, text_of((*got)->bytes));
  }
  const auto again = r.next();
  BOOST_TEST((again && !*again));
  return all;
}

void check_files(const result<files>& got, const files& expected) {
  BOOST_REQUIRE_MESSAGE(got, (got ? "" : got.error().text()));
  BOOST_TEST((*got == expected));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(tar_reader)

BOOST_AUTO_TEST_CASE(TAR_1_what_pythons_tarfile_writes_is_read_in_every_format) {
  const temporary_folder folder;
  run_python(folder, R"(
import io, tarfile
names = ['a', 'folder/b.txt', 'l' * 90 + '/' + 'm' * 90, 'n' * 300 + '/o', 'gr\u00fc\u00dfe']
for name, form in ('ustar', tarfile.USTAR_FORMAT), ('gnu', tarfile.GNU_FORMAT), ('pax', tarfile.PAX_FORMAT):
  for packed in '', 'gz':
    with tarfile.open(name + '.tar' + packed, 'w:' + packed, format=form) as t:
      d = tarfile.TarInfo('folder')
      d.type = tarfile.DIRTYPE
      t.addfile(d)
      for k, n in enumerate(names):
        if name == 'ustar' and len(n) > 200: continue
        i = tarfile.TarInfo('./' + n if k == 1 else n)
        i.size = k * 400
        t.addfile(i, io.BytesIO(bytes([65 + k]) * i.size))
)");
  for (const std::string form : {"ustar", "gnu", "pax"})
    for (const std::string packed : {"", "gz"}) {
      const std::vector<std::string> names = {"a", "folder/b.txt",
                                              std::string(90, 'l') + "/" + std::string(90, 'm'),
                                              std::string(300, 'n') + "/o",
                                              "gr\xc3\xbc\xc3\x9f"
                                              "e"};
      files expected;
      for (std::size_t k = 0; k < names.size(); ++k)
        if (form != "ustar" || names[k].size() <= 200)
          expected.emplace_back(names[k], std::string(k * 400, static_cast<char>('A' + k)));
      auto source = open_any(folder.file(form + ".tar" + packed));
      BOOST_REQUIRE(source);
      const auto bytes = read_all(**source, 1 << 20);
      BOOST_REQUIRE(bytes);
      for (const std::size_t piece : {1, 511, 1 << 20})
        check_files(files_of(text_of(*bytes), {}, piece), expected);
    }
}

BOOST_AUTO_TEST_CASE(old_archives_and_sizes_in_base_256_are_read) {
  check_files(
      files_of(file("a", "old", '\0') + header("folder/", 0, '\0') + file("folder/b", "") + end),
      {{"a", "old"}, {"folder/b", ""}});
  auto block = header("large", 0);
  block.replace(124, 12, std::string("\x80\0\0\0\0\0\0\0\0\0\0\x03", 12));
  seal(block);
  check_files(files_of(block + filled("abc") + end), {{"large", "abc"}});
  block.replace(124, 12, std::string("\x80\x01\0\0\0\0\0\0\0\0\0\x03", 12));
  seal(block);
  check_refused(files_of(block + filled("abc") + end),
                {"a.tar: entry 'large' has a size that is no number, or too large, at byte 0"});
  block.replace(124, 12, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff");
  seal(block);
  check_refused(files_of(block + end), {"entry 'large' has a size that is no number"});
  // GNU's other fields lie where POSIX has the folder of a name.
  auto gnu = header("g", 0, '0', std::string_view("ustar  \0", 8));
  gnu.replace(345, 5, "12345");
  seal(gnu);
  auto posix = header("p", 0, '0',
                      std::string_view("ustar\0"
                                       "00",
                                       8));
  posix.replace(345, 5, "in/to");
  seal(posix);
  check_files(files_of(gnu + posix + end), {{"g", ""}, {"in/to/p", ""}});
}

BOOST_AUTO_TEST_CASE(pax_headers_give_names_and_sizes_of_the_next_entry_alone) {
  check_files(files_of(pax({{"comment", "x"}}, 'g') +
                       pax({{"path", "n\nm"}, {"size", "3"}, {"mtime", "1.5"}}) +
                       header("short", 0) + filled("abc") + file("b", "x") + end),
              {{"n\nm", "abc"}, {"b", "x"}});
  check_refused(files_of(pax({{"path", "x"}}, 'g') + file("a", "") + end),
                {"sets the path of all entries, at byte 0"});
  check_refused(files_of(pax({{"size", "x"}}) + file("a", "") + end), {"a size that is no number"});
  for (const std::string bad :
       {"5 a=b\n", "7 a=b\n", "6 abc\n", "x", "99999999999999999999999 a=b\n", "6 a=bc"})
    check_refused(files_of(file("pax", bad, 'x') + file("a", "") + end),
                  {"entry 'pax' is a pax header that is malformed, at byte 0"});
  check_refused(files_of(pax({{"path", "a"}}) + end), {"an entry that does not follow"});
  check_refused(files_of(header("pax", 2 << 20, 'x') + end),
                {"has 2097152 bytes, and 1048576 are"});
}

BOOST_AUTO_TEST_CASE(TAR_1_links_devices_and_names_that_lead_out_are_refused_or_passed_over) {
  const std::tuple<std::string, std::string, std::string> cases[] = {
      {header("l", 5, '1'), "'l'", "is a hard link"},
      {header("l", 0, '2'), "'l'", "is a symbolic link"},
      {header("d", 0, '3'), "'d'", "is a device"},
      {header("d", 0, '4'), "'d'", "is a device"},
      {header("p", 0, '6'), "'p'", "is a pipe"},
      {file("z", "abc", 'Z'), "'z'", "is of type 'Z', which is not read"},
      {file("/etc/passwd", "abc"), "'/etc/passwd'", "has an absolute name"},
      {file("a/../../b", "abc"), "'a/../../b'", "leads out of its folder"},
      {file("..", "abc"), "'..'", "leads out of its folder"},
      {file(".//..", "abc"), "'..'", "leads out of its folder"},
      {file("", "abc"), "''", "has no name"},
      {pax({{"path", std::string("a\0b", 3)}}) + file("a", "x"), "'a?b'", "has a zero in its name"},
  };
  for (const auto& [entry, name, why] : cases) {
    const auto archive = file("first", "1") + entry + file("..last", "2") + end;
    const auto at = archive.size() - 3 * 512 - (entry.size() - (name == "'a?b'" ? 1024 : 0)) - 512;
    const auto got = files_of(archive);
    check_refused(got, {"a.tar: entry " + name, why, "at byte " + std::to_string(at)});
    BOOST_TEST((got.error().code() == error_code::usage));
    check_files(files_of(archive, {.skips_others = true}), {{"first", "1"}, {"..last", "2"}});
  }
}

BOOST_AUTO_TEST_CASE(TAR_2_what_would_be_misread_is_always_refused) {
  const tar_options skips{.skips_others = true};
  auto damaged = file("a", "abc") + end;
  damaged[3] = 'x';
  check_refused(files_of(damaged, skips), {"a header's checksum is wrong", "at byte 0"});
  check_refused(files_of(file("a", "abc") + std::string(512, 'x') + end, skips),
                {"checksum is wrong", "at byte 1024"});
  check_refused(files_of(header("s", 0, 'S') + end, skips), {"entry 's' is a sparse file"});
  check_refused(files_of(pax({{"GNU.sparse.major", "1"}}) + file("s", "") + end, skips),
                {"entry 's' is a sparse file"});
  check_refused(files_of(header("m", 0, 'M') + end, skips), {"several volumes"});
  check_refused(files_of(file("a", "") + end + file("b", "") + end, skips),
                {"the archive ends, and something follows, at byte 1536"});
  check_refused(files_of("", skips), {"no tar archive, at byte 0"});
  check_files(files_of(std::string(512, '\0')), {});
  check_files(files_of(file("a", "x") + std::string(10240, '\0')), {{"a", "x"}});
}

BOOST_AUTO_TEST_CASE(TAR_2_an_archive_that_is_cut_anywhere_is_an_error) {
  const auto whole = pax({{"path", "long"}}) + file("a", "abc") + file("b", std::string(600, 'x'));
  for (std::size_t n = 0; n < whole.size(); n += n % 512 < 508 ? 7 : 1) {
    const auto got = files_of(whole.substr(0, n));
    BOOST_REQUIRE_MESSAGE(!got, "cut to " << n);
    BOOST_TEST(got.error().message().starts_with("a.tar: "));
  }
  check_refused(files_of(whole), {"the archive has no end: the file is cut, at byte 3584"});
  const auto packed = gzip(bytes_of(whole + end));
  troupe::tar_reader r(gunzip(read_memory(std::span(packed).first(packed.size() - 1), "a.tgz")));
  BOOST_TEST(bool(r.next()));
  BOOST_TEST(bool(r.next()));
  check_refused(r.next(), {"a.tgz: the gzip data ends early"});
}

BOOST_AUTO_TEST_CASE(TAR_3_sizes_that_are_said_take_no_memory) {
  check_refused(files_of(header("a", std::size_t{1} << 30) + "abc"),
                {"entry 'a' has 1073741824 bytes, and 3 are there: it is cut, at byte 0"});
  check_refused(files_of(file("a", "abcd") + end, {.entry_bytes_max = 3}),
                {"entry 'a' has 4 bytes, and 3 are allowed"});
  check_files(files_of(file("a", std::string(1'000'000, 'x')) + end),
              {{"a", std::string(1'000'000, 'x')}});
}

BOOST_AUTO_TEST_CASE(TAR_4_neighbours_with_one_key_are_a_sample) {
  const auto samples = [](const std::string& archive, const tar_sample_limits& limits = {}) {
    const auto bytes = bytes_of(archive);
    tar_sample_reader r(troupe::tar_reader(read_memory(bytes, "s.tar")), limits);
    std::string all;
    for (;;) {
      const auto got = r.next();
      if (!got) return result<std::string>(got.error());
      if (!*got) return result<std::string>(all);
      all += (*got)->key + ":";
      for (const auto& [part, data] : (*got)->parts) all += " " + part + "=" + text_of(data);
      all += "\n";
    }
  };
  const auto got = samples(file("x.d/1.jpg", "a") + file("x.d/1.seg.png", "b") +
                           file("README", "?") + file("x.d/1.cls", "3") + file("x.d/.hidden", "?") +
                           file("2.cls", "4") + file("x.d/1.cls", "5") + end);
  BOOST_REQUIRE_MESSAGE(got, (got ? "" : got.error().text()));
  BOOST_TEST(*got == "x.d/1: jpg=a seg.png=b cls=3\n2: cls=4\nx.d/1: cls=5\n");
  BOOST_TEST(samples(end)->empty());
  check_refused(samples(file("1.a", "") + file("1.a", "") + end),
                {"s.tar: sample '1' has a part 'a' twice, at byte 512"});
  check_refused(samples(file("1.a", "ab") + file("1.b", "c") + end, {.sample_bytes_max = 2}),
                {"has more than 2 bytes, at byte 1024"});
  check_refused(samples(file("1.a", "") + file("1.b", "") + end, {.parts_max = 1}),
                {"has more than 1 parts"});
  check_refused(samples(file("1.a", "x")), {"the archive has no end"});
}

BOOST_AUTO_TEST_CASE(damaged_archives_never_do_harm) {
  std::mt19937 bits(9);
  const auto whole = pax({{"path", "long"}, {"size", "3"}}) + file("a", "abc") +
                     file("L", "name", 'L') + file("b", std::string(600, 'x')) + end;
  for (int trial = 0; trial < 3000; ++trial) {
    auto bad = whole;
    for (auto n = 1 + bits() % 4; n > 0; --n) bad[bits() % bad.size()] = static_cast<char>(bits());
    for (std::size_t at = 0; at + 512 <= bad.size(); at += 512)
      if (bits() % 2 == 0 && whole[at + 148] == '0') {
        auto block = bad.substr(at, 512);
        seal(block);
        bad.replace(at, 512, block);
      }
    const auto got = files_of(bad, {.skips_others = bits() % 2 == 0});
    if (!got) BOOST_TEST(got.error().message().starts_with("a.tar: "));
  }
}

BOOST_AUTO_TEST_SUITE_END()
