#pragma once
// Named tensors in a file of the safetensors format (https://github.com/huggingface/safetensors): a
// little-endian u64, the length of a JSON header; the header, {"name": {"dtype": "F32", "shape":
// [..], "data_offsets": [begin, end]}, ..}; then the bytes of all tensors without gaps. The header
// is padded with spaces so that tensors start 64-byte aligned.
//
// ST-1  A file is written whole or not at all: a temporary file beside it, fsync, rename, fsync of
//       the folder.
// ST-2  Reading takes any bytes: offsets must tile the data exactly and fit shape and dtype.

#include "troupe/devices/files/byte_source.hpp"
#include "troupe/devices/tensor.hpp"
#include "troupe/schema/error.hpp"

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

struct named_tensor {
  std::string name;
  tensor values;
};

// Whether save_safetensors() would find a place there; asked before long work.
result<void> can_save_safetensors(const std::string& path);
// In order of their names, whatever the order given. Equal names are an error.
result<void> save_safetensors(const std::string& path, std::span<const named_tensor> tensors);
result<std::vector<named_tensor>> load_safetensors(const std::string& path);
// The pure halves of both. `path` and `name` are for errors.
//
// What stands in front of the tensors' bytes, and the tensors in the order of their bytes (pointers
// into `tensors`).
struct safetensors_layout {
  std::string head;
  std::vector<const named_tensor*> order;
};
result<safetensors_layout> lay_out_safetensors(std::string_view path,
                                               std::span<const named_tensor> tensors);

// Where a tensor lies in the bytes of a file: from `begin` up to `end`.
struct safetensors_entry {
  std::string name;
  tensor_spec spec;
  std::uint64_t begin = 0, end = 0;
};
// In the order of their bytes, all checked (ST-2).
result<std::vector<safetensors_entry>> parse_safetensors_entries(std::span<const std::byte> bytes,
                                                                 std::string_view name);
// The same of the beginning of a file, in which its header ends; it has `file_bytes` in all.
result<std::vector<safetensors_entry>> parse_safetensors_entries(std::span<const std::byte> begin,
                                                                 std::uint64_t file_bytes,
                                                                 std::string_view name);
// Tensors come in the order of their bytes.
result<std::vector<named_tensor>> parse_safetensors(std::span<const std::byte> bytes,
                                                    std::string_view name);

// The tensors of a file, one after the other in the order of their bytes: memory is that of the
// header (100 MB at most) and of one tensor. One caller at a time; errors stay.
class safetensors_reader {
 public:
  // `source` gives a whole file, of `file_bytes` bytes.
  safetensors_reader(std::unique_ptr<byte_source> source, std::uint64_t file_bytes)
      : source_(std::move(source)), file_bytes_(file_bytes) {}
  // nullopt: the end.
  result<std::optional<named_tensor>> next();

 private:
  result<void> read_head();
  result<std::optional<named_tensor>> read_next();
  result<void> read(std::span<std::byte> into, std::string_view what);
  std::unique_ptr<byte_source> source_;
  std::uint64_t file_bytes_;
  std::vector<safetensors_entry> entries_;
  std::size_t next_ = 0;
  bool has_begun_ = false;
  std::optional<error> failed_;
};

// XXH3-128 over the bytes of the variables in order of their names, 32 hex digits. Equal weights,
// equal text.
std::string weights_hash(std::span<const named_tensor> tensors);

}  // namespace troupe
