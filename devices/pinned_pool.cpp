#include "devices/pinned_pool.hpp"

#include <algorithm>
#include <utility>

namespace troupe {

namespace {

class pinned_memory final : public memory_holder {
 public:
  pinned_memory(std::shared_ptr<device_backend> backend, device_memory m) noexcept : backend_(std::move(backend)), memory_(m) {}
  ~pinned_memory() override { backend_->device().free_pinned(memory_); }
  bool is_pinned() const noexcept override { return true; }

 private:
  std::shared_ptr<device_backend> backend_;
  device_memory memory_;
};

}  // namespace

tensor pinned_pool::take(const tensor_spec& spec) {
  for (auto& t : tensors_)
    if (t.is_unique() && spec.size_bytes() <= t.capacity_bytes()) {
      if (t.spec() != spec) t.reshape(spec);
      return t;
    }
  auto fresh = make(spec);
  if (tensors_.size() < size_) tensors_.push_back(fresh);
  return fresh;
}

tensor pinned_pool::make(const tensor_spec& spec) const {
  const auto bytes = std::max({bound_bytes_, spec.size_bytes(), std::size_t{1}});
  if (is_pinned_)
    if (auto m = backend_->device().allocate_pinned(bytes)) return tensor::over({m->bytes, m->size_bytes}, spec, std::make_unique<pinned_memory>(backend_, *m));
  return tensor::make(spec, bytes);
}

}  // namespace troupe
