// A training whose variables count how often each sample was used: sample_ledger --cluster NAME
// --data FOLDER [--epochs N] [--hold STEP:FILE] ...
//
// Image i of the folder is 1 at pixel i and 0 elsewhere, and there are as many images as pixels.
// The loss is sum(images @ w), whose gradient for row i of w is the number of times that image i
// was read; with a learning rate of 1, no momentum and zeros to begin with, row i is minus the
// number of committed uses of image i, exactly. What a step that was lost and made again adds, or
// what is left out when work moves between nodes, shows as a wrong number, whatever happened to the
// values on the way. There are two such variables, so that two shards have one; more columns make
// them larger and steps longer, so that nodes can come and go within an epoch.
//
// With --hold it takes no losses from that step on until the file is there, and so the training,
// which is never far ahead of its program, cannot end before what is to happen meanwhile has
// happened.
//
// It ends with a line of JSON: {"samples", "epochs", "used_otherwise"}; 1 if a sample was not used
// as often as there were epochs.

#include "troupe/actors/program/output.hpp"
#include "troupe/actors/session/session.hpp"
#include "troupe/devices/files/idx_file.hpp"
#include "troupe/runtime/text/duration.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

using namespace troupe;

namespace {

struct held_step {
  std::uint64_t step = 0;
  std::string until;  // this file is there
};

struct ledger_options {
  std::vector<held_step> holds;
  std::string cluster, data, losses, name = "ledger";
  std::string lease = "1s";
  std::uint32_t workers = 2, shards = 2, replicas = 0;
  std::uint64_t epochs = 1;
  std::int64_t columns = 1;
};

int fail(const error& e) {
  fmt::print(stderr, "sample_ledger: {}\n", e.text());
  return static_cast<int>(e.code());
}

// Samples that the variables do not count `epochs` times, and a line for the first of each
// variable.
std::uint64_t used_otherwise(const training_event& observed, std::uint64_t epochs) {
  std::uint64_t wrong = 0;
  for (const auto& [name, counts] : observed.variables) {
    std::uint64_t here = 0;
    for (std::int64_t i = 0; i < counts.elements(); ++i) {
      const auto uses = -counts.data<float>()[i];
      if (uses == static_cast<float>(epochs)) continue;
      if (here++ == 0)
        fmt::print(stderr, "sample_ledger: {} counts {} uses of sample {}\n", name, uses,
                   i / counts.spec().shape.size(1));
    }
    wrong += here;
  }
  return wrong;
}

int run(const ledger_options& o) {
  const auto images = open_idx(o.data, /*test=*/false);
  if (!images) return fail(images.error());
  const auto pixels = images->rows * images->columns;
  if (pixels != images->samples)
    return fail(
        {error_code::usage, fmt::format("{} images of {} pixels: expected as many as pixels",
                                        images->samples, pixels)});
  std::FILE* losses = o.losses.empty() ? nullptr : std::fopen(o.losses.c_str(), "w");
  if (losses == nullptr && !o.losses.empty())
    return fail({error_code::usage, "--losses: cannot write " + o.losses});

  const auto lease = parse_duration(o.lease);
  if (!lease) return fail(lease.error());
  auto s = session::open({.cluster = o.cluster,
                          .lease = std::chrono::duration_cast<std::chrono::milliseconds>(
                              std::chrono::nanoseconds(*lease))});
  if (!s) return fail(s.error());
  graph g((*s)->ops());
  const idx_batch_options reading{.batch = 1, .parts = o.workers};
  const auto batch = idx_batch(g, *images, reading);
  const tensor_spec counts{dtype::f32, shape{pixels, o.columns}};
  const auto loss = add(reduce_sum(matmul(batch.images, variable(g, counts, {}, "uses_1"))),
                        reduce_sum(matmul(batch.images, variable(g, counts, {}, "uses_2"))));
  const auto steps = steps_per_epoch(*images, reading);
  auto training = (*s)->train(g, loss,
                              {.workers = o.workers,
                               .shards = o.shards,
                               .optimizer = {.learning_rate = 1, .momentum = 0},
                               .steps = steps * o.epochs,
                               .on_failure = failure_policy::resume,
                               .replicas = o.replicas,
                               .compile = {.name = o.name}});
  if (!training) return fail(training.error());

  std::uint64_t wrong = 0;
  bool is_counted = false;
  auto hold = o.holds.begin();
  while (const auto event = (*training)->next()) {
    switch (event->type) {
      case training_event::kind::loss:
        if (losses != nullptr &&
            !write_text(losses, fmt::format("{},{:.9g}\n", event->step, event->loss)))
          return fail({error_code::failed, "--losses cannot be written"});
        for (; hold != o.holds.end() && event->step >= hold->step; ++hold)
          while (!std::filesystem::exists(hold->until))
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        break;
      case training_event::kind::variables:
        is_counted = true;
        wrong += used_otherwise(*event, o.epochs);
        break;
      case training_event::kind::recovering:
      case training_event::kind::resumed:
      case training_event::kind::note:
        fmt::print(stderr, "sample_ledger: {}\n", event->text);
        break;
      case training_event::kind::failed: return fail({error_code::failed, event->text});
      default: break;
    }
  }
  fmt::print("{{\"samples\":{},\"epochs\":{},\"used_otherwise\":{}}}\n", images->samples, o.epochs,
             wrong);
  return is_counted && wrong == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  ledger_options o;
  CLI::App app{"Counts how often each sample of a made set of images is used in a training.",
               "sample_ledger"};
  app.add_option("--cluster", o.cluster);
  app.add_option("--lease", o.lease);
  app.add_option("--data", o.data)->required();
  app.add_option("--losses", o.losses);
  app.add_option("--name", o.name);
  app.add_option("--workers", o.workers);
  app.add_option("--shards", o.shards);
  app.add_option("--replicas", o.replicas);
  app.add_option("--epochs", o.epochs);
  app.add_option("--columns", o.columns);
  std::vector<std::string> holds;
  app.add_option("--hold", holds);
  CLI11_PARSE(app, argc, argv);
  for (const auto& h : holds) o.holds.push_back({std::stoull(h), h.substr(h.find(':') + 1)});
  return run(o);
}
