#include "tools/troupe-tool/command.hpp"

#include "tools/troupe-tool/event_log.hpp"
#include "tools/troupe-tool/near_names.hpp"
#include "troupe/actors/program/protection_flags.hpp"
#include "troupe/runtime/text/duration.hpp"
#include "troupe/runtime/trace/trace.hpp"
#include "troupe/schema/version.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <sstream>
#include <vector>

namespace troupe {

namespace {

constexpr std::int64_t wait_timeout_ns = 20'000'000'000;
constexpr std::int64_t change_timeout_ns = 60'000'000'000;  // a node has 30 s to hand its work over

constexpr std::string_view footer =
    "Exit codes: 0 fine, 1 the answer is bad (a failed job, a graph that does not compile), 2 usage, 3 no cluster found, 4 timed out or some nodes "
    "did\n"
    "not answer, 5 denied, 6 no such object. Start a cluster with: troupe-node &";

constexpr std::string_view global_flags =
    "Every verb takes --cluster NAME, --join HOST:PORT, --token-file FILE, --json, --timeout DURATION and\n"
    "what protects connections (--tls, ..) too: troupe --help explains them.\n";

struct texts {
  std::string level = "info", timeout, kind, condition, doing, update, fuse, replicas,
              seconds = "1", slow_seconds = "2";
  std::uint32_t workers = 0, shards = 0;  // 0: not said
  bool dot = false, svg = false;
};

void add_global_flags(CLI::App& app, command& c, texts& t) {
  app.add_option("--cluster", c.ask.cluster, "Name of the cluster (default: default)")
      ->type_name("NAME");
  app.add_option("--join", c.ask.join, "Address of a node; may be given more than once")
      ->type_name("HOST:PORT")
      ->allow_extra_args(false);
  app.add_option("--token-file", c.ask.token_file, "File with the cluster's token")
      ->type_name("FILE");
  add_protection_flags(app, c.ask.protect);
  app.add_flag("--json", c.json, "One line of JSON on stdout");
  app.add_option(
         "--timeout", t.timeout,
         "How long to wait for answers: 500ms, 20s (default: 2s; wait: 20s; checkpoint make, cluster leave, job, topology: 60s)")
      ->type_name("DURATION");
}

void add_verbs(CLI::App& app, command& c, texts& t) {
  const auto add = [&](const char* name, const char* what, verb v, ask_part parts) {
    auto* sub = app.add_subcommand(name, what);
    sub->callback([&c, v, parts] { c.action = v, c.ask.parts = parts; });
    sub->footer(fmt::format("{}{}", global_flags, footer));
    return sub;
  };
  add("status", "The cluster on a page", verb::status, ask_part::all);
  add("list", "All nodes, actors or jobs", verb::list, ask_part::nodes)
      ->add_option("KIND", t.kind, "nodes, actors or jobs");
  auto* show = add("show", "One node or actor, with its ports and waits", verb::show,
                   ask_part::actors | ask_part::jobs);
  show->add_option("KIND", t.kind, "node or actor");
  show->add_option("ID", c.id, "As listed: n1, or n1.17, or an actor's name");
  auto* graph = add("graph", "The actors of the running jobs and their edges", verb::graph,
                    ask_part::actors | ask_part::jobs);
  auto* dot = graph->add_flag("--dot", t.dot, "For Graphviz");
  graph->add_flag("--svg", t.svg, "A picture")->excludes(dot);
  auto* why =
      add("why",
          "Why a job does not go on: the wait that all others follow from; with --slow, what "
          "bounds the rate of one that does",
          verb::why, ask_part::actors | ask_part::jobs);
  why->add_option("JOB", c.id, "Name or id (default: the running job whose wait is oldest)");
  auto* slow = why->add_flag("--slow", c.is_slow,
                             "What bounds its rate, and what a mend would give: by many looks");
  why->add_option("--seconds", t.slow_seconds, "How long to look, from 0.5 to 60")
      ->type_name("N")
      ->needs(slow)
      ->capture_default_str();
  auto* events =
      add("events", "What happened in the cluster, oldest first", verb::events, ask_part::events);
  events->add_option("--job", c.log.job, "Only what concerns this job, by name or id")
      ->type_name("JOB");
  events
      ->add_option("--node", c.log.node, "Only what this node was the first to note, by name or id")
      ->type_name("NODE");
  auto* logs = add("logs", "The log of a node, or what all nodes' logs have of a job", verb::logs,
                   ask_part::jobs | ask_part::lines);
  logs->add_option("WHOSE", c.id, "A node or a job, by name or id")->required();
  for (auto* log : {events, logs}) {
    log->add_flag("--follow,-f", c.log.is_followed, "Go on with what comes, until Ctrl-C");
    log->add_option("--since", c.log.since,
                    "Only what happened since then: 10m (so long ago), 2026-11-28T21:05:07Z")
        ->type_name("DURATION|TIME");
    log->add_option("--level", t.level,
                    "The least that is shown: trace, debug, info, warning or error")
        ->check(CLI::IsMember({"trace", "debug", "info", "warning", "error"}))
        ->capture_default_str();
  }
  auto* timeline = add(
      "timeline",
      "Records what every stream does for a while: a file for Perfetto (https://ui.perfetto.dev) on stdout",
      verb::timeline, ask_part::jobs);
  timeline->add_option("--seconds", t.seconds, "How long, up to 60")
      ->type_name("N")
      ->capture_default_str();
  timeline
      ->add_option("--job", c.id,
                   "Only what belongs to this job, by name or id (default: all jobs)")
      ->type_name("JOB");
  auto* plan =
      add("plan", "What the compiler makes of a graph in a file, and why; needs no cluster",
          verb::plan, ask_part::nodes);
  plan->add_option("FILE", c.id, "Graph file, written by a program with --save-graph")->required();
  plan->add_option("--workers", t.workers,
                   "Logical workers (default of this and the flags below: what the program asked "
                   "for)")
      ->check(CLI::Range(1, 4096));
  plan->add_option("--shards", t.shards, "Places that the variables are spread over")
      ->check(CLI::Range(1, 4096));
  plan->add_option("--nodes", c.plan.nodes, "Nodes of the cluster (0: everything in the program)")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  plan->add_option("--update", t.update, "sync, allreduce or async")
      ->check(CLI::IsMember({"sync", "allreduce", "async"}));
  plan->add_option("--fuse", t.fuse,
                   "on: element-wise ops run with their producer; off: one actor per op")
      ->check(CLI::IsMember({"on", "off"}));
  plan->add_option("--load", c.plan.load,
                   "Shared library with ops that the graph uses; may be given more than once")
      ->type_name("FILE")
      ->allow_extra_args(false);
  auto* plan_dot = plan->add_flag("--dot", t.dot, "For Graphviz");
  plan->add_flag("--svg", t.svg, "A picture")->excludes(plan_dot);
  add("wait", "Wait for a condition", verb::wait, ask_part::nodes)
      ->add_option("CONDITION", t.condition,
                   "nodes=N: at least N living nodes, which all reach each other")
      ->required();
  auto* checkpoint = add(
      "checkpoint", "Checkpoints: list or verify those in a folder, or make one of a running job",
      verb::list_checkpoints, ask_part::jobs);
  checkpoint->add_option("ACTION", t.doing, "list, verify or make");
  checkpoint->add_option(
      "WHAT", c.id,
      "list, verify: the folder of --checkpoint, or of one job in it; make: a job's name or id");
  auto* cluster = add("cluster", "leave NODE: the node hands its work over and ends",
                      verb::leave_cluster, ask_part::nodes);
  cluster->add_option("ACTION", t.doing, "leave");
  cluster->add_option("NODE", c.id, "As listed");
  auto* job = add("job",
                  "stop JOB: it ends as it is; finish JOB: it ends in good order, with its "
                  "variables; detach JOB: a node coordinates it instead of its program",
                  verb::stop_job, ask_part::jobs);
  job->add_option("ACTION", t.doing, "stop, finish or detach");
  job->add_option("JOB", c.id, "Name or id, as listed");
  auto* topology = add(
      "topology",
      "show NAME: its stages; pause NAME: its sources stand still, until resume NAME; drain "
      "NAME: they end, and what is under way goes on to its end; replicas NAME STAGE N: so many work; move NAME STAGE NODE: one works there",
      verb::show_topology, ask_part::jobs);
  topology->add_option("ACTION", t.doing, "show, pause, resume, drain, replicas or move");
  topology->add_option("NAME", c.id, "Name or id, as troupe list jobs shows it");
  topology->add_option("STAGE", c.stage,
                       "replicas, move: the stage, without the number of a replica");
  topology->add_option("N", t.replicas, "replicas: how many work; move: the node");
  add("version", "The version of this program", verb::version, ask_part::nodes);
}

// Singular and plural mean the same.
object_kind kind_of(std::string_view text) {
  if (text == "node" || text == "nodes") return object_kind::node;
  if (text == "actor" || text == "actors") return object_kind::actor;
  if (text == "job" || text == "jobs") return object_kind::job;
  return object_kind::none;
}

std::optional<std::string> set_kind(command& c, const std::string& kind) {
  const bool is_list = c.action == verb::list, is_show = c.action == verb::show;
  if (!is_list && !is_show) return std::nullopt;
  const auto kinds = is_list ? "nodes, actors and jobs" : "node and actor";
  const auto name = is_list ? "list" : "show";
  if (kind.empty()) return fmt::format("{}: of what kind? There are {}", name, kinds);
  c.kind = kind_of(kind);
  if (c.kind == object_kind::none || (is_show && c.kind == object_kind::job))
    return fmt::format("{}: '{}' is no kind of object{}; there are {}", name, kind,
                       is_show && c.kind == object_kind::job ? " that can be shown" : "", kinds);
  if (is_show && c.id.empty())
    return fmt::format("show {}: which one? Its ID is missing; troupe list {}s shows all", kind,
                       c.kind == object_kind::node ? "node" : "actor");
  if (is_list && c.kind == object_kind::actor) c.ask.parts = ask_part::actors;
  if (is_list && c.kind == object_kind::job) c.ask.parts = ask_part::jobs;
  return std::nullopt;
}

std::optional<std::string> set_condition(command& c, std::string_view condition) {
  if (c.action != verb::wait) return std::nullopt;
  constexpr std::string_view prefix = "nodes=";
  const auto* end = condition.data() + condition.size();
  if (condition.starts_with(prefix)) {
    const auto [rest, failure] =
        std::from_chars(condition.data() + prefix.size(), end, c.nodes_wanted);
    if (failure == std::errc{} && rest == end) return std::nullopt;
  }
  return fmt::format("wait: '{}' is no condition; write nodes=N with a whole number N", condition);
}

std::optional<std::string> set_topology(command& c, const std::string& doing,
                                        const std::string& replicas) {
  if (doing == "pause")
    c.action = verb::pause_topology;
  else if (doing == "resume")
    c.action = verb::resume_topology;
  else if (doing == "drain")
    c.action = verb::drain_topology;
  else if (doing == "replicas")
    c.action = verb::set_replicas;
  else if (doing == "move")
    c.action = verb::move_stage;
  else if (doing != "show")
    return fmt::format(
        "topology: there is no action '{}'; there are show, pause, resume, drain, replicas and move",
        doing);
  if (c.id.empty()) return fmt::format("topology {}: which one? troupe list jobs shows all", doing);
  const bool has_stage = c.action == verb::set_replicas || c.action == verb::move_stage;
  if (!has_stage && !c.stage.empty())
    return fmt::format("topology {}: '{}' is one argument too many", doing, c.stage);
  if (c.action == verb::show_topology) {
    c.ask.parts = ask_part::actors | ask_part::jobs;
    return std::nullopt;
  }
  c.ask.request = fmt::format("{} {}", doing, c.id);
  if (c.action != verb::set_replicas && c.action != verb::move_stage) return std::nullopt;
  if (c.stage.empty())
    return fmt::format("topology {}: of which stage? troupe topology show {} shows all", doing,
                       c.id);
  if (c.action == verb::move_stage) {
    if (replicas.empty()) return "topology move: to which node? troupe list nodes shows all";
    c.node = replicas;
    c.ask.request += fmt::format("\t{}\t{}", c.stage, c.node);
    return std::nullopt;
  }
  const auto* end = replicas.data() + replicas.size();
  const auto [rest, failure] = std::from_chars(replicas.data(), end, c.replicas);
  if (failure != std::errc{} || rest != end || c.replicas == 0)
    return fmt::format("topology replicas: '{}' is no number of replicas; write how many work",
                       replicas);
  c.ask.request += fmt::format("\t{}\t{}", c.stage, c.replicas);
  return std::nullopt;
}

std::optional<std::string> set_doing(command& c, const std::string& doing, const texts& t) {
  if (c.action == verb::leave_cluster) {
    if (doing != "leave")
      return fmt::format("cluster: there is no action '{}'; write cluster leave NODE", doing);
    if (c.id.empty()) return "cluster leave: which node? troupe list nodes shows all";
    c.ask.request = "leave " + c.id;
  }
  if (c.action == verb::stop_job) {
    if (doing == "finish")
      c.action = verb::finish_job;
    else if (doing == "detach")
      c.action = verb::detach_job;
    else if (doing != "stop")
      return fmt::format("job: there is no action '{}'; there are stop, finish and detach", doing);
    if (c.id.empty()) return fmt::format("job {}: which one? troupe list jobs shows all", doing);
    c.ask.request = fmt::format("{} {}", doing, c.id);
  }
  if (c.action == verb::show_topology) return set_topology(c, doing, t.replicas);
  if (c.action != verb::list_checkpoints) return std::nullopt;
  if (doing == "verify")
    c.action = verb::verify_checkpoints;
  else if (doing == "make")
    c.action = verb::make_checkpoint;
  else if (doing != "list")
    return fmt::format("checkpoint: there is no action '{}'; there are list, verify and make",
                       doing);
  if (c.id.empty())
    return fmt::format("checkpoint {}: {}", doing,
                       c.action == verb::make_checkpoint
                           ? "of which job? troupe list jobs shows all"
                           : "in which folder?");
  if (c.action == verb::make_checkpoint) c.ask.request = "checkpoint " + c.id;
  return std::nullopt;
}

void set_plan(plan_wishes& p, const texts& t) {
  if (t.workers > 0) p.workers = t.workers;
  if (t.shards > 0) p.shards = t.shards;
  if (!t.update.empty()) p.update = t.update == "async" ? update_kind::async : update_kind::sync;
  p.all_reduce = t.update == "allreduce";
  if (!t.fuse.empty()) p.fuse = t.fuse == "on";
}

std::optional<std::string> set_log(log_wishes& log, const texts& t) {
  for (int i = 0; !to_string(static_cast<event_level>(i)).empty(); ++i)
    if (to_string(static_cast<event_level>(i)) == t.level) log.level = static_cast<event_level>(i);
  if (log.since.empty()) return std::nullopt;
  const auto since = parse_since(log.since, 0);
  return since ? std::nullopt : std::optional("--since: " + since.error().message());
}

std::optional<std::string> set_duration(command& c, const texts& t) {
  if (c.action != verb::timeline && !c.is_slow) return std::nullopt;
  const auto& text = c.is_slow ? t.slow_seconds : t.seconds;
  const double least = c.is_slow ? 0.5 : 1e-3;
  double seconds = 0;
  const auto* end = text.data() + text.size();
  const auto [rest, failure] = std::from_chars(text.data(), end, seconds);
  constexpr auto most = trace_duration_max_ns / 1'000'000'000;
  if (failure != std::errc{} || rest != end || !(seconds >= least) || seconds > double(most))
    return fmt::format("{}: --seconds takes a number from {} to {}, not '{}'",
                       c.is_slow ? "why" : "timeline", least, most, text);
  c.duration_ns = static_cast<std::int64_t>(seconds * 1e9);
  return std::nullopt;
}

// What CLI11 has read as text, as values. The first mistake is returned.
std::optional<std::string> finish(command& c, const texts& t) {
  if (auto mistake = set_kind(c, t.kind)) return mistake;
  if (auto mistake = set_doing(c, t.doing, t)) return mistake;
  if (auto mistake = set_condition(c, t.condition)) return mistake;
  if (auto mistake = set_duration(c, t)) return mistake;
  if (c.action == verb::none) c.ask.parts = ask_part::all;
  if (c.ask.cluster.empty()) return "--cluster: the name is empty";
  c.format = t.dot ? graph_format::dot : t.svg ? graph_format::svg : graph_format::text;
  if (c.json && c.format != graph_format::text)
    return fmt::format("{}: --json does not go with --dot or --svg",
                       c.action == verb::plan ? "plan" : "graph");
  if (c.action == verb::plan) set_plan(c.plan, t);
  if (auto mistake = set_log(c.log, t)) return mistake;
  if (c.action == verb::wait) c.ask.timeout_ns = wait_timeout_ns;
  if (is_change(c.action)) c.ask.timeout_ns = change_timeout_ns;
  if (t.timeout.empty()) return std::nullopt;
  const auto timeout = parse_duration(t.timeout);
  if (!timeout) return fmt::format("--timeout: {}", timeout.error().message());
  c.ask.timeout_ns = *timeout;
  return std::nullopt;
}

std::string explain_parse_error(const CLI::App& app, const CLI::ParseError& e,
                                std::span<const std::string> arguments) {
  std::vector<std::string> verbs;
  for (const auto* sub : app.get_subcommands([](const CLI::App*) { return true; }))
    verbs.push_back(sub->get_name());
  const bool has_verb = !app.get_subcommands().empty();
  if (dynamic_cast<const CLI::ExtrasError*>(&e) != nullptr && !has_verb)
    for (const auto& a : app.remaining())
      if (!a.starts_with('-') &&
          std::find(arguments.begin(), arguments.end(), a) != arguments.end())
        return fmt::format("'{}' is no verb{}; there are {}", a, did_you_mean(a, verbs),
                           fmt::join(verbs, ", "));
  return e.what();
}

}  // namespace

parsed_command parse_command(std::span<const std::string> arguments) {
  command c;
  texts t;
  CLI::App app(
      "Looks inside a Troupe cluster: its nodes, actors, jobs and what waits for what.\n"
      "Without a verb it shows status: on a terminal as a live page (q ends it), in a pipe once.",
      "troupe");
  app.footer(std::string(footer));
  app.fallthrough();
  app.require_subcommand(0, 1);
  app.set_version_flag("--version", fmt::format("troupe {}", version()));
  add_global_flags(app, c, t);
  add_verbs(app, c, t);
  parsed_command outcome;
  try {
    // CLI11 wants the last one first.
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::Success& asked) {
    std::ostringstream out, err;
    app.exit(asked, out, err);
    outcome.out = out.str();
    return outcome;
  } catch (const CLI::ParseError& e) {
    outcome.exit_code = static_cast<int>(error_code::usage);
    outcome.err = fmt::format("troupe: {} (troupe --help lists verbs and flags)\n",
                              explain_parse_error(app, e, arguments));
    return outcome;
  }
  if (const auto mistake = finish(c, t)) {
    outcome.exit_code = static_cast<int>(error_code::usage);
    outcome.err = fmt::format("troupe: {}\n", *mistake);
    return outcome;
  }
  outcome.to_run = std::move(c);
  return outcome;
}

}  // namespace troupe
