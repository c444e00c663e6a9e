#pragma once
// The shell of every actor of a plan. It turns messages into calls of a `port_logic` (op, shard,
// send, receive, feed, fetch, collective), and results into messages.
//
//   message       from                     effect                              answer
//   wire_ports    supervisor               learn the neighbours, build         actor_ready |
//                                          kernels                             actor_failed
//   start_firing  supervisor               sources may fire                    -
//   tensor_ready  producer, link, program  keep the item; fire while possible  -
//   credit        consumer, link, program  the outlet holds a credit again;    -
//                                          fire
//   peer_lost     supervisor, producer     the port is lost; pass it on        -
//   mark_cut      supervisor               what is made next carries the mark  -
//   cut_saved     archive                  a shard may give out the next cut   -
//   device_done   a device, any thread     what was enqueued before is done    -
//   cancel_step   program                  loops of steps up to this one end   -
//   set_feeder    program                  a feed tells this one of its room   -
//   end_actor     supervisor               drop everything and end             -
//
// PA-1  A credit taken is given back exactly once per item (runtime/firing/credit.hpp).
// PA-2  A failure is reported once, with the step; afterwards the actor keeps still until it is
//       ended.
// PA-3  No exception leaves a handler: a broken invariant is a failure of this actor.
// Ends: on end_actor, which also breaks the cycles of handles between neighbours.
// PA-4  Items from actors of the part come in pooled elements and skip CAF's matching of handlers
//       (consume); all other messages, and items from a link or the program, take CAF's way.
// Threading: pinned to one worker, that of the links for ranks of collectives of the host; kernels
// run inside the handlers of that worker, which is a device stream's thread.

#include "troupe/actors/base/message_pool.hpp"
#include "troupe/actors/messages/port_messages.hpp"
#include "troupe/actors/plan/part_context.hpp"
#include "troupe/runtime/firing/ports.hpp"
#include "troupe/runtime/insight/actor_record.hpp"
#include "troupe/runtime/trace/trace_ring.hpp"

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

namespace troupe {

class port_logic;

class port_shell final : public port_actor::base {
 public:
  port_shell(caf::actor_config& cfg, std::shared_ptr<const part_context> part, std::uint32_t actor);
  ~port_shell() override;
  behavior_type make_behavior() override;
  void on_exit() override;
  const char* name() const override { return "port_actor"; }
  caf::invoke_message_result consume(caf::mailbox_element& x) override;

 private:
  template <class Call>
  void guarded(Call&& call);

  std::shared_ptr<message_pool<tensor_ready>> pool_;  // of this worker
  std::unique_ptr<port_logic> logic_;
};

class port_logic {
 public:
  port_logic(port_shell& self, std::shared_ptr<const part_context> part, std::uint32_t actor);
  virtual ~port_logic() = default;

  void wire(const std::shared_ptr<const part_handles>& handles);
  void start() {
    is_started_ = true;
    is_coming_back_ = false;
    if (has_failed_) return;
    if (is_done()) report_done();  // in an earlier epoch
    advance();
  }
  virtual void on_tensor(tensor_ready& m);
  virtual void on_credit(const credit& m);
  virtual void on_peer_lost(const peer_lost& m);
  virtual void on_mark(const mark_cut&) {}
  virtual void on_saved(const cut_saved&) {}
  virtual void on_cancel(const cancel_step&) {}
  virtual void on_feeder(const set_feeder&) {}
  virtual void on_device_done(const device_done&) {}
  void fail(const error& e);
  // What may follow from the end of another node: whoever reports that is believed first.
  void fail_derived(const error& e);

 protected:
  virtual result<void> open() { return {}; }  // kernels, tables
  virtual void advance() = 0;                 // fire as often as the rule allows

