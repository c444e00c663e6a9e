#include "troupe/devices/cuda/libraries/shared_library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

namespace troupe::cuda {

std::string missing_text(std::string_view what, std::string_view reason, std::string_view install) {
  return fmt::format("{} is missing ({}): install {}", what, reason, install);
}

result<shared_library> shared_library::open(const library_name& name) {
  std::string reasons;
  for (const char* file : name.files) {
    if (void* handle = ::dlopen(file, RTLD_NOW | RTLD_LOCAL); handle != nullptr) {
      shared_library l;
      l.handle_ = handle;
      l.what_ = name.what;
      l.file_ = file;
      l.install_ = name.install;
      return l;
    }
    const char* reason = ::dlerror();
    if (!reasons.empty()) reasons += "; ";
    reasons += reason != nullptr ? reason : file;
  }
  return error(error_code::not_found, missing_text(name.what, reasons, name.install));
}

result<void*> shared_library::symbol(const char* name) const {
  if (void* at = ::dlsym(handle_, name); at != nullptr) return at;
  return error(error_code::not_found, fmt::format("{} ({}) has no {}: it is too old; install {}",
                                                  what_, file_, name, install_));
}

}  // namespace troupe::cuda
