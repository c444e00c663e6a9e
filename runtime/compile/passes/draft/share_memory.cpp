// Which outputs may be written into the same memory: an op takes the buffer of one whose readers
// all come before it in the plan's order, of those that are free the smallest that is large enough,
// else the largest, which grows (best fit).
//
// Outputs that leave the stream's ops (to shards, transfers, fetches and other streams), those of
// readers, which run ahead, and constants have memory of their own. A buffer that an op hands on as
// it is stays in use until the readers of that are done. An element-wise op (or a group of them)
// writes over an operand of its own shape and type that it is the last to read, if its first step
// alone reads it.
//
// O(n log n) in actors and edges.

#include "troupe/runtime/compile/passes/passes.hpp"
#include "troupe/runtime/plan/loop_rules.hpp"
#include "troupe/runtime/text/byte_size.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <queue>
#include <utility>

namespace troupe::passes {
namespace {

class sharer {
 public:
  sharer(plan p, const op_table& ops) : p_(std::move(p)), ops_(ops), lives_(p_.actors.size()) {}

  plan run() {
    for (auto& a : p_.actors) a.forwards_input = forwards_input(a);
    for (auto i = static_cast<std::uint32_t>(p_.actors.size()); i-- > 0;) find_lives(i);
    for (std::uint32_t i = 0; i < p_.actors.size(); ++i) assign(i);
    return std::move(p_);
  }

 private:
  // Of one output port: whether ops of its stream alone read it, and the last of them.
  struct life {
    bool is_shared = false;
    std::uint32_t last_reader = 0;
  };
  // The memory of one stream.
  struct stream {
    using busy_buffer = std::pair<std::uint32_t, std::uint32_t>;  // last reader, buffer
    std::priority_queue<busy_buffer, std::vector<busy_buffer>, std::greater<>> busy;
    std::multimap<std::uint64_t, std::uint32_t> free;  // by bytes
  };

  const op_row* row_of(const planned_op& op) const { return ops_.find(op.type); }

  bool forwards_input(const planned_actor& a) const {
    const auto* row = a.kind == actor_kind::op && !is_device_stream(a.stream) && a.ops.size() == 1
                          ? row_of(a.ops[0])
                          : nullptr;
    return row != nullptr && row->is_forwarding;
  }

  // Whether its outputs are made anew in each step, for that step alone.
  bool makes_its_outputs(const planned_actor& a) const {
    if (a.kind != actor_kind::op || is_device_stream(a.stream) || a.ops[0].type == hand_over_op ||
        !fires_once(a))
      return false;
    return std::none_of(a.ops.begin(), a.ops.end(), [this](const planned_op& op) {
      const auto* row = row_of(op);
      return row == nullptr || row->is_constant || is_reader(op.attrs);
    });
  }

  // In each step, and keeps nothing: it is in no loop, and hands nothing into a branch.
  static bool fires_once(const planned_actor& a) {
    return a.loop_level == 0 && !is_control(a.ops[0].type);
  }

  void find_lives(std::uint32_t i) {
    const auto& a = p_.actors[i];
    lives_[i].resize(a.outputs.size());
    if (!makes_its_outputs(a)) return;
    for (std::size_t port = 0; port < a.outputs.size(); ++port) {
      life l{true, i};
      for (const auto e : a.outputs[port]) {
        const auto to = p_.edges[e].to.actor;
        const auto& reader = p_.actors[to];
        if (reader.kind != actor_kind::op || reader.task != a.task || reader.stream != a.stream ||
            to <= i || !fires_once(reader))
          l.is_shared = false;
        if (!l.is_shared) break;
        l.last_reader = std::max(l.last_reader, to);
        if (!reader.forwards_input || p_.edges[e].to.port != 0) continue;
        l.is_shared = lives_[to][0].is_shared;
        l.last_reader = std::max(l.last_reader, lives_[to][0].last_reader);
      }
      lives_[i][port] = l;
    }
  }

  void assign(std::uint32_t i) {
    auto& a = p_.actors[i];
    if (a.kind != actor_kind::op || is_device_stream(a.stream)) return;
    if (a.forwards_input) {
      const auto& from = p_.edges[a.inputs[0]].from;
      if (const auto b = buffer_of(p_.actors[from.actor], from.port); b >= 0) a.buffers = {b};
      return;
    }
    auto& here = streams_[{a.task, a.stream}];
    free_before(i, here);
    for (std::size_t port = 0; port < a.outputs.size(); ++port) {
      const auto bytes = std::uint64_t{a.output_specs[port].size_bytes()};
      if (!lives_[i][port].is_shared || bytes == 0) continue;
      if (a.buffers.empty()) a.buffers.assign(a.outputs.size(), -1);
      a.in_place = operand_to_write_over(i);
      const auto b = a.in_place >= 0 ? buffer_behind(a, a.in_place) : take(here, a, bytes);
      a.buffers[port] = static_cast<std::int32_t>(b);
      until_[b] = lives_[i][port].last_reader;
      here.busy.emplace(until_[b], b);
    }
  }

