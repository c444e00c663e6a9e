#include "troupe/runtime/wire/link_session.hpp"

#include <boost/test/unit_test.hpp>

#include <cstdint>
#include <deque>
#include <random>
#include <vector>

using namespace troupe;

BOOST_TEST_DONT_PRINT_LOG_VALUE(troupe::lane)
BOOST_TEST_DONT_PRINT_LOG_VALUE(troupe::lane_state)
BOOST_TEST_DONT_PRINT_LOG_VALUE(troupe::link_session::arrival)

namespace {

constexpr auto a_id = node_id{1};
constexpr auto b_id = node_id{2};
constexpr std::int64_t ms = 1'000'000;
using arrival = link_session::arrival;

std::vector<std::byte> header_of(std::uint64_t value) {
  std::vector<std::byte> out(8);
  for (std::size_t i = 0; i < 8; ++i) out[i] = static_cast<std::byte>(value >> (8 * i));
  return out;
}

std::uint64_t value_of(std::span<const std::byte> header) {
  std::uint64_t out = 0;
  for (std::size_t i = 0; i < 8; ++i) out |= static_cast<std::uint64_t>(header[i]) << (8 * i);
  return out;
}

void send_some(link_session& s, lane l, int n) {
  for (int i = 0; i < n; ++i)
    BOOST_REQUIRE(s.send(l, frame_kind::control, header_of(static_cast<std::uint64_t>(i))));
}

std::vector<std::uint64_t> write_all(link_session& s, lane l) {
  std::vector<std::uint64_t> out;
  while (const auto* f = s.next_to_write(l)) out.push_back(f->sequence);
  return out;
}

void connect_both(link_session& s) {
  BOOST_REQUIRE(s.connected(lane::control, 0));
  BOOST_REQUIRE(s.connected(lane::data, 0));
}

// Two sessions and the wires between them, which break at random with frames and acks on them.
struct two_ends {
  struct on_wire {
    std::uint64_t sequence, ack, value;
  };

  explicit two_ends(std::uint64_t seed) : random(seed) {}

  std::mt19937_64 random;
  link_session ends[2] = {{a_id, b_id, options()}, {b_id, a_id, options()}};
  std::deque<on_wire> wires[2][lane_count];  // by sender
  std::uint64_t sent[2][lane_count] = {};
  std::uint64_t delivered[2][lane_count] = {};
  std::int64_t now = 0;
  std::uint64_t breaks = 0;

  static link_options options() {
    link_options o;
    o.ack_frames = 5;
    return o;
  }
  bool one_in(unsigned n) { return random() % n == 0; }

