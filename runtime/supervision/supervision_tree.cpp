#include "troupe/runtime/supervision/supervision_tree.hpp"

#include "troupe/schema/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <ranges>
#include <utility>

namespace troupe {

std::string_view to_string(restart_strategy s) noexcept {
  static constexpr std::string_view names[] = {"one for one", "one for all", "rest for one"};
  return names[static_cast<std::size_t>(s)];
}

std::string_view to_string(restart_kind k) noexcept {
  static constexpr std::string_view names[] = {"permanent", "transient", "temporary"};
  return names[static_cast<std::size_t>(k)];
}

supervision_tree::supervision_tree(std::string name, restart_strategy strategy,
                                   const restart_limits& limits)
    : log_(name) {
  entry top;
  top.name = std::move(name);
  top.is_supervisor = true;
  top.strategy = strategy;
  top.limits = limits;
  entries_.emplace(top_supervisor, std::move(top));
}

// --- who belongs to it ---------------------------------------------------------------------------

supervised_id supervision_tree::add_supervisor(supervised_id under, std::string name,
                                               restart_strategy strategy,
                                               const restart_limits& limits) {
  entry e;
  e.name = std::move(name);
  e.is_supervisor = true;
  e.strategy = strategy;
  e.limits = limits;
  return add(under, std::move(e));
}

supervised_id supervision_tree::add_child(supervised_id under, std::string name,
                                          restart_kind restart) {
  entry e;
  e.name = std::move(name);
  e.restart = restart;
  return add(under, std::move(e));
}

supervised_id supervision_tree::add(supervised_id under, entry e) {
  auto& s = at(under);
  expects(s.is_supervisor, "who supervises is a supervisor");
  const supervised_id id{++last_id_};
  e.supervisor = under;
  e.is_wanted = s.state == condition::starting || s.state == condition::running;
  s.children.push_back(id);
  entries_.emplace(id, std::move(e));
  return id;
}

void supervision_tree::remove(supervised_id child, std::int64_t now_ns) {
  const auto found = entries_.find(child);
  if (found == entries_.end()) return;
  expects(!found->second.is_supervisor, "only children are removed");
  std::erase(at(*found->second.supervisor).children, child);
  entries_.erase(found);
  work(now_ns);
}

// --- reports -------------------------------------------------------------------------------------

void supervision_tree::start(std::int64_t now_ns) {
  auto& top = at(top_supervisor);
  expects(top.state == condition::ended && !top.must_end, "a tree is started once");
  begin(top);
  work(now_ns);
}

void supervision_tree::on_started(supervised_id child, std::int64_t now_ns) {
  const auto found = entries_.find(child);
  if (found == entries_.end() || found->second.is_supervisor) return;
  if (found->second.state == condition::starting) found->second.state = condition::running;
  work(now_ns);
}

void supervision_tree::on_ended(supervised_id child, std::optional<std::string> failed,
                                std::int64_t now_ns, bool is_derived) {
  const auto found = entries_.find(child);
  if (found == entries_.end() || found->second.is_supervisor ||
      found->second.state == condition::ended)
    return;
  const bool is_missed =
      found->second.restart == restart_kind::permanent && !found->second.must_end;
  if (!failed && is_missed) failed = "it ended";
  std::optional<failure> why;
  if (failed) why = failure{{}, 0, path(child), {}, std::move(*failed), is_derived, now_ns};
  ended(child, why, is_derived, now_ns);
  work(now_ns);
}

void supervision_tree::tick(std::int64_t now_ns) { work(now_ns); }

void supervision_tree::stop(std::int64_t now_ns) {
  auto& top = at(top_supervisor);
  top.must_end = true;
  if (top.state == condition::starting || top.state == condition::running)
    begin_stop(top_supervisor, top);
  work(now_ns);
}

// --- what follows from an end --------------------------------------------------------------------

void supervision_tree::ended(supervised_id who, const std::optional<failure>& failed,
                             bool is_derived, std::int64_t now_ns) {
  auto& e = at(who);
  auto& s = at(*e.supervisor);
  const bool was_to_end = std::exchange(e.must_end, false);
  e.state = condition::ended;
  // The failure of a supervisor is that of its child, noted before.
  if (failed && !e.is_supervisor) {
    auto noted = *failed;
    noted.is_derived = is_derived || was_to_end;
    log_.add(std::move(noted));
  }
  if (was_to_end) return;
  if (e.restart == restart_kind::temporary || (e.restart == restart_kind::transient && !failed)) {
    e.is_wanted = false;
    return;
  }
  if (is_derived) return restart(s, who, now_ns + s.limits.delay_ns);  // SU-5
  if (const auto delay = count_failure(s, now_ns)) return restart(s, who, now_ns + *delay);
  auto cause = *failed;  // who ends without one is done, or was to end
  if (s.limits.failures_max > 0)
    cause.text += fmt::format("; {}: {}", path(*e.supervisor), s.limiter.why());
  s.verdict = std::move(cause);
  end_children(s);
}

// A window without a failure is the step forward that forgives those before it, SU-5.
std::optional<std::int64_t> supervision_tree::count_failure(entry& s, std::int64_t now_ns) {
  if (s.failed_ns && now_ns - *s.failed_ns > s.limits.window_ns) ++s.quiet_windows;
  s.failed_ns = now_ns;
  return s.limiter.on_failure(now_ns, s.quiet_windows);
}

void supervision_tree::restart(entry& s, supervised_id from, std::int64_t not_before_ns) {
  bool is_behind = false;
  for (const auto id : s.children) {
    is_behind = is_behind || id == from;
    const bool is_meant = id == from || s.strategy == restart_strategy::one_for_all ||
                          (s.strategy == restart_strategy::rest_for_one && is_behind);
    auto& c = at(id);
    if (!is_meant || !c.is_wanted) continue;
    c.not_before_ns = std::max(c.not_before_ns, not_before_ns);
    c.must_end = c.state != condition::ended;
    if (c.restart == restart_kind::temporary) c.is_wanted = false;
  }
}

// --- towards rest --------------------------------------------------------------------------------

void supervision_tree::work(std::int64_t now_ns) {
  for (bool has_changed = true; has_changed;) {
    has_changed = false;
    for (const auto& [id, e] : entries_)
      has_changed = (e.is_supervisor && advance(id, now_ns)) || has_changed;
  }
}

// True: something has changed, which others may have waited for.
bool supervision_tree::advance(supervised_id who, std::int64_t now_ns) {
  auto& s = at(who);
  if (s.state == condition::ended) return false;
  bool has_changed = false;
  if (stop_last(s, has_changed)) return has_changed;
  if (s.state == condition::stopping) {
    end_supervisor(who, now_ns);
    return true;
  }
  if (start_next(s, now_ns)) return true;
  const bool all_run = std::ranges::all_of(s.children, [this](auto id) {
    return !at(id).is_wanted || at(id).state == condition::running;
  });
  if (!all_run || s.state == condition::running) return false;
  s.state = condition::running;
  return true;
}

// The last child that must end is told so. True: somebody has not ended yet.
bool supervision_tree::stop_last(entry& s, bool& has_changed) {
  for (const auto id : std::views::reverse(s.children)) {
    auto& c = at(id);
    if (!c.must_end) continue;
    has_changed = c.state != condition::stopping;
    if (has_changed) begin_stop(id, c);
    return true;
  }
  return false;
}

bool supervision_tree::start_next(entry& s, std::int64_t now_ns) {
  for (const auto id : waiting_to_start(s)) {
    auto& c = at(id);
    if (c.not_before_ns > now_ns) continue;
    c.state = condition::starting;
    if (c.is_supervisor)
      begin(c);
    else
      actions_.push_back({supervision_action_kind::start, id, {}});
    return true;
  }
  return false;
}

// Those that wait for nothing but the end of their back-off, SU-2.
std::vector<supervised_id> supervision_tree::waiting_to_start(const entry& s) const {
  std::vector<supervised_id> out;
  if (s.state == condition::ended || s.state == condition::stopping) return out;
  if (std::ranges::any_of(s.children, [this](auto id) {
        return at(id).must_end || at(id).state == condition::starting;
      }))
    return out;
  for (const auto id : s.children) {
    const auto& c = at(id);
    if (!c.is_wanted || c.state != condition::ended) continue;
    out.push_back(id);
    if (s.strategy != restart_strategy::one_for_one) break;
  }
  return out;
}

void supervision_tree::begin(entry& supervisor) {
  supervisor.state = condition::starting;
  supervisor.limiter = restart_limiter(supervisor.limits);
  supervisor.quiet_windows = 0;
  supervisor.failed_ns.reset();
  supervisor.verdict.reset();
  for (const auto id : supervisor.children) {
    at(id).is_wanted = true;
    at(id).not_before_ns = 0;
  }
}

void supervision_tree::begin_stop(supervised_id who, entry& e) {
  e.state = condition::stopping;
  if (e.is_supervisor)
    end_children(e);
  else
    actions_.push_back({supervision_action_kind::stop, who, {}});
}

void supervision_tree::end_children(entry& supervisor) {
  supervisor.state = condition::stopping;
  for (const auto id : supervisor.children) {
    at(id).is_wanted = false;
    at(id).must_end = at(id).state != condition::ended;
  }
}

// SU-3. Its children have ended.
void supervision_tree::end_supervisor(supervised_id who, std::int64_t now_ns) {
  auto& s = at(who);
  if (!s.supervisor) {
    s.state = condition::ended;
    if (s.verdict) actions_.push_back({supervision_action_kind::give_up, who, *s.verdict});
    return;
  }
  if (s.verdict && !s.must_end)
    actions_.push_back({supervision_action_kind::escalate, who, *s.verdict});
  ended(who, s.verdict, false, now_ns);
}

// --- looking -------------------------------------------------------------------------------------

std::vector<supervision_action> supervision_tree::take_actions() {
  return std::exchange(actions_, {});
}

std::optional<std::int64_t> supervision_tree::deadline_ns() const {
  std::optional<std::int64_t> first;
  for (const auto& [id, e] : entries_) {
    if (!e.is_supervisor) continue;
    for (const auto waiting : waiting_to_start(e))
      first = std::min(first.value_or(at(waiting).not_before_ns), at(waiting).not_before_ns);
  }
  return first;
}

bool supervision_tree::is_running(supervised_id who) const {
  const auto found = entries_.find(who);
  return found != entries_.end() && found->second.state == condition::running;
}

bool supervision_tree::is_starting(supervised_id who) const {
  const auto found = entries_.find(who);
  return found != entries_.end() && found->second.state == condition::starting &&
         !found->second.must_end;
}

bool supervision_tree::is_over() const {
  const auto& top = at(top_supervisor);
  return top.state == condition::ended && (top.must_end || top.verdict);
}

const failure* supervision_tree::verdict() const {
  const auto& top = at(top_supervisor);
  return top.verdict ? &*top.verdict : nullptr;
}

// "disk/writer": without the top.
std::string supervision_tree::path(supervised_id who) const {
  const auto& e = at(who);
  if (!e.supervisor || *e.supervisor == top_supervisor) return e.name;
  return path(*e.supervisor) + "/" + e.name;
}

}  // namespace troupe
