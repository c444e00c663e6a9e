#include "runtime/kept_shard.hpp"

#include <algorithm>

namespace troupe {

kept_report report_of(const std::string& variable, const kept_shard& k) {
  kept_report out{variable, {}, k.applied};
  if (k.is_torn) return out;
  for (const auto& s : k.slots)
    if (s.version && s.values) out.versions.push_back(*s.version);
  std::sort(out.versions.begin(), out.versions.end());
  return out;
}

}  // namespace troupe
