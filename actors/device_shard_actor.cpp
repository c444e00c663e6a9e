// A parameter shard in the memory of a device: gradients that are made there, and versions that are read there, never leave it. What happens when is decided by
// runtime/shard_state.hpp, as for a shard of the host (shard_actor.cpp); an apply is a step of the optimizer in the compute stream.
//
//   tensor_ready   worker    a gradient: keep it until its apply
//   credit         consumer  a version may go out
//   peer_lost      supervisor  a worker is lost
//
// DP-1  A version is written once, into memory that nobody reads, and passed on while its step is in the queue. The optimizer's state is changed in place: the stream orders it.
// DP-2  Nothing of it is kept after the job (runtime/segment.hpp, may_be_on_device): no recovery, checkpoint or replica.
// Threading: the device's worker.

#include "actors/device_streams.hpp"
#include "actors/port_actor.hpp"
#include "actors/tell.hpp"
#include "runtime/initializers.hpp"
#include "runtime/segment.hpp"
#include "runtime/shard_state.hpp"
#include "runtime/shard_update.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

namespace troupe {

namespace {

class device_shard_logic final : public port_logic {
 public:
  device_shard_logic(port_shell& self, std::shared_ptr<const part_context> part, std::uint32_t actor)
      : port_logic(self, std::move(part), actor), spec_(self_plan().shard), slots_(slots_of(spec_.optimizer)), ledger_(*part_->ledgers[actor]) {}

 private:
  result<void> open() override {
    if (spec_.spec.type != dtype::f32) return error(error_code::usage, fmt::format("variable '{}' is {}: shards hold f32 only", spec_.variable, to_string(spec_.spec)));
    streams_ = part_->devices.at(device_of(self_plan().stream));
    if (auto ok = streams_->open(); !ok) return ok;
    compute_ = streams_->lane(stream_kind::compute);
    name_ = streams_->keep_name(self_plan().name);
    workers_ = spec_.steps.size();
    applied_.assign(workers_, 0);
    left_out_.assign(workers_, 0);
    is_claimed_.resize(outlets_of_.size());
    state_.emplace(spec_, shard_state::slots_wanted(spec_));
    versions_.resize(state_->slots());
    std::size_t out = 1;
    for (const auto& port : self_plan().outputs)
      for (const auto e : port) out = std::max<std::size_t>(out, part_->job_plan->edges[e].credits);
    pool_.emplace(spec_.spec.size_bytes(), 1 + state_->slots() + slots_.size() + out, compute_->stream(), compute_, self_plan().name);
    if (auto begun = initialize(); !begun) return at_line(begun.error());
    publish();
    return {};
  }

  // The bits of a shard of the host.
  result<void> initialize() {
    auto values = tensor::make(spec_.spec);
    troupe::initialize({values.data<float>(), elements()}, spec_.initializer, spec_.seed, spec_.variable);
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
    if (auto ok = stream.copy(name_, to->bytes(), memory_kind::device, std::as_const(from).bytes(), memory_kind::pageable); !ok) return std::move(ok.error());
    auto done = stream.record();
    if (!done) return std::move(done.error());
    to->on_device()->written(*done);
    streams_->keep_until(*done, std::make_shared<const tensor>(std::move(from)));
    return to;
  }

  std::size_t elements() const { return static_cast<std::size_t>(spec_.spec.shape.elements()); }

  void on_tensor(tensor_ready& m) override {
    expects(bool(m.value) || m.t.dead != 0, "a gradient is there, or left out");
    record_.count_in(m.value ? m.value.size_bytes() : 0);
    auto arrived = state_->on_gradient(m.port, m.t.step, m.t.mark);
    if (!arrived) return fail(arrived.error());
    if (*arrived == shard_state::arrival::queued)
      ports_.arrive(m.port, item{m.t, std::move(m.value)});
    else
      give_back(m.port);
    publish();
    advance();
  }

  void on_credit(const credit& m) override {
    ports_.grant(m.outlet);
    const auto reader = ports_.out[m.outlet].output;
    if (is_claimed_[reader] && claim(reader)) state_->on_credit(reader);
    advance();
  }

  void on_peer_lost(const peer_lost& m) override {
    if (m.port >= workers_ || ports_.in[m.port].is_lost) return;
    ports_.in[m.port].is_lost = true;
    if (spec_.update == update_kind::sync) return;  // the job ends, by its coordinator
    if (auto lost = state_->worker_lost(m.port); !lost) return fail(std::move(lost.error()).while_doing(m.reason));
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
    const auto w = state_->waiting();
    if (w.type == shard_wait::kind::gradient) record_.enter(actor_state::waiting_for_input, std::min(w.index, static_cast<std::uint32_t>(workers_ - 1)));
    if (w.type == shard_wait::kind::credit) record_.enter(actor_state::waiting_for_credit, static_cast<std::uint32_t>(ports_.in.size()) + outlets_of_[w.index].front());
  }

