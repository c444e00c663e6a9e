#pragma once
// Recording a timeline of a running cluster, as a guest: every member records what it runs, and
// gives it out page by page.
//
// 1. ask_cluster() says who is there.
// 2. A connection to each; once all stand, or cannot, all are told to begin, so that they record
//    the same time.
// 3. Each is asked for its next page every page_pause_ns, and at once while it has more, until its
//    last page.
//
// RD-1  A node that does not answer within the timeout, or goes, is in `silent` with the reason;
//       what it gave until then stays.
// RD-2  At most trace_events_max events are kept; those beyond are counted as lost.
// RD-3  Whoever ends early is forgotten by the nodes (runtime/trace/trace_recorder.hpp, RE-2).

#include "troupe/actors/inspect/inspect.hpp"
#include "troupe/runtime/trace/trace.hpp"
#include "troupe/schema/error.hpp"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace troupe {

// In a file some 400 bytes each, arrows included; Perfetto opens about as much.
inline constexpr std::size_t trace_events_max = 4'000'000;

struct record_progress {
  std::int64_t elapsed_ns = 0;  // of the recording
  std::size_t nodes = 0;        // that record
  std::size_t events = 0;
};

struct record_options {
  ask_options ask;  // its timeout is that of each answer
  std::int64_t duration_ns = 1'000'000'000;
  std::size_t events_max = trace_events_max;
  // First when all have begun, then about ten times a second.
  std::function<void(const record_progress&)> on_progress{};
};

struct cluster_recording {
  std::string cluster;
  std::int64_t duration_ns = 0;
  std::vector<node_recording> nodes;  // in the order of ask_cluster()
  std::vector<silent_node> silent;
  std::vector<job_snapshot> jobs;  // from before it began
};

// Blocks; call it from any thread without actors. Errors as of ask_cluster(), and timed_out: not
// one node could be recorded.
result<cluster_recording> record_cluster(const record_options& options);

}  // namespace troupe
