// A parameter shard: owner of a variable. Gradients come in at one port per logical worker, versions go out at one port per
// reader. What happens when is decided by runtime/shard_state.hpp; here are the tensors.

#include "actors/port_actor.hpp"
#include "devices/host/sgd.hpp"
#include "runtime/shard_state.hpp"

#include <algorithm>
#include <deque>
#include <map>

namespace troupe {

namespace {

class shard_logic final : public port_logic {
 public:
  shard_logic(port_shell& self, std::shared_ptr<const part_context> part, std::uint32_t actor)
      : port_logic(self, std::move(part), actor),
        spec_(self_plan().shard),
        state_(spec_, shard_state::slots_wanted(spec_)),
        ledger_(*part_->ledgers[actor]) {}

 private:
  result<void> open() override {
    if (spec_.spec.type != dtype::f32)
      return error(error_code::usage, "variable '" + spec_.variable + "' is " + to_string(spec_.spec) + ": shards hold f32 only");
    const auto n = static_cast<std::size_t>(spec_.spec.shape.elements());
    slots_.resize(state_.slots());
    slots_[0] = tensor::make(spec_.spec);
    if (spec_.initializer.type == initializer_spec::kind::uniform)
      uniform_init({slots_[0].data<float>(), n}, spec_.seed, spec_.variable, spec_.initializer.limit);
    else
      zeros_init({slots_[0].data<float>(), n});
    velocity_ = tensor::make(spec_.spec);
    zeros_init({velocity_.data<float>(), n});
    is_claimed_.resize(outlets_of_.size());
    arrivals_.resize(ports_.in.size());
    return {};
  }

  void on_tensor(tensor_ready& m) override {
    record_.count_in(m.value.size_bytes());
    auto arrived = state_.on_gradient(m.port, m.t.step);
    if (!arrived) return fail(arrived.error());
    if (part_->bugs != nullptr) arrivals_[m.port].push_back(++arrived_);
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
    if (is_claimed_[reader] && claim(reader)) state_.on_credit(reader);
    advance();
  }

  void on_peer_lost(const peer_lost& m) override {
    if (m.port >= ports_.in.size() || ports_.in[m.port].is_lost) return;
    ports_.in[m.port].is_lost = true;
    // A synchronous job ends as soon as its coordinator learns of the loss, which is the root cause; this would only follow.
    if (spec_.update == update_kind::sync) return;
    if (auto lost = state_.worker_lost(m.port); !lost) return fail(std::move(lost.error()).while_doing(m.reason));
    advance();
  }

  void advance() override {
    if (!is_started_ || has_failed_) return;
    while (auto action = state_.next()) std::visit([this](const auto& a) { carry_out(a); }, *action);
    publish();
    if (state_.is_finished()) return report_done();
    const auto w = state_.waiting();
    if (w.type == shard_wait::kind::gradient) record_.enter(actor_state::waiting_for_input, w.index);
    if (w.type == shard_wait::kind::credit)
      record_.enter(actor_state::waiting_for_credit, static_cast<std::uint32_t>(ports_.in.size()) + outlets_of_[w.index].front());
  }

  void carry_out(const shard_apply& a) {
    busy_mark busy(*this);
    const auto workers = ports_.in.size();
    const auto first = a.worker < 0 ? 0 : static_cast<std::size_t>(a.worker);
    const auto last = a.worker < 0 ? workers : first + 1;
    gradients_.clear();
    for (auto i = first; i < last; ++i) {
      const auto& head = ports_.in[i].queue.front();
      expects(head.value.spec() == spec_.spec, "a gradient has its variable's shape");
      gradients_.push_back(std::as_const(head.value).data<float>());
    }
    if (part_->bugs != nullptr && part_->bugs->sums_as_they_come) sort_as_they_came(first, last);
    auto from = slots_[a.from];
    auto to = a.from == a.to ? std::move(slots_[a.to]) : take_spare();
    if (a.from == a.to) {
      from = tensor();  // a second handle would make it look shared
      if (!to.is_unique()) {
        from = std::move(to);
        to = take_spare();
      }
    }
    const float* source = from ? std::as_const(from).data<float>() : to.data<float>();
    apply(source, to.data<float>());
    if (part_->bugs != nullptr && part_->bugs->applies_twice && a.step % 4 == 3) apply(to.data<float>(), to.data<float>());
    if (a.from == a.to && from) spares_.push_back(std::move(from));
    if (a.from != a.to && slots_[a.to]) spares_.push_back(std::move(slots_[a.to]));
    slots_[a.to] = std::move(to);
    for (auto i = first; i < last; ++i) {
      ports_.in[i].queue.pop();
      give_back(static_cast<std::uint32_t>(i));
    }
    update_queue();
    ++fired_;
    record_.count_step();
  }

  void apply(const float* from, float* to) {
    sgd_momentum(from, to, velocity_.data<float>(), gradients_, static_cast<std::size_t>(spec_.spec.shape.elements()),
                 static_cast<float>(spec_.optimizer.learning_rate), static_cast<float>(spec_.optimizer.momentum));
  }

  // Of a planted bug.
  void sort_as_they_came(std::size_t first, std::size_t last) {
    std::map<std::uint64_t, const float*> sorted;
    for (auto i = first; i < last; ++i) {
      sorted.emplace(arrivals_[i].front(), gradients_[i - first]);
      arrivals_[i].pop_front();
    }
    gradients_.clear();
    for (const auto& [number, gradient] : sorted) gradients_.push_back(gradient);
  }

  void carry_out(const shard_claim& a) {
    is_claimed_[a.reader] = true;
    if (claim(a.reader)) state_.on_credit(a.reader);
  }

  void carry_out(const shard_send& a) { emit(a.reader, tag{.step = a.item}, slots_[a.slot]); }

  // True once every edge of the reader's port has a credit in our hand.
  bool claim(std::uint32_t reader) {
    for (auto i : outlets_of_[reader])
      if (!ports_.acquire(i)) return false;
    is_claimed_[reader] = false;
    return true;
  }

  tensor take_spare() {
    auto at = std::find_if(spares_.begin(), spares_.end(), [](const tensor& t) { return t.is_unique(); });
    if (at == spares_.end()) return tensor::make(spec_.spec);
    auto spare = std::move(*at);
    spares_.erase(at);
    return spare;
  }

  void publish() {
    for (std::size_t i = 0; i < state_.ledger().size(); ++i) {
      const auto& l = state_.ledger()[i];
      ledger_.received[i].store(l.received, std::memory_order_relaxed);
      ledger_.applied[i].store(l.applied, std::memory_order_relaxed);
      ledger_.dropped[i].store(l.dropped, std::memory_order_relaxed);
    }
  }

  const shard_spec& spec_;
  shard_state state_;
  shard_counters& ledger_;
  std::vector<tensor> slots_, spares_;
  tensor velocity_;
  std::vector<const float*> gradients_;
  std::vector<std::deque<std::uint64_t>> arrivals_;  // by worker: numbers of its queued gradients; kept for a planted bug only
  std::uint64_t arrived_ = 0;
  std::vector<std::uint8_t> is_claimed_;  // by reader: the state waits for this credit
};

}  // namespace

std::unique_ptr<port_logic> make_shard_logic(port_shell& s, std::shared_ptr<const part_context> p, std::uint32_t a) {
  return std::make_unique<shard_logic>(s, std::move(p), a);
}

}  // namespace troupe
