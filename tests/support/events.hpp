#pragma once
// The events of a training, each of which comes within a limit.

#include "tests/support/wait.hpp"
#include "troupe/actors/session/session.hpp"

#include <optional>
#include <source_location>
#include <string>

namespace troupe::test {

// As training::next; if none comes within the limit against hangs, the test case fails.
inline std::optional<training_event> next_event(
    training& run, const std::source_location& where = std::source_location::current()) {
  const std::string what = "the next event of the training";
  const waiting_for named(what, where);
  auto event = run.next(hang);
  const bool has_come = !event || event->type != training_event::kind::none;
  if (!has_come) fail_waiting("for", what, hang, where);
  return event;
}

}  // namespace troupe::test
