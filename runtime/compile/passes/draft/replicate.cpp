// Between-graph replication: every worker gets its own copy of the flow, all share the shards of
// its variables.
//
// In a job that can be recovered, or makes cuts, every gradient that a worker sends depends on the
// versions of *all* variables that it read for that step: by the flow itself, or else through an op
// `after` that is put in. So a shard that has applied step t knows that every shard had version t,
// and the mark of a cut, put on one variable's version, is on every gradient. In a synchronous one
// they depend on the loss of that step too, and the loss waits until the program has the one
// before: so whoever has a version t + 1 knows that the program has the losses of all steps before
// t (RC-2). It is what brings the loss to the host that waits: a device's op runs ahead by as many
// steps as its copy has under way, and depending on that says nothing.

#include "troupe/runtime/compile/passes/passes.hpp"

#include "troupe/runtime/plan/device_name.hpp"
#include "troupe/runtime/plan/loop_rules.hpp"
#include "troupe/runtime/plan/segment.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace troupe::passes {
namespace {

struct trained_variable {
  std::uint32_t op = 0;  // in the flow
  op_ref gradient;
  std::uint32_t shard = 0;  // k of --shards
};

std::vector<trained_variable> variables_of(const flow& f) {
  const auto n = (f.roots.size() - 1) / 2;
  std::vector<trained_variable> all;
  for (std::size_t i = 0; i < n; ++i)
    all.push_back({.op = f.roots[1 + n + i].op, .gradient = f.roots[1 + i]});
  std::sort(all.begin(), all.end(),
            [&](const auto& a, const auto& b) { return f.ops[a.op].name < f.ops[b.op].name; });
  return all;
}

// Largest first, each to the shard that holds the fewest bytes yet (Graham's rule: at most 4/3 of
// the best split). A device wish leaves only the shards of the tasks that it admits.
result<void> assign_shards(std::vector<trained_variable>& variables, const flow& f,
                           const places& where) {
  std::vector<std::size_t> order(variables.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto bytes = [&](std::size_t i) { return f.ops[variables[i].op].outputs[0].size_bytes(); };
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return bytes(a) > bytes(b); });
  std::vector<std::size_t> load(where.shard_task.size());
  for (const auto i : order) {
    const auto& op = f.ops[variables[i].op];
    std::optional<std::uint32_t> best;
    for (std::uint32_t k = 0; k < load.size(); ++k) {
      const auto task = find_task(op.device, where.shard_task[k], where, op.source);
      if (!task) return std::move(task.error());
      if (*task == where.shard_task[k] && (!best || load[k] < load[*best])) best = k;
    }
    if (!best)
      return error(error_code::usage,
                   fmt::format("variable '{}' wants device '{}', but no shard runs there", op.name,
                               op.device))
          .at(op.source.file, op.source.line);
    variables[i].shard = *best;
    load[*best] += bytes(i);
  }
  return {};
}

std::vector<shard_reader> readers_of(const training_spec& spec) {
  std::vector<shard_reader> readers;
  for (std::uint32_t w = 0; w < spec.workers; ++w)
    readers.push_back({.worker = static_cast<std::int32_t>(w)});
  if (spec.update == update_kind::sync && spec.observe_every > 0)
    readers.push_back({.worker = -1, .first = spec.observe_every, .stride = spec.observe_every});
  else
    readers.push_back({.worker = -1, .first = spec.steps, .at_end = true});
  return readers;
}

// Shards differ by at most one version; a replica may be one more behind.
std::uint32_t keeps_of(const training_spec& spec) {
  if (!spec.may_end_early() || spec.update != update_kind::sync) return 0;
  return spec.has_replicas ? 2 : 1;
}

draft_actor make_shard(const flow_op& op, std::uint32_t shard, const training_spec& spec) {
  draft_actor a;
  a.owner = owner_kind::shard;
  a.index = shard;
  a.device = op.device;
  a.planned.kind = actor_kind::shard;
  a.planned.name = "shard/0/" + op.name;
  a.planned.source = op.source;
  a.planned.steps = spec.update == update_kind::sync ? spec.steps : spec.steps * spec.workers;
  a.planned.shard = shard_spec{.variable = op.name,
                               .spec = op.outputs[0],
                               .shard = shard,
                               .update = spec.update,
                               .optimizer = spec.optimizer,
                               .schedule = spec.schedule,
                               .initializer = op.initializer.value_or(initializer_spec{}),
                               .seed = spec.seed,
                               .steps = std::vector<std::uint64_t>(spec.workers, spec.steps),
                               .readers = readers_of(spec),
                               .is_recoverable = spec.is_recoverable,
                               .keeps = keeps_of(spec),
                               .cut_every = spec.has_cuts ? spec.cut_every : 0,
                               .cuts_at_end = spec.has_cuts};
  if (op.average_rate)
    a.planned.shard.average =
        moving_average_spec{*op.average_rate, spec.update == update_kind::sync ? spec.workers : 1};
  if (const auto every = op.attrs.integer(loss_scale_attribute); every > 0)
    a.planned.shard.loss_scale = loss_scale_update{
        static_cast<std::uint64_t>(every), spec.update == update_kind::sync ? spec.workers : 1};
  a.planned.output_specs.assign(a.planned.shard.readers.size(), op.outputs[0]);
  a.from.resize(spec.workers);
  return a;
}

