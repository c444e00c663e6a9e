// Topologies whose stages run on nodes, for tests: far_topologies WHAT --on PLACE ... prints what
// comes of them, an item a line.

#include "tests/multiprocess/far_stages.hpp"

#include <troupe/pipelines.hpp>
#include <troupe/program.hpp>

#include <CLI/CLI.hpp>

#include <cstdio>
#include <map>

using namespace troupe;

int main(int argc, char** argv) {
  CLI::App app{"Topologies over nodes.", "far_topologies"};
  topology_flags flags;
  flags.topology.name = "far";
  std::string what, on, then_on;
  std::int64_t items = 1000, number = 0;
  std::uint32_t replicas = 1;
  app.add_option("what", what)->required();
  app.add_option("--on", on);
  app.add_option("--then-on", then_on);
  app.add_option("--items", items);
  app.add_option("--number", number);
  app.add_option("--replicas", replicas);
  flags.add_topology_flags(app);
  if (const auto code = flags.parse(app, argc, argv)) return *code;
  topology t(flags.options());
  t.use(far_stages());
  const auto made = source(t,
                           [at = std::int64_t{0}, items]() mutable {
                             return at < items ? std::optional(at++) : std::nullopt;
                           },
                           {.name = "make"});
  const stage_options here{.replicas = replicas, .on = on},
      then{.replicas = replicas, .on = then_on};
  const auto print = [](const auto& f) {
    for_each(f, [](std::int64_t x) { std::printf("%ld\n", long{x}); }, {.name = "print"});
  };
  if (what == "scale") {
    print(map(map(made, scale{3}, here), scale{number}, then));
  } else if (what == "doom") {
    print(map(made, doom{number}, here));
  } else if (what == "skip") {
    const auto letters = dead_letters(t);
    auto o = here;
    o.on_error = skip();
    o.dead_letters = letters;
    print(map(made, doom{number}, o));
    for_each(letters, [](const dead_letter& d) {
      std::printf("%s %s %lu %s\n", d.stage.c_str(), d.source.c_str(), (unsigned long)d.number,
                  d.reason.c_str());
    });
  } else if (what == "hang") {
    print(map(made, hang{number}, here));
  } else if (what == "slow") {
    print(map(made, slow{number}, here));
  } else if (what == "add_up") {
    print(map(map(made, slow{number}, {.on = then_on}), add_up{}, {.on = on}));
  } else if (what == "sums") {
    print(partition_by(map(made, slow{number}, here), last_digit{}, adds_up_well{}, here));
  } else if (what == "counts") {
    print(map(map(made, slow{number}, here), counts{}, here));
  } else if (what == "thrice") {
    print(map(map(made, slow{number}, here), thrice{}, here));
  } else if (what == "tensors") {
    print(map(map(made, grow{number}, here), shrink{}, then));
  } else if (what == "end") {
    for_each(made, swallow{}, here);
  } else if (what == "pids") {
    struct each {
      std::map<std::string, int> of;
      void operator()(const std::string& p) { ++of[p]; }
      generator<std::string> finish() {
        for (const auto& [p, n] : of) {
          auto line = p + " " + std::to_string(n);
          co_yield std::move(line);
        }
      }
    };
    for_each(map(map(made, pid{}, here), each{}),
             [](const std::string& line) { std::printf("%s\n", line.c_str()); });
  } else {
    return 2;
  }
  return t.run();
}
