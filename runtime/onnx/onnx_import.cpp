#include "troupe/runtime/onnx/onnx_import.hpp"

#include "troupe/runtime/graph/graph_regions.hpp"
#include "troupe/runtime/onnx/node.hpp"

#include <algorithm>
#include <new>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace troupe {
namespace onnx {
namespace {

rules all_rules() {
  rules r;
  add_elementwise(r);
  add_logic(r);
  add_activations(r);
  add_reductions(r);
  add_products(r);
  add_einsum(r);
  add_windows(r);
  add_resizing(r);
  add_attention(r);
  add_quantised(r);
  add_recurrent(r);
  add_control(r);
  add_normalisation(r);
  add_losses(r);
  add_layout(r);
  add_indexing(r);
  add_sources(r);
  add_grids(r);
  add_bits(r);
  add_chosen(r);
  return r;
}

// A name of the graph: what it does not take becomes '_'.
std::string graph_name(std::string_view name, std::string_view otherwise) {
  constexpr std::size_t most = 120;
  std::string out(name.substr(0, most));
  if (out.empty()) out = otherwise.substr(0, most);
  for (auto& c : out)
    if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
          c == '-' || c == '.' || c == '/'))
      c = '_';
  return out;
}

// What stops a build, and the op that it stops at.
struct stop {
  std::string what, op;
  error_code code = error_code::usage;
};

class builder final : public body_builder {
 public:
  builder(const file& f, graph& g, const onnx_build_options& o)
      : file_(f),
        graph_(g),
        options_(o),
        known_(g),
        rules_(all_rules()),
        first_(g.nodes().size()) {}

  onnx_graph run() {
    const auto& nodes = file_.graph.nodes();
    for (const auto& p : file_.inputs)
      if (file_.needed.contains(p.name)) add_input(p);
    if (options_.weights_are_variables) add_weights();
    for (int i = 0; i < nodes.size(); ++i) {
      if (!file_.is_needed[static_cast<std::size_t>(i)]) continue;
      try {
        add_node(nodes.Get(i), file_.needed);
      } catch (const refusal& r) {
        const auto& n = nodes.Get(i);
        // A call that the graph refused says more than what followed from it.
        const auto what = graph_.first_error() ? graph_.first_error()->message() : r.what;
        throw stop{fmt::format("{}: {}", described(i), what), shown(n.op_type())};
      } catch (const std::bad_alloc&) {
        throw stop{fmt::format("{}: there is no memory left for it", described(i)), "",
                   error_code::failed};
      } catch (const std::exception& e) {
        throw stop{fmt::format("{}: it is nothing that can be built ({})", described(i), e.what()),
                   "", error_code::failed};
      }
    }
    return result();
  }

  void set_lines(const source_location& where) {
    for (auto i = first_; i < graph_.nodes().size(); ++i)
      graph_.node(static_cast<std::uint32_t>(i)).source = where;
  }

 private:
  static constexpr std::size_t nodes_max = 4'000'000;
  // Bodies that are built, one after the other or in each other; ops when one more is.
  static constexpr std::size_t bodies_max = std::size_t{1} << 16,
                               body_nodes_max = std::size_t{1} << 19;

  std::string described(int number) const {
    const auto& n = file_.graph.nodes(number);
    return fmt::format("node {}{} ({})", number,
                       n.name().empty() ? "" : fmt::format(" '{}'", shown(n.name())),
                       shown(n.op_type()));
  }

  template <class T>
  static const T* given(const std::vector<std::pair<std::string, T>>& all,
                        const std::string& name) {
    const auto at = std::ranges::find_if(all, [&](const auto& p) { return p.first == name; });
    return at != all.end() ? &at->second : nullptr;
  }

  [[noreturn]] void refuse_input(const onnx_port& p, std::string_view what) const {
    std::string op;
    for (const auto& n : file_.graph.nodes())
      if (op.empty() && std::ranges::find(n.inputs(), p.name) != n.inputs().end())
        op = shown(n.op_type());
    throw stop{fmt::format("input '{}': {}", shown(p.name), what), op};
  }

