#pragma once
// From an operation on elements to functions over tiles: one loop per operation, element types, and
// operands that advance. Included by the families of element-wise kernels in ops/.
//
//   struct add_op { static auto apply(auto a, auto b) { return a + b; } };
//   add_elementwise_row<add_op, 2, float, double>(table, "add");

#include "troupe/devices/half.hpp"
#include "troupe/devices/host/host_device.hpp"
#include "troupe/devices/host/host_kernels.hpp"
#include "troupe/devices/host/loops/elementwise.hpp"

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace troupe::host {

// An op of one operand that has a form without branches for the numbers that are near, of which all
// but few are: the loop over it is vectorised where a piece of a row has no other number.
template <class Op, class... In>
concept with_near_form =
    sizeof...(In) == 1 && (std::same_as<In, float> && ...) && requires(In... x) {
      { Op::is_near(x...) } -> std::same_as<bool>;
      Op::apply_near(x...);
    };

template <class Op, class Out, class In>
void one_row_by_pieces(Out* out, std::int64_t columns, const In* in) {
  constexpr std::int64_t piece = 256;
  for (std::int64_t from = 0; from < columns; from += piece) {
    const auto end = from + piece < columns ? from + piece : columns;
    unsigned far = 0;
    for (std::int64_t i = from; i < end; ++i) far |= Op::is_near(in[i]) ? 0U : 1U;
    if (far != 0) {
      for (std::int64_t i = from; i < end; ++i) out[i] = Op::apply(in[i]);
      continue;
    }
#pragma GCC ivdep
    for (std::int64_t i = from; i < end; ++i) out[i] = Op::apply_near(in[i]);
  }
}

// In place is exact aliasing, which carries nothing from one element to the next: ivdep tells GCC,
// who would otherwise fall back to scalars when buffers overlap.
template <class Op, std::size_t Advancing, class Out, std::size_t... K, class... In>
void one_row(std::index_sequence<K...>, Out* out, std::int64_t columns, const In*... operands) {
  const auto element = [](bool advances, const auto* at, const auto& first, std::int64_t i) {
    return advances ? at[i] : first;
  };
  [&](const In... first) {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < columns; ++i)
      out[i] =
          static_cast<Out>(Op::apply(element((Advancing >> K & 1U) != 0, operands, first, i)...));
  }(*operands...);
}

template <class Op, std::size_t Advancing, class Out, class... In>
void run_tile(std::byte* out_bytes, const std::byte* const* operands, const std::int64_t* row_steps,
              std::int64_t rows, std::int64_t columns) {
  [&]<std::size_t... K>(std::index_sequence<K...> all) {
    auto* out = reinterpret_cast<Out*>(out_bytes);
    for (std::int64_t r = 0; r < rows; ++r, out += columns)
      if constexpr (with_near_form<Op, In...>)
        one_row_by_pieces<Op>(out, columns,
                              reinterpret_cast<const In*>(operands[K]) + r * row_steps[K]...);
      else
        one_row<Op, Advancing>(all, out, columns,
                               reinterpret_cast<const In*>(operands[K]) + r * row_steps[K]...);
  }(std::index_sequence_for<In...>{});
}

template <class Op, class Out, class... In>
constexpr elementwise_overload overload_of() {
  static_assert(sizeof...(In) <= elementwise_operands_max);
  elementwise_overload o;
  o.operands = sizeof...(In);
  o.out = dtype_of<Out>;
  std::size_t k = 0;
  ((o.in[k++] = dtype_of<In>), ...);
  [&]<std::size_t... M>(std::index_sequence<M...>) {
    ((o.tiles[M] = run_tile<Op, M + 1, Out, In...>), ...);
  }(std::make_index_sequence<(std::size_t{1} << sizeof...(In)) - 1>{});
  return o;
}

// T op T op ... -> T.
template <class Op, class T, std::size_t Operands>
constexpr elementwise_overload same() {
  if constexpr (Operands == 1) return overload_of<Op, T, T>();
  if constexpr (Operands == 2) return overload_of<Op, T, T, T>();
  if constexpr (Operands == 3) return overload_of<Op, T, T, T, T>();
}
template <class Op, std::size_t Operands, class... T>
inline constexpr std::array<elementwise_overload, sizeof...(T)> overloads_of_same = {
    same<Op, T, Operands>()...};

// `op` is a literal.
inline void add_elementwise_row(kernel_table& table, std::string_view op,
                                std::span<const elementwise_overload> overloads) {
  table.add(
      std::string(op),
      {[op, overloads](const attributes&, host_device& device) -> result<std::unique_ptr<kernel>> {
         return std::unique_ptr<kernel>(
             std::make_unique<elementwise_kernel>(op, overloads, device.team()));
       },
       true});
}
// The same operation for each of the types: f32 and f64 for most.
template <class Op, std::size_t Operands, class... T>
void add_elementwise_row(kernel_table& table, std::string_view op) {
  add_elementwise_row(table, op, overloads_of_same<Op, Operands, T...>);
}

}  // namespace troupe::host
