#include "troupe/actors/net/tcp_transport.hpp"

#include "tests/support/tcp_proxy.hpp"
#include "tests/support/wait.hpp"
#include "troupe/actors/net/io_loop.hpp"
#include "troupe/actors/net/tcp_socket.hpp"

#include <boost/test/unit_test.hpp>

#include <arpa/inet.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <optional>
#include <random>

using namespace troupe;
using namespace troupe::test;

namespace {

constexpr std::int64_t ms = 1'000'000;
constexpr std::int64_t second = 1'000 * ms;
constexpr std::size_t MiB = 1024 * 1024;

tensor some_tensor(std::size_t bytes, unsigned seed = 1) {
  auto t = tensor::make({dtype::u8, shape{static_cast<std::int64_t>(bytes)}});
  std::mt19937 random(seed);
  for (std::size_t i = 0; i + 4 <= bytes; i += 4) {
    const auto v = static_cast<std::uint32_t>(random());
    std::memcpy(t.bytes().data() + i, &v, 4);
  }
  return t;
}

std::vector<std::byte> text(std::string_view s) {
  const auto b = std::as_bytes(std::span(s.data(), s.size()));
  return {b.begin(), b.end()};
}

// One end of a connection, which writes down what happens to it.
struct end final : channel_handler {
  std::unique_ptr<channel> ch;
  std::vector<std::uint64_t> sequences;
  std::vector<std::string> headers;
  std::vector<std::byte> landed;
  std::optional<error> closed;
  frame_fault fault = frame_fault::none;
  std::size_t payload_bytes = 0;
  bool discards = false;
  std::function<void()> then;
  std::function<void()> before_payload;

  std::span<std::byte> payload_destination(frame_kind, std::span<const std::byte>,
                                           std::uint32_t n) override {
    if (before_payload) before_payload();
    if (discards) return {};
    landed.resize(n);
    return landed;
  }
  void on_frame(const received_frame& f) override {
    sequences.push_back(f.sequence);
    headers.emplace_back(reinterpret_cast<const char*>(f.header.data()), f.header.size());
    payload_bytes += f.payload_length;
    if (then) then();
  }
  void on_closed(const error& why, frame_fault f) override {
    BOOST_TEST(!closed.has_value());
    closed = why;
    fault = f;
    if (then) then();
  }
  void send(std::uint64_t sequence, std::string_view header = "", tensor payload = {}) {
    outgoing_frame f;
    f.kind = payload ? frame_kind::chunk : frame_kind::control;
    f.sequence = sequence;
    f.header = text(header);
    f.length = payload ? payload.size_bytes() : 0;
    f.payload = std::move(payload);
    ch->send(std::move(f));
  }
};

struct fixture {
  explicit fixture(const tcp_options& options = {}) : net(loop, options) {
    auto at = net.listen({"localhost", 0}, [this](std::unique_ptr<channel> c) {
      accepted.push_back(std::make_unique<end>());
      accepted.back()->ch = std::move(c);
    });
    BOOST_REQUIRE(at);
    here = *at;
  }

  template <class Done>
  bool run_until(Done done, std::int64_t limit_ns = 20 * second) {
    const auto deadline = loop.now_ns() + limit_ns;
    while (!done() && loop.now_ns() < deadline) loop.poll(10);
    return done();
  }

  // A started pair: `a` called, `b` was called. Both trusted.
  void connect(end& a, const address& to) {
    const auto before = accepted.size();
    bool is_there = false;
    net.connect(to, second, [&](auto r) {
      BOOST_REQUIRE_MESSAGE(r, (r ? "" : r.error().message()));
      a.ch = std::move(*r);
      is_there = true;
    });
    BOOST_TEST(!is_there);  // no callback from within a call
    BOOST_REQUIRE(run_until([&] { return is_there && accepted.size() > before; }));
    a.ch->trust_peer();
    a.ch->start(a);
    b().ch->trust_peer();
    b().ch->start(b());
  }
  end& b() { return *accepted.back(); }

