// Measures Troupe beside its baselines; a line each.

#include "tools/troupe-bench/measure.hpp"
#include "tools/troupe-bench/peer.hpp"
#include "troupe/schema/version.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdio>

using namespace troupe;

namespace {

constexpr benchmark benchmarks[] = {
    {"hop",
     "a message between op actors of one stream, beside a bare typed CAF message and a plain call",
     bench_hop},
    {"fused",
     "an op of a chain of 1,000 element-wise ops in one actor, beside a loop called by pointer",
     bench_fused},
    {"fan", "a node of 1,000 independent ops over 2 streams, beside one stream", bench_fan},
    {"side_by_side",
     "ops that take long on one thread, placed by the planner, beside the best possible",
     bench_side_by_side},
    {"small_run",
     "a run of a graph of one op, from one and four threads, beside a step; on another process, "
     "beside bare blocking TCP",
     bench_small_run},
    {"own_loop",
     "a training step of a loop of the program's own, beside one of train(); from several threads; "
     "on another process",
     bench_own_loop},
    {"loop", "an iteration of a loop, beside the same ops written out; an op of an untaken branch",
     bench_loop},
    {"pipeline", "four equal stages on 2 streams: how much of the streams' time computes",
     bench_pipeline},
    {"pipelines",
     "ten light stages of a topology fused, on threads and by messages, beside the pipelines of "
     "oneTBB and Taskflow, and bare CAF messages",
     bench_pipelines},
    {"far_pipelines", "a topology over three processes, beside bare TCP through as many",
     bench_far_pipelines},
    {"live",
     "a topology that is changed while it runs: the longest gap; replicas that Troupe chooses",
     bench_live},
    {"passes", "a step of four models without each pass of the compiler, beside all passes",
     bench_passes},
    {"random_graph",
     "random graphs of 1,000 to 100,000 ops: from building to the first step, and a step",
     bench_random_graph},
    {"threads", "a bare typed CAF message under the pinned scheduler, beside CAF's own",
     bench_threads},
    {"step_empty", "a step of an empty graph, beside two bare CAF messages", bench_step},
    {"training_step", "a training step, beside a hand-written loop of the same oneDNN calls",
     bench_training},
    {"timeline", "a training step and a hop while a timeline is recorded, beside the same without",
     bench_timeline},
    {"checkpoint",
     "training with a checkpoint of 1 GB of variables, beside the same without and a plain write",
     bench_checkpoint},
    {"images", "pictures in PNG and JPEG as tensors, beside the same calls of the libraries alone",
     bench_images},
    {"roundtrip", "a round trip between two processes, beside bare blocking TCP", bench_roundtrip},
    {"stream", "tensors between two processes, beside bare TCP over as many buffers", bench_stream},
    {"all_reduce",
     "an all-reduce over 2 and 4 processes, beside bare TCP that brings as many bytes there and back",
     bench_all_reduce},
};

const benchmark* find(const std::string& name) {
  const auto* at = std::find_if(std::begin(benchmarks), std::end(benchmarks),
                                [&](const auto& b) { return b.name == name; });
  return at != std::end(benchmarks) ? at : nullptr;
}

int list() {
  for (const auto& b : benchmarks) fmt::print("{:<14} {}\n", b.name, b.what);
  return 0;
}

int run(std::vector<std::string> names, bench_options options, bool is_json, bool runs_given) {
  if (names.empty())
    for (const auto& b : benchmarks) names.emplace_back(b.name);
  for (const auto& name : names)
    if (find(name) == nullptr) {
      fmt::print(stderr, "troupe-bench: there is no benchmark '{}' (see --list)\n", name);
      return 2;
    }
  if (options.is_quick && !runs_given) options.runs = 1;
  bench_report report(is_json);
  for (const auto& name : names)
    if (auto done = find(name)->run(options, report); !done) {
      fmt::print(stderr, "troupe-bench: {}: {}\n", name, done.error().text());
      return 1;
    }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  if (argc > 2 && std::string_view(argv[1]) == "--peer") return run_peer({argv + 2, argv + argc});
  bench_options options;
  std::vector<std::string> names;
  bool is_json = false, is_list = false;
  CLI::App app{
      "Measures Troupe beside its baselines. Prints a line each: bench, case, median, unit, min .. max, runs, actors, "
      "and the "
      "ratio to a baseline that took turns with it.",
      "troupe-bench"};
  app.footer("Exit codes: 0 fine, 1 a benchmark failed, 2 usage.");
  app.add_option("NAME", names, "Benchmarks to run (all)");
  auto* runs = app.add_option("--runs", options.runs, "Runs of each contender")
                   ->check(CLI::Range(1, 1000))
                   ->capture_default_str();
  app.add_flag("--quick", options.is_quick, "Little work and one run: whether everything works");
  app.add_option("--data", options.data,
                 "Folder of IDX files for training_step; without it, images that are made for it");
  app.add_flag("--tls", options.has_tls, "Protected connections (roundtrip, stream)");
  app.add_flag("--json", is_json, "Each line as JSON");
  app.add_flag("--list", is_list, "Say which benchmarks there are");
  app.set_version_flag("--version", fmt::format("troupe-bench {}", troupe::version()));
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    fmt::print(stderr, "troupe-bench: {} (see --help)\n", e.what());
    return 2;
  }
  return is_list ? list() : run(std::move(names), options, is_json, runs->count() > 0);
}
