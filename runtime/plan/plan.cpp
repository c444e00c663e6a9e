#include "troupe/runtime/plan/plan.hpp"

#include "troupe/devices/device/device_collective.hpp"
#include "troupe/devices/host/packed_rows.hpp"

#include <algorithm>
#include <array>

namespace troupe {

std::string_view to_string(nan_policy p) noexcept {
  switch (p) {
    case nan_policy::ignore: return "ignore";
    case nan_policy::stop: return "stop";
    case nan_policy::warn: return "warn";
    case nan_policy::skip: return "skip";
  }
  return "?";
}

std::optional<nan_policy> nan_policy_named(std::string_view name) noexcept {
  for (const auto p : {nan_policy::ignore, nan_policy::stop, nan_policy::warn, nan_policy::skip})
    if (to_string(p) == name) return p;
  return std::nullopt;
}

std::string_view to_string(actor_kind k) noexcept {
  static constexpr std::string_view names[] = {
      "op",  "shard", "send",   "receive", "feed",       "fetch",      "stream",
      "job", "node",  "member", "link",    "supervisor", "collective", "copy"};
  return static_cast<std::size_t>(k) < std::size(names) ? names[static_cast<std::size_t>(k)]
                                                        : "unknown";
}

std::string_view to_string(copy_kind k) noexcept {
  static constexpr std::string_view names[] = {"none", "copy_in", "copy_out", "copy_across"};
  return static_cast<std::size_t>(k) < std::size(names) ? names[static_cast<std::size_t>(k)]
                                                        : "unknown";
}

std::string stream_text(std::uint32_t stream) {
  return is_device_stream(stream) ? "gpu:" + std::to_string(device_of(stream))
                                  : "stream " + std::to_string(stream);
}

std::size_t source_of(const shard_spec& s, const shard_reader& r) noexcept {
  return s.update == update_kind::sync ? 0 : static_cast<std::size_t>(r.worker);
}

std::optional<tensor_spec> packed_spec(const shape& indices, std::size_t width) {
  const auto rank = indices.rank();
  if (rank == shape::rank_max) return std::nullopt;
  std::array<dim, shape::rank_max> dims{};
  for (std::size_t i = 0; i < rank; ++i) dims[i] = indices[i];
  dims[rank] = {static_cast<std::int64_t>(packed_row_bytes(width)), 0};
  const auto packed = shape::from(std::span(dims).first(rank + 1));
  return packed ? std::optional(tensor_spec{dtype::u8, *packed}) : std::nullopt;
}

bool are_rows_of(const tensor_spec& packed, const tensor_spec& variable) noexcept {
  if (packed.type != dtype::u8 || packed.shape.rank() == 0 || variable.type != dtype::f32 ||
      variable.shape.rank() == 0 || variable.shape.size(0) == 0)
    return false;
  const auto width = static_cast<std::size_t>(variable.shape.elements() / variable.shape.size(0));
  const auto last = packed.shape[packed.shape.rank() - 1];
  return last.symbol == 0 && static_cast<std::size_t>(last.size) == packed_row_bytes(width);
}

std::size_t hand_over_ports(const shard_spec& s) noexcept { return 1 + slot_count(s.optimizer); }

std::size_t gradient_ports(const shard_spec& s) noexcept {
  return s.takes_sums ? 1 : s.steps.size();
}

tensor_spec piece_spec(const planned_collective& c) {
  if (!c.is_on_device()) return piece_spec(c.spec);
  return {dtype::u8, {static_cast<std::int64_t>(sizeof(communicator_id))}};
}

tensor_spec piece_spec(const collective_spec& s) {
  const auto bytes = std::min(s.piece_elements, std::max<std::int64_t>(1, s.elements)) *
                     static_cast<std::int64_t>(size_of(s.type));
  const dim piece{bytes, 'p'};
  return {dtype::u8, *shape::from({&piece, 1})};
}

collective_peers peers_of(const planned_collective& c) {
  if (!c.is_on_device()) return peers_of(c.spec);
  collective_peers p;
  if (c.spec.rank != 0) p.from = {0};
  for (std::uint32_t r = 1; c.spec.rank == 0 && r < c.spec.ranks(); ++r) p.to.push_back(r);
  return p;
}

std::vector<std::pair<std::uint32_t, std::uint32_t>> buckets_of(const planned_collective& c) {
  std::vector<std::pair<std::uint32_t, std::uint32_t>> out;
  std::uint32_t first = 0;
  for (const auto tensors : c.buckets) out.emplace_back(first, first + tensors), first += tensors;
  return out;
}

std::int64_t offset_in_vector(std::span<const tensor_spec> tensors, std::size_t k) noexcept {
  const auto aligned = [](std::int64_t n) {
    return (n + piece_alignment - 1) / piece_alignment * piece_alignment;
  };
  std::int64_t at = 0;
  for (std::size_t i = 0; i < k; ++i) at = aligned(at) + tensors[i].shape.elements();
  return k < tensors.size() ? aligned(at) : at;
}

std::size_t forward_ports(const shard_spec& s) noexcept {
  if (!s.forwards) return 0;
  return s.update == update_kind::sync ? 1 : s.steps.size();
}

std::uint32_t version_slots(const shard_spec& s) noexcept {
  const auto observers =
      std::count_if(s.readers.begin(), s.readers.end(),
                    [](const shard_reader& r) { return r.worker < 0 && !r.at_end; });
  return 1 + s.keeps + static_cast<std::uint32_t>(observers);
}

}  // namespace troupe
