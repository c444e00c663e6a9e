#pragma once
// Values as bytes, for edges between processes: numbers, texts, tensors, vectors, deques, arrays,
// optionals, tuples, ordered maps and sets, and plain structs that list their fields
// (value_traits.hpp). Hashed containers do not travel: what was read would be in another order.
//
// Numbers are as they lie in memory, little-endian; sizes are u64. A tensor's elements stand at a
// multiple of 64 bytes, so that whoever reads them from a tensor needs no copy. Nothing says what
// stands where: both ends have the same type, which they know by layout_of().
//
// VC-1  What is read is what was written, bit for bit. Bytes of anybody else end in failed(), never
//       beyond the bytes, nor in more memory than a small multiple of them.
// Threading: values. Ownership: a value that was read keeps the bytes of its tensors.

#include "troupe/devices/tensor.hpp"
#include "troupe/runtime/flow/any_value.hpp"
#include "troupe/runtime/flow/stage_name.hpp"
#include "troupe/runtime/flow/value_traits.hpp"

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

namespace troupe {

static_assert(std::endian::native == std::endian::little, "values travel as they lie in memory");

// Writes into memory that is large enough, or, without any, counts.
class byte_writer {
 public:
  byte_writer() noexcept = default;
  explicit byte_writer(std::span<std::byte> into) noexcept : into_(into.data()) {}
  std::size_t size() const noexcept { return size_; }
  void put(std::span<const std::byte> bytes) noexcept {
    if (into_ != nullptr && !bytes.empty()) std::memcpy(into_ + size_, bytes.data(), bytes.size());
    size_ += bytes.size();
  }
  template <class T>
    requires std::is_trivially_copyable_v<T>
  void number(const T& n) noexcept {
    put(std::as_bytes(std::span(&n, 1)));
  }
  void text(std::string_view t) noexcept {
    number(std::uint64_t{t.size()});
    put(std::as_bytes(std::span(t)));
  }
  void align(std::size_t to) noexcept {
    for (; size_ % to != 0; ++size_)
      if (into_ != nullptr) into_[size_] = std::byte{0};
  }

