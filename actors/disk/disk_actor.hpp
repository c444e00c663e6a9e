#pragma once
// The disk's actor: carries out what the archive asks for, one request after the other, and may
// block. It holds nothing between two requests, so that one that broke it costs that request only:
// its supervisor starts another one (actors/process/process_supervisor.hpp).
//
//   disk_actor
//   message     from      effect                                   answer
//   disk_work   archive   write or read, as actors/disk/archive.hpp     disk_done
//
// DA-1  A failure of the disk is an answer; only a broken invariant of ours ends the actor.
// Ends: when nobody knows it any more.
// Threading: the disk's worker; blocks there, and only there.

#include "troupe/actors/messages/archive_messages.hpp"
#include "troupe/devices/files/disk.hpp"
#include "troupe/runtime/supervision/supervision_tree.hpp"

#include <memory>
#include <variant>
#include <vector>

namespace troupe {

// Restarted at once, then later and later. What breaks it again and again would go on to do so:
// after five times the process ends, and the jobs go on elsewhere.
inline constexpr supervision_policy disk_policy{.restart = restart_kind::permanent,
                                                .strategy = restart_strategy::one_for_one,
                                                .limits = {.failures_max = 5,
                                                           .window_ns = 60'000'000'000,
                                                           .in_vain_max = 10,
                                                           .delay_ns = 100'000'000,
                                                           .delay_max_ns = 5'000'000'000}};

// What answers a request that was not carried out.
disk_answer refusal_of(const disk_request& request, const std::string& why);

// `where` outlives the actor.
caf::actor spawn_disk(caf::actor_system& sys, caf::execution_unit* worker, disk& where);

}  // namespace troupe
