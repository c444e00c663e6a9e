// The C++ of the README, as it stands there, between what a program needs around it: readme_example
// IMAGE_FOLDER CMake cuts the function and the statements out of the README.
#include <troupe/troupe.hpp>

#include <fmt/format.h>

using namespace troupe;

#include "tests/multiprocess/readme_function.inc"

int main(int argc, char** argv) {
  const std::uint32_t workers = 2, shards = 2;
  const std::uint64_t steps = 20;
  const auto data = open_idx(argc > 1 ? argv[1] : ".", /*test=*/false);
  const auto opened = session::open({});
  if (!data || !opened) return 2;
  auto& s = **opened;
#include "tests/multiprocess/readme_statements.inc"
  if (!run) {
    fmt::print(stderr, "{}\n", run.error().text());
    return 1;
  }
  std::vector<float> losses;
  while (auto event = (*run)->next()) {
    if (event->type == training_event::kind::loss) losses.push_back(event->loss);
    if (event->type == training_event::kind::failed) fmt::print(stderr, "{}\n", event->text);
  }
  if (losses.size() != steps) return 1;
  fmt::print("{} {}\n", losses.front(), losses.back());
}
