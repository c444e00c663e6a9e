#include "troupe/devices/images/image_file.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

using namespace troupe;

namespace {

using numbers = std::vector<int>;

tensor image_of(const shape& s, const numbers& values) {
  std::vector<std::uint8_t> v(values.begin(), values.end());
  return tensor::of<std::uint8_t>(dtype::u8, s, v);
}
numbers pixels_of(const tensor& t) {
  return {t.data<std::uint8_t>(), t.data<std::uint8_t>() + t.elements()};
}
tensor resized(const tensor& t, std::int64_t height, std::int64_t width) {
  const auto out = resize(t, height, width);
  BOOST_TEST_REQUIRE(bool(out), (out ? "" : out.error().text()));
  BOOST_TEST((out->spec() == tensor_spec{t.type(), {height, width, t.shape().size(2)}}));
  return *out;
}
void check_error(const result<tensor>& t, std::string_view why) {
  BOOST_TEST_REQUIRE(!t, why);
  BOOST_TEST((t.error().code() == error_code::usage));
  BOOST_TEST(t.error().message().find(why) != std::string::npos, t.error().message()
                                                                     << " lacks " << why);
}

// The definition, in double and without tables: the mean of all pixels under the triangle.
double triangle_mean(const float* in, std::int64_t from, std::int64_t stride, std::int64_t to,
                     std::int64_t i) {
  const double scale = double(from) / double(to), reach = std::max(scale, 1.0);
  const double centre = (double(i) + 0.5) * scale;
  double sum = 0, all = 0;
  for (std::int64_t k = 0; k < from; ++k) {
    const double w = std::max(0.0, 1 - std::abs((double(k) + 0.5 - centre) / reach));
    sum += w * in[k * stride], all += w;
  }
  return sum / all;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(image_size)

BOOST_AUTO_TEST_CASE(values_computed_by_hand_come_out) {
  // Twice as wide: a quarter of the neighbour, and none beyond the edges.
  BOOST_TEST(pixels_of(resized(image_of({1, 2, 1}, {0, 100}), 1, 4)) == (numbers{0, 25, 75, 100}),
             boost::test_tools::per_element());
  // Half as wide: centres at 1 and 3, a triangle of 2 to each side: 3/8 and 3/8 of the two nearest
  // and 1/8 of the next; at the edges the rest weighs 3 3 1 of 7.
  BOOST_TEST(pixels_of(resized(image_of({1, 4, 1}, {0, 70, 140, 210}), 1, 2)) == (numbers{50, 160}),
             boost::test_tools::per_element());
  BOOST_TEST(pixels_of(resized(image_of({6, 1, 1}, {0, 8, 16, 240, 80, 0}), 3, 1)) ==
                 (numbers{6, 107, 69}),
             boost::test_tools::per_element());
  // To one pixel: weights 5 7 7 5 of 24.
  BOOST_TEST(pixels_of(resized(image_of({4, 1, 1}, {8, 16, 24, 80}), 1, 1)) == numbers{30});
  // Channels are apart.
  BOOST_TEST(pixels_of(resized(image_of({1, 2, 3}, {0, 1, 2, 100, 101, 202}), 1, 4)) ==
                 (numbers{0, 1, 2, 25, 26, 52, 75, 76, 152, 100, 101, 202}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(the_same_size_is_a_copy_with_memory_of_its_own) {
  const auto t = image_of({2, 2, 1}, {1, 2, 3, 4});
  const auto same = resized(t, 2, 2);
  BOOST_TEST(pixels_of(same) == pixels_of(t));
  BOOST_TEST(same.is_unique());
  BOOST_TEST(t.is_unique());
}

BOOST_AUTO_TEST_CASE(every_size_type_and_number_of_channels_is_the_mean_under_the_triangle) {
  std::mt19937 bits(1);
  for (const std::int64_t channels : {1, 2, 3, 4, 5})
    for (const auto& [h, w, to_h, to_w] : {std::array<std::int64_t, 4>{9, 7, 4, 3},
                                           {5, 6, 11, 13},
                                           {16, 16, 5, 40},
                                           {1, 1, 3, 3},
                                           {30, 2, 1, 2},
                                           {8, 31, 8, 7}}) {
      auto t = tensor::make({dtype::u8, {h, w, channels}});
      auto f = tensor::make({dtype::f32, {h, w, channels}});
      for (std::int64_t i = 0; i < t.elements(); ++i)
        f.data<float>()[i] = t.data<std::uint8_t>()[i] = static_cast<std::uint8_t>(bits());
      const auto as_u8 = resized(t, to_h, to_w), as_f32 = resized(f, to_h, to_w);
      double worst_u8 = 0, worst_f32 = 0;
      for (std::int64_t c = 0; c < channels; ++c) {
        std::vector<float> wide(static_cast<std::size_t>(h * to_w));
        for (std::int64_t y = 0; y < h; ++y)
          for (std::int64_t x = 0; x < to_w; ++x)
            wide[static_cast<std::size_t>(y * to_w + x)] = static_cast<float>(
                triangle_mean(f.data<float>() + y * w * channels + c, w, channels, to_w, x));
        for (std::int64_t y = 0; y < to_h; ++y)
          for (std::int64_t x = 0; x < to_w; ++x) {
            const auto expected = triangle_mean(wide.data() + x, h, to_w, to_h, y);
            const auto at = (y * to_w + x) * channels + c;
            worst_u8 = std::max(worst_u8, std::abs(as_u8.data<std::uint8_t>()[at] - expected));
            worst_f32 = std::max(worst_f32, std::abs(double(as_f32.data<float>()[at]) - expected));
          }
      }
      BOOST_TEST(worst_u8 <= 1.0);  // rounded twice
      BOOST_TEST(worst_f32 <= 1e-4);
    }
}

BOOST_AUTO_TEST_CASE(one_colour_stays_that_colour_at_every_size) {
  for (const int value : {0, 1, 127, 254, 255})
    for (const std::int64_t to : {1, 2, 3, 10, 64, 200}) {
      const auto t = resized(image_of({64, 64, 1}, numbers(64 * 64, value)), to, to);
      BOOST_TEST(pixels_of(t) == numbers(static_cast<std::size_t>(to * to), value));
    }
}

BOOST_AUTO_TEST_CASE(what_cannot_be_resized_is_an_error) {
  const auto t = image_of({2, 2, 1}, {1, 2, 3, 4});
  check_error(resize(t, 0, 1), "at least 1 each way");
  check_error(resize(t, 1, -1), "at least 1 each way");
  check_error(resize(t, std::int64_t{1} << 40, 1), "at most 2147483648 elements");
  check_error(resize(t, 1, std::int64_t{1} << 31), "at most 2147483648 elements");
  check_error(resize(t, std::int64_t{1} << 20, std::int64_t{1} << 20), "at most");
  check_error(resize(tensor{}, 1, 1), "no tensor");
  check_error(resize(image_of({2, 2}, {1, 2, 3, 4}), 1, 1), "u8[2, 2], not [height");
  check_error(resize(image_of({0, 2, 1}, {}), 1, 1), "with pixels");
  const auto i32 = tensor::of<std::int32_t>(dtype::i32, {1, 1, 1}, std::vector<std::int32_t>{1});
  check_error(resize(i32, 1, 1), "only u8 and f32");
}

BOOST_AUTO_TEST_CASE(a_crop_is_the_box_of_the_image) {
  const auto t = image_of({3, 4, 2}, {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11,
                                      12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23});
  const auto box = crop(t, 1, 2, 2, 2);
  BOOST_TEST_REQUIRE(bool(box));
  BOOST_TEST((box->shape() == shape{2, 2, 2}));
  BOOST_TEST(pixels_of(*box) == (numbers{12, 13, 14, 15, 20, 21, 22, 23}));
  const auto all = crop(t, 0, 0, 3, 4);
  BOOST_TEST_REQUIRE(bool(all));
  BOOST_TEST(pixels_of(*all) == pixels_of(t));
  const auto f = crop(tensor::of({1, 2, 3, 4}, {2, 2, 1}), 1, 1, 1, 1);
  BOOST_TEST_REQUIRE(bool(f));
  BOOST_TEST(f->data<float>()[0] == 4);
  constexpr auto far = std::numeric_limits<std::int64_t>::max();
  for (const auto& [top, left, height, width] : {std::array<std::int64_t, 4>{-1, 0, 1, 1},
                                                 {0, -1, 1, 1},
                                                 {0, 0, 0, 1},
                                                 {0, 0, 1, 0},
                                                 {2, 0, 2, 1},
                                                 {0, 3, 1, 2},
                                                 {far, 0, 1, 1},
                                                 {1, 0, far, 1},
                                                 {0, 0, 1, far}})
    check_error(crop(t, top, left, height, width), "do not lie within u8[3, 4, 2]");
  check_error(crop(tensor{}, 0, 0, 1, 1), "no tensor");
}

BOOST_AUTO_TEST_SUITE_END()
