#include "troupe/runtime/onnx/onnx_file.hpp"

#include "troupe/devices/files/whole_file.hpp"
#include "troupe/runtime/onnx/piece_count.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <new>
#include <unordered_map>
#include <unordered_set>

namespace troupe {
namespace onnx {

bool is_own(std::string_view domain) noexcept { return domain.empty() || domain == "ai.onnx"; }

namespace {

void add_names_read(const onnx_format::Graph& g, std::unordered_set<std::string>& names) {
  for (const auto& o : g.outputs()) names.insert(o.name());
  for (const auto& n : g.nodes()) {
    names.insert(n.inputs().begin(), n.inputs().end());
    for (const auto& a : n.attributes())
      if (a.has_graph()) add_names_read(a.graph(), names);
  }
}

}  // namespace

// Nodes stand in order, so one walk from the last to the first finds all.
std::vector<bool> find_needed(const onnx_format::Graph& g,
                              std::unordered_set<std::string>& needed) {
  std::vector<bool> is_needed(static_cast<std::size_t>(g.nodes_size()));
  for (int i = g.nodes_size(); i-- > 0;) {
    const auto& n = g.nodes(i);
    if (std::ranges::none_of(n.outputs(),
                             [&](const auto& o) { return !o.empty() && needed.contains(o); }))
      continue;
    is_needed[static_cast<std::size_t>(i)] = true;
    needed.insert(n.inputs().begin(), n.inputs().end());
    for (const auto& a : n.attributes())
      if (a.has_graph()) add_names_read(a.graph(), needed);
  }
  needed.erase("");  // what was left out
  return is_needed;
}

namespace {

// Protobuf's own limit.
constexpr std::uint64_t file_bytes_max = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t ir_version_max = 14;

// A rule that the file breaks; leaves by this exception, which parse_onnx() catches.
struct bad_file {
  std::string what;
};

std::string in_quotes(std::string_view text) { return fmt::format("'{}'", shown(text)); }

void check_text(std::string_view text, std::string_view what) {
  if (!is_utf8(text)) throw bad_file{fmt::format("{} {} is not UTF-8", what, in_quotes(text))};
}

std::string describe(const onnx_format::Node& n, int number) {
  return fmt::format("node {}{} ({})", number, n.name().empty() ? "" : " " + in_quotes(n.name()),
                     shown(n.op_type()));
}

onnx_port port_of(const onnx_format::Port& from, std::string_view what) {
  check_text(from.name(), what);
  if (from.name().empty()) throw bad_file{fmt::format("{} has no name", what)};
  onnx_port port{.name = from.name(), .type = "unknown"};
  const auto& type = from.type();
  if (type.has_sequence()) port.type = "sequence";
  if (type.has_map()) port.type = "map";
  if (type.has_sparse()) port.type = "sparse tensor";
  if (type.has_option()) port.type = "optional";
  if (!type.has_tensor()) return port;
  const auto element = type.tensor().element();
  port.element = element_of(element);
  port.type = port.element ? std::string(to_string(*port.element)) : name_of_element(element);
  if (narrow_of(element)) port.element = dtype::i32;
  if (!type.tensor().has_shape()) return port;
  port.dims.emplace();
  port.dims->reserve(static_cast<std::size_t>(type.tensor().shape().dims_size()));
  for (const auto& d : type.tensor().shape().dims()) {
    check_text(d.symbol(), fmt::format("a dimension of {} {}", what, in_quotes(port.name)));
    if (d.has_size() && d.size() < 0)
      throw bad_file{
          fmt::format("{} {} has a dimension of size {}", what, in_quotes(port.name), d.size())};
    port.dims->push_back({d.has_size() ? std::optional(d.size()) : std::nullopt, d.symbol()});
  }
  return port;
}

class reader {
 public:
  reader(onnx_format::Model& m, file& f, const data_folders& folders)
      : model_(m), file_(f), folders_(folders) {}

  void run() {
    check_versions();
    if (!model_.has_graph()) throw bad_file{"there is no graph"};
    file_.graph = std::move(*model_.mutable_graph());
    note_initializers();
    take_ports();
    for (int i = 0; i < file_.graph.nodes_size(); ++i) note_outputs(i);
    for (int i = 0; i < file_.graph.nodes_size(); ++i) check_node(i);
    for (const auto& o : file_.outputs)
      if (!makers_.contains(o.name))
        throw bad_file{fmt::format("output {} is made by no node", in_quotes(o.name))};
    for (const auto& o : file_.outputs) file_.needed.insert(o.name);
    file_.is_needed = find_needed(file_.graph, file_.needed);
    take_initializers();
  }

