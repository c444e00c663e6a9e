#include "tools/troupe-tool/command.hpp"

#include "tools/troupe-tool/completion.hpp"
#include "tools/troupe-tool/event_log.hpp"
#include "tools/troupe-tool/grammar.hpp"
#include "tools/troupe-tool/near_names.hpp"
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
  const auto kinds = is_list ? "nodes, actors and jobs" : "node, actor and job";
  const auto name = is_list ? "list" : "show";
  if (kind.empty()) return fmt::format("{}: of what kind? There are {}", name, kinds);
  c.kind = kind_of(kind);
  if (c.kind == object_kind::none)
    return fmt::format("{}: '{}' is no kind of object; there are {}", name, kind, kinds);
  if (is_show && c.id.empty())
    return fmt::format("show {}: which one? Its ID is missing; troupe list {}s shows all", kind,
                       c.kind == object_kind::node    ? "node"
                       : c.kind == object_kind::actor ? "actor"
                                                      : "job");
  if (is_list && c.kind == object_kind::actor) c.ask.parts = ask_part::actors;
  if (is_list && c.kind == object_kind::job) c.ask.parts = ask_part::jobs;
  return std::nullopt;
}

std::optional<job_state> job_state_of(std::string_view text) {
  for (std::uint8_t i = 0; !to_string(static_cast<job_state>(i)).empty(); ++i)
    if (to_string(static_cast<job_state>(i)) == text) return static_cast<job_state>(i);
  return std::nullopt;
}

