#pragma once
// How a loop walks over a tensor of which some dimensions are reduced. Used in devices/host/ only.
//
// Dimensions of one element vanish, neighbours that are both reduced or both kept become one, so
// that what is left are kept and reduced loops in turns: blocks of rows (reduced) x columns (kept;
// 1: the rows lie side by side), and loops around these.

#include "troupe/schema/attributes.hpp"
#include "troupe/schema/shape.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace troupe::host {

struct reduction_walk {
  struct loop {
    std::int64_t size;
    std::int64_t out_step;  // of the result, 0: reduced
  };
  std::vector<loop> around;  // outermost first
  std::int64_t rows = 1;     // reduced
  std::int64_t columns = 1;  // kept, and innermost; or 1
  std::int64_t blocks = 1;   // of rows x columns, through all loops around
  std::int64_t results = 1;

  // The dimensions that the attribute "axes" names; without it: all.
  static std::vector<bool> marked(const attributes& attrs, std::size_t rank) {
    const auto axes = attrs.integers("axes");
    std::vector<bool> is_reduced(rank, axes.empty());
    for (const auto a : axes) {
      const auto i = a < 0 ? a + static_cast<std::int64_t>(rank) : a;
      if (i >= 0 && i < static_cast<std::int64_t>(rank))
        is_reduced[static_cast<std::size_t>(i)] = true;
    }
    return is_reduced;
  }

  static reduction_walk over(const shape& x, const std::vector<bool>& is_reduced) {
    struct piece {
      std::int64_t size;
      bool is_reduced;
    };
    std::vector<piece> pieces;  // outermost first
    for (std::size_t i = 0; i < x.rank(); ++i) {
      if (x.size(i) == 1) continue;
      if (!pieces.empty() && pieces.back().is_reduced == is_reduced[i])
        pieces.back().size *= x.size(i);
      else
        pieces.push_back({x.size(i), is_reduced[i]});
    }
    reduction_walk w;
    if (!pieces.empty() && !pieces.back().is_reduced) {
      w.columns = pieces.back().size;
      pieces.pop_back();
    }
    if (!pieces.empty() && pieces.back().is_reduced) {
      w.rows = pieces.back().size;
      pieces.pop_back();
    }
    w.results = w.columns;
    w.around.resize(pieces.size());
    for (auto i = pieces.size(); i-- > 0;) {
      w.around[i] = {pieces[i].size, pieces[i].is_reduced ? 0 : w.results};
      if (!pieces[i].is_reduced) w.results *= pieces[i].size;
      w.blocks *= pieces[i].size;
    }
    return w;
  }

  // Where the results of a block begin.
  std::int64_t out_of(std::int64_t block) const noexcept {
    std::int64_t at = 0;
    for (auto i = around.size(); i-- > 0;) {
      at += block % around[i].size * around[i].out_step;
      block /= around[i].size;
    }
    return at;
  }
};

}  // namespace troupe::host
