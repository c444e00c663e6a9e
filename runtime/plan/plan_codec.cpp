// Plans as bytes (schema/plan.capnp): limits and references here and in plan_parts.hpp, check()
// does the rest.

#include "troupe/runtime/plan/plan.hpp"

#include "troupe/runtime/plan/plan_blobs.hpp"
#include "troupe/runtime/plan/plan_parts.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

namespace troupe {
namespace {

using plan_parts::fill;
using plan_parts::list_size;
using plan_parts::put;

// --- encode --------------------------------------------------------------------------------------

class encoder {
 public:
  // `known` and `blobs`: of bytes that travel apart; null: none do.
  explicit encoder(const plan& p, known_blobs* known = nullptr, blob_map* blobs = nullptr)
      : p_(p), known_(known), blobs_(blobs) {
    for (const auto& a : p.actors) {
      lines_.see(a.source.file);
      for (const auto& op : a.ops) lines_.see(op.source.file);
    }
  }

  std::vector<std::byte> run() {
    capnp::MallocMessageBuilder message;
    auto root = message.initRoot<wire::Plan>();
    root.setName(p_.name);
    root.setSeed(p_.seed);
    root.setUpdate(static_cast<std::uint8_t>(p_.update));
    root.setWorkers(p_.workers);
    root.setShards(p_.shards);
    fill(root.initTasks(list_size(p_.tasks)), p_.tasks, [&](auto to, const planned_task& t) {
      to.setName(t.name);
      to.setIsClient(t.is_client);
      to.setNode(raw(t.node));
    });
    fill(root.initActors(list_size(p_.actors)), p_.actors,
         [&](auto to, const planned_actor& a) { put_actor(to, a); });
    fill(root.initEdges(list_size(p_.edges)), p_.edges, [&](auto to, const planned_edge& e) {
      to.setFromActor(e.from.actor);
      to.setFromPort(e.from.port);
      to.setToActor(e.to.actor);
      to.setToPort(e.to.port);
      to.setCredits(e.credits);
    });
    root.setStepsInFlight(p_.steps_in_flight);
    root.setOnNan(static_cast<std::uint8_t>(p_.on_nan));
    fill(root.initBuffers(list_size(p_.buffers)), p_.buffers, [](auto to, const planned_buffer& b) {
      to.setTask(b.task);
      to.setStream(b.stream);
      to.setBytes(b.bytes);
    });
    fill(root.initLibraries(list_size(p_.libraries)), p_.libraries,
         [](auto to, const planned_library& l) { put(to, l); });
    lines_.put(root.initFiles(lines_.count()));
    if (blobs_ != nullptr) put_apart(root);
    return plan_parts::to_bytes(message);
  }

