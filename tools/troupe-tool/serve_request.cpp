#include "tools/troupe-tool/serve_request.hpp"

#include "troupe/runtime/text/address.hpp"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/sha.h>

#include <algorithm>
#include <optional>

namespace troupe {

namespace {

error bad_target(const char* what) {
  return {error_code::usage, fmt::format("the target of the request {}", what)};
}

int hex_digit(char c) noexcept {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// How many bytes the character at `at` has (RFC 3629); 0: it is none.
std::size_t character_bytes(std::string_view text, std::size_t at) noexcept {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const auto first = byte(at);
  if (first < 0x80) return 1;
  const std::size_t n = first >= 0xc2 && first <= 0xdf   ? 2
                        : first >= 0xe0 && first <= 0xef ? 3
                        : first >= 0xf0 && first <= 0xf4 ? 4
                                                         : 0;
  if (n == 0 || at + n > text.size()) return 0;
  for (std::size_t i = at + 1; i < at + n; ++i)
    if ((byte(i) & 0xc0U) != 0x80U) return 0;
  const auto second = byte(at + 1);
  const bool is_wrong = (first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f) ||
                        (first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f);
  return is_wrong ? 0 : n;
}

bool is_plain_text(std::string_view text) noexcept {
  for (std::size_t at = 0; at < text.size();) {
    const auto n = character_bytes(text, at);
    const auto c = static_cast<unsigned char>(text[at]);
    const bool is_second_set =
        n == 2 && c == 0xc2 && static_cast<unsigned char>(text[at + 1]) < 0xa0;
    if (n == 0 || c < ' ' || c == 0x7f || is_second_set) return false;
    at += n;
  }
  return true;
}

// Nothing: it is not written as it should be.
std::optional<std::string> decoded(std::string_view text, bool is_query) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '+' && is_query) {
      out += ' ';
    } else if (text[i] != '%') {
      out += text[i];
    } else {
      const int high = i + 2 < text.size() ? hex_digit(text[i + 1]) : -1;
      const int low = i + 2 < text.size() ? hex_digit(text[i + 2]) : -1;
      if (high < 0 || low < 0) return std::nullopt;
      out += static_cast<char>(high * 16 + low);
      i += 2;
    }
  }
  if (!is_plain_text(out)) return std::nullopt;
  return out;
}

