#pragma once
// What a program fetches of a graph that it steps, put together again: the streams that make it
// have a fetch each (plan.hpp, PL-10).
//
// FT-1  A step is complete once every fetch has fired for it. A fetch fires for one step after the
//       other.
// FT-2  Each fetch gets a credit for each step that the program is done with.
// Threading: one thread at a time.

#include "troupe/actors/messages/port_messages.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

namespace troupe {

class fetched_steps {
 public:
  explicit fetched_steps(const plan& p) {
    for (std::uint32_t i = 0; i < p.actors.size(); ++i) {
      const auto& a = p.actors[i];
      if (a.kind != actor_kind::fetch) continue;
      parts_.push_back({i, a.places, {}});
      values_ += a.inputs.size();
    }
  }

  void take(fetched& m) {
    for (auto& part : parts_)
      if (part.actor == m.fetch) part.steps.push_back(std::move(m.values));
  }
  // Steps that are complete.
  std::size_t size() const {
    auto least = parts_.empty() ? std::size_t{0} : parts_.front().steps.size();
    for (const auto& part : parts_) least = std::min(least, part.steps.size());
    return least;
  }
  bool empty() const { return size() == 0; }
  // The values of the oldest one, in the order in which they were asked for.
  std::vector<tensor> pop() {
    if (parts_.size() == 1) return oldest_of(parts_.front());  // in that order already
    std::vector<tensor> all(values_);
    for (auto& part : parts_) {
      auto values = oldest_of(part);
      for (std::size_t i = 0; i < values.size(); ++i) all[part.places[i]] = std::move(values[i]);
    }
    return all;
  }
  // Calls `give(actor)` for each fetch.
  template <class Give>
  void each_fetch(Give&& give) const {
    for (const auto& part : parts_) give(part.actor);
  }

 private:
  struct part {
    std::uint32_t actor = 0;
    std::vector<std::uint32_t> places;
    std::deque<std::vector<tensor>> steps;  // that have come, the oldest first
  };
  static std::vector<tensor> oldest_of(part& p) {
    auto values = std::move(p.steps.front());
    p.steps.pop_front();
    return values;
  }

  std::vector<part> parts_;
  std::size_t values_ = 0;
};

}  // namespace troupe
