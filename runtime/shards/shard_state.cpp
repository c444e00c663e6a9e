#include "troupe/runtime/shards/shard_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace troupe {
namespace {

// Of a slot that was never written.
constexpr auto no_version = std::numeric_limits<std::uint64_t>::max();

std::uint64_t items_of(const shard_spec& spec, const shard_reader& r) noexcept {
  if (r.at_end) return 1;
  if (r.worker >= 0) return spec.steps[source_of(spec, r)];
  // An observer of synchronous versions: first, first + stride, ... up to the last one.
  const auto last = *std::max_element(spec.steps.begin(), spec.steps.end());
  return last < r.first ? 0 : (last - r.first) / r.stride + 1;
}

std::uint64_t first_step(const shard_spec& spec, std::size_t worker) noexcept {
  return spec.start.empty() ? 0 : spec.start[worker];
}

// What earlier epochs have sent and need not send again.
std::uint64_t items_before(const shard_spec& spec, const shard_reader& r) noexcept {
  return r.worker < 0 ? 0 : first_step(spec, source_of(spec, r));
}

}  // namespace

shard_state::shard_state(const shard_spec& spec, std::uint32_t slots, const shard_origin& origin,
                         const planted_bugs* bugs)
    : spec_(spec),
      ledger_(spec.steps.size()),
      lost_(spec.steps.size()),
      slots_(slots, no_version),
      marks_(spec.steps.size()),
      version_(origin.version),
      origin_(origin.version),
      bugs_(bugs) {
  expects(slots >= 1 && !spec.steps.empty(), "a shard has a slot and a worker");
  slots_[0] = version_;
  expects(origin.older.size() < slots_.size(), "there is a slot for each older version");
  std::copy(origin.older.begin(), origin.older.end(), slots_.begin() + 1);
  for (std::size_t w = 0; w < ledger_.size(); ++w) {
    const auto applied = origin.applied.empty() ? 0 : origin.applied.at(w);
    expects(applied >= first_step(spec, w) && applied <= spec.steps[w],
            "a shard begins where its workers do, or later");
    expects(spec.update == update_kind::async || applied == version_,
            "a synchronous version is a number of steps");
    ledger_[w].received = ledger_[w].applied =
        bugs != nullptr && bugs->counts_from_the_start ? first_step(spec, w) : applied;
  }
  forwards_.resize(forward_ports(spec));
  readers_.reserve(spec.readers.size());
  for (const auto& r : spec_.readers) {
    expects(r.worker < static_cast<std::int32_t>(spec.steps.size()) ||
                (spec.follows && spec.update == update_kind::sync),
            "a reader's worker exists");
    expects(r.at_end || r.worker >= 0 || (spec.update == update_kind::sync && r.stride >= 1),
            "an observer of versions belongs to a synchronous shard");
    readers_.push_back(reader_state{.items = items_of(spec_, r), .sent = items_before(spec_, r)});
  }
}

// --- reports -------------------------------------------------------------------------------------

result<shard_state::arrival> shard_state::on_gradient(std::uint32_t worker, std::uint64_t step,
                                                      std::uint32_t mark) {
  expects(worker < ledger_.size(), "a gradient's worker exists");
  const auto complain = [&](std::string_view what) {
    return error(error_code::failed,
                 fmt::format("variable '{}': gradient of worker {}, step {}: {}", spec_.variable,
                             worker, step, what));
  };
  if (has_failed_) return complain("the shard has failed before");
  auto& l = ledger_[worker];
  // FIFO per worker: steps are accepted in order, so their number is the next step expected.
  const auto expected = l.received - l.dropped - l.duplicates;
  if (step < expected || lost_[worker] != 0) {
    ++l.received;
    ++(lost_[worker] != 0 ? l.dropped : l.duplicates);
    return arrival::dropped;
  }
  if (step >= spec_.steps[worker])
    return complain(fmt::format("the worker has {} steps only", spec_.steps[worker]));
  if (step > expected) return complain(fmt::format("step {} is missing", expected));
  ++l.received;
  if (mark != 0 && !spec_.follows) marks_[worker] = 1 + step;
  if (spec_.update == update_kind::async) arrivals_.push_back(worker);
  return arrival::queued;
}

void shard_state::on_saved() {
  expects(is_saving_, "SS-9: what is saved was a cut");
  is_saving_ = false;
}

void shard_state::on_credit(std::uint32_t reader) {
  expects(reader < readers_.size() + forwards_.size(), "a reader exists");
  auto& r = reader < readers_.size() ? readers_[reader] : forwards_[reader - readers_.size()];
  expects(r.is_claimed && !r.has_credit, "SS-5: a credit answers a claim");
  r.is_claimed = false;
  r.has_credit = true;
}

