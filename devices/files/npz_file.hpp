#pragma once
// Named tensors in a file of NumPy's format .npz: a zip archive (PKWARE's APPNOTE.TXT 6.3) of .npy
// files, as numpy.savez and numpy.savez_compressed write it. Read: entries as they are or deflated,
// zip64, sizes behind the data. Written: entries as they are, zip64 where they need it, the same
// bytes for the same tensors.
//
// Threading: functions of bytes; files are read and written on the caller's thread.
//
// NZ-1  The central directory is the truth: what headers in front of entries say otherwise does not
//       count, except that they have the same names. Entries lie one behind the other or with gaps,
//       and never overlap.
// NZ-2  Memory is that of the arrays, which an entry's packed bytes must be able to hold; a bomb
//       (unpack_limits) is refused before it is unpacked.
// NZ-3  Checksums are right. What is encrypted, or packed by other means, is an error that names
//       the entry and the means; so is an entry that is no .npy file.
// NZ-4  Names are just names, whatever they look like: no file of that name is made. No two are the
//       same.
//
// Errors are one line: the file's name, the entry's where it is known, what is wrong, and the byte.

#include "troupe/devices/files/byte_source.hpp"
#include "troupe/devices/tensor.hpp"
#include "troupe/schema/error.hpp"

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe {

using named_array = std::pair<std::string, tensor>;

// In the archive's order; "weights.npy" is called "weights". not_found, usage: a file that is none.
result<std::vector<named_array>> load_npz(const std::string& path,
                                          const unpack_limits& limits = {});
// In this order; whole or not at all, as save_npy(). bf16 is written as f32. Equal names, and names
// that are empty, longer than 60,000 bytes or have a zero in them, are errors.
result<void> save_npz(const std::string& path, std::span<const named_array> arrays);
// The pure halves of both. `name` is for errors.
result<std::vector<named_array>> parse_npz(std::span<const std::byte> bytes, std::string_view name,
                                           const unpack_limits& limits = {});
result<std::vector<std::byte>> npz_bytes(std::span<const named_array> arrays,
                                         std::string_view name);

}  // namespace troupe
