#include "tools/troupe-tool/plans.hpp"

#include "tests/support/graph_files.hpp"
#include "troupe/devices/files/host_disk.hpp"
#include "troupe/devices/files/scratch_folder.hpp"
#include "troupe/runtime/compile/graph_file.hpp"

#include <boost/test/unit_test.hpp>

#include <set>

#include <nlohmann/json.hpp>

#include <sstream>

using namespace troupe;

namespace {

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

struct files {
  op_table ops = make_op_table();
  std::shared_ptr<scratch_folder> folder = *scratch_folder::make("troupe-plans");
  std::unique_ptr<disk> d = make_host_disk();

  std::string path(const std::string& name) const { return folder->path() + "/" + name; }
  void save(const std::string& name, graph& g, const graph_use& use) {
    const auto saved = save_graph(*d, path(name), g, use);
    BOOST_TEST_REQUIRE(bool(saved), (saved ? "" : saved.error().text()));
  }
  void write(const std::string& name, const std::string& text) {
    const auto bytes = std::as_bytes(std::span(text));
    BOOST_TEST_REQUIRE(bool(write_whole(*d, path(name), {&bytes, 1})));
  }
  outcome run(const std::string& name, const std::string& flags = {}) {
    std::vector<std::string> arguments{"plan", path(name)};
    std::istringstream in(flags);
    for (std::string word; in >> word;) arguments.push_back(word);
    const auto c = parse_command(arguments);
    BOOST_TEST_REQUIRE(c.to_run.has_value(), c.err);
    return answer_plan(*c.to_run, *d, ops);
  }
  void save_training() {
    graph g(ops);
    training_spec spec;
    spec.workers = 2;
    spec.steps = 7;
    spec.optimizer = adam({});
    save("trained", g,
         {.name = "mnist", .loss = test::loss_of(g), .training = graph_training{spec, {}}});
  }
  void save_steps() {
    graph g(ops);
    const auto y = relu(input(g, {dtype::f32, batch_of(8, {3})}, "x"));
    save("stepped", g, {.name = "relu", .fetches = {{"y", y}}});
  }
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(plans, files)

BOOST_AUTO_TEST_CASE(a_training_is_planned_as_its_file_says_but_for_the_flags) {
  save_training();
  const auto plain = run("trained");
  BOOST_TEST(plain.exit_code == 0);
  BOOST_TEST(plain.err.empty());
  BOOST_TEST(plain.out.starts_with(
                 "mnist: trains, synchronously, 7 steps of 2 workers with 1 shard, adam; "),
             plain.out);
  const auto other = run("trained", "--workers 3 --shards 2 --nodes 4 --update async --fuse off");
  BOOST_TEST(other.out.starts_with(
                 "mnist: trains, asynchronously, 7 steps of 3 workers with 2 shards, adam; "),
             other.out);
  BOOST_TEST(has(other.out, "/job:worker/task:2"));
  BOOST_TEST(!has(other.out, " fuse "));
}

BOOST_AUTO_TEST_CASE(json_is_one_line_with_units) {
  save_training();
  const auto o = run("trained", "--json --nodes 2 --shards 2");
  BOOST_TEST(std::count(o.out.begin(), o.out.end(), '\n') == 1);
  const auto j = nlohmann::json::parse(o.out);
  BOOST_TEST(j.at("name") == "mnist");
  BOOST_TEST(j.at("update") == "sync");
  BOOST_TEST(j.at("workers") == 2);
  BOOST_TEST(j.at("passes").at(0).at("pass") == "gradients");
  BOOST_TEST(j.at("passes").at(0).at("ops_before") < j.at("passes").at(0).at("ops_after"));
  BOOST_TEST(j.at("passes").at(0).at("unit") == "ops");
  BOOST_TEST(j.at("passes").at(0).at("changes").size() == 4U);
  BOOST_TEST(j.at("passes").at(0).at("changes_left_out") == 0);
  BOOST_TEST_REQUIRE(j.at("tasks").size() == 3U);
  std::uint64_t task = 0, actors = 0;
  for (const auto& a : j.at("actors"))
    if (a.at("task") == "/job:worker/task:0") actors += a.at("memory_bytes").get<std::uint64_t>();
  for (const auto& t : j.at("tasks"))
    if (t.at("name") == "/job:worker/task:0") task = t.at("peak_memory_bytes").get<std::uint64_t>();
  BOOST_TEST(task == actors);
  BOOST_TEST(task > 0U);
  BOOST_TEST(j.at("largest").at(0).at("memory_bytes") >= j.at("largest").at(1).at("memory_bytes"));
  std::set<std::string> shards;
  for (const auto& a : j.at("actors"))
    if (a.at("kind") == "shard") shards.insert(a.at("name"));
  for (const auto& e : j.at("edges"))
    BOOST_TEST(e.at("credits") == (shards.contains(e.at("to")) ? 1 : 2), e.dump());
  for (const char* key : {"name", "kind", "task", "stream", "why", "line", "memory_bytes", "ops"})
    BOOST_TEST(j.at("actors").at(0).contains(key), key);
  for (const char* key : {"from", "output", "to", "input", "tensor", "size_bytes", "credits"})
    BOOST_TEST(j.at("edges").at(0).contains(key), key);
}

BOOST_AUTO_TEST_CASE(pictures_are_for_graphviz_or_drawn) {
  save_training();
  BOOST_TEST(run("trained", "--dot").out.starts_with("digraph troupe {"));
  BOOST_TEST(run("trained", "--svg").out.starts_with("<svg "));
  BOOST_TEST(has(run("trained", "--svg").out, "plan of mnist: 2 workers, 1 shard"));
}

BOOST_AUTO_TEST_CASE(a_graph_without_a_loss_is_planned_for_steps_and_takes_no_flags_of_trainings) {
  save_steps();
  BOOST_TEST(run("stepped").out.starts_with("relu: steps with feeds and fetches; "),
             run("stepped").out);
  BOOST_TEST(run("stepped", "--fuse off").exit_code == 0);
  for (const char* flags : {"--workers 2", "--shards 1", "--nodes 2", "--update sync"}) {
    const auto o = run("stepped", flags);
    BOOST_TEST(o.exit_code == 2, flags);
    BOOST_TEST(has(o.err, "stepped has no loss to train"), o.err);
  }
}

BOOST_AUTO_TEST_CASE(more_workers_than_nodes_are_a_usage_error_unless_they_may_share) {
  save_training();
  const auto o = run("trained", "--nodes 1");
  BOOST_TEST(o.exit_code == 2);
  BOOST_TEST(
      o.err ==
          "troupe: plan: --nodes 1: 2 workers need as many, and --nodes 0 plans everything in the program\n",
      o.err);
  graph g(ops);
  training_spec spec;
  spec.workers = 2;
  spec.is_recoverable = true;
  save("sharing", g, {.loss = test::loss_of(g), .training = graph_training{spec, {}}});
  BOOST_TEST(run("sharing", "--nodes 1").exit_code == 0);
}

BOOST_AUTO_TEST_CASE(a_file_that_asks_for_more_actors_than_a_plan_has_is_told_so_at_once) {
  graph g(ops);
  training_spec spec;
  spec.workers = 65'536;
  save("many", g, {.loss = test::loss_of(g), .training = graph_training{spec, {}}});
  const auto o = run("many");
  BOOST_TEST(o.exit_code == 1);
  BOOST_TEST(has(o.err, "65536 workers with"), o.err);
  BOOST_TEST(run("many", "--workers 2").exit_code == 0);
}

BOOST_AUTO_TEST_CASE(a_graph_that_does_not_compile_exits_with_1_and_the_users_line) {
  graph g(ops);
  save("no_loss", g, {.loss = reduce_sum(input(g, {dtype::f32, {3}}, "x"))});
  const auto o = run("no_loss");
  BOOST_TEST(o.exit_code == 1);
  BOOST_TEST(has(o.err, "plans_test.cpp:"), o.err);
  BOOST_TEST(has(o.err, "to any variable"), o.err);
  BOOST_TEST(o.out.empty());
}

BOOST_AUTO_TEST_CASE(what_is_no_graph_exits_with_2_and_what_is_not_there_with_6) {
  write("notes", "dear diary");
  const auto notes = run("notes");
  BOOST_TEST(notes.exit_code == 2);
  BOOST_TEST(has(notes.err, "/notes: not a graph: it does not begin like a graph file"), notes.err);
  BOOST_TEST(run("none").exit_code == 6);
  BOOST_TEST(run("").exit_code == 2);  // a folder
  write("damaged", "TROUPEGR\x01");
  BOOST_TEST(run("damaged").exit_code == 2);
}

BOOST_AUTO_TEST_SUITE_END()
