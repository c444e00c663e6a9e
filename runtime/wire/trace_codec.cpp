#include "troupe/runtime/wire/trace_codec.hpp"

#include <fmt/format.h>

#include <optional>
#include <string_view>

namespace troupe {

namespace {

template <class Text>
std::string string_of(Text t) {
  return std::string(t.begin(), t.size());
}

template <class Builder>
void write_numbers(Builder to, const std::vector<std::uint32_t>& from) {
  for (unsigned i = 0; i < to.size(); ++i) to.set(i, from[i]);
}

std::vector<std::uint32_t> read_numbers(capnp::List<std::uint32_t>::Reader from) {
  std::vector<std::uint32_t> out;
  out.reserve(from.size());
  for (const auto n : from) out.push_back(n);
  return out;
}

template <class Values>
unsigned count_of_list(const Values& v) {
  return static_cast<unsigned>(v.size());
}

error beyond(std::string_view what, std::size_t count, std::size_t most) {
  return error(
      error_code::usage,
      fmt::format("a page of a timeline: {} {} are beyond the limit of {}", count, what, most));
}

void write_actor(wire::TraceActor::Builder to, const traced_actor& a) {
  to.setNumber(a.number);
  to.setPart(a.part);
  to.setKind(static_cast<std::uint8_t>(a.kind));
  to.setName(a.name);
  to.setType(a.type);
  to.setPeer(raw(a.peer));
  write_numbers(to.initInputs(count_of_list(a.inputs)), a.inputs);
  write_numbers(to.initOutputs(count_of_list(a.outputs)), a.outputs);
  write_numbers(to.initPorts(count_of_list(a.ports)), a.ports);
  auto kernels = to.initKernels(count_of_list(a.kernels));
  for (unsigned i = 0; i < kernels.size(); ++i) kernels.set(i, a.kernels[i]);
}

result<traced_actor> read_actor(wire::TraceActor::Reader from) {
  if (from.getKind() > static_cast<std::uint8_t>(actor_kind::copy))
    return error(
        error_code::usage,
        fmt::format("a page of a timeline: an actor is of the unknown kind {}", from.getKind()));
  if (from.getOutputs().size() != from.getPorts().size())
    return error(error_code::usage,
                 "a page of a timeline: edges and ports of an actor differ in number");
  if (from.getKernels().size() > trace_kernels_max)
    return beyond("kernels of an actor", from.getKernels().size(), trace_kernels_max);
  std::vector<std::string> kernels;
  for (const auto k : from.getKernels()) kernels.push_back(string_of(k));
  return traced_actor{from.getNumber(),
                      from.getPart(),
                      static_cast<actor_kind>(from.getKind()),
                      string_of(from.getName()),
                      string_of(from.getType()),
                      node_id{from.getPeer()},
                      read_numbers(from.getInputs()),
                      read_numbers(from.getOutputs()),
                      read_numbers(from.getPorts()),
                      std::move(kernels)};
}

void write_lane(wire::TraceLane::Builder to, const traced_lane& l) {
  to.setName(l.name);
  to.setIsStream(l.is_stream);
  to.setIsAsleep(l.is_asleep);
  to.setRunning(l.running);
  to.setLost(l.lost);
  auto events = to.initEvents(count_of_list(l.events));
  for (unsigned i = 0; i < events.size(); ++i) {
    auto e = events[i];
    const auto& from = l.events[i];
    e.setBeginNs(from.begin_ns);
    e.setEndNs(from.end_ns);
    e.setKind(static_cast<std::uint8_t>(from.kind));
    e.setActor(from.actor);
    e.setStep(from.step);
    e.setWhere(from.where);
    e.setWaited(from.waited);
    e.setBytes(from.bytes);
  }
}

bool is_time(std::int64_t ns) { return ns >= 0 && ns <= trace_time_max_ns; }  // TP-2

// Nothing: an event is of a kind that this version does not know.
std::optional<traced_event> read_event(wire::TraceEvent::Reader e) {
  if (e.getKind() == 0 || e.getKind() > trace_kind_last) return std::nullopt;
  return traced_event{e.getBeginNs(), e.getEndNs(), static_cast<trace_kind>(e.getKind()),
                      e.getActor(),   e.getStep(),  e.getWhere(),
                      e.getWaited(),  e.getBytes()};
}

}  // namespace

void write_trace(wire::TraceQuery::Builder to, const trace_query& from) {
  to.setId(from.id);
  to.setRecording(from.recording);
  to.setDurationNs(from.duration_ns);
  to.setEnds(from.ends);
  to.setOwner(from.owner);
}

result<trace_query> read_trace(wire::TraceQuery::Reader from) {
  if (from.getOwner().size() > trace_owner_bytes_max)
    return beyond("bytes of the owner's name", from.getOwner().size(), trace_owner_bytes_max);
  if (from.getDurationNs() < 0)
    return error(error_code::usage, "a query of a timeline: its duration is negative");
  return trace_query{from.getId(), from.getRecording(), from.getDurationNs(), from.getEnds(),
                     string_of(from.getOwner())};
}

void write_trace(wire::TracePage::Builder to, const trace_page& from) {
  to.setId(from.id);
  to.setRecording(from.recording);
  to.setError(from.error);
  to.setNowNs(from.now_ns);
  to.setBeganNs(from.began_ns);
  to.setEndedNs(from.ended_ns);
  to.setHasMore(from.has_more);
  to.setIsLast(from.is_last);
  auto parts = to.initParts(count_of_list(from.parts));
  for (unsigned i = 0; i < parts.size(); ++i) {
    parts[i].setPart(from.parts[i].part);
    parts[i].setJob(raw(from.parts[i].job));
    parts[i].setEpoch(from.parts[i].epoch);
    parts[i].setJobName(from.parts[i].job_name);
    parts[i].setTask(from.parts[i].task);
  }
  auto actors = to.initActors(count_of_list(from.actors));
  for (unsigned i = 0; i < actors.size(); ++i) write_actor(actors[i], from.actors[i]);
  auto lanes = to.initLanes(count_of_list(from.lanes));
  for (unsigned i = 0; i < lanes.size(); ++i) write_lane(lanes[i], from.lanes[i]);
}

result<trace_page> read_trace(wire::TracePage::Reader from) {
  trace_page page;
  page.id = from.getId();
  page.recording = from.getRecording();
  page.error = string_of(from.getError());
  page.now_ns = from.getNowNs();
  page.began_ns = from.getBeganNs();
  page.ended_ns = from.getEndedNs();
  if (!is_time(page.now_ns) || !is_time(page.began_ns) || !is_time(page.ended_ns))
    return error(error_code::usage, "a page of a timeline: a time is beyond all limits");
  page.has_more = from.getHasMore();
  page.is_last = from.getIsLast();
  if (from.getLanes().size() > trace_lanes_max)
    return beyond("threads", from.getLanes().size(), trace_lanes_max);
  if (from.getActors().size() > trace_page_actors_max)
    return beyond("actors", from.getActors().size(), trace_page_actors_max);
  if (from.getParts().size() > trace_page_actors_max)
    return beyond("parts of jobs", from.getParts().size(), trace_page_actors_max);
  for (auto p : from.getParts())
    page.parts.push_back({p.getPart(), job_id{p.getJob()}, p.getEpoch(), string_of(p.getJobName()),
                          string_of(p.getTask())});
  for (auto a : from.getActors()) {
    auto actor = read_actor(a);
    if (!actor) return actor.error();
    page.actors.push_back(std::move(*actor));
  }
  std::size_t events = 0;
  for (auto l : from.getLanes()) {
    events += l.getEvents().size();
    if (events > trace_page_events_max + trace_lanes_max)
      return beyond("events", events, trace_page_events_max);
    traced_lane lane{string_of(l.getName()), l.getIsStream(), l.getIsAsleep(),
                     l.getRunning(),         l.getLost(),     {}};
    lane.events.reserve(l.getEvents().size());
    for (auto e : l.getEvents()) {
      if (!is_time(e.getBeginNs()) || !is_time(e.getEndNs()))
        return error(error_code::usage,
                     "a page of a timeline: a time of an event is beyond all limits");
      if (const auto read = read_event(e)) lane.events.push_back(*read);
    }
    page.lanes.push_back(std::move(lane));
  }
  return page;
}

}  // namespace troupe
