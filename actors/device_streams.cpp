#include "actors/device_streams.hpp"

#include "actors/scheduler.hpp"
#include "actors/tell.hpp"

#include <caf/event_based_actor.hpp>
#include <caf/stateful_actor.hpp>

#include <algorithm>
#include <utility>

namespace troupe {

namespace {

struct stream_state {
  static inline const char* name = "stream";
  std::shared_ptr<device_lane> lane;
};

caf::behavior stream_actor(caf::stateful_actor<stream_state>* self, std::shared_ptr<device_lane> lane) {
  self->state.lane = std::move(lane);
  return {
      [self](take_back& m) {
        after_message();
        self->state.lane->take_back(m.memory, std::move(m.uses));
      },
      [self](end_actor) { self->quit(); },
  };
}

}  // namespace

device_lane::device_lane(std::shared_ptr<device_backend> backend, std::unique_ptr<device_stream> stream, std::shared_ptr<actor_record> record, std::thread::id worker)
    : backend_(std::move(backend)), stream_(std::move(stream)), waited_(stream_.get()), record_(std::move(record)), worker_(worker) {}

result<void> device_lane::wait(const newest_events& needed) {
  for (const auto& e : waited_.add(needed))
    if (auto ok = stream_->wait(e); !ok) return ok;
  return {};
}

result<void> device_lane::wait(const device_event& e) {
  newest_events one;
  one.add(e);
  return wait(one);
}

void device_lane::count(std::uint64_t bytes_in, std::uint64_t bytes_out) noexcept {
  record_->count_in(bytes_in);
  record_->count_out(bytes_out);
  record_->count_step();
}

void device_lane::take_back(device_memory m, std::vector<device_event> uses) noexcept {
  if (std::this_thread::get_id() != worker_) {
    if (actor_) tell(nullptr, actor_, troupe::take_back{m, std::move(uses)});  // else the device is about to go, and its memory with it
    return;
  }
  newest_events all;
  for (const auto& e : uses) all.add(e);
  if (wait(all)) return stream_->free(m);
  late_.emplace_back(m, std::move(uses));  // the stream has failed, and waits for nobody
}

void device_lane::settle() noexcept {
  std::erase_if(late_, [&](const auto& l) {
    if (!std::all_of(l.second.begin(), l.second.end(), [](const device_event& e) { return e.is_done(); })) return false;
    stream_->free(l.first);
    return true;
  });
}

device_streams::device_streams(caf::actor_system& sys, caf::execution_unit* worker, std::string name, std::string hardware, opener open, const coarse_clock& clock)
    : system_(sys), worker_(worker), name_(std::move(name)), hardware_(std::move(hardware)), open_(std::move(open)) {
  for (std::size_t k = 0; k < kinds; ++k)
    records_.push_back(std::make_shared<actor_record>(actor_kind::stream, name_ + "/" + std::string(to_string(static_cast<stream_kind>(k))), "", clock));
}

result<void> device_streams::open() {
  if (backend_ == nullptr) {
    auto made = open_();
    if (!made) return std::move(made.error());
    backend_ = std::move(*made);
    hardware_ = backend_->device().hardware();
  }
  backend_->set_up_thread();
  const bool have_failed = std::any_of(lanes_.begin(), lanes_.end(), [](const auto& l) { return l != nullptr && !l->stream().failed(); });
  for (const auto& l : failed_) l->settle();
  if (lanes_[0] != nullptr && !have_failed) return {};
  return make_lanes();
}

result<void> device_streams::make_lanes() {
  std::vector<std::shared_ptr<device_lane>> fresh;
  for (std::size_t k = 0; k < kinds; ++k) {
    auto stream = backend_->device().make_stream(static_cast<stream_kind>(k));
    if (!stream) return std::move(stream.error());
    fresh.push_back(std::make_shared<device_lane>(backend_, std::move(*stream), records_[k], std::this_thread::get_id()));
    fresh.back()->actor_ = spawn_on(system_, worker_, &stream_actor, fresh.back());
  }
  for (auto& l : std::exchange(lanes_, std::move(fresh)))
    if (l != nullptr) failed_.push_back(std::move(l));
  scratch_ = {};  // it went with its stream
  ++scratch_number_;
  return {};
}

result<std::span<std::byte>> device_streams::scratch(std::size_t bytes) {
  while (!kept_.empty() && kept_.front().first.is_done()) kept_.pop_front();
  if (bytes > scratch_.size_bytes || !scratch_) {
    auto& compute = lane(stream_kind::compute)->stream();
    // Back first, so that it may grow into its own place: the stream orders old uses and new ones.
    if (scratch_) compute.free(std::exchange(scratch_, {}));
    ++scratch_number_;
    auto memory = compute.allocate(std::max<std::size_t>(bytes, 1), "values inside of segments");
    if (!memory) return std::move(memory.error());
    scratch_ = *memory;
  }
  return std::span(scratch_.bytes, scratch_.size_bytes);
}

void device_streams::keep_until(device_event e, std::shared_ptr<const void> what) { kept_.emplace_back(std::move(e), std::move(what)); }

void device_streams::keep_behind(device_lane& lane, std::shared_ptr<const void> what) {
  if (auto last = lane.stream().record())
    keep_until(std::move(*last), std::move(what));
  else
    kept_to_the_end_.push_back(std::move(what));
}

void device_streams::end_actors() {
  for (auto* all : {&lanes_, &failed_})
    for (auto& l : *all)
      if (l != nullptr && l->actor_) tell(nullptr, std::exchange(l->actor_, nullptr), end_actor{});
}

void device_streams::synchronize() noexcept {
  for (auto* all : {&lanes_, &failed_})
    for (auto& l : *all) {
      if (l == nullptr) continue;
      (void)l->stream().synchronize();
    }
  kept_.clear();
  kept_to_the_end_.clear();
}

}  // namespace troupe
