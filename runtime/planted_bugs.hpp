#pragma once
// Mistakes that a test may ask for, to show that its checks find them. Null in production, and
// never looked at between the ops of one process.
//
// They reach what they spoil with what it is given: node_environment and member_environment, and
// from there part_context, job_setup, open_cuts, and constructors of the pure classes, where the
// last argument is null unless somebody says otherwise.

#include <array>
#include <string_view>

namespace troupe {

struct planted_bugs {
  // A link keeps every eighth credit that should go back to the peer.
  bool forgets_credits = false;
  bool applies_twice = false;         // a shard applies every fourth gradient twice
  bool admits_other_lives = false;    // a link takes chunks whatever generation they are of
  bool sums_as_they_come = false;     // a shard sums gradients in the order of their arrival
  bool sends_without_credit = false;  // a send actor has one more credit than the edge
  // A lane whose connection is replaced goes on behind what it has written, as if all of that had
  // arrived: what was lost with the connection is never sent again (LS-1).
  bool resends_nothing = false;
  // async: a shard that goes on with values expects the workers' gradients from where the workers
  // begin, not from what the values hold: gradients that it has are applied again (SS-1).
  bool counts_from_the_start = false;
  // A member that is told that it is dead always gives way, also where it is the heavier half
  // (membership.hpp).
  bool gives_way_to_anybody = false;
  // A recovery begins with the newest cut of the shards, whether or not the program has got the
  // losses before it (RC-2).
  bool passes_over_losses = false;
  // A node that hands variables over, and does nothing else, is told to stop as soon as the epoch
  // starts, not when they have come.
  bool releases_givers_early = false;
  // Parts of a checkpoint are not synced before its manifest makes them visible (CS-2).
  bool syncs_no_parts = false;
  // A node that wants to leave does so once its parts have halted, while what they leave behind is
  // still to be handed over.
  bool leaves_when_halted = false;
  // What is read from a checkpoint begins with a velocity of zero.
  bool forgets_velocity = false;
  // A node that was fenced joins again, and leaves its parts of jobs as they were.
  bool keeps_parts_when_fenced = false;
  // A link takes chunks whatever epoch of the job they are of.
  bool admits_other_epochs = false;
  bool saves_other_slot = false;  // a cut is saved from the slot behind the right one
  // A checkpoint becomes visible when the first of its parts is there.
  bool writes_manifests_early = false;
  // Parts of a checkpoint are taken when their epoch has been halted.
  bool takes_late_parts = false;
  bool keeps_too_few = false;  // a shard writes over a version that it should keep
  // A link breaks an invariant at every sixteenth chunk, where no actor's handler is there to end.
  bool breaks_in_callbacks = false;
};

// One of them, for who names it: on a command line, or in a report.
struct planted_bug {
  std::string_view name;
  bool planted_bugs::* flag;
  std::string_view what;
};

inline constexpr std::array planted_bug_table{
    planted_bug{"forgets-credits", &planted_bugs::forgets_credits,
                "a link keeps every eighth credit that should go back to the peer"},
    planted_bug{"applies-twice", &planted_bugs::applies_twice,
                "a shard applies every fourth gradient twice"},
    planted_bug{"admits-other-lives", &planted_bugs::admits_other_lives,
                "a link takes chunks whatever generation they are of"},
    planted_bug{"sums-as-they-come", &planted_bugs::sums_as_they_come,
                "a shard sums gradients in the order of their arrival"},
    planted_bug{"sends-without-credit", &planted_bugs::sends_without_credit,
                "a send actor has one more credit than the edge"},
    planted_bug{"resends-nothing", &planted_bugs::resends_nothing,
                "what was lost with a connection is not sent again on the next one"},
    planted_bug{"counts-from-the-start", &planted_bugs::counts_from_the_start,
                "async: a restored shard applies gradients again that its values hold"},
    planted_bug{"gives-way-to-anybody", &planted_bugs::gives_way_to_anybody,
                "a member that is told that it is dead gives way without weighing"},
    planted_bug{"passes-over-losses", &planted_bugs::passes_over_losses,
                "a recovery begins after steps whose losses the program has not got"},
    planted_bug{"releases-givers-early", &planted_bugs::releases_givers_early,
                "a node that hands variables over is stopped before they have come"},
    planted_bug{"syncs-no-parts", &planted_bugs::syncs_no_parts,
                "a checkpoint becomes visible before its parts are synced"},
    planted_bug{"leaves-when-halted", &planted_bugs::leaves_when_halted,
                "a node leaves before the variables that it keeps are handed over"},
    planted_bug{"forgets-velocity", &planted_bugs::forgets_velocity,
                "what is read from a checkpoint begins with a velocity of zero"},
    planted_bug{"keeps-parts-when-fenced", &planted_bugs::keeps_parts_when_fenced,
                "a node that was fenced leaves its parts of jobs running"},
    planted_bug{"admits-other-epochs", &planted_bugs::admits_other_epochs,
                "a link takes chunks whatever epoch of the job they are of"},
    planted_bug{"saves-other-slot", &planted_bugs::saves_other_slot,
                "a cut is saved from the slot behind the right one"},
    planted_bug{"writes-manifests-early", &planted_bugs::writes_manifests_early,
                "a checkpoint becomes visible when the first of its parts is there"},
    planted_bug{"takes-late-parts", &planted_bugs::takes_late_parts,
                "parts of a checkpoint are taken when their epoch has been halted"},
    planted_bug{"keeps-too-few", &planted_bugs::keeps_too_few,
                "a shard writes over a version that it should keep"},
    planted_bug{"breaks-in-callbacks", &planted_bugs::breaks_in_callbacks,
                "a link breaks an invariant at every sixteenth chunk, in no actor's handler"},
};
static_assert(sizeof(planted_bugs) == planted_bug_table.size(), "every planted bug has a name");

}  // namespace troupe
