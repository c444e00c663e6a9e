// Comes back to a training that goes on in a cluster: attach_to_training JOB --cluster NAME
//
// A training that was begun with --outlive (training_options::outlives_program) does not end with
// its program: nodes coordinate it then. This program takes it from them, shows how it went and how
// it goes on, and saves what it has learnt at its end. Ctrl-C gives it back to the cluster. It
// needs nothing but the job's name: the graph comes with the job.
//
//   train_classifier --cluster lab --on-failure resume --checkpoint /data/c --outlive --name mnist
//   (the program is killed, or: troupe job detach mnist --cluster lab)
//   attach_to_training mnist --cluster lab --save mnist.safetensors

#include <troupe/program.hpp>
#include <troupe/troupe.hpp>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <csignal>

using namespace troupe;

namespace {

struct options : cluster_program {
  std::string job, save;
  std::uint64_t show_every = 100;
  bool finish = false;
};

volatile std::sig_atomic_t is_interrupted = 0;

struct outcome {
  std::string ended;  // finished, stopped, detached
  std::uint64_t losses = 0, first_step = 0, last_step = 0, recoveries = 0, version = 0;
  float loss = 0;
  std::vector<named_tensor> variables;
};

result<outcome> follow(training& run, const options& o) {
  using kind = training_event::kind;
  outcome told;
  bool is_leaving = false;
  if (o.finish) run.finish();
  while (auto e = run.next(std::chrono::milliseconds(100))) {
    if (is_interrupted != 0 && !std::exchange(is_leaving, true)) run.detach();
    switch (e->type) {
      case kind::loss:
        if (told.losses++ == 0) told.first_step = e->step;
        told.last_step = e->step;
        told.loss = e->loss;
        if (e->step % o.show_every == 0)
          say_error(fmt::format("step {}: loss {:.4f}", e->step, e->loss));
        break;
      case kind::variables:
        told.version = e->step;
        told.variables.clear();
        for (auto& [name, value] : e->variables) told.variables.push_back({name, value});
        break;
      case kind::worker_lost:
      case kind::recovering:
      case kind::resumed:
      case kind::note: say_error(fmt::format("{}: {}", o.program, e->text)); break;
      case kind::finished:
        told.ended = "finished";
        told.recoveries = e->totals.recoveries;
        break;
      case kind::stopped: told.ended = "stopped"; break;
      case kind::suspended: told.ended = "suspended"; break;
      case kind::detached:
        told.ended = "detached";
        say_error(fmt::format("{}: {}", o.program, e->text));
        break;
      case kind::failed: return error(error_code::failed, e->text);
      case kind::started:
      case kind::none: break;
    }
  }
  return told;
}

}  // namespace

int main(int argc, char** argv) {
  troupe::take_writes_as_errors();
  options o;
  o.program = "attach_to_training";
  o.parse(
      argc, argv, "Comes back to a training that goes on in a cluster; Ctrl-C gives it back.",
      [&](CLI::App& app) {
        app.add_option("JOB", o.job, "Name or id, as troupe list jobs shows it")->required();
        app.add_option("--save", o.save, "Write the variables at its end to this safetensors file");
        app.add_flag("--finish", o.finish, "End it in good order, at the step that it has got to");
        app.add_option("--show-every", o.show_every, "Steps between two losses that are shown")
            ->check(CLI::PositiveNumber)
            ->capture_default_str();
      });
  if (!o.save.empty())
    if (auto ok = can_save_safetensors(o.save); !ok) return o.fail(ok.error());
  heed_signal(SIGINT, [](int) { is_interrupted = 1; });
  heed_signal(SIGTERM, [](int) { is_interrupted = 1; });
  auto s = o.open();
  if (!s) return o.fail(s.error());
  auto run = (*s)->attach(o.job, o.timeout);
  if (!run) return o.fail(run.error());
  auto told = follow(**run, o);
  if (!told) return o.fail(told.error());
  if (!o.save.empty() && told->ended == "finished")
    if (auto saved = save_safetensors(o.save, told->variables); !saved)
      return o.fail(saved.error());
  o.tell(fmt::format("job {} {}: {} losses, the last one {:.4f} of step {}", o.job, told->ended,
                     told->losses, told->loss, told->last_step),
         fmt::format(R"({{"job":"{}","ended":"{}","losses":{},"first_step":{},"last_step":{},)"
                     R"("version":{},"recoveries":{},"weights_hash":"{}"}})",
                     o.job, told->ended, told->losses, told->first_step, told->last_step,
                     told->version, told->recoveries,
                     told->variables.empty() ? std::string() : weights_hash(told->variables)));
  return 0;
}
