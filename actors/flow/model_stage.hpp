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
// A graph of several feeds or fetches takes and makes structs of tensors, whose fields are called
// as those are (tensor_fields.hpp):
//
//   auto answers = map(batch(questions, {.count = 16}), graph_stage_of<question, answer>(s, g));
//
// Threading: replicas share the runner; runs of several threads go on at once.
// Ownership: session and graph outlive the topology.
// Errors: of the runner (actors/session/graph_runner.hpp); tensors of a batch that have different
// shapes or types.

#include "troupe/actors/flow/tensor_fields.hpp"
#include "troupe/actors/session/session.hpp"

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace troupe {

// One item's tensors; those of a batch, which are stacked, and come back one by one.
result<std::vector<tensor>> run_ports(graph_runner& r, const std::vector<std::string>& feeds,
                                      const std::vector<std::string>& fetches,
                                      std::vector<tensor> item);
result<std::vector<std::vector<tensor>>> run_ports(graph_runner& r,
                                                   const std::vector<std::string>& feeds,
                                                   const std::vector<std::string>& fetches,
                                                   const std::vector<std::vector<tensor>>& batch);

class graph_stage {
 public:
  graph_stage(session& s, const graph& g, std::string feed, std::string fetch,
              const compile_options& options = {.name = "stage"});
  // The same on a runner that the program has, such as one on a store.
  graph_stage(std::shared_ptr<graph_runner> runner, std::string feed, std::string fetch);
  result<tensor> operator()(tensor x) const;
  result<std::vector<tensor>> operator()(std::vector<tensor> batch) const;

 private:
  std::shared_ptr<graph_runner> runner_;
  std::string feed_, fetch_;
};

template <class In, class Out>
  requires tensor_structs<In, Out>
class graph_stage_of {
 public:
  graph_stage_of(session& s, const graph& g, const compile_options& options = {.name = "stage"})
      : graph_stage_of(s.runner(g, options)) {}
  explicit graph_stage_of(std::shared_ptr<graph_runner> runner) : runner_(std::move(runner)) {}
  result<Out> operator()(const In& x) const {
    auto out = run_ports(*runner_, feeds_, fetches_, tensors_of(x));
    if (!out) return std::move(out.error());
    return with_tensors<Out>(x, std::move(*out));
  }
  result<std::vector<Out>> operator()(const std::vector<In>& batch) const {
    auto out = run_ports(*runner_, feeds_, fetches_, tensors_of_each(batch));
    if (!out) return std::move(out.error());
    return with_tensors_of_each<Out>(batch, std::move(*out));
  }

 private:
  std::shared_ptr<graph_runner> runner_;
  std::vector<std::string> feeds_ = names_of_tensors<In>(), fetches_ = names_of_tensors<Out>();
};

// Tensors of one shape and type as one, along a new first dimension, and back.
result<tensor> stack(const std::vector<tensor>& parts);
result<std::vector<tensor>> unstack(const tensor& all);

}  // namespace troupe
