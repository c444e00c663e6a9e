#pragma once
// The decisions of a parameter shard: which gradients count, when they are applied, which version
// goes to which reader.
//
// Pure: it knows numbers, not tensors. The actor reports what happened (on_gradient, on_credit,
// worker_lost), then carries out `while (auto action = state.next())`, in that order, before it
// reports anything else. (One report may be made while it carries out a `claim`: on_credit.) It
// keeps the gradient tensors in one queue per worker, and the variable in `slots()` slots, of which
// slot 0 holds version 0 at the start.
//
//   sync    step t is applied when every worker's gradient of step t is here, in worker order:
//           version t -> t + 1.
//   async   each gradient is applied as it comes: version + 1.
//
// An epoch that goes on where another ended begins with what the shard had then (shard_origin).
// Where the spec says so, the versions before the current one stay in their slots, so that all
// shards of a job can go back to one that each of them has.
//
// A shard that forwards sends each apply on to its replica as well, which is a shard as well: the
// sum of the step's gradients (sync) or the gradient (async). A port to a replica has one credit,
// which comes back when the replica has applied the item.
//
// A cut is a version that is saved for a checkpoint. sync: where spec.cut_every divides the
// version, or where a worker's gradient with a mark says "the version that I am computed from".
// async: after a worker's marked gradient came, its later ones wait until those of all other
// workers have come that belong to the cut (Chandy, Lamport 1985, with the channels empty at the
// cut).
//
// Who pins a version? What was sent is pinned by its consumers: the credit of the edge bounds how
// many there are, and the tensor knows them (tensor::is_unique). What is still to be sent is pinned
// here: it stays in its slot, and when all slots are taken the shard waits for the slow reader. So
// an apply goes in place (`from` == `to`) as far as this class knows; where the tensor of slot `to`
// is not unique, the actor puts another one there and keeps the old one as a spare. There are at
// most slots() + (credits of all edges) tensors.
//
// Threading: one owner.
//
// SS-1  A gradient is (worker, step). It is applied at most once; one that was there before is a
//       duplicate, counted and forgotten, also after any number of recoveries.
// SS-2  received = applied + dropped + duplicates + queued, for every worker, always (from where
//       the epoch began).
// SS-3  Item n of a worker's reader goes out after that worker's gradients of steps < n were
//       applied; in sync it is exactly version n. Items of a reader go out in order, each once.
// SS-4  A slot is never written while a reader will still be sent the version in it.
// SS-5  An item goes out only on a credit: one claim, one on_credit, one send.
// SS-6  (async) A lost worker's queued gradients are applied, later ones dropped, its reader ends;
//       the others go on. An at_end reader gets its item when every worker has sent all its
//       gradients or is lost, and all are applied.
// SS-7  (sync) After worker_lost() returned an error nothing is applied or sent any more.
// SS-8  The last spec.keeps versions before the current one, as far as this epoch made or began
//       with them, are in slots that nobody writes.
// SS-9  The values of a cut hold exactly the gradients of steps < step_w of each worker w, the same
//       on all shards. A cut is saved before the next one is given out; meanwhile applies wait only
//       for a next one that is due. A shard that follows another one gives out none: with
//       all-reduce its sums carry the same marks.
// SS-10 An apply takes the credit of its port to the replica; so the replica has all that went
//       before on that port. Claims for these ports are made as soon as there is none (their
//       readers are numbered behind the spec's), so that on_credit() tells of each item that it is
//       committed.

#include "troupe/runtime/plan/plan.hpp"
#include "troupe/runtime/planted_bugs.hpp"
#include "troupe/schema/error.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace troupe {

// Apply queued gradients: the oldest one of `worker`, or of every worker in order 0, 1, ... where
// worker is -1. The variable goes from slot `from` to slot `to` and is then version `version`.
struct shard_apply {
  std::int32_t worker = -1;
  std::uint64_t step = 0;  // of the gradient
  std::uint32_t from = 0;
  std::uint32_t to = 0;
  std::uint64_t version = 0;
};

// Get hold of a credit on every edge of output port `reader`, then report on_credit(reader): at
// once or later.
struct shard_claim {
  std::uint32_t reader = 0;
};

// Send what is in `slot` on every edge of output port `reader`, as item (step of the tag) `item`.
struct shard_send {
  std::uint32_t reader = 0;
  std::uint64_t item = 0;
  std::uint32_t slot = 0;
  std::uint64_t version = 0;
};

// Save what is in `slot`, with the optimizer's state, for a checkpoint; then report on_saved().
struct shard_cut {
  std::uint64_t step = 0;  // sync: the version; async: gradients applied, all workers together
  std::uint32_t slot = 0;
};

using shard_action = std::variant<shard_apply, shard_claim, shard_send, shard_cut>;

// fed = applied + dropped + in flight; what is in flight is queued here, or was not received.
struct shard_ledger {
  std::uint64_t received = 0;
  std::uint64_t applied = 0;
  std::uint64_t dropped = 0;     // of a worker that is lost
  std::uint64_t duplicates = 0;  // applied or queued before
  friend bool operator==(const shard_ledger&, const shard_ledger&) = default;
};

