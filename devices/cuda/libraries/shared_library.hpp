#pragma once
// A library that is looked for when the program runs: the CUDA libraries, which a machine without a
// GPU does not have. No CUDA header here.
//
// Threading: opened once, by one thread; symbols may be asked for by any.
// Ownership: libraries stay open until the process ends; CUDA's do not survive being closed.
//
// SL-1  What is missing is an error that names the library, what the system said, and what to
//       install.

#include "troupe/schema/error.hpp"

#include <span>
#include <string>
#include <string_view>

namespace troupe::cuda {

struct library_name {
  std::string_view what;  // "NVRTC"
  // In the order in which they are tried: "libnvrtc.so.13", ...
  std::span<const char* const> files;
  std::string_view install;  // "the CUDA toolkit's NVRTC (package cuda-nvrtc-13-0)"
};

class shared_library {
 public:
  // Error: not_found (SL-1).
  static result<shared_library> open(const library_name& name);
  result<void*> symbol(const char* name) const;
  // Sets `to`, a pointer to a function.
  template <class Function>
  result<void> bind(Function& to, const char* name) const {
    auto found = symbol(name);
    if (!found) return std::move(found.error());
    to = reinterpret_cast<Function>(*found);
    return {};
  }
  const std::string& file() const noexcept { return file_; }

 private:
  void* handle_ = nullptr;
  std::string what_, file_, install_;
};

// Pure: "NVRTC is missing (libnvrtc.so.13: cannot open ...): install ...".
std::string missing_text(std::string_view what, std::string_view reason, std::string_view install);

}  // namespace troupe::cuda