 private:
  bool is_apart(const attributes::entry& e) const {
    const auto* bytes = std::get_if<shared_bytes>(&e.second);
    return blobs_ != nullptr && bytes != nullptr && bytes->view().size() >= apart_bytes_min;
  }
  void put_apart(wire::Plan::Builder root) {
    struct place {
      std::uint32_t actor, op;
      const attributes::entry* entry;
    };
    std::vector<place> places;
    for (std::uint32_t a = 0; a < p_.actors.size(); ++a)
      for (std::uint32_t o = 0; o < p_.actors[a].ops.size(); ++o)
        for (const auto& e : p_.actors[a].ops[o].attrs.entries())
          if (is_apart(e)) places.push_back({a, o, &e});
    fill(root.initApart(list_size(places)), places, [this](auto to, const place& at) {
      const auto& bytes = std::get<shared_bytes>(at.entry->second);
      const auto id = known_->id(bytes);
      blobs_->emplace(id, bytes);
      to.setActor(at.actor);
      to.setOp(at.op);
      to.setAttribute(at.entry->first);
      to.setLow(id.low);
      to.setHigh(id.high);
      to.setBytes(id.bytes);
    });
  }
  void put_op(wire::PlannedOp::Builder to, const planned_op& op) const {
    to.setType(op.type);
    to.setName(op.name);
    fill(to.initAttributes(list_size(op.attrs.entries())), op.attrs.entries(),
         [this](auto b, const auto& e) {
           if (is_apart(e))
             put(b, {e.first, shared_bytes()});
           else
             put(b, e);
         });
    auto operands = to.initOperands(list_size(op.operands));
    for (unsigned i = 0; i < operands.size(); ++i) operands.set(i, op.operands[i]);
    lines_.put(to.initSource(), op.source.file, op.source.line);
  }
  static void put_shard(wire::Shard::Builder to, const shard_spec& s) {
    to.setVariable(s.variable);
    put(to.initSpec(), s.spec);
    to.setShard(s.shard);
    to.setUpdate(static_cast<std::uint8_t>(s.update));
    to.setOptimizer(s.optimizer.type);
    to.setLearningRate(s.optimizer.learning_rate);
    to.setMomentum(s.optimizer.momentum);
    put(to.initOptimizerNumbers(), s.optimizer);
    put(to.initSchedule(), s.schedule);
    to.setPushesRows(s.pushes_rows);
    if (s.average) {
      to.setAverageRate(s.average->rate);
      to.setAverageSamples(s.average->samples);
    }
    to.setInitializer(static_cast<std::uint8_t>(s.initializer.type));
    to.setLimit(s.initializer.limit);
    to.setSeed(s.seed);
    auto steps = to.initSteps(list_size(s.steps));
    for (unsigned i = 0; i < steps.size(); ++i) steps.set(i, s.steps[i]);
    fill(to.initReaders(list_size(s.readers)), s.readers, [](auto b, const shard_reader& r) {
      b.setWorker(r.worker);
      b.setFirst(r.first);
      b.setStride(r.stride);
      b.setAtEnd(r.at_end);
    });
    to.setRestore(static_cast<std::uint8_t>(s.restore));
    to.setVersion(s.version);
    auto start = to.initStart(list_size(s.start));
    for (unsigned i = 0; i < start.size(); ++i) start.set(i, s.start[i]);
    to.setIsRecoverable(s.is_recoverable);
    to.setIsSaved(s.is_saved);
    auto handed = to.initHanded(list_size(s.handed));
    for (unsigned i = 0; i < handed.size(); ++i) handed.set(i, s.handed[i]);
    to.setKeeps(s.keeps);
    to.setForwards(s.forwards);
    to.setFollows(s.follows);
    to.setCutEvery(s.cut_every);
    to.setCutsAtEnd(s.cuts_at_end);
    to.setTakesSums(s.takes_sums);
    to.setLeavesOutMarked(s.leaves_out_marked);
    if (s.loss_scale) {
      to.setLossScaleSamples(s.loss_scale->samples);
      to.setLossScaleGrowsEvery(s.loss_scale->grows_every);
    }
  }
  static void put_collective(wire::Collective::Builder to, const planned_collective& c) {
    to.setKind(static_cast<std::uint8_t>(c.spec.kind));
    to.setReduction(static_cast<std::uint8_t>(c.spec.reduction));
    to.setAlgorithm(static_cast<std::uint8_t>(c.spec.algorithm));
    to.setDtype(static_cast<std::uint8_t>(c.spec.type));
    to.setRank(c.spec.rank);
    to.setRoot(c.spec.root);
    to.setElements(c.spec.elements);
    to.setPieceElements(c.spec.piece_elements);
    auto parts = to.initParts(list_size(c.spec.parts));
    for (unsigned r = 0; r < parts.size(); ++r) {
      auto of = parts.init(r, list_size(c.spec.parts[r]));
      for (unsigned i = 0; i < of.size(); ++i) of.set(i, c.spec.parts[r][i]);
    }
    to.setTensors(c.tensors);
    auto workers = to.initWorkers(list_size(c.workers));
    for (unsigned i = 0; i < workers.size(); ++i) workers.set(i, c.workers[i]);
    auto buckets = to.initBuckets(list_size(c.buckets));
    for (unsigned i = 0; i < buckets.size(); ++i) buckets.set(i, c.buckets[i]);
    to.setIsInOrder(c.is_in_order);
  }
  void put_actor(wire::PlannedActor::Builder to, const planned_actor& a) const {
    to.setKind(static_cast<std::uint8_t>(a.kind));
    to.setName(a.name);
    to.setTask(a.task);
    to.setStream(a.stream);
    fill(to.initOps(list_size(a.ops)), a.ops,
         [this](auto b, const planned_op& op) { put_op(b, op); });
    if (a.kind == actor_kind::shard) put_shard(to.initShard(), a.shard);
    if (a.collective) put_collective(to.initCollective(), *a.collective);
    to.setInputs(list_size(a.inputs));
    fill(to.initOutputs(list_size(a.output_specs)), a.output_specs,
         [](auto b, const tensor_spec& s) { put(b, s); });
    to.setSteps(a.steps);
    to.setFiresOnAny(a.fires_on_any);
    to.setStart(a.start);
    to.setMarksCuts(a.marks_cuts);
    to.setAwaitsReceipt(a.awaits_receipt);
    auto buffers = to.initBuffers(list_size(a.buffers));
    for (unsigned i = 0; i < buffers.size(); ++i) buffers.set(i, a.buffers[i]);
    to.setHandsOn(a.forwards_input);
    to.setInPlace(a.in_place);
    to.setLoopLevel(a.loop_level);
    auto sticky = to.initSticky(list_size(a.sticky));
    for (unsigned i = 0; i < sticky.size(); ++i) sticky.set(i, a.sticky[i]);
    auto places = to.initPlaces(list_size(a.places));
    for (unsigned i = 0; i < places.size(); ++i) places.set(i, a.places[i]);
    fill(to.initKernels(list_size(a.kernels)), a.kernels, [](auto b, const planned_kernel& k) {
      b.setFirstOp(k.first_op);
      auto operands = b.initOperands(list_size(k.operands));
      for (unsigned i = 0; i < operands.size(); ++i) operands.set(i, k.operands[i]);
      fill(b.initResults(list_size(k.results)), k.results,
           [](auto r, const tensor_spec& s) { put(r, s); });
      auto at = b.initPlaces(list_size(k.places));
      for (unsigned i = 0; i < at.size(); ++i) at.set(i, k.places[i]);
    });
    to.setArenaBytes(a.arena_bytes);
    to.setCopy(static_cast<std::uint8_t>(a.copy));
    lines_.put(to.initSource(), a.source.file, a.source.line);
  }

