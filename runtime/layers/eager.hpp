#pragma once
// Values that are computed at once: the functions that add ops to a graph (runtime/graph/ops.hpp)
// run them here as they are called.
//
//   auto e = s.eager();                   // of a session; or eager(ops, kernels, device)
//   const auto x = e->value_of(pixels), w = e->value_of(weights);
//   const auto y = relu(matmul(x, w));
//   const auto dw = gradients(*e, reduce_sum(y), std::array{w});
//   const result<tensor> t = e->read(y);  // to_string(*t) (devices/tensor_text.hpp) shows it
//
// An eager is a graph that keeps a tensor for each of its values, so whatever builds a graph,
// layers and gradients too, computes here what a step of that graph would: the same kernels,
// without fusion, bit for bit.
//
// Ownership: tensors live as long as the eager, or the tape in which they were made. Read a tensor
// to keep it: the values of a tape that has ended must not be used any more; where one is, it is an
// error, or a later op's value.
// Threading: one thread.
// Errors: as in a graph, a call that cannot be done returns an invalid value; first_error() says
// why, with the user's line; take_error() goes on after it.
//
// EA-1  A value of an eager has an exact shape.
// EA-2  Equal calls after equal calls give equal bits, random ops included: those follow from seed,
//       name and step.

#include "troupe/devices/kernel.hpp"
#include "troupe/devices/tensor.hpp"
#include "troupe/runtime/graph/build.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

class host_device;

class eager final : public graph {
 public:
  // All of them outlive the eager.
  eager(const op_table& ops, const kernel_table& kernels, host_device& device,
        std::uint64_t seed = 1);

  // A value from outside. Names matter to random ops only.
  value value_of(tensor t, std::string_view name = "value",
                 source_location where = source_location::current());
  // What a value is. An error: the first that was recorded, or a value that is not of here.
  result<tensor> read(value v) const;

  // What variables of this name (f32; with their scopes: "dense_1/weights") that are made from now
  // on begin with, instead of their initial values: those of a training, for example, so that
  // layers compute with them.
  void set_variable(std::string name, tensor t);
  // What readers and random ops take for the step that they are in; 0 at first.
  void set_step(std::uint64_t step) noexcept { tag_.step = step; }
  // The first error, which is forgotten.
  std::optional<error> take_error();

  // What is made while a tape lives ends with it, tensors and values: a loop has one per step.
  class tape {
   public:
    explicit tape(eager& e) : eager_(e), begin_(e.nodes().size()) {}
    ~tape() { eager_.end_tape(begin_); }
    tape(const tape&) = delete;
    tape& operator=(const tape&) = delete;

   private:
    eager& eager_;
    std::size_t begin_;
  };

 private:
  const tag* now() const noexcept override { return &tag_; }
  std::optional<bool> known(const value& v) const override;
  result<void> on_added(const graph_node& n) override;
  result<void> compute(const graph_node& n, std::vector<tensor>& outputs);
  result<tensor> initial(const graph_node& n) const;
  void end_tape(std::size_t begin);

  const kernel_table& kernels_;
  host_device& device_;
  std::uint64_t seed_;
  tag tag_{};
  std::map<std::string, tensor, std::less<>> variables_;  // by name, of set_variable()
  // Of value_of(), for the input that is just being added.
  tensor given_;
  std::vector<std::vector<tensor>> tensors_;  // by node and output
};

}  // namespace troupe
