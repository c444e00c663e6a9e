#include "troupe/runtime/text/join_place.hpp"

#include <fmt/format.h>

#include <utility>

namespace troupe {

namespace {
constexpr std::string_view dns_prefix = "dns:";
}  // namespace

result<join_place> parse_join(std::string_view text) {
  const bool is_dns = text.starts_with(dns_prefix);
  auto at = parse_address(is_dns ? text.substr(dns_prefix.size()) : text);
  if (!at && is_dns)
    return error(at.error().code(), fmt::format("'{}': {}", text, at.error().message()));
  if (!at) return at.error();
  if (at->port == 0)
    return error(error_code::usage, fmt::format("'{}': port 0 is nobody's to connect to", text));
  return join_place{std::move(*at), is_dns};
}

result<std::vector<std::string>> split_joins(std::span<const std::string> joins,
                                             std::vector<address>& names) {
  std::vector<std::string> addresses;
  for (const auto& join : joins) {
    auto place = parse_join(join);
    if (!place) return place.error();
    if (place->is_dns)
      names.push_back(std::move(place->at));
    else
      addresses.push_back(join);
  }
  return addresses;
}

}  // namespace troupe
