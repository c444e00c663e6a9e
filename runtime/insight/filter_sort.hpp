#pragma once
// Some of a list of nodes, actors or jobs, in an order: what `list --filter --sort --limit` does.
//
// Keys are those of the objects' JSON (snapshot_fields.hpp). A list, such as `labels`, is compared
// item by item: a condition holds where it holds of one of them.
//
// FI-1  An object stays if all conditions hold of it; each is KEY, an operator and a value:
//         =  !=        equal, not equal (numbers as numbers, texts without regard to case)
//         ~  !~        has the text in it, has not (without regard to case)
//         <  <=  >  >= of numbers; of texts by the numbers in them, "n2" before "n10"
//       Of a key in seconds a value may be written as a duration (1.5s, 200ms), of one in bytes as
//       a
//       size (64MiB).
// FI-2  Sorting keeps the order of equals. KEY is ascending, KEY:desc descending.
// FI-3  An unknown key, a value that is no number where one is needed, and a condition without an
//       operator are usage errors that name what there is.

#include "troupe/runtime/insight/snapshot.hpp"
#include "troupe/schema/error.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace troupe {

struct selection {
  std::vector<std::string> filters{};  // "state=running", "busy_ratio>0.5"
  std::string sort{};                  // "busy_ratio:desc"; empty: as it is
  std::uint64_t limit = 0;             // how many at most; 0: all

  bool is_all() const noexcept { return filters.empty() && sort.empty() && limit == 0; }
};

// How many would be listed without the limit.
result<std::size_t> select(std::vector<node_snapshot>& nodes, const selection& s);
result<std::size_t> select(std::vector<actor_snapshot>& actors, const selection& s);
result<std::size_t> select(std::vector<job_snapshot>& jobs, const selection& s);

}  // namespace troupe
