#include "troupe/runtime/plan/segment.hpp"

#include "troupe/runtime/text/byte_size.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

namespace troupe {

namespace {

constexpr std::size_t largest_named_max = 5;
constexpr std::size_t ops_named_max = 4;  // of a kernel

std::uint64_t aligned(std::uint64_t bytes) {
  return (bytes + arena_alignment_bytes - 1) / arena_alignment_bytes * arena_alignment_bytes;
}
std::uint64_t bytes_of(const tensor_spec& s) { return std::max<std::uint64_t>(1, s.size_bytes()); }

error blame(const planned_actor& a, std::string_view what) {
  error e(error_code::usage, fmt::format("{} '{}': {} (PL-12)", to_string(a.kind), a.name, what));
  if (!a.source.file.empty()) e.at(a.source.file, a.source.line);
  return e;
}

// Free ranges of an arena that grows at its end.
class free_ranges {
 public:
  std::uint64_t take(std::uint64_t bytes) {
    for (auto at = free_.begin(); at != free_.end(); ++at) {
      if (at->second < bytes) continue;
      const auto begin = at->first, left = at->second - bytes;
      free_.erase(at);
      if (left > 0) free_.emplace(begin + bytes, left);
      return begin;
    }
    // What is free at the end grows.
    if (!free_.empty())
      if (const auto last = std::prev(free_.end()); last->first + last->second == end_) {
        const auto begin = last->first;
        free_.erase(last);
        end_ = begin + bytes;
        return begin;
      }
    return std::exchange(end_, end_ + bytes);
  }
  void give(std::uint64_t begin, std::uint64_t bytes) {
    auto at = free_.emplace(begin, bytes).first;
    if (const auto next = std::next(at);
        next != free_.end() && at->first + at->second == next->first) {
      at->second += next->second;
      free_.erase(next);
    }
    if (at == free_.begin()) return;
    if (const auto before = std::prev(at); before->first + before->second == at->first) {
      before->second += at->second;
      free_.erase(at);
    }
  }
  std::uint64_t end() const noexcept { return end_; }

