#pragma once
// What somebody may have meant by a name that is unknown: ", perhaps 'softmax'" or nothing.
//
// Names that begin with it or differ by at most two characters (Levenshtein, 1965), the nearest
// first, at most four. Threading: a plain function.

#include <span>
#include <string>
#include <string_view>

namespace troupe {

std::string near_names(std::string_view unknown, std::span<const std::string_view> names);

}  // namespace troupe
