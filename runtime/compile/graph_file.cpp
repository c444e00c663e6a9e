#include "troupe/runtime/compile/graph_file.hpp"

#include "troupe/runtime/graph/op_library.hpp"
#include "troupe/runtime/layers/updates.hpp"
#include "troupe/runtime/plan/plan_parts.hpp"
#include "troupe/runtime/text/printable.hpp"
#include "troupe/schema/version.hpp"

#include "schema/graph.capnp.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>

namespace troupe {
namespace {

using plan_parts::fill;
using plan_parts::list_size;
using plan_parts::put;

error usage(std::string text) { return {error_code::usage, std::move(text)}; }

// --- what stands in front of the message

constexpr std::string_view magic = "TROUPEGR";
constexpr std::size_t version_at = 8, zero_at = 12, length_at = 16, hash_at = 24, message_at = 32;
static_assert(std::endian::native == std::endian::little,
              "numbers of the file are copied as they are");

template <class T>
T number_at(std::span<const std::byte> bytes, std::size_t at) {
  T n;
  std::memcpy(&n, bytes.data() + at, sizeof n);
  return n;
}

std::vector<std::byte> with_prelude(std::span<const std::byte> message) {
  std::vector<std::byte> out(message_at + message.size());
  const auto set = [&](std::size_t at, auto n) { std::memcpy(out.data() + at, &n, sizeof n); };
  std::memcpy(out.data(), magic.data(), magic.size());
  set(version_at, graph_file_version);
  set(length_at, std::uint64_t{message.size()});
  set(hash_at, std::uint64_t{XXH3_64bits(message.data(), message.size())});
  std::memcpy(out.data() + message_at, message.data(), message.size());
  return out;
}

result<std::span<const std::byte>> message_in(std::span<const std::byte> bytes) {
  if (!is_graph_file(bytes)) return usage("not a graph: it does not begin like a graph file");
  if (bytes.size() < message_at)
    return usage(fmt::format("not a graph: it ends after {} bytes", bytes.size()));
  if (const auto version = number_at<std::uint32_t>(bytes, version_at);
      version != graph_file_version)
    return usage(
        version > graph_file_version
            ? fmt::format(
                  "this graph has version {} of the format, and Troupe {} knows versions up to {}: read it with a newer Troupe",
                  version, troupe::version(), graph_file_version)
            : fmt::format("not a graph: there is no version {} of the format", version));
  const auto length = number_at<std::uint64_t>(bytes, length_at);
  const auto message = bytes.subspan(message_at);
  if (number_at<std::uint32_t>(bytes, zero_at) != 0)
    return usage("a damaged graph: a field of its header that must be 0 is not");
  if (length != message.size())
    return usage(
        fmt::format("a damaged graph: it has {} bytes after its header, which announces {}",
                    message.size(), length));
  if (XXH3_64bits(message.data(), message.size()) != number_at<std::uint64_t>(bytes, hash_at))
    return usage("a damaged graph: its hash is not the one that was written with it");
  return message;
}

// --- encode

class encoder {
 public:
  encoder(const graph& g, const graph_use& use) : g_(g), use_(use) {
    for (const auto& n : g.nodes()) lines_.see(n.source.file_name());
    for (const auto& u : g.updates()) lines_.see(u.source.file_name());
  }

