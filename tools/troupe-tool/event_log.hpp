#pragma once
// What `troupe events` and `troupe logs` print: happenings of a cluster and lines of its nodes'
// logs, filtered, as text or JSON; once, or as they come.
//
//   2026-11-28T21:05:07.250Z  warning  n2  member lost         -      n3 is dead: ...
//
// Times are those of who asks: its clock less the age that the node tells (UTC). Columns: time,
// level, node, kind, job, text; the first five have no spaces but between the words of a kind.
//
// EL-1  An event or line is printed once, however often it is seen: by the life of its node and its
//       number (snapshot.hpp), of an older version by node, text and time. What several nodes note
//       of one happening is printed once (SN-5).
// EL-2  What a node has dropped before it was seen is told, with how many there were.
//
// Pure, but for unix_now_ns(). Threading: one owner.

#include "tools/troupe-tool/answer.hpp"
#include "tools/troupe-tool/command.hpp"
#include "troupe/runtime/insight/happenings.hpp"
#include "troupe/runtime/insight/snapshot.hpp"
#include "troupe/schema/error.hpp"

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

namespace troupe {

// "10m": so long before now; "2026-11-28T21:05:07Z", with or without seconds, their fraction and a
// zone (Z, +01:00; none: UTC): then. In nanoseconds since 1970. usage: neither.
result<std::int64_t> parse_since(std::string_view text, std::int64_t now_unix_ns);
std::int64_t unix_now_ns();
// "2026-11-28T21:05:07.250Z".
std::string time_text(std::int64_t unix_ns);

// Of one answer. `now_unix_ns`: when it came. not_found: a node or job
// that `c` names is not there, and no event or line is of it.
outcome answer_log(const command& c, const cluster_snapshot& s, std::int64_t now_unix_ns);

// Of many, one after the other.
class log_follower {
 public:
  explicit log_follower(const command& c) : command_(c) {}
  // What is new; the text of stderr says what is missing, and of nodes that do not answer.
  outcome add(const cluster_snapshot& s, std::int64_t now_unix_ns);
  // How old the oldest is that may be new in the next answer; 0: all of it, since a node has not
  // answered yet.
  std::int64_t newer_than_ns(std::int64_t now_unix_ns) const;

 private:
  bool is_new(const event& e, std::int64_t at_ns);

  const command& command_;
  happenings happenings_;
  std::map<std::string, std::uint64_t> last_;     // numbers seen, by life
  std::map<std::string, std::int64_t> answered_;  // when, by life
  std::map<std::string, std::int64_t> of_older_;  // versions: node and text
  std::set<std::string> silent_;                  // that were told of
  bool lacks_answers_ = true;                     // of a member
  std::size_t node_width_ = 6, job_width_ = 1;    // as wide as seen so far
};

}  // namespace troupe
