#include "troupe/runtime/shards/kept_shard.hpp"

#include <algorithm>

namespace troupe {

bool kept_version::is_whole(std::size_t slots) const noexcept {
  return values && state.size() == slots &&
         std::all_of(state.begin(), state.end(), [](const tensor& t) { return bool(t); });
}

kept_report report_of(const std::string& variable, const kept_shard& k) {
  kept_report out{variable, {}, k.applied};
  if (k.is_torn) return out;
  for (const auto& s : k.slots)
    if (s.version && s.values) out.versions.push_back(*s.version);
  std::sort(out.versions.begin(), out.versions.end());
  return out;
}

}  // namespace troupe
