#pragma once
// From a graph to a plan: one pass per file in runtime/passes/, in this order:
//
//   prune -> feed -> gradients -> shapes -> fold -> simplify -> mixed precision -> fast -> share ->
//   pack pushes -> devices -> replicate -> fuse -> | place -> begin -> collectives -> all reduce ->
//   order reads -> copies -> partition (send, receive) -> segments -> credits -> share memory ->
//   check
//
// What is left of the bar is done once for a training; what is right of it for every epoch, since
// after the loss of a node the same workers and shards run elsewhere. Everything here is a pure
// function of its arguments.

#include "runtime/graph.hpp"
#include "runtime/plan.hpp"
#include "runtime/precision.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe {

struct compile_report;

struct compile_options {
  std::string name = "job";
  bool fuse = true;
  std::uint32_t credits = 2;  // per edge, at most
  // An edge whose credits would take more memory than this has fewer of them, at least one.
  std::size_t edge_bytes = std::size_t{64} << 20;
  // Training: where a variable's gradient is that of embedding() or gather() along axis 0, workers
  // push its rows and their indices, not the whole of it, if that is fewer bytes. Results have the
  // same bits.
  bool sparse_pushes = true;
  // Passes that change no result; --fuse, and these, may be switched off to see what each gives.
  bool fold = true, simplify = true, share = true;  // constants, x * 1, equal ops
  // Ops of a stream write into the memory of others whose results nobody needs any more. Then a
  // graph that is stepped has `credits` steps in flight in each stream, and a worker that trains
  // has one. Off: every output has memory of its own, for one more than the credits of its edges.
  bool share_memory = true;
  // Synchronous training: a gradient of a megabyte or more waits for the ops on its stream that
  // read the version it is made of, so that its shard needs one version at a time.
  bool order_reads = true;
  // Training with all_reduce: a gradient that is at least half of all bytes that a worker exchanges
  // is made before the others, and exchanged while they are.
  bool order_pushes = true;
  // Training with all_reduce: copies of a variable that wishes for a device are there, and
  // gradients are added up there, where the job keeps nothing of it for recovery or checkpoints.
  // Off: copies are on the host, and gradients go by links. The bits are the same.
  bool device_collectives = true;
  // Training with all_reduce: gradients of fewer bytes are added up together until they have so
  // many; 0: as many as were measured (256 KiB on hosts), or guessed (4 MiB on devices).
  std::size_t bucket_bytes = 0;
  // What happens where an op makes a NaN or an infinity; whoever looks for them reads every result
  // once more. A graph that is stepped knows `ignore` and `stop`. With `skip`, workers push whole
  // gradients (sparse_pushes).
  nan_policy on_nan = nan_policy::ignore;
  // Large sums may be cut along what is summed, and added up in parts: the gradient of a
  // convolution's weights by images, products that are long inside. Results differ from those
  // without it in the last bits, and are still the same for any number of threads and nodes.
  bool fast = false;
  // In what products, convolutions and attention of f32 compute: see runtime/precision.hpp. Not a
  // pass that changes no result.
  precision_kind precision = precision_kind::f32;
  // Of trainings; nullopt: dynamic with f16, else none. Those with one push whole gradients
  // (sparse_pushes), leave out steps whose gradients are not finite, as on_nan `skip` does, but
  // those of all workers, and know no on_nan `stop`.
  std::optional<loss_scale_spec> loss_scale{};
  // An op that wishes for a device which does not run its type stands on the host, and the report
  // says so; off: that is an error.
  bool soft_placement = true;
  // Where ops stand that wish for no cpu or gpu: "/gpu:0". Empty: on the host.
  std::string device{};
  // What each pass did, if somebody asks (runtime/compile_report.hpp); looked at during the call
  // only.
  compile_report* report = nullptr;
};

// --- training: between-graph replication with parameter shards -----------------------------------

// One task per place that actors can go to. The client is always the last task of a plan and runs
// the fetches.
struct training_spec {
  std::uint32_t workers = 1;
  std::uint32_t shards = 1;
  update_kind update = update_kind::sync;
  // sync: every node with workers has a copy of every variable, and collectives add up the
  // gradients, instead of shards. The bits are the same.
  bool all_reduce = false;
  optimizer_spec optimizer;
  learning_rate_schedule schedule{};
  double clip_global_norm = 0;  // of each worker's gradients, before they are pushed; 0: not
  std::uint64_t seed = 1;
  std::uint64_t steps = 1;  // of each worker
  // Versions between two observations of all variables (0: only at the end)
  std::uint64_t observe_every = 0;
  // A step is whole or did not happen: shards differ by at most one version, sync ones keep the
  // older one, and the program has the loss of every step but the last.
  bool is_recoverable = false;
  // Cuts for checkpoints: where the program asks for one, at the end, and (sync) at every version
  // that cut_every divides. Every variable has a replica, on the nodes that the placement gives
  // (task_map::replica_task): what is committed survives a node.
  bool has_replicas = false;
  bool has_cuts = false;
  std::uint64_t cut_every = 0;
  // Which task runs worker i and shard k: indices below `tasks`. Embedded: one task for all, which
  // is the client's too.
  std::uint32_t tasks = 1;
  std::vector<std::string> task_names;  // "/job:worker/task:0", ...
  std::vector<std::uint32_t> worker_task;
  std::vector<std::uint32_t> shard_task;
  std::uint32_t client_task = 0;
};

