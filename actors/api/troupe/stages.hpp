#pragma once
// Stage libraries: functions that topologies run on other nodes. Link troupe::stages in a shared
// library, which `troupe-node --load FILE` takes. TROUPE_STAGE_LIBRARY(my_stages) beside what
// follows, outside of functions, is what a node asks the file for.
//
//   struct doubled {
//     int operator()(int x) const { return 2 * x; }
//   };
//   static const troupe::stage_library my_stages("my_stages", "1.0",
//                                                {troupe::stage_of<doubled>("doubled")});

#include "troupe/runtime/flow/file_stages.hpp"
#include "troupe/runtime/flow/sample_stages.hpp"
#include "troupe/runtime/flow/stage_library.hpp"