  // Buffers whose last reader comes before actor `i`. One that was written over in place has an
  // entry that says less than until_.
  void free_before(std::uint32_t i, stream& here) {
    for (; !here.busy.empty() && here.busy.top().first < i; here.busy.pop()) {
      const auto [last, b] = here.busy.top();
      if (last == until_[b]) here.free.emplace(p_.buffers[b].bytes, b);
    }
  }

  const port_ref& producer_of(const planned_actor& a, std::int32_t port) const {
    return p_.edges[a.inputs[static_cast<std::size_t>(port)]].from;
  }
  std::uint32_t buffer_behind(const planned_actor& a, std::int32_t port) const {
    const auto& from = producer_of(a, port);
    return static_cast<std::uint32_t>(buffer_of(p_.actors[from.actor], from.port));
  }

  // An input port, or -1.
  std::int32_t operand_to_write_over(std::uint32_t i) const {
    const auto& a = p_.actors[i];
    if (a.outputs.size() != 1 ||
        !std::all_of(a.ops.begin(), a.ops.end(),
                     [this](const planned_op& op) { return is_plain(op); }))
      return -1;
    for (const auto port : a.ops[0].operands) {
      const auto& from = producer_of(a, port);
      const auto& producer = p_.actors[from.actor];
      if (producer.forwards_input || buffer_of(producer, from.port) < 0 ||
          producer.output_specs[from.port] != a.output_specs[0])
        continue;
      if (lives_[from.actor][from.port].last_reader != i) continue;
      const auto is_same = [&](std::uint32_t e) { return p_.edges[e].from == from; };
      if (std::count_if(a.inputs.begin(), a.inputs.end(), is_same) != 1) continue;
      const auto reads = [&](const planned_op& op) {
        return std::find(op.operands.begin(), op.operands.end(), port) != op.operands.end();
      };
      if (std::any_of(a.ops.begin() + 1, a.ops.end(), reads)) continue;
      const auto& readers = producer.outputs[from.port];
      if (std::any_of(readers.begin(), readers.end(), [&](auto e) {
            return p_.actors[p_.edges[e].to.actor].forwards_input && p_.edges[e].to.port == 0;
          }))
        continue;
      return port;
    }
    return -1;
  }
  bool is_plain(const planned_op& op) const {
    const auto* row = row_of(op);
    return row != nullptr && row->is_elementwise && row->library == nullptr;
  }

  std::uint32_t take(stream& from, const planned_actor& a, std::uint64_t bytes) {
    if (from.free.empty()) {
      p_.buffers.push_back({a.task, a.stream, bytes});
      until_.push_back(0);
      return static_cast<std::uint32_t>(p_.buffers.size()) - 1;
    }
    auto at = from.free.lower_bound(bytes);
    if (at == from.free.end()) --at;
    const auto b = at->second;
    from.free.erase(at);
    p_.buffers[b].bytes = std::max(p_.buffers[b].bytes, bytes);
    return b;
  }

  plan p_;
  const op_table& ops_;
  std::vector<std::vector<life>> lives_;  // by actor and output port
  std::vector<std::uint32_t> until_;      // by buffer: the last reader of what stands in it
  std::map<std::pair<std::uint32_t, std::uint32_t>, stream> streams_;  // by task and stream
};

}  // namespace

plan share_memory(plan p, const op_table& ops, std::uint32_t steps_in_flight, pass_report* report) {
  p = sharer(std::move(p), ops).run();
  p.steps_in_flight = steps_in_flight;
  if (report == nullptr) return p;
  for (const auto& a : p.actors) {
    const auto line = a.ops.empty() ? a.source : a.ops.back().source;
    if (a.in_place >= 0)
      report->add(a.name, line,
                  [&] { return fmt::format("writes over its input {}", a.in_place); });
  }
  std::vector<std::vector<std::string_view>> users(p.buffers.size());
  for (const auto& a : p.actors)
    for (const auto b : a.buffers)
      if (b >= 0 && !a.forwards_input) users[static_cast<std::size_t>(b)].push_back(a.name);
  for (std::size_t b = 0; b < users.size(); ++b)
    if (users[b].size() > 1)
      report->add(std::string(users[b].front()), {}, [&] {
        return fmt::format("shares {} of memory with {} more, of which '{}' is the next",
                           format_bytes(p.buffers[b].bytes), users[b].size() - 1, users[b][1]);
      });
  return p;
}

}  // namespace troupe::passes
