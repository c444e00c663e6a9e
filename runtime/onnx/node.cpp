#include "troupe/runtime/onnx/node.hpp"

#include "troupe/devices/half.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace troupe::onnx {
namespace {

// Of tensors made while a graph is built: masks, indices.
constexpr std::size_t made_bytes_max = std::size_t{1} << 26U;

template <class T>
std::vector<T> elements_of(const tensor& t) {
  std::vector<T> all;
  const auto n = static_cast<std::size_t>(t.elements());
  all.reserve(n);
  for (std::size_t i = 0; i < n; ++i) switch (t.type()) {
      case dtype::f32: all.push_back(static_cast<T>(t.data<float>()[i])); break;
      case dtype::f64: all.push_back(static_cast<T>(t.data<double>()[i])); break;
      case dtype::i32: all.push_back(static_cast<T>(t.data<std::int32_t>()[i])); break;
      case dtype::i64: all.push_back(static_cast<T>(t.data<std::int64_t>()[i])); break;
      case dtype::u8: all.push_back(static_cast<T>(t.data<std::uint8_t>()[i])); break;
      case dtype::boolean: all.push_back(static_cast<T>(t.data<boolean>()[i] ? 1 : 0)); break;
      case dtype::f16: all.push_back(static_cast<T>(to_f32(t.data<f16>()[i]))); break;
      case dtype::bf16: all.push_back(static_cast<T>(to_f32(t.data<bf16>()[i]))); break;
    }
  return all;
}

value widened(value v) {
  if (!v.is_valid()) return v;
  const auto type = spec(v).type;
  if (type == dtype::f16 || type == dtype::bf16) return cast(v, dtype::f32);
  return type == dtype::u8 ? cast(v, dtype::i32) : v;
}

}  // namespace

rule widening(rule r) {
  return [r = std::move(r)](node& n) {
    const auto first = n.has(std::size_t{0}) ? std::optional(spec(n.in(0)).type) : std::nullopt;
    for (std::size_t i = 0; i < n.inputs(); ++i)
      if (n.has(i)) n.replace(i, widened(n.in(i)));
    auto out = r(n);
    for (auto& v : out) {
      if (!v.is_valid() || !first) continue;
      if (spec(v).type == dtype::f32 && (first == dtype::f16 || first == dtype::bf16))
        v = cast(v, *first);
      // Bytes wrap around, as cast() does.
      if (spec(v).type == dtype::i32 && first == dtype::u8) v = cast(v, dtype::u8);
    }
    return out;
  };
}

value wrapped(const node& n, value v, const narrow_type& to) {
  const auto all = n.number(static_cast<double>(std::int64_t{1} << to.bits), dtype::i32),
             zero = n.number(0, dtype::i32);
  // What is left of the division has the sign of v.
  const auto rest = sub(v, mul(div(v, all), all));
  const auto natural = where(less(rest, zero), add(rest, all), rest);
  if (!to.is_signed) return natural;
  const auto most = n.number(static_cast<double>(to.most()), dtype::i32);
  return where(greater(natural, most), sub(natural, all), natural);
}

// --- operands ---

value node::in(std::size_t i) const {
  if (!has(i)) refuse(fmt::format("operand {} is missing", i));
  return inputs_[i];
}
tensor node::known(std::size_t i) const {
  auto t = known_.of(in(i));
  if (!t)
    refuse(fmt::format("operand {} must be known while the graph is built, and {}", i,
                       known_.why_not()));
  return *t;
}
integers node::known_integers(std::size_t i) const {
  const auto t = known(i);
  if (!whole.has(t.type()))
    refuse(fmt::format("operand {} must be of whole numbers, and is {}", i, to_string(t.spec())));
  return elements_of<std::int64_t>(t);
}
std::int64_t node::known_integer(std::size_t i) const {
  const auto all = known_integers(i);
  if (all.size() != 1) refuse(fmt::format("operand {} must be one number, not {}", i, all.size()));
  return all.front();
}
double node::known_number(std::size_t i) const {
  const auto all = elements_of<double>(known(i));
  if (all.size() != 1) refuse(fmt::format("operand {} must be one number, not {}", i, all.size()));
  return all.front();
}

// --- attributes ---

const onnx_format::Attribute* node::find(std::string_view name) const {
  asked_.emplace(name);
  for (const auto& a : from_.attributes())
    if (a.name() == name) return &a;
  return nullptr;
}
std::int64_t node::integer(std::string_view name, std::int64_t otherwise) const {
  const auto* a = find(name);
  if (a != nullptr && !a->has_integer()) wrong_type(name);
  return a != nullptr ? a->integer() : otherwise;
}
std::int64_t node::integer(std::string_view name) const {
  if (!has(name)) refuse(fmt::format("attribute '{}' is missing", name));
  return integer(name, 0);
}
double node::real(std::string_view name, double otherwise) const {
  const auto* a = find(name);
  if (a != nullptr && !a->has_real()) wrong_type(name);
  return a != nullptr ? static_cast<double>(a->real()) : otherwise;
}
std::string node::text(std::string_view name, std::string otherwise) const {
  const auto* a = find(name);
  if (a != nullptr && !a->has_text()) wrong_type(name);
  return a != nullptr ? shown(a->text()) : otherwise;
}
integers node::list(std::string_view name, integers otherwise) const {
  const auto* a = find(name);
  if (a == nullptr) return otherwise;
  if (a->integers_size() == 0 && (a->has_integer() || a->has_tensor() || a->reals_size() > 0))
    wrong_type(name);
  return {a->integers().begin(), a->integers().end()};
}
std::vector<float> node::reals(std::string_view name) const {
  const auto* a = find(name);
  if (a == nullptr) return {};
  return {a->reals().begin(), a->reals().end()};
}
std::vector<std::string> node::texts(std::string_view name) const {
  const auto* a = find(name);
  if (a == nullptr) return {};
  return {a->texts().begin(), a->texts().end()};
}
const onnx_format::Graph& node::body(std::string_view name) const {
  const auto* a = find(name);
  if (a == nullptr) refuse(fmt::format("attribute '{}' is missing", name));
  if (!a->has_graph()) wrong_type(name);
  return a->graph();
}
std::optional<tensor> node::tensor_of(std::string_view name, std::int64_t* narrow) const {
  const auto* a = find(name);
  if (a == nullptr) return std::nullopt;
  if (!a->has_tensor()) wrong_type(name);
  auto copy = a->tensor();
  auto t = take_tensor(copy, fmt::format("attribute '{}'", name), {}, narrow);
  if (!t) refuse(t.error().message());
  return *t;
}
std::optional<std::string> node::unknown_attribute() const {
  for (const auto& a : from_.attributes())
    if (!asked_.contains(a.name())) return a.name();
  return std::nullopt;
}

