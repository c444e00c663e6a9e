#pragma once
// A secret text, such as a cluster's token: in memory that no core file holds, and wiped when the
// last copy of the value goes.
//
// Threading: a value; its text never changes, so that copies may be read on any thread.
// Ownership: copies share one memory.

#include <cstddef>
#include <iosfwd>
#include <memory>
#include <string>
#include <string_view>

namespace troupe {

class secret {
 public:
  secret() = default;  // empty
  // Copies the text; who passes it wipes its own (wipe()). std::bad_alloc: no memory is left.
  secret(std::string_view text);
  secret(const char* text) : secret(std::string_view(text)) {}
  secret(const std::string& text) : secret(std::string_view(text)) {}

  std::string_view text() const noexcept;
  bool empty() const noexcept { return text().empty(); }
  std::size_t size() const noexcept { return text().size(); }

  // For tests: it takes longer the more is equal. What strangers send is compared with
  // CRYPTO_memcmp (runtime/wire/handshake.cpp).
  friend bool operator==(const secret& a, const secret& b) noexcept { return a.text() == b.text(); }

 private:
  class memory;
  std::shared_ptr<const memory> memory_;
};

// Its length, and never the text.
std::ostream& operator<<(std::ostream& out, const secret& s);

// Overwrites all that the string holds.
void wipe(std::string& text) noexcept;

}  // namespace troupe
