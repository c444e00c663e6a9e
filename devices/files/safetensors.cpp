#include "troupe/devices/files/safetensors.hpp"

#include "troupe/devices/files/json_depth.hpp"
#include "troupe/devices/files/whole_file.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>

namespace troupe {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

constexpr std::uint64_t json_bytes_max = 100'000'000;  // as the reference implementation
constexpr std::size_t header_depth_max = 3;            // the header, a tensor, its shape
constexpr std::uint64_t whole_bytes_max = std::uint64_t{1} << 40;
// Of the format, beside the names of tensors.
constexpr std::string_view metadata_key = "__metadata__";
constexpr std::pair<dtype, std::string_view> dtype_names[] = {
    {dtype::f32, "F32"}, {dtype::f64, "F64"}, {dtype::i32, "I32"},   {dtype::i64, "I64"},
    {dtype::u8, "U8"},   {dtype::f16, "F16"}, {dtype::bf16, "BF16"}, {dtype::boolean, "BOOL"}};

std::string_view name_of(dtype type) noexcept {
  for (const auto& [t, text] : dtype_names)
    if (t == type) return text;
  return "";
}

std::optional<dtype> dtype_named(std::string_view name) noexcept {
  for (const auto& [t, text] : dtype_names)
    if (text == name) return t;
  return std::nullopt;
}

std::vector<const named_tensor*> in_order_of_names(std::span<const named_tensor> tensors) {
  std::vector<const named_tensor*> sorted;
  for (const auto& t : tensors) sorted.push_back(&t);
  std::sort(sorted.begin(), sorted.end(),
            [](const auto* a, const auto* b) { return a->name < b->name; });
  return sorted;
}

// `what` may hold names of the file, which may hold anything: one line, whatever they do.
error unreadable(std::string_view name, std::string what) {
  for (auto& c : what)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  return {error_code::usage,
          fmt::format("{}: not a safetensors file that can be read: {}", name, what)};
}

// Of the header, which fits into the file.
result<std::uint64_t> header_length(std::span<const std::byte> begin, std::uint64_t file_bytes,
                                    std::string_view name) {
  std::uint64_t length = 0;
  if (begin.size() < sizeof length)
    return unreadable(name, fmt::format("it has {} bytes", begin.size()));
  std::memcpy(&length, begin.data(), sizeof length);
  if (file_bytes < sizeof length || length > file_bytes - sizeof length || length > json_bytes_max)
    return unreadable(name,
                      fmt::format("a header of {} bytes in a file of {}", length, file_bytes));
  return length;
}

// One tensor of the header; offsets as they stand there. Everything in it may be of any type and
// size.
result<safetensors_entry> parse_entry(const std::string& tensor_name, const nlohmann::json& row,
                                      std::string_view file) {
  const auto wrong = [&](std::string_view what) {
    return unreadable(file, fmt::format("tensor \"{}\": {}", tensor_name, what));
  };
  if (!row.is_object() || !row.contains("dtype") || !row.contains("shape") ||
      !row.contains("data_offsets"))
    return wrong("expected dtype, shape and data_offsets");
  const auto &type = row["dtype"], &sizes = row["shape"], &offsets = row["data_offsets"];
  const auto known =
      type.is_string() ? dtype_named(type.get_ref<const std::string&>()) : std::nullopt;
  if (!known) return wrong("expected a dtype of F32, F64, F16, BF16, I32, I64, U8 or BOOL");
  if (!sizes.is_array() || !offsets.is_array() || offsets.size() != 2)
    return wrong("expected an array of sizes and two data_offsets");
  std::vector<dim> dims;
  for (const auto& n : sizes) {
    if (!n.is_number_unsigned() || n.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX))
      return wrong("sizes are whole numbers");
    dims.push_back({n.get<std::int64_t>(), 0});
  }
  const auto s = shape::from(dims);
  if (!s) return wrong("a rank or size that no tensor can have");
  if (!offsets[0].is_number_unsigned() || !offsets[1].is_number_unsigned())
    return wrong("offsets are whole numbers");
  safetensors_entry e{
      .name = tensor_name, .spec = {*known, *s}, .begin = offsets[0], .end = offsets[1]};
  const auto elements = static_cast<std::uint64_t>(s->elements());
  if (e.end < e.begin || (e.end - e.begin) / size_of(*known) != elements ||
      (e.end - e.begin) % size_of(*known) != 0)
    return wrong(fmt::format("{} bytes do not hold {}", e.end < e.begin ? 0 : e.end - e.begin,
                             to_string(e.spec)));
  return e;
}

}  // namespace

result<void> can_save_safetensors(const std::string& path) {
  const auto place = host::replaceable(path);
  if (!place) return place.error();
  return {};
}

result<safetensors_layout> lay_out_safetensors(std::string_view path,
                                               std::span<const named_tensor> tensors) {
  const auto sorted = in_order_of_names(tensors);
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  std::uint64_t offset = 0;
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    const auto& t = *sorted[i];
    if (i > 0 && sorted[i - 1]->name == t.name)
      return error(error_code::usage,
                   fmt::format("cannot save {}: two tensors are named \"{}\"", path, t.name));
    if (t.name == metadata_key)
      return error(error_code::usage,
                   fmt::format("cannot save {}: no tensor may be named \"{}\"", path, t.name));
    const auto sizes = t.values.shape().sizes();
    const auto end = offset + t.values.size_bytes();
    header[t.name] = {{"dtype", name_of(t.values.type())},
                      {"shape", std::vector<std::int64_t>(sizes.begin(), sizes.end())},
                      {"data_offsets", {offset, end}}};
    offset = end;
  }
  auto text = header.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  text.resize((text.size() + 8 + 63) / 64 * 64 - 8, ' ');
  const std::uint64_t length = text.size();
  std::string head(sizeof length, '\0');
  std::memcpy(head.data(), &length, sizeof length);
  return safetensors_layout{head + text, sorted};
}

