// Tensors of a model file: in fields, in raw bytes, or in a file beside it.

#include "troupe/devices/half.hpp"
#include "troupe/runtime/onnx/onnx_file.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <new>

namespace troupe::onnx {
namespace {

namespace fs = std::filesystem;

error bad(const std::string& what, std::string_view rule) {
  return {error_code::usage, fmt::format("{}: {}", what, rule)};
}

result<tensor_spec> spec_of(const onnx_format::Tensor& from, const std::string& what) {
  const auto type = element_of(from.type());
  if (!type)
    return bad(what, fmt::format("element type {} is not supported", name_of_element(from.type())));
  if (static_cast<std::size_t>(from.dims_size()) > shape::rank_max)
    return bad(what, fmt::format("{} dimensions, at most {} are supported", from.dims_size(),
                                 shape::rank_max));
  std::array<dim, shape::rank_max> dims{};
  for (int i = 0; i < from.dims_size(); ++i) {
    if (from.dims(i) < 0)
      return bad(what, fmt::format("dimension {} has size {}", i, from.dims(i)));
    dims[static_cast<std::size_t>(i)] = {from.dims(i), 0};
  }
  const auto sizes = shape::from(std::span(dims).first(static_cast<std::size_t>(from.dims_size())));
  if (!sizes || sizes->elements() > std::numeric_limits<std::int64_t>::max() / 16)
    return bad(what, "its sizes multiply to too many elements");
  return tensor_spec{*type, *sizes};
}

// Its size is what the file says: a file of holes says anything.
result<tensor> room_for(const tensor_spec& spec, const std::string& what) {
  try {
    return tensor::make(spec);
  } catch (const std::bad_alloc&) {
    return error(error_code::failed, fmt::format("{}: there is no memory for {}, {} bytes", what,
                                                 to_string(spec), spec.size_bytes()));
  }
}

template <class T, class Field>
void fill(tensor& t, const Field& from) {
  auto* to = t.data<T>();
  for (const auto x : from) *to++ = static_cast<T>(x);
}

// Elements in the field that their type says; `count` of them were found there.
result<tensor> from_fields(const onnx_format::Tensor& from, const tensor_spec& spec,
                           const std::string& what) {
  const auto counted = [&](int count) -> result<tensor> {
    if (count != spec.shape.elements())
      return bad(what, fmt::format("{} has {} elements, and the file {}", to_string(spec),
                                   spec.shape.elements(), count));
    return room_for(spec, what);
  };
  const auto of = [&](const auto& field, auto put) -> result<tensor> {
    auto t = counted(field.size());
    if (t) put(*t, field);
    return t;
  };
  switch (spec.type) {
    case dtype::f32: return of(from.reals(), [](tensor& t, const auto& f) { fill<float>(t, f); });
    case dtype::f64:
      return of(from.reals64(), [](tensor& t, const auto& f) { fill<double>(t, f); });
    case dtype::i32:
      return of(from.integers32(), [](tensor& t, const auto& f) { fill<std::int32_t>(t, f); });
    case dtype::i64:
      return of(from.integers64(), [](tensor& t, const auto& f) { fill<std::int64_t>(t, f); });
    case dtype::u8:
      return of(from.integers32(), [](tensor& t, const auto& f) { fill<std::uint8_t>(t, f); });
    case dtype::boolean:
      return of(from.integers32(), [](tensor& t, const auto& f) {
        for (int i = 0; i < f.size(); ++i) t.data<boolean>()[i] = boolean(f.Get(i) != 0);
      });
    case dtype::f16:
    case dtype::bf16:
      return of(from.integers32(), [](tensor& t, const auto& f) { fill<std::uint16_t>(t, f); });
  }
  return bad(what, "unknown element type");
}

result<tensor> from_bytes(std::string_view bytes, const tensor_spec& spec,
                          const std::string& what) {
  if (bytes.size() != spec.size_bytes())
    return bad(what, fmt::format("{} has {} bytes, and the file {}", to_string(spec),
                                 spec.size_bytes(), bytes.size()));
  auto t = room_for(spec, what);
  if (t && !bytes.empty()) std::memcpy(t->bytes().data(), bytes.data(), bytes.size());
  return t;
}

std::optional<std::uint64_t> whole_number(std::string_view text) {
  std::uint64_t n = 0;
  const auto [end, why] = std::from_chars(text.data(), text.data() + text.size(), n);
  return why == std::errc() && end == text.data() + text.size() && !text.empty() ? std::optional(n)
                                                                                 : std::nullopt;
}

bool is_below(const fs::path& path, const fs::path& root) {
  return std::mismatch(root.begin(), root.end(), path.begin(), path.end()).first == root.end();
}

// The path of a file that a model may name (OI-1). A hub's cache has a folder of names, which are
// links into a folder of contents: data whose link ends right beside the model's are the model's.
result<fs::path> inside(const data_folders& folders, const std::string& location,
                        const std::string& what) {
  if (folders.named.empty())
    return bad(what, "its data are in another file, and there is no folder to look in");
  if (location.empty() || !is_utf8(location) || location.find('\0') != std::string::npos)
    return bad(what, "its data are in another file, whose name is missing or invalid");
  const fs::path relative(location);
  const auto refuse = [&](std::string_view why) {
    return bad(what, fmt::format("external data '{}': {}", shown(location), why));
  };
  if (relative.is_absolute()) return refuse("the path must be relative to the model");
  for (const auto& part : relative)
    if (part == "..") return refuse("the path leaves the folder of the model");
  std::error_code failed;
  auto root = fs::canonical(folders.named, failed);
  if (failed) return refuse("the folder of the model cannot be looked at");
  const fs::path real = folders.real.empty() ? root : fs::path(folders.real);
  auto path = fs::canonical(root / relative, failed);
  // The model alone is a link: its data lie beside the file that it leads to.
  if (failed && real != root) root = real, path = fs::canonical(root / relative, failed);
  if (failed)
    return error(error_code::not_found,
                 fmt::format("{}: external data '{}': no such file", what, shown(location)));
  if (!is_below(path, root) && path.parent_path() != real)
    return refuse("a link leads out of the folder of the model");
  if (!fs::is_regular_file(path, failed) || failed) return refuse("not a regular file");
  return path;
}

result<tensor> from_file(const onnx_format::Tensor& from, const tensor_spec& spec,
                         const std::string& what, const data_folders& folders) {
  std::string location;
  std::uint64_t offset = 0, length = spec.size_bytes();
  for (const auto& e : from.external()) {
    if (e.key() == "location") location = e.text();
    for (const auto& [key, to] : {std::pair("offset", &offset), std::pair("length", &length)}) {
      if (e.key() != key) continue;
      const auto n = whole_number(e.text());
      if (!n)
        return bad(what, fmt::format("external data: {} is '{}', which is no number", key,
                                     shown(e.text())));
      *to = *n;
    }
  }
  const auto path = inside(folders, location, what);
  if (!path) return path.error();
  std::error_code failed;
  const auto size = fs::file_size(*path, failed);
  if (length != spec.size_bytes())
    return bad(what, fmt::format("{} has {} bytes, but its external data have {}", to_string(spec),
                                 spec.size_bytes(), length));
  if (failed || offset > size || length > size - offset)
    return bad(what, fmt::format("external data '{}': bytes {} to {} lie beyond its end, {}",
                                 shown(location), offset, offset + length, size));
  auto t = room_for(spec, what);
  if (!t) return t;
  std::ifstream in(*path, std::ios::binary);
  in.seekg(static_cast<std::streamoff>(offset));
  in.read(reinterpret_cast<char*>(t->bytes().data()), static_cast<std::streamsize>(length));
  if (!in) return bad(what, fmt::format("external data '{}' cannot be read", shown(location)));
  return t;
}

}  // namespace

std::optional<dtype> element_of(std::int64_t type) noexcept {
  switch (type) {
    case 1: return dtype::f32;
    case 2: return dtype::u8;
    case 6: return dtype::i32;
    case 7: return dtype::i64;
    case 9: return dtype::boolean;
    case 10: return dtype::f16;
    case 11: return dtype::f64;
    case 16: return dtype::bf16;
    default: return std::nullopt;
  }
}

std::string name_of_element(std::int64_t type) {
  static constexpr std::array<std::string_view, 29> names{
      "undefined",      "float32",    "uint8",          "int8",       "uint16",    "int16",
      "int32",          "int64",      "string",         "bool",       "float16",   "float64",
      "uint32",         "uint64",     "complex64",      "complex128", "bfloat16",  "float8e4m3fn",
      "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz", "uint4",      "int4",      "float4e2m1",
      "float8e8m0",     "uint2",      "int2",           "float6e2m3", "float6e3m2"};
  return type >= 0 && type < std::ssize(names) ? std::string(names[static_cast<std::size_t>(type)])
                                               : fmt::format("{} (unknown)", type);
}

std::optional<narrow_type> narrow_of(std::int64_t type) noexcept {
  switch (type) {
    case 3: return narrow_type{8, true};
    case 4: return narrow_type{16, false};
    case 5: return narrow_type{16, true};
    case 21: return narrow_type{4, false};
    case 22: return narrow_type{4, true};
    default: return std::nullopt;
  }
}

std::int64_t narrow_by_name(std::string_view name) {
  for (const std::int64_t type : {3, 4, 5, 21, 22})
    if (name_of_element(type) == name) return type;
  return 0;
}

namespace {

result<tensor> take_known(onnx_format::Tensor& from, const tensor_spec& spec,
                          const std::string& what, const data_folders& folders) {
  if (from.has_segment()) return bad(what, "tensors in segments are not supported");
  if (from.location() != 0 && from.location() != 1)
    return bad(what, fmt::format("there is no data location {}", from.location()));
  if (from.location() == 1) return from_file(from, spec, what, folders);
  if (!from.has_raw()) return from_fields(from, spec, what);
  const std::unique_ptr<std::string> raw(from.release_raw());  // its memory goes with it
  return from_bytes(*raw, spec, what);
}

// Number i of those that lie side by side, the lower bits first.
std::int32_t number_at(std::span<const std::byte> bytes, std::size_t i, narrow_type t) {
  std::uint32_t n = 0;
  if (t.bits == 16)
    n = std::to_integer<std::uint32_t>(bytes[2 * i]) |
        std::to_integer<std::uint32_t>(bytes[2 * i + 1]) << 8U;
  else if (t.bits == 8)
    n = std::to_integer<std::uint32_t>(bytes[i]);
  else
    n = std::to_integer<std::uint32_t>(bytes[i / 2]) >> (i % 2 * 4) & 15U;
  const bool is_negative = t.is_signed && (n >> (t.bits - 1) & 1U) != 0;
  return static_cast<std::int32_t>(n) - (is_negative ? 1 << t.bits : 0);
}

// Whole numbers of few bits, as i32.
result<tensor> take_narrow(onnx_format::Tensor& from, narrow_type t, const std::string& what,
                           const data_folders& folders) {
  from.set_type(6);
  const auto spec = spec_of(from, what);
  if (!spec) return spec.error();
  const bool are_fields = from.location() == 0 && !from.has_raw();
  if (are_fields && t.bits >= 8) {
    auto taken = take_known(from, *spec, what, folders);
    if (!taken) return taken;
    for (std::int64_t i = 0; i < taken->elements(); ++i)
      if (const auto x = taken->data<std::int32_t>()[i]; x < t.least() || x > t.most())
        return bad(what, fmt::format("its element {} is {}, expected {} to {}", i, x, t.least(),
                                     t.most()));
    return taken;
  }
  const auto n = spec->shape.elements();
  const auto size = t.bits == 16 ? 2 * n : t.bits == 8 ? n : (n + 1) / 2;
  const auto sizes = shape::from(std::array{dim{size, 0}});
  if (!sizes) return bad(what, "its sizes multiply to too many elements");
  const auto bytes = take_known(from, {dtype::u8, *sizes}, what, folders);
  if (!bytes) return bytes;
  auto out = room_for(*spec, what);
  if (!out) return out;
  for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i)
    out->data<std::int32_t>()[i] = number_at(bytes->bytes(), i, t);
  return out;
}

}  // namespace

result<tensor> take_tensor(onnx_format::Tensor& from, const std::string& what,
                           const data_folders& folders, std::int64_t* narrow) {
  if (const auto t = narrow_of(from.type()); t && narrow != nullptr) {
    *narrow = from.type();
    return take_narrow(from, *t, what, folders);
  }
  const auto spec = spec_of(from, what);
  if (!spec) return spec.error();
  return take_known(from, *spec, what, folders);
}

}  // namespace troupe::onnx