  tensor_spec spec_of_input(const onnx_port& p) const {
    if (!p.element) refuse_input(p, fmt::format("element type {} is not supported", p.type));
    const auto fits = [&](const tensor_spec& s) {
      if (s.type != *p.element) return false;
      if (!p.dims) return true;
      if (p.dims->size() != s.shape.rank()) return false;
      for (std::size_t i = 0; i < s.shape.rank(); ++i)
        if ((*p.dims)[i].size && *(*p.dims)[i].size != s.shape.size(i)) return false;
      return true;
    };
    std::optional<tensor_spec> wanted;
    if (const auto* t = given(options_.values, p.name); t != nullptr && *t) wanted = t->spec();
    if (const auto* s = given(options_.shapes, p.name)) wanted = *s;
    std::string said = p.type;
    if (p.dims) {
      said += "[";
      for (const auto& d : *p.dims)
        said += fmt::format("{}{}", said.back() == '[' ? "" : ", ",
                            d.size             ? fmt::format("{}", *d.size)
                            : d.symbol.empty() ? "?"
                                               : shown(d.symbol));
      said += "]";
    }
    if (wanted) {
      if (!fits(*wanted))
        refuse_input(p, fmt::format("{} does not fit {}", to_string(*wanted), said));
      return *wanted;
    }
    if (!p.dims) refuse_input(p, "its shape is not in the file: give one");
    if (p.dims->size() > shape::rank_max)
      refuse_input(p, fmt::format("{} dimensions, at most {} are supported", p.dims->size(),
                                  shape::rank_max));
    std::vector<dim> dims;
    for (const auto& d : *p.dims) {
      if (!d.size) refuse_input(p, fmt::format("{} leaves a size open: give its shape", said));
      dims.push_back({*d.size, 0});
    }
    const auto s = shape::from(dims);
    if (!s) refuse_input(p, fmt::format("the sizes of {} multiply to too many elements", said));
    return {*p.element, *s};
  }

  void check_size(const graph_node& n) const {
    for (const auto& o : n.outputs)
      if (o.shape.elements() >
          static_cast<std::int64_t>(options_.result_bytes_max / size_of(o.type)))
        throw refusal{fmt::format("a result of {} has more than {} bytes", to_string(o),
                                  options_.result_bytes_max)};
  }

  void add_input(const onnx_port& p) {
    const auto v = input(graph_, spec_of_input(p), graph_name(p.name, "input"));
    if (!v.is_valid())
      refuse_input(p, graph_.first_error() ? graph_.first_error()->message() : "it does not fit");
    try {
      check_size(graph_.node(v.node));
    } catch (const refusal& r) {
      refuse_input(p, r.what);
    }
    values_[p.name] = v;
    inputs_.push_back({p.name, v});
    if (const auto type = narrow_by_name(p.type); type != 0) narrow_[{v.node, v.output}] = type;
    if (const auto* t = given(options_.values, p.name); t != nullptr && *t)
      known_.set_input(v.node, *t);
  }

  // In the order in which nodes use them.
  void add_weights() {
    for (int number = 0; number < file_.graph.nodes_size(); ++number) {
      if (!file_.is_needed[static_cast<std::size_t>(number)]) continue;
      const auto& n = file_.graph.nodes(number);
      for (int i = 0; i < n.inputs_size(); ++i) {
        // Means and variances that were collected are no weights.
        if (n.op_type() == "BatchNormalization" && i >= 3) continue;
        const auto& name = n.inputs(i);
        const auto at = file_.initializers.find(name);
        if (at == file_.initializers.end() || values_.contains(name)) continue;
        const auto& t = at->second;
        if (t.type() != dtype::f32 || t.shape().rank() == 0) continue;
        const auto v = variable(graph_, t.spec(), {}, graph_name(name, "weights"));
        if (!v.is_valid())
          throw stop{fmt::format("initializer '{}': {}", shown(name),
                                 graph_.first_error() ? graph_.first_error()->message()
                                                      : "it is no variable"),
                     ""};
        values_[name] = v;
        weights_.emplace_back(graph_.node(v.node).name, t);
        weight_names_.push_back({name, v});
        known_.set_input(v.node, t);
      }
    }
  }

  // Other initializers become constants where they are first used.
  value value_of(const std::string& name) {
    if (const auto at = values_.find(name); at != values_.end()) return at->second;
    const auto initial = file_.initializers.find(name);
    if (initial == file_.initializers.end())
      throw refusal{fmt::format("'{}' was never made", shown(name))};
    const auto v = constant(graph_, initial->second, graph_name(name, "constant"));
    if (const auto n = file_.narrow.find(name); n != file_.narrow.end())
      narrow_[{v.node, v.output}] = n->second;
    return values_[name] = v;
  }

  // A name of a body is gone behind it, and one from around it is what it was.
  void put(const std::string& name, value v) {
    auto& at = values_[name];
    if (hidden_ != nullptr) hidden_->emplace_back(name, at);
    at = v;
  }

