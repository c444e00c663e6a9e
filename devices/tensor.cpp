#include "devices/tensor.hpp"

#include "schema/error.hpp"

#include <new>

namespace troupe {

tensor tensor::make(const tensor_spec& spec, std::size_t bound_bytes) {
  expects(spec.size_bytes() <= bound_bytes, "T-2: a tensor fits its buffer");
  if (bound_bytes > bytes_max) throw std::bad_alloc();
  void* memory = ::operator new(sizeof(block) + bound_bytes, std::align_val_t{alignment_bytes});
  auto* b = new (memory) block;
  b->capacity_bytes = bound_bytes;
  b->spec = spec;
  return tensor(b);
}

void tensor::destroy(block* b) noexcept {
  b->~block();
  ::operator delete(static_cast<void*>(b), std::align_val_t{alignment_bytes});
}

}  // namespace troupe