  std::vector<std::byte> run() {
    capnp::MallocMessageBuilder message;
    auto root = message.initRoot<wire::Graph>();
    root.setName(use_.name);
    fill(root.initNodes(list_size(g_.nodes())), g_.nodes(),
         [&](auto to, const graph_node& n) { put_node(to, n); });
    fill(root.initAverages(list_size(g_.averages())), g_.averages(),
         [&](auto to, const average& a) {
           put_value(to.initVariable(), a.variable);
           put_value(to.initSample(), a.sample);
           put_value(to.initBeside(), a.beside);
           to.setRate(g_.node(a.variable.node).average_rate.value_or(0));
         });
    fill(root.initUpdates(list_size(g_.updates())), g_.updates(),
         [&](auto to, const graph_update& u) { put_update(to, u); });
    auto roots = root.initRoots(static_cast<unsigned>(use_.fetches.size()) + (use_.loss ? 1 : 0));
    unsigned next = 0;
    const auto put_root = [&](const std::string& name, const value& at, bool is_loss) {
      auto to = roots[next++];
      to.setName(name);
      put_value(to.initAt(), at);
      to.setIsLoss(is_loss);
    };
    if (use_.loss) put_root("loss", *use_.loss, true);
    for (const auto& f : use_.fetches) put_root(f.name, f.at, false);
    lines_.put(root.initFiles(lines_.count()));
    std::vector<std::string_view> types;
    for (const auto& n : g_.nodes()) types.push_back(n.type);
    const auto libraries = libraries_of(types, g_.ops());
    fill(root.initLibraries(list_size(libraries)), libraries,
         [](auto to, const planned_library& l) { put(to, l); });
    const auto regions = g_.regions().stored();
    fill(root.initRegions(list_size(regions)), regions,
         [](auto to, const graph_regions::stored_region& r) {
           to.setKind(static_cast<std::uint8_t>(r.type));
           to.setParent(r.parent);
           to.setOf(r.of);
         });
    if (use_.training) put_training(root.initTraining(), *use_.training);
    return plan_parts::to_bytes(message);
  }

 private:
  static void put_value(wire::GraphValue::Builder to, const value& v) {
    to.setNode(v.node);
    to.setOutput(v.output);
  }
  void put_node(wire::GraphNode::Builder to, const graph_node& n) const {
    to.setType(n.type);
    to.setName(n.name);
    fill(to.initAttributes(list_size(n.attrs.entries())), n.attrs.entries(),
         [](auto b, const auto& e) { put(b, e); });
    fill(to.initInputs(list_size(n.inputs)), n.inputs,
         [](auto b, const value& v) { put_value(b, v); });
    fill(to.initOutputs(list_size(n.outputs)), n.outputs,
         [](auto b, const tensor_spec& s) { put(b, s); });
    to.setDevice(n.device);
    lines_.put(to.initSource(), n.source.file_name(), n.source.line());
    to.setRegion(n.region);
    if (!n.initializer) return;
    to.setInitializer(static_cast<std::uint8_t>(1 + static_cast<unsigned>(n.initializer->type)));
    to.setLimit(n.initializer->limit);
  }
  void put_update(wire::GraphUpdate::Builder to, const graph_update& u) const {
    to.setName(u.name);
    to.setKind(static_cast<std::uint8_t>(u.type));
    put_value(to.initVariable(), u.variable);
    put_value(to.initOperand(), u.operand);
    if (u.rate.is_valid()) put_value(to.initRate(), u.rate);
    if (u.when.is_valid()) put_value(to.initWhen(), u.when);
    lines_.put(to.initSource(), u.source.file_name(), u.source.line());
    if (u.type != graph_update::kind::apply) return;
    to.setState(u.state);
    to.setOptimizer(u.optimizer.type);
    to.setLearningRate(u.optimizer.learning_rate);
    to.setMomentum(u.optimizer.momentum);
    put(to.initOptimizerNumbers(), u.optimizer);
    put(to.initSchedule(), u.schedule);
  }
  static void put_training(wire::GraphTraining::Builder to, const graph_training& t) {
    const auto& s = t.spec;
    to.setWorkers(s.workers);
    to.setShards(s.shards);
    to.setUpdate(static_cast<std::uint8_t>(s.update));
    to.setOptimizer(s.optimizer.type);
    to.setLearningRate(s.optimizer.learning_rate);
    to.setMomentum(s.optimizer.momentum);
    put(to.initOptimizerNumbers(), s.optimizer);
    put(to.initSchedule(), s.schedule);
    to.setClipGlobalNorm(s.clip_global_norm);
    to.setSeed(s.seed);
    to.setSteps(s.steps);
    to.setObserveEvery(s.observe_every);
    to.setIsRecoverable(s.is_recoverable);
    to.setHasReplicas(s.has_replicas);
    to.setHasCuts(s.has_cuts);
    to.setCutEvery(s.cut_every);
    to.setFuse(t.options.fuse);
    to.setCredits(t.options.credits);
    to.setSparsePushes(t.options.sparse_pushes);
    to.setFold(t.options.fold);
    to.setSimplify(t.options.simplify);
    to.setShare(t.options.share);
    to.setShareMemory(t.options.share_memory);
    to.setOrderReads(t.options.order_reads);
    to.setOrderPushes(t.options.order_pushes);
    to.setDeviceCollectives(t.options.device_collectives);
    to.setBucketBytes(t.options.bucket_bytes);
    to.setOnNan(static_cast<std::uint8_t>(t.options.on_nan));
    to.setFast(t.options.fast);
    to.setHardPlacement(!t.options.soft_placement);
    to.setDevice(t.options.device);
    to.setEdgeBytes(t.options.edge_bytes);
    to.setAllReduce(s.all_reduce);
    to.setPrecision(static_cast<std::uint8_t>(t.options.precision));
    if (const auto& scale = t.options.loss_scale) {
      to.setLossScale(scale->is_dynamic ? 2 : 1);
      to.setLossScaleInitial(scale->initial);
      to.setLossScaleGrowsEvery(scale->grows_every);
    }
  }

