#include "troupe/runtime/insight/snapshot.hpp"

#include "tests/support/repetitions.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

using namespace troupe;

namespace {

node_snapshot node(const std::string& name, node_state state = node_state::alive) {
  node_snapshot n;
  n.id = "id-" + name;
  n.name = name;
  n.pid = 100;
  n.kind = "node";
  n.job = "worker";
  n.address = "127.0.0.1:4000";
  n.devices = {{"gpu:0", "asynchronous host", 0},
               {"gpu:1", "NVIDIA H100", std::numeric_limits<std::uint64_t>::max()}};
  n.incarnation = 7;
  n.state = state;
  return n;
}

actor_snapshot actor(const std::string& id, const std::string& name) {
  actor_snapshot a;
  a.id = id;
  a.kind = "op";
  a.name = name;
  a.node = id.substr(0, id.find('.'));
  a.job = "mnist";
  a.job_id = "1f";
  a.state = actor_state::waiting_for_credit;
  a.since_seconds = 0.25;
  a.messages_in = 10, a.messages_out = 9, a.bytes_in = std::numeric_limits<std::uint64_t>::max(),
  a.bytes_out = 5;
  a.busy_ratio = 0.125;
  a.queue = 1;
  a.steps = 9;
  a.iteration = 4;
  a.ports = {{"in0", "reader", "n1", 0, 2, 1, false, 0, false, 8, 7},
             {"out0", "loss", "n2", 0, 2, 0, true, 1.5, true, 9, 0}};
  return a;
}

job_snapshot job(const std::string& id, const std::string& client) {
  job_snapshot j;
  j.id = id;
  j.name = "mnist";
  j.workers = 2, j.shards = 1;
  j.update = "sync";
  j.step = 10, j.steps = 100;
  j.started_seconds = 7, j.ended_seconds = 2;
  j.client = client;
  j.participants = {"n1"};
  return j;
}

node_answer answer(const std::string& name) {
  node_answer a;
  a.cluster = "default";
  a.self = node(name);
  if (name == "n1") a.self.reaches = {"n9"};
  a.peers = {node("n9", node_state::unreachable)};
  a.actors = {actor(name + ".1", "worker/0/matmul")};
  a.jobs = {job("1f", "c1")};
  a.events = {{3.5, name, "n9 does not answer: \"silence\""}};
  a.events[0].kind = event_kind::job_failed, a.events[0].level = event_level::error;
  a.events[0].job = "mnist", a.events[0].job_id = "1f", a.events[0].about = "";
  a.events[0].node_id = "id-" + name, a.events[0].number = 12;
  return a;
}

std::string message(const auto& r) { return r ? "no error" : r.error().message(); }
bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(snapshot)

BOOST_AUTO_TEST_CASE(SN_2_what_is_written_is_read_back_equal) {
  auto a = answer("n1");
  a.actors_left_out = 3;
  const auto back = parse_node_answer(to_json(a));
  BOOST_TEST_REQUIRE(bool(back), message(back));
  BOOST_TEST((*back == a));

  auto c = merge(std::vector{a, answer("n2")}, {{"n9", "no answer within 2 s"}});
  const auto c_back = parse_cluster_snapshot(to_json(c));
  BOOST_TEST_REQUIRE(bool(c_back), message(c_back));
  // Of the tool that asks alone: n2 and n1 do not list each other.
  for (auto& n : c.nodes) {
    BOOST_TEST(std::exchange(n.unknown_to, 0U) == (n.name == "n9" ? 0U : 1U), n.name);
    // n1 has a link to n9, says answer().
    BOOST_TEST(std::exchange(n.unreached_by, 0U) == 1U, n.name);
  }
  c.ranges.clear();
  BOOST_TEST((*c_back == c));
  BOOST_TEST((parse_node_answer(to_json(node_answer{})) &&
              *parse_node_answer(to_json(node_answer{})) == node_answer{}));
}

namespace {

event seen_by(const std::string& node, double since_seconds, event_kind kind,
              const std::string& about, std::uint64_t number = 1) {
  auto e = make_event(kind, node + " tells of " + about, about);
  e.since_seconds = since_seconds;
  e.node = node, e.node_id = "id-" + node;
  e.number = number;
  return e;
}

cluster_snapshot merged(const std::vector<std::vector<event>>& of_nodes) {
  std::vector<node_answer> all;
  for (std::size_t i = 0; i < of_nodes.size(); ++i) {
    node_answer a;
    a.self = node("n" + std::to_string(i + 1));
    a.events = of_nodes[i];
    all.push_back(std::move(a));
  }
  return merge(all);
}

std::string texts_of(const std::vector<event>& events) {
  std::string all;
  for (const auto& e : events) all += e.text + "\n";
  return all;
}

}  // namespace

BOOST_AUTO_TEST_CASE(SN_5_a_happening_is_listed_once_as_who_saw_it_first_told_it) {
  const auto joined = event_kind::member_joined, lost = event_kind::member_lost;
  auto c = merged({{seen_by("n1", 9, joined, "n3"), seen_by("n1", 4.5, lost, "n3", 2)},
                   {seen_by("n2", 8.9, joined, "n3"), seen_by("n2", 5, lost, "n3", 2)}});
  BOOST_TEST(texts_of(c.events) == "n1 tells of n3\nn2 tells of n3\n");
  // Who saw it first is gone.
  c = merged({{}, {seen_by("n2", 8.9, joined, "n3"), seen_by("n2", 5, lost, "n3", 2)}});
  BOOST_TEST(texts_of(c.events) == "n2 tells of n3\nn2 tells of n3\n");
  // Nobody else notes it.
  c = merged({{seen_by("n1", 3, joined, ""), seen_by("n1", 2, joined, "", 2)}});
  BOOST_TEST(c.events.size() == 2U);
}

BOOST_AUTO_TEST_CASE(SN_5_what_happens_again_is_another_happening) {
  const auto silent = event_kind::member_unreachable;
  auto c = merged({{seen_by("n1", 60, silent, "n3"), seen_by("n1", 58, silent, "n3", 2),
                    seen_by("n1", 30, silent, "n3", 3)},
                   {seen_by("n2", 59.5, silent, "n3"), seen_by("n2", 57.5, silent, "n3", 2)}});
  BOOST_TEST(c.events.size() == 3U);
  // A life joins once, whoever meets it again.
  const auto joined = event_kind::member_joined;
  c = merged({{seen_by("n1", 60, joined, "n3"), seen_by("n1", 2, joined, "n3", 2)}});
  BOOST_TEST(c.events.size() == 1U);
}

BOOST_AUTO_TEST_CASE(which_events_a_node_still_had_is_told_whatever_is_folded) {
  const auto joined = event_kind::member_joined;
  const auto c = merged({{seen_by("n1", 9, joined, "n3", 7), seen_by("n1", 8, joined, "n4", 8)},
                         {seen_by("n2", 8, joined, "n3", 3)},
                         {}});
  BOOST_TEST_REQUIRE(c.ranges.size() == 2U);
  BOOST_TEST((c.ranges[0] == event_range{"n1", "id-n1", 7, 8, false}));
  BOOST_TEST((c.ranges[1] == event_range{"n2", "id-n2", 3, 3, false}));
}

BOOST_AUTO_TEST_CASE(events_of_other_versions_are_understood) {
  const auto older =
      parse_node_answer(R"({"events":[{"since_seconds":3.5,"node":"n1","text":"n2 joined"}]})");
  BOOST_TEST_REQUIRE(bool(older), message(older));
  BOOST_TEST((older->events.at(0) == event{3.5, "n1", "n2 joined"}));
  const auto newer = parse_node_answer(
      R"({"events":[{"kind":"moon rose","level":"calm","text":"x","moon":{"full":true}}]})");
  BOOST_TEST_REQUIRE(bool(newer), message(newer));
  BOOST_TEST((newer->events.at(0).kind == event_kind::note));
  BOOST_TEST((newer->events.at(0).level == event_level::info));
  const auto bad = parse_node_answer(R"({"events":[{"kind":7}]})");
  BOOST_TEST(has(message(bad), "events[0].kind should be a string"));
}

BOOST_AUTO_TEST_CASE(every_kind_and_level_of_events_has_a_word_of_its_own) {
  std::vector<std::string_view> words;
  for (int i = 0; !to_string(static_cast<event_kind>(i)).empty(); ++i)
    words.push_back(to_string(static_cast<event_kind>(i)));
  BOOST_TEST(words.size() == 24U);
  BOOST_TEST(words.back() == "message ignored");
  std::ranges::sort(words);
  BOOST_TEST((std::ranges::adjacent_find(words) == words.end()));
  BOOST_TEST(to_string(event_level::error) == "error");
  BOOST_TEST(to_string(static_cast<event_level>(5)).empty());
}

BOOST_AUTO_TEST_CASE(of_each_node_it_is_counted_how_many_have_no_link_to_it) {
  std::vector<node_answer> all;
  for (const auto* name : {"n1", "n2", "n3"}) {
    node_answer a;
    a.self = node(name);
    all.push_back(std::move(a));
  }
  for (auto& a : all)
    for (const auto& b : all)
      if (a.self.id != b.self.id) a.peers.push_back(b.self);
  all[0].self.reaches = {"n2", "n3"};
  all[1].self.reaches = {"n1"};
  all[2].self.reaches = {"n1"};
  const auto c = merge(all, {});
  BOOST_TEST_REQUIRE(c.nodes.size() == 3U);
  BOOST_TEST(c.nodes[0].unreached_by == 0U);
  BOOST_TEST(c.nodes[1].unreached_by == 1U);
  BOOST_TEST(c.nodes[2].unreached_by == 1U);
  BOOST_TEST(c.nodes[2].unknown_to == 0U);
}

BOOST_AUTO_TEST_CASE(a_text_that_looks_like_JSON_stays_a_text) {
  auto a = answer("n1");
  a.cluster = "\"actors\":[]";
  a.jobs[0].name = "x\",\"actors\":[],\"y";
  const auto back = parse_node_answer(to_json(a));
  BOOST_TEST_REQUIRE(bool(back), message(back));
  BOOST_TEST((*back == a));
}

BOOST_AUTO_TEST_CASE(JSON_is_one_line_with_units_and_lists_are_arrays) {
  auto a = actor("n1.1", "x");
  a.name = "two\nlines";
  BOOST_TEST(to_json(a).find('\n') == std::string::npos);
  BOOST_TEST(has(to_json(a), "\"since_seconds\":0.25"));
  BOOST_TEST(has(to_json(a), "\"ports\":[{\"name\":\"in0\""));
  BOOST_TEST(to_json(std::span<const actor_snapshot>{}) == "[]");
  BOOST_TEST(to_json(std::span<const job_snapshot>{}) == "[]");
  const std::vector list{a};
  BOOST_TEST(has(to_json(std::span<const actor_snapshot>(list)), "\"ports\":[{\"name\":\"in0\""));
}

BOOST_AUTO_TEST_CASE(a_cause_is_told_without_the_name_of_its_job) {
  auto j = job("1f", "c1");
  j.cause = "job mnist failed: n2 died";
  BOOST_TEST(j.bare_cause() == "n2 died");
  for (const char* other :
       {"", "n2 died", "job other failed: n2 died", "job mnist failed", "job "}) {
    j.cause = other;
    BOOST_TEST(j.bare_cause() == other);
  }
}

BOOST_AUTO_TEST_CASE(numbers_are_written_with_three_decimals) {
  auto a = actor("n1.1", "x");
  a.since_seconds = 0.123456789, a.busy_ratio = 1.0 / 3;
  BOOST_TEST(has(to_json(a), "\"since_seconds\":0.123,"));
  BOOST_TEST(has(to_json(a), "\"busy_ratio\":0.333,"));
  for (const double x : {0.0, 0.001, 1.5, 86'400.001, 1e11 + 0.123, 1e300})
    BOOST_TEST(three_decimals(x) == x);
}

BOOST_AUTO_TEST_CASE(SN_2_ages_of_whole_milliseconds_come_back_equal) {
  auto a = answer("n1");
  for (int ms = 0; ms < 20'000; ms += 7) {
    a.self.unreachable_seconds = ms / 1000.0;
    const auto back = parse_node_answer(to_json(a));
    BOOST_TEST_REQUIRE(bool(back), message(back));
    BOOST_TEST_REQUIRE(back->self.unreachable_seconds == a.self.unreachable_seconds);
  }
}

BOOST_AUTO_TEST_CASE(SN_1_missing_keys_keep_defaults_and_unknown_ones_are_skipped) {
  const auto a = parse_node_answer(R"({"self":{"name":"n1","colour":"red"},"more":[1,2]})");
  BOOST_TEST_REQUIRE(bool(a), message(a));
  node_answer expected;
  expected.self.name = "n1";
  BOOST_TEST((*a == expected));
}

BOOST_AUTO_TEST_CASE(SN_1_a_wrong_type_is_an_error_that_names_the_place) {
  const auto check = [](const std::string& text, const std::string& part) {
    const auto a = parse_node_answer(text);
    BOOST_TEST_REQUIRE(!a, text);
    BOOST_TEST(has(a.error().message(), part), a.error().message());
  };
  check(R"([])", "it should be an object");
  check(R"({"self":1})", "self should be an object, and is number 1");
  check(R"({"actors":[{},{"ports":[{"credits":"x"}]}]})",
        "actors[1].ports[0].credits should be a whole number >= 0");
  check(R"({"actors":[{"steps":-1}]})", "actors[0].steps");
  check(R"({"actors":[{"steps":1.5}]})", "actors[0].steps");
  check(R"({"actors":[{"busy_ratio":-0.1}]})", "actors[0].busy_ratio");
  check(R"({"actors":[{"busy_ratio":null}]})", "actors[0].busy_ratio");
  check(R"({"actors":[{"busy_ratio":1e999}]})", "no JSON");
  check(R"({"actors":[{"state":"dancing"}]})", "actors[0].state should be a known state");
  check(R"({"actors":[{"state":3}]})", "actors[0].state");
  check(R"({"jobs":{}})", "jobs should be a list");
  check(R"({"jobs":[{"participants":[1]}]})", "jobs[0].participants[0] should be a string");
  check("", "no JSON");
  check("{\"self\":", "no JSON");
}

BOOST_AUTO_TEST_CASE(SN_1_hostile_sizes_are_refused_before_anything_is_built) {
  BOOST_TEST(has(message(parse_node_answer(std::string(answer_bytes_max, '['))), "levels of JSON"));
  BOOST_TEST(has(message(parse_node_answer(std::string(answer_bytes_max + 1, ' '))), "bytes"));
  std::string many = "{\"x\":[0";
  for (std::size_t i = 0; i < answer_values_max; ++i) many += ",0";
  BOOST_TEST(has(message(parse_node_answer(many + "]}")), "values"));
  BOOST_TEST(has(message(parse_node_answer(R"({"x":"[[[[[[[[[[[[[[[[[\"[[["})")), "no error"));
}

BOOST_AUTO_TEST_CASE(SN_1_random_damage_never_crashes) {
  const auto whole = to_json(answer("n1"));
  std::mt19937 random(1);
  std::size_t read = 0, refused = 0;
  for (std::uint64_t i = 0; i < repetitions(20'000); ++i) {
    auto text = whole;
    const auto changes = 1 + random() % 4;
    for (unsigned k = 0; k < changes; ++k) {
      const auto at = random() % text.size();
      if (random() % 3 == 0)
        text.erase(at, 1 + random() % 8);
      else
        text[at] = static_cast<char>(random());
    }
    (parse_node_answer(text) ? read : refused) += 1;
  }
  BOOST_TEST(read > repetitions(100));  // damage inside a text
  BOOST_TEST(refused > repetitions(100));
}

BOOST_AUTO_TEST_CASE(SN_1_control_characters_never_reach_a_terminal) {
  const auto a = parse_node_answer("{\"self\":{\"name\":\"a\\u001b[2Jb\\u009bc\\u007f\\u00e9\"}}");
  BOOST_TEST_REQUIRE(bool(a), message(a));
  BOOST_TEST(a->self.name == "a [2Jb c \u00e9");
}

BOOST_AUTO_TEST_CASE(bytes_that_are_no_text_are_replaced_when_written) {
  auto a = answer("n1");
  a.self.reason = "\xff\xfe";
  const auto back = parse_node_answer(to_json(a));
  BOOST_TEST_REQUIRE(bool(back), message(back));
  BOOST_TEST(back->self.reason == "\uFFFD\uFFFD");
  a.self.unreachable_seconds = std::numeric_limits<double>::infinity();
  BOOST_TEST(parse_node_answer(to_json(a))->self.unreachable_seconds == 0);
}

BOOST_AUTO_TEST_CASE(SN_4_what_does_not_fit_is_left_out_and_counted) {
  auto a = answer("n1");
  a.actors.assign(60'000, actor("n1.1", std::string(200, 'x')));
  a.actors_left_out = 1;
  const auto text = to_json(a);
  BOOST_TEST(text.size() <= answer_bytes_max);
  const auto back = parse_node_answer(text);
  BOOST_TEST_REQUIRE(bool(back), message(back));
  BOOST_TEST(back->actors.size() > 10'000u);
  BOOST_TEST(back->actors.size() + back->actors_left_out == 60'001u);

  a.actors.assign(2'000, actor("n1.1", "x"));
  for (auto& x : a.actors) x.ports.assign(200, {});
  const auto many_ports = parse_node_answer(to_json(a));
  BOOST_TEST_REQUIRE(bool(many_ports), message(many_ports));
  BOOST_TEST(many_ports->actors_left_out > 1u);
}

BOOST_AUTO_TEST_CASE(numbers_in_names_sort_as_numbers) {
  BOOST_TEST(natural_less("n2", "n10"));
  BOOST_TEST(!natural_less("n10", "n2"));
  BOOST_TEST(natural_less("n1.9", "n1.10"));
  BOOST_TEST(natural_less("n1", "n1.0"));
  BOOST_TEST(natural_less("a", "b1"));
  BOOST_TEST(natural_less("n01", "n1"));
  BOOST_TEST(!natural_less("n1", "n01"));
  BOOST_TEST(!natural_less("n1", "n1"));
  BOOST_TEST(natural_less("n99999999999999999999998", "n99999999999999999999999"));
}

BOOST_AUTO_TEST_CASE(SN_3_merged_lists_hold_everything_once_and_in_order_of_names) {
  std::vector<node_answer> answers;
  for (const char* name : {"n10", "n2", "n1", "n2"}) answers.push_back(answer(name));
  const auto c = merge(answers);
  std::string order;
  for (const auto& n : c.nodes) order += n.name + " ";
  BOOST_TEST(order == "n1 n2 n9 n10 ");
  std::string ids;
  for (const auto& a : c.actors) ids += a.id + " ";
  BOOST_TEST(ids == "n1.1 n2.1 n10.1 ");
  BOOST_TEST(c.jobs.size() == 1u);
  std::reverse(answers.begin(), answers.end());
  BOOST_TEST((merge(answers) == c));
}

BOOST_AUTO_TEST_CASE(of_a_silent_node_the_gravest_view_counts) {
  auto a = answer("n1"), b = answer("n2");
  a.peers = {node("n3", node_state::dead), node("n4"), node("n5", node_state::unreachable)};
  b.peers = {node("n3", node_state::unreachable), node("n4"), node("n5", node_state::unreachable)};
  a.peers[0].reason = "connection refused";
  a.peers[2].unreachable_seconds = 1, b.peers[2].unreachable_seconds = 3;
  const auto c = merge(std::vector{a, b}, {{"n4", "no answer within 2 s"}});
  BOOST_TEST((c.nodes[2].state == node_state::dead));
  BOOST_TEST(c.nodes[2].reason == "connection refused");
  BOOST_TEST((c.nodes[3].state == node_state::unreachable));
  BOOST_TEST(c.nodes[3].reason == "no answer within 2 s");
  BOOST_TEST(c.nodes[4].unreachable_seconds == 3);
  BOOST_TEST_REQUIRE(c.silent.size() == 1u);
  BOOST_TEST(c.silent[0].name == "n4");
}

BOOST_AUTO_TEST_CASE(
    a_node_that_answers_but_is_not_reached_by_another_is_unreachable_with_that_ones_name) {
  auto a = answer("n1"), b = answer("n2");
  a.peers = {node("n2", node_state::unreachable)};
  a.peers[0].reason = "link lost";
  b.peers = {node("n1")};
  const auto c = merge(std::vector{a, b});
  BOOST_TEST((c.nodes[0].state == node_state::alive));
  BOOST_TEST((c.nodes[1].state == node_state::unreachable));
  BOOST_TEST(c.nodes[1].reason == "n1 sees it as unreachable: link lost");
}

BOOST_AUTO_TEST_CASE(of_a_job_the_word_of_its_client_counts) {
  auto worker = answer("n1"), client = answer("c1"), other = answer("n2");
  worker.jobs[0].step = 12, worker.jobs[0].state = job_state::failed,
  worker.jobs[0].cause = "n2 died";
  worker.jobs[0].participants = {"n2", "n10"};
  client.jobs[0].step = 10;
  other.jobs[0].step = 11;
  const auto c = merge(std::vector{worker, client, other});
  BOOST_TEST_REQUIRE(c.jobs.size() == 1u);
  BOOST_TEST(c.jobs[0].step == 10u);
  BOOST_TEST((c.jobs[0].state == job_state::running));
  BOOST_TEST((c.jobs[0].participants == std::vector<std::string>{"n1", "n2", "n10"}));
  BOOST_TEST((merge(std::vector{other, worker}).jobs[0].state == job_state::failed));
  BOOST_TEST((merge(std::vector{other, worker}).jobs[0].cause == "n2 died"));
}

BOOST_AUTO_TEST_CASE(the_rate_of_a_job_counts_its_running_time_only) {
  BOOST_TEST(job("1", "c1").steps_per_second() == 2);
  BOOST_TEST(job_snapshot{}.steps_per_second() == 0);
}

BOOST_AUTO_TEST_SUITE_END()
