// One rank of an all-reduce among devices: gradients that are made on this node's device are added
// up with those of the other ranks' devices, and never leave them. One communicator, on the
// collective stream of the device, takes all buckets of its group, each when its turn has come.
//
//   tensor_ready   producer (own ports)   a gradient, whose kernel may still be in the queue: keep
//                                         it; begin with its bucket
//                  link (port of rank 0)  the id of the communicator
//   credit         consumer               room for results
//                  link                   rank 0: that rank has got the id, and begun
//   device_done    communicator (0)       it is settled, or has failed
//                  the stream (1)         this rank has done all of its collectives
//   peer_lost      supervisor             a rank's node is gone: abort, unless nothing of it is
//                                         missed any more
//
// DR-1  Buckets are enqueued step by step, in the order of the plan, which is that of all ranks: so
//       no two ranks wait for each other in different collectives.
// DR-2  Waiting is a state: for the id, for the other ranks, for a launch that is not settled
//       (devices/device/device_collective.hpp, DC-1), for gradients, for room.
// DR-3  A result is passed on with its event while its collective is in the queue, and gradients
//       carry the event of their last reader.
// DR-4  Sums are ((a + b) + c) + ... in the order of the workers (planned_collective::is_in_order):
//       all parts are gathered, piece by piece, and every rank adds them up.
// DR-5  What an aborted collective leaves behind reaches nobody outside of the device: its lane is
//       given up before it is aborted, which this actor alone does (actors/plan/copy_actor.cpp
//       looks there), and the next job has another one.
// DR-6  Once its own collectives have run, a rank finishes its communicator (DC-6), and has ended
//       when that has: or when it has done its own, and another is lost. So no rank's end breaks
//       off what another has under way.
// DR-7  A failure that may follow from another rank's end (DC-7) is told as derived; what has
//       failed here is told as the cause, also where the communicator knows only what followed.
// Ends: as every port actor; its communicator is aborted then if DR-6 has not come.
// Threading: the device's worker.

#include "troupe/actors/base/tell.hpp"
#include "troupe/actors/plan/device_failures.hpp"
#include "troupe/actors/plan/device_streams.hpp"
#include "troupe/actors/plan/port_actor.hpp"
#include "troupe/runtime/plan/segment.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <utility>

namespace troupe {

namespace {

constexpr std::size_t summands_max = 8;             // of one kernel
constexpr std::uint64_t settled = 0, own_done = 1;  // numbers of device_done

std::int64_t aligned(std::int64_t elements) {
  return (elements + piece_alignment - 1) / piece_alignment * piece_alignment;
}
std::size_t bytes_of(std::int64_t elements) {
  return static_cast<std::size_t>(elements) * sizeof(float);
}
tensor_spec vector_of(std::int64_t elements) { return {dtype::f32, {elements}}; }

class device_collective_logic final : public port_logic {
 public:
  using port_logic::port_logic;
  ~device_collective_logic() override {
    if (lane_ == nullptr) return;
    if (communicator_ && !is_settled_) break_off();
    communicator_.reset();
    let_go();
    if (scratch_) lane_->take_back(scratch_, {});
  }

 private:
  const planned_collective& collective() const { return *self_plan().collective; }
  const collective_spec& spec() const { return collective().spec; }
  std::uint32_t own_parts() const { return static_cast<std::uint32_t>(collective().own_parts()); }
  std::uint32_t port_of(std::uint32_t part, std::uint32_t tensor) const {
    return part * collective().tensors + tensor;
  }

  struct bucket {
    std::uint32_t first = 0, last = 0;  // of its tensors
    std::vector<std::int64_t> offsets;  // of each, in its vector
    std::int64_t elements = 0;
    bool has_gaps = false;
    std::optional<device_buffer_pool> results;
    bool is_packed() const { return last - first > 1; }
  };
  // The bucket whose turn it is, once it has begun.
  struct under_way {
    tag t;
    tensor result;
    std::vector<tensor> gradients;  // by part and tensor of the bucket
  };

  // --- beginning ---

