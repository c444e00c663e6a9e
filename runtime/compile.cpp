#include "runtime/compile.hpp"

#include "runtime/device_name.hpp"
#include "runtime/passes/passes.hpp"

#include <fmt/format.h>

#include <cmath>

namespace troupe {
namespace {

constexpr std::uint32_t workers_max = 65'536;  // also the limit of idx_batch's parts
constexpr std::string_view only_task = "/job:client/task:0";

error usage(std::string text) {
  return error(error_code::usage, std::move(text));
}

result<void> check_options(const compile_options& options) {
  if (options.credits < 1 || options.credits > credits_max)
    return usage(fmt::format("credits {}: an edge has 1..{} credits", options.credits, credits_max));
  return {};
}

// --- training
// ------------------------------------------------------------------------------------------------------------

result<void> check_numbers(const training_spec& s) {
  if (s.workers < 1 || s.workers > workers_max)
    return usage(fmt::format("{} workers: use 1..{}", s.workers, workers_max));
  if (s.shards < 1 || s.shards > workers_max) return usage(fmt::format("{} shards: use 1..{}", s.shards, workers_max));
  if (s.steps < 1 || s.steps > (std::uint64_t{1} << 48U)) return usage(fmt::format("{} steps: use 1..2^48", s.steps));
  if (s.update == update_kind::sync && s.observe_every > 0 && s.steps % s.observe_every != 0)
    return usage(fmt::format("observing every {} of {} steps would miss the last version: use a divisor of the steps",
                             s.observe_every, s.steps));
  const auto& o = s.optimizer;
  if (o.type != "sgd") return usage(fmt::format("there is no optimizer '{}' (there is: sgd)", o.type));
  if (!std::isfinite(o.learning_rate))
    return usage(fmt::format("learning rate {} is not a finite number", o.learning_rate));
  if (!(o.momentum >= 0 && o.momentum < 1)) return usage(fmt::format("momentum {} is not in [0, 1)", o.momentum));
  return {};
}

// Fills in what an embedded program may leave out: everything is in its only task.
result<passes::places> places_of(const training_spec& s) {
  passes::places p{s.task_names, s.worker_task, s.shard_task, s.client_task};
  if (s.tasks == 1 && p.task_names.empty()) p.task_names = {std::string(only_task)};
  if (s.tasks == 1 && p.worker_task.empty()) p.worker_task.assign(s.workers, 0);
  if (s.tasks == 1 && p.shard_task.empty()) p.shard_task.assign(s.shards, 0);
  if (s.tasks < 1 || p.task_names.size() != s.tasks)
    return usage(fmt::format("{} names of tasks for {} tasks", p.task_names.size(), s.tasks));
  if (p.worker_task.size() != s.workers)
    return usage(fmt::format("{} workers, but places for {}", s.workers, p.worker_task.size()));
  if (p.shard_task.size() != s.shards)
    return usage(fmt::format("{} shards, but places for {}", s.shards, p.shard_task.size()));
  for (const auto& name : p.task_names)
    if (auto ok = parse_device(name); !ok) return std::move(ok.error().while_doing("name of a task"));
  const auto is_task = [&](std::uint32_t t) { return t < s.tasks; };
  for (const auto t : p.worker_task)
    if (!is_task(t)) return usage(fmt::format("a worker is placed on task {} of {}", t, s.tasks));
  for (const auto t : p.shard_task)
    if (!is_task(t)) return usage(fmt::format("a shard is placed on task {} of {}", t, s.tasks));
  if (!is_task(p.client_task)) return usage(fmt::format("the client is task {} of {}", p.client_task, s.tasks));
  return p;
}

// The loss, the gradient of every variable that it depends on, and these variables.
result<std::vector<value>> training_roots(graph& g, value loss) {
  const auto all = g.variables();
  const auto derivatives = gradients(g, loss, all);
  if (g.first_error()) return *g.first_error();
  std::vector<value> roots{loss}, used;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!derivatives[i].is_valid()) continue;
    roots.push_back(derivatives[i]);
    used.push_back(all[i]);
  }
  if (used.empty()) {
    const auto& n = g.node(loss.node);
    return usage(fmt::format("loss '{}' depends on no variable, so there is nothing to train", n.name)).at(n.source);
  }
  roots.insert(roots.end(), used.begin(), used.end());
  return roots;
}

// A variable in the flow that got no gradient would be an op that no kernel runs.
result<void> check_all_trained(const passes::flow& f) {
  const auto trained = (f.roots.size() - 1) / 2;
  std::vector<bool> has_gradient(f.ops.size());
  for (std::size_t i = 1 + trained; i < f.roots.size(); ++i) has_gradient[f.roots[i].op] = true;
  for (std::size_t i = 0; i < f.ops.size(); ++i)
    if (f.ops[i].type == "variable" && !has_gradient[i])
      return usage(fmt::format("the loss depends on variable '{}', but no gradient flows to it", f.ops[i].name))
          .at(f.ops[i].source.file, f.ops[i].source.line);
  return {};
}

// --- the end of both ways
// --------------------------------------------------------------------------------------------------

result<plan> finish(passes::draft d, const graph& g, const passes::places& where, const compile_options& options) {
  if (options.fuse) d = passes::fuse(std::move(d), g.ops());
  auto placed = passes::place(std::move(d), where);
  if (!placed) return std::move(placed.error());
  auto p = passes::connect(passes::partition(std::move(*placed)), options.credits);
  p.name = options.name;
  for (std::uint32_t i = 0; i < where.task_names.size(); ++i)
    p.tasks.push_back({.name = where.task_names[i], .is_client = i == where.client_task});
  return p;
}

}  // namespace

result<plan> compile_training(graph& g, value loss, const training_spec& spec, const compile_options& options) {
  if (g.first_error()) return *g.first_error();
  if (auto ok = check_options(options); !ok) return std::move(ok.error());
  if (auto ok = check_numbers(spec); !ok) return std::move(ok.error());
  const auto where = places_of(spec);
  if (!where) return where.error();
  const auto roots = training_roots(g, loss);
  if (!roots) return roots.error();
  const auto f = passes::simplify(passes::prune(g, *roots));
  if (auto ok = check_all_trained(f); !ok) return std::move(ok.error());
  auto d = passes::replicate(f, spec, *where);
  if (!d) return std::move(d.error());
  auto p = finish(std::move(*d), g, *where, options);
  if (!p) return p;
  p->seed = spec.seed;
  p->update = spec.update;
  p->workers = spec.workers;
  p->shards = spec.shards;
  if (auto ok = check(*p); !ok) return std::move(ok.error());
  return p;
}

result<plan> compile_steps(graph& g, std::span<const value> fetches, const compile_options& options) {
  if (g.first_error()) return *g.first_error();
  if (auto ok = check_options(options); !ok) return std::move(ok.error());
  if (fetches.empty()) return usage("nothing is fetched, so there is nothing to compute");
  for (const auto& v : fetches)
    if (!v.is_valid() || v.owner != &g) return usage("a fetched value is not of this graph");
  const auto f = passes::simplify(passes::prune(g, fetches));
  auto p = finish(passes::lower(f), g, passes::places{{std::string(only_task)}, {0}, {0}, 0}, options);
  if (!p) return p;
  if (auto ok = check(*p); !ok) return std::move(ok.error());
  return p;
}

}  // namespace troupe
