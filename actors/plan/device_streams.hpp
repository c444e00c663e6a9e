#pragma once
// The streams of one device of a node, each an actor, and what those who enqueue there share.
//
// Ops of a device, and the copies into and out of it, are actors on the device's worker and enqueue
// by calls, as ops of a host stream run there by calls: a stream that got each of them by a message
// would add a hop to every kernel. What comes back to a stream by itself is a message:
//
//   stream actor
//   message       from                                     effect
//   take_back     the last holder of memory, on any        its stream waits for the uses of the
//                 thread that is not the worker's          memory, and frees it
//   device_done   device                                   lets go of what was kept behind work
//                                                          that is done now (keep_behind)
//   ask_through   supervisor of a part that ends           stream_through, once all that the stream
//                                                          has been given is done
//   end_actor     process                                  drop everything and end
//
//   collector
//   collect_slices  node, when a timeline is asked for  what streams have done is written into
//                                                       their lanes
//   end_actor       process                             end
//
// DS-1  A stream is enqueued on by the device's worker alone.
// DS-2  What one stream has waited for it does not wait for again
//       (devices/device/device_events.hpp).
// DS-3  The scratch memory is that of the compute stream: who enqueues there may use it until it
//       enqueues nothing more of its own, in the order of the stream. It only grows; what was
//       captured with an older one (scratch_number) is not replayed.
// DS-4  After a failure of a stream, or once it is given up, who opens next gets a new one in its
//       place; those that failed stay until the end, since events of theirs may still be asked.
// DS-5  What a stream was told to read or write stays until it has: memory of the host too, when
//       its actor ends with copies on their way (keep_behind). A stream that has failed is no
//       exception: what it had begun may still run, and it says when it is through
//       (devices/device/device.hpp, DV-5). Nothing stays longer because of a failure.
// DS-6  A stream's lane of timelines is written by the worker alone: what the stream says it has
//       done (devices/device/device_trace.hpp), when it is given more and when a timeline is asked
//       for. While nobody records, a firing looks at one pointer.
// DS-7  All actors of a part have the same streams: where one fails while others still open, these
//       fail, too, and do not compute on new ones with what never came about.
// DS-8  What leaves a device leaves only while no stream of its part has failed, on whichever
//       device: a stream that waited for another one's event does not learn that this one has
//       failed (part_lanes).
// DS-9  A part has ended when its streams are through with what it gave them, not when its actors
//       have ended: what fails behind them would else be the next part's failure, on a stream that
//       it took for a sound one (part_supervisor.hpp, PT-2).
//
// Threading: the worker's, but for take_back(), records(), timelines(), ask_to_collect(), and
// synchronize() and then end_actors(), which are for the end, after all actors of parts: what
// streams kept, their actors let go of, on the worker.
// Ownership: shared by the node, its parts and memory that is out; a backend outlives its streams.

#include "troupe/actors/messages/port_messages.hpp"
#include "troupe/devices/device/device_backend.hpp"
#include "troupe/devices/memory/device_buffer.hpp"
#include "troupe/runtime/insight/actor_record.hpp"
#include "troupe/runtime/trace/trace_ring.hpp"

