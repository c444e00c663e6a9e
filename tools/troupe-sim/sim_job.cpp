#include "tools/troupe-sim/sim_job.hpp"
#include "troupe/runtime/compile/graph_file.hpp"
#include "troupe/runtime/jobs/job_journal.hpp"
#include "troupe/runtime/layers/layers.hpp"

#include "troupe/runtime/graph/collectives.hpp"

#include "troupe/runtime/jobs/placement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <tuple>
#include <utility>

namespace troupe {

namespace {

void write_idx(const std::string& path, std::vector<std::uint8_t> sizes, std::size_t bytes,
               std::uint32_t below) {
  std::string out{'\0', '\0', '\x08', static_cast<char>(sizes.size())};
  for (auto n : sizes) out += std::string{'\0', '\0', '\0', static_cast<char>(n)};
  std::mt19937 random(static_cast<std::uint32_t>(bytes));
  for (std::size_t i = 0; i < bytes; ++i) out += static_cast<char>(random() % below);
  std::ofstream(path, std::ios::binary) << out;
}

training_spec make_spec(const sim_job_shape& shape, const task_map& where) {
  training_spec t;
  t.workers = shape.workers;
  t.shards = shape.shards;
  t.update = shape.update;
  t.all_reduce = shape.all_reduce;
  const auto trains_with = sim_optimizer_of(shape.optimizer, shape.update);
  t.optimizer = trains_with.optimizer;
  t.schedule = trains_with.schedule;
  t.clip_global_norm = trains_with.clip_global_norm;
  t.steps = shape.steps;
  t.observe_every = shape.observe_every;
  t.is_recoverable = shape.on_failure != failure_policy::stop;
  t.has_replicas = shape.has_replicas;
  t.has_cuts = !shape.checkpoints.folder.empty();
  t.cut_every = shape.checkpoints.every_steps;
  set_places(t, where);
  return t;
}

result<role_map> roles_of(const sim_job_shape& shape, const std::vector<member_info>& nodes,
                          node_id client, const device_wishes& wishes = {}) {
  return first_roles(nodes, client, shape.workers, shape.shards,
                     shape.on_failure != failure_policy::stop, shape.has_replicas, shape.all_reduce,
                     wishes);
}

}  // namespace

sim_optimizer sim_optimizer_of(std::uint32_t number, update_kind update) {
  switch (number) {
    case 1:
      return {sgd({.learning_rate = 0.05, .momentum = 0.9, .nesterov = true, .weight_decay = 0.01}),
              step_decay({.every = 3, .decay = 0.5})};
    case 2: return {adam({.learning_rate = 0.01})};
    case 3:
      return {adam({.learning_rate = 0.01, .weight_decay = 0.1, .clip_value = 0.2}),
              cosine({.steps = 10, .minimum = 0.1, .warmup = 2})};
    case 4:
      return {adamw({.learning_rate = 0.01, .clip_norm = 0.5}),
              linear({.steps = 9, .minimum = 0.2})};
    case 5: return {rmsprop({.alpha = 0.9}), exponential({.decay = 0.9, .warmup = 3})};
    case 6: return {rmsprop({.alpha = 0.9, .momentum = 0.9, .centered = true}), {}, 0.5};
    case 7:
      return {
          adagrad({.learning_rate = 0.1, .learning_rate_decay = 0.01, .initial_accumulator = 0.1}),
          inverse_square_root({.warmup = 4})};
    case 8: return {sgd({.learning_rate = 0.05}), warm_up(5), 1};
    case 9: return {sgd({.learning_rate = 0.05})};
    default:
      return {sgd(
          {.learning_rate = sim_counter_rate, .momentum = update == update_kind::sync ? 0.9 : 0})};
  }
}

result<sim_data> sim_data::make() {
  auto made = scratch_folder::make("troupe-sim");
  if (!made) return made.error();
  sim_data d{std::move(*made), {}};
  write_idx(d.folder->path() + "/train-images-idx3-ubyte", {10, 2, 3}, 60, 256);
  write_idx(d.folder->path() + "/train-labels-idx1-ubyte", {10}, 10, 3);
  auto opened = open_idx(d.folder->path(), false, 3);
  if (!opened) return opened.error();
  d.info = *opened;
  return d;
}

namespace {

// The loss.
value build(graph& g, const sim_data& data, const sim_job_shape& shape) {
  const auto batch = idx_batch(g, data.info, {.batch = 4});
  const auto hidden = relu(dense(batch.images, 5, "hidden"));
  const auto last = [&] { return dense(hidden, 3, "logits"); };
  const auto last_elsewhere = [&] {
    const auto there = g.device_scope("/gpu:1");
    return last();
  };
  auto x = shape.gpus > 1 ? last_elsewhere() : last();
  if (shape.optimizer != 0)
    x = add(x, embedding(variable(g, {dtype::f32, {40, 3}}, {initializer_spec::kind::uniform, 0.1},
                                  "table"),
                         batch.labels));
  const auto counter = shape.has_counter ? variable(g, {dtype::f32, {3}}, {}, "counter") : value();
  auto loss = shape.has_counter
                  ? add(softmax_cross_entropy(x, batch.labels, batch.scale), reduce_sum(counter))
                  : softmax_cross_entropy(x, batch.labels, batch.scale);
  if (shape.calls_collectives) {
    const auto own = mul(reduce_sum(x, {0}), constant(g, 1.0F / 64));
    const auto everybody = all_gather(all_reduce(own), all_workers(shape.workers));
    const auto of_last = stop_gradient(broadcast(barrier(own), shape.workers - 1));
    loss = add(loss, add(reduce_sum(everybody), reduce_sum(mul(own, of_last))));
  }
  return loss;
}

compile_options options_of(const sim_job_shape& shape) {
  return {
      .name = "training",
      .precision = shape.is_mixed ? precision_kind::f16 : precision_kind::f32,
      .loss_scale = shape.is_mixed ? std::optional(dynamic_loss_scale(0x1p20, 2)) : std::nullopt,
      .device = shape.gpus > 0 ? "/gpu:0" : ""};
}

}  // namespace

result<training_program> make_sim_program(const sim_tables& tables, const sim_data& data,
                                          const sim_job_shape& shape,
                                          const std::vector<member_info>& nodes, node_id client) {
  graph g(tables.ops);
  const auto loss = build(g, data, shape);
  auto roles = roles_of(shape, nodes, client);
  if (!roles) return roles.error();
  return compile_program(g, loss, make_spec(shape, place_roles(*roles, client)), options_of(shape));
}

result<void> add_recipe(job_request& request, const sim_tables& tables, const sim_data& data,
                        const sim_job_shape& shape) {
  graph g(tables.ops);
  const auto loss = build(g, data, shape);
  auto saved =
      encode_graph(g, {.name = "training",
                       .loss = loss,
                       .training = graph_training{make_spec(shape, {}), options_of(shape)}});
  if (!saved) return std::move(saved.error());
  request.recipe = std::make_shared<const std::vector<std::byte>>(encode(job_recipe{
      std::move(*saved), request.on_failure, request.limits, request.checkpoints, request.keep}));
  return {};
}

result<std::shared_ptr<job_request>> make_sim_request(const sim_tables& tables,
                                                      const sim_data& data,
                                                      const sim_job_shape& shape,
                                                      const std::vector<member_info>& nodes,
                                                      node_id client) {
  auto program = make_sim_program(tables, data, shape, nodes, client);
  if (!program) return program.error();
  // PM-5, as sessions place.
  auto roles = roles_of(shape, nodes, client, nodes.empty() ? device_wishes{} : program->devices());
  if (!roles) return roles.error();
  auto request = std::make_shared<job_request>();
  request->program = std::move(*program);
  request->roles = std::move(*roles);
  request->on_failure = shape.on_failure;
  return request;
}

std::vector<float> floats(const tensor& t) {
  const auto* from = std::as_const(t).data<float>();
  return {from, from + t.elements()};
}

sim_outcome collect(const sim_program& p) {
  sim_outcome out;
  for (const auto& l : p.losses) out.losses.push_back(l.loss);
  for (const auto& item : p.variables)
    for (const auto& [name, value] : item.values) out.variables.emplace_back(name, floats(value));
  return out;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::string difference(const sim_outcome& got, const sim_outcome& wanted) {
  if (got.losses.size() != wanted.losses.size())
    return fmt::format("{} losses instead of {}", got.losses.size(), wanted.losses.size());
  if (!same_bits(got.losses, wanted.losses)) return "the losses differ from those of one process";
  if (got.variables.size() != wanted.variables.size())
    return "another number of variables was observed";
  for (std::size_t i = 0; i < got.variables.size(); ++i)
    if (got.variables[i].first != wanted.variables[i].first ||
        !same_bits(got.variables[i].second, wanted.variables[i].second))
      return fmt::format("observation {} of variable {} differs from that of one process", i,
                         wanted.variables[i].first);
  return {};
}

double applied_by_counter(const sim_program& p) {
  if (p.variables.empty()) return -1;
  for (const auto& [name, value] : p.variables.back().values)
    if (name == "counter") return -double(floats(value).at(0)) / sim_counter_rate;
  return -1;
}

std::string check_ledger(const training_totals& totals, const sim_job_shape& shape,
                         bool is_complete) {
  if (totals.workers.size() != shape.workers) return "the ledger lacks a worker";
  for (const auto& w : totals.workers) {
    if (w.fed != w.applied + w.dropped + w.in_flight)
      return fmt::format("fed {} is not applied {} + dropped {} + in flight {}", w.fed, w.applied,
                         w.dropped, w.in_flight);
    if (is_complete &&
        (w.fed != shape.steps || w.applied + (shape.is_mixed ? w.dropped : 0) != shape.steps))
      return fmt::format("of {} steps {} were fed and {} applied", shape.steps, w.fed, w.applied);
  }
  return {};
}

std::string check_credits(sim_cluster& c) {
  for (std::uint32_t i = 0; i < c.processes(); ++i) {
    if (!c.is_alive(i)) continue;
    for (const auto& a : c.ask(i).actors) {
      if (a.job_id.empty() || a.kind == "job") continue;
      for (const auto& port : a.ports) {
        if (port.queued != 0)
          return fmt::format("{} items wait at port {} of {}", port.queued, port.name, a.name);
        if (!port.is_input() && port.peer != "program" && port.credits != port.credits_max)
          return fmt::format("port {} of {} has {} of {} credits after the job", port.name, a.name,
                             port.credits, port.credits_max);
      }
    }
  }
  return {};
}

std::string left_over(sim_cluster& c, bool may_take_long) {
  for (std::uint32_t i = 0; i < c.processes(); ++i)
    if (c.is_alive(i) && !c.is_frozen(i) && !(may_take_long && c.is_ending(i)))
      if (const auto n = c.job_actors(i); n > 0)
        return fmt::format("{} actors of the job are left on process {}", n, i);
  return {};
}

const sim_outcome& sim_reference::of(const sim_job_shape& shape) {
  const auto key = std::tuple(shape.workers, shape.steps, shape.observe_every, shape.optimizer,
                              shape.is_mixed, shape.calls_collectives, shape.has_counter);
  const auto known = known_.find(key);
  if (known != known_.end()) return known->second;
  auto undisturbed = shape;
  undisturbed.on_failure = failure_policy::stop;
  undisturbed.checkpoints = {};
  undisturbed.update = update_kind::sync;
  undisturbed.gpus = 0;
  sim_cluster alone(tables_, {.seed = 1, .nodes = 0});
  expects(alone.form(), "a process by itself is a cluster");
  auto request = make_sim_request(tables_, data_, undisturbed, {}, alone.info(0).id);
  expects(bool(request), "the job compiles");
  alone.run_job(*request);
  alone.run_until([&] { return alone.program().is_over(); }, 100'000 * sim_cluster::ms);
  expects(alone.program().finished.has_value(),
          "the job of one process, which nothing disturbs, finishes");
  auto out = collect(alone.program());
  expects(alone.finish(), "no actor outlives its process");
  return known_.emplace(key, std::move(out)).first->second;
}

}  // namespace troupe
