#pragma once
// What fuzz targets make of the fuzzer's bytes: values from the front. An empty input gives zeros.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace troupe::test {

class fuzz_input {
 public:
  explicit fuzz_input(std::span<const std::byte> bytes) : rest_(bytes) {}

  bool is_empty() const { return rest_.empty(); }
  std::uint8_t byte() {
    const auto taken = some(1);
    return taken.empty() ? 0 : std::to_integer<std::uint8_t>(taken[0]);
  }
  // Of two bytes.
  std::size_t size() { return byte() | static_cast<std::size_t>(byte()) << 8; }
  // Of up to four bytes; small ones take two.
  std::uint32_t number() {
    std::uint32_t n = 0;
    const auto taken = some(1 + byte() % 4);
    if (!taken.empty()) std::memcpy(&n, taken.data(), taken.size());
    return n;
  }
  std::span<const std::byte> some(std::size_t n) {
    const auto taken = rest_.first(std::min(n, rest_.size()));
    rest_ = rest_.subspan(taken.size());
    return taken;
  }
  std::vector<std::byte> bytes(std::size_t n) {
    const auto taken = some(n);
    return {taken.begin(), taken.end()};
  }
  std::string text(std::size_t n) {
    const auto taken = some(n);
    return {reinterpret_cast<const char*>(taken.data()), taken.size()};
  }
  std::span<const std::byte> rest() const { return rest_; }
  std::string rest_text() const {
    return {reinterpret_cast<const char*>(rest_.data()), rest_.size()};
  }

 private:
  std::span<const std::byte> rest_;
};

// A property that does not hold is what the fuzzer looks for.
inline void check(bool holds) {
  if (!holds) std::abort();
}

}  // namespace troupe::test
