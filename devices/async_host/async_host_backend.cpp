#include "troupe/devices/async_host/async_host_backend.hpp"

#include "troupe/devices/async_host/host_communicator.hpp"
#include "troupe/devices/host/fused_kernel.hpp"
#include "troupe/devices/host/host_device.hpp"

#include <utility>

namespace troupe {

namespace {

// A kernel of the host's, which runs when its stream comes to it: shapes are those that it was
// enqueued with.
struct queued_kernel {
  std::unique_ptr<kernel> op;
  std::vector<tensor_spec> inputs, outputs;  // that it is prepared for

  result<void> run(const tag& t, const std::vector<tensor_spec>& in,
                   const std::vector<tensor_spec>& out, std::span<const tensor> from,
                   std::span<tensor> to) {
    if (in != inputs || out != outputs) {
      if (auto ok = op->prepare(in, out); !ok) return ok;
      inputs = in;
      outputs = out;
    }
    return op->run(t, from, to);
  }
};

class kernel_of_host final : public device_kernel {
 public:
  explicit kernel_of_host(std::unique_ptr<kernel> op) : kernel_(std::make_shared<queued_kernel>()) {
    kernel_->op = std::move(op);
  }

  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) override {
    inputs_.assign(inputs.begin(), inputs.end());
    outputs_.assign(outputs.begin(), outputs.end());
    return {};
  }
  std::size_t workspace_bytes() const noexcept override { return 0; }
  result<void> enqueue(device_stream& on, std::string_view op, const tag& t, device_inputs inputs,
                       device_outputs outputs, std::span<std::byte>) override {
    const auto* stream = dynamic_cast<const async_host_stream*>(&on);
    expects(
        stream != nullptr && inputs.size() == inputs_.size() && outputs.size() == outputs_.size(),
        "a kernel is enqueued as it was prepared, on a stream of its device");
    std::vector<tensor> from, to;
    for (std::size_t i = 0; i < inputs.size(); ++i)
      from.push_back(tensor::over({const_cast<std::byte*>(inputs[i].data()), inputs[i].size()},
                                  inputs_[i], nullptr));
    for (std::size_t i = 0; i < outputs.size(); ++i)
      to.push_back(tensor::over(outputs[i], outputs_[i], nullptr));
    return on.enqueue(op, {inputs, outputs},
                      [k = kernel_, draw = stream->draw_at(), t, in = inputs_, out = outputs_,
                       from = std::move(from), to = std::move(to)]() mutable {
                        auto now = t;
                        if (draw != nullptr) now.step = *draw;
                        return k->run(now, in, out, from, to);
                      });
  }

 private:
  std::shared_ptr<queued_kernel> kernel_;  // what is under way outlives its actor
  std::vector<tensor_spec> inputs_, outputs_;
};

class backend_of_host final : public device_backend {
 public:
  backend_of_host(std::string name, std::shared_ptr<async_host_chip> chip,
                  const kernel_table& kernels, std::uint64_t limit_bytes)
      : chip_(std::move(chip)),
        kernels_(kernels),
        device_(chip_->make_device(std::move(name), limit_bytes)) {}

  troupe::device& device() noexcept override { return *device_; }
  result<std::unique_ptr<device_kernel>> make_kernel(std::span<const kernel_step> steps) override {
    std::vector<fused_step> made;
    for (const auto& s : steps) {
      const auto* row = kernels_.find(s.op);
      if (row == nullptr)
        return error(error_code::not_found, device_->name() + " has no kernel for '" + s.op + "'");
      auto op = row->make(s.attrs, host_);
      if (!op) return std::move(op.error());
      made.push_back({std::move(*op), s.operands, s.type});
    }
    expects(!made.empty(), "a kernel has a step");
    if (made.size() == 1)
      return std::unique_ptr<device_kernel>(
          std::make_unique<kernel_of_host>(std::move(made.front().op)));
    auto group = make_fused_kernel(std::move(made), host_.team());
    if (!group) return std::move(group.error());
    return std::unique_ptr<device_kernel>(std::make_unique<kernel_of_host>(std::move(*group)));
  }

  std::size_t update_workspace_bytes(const optimizer_step&, std::size_t) const noexcept override {
    return 0;
  }
  result<void> enqueue_update(device_stream& on, std::string_view op, const optimizer_step& step,
                              const device_update& u, std::span<std::byte>) override {
    std::vector<std::span<const std::byte>> reads{u.values};
    reads.insert(reads.end(), u.gradients.begin(), u.gradients.end());
    std::vector<std::span<std::byte>> writes{u.result};
    writes.insert(writes.end(), u.state.begin(), u.state.end());
    return on.enqueue(op, {reads, writes}, [step, u]() -> result<void> {
      std::vector<stepped> state;
      for (const auto& s : u.state)
        state.push_back(
            {reinterpret_cast<const float*>(s.data()), reinterpret_cast<float*>(s.data())});
      std::vector<const float*> gradients;
      for (const auto& g : u.gradients)
        gradients.push_back(reinterpret_cast<const float*>(g.data()));
      apply_step(step,
                 {reinterpret_cast<const float*>(u.values.data()),
                  reinterpret_cast<float*>(u.result.data())},
                 state, gradients, u.elements());
      return {};
    });
  }

  result<communicator_id> make_communicator_id() override {
    if (auto ok = can_wait(); !ok) return std::move(ok.error());
    return points_.make_id(device_->name());
  }
  result<std::unique_ptr<device_communicator>> begin_communicator(
      const communicator_id& id, int rank, int ranks, communicator_changed changed) override {
    if (auto ok = can_wait(); !ok) return std::move(ok.error());
    return points_.begin(id, rank, ranks, device_->name(), std::move(changed));
  }

 private:
  result<void> can_wait() const {
    if (chip_->is_threaded()) return {};
    return error(
        error_code::usage,
        device_->name() +
            ": a collective waits for other ranks, which a chip with one thread for all streams "
            "cannot do: use a threaded chip");
  }

  std::shared_ptr<async_host_chip> chip_;
  const kernel_table& kernels_;
  host_meeting_points points_;
  host_device host_;  // alone: a kernel has the one thread of its stream
  std::unique_ptr<troupe::device> device_;
};

}  // namespace

std::shared_ptr<device_backend> make_async_host_backend(std::string name,
                                                        std::shared_ptr<async_host_chip> chip,
                                                        const kernel_table& kernels,
                                                        std::uint64_t limit_bytes) {
  return std::make_shared<backend_of_host>(std::move(name), std::move(chip), kernels, limit_bytes);
}

}  // namespace troupe
