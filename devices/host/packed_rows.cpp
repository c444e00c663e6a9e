#include "troupe/devices/host/packed_rows.hpp"

#include <algorithm>
#include <cstring>

namespace troupe {

std::int64_t packed_rows::index(std::size_t i) const noexcept {
  std::int64_t row = 0;  // aligned as f32 only
  std::memcpy(&row, bytes + i * packed_row_bytes(width), sizeof(row));
  return row;
}

bool are_within(const packed_rows& rows, std::int64_t n) noexcept {
  for (std::size_t i = 0; i < rows.count; ++i)
    if (const auto row = rows.index(i); row < 0 || row >= n) return false;
  return true;
}

void unpack_rows(float* out, std::size_t n, const packed_rows& rows) noexcept {
  std::fill_n(out, n * rows.width, 0.0F);
  for (std::size_t i = 0; i < rows.count; ++i) {
    float* to = out + static_cast<std::size_t>(rows.index(i)) * rows.width;
    const float* from = rows.numbers(i);
    for (std::size_t k = 0; k < rows.width; ++k) to[k] += from[k];
  }
}

void row_updater::update(float* w, std::span<const packed_rows> gradients, float learning_rate) {
  places_.clear();
  for (std::uint32_t g = 0; g < gradients.size(); ++g)
    for (std::size_t i = 0; i < gradients[g].count; ++i)
      places_.push_back({gradients[g].index(i), g, i});
  std::sort(places_.begin(), places_.end());
  const auto width = gradients.empty() ? 0 : gradients[0].width;
  sum_.resize(width);
  part_.resize(width);
  for (auto at = places_.begin(); at != places_.end();) {
    const auto row = at->row;
    std::fill(sum_.begin(), sum_.end(), 0.0F);
    while (at != places_.end() && at->row == row) {
      // First the sum of one gradient, as it would have come.
      const auto gradient = at->gradient;
      std::fill(part_.begin(), part_.end(), 0.0F);
      for (; at != places_.end() && at->row == row && at->gradient == gradient; ++at) {
        const float* from = gradients[gradient].numbers(at->at);
        for (std::size_t k = 0; k < width; ++k) part_[k] += from[k];
      }
      for (std::size_t k = 0; k < width; ++k) sum_[k] += part_[k];
    }
    float* to = w + static_cast<std::size_t>(row) * width;
    for (std::size_t k = 0; k < width; ++k) to[k] -= learning_rate * sum_[k];
  }
}

}  // namespace troupe
