#pragma once
// Numbers of a training in a file that other tools read: a line of JSON or of CSV for each.
//
//   auto record = record_file::open("runs/1.jsonl");
//   if (!record) return record.error();
//   auto ok = (*record)->begin_at(0);
//   if (ok) ok = (*record)->add({.step = 0, .loss = 2.3, .samples_per_second = 5120});
//
// (fit_options::record and --record do it all by themselves.)
//
//   NAME.jsonl  {"step":12,"time":"2026-11-28T21:05:07.250Z","loss":0.5,"learning_rate":0.1,
//               "samples_per_second":5120,"recoveries":0}, a key less where a number is not known;
//               {"step":12,"time":"...","recoveries":0,"result/test_accuracy":0.93} of a metric.
//               What is no finite number is null.
//   NAME.csv    the columns
//   step,time,loss,learning_rate,samples_per_second,recoveries,metric,value,
//               named in the first line; empty where a number is not known. nan, inf and -inf are
//               written so.
//
// Times are UTC. Steps do not fall from line to line.
//
// Threading: one thread at a time. Ownership: whoever opened it; its end writes what is left.
// Errors: those of open(); of a disk: failed, from the call that tried to write, and from each that
// leaves something out (RF-3). A disk that refuses is tried again once a second.
//
// RF-1  The file is whole lines, then at most a part of one, whatever ends the process: a reader
//       takes what ends with a line's end. open() cuts a part of a line off. Each line is written
//       when it is added. Nothing is synced: a crash of the machine may take the end.
// RF-2  No step is there twice: begin_at() takes the lines of that step, and of all later ones, out
//       of the file and of what waits. A training that goes on from a checkpoint makes those again.
//       Where the disk refuses that, nothing is written until it has been done, and close() fails.
// RF-3  What a disk does not take is kept and written by a later call, from that byte on. Where
//       more than a MiB waits, a line is left out whole, and its call says so.
// RF-4  One training at a time writes a file: open() of another one is refused (flock(2), where the
//       file system has it).

#include "troupe/schema/error.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace troupe {

struct record_row {
  std::uint64_t step = 0;
  std::optional<double> loss{}, learning_rate{}, samples_per_second{};
  std::uint64_t recoveries = 0;  // so far, since its program began
  // Of a line of its own: a name, not empty, and its number.
  std::string metric{};
  double value = 0;
};

class record_file {
 public:
  using clock = std::chrono::system_clock;
  static constexpr std::size_t waiting_bytes_max = std::size_t{1} << 20;

  // A file that is there goes on: begin_at() comes before the first add(). usage: the name ends
  // with neither .jsonl nor .csv, the file may not be written, is none of these, or another
  // training writes it (RF-4); not_found: no folder for it; failed: the disk is broken.
  static result<std::unique_ptr<record_file>> open(const std::string& path);
  ~record_file();
  record_file(const record_file&) = delete;
  record_file& operator=(const record_file&) = delete;

  result<void> begin_at(std::uint64_t step);  // RF-2
  // Of a training that has no step left to make: takes the metrics behind the last loss out, since
  // they come again. Before the first add().
  result<void> begin_behind_losses();
  // Steps, the first and the last one, that the file lacked between its end and `step` when it was
  // opened.
  std::optional<std::pair<std::uint64_t, std::uint64_t>> lacking_before(std::uint64_t step) const;
  // Of the last loss that the file had when it was opened.
  std::optional<std::uint64_t> last_step() const noexcept { return last_step_; }
  result<void> add(const record_row& row, clock::time_point at = clock::now());
  result<void> flush();
  result<void> flush_if_due();  // what a disk refused a second ago
  // Flushes; says whether all that was added is in the file. Nothing is added afterwards.
  result<void> close();

 private:
  record_file(int file, std::string path, bool is_csv)
      : file_(file), path_(std::move(path)), is_csv_(is_csv) {}
  result<void> look_at_what_is_there();
  std::optional<std::uint64_t> step_of(std::string_view line) const;
  bool is_result(std::string_view line) const;
  result<void> cut();
  std::string line_of(const record_row& row, clock::time_point at) const;
  error cannot_write(int number) const;

  int file_;
  std::string path_;
  bool is_csv_;
  std::string waiting_;                    // whole lines, behind what the file has
  std::size_t begun_ = 0;                  // bytes of the first one that the file has
  std::optional<std::uint64_t> cut_from_;  // a step; by begin_at(), not done yet
  bool cuts_results_ = false;              // likewise, by begin_behind_losses()
  // Of the file as it was opened: the step of its last loss, and from the one before to it.
  std::optional<std::uint64_t> last_step_;
  std::uint64_t apart_ = 1;
  bool is_regular_ = false;
  bool is_failing_ = false, has_lost_ = false;
  std::chrono::steady_clock::time_point tried_{};
};

}  // namespace troupe
