// Spreads ops over the host streams of their task, so that what is independent runs side by side,
// and what follows each other works on different steps at once.
//
// Ops that ship with Troupe and compute much are cut into tiles when they run, which idle streams
// take (devices/host/tile_team.hpp): they gain nothing by a stream of their own. Ops of users and
// readers run on one thread, may wait for a disk, a device or a peer, and are moved if they take
// long: each, in the order of the plan, to the stream with the least to do (greedy list scheduling:
// Graham 1969). How long they take is what earlier runs have measured, else a guess. What is small
// stays with what it takes from, so that a chain changes no thread.
//
// Ops that a device wish of the user places (/cpu:1), and ops in branches and loops, stay where
// they are.

#include "troupe/runtime/analysis/op_times.hpp"
#include "troupe/runtime/compile/passes/passes.hpp"
#include "troupe/runtime/plan/device_name.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

namespace troupe::passes {
namespace {

constexpr double long_ns = 100'000;       // from here on a thread change does not count
constexpr double unknown_ns = 1'000'000;  // of an op of a user's that has never been measured
constexpr double bytes_a_ns = 4;          // that ops read and write
constexpr double products_a_ns = 15;      // multiply-adds, on one thread
constexpr double reader_ns = 10'000;      // beside its bytes

class spreader {
 public:
  spreader(draft& d, const places& where, const op_table& ops, const op_times* times)
      : d_(d), where_(where), ops_(ops), times_(times) {}

  void run(pass_report* report, std::vector<placement_reason>* reasons) {
    for (std::uint32_t task = 0; task < where_.streams.size(); ++task)
      if (where_.streams[task] > 1) run_task(task, report, reasons);
  }

 private:
  std::uint32_t streams(std::uint32_t task) const { return where_.streams[task]; }

  bool is_host_op(const draft_actor& a) const {
    return a.planned.kind == actor_kind::op && !is_device_stream(a.planned.stream);
  }

  // Whether the planner chooses its stream.
  bool is_free(const draft_actor& a) const {
    if (!is_host_op(a) || a.region != 0 || a.planned.loop_level != 0) return false;
    const auto wish = a.device.empty() ? std::nullopt : std::optional(*parse_device(a.device));
    if (wish && wish->cpu) return false;
    return std::ranges::none_of(a.planned.ops, [&](const planned_op& op) {
      const auto* row = ops_.find(op.type);
      return row == nullptr || row->is_control || row->is_forwarding;
    });
  }

  std::vector<tensor_spec> inputs_of(const draft_actor& a) const {
    std::vector<tensor_spec> out;
    for (const auto& p : a.from) out.push_back(d_.actors[p.actor].planned.output_specs[p.port]);
    return out;
  }

  // Whether it runs on one thread: of a user's, or one that reads.
  bool is_undivided(const draft_actor& a) const {
    return std::ranges::any_of(a.planned.ops, [&](const planned_op& op) {
      const auto* row = ops_.find(op.type);
      return row != nullptr && ((row->library != nullptr && !row->is_elementwise) ||
                                (row->is_source && is_reader(op.attrs)));
    });
  }

  double guess_ns(const draft_actor& a, std::span<const tensor_spec> inputs) const {
    double bytes = 0, elements = 1;
    for (const auto& s : inputs) bytes += static_cast<double>(s.size_bytes());
    for (const auto& s : a.planned.output_specs) bytes += static_cast<double>(s.size_bytes());
    double ns = bytes / bytes_a_ns;
    const auto& first = a.planned.ops.front();
    const auto* row = ops_.find(first.type);
    if (row != nullptr && row->library != nullptr && !row->is_elementwise)
      return std::max(ns, unknown_ns);
    if (row != nullptr && row->is_source) return ns + reader_ns;
    // m k, k n and m n elements: their product is (m k n)^2.
    if (inputs.size() >= 2 && !a.planned.output_specs.empty() && row != nullptr &&
        !row->is_elementwise) {
      for (const auto& s : {inputs[0], inputs[1], a.planned.output_specs[0]})
        elements *= static_cast<double>(std::max<std::int64_t>(1, s.shape.elements()));
      if (first.type.find("matmul") != std::string::npos ||
          first.type.find("conv") != std::string::npos)
        ns += std::sqrt(elements) / products_a_ns;
    }
    return ns;
  }