  void wire_more(const std::shared_ptr<const part_handles>& handles) override {
    const auto& plan = *part_->job_plan;
    if (!collective().peers_from.empty()) {
      id_edge_ = self_plan().inputs[collective().own_inputs()];
      first_ = handles->links[plan.actors[plan.edges[id_edge_].from.actor].task];
    }
    for (std::size_t i = 0; i < collective().peers_to.size(); ++i) {
      const auto edge = self_plan().outputs[collective().tensors + i].front();
      others_.push_back({edge, handles->links[plan.actors[plan.edges[edge].to.actor].task], false});
    }
    ports_.in.resize(collective().own_inputs());
    while (!ports_.out.empty() && ports_.out.back().output >= collective().tensors)
      ports_.out.pop_back();
  }

  result<void> open() override {
    const auto device = device_of(self_plan().stream);
    streams_ = part_->devices.at(device);
    if (auto ok = streams_->open(part_->part, *part_->lanes); !ok) return ok;
    lane_ = streams_->lane(stream_kind::collective);
    part_->lanes->add(lane_);
    name_ = streams_->keep_name(self_plan().name);
    for (const auto& parts : spec().parts)
      slots_ = std::max(slots_, static_cast<std::uint32_t>(parts.size()));
    const std::span all(self_plan().output_specs.data(), collective().tensors);
    std::int64_t largest = 0;
    for (const auto& [first, last] : buckets_of(collective())) {
      auto& b = buckets_.emplace_back();
      b.first = first, b.last = last;
      const auto tensors = all.subspan(first, last - first);
      for (std::size_t t = 0; t < tensors.size(); ++t) {
        b.offsets.push_back(offset_in_vector(tensors, t));
        b.has_gaps = b.has_gaps ||
                     (t > 0 && b.offsets[t] != b.offsets[t - 1] + tensors[t - 1].shape.elements());
      }
      b.elements = offset_in_vector(tensors, tensors.size());
      largest = std::max(largest, b.elements);
      std::size_t credits = 1;
      for (auto t = first; t < last; ++t)
        for (const auto e : self_plan().outputs[t])
          credits = std::max<std::size_t>(credits, part_->job_plan->edges[e].credits);
      b.results.emplace(bytes_of(b.elements), 1 + credits, stream(), lane_, self_plan().name);
    }
    const auto gathered =
        collective().is_in_order
            ? bytes_of(aligned(std::min(largest, spec().piece_elements))) * slots_ * spec().ranks()
            : 0;
    if (gathered > 0) {
      auto memory = stream().allocate(gathered, self_plan().name);
      if (!memory) return out_of_memory(memory.error());
      scratch_ = *memory;
    }
    return make_kernels();
  }

  // For every size that there will be, so that nothing is compiled on the way.
  result<void> make_kernels() {
    for (const auto& b : buckets_) {
      if (collective().is_in_order) {
        const auto parts = parts_of(spec());
        for (std::int64_t at = 0; at < b.elements; at += spec().piece_elements)
          if (auto ok = make_sums(parts, std::min(spec().piece_elements, b.elements - at)); !ok)
            return ok;
      } else if (own_parts() > 1) {
        for (auto t = b.first; t < b.last; ++t)
          if (auto ok = make_sums(own_parts(), self_plan().output_specs[t].shape.elements()); !ok)
            return ok;
      }
    }
    return {};
  }
  result<void> make_sums(std::size_t summands, std::int64_t elements) {
    for (std::size_t at = 0; at < summands;) {
      const auto n = summands_from(at, summands);
      auto& kernel = sums_[{n + (at > 0 ? 1 : 0), elements}];
      if (kernel == nullptr) {
        auto made = make_sum(n + (at > 0 ? 1 : 0), elements);
        if (!made) return std::move(made.error());
        kernel = std::move(*made);
      }
      at += n;
    }
    return {};
  }
  // How many a kernel takes beside the sum so far.
  static std::size_t summands_from(std::size_t at, std::size_t summands) {
    return std::min(summands - at, at == 0 ? summands_max : summands_max - 1);
  }

