#pragma once
// Sending without a sender: what every message of the engine is, since answers are messages of
// their own.
//
// A sender in a CAF message costs two atomic operations and keeps the sender alive; the engine
// never uses it. `from` is the execution unit that runs the caller, so a message to an actor of the
// same worker takes no lock; null from anywhere else.

#include <caf/abstract_actor.hpp>
#include <caf/actor_cast.hpp>
#include <caf/execution_unit.hpp>
#include <caf/mailbox_element.hpp>

#include <type_traits>
#include <utility>

#if defined(__SANITIZE_THREAD__)
extern "C" void __tsan_acquire(void*);
extern "C" void __tsan_release(void*);
#endif

namespace troupe {

// A mailbox orders what was written before a message against its handler. It does so inside CAF,
// where ThreadSanitizer does not look, so it is told: sending releases, taking a message out
// acquires. Elsewhere these are nothing.
#if defined(__SANITIZE_THREAD__)
inline char mailbox_order = 0;
inline void before_message() { __tsan_release(&mailbox_order); }
inline void after_message() { __tsan_acquire(&mailbox_order); }
#else
inline void before_message() {}
inline void after_message() {}
#endif

template <class Handle, class Message>
void tell(caf::execution_unit* from, const Handle& to, Message&& message) {
  static_assert(!std::is_lvalue_reference_v<Message>, "messages are moved");
  before_message();
  caf::actor_cast<caf::abstract_actor*>(to)->enqueue(
      caf::make_mailbox_element(nullptr, caf::make_message_id(), {},
                                std::forward<Message>(message)),
      from);
}

}  // namespace troupe
