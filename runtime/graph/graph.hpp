#pragma once
// The graph that a program builds: ops, values, variables.
//
// Building never throws and never stops: a call whose operands do not fit returns an invalid value,
// the graph remembers the first such error with the user's line, and whoever compiles the graph
// gets it. So a model reads as a page of plain calls. A graph belongs to one thread while it is
// built.
//
// A graph may compute its values as they are added (runtime/layers/eager.hpp): then shapes are
// those of the moment, without bounds.
//
// Every function that makes an op takes the user's line as its last, defaulted argument.
// Names consist of letters, digits, '_', '-', '.' and '/'.

#include "troupe/runtime/graph/graph_regions.hpp"
#include "troupe/runtime/plan/plan.hpp"
#include "troupe/schema/attributes.hpp"
#include "troupe/schema/error.hpp"
#include "troupe/schema/ids.hpp"
#include "troupe/schema/source_location.hpp"
#include "troupe/schema/tensor_spec.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace troupe {

class graph;
class op_table;
struct op_row;

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
  // Branch or loop that it lies in (runtime/graph/graph_regions.hpp); 0: none.
  std::uint32_t region = 0;
  std::optional<initializer_spec> initializer;  // of a "variable"
  std::optional<double> average_rate{};         // of one that is a moving average
};

// See moving_average() in runtime/graph/ops.hpp.
struct average {
  value variable, sample;
  value beside;  // the steps that compute it move the average
};

// What a run that names it does to a variable once it has ended; see runtime/layers/updates.hpp.
struct graph_update {
  enum class kind : std::uint8_t {
    assign,      // the operand is the new value
    assign_add,  // the operand is added to it
    apply,       // the operand is a gradient, which an optimizer applies
    average,     // the operand is a sample, which a moving average follows
  };
  std::string name;  // that runs ask for; several updates may share it
  kind type = kind::assign;
  value variable, operand;
  value rate{};  // apply: f32[], a factor of the learning rate; invalid: 1
  value when{};  // bool[]: if not true, the variable stays as it is; invalid: true
  optimizer_spec optimizer{};
  learning_rate_schedule schedule{};
  std::string state{};      // apply: whose slots beside the variable it uses
  double average_rate = 0;  // average
  source_location source{};
};

class graph {
 public:
  explicit graph(const op_table& ops);
  virtual ~graph() = default;
  graph(const graph&) = delete;
  graph& operator=(const graph&) = delete;

  // Appends an op: runs its shape rule, records an error with the user's line where the operands do
  // not fit. Returns output 0 (invalid on error); output(i) of the same node by value{g, node, i}.
  // `initializer`: of a variable.
  value add(std::string type, std::span<const value> inputs, attributes attrs,
            std::string_view name, const source_location& where,
            std::optional<initializer_spec> initializer = std::nullopt);

  // Branches and loops; what programs call is in runtime/graph/control_flow.hpp.
  graph_regions& regions() noexcept { return regions_; }
  const graph_regions& regions() const noexcept { return regions_; }
  // As add(), for ops that make up branches and loops: into a region, with operands as they are.
  value add_in(std::uint32_t region, std::string type, std::span<const value> inputs,
               attributes attrs, std::string_view name, const source_location& where,
               std::optional<initializer_spec> initializer = std::nullopt);
  // Of a graph that computes: whether a value of bool[] is true.
  virtual std::optional<bool> known(const value&) const { return std::nullopt; }
  bool computes() const noexcept { return now() != nullptr; }

  // Scopes: names and devices of ops added until the scope ends. A device is checked at once
  // (unknown device: an error).
  struct scopes {
    // Of ops; where nothing is shared, of variables, too.
    std::string name, device;
    bool is_shared = false;                      // see share_variables()
    std::string variable_name, variable_device;  // of variables, where they are shared
  };
  class scope {
   public:
    ~scope();
    scope(const scope&) = delete;
    scope& operator=(const scope&) = delete;

   private:
    friend class graph;
    scope(graph& g, scopes before) : graph_(g), before_(std::move(before)) {}
    graph& graph_;
    scopes before_;
  };
  scope name_scope(std::string_view name,
                   const source_location& where = source_location::current());
  scope device_scope(std::string_view device,
                     const source_location& where = source_location::current());
  // For parts of a graph that share variables, towers on several devices above all: until it ends,
  // a variable is named, and placed, by the scopes that are opened inside of this one alone, not by
  // those around it; and if the graph has a variable of that name already, it is taken instead of a
  // new one. So a function of layers that is called in several of these scopes uses the same
  // variables each time. Another shape or other initial values for the same name, or the name of an
  // op, are an error; so is a moving average that would be moved twice. Other ops are as without
  // it.
  scope share_variables();

