#pragma once
// A recording as a file in the trace event format of Chrome, which Perfetto
// (https://ui.perfetto.dev) and chrome://tracing open:
// https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
//
//   in the file             what it is
//   process                 a node, with the tasks that it runs
//   thread                  a stream or another worker; rows of what the streams of a device ran
//                           (the worker that enqueues there has one too); and rows of transfers for
//                           each node that tensors went to
//   slice (X)               a firing, a shard's apply or send, the making of kernels, a turn of an
//                           actor that is in no plan, a thread that waits, a tensor on its way; on
//                           a device a kernel, a captured step that was replayed (with the number
//                           of its kernels), or a copy (with its bytes)
//   arrow (s, f)            an item: from the firing that emitted it to the one that took it, on
//                           whatever node. Its id follows from job, epoch, edge and step; in a loop
//                           that of the first iteration. And work of a device: from the firing that
//                           enqueued it to the first of its slices; from a copy off the device to
//                           the firing that passed it on
//   otherData               the nodes with their clocks, and what is missing
//
// TI-1  It is valid JSON, whatever was recorded.
// TI-2  Slices of one thread do not overlap.
// TI-3  Every arrow has both ends, each inside its slice; the ends of items that were emitted or
//       taken outside of the recording are left out.
// TI-4  Times of all nodes are on the tool's clock, in microseconds since the first node began;
//       where clocks differ they may be off by clock_error_seconds.

#include "tools/troupe-tool/answer.hpp"
#include "troupe/actors/inspect/record_timeline.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace troupe {

struct timeline_summary {
  std::size_t slices = 0;  // of jobs: without waits, and turns of other actors
  std::size_t arrows = 0;
  std::uint64_t lost = 0;  // events
};

// Gives the file out piece by piece. `job`: only what belongs to a job of that name or id, and
// threads; "": all.
timeline_summary write_timeline(const cluster_recording& r, const std::string& job,
                                const std::function<void(std::string_view)>& put);

// What stands on stderr, and the exit code: partial where a node is missing or events were lost.
outcome answer_timeline(const command& c, const cluster_recording& r, const timeline_summary& s);

// not_found, with near names, unless the cluster knows job `name`, or "" is asked for.
result<void> check_job(const std::string& name, const std::vector<job_snapshot>& jobs);

// "recording 0.4 of 1.0 s on 3 nodes, 12345 events".
std::string progress_line(const command& c, const record_progress& p);

}  // namespace troupe
