#include "troupe/runtime/trace/trace_recorder.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace troupe {

trace_page trace_recorder::answer(const trace_query& q, std::int64_t now_ns) {
  tick(now_ns);
  trace_page page;
  page.id = q.id;
  page.recording = q.recording;
  page.now_ns = now_ns;
  if (q.recording == 0) return page;
  const auto refuse = [&page](std::string why) {
    page.error = std::move(why);
    page.is_last = true;
    return page;
  };
  auto at = recordings_.find(q.recording);
  if (at == recordings_.end()) {
    if (q.duration_ns <= 0) return refuse("this recording is not known here, or not any more");
    if (q.duration_ns > trace_duration_max_ns)
      return refuse(fmt::format("{} s are too long: at most {} s are recorded",
                                q.duration_ns / 1'000'000'000,
                                trace_duration_max_ns / 1'000'000'000));
    if (recordings_.size() >= trace_recordings_max)
      return refuse(fmt::format("{} recordings already run on this node, the first by {}",
                                recordings_.size(),
                                std::ranges::min_element(recordings_, {}, [](const auto& r) {
                                  return r.second.began_ns;
                                })->second.owner));
    at = recordings_.try_emplace(q.recording).first;
    begin(at->second, q, now_ns);
  }
  auto& r = at->second;
  r.asked_ns = now_ns;
  fill(page, r);
  if (q.ends) {
    recordings_.erase(at);
    switch_off_if_idle();
  }
  return page;
}

void trace_recorder::tick(std::int64_t now_ns) {
  for (auto& [id, r] : recordings_) {
    if (!r.is_over && now_ns >= r.until_ns) end(r);
    if (r.is_over && !r.is_settled) settle(r, now_ns);
  }
  std::erase_if(recordings_,
                [now_ns](const auto& r) { return now_ns - r.second.asked_ns > trace_lease_ns; });
  switch_off_if_idle();
}

void trace_recorder::begin(recording& r, const trace_query& q, std::int64_t now_ns) {
  r.owner = q.owner;
  r.began_ns = now_ns;
  r.until_ns = now_ns + q.duration_ns;
  for (const auto& s : sources_)
    if (!(s.is_told_later ? is_on_later_ : is_on_)) s.lane->switch_on(now_ns);
  is_on_ = is_on_later_ = true;
  for (const auto& s : sources_) r.lanes.push_back({s.lane->ring()->written()});
}

// What a thread is in the midst of has not been recorded yet.
void trace_recorder::end(recording& r) {
  r.is_over = true;
  for (std::size_t i = 0; i < sources_.size(); ++i)
    if (!sources_[i].is_told_later) end_lane(r, i);
}

// RE-5.
void trace_recorder::settle(recording& r, std::int64_t now_ns) {
  const bool waits_no_longer = now_ns - r.until_ns >= trace_settle_ns;
  r.is_settled = true;
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    if (r.lanes[i].has_ended) continue;
    if (waits_no_longer || sources_[i].lane->known_until_ns() >= r.until_ns)
      end_lane(r, i);
    else
      r.is_settled = false;
  }
}

void trace_recorder::end_lane(recording& r, std::size_t i) {
  auto& p = r.lanes[i];
  p.has_ended = true;
  p.end = sources_[i].lane->ring()->written();
  p.is_asleep = sources_[i].lane->is_asleep();
  p.running = sources_[i].current ? sources_[i].current->load(std::memory_order_relaxed) : 0;
}

void trace_recorder::switch_off_if_idle() {
  const auto none_is = [this](auto still) {
    return std::ranges::none_of(recordings_, [&](const auto& r) { return still(r.second); });
  };
  if (is_on_ && none_is([](const recording& r) { return !r.is_over; })) {
    is_on_ = false;
    for (const auto& s : sources_)
      if (!s.is_told_later) s.lane->switch_off();
  }
  if (is_on_later_ && none_is([](const recording& r) { return !r.is_settled; })) {
    is_on_later_ = false;
    for (const auto& s : sources_)
      if (s.is_told_later) s.lane->switch_off();
  }
}

void trace_recorder::fill(trace_page& page, recording& r) {
  page.began_ns = r.began_ns;
  page.ended_ns = r.is_over ? r.until_ns : 0;
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    auto& lane = page.lanes.emplace_back();
    lane.name = sources_[i].name;
    lane.is_stream = sources_[i].is_stream;
    if (!read_lane(r, i, lane)) page.has_more = true;
    lane.is_asleep = r.lanes[i].is_asleep;
    lane.running = r.lanes[i].running == 0 ? trace_nobody : number_of(r, r.lanes[i].running);
  }
  describe(page, r);
  page.has_more = page.has_more || !r.undescribed.empty();
  page.is_last = r.is_settled && !page.has_more;
}

