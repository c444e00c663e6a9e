#include "troupe/runtime/wire/secret.hpp"

#include <openssl/crypto.h>
#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <ostream>

namespace troupe {

// Pages of its own: what the system leaves out of core files is whole pages.
class secret::memory {
 public:
  explicit memory(std::string_view text) : size_(text.size()) {
    void* at = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) throw std::bad_alloc();
    text_ = static_cast<char*>(at);
    // Where the system cannot do it, the token is as safe as all else in memory.
    (void)::madvise(at, size_, MADV_DONTDUMP);
    std::ranges::copy(text, text_);
  }
  ~memory() {
    OPENSSL_cleanse(text_, size_);
    ::munmap(text_, size_);
  }
  memory(const memory&) = delete;
  memory& operator=(const memory&) = delete;

  std::string_view text() const noexcept { return {text_, size_}; }

 private:
  char* text_ = nullptr;
  std::size_t size_;
};

secret::secret(std::string_view text) {
  if (!text.empty()) memory_ = std::make_shared<const memory>(text);
}

std::string_view secret::text() const noexcept {
  return memory_ != nullptr ? memory_->text() : std::string_view();
}

std::ostream& operator<<(std::ostream& out, const secret& s) {
  return out << "(a secret of " << s.size() << " bytes)";
}

void wipe(std::string& text) noexcept { OPENSSL_cleanse(text.data(), text.capacity()); }

}  // namespace troupe
