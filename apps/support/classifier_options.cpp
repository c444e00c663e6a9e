#include "apps/support/classifier_options.hpp"

#include "devices/host/scratch_folder.hpp"
#include "devices/host/synthetic_images.hpp"
#include "runtime/duration.hpp"
#include "schema/version.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <optional>

namespace troupe {

namespace {

[[noreturn]] void usage_error(const std::string& text) {
  fmt::print(stderr, "train_classifier: {}\n", text);
  std::exit(2);
}

// "500": steps; "20s": time.
void set_checkpoints(checkpoint_options& c, const std::string& every) {
  if (c.folder.empty() && (!every.empty() || c.resume || c.rebatch)) usage_error("--checkpoint-every, --resume and --rebatch need --checkpoint DIR");
  if (c.rebatch && !c.resume) usage_error("--rebatch goes with --resume");
  if (!c.folder.empty()) c.folder = std::filesystem::absolute(c.folder).lexically_normal().string();
  if (every.empty()) return;
  const bool is_steps = every.find_first_not_of("0123456789") == std::string::npos;
  if (is_steps) {
    c.every_steps = every.size() > 15 ? 0 : std::strtoull(every.c_str(), nullptr, 10);
    if (c.every_steps == 0) usage_error("--checkpoint-every " + every + ": give a number of steps from 1, or a time (20s)");
    return;
  }
  const auto time = parse_duration(every);
  if (!time) usage_error("--checkpoint-every: " + time.error().text());
  if (*time <= 0) usage_error("--checkpoint-every " + every + ": give a time above 0");
  c.every_ns = *time;
}

constexpr std::pair<std::string_view, learning_rate_schedule::kind> schedule_names[] = {
    {"constant", learning_rate_schedule::kind::constant}, {"step", learning_rate_schedule::kind::step_decay},
    {"exponential", learning_rate_schedule::kind::exponential}, {"cosine", learning_rate_schedule::kind::cosine},
    {"linear", learning_rate_schedule::kind::linear}, {"inverse-square-root", learning_rate_schedule::kind::inverse_square_root}};

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

void set_optimizer(classifier_options& o, learning_rate_schedule& schedule, const optimizer_flags& f, bool has_decay, bool has_minimum) {
  o.optimizer = default_optimizer(f.optimizer);
  if (f.momentum && f.optimizer != "sgd" && f.optimizer != "rmsprop") usage_error("--momentum goes with --optimizer sgd and rmsprop");
  if (f.learning_rate) o.optimizer.learning_rate = *f.learning_rate;
  if (f.momentum) o.optimizer.momentum = *f.momentum;
  if (f.weight_decay) o.optimizer.weight_decay = *f.weight_decay;
  o.optimizer.nesterov = f.nesterov;
  o.optimizer.clip_norm = f.clip_norm;
  if (auto ok = check(o.optimizer); !ok) usage_error(fmt::format("--optimizer {}: {}", f.optimizer, ok.error().message()));
  for (const auto& [name, kind] : schedule_names)
    if (f.schedule == name) schedule.type = kind;
  using enum learning_rate_schedule::kind;
  const bool decays = schedule.type == step_decay || schedule.type == exponential;
  if (has_decay && !decays) usage_error("--decay and --decay-every go with --schedule step and exponential");
  if (!decays) schedule.decay = 1;  // as if it had never been there: a run that goes on must find the same numbers
  if (has_minimum && schedule.type != cosine && schedule.type != linear) usage_error("--minimum goes with --schedule cosine and linear");
}

void make_data(classifier_options& o) {
  auto folder = scratch_folder::make("troupe-images");
  if (!folder) usage_error(folder.error().text());
  o.made_data = std::move(*folder);
  o.data = o.made_data->path();
  if (auto written = write_synthetic_images(o.data); !written) usage_error(written.error().text());
}

}  // namespace

classifier_options classifier_options::parse(int argc, char** argv) {
  classifier_options o;
  std::string update = "sync", fuse = "on", on_failure = "stop", timeout = "5s", every;
  optimizer_flags f;
  o.schedule_.decay = 0.9;
  CLI::App app{"Trains a 784-256-128-10 classifier on images in IDX files, here or over the nodes of a cluster.", "train_classifier"};
  app.footer("Exit codes: 0 fine, 1 the job failed, 2 usage, 3 no cluster found, 4 timed out, 5 denied, 6 no such file.");
  app.add_option("--data", o.data, "Folder with train-images-idx3-ubyte[.gz] and its three siblings, under the same path on every "
                                   "worker's node. Without it: a small set that the program makes itself, which is no benchmark");
  app.add_option("--cluster", o.cluster, "Train over the nodes of this cluster; without it, in this process (with --join: default)");
  app.add_option("--join", o.join, "HOST:PORT of a member of the cluster");
  app.add_option("--token-file", o.token_file, "File with the cluster's token");
  app.add_option("--timeout", timeout, "How long to look for the cluster (20s, 500ms)")->capture_default_str();
  app.add_option("--workers", o.workers, "Logical workers, each on a node of its own")->check(CLI::Range(1, 4096))->capture_default_str();
  app.add_option("--shards", o.shards, "Places that the variables are spread over")->check(CLI::Range(1, 4096))->capture_default_str();
  app.add_option("--update", update, "sync: the mean over all workers; async: each gradient as it comes")
      ->check(CLI::IsMember({"sync", "async"}))->capture_default_str();
  app.add_option("--epochs", o.epochs, "Times that every sample is used")->check(CLI::Range(1, 1'000'000))->capture_default_str();
  app.add_option("--batch", o.batch, "Samples per step of one worker")->check(CLI::Range(1, 1'000'000))->capture_default_str();
  app.add_option("--optimizer", f.optimizer, "What makes values of gradients: sgd, adam, adamw, rmsprop or adagrad")
      ->check(CLI::IsMember({"sgd", "adam", "adamw", "rmsprop", "adagrad"}))->capture_default_str();
  app.add_option("--learning-rate", f.learning_rate, "Without it 0.05 (sgd), 0.001 (adam, adamw) or 0.01 (rmsprop, adagrad)");
  app.add_option("--momentum", f.momentum, "Of sgd and rmsprop; without it 0.9 (sgd) or 0");
  app.add_flag("--nesterov", f.nesterov, "Nesterov's momentum, of sgd");
  app.add_option("--weight-decay", f.weight_decay, "Without it 0.01 (adamw) or 0");
  app.add_option("--clip-norm", f.clip_norm, "Largest norm of each variable's gradient, that of all workers together (0: any)")->capture_default_str();
  app.add_option("--clip-global-norm", o.clip_global_norm, "Largest norm of all gradients of one worker together (0: any)")->capture_default_str();
  app.add_option("--schedule", f.schedule, "Of the learning rate over the steps: constant, step, exponential, cosine, linear (to the end of the training) or "
                                           "inverse-square-root (of the warm-up)")
      ->check(CLI::IsMember({"constant", "step", "exponential", "cosine", "linear", "inverse-square-root"}))->capture_default_str();
  app.add_option("--warmup", o.schedule_.warmup, "Steps in which the learning rate rises to its full value")->capture_default_str();
  app.add_option("--decay", o.schedule_.decay, "Factor of --schedule step (every --decay-every steps) and exponential (every step)")->capture_default_str();
  app.add_option("--decay-every", o.schedule_.every, "Steps between two decays of --schedule step")->capture_default_str();
  app.add_option("--minimum", o.schedule_.minimum, "Factor at the end of --schedule cosine and linear")->capture_default_str();
  app.add_option("--seed", o.seed, "Of initial weights and the order of samples")->capture_default_str();
  app.add_option("--threads", o.threads, "Host streams of this process")->check(CLI::Range(1, 1024))->capture_default_str();
  app.add_option("--credits", o.credits, "Buffers per edge: how far a producer may run ahead")->check(CLI::Range(1, 4096))->capture_default_str();
  app.add_option("--losses", o.losses, "Write step,loss lines to this file");
  app.add_option("--save", o.save, "Write the trained variables to this safetensors file");
  app.add_option("--on-failure", on_failure, "What to do when a node or an actor fails. stop: end; restart: begin again; resume: go on, with what the "
                                             "other nodes hold, else from the newest checkpoint. Then workers may share nodes, and nodes that join get work")
      ->check(CLI::IsMember({"stop", "restart", "resume"}))->capture_default_str();
  app.add_option("--replicas", o.replicas, "With --on-failure resume and --cluster: copies of each variable on other nodes, so that the loss of "
                                           "a node takes no committed step away")->check(CLI::Range(0, 1))->capture_default_str();
  app.add_option("--checkpoint", o.checkpoints.folder, "Save checkpoints in this folder, which every node reaches under the same path");
  app.add_option("--checkpoint-every", every, "How often: steps (500), or time (20s). Without it, at the end only");
  app.add_option("--checkpoint-keep", o.checkpoints.keep, "How many of them stay, the newest ones")->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_flag("--resume", o.checkpoints.resume, "Go on with the newest checkpoint of a job of this name in that folder, if there is one");
  app.add_flag("--rebatch", o.checkpoints.rebatch, "Do so although --workers, --batch or other numbers have changed: its data epoch begins anew");
  app.add_option("--name", o.name, "Name of the job")->capture_default_str();
  app.add_option("--fuse", fuse, "on: element-wise ops run with their producer; off: one actor per op")
      ->check(CLI::IsMember({"on", "off"}))->capture_default_str();
  app.add_flag("--json", o.json, "End with one line of JSON on standard output");
  app.set_version_flag("--version", fmt::format("train_classifier {}", version()));
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {
    std::exit(app.exit(e));
  } catch (const CLI::ParseError& e) {
    usage_error(fmt::format("{} (see --help)", e.what()));
  }
  set_optimizer(o, o.schedule_, f, app.count("--decay") + app.count("--decay-every") > 0, app.count("--minimum") > 0);
  if (auto ok = check(o.schedule_over(schedule_steps_max)); !ok) usage_error("--schedule: " + ok.error().message());
  o.update = update == "sync" ? update_kind::sync : update_kind::async;
  o.fuse = fuse == "on";
  o.on_failure = on_failure == "stop" ? failure_policy::stop : on_failure == "restart" ? failure_policy::restart : failure_policy::resume;
  if (o.replicas > 0 && (o.on_failure != failure_policy::resume || (o.cluster.empty() && o.join.empty())))
    usage_error("--replicas needs --on-failure resume and --cluster: they are for jobs that go on after the loss of a node");
  if (app.count("--checkpoint") > 0 && o.checkpoints.folder.empty()) usage_error("--checkpoint: the name of the folder is empty");
  if (app.count("--checkpoint-every") > 0 && every.empty()) usage_error("--checkpoint-every: give a number of steps from 1, or a time (20s)");
  if (app.count("--checkpoint-keep") > 0 && o.checkpoints.folder.empty()) usage_error("--checkpoint-keep needs --checkpoint DIR");
  if (o.name.empty()) usage_error("--name: the name of the job is empty");
  set_checkpoints(o.checkpoints, every);
  if (app.count("--cluster") > 0 && o.cluster.empty()) usage_error("--cluster: the name of the cluster is empty");
  if (o.cluster.empty() && (!o.join.empty() || !o.token_file.empty())) o.cluster = "default";
  const auto wait = parse_duration(timeout);
  if (!wait) usage_error("--timeout: " + wait.error().text());
  o.timeout = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::nanoseconds(*wait));
  if (o.data.empty()) make_data(o);
  return o;
}

learning_rate_schedule classifier_options::schedule_over(std::uint64_t steps) const {
  auto s = schedule_;
  if (s.type == learning_rate_schedule::kind::cosine || s.type == learning_rate_schedule::kind::linear) s.steps = steps;
  return s;
}

}  // namespace troupe
