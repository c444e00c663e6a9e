#pragma once
// One node of a model while it becomes ops: its operands, its attributes, and what rules for it
// share. Only runtime/onnx/ includes this.
//
// A rule (ops/, a file per family) takes a node and gives the values of its outputs. What it cannot
// do leaves by refusal, which names the node when it reaches build().

#include "troupe/runtime/graph/build.hpp"
#include "troupe/runtime/onnx/known_values.hpp"
#include "troupe/runtime/onnx/onnx_file.hpp"
#include "troupe/schema/dtype_set.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace troupe::onnx {

struct refusal {
  std::string what;
};

// Of a value that an earlier call may have refused: the graph has that error, and nothing more can
// be said here.
inline const tensor_spec& spec(value v) {
  if (!v.is_valid()) throw refusal{"an operand is invalid"};
  return v.spec();
}

using integers = std::vector<std::int64_t>;
using values = std::vector<value>;

// Values that are i32 here and of a narrow type (narrow_of()) in the model: its number.
using narrow_values = std::map<std::pair<std::uint32_t, std::uint32_t>, std::int64_t>;

// Adds the graphs that nodes have as attributes (branches, bodies of loops).
class body_builder {
 public:
  // What the body reads from around it is made now: before a branch begins, whose values nobody
  // outside may use.
  virtual void prepare(const onnx_format::Graph& body) = 0;
  // Its ops, once more with each call; the results in the body's order.
  virtual values build_body(const onnx_format::Graph& body, const values& inputs) = 0;

 protected:
  ~body_builder() = default;
};

class node {
 public:
  // `needed` has the names of all that outputs of the model follow from.
  node(graph& g, known_values& known, const onnx_format::Node& n, std::int64_t opset, values inputs,
       const std::unordered_set<std::string>& needed, narrow_values& narrow, body_builder& bodies)
      : g(g),
        bodies(bodies),
        opset(opset),
        known_(known),
        from_(n),
        inputs_(std::move(inputs)),
        needed_(needed),
        narrow_(narrow) {}

  graph& g;
  body_builder& bodies;
  const std::int64_t opset;

  // --- operands; an invalid value is one that was left out ---
  std::size_t inputs() const noexcept { return inputs_.size(); }
  std::size_t outputs() const noexcept { return static_cast<std::size_t>(from_.outputs_size()); }
  // Somebody needs it.
  bool wants(std::size_t output) const {
    return output < outputs() && needed_.contains(from_.outputs(static_cast<int>(output)));
  }
  bool has(std::size_t i) const noexcept { return i < inputs_.size() && inputs_[i].is_valid(); }
  value in(std::size_t i) const;  // an error where it is left out
  void replace(std::size_t i, value v) { inputs_[i] = v; }
  void drop_from(std::size_t i) { inputs_.resize(std::min(i, inputs_.size())); }
  // ONNX's number of its narrow type; 0: it is of one of our types.
  std::int64_t narrow(std::size_t i) const { return has(i) ? narrow(inputs_[i]) : 0; }
  std::int64_t narrow(value v) const {
    const auto at = narrow_.find({v.node, v.output});
    return at != narrow_.end() ? at->second : 0;
  }
  value marked(value v, std::int64_t type) const {
    if (type != 0) narrow_[{v.node, v.output}] = type;
    return v;
  }
  // Values that must be known while the graph is built; an error says that they are not.
  tensor known(std::size_t i) const;
  std::optional<tensor> known_if_any(value v) const { return known_.of(v); }
  integers known_integers(std::size_t i) const;
  std::int64_t known_integer(std::size_t i) const;
  double known_number(std::size_t i) const;

