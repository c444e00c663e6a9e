#pragma once
// What a store decides: which version a run reads, and in which order runs change variables.
//
// A run that changes variables asks first, is told when it is its turn, and either commits what it
// made or gives up. All that it changes becomes visible at once. A run that changes nothing never
// waits: it reads the version that was committed last.
//
// VS-1  What a request is given is one version: all entries as some commit left them.
// VS-2  Of two requests one of which writes what the other reads or writes, and both of which write
//       something, the one that came later is granted after the other has committed or given up. So
//       runs that change variables have the effects of some order, which is that of their requests
//       where they have to do with each other.
// VS-3  Each request is granted once, unless it gives up first; who waits is granted by the commit
//       or the giving up of those in front of it.
// VS-4  A commit counts for a granted request alone, and for variables that it asked to write;
//       anything else changes nothing.
//
// Threading: one thread at a time. Entries are read by any.

#include "troupe/runtime/stores/variable_entry.hpp"
#include "troupe/schema/error.hpp"

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

struct stored_variable {
  std::string name;
  std::shared_ptr<const variable_entry> entry;
  std::uint64_t version = 0;  // of the store, whose commit made it
};

struct store_view {
  std::uint64_t version = 0;  // commits before it that changed something
  std::vector<stored_variable> variables;
};

struct store_request {
  std::uint64_t id = 0;  // of whom is told; unique among those that have not ended
  std::vector<std::string> reads{}, writes{};
  bool makes = false;  // variables that it writes need not be there
  bool all = false;    // it writes whatever is there when it has its turn, and what it makes
};

struct store_grant {
  std::uint64_t id = 0;
  store_view reads, writes;  // in the order asked for; of `makes` and `all` those that are there
};

struct store_counts {
  std::uint64_t commits = 0, given_up = 0, waited = 0;  // waited: requests
};

class store_state {
 public:
  // The grants that are to be told now: this request's, or none yet. not_found: variables that are
  // not there. Nothing is kept of a request that writes nothing.
  result<std::vector<store_grant>> begin(store_request r);
  std::vector<store_grant> commit(std::uint64_t id, std::vector<stored_variable> changes);
  std::vector<store_grant> give_up(std::uint64_t id);

  // All variables, in order of their names.
  store_view all() const;
  std::uint64_t version() const noexcept { return version_; }
  const store_counts& counts() const noexcept { return counts_; }

 private:
  struct waiting {
    store_request request;
    std::vector<std::string_view> reads, writes;  // its names, sorted
    bool is_granted = false;
  };
  static bool conflict(const waiting& a, const waiting& b);
  store_view view_of(const std::vector<std::string>& names) const;
  store_grant grant_of(const store_request& r) const;
  bool must_wait(const std::list<waiting>::const_iterator& at) const;
  std::vector<store_grant> grant_next();
  std::vector<store_grant> end(std::list<waiting>::iterator at);

  struct kept {
    std::shared_ptr<const variable_entry> entry;
    std::uint64_t version = 0;
  };
  std::map<std::string, kept, std::less<>> variables_;
  std::list<waiting> requests_;  // that write, in the order in which they came
  std::uint64_t version_ = 0;
  store_counts counts_;
};

}  // namespace troupe
