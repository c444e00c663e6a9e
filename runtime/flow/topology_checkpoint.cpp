#include "troupe/runtime/flow/topology_checkpoint.hpp"

#include "troupe/devices/files/disk.hpp"
#include "troupe/runtime/flow/flow_graph.hpp"
#include "troupe/runtime/flow/item_frames.hpp"
#include "troupe/runtime/flow/shape_stages.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>
#include <utility>

namespace troupe {

namespace {

// "troupe" and the version of the layout, before everything else.
constexpr std::string_view magic = "TRPFLOW1";
constexpr std::uint64_t checkpoint_bytes_max = std::uint64_t{16} << 30;

std::array<std::uint64_t, 2> hash_bytes(std::span<const std::byte> bytes) {
  const auto h = XXH3_128bits(bytes.data(), bytes.size());
  return {h.high64, h.low64};
}

// A name as a file's: what is no letter, number, '-', '_' or '.' is written as its number.
std::string file_name(std::string_view topology) {
  std::string name;
  for (const char c : topology) {
    const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                          (c >= '0' && c <= '9') || c == '-' || c == '_' ||
                          (c == '.' && !name.empty());
    if (is_plain)
      name += c;
    else
      name += fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return name;
}

}  // namespace

std::vector<std::byte> checkpoint_bytes(const topology_checkpoint& c) {
  const auto write = [&](byte_writer& w) {
    w.put(std::as_bytes(std::span(magic)));
    write_value(w, c);
  };
  byte_writer counts;
  write(counts);
  std::vector<std::byte> bytes(counts.size() + sizeof(std::array<std::uint64_t, 2>));
  byte_writer w(bytes);
  write(w);
  w.number(hash_bytes(std::span(bytes).first(counts.size())));
  return bytes;
}

result<topology_checkpoint> read_checkpoint(std::span<const std::byte> bytes,
                                            const std::string& name) {
  const auto bad = [&](std::string_view why) {
    return error(error_code::failed, fmt::format("{}: {}", name, why));
  };
  using hash = std::array<std::uint64_t, 2>;
  const auto begins = std::as_bytes(std::span(magic));
  if (bytes.size() < begins.size() + sizeof(hash) ||
      !std::ranges::equal(bytes.first(begins.size() - 1), begins.first(begins.size() - 1)))
    return bad("it is no checkpoint of a topology");
  if (bytes[begins.size() - 1] != begins.back())
    return bad("the checkpoint is of another version of Troupe");
  const auto hashed = bytes.first(bytes.size() - sizeof(hash));
  byte_reader tail(bytes.last(sizeof(hash)));
  if (tail.number<hash>() != hash_bytes(hashed)) return bad("the checkpoint is damaged");
  byte_reader r(hashed);
  r.take(begins.size());
  topology_checkpoint c;
  read_value(r, c);
  if (r.failed() || r.left() > 0) return bad("the checkpoint is damaged");
  return c;
}

std::vector<bool> over_in(const topology_checkpoint& c) {
  std::vector<bool> over;
  for (const auto& s : c.stages) over.push_back(s.is_over);
  return over;
}

result<void> check_checkpoint(const flow_graph& g) {
  for (const auto& s : g.stages()) {
    auto why = s.forgets;
    if (why.empty() && std::ranges::find(s.holds_items, nullptr) != s.holds_items.end())
      why =
          "items wait in it which cannot be written: they are neither numbers, texts, tensors, "
          "containers of such, nor structs that list their fields";
    if (why.empty() && s.is_recovered)
      why = "what it has learnt is on nodes, and not in a checkpoint of the program: leave .on out";
    if (why.empty() && !s.on.empty() && !s.is_kept && !s.is_recovered)
      why =
          "it ends with the node that it runs on, and what that works on is in no checkpoint: "
          "leave .on out";
    if (!why.empty())
      return error(error_code::usage, fmt::format("{}: no checkpoint can have it: {}",
                                                  s.base.empty() ? s.name : s.base, why))
          .at(s.where);
  }
  return {};
}

// A loop counts what is in it, and replicas that may be lost have tickets that only they know.
bool items_may_wait(const flow_graph& g, const flow_edge_info& e) {
  const auto& from = g.stages()[e.from];
  const auto& to = g.stages()[e.to];
  return !to.holds_items.empty() && e.loop == no_port && !to.is_kept &&
         (from.ledger == nullptr || from.kind != "deal") &&
         (to.ledger == nullptr || to.kind != "gather");
}

tensor kept_items(std::vector<flow_item>& items, const value_codec* type) {
  if (items.empty()) return {};
  far_end end;
  end.codec = type;
  auto bytes = items_frame(0, items, false, end, 0, std::numeric_limits<std::size_t>::max());
  return std::move(*bytes);
}

std::optional<std::vector<flow_item>> items_kept(const tensor& bytes, const value_codec* type) {
  if (!bytes) return std::vector<flow_item>();
  if (bytes.type() != dtype::u8 || type == nullptr) return std::nullopt;
  far_end end;
  end.codec = type;
  auto read = items_of(bytes, end, 0);
  if (!read) return std::nullopt;
  // The clock is another one.
  for (auto& it : read->items) it.origin.born_ns = 0;
  return std::move(read->items);
}

// --- a place -------------------------------------------------------------------------------------

checkpoint_place::checkpoint_place() = default;
checkpoint_place::checkpoint_place(checkpoint_place&&) noexcept = default;
checkpoint_place& checkpoint_place::operator=(checkpoint_place&&) noexcept = default;
checkpoint_place::~checkpoint_place() = default;

result<checkpoint_place> checkpoint_place::open(disk& d, const topology_checkpoint_options& o,
                                                const std::string& topology) {
  checkpoint_place p;
  p.disk_ = &d;
  p.topology_ = topology.empty() ? "topology" : topology;
  if (auto ok = d.make_folder(o.folder); !ok) return std::move(ok.error());
  const auto base = o.folder + "/" + file_name(p.topology_);
  p.path_ = base + ".checkpoint";
  auto lock = d.lock(base + ".lock");
  if (!lock) {
    if (lock.error().code() == error_code::denied)
      return error(error_code::denied,
                   fmt::format("{}: a program is running the topology {} with this folder; give "
                               "another --name or --checkpoint",
                               base + ".lock", p.topology_));
    return std::move(lock.error());
  }
  p.lock_ = std::move(*lock);
  auto bytes = d.read(p.path_, checkpoint_bytes_max);
  if (!bytes) {
    if (bytes.error().code() == error_code::not_found) return p;
    return std::move(bytes.error());
  }
  if (!o.resume)
    return error(error_code::usage,
                 fmt::format("{}: there is a checkpoint of this topology: --resume goes on with "
                             "it; to begin anew, remove it or give another --checkpoint",
                             p.path_));
  auto c = read_checkpoint(*bytes, p.path_);
  if (!c) return std::move(c.error());
  if (c->topology != p.topology_)
    return error(error_code::usage,
                 fmt::format("{}: it is of the topology {}", p.path_, c->topology));
  p.number_ = c->number;
  p.found = std::move(*c);
  return p;
}

result<void> checkpoint_place::write(topology_checkpoint c) {
  c.topology = topology_;
  c.number = ++number_;
  const auto bytes = checkpoint_bytes(c);
  if (bytes.size() > checkpoint_bytes_max)
    return error(error_code::failed,
                 fmt::format("{}: {:.1f} GiB of states and items are more than a checkpoint has",
                             path_, double(bytes.size()) / double(1U << 30)));
  const std::span<const std::byte> all(bytes);
  return write_whole(*disk_, path_, {&all, 1});
}

result<void> checkpoint_place::remove() {
  auto gone = disk_->remove(path_);
  if (!gone && gone.error().code() == error_code::not_found) return {};
  return gone;
}

}  // namespace troupe
