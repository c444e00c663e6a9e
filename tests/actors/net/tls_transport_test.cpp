// The transport over TCP with TLS, and a piece of network between its ends that changes bytes.

#include "tests/support/tcp_proxy.hpp"
#include "troupe/actors/net/io_loop.hpp"
#include "troupe/actors/net/tcp_transport.hpp"
#include "troupe/actors/net/tls_context.hpp"
#include "troupe/runtime/wire/handshake.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>
#include <random>
#include <string>

using namespace troupe;
using namespace troupe::test;

namespace {

constexpr std::int64_t tls_second = 1'000'000'000;
constexpr std::size_t tls_MiB = 1024 * 1024;
const secret tls_token("0123456789abcdef0123456789abcdef");

protection tls_guard(tls_scope scope = tls_scope::everywhere, const secret& token = tls_token) {
  return {*tls_context::of_token("lab", token), scope, false};
}

// What a frame says and carries follows from its number.
tensor tls_payload(std::uint64_t number, std::size_t bytes) {
  auto t = tensor::make({dtype::u8, shape{static_cast<std::int64_t>(bytes)}});
  std::mt19937_64 random(number);
  for (auto& b : t.bytes()) b = static_cast<std::byte>(random());
  return t;
}

// One end, which takes frames in order and compares what they carry.
struct tls_end final : channel_handler {
  std::unique_ptr<channel> ch;
  std::vector<std::byte> landed;
  std::uint64_t frames = 0;
  bool are_right = true;
  std::vector<std::byte> refused;  // the header of a frame that refuses
  std::optional<error> closed;
  frame_fault fault = frame_fault::none;

  std::span<std::byte> payload_destination(frame_kind, std::span<const std::byte>,
                                           std::uint32_t n) override {
    landed.resize(n);
    return landed;
  }
  void on_frame(const received_frame& f) override {
    if (f.kind == frame_kind::refuse) {
      refused.assign(f.header.begin(), f.header.end());
      return;
    }
    ++frames;
    const auto wanted = tls_payload(frames, f.payload_length);
    are_right = are_right && f.sequence == frames &&
                (f.payload_length == 0 || std::ranges::equal(f.payload, wanted.bytes()));
  }
  void on_closed(const error& why, frame_fault f) override {
    closed = why;
    fault = f;
  }
  void send(std::uint64_t number, std::size_t bytes) {
    outgoing_frame f;
    f.kind = bytes > 0 ? frame_kind::chunk : frame_kind::control;
    f.sequence = number;
    f.header.resize(number % 200, std::byte{'h'});
    if (bytes > 0) f.payload = tls_payload(number, bytes);
    f.length = bytes;
    ch->send(std::move(f));
  }
};

// Two transports on one loop, so that each has a protection of its own.
struct tls_pair {
  tls_pair(protection from, protection to, const tcp_options& options = {})
      : caller(loop, options), called(loop, options) {
    caller.protect(std::move(from));
    called.protect(std::move(to));
    auto at = called.listen({"127.0.0.1", 0}, [this](std::unique_ptr<channel> c) {
      accepted.push_back(std::make_unique<tls_end>());
      accepted.back()->ch = std::move(c);
      accepted.back()->ch->start(*accepted.back());
      if (trusts) accepted.back()->ch->trust_peer();
    });
    BOOST_REQUIRE(at);
    here = *at;
  }
  template <class Done>
  bool run_until(Done done, std::int64_t limit_ns = 20 * tls_second) {
    const auto deadline = loop.now_ns() + limit_ns;
    while (!done() && loop.now_ns() < deadline) loop.poll(5);
    return done();
  }
  void connect(tls_end& a, const address& to) {
    const auto before = accepted.size();
    caller.connect(to, tls_second, [&](auto r) {
      BOOST_REQUIRE_MESSAGE(r, (r ? "" : r.error().message()));
      a.ch = std::move(*r);
      a.ch->start(a);
      if (trusts) a.ch->trust_peer();
    });
    BOOST_REQUIRE(run_until([&] { return a.ch && accepted.size() > before; }));
  }
  tls_end& b() { return *accepted.back(); }

