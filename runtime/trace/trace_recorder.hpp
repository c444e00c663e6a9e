#pragma once
// The recordings of one node: switches the lanes of its workers on and off, and answers queries
// with pages.
//
//   event            effect
//   answer(query)    begin, go on, or end a recording: what its lanes have recorded since its last
//                    page
//   tick(now)        a recording whose time is over ends; one whose tool is silent for
//                    trace_lease_ns is forgotten
//
// RE-1  Several recordings at once see the same events, each with cursors of its own.
// RE-2  Lanes are on while a recording runs, and off from the first tick or query after the last
//       one has ended: what a tool leaves behind by dying costs nothing after trace_lease_ns.
// RE-3  A recording has what happened from its beginning to its end, slices cut off at both; what
//       lanes wrote over before it was read is counted in its pages.
// RE-4  A page has at most trace_page_events_max events, of each lane its share; and descriptions
//       of trace_page_described_max bytes and one more.
// RE-5  A lane that is told later than things happened (of a device's stream) is read on, after the
//       end, until it knows of all before that, for trace_settle_ns at most. What a device still
//       runs then is in no page.
//
// Threading: the node's. Time is passed in, of the clock of the lanes.

#include "troupe/runtime/trace/trace.hpp"
#include "troupe/runtime/trace/trace_ring.hpp"

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

namespace troupe {

inline constexpr std::int64_t trace_lease_ns = 5'000'000'000;  // a tool asks twenty times a second
// The thread that writes it may be busy.
inline constexpr std::int64_t trace_settle_ns = 200'000'000;
// Each has cursors and names of its own.
inline constexpr std::size_t trace_recordings_max = 8;

struct trace_source {
  std::string name;  // of the worker
  bool is_stream = false;
  std::shared_ptr<trace_lane> lane;
  // Subject whose kernel runs, 0: none; null: not known.
  std::shared_ptr<const std::atomic<std::uint64_t>> current{};
  bool is_told_later = false;  // RE-5
};

struct trace_subject {
  traced_part part;
  traced_actor actor;
};

class trace_recorder {
 public:
  // Who a subject of lanes is; nullopt: not known any more.
  using directory = std::function<std::optional<trace_subject>(std::uint64_t)>;

  trace_recorder(std::vector<trace_source> sources, directory who)
      : sources_(std::move(sources)), who_(std::move(who)) {}

  trace_page answer(const trace_query& q, std::int64_t now_ns);
  void tick(std::int64_t now_ns);
  std::size_t recordings() const noexcept { return recordings_.size(); }

 private:
  struct position {
    std::uint64_t cursor = 0, end = 0;  // end: of a recording that is over
    std::uint64_t running = 0;
    bool is_asleep = false;
    bool has_ended = false;
  };
  struct recording {
    std::string owner;
    std::int64_t began_ns = 0, until_ns = 0, asked_ns = 0;
    bool is_over = false;     // its time is
    bool is_settled = false;  // and nothing more comes of it
    std::vector<position> lanes;
    std::unordered_map<std::uint64_t, std::uint32_t> numbers, texts;  // of subjects, and of turns
    // Number, and for turns all; else `subjects` has who it is.
    std::deque<traced_actor> undescribed;
    std::unordered_map<std::uint32_t, std::uint64_t> subjects;  // of the undescribed
    std::set<std::uint32_t> parts;                              // described
  };

  void begin(recording& r, const trace_query& q, std::int64_t now_ns);
  void end(recording& r);
  void settle(recording& r, std::int64_t now_ns);
  void end_lane(recording& r, std::size_t i);
  void switch_off_if_idle();
  void fill(trace_page& page, recording& r);
  bool read_lane(recording& r, std::size_t lane, traced_lane& to);
  std::optional<traced_event> cut(const recording& r, const trace_event& e) const;
  std::uint32_t number_of(recording& r, const trace_event& e);
  std::uint32_t number_of(recording& r, std::uint64_t subject);
  void describe(trace_page& page, recording& r);

  std::vector<trace_source> sources_;
  directory who_;
  std::map<std::uint64_t, recording> recordings_;
  std::vector<trace_event> events_;           // read, of one lane
  bool is_on_ = false, is_on_later_ = false;  // the lanes; those of RE-5
};

}  // namespace troupe
