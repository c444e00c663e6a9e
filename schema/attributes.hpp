#pragma once
// The named constants of an op ("transpose_a" = 1, "axes" = {0, 2}, "path" = "..."), sorted by
// name, as they stand in a plan.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace troupe {

// Bytes that never change and that copies share, so that a plan may carry weights; equal where
// their contents are.
class shared_bytes {
 public:
  shared_bytes() = default;
  explicit shared_bytes(std::vector<std::byte> bytes)
      : bytes_(std::make_shared<const std::vector<std::byte>>(std::move(bytes))) {}
  std::span<const std::byte> view() const noexcept {
    return bytes_ != nullptr ? std::span<const std::byte>(*bytes_) : std::span<const std::byte>();
  }
  friend bool operator==(const shared_bytes& a, const shared_bytes& b) noexcept {
    return a.bytes_ == b.bytes_ || std::ranges::equal(a.view(), b.view());
  }

 private:
  std::shared_ptr<const std::vector<std::byte>> bytes_;
};

class attributes {
 public:
  using value =
      std::variant<std::int64_t, double, std::string, std::vector<std::int64_t>, shared_bytes>;
  using entry = std::pair<std::string, value>;

  attributes() = default;
  attributes(std::initializer_list<entry> entries) {
    for (const auto& e : entries) set(e.first, e.second);
  }

  void set(std::string name, value v) {
    auto at = std::lower_bound(entries_.begin(), entries_.end(), name,
                               [](const entry& e, const std::string& n) { return e.first < n; });
    if (at != entries_.end() && at->first == name)
      at->second = std::move(v);
    else
      entries_.insert(at, entry{std::move(name), std::move(v)});
  }

  // The value, or `otherwise` where the name is missing or holds another type.
  std::int64_t integer(std::string_view name, std::int64_t otherwise = 0) const {
    return get(name, otherwise);
  }
  // A whole number counts, too.
  double real(std::string_view name, double otherwise = 0) const {
    const auto* v = find(name);
    const auto* whole = v != nullptr ? std::get_if<std::int64_t>(v) : nullptr;
    return whole != nullptr ? static_cast<double>(*whole) : get(name, otherwise);
  }
  std::string text(std::string_view name, std::string otherwise = {}) const {
    return get(name, std::move(otherwise));
  }
  std::vector<std::int64_t> integers(std::string_view name,
                                     std::vector<std::int64_t> otherwise = {}) const {
    return get(name, std::move(otherwise));
  }
  shared_bytes data(std::string_view name) const { return get(name, shared_bytes()); }
  bool has(std::string_view name) const { return find(name) != nullptr; }

  const std::vector<entry>& entries() const noexcept { return entries_; }
  friend bool operator==(const attributes&, const attributes&) = default;

 private:
  const value* find(std::string_view name) const {
    for (const auto& e : entries_)
      if (e.first == name) return &e.second;
    return nullptr;
  }
  template <class T>
  T get(std::string_view name, T otherwise) const {
    const auto* v = find(name);
    const auto* typed = v != nullptr ? std::get_if<T>(v) : nullptr;
    return typed != nullptr ? *typed : std::move(otherwise);
  }

  std::vector<entry> entries_;
};

}  // namespace troupe
