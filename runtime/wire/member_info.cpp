#include "troupe/runtime/wire/member_info.hpp"

#include <cstddef>

namespace troupe {

std::string_view to_string(member_kind k) noexcept {
  static constexpr std::string_view names[] = {"node", "client", "tool"};
  return names[static_cast<std::size_t>(k)];
}

std::string_view to_string(member_state s) noexcept {
  static constexpr std::string_view names[] = {"alive", "unreachable", "dead", "left"};
  return names[static_cast<std::size_t>(s)];
}

}  // namespace troupe
