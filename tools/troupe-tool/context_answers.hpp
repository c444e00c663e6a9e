#pragma once
// `troupe context` and the names of contexts. Writes the file of contexts where it is asked to.

#include "tools/troupe-tool/answer.hpp"
#include "tools/troupe-tool/contexts.hpp"

namespace troupe {

outcome answer_contexts(const command& c, const surroundings& around);

}  // namespace troupe
