#include "troupe/runtime/flow/stage_library.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace troupe {

const library_stage* stage_library::find(std::string_view stage) const noexcept {
  const auto at = std::ranges::find(stages_, stage, &library_stage::name);
  return at != stages_.end() ? &*at : nullptr;
}
const library_stage* stage_library::find(const function_id& who) const noexcept {
  auto at = std::ranges::find(stages_, who, &library_stage::who);
  if (at == stages_.end())
    at = std::ranges::find_if(stages_, [&](const auto& s) { return s.who.is_function_of(who); });
  return at != stages_.end() ? &*at : nullptr;
}

result<void> check_library(const stage_library& l) {
  if (l.name().empty()) return error(error_code::usage, "a stage library without a name");
  for (const auto& s : l.stages()) {
    if (s.name.empty() || s.make == nullptr)
      return error(error_code::usage,
                   fmt::format("stage library {}: one of its stages has no name", l.name()));
    if (l.find(s.name) != &s)
      return error(error_code::usage,
                   fmt::format("stage library {}: two stages are named {}", l.name(), s.name));
    if (l.find(s.who) != &s)
      return error(error_code::usage,
                   fmt::format("stage library {}: {} and {} are the same function", l.name(),
                               l.find(s.who)->name, s.name));
  }
  return {};
}

std::uint64_t stage_library_abi_of(std::uint64_t headers) noexcept {
  for (const char c : version())
    headers = stage_library_detail::mixed(headers, static_cast<unsigned char>(c));
  return headers;
}

}  // namespace troupe
