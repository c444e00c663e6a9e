#pragma once
// Rows of a matrix with their indices, in one tensor of bytes: what a worker pushes where most rows
// of a gradient are zero.
//
// A packed row is an i64, its index, and then its f32 numbers. The matrix that rows stand for is
// zeros, to which they are added in their order (as scatter_add does); an index may be there more
// than once.
//
// Threading: plain functions over memory.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace troupe {

constexpr std::size_t packed_row_bytes(std::size_t width) noexcept {
  return sizeof(std::int64_t) + width * sizeof(float);
}

struct packed_rows {
  const std::byte* bytes = nullptr;  // aligned as f32
  std::size_t count = 0, width = 0;

  std::int64_t index(std::size_t i) const noexcept;
  const float* numbers(std::size_t i) const noexcept {
    return reinterpret_cast<const float*>(bytes + i * packed_row_bytes(width) +
                                          sizeof(std::int64_t));
  }
};

// Whether every index is one of a matrix with n rows.
bool are_within(const packed_rows& rows, std::int64_t n) noexcept;

// The matrix, of n rows.
void unpack_rows(float* out, std::size_t n, const packed_rows& rows) noexcept;

// w -= learning_rate * g, g being the sum of the matrices in their order, for those rows alone that
// somebody names: values have the bits that sgd_momentum() without momentum gives them.
class row_updater {
 public:
  void update(float* w, std::span<const packed_rows> gradients, float learning_rate);

 private:
  struct place {
    std::int64_t row = 0;
    std::uint32_t gradient = 0;
    std::size_t at = 0;  // in it
    friend auto operator<=>(const place&, const place&) = default;
  };
  std::vector<place> places_;
  std::vector<float> sum_, part_;
};

}  // namespace troupe
