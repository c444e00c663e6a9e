#pragma once
// What runs an op on a device, and the table from op names to kernels.
//
// The engine decides when, a kernel only computes. Shapes are decided above (runtime/ has the shape
// rules): a kernel is told the shapes of its inputs and outputs whenever they change, and allocates
// nothing in run().
//
// Threading: one kernel object is used from one stream's thread at a time.
//
// K-1  run() reads inputs and writes outputs only; outputs never alias inputs unless the row says
//      can_run_in_place, in which case outputs[0] may be the same buffer as inputs[0].
// K-2  Equal inputs and tag give equal bits, whatever the thread, stream, process or position in a
//      fused group.
// K-3  Tensors of zero elements are legal everywhere.

#include "troupe/devices/tensor.hpp"
#include "troupe/schema/attributes.hpp"
#include "troupe/schema/error.hpp"
#include "troupe/schema/ids.hpp"

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

namespace troupe {

class host_device;

class kernel {
 public:
  virtual ~kernel() = default;
  // Concrete shapes; called before the first run() and whenever a shape differs from the last call.
  virtual result<void> prepare(std::span<const tensor_spec> inputs,
                               std::span<const tensor_spec> outputs) = 0;
  virtual result<void> run(const tag& t, std::span<const tensor> inputs,
                           std::span<tensor> outputs) = 0;
};

using kernel_factory =
    std::function<result<std::unique_ptr<kernel>>(const attributes&, host_device&)>;

struct kernel_row {
  kernel_factory make;
  bool can_run_in_place = false;
};

// Op name -> kernel. Built by main() or a test (make_host_kernels) and passed down.
class kernel_table {
 public:
  void add(std::string op, kernel_row row) {
    rows_.insert_or_assign(std::move(op), std::move(row));
  }
  const kernel_row* find(const std::string& op) const {
    auto at = rows_.find(op);
    return at != rows_.end() ? &at->second : nullptr;
  }
  const std::unordered_map<std::string, kernel_row>& rows() const noexcept { return rows_; }

 private:
  std::unordered_map<std::string, kernel_row> rows_;
};

}  // namespace troupe
