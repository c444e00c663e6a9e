#pragma once
// Products, convolutions, pooling, normalisation, softmax and attention, as plain loops in f64.

#include "tests/support/reference_array.hpp"
#include "troupe/schema/attributes.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <string>

namespace troupe::reference {

// Sum over all places p of the loops `sizes`: visit(p).
template <class Visit>
void for_places(const std::vector<std::size_t>& sizes, Visit visit) {
  std::vector<std::size_t> at(sizes.size());
  for (const auto n : sizes)
    if (n == 0) return;
  for (;;) {
    visit(at);
    auto d = sizes.size();
    while (d > 0 && ++at[d - 1] == sizes[d - 1]) at[--d] = 0;
    if (d == 0) return;
  }
}

inline std::size_t extent(const array& a, std::size_t d) {
  return static_cast<std::size_t>(a.spec.shape.size(d));
}

// An element of a batch of matrices: batch positions from the end, then row and column.
inline double& of_batch(array& a, const std::vector<std::size_t>& batch, std::size_t row,
                        std::size_t column) {
  const auto rank = a.spec.shape.rank();
  std::vector<std::size_t> at(rank);
  for (std::size_t d = 0; d + 2 < rank; ++d)
    at[d] = a.spec.shape.size(d) == 1 ? 0 : batch[batch.size() - (rank - 2) + d];
  at[rank - 2] = row, at[rank - 1] = column;
  return a.at[index_at(a.spec.shape, at)];
}

inline void matmul(const attributes& attrs, std::span<const array> in, array& out) {
  const bool ta = attrs.integer("transpose_a") != 0, tb = attrs.integer("transpose_b") != 0,
             is_sum = attrs.integer("sum_batches") != 0;
  auto a = in[0], b = in[1];
  const auto ra = a.spec.shape.rank(), rb = b.spec.shape.rank(), rank = std::max(ra, rb);
  std::vector<std::size_t> batches;
  for (std::size_t d = 0; d + 2 < rank; ++d) {
    const auto of = [&](const array& x, std::size_t r) {
      return d + r < rank ? std::size_t{1} : extent(x, d + r - rank);
    };
    batches.push_back(of(a, ra) == 1 ? of(b, rb) : of(a, ra));
  }
  const auto inner = extent(a, ta ? ra - 2 : ra - 1), rows = extent(a, ta ? ra - 1 : ra - 2),
             columns = extent(b, tb ? rb - 2 : rb - 1);
  for_places(batches, [&](const auto& batch) {
    for (std::size_t r = 0; r < rows; ++r)
      for (std::size_t c = 0; c < columns; ++c) {
        double sum = 0;
        for (std::size_t k = 0; k < inner; ++k)
          sum += of_batch(a, batch, ta ? k : r, ta ? r : k) *
                 of_batch(b, batch, tb ? c : k, tb ? k : c);
        of_batch(out, is_sum ? std::vector<std::size_t>{} : batch, r, c) += sum;
      }
  });
}

// attention, and with `dy` its gradient: one query of one head of one sample after the other. `in`:
// q, k, v, or all three side by side.
inline void attention(const attributes& attrs, std::span<const array> in, const array* dy,
                      std::vector<array>& out) {
  const bool is_packed = in.size() == 1, is_causal = attrs.integer("causal") != 0;
  const auto heads = static_cast<std::size_t>(attrs.integer("heads", 1));
  const auto samples = extent(in[0], 0), queries = extent(in[0], 1),
             keys = is_packed ? queries : extent(in[1], 1);
  const auto each = extent(in[0], 2) / heads / (is_packed ? 3 : 1),
             of_value = is_packed ? each : extent(in[2], 2) / heads;
  const auto scale =
      attrs.real("scale") != 0 ? attrs.real("scale") : 1 / std::sqrt(static_cast<double>(each));
  for_places({samples, heads, queries}, [&](const auto& at) {
    const auto sample = at[0], head = at[1], query = at[2];
    // Element f of a head of q, k or v at a position, and of the result.
    const auto part = [&](auto& all, std::size_t which, std::size_t position,
                          std::size_t f) -> auto& {
      auto& x = all[is_packed ? 0 : which];
      const auto size = which == 2 ? of_value : each;
      return x.at[(sample * extent(x, 1) + position) * extent(x, 2) +
                  (is_packed ? which * heads * size : 0) + head * size + f];
    };
    const auto of_result = [&](auto& y, std::size_t f) -> auto& {
      return y.at[(sample * queries + query) * heads * of_value + head * of_value + f];
    };
    const auto met = is_causal ? query + 1 : keys;
    std::vector<double> weights(met);
    double largest = -INFINITY, sum = 0;
    for (std::size_t k = 0; k < met; ++k) {
      for (std::size_t f = 0; f < each; ++f)
        weights[k] += part(in, 0, query, f) * part(in, 1, k, f);
      largest = std::max(largest, weights[k] *= scale);
    }
    for (auto& w : weights) sum += w = std::exp(w - largest);
    for (auto& w : weights) w /= sum;
    if (dy == nullptr) {
      for (std::size_t k = 0; k < met; ++k)
        for (std::size_t f = 0; f < of_value; ++f)
          of_result(out[0], f) += weights[k] * part(in, 2, k, f);
      return;
    }
    std::vector<double> of_weights(met);
    double mean = 0;
    for (std::size_t k = 0; k < met; ++k) {
      for (std::size_t f = 0; f < of_value; ++f) {
        of_weights[k] += of_result(*dy, f) * part(in, 2, k, f);
        part(out, 2, k, f) += weights[k] * of_result(*dy, f);
      }
      mean += weights[k] * of_weights[k];
    }
    for (std::size_t k = 0; k < met; ++k)
      for (std::size_t f = 0; f < each; ++f) {
        const auto of_score = weights[k] * (of_weights[k] - mean) * scale;
        part(out, 0, query, f) += of_score * part(in, 1, k, f);
        part(out, 1, k, f) += of_score * part(in, 0, query, f);
      }
  });
}

// Calls visit(x, w, y): elements of image, kernel and result that meet in a convolution.
template <class Visit>
void convolve(const attributes& attrs, const shape& x, const shape& w, const shape& y,
              Visit visit) {
  const auto get = [&](const char* name, std::int64_t otherwise) {
    return attrs.integers(name, {otherwise, otherwise});
  };
  const auto strides = get("strides", 1), before = get("before", 0),
             dilations = get("dilations", 1);
  const auto outputs = w.size(0) / attrs.integer("groups", 1);
  const auto size = [](const shape& s, std::size_t d) {
    return static_cast<std::size_t>(s.size(d));
  };
  for_places({size(y, 0), size(y, 1), size(y, 2), size(y, 3), size(w, 1), size(w, 2), size(w, 3)},
             [&](const auto& at) {
               const auto row = static_cast<std::int64_t>(at[2]) * strides[0] +
                                static_cast<std::int64_t>(at[5]) * dilations[0] - before[0];
               const auto column = static_cast<std::int64_t>(at[3]) * strides[1] +
                                   static_cast<std::int64_t>(at[6]) * dilations[1] - before[1];
               if (row < 0 || row >= x.size(2) || column < 0 || column >= x.size(3)) return;
               const auto channel = at[1] / static_cast<std::size_t>(outputs) * size(w, 1) + at[4];
               visit(index_at(x, {at[0], channel, static_cast<std::size_t>(row),
                                  static_cast<std::size_t>(column)}),
                     index_at(w, {at[1], at[4], at[5], at[6]}),
                     index_at(y, {at[0], at[1], at[2], at[3]}));
             });
}

// Calls visit(y, x) for the elements of each window that lie inside of the image, and pads(y) for
// those in its padding.
template <class Visit, class Pads>
void pool(const attributes& attrs, const shape& x, const shape& y, Visit visit, Pads pads) {
  const auto window = attrs.integers("window"), strides = attrs.integers("strides", window),
             before = attrs.integers("before", {0, 0}), after = attrs.integers("after", {0, 0}),
             dilations = attrs.integers("dilations", {1, 1});
  const auto size = [](const shape& s, std::size_t d) {
    return static_cast<std::size_t>(s.size(d));
  };
  for_places({size(y, 0), size(y, 1), size(y, 2), size(y, 3), static_cast<std::size_t>(window[0]),
              static_cast<std::size_t>(window[1])},
             [&](const auto& at) {
               const auto row = static_cast<std::int64_t>(at[2]) * strides[0] +
                                static_cast<std::int64_t>(at[4]) * dilations[0] - before[0];
               const auto column = static_cast<std::int64_t>(at[3]) * strides[1] +
                                   static_cast<std::int64_t>(at[5]) * dilations[1] - before[1];
               const auto out = index_at(y, {at[0], at[1], at[2], at[3]});
               if (row >= 0 && row < x.size(2) && column >= 0 && column < x.size(3))
                 visit(out, index_at(x, {at[0], at[1], static_cast<std::size_t>(row),
                                         static_cast<std::size_t>(column)}));
               else if (row < x.size(2) + after[0] && column < x.size(3) + after[1])
                 pads(out);
             });
}

inline std::vector<double> counts_of_windows(const attributes& attrs, const shape& image,
                                             const array& pooled) {
  std::vector<double> counts(pooled.at.size());
  pool(
      attrs, image, pooled.spec.shape, [&](std::size_t o, std::size_t) { ++counts[o]; },
      [&](std::size_t o) { counts[o] += attrs.integer("count_padding") != 0 ? 1 : 0; });
  for (auto& n : counts) n = std::max(n, 1.0);
  return counts;
}

// Groups of elements that are reduced together: the group of each element.
inline std::vector<std::size_t> groups_of(const attributes& attrs, const shape& x) {
  const auto axes = attrs.integers("axes");
  std::vector<bool> is_reduced(x.rank(), axes.empty());
  for (const auto a : axes)
    is_reduced[static_cast<std::size_t>(a < 0 ? a + static_cast<std::int64_t>(x.rank()) : a)] =
        true;
  std::vector<std::size_t> groups(static_cast<std::size_t>(x.elements()));
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const auto at = positions(x, i);
    for (std::size_t d = 0; d < at.size(); ++d)
      if (!is_reduced[d]) groups[i] = groups[i] * static_cast<std::size_t>(x.size(d)) + at[d];
  }
  return groups;
}
inline attributes along(const attributes& attrs) {
  return {{"axes", std::vector<std::int64_t>{attrs.integer("axis", -1)}}};
}

