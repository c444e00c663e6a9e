// The ops that branches and loops are made of (runtime/plan/loop_rules.hpp): they hand tensors on,
// each by a rule of its own, and compute nothing.
//
// CN-1  A token that nobody is to get costs no message, but its credit is in hand all the same:
//       what a run of a loop needs at its end was taken at its beginning.
// CN-2  What is handed on is the tensor that came; only a condition that an actor decides itself is
//       made here.

#include "troupe/actors/base/tell.hpp"
#include "troupe/actors/plan/port_actor.hpp"
#include "troupe/devices/half.hpp"
#include "troupe/runtime/plan/loop_rules.hpp"

#include <fmt/format.h>

#include <array>
#include <optional>
#include <utility>

namespace troupe {

namespace {

constexpr std::uint32_t firings_a_turn = 256;  // of one that no edge holds back

// A condition, as a tensor.
tensor make_condition(bool holds) {
  return tensor::of<boolean>(dtype::boolean, shape{}, std::array{boolean(holds)});
}
bool holds(const tensor& condition) { return *condition.data<boolean>(); }

class control_logic : public port_logic {
 public:
  using port_logic::port_logic;

 protected:
  const planned_op& op() const { return self_plan().ops.front(); }
  std::uint16_t level() const { return static_cast<std::uint16_t>(op().attrs.integer("level")); }

  // Takes what is there and sends what follows. False: it waits.
  virtual bool fire() = 0;

  void advance() override {
    for (std::uint32_t n = 0; is_started_ && !is_done() && !has_failed_; ++n) {
      if (n == firings_a_turn) return come_back();
      if (!fire()) break;
    }
    update_queue();
  }

  // Whether an item waits at this port, and each outlet has a credit. False: it waits, and says so.
  bool can_take(std::uint32_t port) {
    if (ports_.in[port].queue.is_empty()) {
      record_.enter(actor_state::waiting_for_input, port);
      return false;
    }
    return can_send();
  }
  bool can_send() {
    for (std::uint32_t i = 0; i < ports_.out.size(); ++i)
      if (!ports_.acquire(i)) {
        record_.enter(actor_state::waiting_for_credit,
                      static_cast<std::uint32_t>(ports_.in.size()) + i);
        return false;
      }
    return true;
  }
  item take(std::uint32_t port) {
    auto i = ports_.in[port].queue.pop();
    give_back(port);
    return i;
  }
  void send(std::uint32_t port, tag t, tensor value) {
    if (t.dead != 0) value = tensor();
    emit(port, t, std::move(value));
  }
  void fail_here(std::string text) {
    auto e = error(error_code::failed, fmt::format("{} '{}': {}", op().type, op().name, text));
    if (!op().source.file.empty()) e.at(op().source.file, op().source.line);
    fail(e);
  }
};

// branch, merge, loop_condition and loop_next: one item of each port.
class gate_logic final : public control_logic {
 public:
  using control_logic::control_logic;

 private:
  enum class rule : std::uint8_t { branch, merge, condition, next };

  result<void> open() override {
    const auto& type = op().type;
    rule_ = type == branch_op      ? rule::branch
            : type == merge_op     ? rule::merge
            : type == loop_next_op ? rule::next
                                   : rule::condition;
    if (rule_ == rule::branch || rule_ == rule::next) level_ = level();
    if (rule_ == rule::condition)
      iterations_max_ = static_cast<std::uint64_t>(op().attrs.integer("iterations_max"));
    taken_.resize(ports_.in.size());
    return {};
  }

  void on_cancel(const cancel_step& m) override { cancelled_ = m.step; }

  bool fire() override {
    if (must_wait()) return false;
    const busy_mark busy(*this);
    const auto t = ports_.in[pace()].queue.front().t;
    auto all = t;
    for (std::uint32_t i = 0; i < ports_.in.size(); ++i) {
      const auto& head = ports_.in[i].queue.front();
      expects(is_sticky(i) || head.t == t, "PO-2: all inputs of a firing have one tag");
      all.mark = std::max(all.mark, head.t.mark);
      all.dead = dead_of(all, head.t);
    }
    for (std::uint32_t i = 0; i < ports_.in.size(); ++i)
      taken_[i] = keeps(i, all) ? ports_.in[i].queue.front() : take(i);
    const auto mark = all.mark;
    switch (rule_) {
      case rule::branch: choose(mark); break;
      case rule::merge: merge(mark); break;
      case rule::condition: decide(); break;
      case rule::next: go_on(mark); break;
    }
    for (auto& i : taken_) i.value = tensor();
    if (!has_failed_) count_firing(last_);
    return true;
  }

  void choose(std::uint32_t mark) {
    auto &x = taken_[0], &condition = taken_[1];
    auto t = condition.t;  // x may be one of a loop around
    t.mark = mark;
    t.dead = dead_of(x.t, condition.t);
    last_ = t;
    const auto taken = t.dead != 0 ? 2U : holds(condition.value) ? 1U : 0U;
    for (std::uint32_t k = 0; k < 2; ++k) {
      auto out = t;
      if (t.dead == 0 && k != taken) out.dead = level_;
      send(k, out, x.value);
    }
  }

