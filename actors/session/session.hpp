#pragma once
// What a program uses: open a session (alone, or as a client of a cluster), train a graph, or step
// one.
//
//   auto opened = troupe::session::open({});                      // everything in this process
//   if (!opened) return fail(opened.error());
//   auto& s = **opened;
//   troupe::graph g(s.ops());
//   ... build ...
//   auto run = s.train(g, loss, {.workers = 2, .steps = 1000});
//   while (auto event = (*run)->next()) ...                       // losses, variables, the end
//
// Over a cluster any graph runs on the nodes that its ops wish for, not only trainings:
//
//   auto there = g.device_scope("/job:worker/task:1");  // or "/node:gpu-1", "/label:rack=3"
//
// Ops without such a wish are in the program; it feeds inputs and variables. A device that nobody
// has is an error before anything runs. In trainings devices name tasks, not nodes or labels.
//
// Threading: one session and what it gives out belong to one thread of the program, feeders and
// runners excepted; calls block that thread only.
// Ownership: the end of a session ends all that it gave out, whose calls then fail and say so.
// Errors: usage (graph, options), unreachable (no cluster, not enough nodes), failed (the job: one
// line of who, what, where, which step; in a child of fork(), which opens a session of its own).

#include "troupe/actors/session/graph_runner.hpp"
#include "troupe/actors/session/variable_store.hpp"
#include "troupe/devices/tensor.hpp"
#include "troupe/runtime/checkpoint/checkpoint_options.hpp"
#include "troupe/runtime/compile/compile_options.hpp"
#include "troupe/runtime/graph/build.hpp"
#include "troupe/runtime/jobs/training_totals.hpp"
#include "troupe/runtime/layers/eager.hpp"
#include "troupe/runtime/plan/training_spec.hpp"
#include "troupe/runtime/supervision/failure.hpp"
#include "troupe/runtime/wire/member_info.hpp"
#include "troupe/runtime/wire/wire_protection.hpp"
#include "troupe/schema/error.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace troupe {

class device_backend;
struct op_library;

// Members have initializers so that a program may name just those that it sets.
struct session_options {
  std::string cluster{};  // empty: alone
  // HOST:PORT of members, beside those of this user on this machine.
  std::vector<std::string> join{};
  std::string token_file{};
  // Of the connections to the nodes (TLS), as theirs: beyond loopback by the token, unless this
  // says otherwise.
  wire_protection protect{};
  // Alone: what this process is beside "/job:client/task:0", such as "/job:worker/task:0", so that
  // a graph made for a cluster is stepped and run here as it is.
  std::vector<std::string> roles{};
  std::uint32_t threads = 1;  // for ops: host streams of this process, which share large ops
  // Devices gpu:0, gpu:1, ... of this process (devices/gpus/gpus.hpp): "auto", every chip that
  // there is; "none"; "N", so many, which share the chips; "host:N", stand-ins on the host.
  std::string gpus = "auto";
  std::uint64_t gpu_memory_bytes = 0;  // that each may take; 0: its part of its chip's
  // These and no others, where there are some: for tests.
  std::vector<std::shared_ptr<device_backend>> gpu_backends{};
  // To find the cluster; and, from open() on, for train() to find as many nodes as it needs.
  std::chrono::milliseconds timeout{5000};
  // In a cluster: others hold this program dead when it has given no sign of life for so long, as
  // at a breakpoint: from one second to an hour; 0: one second. Steps of its jobs wait as long;
  // placing a job, or halting one, does so for 30 s. A process that has ended is noticed at once.
  std::chrono::milliseconds lease{0};
  // The user's own ops (runtime/graph/op_library.hpp): linked into this program, or in files; over
  // a cluster nodes need the same ones.
  std::vector<const op_library*> libraries{};
  std::vector<std::string> load{};
  // A file in which the session keeps how long the user's ops and readers took here, for the
  // planner of later sessions, which else guesses what it has not seen; it may be missing, or
  // deleted at any time. Empty: none.
  std::string op_times_file{};
  // Asked while open() looks for the cluster, and train() for nodes; true: it gives up. It lives as
  // long as the session.
  std::function<bool()> is_cancelled{};
};

