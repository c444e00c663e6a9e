// What membership does because time passes: leases, dials, heartbeats, gossip.
#include "troupe/runtime/cluster/membership.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace troupe {

void membership::tick(std::int64_t now_ns) {
  if (has_ended_) return;
  if (const auto gap = now_ns - ticked_ns_; gap > options_.pause_ns) {
    ++pauses_;
    const auto lost = gap - options_.tick_ns;
    for (auto& [id, p] : peers_) p.heard_ns = std::min(now_ns, p.heard_ns + lost);
  }
  ticked_ns_ = now_ns;
  check_leases(now_ns);
  dial(now_ns);
  dial_seeds(now_ns);
  beat(now_ns);
  gossip(now_ns);
}

// MB-3. Who asks for a longer one gets it, also before there is a link.
std::int64_t membership::lease_of(const peer_entry& p) const noexcept {
  return std::max(p.info.lease_ns, p.was_linked ? options_.lease_ns : options_.first_link_ns);
}

void membership::check_leases(std::int64_t now_ns) {
  std::vector<node_id> ids;  // ending a member may forget others
  for (const auto& [id, p] : peers_) ids.push_back(id);
  for (const auto id : ids) {
    const auto at = peers_.find(id);
    if (at == peers_.end()) continue;
    auto& p = at->second;
    const auto silent = now_ns - p.heard_ns;
    if (p.close_at_ns != 0) {
      if (now_ns < p.close_at_ns) continue;
      p.close_at_ns = 0;
      p.is_linked = false;
      emit(membership_action_kind::close, id);
      if (!p.is_member) peers_.erase(at);
    } else if (!is_living(p.info)) {
      continue;
    } else if (!p.is_member) {
      if (silent < options_.first_link_ns) continue;
      emit(membership_action_kind::close, id);
      peers_.erase(at);
    } else if (silent >= lease_of(p)) {
      end_member(p, member_state::dead,
                 p.was_linked ? fmt::format("no sign of life for {:.1f} s",
                                            static_cast<double>(silent) * 1e-9)
                              : why_unreached(p),
                 true, now_ns);
    } else if (!p.was_linked && p.info.state == member_state::alive &&
               now_ns - p.joined_ns >= options_.unreached_ns) {  // MB-10
      p.info.state = member_state::unreachable;
      p.info.reason = why_unreached(p);
      emit_event(membership_action_kind::unreachable, p);
    } else if (silent >= options_.suspect_ns && p.was_linked &&
               p.info.state == member_state::alive) {
      p.info.state = member_state::unreachable;
      p.info.reason =
          fmt::format("no sign of life for {:.1f} s", static_cast<double>(silent) * 1e-9);
      emit_event(membership_action_kind::unreachable, p);
    }
  }
}

// Members that we have no link to; a link redials by itself.
void membership::dial(std::int64_t now_ns) {
  if (has_ended_) return;
  for (auto& [id, p] : peers_) {
    if (!p.is_member || p.is_linked || p.redials || !is_living(p.info) || way_to(p).empty() ||
        is_own(way_to(p)) || now_ns < p.dial_at_ns)
      continue;
    p.dial_at_ns = now_ns + options_.redial_ns;
    emit(membership_action_kind::connect, id, way_to(p));
  }
}

void membership::dial_seeds(std::int64_t now_ns) {
  for (auto& s : seeds_) {
    if (now_ns < s.dial_at_ns || s.id == self_.id) continue;
    const auto at = peers_.find(s.id);
    const auto is_here = [&](const auto& e) {
      return (e.second.is_member || e.second.is_linked) && is_living(e.second.info) &&
             e.second.info.address == s.address;
    };
    const bool is_known = (at != peers_.end() && is_living(at->second.info)) ||
                          std::any_of(peers_.begin(), peers_.end(), is_here);
    if (is_known) {
      s.wait_ns = options_.redial_ns;
      s.dial_at_ns = now_ns + s.wait_ns;
      continue;
    }
    s.dial_at_ns = now_ns + s.wait_ns;
    s.wait_ns = std::min(2 * s.wait_ns, options_.redial_max_ns);
    // Whoever answers is welcome: an id that we hold dead is what we expect least.
    emit(membership_action_kind::connect, {}, s.address);
  }
}

void membership::beat(std::int64_t now_ns) {
  // Half a tick early is better than half a tick late.
  if (now_ns - beat_ns_ + options_.tick_ns / 2 < options_.heartbeat_ns) return;
  beat_ns_ = now_ns;
  for (const auto& [id, p] : peers_)
    if (p.is_linked && is_living(p.info)) emit(membership_action_kind::send_heartbeat, id);
}

void membership::gossip(std::int64_t now_ns) {
  if (now_ns - gossip_ns_ >= options_.gossip_ns) {
    gossip_ns_ = now_ns;
    // Also who is no member yet: its view or ours may have been lost with a connection.
    const auto can_take = [](const auto& e) {
      return e.second.is_linked && is_living(e.second.info);
    };
    auto next = std::find_if(peers_.upper_bound(gossiped_), peers_.end(), can_take);
    if (next == peers_.end()) next = std::find_if(peers_.begin(), peers_.end(), can_take);
    if (next != peers_.end()) {
      gossiped_ = next->first;
      next->second.is_owed_view = true;
    }
  }
  for (auto& [id, p] : peers_) {
    if (!p.is_owed_view || !p.is_linked || !is_living(p.info)) continue;
    p.is_owed_view = false;
    emit(membership_action_kind::send_view, id);
  }
}

void membership::owe_view_to_all(node_id except) {
  for (auto& [id, p] : peers_)
    if (id != except && p.is_linked) p.is_owed_view = true;
}

}  // namespace troupe
