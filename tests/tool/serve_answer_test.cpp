#include "tests/tool/sample.hpp"
#include "tools/troupe-tool/serve_answer.hpp"
#include "tools/troupe-tool/serve_metrics.hpp"

#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>

#include <set>
#include <span>
#include <sstream>
#include <string>
#include <vector>

using namespace troupe;

namespace {

cluster_look sample_look() {
  cluster_look l;
  l.number = 3;
  l.unix_seconds = 1000;
  l.ended_ns = 2'000'000'000;
  l.began_ns = 1'500'000'000;
  l.snapshot = sample_cluster();
  look_totals().add(l);
  return l;
}

web_answer ask(const std::string& target, const cluster_look& look) {
  const auto t = *parse_target(target);
  return wrong_key(t).value_or(answer_look(t, look, nullptr));
}
nlohmann::json json_of(const web_answer& a) { return nlohmann::json::parse(*a.body); }

// The value of a series as it is written, or "".
std::string series(const std::string& text, const std::string& name) {
  const auto at = text.find("\n" + name + " ");
  if (at == std::string::npos) return {};
  const auto from = at + name.size() + 2;
  return text.substr(from, text.find('\n', from) - from);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(serve_answer)

BOOST_AUTO_TEST_CASE(SE_8_json_is_that_of_the_verbs) {
  const auto look = sample_look();
  const auto& c = *look.snapshot;
  BOOST_TEST(*ask("/api/status", look).body == to_json(c) + "\n");
  BOOST_TEST(*ask("/api/nodes", look).body == to_json(std::span(c.nodes)) + "\n");
  BOOST_TEST(*ask("/api/jobs", look).body == to_json(std::span(c.jobs)) + "\n");
  BOOST_TEST(*ask("/api/events", look).body == to_json(std::span(c.events)) + "\n");
  BOOST_TEST(*ask("/api/actors", look).body == to_json(std::span(c.actors)) + "\n");
  BOOST_TEST(json_of(ask("/api/actors?limit=2", look)).size() == 2U);
  BOOST_TEST(json_of(ask("/api/actors?job=mnist&limit=4", look)).size() == 4U);
  BOOST_TEST(json_of(ask("/api/actors?limit=0", look)).empty());
  BOOST_TEST(json_of(ask("/api/why?job=mnist", look))["job"] == "mnist");
  BOOST_TEST(ask("/api/graph?job=mnist", look).body->starts_with("<svg"));
  BOOST_TEST(ask("/api/graph", look).type == "image/svg+xml");
  BOOST_TEST(json_of(ask("/api/graph?job=1f&format=json", look))[0]["job"] == "mnist");
  const auto page = json_of(ask("/api/page", look));
  BOOST_TEST(page["actors"].size() == c.actors.size());
  BOOST_TEST(page["actors"][0].size() == 16U);
  BOOST_TEST(page["nodes"].size() == 3U);
}

BOOST_AUTO_TEST_CASE(SE_8_an_error_says_what_and_what_to_do) {
  const auto look = sample_look();
  const auto check = [&](const std::string& target, unsigned status, const std::string& part) {
    const auto a = ask(target, look);
    BOOST_TEST(a.status == status, target);
    const auto j = json_of(a);
    BOOST_TEST(j["error"].get<std::string>().find(part) != std::string::npos, *a.body);
    BOOST_TEST(!j["what_to_do"].get<std::string>().empty(), target);
  };
  check("/api/actors?job=mnits", 404, "there is no job 'mnits'");
  check("/api/graph?job=mnits", 404, "there is no job 'mnits'");
  check("/api/why?job=mnits", 404, "there is no job 'mnits'");
  check("/api/actors?limit=-1", 400, "limit: '-1'");
  check("/api/actors?limit=1x", 400, "limit: '1x'");
  check("/api/actors?jbo=mnist", 400, "there is no key 'jbo'");
  check("/api/nodes?job=mnist", 400, "there is no key 'job'");
  check("/api/slow?second=1", 400, "there is no key 'second'");
  check("/api/graph?format=dot", 400, "format: 'dot'");
  cluster_look nobody;
  nobody.failure = error(error_code::unreachable, "no node runs");
  for (const char* path : {"/readyz", "/api/status", "/api/page", "/api/why", "/api/graph"}) {
    const auto a = ask(path, nobody);
    BOOST_TEST(a.status == 503U, path);
    BOOST_TEST(json_of(a)["error"] == "no node runs", path);
  }
  BOOST_TEST(ask("/readyz", look).status == 200U);
  BOOST_TEST(ask("/readyz?x=1", look).status == 200U);
  BOOST_TEST(!seconds_of(*parse_target("/x?seconds=nan"), 1, 0.5, 10));
  BOOST_TEST(!seconds_of(*parse_target("/x?seconds=10.1"), 1, 0.5, 10));
  BOOST_TEST(!seconds_of(*parse_target("/x?seconds="), 1, 0.5, 10));
  BOOST_TEST(*seconds_of(*parse_target("/x?seconds=2.5"), 1, 0.5, 10) == 2.5);
  BOOST_TEST(*seconds_of(*parse_target("/x"), 1, 0.5, 10) == 1);
}

BOOST_AUTO_TEST_CASE(every_path_has_a_kind) {
  BOOST_TEST((kind_of_page("/") == page_kind::fixed));
  BOOST_TEST((kind_of_page("/metrics") == page_kind::look));
  BOOST_TEST((kind_of_page("/api/why") == page_kind::two_looks));
  BOOST_TEST((kind_of_page("/api/timeline") == page_kind::timeline));
  for (const char* none : {"", "/api", "/metrics/", "//", "/../", "/index.html"})
    BOOST_TEST((kind_of_page(none) == page_kind::none), none);
}

BOOST_AUTO_TEST_CASE(the_page_is_one_file_and_its_policy_names_what_is_in_it) {
  const auto page = *answer_fixed("/").body;
  const auto at = page.find("<script>") + 8;
  const auto markup = page.substr(0, at), script = page.substr(at, page.find("</script>") - at);
  for (const char* outside : {"//ui", "http:", "https:", "src=", "@import", "url(", "<link"})
    BOOST_TEST(page.find(outside) == std::string::npos, outside);
  for (const char* refused : {" style=", " onclick=", " onload="})  // by the policy
    BOOST_TEST(markup.find(refused) == std::string::npos, refused);
  for (const char* markup_of_texts : {"innerHTML", "outerHTML", "insertAdjacent", "document.write",
                                      "eval(", "new Function", "DOMParser"})
    BOOST_TEST(script.find(markup_of_texts) == std::string::npos, markup_of_texts);
  BOOST_TEST(content_policy("text/html; charset=utf-8").find(policy_hash(script)) !=
             std::string::npos);
  BOOST_TEST(content_policy("text/html; charset=utf-8").find("default-src 'none'") == 0U);
}

BOOST_AUTO_TEST_CASE(a_picture_may_have_the_style_that_is_in_it_and_nothing_else) {
  const auto svg = ask("/api/graph", sample_look());
  BOOST_TEST(svg.body->find("<style>") != std::string::npos);
  BOOST_TEST(content_policy(svg.type) ==
             "default-src 'none'; style-src 'unsafe-inline'; sandbox; frame-ancestors 'none'");
  for (const char* other : {"application/json; charset=utf-8", "text/plain", ""})
    BOOST_TEST(content_policy(other).find("unsafe") == std::string::npos, other);
}

BOOST_AUTO_TEST_CASE(metrics_have_what_a_look_has) {
  const auto text = metrics_text(sample_look());
  BOOST_TEST(text.starts_with("# HELP troupe_up "));
  BOOST_TEST(series(text, "troupe_up") == "1");
  BOOST_TEST(series(text, "troupe_job_step{job_name=\"mnist\",job_id=\"1f\"}") == "511");
  BOOST_TEST(series(text, "troupe_job_state{job_name=\"mnist\",job_id=\"1f\",state=\"running\"}") ==
             "1");
  BOOST_TEST(series(text, "troupe_job_state{job_name=\"mnist\",job_id=\"1f\",state=\"failed\"}") ==
             "0");
  BOOST_TEST(series(text, "troupe_job_start_time_seconds{job_name=\"mnist\",job_id=\"1f\"}") ==
             "994.89");
  BOOST_TEST(series(text, "troupe_node_up{node=\"n1\"}") == "1");
  BOOST_TEST(series(text, "troupe_node_actors{node=\"n1\",state=\"running\"}") == "1");
  BOOST_TEST(series(text, "troupe_actors_steps_total{job_name=\"mnist\",kind=\"op\"}") == "1022");
  BOOST_TEST(series(text, "troupe_actors_busy_ratio{job_name=\"mnist\",kind=\"op\"}") == "0.4");
  BOOST_TEST(series(text, "troupe_actors_busy_ratio_max{job_name=\"mnist\",kind=\"op\"}") ==
             "0.75");
  BOOST_TEST(series(text, "troupe_device_memory_bytes{node=\"n1\",device=\"gpu:1\"}") ==
             "42949672960");
  BOOST_TEST(series(text, "troupe_look_duration_seconds") == "0.5");
}

BOOST_AUTO_TEST_CASE(replicas_of_a_stage_are_told_together) {
  cluster_look l;
  l.snapshot = sample_cluster();
  for (const char* name : {"decode/0", "decode/1", "read", "a/b"}) {
    auto a = sample_actor("n1.9" + std::string(name), "stage", name, actor_state::running);
    a.ports = {{"in0", "x", "n1", 0, 2, 3, false, 0}, {"out0", "y", "n1", 1, 2, 0, false, 0}};
    a.ports[0].items = 10, a.ports[1].items = 7;
    l.snapshot->actors.push_back(a);
  }
  look_totals().add(l);
  const auto text = metrics_text(l);
  BOOST_TEST(series(text, "troupe_stage_replicas{job_name=\"mnist\",stage=\"decode\"}") == "2");
  BOOST_TEST(series(text, "troupe_stage_queued_items{job_name=\"mnist\",stage=\"decode\"}") == "6");
  BOOST_TEST(series(text, "troupe_stage_busy_ratio{job_name=\"mnist\",stage=\"a/b\"}") == "0.75");
  BOOST_TEST(
      series(text,
             "troupe_stage_items_total{job_name=\"mnist\",stage=\"decode\",direction=\"out\"}") ==
      "14");
  BOOST_TEST(series(text, "troupe_actors_busy_ratio{job_name=\"mnist\",kind=\"stage\"}") == "0.75");
}

BOOST_AUTO_TEST_CASE(SE_5_texts_of_the_cluster_are_escaped_and_no_series_is_there_twice) {
  auto look = sample_look();
  auto& c = *look.snapshot;
  c.jobs[0].name = "a\"b\\c";
  c.jobs.push_back(c.jobs[0]);    // one job, seen twice
  c.nodes.push_back(c.nodes[1]);  // a life before, of the same name
  c.nodes.back().state = node_state::dead;
  c.nodes[1].devices.push_back(c.nodes[1].devices[0]);
  c.silent = {{"n9", "no answer"}, {"n9", "no answer"}};
  const auto text = metrics_text(look);
  BOOST_TEST(series(text, R"(troupe_job_step{job_name="a\"b\\c",job_id="1f"})") == "511");
  BOOST_TEST(series(text, "troupe_node_up{node=\"n1\"}") == "1");
  std::set<std::string> seen;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    BOOST_TEST(seen.insert(line.substr(0, line.rfind(' '))).second, line);
}

BOOST_AUTO_TEST_CASE(SE_6_what_is_too_much_is_left_out_and_counted) {
  auto look = sample_look();
  look.snapshot->jobs.clear();
  for (std::size_t i = 0; i < series_max + 5; ++i) {
    job_snapshot j;
    j.id = std::to_string(i), j.name = "many";
    look.snapshot->jobs.push_back(j);
  }
  const auto text = metrics_text(look);
  BOOST_TEST(series(text, "troupe_metrics_left_out") == "5");
  BOOST_TEST(series(text, "troupe_job_step{job_name=\"many\",job_id=\"2004\"}").empty());
}

BOOST_AUTO_TEST_CASE(SE_4_totals_never_go_down) {
  look_totals totals;
  const auto at = [&](std::int64_t seconds, const std::vector<std::uint64_t>& steps) {
    cluster_look l;
    l.ended_ns = seconds * 1'000'000'000;
    l.unix_seconds = static_cast<double>(seconds);
    l.snapshot.emplace();
    for (std::size_t i = 0; i < steps.size(); ++i)
      if (steps[i] > 0) {
        auto a = sample_actor("n1." + std::to_string(i), "op", "a", actor_state::running);
        a.steps = steps[i];
        l.snapshot->actors.push_back(a);
      }
    job_snapshot j;
    j.id = "1f", j.name = "mnist", j.started_seconds = static_cast<double>(seconds) + 0.25;
    l.snapshot->jobs = {j};
    totals.add(l);
    BOOST_TEST(l.job_starts["1f"] == -0.25);
    return l.groups.empty() ? std::uint64_t{0} : l.groups[0].steps;
  };
  BOOST_TEST(at(0, {10, 20}) == 30U);
  BOOST_TEST(at(1, {12, 25}) == 37U);
  BOOST_TEST(at(2, {0, 26}) == 38U);   // one is listed no more, or its node is silent
  BOOST_TEST(at(3, {13, 27}) == 40U);  // and is there again
  BOOST_TEST(at(4, {2, 27}) == 42U);   // another one has its id
  BOOST_TEST(at(5, {}) == 0U);         // no group
  BOOST_TEST(at(6, {3, 27}) == 43U);
}

BOOST_AUTO_TEST_CASE(SE_4_a_node_that_was_silent_for_long_adds_only_what_it_did_since) {
  look_totals totals;
  std::string text;
  const auto at = [&](std::int64_t seconds, bool answers, std::uint64_t steps) {
    cluster_look l;
    l.ended_ns = seconds * 1'000'000'000;
    l.snapshot.emplace();
    l.snapshot->nodes = {sample_node("n1", "node", 1), sample_node("n2", "node", 2)};
    for (auto& n : l.snapshot->nodes)
      if (n.name == "n2" || answers) n.cores = 4, n.host = "h-" + n.name, n.version = "1.0";
    auto a = sample_actor("n1.0", "op", "a", actor_state::running);
    auto b = sample_actor("n2.0", "op", "b", actor_state::running);
    a.steps = steps, b.steps = 7;
    l.snapshot->actors = {b};
    if (answers) l.snapshot->actors.push_back(a);
    totals.add(l);
    text = metrics_text(l);
    BOOST_TEST_REQUIRE(l.groups.size() == 1U);
    return l.groups[0].steps;
  };
  const std::string info =
      "troupe_node_info{node=\"n1\",kind=\"node\",role=\"worker\",address=\"127.0.0.1:40001\","
      "host=\"h-n1\",version=\"1.0\"}";
  BOOST_TEST(at(0, false, 0) == 7U);
  BOOST_TEST(text.find("troupe_node_info{node=\"n1\"") == std::string::npos);
  BOOST_TEST(at(1, true, 100) == 107U);
  BOOST_TEST(series(text, info) == "1");
  for (std::int64_t s = 2; s < 1000; s += 100) BOOST_TEST(at(s, false, 0) == 107U);
  BOOST_TEST(series(text, info) == "1");
  BOOST_TEST(at(1000, true, 105) == 112U);
}

BOOST_AUTO_TEST_CASE(credits_are_counted_where_there_is_a_limit) {
  cluster_look l;
  l.snapshot.emplace();
  auto a = sample_actor("c1.0", "fetch", "loss", actor_state::running);
  a.ports = {{"out0", "program", "", 260, 0, 0, false, 0}, {"out1", "x", "", 1, 2, 0, false, 0}};
  l.snapshot->actors = {a};
  look_totals().add(l);
  BOOST_TEST(l.groups.at(0).credits == 1U);
  BOOST_TEST(l.groups.at(0).credits_max == 2U);
}

BOOST_AUTO_TEST_CASE(SE_4_items_that_a_stage_gives_back_and_takes_again_count_once) {
  look_totals totals;
  std::int64_t now_ns = 0;
  const auto at = [&](std::uint64_t taken, const std::string& job_id) {
    cluster_look l;
    l.ended_ns = ++now_ns;
    l.snapshot.emplace();
    auto a = sample_actor("c1.lines.1", "stage", "works", actor_state::running);
    a.job_id = job_id;
    a.messages_in = a.steps = taken;
    a.ports = {{"in0", "reads", "c1", 0, 2, 0, false, 0}};
    a.ports[0].items = taken;
    l.snapshot->actors = {a};
    totals.add(l);
    BOOST_TEST_REQUIRE(l.stages.size() == 1U);
    BOOST_TEST(l.stages[0].messages_in == l.stages[0].items_in);
    return l.stages[0].items_in;
  };
  BOOST_TEST(at(100, "1f") == 100U);
  BOOST_TEST(at(97, "1f") == 100U);
  BOOST_TEST(at(99, "1f") == 100U);
  BOOST_TEST(at(103, "1f") == 103U);
  BOOST_TEST(at(4, "2f") == 107U);  // the same name, run again
}

BOOST_AUTO_TEST_SUITE_END()