  void merge(std::uint32_t mark) {
    const auto& condition = taken_[0];
    const auto chosen = condition.t.dead != 0 ? 1U : holds(condition.value) ? 2U : 1U;
    auto t = taken_[chosen].t;
    if (condition.t.dead != 0) t.dead = condition.t.dead;
    t.mark = mark;
    last_ = t;
    send(0, t, std::move(taken_[chosen].value));
  }

  void decide() {
    auto& c = taken_[0];
    last_ = c.t;
    if (c.t.dead == 0) record_.iteration.store(c.t.iteration, std::memory_order_relaxed);
    if (c.t.dead == 0 && holds(c.value)) {
      // A loop of a step that nobody wants any more ends.
      if (cancelled_ && c.t.step <= *cancelled_)
        c.value = make_condition(false);
      else if (iterations_max_ != 0 && c.t.iteration >= iterations_max_)
        return fail_here(
            fmt::format("the loop has made {} iterations, and may make no more (iterations_max)",
                        c.t.iteration));
    }
    send(0, c.t, std::move(c.value));
  }

  void go_on(std::uint32_t mark) {
    auto &x = taken_[0], &condition = taken_[1];
    auto t = x.t;
    t.mark = mark;
    t.dead = dead_of(x.t, condition.t);
    last_ = t;
    if (t.dead + 1 == level_) return;  // the condition has ended, too
    auto out = left(t);
    if (t.dead != 0) {  // the loop is not begun
      send(0, t, {});
      send(1, out, {});
    } else if (holds(condition.value)) {
      send(0, t, std::move(x.value));
    } else {
      t.dead = level_;
      send(0, t, {});
      send(1, out, std::move(x.value));
    }
  }

  static std::uint16_t dead_of(const tag& a, const tag& b) {
    return a.dead == 0 || (b.dead != 0 && b.dead < a.dead) ? b.dead : a.dead;
  }

  rule rule_ = rule::branch;
  std::uint16_t level_ = 0;
  std::uint64_t iterations_max_ = 0;
  std::optional<std::uint64_t> cancelled_;  // steps up to this one
  std::vector<item> taken_;
  tag last_;
};

class enter_logic final : public control_logic {
 public:
  using control_logic::control_logic;

 private:
  result<void> open() override {
    entry_ = loop_entry(level());
    return {};
  }

  bool fire() override {
    const auto port = entry_.port();
    if (!can_take(port)) return false;
    const busy_mark busy(*this);
    auto i = take(port);
    if (port == 0 && loop_entry::is_too_far(i.t)) {
      fail_here(fmt::format("a loop around it has made {} iterations, and may make no more",
                            i.t.iteration));
      return true;
    }
    const auto out = entry_.take(i.t);
    if (out) send(0, *out, std::move(i.value));
    // What comes back dead is the last of its step here, whether something follows or not.
    if (port == 1 && i.t.dead != 0) count_firing(i.t);
    return true;
  }

  loop_entry entry_;
};

class stack_logic final : public control_logic {
 public:
  using control_logic::control_logic;

 private:
  result<void> open() override {
    std::vector<std::uint16_t> levels;
    for (const auto l : op().attrs.integers("levels"))
      levels.push_back(static_cast<std::uint16_t>(l));
    is_condition_ = op().attrs.integer("condition") != 0;
    stack_.emplace(std::move(levels), is_condition_,
                   static_cast<std::size_t>(op().attrs.integer("tokens")));
    return {};
  }

  bool fire() override {
    if (stack_->can_give()) {
      if (!can_send()) return false;
      const busy_mark busy(*this);
      bool condition = false;
      auto out = stack_->give(&condition);
      if (is_condition_ && out.t.dead == 0) out.value = make_condition(condition);
      send(0, out.t, std::move(out.value));
      if (!stack_->can_give()) count_firing(out.t);
      return true;
    }
    if (ports_.in[0].queue.is_empty()) {
      record_.enter(actor_state::waiting_for_input, 0);
      return false;
    }
    const busy_mark busy(*this);
    auto i = take(0);
    if (!stack_->take(i.t, std::move(i.value)))
      fail_here(
          "the loop has made more iterations than iterations_max allows: its gradients need the "
          "values of each iteration");
    return true;
  }

  std::optional<loop_stack<tensor>> stack_;
  bool is_condition_ = false;
};

}  // namespace

std::unique_ptr<port_logic> make_control_logic(port_shell& s, std::shared_ptr<const part_context> p,
                                               std::uint32_t a) {
  const auto& type = p->job_plan->actors[a].ops.front().type;
  if (type == loop_enter_op) return std::make_unique<enter_logic>(s, std::move(p), a);
  if (type == loop_stack_op) return std::make_unique<stack_logic>(s, std::move(p), a);
  return std::make_unique<gate_logic>(s, std::move(p), a);
}

}  // namespace troupe
