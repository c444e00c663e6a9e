// Programs that end in an order that nobody would choose: sessions with static storage, sessions
// that end before what they gave out, children of fork(). odd_ends MODE [CLUSTER]
//
// Each says "done" before main() returns, and what was wrong on stderr.

#include "troupe/actors/flow/topology.hpp"
#include "troupe/actors/session/session.hpp"
#include "troupe/runtime/layers/layers.hpp"
#include "troupe/runtime/layers/updates.hpp"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

using namespace troupe;
using namespace std::chrono_literals;

namespace {

const tensor_spec two{dtype::f32, {2}};
const std::pair<std::string_view, tensor> feeds[] = {{"x", tensor::of({1, 2}, {2})}};

void wrong(std::string_view what) {
  fmt::print(stderr, "odd_ends: {}\n", what);
  std::_Exit(3);
}
void must(bool is_so, std::string_view what) {
  if (!is_so) wrong(what);
}
template <class T>
void must_say(const result<T>& r, std::string_view what, std::string_view which) {
  if (r) wrong(fmt::format("{} did not fail", which));
  if (r.error().text().find(what) == std::string::npos)
    wrong(fmt::format("{} says: {}", which, r.error().text()));
}

std::unique_ptr<session> open(const std::string& cluster = "") {
  auto s = session::open({.cluster = cluster, .gpus = "none"});
  if (!s) wrong(s.error().text());
  return std::move(*s);
}

// All that a session gives out, and a graph for each.
struct given {
  explicit given(session& s)
      : steps_graph(s.ops()), trained_graph(s.ops()), run_graph(s.ops()), store(s.make_store()) {
    auto compiled = s.compile(steps_graph, std::array{relu(input(steps_graph, two, "x"))});
    must(bool(compiled), "compile");
    steps = std::move(*compiled);
    auto v = variable(trained_graph, two, zeros(), "v");
    auto loss = reduce_sum(square(v + input(trained_graph, two, "x")));
    auto begun = s.train(trained_graph, loss, {.steps = 1000, .is_fed = true});
    must(bool(begun), "train");
    run = std::move(*begun);
    for (auto e = run->next(); e && e->type != training_event::kind::started;) e = run->next();
    auto made = run->make_feeder(0);
    must(bool(made), "make_feeder");
    fed = std::move(*made);
    named(relu(input(run_graph, two, "x")), "y");
    runs = s.runner(run_graph);
    stored = s.runner(run_graph, *store);
  }
  void use() {
    must(bool(steps->step(feeds)), "step");
    must(bool(fed->feed(feeds)), "feed");
    must(bool(runs->run(feeds, std::array{std::string_view("y")})), "run");
    must(bool(stored->run(feeds, std::array{std::string_view("y")})), "run on a store");
  }
  // Nothing hangs, and who can say something says `why`.
  void must_all_say(std::string_view why) {
    must_say(steps->step(feeds), why, "stepper::step");
    must_say(steps->feed("x", feeds[0].second), why, "stepper::feed");
    must_say(steps->fetch(), why, "stepper::fetch");
    must_say(steps->cancel(), why, "stepper::cancel");
    must_say(fed->feed(feeds), why, "feeder::feed");
    const std::array fetches{std::string_view("y")};
    must_say(runs->run(feeds, fetches), why, "graph_runner::run");
    must_say(stored->run(feeds, fetches), why, "graph_runner::run of a store");
    must_say(run->make_feeder(0), why, "training::make_feeder");
    run->finish();
    run->suspend("it is told so");
    run->detach();
    run->stop("it is told so");
    std::string last;
    for (auto e = run->next(); e; e = run->next()) last = e->text;
    must(last.find(why) != std::string::npos, fmt::format("the training ends with: {}", last));
    (void)store->version();
  }

