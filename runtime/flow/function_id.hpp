#pragma once
// Which function a stage has, and what goes along with it to another process: the values of its
// members.
//
// Threading: values.

#include "troupe/runtime/flow/value_codec.hpp"

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

namespace troupe {

class stage_library;

// Of this process: a type, of a pointer to a function where it points to, and what it is called
// with, since a function may take several types of items.
struct function_id {
  const std::type_info* type = nullptr;
  void (*address)() = nullptr;
  const std::type_info* items = nullptr;
  bool is_function_of(const function_id& o) const noexcept {
    return address == o.address && type != nullptr && o.type != nullptr && *type == *o.type;
  }
  friend bool operator==(const function_id& a, const function_id& b) noexcept {
    return a.is_function_of(b) && a.items != nullptr && b.items != nullptr && *a.items == *b.items;
  }
};
template <class F>
inline constexpr bool is_function_pointer =
    std::is_pointer_v<F> && std::is_function_v<std::remove_pointer_t<F>>;

template <class In, class F>
function_id id_of(const F& f) {
  if constexpr (is_function_pointer<F>)
    return {&typeid(F), reinterpret_cast<void (*)()>(f), &typeid(In)};
  else
    return {&typeid(F), nullptr, &typeid(In)};
}

// Its member `state`, which has what it has learnt from items, and goes over a wire.
template <class F>
inline constexpr bool has_state = false;
template <class F>
  requires(std::is_member_object_pointer_v<decltype(&F::state)> &&
           !std::is_const_v<decltype(F::state)>)
inline constexpr bool has_state<F> = can_travel<std::remove_cvref_t<decltype(F::state)>>;

// A state and nothing besides.
template <class F>
inline constexpr bool has_only_state = false;
template <class F>
  requires has_state<F>
inline constexpr bool has_only_state<F> = sizeof(F) == sizeof(F::state);
// All of its members are told, as fields, as its state, or as there are none.
template <class F>
inline constexpr bool tells_members =
    std::is_empty_v<F> || is_function_pointer<F> || (has_fields<F> && can_travel<F>) ||
    (has_only_state<F> && std::is_default_constructible_v<F>);

// The members of a function, as bytes: its fields, and its state. nullopt: it has others, or they
// do not travel.
template <class F>
std::optional<std::vector<std::byte>> prototype_of([[maybe_unused]] const F& f) {
  if constexpr (!tells_members<F>) return std::nullopt;
  std::vector<std::byte> bytes;
  if constexpr (has_fields<F> && can_travel<F> && !std::is_empty_v<F>) bytes = bytes_of(f);
  if constexpr (has_state<F>) {
    const auto state = bytes_of(f.state);
    bytes.insert(bytes.end(), state.begin(), state.end());
  }
  return bytes;
}
// The function that has them; nullopt: they are those of none.
template <class F>
std::optional<F> function_of(std::span<const std::byte> prototype) {
  byte_reader r(prototype);
  F f{};
  if constexpr (has_fields<F> && can_travel<F> && !std::is_empty_v<F>) read_value(r, f);
  if constexpr (has_state<F>) read_value(r, f.state);
  if (r.failed() || r.left() > 0) return std::nullopt;
  return f;
}

// The layout of its members and of its state; empty: it has none, or they do not travel.
template <class F>
std::string members_of() {
  std::string text;
  if constexpr (!std::is_empty_v<F> && has_fields<F> && can_travel<F>) text = layout_of<F>();
  if constexpr (has_state<F>)
    text += (text.empty() ? "" : ", ") +
            ("state " + layout_of<std::remove_cvref_t<decltype(F::state)>>());
  return text;
}

// What stages say as their state (stage::save()): never empty.
template <class Write>
tensor saved_by(const Write& write) {
  byte_writer counts;
  write(counts);
  auto saved = tensor::make({dtype::u8, {static_cast<std::int64_t>(counts.size() + 1)}});
  byte_writer w(saved.bytes());
  write(w);
  w.number(std::uint8_t{1});
  return saved;
}
template <class Read>
bool load_from(const tensor& saved, const Read& read) {
  byte_reader r(std::as_const(saved).bytes());
  read(r);
  return r.number<std::uint8_t>() == 1 && !r.failed() && r.left() == 0;
}

// The state of a function, as bytes; nullopt: it has none.
template <class F>
std::optional<tensor> saved_state([[maybe_unused]] const F& f) {
  if constexpr (has_state<F>)
    return saved_by([&](byte_writer& w) { write_value(w, f.state); });
  else
    return std::nullopt;
}
template <class F>
bool load_state([[maybe_unused]] F& f, [[maybe_unused]] const tensor& saved) {
  if constexpr (has_state<F>)
    return load_from(saved, [&](byte_reader& r) { read_value(r, f.state); });
  else
    return false;
}

// What another process has to know of a stage's function.
struct travelling_function {
  function_id who;
  std::optional<std::vector<std::byte>> prototype;
  const value_codec* in = nullptr;   // of its items; null: they do not travel
  const value_codec* out = nullptr;  // null: nothing comes of it, or that does not travel
  std::string members;               // the layout of its members and its state
  bool makes_items = true;
  // It keeps nothing from item to item: it can be called though it is const.
  bool keeps_nothing = false;
  // All that it keeps is its state, which goes over a wire.
  bool keeps_state = false;
  // The library that the function says it stands in, by a static member library(); null: it does
  // not, and the topology names it (use()).
  const stage_library* library = nullptr;
};

// `In`, `Out`: its items; void: nothing comes of it.
template <class In, class Out, class F>
travelling_function travels_as(const F& f) {
  travelling_function t;
  t.who = id_of<In>(f);
  t.prototype = prototype_of(f);
  t.members = members_of<F>();
  t.in = codec_of<In>();
  t.makes_items = !std::is_void_v<Out>;
  t.keeps_nothing = std::is_invocable_v<const F&, In> && !requires(F& g) { g.finish(); };
  t.keeps_state = has_state<F>;
  if constexpr (requires { static_cast<const stage_library&>(F::library()); })
    t.library = &F::library();
  if constexpr (!std::is_void_v<Out>) t.out = codec_of<Out>();
  return t;
}

}  // namespace troupe
