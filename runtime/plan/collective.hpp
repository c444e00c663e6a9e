#pragma once
// Collectives: what each rank of a group does with each piece of what is reduced or moved, as data.
//
// A vector of n elements is cut into pieces, each with an owner. For a piece, `stages_of` gives a
// rank the list of what it takes from others and what it sends on; the state machine
// (collective_state.hpp) walks these lists, for all pieces side by side. So an algorithm is nothing
// but its lists, and all kinds of collectives are run by one machine.
//
// A rank may have several parts (what it contributes): a group's ranks are processes, its parts
// logical workers, numbered over the whole group. In reduce-scatter and all-gather the vector is a
// slice for each part, all of one size: slice k is the result, or the contribution, of part k. A
// broadcast is of the first part of its root.
//
//   algorithm  order of a sum           messages one     bytes that a rank sends, of P ranks, a
//                                       after the other  part each, n bytes
//   exchange   that of the parts        1                (P - 1) n
//   direct     that of the parts        2                2 n (P - 1) / P, to all others at once
//   ring       from the owner's next    2 (P - 1)        2 n (P - 1) / P, to the next rank alone
//   halving    by halves of the group   2 log2 P (+ 2)   2 n (P - 1) / P (+ n where P is no power
//                                                        of two)
//   tree       by subtrees of the root  2 log2 P         n log2 P at the root, n at a leaf
//
// reduce-scatter and all-gather are the first and the second half of an all-reduce; a broadcast is
// the second half of `tree`, a barrier an all-reduce of nothing.
// Sources: direct is the pairwise exchange of Thakur, Rabenseifner, Gropp (2005) with all messages
// at once; halving Rabenseifner (2004), folded as there where P is no power of two; ring Patarasuk
// and Yuan (2009); tree the binomial one.
//
// Threading: pure functions.
//
// CO-1  In every rank's list for a piece, what is taken is what the other ranks' lists send, each
//       once (tests walk all of them).
// CO-2  Every rank gets the same bits: each element is summed by one rank, or by all in the same
//       order (exchange).
// CO-3  exchange and direct sum in the order of the parts, wherever these are: the bits do not
//       depend on the number of ranks.
// CO-5  Slice k of reduce-scatter and all-gather is made by the rank of part k: it is final there,
//       and the own part's.
// CO-4  What a rank has sent of its result is written again only with the final value, which
//       depends on the delivery of what was sent.

#include "troupe/schema/dtype.hpp"
#include "troupe/schema/error.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace troupe {

// The numbers are in plans.
enum class collective_kind : std::uint8_t {
  all_reduce = 0,
  reduce_scatter = 1,
  all_gather = 2,
  broadcast = 3,
  barrier = 4
};
enum class reduction_kind : std::uint8_t { sum = 0, mean = 1, min = 2, max = 3 };
enum class collective_algorithm : std::uint8_t {
  exchange = 0,
  direct = 1,
  ring = 2,
  halving = 3,
  tree = 4
};
std::string_view to_string(collective_kind k) noexcept;
std::string_view to_string(reduction_kind r) noexcept;
std::string_view to_string(collective_algorithm a) noexcept;
// Parts have slices of the vector.
constexpr bool has_slices(collective_kind k) noexcept {
  return k == collective_kind::reduce_scatter || k == collective_kind::all_gather;
}

inline constexpr std::uint32_t ranks_max = 4096;
inline constexpr std::uint32_t parts_max = 4096;
inline constexpr std::int64_t piece_alignment = 16;  // elements: pieces begin where vectors do

// One rank's view of a collective.
struct collective_spec {
  collective_kind kind = collective_kind::all_reduce;
  reduction_kind reduction = reduction_kind::sum;
  collective_algorithm algorithm = collective_algorithm::direct;
  dtype type = dtype::f32;
  std::uint32_t rank = 0;
  std::uint32_t root = 0;  // broadcast, and tree
  // Of each part; all_gather, reduce_scatter: of all slices.
  std::int64_t elements = 0;
  std::int64_t piece_elements = 64 * 1024;  // at most, a multiple of piece_alignment
  // By rank, ascending; together 0, 1, ..., each once.
  std::vector<std::vector<std::uint32_t>> parts;
  std::uint32_t ranks() const noexcept { return static_cast<std::uint32_t>(parts.size()); }
  friend bool operator==(const collective_spec&, const collective_spec&) = default;
};

// What is wrong with it: numbers out of range, parts that do not fit, an algorithm that the kind or
// the ranks do not have, a type that is not summed.
result<void> check(const collective_spec& s);

// Chunks that may be on their way from one rank to another, at the least: a rank takes all of
// another's parts of a piece at once, and gives credits back in lots.
std::uint32_t fewest_credits(const collective_spec& s) noexcept;
// So many at once are given back.
constexpr std::uint32_t credit_lot(std::uint32_t credits) noexcept {
  return credits < 4 ? 1 : credits / 2;
}

// The algorithm for so many bytes and parts, of all ranks: the fastest whose order of summing is
// that of the parts, or (`any_order`) the fastest. Figures are in runtime/PERFORMANCE.md.
collective_algorithm choose_algorithm(collective_kind kind, std::size_t bytes, std::uint32_t ranks,
                                      std::uint32_t parts, bool any_order);

struct collective_piece {
  std::uint32_t owner = 0;
  std::int64_t offset = 0, elements = 0;  // of the vector
  std::uint32_t part = 0;                 // whose slice it lies in, where there are slices
  friend bool operator==(const collective_piece&, const collective_piece&) = default;
};
// In the order in which a rank begins with them: the first of every owner, then the second, ... At
// least one for each owner that the algorithm has, maybe empty.
std::vector<collective_piece> pieces_of(const collective_spec& s);
// How many parts all ranks have together.
std::uint32_t parts_of(const collective_spec& s) noexcept;
// What `part` contributes to, or has in the end of, a collective that has slices: elements from,
// to.
std::pair<std::int64_t, std::int64_t> slice_of(const collective_spec& s, std::uint32_t part);

// What a rank does next with a piece: first it takes, then it sends.
struct collective_stage {
  enum class take_kind : std::uint8_t {
    nothing,
    // All that `from` send, with what is here: in the first such stage the own parts, then the
    // result so far.
    reduce,
    copy,  // the result is what `from`, one rank, sends
    own,   // the result is the own part (all_gather, broadcast)
  } take = take_kind::nothing;
  std::vector<std::uint32_t> from{};  // ranks, ascending
  // Each of them sends its parts apart, and sums go in the order of all parts.
  bool takes_parts = false;
  // The result of this rank is final with it: a mean is divided here by who owns it.
  bool is_final = false;
  std::vector<std::uint32_t> to{};  // ranks that are sent ...
  bool sends_parts = false;         // ... the own parts, each apart; else the result so far
  friend bool operator==(const collective_stage&, const collective_stage&) = default;
};
std::vector<collective_stage> stages_of(const collective_spec& s, std::uint32_t owner);

// Ranks that its rank ever sends something to, or takes something from; ascending.
struct collective_peers {
  std::vector<std::uint32_t> to, from;
};
collective_peers peers_of(const collective_spec& s);

}  // namespace troupe
