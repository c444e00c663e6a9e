#include "troupe/actors/program/training_flags.hpp"

#include "troupe/runtime/text/duration.hpp"
#include "troupe/schema/version.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>

namespace troupe {

namespace {

// Of unsigned numbers, of which CLI11 takes -1 as the largest.
const CLI::Validator not_negative(
    [](const std::string& text) { return text.starts_with('-') ? "cannot be negative" : ""; },
    "UINT");

// "500": steps; "20s": time.
void set_checkpoints(training_flags& f, const std::string& every) {
  auto& c = f.checkpoints;
  const auto usage_error = [&](const std::string& text) { f.usage_error(text); };
  if (c.folder.empty() && (!every.empty() || c.resume || c.rebatch))
    usage_error("--checkpoint-every, --resume and --rebatch need --checkpoint DIR");
  if (c.rebatch && !c.resume) usage_error("--rebatch goes with --resume");
  if (!c.folder.empty()) c.folder = std::filesystem::absolute(c.folder).lexically_normal().string();
  if (every.empty()) return;
  const bool is_steps = every.find_first_not_of("0123456789") == std::string::npos;
  if (is_steps) {
    c.every_steps = every.size() > 15 ? 0 : std::strtoull(every.c_str(), nullptr, 10);
    if (c.every_steps == 0)
      usage_error("--checkpoint-every " + every +
                  ": give a number of steps from 1, or a time (20s)");
    return;
  }
  const auto time = parse_duration(every);
  if (!time) usage_error("--checkpoint-every: " + time.error().text());
  if (*time <= 0) usage_error("--checkpoint-every " + every + ": give a time above 0");
  c.every_ns = *time;
}

constexpr std::pair<std::string_view, learning_rate_schedule::kind> schedule_names[] = {
    {"constant", learning_rate_schedule::kind::constant},
    {"step", learning_rate_schedule::kind::step_decay},
    {"exponential", learning_rate_schedule::kind::exponential},
    {"cosine", learning_rate_schedule::kind::cosine},
    {"linear", learning_rate_schedule::kind::linear},
    {"inverse-square-root", learning_rate_schedule::kind::inverse_square_root}};

// Numbers that no flag gives.
optimizer_spec default_optimizer(const std::string& name) {
  if (name == "adam") return adam({});
  if (name == "adamw") return adamw({});
  if (name == "rmsprop") return rmsprop({});
  if (name == "adagrad") return adagrad({});
  return sgd({.learning_rate = 0.05, .momentum = 0.9});
}

// Flags of the optimizer and the schedule; a number that was not given is none.
struct optimizer_flags {
  std::string optimizer = "sgd", schedule = "constant";
  std::optional<double> learning_rate, momentum, weight_decay;
  bool nesterov = false;
  double clip_norm = 0;
};

// Which flags were given.
struct schedule_flags {
  bool has_decay = false, has_decay_every = false, has_minimum = false;
};

void set_optimizer(training_flags& o, learning_rate_schedule& schedule, const optimizer_flags& f,
                   const schedule_flags& given) {
  const auto usage_error = [&](const std::string& text) { o.usage_error(text); };
  o.optimizer = default_optimizer(f.optimizer);
  if (f.momentum && f.optimizer != "sgd" && f.optimizer != "rmsprop")
    usage_error("--momentum goes with --optimizer sgd and rmsprop");
  if (f.learning_rate) o.optimizer.learning_rate = *f.learning_rate;
  if (f.momentum) o.optimizer.momentum = *f.momentum;
  if (f.weight_decay) o.optimizer.weight_decay = *f.weight_decay;
  o.optimizer.nesterov = f.nesterov;
  o.optimizer.clip_norm = f.clip_norm;
  if (auto ok = check(o.optimizer); !ok)
    usage_error(fmt::format("--optimizer {}: {}", f.optimizer, ok.error().message()));
  for (const auto& [name, kind] : schedule_names)
    if (f.schedule == name) schedule.type = kind;
  using enum learning_rate_schedule::kind;
  const bool decays = schedule.type == step_decay || schedule.type == exponential;
  if ((given.has_decay || given.has_decay_every) && !decays)
    usage_error("--decay and --decay-every go with --schedule step and exponential");
  if (schedule.type == step_decay && !given.has_decay_every)
    usage_error("--schedule step needs --decay-every STEPS");
  // As if it had never been there: a run that goes on must find the same numbers.
  if (!decays) schedule.decay = 1;
  if (given.has_minimum && schedule.type != cosine && schedule.type != linear)
    usage_error("--minimum goes with --schedule cosine and linear");
}

}  // namespace

bool is_same_file(const std::string& a, const std::string& b) {
  std::error_code none;
  const auto whole = [&](const std::string& name) {
    return std::filesystem::weakly_canonical(std::filesystem::absolute(name, none), none);
  };
  return !a.empty() && !b.empty() &&
         (whole(a) == whole(b) || std::filesystem::equivalent(a, b, none));
}

void training_flags::usage_error(const std::string& text) const {
  fmt::print(stderr, "{}: {}\n", program, text);
  std::exit(2);
}

void training_flags::parse(int argc, char** argv, const std::string& description,
                           const std::string& default_optimizer,
                           const std::function<void(CLI::App&)>& own) {
  std::string on_nan_name = "ignore",
              update_name = update == update_kind::async ? "async"
                            : all_reduce                 ? "allreduce"
                                                         : "sync",
              fuse_name = "on", scale, policy = "stop", every;
  optimizer_flags f;
  f.optimizer = default_optimizer;
  schedule_.decay = 0.9;
  CLI::App app{description, program};
  app.footer(
      "Ctrl-C and SIGTERM end the training; with --checkpoint they suspend it: a checkpoint is made of "
      "where it is, and --resume goes on from there. A second one ends it at once.\n"
      "Exit codes: 0 fine, 1 the job failed, 2 usage, 3 no cluster found, 4 timed out, 5 denied, 6 no "
      "such file, 130 and 143 after a signal.");
  own(app);
  add_cluster_flags(app, "Train");
  app.add_option("--workers", workers, "Logical workers, each on a node of its own")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--shards", shards, "Places that the variables are spread over")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option(
         "--update", update_name,
         "sync: shards apply the mean over all workers; allreduce: the workers' nodes compute the "
         "same mean among themselves, each with a copy of all variables; async: each gradient is "
         "applied as it arrives")
      ->check(CLI::IsMember({"sync", "allreduce", "async"}))
      ->capture_default_str();
  app.add_option("--optimizer", f.optimizer,
                 "How gradients change the variables: sgd, adam, adamw, rmsprop or adagrad")
      ->check(CLI::IsMember({"sgd", "adam", "adamw", "rmsprop", "adagrad"}))
      ->capture_default_str();
  app.add_option("--learning-rate", f.learning_rate,
                 "Default: 0.05 (sgd), 0.001 (adam, adamw) or 0.01 (rmsprop, adagrad)");
  app.add_option("--momentum", f.momentum, "For sgd and rmsprop; default: 0.9 (sgd) or 0");
  app.add_flag("--nesterov", f.nesterov, "Use Nesterov's momentum, with sgd");
  app.add_option("--weight-decay", f.weight_decay, "Default: 0.01 (adamw) or 0");
  app.add_option("--clip-norm", f.clip_norm,
                 "Largest norm of each variable's gradient, summed over all workers (0: no limit)")
      ->capture_default_str();
  app.add_option("--clip-global-norm", clip_global_norm,
                 "Largest norm of all gradients of one worker together (0: no limit)")
      ->capture_default_str();
  app.add_option(
         "--schedule", f.schedule,
         "How the learning rate changes over the steps: constant, step, exponential, cosine, "
         "linear (to the end of the training) or inverse-square-root (of the warm-up)")
      ->check(CLI::IsMember(
          {"constant", "step", "exponential", "cosine", "linear", "inverse-square-root"}))
      ->capture_default_str();
  app.add_option("--warmup", schedule_.warmup,
                 "Steps in which the learning rate rises to its full value")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 48))
      ->capture_default_str();
  app.add_option(
         "--decay", schedule_.decay,
         "Factor of --schedule step (every --decay-every steps) and exponential (every step)")
      ->capture_default_str();
  app.add_option("--decay-every", schedule_.every, "Steps between two decays, for --schedule step")
      ->capture_default_str();
  app.add_option("--minimum", schedule_.minimum,
                 "Factor at the end of --schedule cosine and linear")
      ->capture_default_str();
  app.add_option("--seed", seed, "Seed of the initial weights and the order of samples")
      ->check(not_negative)
      ->capture_default_str();
  app.add_option("--threads", threads,
                 "Threads of this process that run ops (its streams); they share large ops")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  devices.add_to(
      app,
      "of each worker's node. Readers, branches and loops stay on the host; so do the variables of "
      "a job that recovers or replicates them, writes checkpoints, pushes rows or scales its loss");
  app.add_option("--credits", credits, "Buffers per edge: how far a producer may run ahead")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--losses", losses, "Write step,loss lines to this file");
  app.add_option("--tensorboard", tensorboard,
                 "Write losses, steps per second, recoveries and the result to an event file in "
                 "this folder, for TensorBoard (tensorboard --logdir)");
  app.add_option("--record", record,
                 "Write the numbers of each step (loss, learning rate, samples per second, "
                 "recoveries, wall time) and the result to this file for other tools: FILE.jsonl, "
                 "FILE.csv, or tensorboard:DIR for an event file in that folder. A file that is "
                 "there goes on, without the steps that are made again");
  app.add_option("--save", save, "Write the trained variables to this safetensors file");
  app.add_option("--save-graph", save_graph,
                 "Write the graph to this file, for `troupe plan`, and end without training");
  app.add_option(
         "--on-failure", policy,
         "What to do when a node or an actor fails. stop: end; restart: begin again; resume: go "
         "on, with the variables that the other nodes hold, else from the newest checkpoint. With "
         "restart and resume, workers may share nodes, and nodes that join get work")
      ->check(CLI::IsMember({"stop", "restart", "resume"}))
      ->capture_default_str();
  app.add_flag("--outlive", outlive,
               "With --on-failure resume, --cluster and --checkpoint: the job goes on when this "
               "program dies, stands still or is detached (troupe job detach NAME)");
  app.add_option(
         "--replicas", replicas,
         "With --on-failure resume and --cluster: copies of each variable on other nodes, so that the loss of "
         "a node takes no committed step away")
      ->check(CLI::Range(0, 1))
      ->capture_default_str();
  app.add_option("--checkpoint", checkpoints.folder,
                 "Save checkpoints in this folder, which every node reaches under the same path");
  app.add_option("--checkpoint-every", every,
                 "How often to save: every so many steps (500), or after a time (20s). Without it, "
                 "only at the end");
  app.add_option("--checkpoint-keep", checkpoints.keep,
                 "How many checkpoints to keep, the newest "
                 "ones")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_flag(
      "--resume", checkpoints.resume,
      "Go on with the newest checkpoint of a job of this name in that folder, if there is one");
  app.add_flag(
      "--rebatch", checkpoints.rebatch,
      "Resume even if --workers, --batch or other numbers have changed: the data epoch of the "
      "checkpoint begins anew");
  app.add_option("--name", name, "Name of the job")->capture_default_str();
  app.add_option("--fuse", fuse_name,
                 "on: element-wise ops run with their producer; off: one actor per op")
      ->check(CLI::IsMember({"on", "off"}))
      ->capture_default_str();
  app.add_flag(
      "--fast", fast,
      "Add up large sums in parts: results differ in the last bits from those without --fast, but "
      "do not depend on the number of threads or nodes");
  app.add_option(
      "--loss-scale", scale,
      "Factor that multiplies the loss before gradients are computed, and divides them afterwards: "
      "a number, or dynamic: it starts at 65536, is halved (and the step left out) when gradients "
      "are not finite, and is doubled after 2000 good steps in a row. Default: dynamic with "
      "--precision f16, else none");
  app.add_option(
         "--on-nan", on_nan_name,
         "What to do when an op makes a NaN or an infinity. ignore: do not check; stop: fail the "
         "job; warn: name the first op that makes one, and go on; skip: name it, and leave out "
         "that worker's gradients of the step")
      ->check(CLI::IsMember({"ignore", "stop", "warn", "skip"}))
      ->capture_default_str();
  app.add_option(
         "--without", without,
         "A compiler pass to leave out; results stay the same: fold, simplify, share, "
         "share_memory, spread, pack_pushes, order_reads, order_pushes or device_collectives")
      ->check(CLI::IsMember({"fold", "simplify", "share", "share_memory", "spread", "pack_pushes",
                             "order_reads", "order_pushes", "device_collectives"}));
  app.add_flag("--json", json, "End with one line of JSON on standard output");
  app.set_version_flag("--version", fmt::format("{} {}", program, version()));
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {
    std::exit(app.exit(e));
  } catch (const CLI::ParseError& e) {
    usage_error(fmt::format("{} (see --help)", e.what()));
  }
  set_optimizer(
      *this, schedule_, f,
      {app.count("--decay") > 0, app.count("--decay-every") > 0, app.count("--minimum") > 0});
  if (auto ok = check(schedule_over(schedule_steps_max)); !ok)
    usage_error("--schedule: " + ok.error().message());
  update = update_name == "async" ? update_kind::async : update_kind::sync;
  all_reduce = update_name == "allreduce";
  if (all_reduce && replicas > 0)
    usage_error(
        "--update allreduce: every node with workers has a copy of each variable; leave --replicas out");
  if (auto ok = devices.read(); !ok) usage_error(ok.error().message());
  if (app.count("--loss-scale") > 0) {
    auto parsed = parse_loss_scale(scale);
    if (!parsed) usage_error("--loss-scale: " + parsed.error().message());
    loss_scale = *parsed;
  }
  const bool is_scaled = loss_scale_of(devices.precision, loss_scale).has_value();
  if (is_scaled && on_nan_name == "stop")
    usage_error(
        "--on-nan stop fails at the first number that is not finite, but a loss scale (--precision "
        "f16 has one) meets some and goes on: use ignore, warn or skip");
  if (all_reduce && on_nan_name == "skip" && !is_scaled)
    usage_error(
        "--on-nan skip leaves gradients out, which --update allreduce cannot: use --update sync, or stop or warn");
  fuse = fuse_name == "on";
  on_nan = *nan_policy_named(on_nan_name);
  on_failure = policy == "stop"      ? failure_policy::stop
               : policy == "restart" ? failure_policy::restart
                                     : failure_policy::resume;
  if (replicas > 0 && (on_failure != failure_policy::resume || (cluster.empty() && join.empty())))
    usage_error(
        "--replicas needs --on-failure resume and --cluster: they are for jobs that go on after the loss of a node");
  if (outlive && (on_failure != failure_policy::resume || (cluster.empty() && join.empty()) ||
                  checkpoints.folder.empty()))
    usage_error(
        "--outlive needs --on-failure resume, --cluster and --checkpoint DIR: nodes go on with the job, and what "
        "it has learnt at its end is in the last checkpoint");
  if (app.count("--checkpoint") > 0 && checkpoints.folder.empty())
    usage_error("--checkpoint: the name of the folder is empty");
  if (app.count("--checkpoint-every") > 0 && every.empty())
    usage_error("--checkpoint-every: give a number of steps from 1, or a time (20s)");
  if (app.count("--checkpoint-keep") > 0 && checkpoints.folder.empty())
    usage_error("--checkpoint-keep needs --checkpoint DIR");
  if (!losses.empty() && is_same_file(losses, save))
    usage_error("--losses and --save name the same file");
  set_record(app.count("--record") > 0);
  if (app.count("--tensorboard") > 0 && tensorboard.empty())
    usage_error("--tensorboard: the name of the folder is empty");
  if (app.count("--save-graph") > 0 && save_graph.empty())
    usage_error("--save-graph: the name of the file is empty");
  if (!save_graph.empty() && (!losses.empty() || !save.empty()))
    usage_error(
        "--save-graph trains nothing, so there is nothing to write for --losses and "
        "--save");
  if (!save_graph.empty() && !tensorboard.empty())
    usage_error("--save-graph trains nothing, so there is nothing to write for --tensorboard");
  if (!save_graph.empty() && !record.empty())
    usage_error("--save-graph trains nothing, so there is nothing to write for --record");
  if (name.empty()) usage_error("--name: the name of the job is empty");
  set_checkpoints(*this, every);
  if (auto read = read_cluster_flags(app); !read) usage_error(read.error().text());
}

