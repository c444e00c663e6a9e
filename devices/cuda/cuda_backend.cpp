#include "troupe/devices/cuda/cuda_backend.hpp"

#include "troupe/devices/cuda/optimizers.hpp"
#include "troupe/devices/nccl/communicator.hpp"
#include "troupe/devices/nccl/device_communicator.hpp"

#include <utility>

namespace troupe::cuda {

namespace {

const float* floats(std::span<const std::byte> bytes) {
  return reinterpret_cast<const float*>(bytes.data());
}
code::variable in_place(std::span<std::byte> bytes) {
  return {floats(bytes), reinterpret_cast<float*>(bytes.data())};
}

// One step of an optimizer, as launches.
struct step_on_chip {
  chip_services& chip;
  const launch_site& at;
  const optimizer_step& step;
  const device_update& u;
  const code::gradient& g;

  code::variable w() const { return {floats(u.values), reinterpret_cast<float*>(u.result.data())}; }
  std::int64_t n() const { return static_cast<std::int64_t>(u.elements()); }
  code::variable slot(bool is_there, std::size_t i) const {
    return is_there ? in_place(u.state[i]) : code::variable{};
  }
  result<void> operator()(const sgd_numbers& k) const {
    return sgd_step(chip, at, w(), slot(true, 0), g, n(), k);
  }
  result<void> operator()(const adam_numbers& k) const {
    return adam_step(chip, at, w(), slot(true, 0), slot(true, 1), g, n(), k);
  }
  result<void> operator()(const rmsprop_numbers& k) const {
    return rmsprop_step(chip, at, w(), slot(true, 0), slot(step.has_velocity, 1),
                        slot(step.is_centered, step.has_velocity ? 2 : 1), g, n(), k);
  }
  result<void> operator()(const adagrad_numbers& k) const {
    return adagrad_step(chip, at, w(), slot(true, 0), g, n(), k);
  }
  result<void> operator()(const average_numbers& k) const {
    return average_step(chip, at, w(), g, n(), k);
  }
};

class kernel_of_chip final : public device_kernel {
 public:
  explicit kernel_of_chip(std::unique_ptr<cuda_kernel> k) : kernel_(std::move(k)) {}

  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) override {
    return kernel_->prepare(inputs, outputs);
  }
  std::size_t workspace_bytes() const noexcept override { return kernel_->workspace_bytes(); }
  result<void> enqueue(device_stream& on, std::string_view op, const tag& t, device_inputs inputs,
                       device_outputs outputs, std::span<std::byte> workspace) override {
    inputs_.clear();
    for (const auto& i : inputs) inputs_.push_back(i.data());
    outputs_.clear();
    for (const auto& o : outputs) outputs_.push_back(o.data());
    auto& stream = static_cast<cuda_stream&>(on);
    return stream.enqueue(op, {inputs, outputs}, [&] {
      return kernel_->enqueue(stream.site(op, workspace.data(), t), inputs_, outputs_);
    });
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
    auto made = group.size() == 1
                    ? table_.make(group.front().op, group.front().attrs, device_->chip())
                    : make_cuda_group(std::move(group), table_, device_->chip());
    if (!made) return std::move(made.error());
    return std::unique_ptr<device_kernel>(std::make_unique<kernel_of_chip>(std::move(*made)));
  }

  std::size_t update_workspace_bytes(const optimizer_step& step,
                                     std::size_t elements) const noexcept override {
    return step.norm_max > 0
               ? norm_bytes + norm_workspace_bytes(static_cast<std::int64_t>(elements))
               : 0;
  }
  result<void> enqueue_update(device_stream& on, std::string_view op, const optimizer_step& step,
                              const device_update& u, std::span<std::byte> workspace) override {
    auto& stream = static_cast<cuda_stream&>(on);
    std::vector<const float*> parts;
    for (const auto& p : u.gradients) parts.push_back(floats(p));
    gradient_sum sum{parts};
    sum.limit = step.limit;
    auto g = gradient_of(sum);
    if (!g) return std::move(g.error());
    return stream.enqueue(op, {}, [&]() -> result<void> {
      auto& chip = device_->chip();
      if (step.norm_max > 0) {
        auto* norm = reinterpret_cast<double*>(workspace.data());
        if (auto ok = norm_of(chip, stream.site(op, workspace.data() + norm_bytes, {}), *g,
                              static_cast<std::int64_t>(u.elements()), norm);
            !ok)
          return ok;
        g->norm = norm;
        g->norm_max = step.norm_max;
      }
      const auto at = stream.site(op, workspace.data(), {});
      return std::visit(step_on_chip{chip, at, step, u, *g}, step.numbers);
    });
  }

  result<communicator_id> make_communicator_id() override { return nccl::make_unique_id(); }
  result<std::unique_ptr<device_communicator>> begin_communicator(
      const communicator_id& id, int rank, int ranks, communicator_changed changed) override {
    if (auto ok = device_->chip().make_current(); !ok) return std::move(ok.error());
    return nccl::begin_on_device(id, rank, ranks, device_->name(), std::move(changed));
  }

 private:
  // Where the norm stands, before what it is made of.
  static constexpr std::size_t norm_bytes = 256;
  const cuda_kernel_table table_ = make_cuda_kernels();
  std::unique_ptr<cuda_device> device_;
};

}  // namespace

std::shared_ptr<device_backend> make_cuda_backend(std::unique_ptr<cuda_device> d) {
  return std::make_shared<backend_of_chip>(std::move(d));
}

}  // namespace troupe::cuda
