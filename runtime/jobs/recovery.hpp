#pragma once
// Where a job can go on after a failure.
//
// Pure functions of what the nodes have kept.
//
// RC-1  A cut holds, of every worker, the gradients of exactly its first steps, the same in every
//       variable (sync: one version of all). async: variables may hold more of a worker than the
//       cut; those gradients are made again and found to be duplicates.
// RC-2  No cut is behind a loss that the program has not got.
// RC-3  What a node had of a variable when an epoch began, older versions included, it has until
//       the epoch has begun everywhere: replicas may be a version behind shards, and who hands the
//       newer one over may die.

#include "troupe/runtime/compile/compile.hpp"
#include "troupe/runtime/planted_bugs.hpp"
#include "troupe/runtime/shards/kept_shard.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace troupe {

// The newest cut that all variables of the job can begin with, when `kept` says what became of them
// (by variable, from the node that had it; variables that are missing are lost). `losses`: by
// worker, how many the program has. nullopt: there is none.
std::optional<epoch_start> common_cut(const training_program& program,
                                      const std::map<std::string, kept_report>& kept,
                                      std::span<const std::uint64_t> losses,
                                      const planted_bugs* bugs = nullptr);

}  // namespace troupe