  const plan& p_;
  known_blobs* known_;
  blob_map* blobs_;
  plan_parts::line_writer lines_;
};

// --- decode --------------------------------------------------------------------------------------

constexpr auto no_edge = std::numeric_limits<std::uint32_t>::max();

// Words that an element of each list takes in the message, at least.
constexpr std::uint64_t task_words = 2, actor_words = 8, edge_words = 3, op_words = 5,
                        buffer_words = 2, kernel_words = 4, apart_words = 5;
using plan_parts::library_words, plan_parts::small_words;

using bad_plan = plan_parts::misread;

struct apart_place {
  std::uint32_t actor = 0, op = 0;
  std::string attribute;
  blob_id id;
};

class decoder : private plan_parts::part_reader {
 public:
  using part_reader::part_reader;

  plan run(wire::Plan::Reader root) {
    plan p;
    p.name = text(root.getName());
    p.seed = root.getSeed();
    p.update = update(root.getUpdate());
    p.workers = root.getWorkers();
    p.shards = root.getShards();
    read_files(root.getFiles());
    const auto tasks = root.getTasks();
    limit("tasks", tasks.size(), plan_tasks_max, task_words);
    for (const auto t : tasks)
      p.tasks.push_back({text(t.getName()), t.getIsClient(), node_id{t.getNode()}});
    const auto actors = root.getActors();
    const auto edges = root.getEdges();
    limit("actors", actors.size(), plan_actors_max, actor_words);
    limit("edges", edges.size(), plan_edges_max, edge_words);
    inputs_left_ = edges.size();
    p.actors.reserve(actors.size());
    for (const auto a : actors) p.actors.push_back(actor(a));
    p.edges.reserve(edges.size());
    for (const auto e : edges) join(p, e);
    p.steps_in_flight = root.getStepsInFlight();
    p.on_nan = static_cast<nan_policy>(root.getOnNan());
    const auto buffers = root.getBuffers();
    limit("buffers", buffers.size(), plan_buffers_max, buffer_words);
    for (const auto b : buffers) p.buffers.push_back({b.getTask(), b.getStream(), b.getBytes()});
    const auto libraries = root.getLibraries();
    limit("libraries", libraries.size(), libraries_max, library_words);
    for (const auto l : libraries) p.libraries.push_back(library(l));
    return p;
  }
  // Of `p`, which it has read.
  std::vector<apart_place> apart(wire::Plan::Reader root, const plan& p) {
    const auto list = root.getApart();
    limit("attributes with bytes apart", list.size(), plan_edges_max, apart_words);
    std::vector<apart_place> out;
    for (const auto a : list) {
      apart_place at{
          a.getActor(), a.getOp(), text(a.getAttribute()), {a.getLow(), a.getHigh(), a.getBytes()}};
      if (at.actor >= p.actors.size() || at.op >= p.actors[at.actor].ops.size())
        throw bad_plan{"bytes are apart of an op that it does not have"};
      const auto& entries = p.actors[at.actor].ops[at.op].attrs.entries();
      const auto is_it = [&](const auto& e) {
        return e.first == at.attribute && std::holds_alternative<shared_bytes>(e.second);
      };
      if (std::none_of(entries.begin(), entries.end(), is_it))
        throw bad_plan{"bytes are apart of an attribute that it does not have"};
      if (at.id.bytes < apart_bytes_min || at.id.bytes > blob_bytes_max)
        throw bad_plan{fmt::format("{} bytes of an op are apart", at.id.bytes)};
      out.push_back(std::move(at));
    }
    return out;
  }

