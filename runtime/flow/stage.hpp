#pragma once
// A stage: a step of a topology, as the group that runs it sees it. Users write functions
// (function_stage.hpp), of which stages are made; what chooses among several inputs or waits for a
// time is written against this.
//
// STA-1  A stage is called by one thread at a time, and never while one of its calls is under way.
// STA-2  It is called only while each of its outputs has room for an item, unless stage_info says
//       that it looks for room itself. What it puts beyond that is kept, and it is not called again
//       before there is room.
// STA-3  take(), end(), on_time() and go_on() that return true have more to put: go_on() is called
//       while there is room, until it returns false, and nothing else is called before that.
// Errors: thrown, or told by stage_output::fail(); what happens then is the stage's policy.

#include "troupe/runtime/flow/item.hpp"
#include "troupe/schema/error.hpp"
#include "troupe/schema/source_location.hpp"

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

namespace troupe {

class flow_group;
struct flow_slot;
struct travelling_function;
class lender;
class replica_ledger;
struct value_codec;
struct replica_control;

// What a stage puts its items into, and asks of the group that runs it.
class stage_output {
 public:
  void put(std::uint32_t port, any_value&& value);
  // The last one that comes of the item that was taken.
  void put_last(std::uint32_t port, any_value&& value);
  // With an origin of its own.
  void put_item(std::uint32_t port, flow_item&& it);
  // Of the item at hand.
  const item_origin& origin() const noexcept;
  // It is the last thing that comes of its ticket.
  bool ends_ticket() const noexcept;
  // What is put from now on has this origin.
  void set_origin(item_origin o);
  // Of a source: what its next items are called, such as the path that they are read from.
  void set_label(std::shared_ptr<const std::string> label);
  // Of a source: what it puts goes to nobody and counts for nothing, such as what it reads once
  // more to find the place where it goes on.
  void set_unheard(bool is_unheard) noexcept;
  // The item at hand cannot be made into anything.
  void fail(error e);
  // What fail() was told of it, which then counts for nothing.
  std::optional<error> take_failure();
  // Items that the stage has put so far.
  std::uint64_t items_put() const noexcept;
  bool has_room(std::uint32_t port) const noexcept;
  // Items that the stage behind the port has not taken yet.
  std::uint64_t outstanding(std::uint32_t port) const noexcept;
  // Of a deal: whether the replica behind the port is to get more. For one in this thread nothing
  // waits: what waits before the deal can still go to whoever is free first.
  bool wants_more(std::uint32_t port) const;
  // How much it has to do, to be compared with that of others. One in this thread is called at
  // once, and the deal has no turn meanwhile, so whoever is in another thread wants some items
  // ahead.
  std::int64_t load_of(std::uint32_t port) const noexcept;
  // A checkpoint is to be made: what is given to others now would hold it up.
  bool is_held() const noexcept;
  std::uint32_t ports() const noexcept;  // outputs
  std::uint32_t inputs() const noexcept;
  // Items under way in the loop of a feedback, this stage's own included.
  std::uint64_t in_loop(std::uint32_t feedback) const noexcept;
  // The next item of an input; null: there is none now.
  const flow_item* head(std::uint32_t input) const noexcept;
  // The input has ended, and all its items were taken.
  bool has_ended(std::uint32_t input) const noexcept;
  // Something was given up on purpose, such as the oldest item of a lossy edge.
  void count_dropped(std::uint64_t items) noexcept;
  std::int64_t now_ns() const;
  // A unit of a resource, which the stage gives back by itself; waits for it, and counts that as
  // blocked, not busy.
  std::uint32_t borrow(lender& from);
  // Before a stage sleeps: what was put leaves for other threads now, not with the next ones.
  void flush();

