#pragma once
// Memory on a device behind a tensor, with the events of its uses, and the buffers of one output
// port.
//
// A credit is a buffer, so the events that go with credits travel in the buffer: an item is passed
// on while its kernel is still in the queue, with its producer's event (written), and comes back
// with its consumers' events (read_until), which the next writer of the buffer waits for. A buffer
// is free after both. A consumer on the writer's own stream needs neither; one on another stream
// has that stream wait; only the host's consumers wait for a message (device_stream::call_host).
//
//   writer     device_buffer_pool::take()  a tensor that nobody else has, and in `waits` what the
//                                          stream has to wait for before it writes
//              written()                   its work is enqueued: what readers on other streams wait
//                                          for
//   reader     read_until()                its use is enqueued: before it drops the handle
//
// DB-1  A buffer is taken only when the pool alone has a handle of it.
// DB-2  The waits of a take cover the last writer of the buffer and all who read it, except what is
//       known to be done and what the writer's own stream orders.
// DB-3  Memory goes back to its owner once, with the events of all uses that may not be done.
// DB-4  While every consumer keeps to its credits a pool makes no more buffers than its size; one
//       that is kept for longer costs a fresh one, which the pool forgets.
// DB-5  A buffer that only the writer's own stream has read is taken again at once: it costs no
//       wait. Those that other streams read come in turn, and the pool fills before one of them is
//       used again: consumers drop an item when their use of it is enqueued, so that the one used
//       last has its reader still in the queue, and the writer would wait for it.
//
// Threading: written() and the pool by the writer's thread, before it hands the tensor on;
// read_until() by any thread that holds a handle (a list without a lock); the rest by whoever drops
// the last handle.
// Ownership: the owner outlives what it is given back, by being shared.

#include "troupe/devices/device/device.hpp"
#include "troupe/devices/device/device_events.hpp"
#include "troupe/devices/tensor.hpp"

#include <atomic>
#include <memory>
#include <string>
#include <vector>

namespace troupe {

// Who takes memory back, on any thread: it waits on its stream for the uses, and frees.
class device_memory_owner {
 public:
  virtual ~device_memory_owner() = default;
  virtual void take_back(device_memory m, std::vector<device_event> uses) noexcept = 0;
};

class device_buffer final : public memory_holder {
 public:
  // `writer`: the stream that writes it.
  device_buffer(device_memory m, const device_stream& writer,
                std::shared_ptr<device_memory_owner> owner) noexcept
      : memory_(m), writer_(&writer), owner_(std::move(owner)) {}
  ~device_buffer() override;
  device_buffer(const device_buffer&) = delete;
  device_buffer& operator=(const device_buffer&) = delete;

  std::span<std::byte> bytes() const noexcept { return {memory_.bytes, memory_.size_bytes}; }
  const device_stream* writer() const noexcept { return writer_; }
  // Null: readers on other streams were not expected.
  const device_event& written() const noexcept { return written_; }
  void written(device_event e) noexcept { written_ = std::move(e); }
  void read_until(device_event e);
  // Somebody on another stream reads it, or has since the uses were taken. By the writer, once
  // nobody else has a handle.
  bool is_read_elsewhere() const noexcept {
    return readers_.load(std::memory_order_relaxed) != nullptr;
  }
  // All uses so far, which it forgets.
  newest_events take_uses();

 private:
  struct use {
    device_event done;
    use* next = nullptr;
  };
  device_memory memory_;
  const device_stream* writer_;
  device_event written_;
  std::atomic<use*> readers_{nullptr};
  std::shared_ptr<device_memory_owner> owner_;
};

class device_buffer_pool {
 public:
  // Keeps at most `size` buffers of `bound_bytes` each, which `writer` allocates and writes, for
  // `whom`, who is named where there is too little memory.
  device_buffer_pool(std::size_t bound_bytes, std::size_t size, device_stream& writer,
                     std::shared_ptr<device_memory_owner> owner, std::string whom)
      : bound_bytes_(bound_bytes),
        size_(size),
        writer_(&writer),
        owner_(std::move(owner)),
        whom_(std::move(whom)) {}

  // Uninitialised.
  result<tensor> take(const tensor_spec& spec, newest_events& waits);

 private:
  std::size_t bound_bytes_, size_;
  device_stream* writer_;
  std::shared_ptr<device_memory_owner> owner_;
  std::string whom_;
  std::vector<tensor> tensors_;
  std::size_t turn_ = 0;  // how often it was taken from
};

}  // namespace troupe