// What the next progress hangs on.
struct shard_wait {
  enum class kind : std::uint8_t {
    gradient,  // index: the worker (input port), step: of its gradient
    credit,    // index: the reader (output port), step: the item that is due and has no credit
    cut,       // step: of the cut that is being saved while the next one is due
    nothing,   // finished, or failed
  } type = kind::nothing;
  std::uint32_t index = 0;
  std::uint64_t step = 0;
  friend bool operator==(const shard_wait&, const shard_wait&) = default;
};

// What is in the values that a shard begins with.
struct shard_origin {
  std::uint64_t version = 0;           // sync; async: gradients applied, all workers together
  std::vector<std::uint64_t> applied;  // by worker: all its gradients of steps below; empty: none
  // Sync: versions that are in slots 1, 2, ...: a recovery may go back to them.
  std::vector<std::uint64_t> older{};
};

class shard_state {
 public:
  // The spec comes from a checked plan. slots >= 1. The origin's numbers are not below spec.start.
  shard_state(const shard_spec& spec, std::uint32_t slots, const shard_origin& origin = {},
              const planted_bugs* bugs = nullptr);

  enum class arrival : std::uint8_t {
    queued,   // keep the tensor until the apply that takes it
    dropped,  // forget it and give its credit back now
  };
  // A gradient arrived. Error: a gap in the worker's steps, a step beyond its last, a failed shard.
  // `mark`: the tag's.
  result<arrival> on_gradient(std::uint32_t worker, std::uint64_t step, std::uint32_t mark = 0);
  // The claim of `reader` is fulfilled. Of a lost worker: ignored.
  void on_credit(std::uint32_t reader);
  // The last cut is saved, or given up.
  void on_saved();
  // A worker died. async: its inputs and its reader end. sync: an error that names variable, worker
  // and step, unless all gradients of the worker are here already.
  result<void> worker_lost(std::uint32_t worker);

  // The next thing to do, already counted as done; nothing: wait for a report.
  std::optional<shard_action> next();

  // Every gradient applied (or its worker lost), every item sent, every cut saved.
  bool is_finished() const noexcept;
  shard_wait waiting() const noexcept;
  std::uint64_t version() const noexcept { return version_; }
  std::uint32_t slots() const noexcept { return static_cast<std::uint32_t>(slots_.size()); }
  // The version in a slot; nullopt: nothing that anybody may go back to.
  std::optional<std::uint64_t> kept_in(std::uint32_t slot) const noexcept;
  const std::vector<shard_ledger>& ledger() const noexcept { return ledger_; }

 private:
  struct reader_state {
    std::uint64_t items = 0;  // in all
    std::uint64_t sent = 0;
    bool is_claimed = false;
    bool has_credit = false;
  };

  std::uint64_t queued(std::size_t worker) const noexcept;
  bool is_ended(std::size_t worker) const noexcept;
  bool all_applied() const noexcept;
  bool is_due(std::size_t reader) const noexcept;
  std::uint64_t version_due(std::size_t reader) const noexcept;
  bool is_awaited(std::uint64_t version) const noexcept;
  std::uint32_t slot_of(std::uint64_t version) const noexcept;
  std::optional<std::uint32_t> target_slot() const noexcept;
  bool is_kept(std::uint64_t version) const noexcept;
  bool has_gradients() const noexcept;
  bool is_marked(std::size_t worker) const noexcept;
  std::vector<std::uint32_t>::const_iterator next_arrival() const noexcept;
  std::optional<std::uint64_t> cut_due() const noexcept;
  std::size_t forward_of(std::int32_t worker) const noexcept {
    return worker < 0 ? 0 : static_cast<std::size_t>(worker);
  }
  bool may_forward(std::int32_t worker) const noexcept {
    return forwards_.empty() || forwards_[forward_of(worker)].has_credit;
  }
  std::int32_t next_worker() const noexcept;
  std::optional<shard_action> next_claim();
  std::optional<shard_action> next_item();
  std::optional<shard_action> next_apply();
  shard_wait wait_for_gradient() const noexcept;
  shard_wait wait_for_reader() const noexcept;

  shard_spec spec_;
  std::vector<shard_ledger> ledger_;
  std::vector<std::uint8_t> lost_;  // by worker
  std::vector<reader_state> readers_;
  std::vector<reader_state> forwards_;   // claims and credits of the ports to the replica
  std::vector<std::uint64_t> slots_;     // the version in each
  std::vector<std::uint32_t> arrivals_;  // async: workers of the queued gradients, oldest first
  // By worker: 1 + the step whose gradient carried the last mark; 0: none.
  std::vector<std::uint64_t> marks_;
  std::uint64_t version_ = 0;
  std::uint32_t current_ = 0;
  std::uint64_t origin_ = 0;          // the version of the beginning
  std::optional<std::uint64_t> cut_;  // the last one given out
  bool is_saving_ = false;
  bool has_failed_ = false;
  const planted_bugs* bugs_;  // tests only
};

}  // namespace troupe
