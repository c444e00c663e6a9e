#pragma once
// From a command and a snapshot to what a program prints and exits with. Pure but for
// answer_to(); asking is main()'s part.

#include "tools/troupe-tool/command.hpp"
#include "troupe/runtime/insight/snapshot.hpp"
#include "troupe/schema/error.hpp"

#include <cstddef>
#include <optional>
#include <span>
#include <string>

namespace troupe {

struct outcome {
  int exit_code = 0;
  std::string out;  // data, for stdout
  std::string err;  // everything else, for stderr; each line starts with "troupe: "
};

struct screen {
  std::size_t width = 0, height = 0;  // 0: not a terminal, no limit
};

// Every verb but wait and version. Pure, but that events and lines of logs have times by the clock.
// Nodes that did not answer, and actors that were left out, make it partial: exit code 4. `before`:
// for why, an earlier look at the same, or null.
outcome answer_to(const command& c, const cluster_snapshot& snapshot, screen s,
                  const cluster_snapshot* before = nullptr);
// Of why --slow: looks in their order.
outcome answer_slow(const command& c, std::span<const cluster_snapshot> looks);
outcome answer_error(const error& e);
outcome answer_version(const command& c);

// What nodes said to a request that asks for more than an answer. Nothing: go on waiting for what
// it asks for.
std::optional<outcome> answer_refused(const command& c, const cluster_snapshot& snapshot);
// Whether it is done, `before` being the first answer.
std::optional<outcome> answer_changed(const command& c, const cluster_snapshot& before,
                                      const cluster_snapshot& now);
outcome answer_not_changed(const command& c);

// wait: an outcome once the condition holds; nothing while it does not.
std::size_t nodes_alive(const cluster_snapshot& snapshot);
outcome answer_wait_done(const command& c, const cluster_snapshot& snapshot);
// job=STATE: an outcome once it is so, or cannot be any more.
std::optional<outcome> answer_waited_for_job(const command& c, const cluster_snapshot& now);
outcome answer_wait_timed_out(const command& c, const result<cluster_snapshot>& last);

}  // namespace troupe