result<void> save_safetensors(const std::string& path, std::span<const named_tensor> tensors) {
  const auto layout = lay_out_safetensors(path, tensors);
  if (!layout) return layout.error();
  std::vector<std::span<const std::byte>> pieces{std::as_bytes(std::span(layout->head))};
  for (const auto* t : layout->order) pieces.push_back(t->values.bytes());
  return host::replace_file(path, pieces);
}

result<std::vector<safetensors_entry>> parse_safetensors_entries(std::span<const std::byte> bytes,
                                                                 std::string_view name) {
  return parse_safetensors_entries(bytes, bytes.size(), name);
}

result<std::vector<safetensors_entry>> parse_safetensors_entries(std::span<const std::byte> begin,
                                                                 std::uint64_t file_bytes,
                                                                 std::string_view name) {
  const auto header_bytes = header_length(begin, file_bytes, name);
  if (!header_bytes) return header_bytes.error();
  const auto length = *header_bytes;
  expects(begin.size() - sizeof length >= length, "the beginning of a file has its header");
  const auto text =
      std::string_view(reinterpret_cast<const char*>(begin.data()) + sizeof length, length);
  if (!is_shallow_json(text, header_depth_max))
    return unreadable(name, fmt::format("its header is nested more than {} levels deep: it is an "
                                        "object of tensors, and each one has lists of numbers",
                                        header_depth_max));
  const auto header = nlohmann::json::parse(text, nullptr, false);
  if (!header.is_object()) return unreadable(name, "its header is no JSON object of tensors");
  const auto data_bytes = file_bytes - sizeof length - length;
  std::vector<safetensors_entry> entries;
  for (const auto& [tensor_name, row] : header.items()) {
    if (tensor_name == metadata_key) continue;
    auto e = parse_entry(tensor_name, row, name);
    if (!e) return std::move(e.error());
    entries.push_back(std::move(*e));
  }
  std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  std::uint64_t offset = 0;
  for (auto& e : entries) {
    if (e.begin != offset || e.end > data_bytes)
      return unreadable(
          name, fmt::format("tensor \"{}\" leaves a gap, overlaps or lies outside", e.name));
    offset = e.end;
    e.begin += sizeof length + length;
    e.end += sizeof length + length;
  }
  if (offset != data_bytes)
    return unreadable(
        name, fmt::format("{} bytes of tensors are declared, {} are there", offset, data_bytes));
  return entries;
}

result<std::vector<named_tensor>> parse_safetensors(std::span<const std::byte> bytes,
                                                    std::string_view name) {
  auto entries = parse_safetensors_entries(bytes, name);
  if (!entries) return std::move(entries.error());
  std::vector<named_tensor> tensors;
  for (auto& e : *entries) {
    auto t = tensor::make(e.spec);
    if (e.end > e.begin) std::memcpy(t.bytes().data(), bytes.data() + e.begin, e.end - e.begin);
    tensors.push_back({std::move(e.name), std::move(t)});
  }
  return tensors;
}

result<std::vector<named_tensor>> load_safetensors(const std::string& path) {
  const auto bytes = host::read_file(path, whole_bytes_max, "safetensors file");
  if (!bytes) return bytes.error();
  return parse_safetensors(*bytes, path);
}

result<std::optional<named_tensor>> safetensors_reader::next() {
  if (failed_) return *failed_;
  auto read = read_next();
  if (!read) failed_ = read.error();
  return read;
}

result<std::optional<named_tensor>> safetensors_reader::read_next() {
  if (!std::exchange(has_begun_, true))
    if (auto ok = read_head(); !ok) return std::move(ok.error());
  if (next_ == entries_.size()) return std::optional<named_tensor>();
  auto& e = entries_[next_++];
  auto t = tensor::make(e.spec);
  if (auto ok = read(t.bytes(), fmt::format("tensor \"{}\"", e.name)); !ok)
    return std::move(ok.error());
  return std::optional(named_tensor{std::move(e.name), std::move(t)});
}

result<void> safetensors_reader::read_head() {
  std::vector<std::byte> begin(sizeof(std::uint64_t));
  auto got = read_full(*source_, begin);
  if (!got) return std::move(got.error());
  const auto name = source_->name();
  const auto length =
      header_length(std::span<const std::byte>(begin).first(*got), file_bytes_, name);
  if (!length) return length.error();
  begin.resize(begin.size() + *length);
  if (auto ok = read(std::span(begin).subspan(sizeof *length), "its header"); !ok) return ok;
  auto entries = parse_safetensors_entries(begin, file_bytes_, name);
  if (!entries) return std::move(entries.error());
  entries_ = std::move(*entries);
  return {};
}

// `what` is what ends early where the file has become shorter.
result<void> safetensors_reader::read(std::span<std::byte> into, std::string_view what) {
  if (into.empty()) return {};
  const auto got = read_full(*source_, into);
  if (!got) return got.error();
  if (*got == into.size()) return {};
  return unreadable(source_->name(),
                    fmt::format("{} is cut, the file ends at byte {}", what, source_->position()));
}

std::string weights_hash(std::span<const named_tensor> tensors) {
  const auto state =
      std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)>(XXH3_createState(), &XXH3_freeState);
  expects(state != nullptr && XXH3_128bits_reset(state.get()) == XXH_OK, "xxHash has memory");
  for (const auto* t : in_order_of_names(tensors))
    XXH3_128bits_update(state.get(), t->values.bytes().data(), t->values.size_bytes());
  const auto hash = XXH3_128bits_digest(state.get());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace troupe
