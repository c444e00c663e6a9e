#include "tools/troupe-bench/measure.hpp"
#include "troupe/runtime/text/json_line.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>

namespace troupe {

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const auto half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double ratio_of(const bench_row& row) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < std::min(row.ours.size(), row.theirs.size()); ++i)
    ratios.push_back(row.ratio == bench_ratio::ours_to_baseline ? row.ours[i] / row.theirs[i]
                                                                : row.theirs[i] / row.ours[i]);
  return median(std::move(ratios));
}

void bench_report::add(const bench_row& row) {
  const auto [least, most] = std::minmax_element(row.ours.begin(), row.ours.end());
  if (is_json_) {
    nlohmann::ordered_json line;
    line["bench"] = row.bench;
    line["case"] = row.what;
    line["unit"] = row.unit;
    line["median"] = median(row.ours);
    line["min"] = *least;
    line["max"] = *most;
    line["runs"] = row.ours.size();
    line["actors"] = row.actors;
    line["baseline"] = row.baseline;
    line["baseline_median"] = median(row.theirs);
    line["ratio"] = ratio_of(row);
    line["ratio_of"] =
        row.ratio == bench_ratio::ours_to_baseline ? "ours / baseline" : "baseline / ours";
    line["goal"] = row.goal;
    fmt::print("{}\n", json_line(line));
  } else {
    fmt::print(
        "{:<13} {:<53} {:>9.4g} {:<5} {:>9.4g} .. {:<9.4g} {:>2} runs {:>4} actors  {:>8.3f} {} {:.4g}, {}{}\n",
        row.bench, row.what, median(row.ours), row.unit, *least, *most, row.ours.size(), row.actors,
        ratio_of(row), row.ratio == bench_ratio::ours_to_baseline ? "of" : "from",
        median(row.theirs), row.baseline, row.goal.empty() ? "" : "  (goal " + row.goal + ")");
  }
  std::fflush(stdout);
}

result<std::vector<std::vector<double>>> take_turns(int runs,
                                                    const std::vector<contender>& contenders) {
  std::vector<std::vector<double>> figures(contenders.size());
  for (int run = -1; run < runs; ++run)
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      auto figure = contenders[i]();
      if (!figure) return figure.error();
      if (run >= 0) figures[i].push_back(*figure);
    }
  return figures;
}

}  // namespace troupe
