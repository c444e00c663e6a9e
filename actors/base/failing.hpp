#pragma once
// How actors fail: an exception in a handler ends its actor with a reason that holds its text, and
// who watches the actor gets the text back. CAF's own handler keeps neither, and prints.

#include <caf/actor.hpp>
#include <caf/error.hpp>
#include <caf/scheduled_actor.hpp>

#include <exception>
#include <functional>
#include <optional>
#include <string>

namespace troupe {

// For set_exception_handler().
caf::error reason_of(caf::scheduled_actor* self, std::exception_ptr& thrown);
caf::error failure_reason(std::string text);
// nullopt: a normal end. Actors that nobody knows any more, or that CAF shuts down, have not
// failed.
std::optional<std::string> failure_text(const caf::error& reason);
// Calls `then` with the text when `who` fails, on the thread that `who` runs on.
void on_failure(const caf::actor& who, std::function<void(const std::string& text)> then);

}  // namespace troupe
