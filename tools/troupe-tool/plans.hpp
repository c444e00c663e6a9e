#pragma once
// troupe plan: what the compiler makes of a graph in a file. Needs no cluster.

#include "tools/troupe-tool/answer.hpp"
#include "tools/troupe-tool/command.hpp"
#include "troupe/devices/files/disk.hpp"
#include "troupe/runtime/graph/op_table.hpp"

namespace troupe {

// `c.id` is the file. A graph that has a loss is compiled for training, as its file says but for
// `c.plan`; others for steps. Exit codes: 0 a plan, 1 the graph does not compile, 2 no graph, or
// flags that do not fit it, 6 no such file.
outcome answer_plan(const command& c, disk& d, const op_table& ops);

}  // namespace troupe
