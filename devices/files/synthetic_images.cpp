#include "troupe/devices/files/synthetic_images.hpp"

#include "troupe/devices/files/whole_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <span>
#include <vector>

namespace troupe {
namespace {

constexpr int side = 28;
constexpr std::size_t classes = 10, strokes = 3, segments = 10;

// SplitMix64 as a stream of its own for every sample, so that a sample does not depend on how many
// there are.
class random_stream {
 public:
  random_stream(std::uint64_t seed, std::uint64_t stream)
      : state_(seed * 0x9E3779B97F4A7C15U ^ (stream + 1) * 0xD1B54A32D192ED03U) {}
  float between(float low, float high) noexcept {
    return low + (high - low) * (static_cast<float>(next() >> 40U) * 0x1p-24F);
  }
  std::size_t below(std::size_t n) noexcept {
    return static_cast<std::size_t>((next() >> 32U) * n >> 32U);
  }

 private:
  std::uint64_t next() noexcept {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15U;
    z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27U)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31U);
  }
  std::uint64_t state_;
};

struct point {
  float x = 0, y = 0;
};
using stroke = std::array<point, 3>;  // quadratic Bezier: begin, control point, end
using drawing = std::array<stroke, strokes>;
using image = std::array<float, side * side>;

drawing random_drawing(random_stream& draw) {
  drawing d;
  for (auto& s : d)
    for (auto& p : s) p = {draw.between(4, 24), draw.between(4, 24)};
  return d;
}

// Adds a brush dab: full within half a pixel, fading out over the next one and a half.
void dab(image& img, point at, float ink) {
  const int left = std::max(0, static_cast<int>(at.x) - 2),
            right = std::min(side - 1, static_cast<int>(at.x) + 3);
  const int top = std::max(0, static_cast<int>(at.y) - 2),
            bottom = std::min(side - 1, static_cast<int>(at.y) + 3);
  for (int y = top; y <= bottom; ++y)
    for (int x = left; x <= right; ++x) {
      const float dx = static_cast<float>(x) - at.x, dy = static_cast<float>(y) - at.y;
      const float strength = std::clamp((2.0F - std::sqrt(dx * dx + dy * dy)) / 1.5F, 0.0F, 1.0F);
      auto& pixel = img[static_cast<std::size_t>(y * side + x)];
      pixel = std::max(pixel, ink * strength);
    }
}

// The drawing with every control point moved by up to `wobble` pixels, and all of it by `shift`.
void paint(image& img, const drawing& d, random_stream& draw, float wobble, point shift,
           float ink) {
  for (const auto& s : d) {
    stroke moved;
    for (std::size_t i = 0; i < 3; ++i)
      moved[i] = {s[i].x + shift.x + draw.between(-wobble, wobble),
                  s[i].y + shift.y + draw.between(-wobble, wobble)};
    for (std::size_t i = 0; i <= segments; ++i) {
      const float t = static_cast<float>(i) / static_cast<float>(segments), u = 1 - t;
      const float a = u * u, b = 2 * t * u, c = t * t;
      dab(img,
          {a * moved[0].x + b * moved[1].x + c * moved[2].x,
           a * moved[0].y + b * moved[1].y + c * moved[2].y},
          ink);
    }
  }
}

void make_sample(std::span<std::uint8_t> pixels, std::size_t label,
                 const std::array<drawing, classes>& drawings, random_stream& draw) {
  image img{};
  const auto other = (label + 1 + draw.below(classes - 1)) % classes;
  paint(img, drawings[other], draw, 2.0F, {draw.between(-3, 3), draw.between(-3, 3)},
        draw.between(0.15F, 0.45F));
  paint(img, drawings[label], draw, 2.0F, {draw.between(-2, 2), draw.between(-2, 2)},
        draw.between(0.6F, 1.0F));
  const bool is_negative = draw.below(2) == 0;
  for (std::size_t i = 0; i < img.size(); ++i) {
    const float noisy = (is_negative ? 1.0F - img[i] : img[i]) + draw.between(-0.15F, 0.15F);
    pixels[i] = static_cast<std::uint8_t>(std::clamp(noisy, 0.0F, 1.0F) * 255.0F);
  }
}

std::vector<std::uint8_t> idx_header(std::initializer_list<std::int64_t> sizes) {
  std::vector<std::uint8_t> bytes = {0, 0, 8, static_cast<std::uint8_t>(sizes.size())};
  for (const auto n : sizes)
    for (const int bits : {24, 16, 8, 0}) bytes.push_back(static_cast<std::uint8_t>(n >> bits));
  return bytes;
}

result<void> write_idx(const std::string& path, std::initializer_list<std::int64_t> sizes,
                       std::span<const std::uint8_t> elements) {
  const auto header = idx_header(sizes);
  const std::span<const std::byte> pieces[] = {std::as_bytes(std::span(header)),
                                               std::as_bytes(elements)};
  return host::replace_file(path, pieces);
}

// `first` is the number of the set's first sample: the two sets share drawings, not samples.
result<void> write_set(const std::string& folder, const std::string& set, std::int64_t samples,
                       std::uint64_t first, const std::array<drawing, classes>& drawings,
                       std::uint64_t seed) {
  constexpr std::size_t pixels = side * side;
  const auto n = static_cast<std::size_t>(samples);
  std::vector<std::uint8_t> images(n * pixels), labels(n);
  for (std::size_t i = 0; i < n; ++i) {
    random_stream draw(seed, 1 + first + i);
    labels[i] = static_cast<std::uint8_t>(draw.below(classes));
    make_sample(std::span(images).subspan(i * pixels, pixels), labels[i], drawings, draw);
  }
  if (auto ok = write_idx(folder + "/" + set + "-images-idx3-ubyte", {samples, side, side}, images);
      !ok)
    return ok;
  return write_idx(folder + "/" + set + "-labels-idx1-ubyte", {samples}, labels);
}

}  // namespace

result<void> write_synthetic_images(const std::string& folder, const synthetic_options& options) {
  constexpr std::int64_t samples_max = 1'000'000;
  if (options.train < 1 || options.test < 1 || options.train > samples_max ||
      options.test > samples_max)
    return error(error_code::usage,
                 fmt::format("cannot make {} training and {} test images: expected 1 to {} of each",
                             options.train, options.test, samples_max));
  std::error_code code;
  std::filesystem::create_directories(folder, code);
  if (code)
    return error(error_code::usage,
                 fmt::format("cannot make the folder {}: {}", folder, code.message()));
  std::array<drawing, classes> drawings;
  random_stream draw(options.seed, 0);
  for (auto& d : drawings) d = random_drawing(draw);
  if (auto ok = write_set(folder, "train", options.train, 0, drawings, options.seed); !ok)
    return ok;
  return write_set(folder, "t10k", options.test, samples_max, drawings, options.seed);
}

}  // namespace troupe
