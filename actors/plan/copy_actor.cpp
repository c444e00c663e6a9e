// A copy between the memory of the host and of a device, or of two devices of a node, on the copy
// streams of its device.
//
//   in      host -> device, on copy_in; passed on at once, with its event. The host's tensor is
//           held until it has been read
//   across  another device -> this one, on copy_in; likewise
//   out     device -> host, on copy_out; passed on when the device says that it is done: the host's
//           consumers are the ones who wait
//
//   message       from               effect
//   tensor_ready  producer           enqueue the copy, while there is room for what comes of it
//   credit        consumer           the same
//   device_done   device             in: what the program fed was read, and may go. out: pass on
//                                    what has arrived
//
// CY-1  What it reads on a device is waited for by the copy stream, and comes back with the copy's
//       event.
// CY-2  out: as many copies are on their way as the edge behind it has credits; items are passed on
//       in order.
// CY-3  Where the plan looks for NaN, it is what leaves a device that is looked at.
// CY-4  in: what another process sent, or an op of the host made, lies in page-locked memory, as
//       many buffers as are in use at once (devices/memory/landing_pool.hpp), and out: what goes to
//       one is sent out of the buffer that the device copied to, one for each that may be on its
//       way; so neither is copied on the host.
// CY-5  out: nothing is passed on once a stream of the part has failed, here or on another device,
//       where what is copied may have come from (DS-8).
// Threading: the device's worker.

#include "troupe/actors/base/tell.hpp"
#include "troupe/actors/plan/device_failures.hpp"
#include "troupe/actors/plan/device_streams.hpp"
#include "troupe/actors/plan/port_actor.hpp"
#include "troupe/devices/host/loops/finite.hpp"
#include "troupe/devices/memory/landing_pool.hpp"
#include "troupe/devices/memory/pinned_pool.hpp"
#include "troupe/runtime/plan/segment.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

namespace troupe {

namespace {

class copy_logic : public port_logic {
 public:
  using port_logic::port_logic;

 protected:
  result<void> open_on(stream_kind kind) {
    streams_ = part_->devices.at(device_of(self_plan().stream));
    if (auto ok = streams_->open(part_->part, *part_->lanes); !ok) return ok;
    lane_ = streams_->lane(kind);
    name_ = streams_->keep_name(self_plan().name);
    credits_ = 1;
    for (const auto e : self_plan().outputs[0])
      credits_ = std::max(credits_, part_->job_plan->edges[e].credits);
    return {};
  }

  device_stream& stream() { return lane_->stream(); }

  // What a copy that is not told of may be at work with.
  void keep(std::vector<tensor> used) { streams_->keep_behind(*lane_, std::move(used)); }

  // This actor is told device_done, once what has been enqueued is done.
  result<void> tell_when_done(std::uint64_t number) {
    return stream().call_host([to = caf::actor_cast<port_actor>(&self_), number] {
      tell(nullptr, to, device_done{number});
    });
  }

  error at_line(error e) const {
    if (!self_plan().source.file.empty()) e.at(self_plan().source.file, self_plan().source.line);
    return e;
  }

  std::shared_ptr<device_streams> streams_;
  std::shared_ptr<device_lane> lane_;
  std::string_view name_;
  std::uint32_t credits_ = 1;
};

// In, and across.
class copy_in_logic final : public copy_logic {
 public:
  using copy_logic::copy_logic;
  ~copy_in_logic() override {
    if (!held_.empty())
      streams_->keep_behind(*lane_, std::make_shared<decltype(held_)>(std::move(held_)));
    if (!landed_.empty())
      streams_->keep_behind(*lane_, std::make_shared<decltype(landed_)>(std::move(landed_)));
  }

 private:
  void wire_more(const std::shared_ptr<const part_handles>& handles) override {
    const auto maker = maker_of(*part_->job_plan, self_plan());
    if (const auto at = handles->landings.find({maker.actor, maker.port});
        at != handles->landings.end())
      landing_ = at->second;
  }

  const planned_edge& in_edge() const { return part_->job_plan->edges[self_plan().inputs[0]]; }

  result<void> open() override {
    if (auto ok = open_on(stream_kind::copy_in); !ok) return ok;
    // CY-4: what one step needs; more as it turns out that more are on their way.
    for (std::uint32_t i = 0; landing_ != nullptr && i <= in_edge().credits; ++i)
      (void)landing_->grow(streams_->shared_backend());
    pool_.emplace(self_plan().output_specs[0].size_bytes(), 1 + credits_, stream(), lane_,
                  self_plan().name);
    return {};
  }

