#pragma once
// The random graphs of the benchmarks: element-wise ops and small products.

#include "troupe/runtime/graph/build.hpp"
#include "troupe/runtime/graph/ops.hpp"

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

namespace troupe {

// Operands are among the newest 64 values, so that the graph is as deep as it is wide. What is to
// be fetched.
inline std::vector<value> random_values(graph& g, std::uint32_t ops) {
  std::mt19937_64 random(7);
  std::vector<value> values{input(g, {dtype::f32, {4, 4}}, "x"),
                            input(g, {dtype::f32, {4, 4}}, "y")};
  const auto one = [&] {
    return values[values.size() - 1 - random() % std::min<std::size_t>(values.size(), 64)];
  };
  for (std::uint32_t i = 0; i < ops; ++i) switch (random() % 5) {
      case 0: values.push_back(add(one(), one())); break;
      case 1: values.push_back(mul(one(), one())); break;
      case 2: values.push_back(maximum(one(), one())); break;
      case 3: values.push_back(tanh(one())); break;
      default: values.push_back(matmul(one(), one())); break;
    }
  auto sum = values.back();
  for (std::size_t i = values.size() - std::min<std::size_t>(values.size(), 64); i < values.size();
       ++i)
    sum = add(sum, values[i]);
  return {sum};
}

}  // namespace troupe
