#include "tools/troupe-tool/answer.hpp"

#include "tests/tool/sample.hpp"

#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

using namespace troupe;

namespace {

command parse(const std::string& line) {
  std::istringstream in(line);
  std::vector<std::string> arguments;
  for (std::string word; in >> word;) arguments.push_back(word);
  const auto p = parse_command(arguments);
  BOOST_TEST_REQUIRE(p.to_run.has_value(), line << ": " << p.err);
  return *p.to_run;
}

outcome run(const std::string& line, const cluster_snapshot& c = sample_cluster(), screen s = {}) {
  return answer_to(parse(line), c, s);
}

std::size_t widest_line(const std::string& text) {
  std::size_t widest = 0;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) widest = std::max(widest, line.size());
  return widest;
}

cluster_snapshot with_silent_node() {
  auto c = sample_cluster();
  c.nodes[2].state = node_state::unreachable;
  std::erase_if(c.actors, [](const auto& a) { return a.node == "n2"; });
  c.silent = {{"n2", "no answer within 2 s"}};
  return c;
}

const std::vector<std::string> every_question{
    "status", "list nodes", "list actors", "list jobs",      "show node n1", "show actor n1.1",
    "graph",  "why",        "events",      "show job mnist", "top",          "names nodes"};

}  // namespace

BOOST_AUTO_TEST_SUITE(answer)

BOOST_AUTO_TEST_CASE(every_question_has_an_answer_on_stdout_and_ends_with_0) {
  for (const auto& line : every_question) {
    const auto o = run(line);
    BOOST_TEST(o.exit_code == 0, line);
    BOOST_TEST(!o.out.empty(), line);
    BOOST_TEST(o.out.back() == '\n', line);
    BOOST_TEST(o.err.empty(), line << ": " << o.err);
    BOOST_TEST(o.out.find('\x1b') == std::string::npos, "no colour in a pipe: " << line);
  }
}

BOOST_AUTO_TEST_CASE(JSON_is_one_line_that_parses_and_lists_are_arrays) {
  for (const auto& line : every_question) {
    const auto o = run(line + " --json");
    BOOST_TEST(std::count(o.out.begin(), o.out.end(), '\n') == 1, line);
    const auto j = nlohmann::json::parse(o.out, nullptr, false);
    BOOST_TEST(!j.is_discarded(), line);
    BOOST_TEST(j.is_array() == (line.starts_with("list") || line.starts_with("names") ||
                                line == "events" || line == "graph" || line == "top"),
               line);
  }
  for (const char* line : {"list nodes", "list actors", "list jobs", "events", "graph"}) {
    const auto o = run(std::string(line) + " --json", {});
    BOOST_TEST(o.out == "[]\n", line);
    BOOST_TEST(o.exit_code == 0, line);
  }
}

BOOST_AUTO_TEST_CASE(the_keys_of_lists_are_those_that_are_documented) {
  const auto keys = [](const std::string& line) {
    std::string names;
    const auto list = nlohmann::ordered_json::parse(run(line).out);
    for (const auto& [key, value] : list.at(0).items()) names += key + " ";
    return names;
  };
  BOOST_TEST(
      keys("list nodes --json") ==
      "id name pid kind job address devices labels incarnation state reason unreachable_seconds reaches "
      "cores cpu_seconds host version uptime_seconds threads memory_bytes memory_max_bytes libraries ");
  BOOST_TEST(
      keys("list actors --json") ==
      "id kind name node job job_id state since_seconds messages_in messages_out bytes_in bytes_out busy_ratio "
      "queue steps iteration thread ports ");
  BOOST_TEST(
      keys("list jobs --json") ==
      "id name state workers shards update step steps started_seconds ended_seconds client participants cause epoch recoveries checkpoints ");
  BOOST_TEST(
      nlohmann::json::parse(run("list nodes --json").out).at(1).at("devices").dump() ==
      R"([{"hardware":"NVIDIA H100 80GB HBM3","memory_bytes":42949672960,"name":"gpu:0"},{"hardware":"NVIDIA H100 80GB HBM3","memory_bytes":42949672960,"name":"gpu:1"}])");
  BOOST_TEST(
      nlohmann::json::parse(run("show actor n1.1 --json").out).at("ports").at(3).at("peer") ==
      "loss");
}

