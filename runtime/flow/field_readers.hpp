#pragma once
// How the fields of a struct are read, by their types: of cells of a table, and of JSON. Which
// types there are is said at read_csv() and read_json_lines() (typed_sources.hpp).
//
// Threading: functions of their arguments. Errors: a cell says what was expected; JSON's are those
// of json_slots.hpp. A type that cannot be read is an error of the compiler.

#include "troupe/devices/files/json_slots.hpp"
#include "troupe/runtime/flow/value_traits.hpp"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>

namespace troupe {

// What a place of T takes, for errors.
template <class T>
constexpr std::string_view expected_of() {
  if constexpr (std::is_same_v<T, bool>)
    return "true or false";
  else if constexpr (std::is_same_v<T, char>)
    return "one character";
  else if constexpr (std::is_floating_point_v<T>)
    return sizeof(T) == 4 ? "a number of 32 bits" : "a number";
  else if constexpr (std::is_signed_v<T>)
    return sizeof(T) == 8   ? "a whole number"
           : sizeof(T) == 4 ? "a whole number of 32 bits"
           : sizeof(T) == 2 ? "a whole number of 16 bits"
                            : "a whole number of 8 bits";
  else
    return sizeof(T) == 8   ? "a whole number of 0 or more"
           : sizeof(T) == 4 ? "a whole number of 0 or more, of 32 bits"
           : sizeof(T) == 2 ? "a whole number of 0 or more, of 16 bits"
                            : "a whole number from 0 to 255";
}

// A number that is the whole text.
template <class T>
bool number_into(std::string_view text, T& into) {
  const auto r = std::from_chars(text.data(), text.data() + text.size(), into);
  return r.ec == std::errc() && r.ptr == text.data() + text.size();
}

// The text of a cell into a field; what was expected, where it does not fit.
template <class T>
std::optional<std::string_view> cell_into(std::string_view cell, T& into) {
  if constexpr (std::is_same_v<T, std::string>) {
    into = cell;
    return std::nullopt;
  } else if constexpr (is_optional<T>::value) {
    using U = typename T::value_type;
    constexpr bool fits = std::is_arithmetic_v<U>;
    static_assert(fits,
                  "read_csv: an optional cell is a number, bool or char: of an empty one "
                  "nobody can say whether it is an empty text or none");
    if constexpr (fits) {
      into.reset();
      return cell.empty() ? std::nullopt : cell_into(cell, into.emplace());
    }
    return std::nullopt;
  } else if constexpr (std::is_same_v<T, char>) {
    if (cell.size() != 1) return expected_of<T>();
    into = cell.front();
    return std::nullopt;
  } else {
    constexpr bool fits = std::is_arithmetic_v<T>;
    static_assert(fits, "read_csv: a cell is a number, bool, char or std::string");
    constexpr std::string_view blanks = " \t";
    cell.remove_prefix(std::min(cell.find_first_not_of(blanks), cell.size()));
    cell = cell.substr(0, cell.find_last_not_of(blanks) + 1);
    bool is_right = false;
    if constexpr (std::is_same_v<T, bool>) {
      into = cell == "true" || cell == "True" || cell == "TRUE" || cell == "1";
      is_right = into || cell == "false" || cell == "False" || cell == "FALSE" || cell == "0";
    } else if constexpr (fits) {
      is_right = number_into(cell, into);
    }
    return is_right ? std::nullopt : std::optional(expected_of<T>());
  }
}

// What JSON is read into (json_slots.hpp).
template <class T>
constexpr json_type make_json_type();
template <class T>
inline constexpr json_type json_type_of = make_json_type<T>();

template <class T>
constexpr json_type make_json_type() {
  json_type t;
  if constexpr (std::is_same_v<T, std::string>) {
    t.expected = "a text";
    t.take_text = [](void* at, std::string& v) {
      *static_cast<T*>(at) = std::move(v);
      return true;
    };
  } else if constexpr (std::is_same_v<T, bool>) {
    t.expected = expected_of<T>();
    t.take_bool = [](void* at, bool v) {
      *static_cast<T*>(at) = v;
      return true;
    };
  } else if constexpr (std::is_same_v<T, char>) {
    t.expected = expected_of<T>();
    t.take_text = [](void* at, std::string& v) {
      if (v.size() == 1) *static_cast<T*>(at) = v.front();
      return v.size() == 1;
    };
  } else if constexpr (std::is_floating_point_v<T>) {
    t.expected = expected_of<T>();
    t.take_null = [](void* at) {
      *static_cast<T*>(at) = std::numeric_limits<T>::quiet_NaN();
      return true;
    };
    t.take_signed = [](void* at, std::int64_t v) {
      *static_cast<T*>(at) = static_cast<T>(v);
      return true;
    };
    t.take_unsigned = [](void* at, std::uint64_t v) {
      *static_cast<T*>(at) = static_cast<T>(v);
      return true;
    };
    t.take_floating = [](void* at, double v, std::string_view text) {
      auto& into = *static_cast<T*>(at);
      // Of the text, since a double that is rounded once more may be another float.
      if (number_into(text, into)) return true;
      if (v > double{std::numeric_limits<T>::max()} || v < double{std::numeric_limits<T>::lowest()})
        return false;
      into = static_cast<T>(v);
      return true;
    };
  } else if constexpr (std::is_integral_v<T>) {
    t.expected = expected_of<T>();
    t.take_signed = [](void* at, std::int64_t v) {
      if (std::in_range<T>(v)) *static_cast<T*>(at) = static_cast<T>(v);
      return std::in_range<T>(v);
    };
    t.take_unsigned = [](void* at, std::uint64_t v) {
      if (std::in_range<T>(v)) *static_cast<T*>(at) = static_cast<T>(v);
      return std::in_range<T>(v);
    };
  } else if constexpr (is_optional<T>::value) {
    t.may_miss = true;
    t.take_null = [](void* at) {
      static_cast<T*>(at)->reset();
      return true;
    };
    t.inner = [](void* at) {
      using U = typename T::value_type;
      return json_slot{&static_cast<T*>(at)->emplace(), &json_type_of<U>};
    };
  } else if constexpr (is_vector<T>::value) {
    using U = typename T::value_type;
    constexpr bool fits = !std::is_same_v<U, bool>;
    static_assert(fits,
                  "read_json_lines: the elements of vector<bool> have no place of their own; "
                  "take std::vector<std::uint8_t>");
    t.expected = "a list";
    t.clear = [](void* at) { static_cast<T*>(at)->clear(); };
    if constexpr (fits)
      t.add = [](void* at) {
        return json_slot{&static_cast<T*>(at)->emplace_back(), &json_type_of<U>};
      };
  } else if constexpr (has_fields<T>) {
    t.expected = "an object";
    t.keys = T::fields.names;
    t.member = [](void* at, std::size_t wanted) {
      json_slot slot;
      std::size_t i = 0;
      T::fields.each(*static_cast<T*>(at), [&]<class M>(std::string_view, M& member) {
        if (i++ == wanted) slot = {&member, &json_type_of<M>};
      });
      return slot;
    };
  } else {
    static_assert(has_fields<T>,
                  "read_json_lines: a field is a number, bool, char, std::string, a struct that "
                  "lists its `fields`, or a vector or optional of these");
  }
  return t;
}

}  // namespace troupe
