// The first pipeline: numbers, two stages of one's own, and a line for each result.
//
//   build/bin/hello_pipeline
//   build/bin/hello_pipeline --explain      # its stages, and what their edges hold

#include <troupe/pipelines.hpp>

#include <numeric>

using namespace troupe;

namespace {

int slow_square(int x) { return x * x; }

struct running_mean {  // a stage with state
  double sum = 0, n = 0;
  double operator()(int x) { return (sum += x) / ++n; }
};

}  // namespace

int main(int argc, char** argv) {
  topology t(argc, argv);
  auto numbers = from(t, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  auto squares = map(numbers, slow_square, {.replicas = 2});  // two at once, in order
  auto even = filter(squares, [](int x) { return x % 2 == 0; });
  print(zip(even, map(even, running_mean{})));
  return t.run();
}