// Who runs what in one epoch: part of training_spec, for later epochs.
struct task_map {
  std::vector<std::string> task_names;  // by task: its first role
  // Every name that a device wish may use, and its task.
  std::vector<std::pair<std::string, std::uint32_t>> roles;
  std::vector<std::uint32_t> worker_task, shard_task;
  std::uint32_t client_task = 0;
  std::vector<std::uint32_t> replica_task{};  // by shard; none, or no_task: without a replica
};
inline constexpr std::uint32_t no_task = 0xFFFF'FFFF;

// A variable that a node keeps and others need, because its shard or replica is placed there: the
// task of the node that keeps it.
struct handed_variable {
  std::string variable;
  std::uint32_t task = 0;
  std::vector<std::uint64_t> applied{};  // async: by worker, the gradients in it
  bool to_shard = true, to_replica = false;
  std::vector<std::uint32_t> to_tasks{};  // with all_reduce: where other copies begin with it
};

// Where an epoch begins. The first one: as it is.
struct epoch_start {
  restore_kind restore = restore_kind::initial;
  std::uint64_t version = 0;                  // sync: of all variables
  std::vector<std::uint64_t> worker_steps{};  // the first step that each worker makes; empty: 0
  bool is_saved = false;                      // it is that of a checkpoint
  std::vector<handed_variable> handed{};
};

// What the node of a worker or shard must have: devices gpu:0 to gpu:N-1.
struct device_wish {
  std::uint32_t devices = 0;  // 0: none
  std::string who{};          // op or variable whose wish reaches furthest, the first such one
  source_line source{};
  friend bool operator==(const device_wish&, const device_wish&) = default;
};
// By worker, and by shard. Empty: nobody wishes for any.
struct device_wishes {
  std::vector<device_wish> workers{}, shards{};
  bool empty() const noexcept { return workers.empty() && shards.empty(); }
  friend bool operator==(const device_wishes&, const device_wishes&) = default;
};

// A training that is compiled but for the places.
class training_program {
 public:
  struct parts;
  explicit training_program(std::shared_ptr<const parts> p) : parts_(std::move(p)) {}

  const training_spec& spec() const noexcept;
  const std::string& name() const noexcept;
  // Name and spec of every variable, in the order of their names; every one has the slots of
  // spec().optimizer.
  std::vector<std::pair<std::string, tensor_spec>> variables() const;
  // k of --shards that holds each variable, in the same order.
  std::vector<std::uint32_t> shard_of_variables() const;
  // A text that is equal for equal computations: every op, its attributes and operands, and how
  // variables begin; not where things run, how data are batched, or which line wrote them.
  const std::string& fingerprint() const noexcept;
  // What another run must share to go on where this one stops, bit for bit: name and value of every
  // number that counts.
  const std::vector<std::pair<std::string, std::string>>& schedule() const noexcept;
  // Of its readers: steps that one data epoch takes.
  std::uint64_t steps_per_epoch() const noexcept;
  // Of users, whose ops stand in it: every node that takes part must have them.
  const std::vector<planned_library>& libraries() const noexcept;
  // What is left of wishes for devices after passes::devices() and replicate(). One that names a
  // task counts for the worker or shard of that name, else for whose op or variable it is.
  const device_wishes& devices() const noexcept;
  result<plan> place(const task_map& where, const epoch_start& start,
                     compile_report* report = nullptr) const;

 private:
  std::shared_ptr<const parts> parts_;
};

// Of compile_options::device: it names a cpu or a gpu and no task.
result<void> check_default_device(std::string_view device);
// What is wrong with its numbers, before anything is made of them.
result<void> check(const training_spec& s);
result<training_program> compile_program(graph& g, value loss, const training_spec& spec,
                                         const compile_options& options);

// The plan that trains `loss` of `g` (which holds one worker's graph; idx_batch ops get part i of
// `workers`). The client's part: fetch "loss" (port i: losses of worker i) and fetch "variables"
// (port i: variable i in order of names).
result<plan> compile_training(graph& g, value loss, const training_spec& spec,
                              const compile_options& options);

// --- stepping: feeds in, fetches out -------------------------------------------------------------

// A plan of one task whose feeds and fetches are held by the program: feed "x" per input op, one
// fetch with a port per fetched value. Variables become feeds of the same name. Errors: usage: an
// unfed input, nothing fetched, a fetched value that lies in a branch or loop.
result<plan> compile_steps(const graph& g, std::span<const value> fetches,
                           const compile_options& options);
// The same, of which the program feeds `feeds` and nothing else: inputs, variables, or what any op
// makes, which is then not computed. Feeds are named by feed_name(). Errors: usage: a value twice,
// one that lies in a branch or loop, an input or variable that is needed and not among them.
result<plan> compile_steps(const graph& g, std::span<const value> fetches,
                           std::span<const value> feeds, const compile_options& options);
// The op's name; of an output k but the first: "name:k".
std::string feed_name(const graph& g, const value& v);

}  // namespace troupe
