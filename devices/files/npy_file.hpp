#pragma once
// One tensor in a file of NumPy's format (https://numpy.org/neps/nep-0001-npy-format.html),
// versions 1.0 to 3.0: a magic, a header that is a Python dictionary of element type, order and
// shape, and the elements. Read: elements in either order of bytes, in C's or Fortran's order, by
// Python 2 as well; what is read is little-endian and in C's order. Written: version 1.0.
//
// The types of tensors are f32 (float32), f64, i32, i64, u8, f16 and bool. Others are errors that
// name them: int8, int16, uint16, uint32, uint64, longdouble, complex numbers, dates, texts, Python
// objects, void (as bfloat16 is written, which NumPy itself lacks) and elements with fields.
//
// NY-1  Reading takes any bytes: the elements must be as many as the header says, and nothing may
//       follow them.

#include "troupe/devices/tensor.hpp"
#include "troupe/schema/error.hpp"

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

// not_found, usage: a file that is none. bf16 has no name in the format, and is written as f32.
result<tensor> load_npy(const std::string& path);
// Whole or not at all: a temporary file beside it, then a new name.
result<void> save_npy(const std::string& path, const tensor& t);
// The pure halves of both. `name` is for errors.
result<tensor> parse_npy(std::span<const std::byte> bytes, std::string_view name);
std::vector<std::byte> npy_bytes(const tensor& t);
// What such a file consists of: `head`, then the bytes of `elements`, which is t or what it is
// written as.
struct npy_parts {
  std::string head;
  tensor elements;
};
npy_parts npy_parts_of(const tensor& t);

}  // namespace troupe