  const graph& g_;
  const graph_use& use_;
  plan_parts::line_writer lines_;
};

// What Cap'n Proto cannot take is refused before it is asked to.
result<void> check_to_save(const graph& g, const graph_use& use) {
  if (g.first_error()) return *g.first_error();
  if (!use.loss && use.fetches.empty())
    return usage("a graph must be saved with its purpose: a loss, or values to fetch");
  if (use.loss && !g.has(*use.loss))
    return usage("the loss is not a value of the graph that is saved");
  for (const auto& f : use.fetches)
    if (!g.has(f.at))
      return usage(fmt::format("fetch '{}' is not a value of the graph that is saved", f.name));
  if (g.nodes().size() > graph_nodes_max)
    return usage(fmt::format("a graph of {} ops cannot be saved: at most {} are allowed",
                             g.nodes().size(), graph_nodes_max));
  std::size_t bytes = 0;
  for (const auto& n : g.nodes())
    for (const auto& [name, attribute] : n.attrs.entries()) {
      if (const auto* data = std::get_if<shared_bytes>(&attribute)) bytes += data->view().size();
      if (bytes > graph_file_bytes_max)
        return usage(
                   fmt::format(
                       "the constants of the graph have more than {} bytes together, which is the "
                       "limit of a graph file",
                       graph_file_bytes_max))
            .at(n.source);
    }
  return {};
}

// --- decode

// Words that an element of each list takes in the message, at least.
constexpr std::uint64_t region_words = 2, node_words = 9, value_words = 1, average_words = 4,
                        root_words = 3, update_words = 13, updates_per_node_max = 16;
constexpr std::size_t name_bytes_max = 1024;

class decoder : private plan_parts::part_reader {
 public:
  decoder(std::uint64_t words, const op_table& ops) : part_reader(words), ops_(ops) {
    out_.graph = std::make_unique<graph>(ops);
  }

