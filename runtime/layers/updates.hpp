#pragma once
// What runs do to variables: updates, which a graph has beside its ops, and a run asks for by name.
//
//   const auto loss = named(reduce_sum(square(matmul(x, w) - y)), "loss");
//   const auto done = minimize(loss, adam({.learning_rate = 1e-3}));          // update "train"
//   assign_add(seen, constant(g, 1.0F), "count");                             // update "count"
//   ...
//   r->step({{"x", images}}, {"loss"}, {"train", "count"});    // actors/session/graph_runner.hpp
//
// Several updates may have one name: a run that names it does all of them. A run computes what it
// fetches, and the operands of its updates, from one version of its variables; then all of its
// updates are made at once, or none is. Two updates of one variable cannot be made by one run. A
// variable that no update of a run names stays as it is.
//
// Errors: as of ops, recorded by the graph with the user's line. An eager has no runs, and so no
// updates. Threading: as of graph.

#include "troupe/runtime/graph/graph.hpp"
#include "troupe/runtime/plan/optimizer.hpp"

#include <source_location>
#include <string_view>
#include <vector>

namespace troupe {

// The variable becomes `to`, which has its spec.
void assign(value variable, value to, std::string_view update,
            source_location where = source_location::current());
// `by`, which has the variable's spec, is added to it.
void assign_add(value variable, value by, std::string_view update,
                source_location where = source_location::current());

// v, output 0 of its op, fetched under this name, which no other op of its graph has, and none may
// get afterwards: named(loss, "loss").
value named(value v, std::string_view name, source_location where = source_location::current());
// Those whose names begin so: of a name scope, "encoder/".
std::vector<value> variables_in(graph& g, std::string_view prefix);

// An update as a value; the functions here make one of what they are given. What is wrong with it
// is recorded.
void add_update(graph_update u);

struct apply_options {
  std::string_view name = "train";  // of the update
  // Steps count from 0: those that this optimizer has applied to the variable before.
  learning_rate_schedule schedule{};
  // f32[], which a program may feed: a factor of the optimizer's learning rate. To feed the rate
  // itself, give the optimizer a learning rate of 1.
  value rate{};
  // bool[]: where it is false, the variable and the optimizer's slots stay as they are.
  value when{};
  // Slots of this name are used, and made where there are none. Empty: those named as the
  // optimizer's type. So two updates by one type of optimizer share moments and counts; give one of
  // them a name to have its own.
  std::string_view state{};
};
// An optimizer (runtime/plan/optimizer.hpp) applies a gradient, which has the variable's spec, or
// any other value in the place of one.
void apply(const optimizer_spec& o, value variable, value gradient,
           const apply_options& options = {}, source_location where = source_location::current());

struct minimize_options {
  std::string_view name = "train";
  learning_rate_schedule schedule{};
  value rate{}, when{};
  std::string_view state{};
  // Gradients are scaled so that the norm of all of them together is at most this; 0: not.
  double clip_global_norm = 0;
};
struct minimized {
  std::vector<value> variables;
  std::vector<value> gradients;  // of each, as they are applied
  // Of all gradients together, before they are clipped, f32[], fetched as "NAME/norm"
  // ("train/norm"; of a second call with that name "train/norm_1"); invalid where clip_global_norm
  // is 0.
  value norm;
};
// The gradients of the loss in all variables that it depends on, each applied to its variable;
// moving averages that the loss moves follow their samples. As train() does it, but that losses are
// not scaled where products are computed in f16: multiply the loss, and divide the gradients, and
// apply() them `when` they are finite.
minimized minimize(value loss, const optimizer_spec& o, const minimize_options& options = {},
                   source_location where = source_location::current());
// Of these variables alone, one at least; others stay as they are.
minimized minimize(value loss, const std::vector<value>& variables, const optimizer_spec& o,
                   const minimize_options& options = {},
                   source_location where = source_location::current());

}  // namespace troupe
