#pragma once
// The checkpoints of a job on their way: asked for, made by its shards, written.
//
//   call                     what it means
//   begin_epoch()            these nodes have shards: a cut is whole when each has saved its part
//   is_due() -> ask()        a mark goes to whoever sets marks
//   on_saved()               a node has saved its part of a cut. Of the last one: a manifest is
//                            due, or the cut is lost
//   take_manifests()         what can be written now, and is being written from then on
//   on_manifest()            it is written, or it is not
//   end_epoch()              what is not whole never will be
//
// CU-1  One cut is on its way at a time, and none is begun while a manifest is due or being
//       written; a cut that is not whole after making_max_ns does not hold the next one up.
// CU-2  A manifest can be written when the program has got the losses of all steps that are in it,
//       and not before (RC-2).
// CU-3  Parts of one cut hold the same steps of every worker.
// CU-4  Cuts that are lost in a row are told of at the 1st, 2nd, 4th, ...: what ails a disk ails it
//       each time.
//
// CU-5  A part with a variable that holds NaN is an error (one may hold infinities on purpose), and
// so the cut is lost: no
//       checkpoint is written that nobody could use, and none that is good goes for it.
//
// Threading: one owner. Time is passed in, monotonic, in nanoseconds.

#include "troupe/runtime/planted_bugs.hpp"
#include "troupe/runtime/wire/control_message.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe {

// In why a cut was lost by CU-5: what is made again would be no better.
inline constexpr std::string_view diverged_text = "the training has diverged";

struct cut_manifest {
  std::uint64_t step = 0;
  std::vector<std::uint64_t> worker_steps;
  std::vector<part_saved> parts;
  std::uint32_t epoch = 0;
};

class job_cuts {
 public:
  static constexpr std::int64_t making_max_ns = 60'000'000'000;

  // `every_steps`: of all workers together, 0: not by steps. `every_ns`: 0: not by time. `steps`:
  // that the program has when the job begins.
  job_cuts(std::uint64_t every_steps, std::int64_t every_ns, std::uint64_t steps,
           const planted_bugs* bugs = nullptr)
      : every_steps_(every_steps), every_ns_(every_ns), steps_(steps), bugs_(bugs) {}

  void begin(std::int64_t now_ns) { asked_ns_ = now_ns; }
  void begin_epoch(std::set<node_id> savers) { savers_ = std::move(savers); }
  void end_epoch();

  void want() { is_wanted_ = true; }
  // `steps`: that the program has, of all workers together.
  bool is_due(std::int64_t now_ns, std::uint64_t steps) const;
  std::uint32_t ask(std::int64_t now_ns, std::uint64_t steps);  // the number of the mark

  // `error`: why the node could not save it, with who and where; empty: it could. False: the cut is
  // lost, see why_lost().
  bool on_saved(node_id from, const part_saved& p, const std::string& error);
  // `losses`: by worker, how many the program has.
  std::vector<cut_manifest> take_manifests(std::span<const std::uint64_t> losses);
  // False: nobody writes such a one.
  bool on_manifest(std::uint64_t step, std::uint32_t epoch);
  bool is_idle() const { return due_.empty() && open_.empty(); }

  // What there is to tell of a cut that is there, or not there.
  std::optional<std::string> written(std::uint64_t step);
  std::optional<std::string> lost(std::uint64_t step, const std::string& why);
  const std::string& why_lost() const { return why_lost_; }
  std::uint64_t count() const { return count_; }      // written
  std::uint64_t lost_since() const { return lost_; }  // since the last one that is there

 private:
  struct parts {
    std::map<node_id, part_saved> by_node;
    std::string error;
  };

  std::uint64_t every_steps_;
  std::int64_t every_ns_;
  std::uint64_t steps_;  // when the last one was asked for
  const planted_bugs* bugs_;
  std::int64_t asked_ns_ = 0;
  std::uint32_t mark_ = 0;
  bool is_wanted_ = false, is_cutting_ = false;
  std::set<node_id> savers_;
  std::map<std::uint64_t, parts> cuts_;  // by step
  std::vector<cut_manifest> due_;        // whole; the program has not got all of their losses
  std::set<std::pair<std::uint64_t, std::uint32_t>> open_;  // being written: step, epoch
  std::string why_lost_;
  std::uint64_t lost_ = 0;  // since the last one that is there
  std::uint64_t count_ = 0;
};

}  // namespace troupe
