#include "troupe/actors/plan/device_streams.hpp"

#include "troupe/actors/base/scheduler.hpp"
#include "troupe/actors/base/tell.hpp"

#include <caf/event_based_actor.hpp>
#include <caf/stateful_actor.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace troupe {

namespace {

constexpr std::size_t parts_known_max = 64;  // numbers ascend: the oldest have long been open

struct stream_state {
  static inline const char* name = "stream";
  std::shared_ptr<device_lane> lane;
};

caf::behavior stream_actor(caf::stateful_actor<stream_state>* self,
                           std::shared_ptr<device_lane> lane) {
  self->state.lane = std::move(lane);
  return {
      [self](take_back& m) {
        after_message();
        self->state.lane->take_back(m.memory, std::move(m.uses));
      },
      [self](device_done m) {
        after_message();
        self->state.lane->let_go(m.number);
      },
      [self](ask_through& m) {
        after_message();
        self->state.lane->tell_when_through(std::move(m.from), self->address());
      },
      [self](end_actor) {
        self->state.lane->end();
        self->quit();
      },
  };
}

struct collector_state {
  static inline const char* name = "collector";
};

caf::behavior collector_actor(caf::stateful_actor<collector_state>* self) {
  return {
      [](const collect_slices& m) { m.of->collect(); },
      [self](end_actor) { self->quit(); },
  };
}

// Slices into the ring of a lane.
class sink_of_lane final : public slice_sink {
 public:
  explicit sink_of_lane(std::shared_ptr<trace_lane> to) : to_(std::move(to)) {}
  std::int64_t now_ns() const override { return to_->now_ns(); }
  void add(const device_slice& s) override {
    trace_event e{s.begin_ns,      s.end_ns,     trace_kind::kernel,
                  s.label.subject, s.label.step, s.label.kernel};
    if (s.kind == slice_kind::replay)
      e.kind = trace_kind::replay,
      e.where =
          static_cast<std::uint32_t>(std::min<std::uint64_t>(s.amount, trace_event::everywhere));
    if (s.kind == slice_kind::copy)
      e.kind = trace_kind::copy, e.where = trace_event::everywhere, e.bytes = s.amount;
    to_->device_work(e);
  }

 private:
  std::shared_ptr<trace_lane> to_;
};

}  // namespace

device_lane::device_lane(std::shared_ptr<device_backend> backend,
                         std::unique_ptr<device_stream> stream,
                         std::shared_ptr<actor_record> record, std::shared_ptr<trace_lane> timeline,
                         std::thread::id worker)
    : backend_(std::move(backend)),
      stream_(std::move(stream)),
      waited_(stream_.get()),
      record_(std::move(record)),
      timeline_(std::move(timeline)),
      worker_(worker) {}

void device_lane::label_traced(const slice_label& l) {
  if (const bool is_on = timeline_->is_on(); is_on != is_traced_) {
    stream_->trace(is_on ? std::make_shared<sink_of_lane>(timeline_) : nullptr);
    is_traced_ = is_on;
  }
  stream_->collect();  // DT-5
  label_ = l;
  stream_->label(l);
}

result<void> device_lane::wait(const newest_events& needed) {
  auto ok = stream_->failed();
  if (ok)  // else what it could not wait for would count as waited for
    for (const auto& e : waited_.add(needed))
      if (ok = stream_->wait(e); !ok) break;
  if (!ok) unwaited_.add(needed);
  return ok;
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
    // Else the device is about to go, and its memory with it.
    if (const auto to = actor()) tell(nullptr, to, troupe::take_back{m, std::move(uses)});
    return;
  }
  newest_events all;
  for (const auto& e : uses) all.add(e);
  if (wait(all)) return stream_->free(m);
  // The stream has failed, and waits for nobody: neither for these uses nor for those that its
  // pools' buffers had when they were to be written anew.
  all.add(unwaited_);
  late_.emplace_back(m, all.events());
}

void device_lane::settle() noexcept {
  std::erase_if(late_, [&](const auto& l) {
    if (!std::all_of(l.second.begin(), l.second.end(),
                     [](const device_event& e) { return e.is_done(); }))
      return false;
    stream_->free(l.first);
    return true;
  });
}

void device_lane::keep(std::shared_ptr<const void> what) {
  auto to = actor();
  if (!to) return;  // the end: the stream has been waited for
  kept_.emplace_back(++kept_last_, std::move(what));
  // An error would be that it is captured now; then it stays until the stream ends.
  (void)stream_->call_host(
      [to = std::move(to), number = kept_last_] { tell(nullptr, to, device_done{number}); });
}

void device_lane::tell_when_through(caf::actor whom, caf::actor_addr own) {
  const auto answer = [whom = std::move(whom), own = std::move(own)] {
    tell(nullptr, whom, stream_through{own});
  };
  if (!stream_->call_host(answer)) answer();
}

void device_lane::let_go(std::uint64_t number) {
  while (!kept_.empty() && kept_.front().first <= number) kept_.pop_front();
}

