#include "troupe/runtime/onnx/model_writer.hpp"

#include <fmt/format.h>

#include <bit>
#include <cstring>

namespace troupe::onnx {

std::int32_t number_of_element(dtype t) noexcept {
  switch (t) {
    case dtype::f32: return 1;
    case dtype::u8: return 2;
    case dtype::i32: return 6;
    case dtype::i64: return 7;
    case dtype::boolean: return 9;
    case dtype::f16: return 10;
    case dtype::f64: return 11;
    case dtype::bf16: return 16;
  }
  return 0;
}

std::string model_writer::fresh(std::string_view base) {
  std::string name(base);
  if (taken_.insert(name).second) return name;
  auto& next = next_[name];
  for (;;) {
    auto other = fmt::format("{}_{}", base, ++next);
    if (taken_.insert(other).second) return other;
  }
}

void model_writer::put(std::string_view op, const names& inputs, const names& results,
                       const written_attributes& attrs) {
  auto& n = *graph.add_nodes();
  n.set_op_type(std::string(op));
  n.set_name(results.front());
  for (const auto& i : inputs) n.add_inputs(i);
  for (const auto& r : results) n.add_outputs(r);
  for (const auto& [name, x] : attrs) {
    auto& a = *n.add_attributes();
    a.set_name(name);
    if (const auto* i = std::get_if<std::int64_t>(&x)) a.set_integer(*i), a.set_type(2);
    if (const auto* f = std::get_if<float>(&x)) a.set_real(*f), a.set_type(1);
    if (const auto* s = std::get_if<std::string>(&x)) a.set_text(*s), a.set_type(3);
    if (const auto* all = std::get_if<std::vector<std::int64_t>>(&x)) {
      for (const auto i : *all) a.add_integers(i);
      a.set_type(7);
    }
  }
}

names model_writer::add_several(std::size_t results, std::string_view op, names inputs,
                                const written_attributes& attrs) {
  names made;
  for (std::size_t i = 0; i < results; ++i) made.push_back(fresh(fmt::format("{}/{}", base_, op)));
  put(op, inputs, made, attrs);
  return made;
}
std::string model_writer::add(std::string_view op, names inputs, const written_attributes& attrs) {
  return add_several(1, op, std::move(inputs), attrs).front();
}
void model_writer::add_named(std::string_view op, names inputs, const std::string& result,
                             const written_attributes& attrs) {
  put(op, inputs, {result}, attrs);
}

std::string model_writer::constant(const tensor& t) {
  auto& to = *graph.add_initializers();
  to.set_name(fresh(base_));
  to.set_type(number_of_element(t.type()));
  for (const auto n : t.shape().sizes()) to.add_dims(n);
  data.push_back(t);
  return to.name();
}

std::string model_writer::integers(const std::vector<std::int64_t>& all) {
  auto& made = lists_[all];
  if (made.empty()) {
    auto t = tensor::make({dtype::i64, {static_cast<std::int64_t>(all.size())}});
    if (!all.empty()) std::memcpy(t.bytes().data(), all.data(), t.size_bytes());
    made = constant(t);
  }
  return made;
}

std::string model_writer::number(double x, dtype type) {
  auto& made = numbers_[{std::bit_cast<std::uint64_t>(x), type}];
  if (!made.empty()) return made;
  const auto of = [&](auto element) {
    auto t = tensor::make({type, shape{}});
    std::memcpy(t.bytes().data(), &element, sizeof element);
    made = constant(t);
  };
  switch (type) {
    case dtype::f32: of(static_cast<float>(x)); break;
    case dtype::f64: of(x); break;
    case dtype::i32: of(static_cast<std::int32_t>(x)); break;
    case dtype::i64: of(static_cast<std::int64_t>(x)); break;
    case dtype::u8: of(static_cast<std::uint8_t>(x)); break;
    case dtype::boolean: of(static_cast<std::uint8_t>(x != 0)); break;
    case dtype::f16:
    case dtype::bf16: made = cast(number(x, dtype::f32), type); break;
  }
  return made;
}

std::string model_writer::cast(std::string x, dtype to) {
  return add("Cast", {std::move(x)}, {{"to", std::int64_t{number_of_element(to)}}});
}

}  // namespace troupe::onnx