  // An error that has a line; others are thrown.
  result<saved_graph> run(wire::Graph::Reader root) {
    out_.use.name = name(root.getName());
    read_files(root.getFiles());
    for (const auto& f : files())
      if (printable(f) != f)
        throw bad{"the name of a source file has characters that cannot be printed"};
    const auto libraries = root.getLibraries();
    limit("libraries", libraries.size(), libraries_max, plan_parts::library_words);
    for (const auto l : libraries) {
      auto made = library(l);
      for (auto& type : made.ops) library_of_.try_emplace(std::move(type), made.library);
    }
    if (auto ok = read_regions(root.getRegions()); !ok) return std::move(ok.error());
    const auto nodes = root.getNodes();
    limit("ops", nodes.size(), graph_nodes_max, node_words);
    for (const auto n : nodes)
      if (auto ok = add(n); !ok) return std::move(ok.error());
    if (auto ok = out_.graph->regions().check_stored_end(); !ok) return std::move(ok.error());
    const auto averages = root.getAverages();
    limit("averages", averages.size(), nodes.size(), average_words);
    for (const auto a : averages) add_average(a);
    const auto updates = root.getUpdates();
    limit("updates", updates.size(), updates_per_node_max * nodes.size(), update_words);
    for (const auto u : updates)
      if (auto ok = add_update(u); !ok) return std::move(ok.error());
    const auto roots = root.getRoots();
    limit("roots", roots.size(), graph_fetches_max + 1, root_words);
    for (const auto r : roots) add_root(r);
    if (roots.size() == 0) throw bad{"it names neither a loss nor a value to fetch"};
    if (root.hasTraining()) out_.use.training = training(root.getTraining());
    return std::move(out_);
  }

 private:
  using bad = plan_parts::misread;

  std::string name(capnp::Text::Reader t) {
    auto out = text(t);
    if (out.empty() || out.size() > name_bytes_max || printable(out) != out)
      throw bad{fmt::format("'{}' is no name", shown(out))};
    return out;
  }

  result<void> read_regions(capnp::List<wire::GraphRegion>::Reader all) {
    limit("regions", all.size(), graph_nodes_max, region_words);
    std::vector<graph_regions::stored_region> regions;
    for (const auto r : all) {
      if (r.getKind() > static_cast<std::uint8_t>(graph_regions::kind::body))
        throw bad{fmt::format("there is no region kind {}", r.getKind())};
      regions.push_back({static_cast<graph_regions::kind>(r.getKind()), r.getParent(), r.getOf()});
    }
    return out_.graph->regions().restore(regions);
  }

  // --- ops

  struct read_node {
    std::uint32_t region = 0;
    std::string type, name, device;
    attributes attrs;
    std::vector<value> inputs;
    std::vector<tensor_spec> outputs;
    source_location source;
    std::optional<initializer_spec> initializer;
  };

  result<void> add(wire::GraphNode::Reader r) {
    auto n = read(r);
    const auto blame = [&](std::string text) { return usage(printable(text)).at(n.source); };
    if (auto ok = check_type(n); !ok) return blame(ok.error().message());
    auto& g = *out_.graph;
    if (auto ok = g.regions().check_stored(n.region, n.type, n.attrs, n.inputs); !ok)
      return blame(fmt::format("{} '{}': {}", n.type, n.name, ok.error().message()));
    const auto made = [&] {
      if (n.device.empty())
        return g.add_in(n.region, n.type, n.inputs, std::move(n.attrs), n.name, n.source,
                        n.initializer);
      const auto device = g.device_scope(n.device, n.source);
      return g.add_in(n.region, n.type, n.inputs, std::move(n.attrs), n.name, n.source,
                      n.initializer);
    }();
    if (g.first_error()) return blame(g.first_error()->message());
    const auto& node = g.node(made.node);
    g.regions().adopt(node);
    if (node.name != n.name) return blame(fmt::format("two ops are called '{}'", n.name));
    if (node.device != n.device)
      return blame(fmt::format("{} '{}': device '{}' should be written '{}'", n.type, n.name,
                               n.device, node.device));
    if (node.outputs != n.outputs)
      return blame(fmt::format(
          "{} '{}' makes {} here, but {} in the file: the program that wrote the file has another "
          "definition of this op",
          n.type, n.name, listed(node.outputs), listed(n.outputs)));
    return {};
  }

