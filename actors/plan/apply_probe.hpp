#pragma once
// Somebody who is told of every version that a shard makes: the simulator's. Null in production.

#include "troupe/schema/ids.hpp"

#include <cstdint>
#include <string>

namespace troupe {

struct apply_seen {
  job_id job{};
  std::uint32_t epoch = 0;
  node_id node{};
  const std::string& variable;
  bool is_replica = false;
  std::uint64_t version = 0;
};

class apply_probe {
 public:
  virtual ~apply_probe() = default;
  virtual void on_apply(const apply_seen& a) = 0;
};

}  // namespace troupe