  result<std::unique_ptr<device_kernel>> make_sum(std::size_t summands, std::int64_t elements) {
    expects(summands > 1, "a sum has two summands at least");
    std::vector<kernel_step> steps;
    for (std::size_t i = 1; i < summands; ++i)
      steps.push_back(
          {"add",
           {},
           {i == 1 ? 0 : -static_cast<std::int32_t>(i) + 1, static_cast<std::int32_t>(i)},
           dtype::f32});
    auto made = streams_->backend().make_kernel(steps);
    if (!made) return made;
    const std::vector<tensor_spec> in(summands, vector_of(elements));
    const auto out = vector_of(elements);
    if (auto ok = (*made)->prepare(in, {&out, 1}); !ok) return std::move(ok.error());
    if ((*made)->workspace_bytes() != 0)
      return error(error_code::failed,
                   fmt::format("{}: the kernel that adds up {} vectors needs a workspace, which it "
                               "does not get",
                               streams_->name(), summands));
    return made;
  }

  // DR-2. False: not yet.
  bool has_begun() {
    if (communicator_) return true;
    const bool is_first = spec().rank == 0;
    if (is_first && !id_) {
      auto made = streams_->backend().make_communicator_id();
      if (!made) return fail(without_collectives(made.error())), false;
      id_ = *made;
      auto bytes = tensor::make(piece_spec(collective()));
      std::memcpy(bytes.bytes().data(), id_->bytes.data(), id_->bytes.size());
      for (const auto& o : others_)
        tell(self_.context(), o.link,
             send_piece{part_->job, o.edge, 0, tag{.step = fired_}, bytes, 0, bytes.size_bytes(),
                        0});
    }
    if (!id_) {
      record_.enter(actor_state::waiting_for_input,
                    static_cast<std::uint32_t>(collective().own_inputs()));
      return false;
    }
    auto begun = streams_->backend().begin_communicator(
        *id_, static_cast<int>(spec().rank), static_cast<int>(spec().ranks()),
        [to = caf::actor_cast<port_actor>(&self_)] { tell(nullptr, to, device_done{settled}); });
    if (!begun) return fail(without_collectives(begun.error())), false;
    communicator_ = std::move(*begun);
    if (!is_first) tell(self_.context(), first_, return_credit{part_->job, id_edge_, 1});
    return true;
  }
  error without_collectives(const error& e) const {
    return at_line(error(
        e.code(),
        fmt::format("{}; --without device_collectives adds up gradients on the host", e.text())));
  }

  // --- messages ---

  void on_tensor(tensor_ready& m) override {
    if (m.port < collective().own_inputs()) return port_logic::on_tensor(m);
    if (has_failed_ || is_aborted_) return;
    communicator_id id;
    if (!m.value || m.value.size_bytes() != id.bytes.size())
      return fail(error(error_code::failed, "rank 0 sent something that is not a communicator id"));
    std::memcpy(id.bytes.data(), std::as_const(m.value).bytes().data(), id.bytes.size());
    id_ = id;
    advance();
  }

  void on_credit(const credit& m) override {
    const auto first = ports_.out.size();
    if (m.outlet < first) return port_logic::on_credit(m);
    if (m.outlet - first < others_.size()) others_[m.outlet - first].has_come = true;
    if (!has_failed_) advance();
  }

  void on_device_done(const device_done& m) override {
    if (has_failed_ || is_aborted_ || is_settled_) return;
    if (m.number == settled) return advance();
    if (auto ok = stream().failed(); !ok) return lost(ok.error());
    if (auto ok = communicator_->finish(); !ok) return lost(ok.error());
    is_finishing_ = true;
    advance();
  }

  void on_peer_lost(const peer_lost&) override {
    if (has_failed_ || is_aborted_ || is_settled_) return;
    if (has_done_own()) return end_well();
    is_aborted_ = true;
    break_off();
    record_.enter(actor_state::ended);
  }

  // DR-6. A stream that has failed has done its events, too.
  bool has_done_own() const {
    return is_done() && lane_ != nullptr && last_.is_done() && lane_->stream().failed();
  }
  void end_well() {
    is_settled_ = true;
    report_done();
  }
  bool is_settled() const override { return is_settled_; }

