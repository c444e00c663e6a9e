// troupe-sim: whole clusters in one thread, with faults, by seed.

#include "tools/troupe-sim/scenario.hpp"
#include "troupe/runtime/text/duration.hpp"
#include "troupe/runtime/text/json_line.hpp"
#include "troupe/schema/version.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <limits>
#include <set>
#include <string>

using namespace troupe;

namespace {

struct arguments {
  std::uint64_t first = 1, last = 100, steps = 0;
  std::uint32_t nodes = 0, gpus = 0;
  std::string faults = "all", trace, plant;
  bool is_single = false, draws_optimizer = false, all_reduce = false, outlives = false,
       is_mixed = false, collectives = false, json = false;
};

int fail(const error& e) {
  fmt::print(stderr, "troupe-sim: {}\n", e.text());
  return static_cast<int>(e.code());
}

// "A..B".
result<std::pair<std::uint64_t, std::uint64_t>> parse_seeds(const std::string& text) {
  const auto dots = text.find("..");
  const auto is_number = [](const std::string& t) {
    return !t.empty() && t.size() < 19 && t.find_first_not_of("0123456789") == std::string::npos;
  };
  if (dots == std::string::npos || !is_number(text.substr(0, dots)) ||
      !is_number(text.substr(dots + 2)))
    return error(error_code::usage, fmt::format("--seeds {}: give a range like 1..100", text));
  const std::pair<std::uint64_t, std::uint64_t> range(std::stoull(text.substr(0, dots)),
                                                      std::stoull(text.substr(dots + 2)));
  if (range.first > range.second)
    return error(error_code::usage, fmt::format("--seeds {}: the range is empty", text));
  return range;
}

struct totals {
  std::uint64_t runs = 0, messages = 0, recoveries = 0, resumed = 0, checkpoints = 0, faults = 0,
                violations = 0;
  std::int64_t virtual_ns = 0;
  std::uint64_t hash = 0;
  std::set<std::uint64_t> traces;

