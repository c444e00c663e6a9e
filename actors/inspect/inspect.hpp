#pragma once
// Asking a running cluster what it does, as a guest: the asker becomes no member, holds no lease,
// and disturbs nothing.

#include "troupe/runtime/insight/snapshot.hpp"
#include "troupe/runtime/wire/wire_protection.hpp"
#include "troupe/schema/error.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace troupe {

// What to ask for; nodes always come. `all` is without lines of logs.
enum class ask_part : std::uint8_t {
  nodes = 0,
  actors = 1,
  jobs = 2,
  events = 4,
  all = 7,
  lines = 8
};
constexpr bool has(ask_part parts, ask_part part) noexcept {
  return (static_cast<unsigned>(parts) & static_cast<unsigned>(part)) != 0;
}
constexpr ask_part operator|(ask_part a, ask_part b) noexcept {
  return static_cast<ask_part>(static_cast<unsigned>(a) | static_cast<unsigned>(b));
}

struct ask_options {
  std::string cluster = "default";
  // HOST:PORT; empty: the directory of sockets of this user on this machine.
  std::vector<std::string> join;
  std::string token_file;                   // empty: no token
  wire_protection protect;                  // of the connections to the nodes, as theirs
  std::int64_t timeout_ns = 2'000'000'000;  // for the whole call
  ask_part parts = ask_part::all;
  // Of events and lines those of the last so many nanoseconds; 0: all that nodes have. Older
  // versions give all.
  std::int64_t newer_than_ns = 0;
  // "leave NODE", "checkpoint JOB": what a node says to it is in snapshot.said; parts are not asked
  // for then.
  std::string request;
};

// Finds one node, takes its view of the cluster, asks every living member and merges the answers.
// Nodes that do not answer within the time stand in `silent`, with the reason: the call then still
// succeeds. Blocks; call it from any thread without actors.
//
//   unreachable  no node of that cluster found, or all refuse; the text says where was looked and
//                how to start one
//   timed_out    nodes found, and not one answered in time
//   denied       token or cluster name refused
//   usage        a bad address, or a token file that cannot be read, or a file of `protect`
result<cluster_snapshot> ask_cluster(const ask_options& options);

}  // namespace troupe
