#pragma once
// What somebody asks `troupe serve` for, and whether they may.
//
// SE-1  Whatever the bytes are: a target becomes a path and a query, or an error that says what is
//       wrong with it. Texts are UTF-8 without control characters.
// SE-2  Without the token nobody learns more than whether the server lives. What is given is
//       compared in the same time, however much of it is right.
// SE-3  A page of another site learns nothing: on loopback, and wherever there is no token, the
//       name in Host is one of this machine's (a site that has its own name resolved to 127.0.0.1
//       sends its own), and a browser that says that the question comes from another site is
//       refused. A link to the page itself may lead here from another site, in a window of its own;
//       no other path is answered there, since some answers cost the cluster something, as a
//       recording does.
//
// Threading: values and functions of them; a door never changes. Ownership: values.

#include "troupe/runtime/wire/secret.hpp"
#include "troupe/schema/error.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe {

inline constexpr std::size_t target_bytes_max = 4096;
inline constexpr std::size_t query_keys_max = 16;

struct request_target {
  std::string path;                                        // "/api/why"
  std::vector<std::pair<std::string, std::string>> query;  // decoded, each key once

  // nullptr: it was not given.
  const std::string* find(std::string_view key) const noexcept;
};

// "/api/why?job=my%20job". Errors: usage.
result<request_target> parse_target(std::string_view target);

// Of the absolute form, "http://HOST/PATH": HOST, and "/PATH"; of another: nothing, and as it is.
std::pair<std::optional<std::string>, std::string> split_absolute(std::string_view target);

// As it is written, without the key `token`.
std::string target_without_token(const request_target& target);

// What a head says besides its target; "" where it does not.
struct request_head {
  std::string host, authorization, cookie;
  // Sec-Fetch-Site, Sec-Fetch-Mode, Sec-Fetch-Dest
  std::string fetch_site, fetch_mode, fetch_dest;
};

enum class admission : std::uint8_t {
  granted,
  granted_by_query,  // the token was in the query: from now on a cookie takes its place
  wrong_host,
  other_site,
  no_token,
  wrong_token,
};

class door {
 public:
  // `token`: empty, everybody may. `session` is what the cookie has instead of the token.
  // `is_loopback`: it listens at a loopback address. `host` is what it was told to listen at,
  // `machine` the host name of the machine.
  door(const secret& token, std::string cookie_name, std::string session, bool is_loopback,
       std::string host, std::string machine);

  admission admit(const request_head& head, const request_target& target) const;
  bool has_token() const noexcept { return has_token_; }
  // "troupe_8080=..": without its attributes.
  std::string cookie() const { return cookie_name_ + "=" + session_; }

 private:
  using digest = std::array<unsigned char, 32>;
  static digest digest_of(std::string_view text);
  bool is_own_host(std::string_view host) const;
  bool has_cookie(std::string_view cookies) const;

  bool has_token_ = false, is_loopback_ = false;
  digest token_{}, session_digest_{};
  std::string cookie_name_, session_, host_, machine_;
};

// "sha256-..." of a script or a style, as a Content-Security-Policy names it.
std::string policy_hash(std::string_view text);

}  // namespace troupe
