#include "runtime/actor_record.hpp"

namespace troupe {

std::string_view to_string(actor_state s) noexcept {
  switch (s) {
    case actor_state::idle: return "idle";
    case actor_state::running: return "running";
    case actor_state::waits_for_input: return "waiting for input";
    case actor_state::waits_for_credit: return "waiting for credit";
    case actor_state::ended: return "ended";
  }
  return "unknown";
}

}  // namespace troupe