result<void> shard_state::worker_lost(std::uint32_t worker) {
  expects(worker < lost_.size(), "a lost worker exists");
  if (lost_[worker] != 0) return {};
  const auto received =
      ledger_[worker].received - ledger_[worker].dropped - ledger_[worker].duplicates;
  lost_[worker] = 1;
  if (spec_.update == update_kind::sync && received < spec_.steps[worker]) {
    has_failed_ = true;
    return error(error_code::failed,
                 fmt::format("variable '{}': worker {} was lost before its gradient of step {}",
                             spec_.variable, worker, received));
  }
  for (std::size_t i = 0; i < readers_.size(); ++i)
    if (spec_.readers[i].worker == static_cast<std::int32_t>(worker))
      readers_[i].items = readers_[i].sent;
  return {};
}

// --- decisions -----------------------------------------------------------------------------------

std::uint64_t shard_state::queued(std::size_t worker) const noexcept {
  const auto& l = ledger_[worker];
  return l.received - l.dropped - l.duplicates - l.applied;
}

bool shard_state::is_ended(std::size_t worker) const noexcept {
  return lost_[worker] != 0 || ledger_[worker].applied == spec_.steps[worker];
}

bool shard_state::all_applied() const noexcept {
  for (std::size_t w = 0; w < ledger_.size(); ++w)
    if (!is_ended(w) || queued(w) != 0) return false;
  return true;
}

// Of a reader in sync: the version that its next item is.
std::uint64_t shard_state::version_due(std::size_t reader) const noexcept {
  const auto& r = spec_.readers[reader];
  return r.worker >= 0 ? readers_[reader].sent : r.first + readers_[reader].sent * r.stride;
}

bool shard_state::is_due(std::size_t reader) const noexcept {
  const auto& r = spec_.readers[reader];
  const auto& state = readers_[reader];
  if (state.sent == state.items) return false;
  if (r.at_end) return all_applied();
  if (spec_.update == update_kind::sync) return version_due(reader) <= version_;
  return ledger_[static_cast<std::size_t>(r.worker)].applied >= state.sent;
}

// SS-4: some reader will still be sent `version` (at_end readers and those of async take what is
// current then).
bool shard_state::is_awaited(std::uint64_t version) const noexcept {
  if (spec_.update == update_kind::async) return false;
  for (std::size_t i = 0; i < readers_.size(); ++i) {
    const auto& r = spec_.readers[i];
    const auto& state = readers_[i];
    if (r.at_end || state.sent == state.items) continue;
    const auto next = version_due(i);
    const auto stride = r.worker >= 0 ? 1 : r.stride;
    if (version >= next && (version - next) % stride == 0 &&
        (version - next) / stride < state.items - state.sent)
      return true;
  }
  return false;
}

std::uint32_t shard_state::slot_of(std::uint64_t version) const noexcept {
  if (version == version_) return current_;
  for (std::uint32_t i = 0; i < slots_.size(); ++i)
    if (i != current_ && slots_[i] == version) return i;
  return current_;
}

// SS-8, of the versions that will be older than the next one.
bool shard_state::is_kept(std::uint64_t version) const noexcept {
  return version + spec_.keeps > version_;
}

std::optional<std::uint64_t> shard_state::kept_in(std::uint32_t slot) const noexcept {
  const auto v = slots_[slot];
  if (slot == current_) return version_;
  if (v == no_version || v + spec_.keeps < version_) return std::nullopt;
  return v;
}

// Where the next version goes: in place unless the current one is still to be sent or kept.
// Versions older than the current one that nobody awaits leave their slot free.
std::optional<std::uint32_t> shard_state::target_slot() const noexcept {
  const bool keeps_none = spec_.keeps == 0 || (bugs_ != nullptr && bugs_->keeps_too_few);
  if (keeps_none && !is_awaited(version_)) return current_;
  for (std::uint32_t i = 0; i < slots_.size(); ++i)
    if (i != current_ &&
        (slots_[i] == no_version || (!is_awaited(slots_[i]) && !is_kept(slots_[i]))))
      return i;
  return std::nullopt;
}

// --- cuts ----------------------------------------------------------------------------------------

// async: everything of the worker that belongs to the cut is applied, or never comes.
bool shard_state::is_marked(std::size_t worker) const noexcept {
  return is_ended(worker) || (marks_[worker] != 0 && ledger_[worker].applied + 1 == marks_[worker]);
}

std::optional<std::uint64_t> shard_state::cut_due() const noexcept {
  // Saved before.
  if (cut_ == version_ || (spec_.is_saved && version_ == origin_)) return std::nullopt;
  const bool is_last = spec_.cuts_at_end && all_applied();
  if (is_last && version_ != 0) return version_;
  if (spec_.update == update_kind::sync) {
    const bool is_regular =
        spec_.cut_every != 0 && version_ != 0 && version_ % spec_.cut_every == 0;
    return is_regular || marks_[0] == version_ + 1 ? std::optional(version_) : std::nullopt;
  }
  bool is_any_marked = false;
  for (std::size_t w = 0; w < marks_.size(); ++w) {
    if (!is_marked(w)) return std::nullopt;
    is_any_marked = is_any_marked || (marks_[w] != 0 && !is_ended(w));
  }
  return is_any_marked ? std::optional(version_) : std::nullopt;
}

