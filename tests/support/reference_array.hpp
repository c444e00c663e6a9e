#pragma once
// What the reference computes with: arrays of f64, whatever their element type stands for.

#include "troupe/schema/tensor_spec.hpp"

#include <cstddef>
#include <functional>
#include <vector>

namespace troupe::reference {

struct array {
  tensor_spec spec;
  std::vector<double> at;
  friend bool operator==(const array&, const array&) = default;
};

inline array make(const tensor_spec& spec, const std::function<double(std::size_t)>& element) {
  array a{spec, std::vector<double>(static_cast<std::size_t>(spec.shape.elements()))};
  for (std::size_t i = 0; i < a.at.size(); ++i) a.at[i] = element(i);
  return a;
}

// The position of element i along each dimension, and back.
inline std::vector<std::size_t> positions(const shape& s, std::size_t i) {
  std::vector<std::size_t> at(s.rank());
  for (auto d = s.rank(); d-- > 0;) {
    at[d] = i % static_cast<std::size_t>(s.size(d));
    i /= static_cast<std::size_t>(s.size(d));
  }
  return at;
}
inline std::size_t index_at(const shape& s, const std::vector<std::size_t>& at) {
  std::size_t i = 0;
  for (std::size_t d = 0; d < s.rank(); ++d) i = i * static_cast<std::size_t>(s.size(d)) + at[d];
  return i;
}

}  // namespace troupe::reference