 private:
  planned_op op(wire::PlannedOp::Reader r) {
    planned_op op;
    op.type = text(r.getType());
    op.name = text(r.getName());
    op.attrs = all_attributes(r.getAttributes());
    const auto operands = r.getOperands();
    spend(operands.size() / 2, 1);
    for (const auto o : operands) op.operands.push_back(o);
    op.source = line(r.getSource());
    return op;
  }
  shard_spec shard(wire::Shard::Reader r) {
    shard_spec s;
    s.variable = text(r.getVariable());
    s.spec = spec(r.getSpec());
    s.shard = r.getShard();
    s.update = update(r.getUpdate());
    s.optimizer = optimizer(text(r.getOptimizer()), r.getLearningRate(), r.getMomentum(),
                            r.getOptimizerNumbers());
    s.schedule = schedule(r.getSchedule());
    s.pushes_rows = r.getPushesRows();
    if (const auto samples = r.getAverageSamples(); samples > 0)
      s.average = moving_average_spec{r.getAverageRate(), samples};
    const auto initializer = r.getInitializer();
    if (initializer > 4) throw bad_plan{fmt::format("there is no initializer {}", initializer)};
    s.initializer = {static_cast<initializer_spec::kind>(initializer), r.getLimit()};
    s.seed = r.getSeed();
    const auto steps = r.getSteps();
    spend(steps.size(), 1);
    for (const auto n : steps) s.steps.push_back(n);
    const auto readers = r.getReaders();
    spend(readers.size(), small_words);
    for (const auto x : readers)
      s.readers.push_back({x.getWorker(), x.getFirst(), x.getStride(), x.getAtEnd()});
    const auto restore = r.getRestore();
    if (restore > 2) throw bad_plan{fmt::format("there is no way {} to restore a shard", restore)};
    s.restore = static_cast<restore_kind>(restore);
    s.version = r.getVersion();
    const auto start = r.getStart();
    spend(start.size(), 1);
    for (const auto n : start) s.start.push_back(n);
    s.is_recoverable = r.getIsRecoverable();
    s.is_saved = r.getIsSaved();
    const auto handed = r.getHanded();
    spend(handed.size(), 1);
    for (const auto n : handed) s.handed.push_back(n);
    s.keeps = r.getKeeps();
    s.forwards = r.getForwards();
    s.follows = r.getFollows();
    s.cut_every = r.getCutEvery();
    s.cuts_at_end = r.getCutsAtEnd();
    s.takes_sums = r.getTakesSums();
    s.leaves_out_marked = r.getLeavesOutMarked();
    if (const auto samples = r.getLossScaleSamples(); samples > 0)
      s.loss_scale = loss_scale_update{r.getLossScaleGrowsEvery(), samples};
    return s;
  }
  // Its peers follow from the rest.
  planned_collective collective(wire::Collective::Reader r) {
    planned_collective c;
    c.spec.kind = static_cast<collective_kind>(r.getKind());
    c.spec.reduction = static_cast<reduction_kind>(r.getReduction());
    c.spec.algorithm = static_cast<collective_algorithm>(r.getAlgorithm());
    if (r.getDtype() >= dtype_count)
      throw bad_plan{fmt::format("there is no element type {}", r.getDtype())};
    c.spec.type = static_cast<dtype>(r.getDtype());
    c.spec.rank = r.getRank();
    c.spec.root = r.getRoot();
    c.spec.elements = r.getElements();
    c.spec.piece_elements = r.getPieceElements();
    const auto parts = r.getParts();
    limit("ranks of a collective", parts.size(), ranks_max, 1);
    for (const auto of : parts) {
      spend((std::uint64_t{of.size()} + 1) / 2, 1);
      auto& own = c.spec.parts.emplace_back();
      for (const auto part : of) own.push_back(part);
    }
    c.tensors = r.getTensors();
    const auto workers = r.getWorkers();
    limit("workers of a rank", workers.size(), parts_max, 1);
    for (const auto w : workers) c.workers.push_back(w);
    spend((std::uint64_t{r.getBuckets().size()} + 1) / 2, 1);
    for (const auto b : r.getBuckets()) c.buckets.push_back(b);
    c.is_in_order = r.getIsInOrder();
    if (auto ok = check(c.spec); !ok) throw bad_plan{ok.error().message()};
    const auto peers = peers_of(c);
    c.peers_from = peers.from;
    c.peers_to = peers.to;
    return c;
  }
  planned_actor actor(wire::PlannedActor::Reader r) {
    planned_actor a;
    const auto kind = r.getKind();
    if (kind > static_cast<std::uint8_t>(actor_kind::fetch) &&
        kind != static_cast<std::uint8_t>(actor_kind::collective) &&
        kind != static_cast<std::uint8_t>(actor_kind::copy))
      throw bad_plan{fmt::format("a plan has no actors of kind {}", kind)};
    a.kind = static_cast<actor_kind>(kind);
    a.name = text(r.getName());
    a.task = r.getTask();
    a.stream = r.getStream();
    const auto ops = r.getOps();
    spend(ops.size(), op_words);
    a.ops.reserve(ops.size());
    for (const auto x : ops) a.ops.push_back(op(x));
    if (a.kind == actor_kind::shard) a.shard = shard(r.getShard());
    if (a.kind == actor_kind::collective) a.collective = collective(r.getCollective());
    const auto inputs = r.getInputs();
    if (inputs > inputs_left_) throw bad_plan{"actors have more inputs than there are edges"};
    inputs_left_ -= inputs;
    a.inputs.assign(inputs, no_edge);
    const auto outputs = r.getOutputs();
    spend(outputs.size(), small_words);
    for (const auto x : outputs) a.output_specs.push_back(spec(x));
    a.outputs.resize(a.output_specs.size());
    a.steps = r.getSteps();
    a.fires_on_any = r.getFiresOnAny();
    a.start = r.getStart();
    a.marks_cuts = r.getMarksCuts();
    a.awaits_receipt = r.getAwaitsReceipt();
    const auto buffers = r.getBuffers();
    spend((std::uint64_t{buffers.size()} + 1) / 2, small_words);
    for (const auto b : buffers) a.buffers.push_back(b);
    a.forwards_input = r.getHandsOn();
    a.in_place = r.getInPlace();
    a.loop_level = r.getLoopLevel();
    const auto sticky = r.getSticky();
    spend((std::uint64_t{sticky.size()} + 3) / 4, small_words);
    for (const auto level : sticky) a.sticky.push_back(level);
    const auto places = r.getPlaces();
    spend((std::uint64_t{places.size()} + 1) / 2, small_words);
    for (const auto place : places) a.places.push_back(place);
    const auto kernels = r.getKernels();
    spend(kernels.size(), kernel_words);
    for (const auto k : kernels) a.kernels.push_back(segment_kernel(k));
    a.arena_bytes = r.getArenaBytes();
    a.copy = static_cast<copy_kind>(r.getCopy());
    a.source = line(r.getSource());
    return a;
  }
  planned_kernel segment_kernel(wire::Kernel::Reader r) {
    planned_kernel k;
    k.first_op = r.getFirstOp();
    const auto operands = r.getOperands();
    spend((std::uint64_t{operands.size()} + 1) / 2, small_words);
    for (const auto o : operands) k.operands.push_back(o);
    const auto results = r.getResults();
    spend(results.size(), small_words);
    for (const auto x : results) k.results.push_back(spec(x));
    const auto at = r.getPlaces();
    spend(at.size(), small_words);
    for (const auto place : at) k.places.push_back(place);
    return k;
  }
  // Adds the edge to both of its ends.
  static void join(plan& p, wire::PlannedEdge::Reader r) {
    planned_edge e{
        {r.getFromActor(), r.getFromPort()}, {r.getToActor(), r.getToPort()}, {}, r.getCredits()};
    const auto number = static_cast<std::uint32_t>(p.edges.size());
    if (e.from.actor >= p.actors.size() || e.to.actor >= p.actors.size())
      throw bad_plan{fmt::format("edge {} joins actors {} and {} of {} (PL-1)", number,
                                 e.from.actor, e.to.actor, p.actors.size())};
    auto &producer = p.actors[e.from.actor], &consumer = p.actors[e.to.actor];
    if (e.from.port >= producer.outputs.size() || e.to.port >= consumer.inputs.size())
      throw bad_plan{
          fmt::format("edge {} from '{}' to '{}' is at a port that does not exist (PL-1)", number,
                      producer.name, consumer.name)};
    if (consumer.inputs[e.to.port] != no_edge)
      throw bad_plan{
          fmt::format("input {} of '{}' has two edges (PL-2)", e.to.port, consumer.name)};
    e.spec = producer.output_specs[e.from.port];
    producer.outputs[e.from.port].push_back(number);
    consumer.inputs[e.to.port] = number;
    p.edges.push_back(std::move(e));
  }

