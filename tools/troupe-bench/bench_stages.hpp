#pragma once
// The stages of benchmarks that run on nodes: in this program, and in its peers.

#include "troupe/devices/tensor.hpp"
#include "troupe/runtime/flow/stage_library.hpp"

#include <array>
#include <cstdint>

namespace troupe {

using small_item = std::array<std::uint64_t, 8>;

struct small_stage {
  small_item operator()(small_item x) const {
    ++x[1];
    return x;
  }
};
struct large_stage {
  tensor operator()(tensor x) const { return x; }
};

inline const stage_library& bench_stages() {
  static const stage_library stages(
      "troupe-bench", "1", {stage_of<small_stage>("small"), stage_of<large_stage>("large")});
  return stages;
}

}  // namespace troupe
