#include "troupe/runtime/insight/wait_walk.hpp"

#include "troupe/runtime/insight/listed_work.hpp"

#include <algorithm>
#include <tuple>

namespace troupe {

namespace {

bool is_waiting(const actor_snapshot& a) {
  return a.state == actor_state::waiting_for_input || a.state == actor_state::waiting_for_credit ||
         a.state == actor_state::waiting_for_thread || a.state == actor_state::waiting_for_resource;
}

// At all of the ports that it names.
bool waits_by_design(const actor_snapshot& a) {
  const auto waits = [](const auto& p) { return p.is_waiting; };
  return std::any_of(a.ports.begin(), a.ports.end(), waits) &&
         std::none_of(a.ports.begin(), a.ports.end(),
                      [&](const auto& p) { return waits(p) && !p.is_sparse; });
}

std::string_view loss_of(node_state s) {
  switch (s) {
    case node_state::alive: return "does not answer";
    case node_state::unreachable: return "is unreachable";
    case node_state::dead: return "is dead";
    case node_state::left: return "has left";
  }
  return "is not known";
}

}  // namespace

node_index::node_index(const cluster_snapshot& c) {
  for (const auto& n : c.nodes) {
    auto [at, is_new] = nodes_.try_emplace(n.name, &n);
    // A name is unique among the living; of the dead, the latest life counts.
    const auto rank = [](const node_snapshot& x) {
      return std::tuple(x.state == node_state::alive, x.incarnation, x.id);
    };
    if (!is_new && rank(*at->second) < rank(n)) at->second = &n;
  }
  for (const auto& s : c.silent) silent_.try_emplace(s.name, &s);
}

const node_snapshot* node_index::find(std::string_view name) const {
  const auto at = nodes_.find(name);
  return at != nodes_.end() ? at->second : nullptr;
}

std::optional<lost_node> node_index::lost(std::string_view name) const {
  const auto* n = find(name);
  const auto silent = silent_.find(name);
  const bool is_silent = silent != silent_.end();
  if (n == nullptr)
    return lost_node{name, 0, is_silent ? "does not answer" : "is not known",
                     is_silent ? silent->second->reason : "", 0};
  if (n->state == node_state::alive && !is_silent) return std::nullopt;
  return lost_node{name, n->pid, loss_of(n->state),
                   is_silent && n->reason.empty() ? silent->second->reason : n->reason,
                   n->unreachable_seconds};
}

wait_walk::wait_walk(const cluster_snapshot& c, const job_snapshot& job, const node_index& nodes,
                     const cluster_snapshot* before)
    : nodes_(nodes), is_complete_(c.actors_left_out == 0) {
  index_actors(c, job);
  if (before != nullptr) index_before(*before, job);
  start();
  std::sort(roots_.begin(), roots_.end(), [](const root& a, const root& b) {
    return std::tuple(severity(a), -a.since_seconds, a.actor, a.node, a.kind) <
           std::tuple(severity(b), -b.since_seconds, b.actor, b.node, b.kind);
  });
}

void wait_walk::index_actors(const cluster_snapshot& c, const job_snapshot& job) {
  for (const auto& a : c.actors)
    if (belongs(a, job)) actors_.push_back(&a);
  std::sort(actors_.begin(), actors_.end(), [](const auto* a, const auto* b) {
    return std::tie(a->name, a->node, a->id) < std::tie(b->name, b->node, b->id);
  });
  for (std::size_t i = 0; i < actors_.size(); ++i) by_name_.emplace(actors_[i]->name, i);
  marks_.assign(actors_.size(), mark::unseen);
  reached_by_.assign(actors_.size(), none);
}

// Of an earlier placing there is nothing to compare with: then nothing stands.
void wait_walk::index_before(const cluster_snapshot& before, const job_snapshot& job) {
  has_before_ = true;
  for (const auto& j : before.jobs)
    if (j.id == job.id && j.epoch != job.epoch) return;
  for (const auto& a : before.actors)
    if (belongs(a, job)) {
      before_.emplace(a.id, &a);
      was_there_.emplace(a.name, a.node);
    }
}

// Nothing of it has changed since the look before.
bool wait_walk::stands(std::size_t i) const {
  if (!has_before_) return true;
  const auto& now = *actors_[i];
  const auto at = before_.find(now.id);
  if (at == before_.end()) return false;
  const auto& then = *at->second;
  const auto what = [](const actor_snapshot& a) {
    return std::tie(a.state, a.messages_in, a.messages_out, a.steps, a.iteration);
  };
  const auto waits_at = [](const actor_snapshot& a) {
    const auto p = std::ranges::find_if(a.ports, [](const auto& x) { return x.is_waiting; });
    return p == a.ports.end() ? std::string_view() : std::string_view(p->name);
  };
  // Ages are rounded to a tick of the node's clock.
  return what(now) == what(then) && waits_at(now) == waits_at(then) &&
         now.since_seconds + 0.02 >= then.since_seconds;
}

// Whether the credits of a rank of a collective are on their way back cannot be seen.
bool wait_walk::is_provable(std::size_t link) const {
  const auto& waiter = *actors_[links_[link].from];
  const auto& p = *links_[link].port;
  return p.is_input() || p.peer_node == waiter.node || waiter.kind == "send";
}

// From process to process: what one end has sent, and the other has not seen yet.
bool wait_walk::is_on_the_way(const actor_snapshot& waiter, const port_snapshot& port,
                              const actor_snapshot& peer) const {
  // Ends of stages do not count alike: items may be dealt again, and a stage that was lost begins
  // to count anew.
  if (waiter.node == peer.node || waiter.kind == "stage") return false;
  const port_snapshot* other = nullptr;
  for (const auto& p : peer.ports) {
    if (p.is_input() == port.is_input() || p.peer != waiter.name) continue;
    if (other != nullptr) return false;  // several edges: which one is not known
    other = &p;
  }
  if (other == nullptr) return false;
  if (port.is_input()) return other->items > port.items;
  // Ranks of collectives count credits in another way.
  const auto had = port.items + port.credits;
  return waiter.kind == "send" && had >= port.credits_max &&
         other->returned > had - port.credits_max;
}

// Fetches that wait for input come first, so that a chain begins at what the program waits for;
// then those that the program does not empty. Where no fetch says anything, every waiting actor is
// a start; then whatever runs. Waits that last by design are a start only where all else is done.
void wait_walk::start() {
  const auto visit_where = [&](auto&& wanted) {
    for (std::size_t i = 0; i < actors_.size(); ++i)
      if (marks_[i] == mark::unseen && wanted(*actors_[i])) visit(i);
  };
  const auto tells = [&](const auto& a) { return is_waiting(a) && !waits_by_design(a); };
  visit_where([&](const auto& a) {
    return a.kind == "fetch" && a.state == actor_state::waiting_for_input && tells(a);
  });
  visit_where([&](const auto& a) { return a.kind == "fetch" && tells(a); });
  if (roots_.empty()) visit_where(tells);
  if (roots_.empty()) visit_where([](const auto& a) { return a.state == actor_state::running; });
  if (roots_.empty()) visit_where([](const auto& a) { return a.kind == "fetch" && is_waiting(a); });
  if (roots_.empty()) visit_where([](const auto& a) { return is_waiting(a); });
  if (roots_.empty()) visit_where([](const auto&) { return true; });
}

void wait_walk::visit(std::size_t start) {
  struct frame {
    std::size_t actor;
    std::vector<const port_snapshot*> waits;
    std::size_t next = 0;
  };
  std::vector<frame> stack;
  const auto enter = [&](std::size_t i, std::size_t via) {
    marks_[i] = mark::open;
    reached_by_[i] = via;
    if (is_end(i, via))
      marks_[i] = mark::finished;
    else
      stack.push_back({i, waits_of(*actors_[i])});
  };
  enter(start, none);
  while (!stack.empty()) {
    auto& top = stack.back();
    if (top.next == top.waits.size()) {
      marks_[top.actor] = mark::finished;
      stack.pop_back();
      continue;
    }
    links_.push_back({top.actor, top.waits[top.next++]});
    const auto via = links_.size() - 1;
    if (const auto next = follow(via); next != none) enter(next, via);
  }
}

// Oldest first.
std::vector<const port_snapshot*> wait_walk::waits_of(const actor_snapshot& a) const {
  const bool wants_input = a.state == actor_state::waiting_for_input;
  std::vector<const port_snapshot*> waits;
  for (const auto& p : a.ports)
    if (p.is_waiting && p.is_input() == wants_input) waits.push_back(&p);
  std::sort(waits.begin(), waits.end(), [](const auto* x, const auto* y) {
    return std::tie(y->since_seconds, x->name, x->peer, x->peer_node) <
           std::tie(x->since_seconds, y->name, y->peer, y->peer_node);
  });
  return waits;
}

// Whether the walk ends at an actor, which then is a root.
bool wait_walk::is_end(std::size_t i, std::size_t via) {
  const auto& a = *actors_[i];
  const double waited = via == none ? a.since_seconds : links_[via].port->since_seconds;
  root r{
      .actor = a.name, .node = a.node, .since_seconds = a.since_seconds, .last_link = via, .at = i};
  if (const auto loss = nodes_.lost(a.node)) {
    r.kind = root_kind::node_lost;
    r.since_seconds = loss->since_seconds > 0 ? loss->since_seconds : waited;
  } else if (a.state == actor_state::running) {
    r.kind = root_kind::actor_running;
  } else if (a.state == actor_state::idle) {
    r.kind = root_kind::actor_idle;
  } else if (a.state == actor_state::ended) {
    r.kind = root_kind::actor_ended;
    r.is_settled = via != none && std::min(a.since_seconds, waited) >= skew_seconds && stands(i);
  } else if (waits_of(a).empty()) {
    r.kind = root_kind::unexplained;
  } else {
    return false;
  }
  add(r);
  return true;
}

// The actor at the other end of a link, if it is still to be visited; a root is added where the
// link leads nowhere.
std::size_t wait_walk::follow(std::size_t link_index) {
  const auto& [from, port] = links_[link_index];
  const auto& waiter = *actors_[from];
  root r{.actor = waiter.name,
         .node = waiter.node,
         .since_seconds = port->since_seconds,
         .last_link = link_index,
         .at = from};
  if (port->peer == "program") {
    r.kind = port->is_input() ? root_kind::program_feed : root_kind::program_fetch;
    return add(r), none;
  }
  if (port->peer.empty()) return add(r), none;
  if (const auto next = find(port->peer, port->peer_node); next != none) {
    if (is_on_the_way(waiter, *port, *actors_[next]) && !nodes_.lost(actors_[next]->node)) {
      r.kind = root_kind::on_the_way;
      r.is_settled = stands(from);
      return add(r), none;
    }
    if (marks_[next] == mark::unseen) return next;
    if (marks_[next] == mark::finished) return none;
    r.kind = root_kind::cycle;
    r.is_settled = stands(from) && is_provable(link_index);
    for (auto l = link_index; links_[l].from != next; l = reached_by_[links_[l].from]) {
      const auto before = reached_by_[links_[l].from];
      r.since_seconds = std::min(r.since_seconds, links_[before].port->since_seconds);
      r.is_settled = r.is_settled && stands(links_[before].from) && is_provable(before);
    }
    r.is_settled = r.is_settled && r.since_seconds >= skew_seconds;
    return add(r), none;
  }
  r.actor = port->peer, r.node = port->peer_node, r.at = none;
  if (const auto loss = nodes_.lost(port->peer_node)) {
    r.kind = root_kind::node_lost;
    if (loss->since_seconds > 0) r.since_seconds = loss->since_seconds;
  } else if (port->name == thread_port) {  // of another job
    r.kind = root_kind::actor_running;
  } else {
    r.kind = is_complete_ ? root_kind::actor_missing : root_kind::unexplained;
    r.is_settled = r.since_seconds >= skew_seconds && stands(from) &&
                   (!has_before_ || !was_there(port->peer, port->peer_node));
  }
  return add(r), none;
}

bool wait_walk::was_there(std::string_view name, std::string_view node) const {
  const auto [first, last] = was_there_.equal_range(name);
  return std::any_of(first, last, [&](const auto& at) { return at.second == node; });
}

std::size_t wait_walk::find(std::string_view name, std::string_view node) const {
  std::size_t best = none;
  const auto [first, last] = by_name_.equal_range(name);
  for (auto at = first; at != last; ++at) {
    const bool is_there = actors_[at->second]->node == node;
    const bool best_is_there = best != none && actors_[best]->node == node;
    if (best == none || is_there > best_is_there ||
        (is_there == best_is_there && at->second < best))
      best = at->second;
  }
  return best;
}

std::vector<wait_link> wait_walk::chain(const root& r) const {
  std::vector<wait_link> links;
  for (auto l = r.last_link; l != none; l = reached_by_[links_[l].from]) {
    const auto& a = *actors_[links_[l].from];
    const auto& p = *links_[l].port;
    links.push_back({a.name, a.id, a.node, a.kind, p.name, !p.is_input(), p.peer, p.peer_node,
                     p.since_seconds});
  }
  std::reverse(links.begin(), links.end());
  return links;
}

std::size_t wait_walk::circle_length(const root& r) const {
  if (r.kind != root_kind::cycle) return 0;
  const auto& closing = *links_[r.last_link].port;
  const auto first = find(closing.peer, closing.peer_node);
  std::size_t length = 1;
  for (auto l = r.last_link; links_[l].from != first; l = reached_by_[links_[l].from]) ++length;
  return length;
}

int severity(const wait_walk::root& r) noexcept {
  if (!r.is_settled) return 4;
  switch (r.kind) {
    case root_kind::node_lost: return 0;
    case root_kind::actor_ended:
    case root_kind::actor_missing: return 1;
    case root_kind::cycle: return 2;
    default: return 3;
  }
}

}  // namespace troupe
