#include "troupe/devices/files/npy_file.hpp"

#include "troupe/devices/files/file_text.hpp"
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

// As they are written; what is read may have another order of bytes in front.
constexpr std::array<std::pair<std::string_view, dtype>, 7> types{{{"<f4", dtype::f32},
                                                                   {"<f8", dtype::f64},
                                                                   {"<i4", dtype::i32},
                                                                   {"<i8", dtype::i64},
                                                                   {"|u1", dtype::u8},
                                                                   {"<f2", dtype::f16},
                                                                   {"|b1", dtype::boolean}}};

// Types that arrays have and tensors lack, as NumPy calls them. Those of any size have none here.
constexpr std::array<std::pair<std::string_view, std::string_view>, 16> lacking{
    {{"i1", "int8"},
     {"i2", "int16"},
     {"u2", "uint16"},
     {"u4", "uint32"},
     {"u8", "uint64"},
     {"f12", "longdouble"},
     {"f16", "longdouble"},
     {"c8", "complex64"},
     {"c16", "complex128"},
     {"c", "complex"},
     {"O", "object"},
     {"S", "bytes"},
     {"U", "str"},
     {"M8", "datetime64"},
     {"m8", "timedelta64"},
     {"V", "void"}}};

struct npy_type {
  dtype type = dtype::f32;
  bool is_big_endian = false;
};

// The texts of NumPy: an order of bytes ('<', '>', or '|' where there is none), a kind and a size.
std::optional<npy_type> find_npy_type(std::string_view text) {
  if (text.size() < 2 || (text[0] != '<' && text[0] != '>' && text[0] != '|')) return std::nullopt;
  for (const auto& [name, type] : types)
    if (name.substr(1) == text.substr(1) && (text[0] != '|' || size_of(type) == 1))
      return npy_type{type, text[0] == '>'};
  return std::nullopt;
}

std::string lacking_npy_type(std::string_view text) {
  constexpr std::string_view have = "tensors have f32, f64, i32, i64, u8, f16 and bool";
  const auto kind = text.substr(std::min<std::size_t>(text.size(), 1));
  for (const auto& [name, called] : lacking)
    if (name.size() == 1 ? kind.starts_with(name) : kind.substr(0, kind.find('[')) == name)
      return fmt::format("its elements are of type {} ({}), which tensors lack: {}", called,
                         host::quoted(text), have);
  return fmt::format("its elements are of type {}, which is none that is known: {}",
                     host::quoted(text), have);
}

// `in` has elements whose first index runs fastest; of `out` it is the last one.
template <class T>
void from_fortran(const T* in, T* out, const shape& s) {
  // The first and the last index in tiles, so that neither side leaves the cache; all between one
  // by one.
  constexpr std::int64_t tile = 32;
  const auto rank = s.rank();
  const auto rows = s.size(0), columns = s.size(rank - 1);
  const auto between = rows == 0 || columns == 0 ? 0 : s.elements() / rows / columns;
  const auto row_step = between * columns, column_step = between * rows;
  std::array<std::int64_t, shape::rank_max> at{};
  std::int64_t from = 0;
  for (std::int64_t m = 0; m < between; ++m) {
    const T* const source = in + from * rows;
    T* const target = out + m * columns;
    for (std::int64_t r = 0; r < rows; r += tile)
      for (std::int64_t c = 0; c < columns; c += tile)
        for (auto i = r; i < std::min(rows, r + tile); ++i)
          for (auto j = c; j < std::min(columns, c + tile); ++j)
            target[i * row_step + j] = source[j * column_step + i];
    // `m` counts with the last of the middle indices fastest; `from` is where that is in Fortran's
    // order.
    for (auto d = rank - 2; d > 0 && rank > 2; --d) {
      std::int64_t step = 1;
      for (std::size_t k = 1; k < d; ++k) step *= s.size(k);
      from += step;
      if (++at[d] < s.size(d)) break;
      from -= step * at[d];
      at[d] = 0;
    }
  }
}

