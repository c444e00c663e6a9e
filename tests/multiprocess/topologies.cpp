// Topologies for pipelines.py: what a stage does is its argument.
//
//   topologies make|decode|score|keep[_hangs|_throws]|stdin|endless [flags of topology_flags]

#include <troupe/pipelines.hpp>
#include <troupe/program.hpp>

#include <chrono>
#include <cstdio>
#include <string>
#include <thread>

using namespace troupe;
using namespace std::chrono_literals;

namespace {

// Which stage takes how long for an item; what never comes back does so at item 50.
int work(const std::string& wanted, const char* name, int x, std::chrono::milliseconds time) {
  if (wanted == name) std::this_thread::sleep_for(time);
  if (wanted == std::string(name) + "_hangs" && x == 50) std::this_thread::sleep_for(24h);
  if (wanted == std::string(name) + "_throws" && x == 50) throw std::runtime_error("item of doom");
  return x;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  argv[1] = argv[0];
  topology t(argc - 1, argv + 1);
  if (what == "stdin") {
    auto upper = map(read_stdin(t), [](std::string line) {
      for (auto& c : line) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c;
      return line;
    });
    print(upper);
    return t.run();
  }
  if (what == "endless") {
    struct counter {
      std::int64_t state = 0;
      std::optional<std::int64_t> operator()() { return state++; }
    };
    print(source(t, counter{}));
    return t.run();
  }
  auto numbers = source(
      t, [&, i = 0]() mutable -> std::optional<int> { return work(what, "make", i, 5ms), i++; },
      {.name = "make"});
  auto first =
      map(numbers, [&](int x) { return work(what, "decode", x, 5ms); }, {.name = "decode"});
  auto second = map(first, [&](int x) { return work(what, "score", x, 5ms); },
                    {.name = "score", .replicas = between(2, 4)});
  int done = 0;
  for_each(second,
           [&](int x) {
             if (done++ == 0) std::printf("runs\n"), std::fflush(stdout);
             work(what, "keep", x, 5ms);
           },
           {.name = "keep"});
  const auto code = t.run();
  std::printf("%d\n", done);
  return code;
}
