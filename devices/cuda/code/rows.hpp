#pragma once
// Kernels of which a team of threads (team.hpp) makes one row, group or result: functions of its
// number. Sums are f64, also of f32; their order is fixed by shapes.

#include "troupe/devices/cuda/code/elements.hpp"
#include "troupe/devices/cuda/code/geometry.hpp"
#include "troupe/devices/cuda/code/team.hpp"

#include <cmath>
#include <cstdint>
#include <limits>

namespace troupe::cuda::code {

TROUPE_DEVICE inline float exp_of(float x) { return vector_math::exp(x); }
TROUPE_DEVICE inline double exp_of(double x) { return std::exp(x); }

// --- reductions ---

struct sum_of {
  template <class T>
  TROUPE_DEVICE static T none() {
    return T{};
  }
  template <class T>
  TROUPE_DEVICE T operator()(T a, T b) const {
    return wrapped_sum(a, b);
  }
};
struct product_of {
  template <class T>
  TROUPE_DEVICE static T none() {
    return T{1};
  }
  TROUPE_DEVICE float operator()(float a, float b) const { return a * b; }
  TROUPE_DEVICE double operator()(double a, double b) const { return a * b; }
  TROUPE_DEVICE std::int32_t operator()(std::int32_t a, std::int32_t b) const {
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(a) * static_cast<std::uint32_t>(b));
  }
  TROUPE_DEVICE std::int64_t operator()(std::int64_t a, std::int64_t b) const {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
  }
};
struct max_of {  // a NaN stays
  template <class T>
  TROUPE_DEVICE static T none() {
    return std::numeric_limits<T>::has_infinity ? -std::numeric_limits<T>::infinity()
                                                : std::numeric_limits<T>::lowest();
  }
  template <class T>
  TROUPE_DEVICE T operator()(T a, T b) const {
    return b > a || b != b ? b : a;
  }
};
struct min_of {
  template <class T>
  TROUPE_DEVICE static T none() {
    return std::numeric_limits<T>::has_infinity ? std::numeric_limits<T>::infinity()
                                                : std::numeric_limits<T>::max();
  }
  template <class T>
  TROUPE_DEVICE T operator()(T a, T b) const {
    return b < a || b != b ? b : a;
  }
};
struct any_of {
  template <class T>
  TROUPE_DEVICE static T none() {
    return T{0};
  }
  template <class T>
  TROUPE_DEVICE T operator()(T a, T b) const {
    return a != 0 || b != 0 ? T{1} : T{0};
  }
};
struct all_of {
  template <class T>
  TROUPE_DEVICE static T none() {
    return T{1};
  }
  template <class T>
  TROUPE_DEVICE T operator()(T a, T b) const {
    return a != 0 && b != 0 ? T{1} : T{0};
  }
};

// What partial results are kept in.
template <class Op, class T>
struct wide_of {
  using type = T;
};
template <>
struct wide_of<sum_of, float> {
  using type = double;
};
template <class Op, class T>
using wide = typename wide_of<Op, T>::type;

// A team for each part of each result: number = result * parts + part. Parts: of a result that is
// of very many elements.
template <class Op, class T>
struct reduce_parts {
  const T* x;
  T* out;                // where parts is 1
  wide<Op, T>* partial;  // else: [results, parts]
  reduction r;
  std::int64_t parts;
  template <class Team>
  TROUPE_DEVICE void operator()(Team& team, std::int64_t number) const {
    const auto result = number / parts, part = number % parts, each = (r.count + parts - 1) / parts;
    const auto first = part * each, end = first + each < r.count ? first + each : r.count;
    const auto* from = x + r.begin_of(result);
    auto all = Op::template none<wide<Op, T>>();
    for (auto i = first + team.rank(); i < end; i += team.size())
      all = Op{}(all, static_cast<wide<Op, T>>(from[r.place_of(i)]));
    all = team.join(all, Op{});
    if (team.rank() != 0) return;
    if (parts == 1)
      out[result] = static_cast<T>(all);
    else
      partial[number] = all;
  }
};
// A thread for each result: of parts, or of rows where results lie side by side. i: a result.
template <class Op, class T>
struct reduce_join {
  const wide<Op, T>* partial;
  T* out;
  std::int64_t parts;
  TROUPE_DEVICE void operator()(std::int64_t i) const {
    auto all = Op::template none<wide<Op, T>>();
    for (std::int64_t k = 0; k < parts; ++k) all = Op{}(all, partial[i * parts + k]);
    out[i] = static_cast<T>(all);
  }
};
template <class Op, class T>
struct reduce_columns {
  const T* x;
  T* out;
  reduction r;
  TROUPE_DEVICE void operator()(std::int64_t i) const {
    const auto* from = x + r.begin_of(i);
    auto all = Op::template none<wide<Op, T>>();
    for (std::int64_t k = 0; k < r.count; ++k)
      all = Op{}(all, static_cast<wide<Op, T>>(from[r.place_of(k)]));
    out[i] = static_cast<T>(all);
  }
};

