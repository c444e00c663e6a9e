#pragma once
// The checkpoints of one job on a disk. Who may do what is agreed on by names alone
// (checkpoint.hpp):
//
//   the owner of the job   lock_job(), claim_epoch(), then, when every part of a checkpoint is
//                          there, write_manifest(), prune()
//   a node                 write_part() of its own variables, load_part()
//   anybody                list(), verify(), latest_whole()
//
// "Whole" is what verify() finds nothing wrong with. Whatever the disk does, the answer is an error
// of one line, or a list of such lines.
//
// Threading: none of its own; it keeps the disk and two names, and what it does blocks as the disk
// does.
//
// CS-1  After a crash at any moment the newest checkpoint that was whole before is whole, or a
//       newer one is.
// CS-2  A checkpoint is visible once everything in it is durable: parts, then their folder, then
//       the manifest. What is visible is never written again.
// CS-3  prune() keeps the newest `keep` whole ones, whatever is newer than the newest of them, and
//       damaged ones between them (it may be the reading that failed). It takes the manifest away
//       first, and touches no name that it does not know.
// CS-4  An epoch is claimed once: of several that try, one gets it, the others learn who has it.
// CS-5  load_part() gives tensors only from bytes whose hash is right.
// CS-6  Nothing outside of the job's folder is read or written, whatever names it is given.
// CS-7  Of a run that went on from an older checkpoint than the newest (which could not be read
//       then), those that it passed over are no past: it does not go back to them, and they don't
//       count among the `keep`.

#include "troupe/devices/files/disk.hpp"
#include "troupe/devices/files/safetensors.hpp"
#include "troupe/runtime/checkpoint/checkpoint.hpp"
#include "troupe/runtime/planted_bugs.hpp"

namespace troupe {

enum class checkpoint_check : std::uint8_t {
  sizes,     // the manifest, and that every part has its size
  contents,  // also the hash and the tensors of every part: reads them all
};

// A folder with a manifest. Newer ones are greater by `id`.
struct listed_checkpoint {
  checkpoint_id id;
  std::optional<checkpoint_manifest> manifest;
  std::string problem;  // why there is no manifest here, in one line
};

struct checkpoint_list {
  std::vector<listed_checkpoint> checkpoints;  // the newest first
  std::vector<checkpoint_id> incomplete;       // folders without a manifest, the newest first
};

struct latest_checkpoint {
  std::optional<checkpoint_manifest> manifest;  // none: there is no whole checkpoint
  // Newer ones and what is wrong with each, a line each.
  std::vector<std::string> passed_over;
};

// The checkpoints that a run descends from or made: it began in `epoch` with the one of `step`.
// Without saying so: all.
struct checkpoint_lineage {
  std::uint32_t epoch = 0;
  std::uint64_t step = 0;
  bool has(checkpoint_id id) const noexcept { return id.epoch >= epoch || id.step <= step; }
};

class checkpoint_store {
 public:
  // Of the job `job` in the user's folder `folder`; makes nothing yet. `d` outlives it.
  checkpoint_store(disk& d, const std::string& folder, std::string job,
                   const planted_bugs* bugs = nullptr);

  // Of a job's folder, whatever job it is of: for looking only.
  static checkpoint_store at_folder(disk& d, std::string job_folder);

  const std::string& job() const noexcept { return job_; }
  const std::string& folder() const noexcept { return folder_; }  // of the job
  std::string folder_of(checkpoint_id id) const;

  // The program that owns the job holds it for its life. denied: another one does, with what is
  // known of it.
  result<std::unique_ptr<disk_lock>> lock_job();
  // The next epoch, durably. denied: somebody was faster, and who; trying again gives the next but
  // one.
  result<std::uint32_t> claim_epoch(const checkpoint_claimant& who);
  // denied: one of `rivals`, or anybody but `who` where that is given, has claimed a newer epoch
  // than `known`, and who it is. Host and pid count. A claim that cannot be read is nobody's.
  result<void> expect_unclaimed(std::uint32_t known, std::span<const checkpoint_claimant> rivals,
                                const checkpoint_claimant* who = nullptr);
  // The highest one that was claimed or that a checkpoint has; 0: none.
  result<std::uint32_t> newest_epoch();

  // Durable when it returns. Tensors are named as checkpoint.hpp says; they are written straight
  // from their memory. denied: the checkpoint has a manifest already.
  result<checkpoint_part> write_part(checkpoint_id id, std::uint32_t number,
                                     std::span<const named_tensor> tensors);
  // Makes the checkpoint visible; every part must be there with its size. denied: it has a manifest
  // already.
  result<void> write_manifest(const checkpoint_manifest& m);

  // Nothing there: an empty list.
  result<checkpoint_list> list();
  // Everything that is wrong with it, a line each. Memory: the largest part.
  std::vector<std::string> verify(const checkpoint_manifest& m,
                                  checkpoint_check check = checkpoint_check::contents);
  // Of those of `run`.
  result<latest_checkpoint> latest_whole(checkpoint_lineage run = {});
  // In the order of their bytes. Memory: twice the part.
  result<std::vector<named_tensor>> load_part(checkpoint_id id, const checkpoint_part& part);

  // Removes a checkpoint that nobody will finish, and those without a manifest of earlier epochs:
  // on a full disk they would keep the room that the next one needs. One with a manifest stays.
  result<void> remove_unfinished(checkpoint_id given_up);

  // Removes what is older than the `keep` newest whole ones of `run` (keep >= 1), and folders
  // without a manifest that are older than the newest whole one of it. What it removed. An error
  // leaves the rest for the next time.
  result<std::vector<checkpoint_id>> prune(std::size_t keep,
                                           checkpoint_check check = checkpoint_check::contents,
                                           checkpoint_lineage run = {});

 private:
  std::string path_of(checkpoint_id id, std::string_view file) const;
  result<std::vector<std::string>> names();
  result<void> make_job_folder();
  result<void> make_checkpoint_folder(checkpoint_id id);
  result<void> expect_invisible(checkpoint_id id);
  result<checkpoint_manifest> read_manifest(checkpoint_id id);
  result<void> check_size(checkpoint_id id, const checkpoint_part& part);
  result<std::vector<std::byte>> read_part(checkpoint_id id, const checkpoint_part& part);
  result<bool> remove_checkpoint(checkpoint_id id);
  std::string claimed_by(std::uint32_t epoch);

  disk& disk_;
  std::string job_;
  std::string folder_;
  const planted_bugs* bugs_;  // tests only
};

}  // namespace troupe
