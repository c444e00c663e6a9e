#include "troupe/devices/memory/pinned_pool.hpp"

#include <algorithm>
#include <utility>

namespace troupe {

namespace {

class pinned_memory final : public memory_holder {
 public:
  pinned_memory(std::shared_ptr<device_backend> backend, device_memory m) noexcept
      : backend_(std::move(backend)), memory_(m) {}
  ~pinned_memory() override { backend_->device().free_pinned(memory_); }
  bool is_pinned() const noexcept override { return true; }

 private:
  std::shared_ptr<device_backend> backend_;
  device_memory memory_;
};

}  // namespace

tensor make_pinned(const std::shared_ptr<device_backend>& from, const tensor_spec& spec,
                   std::size_t bound_bytes) {
  auto m =
      from->device().allocate_pinned(std::max({bound_bytes, spec.size_bytes(), std::size_t{1}}));
  return m ? tensor::over({m->bytes, m->size_bytes}, spec,
                          std::make_unique<pinned_memory>(from, *m))
           : tensor();
}

tensor pinned_pool::take(const tensor_spec& spec) {
  for (auto& t : tensors_)
    if (t.is_unique() && spec.size_bytes() <= t.capacity_bytes()) {
      if (t.spec() != spec) t.reshape(spec);
      return t;
    }
  const auto bytes = std::max(bound_bytes_, spec.size_bytes());
  const bool has_room = tensors_.size() < size_;
  auto fresh = has_room ? make_pinned(backend_, spec, bytes) : tensor();
  if (!fresh) fresh = tensor::make(spec, bytes);
  if (has_room) tensors_.push_back(fresh);
  return fresh;
}

}  // namespace troupe