  // DR-7. Whether all of its own is done is asked before it is broken off: then everything is.
  void lost(const error& told) {
    if (has_done_own()) return end_well();
    const auto own = lane_ == nullptr ? result<void>() : lane_->stream().failed();
    const auto& e = !own && told.code() != error_code::usage ? own.error() : told;
    break_off();
    const auto text = was_ready_ ? at_line(e) : without_collectives(e);
    e.code() == error_code::unreachable ? fail_derived(text) : fail(text);
  }

  // DR-5, in this order.
  void break_off() {
    if (lane_ == nullptr) return;
    lane_->give_up();
    if (communicator_) communicator_->abort();
    let_go();
  }

  void let_go() {
    work_.clear();
    if (!now_) return;
    streams_->keep_behind(*lane_, std::make_shared<under_way>(std::move(*now_)));
    now_.reset();
  }

  // --- DR-1 ---

  void advance() override {
    if (!is_started_ || has_failed_ || is_aborted_ || is_settled_ || !has_begun()) return;
    while (!has_failed_) {
      auto ready = communicator_->is_ready();
      if (!ready) return lost(ready.error());
      if (!*ready) return show_gang();
      was_ready_ = true;
      if (!work_.empty()) {
        const auto step = std::move(work_.front());
        work_.pop_front();
        if (auto ok = step(); !ok) return lost(ok.error());
      } else if (now_) {
        if (auto ok = finish(); !ok) return lost(ok.error());
      } else if (is_done()) {
        if (is_finishing_) return end_well();
        if (std::exchange(is_at_end_, true)) return;
        if (auto ok = stream().call_host([to = caf::actor_cast<port_actor>(&self_)] {
              tell(nullptr, to, device_done{own_done});
            });
            !ok)
          return lost(ok.error());
      } else {
        if (must_wait_for_bucket()) return;
        begin_bucket();
      }
    }
  }

  void show_gang() {
    const auto missing =
        std::find_if(others_.begin(), others_.end(), [](const auto& o) { return !o.has_come; });
    if (missing == others_.end()) return record_.enter(actor_state::running);
    record_.enter(actor_state::waiting_for_credit,
                  static_cast<std::uint32_t>(self_plan().inputs.size() + ports_.out.size()) +
                      static_cast<std::uint32_t>(missing - others_.begin()));
  }

  bool must_wait_for_bucket() {
    const auto& b = buckets_[next_];
    for (std::uint32_t part = 0; part < own_parts(); ++part)
      for (auto t = b.first; t < b.last; ++t)
        if (ports_.in[port_of(part, t)].queue.is_empty()) {
          record_.enter(actor_state::waiting_for_input, port_of(part, t));
          return true;
        }
    for (auto t = b.first; t < b.last; ++t)
      for (const auto o : outlets_of_[t])
        if (!ports_.acquire(o)) {
          record_.enter(actor_state::waiting_for_credit,
                        static_cast<std::uint32_t>(self_plan().inputs.size()) + o);
          return true;
        }
    return false;
  }

  void begin_bucket() {
    busy_mark busy(*this);
    auto& b = buckets_[next_];
    under_way u;
    newest_events needed;
    for (std::uint32_t part = 0; part < own_parts(); ++part)
      for (auto t = b.first; t < b.last; ++t) {
        const auto& head = ports_.in[port_of(part, t)].queue.front();
        if (head.t.dead != 0)
          return fail(error(error_code::failed,
                            "a contribution was left out, but a collective needs one "
                            "from every worker"));
        if (head.value.spec() != self_plan().output_specs[t] || head.value.on_device() == nullptr)
          return fail(error(error_code::failed,
                            fmt::format("worker {} contributes {}, but the collective takes {} in "
                                        "the device's memory",
                                        collective().workers[part], to_string(head.value.spec()),
                                        to_string(self_plan().output_specs[t]))));
        u.t = head.t;
        u.gradients.push_back(head.value);
        needed.add(head.value.on_device()->written());
      }
    auto result = b.results->take(
        b.is_packed() ? vector_of(b.elements) : self_plan().output_specs[b.first], needed);
    if (!result) return fail(out_of_memory(result.error()));
    u.result = std::move(*result);
    if (auto ok = lane_->wait(needed); !ok) return lost(ok.error());
    now_ = std::move(u);
    collective().is_in_order ? gather_and_add(b) : reduce(b);
  }

