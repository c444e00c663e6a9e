#pragma once
// What the compiler makes of a graph, for people: what each pass did, where each actor stands and
// why, what memory it takes, which tensors cross between tasks; as text, JSON, and a picture.
//
//   auto text = troupe::explain(g, loss, {.workers = 2, .shards = 2});
//
// EX-1  Explaining runs nothing, opens nothing that the graph names, and leaves a graph as it was.
// EX-2  The plan is the one that a job with these numbers would get, on the tasks that are given.
// EX-3  No list of the text is cut without the number that is left out; JSON has all but changes of
//       a pass beyond its limit (RP-2).
// EX-4  Texts are functions of plan and report.
//
// Threading: any thread; a graph belongs to one.

#include "troupe/runtime/compile/compile.hpp"
#include "troupe/runtime/compile/compile_report.hpp"
#include "troupe/runtime/graph/graph.hpp"
#include "troupe/runtime/picture/picture.hpp"
#include "troupe/runtime/plan/plan.hpp"
#include "troupe/schema/error.hpp"

#include <span>
#include <string>

namespace troupe {

struct explained_plan {
  troupe::plan plan;
  compile_report report;
};

// As compile_training() and compile_steps(). `where`: other places than the spec has, with those of
// replicas.
result<explained_plan> plan_training(graph& g, value loss, const training_spec& spec,
                                     const compile_options& options,
                                     const task_map* where = nullptr);
result<explained_plan> plan_steps(graph& g, std::span<const value> fetches,
                                  const compile_options& options);

std::string explain(const explained_plan& e);
// One line: name, update, workers, shards, passes, tasks, actors, edges, largest.
std::string explain_json(const explained_plan& e);
// A band per task; boxes tell why they stand there.
picture picture_of(const explained_plan& e);

// All at once.
result<std::string> explain(graph& g, value loss, const training_spec& spec = {},
                            const compile_options& options = {});
result<std::string> explain(graph& g, std::span<const value> fetches,
                            const compile_options& options = {});

}  // namespace troupe
