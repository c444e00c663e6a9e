#pragma once
// Element-wise ops as compiled kernels, one for each op and combination of types: what runs where
// there is no NVRTC. An op of a group is a launch of its own then.
//
// Included by plain_elements.cu, and by tests that run them on the host; whoever includes it has
// launch_elements() defined.

#include "troupe/devices/cuda/code/launch.hpp"
#include "troupe/devices/device_code.hpp"
#include "troupe/devices/element_ops.hpp"

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>

namespace troupe::cuda::code {

template <class Op, class Out, class... In>
struct apply {
  Out* out;
  std::tuple_element_t<0, std::tuple<const In*...>> first;
  const void* others[2];
  plain_walk walk;
  static constexpr int operands = sizeof...(In);

  template <int K>
  TROUPE_DEVICE auto operand(std::int64_t i) const {
    using T = std::tuple_element_t<K, std::tuple<In...>>;
    const auto* from = K == 0 ? reinterpret_cast<const T*>(first)
                              : static_cast<const T*>(others[K == 0 ? 0 : K - 1]);
    return from[walk.place(K, i)];
  }
  TROUPE_DEVICE void operator()(std::int64_t i) const {
    if constexpr (operands == 1) out[i] = static_cast<Out>(Op::apply(operand<0>(i)));
    if constexpr (operands == 2) out[i] = static_cast<Out>(Op::apply(operand<0>(i), operand<1>(i)));
    if constexpr (operands == 3)
      out[i] = static_cast<Out>(Op::apply(operand<0>(i), operand<1>(i), operand<2>(i)));
  }
};

template <class Op, class Out, class... In>
int launch_plain(const stream_of_chip& on, void* out, const void* const* in,
                 const plain_walk& walk) {
  using first = std::tuple_element_t<0, std::tuple<In...>>;
  apply<Op, Out, In...> f{static_cast<Out*>(out), static_cast<const first*>(in[0]), {}, walk};
  for (int k = 1; k < f.operands; ++k) f.others[k - 1] = in[k];
  return launch_elements(on, f, walk.elements);
}

namespace plain {

template <class Op, class Out, class... In>
constexpr plain_row row_of(const char* op) {
  plain_row r;
  r.op = op;
  r.operands = sizeof...(In);
  r.out = dtype_of<Out>;
  std::size_t k = 0;
  ((r.in[k++] = dtype_of<In>), ...);
  r.launch = launch_plain<Op, Out, In...>;
  return r;
}
template <class Op, class T, int Operands>
constexpr plain_row same(const char* op) {
  if constexpr (Operands == 1) return row_of<Op, T, T>(op);
  if constexpr (Operands == 2) return row_of<Op, T, T, T>(op);
  if constexpr (Operands == 3) return row_of<Op, T, T, T, T>(op);
}
template <class Op, int Operands, class... T>
constexpr auto rows_of(const char* op) {
  return std::array<plain_row, sizeof...(T)>{same<Op, T, Operands>(op)...};
}
template <class Op, class... T>
constexpr auto predicates_of(const char* op) {
  return std::array<plain_row, sizeof...(T)>{row_of<Op, boolean, T, T>(op)...};
}
template <class... T>
constexpr auto choices_of(const char* op) {
  return std::array<plain_row, sizeof...(T)>{row_of<host::where_op, T, boolean, T, T>(op)...};
}
template <class To, class... From>
constexpr auto casts_to() {
  return std::array<plain_row, sizeof...(From)>{row_of<host::cast_op<To>, To, From>("cast")...};
}
template <std::size_t... N>
constexpr auto joined(const std::array<plain_row, N>&... each) {
  std::array<plain_row, (N + ...)> all{};
  std::size_t i = 0;
  const auto add = [&](const auto& some) {
    for (const auto& r : some) all[i++] = r;
  };
  (add(each), ...);
  return all;
}

using i32 = std::int32_t;
using i64 = std::int64_t;
using u8 = std::uint8_t;

#define TROUPE_NUMBERS float, double, i32, i64
#define TROUPE_FLOATS float, double
#define TROUPE_EVERY float, double, i32, i64, u8, f16, bf16, boolean

// The types are those of the host's table; a test compares both.
inline const auto& table() {
  using namespace host;
  static constexpr auto all = joined(
      rows_of<add_op, 2, TROUPE_NUMBERS>("add"), rows_of<sub_op, 2, TROUPE_NUMBERS>("sub"),
      rows_of<mul_op, 2, TROUPE_NUMBERS>("mul"), rows_of<div_op, 2, TROUPE_NUMBERS>("div"),
      rows_of<maximum_op, 2, TROUPE_NUMBERS>("maximum"),
      rows_of<minimum_op, 2, TROUPE_NUMBERS>("minimum"), rows_of<pow_op, 2, TROUPE_FLOATS>("pow"),
      rows_of<fmod_op, 2, TROUPE_FLOATS>("fmod"), rows_of<neg_op, 1, TROUPE_NUMBERS>("neg"),
      rows_of<abs_op, 1, TROUPE_NUMBERS>("abs"), rows_of<sign_op, 1, TROUPE_NUMBERS>("sign"),
      rows_of<square_op, 1, TROUPE_NUMBERS>("square"),
      rows_of<reciprocal_op, 1, TROUPE_FLOATS>("reciprocal"),
      rows_of<fused_multiply_add_op, 3, TROUPE_FLOATS>("fused_multiply_add"),
      rows_of<exp_op, 1, TROUPE_FLOATS>("exp"), rows_of<log_op, 1, TROUPE_FLOATS>("log"),
      rows_of<sqrt_op, 1, TROUPE_FLOATS>("sqrt"), rows_of<rsqrt_op, 1, TROUPE_FLOATS>("rsqrt"),
      rows_of<erf_op, 1, TROUPE_FLOATS>("erf"), rows_of<sin_op, 1, TROUPE_FLOATS>("sin"),
      rows_of<cos_op, 1, TROUPE_FLOATS>("cos"), rows_of<tan_op, 1, TROUPE_FLOATS>("tan"),
      rows_of<expm1_op, 1, TROUPE_FLOATS>("expm1"), rows_of<log1p_op, 1, TROUPE_FLOATS>("log1p"),
      rows_of<asin_op, 1, TROUPE_FLOATS>("asin"), rows_of<acos_op, 1, TROUPE_FLOATS>("acos"),
      rows_of<atan_op, 1, TROUPE_FLOATS>("atan"), rows_of<sinh_op, 1, TROUPE_FLOATS>("sinh"),
      rows_of<cosh_op, 1, TROUPE_FLOATS>("cosh"), rows_of<asinh_op, 1, TROUPE_FLOATS>("asinh"),
      rows_of<acosh_op, 1, TROUPE_FLOATS>("acosh"), rows_of<atanh_op, 1, TROUPE_FLOATS>("atanh"),
      rows_of<floor_op, 1, TROUPE_FLOATS>("floor"), rows_of<ceil_op, 1, TROUPE_FLOATS>("ceil"),
      rows_of<round_op, 1, TROUPE_FLOATS>("round"), rows_of<relu_op, 1, TROUPE_FLOATS>("relu"),
      rows_of<leaky_relu_op, 2, TROUPE_FLOATS>("leaky_relu"),
      rows_of<sigmoid_op, 1, TROUPE_FLOATS>("sigmoid"), rows_of<tanh_op, 1, TROUPE_FLOATS>("tanh"),
      rows_of<softplus_op, 1, TROUPE_FLOATS>("softplus"),
      rows_of<gelu_op, 1, TROUPE_FLOATS>("gelu"),
      rows_of<gelu_grad_op, 2, TROUPE_FLOATS>("gelu_grad"),
      rows_of<gelu_tanh_op, 1, TROUPE_FLOATS>("gelu_tanh"),
      rows_of<clip_op, 3, TROUPE_NUMBERS>("clip"),
      rows_of<relu_grad_op, 2, TROUPE_FLOATS>("relu_grad"),
      rows_of<sigmoid_grad_op, 2, TROUPE_FLOATS>("sigmoid_grad"),
      rows_of<tanh_grad_op, 2, TROUPE_FLOATS>("tanh_grad"),
      predicates_of<equal_op, TROUPE_NUMBERS, u8, boolean>("equal"),
      predicates_of<not_equal_op, TROUPE_NUMBERS, u8, boolean>("not_equal"),
      predicates_of<less_op, TROUPE_NUMBERS, u8>("less"),
      predicates_of<less_equal_op, TROUPE_NUMBERS, u8>("less_equal"),
      predicates_of<greater_op, TROUPE_NUMBERS, u8>("greater"),
      predicates_of<greater_equal_op, TROUPE_NUMBERS, u8>("greater_equal"),
      rows_of<and_op, 2, boolean>("logical_and"), rows_of<or_op, 2, boolean>("logical_or"),
      rows_of<xor_op, 2, boolean>("logical_xor"), rows_of<not_op, 1, boolean>("logical_not"),
      std::array<plain_row, 2>{row_of<is_nan_op, boolean, float>("is_nan"),
                               row_of<is_nan_op, boolean, double>("is_nan")},
      choices_of<TROUPE_EVERY>("where"), rows_of<first_op, 2, TROUPE_EVERY>("broadcast_like"),
      casts_to<float, TROUPE_EVERY>(), casts_to<double, TROUPE_EVERY>(),
      casts_to<i32, TROUPE_EVERY>(), casts_to<i64, TROUPE_EVERY>(), casts_to<u8, TROUPE_EVERY>(),
      casts_to<f16, TROUPE_EVERY>(), casts_to<bf16, TROUPE_EVERY>(),
      casts_to<boolean, TROUPE_EVERY>());
  return all;
}

#undef TROUPE_NUMBERS
#undef TROUPE_FLOATS
#undef TROUPE_EVERY

}  // namespace plain

inline const plain_row* find_in_plain_table(std::string_view op, std::span<const dtype> in,
                                            dtype out) {
  for (const auto& r : plain::table()) {
    bool fits = r.op == op && r.operands == in.size() && r.out == out;
    for (std::size_t k = 0; fits && k < in.size(); ++k) fits = r.in[k] == in[k];
    if (fits) return &r;
  }
  return nullptr;
}

}  // namespace troupe::cuda::code
