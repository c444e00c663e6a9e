#pragma once
// The actor that owns the state of a store (runtime/stores/store_state.hpp), on the service worker.
// Runs ask it for their turn, and commit to it. Used in actors/ only.
//
//   message        from            effect                             answer
//   store_begin    dispatcher,     the request is granted, or waits   store_granted, when it is its
//                  call                                               turn; store_refused
//   store_commit   a call          what it made is visible            grants of those that waited
//   store_give_up  a call          its request is as if it never was  the same
//   store_look     a call          -                                  store_told
//   store_end      the last owner  the actor ends                     -
//
// SA-1  Of one thread, what is asked after a commit sees it.
// SA-2  Who asks ends its granted request, by commit or give_up, whatever happens to its run.

#include "troupe/actors/base/mailbox.hpp"
#include "troupe/actors/base/tell.hpp"
#include "troupe/actors/process/process.hpp"
#include "troupe/runtime/stores/store_state.hpp"

#include <caf/actor.hpp>
#include <caf/allowed_unsafe_message_type.hpp>

#include <cstdint>
#include <memory>
#include <vector>

namespace troupe {

struct store_begin {
  store_request request;
  caf::actor to;
};
struct store_granted {
  store_grant grant;
};
struct store_refused {
  std::uint64_t id = 0;
  error why{error_code::failed, ""};
};
struct store_commit {
  std::uint64_t id = 0;
  std::vector<stored_variable> changes;
};
struct store_give_up {
  std::uint64_t id = 0;
};
struct store_look {
  caf::actor to;
};
struct store_told {
  store_view view;
  store_counts counts;
};
struct store_end {};

// Lives as long as somebody has it: a store, or a runner on it.
class store_core {
 public:
  explicit store_core(process& p);
  ~store_core() {
    if (process_.is_forked())
      leave_alone(actor_);
    else
      tell(nullptr, actor_, store_end{});
  }
  store_core(const store_core&) = delete;
  store_core& operator=(const store_core&) = delete;
  const caf::actor& actor() const noexcept { return actor_; }
  bool is_of(const process& p) const noexcept { return &process_ == &p; }

 private:
  std::shared_ptr<process> keeps_;  // where the session ends before it
  const process& process_;
  caf::actor actor_;
};

}  // namespace troupe

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::store_begin)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::store_granted)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::store_refused)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::store_commit)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::store_give_up)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::store_look)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::store_told)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::store_end)
