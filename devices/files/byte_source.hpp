#pragma once
// A byte_source gives the bytes of a file from its beginning to its end, piece by piece: of a file,
// a pipe or memory, as they are or unpacked. Readers of formats (line_reader.hpp, csv.hpp,
// tar_reader.hpp) take any of them, and ask for no more than they need next.
//
// Threading: a source has one owner and one caller at a time, and starts no thread. read() of a
// pipe waits for whoever writes it; all others wait for a disk at most.
//
// Errors are one line: the source's name, what is wrong, and at which byte of what was read (for
// what is packed, of the packed bytes). Codes: not_found, usage (no file, damaged, cut, a bomb),
// failed (the system).
//
// BS-1  read() gives 1 byte at least, until the end, which stays the end. Of what is unpacked,
//       bytes in front of a damaged or missing one may be given before the error, which then stays.
// BS-2  Unpacking takes memory for its buffers and the window of the format alone: neither a lying
//       header nor a bomb takes more.
// BS-3  A stream that was unpacked to its end was whole: every checksum in it was right, and
//       nothing else follows it.

#include "troupe/schema/error.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

class byte_source {
 public:
  virtual ~byte_source() = default;
  // The next bytes, at most as many as `into` holds, which is not empty; 0: the end (BS-1).
  virtual result<std::size_t> read(std::span<std::byte> into) = 0;
  virtual std::uint64_t position() const noexcept = 0;  // how many bytes it has given
  virtual std::string_view name() const noexcept = 0;   // for errors
};

// A regular file; links are followed.
result<std::unique_ptr<byte_source>> open_file(const std::string& path);
// A pipe, a terminal or anything else that is open, which stays the caller's: standard input is
// read_descriptor(0, "standard input").
std::unique_ptr<byte_source> read_descriptor(int fd, std::string name);
// `bytes` outlive it. At most `piece_bytes_max` at a time: tests of readers give 1.
std::unique_ptr<byte_source> read_memory(
    std::span<const std::byte> bytes, std::string name,
    std::size_t piece_bytes_max = std::numeric_limits<std::size_t>::max());

struct unpack_limits {
  // A bomb is what has become more than `ratio_max` times the packed bytes and more than
  // `bytes_max` bytes. Both: 1 GiB of zeros in 1 MiB is a harmless file.
  std::uint64_t ratio_max = 1000;
  std::uint64_t bytes_max = std::uint64_t{1} << 30;
  // How far back a zstd frame may refer, which is memory: 128 MiB, what zstd itself takes unless it
  // is told otherwise (files by `zstd --ultra --long=31` have 2 GiB).
  std::uint64_t window_bytes_max = std::uint64_t{1} << 27;
};

// gzip (RFC 1952): members one after the other are one stream; zeros may follow a member.
std::unique_ptr<byte_source> gunzip(std::unique_ptr<byte_source> packed,
                                    const unpack_limits& limits = {});
// Zstandard (RFC 8878): frames one after the other are one stream, skippable ones are skipped.
std::unique_ptr<byte_source> unzstd(std::unique_ptr<byte_source> packed,
                                    const unpack_limits& limits = {});
// Unpacks gzip and zstd, which it tells by their first bytes, whatever the name; all else comes as
// it is. What xz, bzip2 or lz4 packed is an error that says so.
result<std::unique_ptr<byte_source>> unpack(std::unique_ptr<byte_source> source,
                                            const unpack_limits& limits = {});
// open_file() and unpack().
result<std::unique_ptr<byte_source>> open_any(const std::string& path,
                                              const unpack_limits& limits = {});

// Fills `into` as far as the source goes: fewer bytes only at its end.
result<std::size_t> read_full(byte_source& source, std::span<std::byte> into);
// All that is left. More than `bytes_max` is an error; memory grows with what was read.
result<std::vector<std::byte>> read_all(byte_source& source, std::uint64_t bytes_max);

}  // namespace troupe
