#include "troupe/devices/tensor_text.hpp"

#include "troupe/devices/half.hpp"

#include <fmt/format.h>

namespace troupe {
namespace {

std::string element(const tensor& t, std::int64_t i) {
  switch (t.type()) {
    case dtype::f32: return fmt::format("{}", t.data<float>()[i]);
    case dtype::f64: return fmt::format("{}", t.data<double>()[i]);
    case dtype::i32: return fmt::format("{}", t.data<std::int32_t>()[i]);
    case dtype::i64: return fmt::format("{}", t.data<std::int64_t>()[i]);
    case dtype::u8: return fmt::format("{}", t.data<std::uint8_t>()[i]);
    case dtype::f16: return fmt::format("{}", to_f32(t.data<f16>()[i]));
    case dtype::bf16: return fmt::format("{}", to_f32(t.data<bf16>()[i]));
    case dtype::boolean: return t.data<boolean>()[i] ? "true" : "false";
  }
  return "?";
}

// Dimensions from `axis` on, beginning with element `first`.
void append(std::string& out, const tensor& t, std::size_t axis, std::int64_t first,
            std::int64_t edge) {
  const auto& s = t.shape();
  if (axis == s.rank()) {
    out += element(t, first);
    return;
  }
  std::int64_t stride = 1;
  for (auto i = axis + 1; i < s.rank(); ++i) stride *= s.size(i);
  const auto n = s.size(axis);
  out += "[";
  for (std::int64_t i = 0; i < n; ++i) {
    if (i > 0) out += ", ";
    if (n > 2 * edge && i == edge) {
      out += edge > 0 ? "..., " : "...";
      if (edge == 0) break;
      i = n - edge;
    }
    append(out, t, axis + 1, first + i * stride, edge);
  }
  out += "]";
}

}  // namespace

std::string to_string(const tensor& t, std::int64_t edge) {
  if (!t) return "nothing";
  auto out = to_string(t.spec()) + " ";
  append(out, t, 0, 0, edge < 0 ? 0 : edge);
  return out;
}

}  // namespace troupe
