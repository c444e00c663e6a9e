#include "troupe/devices/device/order_checker.hpp"

#include <algorithm>
#include <cstdio>

namespace troupe {

namespace {

void join(order_checker::clock& into, const order_checker::clock& from) {
  if (into.size() < from.size()) into.resize(from.size(), 0);
  for (std::size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
}

}  // namespace

std::string_view to_string(order_checker::kind k) noexcept {
  switch (k) {
    case order_checker::kind::read_of_unfinished: return "reads what may not be written yet";
    case order_checker::kind::write_over_unfinished:
      return "writes over what may not be written yet";
    case order_checker::kind::write_under_reader: return "writes over what may still be read";
    case order_checker::kind::use_after_free: return "uses what has been freed";
    case order_checker::kind::free_in_use: return "is freed while it may be in use";
  }
  return "unknown";
}

std::string order_checker::report::text() const {
  char where[64];
  std::snprintf(where, sizeof where, "%zu bytes at %p", size_bytes,
                static_cast<const void*>(begin));
  return "'" + op + "' on " + stream + " " + std::string(to_string(what)) + ": " + where +
         ", last used by '" + other_op + "' on " + other_stream + ", for which " + stream +
         " has not waited";
}

std::uint32_t order_checker::add_stream(std::string name) {
  const std::lock_guard hold(lock_);
  names_.push_back(std::move(name));
  clocks_.emplace_back(names_.size(), 0);
  return static_cast<std::uint32_t>(names_.size() - 1);
}

// The time of this use: what is enqueued happens after all that the host knows.
auto order_checker::begin_use(std::uint32_t stream, std::string_view op) -> use {
  auto& own = clocks_[stream];
  if (stream != host) join(own, clocks_[host]);
  if (own.size() <= stream) own.resize(stream + 1, 0);
  return {stream, ++own[stream], std::string(op)};
}

bool order_checker::has_seen(std::uint32_t stream, const use& u) const {
  const auto& own = clocks_[stream];
  return u.time == 0 || (u.stream < own.size() && own[u.stream] >= u.time);
}

void order_checker::split(const std::byte* at) {
  auto r = ranges_.upper_bound(at);
  if (r == ranges_.begin()) return;
  --r;
  if (r->first == at || r->second.end <= at) return;
  ranges_.emplace(at, r->second);
  r->second.end = at;
}

// Calls f for each range within `bytes`, in order; gaps become ranges that nobody has used.
template <class F>
void order_checker::each(std::span<const std::byte> bytes, F f) {
  if (bytes.empty()) return;
  const auto* end = bytes.data() + bytes.size();
  split(bytes.data());
  split(end);
  for (const auto* at = bytes.data(); at != end;) {
    auto r = ranges_.lower_bound(at);
    if (r == ranges_.end() || r->first != at) {
      const auto* until = r == ranges_.end() ? end : std::min(end, r->first);
      r = ranges_.emplace(at, range{.end = until, .writer = {}, .readers = {}}).first;
    }
    at = r->second.end;
    f(r->first, r->second);
  }
}

void order_checker::add(kind k, const use& now, const use& other, const std::byte* begin,
                        const std::byte* end) {
  report r{k,
           now.op,
           names_[now.stream],
           other.op,
           names_[other.stream],
           begin,
           static_cast<std::size_t>(end - begin)};
  auto& times = seen_[std::to_string(static_cast<int>(k)) + '\n' + r.op + '\n' + r.stream + '\n' +
                      r.other_op + '\n' + r.other_stream];
  if (times++ == 0 && reports_.size() < reports_max) reports_.push_back(std::move(r));
}

void order_checker::read(const use& now, std::span<const std::byte> bytes) {
  each(bytes, [&](const std::byte* begin, range& r) {
    if (r.is_freed)
      add(kind::use_after_free, now, r.writer, begin, r.end);
    else if (!has_seen(now.stream, r.writer))
      add(kind::read_of_unfinished, now, r.writer, begin, r.end);
    const auto same = std::find_if(r.readers.begin(), r.readers.end(),
                                   [&](const use& u) { return u.stream == now.stream; });
    if (same != r.readers.end())
      *same = now;
    else
      r.readers.push_back(now);
  });
}

void order_checker::write(const use& now, std::span<const std::byte> bytes, bool is_free) {
  each(bytes, [&](const std::byte* begin, range& r) {
    if (r.is_freed)
      add(kind::use_after_free, now, r.writer, begin, r.end);
    else {
      if (!has_seen(now.stream, r.writer))
        add(is_free ? kind::free_in_use : kind::write_over_unfinished, now, r.writer, begin, r.end);
      for (const auto& u : r.readers)
        if (!has_seen(now.stream, u))
          add(is_free ? kind::free_in_use : kind::write_under_reader, now, u, begin, r.end);
    }
    r.writer = now;
    r.readers.clear();
    r.is_freed = is_free;
  });
}

void order_checker::work(std::uint32_t stream, std::string_view op, const touched& what) {
  const std::lock_guard hold(lock_);
  const auto now = begin_use(stream, op);
  for (const auto& bytes : what.reads) read(now, bytes);
  for (const auto& bytes : what.writes) write(now, bytes, false);
}

void order_checker::recorded(std::uint32_t stream, const device_event::state* e) {
  const std::lock_guard hold(lock_);
  auto& own = clocks_[stream];
  if (stream != host) join(own, clocks_[host]);
  events_[e] = own;
}

void order_checker::waits(std::uint32_t stream, const device_event::state* e) {
  const std::lock_guard hold(lock_);
  if (const auto known = events_.find(e); known != events_.end())
    join(clocks_[stream], known->second);
}

auto order_checker::moment(std::uint32_t stream) const -> clock {
  const std::lock_guard hold(lock_);
  return clocks_[stream];
}

void order_checker::host_called(const clock& moment) {
  const std::lock_guard hold(lock_);
  join(clocks_[host], moment);
}

void order_checker::host_learned(const device_event::state* e) { waits(host, e); }

void order_checker::allocated(std::uint32_t stream, std::span<const std::byte> bytes) {
  const std::lock_guard hold(lock_);
  const auto now = begin_use(stream, "allocate");
  each(bytes, [&](const std::byte*, range& r) {
    r.writer = now;
    r.readers.clear();
    r.is_freed = false;
  });
}

void order_checker::freed(std::uint32_t stream, std::span<const std::byte> bytes) {
  const std::lock_guard hold(lock_);
  write(begin_use(stream, "free"), bytes, true);
}

std::vector<order_checker::report> order_checker::reports() const {
  const std::lock_guard hold(lock_);
  return reports_;
}

std::uint64_t order_checker::found() const {
  const std::lock_guard hold(lock_);
  return seen_.size();
}

}  // namespace troupe