namespace {

int place_of(stream_kind k) noexcept {
  switch (k) {
    case stream_kind::copy_in: return 0;
    case stream_kind::collective: return 1;
    case stream_kind::compute: return 2;
    case stream_kind::copy_out: return 3;
  }
  return 4;
}

}  // namespace

void part_lanes::add(std::shared_ptr<device_lane> lane) {
  const std::lock_guard hold(lock_);
  if (std::find(lanes_.begin(), lanes_.end(), lane) != lanes_.end()) return;
  const auto place = place_of(lane->stream().kind());
  const auto at = std::find_if(lanes_.begin(), lanes_.end(),
                               [&](const auto& l) { return place_of(l->stream().kind()) > place; });
  lanes_.insert(at, std::move(lane));
}

device_streams::device_streams(caf::actor_system& sys, caf::execution_unit* worker,
                               std::string name, std::string hardware, opener open,
                               const coarse_clock& clock,
                               const std::function<std::int64_t()>& now_ns)
    : system_(sys),
      worker_(worker),
      name_(std::move(name)),
      hardware_(std::move(hardware)),
      open_(std::move(open)),
      collector_(spawn_on(sys, worker, &collector_actor)) {
  for (std::size_t k = 0; k < kinds; ++k) {
    records_.push_back(std::make_shared<actor_record>(
        actor_kind::stream, name_ + "/" + std::string(to_string(static_cast<stream_kind>(k))), "",
        clock));
    timelines_.push_back(std::make_shared<trace_lane>(now_ns, trace_lane::device_events));
  }
}

void device_streams::ask_to_collect() {
  if (collector_) tell(nullptr, collector_, collect_slices{shared_from_this()});
}

void device_streams::collect() {
  for (std::size_t k = 0; k < kinds; ++k) {
    const auto now = timelines_[k]->now_ns();
    if (lanes_[k] != nullptr) lanes_[k]->stream_->collect();
    timelines_[k]->knows_until(now);
  }
}

result<void> device_streams::open(std::uint32_t part) {
  if (backend_ == nullptr) {
    auto made = open_();
    if (!made) return std::move(made.error());
    backend_ = std::move(*made);
    hardware_ = backend_->device().hardware();
  }
  backend_->set_up_thread();
  settle();
  const auto known = opened_anew_at_.find(part);
  if (known != opened_anew_at_.end() && known->second != opened_anew_)
    return error(error_code::failed,
                 name_ + ": one of its streams failed, and another job has replaced it since");
  for (std::size_t k = 0; k < kinds; ++k) {
    const auto before = lanes_[k];
    auto ok = before == nullptr ? result<void>() : before->stream().failed();
    if (before != nullptr && !before->is_given_up() && ok) continue;
    if (known != opened_anew_at_.end()) {
      if (ok) return error(error_code::failed, fmt::format("{}: a collective was aborted", name_));
      return ok;
    }
    if (auto made = make_lane(k); !made) return made;
    opened_anew_ += before == nullptr ? 0 : 1;
  }
  settle();  // those that have just been replaced
  opened_anew_at_.emplace(part, opened_anew_);
  if (opened_anew_at_.size() > parts_known_max) opened_anew_at_.erase(opened_anew_at_.begin());
  return {};
}

result<void> device_streams::open(std::uint32_t part, part_lanes& of) {
  if (auto ok = open(part); !ok) return ok;
  for (const auto k : {stream_kind::compute, stream_kind::copy_in, stream_kind::copy_out})
    of.add(lane(k));
  return {};
}

void device_streams::settle() noexcept {
  for (const auto& l : failed_) l->settle();
}

result<void> device_streams::make_lane(std::size_t kind) {
  auto stream = backend_->device().make_stream(static_cast<stream_kind>(kind));
  if (!stream) return std::move(stream.error());
  auto fresh = std::make_shared<device_lane>(backend_, std::move(*stream), records_[kind],
                                             timelines_[kind], std::this_thread::get_id());
  fresh->actor_ = spawn_on(system_, worker_, &stream_actor, fresh);
  auto before = std::exchange(lanes_[kind], std::move(fresh));
  if (before != nullptr) failed_.push_back(before);
  if (static_cast<stream_kind>(kind) != stream_kind::compute) return {};
  if (scratch_) before->take_back(std::exchange(scratch_, {}), {});  // it is the old stream's
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

void device_streams::keep_until(device_event e, std::shared_ptr<const void> what) {
  kept_.emplace_back(std::move(e), std::move(what));
}

void device_streams::end_actors() {
  if (collector_) tell(nullptr, std::exchange(collector_, nullptr), end_actor{});
  for (auto* all : {&lanes_, &failed_})
    for (auto& l : *all)
      if (l != nullptr)
        if (const auto to = l->take_actor()) tell(nullptr, to, end_actor{});
}

void device_streams::synchronize() noexcept {
  for (auto* all : {&lanes_, &failed_})
    for (auto& l : *all)
      if (l != nullptr) (void)l->stream().synchronize();
  kept_.clear();
}

}  // namespace troupe
