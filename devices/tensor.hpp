#pragma once
// Tensors: a handle of one pointer to a reference-counted block of spec and 64-byte aligned bytes.
//
// A handle is what messages carry, so it is as small as a pointer. The block holds the spec in
// front of the bytes, in one allocation. Bytes may also lie elsewhere (over()): in memory of a
// device, which only that device's streams read and write, or in memory that its copies run from by
// themselves.
//
// Threading: the count is atomic; spec and bytes are written by one owner before the tensor is
// shared, and only read afterwards. A producer may write again once it holds the only reference
// (is_unique), which is how buffers are reused without an allocator on the hot path.
//
// T-1  data() is aligned to 64 bytes.
// T-2  size_bytes() <= capacity_bytes().
// T-3  reshape() only while is_unique().
// T-4  A tensor and what is made of it by with_own_count() are unique to nobody as long as both are
//      there.
// T-5  on_device() is null where the host may read the bytes.

#include "troupe/schema/error.hpp"
#include "troupe/schema/tensor_spec.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

namespace troupe {

class device_buffer;

// Whom memory belongs to that does not lie behind its block. Ends with the last handle, on that
// one's thread.
class memory_holder {
 public:
  virtual ~memory_holder() = default;
  // Page-locked: devices copy from it and to it by themselves.
  virtual bool is_pinned() const noexcept { return false; }
};

class tensor {
 public:
  static constexpr std::size_t alignment_bytes = 64;
  static constexpr std::size_t bytes_max = std::size_t{1} << 40;  // nobody has more for one

  tensor() noexcept = default;  // "nothing here"
  // Uninitialised memory for `spec`, which must not be symbolic. Throws std::bad_alloc, for more
  // than bytes_max always.
  static tensor make(const tensor_spec& spec) { return make(spec, spec.size_bytes()); }
  // Memory for up to `bound_bytes`, to be reshaped within that.
  static tensor make(const tensor_spec& spec, std::size_t bound_bytes);
  // `spec` over `bytes`, aligned as T-1 says, of which `holder` keeps what it needs (null: the
  // caller does). Throws std::bad_alloc.
  static tensor over(std::span<std::byte> bytes, const tensor_spec& spec,
                     std::unique_ptr<memory_holder> holder);
  // The same over memory of a device (devices/memory/device_buffer.hpp).
  static tensor over(std::unique_ptr<device_buffer> memory, const tensor_spec& spec);

  // A copy of `values`, for tests, feeds and constants: as many as the shape has elements. T must
  // be the type that `type` names.
  template <class T>
  static tensor of(dtype type, const troupe::shape& s, std::span<const T> values) {
    expects(sizeof(T) == size_of(type), "the elements have the size that their type has");
    expects(static_cast<std::int64_t>(values.size()) == s.elements(),
            "there are as many numbers as the shape has elements");
    tensor t = make(tensor_spec{type, s});
    for (std::size_t i = 0; i < values.size(); ++i) t.data<T>()[i] = values[i];
    return t;
  }
  static tensor of(std::initializer_list<float> values, const troupe::shape& s) {
    return of<float>(dtype::f32, s, std::span<const float>(values.begin(), values.size()));
  }

  // The same bytes behind a count of its own, for a thread that hands them to many: each handle
  // that comes or goes writes the count, and two threads that write one take some 50 ns each time.
  // Holds one handle of this one. Throws std::bad_alloc.
  tensor with_own_count() const;

  // `spec` of its bytes, from `offset_bytes`, a multiple of the alignment, on: another tensor over
  // the same memory, with a count of its own (T-4). Throws std::bad_alloc.
  tensor part(std::size_t offset_bytes, const tensor_spec& spec) const;

  tensor(const tensor& o) noexcept : block_(o.block_) {
    if (block_ != nullptr) block_->count.fetch_add(1, std::memory_order_relaxed);
  }
  tensor(tensor&& o) noexcept : block_(std::exchange(o.block_, nullptr)) {}
  tensor& operator=(tensor o) noexcept {
    std::swap(block_, o.block_);
    return *this;
  }
  ~tensor() {
    if (block_ != nullptr && block_->count.fetch_sub(1, std::memory_order_acq_rel) == 1)
      destroy(block_);
  }

  explicit operator bool() const noexcept { return block_ != nullptr; }
  const tensor_spec& spec() const noexcept { return block_->spec; }
  const troupe::shape& shape() const noexcept { return block_->spec.shape; }
  dtype type() const noexcept { return block_->spec.type; }
  std::int64_t elements() const noexcept { return block_->spec.shape.elements(); }
  std::size_t size_bytes() const noexcept { return block_->spec.size_bytes(); }
  std::size_t capacity_bytes() const noexcept {
    return block_ != nullptr ? block_->capacity_bytes : 0;
  }
  bool is_unique() const noexcept {
    return block_ != nullptr && block_->count.load(std::memory_order_acquire) == 1 &&
           (block_->of == nullptr || block_->of->count.load(std::memory_order_acquire) == 1);
  }

  // Where its bytes lie on a device (T-5), with the events of their uses; null: on the host.
  device_buffer* on_device() const noexcept { return block_ != nullptr ? block_->device : nullptr; }

  bool is_pinned() const noexcept {
    const auto* of = block_ == nullptr ? nullptr : block_->of != nullptr ? block_->of : block_;
    return of != nullptr && of->holder != nullptr && of->holder->is_pinned();
  }

  std::span<std::byte> bytes() noexcept { return {memory(), size_bytes()}; }
  std::span<const std::byte> bytes() const noexcept { return {memory(), size_bytes()}; }
  // Elements as T; the caller knows the type.
  template <class T>
  T* data() noexcept {
    return reinterpret_cast<T*>(memory());
  }
  template <class T>
  const T* data() const noexcept {
    return reinterpret_cast<const T*>(memory());
  }

  // Another spec over the same bytes (T-2, T-3).
  void reshape(const tensor_spec& spec) noexcept { block_->spec = spec; }

 private:
  struct alignas(alignment_bytes) block {
    std::atomic<std::uint32_t> count{1};
    std::size_t capacity_bytes = 0;
    std::byte* bytes = nullptr;
    // Whose bytes they are; null: they lie behind this, or belong to the holder.
    block* of = nullptr;
    memory_holder* holder = nullptr;
    device_buffer* device = nullptr;
    tensor_spec spec;
  };
  explicit tensor(block* b) noexcept : block_(b) {}
  std::byte* memory() const noexcept { return block_->bytes; }
  static void destroy(block* b) noexcept;

  block* block_ = nullptr;
};

}  // namespace troupe
