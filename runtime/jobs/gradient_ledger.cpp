#include "troupe/runtime/jobs/gradient_ledger.hpp"

#include "troupe/schema/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace troupe {

ledger::ledger(std::uint32_t workers, std::vector<std::uint64_t> start)
    : start_(std::move(start)), losses_(workers) {
  start_.resize(workers);
}

void ledger::on_loss(std::uint32_t worker) {
  if (worker < losses_.size()) ++losses_[worker];
}

void ledger::on_shard(const shard_report& r) {
  auto& known = shards_[r.actor];
  known.actor = r.actor;
  const auto take = [this](std::vector<std::uint64_t>& to, const std::vector<std::uint64_t>& from) {
    to.resize(losses_.size());
    for (std::size_t w = 0; w < std::min(to.size(), from.size()); ++w)
      to[w] = std::max(to[w], from[w]);
  };
  take(known.received, r.received);
  take(known.applied, r.applied);
  take(known.dropped, r.dropped);
  take(known.duplicates, r.duplicates);
}

// Not negative: with t the shard that dropped most, applied + dropped <= applied(t) + dropped(t) <=
// fed.
worker_totals ledger::of(std::uint32_t worker) const {
  expects(worker < losses_.size(), "the ledger knows the job's workers");
  worker_totals out;
  out.fed = losses_[worker];
  const auto new_ones = [&](std::uint64_t n) { return n - std::min(n, start_[worker]); };
  bool is_first = true;
  for (const auto& [actor, s] : shards_) {
    const auto applied = new_ones(s.applied[worker]);
    out.applied = is_first ? applied : std::min(out.applied, applied);
    out.dropped = std::max(out.dropped, s.dropped[worker]);
    out.fed = std::max(
        {out.fed, new_ones(s.received[worker] - std::min(s.received[worker], s.duplicates[worker])),
         applied + s.dropped[worker]});
    is_first = false;
  }
  out.in_flight = out.fed - out.applied - out.dropped;
  return out;
}

worker_totals ledger::total() const {
  worker_totals out;
  for (std::uint32_t w = 0; w < workers(); ++w) {
    const auto l = of(w);
    out.fed += l.fed;
    out.applied += l.applied;
    out.dropped += l.dropped;
    out.in_flight += l.in_flight;
  }
  return out;
}

std::string to_string(std::uint32_t worker, const worker_totals& l) {
  return fmt::format("worker {}: fed {} = applied {} + dropped {} + in flight {}", worker, l.fed,
                     l.applied, l.dropped, l.in_flight);
}

}  // namespace troupe
