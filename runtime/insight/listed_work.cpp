#include "troupe/runtime/insight/listed_work.hpp"

namespace troupe {

std::string_view what_is_waited_for(const port_snapshot& p) noexcept {
  if (p.is_input()) return "input";
  if (p.name == thread_port) return "its thread";
  return p.name.starts_with(resource_port) ? "a resource" : "a credit";
}

}  // namespace troupe
