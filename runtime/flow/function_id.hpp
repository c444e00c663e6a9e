#pragma once
// Which function a stage has, and what goes along with it to another process: the values of its
// members.
//
// Threading: values.

#include "troupe/runtime/flow/value_codec.hpp"

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

namespace troupe {

// Of this process: a type, and of a pointer to a function where it points to.
struct function_id {
  const std::type_info* type = nullptr;
  void (*address)() = nullptr;
  friend bool operator==(const function_id& a, const function_id& b) noexcept {
    return a.address == b.address && a.type != nullptr && b.type != nullptr && *a.type == *b.type;
  }
};
template <class F>
inline constexpr bool is_function_pointer =
    std::is_pointer_v<F> && std::is_function_v<std::remove_pointer_t<F>>;

template <class F>
function_id id_of(const F& f) {
  if constexpr (is_function_pointer<F>)
    return {&typeid(F), reinterpret_cast<void (*)()>(f)};
  else
    return {&typeid(F), nullptr};
}

// The members of a function, as bytes. nullopt: it has some, and does not list them, or they do not
// travel.
template <class F>
std::optional<std::vector<std::byte>> prototype_of(const F& f) {
  if constexpr (std::is_empty_v<F> || is_function_pointer<F>)
    return std::vector<std::byte>();
  else if constexpr (has_fields<F> && can_travel<F>)
    return bytes_of(f);
  else
    return std::nullopt;
}

// Their layout; empty: it has none, or does not list them.
template <class F>
std::string members_of() {
  if constexpr (!std::is_empty_v<F> && has_fields<F> && can_travel<F>)
    return layout_of<F>();
  else
    return {};
}

// What another process has to know of a stage's function.
struct travelling_function {
  function_id who;
  std::optional<std::vector<std::byte>> prototype;
  const value_codec* in = nullptr;   // of its items; null: they do not travel
  const value_codec* out = nullptr;  // null: nothing comes of it, or that does not travel
  std::string members;               // the layout of its members
  bool makes_items = true;
  // It keeps nothing from item to item: it can be called though it is const.
  bool keeps_nothing = false;
};

// `In`, `Out`: its items; void: nothing comes of it.
template <class In, class Out, class F>
travelling_function travels_as(const F& f) {
  travelling_function t;
  t.who = id_of(f);
  t.prototype = prototype_of(f);
  t.members = members_of<F>();
  t.in = codec_of<In>();
  t.makes_items = !std::is_void_v<Out>;
  t.keeps_nothing = std::is_invocable_v<const F&, In> && !requires(F& g) { g.finish(); };
  if constexpr (!std::is_void_v<Out>) t.out = codec_of<Out>();
  return t;
}

}  // namespace troupe
