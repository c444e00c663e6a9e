// Plans as bytes (schema/plan.capnp). Cap'n Proto checks every pointer against the message; what it cannot know is
// checked here: numbers of enums, references, and that no list claims more elements than the bytes can hold, so that
// memory is taken in proportion to the message. check() does the rest.

#include "runtime/plan.hpp"

#include "schema/plan.capnp.h"

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <fmt/format.h>
#include <kj/exception.h>

#include <array>
#include <cstring>
#include <limits>
#include <map>

namespace troupe {
namespace {

// --- encode
// ----------------------------------------------------------------------------------------------------------------

class encoder {
 public:
  explicit encoder(const plan& p) : p_(p) {
    for (const auto& a : p.actors) {
      number_file(a.source);
      for (const auto& op : a.ops) number_file(op.source);
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
    fill(root.initTasks(size(p_.tasks)), p_.tasks, [&](auto to, const planned_task& t) {
      to.setName(t.name);
      to.setIsClient(t.is_client);
      to.setNode(raw(t.node));
    });
    fill(root.initActors(size(p_.actors)), p_.actors, [&](auto to, const planned_actor& a) { put(to, a); });
    fill(root.initEdges(size(p_.edges)), p_.edges, [&](auto to, const planned_edge& e) {
      to.setFromActor(e.from.actor);
      to.setFromPort(e.from.port);
      to.setToActor(e.to.actor);
      to.setToPort(e.to.port);
      to.setCredits(e.credits);
    });
    root.setStepsInFlight(p_.steps_in_flight);
    fill(root.initBuffers(size(p_.buffers)), p_.buffers, [](auto to, const planned_buffer& b) {
      to.setTask(b.task);
      to.setStream(b.stream);
      to.setBytes(b.bytes);
    });
    fill(root.initLibraries(size(p_.libraries)), p_.libraries, [&](auto to, const planned_library& l) {
      to.setName(l.library.name);
      to.setVersion(l.library.version);
      to.setAbi(l.library.abi);
      auto ops = to.initOps(size(l.ops));
      for (unsigned i = 0; i < ops.size(); ++i) ops.set(i, l.ops[i]);
    });
    auto files = root.initFiles(size(files_));
    for (const auto& [name, number] : files_) files.set(number - 1, name);
    const auto words = capnp::messageToFlatArray(message);
    const auto bytes = words.asBytes();
    std::vector<std::byte> out(bytes.size());
    if (!out.empty()) std::memcpy(out.data(), bytes.begin(), out.size());
    return out;
  }

 private:
  template <class Container>
  static unsigned size(const Container& c) {
    expects(c.size() < (std::size_t{1} << 29U), "a list of a plan fits in Cap'n Proto");
    return static_cast<unsigned>(c.size());
  }
  template <class List, class Container, class Put>
  static void fill(List list, const Container& from, Put&& put_one) {
    unsigned i = 0;
    for (const auto& x : from) put_one(list[i++], x);
  }

  void number_file(const source_line& s) {
    if (!s.file.empty()) files_.try_emplace(s.file, static_cast<std::uint32_t>(files_.size()) + 1);
  }
  void put(wire::Line::Builder to, const source_line& s) const {
    to.setFile(s.file.empty() ? 0 : files_.at(s.file));
    to.setLine(s.line);
  }
  static void put(wire::TensorSpec::Builder to, const tensor_spec& s) {
    to.setDtype(static_cast<std::uint8_t>(s.type));
    auto dims = to.initDims(static_cast<unsigned>(s.shape.rank()));
    for (unsigned i = 0; i < s.shape.rank(); ++i) {
      dims[i].setSize(s.shape.size(i));
      dims[i].setSymbol(s.shape[i].symbol);
    }
  }
  static void put(wire::Attribute::Builder to, const attributes::entry& e) {
    to.setName(e.first);
    if (const auto* integer = std::get_if<std::int64_t>(&e.second)) to.setInteger(*integer);
    if (const auto* real = std::get_if<double>(&e.second)) to.setReal(*real);
    if (const auto* text = std::get_if<std::string>(&e.second)) to.setText(*text);
    if (const auto* integers = std::get_if<std::vector<std::int64_t>>(&e.second)) {
      auto list = to.initIntegers(size(*integers));
      for (unsigned i = 0; i < list.size(); ++i) list.set(i, (*integers)[i]);
    }
    if (const auto* data = std::get_if<shared_bytes>(&e.second)) {
      const auto bytes = data->view();
      auto to_bytes = to.initData(static_cast<unsigned>(bytes.size()));
      if (!bytes.empty()) std::memcpy(to_bytes.begin(), bytes.data(), bytes.size());
    }
  }
  void put(wire::PlannedOp::Builder to, const planned_op& op) const {
    to.setType(op.type);
    to.setName(op.name);
    fill(to.initAttributes(size(op.attrs.entries())), op.attrs.entries(), [](auto b, const auto& e) { put(b, e); });
    auto operands = to.initOperands(size(op.operands));
    for (unsigned i = 0; i < operands.size(); ++i) operands.set(i, op.operands[i]);
    put(to.initSource(), op.source);
  }
  static void put(wire::OptimizerNumbers::Builder to, const optimizer_spec& o) {
    to.setNesterov(o.nesterov);
    to.setWeightDecay(o.weight_decay);
    to.setBeta1(o.beta1);
    to.setBeta2(o.beta2);
    to.setAlpha(o.alpha);
    to.setCentered(o.centered);
    to.setEpsilon(o.epsilon);
    to.setLearningRateDecay(o.learning_rate_decay);
    to.setInitialAccumulator(o.initial_accumulator);
    to.setClipValue(o.clip_value);
    to.setClipNorm(o.clip_norm);
  }
  static void put(wire::Schedule::Builder to, const learning_rate_schedule& s) {
    to.setKind(static_cast<std::uint8_t>(s.type));
    to.setWarmup(s.warmup);
    to.setEvery(s.every);
    to.setDecay(s.decay);
    to.setSteps(s.steps);
    to.setMinimum(s.minimum);
    to.setTimescale(s.timescale);
  }
  static void put(wire::Shard::Builder to, const shard_spec& s) {
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
    auto steps = to.initSteps(size(s.steps));
    for (unsigned i = 0; i < steps.size(); ++i) steps.set(i, s.steps[i]);
    fill(to.initReaders(size(s.readers)), s.readers, [](auto b, const shard_reader& r) {
      b.setWorker(r.worker);
      b.setFirst(r.first);
      b.setStride(r.stride);
      b.setAtEnd(r.at_end);
    });
    to.setRestore(static_cast<std::uint8_t>(s.restore));
    to.setVersion(s.version);
    auto start = to.initStart(size(s.start));
    for (unsigned i = 0; i < start.size(); ++i) start.set(i, s.start[i]);
    to.setIsRecoverable(s.is_recoverable);
    to.setIsSaved(s.is_saved);
    auto handed = to.initHanded(size(s.handed));
    for (unsigned i = 0; i < handed.size(); ++i) handed.set(i, s.handed[i]);
    to.setKeeps(s.keeps);
    to.setForwards(s.forwards);
    to.setFollows(s.follows);
    to.setCutEvery(s.cut_every);
    to.setCutsAtEnd(s.cuts_at_end);
  }
  void put(wire::PlannedActor::Builder to, const planned_actor& a) const {
    to.setKind(static_cast<std::uint8_t>(a.kind));
    to.setName(a.name);
    to.setTask(a.task);
    to.setStream(a.stream);
    fill(to.initOps(size(a.ops)), a.ops, [this](auto b, const planned_op& op) { put(b, op); });
    if (a.kind == actor_kind::shard) put(to.initShard(), a.shard);
    to.setInputs(size(a.inputs));
    fill(to.initOutputs(size(a.output_specs)), a.output_specs, [](auto b, const tensor_spec& s) { put(b, s); });
    to.setSteps(a.steps);
    to.setFiresOnAny(a.fires_on_any);
    to.setStart(a.start);
    to.setMarksCuts(a.marks_cuts);
    to.setAwaitsReceipt(a.awaits_receipt);
    auto buffers = to.initBuffers(size(a.buffers));
    for (unsigned i = 0; i < buffers.size(); ++i) buffers.set(i, a.buffers[i]);
    to.setHandsOn(a.hands_on);
    to.setInPlace(a.in_place);
    put(to.initSource(), a.source);
  }

  const plan& p_;
  std::map<std::string, std::uint32_t> files_;  // 1 + number in the list
};

// --- decode
// ----------------------------------------------------------------------------------------------------------------

constexpr auto no_edge = std::numeric_limits<std::uint32_t>::max();

// Words that an element of each list takes in the message, at least.
constexpr std::uint64_t task_words = 2, actor_words = 8, edge_words = 3, op_words = 5, library_words = 4, buffer_words = 2, small_words = 1;

// Every op has a copy of its file's name, and attributes are inserted in order.
constexpr std::size_t file_name_max = 1024, attributes_max = 256;

// A mistake found while decoding leaves through this one exception, as Cap'n Proto's own do; decode_plan() catches
// both.
struct bad_plan {
  std::string what;
};

class decoder {
 public:
  explicit decoder(std::uint64_t words) : words_left_(words) {}