  double cost_ns(const draft_actor& a) const {
    const auto inputs = inputs_of(a);
    if (times_ != nullptr)
      if (const auto measured =
              times_->mean_ns(op_times::key_of(a.planned.ops, inputs, a.planned.output_specs)))
        return *measured;
    return guess_ns(a, inputs);
  }

  void run_task(std::uint32_t task, pass_report* report, std::vector<placement_reason>* reasons) {
    const auto count = streams(task);
    std::vector<double> load(count, 0);
    std::vector<std::uint32_t> long_ones;
    for (std::uint32_t i = 0; i < d_.actors.size(); ++i) {
      const auto& a = d_.actors[i];
      if (a.planned.task != task || !is_host_op(a)) continue;
      const auto cost = cost_ns(a);
      if (is_free(a) && is_undivided(a) && cost >= long_ns)
        long_ones.push_back(i);
      else
        load[a.planned.stream % count] += cost;
    }
    // One long op alone gains nothing, but for a reader, which works ahead.
    if (long_ones.size() == 1 && !d_.actors[long_ones.front()].from.empty()) return;
    // Of equal streams, the one without the rest of the worker.
    if (long_ones.size() > 1)
      for (const auto i : long_ones) load[d_.actors[i].planned.stream % count] += 1;
    std::set<std::uint32_t> placed(long_ones.begin(), long_ones.end()), busy;
    std::uint32_t home = 0;
    bool has_moved = false;
    // In step with the versions of variables, what waits for a long op cannot overlap with it: the
    // first such one stays on its stream.
    std::vector<std::optional<std::uint32_t>> long_before(d_.actors.size());
    std::vector<bool> is_after_variable(d_.actors.size());
    for (std::uint32_t i = 0; i < d_.actors.size(); ++i)
      for (const auto& p : d_.actors[i].from) {
        if (p.actor >= i) continue;
        const auto& from = d_.actors[p.actor].planned;
        if (is_after_variable[p.actor] ||
            (from.kind == actor_kind::shard && from.shard.update == update_kind::sync))
          is_after_variable[i] = true;
        const auto before =
            placed.contains(p.actor) ? std::optional(p.actor) : long_before[p.actor];
        if (before && (!long_before[i] || *long_before[i] < *before)) long_before[i] = before;
      }
    std::set<std::uint32_t> followed;
    for (const auto i : long_ones) {
      auto& a = d_.actors[i];
      const auto cost = cost_ns(a);
      const auto least = static_cast<std::uint32_t>(std::ranges::min_element(load) - load.begin());
      const auto own = a.planned.stream % count;
      const auto* before = waits_for(i, long_before, is_after_variable);
      const bool follows = before != nullptr && followed.insert(*before).second;
      const auto to = follows                    ? d_.actors[*before].planned.stream % count
                      : load[own] <= load[least] ? own
                                                 : least;
      load[to] += cost;
      busy.insert(to);
      home = to;
      if (to != own) {
        a.planned.stream = to;
        has_moved = true;
        tell(report, reasons, i, fmt::format("takes {:.1f} ms", cost / 1e6));
      }
    }
    if (!has_moved) return;
    follow(task, placed, report, reasons);
    // Several workers are spread as it is.
    if (busy.size() == count && std::ranges::count(where_.worker_task, task) <= 1)
      gather(task, home, placed, report, reasons);
    for (auto& a : d_.actors)
      if (a.planned.kind == actor_kind::fetch && a.planned.task == task && !a.from.empty())
        fetch_beside(a);
  }

  // Where all that is fetched is made on one stream, it is fetched there: not behind a long op of
  // another one.
  void fetch_beside(draft_actor& a) const {
    const auto& first = d_.actors[a.from.front().actor].planned;
    if (is_device_stream(first.stream) || first.task != a.planned.task) return;
    if (std::ranges::all_of(a.from, [&](const port_ref& p) {
          const auto& from = d_.actors[p.actor].planned;
          return from.stream == first.stream && from.task == first.task;
        }))
      a.planned.stream = first.stream;
  }

  // The last long op that long op i waits for, where both are in step with a variable; else null.
  static const std::uint32_t* waits_for(
      std::uint32_t i, const std::vector<std::optional<std::uint32_t>>& long_before,
      const std::vector<bool>& is_after_variable) {
    const auto& before = long_before[i];
    return before && is_after_variable[*before] ? &*before : nullptr;
  }