BOOST_AUTO_TEST_CASE(a_node_tells_where_it_is_and_what_it_has) {
  auto c = sample_cluster();
  c.nodes[1].host = "rack7", c.nodes[1].version = "0.1.0", c.nodes[1].uptime_seconds = 3600;
  c.nodes[1].threads = 8, c.nodes[1].cores = 16, c.nodes[1].memory_bytes = 3ULL << 30;
  c.nodes[1].libraries = {"libown_ops.so"};
  for (const char* part : {"rack7", "0.1.0", "8", "3.0 GiB", "HOST", "UP", "THREADS", "MEMORY"})
    BOOST_TEST(has_text(run("list nodes", c).out, part), part);
  const auto shown = run("show node n1", c).out;
  for (const char* part : {"host           rack7", "8, on 16 cores",
                           "3.0 GiB in use, jobs may use all there is", "libown_ops.so"})
    BOOST_TEST(has_text(shown, part), part << " in " << shown);
}

BOOST_AUTO_TEST_CASE(a_list_is_filtered_sorted_and_cut) {
  const auto names = [](const std::string& line) {
    std::string out;
    for (const auto& one : nlohmann::json::parse(run(line + " --json").out))
      out += one.at("name").get<std::string>() + " ";
    return out;
  };
  BOOST_TEST(names("list actors --filter kind=op") == "worker/0/reader worker/0/matmul ");
  BOOST_TEST(names("list actors --sort name:desc --limit 2") == "worker/0/reader worker/0/matmul ");
  BOOST_TEST(names("list nodes --filter kind!=client --sort pid:desc") == "n2 n1 ");
  BOOST_TEST(run("list actors --filter kind=none --json").out == "[]\n");
  const auto o = run("list actors --filter busy>1");
  BOOST_TEST(o.exit_code == 2);
  BOOST_TEST(has_text(o.err, "there is no key 'busy'"));
  BOOST_TEST(has_text(o.err, "busy_ratio"));
}

BOOST_AUTO_TEST_CASE(a_job_is_shown_with_its_actors_by_state) {
  const auto o = run("show job mnist");
  for (const char* part : {"name", "mnist", "coordinator", "recoveries", "on n1: ", "1 running"})
    BOOST_TEST(has_text(o.out, part), part << " in " << o.out);
  const auto none = run("show job mnst");
  BOOST_TEST(none.exit_code == 6);
  BOOST_TEST(has_text(none.err, "did you mean mnist?"));
}

BOOST_AUTO_TEST_CASE(top_has_the_busiest_first_and_fits_the_screen) {
  const auto o = run("top").out;
  BOOST_TEST(o.find("worker/0/matmul") < o.find("worker/0/reader"));
  const auto small = run("top", sample_cluster(), {80, 9}).out;
  BOOST_TEST(std::count(small.begin(), small.end(), '\n') <= 9);
  BOOST_TEST(has_text(small, " more\n"));
  BOOST_TEST(widest_line(small) <= 80);
  BOOST_TEST(!has_text(run("top mnist --limit 1").out, "worker/0/reader"));
  BOOST_TEST(run("top none").exit_code == 6);
}

