#pragma once
// What enqueues an op on a CUDA stream, and the table from op names to such kernels.
//
// Like devices/kernel.hpp, but nothing is computed when enqueue() returns: it launches on the
// stream, takes addresses of the device, and never waits. Nothing here includes CUDA: kernels are
// written against chip_services and code/launch.hpp, behind which tests put the host.
//
// Threading: one kernel object is used by the thread that enqueues on its stream.
// Ownership: operands, results and workspace belong to the caller, and stay until an event behind
// the work is done.
//
// KC-1  prepare() before the first enqueue() and whenever a shape differs; it may compile and ask
//       libraries, enqueue() may not allocate.
// KC-2  enqueue() makes the same calls with the same arguments for equal shapes and addresses, so
//       that a captured graph can be replayed; a random op reads the step from draw_at where that
//       is given.
// KC-3  Bad data (an index or label outside) is reported to the stream's fault and leaves memory
//       alone; the result is then meaningless.
// KC-4  An op without a kernel is an error (not_found): "no CUDA kernel for X; placed on the host".
// KC-5  Addresses are multiples of 16 bytes. outputs[0] may be inputs[0] where the host's row says
//       can_run_in_place, which element-wise ops do.

#include "troupe/devices/cuda/code/geometry.hpp"
#include "troupe/devices/cuda/code/launch.hpp"
#include "troupe/devices/cuda/fused_source.hpp"
#include "troupe/schema/attributes.hpp"
#include "troupe/schema/error.hpp"
#include "troupe/schema/ids.hpp"
#include "troupe/schema/tensor_spec.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace troupe::cuda {

// Where and for whom a kernel is enqueued.
struct launch_site {
  code::stream_of_chip on;
  std::string_view device, op;     // names, for errors
  unsigned int op_number = 0;      // in the stream's fault
  std::byte* workspace = nullptr;  // workspace_bytes(), aligned to 256
  tag t;
  const std::uint64_t* draw_at = nullptr;  // where the device finds the step; null: it is t's
  code::fault* faults = nullptr;
};

// f32 inputs may be rounded before they are multiplied.
enum class product_mode : std::uint8_t { exact, tf32 };
enum class epilogue : std::uint8_t { none, bias, bias_relu, bias_gelu_tanh };

// c[m, n] = op(a) op(b) (+ what was there, where it adds), row-major, `batches` times. Leading
// dimensions and steps count elements.
struct product {
  dtype type = dtype::f32;  // of all three; sums of f16 and bf16 are f32
  product_mode mode = product_mode::exact;
  epilogue end = epilogue::none;
  std::int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  std::int64_t stride_a = 0, stride_b = 0, stride_c = 0;  // from a row to the next, as it lies
  std::int64_t batches = 1, step_a = 0, step_b = 0, step_c = 0;
  bool adds = false;
  friend bool operator==(const product&, const product&) = default;
};

enum class convolution_part : std::uint8_t { output, input_gradient, weights_gradient };
// x [n, c, h, w], w [o, c / groups, kh, kw], y [n, o, oh, ow]; padding alike on both sides.
struct convolution {
  convolution_part part = convolution_part::output;
  dtype type = dtype::f32;
  product_mode mode = product_mode::exact;
  std::int64_t x[4]{}, w[4]{}, y[4]{};
  std::int64_t stride[2]{1, 1}, padding[2]{0, 0}, dilation[2]{1, 1};
  std::int64_t groups = 1;
  friend bool operator==(const convolution&, const convolution&) = default;
};

// What kernels need of a chip beyond code/launch.hpp. Plans are made by prepare().
class chip_services {
 public:
  struct plan {
    virtual ~plan() = default;
    std::size_t workspace_bytes = 0;
  };
  using plan_ref = std::shared_ptr<const plan>;

  virtual ~chip_services() = default;
  virtual result<plan_ref> plan_product(const product& p) = 0;
  virtual result<void> multiply(const launch_site& at, const plan& p, const void* a, const void* b,
                                const void* bias, void* c, std::byte* workspace) = 0;
  virtual result<plan_ref> plan_convolution(const convolution& c) = 0;
  // x, w or y: what is written is that of the part.
  virtual result<void> convolve(const launch_site& at, const plan& p, void* x, void* w, void* y,
                                std::byte* workspace) = 0;
  virtual result<plan_ref> plan_elements(const fused_source& source, std::string_view what) = 0;
  virtual result<void> run_elements(const launch_site& at, const plan& p,
                                    const fused_source& source,
                                    std::span<const std::byte* const> inputs,
                                    std::byte* output) = 0;
  // On the device.
  virtual result<void> copy(const launch_site& at, void* to, const void* from,
                            std::size_t bytes) = 0;
  // A copy on the device, whole when this returns and there as long as the handle is, which goes
  // when nothing on the device uses it any more: for constants, by prepare().
  virtual result<std::shared_ptr<const std::byte>> keep(std::span<const std::byte> bytes) = 0;
  virtual result<void> fill_zero(const launch_site& at, void* to, std::size_t bytes) = 0;
  // Of a launch of code/launch.hpp.
  virtual result<void> check_launch(const launch_site& at, int status) = 0;
  virtual std::size_t sort_workspace_bytes(std::int64_t n) = 0;
  virtual int multiprocessors() const noexcept = 0;
};

using inputs_of = std::span<const std::byte* const>;
using outputs_of = std::span<std::byte* const>;

class cuda_kernel {
 public:
  virtual ~cuda_kernel() = default;
  virtual result<void> prepare(std::span<const tensor_spec> inputs,
                               std::span<const tensor_spec> outputs) = 0;
  virtual std::size_t workspace_bytes() const noexcept { return 0; }  // valid after prepare()
  virtual result<void> enqueue(const launch_site& at, inputs_of inputs, outputs_of outputs) = 0;
};

using cuda_kernel_factory =
    std::function<result<std::unique_ptr<cuda_kernel>>(const attributes&, chip_services&)>;

class cuda_kernel_table {
 public:
  void add(std::string op, cuda_kernel_factory make) {
    rows_.insert_or_assign(std::move(op), std::move(make));
  }
  bool has(const std::string& op) const { return rows_.contains(op); }
  // Error: KC-4.
  result<std::unique_ptr<cuda_kernel>> make(const std::string& op, const attributes& attrs,
                                            chip_services& chip) const;
  std::vector<std::string> ops() const;  // sorted

 private:
  std::unordered_map<std::string, cuda_kernel_factory> rows_;
};

cuda_kernel_table make_cuda_kernels();
// A fused group, of element-wise ops only. The last step's output is the only one.
result<std::unique_ptr<cuda_kernel>> make_fused_cuda_kernel(std::vector<element_step> steps,
                                                            chip_services& chip);

// One op of a group; operands as those of element_step.
struct group_step {
  std::string op;
  attributes attrs;
  std::vector<std::int32_t> operands;
  dtype type = dtype::f32;
};
// A fused group whose first op may be of any kind (devices/host/fused_kernel.hpp: FK-2, FK-3). Bias
// and ReLU or the tanh form of GELU behind a product are part of its call. `table` outlives it.
result<std::unique_ptr<cuda_kernel>> make_cuda_group(std::vector<group_step> steps,
                                                     const cuda_kernel_table& table,
                                                     chip_services& chip);

// Pure: the axes that "axes" names are reduced, without it all
// (devices/host/loops/reduction_walk.hpp); neighbours that are walked alike become one loop.
code::reduction reduction_over(const shape& x, const attributes& attrs);

}  // namespace troupe::cuda
