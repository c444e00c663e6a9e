#pragma once
// "Why is my step stuck?": a walk along the waits that every actor lists.
//
// The walk starts at the job's fetches (where there are none to be seen, at every waiting actor of
// the job), but for waits that last by design (port_snapshot::is_sparse), which count only once all
// else is done, and goes from each waiting input to its producer and from each output without
// credit to its consumer, across nodes; from an actor that could go on to the one that its thread
// runs. What has been sent and not seen yet is on its way, and nobody waits for its sender any
// more: ports count both. Where a walk cannot go on is a root. Of several roots the true one is, in
// this order: a node that is lost, an actor that ended or is missing, a cycle; then the oldest of
// the others.
//
// The answers of nodes are not taken at one moment, so there are two looks, one behind the other.
// An ended or missing actor or a cycle is believed only once it is older than skew_seconds and
// nothing of it has changed between the looks: what was so at the end of the first look and at the
// beginning of the second was so at one moment. Of a job in which such things come and go it is
// said what moves, and how old the oldest wait is; where a loop goes round, which, and how often.
//
// WH-1  Each actor is visited once: the cost is linear in actors and ports.
// WH-2  The answer depends on the looks only, not on the order of their lists.
// WH-3  It says nothing that the looks do not prove: of what moves neither that it is stuck nor how
//       long it will take.

#include "troupe/runtime/insight/snapshot.hpp"
#include "troupe/schema/error.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

enum class root_kind : std::uint8_t {
  no_job,  // nothing runs
  job_done,
  job_stopped,
  job_suspended,  // it has left a checkpoint of where it was
  job_failed,
  recovering,     // between two epochs
  paused,         // its sources stand still, since somebody has asked for that
  moving,         // it goes on: no chain of waits has stood for long
  loop_running,   // it goes round, and others wait for its end
  node_lost,      // the node does not answer, is unreachable, dead or left
  actor_ended,    // somebody waits for an actor that ended
  actor_missing,  // its node answers and does not know the actor
  cycle,
  program_feed,   // a feed waits for the program
  program_fetch,  // the program does not take what a fetch holds
  actor_running,
  on_the_way,  // what one process has sent has not come to the other
  actor_idle,
  unexplained,  // an actor waits and does not say for whom
};
std::string_view to_string(root_kind k) noexcept;

// One link of a chain: `actor` waits for `peer` at its `port`.
struct wait_link {
  std::string actor, actor_id, node;
  std::string kind;  // of the actor
  std::string port;  // "in0"
  bool is_credit = false;
  std::string peer, peer_node;
  double since_seconds = 0;

  friend bool operator==(const wait_link&, const wait_link&) = default;
};

struct why_answer {
  root_kind kind = root_kind::no_job;
  std::string job;
  std::string actor;  // at the root, or expected on the lost node; "" if there is none
  std::string node;   // of the root
  double since_seconds = 0;
  std::string root;               // the root as a sentence
  std::vector<wait_link> chain;   // from the start to the root; of a cycle, its links last
  std::vector<std::string> also;  // sentences about other nodes of the job that are lost

  // "Job mnist, step 12 of 4690: node n2 (pid 4242) ...", then a line for each link of the chain;
  // what crosses between processes (a receive that waits for its send) is one link there.
  std::string text() const;
  std::string json() const;
};

// Of the named job (by name or id); for an empty name of the running job whose wait is oldest, else
// of the last one that ended. An unknown name is a not_found error that lists the jobs. `before` is
// an earlier look, of a tenth of a second ago or more; without one, age alone decides.
result<why_answer> explain(const cluster_snapshot& c, std::string_view job,
                           const cluster_snapshot* before = nullptr);

// The text, or the error's.
std::string why(const cluster_snapshot& c, std::string_view job = {},
                const cluster_snapshot* before = nullptr);

}  // namespace troupe