  // --- attributes; whoever is not asked for is an error in the end ---
  bool has(std::string_view attribute) const { return find(attribute) != nullptr; }
  std::int64_t integer(std::string_view name, std::int64_t otherwise) const;
  std::int64_t integer(std::string_view name) const;
  double real(std::string_view name, double otherwise) const;
  std::string text(std::string_view name, std::string otherwise) const;
  integers list(std::string_view name, integers otherwise = {}) const;
  std::vector<float> reals(std::string_view name) const;
  std::vector<std::string> texts(std::string_view name) const;
  const onnx_format::Graph& body(std::string_view name) const;
  std::optional<tensor> tensor_of(std::string_view name, std::int64_t* narrow = nullptr) const;
  void ignore(std::initializer_list<std::string_view> names) const {
    asked_.insert(names.begin(), names.end());
  }
  // An attribute that nobody asked for.
  std::optional<std::string> unknown_attribute() const;

  // --- what rules share ---
  [[noreturn]] void refuse(std::string what) const { throw refusal{std::move(what)}; }
  // An axis of x from 0; an error where there is none.
  std::size_t axis(std::int64_t a, std::size_t rank) const;
  std::vector<std::int64_t> axes(integers all, std::size_t rank) const;  // sorted, each once
  // Exact sizes; an error where one is a bound.
  integers sizes(value x) const;
  value number(double x, dtype type) const { return constant(g, x, type); }
  value number_like(value x, double n) const { return constant(g, n, spec(x).type); }
  // The same elements in these exact sizes.
  value reshaped(value x, const integers& dims) const;
  // A tensor made while the graph is built: element i is make(i). An error where it is too large
  // for that.
  template <class T>
  tensor made(dtype type, const integers& dims, const std::function<T(std::size_t)>& make) const {
    auto t = tensor::make(with_room(checked(type, dims)));
    for (std::size_t i = 0; i < static_cast<std::size_t>(t.elements()); ++i)
      t.template data<T>()[i] = make(i);
    return t;
  }
  value filled(dtype type, const integers& dims, double x) const;  // a constant with equal elements
  // NumPy's broadcast to at least these sizes.
  value expanded(value x, const integers& dims) const;
  value moved(value x, std::size_t from, std::size_t to) const;  // an axis to another place
  // Added to zeros of like's shape, at indices along the last axis: what take_last() took.
  value put_last(value v, value indices, value like) const;
  value converted(value x, dtype type) const { return spec(x).type == type ? x : cast(x, type); }

 private:
  const onnx_format::Attribute* find(std::string_view name) const;
  [[noreturn]] void wrong_type(std::string_view name) const {
    refuse(fmt::format("attribute '{}' is of another type", name));
  }
  tensor_spec checked(dtype type, const integers& dims) const;
  const tensor_spec& with_room(const tensor_spec& s) const;

  known_values& known_;
  const onnx_format::Node& from_;
  values inputs_;
  const std::unordered_set<std::string>& needed_;
  narrow_values& narrow_;
  mutable std::set<std::string, std::less<>> asked_;
};

// The lowest bits of i32, as a number of this type.
value wrapped(const node& n, value v, const narrow_type& to);

using rule = std::function<values(node&)>;
using rules = std::map<std::string, rule, std::less<>>;

// Halves and bytes are not computed in: operands are widened for the rule (to f32, i32), results
// made what operand 0 was.
rule widening(rule r);

// Convolution of operands 0 and 1 (ops/windows.cpp), with the bias that operand 2 may be.
values conv_of(node& n);
// Images of three dimensions (ops/volumes.cpp), for the rules of those of two.
values conv3d_of(node& n);
values conv3d_transposed_of(node& n);
values pool3d_of(node& n, value (*pool)(value, const pool2d_options&), bool counts_padding);

void add_elementwise(rules& r);
void add_logic(rules& r);
void add_activations(rules& r);
void add_reductions(rules& r);
void add_products(rules& r);
void add_einsum(rules& r);
void add_windows(rules& r);
void add_resizing(rules& r);
void add_attention(rules& r);
void add_quantised(rules& r);
void add_recurrent(rules& r);
void add_control(rules& r);
void add_normalisation(rules& r);
void add_losses(rules& r);
void add_layout(rules& r);
void add_indexing(rules& r);
void add_sources(rules& r);
void add_grids(rules& r);
void add_bits(rules& r);
void add_chosen(rules& r);

}  // namespace troupe::onnx
