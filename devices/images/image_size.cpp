#include "troupe/devices/images/image_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace troupe {
namespace {

constexpr std::int64_t elements_max = std::int64_t{1} << 31;

// u8 in whole numbers: 255 times weights that sum up to 2^22 stays below 2^31.
constexpr int weight_bits = 22;
template <class T>
struct arithmetic;
template <>
struct arithmetic<std::uint8_t> {
  using sum = std::int32_t;
  static constexpr sum start = 1 << (weight_bits - 1);  // a half
  static sum weight(double w) { return static_cast<sum>(std::lround(w * (1 << weight_bits))); }
  static std::uint8_t value(sum s) {
    return static_cast<std::uint8_t>(std::clamp(s >> weight_bits, 0, 255));
  }
};
template <>
struct arithmetic<float> {
  using sum = float;
  static constexpr sum start = 0;
  static sum weight(double w) { return static_cast<sum>(w); }
  static float value(sum s) { return s; }
};

// Of each new pixel along one side: the first old one that counts, how many do, and their weights.
template <class T>
struct filter {
  using sum = typename arithmetic<T>::sum;
  struct place {
    std::int64_t first = 0, count = 0;
  };
  std::vector<place> places;
  std::vector<sum> weights;  // width of them for each place
  std::int64_t width = 0;

  filter(std::int64_t from, std::int64_t to) {
    const double scale = static_cast<double>(from) / static_cast<double>(to);
    const double reach = std::max(scale, 1.0);  // of the triangle, to each side
    width = static_cast<std::int64_t>(std::ceil(reach)) * 2 + 1;
    places.reserve(static_cast<std::size_t>(to));
    weights.resize(static_cast<std::size_t>(to * width));
    std::vector<double> w(static_cast<std::size_t>(width));
    for (std::int64_t i = 0; i < to; ++i) {
      const double centre = (static_cast<double>(i) + 0.5) * scale;
      const auto first = std::max<std::int64_t>(0, static_cast<std::int64_t>(centre - reach + 0.5));
      const auto last = std::min(from, static_cast<std::int64_t>(centre + reach + 0.5));
      const auto count = last - first;
      double all = 0;
      for (std::int64_t k = 0; k < count; ++k) {
        const double distance = (static_cast<double>(first + k) - centre + 0.5) * (1.0 / reach);
        all += w[static_cast<std::size_t>(k)] = std::max(0.0, 1.0 - std::abs(distance));
      }
      for (std::int64_t k = 0; k < count; ++k)
        weights[static_cast<std::size_t>(i * width + k)] =
            arithmetic<T>::weight(w[static_cast<std::size_t>(k)] / all);
      places.push_back({first, count});
    }
  }
};

// Rows to another width. The number of channels is known to the compiler, so that they are as many
// sums in registers.
template <class T, int channels>
void resize_rows(const T* in, T* out, std::int64_t height, std::int64_t width, const filter<T>& f) {
  using math = arithmetic<T>;
  for (std::int64_t y = 0; y < height; ++y, in += width * channels) {
    const auto* weight = f.weights.data();
    for (const auto& [first, count] : f.places) {
      typename math::sum sums[channels];
      for (auto& s : sums) s = math::start;
      const T* pixel = in + first * channels;
      for (std::int64_t k = 0; k < count; ++k, pixel += channels)
        for (int c = 0; c < channels; ++c) sums[c] += weight[k] * pixel[c];
      for (int c = 0; c < channels; ++c) *out++ = math::value(sums[c]);
      weight += f.width;
    }
  }
}
template <class T>
void resize_rows_of_any(const T* in, T* out, std::int64_t height, std::int64_t width,
                        std::int64_t channels, const filter<T>& f) {
  using math = arithmetic<T>;
  for (std::int64_t y = 0; y < height; ++y, in += width * channels)
    for (std::size_t x = 0; x < f.places.size(); ++x)
      for (std::int64_t c = 0; c < channels; ++c) {
        auto s = math::start;
        for (std::int64_t k = 0; k < f.places[x].count; ++k)
          s += f.weights[x * static_cast<std::size_t>(f.width) + static_cast<std::size_t>(k)] *
               in[(f.places[x].first + k) * channels + c];
        *out++ = math::value(s);
      }
}

// Columns to another height: whole rows are added up, `row` elements each.
template <class T>
void resize_columns(const T* in, T* out, std::int64_t row, const filter<T>& f) {
  using math = arithmetic<T>;
  std::vector<typename math::sum> sums(static_cast<std::size_t>(row));
  const auto* weights = f.weights.data();
  for (const auto& [first, count] : f.places) {
    std::ranges::fill(sums, math::start);
    auto* s = sums.data();
    for (std::int64_t k = 0; k < count; ++k) {
      const T* from = in + (first + k) * row;
      const auto weight = weights[k];
      for (std::int64_t i = 0; i < row; ++i) s[i] += weight * from[i];
    }
    for (std::int64_t i = 0; i < row; ++i) out[i] = math::value(s[i]);
    out += row;
    weights += f.width;
  }
}

template <class T>
tensor to_width(const tensor& image, std::int64_t width) {
  const auto& s = image.shape();
  if (width == s.size(1)) return image;
  auto wide = tensor::make({image.type(), {s.size(0), width, s.size(2)}});
  const filter<T> f(s.size(1), width);
  const auto* in = image.data<T>();
  auto* out = wide.data<T>();
  switch (s.size(2)) {
    case 1: resize_rows<T, 1>(in, out, s.size(0), s.size(1), f); break;
    case 2: resize_rows<T, 2>(in, out, s.size(0), s.size(1), f); break;
    case 3: resize_rows<T, 3>(in, out, s.size(0), s.size(1), f); break;
    case 4: resize_rows<T, 4>(in, out, s.size(0), s.size(1), f); break;
    default: resize_rows_of_any<T>(in, out, s.size(0), s.size(1), s.size(2), f);
  }
  return wide;
}
template <class T>
tensor to_height(const tensor& image, std::int64_t height) {
  const auto& s = image.shape();
  if (height == s.size(0)) return image;
  auto high = tensor::make({image.type(), {height, s.size(1), s.size(2)}});
  resize_columns<T>(image.data<T>(), high.data<T>(), s.size(1) * s.size(2),
                    filter<T>(s.size(0), height));
  return high;
}

template <class T>
tensor resize_of(const tensor& image, std::int64_t height, std::int64_t width) {
  if (height == image.shape().size(0) && width == image.shape().size(1)) {
    auto same = tensor::make(image.spec());
    std::ranges::copy(image.bytes(), same.bytes().begin());
    return same;
  }
  return to_height<T>(to_width<T>(image, width), height);
}

// What both refuse of an image.
result<void> check_image(std::string_view doing, const tensor& image) {
  const auto refuse = [&](std::string_view why) {
    return error(error_code::usage, fmt::format("{}: {}", doing, why));
  };
  if (!image) return refuse("there is no tensor");
  if (image.on_device() != nullptr) return refuse("the image lies on a device");
  if (image.shape().rank() != 3 || image.elements() == 0)
    return refuse(fmt::format("the image is {}, not [height, width, channels] with pixels",
                              to_string(image.spec())));
  return {};
}

}  // namespace

