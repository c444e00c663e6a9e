#pragma once
// The release that this library belongs to, as programs print it: "0.1.0".

#include <string_view>

namespace troupe {

std::string_view version() noexcept;

}  // namespace troupe
