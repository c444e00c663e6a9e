#pragma once
// The files in a tar archive, one after the other, from a byte_source; and samples of them, as
// WebDataset groups them (https://github.com/webdataset/webdataset).
//
// Read: ustar (POSIX 1003.1-1988), pax headers (path and size), GNU's long names and sizes in base
// 256, and the form before all of them (v7). What packed the archive as a whole is the source's
// affair: open_any().
//
// Threading: one caller at a time.
//
// TAR-1  Files come in their order, folders are passed over. All else is an error, or passed over
//        with skips_others: links, devices, pipes, and files whose names lead out of a folder that
//        they were unpacked in (absolute, or with a part ".."). Nothing here unpacks anything.
// TAR-2  Always an error, since what follows would be misread: a header whose checksum is wrong,
//        sparse files, archives of several volumes, an entry that is cut, an archive without its
//        end, bytes other than zeros behind that (as of two archives in one file).
// TAR-3  Memory is that of one entry, and grows with what was read of it, not with what its header
//        says.
//
// Errors are one line: the source's, or the name, what is wrong, the entry's name where it is
// known, and the byte at which its header begins. They stay.

#include "troupe/devices/files/byte_source.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe {

struct tar_options {
  bool skips_others = false;                               // TAR-1
  std::uint64_t entry_bytes_max = std::uint64_t{1} << 30;  // of a file; more is an error
};

struct tar_entry {
  std::string name;          // without "./" in front
  std::uint64_t size = 0;    // bytes.size()
  std::uint64_t offset = 0;  // of its header in the archive
  std::vector<std::byte> bytes;
};

class tar_reader {
 public:
  explicit tar_reader(std::unique_ptr<byte_source> source, const tar_options& options = {});

  // The next file; nullopt: the end, behind which nothing was found (TAR-2).
  result<std::optional<tar_entry>> next();
  std::string_view name() const noexcept { return source_->name(); }

 private:
  struct header;
  // What headers in front of an entry say of it.
  struct said {
    std::optional<std::string> name;
    std::optional<std::uint64_t> size;
    bool is_sparse = false;
  };

  result<std::optional<tar_entry>> find_next();
  result<std::optional<header>> read_header();
  result<std::vector<std::byte>> read_data(const header& h, std::uint64_t bytes_max);
  result<void> skip(const header& h, std::uint64_t bytes);
  result<void> take_pax(const header& h, said& out);
  result<void> check_end();
  error bad(const header& h, std::string_view what) const;

  std::unique_ptr<byte_source> source_;
  tar_options options_;
  std::vector<std::byte> scratch_;
  bool is_over_ = false;
  std::optional<error> failed_;
};

// Files whose names are the same up to the first dot behind the last slash: "a/0007.jpg",
// "a/0007.seg.png" and "a/0007.cls" are the sample "a/0007" with the parts "jpg", "seg.png", "cls".
struct tar_sample {
  std::string key;
  std::vector<std::pair<std::string, std::vector<std::byte>>> parts;  // in the archive's order
};

struct tar_sample_limits {
  std::uint64_t sample_bytes_max = std::uint64_t{1} << 30;
  std::size_t parts_max = 1000;
};

// TAR-4  A sample is a row of files with one key that stand next to each other. Files without a
//        dot, or with nothing in front of it, belong to none and are passed over, as WebDataset
//        does. Two parts of one name in a sample are an error.
class tar_sample_reader {
 public:
  explicit tar_sample_reader(tar_reader files, const tar_sample_limits& limits = {});

  result<std::optional<tar_sample>> next();

 private:
  tar_reader files_;
  tar_sample_limits limits_;
  std::optional<tar_entry> ahead_;  // the first file of the next sample
  std::optional<error> failed_;
};

}  // namespace troupe
