#include "tools/troupe-tool/grammar.hpp"

#include "troupe/actors/program/protection_flags.hpp"
#include "troupe/schema/version.hpp"

#include <fmt/format.h>

#include <string_view>

namespace troupe {

namespace {

constexpr std::string_view footer =
    "Exit codes: 0 fine, 1 the answer is bad (a failed job, a graph that does not compile), 2 usage, 3 no cluster found, 4 timed out or some nodes "
    "did\n"
    "not answer, 5 denied, 6 no such object. Start a cluster with: troupe-node &";

constexpr std::string_view global_flags =
    "Every verb takes --cluster NAME, --join HOST:PORT, --token-file FILE, --json, --timeout DURATION and\n"
    "what protects connections (--tls, ..) too: troupe --help explains them.\n";

constexpr std::string_view paths_of_serve =
    "Paths, all by GET:\n"
    "  /                               the page\n"
    "  /metrics                        for Prometheus\n"
    "  /healthz, /readyz               the server lives; a cluster answers\n"
    "  /api/status, /api/nodes, /api/jobs, /api/events\n"
    "  /api/actors?job=JOB&limit=N     JSON as of the verbs with --json\n"
    "  /api/why?job=JOB\n"
    "  /api/slow?job=JOB&seconds=N     what bounds its rate, by looks for 0.5 to 10 seconds\n"
    "  /api/graph?job=JOB              SVG, or JSON with format=json\n"
    "  /api/timeline?seconds=N&job=JOB a recording for Perfetto\n"
    "--tls-certificate and --tls-key make it HTTPS; with --tls-ca they protect the connections to "
    "nodes, too.\n"
    "A token is given as Authorization: Bearer TOKEN, or once as /?token=TOKEN.\n\n";

void add_global_flags(CLI::App& app, command& c, grammar_texts& t) {
  app.add_option("--context", t.context,
                 "Where the cluster is, by a name of troupe context (default: $TROUPE_CONTEXT, "
                 "else the one in use, unless a flag or the environment says where)")
      ->type_name("NAME");
  app.add_option("--cluster", c.place.cluster,
                 "Name of the cluster (default: $TROUPE_CLUSTER, else default)")
      ->type_name("NAME");
  app.add_option(
         "--join", c.place.join,
         "Address of a node, or dns:NAME:PORT for all addresses of that name; may be given more than once (default: $TROUPE_JOIN, with "
         "commas)")
      ->type_name("HOST:PORT")
      ->allow_extra_args(false);
  app.add_option("--token-file", c.place.token_file,
                 "File with the cluster's token (default: $TROUPE_TOKEN_FILE)")
      ->type_name("FILE");
  add_protection_flags(app, c.place.protect);
  app.add_flag("--system", c.is_system,
               "The nodes that this machine's service manager has started (systemctl start "
               "troupe-node@NAME): for root and the user troupe");
  app.add_flag("--json", c.json, "One line of JSON on stdout");
  app.add_option(
         "--timeout", t.timeout,
         "How long to wait for answers: 500ms, 20s (default: 2s; wait: 20s; checkpoint make, cluster leave, job, topology: 60s)")
      ->type_name("DURATION");
}

void add_verbs(CLI::App& app, command& c, grammar_texts& t) {
  const auto add = [&](const char* name, const char* what, verb v, ask_part parts) {
    auto* sub = app.add_subcommand(name, what);
    sub->callback([&c, v, parts] { c.action = v, c.ask.parts = parts; });
    sub->footer(fmt::format("{}{}", global_flags, footer));
    return sub;
  };
  add("status", "The cluster on a page", verb::status, ask_part::all);
  auto* list = add("list", "All nodes, actors or jobs", verb::list, ask_part::nodes);
  list->add_option("KIND", t.kind, "nodes, actors or jobs");
  list->add_option("--filter", c.pick.filters,
                   "Only those: state=running, name~decode, busy_ratio>0.5; keys as --json has "
                   "them, operators = != ~ !~ < <= > >=; may be given more than once")
      ->type_name("CONDITION")
      ->allow_extra_args(false);
  list->add_option("--sort", c.pick.sort, "In the order of a key of --json, KEY:desc downwards")
      ->type_name("KEY");
  list->add_option("--limit", c.pick.limit, "So many at most (0: all)")->type_name("N");
  auto* watch = list->add_flag("--watch", c.is_watch,
                               "Again and again: on a terminal as a live page (q ends it), in a "
                               "pipe one list after the other");
  list->add_option("--interval", t.interval, "Time between two of them, from 100ms")
      ->type_name("DURATION")
      ->needs(watch)
      ->capture_default_str();
  auto* top = add("top",
                  "The busiest actors, and how busy their nodes are: on a terminal as a live page "
                  "(q ends it), in a pipe once",
                  verb::top, ask_part::actors | ask_part::jobs);
  top->add_option("JOB", c.id, "Of this job alone, by name or id");
  top->add_option("--limit", c.pick.limit, "So many actors at most (0: as fit)")->type_name("N");
  top->add_option("--interval", t.interval, "Time between two looks, from 100ms")
      ->type_name("DURATION")
      ->capture_default_str();
  auto* show = add("show", "One node, actor or job, with its ports and waits", verb::show,
                   ask_part::actors | ask_part::jobs);
  show->add_option("KIND", t.kind, "node, actor or job");
  show->add_option("ID", c.id, "As listed: n1, or n1.17, or a name");
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
  auto* wait = add("wait", "Wait for a condition", verb::wait, ask_part::nodes);
  wait->add_option("CONDITION", t.condition,
                   "nodes=N: at least N living nodes, which all reach each other; job=STATE: a job "
                   "is running, done, failed, .. (exit code 1 as soon as it has ended otherwise)")
      ->required();
  wait->add_option("JOB", c.id, "Of job=STATE: name or id (default: the job that began last)");
  auto* checkpoint = add(
      "checkpoint", "Checkpoints: list or verify those in a folder, or make one of a running job",
      verb::list_checkpoints, ask_part::jobs);
  checkpoint->add_option("ACTION", t.doing, "list, verify or make");
  checkpoint->add_option(
      "WHAT", c.id,
      "list, verify: the folder of --checkpoint, or of one job in it; make: a job's name or id");
  auto* cluster =
      add("cluster",
          "leave NODE: the node hands its work over and ends; forget NODE: one that is dead is "
          "listed no more (others are for a minute)",
          verb::leave_cluster, ask_part::nodes);
  cluster->add_option("ACTION", t.doing, "leave or forget");
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
  auto* served = add("serve",
                     "A page of the cluster over HTTP, with JSON and metrics for Prometheus, until "
                     "Ctrl-C; prints its URL",
                     verb::serve, ask_part::all);
  served
      ->add_option("--http", c.listen,
                   "Where it listens; port 0 is any that is free. Beyond this machine it needs a "
                   "token, or --insecure")
      ->type_name("HOST:PORT")
      ->capture_default_str();
  served
      ->add_option("--page-token-file", c.page_token_file,
                   "File with the token that the page asks for (default: that of --token-file)")
      ->type_name("FILE");
  served->footer(fmt::format("{}{}{}", paths_of_serve, global_flags, footer));
  auto* context =
      add("context",
          "list; show [NAME]; set NAME with --cluster, --join, --token-file, --tls, ..: what the "
          "flags say has that name; use NAME: it holds where no flag says otherwise; remove NAME",
          verb::list_contexts, ask_part::nodes);
  context->add_option("ACTION", t.doing, "list, show, set, use or remove");
  context->add_option("NAME", c.id, "Of the context");
  add("completion", "A script that completes verbs, flags and names: bash, zsh or fish",
      verb::completion, ask_part::nodes)
      ->add_option("SHELL", t.shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  add("names", "For completion: the names of all nodes, actors, jobs or contexts, a line each",
      verb::names, ask_part::nodes)
      ->group("")
      ->add_option("KIND", t.kind, "nodes, actors, jobs or contexts")
      ->required();
  add("version", "The version of this program", verb::version, ask_part::nodes);
}

}  // namespace

void set_grammar(CLI::App& app, command& c, grammar_texts& t) {
  app.name("troupe");
  app.description(
      "Looks inside a Troupe cluster: its nodes, actors, jobs and what waits for what.\n"
      "Without a verb it shows status: on a terminal as a live page (q ends it), in a pipe once.");
  app.footer(std::string(footer));
  app.fallthrough();
  app.require_subcommand(0, 1);
  app.set_version_flag("--version", fmt::format("troupe {}", version()));
  add_global_flags(app, c, t);
  add_verbs(app, c, t);
}

}  // namespace troupe
