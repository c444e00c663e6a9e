// The two halves of an edge that crosses processes.
//
// send:    takes an item from its producer once the remote consumer has a buffer for it (a remote
//          credit), and hands it to the link, which keeps the tensor until it is acknowledged.
// receive: takes items from the link, passes them on when its consumers have a credit, and then
// returns the remote one.
//
// TA-1  At most `credits` items of an edge are between the two halves.
//
// On an edge that awaits receipt (one credit) the producer gets its credit back only when the item
// has been taken by the receive's consumer: until then it can't make the next one.
//
// TA-2  A send whose receiver is dead swallows what it is given, and counts it, so that the
//       producer's other consumers go on.
// TA-3  A send has ended once its receiver has passed on every item: a node whose part has ended
//       may die, and nothing is missed.

#include "troupe/actors/base/tell.hpp"
#include "troupe/actors/plan/port_actor.hpp"

#include <utility>

namespace troupe {

namespace {

class send_logic final : public port_logic {
 public:
  using port_logic::port_logic;

 private:
  const planned_edge& remote() const {
    return part_->job_plan->edges[self_plan().outputs.at(0).at(0)];
  }

  void wire_more(const std::shared_ptr<const part_handles>& handles) override {
    ports_.out.clear();  // the remote edge has no counter in this process
    credits_ =
        remote().credits + (part_->bugs != nullptr && part_->bugs->sends_without_credit ? 1 : 0);
    link_ = handles->links[part_->job_plan->actors[remote().to.actor].task];
    record_.ports.back()->credits_left.store(static_cast<std::int32_t>(credits_),
                                             std::memory_order_relaxed);
  }

  void on_credit(const credit& m) override {
    credits_ += m.count;
    expects(credits_ <= remote().credits, "TA-1: no more credits come back than were taken");
    if (self_plan().awaits_receipt && std::exchange(owes_, false)) give_back(0);
    advance();
    if (is_done() && is_settled()) report_done();
  }

  bool is_settled() const override { return credits_ == remote().credits; }

  void on_peer_lost(const peer_lost&) override {
    is_receiver_lost_ = true;
    advance();
    report_done();  // nobody counts on the rest
  }

  void advance() override {
    auto& in = ports_.in[0];
    waited_ = record_.word();
    while (!in.queue.is_empty() && (credits_ > 0 || is_receiver_lost_)) {
      auto i = in.queue.pop();
      if (!is_receiver_lost_) {
        --credits_;
        record_.count_out(i.value ? i.value.size_bytes() : 0);
        record_.ports.back()->count_item();
        tell(self_.context(), link_,
             send_tensor{part_->job, self_plan().outputs[0][0], sent_++, i.t, std::move(i.value)});
      }
      if (self_plan().awaits_receipt && !is_receiver_lost_)
        owes_ = true;
      else
        give_back(0);
      count_firing(i.t);
    }
    update_queue();
    record_.ports.back()->credits_left.store(static_cast<std::int32_t>(credits_),
                                             std::memory_order_relaxed);
    if (is_reported_done_) return;
    if (in.queue.is_empty() && !is_done() && !owes_)
      record_.enter(actor_state::waiting_for_input, 0);
    else
      record_.enter(actor_state::waiting_for_credit, 1);
  }

  caf::actor link_;
  std::uint64_t sent_ = 0;  // items
  std::uint32_t credits_ = 0;
  bool owes_ = false;  // the producer's credit
  bool is_receiver_lost_ = false;
};

class receive_logic final : public port_logic {
 public:
  using port_logic::port_logic;

 private:
  void wire_more(const std::shared_ptr<const part_handles>& handles) override {
    const auto& edge = part_->job_plan->edges[self_plan().inputs.at(0)];
    link_ = handles->links[part_->job_plan->actors[edge.from.actor].task];
  }

  void on_peer_lost(const peer_lost& m) override {
    port_logic::on_peer_lost(m);
    advance();
  }

  void advance() override {
    if (owes_ && takes_back()) acknowledge();
    waited_ = record_.word();
    while (!is_done() && !must_wait()) {
      auto i = ports_.in[0].queue.pop();
      const auto t = i.t;
      emit(0, t, std::move(i.value));
      if (!self_plan().awaits_receipt || takes_back())
        acknowledge();
      else
        owes_ = true;
      update_queue();
      count_firing(t);
    }
    // The sender makes nothing more before the receipt.
    if (owes_ && !is_reported_done_) record_.enter(actor_state::waiting_for_credit, 1 + untaken_);
    // What had arrived of a dead sender is still passed on.
    if (ports_.in[0].is_lost && ports_.in[0].queue.is_empty()) report_done();
  }

  // Every consumer has given its credit back; else `untaken_` has not.
  bool takes_back() {
    for (untaken_ = 0; untaken_ < ports_.out.size(); ++untaken_)
      if (!ports_.acquire(untaken_)) return false;
    return true;
  }

  void acknowledge() {
    owes_ = false;
    record_.ports.front()->count_return();
    tell(self_.context(), link_, return_credit{part_->job, self_plan().inputs[0]});
  }

  caf::actor link_;
  bool owes_ = false;  // the sender's credit
  std::uint32_t untaken_ = 0;
};

}  // namespace

std::unique_ptr<port_logic> make_send_logic(port_shell& s, std::shared_ptr<const part_context> p,
                                            std::uint32_t a) {
  return std::make_unique<send_logic>(s, std::move(p), a);
}

std::unique_ptr<port_logic> make_receive_logic(port_shell& s, std::shared_ptr<const part_context> p,
                                               std::uint32_t a) {
  return std::make_unique<receive_logic>(s, std::move(p), a);
}

}  // namespace troupe