  void advance() override {
    while (is_started_ && !is_done() && !has_failed_ && !must_wait()) fire();
  }

  void fire() {
    busy_mark busy(*this);
    // What the item's producer wrote is read on the stream's thread, outside of CAF.
    after_message();
    auto i = ports_.in[0].queue.pop();
    const auto t = i.t;
    tensor out;
    if (t.dead == 0) {
      lane_->label(subject(), t.step);
      auto copied = copy(std::move(i.value));
      if (!copied) return fail(at_line(std::move(copied.error())));
      out = std::move(*copied);
    }
    emit(0, t, std::move(out));
    give_back(0);
    update_queue();
    count_firing(t);
  }

  result<tensor> copy(tensor from) {
    const bool is_across = self_plan().copy == copy_kind::across;
    if (!from || (from.on_device() != nullptr) != is_across)
      return error(error_code::failed,
                   "the tensor that arrived is not in the memory that it is "
                   "copied from");
    while (!landed_.empty() && landed_.front().first.is_done()) landed_.pop_front();
    newest_events waits;
    auto to = pool_->take(from.spec(), waits);
    if (!to) return std::move(to.error());
    if (is_across) waits.add(from.on_device()->written());
    if (auto ok = lane_->wait(waits); !ok) return std::move(ok.error());
    const auto kind = is_across          ? memory_kind::device
                      : from.is_pinned() ? memory_kind::pinned
                                         : memory_kind::pageable;
    if (kind == memory_kind::pageable && landing_ != nullptr)
      (void)landing_->grow(streams_->shared_backend());
    if (auto ok = stream().copy(name_, to->bytes(), memory_kind::device,
                                std::as_const(from).bytes(), kind);
        !ok)
      return std::move(ok.error());
    auto done = stream().record();
    if (!done) return keep({*to, std::move(from)}), std::move(done.error());
    to->on_device()->written(*done);
    lane_->count(from.size_bytes(), 0);
    if (is_across) {
      from.on_device()->read_until(*done);
      return to;
    }
    if (landing_ != nullptr && kind == memory_kind::pinned) {
      landed_.emplace_back(std::move(*done), std::move(from));
      return to;
    }
    held_.emplace_back(++copies_, std::move(from));
    if (auto ok = tell_when_done(copies_); !ok) return std::move(ok.error());
    return to;
  }

  void on_device_done(const device_done& m) override {
    while (!held_.empty() && held_.front().first <= m.number) held_.pop_front();
  }

  std::optional<device_buffer_pool> pool_;
  std::shared_ptr<landing_pool> landing_;              // null: it comes from the program
  std::deque<std::pair<std::uint64_t, tensor>> held_;  // of the host, until it has been read
  // Buffers of the landing, likewise. Nobody waits for one of them in particular, so that they are
  // looked at when the next one comes, which costs no call of the host.
  std::deque<std::pair<device_event, tensor>> landed_;
  std::uint64_t copies_ = 0;
};

class copy_out_logic final : public copy_logic {
 public:
  using copy_logic::copy_logic;
  ~copy_out_logic() override {
    if (!under_way_.empty())
      streams_->keep_behind(*lane_, std::make_shared<decltype(under_way_)>(std::move(under_way_)));
  }

 private:
  struct under_way {
    tag t;
    tensor value;  // of the host; none of a dead token
    std::uint64_t number = 0;
  };

  result<void> open() override {
    if (auto ok = open_on(stream_kind::copy_out); !ok) return ok;
    // A program may keep what it fetches for as long as it likes: then what comes next is of
    // ordinary memory (PI-1).
    std::size_t sent = 0;  // to other processes: twice the credits of the edge may be on their way
    for (const auto e : self_plan().outputs[0]) {
      const auto& to = part_->job_plan->actors[part_->job_plan->edges[e].to.actor];
      if (to.kind == actor_kind::send)
        sent += 2 * std::size_t{part_->job_plan->edges[to.outputs[0][0]].credits};
    }
    pool_.emplace(self_plan().output_specs[0].size_bytes(), 1 + credits_ + sent,
                  streams_->shared_backend());
    return {};
  }

  void advance() override {
    if (!is_started_ || has_failed_) return;
    do {
      while (!has_failed_ && under_way_.size() < credits_ && !ports_.in[0].queue.is_empty())
        begin();
    } while (!has_failed_ && !is_done() && pass_on());  // which makes room
    if (has_failed_ || is_done()) return;
    // The device does.
    if (!under_way_.empty() && under_way_.front().number > done_)
      return record_.enter(actor_state::running);
    if (under_way_.empty()) record_.enter(actor_state::waiting_for_input, 0);
  }

