#include "troupe/runtime/compile/compile.hpp"

#include "troupe/devices/files/idx_sampler.hpp"
#include "troupe/runtime/compile/passes/passes.hpp"
#include "troupe/runtime/graph/build.hpp"
#include "troupe/runtime/graph/initializers.hpp"
#include "troupe/runtime/graph/on_device.hpp"
#include "troupe/runtime/graph/op_library.hpp"
#include "troupe/runtime/graph/ops.hpp"
#include "troupe/runtime/layers/clipping.hpp"
#include "troupe/runtime/plan/device_name.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace troupe {
namespace {

constexpr std::uint32_t workers_max = 65'536;  // also the limit of idx_batch's parts
constexpr std::string_view only_task = "/job:client/task:0";

error usage(std::string text) { return error(error_code::usage, std::move(text)); }

result<void> check_options(const compile_options& options) {
  if (options.credits < 1 || options.credits > credits_max)
    return usage(
        fmt::format("credits {}: an edge has 1..{} credits", options.credits, credits_max));
  if (options.precision > precision_kind::f16)
    return usage(fmt::format("there is no precision {}: use f32, bf16 or f16",
                             static_cast<int>(options.precision)));
  if (options.loss_scale)
    if (auto ok = check(*options.loss_scale); !ok) return ok;
  return check_default_device(options.device);
}

// --- training ------------------------------------------------------------------------------------

result<void> check_numbers(const training_spec& s) {
  if (s.workers < 1 || s.workers > workers_max)
    return usage(fmt::format("{} workers: use 1..{}", s.workers, workers_max));
  if (s.shards < 1 || s.shards > workers_max)
    return usage(fmt::format("{} shards: use 1..{}", s.shards, workers_max));
  if (s.steps < 1 || s.steps > (std::uint64_t{1} << 48U))
    return usage(fmt::format("{} steps: use 1..2^48", s.steps));
  if (s.is_recoverable && s.observe_every > 0)
    return usage(
        "a job that is resumed after failures can be observed only at its end: leave observe_every "
        "at 0");
  if (s.update == update_kind::sync && s.observe_every > 0 && s.steps % s.observe_every != 0)
    return usage(fmt::format(
        "observing every {} of {} steps would miss the last version: use a divisor of the steps",
        s.observe_every, s.steps));
  if (s.all_reduce && s.update != update_kind::sync)
    return usage("all-reduce works in synchronous training only");
  if (s.all_reduce && s.has_replicas)
    return usage(
        "with all-reduce every node with workers has a copy of each variable: leave replicas at 0");
  if (!(s.clip_global_norm >= 0) || !std::isfinite(static_cast<float>(s.clip_global_norm)))
    return usage(
        fmt::format("clip global norm {} is not a finite number from 0", s.clip_global_norm));
  if (auto ok = check(s.optimizer); !ok) return ok;
  return check(s.schedule);
}

// Fills in what an embedded program may leave out: everything is in its only task.
result<passes::places> places_of(const training_spec& s) {
  passes::places p{s.task_names, {}, s.worker_task, s.shard_task, s.client_task};
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
    if (auto ok = parse_device(name); !ok)
      return std::move(ok.error().while_doing("name of a task"));
  const auto is_task = [&](std::uint32_t t) { return t < s.tasks; };
  for (const auto t : p.worker_task)
    if (!is_task(t)) return usage(fmt::format("a worker is placed on task {} of {}", t, s.tasks));
  for (const auto t : p.shard_task)
    if (!is_task(t)) return usage(fmt::format("a shard is placed on task {} of {}", t, s.tasks));
  if (!is_task(p.client_task))
    return usage(fmt::format("the client is task {} of {}", p.client_task, s.tasks));
  for (std::uint32_t i = 0; i < p.task_names.size(); ++i) p.roles.emplace_back(p.task_names[i], i);
  if (s.tasks == 1) {  // all of them are here
    p.roles.emplace_back(only_task, 0);
    for (std::uint32_t w = 0; w < s.workers; ++w)
      p.roles.emplace_back(fmt::format("/job:worker/task:{}", w), 0);
    for (std::uint32_t k = 0; k < s.shards; ++k)
      p.roles.emplace_back(fmt::format("/job:ps/task:{}", k), 0);
  }
  return p;
}

void tell(pass_report& report, const graph& g, const value& variable, const value& derivative) {
  const auto& n = g.node(variable.node);
  report.add(n.name, {n.source.file_name(), n.source.line()}, [&] {
    return derivative.is_valid()
               ? fmt::format("is trained: its gradient is '{}'", g.node(derivative.node).name)
               : std::string("is not trained: no gradient flows from the loss to it");
  });
}

// 0, f32, where all of them are finite, and NaN elsewhere: x - x is 0, or NaN.
value zero_if_finite(std::span<const value> all, const source_location& where) {
  value sum;
  for (const auto& x : all) {
    const auto one = on_device(*x.owner, device_of(x), where, [&] {
      const auto zero = reduce_sum(sub(x, x, where), {}, false, where);
      return zero.is_valid() && zero.spec().type != dtype::f32 ? cast(zero, dtype::f32, where)
                                                               : zero;
    });
    sum = sum.is_valid() ? on_device(*x.owner, common_device(sum, one), where,
                                     [&] { return add(sum, one, where); })
                         : one;
  }
  return sum;
}

// Hands gradients on (all roots but the first, which is the loss) only where all of them and the
// loss are finite.
void skip_unless_finite(graph& g, std::vector<value>& roots) {
  const auto where = g.node(roots[0].node).source;
  const auto scope = g.name_scope("skip", where);
  const auto is_finite =
      equal(zero_if_finite(roots, where), constant(g, 0.0F, "zero", where), where);
  for (auto& r : std::span(roots).subspan(1))
    r = g.add(std::string(pass_if_op), std::array{r, is_finite}, {}, pass_if_op, where);
}

// --- the scale of the loss: runtime/plan/precision.hpp

bool is_loss_scale(const graph_node& n) { return n.attrs.has(passes::loss_scale_attribute); }

// What the loss is multiplied by, and the variable that it is of; invalid: it is fixed.
struct loss_scale {
  value scale, variable;
};

// A graph that is compiled once more has its variable.
value loss_scale_variable(graph& g, const loss_scale_spec& s, const source_location& where) {
  for (const auto& v : g.variables())
    if (is_loss_scale(g.node(v.node)) && g.node(v.node).initializer == beginning_with(s.initial) &&
        g.node(v.node).attrs.integer(passes::loss_scale_attribute) ==
            static_cast<std::int64_t>(s.grows_every))
      return v;
  const auto v = variable(g, {dtype::f32, {2}}, beginning_with(s.initial), loss_scale_name, where);
  if (v.is_valid())
    g.node(v.node).attrs.set(std::string(passes::loss_scale_attribute),
                             static_cast<std::int64_t>(s.grows_every));
  return v;
}

loss_scale scale_of(graph& g, const loss_scale_spec& s, const source_location& where) {
  if (!s.is_dynamic) return {constant(g, static_cast<float>(s.initial), "scale", where), {}};
  const auto v = loss_scale_variable(g, s, where);
  if (!v.is_valid()) return {};
  return {reshape(slice(v, {{0, 1}}, where), {}, where), v};
}

// Divides gradients by the scale, and marks all of them, with NaN in every element, where one of
// them or the loss is not finite: shards and sums of all workers' gradients see that without
// another message (shard_spec::leaves_out_marked). `sample`: what moves the scale.
void unscale(graph& g, std::span<const value> loss_and_gradients, std::span<value> gradients,
             const loss_scale& scale, value& sample, const source_location& where) {
  const auto zero = zero_if_finite(loss_and_gradients, where);
  const auto factor = add(reciprocal(scale.scale, where), zero, where);
  for (auto& d : gradients)
    d = on_device(g, device_of(d), where, [&] { return mul(d, factor, where); });
  if (!scale.variable.is_valid() || !zero.is_valid()) return;
  const auto good = cast(equal(zero, constant(g, 0.0F, "zero", where), where), dtype::f32, where);
  sample = broadcast_like(good, scale.variable, where);
}

// The loss, the gradient of every variable that it depends on, the samples of moving averages that
// its steps move, and all these variables.
result<std::vector<value>> training_roots(graph& g, value loss, double clip_global_norm,
                                          const compile_options& options, pass_report* report) {
  auto all = g.variables();
  std::erase_if(all, [&](const value& v) {
    return g.node(v.node).average_rate.has_value() || is_loss_scale(g.node(v.node));
  });
  const auto scaling = loss_scale_of(options.precision, options.loss_scale);
  const auto where = g.has(loss) ? g.node(loss.node).source : source_location::current();
  loss_scale scale;
  auto scaled = loss;
  if (scaling && g.has(loss) && floating.has(loss.spec().type)) {
    scale = scale_of(g, *scaling, where);
    const auto scope = g.name_scope("loss_scale", where);
    if (scale.scale.is_valid())
      scaled = on_device(g, device_of(loss), where, [&] {
        return mul(loss,
                   loss.spec().type == dtype::f32 ? scale.scale
                                                  : cast(scale.scale, loss.spec().type, where),
                   where);
      });
    if (g.first_error()) return *g.first_error();
  }
  const auto derivatives = gradients(g, scaled, all);
  if (g.first_error()) return *g.first_error();
  std::vector<value> roots{loss}, used;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (report != nullptr) tell(*report, g, all[i], derivatives[i]);
    if (!derivatives[i].is_valid()) continue;
    roots.push_back(derivatives[i]);
    used.push_back(all[i]);
  }
  if (used.empty()) {
    const auto& n = g.node(loss.node);
    return usage(
               fmt::format(
                   "no gradient flows from loss '{}' to any variable, so there is nothing to train",
                   n.name))
        .at(n.source);
  }
  value sample;
  if (scaling) {
    const auto scope = g.name_scope("loss_scale", where);
    const auto before = roots;
    unscale(g, before, std::span(roots).subspan(1), scale, sample, where);
    if (g.first_error()) return *g.first_error();
    if (report != nullptr)
      report->add(g.node(loss.node).name, {where.file_name(), where.line()}, [&] {
        return fmt::format("is multiplied by the loss scale, {}, and gradients are divided by it",
                           to_string(*scaling));
      });
  }
  if (clip_global_norm > 0) {
    const auto clipped = clip_by_global_norm(std::span(roots).subspan(1), clip_global_norm,
                                             g.node(loss.node).source);
    if (g.first_error()) return *g.first_error();
    std::copy(clipped.begin(), clipped.end(), roots.begin() + 1);
  }
  const auto is_needed = g.needed_by(std::span(&loss, 1));
  for (const auto& a : g.averages()) {
    const auto has = [&](const value& v) { return v.node < is_needed.size() && is_needed[v.node]; };
    if (!has(a.beside) && !has(a.variable)) continue;
    roots.push_back(a.sample);
    used.push_back(a.variable);
  }
  // With a scale, shards leave out the step of all workers.
  if (options.on_nan == nan_policy::skip && !scaling) {
    skip_unless_finite(g, roots);
    if (g.first_error()) return *g.first_error();
  }
  if (sample.is_valid()) {
    roots.push_back(sample);
    used.push_back(scale.variable);
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
      return usage(fmt::format("the loss depends on variable '{}', but no gradient flows to it",
                               f.ops[i].name))
          .at(f.ops[i].source.file, f.ops[i].source.line);
  return {};
}

// Workers and shards go to nodes as their job needs, also after a loss: a node's name or label does
// not choose among them.
result<void> check_places_by_task(const passes::flow& f) {
  for (const auto& op : f.ops) {
    if (op.device.empty()) continue;
    if (const auto d = parse_device(op.device); d && (d->node || d->label))
      return usage(
                 fmt::format("device '{}' of '{}': in a training write /job:NAME/task:N; names and "
                             "labels of nodes are for graphs that are stepped or run",
                             op.device, op.name))
          .at(op.source.file, op.source.line);
  }
  return {};
}

// --- the beginning of both ways ------------------------------------------------------------------

// Runs a pass with its part of the report, where one is asked for.
class told {
 public:
  explicit told(compile_report* report) : report_(report) {}