  // --- what a bucket is made of; work that is enqueued step by step, since each collective has to
  // settle ---

  std::span<const std::byte> gradient(const bucket& b, std::uint32_t part,
                                      std::uint32_t tensor) const {
    return std::as_const(now_->gradients[part * (b.last - b.first) + tensor]).bytes();
  }
  std::span<std::byte> result_from(std::int64_t offset, std::int64_t elements) {
    return {now_->result.bytes().data() + bytes_of(offset), bytes_of(elements)};
  }
  std::span<std::byte> scratch_from(std::size_t offset_bytes, std::size_t bytes) const {
    return {scratch_.bytes + offset_bytes, bytes};
  }
  std::int64_t elements_of(const bucket& b, std::uint32_t tensor) const {
    return self_plan().output_specs[b.first + tensor].shape.elements();
  }

  void add_copy(std::span<std::byte> to, std::span<const std::byte> from) {
    work_.push_back([this, to, from] {
      return stream().copy(name_, to, memory_kind::device, from, memory_kind::device);
    });
  }

  // The device's own all-reduce, of the sum of the own parts.
  void reduce(const bucket& b) {
    auto from = std::span<const std::byte>(result_from(0, b.elements));
    if (b.has_gaps)
      work_.push_back([this, &b] { return stream().fill_zero(name_, result_from(0, b.elements)); });
    if (own_parts() == 1 && !b.is_packed()) {
      from = gradient(b, 0, 0);
    } else {
      for (std::uint32_t t = 0; t < b.last - b.first; ++t) {
        std::vector<std::span<const std::byte>> parts;
        for (std::uint32_t p = 0; p < own_parts(); ++p) parts.push_back(gradient(b, p, t));
        const auto to = result_from(b.offsets[t], elements_of(b, t));
        if (parts.size() == 1)
          add_copy(to, parts[0]);
        else
          add_sum(std::move(parts), to);
      }
    }
    work_.push_back([this, from, to = result_from(0, b.elements)] {
      return communicator_->all_reduce(stream(), name_, from, to, dtype::f32,
                                       device_reduction::sum);
    });
  }

  // DR-4. The parts of a rank lie one after the other, with as much room as the rank with the most
  // has.
  void gather_and_add(const bucket& b) {
    for (std::int64_t at = 0; at < b.elements; at += spec().piece_elements) {
      const auto n = std::min(spec().piece_elements, b.elements - at);
      const auto room = bytes_of(aligned(n)), own = spec().rank * slots_ * room;
      std::span<const std::byte> from = scratch_from(own, slots_ * room);
      if (slots_ == 1 && !b.is_packed() && bytes_of(n) == room) {
        from = gradient(b, 0, 0).subspan(bytes_of(at), room);
      } else {
        for (std::uint32_t p = 0; p < own_parts(); ++p) copy_piece(b, p, at, n, own + p * room);
      }
      work_.push_back([this, from, all = scratch_from(0, spec().ranks() * slots_ * room)] {
        return communicator_->all_gather(stream(), name_, from, all, dtype::f32);
      });
      std::vector<std::span<const std::byte>> parts(parts_of(spec()));
      for (std::size_t r = 0; r < spec().ranks(); ++r)
        for (std::size_t p = 0; p < spec().parts[r].size(); ++p)
          parts[spec().parts[r][p]] = scratch_from((r * slots_ + p) * room, bytes_of(n));
      add_sum(std::move(parts), result_from(at, n));
    }
  }

  // Elements [at, at + n) of a part's vector.
  void copy_piece(const bucket& b, std::uint32_t part, std::int64_t at, std::int64_t n,
                  std::size_t to) {
    for (std::uint32_t t = 0; t < b.last - b.first; ++t) {
      const auto begin = std::max(at, b.offsets[t]),
                 end = std::min(at + n, b.offsets[t] + elements_of(b, t));
      if (begin >= end) continue;
      add_copy(scratch_from(to + bytes_of(begin - at), bytes_of(end - begin)),
               gradient(b, part, t).subspan(bytes_of(begin - b.offsets[t]), bytes_of(end - begin)));
    }
  }