// True: there is no more for now.
bool trace_recorder::read_lane(recording& r, std::size_t lane, traced_lane& to) {
  auto& p = r.lanes[lane];
  const auto& ring = *sources_[lane].lane->ring();
  auto left = std::max<std::size_t>(1, trace_page_events_max / sources_.size());
  if (p.has_ended) left = std::min<std::size_t>(left, p.end - std::min(p.end, p.cursor));
  events_.clear();
  to.lost = left == 0 ? 0 : ring.read(p.cursor, left, events_);
  for (const auto& e : events_)
    if (auto kept = cut(r, e)) {
      kept->actor = number_of(r, e);
      to.events.push_back(*kept);
    }
  return p.cursor >=
         (p.has_ended ? p.end : ring.written() - std::min<std::uint64_t>(ring.written(), left));
}

// RE-3.
std::optional<traced_event> trace_recorder::cut(const recording& r, const trace_event& e) const {
  if (e.end_ns < r.began_ns || (e.end_ns == r.began_ns && e.begin_ns < e.end_ns) ||
      e.begin_ns >= r.until_ns)
    return std::nullopt;
  return traced_event{std::max(e.begin_ns, r.began_ns),
                      std::min(e.end_ns, r.until_ns),
                      e.kind,
                      trace_nobody,
                      e.step,
                      e.where,
                      e.waited,
                      e.bytes};
}

std::uint32_t trace_recorder::number_of(recording& r, const trace_event& e) {
  if (e.kind == trace_kind::idle) return trace_nobody;
  if (e.kind != trace_kind::turn) return number_of(r, e.subject);
  const auto [at, is_new] = r.texts.try_emplace(
      e.subject, static_cast<std::uint32_t>(r.numbers.size() + r.texts.size() + 1));
  if (is_new) {
    traced_actor a;
    a.number = at->second;
    a.name = reinterpret_cast<const char*>(e.subject);
    r.undescribed.push_back(std::move(a));
  }
  return at->second;
}

std::uint32_t trace_recorder::number_of(recording& r, std::uint64_t subject) {
  const auto [at, is_new] = r.numbers.try_emplace(
      subject, static_cast<std::uint32_t>(r.numbers.size() + r.texts.size() + 1));
  if (is_new) {
    traced_actor a;
    a.number = at->second;
    r.undescribed.push_back(std::move(a));
    r.subjects.emplace(at->second, subject);
  }
  return at->second;
}

// RE-4.
void trace_recorder::describe(trace_page& page, recording& r) {
  std::size_t bytes = 0;
  while (!r.undescribed.empty() && bytes < trace_page_described_max) {
    auto a = std::move(r.undescribed.front());
    r.undescribed.pop_front();
    if (const auto at = r.subjects.find(a.number); at != r.subjects.end()) {
      if (auto found = who_(at->second)) {
        found->actor.number = a.number;
        a = std::move(found->actor);
        a.inputs.resize(std::min(a.inputs.size(), trace_edges_max));
        a.outputs.resize(std::min(a.outputs.size(), trace_edges_max - a.inputs.size()));
        a.ports.resize(a.outputs.size());
        std::size_t named = 0;
        const auto beyond = std::ranges::find_if(a.kernels, [&](const std::string& k) {
          return (named += k.size() + 16) > trace_kernel_bytes_max;
        });
        a.kernels.resize(static_cast<std::size_t>(beyond - a.kernels.begin()));
        bytes += std::min(named, trace_kernel_bytes_max);
        bytes += found->part.job_name.size() + found->part.task.size();
        if (r.parts.insert(found->part.part).second) page.parts.push_back(std::move(found->part));
      }
      r.subjects.erase(at);
    }
    bytes += 64 + a.name.size() + a.type.size() + 4 * (a.inputs.size() + 2 * a.outputs.size());
    page.actors.push_back(std::move(a));
  }
}

}  // namespace troupe
