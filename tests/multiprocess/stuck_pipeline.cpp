// A program whose pipeline does not move, for tests of `troupe why`: stuck_pipeline CLUSTER
// no-fetch|no-feed
//
// no-fetch feeds a small graph with one credit per edge and takes no value; no-feed feeds nothing.
// It prints "stuck" just before nothing moves any more, and waits to be killed.

#include "troupe/actors/session/session.hpp"

#include <fmt/format.h>

#include <array>
#include <unistd.h>

#include <cstdio>
#include <string_view>

using namespace troupe;

namespace {

int fail(const error& e) {
  fmt::print(stderr, "stuck_pipeline: {}\n", e.text());
  return static_cast<int>(e.code());
}

void say_stuck() {
  fmt::print("stuck\n");
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return fail({error_code::usage, "usage: stuck_pipeline CLUSTER no-fetch|no-feed"});
  const std::string_view mode = argv[2];
  session_options options;
  options.cluster = argv[1];
  auto s = session::open(options);
  if (!s) return fail(s.error());

  graph g((*s)->ops());
  const tensor_spec spec{dtype::f32, shape{4}};
  const auto x = input(g, spec, "images");
  const std::array fetches{relu(x)};
  auto run = (*s)->compile(g, fetches, {.name = "stuck", .credits = 1});
  if (!run) return fail(run.error());

  if (mode == "no-feed") {
    // Nor may it fetch what it did not feed.
    if (auto values = (*run)->fetch(); values || values.error().code() != error_code::usage)
      return 1;
    say_stuck();
  } else {
    for (int i = 0;; ++i) {  // until feed, graph and fetch hold all that they may
      if (i == 8) say_stuck();
      auto fed = (*run)->feed("images", tensor::make(spec));
      if (!fed && fed.error().code() == error_code::timed_out) break;
      if (!fed) return fail(fed.error());
    }
  }
  for (;;) pause();
}
