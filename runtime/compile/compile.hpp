#pragma once
// From a graph to a plan: one pass per file in runtime/compile/passes/, in this order:
//
//   gradients -> prune -> feed -> fold -> simplify -> mixed_precision -> fast -> share ->
//   pack_pushes -> devices -> replicate -> lower -> fuse -> | place -> spread -> begin ->
//   collectives -> all_reduce -> order_pushes -> order_reads -> copies -> partition -> segments ->
//   credits ->
//   share_memory
//
// A training has no feed and no lower (in place of replicate, for a graph that is stepped); other
// passes run where their option is on and there is something for them. What stands left of the bar
// is done once for a training; what stands right of it for every epoch, since after the loss of a
// node the same workers and shards run elsewhere. The plan is checked at the end. Everything here
// is a pure function of its arguments.

#include "troupe/runtime/compile/compile_options.hpp"
#include "troupe/runtime/graph/graph.hpp"
#include "troupe/runtime/plan/plan.hpp"
#include "troupe/runtime/plan/training_spec.hpp"

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

// --- training: between-graph replication with parameter shards -----------------------------------

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
  // What the program feeds, by its name in the graph, with the line that made it.
  std::vector<std::pair<std::string, source_line>> inputs() const;
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
  // Whether `where` has what the devices of the graph name; the error of place().
  result<void> check_wishes(const task_map& where) const;
  result<plan> place(const task_map& where, const epoch_start& start,
                     compile_report* report = nullptr) const;
  // The same training, which ends after another number of steps. Errors: usage: a number that
  // check() refuses.
  result<training_program> with_steps(std::uint64_t steps) const;

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
// `rest` says what becomes of variables that are needed and not among them.
enum class unfed_variables : std::uint8_t {
  refused,
  fed,  // they become feeds, too, named as they are
};
result<plan> compile_steps(const graph& g, std::span<const value> fetches,
                           std::span<const value> feeds, const compile_options& options,
                           unfed_variables rest = unfed_variables::refused);
// The op's name; of an output k but the first: "name:k".
std::string feed_name(const graph& g, const value& v);

}  // namespace troupe
