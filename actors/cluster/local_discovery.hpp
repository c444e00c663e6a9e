#pragma once
// Discovery on one machine, on a process's I/O loop: our socket in the cluster's folder answers
// whoever asks, and the others' sockets are asked (actors/net/discovery.hpp).
//
// Threading: open() before the loop's thread runs; the rest on it.

#include "troupe/actors/cluster/member.hpp"
#include "troupe/schema/error.hpp"

#include <memory>
#include <string>

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

  const std::string& token() const noexcept;
  std::vector<place> find(const std::function<bool(node_id)>& is_known) override;
  result<void> announce(const member_info& self) override;

 private:
  struct state;
  explicit local_discovery(std::unique_ptr<state> s);
  std::unique_ptr<state> state_;
};

}  // namespace troupe
