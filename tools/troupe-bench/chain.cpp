#include "tools/troupe-bench/chain.hpp"

#include "troupe/actors/base/scheduler.hpp"
#include "troupe/devices/tensor.hpp"

#include <caf/allowed_unsafe_message_type.hpp>
#include <caf/event_based_actor.hpp>
#include <caf/exit_reason.hpp>
#include <caf/scoped_actor.hpp>
#include <caf/send.hpp>
#include <caf/typed_actor.hpp>
#include <caf/typed_event_based_actor.hpp>

#include <chrono>

namespace troupe {

struct bare_item {
  tensor value;
};
struct bare_operand {
  tensor value;
};
struct bare_run {
  std::uint64_t items = 0, in_flight = 0;
  caf::actor to;
};
struct bare_done {
  double seconds = 0;
};

}  // namespace troupe

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::bare_item)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::bare_operand)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::bare_run)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::bare_done)

namespace troupe {

namespace {

using hop_actor = caf::typed_actor<caf::reacts_to<bare_item>>;
using join_actor = caf::typed_actor<caf::reacts_to<bare_item>, caf::reacts_to<bare_operand>>;
using fan_actor = caf::typed_actor<caf::reacts_to<bare_operand>>;
using driver_actor = caf::typed_actor<caf::reacts_to<bare_item>, caf::reacts_to<bare_run>>;

class hop final : public hop_actor::base {
 public:
  hop(caf::actor_config& cfg, hop_actor next) : hop_actor::base(cfg), next_(std::move(next)) {}
  behavior_type make_behavior() override {
    return {[this](bare_item& m) { send(next_, std::move(m)); }};
  }
  void on_exit() override { next_ = nullptr; }

 private:
  hop_actor next_;
};

// Messages of one sender arrive in order, so counting is enough to join them.
class join final : public join_actor::base {
 public:
  join(caf::actor_config& cfg, hop_actor next) : join_actor::base(cfg), next_(std::move(next)) {}
  behavior_type make_behavior() override {
    return {[this](bare_item& m) {
              last_ = m.value;
              ++items_;
              pass();
            },
            [this](bare_operand&) {
              ++operands_;
              pass();
            }};
  }
  void on_exit() override { next_ = nullptr; }

 private:
  void pass() {
    if (passed_ == items_ || passed_ == operands_) return;
    ++passed_;
    send(next_, bare_item{last_});
  }

  hop_actor next_;
  tensor last_;
  std::uint64_t items_ = 0, operands_ = 0, passed_ = 0;
};

class fan final : public fan_actor::base {
 public:
  fan(caf::actor_config& cfg, std::vector<join_actor> to)
      : fan_actor::base(cfg), to_(std::move(to)) {}
  behavior_type make_behavior() override {
    return {[this](bare_operand& m) {
      for (const auto& a : to_) send(a, bare_operand{m.value});
    }};
  }
  void on_exit() override { to_.clear(); }

 private:
  std::vector<join_actor> to_;
};

// Knows the head of the chain late, since the chain is built from its end.
struct chain_head {
  hop_actor first;
  fan_actor operands;
};

class driver final : public driver_actor::base {
 public:
  driver(caf::actor_config& cfg, std::shared_ptr<chain_head> head)
      : driver_actor::base(cfg), head_(std::move(head)) {}
  behavior_type make_behavior() override {
    return {[this](bare_item& m) { on_item(m); }, [this](bare_run& m) { start(std::move(m)); }};
  }
  void on_exit() override { head_.reset(); }

 private:
  void start(bare_run m) {
    task_ = std::move(m);
    sent_ = done_ = 0;
    began_ = std::chrono::steady_clock::now();
    while (sent_ < task_.items && sent_ < task_.in_flight) feed(tensor::make({dtype::f32, {16}}));
  }

  void on_item(bare_item& m) {
    if (++done_ == task_.items) {
      const auto seconds =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
      return caf::anon_send(std::exchange(task_.to, nullptr), bare_done{seconds});
    }
    if (sent_ < task_.items) feed(std::move(m.value));
  }

  void feed(tensor value) {
    ++sent_;
    if (head_->operands) send(head_->operands, bare_operand{value});
    send(head_->first, bare_item{std::move(value)});
  }

  std::shared_ptr<chain_head> head_;
  bare_run task_;
  std::uint64_t sent_ = 0, done_ = 0;
  std::chrono::steady_clock::time_point began_;
};

}  // namespace

struct bare_chain::actors {
  caf::actor_system& system;
  driver_actor last;
  std::shared_ptr<chain_head> head = std::make_shared<chain_head>();
  std::vector<caf::actor> all;
};

bare_chain::bare_chain(caf::actor_system& sys, std::uint32_t length, bool has_operand,
                       const placement& place)
    : actors_(new actors{sys, {}, std::make_shared<chain_head>(), {}}) {
  auto& a = *actors_;
  a.last = spawn_on<driver>(sys, place(length), a.head);
  hop_actor next = a.last;
  a.all.push_back(caf::actor_cast<caf::actor>(a.last));
  std::vector<join_actor> joins;
  for (auto i = length; i-- > 0;) {
    if (has_operand)
      next = joins.emplace_back(spawn_on<join>(sys, place(i), next));
    else
      next = spawn_on<hop>(sys, place(i), next);
    a.all.push_back(caf::actor_cast<caf::actor>(next));
  }
  if (has_operand) {
    a.head->operands = spawn_on<fan>(sys, place(length), std::move(joins));
    a.all.push_back(caf::actor_cast<caf::actor>(a.head->operands));
  }
  a.head->first = std::move(next);
}

bare_chain::~bare_chain() {
  caf::scoped_actor self{actors_->system};
  for (const auto& a : actors_->all) self->monitor(a);
  for (const auto& a : actors_->all) caf::anon_send_exit(a, caf::exit_reason::kill);
  for (std::size_t i = 0; i < actors_->all.size(); ++i) self->receive([](const caf::down_msg&) {});
}

double bare_chain::run(std::uint64_t items, std::uint64_t in_flight) {
  caf::scoped_actor self{actors_->system};
  self->send(actors_->last, bare_run{items, in_flight, caf::actor_cast<caf::actor>(self)});
  double seconds = 0;
  self->receive([&](const bare_done& m) { seconds = m.seconds; });
  return seconds;
}

}  // namespace troupe