  read_node read(wire::GraphNode::Reader r) {
    read_node n;
    n.type = name(r.getType());
    n.name = name(r.getName());
    n.device = text(r.getDevice());
    n.attrs = all_attributes(r.getAttributes());
    if (n.attrs.entries().size() != r.getAttributes().size())
      throw bad{fmt::format("op '{}' has an attribute twice", n.name)};
    const auto inputs = r.getInputs();
    spend(inputs.size(), value_words);
    for (const auto v : inputs) n.inputs.push_back({out_.graph.get(), v.getNode(), v.getOutput()});
    const auto outputs = r.getOutputs();
    spend(outputs.size(), plan_parts::small_words);
    for (const auto s : outputs) n.outputs.push_back(spec(s));
    const auto at = line(r.getSource());
    n.source = out_.graph->line_of(at.file, at.line);
    n.region = r.getRegion();
    const auto initializer = r.getInitializer();
    if (initializer > 5) throw bad{fmt::format("there is no initializer {}", initializer - 1)};
    if (initializer > 0)
      n.initializer =
          initializer_spec{static_cast<initializer_spec::kind>(initializer - 1), r.getLimit()};
    return n;
  }

  // That it is here what it was for the program.
  result<void> check_type(const read_node& n) const {
    const auto* row = ops_.find(n.type);
    const auto known = library_of_.find(n.type);
    const auto* from = known != library_of_.end() ? &known->second : nullptr;
    const auto what = fmt::format("op '{}' is a {}", n.name, n.type);
    if (from != nullptr && (row == nullptr || row->library == nullptr || *row->library != *from)) {
      const auto present = libraries_of(ops_);
      const bool is_loaded =
          std::ranges::find(present, from->name, &library_id::name) != present.end();
      return usage(fmt::format(
          "{}, of library {}, {}", what, to_string(*from),
          !is_loaded ? "which is not loaded"
                     : "and this program " + (std::ranges::find(present, *from) == present.end()
                                                  ? lack_of(*from, present)
                                                  : "has that library without the op")));
    }
    if (row == nullptr)
      return usage(fmt::format("{}, which Troupe {} does not have", what, version()));
    if (from == nullptr && row->library)
      return usage(
          fmt::format("{}, which was part of Troupe when the file was written, but is an op of "
                      "library {} here",
                      what, to_string(*row->library)));
    if (n.initializer && n.type != "variable")
      return usage(
          fmt::format("{} and has an initial value, which only a variable can have", what));
    if (n.initializer &&
        (!std::isfinite(static_cast<float>(n.initializer->limit)) ||
         (n.initializer->limit < 0 && n.initializer->type != initializer_spec::kind::constant)))
      return usage(fmt::format("{}, whose initial values have the invalid limit {}", what,
                               n.initializer->limit));
    return {};
  }

  static std::string listed(const std::vector<tensor_spec>& specs) {
    constexpr std::size_t specs_max = 4;
    std::string out;
    for (std::size_t i = 0; i < std::min(specs.size(), specs_max); ++i)
      out += (i == 0 ? "" : ", ") + to_string(specs[i]);
    return specs.size() > specs_max ? fmt::format("{} and {} more", out, specs.size() - specs_max)
           : out.empty()            ? "nothing"
                                    : out;
  }

  // --- the rest

  value at(wire::GraphValue::Reader r) const {
    const value v{out_.graph.get(), r.getNode(), r.getOutput()};
    if (!out_.graph->has(v))
      throw bad{fmt::format("output {} of op {} is used, but does not exist", v.output, v.node)};
    return v;
  }

  void add_average(wire::GraphAverage::Reader r) {
    const average a{at(r.getVariable()), at(r.getSample()), at(r.getBeside())};
    const auto& n = out_.graph->node(a.variable.node);
    const auto refuse = [&](std::string_view what) {
      throw bad{fmt::format("moving average '{}': {}", n.name, what)};
    };
    if (n.type != "variable") refuse("it is not a variable");
    if (n.average_rate) refuse("it is there twice");
    if (!(r.getRate() >= 0 && r.getRate() <= 1)) refuse("its rate is not from 0 to 1");
    if (a.variable.spec() != a.sample.spec() || a.sample.spec().type != dtype::f32 ||
        a.sample.spec().shape.is_symbolic())
      refuse(
          fmt::format("it is {} and its sample {}, but both must be the same f32 tensor of fixed "
                      "sizes",
                      to_string(a.variable.spec()), to_string(a.sample.spec())));
    out_.graph->add_average(a, r.getRate());
  }

