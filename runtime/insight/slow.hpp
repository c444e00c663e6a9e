#pragma once
// "What bounds the rate of my job?": shares of time from several looks at a job that goes on, and
// what a mend would give.
//
//   std::vector<cluster_snapshot> looks;  // some fifty, over two seconds
//   auto answer = explain_slow(looks, "pipeline");
//   // "Job pipeline, 251 items/s: decode bounds it: busy 94 %, ..; 2 replicas instead of 1: +38 %"
//
// In each look an actor is busy (it runs), starved (it waits for input), blocked (it waits for a
// credit or a resource) or ready (what it needs is there, and its thread runs something else, or it
// does nothing): the shares of the looks are its shares of the time. From them:
//
//   thread   A thread that is busy nearly always bounds the rate: an item takes it for as long as
//            before, whatever else gets faster. The actor that takes most of it is named.
//   program  The program feeds or fetches too slowly: in most looks what is waited for is it.
//   outside  A source has nothing, and nobody blocks it: what comes from outside comes slowly.
//   link     In most looks what is waited for is between two processes.
//   step     Nothing is busy all the time: one thing waits for another. The actor that ends the
//            chain of waits (why.hpp) in most looks takes most of a step.
//
// The gain is what theory says: threads are filled in proportion to the rate until the next one is
// full, and so are the cores of a node (utilization law); of a step the part that is waited for
// shrinks (Amdahl). It counts on the mend costing nothing itself.
//
// BR-1  Busy, starved, blocked and ready of each actor add up to 1.
// BR-2  The answer depends on the looks only, not on the order of their lists.
// BR-3  Fewer than looks_least looks, or a job that is not running or makes no progress, is not
//       judged.
//
// Source of the law: Denning, Buzen, The Operational Analysis of Queueing Network Models, 1978.

#include "troupe/runtime/insight/snapshot.hpp"
#include "troupe/schema/error.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

inline constexpr std::size_t looks_least = 10;

enum class bound_kind : std::uint8_t { not_known, thread, program, outside, link, step };
std::string_view to_string(bound_kind k) noexcept;

// Of an actor, or of all replicas of a stage: their mean.
struct time_share {
  std::string name, node;
  std::uint32_t replicas = 1;
  double busy = 0, starved = 0, blocked = 0, ready = 0;  // 0..1

  friend bool operator==(const time_share&, const time_share&) = default;
};

struct slow_answer {
  bound_kind kind = bound_kind::not_known;
  std::string job;
  std::string actor, node;         // what bounds it; "" where it is no actor
  double share = 0;                // of the time in which it is busy, or waited for
  double rate = 0;                 // items or steps a second
  std::string mend;                // "2 replicas instead of 1", "half the time in it"
  double gain = 0;                 // of the rate, by the mend: 0.38 is 38 % more; 0: not known
  std::string root;                // the sentence
  std::vector<time_share> shares;  // busiest first

  // The sentence, then a table of shares.
  std::string text() const;
  std::string json() const;
};

// "decode" of stage decode/1, which is a replica; of any other actor its name. It lives as long as
// the actor.
std::string_view name_of_replicas(const actor_snapshot& a) noexcept;

// Looks are in their order. Of the named job; for an empty name of the only one that runs. Errors:
// not_found, and usage where several run.
result<slow_answer> explain_slow(std::span<const cluster_snapshot> looks, std::string_view job);

}  // namespace troupe