result<tensor> resize(const tensor& image, std::int64_t height, std::int64_t width) {
  if (auto ok = check_image("resize", image); !ok) return ok.error();
  if (image.type() != dtype::u8 && image.type() != dtype::f32)
    return error(error_code::usage, fmt::format("resize: the image is {}, and only u8 and f32 are "
                                                "resized",
                                                to_string(image.spec())));
  const auto channels = image.shape().size(2);
  const auto fits = [&](std::int64_t h, std::int64_t w) {
    return h <= elements_max && w <= elements_max && h * w <= elements_max / channels;
  };
  // In between it has the new width and the old height.
  if (height < 1 || width < 1 || channels > elements_max || !fits(height, width) ||
      !fits(image.shape().size(0), width))
    return error(error_code::usage,
                 fmt::format("resize: {} x {} pixels of {} channels were asked for; there is at "
                             "least 1 each way, and at most {} elements, with the old height too",
                             height, width, channels, elements_max));
  return image.type() == dtype::u8 ? resize_of<std::uint8_t>(image, height, width)
                                   : resize_of<float>(image, height, width);
}

result<tensor> crop(const tensor& image, std::int64_t top, std::int64_t left, std::int64_t height,
                    std::int64_t width) {
  if (auto ok = check_image("crop", image); !ok) return ok.error();
  const auto& s = image.shape();
  if (top < 0 || left < 0 || height < 1 || width < 1 || height > s.size(0) || width > s.size(1) ||
      top > s.size(0) - height || left > s.size(1) - width)
    return error(error_code::usage,
                 fmt::format("crop: {} x {} pixels from ({}, {}) on do not lie within {}", height,
                             width, top, left, to_string(image.spec())));
  auto out = tensor::make({image.type(), {height, width, s.size(2)}});
  const auto pixel = static_cast<std::int64_t>(size_of(image.type())) * s.size(2);
  const auto row = static_cast<std::size_t>(width * pixel);
  for (std::int64_t y = 0; y < height; ++y)
    std::memcpy(out.bytes().data() + static_cast<std::size_t>(y) * row,
                image.bytes().data() + ((top + y) * s.size(1) + left) * pixel, row);
  return out;
}

}  // namespace troupe