  const planned_actor& self_plan() const noexcept { return plan_; }
  bool is_done() const noexcept { return self_plan().steps != 0 && fired_ >= self_plan().steps; }
  // Items that stay for a run of a loop (plan.hpp, `sticky`).
  bool is_sticky(std::uint32_t port) const noexcept {
    return !plan_.sticky.empty() && plan_.sticky[port] != 0;
  }
  bool keeps(std::uint32_t port, const tag& t) const noexcept {
    return is_sticky(port) && (t.dead == 0 || t.dead > plan_.sticky[port]);
  }
  // An input that is not; 0 if there is none.
  std::uint32_t pace() const noexcept {
    std::uint32_t i = 0;
    while (i < plan_.sticky.size() && plan_.sticky[i] != 0) ++i;
    return i < plan_.sticky.size() ? i : 0;
  }
  // Nobody will miss this actor: once done, it may end.
  virtual bool is_settled() const { return true; }
  // Enters the wait that the firing rule reports. False: nothing is missing.
  bool must_wait();
  // The item's credit goes back to the producer of input `port`.
  void give_back(std::uint32_t port);
  // Sends a value to every consumer of output port `output`, each of which has a credit in our
  // hand.
  void emit(std::uint32_t output, const tag& t, tensor value);
  void emit_to(std::uint32_t outlet_index, const tag& t, tensor value);
  // A firing is complete, that of tag `t`, and of one input port or (everywhere) all; in a loop it
  // may be one of many of its step. Reports actor_done after the last step.
  void count_firing(const tag& t, std::uint32_t where = trace_event::everywhere);
  void report_done();
  // Something that people want to know, with the step.
  void note(std::uint64_t step, std::string text);
  // Goes on with advance() after the messages that wait.
  void come_back();
  // Notes a slice of the timeline, up to now, if one is recorded.
  void trace(trace_kind kind, std::uint64_t step, std::uint32_t where = trace_event::everywhere) {
    if (lane_.is_on()) [[unlikely]]
      write_trace_slice(kind, step, where);
  }
  std::uint64_t subject() const noexcept { return std::uint64_t{part_->part} << 32 | (actor_ + 1); }
  // Marks the stream as busy with this actor while it lives.
  class busy_mark {
   public:
    explicit busy_mark(port_logic& l);
    ~busy_mark();

   private:
    stream_meter& meter_;
  };
  void update_queue();

  caf::actor_system& system() const { return self_.system(); }

  port_shell& self_;
  std::shared_ptr<const part_context> part_;
  const std::uint32_t actor_;
  const planned_actor& plan_;
  actor_record& record_;
  message_pool<tensor_ready>& pool_;
  stream_meter& meter_;
  trace_lane& lane_;  // of the thread, for timelines
  port_set<port_actor> ports_;
  std::vector<std::vector<std::uint32_t>> outlets_of_;  // output port -> outlets
  std::size_t first_outlet_ = 0;                        // among the ports of the record
  std::uint64_t fired_ = 0;
  bool is_started_ = false;
  bool has_failed_ = false;
  bool is_reported_done_ = false;
  bool is_coming_back_ = false;
  // For what, before the next firing (actor_record::word); beside what a firing writes anyway.
  std::uint32_t waited_ = 0;

 private:
  virtual void wire_more(const std::shared_ptr<const part_handles>&) {}
  void report_failure(const error& e, bool is_derived);
  void write_trace_slice(trace_kind kind, std::uint64_t step, std::uint32_t where);
};

std::unique_ptr<port_logic> make_op_logic(port_shell&, std::shared_ptr<const part_context>,
                                          std::uint32_t actor);
// Ops of a device.
std::unique_ptr<port_logic> make_segment_logic(port_shell&, std::shared_ptr<const part_context>,
                                               std::uint32_t actor);
std::unique_ptr<port_logic> make_copy_logic(port_shell&, std::shared_ptr<const part_context>,
                                            std::uint32_t actor);
// Branches and loops.
std::unique_ptr<port_logic> make_control_logic(port_shell&, std::shared_ptr<const part_context>,
                                               std::uint32_t actor);
std::unique_ptr<port_logic> make_shard_logic(port_shell&, std::shared_ptr<const part_context>,
                                             std::uint32_t actor);
std::unique_ptr<port_logic> make_device_shard_logic(port_shell&,
                                                    std::shared_ptr<const part_context>,
                                                    std::uint32_t actor);
std::unique_ptr<port_logic> make_send_logic(port_shell&, std::shared_ptr<const part_context>,
                                            std::uint32_t actor);
std::unique_ptr<port_logic> make_receive_logic(port_shell&, std::shared_ptr<const part_context>,
                                               std::uint32_t actor);
std::unique_ptr<port_logic> make_feed_logic(port_shell&, std::shared_ptr<const part_context>,
                                            std::uint32_t actor);
std::unique_ptr<port_logic> make_fetch_logic(port_shell&, std::shared_ptr<const part_context>,
                                             std::uint32_t actor);
std::unique_ptr<port_logic> make_collective_logic(port_shell&, std::shared_ptr<const part_context>,
                                                  std::uint32_t actor);
std::unique_ptr<port_logic> make_device_collective_logic(port_shell&,
                                                         std::shared_ptr<const part_context>,
                                                         std::uint32_t actor);

}  // namespace troupe
