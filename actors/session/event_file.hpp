#pragma once
// Numbers and texts of a training in a file that TensorBoard shows (`tensorboard --logdir FOLDER`).
// A folder is a run: one training, in one or several files, whose names order them.
//
//   auto events = event_file::open("runs/1");
//   if (!events) return events.error();
//   auto ok = (*events)->add_scalar("loss", step, loss);
//
// (fit_options::tensorboard and --tensorboard do it all by themselves.)
//
// Format: records, numbers little-endian (TensorFlow's TFRecord):
//        0      8  n, the bytes of the data
//        8      4  checksum of those 8 bytes: c = CRC-32C, (c >> 15 | c << 17) + 0xa282ead8
//       12      n  data: a message Event (tensorboard/compat/proto/event.proto of TensorBoard) in
//                  the encoding of protocol buffers
//   12 + n      4  checksum of the data
// The first one is the version, brain.Event:2. A number is a Summary.Value with a simple_value (so
// f32, with NaN and infinities), a text one with a tensor of one string, of the plugin "text".
//
// Threading: one thread at a time. Ownership: whoever opened it; its end writes what is left.
// Errors: a text or tag that is none: usage, and nothing is added. The disk: failed (or what open()
// says), from the call that tried to write, and from each that leaves something out (EF-2). The
// program goes on as it likes: a disk that refuses is tried again once a second.
//
// EF-1  The file is whole records, then at most a part of one, whatever ends the process. Nothing
//       is synced: a crash of the machine may take the end.
// EF-2  What a disk does not take is kept and written by a later call, from that byte on. Where
//       more than a MiB waits, a record is left out whole, and its call says so.
// EF-3  What was added waits for a second at most, as long as calls come; flush_if_due() is one for
//       whoever has nothing to add.

#include "troupe/schema/error.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace troupe {

class event_file {
 public:
  using clock = std::chrono::system_clock;
  static constexpr std::size_t tag_bytes_max = 1024, text_bytes_max = std::size_t{256} << 10,
                               waiting_bytes_max = std::size_t{1} << 20;

  // A new file FOLDER/events.out.tfevents.SECONDS.HOST.PID (and .1, .2, ... where that is there)
  // with its version. The folder is made, with its parents. usage: it is a file, or may not be
  // written; not_found: no such place; failed: the disk is full or broken.
  static result<std::unique_ptr<event_file>> open(const std::string& folder);
  ~event_file();
  event_file(const event_file&) = delete;
  event_file& operator=(const event_file&) = delete;

  const std::string& path() const noexcept { return path_; }

  // What the folder has of this step and later ones, of any tag, is void: a training that goes on
  // from a checkpoint, or begins again, makes them anew.
  result<void> begin_at(std::uint64_t step, clock::time_point at = clock::now());
  // Tags: UTF-8, not empty; TensorBoard groups them by what stands before their first '/'. Steps of
  // a tag grow: some versions show the last one alone of several of one step.
  result<void> add_scalar(std::string_view tag, std::uint64_t step, double value,
                          clock::time_point at = clock::now());
  // Shown as Markdown. Bytes that are no UTF-8 become '?'.
  result<void> add_text(std::string_view tag, std::uint64_t step, std::string_view text,
                        clock::time_point at = clock::now());

  result<void> flush();
  result<void> flush_if_due();
  // Flushes; says whether all that was added is in the file. Nothing is added afterwards.
  result<void> close();

 private:
  event_file(int file, std::string path) : file_(file), path_(std::move(path)) {}
  result<void> add(std::string_view event);
  error cannot_write(int number) const;

  int file_;
  std::string path_;
  std::string waiting_;  // behind what the file has
  bool is_failing_ = false, has_lost_ = false;
  std::chrono::steady_clock::time_point tried_{};
};

// Whether to write the n-th (from 0) of numbers that may be very many, such as the losses of all
// steps: all below 2^20, every second one from there to 2^21, every fourth to 2^22, ... A number is
// some 50 bytes, so a tag has 50 MiB for the first 2^20, and 25 for each time that they double.
bool is_kept(std::uint64_t n) noexcept;

}  // namespace troupe
