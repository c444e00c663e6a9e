#pragma once
// The passes of the compiler and what flows between them. Only the compiler and its tests include
// this; compile.hpp has the order.
//
//   graph -> flow           prune
//   flow  -> flow           feed, fold, simplify, mixed_precision, fast, share, pack_pushes,
//                           devices
//   flow  -> draft          replicate, lower
//   draft -> draft          fuse, place, spread, begin, collectives, all_reduce, order_pushes,
//                           order_reads, copies, partition, segments
//   draft -> plan           credits
//   plan  -> plan           share_memory
//
// A flow is the part of a graph that somebody needs, with the user's constants folded. A draft is a
// plan whose edges are still written as "input port i takes output port p of actor a", so that
// passes may insert and merge actors.
//
// A pass that is given a report adds what it changed, and why, to it; counts are its caller's.
//
// Threading: pure functions.
//
// PS-1  Operands of a flow's op come before it.
// PS-2  Actors of a draft refer to earlier actors, except for the gradients that go into shards,
//       what ranks of collectives send each other, the versions that come from replicas, and what
//       comes back to the variables of loops.
// PS-3  Loops of a flow end by an op of their own, loop_end, whose operands are what leaves the
//       loop and what comes back (loop_back). A draft has edges for these.

#include "troupe/runtime/compile/compile_options.hpp"
#include "troupe/runtime/compile/compile_report.hpp"
#include "troupe/runtime/graph/graph.hpp"
#include "troupe/runtime/graph/op_table.hpp"
#include "troupe/runtime/plan/plan.hpp"
#include "troupe/runtime/plan/training_spec.hpp"

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {
class op_times;
}

