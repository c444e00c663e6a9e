#pragma once
// Which memory a stream gets: what was given back is kept and given out again, to the same stream at once, to others when the work before is done. Pure: the
// caller allocates, records and asks events.
//
// Sizes are rounded up to classes: 4 to each doubling, so that at most a fifth of a block is not asked for. Blocks are never split.
//
// Threading: none; whoever owns it has a lock.
//
// MC-1  Two blocks in use never overlap; a block is in use, or free, once.
// MC-2  A free block goes to another stream only when the event of its giving back is done.
// MC-3  used_bytes() <= limit_bytes (0: no limit).
// MC-4  Out of memory names who has most, and changes nothing.

#include "devices/device.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace troupe::cuda {

// The class of a size: its bytes.
std::size_t rounded_size(std::size_t bytes) noexcept;

class memory_cache {
 public:
  struct source {
    std::function<std::byte*(std::size_t bytes)> allocate;  // null: there is no more
    std::function<void(std::byte*)> free;                   // waits for whoever uses it
  };
  memory_cache(std::string device, std::uint64_t limit_bytes, source from) : device_(std::move(device)), source_(std::move(from)) { stats_.limit_bytes = limit_bytes; }
  ~memory_cache() { trim(); }
  memory_cache(const memory_cache&) = delete;
  memory_cache& operator=(const memory_cache&) = delete;

  // `stream`: who asks; any pointer that tells streams apart.
  result<device_memory> allocate(const void* stream, std::size_t bytes, std::string_view for_whom);
  // `after`: recorded behind the last use.
  void free(const void* stream, device_memory m, device_event after);
  // The stream is gone: what it gave back waits for its events like for any other.
  void forget(const void* stream);
  // Gives what is free back to the source.
  void trim();
  const memory_stats& stats() const noexcept { return stats_; }

 private:
  struct block {
    std::byte* bytes = nullptr;
    const void* stream = nullptr;
    device_event after;
  };
  struct holder {
    std::size_t bytes = 0;  // of its class
    std::string whom;
  };
  block take_free(const void* stream, std::size_t size);
  error out_of_memory(std::size_t bytes, std::string_view for_whom, std::string_view why) const;

  std::string device_;
  source source_;
  memory_stats stats_;
  std::map<std::size_t, std::vector<block>> free_;  // by class
  std::unordered_map<std::byte*, holder> used_;
};

}  // namespace troupe::cuda
