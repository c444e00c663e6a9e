#include "troupe/runtime/firing/collective_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace troupe {

using take_kind = collective_stage::take_kind;

collective_state::collective_state(const collective_spec& spec, std::uint32_t credits,
                                   std::uint64_t step)
    : spec_(spec),
      pieces_(pieces_of(spec)),
      lists_(spec.ranks()),
      peers_(spec.ranks()),
      states_(pieces_.size()),
      step_(step) {
  expects(credits >= fewest_credits(spec_), "CM-2: a rank takes all parts of a piece at once");
  part_rank_.resize(parts_of(spec_));
  part_lane_.resize(parts_of(spec_));
  for (std::uint32_t r = 0; r < spec_.ranks(); ++r)
    for (std::uint32_t i = 0; i < spec_.parts[r].size(); ++i) {
      part_rank_[spec_.parts[r][i]] = r;
      part_lane_[spec_.parts[r][i]] = i;
    }
  for (const auto& p : pieces_)
    if (lists_[p.owner].empty()) lists_[p.owner] = stages_of(spec_, p.owner);
  std::uint32_t slots = 0;
  for (const auto r : peers_of(spec_).from) {
    peers_[r].first_slot = slots;
    peers_[r].is_sender = true;
    slots += static_cast<std::uint32_t>(pieces_.size()) * lanes_of(r);
  }
  for (auto& p : peers_) p.credits = credits;
  slots_.resize(slots);
  is_expected_.resize(slots);
  for (std::uint32_t p = 0; p < pieces_.size(); ++p)
    for (const auto& s : list_of(p))
      for_each_slot(p, s, [&](std::uint32_t slot) { is_expected_[slot] = 1; });
}

std::uint32_t collective_state::lanes_of(std::uint32_t rank) const noexcept {
  return std::max<std::uint32_t>(1, static_cast<std::uint32_t>(spec_.parts[rank].size())) + 1;
}

template <class F>
void collective_state::for_each_slot(std::uint32_t piece, const collective_stage& s, F&& f) const {
  for (const auto r : s.from) {
    if (s.take == take_kind::copy)
      f(slot_of(r, piece, lanes_of(r) - 1));
    else if (s.takes_parts)
      for (std::uint32_t i = 0; i < spec_.parts[r].size(); ++i) f(slot_of(r, piece, i));
    else
      f(slot_of(r, piece, 0));
  }
}

bool collective_state::has_all(std::uint32_t piece, const collective_stage& s) const {
  bool all = true;
  for_each_slot(piece, s, [&](std::uint32_t slot) { all = all && slots_[slot] != 0; });
  return all;
}

void collective_state::make_ready(std::uint32_t piece) {
  if (!std::exchange(states_[piece].is_ready, true)) ready_.push_back(piece);
}

void collective_state::begin() {
  expects(!has_begun_, "a step begins once");
  has_begun_ = true;
  open_pieces_ = static_cast<std::uint32_t>(pieces_.size());
  for (std::uint32_t p = 0; p < pieces_.size(); ++p) make_ready(p);
}

result<std::optional<std::uint32_t>> collective_state::on_chunk(std::uint32_t peer,
                                                                std::uint64_t step,
                                                                std::uint32_t key) {
  if (peer >= peers_.size() || !peers_[peer].is_sender || key >= pieces_.size() * lanes_of(peer))
    return error(error_code::failed,
                 fmt::format("rank {} sent chunk {} of {}, which rank {} does not take", peer, key,
                             to_string(spec_.kind), spec_.rank));
  if (step > step_) return std::optional<std::uint32_t>();
  const auto slot = peers_[peer].first_slot + key;
  if (step < step_ || is_expected_[slot] == 0 || slots_[slot] != 0)
    return error(error_code::failed,
                 fmt::format("rank {} sent piece {} of {} at step {}, which rank {} {}, at step {}",
                             peer, piece_of(peer, key), to_string(spec_.kind), step, spec_.rank,
                             is_expected_[slot] == 0 ? "does not take" : "has already", step_));
  slots_[slot] = 1;
  if (has_begun_) make_ready(key / lanes_of(peer));
  return std::optional<std::uint32_t>(slot);
}

std::optional<std::uint32_t> collective_state::lands_in(std::uint32_t peer, std::uint64_t step,
                                                        std::uint32_t key) const noexcept {
  if (!has_begun_ || step != step_ || peer >= peers_.size() || !peers_[peer].is_sender ||
      key >= pieces_.size() * lanes_of(peer))
    return std::nullopt;
  const auto slot = peers_[peer].first_slot + key;
  if (key % lanes_of(peer) + 1 != lanes_of(peer) || is_expected_[slot] == 0 || slots_[slot] != 0)
    return std::nullopt;
  return piece_of(peer, key);
}

void collective_state::on_credit(std::uint32_t peer, std::uint32_t count) {
  expects(peer < peers_.size(), "a credit comes from a rank of the group");
  peers_[peer].credits += count;
  if (!peers_[peer].queue.empty()) sendable_.push_back(peer);
}

