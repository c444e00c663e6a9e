#include "runtime/onnx/onnx_file.hpp"

#include "devices/host/whole_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <unordered_map>
#include <unordered_set>

namespace troupe {
namespace onnx {

bool is_own(std::string_view domain) noexcept { return domain.empty() || domain == "ai.onnx"; }

namespace {

constexpr std::uint64_t file_bytes_max = std::numeric_limits<std::int32_t>::max();  // protobuf's own limit
constexpr std::int64_t opset_max = 17, ir_version_max = 8;
// An empty message takes two bytes in the file and 200 in memory: a limit on their number keeps memory in proportion.
constexpr std::size_t file_bytes_a_message = 8;  // the least that one with a name and a number has

// A rule that the file breaks; leaves by this exception, which parse_onnx() catches.
struct bad_file {
  std::string what;
};

std::string in_quotes(std::string_view text) { return fmt::format("'{}'", shown(text)); }

void check_text(std::string_view text, std::string_view what) {
  if (!is_utf8(text)) throw bad_file{fmt::format("{} {} is not UTF-8", what, in_quotes(text))};
}

std::string describe(const onnx_format::Node& n, int number) {
  return fmt::format("node {}{} ({})", number, n.name().empty() ? "" : " " + in_quotes(n.name()), shown(n.op_type()));
}

bool read_varint(std::string_view& bytes, std::uint64_t& n) {
  n = 0;
  for (unsigned shift = 0; shift < 64 && !bytes.empty(); shift += 7) {
    const auto b = static_cast<unsigned char>(bytes.front());
    bytes.remove_prefix(1);
    n |= std::uint64_t{b & 0x7fU} << shift;
    if (b < 0x80) return true;
  }
  return false;
}

// False: the bytes end within a field, which protobuf will say.
bool skip_field(std::string_view& bytes, std::string_view& inside) {
  std::uint64_t tag = 0, n = 0;
  inside = {};
  if (!read_varint(bytes, tag)) return false;
  switch (tag & 7U) {
    case 0: return read_varint(bytes, n);
    case 1: n = 8; break;
    case 5: n = 4; break;
    case 2:
      if (!read_varint(bytes, n) || n > bytes.size()) return false;
      inside = bytes.substr(0, n);
      break;
    default: return false;
  }
  if (n > bytes.size()) return false;
  bytes.remove_prefix(n);
  return true;
}

// The messages that a file may repeat, as count_messages() walks them.
enum class part { model, graph, node, attribute, leaf };

std::optional<part> part_in(part whole, std::uint64_t field) {
  switch (whole) {
    case part::model: return field == 7 ? std::optional(part::graph) : field == 8 ? std::optional(part::leaf) : std::nullopt;
    case part::graph: return field == 1 ? std::optional(part::node) : field == 5 || field == 11 || field == 12 || field == 15 ? std::optional(part::leaf) : std::nullopt;
    case part::node: return field == 5 ? std::optional(part::attribute) : std::nullopt;
    case part::attribute: return field == 5 ? std::optional(part::leaf) : field == 6 ? std::optional(part::graph) : std::nullopt;
    case part::leaf: break;
  }
  return std::nullopt;
}

// Without making one.
std::size_t count_messages(std::string_view bytes, part whole, int depth) {
  std::size_t count = 0;
  while (!bytes.empty()) {
    auto field = bytes;
    std::uint64_t tag = 0;
    std::string_view inside;
    if (!read_varint(field, tag) || !skip_field(bytes, inside)) return count;
    const auto p = (tag & 7U) == 2 ? part_in(whole, tag >> 3U) : std::nullopt;
    if (p) count += 1 + (depth > 0 ? count_messages(inside, *p, depth - 1) : 0);
  }
  return count;
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
  port.element = element_of(type.tensor().element());
  port.type = port.element ? std::string(to_string(*port.element)) : name_of_element(type.tensor().element());
  if (!type.tensor().has_shape()) return port;
  port.dims.emplace();
  for (const auto& d : type.tensor().shape().dims()) {
    check_text(d.symbol(), fmt::format("a dimension of {} {}", what, in_quotes(port.name)));
    if (d.has_size() && d.size() < 0) throw bad_file{fmt::format("{} {} has a dimension of size {}", what, in_quotes(port.name), d.size())};
    port.dims->push_back({d.has_size() ? std::optional(d.size()) : std::nullopt, d.symbol()});
  }
  return port;
}

class reader {
 public:
  reader(onnx_format::Model& m, file& f, const std::string& folder) : model_(m), file_(f), folder_(folder) {}

