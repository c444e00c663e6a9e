#include "troupe/runtime/onnx/onnx_export.hpp"

#include "troupe/devices/files/whole_file.hpp"
#include "troupe/runtime/graph/op_table.hpp"
#include "troupe/runtime/onnx/model_writer.hpp"
#include "troupe/runtime/text/printable.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <new>
#include <unordered_map>

namespace troupe {
namespace onnx {
namespace {

// What stops it, and where.
struct not_written {
  std::string what;
  std::optional<source_location> line{};
};

class exporter {
 public:
  exporter(const troupe::graph& g, std::span<const onnx_value> outputs, const onnx_save_options& o)
      : graph_(g), outputs_(outputs), options_(o), rules_(export_rules()) {}

  void run() {
    check_names();
    find_what_is_needed();
    w_.graph.set_name("troupe");
    for (const auto& i : options_.inputs)
      if (is_needed_[i.at.node]) add_port_of_input(i.at.node, i.name);
    for (const auto& n : graph_.nodes())
      if (is_needed_[n.index]) write(n);
    for (const auto& o : outputs_) {
      w_.add_named("Identity", {name_of(o.at)}, o.name);
      put_port(*w_.graph.add_outputs(), o.name, o.at.spec());
    }
  }

  std::uint64_t data_bytes() const {
    std::uint64_t all = 0;
    for (const auto& t : w_.data) all += t.size_bytes();
    return all;
  }

  // With the tensors in it; or, given the name of a file, in that, in their order.
  std::string bytes(const std::string& file = "") {
    onnx_format::Model m;
    m.set_ir_version(onnx_saved_format);
    m.set_producer("Troupe");
    m.add_operator_sets()->set_version(onnx_saved_opset);
    std::uint64_t at = 0;
    for (std::size_t i = 0; i < w_.data.size(); ++i) {
      auto& to = *w_.graph.mutable_initializers(static_cast<int>(i));
      const auto from = w_.data[i].bytes();
      if (file.empty() || !is_beside(from)) {
        to.set_raw(std::string(reinterpret_cast<const char*>(from.data()), from.size()));
        continue;
      }
      const auto entry = [&](const char* key, std::string text) {
        auto& e = *to.add_external();
        e.set_key(key), e.set_text(std::move(text));
      };
      to.set_location(1);
      entry("location", file);
      entry("offset", fmt::format("{}", at));
      entry("length", fmt::format("{}", from.size()));
      at += from.size();
    }
    m.mutable_graph()->Swap(&w_.graph);
    std::string out;
    if (!m.SerializeToString(&out))
      throw not_written{
          "the model takes 2 GiB or more in one file, which its format does not allow"};
    return out;
  }

  std::vector<std::span<const std::byte>> pieces() const {
    std::vector<std::span<const std::byte>> all;
    for (const auto& t : w_.data)
      if (is_beside(t.bytes())) all.push_back(t.bytes());
    return all;
  }

 private:
  // Shapes and axes stay in the model: readers want their values while they infer shapes, when they
  // have not opened other files.
  static bool is_beside(std::span<const std::byte> data) { return data.size() >= 1024; }

  void check_names() {
    if (outputs_.empty()) throw not_written{"a model has at least one output"};
    const auto check = [&](const onnx_value& v, std::string_view what) {
      if (!graph_.has(v.at))
        throw not_written{fmt::format("{} '{}' is no value of the graph", what, shown(v.name))};
      if (v.name.empty() || !is_utf8(v.name))
        throw not_written{fmt::format("an {} has no name, or one that is not UTF-8", what)};
      if (!names_.insert(v.name).second)
        throw not_written{fmt::format("two inputs or outputs have the name '{}'", shown(v.name))};
      (void)w_.fresh(v.name);
    };
    for (const auto& o : outputs_) check(o, "output");
    for (const auto& i : options_.inputs) {
      check(i, "input");
      if (graph_.node(i.at.node).type != "input")
        throw not_written{fmt::format("input '{}' is a {} in the graph", shown(i.name),
                                      graph_.node(i.at.node).type)};
    }
  }

  void find_what_is_needed() {
    is_needed_.resize(graph_.nodes().size());
    is_used_.resize(graph_.nodes().size());
    const auto need = [&](const value& v) {
      is_needed_[v.node] = true;
      auto& used = is_used_[v.node];
      used.resize(graph_.node(v.node).outputs.size());
      used[v.output] = true;
    };
    for (const auto& o : outputs_) need(o.at);
    for (auto i = graph_.nodes().size(); i-- > 0;) {
      if (!is_needed_[i]) continue;
      const auto& n = graph_.node(static_cast<std::uint32_t>(i));
      // What must only have been computed before is no operand of a model.
      const auto count = n.type == "after" ? std::size_t{1} : n.inputs.size();
      for (std::size_t k = 0; k < count; ++k) need(n.inputs[k]);
    }
  }

  const std::string& name_of(const value& v) const { return results_.at(v.node)[v.output]; }

  void put_port(onnx_format::Port& to, const std::string& name, const tensor_spec& s) const {
    to.set_name(name);
    auto& type = *to.mutable_type()->mutable_tensor();
    type.set_element(number_of_element(s.type));
    auto& dims = *type.mutable_shape();
    for (std::size_t i = 0; i < s.shape.rank(); ++i) {
      auto& d = *dims.add_dims();
      if (s.shape[i].symbol == 0)
        d.set_size(s.shape.size(i));
      else
        d.set_symbol(s.shape[i].symbol == 1 ? "batch" : fmt::format("batch_{}", s.shape[i].symbol));
    }
  }

  void add_port_of_input(std::uint32_t node, std::string name) {
    put_port(*w_.graph.add_inputs(), name, graph_.node(node).outputs[0]);
    results_[node] = {std::move(name)};
  }

