#include "troupe/runtime/onnx/node.hpp"

#include <algorithm>
#include <map>

namespace troupe::onnx {
namespace {

// A vector counts as a row on the left, as a column on the right, and its dimension of 1 vanishes
// from the result.
values matmul_rule(node& n) {
  auto a = n.in(0), b = n.in(1);
  const bool is_row = spec(a).shape.rank() == 1, is_column = spec(b).shape.rank() == 1;
  if (is_row) a = expand_dims(a, {0});
  if (is_column) b = expand_dims(b, {1});
  auto y = matmul(a, b);
  if (is_column) y = reduce_sum(y, {-1}, false);
  if (is_row) y = reduce_sum(y, {is_column ? -1 : -2}, false);
  return {y};
}

values gemm(node& n) {
  const auto a = n.in(0), b = n.in(1);
  if (n.opset < 7) n.ignore({"broadcast"});
  if (spec(a).shape.rank() != 2 || spec(b).shape.rank() != 2)
    n.refuse(fmt::format("operands must be matrices, and are {} and {}", to_string(spec(a)),
                         to_string(spec(b))));
  auto y = matmul(a, b, n.integer("transA", 0) != 0, n.integer("transB", 0) != 0);
  const auto alpha = n.real("alpha", 1), beta = n.real("beta", 1);
  if (alpha != 1) y = mul(y, n.number_like(y, alpha));
  if (!n.has(std::size_t{2})) return {y};
  auto c = n.in(2);
  if (beta != 1) c = mul(c, n.number_like(c, beta));
  return {add(y, c)};
}

// Letters stand for dimensions; those that the result lacks are summed. Operands are multiplied in
// a shape that has all letters.
values einsum(node& n) {
  auto equation = n.text("equation", "");
  std::erase(equation, ' ');
  if (equation.find('.') != std::string::npos)
    n.refuse("attribute 'equation': an ellipsis is not supported");
  const auto arrow = equation.find("->");
  const auto left = equation.substr(0, arrow);
  std::vector<std::string> terms{""};
  for (const char c : left) {
    if (c == ',')
      terms.emplace_back();
    else
      terms.back() += c;
  }
  std::string result;
  if (arrow != std::string::npos) {
    result = equation.substr(arrow + 2);
  } else {  // letters that stand once, in alphabetical order
    for (char c = 'A'; c <= 'z'; ++c)
      if (std::ranges::count(left, c) == 1) result += c;
  }
  if (terms.size() != n.inputs())
    n.refuse(
        fmt::format("attribute 'equation' has {} terms for {} operands", terms.size(), n.inputs()));
  std::string letters = result;
  for (const auto& t : terms)
    for (const char c : t)
      if (letters.find(c) == std::string::npos) letters += c;
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  const auto is_plain = [&](std::string t) {
    std::ranges::sort(t);
    return std::ranges::all_of(t, is_letter) && std::ranges::adjacent_find(t) == t.end();
  };
  if (result.find_first_not_of(left) != std::string::npos)
    n.refuse("attribute 'equation': the result has a letter that no operand has");
  if (!is_plain(result) || letters.size() > shape::rank_max)
    n.refuse("attribute 'equation': only distinct letters are supported, eight in all");
  value y;
  for (std::size_t i = 0; i < terms.size(); ++i) {
    const auto x = n.in(i);
    if (!is_plain(terms[i]) || terms[i].size() != spec(x).shape.rank())
      n.refuse(fmt::format("attribute 'equation': term '{}' does not fit operand {}",
                           shown(terms[i]), to_string(spec(x))));
    // In the order of all letters, with ones for those that it lacks.
    integers order, dims;
    for (const char c : letters)
      if (const auto at = terms[i].find(c); at != std::string::npos)
        order.push_back(static_cast<std::int64_t>(at));
    for (const char c : letters) {
      const auto at = terms[i].find(c);
      dims.push_back(at == std::string::npos ? 1 : n.sizes(x)[at]);
    }
    const auto placed = n.reshaped(transpose(x, order), dims);
    y = y.is_valid() ? mul(y, placed) : placed;
  }
  integers summed;
  for (std::size_t i = result.size(); i < letters.size(); ++i)
    summed.push_back(static_cast<std::int64_t>(i));
  return {summed.empty() ? y : reduce_sum(y, summed, false)};
}

}  // namespace

void add_products(rules& r) {
  r["MatMul"] = widening(matmul_rule);
  r["Gemm"] = widening(gemm);
  r["Einsum"] = widening(einsum);
}

}  // namespace troupe::onnx
