// The edges to the program that runs a job.
//
// feed:  takes tensors from the program, in order, and gives each the next tag. It tells the
//        program when one has been taken, so a program that feeds faster than the graph runs is
//        held back like any producer.
// fetch: one item per port makes a firing, which goes to the program; the program gives a credit
// back when it is done
//        with it, so a program that does not take its values holds the graph back like any
//        consumer. One that awaits receipt
//        hands on at once what is complete: whoever made it counts on that.

#include "troupe/actors/base/tell.hpp"
#include "troupe/actors/plan/port_actor.hpp"

namespace troupe {

namespace {

// Items on their way to or from the program, per feed or fetch. Losses are small, and the program
// may look at them once in many steps.
constexpr std::uint32_t program_credits = feed_room, loss_credits = 256;

class feed_logic final : public port_logic {
 public:
  using port_logic::port_logic;

 private:
  result<void> open() override {
    pending_ = item_queue(feed_room);
    feeder_ = part_->program;
    return {};
  }

  void on_feeder(const set_feeder& m) override { feeder_ = m.to; }

  void on_tensor(tensor_ready& m) override {
    record_.count_in(m.value.size_bytes());
    record_.ports[m.port]->count_item();
    pending_.push(item{m.t, std::move(m.value)});
    if (!has_failed_) advance();
  }

  void advance() override {
    waited_ = record_.word();
    for (;;) {
      record_.set_queued(pending_.size());
      record_.ports.front()->queued.store(pending_.size(), std::memory_order_relaxed);
      if (is_done()) return;
      if (pending_.is_empty()) return record_.enter(actor_state::waiting_for_input, 0);
      for (std::uint32_t i = 0; i < ports_.out.size(); ++i)
        if (!ports_.acquire(i)) return record_.enter(actor_state::waiting_for_credit, 1 + i);
      auto i = pending_.pop();
      const tag t{.step = fired_};
      emit(0, t, std::move(i.value));
      count_firing(t);
      if (feeder_) tell(self_.context(), feeder_, feed_ready{actor_});
    }
  }

  item_queue pending_;
  caf::actor feeder_;
};

class fetch_logic final : public port_logic {
 public:
  using port_logic::port_logic;

 private:
  result<void> open() override {
    if (part_->job_plan->workers > 0 && self_plan().name == loss_fetch) credits_ = loss_credits;
    for (auto edge : self_plan().inputs) {
      const auto& p = *part_->job_plan;
      taken_.push_back(p.actors[p.edges[edge].from.actor].start);
    }
    return {};
  }

  void on_credit(const credit& m) override {
    credits_ += m.count;
    advance();
  }

  void on_peer_lost(const peer_lost& m) override {
    port_logic::on_peer_lost(m);
    if (!has_failed_) advance();
  }

  void advance() override {
    auto& program_port = *record_.ports.back();
    waited_ = record_.word();
    for (;;) {
      program_port.credits_left.store(static_cast<std::int32_t>(credits_),
                                      std::memory_order_relaxed);
      if (is_done()) return;
      const auto port = next_port();
      if (port < 0 && has_all_there_will_be()) return report_done();
      if (port < 0) return record_.enter(actor_state::waiting_for_input, missing_);
      if (credits_ == 0 && !self_plan().awaits_receipt)
        return record_.enter(actor_state::waiting_for_credit,
                             static_cast<std::uint32_t>(ports_.in.size()));
      fire(static_cast<std::uint32_t>(port));
    }
  }

  // The port to take from (all of them, for one that needs every port: then 0), or -1: `missing_`
  // has nothing.
  std::int64_t next_port() {
    const auto n = static_cast<std::uint32_t>(ports_.in.size());
    if (!self_plan().fires_on_any) {
      // What is here stays until it is taken: each port is looked at once for a firing.
      for (; missing_ < n; ++missing_)
        if (ports_.in[missing_].queue.is_empty()) return -1;
      return 0;
    }
    for (std::uint32_t k = 0; k < n; ++k) {  // in turn, so that no port starves
      const auto i = (turn_ + k) % n;
      if (!ports_.in[i].queue.is_empty()) return i;
      if (!ports_.in[i].is_lost) missing_ = i;
    }
    return -1;
  }

  // Asynchronous workers end one by one: each has sent its share, or is lost.
  bool has_all_there_will_be() const {
    if (!self_plan().fires_on_any || self_plan().steps == 0) return false;
    const auto share = self_plan().steps / ports_.in.size();
    for (std::size_t i = 0; i < ports_.in.size(); ++i)
      if (!ports_.in[i].is_lost && taken_[i] < share) return false;
    return true;
  }

  void fire(std::uint32_t port) {
    fetched out{actor_, port, {}, {}};
    const auto n = static_cast<std::uint32_t>(ports_.in.size());
    const auto first = self_plan().fires_on_any ? port : 0;
    const auto last = self_plan().fires_on_any ? port + 1 : n;
    for (auto i = first; i < last; ++i) {
      auto it = ports_.in[i].queue.pop();
      ++taken_[i];
      if (i == first) out.t = it.t;
      expects(it.t == out.t, "PO-2: all inputs of a firing have one tag");
      expects(bool(it.value), "what is fetched lies in no branch");
      out.values.push_back(std::move(it.value));
      give_back(i);
    }
    turn_ = (port + 1) % n;
    missing_ = 0;
    if (credits_ > 0) --credits_;
    std::uint64_t bytes = 0;
    for (const auto& v : out.values) bytes += v.size_bytes();
    record_.count_out(bytes);
    const auto out_tag = out.t;
    if (part_->program) tell(self_.context(), part_->program, std::move(out));
    update_queue();
    count_firing(out_tag, self_plan().fires_on_any ? port : trace_event::everywhere);
  }

  std::vector<std::uint64_t> taken_;  // items, by port
  std::uint32_t credits_ = program_credits;
  std::uint32_t turn_ = 0;
  std::uint32_t missing_ = 0;
};

}  // namespace

std::unique_ptr<port_logic> make_feed_logic(port_shell& s, std::shared_ptr<const part_context> p,
                                            std::uint32_t a) {
  return std::make_unique<feed_logic>(s, std::move(p), a);
}

std::unique_ptr<port_logic> make_fetch_logic(port_shell& s, std::shared_ptr<const part_context> p,
                                             std::uint32_t a) {
  return std::make_unique<fetch_logic>(s, std::move(p), a);
}

}  // namespace troupe
