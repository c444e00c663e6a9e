// Typical mistakes of pipelines, and what Troupe says: the code of each runs here, and docs of it
// are made here (TROUPE_WRITE_DOCS=1).

#include "tests/support/mistake_page.hpp"
#include "tests/support/source_folder.hpp"
#include "troupe/runtime/flow/drain.hpp"
#include "troupe/runtime/flow/file_stages.hpp"
#include "troupe/runtime/flow/flow.hpp"
#include "troupe/runtime/flow/resource.hpp"
#include "troupe/runtime/flow/sample_stages.hpp"

#include <boost/test/unit_test.hpp>

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

using namespace troupe;
using namespace std::chrono_literals;

namespace {

const std::string page_of_pipelines = test::source_folder() + "/runtime/flow/ERRORS.md";

struct pipeline_place {
  flow_graph t;
  // What is said when it is to run, or while it does.
  std::string built() {
    const auto ran = drain(t);
    return ran ? "no error" : ran.error().text();
  }
};

struct pipeline_mistake {
  const char *title, *code;
  std::function<std::string(pipeline_place&)> make;
};

struct twice {
  int operator()(int x) const { return 2 * x; }
};
struct needs_a_file {
  result<void> open() { return error(error_code::not_found, "weights.bin: no such file"); }
  int operator()(int x) const { return x; }
};

#define MISTAKE(title, ...)                                     \
  pipeline_mistake {                                            \
    title, #__VA_ARGS__, [](pipeline_place& p) -> std::string { \
      auto& t = p.t;                                            \
      (void)t;                                                  \
      __VA_ARGS__                                               \
    }                                                           \
  }

const std::vector<pipeline_mistake>& mistakes_of_pipelines() {
  // Each on one line: the page shows its text, blanks included.
  // clang-format off
  static const std::vector<pipeline_mistake> all{
      MISTAKE("Nothing at all", return p.built();),
      MISTAKE("Two stages of one name", auto a = map(from(t, {1, 2}), twice{}, {.name = "double"}); collect(map(a, twice{}, {.name = "double"})); return p.built();),
      MISTAKE("Branches with unequal numbers of items, joined", auto a = from(t, {1, 2, 3}); auto some = filter(a, [](int x) { return x > 1; }); collect(zip(a, some)); return p.built();),
      MISTAKE("A branch in batches, joined with one of single items", auto a = from(t, {1, 2, 3}); collect(zip(a, batch(a, {.count = 2}))); return p.built();),
      MISTAKE("A loop that is not closed", auto back = feedback<int>(t); collect(merge(from(t, {1}), back)); return p.built();),
      MISTAKE("A loop without credit", auto back = feedback<int>(t, {.credit = 0}); auto all = merge(from(t, {1}), back); close(back, filter(all, [](int x) { return x > 1; })); return p.built();),
      MISTAKE("No replicas", collect(map(from(t, {1}), twice{}, {.replicas = 0})); return p.built();),
      MISTAKE("More replicas at first than at most", collect(map(from(t, {1}), twice{}, {.replicas = between(4, 2)})); return p.built();),
      MISTAKE("A number of replicas that changes, of keys", collect(partition_by(from(t, {1}), [](const int& x) { return x; }, twice{}, {.replicas = automatic})); return p.built();),
      MISTAKE("Replicas of what has none", collect(from(t, {1}, {.replicas = 2})); return p.built();),
      MISTAKE("A source that is to begin anew", collect(from(t, {1}, {.on_error = restart(3)})); return p.built();),
      MISTAKE("Batches of nothing", collect(batch(from(t, {1}), {.count = 0})); return p.built();),
      MISTAKE("A window without a size", collect(window(from(t, {1}), {})); return p.built();),
      MISTAKE("A place that is written wrongly", collect(map(from(t, {1}), twice{}, {.on = "worker"})); return p.built();),
      MISTAKE("A resource without units", troupe::resource<int> none(0, [](std::uint32_t) { return 1; }, "db"); collect(map(from(t, {1}), with(none, [](int x, int& unit) { return x + unit; }))); return p.built();),
      MISTAKE("A resource on nodes", troupe::resource<int> db(1, [](std::uint32_t) { return 1; }, "db"); collect(map(from(t, {1}), with(db, [](int x, int& unit) { return x + unit; }), {.on = "/job:worker"})); return p.built();),
      MISTAKE("A cache on nodes", collect(cached(from(t, {1}), twice{}, {}, {.on = "/job:worker"})); return p.built();),
      MISTAKE("Samples of an empty data set", collect(samples(t, std::vector<int>())); return p.built();),
      MISTAKE("A pattern that nothing matches", collect(files(t, "no/such/folder/*.png")); return p.built();),
      MISTAKE("A stage that cannot begin", collect(map(from(t, {1}), needs_a_file{})); return p.built();),
      MISTAKE("An item that a stage cannot work on", collect(map(from(t, {1, 2, 3}), [](int x) -> result<int> { if (x == 2) return error(error_code::failed, "two is too much"); return x; })); return p.built();),
      MISTAKE("A stage that throws", collect(map(from(t, {1, 2, 3}), [](int x) { if (x == 3) throw std::runtime_error("three"); return x; })); return p.built();),
      MISTAKE("More failures than are borne", collect(map(from(t, {1, 2, 3}), [](int) -> result<int> { return error(error_code::failed, "none is good"); }, {.on_error = skip(1)})); return p.built();),
  };
  // clang-format on
  return all;
}

#undef MISTAKE

std::string page_now() {
  std::string text =
      "# What Troupe says of typical mistakes of pipelines\n\n"
      "Made by `tests/pipelines/pipeline_mistakes_test.cpp`, which runs each line and compares what "
      "it\nsays with this page (with `TROUPE_WRITE_DOCS=1` it makes the page anew). `t` is a topology; "
      "each\nline stands in `model.cpp`. Mistakes of types are the compiler's, in ten lines or "
      "fewer.\n";
  for (const auto& m : mistakes_of_pipelines()) {
    pipeline_place p;
    auto code = test::shown_on_page(m.code);
    if (code == "return p.built();") code = "topology t;";
    text += fmt::format("\n**{}**\n\n```cpp\n{}\n```\n```text\n{}\n```\n", m.title, code,
                        test::told_on_page(m.make(p), __FILE__));
  }
  return text;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(pipeline_mistakes)

BOOST_AUTO_TEST_CASE(the_page_of_mistakes_of_pipelines_is_what_troupe_says) {
  const auto now = page_now();
  BOOST_TEST(now.find("no error") == std::string::npos);
  if (std::getenv("TROUPE_WRITE_DOCS") != nullptr) std::ofstream(page_of_pipelines) << now;
  std::stringstream there;
  there << std::ifstream(page_of_pipelines).rdbuf();
  BOOST_TEST((there.str() == now),
             page_of_pipelines
                 << " is not what Troupe says: run this test with TROUPE_WRITE_DOCS=1; now:\n"
                 << now);
}

BOOST_AUTO_TEST_SUITE_END()
