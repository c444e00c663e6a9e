#include "tools/troupe-tool/serve_request.hpp"

#include <boost/test/unit_test.hpp>

#include <string>

using namespace troupe;

namespace {

std::string mistake_of(const std::string& target) {
  const auto t = parse_target(target);
  BOOST_TEST_REQUIRE(!t, target);
  BOOST_TEST((t.error().code() == error_code::usage));
  return t.error().text();
}

request_head from_host(const std::string& host) {
  request_head h;
  h.host = host;
  return h;
}

const request_target root{"/", {}};
const door open_door({}, "troupe_1", "session", true, "127.0.0.1", "gpu-3");
const door closed_door(secret("a token of the page"), "troupe_1", "session", false, "0.0.0.0",
                       "gpu-3");

}  // namespace

BOOST_AUTO_TEST_SUITE(serve_request)

BOOST_AUTO_TEST_CASE(SE_1_a_target_becomes_a_path_and_a_query) {
  const auto t = parse_target("/api/why?job=my%20job+%C3%A4&&empty=&flag");
  BOOST_TEST_REQUIRE(bool(t));
  BOOST_TEST(t->path == "/api/why");
  BOOST_TEST(*t->find("job") == "my job ä");
  BOOST_TEST(*t->find("empty") == "");
  BOOST_TEST(*t->find("flag") == "");
  BOOST_TEST(t->find("other") == nullptr);
  BOOST_TEST(parse_target("/a%2Fb+c")->path == "/a/b+c");
  BOOST_TEST(parse_target("/?")->query.empty());
}