// A variable that is recovered, saved, copied or pushed by rows is on the host, whatever it wishes
// for.
void keep_from_devices(draft_actor& a, const training_spec& spec, pass_report* report) {
  if (a.device.empty() || (may_be_on_device(a.planned.shard) && !spec.has_replicas)) return;
  auto wish = parse_device(a.device);
  expects(bool(wish), "a device in a graph was checked by its scope");
  if (!wish->gpu) return;
  if (report != nullptr)
    report->add(a.planned.shard.variable, a.planned.source, [&] {
      const auto why = a.planned.shard.pushes_rows ? "its gradient is pushed by rows"
                                                   : "the job keeps it for recovery or checkpoints";
      return fmt::format("is held on the host, not on '{}': {}", a.device, why);
    });
  wish->gpu.reset();
  a.device = to_string(*wish);
}

draft_actor make_op(const flow_op& op, std::uint32_t worker, const training_spec& spec) {
  draft_actor a;
  a.index = worker;
  a.device = op.device;
  a.planned.kind = actor_kind::op;
  a.planned.name = fmt::format("worker/{}/{}", worker, op.name);
  a.planned.source = op.source;
  a.planned.steps = spec.steps;
  a.planned.output_specs = op.outputs;
  a.planned.loop_level = op.loop_level;
  if (std::any_of(op.sticky.begin(), op.sticky.end(), [](auto level) { return level != 0; }))
    a.planned.sticky = op.sticky;
  a.region = op.region;
  planned_op p{op.type, op.name, op.attrs, std::vector<std::int32_t>(op.inputs.size()), op.source};
  std::iota(p.operands.begin(), p.operands.end(), 0);
  if (op.attrs.has("rows")) p.attrs.set("part", std::int64_t{worker});  // of random numbers
  if (is_reader(op.attrs)) {
    p.attrs.set("part", std::int64_t{worker});
    p.attrs.set("parts", std::int64_t{spec.workers});
    // Asynchronous workers each take the mean over their own samples; synchronous gradients are
    // added up.
    p.attrs.set("global_scale", std::int64_t{spec.update == update_kind::sync});
  }
  a.planned.ops.push_back(std::move(p));
  return a;
}

// Version after version of a variable, from its shard to whatever this worker does with it.
draft_actor make_read(const flow_op& variable, std::uint32_t worker, const training_spec& spec) {
  auto a = make_op(variable, worker, spec);
  a.device.clear();
  a.planned.ops.front().type = "read";
  a.planned.ops.front().attrs = {};
  a.planned.ops.front().operands = {0};
  return a;
}

draft_actor make_feed(const flow_op& op, std::uint32_t worker, const training_spec& spec) {
  auto a = make_op(op, worker, spec);
  a.owner = owner_kind::client;
  a.device.clear();
  a.planned.kind = actor_kind::feed;
  a.planned.ops.clear();
  if (spec.workers == 1) a.planned.name = op.name;
  return a;
}

draft_actor make_fetch(std::string name, std::uint64_t steps) {
  draft_actor a;
  a.owner = owner_kind::client;
  a.planned.kind = actor_kind::fetch;
  a.planned.name = std::move(name);
  a.planned.steps = steps;
  return a;
}

// --- loops have edges for their ends ---

// Gives the actors of a copy of the flow their producers. Ops that have no actor are looked
// through.
class wiring {
 public:
  wiring(const flow& f, draft& d) : f_(f), d_(d), actor_of_(f.ops.size()) {}

  static bool has_actor(const flow_op& op) {
    return op.type != loop_end_op && op.type != loop_back_op;
  }
  void add(std::uint32_t op, draft_actor a) {
    actor_of_[op] = static_cast<std::uint32_t>(d_.actors.size());
    for (const auto& in : f_.ops[op].inputs) a.from.push_back(producer(in));
    if (f_.ops[op].type == loop_enter_op) {
      enters_[key(f_.ops[op])] = actor_of_[op];
      a.planned.ops.front().operands = {0, 1};
    }
    d_.actors.push_back(std::move(a));
  }
  // What leaves a loop is output 1 of its last op inside.
  port_ref producer(op_ref r) const {
    while (f_.ops[r.op].type == loop_end_op) r = f_.ops[r.op].inputs[r.output];
    return {actor_of_[r.op], r.output};
  }
  // Once all actors are there.
  void close_loops() {
    for (const auto& op : f_.ops)
      if (op.type == loop_back_op)
        d_.actors[enters_.at(key(op))].from.push_back(producer(op.inputs[0]));
  }

