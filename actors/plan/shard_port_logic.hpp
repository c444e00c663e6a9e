#pragma once
// What a shard of the host (shard_actor.cpp) and one of a device (device_shard_actor.cpp) have in
// common: the state machine, what is told of its gradients, and the credits of its readers. Where
// values lie and who computes is theirs.
//
// SP-1  publish() makes visible, by worker, what the state machine counts; a gradient that its
//       worker left out counts as dropped, not as applied.
// SP-2  A version goes out to a reader when every edge of the reader's port has a credit, and takes
//       one of each. What the state machine has claimed in vain is claimed again with each credit
//       of that port.
// SP-3  While it waits, the record says for what: a gradient of which worker, a credit of which
//       outlet, a cut.
//
// Threading: that of the actor. All of it is on the way of each gradient, and inline.

#include "troupe/actors/plan/port_actor.hpp"
#include "troupe/runtime/plan/optimizer.hpp"
#include "troupe/runtime/shards/shard_state.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace troupe {

class shard_port_logic : public port_logic {
 public:
  shard_port_logic(port_shell& self, std::shared_ptr<const part_context> part, std::uint32_t actor)
      : port_logic(self, std::move(part), actor),
        spec_(self_plan().shard),
        slots_(slots_of(spec_.optimizer)),
        workers_(spec_.steps.size()),
        ledger_(*part_->ledgers[actor]),
        left_out_(workers_) {}

 protected:
  // Once the actor is wired; an error where the variable is none that a shard can hold.
  result<void> open_ports() {
    if (spec_.spec.type != dtype::f32)
      return error(error_code::usage, "variable '" + spec_.variable + "' is " +
                                          to_string(spec_.spec) + ": shards hold f32 only");
    is_claimed_.resize(outlets_of_.size());
    return {};
  }

  std::size_t elements() const { return static_cast<std::size_t>(spec_.spec.shape.elements()); }

  // SP-1.
  void publish() {
    for (std::size_t i = 0; i < state_->ledger().size(); ++i) {
      const auto& l = state_->ledger()[i];
      ledger_.received[i].store(l.received, std::memory_order_relaxed);
      ledger_.applied[i].store(l.applied - std::min(l.applied, left_out_[i]),
                               std::memory_order_relaxed);
      ledger_.dropped[i].store(l.dropped + left_out_[i], std::memory_order_relaxed);
      ledger_.duplicates[i].store(l.duplicates, std::memory_order_relaxed);
    }
  }

  // SP-2. True: the reader's credits are in our hand, and the state machine is to be told.
  bool begin_claim(std::uint32_t reader) {
    is_claimed_[reader] = true;
    return claim(reader);
  }
  // Of a credit that came; the reader that can be served now, if one can.
  std::optional<std::uint32_t> take_credit(const credit& m) {
    ports_.grant(m.outlet);
    const auto reader = ports_.out[m.outlet].output;
    return is_claimed_[reader] && claim(reader) ? std::optional(reader) : std::nullopt;
  }

  // SP-3. `gradient_ports`: the first input ports.
  void show_wait(std::size_t gradient_ports) {
    const auto w = state_->waiting();
    if (w.type == shard_wait::kind::gradient)
      record_.enter(actor_state::waiting_for_input,
                    std::min(w.index, static_cast<std::uint32_t>(gradient_ports - 1)));
    if (w.type == shard_wait::kind::cut) record_.enter(actor_state::running);
    if (w.type == shard_wait::kind::credit)
      record_.enter(actor_state::waiting_for_credit,
                    static_cast<std::uint32_t>(ports_.in.size()) + missing_outlet(w.index));
  }

  const shard_spec& spec_;
  const std::vector<optimizer_slot> slots_;
  const std::size_t workers_;
  std::optional<shard_state> state_;  // from open() on, or once it is known what it begins with
  shard_counters& ledger_;
  std::vector<std::uint64_t> left_out_;  // by worker: gradients that count as dropped

 private:
  bool claim(std::uint32_t reader) {
    for (auto i : outlets_of_[reader])
      if (!ports_.acquire(i)) return false;
    is_claimed_[reader] = false;
    return true;
  }

  // Of a reader that waits: the first that has no credit in hand.
  std::uint32_t missing_outlet(std::uint32_t reader) const {
    for (const auto o : outlets_of_[reader])
      if (!ports_.out[o].is_held) return o;
    return outlets_of_[reader].front();
  }

  std::vector<std::uint8_t> is_claimed_;  // by reader: the state machine waits for this credit
};

}  // namespace troupe
