#pragma once
// Between the reference's arrays of f64 and tensors.

#include "tests/support/reference_array.hpp"
#include "troupe/devices/half.hpp"
#include "troupe/devices/tensor.hpp"

namespace troupe::reference {

inline tensor to_tensor(const array& a) {
  auto t = tensor::make(a.spec);
  for (std::size_t i = 0; i < a.at.size(); ++i) {
    const auto x = a.at[i];
    switch (a.spec.type) {
      case dtype::f32: t.data<float>()[i] = static_cast<float>(x); break;
      case dtype::f64: t.data<double>()[i] = x; break;
      case dtype::i32: t.data<std::int32_t>()[i] = static_cast<std::int32_t>(x); break;
      case dtype::i64: t.data<std::int64_t>()[i] = static_cast<std::int64_t>(x); break;
      case dtype::u8: t.data<std::uint8_t>()[i] = static_cast<std::uint8_t>(x); break;
      case dtype::f16: t.data<f16>()[i] = to_f16(static_cast<float>(x)); break;
      case dtype::bf16: t.data<bf16>()[i] = to_bf16(static_cast<float>(x)); break;
      case dtype::boolean: t.data<boolean>()[i] = boolean(x != 0); break;
    }
  }
  return t;
}

inline double element(const tensor& t, std::size_t i) {
  switch (t.type()) {
    case dtype::f32: return static_cast<double>(t.data<float>()[i]);
    case dtype::f64: return t.data<double>()[i];
    case dtype::i32: return static_cast<double>(t.data<std::int32_t>()[i]);
    case dtype::i64: return static_cast<double>(t.data<std::int64_t>()[i]);
    case dtype::u8: return static_cast<double>(t.data<std::uint8_t>()[i]);
    case dtype::f16: return static_cast<double>(to_f32(t.data<f16>()[i]));
    case dtype::bf16: return static_cast<double>(to_f32(t.data<bf16>()[i]));
    case dtype::boolean: return t.data<boolean>()[i] ? 1 : 0;
  }
  return 0;
}

inline array to_array(const tensor& t) {
  return make(t.spec(), [&](std::size_t i) { return element(t, i); });
}

}  // namespace troupe::reference
