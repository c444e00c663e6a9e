#include "troupe/devices/host/tile_team.hpp"

#include "tests/devices/kernel_harness.hpp"
#include "tests/support/idle_threads.hpp"
#include "tests/support/repetitions.hpp"
#include "tests/support/wait.hpp"
#include "troupe/devices/host/fused_kernel.hpp"

#include <algorithm>
#include <chrono>
#include <functional>
#include <set>
#include <stdexcept>

using namespace troupe;
using namespace troupe::test;

namespace {

tensor random_tensor(const shape& s, std::uint64_t seed, dtype type = dtype::f32) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> value(-1, 1);
  auto t = tensor::make({type, s});
  for (std::int64_t i = 0; i < t.elements(); ++i)
    type == dtype::f32 ? static_cast<void>(t.data<float>()[i] = static_cast<float>(value(random)))
                       : static_cast<void>(t.data<double>()[i] = value(random));
  return t;
}

void check_same_bits(const std::string& what, const std::vector<tensor>& a,
                     const std::vector<tensor>& b) {
  BOOST_REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    BOOST_TEST(std::ranges::equal(a[i].bytes(), b[i].bytes()), what << ": output " << i);
}

constexpr int turns = repetitions(10) == 10 ? 3 : 1;  // sanitizers see no more in another one

// An op that is large enough to be cut, on 1, 2 and 4 threads.
void check_op(const std::string& op, const std::vector<tensor>& inputs,
              const std::vector<tensor_spec>& outputs, const attributes& attrs = {}) {
  std::vector<tensor> alone;
  for (const std::size_t threads : {1, 2, 4}) {
    kernel_harness host;
    set_up_kernel_thread();
    idle_threads idle(host.device().team(), threads);
    auto k = host.make(op, attrs);
    BOOST_REQUIRE(k);
    for (int turn = 0; turn < turns; ++turn) {
      auto got = kernel_harness::run(**k, inputs, outputs);
      BOOST_REQUIRE_MESSAGE(got, op << ": " << (got ? "" : got.error().text()));
      if (alone.empty())
        alone = std::move(*got);
      else
        check_same_bits(op + " on " + std::to_string(threads) + " threads", *got, alone);
    }
  }
}

