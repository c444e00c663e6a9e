#include "troupe/runtime/flow/value_codec.hpp"

namespace troupe {
namespace {

// From so many bytes on a part of what came is worth more than a copy of its own.
constexpr std::size_t part_bytes_min = 4096;
constexpr std::uint8_t no_tensor = 0xff;

}  // namespace

void write_tensor(byte_writer& w, const tensor& t) {
  if (!t) return w.number(no_tensor);
  w.number(static_cast<std::uint8_t>(t.type()));
  w.number(static_cast<std::uint8_t>(t.shape().rank()));
  for (const auto n : t.shape().sizes()) w.number(n);
  w.align(tensor::alignment_bytes);
  w.put(t.bytes());
}

tensor read_tensor(byte_reader& r) {
  const auto type = r.number<std::uint8_t>();
  if (type == no_tensor) return {};
  const auto rank = r.number<std::uint8_t>();
  if (type >= dtype_count || rank > shape::rank_max) r.fail();
  if (r.failed()) return {};
  std::array<dim, shape::rank_max> dims{};
  for (std::size_t i = 0; i < rank; ++i) dims[i].size = r.number<std::int64_t>();
  const auto s = shape::from(std::span(dims).first(rank));
  if (!s) r.fail();
  r.align(tensor::alignment_bytes);
  if (r.failed()) return {};
  const tensor_spec spec{static_cast<dtype>(type), *s};
  const auto at = r.at();
  const auto bytes = r.take(spec.size_bytes());
  if (r.failed()) return {};
  if (r.whole() != nullptr && bytes.size() >= part_bytes_min) return r.whole()->part(at, spec);
  auto t = tensor::make(spec);
  if (!bytes.empty()) std::memcpy(t.bytes().data(), bytes.data(), bytes.size());
  return t;
}

}  // namespace troupe
