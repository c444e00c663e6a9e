// Optimizers of CUDA, on the host, beside the host's.

#include "tests/cuda_kernels/chip_on_host.hpp"
#include "troupe/devices/cuda/optimizers.hpp"

#include <boost/test/unit_test.hpp>

using namespace troupe;
using namespace troupe::test;

namespace {

constexpr std::size_t n = 1037;

std::vector<float> floats(unsigned seed, double low = -1, double high = 1) {
  const auto t = numbers(dtype::f32, {static_cast<std::int64_t>(n)}, seed, low, high);
  return {t.data<float>(), t.data<float>() + n};
}

// A variable with up to three slots, on both sides.
struct both {
  std::vector<float> w = floats(1), a = floats(2), b = floats(3, 0.5, 1), c = floats(4, -0.1, 0.1);
  std::vector<float> w2 = w, a2 = a, b2 = b, c2 = c;
  std::vector<float> g0 = floats(5), g1 = floats(6);
  const float* parts[2] = {g0.data(), g1.data()};

  static stepped on_host(std::vector<float>& v) { return {v.data(), v.data()}; }
  static cuda::code::variable on_cuda(std::vector<float>& v) { return {v.data(), v.data()}; }
  bool is_equal() const { return w == w2 && a == a2 && b == b2 && c == c2; }
};

gradient_sum sums(const both& x, int which) {
  const std::span<const float* const> parts(x.parts);
  switch (which) {
    case 0: return {parts.first(1)};
    case 1: return {parts, 0.5F, 1};
    case 2: return {parts, std::numeric_limits<float>::infinity(), 0.25F};
    default: return {parts.first(0)};
  }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cuda_optimizers)

BOOST_AUTO_TEST_CASE(steps_have_the_bits_of_the_hosts) {
  chip_on_host chip;
  const cuda::launch_site at;
  constexpr auto count = static_cast<std::int64_t>(n);
  for (int which = 0; which < 4; ++which) {
    both x;
    const auto g = sums(x, which);
    const auto on_cuda = cuda::gradient_of(g);
    BOOST_REQUIRE(on_cuda);
    for (const bool nesterov : {false, true}) {
      const sgd_numbers k{0.1F, 0.9F, 0.01F, nesterov};
      sgd_step(both::on_host(x.w), both::on_host(x.a), g, n, k);
      BOOST_REQUIRE(
          cuda::sgd_step(chip, at, both::on_cuda(x.w2), both::on_cuda(x.a2), *on_cuda, count, k));
      BOOST_TEST(x.is_equal(), "sgd " << which);
    }
    for (const float new_first : {0.1F, 0.75F}) {
      const adam_numbers k{0.01F, 0.3F, new_first, 0.99F, 0.01F, 1e-8F, 0.02F, 0.999F};
      adam_step(both::on_host(x.w), both::on_host(x.a), both::on_host(x.b), g, n, k);
      BOOST_REQUIRE(cuda::adam_step(chip, at, both::on_cuda(x.w2), both::on_cuda(x.a2),
                                    both::on_cuda(x.b2), *on_cuda, count, k));
      BOOST_TEST(x.is_equal(), "adam " << which);
    }
    for (int slots = 0; slots < 4; ++slots) {
      const bool has_velocity = slots % 2 == 1, is_centered = slots >= 2;
      const rmsprop_numbers k{0.01F, 0.9F, 0.95F, 0.05F, 1e-6F, 0.01F};
      rmsprop_step(both::on_host(x.w), both::on_host(x.b),
                   has_velocity ? both::on_host(x.a) : stepped{},
                   is_centered ? both::on_host(x.c) : stepped{}, g, n, k);
      BOOST_REQUIRE(cuda::rmsprop_step(chip, at, both::on_cuda(x.w2), both::on_cuda(x.b2),
                                       has_velocity ? both::on_cuda(x.a2) : cuda::code::variable{},
                                       is_centered ? both::on_cuda(x.c2) : cuda::code::variable{},
                                       *on_cuda, count, k));
      BOOST_TEST(x.is_equal(), "rmsprop " << which << " " << slots);
    }
    const adagrad_numbers k{0.01F, 1e-8F, 0.01F};
    adagrad_step(both::on_host(x.w), both::on_host(x.b), g, n, k);
    BOOST_REQUIRE(
        cuda::adagrad_step(chip, at, both::on_cuda(x.w2), both::on_cuda(x.b2), *on_cuda, count, k));
    BOOST_TEST(x.is_equal(), "adagrad " << which);
    const average_numbers m{0.1F, 0.5F};
    average_step(both::on_host(x.w), g, n, m);
    BOOST_REQUIRE(cuda::average_step(chip, at, both::on_cuda(x.w2), *on_cuda, count, m));
    BOOST_TEST(x.is_equal(), "average " << which);
  }
}

BOOST_AUTO_TEST_CASE(the_norm_is_that_of_the_host_to_rounding) {
  chip_on_host chip;
  both x;
  for (const int threads : {1, 3}) {
    team_threads = threads;
    for (int which = 0; which < 4; ++which) {
      const auto g = sums(x, which);
      std::vector<double> workspace(cuda::norm_workspace_bytes(n) / sizeof(double));
      cuda::launch_site at;
      at.workspace = reinterpret_cast<std::byte*>(workspace.data());
      double norm = -1;
      BOOST_REQUIRE(cuda::norm_of(chip, at, *cuda::gradient_of(g), n, &norm));
      BOOST_TEST(std::abs(norm - norm_of(g, n)) <= 1e-12 * norm);
    }
  }
  team_threads = 1;
}

BOOST_AUTO_TEST_CASE(too_many_parts_are_an_error) {
  const std::vector<const float*> parts(17);
  BOOST_TEST(cuda::gradient_of({parts}).error().message() ==
             "a gradient on CUDA has at most 16 parts, here are 17");
}

BOOST_AUTO_TEST_SUITE_END()
