#pragma once
// What stays of a part that has ended: what lists and timelines say of it.
//
// Threading: the node's.

#include "troupe/actors/plan/part_context.hpp"

#include <memory>

namespace troupe {

// Of a part whose actors have ended: its plan without attributes of ops, and the records and
// counters of its actors. Constants, variables, buffers and pools end with `ended`, which nothing
// here refers to. Throws std::bad_alloc.
std::shared_ptr<part_context> remains_of(const part_context& ended);

}  // namespace troupe
