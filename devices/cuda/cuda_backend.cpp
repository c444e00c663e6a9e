#include "devices/cuda/cuda_backend.hpp"

#include <utility>

namespace troupe::cuda {

namespace {

class kernel_of_chip final : public device_kernel {
 public:
  explicit kernel_of_chip(std::unique_ptr<cuda_kernel> k) : kernel_(std::move(k)) {}

  result<void> prepare(std::span<const tensor_spec> inputs, std::span<const tensor_spec> outputs) override { return kernel_->prepare(inputs, outputs); }
  std::size_t workspace_bytes() const noexcept override { return kernel_->workspace_bytes(); }
  result<void> enqueue(device_stream& on, std::string_view op, const tag& t, device_inputs inputs, device_outputs outputs, std::span<std::byte> workspace) override {
    inputs_.clear();
    for (const auto& i : inputs) inputs_.push_back(i.data());
    outputs_.clear();
    for (const auto& o : outputs) outputs_.push_back(o.data());
    auto& stream = static_cast<cuda_stream&>(on);
    return stream.enqueue(op, {inputs, outputs}, [&] { return kernel_->enqueue(stream.site(op, workspace.data(), t), inputs_, outputs_); });
  }

 private:
  std::unique_ptr<cuda_kernel> kernel_;
  std::vector<const std::byte*> inputs_;
  std::vector<std::byte*> outputs_;
};

class backend_of_chip final : public device_backend {
 public:
  explicit backend_of_chip(std::unique_ptr<cuda_device> d) : device_(std::move(d)) {}

  troupe::device& device() noexcept override { return *device_; }
  result<std::unique_ptr<device_kernel>> make_kernel(std::span<const kernel_step> steps) override {
    expects(!steps.empty(), "a kernel has a step");
    if (auto ok = device_->chip().make_current(); !ok) return std::move(ok.error());
    std::vector<group_step> group;
    for (const auto& s : steps) group.push_back({s.op, s.attrs, s.operands, s.type});
    auto made = group.size() == 1 ? table_.make(group.front().op, group.front().attrs, device_->chip()) : make_cuda_group(std::move(group), table_, device_->chip());
    if (!made) return std::move(made.error());
    return std::unique_ptr<device_kernel>(std::make_unique<kernel_of_chip>(std::move(*made)));
  }

 private:
  const cuda_kernel_table table_ = make_cuda_kernels();
  std::unique_ptr<cuda_device> device_;
};

}  // namespace

std::shared_ptr<device_backend> make_cuda_backend(std::unique_ptr<cuda_device> d) { return std::make_shared<backend_of_chip>(std::move(d)); }

}  // namespace troupe::cuda