struct training_options {
  // Each computes the graph on its own part of a batch. sync: their gradients are added up, and so
  // are the losses that are told. So a loss is a sum over samples times a scale of the whole batch
  // (readers give it: idx_batch().scale is 1 / its samples); a mean over a worker's own part would
  // count `workers` times. async: each applies its own; readers then give the scale of the part.
  std::uint32_t workers = 1;
  std::uint32_t shards = 1;
  update_kind update = update_kind::sync;
  // sync, over a cluster: every node with workers has a copy of all variables, gradients are added
  // up by all-reduce, in buckets that leave while others are still computed, and shards say only
  // whose copy the program observes and checkpoints. The same bits; without replicas and on_nan
  // `skip`.
  bool all_reduce = false;
  // runtime/plan/optimizer.hpp: adam({.learning_rate = 1e-3}), ...
  optimizer_spec optimizer{};
  learning_rate_schedule schedule{};  // cosine({.steps = 10'000, .warmup = 500}), ...
  // Each worker scales its own gradients, before it pushes them, so that their common norm is at
  // most this; 0: not. With several workers it is each one's part that is clipped: the sum of all
  // (sync) may be as much larger as there are workers. Norms of the sum, variable by variable: the
  // optimizer's clip_norm.
  double clip_global_norm = 0;
  std::uint64_t seed = 1;
  std::uint64_t steps = 1;  // of each worker
  // Sync: versions between two observations of the variables; 0: at the end only.
  std::uint64_t observe_every = 0;
  // What happens after the loss of a node or a failing actor. Unless it is `stop`, workers may
  // share nodes, and nodes that join take part of the work.
  failure_policy on_failure = failure_policy::stop;
  restart_limits limits{};
  // finish() may end the training before its last step. Shards then keep a version that they could
  // go back to, as they do with failure_policy::resume and with checkpoints (observe_every 0),
  // which imply it.
  bool may_finish = false;
  // Over a cluster, with failure_policy::resume and checkpoints: the job goes on when this program
  // dies, stands still or detaches; nodes coordinate it then, and programs attach to it
  // (session::attach()). What it has learnt when it ends while no program is attached is in its
  // last checkpoint. Costs a round trip to two nodes in each step: they know a loss before its step
  // is applied.
  bool outlives_program = false;
  // With failure_policy::resume, over a cluster: copies of each variable on other nodes, 0 or 1. A
  // loss is told, and (async) a worker's push returns, when the copy has the update; the loss of
  // one node takes no such update away. Where there is no other node, there is no copy until one
  // comes.
  std::uint32_t replicas = 0;
  checkpoint_options checkpoints{};
  // The graph has inputs, which the program feeds, each worker's by a feeder:
  // training::make_feeder(). Where the training goes back to a step before (on_failure `resume`, or
  // a checkpoint), the program feeds again from that step on; feed() (feed_training.hpp) does so
  // from a pipeline. Not with outlives_program.
  bool is_fed = false;
  compile_options compile{};  // name, fuse, credits
};

// What the compiler is told of it, but for the places.
training_spec spec_of(const training_options& o);

struct training_event {
  enum class kind : std::uint8_t {
    started,      // all actors are placed; sources fire from now on; step: the first one
    loss,         // step, worker (async), loss
    variables,    // values, in order of the variables' names; item: 0, 1, ...; step: how many are
                  // in them (sync: the version; async: gradients, of all workers)
    worker_lost,  // worker, text; asynchronous training goes on
    recovering,   // text: what failed; the job goes on after it
    resumed,      // text, step: it goes on now
    note,         // text: something that people want to know
    finished,     // totals; the last event: at the last step, or by finish()
    stopped,      // text: the reason that stop() was given; totals; the last event
    suspended,    // step: of its last checkpoint, which has all of it; text; totals; the last event
    detached,     // text: who coordinates the job now; the last event
    failed,       // text (one line), totals; the last event
    none,         // nothing within the time
  } type = kind::none;
  std::uint64_t step = 0;
  std::uint32_t worker = 0;
  float loss = 0;
  std::uint64_t item = 0;
  std::vector<std::pair<std::string, tensor>> variables;
  std::string text;
  training_totals totals;
};

// What a program feeds to one worker of a training, step after step.
// Threading: each feeder belongs to one thread at a time; those of several workers may be used at
// once, beside the thread that takes the training's events. One that goes before the last step has
// no more data: the training is stopped behind the last step that all workers have data for (async:
// when none has more), as a note says.
// With update_kind::async these steps run
// at once, each on the variables as they then are. Ownership: the training outlives it.
class feeder {
 public:
  virtual ~feeder() = default;
  // All inputs of the worker's next step; waits while the graph has no room for it. An error:
  // nothing was fed. usage: an input is missing, or twice; a name, type or shape is wrong.
  // timed_out: there was no room in time. failed: the training has ended, or goes back to a step
  // before: its event `resumed` comes, and then feeders are made anew.
  virtual result<void> feed(std::span<const std::pair<std::string_view, tensor>> values,
                            std::chrono::milliseconds deadline = std::chrono::hours(24 * 365)) = 0;
  virtual std::uint64_t steps() const = 0;  // that were fed
  // The worker's step that the next feed is for: at first the one that the training begins with,
  // or has gone back to.
  virtual std::uint64_t next_step() const = 0;
};

// What a training was begun with; of one that was attached: all 0.
struct training_facts {
  std::uint32_t workers = 0;
  std::uint64_t steps = 0;  // of each worker
  update_kind update = update_kind::sync;
  bool is_fed = false, may_finish = false;
  // Of one that is fed: the step that it began with, or went back to last, as its event said that
  // next() has given. Nothing: it has not begun.
  std::optional<std::uint64_t> began_at{};
};

