#include "troupe/devices/files/npz_file.hpp"

#include "tests/devices/files/packed_bytes.hpp"
#include "troupe/devices/files/npy_file.hpp"
#include "troupe/devices/half.hpp"

#include <algorithm>
#include <random>

using namespace troupe;
using namespace troupe::test;

namespace {

std::vector<named_array> some_arrays() {
  const std::int64_t numbers[] = {1, -2, 3};
  return {{"weights", tensor::of({1, 2, 3, 4, 5, 6}, {2, 3})},
          {"../../etc/passwd", tensor::of<std::int64_t>(dtype::i64, {3}, numbers)},
          {"gr\xc3\xbc\xc3\x9f"
           "e",
           tensor::of({}, {0, 4})},
          {"scalar", tensor::of({7}, {})}};
}

void check_arrays(const result<std::vector<named_array>>& got,
                  const std::vector<named_array>& expected) {
  BOOST_REQUIRE_MESSAGE(got, (got ? "" : got.error().text()));
  BOOST_REQUIRE(got->size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    BOOST_TEST((*got)[i].first == expected[i].first);
    BOOST_TEST(((*got)[i].second.spec() == expected[i].second.spec()));
    BOOST_TEST(std::ranges::equal((*got)[i].second.bytes(), expected[i].second.bytes()));
  }
}

byte_vector good() { return *npz_bytes(some_arrays(), "a.npz"); }

std::string good_text() { return text_of(good()); }

result<std::vector<named_array>> parse(const std::string& text, const unpack_limits& limits = {}) {
  return parse_npz(bytes_of(text), "a.npz", limits);
}

std::string number(std::uint64_t n, std::size_t bytes) {
  std::string out;
  for (std::size_t i = 0; i < bytes; ++i, n >>= 8U) out += static_cast<char>(n & 0xffU);
  return out;
}

const std::string entry_mark = "PK\1\2", end_mark = "PK\5\6";

// Another number in the k-th entry of the directory.
std::string with(std::string text, std::size_t k, std::size_t at, std::uint64_t n,
                 std::size_t bytes) {
  auto entry = text.find(entry_mark);
  for (; k > 0; --k) entry = text.find(entry_mark, entry + 1);
  return text.replace(entry + at, bytes, number(n, bytes));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(npz_file)

BOOST_AUTO_TEST_CASE(NZ_4_what_is_written_is_read_again_and_names_are_just_names) {
  const temporary_folder folder;
  const auto path = folder.file("a.npz");
  const auto saved = save_npz(path, some_arrays());
  BOOST_REQUIRE_MESSAGE(saved, (saved ? "" : saved.error().text()));
  check_arrays(load_npz(path), some_arrays());
  BOOST_TEST((read_file(path) == good()));
  BOOST_TEST((good() == good()));
  check_arrays(parse_npz(*npz_bytes({}, "empty"), "empty"), {});
  auto half = tensor::make({dtype::bf16, {2}});
  half.data<bf16>()[0] = to_bf16(1), half.data<bf16>()[1] = to_bf16(-2);
  const std::vector<named_array> halves{{"h", half}};
  check_arrays(parse_npz(*npz_bytes(halves, "h"), "h"), {{"h", tensor::of({1, -2}, {2})}});
  BOOST_TEST((load_npz(folder.file("none")).error().code() == error_code::not_found));
}

BOOST_AUTO_TEST_CASE(names_that_an_archive_cannot_have_are_refused) {
  const auto t = tensor::of({1}, {1});
  for (const auto& name : {std::string(), std::string("a\0b", 3), std::string(60'001, 'x')})
    check_refused(npz_bytes(std::vector<named_array>{{name, t}}, "a.npz"),
                  {"a.npz: an array cannot be called '"});
  check_refused(npz_bytes(std::vector<named_array>{{"x", t}, {"x", t}}, "a.npz"),
                {"a.npz: two arrays are called 'x'"});
}

BOOST_AUTO_TEST_CASE(pythons_zipfile_reads_what_we_write_and_writes_what_we_read) {
  const temporary_folder folder;
  BOOST_REQUIRE(save_npz(folder.file("ours.npz"), some_arrays()));
  run_python(folder, R"(
import io, warnings, zipfile
warnings.simplefilter("ignore")  # of a name that is there twice
ours = zipfile.ZipFile('ours.npz')
assert ours.testzip() is None
files = [(i.filename, ours.read(i)) for i in ours.infolist()]
assert [n for n, _ in files] == ['weights.npy', '../../etc/passwd.npy', 'gr\u00fc\u00dfe.npy', 'scalar.npy'], files
class pipe(io.RawIOBase):  # nobody can go back in it: sizes stand behind the data
  def __init__(self, f): self.f = f
  def writable(self): return True
  def write(self, b): return self.f.write(b)
for name, how, wide, piped in [('stored', 0, False, False), ('deflated', 8, False, False), ('wide', 8, True, False),
                               ('piped', 8, False, True), ('piped_stored', 0, True, True)]:
  with open(name + '.npz', 'wb') as f, zipfile.ZipFile(pipe(f) if piped else f, 'w', how) as z:
    for n, data in files:
      with z.open(n, 'w', force_zip64=wide) as e: e.write(data)
    z.comment = b'a comment PK'
for name, how in ('bzip2', zipfile.ZIP_BZIP2), ('lzma', zipfile.ZIP_LZMA):
  with zipfile.ZipFile(name + '.npz', 'w', how) as z: z.writestr('x.npy', b'x' * 100)
with zipfile.ZipFile('text.npz', 'w') as z: z.writestr('read.me', b'x')
with zipfile.ZipFile('twice.npz', 'w') as z:
  for _ in range(2): z.writestr(*files[0])
with open('front.npz', 'wb') as f: f.write(b'#!' + open('ours.npz', 'rb').read())
)");
  for (const auto* name : {"stored", "deflated", "wide", "piped", "piped_stored"})
    check_arrays(load_npz(folder.file(std::string(name) + ".npz")), some_arrays());
  check_refused(load_npz(folder.file("bzip2.npz")),
                {"entry 'x.npy' is packed by bzip2, which is not"});
  check_refused(load_npz(folder.file("lzma.npz")), {"is packed by lzma"});
  check_refused(load_npz(folder.file("text.npz")), {"entry 'read.me' is no .npy file, at byte 0"});
  check_refused(load_npz(folder.file("twice.npz")),
                {"entry 'weights.npy' is there twice, at byte"});
  check_refused(load_npz(folder.file("front.npz")), {"something stands in front"});
}

BOOST_AUTO_TEST_CASE(NZ_1_what_the_directory_does_not_bear_out_is_refused) {
  check_refused(parse(""),
                {"a.npz: not a .npz file that can be read: no zip archive ends here", "at byte 0"});
  check_refused(parse(std::string(100, 'x')), {"no zip archive ends here"});
  const auto all = good_text();
  const auto end = all.rfind(end_mark);
  for (std::size_t n = 0; n < all.size(); ++n) BOOST_TEST(!parse(all.substr(0, n)), "cut to " << n);
  check_refused(parse(std::string(all).replace(end + 8, 4, number(5, 2) + number(5, 2))),
                {"the directory says 5 entries and has 4, at byte"});
  check_refused(parse(std::string(all).replace(end + 8, 2, number(3, 2))), {"several volumes"});
  check_refused(parse(std::string(all).replace(end + 4, 1, "\1")), {"several volumes"});
  check_refused(parse(std::string(all).replace(end + 12, 1, "\1")),
                {"its directory is not where it says"});
  check_refused(parse(with(all, 1, 42, 5, 4)),
                {"entry '../../etc/passwd.npy' is not where the directory says, at byte 5"});
  check_refused(parse(with(all, 1, 42, 0, 4)), {"has another name at its data, at byte 0"});
  check_refused(parse(with(all, 0, 28, 60000, 2)), {"the directory is damaged, at byte"});
  check_refused(parse(with(with(all, 3, 20, 100'000, 4), 3, 24, 100'000, 4)),
                {"entry 'scalar.npy' is cut, at byte"});
  // The first entry's bytes reach into the second one.
  check_refused(parse(with(with(all, 0, 20, 300, 4), 0, 24, 300, 4)),
                {"entries 'weights.npy' and '../../etc/passwd.npy' overlap, at byte"});
}

BOOST_AUTO_TEST_CASE(NZ_3_damage_and_what_is_encrypted_are_refused) {
  const auto all = good_text();
  auto damaged = all;
  damaged[all.find("PK\3\4", 4) - 1] = 'x';  // in the last element of the first array
  check_refused(parse(damaged),
                {"a.npz: entry 'weights.npy' is damaged: its checksum is wrong, at byte 0"});
  check_refused(parse(with(all, 1, 8, 1, 2)),
                {"entry '../../etc/passwd.npy' is encrypted, at byte"});
  check_refused(parse(with(all, 0, 10, 8, 2)),
                {"entry 'weights.npy' is damaged: its deflated data are not"});
  check_refused(parse(with(all, 0, 10, 77, 2)), {"is packed by method 77"});
}

BOOST_AUTO_TEST_CASE(NZ_1_sizes_in_zip64_fields_are_read) {
  const std::vector<named_array> one{{"x", tensor::of({1, 2}, {2})}};
  const auto all = text_of(*npz_bytes(one, "a"));
  const auto entry = all.find(entry_mark), end = all.rfind(end_mark);
  const auto size = all.substr(entry + 24, 4) + number(0, 4);
  auto wide =
      with(with(with(all, 0, 20, 0xffffffff, 4), 0, 24, 0xffffffff, 4), 0, 42, 0xffffffff, 4);
  const auto field = number(0xcafe, 2) + number(1, 2) + "?" + number(1, 2) + number(24, 2) + size +
                     size + number(0, 8);
  wide = with(wide, 0, 30, field.size(), 2).substr(0, end) + field;
  const auto directory_bytes = wide.size() - entry;
  const auto wide_end = "PK\6\6" + number(44, 8) + number(45, 2) + number(45, 2) + number(0, 8) +
                        number(1, 8) + number(1, 8) + number(directory_bytes, 8) + number(entry, 8);
  const auto locator = "PK\6\7" + number(0, 4) + number(wide.size(), 8) + number(1, 4);
  const auto last = end_mark + number(0, 4) + number(0xffff, 2) + number(0xffff, 2) +
                    number(0xffffffff, 4) + number(0xffffffff, 4) + number(0, 2);
  check_arrays(parse(wide + wide_end + locator + last), one);
  check_refused(parse(with(wide, 0, 30 + 16 + 5 + 5, 9, 2) + wide_end + locator + last),
                {"entry 'x.npy' says no sizes"});
  const auto lost = "PK\6\7" + number(0, 4) + number(wide.size() + 1, 8) + number(1, 4);
  check_refused(parse(wide + wide_end + lost + last), {"its zip64 end is not where it says"});
}

BOOST_AUTO_TEST_CASE(NZ_2_bombs_are_refused_before_they_are_unpacked) {
  const auto all = good_text();
  check_refused(parse(with(with(all, 0, 10, 8, 2), 0, 24, 0x7fffffff, 4)),
                {"entry 'weights.npy' says 2147483647 bytes, which its", "cannot hold, at byte 0"});
  check_refused(parse(with(all, 0, 24, 1, 4)), {"says 1 bytes, which its"});
  const temporary_folder folder;
  const std::vector<named_array> zeros{{"z", tensor::make({dtype::u8, {2'000'000}})}};
  std::ranges::fill(const_cast<tensor&>(zeros[0].second).bytes(), std::byte{});
  BOOST_REQUIRE(save_npz(folder.file("a.npz"), zeros));
  run_python(folder,
             "import zipfile\n"
             "d = zipfile.ZipFile('a.npz').read('z.npy')\n"
             "zipfile.ZipFile('b.npz', 'w', 8).writestr('z.npy', d)\n");
  check_arrays(load_npz(folder.file("b.npz")), zeros);
  check_refused(load_npz(folder.file("b.npz"), {.ratio_max = 100, .bytes_max = 1'000'000}),
                {"b.npz: unpacks to 2000128 bytes from", "as bombs do", "at byte 0"});
}

BOOST_AUTO_TEST_CASE(an_entry_that_is_no_array_is_named) {
  const temporary_folder folder;
  run_python(folder, "import zipfile\nzipfile.ZipFile('a.npz', 'w').writestr('x.npy', b'text')\n");
  check_refused(load_npz(folder.file("a.npz")),
                {"a.npz: entry 'x.npy', at byte 0: not a .npy file that can be read"});
}

BOOST_AUTO_TEST_CASE(damaged_archives_never_do_harm) {
  std::mt19937_64 bits(1);
  const auto whole = good();
  int read = 0;
  for (int k = 0; k < 5000; ++k) {
    auto bad = whole;
    for (auto n = 1 + bits() % 4; n > 0; --n)
      bad[bits() % bad.size()] = static_cast<std::byte>(bits());
    const auto got = parse_npz(bad, "a.npz");
    if (got)
      ++read;
    else
      BOOST_TEST(got.error().message().starts_with("a.npz: "));
  }
  BOOST_TEST(read > 10);  // dates, versions
}

BOOST_AUTO_TEST_SUITE_END()
