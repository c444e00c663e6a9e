#pragma once
// A topology that runs: what flow.hpp describes, on threads of this process, each stage's group an
// actor (actors/flow/director.hpp).
//
// TO-1  run() ends when every source has no more items and all of them have gone their way, when a
//       stage fails and its policy does not bear that, or after stop(), in good order.
// TO-2  Edges together hold `budget_bytes`, however fast the sources are (but each may hold one
//       item). What stages keep by themselves is theirs.
// With `cluster`, stages with `.on` run on its nodes, which need the stage libraries that they
// stand in (use()): it ends with a line for each that lacks it. Nodes that are what `.on` asks for
// are waited for, as long as cluster.timeout says. What a node had when it was lost is made again,
// or ends the topology with a line that names it (stage_options::on).
//
// Threading: described and run by one thread; stop() from any, a handler of signals too.
// Ownership: it owns its stages, threads and actors; flows are names of what it owns, and it stays
// where it is.
// Errors: usage: a mistake in the description, with the user's line; failed: a stage, in one line
// that says which one, at which item, and why.

#include "troupe/actors/session/session.hpp"
#include "troupe/runtime/flow/drain.hpp"
#include "troupe/runtime/flow/flow.hpp"
#include "troupe/runtime/flow/stage_library.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace troupe {

struct topology_options {
  std::string name{};
  std::uint32_t threads = 0;  // that compute; 0: as many as there are cores
  std::uint64_t budget_bytes = flow_graph::default_budget_bytes;
  // What stands on one thread passes items on by calls. Without it each stage has messages of its
  // own, on threads in turn, and stays there: to see what the calls are worth.
  bool fuse = true;
  bool is_quiet = false;       // run() says nothing of its progress
  bool explains_only = false;  // run() prints explain(), and runs nothing
  // Where `cluster` names one, the process is a member of it while the topology runs: tools see its
  // stages (`troupe list actors`, `troupe why`), and `.on` names nodes of it.
  session_options cluster{};
  // A session of the program in the place of one that is opened by `cluster`, of which the timeout
  // still counts; it outlives the topology. Where it is alone, stages run in the program.
  session* member = nullptr;
};

// How one stage fares, of what was measured since the last look.
struct stage_report {
  std::string name;
  std::uint64_t items_in = 0, items_out = 0, skipped = 0, dropped = 0;
  double items_per_second = 0;
  // Parts of its time, together 1: computing, waiting for items, waiting for room behind it.
  double busy = 0, starved = 0, blocked = 0;
  std::int64_t latency_p50_ns = 0, latency_p99_ns = 0, latency_worst_ns = 0;  // of an end
};
// Percentages and rates of all stages, as a table. What is busiest bounds the others.
std::string to_text(const std::vector<stage_report>& stages);

class topology : public flow_graph {
 public:
  explicit topology(topology_options options = {});
  // With the flags of a program: --threads, --memory, --explain, --quiet, --name, --help, and those
  // of a cluster: --cluster, --join, --lease, --timeout, --token-file. Ends the program where they
  // are wrong. (Defined in troupe::program.)
  topology(int argc, char** argv);
  ~topology();
  topology(const topology&) = delete;
  topology& operator=(const topology&) = delete;

  // Functions of this library may run on other nodes; it outlives the topology.
  void use(const stage_library& l);

  // Runs it to its end, shows progress on stderr, and one line of what went wrong. SIGINT and
  // SIGTERM drain it; a second one ends it at once. 0: fine; else as all programs' exit codes
  // (error_code); 130 or 143 after a signal that it was drained by.
  int run();
  // The same without a word. `look`, where given, is called some times a second meanwhile.
  result<flow_totals> run_to_end(const std::function<void(const topology&)>& look = {});
  // Sources end, and what is under way goes on to its end. From any thread.
  void stop() noexcept { stop_wishes_.fetch_or(1); }
  // Everything ends at once.
  void kill() noexcept { stop_wishes_.fetch_or(2); }
  // The same, and tools are not told of it as a failure: nobody needs it any more.
  void give_up() noexcept { stop_wishes_.fetch_or(2 | 4); }

  std::string explain();
  // While it runs, from `look`; after that, of the whole run.
  std::vector<stage_report> report() const;
  const topology_options& options() const noexcept { return options_; }

 private:
  struct running;
  class far_parts;
  void take_signals();

  topology_options options_;
  bool takes_signals_ = false;
  std::atomic<std::uint32_t> stop_wishes_{0};
  std::unique_ptr<running> running_;
  std::vector<const stage_library*> libraries_;
};

}  // namespace troupe