// --- shapes ---

std::size_t node::axis(std::int64_t a, std::size_t rank) const {
  const auto n = static_cast<std::int64_t>(rank);
  if (a < -n || a >= n) refuse(fmt::format("there is no axis {} of {} dimensions", a, n));
  return static_cast<std::size_t>(a < 0 ? a + n : a);
}
std::vector<std::int64_t> node::axes(integers all, std::size_t rank) const {
  for (auto& a : all) a = static_cast<std::int64_t>(axis(a, rank));
  std::sort(all.begin(), all.end());
  if (const auto twice = std::adjacent_find(all.begin(), all.end()); twice != all.end())
    refuse(fmt::format("axis {} is named twice", *twice));
  return all;
}
integers node::sizes(value x) const {
  if (spec(x).shape.is_symbolic())
    refuse(fmt::format("the sizes of {} must be exact here", to_string(spec(x))));
  const auto s = spec(x).shape.sizes();
  return {s.begin(), s.end()};
}
tensor_spec node::checked(dtype type, const integers& dims) const {
  std::vector<dim> all;
  for (const auto n : dims) all.push_back({n, 0});
  const auto s = shape::from(all);
  if (!s || s->elements() > static_cast<std::int64_t>(made_bytes_max / size_of(type)))
    refuse(fmt::format("a tensor of [{}] is too large here", fmt::join(dims, ", ")));
  return {type, *s};
}
const tensor_spec& node::with_room(const tensor_spec& s) const {
  if (!known_.take_room(static_cast<std::size_t>(s.shape.elements()) * size_of(s.type)))
    refuse("masks, indices and weights that are not in the file take more than 256 MiB");
  return s;
}
value node::filled(dtype type, const integers& dims, double x) const {
  const auto one = number(x, type);
  return expanded(one, dims);
}
value node::reshaped(value x, const integers& dims) const {
  const auto& s = spec(x).shape;
  const auto sizes = s.sizes();
  if (!s.is_symbolic() && std::ranges::equal(sizes, dims)) return x;
  // For reshape() a 0 is a size of x; of no elements there is nothing to take over.
  if (std::ranges::find(dims, 0) != dims.end()) {
    if (s.elements() != 0)
      refuse(fmt::format("{} cannot become [{}]", to_string(spec(x)), fmt::join(dims, ", ")));
    return constant(g, tensor::make(checked(spec(x).type, dims)));
  }
  auto kept = dims;
  for (std::size_t i = 0; i < s.rank() && i < kept.size(); ++i)
    if (s[i].symbol != 0 && kept[i] == s.size(i)) kept[i] = 0;
  return reshape(x, kept);
}
value node::expanded(value x, const integers& dims) const {
  const auto rank = std::max(spec(x).shape.rank(), dims.size());
  if (rank > shape::rank_max)
    refuse(fmt::format("{} dimensions, at most {} are supported", rank, shape::rank_max));
  integers own(rank, 1), times(rank, 1);
  const auto& s = spec(x).shape;
  for (std::size_t i = 0; i < s.rank(); ++i) own[rank - s.rank() + i] = s.size(i);
  bool is_longer = false;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    const auto at = rank - dims.size() + i;
    if (dims[i] < 0) refuse(fmt::format("a size cannot be {}", dims[i]));
    if (dims[i] == own[at] || dims[i] == 1) continue;
    if (own[at] != 1)
      refuse(
          fmt::format("{} cannot be broadcast to [{}]", to_string(spec(x)), fmt::join(dims, ", ")));
    times[at] = dims[i];
    is_longer = true;
  }
  if (s.rank() < rank) x = reshaped(x, own);
  return is_longer ? tile(x, times) : x;
}
value node::moved(value x, std::size_t from, std::size_t to) const {
  if (from == to) return x;
  integers order(spec(x).shape.rank());
  std::iota(order.begin(), order.end(), std::int64_t{0});
  order.erase(order.begin() + static_cast<std::ptrdiff_t>(from));
  order.insert(order.begin() + static_cast<std::ptrdiff_t>(to), static_cast<std::int64_t>(from));
  return transpose(x, order);
}

value node::put_last(value v, value indices, value like) const {
  const value operands[] = {v, indices, like};
  return g.add("put_last", operands, {}, "put_last", source_location::current());
}

}  // namespace troupe::onnx
