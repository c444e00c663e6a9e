#include "troupe/runtime/compile/passes/passes.hpp"

#include <algorithm>
#include <array>
#include <string_view>

namespace troupe::passes {

flow fast(flow f, pass_report* report) {
  constexpr std::array<std::string_view, 2> able{"conv2d_weights_grad", "matmul"};
  for (auto& op : f.ops) {
    if (std::find(able.begin(), able.end(), op.type) == able.end()) continue;
    op.attrs.set("fast", std::int64_t{1});
    if (report != nullptr)
      report->add(op.name, op.source,
                  [] { return "may sum in parts, which can change the last bits"; });
  }
  return f;
}

}  // namespace troupe::passes
