#include "tools/troupe-tool/event_log.hpp"

#include "tests/tool/sample.hpp"

#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>

#include <sstream>
#include <string>
#include <vector>

using namespace troupe;

namespace {

constexpr std::int64_t second = 1'000'000'000;
constexpr std::int64_t noon = 1'796'040'000 * second;  // 2026-11-30T12:00:00Z

event of(const std::string& node, double since_seconds, std::uint64_t number, std::string text,
         event_kind kind = event_kind::note, std::string about = {}) {
  auto e = make_event(kind, std::move(text), std::move(about));
  e.node = node, e.node_id = "00ab" + node;
  e.since_seconds = since_seconds;
  e.number = number;
  return e;
}

event of_job(event e, const std::string& job) {
  e.job = job, e.job_id = "id-" + job;
  return e;
}

node_answer answer_of(const std::string& node, std::vector<event> events) {
  node_answer a;
  a.cluster = "default";
  a.self = sample_node(node, "node", 1);
  a.lines = a.events = std::move(events);
  return a;
}

command read(const std::string& line) {
  std::istringstream in(line);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  const auto p = parse_command(words);
  BOOST_TEST_REQUIRE(p.to_run.has_value(), p.err);
  return *p.to_run;
}

cluster_snapshot two_nodes() {
  return merge(std::vector{
      answer_of("n1", {of("n1", 60, 1, "n1 joined: ..", event_kind::member_joined, "00abn1"),
                       of("n1", 50, 2, "n2 joined: ..", event_kind::member_joined, "00abn2"),
                       of_job(of("n1", 9.75, 3, "job mnist starts", event_kind::job_began, "1f"),
                              "mnist")}),
      answer_of("n2", {of("n2", 50.5, 1, "n2 joined: ..", event_kind::member_joined, "00abn2"),
                       of("n2", 5, 2, "n3 is dead: its process is gone", event_kind::member_lost,
                          "00abn3")})});
}

std::string said(const std::string& line) {
  const auto o = answer_log(read(line), two_nodes(), noon);
  BOOST_TEST(o.exit_code == 0, o.err);
  return o.out;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(event_log)

BOOST_AUTO_TEST_CASE(a_line_has_time_level_node_kind_job_and_text) {
  BOOST_TEST(said("events") ==
             "2026-11-30T11:59:00.000Z  info     n1  member joined       -      n1 joined: ..\n"
             "2026-11-30T11:59:09.500Z  info     n2  member joined       -      n2 joined: ..\n"
             "2026-11-30T11:59:50.250Z  info     n1  job began           mnist  job mnist starts\n"
             "2026-11-30T11:59:55.000Z  warning  n2  member lost         -      n3 is dead: its "
             "process is gone\n");
}

BOOST_AUTO_TEST_CASE(events_are_chosen_by_job_node_time_and_level) {
  BOOST_TEST(has_text(said("events --job mnist"), "job mnist starts\n"));
  BOOST_TEST(said("events --job mnist") == said("events --job id-mnist"));
  BOOST_TEST(!has_text(said("events --job mnist"), "joined"));
  BOOST_TEST(!has_text(said("events --node n2"), "  n1  "));
  BOOST_TEST(has_text(said("events --node n2"), "n3 is dead"));
  BOOST_TEST(!has_text(said("events --since 10s"), "joined"));
  BOOST_TEST(has_text(said("events --since 10s"), "job mnist starts"));
  BOOST_TEST(said("events --since 10s") == said("events --since 2026-11-30T11:59:50Z"));
  BOOST_TEST(!has_text(said("events --level warning"), "  info "));
  BOOST_TEST(has_text(said("events --level warning"), "n3 is dead"));
  BOOST_TEST(said("events --job mnist --level error").empty());
  BOOST_TEST(said("events --job mnist --level error --json") == "[]\n");
  for (const auto* line : {"events --job mnits", "events --node n7", "events --job mnits --json"}) {
    const auto o = answer_log(read(line), two_nodes(), noon);
    BOOST_TEST(o.exit_code == 6, line);
    BOOST_TEST(has_text(o.err, "troupe: events: there is no "), o.err);
    BOOST_TEST(has_text(o.err, "in cluster default"), o.err);
    BOOST_TEST(o.out.empty());
  }
  // A node that is gone is known by its events.
  BOOST_TEST(answer_log(read("events --node n2"),
                        merge(std::vector{answer_of("n1", {of("n2", 1, 1, "x")})}), noon)
                 .exit_code == 0);
  // Who may come later is followed.
  const auto later = read("events --follow --job moon");
  log_follower follower(later);
  BOOST_TEST(follower.add(two_nodes(), noon).exit_code == 0);
}

BOOST_AUTO_TEST_CASE(since_is_a_duration_or_a_time) {
  const auto at = [](const char* text) {
    const auto t = parse_since(text, noon);
    return t ? *t - noon : -1;
  };
  BOOST_TEST(at("1m") == -60 * second);
  BOOST_TEST(at("2026-11-30T12:00:01Z") == second);
  BOOST_TEST(at("2026-11-30 12:00:00.25") == second / 4);
  BOOST_TEST(at("2026-11-30T13:00+01:00") == 0);
  BOOST_TEST(at("2026-11-30T11:30:00-0030") == 0);
  BOOST_TEST(at("2026-11-30") == -12 * 3600 * second);
  for (const auto* bad :
       {"", "noon", "10", "2026-13-01", "2026-11-30T25:00", "2026-11-30T12:00:00.",
        "2026-11-30T12:00:00Q", "2026-11-30T12:00Z1", "-5s", "1969-01-01"})
    BOOST_TEST(!parse_since(bad, noon), bad);
}

BOOST_AUTO_TEST_CASE(EL_1_what_is_followed_is_printed_once) {
  const auto c = read("events --follow");
  log_follower log(c);
  BOOST_TEST(log.newer_than_ns(noon) == 0);
  const auto first = log.add(two_nodes(), noon);
  BOOST_TEST(first.out.size() > 200U);
  BOOST_TEST(first.err.empty(), first.err);
  BOOST_TEST(log.add(two_nodes(), noon).out.empty());
  // A second later: the same, one of n2 that n1 has told of already, and a new one.
  const auto later = merge(std::vector{
      answer_of("n1", {of("n1", 10.75, 3, "job mnist starts", event_kind::job_began, "1f")}),
      answer_of("n2", {of("n2", 10.7, 3, "job mnist starts", event_kind::job_began, "1f"),
                       of("n2", 0.5, 4, "new")})});
  const auto o = log.add(later, noon + second);
  BOOST_TEST(o.out ==
             "2026-11-30T12:00:00.500Z  info     n2      note                -      new\n");
  BOOST_TEST(o.err.empty(), o.err);
  // What is asked for next reaches back to the last answer, and some seconds more.
  BOOST_TEST(log.newer_than_ns(noon + 2 * second) == 6 * second);
}

BOOST_AUTO_TEST_CASE(EL_1_another_life_of_a_node_counts_anew) {
  const auto c = read("events --follow --json");
  log_follower log(c);
  log.add(merge(std::vector{answer_of("n1", {of("n1", 1, 7, "old")})}), noon);
  auto again = answer_of("n1", {of("n1", 1, 1, "begins")});
  again.self.id = again.events[0].node_id = "00ff";
  const auto o = log.add(merge(std::vector{again}), noon + 9 * second);
  const auto j = nlohmann::ordered_json::parse(o.out);
  BOOST_TEST(j.begin().key() == "time");
  BOOST_TEST(j["time"] == "2026-11-30T12:00:08.000Z");
  BOOST_TEST(j["text"] == "begins");
  BOOST_TEST(o.err.empty(), o.err);
}

// A node that was held dead goes on with a new id, and still has what it noted as the former life.
BOOST_AUTO_TEST_CASE(EL_1_events_of_a_former_life_are_printed_once) {
  for (const auto* line : {"events --follow", "logs n1 --follow", "events --follow --level info"}) {
    const auto c = read(line);
    log_follower log(c);
    auto again = answer_of(
        "n1", {of("n1", 2, 1, "begins"), of("n1", 1, 2, "works"), of("n1", 0.5, 3, "is back")});
    again.self.id = again.events[2].node_id = again.lines[2].node_id = "00ff";
    BOOST_TEST(std::ranges::count(log.add(merge(std::vector{again}), noon).out, '\n') == 3, line);
    BOOST_TEST(log.add(merge(std::vector{again}), noon).out.empty(), line);
  }
  // What a filter has left out does not come later either.
  const auto c = read("events --follow --level warning");
  log_follower log(c);
  auto again = answer_of("n1", {of("n1", 2, 1, "begins")});
  again.self.id = "00ff";
  BOOST_TEST(log.add(merge(std::vector{again}), noon).out.empty());
}

BOOST_AUTO_TEST_CASE(who_has_not_answered_yet_is_asked_for_all) {
  const auto c = read("events --follow");
  log_follower log(c);
  auto s = two_nodes();
  log.add(s, noon);
  BOOST_TEST(log.newer_than_ns(noon + second) == 6 * second);
  s.silent = {{"n9", "no answer within 2 s"}};
  log.add(s, noon + second);
  BOOST_TEST(log.newer_than_ns(noon + 2 * second) == 0);
  // It answers: once more all of it, then what is new.
  auto whole = std::vector{answer_of("n9", {of("n9", 60, 1, "x")})};
  BOOST_TEST(has_text(log.add(merge(whole), noon + 2 * second).out, "  x\n"));
  BOOST_TEST(log.newer_than_ns(noon + 3 * second) > 0);
}

BOOST_AUTO_TEST_CASE(EL_1_events_of_older_versions_have_no_numbers) {
  const auto c = read("events --follow");
  log_follower log(c);
  const auto told = [&](double since, std::int64_t at) {
    return log.add(merge(std::vector{answer_of("n1", {of("n1", since, 0, "x")})}), at).out;
  };
  BOOST_TEST(!told(1, noon).empty());
  BOOST_TEST(told(2.02, noon + second).empty());
  BOOST_TEST(!told(1, noon + 60 * second).empty());
}

BOOST_AUTO_TEST_CASE(EL_2_what_a_node_dropped_unseen_is_told) {
  const auto c = read("events --follow");
  log_follower log(c);
  log.add(merge(std::vector{answer_of("n1", {of("n1", 1, 7, "a")})}), noon);
  const auto o =
      log.add(merge(std::vector{answer_of("n1", {of("n1", 1, 10, "b"), of("n1", 0, 11, "c")})}),
              noon + 9 * second);
  BOOST_TEST(o.err == "troupe: 2 events of node n1 were dropped there before they were seen\n");
  BOOST_TEST(has_text(o.out, "  b\n"));
  BOOST_TEST(has_text(o.out, "  c\n"));
}

BOOST_AUTO_TEST_CASE(a_node_that_does_not_answer_is_told_of_once) {
  const auto c = read("events --follow");
  log_follower log(c);
  auto s = two_nodes();
  s.silent = {{"n9", "no answer within 2 s"}};
  BOOST_TEST(log.add(s, noon).err ==
             "troupe: node n9 does not answer: no answer within 2 s: what it knows comes when it "
             "does\n");
  BOOST_TEST(log.add(s, noon).err.empty());
}

BOOST_AUTO_TEST_CASE(a_log_is_that_of_a_node_or_of_a_job) {
  BOOST_TEST(has_text(said("logs n1"), "n2 joined"));
  BOOST_TEST(!has_text(said("logs n1"), "  n2  "));
  // What both nodes note stands in both logs.
  BOOST_TEST(has_text(said("logs n2"), "n2 joined"));
  BOOST_TEST(has_text(said("logs mnist"), "job mnist starts"));
  BOOST_TEST(!has_text(said("logs mnist"), "joined"));
  const auto o = answer_log(read("logs n7"), two_nodes(), noon);
  BOOST_TEST(o.exit_code == 6);
  BOOST_TEST(has_text(o.err, "troupe: logs: there is no node and no job 'n7' in cluster default"));
}

BOOST_AUTO_TEST_CASE(no_text_of_a_node_moves_the_terminal) {
  auto e = of("n1", 1, 1, "a\x1b[2Jb\nc");
  const auto o = answer_log(read("events"), merge(std::vector{answer_of("n1", {e})}), noon);
  BOOST_TEST(std::ranges::count(o.out, '\n') == 1);
  BOOST_TEST(!has_text(o.out, "\x1b"));
}

BOOST_AUTO_TEST_SUITE_END()
