#pragma once
// Members at all addresses of a DNS name: --join dns:NAME:PORT, as of a headless service of
// Kubernetes or a round-robin record. The name is looked up again and again, so that who comes
// later is found, too; an address that leads to this process itself is tried once.
//
// DJ-1  A look never blocks: the system's resolver has a thread of its own, and one lookup of a
//       name goes on at a time, at most every `dns_again_ns`.
// DJ-2  A name that has no address (yet) costs nothing but the next look.
//
// Threading: the loop's.

#include "troupe/actors/cluster/member.hpp"
#include "troupe/runtime/text/join_place.hpp"
#include "troupe/schema/error.hpp"

#include <cstdint>
#include <memory>
#include <vector>

namespace troupe {

class io_loop;

inline constexpr std::int64_t dns_again_ns = 1'000'000'000;

class dns_discovery final : public rendezvous {
 public:
  // `also` looks, and announces, too; null: nobody does. It outlives this object, as the loop does.
  dns_discovery(std::vector<address> names, rendezvous* also, io_loop& loop);
  ~dns_discovery() override;

  void look(std::vector<node_id> known, found_handler found) override;
  result<void> announce(const member_info& self) override;

 private:
  struct question;
  std::vector<std::unique_ptr<question>> questions_;
  rendezvous* also_;
};

}  // namespace troupe
