#include "troupe/runtime/plan/collective.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

namespace troupe {
namespace {

using take_kind = collective_stage::take_kind;

error usage(std::string text) { return {error_code::usage, std::move(text)}; }

std::vector<std::uint32_t> all_but(std::uint32_t ranks, std::uint32_t rank) {
  std::vector<std::uint32_t> others;
  for (std::uint32_t r = 0; r < ranks; ++r)
    if (r != rank) others.push_back(r);
  return others;
}

bool reduces(collective_kind k) noexcept {
  return k == collective_kind::all_reduce || k == collective_kind::reduce_scatter ||
         k == collective_kind::barrier;
}
bool gathers(collective_kind k) noexcept { return k != collective_kind::reduce_scatter; }

// The lists of one rank for pieces of one owner.
class lister {
 public:
  lister(const collective_spec& s, std::uint32_t owner)
      : s_(s), ranks_(s.ranks()), rank_(s.rank), owner_(owner) {}

  std::vector<collective_stage> list() {
    switch (s_.algorithm) {
      case collective_algorithm::exchange: exchange(); break;
      case collective_algorithm::direct: direct(); break;
      case collective_algorithm::ring: ring(); break;
      case collective_algorithm::halving: halving(); break;
      case collective_algorithm::tree: tree(); break;
    }
    return std::move(stages_);
  }

 private:
  collective_stage& add() { return stages_.emplace_back(); }

  void exchange() {
    const auto others = all_but(ranks_, rank_);
    auto& sends = add();
    sends.to = others;
    sends.sends_parts = true;
    auto& takes = add();
    takes.take = take_kind::reduce;
    takes.from = others;
    takes.takes_parts = true;
    takes.is_final = true;
  }

  void direct() {
    const auto others = all_but(ranks_, rank_);
    if (rank_ == owner_) {
      auto& s = add();
      s.take = reduces(s_.kind) ? take_kind::reduce : take_kind::own;
      if (reduces(s_.kind)) s.from = others;
      s.takes_parts = true;
      s.is_final = true;
      if (gathers(s_.kind)) s.to = others;
      return;
    }
    if (reduces(s_.kind)) {
      auto& s = add();
      s.to = {owner_};
      s.sends_parts = true;
    }
    if (gathers(s_.kind)) copy_from(owner_);
  }

  collective_stage& copy_from(std::uint32_t rank) {
    auto& s = add();
    s.take = take_kind::copy;
    s.from = {rank};
    s.is_final = true;
    return s;
  }

  // What this rank has of its own, sent to `to`: its part, or the sum of its parts.
  void send_own(std::uint32_t to) {
    auto& s = add();
    if (s_.parts[rank_].size() == 1) {
      s.sends_parts = true;
    } else {
      s.take = take_kind::reduce;
    }
    s.to = {to};
  }

  collective_stage& reduce_from(std::uint32_t rank) {
    auto& s = add();
    s.take = take_kind::reduce;
    s.from = {rank};
    return s;
  }

  void ring() {
    const auto next = (rank_ + 1) % ranks_, before = (rank_ + ranks_ - 1) % ranks_;
    // 0: behind the owner, where sums begin; ranks - 1: the owner.
    const auto place = (rank_ + ranks_ - owner_ - 1) % ranks_;
    if (rank_ == owner_) {
      auto* s = &add();
      if (reduces(s_.kind)) {
        s->take = take_kind::reduce;
        if (ranks_ > 1) s->from = {before};
      } else {
        s->take = take_kind::own;
      }
      s->is_final = true;
      if (gathers(s_.kind) && ranks_ > 1) s->to = {next};
      return;
    }
    if (reduces(s_.kind)) {
      if (place == 0)
        send_own(next);
      else
        reduce_from(before).to = {next};
    }
    if (gathers(s_.kind))
      if (auto& s = copy_from(before); place + 2 < ranks_) s.to = {next};
  }

