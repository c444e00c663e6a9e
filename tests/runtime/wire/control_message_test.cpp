#include "troupe/runtime/wire/control_message.hpp"

#include "tests/support/repetitions.hpp"
#include "troupe/runtime/wire/frame.hpp"

#include <boost/test/unit_test.hpp>

#include <cstring>
#include <limits>
#include <random>

using namespace troupe;

namespace {

// Bytes as a decoder gets them: aligned to 8.
struct aligned_bytes {
  explicit aligned_bytes(const std::vector<std::byte>& from)
      : words((from.size() + 7) / 8), size(from.size()) {
    std::memcpy(words.data(), from.data(), from.size());
  }
  std::span<std::byte> span() { return std::as_writable_bytes(std::span(words)).first(size); }
  std::vector<std::uint64_t> words;
  std::size_t size;
};

template <class Message>
Message round_trip(const Message& m) {
  aligned_bytes bytes(encode(control_message(m)));
  auto decoded = decode_control(bytes.span());
  BOOST_REQUIRE_MESSAGE(decoded, "decodes");
  BOOST_REQUIRE(std::holds_alternative<Message>(*decoded));
  return std::get<Message>(*decoded);
}

trace_query sample_query() { return {7, 8, 1'000'000'000, true, "process 12 (troupe timeline)"}; }

trace_page sample_page() {
  trace_page p;
  p.id = 7, p.recording = 8, p.error = "none";
  p.now_ns = 1000, p.began_ns = 100, p.ended_ns = 900;
  p.has_more = true, p.is_last = true;
  p.parts = {{3, job_id{5}, 2, "mnist", "/job:worker/task:0"}};
  p.actors = {{1,
               3,
               actor_kind::send,
               "worker/0/x/send",
               "send",
               node_id{9},
               {4},
               {5, 6},
               {0, 1},
               {"k", "l/m"}},
              {2, 0, actor_kind::op, "link", "", {}, {}, {}, {}}};
  p.lanes = {{"cpu:0",
              true,
              false,
              1,
              17,
              {{200, 300, trace_kind::firing, 1, 12, trace_event::everywhere, 0x2000001, 0},
               {300, 400, trace_kind::transfer, 1, 12, trace_event::everywhere, 0, 4096}}},
             {"service", false, true, trace_nobody, 0, {}}};
  return p;
}

std::vector<control_message> samples() {
  member_info m;
  m.id = node_id{7};
  m.name = "n7";
  m.address = "127.0.0.1:7000";
  m.libraries = {{"own_ops", "1.0", 5}};
  m.devices = {{"asynchronous host", 1 << 30, 2}, {"NVIDIA H100", 0, 1}};
  m.labels = {"rack=3", "disk=ssd"};
  return {heartbeat{3},
          view_update{{m, m}},
          leave{"was asked to"},
          credit_batch{{{job_id{1}, 1, 2, 3}}},
          place_part{job_id{1},
                     1,
                     std::vector<std::byte>(100),
                     {node_id{7}, node_id{8}},
                     "/checkpoints",
                     "step-1"},
          part_placed{job_id{1}, 3, "no", node_id{4}, {{"training data in /d", 5}}},
          start_part{job_id{1}},
          stop_part{job_id{1}, "done"},
          part_ended{job_id{1}, 2, "why", "actor", 9, {{1, {2}, {3}, {4}, {5}}}, 5},
          query{1, "nodes"},
          answer{1, "{}"},
          lost_peer{job_id{1}, node_id{2}, "gone", true},
          halt_part{job_id{1}, 2, "a node died"},
          part_halted{job_id{1}, 2, {{"w", {4, 5}, {5, 5}}}, {{1, {2}, {3}, {4}, {5}}}, 6},
          begin_cut{job_id{1}, 2, 3},
          work_word{job_id{1}, {std::byte{1}, std::byte{2}}},
          want_blob{job_id{1}, {2, 3, 4}, 5},
          blob_piece{job_id{1}, {2, 3, 4}, 5, std::vector<std::byte>(100), "none"},
          cancel_run{job_id{1}, 2, 3},
          fenced{"why", 2, 3, 4, node_id{5}},
          epoch_begun{job_id{1}, 2},
          part_saved{job_id{1}, 2, 100, "", {100, 100}, "part-0", "abcd", 12, {"v", "w"}},
          leaving_node{job_id{1}},
          sample_query(),
          sample_page(),
          part_noted{job_id{1}, 2, "worker/0/log", 12, "gives -inf"}};
}

}  // namespace

BOOST_AUTO_TEST_SUITE(control_message)

BOOST_AUTO_TEST_CASE(messages_come_back_as_they_were) {
  const auto part = round_trip(part_ended{
      job_id{5}, 2, "text", "worker/0/x", 12, {{3, {4, 5}, {6, 7}, {0, 1}, {2, 3}}}, 99});
  BOOST_TEST(part.error == "text");
  BOOST_TEST(part.step == 12u);
  BOOST_TEST(part.data_messages == 99u);
  BOOST_TEST(!part.is_derived);
  BOOST_TEST(round_trip(part_ended{job_id{5}, 2, "text", "", 12, {}, 99, true}).is_derived);
  BOOST_TEST(part.epoch == 2u);
  BOOST_TEST_REQUIRE(part.shards.size() == 1u);
  BOOST_TEST(part.shards[0].applied == (std::vector<std::uint64_t>{6, 7}),
             boost::test_tools::per_element());
  BOOST_TEST(part.shards[0].duplicates == (std::vector<std::uint64_t>{2, 3}),
             boost::test_tools::per_element());
  const auto want = round_trip(want_blob{job_id{1}, {2, 3, 4}, 5});
  BOOST_TEST((want.job == job_id{1}));
  BOOST_TEST((want.id == blob_id{2, 3, 4}));
  BOOST_TEST(want.offset == 5U);
  const auto piece = round_trip(
      blob_piece{job_id{1}, {2, 3, 4}, 5, {std::byte{7}, std::byte{8}}, "there is none"});
  BOOST_TEST((piece.job == job_id{1}));
  BOOST_TEST((piece.id == blob_id{2, 3, 4}));
  BOOST_TEST(piece.offset == 5U);
  BOOST_TEST((piece.bytes == std::vector{std::byte{7}, std::byte{8}}));
  BOOST_TEST(piece.error == "there is none");
  const auto placed =
      round_trip(part_placed{job_id{1}, 3, "no", node_id{4}, {{"training data in /d", 5}}});
  BOOST_TEST_REQUIRE(placed.data.size() == 1U);
  BOOST_TEST(placed.data[0].what == "training data in /d");
  BOOST_TEST(placed.data[0].hash == 5U);
  auto by_id = place_part{job_id{5}, 2, {}, {}, {}, {}};
  by_id.plan_id = {2, 3, 4};
  BOOST_TEST((round_trip(by_id).plan_id == blob_id{2, 3, 4}));
  const auto place = round_trip(place_part{job_id{5},
                                           2,
                                           {std::byte{1}, std::byte{2}, std::byte{3}},
                                           {node_id{9}},
                                           "/c",
                                           "step-1.epoch-2"});
  BOOST_TEST(place.epoch == 2u);
  BOOST_TEST(place.checkpoints == "/c");
  BOOST_TEST(place.restore_from == "step-1.epoch-2");
  BOOST_TEST((place.plan == std::vector<std::byte>{std::byte{1}, std::byte{2}, std::byte{3}}));
  BOOST_TEST((place.nodes == std::vector<node_id>{node_id{9}}));
  BOOST_TEST(round_trip(place_part{job_id{5}, 2, {}, {}, {}, {}}).plan.empty());
  const auto credits = round_trip(credit_batch{{{job_id{1}, 1, 7, 2}, {job_id{1}, 1, 8, 1}}});
  BOOST_TEST(credits.credits.size() == 2u);
  BOOST_TEST(credits.credits[0].edge == 7u);
}

BOOST_AUTO_TEST_CASE(a_members_libraries_come_back_as_they_were_and_have_limits) {
  member_info m;
  m.id = node_id{7};
  m.libraries = {{"own_ops", "1.0", 0x123456789abcdef0U}, {"others", "0.1-rc2", 1}};
  BOOST_TEST((round_trip(view_update{{m}}).members.at(0) == m));
  const auto text = [](const member_info& of) {
    aligned_bytes bytes(encode(troupe::control_message(view_update{{of}})));
    const auto decoded = decode_control(bytes.span());
    return decoded ? std::string("no error") : decoded.error().text();
  };
  auto many = m, long_name = m, long_version = m;
  many.libraries.resize(17, m.libraries[0]);
  long_name.libraries[0].name.assign(65, 'x');
  long_version.libraries[1].version.assign(65, '1');
  BOOST_TEST(text(many).find("17 libraries are beyond the limit of 16") != std::string::npos,
             text(many));
  for (const auto& bad : {long_name, long_version})
    BOOST_TEST(text(bad).find("beyond the limit of 64 bytes") != std::string::npos, text(bad));
}

BOOST_AUTO_TEST_CASE(a_members_lease_comes_back_as_it_was_and_has_limits) {
  member_info m;
  m.id = node_id{7};
  for (const auto lease : {std::int64_t{0}, lease_min_ns, lease_max_ns}) {
    m.lease_ns = lease;
    BOOST_TEST((round_trip(view_update{{m}}).members.at(0) == m));
  }
  for (const auto bad : {std::int64_t{-1}, std::int64_t{1}, lease_max_ns + 1}) {
    m.lease_ns = bad;
    aligned_bytes bytes(encode(troupe::control_message(view_update{{m}})));
    BOOST_TEST(!decode_control(bytes.span()));
  }
}

BOOST_AUTO_TEST_CASE(jobs_that_move_have_messages_that_come_back_as_they_were) {
  const auto k =
      round_trip(keep_journal{job_id{5}, 6, {std::byte{1}}, {std::byte{2}, std::byte{3}}});
  BOOST_TEST(
      (k.job == job_id{5} && k.number == 6 && k.recipe.size() == 1 && k.journal.size() == 2));
  BOOST_TEST((k.journal[1] == std::byte{3}));
  BOOST_TEST(round_trip(keep_journal{job_id{5}, 6, {}, {}}).recipe.empty());
  const auto kept = round_trip(journal_kept{job_id{5}, 6, "no"});
  BOOST_TEST((kept.job == job_id{5} && kept.number == 6 && kept.error == "no"));
  const auto given = round_trip(give_job{job_id{5}, "why"});
  BOOST_TEST((given.job == job_id{5} && given.reason == "why"));
  BOOST_TEST(round_trip(ask_for_job{"mnist"}).job == "mnist");
  const auto refused = round_trip(job_refused{"mnist", "why"});
  BOOST_TEST((refused.job == "mnist" && refused.reason == "why"));
  const auto moved = round_trip(job_moved{job_id{5}, 6, node_id{7}});
  BOOST_TEST((moved.job == job_id{5} && moved.epoch == 6 && moved.node == node_id{7}));
  BOOST_TEST(round_trip(place_part{job_id{5}, 2, {}, {}, {}, {}, true}).may_move);
}

BOOST_AUTO_TEST_CASE(a_word_of_a_work_comes_back_as_it_was_and_has_a_limit) {
  const auto w = round_trip(work_word{job_id{5}, {std::byte{1}, std::byte{0}, std::byte{255}}});
  BOOST_TEST((w.job == job_id{5} && w.bytes.size() == 3 && w.bytes[2] == std::byte{255}));
  BOOST_TEST(round_trip(work_word{job_id{5}, {}}).bytes.empty());
  const auto longest = encode(
      troupe::control_message(work_word{job_id{5}, std::vector<std::byte>(work_word_bytes_max)}));
  BOOST_TEST(longest.size() <= control_header_max);
  aligned_bytes fits(longest);
  BOOST_TEST(bool(decode_control(fits.span())));
  aligned_bytes beyond(encode(troupe::control_message(
      work_word{job_id{5}, std::vector<std::byte>(work_word_bytes_max + 1)})));
  const auto refused = decode_control(beyond.span());
  BOOST_TEST_REQUIRE(!refused);
  BOOST_TEST(refused.error().text().find("beyond the limit") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_members_labels_come_back_as_they_were_and_have_limits) {
  member_info m;
  m.id = node_id{7};
  m.labels.resize(labels_max, "rack=3");
  BOOST_TEST((round_trip(view_update{{m}}).members.at(0) == m));
  auto many = m, long_one = m;
  many.labels.emplace_back("a=b");
  long_one.labels[0].assign(label_bytes_max + 1, 'x');
  for (const auto& bad : {many, long_one}) {
    aligned_bytes bytes(encode(troupe::control_message(view_update{{bad}})));
    const auto decoded = decode_control(bytes.span());
    BOOST_TEST_REQUIRE(!decoded);
    BOOST_TEST(decoded.error().text().find("beyond the limit of") != std::string::npos,
               decoded.error().text());
  }
}

BOOST_AUTO_TEST_CASE(a_members_devices_come_back_as_they_were_and_have_limits) {
  member_info m;
  m.id = node_id{7};
  m.devices = {{"asynchronous host", 0, 2}, {"NVIDIA H100 80GB HBM3", 3ULL << 40, 253}, {"", 1, 1}};
  BOOST_TEST((round_trip(view_update{{m}}).members.at(0) == m));
  const auto text = [](const member_info& of) {
    aligned_bytes bytes(encode(troupe::control_message(view_update{{of}})));
    const auto decoded = decode_control(bytes.span());
    return decoded ? std::string("no error") : decoded.error().text();
  };
  auto many = m, none = m, too_many = m, huge = m, long_name = m;
  many.devices.resize(257, {"x", 0, 0});
  none.devices[2].count = 0;
  too_many.devices[2].count = 2;
  huge.devices[1].count = 0xffffffff;
  long_name.devices[0].hardware.assign(65, 'x');
  BOOST_TEST(
      text(many).find("257 groups of devices are beyond the limit of 256") != std::string::npos,
      text(many));
  BOOST_TEST(text(none).find("a group of 0 devices") != std::string::npos, text(none));
  BOOST_TEST(
      text(too_many).find("257 with those before: a node has at most 256") != std::string::npos,
      text(too_many));
  BOOST_TEST(text(huge).find("a node has at most 256") != std::string::npos, text(huge));
  BOOST_TEST(text(long_name).find("beyond the limit of 64 bytes") != std::string::npos,
             text(long_name));
}

BOOST_AUTO_TEST_CASE(what_a_recovery_needs_comes_back_as_it_was) {
  const auto halted = round_trip(part_halted{job_id{5},
                                             3,
                                             {{"dense/kernel", {7, 8}, {8, 8}}, {"b", {}, {}}},
                                             {{1, {2}, {3}, {4}, {5}}},
                                             77});
  BOOST_TEST(halted.epoch == 3u);
  BOOST_TEST(halted.data_messages == 77u);
  BOOST_TEST_REQUIRE(halted.kept.size() == 2u);
  BOOST_TEST((halted.kept[0] == kept_report{"dense/kernel", {7, 8}, {8, 8}}));
  BOOST_TEST((halted.kept[1] == kept_report{"b", {}, {}}));
  const auto saved = round_trip(part_saved{
      job_id{5}, 3, 120, "disk full", {60, 60}, "part-1.safetensors", "00ff", 4096, {"b", "w"}});
  BOOST_TEST(saved.step == 120u);
  BOOST_TEST(saved.error == "disk full");
  BOOST_TEST(saved.worker_steps == (std::vector<std::uint64_t>{60, 60}),
             boost::test_tools::per_element());
  BOOST_TEST(saved.bytes == 4096u);
  BOOST_TEST(saved.variables == (std::vector<std::string>{"b", "w"}),
             boost::test_tools::per_element());
  BOOST_TEST(round_trip(begin_cut{job_id{5}, 3, 9}).mark == 9u);
  BOOST_TEST(round_trip(halt_part{job_id{5}, 3, "why"}).reason == "why");
  BOOST_TEST(round_trip(cancel_run{job_id{5}, 3, 9}).step == 9u);
}

BOOST_AUTO_TEST_CASE(timelines_come_back_as_they_were_and_have_limits) {
  BOOST_TEST((round_trip(sample_query()) == sample_query()));
  BOOST_TEST((round_trip(sample_page()) == sample_page()));
  const auto text = [](const auto& m) {
    aligned_bytes bytes(encode(troupe::control_message(m)));
    const auto decoded = decode_control(bytes.span());
    return decoded ? std::string("no error") : decoded.error().text();
  };
  const auto broken = [&](auto&& spoil) {
    auto p = sample_page();
    spoil(p);
    return text(p);
  };
  const auto has = [](const std::string& all, const char* part) {
    return all.find(part) != std::string::npos;
  };
  auto q = sample_query();
  q.owner.assign(trace_owner_bytes_max + 1, 'x');
  BOOST_TEST(has(text(q), "beyond the limit of 128"));
  q = sample_query();
  q.duration_ns = -1;
  BOOST_TEST(has(text(q), "negative"));
  BOOST_TEST(has(broken([](auto& p) { p.now_ns = -1; }), "a time is beyond all limits"));
  BOOST_TEST(has(broken([](auto& p) { p.began_ns = trace_time_max_ns + 1; }),
                 "a time is beyond all limits"));
  BOOST_TEST(has(broken([](auto& p) {
                   p.lanes[0].events[0].end_ns = std::numeric_limits<std::int64_t>::max();
                 }),
                 "a time of an event"));
  BOOST_TEST(has(broken([](auto& p) {
                   p.lanes[0].events.resize(trace_page_events_max + trace_lanes_max,
                                            p.lanes[0].events[0]),
                       p.lanes.resize(8, p.lanes[0]);
                 }),
                 "events are beyond"));
  BOOST_TEST(
      has(broken([](auto& p) { p.lanes.resize(trace_lanes_max + 1); }), "threads are beyond"));
  BOOST_TEST(has(broken([](auto& p) { p.actors.resize(trace_page_actors_max + 1); }),
                 "actors are beyond"));
  BOOST_TEST(has(broken([](auto& p) { p.parts.resize(trace_page_actors_max + 1); }),
                 "parts of jobs are beyond"));
  BOOST_TEST(has(broken([](auto& p) { p.actors[0].kind = static_cast<actor_kind>(99); }),
                 "unknown kind 99"));
  BOOST_TEST(has(broken([](auto& p) { p.actors[0].kernels.resize(trace_kernels_max + 1); }),
                 "kernels of an actor are beyond"));
  // Of a later version.
  auto later = sample_page();
  later.lanes[0].events[0].kind = static_cast<trace_kind>(99);
  BOOST_TEST(round_trip(later).lanes[0].events.size() == 1u);
}

// Ranks of collectives, whose number came last, once made a tool refuse the whole page.
BOOST_AUTO_TEST_CASE(actors_of_every_kind_are_in_timelines) {
  auto p = sample_page();
  for (std::uint8_t k = 0; k <= static_cast<std::uint8_t>(actor_kind::copy); ++k) {
    traced_actor a;
    a.kind = static_cast<actor_kind>(k);
    p.actors.push_back(a);
  }
  BOOST_TEST((round_trip(p) == p));
}

BOOST_AUTO_TEST_CASE(a_page_that_is_full_fits_into_a_control_frame) {
  auto p = sample_page();
  p.lanes.assign(16, p.lanes[0]);
  for (auto& l : p.lanes) l.events.assign(trace_page_events_max / p.lanes.size(), l.events[0]);
  p.actors.assign(trace_page_described_max / 64, traced_actor{});  // of the least size
  auto large = p.actors[0];
  large.inputs.resize(trace_edges_max / 2);
  large.outputs.resize(trace_edges_max - large.inputs.size());
  large.ports.resize(large.outputs.size());
  large.kernels.assign(trace_kernels_max, "");
  p.actors.push_back(std::move(large));
  BOOST_TEST(encode(troupe::control_message(p)).size() < control_header_max);
  BOOST_TEST((round_trip(p) == p));
}

BOOST_AUTO_TEST_CASE(a_chunk_says_whose_bytes_follow) {
  const chunk_header h{
      job_id{1}, 2, 3, node_id{4}, node_id{5}, tag{.step = 6, .mark = 2}, 7, {dtype::f32, {8, 9}},
      64};
  aligned_bytes bytes(encode(h));
  const auto back = decode_chunk(bytes.span());
  BOOST_REQUIRE(back);
  BOOST_TEST((back->t == h.t));
  BOOST_TEST(back->t.mark == 2u);  // not part of a tag's identity
  BOOST_TEST((back->spec == h.spec));
  BOOST_TEST(back->offset == 64u);
  BOOST_TEST((back->sender == h.sender));
}

BOOST_AUTO_TEST_CASE(any_bytes_give_a_message_or_an_error) {
  std::mt19937_64 random(1);
  std::uint64_t errors = 0, messages = 0;
  for (std::uint64_t i = 0; i < repetitions(20'000); ++i) {
    const auto all = samples();
    aligned_bytes bytes(encode(all[random() % all.size()]));
    for (auto n = 1 + random() % 4; n > 0; --n)
      bytes.span()[random() % bytes.size] = static_cast<std::byte>(random());
    const auto length = random() % 4 == 0 ? 8 * (random() % (bytes.size / 8 + 1)) : bytes.size;
    ++(decode_control(bytes.span().first(length)) ? messages : errors);
    (void)decode_chunk(bytes.span().first(length));
  }
  BOOST_TEST(errors > 0u);
  BOOST_TEST(messages > 0u);
}

BOOST_AUTO_TEST_CASE(a_chunk_whose_sizes_do_not_fit_is_an_error) {
  chunk_header h{job_id{1}, 1, 0, node_id{1}, node_id{2}, {}, 0, {dtype::f32, {4}}, 0};
  aligned_bytes bytes(encode(h));
  BOOST_TEST_REQUIRE(bool(decode_chunk(bytes.span())));
  BOOST_TEST(!decode_chunk(bytes.span().first(bytes.size - 8)));
  BOOST_TEST(!decode_chunk(bytes.span().subspan(1, 8)));  // misaligned
  BOOST_TEST(!decode_chunk({}));
}

BOOST_AUTO_TEST_SUITE_END()
