// libFuzzer over the readers of files that people bring: whatever the bytes, what is in them or an
// error of one line that names the file; and never much more memory than they have.
//
// The first byte chooses the format; then whether the rest is the file itself, or pieces that
// replace those of a genuine one; and how many bytes a source gives at a time.

#include "tests/fuzz/fuzz_input.hpp"
#include "troupe/devices/files/byte_source.hpp"
#include "troupe/devices/files/csv.hpp"
#include "troupe/devices/files/idx_file.hpp"
#include "troupe/devices/files/line_reader.hpp"
#include "troupe/devices/files/npy_file.hpp"
#include "troupe/devices/files/npz_file.hpp"
#include "troupe/devices/files/safetensors.hpp"
#include "troupe/devices/files/tar_reader.hpp"
#include "troupe/runtime/flow/field_readers.hpp"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <span>
#include <string>
#include <vector>

using namespace troupe;

namespace {

using test::check;

void check_message(const error& e) {
  check(e.message().starts_with("file: ") && e.message().find('\n') == std::string::npos);
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

// 4 KiB of input may be a 4 MiB file, which is small.
constexpr unpack_limits limits{
    .ratio_max = 1000, .bytes_max = 1 << 20, .window_bytes_max = 1 << 20};

std::unique_ptr<byte_source> source_of(const std::string& file, std::size_t piece) {
  return read_memory(bytes_of(file), "file", piece);
}

// The bytes of a source do not depend on pieces, and an error stays.
void read_packed(const std::string& file, std::size_t piece) {
  std::string first;
  for (const std::size_t in : {piece, std::size_t{1} << 20}) {
    auto s = unpack(source_of(file, in), limits);
    if (!s) return check_message(s.error());
    const auto all = read_all(**s, std::uint64_t{1} << 25);
    if (!all) {
      check_message(all.error());
      check(first.empty());
      continue;
    }
    check(all->size() <= std::max<std::size_t>(limits.bytes_max, 1001 * file.size() + 100));
    check((*s)->position() == all->size());
    if (in != piece) check(first.empty() == all->empty());
    first = text_of(*all);
  }
}

void read_lines(const std::string& file, std::size_t piece) {
  line_reader r(source_of(file, piece), 1000);
  std::size_t bytes = 0;
  for (;;) {
    const auto line = r.next();
    if (!line) return check_message(line.error());
    if (!*line) break;
    check((*line)->size() <= 1000);
    bytes += (*line)->size();
  }
  check(bytes <= file.size());
}

void read_csv(const std::string& file, std::size_t piece) {
  csv_reader r(source_of(file, piece),
               {.has_header = piece % 2 == 0, .is_ragged = piece % 3 == 0, .row_bytes_max = 1000});
  std::vector<std::vector<std::string>> rows;
  std::string text;
  for (;;) {
    const auto row = r.next();
    if (!row) {
      check_message(row.error());
      break;
    }
    if (!*row) break;
    rows.emplace_back((*row)->begin(), (*row)->end());
    text += csv_row(**row);
  }
  // What is written again is read as the same fields (CSV-1).
  csv_reader back(source_of(text, piece), {.is_ragged = true});
  for (const auto& row : rows) {
    const auto again = back.next();
    check(again && *again && std::ranges::equal(**again, row));
  }
}

void read_tar(const std::string& file, std::size_t piece) {
  tar_sample_reader samples(tar_reader(source_of(file, piece), {.skips_others = piece % 2 == 0}));
  std::size_t bytes = 0;
  for (;;) {
    const auto sample = samples.next();
    if (!sample) return check_message(sample.error());
    if (!*sample) break;
    for (const auto& [part, data] : (*sample)->parts) bytes += data.size();
  }
  check(bytes <= file.size());
}

void read_npz(const std::string& file) {
  const auto arrays = parse_npz(bytes_of(file), "file", limits);
  if (!arrays) return check_message(arrays.error());
  std::size_t bytes = 0;
  for (const auto& [name, t] : *arrays) bytes += t.size_bytes();
  check(bytes <= 1100 * file.size());
}

void read_npy(const std::string& file) {
  const auto t = parse_npy(bytes_of(file), "file");
  if (!t) return check_message(t.error());
  check(t->size_bytes() <= file.size());
  check(bool(parse_npy(npy_bytes(*t), "file")));
}

struct record {
  std::string name;
  std::int8_t n = 0;
  float x = 0;
  std::optional<bool> is;
  std::vector<record> in;
  static constexpr auto fields =
      troupe::fields<&record::name, &record::n, &record::x, &record::is, &record::in>(
          "name", "n", "x", "is", "in");
};
std::size_t records_in(const record& r) {
  std::size_t n = 1;
  for (const auto& x : r.in) n += records_in(x);
  return n;
}

void read_json(const std::string& file) {
  record r;
  const auto ok = parse_json(file, {&r, &json_type_of<record>}, "file");
  check(r.name.size() <= file.size() && records_in(r) <= file.size() + 1);
  if (!ok) {
    const auto& text = ok.error().message();
    check((text.starts_with("file: ") || text.starts_with("file, key '")) &&
          text.find('\n') == std::string::npos);
  }
}

void read_cells(const std::string& file) {
  std::int16_t n = 0;
  double x = 0;
  bool is = false;
  std::optional<char> c;
  cell_into(file, n);
  cell_into(file, x);
  cell_into(file, is);
  check(cell_into(file, c).has_value() == (file.size() > 1));
}

void read_idx(const std::string& file, std::size_t piece) {
  idx_reader r(source_of(file, piece), piece % 2 == 0 ? 3 : 1);
  std::size_t bytes = 0;
  for (;;) {
    const auto row = r.next();
    if (!row) return check_message(row.error());
    if (!*row) break;
    bytes += (*row)->size();
  }
  check(bytes < file.size());
}

// Tensor by tensor as at once, and whatever of the file is missing by then.
void read_safetensors(const std::string& file, std::size_t piece) {
  const auto all = parse_safetensors(bytes_of(file), "file");
  if (!all) check_message(all.error());
  const auto shorter = piece % 4 == 0 ? file.substr(0, file.size() - file.size() / 8) : file;
  safetensors_reader r(source_of(shorter, piece), file.size());
  for (std::size_t i = 0;; ++i) {
    const auto one = r.next();
    if (!one) {
      check(!all || shorter.size() < file.size());
      return check_message(one.error());
    }
    check(bool(all));
    if (!*one) {
      check(i == all->size());
      break;
    }
    check((*one)->name == (*all)[i].name && (*one)->values.spec() == (*all)[i].values.spec());
  }
}

std::string deflated(const std::string& text, int window_bits) {
  z_stream stream{};
  deflateInit2(&stream, 9, Z_DEFLATED, window_bits, 9, Z_DEFAULT_STRATEGY);
  std::string out(text.size() + 200, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  check(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  out.resize(out.size() - stream.avail_out);
  deflateEnd(&stream);
  return out;
}

std::string zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

std::string some_text() {
  std::string text;
  for (int i = 0; i < 300; ++i) text += std::to_string(i * i) + ", ";
  return text;
}

void seal(std::string& archive, std::size_t at) {
  archive.replace(at + 148, 8, 8, ' ');
  unsigned sum = 0;
  for (std::size_t i = at; i < at + 512; ++i) sum += static_cast<unsigned char>(archive[i]);
  for (std::size_t i = at + 153; i >= at + 148; --i, sum /= 8)
    archive[i] = static_cast<char>('0' + sum % 8);
  archive[at + 154] = '\0';
}

// The blocks that are headers have right checksums, whatever is in them.
void seal_headers(std::string& archive) {
  for (std::size_t at = 0; at + 512 <= archive.size(); at += 512)
    if (archive.compare(at + 257, 5, "ustar") == 0) seal(archive, at);
}

std::string tar_file(const std::string& name, const std::string& data, char type) {
  std::string block(512, '\0');
  block.replace(0, name.size(), name);
  auto size = data.size();
  for (std::size_t i = 134; i >= 124; --i, size /= 8) block[i] = static_cast<char>('0' + size % 8);
  block[156] = type;
  block.replace(257, 8, std::string("ustar\00000", 8));
  auto filled = data;
  filled.resize((data.size() + 511) / 512 * 512);
  return block + filled;
}

std::string npz_file() {
  return text_of(*npz_bytes(std::vector<named_array>{{"a", tensor::of({1, 2, 3, 4, 5, 6}, {2, 3})},
                                                     {"b", tensor::of({7}, {})}},
                            "file"));
}

std::string safetensors_file() {
  const std::vector<named_tensor> two{{"a", tensor::of({1, 2, 3}, {3})},
                                      {"b", tensor::of({7}, {})}};
  const auto layout = lay_out_safetensors("file", two);
  auto file = layout->head;
  for (const auto* t : layout->order) file += text_of(t->values.bytes());
  return file;
}

// A genuine file of each kind.
const std::vector<std::string>& samples() {
  static const auto all = [] {
    const auto text = some_text();
    auto tar = tar_file("pax", "18 path=long.name\n11 size=5\n", 'x') +
               tar_file("a.b", "12345", '0') + tar_file("longer", "name/a.c", 'L') +
               tar_file("c", "678", '0') + tar_file("link", "", '2') + std::string(1024, '\0');
    seal_headers(tar);
    return std::vector<std::string>{
        deflated(text, 31) + deflated("more", 31) + std::string(20, '\0'),
        zstd(text) + std::string("\x50\x2a\x4d\x18\2\0\0\0xx", 10) + zstd("more"),
        "a,b,c\n1,\"2\n\"\"\",3\r\n,,\n\"x\",y,z",
        tar,
        npz_file(),
        text_of(npy_bytes(tensor::of({1, 2, 3, 4, 5, 6}, {3, 2}))),
        "{\"name\":\"a\",\"n\":-5,\"x\":1.5e3,\"is\":null,\"in\":[{\"name\":\"\\u00e4\",\"n\":1,"
        "\"x\":0,\"in\":[]}],\"more\":[{},1]}",
        std::string("\0\0\x08\3\0\0\0\2\0\0\0\2\0\0\0\1abcd", 20),
        safetensors_file()};
  }();
  return all;
}

// Four bytes each: where, how many are taken away, how many of the input come instead.
std::string with_replaced_pieces(std::string file, std::string in) {
  for (int i = 0; i < 6 && in.size() >= 4; ++i) {
    const auto at = (static_cast<unsigned char>(in[0]) |
                     static_cast<unsigned>(static_cast<unsigned char>(in[1])) << 8U) %
                    (file.size() + 1);
    const auto put = static_cast<unsigned char>(in[3]) % 16U;
    // As many come as go, mostly: places in a file count from its beginning.
    const auto taken = in[2] % 4 == 0 ? static_cast<unsigned char>(in[2]) % 16U : put;
    in.erase(0, 4);
    file.replace(at, taken, in.substr(0, put));
    in.erase(0, std::min<std::size_t>(put, in.size()));
  }
  return file;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const auto kind = data[0] % 9U;
  const std::size_t piece = 1 + data[1] % 64U;
  std::string file(reinterpret_cast<const char*>(data) + 2, size - 2);
  if (data[0] >= 128) file = with_replaced_pieces(samples()[kind], file);
  switch (kind) {
    case 0:
    case 1: read_packed(file, piece); break;
    case 2:
      read_csv(file, piece);
      read_lines(file, piece);
      break;
    case 3:
      if (data[1] % 2 == 0) seal_headers(file);
      read_tar(file, piece);
      break;
    case 4: read_npz(file); break;
    case 5: read_npy(file); break;
    case 6:
      read_json(file);
      read_cells(file);
      break;
    case 7: read_idx(file, piece); break;
    default: read_safetensors(file, piece); break;
  }
  return 0;
}
