#pragma once
// A graph as a stage: of a graph_runner, or of a graph that a function builds.
//
//   auto opened = session::open({});
//   graph g((*opened)->ops());
//   named(softmax(dense(input(g, {dtype::f32, batch_of(64, {784})}, "x"), 10)), "y");
//   auto scored = map(batch(images, {.count = 64, .within = 5ms}), graph_stage(**opened, g, "x",
//   "y"));
//
// It takes a tensor, or a batch of them (a vector), which it stacks along a new first dimension,
// computes at once, and gives back as one tensor for each. So requests that come one by one are
// computed together, which is what batch() before it is for.
//
// Threading: replicas share the runner; runs of several threads go on at once.
// Ownership: session and graph outlive the topology.
// Errors: of the runner (actors/session/graph_runner.hpp); tensors of a batch that have different
// shapes or types.

#include "troupe/actors/session/session.hpp"

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace troupe {

class graph_stage {
 public:
  graph_stage(session& s, const graph& g, std::string feed, std::string fetch,
              const compile_options& options = {.name = "stage"});
  // The same on a runner that the program has, such as one on a store.
  graph_stage(std::shared_ptr<graph_runner> runner, std::string feed, std::string fetch);
  result<tensor> operator()(tensor x);
  result<std::vector<tensor>> operator()(std::vector<tensor> batch);

 private:
  std::shared_ptr<graph_runner> runner_;
  std::string feed_, fetch_;
};

// Tensors of one shape and type as one, along a new first dimension, and back.
result<tensor> stack(const std::vector<tensor>& parts);
result<std::vector<tensor>> unstack(const tensor& all);

}  // namespace troupe