// The oldest one that a cut does not hold back. A cut without a lost worker's last gradients is
// none, and is refused as a whole.
std::vector<std::uint32_t>::const_iterator shard_state::next_arrival() const noexcept {
  return std::find_if(arrivals_.begin(), arrivals_.end(), [this](auto w) {
    return marks_[w] == 0 || ledger_[w].applied + 1 != marks_[w] || lost_[w] != 0;
  });
}

bool shard_state::has_gradients() const noexcept {
  if (spec_.update == update_kind::async) return next_arrival() != arrivals_.end();
  for (std::size_t w = 0; w < ledger_.size(); ++w)
    if (queued(w) == 0) return false;
  return true;
}

// Cuts and sends come before applies: they need the versions that applies write over.
std::optional<shard_action> shard_state::next() {
  if (has_failed_) return std::nullopt;
  if (auto claim = next_claim()) return claim;
  const auto cut = cut_due();
  if (cut && !is_saving_) {
    is_saving_ = true;
    cut_ = *cut;
    if (spec_.update == update_kind::async) std::fill(marks_.begin(), marks_.end(), 0);
    return shard_cut{*cut, current_};
  }
  if (auto item = next_item()) return item;
  return cut ? std::nullopt : next_apply();
}

std::optional<shard_action> shard_state::next_claim() {
  const auto at = std::find_if(forwards_.begin(), forwards_.end(),
                               [](const auto& f) { return !f.is_claimed && !f.has_credit; });
  if (at == forwards_.end()) return std::nullopt;
  at->is_claimed = true;
  return shard_claim{static_cast<std::uint32_t>(readers_.size() +
                                                static_cast<std::size_t>(at - forwards_.begin()))};
}

std::optional<shard_action> shard_state::next_item() {
  for (std::uint32_t i = 0; i < readers_.size(); ++i) {
    auto& r = readers_[i];
    if (r.is_claimed || !is_due(i)) continue;
    if (!r.has_credit) {
      r.is_claimed = true;
      return shard_claim{i};
    }
    const bool is_latest = spec_.update == update_kind::async || spec_.readers[i].at_end;
    const auto version = is_latest ? version_ : version_due(i);
    r.has_credit = false;
    return shard_send{.reader = i, .item = r.sent++, .slot = slot_of(version), .version = version};
  }
  return std::nullopt;
}

// Whose gradient is applied next; sync: all.
std::int32_t shard_state::next_worker() const noexcept {
  return spec_.update == update_kind::async ? static_cast<std::int32_t>(*next_arrival()) : -1;
}

std::optional<shard_action> shard_state::next_apply() {
  if (!has_gradients() || !may_forward(next_worker())) return std::nullopt;
  const auto to = target_slot();
  if (!to) return std::nullopt;
  shard_apply action{.from = current_, .to = *to, .version = version_ + 1};
  if (spec_.update == update_kind::async) {
    const auto next = next_arrival();
    action.worker = static_cast<std::int32_t>(*next);
    arrivals_.erase(next);  // a handful at most: each worker's edge has few credits
    action.step = ledger_[static_cast<std::size_t>(action.worker)].applied++;
  } else {
    action.step = version_;
    for (auto& l : ledger_) ++l.applied;
  }
  if (!forwards_.empty()) forwards_[forward_of(action.worker)].has_credit = false;
  current_ = *to;
  slots_[current_] = ++version_;
  return action;
}

// --- inspection ----------------------------------------------------------------------------------

bool shard_state::is_finished() const noexcept {
  return !has_failed_ && all_applied() && !is_saving_ && !cut_due() &&
         std::all_of(readers_.begin(), readers_.end(),
                     [](const reader_state& r) { return r.sent == r.items; });
}

shard_wait shard_state::wait_for_reader() const noexcept {
  for (std::uint32_t i = 0; i < readers_.size(); ++i)
    if (is_due(i)) return {shard_wait::kind::credit, i, readers_[i].sent};
  return {};
}

// The first worker, in order, whose gradient the next apply lacks. A worker that has not been sent
// its item cannot answer, so then its reader is what we wait for; of a sum, that of any worker.
shard_wait shard_state::wait_for_gradient() const noexcept {
  for (std::uint32_t w = 0; w < ledger_.size(); ++w) {
    if (is_ended(w) || queued(w) != 0) continue;
    for (std::uint32_t i = 0; i < readers_.size(); ++i)
      if ((spec_.readers[i].worker == static_cast<std::int32_t>(w) || ledger_.size() == 1) &&
          spec_.readers[i].worker >= 0 && is_due(i) && readers_[i].sent == ledger_[w].applied)
        return {shard_wait::kind::credit, i, readers_[i].sent};
    return {shard_wait::kind::gradient, w, ledger_[w].applied};
  }
  return {};
}

shard_wait shard_state::waiting() const noexcept {
  if (has_failed_) return {};
  if (is_saving_ && (cut_due() || all_applied())) return {shard_wait::kind::cut, 0, *cut_};
  if (has_gradients() && !may_forward(next_worker()))
    return {shard_wait::kind::credit,
            static_cast<std::uint32_t>(readers_.size() + forward_of(next_worker())), version_};
  if (has_gradients() || all_applied()) return wait_for_reader();
  return wait_for_gradient();
}

}  // namespace troupe
