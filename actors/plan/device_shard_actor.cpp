// A parameter shard in the memory of a device: gradients that are made there, and versions that are
// read there, never leave it. What happens when is decided by runtime/shards/shard_state.hpp, as
// for a shard of the host (shard_actor.cpp); an apply is a step of the optimizer in the compute
// stream.
//
//   tensor_ready  worker      a gradient: keep it until its apply
//                 rank        what a collective of devices made of all workers' gradients
//                             (device_collective_actor.cpp)
//   credit        consumer    a version may go out
//   peer_lost     supervisor  a worker is lost
//
// DP-1  A version is written once, into memory that nobody reads, and passed on while its step is
//       in the queue. The optimizer's state is changed in place: the stream orders it.
// DP-2  Nothing of it is kept after the job (runtime/plan/segment.hpp, may_be_on_device): no
//       recovery, checkpoint or replica.
// Threading: the device's worker.

#include "troupe/actors/base/tell.hpp"
#include "troupe/actors/plan/device_failures.hpp"
#include "troupe/actors/plan/device_streams.hpp"
#include "troupe/actors/plan/shard_port_logic.hpp"
#include "troupe/runtime/graph/initializers.hpp"
#include "troupe/runtime/plan/segment.hpp"
#include "troupe/runtime/shards/shard_update.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

namespace troupe {

namespace {

class device_shard_logic final : public shard_port_logic {
 public:
  using shard_port_logic::shard_port_logic;

 private:
  result<void> open() override {
    if (auto ok = open_ports(); !ok) return ok;
    streams_ = part_->devices.at(device_of(self_plan().stream));
    if (auto ok = streams_->open(part_->part, *part_->lanes); !ok) return ok;
    compute_ = streams_->lane(stream_kind::compute);
    name_ = streams_->keep_name(self_plan().name);
    gradients_ = gradient_ports(spec_);
    applied_.assign(workers_, 0);
    state_.emplace(spec_, version_slots(spec_));
    versions_.resize(state_->slots());
    std::size_t out = 1;
    for (const auto& port : self_plan().outputs) {
      leaves_stream_.push_back(false);
      for (const auto e : port) {
        out = std::max<std::size_t>(out, part_->job_plan->edges[e].credits);
        const auto& to = part_->job_plan->actors[part_->job_plan->edges[e].to.actor];
        if (to.kind != actor_kind::op || to.stream != self_plan().stream)
          leaves_stream_.back() = true;
      }
    }
    pool_.emplace(spec_.spec.size_bytes(), 1 + state_->slots() + slots_.size() + out,
                  compute_->stream(), compute_, self_plan().name);
    if (auto begun = initialize(); !begun) return at_line(begun.error());
    publish();
    return {};
  }

  // The bits of a shard of the host.
  result<void> initialize() {
    auto values = tensor::make(spec_.spec);
    troupe::initialize({values.data<float>(), elements()}, spec_.initializer, spec_.seed,
                       spec_.variable);
    auto first = upload(std::move(values));
    if (!first) return std::move(first.error());
    versions_[0] = std::move(*first);
    for (const auto& slot : slots_) {
      auto filled = tensor::make(spec_.spec);
      std::fill_n(filled.data<float>(), elements(), slot.initial);
      auto made = upload(std::move(filled));
      if (!made) return std::move(made.error());
      optimizer_.push_back(std::move(*made));
    }
    return {};
  }

  result<tensor> upload(tensor from) {
    newest_events none;
    auto to = pool_->take(spec_.spec, none);
    if (!to) return out_of_memory(to.error());
    auto& stream = compute_->stream();
    compute_->label(subject(), 0);
    if (auto ok = stream.copy(name_, to->bytes(), memory_kind::device, std::as_const(from).bytes(),
                              memory_kind::pageable);
        !ok)
      return std::move(ok.error());
    auto done = stream.record();
    if (!done)
      return streams_->keep_behind(*compute_, {*to, std::move(from)}), std::move(done.error());
    to->on_device()->written(*done);
    streams_->keep_until(*done, std::make_shared<const tensor>(std::move(from)));
    return to;
  }

  void on_tensor(tensor_ready& m) override {
    expects(bool(m.value) || m.t.dead != 0, "a gradient is there, or left out");
    record_.count_in(m.value ? m.value.size_bytes() : 0);
    record_.ports[m.port]->count_item();
    auto arrived = state_->on_gradient(m.port, m.t.step, m.t.mark);
    // A sum is a gradient of every worker.
    for (std::uint32_t w = 1; spec_.takes_sums && arrived && w < workers_; ++w)
      arrived = state_->on_gradient(w, m.t.step, m.t.mark);
    if (!arrived) return fail(arrived.error());
    if (*arrived == shard_state::arrival::queued)
      ports_.arrive(m.port, item{m.t, std::move(m.value)});
    else
      give_back(m.port);
    publish();
    advance();
  }

  void on_credit(const credit& m) override {
    if (const auto reader = take_credit(m)) state_->on_credit(*reader);
    advance();
  }

  void on_peer_lost(const peer_lost& m) override {
    if (m.port >= gradients_ || ports_.in[m.port].is_lost) return;
    ports_.in[m.port].is_lost = true;
    if (spec_.update == update_kind::sync) return;  // the job ends, by its coordinator
    if (auto lost = state_->worker_lost(m.port); !lost)
      return fail(std::move(lost.error()).while_doing(m.reason));
    advance();
  }

  void advance() override {
    if (!is_started_ || has_failed_) return;
    while (!has_failed_) {
      const auto action = state_->next();
      if (!action) break;
      std::visit([this](const auto& a) { carry_out(a); }, *action);
    }
    publish();
    if (has_failed_) return;
    if (state_->is_finished()) return report_done();
    show_wait(gradients_);
  }