BOOST_AUTO_TEST_CASE(a_job_is_waited_for_until_it_is_so_or_cannot_be) {
  auto c = sample_cluster();
  const auto wait = [&](const std::string& line) { return answer_waited_for_job(parse(line), c); };
  BOOST_TEST(wait("wait job=running mnist").value().exit_code == 0);
  BOOST_TEST(wait("wait job=running").value().exit_code == 0);
  BOOST_TEST(!wait("wait job=done mnist").has_value());
  BOOST_TEST(!wait("wait job=done other").has_value());
  c.jobs[0].state = job_state::failed, c.jobs[0].cause = "job mnist failed: no memory";
  BOOST_TEST(wait("wait job=failed mnist").value().exit_code == 0);
  const auto over = wait("wait job=done mnist").value();
  BOOST_TEST(over.exit_code == 1);
  BOOST_TEST(has_text(over.err, "mnist is failed, and will not be done any more: no memory"));
  BOOST_TEST(!wait("wait job=running mnist").has_value());  // another one may begin
  const auto late = answer_wait_timed_out(parse("wait job=done mnist"), c);
  BOOST_TEST(late.exit_code == 4);
  BOOST_TEST(has_text(late.err, "mnist is failed, not done"));
}

BOOST_AUTO_TEST_CASE(a_dead_node_is_forgotten_once_nobody_tells_of_it) {
  auto c = sample_cluster();
  const auto forget = parse("cluster forget n2");
  BOOST_TEST(answer_changed(forget, c, c).has_value());
  c.nodes[2].state = node_state::dead;
  BOOST_TEST(!answer_changed(forget, c, c).has_value());
  c.said = {{"n1", "refused: it lives (troupe cluster leave makes it leave)"}};
  BOOST_TEST(has_text(answer_refused(forget, c).value().err, "n2: it lives"));
  c.said = {{"n1", "refused: it lives"}, {"n3", "forgets"}};
  BOOST_TEST(!answer_refused(forget, c).has_value());
  c.said.clear();
  BOOST_TEST(has_text(answer_refused(forget, c).value().err, "there is no dead node 'n2' here"));
}

BOOST_AUTO_TEST_CASE(the_devices_of_a_node_are_listed_and_shown) {
  BOOST_TEST(
      has_text(run("list nodes").out, "gpu:0 to gpu:1 (NVIDIA H100 80GB HBM3, 40.0 GiB each)"));
  BOOST_TEST(
      has_text(run("show node n1").out, "gpu:0 to gpu:1 (NVIDIA H100 80GB HBM3, 40.0 GiB each)"));
  BOOST_TEST(!has_text(run("show node n2").out, "gpu:"));
}

BOOST_AUTO_TEST_CASE(who_has_a_link_to_whom_is_listed_and_shown) {
  auto c = sample_cluster();
  BOOST_TEST(has_text(run("list nodes", c).out, "REACHES"));
  BOOST_TEST(has_text(run("show node n1", c).out, "reaches        all\n"));
  // n2 is held dead by somebody, and has answered.
  c.nodes[1].reaches = {"c1"};
  c.nodes[2].state = node_state::dead;
  BOOST_TEST(has_text(run("show node n1", c).out, "0 of 1, not n2"));
  BOOST_TEST(has_text(run("list nodes", c).out, "0 of 1, not n2"));
  // Who is alone, or did not answer, has nobody to reach.
  c.nodes.resize(2);
  BOOST_TEST(has_text(run("show node n1", c).out, "all"));
  c.nodes[1].reaches.clear();
  BOOST_TEST(has_text(run("show node n1", c).out, "reaches        -\n"));
}

BOOST_AUTO_TEST_CASE(tables_fit_the_terminal_and_name_what_they_leave_out) {
  for (const auto& line : {"status", "list nodes", "list actors", "list jobs", "show actor n1.1"})
    for (const std::size_t width : {80u, 100u, 200u}) {
      const auto o = run(line, sample_cluster(), {width, 50});
      BOOST_TEST(widest_line(o.out) <= width, line << " at " << width << "\n" << o.out);
    }
  BOOST_TEST(
      has_text(run("list actors", sample_cluster(), {80, 50}).err, "columns that do not fit: "));
  BOOST_TEST(run("list actors", sample_cluster(), {80, 50}).exit_code == 0);
  BOOST_TEST(run("list actors").err.empty());
  BOOST_TEST(has_text(run("list actors").out, "BYTES OUT"));
}