  plan run(wire::Plan::Reader root) {
    plan p;
    p.name = text(root.getName());
    p.seed = root.getSeed();
    p.update = update(root.getUpdate());
    p.workers = root.getWorkers();
    p.shards = root.getShards();
    const auto files = root.getFiles();
    spend(files.size(), small_words);
    for (const auto f : files) {
      files_.push_back(text(f));
      if (files_.back().size() > file_name_max) throw bad_plan{"the name of a source file is too long"};
    }
    const auto tasks = root.getTasks();
    limit("tasks", tasks.size(), plan_tasks_max, task_words);
    for (const auto t : tasks) p.tasks.push_back({text(t.getName()), t.getIsClient(), node_id{t.getNode()}});
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
    const auto buffers = root.getBuffers();
    limit("buffers", buffers.size(), plan_buffers_max, buffer_words);
    for (const auto b : buffers) p.buffers.push_back({b.getTask(), b.getStream(), b.getBytes()});
    const auto libraries = root.getLibraries();
    limit("libraries", libraries.size(), libraries_max, library_words);
    for (const auto l : libraries) p.libraries.push_back(library(l));
    return p;
  }

 private:
  void spend(std::uint64_t elements, std::uint64_t words_each) {
    if (elements > words_left_ / words_each) throw bad_plan{"a list claims more elements than the bytes can hold"};
    words_left_ -= elements * words_each;
  }
  void limit(const char* what, std::uint64_t n, std::uint64_t most, std::uint64_t words_each) {
    if (n > most) throw bad_plan{fmt::format("{} {}, at most {} are allowed", n, what, most)};
    spend(n, words_each);
  }

