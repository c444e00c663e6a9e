#pragma once
// What a cluster did for a while, as values: what a tool asks of each node, the pages that a node
// answers with, and what becomes of them in the tool.
//
//   trace_query   tool -> node   begin to record, or: what is there since the page before? Every
//                                query is a sign of life
//   trace_page    node -> tool   its clock, the events since the page before, and whoever they
//                                speak of for the first time
//
// Events name actors and parts by number; the same page or a later one says who that is. Times are
// of the node's monotonic clock. Each page says what time it is there, and the tool was asking at
// that moment, between sending and receiving; so it knows how that clock stands to its own, but for
// half of the way there and back (trace_clock).
//
// TP-1  A page fits into a control frame: its events and descriptions are limited, the rest comes
//       with the next one (has_more).
// TP-2  Whatever pages say, times are between 0 and trace_time_max_ns, and a recording has no more
//       events than there is room for.

#include "troupe/runtime/plan/plan.hpp"
#include "troupe/runtime/trace/trace_ring.hpp"
#include "troupe/schema/error.hpp"
#include "troupe/schema/ids.hpp"

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

namespace troupe {

inline constexpr std::int64_t trace_duration_max_ns = 60'000'000'000;
// 73 years after a machine was switched on.
inline constexpr std::int64_t trace_time_max_ns = std::int64_t{1} << 61;
inline constexpr std::size_t trace_page_events_max = 32 * 1024;  // 1.5 MiB
// Bytes of descriptions, but for the first.
inline constexpr std::size_t trace_page_described_max = std::size_t{4} << 20;
// Of one actor; those beyond have no arrows: 6 MiB.
inline constexpr std::size_t trace_edges_max = 500'000;
// Each counts as 64 bytes or more.
inline constexpr std::size_t trace_page_actors_max = trace_page_described_max / 64 + 1;
// Of the names of one actor's kernels, each with 16 more; those beyond have the actor's.
inline constexpr std::size_t trace_kernel_bytes_max = std::size_t{1} << 20;
inline constexpr std::size_t trace_kernels_max = trace_kernel_bytes_max / 16;
inline constexpr std::size_t trace_lanes_max = 4096;
inline constexpr std::size_t trace_owner_bytes_max = 128;
inline constexpr std::uint32_t trace_nobody = 0;

struct trace_query {
  std::uint64_t id = 0;          // stands in the answer
  std::uint64_t recording = 0;   // the tool's choice, not 0; 0: only the clock is asked for
  std::int64_t duration_ns = 0;  // begin, if that recording has not begun; 0: go on
  bool ends = false;             // the tool is done with it
  std::string owner{};           // who records, for other people

  friend bool operator==(const trace_query&, const trace_query&) = default;
};

struct traced_part {
  std::uint32_t part = 0;  // number in the process
  job_id job{};
  std::uint32_t epoch = 0;
  std::string job_name, task;

  friend bool operator==(const traced_part&, const traced_part&) = default;
};

// Of a plan, or one that belongs to none.
struct traced_actor {
  std::uint32_t number = trace_nobody;  // in the recording: 1, 2, ...
  std::uint32_t part = 0;               // 0: of no plan
  actor_kind kind = actor_kind::op;
  std::string name, type;              // type: of its ops
  node_id peer{};                      // of send and receive: where the other one is
  std::vector<std::uint32_t> inputs;   // edge by input port
  std::vector<std::uint32_t> outputs;  // edges of all output ports, in their order
  std::vector<std::uint32_t> ports;    // of each of those: the output port
  std::vector<std::string> kernels{};  // of a segment, by number: what each is called

  friend bool operator==(const traced_actor&, const traced_actor&) = default;
};

struct traced_event {
  std::int64_t begin_ns = 0, end_ns = 0;
  trace_kind kind = trace_kind::idle;
  std::uint32_t actor = trace_nobody;
  std::uint64_t step = 0;
  std::uint32_t where = trace_event::everywhere;
  std::uint32_t waited = 0;
  std::uint64_t bytes = 0;

  friend bool operator==(const traced_event&, const traced_event&) = default;
};

struct traced_lane {
  std::string name;  // "cpu:0", "service"
  bool is_stream = false;
  bool is_asleep = false;                // when the recording ended
  std::uint32_t running = trace_nobody;  // whose kernel ran then
  std::uint64_t lost = 0;                // events
  std::vector<traced_event> events;

  friend bool operator==(const traced_lane&, const traced_lane&) = default;
};

struct trace_page {
  std::uint64_t id = 0, recording = 0;      // of the query
  std::string error;                        // empty: none
  std::int64_t now_ns = 0;                  // of the node's clock
  std::int64_t began_ns = 0, ended_ns = 0;  // ended 0: it goes on
  bool has_more = false;                    // ask again at once
  bool is_last = false;
  std::vector<traced_part> parts;
  std::vector<traced_actor> actors;
  std::vector<traced_lane> lanes;  // all, in the same order in every page

  friend bool operator==(const trace_page&, const trace_page&) = default;
};

// How a node's clock stands to the tool's: the best of all answers.
struct trace_clock {
  std::int64_t ahead_ns = 0;  // the node's minus the tool's
  // At most, if the clocks go equally fast.
  std::int64_t error_ns = std::numeric_limits<std::int64_t>::max();

  // An answer that said `there_ns` came at `received_ns` to what was asked at `sent_ns`. Where the
  // clocks may be the same one, they are: on one host all processes have one.
  void hear(std::int64_t sent_ns, std::int64_t there_ns, std::int64_t received_ns) noexcept {
    const auto error = (received_ns - sent_ns + 1) / 2;
    if (error < 0 || error >= error_ns) return;
    error_ns = error;
    ahead_ns = there_ns - (sent_ns + (received_ns - sent_ns) / 2);
    if (ahead_ns >= -error && ahead_ns <= error) ahead_ns = 0;
  }

  friend bool operator==(const trace_clock&, const trace_clock&) = default;
};

// What one node gave.
struct node_recording {
  node_id id{};
  std::string name, host;
  std::uint32_t pid = 0;
  std::string kind;  // "node", "client"
  trace_clock clock;
  std::int64_t began_ns = 0, ended_ns = 0;
  bool is_whole = false;       // the last page is there
  std::uint64_t left_out = 0;  // events that the tool had no room for
  std::map<std::uint32_t, traced_part> parts;
  std::map<std::uint32_t, traced_actor> actors;
  std::vector<traced_lane> lanes;

  // TP-2. Events beyond `room` are left out.
  void add(trace_page page, std::size_t room);
  std::size_t events() const noexcept;
  std::uint64_t lost() const noexcept;  // there and here
};

}  // namespace troupe
