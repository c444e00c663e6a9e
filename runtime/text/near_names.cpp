#include "troupe/runtime/text/near_names.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace troupe {
namespace {

constexpr std::size_t characters_max = 64, told_max = 4, apart_max = 2;

std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 0; i < a.size(); ++i) {
    auto diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j)
      diagonal = std::exchange(
          row[j + 1], std::min({row[j + 1] + 1, row[j] + 1, diagonal + (a[i] == b[j] ? 0 : 1)}));
  }
  return row.back();
}

}  // namespace

std::string near_names(std::string_view unknown, std::span<const std::string_view> names) {
  std::vector<std::pair<std::size_t, std::string_view>> near;
  if (unknown.empty() || unknown.size() > characters_max) return {};
  for (const auto name : names) {
    const auto longer = std::max(name.size(), unknown.size()),
               shorter = std::min(name.size(), unknown.size());
    if (longer - shorter <= apart_max && longer > apart_max) {
      if (const auto d = distance(unknown, name); d <= apart_max) {
        near.emplace_back(d, name);
        continue;
      }
    }
    if (name.starts_with(unknown)) near.emplace_back(apart_max + 1, name);
  }
  std::ranges::stable_sort(near, {}, [](const auto& n) { return n.first; });
  std::string text;
  for (std::size_t i = 0; i < std::min(near.size(), told_max); ++i)
    text.append(i == 0 ? ", perhaps '" : ", '").append(near[i].second).append("'");
  return text;
}

}  // namespace troupe
