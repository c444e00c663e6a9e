#include "troupe/actors/flow/part_words.hpp"

namespace troupe {

stage_count count_of(std::uint32_t stage, const stage_counters& c, float busy) {
  const auto now = [](const auto& a) { return a.load(std::memory_order_relaxed); };
  stage_count s;
  s.stage = stage;
  s.is_over = now(c.is_over);
  s.is_blocked = now(c.is_blocked);
  s.items_in = now(c.items_in);
  s.items_out = now(c.items_out);
  s.bytes_in = now(c.bytes_in);
  s.bytes_out = now(c.bytes_out);
  s.skipped = now(c.skipped);
  s.dropped = now(c.dropped);
  s.restarts = now(c.restarts);
  s.measured = now(c.measured);
  s.measured_ns = now(c.measured_ns);
  s.calls = now(c.calls);
  s.blocked_ns = now(c.blocked_ns);
  s.busy = busy;
  return s;
}

void keep_count(const stage_count& from, stage_counters& c) {
  const auto keep = [](auto& a, auto n) { a.store(n, std::memory_order_relaxed); };
  keep(c.is_over, from.is_over);
  keep(c.is_blocked, from.is_blocked);
  keep(c.items_in, from.items_in);
  keep(c.items_out, from.items_out);
  keep(c.bytes_in, from.bytes_in);
  keep(c.bytes_out, from.bytes_out);
  keep(c.skipped, from.skipped);
  keep(c.dropped, from.dropped);
  keep(c.restarts, from.restarts);
  keep(c.measured, from.measured);
  keep(c.measured_ns, from.measured_ns);
  keep(c.calls, from.calls);
  keep(c.blocked_ns, from.blocked_ns);
}

std::vector<std::byte> word_bytes(part_word kind) { return {static_cast<std::byte>(kind)}; }

std::optional<part_word> word_of(std::span<const std::byte> bytes) {
  if (bytes.empty()) return std::nullopt;
  const auto kind = static_cast<part_word>(bytes.front());
  if (kind < part_word::place || kind > part_word::end) return std::nullopt;
  return kind;
}

}  // namespace troupe