std::optional<std::string> set_condition(command& c, std::string_view condition) {
  if (c.action != verb::wait) return std::nullopt;
  constexpr std::string_view prefix = "nodes=", of_job = "job=";
  if (condition.starts_with(of_job)) {
    c.job_wanted = job_state_of(condition.substr(of_job.size()));
    c.ask.parts = ask_part::jobs;
    if (c.job_wanted) return std::nullopt;
    std::string states;
    for (std::uint8_t i = 0; !to_string(static_cast<job_state>(i)).empty(); ++i)
      states += fmt::format("{}{}", i == 0 ? "" : ", ", to_string(static_cast<job_state>(i)));
    return fmt::format("wait: '{}' is no state of a job; there are {}",
                       condition.substr(of_job.size()), states);
  }
  if (!c.id.empty()) return fmt::format("wait: '{}' is one argument too many", c.id);
  const auto* end = condition.data() + condition.size();
  if (condition.starts_with(prefix)) {
    const auto [rest, failure] =
        std::from_chars(condition.data() + prefix.size(), end, c.nodes_wanted);
    if (failure == std::errc{} && rest == end) return std::nullopt;
  }
  return fmt::format(
      "wait: '{}' is no condition; write nodes=N with a whole number N, or job=STATE", condition);
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

std::optional<std::string> set_doing(command& c, const std::string& doing, const grammar_texts& t) {
  if (c.action == verb::leave_cluster) {
    if (doing == "forget")
      c.action = verb::forget_node;
    else if (doing != "leave")
      return fmt::format("cluster: there is no action '{}'; there are leave and forget", doing);
    if (c.id.empty())
      return fmt::format("cluster {}: which node? troupe list nodes shows all", doing);
    c.ask.request = fmt::format("{} {}", doing, c.id);
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

std::optional<std::string> set_context(command& c, const grammar_texts& t) {
  if (c.action != verb::list_contexts) return std::nullopt;
  if (t.doing == "show")
    c.action = verb::show_context;
  else if (t.doing == "set")
    c.action = verb::set_context;
  else if (t.doing == "use")
    c.action = verb::use_context;
  else if (t.doing == "remove")
    c.action = verb::remove_context;
  else if (!t.doing.empty() && t.doing != "list")
    return fmt::format(
        "context: there is no action '{}'; there are list, show, set, use and remove", t.doing);
  const bool needs_name = c.action != verb::list_contexts && c.action != verb::show_context;
  if (needs_name && c.id.empty())
    return fmt::format("context {}: which one? Its NAME is missing", t.doing);
  c.context = t.context;
  if (!c.id.empty() && c.id.find_first_of("\n\r\t ") != std::string::npos)
    return fmt::format("context {}: a name has no blanks", t.doing);
  if (c.action == verb::list_contexts && !c.id.empty())
    return fmt::format("context list: '{}' is one argument too many", c.id);
  if (c.action == verb::set_context && !c.place.has_address())
    return fmt::format("context set {}: where is it? Give --cluster NAME or --join HOST:PORT",
                       c.id);
  return std::nullopt;
}

// The kind of what names are asked for is no object where they are contexts.
std::optional<std::string> set_names(command& c, const std::string& kind) {
  if (c.action != verb::names) return std::nullopt;
  c.kind = kind_of(kind);
  if (c.kind == object_kind::none && kind != "contexts")
    return fmt::format("names: '{}' is no kind; there are nodes, actors, jobs and contexts", kind);
  if (c.kind == object_kind::actor) c.ask.parts = ask_part::actors;
  if (c.kind == object_kind::job) c.ask.parts = ask_part::jobs;
  return std::nullopt;
}

std::optional<std::string> set_interval(command& c, const std::string& text) {
  if (!c.is_watch && c.action != verb::top) return std::nullopt;
  constexpr std::int64_t least_ns = 100'000'000;
  const auto span = parse_duration(text);
  if (!span) return fmt::format("--interval: {}", span.error().message());
  if (*span < least_ns) return fmt::format("--interval: {} is below 100ms", text);
  c.interval_ns = *span;
  return std::nullopt;
}

// Verbs that ask no cluster do not care where one is.
std::optional<std::string> set_place(command& c, const grammar_texts& t,
                                     const surroundings& around) {
  if (is_of_contexts(c.action) || c.action == verb::version || c.action == verb::plan ||
      c.action == verb::completion || c.action == verb::list_checkpoints ||
      c.action == verb::verify_checkpoints)
    return std::nullopt;
  if (c.action == verb::names && c.kind == object_kind::none) return std::nullopt;
  if (c.is_system && !t.context.empty()) return "--system: --context says another place";
  auto place = c.is_system ? result<cluster_place>(c.place)
                           : resolve_place(c.place, t.context, around, c.context);
  if (c.is_system && place->cluster.empty()) place->cluster = around.environment.cluster;
  if (!place) return place.error().message();
  if (!place->cluster.empty()) c.ask.cluster = place->cluster;
  c.ask.join = place->join;
  c.ask.token_file = place->token_file;
  c.ask.protect = place->protect;
  return std::nullopt;
}

void set_plan(plan_wishes& p, const grammar_texts& t) {
  if (t.workers > 0) p.workers = t.workers;
  if (t.shards > 0) p.shards = t.shards;
  if (!t.update.empty()) p.update = t.update == "async" ? update_kind::async : update_kind::sync;
  p.all_reduce = t.update == "allreduce";
  if (!t.fuse.empty()) p.fuse = t.fuse == "on";
}

std::optional<std::string> set_log(log_wishes& log, const grammar_texts& t) {
  for (int i = 0; !to_string(static_cast<event_level>(i)).empty(); ++i)
    if (to_string(static_cast<event_level>(i)) == t.level) log.level = static_cast<event_level>(i);
  if (log.since.empty()) return std::nullopt;
  const auto since = parse_since(log.since, 0);
  return since ? std::nullopt : std::optional("--since: " + since.error().message());
}

std::optional<std::string> set_duration(command& c, const grammar_texts& t) {
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
std::optional<std::string> finish(command& c, const grammar_texts& t, const surroundings& around) {
  if (auto mistake = set_kind(c, t.kind)) return mistake;
  if (auto mistake = set_names(c, t.kind)) return mistake;
  if (auto mistake = set_context(c, t)) return mistake;
  if (auto mistake = set_interval(c, t.interval)) return mistake;
  if (auto mistake = set_doing(c, t.doing, t)) return mistake;
  if (auto mistake = set_condition(c, t.condition)) return mistake;
  if (auto mistake = set_duration(c, t)) return mistake;
  if (c.action == verb::none) c.ask.parts = ask_part::all;
  if (auto mistake = set_place(c, t, around)) return mistake;
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

parsed_command parse_command(std::span<const std::string> arguments, const surroundings& around) {
  command c;
  grammar_texts t;
  CLI::App app;
  set_grammar(app, c, t);
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
  const auto* named = app.get_option("--cluster");
  auto mistake = named->count() > 0 && c.place.cluster.empty()
                     ? std::optional<std::string>("--cluster: the name is empty")
                     : finish(c, t, around);
  if (c.action == verb::completion && !mistake) c.script = completion_script(t.shell);
  if (mistake) {
    outcome.exit_code = static_cast<int>(error_code::usage);
    outcome.err = fmt::format("troupe: {}\n", *mistake);
    return outcome;
  }
  outcome.to_run = std::move(c);
  return outcome;
}

}  // namespace troupe
