#pragma once
// Mistakes that a test may ask for, to show that its checks find them. Null in production, and never looked at between
// the ops of one process.

namespace troupe {

struct planted_bugs {
  bool forgets_credits = false;        // a link keeps every eighth credit that should go back to the peer
  bool applies_twice = false;          // a shard applies every fourth gradient twice
  bool admits_other_lives = false;     // a link takes chunks whatever generation they are of
  bool sums_as_they_come = false;      // a shard sums gradients in the order of their arrival
  bool sends_without_credit = false;   // a send actor has one more credit than the edge
};

}  // namespace troupe
