#include "troupe/runtime/jobs/recovery.hpp"

#include <algorithm>

namespace troupe {
namespace {

bool has(const kept_report& k, std::uint64_t version) {
  return std::binary_search(k.versions.begin(), k.versions.end(), version);
}

}  // namespace

std::optional<epoch_start> common_cut(const training_program& program,
                                      const std::map<std::string, kept_report>& kept,
                                      std::span<const std::uint64_t> losses,
                                      const planted_bugs* bugs) {
  const auto& spec = program.spec();
  expects(losses.size() == spec.workers, "losses are counted by worker");
  epoch_start start{restore_kind::kept, 0, {losses.begin(), losses.end()}, false};
  if (bugs != nullptr && bugs->passes_over_losses)
    start.worker_steps.assign(spec.workers, spec.steps);
  const auto variables = program.variables();
  for (const auto& [name, tensor] : variables) {
    const auto at = kept.find(name);
    if (at == kept.end() || at->second.versions.empty() ||
        at->second.applied.size() != spec.workers)
      return std::nullopt;
    for (std::uint32_t w = 0; w < spec.workers; ++w) {
      const auto in_it =
          spec.update == update_kind::sync ? at->second.versions.back() : at->second.applied[w];
      start.worker_steps[w] = std::min(start.worker_steps[w], in_it);
    }
  }
  if (spec.update == update_kind::async) return start;
  start.version = *std::min_element(start.worker_steps.begin(), start.worker_steps.end());
  start.worker_steps.assign(spec.workers, start.version);
  for (const auto& [name, tensor] : variables)
    if (!has(kept.at(name), start.version)) return std::nullopt;
  return start;
}

}  // namespace troupe
