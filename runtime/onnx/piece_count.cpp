#include "troupe/runtime/onnx/piece_count.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace troupe::onnx {
namespace {

// The least that one takes in a file that means something: a node has an op and a result, a
// dimension is in an input with a name that a node reads, a text has a character. Together they may
// not need more than there is; few are always fine.
struct kind {
  std::string_view name;  // none: it is there once, in something that is counted
  std::uint64_t bytes = 0;
};
constexpr std::array<kind, 14> kinds{{{"", 0},
                                      {"operator sets", 8},
                                      {"graphs", 8},
                                      {"nodes", 8},
                                      {"attributes", 8},
                                      {"tensors", 8},
                                      {"entries of external data", 8},
                                      {"sparse tensors", 8},
                                      {"inputs and outputs", 8},
                                      {"", 0},
                                      {"", 0},
                                      {"", 0},
                                      {"dimensions of inputs and outputs", 5},
                                      {"texts in lists", 3}}};
constexpr std::uint64_t bytes_always = 512;
constexpr int depth_max = 100;  // protobuf's own limit

std::optional<piece> piece_in(piece whole, std::uint64_t field) {
  const auto one_of =
      [&](std::initializer_list<std::pair<std::uint64_t, piece>> all) -> std::optional<piece> {
    const auto at = std::ranges::find(all, field, [](const auto& p) { return p.first; });
    return at != all.end() ? std::optional(at->second) : std::nullopt;
  };
  switch (whole) {
    case piece::model: return one_of({{7, piece::graph}, {8, piece::operator_set}});
    case piece::graph:
      return one_of({{1, piece::node},
                     {5, piece::tensor},
                     {11, piece::port},
                     {12, piece::port},
                     {15, piece::sparse_tensor}});
    case piece::node: return one_of({{1, piece::text}, {2, piece::text}, {5, piece::attribute}});
    case piece::attribute: return one_of({{5, piece::tensor}, {6, piece::graph}, {9, piece::text}});
    case piece::tensor: return one_of({{6, piece::text}, {13, piece::entry}});
    case piece::sparse_tensor: return one_of({{1, piece::tensor}});
    case piece::port: return one_of({{2, piece::type}});
    case piece::type: return one_of({{1, piece::tensor_type}, {8, piece::tensor_type}});
    case piece::tensor_type: return one_of({{2, piece::shape}});
    case piece::shape: return one_of({{1, piece::dimension}});
    case piece::operator_set:
    case piece::entry:
    case piece::dimension:
    case piece::text: break;
  }
  return std::nullopt;
}

bool read_varint(std::string_view& bytes, std::uint64_t& n) {
  n = 0;
  for (unsigned shift = 0; shift < 64 && !bytes.empty(); shift += 7) {
    const auto b = static_cast<unsigned char>(bytes.front());
    bytes.remove_prefix(1);
    n |= std::uint64_t{b & 0x7fU} << shift;
    if (b < 0x80) return true;
  }
  return false;
}

// False: the bytes end within a field, or it is none that the format has. Groups, which protobuf
// would skip, are among those.
bool take_field(std::string_view& bytes, std::uint64_t& tag, std::string_view& inside) {
  std::uint64_t n = 0;
  inside = {};
  if (!read_varint(bytes, tag) || tag > UINT32_MAX) return false;
  switch (tag & 7U) {
    case 0: return read_varint(bytes, n);
    case 1: n = 8; break;
    case 5: n = 4; break;
    case 2:
      if (!read_varint(bytes, n) || n > bytes.size()) return false;
      inside = bytes.substr(0, n);
      break;
    default: return false;
  }
  if (n > bytes.size()) return false;
  bytes.remove_prefix(n);
  return true;
}

using counts = std::array<std::uint64_t, kinds.size()>;

bool count(std::string_view bytes, piece whole, int depth, counts& all) {
  while (!bytes.empty()) {
    std::uint64_t tag = 0;
    std::string_view inside;
    if (!take_field(bytes, tag, inside)) return false;
    const auto p = (tag & 7U) == 2 ? piece_in(whole, tag >> 3U) : std::nullopt;
    if (!p) continue;
    ++all[static_cast<std::size_t>(*p)];
    if (*p != piece::text && depth > 0 && !count(inside, *p, depth - 1, all)) return false;
  }
  return true;
}

}  // namespace

std::optional<std::string> too_many_pieces(std::string_view bytes, piece whole) {
  counts all{};
  if (!count(bytes, whole, depth_max, all)) return std::string(damaged);
  std::uint64_t needed = 0;
  std::size_t most = 0;
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    needed += all[i] * kinds[i].bytes;
    if (all[i] * kinds[i].bytes > all[most] * kinds[most].bytes) most = i;
  }
  if (needed <= bytes.size() + bytes_always) return std::nullopt;
  return fmt::format("it consists of empty pieces: {} {} in {} bytes", all[most], kinds[most].name,
                     bytes.size());
}

}  // namespace troupe::onnx