BOOST_AUTO_TEST_CASE(names_of_actors_stay_readable_on_80_columns) {
  auto c = sample_cluster();
  const std::string name = "worker/0/dense_1/matmul+add/receive/1";
  c.actors[3].id = "n5hfce.1.117", c.actors[3].name = name,
  c.actors[3].state = actor_state::waiting_for_credit;
  const auto o = run("list actors", c, {80, 24});
  BOOST_TEST(has_text(o.out, name.substr(0, 17)), o.out);
  BOOST_TEST(has_text(o.out, name.substr(name.size() - 17)), o.out);
  BOOST_TEST(has_text(o.out, "waiting for credit"), o.out);
}

BOOST_AUTO_TEST_CASE(an_actor_is_shown_by_id_or_name_with_each_port) {
  for (const char* line : {"show actor n1.1", "show actor worker/0/matmul"}) {
    const auto o = run(line);
    for (const char* part : {"worker/0/matmul", "running for 250 ms", "512 in, 511 out",
                             "1.0 MiB in, 5.0 MiB out", "out1", "1/2"})
      BOOST_TEST(has_text(o.out, part), part << "\n" << o.out);
  }
  BOOST_TEST(has_text(run("show actor loss").out, "for input, for 200 ms"));
  BOOST_TEST(has_text(run("show actor n1.0").out, "for a credit, for 100 ms"));
  auto c = sample_cluster();
  c.actors[0].ports[1].credits_max = 0;  // the program gives none
  c.actors[0].ports[0].is_sparse = true;
  BOOST_TEST(!has_text(run("show actor loss", c).out, "4/0"));
  BOOST_TEST(has_text(run("show actor loss", c).out, "for input, for 200 ms, by design"));
}

BOOST_AUTO_TEST_CASE(a_node_is_shown_by_name_or_id_with_its_actors) {
  for (const char* line : {"show node n1", "show node 00abn1"})
    for (const char* part : {"4101", "127.0.0.1:40001", "worker",
                             "1 idle, 1 running, 1 waiting for credit", "mnist (running)"})
      BOOST_TEST(has_text(run(line).out, part), part << "\n" << run(line).out);
}

BOOST_AUTO_TEST_CASE(who_left_stays_listed_for_a_minute_and_in_JSON_longer) {
  auto c = sample_cluster();
  c.nodes[0].state = node_state::left;
  c.nodes[0].unreachable_seconds = 59;
  BOOST_TEST(has_text(run("list nodes", c).out, "c1    left 59.0 s ago"));
  c.nodes[0].unreachable_seconds = 61;
  BOOST_TEST(!has_text(run("list nodes", c).out, "c1 "));
  BOOST_TEST(has_text(run("list nodes --json", c).out, "\"c1\""));
  c.nodes[1].state = node_state::dead;
  c.nodes[1].unreachable_seconds = 600;
  BOOST_TEST(has_text(run("list nodes", c).out, "n1    dead for"));
}

BOOST_AUTO_TEST_CASE(living_actors_are_listed_before_those_that_have_ended) {
  auto c = sample_cluster();
  c.actors[0].state = c.actors[1].state = actor_state::ended;
  const auto out = run("list actors", c).out;
  BOOST_TEST(out.find("\nn1.1") < out.find("\nn2.1"));
  BOOST_TEST(out.find("\nn2.1") < out.find("\nc1.0"));
  BOOST_TEST(out.find("\nc1.0") < out.find("\nn1.0"));
}

BOOST_AUTO_TEST_CASE(an_unknown_object_ends_with_6_and_near_names) {
  const auto node = run("show node n3");
  BOOST_TEST(node.exit_code == 6);
  BOOST_TEST(node.out.empty());
  BOOST_TEST(
      node.err ==
      "troupe: no node 'n3' in cluster default; did you mean n1 or n2?; troupe list nodes shows all\n");
  const auto actor = run("show actor worker/0/matmall");
  BOOST_TEST(actor.exit_code == 6);
  BOOST_TEST(has_text(actor.err, "did you mean worker/0/matmul"));
  const auto job = run("why minst");
  BOOST_TEST(job.exit_code == 6);
  BOOST_TEST(has_text(job.err, "did you mean mnist?"));
}

