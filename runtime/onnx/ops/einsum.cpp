// Einsum: operands are multiplied one after the other, each pair as one product of matrices, so
// that no intermediate result has more dimensions than it must.

#include "troupe/runtime/onnx/node.hpp"

#include <algorithm>
#include <map>
#include <numeric>

namespace troupe::onnx {
namespace {

// A letter, or a dimension of the ellipsis: they count from the last one, -1, -2, ..
using label = int;
using labels = std::vector<label>;

struct labelled {
  value x;
  labels at;  // of each dimension
};

bool has_label(const labels& all, label l) { return std::ranges::find(all, l) != all.end(); }

std::size_t place_of(const labels& all, label l) {
  return static_cast<std::size_t>(std::ranges::find(all, l) - all.begin());
}

// The labels of a term; `dots`: how many dimensions its ellipsis has.
labels labels_of(const node& n, std::string_view term, std::size_t dots) {
  labels all;
  if (term.find("...") != term.rfind("..."))
    n.refuse(fmt::format("attribute 'equation': '{}' has more than one ellipsis",
                         shown(std::string(term))));
  for (std::size_t i = 0; i < term.size(); ++i) {
    const char c = term[i];
    if (term.substr(i, 3) == "...") {
      for (std::size_t k = dots; k > 0; --k) all.push_back(-static_cast<label>(k));
      i += 2;
    } else if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
      all.push_back(c);
    } else {
      n.refuse(fmt::format("attribute 'equation': '{}' is no term of letters and '...'",
                           shown(std::string(term))));
    }
  }
  return all;
}

// x with its dimensions in this order.
value ordered(const labelled& from, const labels& to) {
  integers order;
  for (const auto l : to) order.push_back(static_cast<std::int64_t>(place_of(from.at, l)));
  return order.size() < 2 ? from.x : transpose(from.x, order);
}

// Where a letter stands twice, the diagonal of its two dimensions.
void take_diagonals(const node& n, labelled& t) {
  for (std::size_t i = 0; i < t.at.size(); ++i)
    for (std::size_t k = i + 1; k < t.at.size(); ++k) {
      if (t.at[i] != t.at[k]) continue;
      const auto s = n.sizes(t.x);
      if (s[i] != s[k])
        n.refuse(fmt::format("attribute 'equation': one letter stands for {} and for {} elements",
                             s[i], s[k]));
      const auto size = s[i];
      // Both in front, as one dimension of which every (size + 1)th element is taken.
      auto x = n.moved(n.moved(t.x, k, 0), i + 1, 0);
      auto dims = n.sizes(x);
      dims.erase(dims.begin());
      dims[0] = size * size;
      x = n.reshaped(x, dims);
      const auto at = n.made<std::int64_t>(dtype::i64, {size}, [&](std::size_t e) {
        return static_cast<std::int64_t>(e) * (size + 1);
      });
      t.x = n.moved(gather(x, constant(n.g, at), 0), 0, i);
      t.at.erase(t.at.begin() + static_cast<std::ptrdiff_t>(k));
      --k;
    }
}

void sum_away(labelled& t, const std::function<bool(label)>& is_kept) {
  integers axes;
  labels rest;
  for (std::size_t i = 0; i < t.at.size(); ++i) {
    if (is_kept(t.at[i]))
      rest.push_back(t.at[i]);
    else
      axes.push_back(static_cast<std::int64_t>(i));
  }
  if (axes.empty()) return;
  t.x = reduce_sum(t.x, axes, false);
  t.at = rest;
}

// Dimensions of the ellipsis are broadcast; a letter has one size.
void fit(const node& n, labelled& a, labelled& b) {
  for (std::size_t i = 0; i < a.at.size(); ++i) {
    if (!has_label(b.at, a.at[i])) continue;
    auto to_a = n.sizes(a.x), to_b = n.sizes(b.x);
    auto &p = to_a[i], &q = to_b[place_of(b.at, a.at[i])];
    if (p == q) continue;
    if (p != 1 && q != 1)
      n.refuse(
          fmt::format("attribute 'equation': one letter stands for {} and for {} elements", p, q));
    if (p == 1) p = q, a.x = n.expanded(a.x, to_a);
    if (q == 1) q = p, b.x = n.expanded(b.x, to_b);
  }
}

// Labels of both that are kept are batches of a product of matrices, those that are not are summed
// by it.
labelled product(const node& n, labelled a, labelled b, const std::function<bool(label)>& is_kept) {
  fit(n, a, b);
  sum_away(a, [&](label l) { return is_kept(l) || has_label(b.at, l); });
  sum_away(b, [&](label l) { return is_kept(l) || has_label(a.at, l); });
  const auto sizes_a = n.sizes(a.x), sizes_b = n.sizes(b.x);
  labels batch, summed, left, right;
  integers batch_dims, left_dims, right_dims;
  std::int64_t batches = 1, inner = 1, rows = 1, columns = 1;
  for (std::size_t i = 0; i < a.at.size(); ++i) {
    const auto l = a.at[i];
    const auto size = sizes_a[i];
    if (!has_label(b.at, l))
      left.push_back(l), left_dims.push_back(size), rows *= size;
    else if (is_kept(l))
      batch.push_back(l), batch_dims.push_back(size), batches *= size;
    else
      summed.push_back(l), inner *= size;
  }
  for (std::size_t i = 0; i < b.at.size(); ++i)
    if (!has_label(a.at, b.at[i]))
      right.push_back(b.at[i]), right_dims.push_back(sizes_b[i]), columns *= sizes_b[i];
  const auto joined = [](auto first, const auto& second, const auto& third) {
    first.insert(first.end(), second.begin(), second.end());
    first.insert(first.end(), third.begin(), third.end());
    return first;
  };
  const auto p = n.reshaped(ordered(a, joined(batch, left, summed)), {batches, rows, inner});
  const auto q = n.reshaped(ordered(b, joined(batch, summed, right)), {batches, inner, columns});
  const auto y = floating.has(spec(p).type)
                     ? matmul(p, q)
                     : reduce_sum(mul(expand_dims(p, {3}), expand_dims(q, {1})), {2}, false);
  return {n.reshaped(y, joined(batch_dims, left_dims, right_dims)), joined(batch, left, right)};
}

struct equation {
  std::vector<std::string> terms;
  std::optional<std::string> result;
};

equation parsed(std::string text) {
  std::erase(text, ' ');
  const auto arrow = text.find("->");
  equation e{{""}, std::nullopt};
  for (const char c : text.substr(0, arrow)) {
    if (c == ',')
      e.terms.emplace_back();
    else
      e.terms.back() += c;
  }
  if (arrow != std::string::npos) e.result = text.substr(arrow + 2);
  return e;
}

// Without a right side: the ellipsis, then the letters that stand once, in their order.
labels result_of(const node& n, const equation& e, const std::vector<labelled>& terms,
                 std::size_t dots) {
  std::map<label, int> count;
  for (const auto& t : terms)
    for (const auto l : t.at) ++count[l];
  labels out;
  if (e.result) {
    out = labels_of(n, *e.result, dots);
    for (const auto l : out)
      if (!count.contains(l))
        n.refuse("attribute 'equation': the result has a letter that no operand has");
    auto once = out;
    std::ranges::sort(once);
    if (std::ranges::adjacent_find(once) != once.end())
      n.refuse("attribute 'equation': the result has a letter twice");
    return out;
  }
  for (std::size_t k = dots; k > 0; --k) out.push_back(-static_cast<label>(k));
  for (const auto& [l, times] : count)
    if (l > 0 && times == 1) out.push_back(l);
  return out;
}

values einsum(node& n) {
  const auto e = parsed(n.text("equation", ""));
  if (e.terms.size() != n.inputs())
    n.refuse(fmt::format("attribute 'equation' has {} terms for {} operands", e.terms.size(),
                         n.inputs()));
  std::vector<labelled> terms;
  std::size_t dots = 0;
  for (std::size_t i = 0; i < n.inputs(); ++i) {
    const auto rank = spec(n.in(i)).shape.rank();
    const auto letters = labels_of(n, e.terms[i], 0).size();
    const bool has_dots = e.terms[i].find("...") != std::string::npos;
    if (letters > rank || (letters < rank && !has_dots))
      n.refuse(fmt::format("attribute 'equation': term '{}' does not fit operand {}",
                           shown(e.terms[i]), to_string(spec(n.in(i)))));
    dots = std::max(dots, rank - letters);
    terms.push_back({n.in(i), labels_of(n, e.terms[i], rank - letters)});
  }
  const auto wanted = result_of(n, e, terms, dots);
  for (auto& t : terms) take_diagonals(n, t);
  auto y = terms.front();
  for (std::size_t i = 1; i < terms.size(); ++i)
    y = product(n, y, terms[i], [&](label l) {
      return has_label(wanted, l) ||
             std::any_of(terms.begin() + static_cast<std::ptrdiff_t>(i) + 1, terms.end(),
                         [&](const auto& t) { return has_label(t.at, l); });
    });
  sum_away(y, [&](label l) { return has_label(wanted, l); });
  return {ordered(y, wanted)};
}

}  // namespace

void add_einsum(rules& r) { r["Einsum"] = widening(einsum); }

}  // namespace troupe::onnx
