// libFuzzer over what a client asks `troupe serve` for: targets, and heads that want to be let in.
//
// A property that does not hold traps; memory and undefined behaviour are the sanitizers' part.

#include "tests/fuzz/fuzz_input.hpp"
#include "tools/troupe-tool/serve_request.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

using namespace troupe;

namespace {

using test::check;
using request_input = test::fuzz_input;

const std::string token = "a token of the page", session = "0123456789abcdef";

void is_text(const std::string& text) {
  for (const char c : text) check(static_cast<unsigned char>(c) >= ' ' && c != 0x7f);
}

void target_of(const std::string& text) {
  const auto t = parse_target(text);
  if (!t) return is_text(t.error().text());
  check(t->path.starts_with('/') && t->query.size() <= query_keys_max);
  is_text(t->path);
  for (const auto& [key, value] : t->query) {
    is_text(key);
    is_text(value);
    check(!key.empty() && t->find(key) == &value);
  }
  const auto again = target_without_token(*t);
  check(again.starts_with('/') && !again.starts_with("//") &&
        again.find_first_of("\r\n \\") == again.npos);
  const auto back = parse_target(again);
  // Written again it is three times as long at most.
  if (!back) return check(again.size() > target_bytes_max);
  check(back->find("token") == nullptr);
  for (const auto& [key, value] : t->query)
    check(key == "token" || (back->find(key) != nullptr && *back->find(key) == value));
}

// Nobody is let in who does not say the token or the cookie.
void door_of(request_input& in) {
  static const door closed(secret(token), "troupe_1", session, false, "0.0.0.0", "machine");
  static const door open({}, "troupe_1", session, true, "127.0.0.1", "machine");
  request_head h;
  h.host = in.text(in.byte());
  h.authorization = in.text(in.byte());
  h.cookie = in.text(in.byte());
  h.fetch_site = in.byte() % 2 == 0 ? "" : "cross-site";
  const auto target = parse_target(in.rest_text());
  if (!target) return;
  const auto says = [&](const std::string& part, const std::string& what) {
    return part.find(what) != part.npos;
  };
  const auto* given = target->find("token");
  const auto at = closed.admit(h, *target);
  if (at == admission::granted) check(says(h.authorization, token) || says(h.cookie, session));
  if (at == admission::granted_by_query) check(given != nullptr && *given == token);
  (void)open.admit(h, *target);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  request_input in(std::as_bytes(std::span(data, size)));
  switch (in.byte() % 3) {
    case 0: target_of(in.rest_text()); break;
    case 1: target_of("/" + in.rest_text()); break;
    default: door_of(in); break;
  }
  return 0;
}
