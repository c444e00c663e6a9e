#include "troupe/runtime/jobs/job_cuts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <utility>

namespace troupe {

void job_cuts::end_epoch() {
  cuts_.clear();
  due_.clear();
  is_cutting_ = false;
}

bool job_cuts::is_due(std::int64_t now_ns, std::uint64_t steps) const {
  if (!is_idle() || (is_cutting_ && now_ns - asked_ns_ < making_max_ns)) return false;
  const bool is_late = every_ns_ > 0 && now_ns - asked_ns_ >= every_ns_;
  const bool is_far = every_steps_ > 0 && steps >= steps_ + every_steps_;
  return is_late || is_far || is_wanted_;
}

std::uint32_t job_cuts::ask(std::int64_t now_ns, std::uint64_t steps) {
  is_wanted_ = false;
  is_cutting_ = true;
  asked_ns_ = now_ns;
  steps_ = steps;
  return ++mark_;
}

bool job_cuts::on_saved(node_id from, const part_saved& p, const std::string& error) {
  const auto at = cuts_.try_emplace(p.step).first;
  auto& cut = at->second;
  cut.by_node.insert_or_assign(from, p);
  if (cut.error.empty()) cut.error = error;
  const bool is_hasty = bugs_ != nullptr && bugs_->writes_manifests_early;
  if (cut.by_node.size() < savers_.size() && !is_hasty) return true;
  is_cutting_ = false;
  const auto& worker_steps = cut.by_node.begin()->second.worker_steps;
  const bool is_even = std::all_of(cut.by_node.begin(), cut.by_node.end(), [&](const auto& part) {
    return part.second.worker_steps == worker_steps;
  });
  if (cut.error.empty() && !is_even)
    cut.error = "its parts hold different steps because a worker was lost";
  why_lost_ = std::move(cut.error);
  if (why_lost_.empty()) {
    cut_manifest m{p.step, worker_steps, {}, p.epoch};
    for (auto& [node, part] : cut.by_node) m.parts.push_back(std::move(part));
    due_.push_back(std::move(m));
  }
  cuts_.erase(at);
  return why_lost_.empty();
}

std::vector<cut_manifest> job_cuts::take_manifests(std::span<const std::uint64_t> losses) {
  const auto has_losses = [&](const cut_manifest& m) {
    return std::equal(losses.begin(), losses.end(), m.worker_steps.begin(), std::greater_equal{});
  };
  const auto waiting = std::stable_partition(due_.begin(), due_.end(), has_losses);
  std::vector<cut_manifest> out(std::make_move_iterator(due_.begin()),
                                std::make_move_iterator(waiting));
  due_.erase(due_.begin(), waiting);
  for (const auto& m : out) open_.emplace(m.step, m.epoch);
  return out;
}

bool job_cuts::on_manifest(std::uint64_t step, std::uint32_t epoch) {
  return open_.erase({step, epoch}) > 0;
}

std::optional<std::string> job_cuts::written(std::uint64_t step) {
  ++count_;
  const auto lost = std::exchange(lost_, 0);
  if (lost <= 1) return {};
  return fmt::format("the checkpoint of step {} was written; the {} before it were not", step,
                     lost);
}

std::optional<std::string> job_cuts::lost(std::uint64_t step, const std::string& why) {
  ++lost_;
  if (!std::has_single_bit(lost_)) return {};
  const auto row = lost_ == 1   ? ""
                   : lost_ == 2 ? ", and neither was the one before it"
                                : fmt::format(", and neither were the {} before it", lost_ - 1);
  return fmt::format("the checkpoint of step {} was not written{}: {}", step, row, why);
}

}  // namespace troupe
