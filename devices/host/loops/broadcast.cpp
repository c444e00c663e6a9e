#include "troupe/devices/host/loops/broadcast.hpp"

namespace troupe::host {

std::optional<broadcast_walk> broadcast_walk::over(const shape& out,
                                                   std::span<const shape> operands) {
  struct loop {
    std::int64_t size;
    std::vector<std::int64_t> steps;  // per operand
  };
  std::vector<loop> loops;  // innermost first
  std::vector<std::int64_t> dense(operands.size(), 1);
  for (const auto& o : operands)
    if (o.rank() > out.rank()) return std::nullopt;
  for (std::size_t from_end = 1; from_end <= out.rank(); ++from_end) {
    loop l{out.size(out.rank() - from_end), std::vector<std::int64_t>(operands.size())};
    for (std::size_t k = 0; k < operands.size(); ++k) {
      if (operands[k].rank() < from_end) continue;
      const auto size = operands[k].size(operands[k].rank() - from_end);
      if (size != l.size && size != 1) return std::nullopt;
      l.steps[k] = size == 1 ? 0 : dense[k];
      dense[k] *= size;
    }
    if (l.size == 1) continue;
    const auto continues = [&](const loop& inner) {
      for (std::size_t k = 0; k < operands.size(); ++k)
        if (l.steps[k] != inner.steps[k] * inner.size) return false;
      return true;
    };
    if (!loops.empty() && continues(loops.back()))
      loops.back().size *= l.size;
    else
      loops.push_back(std::move(l));
  }

  broadcast_walk w;
  w.steps_.resize(operands.size());
  if (!loops.empty()) w.columns_ = loops[0].size;
  if (loops.size() > 1) w.rows_ = loops[1].size;
  for (std::size_t k = 0; k < operands.size(); ++k) {
    if (!loops.empty()) w.steps_[k].column = loops[0].steps[k];
    if (loops.size() > 1) w.steps_[k].row = loops[1].steps[k];
  }
  w.around_ = loops.size() > 2 ? loops.size() - 2 : 0;
  for (std::size_t i = 0; i < w.around_; ++i) {
    const auto& l = loops[loops.size() - 1 - i];
    w.sizes_[i] = l.size;
    w.blocks_ *= l.size;
    for (std::size_t k = 0; k < operands.size(); ++k) w.steps_[k].around[i] = l.steps[k];
  }
  return w;
}

std::int64_t broadcast_walk::offset(std::size_t k, std::int64_t block) const noexcept {
  std::int64_t at = 0;
  for (auto i = around_; i-- > 0;) {
    at += block % sizes_[i] * steps_[k].around[i];
    block /= sizes_[i];
  }
  return at;
}

}  // namespace troupe::host
