#pragma once
// All that a program builds graphs with: graph and values, the functions that add ops, operators,
// branches and loops.

#include "troupe/runtime/graph/control_flow.hpp"
#include "troupe/runtime/graph/graph.hpp"
#include "troupe/runtime/graph/operators.hpp"
#include "troupe/runtime/graph/ops.hpp"