  template <class Pass>
  passes::flow flow(const char* name, std::size_t before, Pass&& pass) const {
    return run(name, before, false, std::forward<Pass>(pass),
               [](const auto& f) { return f.ops.size(); });
  }
  template <class Pass>
  result<passes::flow> result_of(const char* name, std::size_t before, Pass&& pass) const {
    return run(name, before, false, std::forward<Pass>(pass),
               [](const auto& f) { return f.ops.size(); });
  }
  template <class Pass>
  auto actors(const char* name, std::size_t before, Pass&& pass) const {
    return run(name, before, true, std::forward<Pass>(pass),
               [](const auto& d) { return d.actors.size(); });
  }

 private:
  template <class T>
  static const T* value_of(const result<T>& r) {
    return r ? &*r : nullptr;
  }
  template <class T>
  static const T* value_of(const T& v) {
    return &v;
  }

  template <class Pass, class Size>
  auto run(const char* name, std::size_t before, bool counts_actors, Pass&& pass,
           Size&& size) const {
    auto* part = report_ != nullptr ? &report_->begin(name, before, counts_actors) : nullptr;
    auto out = pass(part);
    if (const auto* made = value_of(out); made != nullptr && part != nullptr)
      part->after = size(*made);
    return out;
  }

  compile_report* report_;
};

// `feeds`: by the names of the last roots, which are fed.
passes::flow simplified(const graph& g, std::span<const value> roots,
                        const compile_options& options, const told& t,
                        std::span<const std::string> feeds = {}) {
  auto f =
      t.flow("prune", g.nodes().size(), [&](pass_report* r) { return passes::prune(g, roots, r); });
  if (!feeds.empty())
    f = t.flow("feed", f.ops.size(),
               [&](pass_report* r) { return passes::feed(std::move(f), feeds, r); });
  if (options.fold)
    f = t.flow("fold", f.ops.size(),
               [&](pass_report* r) { return passes::fold(std::move(f), g.ops(), r); });
  if (options.simplify)
    f = t.flow("simplify", f.ops.size(),
               [&](pass_report* r) { return passes::simplify(std::move(f), r); });
  if (options.precision != precision_kind::f32)
    f = t.flow("mixed_precision", f.ops.size(), [&](pass_report* r) {
      return passes::mixed_precision(std::move(f), half_of(options.precision), r);
    });
  if (options.fast)
    f = t.flow("fast", f.ops.size(), [&](pass_report* r) { return passes::fast(std::move(f), r); });
  if (options.share)
    f = t.flow("share", f.ops.size(),
               [&](pass_report* r) { return passes::share(std::move(f), r); });
  return f;
}

result<passes::flow> with_devices(passes::flow f, const op_table& ops,
                                  const compile_options& options, const told& t) {
  if (!options.device.empty()) {
    const auto own = *parse_device(options.device);
    for (auto& op : f.ops)
      op.device =
          to_string(own.refined_by(op.device.empty() ? device_name{} : *parse_device(op.device)));
  }
  if (std::none_of(f.ops.begin(), f.ops.end(),
                   [](const auto& op) { return op.device.find("/gpu:") != std::string::npos; }))
    return f;
  return t.result_of("devices", f.ops.size(), [&](pass_report* r) {
    return passes::devices(std::move(f), ops, options.soft_placement, r);
  });
}

// --- the end of both ways ------------------------------------------------------------------------

// `steps_in_flight`: of one stream's ops.
result<plan> finish(passes::draft d, passes::places where, const epoch_start& start,
                    const compile_options& options, const op_table& ops,
                    std::uint32_t steps_in_flight, bool all_reduce, bool is_stepped,
                    compile_report* report) {
  const told t(report);
  auto* reasons = report != nullptr ? &report->placements : nullptr;
  auto placed = t.actors("place", d.actors.size(), [&](pass_report* r) {
    return passes::place(std::move(d), where, r, reasons);
  });
  if (!placed) return std::move(placed.error());
  d = std::move(*placed);
  if (options.where && is_stepped) passes::leave_out_idle_tasks(d, where);
  if (options.spread && std::ranges::any_of(where.streams, [](auto n) { return n > 1; }))
    d = t.actors("spread", d.actors.size(), [&](pass_report* r) {
      return passes::spread(std::move(d), where, ops, options.times.get(), r, reasons);
    });
  d = t.actors("begin", d.actors.size(),
               [&](pass_report* r) { return passes::begin(std::move(d), start, where, r); });
  if (passes::calls_collectives(d))
    d = t.actors("collectives", d.actors.size(), [&](pass_report* r) {
      return passes::collectives(std::move(d), options.fast, r, reasons);
    });
  if (all_reduce)
    d = t.actors("all_reduce", d.actors.size(), [&](pass_report* r) {
      return passes::all_reduce(std::move(d), start, where, options, r);
    });
  if (all_reduce && options.order_pushes)
    d = t.actors("order_pushes", d.actors.size(),
                 [&](pass_report* r) { return passes::order_pushes(std::move(d), r, reasons); });
  if (options.order_reads)
    d = t.actors("order_reads", d.actors.size(), [&](pass_report* r) {
      return passes::order_reads(std::move(d), ops, r, reasons);
    });
  const bool has_devices = std::any_of(d.actors.begin(), d.actors.end(), [](const auto& a) {
    return is_device_stream(a.planned.stream);
  });
  if (has_devices)
    d = t.actors("copies", d.actors.size(),
                 [&](pass_report* r) { return passes::copies(std::move(d), r, reasons); });
  d = t.actors("partition", d.actors.size(),
               [&](pass_report* r) { return passes::partition(std::move(d), r); });
  if (has_devices)
    d = t.actors("segments", d.actors.size(), [&](pass_report* r) {
      return passes::segments(std::move(d), options.fuse, r, reasons);
    });
  auto p = t.actors("credits", d.actors.size(), [&](pass_report* r) {
    return passes::connect(std::move(d), options.credits, options.edge_bytes, r);
  });
  if (options.share_memory)
    p = t.actors("share_memory", p.actors.size(), [&](pass_report* r) {
      return passes::share_memory(std::move(p), ops, steps_in_flight, r);
    });
  p.name = options.name;
  p.on_nan = options.on_nan;
  for (std::uint32_t i = 0; i < where.task_names.size(); ++i)
    p.tasks.push_back({.name = where.task_names[i],
                       .is_client = i == where.client_task,
                       .node = i < where.nodes_of.size() ? where.nodes_of[i].id : node_id{}});
  return p;
}

std::vector<planned_library> libraries_of(const passes::draft& d, const op_table& ops) {
  std::vector<std::string_view> types;
  for (const auto& a : d.actors)
    for (const auto& op : a.planned.ops) types.push_back(op.type);
  return troupe::libraries_of(types, ops);
}

// --- devices

// The role that a wish with a job or task leads to, as find_task() does where every role has a node
// of its own.
void add_wish(device_wishes& all, const device_name& d, passes::owner_kind owner,
              std::uint32_t index, device_wish w) {
  const auto admits = [&](std::string_view job, std::uint32_t task) {
    return (!d.job || *d.job == job) && (!d.task || *d.task == task);
  };
  const auto first_of = [&](std::string_view job,
                            const std::vector<device_wish>& of) -> std::optional<std::size_t> {
    const auto task = d.task.value_or(0);
    return task < of.size() && admits(job, task) ? std::optional<std::size_t>(task) : std::nullopt;
  };
  const bool is_workers = owner == passes::owner_kind::worker;
  auto* of = is_workers ? &all.workers : &all.shards;
  std::optional<std::size_t> at = index;
  if (!admits(is_workers ? "worker" : "ps", index)) {
    of = &all.workers;
    at = first_of("worker", all.workers);
    if (!at) of = &all.shards, at = first_of("ps", all.shards);
  }
  if (at && w.devices > (*of)[*at].devices) (*of)[*at] = std::move(w);
}

device_wishes wishes_of(const passes::draft& d, const training_spec& spec) {
  device_wishes all{std::vector<device_wish>(spec.workers), std::vector<device_wish>(spec.shards)};
  bool has_some = false;
  std::string last;  // most wishes are those of their neighbours
  device_name wish;
  for (const auto& a : d.actors) {
    const bool is_shard = a.planned.kind == actor_kind::shard;
    if (a.device.empty() || !(is_shard || a.planned.kind == actor_kind::op)) continue;
    if (a.device != last) wish = *parse_device(last = a.device);
    if (!wish.gpu) continue;
    has_some = true;
    add_wish(all, wish, a.owner, a.index,
             {*wish.gpu + 1, is_shard ? a.planned.shard.variable : a.planned.ops.front().name,
              a.planned.source});
  }
  return has_some ? all : device_wishes{};
}

// --- fingerprint ---------------------------------------------------------------------------------

void describe(std::string& out, const planned_op& op) {
  out += fmt::format("{} {}(", op.type, op.name);
  for (const auto o : op.operands) out += fmt::format("{} ", o);
  for (const auto& [name, value] : op.attrs.entries()) {
    // How data are batched and where they lie is told apart, by the job's schedule.
    if (is_reader(op.attrs) && (name == "path" || name == "part" || name == "parts" ||
                                name == "batch" || name == "global_scale"))
      continue;
    out += name + "=";
    if (const auto* list = std::get_if<std::vector<std::int64_t>>(&value))
      out += fmt::format("{};", fmt::join(*list, ","));
    else if (const auto* data = std::get_if<shared_bytes>(&value))
      out += fmt::format("{:016x};", XXH3_64bits(data->view().data(), data->view().size()));
    else
      std::visit(
          [&](const auto& v) {
            if constexpr (fmt::is_formattable<std::decay_t<decltype(v)>>::value)
              out += fmt::format("{};", v);
          },
          value);
  }
  out += ")";
}

// One worker's copy stands for all.
std::string fingerprint_of(const passes::draft& d) {
  std::string out;
  for (const auto& a : d.actors) {
    if (a.owner == passes::owner_kind::worker && a.index != 0) continue;
    if (a.owner == passes::owner_kind::client) continue;
    for (const auto& op : a.planned.ops) describe(out, op);
    if (const auto& s = a.planned.shard; a.planned.kind == actor_kind::shard)
      out += fmt::format("variable {} {} {}:{}", s.variable, to_string(s.spec),
                         static_cast<int>(s.initializer.type), s.initializer.limit);
    if (const auto& s = a.planned.shard; s.average)
      out += fmt::format(" average {}", s.average->rate);
    if (const auto& s = a.planned.shard; s.loss_scale)
      out += fmt::format(" loss scale {}", s.loss_scale->grows_every);
    out += "\n";
  }
  return out;
}

std::vector<std::pair<std::string, std::string>> schedule_of(const passes::draft& d,
                                                             const training_spec& spec,
                                                             const compile_options& options,
                                                             const std::string& print) {
  std::vector<std::pair<std::string, std::string>> out{
      {"graph", fmt::format("{:016x}", XXH3_64bits(print.data(), print.size()))},
      {"update", spec.update == update_kind::sync ? "sync" : "async"},
      {"workers", fmt::format("{}", spec.workers)},
      {"seed", fmt::format("{}", spec.seed)}};
  for (auto& number : numbers_of(spec.optimizer, spec.schedule)) out.push_back(std::move(number));
  // Where there is none, as checkpoints of earlier versions say.
  if (options.precision != precision_kind::f32)
    out.emplace_back("precision", to_string(options.precision));
  if (const auto scaling = loss_scale_of(options.precision, options.loss_scale))
    out.emplace_back("loss_scale", to_string(*scaling));
  for (const auto& a : d.actors)
    for (const auto& op : a.planned.ops)
      if (is_reader(op.attrs) && a.index == 0) {
        out.emplace_back("batch", fmt::format("{}", op.attrs.integer("batch")));
        out.emplace_back("samples", fmt::format("{}", op.attrs.integer("samples")));
      }
  return out;
}

// Of the first reader.
std::uint64_t steps_per_epoch_of(const passes::draft& d, std::uint32_t workers) {
  for (const auto& a : d.actors)
    for (const auto& op : a.planned.ops)
      if (op.type == "idx_batch" || op.type == "index_batch")
        return idx_schedule{static_cast<std::uint64_t>(op.attrs.integer("samples")),
                            static_cast<std::uint64_t>(op.attrs.integer("batch", 1)), workers, 0}
            .steps_per_epoch();
  return 0;
}

}  // namespace