struct by_group {
  std::vector<std::size_t> group;
  std::vector<double> sums(std::size_t groups,
                           const std::function<double(std::size_t)>& term) const {
    std::vector<double> all(groups);
    for (std::size_t i = 0; i < group.size(); ++i) all[group[i]] += term(i);
    return all;
  }
};

// False: another op. `out` has its shapes, and zeros.
inline bool dense(const std::string& type, const attributes& attrs, std::span<const array> in,
                  std::vector<array>& out) {
  auto& y = out[0].at;
  if (type == "matmul") {
    matmul(attrs, in, out[0]);
  } else if (type == "conv2d") {
    convolve(attrs, in[0].spec.shape, in[1].spec.shape, out[0].spec.shape,
             [&](auto x, auto w, auto o) { y[o] += in[0].at[x] * in[1].at[w]; });
  } else if (type == "conv2d_input_grad") {
    convolve(attrs, out[0].spec.shape, in[1].spec.shape, in[0].spec.shape,
             [&](auto x, auto w, auto o) { y[x] += in[0].at[o] * in[1].at[w]; });
  } else if (type == "conv2d_weights_grad") {
    convolve(attrs, in[1].spec.shape, out[0].spec.shape, in[0].spec.shape,
             [&](auto x, auto w, auto o) { y[w] += in[0].at[o] * in[1].at[x]; });
  } else if (type == "max_pool2d") {
    std::fill(y.begin(), y.end(), -INFINITY);
    std::fill(out[1].at.begin(), out[1].at.end(), -1);
    const auto plane =
        static_cast<std::size_t>(in[0].spec.shape.size(2) * in[0].spec.shape.size(3));
    pool(
        attrs, in[0].spec.shape, out[0].spec.shape,
        [&](std::size_t o, std::size_t x) {
          if (out[1].at[o] >= 0 && in[0].at[x] <= y[o]) return;
          y[o] = in[0].at[x];
          out[1].at[o] = static_cast<double>(x % plane);
        },
        [](std::size_t) {});
  } else if (type == "max_pool2d_grad" || type == "max_pool2d_take") {
    const bool is_grad = type == "max_pool2d_grad";
    const auto& small = in[1].spec.shape;
    const auto& image = is_grad ? out[0].spec.shape : in[0].spec.shape;
    for (std::size_t i = 0; i < in[1].at.size(); ++i) {
      if (in[1].at[i] < 0) continue;
      const auto plane = i / static_cast<std::size_t>(small.size(2) * small.size(3));
      const auto at = plane * static_cast<std::size_t>(image.size(2) * image.size(3)) +
                      static_cast<std::size_t>(in[1].at[i]);
      if (is_grad)
        y[at] += in[0].at[i];
      else
        y[i] = in[0].at[at];
    }
  } else if (type == "avg_pool2d" || type == "avg_pool2d_grad") {
    const bool is_grad = type == "avg_pool2d_grad";
    const auto& small = is_grad ? in[0] : out[0];
    const auto& image = is_grad ? out[0].spec.shape : in[0].spec.shape;
    const auto counts = counts_of_windows(attrs, image, small);
    pool(
        attrs, image, small.spec.shape,
        [&](std::size_t o, std::size_t x) {
          (is_grad ? y[x] : y[o]) += in[0].at[is_grad ? o : x] / counts[o];
        },
        [](std::size_t) {});
  } else if (type == "attention") {
    attention(attrs, in, nullptr, out);
  } else if (type == "attention_grad") {
    attention(attrs, in.subspan(1), &in[0], out);
  } else if (type == "standardize") {
    const by_group g{groups_of(attrs, in[0].spec.shape)};
    const auto& x = in[0].at;
    const auto n = out[1].at.size();
    const auto count = g.sums(n, [](std::size_t) { return 1.0; });
    auto mean = g.sums(n, [&](std::size_t i) { return x[i]; });
    for (std::size_t k = 0; k < n; ++k) mean[k] /= std::max(count[k], 1.0);
    auto scale = g.sums(
        n, [&](std::size_t i) { return (x[i] - mean[g.group[i]]) * (x[i] - mean[g.group[i]]); });
    for (std::size_t k = 0; k < n; ++k)
      scale[k] = 1 / std::sqrt(scale[k] / std::max(count[k], 1.0) + attrs.real("epsilon", 1e-5));
    for (std::size_t i = 0; i < x.size(); ++i) y[i] = (x[i] - mean[g.group[i]]) * scale[g.group[i]];
    out[1].at = mean, out[2].at = scale;
  } else if (type == "standardize_grad") {
    const by_group g{groups_of(attrs, in[0].spec.shape)};
    const auto &dy = in[0].at, &x = in[1].at;
    const auto n = in[2].at.size();
    const auto count = g.sums(n, [](std::size_t) { return 1.0; }),
               a = g.sums(n, [&](std::size_t i) { return dy[i]; }),
               b = g.sums(n, [&](std::size_t i) { return dy[i] * x[i]; });
    for (std::size_t i = 0; i < dy.size(); ++i) {
      const auto k = g.group[i];
      y[i] = in[2].at[k] * (dy[i] - a[k] / count[k] - x[i] * b[k] / count[k]);
    }
  } else if (type == "softmax" || type == "log_softmax") {
    const by_group g{groups_of(along(attrs), in[0].spec.shape)};
    const auto& x = in[0].at;
    std::map<std::size_t, double> largest;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const auto [at, is_new] = largest.try_emplace(g.group[i], x[i]);
      if (!is_new) at->second = std::max(at->second, x[i]);
    }
    const auto sums =
        g.sums(x.size(), [&](std::size_t i) { return std::exp(x[i] - largest[g.group[i]]); });
    for (std::size_t i = 0; i < x.size(); ++i) {
      const auto away = x[i] - largest[g.group[i]];
      y[i] =
          type == "softmax" ? std::exp(away) / sums[g.group[i]] : away - std::log(sums[g.group[i]]);
    }
  } else if (type == "softmax_grad" || type == "log_softmax_grad") {
    const by_group g{groups_of(along(attrs), in[0].spec.shape)};
    const auto &dy = in[0].at, &x = in[1].at;
    const bool is_log = type == "log_softmax_grad";
    const auto sums =
        g.sums(x.size(), [&](std::size_t i) { return is_log ? dy[i] : dy[i] * x[i]; });
    for (std::size_t i = 0; i < x.size(); ++i)
      y[i] = is_log ? dy[i] - std::exp(x[i]) * sums[g.group[i]] : x[i] * (dy[i] - sums[g.group[i]]);
  } else {
    return false;
  }
  return true;
}

}  // namespace troupe::reference
