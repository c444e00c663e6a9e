#include "troupe/devices/memory/device_buffer.hpp"

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
  const auto is_free = [&](const tensor& t) {
    return t.is_unique() && spec.size_bytes() <= t.capacity_bytes();
  };
  const auto use = [&](tensor& t) {
    waits.add(t.on_device()->take_uses());
    if (t.spec() != spec) t.reshape(spec);
    return t;
  };
  // Whoever takes one for each step stays in turn with others that do, also when one had to be
  // passed over: a captured step then meets few sets of addresses.
  const auto turn = turn_++;
  const auto take_in_turn = [&]() -> tensor {
    for (std::size_t i = 0; i < tensors_.size(); ++i)
      if (auto& t = tensors_[(turn + i) % tensors_.size()]; is_free(t)) return use(t);
    return {};
  };
  // DB-5.
  for (auto& t : tensors_)
    if (is_free(t) && !t.on_device()->is_read_elsewhere()) return use(t);
  const bool has_room = tensors_.size() < size_;
  if (!has_room)
    if (auto t = take_in_turn()) return t;
  const auto bytes = std::max({bound_bytes_, spec.size_bytes(), std::size_t{1}});
  auto memory = writer_->allocate(bytes, whom_);
  if (!memory) {
    if (auto t = take_in_turn()) return t;  // with fewer, then
    return std::move(memory.error());
  }
  auto fresh = tensor::over(std::make_unique<device_buffer>(*memory, *writer_, owner_), spec);
  if (has_room) tensors_.push_back(fresh);
  return fresh;
}

}  // namespace troupe