attributes with(std::initializer_list<std::pair<const char*, std::vector<std::int64_t>>> lists) {
  attributes a;
  for (const auto& [name, values] : lists) a.set(name, values);
  return a;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(tile_team)

BOOST_AUTO_TEST_CASE(every_tile_runs_once_whoever_takes_it) {
  troupe::tile_team team;
  idle_threads idle(team, 4);
  for (std::size_t run = 0; run < 2'000; ++run) {
    const std::size_t tiles = 2 + run % 40;
    std::vector<std::atomic<int>> times(tiles);
    std::array<std::atomic<int>, 4> at_once{};
    std::atomic<bool> is_shared = false;
    auto ended = team.run(tiles, [&](std::size_t tile, std::size_t worker) -> result<void> {
      if (at_once.at(worker).fetch_add(1) != 0) is_shared = true;
      ++times[tile];
      at_once.at(worker).fetch_sub(1);
      return {};
    });
    BOOST_REQUIRE(ended);
    BOOST_REQUIRE(!is_shared);
    BOOST_REQUIRE(std::ranges::all_of(times, [](const auto& n) { return n == 1; }));
  }
}

BOOST_AUTO_TEST_CASE(who_is_idle_takes_part) {
  troupe::tile_team team;
  idle_threads idle(team, 2);
  std::mutex mutex;
  std::set<std::thread::id> who;
  test::wait_until("the idle thread takes part", [&] {  // it may take its time to wake
    BOOST_REQUIRE(team.run(16, [&](std::size_t, std::size_t) -> result<void> {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      std::lock_guard lock(mutex);
      who.insert(std::this_thread::get_id());
      return {};
    }));
    return who.size() >= 2;
  });
  BOOST_TEST(idle.helped() > 0U);
}

BOOST_AUTO_TEST_CASE(several_threads_run_ops_at_once) {
  troupe::tile_team team;
  idle_threads idle(team, 3);
  std::vector<std::thread> owners;
  std::atomic<std::size_t> tiles = 0;
  for (int o = 0; o < 12; ++o)  // more than a team has room for
    owners.emplace_back([&] {
      for (int run = 0; run < 500; ++run)
        (void)team.run(5, [&](std::size_t, std::size_t) -> result<void> {
          ++tiles;
          return {};
        });
    });
  const test::waiting_for named("the end of all runs");
  for (auto& o : owners) o.join();
  BOOST_TEST(tiles == 12U * 500 * 5);
}

BOOST_AUTO_TEST_CASE(an_error_ends_a_run_and_the_next_one_works) {
  troupe::tile_team team;
  idle_threads idle(team, 3);
  for (int run = 0; run < 200; ++run) {
    auto bad = team.run(20, [&](std::size_t tile, std::size_t) -> result<void> {
      if (tile == 3) return error(error_code::failed, "tile 3");
      return {};
    });
    BOOST_REQUIRE(!bad);
    BOOST_TEST(bad.error().text() == "tile 3");
    BOOST_REQUIRE(team.run(20, [](std::size_t, std::size_t) -> result<void> { return {}; }));
  }
  auto thrown = team.run(20, [](std::size_t tile, std::size_t) -> result<void> {
    if (tile == 7) throw std::runtime_error("thrown");
    return {};
  });
  BOOST_REQUIRE(!thrown);
  BOOST_TEST(thrown.error().text() == "thrown");
  // What is no exception, too.
  thrown = team.run(20, [](std::size_t tile, std::size_t) -> result<void> {
    if (tile == 7) throw 7;
    return {};
  });
  BOOST_REQUIRE(!thrown);
  BOOST_TEST(thrown.error().text() == "an exception of unknown type");
}

BOOST_AUTO_TEST_CASE(work_is_cut_into_whole_pieces) {
  for (std::int64_t items = 0; items < 200; ++items)
    for (const std::int64_t grain : {1, 16})
      for (const double cost : {0.0, 1.0, 100.0, 1e12}) {
        const auto cut = tile_cut::by_cost(items, cost, 1'000, grain);
        std::int64_t covered = 0;
        for (std::size_t t = 0; t < cut.tiles(); ++t) {
          BOOST_REQUIRE(cut.begin(t) == covered);
          BOOST_REQUIRE(cut.size(t) > 0);
          BOOST_REQUIRE(cut.begin(t) % grain == 0);
          covered += cut.size(t);
        }
        BOOST_REQUIRE(covered == items);
        BOOST_REQUIRE(cut.tiles() <= 16U);
      }
}

// Bits are those of one thread: whatever an op is cut into follows from its shapes.
BOOST_AUTO_TEST_CASE(large_ops_have_the_same_bits_on_any_number_of_threads) {
  const tensor_spec square{dtype::f32, {512, 512}};
  const auto a = random_tensor({512, 512}, 1), b = random_tensor({512, 512}, 2);
  check_op("matmul", {a, b}, {square});
  check_op("matmul", {a, b}, {square}, [] {
    attributes t;
    t.set("transpose_a", std::int64_t{1});
    return t;
  }());
  check_op("matmul", {random_tensor({60, 700}, 3), random_tensor({900, 700}, 4)},
           {{dtype::f32, {60, 900}}}, [] {
             attributes t;
             t.set("transpose_b", std::int64_t{1});
             return t;
           }());
  check_op("matmul", {random_tensor({33, 50, 40}, 5), random_tensor({33, 40, 200}, 6)},
           {{dtype::f32, {33, 50, 200}}});
  check_op("matmul", {random_tensor({7, 130, 90}, 5), random_tensor({7, 90, 250}, 6)},
           {{dtype::f32, {130, 250}}}, [] {
             attributes t;
             t.set("sum_batches", std::int64_t{1});
             return t;
           }());
  check_op("matmul",
           {random_tensor({170, 90}, 7, dtype::f64), random_tensor({90, 211}, 8, dtype::f64)},
           {{dtype::f64, {170, 211}}});

  const auto image = random_tensor({19, 24, 28, 28}, 9),
             weights = random_tensor({48, 24, 3, 3}, 10),
             gradient = random_tensor({19, 48, 28, 28}, 11);
  const auto padded = with({{"before", {1, 1}}, {"after", {1, 1}}});
  check_op("conv2d", {image, weights}, {gradient.spec()}, padded);
  check_op("conv2d_input_grad", {gradient, weights}, {image.spec()}, padded);
  check_op("conv2d_weights_grad", {gradient, image}, {weights.spec()}, padded);
  const auto one = random_tensor({64, 1, 28, 28}, 12);
  check_op("conv2d_weights_grad", {random_tensor({64, 32, 28, 28}, 13), one},
           {{dtype::f32, {32, 1, 3, 3}}}, padded);

  // In parts: of 19 images the last tile is smaller.
  auto fast = padded;
  fast.set("fast", std::int64_t{1});
  check_op("conv2d_weights_grad", {gradient, image}, {weights.spec()}, fast);
  check_op("conv2d_weights_grad",
           {random_tensor({70, 32, 28, 28}, 13), random_tensor({70, 1, 28, 28}, 12)},
           {{dtype::f32, {32, 1, 3, 3}}}, fast);
  kernel_harness near_host;
  const auto whole =
                 near_host.one("conv2d_weights_grad", {gradient, image}, weights.spec(), padded),
             in_parts =
                 near_host.one("conv2d_weights_grad", {gradient, image}, weights.spec(), fast);
  double most = 0;
  for (std::int64_t i = 0; i < whole.elements(); ++i)
    most = std::max(most,
                    std::abs(double(whole.data<float>()[i]) - double(in_parts.data<float>()[i])));
  BOOST_TEST(most < 2e-2);  // sums of 14,896 products, up to 200; one product is up to 1
  const auto long_a = random_tensor({40, 50'003}, 21), long_b = random_tensor({50'003, 24}, 22);
  const auto sums = [](bool is_fast) {
    attributes t;
    t.set("fast", std::int64_t{is_fast ? 1 : 0});
    return t;
  };
  check_op("matmul", {long_a, long_b}, {{dtype::f32, {40, 24}}}, sums(true));
  const auto one_sum =
                 near_host.one("matmul", {long_a, long_b}, {dtype::f32, {40, 24}}, sums(false)),
             of_parts =
                 near_host.one("matmul", {long_a, long_b}, {dtype::f32, {40, 24}}, sums(true));
  for (std::int64_t i = 0; i < one_sum.elements(); ++i)
    BOOST_REQUIRE(std::abs(one_sum.data<float>()[i] - of_parts.data<float>()[i]) < 2e-2F);

  const auto windows = with({{"window", {2, 2}}});
  const tensor_spec half{dtype::f32, {19, 24, 14, 14}}, places{dtype::i32, {19, 24, 14, 14}};
  check_op("max_pool2d", {image}, {half, places}, windows);
  kernel_harness host;
  const auto pooled = host.run("max_pool2d", {image}, {half, places}, windows);
  BOOST_REQUIRE(pooled);
  check_op("max_pool2d_grad", {random_tensor({19, 24, 14, 14}, 14), (*pooled)[1]}, {image.spec()},
           windows);
  check_op("avg_pool2d", {image}, {half}, windows);

  const auto rows = random_tensor({2'000, 300}, 15), columns = random_tensor({60, 300, 40}, 16);
  check_op("softmax", {rows}, {rows.spec()});
  check_op("log_softmax", {columns}, {columns.spec()}, [] {
    attributes t;
    t.set("axis", std::int64_t{1});
    return t;
  }());
  check_op("softmax", {random_tensor({20'000, 30}, 17)}, {{dtype::f32, {20'000, 30}}});
  check_op("softmax_grad", {rows, rows}, {rows.spec()});
  const auto heads = [](bool is_causal) {
    attributes t;
    t.set("heads", std::int64_t{3});
    t.set("causal", std::int64_t{is_causal});
    return t;
  };
  const auto projected = random_tensor({5, 200, 3 * 96}, 23),
             of_mixed = random_tensor({5, 200, 96}, 24);
  check_op("attention", {projected}, {of_mixed.spec()}, heads(true));
  check_op("attention",
           {of_mixed, random_tensor({5, 333, 96}, 25), random_tensor({5, 333, 60}, 26)},
           {{dtype::f32, {5, 200, 60}}}, heads(false));
  check_op("attention_grad", {of_mixed, projected}, {projected.spec()}, heads(true));
  check_op("attention_grad", {random_tensor({2, 600, 96}, 27), random_tensor({2, 600, 3 * 96}, 28)},
           {{dtype::f32, {2, 600, 3 * 96}}}, heads(false));
  check_op("standardize", {rows}, {rows.spec(), {dtype::f32, {2'000, 1}}, {dtype::f32, {2'000, 1}}},
           with({{"axes", {1}}}));
  check_op("reduce_sum", {random_tensor({64, 32, 40, 40}, 18)}, {{dtype::f32, {32}}},
           with({{"axes", {0, 2, 3}}}));
  check_op("reduce_sum", {random_tensor({3'000, 1'000}, 18)}, {{dtype::f32, {3'000}}},
           with({{"axes", {1}}}));
  check_op("reduce_max", {random_tensor({40, 500, 100}, 18)}, {{dtype::f32, {40, 100}}},
           with({{"axes", {1}}}));

  check_op("mul", {random_tensor({1'000'003}, 19), random_tensor({1'000'003}, 20)},
           {{dtype::f32, {1'000'003}}});
  check_op("add", {random_tensor({3'000, 500}, 19), random_tensor({500}, 20)},
           {{dtype::f32, {3'000, 500}}});
  check_op("add", {random_tensor({64, 32, 30, 30}, 19), random_tensor({32, 1, 1}, 20)},
           {{dtype::f32, {64, 32, 30, 30}}});
}

// Of f16 and bf16: those of f32, rounded.
BOOST_AUTO_TEST_CASE(large_ops_of_halves_have_the_rounded_bits_of_f32_on_any_number_of_threads) {
  const auto heads = [] {
    attributes t;
    t.set("heads", std::int64_t{3});
    return t;
  }();
  const auto padded = with({{"before", {1, 1}}, {"after", {1, 1}}});
  struct op {
    const char* name;
    attributes attrs;
    std::vector<tensor> in;
    std::vector<tensor_spec> out;
  };
  const auto image = random_tensor({19, 24, 28, 28}, 9),
             weights = random_tensor({48, 24, 3, 3}, 10),
             gradient = random_tensor({19, 48, 28, 28}, 11);
  const op ops[] = {
      {"matmul",
       {},
       {random_tensor({700, 300}, 1), random_tensor({300, 512}, 2)},
       {{dtype::f32, {700, 512}}}},
      {"matmul",
       [] {
         attributes t;
         t.set("sum_batches", std::int64_t{1});
         return t;
       }(),
       {random_tensor({7, 130, 90}, 5), random_tensor({7, 90, 250}, 6)},
       {{dtype::f32, {130, 250}}}},
      {"conv2d", padded, {image, weights}, {gradient.spec()}},
      {"conv2d_input_grad", padded, {gradient, weights}, {image.spec()}},
      {"conv2d_weights_grad", padded, {gradient, image}, {weights.spec()}},
      {"attention", heads, {random_tensor({5, 200, 3 * 96}, 23)}, {{dtype::f32, {5, 200, 96}}}},
      {"attention_grad",
       heads,
       {random_tensor({5, 200, 96}, 24), random_tensor({5, 200, 3 * 96}, 23)},
       {{dtype::f32, {5, 200, 3 * 96}}}},
  };
  const auto to = [](dtype t) {
    attributes a;
    a.set("to", std::int64_t{static_cast<std::uint8_t>(t)});
    return a;
  };
  for (const auto& o : ops)
    for (const auto half : {dtype::f16, dtype::bf16}) {
      kernel_harness host;
      std::vector<tensor> narrow, wide;
      for (const auto& x : o.in) {
        narrow.push_back(host.one("cast", {x}, {half, x.shape()}, to(half)));
        wide.push_back(host.one("cast", {narrow.back()}, x.spec(), to(dtype::f32)));
      }
      const auto in_f32 = host.run(o.name, wide, o.out, o.attrs);
      BOOST_REQUIRE(in_f32);
      auto specs = o.out;
      for (auto& s : specs) s.type = half;
      const std::vector rounded{host.one("cast", {in_f32->front()}, specs[0], to(half))};
      check_op(o.name, narrow, specs, o.attrs);
      const auto got = host.run(o.name, narrow, specs, o.attrs);
      BOOST_REQUIRE(got);
      check_same_bits(std::string(o.name) + " of halves", *got, rounded);
    }
  // What follows takes the pieces that were rounded.
  for (const std::size_t threads : {1, 2, 4}) {
    kernel_harness host;
    idle_threads idle(host.device().team(), threads);
    const tensor_spec spec{dtype::bf16, {700, 1'003}}, wide{dtype::f32, {700, 1'003}};
    const auto a = host.one("cast", {random_tensor({700, 90}, 1)}, {dtype::bf16, {700, 90}},
                            to(dtype::bf16)),
               b = host.one("cast", {random_tensor({90, 1'003}, 2)}, {dtype::bf16, {90, 1'003}},
                            to(dtype::bf16));
    std::vector<fused_step> steps;
    steps.push_back({std::move(*host.make("matmul")), {0, 1}, dtype::bf16});
    steps.push_back({std::move(*host.make("cast", to(dtype::f32))), {-1}, dtype::f32});
    steps.push_back({std::move(*host.make("tanh")), {-2}, dtype::f32});
    steps.push_back({std::move(*host.make("cast", to(dtype::bf16))), {-3}, dtype::bf16});
    auto made = make_fused_kernel(std::move(steps), host.device().team());
    BOOST_REQUIRE_MESSAGE(made, (made ? "" : made.error().text()));
    const auto got = kernel_harness::run(**made, {a, b}, {spec});
    BOOST_REQUIRE_MESSAGE(got, (got ? "" : got.error().text()));
    kernel_harness alone;
    const auto product =
        alone.one("cast", {alone.one("matmul", {a, b}, spec)}, wide, to(dtype::f32));
    check_same_bits(
        "a group behind a product of bf16", *got,
        {alone.one("cast", {alone.one("tanh", {product}, wide)}, spec, to(dtype::bf16))});
  }
}

BOOST_AUTO_TEST_CASE(large_groups_have_the_same_bits_on_any_number_of_threads) {
  const auto x = random_tensor({300, 40, 100}, 1), y = random_tensor({40, 1}, 2),
             z = random_tensor({100}, 3);
  std::vector<tensor> alone;
  for (const std::size_t threads : {1, 2, 4}) {
    kernel_harness host;
    idle_threads idle(host.device().team(), threads);
    std::vector<fused_step> steps;
    steps.push_back({std::move(*host.make("add")), {0, 1}});
    steps.push_back({std::move(*host.make("mul")), {-1, 2}});
    steps.push_back({std::move(*host.make("maximum")), {-2, 0}});
    auto group = make_fused_kernel(std::move(steps), host.device().team());
    BOOST_REQUIRE(group);
    auto got = kernel_harness::run(**group, {x, y, z}, {x.spec()});
    BOOST_REQUIRE(got);
    if (alone.empty())
      alone = std::move(*got);
    else
      check_same_bits("a group on " + std::to_string(threads) + " threads", *got, alone);
  }
}

// PW-1, PW-2.
BOOST_AUTO_TEST_CASE(
    groups_behind_products_and_convolutions_have_the_bits_of_their_ops_on_any_number_of_threads) {
  auto b_transposed = attributes();
  b_transposed.set("transpose_b", std::int64_t{1});
  const auto padded = with({{"before", {1, 1}}, {"after", {1, 1}}});
  struct group {
    const char* head;
    attributes attrs;
    tensor a, b, bias;
    tensor_spec result;
  };
  const group groups[] = {
      // Pieces of 128 rows.
      {"matmul",
       {},
       random_tensor({700, 90}, 1),
       random_tensor({90, 1'003}, 2),
       random_tensor({1'003}, 3),
       {dtype::f32, {700, 1'003}}},
      // One row more than a piece.
      {"matmul",
       b_transposed,
       random_tensor({129, 2}, 1),
       random_tensor({700, 2}, 2),
       random_tensor({700}, 3),
       {dtype::f32, {129, 700}}},
      {"matmul",
       b_transposed,
       random_tensor({4'097, 2}, 1),
       random_tensor({64, 2}, 2),
       random_tensor({64}, 3),
       {dtype::f32, {4'097, 64}}},
      // By columns: no pieces.
      {"matmul",
       b_transposed,
       random_tensor({100, 300}, 1),
       random_tensor({2'000, 300}, 2),
       random_tensor({2'000}, 3),
       {dtype::f32, {100, 2'000}}},
      // Of batches; rows of the bias.
      {"matmul",
       {},
       random_tensor({300, 3, 20, 50}, 1),
       random_tensor({300, 3, 50, 70}, 2),
       random_tensor({3, 20, 1}, 3),
       {dtype::f32, {300, 3, 20, 70}}},
      {"conv2d",
       padded,
       random_tensor({19, 24, 28, 28}, 4),
       random_tensor({48, 24, 3, 3}, 5),
       random_tensor({48, 1, 1}, 6),
       {dtype::f32, {19, 48, 28, 28}}},
      {"conv2d_input_grad",
       [&] {
         auto t = padded;
         t.set("height", std::int64_t{28});
         t.set("width", std::int64_t{28});
         return t;
       }(),
       random_tensor({19, 48, 28, 28}, 4),
       random_tensor({48, 24, 3, 3}, 5),
       random_tensor({28}, 6),
       {dtype::f32, {19, 24, 28, 28}}},
  };
  for (const auto& g : groups)
    for (const std::size_t threads : {1, 2, 4}) {
      kernel_harness host;
      idle_threads idle(host.device().team(), threads);
      std::vector<fused_step> steps;
      steps.push_back({std::move(*host.make(g.head, g.attrs)), {0, 1}});
      steps.push_back({std::move(*host.make("add")), {-1, 2}});
      steps.push_back({std::move(*host.make("tanh")), {-2}});
      steps.push_back({std::move(*host.make("mul")), {-2, -3}});
      auto made = make_fused_kernel(std::move(steps), host.device().team());
      BOOST_REQUIRE(made);
      const auto got = kernel_harness::run(**made, {g.a, g.b, g.bias}, {g.result});
      BOOST_REQUIRE_MESSAGE(got, (got ? "" : got.error().text()));
      kernel_harness alone;
      const auto head = alone.one(g.head, {g.a, g.b}, g.result, g.attrs),
                 sum = alone.one("add", {head, g.bias}, g.result);
      const auto expected = alone.one("mul", {sum, alone.one("tanh", {sum}, g.result)}, g.result);
      check_same_bits(
          std::string(g.head) + " and its group on " + std::to_string(threads) + " threads", *got,
          {expected});
    }
}

BOOST_AUTO_TEST_CASE(errors_of_tiles_are_those_of_the_op) {
  kernel_harness host;
  idle_threads idle(host.device().team(), 2);
  auto places = tensor::make({dtype::i32, {64, 64, 14, 14}});
  std::fill_n(places.data<std::int32_t>(), places.elements(), 0);
  places.data<std::int32_t>()[places.elements() - 1] = 5'000;
  const auto bad = host.run("max_pool2d_grad", {random_tensor({64, 64, 14, 14}, 1), places},
                            {{dtype::f32, {64, 64, 28, 28}}}, with({{"window", {2, 2}}}));
  BOOST_REQUIRE(!bad);
  BOOST_TEST(bad.error().text().find("a place is 5000") != std::string::npos, bad.error().text());
}

BOOST_AUTO_TEST_SUITE_END()
