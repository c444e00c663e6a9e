#include "troupe/runtime/jobs/job_succession.hpp"

#include <algorithm>

namespace troupe {

void job_succession::choose(std::vector<node_id> able, node_id next) {
  if (!is_on()) return;
  std::erase(able, next);
  // Who has the recipe already stays: it is the dear part.
  std::stable_partition(able.begin(), able.end(), [&](auto n) { return successors_.contains(n); });
  able.resize(std::min(able.size(), successors_max));
  if (raw(next) != 0) able.insert(able.begin(), next);
  if (able == order_) return;
  for (const auto n : order_)
    if (std::find(able.begin(), able.end(), n) == able.end()) {
      successors_.erase(n);
      dismissed_.push_back(n);
    }
  for (const auto n : able) {
    successors_.try_emplace(n);
    std::erase(dismissed_, n);
  }
  order_ = std::move(able);
  is_new_ = true;
}

void job_succession::take_over(const std::vector<node_id>& successors, node_id self) {
  for (const auto n : successors)
    if (n != self && !successors_.contains(n)) dismissed_.push_back(n);
}

void job_succession::on_loss(const told_loss& l, bool is_new) {
  if (!is_on()) return;
  ++unused_;
  is_new_ = true;
  if (!is_new) return;
  losses_.add(l);
  fresh_.push_back(l);
}

std::vector<std::pair<node_id, keep_journal>> job_succession::take(const job_journal& state,
                                                                   std::int64_t now_ns) {
  std::vector<std::pair<node_id, keep_journal>> out;
  for (const auto n : std::exchange(dismissed_, {}))
    out.emplace_back(n, keep_journal{job_, state.epoch, {}, {}});
  const bool is_on_its_way = std::any_of(successors_.begin(), successors_.end(), [](const auto& s) {
    return s.second.sent != s.second.kept;
  });
  if (is_on_its_way) return out;
  free_ += std::exchange(told_, 0);
  if (!is_new_) return out;
  is_new_ = false;
  sent_ns_ = now_ns;
  ++number_;
  told_ += std::exchange(unused_, 0);
  auto journal = state;
  journal.successors = order_;
  journal.losses = std::exchange(fresh_, {});
  std::vector<std::byte> news, all;
  for (const auto n : order_) {
    auto& s = successors_.at(n);
    s.sent = number_;
    if (std::exchange(s.has_recipe, true)) {
      if (news.empty()) news = encode(journal);
      out.emplace_back(n, keep_journal{job_, number_, {}, news});
      continue;
    }
    if (all.empty()) {
      auto whole = journal;
      whole.losses.assign(losses_.newest().begin(), losses_.newest().end());
      all = encode(whole);
    }
    out.emplace_back(n, keep_journal{job_, number_, *recipe_, all});
  }
  return out;
}

void job_succession::on_kept(node_id from, std::uint64_t number) {
  const auto at = successors_.find(from);
  if (at != successors_.end() && number <= at->second.sent)
    at->second.kept = std::max(at->second.kept, number);
}

std::vector<node_id> job_succession::mute(std::int64_t now_ns) const {
  std::vector<node_id> out;
  for (const auto& [n, s] : successors_)
    if (s.sent != s.kept && now_ns - sent_ns_ > answer_max_ns) out.push_back(n);
  return out;
}

std::size_t job_succession::take_credits() {
  const bool is_kept = std::all_of(successors_.begin(), successors_.end(),
                                   [](const auto& s) { return s.second.sent == s.second.kept; });
  if (is_kept) free_ += std::exchange(told_, 0);
  return std::exchange(free_, 0);
}

bool job_succession::has_all(node_id n) const {
  const auto at = successors_.find(n);
  return at != successors_.end() && !is_new_ && at->second.has_recipe &&
         at->second.sent == at->second.kept;
}

std::vector<std::pair<node_id, keep_journal>> job_succession::dismiss(std::uint32_t epoch,
                                                                      node_id next) {
  std::vector<std::pair<node_id, keep_journal>> out;
  dismissed_.insert(dismissed_.end(), order_.begin(), order_.end());
  for (const auto n : std::exchange(dismissed_, {}))
    if (n != next) out.emplace_back(n, keep_journal{job_, epoch, {}, {}});
  order_.clear();
  successors_.clear();
  return out;
}

}  // namespace troupe
