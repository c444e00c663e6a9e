#pragma once
// What people call a type. Threading: any.

#include <string>
#include <typeinfo>

namespace troupe {

// "decode" of a struct; `otherwise` of a lambda, a pointer to a function or std::function.
std::string stage_name(const std::type_info& type, const char* otherwise);

}  // namespace troupe