 private:
  std::map<std::uint64_t, std::uint64_t> free_;  // by beginning
  std::uint64_t end_ = 0;
};

result<void> check_kernel_ops(const planned_actor& a, std::size_t k) {
  const auto ops = ops_of(a, k);
  if (ops.empty()) return blame(a, fmt::format("kernel {} has no op", k));
  std::vector<bool> is_taken(a.kernels[k].operands.size());
  for (std::size_t i = 0; i < ops.size(); ++i)
    for (const auto o : ops[i].operands) {
      const auto at =
          o >= 0 ? static_cast<std::size_t>(o) : static_cast<std::size_t>(-1 - std::int64_t{o});
      if (at >= (o >= 0 ? is_taken.size() : i))
        return blame(a,
                     fmt::format("op '{}' takes operand {}, which does not exist", ops[i].name, o));
      if (o >= 0) is_taken[at] = true;
    }
  if (std::find(is_taken.begin(), is_taken.end(), false) != is_taken.end())
    return blame(a, fmt::format("kernel {} takes an operand that none of its ops uses", k));
  if (ops.size() > 1 && a.kernels[k].results.size() != 1)
    return blame(a, fmt::format("kernel {} is a group of ops and must make one value, not {}", k,
                                a.kernels[k].results.size()));
  return {};
}

// The arena: no two values over each other while somebody is to read them.
result<void> check_places(const planned_actor& a) {
  const auto last = last_readers(a.kernels);
  std::vector<bool> has_value(a.outputs.size());
  std::map<std::uint64_t, std::uint64_t> used;  // ranges, by beginning
  // Their beginnings, by kernel.
  std::vector<std::vector<std::uint64_t>> freed_behind(a.kernels.size());
  std::size_t value = 0;
  for (std::size_t k = 0; k < a.kernels.size(); ++k) {
    const auto& kernel = a.kernels[k];
    if (kernel.places.size() != kernel.results.size())
      return blame(a, fmt::format("kernel {2} has {0} places for {1} values", kernel.places.size(),
                                  kernel.results.size(), k));
    for (std::size_t r = 0; r < kernel.results.size(); ++r, ++value) {
      const auto place = kernel.places[r];
      if (place < 0) {
        const auto port = static_cast<std::uint64_t>(-1 - place);
        if (port >= a.outputs.size() || has_value[port] ||
            a.output_specs[port] != kernel.results[r])
          return blame(a, fmt::format("value {} is not what output {} makes", value, port));
        has_value[port] = true;
        continue;
      }
      const auto begin = static_cast<std::uint64_t>(place), bytes = bytes_of(kernel.results[r]);
      if (begin % arena_alignment_bytes != 0 || bytes > a.arena_bytes ||
          begin > a.arena_bytes - bytes)
        return blame(a, fmt::format("value {} lies outside of its arena", value));
      const auto next = used.lower_bound(begin);
      const bool meets_next = next != used.end() && next->first < begin + bytes;
      const bool meets_before = next != used.begin() && std::prev(next)->second > begin;
      if (meets_next || meets_before)
        return blame(a, fmt::format("value {} overlaps one that is still to be read", value));
      used.emplace(begin, begin + bytes);
      freed_behind[last[value]].push_back(begin);
    }
    for (const auto begin : freed_behind[k]) used.erase(begin);
  }
  if (std::find(has_value.begin(), has_value.end(), false) != has_value.end())
    return blame(a, "one of its outputs is made by no kernel");
  return {};
}

}  // namespace

bool may_be_on_device(const shard_spec& s) noexcept {
  return s.restore == restore_kind::initial && !s.is_recoverable && s.keeps == 0 &&
         s.cut_every == 0 && !s.cuts_at_end && !s.forwards &&
         (!s.follows || s.update == update_kind::sync) && !s.pushes_rows && !s.loss_scale &&
         !s.leaves_out_marked;
}

std::span<const planned_op> ops_of(const planned_actor& a, std::size_t k) noexcept {
  const auto begin = std::min<std::size_t>(a.kernels[k].first_op, a.ops.size());
  const auto end = k + 1 < a.kernels.size()
                       ? std::min<std::size_t>(a.kernels[k + 1].first_op, a.ops.size())
                       : a.ops.size();
  return begin < end ? std::span(a.ops).subspan(begin, end - begin) : std::span<const planned_op>();
}

std::string name_of_kernel(const planned_actor& segment, std::size_t k) {
  const auto ops = ops_of(segment, k);
  std::string name;
  for (std::size_t i = 0; i < std::min(ops.size(), ops_named_max); ++i)
    name += i == 0 ? ops[i].name : "+" + ops[i].type;
  return name;
}

std::vector<std::size_t> last_readers(std::span<const planned_kernel> kernels) {
  std::vector<std::size_t> last;
  for (std::size_t k = 0; k < kernels.size(); ++k) {
    for (const auto o : kernels[k].operands)
      if (o < 0) last[static_cast<std::size_t>(-1 - std::int64_t{o})] = k;
    last.insert(last.end(), kernels[k].results.size(), k);
  }
  return last;
}

std::uint64_t place_values(std::vector<planned_kernel>& kernels) {
  const auto last = last_readers(kernels);
  free_ranges arena;
  std::vector<std::vector<std::pair<std::uint64_t, std::uint64_t>>> freed_behind(kernels.size());
  std::size_t value = 0;
  for (std::size_t k = 0; k < kernels.size(); ++k) {
    kernels[k].places.resize(kernels[k].results.size());
    for (std::size_t r = 0; r < kernels[k].results.size(); ++r, ++value) {
      if (kernels[k].places[r] < 0) continue;
      const auto bytes = aligned(bytes_of(kernels[k].results[r]));
      const auto begin = arena.take(bytes);
      kernels[k].places[r] = static_cast<std::int64_t>(begin);
      freed_behind[last[value]].emplace_back(begin, bytes);
    }
    for (const auto& [begin, bytes] : freed_behind[k]) arena.give(begin, bytes);
  }
  return arena.end();
}

result<void> check_segment(const planned_actor& a) {
  if (device_of(a.stream) >= devices_max)
    return blame(a, fmt::format("it is on gpu:{}, and a node has {} devices at most",
                                device_of(a.stream), devices_max));
  if (a.kernels.empty() || a.kernels.front().first_op != 0)
    return blame(a, "its first kernel is missing or does not start at its first op");
  if (a.loop_level != 0 || !a.sticky.empty())
    return blame(a, "an actor on a device cannot be in a loop");
  if (!a.buffers.empty() || a.in_place >= 0 || a.forwards_input)
    return blame(a, "an actor on a device cannot use the plan's buffers");
  if (a.arena_bytes > static_cast<std::uint64_t>(tensor_bytes_max))
    return blame(a, fmt::format("its arena has {} bytes, at most {} are allowed", a.arena_bytes,
                                tensor_bytes_max));
  std::vector<bool> is_used(a.inputs.size());
  std::size_t values = 0;
  for (std::size_t k = 0; k < a.kernels.size(); ++k) {
    const auto& kernel = a.kernels[k];
    if (k > 0 && kernel.first_op <= a.kernels[k - 1].first_op)
      return blame(a, fmt::format("kernel {} does not start after the one before it", k));
    if (kernel.results.empty()) return blame(a, fmt::format("kernel {} makes nothing", k));
    for (const auto& r : kernel.results)
      if (static_cast<std::uint8_t>(r.type) >= dtype_count ||
          r.shape.elements() > tensor_bytes_max / static_cast<std::int64_t>(size_of(r.type)))
        return blame(a, "a value is too large or has an unknown element type");
    for (const auto o : kernel.operands) {
      const auto at =
          o >= 0 ? static_cast<std::size_t>(o) : static_cast<std::size_t>(-1 - std::int64_t{o});
      if (at >= (o >= 0 ? a.inputs.size() : values))
        return blame(a, fmt::format("kernel {} takes operand {}, which does not exist", k, o));
      if (o >= 0) is_used[at] = true;
    }
    if (auto ok = check_kernel_ops(a, k); !ok) return ok;
    values += kernel.results.size();
  }
  if (std::find(is_used.begin(), is_used.end(), false) != is_used.end())
    return blame(a, "one of its inputs is used by no kernel");
  if (a.kernels.back().first_op >= a.ops.size()) return blame(a, "its last kernel has no op");
  return check_places(a);
}

result<void> check_devices(const plan& p) {
  for (const auto& a : p.actors) {
    if (a.kind != actor_kind::copy && a.copy != copy_kind::none)
      return blame(a, "it has a copy kind, but is not a copy");
    if ((a.kind != actor_kind::op || !is_device_stream(a.stream)) &&
        (!a.kernels.empty() || a.arena_bytes != 0))
      return blame(a, "only an op on a device can have kernels and an arena");
    if (is_device_stream(a.stream) && device_of(a.stream) >= devices_max)
      return blame(a, fmt::format("it is on gpu:{}, and a node has {} devices at most",
                                  device_of(a.stream), devices_max));
    if (a.kind == actor_kind::copy) {
      if (a.copy < copy_kind::in || a.copy > copy_kind::across)
        return blame(a, "its copy kind is missing or unknown");
      if (!is_device_stream(a.stream)) return blame(a, "a copy must be on a device");
      if (!a.sticky.empty() || !a.buffers.empty())
        return blame(a, "a copy cannot use the plan's buffers or have sticky inputs");
      if (const auto& e = p.edges[a.inputs[0]]; e.spec != a.output_specs[0])
        return blame(a, fmt::format("a copy makes what it takes, but it takes {} and makes {}",
                                    to_string(e.spec), to_string(a.output_specs[0])));
    } else if (is_device_stream(a.stream) && a.kind == actor_kind::shard &&
               !may_be_on_device(a.shard)) {
      return blame(a,
                   "a variable that is recovered, saved, copied or updated by rows must be on the "
                   "host");
    } else if (is_device_stream(a.stream) && a.kind != actor_kind::op &&
               a.kind != actor_kind::shard && a.kind != actor_kind::send &&
               a.kind != actor_kind::receive && a.kind != actor_kind::collective) {
      return blame(a, "only ops, variables, copies, ranks and transfers can be on a device");
    }
  }
  for (const auto& e : p.edges) {
    const auto &from = p.actors[e.from.actor], &to = p.actors[e.to.actor];
    // Between ranks, by the host.
    if (to.kind == actor_kind::collective && to.collective &&
        e.to.port >= to.collective->own_inputs())
      continue;
    const bool is_made_there = makes_device_memory(from),
               is_here = is_made_there && from.stream == to.stream && from.task == to.task;
    bool fits = false;
    if (to.kind == actor_kind::copy)
      fits = to.copy == copy_kind::in ? !is_made_there
             : to.copy == copy_kind::out
                 ? is_here
                 : is_made_there && from.stream != to.stream && from.task == to.task;
    else
      fits = takes_device_memory(to) ? is_here : !is_made_there;
    if (!fits)
      return blame(to,
                   fmt::format("it reads from another memory than '{}' writes to: a copy between "
                               "host and device is missing or wrong",
                               from.name));
  }
  return {};
}

std::uint64_t gathered_bytes(const planned_collective& c) noexcept {
  std::uint64_t slots = 0;
  for (const auto& parts : c.spec.parts) slots = std::max<std::uint64_t>(slots, parts.size());
  slots *= c.spec.ranks();
  const auto piece = std::min<std::uint64_t>(
      static_cast<std::uint64_t>(c.spec.piece_elements),
      static_cast<std::uint64_t>(std::max<std::int64_t>(c.spec.elements, piece_alignment)));
  return slots * piece * size_of(c.spec.type);
}

device_need memory_of_device(const plan& p, std::uint32_t task, std::uint32_t device) {
  constexpr auto most = std::numeric_limits<std::uint64_t>::max();
  const auto add = [](std::uint64_t a, std::uint64_t b) { return a > most - b ? most : a + b; };
  std::vector<std::pair<std::uint64_t, std::string_view>> all;
  std::pair<std::uint64_t, std::string_view> arena;
  for (const auto& a : p.actors) {
    if (a.task != task || a.stream != device_stream_of(device) || !makes_device_memory(a)) continue;
    std::uint64_t bytes = 0;
    for (std::size_t port = 0; port < a.outputs.size() && a.kind != actor_kind::shard; ++port) {
      std::uint64_t credits = 0, own = 0;
      for (const auto e : a.outputs[port])
        credits = std::max<std::uint64_t>(credits, p.edges[e].credits);
      if (__builtin_mul_overflow(credits + 1, std::uint64_t{a.output_specs[port].size_bytes()},
                                 &own))
        own = most;
      bytes = add(bytes, own);
    }
    if (a.kind == actor_kind::shard) {
      // Versions that are kept and out, then the optimizer's state.
      std::uint64_t credits = 0;
      for (const auto& port : a.outputs)
        for (const auto e : port) credits = std::max<std::uint64_t>(credits, p.edges[e].credits);
      if (__builtin_mul_overflow(version_slots(a.shard) + credits + slot_count(a.shard.optimizer),
                                 std::uint64_t{a.shard.spec.size_bytes()}, &bytes))
        bytes = most;
    }
    if (a.kind == actor_kind::collective && a.collective)
      bytes = add(bytes, gathered_bytes(*a.collective));
    if (bytes > 0) all.emplace_back(bytes, a.name);
    if (a.arena_bytes > arena.first) arena = {a.arena_bytes, a.name};
  }
  device_need need;
  for (const auto& [bytes, name] : all) need.bytes = add(need.bytes, bytes);
  need.bytes = add(need.bytes, arena.first);
  const auto shown = std::min(largest_named_max, all.size());
  std::partial_sort(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(shown), all.end(),
                    [](const auto& a, const auto& b) {
                      return a.first != b.first ? a.first > b.first : a.second < b.second;
                    });
  if (arena.first > 0)
    need.largest =
        fmt::format("values inside of '{}' ({})", arena.second, format_bytes(arena.first));
  for (std::size_t i = 0; i < shown; ++i)
    need.largest += fmt::format("{}outputs of '{}' ({})", need.largest.empty() ? "" : ", ",
                                all[i].second, format_bytes(all[i].first));
  return need;
}

port_ref maker_of(const plan& p, const planned_actor& copy) {
  auto at = p.edges[copy.inputs[0]].from;
  while (p.actors[at.actor].forwards_input) at = p.edges[p.actors[at.actor].inputs[0]].from;
  return at;
}

std::size_t landing_buffers(const plan& p, port_ref from) {
  const auto& maker = p.actors[from.actor];
  const bool is_receive = maker.kind == actor_kind::receive;
  if (!is_receive && (maker.kind != actor_kind::op || is_device_stream(maker.stream) ||
                      maker.forwards_input || buffer_of(maker, from.port) >= 0))
    return 0;
  std::size_t copies = 0, others = 0;
  std::vector<port_ref> open{from};
  while (!open.empty()) {
    const auto at = open.back();
    open.pop_back();
    for (const auto e : p.actors[at.actor].outputs[at.port]) {
      const auto& to = p.actors[p.edges[e].to.actor];
      if (to.forwards_input && p.edges[e].to.port == 0) open.push_back({p.edges[e].to.actor, 0});
      if (to.kind != actor_kind::copy || to.copy != copy_kind::in) {
        others += p.edges[e].credits + 1;
        continue;
      }
      std::size_t under_way = 1;
      for (const auto o : to.outputs[0])
        under_way = std::max<std::size_t>(under_way, p.edges[o].credits);
      copies += p.edges[e].credits + under_way + 1;
    }
  }
  if (copies == 0) return 0;
  return copies + 1 + (is_receive ? 2 * std::size_t{p.edges[maker.inputs[0]].credits} : others);
}

std::vector<std::uint32_t> devices_of(const plan& p, std::uint32_t task) {
  std::vector<std::uint32_t> out;
  for (const auto& a : p.actors)
    if (a.task == task && is_device_stream(a.stream)) out.push_back(device_of(a.stream));
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

}  // namespace troupe
