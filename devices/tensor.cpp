#include "troupe/devices/tensor.hpp"

#include "troupe/devices/memory/device_buffer.hpp"
#include "troupe/schema/error.hpp"

#include <new>
#include <sys/mman.h>

namespace troupe {

tensor tensor::make(const tensor_spec& spec, std::size_t bound_bytes) {
  expects(spec.size_bytes() <= bound_bytes, "T-2: a tensor fits its buffer");
  if (bound_bytes > bytes_max) throw std::bad_alloc();
  void* memory = ::operator new(sizeof(block) + bound_bytes, std::align_val_t{alignment_bytes});
  if (bound_bytes >= (std::size_t{4} << 20)) {
    const auto page = std::uintptr_t{4096},
               from = (reinterpret_cast<std::uintptr_t>(memory) + page - 1) / page * page;
    ::madvise(reinterpret_cast<void*>(from),
              (reinterpret_cast<std::uintptr_t>(memory) + sizeof(block) + bound_bytes - from) /
                  page * page,
              MADV_HUGEPAGE);
  }
  auto* b = new (memory) block;
  b->capacity_bytes = bound_bytes;
  b->bytes = static_cast<std::byte*>(memory) + sizeof(block);
  b->spec = spec;
  return tensor(b);
}

tensor tensor::over(std::span<std::byte> bytes, const tensor_spec& spec,
                    std::unique_ptr<memory_holder> holder) {
  expects(spec.size_bytes() <= bytes.size() &&
              reinterpret_cast<std::uintptr_t>(bytes.data()) % alignment_bytes == 0,
          "T-1, T-2: a tensor fits its memory, which is aligned");
  auto* b = new (::operator new(sizeof(block), std::align_val_t{alignment_bytes})) block;
  b->capacity_bytes = bytes.size();
  b->bytes = bytes.data();
  b->holder = holder.release();
  b->spec = spec;
  return tensor(b);
}

tensor tensor::over(std::unique_ptr<device_buffer> memory, const tensor_spec& spec) {
  auto* device = memory.get();
  auto t = over(device->bytes(), spec, std::move(memory));
  t.block_->device = device;
  return t;
}

tensor tensor::with_own_count() const {
  expects(block_ != nullptr, "there is a tensor");
  auto* b = new (::operator new(sizeof(block), std::align_val_t{alignment_bytes})) block;
  // The new block's, from here on: of the tensor that has the bytes.
  tensor held(block_->of != nullptr ? block_->of : block_);
  held.block_->count.fetch_add(1, std::memory_order_relaxed);
  b->capacity_bytes = block_->capacity_bytes;
  b->bytes = block_->bytes;
  b->device = block_->device;
  b->of = std::exchange(held.block_, nullptr);
  b->spec = block_->spec;
  return tensor(b);
}

tensor tensor::part(std::size_t offset_bytes, const tensor_spec& spec) const {
  expects(block_ != nullptr && offset_bytes % alignment_bytes == 0 &&
              offset_bytes + spec.size_bytes() <= capacity_bytes(),
          "a part of a tensor lies within it, where tensors may begin");
  auto out = with_own_count();
  out.block_->bytes += offset_bytes;
  out.block_->capacity_bytes = spec.size_bytes();
  out.block_->spec = spec;
  return out;
}

void tensor::destroy(block* b) noexcept {
  const tensor held(b->of);
  delete b->holder;
  b->~block();
  ::operator delete(static_cast<void*>(b), std::align_val_t{alignment_bytes});
}

}  // namespace troupe