  std::string text(capnp::Text::Reader t) {
    // Many pointers may show the same bytes.
    spend(t.size() / sizeof(capnp::word), 1);
    return {t.begin(), t.size()};
  }
  static update_kind update(std::uint8_t n) {
    if (n > 1) throw bad_plan{fmt::format("there is no update {}", n)};
    return static_cast<update_kind>(n);
  }
  source_line line(wire::Line::Reader l) const {
    const auto file = l.getFile();
    if (file > files_.size()) throw bad_plan{fmt::format("a line refers to file {} of {}", file, files_.size())};
    return {file == 0 ? std::string() : files_[file - 1], l.getLine()};
  }
  tensor_spec spec(wire::TensorSpec::Reader s) {
    const auto type = s.getDtype();
    const auto list = s.getDims();
    if (type >= dtype_count || list.size() > shape::rank_max)
      throw bad_plan{fmt::format("no tensor has dtype {} and rank {}", type, list.size())};
    std::array<dim, shape::rank_max> dims;
    std::size_t rank = 0;
    for (const auto d : list) dims[rank++] = {d.getSize(), d.getSymbol()};
    const auto sizes = shape::from(std::span(dims.data(), rank));
    if (!sizes) throw bad_plan{"a size of a tensor is negative, or it has too many elements"};
    return {static_cast<dtype>(type), *sizes};
  }
  attributes::entry attribute(wire::Attribute::Reader a) {
    auto name = text(a.getName());
    switch (a.which()) {
      case wire::Attribute::INTEGER:
        return {std::move(name), a.getInteger()};
      case wire::Attribute::REAL:
        return {std::move(name), a.getReal()};
      case wire::Attribute::TEXT:
        return {std::move(name), text(a.getText())};
      case wire::Attribute::INTEGERS: {
        const auto list = a.getIntegers();
        spend(list.size(), 1);
        std::vector<std::int64_t> all;
        all.reserve(list.size());
        for (const auto n : list) all.push_back(n);
        return {std::move(name), std::move(all)};
      }
      case wire::Attribute::DATA: {
        const auto bytes = std::as_bytes(std::span(a.getData().begin(), a.getData().size()));
        spend(bytes.size() / sizeof(capnp::word), 1);  // many pointers may show the same bytes
        return {std::move(name), shared_bytes({bytes.begin(), bytes.end()})};
      }
    }
    throw bad_plan{fmt::format("attribute '{}' is of an unknown type", name)};
  }
  planned_op op(wire::PlannedOp::Reader r) {
    planned_op op;
    op.type = text(r.getType());
    op.name = text(r.getName());
    const auto attrs = r.getAttributes();
    limit("attributes of an op", attrs.size(), attributes_max, small_words);
    for (const auto a : attrs) {
      auto [name, value] = attribute(a);
      op.attrs.set(std::move(name), std::move(value));
    }
    const auto operands = r.getOperands();
    spend(operands.size() / 2, 1);
    for (const auto o : operands) op.operands.push_back(o);
    op.source = line(r.getSource());
    return op;
  }
  optimizer_spec optimizer(wire::Shard::Reader r) {
    const auto n = r.getOptimizerNumbers();
    optimizer_spec o;
    o.type = text(r.getOptimizer());
    o.learning_rate = r.getLearningRate();
    o.momentum = r.getMomentum();
    o.nesterov = n.getNesterov();
    o.weight_decay = n.getWeightDecay();
    o.beta1 = n.getBeta1();
    o.beta2 = n.getBeta2();
    o.alpha = n.getAlpha();
    o.centered = n.getCentered();
    o.epsilon = n.getEpsilon();
    o.learning_rate_decay = n.getLearningRateDecay();
    o.initial_accumulator = n.getInitialAccumulator();
    o.clip_value = n.getClipValue();
    o.clip_norm = n.getClipNorm();
    return o;
  }
  planned_library library(wire::Library::Reader r) {
    planned_library l{{text(r.getName()), text(r.getVersion()), r.getAbi()}, {}};
    const auto ops = r.getOps();
    limit("ops of a library", ops.size(), plan_library_ops_max, small_words);
    for (const auto op : ops) l.ops.push_back(text(op));
    return l;
  }
  static learning_rate_schedule schedule(wire::Schedule::Reader r) {
    if (r.getKind() > static_cast<std::uint8_t>(learning_rate_schedule::kind::inverse_square_root))
      throw bad_plan{fmt::format("there is no schedule {}", r.getKind())};
    learning_rate_schedule s;
    s.type = static_cast<learning_rate_schedule::kind>(r.getKind());
    s.warmup = r.getWarmup();
    s.every = r.getEvery();
    s.decay = r.getDecay();
    s.steps = r.getSteps();
    s.minimum = r.getMinimum();
    s.timescale = r.getTimescale();
    return s;
  }
  shard_spec shard(wire::Shard::Reader r) {
    shard_spec s;
    s.variable = text(r.getVariable());
    s.spec = spec(r.getSpec());
    s.shard = r.getShard();
    s.update = update(r.getUpdate());
    s.optimizer = optimizer(r);
    s.schedule = schedule(r.getSchedule());
    s.pushes_rows = r.getPushesRows();
    if (const auto samples = r.getAverageSamples(); samples > 0) s.average = moving_average_spec{r.getAverageRate(), samples};
    const auto initializer = r.getInitializer();
    if (initializer > 3) throw bad_plan{fmt::format("there is no initializer {}", initializer)};
    s.initializer = {static_cast<initializer_spec::kind>(initializer), r.getLimit()};
    s.seed = r.getSeed();
    const auto steps = r.getSteps();
    spend(steps.size(), 1);
    for (const auto n : steps) s.steps.push_back(n);
    const auto readers = r.getReaders();
    spend(readers.size(), small_words);
    for (const auto x : readers) s.readers.push_back({x.getWorker(), x.getFirst(), x.getStride(), x.getAtEnd()});
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
    return s;
  }
  planned_actor actor(wire::PlannedActor::Reader r) {
    planned_actor a;
    const auto kind = r.getKind();
    if (kind > static_cast<std::uint8_t>(actor_kind::fetch))
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
    a.hands_on = r.getHandsOn();
    a.in_place = r.getInPlace();
    a.source = line(r.getSource());
    return a;
  }
  // Adds the edge to both of its ends.
  static void join(plan& p, wire::PlannedEdge::Reader r) {
    planned_edge e{{r.getFromActor(), r.getFromPort()}, {r.getToActor(), r.getToPort()}, {}, r.getCredits()};
    const auto number = static_cast<std::uint32_t>(p.edges.size());
    if (e.from.actor >= p.actors.size() || e.to.actor >= p.actors.size())
      throw bad_plan{fmt::format("edge {} joins actors {} and {} of {} (PL-1)", number, e.from.actor, e.to.actor,
                                 p.actors.size())};
    auto &producer = p.actors[e.from.actor], &consumer = p.actors[e.to.actor];
    if (e.from.port >= producer.outputs.size() || e.to.port >= consumer.inputs.size())
      throw bad_plan{fmt::format("edge {} from '{}' to '{}' is at a port that does not exist (PL-1)", number,
                                 producer.name, consumer.name)};
    if (consumer.inputs[e.to.port] != no_edge)
      throw bad_plan{fmt::format("input {} of '{}' has two edges (PL-2)", e.to.port, consumer.name)};
    e.spec = producer.output_specs[e.from.port];
    producer.outputs[e.from.port].push_back(number);
    consumer.inputs[e.to.port] = number;
    p.edges.push_back(std::move(e));
  }