  void write(const graph_node& n) {
    if (results_.contains(n.index)) return;
    w_.begin(n.name);
    if (n.type == "input") return add_port_of_input(n.index, w_.fresh(n.name));
    if (n.type == "variable") return void(results_[n.index] = {w_.constant(value_of(n))});
    if (n.type == "constant")
      return void(results_[n.index] = {w_.number(n.attrs.real("value"), n.outputs[0].type)});
    if (n.type == "constant_tensor") {
      auto t = tensor::make(n.outputs[0]);
      const auto data = n.attrs.data("data");
      if (t.size_bytes() > 0) std::memcpy(t.bytes().data(), data.view().data(), t.size_bytes());
      return void(results_[n.index] = {w_.constant(t)});
    }
    const auto refuse = [&](std::string_view why) {
      throw not_written{fmt::format("op '{}' ({}) cannot be written: {}", n.name, n.type, why),
                        n.source};
    };
    const auto rule = rules_.find(n.type);
    if (rule == rules_.end()) refuse(why_not(n));
    names in;
    for (std::size_t i = 0; i < (n.type == "after" ? 1 : n.inputs.size()); ++i)
      in.push_back(name_of(n.inputs[i]));
    try {
      results_[n.index] = rule->second({w_, n, in, is_used_[n.index]});
    } catch (const unwritable& u) {
      refuse(u.what);
    }
  }

  tensor value_of(const graph_node& n) const {
    const auto at =
        std::ranges::find(options_.variables, n.name, &std::pair<std::string, tensor>::first);
    if (at == options_.variables.end())
      throw not_written{
          fmt::format("variable '{}' has no value: give one in onnx_save_options::variables",
                      n.name),
          n.source};
    if (!at->second || at->second.spec() != n.outputs[0])
      throw not_written{
          fmt::format("variable '{}' is {}, and its value {}", n.name, to_string(n.outputs[0]),
                      at->second ? to_string(at->second.spec()) : "empty"),
          n.source};
    return at->second;
  }

  std::string_view why_not(const graph_node& n) const {
    const auto* row = graph_.ops().find(n.type);
    if (row != nullptr && row->library) return "it is of a library, and ONNX does not know it";
    if (n.type.starts_with("random_") || n.type == "dropout_mask")
      return "it draws numbers, and other programs draw others: leave dropout out of what is saved";
    if (n.type.find("_grad") != std::string::npos || n.type == "put_slice" ||
        n.type == "max_pool2d_take")
      return "it belongs to gradients, which no model has";
    if (row != nullptr && row->is_control)
      return "branches and loops are not written: save what lies outside of them";
    if (row != nullptr && row->is_source)
      return "it reads data: build what is saved on an input instead";
    return "ONNX has no counterpart";
  }

  const troupe::graph& graph_;
  std::span<const onnx_value> outputs_;
  const onnx_save_options& options_;
  const std::map<std::string, export_rule, std::less<>> rules_;
  model_writer w_;
  std::set<std::string> names_;  // of inputs and outputs
  std::vector<bool> is_needed_;
  std::vector<std::vector<bool>> is_used_;
  std::unordered_map<std::uint32_t, names> results_;
};

// `f` is given the model once it is made.
template <class F>
auto exported(const troupe::graph& g, std::span<const onnx_value> outputs,
              const onnx_save_options& options, const source_location& where, F f)
    -> decltype(f(std::declval<exporter&>())) {
  if (g.first_error()) return *g.first_error();
  try {
    exporter e(g, outputs, options);
    e.run();
    return f(e);
  } catch (const not_written& n) {
    return error(error_code::usage, "save_onnx: " + n.what).at(n.line.value_or(where));
  } catch (const std::bad_alloc&) {
    return error(error_code::failed, "save_onnx: there is no memory left for the model").at(where);
  }
}

}  // namespace
}  // namespace onnx

namespace {
// The format ends at 2 GiB; beside tensors there are names and ops.
constexpr std::uint64_t in_one_file_max = std::uint64_t{2032} << 20;
}  // namespace

result<std::string> write_onnx(const graph& g, std::span<const onnx_value> outputs,
                               const onnx_save_options& options, source_location where) {
  return onnx::exported(g, outputs, options, where, [&](onnx::exporter& e) -> result<std::string> {
    if (e.data_bytes() > std::min(options.file_bytes_max, in_one_file_max))
      return error(error_code::usage,
                   fmt::format("write_onnx: all tensors take {} bytes, and file_bytes_max is {}: "
                               "save_onnx() writes them beside the model",
                               e.data_bytes(), options.file_bytes_max))
          .at(where);
    return e.bytes();
  });
}

result<void> can_save_onnx(const std::string& path) {
  if (auto target = host::replaceable(path); !target) return std::move(target.error());
  return {};
}

result<void> save_onnx(const graph& g, std::span<const onnx_value> outputs, const std::string& path,
                       const onnx_save_options& options, source_location where) {
  return onnx::exported(g, outputs, options, where, [&](onnx::exporter& e) -> result<void> {
    std::string file;
    if (e.data_bytes() > std::min(options.file_bytes_max, in_one_file_max) && !e.pieces().empty()) {
      file = std::filesystem::path(path).filename().string() + ".data";
      const auto beside = (std::filesystem::path(path).parent_path() / file).string();
      if (auto saved = host::replace_file(beside, e.pieces()); !saved) return saved;
    }
    const auto bytes = e.bytes(file);
    const std::span<const std::byte> piece = std::as_bytes(std::span(bytes));
    return host::replace_file(path, std::span(&piece, 1));
  });
}

}  // namespace troupe
