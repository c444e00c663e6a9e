#pragma once
// What all actors of a part share: its plan, the credits of its edges, the records and meters that
// others look at, and who is told what.
//
// Threading: constant after the part is made, but for atomics; what is one thread's alone says so.

#include "troupe/actors/base/message_pool.hpp"
#include "troupe/actors/messages/port_messages.hpp"
#include "troupe/actors/plan/apply_probe.hpp"
#include "troupe/devices/kernel.hpp"
#include "troupe/runtime/firing/edge_credits.hpp"
#include "troupe/runtime/firing/shared_buffer.hpp"
#include "troupe/runtime/graph/op_table.hpp"
#include "troupe/runtime/insight/actor_record.hpp"
#include "troupe/runtime/plan/plan.hpp"
#include "troupe/runtime/planted_bugs.hpp"
#include "troupe/runtime/shards/kept_shard.hpp"
#include "troupe/runtime/trace/trace_ring.hpp"
#include "troupe/schema/ids.hpp"

#include <caf/actor.hpp>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace troupe {

class device_streams;
class part_lanes;

// An output that writes a buffer of the plan: which one, and which of its uses that is.
struct buffer_use {
  std::uint32_t port = 0, buffer = 0, use = 0;
};

// What can be seen of a stream: which actor of which part runs just now, and what ran when. Written
// by the stream's thread, read by the node.
struct alignas(64) stream_meter {
  explicit stream_meter(std::function<std::int64_t()> now_ns)
      : lane(std::move(now_ns), trace_lane::stream_events) {}
  std::atomic<std::uint64_t> current{0};  // part << 32 | actor + 1; 0: none
  trace_lane lane;
};

// The ledger of a shard, by worker, as its actor writes it and a part's last report reads it.
struct shard_counters {
  explicit shard_counters(std::size_t workers)
      : received(workers), applied(workers), dropped(workers), duplicates(workers) {}
  std::vector<std::atomic<std::uint64_t>> received, applied, dropped, duplicates;
};

// What all actors of a part share. Constant after the part is made, but for the credits, which are
// atomics.
struct part_context {
  job_id job{};
  std::uint32_t epoch = 0;
  std::uint32_t part = 0;  // number of the part in its process, for the meter
  std::shared_ptr<const plan> job_plan;
  edge_credits credits;  // by edge; of edges inside this process
  // By edge: its number among those of its producer.
  std::vector<std::uint32_t> outlets;
  // Of the plan, by number; null where another process has it. Each is its stream's thread's alone.
  std::vector<std::unique_ptr<shared_buffer>> buffers;
  std::vector<std::vector<buffer_use>> uses;  // of buffers, by actor
  // By actor; null where another process runs it.
  std::vector<std::shared_ptr<actor_record>> records;
  // By actor; null for all but the shards here.
  std::vector<std::shared_ptr<shard_counters>> ledgers;
  // By actor; null for all but the shards here.
  std::vector<std::shared_ptr<kept_shard>> kept;
  // By variable: what is kept here and handed over.
  std::map<std::string, std::shared_ptr<kept_shard>> handed;
  // The version of a variable that goes on; nullopt: the newest.
  std::optional<std::uint64_t> handed_version(const std::string& variable) const;
  // By stream, then by device; actors may outlive a node that fails.
  std::vector<std::shared_ptr<stream_meter>> meters;
  std::vector<std::shared_ptr<message_pool<tensor_ready>>> pools;  // likewise
  std::vector<std::shared_ptr<device_streams>> devices;
  std::shared_ptr<part_lanes> lanes;  // those that were opened, of all devices here
  std::uint32_t host_streams() const noexcept {
    return static_cast<std::uint32_t>(meters.size() - devices.size());
  }
  // Ranks of collectives of the host run beside the links.
  std::shared_ptr<stream_meter> io_meter;
  std::shared_ptr<message_pool<tensor_ready>> io_pool;
  std::shared_ptr<trace_lane> io_lane;  // of the thread that runs the links, and so ranks
  const std::shared_ptr<message_pool<tensor_ready>>& pool_of(const planned_actor& a) const {
    return runs_beside_links(a) ? io_pool : pools[worker_of(a.stream, host_streams())];
  }
  const std::shared_ptr<stream_meter>& meter_of(const planned_actor& a) const {
    return runs_beside_links(a) ? io_meter : meters[worker_of(a.stream, host_streams())];
  }
  trace_lane& lane_of(const planned_actor& a) const {
    return runs_beside_links(a) ? *io_lane : meters[worker_of(a.stream, host_streams())]->lane;
  }
  const op_table* ops = nullptr;
  const kernel_table* kernels = nullptr;
  host_device* device = nullptr;
  const planted_bugs* bugs = nullptr;  // tests only
  apply_probe* probe = nullptr;        // the simulator's
  node_id node{};                      // this one
  caf::actor supervisor;
  caf::actor archive;  // who saves cuts
  caf::actor program;  // who takes fetched values; null where the program runs elsewhere
};

}  // namespace troupe
