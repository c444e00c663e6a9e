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
// PA-1  A credit taken is given back exactly once per item (runtime/credit.hpp).
// PA-2  A failure is reported once, with the step; afterwards the actor keeps still until it is
//       ended.
// PA-3  No exception leaves a handler: a broken invariant is a failure of this actor.
// Ends: on end_actor, which also breaks the cycles of handles between neighbours.
// PA-4  Items from actors of the part come in pooled elements and skip CAF's matching of handlers
//       (consume); all other messages, and items from a link or the program, take CAF's way.
// Threading: pinned to one worker, that of the links for ranks of collectives of the host; kernels
// run inside the handlers of that worker, which is a device stream's thread.

#include "actors/apply_probe.hpp"
#include "actors/message_pool.hpp"
#include "actors/messages.hpp"
#include "devices/kernel.hpp"
#include "runtime/actor_record.hpp"
#include "runtime/edge_credits.hpp"
#include "runtime/kept_shard.hpp"
#include "runtime/op_table.hpp"
#include "runtime/planted_bugs.hpp"
#include "runtime/ports.hpp"
#include "runtime/shared_buffer.hpp"
#include "runtime/supervision_tree.hpp"
#include "runtime/trace_ring.hpp"

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

namespace troupe {

class device_streams;
class part_lanes;

// An output that writes a buffer of the plan: which one, and which of its uses that is.
struct buffer_use {
  std::uint32_t port = 0, buffer = 0, use = 0;
};

// What can be seen of a stream: which actor of which part runs just now, and what ran when. Written
// by the stream's thread, read by the node.
struct alignas(64) stream_meter {
  explicit stream_meter(std::function<std::int64_t()> now_ns)
      : lane(std::move(now_ns), trace_lane::stream_events) {}
  std::atomic<std::uint64_t> current{0};  // part << 32 | actor + 1; 0: none
  trace_lane lane;
};

// The ledger of a shard, by worker, as its actor writes it and a part's last report reads it.
struct shard_counters {
  explicit shard_counters(std::size_t workers)
      : received(workers), applied(workers), dropped(workers), duplicates(workers) {}
  std::vector<std::atomic<std::uint64_t>> received, applied, dropped, duplicates;
};

// What all actors of a part share. Constant after the part is made, but for the credits, which are
// atomics.
struct part_context {
  job_id job{};
  std::uint32_t epoch = 0;
  std::uint32_t part = 0;  // number of the part in its process, for the meter
  std::shared_ptr<const plan> job_plan;
  edge_credits credits;  // by edge; of edges inside this process
  // By edge: its number among those of its producer.
  std::vector<std::uint32_t> outlets;
  // Of the plan, by number; null where another process has it. Each is its stream's thread's alone.
  std::vector<std::unique_ptr<shared_buffer>> buffers;
  std::vector<std::vector<buffer_use>> uses;  // of buffers, by actor
  // By actor; null where another process runs it.
  std::vector<std::shared_ptr<actor_record>> records;
  // By actor; null for all but the shards here.
  std::vector<std::shared_ptr<shard_counters>> ledgers;
  // By actor; null for all but the shards here.
  std::vector<std::shared_ptr<kept_shard>> kept;
  // By variable: what is kept here and handed over.
  std::map<std::string, std::shared_ptr<kept_shard>> handed;
  // The version of a variable that goes on; nullopt: the newest.
  std::optional<std::uint64_t> handed_version(const std::string& variable) const;
  // By stream, then by device; actors may outlive a node that fails.
  std::vector<std::shared_ptr<stream_meter>> meters;
  std::vector<std::shared_ptr<message_pool<tensor_ready>>> pools;  // likewise
  std::vector<std::shared_ptr<device_streams>> devices;
  std::shared_ptr<part_lanes> lanes;  // those that were opened, of all devices here
  std::uint32_t host_streams() const noexcept {
    return static_cast<std::uint32_t>(meters.size() - devices.size());
  }
  // Ranks of collectives of the host run beside the links.
  std::shared_ptr<stream_meter> io_meter;
  std::shared_ptr<message_pool<tensor_ready>> io_pool;
  std::shared_ptr<trace_lane> io_lane;  // of the thread that runs the links, and so ranks
  const std::shared_ptr<message_pool<tensor_ready>>& pool_of(const planned_actor& a) const {
    return runs_beside_links(a) ? io_pool : pools[worker_of(a.stream, host_streams())];
  }
  const std::shared_ptr<stream_meter>& meter_of(const planned_actor& a) const {
    return runs_beside_links(a) ? io_meter : meters[worker_of(a.stream, host_streams())];
  }
  trace_lane& lane_of(const planned_actor& a) const {
    return runs_beside_links(a) ? *io_lane : meters[worker_of(a.stream, host_streams())]->lane;
  }
  const op_table* ops = nullptr;
  const kernel_table* kernels = nullptr;
  host_device* device = nullptr;
  const planted_bugs* bugs = nullptr;  // tests only
  apply_probe* probe = nullptr;        // the simulator's
  node_id node{};                      // this one
  caf::actor supervisor;
  caf::actor archive;  // who saves cuts
  caf::actor program;  // who takes fetched values; null where the program runs elsewhere
};

// Op, shard, transfer, feed and fetch.
inline constexpr supervision_policy port_policy{.restart = restart_kind::temporary,
                                                .strategy = restart_strategy::one_for_all,
                                                .limits = no_restarts};

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