std::string encoded(std::string_view text, bool is_path) {
  std::string out;
  for (const char c : text) {
    const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                          (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.' || c == '~' ||
                          (is_path && c == '/');
    if (is_plain)
      out += c;
    else
      out += fmt::format("%{:02X}", static_cast<unsigned>(static_cast<unsigned char>(c)));
  }
  return out;
}

std::string_view trimmed(std::string_view text) noexcept {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

std::string lower_case(std::string_view text) {
  std::string out(text);
  for (auto& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

// Without its port, the brackets of IPv6 and the dot at its end.
std::string host_name(std::string_view host) {
  if (host.starts_with('[')) {
    const auto end = host.find(']');
    return end == host.npos ? std::string() : lower_case(host.substr(1, end - 1));
  }
  auto name = lower_case(host.substr(0, host.find(':')));
  if (name.size() > 1 && name.ends_with('.')) name.pop_back();  // the root of all names
  return name;
}

// What follows "Bearer ", in whatever case that is (RFC 9110, 11.1).
std::optional<std::string_view> bearer_of(std::string_view authorization) {
  constexpr std::string_view scheme = "bearer ";
  if (lower_case(authorization.substr(0, scheme.size())) != scheme) return std::nullopt;
  return trimmed(authorization.substr(scheme.size()));
}

}  // namespace

const std::string* request_target::find(std::string_view key) const noexcept {
  for (const auto& [k, v] : query)
    if (k == key) return &v;
  return nullptr;
}

result<request_target> parse_target(std::string_view target) {
  if (target.size() > target_bytes_max) return bad_target("is too long: it has 4096 bytes at most");
  if (!target.starts_with('/')) return bad_target("is no path: it begins with a /");
  if (target.find('#') != target.npos) return bad_target("has a #, which stays in the browser");
  const auto mark = target.find('?');
  const auto path = decoded(target.substr(0, mark), false);
  if (!path) return bad_target("has a % without two hexadecimal digits, or is no text");
  request_target out{*path, {}};
  auto rest = mark == target.npos ? std::string_view() : target.substr(mark + 1);
  while (!rest.empty()) {
    const auto piece = rest.substr(0, rest.find('&'));
    rest.remove_prefix(std::min(piece.size() + 1, rest.size()));
    if (piece.empty()) continue;
    const auto equals = piece.find('=');
    auto key = decoded(piece.substr(0, equals), true);
    auto value = decoded(equals == piece.npos ? "" : piece.substr(equals + 1), true);
    if (!key || !value || key->empty())
      return bad_target("has a query that is not written as KEY=VALUE&KEY=VALUE");
    if (out.find(*key) != nullptr) return bad_target("has a key twice");
    if (out.query.size() == query_keys_max) return bad_target("has too many keys: 16 at most");
    out.query.emplace_back(std::move(*key), std::move(*value));
  }
  return out;
}

std::pair<std::optional<std::string>, std::string> split_absolute(std::string_view target) {
  const auto scheme = lower_case(target.substr(0, 8));
  const std::size_t from = scheme.starts_with("http://") ? 7 : scheme == "https://" ? 8 : 0;
  if (from == 0) return {std::nullopt, std::string(target)};
  const auto end = std::min(target.find_first_of("/?", from), target.size());
  auto rest = std::string(target.substr(end));
  if (!rest.starts_with('/')) rest.insert(0, "/");
  return {std::string(target.substr(from, end - from)), std::move(rest)};
}

std::string target_without_token(const request_target& target) {
  std::string out = encoded(target.path, true);
  if (!out.starts_with('/') || out.starts_with("//")) out = "/";  // "//HOST" is another site
  char before = '?';
  for (const auto& [key, value] : target.query) {
    if (key == "token") continue;
    out += before + encoded(key, false) + '=' + encoded(value, false);
    before = '&';
  }
  return out;
}

door::door(const secret& token, std::string cookie_name, std::string session, bool is_loopback,
           std::string host, std::string machine)
    : has_token_(!token.empty()),
      is_loopback_(is_loopback),
      token_(digest_of(token.text())),
      session_digest_(digest_of(session)),
      cookie_name_(std::move(cookie_name)),
      session_(std::move(session)),
      host_(lower_case(host)),
      machine_(lower_case(machine)) {}

door::digest door::digest_of(std::string_view text) {
  digest out{};
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), out.data());
  return out;
}

bool door::is_own_host(std::string_view host) const {
  const auto name = host_name(host);
  if (name == host_ || is_loopback(address{name, 0})) return true;
  // A name may be made to lead here by whoever has it, an address may not.
  return !is_loopback_ &&
         (is_ipv4(name) || is_ipv6(name) || (!machine_.empty() && name == machine_));
}

bool door::has_cookie(std::string_view cookies) const {
  bool is_there = false;
  while (!cookies.empty()) {
    const auto piece = trimmed(cookies.substr(0, cookies.find(';')));
    cookies.remove_prefix(std::min(cookies.find(';'), cookies.size() - 1) + 1);
    const auto equals = piece.find('=');
    if (equals == piece.npos || piece.substr(0, equals) != cookie_name_) continue;
    const auto given = digest_of(piece.substr(equals + 1));
    is_there |= CRYPTO_memcmp(given.data(), session_digest_.data(), given.size()) == 0;
  }
  return is_there;
}

admission door::admit(const request_head& head, const request_target& target) const {
  // HTTP/1.0 has no Host, and no browser speaks it.
  if ((is_loopback_ || !has_token_) && !head.host.empty() && !is_own_host(head.host))
    return admission::wrong_host;
  // Another port of this host is the same site, and another origin.
  const auto& from = head.fetch_site;
  const bool is_link = head.fetch_mode == "navigate" && target.path == "/" &&
                       (head.fetch_dest.empty() || head.fetch_dest == "document");
  if (!from.empty() && from != "same-origin" && from != "none" && !is_link)
    return admission::other_site;
  if (!has_token_) return admission::granted;
  const auto is_right = [&](std::string_view given) {
    const auto d = digest_of(given);
    return CRYPTO_memcmp(d.data(), token_.data(), d.size()) == 0;
  };
  if (const auto bearer = bearer_of(head.authorization))
    return is_right(*bearer) ? admission::granted : admission::wrong_token;
  if (const auto* given = target.find("token"))
    return is_right(*given) ? admission::granted_by_query : admission::wrong_token;
  return has_cookie(head.cookie) ? admission::granted : admission::no_token;
}

std::string policy_hash(std::string_view text) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest{};
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data());
  std::array<unsigned char, 64> base64{};
  const int n = EVP_EncodeBlock(base64.data(), digest.data(), static_cast<int>(digest.size()));
  return "sha256-" +
         std::string(reinterpret_cast<const char*>(base64.data()), static_cast<std::size_t>(n));
}

}  // namespace troupe
