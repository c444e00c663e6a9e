#pragma once
// What an actor of a device tells of an error that it met there.
//
// A stream that has failed returns its failure to whoever asks for anything, memory too, and one
// that computes with what never came about fails after the stream that was to bring it. So the
// error of a call says what happened, and not always why.
//
// Threading: the device's worker.

#include "troupe/actors/plan/device_streams.hpp"
#include "troupe/actors/plan/port_actor.hpp"
#include "troupe/runtime/plan/segment.hpp"

#include <fmt/format.h>

#include <memory>
#include <span>
#include <utility>

namespace troupe {

// Of memory that `lane` did not give: with what the plan needs on that device, and for what; where
// its stream has failed, that failure.
inline error no_memory(const error& e, const device_lane& lane, const plan& p,
                       const planned_actor& a) {
  if (auto ok = lane.stream().failed(); !ok) return std::move(ok.error());
  const auto device = device_of(a.stream);
  const auto need = memory_of_device(p, a.task, device);
  return error(e.code(), fmt::format("{}; the plan needs {} bytes on gpu:{}, most of it for {}",
                                     e.message(), need.bytes, device, need.largest));
}

// The lane whose failure is the cause of the others'; null: none has failed. A chip that has failed
// takes all its streams with it, those that copy and add up as well: then it is what computes.
inline const device_lane* cause_among(std::span<const std::shared_ptr<device_lane>> lanes) {
  const device_lane *with_chip = nullptr, *given_up = nullptr;
  for (const auto& l : lanes) {
    if (l->stream().failed()) {
      if (l->is_given_up() && given_up == nullptr) given_up = l.get();
      continue;
    }
    if (!l->stream().has_failed_with_chip()) return given_up != nullptr ? given_up : l.get();
    if (with_chip == nullptr || l->stream().kind() == stream_kind::compute) with_chip = l.get();
  }
  return with_chip != nullptr ? with_chip : given_up;
}

// The actor fails, by an error that it met on `own`; where that has failed because of another
// stream of the part, by the failure of that one.
inline void fail_by_cause(port_logic& actor, const error& e, const device_lane& own,
                          const part_lanes& all) {
  if (own.stream().failed() || own.stream().has_failed_with_chip()) return actor.fail(e);
  const auto lanes = all.all();
  const auto* cause = cause_among(lanes);
  if (cause == nullptr || cause == &own) return actor.fail(e);
  const auto ok = cause->stream().failed();
  // Of a collective a peer may be the cause.
  if (cause->stream().kind() == stream_kind::collective)
    return actor.fail_derived(ok ? e : ok.error());
  actor.fail(ok ? e : ok.error());
}

}  // namespace troupe
