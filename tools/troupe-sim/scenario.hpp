#pragma once
// One simulated history: a cluster, a job, and what goes wrong, all drawn from a seed; and the
// judgement of how it ended.
//
// What must hold (and is looked at after every message or at the end):
//
//   IN-1  sync: the losses and the final variables have the bits of an undisturbed run in one
//         process, each step told once, in order.
//   IN-2  async: every gradient is applied exactly once: the variable that counts them has seen
//         workers x steps (with SGD, which can count).
//   IN-3  fed = applied + dropped + in flight, for every worker.
//   IN-4  No actor fails but one that is made to: any other is a bug (a broken invariant of ports,
//         credits, shards, links).
//   IN-5  Progress: once faults stop, the job is done within patience_ns, unless every program that
//         could do it is gone.
//   IN-6  A checkpoint that is visible is whole (unless the scenario damages the disk), and the
//         newest whole one can be gone on from.
//   IN-7  Nobody waits for the dead: after the job no actor of it is left on any process that
//         lives, and none when all have ended.
//
//   IN-8  One writer: in one epoch one node alone makes the versions of a variable, one after the
//         other, and one alone those of its replica (with all-reduce: of each copy, of which a node
//         has one at most).
//   IN-9  Memory is bounded: of tensors, links keep no more than twice what the credits of all
//         edges of two epochs allow (an item's credit may come back before its acknowledgement, and
//         nodes come to an epoch one after the other). Headers are not counted: here tensors are
//         smaller.
//   IN-10 The loss of one node takes no variable away that was not there alone; with replicas, or
//         with all-reduce and several workers, none: looked at where no other fault could.
//   IN-11 Nodes that leave in good order are not missed: no recovery, nothing lost.
//   IN-12 Where nobody dies and disks work, a job that is to write checkpoints does.
//   IN-13 Once faults have stopped, all processes hold each other alive.
//   IN-15 A job that outlives its program is attached to by the next one, which is told every loss
//         from the first on, or has ended with a checkpoint of its last step, which has the bits of
//         IN-1. It is begun anew, from its checkpoints, only where no process is left that had it.
//   IN-14 On devices nothing is read before it was written, nor written while it is read
//         (devices/device/order_checker.hpp); and IN-1 holds for them.
//
// Credits are conserved: actors check it at every item (PA-1, TA-1), and fail else (IN-4).
//
// Threading: one thread.

#include "tools/troupe-sim/sim_job.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

enum class sim_fault_kind : std::uint8_t {
  kill,         // a node, at a message; a new one comes in its place after `ns`
  kill_client,  // the program; it is started again after `ns`, and resumes
  freeze,       // a process stands still for `ns`
  cut,          // the connections between two processes break
  partition,    // nothing passes between two processes for `ns`, in one direction or both
  slow,         // frames between two processes take longer for `ns`
  lose,         // ... are lost, doubled, overtaken for `ns`
  twice,
  reorder,
  join,        // one more node
  disk_full,   // for `ns`
  disk_error,  // the next operations fail
  bit_flip,    // in a file of a checkpoint
  leave,       // a node, in good order; a new one comes after `ns`
  fail,        // an actor of a node throws: of a part of the job, or of the node itself
  // Fails for all: every process ends, and the disk loses what was not synced; all come again after
  // `ns`.
  power,
};
inline constexpr std::size_t sim_fault_kinds = 16;
std::string_view to_string(sim_fault_kind k) noexcept;  // "kill", "kill-client", ...
// A list of names with commas, "all" or "none"; usage error: an unknown one.
result<std::vector<sim_fault_kind>> parse_faults(std::string_view list);

struct sim_fault {
  std::uint64_t at = 0;  // messages handled since the job began
  sim_fault_kind kind{};
  std::uint32_t a = 0, b = 0;
  bool is_one_way = false;
  std::int64_t ns = 0;
};
std::string to_string(const sim_fault& f);

struct sim_scenario {
  std::uint64_t seed = 1;
  std::uint32_t nodes = 3, ps_nodes = 0;
  bool is_one_machine = false;
  sim_job_shape shape{};
  std::vector<sim_fault> faults{};  // by time
};

// Bytes that all edges of that job together can carry, if each crosses processes.
std::size_t edge_bytes(const training_program& program, const sim_job_shape& shape);

struct sim_limits {
  std::uint32_t nodes = 0;  // 0: drawn, 3 to 7
  std::uint64_t steps = 0;  // 0: drawn
  std::vector<sim_fault_kind> faults{};
  bool draws_optimizer = false;    // with schedule and clipping; else SGD
  bool all_reduce = false;         // synchronous jobs exchange their gradients so, without replicas
  bool is_mixed = false;           // in f16, with a scale of the loss
  bool calls_collectives = false;  // programs of synchronous jobs do
  std::uint32_t gpus = 0;          // of each node: jobs compute there
  bool outlives = false;           // jobs that resume write checkpoints, and outlive their programs
};
sim_scenario draw_scenario(std::uint64_t seed, const sim_limits& limits);

struct sim_verdict {
  std::string violation;         // "": all is well
  std::uint64_t trace_hash = 0;  // of the order of all messages and events
  std::uint64_t messages = 0;
  std::int64_t virtual_ns = 0;
  std::uint64_t recoveries = 0, resumed_from_disk = 0, checkpoints = 0, faults = 0,
                device_steps = 0;
  std::vector<std::string> story;  // what the program was told
};

class simulator {
 public:
  static constexpr std::int64_t patience_ns = 60'000'000'000;

  static result<std::unique_ptr<simulator>> make();
  sim_verdict run(const sim_scenario& s, const planted_bugs* bugs = nullptr);
  // The same seed with as few faults as still end in a violation (not necessarily the same one):
  // delta debugging (Zeller and Hildebrandt 2002), one fault at a time. `runs_max` bounds the work.
  sim_scenario shrink(sim_scenario s, const planted_bugs* bugs = nullptr,
                      std::size_t runs_max = 200);

 private:
  explicit simulator(sim_data data) : data_(std::move(data)) {}
  sim_tables tables_;
  sim_data data_;
  sim_reference reference_{tables_, data_};
};

}  // namespace troupe