  // CY-2.
  void begin() {
    busy_mark busy(*this);
    auto i = ports_.in[0].queue.pop();
    tensor to;
    if (i.t.dead == 0) {
      lane_->label(subject(), i.t.step);
      auto copied = copy(i.value);
      if (!copied) return fail(at_line(std::move(copied.error())));
      to = std::move(*copied);
    }
    under_way_.push_back({i.t, std::move(to), i.t.dead == 0 ? copies_ : 0});
    i.value = tensor();
    give_back(0);
    update_queue();
  }

  result<tensor> copy(const tensor& from) {
    auto* memory = from ? from.on_device() : nullptr;
    if (memory == nullptr)
      return error(error_code::failed, "the tensor that arrived is not in the device's memory");
    if (auto ok = lane_->wait(memory->written()); !ok) return std::move(ok.error());
    auto to = pool_->take(from.spec());
    const auto kind = to.is_pinned() ? memory_kind::pinned : memory_kind::pageable;
    if (auto ok = stream().copy(name_, to.bytes(), kind, from.bytes(), memory_kind::device); !ok)
      return std::move(ok.error());
    auto done = stream().record();
    if (!done) return keep({to, from}), std::move(done.error());
    memory->read_until(std::move(*done));
    lane_->count(0, from.size_bytes());
    if (auto ok = tell_when_done(++copies_); !ok) return keep({to}), std::move(ok.error());
    return to;
  }

  // False: nothing has arrived, or nobody has room.
  bool pass_on() {
    if (under_way_.empty() || under_way_.front().number > done_) return false;
    for (std::uint32_t o = 0; o < ports_.out.size(); ++o)
      if (!ports_.acquire(o)) {
        record_.enter(actor_state::waiting_for_credit,
                      static_cast<std::uint32_t>(ports_.in.size()) + o);
        return false;
      }
    busy_mark busy(*this);
    auto u = std::move(under_way_.front());
    under_way_.pop_front();
    if (u.value && !is_fine(u)) return false;
    emit(0, u.t, std::move(u.value));
    count_firing(u.t);
    return true;
  }

  static bool is_of_collectives(const device_lane& l) {
    return l.stream().kind() == stream_kind::collective;
  }

  void on_device_done(const device_done& m) override {
    if (has_failed_) return;
    // CY-5. By now all actors of the part have opened.
    if (lanes_.empty()) lanes_ = part_->lanes->all();
    if (const auto* cause = cause_among(lanes_)) {
      auto ok = cause->stream().failed();
      if (ok) return;  // it is given up: its rank has been told why, or has told
      return is_of_collectives(*cause) ? fail_derived(at_line(std::move(ok.error())))
                                       : fail(at_line(std::move(ok.error())));
    }
    done_ = std::max(done_, m.number);
    advance();
  }

  // CY-3.
  bool is_fine(const under_way& u) {
    const auto policy = part_->job_plan->on_nan;
    if (policy == nan_policy::ignore) return true;
    const auto at = first_not_finite(u.value);
    if (!at) return true;
    const auto& from =
        part_->job_plan->actors[part_->job_plan->edges[self_plan().inputs[0]].from.actor];
    auto what = fmt::format(
        "'{}' on {} gives {}, element {} of {}; values that stay on the device are not checked",
        from.name, stream_text(from.stream), not_finite_text(u.value, *at), *at,
        to_string(u.value.spec()));
    if (policy == nan_policy::stop) {
      fail(at_line(error(error_code::failed, std::move(what))));
      return false;
    }
    if (!std::exchange(has_noted_, true))
      note(u.t.step, at_line(error(error_code::failed, std::move(what))).text());
    return true;
  }

  std::optional<pinned_pool> pool_;
  // Of the part, from the first completion on.
  std::vector<std::shared_ptr<device_lane>> lanes_;
  std::deque<under_way> under_way_;
  std::uint64_t copies_ = 0, done_ = 0;  // enqueued, and known to be done
  bool has_noted_ = false;
};

}  // namespace

std::unique_ptr<port_logic> make_copy_logic(port_shell& s, std::shared_ptr<const part_context> p,
                                            std::uint32_t a) {
  if (p->job_plan->actors[a].copy == copy_kind::out)
    return std::make_unique<copy_out_logic>(s, std::move(p), a);
  return std::make_unique<copy_in_logic>(s, std::move(p), a);
}

}  // namespace troupe
