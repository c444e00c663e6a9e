#include "runtime/plan.hpp"

namespace troupe {

std::string_view to_string(actor_kind k) noexcept {
  static constexpr std::string_view names[] = {"op",  "shard", "send", "receive", "feed", "fetch",
                                               "stream", "job", "node", "member", "link", "supervisor"};
  return static_cast<std::size_t>(k) < std::size(names) ? names[static_cast<std::size_t>(k)] : "unknown";
}

std::size_t source_of(const shard_spec& s, const shard_reader& r) noexcept {
  return s.update == update_kind::sync ? 0 : static_cast<std::size_t>(r.worker);
}

std::size_t hand_over_ports(const shard_spec& s) noexcept { return 1 + slot_count(s.optimizer); }

std::size_t forward_ports(const shard_spec& s) noexcept {
  if (!s.forwards) return 0;
  return s.update == update_kind::sync ? 1 : s.steps.size();
}

}  // namespace troupe