  void carry_out(const shard_apply& a) {
    busy_mark busy(*this);
    const auto first = a.worker < 0 ? 0 : static_cast<std::size_t>(a.worker);
    const auto last = a.worker < 0 ? workers_ : first + 1;
    const auto last_port = std::min(last, gradients_);
    if (auto ok = apply(a, first, last_port); !ok) {
      std::vector<tensor> used;
      for (auto i = first; i < last_port; ++i) used.push_back(ports_.in[i].queue.front().value);
      streams_->keep_behind(*compute_, std::move(used));
      return fail_by_cause(*this, at_line(ok.error()), *compute_, *part_->lanes);
    }
    for (auto i = first; i < last; ++i) ++applied_[i];
    for (auto i = first; i < last_port; ++i) {
      if (!ports_.in[i].queue.front().value) ++left_out_[i];
      ports_.in[i].queue.pop();
      give_back(static_cast<std::uint32_t>(i));
    }
    update_queue();
    ++fired_;
    record_.count_step();
    trace(trace_kind::apply, a.step,
          a.worker < 0 ? trace_event::everywhere : static_cast<std::uint32_t>(a.worker));
  }

  // DP-1.
  result<void> apply(const shard_apply& a, std::size_t first, std::size_t last) {
    newest_events needed;
    device_update u;
    std::vector<device_buffer*> from_elsewhere;
    for (auto i = first; i < last; ++i) {
      const auto& g = ports_.in[i].queue.front().value;
      if (!g) continue;  // left out by its worker
      if (g.spec() != spec_.spec || g.on_device() == nullptr)
        return error(error_code::failed,
                     fmt::format("the gradient of worker {} is {}, but the variable is {} in the "
                                 "device's memory",
                                 i, to_string(g.spec()), to_string(spec_.spec)));
      u.gradients.push_back(std::as_const(g).bytes());
      if (g.on_device()->writer() == &compute_->stream()) continue;
      needed.add(g.on_device()->written());
      from_elsewhere.push_back(g.on_device());
    }
    auto made = versions_[a.from];
    if (!u.gradients.empty()) {
      auto taken = pool_->take(spec_.spec, needed);
      if (!taken) return out_of_memory(taken.error());
      if (auto ok = enqueue(a, std::move(u), *taken, needed); !ok) return ok;
      if (!from_elsewhere.empty()) {
        auto done = compute_->stream().record();
        if (!done) return std::move(done.error());
        taken->on_device()->written(*done);
        for (auto* g : from_elsewhere) g->read_until(*done);
      }
      made = std::move(*taken);
    }
    versions_[a.to] = std::move(made);
    return {};
  }

  result<void> enqueue(const shard_apply& a, device_update u, tensor& to,
                       const newest_events& needed) {
    if (auto ok = compute_->wait(needed); !ok) return ok;
    const auto before = std::accumulate(applied_.begin(), applied_.end(), std::uint64_t{0});
    const auto step =
        step_of(spec_, count_of(spec_, spec_.update == update_kind::sync ? a.version : before + 1));
    u.values = std::as_const(versions_[a.from]).bytes();
    u.result = to.bytes();
    for (auto& s : optimizer_) u.state.push_back(s.bytes());
    const auto scratch =
        streams_->scratch(streams_->backend().update_workspace_bytes(step, elements()));
    if (!scratch) return out_of_memory(scratch.error());
    compute_->label(subject(), a.step);
    if (auto ok = streams_->backend().enqueue_update(compute_->stream(), name_, step, u, *scratch);
        !ok)
      return ok;
    compute_->count(0, 0);
    return {};
  }

  void carry_out(const shard_claim& a) {
    if (begin_claim(a.reader)) state_->on_credit(a.reader);
  }

  void carry_out(const shard_send& a) {
    // Ops of this stream need no event, which are the readers of nearly every version.
    if (auto* m = versions_[a.slot].on_device(); leaves_stream_[a.reader] && !m->written()) {
      auto done = compute_->stream().record();
      if (!done) return fail(at_line(std::move(done.error())));
      m->written(std::move(*done));
    }
    emit(a.reader, tag{.step = a.item}, versions_[a.slot]);
    trace(trace_kind::emit, a.item, a.reader);
  }

  void carry_out(const shard_cut&) {
    fail(error(error_code::failed,
               fmt::format("variable '{}' is on a device, where it cannot be saved in a checkpoint",
                           spec_.variable)));
  }

  error out_of_memory(const error& e) const {
    return no_memory(e, *compute_, *part_->job_plan, self_plan());
  }
  error at_line(error e) const {
    if (!self_plan().source.file.empty()) e.at(self_plan().source.file, self_plan().source.line);
    return e;
  }

  std::shared_ptr<device_streams> streams_;
  std::shared_ptr<device_lane> compute_;
  std::string_view name_;
  std::optional<device_buffer_pool> pool_;
  std::vector<tensor> versions_;        // by slot of the state
  std::vector<tensor> optimizer_;       // its slots
  std::size_t gradients_ = 0;           // ports of these
  std::vector<std::uint64_t> applied_;  // by worker
  std::vector<bool> leaves_stream_;     // by output port: somebody on another stream takes it
};

}  // namespace

std::unique_ptr<port_logic> make_device_shard_logic(port_shell& s,
                                                    std::shared_ptr<const part_context> p,
                                                    std::uint32_t a) {
  return std::make_unique<device_shard_logic>(s, std::move(p), a);
}

}  // namespace troupe
