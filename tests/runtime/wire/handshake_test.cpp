#include "troupe/runtime/wire/handshake.hpp"

#include <boost/test/unit_test.hpp>

#include <random>

using namespace troupe;
using status = handshake::status;

namespace {

handshake_nonce nonce_of(unsigned seed) {
  std::mt19937 random(seed);
  handshake_nonce n;
  for (auto& b : n) b = static_cast<std::byte>(random());
  return n;
}

handshake_options caller() {
  handshake_options o;
  o.role = handshake_role::initiator;
  o.cluster = "lab";
  o.token = "secret";
  o.nonce = nonce_of(1);
  o.lane = lane::data;
  o.self.id = node_id{11};
  o.self.name = "n11";
  return o;
}

handshake_options called() {
  handshake_options o = caller();
  o.role = handshake_role::acceptor;
  o.nonce = nonce_of(2);
  o.lane = lane::control;
  o.self.id = node_id{22};
  o.self.name = "n22";
  return o;
}

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto b = std::as_bytes(std::span(text.data(), text.size()));
  return {b.begin(), b.end()};
}

bool has(const handshake& h, std::string_view part) {
  return h.reason().message().find(part) != std::string::npos;
}

// Carries frames to and fro until nothing moves; `tamper` may change them.
struct pair {
  pair(const handshake_options& i, const handshake_options& a) : initiator(i, 0), acceptor(a, 0) {}

  template <class Tamper>
  void run(Tamper tamper) {
    for (int i = 0; i < 20; ++i) {
      for (auto& f : initiator.take_outgoing()) {
        tamper(f, true);
        acceptor.on_frame(f.kind, f.header);
      }
      if (acceptor.state() == status::decide && accepts) acceptor.accept(5);
      for (auto& f : acceptor.take_outgoing()) {
        tamper(f, false);
        initiator.on_frame(f.kind, f.header);
      }
    }
  }
  void run() {
    run([](handshake_frame&, bool) {});
  }

