#pragma once
// Runs the stages of a topology, or some of them, in one thread: what is fused, and what an actor
// of a topology does. Pure: it reads no clock and knows no messages.
//
// An item goes to the next stage by a call where that one is here, idle and has room behind it; it
// waits in the queue of its edge otherwise. So a chain costs a few nanoseconds a stage, and the
// stage that is furthest down always runs first.
//
// Stages that are elsewhere (in another process) are never here. Of an edge that leads to one, the
// group has its own end, with a meter of its own, which flow_wire keeps equal to the other one's.
//
// A group may be cut into several, and several be put together again, whenever none of them runs:
// stages with their state, items that wait and all counts move along. So a topology is moved,
// rebalanced, saved or changed by putting all of it together, and cutting it anew.
//
// FLG-1  An edge holds no more than its bounds, and what one firing of its producer puts beyond.
// FLG-2  Items of one edge are taken in the order in which they were put.
// FLG-3  After a failure that its stage does not bear, nothing fires any more.
// FLG-4  An input whose items nobody needs any more is closed, up to its sources.
// FLG-5  What leaves for another group does so in batches, which wait for nothing slow: not while a
//       stage runs that takes long, nor for more than some 100 us of work.
// Threading: one thread at a time. What tools read (stage_counters, edge_meter) is atomic.
// Ownership: of stages and waiting items; the graph outlives it.