struct training_program::parts {
  training_spec spec;
  compile_options options;
  passes::flow flow;  // of one worker, for with_steps()
  passes::places places;
  passes::draft draft;  // fused, not placed
  std::string fingerprint;
  std::vector<std::pair<std::string, std::string>> schedule;
  std::uint64_t steps_per_epoch = 0;
  std::vector<planned_library> libraries;
  device_wishes devices;
  op_table ops;  // as they were
};

const training_spec& training_program::spec() const noexcept { return parts_->spec; }
const std::string& training_program::name() const noexcept { return parts_->options.name; }
const std::string& training_program::fingerprint() const noexcept { return parts_->fingerprint; }
const std::vector<std::pair<std::string, std::string>>& training_program::schedule()
    const noexcept {
  return parts_->schedule;
}
std::uint64_t training_program::steps_per_epoch() const noexcept { return parts_->steps_per_epoch; }
const std::vector<planned_library>& training_program::libraries() const noexcept {
  return parts_->libraries;
}
const device_wishes& training_program::devices() const noexcept { return parts_->devices; }

std::vector<std::pair<std::string, tensor_spec>> training_program::variables() const {
  std::vector<std::pair<std::string, tensor_spec>> out;
  for (const auto& a : parts_->draft.actors)
    if (a.planned.kind == actor_kind::shard)
      out.emplace_back(a.planned.shard.variable, a.planned.shard.spec);
  return out;
}

