#pragma once
// troupe checkpoint list|verify: what lies in a folder of checkpoints. Needs no cluster.

#include "tools/troupe-tool/answer.hpp"
#include "tools/troupe-tool/command.hpp"
#include "troupe/devices/files/disk.hpp"

namespace troupe {

// `c.id` is the folder that --checkpoint names, or that of one job in it. list looks at manifests
// and sizes, verify reads everything. Exit codes: 0 all that is visible is whole, 1 something is
// not, 6 no such folder, or no checkpoint in it.
outcome answer_checkpoints(const command& c, disk& d, std::size_t width);

}  // namespace troupe
