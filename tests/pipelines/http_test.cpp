// Requests over HTTP that topologies answer: what clients do, right or wrong, and what becomes of
// requests when something ends.

#include "tests/pipelines/net_clients.hpp"
#include "troupe/actors/flow/net/http_server.hpp"

#include <sys/resource.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <mutex>

using namespace troupe;
using test::client;
using test::running;
using namespace std::chrono_literals;

namespace {

http_server open_server(http_server_options o = {}) {
  auto s = http_server::open(std::move(o));
  if (!s) BOOST_FAIL(s.error().text());
  return std::move(*s);
}

void must(const result<flow_totals>& r) {
  if (!r) BOOST_FAIL(r.error().text());
}

std::string request(std::string_view body, std::string_view path = "/echo",
                    std::string_view method = "POST", std::string_view more = "") {
  std::string text(method);
  text.append(" ").append(path).append(" HTTP/1.1\r\nHost: test\r\n").append(more);
  if (!body.empty()) text.append("Content-Length: " + std::to_string(body.size()) + "\r\n");
  return text.append("\r\n").append(body);
}

struct reply {
  int status = 0;  // 0: the connection has ended instead
  std::string head, body;
  bool has(std::string_view text) const { return head.find(text) != head.npos; }
};
reply read_reply(client& c) {
  reply r;
  r.head = c.read_until("\r\n\r\n");
  if (r.head.size() < 12 || !r.head.starts_with("HTTP/1.1 ")) return r;
  r.status = std::stoi(r.head.substr(9, 3));
  if (const auto at = r.head.find("Content-Length: "); at != r.head.npos)
    r.body = c.read_bytes(std::stoul(r.head.substr(at + 16)));
  return r;
}
reply ask(client& c, const std::string& text) {
  if (!c.send(text)) return {};
  return read_reply(c);
}
reply ask(const std::string& address, const std::string& text) {
  client c(address);
  return ask(c, text);
}

http_answer echo(http_request r) { return {r.reply, 200, "text/plain", std::move(r.body)}; }

void allow_sockets(rlim_t n) {
  rlimit l{};
  ::getrlimit(RLIMIT_NOFILE, &l);
  l.rlim_cur = std::max(l.rlim_cur, std::min(l.rlim_max, n));
  ::setrlimit(RLIMIT_NOFILE, &l);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(http)

BOOST_AUTO_TEST_CASE(HQ_2_answers_come_in_the_order_of_requests) {
  auto server = open_server();
  topology t({.threads = 1});
  answer(map(http_requests(t, server, "/echo"), echo));
  running r(t);
  client c(server.address());
  const auto first = ask(c, request("one"));
  BOOST_TEST(first.status == 200);
  BOOST_TEST(first.body == "one");
  BOOST_TEST(first.has("Content-Type: text/plain\r\n"));
  BOOST_TEST(first.has("Connection: keep-alive\r\n"));
  // All at once, before any answer.
  std::string many;
  for (int i = 0; i < 100; ++i) many += request("number " + std::to_string(i));
  BOOST_TEST(c.send(many));
  for (int i = 0; i < 100; ++i)
    BOOST_REQUIRE_EQUAL(read_reply(c).body, "number " + std::to_string(i));
  const auto last = ask(c, request("last", "/echo", "POST", "Connection: close\r\n"));
  BOOST_TEST(last.body == "last");
  BOOST_TEST(last.has("Connection: close\r\n"));
  BOOST_TEST(c.read_all().empty());
  client old(server.address());
  BOOST_TEST(old.send("POST /echo HTTP/1.0\r\nContent-Length: 3\r\n\r\nold"));
  BOOST_TEST(old.read_all().ends_with("Connection: close\r\n\r\nold"));
  must(r.stop());
  BOOST_TEST(server.counts().requests == 103U);
  BOOST_TEST(server.counts().answered == 103U);
}

BOOST_AUTO_TEST_CASE(a_request_may_come_byte_by_byte_or_in_chunks) {
  auto server = open_server();
  topology t({.threads = 1});
  answer(map(http_requests(t, server, "/echo"), echo));
  running r(t);
  client slow(server.address());
  for (const auto ch : request("in pieces")) BOOST_TEST_REQUIRE(slow.send({&ch, 1}));
  BOOST_TEST(read_reply(slow).body == "in pieces");
  BOOST_TEST(ask(slow,
                 "POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n"
                 "3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n")
                 .body == "abcdefg");
  BOOST_TEST(slow.send(request("xyz", "/echo", "POST", "Expect: 100-continue\r\n").substr(0, 90)));
  const std::string large(5'000'000, 'l');
  client c(server.address());
  BOOST_TEST(ask(c, request(large)).body == large);
  BOOST_TEST(ask(c, request("small")).body == "small");
  client polite(server.address());
  BOOST_TEST(
      polite.send("POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 4\r\n"
                  "Expect: 100-continue\r\n\r\n"));
  BOOST_TEST(polite.read_until("\r\n\r\n") == "HTTP/1.1 100 Continue\r\n\r\n");
  BOOST_TEST(ask(polite, "body").body == "body");
  must(r.stop());
}

BOOST_AUTO_TEST_CASE(a_request_has_what_was_asked_for) {
  auto server = open_server();
  topology t({.threads = 1});
  answer(map(http_requests(t, server, "/what",
                           {.methods = {"GET", "PUT"}, .headers = {"X-User", "x-none"}}),
             [](http_request r) {
               return http_answer{r.reply, 201, "text/plain",
                                  r.method + "|" + std::string(r.path()) + "|" +
                                      std::string(r.query()) + "|" +
                                      std::string(r.header("x-user")) + "|" +
                                      std::string(r.header("x-none")) + "|" + r.body};
             }));
  running r(t);
  client c(server.address());
  const auto got = ask(c, request("b", "/what?a=1&b=2", "PUT", "X-USER: me\r\nOther: 1\r\n"));
  BOOST_TEST(got.status == 201);
  BOOST_TEST(got.body == "PUT|/what|a=1&b=2|me||b");
  BOOST_TEST(ask(c, request("", "/what", "GET")).body == "GET|/what||||");
  must(r.stop());
}

BOOST_AUTO_TEST_CASE(what_the_server_says_by_itself) {
  auto server = open_server({.body_bytes_max = 1000});
  {
    topology t({.threads = 1});
    answer(map(http_requests(t, server, "/echo"), echo));
    running r(t);
    const auto at = server.address();
    client c(at);
    BOOST_TEST(ask(c, request("", "/healthz", "GET")).status == 200);
    BOOST_TEST(ask(c, request("", "/nowhere", "GET")).status == 404);
    const auto wrong = ask(c, request("", "/echo", "GET"));
    BOOST_TEST(wrong.status == 405);
    BOOST_TEST(wrong.has("Allow: POST\r\n"));
    BOOST_TEST(ask(c, request("", "/healthz", "POST")).status == 405);
    BOOST_TEST(ask(c, request("still open")).body == "still open");
    BOOST_TEST(ask(at, request("with a body", "/nowhere")).status == 404);

    BOOST_TEST(ask(at, "\x16\x03\x01 this is no HTTP\r\n\r\n").status == 400);
    BOOST_TEST(ask(at, "GET /echo HTTP/1.1\r\n\r\n").status == 400);  // no Host
    BOOST_TEST(ask(at, "POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: -1\r\n\r\n").status ==
               400);
    BOOST_TEST(ask(at,
                   "POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\n"
                   "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
                   .status == 400);
    BOOST_TEST(
        ask(at, "POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n")
            .status == 400);
    BOOST_TEST(ask(at, "GET /echo HTTP/3.7\r\nHost: t\r\n\r\n").status >= 400);
    BOOST_TEST(ask(at, request("", "/" + std::string(20'000, 'a'), "GET")).status == 431);
    BOOST_TEST(
        ask(at, request("", "/echo", "POST", "X: " + std::string(20'000, 'a') + "\r\n")).status ==
        431);
    BOOST_TEST(ask(at, request(std::string(1001, 'x'))).status == 413);
    BOOST_TEST(ask(at, request(std::string(3'000'000, 'x'))).status == 413);
    BOOST_TEST(
        ask(at, "POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n7d0\r\n" +
                    std::string(2000, 'x') + "\r\n0\r\n\r\n")
            .status == 413);
    // A chunk's head that has no end.
    BOOST_TEST(ask(at, "POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n1;" +
                           std::string(200'000, 'x'))
                   .status >= 400);
    BOOST_TEST(ask(c, request("still there")).body == "still there");
    must(r.stop());
    BOOST_TEST(server.counts().requests == 2U);
  }
  client c(server.address());
  BOOST_TEST(ask(c, request("", "/healthz", "GET")).status == 200);
  BOOST_TEST(ask(c, request("x")).status == 503);
}

BOOST_AUTO_TEST_CASE(HQ_4_who_is_slow_is_cut_off) {
  auto server = open_server({.timeout = 100ms});
  topology t({.threads = 1});
  answer(map(http_requests(t, server, "/echo"), echo));
  running r(t);
  client silent(server.address()), head(server.address()), body(server.address());
  BOOST_TEST(ask(silent, request("once")).body == "once");
  BOOST_TEST(head.send("POST /echo HTTP/1.1\r\nHo"));
  BOOST_TEST(body.send(request("a body").substr(0, request("a body").size() - 2)));
  BOOST_TEST(read_reply(head).status == 408);
  BOOST_TEST(read_reply(body).status == 408);
  BOOST_TEST(silent.read_all().empty());
  BOOST_TEST(head.read_all().empty());
  // A byte now and then does not help.
  client dripping(server.address());
  const auto text = request(std::string(100'000, 'x'));
  BOOST_TEST(dripping.send(text.substr(0, 100)));
  for (std::size_t i = 100; i < text.size() && dripping.send(text.substr(i, 1)); ++i)
    std::this_thread::sleep_for(5ms);
  BOOST_TEST(server.counts().requests == 1U);
  must(r.stop());
}

BOOST_AUTO_TEST_CASE(a_peer_that_goes_away_costs_its_own_request_alone) {
  auto server = open_server();
  topology t({.threads = 1});
  answer(map(http_requests(t, server, "/echo"), echo));
  running r(t);
  {
    client c(server.address()), d(server.address());
    BOOST_TEST(c.send(request("never whole").substr(0, 60)));
    BOOST_TEST(d.send("POST /ec"));
    test::wait_until("both connections", [&] { return server.counts().open == 2U; });
    c.end_sending();
    d.end_sending();
    BOOST_TEST(c.read_all().find("200") == std::string::npos);
    BOOST_TEST(d.read_all().find("200") == std::string::npos);
  }
  for (int i = 0; i < 20; ++i) {
    client c(server.address());
    BOOST_TEST(c.send(request("does not wait")));
    c.reset();
  }
  BOOST_TEST(ask(server.address(), request("fine")).body == "fine");
  test::wait_until("the end of all connections", [&] { return server.counts().open == 0U; });
  must(r.stop());
}

BOOST_AUTO_TEST_CASE(HQ_1_the_first_answer_wins_and_none_is_503) {
  auto server = open_server();
  topology t({.threads = 1});
  std::atomic<int> firsts{0};
  auto requests = http_requests(t, server, "/echo");
  auto two = map(requests, [&](http_request r) -> std::optional<http_answer> {
    if (r.body == "drop") return std::nullopt;
    if (r.body == "at once") {
      firsts += r.reply.answer(202, "text/plain", "by the stage");
      firsts += r.reply.answer(500, "text/plain", "too late");
    }
    return http_answer{r.reply, 200, "text/plain", "by the end"};
  });
  answer(two);
  answer(two);  // each has a copy of the handle
  running r(t);
  client c(server.address());
  BOOST_TEST(ask(c, request("drop")).status == 503);
  BOOST_TEST(ask(c, request("at once")).body == "by the stage");
  BOOST_TEST(ask(c, request("x")).body == "by the end");
  BOOST_TEST(firsts == 1);
  must(r.stop());
  BOOST_TEST(!http_reply().answer(200, "", ""));
}

BOOST_AUTO_TEST_CASE(a_batch_stands_in_the_middle) {
  allow_sockets(1000);
  auto server = open_server();
  topology t({.threads = 2});
  std::atomic<std::size_t> largest{0};
  auto batches = batch(http_requests(t, server, "/square"), {.count = 16, .within = 1ms});
  auto answers = map(batches, [&](std::vector<http_request> all) {
    largest = std::max<std::size_t>(largest, all.size());
    std::vector<http_answer> out;
    for (auto& r : all) {
      const auto x = std::stoi(r.body);
      out.push_back({std::move(r.reply), 200, "text/plain", std::to_string(x * x)});
    }
    return out;
  });
  answer(unbatch(answers));
  running r(t);
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int n = 0; n < 4; ++n)
    threads.emplace_back([&, n] {
      std::vector<client> of;
      for (int i = 0; i < 50; ++i) of.emplace_back(server.address());
      for (int round = 0; round < 10; ++round) {
        for (int i = 0; i < 50; ++i)
          of[static_cast<std::size_t>(i)].send(request(std::to_string(n * 1000 + i), "/square"));
        for (int i = 0; i < 50; ++i) {
          const auto x = n * 1000 + i;
          right += read_reply(of[static_cast<std::size_t>(i)]).body == std::to_string(x * x);
        }
      }
    });
  for (auto& x : threads) x.join();
  BOOST_TEST(right == 4 * 50 * 10);
  BOOST_TEST(largest > 1U);
  must(r.stop());
}

BOOST_AUTO_TEST_CASE(a_thousand_connections_at_once) {
  allow_sockets(4096);
  auto server = open_server({.connections_max = 700});
  topology t({.threads = 1});
  answer(map(http_requests(t, server, "/echo"), echo));
  running r(t);
  // More than are allowed at once: the others wait until those have closed.
  std::vector<client> all;
  for (int i = 0; i < 1000; ++i) {
    all.emplace_back(server.address());
    BOOST_TEST_REQUIRE(all.back().is_connected());
    BOOST_TEST_REQUIRE(
        all.back().send(request(std::to_string(i), "/echo", "POST", "Connection: close\r\n")));
  }
  for (int i = 0; i < 1000; ++i)
    BOOST_REQUIRE_EQUAL(read_reply(all[static_cast<std::size_t>(i)]).body, std::to_string(i));
  must(r.stop());
  BOOST_TEST(server.counts().connections == 1000U);
}

BOOST_AUTO_TEST_CASE(HQ_3_a_full_topology_holds_clients_back) {
  auto server = open_server({.timeout = 60s});
  topology t({.threads = 1, .budget_bytes = 1 << 20});
  std::atomic<bool> may_go{false};
  auto slow = map(http_requests(t, server, "/echo"),
                  [&](http_request r) {
                    while (!may_go) std::this_thread::sleep_for(1ms);
                    return http_answer{r.reply, 200, "text/plain", std::to_string(r.body.size())};
                  },
                  {.blocks = true});
  answer(slow);
  running r(t);
  constexpr std::size_t bytes = 200'000;
  std::vector<client> all;
  std::vector<std::size_t> sent(300);
  const auto text = request(std::string(bytes, 'x'));
  for (std::size_t i = 0; i < sent.size(); ++i) all.emplace_back(server.address());
  for (int quiet = 0; quiet < 50;) {
    std::size_t moved = 0;
    for (std::size_t i = 0; i < sent.size(); ++i) {
      const auto n = all[i].send_now(std::string_view(text).substr(sent[i]));
      sent[i] += n;
      moved += n;
    }
    quiet = moved == 0 ? quiet + 1 : 0;
    std::this_thread::sleep_for(1ms);
  }
  // What waits before the source, what its edge holds, and the one under way.
  BOOST_TEST(server.counts().requests <= 64U + 32U + 16U);
  BOOST_TEST(ask(server.address(), request("", "/healthz", "GET")).status == 200);
  may_go = true;
  for (std::size_t i = 0; i < sent.size(); ++i)
    BOOST_TEST_REQUIRE(all[i].send(std::string_view(text).substr(sent[i])));
  for (auto& c : all) BOOST_REQUIRE_EQUAL(read_reply(c).body, std::to_string(bytes));
  must(r.stop());
}

BOOST_AUTO_TEST_CASE(bodies_have_so_much_memory_together) {
  auto server = open_server({.buffer_bytes_max = 1 << 20});
  topology t({.threads = 1});
  answer(map(http_requests(t, server, "/echo"), echo));
  running r(t);
  client first(server.address());
  const auto text = request(std::string(900'000, 'x'));
  BOOST_TEST(first.send(text.substr(0, 800'000)));
  client second(server.address());
  const auto r2 = ask(second, text);
  BOOST_TEST((r2.status == 503 || r2.status == 200));  // by how much of the first one is read
  const auto too_large = ask(server.address(), request(std::string(1'500'000, 'x')));
  BOOST_TEST(too_large.status == 503);
  BOOST_TEST(too_large.has("Retry-After: 1\r\n"));
  BOOST_TEST(first.send(text.substr(800'000)));
  const auto r1 = read_reply(first).status;
  BOOST_TEST((r1 == 200 || r1 == 503));
  BOOST_TEST(ask(server.address(), text).status == 200);
  must(r.stop());
}

BOOST_AUTO_TEST_CASE(a_body_that_is_on_its_way_at_the_end_is_no_whole_one) {
  auto server = open_server();
  topology t({.threads = 1});
  std::atomic<int> taken{0};
  answer(map(http_requests(t, server, "/echo"), [&](http_request r) {
    ++taken;
    return http_answer{r.reply, 200, "text/plain", std::move(r.body)};
  }));
  running r(t);
  client c(server.address());
  // It waits for the rest: the server has said so.
  BOOST_TEST(
      c.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n"
             "Expect: 100-continue\r\n\r\n"));
  BOOST_TEST(c.read_until("\r\n\r\n").starts_with("HTTP/1.1 100"));
  BOOST_TEST(c.send("abc"));
  std::thread closes([&] { server.close(); });
  // As long as it does not know that it stops, a request is answered.
  for (bool is_open = true; is_open;) {
    client other(server.address());
    is_open = other.send("GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n") &&
              other.read_all().starts_with("HTTP/1.1 200");
  }
  c.send("defghij");
  const auto said = c.read_all();
  closes.join();
  BOOST_TEST((said.empty() || said.starts_with("HTTP/1.1 503")), said);
  must(r.stop());
  BOOST_CHECK_EQUAL(taken.load(), 0);
}

BOOST_AUTO_TEST_CASE(a_stop_under_load_answers_all_that_was_taken) {
  for (int round = 0; round < 3; ++round) {
    auto server = open_server();
    std::atomic<std::uint64_t> seen{0}, right{0}, other{0}, wrong{0};
    {
      topology t({.threads = 2});
      auto batches = batch(http_requests(t, server, "/echo"), {.count = 8, .within = 1ms});
      answer(unbatch(map(batches, [&](std::vector<http_request> all) {
        seen += all.size();
        std::vector<http_answer> out;
        for (auto& r : all) out.push_back(echo(std::move(r)));
        return out;
      })));
      running r(t);
      std::vector<std::thread> threads;
      for (int n = 0; n < 8; ++n)
        threads.emplace_back([&] {
          client c(server.address());
          for (bool goes_on = true; goes_on;) {
            const auto a = ask(c, request("load"));
            goes_on = a.status == 200;
            ++(goes_on ? right : a.status == 503 ? other : wrong);
          }
        });
      test::wait_until("some answers", [&] { return right > 100U; });
      must(r.stop());
      for (auto& x : threads) x.join();
    }
    server.close();
    BOOST_TEST(right == seen);
    BOOST_TEST(server.counts().answered == server.counts().requests);
    BOOST_TEST(other == 8U);
    BOOST_TEST(wrong == 0U);
  }
}

BOOST_AUTO_TEST_CASE(a_server_that_closes_answers_what_is_under_way) {
  auto server = open_server({.timeout = 60s});
  topology t({.threads = 1});
  std::atomic<bool> may_go{false};
  answer(map(http_requests(t, server, "/echo"),
             [&](http_request r) {
               while (!may_go) std::this_thread::sleep_for(1ms);
               return echo(std::move(r));
             },
             {.blocks = true}));
  running r(t);
  client c(server.address()), idle(server.address());
  BOOST_TEST(ask(idle, request("", "/healthz", "GET")).status == 200);
  BOOST_TEST(c.send(request("under way")));
  test::wait_until("the request", [&] { return server.counts().requests == 1U; });
  std::thread closes([&] { server.close(); });
  BOOST_TEST(idle.read_all().empty());  // it is closed at once
  may_go = true;
  const auto a = read_reply(c);
  BOOST_TEST(a.body == "under way");
  BOOST_TEST(a.has("Connection: close\r\n"));
  closes.join();
  must(r.end());  // its source has ended with the server
}

BOOST_AUTO_TEST_CASE(a_handle_that_is_kept_holds_a_server_back_for_its_timeout_alone) {
  http_reply kept;
  {
    auto server = open_server({.timeout = 50ms});
    topology t({.threads = 1});
    std::atomic<bool> has{false};
    for_each(http_requests(t, server, "/echo"), [&](http_request r) {
      kept = r.reply;
      has = true;
    });
    running r(t);
    client c(server.address());
    BOOST_TEST(c.send(request("x")));
    test::wait_until("the request", [&] { return has.load(); });
    must(r.stop());
    server.close();
    BOOST_TEST(c.read_all().empty());
  }
  BOOST_TEST(kept.answer(200, "text/plain", "nobody is there"));
}

BOOST_AUTO_TEST_CASE(a_topology_that_fails_or_never_runs_leaves_503_and_another_may_take_over) {
  auto server = open_server();
  client c(server.address());
  {
    topology never({.threads = 1});
    answer(map(http_requests(never, server, "/echo"), echo));
    BOOST_TEST(c.send(request("waits")));
    test::wait_until("the connection", [&] { return server.counts().open == 1U; });
  }
  BOOST_TEST(read_reply(c).status == 503);
  {
    client d(server.address());
    topology fails({.threads = 1});
    answer(map(http_requests(fails, server, "/echo"), [](http_request) -> result<http_answer> {
      return error(error_code::failed, "does not like it");
    }));
    running r(fails);
    BOOST_TEST(ask(d, request("x")).status == 503);
    const auto& end = r.end();
    BOOST_TEST_REQUIRE(!end);
    BOOST_TEST(end.error().message().find("does not like it") != std::string::npos);
  }
  topology t({.threads = 1});
  answer(map(http_requests(t, server, "/echo"), echo));
  running r(t);
  BOOST_TEST(ask(server.address(), request("again")).body == "again");
  must(r.stop());
}

BOOST_AUTO_TEST_CASE(two_paths_of_one_server_are_two_flows) {
  auto server = open_server();
  topology t({.threads = 1});
  answer(map(http_requests(t, server, "/a"), echo));
  answer(map(http_requests(t, server, "/b"), [](http_request r) {
    return http_answer{r.reply, 200, "bad\r\nX-Injected: 1", "b"};
  }));
  running r(t);
  client c(server.address());
  BOOST_TEST(ask(c, request("x", "/a")).body == "x");
  const auto b = ask(c, request("x", "/b"));
  BOOST_TEST(b.body == "b");
  BOOST_TEST(!b.has("X-Injected"));
  must(r.stop());
}

BOOST_AUTO_TEST_CASE(mistakes_are_said_before_anything_runs) {
  auto server = open_server();
  BOOST_CHECK(http_server::open({.listen = "nowhere"}).error().code() == error_code::usage);
  BOOST_TEST(http_server::open({.listen = server.address()})
                 .error()
                 .message()
                 .find("cannot listen at 127.0.0.1:") == 0U);
  const auto says = [&](const std::string& path, const http_route_options& o, bool is_twice) {
    topology t({.threads = 1});
    answer(map(http_requests(t, server, path, o), echo));
    if (is_twice) answer(map(http_requests(t, server, path, o), echo));
    const auto r = t.run_to_end();
    return r ? std::string() : r.error().message();
  };
  BOOST_TEST(says("no_path", {}, false).find("'no_path' is no path") != std::string::npos);
  BOOST_TEST(says("/healthz", {}, false).find("the server itself") != std::string::npos);
  BOOST_TEST(says("/x", {.methods = {}}, false).find("no method") != std::string::npos);
  BOOST_TEST(says("/x", {}, true).find("have a flow already") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(curl_is_answered) {
  if (std::system("curl --version >/dev/null 2>&1") != 0) {
    BOOST_TEST_MESSAGE("skipped: curl is not installed");
    return;
  }
  auto server = open_server();
  topology t({.threads = 1});
  answer(map(http_requests(t, server, "/size"), [](http_request r) {
    return http_answer{r.reply, 200, "text/plain",
                       std::to_string(r.body.size()) + " " + std::string(r.header("content-type"))};
  }));
  running r(t);
  const auto run = [](const std::string& command) {
    std::string said;
    std::array<char, 4096> some;
    auto* p = ::popen(command.c_str(), "r");
    BOOST_REQUIRE(p != nullptr);
    while (const auto n = std::fread(some.data(), 1, some.size(), p)) said.append(some.data(), n);
    BOOST_TEST(WEXITSTATUS(::pclose(p)) == 0);
    return said;
  };
  const auto curl = "curl --silent --show-error --max-time 60 --noproxy '*' ";
  const auto at = "http://" + server.address();
  BOOST_TEST(run(curl + at + "/healthz") == "ok\n");
  BOOST_TEST(run(std::string(curl) + "-H 'content-type: a/b' --data abc " + at + "/size") ==
             "3 a/b");
  // With "Expect: 100-continue", and over one connection.
  BOOST_TEST(run("head -c 3000000 /dev/zero | " + std::string(curl) +
                 "-H content-type: --data-binary @- " + at + "/size " + at + "/size") ==
             "3000000 3000000 ");
  must(r.stop());
}

BOOST_AUTO_TEST_SUITE_END()
