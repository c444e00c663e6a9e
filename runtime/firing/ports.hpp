#pragma once
// The ports of an actor: items that wait at inputs, credits held at outputs, and the firing rule
// over both.
//
// `Peer` is whatever names the actor at the other end: a handle in actors/, a number in tests.
//
// Threading: one owner; only the edge_credit objects are shared with the other end of each edge.
//
// PO-1  An inlet never holds more items than its edge has credits: a sender without credit is our
//       own bug.
// PO-2  Tags of an inlet ascend; a firing takes the same tag from every inlet.
// PO-3  A credit is taken only when all inputs are here, so an actor waits for one thing at a time
//       and a waiting mark means a real wait.

#include "troupe/devices/tensor.hpp"
#include "troupe/runtime/firing/credit.hpp"
#include "troupe/schema/error.hpp"
#include "troupe/schema/ids.hpp"

#include <cstdint>
#include <vector>

namespace troupe {

struct item {
  tag t;
  tensor value;
};

// A ring of at most `capacity` items, allocated once.
class item_queue {
 public:
  explicit item_queue(std::uint32_t capacity = 0) : items_(capacity) {}

  std::uint32_t size() const noexcept { return size_; }
  bool is_empty() const noexcept { return size_ == 0; }
  item& front() noexcept { return items_[head_]; }
  void push(item i) {
    expects(size_ < items_.size(), "PO-1: no more items than credits");
    auto at = head_ + size_;
    if (at >= items_.size()) at -= static_cast<std::uint32_t>(items_.size());
    items_[at] = std::move(i);
    ++size_;
  }
  item pop() {
    item out = std::move(items_[head_]);
    if (++head_ == items_.size()) head_ = 0;
    --size_;
    return out;
  }
  void clear() {
    while (!is_empty()) pop();
  }

 private:
  std::vector<item> items_;
  std::uint32_t head_ = 0;
  std::uint32_t size_ = 0;
};

template <class Peer>
struct inlet {
  item_queue queue;
  edge_credit* credit = nullptr;
  Peer producer{};
  std::uint32_t producer_outlet = 0;  // index among the producer's outlets, for the credit message
  bool is_lost = false;               // its producer died: nothing more will come
};

template <class Peer>
struct outlet {
  edge_credit* credit = nullptr;
  Peer consumer{};
  std::uint32_t consumer_port = 0;
  std::uint32_t output = 0;  // output port of this actor; several outlets may share one
  bool is_held = false;      // a credit is in our hand
  bool is_waiting = false;   // the next credit is promised to us by message
};

enum class wait_kind : std::uint8_t { none, input, credit };
struct wait {
  wait_kind kind = wait_kind::none;
  std::uint32_t index = 0;
};

template <class Peer>
class port_set {
 public:
  std::vector<inlet<Peer>> in;
  std::vector<outlet<Peer>> out;

  void arrive(std::uint32_t port, item i) {
    expects(port < in.size(), "an item arrives at a port that exists");
    in[port].queue.push(std::move(i));
  }

  // The promised credit of a waiting outlet has come.
  void grant(std::uint32_t outlet_index) {
    expects(outlet_index < out.size() && out[outlet_index].is_waiting,
            "a credit message answers a wait");
    out[outlet_index].is_waiting = false;
    out[outlet_index].is_held = true;
  }

  // True: outlet `i` has a credit in hand. Otherwise it is promised the next one.
  bool acquire(std::uint32_t i) {
    auto& o = out[i];
    if (o.is_held) return true;
    if (o.is_waiting) return false;
    (o.credit->take() ? o.is_held : o.is_waiting) = true;
    return o.is_held;
  }

  // The firing rule: none when every input is here and every output has a credit, else what is
  // missing (PO-3). Until the actor fires, inputs that are here stay and credits in hand too:
  // asking again goes on where the last answer was, so that an actor with many ports looks at each
  // of them once for a firing.
  wait next_wait() {
    for (; next_in_ < in.size(); ++next_in_)
      if (in[next_in_].queue.is_empty()) return {wait_kind::input, next_in_};
    for (; next_out_ < out.size(); ++next_out_)
      if (!acquire(next_out_)) return {wait_kind::credit, next_out_};
    next_in_ = next_out_ = 0;
    return {};
  }

 private:
  std::uint32_t next_in_ = 0, next_out_ = 0;
};

}  // namespace troupe
