#include "troupe/devices/host/fused_kernel.hpp"

#include "tests/devices/kernel_harness.hpp"

using namespace troupe;
using namespace troupe::test;

namespace {

struct described_step {
  const char* op;
  std::vector<std::int32_t> operands;
  attributes attrs = {};
  dtype type = dtype::f32;
};

result<std::unique_ptr<kernel>> fuse(kernel_harness& host,
                                     const std::vector<described_step>& group) {
  std::vector<fused_step> steps;
  for (const auto& s : group)
    steps.push_back({std::move(*host.make(s.op, s.attrs)), s.operands, s.type});
  return make_fused_kernel(std::move(steps), host.device().team());
}

// Every step as a kernel of its own.
tensor separately(kernel_harness& host, const std::vector<described_step>& group,
                  const std::vector<tensor>& ports, const tensor_spec& spec) {
  std::vector<tensor> results;
  for (const auto& s : group) {
    std::vector<tensor> operands;
    for (const auto o : s.operands)
      operands.push_back(o >= 0 ? ports[static_cast<std::size_t>(o)]
                                : results[static_cast<std::size_t>(-1 - o)]);
    results.push_back(host.one(s.op, operands, {s.type, spec.shape}, s.attrs));
  }
  return results.back();
}

void check_equal(const std::vector<described_step>& group, const std::vector<tensor>& ports,
                 const tensor_spec& spec) {
  kernel_harness host;
  auto fused = fuse(host, group);
  BOOST_REQUIRE(fused);
  const auto got = kernel_harness::run(**fused, ports, {spec});
  BOOST_REQUIRE_MESSAGE(got, (got ? "" : got.error().text()));
  BOOST_TEST(equal_bits((*got)[0], separately(host, group, ports, spec)));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(fused_kernel)

BOOST_AUTO_TEST_CASE(FK_1_a_dense_layer_gives_the_bits_of_its_ops) {
  check_equal({{"matmul", {0, 1}}, {"add", {-1, 2}}, {"relu", {-2}}},
              {random_tensor({128, 30}, 1), random_tensor({30, 256}, 2), random_tensor({256}, 3)},
              f32({128, 256}));
}

BOOST_AUTO_TEST_CASE(FK_1_ports_may_come_in_any_order) {
  check_equal({{"matmul", {2, 1}}, {"relu_grad", {-1, 0}}},
              {random_tensor({50, 40}, 4), random_tensor({10, 40}, 2), random_tensor({50, 10}, 3)},
              f32({50, 40}));
}

BOOST_AUTO_TEST_CASE(FK_1_a_chain_over_more_than_one_tile_gives_the_bits_of_its_ops) {
  for (const std::int64_t n : {1L, 16L, 16383L, 16384L, 16385L, 100'000L})
    check_equal({{"add", {0, 1}},
                 {"mul", {-1, 2}},
                 {"maximum", {-2, 0}},
                 {"sigmoid", {-3}},
                 {"mul", {-4, -4}}},
                {random_tensor({n}, 1), random_tensor({n}, 2), random_tensor({}, 3)}, f32({n}));
}

BOOST_AUTO_TEST_CASE(FK_1_a_tree_that_uses_results_twice_gives_the_bits_of_its_ops) {
  // x = a b; l = sigmoid(x); r = tanh(x) * c; out = (l + r) * x - l: x and l live long.
  check_equal({{"matmul", {0, 1}},
               {"sigmoid", {-1}},
               {"tanh", {-1}},
               {"mul", {-3, 2}},
               {"add", {-2, -4}},
               {"mul", {-5, -1}},
               {"sub", {-6, -2}}},
              {random_tensor({700, 9}, 1), random_tensor({9, 60}, 2), random_tensor({60}, 3)},
              f32({700, 60}));
}

BOOST_AUTO_TEST_CASE(FK_1_random_trees_give_the_bits_of_their_ops) {
  std::mt19937 bits(7);
  const std::vector<tensor> ports = {random_tensor({410, 100}, 1), random_tensor({410, 100}, 2),
                                     random_tensor({100}, 3), random_tensor({}, 4)};
  for (int trial = 0; trial < 100; ++trial) {
    std::vector<described_step> group;
    const int steps = 1 + static_cast<int>(bits() % 12);
    for (int i = 0; i < steps; ++i) {
      // Operand 0 has the full shape; every step uses the one before it, so that nothing is dead.
      const auto any = [&](bool full) -> std::int32_t {
        const auto choices = static_cast<std::uint32_t>(i) + (full ? 2U : 4U);
        const auto pick = static_cast<std::int32_t>(bits() % choices);
        return pick < i ? -1 - pick : pick - i;
      };
      const auto* op = std::array{"add", "sub", "mul", "maximum"}[bits() % 4];
      group.push_back(bits() % 4 == 0 ? described_step{"tanh", {i > 0 ? -i : 0}}
                                      : described_step{op, {i > 0 ? -i : any(true), any(false)}});
    }
    check_equal(group, ports, f32({410, 100}));
  }
}

BOOST_AUTO_TEST_CASE(a_group_follows_when_shapes_change) {
  kernel_harness host;
  const std::vector<described_step> group = {{"matmul", {0, 1}}, {"add", {-1, 2}}, {"tanh", {-2}}};
  auto fused = fuse(host, group);
  BOOST_REQUIRE(fused);
  for (const std::int64_t batch : {128L, 96L, 0L, 1L, 128L}) {
    const std::vector<tensor> ports = {random_tensor({batch, 20}, 1), random_tensor({20, 300}, 2),
                                       random_tensor({300}, 3)};
    const auto got = kernel_harness::run(**fused, ports, {f32({batch, 300})});
    BOOST_REQUIRE(got);
    BOOST_TEST(equal_bits((*got)[0], separately(host, group, ports, f32({batch, 300}))));
  }
}

// The columns of a matrix, its rows, both, and blocks around: every way in which ports meet the
// result.
BOOST_AUTO_TEST_CASE(FK_1_ports_are_broadcast_in_every_way) {
  for (const std::int64_t columns : {3L, 20'000L})
    check_equal({{"add", {0, 1}}, {"mul", {-1, 2}}, {"sub", {-2, 3}}, {"maximum", {4, -3}}},
                {random_tensor({2, 3, 4, columns}, 1), random_tensor({columns}, 2),
                 random_tensor({4, 1}, 3), random_tensor({2, 1, 1, columns}, 4),
                 random_tensor({3, 1, 1}, 5)},
                f32({2, 3, 4, columns}));
}

BOOST_AUTO_TEST_CASE(FK_1_steps_of_several_element_types_give_the_bits_of_their_ops) {
  const auto b = dtype::boolean, d = dtype::f64;
  const attributes to_double{{"to", std::int64_t{1}}}, to_float{{"to", std::int64_t{0}}};
  for (const std::int64_t n : {5L, 50'000L}) {
    const auto x = random_tensor({n}, 1), y = random_tensor({n}, 2);
    // where(x < y, float(double(x) * double(x)), y) - x
    check_equal({{"less", {0, 1}, {}, b},
                 {"cast", {0}, to_double, d},
                 {"mul", {-2, -2}, {}, d},
                 {"cast", {-3}, to_float},
                 {"where", {-1, -4, 1}},
                 {"sub", {-5, 0}}},
                {x, y}, f32({n}));
    check_equal({{"mul", {0, 1}}, {"greater", {-1, 0}, {}, b}}, {x, y}, {b, {n}});
  }
}

BOOST_AUTO_TEST_CASE(f64_groups_run_too) {
  const auto x = tensor_of<double>({-1, 0.5, 2}, {3}, dtype::f64);
  check_equal({{"mul", {0, 0}, {}, dtype::f64}, {"sub", {-1, 0}, {}, dtype::f64}}, {x},
              {dtype::f64, {3}});
}

BOOST_AUTO_TEST_CASE(groups_that_are_none_are_errors) {
  kernel_harness host;
  BOOST_TEST(!make_fused_kernel({}, host.device().team()));
  BOOST_TEST(!fuse(host, {{"add", {0, 1}}, {"matmul", {-1, 2}}}));
  BOOST_TEST(!fuse(host, {{"add", {0, 1}}, {"relu", {-2}}}));
  BOOST_TEST(!fuse(host, {{"relu", {-2147483647 - 1}}}));
  BOOST_TEST(!fuse(host, {{"relu", {2147483647}}}));
  auto group = fuse(host, {{"add", {0, 1}}, {"relu", {-1}}});
  BOOST_REQUIRE(group);
  BOOST_TEST(!kernel_harness::run(**group, {random_tensor({3}, 1)}, {f32({3})}));
  BOOST_TEST(
      !kernel_harness::run(**group, {random_tensor({3}, 1), random_tensor({2}, 1)}, {f32({3})}));
}

BOOST_AUTO_TEST_SUITE_END()
