#pragma once
// A CUDA device for tests, and ops on it. Programs of this folder end with 77 where there is none
// (main.cpp), so that here there is one.

#include "tests/cuda_kernels/op_cases.hpp"
#include "troupe/devices/cuda/cuda_device.hpp"

#include <boost/test/unit_test.hpp>

#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace troupe::test {

// Names of ops stay as long as streams may speak of them.
inline std::string_view kept_name(const std::string& name) {
  static std::set<std::string> all;
  return *all.insert(name).first;
}

class gpu {
 public:
  // Generated kernels are kept in the folder TROUPE_TEST_KERNELS, where that is set: who runs the
  // tests several times compiles them once.
  explicit gpu(int each = 1, const cuda::device_options& options = {},
               cuda::chip_options of_chips = {}) {
    if (const char* folder = std::getenv("TROUPE_TEST_KERNELS");
        folder != nullptr && of_chips.binary_folder.empty())
      of_chips.binary_folder = folder;
    auto made = cuda::make_cuda_devices(each, options, of_chips);
    BOOST_REQUIRE_MESSAGE(made, (made ? "" : made.error().text()));
    devices_ = std::move(*made);
  }
  cuda::cuda_device& operator[](std::size_t i) { return *devices_[i]; }
  std::unique_ptr<cuda::cuda_stream> stream(stream_kind kind = stream_kind::compute,
                                            std::size_t device = 0) {
    auto s = devices_[device]->make_cuda_stream(kind);
    BOOST_REQUIRE_MESSAGE(s, (s ? "" : s.error().text()));
    return std::move(*s);
  }
  std::size_t size() const { return devices_.size(); }

 private:
  std::vector<std::unique_ptr<cuda::cuda_device>> devices_;
};

#define TROUPE_FINE(call)                                                                      \
  do {                                                                                         \
    auto troupe_result = (call);                                                               \
    BOOST_REQUIRE_MESSAGE(troupe_result, (troupe_result ? "" : troupe_result.error().text())); \
  } while (false)

inline std::span<std::byte> bytes_of(device_memory m) { return {m.bytes, m.size_bytes}; }

// An op with its memory on a device, ready to be enqueued any number of times.
class placed_op {
 public:
  placed_op(const op_case& c, cuda::cuda_device& device, cuda::cuda_stream& stream)
      : case_(c), stream_(stream), name_(kept_name(c.op)) {
    static const auto table = cuda::make_cuda_kernels();
    if (auto made = table.make(c.op, c.attrs, device.chip()))
      kernel_ = std::move(*made);
    else
      problem_ = made.error().text();
    std::vector<tensor_spec> specs;
    for (const auto& t : c.inputs) specs.push_back(t.spec());
    if (kernel_ != nullptr)
      if (auto ok = kernel_->prepare(specs, c.outputs); !ok) problem_ = ok.error().text();
    if (!problem_.empty()) return;
    for (const auto& t : c.inputs) inputs_.push_back(take(t.size_bytes()));
    for (const auto& s : c.outputs) outputs_.push_back(take(s.size_bytes()));
    workspace_ = take(kernel_->workspace_bytes());
    for (std::size_t i = 0; i < inputs_.size(); ++i)
      keep(stream_.copy(name_, bytes_of(inputs_[i]), memory_kind::device, case_.inputs[i].bytes(),
                        memory_kind::pageable));
  }
  ~placed_op() {
    for (auto m : inputs_) stream_.free(m);
    for (auto m : outputs_) stream_.free(m);
    if (workspace_) stream_.free(workspace_);
  }
  placed_op(const placed_op&) = delete;
  placed_op& operator=(const placed_op&) = delete;

  const std::string& problem() const { return problem_; }
  result<void> enqueue() {
    std::vector<const std::byte*> in;
    std::vector<std::byte*> out;
    for (auto m : inputs_) in.push_back(m.bytes);
    for (auto m : outputs_) out.push_back(m.bytes);
    tag t;
    t.step = case_.step;
    return stream_.enqueue(name_, {}, [&] {
      return kernel_->enqueue(stream_.site(name_, workspace_.bytes, t), in, out);
    });
  }
  // Waits.
  result<std::vector<tensor>> results() {
    std::vector<tensor> all;
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      all.push_back(tensor::make(case_.outputs[i]));
      if (auto ok = stream_.copy(name_, all.back().bytes(), memory_kind::pageable,
                                 bytes_of(outputs_[i]), memory_kind::device);
          !ok)
        return std::move(ok.error());
    }
    if (auto ok = stream_.synchronize(); !ok) return std::move(ok.error());
    return all;
  }

 private:
  device_memory take(std::size_t bytes) {
    auto m = stream_.allocate(bytes, name_);
    if (m) return *m;
    problem_ = m.error().text();
    return {};
  }
  void keep(result<void> r) {
    if (!r) problem_ = r.error().text();
  }

  const op_case& case_;
  cuda::cuda_stream& stream_;
  std::string_view name_;
  std::unique_ptr<cuda::cuda_kernel> kernel_;
  std::vector<device_memory> inputs_, outputs_;
  device_memory workspace_;
  std::string problem_;
};

inline result<std::vector<tensor>> run_on_device(const op_case& c, cuda::cuda_device& device,
                                                 cuda::cuda_stream& stream) {
  placed_op op(c, device, stream);
  if (!op.problem().empty()) return error(error_code::failed, op.problem());
  if (auto ok = op.enqueue(); !ok) return std::move(ok.error());
  return op.results();
}

}  // namespace troupe::test