  void connect(lane l) {
    const auto li = static_cast<std::size_t>(l);
    const std::uint64_t told[2] = {ends[0].received(l), ends[1].received(l)};
    // What is still in the old connection's buffers may be read after the sequences were exchanged.
    for (int to = 0; to < 2; ++to) {
      auto& wire = wires[1 - to][li];
      for (auto n = wire.empty() ? 0 : random() % (wire.size() + 1); n > 0; --n) read_one(to, l);
      wire.clear();
    }
    for (int e = 0; e < 2; ++e) BOOST_REQUIRE(ends[e].connected(l, told[1 - e]));
  }
  void read_one(int to, lane l) {
    const auto li = static_cast<std::size_t>(l);
    auto& wire = wires[1 - to][li];
    if (wire.empty()) return;
    const auto f = wire.front();
    wire.pop_front();
    BOOST_REQUIRE(ends[to].acknowledged(l, f.ack));
    const auto a = ends[to].arrived(l, f.sequence, 72, now);
    BOOST_REQUIRE(a != arrival::close);
    // LS-1.
    if (a == arrival::deliver && f.sequence != 0) BOOST_REQUIRE_EQUAL(f.value, delivered[to][li]++);
  }
  void step(bool may_break) {
    const auto l = one_in(2) ? lane::control : lane::data;
    const auto li = static_cast<std::size_t>(l);
    const int e = one_in(2) ? 0 : 1;
    now += ms;
    switch (random() % 5) {
      case 0:
        if (!may_break) break;  // nothing more to send at the end
        BOOST_REQUIRE(ends[e].send(l, frame_kind::control, header_of(sent[e][li]++)));
        break;
      case 1:
        if (const auto* f = ends[e].next_to_write(l))
          wires[e][li].push_back({f->sequence, ends[e].take_ack(l), value_of(f->header)});
        break;
      case 2: read_one(e, l); break;
      case 3:
        if (ends[e].ack_due(l, now)) wires[e][li].push_back({0, ends[e].take_ack(l), 0});
        break;
      default:
        if (may_break && one_in(20)) {
          ends[0].lost(l, now);
          ends[1].lost(l, now);
          ++breaks;
          connect(l);
        }
    }
  }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(link_session)

BOOST_AUTO_TEST_CASE(frames_are_numbered_by_lane_and_kept_until_acknowledged) {
  troupe::link_session s(a_id, b_id);
  connect_both(s);
  send_some(s, lane::control, 3);
  send_some(s, lane::data, 1);
  BOOST_TEST((write_all(s, lane::control) == std::vector<std::uint64_t>{1, 2, 3}));
  BOOST_TEST((write_all(s, lane::data) == std::vector<std::uint64_t>{1}));
  BOOST_TEST(s.unacknowledged_frames(lane::control) == 3u);
  BOOST_TEST(s.unacknowledged_bytes(lane::control) == 3 * (prelude_bytes + 8));
  BOOST_TEST(bool(s.acknowledged(lane::control, 2)));
  BOOST_TEST(bool(s.acknowledged(lane::control, 1)));  // old news
  BOOST_TEST(s.unacknowledged_frames(lane::control) == 1u);
  BOOST_TEST(s.unacknowledged_bytes(lane::control) == prelude_bytes + 8);
}

BOOST_AUTO_TEST_CASE(LS_8_what_is_withdrawn_keeps_its_number_and_lets_its_tensor_go) {
  troupe::link_session s(a_id, b_id);
  connect_both(s);
  auto t = tensor::of({1, 2, 3, 4}, shape{4});
  for (int i = 0; i < 4; ++i)
    BOOST_REQUIRE(s.send(lane::data, frame_kind::chunk,
                         header_of(static_cast<std::uint64_t>(i % 2)), t, {0, 16}));
  BOOST_TEST((write_all(s, lane::data) == std::vector<std::uint64_t>{1, 2, 3, 4}));
  BOOST_TEST(s.unacknowledged_payload_bytes(lane::data) == 64u);
  s.withdraw(lane::data, [](auto header) { return value_of(header) == 0; });
  BOOST_TEST(s.unacknowledged_frames(lane::data) == 4u);
  BOOST_TEST(s.unacknowledged_payload_bytes(lane::data) == 32u);
  BOOST_TEST(s.unacknowledged_bytes(lane::data) == 4 * prelude_bytes + 2 * (8 + 16));
  s.withdraw(lane::data, [](auto header) { return value_of(header) == 1; });
  s.withdraw(lane::data, [](auto) { return true; });
  BOOST_TEST(t.is_unique());
  // After a loss they go out again, empty, under their numbers.
  s.lost(lane::data, 0);
  BOOST_REQUIRE(s.connected(lane::data, 1));
  for (std::uint64_t n = 2; n <= 4; ++n) {
    const auto* f = s.next_to_write(lane::data);
    BOOST_REQUIRE(f != nullptr);
    BOOST_TEST(f->sequence == n);
    BOOST_TEST(f->header.empty());
    BOOST_TEST(f->length == 0u);
  }
  BOOST_TEST(bool(s.acknowledged(lane::data, 4)));
  BOOST_TEST(s.unacknowledged_bytes(lane::data) == 0u);
}

BOOST_AUTO_TEST_CASE(
    LS_8_where_payloads_stay_a_frame_that_its_connection_has_keeps_its_tensor_until_it_is_acknowledged) {
  troupe::link_session s(a_id, b_id);
  connect_both(s);
  auto t = tensor::of({1, 2, 3, 4}, shape{4}), later = tensor::of({5, 6, 7, 8}, shape{4});
  for (const auto& sent : {t, t})
    BOOST_REQUIRE(s.send(lane::data, frame_kind::chunk, header_of(0), sent, {0, 16}));
  write_all(s, lane::data);
  BOOST_REQUIRE(s.send(lane::data, frame_kind::chunk, header_of(0), later, {0, 16}));
  const auto withdraw_all = [&] { s.withdraw(lane::data, [](auto) { return true; }, true); };
  withdraw_all();
  BOOST_TEST(!t.is_unique());
  BOOST_TEST(later.is_unique());  // no connection has it
  BOOST_TEST(bool(s.acknowledged(lane::data, 1)));
  withdraw_all();
  BOOST_TEST(!t.is_unique());
  BOOST_TEST(s.unacknowledged_payload_bytes(lane::data) == 16u);
  // The connection is gone, and with it what the peer was told.
  s.lost(lane::data, 0);
  withdraw_all();
  BOOST_TEST(t.is_unique());
  BOOST_TEST(s.unacknowledged_payload_bytes(lane::data) == 0u);
  BOOST_REQUIRE(s.connected(lane::data, 1));
  BOOST_TEST((write_all(s, lane::data) == std::vector<std::uint64_t>{2, 3}));
}

BOOST_AUTO_TEST_CASE(LS_2_a_frame_and_its_tensor_stay_in_place_until_acknowledged) {
  troupe::link_session s(a_id, b_id);
  connect_both(s);
  auto t = tensor::of({1, 2, 3, 4}, shape{4});
  BOOST_REQUIRE(s.send(lane::data, frame_kind::chunk, header_of(7), t, {4, 8}));
  const auto* f = s.next_to_write(lane::data);
  BOOST_REQUIRE(f != nullptr);
  for (int i = 0; i < 1000; ++i) BOOST_REQUIRE(s.send(lane::data, frame_kind::chunk, header_of(0)));
  BOOST_TEST(f->offset == 4u);
  BOOST_TEST(f->length == 8u);
  BOOST_TEST(f->payload.data<float>() == std::as_const(t).data<float>());
  BOOST_TEST(!t.is_unique());
  BOOST_TEST(bool(s.acknowledged(lane::data, 1)));
  BOOST_TEST(t.is_unique());
}

BOOST_AUTO_TEST_CASE(LS_1_a_new_connection_starts_behind_what_the_peer_has) {
  troupe::link_session s(a_id, b_id);
  connect_both(s);
  send_some(s, lane::control, 4);
  write_all(s, lane::control);
  s.lost(lane::control, 0);
  BOOST_TEST(s.next_to_write(lane::control) == nullptr);
  send_some(s, lane::control, 1);
  BOOST_REQUIRE(s.connected(lane::control, 2));
  BOOST_TEST((write_all(s, lane::control) == std::vector<std::uint64_t>{3, 4, 5}));
  BOOST_TEST(s.counters(lane::control).resent == 2u);
  BOOST_TEST(s.counters(lane::control).frames_out == 5u);
  BOOST_TEST(s.counters(lane::control).connections == 2u);
}

BOOST_AUTO_TEST_CASE(LS_3_duplicates_are_dropped_and_gaps_close_the_connection) {
  troupe::link_session s(a_id, b_id);
  connect_both(s);
  BOOST_TEST(s.arrived(lane::data, 1, 100, 0) == arrival::deliver);
  BOOST_TEST(s.arrived(lane::data, 2, 100, 0) == arrival::deliver);
  BOOST_TEST(!s.ack_due(lane::data, 0));
  BOOST_TEST(!s.would_deliver(lane::data, 2));
  BOOST_TEST(s.arrived(lane::data, 2, 100, 0) == arrival::drop);
  BOOST_TEST(s.ack_due(lane::data, 0));  // the peer is told at once
  BOOST_TEST(s.arrived(lane::data, 4, 100, 0) == arrival::close);
  BOOST_TEST(s.arrived(lane::data, 0, 100, 0) == arrival::deliver);  // not numbered
  BOOST_TEST(s.received(lane::data) == 2u);
  BOOST_TEST(s.drops(drop_reason::duplicate) == 1u);
  BOOST_TEST(s.drops(drop_reason::gap) == 1u);
  BOOST_TEST(s.counters(lane::data).frames_in == 3u);
}

BOOST_AUTO_TEST_CASE(LS_4_an_impossible_acknowledgement_is_an_error) {
  troupe::link_session s(a_id, b_id);
  connect_both(s);
  send_some(s, lane::control, 3);
  s.next_to_write(lane::control);
  s.next_to_write(lane::control);
  const auto beyond = s.acknowledged(lane::control, 3);  // numbered, but never written
  BOOST_REQUIRE(!beyond);
  BOOST_TEST(beyond.error().message() ==
             "node 2 acknowledges frame 3 of the control lane, but only 2 were sent");
  BOOST_REQUIRE(s.acknowledged(lane::control, 2));
  s.lost(lane::control, 0);
  const auto forgot = s.connected(lane::control, 1);
  BOOST_REQUIRE(!forgot);
  BOOST_TEST(
      forgot.error().message() ==
      "node 2 says on the control lane that it has 1 frames; it acknowledged 2 of the 2 sent before");
  BOOST_TEST(!s.connected(lane::control, 3));
  BOOST_TEST(bool(s.connected(lane::control, 2)));
}

BOOST_AUTO_TEST_CASE(LS_5_control_frames_are_limited_in_number_and_bytes) {
  link_options o;
  o.control_frames_max = 3;
  troupe::link_session by_number(a_id, b_id, o);
  send_some(by_number, lane::control, 3);
  BOOST_TEST(!by_number.send(lane::control, frame_kind::control, {}));
  send_some(by_number, lane::data, 10);  // bounded by credits
  o.control_frames_max = 100;
  o.control_bytes_max = 3 * (prelude_bytes + 8);
  troupe::link_session by_bytes(a_id, b_id, o);
  send_some(by_bytes, lane::control, 3);
  const auto full = by_bytes.send(lane::control, frame_kind::control, {});
  BOOST_REQUIRE(!full);
  BOOST_TEST(
      full.error().message() ==
      "node 2 has not acknowledged 3 control frames (216 bytes), which is the limit: giving it up");
  connect_both(by_bytes);
  write_all(by_bytes, lane::control);
  BOOST_REQUIRE(by_bytes.acknowledged(lane::control, 1));
  send_some(by_bytes, lane::control, 1);
}

BOOST_AUTO_TEST_CASE(LS_6_the_smaller_id_dials_at_once_and_the_other_after_a_grace) {
  troupe::link_session small(a_id, b_id), large(b_id, a_id);
  BOOST_TEST(small.dials_first());
  BOOST_TEST(!large.dials_first());
  for (auto* s : {&small, &large}) {
    connect_both(*s);
    BOOST_TEST(s->is_up());
    BOOST_TEST(!s->next_deadline_ns().has_value());
    s->lost(lane::data, 100 * ms);
    s->lost(lane::data, 150 * ms);  // once is enough
    BOOST_TEST(!s->is_up());
    BOOST_TEST(!s->dial_due(lane::control, 1000 * ms));
  }
  BOOST_TEST(small.dial_due(lane::data, 100 * ms));
  BOOST_TEST(!large.dial_due(lane::data, 119 * ms));
  BOOST_TEST(large.dial_due(lane::data, 120 * ms));
  BOOST_TEST(*large.next_deadline_ns() == 120 * ms);
  small.dialing(lane::data);
  BOOST_TEST(!small.dial_due(lane::data, 500 * ms));
  small.dial_failed(lane::data, 200 * ms);
  BOOST_TEST(!small.dial_due(lane::data, 299 * ms));
  BOOST_TEST(small.dial_due(lane::data, 300 * ms));
  BOOST_REQUIRE(large.connected(lane::data, 0));  // the peer's dial arrived
  BOOST_TEST(!large.dial_due(lane::data, 120 * ms));
  small.dialing(lane::data);
  BOOST_REQUIRE(small.connected(lane::data, 0));
  small.dial_failed(lane::data, 400 * ms);  // our own dial was the slower one
  BOOST_TEST(small.is_up());
}

BOOST_AUTO_TEST_CASE(LS_7_messages_from_or_to_another_life_are_dropped_and_counted) {
  troupe::link_session s(a_id, b_id);
  BOOST_TEST(s.admits(b_id, a_id));
  BOOST_TEST(!s.admits(node_id{3}, a_id));
  BOOST_TEST(!s.admits(b_id, node_id{3}));
  BOOST_TEST(s.drops(drop_reason::stale_generation) == 2u);
  s.count_drop(drop_reason::unknown_edge);
  BOOST_TEST(s.drops(drop_reason::unknown_edge) == 1u);
}

BOOST_AUTO_TEST_CASE(an_ack_is_due_after_some_frames_some_bytes_or_some_time) {
  link_options o;
  o.ack_frames = 3;
  o.ack_bytes = 1000;
  troupe::link_session s(a_id, b_id, o);
  connect_both(s);
  BOOST_TEST(!s.ack_due(lane::data, 1000 * ms));
  s.arrived(lane::data, 1, 10, 5 * ms);
  BOOST_TEST(!s.ack_due(lane::data, 24 * ms));
  BOOST_TEST(*s.next_deadline_ns() == 25 * ms);
  BOOST_TEST(s.ack_due(lane::data, 25 * ms));
  BOOST_TEST(s.take_ack(lane::data) == 1u);
  BOOST_TEST(!s.ack_due(lane::data, 1000 * ms));
  for (std::uint64_t i = 2; i <= 4; ++i) s.arrived(lane::data, i, 10, 30 * ms);
  BOOST_TEST(s.ack_due(lane::data, 30 * ms));
  BOOST_TEST(s.take_ack(lane::data) == 4u);
  s.arrived(lane::data, 5, 1000, 40 * ms);
  BOOST_TEST(s.ack_due(lane::data, 40 * ms));
}

BOOST_AUTO_TEST_CASE(a_closed_link_lets_go_of_everything) {
  troupe::link_session s(a_id, b_id);
  connect_both(s);
  auto t = tensor::of({1}, shape{1});
  BOOST_REQUIRE(s.send(lane::data, frame_kind::chunk, {}, t, {0, 4}));
  s.return_credit(job_id{1}, 0, 1);
  s.close();
  BOOST_TEST(s.is_closed());
  BOOST_TEST(t.is_unique());
  BOOST_TEST(!s.has_credits());
  BOOST_TEST(s.next_to_write(lane::data) == nullptr);
  BOOST_TEST(!s.send(lane::data, frame_kind::chunk, {}));
  BOOST_TEST(!s.connected(lane::data, 0));
  s.lost(lane::data, 0);
  BOOST_TEST(!s.dial_due(lane::data, 1000 * ms));
}

BOOST_AUTO_TEST_CASE(tensors_are_cut_into_chunks_of_at_most_a_mebibyte) {
  const auto cut = [](std::size_t total) {
    std::vector<chunk_part> out;
    for_each_chunk(total, [&](chunk_part p) { out.push_back(p); });
    return out;
  };
  constexpr std::size_t mib = std::size_t{1} << 20;
  BOOST_TEST((cut(0) == std::vector<chunk_part>{{0, 0}}));
  BOOST_TEST((cut(5) == std::vector<chunk_part>{{0, 5}}));
  BOOST_TEST((cut(mib) == std::vector<chunk_part>{{0, mib}}));
  BOOST_TEST((cut(2 * mib + 1) == std::vector<chunk_part>{{0, mib}, {mib, mib}, {2 * mib, 1}}));
}

BOOST_AUTO_TEST_CASE(credits_travel_in_batches_with_one_entry_an_edge) {
  troupe::link_session s(a_id, b_id);
  for (std::uint32_t i = 0; i < 3000; ++i) s.return_credit(job_id{1 + i % 2}, i % 3 == 0, i % 5, 2);
  std::uint64_t sum = 0;
  const auto batch = s.take_credits();
  BOOST_TEST(batch.size() == 20u);
  for (const auto& c : batch) sum += c.count;
  BOOST_TEST(sum == 6000u);
  BOOST_TEST(batch.front().count == 400u);
  BOOST_TEST((batch[0].job == job_id{1} && batch[0].epoch == 0 && batch[1].edge == 1));
  BOOST_TEST(!s.has_credits());
  BOOST_TEST(s.take_credits().empty());
}

BOOST_AUTO_TEST_CASE(LS_1_holds_over_breaking_connections_for_1000_seeds) {
  std::uint64_t breaks = 0, resent = 0, duplicates = 0;
  for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
    BOOST_TEST_CONTEXT("seed " << seed) {
      two_ends t(seed);
      t.connect(lane::control);
      t.connect(lane::data);
      for (int i = 0; i < 600; ++i) t.step(true);
      for (int i = 0; i < 6000; ++i) t.step(false);
      for (int e = 0; e < 2; ++e)
        for (std::size_t l = 0; l < lane_count; ++l) {
          BOOST_REQUIRE_EQUAL(t.delivered[1 - e][l], t.sent[e][l]);
          BOOST_REQUIRE_EQUAL(t.ends[e].unacknowledged_frames(static_cast<lane>(l)), 0u);
          BOOST_REQUIRE_EQUAL(t.ends[e].unacknowledged_bytes(static_cast<lane>(l)), 0u);
          resent += t.ends[e].counters(static_cast<lane>(l)).resent;
        }
      breaks += t.breaks;
      duplicates +=
          t.ends[0].drops(drop_reason::duplicate) + t.ends[1].drops(drop_reason::duplicate);
    }
  }
  BOOST_TEST(breaks > 1000u);
  BOOST_TEST(resent > 1000u);
  BOOST_TEST(duplicates > 100u);
}

BOOST_AUTO_TEST_SUITE_END()
