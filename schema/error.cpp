#include "troupe/schema/error.hpp"

#include <fmt/format.h>

namespace troupe {

std::string_view to_string(error_code c) noexcept {
  switch (c) {
    case error_code::failed: return "failed";
    case error_code::usage: return "usage";
    case error_code::unreachable: return "unreachable";
    case error_code::timed_out: return "timed out";
    case error_code::denied: return "denied";
    case error_code::not_found: return "not found";
  }
  return "unknown";
}

std::string error::text() const {
  return file_.empty() ? message_ : fmt::format("{}:{}: {}", file_, line_, message_);
}

error& error::at(const source_location& where) { return at(where.file_name(), where.line()); }

error& error::at(std::string_view file, std::uint32_t line) {
  if (file_.empty()) {
    file_ = file;
    line_ = line;
  }
  return *this;
}

error& error::while_doing(std::string_view what) {
  message_ = fmt::format("{}: {}", what, message_);
  return *this;
}

void fail_invariant(const char* what, const std::source_location& where) {
  throw broken_invariant(
      fmt::format("{}:{}: broken invariant: {}", where.file_name(), where.line(), what));
}

}  // namespace troupe
