#pragma once
// Mailbox elements that are used again.
//
// Allocating an element, building CAF's description of its content and freeing it is a fifth of a
// hop. Actors of a part that run on one worker share a pool: an element that one of them has
// handled carries the next message that another sends. The list is last in, first out, so that few
// elements serve many edges and stay in the cache.
//
// An element is a complete CAF message. Its receiver may recognise it (in_pooled) and skip CAF's
// matching of handlers.
//
// Threading: send() and recycle() on the worker that all actors of the pool are pinned to. Elements
// may go anywhere.
// Ownership: who may recycle keeps the pool; elements do not.
//
// MP-1  Only an element that was given to recycle() returns to its pool, once it is disposed of;
//       any other is deleted.
// MP-2  An element in the pool holds no value: tensors are let go when their message is.

#include "troupe/actors/base/tell.hpp"

#include <caf/actor_cast.hpp>
#include <caf/execution_unit.hpp>
#include <caf/mailbox_element.hpp>
#include <caf/message_id.hpp>

#include <memory>
#include <tuple>
#include <typeinfo>
#include <utility>
#include <vector>

namespace troupe {

template <class Message>
class message_pool {
 public:
  message_pool() = default;
  message_pool(const message_pool&) = delete;
  message_pool& operator=(const message_pool&) = delete;

  // As tell() (actors/base/tell.hpp).
  template <class Handle>
  void send(caf::execution_unit* from, const Handle& to, Message&& message) {
    caf::mailbox_element_ptr e(take(std::move(message)));
    before_message();
    caf::actor_cast<caf::abstract_actor*>(to)->enqueue(std::move(e), from);
  }

  // The message in `x`, if it came out of a pool of this type, else null.
  static Message* in_pooled(caf::mailbox_element& x) noexcept {
    return typeid(x) == typeid(element) ? &std::get<0>(static_cast<element&>(x).data()) : nullptr;
  }
  // `x`, which in_pooled() has recognised, comes back to this pool when its handler has returned.
  void recycle(caf::mailbox_element& x) noexcept {
    auto& e = static_cast<element&>(x);
    if (e.home == this) e.is_recycled = true;
  }

  std::size_t size() const noexcept { return free_.size(); }

 private:
  // What caf::mailbox_element_vals is, but for its end.
  class element final : public caf::mailbox_element,
                        public caf::detail::tuple_vals_impl<caf::type_erased_tuple, Message> {
   public:
    using values = caf::detail::tuple_vals_impl<caf::type_erased_tuple, Message>;

    element(message_pool& owner, Message&& m)
        : caf::mailbox_element(nullptr, caf::make_message_id(), {}),
          values(std::move(m)),
          home(&owner) {}

    caf::type_erased_tuple& content() override { return *this; }
    const caf::type_erased_tuple& content() const override { return *this; }
    caf::message move_content_to_message() override {
      return caf::make_message(std::move(std::get<0>(this->data())));
    }
    caf::message copy_content_to_message() const override {
      return caf::make_message(std::get<0>(this->data()));
    }

    void request_deletion(bool) const noexcept override {
      if (!is_recycled) {
        delete this;
        return;
      }
      auto* self = const_cast<element*>(this);
      self->is_recycled = false;
      std::get<0>(self->data()) = Message{};
      home->free_.emplace_back(self);
    }

    message_pool* const home;  // may be gone, unless is_recycled
    bool is_recycled = false;
  };

  element* take(Message&& message) {
    if (free_.empty()) return new element(*this, std::move(message));
    auto* e = free_.back().release();
    free_.pop_back();
    std::get<0>(e->data()) = std::move(message);
    return e;
  }

  struct plain_delete {
    void operator()(element* e) const noexcept { delete e; }
  };
  // At most as many as were under way at one time.
  std::vector<std::unique_ptr<element, plain_delete>> free_;
};

}  // namespace troupe