template <class T>
void reorder(tensor& t, bool is_big_endian, bool is_fortran) {
  T* const elements = t.data<T>();
  const auto n = t.elements();
  if (is_big_endian && sizeof(T) > 1)
    for (std::int64_t i = 0; i < n; ++i) {
      T x = 0;
      for (std::size_t b = 0; b < sizeof(T); ++b)
        x = static_cast<T>(
            x | static_cast<T>((elements[i] >> 8 * b & T{0xff}) << 8 * (sizeof(T) - 1 - b)));
      elements[i] = x;
    }
  if (!is_fortran) return;
  auto other = tensor::make(t.spec());
  from_fortran<T>(elements, other.data<T>(), t.shape());
  t = std::move(other);
}

// The header: a Python dictionary of texts, truth values and one tuple of numbers.
class header_reader {
 public:
  explicit header_reader(std::string_view text) : rest_(text) {}

  struct fields {
    std::optional<std::string> type;
    std::optional<bool> is_fortran;
    std::optional<std::vector<std::int64_t>> sizes;
  };

  // nullopt: not such a dictionary. The type "[" alone: its elements have fields.
  std::optional<fields> read() {
    fields f;
    if (!take('{')) return std::nullopt;
    while (!take('}')) {
      const auto key = text();
      if (!key || !take(':')) return std::nullopt;
      if (*key == "descr" && is_next('['))
        return fields{.type = "[", .is_fortran = {}, .sizes = {}};
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
  // Python 2 wrote u'..' for some.
  std::optional<std::string> text() {
    if (is_next('u') || is_next('b')) rest_.remove_prefix(1);
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
      if (rest_.starts_with('L')) rest_.remove_prefix(1);  // of Python 2's long integers
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
  if (*fields->type == "[") return refuse("its elements have fields, which tensors lack");
  const auto type = find_npy_type(*fields->type);
  if (!type) return refuse(lacking_npy_type(*fields->type));
  std::vector<dim> dims;
  for (const auto n : *fields->sizes) dims.push_back({n, 0});
  const auto s = shape::from(dims);
  if (!s || s->elements() > std::numeric_limits<std::int64_t>::max() / 16)
    return refuse("its sizes multiply to too many elements");
  const tensor_spec spec{type->type, *s};
  const auto data = bytes.subspan(begin + length);
  if (data.size() != spec.size_bytes())
    return refuse(fmt::format("{} has {} bytes, and the file {}, from byte {} on", to_string(spec),
                              spec.size_bytes(), data.size(), begin + length));
  auto t = tensor::make(spec);
  std::ranges::copy(data, t.bytes().begin());
  const bool is_fortran = *fields->is_fortran && s->rank() > 1;
  switch (size_of(spec.type)) {
    case 1: reorder<std::uint8_t>(t, type->is_big_endian, is_fortran); break;
    case 2: reorder<std::uint16_t>(t, type->is_big_endian, is_fortran); break;
    case 4: reorder<std::uint32_t>(t, type->is_big_endian, is_fortran); break;
    default: reorder<std::uint64_t>(t, type->is_big_endian, is_fortran); break;
  }
  return t;
}

npy_parts npy_parts_of(const tensor& t) {
  // Of bf16 the format knows nothing; f32 has all of its numbers.
  if (t.type() == dtype::bf16) {
    auto wide = tensor::make({dtype::f32, t.shape()});
    for (std::int64_t i = 0; i < t.elements(); ++i)
      wide.data<float>()[i] = to_f32(t.data<bf16>()[i]);
    return npy_parts_of(wide);
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
  return {.head = std::move(head), .elements = t};
}

std::vector<std::byte> npy_bytes(const tensor& t) {
  const auto parts = npy_parts_of(t);
  const auto head = std::as_bytes(std::span(parts.head));
  std::vector<std::byte> out(head.begin(), head.end());
  out.insert(out.end(), parts.elements.bytes().begin(), parts.elements.bytes().end());
  return out;
}

result<tensor> load_npy(const std::string& path) {
  const auto bytes = host::read_file(path, file_bytes_max, "array");
  if (!bytes) return bytes.error();
  return parse_npy(*bytes, path);
}

result<void> save_npy(const std::string& path, const tensor& t) {
  const auto parts = npy_parts_of(t);
  const std::span<const std::byte> pieces[] = {std::as_bytes(std::span(parts.head)),
                                               parts.elements.bytes()};
  return host::replace_file(path, pieces);
}

}  // namespace troupe