  // While it lives, a graph may be compiled, which adds ops to it, for no other purpose than to
  // look at what comes out: at its end what was added meanwhile is taken away again, and an error
  // that was recorded is forgotten. Values of those ops must not be used any more.
  class trial {
   public:
    explicit trial(graph& g) : graph_(g), nodes_(g.nodes_.size()), error_(g.error_) {}
    ~trial() {
      graph_.cut_back(nodes_);
      graph_.error_ = std::move(error_);
    }
    trial(const trial&) = delete;
    trial& operator=(const trial&) = delete;

   private:
    graph& graph_;
    std::size_t nodes_;
    std::optional<error> error_;
  };

  // A line that a file tells of, whose name lives as long as the graph.
  source_location line_of(std::string file, std::uint32_t line) {
    return {files_.insert(std::move(file)).first->c_str(), line};
  }

  // The name that an op added now with this one would get.
  std::string name_for(std::string_view base) const;

  // By node: whether one of `roots`, values of this graph, depends on it. Who needs something of a
  // loop needs the whole of it.
  std::vector<bool> needed_by(std::span<const value> roots) const;

  // Whether it is a value of this graph.
  bool has(const value& v) const noexcept {
    return v.owner == this && v.node < nodes_.size() && v.output < nodes_[v.node].outputs.size();
  }

  void record(error e);  // keeps the first
  const std::optional<error>& first_error() const noexcept { return error_; }
  const op_table& ops() const noexcept { return ops_; }
  std::span<const graph_node> nodes() const noexcept { return nodes_; }
  const graph_node& node(std::uint32_t i) const { return nodes_[i]; }
  graph_node& node(std::uint32_t i) { return nodes_[i]; }
  std::vector<value> variables();
  // `variable` is one of this graph, and no average yet; the others belong to this graph.
  void add_average(const average& a, double rate);
  std::span<const average> averages() const noexcept { return averages_; }
  // Its name is scoped as those of ops are; its values are of this graph.
  void add_update(graph_update u);
  std::span<const graph_update> updates() const noexcept { return updates_; }

 protected:
  // Of a graph that computes: the step that it is in.
  virtual const tag* now() const noexcept { return nullptr; }
  // An op was added, as the last one; where that is an error, it is taken away again.
  virtual result<void> on_added(const graph_node&) { return {}; }
  // Takes away the ops from `nodes` on. Values of them must not be used any more.
  void cut_back(std::size_t nodes);
  void forget_error() noexcept { error_.reset(); }

 private:
  std::string unique_name(std::string full);
  // The scope's name, and this one.
  std::string scoped(std::string_view type, std::string_view base) const;
  // The one of that name; or an error, with the line of either.
  value shared_variable(const graph_node& wanted);
  // The region of an op that takes them.
  std::uint32_t innermost(std::span<const value> values) const;
  result<void> check_operands(std::string_view type, std::span<const value> inputs,
                              const op_row& row) const;

  const op_table& ops_;
  std::vector<graph_node> nodes_;
  graph_regions regions_{*this};
  std::optional<std::uint32_t> region_to_be_;  // of the op that is being added, by add_in()
  std::vector<average> averages_;
  std::vector<graph_update> updates_;
  std::optional<error> error_;
  scopes scopes_;
  std::set<std::string> files_;  // that lines of loaded ops name
  // Taken names, with the next suffix to try.
  std::unordered_map<std::string, std::uint32_t> names_;
};

// The symbolic first dimension of fed batches.
inline constexpr dim batch_of(std::int64_t bound) { return dim{bound, 1}; }
// The shape of a batch: {dtype::f32, batch_of(128, {28, 28})}.
inline shape batch_of(std::int64_t bound, std::initializer_list<std::int64_t> sizes) {
  std::vector<dim> dims{batch_of(bound)};
  for (const auto n : sizes) dims.push_back({n, 0});
  const auto s = shape::from(dims);
  expects(s.has_value(), "a batch has at most 8 dimensions, none of them negative, and a product");
  return *s;
}

}  // namespace troupe