std::vector<std::pair<std::string, source_line>> training_program::inputs() const {
  std::vector<std::pair<std::string, source_line>> out;
  for (const auto& a : parts_->draft.actors)
    if (a.planned.kind == actor_kind::feed) out.emplace_back(a.planned.name, a.planned.source);
  return out;
}

std::vector<std::uint32_t> training_program::shard_of_variables() const {
  std::vector<std::uint32_t> out;
  for (const auto& a : parts_->draft.actors)
    if (a.planned.kind == actor_kind::shard) out.push_back(a.planned.shard.shard);
  return out;
}

result<void> training_program::check_wishes(const task_map& where) const {
  return passes::check_wishes(parts_->draft, where);
}

result<plan> training_program::place(const task_map& where, const epoch_start& start,
                                     compile_report* report) const {
  const auto& spec = parts_->spec;
  expects(where.worker_task.size() == spec.workers && where.shard_task.size() == spec.shards,
          "every worker and shard has a place");
  auto p = finish(parts_->draft, where, start, parts_->options, parts_->ops, 1, spec.all_reduce,
                  false, report);
  if (!p) return p;
  p->seed = spec.seed;
  p->update = spec.update;
  p->workers = spec.workers;
  p->shards = spec.shards;
  p->libraries = parts_->libraries;
  if (auto ok = check(*p); !ok) return std::move(ok.error());
  return p;
}