  void run() {
    check_versions();
    if (!model_.has_graph()) throw bad_file{"there is no graph"};
    file_.graph = std::move(*model_.mutable_graph());
    if (file_.graph.sparse_initializers_size() > 0) throw bad_file{"sparse initializers are not supported"};
    take_initializers();
    take_ports();
    for (int i = 0; i < file_.graph.nodes_size(); ++i) note_outputs(i);
    for (int i = 0; i < file_.graph.nodes_size(); ++i) check_node(i);
    for (const auto& o : file_.outputs)
      if (!makers_.contains(o.name)) throw bad_file{fmt::format("output {} is made by no node", in_quotes(o.name))};
  }

 private:
  static constexpr int before_all = -1;

  void check_versions() {
    if (model_.ir_version() < 1 || model_.ir_version() > ir_version_max)
      throw bad_file{fmt::format("the format's version is {}, expected 1 to {}", model_.ir_version(), ir_version_max)};
    for (const auto& o : model_.operator_sets())
      if (is_own(o.domain())) file_.opset = o.version();
    if (model_.operator_sets_size() == 0) file_.opset = 1;  // the first versions of the format had nothing else
    if (file_.opset == 0 && std::ranges::all_of(model_.graph().nodes(), [](const auto& n) { return !is_own(n.domain()); })) file_.opset = opset_max;  // none is used
    if (file_.opset < 1 || file_.opset > opset_max) throw bad_file{fmt::format("the opset is {}, expected 1 to {}", file_.opset, opset_max)};
  }

  void make(const std::string& name, int node, const std::string& what) {
    if (!makers_.emplace(name, node).second) throw bad_file{fmt::format("{} makes {}, which is there already", what, in_quotes(name))};
  }

  void take_initializers() {
    for (auto& t : *file_.graph.mutable_initializers()) {
      check_text(t.name(), "an initializer's name");
      if (t.name().empty()) throw bad_file{"an initializer has no name"};
      const auto what = "initializer " + in_quotes(t.name());
      make(t.name(), before_all, what);
      auto taken = take_tensor(t, what, folder_);
      if (!taken) throw bad_file{taken.error().message()};
      file_.initializers.emplace(t.name(), std::move(*taken));
    }
    file_.graph.clear_initializers();
  }

  // Inputs may be initializers, which are then not fed.
  void take_ports() {
    std::unordered_set<std::string> seen;
    for (const auto& i : file_.graph.inputs()) {
      auto port = port_of(i, "input");
      if (!seen.insert(port.name).second) throw bad_file{fmt::format("there are two inputs {}", in_quotes(port.name))};
      if (file_.initializers.contains(port.name)) continue;
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
      if (!seen.insert(a.name()).second) throw bad_file{fmt::format("{} has two attributes {}", describe(n, number), in_quotes(a.name()))};
    }
    for (const auto& i : n.inputs()) {
      if (i.empty()) continue;  // left out
      check_text(i, "an input of " + describe(n, number));
      const auto maker = makers_.find(i);
      if (maker == makers_.end()) throw bad_file{fmt::format("{} reads {}, which nobody makes", describe(n, number), in_quotes(i))};
      if (maker->second >= number)
        throw bad_file{fmt::format("{} reads {}, which {} makes: nodes must stand in an order without cycles", describe(n, number), in_quotes(i),
                                   maker->second == number ? "it" : describe(file_.graph.nodes(maker->second), maker->second))};
    }
  }

