#pragma once
// Branches and loops inside a graph.
//
//   // |x|, and how often 2 has to be multiplied until it is more than 1000
//   auto y = cond(less(x, zero), [&] { return neg(x); }, [&] { return x; });
//   auto n = while_loop({zero, one}, [&](auto v) { return less(v[1], thousand); },
//                       [&](auto v) { return std::vector{add(v[0], one), mul(v[1], two)}; },
//                       {.iterations_max = 100})[0];
//
// The functions run once, when the graph is built: they add the ops of a branch, a condition or a
// body, which may use any value from around; what they return is what gets out. Of the branches one
// is computed in each step, and the body as often as the condition holds, which is asked before
// each iteration. Branches and bodies may hold branches and loops themselves, and ops on other
// devices.
//
// Conditions are bool[]. Both branches return as many values, of equal types and shapes; a body
// returns its variables with the types and shapes that they had. Readers, inputs and variables that
// are written in a branch or a loop are read once per step, as everywhere.
//
// Gradients: through the branch that is taken; through the iterations of a loop, the last one
// first. What the body's gradients need is kept for each iteration, so a loop that has gradients
// says how many there are at most (iterations_max). Gradients of gradients of a loop are an error.
//
// Runs of a loop follow each other: that of the next step begins when this one's has ended.
// Iterations overlap as far as credits allow.
//
// In an eager (runtime/layers/eager.hpp) the condition is known, so that only the branch that is
// taken runs, and a loop is the program's.
//
// Cost: an untaken branch a message for each of its ops; an iteration three hops for each variable
// besides its ops. What does not follow from the variables is computed once, outside of the loop,
// but for ops that may fail (indices, ops of users) or draw numbers.
// Errors: usage, with the line of the call; while the graph runs: failed, a loop that makes more
// than iterations_max. Where the graph has an error they return invalid values, as many as there
// would be else: a branch is called for their number.

#include "troupe/schema/source_location.hpp"

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <span>
#include <string_view>
#include <vector>

namespace troupe {

struct value;

// By name (actors/session/graph_runner.hpp), results are "cond/merge" ("cond/merge_1", .. of
// further ones). What is made in a branch or loop can be used outside of it, fetched or
// differentiated by, only if it is returned from there.
using branch_function = std::function<std::vector<value>()>;
std::vector<value> cond(value condition, const branch_function& then,
                        const branch_function& otherwise,
                        source_location where = source_location::current());
// Of one value.
value cond(value condition, const std::function<value()>& then,
           const std::function<value()>& otherwise,
           source_location where = source_location::current());

struct while_options {
  std::uint64_t iterations_max = 0;  // more of them fail the step; 0: any number
  std::string_view name = "loop";
};
using loop_condition_function = std::function<value(std::span<const value>)>;
using loop_body_function = std::function<std::vector<value>(std::span<const value>)>;
// The variables when the condition does not hold any more: by name "loop/end", "loop/end:1", ..
std::vector<value> while_loop(std::span<const value> initial,
                              const loop_condition_function& condition,
                              const loop_body_function& body, const while_options& options = {},
                              source_location where = source_location::current());
std::vector<value> while_loop(std::initializer_list<value> initial,
                              const loop_condition_function& condition,
                              const loop_body_function& body, const while_options& options = {},
                              source_location where = source_location::current());

}  // namespace troupe