// A training job. Destroying it stops the job, unless it has ended or was detached.
class training {
 public:
  virtual ~training() = default;
  virtual training_facts about() const = 0;
  // The next event; `none` after `timeout`. After the last event: nullopt.
  virtual std::optional<training_event> next(
      std::chrono::milliseconds timeout = std::chrono::hours(24)) = 0;
  // Ends the job on all nodes, as it is; a `stopped` event with this reason follows. That is no
  // failure.
  virtual void stop(const std::string& reason) = 0;
  // Ends it in good order, at the step that it has got to: `variables` and `finished` follow, and
  // with checkpoints the last one is written. A note says so where it cannot (may_finish).
  // `at_least`: so many steps of each worker are made in any case, as when the program has fed
  // them.
  virtual void finish(std::uint64_t at_least = 0) = 0;
  // Ends it where it has got to, with a checkpoint from which the same training with
  // checkpoint_options::resume goes on, to the same bits: `suspended` follows, or `finished` where
  // that was its last step. Without checkpoints, or where none can be made, a note says so and
  // `stopped` follows, and `failed` where the checkpoint was not written. Workers of
  // update_kind::async come to the same step first. One that is fed may be fed its last step once
  // more (`resumed`). stop() ends it meanwhile; the checkpoint before stays.
  virtual void suspend(const std::string& reason) = 0;
  // Leaves it to the cluster (outlives_program): `detached` follows. A note says so where there is
  // no node that could take it; the job stays with this program then.
  virtual void detach() = 0;
  // Of a training with is_fed, after its event `started`, and anew after each `resumed`; one for
  // each worker. Errors: usage, failed (it has ended).
  virtual result<std::unique_ptr<feeder>> make_feeder(std::uint32_t worker) = 0;
};

// A graph that the program steps: feeds in, fetches out. Steps overlap as far as credits allow:
// feed ahead, then fetch.
// Errors: failed: an op did, and the stepper is over; every later call says so again. Compile the
// graph once more to go on.
class stepper {
 public:
  virtual ~stepper() = default;
  // One tensor for input (or variable) `name`; waits while the graph has no room for it. timed_out:
  // no room for 10 s while values wait to be fetched; nothing was fed.
  virtual result<void> feed(std::string_view name, tensor value) = 0;
  // The values of the next step, in the order of the fetches; waits for them. usage: an input was
  // not fed for that step. timed_out: it has not ended within `deadline`; it goes on, and is
  // fetched or cancelled later.
  virtual result<std::vector<tensor>> fetch(std::chrono::milliseconds deadline = no_deadline) = 0;
  // Gives the oldest step up that was fed and not fetched: its values are dropped when they come,
  // and what is fetched next is the step behind it. usage: there is none.
  virtual result<void> cancel() = 0;
  // Feeds every input and fetches; whatever is wrong with a feed, nothing was fed. timed_out: the
  // step was cancelled, or (the graph had no room for it within `deadline`) nothing was fed; either
  // way the next call begins the next step.
  virtual result<std::vector<tensor>> step(
      std::span<const std::pair<std::string_view, tensor>> feeds,
      std::chrono::milliseconds deadline = no_deadline) = 0;

  static constexpr std::chrono::milliseconds no_deadline = std::chrono::hours(24 * 365);
};

class session {
 public:
  static result<std::unique_ptr<session>> open(const session_options& options);
  virtual ~session() = default;

  virtual const op_table& ops() const = 0;
  virtual bool is_alone() const noexcept = 0;  // it is in no cluster
  // Computes at once what is called, in the program's thread; the session outlives it.
  virtual std::unique_ptr<troupe::eager> eager(std::uint64_t seed = 1) = 0;
  // Nodes that can take work, in the order in which they were started; alone: none.
  virtual std::vector<member_info> nodes() = 0;
  // The loss is a scalar of `g`, which is one worker's graph. Workers are placed on the nodes from
  // the first, shards on the nodes of job `ps` in turn, or where there are none on the nodes
  // counted from the last; alone: all here.
  virtual result<std::unique_ptr<training>> train(graph& g, value loss,
                                                  const training_options& options) = 0;
  // A training that some program began with outlives_program, by its name or id: this program
  // coordinates it from now on, and is told the losses that are kept (the newest 10,000; a note has
  // the number of others), then how it goes on. Another program that has it is told `detached`.
  // Errors: usage: alone; this program lacks an op; failed: there is no such job, or it is over, or
  // ends with its program; timed_out: nobody gave it away in time.
  virtual result<std::unique_ptr<training>> attach(
      const std::string& job, std::chrono::milliseconds timeout = std::chrono::seconds(10)) = 0;
  virtual result<std::unique_ptr<stepper>> compile(graph& g, std::span<const value> fetches,
                                                   const compile_options& options = {}) = 0;
  // Runs parts of a graph, by name, from any thread (actors/session/graph_runner.hpp).
  virtual std::unique_ptr<graph_runner> runner(const graph& g, const compile_options& options = {
                                                                   .name = "runner"}) = 0;
  // The same on variables of a store (actors/session/variable_store.hpp), which runs read, and
  // change by updates. Several runners may have one store, which is of this session.
  virtual std::unique_ptr<graph_runner> runner(const graph& g, const variable_store& store,
                                               const compile_options& options = {
                                                   .name = "runner"}) = 0;
  // Without variables yet.
  virtual std::unique_ptr<variable_store> make_store() = 0;
};

}  // namespace troupe