  handshake initiator, acceptor;
  bool accepts = true;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(handshake)

BOOST_AUTO_TEST_CASE(two_nodes_with_one_token_know_each_other_afterwards) {
  auto i = caller();
  i.received = 77;
  i.link = 0xabc;
  i.begins = false;
  i.expected = node_id{22};
  pair p(i, called());
  p.run();
  BOOST_REQUIRE((p.initiator.state() == status::established));
  BOOST_REQUIRE((p.acceptor.state() == status::established));
  BOOST_TEST(p.initiator.peer().name == "n22");
  BOOST_TEST(p.acceptor.peer().name == "n11");
  BOOST_TEST((p.acceptor.lane() == lane::data));
  BOOST_TEST(p.initiator.peer_received() == 5);
  BOOST_TEST(p.acceptor.peer_received() == 77);
  BOOST_TEST(p.initiator.is_proven());
  BOOST_TEST(p.acceptor.link() == 0xabcU);
  BOOST_TEST(p.initiator.link() == 0xabcU);
  BOOST_TEST(!p.acceptor.begins());
  BOOST_TEST(!p.acceptor.expects_another());
}

BOOST_AUTO_TEST_CASE(HS_1_proofs_hold_for_one_protected_connection_alone) {
  const auto one = bytes_of("one connection"), other = bytes_of("another connection");
  pair same(caller(), called());
  same.initiator.bind_to(one);
  same.acceptor.bind_to(one);
  same.run();
  BOOST_TEST((same.initiator.state() == status::established));
  // Somebody is on the way who has a protected connection to each, or to one of them.
  for (const auto& there : {other, std::vector<std::byte>{}}) {
    pair p(caller(), called());
    p.initiator.bind_to(one);
    p.acceptor.bind_to(there);
    p.run();
    BOOST_TEST((p.initiator.state() == status::refused));
    BOOST_TEST((p.acceptor.state() == status::refused));
    BOOST_TEST((p.acceptor.why() == refusal::wrong_token));
    BOOST_TEST(!p.initiator.is_proven());
  }
}

BOOST_AUTO_TEST_CASE(what_is_wrong_with_the_protection_is_a_verdict) {
  pair p(caller(), called());
  p.acceptor.on_closed(error(error_code::denied, "give --tls to both"), frame_fault::protection);
  BOOST_TEST((p.acceptor.why() == refusal::protection));
  BOOST_TEST((p.acceptor.reason().code() == error_code::denied));
  BOOST_TEST(has(p.acceptor, "give --tls to both"));
  p.initiator.on_frame(frame_kind::refuse, encode_refusal(refusal::protection, "give --tls"));
  BOOST_TEST((p.initiator.why() == refusal::protection));
  BOOST_TEST(has(p.initiator, "refused by the peer: give --tls"));
}

BOOST_AUTO_TEST_CASE(on_a_link_that_begins_nothing_has_arrived) {
  auto i = caller();
  i.received = 77;
  pair p(i, called());
  p.run();
  BOOST_TEST(p.acceptor.begins());
  BOOST_TEST(p.acceptor.peer_received() == 0);
  BOOST_TEST(p.initiator.peer_received() == 0);
}

BOOST_AUTO_TEST_CASE(who_expects_another_life_learns_who_answers) {
  auto i = caller();
  i.expected = node_id{21};
  pair p(i, called());
  p.run();
  BOOST_TEST(p.acceptor.expects_another());
  BOOST_TEST(p.initiator.peer().name == "n22");
}

BOOST_AUTO_TEST_CASE(each_learns_where_the_other_ones_memory_can_be_tried_or_that_it_cannot) {
  auto i = caller(), a = called();
  i.probe = {0x7fff12345678, 0xfedcba9876543210};
  pair p(i, a);
  p.run();
  BOOST_TEST((p.acceptor.peer_probe() == memory_probe{0x7fff12345678, 0xfedcba9876543210}));
  BOOST_TEST((p.initiator.peer_probe() == memory_probe{}));
  BOOST_TEST(p.initiator.peer_probe().address == 0u);
  a.probe = {8, 9};
  pair q(i, a);
  q.run();
  BOOST_TEST((q.initiator.peer_probe() == memory_probe{8, 9}));
}

BOOST_AUTO_TEST_CASE(no_token_on_both_sides_is_a_token_too) {
  auto i = caller(), a = called();
  i.token = a.token = "";
  pair p(i, a);
  p.run();
  BOOST_TEST((p.initiator.state() == status::established));
}

BOOST_AUTO_TEST_CASE(HS_1_a_wrong_token_is_refused_on_both_sides_with_the_reason) {
  auto i = caller();
  i.token = "guess";
  pair p(i, called());
  p.run();
  BOOST_TEST(to_string(p.acceptor.why()) == "wrong token");
  BOOST_TEST(to_string(p.initiator.why()) == "wrong token");
  BOOST_TEST(p.initiator.is_by_peer());
  BOOST_TEST(!p.acceptor.is_by_peer());
  BOOST_TEST(has(p.initiator, "wrong token for cluster 'lab'"));
  BOOST_TEST((p.acceptor.reason().code() == error_code::denied));
  BOOST_TEST(!p.acceptor.is_proven());
}

BOOST_AUTO_TEST_CASE(HS_1_an_acceptor_that_does_not_hold_the_token_is_refused) {
  class handshake i(caller(), 0);
  class handshake a(called(), 0);
  i.take_outgoing();
  const auto hello = a.take_outgoing();
  i.on_frame(hello[0].kind, hello[0].header);
  i.on_frame(frame_kind::proof, std::vector<std::byte>(32));
  BOOST_TEST(to_string(i.why()) == "wrong token");
}

BOOST_AUTO_TEST_CASE(the_acceptor_proves_nothing_to_a_stranger) {
  class handshake a(called(), 0);
  class handshake stranger(caller(), 0);
  BOOST_TEST(a.take_outgoing().size() == 1);
  a.on_frame(frame_kind::hello, stranger.take_outgoing()[0].header);
  BOOST_TEST(a.take_outgoing().empty());
}

BOOST_AUTO_TEST_CASE(another_cluster_is_refused_and_both_are_named) {
  auto i = caller();
  i.cluster = "prod\x1b[2J";
  pair p(i, called());
  p.run();
  BOOST_TEST(to_string(p.acceptor.why()) == "wrong cluster");
  BOOST_TEST(to_string(p.initiator.why()) == "wrong cluster");
  for (const auto* h : {&p.acceptor, &p.initiator})
    BOOST_TEST(has(*h, "a node of cluster 'prod?[2J' called a node of cluster 'lab'"));
}

BOOST_AUTO_TEST_CASE(another_protocol_version_is_refused_and_both_are_named) {
  pair p(caller(), called());
  p.run([](handshake_frame& f, bool is_initiators) {
    // All that we know of version 9.
    if (f.kind == frame_kind::hello && is_initiators) f.header = bytes_of("\x09");
    if (f.kind == frame_kind::hello && is_initiators) f.header.resize(3);
  });
  BOOST_TEST(to_string(p.acceptor.why()) == "wrong version");
  BOOST_TEST(has(p.acceptor, "version 2, the other one version 9"));
  BOOST_TEST(has(p.initiator, "version 9"));
}

BOOST_AUTO_TEST_CASE(HS_1_our_own_frames_sent_back_prove_nothing) {
  class handshake h(caller(), 0);
  for (const auto& f : h.take_outgoing()) h.on_frame(f.kind, f.header);
  BOOST_TEST(to_string(h.why()) == "malformed");

  // With a hello of its own, and our proof as its proof.
  class handshake i(caller(), 0);
  i.take_outgoing();
  class handshake mirror(called(), 0);
  i.on_frame(frame_kind::hello, mirror.take_outgoing()[0].header);
  const auto proof = i.take_outgoing();
  BOOST_REQUIRE((proof.size() == 1 && proof[0].kind == frame_kind::proof));
  i.on_frame(frame_kind::proof, proof[0].header);
  BOOST_TEST(to_string(i.why()) == "wrong token");
}

BOOST_AUTO_TEST_CASE(HS_1_replayed_frames_of_an_earlier_connection_prove_nothing) {
  std::vector<handshake_frame> recorded;
  pair earlier(caller(), called());
  earlier.run([&](handshake_frame& f, bool is_initiators) {
    if (is_initiators) recorded.push_back(f);
  });
  BOOST_REQUIRE((earlier.acceptor.state() == status::established));

  auto fresh = called();
  fresh.nonce = nonce_of(3);
  class handshake a(fresh, 0);
  for (const auto& f : recorded) a.on_frame(f.kind, f.header);
  BOOST_TEST(to_string(a.why()) == "wrong token");
}

BOOST_AUTO_TEST_CASE(HS_2_one_flipped_bit_anywhere_before_the_proof_is_refused) {
  for (const bool of_initiator : {true, false})
    for (const auto kind : {frame_kind::hello, frame_kind::proof})
      for (std::size_t bit = 0;
           bit < (kind == frame_kind::hello ? (8 + nonce_bytes + 3) * 8 : 32 * 8); ++bit) {
        pair p(caller(), called());
        p.run([&](handshake_frame& f, bool is_initiators) {
          if (f.kind == kind && is_initiators == of_initiator)
            f.header[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
        });
        BOOST_REQUIRE(
            (p.initiator.state() == status::refused && p.acceptor.state() != status::established));
      }
}

BOOST_AUTO_TEST_CASE(HS_2_truncated_and_lengthened_frames_are_refused) {
  for (const bool of_initiator : {true, false})
    for (const auto kind : {frame_kind::hello, frame_kind::proof, frame_kind::identity})
      for (const int change : {-1000, -8, -1, 1, 8}) {
        pair p(caller(), called());
        p.run([&](handshake_frame& f, bool is_initiators) {
          if (f.kind != kind || is_initiators != of_initiator) return;
          f.header.resize(
              static_cast<std::size_t>(std::max(0, static_cast<int>(f.header.size()) + change)));
        });
        // Cap'n Proto ignores whole words behind a message.
        const bool is_harmless = kind == frame_kind::identity && change == 8;
        BOOST_TEST((p.initiator.state() == status::established) == is_harmless,
                   to_string(kind) << " " << change << " " << of_initiator);
      }
}

BOOST_AUTO_TEST_CASE(HS_2_frames_out_of_order_are_refused) {
  for (const auto kind :
       {frame_kind::proof, frame_kind::identity, frame_kind::control, frame_kind::chunk}) {
    class handshake h(called(), 0);
    h.on_frame(kind, std::vector<std::byte>(32));
    BOOST_TEST(to_string(h.why()) == "malformed");
    h.take_outgoing();
    h.on_frame(frame_kind::hello, {});  // HS-4
    BOOST_TEST(h.take_outgoing().empty());
  }
}

BOOST_AUTO_TEST_CASE(HS_2_random_frames_never_establish_anything) {
  std::mt19937 random(5);
  for (int n = 0; n < 20'000; ++n) {
    const bool accepts = n % 2 == 0;
    class handshake h(accepts ? called() : caller(), 0);
    for (int i = 0; i < 4; ++i) {
      std::vector<std::byte> bytes(random() % 120);
      for (auto& b : bytes) b = static_cast<std::byte>(random());
      if (i == 0 && n % 3 != 0) {
        class handshake other(accepts ? caller() : called(), 0);
        h.on_frame(frame_kind::hello, other.take_outgoing()[0].header);
      } else {
        h.on_frame(static_cast<frame_kind>(1 + random() % frame_kind_last), bytes);
      }
    }
    BOOST_REQUIRE((h.state() == status::refused && !h.is_proven()));
  }
}

BOOST_AUTO_TEST_CASE(HS_3_a_silent_peer_is_refused_after_two_seconds) {
  class handshake h(called(), 1'000);
  BOOST_TEST((h.on_time(1'999'999'999) == status::running));
  BOOST_TEST((h.on_time(h.deadline_ns()) == status::refused));
  BOOST_TEST(to_string(h.why()) == "timed out");
  BOOST_TEST((h.reason().code() == error_code::timed_out));
}

// Anybody who answers at a member's address could end a life or a link by one frame.
BOOST_AUTO_TEST_CASE(what_only_members_may_say_counts_from_who_has_proven_itself) {
  for (const auto said :
       {refusal::held_dead, refusal::forgotten, refusal::crossing, refusal::itself}) {
    pair p(caller(), called());
    p.initiator.on_frame(frame_kind::refuse, encode_refusal(said, "give way"));
    BOOST_TEST((p.initiator.state() == status::refused));
    BOOST_TEST((p.initiator.why() == refusal::lost));
    BOOST_TEST(!has(p.initiator, "give way"));
  }
}

BOOST_AUTO_TEST_CASE(an_owner_may_refuse_a_proven_peer) {
  pair p(caller(), called());
  p.accepts = false;
  p.run();
  BOOST_REQUIRE((p.acceptor.state() == status::decide));
  BOOST_TEST(p.acceptor.peer().name == "n11");
  p.acceptor.refuse(refusal::forgotten, "the link was given up here");
  p.run();
  BOOST_TEST(to_string(p.initiator.why()) == "forgotten");
  BOOST_TEST(p.initiator.is_by_peer());
  BOOST_TEST(has(p.initiator, "the link was given up here"));
}

BOOST_AUTO_TEST_CASE(a_node_that_calls_itself_is_told_so) {
  auto a = called();
  a.self.id = node_id{11};
  pair p(caller(), a);
  p.run();
  BOOST_TEST(to_string(p.acceptor.why()) == "itself");
}

BOOST_AUTO_TEST_CASE(a_refusal_is_printed_without_control_characters_and_not_without_end) {
  class handshake h(caller(), 0);
  h.on_frame(frame_kind::refuse, bytes_of("\x01no\x1b[31m\n" + std::string(900, 'x')));
  BOOST_TEST(has(h, "refused by the peer: no?[31m?xxx"));
  BOOST_TEST(h.reason().message().size() < 600);
}

BOOST_AUTO_TEST_CASE(a_connection_that_ends_early_says_why) {
  class handshake h(caller(), 0);
  h.on_closed(error(error_code::failed, "the peer speaks frame version 2"),
              frame_fault::bad_version);
  BOOST_TEST(to_string(h.why()) == "wrong version");
  BOOST_TEST(h.take_outgoing().empty());
  class handshake l(caller(), 0);
  l.on_closed(error(error_code::unreachable, "gone"), frame_fault::none);
  BOOST_TEST(to_string(l.why()) == "lost");
  BOOST_TEST((l.reason().code() == error_code::unreachable));
}

BOOST_AUTO_TEST_SUITE_END()
