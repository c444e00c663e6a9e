// What is independent runs side by side, and what follows each other works on different steps at
// once, without a word of the user's. No clock decides: ops wait for each other, and would wait
// for ever if they had to run one after the other.

#include "tests/support/wait.hpp"
#include "troupe/actors/session/session.hpp"
#include "troupe/devices/files/scratch_folder.hpp"
#include "troupe/devices/kernel.hpp"
#include "troupe/runtime/analysis/op_times.hpp"
#include "troupe/runtime/compile/explain.hpp"
#include "troupe/runtime/graph/op_library.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>

using namespace troupe;

namespace {

// Who is at the meeting, and whether all have been there at one time.
struct meeting {
  std::atomic<int> wanted{0}, inside{0};
  std::atomic<bool> has_met{false};

  void expect(int n) {
    wanted = n;
    inside = 0;
    has_met = false;
  }
  // False: the others did not come while we waited.
  bool meet() {
    if (inside.fetch_add(1) + 1 >= wanted) has_met = true;
    const auto end = std::chrono::steady_clock::now() + test::hang;
    while (!has_met && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    inside.fetch_sub(1);
    return has_met;
  }
};
meeting here;  // kernels know nothing of a test but what is global

class meeting_kernel final : public kernel {
 public:
  result<void> prepare(std::span<const tensor_spec>, std::span<const tensor_spec>) override {
    return {};
  }
  result<void> run(const tag&, std::span<const tensor> in, std::span<tensor> out) override {
    if (!here.meet()) return error(error_code::failed, "nobody else came");
    for (std::int64_t i = 0; i < out[0].elements(); ++i)
      out[0].data<float>()[i] = in[0].data<float>()[i] + 1;
    return {};
  }
};

// First stages that have begun, of all steps.
std::atomic<std::int64_t> stages_begun{0};

class stage_kernel final : public kernel {
 public:
  stage_kernel(std::int64_t number, std::int64_t steps) : number_(number), steps_(steps) {}
  result<void> prepare(std::span<const tensor_spec>, std::span<const tensor_spec>) override {
    return {};
  }
  result<void> run(const tag& t, std::span<const tensor> in, std::span<tensor> out) override {
    if (number_ == 0) ++stages_begun;
    const auto wanted = std::min(steps_, static_cast<std::int64_t>(t.step) + 2);
    const auto end = std::chrono::steady_clock::now() + test::hang;
    while (number_ == 1 && stages_begun < wanted) {
      if (std::chrono::steady_clock::now() > end)
        return error(error_code::failed, "the next step has not begun");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    for (std::int64_t i = 0; i < out[0].elements(); ++i)
      out[0].data<float>()[i] = in[0].data<float>()[i];
    return {};
  }

 private:
  std::int64_t number_, steps_;
};

// Of ops of which there may be one only, as of a device that is opened.
std::atomic<int> kernels_made{0};

class slow_kernel final : public kernel {
 public:
  result<void> prepare(std::span<const tensor_spec>, std::span<const tensor_spec>) override {
    return {};
  }
  // Until another call has come and a second kernel was asked for, which cannot be made.
  result<void> run(const tag&, std::span<const tensor> in, std::span<tensor> out) override {
    const auto end = std::chrono::steady_clock::now() + test::hang;
    while (kernels_made < 2 && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    for (std::int64_t i = 0; i < out[0].elements(); ++i)
      out[0].data<float>()[i] = in[0].data<float>()[i];
    return {};
  }
};

result<std::vector<tensor_spec>> like_the_first(const attributes&, std::span<const tensor_spec> in,
                                                const tag*) {
  return std::vector{in[0]};
}

void add_ops(op_table& ops, kernel_table& kernels) {
  ops.add("only_one", {.inputs = 1, .shapes = like_the_first});
  kernels.add("only_one", {[](const attributes&, host_device&) -> result<std::unique_ptr<kernel>> {
                if (kernels_made.fetch_add(1) > 0)
                  return error(error_code::failed, "there is one already");
                return std::unique_ptr<kernel>(std::make_unique<slow_kernel>());
              }});
  ops.add("stage", {.inputs = 1, .shapes = like_the_first});
  kernels.add("stage", {[](const attributes& a, host_device&) -> result<std::unique_ptr<kernel>> {
                return std::unique_ptr<kernel>(
                    std::make_unique<stage_kernel>(a.integer("number"), a.integer("steps")));
              }});
  ops.add("meet", {.inputs = 1,
                   .shapes = [](const attributes&, std::span<const tensor_spec> in, const tag*)
                       -> result<std::vector<tensor_spec>> { return std::vector{in[0]}; }});
  kernels.add("meet", {[](const attributes&, host_device&) -> result<std::unique_ptr<kernel>> {
                return std::unique_ptr<kernel>(std::make_unique<meeting_kernel>());
              }});
}
const op_library library{.name = "meetings", .version = "1", .add = add_ops};

// `number` tells ops apart that else were one: equal ops are shared.
value meet(value x, std::int64_t number = 0) {
  const std::array operands{x};
  return x.owner->add("meet", operands, {{"number", number}}, "meet", source_location::current());
}

value stage(value x, std::int64_t number, std::int64_t steps) {
  const std::array operands{x};
  return x.owner->add("stage", operands, {{"number", number}, {"steps", steps}}, "stage",
                      source_location::current());
}

std::unique_ptr<session> open(std::uint32_t threads) {
  auto s = session::open({.threads = threads, .gpus = "none", .libraries = {&library}});
  BOOST_REQUIRE_MESSAGE(bool(s), (s ? "" : s.error().text()));
  return std::move(*s);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(spread)

BOOST_AUTO_TEST_CASE(independent_ops_run_side_by_side) {
  const auto s = open(3);
  graph g(s->ops());
  const auto x = input(g, {dtype::f32, {2}}, "x");
  const auto sum = meet(x) + meet(x, 1) + meet(x, 2);
  here.expect(3);
  auto steps = s->compile(g, std::array{sum});
  BOOST_REQUIRE_MESSAGE(bool(steps), (steps ? "" : steps.error().text()));
  const std::array feeds{std::pair<std::string_view, tensor>{"x", tensor::of({1, 2}, {2})}};
  const auto got = (*steps)->step(feeds);
  BOOST_REQUIRE_MESSAGE(bool(got), (got ? "" : got.error().text()));
  BOOST_TEST((*got)[0].data<float>()[1] == 9.F);
}

// Stage 1 of a step waits until stage 0 of the next one has begun.
BOOST_AUTO_TEST_CASE(stages_of_a_chain_work_on_different_steps_at_once) {
  const auto s = open(2);
  graph g(s->ops());
  const auto x = input(g, {dtype::f32, {2}}, "x");
  constexpr std::int64_t steps = 4;
  const auto last = stage(relu(stage(x, 0, steps)), 1, steps);
  stages_begun = 0;
  auto run = s->compile(g, std::array{last});
  BOOST_REQUIRE_MESSAGE(bool(run), (run ? "" : run.error().text()));
  for (int i = 0; i < steps; ++i) {
    const auto v = static_cast<float>(i);
    BOOST_REQUIRE(bool((*run)->feed("x", tensor::of({v, v}, {2}))));
  }
  for (int i = 0; i < steps; ++i) {
    const auto got = (*run)->fetch();
    BOOST_REQUIRE_MESSAGE(bool(got), (got ? "" : got.error().text()));
    BOOST_TEST((*got)[0].data<float>()[0] == static_cast<float>(i));
  }
}

BOOST_AUTO_TEST_CASE(GR_3_runs_from_several_threads_run_side_by_side) {
  const auto s = open(4);
  graph g(s->ops());
  const auto x = input(g, {dtype::f32, {2}}, "x");
  meet(x);
  const auto r = s->runner(g);
  here.expect(4);
  std::atomic<int> right{0};
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&, i] {
      const auto v = static_cast<float>(i);
      const auto got = r->run({{"x", tensor::of({v, v}, {2})}}, {"meet"});
      if (got && (*got)[0].data<float>()[0] == v + 1) ++right;
    });
  threads.clear();
  BOOST_TEST(right == 4);
  BOOST_TEST(r->compiled() == 1U);
}

// An op that was measured to be short stays where it is; so it is in a later session, by the file.
// The run that a further job would have taken goes to the one that there is.
BOOST_AUTO_TEST_CASE(a_job_that_cannot_begin_beside_another_fails_no_run) {
  const auto s = open(2);
  graph g(s->ops());
  const auto x = input(g, {dtype::f32, {2}}, "x");
  const std::array operands{x};
  g.add("only_one", operands, {}, "only_one", source_location::current());
  const auto r = s->runner(g);
  kernels_made = 0;
  std::atomic<int> right{0};
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&, i] {
      const auto v = static_cast<float>(i);
      const auto got = r->run({{"x", tensor::of({v, v}, {2})}}, {"only_one"});
      if (!got) BOOST_TEST_MESSAGE(got.error().text());
      if (got && (*got)[0].data<float>()[0] == v) ++right;
    });
  threads.clear();
  BOOST_TEST(right == 4);
  BOOST_TEST(kernels_made >= 1);
}

BOOST_AUTO_TEST_CASE(what_was_measured_counts_also_for_later_sessions) {
  const auto folder = scratch_folder::make("troupe-spread");
  BOOST_REQUIRE(bool(folder));
  const auto file = (*folder)->path() + "/op_times";
  const auto run = [&] {
    auto opened = session::open(
        {.threads = 2, .gpus = "none", .libraries = {&library}, .op_times_file = file});
    BOOST_REQUIRE(bool(opened));
    auto& s = **opened;
    graph g(s.ops());
    const auto x = input(g, {dtype::f32, {2}}, "x");
    const auto sum = meet(x) + meet(x, 1);
    here.expect(1);
    auto steps = s.compile(g, std::array{sum});
    BOOST_REQUIRE(bool(steps));
    const std::array feeds{std::pair<std::string_view, tensor>{"x", tensor::of({1, 2}, {2})}};
    for (int i = 0; i < 3; ++i) BOOST_REQUIRE(bool((*steps)->step(feeds)));
  };
  run();
  std::ifstream in(file);
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  BOOST_TEST(text.find(" meet:meet") != std::string::npos, text);
  const auto planner = open(2);
  graph g(planner->ops());
  const auto x = input(g, {dtype::f32, {2}}, "x");
  const auto sum = meet(x) + meet(x, 1);
  const auto plan_with = [&](const std::string& times) {
    return *explain(
        g, std::array{sum},
        {.streams = 2, .times = std::make_shared<const op_times>(op_times::parse(times))});
  };
  // As it was measured here, which is short, unless the machine stood still; and as a long one.
  std::string is_short, is_long;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const auto rest = line.substr(line.find(' '));
    is_short += "1000" + rest + "\n";
    is_long += "90000000" + rest + "\n";
  }
  BOOST_TEST(plan_with(is_short).find("stream 1") == std::string::npos, plan_with(is_short));
  BOOST_TEST(plan_with(is_long).find("stream 1") != std::string::npos, plan_with(is_long));
  BOOST_TEST(plan_with(is_long).find("takes 90.0 ms") != std::string::npos, plan_with(is_long));
  std::ofstream(file) << "what is this\n" << std::string(100, '\0') << "\n1e999 2 meet\n";
  run();  // and it goes on
}

BOOST_AUTO_TEST_CASE(who_places_by_hand_is_obeyed) {
  const auto s = open(2);
  graph g(s->ops());
  const auto x = input(g, {dtype::f32, {2}}, "x");
  const auto on = g.device_scope("/cpu:0");
  const auto sum = meet(x) + meet(x, 1);
  here.expect(1);
  std::string text = *explain(g, std::array{sum}, {.streams = 2});
  BOOST_TEST(text.find("stream 1") == std::string::npos, text);
}

BOOST_AUTO_TEST_SUITE_END()