result<void> check(const training_spec& s) { return check_numbers(s); }

result<void> check_default_device(std::string_view device) {
  if (device.empty()) return {};
  const auto wish = parse_device(device);
  if (!wish) return wish.error();
  if (wish->names_a_place())
    return usage(fmt::format(
        "device '{}', for ops without a device of their own: leave out job, task, node and label, "
        "which the op's worker determines",
        device));
  return {};
}

namespace {

// From one worker's flow to actors without places: what depends on the numbers of `spec`.
result<training_program::parts> assemble(passes::flow f, const training_spec& spec,
                                         const passes::places& where,
                                         const compile_options& options, const op_table& ops,
                                         const told& t) {
  auto d = t.actors("replicate", f.ops.size(),
                    [&](pass_report* r) { return passes::replicate(f, spec, where, r); });
  if (!d) return std::move(d.error());
  for (auto& a : d->actors)
    if (a.planned.kind == actor_kind::shard &&
        loss_scale_of(options.precision, options.loss_scale)) {
      // The host looks at gradients for marks.
      a.planned.shard.leaves_out_marked = true;
      if (a.device.empty()) continue;
      auto wish = *parse_device(a.device);
      wish.gpu.reset();
      a.device = to_string(wish);
    }
  auto print = fingerprint_of(*d);
  auto schedule = schedule_of(*d, spec, options, print);
  const auto epoch = steps_per_epoch_of(*d, spec.workers);
  auto libraries = libraries_of(*d, ops);
  auto devices = wishes_of(*d, spec);
  if (options.fuse)
    *d = t.actors("fuse", d->actors.size(),
                  [&](pass_report* r) { return passes::fuse(std::move(*d), ops, r); });
  auto kept = options;
  kept.report = nullptr;  // it is of this call
  return training_program::parts{spec,
                                 std::move(kept),
                                 std::move(f),
                                 where,
                                 std::move(*d),
                                 std::move(print),
                                 std::move(schedule),
                                 epoch,
                                 std::move(libraries),
                                 std::move(devices),
                                 ops};
}

}  // namespace

