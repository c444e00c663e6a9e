// A training whose program calls collectives in each step: collective_calls --data FOLDER
// [--cluster NAME] [--workers N] [--allreduce] ...
//
// Batch normalisation over the batches of all workers (sums, whose gradients are sums), a part of
// it by scattering and gathering, and a row that one worker tells the others, behind a barrier;
// --many N adds so many all-reduces that wait for nothing but their worker.
//
// It ends with a line of JSON: {"weights_hash", "losses", "recoveries", "seconds"}.

#include "troupe/actors/program/output.hpp"
#include "troupe/actors/session/session.hpp"
#include "troupe/devices/files/idx_file.hpp"
#include "troupe/devices/files/safetensors.hpp"
#include "troupe/runtime/graph/collectives.hpp"
#include "troupe/runtime/layers/layers.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

using namespace troupe;

namespace {

struct call_options {
  std::string cluster, data, name = "calls";
  std::uint32_t workers = 2, shards = 1, many = 0;
  std::uint64_t epochs = 1, steps = 0;  // steps of each worker; 0: of all epochs
  bool all_reduce = false, resumes = false;
};

int fail(const error& e) {
  fmt::print(stderr, "collective_calls: {}\n", e.text());
  return static_cast<int>(e.code());
}

value normalised(value x, std::uint32_t workers) {
  auto& g = *x.owner;
  const auto count = all_reduce(element_count(x, {0}));
  const auto centred = x - all_reduce(reduce_sum(x, {0})) / count;
  const auto squares =
      all_gather(reduce_scatter(reduce_sum(centred * centred, {0}), all_workers(workers)),
                 all_workers(workers));
  return centred / sqrt(squares / count + constant(g, 1e-3F));
}

int run(const call_options& o) {
  const auto images = open_idx(o.data, /*test=*/false);
  if (!images) return fail(images.error());
  auto s = session::open({.cluster = o.cluster});
  if (!s) return fail(s.error());
  graph g((*s)->ops());
  const idx_batch_options reading{.batch = 24 / o.workers, .seed = 5, .parts = o.workers};
  const auto batch = idx_batch(g, *images, reading);
  auto x = normalised(dense(batch.images, 60, "hidden"), o.workers);
  const auto told = stop_gradient(broadcast(barrier(reduce_sum(x, {0})), o.workers - 1));
  x = relu(x + constant(g, 1e-3F) * told);
  auto loss = softmax_cross_entropy(dense(x, 10, "out"), batch.labels, batch.scale);
  for (std::uint32_t k = 0; k < o.many; ++k)
    loss = loss + constant(g, 0.0F) *
                      reduce_sum(stop_gradient(all_reduce(told * constant(g, static_cast<float>(k)),
                                                          reduction_kind::max)));

  const auto began = std::chrono::steady_clock::now();
  auto training =
      (*s)->train(g, loss,
                  {.workers = o.workers,
                   .shards = o.shards,
                   .all_reduce = o.all_reduce,
                   .optimizer = {.learning_rate = 0.05},
                   .steps = o.steps != 0 ? o.steps : steps_per_epoch(*images, reading) * o.epochs,
                   .on_failure = o.resumes ? failure_policy::resume : failure_policy::stop,
                   .compile = {.name = o.name}});
  if (!training) return fail(training.error());
  std::uint64_t losses = 0, recoveries = 0;
  std::string hash;
  while (const auto event = (*training)->next()) {
    switch (event->type) {
      case training_event::kind::loss: ++losses; break;
      case training_event::kind::variables: {
        std::vector<named_tensor> tensors;
        for (const auto& [name, value] : event->variables) tensors.push_back({name, value});
        hash = weights_hash(tensors);
        break;
      }
      case training_event::kind::resumed: ++recoveries; [[fallthrough]];
      case training_event::kind::recovering:
      case training_event::kind::note:
        fmt::print(stderr, "collective_calls: {}\n", event->text);
        break;
      case training_event::kind::failed: return fail({error_code::failed, event->text});
      default: break;
    }
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  fmt::print("{{\"weights_hash\":\"{}\",\"losses\":{},\"recoveries\":{},\"seconds\":{:.3f}}}\n",
             hash, losses, recoveries, took.count());
  return hash.empty() ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  call_options o;
  CLI::App app{"Trains with collectives that the program calls.", "collective_calls"};
  app.add_option("--cluster", o.cluster);
  app.add_option("--data", o.data)->required();
  app.add_option("--name", o.name);
  app.add_option("--workers", o.workers)->check(CLI::Range(1, 24));
  app.add_option("--shards", o.shards);
  app.add_option("--many", o.many);
  app.add_option("--epochs", o.epochs);
  app.add_option("--steps", o.steps);
  app.add_flag("--allreduce", o.all_reduce);
  app.add_flag("--resume", o.resumes);
  CLI11_PARSE(app, argc, argv);
  return run(o);
}