  result<void> add_update(wire::GraphUpdate::Reader r) {
    if (r.getKind() > static_cast<std::uint8_t>(graph_update::kind::average))
      throw bad{fmt::format("there is no update of kind {}", r.getKind())};
    graph_update u{.name = name(r.getName()),
                   .type = static_cast<graph_update::kind>(r.getKind()),
                   .variable = at(r.getVariable()),
                   .operand = at(r.getOperand())};
    if (r.hasRate()) u.rate = at(r.getRate());
    if (r.hasWhen()) u.when = at(r.getWhen());
    const auto where = line(r.getSource());
    u.source = out_.graph->line_of(where.file, where.line);
    if (u.type == graph_update::kind::apply) {
      u.state = name(r.getState());
      u.optimizer = optimizer(text(r.getOptimizer()), r.getLearningRate(), r.getMomentum(),
                              r.getOptimizerNumbers());
      u.schedule = schedule(r.getSchedule());
    }
    if (u.type == graph_update::kind::average) {
      const auto rate = out_.graph->node(u.variable.node).average_rate;
      if (!rate) throw bad{fmt::format("update '{}' moves what is no moving average", u.name)};
      u.average_rate = *rate;
    }
    troupe::add_update(std::move(u));
    if (out_.graph->first_error()) return *out_.graph->first_error();
    return {};
  }

  void add_root(wire::GraphRoot::Reader r) {
    const auto v = at(r.getAt());
    auto n = name(r.getName());
    if (!r.getIsLoss()) {
      out_.use.fetches.push_back({std::move(n), v});
      return;
    }
    if (out_.use.loss) throw bad{"it has two losses"};
    out_.use.loss = v;
  }

  graph_training training(wire::GraphTraining::Reader r) {
    graph_training t;
    auto& s = t.spec;
    s.workers = r.getWorkers();
    s.shards = r.getShards();
    s.update = update(r.getUpdate());
    s.optimizer = optimizer(text(r.getOptimizer()), r.getLearningRate(), r.getMomentum(),
                            r.getOptimizerNumbers());
    s.schedule = schedule(r.getSchedule());
    s.clip_global_norm = r.getClipGlobalNorm();
    s.seed = r.getSeed();
    s.steps = r.getSteps();
    s.observe_every = r.getObserveEvery();
    s.is_recoverable = r.getIsRecoverable();
    s.has_replicas = r.getHasReplicas();
    s.has_cuts = r.getHasCuts();
    s.cut_every = r.getCutEvery();
    s.all_reduce = r.getAllReduce();
    if (auto ok = check(s); !ok) throw bad{fmt::format("its training: {}", ok.error().message())};
    t.options.fuse = r.getFuse();
    t.options.credits = r.getCredits();
    t.options.sparse_pushes = r.getSparsePushes();
    t.options.fold = r.getFold();
    t.options.simplify = r.getSimplify();
    t.options.share = r.getShare();
    t.options.share_memory = r.getShareMemory();
    t.options.order_reads = r.getOrderReads();
    t.options.order_pushes = r.getOrderPushes();
    t.options.device_collectives = r.getDeviceCollectives();
    t.options.bucket_bytes = r.getBucketBytes();
    t.options.fast = r.getFast();
    t.options.soft_placement = !r.getHardPlacement();
    t.options.device = text(r.getDevice());
    if (auto ok = check_default_device(t.options.device); !ok)
      throw bad{fmt::format("its training: {}", ok.error().message())};
    t.options.edge_bytes = r.getEdgeBytes();
    if (r.getOnNan() > static_cast<std::uint8_t>(nan_policy::skip))
      throw bad{fmt::format("its training: there is no policy {} for NaN", r.getOnNan())};
    t.options.on_nan = nan_policy{r.getOnNan()};
    if (r.getPrecision() > static_cast<std::uint8_t>(precision_kind::f16))
      throw bad{fmt::format("its training: there is no precision {}", r.getPrecision())};
    t.options.precision = precision_kind{r.getPrecision()};
    if (r.getLossScale() > 2)
      throw bad{fmt::format("its training: there is no kind {} of loss scale", r.getLossScale())};
    if (r.getLossScale() > 0) {
      t.options.loss_scale = loss_scale_spec{r.getLossScale() == 2, r.getLossScaleInitial(),
                                             r.getLossScaleGrowsEvery()};
      if (auto ok = check(*t.options.loss_scale); !ok)
        throw bad{fmt::format("its training: {}", ok.error().message())};
    }
    if (t.options.credits < 1 || t.options.credits > credits_max)
      throw bad{fmt::format("its training: an edge cannot have {} credits", t.options.credits)};
    t.options.name = out_.use.name;
    return t;
  }