  io_loop loop;
  tcp_transport caller, called;
  address here;
  bool trusts = true;
  std::vector<std::unique_ptr<tls_end>> accepted;
};

bool tls_has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

std::string tls_refusal(const tls_end& e) {
  if (e.refused.empty()) return "";
  return {reinterpret_cast<const char*>(e.refused.data()) + 1, e.refused.size() - 1};
}

}  // namespace

BOOST_AUTO_TEST_SUITE(tls_transport)

BOOST_AUTO_TEST_CASE(TR_1_frames_of_all_sizes_arrive_in_order_and_unchanged_both_ways) {
  tls_pair p(tls_guard(), tls_guard());
  tls_end a;
  p.connect(a, p.here);
  std::mt19937 random(7);
  constexpr std::uint64_t count = 300;
  for (std::uint64_t i = 1; i <= count; ++i)
    for (tls_end* e : {&a, &p.b()})
      e->send(i, random() % 2 == 0 ? 0 : random() % (random() % 5 == 0 ? tls_MiB : 30'000) + 1);
  BOOST_REQUIRE(p.run_until([&] { return a.frames == count && p.b().frames == count; }));
  BOOST_TEST(a.are_right);
  BOOST_TEST(p.b().are_right);
  BOOST_TEST(a.ch->unsent_bytes() == 0u);
  BOOST_TEST(p.caller.counters().protected_connections == 1u);
  BOOST_TEST((a.ch->binding() == p.b().ch->binding()));
  BOOST_TEST(a.ch->binding().size() == 32u);
  BOOST_TEST(!a.ch->is_within_machine());  // nothing goes around it
  // What was sent before the end arrives.
  a.send(count + 1, 3 * 1000);
  a.ch->close();
  BOOST_REQUIRE(p.run_until([&] { return p.b().closed.has_value(); }));
  BOOST_TEST(p.b().frames == count + 1);
  BOOST_TEST((p.b().fault == frame_fault::none));
}

BOOST_AUTO_TEST_CASE(TR_7_who_speaks_without_TLS_is_told_and_nothing_of_it_is_taken) {
  tls_pair p({}, tls_guard());
  p.trusts = false;
  tls_end a;
  p.connect(a, p.here);
  a.ch->send({frame_kind::hello, 0, 0, std::vector<std::byte>(50), {}, 0, 0});
  BOOST_REQUIRE(p.run_until([&] { return a.closed.has_value() && p.b().closed.has_value(); }));
  BOOST_TEST(tls_has(tls_refusal(a), "give --tls to both"), tls_refusal(a));
  BOOST_TEST((a.refused.at(0) == std::byte(refusal::protection)));
  BOOST_TEST((p.b().fault == frame_fault::protection));
  BOOST_TEST((p.b().closed->code() == error_code::denied));
  BOOST_TEST(tls_has(p.b().closed->message(), "give --tls to both"));
  BOOST_TEST(p.b().frames == 0u);
}

BOOST_AUTO_TEST_CASE(TR_7_who_begins_with_TLS_where_it_is_not_wanted_is_told) {
  for (const bool is_insecure : {false, true}) {
    tls_pair p(tls_guard(), {nullptr, tls_scope::nowhere, is_insecure});
    p.trusts = false;
    tls_end a;
    p.connect(a, p.here);
    p.b().ch->send({frame_kind::hello, 0, 0, std::vector<std::byte>(50), {}, 0, 0});
    a.ch->send({frame_kind::hello, 0, 0, std::vector<std::byte>(50), {}, 0, 0});
    BOOST_REQUIRE(p.run_until([&] { return a.closed.has_value() && p.b().closed.has_value(); }));
    const auto word = is_insecure ? "--insecure" : "give --tls (or";
    BOOST_TEST(tls_has(tls_refusal(a), word), tls_refusal(a));
    BOOST_TEST((a.fault == frame_fault::protection));
    BOOST_TEST((a.closed->code() == error_code::denied));
    BOOST_TEST(tls_has(p.b().closed->message(), word), p.b().closed->message());
    BOOST_TEST(a.frames == 0u);  // also its hello came in plain bytes
    BOOST_TEST(p.b().frames == 0u);
  }
}

BOOST_AUTO_TEST_CASE(another_token_is_told_to_both) {
  tls_pair p(tls_guard(tls_scope::everywhere, secret("another token of the same length")),
             tls_guard());
  p.trusts = false;
  tls_end a;
  p.connect(a, p.here);
  BOOST_REQUIRE(p.run_until([&] { return a.closed.has_value() && p.b().closed.has_value(); }));
  BOOST_TEST((a.refused.at(0) == std::byte(refusal::wrong_token)));
  BOOST_TEST(tls_has(tls_refusal(a), "wrong token for cluster 'lab'"));
  BOOST_TEST(tls_has(p.b().closed->message(), "wrong token for cluster 'lab'"));
}

BOOST_AUTO_TEST_CASE(on_loopback_it_is_off_unless_it_is_wanted) {
  tls_pair p(tls_guard(tls_scope::beyond_loopback), tls_guard(tls_scope::beyond_loopback));
  tls_end a;
  p.connect(a, p.here);
  a.send(1, 100);
  BOOST_REQUIRE(p.run_until([&] { return p.b().frames == 1; }));
  BOOST_TEST(a.ch->binding().empty());
  BOOST_TEST(p.caller.counters().protected_connections == 0u);
}

BOOST_AUTO_TEST_CASE(silence_and_a_cut_in_the_handshake_end_it_without_a_verdict) {
  tls_pair p(tls_guard(), tls_guard());
  tcp_proxy proxy(p.here);
  proxy.add({proxy_direction::from_target, proxy_action::cut, at_byte(60)});
  tls_end a;
  p.connect(a, proxy.listens_on());
  BOOST_REQUIRE(p.run_until([&] { return a.closed && p.b().closed; }));
  BOOST_TEST((a.closed->code() == error_code::unreachable));
  BOOST_TEST((a.fault == frame_fault::none));
  BOOST_TEST((p.b().fault == frame_fault::none));
}

// TLS-1, through the transport and a socket: whatever byte of either direction is changed, what
// arrives is what was sent before it, and each end that notices says why.
BOOST_AUTO_TEST_CASE(TR_1_no_byte_that_is_changed_on_the_way_is_taken) {
  std::mt19937 random(11);
  for (int i = 0; i < 60; ++i) {
    const bool is_forth = i % 2 == 0;
    const bool is_in_handshake = i < 30;  // perhaps
    const auto at = is_in_handshake ? random() % 700 : 700 + random() % 200'000;
    BOOST_TEST_CONTEXT((is_forth ? "forth" : "back") << ", byte " << at) {
      tls_pair p(tls_guard(), tls_guard());
      tcp_proxy proxy(p.here);
      proxy.add({is_forth ? proxy_direction::to_target : proxy_direction::from_target,
                 proxy_action::flip, at_byte(at)});
      tls_end a;
      p.connect(a, proxy.listens_on());
      for (std::uint64_t n = 1; n <= 20; ++n)
        for (tls_end* e : {&a, &p.b()}) e->send(n, 12'000);
      auto& victim = is_forth ? p.b() : a;
      // A length that was changed makes an end wait for bytes that never come, where nothing
      // follows: the time for the handshake ends that. Else it is noticed at once.
      const auto is_closed = [&] { return victim.closed.has_value(); };
      const bool is_noticed =
          p.run_until(is_closed, is_in_handshake ? tls_second / 10 : 20 * tls_second);
      if (is_in_handshake && !is_noticed) proxy.drop_connections();
      BOOST_REQUIRE_MESSAGE(p.run_until(is_closed), "the end that got the change goes on");
      if (is_noticed) BOOST_TEST((victim.fault == frame_fault::protection));
      BOOST_TEST(!victim.closed->message().empty());
      BOOST_TEST(victim.frames < 20u);
      BOOST_TEST(victim.are_right);
      BOOST_TEST((is_forth ? a : p.b()).are_right);
    }
  }
}

BOOST_AUTO_TEST_CASE(strangers_that_begin_a_handshake_and_stay_are_turned_away) {
  tls_pair p(tls_guard(), tls_guard(), {.strangers_max = 4});
  p.trusts = false;
  std::vector<std::unique_ptr<tls_end>> callers;
  for (int i = 0; i < 12; ++i) {
    callers.push_back(std::make_unique<tls_end>());
    p.connect(*callers.back(), p.here);
  }
  BOOST_REQUIRE(p.run_until([&] { return p.called.counters().turned_away == 8; }));
  BOOST_TEST(p.called.counters().strangers <= 4u);
}

BOOST_AUTO_TEST_SUITE_END()
