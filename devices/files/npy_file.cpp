#include "troupe/devices/files/npy_file.hpp"

#include "troupe/devices/files/whole_file.hpp"
#include "troupe/devices/half.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

namespace troupe {
namespace {

constexpr std::string_view magic = "\x93NUMPY";
constexpr std::uint64_t file_bytes_max = std::uint64_t{1} << 36;
constexpr std::size_t npy_header_bytes_max = std::size_t{1} << 16;

constexpr std::array<std::pair<std::string_view, dtype>, 8> types{{{"<f4", dtype::f32},
                                                                   {"<f8", dtype::f64},
                                                                   {"<i4", dtype::i32},
                                                                   {"<i8", dtype::i64},
                                                                   {"|u1", dtype::u8},
                                                                   {"<f2", dtype::f16},
                                                                   {"|b1", dtype::boolean},
                                                                   {"<u1", dtype::u8}}};

// The header: a Python dictionary of texts, truth values and one tuple of numbers.
class header_reader {
 public:
  explicit header_reader(std::string_view text) : rest_(text) {}

  struct fields {
    std::optional<std::string> type;
    std::optional<bool> is_fortran;
    std::optional<std::vector<std::int64_t>> sizes;
  };

  // nullopt: not such a dictionary.
  std::optional<fields> read() {
    fields f;
    if (!take('{')) return std::nullopt;
    while (!take('}')) {
      const auto key = text();
      if (!key || !take(':')) return std::nullopt;
      if (*key == "descr" && !f.type && (f.type = text())) {
      } else if (*key == "fortran_order" && !f.is_fortran && (f.is_fortran = truth())) {
      } else if (*key == "shape" && !f.sizes && (f.sizes = tuple())) {
      } else {
        return std::nullopt;
      }
      if (!take(',') && !is_next('}')) return std::nullopt;
    }
    skip();
    if (!rest_.empty() || !f.type || !f.is_fortran || !f.sizes) return std::nullopt;
    return f;
  }

 private:
  void skip() { rest_.remove_prefix(std::min(rest_.find_first_not_of(" \t\n\r"), rest_.size())); }
  bool is_next(char c) {
    skip();
    return !rest_.empty() && rest_.front() == c;
  }
  bool take(char c) {
    if (!is_next(c)) return false;
    rest_.remove_prefix(1);
    return true;
  }
  std::optional<std::string> text() {
    const char quote = is_next('"') ? '"' : '\'';
    if (!take(quote)) return std::nullopt;
    const auto end = rest_.find(quote);
    if (end == std::string_view::npos || rest_.substr(0, end).find('\\') != std::string_view::npos)
      return std::nullopt;
    std::string out(rest_.substr(0, end));
    rest_.remove_prefix(end + 1);
    return out;
  }
  std::optional<bool> truth() {
    skip();
    for (const auto& [word, is_true] :
         {std::pair(std::string_view("True"), true), std::pair(std::string_view("False"), false)})
      if (rest_.starts_with(word)) {
        rest_.remove_prefix(word.size());
        return is_true;
      }
    return std::nullopt;
  }
  std::optional<std::vector<std::int64_t>> tuple() {
    std::vector<std::int64_t> all;
    if (!take('(')) return std::nullopt;
    while (!take(')')) {
      skip();
      std::int64_t n = 0;
      const auto [end, why] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), n);
      if (why != std::errc() || n < 0 || all.size() == shape::rank_max) return std::nullopt;
      all.push_back(n);
      rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
      if (!take(',') && !is_next(')')) return std::nullopt;
    }
    return all;
  }

  std::string_view rest_;
};

}  // namespace

result<tensor> parse_npy(std::span<const std::byte> bytes, std::string_view name) {
  const auto refuse = [&](std::string_view why) {
    return error(error_code::usage,
                 fmt::format("{}: not a .npy file that can be read: {}", name, why));
  };
  const std::string_view all(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (!all.starts_with(magic) || all.size() < 10) return refuse("it does not begin as one");
  const auto at = [&](std::size_t i) { return std::size_t{static_cast<unsigned char>(all[i])}; };
  const auto version = at(6);
  if (version < 1 || version > 3 || at(7) != 0)
    return refuse(fmt::format("its version is {}.{}", version, at(7)));
  const std::size_t begin = version == 1 ? 10 : 12;
  if (all.size() < begin) return refuse("its header ends early");
  const auto length = version == 1 ? at(8) + (at(9) << 8U)
                                   : at(8) + (at(9) << 8U) + (at(10) << 16U) + (at(11) << 24U);
  if (length > npy_header_bytes_max || length > all.size() - begin)
    return refuse("its header ends early");
  const auto fields = header_reader(all.substr(begin, length)).read();
  if (!fields) return refuse("its header does not say type, order and shape");
  const auto type =
      std::ranges::find(types, *fields->type, &std::pair<std::string_view, dtype>::first);
  if (type == types.end())
    return refuse(
        fmt::format("its elements are not of a type that tensors have, in little-endian order"));
  std::vector<dim> dims;
  for (const auto n : *fields->sizes) dims.push_back({n, 0});
  const auto s = shape::from(dims);
  if (!s || s->elements() > std::numeric_limits<std::int64_t>::max() / 16)
    return refuse("its sizes multiply to too many elements");
  if (*fields->is_fortran && s->rank() > 1) return refuse("its elements are in Fortran's order");
  const tensor_spec spec{type->second, *s};
  const auto data = bytes.subspan(begin + length);
  if (data.size() != spec.size_bytes())
    return refuse(fmt::format("{} has {} bytes, and the file {}", to_string(spec),
                              spec.size_bytes(), data.size()));
  auto t = tensor::make(spec);
  std::ranges::copy(data, t.bytes().begin());
  return t;
}

std::vector<std::byte> npy_bytes(const tensor& t) {
  // Of bf16 the format knows nothing; f32 has all of its numbers.
  if (t.type() == dtype::bf16) {
    auto wide = tensor::make({dtype::f32, t.shape()});
    for (std::int64_t i = 0; i < t.elements(); ++i)
      wide.data<float>()[i] = to_f32(t.data<bf16>()[i]);
    return npy_bytes(wide);
  }
  const auto type = std::ranges::find(types, t.type(), &std::pair<std::string_view, dtype>::second);
  auto header =
      fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}{}), }}", type->first,
                  fmt::join(t.shape().sizes(), ", "), t.shape().rank() == 1 ? "," : "");
  constexpr std::size_t before = 10, alignment = 64;
  header.append((alignment - (before + header.size() + 1) % alignment) % alignment, ' ');
  header += '\n';
  std::string head(magic);
  for (const auto byte :
       {std::size_t{1}, std::size_t{0}, header.size() & 0xffU, header.size() >> 8U})
    head += static_cast<char>(byte);
  head += header;
  const auto text = std::as_bytes(std::span(head));
  std::vector<std::byte> out(text.begin(), text.end());
  out.insert(out.end(), t.bytes().begin(), t.bytes().end());
  return out;
}

result<tensor> load_npy(const std::string& path) {
  const auto bytes = host::read_file(path, file_bytes_max, "array");
  if (!bytes) return bytes.error();
  return parse_npy(*bytes, path);
}

result<void> save_npy(const std::string& path, const tensor& t) {
  const auto bytes = npy_bytes(t);
  const std::span<const std::byte> pieces[] = {bytes};
  return host::replace_file(path, pieces);
}

}  // namespace troupe