void training_flags::set_record(bool is_given) {
  constexpr std::string_view of_tensorboard = "tensorboard:";
  if (is_given && record.empty()) usage_error("--record: the name of the file is empty");
  if (record.starts_with(of_tensorboard)) {
    if (!tensorboard.empty())
      usage_error("--record tensorboard:DIR and --tensorboard name a folder each: give one");
    tensorboard = std::exchange(record, {}).substr(of_tensorboard.size());
    if (tensorboard.empty())
      usage_error("--record tensorboard:DIR: the name of the folder is empty");
  }
  if (!record.empty() && !record.ends_with(".jsonl") && !record.ends_with(".csv"))
    usage_error(fmt::format("--record: '{}' is neither FILE.jsonl nor FILE.csv nor tensorboard:DIR",
                            record));
  if (!record.empty() && (is_same_file(record, losses) || is_same_file(record, save)))
    usage_error("--record and --losses or --save name the same file");
}

learning_rate_schedule training_flags::schedule_over(std::uint64_t steps) const {
  auto s = schedule_;
  if (s.type == learning_rate_schedule::kind::cosine ||
      s.type == learning_rate_schedule::kind::linear)
    s.steps = steps;
  return s;
}

training_options training_flags::training(std::uint64_t steps) const {
  return {.workers = workers,
          .shards = shards,
          .update = update,
          .all_reduce = all_reduce,
          .optimizer = optimizer,
          .schedule = schedule_over(steps),
          .clip_global_norm = clip_global_norm,
          .seed = seed,
          .steps = steps,
          .on_failure = on_failure,
          .outlives_program = outlive,
          .replicas = replicas,
          .checkpoints = checkpoints,
          .compile = compiling()};
}

compile_options training_flags::compiling() const {
  const auto has = [&](std::string_view pass) {
    return std::ranges::find(without, pass) == without.end();
  };
  compile_options o{.name = name,
                    .fuse = fuse,
                    .credits = credits,
                    .sparse_pushes = has("pack_pushes"),
                    .fold = has("fold"),
                    .simplify = has("simplify"),
                    .share = has("share"),
                    .share_memory = has("share_memory"),
                    .spread = has("spread"),
                    .order_reads = has("order_reads"),
                    .order_pushes = has("order_pushes"),
                    .device_collectives = has("device_collectives"),
                    .on_nan = on_nan,
                    .fast = fast,
                    .loss_scale = loss_scale};
  devices.set(o);
  return o;
}

session_options training_flags::session(std::function<bool()> is_cancelled) const {
  if (!save_graph.empty()) return {};  // nothing is asked of a cluster
  session_options o{.threads = threads, .is_cancelled = std::move(is_cancelled)};
  set_cluster(o);
  devices.set(o);
  return o;
}

}  // namespace troupe
