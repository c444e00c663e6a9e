#include "troupe/runtime/text/address.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <net/if.h>

#include <algorithm>
#include <charconv>

namespace troupe {
namespace {

constexpr std::size_t host_bytes_max = 253;  // RFC 1035

error bad_address(std::string_view text, std::string_view what) {
  return {error_code::usage, fmt::format("address '{}': {}", text.substr(0, 300), what)};
}

bool is_host_character(char c) noexcept {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '.' || c == '_';
}

bool looks_like_ipv4(std::string_view host) noexcept {
  return std::all_of(host.begin(), host.end(),
                     [](char c) { return (c >= '0' && c <= '9') || c == '.'; });
}

template <class Binary>
bool parses_as(int family, std::string_view host) noexcept {
  Binary binary;
  char text[INET6_ADDRSTRLEN + 1] = {};
  if (host.size() >= sizeof text || host.find('\0') != host.npos) return false;
  std::copy(host.begin(), host.end(), text);
  return inet_pton(family, text, &binary) == 1;
}

result<std::uint16_t> parse_port(std::string_view text, std::string_view port) {
  unsigned value = 0;
  const auto [end, failure] = std::from_chars(port.data(), port.data() + port.size(), value);
  if (port.empty() || failure != std::errc{} || end != port.data() + port.size() || value > 65535)
    return bad_address(text,
                       fmt::format("'{}' is no port; a port is a number from 0 to 65535", port));
  return static_cast<std::uint16_t>(value);
}

}  // namespace

bool is_ipv4(std::string_view host) noexcept { return parses_as<in_addr>(AF_INET, host); }
bool is_ipv6(std::string_view host) noexcept {
  const auto percent = host.find('%');
  if (percent == host.npos) return parses_as<in6_addr>(AF_INET6, host);
  const auto card = host.substr(percent + 1);
  return parses_as<in6_addr>(AF_INET6, host.substr(0, percent)) && !card.empty() &&
         card.size() < IF_NAMESIZE && std::all_of(card.begin(), card.end(), is_host_character);
}

result<address> parse_address(std::string_view text) {
  const auto colon = text.rfind(':');
  if (colon == text.npos || text.ends_with(']'))
    return bad_address(text, "the port is missing; write HOST:PORT, as in localhost:7000");
  std::string_view host = text.substr(0, colon);
  const bool has_brackets = host.size() >= 2 && host.front() == '[' && host.back() == ']';
  if (has_brackets) {
    host = host.substr(1, host.size() - 2);
    if (!is_ipv6(host)) return bad_address(text, fmt::format("'{}' is no IPv6 address", host));
  } else if (host.find(':') != host.npos) {
    return bad_address(text, "an IPv6 address stands in brackets, as in [::1]:7000");
  } else if (host.empty()) {
    return bad_address(
        text, "the host is missing; write localhost:7000, or 0.0.0.0:7000 for every interface");
  } else if (looks_like_ipv4(host)
                 ? !is_ipv4(host)
                 : host.size() > host_bytes_max ||
                       !std::all_of(host.begin(), host.end(), is_host_character)) {
    return bad_address(text, fmt::format("'{}' is neither an address nor a host name", host));
  }
  auto port = parse_port(text, text.substr(colon + 1));
  if (!port) return port.error();
  return address{std::string(host), *port};
}

std::string to_string(const address& a) {
  return a.host.find(':') != std::string::npos ? fmt::format("[{}]:{}", a.host, a.port)
                                               : fmt::format("{}:{}", a.host, a.port);
}

bool is_loopback(const address& a) noexcept {
  return a.host == "localhost" || a.host == "::1" ||
         (is_ipv4(a.host) && a.host.starts_with("127."));
}

bool is_wildcard(const address& a) noexcept {
  in6_addr host6;
  return a.host == "0.0.0.0" ||
         (is_ipv6(a.host) && a.host.find('%') == std::string::npos &&
          inet_pton(AF_INET6, a.host.c_str(), &host6) == 1 && IN6_IS_ADDR_UNSPECIFIED(&host6) != 0);
}

bool is_link_local(const address& a) noexcept {
  in6_addr host6;
  return (is_ipv4(a.host) && a.host.starts_with("169.254.")) ||
         (is_ipv6(a.host) &&
          inet_pton(AF_INET6, a.host.substr(0, a.host.find('%')).c_str(), &host6) == 1 &&
          IN6_IS_ADDR_LINKLOCAL(&host6) != 0);
}

}  // namespace troupe