BOOST_AUTO_TEST_CASE(a_name_of_several_actors_asks_for_an_id) {
  auto c = sample_cluster();
  c.actors[1].name = c.actors[2].name;
  const auto o = run("show actor worker/0/matmul", c);
  BOOST_TEST(o.exit_code == 6);
  BOOST_TEST(has_text(
      o.err,
      "2 actors are named 'worker/0/matmul': n1.0 (job mnist, waiting for credit), n1.1 (job mnist, "
      "running); name one by its id"));
}

BOOST_AUTO_TEST_CASE(of_several_actors_of_a_name_the_only_living_one_is_meant) {
  auto c = sample_cluster();
  c.actors[1].name = c.actors[2].name;
  c.actors[1].state = actor_state::ended;
  BOOST_TEST(has_text(run("show actor worker/0/matmul", c).out, "n1.1"));
  c.actors[2].state = actor_state::ended;
  BOOST_TEST(has_text(run("show actor worker/0/matmul", c).err,
                      "n1.1 (job mnist, ended); name one by its id"));
}

BOOST_AUTO_TEST_CASE(silent_nodes_make_an_answer_partial_and_are_named_on_stderr) {
  for (const auto& line : every_question) {
    const auto o = run(line, with_silent_node());
    BOOST_TEST(o.exit_code == 4, line);
    BOOST_TEST(!o.out.empty(), line);
    BOOST_TEST(has_text(o.err, "troupe: node n2 did not answer: no answer within 2 s"), line);
  }
  const auto unknown = run("show actor shard/0/w", with_silent_node());
  BOOST_TEST(unknown.exit_code == 6);
  BOOST_TEST(has_text(unknown.err, "node n2 did not answer"));
}

BOOST_AUTO_TEST_CASE(actors_that_were_left_out_are_counted_on_stderr) {
  auto c = sample_cluster();
  c.actors_left_out = 7;
  BOOST_TEST(run("list actors", c).exit_code == 4);
  BOOST_TEST(has_text(run("list actors", c).err, "7 actors did not fit"));
  BOOST_TEST(run("list nodes", c).exit_code == 0);
}

BOOST_AUTO_TEST_CASE(why_ends_with_1_for_a_failed_job_even_when_the_answer_is_partial) {
  auto c = with_silent_node();
  BOOST_TEST(has_text(run("why", c).out, "Job mnist, step 511 of 4690: "));
  c.jobs[0].state = job_state::failed;
  c.jobs[0].cause = "node n2 died at step 511";
  BOOST_TEST(run("why", c).exit_code == 1);
  BOOST_TEST(has_text(run("why", c).out, "node n2 died at step 511"));
}

BOOST_AUTO_TEST_CASE(the_cause_of_a_job_does_not_name_the_job_again) {
  auto c = sample_cluster();
  c.jobs[0].state = job_state::failed;
  c.jobs[0].cause = "job mnist failed: node n2 died at step 511";
  BOOST_TEST(has_text(run("list jobs", c).out, "  node n2 died at step 511\n"));
  BOOST_TEST(has_text(run("why", c).out, ": node n2 died at step 511.\n"));
  BOOST_TEST(has_text(run("list jobs --json", c).out, "\"cause\":\"job mnist failed: node n2"));
}

BOOST_AUTO_TEST_CASE(errors_end_with_their_code) {
  BOOST_TEST(answer_error({error_code::unreachable, "no cluster default"}).exit_code == 3);
  BOOST_TEST(answer_error({error_code::denied, "wrong token"}).exit_code == 5);
  BOOST_TEST(answer_error({error_code::denied, "wrong token"}).err == "troupe: wrong token\n");
}

