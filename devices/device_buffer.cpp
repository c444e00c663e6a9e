#include "devices/device_buffer.hpp"

#include <algorithm>
#include <utility>

namespace troupe {

device_buffer::~device_buffer() {
  auto uses = take_uses();
  std::vector<device_event> left;
  for (const auto& e : uses.events()) left.push_back(e);
  if (owner_ != nullptr) owner_->take_back(memory_, std::move(left));
}

void device_buffer::read_until(device_event e) {
  if (!e || e.stream() == writer_) return;  // the writer's own stream orders it
  auto* u = new use{std::move(e), readers_.load(std::memory_order_relaxed)};
  while (!readers_.compare_exchange_weak(u->next, u, std::memory_order_release,
                                         std::memory_order_relaxed)) {
  }
}

newest_events device_buffer::take_uses() {
  newest_events all;
  all.add(std::exchange(written_, {}));
  for (auto* u = readers_.exchange(nullptr, std::memory_order_acquire); u != nullptr;) {
    all.add(std::move(u->done));
    delete std::exchange(u, u->next);
  }
  return all;
}

result<tensor> device_buffer_pool::take(const tensor_spec& spec, newest_events& waits) {
  for (auto& t : tensors_) {
    if (!t.is_unique() || spec.size_bytes() > t.capacity_bytes()) continue;
    waits.add(t.on_device()->take_uses());
    if (t.spec() != spec) t.reshape(spec);
    return t;
  }
  const auto bytes = std::max({bound_bytes_, spec.size_bytes(), std::size_t{1}});
  auto memory = writer_->allocate(bytes, whom_);
  if (!memory) return std::move(memory.error());
  auto fresh = tensor::over(std::make_unique<device_buffer>(*memory, *writer_, owner_), spec);
  if (tensors_.size() < size_) tensors_.push_back(fresh);
  return fresh;
}

}  // namespace troupe