 private:
  friend class flow_group;
  stage_output(flow_group& group, flow_slot& slot) noexcept : group_(group), slot_(slot) {}
  flow_group& group_;
  flow_slot& slot_;
};

enum class source_state : std::uint8_t {
  more,   // call again
  later,  // nothing now; call again at wakes_at()
  over,   // that was the last one
};

// How items are written, by input; the last one counts for those behind it, too. Null: they are
// not.
using item_types = std::vector<const value_codec*>;

inline constexpr std::int64_t never_ns = std::numeric_limits<std::int64_t>::max();
inline constexpr std::uint32_t no_port = std::numeric_limits<std::uint32_t>::max();

class stage {
 public:
  virtual ~stage() = default;
  // Once, before anything else is called: of all stages before the first one runs; of one that
  // stands by, or begins anew, before its first item. An error ends the topology.
  virtual result<void> open() { return {}; }
  virtual bool take(std::uint32_t port, any_value&& in, stage_output& out) = 0;
  virtual bool go_on(stage_output&) { return false; }
  // That input has ended. When all have, and nothing is left to put, the stage's outputs end.
  virtual bool end(std::uint32_t /*port*/, stage_output&) { return false; }
  // Of several inputs: which one to take from; no_port: it waits.
  virtual std::uint32_t choose(const stage_output&) { return 0; }
  // Of a source: some items, one as a rule. Sources are called while their outputs have room.
  virtual source_state produce(stage_output&) { return source_state::over; }
  // When on_time() (of a source: produce()) is to be called at the latest.
  virtual std::int64_t wakes_at() const { return never_ns; }
  virtual bool on_time(std::int64_t /*now_ns*/, stage_output&) { return false; }
  // It is not over, though its inputs have ended: asked again when something is called, such as
  // on_time().
  virtual bool keeps_open() const { return false; }
  // It needs no more items, whatever its inputs have.
  virtual bool is_over() const { return false; }
  // The topology is asked to end: a source makes no more.
  virtual void close() {}
  // What it has learnt from items, as bytes (u8), and the same again for a stage that is new;
  // nullopt: it does not say. False: these bytes are no state of its own.
  virtual std::optional<tensor> save() const { return std::nullopt; }
  virtual bool load(const tensor& /*saved*/) { return false; }
  // For a checkpoint of the topology, while nothing is under way: the same, with what it holds, and
  // after it has made durable what that speaks of. `types`: stage_info::holds_items.
  virtual result<tensor> keep(const item_types& /*types*/) { return save().value_or(tensor{}); }
  // What keep() gave, to a new one, after open(). An empty tensor: there was nothing.
  virtual result<void> reopen(const tensor& kept, const item_types& /*types*/) {
    if (!kept || load(kept)) return {};
    return error(error_code::failed, "what was kept of it is no state of its");
  }
  // It has items that it has taken and not done, such as those that others work on: a checkpoint is
  // not made meanwhile.
  virtual bool has_under_way() const { return false; }
};

// What to do with an item that a stage cannot work on.
struct error_policy {
  enum class kind : std::uint8_t { stop, skip, restart } what = kind::stop;
  // Failures that are borne; the next one stops the topology.
  std::uint64_t at_most = std::numeric_limits<std::uint64_t>::max();
};
// The topology stops with the line of the first failure. The default.
constexpr error_policy stop() noexcept { return {}; }
// The item is left out and counted.
constexpr error_policy skip(
    std::uint64_t at_most = std::numeric_limits<std::uint64_t>::max()) noexcept {
  return {error_policy::kind::skip, at_most};
}
// The item is left out and counted, and the stage begins anew, with a fresh state.
constexpr error_policy restart(std::uint64_t at_most = 10) noexcept {
  return {error_policy::kind::restart, at_most};
}

// How many items come out of how many: what a join of two branches has to know.
struct stage_rate {
  std::uint64_t out = 1, in = 1;
  bool is_known = true;  // false: depends on the data, or on time
  friend bool operator==(const stage_rate&, const stage_rate&) = default;
};
inline constexpr stage_rate unknown_rate{0, 0, false};

// What a function must take, make and keep to come into the place of another one
// (stage_replacement.hpp).
struct function_contract {
  const std::type_info* takes = nullptr;
  const std::type_info* makes = nullptr;  // void: nothing
  bool makes_one = false;                 // of each item
  bool makes_at_end = false;              // and of no item
  std::string state;                      // its layout; empty: it has none
};

// What is known of a stage before it runs.
struct stage_info {
  std::string name;  // unique in its topology
  std::string base;  // of a replica: the name without its number; empty: as `name`
  std::string kind;  // "map", "batch", ...
  source_location where;
  bool is_named = false;  // by the user
  std::function<std::unique_ptr<stage>()> make;
  std::uint32_t inputs = 1, outputs = 1;
  stage_rate rate;
  error_policy on_error;
  // A port that dead letters leave by; no_port: there is none.
  std::uint32_t dead_output = no_port;
  bool is_source = false;
  // produce() may sleep: it has a thread of its own.
  bool may_block = false;
  // It takes items of whichever input has one, in any order.
  bool takes_any = false;
  // It is called while outputs are full, and looks itself.
  bool looks_for_room = false;
  // It is one of several replicas: each ticket ends with an item that says so.
  bool is_replica = false;
  // Whatever it had, others make again (kept_replicas.hpp, recovered_replicas.hpp).
  bool is_kept = false;
  // It is an instance of a lane, and ends when an item says so (recovered_replicas.hpp).
  bool is_recovered = false;
  // Above 0: it has nothing to do before others are lost.
  std::uint32_t stands_by = 0;
  // It keeps items from one call to the next, or from a first to a last one.
  bool holds = false;
  // wakes_at() is asked after each call.
  bool is_timed = false;
  // on_time() is called, once wakes_at() has come, when nobody else of its group has anything to
  // do, nor has anything come from others.
  bool is_last = false;
  // is_over() is asked after each call.
  bool may_be_over = true;
  // It synchronises its inputs: what comes in one waits for the others.
  bool is_join = false;
  // One that the user did not write, which explain() and tools fold.
  bool is_hidden = false;
  std::uint32_t replica = 0, replicas = 1;
  // Items of a window that must be here before the first one leaves.
  std::uint64_t lag = 0;
  // Where it is to run, as the user wrote it; empty: in the program.
  std::string on;
  std::shared_ptr<const travelling_function> travels;  // null: `on` is empty
  // It runs in another process: no group of this one has it.
  bool is_elsewhere = false;
  // A deal or a gather that check() found not to be needed: nobody runs it, and no edge leads
  // there.
  bool is_removed = false;
  // A replica whose items come from one replica of another stage, with their tickets.
  bool is_chained = false;
  // Of a deal and a gather that keep what they deal.
  std::shared_ptr<replica_ledger> ledger;
  // How items are written that wait before it, or that it holds, when a checkpoint is made. Empty:
  // none do. Null: it may have such, which cannot be written.
  item_types holds_items;
  // Of a source: it can be told where to go on (stage::keep).
  bool has_position = false;
  // Why no checkpoint can have all that it keeps; empty: it can.
  std::string forgets;
  // What keep() has of its function; empty: nothing, or only what its kind says.
  std::string state_layout;
  // Null: it is no function, or not one that may be replaced.
  std::shared_ptr<const function_contract> contract;
  // What its function borrows a unit of; null: nothing.
  std::shared_ptr<const lender> borrows;
  // Of a deal and its replicas, whose number may change; null: it stays.
  std::shared_ptr<replica_control> control;

  // Nothing comes of it, but dead letters.
  bool is_end() const noexcept { return outputs == (dead_output == no_port ? 0U : 1U); }
};

}  // namespace troupe