// The square root of the sum of squares of a gradient, in two steps: parts, then all of them.
struct square_parts {
  gradient g;
  double* partial;
  std::int64_t n, parts;
  template <class Team>
  TROUPE_DEVICE void operator()(Team& team, std::int64_t part) const {
    const auto each = (n + parts - 1) / parts, first = part * each,
               end = first + each < n ? first + each : n;
    double all = 0;
    for (auto i = first + team.rank(); i < end; i += team.size()) {
      const auto x = static_cast<double>(g.unscaled(i));
      all += x * x;
    }
    all = team.join(all, plus_op{});
    if (team.rank() == 0) partial[part] = all;
  }
};
struct root_of_parts {
  const double* partial;
  double* norm;
  std::int64_t parts;
  template <class Team>
  TROUPE_DEVICE void operator()(Team& team, std::int64_t) const {
    double all = 0;
    for (auto i = team.rank(); i < parts; i += team.size()) all += partial[i];
    all = team.join(all, plus_op{});
    if (team.rank() == 0) *norm = std::sqrt(all);
  }
};

// --- the place of the largest or least: of equal ones the first; a NaN is passed over, and where
// all are the last is taken ---

template <class T>
struct candidate {
  T value;
  std::int64_t at;  // -1: none yet
};
template <bool Largest, class T>
struct better {
  TROUPE_DEVICE candidate<T> operator()(candidate<T> a, candidate<T> b) const {
    if (a.at < 0) return b;
    if (b.at < 0) return a;
    const bool nan_a = a.value != a.value, nan_b = b.value != b.value;
    if (nan_a != nan_b) return nan_a ? b : a;
    if (nan_a) return a.at > b.at ? a : b;
    if (a.value == b.value) return a.at < b.at ? a : b;
    return (Largest ? a.value > b.value : a.value < b.value) ? a : b;
  }
};
template <bool Largest, class T, class Team>
TROUPE_DEVICE std::int64_t place_of_best(Team& team, const T* x, std::int64_t n,
                                         std::int64_t step) {
  candidate<T> best{T{}, -1};
  for (auto i = team.rank(); i < n; i += team.size())
    best = better<Largest, T>{}(best, candidate<T>{x[i * step], i});
  return team.join(best, better<Largest, T>{}).at;
}
template <bool Largest, class T>
struct arg_of {
  const T* x;
  std::int32_t* out;
  along a;
  template <class Team>
  TROUPE_DEVICE void operator()(Team& team, std::int64_t row) const {
    const auto at = place_of_best<Largest>(team, x + a.begin_of(row), a.n, a.inner);
    if (team.rank() == 0) out[row] = static_cast<std::int32_t>(at);
  }
};
// 1 where the largest of a row stands at its label.
template <class T>
struct is_correct {
  const T* x;
  const std::int32_t* labels;
  std::int64_t* out;
  std::int64_t classes;
  template <class Team>
  TROUPE_DEVICE void operator()(Team& team, std::int64_t row) const {
    const auto at = place_of_best<true>(team, x + row * classes, classes, 1);
    if (team.rank() == 0) out[row] = at == labels[row] ? 1 : 0;
  }
};
// The k largest of a row, of equals the first; a NaN is larger than all: the best behind the one
// before, k times.
template <class T>
struct top_k {
  const T* x;
  T* values;
  std::int32_t* indices;
  std::int64_t n, k;
  // Whether a stands before b.
  static TROUPE_DEVICE bool is_before(candidate<T> a, candidate<T> b) {
    const bool nan_a = a.value != a.value, nan_b = b.value != b.value;
    if (nan_a != nan_b) return nan_a;
    return a.value != b.value && !nan_a ? a.value > b.value : a.at < b.at;
  }
  struct first_of {
    TROUPE_DEVICE candidate<T> operator()(candidate<T> a, candidate<T> b) const {
      if (a.at < 0) return b;
      if (b.at < 0) return a;
      return is_before(a, b) ? a : b;
    }
  };
  template <class Team>
  TROUPE_DEVICE void operator()(Team& team, std::int64_t row) const {
    const auto* from = x + row * n;
    candidate<T> last{T{}, -1};
    for (std::int64_t j = 0; j < k; ++j) {
      candidate<T> best{T{}, -1};
      for (auto i = team.rank(); i < n; i += team.size()) {
        const candidate<T> c{from[i], i};
        if (last.at < 0 || is_before(last, c)) best = first_of{}(best, c);
      }
      last = team.join(best, first_of{});
      if (team.rank() == 0) {
        values[row * k + j] = last.value;
        indices[row * k + j] = static_cast<std::int32_t>(last.at);
      }
    }
  }
};

