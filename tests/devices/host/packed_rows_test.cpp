#include "troupe/devices/host/initial_values.hpp"
#include "troupe/devices/host/packed_rows.hpp"

#include "troupe/devices/host/host_device.hpp"
#include "troupe/devices/host/sgd.hpp"
#include "troupe/devices/tensor.hpp"

#include <boost/test/unit_test.hpp>

#include <array>
#include <cstring>
#include <random>
#include <vector>

using namespace troupe;

namespace {

struct drawn_rows {
  std::vector<float> bytes;  // aligned as f32
  packed_rows rows;
  std::vector<std::int64_t> ids;
  std::vector<float> numbers;
};

drawn_rows draw(std::size_t count, std::size_t width, std::int64_t n, unsigned seed) {
  drawn_rows d;
  std::mt19937 random(seed);
  d.numbers.resize(count * width);
  uniform_init(d.numbers, seed, "rows", 1);
  d.bytes.resize(count * packed_row_bytes(width) / sizeof(float) + 1);
  auto* to = reinterpret_cast<std::byte*>(d.bytes.data());
  for (std::size_t i = 0; i < count; ++i) {
    d.ids.push_back(static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n)));
    std::memcpy(to + i * packed_row_bytes(width), &d.ids.back(), sizeof(std::int64_t));
    std::memcpy(to + i * packed_row_bytes(width) + sizeof(std::int64_t),
                d.numbers.data() + i * width, width * sizeof(float));
  }
  d.rows = {to, count, width};
  return d;
}

bool are_equal(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(packed_rows)

BOOST_AUTO_TEST_CASE(unpacked_they_are_what_scatter_add_makes_of_them) {
  for (const std::size_t width : {1U, 3U, 16U, 33U}) {
    const std::size_t n = 7;
    const auto d = draw(40, width, n, static_cast<unsigned>(width));
    std::vector<float> expected(n * width), got(n * width, 5.0F);
    for (std::size_t i = 0; i < d.ids.size(); ++i)
      for (std::size_t k = 0; k < width; ++k)
        expected[static_cast<std::size_t>(d.ids[i]) * width + k] += d.numbers[i * width + k];
    unpack_rows(got.data(), n, d.rows);
    BOOST_TEST(are_equal(got, expected));
  }
}

BOOST_AUTO_TEST_CASE(an_update_row_by_row_has_the_bits_of_one_of_all_rows) {
  for (const std::size_t width : {1U, 5U, 16U})
    for (const std::size_t workers : {1U, 2U, 5U}) {
      const std::size_t n = 30;
      std::vector<float> dense(n * width), velocity(n * width);
      uniform_init(dense, 9, "w", 1);
      auto sparse = dense;
      const auto untouched = dense;
      row_updater updater;
      for (unsigned step = 0; step < 5; ++step) {
        std::vector<drawn_rows> drawn;
        std::vector<troupe::packed_rows> rows;
        std::vector<std::vector<float>> whole;
        std::vector<const float*> gradients;
        for (std::size_t w = 0; w < workers; ++w)
          drawn.push_back(draw(w == 3 ? 0 : 9, width, 20, 100 * step + static_cast<unsigned>(w)));
        for (const auto& d : drawn) {
          rows.push_back(d.rows);
          whole.emplace_back(n * width);
          unpack_rows(whole.back().data(), n, d.rows);
        }
        for (const auto& g : whole) gradients.push_back(g.data());
        sgd_momentum(dense.data(), dense.data(), velocity.data(), gradients, n * width, 0.05F,
                     0.0F);
        updater.update(sparse.data(), rows, 0.05F);
        BOOST_TEST(are_equal(sparse, dense));
      }
      BOOST_TEST(!are_equal(sparse, untouched));
      BOOST_TEST(std::memcmp(sparse.data() + 20 * width, untouched.data() + 20 * width,
                             10 * width * sizeof(float)) == 0);
    }
}

BOOST_AUTO_TEST_CASE(rows_outside_are_found) {
  auto d = draw(5, 3, 4, 1);
  BOOST_TEST(are_within(d.rows, 4));
  for (const std::int64_t wrong : {std::int64_t{4}, std::int64_t{-1}, std::int64_t{1} << 62}) {
    auto* at = reinterpret_cast<std::byte*>(d.bytes.data()) + 2 * packed_row_bytes(3);
    std::memcpy(at, &wrong, sizeof(wrong));
    BOOST_TEST(!are_within(d.rows, 4));
  }
  BOOST_TEST(are_within({nullptr, 0, 3}, 4));
}

BOOST_AUTO_TEST_CASE(the_kernel_packs_indices_of_any_type_and_rank_and_refuses_those_outside) {
  const auto kernels = make_host_kernels();
  host_device device;
  const attributes attrs{{"rows", std::int64_t{5}}};
  const std::int32_t small[] = {0, 4, 2, 4};
  const std::int64_t large[] = {0, 4, 2, 4};
  const auto rows = tensor::of({1, 2, 3, 4, 5, 6, 7, 8}, {2, 2, 2});
  for (const auto& ids : {tensor::of<std::int32_t>(dtype::i32, {2, 2}, small),
                          tensor::of<std::int64_t>(dtype::i64, {2, 2}, large)}) {
    auto k = kernels.find("pack_rows")->make(attrs, device);
    const tensor_spec spec{dtype::u8, {2, 2, 16}};
    BOOST_TEST_REQUIRE(
        static_cast<bool>((*k)->prepare(std::array{ids.spec(), rows.spec()}, std::array{spec})));
    std::array out{tensor::make(spec)};
    BOOST_TEST_REQUIRE(static_cast<bool>((*k)->run(tag{}, std::array{ids, rows}, out)));
    const troupe::packed_rows packed{std::as_const(out[0]).bytes().data(), 4, 2};
    const std::int64_t expected[] = {0, 4, 2, 4};
    for (std::size_t i = 0; i < 4; ++i) {
      BOOST_TEST(packed.index(i) == expected[i]);
      BOOST_TEST(packed.numbers(i)[0] == float(2 * i + 1));
      BOOST_TEST(packed.numbers(i)[1] == float(2 * i + 2));
    }
  }
  const std::int32_t outside[] = {0, 5};
  const auto ids = tensor::of<std::int32_t>(dtype::i32, {2}, outside);
  const auto two = tensor::of({1, 2}, {2, 1});
  auto k = kernels.find("pack_rows")->make(attrs, device);
  const tensor_spec spec{dtype::u8, {2, 12}};
  BOOST_TEST_REQUIRE(
      static_cast<bool>((*k)->prepare(std::array{ids.spec(), two.spec()}, std::array{spec})));
  std::array out{tensor::make(spec)};
  const auto ran = (*k)->run(tag{}, std::array{ids, two}, out);
  BOOST_TEST_REQUIRE(!ran);
  BOOST_TEST(ran.error().message() == "pack_rows: index 1 is 5, expected 0 to 4");
}

BOOST_AUTO_TEST_SUITE_END()
