#include "troupe/runtime/compile/explain.hpp"

#include "troupe/runtime/analysis/memory_budget.hpp"
#include "troupe/runtime/plan/loop_rules.hpp"
#include "troupe/runtime/plan/segment.hpp"
#include "troupe/runtime/text/byte_size.hpp"
#include "troupe/runtime/text/json_line.hpp"
#include "troupe/runtime/text/printable.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace troupe {

namespace {

// Of a list of the text.
constexpr std::size_t changes_max = 6, actors_max = 60, edges_max = 24, largest_max = 10;
constexpr std::size_t name_width_max = 64;

std::string plural(std::size_t n, std::string_view what) {
  return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s");
}

std::string text_of(const source_line& s) {
  return s.file.empty() ? std::string() : fmt::format("{}:{}", s.file, s.line);
}

// "..., of which so many are not shown".
std::string rest(std::size_t all, std::size_t shown, std::string_view indent) {
  return all > shown ? fmt::format("{}... and {} more\n", indent, all - shown) : std::string();
}

const planned_actor& producer(const plan& p, const planned_actor& a) {
  return p.actors[p.edges[a.inputs[0]].from.actor];
}

const planned_actor* consumer(const plan& p, const planned_actor& a) {
  return a.outputs.empty() || a.outputs[0].empty() ? nullptr
                                                   : &p.actors[p.edges[a.outputs[0][0]].to.actor];
}

// Why actor i is on its task.
std::string why(const explained_plan& e, std::size_t i) {
  const auto& a = e.plan.actors[i];
  if (a.kind == actor_kind::send) return "with its producer";
  if (a.kind == actor_kind::copy)
    return fmt::format("its stream makes the {}", a.copy == copy_kind::out ? "copy to the host"
                                                  : a.copy == copy_kind::in
                                                      ? "copy from the host"
                                                      : "copy from another device");
  if (a.kind == actor_kind::receive) {
    const auto* reader = consumer(e.plan, a);
    return reader == nullptr ? "where it is read"
                             : fmt::format("with its reader '{}'", reader->name);
  }
  if (i >= e.report.placements.size())
    return a.kind == actor_kind::shard ? "on another node than its shard, whose copy it is"
                                       : "where its variable is kept";
  const auto& r = e.report.placements[i];
  using kind = placement_reason::kind;
  const auto own = r.owner == kind::worker  ? fmt::format("with worker {}", r.index)
                   : r.owner == kind::shard ? fmt::format("with shard {}", r.index)
                                            : std::string("with the program");
  if (r.wish.empty()) return r.spread.empty() ? own : fmt::format("{}; {}", own, r.spread);
  return r.is_by_wish ? fmt::format("its device '{}' is there, and not {}", r.wish, own)
                      : fmt::format("{}, where its device '{}' may be", own, r.wish);
}

std::string kind_text(const planned_actor& a) {
  if (a.kind != actor_kind::op) return a.shard.follows ? "replica" : std::string(to_string(a.kind));
  return a.ops.size() == 1 ? "op" : fmt::format("{} ops", a.ops.size());
}

std::uint64_t tensor_bytes(const plan& p) {
  std::uint64_t sum = 0;
  for (const auto& a : p.actors)
    if (a.kind != actor_kind::send && !a.forwards_input)
      for (const auto& s : a.output_specs) sum += s.size_bytes();
  return sum;
}

// Actors by what they need, the largest first; those that need nothing are left out.
std::vector<std::pair<std::uint64_t, std::size_t>> by_memory(const plan& p) {
  std::vector<std::pair<std::uint64_t, std::size_t>> all;
  const auto needs = memory_by_actor(p);
  for (std::size_t i = 0; i < p.actors.size(); ++i)
    if (needs[i] > 0) all.emplace_back(needs[i], i);
  std::stable_sort(all.begin(), all.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  return all;
}

// --- text

std::string head(const explained_plan& e) {
  const auto& p = e.plan;
  const auto sizes = fmt::format("{} in {}, {}", plural(p.actors.size(), "actor"),
                                 plural(p.tasks.size(), "task"), plural(p.edges.size(), "edge"));
  if (p.workers == 0) return fmt::format("{}: steps with feeds and fetches; {}\n", p.name, sizes);
  std::string optimizer;
  std::uint64_t steps = 0;
  for (const auto& a : p.actors)
    if (a.kind == actor_kind::shard)
      optimizer = a.shard.optimizer.type, steps = a.shard.steps.empty() ? 0 : a.shard.steps[0];
  return fmt::format("{}: trains, {}, {} steps of {} with {}, {}; {}\n", p.name,
                     p.update == update_kind::sync ? "synchronously" : "asynchronously", steps,
                     plural(p.workers, "worker"), plural(p.shards, "shard"), optimizer, sizes);
}

std::string passes_text(const compile_report& r) {
  std::string out = "\npasses\n";
  bool counted_actors = false;
  for (const auto& pass : r.passes) {
    const bool makes_actors =
        pass.counts_actors && !std::exchange(counted_actors, pass.counts_actors);
    out +=
        fmt::format("  {:<12} {:>6}{} -> {:>6} {}\n", pass.pass, pass.before,
                    makes_actors ? " ops" : "", pass.after, pass.counts_actors ? "actors" : "ops");
    const auto shown = std::min(changes_max, pass.changes.size());
    for (std::size_t i = 0; i < shown; ++i)
      out += fmt::format("      {}\n", pass.changes[i].text());
    out += rest(pass.changes.size() + pass.more, shown, "      ");
  }
  return out;
}

std::vector<std::string> device_names_of(const plan& p, std::uint32_t task) {
  std::vector<std::string> out;
  for (const auto d : devices_of(p, task)) out.push_back(stream_text(device_stream_of(d)));
  return out;
}

std::string actors_text(const explained_plan& e) {
  const auto& p = e.plan;
  std::string out = "\nwhere actors are, and why\n";
  std::vector<std::vector<std::size_t>> of_task(p.tasks.size());
  for (std::size_t i = 0; i < p.actors.size(); ++i) of_task[p.actors[i].task].push_back(i);
  for (std::size_t t = 0; t < p.tasks.size(); ++t) {
    const auto& all = of_task[t];
    const auto shown = std::min(actors_max, all.size());
    std::size_t width = 0;
    for (std::size_t k = 0; k < shown; ++k)
      width = std::max(width, std::min(name_width_max, characters(p.actors[all[k]].name)));
    const auto devices = device_names_of(p, static_cast<std::uint32_t>(t));
    out += fmt::format(
        "  {}{}: {}{}\n", p.tasks[t].name, p.tasks[t].is_client ? " (the program)" : "",
        plural(all.size(), "actor"),
        devices.empty() ? "" : fmt::format("; its node needs {}", fmt::join(devices, ", ")));
    for (std::size_t k = 0; k < shown; ++k) {
      const auto& a = p.actors[all[k]];
      const auto line = text_of(a.source);
      out += fmt::format("    {:<{}}  {:<8} {}, {}{}\n", shorten(a.name, name_width_max), width,
                         kind_text(a), stream_text(a.stream), why(e, all[k]),
                         line.empty() ? "" : " (" + line + ")");
    }
    out += rest(all.size(), shown, "    ");
  }
  return out;
}

// Bounds by actors (memory_budget.hpp).
std::string memory_text(const plan& p) {
  std::string out =
      "\nmemory, at the bounds of shapes: buffers that ops share or have to themselves, variables, what their optimizer keeps\n";
  for (std::uint32_t t = 0; t < p.tasks.size(); ++t) {
    const auto need = memory_of_part(p, t);
    out += fmt::format("  {:<28} {:>10}{}\n", p.tasks[t].name, format_bytes(need.bytes),
                       need.largest.empty() ? ""
                                            : fmt::format(", of which {} for '{}'",
                                                          format_bytes(need.largest.front().bytes),
                                                          need.largest.front().actor));
  }
  std::uint64_t shared = 0;
  for (const auto& b : p.buffers) shared += b.bytes * p.steps_in_flight;
  out += fmt::format("  {:<28} {:>10} in {} for {}\n", "shared by ops, of all this",
                     format_bytes(shared), plural(p.buffers.size() * p.steps_in_flight, "buffer"),
                     plural(p.steps_in_flight, "step") + " in flight");
  out += fmt::format("  {:<28} {:>10}\n  largest:\n", "all tensors, once",
                     format_bytes(tensor_bytes(p)));
  const auto all = by_memory(p);
  const auto shown = std::min(largest_max, all.size());
  for (std::size_t k = 0; k < shown; ++k)
    out += fmt::format("    {:>10}  {}  {}\n", format_bytes(all[k].first),
                       p.actors[all[k].second].name, kind_text(p.actors[all[k].second]));
  return out + rest(all.size(), shown, "    ");
}

std::string credits_text(const plan& p) {
  std::map<std::uint32_t, std::size_t> counts;
  for (const auto& e : p.edges) ++counts[e.credits];
  std::string out = "\ncredits\n";
  for (const auto& [credits, edges] : counts)
    out += fmt::format("  {} with {}\n", plural(edges, "edge"), plural(credits, "credit"));
  return out;
}

std::string crossings_text(const plan& p) {
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<const planned_edge*>> between;
  std::size_t crossings = 0;
  for (const auto& e : p.edges) {
    const auto from = p.actors[e.from.actor].task, to = p.actors[e.to.actor].task;
    if (from != to) between[{from, to}].push_back(&e), ++crossings;
  }
  if (crossings == 0) return "\nno edge joins two tasks\n";
  std::string out = "\nedges between tasks\n";
  std::size_t left = edges_max;
  for (auto& [tasks, edges] : between) {
    std::stable_sort(edges.begin(), edges.end(), [](const auto* a, const auto* b) {
      return a->spec.size_bytes() > b->spec.size_bytes();
    });
    std::uint64_t bytes = 0;
    for (const auto* e : edges) bytes += e->spec.size_bytes();
    out +=
        fmt::format("  {} to {}: {}, {} if each has an item\n", p.tasks[tasks.first].name,
                    p.tasks[tasks.second].name, plural(edges.size(), "edge"), format_bytes(bytes));
    const auto shown = std::min(left, edges.size());
    left -= shown;
    for (std::size_t k = 0; k < shown; ++k)
      out += fmt::format("    {:>10}  {}  {}, {}\n", format_bytes(edges[k]->spec.size_bytes()),
                         producer(p, p.actors[edges[k]->from.actor]).name,
                         to_string(edges[k]->spec), plural(edges[k]->credits, "credit"));
    out += rest(edges.size(), shown, "    ");
  }
  return out;
}

// --- picture

const char* colour_of(const planned_actor& a) {
  switch (a.kind) {
    case actor_kind::shard: return a.shard.follows ? "#f3e8ff" : "#e9d5ff";
    case actor_kind::send:
    case actor_kind::receive:
    case actor_kind::copy: return "#dbeafe";
    case actor_kind::feed:
    case actor_kind::fetch: return "#fef3c7";
    default: return a.ops.size() > 1 ? "#bbf7d0" : "#ecfdf5";
  }
}

std::string tooltip_of(const explained_plan& e, std::size_t i) {
  constexpr std::size_t ops_max = 12;
  const auto& a = e.plan.actors[i];
  auto out = fmt::format("{}\n{}, {}: {}", a.name, kind_text(a), stream_text(a.stream), why(e, i));
  if (const auto line = text_of(a.source); !line.empty()) out += "\n" + line;
  for (std::size_t k = 0; k < std::min(ops_max, a.ops.size()); ++k)
    out += fmt::format("\n{} '{}'", a.ops[k].type, a.ops[k].name);
  if (a.ops.size() > ops_max) out += fmt::format("\n... and {} more", a.ops.size() - ops_max);
  for (const auto& s : a.output_specs) out += "\nmakes " + to_string(s);
  return out;
}

}  // namespace

result<explained_plan> plan_training(graph& g, value loss, const training_spec& spec,
                                     const compile_options& options, const task_map* where) {
  const graph::trial t(g);
  explained_plan out;
  auto told = options;
  told.report = &out.report;
  auto here = spec;
  if (where != nullptr) {
    here.tasks = static_cast<std::uint32_t>(where->task_names.size());
    here.task_names = where->task_names;
    here.worker_task = where->worker_task;
    here.shard_task = where->shard_task;
    here.client_task = where->client_task;
  }
  if (where == nullptr) {
    auto p = compile_training(g, loss, here, told);
    if (!p) return std::move(p.error());
    out.plan = std::move(*p);
    return out;
  }
  auto program = compile_program(g, loss, here, told);
  if (!program) return std::move(program.error());
  auto p = program->place(*where, {}, &out.report);
  if (!p) return std::move(p.error());
  out.plan = std::move(*p);
  return out;
}

result<explained_plan> plan_steps(graph& g, std::span<const value> fetches,
                                  const compile_options& options) {
  const graph::trial t(g);
  explained_plan out;
  auto told = options;
  told.report = &out.report;
  if (!told.where) {  // nobody knows which nodes there will be: all of it in one task
    task_map here;
    here.task_names = {"/job:client/task:0"};
    here.streams = {std::max(1U, options.streams)};
    told.where = std::make_shared<const task_map>(std::move(here));
  }
  auto p = compile_steps(g, fetches, told);
  if (!p) return std::move(p.error());
  out.plan = std::move(*p);
  return out;
}

std::string explain(const explained_plan& e) {
  return head(e) + passes_text(e.report) + actors_text(e) + memory_text(e.plan) +
         credits_text(e.plan) + crossings_text(e.plan);
}

std::string explain_json(const explained_plan& e) {
  using json = nlohmann::ordered_json;
  const auto& p = e.plan;
  json passes = json::array(), tasks = json::array(), actors = json::array(), edges = json::array(),
       largest = json::array();
  for (const auto& pass : e.report.passes) {
    json changes = json::array();
    for (const auto& c : pass.changes) changes.push_back(c.text());
    passes.push_back({{"pass", pass.pass},
                      {"unit", pass.counts_actors ? "actors" : "ops"},
                      {"ops_before", pass.before},
                      {"ops_after", pass.after},
                      {"changes", std::move(changes)},
                      {"changes_left_out", pass.more}});
  }
  std::vector<std::size_t> actors_of(p.tasks.size());
  const auto needs = memory_by_actor(p);
  for (std::size_t i = 0; i < p.actors.size(); ++i) {
    const auto& a = p.actors[i];
    ++actors_of[a.task];
    json ops = json::array();
    for (const auto& op : a.ops)
      ops.push_back({{"type", op.type}, {"name", op.name}, {"line", text_of(op.source)}});
    actors.push_back({{"name", a.name},
                      {"kind", to_string(a.kind)},
                      {"task", p.tasks[a.task].name},
                      {"stream", is_device_stream(a.stream) ? device_of(a.stream) : a.stream},
                      {"device", is_device_stream(a.stream) ? stream_text(a.stream) : "cpu"},
                      {"why", why(e, i)},
                      {"line", text_of(a.source)},
                      {"memory_bytes", needs[i]},
                      {"ops", std::move(ops)}});
  }
  for (std::uint32_t t = 0; t < p.tasks.size(); ++t)
    tasks.push_back({{"name", p.tasks[t].name},
                     {"is_client", p.tasks[t].is_client},
                     {"actors", actors_of[t]},
                     {"devices", device_names_of(p, t)},
                     {"peak_memory_bytes", memory_of_part(p, t).bytes}});
  for (const auto& x : p.edges)
    edges.push_back({{"from", p.actors[x.from.actor].name},
                     {"output", x.from.port},
                     {"to", p.actors[x.to.actor].name},
                     {"input", x.to.port},
                     {"tensor", to_string(x.spec)},
                     {"size_bytes", x.spec.size_bytes()},
                     {"credits", x.credits}});
  const auto all = by_memory(p);
  for (std::size_t k = 0; k < std::min(largest_max, all.size()); ++k)
    largest.push_back({{"actor", p.actors[all[k].second].name},
                       {"task", p.tasks[p.actors[all[k].second].task].name},
                       {"memory_bytes", all[k].first}});
  const json out = {{"name", p.name},
                    {"update", p.workers == 0                  ? ""
                               : p.update == update_kind::sync ? "sync"
                                                               : "async"},
                    {"workers", p.workers},
                    {"shards", p.shards},
                    {"passes", std::move(passes)},
                    {"tasks", std::move(tasks)},
                    {"actors", std::move(actors)},
                    {"edges", std::move(edges)},
                    {"largest", std::move(largest)},
                    {"tensors_bytes", tensor_bytes(p)}};
  return json_line(out);
}

picture picture_of(const explained_plan& e) {
  const auto& p = e.plan;
  picture out;
  out.title = p.workers == 0 ? fmt::format("plan of {}", p.name)
                             : fmt::format("plan of {}: {}, {}", p.name,
                                           plural(p.workers, "worker"), plural(p.shards, "shard"));
  out.name = p.name;
  out.legend = {
      "green: ops, dark where several are one actor; violet: shards; blue: send and receive; yellow: the program's feeds and fetches",
      "blue edges go from task to task, dashed ones lead into a shard or back"};
  std::vector<bool> is_shard;
  const auto needs = memory_by_actor(p);
  for (std::size_t i = 0; i < p.actors.size(); ++i) {
    const auto& a = p.actors[i];
    const auto bytes = needs[i];
    const auto& task = p.tasks[a.task];
    out.boxes.push_back(
        {a.name, task.is_client ? task.name + " (the program)" : task.name,
         bytes == 0 ? kind_text(a) : fmt::format("{}, {}", kind_text(a), format_bytes(bytes)),
         tooltip_of(e, i), colour_of(a)});
    is_shard.push_back(a.kind == actor_kind::shard);
  }
  for (const auto& x : p.edges) {
    const auto &from = p.actors[x.from.actor], &to = p.actors[x.to.actor];
    out.arrows.push_back(
        {x.from.actor, x.to.actor, to_string(x.spec),
         fmt::format("{} to {}\n{}, {}\n{}", from.name, to.name, to_string(x.spec),
                     format_bytes(x.spec.size_bytes()), plural(x.credits, "credit")),
         from.task != to.task ? picture_arrow::kind::crossing : picture_arrow::kind::normal,
         to.kind == actor_kind::op && to.ops.front().type == loop_enter_op && x.to.port == 1});
  }
  arrange(out, is_shard);
  return out;
}

result<std::string> explain(graph& g, value loss, const training_spec& spec,
                            const compile_options& options) {
  const auto e = plan_training(g, loss, spec, options);
  if (!e) return e.error();
  return explain(*e);
}

result<std::string> explain(graph& g, std::span<const value> fetches,
                            const compile_options& options) {
  const auto e = plan_steps(g, fetches, options);
  if (!e) return e.error();
  return explain(*e);
}

}  // namespace troupe