BOOST_AUTO_TEST_CASE(wait_counts_living_nodes_but_no_clients) {
  const auto c = sample_cluster();
  BOOST_TEST(nodes_alive(c) == 2u);
  BOOST_TEST(nodes_alive(with_silent_node()) == 1u);
  BOOST_TEST(answer_wait_done(parse("wait nodes=2"), c).out == "2 nodes alive: n1 n2\n");
  BOOST_TEST(answer_wait_done(parse("wait nodes=2 --json"), c).out == "{\"nodes\":2}\n");
  // They have begun, and have not met.
  auto apart = c;
  for (auto& n : apart.nodes) n.unknown_to = 1;
  BOOST_TEST(nodes_alive(c) == 2U);
  BOOST_TEST(nodes_alive(apart) == 0U);
  // They know each other, and one has no link to the other.
  auto one_way = c;
  one_way.nodes.back().unreached_by = 1;
  BOOST_TEST(nodes_alive(one_way) == 1U);
  BOOST_TEST(answer_wait_timed_out(parse("wait nodes=2 --timeout 500ms"), apart).err ==
             "troupe: after 500 ms 2 of 2 nodes are alive, and do not all reach each other "
             "(troupe list nodes says who, troupe events says why)\n");
  const auto late = answer_wait_timed_out(parse("wait nodes=3 --timeout 500ms"), c);
  BOOST_TEST(late.exit_code == 4);
  BOOST_TEST(late.err == "troupe: after 500 ms 2 of 3 nodes are alive\n");
  const auto never = answer_wait_timed_out(parse("wait nodes=3"),
                                           error(error_code::unreachable, "no cluster default"));
  BOOST_TEST(never.exit_code == 4);
  BOOST_TEST(never.err == "troupe: after 20.0 s still: no cluster default\n");
}

// Ended jobs are remembered for a while, and may have had the same name.
BOOST_AUTO_TEST_CASE(checkpoint_make_waits_for_the_newest_job_of_that_name) {
  const auto c = parse("checkpoint make mnist");
  cluster_snapshot before, now;
  before.said = {{"n1", "saves 3"}};
  const auto job = [](double started_seconds, job_state state, std::uint64_t checkpoints) {
    job_snapshot j;
    j.id = std::to_string(started_seconds);
    j.name = "mnist";
    j.state = state;
    j.started_seconds = started_seconds;
    j.checkpoints = checkpoints;
    j.cause = "its node died";
    return j;
  };
  for (const auto old : {job_state::done, job_state::failed})
    for (const bool is_first : {true, false}) {
      const auto jobs_with = [&](const job_snapshot& newest) {
        now.jobs = {job(50, old, 9), newest};
        if (!is_first) std::swap(now.jobs[0], now.jobs[1]);
        return answer_changed(c, before, now);
      };
      BOOST_TEST(!jobs_with(job(2, job_state::running, 3)));
      BOOST_TEST(jobs_with(job(2, job_state::running, 4)).value().exit_code == 0);
      BOOST_TEST(jobs_with(job(2, job_state::done, 4)).value().exit_code == 0);
      BOOST_TEST(jobs_with(job(2, job_state::done, 3)).value().err ==
                 "troupe: job 'mnist' has ended\n");
      BOOST_TEST(jobs_with(job(2, job_state::failed, 3)).value().err == "troupe: its node died\n");
    }
  now.jobs.clear();
  BOOST_TEST(answer_changed(c, before, now).value().exit_code == 6);
}