  io_loop loop;
  tcp_transport net;
  address here;
  std::vector<std::unique_ptr<end>> accepted;
};

// b() has been accepted, and is broken before it was started: with something unread the kernel
// answers with a reset.
void break_before_start(fixture& f) {
  std::unique_ptr<channel> caller;
  f.net.connect(f.here, second, [&](auto r) { caller = std::move(*r); });
  BOOST_REQUIRE(f.run_until([&] { return caller && f.accepted.size() == 1; }));
  f.b().send(1, "never read");
  f.run_until([] { return false; }, 20 * ms);
  caller.reset();
  BOOST_REQUIRE(f.run_until([&] { return f.net.counters().strangers == 0; }));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(tcp_transport)

BOOST_AUTO_TEST_CASE(TR_1_frames_of_all_sizes_arrive_in_order_and_unchanged_both_ways) {
  for (const bool has_checksums : {true, false}) {
    fixture f({.checksum_payloads = has_checksums});
    end a;
    f.connect(a, f.here);
    std::mt19937 random(7);
    constexpr std::uint64_t count = 400;
    std::size_t bytes = 0;
    for (std::uint64_t i = 1; i <= count; ++i) {
      for (end* e : {&a, &f.b()}) {
        const std::size_t size = random() % 5 == 0 ? random() % MiB + 1 : random() % 3000 + 1;
        const bool has_payload = random() % 2 == 0;
        e->send(i, std::string(random() % 300, 'h'), has_payload ? some_tensor(size) : tensor{});
        if (has_payload) bytes += size;
      }
    }
    BOOST_REQUIRE(f.run_until(
        [&] { return a.sequences.size() == count && f.b().sequences.size() == count; }));
    BOOST_TEST(a.payload_bytes + f.b().payload_bytes == bytes);
    for (std::uint64_t i = 0; i < count; ++i)
      BOOST_REQUIRE((a.sequences[i] == i + 1 && f.b().sequences[i] == i + 1));
    BOOST_TEST(a.ch->unsent_bytes() == 0);
  }
}

BOOST_AUTO_TEST_CASE(a_chunk_lands_in_its_destination_from_a_part_of_a_tensor) {
  fixture f;
  end a;
  f.connect(a, f.here);
  const auto t = some_tensor(3 * MiB);
  outgoing_frame o;
  o.kind = frame_kind::chunk;
  o.payload = t;
  o.offset = MiB + 5;
  o.length = MiB;
  a.ch->send(std::move(o));
  BOOST_REQUIRE(f.run_until([&] { return !f.b().sequences.empty(); }));
  BOOST_TEST((std::memcmp(f.b().landed.data(), t.bytes().data() + MiB + 5, MiB) == 0));
}

BOOST_AUTO_TEST_CASE(TR_4_a_tensor_is_kept_until_it_is_written_and_no_longer) {
  fixture f;
  end a;
  f.connect(a, f.here);
  auto t = some_tensor(MiB);
  a.send(1, "", t);
  BOOST_TEST(!t.is_unique());
  BOOST_REQUIRE(f.run_until([&] { return f.b().payload_bytes == MiB; }));
  BOOST_TEST(t.is_unique());
  for (std::uint64_t i = 0; i < 100; ++i) a.send(i, "", t);
  a.ch.reset();
  BOOST_TEST(t.is_unique());
}

BOOST_AUTO_TEST_CASE(unsent_bytes_fall_and_writable_comes_at_the_mark) {
  fixture f;
  end a;
  f.connect(a, f.here);
  f.b().discards = true;
  int calls = 0;
  std::size_t at_call = 0;
  a.ch->on_writable(2 * MiB, [&] {
    ++calls;
    at_call = a.ch->unsent_bytes();
  });
  const auto t = some_tensor(MiB);
  for (std::uint64_t i = 0; i < 20; ++i) a.send(i, "", t);
  BOOST_TEST(a.ch->unsent_bytes() == 20 * (MiB + prelude_bytes));
  BOOST_REQUIRE(f.run_until([&] { return f.b().sequences.size() == 20; }));
  BOOST_TEST(calls == 1);
  BOOST_TEST(at_call <= 2 * MiB);
}

BOOST_AUTO_TEST_CASE(TR_2_the_end_of_a_peer_is_told_once_and_last) {
  fixture f;
  end a;
  f.connect(a, f.here);
  f.b().send(1, "last words");
  f.b().ch->close();
  BOOST_REQUIRE(f.run_until([&] { return a.closed.has_value(); }));
  BOOST_TEST(a.headers.size() == 1);
  BOOST_TEST((a.closed->code() == error_code::unreachable));
  BOOST_TEST(to_string(a.fault) == "none");
  a.send(2, "into the void");
  f.run_until([] { return false; }, 20 * ms);
  BOOST_TEST(!f.b().closed.has_value());
}

BOOST_AUTO_TEST_CASE(close_still_writes_what_is_queued_also_when_the_peer_keeps_sending) {
  fixture f;
  end a;
  f.connect(a, f.here);
  const auto t = some_tensor(MiB);
  for (std::uint64_t i = 1; i <= 8; ++i) {
    a.send(i, "", t);
    f.b().send(i, "", t);
  }
  f.b().discards = true;
  a.ch->close();
  a.ch.reset();
  BOOST_REQUIRE(f.run_until([&] { return f.b().closed.has_value(); }));
  BOOST_TEST(f.b().sequences.size() == 8);
}

BOOST_AUTO_TEST_CASE(close_gives_up_on_a_peer_that_does_not_read) {
  fixture f({.linger_ns = 30 * ms});
  end a;
  f.connect(a, f.here);
  end silent;
  silent.ch = std::move(f.b().ch);
  const auto t = some_tensor(MiB);
  // A peer that is there but reads nothing: stopped, as far as we can see.
  unique_fd listener = std::move(*open_listener({"127.0.0.1", 0}));
  end c;
  bool is_there = false;
  f.net.connect(local_address_of(listener.get()), second, [&](auto r) {
    c.ch = std::move(*r);
    is_there = true;
  });
  BOOST_REQUIRE(f.run_until([&] { return is_there; }));
  c.ch->trust_peer();
  c.ch->start(c);
  for (std::uint64_t i = 0; i < 30; ++i) c.send(i, "", t);
  f.loop.poll(0);
  c.ch->close();
  BOOST_TEST(!t.is_unique());
  BOOST_TEST(f.run_until([&] { return t.is_unique(); }, 5 * second));
}

BOOST_AUTO_TEST_CASE(TR_3_a_channel_may_end_itself_and_its_handler_in_any_callback) {
  for (int way = 0; way < 4; ++way) {
    fixture f;
    end a;
    f.connect(a, f.here);
    auto& b = f.b();
    auto slot = &f.accepted.back();
    b.then = [&, slot, way] {
      if (way == 0) b.ch->close();
      if (way == 1) b.ch->abort();
      if (way == 2) b.ch.reset();
      if (way == 3) {
        auto dead = std::move(*slot);  // handler and channel; this closure goes with them
        auto keep = std::move(dead->then);
        dead.reset();
      }
    };
    for (std::uint64_t i = 0; i < 50; ++i) a.send(i, "x", some_tensor(100));
    BOOST_TEST(f.run_until([&] { return a.closed.has_value(); }));
    if (way < 3) BOOST_TEST(b.sequences.size() == 1);
  }
}

BOOST_AUTO_TEST_CASE(TR_6_bytes_that_are_no_frame_close_one_connection_and_harm_no_other) {
  fixture f;
  end a;
  f.connect(a, f.here);
  unique_fd raw(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto to = known_addresses(f.here).front();
  BOOST_REQUIRE(::connect(raw.get(), to.get(), to.length) == 0);
  BOOST_REQUIRE(f.run_until([&] { return f.accepted.size() == 2; }));
  f.b().ch->start(f.b());
  const std::string_view request =
      "GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: somebody who is lost\r\n\r\n";
  BOOST_REQUIRE(::send(raw.get(), request.data(), request.size(), MSG_NOSIGNAL) > 0);
  BOOST_REQUIRE(f.run_until([&] { return f.b().closed.has_value(); }));
  BOOST_TEST(to_string(f.b().fault) == "bad magic");
  BOOST_TEST(f.net.faults().of(frame_fault::bad_magic) == 1);
  a.send(1, "fine");
  BOOST_TEST(f.run_until([&] { return f.accepted[0]->sequences.size() == 1; }));
}

BOOST_AUTO_TEST_CASE(TR_5_a_stranger_may_not_send_what_a_peer_may) {
  fixture f;
  end a;
  f.connect(a, f.here);
  end c;
  bool is_there = false;
  f.net.connect(f.here, second, [&](auto r) {
    c.ch = std::move(*r);
    is_there = true;
  });
  BOOST_REQUIRE(f.run_until([&] { return is_there && f.accepted.size() == 2; }));
  f.b().ch->start(f.b());
  c.ch->start(c);
  c.send(1, "control of a stranger");
  BOOST_REQUIRE(f.run_until([&] { return f.b().closed.has_value(); }));
  BOOST_TEST(to_string(f.b().fault) == "bad kind");
}

BOOST_AUTO_TEST_CASE(TR_5_strangers_are_limited_and_a_proven_peer_is_none) {
  fixture f({.strangers_max = 3});
  std::vector<std::unique_ptr<end>> callers;
  auto call = [&] {
    callers.push_back(std::make_unique<end>());
    end* e = callers.back().get();
    f.net.connect(f.here, second, [e](auto r) {
      if (!r) return;
      e->ch = std::move(*r);
      e->ch->start(*e);
    });
    f.run_until([] { return false; }, 30 * ms);
  };
  for (int i = 0; i < 5; ++i) call();
  // The oldest went, so that silent ones keep nobody out.
  BOOST_TEST(f.accepted.size() == 5);
  BOOST_TEST(f.net.counters().turned_away == 2);
  BOOST_TEST(f.net.counters().strangers == 3);
  BOOST_TEST(callers[0]->closed.has_value());
  BOOST_TEST(callers[1]->closed.has_value());
  BOOST_TEST(!callers[4]->closed.has_value());
  f.accepted[2]->ch->trust_peer();
  call();
  BOOST_TEST(f.accepted.size() == 6);
  BOOST_TEST(f.net.counters().turned_away == 2);
  f.accepted[3].reset();
  BOOST_TEST(f.net.counters().strangers == 2);
  callers[4]->ch.reset();
  f.accepted[4]->ch->start(*f.accepted[4]);
  BOOST_TEST(f.run_until([&] { return f.accepted[4]->closed.has_value(); }));
  BOOST_TEST(f.net.counters().strangers == 1);
}

BOOST_AUTO_TEST_CASE(TR_5_one_origin_takes_no_place_of_another_and_who_has_spoken_stays_longer) {
  fixture f({.strangers_max = 4});
  std::vector<int> fds;
  const auto call = [&](const char* from, bool speaks) {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    fds.push_back(fd);
    sockaddr_in own{};
    own.sin_family = AF_INET;
    BOOST_REQUIRE(inet_pton(AF_INET, from, &own.sin_addr) == 1);
    BOOST_REQUIRE(::bind(fd, reinterpret_cast<const sockaddr*>(&own), sizeof own) == 0);
    const auto to = known_addresses({"127.0.0.1", f.here.port}).front();
    BOOST_REQUIRE(::connect(fd, to.get(), to.length) == 0);
    const auto before = f.accepted.size();
    BOOST_REQUIRE(f.run_until([&] { return f.accepted.size() > before; }));
    f.accepted.back()->ch->start(*f.accepted.back());
    if (speaks) {
      const auto frame = encode_frame({.kind = frame_kind::hello}, text("hello"), {});
      BOOST_REQUIRE(::send(fd, frame.data(), frame.size(), MSG_NOSIGNAL) ==
                    static_cast<ssize_t>(frame.size()));
    }
    f.run_until([] { return false; }, 30 * ms);
  };
  const auto is_here = [&](std::size_t i) { return !f.accepted[i]->closed.has_value(); };
  call("127.0.0.2", false);
  call("127.0.0.3", true);
  call("127.0.0.3", false);
  call("127.0.0.3", false);
  // A flood from one address costs that address its own places, silent ones first.
  for (int i = 0; i < 3; ++i) call("127.0.0.3", false);
  BOOST_TEST(is_here(0));
  BOOST_TEST(is_here(1));
  BOOST_TEST(!is_here(2));
  BOOST_TEST(!is_here(3));
  BOOST_TEST(is_here(6));
  // And one from elsewhere has a place.
  call("127.0.0.4", false);
  BOOST_TEST(is_here(0));
  BOOST_TEST(is_here(1));
  BOOST_TEST(is_here(7));
  BOOST_TEST(f.net.counters().strangers == 4);
  // Of many that have one place each the oldest silent one goes.
  call("127.0.0.5", false);
  BOOST_TEST(!is_here(6));
  call("127.0.0.6", false);
  BOOST_TEST(!is_here(0));
  BOOST_TEST(is_here(1));
  BOOST_TEST(is_here(9));
  BOOST_TEST(f.net.counters().strangers == 4);
  for (const int fd : fds) ::close(fd);
}

BOOST_AUTO_TEST_CASE(
    a_connection_that_breaks_before_it_is_started_burns_no_time_and_is_told_at_the_start) {
  fixture f;
  break_before_start(f);
  int handlers = 0;
  for (int i = 0; i < 10; ++i) handlers += f.loop.poll(1);
  BOOST_TEST(handlers == 0);
  f.b().ch->start(f.b());
  BOOST_TEST(!f.b().closed.has_value());
  BOOST_TEST(f.run_until([&] { return f.b().closed.has_value(); }));
}

BOOST_AUTO_TEST_CASE(
    a_connection_that_broke_before_it_was_started_may_be_closed_by_who_is_told_of_it) {
  fixture f;
  break_before_start(f);
  struct closer final : channel_handler {
    std::span<std::byte> payload_destination(frame_kind, std::span<const std::byte>,
                                             std::uint32_t) override {
      return {};
    }
    void on_frame(const received_frame&) override {}
    void on_closed(const error&, frame_fault) override {
      has_closed = true;
      ch->close();
    }
    channel* ch = nullptr;
    bool has_closed = false;
  } handler;
  handler.ch = f.b().ch.get();
  f.b().ch->start(handler);
  BOOST_TEST(f.run_until([&] { return handler.has_closed; }));
  for (int i = 0; i < 10; ++i) f.loop.poll(1);
}

BOOST_AUTO_TEST_CASE(nobody_there_is_an_error_with_the_address) {
  fixture f;
  std::optional<error> why;
  const auto gone = f.here;
  f.net.stop_listening();
  f.net.connect(gone, second, [&](auto r) {
    BOOST_REQUIRE(!r);
    why = r.error();
  });
  BOOST_REQUIRE(f.run_until([&] { return why.has_value(); }));
  BOOST_TEST((why->code() == error_code::unreachable));
  BOOST_TEST(why->message().find(to_string(gone) + ": Connection refused") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(an_unknown_name_is_an_error_and_the_loop_goes_on_meanwhile) {
  fixture f;
  std::optional<error> why;
  f.net.connect({"no-such-host.invalid", 7000}, 2 * second, [&](auto r) {
    BOOST_REQUIRE(!r);
    why = r.error();
  });
  int ticks = 0;
  std::function<void()> tick = [&] {
    ++ticks;
    f.net.after(ms, tick);
  };
  tick();
  BOOST_REQUIRE(f.run_until([&] { return why.has_value(); }));
  BOOST_TEST((why->code() == error_code::unreachable || why->code() == error_code::timed_out));
  BOOST_TEST(why->message().find("no-such-host.invalid") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_name_that_the_system_knows_is_connected_to) {
  fixture f;
  auto at = f.net.listen({"127.0.0.1", 0}, [&](std::unique_ptr<channel> c) {
    f.accepted.push_back(std::make_unique<end>());
    f.accepted.back()->ch = std::move(c);
  });
  BOOST_REQUIRE(at);
  end a;
  f.connect(a, {"127.1", at->port});  // which is read by the system's resolver alone
  a.send(1, "by name");
  BOOST_TEST(f.run_until([&] { return f.b().headers.size() == 1; }));
  BOOST_TEST(f.b().headers.at(0) == "by name");
}

BOOST_AUTO_TEST_CASE(a_connect_without_an_answer_times_out) {
  // A listener whose queue is full answers nobody.
  unique_fd deaf(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const auto any = known_addresses({"127.0.0.1", 0}).front();
  BOOST_REQUIRE((::bind(deaf.get(), any.get(), any.length) == 0 && ::listen(deaf.get(), 0) == 0));
  const address at = local_address_of(deaf.get());
  fixture f;
  std::vector<std::unique_ptr<channel>> full;
  int timed_out = 0, answered = 0;
  for (int i = 0; i < 6; ++i)
    f.net.connect(at, 200 * ms, [&](auto r) {
      ++answered;
      if (r) return full.push_back(std::move(*r));
      if (r.error().code() == error_code::timed_out &&
          r.error().message().find("within 200 ms") != std::string::npos)
        ++timed_out;
    });
  BOOST_REQUIRE(f.run_until([&] { return answered == 6; }));
  BOOST_TEST(timed_out > 0);
}

BOOST_AUTO_TEST_CASE(a_port_in_use_and_a_foreign_address_are_named) {
  fixture f;
  auto again = f.net.listen(f.here, [](auto) {});
  BOOST_REQUIRE(!again);
  BOOST_TEST((again.error().code() == error_code::usage));
  BOOST_TEST(again.error().message().find(to_string(f.here) + ": the port is in use") !=
             std::string::npos);
  auto foreign = f.net.listen({"192.0.2.1", 0}, [](auto) {});
  BOOST_REQUIRE(!foreign);
  BOOST_TEST(foreign.error().message().find("not an address of this machine") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(IPv6_works_where_the_machine_has_it) {
  fixture f;
  auto at = f.net.listen({"::1", 0}, [&](std::unique_ptr<channel> c) {
    f.accepted.push_back(std::make_unique<end>());
    f.accepted.back()->ch = std::move(c);
  });
  if (!at) {
    BOOST_TEST_MESSAGE("skipped: no IPv6 here: " << at.error().message());
    return;
  }
  end a;
  f.connect(a, *at);
  a.send(1, "six");
  BOOST_TEST(f.run_until([&] { return f.b().headers.size() == 1; }));
  BOOST_TEST(f.b().ch->peer_address().host == "::1");
}

BOOST_AUTO_TEST_CASE(a_small_frame_passes_a_connection_that_streams) {
  fixture f;
  end data, control;
  f.connect(data, f.here);
  end& data_in = f.b();
  data_in.discards = true;
  f.connect(control, f.here);
  end& control_in = f.b();
  const auto t = some_tensor(MiB);
  std::uint64_t sent = 0;
  auto fill = [&] {
    while (data.ch->unsent_bytes() < 8 * MiB && sent < 400) data.send(++sent, "", t);
  };
  data.ch->on_writable(4 * MiB, fill);
  fill();
  std::vector<std::uint64_t> chunks_between;
  std::size_t before = 0;
  control_in.then = [&] {
    chunks_between.push_back(data_in.sequences.size() - before);
    before = data_in.sequences.size();
    control.send(1, "tick");
  };
  control.send(1, "tick");
  BOOST_REQUIRE(f.run_until([&] { return data_in.sequences.size() == 400; }));
  // Each event moves at most half a MiB: a control frame waits for a few of those, never for the
  // stream.
  BOOST_TEST(chunks_between.size() > 100);
  BOOST_TEST(*std::max_element(chunks_between.begin(), chunks_between.end()) <= 8);
}

BOOST_AUTO_TEST_CASE(a_transport_that_ends_takes_its_connections_along_and_leaves_dead_channels) {
  io_loop loop;
  std::unique_ptr<end> a = std::make_unique<end>();
  {
    class tcp_transport net(loop);
    auto at = net.listen({"127.0.0.1", 0}, [](auto) {});
    net.connect(*at, second, [&](auto r) { a->ch = std::move(*r); });
    test::wait_until("the connection is there", [&] {
      loop.poll(0);
      return bool(a->ch);
    });
    a->ch->start(*a);
    net.connect(*at, second, [&](auto) { BOOST_TEST(false); });
  }
  a->send(1, "x");
  for (int i = 0; i < 5; ++i) loop.poll(1);
  BOOST_TEST(!a->closed.has_value());
  BOOST_TEST(a->ch->unsent_bytes() == 0);
}

// --- payloads that stay where they are: both ends are this process, which may read itself

struct lending : fixture {
  explicit lending(const tcp_options& options = {.checksum_on_loopback = false})
      : fixture(options) {}

  // b() reads the payloads of `a` where they are, which knows it from b()'s first frame. False: the
  // system lets nobody read.
  bool lend() {
    connect(a, here);
    own_probe word(0x0123456789abcdef);
    const auto memory = peer_memory::open(static_cast<std::uint32_t>(::getpid()), word.where());
    if (!memory) {
      BOOST_TEST_MESSAGE("skipped: this system lets no process be read (process_vm_readv)");
      return false;
    }
    a.ch->let_peer_read(std::move(word));
    b().ch->read_peer_memory(*memory);
    BOOST_TEST(a.ch->payloads_may_stay());  // from the first word of b() that it reads
    b().send(1, "I read");
    BOOST_REQUIRE(run_until([&] { return a.sequences.size() == 1; }));
    return true;
  }
  bool has_landed(const tensor& t) { return std::ranges::equal(b().landed, t.bytes()); }

  end a;
};

BOOST_FIXTURE_TEST_CASE(TR_4_a_payload_that_stays_arrives_bit_equal_and_is_on_no_wire, lending) {
  if (!lend()) return;
  const auto before = net.counters().bytes_sent;
  const auto t = some_tensor(MiB);
  for (std::uint64_t i = 1; i <= 3; ++i) {
    a.send(i, "header", t);
    BOOST_REQUIRE(run_until([&] { return b().sequences.size() == i; }));
    BOOST_TEST(has_landed(t));
    b().landed.clear();
  }
  BOOST_TEST(net.counters().bytes_read_in_place == 3 * MiB);
  BOOST_TEST(net.counters().bytes_sent - before == 3 * (prelude_bytes + 6));
  BOOST_TEST(a.ch->unsent_bytes() == 0u);
  BOOST_TEST(t.is_unique());  // the transport's part: who sent it keeps it until it is acknowledged
  b().discards = true;        // then nobody reads it
  a.send(4, "header", t);
  BOOST_REQUIRE(run_until([&] { return b().sequences.size() == 4; }));
  BOOST_TEST(net.counters().bytes_read_in_place == 3 * MiB);
}

BOOST_FIXTURE_TEST_CASE(what_is_small_or_not_numbered_or_page_locked_does_not_stay, lending) {
  if (!lend()) return;
  struct page_locked final : memory_holder {
    explicit page_locked(tensor of) : t(std::move(of)) {}
    bool is_pinned() const noexcept override { return true; }
    tensor t;
  };
  auto memory = some_tensor(MiB);
  const auto locked =
      tensor::over(memory.bytes(), memory.spec(), std::make_unique<page_locked>(memory));
  const auto part = locked.part(64 * 1024, {dtype::u8, shape{64 * 1024}});
  const std::vector<std::pair<std::uint64_t, tensor>> sent{
      {1, some_tensor(16 * 1024 - 1)}, {0, some_tensor(MiB)}, {2, locked}, {3, part}};
  for (const auto& [sequence, t] : sent) {
    const auto n = b().sequences.size();
    a.send(sequence, "", t);
    BOOST_REQUIRE(run_until([&] { return b().sequences.size() == n + 1; }));
    BOOST_TEST(has_landed(t));
  }
  BOOST_TEST(net.counters().bytes_read_in_place == 0u);
}

BOOST_AUTO_TEST_CASE(where_all_payloads_are_to_have_checksums_none_stays) {
  lending f({.checksum_on_loopback = true});
  if (!f.lend()) return;
  const auto t = some_tensor(MiB);
  f.a.send(1, "", t);
  BOOST_REQUIRE(f.run_until([&] { return f.b().sequences.size() == 1; }));
  BOOST_TEST(f.has_landed(t));
  BOOST_TEST(f.net.counters().bytes_read_in_place == 0u);
}

BOOST_FIXTURE_TEST_CASE(a_payload_stays_only_for_who_was_told_where_whatever_it_says, lending) {
  connect(a, here);
  own_probe word(7);
  const auto memory = peer_memory::open(static_cast<std::uint32_t>(::getpid()), word.where());
  if (!memory) {
    BOOST_TEST_MESSAGE("skipped: this system lets no process be read (process_vm_readv)");
    return;
  }
  b().ch->read_peer_memory(*memory);
  b().send(1, "I read");
  BOOST_REQUIRE(run_until([&] { return a.sequences.size() == 1; }));
  a.send(1, "", some_tensor(MiB));
  BOOST_REQUIRE(run_until([&] { return b().sequences.size() == 1; }));
  BOOST_TEST(net.counters().bytes_read_in_place == 0u);
}

// The owner of the tensor closes the connection, and has written over it, when the peer is about to
// read it.
BOOST_AUTO_TEST_CASE(PE_3_a_payload_that_was_withdrawn_is_not_delivered) {
  for (int way = 0; way < 3; ++way) {
    lending f;
    if (!f.lend()) return;
    auto t = some_tensor(MiB);
    f.b().before_payload = [&] {
      if (way == 0) f.a.ch->close();
      if (way == 1) f.a.ch->abort();
      if (way == 2) f.a.ch.reset();
      BOOST_TEST(t.is_unique());
      std::ranges::fill(t.bytes(), std::byte{0});
    };
    f.a.send(1, "", t);
    BOOST_REQUIRE(f.run_until([&] { return f.b().closed.has_value(); }));
    BOOST_TEST(to_string(f.b().fault) == "unreadable payload");
    BOOST_TEST(f.b().sequences.empty());
    BOOST_TEST(f.net.faults().of(frame_fault::unreadable) == 1u);
    BOOST_TEST(f.net.counters().bytes_read_in_place == 0u);
  }
}

// A peer that says what is not so; it writes its bytes by itself.
BOOST_FIXTURE_TEST_CASE(
    what_cannot_be_read_is_a_fault_and_arrives_over_the_socket_on_the_next_connection, lending) {
  if (!lend()) return;
  for (const std::uint64_t nowhere :
       {std::uint64_t{16}, std::uint64_t{1} << 63, ~std::uint64_t{0} - 4096}) {
    const auto faults = net.faults().of(frame_fault::unreadable);
    unique_fd raw(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const auto to = known_addresses(here).front();
    const auto n = accepted.size();
    BOOST_REQUIRE(::connect(raw.get(), to.get(), to.length) == 0);
    BOOST_REQUIRE(run_until([&] { return accepted.size() == n + 1; }));
    own_probe word(9);
    b().ch->trust_peer();
    b().ch->read_peer_memory(
        *peer_memory::open(static_cast<std::uint32_t>(::getpid()), word.where()));
    b().ch->start(b());
    // Only its address is used.
    const std::span<const std::byte> lie(
        reinterpret_cast<const std::byte*>(static_cast<std::uintptr_t>(nowhere)), 100'000);
    const auto bytes = encode_frame(
        {.kind = frame_kind::chunk, .sequence = 1, .payload_stays = true}, text("header"), lie);
    BOOST_TEST(bytes.size() == prelude_bytes + 6);
    BOOST_REQUIRE(::send(raw.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
                  static_cast<ssize_t>(bytes.size()));
    BOOST_REQUIRE(run_until([&] { return b().closed.has_value(); }));
    BOOST_TEST(to_string(b().fault) == "unreadable payload");
    BOOST_TEST((b().closed->code() == error_code::unreachable));
    BOOST_TEST(b().sequences.empty());
    BOOST_TEST(net.faults().of(frame_fault::unreadable) == faults + 1);
  }
  end again;
  connect(again, here);
  again.ch->let_peer_read(own_probe(11));
  b().send(1, "I do not read");
  BOOST_REQUIRE(run_until([&] { return again.sequences.size() == 1; }));
  const auto t = some_tensor(MiB);
  again.send(1, "", t);
  BOOST_REQUIRE(run_until([&] { return b().sequences.size() == 1; }));
  BOOST_TEST(has_landed(t));
  BOOST_TEST(net.counters().bytes_read_in_place == 0u);
}

BOOST_FIXTURE_TEST_CASE(a_connection_within_the_machine_is_known_by_its_addresses, fixture) {
  end a;
  connect(a, here);
  BOOST_TEST(a.ch->is_within_machine());
  BOOST_TEST(b().ch->is_within_machine());
}

// --- through the proxy ---------------------------------------------------------------------------

struct proxied : fixture {
  proxied() : proxy(here) {}
  void connect() { fixture::connect(a, proxy.listens_on()); }
  tcp_proxy proxy;
  end a;
};

BOOST_FIXTURE_TEST_CASE(a_flipped_header_byte_closes_the_connection, proxied) {
  proxy.add({proxy_direction::to_target, proxy_action::flip, at_frame(1, prelude_bytes + 2)});
  connect();
  for (std::uint64_t i = 0; i < 3; ++i) a.send(i, "header");
  BOOST_REQUIRE(run_until([&] { return b().closed.has_value(); }));
  BOOST_TEST(to_string(b().fault) == "bad header checksum");
  BOOST_TEST(b().sequences.size() == 1);
  BOOST_TEST(proxy.rules_applied() == 1);
}

BOOST_FIXTURE_TEST_CASE(a_flipped_payload_byte_closes_the_connection, proxied) {
  proxy.add(
      {proxy_direction::from_target, proxy_action::flip, at_frame(0, prelude_bytes + 500'000)});
  connect();
  b().send(1, "", some_tensor(MiB));
  BOOST_REQUIRE(run_until([&] { return a.closed.has_value(); }));
  BOOST_TEST(to_string(a.fault) == "bad payload checksum");
  BOOST_TEST(a.sequences.empty());
}

BOOST_FIXTURE_TEST_CASE(a_cut_inside_a_frame_is_a_truncated_frame, proxied) {
  proxy.add({proxy_direction::to_target, proxy_action::cut, at_frame(2, 70)});
  connect();
  for (std::uint64_t i = 0; i < 5; ++i) a.send(i, "a header of some length");
  BOOST_REQUIRE(run_until([&] { return b().closed.has_value() && a.closed.has_value(); }));
  BOOST_TEST(b().sequences.size() == 2);
  BOOST_TEST(to_string(b().fault) == "truncated");
  BOOST_TEST((b().closed->code() == error_code::unreachable));
}

BOOST_FIXTURE_TEST_CASE(one_side_cut_ends_both_sides_for_their_owners, proxied) {
  proxy.add({proxy_direction::to_target, proxy_action::half_cut, at_frame(1)});
  connect();
  a.send(1, "one");
  a.send(2, "two");
  BOOST_REQUIRE(run_until([&] { return b().closed.has_value(); }));
  BOOST_TEST(b().sequences.size() == 1);
  b().ch.reset();
  BOOST_TEST(run_until([&] { return a.closed.has_value(); }));
}

BOOST_FIXTURE_TEST_CASE(a_repeated_frame_comes_twice_for_the_link_to_drop, proxied) {
  proxy.add({proxy_direction::to_target, proxy_action::repeat, at_frame(1)});
  proxy.add({proxy_direction::to_target, proxy_action::swallow, at_frame(3)});
  connect();
  for (std::uint64_t i = 1; i <= 5; ++i) a.send(i, "h");
  BOOST_REQUIRE(run_until([&] { return b().sequences.size() == 5; }));
  BOOST_TEST((b().sequences == std::vector<std::uint64_t>{1, 2, 2, 3, 5}));
}

BOOST_FIXTURE_TEST_CASE(held_bytes_come_late_and_whole, proxied) {
  proxy.add({proxy_direction::to_target, proxy_action::hold, at_byte(prelude_bytes + 3)});
  connect();
  a.send(1, "held");
  a.send(2, "behind it");
  BOOST_TEST(!run_until([&] { return !b().sequences.empty(); }, 100 * ms));
  proxy.release();
  BOOST_REQUIRE(run_until([&] { return b().sequences.size() == 2; }));
  BOOST_TEST(b().headers[0] == "held");
}

BOOST_FIXTURE_TEST_CASE(dropped_connections_are_noticed_and_new_ones_come_through_again, proxied) {
  connect();
  proxy.refuse(true);
  proxy.drop_connections();
  BOOST_REQUIRE(run_until([&] { return a.closed.has_value() && b().closed.has_value(); }));
  proxy.refuse(false);
  end c;
  fixture::connect(c, proxy.listens_on());
  c.send(1, "again");
  BOOST_TEST(run_until([&] { return b().sequences.size() == 1; }));
  BOOST_TEST(proxy.connections() == 2);
}

BOOST_AUTO_TEST_CASE(without_descriptors_accepting_pauses_and_goes_on_afterwards) {
  fixture f;
  rlimit limit;
  getrlimit(RLIMIT_NOFILE, &limit);
  unique_fd raw(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto to = known_addresses(f.here).front();
  BOOST_REQUIRE(::connect(raw.get(), to.get(), to.length) == 0);
  rlimit none = limit;
  none.rlim_cur = 3;
  BOOST_REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);
  int polls = 0;
  const auto deadline = f.loop.now_ns() + 50 * ms;
  while (f.loop.now_ns() < deadline) {
    f.loop.poll(10);
    ++polls;
  }
  setrlimit(RLIMIT_NOFILE, &limit);
  BOOST_TEST(f.accepted.empty());
  BOOST_TEST(polls < 20);  // no busy loop
  BOOST_TEST(f.run_until([&] { return f.accepted.size() == 1; }));
}

BOOST_AUTO_TEST_SUITE_END()