  std::uint64_t inputs_left_ = 0;
};

}  // namespace

std::vector<std::byte> encode(const plan& p) { return encoder(p).run(); }

result<plan> decode_plan(std::span<const std::byte> bytes) {
  auto p = decode_apart(bytes);
  if (!p) return std::move(p.error());
  if (!p->is_whole())
    return error(error_code::usage, "not a plan: some of its bytes are not in it");
  return p->finish();
}

// --- bytes apart ---------------------------------------------------------------------------------

blob_id id_of(std::span<const std::byte> bytes) noexcept {
  const auto h = XXH3_128bits(bytes.data(), bytes.size());
  return {h.low64, h.high64, bytes.size()};
}

blob_id known_blobs::id(const shared_bytes& bytes) {
  const auto view = bytes.view();
  const auto at = ids_.find(view.data());
  if (at != ids_.end()) return at->second.first;
  return ids_.emplace(view.data(), std::pair(id_of(view), bytes)).first->second.first;
}

apart_plan encode_apart(const plan& p, known_blobs& known) {
  apart_plan out;
  out.bytes = encoder(p, &known, &out.blobs).run();
  return out;
}

result<unfinished_plan> decode_apart(std::span<const std::byte> bytes) {
  unfinished_plan out;
  auto ok = plan_parts::read_message(
      bytes, plan_bytes_max, "a plan", [&](capnp::MessageReader& m, std::uint64_t words) {
        const auto root = m.getRoot<wire::Plan>();
        decoder read(words);
        out.plan_ = read.run(root);
        std::uint64_t all = 0;
        for (auto& at : read.apart(root, out.plan_)) {
          if (out.blobs_.try_emplace(at.id).second) all += at.id.bytes;
          if (all > blob_bytes_max)
            throw bad_plan{
                fmt::format("{} bytes are apart from it, at most {} may be", all, blob_bytes_max)};
          out.places_.push_back({at.actor, at.op, std::move(at.attribute), at.id});
        }
      });
  if (!ok) return std::move(ok.error());
  return out;
}

void unfinished_plan::give(const blob_id& id, shared_bytes bytes) {
  if (const auto at = blobs_.find(id); at != blobs_.end()) at->second = std::move(bytes);
}

bool unfinished_plan::is_whole() const noexcept {
  return std::none_of(blobs_.begin(), blobs_.end(),
                      [](const auto& b) { return b.second.view().empty(); });
}

std::uint64_t unfinished_plan::blob_bytes() const noexcept {
  std::uint64_t all = 0;
  for (const auto& [id, bytes] : blobs_) all += id.bytes;
  return all;
}

result<plan> unfinished_plan::finish() {
  expects(is_whole(), "every blob was given");
  for (auto& p : places_)
    plan_.actors[p.actor].ops[p.op].attrs.set(std::move(p.attribute), blobs_.at(p.id));
  places_.clear();
  if (auto ok = check(plan_); !ok) return std::move(ok.error().while_doing("plan"));
  return std::move(plan_);
}

}  // namespace troupe
