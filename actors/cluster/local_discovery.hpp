#pragma once
// Discovery on one machine, beside a process's I/O loop: our socket in the cluster's folder answers
// whoever asks, and the others' sockets are asked (actors/net/discovery.hpp).
//
// Threading: open() before the loop's thread runs; the rest on it. A member looks on a thread of
// its own, since folders and sockets may be slow (a disk that is busy holds up whoever removes a
// name from a folder), and a loop that waits for them gives its peers no sign of life.

#include "troupe/actors/cluster/member.hpp"
#include "troupe/schema/error.hpp"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace troupe {

class io_loop;

class local_discovery final : public rendezvous {
 public:
  // The token is that of `token_file`, or, if empty, the one that all clusters of this name and
  // user share on this machine.
  static result<std::unique_ptr<local_discovery>> open(const std::string& cluster,
                                                       const std::string& token_file,
                                                       io_loop& loop);
  ~local_discovery() override;

  const secret& token() const noexcept;
  // For tools, which look once and are no members: waits up to 200 ms for the answers, and up to
  // `limit_ns` for the first one of somebody who is there.
  std::vector<place> find(std::int64_t limit_ns);
  // Processes that are there and have not answered.
  std::size_t silent() const noexcept;
  void look(std::vector<node_id> known, found_handler found) override;
  result<void> announce(const member_info& self) override;

 private:
  struct state;
  explicit local_discovery(std::unique_ptr<state> s);
  std::unique_ptr<state> state_;
};

}  // namespace troupe