// Sums along an axis, a row at a time: a piece of as many elements as there are threads, then the
// next one.
template <class T>
struct cumulative_sum {
  const T* x;
  T* out;
  along a;
  bool is_exclusive, is_reverse;
  template <class Team>
  TROUPE_DEVICE void operator()(Team& team, std::int64_t row) const {
    const auto begin = a.begin_of(row);
    T before{};
    for (std::int64_t first = 0; first < a.n; first += team.size()) {
      const auto i = first + team.rank();
      const auto at = begin + (is_reverse ? a.n - 1 - i : i) * a.inner;
      const T value = i < a.n ? x[at] : T{};
      T total;
      const T lower = wrapped_sum(before, team.scan(value, total));
      if (i < a.n) out[at] = is_exclusive ? lower : wrapped_sum(lower, value);
      before = wrapped_sum(before, total);
    }
  }
};

// --- softmax along an axis ---

template <class T>
struct softmax {
  const T* x;
  T* y;
  along a;
  bool is_log;
  template <class Team>
  TROUPE_DEVICE void operator()(Team& team, std::int64_t row) const {
    const auto begin = a.begin_of(row);
    T largest = -std::numeric_limits<T>::infinity();
    for (auto i = team.rank(); i < a.n; i += team.size())
      largest = larger_op{}(largest, x[begin + i * a.inner]);
    largest = team.join(largest, larger_op{});
    double sum = 0;
    for (auto i = team.rank(); i < a.n; i += team.size()) {
      const auto at = begin + i * a.inner;
      const auto d = x[at] - largest, e = exp_of(d);
      y[at] = is_log ? d : e;
      sum += static_cast<double>(e);
    }
    sum = team.join(sum, plus_op{});
    const auto each = static_cast<T>(is_log ? std::log(sum) : 1 / sum);
    for (auto i = team.rank(); i < a.n; i += team.size()) {
      const auto at = begin + i * a.inner;
      y[at] = is_log ? y[at] - each : y[at] * each;
    }
  }
};
template <class T>
struct softmax_grad {
  const T* dy;
  const T* y;
  T* dx;
  along a;
  bool is_log;
  template <class Team>
  TROUPE_DEVICE void operator()(Team& team, std::int64_t row) const {
    const auto begin = a.begin_of(row);
    double sum = 0;
    for (auto i = team.rank(); i < a.n; i += team.size()) {
      const auto at = begin + i * a.inner;
      sum += is_log ? static_cast<double>(dy[at])
                    : static_cast<double>(dy[at]) * static_cast<double>(y[at]);
    }
    const auto each = static_cast<T>(team.join(sum, plus_op{}));
    for (auto i = team.rank(); i < a.n; i += team.size()) {
      const auto at = begin + i * a.inner;
      dx[at] = is_log ? dy[at] - exp_of(y[at]) * each : y[at] * (dy[at] - each);
    }
  }
};
// Of scores in place: p = softmax(scale s) along rows of n, where a causal row `row % positions`
// meets the keys up to its own; the others get 0.
template <class T>
struct attention_weights {
  T* p;
  std::int64_t n, positions;
  T scale;
  bool is_causal;
  template <class Team>
  TROUPE_DEVICE void operator()(Team& team, std::int64_t row) const {
    auto* s = p + row * n;
    const auto met = is_causal ? row % positions + 1 : n;
    T largest = -std::numeric_limits<T>::infinity();
    for (auto i = team.rank(); i < met; i += team.size())
      largest = larger_op{}(largest, s[i] * scale);
    largest = team.join(largest, larger_op{});
    double sum = 0;
    for (auto i = team.rank(); i < n; i += team.size()) {
      const T e = i < met ? exp_of(s[i] * scale - largest) : T{};
      s[i] = e;
      sum += static_cast<double>(e);
    }
    const auto each = static_cast<T>(1 / team.join(sum, plus_op{}));
    for (auto i = team.rank(); i < n; i += team.size()) s[i] *= each;
  }
};
// ds = scale p (dp - sum(dp p)), in place of dp.
template <class T>
struct attention_weights_grad {
  const T* p;
  T* dp;
  std::int64_t n;
  T scale;
  template <class Team>
  TROUPE_DEVICE void operator()(Team& team, std::int64_t row) const {
    const auto* w = p + row * n;
    auto* d = dp + row * n;
    double sum = 0;
    for (auto i = team.rank(); i < n; i += team.size())
      sum += static_cast<double>(d[i]) * static_cast<double>(w[i]);
    const auto each = static_cast<T>(team.join(sum, plus_op{}));
    for (auto i = team.rank(); i < n; i += team.size()) d[i] = scale * w[i] * (d[i] - each);
  }
};