 private:
  std::byte* into_ = nullptr;
  std::size_t size_ = 0;
};

class byte_reader {
 public:
  explicit byte_reader(std::span<const std::byte> bytes) noexcept : bytes_(bytes) {}
  // Of a tensor, of whose memory the tensors that are read are parts.
  explicit byte_reader(const tensor& whole) noexcept
      : bytes_(std::as_const(whole).bytes()), whole_(&whole) {}
  bool failed() const noexcept { return failed_; }
  void fail() noexcept { failed_ = true; }
  std::size_t left() const noexcept { return bytes_.size() - at_; }
  std::size_t at() const noexcept { return at_; }
  const tensor* whole() const noexcept { return whole_; }
  // So many bytes; none where there are fewer, and it has failed then.
  std::span<const std::byte> take(std::size_t n) noexcept {
    if (failed_ || n > left()) {
      failed_ = true;
      return {};
    }
    at_ += n;
    return bytes_.subspan(at_ - n, n);
  }
  template <class T>
    requires std::is_trivially_copyable_v<T>
  T number() noexcept {
    T n{};
    const auto from = take(sizeof n);
    if (!from.empty()) std::memcpy(&n, from.data(), sizeof n);
    return n;
  }
  // How many of something, of which each takes a byte at least.
  std::size_t count() noexcept {
    const auto n = number<std::uint64_t>();
    if (n <= left()) return static_cast<std::size_t>(n);
    failed_ = true;
    return 0;
  }
  std::string text() {
    const auto bytes = take(count());
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  void align(std::size_t to) noexcept { take((to - at_ % to) % to); }

 private:
  std::span<const std::byte> bytes_;
  const tensor* whole_ = nullptr;
  std::size_t at_ = 0;
  bool failed_ = false;
};

void write_tensor(byte_writer& w, const tensor& t);
tensor read_tensor(byte_reader& r);

template <class T>
struct is_map : std::false_type {};
template <class K, class V, class C, class A>
struct is_map<std::map<K, V, C, A>> : std::true_type {};
template <class T>
struct is_set : std::false_type {};
template <class T, class C, class A>
struct is_set<std::set<T, C, A>> : std::true_type {};

// Whether values of T go over a wire. Types that hold themselves do not.
template <class T, int Depth = 0>
consteval bool travels() {
  if constexpr (Depth > 12) {
    return false;
  } else if constexpr (std::is_arithmetic_v<T>) {
    return !std::is_same_v<T, long double>;
  } else if constexpr (std::is_enum_v<T> || std::is_same_v<T, std::string> ||
                       std::is_same_v<T, tensor>) {
    return true;
  } else if constexpr (is_vector<T>::value || is_array<T>::value || is_optional<T>::value ||
                       is_set<T>::value || is_deque<T>::value) {
    return travels<typename T::value_type, Depth + 1>();
  } else if constexpr (is_map<T>::value) {
    return travels<typename T::key_type, Depth + 1>() &&
           travels<typename T::mapped_type, Depth + 1>();
  } else if constexpr (is_tuple<T>::value) {
    return []<std::size_t... I>(std::index_sequence<I...>) {
      return (travels<std::tuple_element_t<I, T>, Depth + 1>() && ...);
    }(std::make_index_sequence<std::tuple_size_v<T>>());
  } else if constexpr (has_fields<T> && std::is_default_constructible_v<T>) {
    return []<auto... M, class... L>(const field_list<M...>&) {
      return (travels<std::remove_cvref_t<decltype(std::declval<T&>().*M)>, Depth + 1>() && ...);
    }(T::fields);
  } else {
    return false;
  }
}
template <class T>
concept can_travel = travels<T>();

template <class T>
void write_value(byte_writer& w, const T& v) {
  if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
    w.number(v);
  } else if constexpr (std::is_same_v<T, std::string>) {
    w.text(v);
  } else if constexpr (std::is_same_v<T, tensor>) {
    write_tensor(w, v);
  } else if constexpr (is_vector<T>::value) {
    using E = typename T::value_type;
    w.number(std::uint64_t{v.size()});
    if constexpr (std::is_arithmetic_v<E> && !std::is_same_v<E, bool>)
      w.put(std::as_bytes(std::span(v)));
    else
      for (const auto& e : v) write_value<E>(w, e);
  } else if constexpr (is_array<T>::value) {
    for (const auto& e : v) write_value(w, e);
  } else if constexpr (is_optional<T>::value) {
    w.number(v.has_value());
    if (v) write_value(w, *v);
  } else if constexpr (is_map<T>::value) {
    w.number(std::uint64_t{v.size()});
    for (const auto& [k, e] : v) write_value(w, k), write_value(w, e);
  } else if constexpr (is_set<T>::value || is_deque<T>::value) {
    w.number(std::uint64_t{v.size()});
    for (const auto& e : v) write_value(w, e);
  } else if constexpr (is_tuple<T>::value) {
    std::apply([&](const auto&... m) { (write_value(w, m), ...); }, v);
  } else {
    T::fields.each(v, [&](std::string_view, const auto& m) { write_value(w, m); });
  }
}

template <class T>
void read_value(byte_reader& r, T& v) {
  if constexpr (std::is_same_v<T, bool>) {
    const auto b = r.number<std::uint8_t>();
    if (b > 1) r.fail();
    v = b == 1;
  } else if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
    v = r.number<T>();
  } else if constexpr (std::is_same_v<T, std::string>) {
    v = r.text();
  } else if constexpr (std::is_same_v<T, tensor>) {
    v = read_tensor(r);
  } else if constexpr (is_vector<T>::value) {
    using E = typename T::value_type;
    const auto n = r.count();
    v.clear();
    if constexpr (std::is_arithmetic_v<E> && !std::is_same_v<E, bool>) {
      const auto bytes = n > r.left() / sizeof(E) ? (r.fail(), std::span<const std::byte>())
                                                  : r.take(n * sizeof(E));
      v.resize(bytes.size() / sizeof(E));
      if (!bytes.empty()) std::memcpy(v.data(), bytes.data(), bytes.size());
    } else {
      for (std::size_t i = 0; i < n && !r.failed(); ++i) {
        E e{};
        read_value(r, e);
        v.push_back(std::move(e));
      }
    }
  } else if constexpr (is_array<T>::value) {
    for (auto& e : v) read_value(r, e);
  } else if constexpr (is_optional<T>::value) {
    bool has = false;
    read_value(r, has);
    if (has && !r.failed())
      read_value(r, v.emplace());
    else
      v.reset();
  } else if constexpr (is_map<T>::value) {
    const auto n = r.count();
    v.clear();
    for (std::size_t i = 0; i < n && !r.failed(); ++i) {
      typename T::key_type k{};
      typename T::mapped_type e{};
      read_value(r, k), read_value(r, e);
      v.emplace(std::move(k), std::move(e));
    }
  } else if constexpr (is_set<T>::value || is_deque<T>::value) {
    const auto n = r.count();
    v.clear();
    for (std::size_t i = 0; i < n && !r.failed(); ++i) {
      typename T::value_type e{};
      read_value(r, e);
      if constexpr (is_set<T>::value)
        v.insert(std::move(e));
      else
        v.push_back(std::move(e));
    }
  } else if constexpr (is_tuple<T>::value) {
    std::apply([&](auto&... m) { (read_value(r, m), ...); }, v);
  } else {
    T::fields.each(v, [&](std::string_view, auto& m) { read_value(r, m); });
  }
}