  const op_table& ops_;
  saved_graph out_;
  std::map<std::string, library_id> library_of_;  // types of users' ops
};

result<std::vector<std::byte>> encoded(const graph& g, const graph_use& use) {
  auto out = with_prelude(encoder(g, use).run());
  if (out.size() > graph_file_bytes_max)
    return usage(fmt::format("the graph has {} bytes, at most {} are allowed in a file", out.size(),
                             graph_file_bytes_max));
  return out;
}

}  // namespace

bool is_graph_file(std::span<const std::byte> bytes) noexcept {
  return bytes.size() >= magic.size() && std::memcmp(bytes.data(), magic.data(), magic.size()) == 0;
}

result<std::vector<std::byte>> encode_graph(const graph& g, const graph_use& use) {
  if (auto ok = check_to_save(g, use); !ok) return std::move(ok.error());
  auto bytes = encoded(g, use);
  if (!bytes) return bytes;
  // What nobody could read is not written.
  const auto back = decode_graph(*bytes, g.ops());
  if (!back)
    return error(back.error()).while_doing("the graph would not be the same when it is read");
  return bytes;
}

result<saved_graph> decode_graph(std::span<const std::byte> bytes, const op_table& ops) {
  if (bytes.size() > graph_file_bytes_max)
    return usage(fmt::format("not a graph: {} bytes, at most {} are allowed", bytes.size(),
                             graph_file_bytes_max));
  const auto message = message_in(bytes);
  if (!message) return message.error();
  std::optional<result<saved_graph>> out;
  auto ok = plan_parts::read_message(
      *message, graph_file_bytes_max, "a graph", [&](capnp::MessageReader& m, std::uint64_t words) {
        out.emplace(decoder(words, ops).run(m.getRoot<wire::Graph>()));
      });
  if (!ok) return usage(printable(ok.error().message()));
  return std::move(*out);
}

result<void> save_graph(disk& d, const std::string& path, const graph& g, const graph_use& use) {
  const auto bytes = encode_graph(g, use);
  if (!bytes) return error(bytes.error());
  if (const auto there = d.size(path); !there) {
    if (there.error().code() != error_code::not_found) return error(there.error());
  } else if (*there > 0) {
    const auto old = d.read(path, graph_file_bytes_max);
    if (!old || !is_graph_file(*old))
      return usage(fmt::format(
          "{} exists and is not a graph, so it is not overwritten: choose another name, or remove "
          "it",
          shown(path)));
  }
  const std::span<const std::byte> all(*bytes);
  return write_whole(d, path, {&all, 1});
}

result<saved_graph> load_graph(disk& d, const std::string& path, const op_table& ops) {
  const auto bytes = d.read(path, graph_file_bytes_max);
  if (!bytes) return bytes.error();
  auto g = decode_graph(*bytes, ops);
  if (!g) return std::move(g.error().while_doing(shown(path)));
  return g;
}

}  // namespace troupe
