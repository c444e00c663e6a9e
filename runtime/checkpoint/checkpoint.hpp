#pragma once
// Checkpoints as names and text: what files are called, what a manifest says, and whether that can
// be right. Pure; the files themselves are those of checkpoint_store.hpp.
//
//   JOB/epoch-00000003                                 somebody's claim of epoch 3
//   JOB/lock                                           held by the program that owns the job
//   JOB/step-000000000120.epoch-3/part-0.safetensors   values and optimizer state of some variables
//   JOB/step-000000000120.epoch-3/manifest.json        written last: without it there is no
//                                                      checkpoint
//
// An epoch is one life of a job: each start and each recovery claims a new one. A recovery may go
// on from an older step and do steps again, so of two checkpoints the one of the higher epoch is
// newer, and only within an epoch that of the higher step.
//
// A manifest is indented JSON. Its first two fields ("format", "version") and its last line but one
// (the hash of all bytes before that line) stay the same in all versions, so damage and a newer
// version can be told apart.
//
// CK-1  parse_manifest(to_text(m)) == m, for every m that to_text() takes.
// CK-2  Parsing takes any bytes: a manifest that check_manifest() accepts, or an error of one line
//       that names file and field. One changed bit anywhere is an error.
// CK-3  No name in a manifest leads out of the checkpoint's folder.
// CK-4  Different jobs, epochs, steps and parts have different names, and a name is read back to
//       what it was made from.

#include "troupe/schema/error.hpp"
#include "troupe/schema/tensor_spec.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe {

// 100,000 variables of 160 bytes.
inline constexpr std::size_t manifest_bytes_max = std::size_t{16} << 20;
inline constexpr std::size_t claim_bytes_max = 4096;  // four short fields

struct checkpoint_part {
  std::string file;  // name within the folder
  std::uint64_t bytes = 0;
  std::string hash;  // hash_of() of the whole file
  std::vector<std::string> variables;
  friend bool operator==(const checkpoint_part&, const checkpoint_part&) = default;
};

struct checkpoint_variable {
  std::string name;
  tensor_spec spec;                // exact
  std::vector<std::string> slots;  // of its optimizer, each a tensor of the same spec: "velocity"
  friend bool operator==(const checkpoint_variable&, const checkpoint_variable&) = default;
};

using checkpoint_schedule = std::vector<std::pair<std::string, std::string>>;

struct checkpoint_manifest {
  std::string job;
  std::uint32_t epoch = 0;
  // Sync: version of every variable; async: gradients applied in all.
  std::uint64_t step = 0;
  // Of each logical worker, in the values: where its readers go on.
  std::vector<std::uint64_t> worker_steps;
  // What a run must share to go on bit for bit: "batch" -> "128".
  checkpoint_schedule schedule;
  std::vector<checkpoint_part> parts;
  std::vector<checkpoint_variable> variables;
  std::uint64_t made_unix_ns = 0;
  friend bool operator==(const checkpoint_manifest&, const checkpoint_manifest&) = default;
};

// Who claimed an epoch: for the next one who finds it claimed.
struct checkpoint_claimant {
  std::string client;
  std::string host;
  std::uint64_t pid = 0;
  std::uint64_t unix_seconds = 0;
  friend bool operator==(const checkpoint_claimant&, const checkpoint_claimant&) = default;
};

// Names on the disk (CK-4).
inline constexpr std::string_view manifest_file_name = "manifest.json";
inline constexpr std::string_view lock_file_name = "lock";

// Letters, digits, '_', '-' and '.' (but not in front) stay, every other byte becomes %XX; at most
// 160 characters, where a hash stands for the end of longer names.
std::string job_folder_name(std::string_view job);

struct checkpoint_id {
  std::uint32_t epoch = 0;
  std::uint64_t step = 0;
  // The newer one is greater.
  friend auto operator<=>(const checkpoint_id&, const checkpoint_id&) = default;
};
std::string checkpoint_folder_name(checkpoint_id id);
std::optional<checkpoint_id> parse_checkpoint_folder_name(std::string_view name);

std::string epoch_file_name(std::uint32_t epoch);
std::optional<std::uint32_t> parse_epoch_file_name(std::string_view name);

std::string part_file_name(std::uint32_t number);
bool is_part_file_name(std::string_view name);

// The tensor of a variable's value is called as the variable, that of a slot "NAME#SLOT".
std::string slot_tensor_name(std::string_view variable, std::string_view slot);
// Variable and slot; the slot is empty for a value.
std::pair<std::string_view, std::string_view> split_tensor_name(std::string_view tensor) noexcept;
bool is_variable_name(std::string_view name) noexcept;  // printable ASCII without spaces and '#'
bool is_slot_name(std::string_view name) noexcept;      // small letters, digits and '_'
// A name that may hold anything, for a message: in quotes, on one line, not too long.
std::string in_quotes(std::string_view text);

// XXH3-128 of bytes that come in pieces, as 32 hex digits.
class content_hash {
 public:
  content_hash();
  content_hash(const content_hash&) = delete;
  content_hash& operator=(const content_hash&) = delete;
  ~content_hash();
  void add(std::span<const std::byte> bytes);
  std::string text() const;

 private:
  struct state;
  std::unique_ptr<state> state_;
};
std::string hash_of(std::span<const std::byte> bytes);

// What contradicts itself, as an error that starts with `file`: parts with foreign, equal or no
// names, variables that are in no part or in two, shapes that are not exact, ...
result<void> check_manifest(const checkpoint_manifest& m, std::string_view file);
// Errors of check_manifest(), a text that is no UTF-8, or more than manifest_bytes_max.
result<std::string> to_text(const checkpoint_manifest& m, std::string_view file);
result<checkpoint_manifest> parse_manifest(std::span<const std::byte> bytes, std::string_view file);

std::string to_text(const checkpoint_claimant& c);
result<checkpoint_claimant> parse_claimant(std::span<const std::byte> bytes, std::string_view file);
// client "c1" (pid 12 on host "h")
std::string describe(const checkpoint_claimant& c);

// The optimizer's slots of a variable, as a checkpoint has them and as a job wants them, in any
// order. Error: names variable and both.
result<void> compare_slots(std::string_view variable, std::span<const std::string> has,
                           std::span<const std::string> wanted);

// What differs, as people read it: "batch: the checkpoint was made with 128, this run has 64".
// Empty: the run can go on.
std::vector<std::string> compare_schedule(const checkpoint_manifest& m,
                                          const checkpoint_schedule& wanted);

}  // namespace troupe
