// Comparisons, logic, choice, and conversion between element types.

#include "troupe/devices/element_ops.hpp"
#include "troupe/devices/host/loops/elementwise_tiles.hpp"

namespace troupe::host {
namespace {

template <class Op, class... T>
constexpr std::array<elementwise_overload, sizeof...(T)> predicates_of = {
    overload_of<Op, boolean, T, T>()...};

template <class Op>
void add_comparison(kernel_table& table, std::string_view op) {
  add_elementwise_row(table, op,
                      predicates_of<Op, float, double, std::int32_t, std::int64_t, std::uint8_t>);
}
template <class Op>
void add_equality(kernel_table& table, std::string_view op) {
  add_elementwise_row(
      table, op,
      predicates_of<Op, float, double, std::int32_t, std::int64_t, std::uint8_t, boolean>);
}

// --- cast ---

template <class To, class... From>
constexpr std::array<elementwise_overload, sizeof...(From)> casts_to() {
  return {overload_of<cast_op<To>, To, From>()...};
}

template <class... T>
struct all_types {
  static constexpr std::size_t count = sizeof...(T);
  static constexpr std::array<elementwise_overload, count * count> casts() {
    std::array<elementwise_overload, count * count> all{};
    std::size_t i = 0;
    const auto append = [&](const auto& some) {
      for (const auto& o : some) all[i++] = o;
    };
    (append(casts_to<T, T...>()), ...);
    return all;
  }
  static constexpr std::array<elementwise_overload, count> firsts() {
    return {overload_of<first_op, T, T, T>()...};
  }
  static constexpr std::array<elementwise_overload, count> choices() {
    return {overload_of<where_op, T, boolean, T, T>()...};
  }
};

using every_type =
    all_types<float, double, std::int32_t, std::int64_t, std::uint8_t, f16, bf16, boolean>;
constexpr auto cast_overloads = every_type::casts();
constexpr auto broadcast_overloads = every_type::firsts();
constexpr auto where_overloads = every_type::choices();
constexpr std::array<elementwise_overload, 2> is_nan_overloads = {
    overload_of<is_nan_op, boolean, float>(), overload_of<is_nan_op, boolean, double>()};

}  // namespace

void add_comparison_kernels(kernel_table& table) {
  add_equality<equal_op>(table, "equal");
  add_equality<not_equal_op>(table, "not_equal");
  add_comparison<less_op>(table, "less");
  add_comparison<less_equal_op>(table, "less_equal");
  add_comparison<greater_op>(table, "greater");
  add_comparison<greater_equal_op>(table, "greater_equal");
  add_elementwise_row<and_op, 2, boolean>(table, "logical_and");
  add_elementwise_row<or_op, 2, boolean>(table, "logical_or");
  add_elementwise_row<xor_op, 2, boolean>(table, "logical_xor");
  add_elementwise_row<not_op, 1, boolean>(table, "logical_not");
  add_elementwise_row(table, "is_nan", is_nan_overloads);
  add_elementwise_row(table, "where", where_overloads);
  add_elementwise_row(table, "cast", cast_overloads);
  add_elementwise_row(table, "broadcast_like", broadcast_overloads);
}

}  // namespace troupe::host
