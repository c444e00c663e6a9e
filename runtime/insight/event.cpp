#include "troupe/runtime/insight/happenings.hpp"
#include "troupe/runtime/insight/snapshot.hpp"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

namespace troupe {

std::string_view to_string(event_kind k) noexcept {
  switch (k) {
    case event_kind::note: return "note";
    case event_kind::member_joined: return "member joined";
    case event_kind::member_left: return "member left";
    case event_kind::member_lost: return "member lost";
    case event_kind::member_unreachable: return "member unreachable";
    case event_kind::member_back: return "member back";
    case event_kind::link_lost: return "link lost";
    case event_kind::node_rejoined: return "node rejoined";
    case event_kind::node_leaving: return "node leaving";
    case event_kind::join_refused: return "join refused";
    case event_kind::cluster_conflict: return "cluster conflict";
    case event_kind::job_began: return "job began";
    case event_kind::job_placed: return "job placed";
    case event_kind::job_recovering: return "job recovering";
    case event_kind::job_recovered: return "job recovered";
    case event_kind::job_moved: return "job moved";
    case event_kind::job_done: return "job done";
    case event_kind::job_failed: return "job failed";
    case event_kind::job_stopped: return "job stopped";
    case event_kind::job_suspended: return "job suspended";
    case event_kind::job_note: return "job note";
    case event_kind::checkpoint_written: return "checkpoint written";
    case event_kind::actor_failed: return "actor failed";
    case event_kind::message_ignored: return "message ignored";
  }
  return {};
}

std::string_view to_string(event_level l) noexcept {
  switch (l) {
    case event_level::trace: return "trace";
    case event_level::debug: return "debug";
    case event_level::info: return "info";
    case event_level::warning: return "warning";
    case event_level::error: return "error";
  }
  return {};
}

event_level level_of(event_kind k) noexcept {
  switch (k) {
    case event_kind::job_failed:
    case event_kind::actor_failed: return event_level::error;
    case event_kind::member_lost:
    case event_kind::member_unreachable:
    case event_kind::link_lost:
    case event_kind::node_rejoined:
    case event_kind::join_refused:
    case event_kind::cluster_conflict:
    case event_kind::job_recovering:
    case event_kind::message_ignored: return event_level::warning;
    default: return event_level::info;
  }
}

event make_event(event_kind kind, std::string text, std::string about) {
  event e;
  e.kind = kind;
  e.level = level_of(kind);
  e.text = std::move(text);
  e.about = std::move(about);
  return e;
}

event make_job_event(event_kind kind, const std::string& job, std::string job_id, std::string text,
                     std::string about) {
  auto e = make_event(kind, std::move(text), std::move(about));
  e.job = job;
  e.job_id = std::move(job_id);
  return e;
}

namespace {

bool may_happen_again(event_kind k) noexcept {
  return k == event_kind::member_unreachable || k == event_kind::member_back;
}

}  // namespace

bool happenings::is_first(const event& e, double seconds) {
  if (e.about.empty()) return true;
  const auto [at, is_new] = seen_.try_emplace({e.kind, e.about});
  auto& h = at->second;
  const bool is_another =
      may_happen_again(e.kind) &&
      (h.nodes.contains(e.node_id) || std::abs(seconds - h.seconds) > same_happening_seconds);
  if (is_new || is_another)
    h = {seconds, {e.node_id}};
  else
    h.nodes.insert(e.node_id);
  return is_new || is_another;
}

void happenings::forget_before(double seconds) {
  std::erase_if(seen_, [&](const auto& s) { return s.second.seconds < seconds; });
}

std::vector<event> each_happening_once(std::vector<event> events) {
  std::stable_sort(events.begin(), events.end(), [](const event& a, const event& b) {
    return std::tuple(-a.since_seconds, std::string_view(a.node), a.number,
                      std::string_view(a.text)) < std::tuple(-b.since_seconds,
                                                             std::string_view(b.node), b.number,
                                                             std::string_view(b.text));
  });
  happenings seen;
  std::vector<event> out;
  for (auto& e : events)
    if (seen.is_first(e, -e.since_seconds)) out.push_back(std::move(e));
  return out;
}

}  // namespace troupe
