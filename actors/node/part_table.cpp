#include "troupe/actors/node/part_table.hpp"

#include "troupe/actors/base/failing.hpp"
#include "troupe/actors/base/scheduler.hpp"
#include "troupe/actors/base/tell.hpp"
#include "troupe/actors/job/job_actor.hpp"
#include "troupe/actors/node/ended_part.hpp"
#include "troupe/actors/node/part_supervisor.hpp"
#include "troupe/actors/plan/device_streams.hpp"
#include "troupe/devices/host/host_device.hpp"
#include "troupe/devices/memory/free_memory.hpp"
#include "troupe/runtime/analysis/sparse_edges.hpp"
#include "troupe/runtime/graph/op_library.hpp"
#include "troupe/runtime/plan/segment.hpp"
#include "troupe/runtime/text/byte_size.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <utility>

namespace troupe {

namespace {

// For a link between two nodes that the coordinator reaches already.
constexpr std::int64_t link_wait_ns = 1'000'000'000;
constexpr std::size_t waiting_places_max = 64;
// Of ended parts that are listed, at most, the newest; and of their actors.
constexpr std::size_t ended_parts_max = 100, ended_actors_max = 20'000;

}  // namespace

part_table::~part_table() {
  for (const auto& [id, part] : parts_)
    if (part.supervisor)
      tell(nullptr, part.supervisor, stop_part_actors{"the node's actor failed"});
}

// --- placing -------------------------------------------------------------------------------------

void part_table::place(node_id from, place_part p) {
  waiting_.push_back({from, std::move(p), node_.environment().now_ns()});
  place_waiting();
}

void part_table::place_waiting() {
  answer_waiting_halts();
  stop_orphans();
  for (auto& w : std::exchange(waiting_, {})) {
    const auto from = w.from;
    const auto about = place_part{w.place.job, w.place.epoch, {}, {}, {}, {}};
    try {
      try_to_place(std::move(w));
    } catch (const std::bad_alloc&) {
      refuse(from, about,
             fmt::format("{} has no memory left for it", node_.environment().self.name));
    }
  }
}

void part_table::refuse(node_id from, const place_part& p, const std::string& why) {
  node_.send(from, part_placed{p.job, p.epoch, why});
}

// NO-14
part_table::reading part_table::read_plan(waiting_place& w) {
  if (w.job_plan) return reading::done;
  auto& p = w.place;
  if (p.here) {
    w.job_plan = std::make_shared<plan>(*p.here);
    return reading::done;
  }
  const auto refused = [&](const std::string& why) {
    refuse(w.from, p, why);
    return reading::refused;
  };
  auto& pull = blobs_[p.job];
  if (!w.unfinished) {
    if (p.plan_id.bytes > plan_bytes_max)
      return refused(fmt::format("its plan takes {}", format_bytes(p.plan_id.bytes)));
    if (p.plan_id.bytes > 0) {
      pull.want(w.from, {p.plan_id});
      if (p.blobs_here) pull.have(*p.blobs_here);
      if (!pull.has_all()) {
        ask(pull, p.job);
        return reading::wait;
      }
    }
    auto decoded = decode_apart(p.plan_id.bytes > 0 ? pull.find(p.plan_id)->view() : p.plan);
    if (!decoded) return refused(decoded.error().text());
    w.unfinished = std::make_shared<unfinished_plan>(std::move(*decoded));
    p.plan = {};
    const auto bytes = w.unfinished->blob_bytes(), most = node_.environment().memory_bytes;
    if (most != 0 && bytes > most)
      return refused(fmt::format("{} has {} for jobs, and the plan's constants take {}",
                                 node_.environment().self.name, format_bytes(most),
                                 format_bytes(bytes)));
  }
  std::vector<blob_id> ids;
  for (const auto& [id, bytes] : w.unfinished->blobs()) ids.push_back(id);
  pull.want(w.from, ids);
  if (p.blobs_here) pull.have(*p.blobs_here);
  if (!pull.has_all()) {
    ask(pull, p.job);
    return reading::wait;
  }
  pull.forget_others();
  for (const auto& id : ids) w.unfinished->give(id, *pull.find(id));
  auto whole = w.unfinished->finish();
  w.unfinished = nullptr;
  if (!whole) return refused(whole.error().text());
  w.job_plan = std::make_shared<plan>(std::move(*whole));
  return reading::done;
}

void part_table::ask(blob_pull& pull, job_id job) {
  for (auto& w : pull.take_requests(job)) node_.send(pull.from(), std::move(w));
}

void part_table::on_piece(node_id from, blob_piece& p) {
  const auto at = blobs_.find(p.job);
  if (at == blobs_.end()) {
    ++stray_messages_;
    return;
  }
  const auto job = p.job;
  if (auto ok = at->second.on_piece(from, std::move(p)); !ok) {
    for (auto& w : std::exchange(waiting_, {}))
      if (w.place.job == job && w.from == from)
        refuse(w.from, w.place, ok.error().text());
      else
        waiting_.push_back(std::move(w));
    return;
  }
  if (at->second.has_all()) return place_waiting();
  ask(at->second, job);
}

void part_table::try_to_place(waiting_place w) {
  const auto& env = node_.environment();
  const auto& p = w.place;
  const auto job = p.job;
  if (const auto at = parts_.find(job); at != parts_.end()) {
    if (at->second.epoch >= p.epoch) {  // NO-1
      if (!may_take_over(w.from, at->second))
        return ignore(w.from, job, "place_part", at->second.coordinator);
      if (at->second.coordinator != w.from)
        node_.send(w.from, job_moved{job, at->second.epoch, at->second.coordinator});
      return;
    }
    if (!may_take_over(w.from, at->second))
      return ignore(w.from, job, "place_part", at->second.coordinator);
    if (at->second.ended_ns == 0) {
      if (!at->second.is_halted)
        halt(at->second.coordinator, halt_part{job, at->second.epoch, "a newer epoch has begun"});
      return waiting_.push_back(std::move(w));
    }
  }
  if (w.is_loading) return waiting_.push_back(std::move(w));
  const bool is_late =
      env.now_ns() - w.since_ns > link_wait_ns || waiting_.size() >= waiting_places_max;
  // Who is no peer yet could die without our noticing, and the part would stay.
  if (w.from != env.self.id && !node_.peers().contains(w.from)) {
    if (!is_late) waiting_.push_back(std::move(w));
    return;
  }
  switch (read_plan(w)) {
    case reading::done: break;
    case reading::wait: return waiting_.push_back(std::move(w));
    case reading::refused: return;
  }
  const auto decoded = w.job_plan;
  if (decoded->tasks.size() != p.nodes.size())
    return refuse(w.from, p, "the plan's tasks and the nodes given for them differ in number");
  std::vector<caf::actor> links(p.nodes.size());
  std::int64_t own = -1;
  for (std::size_t i = 0; i < p.nodes.size(); ++i) {
    if (p.nodes[i] == env.self.id) {
      if (own >= 0) return refuse(w.from, p, "two tasks of the plan are placed on this node");
      own = static_cast<std::int64_t>(i);
      continue;
    }
    if (auto at = node_.peers().find(p.nodes[i]); at != node_.peers().end())
      links[i] = at->second.link;
  }
  if (own < 0) return refuse(w.from, p, "no task of the plan is placed on this node");
  const auto task = static_cast<std::uint32_t>(own);
  if (const auto missing = missing_link(*decoded, p.nodes, task); missing >= 0) {
    const auto other = static_cast<std::size_t>(missing);
    if (!is_late) return waiting_.push_back(std::move(w));
    return node_.send(w.from, part_placed{p.job, p.epoch,
                                          fmt::format("{} has no link to the node of {} yet",
                                                      env.self.name, decoded->tasks[other].name),
                                          p.nodes[other]});
  }
  if (auto lack = lack_of(*decoded, task, *env.ops, env.self.name); !lack.empty())
    return refuse(w.from, p, lack);
  if (auto lack = lack_of_devices(*decoded, task); !lack.empty()) return refuse(w.from, p, lack);
  if (shares_ending_device(*decoded, task, job)) return waiting_.push_back(std::move(w));
  switch (auto lack = lack_of_communicators(*decoded, task, job); lack.first) {
    case wait_or_refuse::neither: break;
    case wait_or_refuse::wait: return waiting_.push_back(std::move(w));
    case wait_or_refuse::refuse: return refuse(w.from, p, lack.second);
  }
  const auto need = memory_of_part(*decoded, task);
  if (auto too_big = exceeds_memory(need, job); !too_big.empty()) return refuse(w.from, p, too_big);
  if (!p.restore_from.empty() && !w.is_loaded) return load(std::move(w), *decoded, task);
  spawn(w, decoded, task, std::move(links));
}

void part_table::load(waiting_place w, const plan& p, std::uint32_t own) {
  load_shards ask{w.place.job, w.place.epoch, w.place.checkpoints, p.name, w.place.restore_from,
                  {},          node_.handle()};
  for (const auto& a : p.actors)
    if (a.kind == actor_kind::shard && a.task == own && !a.shard.follows)
      ask.variables.emplace(a.shard.variable, slot_names(a.shard.optimizer));
  kept_.erase(w.place.job);
  w.is_loaded = ask.variables.empty();
  w.is_loading = !w.is_loaded;
  if (w.is_loaded) return try_to_place(std::move(w));
  if (!node_.environment().archive)
    return refuse(w.from, w.place, "this node reads no checkpoints");
  tell(node_.context(), node_.environment().archive, std::move(ask));
  waiting_.push_back(std::move(w));
}

void part_table::on_loaded(shards_loaded& m) {
  const auto at = std::find_if(waiting_.begin(), waiting_.end(), [&](const auto& w) {
    return w.is_loading && w.place.job == m.job && w.place.epoch == m.epoch;
  });
  if (at == waiting_.end()) return;
  auto w = std::move(*at);
  waiting_.erase(at);
  if (!m.error.empty()) return refuse(w.from, w.place, m.error);
  kept_[m.job] = std::move(m.shards);
  w.is_loading = false;
  w.is_loaded = true;
  waiting_.push_back(std::move(w));
  place_waiting();
}

// Empty: every device that the part stands on is here.
std::string part_table::lack_of_devices(const plan& p, std::uint32_t task) const {
  const auto& env = node_.environment();
  const auto wanted = devices_of(p, task);
  if (wanted.empty() || wanted.back() < env.devices.size()) return {};
  const auto who = std::find_if(p.actors.begin(), p.actors.end(), [&](const auto& a) {
    return a.task == task && a.stream == device_stream_of(wanted.back());
  });
  const auto has =
      env.devices.empty() ? fmt::format("has no GPU{}{}", env.why_no_devices.empty() ? "" : ": ",
                                        env.why_no_devices)
      : env.devices.size() == 1 ? std::string("has only gpu:0")
                                : fmt::format("has gpu:0 to gpu:{}", env.devices.size() - 1);
  const auto line = who->source.file.empty()
                        ? std::string()
                        : fmt::format(" ({}:{})", who->source.file, who->source.line);
  return fmt::format("there is no gpu:{} for '{}'{}: {} {}", wanted.back(), who->name, line,
                     env.self.name, has);
}

// NO-12.
bool part_table::shares_ending_device(const plan& p, std::uint32_t task, job_id job) const {
  const auto wanted = devices_of(p, task);
  if (wanted.empty()) return false;
  return std::any_of(parts_.begin(), parts_.end(), [&](const auto& known) {
    const auto& [id, part] = known;
    if (id == job || !part.is_about_to_end() || part.actors.empty()) return false;
    const auto& theirs = *part.context->job_plan;
    const auto used = devices_of(theirs, theirs.actors[part.actors.front()].task);
    return std::ranges::find_first_of(wanted, used) != wanted.end();
  });
}

// Two collectives of one device wait for each other for ever where another device has them in
// another order, so a device has one communicator at a time.
std::pair<part_table::wait_or_refuse, std::string> part_table::lack_of_communicators(
    const plan& p, std::uint32_t task, job_id job) const {
  const auto is_rank = [](const planned_actor& a, std::uint32_t on) {
    return a.kind == actor_kind::collective && a.task == on && is_device_stream(a.stream);
  };
  for (const auto& wanted : p.actors) {
    if (!is_rank(wanted, task)) continue;
    for (const auto& [id, part] : parts_) {
      if (id == job || part.ended_ns != 0) continue;
      const auto& theirs = part.context->job_plan->actors;
      if (std::none_of(part.actors.begin(), part.actors.end(), [&](auto i) {
            return is_rank(theirs[i], theirs[i].task) && theirs[i].stream == wanted.stream;
          }))
        continue;
      if (part.is_about_to_end()) return {wait_or_refuse::wait, {}};
      return {
          wait_or_refuse::refuse,
          fmt::format(
              "{} of {} adds up gradients of job '{}', and a device does so for one job at a time: wait for its end, take another device, or leave device_collectives out",
              stream_text(wanted.stream), node_.environment().self.name,
              part.context->job_plan->name)};
    }
  }
  return {wait_or_refuse::neither, {}};
}

// Empty: it fits. The part takes the room of its own job's older epoch.
std::string part_table::exceeds_memory(const memory_need& need, job_id but) const {
  const auto& env = node_.environment();
  std::uint64_t used = 0;
  for (const auto& [id, part] : parts_)
    if (part.ended_ns == 0 && id != but) used += part.memory_bytes;
  if (env.memory_bytes == 0 || (used <= env.memory_bytes && need.bytes <= env.memory_bytes - used))
    return {};
  return fmt::format(
      "{} has {} for jobs, {} of it in use, and the part needs {}, most of it for {}",
      env.self.name, format_bytes(env.memory_bytes), format_bytes(used), format_bytes(need.bytes),
      to_string(need.largest));
}

// The task of a node that an edge of our part leads to and that no link reaches; -1: none.
std::int64_t part_table::missing_link(const plan& p, const std::vector<node_id>& nodes,
                                      std::uint32_t own) const {
  for (const auto& e : p.edges) {
    const auto from = p.actors[e.from.actor].task, to = p.actors[e.to.actor].task;
    const auto other = from == own ? to : to == own ? from : own;
    if (other != own && !node_.peers().contains(nodes[other])) return other;
  }
  return -1;
}

std::shared_ptr<part_context> part_table::make_context(const place_part& p, const plan& job_plan) {
  const auto& env = node_.environment();
  auto context = std::make_shared<part_context>();
  context->job = p.job;
  context->epoch = p.epoch;
  context->part = ++last_part_;
  context->ops = env.ops;
  context->kernels = env.kernels;
  context->device = env.device;
  context->bugs = env.bugs;
  context->probe = env.probe;
  context->node = env.self.id;
  context->archive = env.archive;
  for (const auto& m : node_.meters()) {
    context->meters.push_back(m);
    context->pools.push_back(std::make_shared<message_pool<tensor_ready>>());
  }
  context->io_meter = std::make_shared<stream_meter>(env.now_ns);
  context->io_pool = std::make_shared<message_pool<tensor_ready>>();
  // A lane has one writer, the thread. Where links have none of their own, all is on one.
  const auto network = std::find_if(env.lanes.begin(), env.lanes.end(),
                                    [](const trace_source& l) { return l.name == "network"; });
  auto& beside =
      env.io == nullptr && !context->meters.empty() ? context->meters.front() : context->io_meter;
  context->io_lane = network != env.lanes.end()
                         ? network->lane
                         : std::shared_ptr<trace_lane>(beside, &beside->lane);
  context->devices = env.devices;
  context->lanes = std::make_shared<part_lanes>();
  context->credits = edge_credits(job_plan, context->host_streams());
  context->outlets.resize(job_plan.edges.size());
  for (const auto& a : job_plan.actors) {
    std::uint32_t outlet = 0;
    for (const auto& port : a.outputs)
      for (const auto e : port) context->outlets[e] = outlet++;
  }
  context->buffers.resize(job_plan.buffers.size());
  context->uses.resize(job_plan.actors.size());
  context->records.resize(job_plan.actors.size());
  context->ledgers.resize(job_plan.actors.size());
  context->kept.resize(job_plan.actors.size());
  context->program = node_.fetches_to(p.job);
  return context;
}

void part_table::spawn(const waiting_place& w, std::shared_ptr<plan> job_plan, std::uint32_t own,
                       std::vector<caf::actor> links) {
  const auto& env = node_.environment();
  const auto& p = w.place;
  for (std::size_t i = 0; i < p.nodes.size(); ++i) job_plan->tasks[i].node = p.nodes[i];
  auto context = make_context(p, *job_plan);
  part_entry entry{context,
                   {},
                   p.nodes,
                   w.from,
                   p.epoch,
                   memory_of_part(*job_plan, own).bytes,
                   {},
                   std::make_shared<part_handles>(),
                   env.wall_clock_ns()};
  entry.may_move = p.may_move;
  const auto before = std::exchange(kept_[p.job], {});
  const bool goes_on =
      p.restore_from.empty() &&
      std::any_of(job_plan->actors.begin(), job_plan->actors.end(), [](const auto& a) {
        return a.kind == actor_kind::shard && a.shard.restore != restore_kind::initial;
      });
  if (goes_on) kept_[p.job] = before;  // until the epoch has begun everywhere
  const auto sparse = sparse_edges(*job_plan);
  make_buffers(*context, *job_plan, own);
  std::size_t shards = 0;
  for (std::uint32_t i = 0; i < job_plan->actors.size(); ++i) {
    const auto& a = job_plan->actors[i];
    if (a.task != own) continue;
    entry.actors.push_back(i);
    if (a.kind != actor_kind::shard) continue;
    shards += a.shard.follows ? 0 : 1;
    context->ledgers[i] = std::make_shared<shard_counters>(a.shard.steps.size());
    const auto at = goes_on || w.is_loaded ? before.find(a.shard.variable) : before.end();
    context->kept[i] = at != before.end() ? at->second : std::make_shared<kept_shard>();
    // Another schedule may count the same values otherwise.
    if (w.is_loaded && !a.shard.follows && !context->kept[i]->slots.empty()) {
      context->kept[i]->slots[0].version = a.shard.version;
      context->kept[i]->applied = a.shard.start;
    }
    kept_[p.job].insert_or_assign(a.shard.variable, context->kept[i]);
  }
  for (const auto i : by_stream(*job_plan, entry.actors, context->host_streams()))
    context->records[i] = make_record(*context, *job_plan, i, sparse);
  for (const auto i : entry.actors) {
    const auto& a = job_plan->actors[i];
    if (a.kind != actor_kind::op || a.ops.empty() || a.ops.front().type != hand_over_op) continue;
    const auto at = before.find(a.ops.front().attrs.text("variable"));
    if (at == before.end()) continue;
    // A copy, which shares the tensors: a shard that is here goes on with its own.
    context->handed.emplace(at->first, std::make_shared<kept_shard>(*at->second));
  }
  if (!p.checkpoints.empty() && shards > 0 && env.archive)
    tell(node_.context(), env.archive,
         open_cuts{p.job, p.epoch, p.checkpoints, job_plan->name, own, shards, node_.handle(),
                   env.bugs});
  context->job_plan = std::move(job_plan);
  entry.supervisor = supervise(p.job, part_request{.context = context,
                                                   .actors = entry.actors,
                                                   .links = std::move(links),
                                                   .streams = env.streams,
                                                   .io = env.io,
                                                   .node = node_.handle(),
                                                   .handles = entry.handles});
  parts_.insert_or_assign(p.job, std::move(entry));
  node_.parts_changed();
}

caf::actor part_table::supervise(job_id job, part_request request) {
  const auto part = request.context->part;
  auto supervisor = spawn_supervisor(system_, node_.environment().service, std::move(request));
  on_failure(supervisor, [node = node_.handle().address(), job, part](const std::string& text) {
    if (const auto to = caf::actor_cast<caf::actor>(node))
      tell(nullptr, to, part_orphaned{job, part, text});
  });
  return supervisor;
}

// NO-6. What it knew is gone; what its actors have is not, so another one ends them.
void part_table::on_orphaned(const part_orphaned& m) {
  const auto at = parts_.find(m.job);
  if (at == parts_.end() || at->second.context->part != m.part || at->second.ended_ns != 0) return;
  auto& part = at->second;
  const auto text = "the supervisor of the part failed: " + m.text;
  note_of(m.job, part, event_kind::actor_failed, text);
  node_.send(part.coordinator, part_ended{m.job, part.epoch, text, "supervisor", 0, reports(part),
                                          data_messages(part)});
  part.supervisor = supervise(m.job, part_request{.context = part.context,
                                                  .actors = part.actors,
                                                  .node = node_.handle(),
                                                  .handles = part.handles,
                                                  .is_left_over = true});
}

// PL-8 gives their uses, in the order of the plan.
void part_table::make_buffers(part_context& context, const plan& p, std::uint32_t own) {
  for (std::size_t b = 0; b < p.buffers.size(); ++b)
    if (p.buffers[b].task == own)
      context.buffers[b] = std::make_unique<shared_buffer>(p.buffers[b].bytes, p.steps_in_flight);
  for (std::uint32_t i = 0; i < p.actors.size(); ++i) {
    const auto& a = p.actors[i];
    if (a.task != own || a.forwards_input) continue;
    for (std::uint32_t port = 0; port < a.buffers.size(); ++port) {
      const auto b = static_cast<std::uint32_t>(a.buffers[port]);
      if (a.buffers[port] >= 0)
        context.uses[i].push_back({port, b, context.buffers[b]->add_use(i, a.in_place >= 0)});
    }
  }
}

std::shared_ptr<actor_record> part_table::make_record(const part_context& context, const plan& p,
                                                      std::uint32_t i,
                                                      const std::vector<bool>& sparse) {
  const auto& a = p.actors[i];
  auto r = std::make_shared<actor_record>(a.kind, a.name, p.name, *node_.environment().clock);
  r->steps.store(a.kind == actor_kind::shard ? a.shard.version : a.start,
                 std::memory_order_relaxed);
  auto add = [&](bool is_input, std::uint32_t index, const port_ref* peer, const planned_edge* e,
                 const edge_credit* credit) {
    auto port = std::make_unique<port_record>();
    port->is_input = is_input;
    port->index = index;
    port->peer = peer != nullptr ? p.actors[peer->actor].name : "program";
    port->peer_task = peer != nullptr ? p.tasks[p.actors[peer->actor].task].name : "";
    port->credit = credit;
    port->credits_max = e != nullptr ? e->credits : 0;
    port->is_sparse = e != nullptr && sparse[static_cast<std::size_t>(e - p.edges.data())];
    r->ports.push_back(std::move(port));
  };
  if (a.kind == actor_kind::feed) add(true, 0, nullptr, nullptr, nullptr);
  for (std::uint32_t port = 0; port < a.inputs.size(); ++port) {
    const auto& e = p.edges[a.inputs[port]];
    add(true, port, &e.from, &e, nullptr);
  }
  for (std::uint32_t port = 0; port < a.outputs.size(); ++port)
    for (auto e : a.outputs[port])
      add(false, port, &p.edges[e].to, &p.edges[e],
          a.kind == actor_kind::send || p.actors[p.edges[e].to.actor].task != a.task
              ? nullptr
              : &context.credits[e]);
  if (a.kind == actor_kind::fetch) add(false, 0, nullptr, nullptr, nullptr);
  return r;
}

void part_table::give_handles(job_id job, part_entry& part,
                              const std::shared_ptr<const part_handles>& handles) {
  for (std::size_t task = 0; task < part.nodes.size(); ++task) {
    auto at = node_.peers().find(part.nodes[task]);
    if (at == node_.peers().end() || !at->second.link) continue;
    ++part.unbound;
    tell(node_.context(), at->second.link,
         bind_job{job, part.epoch, part.context->job_plan, handles, node_.handle(),
                  part.context->part});
  }
  if (auto actor = node_.job_actor(job))
    tell(node_.context(), actor, local_part{part.epoch, handles});
  if (part.unbound == 0) tell_placed(job, part);
}

void part_table::tell_placed(job_id job, const part_entry& part) {
  part_placed out{job, part.epoch, "", {}, {}};
  const auto& p = *part.context->job_plan;
  std::map<std::string, std::uint64_t> data;
  for (const auto i : part.actors)
    for (const auto& op : p.actors[i].ops) {
      if (op.type != "idx_batch") continue;
      const auto folder = op.attrs.text("path");
      const bool is_test = op.attrs.integer("test") != 0;
      if (const auto hash = node_.environment().device->dataset_hash(
              folder, is_test, op.attrs.integer("classes", 10)))
        data.emplace(fmt::format("{} data in {}", is_test ? "test" : "training", folder), *hash);
    }
  for (auto& [what, hash] : data) out.data.push_back({what, hash});
  node_.send(part.coordinator, std::move(out));
}

void part_table::on_bound(job_id job) {
  auto at = parts_.find(job);
  if (at != parts_.end() && at->second.unbound > 0 && --at->second.unbound == 0)
    tell_placed(job, at->second);
}

void part_table::start(node_id from, const start_part& s) {
  auto* part = find_running(s.job);
  if (part != nullptr && part->coordinator != from)
    return ignore(from, s.job, "start_part", part->coordinator);
  if (part == nullptr) return;
  const auto& name = part->context->job_plan->name;
  if (!std::exchange(part->is_started, true))
    part->epoch <= 1
        ? note_of(s.job, *part, event_kind::job_began, fmt::format("job {} starts", name))
        : note_of(s.job, *part, event_kind::job_recovered,
                  fmt::format("job {}: goes on (epoch {})", name, part->epoch), part->epoch);
  tell(node_.context(), part->supervisor, start_firing{});
}

void part_table::cut(node_id from, const begin_cut& c) {
  if (auto* part = find_running_of(from, c.job, c.epoch, "begin_cut"))
    tell(node_.context(), part->supervisor, mark_cut{c.mark});
}

void part_table::cancel(node_id from, const cancel_run& c) {
  if (auto* part = find_running_of(from, c.job, c.epoch, "cancel_run"))
    tell(node_.context(), part->supervisor, cancel_step{c.step});
}

void part_table::begun(node_id from, const epoch_begun& b) {
  auto* part = find_running_of(from, b.job, b.epoch, "epoch_begun");
  if (part == nullptr) return;
  const auto& plan = *part->context->job_plan;
  std::erase_if(kept_[b.job], [&](const auto& entry) {
    return std::none_of(part->actors.begin(), part->actors.end(), [&](auto i) {
      return plan.actors[i].kind == actor_kind::shard &&
             plan.actors[i].shard.variable == entry.first;
    });
  });
}

// --- ending --------------------------------------------------------------------------------------

part_entry* part_table::find_running(job_id job) {
  auto at = parts_.find(job);
  if (at != parts_.end() && at->second.ended_ns == 0) return &at->second;
  ++stray_messages_;
  return nullptr;
}

part_entry* part_table::find_running_of(node_id from, job_id job, std::uint32_t epoch,
                                        const char* what) {
  auto* part = find_running(job);
  if (part == nullptr || part->epoch != epoch) return nullptr;
  if (part->coordinator == from) return part;
  ignore(from, job, what, part->coordinator);
  return nullptr;
}

// With a newer epoch, which the caller has looked at.
bool part_table::may_take_over(node_id from, const part_entry& part) const {
  const bool is_gone =
      part.coordinator != node_.environment().self.id && !node_.peers().contains(part.coordinator);
  return part.coordinator == from || part.may_move || is_gone ||
         (part.ended_ns != 0 && !part.is_halted);
}

void part_table::ignore(node_id from, job_id job, const char* what, node_id coordinator) {
  constexpr std::size_t noted_max = 256;
  ++stray_messages_;
  if (ignored_.size() >= noted_max || !ignored_.emplace(job, from).second) return;
  const auto name = [this](node_id n) {
    if (n == node_.environment().self.id) return node_.environment().self.name;
    const auto at = node_.peers().find(n);
    return at != node_.peers().end() ? at->second.member.name : fmt::format("{:016x}", raw(n));
  };
  const auto at = parts_.find(job);
  node_.note(make_job_event(
      event_kind::message_ignored,
      at != parts_.end() ? at->second.context->job_plan->name : std::string(),
      fmt::format("{:016x}", raw(job)),
      fmt::format("ignored {} of job {:016x} from {}, since {} coordinates that job; further "
                  "ones of it are ignored without a word",
                  what, raw(job), name(from), name(coordinator))));
}

// SN-5: epoch 0: of the job as a whole.
void part_table::note_of(job_id job, const part_entry& part, event_kind kind, std::string text,
                         std::uint32_t epoch) {
  const auto id = fmt::format("{:016x}", raw(job));
  auto about = kind == event_kind::actor_failed ? std::string()
               : epoch == 0                     ? id
                                                : fmt::format("{}/{}", id, epoch);
  node_.note(
      make_job_event(kind, part.context->job_plan->name, id, std::move(text), std::move(about)));
}

// A part may end alone, and its job go on elsewhere: that is no end of the job. `is_lost`: nobody
// goes on with it.
void part_table::note_end(job_id job, const part_entry& part, const std::string& reason,
                          bool is_lost) {
  const auto& name = part.context->job_plan->name;
  const auto over = [&](event_kind kind, std::string_view why) {
    note_of(job, part, kind, fmt::format("job {} is over: {}", name, why));
  };
  const std::string_view all = reason;
  const auto failed = fmt::format("job {} failed: ", name);
  if (is_lost) return over(event_kind::job_failed, all);
  if (reason == job_done_reason) return over(event_kind::job_done, all);
  if (all.starts_with(job_stopped_prefix))
    return over(event_kind::job_stopped, all.substr(job_stopped_prefix.size()));
  if (all.starts_with(job_suspended_prefix))
    return over(event_kind::job_suspended, all.substr(job_suspended_prefix.size()));
  if (all.starts_with(failed)) over(event_kind::job_failed, all.substr(failed.size()));
}

// The first reason stands.
void part_table::end_actors(part_entry& part, const std::string& reason) {
  if (part.reason.empty()) part.reason = reason;
  tell(node_.context(), part.supervisor, stop_part_actors{reason});
}

void part_table::stop(job_id job, part_entry& part, const std::string& reason) {
  kept_.erase(job);
  data_.erase(job);
  blobs_.erase(job);
  if (std::exchange(part.is_halted, false) || part.reason.empty()) part.reason = reason;
  if (part.ended_ns == 0) {
    end_actors(part, reason);
  } else {
    let_go(part);
    node_.parts_changed();
  }
  if (node_.environment().archive)
    tell(node_.context(), node_.environment().archive, close_cuts{job});
}

// NO-15
void part_table::let_go(part_entry& part) {
  has_freed_memory_ = true;
  try {
    part.context = remains_of(*part.context);
  } catch (const std::bad_alloc&) {
    node_.note(make_event(event_kind::note,
                          "there is no memory to list a part that has ended; it is kept as it "
                          "was"));
  }
}

void part_table::stop(node_id from, const stop_part& s) {
  if (const auto at = parts_.find(s.job);
      at != parts_.end() && is_former(from, s.job, at->second, at->second.epoch, "stop_part"))
    return;
  std::erase_if(waiting_, [&](const auto& w) { return w.place.job == s.job && w.from == from; });
  const auto at = parts_.find(s.job);
  if (const auto asked = unanswered_.find(s.job);
      asked != unanswered_.end() && (asked->second.first == from || at != parts_.end()))
    unanswered_.erase(asked);
  if (at == parts_.end()) {
    kept_.erase(s.job);
    ++stray_messages_;
    return;
  }
  if (at->second.is_halted || at->second.reason.empty())
    note_end(s.job, at->second, s.reason, false);
  stop(s.job, at->second, s.reason);
}

void part_table::halt(node_id from, const halt_part& h) {
  std::erase_if(waiting_, [&](const auto& w) {
    return w.place.job == h.job && w.place.epoch <= h.epoch && (w.from == from || w.place.may_move);
  });
  const auto at = parts_.find(h.job);
  if (at != parts_.end() && is_former(from, h.job, at->second, h.epoch, "halt_part")) return;
  if (at != parts_.end() && !may_take_over(from, at->second))
    return ignore(from, h.job, "halt_part", at->second.coordinator);
  if (at != parts_.end()) obey(h.job, at->second, from, h.epoch);
  if (at == parts_.end() || at->second.ended_ns != 0) return answer_halt(h.job, from, h.epoch);
  auto& part = at->second;
  if (!std::exchange(part.is_halted, true))
    note_of(h.job, part, event_kind::job_recovering,
            fmt::format("job {}: {}", part.context->job_plan->name, h.reason), h.epoch);
  part.halted_epoch = std::max(part.halted_epoch, h.epoch);
  data_[h.job] = node_.environment().device->datasets_in_use();
  if (node_.environment().archive)
    tell(node_.context(), node_.environment().archive, close_cuts{h.job});
  end_actors(part, h.reason);
}

// NO-9. Somebody else has the part, in that epoch or a newer one; it is told so.
bool part_table::is_former(node_id from, job_id job, const part_entry& part, std::uint32_t epoch,
                           const char* what) {
  const auto newest = std::max(part.epoch, part.halted_epoch);
  if (part.coordinator == from || part.orphaned_ns != 0 || newest < epoch) return false;
  if (!may_take_over(from, part)) {  // NO-13: it never had it
    ignore(from, job, what, part.coordinator);
    return true;
  }
  node_.send(from, job_moved{job, newest, part.coordinator});
  return true;
}

// NO-9.
void part_table::obey(job_id job, part_entry& part, node_id from, std::uint32_t epoch) {
  part.orphaned_ns = 0;
  if (part.coordinator == from) return;
  node_.send(part.coordinator, job_moved{job, epoch, from});
  part.coordinator = from;
}

void part_table::answer_halt(job_id job, node_id to, std::uint32_t epoch) {
  if (to != node_.environment().self.id && !node_.peers().contains(to)) {  // NO-8
    auto& [whose, last] = unanswered_[job];
    last = whose == to ? std::max(last, epoch) : epoch;
    whose = to;
    return;
  }
  part_halted out{job, epoch, {}, {}, 0};
  if (const auto at = parts_.find(job); at != parts_.end() && at->second.epoch == epoch) {
    out.shards = reports(at->second);
    out.data_messages = data_messages(at->second);
  }
  for (const auto& [variable, kept] : kept_[job]) out.kept.push_back(report_of(variable, *kept));
  node_.send(to, std::move(out));
}

void part_table::answer_waiting_halts() {
  for (const auto& [job, asked] : std::exchange(unanswered_, {}))
    answer_halt(job, asked.first, asked.second);
}

op_times part_table::times() const {
  auto all = times_;
  for (const auto& [id, part] : parts_)
    if (part.ended_ns == 0) note_times(part, all);
  return all;
}

void part_table::note_times(const part_entry& part, op_times& to) {
  const auto& job_plan = *part.context->job_plan;
  for (const auto i : part.actors) {
    const auto& record = part.context->records[i];
    const auto runs = record ? record->kernel_runs.load(std::memory_order_relaxed) : 0;
    if (runs == 0) continue;
    const auto& a = job_plan.actors[i];
    std::vector<tensor_spec> inputs;
    for (const auto e : a.inputs) inputs.push_back(job_plan.edges[e].spec);
    to.add(op_times::key_of(a.ops, inputs, a.output_specs), runs,
           static_cast<double>(record->kernel_ns.load(std::memory_order_relaxed)));
  }
}

void part_table::on_event(part_event& e) {
  auto at = parts_.find(e.job);
  // 0: whichever.
  if (at == parts_.end() || (e.part != 0 && at->second.context->part != e.part)) return;
  auto& part = at->second;
  switch (e.kind) {
    case part_event_kind::placed: return give_handles(e.job, part, e.handles);
    case part_event_kind::noted:
      return node_.send(part.coordinator, part_noted{e.job, part.epoch, e.actor, e.step, e.text});
    case part_event_kind::failed:
      part.has_failed = true;
      note_of(e.job, part, event_kind::actor_failed,
              fmt::format("actor {} failed in step {}: {}", e.actor, e.step, e.text));
      return node_.send(part.coordinator,
                        part_ended{e.job, part.epoch, e.text, e.actor, e.step, reports(part),
                                   data_messages(part), e.is_derived});
    case part_event_kind::done:
      return node_.send(part.coordinator, part_ended{e.job, part.epoch, "", "", 0, reports(part),
                                                     data_messages(part)});
    case part_event_kind::stopped: break;
  }
  note_times(part, times_);
  part.ended_ns = node_.environment().wall_clock_ns();
  part.supervisor = nullptr;
  part.handles = nullptr;
  for (const auto& [id, peer] : node_.peers())
    if (peer.link) tell(node_.context(), peer.link, unbind_job{e.job});
  if (part.is_halted)
    answer_halt(e.job, part.coordinator, part.halted_epoch);
  else
    let_go(part);
  node_.parts_changed();
  place_waiting();
}

void part_table::on_lost(const member_info& m) {
  std::erase_if(waiting_, [&](const auto& w) { return w.from == m.id; });
  std::erase_if(unanswered_, [&](const auto& u) { return u.second.first == m.id; });
  for (auto& [id, part] : parts_) {
    if (part.ended_ns != 0 && !part.is_halted) continue;
    const bool is_stopped = !part.reason.empty() && !part.is_halted;  // nobody goes on with it
    if (part.coordinator == m.id && part.may_move && !is_stopped)     // NO-2
      part.orphaned_ns = std::max<std::int64_t>(1, node_.environment().now_ns());
    else if (part.coordinator == m.id) {
      const auto why = fmt::format("{}, which started the job, is {}", m.name, to_string(m.state));
      if (!is_stopped) note_end(id, part, why, true);
      stop(id, part, why);
    }
    if (part.ended_ns != 0) continue;
    for (std::uint32_t task = 0; task < part.nodes.size(); ++task)
      if (part.nodes[task] == m.id) {
        tell(node_.context(), part.supervisor, task_lost{task, m.name + ": " + m.reason});
        node_.send(part.coordinator, lost_peer{id, m.id, m.reason, m.state == member_state::left});
      }
  }
}

void part_table::stop_orphans() {
  const auto now = node_.environment().now_ns();
  for (auto& [id, part] : parts_)
    if (part.orphaned_ns != 0 && now - part.orphaned_ns > orphaned_max_ns) {
      part.orphaned_ns = 0;
      const auto why = fmt::format(
          "nobody has gone on with the job for {} s after the end of who coordinated it",
          orphaned_max_ns / 1'000'000'000);
      note_end(id, part, why, true);
      stop(id, part, why);
    }
}

void part_table::stop_all(const std::string& reason) {
  waiting_.clear();
  unanswered_.clear();
  for (auto& [id, part] : parts_)
    if (part.ended_ns == 0 || part.is_halted) stop(id, part, reason);
}

void part_table::forget_old(std::uint64_t before_ns) {
  std::vector<std::pair<std::uint64_t, job_id>> ended;  // the newest first
  for (const auto& [id, part] : parts_)
    if (part.ended_ns != 0 && !part.is_halted) ended.emplace_back(part.ended_ns, id);
  std::sort(ended.rbegin(), ended.rend());
  std::size_t parts = 0, actors = 0;
  for (const auto& [ended_ns, id] : ended) {
    const auto at = parts_.find(id);
    ++parts;
    actors += at->second.actors.size();
    if (ended_ns < before_ns || parts > ended_parts_max || (parts > 1 && actors > ended_actors_max))
      parts_.erase(at);
  }
  std::erase_if(blobs_, [&](const auto& b) {
    const auto at = parts_.find(b.first);
    return (at == parts_.end() || (at->second.ended_ns != 0 && !at->second.is_halted)) &&
           std::none_of(waiting_.begin(), waiting_.end(),
                        [&](const auto& w) { return w.place.job == b.first; });
  });
  if (has_freed_memory_) has_freed_memory_ = !return_free_memory();
}

// --- looking -------------------------------------------------------------------------------------

std::uint32_t part_table::running() const noexcept {
  return static_cast<std::uint32_t>(std::count_if(parts_.begin(), parts_.end(), [](const auto& p) {
    return p.second.ended_ns == 0 || p.second.is_halted;
  }));
}

std::vector<std::pair<job_id, node_id>> part_table::movable() const {
  const auto* bugs = node_.environment().bugs;
  std::vector<std::pair<job_id, node_id>> out;
  for (const auto& [id, part] : parts_) {
    const auto& actors = part.context->job_plan->actors;
    const bool is_recoverable = std::any_of(actors.begin(), actors.end(), [](const auto& a) {
      return a.kind == actor_kind::shard && a.shard.is_recoverable;
    });
    const bool counts_halted = bugs == nullptr || !bugs->leaves_when_halted;
    if ((part.ended_ns == 0 || (part.is_halted && counts_halted)) && is_recoverable)
      out.emplace_back(id, part.coordinator);
  }
  return out;
}

bool part_table::is_idle() const noexcept {
  return std::all_of(parts_.begin(), parts_.end(),
                     [](const auto& p) { return p.second.ended_ns != 0; });
}

std::uint64_t part_table::data_messages(const part_entry& part) {
  std::uint64_t n = 0;
  for (auto i : part.actors)
    n += part.context->records[i]->messages_in.load(std::memory_order_relaxed);
  return n;
}

std::vector<shard_report> part_table::reports(const part_entry& part) {
  std::vector<shard_report> out;
  for (auto i : part.actors) {
    const auto& l = part.context->ledgers[i];
    // A replica's are its shard's.
    if (l == nullptr || part.context->job_plan->actors[i].shard.follows) continue;
    shard_report r{i, {}, {}, {}, {}};
    for (std::size_t w = 0; w < l->received.size(); ++w) {
      r.received.push_back(l->received[w].load(std::memory_order_relaxed));
      r.applied.push_back(l->applied[w].load(std::memory_order_relaxed));
      r.dropped.push_back(l->dropped[w].load(std::memory_order_relaxed));
      r.duplicates.push_back(l->duplicates[w].load(std::memory_order_relaxed));
    }
    out.push_back(std::move(r));
  }
  return out;
}

}  // namespace troupe
