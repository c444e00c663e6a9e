#include "troupe/runtime/flow/replica_tuner.hpp"

#include <algorithm>

namespace troupe {
namespace {

// A window is so long, or until so many items have gone through each replica, but no longer than
// the last one.
constexpr std::int64_t window_min_ns = 140'000'000, window_max_ns = 1'000'000'000;
constexpr std::int64_t far_window_min_ns = 800'000'000;
constexpr std::uint64_t items_min = 8;
constexpr double busy_min = 0.7, still_busy = 0.85, spare_max = 0.6, gain_min = 0.05;
constexpr double idle_min = 0.15;  // of a thread
constexpr std::int64_t rest_min_ns = 4'000'000'000, rest_max_ns = 60'000'000'000;
constexpr std::int64_t spare_for_ns = 3'000'000'000;

}  // namespace

void replica_tuner::begin_window(std::int64_t now_ns, std::span<const tuned_stage> now) {
  window_ns_ = now_ns;
  idle_ = looks_ = 0;
  for (std::size_t i = 0; i < stages_.size(); ++i) {
    stages_[i].busy_before = now[i].busy_ns;
    stages_[i].done_before = now[i].done;
  }
}

// The trial that is under way, of a window that is long enough.
std::optional<replica_tuner::change> replica_tuner::judge(std::int64_t now_ns,
                                                          const tuned_stage& s) {
  auto& t = stages_[tried_];
  const auto took = static_cast<double>(now_ns - window_ns_);
  const auto rate = static_cast<double>(s.done - t.done_before) / took;
  const auto busy = (s.busy_ns - t.busy_before) / took / s.working;
  is_on_trial_ = false;
  if (rate >= rate_before_ * (1 + gain_min) || busy < still_busy) {
    t.rest_ns = 0;
    return std::nullopt;
  }
  t.reason = replica_reason::no_help;
  t.rest_ns = std::clamp(t.rest_ns * 2, rest_min_ns, rest_max_ns);
  t.rests_until_ns = now_ns + t.rest_ns;
  return change{tried_, working_before_};
}

// One that has had less to do than fewer could have done, for some time.
std::optional<replica_tuner::change> replica_tuner::spare(std::int64_t now_ns,
                                                          std::span<const tuned_stage> now) {
  const auto took = static_cast<double>(now_ns - window_ns_);
  for (std::size_t i = 0; i < stages_.size(); ++i) {
    auto& t = stages_[i];
    const auto busy = (now[i].busy_ns - t.busy_before) / took;
    const bool is_known = now[i].done > t.done_before;  // a call has ended
    if (!now[i].is_tuned || !is_known || now[i].working < 2 ||
        busy >= spare_max * (now[i].working - 1)) {
      t.spare_since_ns = 0;
      continue;
    }
    if (t.spare_since_ns == 0) t.spare_since_ns = window_ns_;
    if (now_ns - t.spare_since_ns < spare_for_ns) continue;
    t.spare_since_ns = 0;
    t.reason = replica_reason::suffices;
    return change{i, now[i].working - 1};
  }
  return std::nullopt;
}

void replica_tuner::forget() {
  window_ns_ = -1;
  is_on_trial_ = false;
  for (auto& t : stages_) t.spare_since_ns = 0;
}

std::optional<replica_tuner::change> replica_tuner::look(std::int64_t now_ns,
                                                         std::span<const tuned_stage> now,
                                                         double idle_threads) {
  if (window_ns_ < 0) {
    begin_window(now_ns, now);
    return std::nullopt;
  }
  idle_ += idle_threads;
  looks_ += 1;
  const auto took = now_ns - window_ns_;
  const bool is_far = std::ranges::any_of(now, [](const auto& s) { return s.is_far; });
  if (took < (is_far ? far_window_min_ns : window_min_ns)) return std::nullopt;
  const auto done = [&](std::size_t i) { return now[i].done - stages_[i].done_before; };
  const auto busy = [&](std::size_t i) {
    return (now[i].busy_ns - stages_[i].busy_before) / static_cast<double>(took) / now[i].working;
  };
  std::optional<change> wanted;
  if (is_on_trial_) {
    const auto wanted_items = took < window_max_ns ? items_min * now[tried_].working : 1;
    if (now[tried_].is_tuned && done(tried_) < wanted_items) return std::nullopt;
    if (now[tried_].is_tuned)
      wanted = judge(now_ns, now[tried_]);
    else
      is_on_trial_ = false;
  }
  if (!wanted) wanted = spare(now_ns, now);
  if (!wanted) {
    auto busiest = stages_.size();
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      auto& t = stages_[i];
      if (!now[i].is_tuned) continue;
      if (busy(i) < busy_min) {
        if (t.reason != replica_reason::no_help || now_ns >= t.rests_until_ns)
          t.reason = replica_reason::suffices;
        continue;
      }
      if (now[i].working >= now[i].most) {
        t.reason = replica_reason::all;
      } else if (now_ns < t.rests_until_ns) {
        continue;
      } else if (!now[i].sleeps && idle_ / looks_ < idle_min) {
        t.reason = replica_reason::no_thread;
      } else if (busiest == stages_.size() || busy(i) > busy(busiest)) {
        busiest = i;
      }
    }
    if (busiest != stages_.size()) {
      // What it does is known only when it has done something.
      if (took < window_max_ns && done(busiest) < items_min) return std::nullopt;
      is_on_trial_ = true;
      tried_ = busiest;
      working_before_ = now[busiest].working;
      rate_before_ = static_cast<double>(done(busiest)) / static_cast<double>(took);
      // Its window begins with the next look: threads have to find each other first.
      window_ns_ = -1;
      const auto times = now[busiest].sleeps ? 4U : 2U;
      return change{busiest, std::min(now[busiest].most, now[busiest].working * times)};
    }
  }
  begin_window(now_ns, now);
  return wanted;
}

}  // namespace troupe
