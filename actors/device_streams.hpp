#pragma once
// The streams of one device of a node, each an actor, and what those who enqueue there share.
//
// Ops of a device, and the copies into and out of it, are actors on the device's worker and enqueue by calls, as ops of a host stream run there by calls: a stream that got each of them by
// a message would add a hop to every kernel. What comes back to a stream by itself is a message:
//
//   stream actor
//   message      from                                effect
//   take_back    the last holder of memory, on any   its stream waits for the uses of the memory, and frees it
//                thread that is not the worker's
//   end_actor    process                             drop everything and end
//
// DS-1  A stream is enqueued on by the device's worker alone.
// DS-2  What one stream has waited for it does not wait for again (devices/device_events.hpp).
// DS-3  The scratch memory is that of the compute stream: who enqueues there may use it until it enqueues nothing more of its own, in the order of the stream. It only grows; what was
//       captured with an older one (scratch_number) is not replayed.
// DS-5  What a stream was told to read or write stays until it has: memory of the host too, when its actor ends with copies on their way (keep_behind).
// DS-4  After a failure of a stream, who opens next gets new streams; those that failed stay until the end, since events of theirs may still be asked.
//
// Threading: the worker's, but for take_back(), records() and synchronize(), which is for the end, after all actors.
// Ownership: shared by the node, its parts and memory that is out; a backend outlives its streams.

#include "actors/messages.hpp"
#include "devices/device_backend.hpp"
#include "devices/device_buffer.hpp"
#include "runtime/actor_record.hpp"

#include <caf/actor_system.hpp>

#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace troupe {

struct take_back {
  device_memory memory;
  std::vector<device_event> uses;
};

// One stream.
class device_lane final : public device_memory_owner {
 public:
  device_lane(std::shared_ptr<device_backend> backend, std::unique_ptr<device_stream> stream, std::shared_ptr<actor_record> record, std::thread::id worker);

  device_stream& stream() noexcept { return *stream_; }
  const device_stream& stream() const noexcept { return *stream_; }
  // Its work from now on comes after these.
  result<void> wait(const newest_events& needed);
  result<void> wait(const device_event& e);
  // Counts a piece of work that was enqueued, and what it moves.
  void count(std::uint64_t bytes_in, std::uint64_t bytes_out) noexcept;
  void take_back(device_memory m, std::vector<device_event> uses) noexcept override;
  // Frees what came back after the stream had failed, as far as its uses are done.
  void settle() noexcept;

 private:
  friend class device_streams;
  std::shared_ptr<device_backend> backend_;  // memory that is out may be the last to know of it
  std::unique_ptr<device_stream> stream_;
  waited_for waited_;
  std::shared_ptr<actor_record> record_;
  std::thread::id worker_;
  caf::actor actor_;  // of the stream
  std::vector<std::pair<device_memory, std::vector<device_event>>> late_;
};

class device_streams : public std::enable_shared_from_this<device_streams> {
 public:
  // On the worker's thread, when something is first to run there.
  using opener = std::function<result<std::shared_ptr<device_backend>>()>;
  device_streams(caf::actor_system& sys, caf::execution_unit* worker, std::string name, std::string hardware, opener open, const coarse_clock& clock);

  const std::string& name() const noexcept { return name_; }          // "gpu:0"
  const std::string& hardware() const noexcept { return hardware_; }
  const std::vector<std::shared_ptr<actor_record>>& records() const noexcept { return records_; }  // of streams

  // Makes the streams, where there are none yet or they have failed (DS-4).
  result<void> open();
  device_backend& backend() noexcept { return *backend_; }
  const std::shared_ptr<device_backend>& shared_backend() const noexcept { return backend_; }
  const std::shared_ptr<device_lane>& lane(stream_kind k) const noexcept { return lanes_[static_cast<std::size_t>(k)]; }
  // DS-3.
  result<std::span<std::byte>> scratch(std::size_t bytes);
  std::uint64_t scratch_number() const noexcept { return scratch_number_; }
  // A name that stays as long as the device: of an op, for its stream.
  std::string_view keep_name(const std::string& name) { return *names_.insert(name).first; }
  // Holds something until the event is done, or until the lane's stream is done with what it has been given; after its failure until the end.
  void keep_until(device_event e, std::shared_ptr<const void> what);
  void keep_behind(device_lane& lane, std::shared_ptr<const void> what);

  // The end.
  void end_actors();
  void synchronize() noexcept;

 private:
  static constexpr std::size_t kinds = 3;  // compute, copy_in, copy_out; collectives have communicators of their own
  result<void> make_lanes();

  caf::actor_system& system_;
  caf::execution_unit* worker_;
  std::string name_, hardware_;
  opener open_;
  std::vector<std::shared_ptr<actor_record>> records_;
  std::set<std::string> names_;
  std::shared_ptr<device_backend> backend_;
  std::vector<std::shared_ptr<device_lane>> lanes_{kinds}, failed_;
  device_memory scratch_;
  std::uint64_t scratch_number_ = 0;
  std::deque<std::pair<device_event, std::shared_ptr<const void>>> kept_;
  std::vector<std::shared_ptr<const void>> kept_to_the_end_;
};

}  // namespace troupe

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::take_back)