 private:
  static std::pair<std::int64_t, std::int64_t> key(const flow_op& op) {
    return {op.attrs.integer("loop"), op.attrs.integer("variable")};
  }
  const flow& f_;
  draft& d_;
  std::vector<std::uint32_t> actor_of_;
  std::map<std::pair<std::int64_t, std::int64_t>, std::uint32_t> enters_;  // by loop and variable
};

// --- gradients depend on every variable ---

bool is_tracked(const training_spec& spec) { return spec.is_recoverable || spec.has_cuts; }

// For each op of the flow which of `others` it depends on, as bits in their order.
class ancestors {
 public:
  ancestors(const flow& f, const std::vector<op_ref>& others)
      : words_((others.size() + 63) / 64), bits_(f.ops.size() * words_) {
    for (std::size_t k = 0; k < others.size(); ++k)
      word(others[k].op, k / 64) |= std::uint64_t{1} << (k % 64);
    for (std::uint32_t i = 0; i < f.ops.size(); ++i)
      for (const auto& in : f.ops[i].inputs)
        for (std::size_t k = 0; k < words_; ++k) word(i, k) |= word(in.op, k);
  }
  bool depends(std::uint32_t op, std::size_t other) const {
    return (bits_[op * words_ + other / 64] >> (other % 64) & 1U) != 0;
  }

 private:
  std::uint64_t& word(std::size_t op, std::size_t k) { return bits_[op * words_ + k]; }
  std::size_t words_;
  std::vector<std::uint64_t> bits_;
};

// Its op gives a loss only when the program has the one before.
bool is_paced_by_program(const flow_op& loss) {
  if (loss.device.empty()) return true;
  const auto wish = parse_device(loss.device);
  expects(bool(wish), "a device in a graph was checked by its scope");
  return !wish->gpu;
}

// Passes `gradient` on when `others` are there.
draft_actor make_gate(const flow_op& variable, const flow_op& gradient, std::uint32_t worker,
                      const training_spec& spec, std::size_t others) {
  auto a = make_op(gradient, worker, spec);
  a.device.clear();
  a.planned.name = fmt::format("worker/{}/{}/after", worker, variable.name);
  a.planned.source = variable.source;
  a.planned.output_specs = gradient.type == pack_rows_op ? gradient.outputs : variable.outputs;
  auto& op = a.planned.ops.front();
  op.type = "after";
  op.name = variable.name + "/after";
  op.attrs = {};
  op.operands.resize(1 + others);
  std::iota(op.operands.begin(), op.operands.end(), 0);
  return a;
}

result<void> check_reader(const flow_op& op, const training_spec& spec) {
  const auto parts = op.attrs.integer("parts", 1);
  if (!is_reader(op.attrs) || parts == 1 || parts == std::int64_t{spec.workers}) return {};
  return error(
             error_code::usage,
             fmt::format("{} '{}' reads one of {} parts, but the job has {} workers, each of which "
                         "reads its own part: leave parts at 1",
                         op.type, op.name, parts, spec.workers))
      .at(op.source.file, op.source.line);
}

}  // namespace