BOOST_AUTO_TEST_CASE(SE_1_what_is_no_target_is_an_error_that_says_what_is_wrong) {
  for (const char* bad : {"", "*", "http://host/", "api", "?a=b"}) mistake_of(bad);
  for (const char* bad :
       {"/%", "/%4", "/%zz", "/%00", "/%1b", "/%7f", "/%C2%80", "/%FF", "/%C0%AF", "/%ED%A0%80",
        "/%F4%90%80%80", "/%E2%82", "/a?b=%", "/a?=b", "/a?%0A=b", "/a#b"})
    mistake_of(bad);
  BOOST_TEST(mistake_of("/a?b=1&b=2").find("twice") != std::string::npos);
  BOOST_TEST(mistake_of("/" + std::string(5000, 'a')).find("too long") != std::string::npos);
  std::string many = "/a?";
  for (int i = 0; i < 17; ++i) many += "k" + std::to_string(i) + "=1&";
  BOOST_TEST(mistake_of(many).find("too many") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(the_absolute_form_has_a_host_and_a_target) {
  const auto is = [](const char* target, const char* host, const char* rest) {
    const auto [h, r] = split_absolute(target);
    BOOST_TEST(h.value_or("none") == host, target);
    BOOST_TEST(r == rest, target);
  };
  is("http://localhost/", "localhost", "/");
  is("HTTP://localhost:80", "localhost:80", "/");
  is("https://[::1]:80/api/why?job=a", "[::1]:80", "/api/why?job=a");
  is("http://evil.example?x=http://localhost/", "evil.example", "/?x=http://localhost/");
  is("http://", "", "/");
  is("/http://localhost/", "none", "/http://localhost/");
  is("ftp://localhost/", "none", "ftp://localhost/");
  is("", "none", "");
}

BOOST_AUTO_TEST_CASE(a_target_is_written_again_without_its_token) {
  BOOST_TEST(target_without_token(*parse_target("/a%20b?job=%26%3D&token=x&n=1")) ==
             "/a%20b?job=%26%3D&n=1");
  BOOST_TEST(target_without_token(*parse_target("/?token=x")) == "/");
  // Neither leads to another site, nor ends a line of a head.
  BOOST_TEST(target_without_token(*parse_target("//evil.example/?token=x")) == "/");
  BOOST_TEST(target_without_token(*parse_target("/%2Fevil.example?token=x")) == "/");
}

BOOST_AUTO_TEST_CASE(SE_2_who_has_no_token_is_not_let_in) {
  const auto admit = [](const request_head& h, const std::string& target = "/") {
    return closed_door.admit(h, *parse_target(target));
  };
  request_head h;
  BOOST_TEST((admit(h) == admission::no_token));
  h.authorization = "Bearer a token of the page";
  BOOST_TEST((admit(h) == admission::granted));
  h.authorization = "bearer  a token of the page ";
  BOOST_TEST((admit(h) == admission::granted));
  for (const char* wrong :
       {"Bearer ", "Bearer a token of the pag", "Bearer a token of the page2"}) {
    h.authorization = wrong;
    BOOST_TEST((admit(h) == admission::wrong_token), wrong);
  }
  h.authorization = "Basic a token of the page";
  BOOST_TEST((admit(h) == admission::no_token));
  h = {};
  BOOST_TEST((admit(h, "/?token=a+token+of+the+page") == admission::granted_by_query));
  BOOST_TEST((admit(h, "/?token=") == admission::wrong_token));
  h.cookie = "a=b; troupe_1=session; c";
  BOOST_TEST((admit(h) == admission::granted));
  for (const char* wrong : {"troupe_1=", "troupe_1", "troupe_2=session", "troupe_1=session2", ";;",
                            "troupe_1=a token of the page", "xtroupe_1=session"}) {
    h.cookie = wrong;
    BOOST_TEST((admit(h) == admission::no_token), wrong);
  }
  BOOST_TEST(closed_door.has_token());
  BOOST_TEST(!open_door.has_token());
}

BOOST_AUTO_TEST_CASE(SE_3_on_loopback_the_host_is_one_of_this_machines) {
  for (const char* own : {"127.0.0.1:8080", "127.0.0.1", "localhost:1", "LocalHost", "localhost.",
                          "localhost.:8080", "[::1]:80", "127.3.2.1:9", ""})
    BOOST_TEST((open_door.admit(from_host(own), root) == admission::granted), own);
  for (const char* other :
       {"evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil.example",
        "localhost..", "gpu-3", "[::1", "10.0.0.1", "[::2]:80"})
    BOOST_TEST((open_door.admit(from_host(other), root) == admission::wrong_host), other);
  // Beyond loopback a machine has many names, and a token.
  BOOST_TEST((closed_door.admit(from_host("gpu-3.lab"), root) == admission::no_token));
}

BOOST_AUTO_TEST_CASE(
    SE_3_without_a_token_the_host_is_no_name_of_another_site_beyond_loopback_either) {
  const door insecure({}, "troupe_1", "session", false, "Page.lab", "gpu-3");
  for (const char* own : {"10.0.0.7:8080", "[fe80::1]:8080", "page.lab:8080", "gpu-3:8080", "GPU-3",
                          "localhost:1", "127.0.0.1", ""})
    BOOST_TEST((insecure.admit(from_host(own), root) == admission::granted), own);
  for (const char* other : {"evil.example:8080", "10.0.0.7.evil.example", "gpu-3.evil.example"})
    BOOST_TEST((insecure.admit(from_host(other), root) == admission::wrong_host), other);
}

BOOST_AUTO_TEST_CASE(SE_3_a_question_that_another_sites_page_asks_is_refused) {
  request_head h;
  h.fetch_mode = "no-cors";
  for (const char* other : {"cross-site", "same-site", "what comes next"}) {
    h.fetch_site = other;
    BOOST_TEST((open_door.admit(h, root) == admission::other_site), other);
  }
  h.fetch_site = "cross-site";
  h.fetch_mode = "navigate";  // a link to the page
  BOOST_TEST((open_door.admit(h, root) == admission::granted));
  h.fetch_dest = "document";
  BOOST_TEST((open_door.admit(h, root) == admission::granted));
  for (const char* path : {"/api/timeline?seconds=60", "/api/slow", "/api/page", "/metrics"})
    BOOST_TEST((open_door.admit(h, *parse_target(path)) == admission::other_site), path);
  for (const char* within : {"iframe", "frame", "object", "embed"}) {
    h.fetch_dest = within;
    BOOST_TEST((open_door.admit(h, root) == admission::other_site), within);
  }
  h.fetch_site = "none", h.fetch_mode = "navigate", h.fetch_dest = "document";  // typed
  BOOST_TEST((open_door.admit(h, *parse_target("/api/page")) == admission::granted));
  h.fetch_site = "same-origin", h.fetch_mode = "cors", h.fetch_dest = "empty";
  BOOST_TEST((open_door.admit(h, root) == admission::granted));
}

// Of RFC 6234, 8.5, and W3C's CSP 3.
BOOST_AUTO_TEST_CASE(a_hash_is_as_a_policy_names_it) {
  BOOST_TEST(policy_hash("") == "sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=");
  BOOST_TEST(policy_hash("alert('Hello, world.');") ==
             "sha256-qznLcsROx4GACP2dm0UCKCzCG+HiZ1guq6ZZDob/Tng=");
}

BOOST_AUTO_TEST_SUITE_END()