namespace troupe::passes {

// --- flow ----------------------------------------------------------------------------------------

struct op_ref {
  std::uint32_t op = 0;
  std::uint32_t output = 0;
  friend bool operator==(const op_ref&, const op_ref&) = default;
};

// Of a variable that is a scale of the loss: after how many good steps it grows.
inline constexpr std::string_view loss_scale_attribute = "loss_scale_grows_every";

struct output_place {
  std::uint32_t region = 0;
  std::uint16_t loop_level = 0;
};

struct flow_op {
  std::string type, name;
  attributes attrs;
  std::vector<op_ref> inputs;
  std::vector<tensor_spec> outputs;
  std::string device;
  source_line source;
  std::optional<initializer_spec> initializer;
  std::optional<double> average_rate{};
  std::uint16_t loop_level = 0;         // as of planned_actor
  std::uint32_t region = 0;             // branch or loop of the graph that it lies in
  std::vector<std::uint16_t> sticky{};  // by input, as of planned_actor; none: all 0
  // By output, of ops that make up branches and loops; none: that of the op.
  std::vector<output_place> output_places{};
};

struct flow {
  std::vector<flow_op> ops;
  std::vector<op_ref> roots;  // what somebody needs, in the order asked for
};

// The ops that `roots` depend on, and no others. The roots are valid values of `g`.
flow prune(const graph& g, std::span<const value> roots, pass_report* report = nullptr);
// The last roots, one for each name, are fed by the program under these names: what they are made
// of is not computed.
flow feed(flow f, std::span<const std::string> names, pass_report* report = nullptr);
// The ops of a flow that its roots depend on.
flow drop_unused(flow f);
// x * 1, x + 0, x - 0 and -(-x) are x. Gradients start with a 1, so that a training graph is full
// of these.
flow simplify(flow f, pass_report* report = nullptr);
// Ops whose operands are small constants, as constants.
flow fold(flow f, const op_table& ops, pass_report* report = nullptr);
// Products, convolutions and attention of f32 compute in `half`, f16 or bf16, with casts around
// them; what is asked for stays f32.
flow mixed_precision(flow f, dtype half, pass_report* report = nullptr);
// One op for all that have the same type, attributes, operands and device.
flow share(flow f, pass_report* report = nullptr);
// Lets kernels that can cut their sums do so.
flow fast(flow f, pass_report* report = nullptr);
// Gradients (roots as in replicate) that are rows added to zeros are packed as these rows
// (packed_rows.hpp) where that is fewer bytes.
flow pack_pushes(flow f, pass_report* report = nullptr);

// Wishes for devices, of ops that these can run: what else wishes for one stands on the host
// (`is_soft`), or is a usage error.
result<flow> devices(flow f, const op_table& ops, bool is_soft, pass_report* report = nullptr);
// Why no device runs an op of this type; empty: they do.
std::string why_not_on_device(const std::string& type, const attributes& attrs,
                              const op_table& ops);

// --- draft ---------------------------------------------------------------------------------------

enum class owner_kind : std::uint8_t { worker, shard, client };

struct draft_actor {
  planned_actor planned;       // all but inputs, outputs, task and stream
  std::vector<port_ref> from;  // per input port: the producer
  std::string device;          // the user's wish
  owner_kind owner = owner_kind::worker;
  std::uint32_t index = 0;   // of the worker or shard
  std::uint32_t region = 0;  // of ops: branch or loop of the graph
};

struct draft {
  std::vector<draft_actor> actors;
};

// Where actors may go.
using places = task_map;

// Firings of `a` that put something on output `port`, and those of them that belong to earlier
// epochs.
std::uint64_t items_of(const planned_actor& a, std::uint32_t port);
std::uint64_t items_before(const planned_actor& a, std::uint32_t port);
// An actor that hands on output `from` of `producer`, each item as it is, and is named after it and
// its way: "worker/0/loss/send/3". It has no place yet.
draft_actor make_handing_on(actor_kind kind, const draft_actor& producer, port_ref from,
                            std::string_view way);
// The task that a wish names: `own` if it names none, or fits; else the first one that fits and has
// the device. usage, with `source`: there is none.
result<std::uint32_t> find_task(std::string_view wish, std::uint32_t own, const places& where,
                                const source_line& source);

// One actor per op; inputs and variables become feeds; one fetch with a port per root. Steps are
// unlimited.
draft lower(const flow& f);
// One copy of the flow per worker, one shard per variable, the fetches "loss" and "variables".
// Roots of the flow: the loss, then the gradient (of a moving average: the sample) of each
// variable, then each variable in the same order.
result<draft> replicate(const flow& f, const training_spec& spec, const places& where,
                        pass_report* report = nullptr);
// The error of place(), before anything is placed.
result<void> check_wishes(const draft& d, const places& where);
// Tasks that no actor is on, but for the client's, are taken out of `where`.
void leave_out_idle_tasks(draft& d, places& where);
// Chains and trees of element-wise ops become one actor with their producer, where nobody else
// reads what is in between.
draft fuse(draft d, const op_table& ops, pass_report* report = nullptr);
// Task and stream of every actor; `reasons`: of every actor.
result<draft> place(draft d, const places& where, pass_report* report = nullptr,
                    std::vector<placement_reason>* reasons = nullptr);
// Ops that run on one thread for long, on other host streams of their task (places::streams).
// `times`: null: as guessed.
draft spread(draft d, const places& where, const op_table& ops, const op_times* times,
             pass_report* report = nullptr, std::vector<placement_reason>* reasons = nullptr);
// Where every actor begins, and with it what an epoch alone has: replicas of shards, and ops that
// hand variables over.
draft begin(draft d, const epoch_start& start, const places& where, pass_report* report = nullptr);
// What the collectives of a flow ask for and this job does not have: errors with their lines.
// `training` is null where a graph is stepped.
result<void> check_collectives(const flow& f, const training_spec* training);
// Ranks in the place of the ops that call collectives (runtime/graph/collectives.hpp). `any_order`:
// as of all_reduce.
bool calls_collectives(const draft& d);
draft collectives(draft d, bool any_order, pass_report* report = nullptr,
                  std::vector<placement_reason>* reasons = nullptr);
// Copies of every variable on every task that has workers, and collectives between them
// (training_spec::all_reduce), among devices where the variable is on one. With
// options.fast sums may be made in another order than that of the workers.
draft all_reduce(draft d, const epoch_start& start, const places& where,
                 const compile_options& options, pass_report* report = nullptr);
// Lets a gradient that is most of what a worker exchanges be made before those that need not be
// there for it.
draft order_pushes(draft d, pass_report* report = nullptr,
                   std::vector<placement_reason>* reasons = nullptr);
// Lets large gradients of synchronous shards wait for the ops of their stream that read the version
// they are made of.
draft order_reads(draft d, const op_table& ops, pass_report* report = nullptr,
                  std::vector<placement_reason>* reasons = nullptr);
// Puts a copy into every edge between the memory of the host and of a device, or of two; consumers
// of one port on one device share it. What handed a device's variable on to workers is left out.
draft copies(draft d, pass_report* report = nullptr,
             std::vector<placement_reason>* reasons = nullptr);
// Puts a send and a receive into every edge between tasks; consumers of one port in one task share
// them. Several consumers on another stream of the task get an actor of their own that hands the
// port on, and many values that are fetched from another stream one that collects them there.
draft partition(draft d, pass_report* report = nullptr);
// Makes segments of the ops of each device: one actor for all that may run one after the other in
// its stream without waiting for anything from outside, or (`merges` not) one for each.
draft segments(draft d, bool merges, pass_report* report = nullptr,
               std::vector<placement_reason>* reasons = nullptr);
// Numbers the edges and gives each its credits.
// `edge_bytes`: what the buffers of one edge may take where one is not more.
plan connect(draft d, std::uint32_t credits, std::size_t edge_bytes, pass_report* report = nullptr);
// Which outputs of a stream's ops may be written into the same memory, and what of it is one
// step's: copies for `steps_in_flight`.
plan share_memory(plan p, const op_table& ops, std::uint32_t steps_in_flight,
                  pass_report* report = nullptr);

}  // namespace troupe::passes