  graph steps_graph, trained_graph, run_graph;
  std::unique_ptr<stepper> steps;
  std::unique_ptr<training> run;
  std::unique_ptr<feeder> fed;
  std::unique_ptr<variable_store> store;
  std::unique_ptr<graph_runner> runs, stored;
};

// Threads that run graphs, most of them for the first time, until the session has ended.
void run_while_it_ends(std::unique_ptr<session> s) {
  graph g(s->ops());
  std::vector<std::string> names;
  auto x = input(g, two, "x");
  for (int i = 0; i < 60; ++i) named(x = relu(x), names.emplace_back(fmt::format("y{}", i)));
  auto runs = s->runner(g);
  std::atomic<int> made = 0, over = 0;
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 3; ++t)
    threads.emplace_back([&, t] {
      for (std::size_t i = t;; i += 3) {
        const std::array<std::string_view, 2> fetches{names[i % 60], names[(i / 60 + i) % 60]};
        const auto out = runs->run(feeds, std::span(fetches).first(1 + (i / 60) % 2));
        ++made;
        if (out) continue;
        must_say(out, "the session has ended", "graph_runner::run");
        ++over;
        return;
      }
    });
  while (made < 30) std::this_thread::sleep_for(1ms);
  s.reset();
  for (auto& t : threads) t.join();
  must(over == 3, "not every thread was told");
}

std::unique_ptr<session> global;
std::unique_ptr<given> global_given;
std::unique_ptr<topology> global_topology;

void describe(topology& t) {
  for_each(from(t, {1, 2, 3}), [](int) {});
}

// What the child says is of no interest here: it ends, and how.
void must_end(pid_t child, std::string_view what) {
  for (int i = 0; i < 3000; ++i) {
    int status = 0;
    if (::waitpid(child, &status, WNOHANG) == child) {
      must(WIFEXITED(status) && WEXITSTATUS(status) == 0,
           fmt::format("{}: the child ended with {}", what, status));
      return;
    }
    std::this_thread::sleep_for(10ms);
  }
  ::kill(child, SIGKILL);
  wrong(fmt::format("{}: the child has not ended within 30 s", what));
}

int run_mode(std::string_view mode, const std::string& cluster) {
  if (mode == "static") {
    static auto s = open(cluster);
    static given all(*s);
    all.use();
  } else if (mode == "global") {  // destroyed after what was made later
    global = open(cluster);
    global_given = std::make_unique<given>(*global);
    global_given->use();
  } else if (mode == "idle") {
    static auto s = open(cluster);
  } else if (mode == "topology") {
    static topology t({.name = "t", .is_quiet = true});
    describe(t);
    global_topology = std::make_unique<topology>(topology_options{.is_quiet = true});
    describe(*global_topology);
    must(bool(t.run_to_end()) && bool(global_topology->run_to_end()), "run_to_end");
  } else if (mode == "moved") {  // made by one thread, ended by another, while a third lives on
    auto s = open(cluster);
    given all(*s);
    std::atomic<int> stage = 0;
    std::thread other([&] {
      must(bool(all.runs->run(feeds, std::array{std::string_view("y")})), "run");
      stage = 1;
      stage.notify_all();
      stage.wait(1);
    });
    stage.wait(0);
    std::thread([&] {
      all.fed.reset(), all.run.reset(), all.steps.reset(), all.runs.reset(), all.stored.reset();
      all.store.reset();
      s.reset();
    }).join();
    stage = 2;
    stage.notify_all();
    other.join();
  } else if (mode == "busy") {
    run_while_it_ends(open(cluster));
  } else if (mode == "order") {
    auto s = open(cluster);
    given used(*s), unused(*s), dropped(*s);
    used.use();
    s.reset();
    used.must_all_say("the session has ended");
  } else if (mode == "fork") {
    auto s = open(cluster);
    given all(*s);
    all.use();
    if (const auto child = ::fork(); child != 0) {
      must_end(child, "it returns from main()");
      if (const auto uses = ::fork(); uses != 0) {
        must_end(uses, "it uses what it has");
        all.use();
      } else {
        const std::string_view why = "was forked from process";
        all.must_all_say(why);
        graph g(s->ops());
        must_say(s->compile(g, std::array{relu(input(g, two, "x"))}), why, "session::compile");
        must_say(s->attach("job"), why, "session::attach");
        must(s->nodes().empty(), "session::nodes");
        auto own = open();
        given others(*own);
        others.use();
      }
    }
  } else if (mode == "fork_static") {
    static auto s = open(cluster);
    static given all(*s);
    all.use();
    if (const auto child = ::fork(); child != 0) must_end(child, "it returns from main()");
  } else {
    wrong("modes: static, global, idle, topology, moved, busy, order, fork, fork_static");
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) wrong("usage: odd_ends MODE [CLUSTER]");
  const auto code = run_mode(argv[1], argc > 2 ? argv[2] : "");
  fmt::print("done\n");
  std::fflush(stdout);
  return code;
}