#include <caf/actor_system.hpp>

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace troupe {

struct take_back {
  device_memory memory;
  std::vector<device_event> uses;
};

struct ask_through {
  caf::actor from;
};
struct stream_through {
  caf::actor_addr stream;
};
class device_streams;
struct collect_slices {
  std::shared_ptr<device_streams> of;
};

// One stream.
class device_lane final : public device_memory_owner {
 public:
  device_lane(std::shared_ptr<device_backend> backend, std::unique_ptr<device_stream> stream,
              std::shared_ptr<actor_record> record, std::shared_ptr<trace_lane> timeline,
              std::thread::id worker);

  device_stream& stream() noexcept { return *stream_; }
  const device_stream& stream() const noexcept { return *stream_; }
  // Its work from now on comes after these.
  result<void> wait(const newest_events& needed);
  result<void> wait(const device_event& e);
  // What is enqueued from now on is `subject`'s (trace_event), for a step; and then a kernel of it
  // by number.
  void label(std::uint64_t subject, std::uint64_t step) {
    if (timeline_->is_on() || is_traced_) [[unlikely]]
      label_traced({subject, step});
  }
  void label_kernel(std::uint32_t kernel) {
    if (!is_traced_) [[likely]]
      return;
    label_.kernel = kernel;
    stream_->label(label_);
  }
  // Counts a piece of work that was enqueued, and what it moves.
  void count(std::uint64_t bytes_in, std::uint64_t bytes_out) noexcept;
  void take_back(device_memory m, std::vector<device_event> uses) noexcept override;
  // Frees what came back after the stream had failed, as far as its uses are done.
  void settle() noexcept;
  // Holds something until the stream is through with all that it has been given, also where it has
  // failed: then its actor lets go of it.
  void keep(std::shared_ptr<const void> what);
  void let_go(std::uint64_t number);
  // What it makes from now on, and what is under way, is not to be used: of a collective that was
  // aborted. By the worker.
  void give_up() noexcept { is_given_up_.store(true, std::memory_order_relaxed); }
  bool is_given_up() const noexcept { return is_given_up_.load(std::memory_order_relaxed); }
  // Tells it stream_through when the stream is through with all that it has been given. By the
  // stream's actor, `own`.
  void tell_when_through(caf::actor whom, caf::actor_addr own);
  // The last that its actor does, on the worker.
  void end() noexcept { kept_.clear(); }
  // Any thread; null: the process ends.
  caf::actor actor() const {
    const std::lock_guard hold(actor_lock_);
    return actor_;
  }

 private:
  friend class device_streams;
  caf::actor take_actor() {
    const std::lock_guard hold(actor_lock_);
    return std::exchange(actor_, nullptr);
  }
  void label_traced(const slice_label& l);
  std::shared_ptr<device_backend> backend_;  // memory that is out may be the last to know of it
  // By number; they outlive the stream, which ends when it has run what it was given.
  std::deque<std::pair<std::uint64_t, std::shared_ptr<const void>>> kept_;
  std::uint64_t kept_last_ = 0;
  std::unique_ptr<device_stream> stream_;
  waited_for waited_;
  std::shared_ptr<actor_record> record_;
  std::shared_ptr<trace_lane> timeline_;
  slice_label label_;
  bool is_traced_ = false;
  std::thread::id worker_;
  // The process takes the actor away while memory may still come back.
  mutable std::mutex actor_lock_;
  caf::actor actor_;  // of the stream
  std::vector<std::pair<device_memory, std::vector<device_event>>> late_;
  newest_events unwaited_;  // what was to be waited for when the stream had failed
  std::atomic<bool> is_given_up_ = false;
};

// The streams that the actors of a part enqueue on, of all devices of its process; of collectives
// those that it has a rank on. Any thread; shared by its actors.
//
// In an order in which a failure may follow from one that stands before it, and not from one
// behind: what was not copied in, or not added up, makes what is computed of it fail. The first one
// that has failed is the cause (actors/plan/device_failures.hpp).
class part_lanes {
 public:
  void add(std::shared_ptr<device_lane> lane);
  std::vector<std::shared_ptr<device_lane>> all() const {
    const std::lock_guard hold(lock_);
    return lanes_;
  }

 private:
  mutable std::mutex lock_;
  std::vector<std::shared_ptr<device_lane>> lanes_;
};

class device_streams : public std::enable_shared_from_this<device_streams> {
 public:
  // On the worker's thread, when something is first to run there.
  using opener = std::function<result<std::shared_ptr<device_backend>>()>;
  device_streams(caf::actor_system& sys, caf::execution_unit* worker, std::string name,
                 std::string hardware, opener open, const coarse_clock& clock,
                 const std::function<std::int64_t()>& now_ns);

  const std::string& name() const noexcept { return name_; }  // "gpu:0"
  const std::string& hardware() const noexcept { return hardware_; }
  // Of streams.
  const std::vector<std::shared_ptr<actor_record>>& records() const noexcept { return records_; }
  // Of streams, beside records(): what they ran, for timelines (DS-6).
  const std::vector<std::shared_ptr<trace_lane>>& timelines() const noexcept { return timelines_; }
  void ask_to_collect();
  void collect();
  // By each actor of a part. The first one makes the streams that are not there yet or have failed
  // (DS-4); an error where one has failed since (DS-7).
  result<void> open(std::uint32_t part);
  // And adds them, but for that of collectives, which other parts may use.
  result<void> open(std::uint32_t part, part_lanes& of);
  device_backend& backend() noexcept { return *backend_; }
  const std::shared_ptr<device_backend>& shared_backend() const noexcept { return backend_; }
  const std::shared_ptr<device_lane>& lane(stream_kind k) const noexcept {
    return lanes_[static_cast<std::size_t>(k)];
  }
  // DS-3.
  result<std::span<std::byte>> scratch(std::size_t bytes);
  std::uint64_t scratch_number() const noexcept { return scratch_number_; }
  // A name that stays as long as the device: of an op, for its stream.
  std::string_view keep_name(const std::string& name) { return *names_.insert(name).first; }
  // Holds something until somebody asks for scratch memory and finds the event done: costs the
  // device nothing.
  void keep_until(device_event e, std::shared_ptr<const void> what);
  // Holds something until the lane's stream is through with what it has been given, and no longer
  // (DS-5): costs it a call of the host, so it is for ends.
  void keep_behind(device_lane& lane, std::shared_ptr<const void> what) {
    lane.keep(std::move(what));
  }
  // Of a firing that failed half-way, whose memory the stream may be using all the same.
  void keep_behind(device_lane& lane, std::vector<tensor> used) {
    lane.keep(std::make_shared<const std::vector<tensor>>(std::move(used)));
  }

  // The end.
  void end_actors();
  void synchronize() noexcept;

 private:
  static constexpr std::size_t kinds = 4;  // compute, copy_in, copy_out, collective
  result<void> make_lane(std::size_t kind);
  void settle() noexcept;

  caf::actor_system& system_;
  caf::execution_unit* worker_;
  std::string name_, hardware_;
  opener open_;
  std::vector<std::shared_ptr<actor_record>> records_;
  std::vector<std::shared_ptr<trace_lane>> timelines_;
  caf::actor collector_;
  std::set<std::string> names_;
  std::shared_ptr<device_backend> backend_;
  std::vector<std::shared_ptr<device_lane>> lanes_{kinds}, failed_;
  // How often lanes took the place of others.
  std::uint64_t opened_anew_ = 0;
  // By part: that when its first actor opened.
  std::map<std::uint32_t, std::uint64_t> opened_anew_at_;
  device_memory scratch_;
  std::uint64_t scratch_number_ = 0;
  std::deque<std::pair<device_event, std::shared_ptr<const void>>> kept_;
};

}  // namespace troupe

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::take_back)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::ask_through)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::stream_through)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::collect_slices)