  void carry_out(const shard_apply& a) {
    busy_mark busy(*this);
    const auto first = a.worker < 0 ? 0 : static_cast<std::size_t>(a.worker);
    const auto last = a.worker < 0 ? workers_ : first + 1;
    if (auto ok = apply(a, first, last); !ok) return fail(at_line(ok.error()));
    for (auto i = first; i < last; ++i) {
      ++applied_[i];
      if (!ports_.in[i].queue.front().value) ++left_out_[i];
      ports_.in[i].queue.pop();
      give_back(static_cast<std::uint32_t>(i));
    }
    update_queue();
    ++fired_;
    record_.count_step();
    trace(trace_kind::apply, a.step, a.worker < 0 ? trace_event::everywhere : static_cast<std::uint32_t>(a.worker));
  }

  // DP-1.
  result<void> apply(const shard_apply& a, std::size_t first, std::size_t last) {
    newest_events needed;
    device_update u;
    std::vector<device_buffer*> from_elsewhere;
    for (auto i = first; i < last; ++i) {
      const auto& g = ports_.in[i].queue.front().value;
      if (!g) continue;  // left out by its worker
      if (g.spec() != spec_.spec || g.on_device() == nullptr) return error(error_code::failed, fmt::format("gradient of worker {} is {}, of the variable {}", i, to_string(g.spec()), to_string(spec_.spec)));
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
      auto done = compute_->stream().record();
      if (!done) return std::move(done.error());
      taken->on_device()->written(*done);
      for (auto* g : from_elsewhere) g->read_until(*done);
      made = std::move(*taken);
    }
    versions_[a.to] = std::move(made);
    return {};
  }

  result<void> enqueue(const shard_apply& a, device_update u, tensor& to, const newest_events& needed) {
    if (auto ok = compute_->wait(needed); !ok) return ok;
    const auto before = std::accumulate(applied_.begin(), applied_.end(), std::uint64_t{0});
    const auto step = step_of(spec_, count_of(spec_, spec_.update == update_kind::sync ? a.version : before + 1));
    u.values = std::as_const(versions_[a.from]).bytes();
    u.result = to.bytes();
    for (auto& s : optimizer_) u.state.push_back(s.bytes());
    const auto scratch = streams_->scratch(streams_->backend().update_workspace_bytes(step, elements()));
    if (!scratch) return out_of_memory(scratch.error());
    if (auto ok = streams_->backend().enqueue_update(compute_->stream(), name_, step, u, *scratch); !ok) return ok;
    compute_->count(0, 0);
    return {};
  }

  void carry_out(const shard_claim& a) {
    is_claimed_[a.reader] = true;
    if (claim(a.reader)) state_->on_credit(a.reader);
  }

  void carry_out(const shard_send& a) {
    emit(a.reader, tag{.step = a.item}, versions_[a.slot]);
    trace(trace_kind::emit, a.item, a.reader);
  }

  void carry_out(const shard_cut&) { fail(error(error_code::failed, fmt::format("variable '{}' is on a device, where no checkpoint is made", spec_.variable))); }

  // True once every edge of the reader's port has a credit in our hand.
  bool claim(std::uint32_t reader) {
    for (auto i : outlets_of_[reader])
      if (!ports_.acquire(i)) return false;
    is_claimed_[reader] = false;
    return true;
  }

  void publish() {
    for (std::size_t i = 0; i < state_->ledger().size(); ++i) {
      const auto& l = state_->ledger()[i];
      ledger_.received[i].store(l.received, std::memory_order_relaxed);
      ledger_.applied[i].store(l.applied - std::min(l.applied, left_out_[i]), std::memory_order_relaxed);
      ledger_.dropped[i].store(l.dropped + left_out_[i], std::memory_order_relaxed);
      ledger_.duplicates[i].store(l.duplicates, std::memory_order_relaxed);
    }
  }

  error out_of_memory(error e) const {
    const auto device = device_of(self_plan().stream);
    const auto need = memory_of_device(*part_->job_plan, self_plan().task, device);
    return error(e.code(), fmt::format("{}; the plan needs {} bytes on gpu:{}, most of it for {}", e.message(), need.bytes, device, need.largest));
  }
  error at_line(error e) const {
    if (!self_plan().source.file.empty()) e.at(self_plan().source.file, self_plan().source.line);
    return e;
  }

  const shard_spec& spec_;
  const std::vector<optimizer_slot> slots_;
  shard_counters& ledger_;
  std::optional<shard_state> state_;
  std::shared_ptr<device_streams> streams_;
  std::shared_ptr<device_lane> compute_;
  std::string_view name_;
  std::optional<device_buffer_pool> pool_;
  std::vector<tensor> versions_;   // by slot of the state
  std::vector<tensor> optimizer_;  // its slots
  std::size_t workers_ = 0;
  std::vector<std::uint64_t> applied_, left_out_;  // by worker
  std::vector<std::uint8_t> is_claimed_;           // by reader: the state waits for this credit
};

}  // namespace

std::unique_ptr<port_logic> make_device_shard_logic(port_shell& s, std::shared_ptr<const part_context> p, std::uint32_t a) {
  return std::make_unique<device_shard_logic>(s, std::move(p), a);
}

}  // namespace troupe
