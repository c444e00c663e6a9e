// What stays of jobs that have ended, in one process.

#include "tests/support/events.hpp"
#include "tests/support/heap_bytes.hpp"
#include "tests/support/wait.hpp"
#include "troupe/actors/session/session.hpp"
#include "troupe/runtime/layers/layers.hpp"

#include <boost/test/unit_test.hpp>

#include <cstring>

using namespace troupe;

namespace {

constexpr std::size_t large = std::size_t{16} << 20, small = large / 2;
constexpr std::int64_t rows = 1024, columns = large / sizeof(float) / rows;

void wait_for_memory(std::size_t before) {
  test::wait_until("the memory of a job that has ended",
                   [&] { return test::heap_bytes() < before + small; });
}

}  // namespace

BOOST_AUTO_TEST_SUITE(ended_jobs)

BOOST_AUTO_TEST_CASE(NO_15_constants_and_buffers_of_a_stepper_go_with_it) {
  auto s = session::open({.threads = 1});
  BOOST_TEST_REQUIRE(bool(s));
  const auto before = test::heap_bytes();
  for (int i = 0; i < 3; ++i) {
    {
      auto weights = tensor::make({dtype::f32, {rows, columns}});
      std::memset(weights.bytes().data(), 0, weights.size_bytes());
      graph g((*s)->ops());
      const auto y = reduce_sum(constant(g, weights) * input(g, {dtype::f32, {}}, "x"));
      auto st = (*s)->compile(g, {&y, 1}, {.fold = false});
      BOOST_TEST_REQUIRE(bool(st), (st ? "" : st.error().text()));
      const std::pair<std::string_view, tensor> x[] = {{"x", tensor::of({1}, {})}};
      BOOST_TEST_REQUIRE(bool((*st)->step(x)));
      BOOST_TEST(test::heap_bytes() >= before + large);
    }
    wait_for_memory(before);
  }
}

BOOST_AUTO_TEST_CASE(NO_15_variables_and_slots_of_a_training_go_with_it) {
  auto s = session::open({.threads = 1});
  BOOST_TEST_REQUIRE(bool(s));
  const auto before = test::heap_bytes();
  for (int i = 0; i < 2; ++i) {
    {
      graph g((*s)->ops());
      const auto w = variable(g, {dtype::f32, {rows, columns}}, zeros(), "w");
      const auto loss = reduce_mean(square(w - constant(g, tensor::of({1}, {}))));
      auto run = (*s)->train(g, loss, {.optimizer = adam({}), .steps = 1});
      BOOST_TEST_REQUIRE(bool(run), (run ? "" : run.error().text()));
      while (test::next_event(**run)) {
      }
    }
    wait_for_memory(before);
  }
}

BOOST_AUTO_TEST_SUITE_END()
