#pragma once
// The items that wait before a stage, in the order in which they came, in blocks: those of another
// group stay in the block that they came in.
//
// Threading: one thread at a time. Ownership: of the items.

#include "troupe/runtime/flow/item.hpp"

#include <cstddef>
#include <deque>
#include <utility>
#include <vector>

namespace troupe {

struct flow_queue {
  std::deque<std::vector<flow_item>> blocks;
  std::size_t first = 0;  // in the first block
  std::size_t count = 0;

  bool empty() const noexcept { return count == 0; }
  flow_item& front() noexcept { return blocks.front()[first]; }
  template <class Origin>
  void push(any_value&& value, Origin&& origin, std::size_t bytes);
  void push(std::vector<flow_item>&& items);
  flow_item pop();
  flow_item pop_back();  // not empty
  void push_front(std::vector<flow_item>&& items);
};

inline constexpr std::size_t block_items_max = 64;
inline constexpr std::size_t small_block = 8;  // whose items are moved into a block of others

template <class Origin>
inline void flow_queue::push(any_value&& value, Origin&& origin, std::size_t bytes) {
  if (blocks.empty() || blocks.back().size() >= block_items_max) blocks.emplace_back();
  blocks.back().emplace_back(std::move(value), std::forward<Origin>(origin), bytes);
  ++count;
}

inline void flow_queue::push(std::vector<flow_item>&& items) {
  if (items.empty()) return;
  if (items.size() < small_block && !blocks.empty()) {
    for (auto& it : items) push(std::move(it.value), std::move(it.origin), it.bytes);
    return;
  }
  if (empty()) blocks.clear();
  count += items.size();
  blocks.push_back(std::move(items));
}

inline flow_item flow_queue::pop() {
  auto& block = blocks.front();
  flow_item it = std::move(block[first]);
  --count;
  if (++first < block.size()) return it;
  first = 0;
  // The last one is kept for what comes next.
  if (blocks.size() > 1)
    blocks.pop_front();
  else
    block.clear();
  return it;
}

inline flow_item flow_queue::pop_back() {
  auto& block = blocks.back();
  flow_item it = std::move(block.back());
  block.pop_back();
  --count;
  // The first block keeps what is before `first`.
  if (blocks.size() > 1 ? block.empty() : block.size() == first) {
    if (blocks.size() == 1) first = 0;
    blocks.pop_back();
  }
  return it;
}

inline void flow_queue::push_front(std::vector<flow_item>&& items) {
  if (items.empty()) return;
  count += items.size();
  if (blocks.empty()) {
    blocks.push_back(std::move(items));
    return;
  }
  auto& block = blocks.front();
  block.erase(block.begin(), block.begin() + static_cast<std::ptrdiff_t>(first));
  first = 0;
  if (block.empty())
    block = std::move(items);
  else
    blocks.push_front(std::move(items));
}

}  // namespace troupe