  void halving() {
    const auto core = std::bit_floor(ranks_);
    if (rank_ >= core) {  // folded into the rank that is `core` below
      send_own(rank_ - core);
      copy_from(rank_ - core);
      return;
    }
    const bool is_folded = rank_ + core < ranks_;
    const auto differs = rank_ ^ owner_;
    // Where this rank leaves; 0: it is the owner.
    const auto top = differs == 0 ? std::uint32_t{0} : std::bit_floor(differs);
    bool has_reduced = false;
    if (is_folded) {
      reduce_from(rank_ + core);
      has_reduced = true;
    }
    for (auto bit = core / 2; bit > top; bit /= 2) {
      reduce_from(rank_ ^ bit);
      has_reduced = true;
    }
    std::vector<std::uint32_t> to;
    for (auto bit = top == 0 ? 1 : top * 2; bit < core; bit *= 2) to.push_back(rank_ ^ bit);
    if (is_folded) to.push_back(rank_ + core);
    if (top != 0) {
      if (has_reduced)
        stages_.back().to = {rank_ ^ top};
      else
        send_own(rank_ ^ top);
      copy_from(rank_ ^ top).to = std::move(to);
      return;
    }
    if (!has_reduced) add().take = take_kind::reduce;
    stages_.back().is_final = true;
    stages_.back().to = std::move(to);
  }

  // Rank r of the tree is rank r + root of the group.
  void tree() {
    const auto own = (rank_ + ranks_ - s_.root) % ranks_;
    const auto of_group = [&](std::uint32_t r) { return (r + s_.root) % ranks_; };
    const auto lowest = own == 0 ? std::bit_ceil(ranks_) : own & (~own + 1);
    std::vector<std::uint32_t> children;  // those with the largest subtrees first
    for (auto bit = lowest / 2; bit > 0; bit /= 2)
      if (own + bit < ranks_) children.push_back(of_group(own + bit));
    const auto parent = own == 0 ? rank_ : of_group(own - lowest);
    if (s_.kind == collective_kind::broadcast) {
      auto& s = own == 0 ? add() : copy_from(parent);
      if (own == 0) s.take = take_kind::own;
      s.is_final = true;
      s.to = std::move(children);
      return;
    }
    // Small subtrees are done first.
    for (auto c = children.rbegin(); c != children.rend(); ++c) reduce_from(*c);
    if (own == 0) {
      if (children.empty()) add().take = take_kind::reduce;
      stages_.back().is_final = true;
      stages_.back().to = std::move(children);
      return;
    }
    if (children.empty())
      send_own(parent);
    else
      stages_.back().to = {parent};
    copy_from(parent).to = std::move(children);
  }

