// A step of an empty graph: what a program pays for asking, two thread crossings included.

#include "tools/troupe-bench/measure.hpp"

#include "troupe/actors/base/scheduler.hpp"
#include "troupe/actors/session/session.hpp"

#include <caf/actor_system.hpp>
#include <caf/allowed_unsafe_message_type.hpp>
#include <caf/event_based_actor.hpp>
#include <caf/scoped_actor.hpp>

#include <array>
#include <chrono>

namespace troupe {

struct bare_question {
  tensor value;
  caf::actor to;
};
struct bare_answer {
  tensor value;
};

}  // namespace troupe

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::bare_question)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::bare_answer)

namespace troupe {

namespace {

caf::behavior echo(caf::event_based_actor* self) {
  return {[self](bare_question& m) { self->send(m.to, bare_answer{std::move(m.value)}); }};
}

double ask_bare(caf::actor_system& sys, const caf::actor& echoing, std::uint64_t steps) {
  caf::scoped_actor self{sys};
  const auto me = caf::actor_cast<caf::actor>(self);
  const auto value = tensor::make({dtype::f32, {16}});
  const auto began = std::chrono::steady_clock::now();
  for (std::uint64_t i = 0; i < steps; ++i) {
    self->send(echoing, bare_question{value, me});
    self->receive([](const bare_answer&) {});
  }
  return seconds_since(began);
}

result<double> step_graph(stepper& graph, std::uint64_t steps) {
  const std::array<std::pair<std::string_view, tensor>, 1> feeds{
      {{"x", tensor::make({dtype::f32, {16}})}}};
  const auto began = std::chrono::steady_clock::now();
  for (std::uint64_t i = 0; i < steps; ++i)
    if (auto values = graph.step(feeds); !values) return values.error();
  return seconds_since(began);
}

}  // namespace

result<void> bench_step(const bench_options& o, bench_report& report) {
  auto s = session::open({});
  if (!s) return s.error();
  graph g((*s)->ops());
  const auto x = input(g, {dtype::f32, {16}}, "x");
  auto graph = (*s)->compile(g, {&x, 1}, {.name = "empty"});
  if (!graph) return graph.error();
  scheduler_config config;
  caf::actor_system bare{config.pinned()};
  const auto echoing =
      spawn_on(bare, static_cast<pinned_scheduler&>(bare.scheduler()).stream(0), &echo);

  const std::uint64_t steps = o.is_quick ? 50 : 5000;
  const auto per_step = 1e6 / double(steps);
  auto figures = take_turns(
      o.runs, {[&]() -> result<double> {
                 auto seconds = step_graph(**graph, steps);
                 return seconds ? result<double>(*seconds * per_step) : seconds;
               },
               [&]() -> result<double> { return ask_bare(bare, echoing, steps) * per_step; }});
  if (!figures) return figures.error();
  report.add({"step_empty", "feed, fetch", "us", (*figures)[0], 2, "two bare CAF messages",
              (*figures)[1], bench_ratio::ours_to_baseline, ""});
  return {};
}

}  // namespace troupe