std::optional<collective_action> collective_state::next_send() {
  while (!sendable_.empty()) {
    const auto peer = sendable_.front();
    auto& p = peers_[peer];
    if (p.queue.empty() || p.credits == 0) {
      sendable_.pop_front();
      continue;
    }
    --p.credits;
    --queued_;
    const auto o = p.queue.front();
    p.queue.pop_front();
    // Peers take turns, or the last of them would begin when the first has all.
    sendable_.pop_front();
    if (!p.queue.empty() && p.credits > 0) sendable_.push_back(peer);
    return collective_send{o.piece, peer, o.key, o.part};
  }
  return std::nullopt;
}

std::optional<collective_action> collective_state::next() {
  if (!has_begun_) return std::nullopt;
  if (auto send = next_send()) return send;
  while (!ready_.empty()) {
    const auto piece = ready_.front();
    if (!can_advance(piece)) {
      ready_.pop_front();
      states_[piece].is_ready = false;
      continue;
    }
    if (auto action = advance(piece)) return action;
    // Before this rank computes, others get what they can begin with.
    if (auto send = next_send()) return send;
  }
  if (open_pieces_ != 0 || queued_ != 0) return std::nullopt;
  has_begun_ = false;
  std::fill(states_.begin(), states_.end(), piece_state{});
  return collective_finished{step_++};
}

bool collective_state::can_advance(std::uint32_t piece) const {
  const auto& at = states_[piece];
  const auto& list = list_of(piece);
  return at.stage < list.size() && has_all(piece, list[at.stage]);
}

// One stage of the piece: what it takes, if anything. Its sends follow.
std::optional<collective_action> collective_state::advance(std::uint32_t piece) {
  const auto& list = list_of(piece);
  const auto& s = list[states_[piece].stage];
  auto action = take(piece, s);
  queue_sends(piece, s);
  if (++states_[piece].stage == list.size()) --open_pieces_;
  return action;
}

std::optional<collective_action> collective_state::take(std::uint32_t piece,
                                                        const collective_stage& s) {
  using operand = collective_operand;
  auto& at = states_[piece];
  std::vector<operand> operands;
  switch (s.take) {
    case take_kind::nothing: return std::nullopt;
    case take_kind::own:
      at.has_result = true;
      return collective_own{piece, has_slices(spec_.kind) ? part_lane_[pieces_[piece].part] : 0};
    case take_kind::copy: {
      const auto slot = slot_of(s.from[0], piece, lanes_of(s.from[0]) - 1);
      slots_[slot] = 0;
      at.has_result = true;
      return collective_copy{piece, slot};
    }
    case take_kind::reduce: break;
  }
  const auto& own = spec_.parts[spec_.rank];
  if (s.takes_parts) {
    for (std::uint32_t k = 0; k < part_rank_.size(); ++k)
      if (part_rank_[k] == spec_.rank)
        operands.push_back({operand::kind::part, part_lane_[k]});
      else
        operands.push_back({operand::kind::slot, slot_of(part_rank_[k], piece, part_lane_[k])});
  } else {
    if (at.has_result)
      operands.push_back({operand::kind::result, 0});
    else
      for (std::uint32_t i = 0; i < own.size(); ++i) operands.push_back({operand::kind::part, i});
    for (const auto r : s.from) operands.push_back({operand::kind::slot, slot_of(r, piece, 0)});
  }
  for_each_slot(piece, s, [&](std::uint32_t slot) { slots_[slot] = 0; });
  at.has_result = true;
  return collective_reduce{piece, s.is_final, std::move(operands)};
}

void collective_state::queue_sends(std::uint32_t piece, const collective_stage& s) {
  const auto lanes = lanes_of(spec_.rank);
  const auto parts = static_cast<std::uint32_t>(spec_.parts[spec_.rank].size());
  for (const auto peer : s.to) {
    auto& p = peers_[peer];
    const auto before = p.queue.size();
    if (s.sends_parts)
      for (std::uint32_t i = 0; i < parts; ++i)
        p.queue.push_back({piece, piece * lanes + i, static_cast<std::int32_t>(i)});
    else
      p.queue.push_back({piece, piece * lanes + (s.is_final ? lanes - 1 : 0), -1});
    queued_ += static_cast<std::uint32_t>(p.queue.size() - before);
    if (before == 0 && !p.queue.empty() && p.credits > 0) sendable_.push_back(peer);
  }
}

collective_wait collective_state::waiting() const {
  if (!has_begun_) return {collective_wait::kind::parts, 0};
  for (std::uint32_t p = 0; p < pieces_.size(); ++p) {
    const auto& list = list_of(p);
    if (states_[p].stage >= list.size()) continue;
    const auto& s = list[states_[p].stage];
    for (const auto r : s.from) {
      bool lacks = false;
      auto only = s;
      only.from = {r};
      for_each_slot(p, only, [&](std::uint32_t slot) { lacks = lacks || slots_[slot] == 0; });
      if (lacks) return {collective_wait::kind::chunk, r};
    }
  }
  for (std::uint32_t r = 0; r < peers_.size(); ++r)
    if (!peers_[r].queue.empty()) return {collective_wait::kind::credit, r};
  return {};
}

}  // namespace troupe
