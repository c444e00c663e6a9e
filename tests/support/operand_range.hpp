#pragma once
// Of which numbers operands of an element-wise op are drawn: where it has a value, and its slope is
// not steep.

#include <map>
#include <string>
#include <string_view>

namespace troupe::operands {

struct operand_range {
  double low, high;
};

inline operand_range range_of(std::string_view op, double size = 4) {
  static const std::map<std::string, operand_range, std::less<>> ranges{
      {"asin", {-0.95, 0.95}}, {"acos", {-0.95, 0.95}}, {"atanh", {-0.95, 0.95}},
      {"acosh", {1.1, 4}},     {"tan", {-1.4, 1.4}},    {"log1p", {-0.9, 4}},
      {"fmod", {1, 4}},        {"log", {0.1, 4}},       {"sqrt", {0.1, 4}},
      {"rsqrt", {0.1, 4}},     {"pow", {0.1, 4}},       {"reciprocal", {0.1, 4}}};
  const auto at = ranges.find(op);
  return at != ranges.end() ? at->second : operand_range{-size, size};
}

}  // namespace troupe::operands
