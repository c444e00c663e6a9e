#pragma once
// What the engine knows of each op type without running it: how many operands, which shapes, which
// gradient.
//
// The table is built explicitly (make_op_table) and passed down; a row's parts live in
// runtime/graph/ops/, one file per family. Kernels of the same names live in devices/
// (kernel_table).

#include "troupe/runtime/graph/graph.hpp"
#include "troupe/schema/attributes.hpp"
#include "troupe/schema/dtype_set.hpp"
#include "troupe/schema/error.hpp"
#include "troupe/schema/ids.hpp"
#include "troupe/schema/library_id.hpp"
#include "troupe/schema/tensor_spec.hpp"

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace troupe {

// Output specs from input specs. At compile time inputs may be symbolic and `at` is null: the
// answer is a bound. At run time inputs are concrete and `at` is the tag: the answer is exact (a
// reader's last batch is smaller). An error says which constraint does not hold, with the shapes;
// the caller adds the user's line.
using shape_rule = std::function<result<std::vector<tensor_spec>>(
    const attributes&, std::span<const tensor_spec> inputs, const tag* at)>;

// Gradients of a node as graph: given d(loss)/d(output i) (invalid value: no gradient flows there),
// the gradients for each input (invalid value: not differentiable in it).
using gradient_rule = std::function<std::vector<value>(graph& g, const graph_node& n,
                                                       std::span<const value> output_gradients)>;

struct op_row {
  std::uint32_t inputs = 0;
  shape_rule shapes{};
  gradient_rule gradient{};  // empty: not differentiable
  // Operands are broadcast to output 0, the only one: can be fused behind its producers.
  bool is_elementwise = false;
  bool is_source = false;  // fires without inputs
  // A source that gives the same in every step: an actor computes it once.
  bool is_constant = false;
  // What it computes follows from the tag too, not from operands and attributes alone.
  bool depends_on_step = false;
  // Makes up branches and loops (runtime/plan/loop_rules.hpp): no kernel, an actor of its own.
  bool is_control = false;
  // Output 0 is input 0, the same tensor: nothing is computed or copied.
  bool is_forwarding = false;
  // That operand 0 may have, which graph::add() sees to; empty: the shape rule does.
  dtype_set types{};
  // Of ops that take any number of operands from `inputs` on; 0: exactly `inputs`.
  std::uint32_t inputs_max = 0;
  // That it comes from, filled in by add_ops(); null: it ships with Troupe.
  std::shared_ptr<const library_id> library{};
};

class op_table {
 public:
  void add(std::string op, op_row row) { rows_.insert_or_assign(std::move(op), std::move(row)); }
  const op_row* find(const std::string& op) const {
    auto at = rows_.find(op);
    return at != rows_.end() ? &at->second : nullptr;
  }
  const std::map<std::string, op_row>& rows() const noexcept { return rows_; }

 private:
  std::map<std::string, op_row> rows_;
};

// All ops that ship with Troupe.
op_table make_op_table();

}  // namespace troupe
