#pragma once
// Tensors for people: "f32[2, 3] [[1, 2, 3], [4, 5, 6]]".

#include "troupe/devices/tensor.hpp"

#include <cstddef>
#include <string>

namespace troupe {

// Spec and elements, nested as its dimensions are. Of a dimension of more than `edge` * 2 the first
// and last `edge` are shown, with "..." between. Numbers have the digits that tell them from their
// neighbours. "nothing": of an empty handle.
std::string to_string(const tensor& t, std::int64_t edge = 3);

}  // namespace troupe
