#include "tools/troupe-tool/command.hpp"

#include <boost/test/unit_test.hpp>

#include <sstream>
#include <string>
#include <vector>

using namespace troupe;

namespace {

parsed_command parse(const std::string& line) {
  std::istringstream in(line);
  std::vector<std::string> arguments;
  for (std::string word; in >> word;) arguments.push_back(word);
  return parse_command(arguments);
}

command good(const std::string& line) {
  const auto p = parse(line);
  BOOST_TEST_REQUIRE(p.to_run.has_value(), line << ": " << p.err);
  return *p.to_run;
}

void check_usage(const std::string& line, const std::string& part) {
  const auto p = parse(line);
  BOOST_TEST_REQUIRE(!p.to_run.has_value(), line);
  BOOST_TEST(p.exit_code == 2, line);
  BOOST_TEST(p.out.empty(), line);
  BOOST_TEST(p.err.starts_with("troupe: "), p.err);
  BOOST_TEST(p.err.find(part) != std::string::npos, line << ": " << p.err);
  BOOST_TEST(p.err.find('\n') == p.err.size() - 1, "one line: " << p.err);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(command)

BOOST_AUTO_TEST_CASE(every_verb_of_the_grammar_is_read) {
  BOOST_TEST((good("").action == verb::none));
  BOOST_TEST((good("status").action == verb::status));
  BOOST_TEST((good("list nodes").kind == object_kind::node));
  BOOST_TEST((good("list actors").kind == object_kind::actor));
  BOOST_TEST((good("list jobs").kind == object_kind::job));
  BOOST_TEST((good("show node n1").kind == object_kind::node));
  BOOST_TEST(good("show actor n1.17").id == "n1.17");
  BOOST_TEST((good("show actor n1.17").action == verb::show));
  BOOST_TEST((good("list node").kind == object_kind::node));
  BOOST_TEST((good("list actor").ask.parts == ask_part::actors));
  BOOST_TEST((good("list job").kind == object_kind::job));
  BOOST_TEST((good("show nodes n1").kind == object_kind::node));
  BOOST_TEST((good("show actors n1.17").kind == object_kind::actor));
  BOOST_TEST((good("graph").format == graph_format::text));
  BOOST_TEST((good("graph --dot").format == graph_format::dot));
  BOOST_TEST((good("graph --svg").format == graph_format::svg));
  BOOST_TEST(good("why").id.empty());
  BOOST_TEST(good("why mnist").id == "mnist");
  BOOST_TEST((good("events").action == verb::events));
  BOOST_TEST((good("events").ask.parts == ask_part::events));
  BOOST_TEST((good("logs n1").action == verb::logs));
  BOOST_TEST(good("logs n1 -f").log.is_followed);
  BOOST_TEST((good("logs n1").ask.parts == (ask_part::jobs | ask_part::lines)));
  BOOST_TEST((good("events --level warning").log.level == event_level::warning));
  BOOST_TEST((good("events").log.level == event_level::info));
  BOOST_TEST(good("events --follow --since 10m --job j --node n").log.since == "10m");
  BOOST_TEST(good("wait nodes=3").nodes_wanted == 3u);
  BOOST_TEST((good("version").action == verb::version));
  BOOST_TEST((good("topology show shop").action == verb::show_topology));
  BOOST_TEST((good("topology show shop").ask.parts == (ask_part::actors | ask_part::jobs)));
  BOOST_TEST(good("topology pause shop").ask.request == "pause shop");
  BOOST_TEST(good("topology resume shop").ask.request == "resume shop");
  BOOST_TEST((good("topology drain shop").action == verb::drain_topology));
  BOOST_TEST(good("topology replicas shop decode 3").ask.request == "replicas shop\tdecode\t3");
  BOOST_TEST(good("topology replicas shop decode 3").replicas == 3U);
  BOOST_TEST(good("topology move shop decode n2").ask.request == "move shop\tdecode\tn2");
  BOOST_TEST((good("plan model.troupe").action == verb::plan));
  BOOST_TEST((good("serve").action == verb::serve));
  BOOST_TEST(good("serve").listen == "127.0.0.1:0");
  BOOST_TEST(good("serve --http 0.0.0.0:80 --page-token-file t").listen == "0.0.0.0:80");
  BOOST_TEST(good("serve --page-token-file t").page_token_file == "t");
}

BOOST_AUTO_TEST_CASE(lists_may_be_filtered_sorted_cut_and_watched) {
  const auto c = good(
      "list actors --filter state=running --sort busy_ratio:desc --filter busy_ratio>0.5 --limit 7 "
      "--watch --interval 200ms");
  BOOST_TEST((c.pick.filters == std::vector<std::string>{"state=running", "busy_ratio>0.5"}));
  BOOST_TEST(c.pick.sort == "busy_ratio:desc");
  BOOST_TEST(c.pick.limit == 7U);
  BOOST_TEST(c.is_watch);
  BOOST_TEST(c.interval_ns == 200'000'000);
  BOOST_TEST(good("list nodes").pick.is_all());
  BOOST_TEST(good("list nodes").interval_ns == 0);
  BOOST_TEST((good("top").action == verb::top));
  BOOST_TEST(good("top mnist --limit 5").id == "mnist");
  BOOST_TEST(good("top").interval_ns == 1'000'000'000);
  BOOST_TEST((good("show job mnist").kind == object_kind::job));
  check_usage("list nodes --interval 1s", "--watch");
  check_usage("list nodes --watch --interval 50ms", "--interval: 50ms is below 100ms");
  check_usage("list nodes --watch --interval 5", "--interval: '5'");
  check_usage("list nodes --limit many", "--limit");
}

BOOST_AUTO_TEST_CASE(a_state_of_a_job_is_waited_for) {
  BOOST_TEST((good("wait job=done mnist").job_wanted == job_state::done));
  BOOST_TEST(good("wait job=done mnist").id == "mnist");
  BOOST_TEST((good("wait job=running").ask.parts == ask_part::jobs));
  BOOST_TEST(!good("wait nodes=1").job_wanted.has_value());
  check_usage("wait job=over", "'over' is no state of a job; there are running, done, failed");
  check_usage("wait nodes=1 mnist", "'mnist' is one argument too many");
}

BOOST_AUTO_TEST_CASE(dead_nodes_are_forgotten) {
  BOOST_TEST((good("cluster forget n1").action == verb::forget_node));
  BOOST_TEST(good("cluster forget n1").ask.request == "forget n1");
  check_usage("cluster forgive n1", "there are leave and forget");
  check_usage("cluster forget", "cluster forget: which node?");
}

BOOST_AUTO_TEST_CASE(contexts_are_read) {
  BOOST_TEST((good("context").action == verb::list_contexts));
  BOOST_TEST((good("context show").action == verb::show_context));
  const auto set = good("context set lab --cluster c --join a:1 --tls");
  BOOST_TEST((set.action == verb::set_context));
  BOOST_TEST(set.id == "lab");
  BOOST_TEST(set.place.cluster == "c");
  BOOST_TEST(set.place.protect.tls);
  check_usage("context set lab", "where is it? Give --cluster NAME or --join HOST:PORT");
  check_usage("context use", "context use: which one?");
  check_usage("context list lab", "one argument too many");
  check_usage("context forget lab", "there are list, show, set, use and remove");
  check_usage("status --context none", "there is no context 'none'");
  check_usage("completion csh", "csh");
  BOOST_TEST(!good("completion bash").script.empty());
}

BOOST_AUTO_TEST_CASE(plan_has_a_file_and_wishes_where_they_are_said) {
  const auto plain = good("plan model.troupe");
  BOOST_TEST(plain.id == "model.troupe");
  BOOST_TEST((plain.format == graph_format::text));
  BOOST_TEST(!plain.plan.is_training());
  BOOST_TEST(!plain.plan.fuse.has_value());
  const auto all = good(
      "plan --workers 3 model.troupe --shards 2 --nodes 4 --update async --fuse off --load a.so --load b.so --svg");
  BOOST_TEST(all.id == "model.troupe");
  BOOST_TEST(all.plan.workers.value() == 3U);
  BOOST_TEST(all.plan.shards.value() == 2U);
  BOOST_TEST(all.plan.nodes == 4U);
  BOOST_TEST((all.plan.update == update_kind::async));
  BOOST_TEST(all.plan.fuse.value() == false);
  BOOST_TEST((all.plan.load == std::vector<std::string>{"a.so", "b.so"}));
  BOOST_TEST((all.format == graph_format::svg));
  BOOST_TEST(good("plan x --json").json);
  check_usage("plan", "FILE");
  check_usage("plan x --workers 0", "--workers");
  check_usage("plan x --update maybe", "--update");
  check_usage("plan x --fuse maybe", "--fuse");
  check_usage("plan x --dot --svg", "--svg");
  check_usage("plan x --json --svg", "plan: --json does not go with --dot or --svg");
  check_usage("plan x y", "y");
  check_usage("plna x", "did you mean plan?");
}

BOOST_AUTO_TEST_CASE(timeline_has_a_length_and_may_have_a_job) {
  const auto plain = good("timeline");
  BOOST_TEST((plain.action == verb::timeline));
  BOOST_TEST(plain.duration_ns == 1'000'000'000);
  BOOST_TEST(plain.id.empty());
  BOOST_TEST(plain.ask.timeout_ns == 2'000'000'000);
  BOOST_TEST(good("timeline --seconds 2.5 --job mnist").duration_ns == 2'500'000'000);
  BOOST_TEST(good("timeline --job mnist").id == "mnist");
  BOOST_TEST(good("timeline --seconds 60 --cluster lab --json").duration_ns == 60'000'000'000);
  for (const char* bad :
       {"0", "-1", "-0.5", "61", "60.1", "1e300", "nan", "inf", "1s", "x", "0.0001"})
    check_usage(std::string("timeline --seconds ") + bad, "a number from 0.001 to 60");
  check_usage("timeline --seconds", "--seconds");
  check_usage("timeline 5", "5");
  check_usage("status --seconds 1", "--seconds");
  check_usage("timelien", "did you mean timeline?");
}

BOOST_AUTO_TEST_CASE(global_flags_stand_before_or_after_the_verb) {
  for (const char* line :
       {"--cluster lab --json --timeout 500ms --token-file t --join a:1 --join b:2 list nodes",
        "list nodes --cluster lab --json --timeout 500ms --token-file t --join a:1 --join b:2",
        "--cluster lab --join a:1 list --json --join b:2 nodes --timeout 500ms --token-file t"}) {
    const auto c = good(line);
    BOOST_TEST(c.ask.cluster == "lab", line);
    BOOST_TEST(c.json, line);
    BOOST_TEST(c.ask.timeout_ns == 500'000'000, line);
    BOOST_TEST(c.ask.token_file == "t", line);
    BOOST_TEST((c.ask.join == std::vector<std::string>{"a:1", "b:2"}), line);
    BOOST_TEST((c.kind == object_kind::node), line);
  }
}

BOOST_AUTO_TEST_CASE(flags_of_protection_stand_before_or_after_the_verb) {
  BOOST_TEST(good("--tls status").ask.protect.tls);
  BOOST_TEST(good("events --insecure").ask.protect.insecure);
  const auto c = good("list nodes --tls-certificate c --tls-key k --tls-ca a");
  BOOST_TEST(c.ask.protect.certificate == "c");
  BOOST_TEST(c.ask.protect.key == "k");
  BOOST_TEST(c.ask.protect.ca == "a");
  BOOST_TEST(!c.ask.protect.tls);
}

BOOST_AUTO_TEST_CASE(defaults_are_the_default_cluster_and_two_seconds_and_twenty_for_wait) {
  BOOST_TEST(good("status").ask.cluster == "default");
  BOOST_TEST(good("status").ask.timeout_ns == 2'000'000'000);
  BOOST_TEST(good("wait nodes=1").ask.timeout_ns == 20'000'000'000);
  BOOST_TEST(good("wait nodes=1 --timeout 1s").ask.timeout_ns == 1'000'000'000);
}

BOOST_AUTO_TEST_CASE(only_what_a_verb_needs_is_asked_for) {
  BOOST_TEST((good("wait nodes=1").ask.parts == ask_part::nodes));
  BOOST_TEST((good("list nodes").ask.parts == ask_part::nodes));
  BOOST_TEST((good("list jobs").ask.parts == ask_part::jobs));
  BOOST_TEST((good("why").ask.parts == (ask_part::actors | ask_part::jobs)));
  BOOST_TEST((good("").ask.parts == ask_part::all));
}

BOOST_AUTO_TEST_CASE(a_mistake_ends_with_2_and_one_line_that_says_what_was_expected) {
  check_usage("lst nodes", "'lst' is no verb; did you mean list?");
  check_usage("xyzzy", "'xyzzy' is no verb; there are status, list");
  check_usage("list", "list: of what kind? There are nodes, actors and jobs");
  check_usage("list shards", "'shards' is no kind of object; there are nodes, actors and jobs");
  check_usage("show", "show: of what kind? There are node, actor and job");
  check_usage("show n1.17", "'n1.17' is no kind of object; there are node, actor and job");
  check_usage("show job", "show job: which one? Its ID is missing; troupe list jobs shows all");
  check_usage("show node", "show node: which one? Its ID is missing; troupe list nodes shows all");
  check_usage("show node n1 n2", "n2");
  check_usage("status --colour", "--colour");
  check_usage("status --timeout 20", "--timeout: '20' is not a duration: the unit is missing");
  check_usage("wait nodes", "'nodes' is no condition; write nodes=N");
  check_usage("wait nodes=-1", "is no condition");
  check_usage("wait nodes=3x", "is no condition");
  check_usage("wait nodes=99999999999999999999", "is no condition");
  check_usage("wait", "CONDITION");
  check_usage("graph --dot --svg", "--dot");
  check_usage("graph --dot --json", "--json does not go with --dot");
  check_usage("topology", "topology: there is no action ''; there are show, pause");
  check_usage("topology pause", "topology pause: which one? troupe list jobs shows all");
  for (const char* what : {"show", "pause", "resume", "drain"})
    check_usage(std::string("topology ") + what + " shop decode",
                "'decode' is one argument too many");
  check_usage("topology move shop decode", "topology move: to which node?");
  check_usage("topology replicas shop", "of which stage? troupe topology show shop shows all");
  check_usage("topology replicas shop decode", "'' is no number of replicas");
  for (const char* n : {"0", "-1", "3x", "99999999999"})
    check_usage(std::string("topology replicas shop decode ") + n, "is no number of replicas");
  check_usage("status list", "list");
  check_usage("--cluster", "--cluster");
}

BOOST_AUTO_TEST_CASE(mistakes_in_what_is_wanted_of_a_log_are_usage_errors) {
  check_usage("events --since noon", "--since: 'noon' is neither a duration");
  check_usage("events --level loud", "--level");
  check_usage("logs", "WHOSE");
}

BOOST_AUTO_TEST_CASE(help_is_data_and_lists_verbs_flags_and_exit_codes) {
  const auto p = parse("--help");
  BOOST_TEST(!p.to_run.has_value());
  BOOST_TEST(p.exit_code == 0);
  BOOST_TEST(p.err.empty());
  for (const char* part : {"status", "why", "--cluster", "--timeout", "Exit codes"})
    BOOST_TEST(p.out.find(part) != std::string::npos, part);
  BOOST_TEST(p.out.find("on a terminal as a live page (q ends it), in a pipe once") !=
             std::string::npos);
  BOOST_TEST(parse("show --help").out.find("ID") != std::string::npos);
  for (const char* verb : {"status", "list", "show", "graph", "why", "events", "wait", "version"})
    for (const char* part : {"--cluster", "--json", "--timeout", "Exit codes"})
      BOOST_TEST(parse(std::string(verb) + " --help").out.find(part) != std::string::npos,
                 verb << " " << part);
}

BOOST_AUTO_TEST_SUITE_END()