  void add(const sim_verdict& v) {
    ++runs;
    messages += v.messages;
    recoveries += v.recoveries;
    resumed += v.resumed_from_disk;
    checkpoints += v.checkpoints;
    faults += v.faults;
    virtual_ns += v.virtual_ns;
    violations += !v.violation.empty();
    hash = hash * 0x9e3779b97f4a7c15U ^ v.trace_hash;
    traces.insert(v.trace_hash);
  }
};

void describe(std::FILE* to, const sim_scenario& sc) {
  fmt::print(
      to, "  {} nodes{}, {} workers, {} shards, {}, {} steps, --on-failure {}{}{}{}\n", sc.nodes,
      sc.ps_nodes > 0 ? " (one ps)" : "", sc.shape.workers, sc.shape.shards,
      sc.shape.update == update_kind::sync ? "sync" : "async", sc.shape.steps,
      to_string(sc.shape.on_failure), sc.shape.has_replicas ? ", replicas" : "",
      sc.shape.checkpoints.folder.empty()
          ? ""
          : fmt::format(", a checkpoint every {} steps", sc.shape.checkpoints.every_steps),
      sc.shape.optimizer == 0
          ? ""
          : fmt::format(", optimizer {} ({})", sc.shape.optimizer,
                        sim_optimizer_of(sc.shape.optimizer, sc.shape.update).optimizer.type));
  for (const auto& f : sc.faults) fmt::print(to, "  {}\n", to_string(f));
}

// What else than the seed draws a scenario.
std::string flags_of(const arguments& o) {
  return (o.faults == "all" ? "" : " --faults " + o.faults) +
         (o.nodes == 0 ? "" : fmt::format(" --nodes {}", o.nodes)) +
         (o.steps == 0 ? "" : fmt::format(" --steps {}", o.steps)) +
         (o.draws_optimizer ? " --optimizers" : "") + (o.all_reduce ? " --all-reduce" : "") +
         (o.outlives ? " --outlive" : "") + (o.is_mixed ? " --mixed-precision" : "") +
         (o.collectives ? " --collectives" : "") +
         (o.gpus == 0 ? "" : fmt::format(" --gpus {}", o.gpus));
}

// The failing seed with the shortest schedule that still fails.
void explain(simulator& sim, const sim_scenario& sc, const sim_verdict& v, const arguments& o) {
  fmt::print("seed {}: {}\n", sc.seed, v.violation);
  const auto shortest = sim.shrink(sc);
  const auto again = sim.run(shortest);
  fmt::print("  the shortest schedule found, of {} faults (of {}), ends with: {}\n",
             shortest.faults.size(), sc.faults.size(), again.violation);
  describe(stdout, shortest);
  for (const auto& line : again.story) fmt::print("    {}\n", line);
  fmt::print("  again: troupe-sim --seed {}{}\n", sc.seed, flags_of(o));
  std::fflush(stdout);
}

// Which seed finds each planted bug, and by what. True: every one was found.
bool hunt(simulator& sim, const arguments& o, const sim_limits& limits,
          nlohmann::ordered_json& out) {
  bool is_every_one_found = true;
  for (const auto& bug : planted_bug_table) {
    if (o.plant != "all" && o.plant != bug.name) continue;
    planted_bugs bugs;
    bugs.*bug.flag = true;
    sim_verdict found;
    auto seed = o.first;
    for (; seed <= o.last; ++seed)
      if (found = sim.run(draw_scenario(seed, limits), &bugs); !found.violation.empty()) break;
    const bool is_found = !found.violation.empty();
    is_every_one_found = is_every_one_found && is_found;
    out.push_back({{"bug", bug.name},
                   {"seed", is_found ? nlohmann::ordered_json(seed) : nullptr},
                   {"violation", found.violation}});
    if (o.json) continue;
    fmt::print("{:24} {:>8}  {}\n{:33}  {}\n", bug.name,
               is_found ? fmt::format("{}", seed) : "not found", bug.what, "",
               is_found ? found.violation : "");
    std::fflush(stdout);
  }
  return is_every_one_found;
}

int run(const arguments& o) {
  auto kinds = parse_faults(o.faults);
  if (!kinds) return fail(kinds.error());
  auto made = simulator::make();
  if (!made) return fail(made.error());
  auto& sim = **made;
  const sim_limits limits{.nodes = o.nodes,
                          .steps = o.steps,
                          .faults = *kinds,
                          .draws_optimizer = o.draws_optimizer,
                          .all_reduce = o.all_reduce,
                          .is_mixed = o.is_mixed,
                          .calls_collectives = o.collectives,
                          .gpus = o.gpus,
                          .outlives = o.outlives};
  if (!o.plant.empty()) {
    auto found = nlohmann::ordered_json::array();
    const bool is_every_one_found = hunt(sim, o, limits, found);
    if (o.json) fmt::print("{}\n", json_line(found));
    return is_every_one_found ? 0 : 1;
  }
  std::ofstream trace;
  if (!o.trace.empty()) {
    trace.open(o.trace);
    if (!trace) return fail(error(error_code::usage, "--trace: cannot write " + o.trace));
  }
  totals all;
  const auto began = std::chrono::steady_clock::now();
  auto shown = began;
  const bool is_terminal = ::isatty(STDERR_FILENO) == 1;
  for (auto seed = o.first; seed <= o.last; ++seed) {
    const auto sc = draw_scenario(seed, limits);
    const auto v = sim.run(sc);
    all.add(v);
    if (trace.is_open()) {
      trace << fmt::format(
          "seed {} hash {:016x} messages {} virtual_seconds {:.3f} recoveries {}{}\n", seed,
          v.trace_hash, v.messages, double(v.virtual_ns) * 1e-9, v.recoveries,
          v.violation.empty() ? "" : " violation: " + v.violation);
      if (o.is_single)
        for (const auto& line : v.story) trace << "  " << line << "\n";
    }
    if (o.is_single && !o.json) {
      describe(stdout, sc);
      for (const auto& line : v.story) fmt::print("    {}\n", line);
    }
    if (!v.violation.empty() && !o.json) explain(sim, sc, v, o);
    const auto now = std::chrono::steady_clock::now();
    if (seed < o.last &&
        now - shown < (is_terminal ? std::chrono::milliseconds(200) : std::chrono::seconds(10)))
      continue;
    shown = now;
    const std::chrono::duration<double> took = now - began;
    fmt::print(stderr, "{}seed {} of {}..{}: {} violations, {:.1f} virtual hours, {}{}",
               is_terminal ? "\r" : "", seed, o.first, o.last, all.violations,
               double(all.virtual_ns) / 3.6e12, format_seconds(took.count()),
               is_terminal ? "\033[K" : "\n");
  }
  if (is_terminal) fmt::print(stderr, "\n");
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  if (o.json) {
    nlohmann::ordered_json j;
    j["seeds"] = all.runs;
    j["violations"] = all.violations;
    j["distinct_traces"] = all.traces.size();
    j["hash"] = fmt::format("{:016x}", all.hash);
    j["messages"] = all.messages;
    j["faults"] = all.faults;
    j["recoveries"] = all.recoveries;
    j["resumed_programs"] = all.resumed;
    j["checkpoints"] = all.checkpoints;
    j["virtual_seconds"] = double(all.virtual_ns) * 1e-9;
    j["seconds"] = took.count();
    fmt::print("{}\n", json_line(j));
  } else {
    fmt::print(
        "{} seeds, {} violations, {} distinct traces (hash {:016x}): {} faults, {} recoveries, {} programs resumed, {} checkpoints, {} messages, "
        "{:.2f} virtual hours in {}\n",
        all.runs, all.violations, all.traces.size(), all.hash, all.faults, all.recoveries,
        all.resumed, all.checkpoints, all.messages, double(all.virtual_ns) / 3.6e12,
        format_seconds(took.count()));
  }
  if (trace.is_open() && (trace.close(), !trace))
    return fail(error(error_code::failed, "--trace: cannot write all of " + o.trace));
  return all.violations == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  arguments o;
  std::string seeds;
  std::uint64_t seed = 0;
  CLI::App app{
      "Runs whole clusters in one thread, with faults drawn from a seed, and checks that "
      "invariants hold.",
      "troupe-sim"};
  app.footer(
      "Same seed, same history: a seed that fails is printed with the shortest schedule of faults that still fails, and fails again.\n"
      "Exit codes: 0 all held (--plant: was found), 1 something did not, 2 usage.");
  auto* one =
      app.add_option("--seed", seed, "Run this seed alone and print its history")
          ->check(CLI::Range(std::uint64_t{0}, std::numeric_limits<std::uint64_t>::max() - 1));
  app.add_option("--seeds", seeds, "Run these, as A..B (without it, 1..100)")->excludes(one);
  app.add_option("--nodes", o.nodes, "Nodes besides the client (without it, 3 to 7, drawn)")
      ->check(CLI::Range(1, 64));
  app.add_option("--faults", o.faults, "Which faults may happen: all, none, or a list with commas")
      ->capture_default_str();
  app.add_option("--steps", o.steps, "Steps of the job (without it, 4 to 15, drawn)")
      ->check(CLI::Range(1, 100000));
  app.add_flag(
      "--all-reduce", o.all_reduce,
      "Synchronous jobs exchange their gradients by all-reduce, without replicas; nothing else changes");
  app.add_flag(
      "--outlive", o.outlives,
      "Jobs that resume after failures write checkpoints and outlive their programs, which "
      "attach to them again; nothing else changes");
  app.add_flag(
      "--mixed-precision", o.is_mixed,
      "Jobs compute in f16, with a scale of the loss that leaves out steps; nothing else changes");
  app.add_flag("--collectives", o.collectives,
               "Programs of synchronous jobs call collectives in each step; nothing else changes");
  app.add_option(
         "--gpus", o.gpus,
         "Each node has so many asynchronous host devices, on which jobs compute; nothing else changes")
      ->check(CLI::Range(0, 2));
  app.add_flag(
      "--optimizers", o.draws_optimizer,
      "Draw optimizer, learning-rate schedule and clipping, too (without it: SGD); nothing else changes");
  app.add_option("--trace", o.trace, "Write the hash of every history to this file");
  app.add_option("--plant", o.plant,
                 "Plant this bug (all: one after the other) and tell which seed finds it first")
      ->check([](const std::string& name) {
        std::string names = "all";
        for (const auto& b : planted_bug_table) names += ", " + std::string(b.name);
        const bool is_known =
            name == "all" || std::any_of(planted_bug_table.begin(), planted_bug_table.end(),
                                         [&](const auto& b) { return b.name == name; });
        return is_known ? std::string()
                        : fmt::format("there is no bug '{}'; there are: {}", name, names);
      });
  app.add_flag("--json", o.json, "End with one line of JSON on standard output");
  app.set_version_flag("--version", fmt::format("troupe-sim {}", version()));
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    return fail(error(error_code::usage, fmt::format("{} (see --help)", e.what())));
  }
  if (one->count() > 0) {
    o.first = o.last = seed;
    o.is_single = true;
  }
  if (!seeds.empty()) {
    const auto range = parse_seeds(seeds);
    if (!range) return fail(range.error());
    o.first = range->first, o.last = range->second;
  }
  return run(o);
}
