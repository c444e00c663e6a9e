// A kernel that fails asynchronously. After that the process has no chip any more: a suite, and a
// process, of its own.

#include "tests/gpu/gpu.hpp"
#include "tests/support/wait.hpp"

#include <atomic>

using namespace troupe;
using namespace troupe::test;

BOOST_AUTO_TEST_SUITE(chip_failure)

BOOST_AUTO_TEST_CASE(an_illegal_address_names_the_op_and_nobody_waits_for_ever) {
  gpu machine(1, {.limit_bytes = 0, .marks_each_op = true});
  auto s = machine.stream();
  const op_case c{"relu", {}, {numbers(dtype::f32, {1000}, 1)}, {{dtype::f32, {1000}}}, 0, 0};
  placed_op before(c, machine[0], *s), after(c, machine[0], *s);
  BOOST_REQUIRE(before.problem().empty());
  TROUPE_FINE(before.enqueue());
  auto made = cuda::make_cuda_kernels().make("relu", {}, machine[0].chip());
  BOOST_REQUIRE(made);
  const tensor_spec spec{dtype::f32, {1000}};
  TROUPE_FINE((*made)->prepare({&spec, 1}, {&spec, 1}));
  const std::byte* nowhere = reinterpret_cast<const std::byte*>(std::uintptr_t{1} << 20);
  std::byte* to = const_cast<std::byte*>(nowhere);
  TROUPE_FINE(s->enqueue("the_culprit", {}, [&] {
    return (*made)->enqueue(s->site("the_culprit", nullptr, {}), {&nowhere, 1}, {&to, 1});
  }));
  std::atomic<bool> is_called{false};
  (void)after.enqueue();
  (void)s->call_host([&] { is_called = true; });
  const auto end = s->synchronize();
  BOOST_REQUIRE(!end);
  BOOST_TEST_MESSAGE(end.error().text());
  BOOST_TEST(end.error().message().find("the_culprit") != std::string::npos);
  BOOST_TEST(end.error().message().find("cudaErrorIllegalAddress") != std::string::npos);
  test::wait_until("the host function is called after the failure",
                   [&] { return is_called.load(); });
  BOOST_TEST(!after.enqueue());
  auto other = machine[0].make_cuda_stream(stream_kind::compute);
  BOOST_TEST(!other);
}

BOOST_AUTO_TEST_SUITE_END()
