#include "troupe/actors/base/failing.hpp"

#include <caf/abstract_actor.hpp>
#include <caf/actor_cast.hpp>
#include <caf/exit_reason.hpp>
#include <caf/message.hpp>
#include <caf/sec.hpp>

#include <new>
#include <utility>

namespace troupe {

caf::error reason_of(caf::scheduled_actor*, std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const std::bad_alloc&) {
    return failure_reason(
        "this process is out of memory: use smaller batches, fewer credits, or more nodes");
  } catch (const std::exception& e) {
    return failure_reason(e.what());
  } catch (...) {
    return failure_reason("an exception of unknown type");
  }
}

caf::error failure_reason(std::string text) {
  return caf::make_error(caf::sec::runtime_error, std::move(text));
}

std::optional<std::string> failure_text(const caf::error& reason) {
  using why = caf::exit_reason;
  if (!reason || reason == why::normal || reason == why::unreachable ||
      reason == why::user_shutdown)
    return std::nullopt;
  if (reason == caf::sec::runtime_error && reason.context().match_elements<std::string>())
    return reason.context().get_as<std::string>(0);
  return caf::to_string(reason);
}

void on_failure(const caf::actor& who, std::function<void(const std::string& text)> then) {
  caf::actor_cast<caf::abstract_actor*>(who)->attach_functor(
      [then = std::move(then)](const caf::error& reason) {
        if (const auto text = failure_text(reason)) then(*text);
      });
}

}  // namespace troupe
