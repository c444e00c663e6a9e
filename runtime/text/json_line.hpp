#pragma once
// JSON as a line, the way all of it is written: bytes that are no UTF-8, as paths may have, become
// U+FFFD, where the library would throw.

#include <string>

namespace troupe {

// `Json`: of nlohmann, which this header leaves to whoever calls.
template <class Json>
std::string json_line(const Json& j) {
  return j.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace troupe
