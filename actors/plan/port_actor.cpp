#include "troupe/actors/base/tell.hpp"
#include "troupe/actors/plan/port_actor.hpp"
#include "troupe/runtime/plan/loop_rules.hpp"

#include <fmt/format.h>

namespace troupe {

namespace {

std::unique_ptr<port_logic> make_logic(port_shell& self, std::shared_ptr<const part_context> part,
                                       std::uint32_t actor) {
  switch (part->job_plan->actors[actor].kind) {
    case actor_kind::op:
      if (is_device_stream(part->job_plan->actors[actor].stream))
        return make_segment_logic(self, std::move(part), actor);
      return is_control(part->job_plan->actors[actor].ops.front().type)
                 ? make_control_logic(self, std::move(part), actor)
                 : make_op_logic(self, std::move(part), actor);
    case actor_kind::shard:
      if (is_device_stream(part->job_plan->actors[actor].stream))
        return make_device_shard_logic(self, std::move(part), actor);
      return make_shard_logic(self, std::move(part), actor);
    case actor_kind::send: return make_send_logic(self, std::move(part), actor);
    case actor_kind::receive: return make_receive_logic(self, std::move(part), actor);
    case actor_kind::feed: return make_feed_logic(self, std::move(part), actor);
    case actor_kind::fetch: return make_fetch_logic(self, std::move(part), actor);
    case actor_kind::copy: return make_copy_logic(self, std::move(part), actor);
    case actor_kind::collective:
      if (is_device_stream(part->job_plan->actors[actor].stream))
        return make_device_collective_logic(self, std::move(part), actor);
      return make_collective_logic(self, std::move(part), actor);
    default: break;
  }
  fail_invariant("a plan holds only planned kinds", std::source_location::current());
}

}  // namespace

std::optional<std::uint64_t> part_context::handed_version(const std::string& variable) const {
  for (const auto& a : job_plan->actors)
    if (a.kind == actor_kind::shard && a.shard.variable == variable &&
        a.shard.update == update_kind::sync)
      return a.shard.version;
  return std::nullopt;
}

port_shell::port_shell(caf::actor_config& cfg, std::shared_ptr<const part_context> part,
                       std::uint32_t actor)
    : port_actor::base(cfg),
      pool_(part->pool_of(part->job_plan->actors[actor])),
      logic_(make_logic(*this, std::move(part), actor)) {}

port_shell::~port_shell() = default;

void port_shell::on_exit() { logic_.reset(); }

// PA-3. The logic is gone only after the actor has ended, when no handler runs any more.
template <class Call>
void port_shell::guarded(Call&& call) {
  try {
    call(*logic_);
  } catch (const std::exception& e) {
    logic_->fail(error(error_code::failed, e.what()));
  } catch (...) {  // of a user's kernel
    logic_->fail(error(error_code::failed, "an exception of unknown type"));
  }
}

// PA-4. The base class looks for a handler by comparing types one after the other, and makes a
// promise of a response.
caf::invoke_message_result port_shell::consume(caf::mailbox_element& x) {
  auto* m = message_pool<tensor_ready>::in_pooled(x);
  if (m == nullptr) return port_actor::base::consume(x);
  pool_->recycle(x);
  guarded([m](port_logic& l) { l.on_tensor(*m); });
  return caf::invoke_message_result::consumed;
}

port_shell::behavior_type port_shell::make_behavior() {
  return {
      [this](tensor_ready& m) { guarded([&](port_logic& l) { l.on_tensor(m); }); },
      [this](const credit& m) { guarded([&](port_logic& l) { l.on_credit(m); }); },
      [this](wire_ports& m) { guarded([&](port_logic& l) { l.wire(m.handles); }); },
      [this](start_firing) { guarded([](port_logic& l) { l.start(); }); },
      [this](const peer_lost& m) { guarded([&](port_logic& l) { l.on_peer_lost(m); }); },
      [this](const mark_cut& m) { guarded([&](port_logic& l) { l.on_mark(m); }); },
      [this](const cut_saved& m) { guarded([&](port_logic& l) { l.on_saved(m); }); },
      [this](const cancel_step& m) { guarded([&](port_logic& l) { l.on_cancel(m); }); },
      [this](const set_feeder& m) { guarded([&](port_logic& l) { l.on_feeder(m); }); },
      [this](const device_done& m) {
        after_message();  // from a thread of the device's, whose work it tells of
        guarded([&](port_logic& l) { l.on_device_done(m); });
      },
      [this](end_actor) { quit(); },
  };
}

port_logic::port_logic(port_shell& self, std::shared_ptr<const part_context> part,
                       std::uint32_t actor)
    : self_(self),
      part_(std::move(part)),
      actor_(actor),
      plan_(part_->job_plan->actors[actor]),
      record_(*part_->records[actor]),
      pool_(*part_->pool_of(plan_)),
      meter_(*part_->meter_of(plan_)),
      lane_(part_->lane_of(plan_)) {
  const auto& plan = *part_->job_plan;
  fired_ = plan_.start;
  first_outlet_ = record_.inputs();
  for (auto edge : self_plan().inputs)
    ports_.in.push_back({item_queue(plan.edges[edge].credits), nullptr, {}, 0, false});
}

void port_logic::wire(const std::shared_ptr<const part_handles>& all) {
  const auto& handles = *all;
  const auto& plan = *part_->job_plan;
  const auto& credits = part_->credits;
  for (std::size_t i = 0; i < ports_.in.size(); ++i) {
    const auto& edge = plan.edges[self_plan().inputs[i]];
    auto& in = ports_.in[i];
    in.credit = &credits[self_plan().inputs[i]];
    in.producer = handles.actors[edge.from.actor];
    in.producer_outlet = part_->outlets[self_plan().inputs[i]];
  }
  outlets_of_.resize(self_plan().outputs.size());
  for (std::uint32_t port = 0; port < self_plan().outputs.size(); ++port)
    for (auto e : self_plan().outputs[port]) {
      const auto& edge = plan.edges[e];
      outlets_of_[port].push_back(static_cast<std::uint32_t>(ports_.out.size()));
      ports_.out.push_back(
          {&credits[e], handles.actors[edge.to.actor], edge.to.port, port, false, false});
    }
  wire_more(all);
  if (auto opened = open(); !opened) return fail(opened.error());
  trace(trace_kind::open, fired_);
  if (!has_failed_) tell(self_.context(), part_->supervisor, actor_ready{actor_});
}

void port_logic::on_tensor(tensor_ready& m) {
  record_.count_in(m.value ? m.value.size_bytes() : 0);
  record_.ports[m.port]->count_item();
  ports_.arrive(m.port, item{m.t, std::move(m.value)});
  record_.ports[m.port]->queued.store(ports_.in[m.port].queue.size(), std::memory_order_relaxed);
  record_.set_queued(record_.queue.load(std::memory_order_relaxed) + 1);
  if (!has_failed_) advance();
}

void port_logic::on_credit(const credit& m) {
  ports_.grant(m.outlet);
  if (!has_failed_) advance();
}

void port_logic::on_peer_lost(const peer_lost& m) {
  if (m.port >= ports_.in.size() || ports_.in[m.port].is_lost) return;
  ports_.in[m.port].is_lost = true;
  for (const auto& o : ports_.out)
    if (o.consumer) tell(self_.context(), o.consumer, peer_lost{o.consumer_port, m.reason});
}

void port_logic::fail(const error& e) { report_failure(e, false); }
void port_logic::fail_derived(const error& e) { report_failure(e, true); }

void port_logic::report_failure(const error& e, bool is_derived) {
  if (has_failed_) return;
  has_failed_ = true;
  record_.enter(actor_state::ended);
  tell(self_.context(), part_->supervisor, actor_failed{actor_, fired_, e.text(), is_derived});
}

void port_logic::note(std::uint64_t step, std::string text) {
  tell(self_.context(), part_->supervisor, actor_noted{actor_, step, std::move(text)});
}

void port_logic::come_back() {
  if (!std::exchange(is_coming_back_, true))
    tell(self_.context(), caf::actor_cast<caf::actor>(&self_), start_firing{});
}

bool port_logic::must_wait() {
  const auto w = ports_.next_wait();
  switch (w.kind) {
    case wait_kind::none: return false;
    case wait_kind::input: record_.enter(actor_state::waiting_for_input, w.index); return true;
    case wait_kind::credit:
      record_.enter(actor_state::waiting_for_credit,
                    static_cast<std::uint32_t>(ports_.in.size()) + w.index);
      return true;
  }
  return true;
}

void port_logic::give_back(std::uint32_t port) {
  auto& in = ports_.in[port];
  if (in.credit->give()) tell(self_.context(), in.producer, credit{in.producer_outlet, 1});
}

void port_logic::emit(std::uint32_t output, const tag& t, tensor value) {
  const auto& outlets = outlets_of_[output];
  if (outlets.empty()) return;
  for (std::size_t i = 0; i + 1 < outlets.size(); ++i) emit_to(outlets[i], t, value);
  emit_to(outlets.back(), t, std::move(value));  // a chain never counts references
}

void port_logic::emit_to(std::uint32_t outlet_index, const tag& t, tensor value) {
  auto& o = ports_.out[outlet_index];
  expects(o.is_held, "PA-1: an item needs a credit");
  o.is_held = false;
  record_.count_out(value ? value.size_bytes() : 0);
  record_.ports[first_outlet_ + outlet_index]->count_item();
  pool_.send(self_.context(), o.consumer, tensor_ready{o.consumer_port, 0, t, std::move(value)});
}

void port_logic::count_firing(const tag& t, std::uint32_t where) {
  trace(trace_kind::firing, t.step, where);
  if (plan_.loop_level != 0 && (t.dead == 0 || t.dead > plan_.loop_level))
    return record_.begin_again();  // LO-4
  ++fired_;
  record_.count_step();
  if (is_done() && is_settled()) report_done();
}

void port_logic::report_done() {
  if (is_reported_done_) return;
  is_reported_done_ = true;
  record_.enter(actor_state::ended);
  tell(self_.context(), part_->supervisor, actor_done{actor_});
}

void port_logic::update_queue() {
  std::uint32_t queued = 0;
  for (std::size_t i = 0; i < ports_.in.size(); ++i) {
    const auto n = ports_.in[i].queue.size();
    record_.ports[i]->queued.store(n, std::memory_order_relaxed);
    queued += n;
  }
  record_.set_queued(queued);
}

void port_logic::write_trace_slice(trace_kind kind, std::uint64_t step, std::uint32_t where) {
  lane_.slice(kind, subject(), step, where, std::exchange(waited_, 0));
}

port_logic::busy_mark::busy_mark(port_logic& l) : meter_(l.meter_) {
  meter_.current.store(l.subject(), std::memory_order_relaxed);
  l.waited_ = l.record_.enter_running();
}

port_logic::busy_mark::~busy_mark() { meter_.current.store(0, std::memory_order_relaxed); }

}  // namespace troupe
