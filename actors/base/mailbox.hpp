#pragma once
// The mailbox of a thread of the program: CAF's scoped_actor, for programs that fork, or that keep
// sessions in static objects.
//
// PX-1  No thread of the program holds CAF's logger. CAF keeps it per thread, by a reference: a
//       thread that lives on would keep the system from ending, and static objects, which end after
//       what the main thread has of its own, would give the reference back twice.
// PX-2  In a child of fork() a mailbox is left as it is: who holds its locks is not there.
//
// Threading: one thread at a time. Ownership: the actor system outlives it.

#include <caf/actor.hpp>
#include <caf/actor_cast.hpp>
#include <caf/actor_system.hpp>
#include <caf/logger.hpp>
#include <caf/scoped_actor.hpp>

#include <sys/types.h>
#include <unistd.h>

#include <utility>

namespace troupe {

// PX-1. After whatever the program's thread has spawned or made of CAF.
inline void forget_logger() { caf::logger::set_current_actor_system(nullptr); }

// PX-2, for handles of actors, whose ends take locks, too: what was in `handles` is never
// destroyed.
template <class T>
void leave_alone(T& handles) {
  static_cast<void>(new T(std::move(handles)));
}

class mailbox {
 public:
  explicit mailbox(caf::actor_system& system) : self_(system), made_by_(::getpid()) {
    forget_logger();
  }
  ~mailbox() {
    if (::getpid() == made_by_) self_.~scoped_actor();
  }
  mailbox(const mailbox&) = delete;
  mailbox& operator=(const mailbox&) = delete;

  caf::blocking_actor* operator->() const { return self_.ptr(); }
  caf::actor handle() const { return caf::actor_cast<caf::actor>(self_); }

 private:
  union {
    caf::scoped_actor self_;
  };
  pid_t made_by_;
};

}  // namespace troupe