 private:
  static constexpr int before_all = -1;

  // A newer number of the format adds fields, which are skipped; what a node means follows from the
  // opset, which is looked at where a node is (builder::add_node()).
  void check_versions() {
    if (model_.ir_version() < 1 || model_.ir_version() > ir_version_max)
      throw bad_file{
          fmt::format("the format's version (ir_version) is {}, and 1 to {} are known: export the "
                      "model with an older one",
                      model_.ir_version(), ir_version_max)};
    for (const auto& o : model_.operator_sets())
      if (is_own(o.domain())) file_.opset = o.version();
    // The first versions of the format had nothing else.
    if (model_.operator_sets_size() == 0) file_.opset = 1;
  }

  void make(const std::string& name, int node, const std::string& what) {
    if (!makers_.emplace(name, node).second)
      throw bad_file{fmt::format("{} makes {}, which is there already", what, in_quotes(name))};
  }

  void note_initializers() {
    const auto note = [&](const std::string& name) {
      check_text(name, "an initializer's name");
      if (name.empty()) throw bad_file{"an initializer has no name"};
      make(name, before_all, "initializer " + in_quotes(name));
      given_.insert(name);
    };
    for (const auto& t : file_.graph.initializers()) note(t.name());
    for (const auto& t : file_.graph.sparse_initializers())
      if (!t.values().name().empty()) note(t.values().name());
  }

  void take_initializers() {
    for (const auto& t : file_.graph.sparse_initializers())
      if (file_.needed.contains(t.values().name()))
        throw bad_file{fmt::format("initializer {}: sparse tensors are not supported",
                                   in_quotes(t.values().name()))};
    for (auto& t : *file_.graph.mutable_initializers()) {
      if (!file_.needed.contains(t.name())) continue;
      std::int64_t narrow = 0;
      auto taken = take_tensor(t, "initializer " + in_quotes(t.name()), folders_, &narrow);
      if (!taken) throw bad_file{taken.error().message()};
      if (narrow != 0) file_.narrow.emplace(t.name(), narrow);
      file_.initializers.emplace(t.name(), std::move(*taken));
    }
    file_.graph.clear_initializers();
  }

  // Inputs may be initializers, which are then not fed.
  void take_ports() {
    std::unordered_set<std::string> seen;
    for (const auto& i : file_.graph.inputs()) {
      auto port = port_of(i, "input");
      if (!seen.insert(port.name).second)
        throw bad_file{fmt::format("there are two inputs {}", in_quotes(port.name))};
      if (given_.contains(port.name)) continue;
      make(port.name, before_all, "an input");
      file_.inputs.push_back(std::move(port));
    }
    for (const auto& o : file_.graph.outputs()) file_.outputs.push_back(port_of(o, "output"));
  }

  void note_outputs(int number) {
    const auto& n = file_.graph.nodes(number);
    check_text(n.name(), fmt::format("the name of node {}", number));
    check_text(n.op_type(), fmt::format("the op of node {}", number));
    check_text(n.domain(), fmt::format("the domain of node {}", number));
    for (const auto& o : n.outputs()) {
      if (o.empty()) continue;  // not wanted
      check_text(o, "an output of " + describe(n, number));
      make(o, number, describe(n, number));
    }
  }

  void check_node(int number) {
    const auto& n = file_.graph.nodes(number);
    std::unordered_set<std::string_view> seen;
    for (const auto& a : n.attributes()) {
      check_text(a.name(), "an attribute of " + describe(n, number));
      if (!seen.insert(a.name()).second)
        throw bad_file{
            fmt::format("{} has two attributes {}", describe(n, number), in_quotes(a.name()))};
    }
    for (const auto& i : n.inputs()) {
      if (i.empty()) continue;  // left out
      check_text(i, "an input of " + describe(n, number));
      const auto maker = makers_.find(i);
      if (maker == makers_.end())
        throw bad_file{
            fmt::format("{} reads {}, which nobody makes", describe(n, number), in_quotes(i))};
      if (maker->second >= number)
        throw bad_file{fmt::format(
            "{} reads {}, which {} makes: nodes must stand in an order without cycles",
            describe(n, number), in_quotes(i),
            maker->second == number ? "it"
                                    : describe(file_.graph.nodes(maker->second), maker->second))};
    }
  }