  void add_sum(std::vector<std::span<const std::byte>> parts, std::span<std::byte> to) {
    work_.push_back([this, parts = std::move(parts), to]() -> result<void> {
      std::vector<std::span<const std::byte>> operands;
      for (std::size_t at = 0; at < parts.size();) {
        const auto n = summands_from(at, parts.size());
        operands.clear();
        if (at > 0) operands.push_back(to);
        operands.insert(operands.end(), parts.begin() + static_cast<std::ptrdiff_t>(at),
                        parts.begin() + static_cast<std::ptrdiff_t>(at + n));
        auto& kernel =
            sums_.at({operands.size(), static_cast<std::int64_t>(to.size() / sizeof(float))});
        if (auto ok = kernel->enqueue(stream(), name_, now_->t, operands, {&to, 1}, {}); !ok)
          return ok;
        at += n;
      }
      return {};
    });
  }

  // DR-3.
  result<void> finish() {
    busy_mark busy(*this);
    auto& b = buckets_[next_];
    auto done = stream().record();
    if (!done) return std::move(done.error());
    now_->result.on_device()->written(*done);
    for (const auto& g : now_->gradients) g.on_device()->read_until(*done);
    last_ = *done;
    lane_->count(bytes_of(b.elements), bytes_of(b.elements));
    const auto u = std::move(*now_);
    now_.reset();
    for (auto t = b.first; t < b.last; ++t)
      emit(t, u.t,
           b.is_packed()
               ? u.result.part(bytes_of(b.offsets[t - b.first]), self_plan().output_specs[t])
               : u.result);
    for (std::uint32_t part = 0; part < own_parts(); ++part)
      for (auto t = b.first; t < b.last; ++t) {
        ports_.in[port_of(part, t)].queue.pop();
        give_back(port_of(part, t));
      }
    update_queue();
    next_ = (next_ + 1) % buckets_.size();
    if (next_ == 0)
      count_firing(u.t);
    else
      trace(trace_kind::firing, u.t.step, b.first);
    return {};
  }

  device_stream& stream() { return lane_->stream(); }

  error out_of_memory(const error& e) const {
    return at_line(no_memory(e, *lane_, *part_->job_plan, self_plan()));
  }
  error at_line(error e) const {
    if (!self_plan().source.file.empty()) e.at(self_plan().source.file, self_plan().source.line);
    return e;
  }

  struct other_rank {
    std::uint32_t edge = 0;
    caf::actor link;
    bool has_come = false;
  };
  std::vector<other_rank> others_;  // of rank 0
  caf::actor first_;                // of all others: the link to rank 0
  std::uint32_t id_edge_ = 0;
  std::optional<communicator_id> id_;

  std::shared_ptr<device_streams> streams_;
  std::shared_ptr<device_lane> lane_;
  std::string_view name_;
  std::unique_ptr<device_communicator> communicator_;
  std::uint32_t slots_ = 1;  // parts of the rank that has the most
  std::vector<bucket> buckets_;
  // By summands and elements.
  std::map<std::pair<std::size_t, std::int64_t>, std::unique_ptr<device_kernel>> sums_;
  device_memory scratch_;  // what is gathered
  std::size_t next_ = 0;   // bucket
  std::optional<under_way> now_;
  std::deque<std::function<result<void>()>> work_;
  device_event last_;  // behind the last collective
  // All of its collectives are enqueued, and it will be told when they have run.
  bool is_at_end_ = false;
  bool was_ready_ = false;  // all ranks have found each other
  bool is_finishing_ = false, is_settled_ = false, is_aborted_ = false;
};

}  // namespace

std::unique_ptr<port_logic> make_device_collective_logic(port_shell& s,
                                                         std::shared_ptr<const part_context> p,
                                                         std::uint32_t a) {
  return std::make_unique<device_collective_logic>(s, std::move(p), a);
}

}  // namespace troupe
