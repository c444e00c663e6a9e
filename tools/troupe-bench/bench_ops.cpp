#include "tools/troupe-bench/bench_ops.hpp"

#include <algorithm>

namespace troupe {
namespace {

struct standing final : kernel {
  result<void> prepare(std::span<const tensor_spec>, std::span<const tensor_spec>) override {
    return {};
  }
  result<void> run(const tag&, std::span<const tensor>, std::span<tensor> out) override {
    std::ranges::fill(out[0].bytes(), std::byte{0});
    return {};
  }
};

void add(op_table& ops, kernel_table& kernels) {
  ops.add("standing", {.inputs = 0,
                       .shapes = [](const attributes& a, std::span<const tensor_spec>,
                                    const tag*) -> result<std::vector<tensor_spec>> {
                         return std::vector<tensor_spec>{{dtype::f32, {a.integer("elements")}}};
                       },
                       .gradient = {},
                       .is_source = true,
                       .is_constant = true});
  kernels.add("standing", {[](const attributes&, host_device&) -> result<std::unique_ptr<kernel>> {
                return std::unique_ptr<kernel>(std::make_unique<standing>());
              }});
}

}  // namespace

const op_library& bench_ops() {
  static const op_library library{.name = "troupe_bench", .version = "1", .add = add};
  return library;
}

}  // namespace troupe
