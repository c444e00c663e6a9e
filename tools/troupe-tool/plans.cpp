#include "tools/troupe-tool/plans.hpp"

#include "tools/troupe-tool/plan_places.hpp"
#include "troupe/runtime/compile/explain.hpp"
#include "troupe/runtime/compile/graph_file.hpp"
#include "troupe/runtime/text/printable.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

namespace troupe {

namespace {

outcome usage(std::string text) { return answer_error(error(error_code::usage, std::move(text))); }

// Whatever the error's code: it is the answer.
outcome does_not_compile(const error& e) {
  auto o = answer_error(e);
  o.exit_code = static_cast<int>(error_code::failed);
  return o;
}

outcome show(const command& c, const explained_plan& e) {
  outcome o;
  if (c.json) {
    o.out = explain_json(e) + "\n";
  } else if (c.format == graph_format::text) {
    o.out = explain(e);
  } else {
    const auto p = picture_of(e);
    o.out = c.format == graph_format::svg ? draw_svg({&p, 1}, "") : draw_dot({&p, 1});
  }
  return o;
}

outcome plan_a_training(const command& c, saved_graph& g) {
  auto how = g.use.training.value_or(graph_training{});
  how.options.name = g.use.name;
  how.options.fuse = c.plan.fuse.value_or(how.options.fuse);
  auto& spec = how.spec;
  spec.workers = c.plan.workers.value_or(spec.workers);
  spec.shards = c.plan.shards.value_or(spec.shards);
  spec.update = c.plan.update.value_or(spec.update);
  if (c.plan.update) spec.all_reduce = c.plan.all_reduce;
  if (spec.all_reduce) spec.has_replicas = false;
  if (spec.update == update_kind::async) spec.observe_every = 0;
  // Of whoever wrote the file, and before anything is made of them.
  const auto actors_max = plan_actors_max, ops = g.graph->nodes().size();
  if (spec.workers > actors_max / std::max<std::size_t>(ops, 1))
    return does_not_compile(error(
        error_code::usage,
        fmt::format(
            "plan: {} workers with {} ops each are more actors than the {} of a plan: give fewer --workers",
            spec.workers, ops, actors_max)));
  const auto where = places_on(c.plan.nodes, spec);
  if (!where) return usage("plan: " + where.error().message());
  const auto made = plan_training(*g.graph, *g.use.loss, spec, how.options, &*where);
  return made ? show(c, *made) : does_not_compile(made.error());
}

outcome plan_some_steps(const command& c, saved_graph& g) {
  if (c.plan.is_training())
    return usage(fmt::format(
        "plan: {} has no loss to train, so that --workers, --shards, --nodes and --update mean nothing for it",
        shown(c.id)));
  std::vector<value> fetches;
  for (const auto& f : g.use.fetches) fetches.push_back(f.at);
  compile_options options{.name = g.use.name};
  options.fuse = c.plan.fuse.value_or(true);
  const auto made = plan_steps(*g.graph, fetches, options);
  return made ? show(c, *made) : does_not_compile(made.error());
}

}  // namespace

outcome answer_plan(const command& c, disk& d, const op_table& ops) {
  auto g = load_graph(d, c.id, ops);
  if (!g) return answer_error(g.error());
  return g->use.loss ? plan_a_training(c, *g) : plan_some_steps(c, *g);
}

}  // namespace troupe