  void prepare(const onnx_format::Graph& body) override {
    const auto make = [&](const std::string& name) {
      if (!values_.contains(name) && file_.initializers.contains(name)) (void)value_of(name);
    };
    for (const auto& o : body.outputs()) make(o.name());
    for (const auto& n : body.nodes()) {
      for (const auto& i : n.inputs()) make(i);
      for (const auto& a : n.attributes())
        if (a.has_graph()) prepare(a.graph());
    }
  }

  values build_body(const onnx_format::Graph& body, const values& inputs) override {
    if (static_cast<std::size_t>(body.inputs_size()) != inputs.size())
      throw refusal{fmt::format("its graph '{}' has {} inputs, expected {}", shown(body.name()),
                                body.inputs_size(), inputs.size())};
    // Loops in loops multiply: what is written out is held to what a file of that size may ask for.
    if (++bodies_ > bodies_max || graph_.nodes().size() - first_ > body_nodes_max)
      throw refusal{"its loops are too long to be written out"};
    hidden_names own;
    auto* const around = std::exchange(hidden_, &own);
    for (int i = 0; i < body.inputs_size(); ++i)
      put(body.inputs(i).name(), inputs[static_cast<std::size_t>(i)]);
    auto [needs, is_new] = needs_.try_emplace(&body);
    auto& [needed, is_needed] = needs->second;
    if (is_new) {
      for (const auto& o : body.outputs()) needed.insert(o.name());
      is_needed = find_needed(body, needed);
    }
    for (const auto& t : body.initializers())
      if (needed.contains(t.name())) put_initializer(t);
    for (int i = 0; i < body.nodes_size(); ++i)
      if (is_needed[static_cast<std::size_t>(i)]) add_node_of(body, i, needed);
    values out;
    for (const auto& o : body.outputs()) out.push_back(value_of(o.name()));
    hidden_ = around;
    for (auto at = own.rbegin(); at != own.rend(); ++at) {
      if (at->second.is_valid())
        values_[at->first] = at->second;
      else
        values_.erase(at->first);
    }
    return out;
  }

  // Once for all iterations that are written out in one place.
  void put_initializer(const onnx_format::Tensor& t) {
    auto& made = body_constants_[{&t, graph_.regions().current()}];
    if (!made.is_valid()) {
      std::int64_t narrow = 0;
      auto copy = t;
      const auto taken =
          take_tensor(copy, fmt::format("initializer '{}'", shown(t.name())), {}, &narrow);
      if (!taken) throw refusal{taken.error().message()};
      made = constant(graph_, *taken, graph_name(t.name(), "constant"));
      if (narrow != 0) narrow_[{made.node, made.output}] = narrow;
    }
    put(t.name(), made);
  }

  void add_node_of(const onnx_format::Graph& body, int number,
                   const std::unordered_set<std::string>& needed) {
    const auto& n = body.nodes(number);
    try {
      add_node(n, needed);
    } catch (const refusal& r) {
      throw refusal{fmt::format("node {} ({}) of its graph '{}': {}", number, shown(n.op_type()),
                                shown(body.name()), r.what)};
    }
  }

  // Results of an op have the type of one of its operands, mostly the first one. Ops that move
  // elements give those that they take, others wrap around where i32 has more bits.
  // ops/quantised.cpp, casts and Constant know narrow types themselves.
  values computed(node& n, const rule& r, std::string_view op) {
    static const std::set<std::string_view> moving{"Identity",  "Reshape", "Transpose", "Squeeze",
                                                   "Unsqueeze", "Flatten", "Gather",    "Slice",
                                                   "Expand",    "Tile"},
        knowing{"QuantizeLinear", "DequantizeLinear", "MatMulInteger", "ConvInteger",
                "QLinearMatMul",  "QLinearConv",      "Cast",          "CastLike"},
        unknowing{"If", "Loop", "Scan"};
    const std::size_t carrier = op == "Where" ? 1 : op == "OneHot" ? 2 : 0;
    const bool says_type = knowing.contains(op) || (op == "EyeLike" && n.has("dtype"));
    const auto type = says_type ? 0 : n.narrow(carrier);
    if (unknowing.contains(op))
      for (std::size_t i = 0; i < n.inputs(); ++i)
        if (n.narrow(i) != 0)
          throw refusal{fmt::format("operand {} is {}, which branches and loops do not take", i,
                                    name_of_element(n.narrow(i)))};
    auto out = r(n);
    if (type == 0) return out;
    for (auto& v : out)
      if (v.is_valid() && spec(v).type == dtype::i32)
        v = n.marked(moving.contains(op) ? v : wrapped(n, v, *narrow_of(type)), type);
    return out;
  }

