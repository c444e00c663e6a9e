// All programs that a machine with a GPU is given, in one, so that they share the engine: called by
// a link with a program's name, or
//
//   troupe-gpu PROGRAM [ARGUMENT...]
//
// Each is a main() of its own, which its source is compiled with under another name
// (tests/CMakeLists.txt).

#include <cstdio>
#include <cstring>
#include <string_view>

#define TROUPE_PROGRAMS(row)                                                          \
  row(gpu_tests) row(gpu_bench) row(gpu_nccl) row(engine_bench) row(train_classifier) \
      row(train_language_model) row(train_towers)

#define TROUPE_DECLARE(name) int name##_main(int argc, char** argv);
TROUPE_PROGRAMS(TROUPE_DECLARE)

namespace {

struct program {
  std::string_view name;
  int (*main)(int, char**);
};
#define TROUPE_ROW(name) {#name, &name##_main},
constexpr program programs[] = {TROUPE_PROGRAMS(TROUPE_ROW)};

const program* find(std::string_view name) {
  for (const auto& p : programs)
    if (p.name == name) return &p;
  return nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view called = argc > 0 ? argv[0] : "";
  const auto slash = called.rfind('/');
  if (const auto* p = find(slash == std::string_view::npos ? called : called.substr(slash + 1)))
    return p->main(argc, argv);
  if (argc > 1)
    if (const auto* p = find(argv[1])) return p->main(argc - 1, argv + 1);
  const bool asks = argc > 1 && std::strcmp(argv[1], "--help") == 0;
  if (argc > 1 && !asks) std::printf("troupe-gpu: there is no program %s\n", argv[1]);
  std::printf("troupe-gpu PROGRAM [ARGUMENT...]:");
  for (const auto& p : programs)
    std::printf(" %.*s", static_cast<int>(p.name.size()), p.name.data());
  std::printf("\n");
  return asks ? 0 : 2;
}
