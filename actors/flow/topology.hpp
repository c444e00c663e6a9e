#pragma once
// A topology that runs: what flow.hpp describes, on threads of this process, each stage's group an
// actor (actors/flow/director.hpp).
//
// TO-1  run() ends when every source has no more items and all of them have gone their way, when a
//       stage fails and its policy does not bear that, or after stop(), in good order.
// TO-2  Edges together hold `budget_bytes`, however fast the sources are (but each may hold one
//       item). What stages keep by themselves is theirs.
// While it runs, any thread may change it:
//
//   t.set_replicas("decode", 4);           // of those that .replicas = between(1, 8) allows
//   t.replace<picture>("decode", faster);  // takes over between two items
//   t.pause(); t.resume(); t.stop();       // stop() lets what is under way come to its end
//
// With `cluster`, stages with `.on` run on its nodes, which need the stage libraries that they
// stand in (use()): it ends with a line for each that lacks it. Nodes that are what `.on` asks for
// are waited for, as long as cluster.timeout says. What a node had when it was lost is made again,
// or ends the topology with a line that names it (stage_options::on).
//
// With `checkpoint` it is kept in a file, every so often, and a program that is begun again with
// `resume` goes on from there: files that it writes have each item once, whenever it was killed
// (topology_checkpoint.hpp). Sources need a position, and what functions learn is their member
// `state`; where that is not so, it is told before anything runs. All stand still for
// a checkpoint, between two calls; items that cannot be written have gone their way before. The
// file goes when the topology is done.
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
#include "troupe/runtime/flow/topology_checkpoint.hpp"
#include "troupe/runtime/flow/topology_control.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

struct topology_options {
  std::string name{};
  std::uint32_t threads = 0;  // that compute; 0: as many as there are cores
  std::uint64_t budget_bytes = flow_graph::default_budget_bytes;
  // What stands on one thread passes items on by calls. Without it each stage has messages of its
  // own, on threads in turn, and stays there: to see what the calls are worth.
  bool fuse = true;
  bool is_quiet = false;        // run() says nothing of its progress
  bool explains_only = false;   // run() prints explain(), and runs nothing
  bool ends_with_json = false;  // run() ends with a line of JSON on standard output
  // Where `cluster` names one, the process is a member of it while the topology runs: tools see its
  // stages (`troupe list actors`, `troupe why`), and `.on` names nodes of it.
  session_options cluster{};
  // A session of the program in the place of one that is opened by `cluster`, of which the timeout
  // still counts; it outlives the topology. Where it is alone, stages run in the program.
  session* member = nullptr;
  // Where it is kept, so that another process goes on when this one is gone.
  topology_checkpoint_options checkpoint{};
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
// [{"stage":"decode","items_in":12, ...}], durations in seconds.
std::string to_json(const std::vector<stage_report>& stages);

class topology : public flow_graph {
 public:
  explicit topology(topology_options options = {});
  // With the flags of a program: --threads, --memory, --explain, --quiet, --json, --name, --help,
  // and those of a cluster: --cluster, --join, --lease, --timeout, --token-file. Ends the program
  // where they are wrong. (Defined in troupe::program.)
  topology(int argc, char** argv);
  ~topology();
  topology(const topology&) = delete;
  topology& operator=(const topology&) = delete;

  // Functions of this library may run on other nodes; it outlives the topology.
  void use(const stage_library& l);

  // Runs it to its end, shows progress on stderr, and one line of what went wrong. SIGINT and
  // SIGTERM drain it, or suspend it where it has checkpoints; a second one ends it at once. 0:
  // fine; else as all programs' exit codes (error_code); 130 or 143 after a signal that it was
  // drained by.
  int run();
  // The same without a word. `look`, where given, is called some times a second meanwhile.
  result<flow_totals> run_to_end(const std::function<void(const topology&)>& look = {});
  // --- while it runs, from any thread ---
  // Sources end, and what is under way goes on to its end.
  void stop() noexcept { wishes_->stop.fetch_or(1); }
  // With a checkpoint: what is under way goes on to its end, all is kept, and the topology ends.
  // Ends of it, such as files, stay half done until a program resumes it.
  void suspend() noexcept { wishes_->stop.fetch_or(8); }
  bool was_suspended() const noexcept;
  // Everything ends at once.
  void kill() noexcept { wishes_->stop.fetch_or(2); }
  // The same, and tools are not told of it as a failure: nobody needs it any more.
  void give_up() noexcept { wishes_->stop.fetch_or(2 | 4); }
  // Sources stand still until resume(); what is under way goes on. stop() ends it also then.
  void pause() noexcept { wishes_->pause.store(true); }
  void resume() noexcept { wishes_->pause.store(false); }
  // So many replicas of that stage work from the next item on; one that works no longer finishes
  // what it has. Nothing is lost, doubled, or out of order by that. Automatic ones are tuned no
  // longer. Before it runs it is for the thread that describes it. Errors: not_found: there is no
  // such stage; usage: their number stays, or is less.
  result<void> set_replicas(std::string_view stage, std::uint32_t count);
  // A replica on that node works in the place of one elsewhere, which finishes what it has: of
  // replicas on nodes whose number may change and that keep nothing from item to item. Errors as
  // those of `troupe topology move`.
  result<void> move(std::string_view stage, std::string_view node);
  // Another function for that stage, of items T as the one before, which makes items of the same
  // type and takes over what that has in `state`; what it keeps elsewhere begins anew. It waits
  // until all replicas have it; a function of the topology itself must not ask for it. Nothing is
  // lost, doubled, or out of order by that. Where it fails at one of its first `trial` items, and
  // nothing of that has left yet, the one before works on that and goes on, with what was learnt
  // meanwhile, and a note says so. Errors: not_found, usage: topology_control.hpp says which;
  // failed: the topology is over, or was not begun.
  template <class T, class F>
  result<void> replace(std::string_view stage, F f, std::uint64_t trial = 0) {
    using contract = returned_by<F, T>;
    using made = typename stage_items<F, T>::type;
    static_assert(!borrows<F> || !contract::is_generator, "with: a generator would keep its unit");
    replacing_function r;
    r.contract = *contract_of<F, T, made>(rate_of_result<F>(contract::is_one).is_known,
                                          makes_at_end_only<F, T>);
    r.is_copyable = std::is_copy_constructible_v<F>;
    r.borrows = lender_of(f);
    r.trial = trial;
    r.items_are_copyable = std::is_copy_constructible_v<T>;
    r.make = stage_maker<function_stage<F, T>>(std::move(f));
    return replace_by(stage, std::move(r));
  }
  // That work now.
  result<std::uint32_t> replicas(std::string_view stage) const;

  std::string explain();
  // While it runs, from `look`; after that, of the whole run.
  std::vector<stage_report> report() const;
  // A line for each stage whose replicas may change: how many work, and why.
  std::string chosen() const;
  const topology_options& options() const noexcept { return options_; }

 private:
  struct running;
  class far_parts;
  void take_signals();
  result<void> replace_by(std::string_view stage, replacing_function f);

  topology_options options_;
  bool takes_signals_ = false;
  std::shared_ptr<topology_wishes> wishes_ = std::make_shared<topology_wishes>();
  std::unique_ptr<running> running_;
  std::vector<const stage_library*> libraries_;
};

}  // namespace troupe