  onnx_format::Model& model_;
  file& file_;
  const data_folders& folders_;
  std::unordered_map<std::string, int> makers_;  // of every name: its node
  std::unordered_set<std::string> given_;        // by initializers
};

}  // namespace

}  // namespace onnx

namespace {

// Sizes are in the bytes, and protobuf's parser takes nothing in advance; `bytes` are at most
// 2^31 - 1.
template <class Message>
bool parse(Message& m, std::span<const std::byte> bytes) {
  return bytes.size() <= onnx::file_bytes_max &&
         m.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
}

// What f gives; an error where memory ends on the way.
template <class F>
auto with_memory(const std::string& name, F f) -> decltype(f()) {
  try {
    return f();
  } catch (const std::bad_alloc&) {
    return error(error_code::failed,
                 fmt::format("{}: there is no memory left for it", shown(name)));
  }
}

error bad_model(const std::string& name, std::string_view what) {
  return {error_code::usage, fmt::format("{}: {}", shown(name), what)};
}

result<onnx_format::Model> parse_model(std::span<const std::byte> bytes, const std::string& name) {
  const auto refuse = [&](std::string_view what) { return bad_model(name, what); };
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (const auto why = onnx::too_many_pieces(text, onnx::piece::model))
    return refuse("not an ONNX model: " + *why);
  onnx_format::Model m;
  if (!parse(m, bytes)) return refuse(fmt::format("not an ONNX model: {}", onnx::damaged));
  return m;
}

result<onnx_model> read_model(onnx_format::Model m, const std::string& name,
                              const onnx::data_folders& folders) {
  auto f = std::make_shared<onnx::file>();
  f->name = shown(name);
  try {
    onnx::reader(m, *f, folders).run();
  } catch (const onnx::bad_file& e) {
    return bad_model(name, e.what);
  }
  return onnx_model(std::move(f));
}

}  // namespace

result<onnx_model> parse_onnx(std::span<const std::byte> bytes, const std::string& name,
                              const std::string& folder) {
  return with_memory(name, [&]() -> result<onnx_model> {
    auto m = parse_model(bytes, name);
    if (!m) return m.error();
    return read_model(std::move(*m), name, {folder, ""});
  });
}

result<onnx_model> load_onnx(const std::string& path) {
  return with_memory(path, [&]() -> result<onnx_model> {
    auto bytes = host::read_file(path, onnx::file_bytes_max, "ONNX model");
    if (!bytes) return bytes.error();
    auto m = parse_model(*bytes, path);
    if (!m) return m.error();
    *bytes = {};  // weights are large, and protobuf has its own copy
    const auto folder = std::filesystem::path(path).parent_path();
    std::error_code failed;  // then its data lie where its name says, or nowhere
    const auto real = std::filesystem::canonical(path, failed).parent_path();
    return read_model(std::move(*m), path, {folder.empty() ? "." : folder.string(), real.string()});
  });
}

result<tensor> parse_onnx_tensor(std::span<const std::byte> bytes, const std::string& name,
                                 bool bits_are_bf16) {
  return with_memory(name, [&]() -> result<tensor> {
    const auto refuse = [&](std::string_view what) {
      return bad_model(name, fmt::format("not an ONNX tensor: {}", what));
    };
    if (const auto why = onnx::too_many_pieces(
            {reinterpret_cast<const char*>(bytes.data()), bytes.size()}, onnx::piece::tensor))
      return refuse(*why);
    onnx_format::Tensor t;
    if (!parse(t, bytes)) return refuse(onnx::damaged);
    if (bits_are_bf16 && t.type() == onnx::number_of_u16) t.set_type(onnx::number_of_bf16);
    std::int64_t narrow = 0;
    return onnx::take_tensor(t, shown(name), {}, &narrow);
  });
}

result<tensor> load_onnx_tensor(const std::string& path, bool bits_are_bf16) {
  return with_memory(path, [&]() -> result<tensor> {
    const auto bytes = host::read_file(path, onnx::file_bytes_max, "tensor");
    if (!bytes) return bytes.error();
    return parse_onnx_tensor(*bytes, path, bits_are_bf16);
  });
}

onnx_model::onnx_model(std::shared_ptr<const onnx::file> f) : file_(std::move(f)) {}
const std::vector<onnx_port>& onnx_model::inputs() const noexcept { return file_->inputs; }
const std::vector<onnx_port>& onnx_model::outputs() const noexcept { return file_->outputs; }

}  // namespace troupe
