// libFuzzer over models in the ONNX format: whatever the bytes, a model or an error; and of a
// model, a graph or an error.
//
// The first byte chooses what the rest is: raw bytes; a genuine model with pieces replaced; or a
// tensor. A property that does not hold traps; memory and undefined behaviour are the sanitizers'
// part.

#include "runtime/onnx/onnx_format.pb.h"
#include "tests/fuzz/fuzz_input.hpp"
#include "troupe/runtime/graph/build.hpp"
#include "troupe/runtime/graph/op_table.hpp"
#include "troupe/runtime/onnx/onnx_import.hpp"

#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

using namespace troupe;

namespace {

using test::check;

void check_message(const error& e) {
  check(e.message().starts_with("file: ") && e.message().find('\n') == std::string::npos);
}

void read_model(const std::string& text) {
  static const auto ops = make_op_table();
  const auto m = parse_onnx(std::as_bytes(std::span(text)), "file", "");
  if (!m) return check_message(m.error());
  graph g(ops);
  const auto built = m->build(g, {.result_bytes_max = std::size_t{1} << 24U});
  if (!built) return check_message(built.error());
  check(!g.first_error().has_value());
  for (const auto& o : built->outputs) check(o.at.is_valid());
}

void read_tensor(const std::string& text) {
  const auto t = parse_onnx_tensor(std::as_bytes(std::span(text)), "file");
  if (!t) return check_message(t.error());
  check(t->size_bytes() <= 8 * text.size() + 8);
}

// A chain through ops of every family, whose shapes follow from each other.
const std::string& sample() {
  static const std::string text = [] {
    onnx_format::Model m;
    m.set_ir_version(8);
    m.add_operator_sets()->set_version(21);
    auto& g = *m.mutable_graph();
    const auto port = [](onnx_format::Port& p, const char* name) {
      p.set_name(name);
      auto& t = *p.mutable_type()->mutable_tensor();
      t.set_element(1);
      for (const int n : {1, 2, 4, 4}) t.mutable_shape()->add_dims()->set_size(n);
    };
    port(*g.add_inputs(), "x");
    port(*g.add_outputs(), "y");
    const auto numbers = [&](const char* name, std::initializer_list<std::int64_t> all) {
      auto& t = *g.add_initializers();
      t.set_name(name), t.set_type(7), t.add_dims(static_cast<std::int64_t>(all.size()));
      for (const auto n : all) t.add_integers64(n);
    };
    numbers("a", {0, -1});
    numbers("b", {1});
    numbers("c", {2, 16});
    numbers("sizes", {1, 2, 3, 5});
    numbers("often", {2});
    auto& weights = *g.add_initializers();
    weights.set_name("int8"), weights.set_type(3), weights.add_dims(1), weights.set_raw("\x7f");
    auto& scale = *g.add_initializers();
    scale.set_name("scale"), scale.set_type(1), scale.add_reals(0.5F);
    const auto node = [&](const char* op, std::initializer_list<const char*> in,
                          const char* out) -> onnx_format::Node& {
      auto& n = *g.add_nodes();
      n.set_op_type(op);
      for (const auto* i : in) n.add_inputs(i);
      n.add_outputs(out);
      return n;
    };
    const auto list = [](onnx_format::Node& n, const char* name,
                         std::initializer_list<std::int64_t> all) {
      auto& a = *n.add_attributes();
      a.set_name(name), a.set_type(7);
      for (const auto k : all) a.add_integers(k);
    };
    auto& pool = node("MaxPool", {"x"}, "p");
    list(pool, "kernel_shape", {2, 2});
    list(pool, "pads", {1, 0, 0, 1});
    auto& resize = node("Resize", {"p", "", "", "sizes"}, "l");
    const auto text_of = [](onnx_format::Node& n, const char* name, const char* is) {
      auto& a = *n.add_attributes();
      a.set_name(name), a.set_type(3), a.set_text(is);
    };
    text_of(resize, "mode", "linear");
    node("Shape", {"l"}, "s");
    node("Reshape", {"l", "a"}, "r");
    node("Softmax", {"r"}, "q");
    node("ReduceSum", {"q", "b"}, "t");
    list(node("Transpose", {"t"}, "u"), "perm", {1, 0});
    node("Expand", {"u", "c"}, "v");
    node("Slice", {"v", "b", "often", "b"}, "w");
    node("Gather", {"w", "b"}, "z");
    node("DequantizeLinear", {"int8", "scale"}, "d");
    node("Add", {"z", "d"}, "e");
    auto& body = *node("Loop", {"often", "", "e"}, "f").add_attributes();
    body.set_name("body"), body.set_type(5);
    auto& inside = *body.mutable_graph();
    for (const auto* name : {"i", "go", "v"}) inside.add_inputs()->set_name(name);
    auto& relu = *inside.add_nodes();
    relu.set_op_type("Relu"), relu.add_inputs("v"), relu.add_outputs("o");
    for (const auto* name : {"go", "o"}) inside.add_outputs()->set_name(name);
    text_of(node("Einsum", {"f", "f"}, "y"), "equation", "...i,...i->...");
    return m.SerializeAsString();
  }();
  return text;
}

// Four bytes each: where, how many are taken away, how many of the input come instead.
void replaced_pieces(std::string in) {
  auto text = sample();
  for (int i = 0; i < 6 && in.size() >= 4; ++i) {
    const auto at = (static_cast<unsigned char>(in[0]) |
                     static_cast<unsigned>(static_cast<unsigned char>(in[1])) << 8U) %
                    (text.size() + 1);
    const auto taken = static_cast<unsigned char>(in[2]) % 16U,
               put = static_cast<unsigned char>(in[3]) % 16U;
    in.erase(0, 4);
    text.replace(at, taken, in.substr(0, put));
    in.erase(0, put);
  }
  read_model(text);
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  static const auto ops = make_op_table();
  const auto m = parse_onnx(std::as_bytes(std::span(sample())), "file", "");
  graph g(ops);
  check(m && m->build(g));  // else its pieces would be replaced in vain
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string in(reinterpret_cast<const char*>(data), size);
  const auto kind = in.empty() ? 0 : static_cast<unsigned char>(in[0]) % 4;
  if (!in.empty()) in.erase(0, 1);
  switch (kind) {
    case 0: read_model(in); break;
    case 1: read_tensor(in); break;
    default: replaced_pieces(in); break;
  }
  return 0;
}
