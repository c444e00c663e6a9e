#pragma once
// One rank of a collective, again and again: what to take, to add and to send next.
//
// Pure: it knows numbers, not bytes. Its owner reports what happens, then carries out `while (auto
// action = state.next())`, in that order, before it reports anything else. What arrives for the
// current step is kept in the slot that on_chunk() gives, until the action that takes it.
//
//   begin()               all parts of this rank are here, for the current step
//   on_chunk(peer, ...)   something came from another rank; also before begin(), and (then: early)
//                         of a later step
//   on_credit(peer)       another rank has room for more
//   next() -> finished    the results are whole and all has been sent; the next step is the current
//                         one
//
// A rank whose peers have not come yet waits in this state, and blocks nobody: a gang begins as its
// members do.
//
// Threading: one owner.
//
// CM-1  A chunk is taken once. One that comes twice, of a step that is over, or that no list has is
//       an error that names rank, step and piece.
// CM-2  What a rank takes never waits for what it sends: so chunks that others wait to get rid of
//       are taken, their credits come back, and nobody waits in a circle.
// CM-3  At most `credits` chunks are on their way to one peer, early ones included.
// CM-4  Equal specs (but for the rank) and any order of reports give equal results.

#include "troupe/runtime/plan/collective.hpp"

#include <cstdint>
#include <deque>
#include <optional>
#include <variant>
#include <vector>

namespace troupe {

// Where a number comes from that is added.
struct collective_operand {
  enum class kind : std::uint8_t { part, slot, result } of = kind::part;
  std::uint32_t index = 0;  // part: position among the rank's own parts; slot: a chunk
  friend bool operator==(const collective_operand&, const collective_operand&) = default;
};
// The piece of the result becomes the reduction of the operands, from left to right; of a mean,
// divided by the number of parts where it `is_final`.
struct collective_reduce {
  std::uint32_t piece = 0;
  bool is_final = false;
  std::vector<collective_operand> operands;
};
// The piece of the result is what is in `slot`.
struct collective_copy {
  std::uint32_t piece = 0;
  std::uint32_t slot = 0;
};
// The piece of the result is that of `part`, a position among the own parts.
struct collective_own {
  std::uint32_t piece = 0;
  std::uint32_t part = 0;
};
// Send a piece to `peer`, under `key`.
struct collective_send {
  std::uint32_t piece = 0;
  std::uint32_t peer = 0;
  std::uint32_t key = 0;
  std::int32_t part = -1;  // position among the own parts; -1: of the result
};
struct collective_finished {
  std::uint64_t step = 0;
};
using collective_action = std::variant<collective_reduce, collective_copy, collective_own,
                                       collective_send, collective_finished>;

struct collective_wait {
  enum class kind : std::uint8_t {
    parts,   // the own ones
    chunk,   // of `peer`
    credit,  // of `peer`
    nothing,
  } type = kind::nothing;
  std::uint32_t peer = 0;
};

class collective_state {
 public:
  // The spec has passed check(). `credits`: chunks to one peer at a time, no fewer than
  // fewest_credits().
  collective_state(const collective_spec& spec, std::uint32_t credits, std::uint64_t step = 0);

  const std::vector<collective_piece>& pieces() const noexcept { return pieces_; }
  std::uint32_t slots() const noexcept { return static_cast<std::uint32_t>(slots_.size()); }

  void begin();
  // The slot to keep it in; nullopt: it is of a later step, and is to be reported again when that
  // is the current one.
  result<std::optional<std::uint32_t>> on_chunk(std::uint32_t peer, std::uint64_t step,
                                                std::uint32_t key);
  // What comes under `key` is a piece of the result as it is, and may be put there at once: its
  // number. nullopt: it has to be kept in a slot.
  std::optional<std::uint32_t> lands_in(std::uint32_t peer, std::uint64_t step,
                                        std::uint32_t key) const noexcept;
  void on_credit(std::uint32_t peer, std::uint32_t count = 1);
  std::optional<collective_action> next();

  std::uint32_t credits_of(std::uint32_t peer) const noexcept { return peers_[peer].credits; }
  bool has_begun() const noexcept { return has_begun_; }
  std::uint64_t step() const noexcept { return step_; }
  collective_wait waiting() const;
  // Who sends what comes under `key`, for people: its piece.
  std::uint32_t piece_of(std::uint32_t peer, std::uint32_t key) const noexcept {
    return key / lanes_of(peer);
  }

 private:
  struct outgoing {
    std::uint32_t piece = 0, key = 0;
    std::int32_t part = -1;
  };
  struct peer_state {
    std::uint32_t first_slot = 0;
    std::uint32_t credits = 0;
    bool is_sender = false;
    std::deque<outgoing> queue;
  };
  struct piece_state {
    std::uint32_t stage = 0;
    bool has_result = false;
    bool is_ready = false;  // stands in ready_
  };

  // A rank's chunks of a piece: one for each of its parts (or of sums on their way), and one of the
  // final value.
  std::uint32_t lanes_of(std::uint32_t rank) const noexcept;
  std::uint32_t slot_of(std::uint32_t peer, std::uint32_t piece,
                        std::uint32_t lane) const noexcept {
    return peers_[peer].first_slot + piece * lanes_of(peer) + lane;
  }
  const std::vector<collective_stage>& list_of(std::uint32_t piece) const noexcept {
    return lists_[pieces_[piece].owner];
  }
  // Slots that the stage takes, in the order of the list.
  template <class F>
  void for_each_slot(std::uint32_t piece, const collective_stage& s, F&& f) const;
  bool has_all(std::uint32_t piece, const collective_stage& s) const;
  void make_ready(std::uint32_t piece);
  std::optional<collective_action> next_send();
  bool can_advance(std::uint32_t piece) const;
  std::optional<collective_action> advance(std::uint32_t piece);
  std::optional<collective_action> take(std::uint32_t piece, const collective_stage& s);
  void queue_sends(std::uint32_t piece, const collective_stage& s);

  collective_spec spec_;
  std::vector<collective_piece> pieces_;
  std::vector<std::vector<collective_stage>> lists_;  // by owner
  std::vector<std::uint32_t> part_rank_, part_lane_;  // by part
  std::vector<peer_state> peers_;                     // by rank
  std::vector<std::uint8_t> slots_;                   // 1: a chunk is there
  std::vector<std::uint8_t> is_expected_;             // 1: some list takes it
  std::vector<piece_state> states_;
  std::deque<std::uint32_t> ready_;  // pieces that may go on
  // Peers that may have something to be sent, and credit.
  std::deque<std::uint32_t> sendable_;
  std::uint32_t open_pieces_ = 0, queued_ = 0;
  std::uint64_t step_ = 0;
  bool has_begun_ = false;
};

}  // namespace troupe
