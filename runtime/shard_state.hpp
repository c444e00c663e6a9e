#pragma once
// The decisions of a parameter shard: which gradients count, when they are applied, which version goes to which reader.
//
// Pure: it knows numbers, not tensors. The actor reports what happened (on_gradient, on_credit, worker_lost), then carries
// out `while (auto action = state.next())`, in that order, before it reports anything else. The actor keeps the
// gradient tensors in one queue per worker, and the variable in `buffers()` version buffers, of which buffer 0 holds
// version 0 at the start.
//
//   sync    step t is applied when every worker's gradient of step t is here, in worker order: version t -> t + 1.
//   async   each gradient is applied as it comes: version + 1.
//
// A version is written in place where nobody pins or still awaits it, else into another buffer; with no buffer free the
// shard waits. An item that was sent pins its buffer until every edge of its port has returned it.
//
// Threading: one owner.
//
// SS-1  A gradient is (worker, step). It is applied at most once; a repeated or old one is dropped and counted.
// SS-2  received = applied + dropped + queued, for every worker, always.
// SS-3  Item n of a worker's reader goes out after that worker's gradients of steps < n were applied; in sync it is
//       exactly version n. Items of a reader go out in order, each once.
// SS-4  A buffer is never written while an item in it is out, or while a reader will still be sent the version in it.
// SS-5  On each edge, at most its credits of items are out.
// SS-6  (async) A lost worker's queued gradients are applied, later ones dropped, its reader ends; the others go on. An
//       at_end reader gets its item when every worker has sent all its gradients or is lost, and all are applied.

#include "runtime/plan.hpp"
#include "schema/error.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace troupe {

// Apply queued gradients: the oldest one of `worker`, or of every worker in order 0, 1, ... where worker is -1.
// The variable goes from buffer `from` to buffer `to` (the same: in place) and is then version `version`.
struct shard_apply {
  std::int32_t worker = -1;
  std::uint64_t step = 0;  // of the gradient
  std::uint32_t from = 0;
  std::uint32_t to = 0;
  std::uint64_t version = 0;
  friend bool operator==(const shard_apply&, const shard_apply&) = default;
};

// Send what is in `buffer` on every edge of output port `reader`, as item (step of the tag) `item`.
struct shard_send {
  std::uint32_t reader = 0;
  std::uint64_t item = 0;
  std::uint32_t buffer = 0;
  std::uint64_t version = 0;
  friend bool operator==(const shard_send&, const shard_send&) = default;
};

struct shard_action {
  enum class kind : std::uint8_t { apply, send } type = kind::apply;
  shard_apply apply;  // kind apply
  shard_send send;    // kind send
};

// fed = applied + dropped + in flight; what is in flight is queued here, or was not received.
struct shard_ledger {
  std::uint64_t received = 0;
  std::uint64_t applied = 0;
  std::uint64_t dropped = 0;
  friend bool operator==(const shard_ledger&, const shard_ledger&) = default;
};

// What the next progress hangs on.
struct shard_wait {
  enum class kind : std::uint8_t {
    gradient,  // index: the worker (input port)
    credit,    // index: the reader (output port) whose item holds a buffer, or that has no credit for its due item
    nothing,   // finished
  } type = kind::nothing;
  std::uint32_t index = 0;
  std::uint64_t step = 0;  // of the gradient; item of the credit
};

class shard_state {
 public:
  // credits[r][e]: credits of edge e of output port r. Spec and credits come from a checked plan (PL-1..PL-5); `buffers` >= 1.
  shard_state(const shard_spec& spec, std::vector<std::vector<std::uint32_t>> credits, std::uint32_t buffers);

  // Version buffers with which no cycle of pins can form and a slow observer stops nobody soon:
  //   sync   2, so that version t + 1 is written while consumers still read t; one more where there is an observer.
  //   async  max(2, workers). The applied gradient's own worker releases its pins without our help, since its step is
  //          complete; every other worker holds one version back at most while it waits for another shard.
  static std::uint32_t buffers_wanted(const shard_spec& spec) noexcept;

  enum class arrival : std::uint8_t {
    queued,   // keep the tensor until the apply that takes it
    dropped,  // give its credit back now
  };
  // A gradient arrived. Error: a gap in the worker's steps, a step beyond its last, an unknown worker, a failed shard.
  result<arrival> on_gradient(std::uint32_t worker, std::uint64_t step);
  // Edge `edge` of output port `reader` returned its oldest item. Error: it had none. Of a lost worker: ignored.
  result<void> on_credit(std::uint32_t reader, std::uint32_t edge);
  // A worker died. async: its inputs and its reader end, its pins are released. sync: an error that names worker, variable and
  // step, and the shard does nothing any more.
  result<void> worker_lost(std::uint32_t worker);

  // The next thing to do, already counted as done; nothing: wait for a report.
  std::optional<shard_action> next();

  // Every gradient applied (or its worker lost), every item sent and returned.
  bool is_finished() const noexcept;
  shard_wait waiting() const noexcept;
  std::uint64_t version() const noexcept { return version_; }
  std::uint32_t current_buffer() const noexcept { return current_; }
  std::uint32_t buffers() const noexcept { return static_cast<std::uint32_t>(buffers_.size()); }
  const std::vector<shard_ledger>& ledger() const noexcept { return ledger_; }

 private:
  struct worker_state {
    std::uint64_t queued = 0;
    bool lost = false;
  };
  struct reader_state {
    std::vector<std::uint32_t> credits;   // per edge
    std::vector<std::uint64_t> returned;  // items, per edge
    std::vector<std::uint32_t> pins;      // buffer of item i at i % pins.size(), for the items that are out
    std::uint64_t items = 0;              // in all
    std::uint64_t sent = 0;
    std::uint64_t completed = 0;          // returned by every edge
  };
  struct buffer_state {
    std::uint64_t version = 0;
    bool holds_version = false;
    std::uint32_t pins = 0;
  };

  bool all_applied() const noexcept;
  bool is_ended(std::uint32_t worker) const noexcept;
  bool has_credit(const reader_state& r) const noexcept;
  bool awaits(std::size_t reader, std::uint64_t version) const noexcept;
  std::optional<std::uint32_t> due_buffer(std::size_t reader) const noexcept;
  bool is_writable(std::uint32_t buffer) const noexcept;
  std::optional<std::uint32_t> target_buffer() const noexcept;
  std::optional<std::uint32_t> blocking_gradient() const noexcept;
  void release(reader_state& r, std::uint64_t up_to) noexcept;
  std::optional<shard_action> next_send();
  std::optional<shard_action> next_apply();

  shard_spec spec_;
  std::vector<worker_state> workers_;
  std::vector<shard_ledger> ledger_;
  std::vector<reader_state> readers_;
  std::vector<buffer_state> buffers_;
  std::vector<std::uint32_t> arrivals_;  // async: workers of the queued gradients, oldest first
  std::uint64_t version_ = 0;
  std::uint32_t current_ = 0;
  std::uint64_t next_reader_ = 0;
  bool failed_ = false;
};

}  // namespace troupe
