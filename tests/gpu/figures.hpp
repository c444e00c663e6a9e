#pragma once
// What benchmarks of this folder share: an error ends them, and a figure is a line: what, unit,
// median, spread over turns.

#include "troupe/schema/error.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

namespace troupe::test {

[[noreturn]] inline void end(const error& e) {
  std::printf("failed: %s\n", e.text().c_str());
  std::fflush(stdout);
  std::exit(1);
}
template <class T>
T fine(result<T> r) {
  if (!r) end(r.error());
  return std::move(*r);
}
inline void fine(result<void> r) {
  if (!r) end(r.error());
}

template <class Run>
double seconds_of(Run&& run) {
  const auto begin = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

struct figure {
  std::string what, unit;
  std::vector<double> values;

  void add(double v) { values.push_back(v); }
  void print() {
    std::ranges::sort(values);
    std::printf("%-72s %-8s %10.3f  (%.3f to %.3f)\n", what.c_str(), unit.c_str(),
                values[values.size() / 2], values.front(), values.back());
    std::fflush(stdout);
  }
};

inline void print(const std::string& what, const std::string& unit, double value) {
  figure{what, unit, {value}}.print();
}

}  // namespace troupe::test
