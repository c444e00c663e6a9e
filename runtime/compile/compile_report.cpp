#include "troupe/runtime/compile/compile_report.hpp"

#include <fmt/format.h>

namespace troupe {

std::string pass_change::text() const {
  return source.file.empty() ? fmt::format("'{}' {}", op, what)
                             : fmt::format("'{}' {} ({}:{})", op, what, source.file, source.line);
}

}  // namespace troupe