BOOST_AUTO_TEST_CASE(a_topology_is_asked_until_it_is_as_wished) {
  cluster_snapshot before, now;
  job_snapshot j;
  j.id = "1", j.name = "shop", j.step = 7;
  const auto with = [&](const char* request, job_state state) {
    j.state = state;
    now.jobs = {j};
    return answer_changed(parse(request), before, now);
  };
  BOOST_TEST(!with("topology pause shop", job_state::running));
  BOOST_TEST(with("topology pause shop", job_state::paused).value().out == "shop is paused\n");
  BOOST_TEST(with("topology pause shop --json", job_state::paused).value().out ==
             "{\"job\":\"shop\",\"state\":\"paused\"}\n");
  BOOST_TEST(!with("topology resume shop", job_state::paused));
  BOOST_TEST(with("topology resume shop", job_state::running).value().out == "shop goes on\n");
  BOOST_TEST(with("topology pause shop", job_state::done).value().err ==
             "troupe: topology 'shop' has ended\n");
  BOOST_TEST(!with("topology drain shop", job_state::paused));
  BOOST_TEST(with("topology drain shop", job_state::done).value().out ==
             "shop is done, at step 7\n");
  // Its program has ended with it.
  before.said = {{"n1", "drains"}};
  now.jobs.clear();
  for (const char* how : {"topology drain shop", "job stop shop", "job finish shop"})
    BOOST_TEST(answer_changed(parse(how), before, now).value().out ==
               "shop has ended, and its program\n");
  before.said = {{"n1", "3 of 4 replicas"}};
  BOOST_TEST(with("topology replicas shop decode 3", job_state::running).value().out ==
             "shop: decode works with 3 of 4 replicas\n");
  BOOST_TEST(with("topology replicas shop decode 3 --json", job_state::running).value().out ==
             "{\"job\":\"shop\",\"stage\":\"decode\",\"replicas\":3}\n");
  before.said = {{"n1", "refused: there is no stage 'x' here; those whose replicas may change: y"}};
  BOOST_TEST(answer_refused(parse("topology replicas shop x 3"), before).value().exit_code == 6);
  before.said = {{"n1", "refused: decode has from 1 to 4 replicas"}};
  const auto refused = answer_refused(parse("topology replicas shop decode 9"), before).value();
  BOOST_TEST(refused.exit_code == 1);
  BOOST_TEST(refused.err == "troupe: shop: decode has from 1 to 4 replicas\n");
  before.said.clear();
  before.jobs = {j};
  BOOST_TEST(answer_refused(parse("topology pause shp"), before).value().err ==
             "troupe: there is no topology 'shp' here; did you mean shop?\n");
}

BOOST_AUTO_TEST_CASE(a_topology_is_shown_by_its_stages) {
  cluster_snapshot c;
  job_snapshot j;
  j.id = "1", j.name = "shop", j.step = 7;
  c.jobs = {j};
  actor_snapshot a;
  a.id = "n1.shop.0", a.name = "decode", a.kind = "stage", a.node = "n1", a.job = "shop";
  a.job_id = "1", a.messages_in = 12, a.messages_out = 11;
  c.actors = {a};
  a.id = "n1.5", a.kind = "op", a.name = "matmul", a.job = "other", a.job_id = "2";
  c.actors.push_back(a);
  const auto shown = answer_to(parse("topology show shop"), c, {0, 0});
  BOOST_TEST(shown.out.starts_with("shop: running, 7 items have arrived\nSTAGE "), shown.out);
  BOOST_TEST(shown.out.find("decode") != std::string::npos);
  BOOST_TEST(shown.out.find("matmul") == std::string::npos);
  BOOST_TEST(answer_to(parse("topology show shop --json"), c, {0, 0}).out.find("\"decode\"") !=
             std::string::npos);
  const auto none = answer_to(parse("topology show sho"), c, {0, 0});
  BOOST_TEST(none.exit_code == 6);
  BOOST_TEST(none.err == "troupe: there is no topology 'sho' here; did you mean shop?\n");
  c.actors.clear();
  BOOST_TEST(answer_to(parse("topology show shop"), c, {0, 0}).err ==
             "troupe: 'shop' is no topology: it has no stages\n");
}

BOOST_AUTO_TEST_CASE(the_version_needs_no_cluster) {
  BOOST_TEST(answer_version(parse("version")).out.starts_with("troupe 0."));
  BOOST_TEST(
      nlohmann::json::parse(answer_version(parse("version --json")).out).contains("version"));
}

BOOST_AUTO_TEST_SUITE_END()
