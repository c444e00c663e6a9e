#pragma once
// The memory of a device, kept and given out again in the order of its streams. A policy over an
// abstract system memory: the asynchronous host device and CUDA both use it.
//
// Memory comes from the system in segments, which are cut into blocks. A request takes the smallest
// free block that holds its size class (best fit), and what is left of that becomes a block again;
// free neighbours of a segment become one. A freed block belongs to the stream that freed it until
// the event of that moment is done. Before a request fails, in this order: cached neighbours of
// which some are still this stream's are joined; whole free segments go back to the system and it
// is asked for exactly what is needed; a small request is cut from a large segment; a block of
// another stream is given out with the event that the taker has to wait for on the device.
//
// Size classes: multiples of 512 bytes up to 4 KiB, then eight to each doubling. A request of at
// most 4 KiB wastes less than 512 bytes, a larger one less than an eighth of itself.
// Segments: 2 MiB for classes up to 1 MiB, 32 MiB for those up to 16 MiB, beyond a segment for each
// request in multiples of 2 MiB; less where the limit leaves less.
//
// CA-1  Blocks that are given out never overlap, and hold what was asked for.
// CA-2  used + cached bytes never exceed the limit (0: none), so used bytes do not either.
// CA-3  A block goes to a stream other than the one that freed it only after its event is done, or
//       with that event in `after`.
// CA-4  Once everything is free and every event is done, each segment is one block, and trim()
//       gives all of them back.
// CA-5  An error leaves the allocator as it was but for the cache, names the largest holders, and
//       says what to do.
//
// Threading: none of its own; its device calls it under a lock. Ownership: of the segments, which
// go back at the end whether or not blocks are out.

#include "troupe/devices/device/device.hpp"

#include <array>
#include <map>
#include <set>

namespace troupe {

// Where segments come from: cudaMalloc, the heap, a test. Outlives the allocator.
class system_memory {
 public:
  virtual ~system_memory() = default;
  // Aligned to 512 bytes; null: there is no more.
  virtual std::byte* reserve(std::size_t bytes) = 0;
  virtual void release(std::byte* p, std::size_t bytes) noexcept = 0;
};

class caching_allocator {
 public:
  static constexpr std::size_t granule_bytes = 512;
  static constexpr std::size_t small_bytes_max = std::size_t{1} << 20,
                               small_segment_bytes = std::size_t{2} << 20;
  static constexpr std::size_t middle_bytes_max = std::size_t{16} << 20,
                               middle_segment_bytes = std::size_t{32} << 20;
  static constexpr std::size_t holders_named_max = 5;

  struct allocated {
    std::byte* bytes = nullptr;
    // The taker's stream waits for it before it touches the bytes; null: at once.
    device_event after;
  };

  // `name`: of the device, for errors.
  caching_allocator(system_memory& memory, std::string name, std::uint64_t limit_bytes);
  ~caching_allocator();
  caching_allocator(const caching_allocator&) = delete;
  caching_allocator& operator=(const caching_allocator&) = delete;

  // What a request of `bytes` takes.
  static std::size_t size_class(std::size_t bytes) noexcept;

  result<allocated> allocate(std::size_t bytes, const device_stream* stream,
                             std::string_view for_whom);
  // `freed`: recorded on `stream` after its last use of the bytes; null: nobody uses them any more.
  // Throws broken_invariant for what is not given out.
  void free(std::byte* p, const device_stream* stream, device_event freed);
  // A stream that ends: what it freed waits for its events alone, so that a later stream at the
  // same address does not inherit it.
  void forget(const device_stream* stream);
  // Gives back every segment that is free and whose events are done.
  void trim() noexcept;
  memory_stats stats() const noexcept { return stats_; }

 private:
  enum pool : std::uint8_t { small, large };
  struct segment {
    std::size_t size_bytes;
    pool kind;
  };
  struct block {
    std::size_t size_bytes;
    std::byte* segment;  // where its segment begins
    bool used = false;
    // Free: whose it is until `freed` is done; null: everybody's.
    const device_stream* stream = nullptr;
    device_event freed;
    std::string for_whom;
  };
  using blocks = std::map<std::byte*, block>;
  using free_set = std::set<std::pair<std::size_t, std::byte*>>;

  blocks::iterator find(std::size_t bytes, pool kind, const device_stream* stream);
  blocks::iterator find_pending(std::size_t bytes);
  blocks::iterator grow(std::size_t bytes, pool kind);
  blocks::iterator reserve(std::size_t bytes, pool kind);
  void insert_free(blocks::iterator b);
  void erase_free(blocks::iterator b);
  blocks::iterator merge(blocks::iterator b, const device_stream* for_stream);
  void join_for(const device_stream* stream);
  void settle();
  allocated take(blocks::iterator b, std::size_t bytes, std::string_view for_whom);
  error out_of_memory(std::size_t bytes, std::string_view for_whom) const;
  pool pool_of(const block& b) const { return segments_.at(b.segment).kind; }

  system_memory& memory_;
  std::string name_;
  memory_stats stats_;
  std::map<std::byte*, segment> segments_;
  blocks blocks_;
  std::array<std::map<const device_stream*, free_set>, 2> free_;  // by pool, then by whose they are
  std::set<std::byte*> pending_;                                  // free, of a stream
  // By the system, not by the limit.
  bool refused_ = false;
};

}  // namespace troupe
