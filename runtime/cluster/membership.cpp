#include "troupe/runtime/cluster/membership.hpp"

#include "troupe/runtime/text/address.hpp"
#include "troupe/schema/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

namespace troupe {

namespace {

// Texts of peers are kept for as long as the process lives: a name is no place for a megabyte.
void clip(std::string& text, std::size_t size_max) {
  if (text.size() > size_max) text.resize(size_max);
}

void clip(member_info& m) {
  for (auto* t : {&m.name, &m.job}) clip(*t, 64);
  for (auto* t : {&m.address, &m.host}) clip(*t, 256);
  clip(m.reason, 1024);
}

auto age_key(const member_info& m) { return std::pair(m.start_time_ns, raw(m.id)); }

enum class weight { heavier, lighter, both_have_jobs };

// Both halves come to opposite answers from the same two claims. The speakers' ids decide where
// only these two fell out, and everybody else is on both sides.
weight weigh(const fenced& theirs, node_id speaker, const fenced& ours, node_id self) {
  if (theirs.jobs > 0 && ours.jobs > 0) return weight::both_have_jobs;
  const auto key = [](const fenced& f, node_id by) {
    return std::tuple(f.jobs == 0, -std::int64_t{f.nodes}, f.founder_start_time_ns, raw(f.founder),
                      raw(by));
  };
  return key(theirs, speaker) < key(ours, self) ? weight::heavier : weight::lighter;
}

}  // namespace

membership::membership(member_info self, const membership_options& options, std::int64_t now_ns,
                       const planted_bugs* bugs)
    : self_(std::move(self)),
      options_(options),
      bugs_(bugs),
      ticked_ns_(now_ns),
      beat_ns_(now_ns),
      gossip_ns_(now_ns) {
  expects(raw(self_.id) != 0, "a member has an id");
  self_.state = member_state::alive;
  self_.reason.clear();
  if (self_.name.empty()) self_.name = member_name(self_.id);
}

// --- links ---------------------------------------------------------------------------------------

void membership::add_seed(std::string address, bool is_lasting, std::int64_t now_ns, node_id id) {
  if (has_ended_ || address.empty() || is_own(address) || (raw(id) != 0 && id == self_.id)) return;
  for (auto& s : seeds_) {
    if (s.address != address) continue;
    s.is_lasting = s.is_lasting || is_lasting;
    if (raw(id) != 0) s.id = id;
    return;
  }
  // Those that were only found may be gone; what a person has named stays.
  if (const auto oldest = std::ranges::find(seeds_, false, &seed::is_lasting);
      seeds_.size() >= options_.seeds_max && oldest != seeds_.end())
    seeds_.erase(oldest);
  if (seeds_.size() < options_.seeds_max)
    seeds_.push_back({std::move(address), id, is_lasting, now_ns, options_.redial_ns});
  dial_seeds(now_ns);
}

void membership::linked(node_id peer, member_kind kind, std::int64_t now_ns,
                        std::string_view dialled, std::string_view reached) {
  if (has_ended_) return;
  if (!dialled.empty()) {
    for (auto& s : seeds_)
      if (s.address == dialled) s.id = peer;
  }
  if (peer == self_.id || kind == member_kind::tool) return;
  auto [at, is_new] = peers_.try_emplace(peer);
  auto& p = at->second;
  if (is_new) {
    p.info.id = peer;
    p.info.kind = kind;
    if (graves_.contains(peer)) p.info.state = member_state::dead;
  }
  p.is_linked = p.was_linked = p.redials = true;
  p.dial_error.clear();
  if (!reached.empty()) p.reached = reached;
  if (is_final(peer)) return fence(p, now_ns);
  heard(peer, now_ns);
  p.is_owed_view = false;
  emit(membership_action_kind::send_view, peer);
}

void membership::heard(node_id peer, std::int64_t now_ns) {
  const auto at = peers_.find(peer);
  if (has_ended_ || at == peers_.end() || !is_living(at->second.info)) return;
  auto& p = at->second;
  p.heard_ns = std::max(p.heard_ns, now_ns);
  if (p.info.state == member_state::unreachable) {
    p.info.state = member_state::alive;
    p.info.reason.clear();
    emit_event(membership_action_kind::reachable, p);
  }
}

void membership::link_lost(node_id peer, std::int64_t now_ns) {
  const auto at = peers_.find(peer);
  if (has_ended_ || at == peers_.end() || !at->second.is_linked) return;
  auto& p = at->second;
  p.is_linked = false;
  if (!is_living(p.info)) {  // one that we fenced: nothing is left to wait for
    const bool keeps_record = p.is_member;
    p.close_at_ns = 0;
    emit(membership_action_kind::close, peer);
    if (!keeps_record) peers_.erase(at);
    return;
  }
  // We may be a member there already, with work on the link. It redials, and then brings the view
  // that was on its way.
  if (!p.is_member) return;
  p.dial_at_ns = now_ns + options_.redial_ns;  // the link itself redials first
  if (p.info.host == self_.host && p.info.pid != 0) {
    emit(membership_action_kind::check_process, peer);
    actions_.back().about = p.info;
  }
}

void membership::link_given_up(node_id peer, std::int64_t now_ns) {
  link_lost(peer, now_ns);
  const auto at = peers_.find(peer);
  if (has_ended_ || at == peers_.end()) return;
  if (!at->second.is_member) {
    peers_.erase(at);
    return;
  }
  at->second.redials = false;
  at->second.dial_at_ns = raw(self_.id) < raw(peer) ? now_ns : now_ns + options_.dial_grace_ns;
}

void membership::dial_failed(node_id peer, std::string_view address, dial_failure why,
                             std::int64_t now_ns, std::string_view text) {
  if (has_ended_) return;
  if (why == dial_failure::itself) {
    // What a name means may change, so a lasting one is dialled again, ever more seldom.
    const auto at = parse_address(address);
    const bool is_numeric = at && (is_ipv4(at->host) || is_ipv6(at->host));
    if (is_numeric && own_addresses_.size() < options_.own_addresses_max)
      own_addresses_.emplace(address);
    std::erase_if(seeds_, [&](const seed& s) {
      return s.address == address && (is_numeric || !s.is_lasting);
    });
  }
  if (why == dial_failure::refused)
    std::erase_if(seeds_, [&](const seed& s) { return s.address == address && !s.is_lasting; });
  const auto at = peers_.find(peer);
  if (at == peers_.end() || at->second.is_linked || !at->second.is_member ||
      !is_living(at->second.info))
    return;
  auto& p = at->second;
  // A loopback address of another machine leads to a process of this one.
  const auto where = parse_address(address);
  const bool is_of_this_machine = p.info.host == self_.host;
  const bool leads_elsewhere =
      address != p.reached && !is_of_this_machine && where && is_loopback(*where);
  if (why == dial_failure::other_life && !leads_elsewhere)
    return end_member(p, member_state::dead, fmt::format("another process answers at {}", address),
                      false, now_ns);
  // What is known by hearsay alone may be told wrongly: then the process says whether it is there.
  if (why == dial_failure::refused && is_of_this_machine && !p.was_linked)
    emit(membership_action_kind::check_process, peer);
  else if (why == dial_failure::refused && is_of_this_machine)
    return end_member(p, member_state::dead, fmt::format("connection refused at {}", address),
                      false, now_ns);
  p.dial_at_ns = std::max(p.dial_at_ns, now_ns + options_.redial_ns);
  p.dial_error = why == dial_failure::itself       ? "this node itself answers there"
                 : why == dial_failure::other_life ? "another process answers there"
                                                   : std::string(text);
  clip(p.dial_error, 256);
  // By hearsay only: its first lease is running, and nobody here relies on it yet.
  if (!p.was_linked || p.info.state == member_state::unreachable) return;
  p.info.state = member_state::unreachable;
  p.info.reason = fmt::format("no connection to {}", address);
  emit_event(membership_action_kind::unreachable, p);
}

void membership::process_gone(node_id peer, std::int64_t now_ns) {
  const auto at = peers_.find(peer);
  if (has_ended_ || at == peers_.end() || at->second.is_linked || !at->second.is_member ||
      !is_living(at->second.info))
    return;
  end_member(at->second, member_state::dead, fmt::format("process {} is gone", at->second.info.pid),
             false, now_ns);
}

// --- views ---------------------------------------------------------------------------------------

void membership::on_view(node_id from, std::span<const member_info> members, std::int64_t now_ns) {
  const auto at = peers_.find(from);
  if (has_ended_ || at == peers_.end()) return;  // never linked, or a tool
  if (is_final(from)) {
    if (at->second.is_linked) fence(at->second, now_ns);
    return;
  }
  heard(from, now_ns);
  if (is_foreign(from, members)) {
    fenced theirs{{}, 0, 0, 0, from};
    for (const auto& m : members) theirs.jobs += is_living(m) ? m.jobs : 0;
    if (theirs.jobs > 0 && jobs_on_our_side() > 0) {
      const auto record =
          std::find_if(members.begin(), members.end(), [&](const auto& m) { return m.id == from; });
      say_conflict(theirs, record != members.end()
                               ? fmt::format("{} at {}", record->name, record->address)
                               : member_name(from));
      emit(membership_action_kind::close, from);
      peers_.erase(from);
      return;
    }
  }
  for (const auto& m : members) {
    // Who holds us dead says so itself, by a fence.
    if (m.id != self_.id && m.kind != member_kind::tool && raw(m.id) != 0)
      take_record(m, from, now_ns);
  }
  const auto sender = peers_.find(from);
  if (sender != peers_.end() && sender->second.is_linked && lacks_something(members))
    sender->second.is_owed_view = true;
  dial(now_ns);
}

// One record of a peer's view: a newcomer, news of a member, or nothing.
void membership::take_record(member_info m, node_id from, std::int64_t now_ns) {
  clip(m);
  const auto at = peers_.find(m.id);
  if (at == peers_.end() || !at->second.is_member) {
    // Whom a peer gave up before we knew of it is not our business: it may be the other half of a
    // partition.
    if (m.state != member_state::dead && !is_final(m.id)) add_member(std::move(m), from, now_ns);
    return;
  }
  auto& p = at->second;
  if (!is_living(p.info)) return;
  if (m.state == member_state::left) return end_member(p, m.state, m.reason, false, now_ns);
  if (m.state == member_state::dead) return doubt(p, now_ns);
  if (m.revision <= p.info.revision) return;
  const auto state = p.info.state;
  auto reason = p.info.reason;
  const auto address = p.info.address;
  p.info = united(p.info, m);
  p.info.state = state;  // ours is what we think ourselves
  p.info.reason = std::move(reason);
  owe_view_to_all(from);
  if (p.info.address == address) return;
  p.dial_at_ns = std::min(p.dial_at_ns, now_ns + options_.dial_grace_ns);
  replace_older_life(p.info, now_ns);
}

// A peer holds it dead. Where we have a link, its signs of life decide; where we never had one, it
// has no longer than a lease now.
void membership::doubt(peer_entry& p, std::int64_t now_ns) {
  if (p.is_linked || p.was_linked) return;
  p.dial_at_ns = std::min(p.dial_at_ns, now_ns);
  p.heard_ns = std::min(p.heard_ns, now_ns - (options_.first_link_ns - options_.lease_ns));
}

void membership::add_member(member_info m, node_id from, std::int64_t now_ns) {
  const auto is_member = [](const auto& e) {
    return e.second.is_member && is_living(e.second.info);
  };
  if (is_living(m) && static_cast<std::size_t>(std::count_if(peers_.begin(), peers_.end(),
                                                             is_member)) >= options_.members_max)
    return;
  auto [at, is_new] = peers_.try_emplace(m.id);
  auto& p = at->second;
  if (is_new || !p.is_linked) p.heard_ns = now_ns;
  p.is_member = true;
  p.joined_ns = now_ns;
  p.info = std::move(m);
  if (p.info.state == member_state::left) {
    // Kept so that it is listed; for us it never joined.
    bury(p.info.id);
    return;
  }
  p.info.state = member_state::alive;
  p.info.reason.clear();
  p.dial_at_ns = raw(self_.id) < raw(p.info.id) ? now_ns : now_ns + options_.dial_grace_ns;
  emit_event(membership_action_kind::joined, p);
  owe_view_to_all(from);
  replace_older_life(p.info, now_ns);
}

// Two living members cannot listen at one address: the one that started earlier is gone. Unless it
// is another process and a link to it stands: then they announce what is not theirs alone.
void membership::replace_older_life(const member_info& newer, std::int64_t now_ns) {
  if (newer.address.empty()) return;
  const auto newer_id = newer.id;
  for (auto& [id, p] : peers_) {
    if (id == newer_id || !p.is_member || !is_living(p.info)) continue;
    auto& n = peers_.at(newer_id);
    if (p.info.address != n.info.address || p.info.host != n.info.host) continue;
    auto& older = age_key(p.info) < age_key(n.info) ? p : n;
    if (older.is_linked && p.info.pid != n.info.pid) return;
    end_member(older, member_state::dead,
               fmt::format("another process answers at {}", older.info.address), false, now_ns);
    return;
  }
}

void membership::on_leave(node_id from, std::string_view reason, std::int64_t now_ns) {
  const auto at = peers_.find(from);
  if (has_ended_ || at == peers_.end() || !is_living(at->second.info)) return;
  if (!at->second.is_member) {
    emit(membership_action_kind::close, from);
    peers_.erase(at);
    return;
  }
  std::string why(reason);
  clip(why, 1024);
  end_member(at->second, member_state::left, std::move(why), false, now_ns);
}

// --- ends ----------------------------------------------------------------------------------------

void membership::end_member(peer_entry& p, member_state state, std::string reason, bool may_return,
                            std::int64_t now_ns) {
  const auto id = p.info.id;
  const bool has_link = p.is_linked || p.was_linked;
  p.info.state = state;
  p.info.reason = std::move(reason);
  p.is_linked = p.is_owed_view = false;
  emit_event(
      state == member_state::left ? membership_action_kind::left : membership_action_kind::died, p);
  if (has_link) emit(membership_action_kind::close, id);
  owe_view_to_all(id);
  // The other half of a partition is looked for where it was, until somebody else or nobody answers
  // there.
  const auto address = way_to(p);
  bury(id);
  if (may_return && !address.empty() && seeds_.size() < options_.seeds_max) {
    const auto is_known = std::any_of(seeds_.begin(), seeds_.end(),
                                      [&](const seed& s) { return s.address == address; });
    if (!is_known)
      seeds_.push_back({address, id, false, now_ns + options_.redial_ns, options_.redial_ns});
  }
}

// Remembers the id for good and the record for a while.
void membership::bury(node_id id) {
  dead_order_.push_back(id);
  if (graves_.insert(id).second) grave_order_.push_back(id);
  while (dead_order_.size() > options_.dead_kept) {
    const auto oldest = peers_.find(dead_order_.front());
    if (oldest != peers_.end() && oldest->second.is_linked)
      emit(membership_action_kind::close, oldest->first);
    if (oldest != peers_.end()) peers_.erase(oldest);
    dead_order_.pop_front();
  }
  while (grave_order_.size() > options_.graves_max) {
    graves_.erase(grave_order_.front());
    grave_order_.pop_front();
  }
}

bool membership::is_final(node_id id) const {
  if (graves_.contains(id)) return true;
  const auto at = peers_.find(id);
  return at != peers_.end() && !is_living(at->second.info);
}

void membership::leave(std::string_view reason) {
  if (has_ended_) return;
  self_.state = member_state::left;
  self_.reason = reason;
  for (const auto& [id, p] : peers_)
    if (p.is_linked && is_living(p.info))
      emit(membership_action_kind::send_leave, id, std::string(reason));
  has_ended_ = true;
}

void membership::set_jobs(std::uint32_t jobs) {
  if (self_.jobs == jobs) return;
  self_.jobs = jobs;
  ++self_.revision;
  owe_view_to_all({});
}

void membership::set_address(std::string address, std::int64_t now_ns) {
  if (has_ended_ || self_.address == address) return;
  self_.address = std::move(address);
  ++self_.revision;
  std::erase_if(seeds_, [&](const seed& s) { return s.address == self_.address; });
  owe_view_to_all({});
  gossip(now_ns);
}

// --- two halves ----------------------------------------------------------------------------------

fenced membership::claim_of(std::string reason) const {
  const auto& oldest = founder();
  return {std::move(reason), static_cast<std::uint32_t>(nodes()), jobs_on_our_side(),
          oldest.start_time_ns, oldest.id};
}

void membership::fence(peer_entry& p, std::int64_t now_ns) {
  if (p.close_at_ns != 0) return;  // told already on this connection
  p.close_at_ns = now_ns + options_.fence_linger_ns;
  emit(membership_action_kind::send_fence, p.info.id);
  actions_.back().claim = claim_of(fmt::format("{} holds {} {}{}{}", self_.name,
                                               member_name(p.info.id), to_string(p.info.state),
                                               p.info.reason.empty() ? "" : ": ", p.info.reason));
}

void membership::on_fenced(node_id from, const fenced& claim, std::int64_t now_ns) {
  const auto at = peers_.find(from);
  if (has_ended_ || at == peers_.end()) return;
  if (!is_final(from) || (bugs_ != nullptr && bugs_->gives_way_to_anybody))
    return give_way(claim.reason);
  switch (weigh(claim, from, claim_of({}), self_.id)) {
    case weight::heavier: return give_way(claim.reason);
    case weight::both_have_jobs: return say_conflict(claim, member_name(from));
    case weight::lighter: break;
  }
  if (at->second.is_linked) fence(at->second, now_ns);
}

void membership::give_way(std::string why) {
  clip(why, 1024);
  emit(membership_action_kind::rejoin, {}, std::move(why));
  self_.state = member_state::dead;
  has_ended_ = true;
}

void membership::say_conflict(const fenced& theirs, const std::string& who) {
  constexpr std::size_t spoken_of_max = 1024;
  if (conflicts_.size() >= spoken_of_max) conflicts_.clear();
  if (!conflicts_.insert(theirs.founder).second) return;
  emit(
      membership_action_kind::conflict, {},
      fmt::format(
          "{} belongs to another cluster of the same name, and jobs run on both sides: they do not merge. "
          "Wait for the jobs of one "
          "side to end, or start one side with another --cluster",
          who));
}

// Neither do we know the sender nor does it know us, so our clusters have not met.
bool membership::is_foreign(node_id from, std::span<const member_info> theirs) const {
  const auto at = peers_.find(from);
  if (at != peers_.end() && at->second.is_member) return false;
  return std::none_of(theirs.begin(), theirs.end(),
                      [&](const auto& m) { return m.id == self_.id; });
}

// Whether `theirs` misses a living member, its latest record, or that it has left.
bool membership::lacks_something(std::span<const member_info> theirs) const {
  std::map<node_id, const member_info*> known;
  for (const auto& m : theirs) known.emplace(m.id, &m);
  const auto lacks = [&](const member_info& m) {
    const auto at = known.find(m.id);
    if (at == known.end()) return is_living(m);
    return is_living(*at->second) &&
           (m.state == member_state::left || (is_living(m) && at->second->revision < m.revision));
  };
  return lacks(self_) || std::any_of(peers_.begin(), peers_.end(), [&](const auto& e) {
           return e.second.is_member && lacks(e.second.info);
         });
}

// --- what can be asked ---------------------------------------------------------------------------

std::vector<membership_action> membership::take_actions() { return std::exchange(actions_, {}); }

std::vector<member_info> membership::members() const {
  std::vector<member_info> out;
  for (const auto& [id, p] : peers_)
    if (p.is_member) out.push_back(p.info);
  return out;
}

const member_info* membership::find(node_id id) const {
  if (id == self_.id) return &self_;
  const auto at = peers_.find(id);
  return at != peers_.end() && at->second.is_member ? &at->second.info : nullptr;
}

std::string membership::address_of(node_id id) const {
  const auto at = peers_.find(id);
  return at != peers_.end() ? way_to(at->second) : std::string();
}

std::vector<member_info> membership::view() const {
  std::vector<member_info> out{self_};
  for (const auto& [id, p] : peers_)
    if (p.is_member) out.push_back(united(p.info, p.info));
  return out;
}

std::size_t membership::nodes() const {
  const auto counts = [](const member_info& m) {
    return m.kind == member_kind::node && is_living(m);
  };
  return (counts(self_) ? 1 : 0) +
         static_cast<std::size_t>(std::count_if(peers_.begin(), peers_.end(), [&](const auto& e) {
           return e.second.is_member && counts(e.second.info);
         }));
}

const member_info& membership::founder() const {
  const auto key = [](const member_info& m) {
    return std::pair(m.kind != member_kind::node, age_key(m));
  };
  const auto* oldest = &self_;
  for (const auto& [id, p] : peers_)
    if (p.is_member && is_living(p.info) && key(p.info) < key(*oldest)) oldest = &p.info;
  return *oldest;
}

std::uint32_t membership::jobs_on_our_side() const {
  auto jobs = self_.jobs;
  for (const auto& [id, p] : peers_)
    if (p.is_member && is_living(p.info)) jobs += p.info.jobs;
  return jobs;
}

bool membership::is_own(std::string_view address) const {
  return address == self_.address || own_addresses_.contains(address);
}

std::string membership::why_unreached(const peer_entry& p) const {
  if (p.info.address.empty())
    return "no address of it is known, and it has not connected (--announce HOST:PORT gives one)";
  if (p.info.address == self_.address)
    return fmt::format(
        "it announces {}, as this node does: give each an address of its own, by --listen or "
        "--announce HOST:PORT",
        p.info.address);
  return fmt::format(
      "no connection to {}{}{}, nor has it connected: give it an address that others reach, by "
      "--listen or --announce HOST:PORT",
      p.info.address, p.dial_error.empty() ? "" : ": ", p.dial_error);
}

membership membership::reborn(node_id id, std::uint64_t start_time_ns, std::int64_t now_ns) const {
  auto self = self_;
  self.id = id;
  self.start_time_ns = start_time_ns;
  if (self.name == member_name(self_.id)) self.name.clear();  // made up: so is the next one
  self.jobs = 0;
  self.revision = 0;
  ++self.incarnation;
  membership out(std::move(self), options_, now_ns, bugs_);
  out.own_addresses_ = own_addresses_;
  for (const auto& s : seeds_) out.add_seed(s.address, s.is_lasting, now_ns);
  for (const auto& [peer, p] : peers_)
    if (p.is_member && is_living(p.info)) out.add_seed(way_to(p), false, now_ns);
  return out;
}

void membership::emit(membership_action_kind kind, node_id node, std::string text) {
  actions_.push_back({kind, node, std::move(text), {}, {}});
}

void membership::emit_event(membership_action_kind kind, const peer_entry& p, std::string text) {
  actions_.push_back({kind, p.info.id, std::move(text), p.info, {}});
}

}  // namespace troupe