result<training_program> training_program::with_steps(std::uint64_t steps) const {
  auto spec = parts_->spec;
  spec.steps = steps;
  if (auto ok = check(spec); !ok) return std::move(ok.error());
  auto all =
      assemble(parts_->flow, spec, parts_->places, parts_->options, parts_->ops, told(nullptr));
  if (!all) return std::move(all.error());
  return training_program(std::make_shared<const parts>(std::move(*all)));
}

result<training_program> compile_program(graph& g, value loss, const training_spec& spec,
                                         const compile_options& options) {
  if (g.first_error()) return *g.first_error();
  if (auto ok = check_options(options); !ok) return std::move(ok.error());
  if (auto ok = check(spec); !ok) return std::move(ok.error());
  if (spec.all_reduce && options.on_nan == nan_policy::skip &&
      !loss_scale_of(options.precision, options.loss_scale))
    return usage(
        "on_nan 'skip' leaves gradients out, which all-reduce cannot do: use shards (--update "
        "sync), or 'stop' or 'warn'");
  const auto where = places_of(spec);
  if (!where) return where.error();
  const auto scaling = loss_scale_of(options.precision, options.loss_scale);
  if (scaling && options.on_nan == nan_policy::stop)
    return usage(
        "on_nan 'stop' ends a training at the first number that is not finite, but with a loss "
        "scale such numbers are expected and training goes on: use 'ignore', 'warn' or 'skip', or "
        "no loss scale");
  const told t(options.report);
  auto* first =
      options.report != nullptr ? &options.report->begin("gradients", g.nodes().size()) : nullptr;
  const auto roots = training_roots(g, loss, spec.clip_global_norm, options, first);
  if (!roots) return roots.error();
  if (first != nullptr) first->after = g.nodes().size();
  auto f = simplified(g, *roots, options, t);
  if (options.sparse_pushes && !spec.all_reduce)
    f = t.flow("pack_pushes", f.ops.size(),
               [&](pass_report* r) { return passes::pack_pushes(std::move(f), r); });
  if (auto ok = check_all_trained(f); !ok) return std::move(ok.error());
  if (auto ok = passes::check_collectives(f, &spec); !ok) return std::move(ok.error());
  if (auto ok = check_places_by_task(f); !ok) return std::move(ok.error());
  auto on_devices = with_devices(std::move(f), g.ops(), options, t);
  if (!on_devices) return std::move(on_devices.error());
  auto all = assemble(std::move(*on_devices), spec, *where, options, g.ops(), t);
  if (!all) return std::move(all.error());
  return training_program(std::make_shared<const training_program::parts>(std::move(*all)));
}

