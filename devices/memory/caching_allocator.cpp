#include "troupe/devices/memory/caching_allocator.hpp"

#include <algorithm>
#include <bit>

namespace troupe {

namespace {

// What an ended stream freed: nobody's until the event is done. Only its address is used.
const char nobody = 0;
const device_stream* of_nobody() noexcept {
  return reinterpret_cast<const device_stream*>(&nobody);
}

std::size_t round_up(std::size_t n, std::size_t to) noexcept { return (n + to - 1) / to * to; }

std::string in_words(std::uint64_t bytes) {
  const auto tenths = [](std::uint64_t n, std::uint64_t unit) {
    const auto t = n * 10 / unit;
    return std::to_string(t / 10) + (t % 10 != 0 ? "." + std::to_string(t % 10) : "");
  };
  if (bytes >= std::uint64_t{1} << 30) return tenths(bytes, std::uint64_t{1} << 30) + " GiB";
  if (bytes >= std::uint64_t{1} << 20) return tenths(bytes, std::uint64_t{1} << 20) + " MiB";
  if (bytes >= 1024) return tenths(bytes, 1024) + " KiB";
  return std::to_string(bytes) + " bytes";
}

}  // namespace

caching_allocator::caching_allocator(system_memory& memory, std::string name,
                                     std::uint64_t limit_bytes)
    : memory_(memory), name_(std::move(name)) {
  stats_.limit_bytes = limit_bytes;
}

caching_allocator::~caching_allocator() {
  for (const auto& [begin, s] : segments_) memory_.release(begin, s.size_bytes);
}

std::size_t caching_allocator::size_class(std::size_t bytes) noexcept {
  if (bytes <= granule_bytes) return granule_bytes;
  if (bytes > std::size_t{1} << 62) return bytes;  // nobody has it, and rounding must not wrap
  // The classes above 2^k are 2^k / 8 apart.
  const auto step = std::max(granule_bytes, std::bit_floor(bytes - 1) / 8);
  return round_up(bytes, step);
}

auto caching_allocator::allocate(std::size_t bytes, const device_stream* stream,
                                 std::string_view for_whom) -> result<allocated> {
  const auto size = size_class(bytes);
  const auto kind = size <= small_bytes_max ? small : large;
  refused_ = false;
  settle();
  auto b = find(size, kind, stream);
  if (b == blocks_.end()) {
    join_for(stream);
    b = find(size, kind, stream);
  }
  const bool from_cache = b != blocks_.end();
  if (b == blocks_.end()) b = grow(size, kind);
  if (b == blocks_.end()) {
    trim();
    b = grow(size, kind);
  }
  bool reused = from_cache;
  if (b == blocks_.end() && kind == small) {
    b = find(size, large, stream);
    reused = b != blocks_.end();
  }
  if (b == blocks_.end()) {
    b = find_pending(size);
    reused = b != blocks_.end();
  }
  if (b == blocks_.end()) return out_of_memory(bytes, for_whom);
  ++stats_.allocations;
  if (reused) ++stats_.reuses;
  const bool is_ours = b->second.stream == nullptr || b->second.stream == stream;
  device_event after = is_ours ? device_event{} : b->second.freed;
  auto taken = take(b, size, for_whom);
  taken.after = std::move(after);
  return taken;
}

auto caching_allocator::take(blocks::iterator b, std::size_t size, std::string_view for_whom)
    -> allocated {
  erase_free(b);
  if (b->second.size_bytes - size >= granule_bytes) {
    block rest = b->second;
    rest.size_bytes -= size;
    b->second.size_bytes = size;
    insert_free(blocks_.emplace(b->first + size, std::move(rest)).first);
  }
  auto& now = b->second;
  now.used = true;
  now.stream = nullptr;
  now.freed = {};
  now.for_whom = for_whom;
  stats_.used_bytes += now.size_bytes;
  stats_.cached_bytes -= now.size_bytes;
  stats_.peak_bytes = std::max(stats_.peak_bytes, stats_.used_bytes);
  return {b->first, {}};
}

void caching_allocator::free(std::byte* p, const device_stream* stream, device_event freed) {
  const auto b = blocks_.find(p);
  expects(b != blocks_.end() && b->second.used, "only memory that is given out is freed, and once");
  auto& now = b->second;
  now.used = false;
  now.for_whom.clear();
  const bool done = freed.is_done();
  expects(done || stream != nullptr, "what is freed in the queue of a stream names the stream");
  now.stream = done ? nullptr : stream;
  now.freed = done ? device_event{} : std::move(freed);
  stats_.used_bytes -= now.size_bytes;
  stats_.cached_bytes += now.size_bytes;
  insert_free(b);
  merge(b, nullptr);
}

void caching_allocator::forget(const device_stream* stream) {
  std::vector<blocks::iterator> theirs;
  for (auto* p : pending_)
    if (const auto b = blocks_.find(p); b->second.stream == stream) theirs.push_back(b);
  for (const auto b : theirs) {
    erase_free(b);
    b->second.stream = of_nobody();
    insert_free(b);
  }
}

void caching_allocator::trim() noexcept {
  settle();
  for (auto s = segments_.begin(); s != segments_.end();) {
    const auto b = blocks_.find(s->first);
    if (b->second.used || b->second.stream != nullptr ||
        b->second.size_bytes != s->second.size_bytes) {
      ++s;
      continue;
    }
    erase_free(b);
    blocks_.erase(b);
    stats_.cached_bytes -= s->second.size_bytes;
    memory_.release(s->first, s->second.size_bytes);
    s = segments_.erase(s);
  }
}

auto caching_allocator::find(std::size_t bytes, pool kind, const device_stream* stream)
    -> blocks::iterator {
  const std::pair<std::size_t, std::byte*>* best = nullptr;
  // Of blocks of equal size the stream's own comes first: nobody else may have it yet.
  for (const auto* of : {stream, static_cast<const device_stream*>(nullptr)}) {
    const auto set = free_[kind].find(of);
    if (set == free_[kind].end()) continue;
    const auto fit = set->second.lower_bound({bytes, nullptr});
    if (fit != set->second.end() && (best == nullptr || fit->first < best->first)) best = &*fit;
  }
  return best != nullptr ? blocks_.find(best->second) : blocks_.end();
}

auto caching_allocator::find_pending(std::size_t bytes) -> blocks::iterator {
  auto best = blocks_.end();
  for (auto* p : pending_) {
    const auto b = blocks_.find(p);
    if (b->second.size_bytes >= bytes &&
        (best == blocks_.end() || b->second.size_bytes < best->second.size_bytes))
      best = b;
  }
  return best;
}

auto caching_allocator::grow(std::size_t bytes, pool kind) -> blocks::iterator {
  if (bytes > std::size_t{1} << 62) {  // so that rounding does not wrap
    refused_ = true;
    return blocks_.end();
  }
  const auto reserved = stats_.used_bytes + stats_.cached_bytes;
  const auto left = stats_.limit_bytes == 0
                        ? ~std::uint64_t{0}
                        : (stats_.limit_bytes - reserved) / granule_bytes * granule_bytes;
  if (bytes > left) return blocks_.end();
  auto want = round_up(bytes, small_segment_bytes);
  if (kind == small)
    want = small_segment_bytes;
  else if (bytes <= middle_bytes_max)
    want = middle_segment_bytes;
  const auto b = reserve(std::min<std::uint64_t>(want, left), kind);
  // A system that has no whole segment any more may still have what is needed.
  return b == blocks_.end() && want > bytes ? reserve(bytes, kind) : b;
}

auto caching_allocator::reserve(std::size_t bytes, pool kind) -> blocks::iterator {
  auto* begin = memory_.reserve(bytes);
  if (begin == nullptr) {
    refused_ = true;
    return blocks_.end();
  }
  segments_.emplace(begin, segment{bytes, kind});
  stats_.cached_bytes += bytes;
  const auto b =
      blocks_
          .emplace(begin, block{.size_bytes = bytes, .segment = begin, .freed = {}, .for_whom = {}})
          .first;
  insert_free(b);
  return b;
}

void caching_allocator::insert_free(blocks::iterator b) {
  free_[pool_of(b->second)][b->second.stream].emplace(b->second.size_bytes, b->first);
  if (b->second.stream != nullptr) pending_.insert(b->first);
}

void caching_allocator::erase_free(blocks::iterator b) {
  auto& sets = free_[pool_of(b->second)];
  const auto set = sets.find(b->second.stream);
  set->second.erase({b->second.size_bytes, b->first});
  if (set->second.empty()) sets.erase(set);
  pending_.erase(b->first);
}

// Joins a free block with its free neighbours: of the same stream, where the event of the later
// free stands for both, since a stream runs in order; and, for a stream that would go without, what
// is everybody's with what is its own.
auto caching_allocator::merge(blocks::iterator b, const device_stream* for_stream)
    -> blocks::iterator {
  const auto can_join = [&](const block& x, const block& y) {
    if (x.used || y.used || x.segment != y.segment) return false;
    if (x.stream == y.stream) return x.stream != of_nobody();  // its streams are several
    return for_stream != nullptr && (x.stream == nullptr || x.stream == for_stream) &&
           (y.stream == nullptr || y.stream == for_stream);
  };
  const auto join = [&](blocks::iterator x, blocks::iterator y, bool later_is_x) {
    erase_free(x);
    erase_free(y);
    x->second.size_bytes += y->second.size_bytes;
    const bool take_y = x->second.stream == nullptr || (y->second.stream != nullptr && !later_is_x);
    if (take_y) {
      x->second.stream = y->second.stream;
      x->second.freed = y->second.freed;
    }
    blocks_.erase(y);
    insert_free(x);
    return x;
  };
  // The later event is that of the one with the larger number; `b` was freed last where backends do
  // not number.
  const auto is_later = [](const block& x, const block& y, bool otherwise) {
    const auto* a = x.freed.get();
    const auto* c = y.freed.get();
    if (a == nullptr || c == nullptr || a->number == c->number) return otherwise;
    return a->number > c->number;
  };
  if (const auto next = std::next(b); next != blocks_.end() && can_join(b->second, next->second))
    b = join(b, next, is_later(b->second, next->second, true));
  if (b != blocks_.begin())
    if (const auto before = std::prev(b); can_join(before->second, b->second))
      b = join(before, b, is_later(before->second, b->second, false));
  return b;
}

void caching_allocator::join_for(const device_stream* stream) {
  std::vector<std::byte*> own;
  for (auto* p : pending_)
    if (blocks_.find(p)->second.stream == stream) own.push_back(p);
  for (auto* p : own)
    if (const auto b = blocks_.find(p); b != blocks_.end()) merge(b, stream);
}

void caching_allocator::settle() {
  std::vector<std::byte*> done;
  for (auto* p : pending_)
    if (blocks_.find(p)->second.freed.is_done()) done.push_back(p);
  for (auto* p : done) {
    const auto b = blocks_.find(p);
    // Has become a part of its neighbour.
    if (b == blocks_.end() || b->second.used || b->second.stream == nullptr) continue;
    erase_free(b);
    b->second.stream = nullptr;
    b->second.freed = {};
    insert_free(b);
    merge(b, nullptr);
  }
}

error caching_allocator::out_of_memory(std::size_t bytes, std::string_view for_whom) const {
  std::map<std::string_view, std::pair<std::uint64_t, std::uint64_t>> by_holder;  // bytes, blocks
  std::size_t largest_free = 0;
  for (const auto& [p, b] : blocks_) {
    if (!b.used) {
      largest_free = std::max(largest_free, b.size_bytes);
      continue;
    }
    auto& [held, count] = by_holder[b.for_whom];
    held += b.size_bytes;
    ++count;
  }
  std::vector<std::pair<std::string_view, std::pair<std::uint64_t, std::uint64_t>>> holders(
      by_holder.begin(), by_holder.end());
  std::stable_sort(holders.begin(), holders.end(),
                   [](const auto& a, const auto& b) { return a.second.first > b.second.first; });
  std::string text = name_ + ": no memory for " + in_words(bytes) + " of '" +
                     std::string(for_whom) + "': " + in_words(stats_.used_bytes) + " in use";
  if (stats_.limit_bytes != 0) text += " of a limit of " + in_words(stats_.limit_bytes);
  if (refused_) text += ", and the system has no more";
  if (largest_free != 0)
    text += "; " + in_words(stats_.cached_bytes) + " cached, in pieces of at most " +
            in_words(largest_free);
  if (!holders.empty()) text += "; the largest holders: ";
  for (std::size_t i = 0; i < std::min(holders.size(), holders_named_max); ++i) {
    if (i != 0) text += ", ";
    text += "'" + std::string(holders[i].first) + "' " + in_words(holders[i].second.first);
    if (holders[i].second.second > 1) text += " in " + std::to_string(holders[i].second.second);
  }
  if (holders.size() > holders_named_max)
    text += ", and " + std::to_string(holders.size() - holders_named_max) + " more";
  return {error_code::failed,
          text + ". Take a smaller batch, fewer steps in flight, or a higher limit"};
}

}  // namespace troupe
