#pragma once
// What the sources of files have in common: which files a pattern means, and going through them.
// runtime/flow/ only.
//
// Threading and ownership: as a stage (stage.hpp); the file that is open belongs to it.
//
// EAF-1  Files come in the order of their names, as they were when the first one was asked for.
// EAF-2  A file that cannot be opened, and one whose read() gives an error, fails one item; the
//       next file follows where the stage's policy goes on.

#include "troupe/devices/files/byte_source.hpp"
#include "troupe/runtime/flow/file_stages.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace troupe {

struct found_file {
  std::string path;
  std::int64_t size = 0, changed_ns = 0;
  std::uint64_t inode = 0;
  std::optional<error> why{};  // it cannot be read
};

// What matches now, in the order of its names. not_found: no such folder; usage: no pattern.
result<std::vector<found_file>> matching(const std::string& pattern, bool follows_out);

inline std::shared_ptr<const std::string> label_of(const std::string& path) {
  return std::make_shared<const std::string>(path);
}

// A source that opens one file after the other.
class each_file : public stage {
 public:
  each_file(std::string pattern, bool follows_out)
      : pattern_(std::move(pattern)), follows_out_(follows_out) {}
  bool take(std::uint32_t, any_value&&, stage_output&) override { return false; }
  source_state produce(stage_output& out) override;
  // The name of the last file, and how much of it was read: files that come before that name are
  // done, those that have come since then with such a name are not looked at.
  result<tensor> keep(const item_types&) override;
  result<void> reopen(const tensor& kept, const item_types&) override;

 protected:
  virtual result<void> open(const std::string& path) = 0;
  // Puts an item, or fails one of which others follow. False: the file has no more.
  virtual result<bool> read(stage_output& out) = 0;

 private:
  std::string pattern_;
  result<void> skip_to_position(stage_output& out);
  bool follows_out_, has_looked_ = false, is_open_ = false;
  std::vector<found_file> files_;
  std::size_t next_ = 0;
  std::uint64_t reads_ = 0;      // of the file that is open, or was last
  std::string goes_on_at_;       // of a checkpoint: the last file; empty: there is none
  bool goes_on_inside_ = false;  // which was not read to its end
};

// One whose files may be packed.
class each_unpacked_file : public each_file {
 public:
  using each_file::each_file;

 protected:
  virtual result<void> begin(std::unique_ptr<byte_source> bytes) = 0;

 private:
  result<void> open(const std::string& path) final;
};

// Adds a source of that kind; `args` follow the pattern and follows_out in its constructor.
template <class Stage, class... Args>
std::uint32_t add_file_source(flow_graph& t, const char* kind, const std::string& pattern,
                              const file_options& o, const source_location& where, Args... args) {
  stage_info info;
  info.name = !o.name.empty() ? o.name : fmt::format("{}({})", kind, pattern);
  info.is_named = !o.name.empty();
  info.kind = kind;
  info.where = where;
  info.on_error = o.on_error;
  info.has_position = true;
  info.make = [=] {
    return std::unique_ptr<stage>(std::make_unique<Stage>(pattern, o.follows_links_out, args...));
  };
  return add_source(t, std::move(info), o.dead_letters);
}

}  // namespace troupe