result<plan> compile_training(graph& g, value loss, const training_spec& spec,
                              const compile_options& options) {
  auto program = compile_program(g, loss, spec, options);
  if (!program) return std::move(program.error());
  auto where = *places_of(spec);
  if (where.task_names.size() == 1) where.streams = {std::max(1U, options.streams)};
  return program->place(where, {}, options.report);
}

namespace {

// What can be wrong with what is fed and fetched, before anything is made of it.
result<void> check_asked(const graph& g, std::span<const value> fetches,
                         std::span<const value> feeds, const compile_options& options) {
  if (g.first_error()) return *g.first_error();
  if (auto ok = check_options(options); !ok) return ok;
  if (fetches.empty()) return usage("nothing is fetched, so there is nothing to compute");
  if (options.on_nan > nan_policy::stop)
    return usage(fmt::format(
        "on_nan '{}' is for training only: a graph that is run by feeds and fetches takes 'ignore' "
        "or 'stop'",
        to_string(options.on_nan)));
  for (const auto& v : fetches)
    if (!g.has(v))
      return usage("a fetched value is not of this graph");
    else if (const auto place = g.regions().place_of(v); !place.empty())
      return usage(
                 fmt::format("'{}' is made in a {} and fetched outside of it: return it from there",
                             feed_name(g, v), place))
          .at(g.node(v.node).source);
  std::set<std::pair<std::uint32_t, std::uint32_t>> fed;
  for (const auto& v : feeds) {
    if (!g.has(v)) return usage("a fed value is not of this graph");
    const auto& n = g.node(v.node);
    if (!g.regions().place_of(v).empty())
      return usage(fmt::format("'{}' lies in a branch or loop, where nothing can be fed",
                               feed_name(g, v)))
          .at(n.source);
    if (!fed.emplace(v.node, v.output).second)
      return usage(fmt::format("'{}' is fed twice", feed_name(g, v))).at(n.source);
  }
  return {};
}

result<void> check_all_fed(const passes::flow& f, std::span<const std::string> fed,
                           unfed_variables rest) {
  const std::set<std::string_view> names(fed.begin(), fed.end());
  for (const auto& op : f.ops)
    if ((op.type == "input" || (op.type == "variable" && rest == unfed_variables::refused)) &&
        !names.contains(op.name))
      return usage(fmt::format(
                       "a fetched value depends on {} '{}', which is not fed{}", op.type, op.name,
                       op.type == "variable" ? ": feed it, or run the graph on a store that has it"
                                             : ""))
          .at(op.source.file, op.source.line);
  return {};
}

// `feeds`: none, if they are the inputs and variables that it takes.
result<plan> compile_asked(const graph& g, std::span<const value> fetches,
                           const std::optional<std::span<const value>>& feeds,
                           const compile_options& options, unfed_variables rest) {
  const auto fed = feeds.value_or(std::span<const value>());
  if (auto ok = check_asked(g, fetches, fed, options); !ok) return std::move(ok.error());
  const told t(options.report);
  std::vector<value> roots(fetches.begin(), fetches.end());
  roots.insert(roots.end(), fed.begin(), fed.end());
  std::vector<std::string> names;
  for (const auto& v : fed) names.push_back(feed_name(g, v));
  auto on_devices = with_devices(simplified(g, roots, options, t, names), g.ops(), options, t);
  if (!on_devices) return std::move(on_devices.error());
  const auto f = std::move(*on_devices);
  if (feeds)
    if (auto ok = check_all_fed(f, names, rest); !ok) return std::move(ok.error());
  if (auto ok = passes::check_collectives(f, nullptr); !ok) return std::move(ok.error());
  auto d = t.actors("lower", f.ops.size(), [&](pass_report*) { return passes::lower(f); });
  auto libraries = libraries_of(d, g.ops());
  if (options.fuse)
    d = t.actors("fuse", d.actors.size(),
                 [&](pass_report* r) { return passes::fuse(std::move(d), g.ops(), r); });
  passes::places here{{std::string(only_task)}, {{std::string(only_task), 0}}, {0}, {0}, 0};
  here.streams = {std::max(1U, options.streams)};
  if (options.where) {
    here = *options.where;
    here.worker_task = here.shard_task = {here.client_task};  // what wishes for no place
  }
  epoch_start start;
  if (options.first_step > 0) start.worker_steps = {options.first_step};
  auto p = finish(std::move(d), std::move(here), start, options, g.ops(), options.credits, false,
                  true, options.report);
  if (!p) return p;
  p->libraries = std::move(libraries);
  if (auto ok = check(*p); !ok) return std::move(ok.error());
  return p;
}

}  // namespace

std::string feed_name(const graph& g, const value& v) {
  const auto& name = g.node(v.node).name;
  return v.output == 0 ? name : fmt::format("{}:{}", name, v.output);
}

result<plan> compile_steps(const graph& g, std::span<const value> fetches,
                           const compile_options& options) {
  return compile_asked(g, fetches, std::nullopt, options, unfed_variables::fed);
}

result<plan> compile_steps(const graph& g, std::span<const value> fetches,
                           std::span<const value> feeds, const compile_options& options,
                           unfed_variables rest) {
  return compile_asked(g, fetches, feeds, options, rest);
}

}  // namespace troupe
