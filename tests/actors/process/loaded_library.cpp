// Libraries that a process loads or refuses: one for each LOADED_... that tests/CMakeLists.txt
// gives.

#if defined(LOADED_ops)

#include "troupe/runtime/graph/op_library.hpp"

namespace {

using namespace troupe;

result<std::vector<tensor_spec>> shapes_of(const attributes&, std::span<const tensor_spec>,
                                           const tag*) {
  return std::vector<tensor_spec>{{dtype::f32, {7}}};
}
result<std::unique_ptr<kernel>> make_kernel(const attributes&, host_device&) {
  return error(error_code::failed, "nobody runs it");
}
void add(op_table& ops, kernel_table& kernels) {
  ops.add("loaded_op", {.inputs = 1, .shapes = shapes_of, .gradient = {}});
  kernels.add("loaded_op", {make_kernel});
}

}  // namespace

TROUPE_OP_LIBRARY({.name = "loaded_ops", .version = "1.5", .add = add})

#elif defined(LOADED_stages) || defined(LOADED_other_abi) || defined(LOADED_same_names)

#include "troupe/runtime/flow/stage_library.hpp"

namespace {

struct half {
  int operator()(int x) const { return x / 2; }
};
struct third {
  int operator()(int x) const { return x / 3; }
};
#if defined(LOADED_same_names)
constexpr const char* name_of_third = "half";
#else
constexpr const char* name_of_third = "third";
#endif
const troupe::stage_library& stages() {
  static const troupe::stage_library all(
      "loaded_stages", "2.5",
      {troupe::stage_of<half>("half"), troupe::stage_of<third>(name_of_third)});
  return all;
}

}  // namespace

#if defined(LOADED_other_abi)
extern "C" __attribute__((visibility("default"))) const troupe::stage_library_file*
troupe_stage_library() {
  static const troupe::stage_library_file file{troupe::stage_library_abi() + 1, &stages()};
  return &file;
}
#else
TROUPE_STAGE_LIBRARY(stages())
#endif

#elif !defined(LOADED_nothing)  // that one has no entry at all

namespace troupe {
struct op_library;
struct stage_library_file;
}  // namespace troupe

extern "C" __attribute__((visibility("default"))) const troupe::op_library* troupe_op_library() {
#if defined(LOADED_throws)
  throw 7;
#endif
  return nullptr;
}
extern "C" __attribute__((visibility("default"))) const troupe::stage_library_file*
troupe_stage_library() {
#if defined(LOADED_throws)
  throw 7;
#endif
  return nullptr;
}

#endif
