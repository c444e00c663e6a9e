#pragma once
// Names that a mistyped one may have meant.

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

// At most `most` names, nearest first: few letters away, or containing what was typed. Duplicates
// once.
std::vector<std::string> near_names(std::string_view typed, std::span<const std::string> names,
                                    std::size_t most = 3);

// "; did you mean a or b?", or "".
std::string did_you_mean(std::string_view typed, std::span<const std::string> names);

}  // namespace troupe