  std::uint64_t words_left_;
  std::uint64_t inputs_left_ = 0;
  std::vector<std::string> files_;
};

result<plan> decode(std::span<const std::byte> bytes) {
  const auto refuse = [](std::string_view what) {
    return error(error_code::usage, fmt::format("not a plan: {}", what));
  };
  if (bytes.size() > plan_bytes_max)
    return refuse(fmt::format("{} bytes, at most {} are allowed", bytes.size(), plan_bytes_max));
  if (bytes.empty() || bytes.size() % sizeof(capnp::word) != 0)
    return refuse(fmt::format("{} bytes are not whole words", bytes.size()));
  // Aligned for Cap'n Proto, whatever the bytes came in.
  auto words = kj::heapArray<capnp::word>(bytes.size() / sizeof(capnp::word));
  std::memcpy(words.begin(), bytes.data(), bytes.size());
  capnp::ReaderOptions options;
  options.traversalLimitInWords = 4 * words.size() + 64;
  options.nestingLimit = 16;
  try {
    capnp::FlatArrayMessageReader reader(words, options);
    return decoder(words.size()).run(reader.getRoot<wire::Plan>());
  } catch (const bad_plan& e) {
    return refuse(e.what);
  } catch (const kj::Exception& e) {
    return refuse(e.getDescription().cStr());
  }
}

}  // namespace

std::vector<std::byte> encode(const plan& p) {
  return encoder(p).run();
}

result<plan> decode_plan(std::span<const std::byte> bytes) {
  auto p = decode(bytes);
  if (!p) return p;
  if (auto ok = check(*p); !ok) return std::move(ok.error().while_doing("plan"));
  return p;
}

}  // namespace troupe
