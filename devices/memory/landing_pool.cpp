#include "troupe/devices/memory/landing_pool.hpp"

#include "troupe/devices/memory/pinned_pool.hpp"

#include <utility>

namespace troupe {

tensor landing_pool::take(const tensor_spec& spec) {
  const std::lock_guard hold(lock_);
  for (auto& t : tensors_)
    if (t.is_unique() && spec.size_bytes() <= t.capacity_bytes()) {
      if (t.spec() != spec) t.reshape(spec);
      return t;
    }
  return {};
}

bool landing_pool::grow(const std::shared_ptr<device_backend>& from) {
  if (buffers() >= size_) return false;
  auto fresh = make_pinned(from, tensor_spec{dtype::u8, {0}}, bound_bytes_);
  const std::lock_guard hold(lock_);
  if (!fresh || tensors_.size() >= size_) return false;
  tensors_.push_back(std::move(fresh));
  return true;
}

std::size_t landing_pool::buffers() const {
  const std::lock_guard hold(lock_);
  return tensors_.size();
}

}  // namespace troupe