result<draft> replicate(const flow& f, const training_spec& spec, const places& where,
                        pass_report* report) {
  for (const auto& op : f.ops)
    if (auto ok = check_reader(op, spec); !ok) return std::move(ok.error());
  auto variables = variables_of(f);
  if (auto ok = assign_shards(variables, f, where); !ok) return std::move(ok.error());

  draft d;
  std::vector<std::int64_t> shard_of(f.ops.size(), -1);
  for (const auto& v : variables) {
    shard_of[v.op] = static_cast<std::int64_t>(d.actors.size());
    d.actors.push_back(make_shard(f.ops[v.op], v.shard, spec));
    d.actors.back().planned.shard.pushes_rows = f.ops[v.gradient.op].type == pack_rows_op;
    keep_from_devices(d.actors.back(), spec, report);
    if (report != nullptr)
      report->add(f.ops[v.op].name, f.ops[v.op].source, [&] {
        return fmt::format(
            "{}, {} bytes, is held by shard {}{}", to_string(f.ops[v.op].outputs[0]),
            f.ops[v.op].outputs[0].size_bytes(), v.shard,
            spec.shards > 1
                ? ": variables are assigned from the largest to the smallest, and this shard had "
                  "the fewest bytes"
                : "");
      });
  }
  auto losses =
      make_fetch(std::string(loss_fetch),
                 spec.update == update_kind::sync ? spec.steps : spec.steps * spec.workers);
  losses.planned.fires_on_any = spec.update == update_kind::async;
  losses.planned.awaits_receipt = spec.may_end_early() && spec.update == update_kind::sync;
  std::vector<op_ref> needed;  // by every gradient
  if (is_tracked(spec))
    for (const auto& v : variables) needed.push_back({v.op, 0});
  if (losses.planned.awaits_receipt) needed.push_back(f.roots[0]);
  const ancestors reads(f, needed);
  const auto has = [&, counts_loss = is_paced_by_program(f.ops[f.roots[0].op])](
                       std::uint32_t gradient, std::size_t k) {
    const bool is_loss = losses.planned.awaits_receipt && k + 1 == needed.size();
    return reads.depends(gradient, k) && (counts_loss || !is_loss);
  };
  for (std::uint32_t w = 0; w < spec.workers; ++w) {
    wiring wires(f, d);
    const auto producer = [&](op_ref r) { return wires.producer(r); };
    for (std::uint32_t i = 0; i < f.ops.size(); ++i) {
      const auto& op = f.ops[i];
      if (!wiring::has_actor(op)) continue;
      auto a = shard_of[i] >= 0     ? make_read(op, w, spec)
               : op.type == "input" ? make_feed(op, w, spec)
                                    : make_op(op, w, spec);
      if (shard_of[i] >= 0) a.from.push_back({static_cast<std::uint32_t>(shard_of[i]), w});
      // Versions come at one pace: one variable's carry the marks of cuts. Synchronous shards need
      // one worker's only.
      a.planned.marks_cuts = spec.has_cuts && i == variables.front().op &&
                             (w == 0 || spec.update == update_kind::async);
      wires.add(i, std::move(a));
    }
    wires.close_loops();
    for (std::size_t v = 0; v < variables.size(); ++v) {
      const auto gradient = variables[v].gradient;
      auto from = producer(gradient);
      std::vector<port_ref> missing;
      for (std::size_t k = 0; k < needed.size(); ++k)
        if (!has(gradient.op, k)) missing.push_back(producer(needed[k]));
      if (!missing.empty()) {
        auto gate = make_gate(f.ops[variables[v].op], f.ops[gradient.op], w, spec, missing.size());
        gate.from = {from};
        gate.from.insert(gate.from.end(), missing.begin(), missing.end());
        if (report != nullptr && w == 0)
          report->add(gate.planned.ops.front().name, gate.planned.source, [&] {
            return fmt::format(
                "is put in, for each worker: the gradient waits for {} more values of its step, so "
                "that a step is applied as a whole or not at all",
                missing.size());
          });
        from = {static_cast<std::uint32_t>(d.actors.size()), 0};
        d.actors.push_back(std::move(gate));
      }
      d.actors[v].from[w] = from;
    }
    losses.from.push_back(producer(f.roots[0]));
  }
  const bool observes = spec.update == update_kind::sync && spec.observe_every > 0;
  auto values =
      make_fetch(std::string(variables_fetch), observes ? spec.steps / spec.observe_every : 1);
  for (std::uint32_t v = 0; v < variables.size(); ++v) values.from.push_back({v, spec.workers});
  d.actors.push_back(std::move(losses));
  d.actors.push_back(std::move(values));
  return d;
}

draft lower(const flow& f) {
  draft d;
  training_spec unlimited;
  unlimited.steps = 0;
  wiring wires(f, d);
  for (std::uint32_t i = 0; i < f.ops.size(); ++i) {
    const auto& op = f.ops[i];
    if (!wiring::has_actor(op)) continue;
    const bool is_fed = op.type == "input" || op.type == "variable";
    auto a = is_fed ? make_feed(op, 0, unlimited) : make_op(op, 0, unlimited);
    a.planned.name = op.name;
    if (is_fed) a.device.clear();  // the program feeds it, wherever its readers are
    // a reader keeps the part that the program gave it.
    if (!is_fed) a.planned.ops[0].attrs = op.attrs;
    wires.add(i, std::move(a));
  }
  wires.close_loops();
  auto fetch = make_fetch("fetch", 0);
  for (const auto& r : f.roots) fetch.from.push_back(wires.producer(r));
  fetch.planned.places.resize(fetch.from.size());
  std::iota(fetch.planned.places.begin(), fetch.planned.places.end(), 0U);
  d.actors.push_back(std::move(fetch));
  return d;
}

}  // namespace troupe::passes