// --- the loss; rows, then their sum ---

template <class T>
struct cross_entropy_rows {
  const T* x;
  const std::int32_t* labels;
  const T* scale;
  T* d;
  double* losses;  // by row
  std::int64_t classes;
  fault* faults;
  unsigned int op;
  template <class Team>
  TROUPE_DEVICE void operator()(Team& team, std::int64_t row) const {
    const auto* from = x + row * classes;
    auto* to = d + row * classes;
    auto label = static_cast<std::int64_t>(labels[row]);
    if (label < 0 || label >= classes) {
      if (team.rank() == 0) report(faults, op, row, label, 0, classes - 1);
      label = 0;
    }
    T largest = -std::numeric_limits<T>::infinity();
    for (auto i = team.rank(); i < classes; i += team.size())
      largest = larger_op{}(largest, from[i]);
    largest = team.join(largest, larger_op{});
    double sum = 0;
    for (auto i = team.rank(); i < classes; i += team.size()) {
      to[i] = exp_of(from[i] - largest);
      sum += static_cast<double>(to[i]);
    }
    sum = team.join(sum, plus_op{});
    const auto each = *scale / static_cast<T>(sum);
    for (auto i = team.rank(); i < classes; i += team.size())
      to[i] = to[i] * each - (i == label ? *scale : T{});
    if (team.rank() == 0) losses[row] = std::log(sum) + static_cast<double>(largest - from[label]);
  }
};
// out = scale * the sum of n numbers.
template <class From, class T>
struct scaled_sum {
  const From* numbers;
  const T* scale;  // null: 1
  T* out;
  std::int64_t n;
  template <class Team>
  TROUPE_DEVICE void operator()(Team& team, std::int64_t) const {
    From sum{};
    for (auto i = team.rank(); i < n; i += team.size()) sum += numbers[i];
    sum = team.join(sum, plus_op{});
    if (team.rank() == 0)
      *out = scale != nullptr ? static_cast<T>(sum) * *scale : static_cast<T>(sum);
  }
};

// --- standardize; a group: a result of the reduction ---

template <class T>
struct standardize {
  const T* x;
  T* y;
  T* mean;
  T* scale;
  reduction r;
  double epsilon;
  template <class Team>
  TROUPE_DEVICE void operator()(Team& team, std::int64_t group) const {
    const auto begin = r.begin_of(group);
    const auto count = static_cast<double>(r.count > 1 ? r.count : 1);
    double sum = 0;
    for (auto i = team.rank(); i < r.count; i += team.size())
      sum += static_cast<double>(x[begin + r.place_of(i)]);
    const auto m = team.join(sum, plus_op{}) / count;
    double squares = 0;
    for (auto i = team.rank(); i < r.count; i += team.size()) {
      const auto d = static_cast<double>(x[begin + r.place_of(i)]) - m;
      squares += d * d;
    }
    const auto s = 1 / std::sqrt(team.join(squares, plus_op{}) / count + epsilon);
    for (auto i = team.rank(); i < r.count; i += team.size()) {
      const auto at = begin + r.place_of(i);
      y[at] = static_cast<T>((static_cast<double>(x[at]) - m) * s);
    }
    if (team.rank() == 0) {
      mean[group] = static_cast<T>(m);
      scale[group] = static_cast<T>(s);
    }
  }
};
template <class T>
struct standardize_grad {
  const T* dy;
  const T* y;
  const T* scale;
  T* dx;
  reduction r;
  template <class Team>
  TROUPE_DEVICE void operator()(Team& team, std::int64_t group) const {
    const auto begin = r.begin_of(group);
    const auto count = static_cast<double>(r.count > 1 ? r.count : 1);
    double first = 0, second = 0;
    for (auto i = team.rank(); i < r.count; i += team.size()) {
      const auto at = begin + r.place_of(i);
      first += static_cast<double>(dy[at]);
      second += static_cast<double>(dy[at]) * static_cast<double>(y[at]);
    }
    first = team.join(first, plus_op{}) / count;
    second = team.join(second, plus_op{}) / count;
    for (auto i = team.rank(); i < r.count; i += team.size()) {
      const auto at = begin + r.place_of(i);
      dx[at] =
          static_cast<T>(static_cast<double>(scale[group]) * (static_cast<double>(dy[at]) - first -
                                                              static_cast<double>(y[at]) * second));
    }
  }
};

}  // namespace troupe::cuda::code
