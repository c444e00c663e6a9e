#pragma once
// Values of a graph that are known while it is built: ONNX computes shapes, axes and sizes with ops
// like any other, and a graph wants them as numbers. What follows from constants is computed by the
// host's kernels when it is asked for, and only then. Only runtime/onnx/ includes this.

#include "troupe/devices/host/host_device.hpp"
#include "troupe/devices/kernel.hpp"
#include "troupe/runtime/graph/graph.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>

namespace troupe::onnx {

class known_values {
 public:
  explicit known_values(const graph& g) : graph_(g) {}

  // What an input will be fed with.
  void set_input(std::uint32_t node, tensor value) {
    inputs_.insert_or_assign(node, std::move(value));
  }
  // nullopt: it follows from what is only fed, or is more than sizes and axes ever are (see the
  // limits).
  std::optional<tensor> of(value v);
  // Of what of() did not give: as the end of a sentence.
  const std::string& why_not() const noexcept { return why_not_; }
  // Room for a tensor that is made while the graph is built, and is not in the file. False: there
  // have been too many, as a hostile model may ask for.
  bool take_room(std::size_t bytes) {
    if (bytes > made_bytes_max - made_bytes_) return false;
    made_bytes_ += bytes;
    return true;
  }
  // Inputs whose values were asked for.
  const std::set<std::uint32_t>& used_inputs() const noexcept { return used_; }

 private:
  // Of all results of one node; and of all that were ever computed, since a hostile model may ask
  // for many.
  static constexpr std::size_t made_bytes_max = std::size_t{1} << 28U;
  static constexpr std::size_t node_bytes_max = std::size_t{1} << 20U,
                               all_bytes_max = std::size_t{1} << 26U;

  bool compute(std::uint32_t node);
  std::optional<std::vector<tensor>> run(const graph_node& n, const std::vector<tensor>& in);

  const graph& graph_;
  std::optional<kernel_table> kernels_;
  std::optional<host_device> device_;
  std::unordered_map<std::uint32_t, tensor> inputs_;
  std::unordered_map<std::uint32_t, std::vector<tensor>> results_;  // empty: not known
  std::set<std::uint32_t> used_;
  // And all that they follow from, so that each is walked once.
  std::unordered_set<std::uint32_t> asked_;
  std::size_t bytes_ = 0, made_bytes_ = 0;
  std::string why_not_;
};

}  // namespace troupe::onnx
