#include "troupe/runtime/plan/loop_rules.hpp"

#include <algorithm>
#include <array>

namespace troupe {

bool is_control(std::string_view type) noexcept {
  constexpr std::array all{branch_op,         merge_op,     loop_enter_op,
                           loop_condition_op, loop_next_op, loop_stack_op};
  return std::find(all.begin(), all.end(), type) != all.end();
}

}  // namespace troupe
