#pragma once
// Which of the events that several nodes note are one happening (SN-5, snapshot.hpp).
//
// Threading: one owner.

#include "troupe/runtime/insight/snapshot.hpp"

#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>

namespace troupe {

class happenings {
 public:
  // Whether `e` is the first that is told of a happening. `seconds`: when it was, on any clock that
  // is the same for all; events may come in any order, best in that of time.
  bool is_first(const event& e, double seconds);
  // Those before that time may come again as new ones.
  void forget_before(double seconds);
  std::size_t size() const noexcept { return seen_.size(); }

 private:
  struct happening {
    double seconds = 0;
    std::set<std::string, std::less<>> nodes;  // lives that have noted it
  };
  std::map<std::pair<event_kind, std::string>, happening> seen_;
};

}  // namespace troupe
