#pragma once
// A value of any type, moved from stage to stage. What is small (40 bytes: a tensor, a text, a
// vector, a few numbers) lies in it, the rest behind a pointer.
//
// AV-1  The type is fixed by whoever made the value; get<T>() of another type is a broken
//       invariant.
// AV-2  A value that was moved from is empty.
// Threading: one owner. Ownership: of the value.

#include "troupe/runtime/flow/value_traits.hpp"
#include "troupe/schema/error.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>

namespace troupe {

class any_value {
 public:
  static constexpr std::size_t inline_bytes = 40;

  any_value() noexcept = default;
  template <class T>
    requires(!std::is_same_v<std::remove_cvref_t<T>, any_value>)
  explicit any_value(T&& value) : type_(&type_of<std::remove_cvref_t<T>>) {
    using U = std::remove_cvref_t<T>;
    if constexpr (is_inline<U>)
      new (memory_) U(std::forward<T>(value));
    else
      put_pointer(new U(std::forward<T>(value)));
  }
  any_value(any_value&& o) noexcept { take(o); }
  any_value& operator=(any_value&& o) noexcept {
    if (this != &o) {
      reset();
      take(o);
    }
    return *this;
  }
  ~any_value() { reset(); }

  explicit operator bool() const noexcept { return type_ != nullptr; }
  void reset() noexcept {
    if (type_ != nullptr && type_->destroy != nullptr) type_->destroy(memory_);
    type_ = nullptr;
  }

  template <class T>
  bool is() const noexcept {
    return type_ == &type_of<T> || (type_ != nullptr && *type_->info == typeid(T));
  }
  template <class T>
  T& get() {
    if (!is<T>()) [[unlikely]]
      fail_invariant("a flow's items have the type of the flow", std::source_location::current());
    if constexpr (is_inline<T>)
      return *std::launder(reinterpret_cast<T*>(memory_));
    else
      return *static_cast<T*>(pointer());
  }

  // Of a type that cannot be copied: a broken invariant (can_copy says so before).
  any_value copy() const {
    any_value v;
    if (type_ == nullptr) return v;
    expects(type_->copy != nullptr, "a flow that several stages take has items that can be copied");
    type_->copy(memory_, v.memory_);
    v.type_ = type_;
    return v;
  }
  // In memory, with what it owns (value_bytes).
  std::size_t bytes() const {
    if (type_ == nullptr) return 0;
    return type_->bytes == nullptr ? type_->fixed_bytes : type_->bytes(memory_);
  }
  // For people; empty where there is nothing to say.
  std::string text() const { return type_ != nullptr ? type_->text(memory_) : std::string(); }

 private:
  // What may be moved by copying its bytes has neither `move` nor `destroy`; what owns no memory
  // has no `bytes`.
  struct type_table {
    const std::type_info* info;
    std::size_t fixed_bytes;
    void (*move)(std::byte* from, std::byte* to) noexcept;  // and destroys `from`
    void (*destroy)(std::byte*) noexcept;
    void (*copy)(const std::byte* from, std::byte* to);
    std::size_t (*bytes)(const std::byte*);
    std::string (*text)(const std::byte*);
  };
  template <class T>
  static constexpr bool is_inline =
      sizeof(T) <= inline_bytes && alignof(T) <= 8 && std::is_nothrow_move_constructible_v<T>;

  template <class T>
  static const T* at(const std::byte* m) noexcept {
    if constexpr (is_inline<T>) {
      return std::launder(reinterpret_cast<const T*>(m));
    } else {
      const T* p = nullptr;
      std::memcpy(&p, m, sizeof p);
      return p;
    }
  }
  template <class T>
  static constexpr type_table make_table() {
    type_table t{&typeid(T), sizeof(T), nullptr, nullptr, nullptr, nullptr, nullptr};
    if constexpr (!is_inline<T>) {
      t.destroy = [](std::byte* m) noexcept { delete at<T>(m); };
    } else if constexpr (!std::is_trivially_copyable_v<T>) {
      t.move = [](std::byte* from, std::byte* to) noexcept {
        auto* p = std::launder(reinterpret_cast<T*>(from));
        new (to) T(std::move(*p));
        p->~T();
      };
      t.destroy = [](std::byte* m) noexcept { std::launder(reinterpret_cast<T*>(m))->~T(); };
    }
    if constexpr (std::is_copy_constructible_v<T>) {
      t.copy = [](const std::byte* from, std::byte* to) {
        if constexpr (is_inline<T>) {
          new (to) T(*at<T>(from));
        } else {
          auto* p = new T(*at<T>(from));
          std::memcpy(to, &p, sizeof p);
        }
      };
    }
    if constexpr (!std::is_arithmetic_v<T> && !std::is_enum_v<T>)
      t.bytes = [](const std::byte* m) { return value_bytes(*at<T>(m)); };
    t.text = [](const std::byte* m) { return value_text(*at<T>(m)); };
    return t;
  }
  template <class T>
  static constexpr type_table type_of = make_table<T>();

  void put_pointer(void* p) noexcept { std::memcpy(memory_, &p, sizeof p); }
  void* pointer() const noexcept {
    void* p = nullptr;
    std::memcpy(&p, memory_, sizeof p);
    return p;
  }
  void take(any_value& o) noexcept {
    type_ = std::exchange(o.type_, nullptr);
    if (type_ != nullptr && type_->move != nullptr)
      type_->move(o.memory_, memory_);
    else
      std::memcpy(memory_, o.memory_, inline_bytes);
  }

  alignas(8) std::byte memory_[inline_bytes];
  const type_table* type_ = nullptr;
};

}  // namespace troupe