  void add_node(const onnx_format::Node& from, const std::unordered_set<std::string>& needed) {
    if (!is_own(from.domain()))
      throw refusal{fmt::format("ops of '{}' are not supported", shown(from.domain()))};
    if (file_.opset < 1) throw refusal{"the file does not say of which opset of ONNX its ops are"};
    if (file_.opset > opset_max)
      throw refusal{fmt::format(
          "what it means in opset {} is not known here, the newest known one is {}: export the "
          "model with that",
          file_.opset, opset_max)};
    const auto found = rules_.find(from.op_type());
    if (found == rules_.end()) throw refusal{"this op is not supported"};
    const auto before = graph_.nodes().size();
    if (before > nodes_max) throw refusal{"the graph has too many ops"};
    const auto scope = graph_.name_scope(graph_name(from.name(), from.op_type()));
    values operands;
    for (const auto& i : from.inputs()) operands.push_back(i.empty() ? value{} : value_of(i));
    node n(graph_, known_, from, file_.opset, std::move(operands), needed, narrow_, *this);
    const auto results = computed(n, found->second, from.op_type());
    if (graph_.first_error()) throw refusal{"an operand does not fit"};
    if (const auto unknown = n.unknown_attribute())
      throw refusal{fmt::format("attribute '{}' is not supported", shown(*unknown))};
    for (auto i = before; i < graph_.nodes().size(); ++i)
      check_size(graph_.node(static_cast<std::uint32_t>(i)));
    for (int i = 0; i < from.outputs_size(); ++i) {
      if (!n.wants(static_cast<std::size_t>(i))) continue;
      if (static_cast<std::size_t>(i) >= results.size())
        throw refusal{fmt::format("output {} is not supported", i)};
      put(from.outputs(i), results[static_cast<std::size_t>(i)]);
    }
  }

  // The op that makes it; empty: no node does.
  std::string maker_of(const std::string& name) const {
    for (const auto& n : file_.graph.nodes())
      if (std::ranges::find(n.outputs(), name) != n.outputs().end()) return shown(n.op_type());
    return "";
  }

  onnx_graph result() {
    onnx_graph out;
    for (const auto& o : file_.outputs) {
      try {
        const auto v = value_of(o.name);
        out.outputs.push_back({o.name, v});
      } catch (const refusal& r) {
        throw stop{fmt::format("output '{}': {}", shown(o.name), r.what), maker_of(o.name)};
      }
    }
    std::vector<bool> is_needed(graph_.nodes().size());
    for (const auto& o : out.outputs) is_needed[o.at.node] = true;
    for (auto i = is_needed.size(); i-- > 0;)
      if (is_needed[i])
        for (const auto& in : graph_.node(static_cast<std::uint32_t>(i)).inputs)
          is_needed[in.node] = true;
    for (const auto& i : inputs_) {
      if (is_needed[i.at.node]) out.inputs.push_back(i);
      if (known_.used_inputs().contains(i.at.node)) out.fixed.push_back(i.name);
    }
    for (const auto& w : weight_names_)
      if (known_.used_inputs().contains(w.at.node)) out.fixed.push_back(w.name);
    out.weights = std::move(weights_);
    return out;
  }

  const file& file_;
  graph& graph_;
  const onnx_build_options& options_;
  known_values known_;
  const rules rules_;
  const std::size_t first_;
  std::unordered_map<std::string, value> values_;
  narrow_values narrow_;
  // What names were before the body that is being built; null: none is.
  using hidden_names = std::vector<std::pair<std::string, value>>;
  hidden_names* hidden_ = nullptr;
  struct body_needs {
    std::unordered_set<std::string> needed;
    std::vector<bool> is_needed;
  };
  std::unordered_map<const onnx_format::Graph*, body_needs> needs_;
  std::map<std::pair<const onnx_format::Tensor*, std::uint32_t>, value> body_constants_;
  std::size_t bodies_ = 0;
  std::vector<onnx_value> inputs_, weight_names_;
  std::vector<std::pair<std::string, tensor>> weights_;
};

}  // namespace
}  // namespace onnx

result<onnx_graph> onnx_model::build(graph& g, const onnx_build_options& options,
                                     std::string* missing, source_location where) const {
  if (g.first_error()) return *g.first_error();
  try {
    onnx::builder b(*file_, g, options);
    auto built = b.run();
    b.set_lines(where);
    return built;
  } catch (const onnx::stop& s) {
    if (missing != nullptr) *missing = s.op;
    return error(s.code, fmt::format("{}: {}", file_->name, s.what)).at(where);
  } catch (const std::bad_alloc&) {
    return error(error_code::failed,
                 fmt::format("{}: there is no memory left for its graph", file_->name))
        .at(where);
  }
}

}  // namespace troupe