  // What is small goes to the stream that all it takes is made on, if something long is among that;
  // what takes nothing, feeds too, to the stream where all that takes from it is. Both then belong
  // to `placed`.
  void follow(std::uint32_t task, std::set<std::uint32_t>& placed, pass_report* report,
              std::vector<placement_reason>* reasons) {
    std::vector<std::vector<std::uint32_t>> readers(d_.actors.size());
    for (std::uint32_t i = 0; i < d_.actors.size(); ++i) {
      auto& a = d_.actors[i];
      for (const auto& p : a.from) readers[p.actor].push_back(i);
      if (a.from.empty() || placed.contains(i) || a.planned.task != task || !is_free(a) ||
          cost_ns(a) >= long_ns)
        continue;
      const auto* to = leader_of(i, task, placed);
      if (to == nullptr) continue;
      placed.insert(i);
      if (to->planned.stream == a.planned.stream) continue;
      a.planned.stream = to->planned.stream;
      tell(report, reasons, i, fmt::format("is small, beside '{}'", to->planned.name));
    }
    for (std::uint32_t i = 0; i < d_.actors.size(); ++i) {
      auto& a = d_.actors[i];
      const bool is_feed = a.planned.kind == actor_kind::feed;
      if (!a.from.empty() || readers[i].empty() || placed.contains(i) || a.planned.task != task ||
          (!is_feed && (!is_free(a) || cost_ns(a) >= long_ns)))
        continue;
      const auto to = d_.actors[readers[i].front()].planned.stream;
      if (is_device_stream(to) || std::ranges::any_of(readers[i], [&](std::uint32_t r) {
            const auto& reader = d_.actors[r];
            return !placed.contains(r) || reader.planned.task != task ||
                   reader.planned.stream != to;
          }))
        continue;
      placed.insert(i);
      if (to == a.planned.stream) continue;
      a.planned.stream = to;
      tell(report, reasons, i, "is small, and read there");
    }
  }

  // One that small actor i takes from, if all that it takes is placed on one stream; else null.
  const draft_actor* leader_of(std::uint32_t i, std::uint32_t task,
                               const std::set<std::uint32_t>& placed) const {
    const draft_actor* leader = nullptr;
    for (const auto& p : d_.actors[i].from) {
      const auto& from = d_.actors[p.actor];
      if (!placed.contains(p.actor) || from.planned.task != task) return nullptr;
      if (leader != nullptr && leader->planned.stream != from.planned.stream) return nullptr;
      leader = &from;
    }
    return leader;
  }

  // Where every stream has a long op, the rest is on one of them, that of the last: behind one long
  // op, not behind each in turn.
  void gather(std::uint32_t task, std::uint32_t home, const std::set<std::uint32_t>& placed,
              pass_report* report, std::vector<placement_reason>* reasons) {
    for (std::uint32_t i = 0; i < d_.actors.size(); ++i) {
      auto& a = d_.actors[i];
      if (a.planned.task != task || is_device_stream(a.planned.stream) || placed.contains(i) ||
          a.planned.stream % streams(task) == home || a.region != 0 || a.planned.loop_level != 0)
        continue;
      const auto wish = a.device.empty() ? std::nullopt : std::optional(*parse_device(a.device));
      if (wish && wish->cpu) continue;
      a.planned.stream = home;
      tell(report, reasons, i, "every stream has a long op");
    }
  }

  void tell(pass_report* report, std::vector<placement_reason>* reasons, std::uint32_t i,
            std::string why) const {
    const auto& a = d_.actors[i].planned;
    if (reasons != nullptr && i < reasons->size()) (*reasons)[i].spread = why;
    if (report != nullptr)
      report->add(a.name, a.source,
                  [&] { return fmt::format("is on {}: {}", stream_text(a.stream), why); });
  }

  draft& d_;
  const places& where_;
  const op_table& ops_;
  const op_times* times_;
};

}  // namespace

draft spread(draft d, const places& where, const op_table& ops, const op_times* times,
             pass_report* report, std::vector<placement_reason>* reasons) {
  spreader(d, where, ops, times).run(report, reasons);
  return d;
}

}  // namespace troupe::passes