  onnx_format::Model& model_;
  file& file_;
  const std::string& folder_;
  std::unordered_map<std::string, int> makers_;  // of every name: its node
};

}  // namespace

bool is_utf8(std::string_view text) noexcept {
  for (std::size_t i = 0; i < text.size();) {
    const auto byte = [&](std::size_t k) { return k < text.size() ? static_cast<unsigned char>(text[k]) : 0U; };
    const auto first = byte(i);
    const std::size_t more = first < 0x80 ? 0 : first >= 0xc2 && first < 0xe0 ? 1 : first >= 0xe0 && first < 0xf0 ? 2 : first >= 0xf0 && first < 0xf5 ? 3 : 9;
    if (more == 9) return false;
    for (std::size_t k = 1; k <= more; ++k)
      if ((byte(i + k) & 0xc0U) != 0x80) return false;
    // No longer forms, no halves of surrogate pairs, nothing above U+10FFFF (RFC 3629).
    if ((first == 0xe0 && byte(i + 1) < 0xa0) || (first == 0xed && byte(i + 1) > 0x9f) || (first == 0xf0 && byte(i + 1) < 0x90) || (first == 0xf4 && byte(i + 1) > 0x8f)) return false;
    i += more + 1;
  }
  return true;
}

std::string shown(std::string_view text) {
  constexpr std::size_t most = 80;
  const bool is_text = is_utf8(text);
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (out.size() >= most && (c & 0xc0U) != 0x80) return out + "...";
    out += c < 0x20 || c == 0x7f || (c >= 0x80 && !is_text) ? '?' : text[i];
  }
  return out;
}

}  // namespace onnx

namespace {

// Sizes are in the bytes, and protobuf's parser takes nothing in advance; `bytes` are at most 2^31 - 1.
template <class Message>
bool parse(Message& m, std::span<const std::byte> bytes) {
  return bytes.size() <= onnx::file_bytes_max && m.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
}

error bad_model(const std::string& name, std::string_view what) { return {error_code::usage, fmt::format("{}: {}", onnx::shown(name), what)}; }

result<onnx_format::Model> parse_model(std::span<const std::byte> bytes, const std::string& name) {
  const auto refuse = [&](std::string_view what) { return bad_model(name, what); };
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  constexpr int depth_max = 100;  // protobuf's own limit
  if (onnx::count_messages(text, onnx::part::model, depth_max) > bytes.size() / onnx::file_bytes_a_message + 64) return refuse("not an ONNX model: it consists of empty pieces");
  onnx_format::Model m;
  if (!parse(m, bytes)) return refuse("not an ONNX model: its bytes end early or are damaged");
  return m;
}

result<onnx_model> read_model(onnx_format::Model m, const std::string& name, const std::string& folder) {
  auto f = std::make_shared<onnx::file>();
  f->name = onnx::shown(name);
  try {
    onnx::reader(m, *f, folder).run();
  } catch (const onnx::bad_file& e) {
    return bad_model(name, e.what);
  }
  return onnx_model(std::move(f));
}

}  // namespace

result<onnx_model> parse_onnx(std::span<const std::byte> bytes, const std::string& name, const std::string& folder) {
  auto m = parse_model(bytes, name);
  if (!m) return m.error();
  return read_model(std::move(*m), name, folder);
}

result<onnx_model> load_onnx(const std::string& path) {
  auto bytes = host::read_file(path, onnx::file_bytes_max, "ONNX model");
  if (!bytes) return bytes.error();
  auto m = parse_model(*bytes, path);
  if (!m) return m.error();
  *bytes = {};  // weights are large, and protobuf has its own copy
  const auto folder = std::filesystem::path(path).parent_path();
  return read_model(std::move(*m), path, folder.empty() ? "." : folder.string());
}

result<tensor> parse_onnx_tensor(std::span<const std::byte> bytes, const std::string& name, bool bits_are_bf16) {
  onnx_format::Tensor t;
  if (!parse(t, bytes)) return error(error_code::usage, fmt::format("{}: not an ONNX tensor: its bytes end early or are damaged", onnx::shown(name)));
  if (bits_are_bf16 && t.type() == onnx::number_of_u16) t.set_type(onnx::number_of_bf16);
  return onnx::take_tensor(t, onnx::shown(name), "");
}

result<tensor> load_onnx_tensor(const std::string& path, bool bits_are_bf16) {
  const auto bytes = host::read_file(path, onnx::file_bytes_max, "tensor");
  if (!bytes) return bytes.error();
  return parse_onnx_tensor(*bytes, path, bits_are_bf16);
}

onnx_model::onnx_model(std::shared_ptr<const onnx::file> f) : file_(std::move(f)) {}
const std::vector<onnx_port>& onnx_model::inputs() const noexcept { return file_->inputs; }
const std::vector<onnx_port>& onnx_model::outputs() const noexcept { return file_->outputs; }

}  // namespace troupe
