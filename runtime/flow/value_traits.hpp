#pragma once
// What a pipeline asks of the types of its items: how many bytes one takes, what it is called, and,
// of a plain struct that lists its fields, what it is made of.
//
//   struct photo {
//     std::string path;
//     troupe::tensor pixels;
//     static constexpr auto fields = troupe::fields<&photo::path, &photo::pixels>("path",
//     "pixels");
//   };
//
// A type that owns memory and is none of those below says how much it takes by a member
// `std::size_t size_bytes() const`, or lists its fields; else its bytes are sizeof, and the bounds
// of its edges count items only.

#include "troupe/devices/tensor.hpp"

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace troupe {

// The fields of a struct, with their names: what is written of it to CSV or JSON lines, and what
// goes over a wire.
template <auto... Members>
struct field_list {
  std::array<std::string_view, sizeof...(Members)> names;

  // Calls f(name, member) for each field of `value`, in order.
  template <class T, class F>
  constexpr void each(T&& value, F&& f) const {
    std::size_t i = 0;
    (f(names[i++], std::forward<T>(value).*Members), ...);
  }
};
template <auto... Members, class... Names>
  requires(sizeof...(Members) == sizeof...(Names))
constexpr field_list<Members...> fields(const Names&... names) {
  return {{std::string_view(names)...}};
}

template <class T>
concept has_fields = requires { std::remove_cvref_t<T>::fields.names; };

template <class T>
struct is_deque : std::false_type {};
template <class T, class A>
struct is_deque<std::deque<T, A>> : std::true_type {};
template <class T>
struct is_vector : std::false_type {};
template <class T, class A>
struct is_vector<std::vector<T, A>> : std::true_type {};
template <class T>
struct is_array : std::false_type {};
template <class T, std::size_t N>
struct is_array<std::array<T, N>> : std::true_type {};
template <class T>
struct is_optional : std::false_type {};
template <class T>
struct is_optional<std::optional<T>> : std::true_type {};
template <class T>
struct is_tuple : std::false_type {};
template <class... Ts>
struct is_tuple<std::tuple<Ts...>> : std::true_type {};
template <class A, class B>
struct is_tuple<std::pair<A, B>> : std::true_type {};

// Bytes in memory, with those that it owns.
template <class T>
std::size_t value_bytes(const T& v) {
  if constexpr (std::is_same_v<T, tensor>) {
    return sizeof(T) + (v ? v.capacity_bytes() : 0);
  } else if constexpr (std::is_same_v<T, std::string>) {
    return sizeof(T) + v.size();
  } else if constexpr (is_vector<T>::value) {
    using E = typename T::value_type;
    if constexpr (std::is_trivially_copyable_v<E>) {
      return sizeof(T) + v.size() * sizeof(E);
    } else {
      auto bytes = sizeof(T);
      for (const auto& e : v) bytes += value_bytes(e);
      return bytes;
    }
  } else if constexpr (requires {
                         typename T::key_type;
                         v.begin();
                       }) {
    // A map or a set: an element lies in a node with some pointers.
    auto bytes = sizeof(T);
    for (const auto& e : v) bytes += value_bytes(e) + 4 * sizeof(void*);
    return bytes;
  } else if constexpr (is_deque<T>::value) {
    auto bytes = sizeof(T) + 512;
    for (const auto& e : v) bytes += value_bytes(e);
    return bytes;
  } else if constexpr (requires {
                         { v.size_bytes() } -> std::convertible_to<std::size_t>;
                       }) {
    return sizeof(T) + v.size_bytes();
  } else if constexpr (has_fields<T>) {
    auto bytes = sizeof(T);
    T::fields.each(v, [&](std::string_view, const auto& m) {
      bytes += value_bytes(m) - sizeof(std::remove_cvref_t<decltype(m)>);
    });
    return bytes;
  } else if constexpr (is_tuple<T>::value) {
    auto bytes = sizeof(T);
    std::apply(
        [&](const auto&... m) {
          ((bytes += value_bytes(m) - sizeof(std::remove_cvref_t<decltype(m)>)), ...);
        },
        v);
    return bytes;
  } else if constexpr (is_optional<T>::value) {
    return v ? sizeof(T) + value_bytes(*v) - sizeof(*v) : sizeof(T);
  } else {
    return sizeof(T);
  }
}

// What errors and dead letters call an item: a text, a number, or the first field that is one.
template <class T>
std::string value_text(const T& v) {
  if constexpr (std::is_same_v<T, std::string>) {
    return v.size() <= 80 ? v : v.substr(0, 77) + "...";
  } else if constexpr (std::is_same_v<T, bool>) {
    return v ? "true" : "false";
  } else if constexpr (std::is_arithmetic_v<T>) {
    return std::to_string(v);
  } else if constexpr (has_fields<T>) {
    std::string text;
    T::fields.each(v, [&](std::string_view, const auto& m) {
      if (text.empty()) text = value_text(m);
    });
    return text;
  } else if constexpr (is_tuple<T>::value) {
    return value_text(std::get<0>(v));
  } else {
    return {};
  }
}

}  // namespace troupe
