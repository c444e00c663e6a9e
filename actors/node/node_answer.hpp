#pragma once
// What a node answers when it is asked what it does: what it knows, as a snapshot
// (runtime/insight/snapshot.hpp).
//
// Threading: the node's; records of actors are read while their actors write them.

#include "troupe/actors/node/node_actor.hpp"
#include "troupe/actors/node/part_table.hpp"
#include "troupe/runtime/insight/listed_work.hpp"

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace troupe {

struct job_entry {
  caf::actor actor;
  std::shared_ptr<const job_request> request;
  std::shared_ptr<job_snapshot> board;  // written by the job actor, on this worker
  std::uint64_t started_ns = 0;
  std::uint64_t ended_ns = 0;
};

// All that a node knows, but for its parts.
struct node_view {
  node_environment env;
  std::map<node_id, peer_entry> peers;
  std::vector<member_info> members;
  // Left before it was heard of, nobody knows when, or a tool has asked to forget it: it is not
  // told of.
  static constexpr std::uint64_t long_ago = 0;
  // Who is dead or has left is told of for so long, and while a job that runs has a place on it.
  static constexpr std::uint64_t told_ns = 60'000'000'000;
  // Of members; first seen in it.
  std::map<node_id, std::pair<member_state, std::uint64_t>> state_since;
  std::map<job_id, job_entry> jobs;  // coordinated here
  std::map<job_id, std::shared_ptr<actor_record>> job_records;
  std::vector<std::shared_ptr<actor_record>> stream_records;  // of the host, then of devices
  std::size_t host_streams() const noexcept { return env.streams.size() - env.devices.size(); }
  std::shared_ptr<actor_record> record;
  std::uint64_t samples = 0;                              // ticks so far
  std::vector<std::shared_ptr<const listed_work>> works;  // of the program
  // The newest of each, with their times on the clock of now_ns, which nobody sets.
  std::deque<std::pair<std::int64_t, event>> events, lines;
};

// Who a subject of the timeline is: part << 32 | actor + 1.
std::optional<trace_subject> describe_subject(const part_table& parts, std::uint64_t subject);

// `request` names what is wanted beside the nodes: "actors", "jobs", "events", "lines", and
// "newer=SECONDS" of the last two.
node_answer answer(const node_view& view, const part_table& parts, const std::string& request);

}  // namespace troupe
