#pragma once
// What a benchmark is, what it reports, and how contenders take turns.
//
// Figures of different runs do not compare on a machine that others use too; those of contenders
// that took turns do. So every line has a baseline that ran in between, and its ratio is the median
// of the ratios of neighbours.
//
// Threading: the program's thread.

#include "troupe/schema/error.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

struct bench_options {
  int runs = 9;
  bool is_quick = false;  // enough to see that everything works, not to measure
  bool has_tls = false;   // roundtrip, stream: connections are protected
  std::string data;       // folder of IDX files; empty: images that are made for it
};

// How ours and the baseline's figure become a ratio, as the goals are stated.
enum class bench_ratio : std::uint8_t {
  ours_to_baseline,  // a cost: at most ...; a rate: at least ...
  baseline_to_ours,  // a share of the baseline's speed, from costs: at least ...
};

struct bench_row {
  std::string bench, what, unit;
  std::vector<double> ours;  // by run
  std::uint64_t actors = 0;  // that took part
  std::string baseline;
  std::vector<double> theirs;  // by run
  bench_ratio ratio = bench_ratio::ours_to_baseline;
  std::string goal;  // of the ratio: "<= 1.25"; empty: none
};

double median(std::vector<double> values);
double ratio_of(const bench_row& row);

class bench_report {
 public:
  explicit bench_report(bool is_json) : is_json_(is_json) {}
  void add(const bench_row& row);  // prints it

 private:
  bool is_json_;
};

using contender = std::function<result<double>()>;
// Each contender in turn, `runs` times, after one turn that does not count. By contender, then by
// run.
result<std::vector<std::vector<double>>> take_turns(int runs,
                                                    const std::vector<contender>& contenders);

struct benchmark {
  std::string_view name;
  std::string_view what;
  result<void> (*run)(const bench_options&, bench_report&);
};

inline double seconds_since(std::chrono::steady_clock::time_point t) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - t).count();
}

result<void> bench_hop(const bench_options&, bench_report&);
result<void> bench_fused(const bench_options&, bench_report&);
result<void> bench_fan(const bench_options&, bench_report&);
result<void> bench_small_run(const bench_options&, bench_report&);
result<void> bench_own_loop(const bench_options&, bench_report&);
result<void> bench_side_by_side(const bench_options&, bench_report&);
result<void> bench_loop(const bench_options&, bench_report&);
result<void> bench_pipeline(const bench_options&, bench_report&);
result<void> bench_pipelines(const bench_options&, bench_report&);
result<void> bench_far_pipelines(const bench_options&, bench_report&);
result<void> bench_live(const bench_options&, bench_report&);
result<void> bench_passes(const bench_options&, bench_report&);
result<void> bench_random_graph(const bench_options&, bench_report&);
result<void> bench_threads(const bench_options&, bench_report&);
result<void> bench_step(const bench_options&, bench_report&);
result<void> bench_training(const bench_options&, bench_report&);
result<void> bench_timeline(const bench_options&, bench_report&);
result<void> bench_checkpoint(const bench_options&, bench_report&);
result<void> bench_images(const bench_options&, bench_report&);
result<void> bench_roundtrip(const bench_options&, bench_report&);
result<void> bench_stream(const bench_options&, bench_report&);
result<void> bench_all_reduce(const bench_options&, bench_report&);

}  // namespace troupe
