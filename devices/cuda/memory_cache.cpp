#include "devices/cuda/memory_cache.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

namespace troupe::cuda {

std::size_t rounded_size(std::size_t bytes) noexcept {
  constexpr std::size_t least = 512;
  if (bytes <= least) return least;
  const auto step = std::bit_floor(bytes - 1) / 4;
  return (bytes + step - 1) / step * step;
}

result<device_memory> memory_cache::allocate(const void* stream, std::size_t bytes, std::string_view for_whom) {
  if (bytes > (std::size_t{1} << 62)) return out_of_memory(bytes, for_whom, "nobody has as much");
  const auto size = rounded_size(bytes);
  if (stats_.limit_bytes > 0 && stats_.used_bytes + size > stats_.limit_bytes) return out_of_memory(bytes, for_whom, fmt::format("the limit is {}", stats_.limit_bytes));
  auto b = take_free(stream, size);
  const bool is_reused = b.bytes != nullptr;
  if (!is_reused) {
    b.bytes = source_.allocate(size);
    if (b.bytes == nullptr && stats_.cached_bytes > 0) {
      trim();
      b.bytes = source_.allocate(size);
    }
    if (b.bytes == nullptr) return out_of_memory(bytes, for_whom, "the device has no more");
  }
  ++stats_.allocations;
  stats_.reuses += is_reused ? 1 : 0;
  stats_.used_bytes += size;
  stats_.peak_bytes = std::max(stats_.peak_bytes, stats_.used_bytes);
  used_[b.bytes] = {size, std::string(for_whom)};
  return device_memory{b.bytes, bytes};
}

memory_cache::block memory_cache::take_free(const void* stream, std::size_t size) {
  const auto at = free_.find(size);
  if (at == free_.end()) return {};
  auto& blocks = at->second;
  // The last one that this stream gave back is the likeliest to be in the chip's cache; else the oldest of others.
  auto found = std::find_if(blocks.rbegin(), blocks.rend(), [&](const block& b) { return b.stream == stream; });
  auto place = found != blocks.rend() ? std::prev(found.base()) : std::find_if(blocks.begin(), blocks.end(), [](const block& b) { return b.after.is_done(); });
  if (place == blocks.end()) return {};
  auto b = std::move(*place);
  blocks.erase(place);
  stats_.cached_bytes -= size;
  return b;
}

void memory_cache::free(const void* stream, device_memory m, device_event after) {
  const auto at = used_.find(m.bytes);
  expects(at != used_.end(), "memory that is given back was given out by this device");
  const auto size = at->second.bytes;
  used_.erase(at);
  stats_.used_bytes -= size;
  stats_.cached_bytes += size;
  free_[size].push_back({m.bytes, stream, std::move(after)});
}

void memory_cache::forget(const void* stream) {
  for (auto& [size, blocks] : free_)
    for (auto& b : blocks)
      if (b.stream == stream) b.stream = nullptr;
}

void memory_cache::trim() {
  for (auto& [size, blocks] : free_) {
    for (auto& b : blocks) source_.free(b.bytes);
    stats_.cached_bytes -= size * blocks.size();
  }
  free_.clear();
}

error memory_cache::out_of_memory(std::size_t bytes, std::string_view for_whom, std::string_view why) const {
  std::map<std::string, std::size_t> by_whom;
  for (const auto& [at, h] : used_) by_whom[h.whom] += h.bytes;
  std::vector<std::pair<std::string, std::size_t>> most(by_whom.begin(), by_whom.end());
  std::ranges::stable_sort(most, [](const auto& a, const auto& b) { return a.second > b.second; });
  constexpr std::size_t named = 3;
  std::string text;
  for (std::size_t i = 0; i < std::min(most.size(), named); ++i) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", most[i].first, most[i].second);
  return {error_code::failed, fmt::format("{}: out of memory: {} asks for {} bytes, {} are in use, {}{}{}", device_, for_whom, bytes, stats_.used_bytes, why, text.empty() ? "" : "; most have: ", text)};
}

}  // namespace troupe::cuda
