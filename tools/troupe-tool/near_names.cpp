#include "tools/troupe-tool/near_names.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

namespace troupe {

namespace {

constexpr std::size_t length_max = 200;  // of names that are compared letter by letter

// Levenshtein distance: insertions, deletions and replacements.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    auto diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const auto replaced = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

std::vector<std::string> near_names(std::string_view typed, std::span<const std::string> names,
                                    std::size_t most) {
  std::set<std::pair<std::size_t, std::string>> ranked;
  const auto allowed = std::max<std::size_t>(2, typed.size() / 3);
  for (const auto& name : names) {
    if (typed.empty() || typed.size() > length_max || name.size() > length_max) continue;
    const auto letters = distance(typed, name);
    const bool contains = typed.size() >= 2 && name.find(typed) != std::string::npos;
    // One wrong letter of one letter is another name, not a mistake.
    if ((letters <= allowed && letters < typed.size()) || contains) ranked.emplace(letters, name);
  }
  std::vector<std::string> nearest;
  for (const auto& [rank, name] : ranked) {
    if (nearest.size() == most) break;
    nearest.push_back(name);
  }
  return nearest;
}

std::string did_you_mean(std::string_view typed, std::span<const std::string> names) {
  const auto nearest = near_names(typed, names);
  return nearest.empty() ? std::string()
                         : fmt::format("; did you mean {}?", fmt::join(nearest, " or "));
}

}  // namespace troupe
