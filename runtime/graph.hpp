#pragma once
// The graph that a program builds: ops, values, variables.
//
// Building never throws and never stops: a call whose operands do not fit returns an invalid value, the graph remembers the
// first such error with the user's line, and whoever compiles the graph gets it. So a model reads as a page of plain
// calls. A graph belongs to one thread while it is built.
//
// Every function that makes an op takes the user's line as its last, defaulted argument.
// Names consist of letters, digits, '_', '-', '.' and '/'.

#include "devices/host/idx_file.hpp"
#include "runtime/plan.hpp"
#include "schema/attributes.hpp"
#include "schema/error.hpp"
#include "schema/tensor_spec.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <source_location>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace troupe {

class graph;
class op_table;
struct op_row;
using source_location = std::source_location;

// Output `output` of node `node` of a graph. Small; copied freely; valid while the graph lives.
struct value {
  graph* owner = nullptr;
  std::uint32_t node = 0;
  std::uint32_t output = 0;

  bool is_valid() const noexcept { return owner != nullptr; }
  const tensor_spec& spec() const;
};

struct graph_node {
  std::uint32_t index = 0;  // its position in the graph; operands have smaller ones
  std::string type;
  std::string name;  // unique: scope + base, "_1" appended where taken
  attributes attrs;
  std::vector<value> inputs;
  std::vector<tensor_spec> outputs;
  std::string device;  // placement wish, possibly partial: "/job:worker/task:0/cpu:0", "/cpu:1", ""
  source_location source;
  std::optional<initializer_spec> initializer;  // of a "variable"
};

class graph {
 public:
  explicit graph(const op_table& ops);
  graph(const graph&) = delete;
  graph& operator=(const graph&) = delete;

  // Appends an op: runs its shape rule, records an error with the user's line where the operands do not fit.
  // Returns output 0 (invalid on error); output(i) of the same node by value{g, node, i}.
  value add(std::string type, std::span<const value> inputs, attributes attrs, std::string_view name,
            const source_location& where);

  // Scopes: names and devices of ops added until the scope ends. A device is checked at once (unknown device: an error).
  class scope {
   public:
    ~scope();
    scope(const scope&) = delete;
    scope& operator=(const scope&) = delete;

   private:
    friend class graph;
    scope(graph& g, std::string name, std::string device) : graph_(g), name_(std::move(name)), device_(std::move(device)) {}
    graph& graph_;
    std::string name_, device_;  // what they were before
  };
  scope name_scope(std::string_view name, const source_location& where = source_location::current());
  scope device_scope(std::string_view device, const source_location& where = source_location::current());

  void record(error e);  // keeps the first
  const std::optional<error>& first_error() const noexcept { return error_; }
  const op_table& ops() const noexcept { return ops_; }
  std::span<const graph_node> nodes() const noexcept { return nodes_; }
  const graph_node& node(std::uint32_t i) const { return nodes_[i]; }
  graph_node& node(std::uint32_t i) { return nodes_[i]; }
  std::vector<value> variables();

 private:
  std::string unique_name(std::string_view base);
  result<void> check_operands(std::string_view type, std::span<const value> inputs, const op_row& row) const;

  const op_table& ops_;
  std::vector<graph_node> nodes_;
  std::optional<error> error_;
  std::string name_scope_, device_scope_;
  std::unordered_map<std::string, std::uint32_t> names_;  // taken names, with the next suffix to try
};

// --- ops (implemented in runtime/ops/) -----------------------------------------------------------------------------------

// A tensor that the program feeds, one per step. A symbolic first dimension is written as batch_of(bound).
value input(graph& g, const tensor_spec& spec, std::string_view name, source_location where = source_location::current());
value variable(graph& g, const tensor_spec& spec, initializer_spec init, std::string_view name, source_location where = source_location::current());
value constant(graph& g, float scalar, std::string_view name = "constant", source_location where = source_location::current());
value matmul(value a, value b, bool transpose_a = false, bool transpose_b = false, source_location where = source_location::current());
// Element-wise; b has a's shape, or the shape of a's last dimension (a bias), or is a scalar.
value add(value a, value b, source_location where = source_location::current());
value sub(value a, value b, source_location where = source_location::current());
value mul(value a, value b, source_location where = source_location::current());
value maximum(value a, value b, source_location where = source_location::current());
value relu(value x, source_location where = source_location::current());
value sigmoid(value x, source_location where = source_location::current());
value tanh(value x, source_location where = source_location::current());
// Sum over the first dimension: [n, m] -> [m].
value reduce_sum_rows(value x, source_location where = source_location::current());
// Sum over everything: -> [].
value reduce_sum(value x, source_location where = source_location::current());
// Index of the largest element of each row: [n, m] -> i32 [n].
value argmax(value x, source_location where = source_location::current());
// Rows whose argmax equals the label: logits [n, c], labels i32 [n] -> i64 [].
value count_correct(value logits, value labels, source_location where = source_location::current());
// scale * sum over rows of -log softmax(logits)[label]: logits [n, c], labels i32 [n], scale f32 [] -> f32 [].
// With scale = 1 / (samples of the whole step), gradients of all workers add up to that of the mean.
value softmax_cross_entropy(value logits, value labels, value scale, source_location where = source_location::current());

struct idx_batch_options {
  std::int64_t batch = 128;       // samples per step of one worker
  std::uint64_t seed = 1;
  bool shuffle = true;            // order of samples: a pure function of (seed, epoch)
  std::int64_t part = 0, parts = 1;  // this worker's contiguous part of each global batch of batch * parts samples
  bool global_scale = true;       // scale = 1 / samples of the global batch, else 1 / samples of this part
};
struct idx_batch_values {
  value images;  // f32 [batch?, rows * columns], in [0, 1]
  value labels;  // i32 [batch?]
  value scale;   // f32 []
};
// Reads step after step, epoch after epoch; the last batch of an epoch is smaller (possibly empty for a part).
idx_batch_values idx_batch(graph& g, const idx_info& data, const idx_batch_options& options, source_location where = source_location::current());
// Steps of an epoch: ceil(samples / (batch * parts)).
std::uint64_t steps_per_epoch(const idx_info& data, const idx_batch_options& options);

// x [n, in] -> [n, units]: x * W + b, W uniform in +-1/sqrt(in), b too.
value dense(value x, std::int64_t units, std::string_view name, source_location where = source_location::current());

// The symbolic first dimension of fed batches.
inline constexpr dim batch_of(std::int64_t bound) { return dim{bound, 1}; }

}  // namespace troupe