#include "troupe/runtime/flow/flow_graph.hpp"
#include "troupe/runtime/flow/flow_queue.hpp"
#include "troupe/runtime/flow/stage_counters.hpp"

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace troupe {

struct stage_change;
struct stage_replacement;
struct topology_checkpoint;

// What tools, and the other end of an edge, see of it.
struct edge_meter {
  // Of items that have waited; what is taken at once stands in neither.
  std::atomic<std::uint64_t> put_items{0}, put_bytes{0};      // written by the producer's group
  std::atomic<std::uint64_t> taken_items{0}, taken_bytes{0};  // by the consumer's
  std::atomic<bool> producer_waits{false};                    // for room
};

// A failure that ends a topology, in one line.
struct flow_failure {
  std::string stage;
  error why{error_code::failed, ""};
};

// How a group reaches the others.
class flow_wire {
 public:
  virtual ~flow_wire() = default;
  virtual void send(std::uint32_t edge, std::vector<flow_item>&& items, bool is_last) = 0;
  // The producer of that edge waits, and there is room now. Of a producer in another process: some
  // items were taken, as the meter says.
  virtual void give_room(std::uint32_t edge) = 0;
  // The producer of that edge need not go on.
  virtual void close(std::uint32_t edge) = 0;
};

// One end or both ends of an edge.
struct flow_edge {
  std::uint32_t id = 0;
  const flow_edge_info* info = nullptr;
  flow_slot* from = nullptr;  // null: another group's
  flow_slot* to = nullptr;
  std::uint32_t to_port = 0;
  // Its consumer is here and takes whatever comes: neither chooses, looks for room, nor loops.
  bool is_plain = false;
  std::shared_ptr<edge_meter> meter;
  // Of the consumer's end.
  flow_queue queue;
  std::uint64_t queued_bytes = 0;
  bool has_ended = false;                        // no more will be put
  bool end_told = false;                         // to the stage
  bool is_far = false;                           // its producer is in another process
  std::uint64_t told_items = 0, told_bytes = 0;  // that were taken: what a far producer knows
  // Of the producer's end.
  bool is_full = false, is_closed = false, end_sent = false;
  bool owes_end = false;  // to another process: it ended before this one began
  std::vector<flow_item> outbox;
  std::uint64_t outbox_bytes = 0;
  std::size_t last_batch = 0;  // items
};

// A stage where it runs. What every item touches stands first, in few cache lines.
struct flow_slot {
  std::uint32_t id = 0;
  std::uint32_t full_outputs = 0;  // edges
  bool is_busy = false, has_more = false, is_over = false, is_closing = false;
  bool ticket_is_open = false;  // of a replica: its ticket has not ended
  bool took_end = false;        // the item at hand is the last thing of its ticket
  bool is_measured = true;      // each call is
  bool is_slow = false;         // nothing waits in a batch meanwhile
  // Of its info, by wire_slots().
  bool is_source = false, is_end = false, is_replica = false, is_chained = false;
  bool is_recovered = false;
  bool is_open = false;          // stage::open() was called
  bool has_turn = false;         // of one that is_last: now
  bool puts_several = false;     // of one item, as was seen
  bool may_wait = false;         // what waits before it can be in a checkpoint
  bool feeds_unwritten = false;  // what waits behind it cannot
  bool is_unheard = false;       // what it puts goes to nobody (stage_output::set_unheard)
  bool has_chores = false;       // with each item: a ticket, a loop, a deadline, an early end
  flow_edge* only = nullptr;     // the edge of output 0 where that has one
  std::unique_ptr<stage> what;
  std::shared_ptr<stage_counters> counters;
  item_origin origin;           // of the item at hand
  std::optional<error> failed;  // of the item at hand
  const flow_stage_info* info = nullptr;
  std::vector<flow_edge*> in;
  std::vector<std::vector<flow_edge*>> out;
  double called_ns = 0;  // of a deal: what a call of a replica here takes; 0: none was called yet
  std::uint32_t inputs_ended = 0;  // that the stage was told of
  std::uint32_t outputs_open = 0;  // edges
  std::uint64_t failures = 0;
  std::uint64_t made = 0;                         // by a source
  std::uint32_t until_noted = 1, note_every = 1;  // items of a source whose birth is noted
  std::int64_t noted_ns = 0;
  std::uint32_t loop_item = no_port;  // the feedback that the item at hand is counted in
  std::int64_t deadline_ns = never_ns;
  std::int64_t blocked_since_ns = 0;
  double mean_ns = 0;                                   // of a call
  std::shared_ptr<stage_replacement> replacement;       // waits until it has nothing more to put
  std::shared_ptr<stage_change> change;                 // that `what` came by; null: it was there
  std::function<std::unique_ptr<stage>()> make_before;  // what that has replaced; null: its info's

  // Its function as it was made last, anew.
  std::function<std::unique_ptr<stage>()> make() const;
  // It can be called, unless it looks for room itself.
  bool is_idle() const noexcept { return !is_busy && !has_more && !is_over && full_outputs == 0; }
};

class flow_group {
 public:
  enum class state : std::uint8_t { idle, more, over, failed };

  // All stages of `g`, which was checked, but for those that are elsewhere; open, unless one has
  // failed to (failure()).
  // `over`, where given: stages that are not opened, since they are over in the checkpoint that it
  // goes on from.
  explicit flow_group(std::shared_ptr<const flow_graph> g, const std::vector<bool>& over = {});
  flow_group(flow_group&&) noexcept = default;
  flow_group& operator=(flow_group&&) noexcept = default;
  ~flow_group();

  // `group_of[i]`: the number of the group that stage i goes to. Those of a feedback stay together.
  static std::vector<flow_group> cut(flow_group&& whole,
                                     const std::vector<std::uint32_t>& group_of);
  static flow_group put_together(std::vector<flow_group>&& parts);

  // Of a group that is put together: those stages, which are elsewhere and is_kept, are gone with
  // their process. What they had is dealt again (kept_replicas.hpp, recovered_replicas.hpp).
  void lose(const std::vector<std::uint32_t>& stages);

  // Of a group that is put together: what is not done yet of items that sources have made, in a few
  // words; empty: nothing is, and keep() may be called.
  std::string under_way() const;
  // Replicas in other processes work on items.
  bool has_items_elsewhere() const;
  // As it is. Errors: those of stages, which go on as if they had not been asked. Throws
  // std::bad_alloc.
  result<topology_checkpoint> keep();
  // Of one that nobody has run: everything is as in the checkpoint. usage: that is of another
  // topology; failed: it does not fit, or a stage cannot go on from it.
  result<void> go_on_from(const topology_checkpoint& c);

  // Fires what can fire, until nothing can, or `until_ns` has come. `wire`: null where the group is
  // whole.
  state run(const std::function<std::int64_t()>& now_ns, std::int64_t until_ns, flow_wire* wire);
  // When run() is to be called, though nothing has come.
  std::int64_t wakes_at() const noexcept;
  void deliver(std::uint32_t edge, std::vector<flow_item>&& items, bool is_last);
  void room(std::uint32_t edge);
  void close(std::uint32_t edge);
  // Sources make no more; what is under way goes on to its end.
  void finish();
  // Sources make nothing until they are to go on; what is under way goes on. `is_held`: and nothing
  // more is given to replicas that may be in other processes.
  void pause(bool is_paused, bool is_held = false);
  // Another function takes over as soon as the stage has put all of its item at hand.
  void replace(std::shared_ptr<stage_replacement> r);
  // That stage may have something to do, for a reason that stands in no queue.
  void look(std::uint32_t stage);
  // Sends what waits for more.
  void flush();

  const std::optional<flow_failure>& failure() const noexcept { return failure_; }
  bool is_over() const noexcept { return open_ == 0; }
  bool has_stage(std::uint32_t i) const noexcept { return slots_[i] != nullptr; }
  bool has_edge(std::uint32_t i) const noexcept { return edges_[i] != nullptr; }
  // All zero of a stage that is not here.
  const stage_counters& counters(std::uint32_t stage) const;
  std::shared_ptr<stage_counters> shared_counters(std::uint32_t stage) const {
    return slots_[stage]->counters;
  }
  const std::shared_ptr<edge_meter>& meter(std::uint32_t edge) const { return edges_[edge]->meter; }
  const flow_graph& graph() const noexcept { return *graph_; }
  // Where it notes which stage runs, and since when: what a tool says where a group does not come
  // back.
  void set_pulse(std::shared_ptr<group_pulse> pulse) noexcept { pulse_ = std::move(pulse); }

 private:
  friend class stage_output;
  struct loop_state {
    std::uint64_t in_flight = 0;
  };
  flow_group() = default;
  void wire_slots();
  std::vector<flow_item> made_again(flow_edge& in, flow_edge& out);
  void deal_again(flow_edge& before, std::vector<flow_item>&& again);
  void count_full();
  void blocked(flow_slot& s);
  void goes_on(flow_slot& s);
  // `Origin`: item_origin&& of the last item that comes of one, else const item_origin&.
  template <class Origin>
  void put(flow_slot& s, std::uint32_t port, any_value&& value, Origin&& origin);
  template <class Origin>
  void put_to_all(flow_slot& s, std::uint32_t port, any_value&& value, Origin&& origin);
  template <class Origin>
  void send(flow_edge& e, any_value&& value, Origin&& origin, std::size_t bytes);
  bool is_full(const flow_edge& e) const noexcept;
  void set_full(flow_edge& e);
  template <class Origin>
  void take(flow_slot& s, flow_edge& e, any_value&& value, Origin&& origin, std::size_t bytes);
  bool open(flow_slot& s);
  void begin_anew(flow_slot& s);
  void replace_now(flow_slot& s);
  static void put_state(flow_slot& s, stage_output& out);
  void take_mark(flow_slot& s, any_value&& value);
  template <class Call>
  void call(flow_slot& s, Call c);
  template <class Call>
  void call_measured(flow_slot& s, const Call& c);
  template <class Call>
  void call_bare(flow_slot& s, const Call& c);
  void note_birth(flow_slot& s);
  void go_on(flow_slot& s);
  void after(flow_slot& s);
  void failed(flow_slot& s);
  std::string name_item(const item_origin& o) const;
  const std::string& source_name(const item_origin& o) const;
  std::uint32_t fire(flow_slot& s, std::uint32_t most);
  bool fire_once(flow_slot& s);
  static bool has_done_all(const flow_slot& s) noexcept;
  std::uint32_t take_in_a_row(flow_slot& s, std::uint32_t most);
  std::uint32_t produce_in_a_row(flow_slot& s, std::uint32_t most);
  bool produce(flow_slot& s);
  bool can_be_called(const flow_slot& s) const noexcept;
  bool is_held_back(const flow_slot& s) const noexcept;
  flow_item pop(flow_edge& e);
  void end_edge(flow_edge& e);
  void close_input(flow_edge& e);
  void over(flow_slot& s);
  void output_closed(flow_slot& s);
  void needs_no_more(flow_slot& s);
  void loop_closed(std::uint32_t loop);
  void post(flow_edge& e);
  void post_alone(flow_edge& e);
  void tell_taken(flow_edge& e);
  void mark(const flow_slot& s) noexcept {
    ready_[s.id / 64] |= std::uint64_t{1} << (s.id % 64);
    has_marked_ = true;
  }
  flow_slot* next_ready();
  enum class last_turn : std::uint8_t { none, after_messages, now };
  last_turn turn_of_last();

  std::shared_ptr<const flow_graph> graph_;
  std::vector<std::unique_ptr<flow_slot>> slots_;  // by stage; null: another group's
  std::vector<std::unique_ptr<flow_edge>> edges_;  // by edge; null: neither end is here
  std::vector<std::uint64_t> ready_;               // bits by stage: it may have something to do
  std::vector<std::uint32_t> timed_;               // stages with a deadline
  std::vector<std::uint32_t> last_;                // that have their turn when others have none
  std::vector<std::uint32_t> outgoing_;            // edges to other groups
  std::vector<std::uint32_t> letters_;             // of those, the ones of dead letters
  std::vector<loop_state> loops_;
  std::shared_ptr<group_pulse> pulse_;
  std::uint32_t ticks_ = 0;  // coarse time of the last look at the clock
  std::uint32_t source_cursor_ = 0;
  std::uint32_t open_ = 0;  // stages that are not over
  std::uint32_t sources_ = 0;
  std::uint32_t depth_ = 0;
  std::uint32_t look_every_ = 1;      // firings
  bool last_are_next_ = false;        // others have had theirs
  bool has_marked_ = false;           // some stage, since this was false
  std::uint32_t until_measured_ = 1;  // calls from outside
  bool is_measuring_ = false;
  std::int64_t inner_ns_ = 0;
  bool is_closing_ = false, is_paused_ = false, is_held_ = false;
  std::optional<flow_failure> failure_;
  // During run().
  const std::function<std::int64_t()>* now_ = nullptr;
  flow_wire* wire_ = nullptr;
  std::int64_t until_ns_ = never_ns;
};

}  // namespace troupe
