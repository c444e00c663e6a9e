#include "troupe/runtime/flow/stage_name.hpp"

#include <cxxabi.h>

#include <cstdlib>
#include <string_view>

namespace troupe {

std::string stage_name(const std::type_info& type, const char* otherwise) {
  int status = 0;
  char* text = abi::__cxa_demangle(type.name(), nullptr, nullptr, &status);
  std::string name = text != nullptr ? text : "";
  std::free(text);
  constexpr std::string_view unnamed = "(anonymous namespace)::";
  for (auto at = name.find(unnamed); at != std::string::npos; at = name.find(unnamed))
    name.erase(at, unnamed.size());
  // Of a lambda, a pointer to a function or std::function nothing can be told.
  if (name.empty() || name.find_first_of("(*{") != std::string::npos || name.starts_with("std::"))
    return otherwise;
  if (const auto at = name.find('<'); at != std::string::npos) name.resize(at);
  if (const auto at = name.rfind("::"); at != std::string::npos) name.erase(0, at + 2);
  return name;
}

}  // namespace troupe