  const collective_spec& s_;
  std::uint32_t ranks_, rank_, owner_;
  std::vector<collective_stage> stages_;
};

// Ranks that own pieces.
std::vector<std::uint32_t> owners_of(const collective_spec& s) {
  if (s.algorithm == collective_algorithm::exchange) return {0};
  if (s.algorithm == collective_algorithm::tree || s.kind == collective_kind::broadcast)
    return {s.root};
  const auto n =
      s.algorithm == collective_algorithm::halving ? std::bit_floor(s.ranks()) : s.ranks();
  std::vector<std::uint32_t> owners(n);
  for (std::uint32_t r = 0; r < n; ++r) owners[r] = r;
  return owners;
}

// Boundary k of n equal parts, where vectors begin.
std::int64_t boundary(std::int64_t elements, std::uint32_t k, std::uint32_t n) {
  const auto blocks = (elements + piece_alignment - 1) / piece_alignment;
  return std::min(elements, blocks * k / n * piece_alignment);
}

}  // namespace

std::string_view to_string(collective_kind k) noexcept {
  switch (k) {
    case collective_kind::all_reduce: return "all_reduce";
    case collective_kind::reduce_scatter: return "reduce_scatter";
    case collective_kind::all_gather: return "all_gather";
    case collective_kind::broadcast: return "broadcast";
    case collective_kind::barrier: return "barrier";
  }
  return "?";
}

std::string_view to_string(reduction_kind r) noexcept {
  switch (r) {
    case reduction_kind::sum: return "sum";
    case reduction_kind::mean: return "mean";
    case reduction_kind::min: return "min";
    case reduction_kind::max: return "max";
  }
  return "?";
}

std::string_view to_string(collective_algorithm a) noexcept {
  switch (a) {
    case collective_algorithm::exchange: return "exchange";
    case collective_algorithm::direct: return "direct";
    case collective_algorithm::ring: return "ring";
    case collective_algorithm::halving: return "halving";
    case collective_algorithm::tree: return "tree";
  }
  return "?";
}

result<void> check(const collective_spec& s) {
  using kind = collective_kind;
  if (s.kind > kind::barrier || s.reduction > reduction_kind::max ||
      s.algorithm > collective_algorithm::tree)
    return usage("a collective's kind, reduction or algorithm is unknown");
  const auto what = to_string(s.kind);
  if (s.ranks() == 0 || s.ranks() > ranks_max)
    return usage(
        fmt::format("{}: a group has 1..{} ranks, this one {}", what, ranks_max, s.ranks()));
  if (s.rank >= s.ranks() || s.root >= s.ranks())
    return usage(fmt::format("{}: rank {} or root {} is not in a group of {} ranks", what, s.rank,
                             s.root, s.ranks()));
  if (s.elements < 0 || s.piece_elements < piece_alignment ||
      s.piece_elements % piece_alignment != 0)
    return usage(
        fmt::format("{}: {} elements in pieces of {}: the size of a piece must be a multiple of {}",
                    what, s.elements, s.piece_elements, piece_alignment));
  if (s.type != dtype::f32 && s.type != dtype::f64 && s.type != dtype::i32 &&
      s.type != dtype::i64 && (reduces(s.kind) && s.kind != kind::barrier))
    return usage(
        fmt::format("{}: elements of type {} cannot be reduced, only f32, f64, i32 and i64", what,
                    to_string(s.type)));
  if (s.reduction == reduction_kind::mean && s.type != dtype::f32 && s.type != dtype::f64)
    return usage(fmt::format("{}: a mean is of f32 or f64, not of {}", what, to_string(s.type)));
  std::vector<std::uint32_t> all;
  for (const auto& p : s.parts) {
    if (!std::is_sorted(p.begin(), p.end()))
      return usage(fmt::format("{}: the parts of a rank must be in ascending order", what));
    all.insert(all.end(), p.begin(), p.end());
  }
  if (all.size() > parts_max)
    return usage(fmt::format("{}: a group has at most {} parts", what, parts_max));
  std::sort(all.begin(), all.end());
  for (std::uint32_t i = 0; i < all.size(); ++i)
    if (all[i] != i) return usage(fmt::format("{}: part {} is missing or named twice", what, i));
  if (all.empty()) return usage(fmt::format("{}: no rank contributes anything", what));
  const bool takes_whole =
      s.algorithm == collective_algorithm::exchange || s.algorithm == collective_algorithm::direct;
  if ((!takes_whole || has_slices(s.kind)) &&
      std::any_of(s.parts.begin(), s.parts.end(), [](const auto& p) { return p.empty(); }))
    return usage(fmt::format("{} by {}: every rank must contribute", what, to_string(s.algorithm)));
  if (s.kind == kind::broadcast && s.parts[s.root].empty())
    return usage(fmt::format("{}: root {} has no part", what, s.root));
  if (has_slices(s.kind) && s.elements % static_cast<std::int64_t>(all.size()) != 0)
    return usage(fmt::format("{}: {} elements cannot be cut into equal slices for {} parts", what,
                             s.elements, all.size()));
  const bool fits = s.kind == kind::all_reduce || s.kind == kind::barrier ||
                    (s.kind == kind::broadcast ? s.algorithm == collective_algorithm::tree ||
                                                     s.algorithm == collective_algorithm::direct
                                               : s.algorithm == collective_algorithm::direct ||
                                                     s.algorithm == collective_algorithm::ring);
  if (!fits) return usage(fmt::format("{} cannot use algorithm {}", what, to_string(s.algorithm)));
  return {};
}

// With p parts of which p - 1 are here, and a lot less one that has not gone back, one credit is
// left: c - (p - 1) - (c / 2 - 1) >= 1.
std::uint32_t fewest_credits(const collective_spec& s) noexcept {
  std::size_t most = 1;
  for (const auto& p : s.parts) most = std::max(most, p.size());
  return static_cast<std::uint32_t>(2 * most - 1);
}

collective_algorithm choose_algorithm(collective_kind kind, std::size_t bytes, std::uint32_t ranks,
                                      std::uint32_t parts, bool any_order) {
  using algorithm = collective_algorithm;
  constexpr std::size_t exchange_bytes = 64 * 1024;  // that a rank sends
  // As many bytes as by direct, in half the messages; each adds up all, which costs more where it
  // is more than a core's cache holds.
  constexpr std::size_t pair_bytes = std::size_t{1} << 20;
  constexpr std::uint32_t direct_ranks = 8;
  constexpr std::size_t ring_bytes = std::size_t{1} << 20;
  if (kind == collective_kind::broadcast) return ranks <= 3 ? algorithm::direct : algorithm::tree;
  const bool is_whole = kind == collective_kind::all_reduce || kind == collective_kind::barrier;
  if (is_whole && ranks > 1 && bytes * (ranks - 1) <= exchange_bytes &&
      (!any_order || ranks <= direct_ranks))
    return algorithm::exchange;
  if (is_whole && ranks == 2 && parts == 2 && bytes <= pair_bytes) return algorithm::exchange;
  if (!any_order || ranks <= direct_ranks) return algorithm::direct;
  if (is_whole && bytes < ring_bytes) return algorithm::halving;
  return algorithm::ring;
}

std::uint32_t parts_of(const collective_spec& s) noexcept {
  std::size_t n = 0;
  for (const auto& p : s.parts) n += p.size();
  return static_cast<std::uint32_t>(n);
}

std::pair<std::int64_t, std::int64_t> slice_of(const collective_spec& s, std::uint32_t part) {
  const auto each = s.elements / parts_of(s);
  return {each * part, each * (part + 1)};
}

namespace {

// A share of the vector that one rank makes.
struct share {
  std::uint32_t owner = 0, part = 0;
  std::int64_t from = 0, to = 0;
};

std::vector<share> shares_of(const collective_spec& s) {
  std::vector<share> shares;
  if (has_slices(s.kind)) {
    shares.resize(parts_of(s));
    for (std::uint32_t r = 0; r < s.ranks(); ++r)
      for (const auto part : s.parts[r]) {
        const auto [from, to] = slice_of(s, part);
        shares[part] = {r, part, from, to};
      }
    return shares;
  }
  const auto owners = owners_of(s);
  const auto n = static_cast<std::uint32_t>(owners.size());
  for (std::uint32_t k = 0; k < n; ++k)
    shares.push_back({owners[k], 0, boundary(s.elements, k, n), boundary(s.elements, k + 1, n)});
  return shares;
}

}  // namespace

std::vector<collective_piece> pieces_of(const collective_spec& s) {
  std::vector<std::vector<collective_piece>> by_share;
  std::size_t most = 0;
  for (const auto& share : shares_of(s)) {
    auto& own = by_share.emplace_back();
    auto at = share.from;
    do {
      const auto length = std::min(s.piece_elements, share.to - at);
      own.push_back({share.owner, at, length, share.part});
      at += length;
    } while (at < share.to);
    most = std::max(most, own.size());
  }
  std::vector<collective_piece> pieces;
  for (std::size_t i = 0; i < most; ++i)
    for (const auto& own : by_share)
      if (i < own.size()) pieces.push_back(own[i]);
  return pieces;
}

std::vector<collective_stage> stages_of(const collective_spec& s, std::uint32_t owner) {
  return lister(s, owner).list();
}

collective_peers peers_of(const collective_spec& s) {
  std::vector<bool> to(s.ranks()), from(s.ranks());
  for (const auto owner : owners_of(s))
    for (const auto& stage : stages_of(s, owner)) {
      for (const auto r : stage.from)
        if (!stage.takes_parts || !s.parts[r].empty()) from[r] = true;
      if (stage.sends_parts && s.parts[s.rank].empty()) continue;
      for (const auto r : stage.to) to[r] = true;
    }
  collective_peers out;
  for (std::uint32_t r = 0; r < s.ranks(); ++r) {
    if (to[r]) out.to.push_back(r);
    if (from[r]) out.from.push_back(r);
  }
  return out;
}

}  // namespace troupe
