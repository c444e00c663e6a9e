#pragma once
// HOST:PORT as people write it: "localhost:0", "127.0.0.1:7000", "[::1]:7000", "gpu-3.lab:7000".
//
// Pure: looking a name up is the transport's work. Port 0 means "any free port" where somebody
// listens.

#include "troupe/schema/error.hpp"

#include <cstdint>
#include <string>
#include <string_view>

namespace troupe {

struct address {
  std::string host;  // a name, or an IPv4 or IPv6 address without brackets
  std::uint16_t port = 0;

  friend bool operator==(const address&, const address&) = default;
};

// usage errors name the text and what is wrong with it.
result<address> parse_address(std::string_view text);
std::string to_string(const address& a);

bool is_ipv4(std::string_view host) noexcept;
// Also with the network card of a link-local one, "fe80::1%eth0", as this machine calls it.
bool is_ipv6(std::string_view host) noexcept;
// 0.0.0.0 or ::, which means every address of this machine: one can listen there, and nobody can be
// told to connect there.
bool is_wildcard(const address& a) noexcept;
// 169.254.0.0/16 or fe80::/10: reached from the same network alone.
bool is_link_local(const address& a) noexcept;
// localhost, 127.0.0.0/8 or ::1: not reachable from other machines.
bool is_loopback(const address& a) noexcept;

}  // namespace troupe