// What two processes compare before the first value: "photo{path:text,pixels:tensor}".
template <class T>
std::string layout_of() {
  if constexpr (std::is_same_v<T, bool>) {
    return "bool";
  } else if constexpr (std::is_enum_v<T>) {
    return "enum " + layout_of<std::underlying_type_t<T>>();
  } else if constexpr (std::is_floating_point_v<T>) {
    return "f" + std::to_string(sizeof(T) * 8);
  } else if constexpr (std::is_integral_v<T>) {
    return (std::is_signed_v<T> ? "i" : "u") + std::to_string(sizeof(T) * 8);
  } else if constexpr (std::is_same_v<T, std::string>) {
    return "text";
  } else if constexpr (std::is_same_v<T, tensor>) {
    return "tensor";
  } else if constexpr (is_vector<T>::value) {
    return "[" + layout_of<typename T::value_type>() + "]";
  } else if constexpr (is_set<T>::value || is_deque<T>::value) {
    return std::string(is_set<T>::value ? "set" : "deque") + "[" +
           layout_of<typename T::value_type>() + "]";
  } else if constexpr (is_array<T>::value) {
    return "[" + layout_of<typename T::value_type>() + ";" + std::to_string(std::tuple_size_v<T>) +
           "]";
  } else if constexpr (is_optional<T>::value) {
    return layout_of<typename T::value_type>() + "?";
  } else if constexpr (is_map<T>::value) {
    return "{" + layout_of<typename T::key_type>() + ":" + layout_of<typename T::mapped_type>() +
           "}";
  } else if constexpr (is_tuple<T>::value) {
    std::string text;
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      ((text += (I > 0 ? "," : "") + layout_of<std::tuple_element_t<I, T>>()), ...);
    }(std::make_index_sequence<std::tuple_size_v<T>>());
    return "(" + text + ")";
  } else {
    std::string text;
    [&]<auto... M>(const field_list<M...>& list) {
      std::size_t i = 0;
      ((text += (i > 0 ? "," : "") + std::string(list.names[i]) + ":" +
                layout_of<std::remove_cvref_t<decltype(std::declval<T&>().*M)>>(),
        ++i),
       ...);
    }(T::fields);
    return stage_name(typeid(T), "struct") + "{" + text + "}";
  }
}

// Of the type of an edge's items.
struct value_codec {
  void (*write)(byte_writer&, any_value&);
  any_value (*read)(byte_reader&);
  std::string (*layout)();
};
// Null: they do not travel.
template <class T>
const value_codec* codec_of() {
  if constexpr (can_travel<T>) {
    static constexpr value_codec codec{
        [](byte_writer& w, any_value& v) { write_value(w, v.get<T>()); },
        [](byte_reader& r) {
          T v{};
          read_value(r, v);
          return any_value(std::move(v));
        },
        [] { return layout_of<T>(); }};
    return &codec;
  } else {
    return nullptr;
  }
}

// A value of its own, as bytes.
template <class T>
std::vector<std::byte> bytes_of(const T& v) {
  byte_writer counts;
  write_value(counts, v);
  std::vector<std::byte> bytes(counts.size());
  byte_writer w(bytes);
  write_value(w, v);
  return bytes;
}
// nullopt: these are not exactly the bytes of one.
template <class T>
std::optional<T> value_of(std::span<const std::byte> bytes) {
  byte_reader r(bytes);
  T v{};
  read_value(r, v);
  if (r.failed() || r.left() > 0) return std::nullopt;
  return v;
}

}  // namespace troupe
