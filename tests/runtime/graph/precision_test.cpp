// Every element-wise op and reduction of floating types against multiple precision (MPFR): 20,000
// operands of all exponents, both signs and special values; TROUPE_SEEDS=N: of N seeds. The table
// of runtime/graph/ops/README.md states the limits that are checked here.
//
// Threads of kernels take denormal numbers for zeros: so does the reference, for operands; a result
// that small may be either.

#include "tests/devices/kernel_harness.hpp"
#include "tests/support/op_cases.hpp"
#include "troupe/devices/half.hpp"
#include "troupe/runtime/graph/op_table.hpp"

#include <boost/test/unit_test.hpp>

#include <fmt/format.h>

#include <bit>
#include <cfenv>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <span>
#include <string>
#include <vector>

#if defined(TROUPE_HAS_MPFR)
#include <mpfr.h>

using namespace troupe;

namespace {

// A number of 600 bits, enough for a cube of f64 and what is taken away from it.
class wide {
 public:
  wide() { mpfr_init2(at_, 600); }
  wide(double x) : wide() { mpfr_set_d(at_, x, MPFR_RNDN); }
  explicit wide(const char* digits) : wide() { mpfr_set_str(at_, digits, 10, MPFR_RNDN); }
  wide(const wide& other) : wide() { mpfr_set(at_, other.at_, MPFR_RNDN); }
  wide& operator=(const wide& other) {
    mpfr_set(at_, other.at_, MPFR_RNDN);
    return *this;
  }
  ~wide() { mpfr_clear(at_); }

  mpfr_ptr get() noexcept { return at_; }
  mpfr_srcptr get() const noexcept { return at_; }
  double to_double() const { return mpfr_get_d(at_, MPFR_RNDN); }
  bool is_nan() const { return mpfr_nan_p(at_) != 0; }
  bool is_infinite() const { return mpfr_inf_p(at_) != 0; }
  bool is_zero() const { return mpfr_zero_p(at_) != 0; }
  bool is_negative() const { return mpfr_signbit(at_) != 0; }
  long exponent() const { return mpfr_get_exp(at_) - 1; }  // of 1: 0

  friend wide operator+(const wide& a, const wide& b) { return of2(mpfr_add, a, b); }
  friend wide operator-(const wide& a, const wide& b) { return of2(mpfr_sub, a, b); }
  friend wide operator*(const wide& a, const wide& b) { return of2(mpfr_mul, a, b); }
  friend wide operator/(const wide& a, const wide& b) { return of2(mpfr_div, a, b); }
  friend wide operator-(const wide& a) { return of1(mpfr_neg, a); }
  friend bool operator<(const wide& a, const wide& b) { return mpfr_less_p(a.at_, b.at_) != 0; }
  friend bool operator>(const wide& a, const wide& b) { return b < a; }
  friend bool operator==(const wide& a, const wide& b) { return mpfr_equal_p(a.at_, b.at_) != 0; }

  template <class F>
  static wide of1(F f, const wide& x) {
    wide y;
    f(y.at_, x.at_, MPFR_RNDN);
    return y;
  }
  template <class F>
  static wide of2(F f, const wide& a, const wide& b) {
    wide y;
    f(y.at_, a.at_, b.at_, MPFR_RNDN);
    return y;
  }

 private:
  mpfr_t at_;
};

wide magnitude(const wide& x) { return wide::of1(mpfr_abs, x); }
wide power_of_e(const wide& x) { return wide::of1(mpfr_exp, x); }
wide root(const wide& x) { return wide::of1(mpfr_sqrt, x); }
wide pi() {
  wide y;
  mpfr_const_pi(y.get(), MPFR_RNDN);
  return y;
}
// The normal distribution function and its density.
wide normal_of(const wide& x) { return wide::of1(mpfr_erfc, -x / root(wide(2.0))) / wide(2.0); }
wide bell_of(const wide& x) { return power_of_e(-x * x / wide(2.0)) / root(wide(2.0) * pi()); }
bool is_nothing(const wide& x) { return x.is_infinite() && x.is_negative(); }
wide whole_below(const wide& x) {
  wide y;
  mpfr_rint_floor(y.get(), x.get(), MPFR_RNDN);
  return y;
}

using operands = std::span<const wide>;
using wide_rule = std::function<wide(operands)>;
template <class F>
wide_rule one(F f) {
  return [f](operands x) { return wide::of1(f, x[0]); };
}
template <class F>
wide_rule two(F f) {
  return [f](operands x) { return wide::of2(f, x[0], x[1]); };
}
wide_rule asked(bool (*f)(operands)) {
  return [f](operands x) { return wide(f(x) ? 1.0 : 0.0); };
}
bool is_any_nan(operands x) { return x[0].is_nan() || x[1].is_nan(); }

// What each op computes, special values included.
const std::map<std::string, wide_rule>& wide_rules() {
  static const std::map<std::string, wide_rule> rules{
      {"add", two(mpfr_add)},
      {"sub", two(mpfr_sub)},
      {"mul", two(mpfr_mul)},
      {"div", two(mpfr_div)},
      {"pow", two(mpfr_pow)},
      {"fmod", two(mpfr_fmod)},
      {"maximum", [](operands x) { return is_any_nan(x) ? wide(NAN)
                                          : x[0] < x[1] ? x[1]
                                                        : x[0]; }},
      {"minimum", [](operands x) { return is_any_nan(x) ? wide(NAN)
                                          : x[1] < x[0] ? x[1]
                                                        : x[0]; }},
      {"neg", one(mpfr_neg)},
      {"abs", one(mpfr_abs)},
      {"sign",
       [](operands x) {
         return x[0] > wide(0.0) ? wide(1.0) : x[0] < wide(0.0) ? wide(-1.0) : x[0];
       }},
      {"square", one(mpfr_sqr)},
      {"reciprocal", [](operands x) { return wide(1.0) / x[0]; }},
      {"fused_multiply_add",
       [](operands x) {
         wide y;
         mpfr_fma(y.get(), x[0].get(), x[1].get(), x[2].get(), MPFR_RNDN);
         return y;
       }},
      {"exp", one(mpfr_exp)},
      {"log", one(mpfr_log)},
      {"sqrt", one(mpfr_sqrt)},
      {"rsqrt", [](operands x) { return wide(1.0) / root(x[0]); }},
      {"erf", one(mpfr_erf)},
      {"sin", one(mpfr_sin)},
      {"cos", one(mpfr_cos)},
      {"tan", one(mpfr_tan)},
      {"expm1", one(mpfr_expm1)},
      {"log1p", one(mpfr_log1p)},
      {"asin", one(mpfr_asin)},
      {"acos", one(mpfr_acos)},
      {"atan", one(mpfr_atan)},
      {"sinh", one(mpfr_sinh)},
      {"cosh", one(mpfr_cosh)},
      {"asinh", one(mpfr_asinh)},
      {"acosh", one(mpfr_acosh)},
      {"atanh", one(mpfr_atanh)},
      {"tanh", one(mpfr_tanh)},
      {"floor", [](operands x) { return whole_below(x[0]); }},
      {"ceil", [](operands x) { return -whole_below(-x[0]); }},
      {"round",
       [](operands x) {
         wide y;
         mpfr_rint_roundeven(y.get(), x[0].get(), MPFR_RNDN);
         return y;
       }},
      {"relu", [](operands x) { return x[0] < wide(0.0) ? wide(0.0) : x[0]; }},
      {"leaky_relu", [](operands x) { return x[0] < wide(0.0) ? x[1] * x[0] : x[0]; }},
      {"sigmoid", [](operands x) { return wide(1.0) / (wide(1.0) + power_of_e(-x[0])); }},
      {"softplus",
       [](operands x) {
         const auto rest = wide::of1(mpfr_log1p, power_of_e(-magnitude(x[0])));
         return x[0].is_nan() ? x[0] : x[0] > wide(0.0) ? x[0] + rest : rest;
       }},
      // Of -infinity, the limit.
      {"gelu", [](operands x) { return is_nothing(x[0]) ? wide(0.0) : x[0] * normal_of(x[0]); }},
      {"gelu_tanh",
       [](operands x) {
         if (x[0].is_infinite()) return x[0].is_negative() ? wide(0.0) : x[0];
         const auto twice = root(wide(8.0) / pi()) * (x[0] + wide("0.044715") * x[0] * x[0] * x[0]);
         return x[0] / (wide(1.0) + power_of_e(-twice));
       }},
      {"gelu_grad",
       [](operands x) {
         const auto beside = x[1].is_infinite() ? wide(0.0) : x[1] * bell_of(x[1]);
         return x[0] * (normal_of(x[1]) + beside);
       }},
      {"clip",
       [](operands x) {
         const auto below = x[0] > x[2] ? x[2] : x[0];
         return below < x[1] ? x[1] : below;
       }},
      {"relu_grad", [](operands x) { return x[1] > wide(0.0) ? x[0] : wide(0.0); }},
      {"sigmoid_grad", [](operands x) { return x[0] * (x[1] * (wide(1.0) - x[1])); }},
      {"tanh_grad", [](operands x) { return x[0] * (wide(1.0) - x[1] * x[1]); }},
      {"equal", asked([](operands x) { return x[0] == x[1]; })},
      {"not_equal", asked([](operands x) { return !(x[0] == x[1]); })},
      {"less", asked([](operands x) { return x[0] < x[1]; })},
      {"less_equal", asked([](operands x) { return x[0] < x[1] || x[0] == x[1]; })},
      {"greater", asked([](operands x) { return x[0] > x[1]; })},
      {"greater_equal", asked([](operands x) { return x[0] > x[1] || x[0] == x[1]; })},
      {"is_nan", asked([](operands x) { return x[0].is_nan(); })},
      {"broadcast_like", [](operands x) { return x[0]; }},
  };
  return rules;
}
// Of gradients, whose terms cancel: errors count in the last place of these.
template <class T>
wide scale_of(const std::string& type, operands x) {
  if (type == "sigmoid_grad" || type == "tanh_grad") return magnitude(x[0] * x[1] * x[1]);
  // Far on the left its slope is nothing, not relatively right.
  if (type == "gelu_grad")
    return magnitude(x[0]) * wide(magnitude(x[1]) < wide(2.0)  ? 0.25
                                  : sizeof(T) == sizeof(float) ? 0x1p-96
                                                               : 0x1p-980);
  return wide(0.0);
}

template <class T>
struct format;
template <>
struct format<float> {
  using bits = std::uint32_t;
  static constexpr int digits = 23, least = -126;
  static constexpr dtype type = dtype::f32;
};
template <>
struct format<double> {
  using bits = std::uint64_t;
  static constexpr int digits = 52, least = -1022;
  static constexpr dtype type = dtype::f64;
};

template <class T>
T without_denormal(T x) {
  return std::abs(x) < std::numeric_limits<T>::min() ? std::copysign(T{0}, x) : x;
}

// Of results of a function that an op's gradient takes: between its limits.
template <class T>
T as_result(const std::string& type, T x) {
  const T least = type == "tanh_grad" ? T{-1} : T{0};
  return x < least ? least : x > T{1} ? T{1} : x;
}

template <class T>
std::vector<T> special_values() {
  using limits = std::numeric_limits<T>;
  std::vector<T> all;
  for (const T x :
       {T{0}, T{1}, T{2}, T{0.5}, T{3}, limits::min(), limits::denorm_min(), limits::max(),
        limits::infinity(), limits::epsilon(), std::nextafter(T{1}, T{0}),
        std::nextafter(T{1}, T{2}), T{1e6}, T{16777216}, T{88.5}, T{709.5}, T{13.5}, T{37.5}}) {
    all.push_back(x);
    all.push_back(-x);
  }
  all.push_back(limits::quiet_NaN());
  return all;
}

// A third from all bit patterns; a third of sizes from 2^-30 to 2^12, where most functions bend; a
// third near another operand, or near a whole number.
template <class T>
T draw(std::mt19937_64& bits, T other) {
  std::uniform_real_distribution<double> unit(-1, 1);
  switch (bits() % 3) {
    case 0: return std::bit_cast<T>(static_cast<typename format<T>::bits>(bits()));
    case 1: return static_cast<T>(std::ldexp(unit(bits), static_cast<int>(bits() % 42) - 30));
    default: {
      const T near = bits() % 2 == 0 ? other : static_cast<T>(static_cast<int>(bits() % 200) - 100);
      return near * (T{1} + static_cast<T>(static_cast<int>(bits() % 9) - 4) *
                                std::numeric_limits<T>::epsilon());
    }
  }
}

template <class T>
std::vector<std::vector<T>> draw_operands(std::size_t count, std::size_t n, std::uint64_t seed) {
  std::mt19937_64 bits(seed);
  std::vector<std::vector<T>> columns(count);
  const auto special = special_values<T>();
  const auto add_row = [&](const std::vector<T>& row) {
    for (std::size_t k = 0; k < count; ++k) columns[k].push_back(row[k]);
  };
  // Each special value beside each, and beside some others.
  std::vector<T> row(count);
  for (const T a : special)
    for (const T b : special) {
      for (std::size_t k = 0; k < count; ++k) row[k] = k == 0 ? a : k == 1 ? b : draw<T>(bits, a);
      add_row(row);
      if (count == 1) break;
    }
  while (columns[0].size() < n) {
    for (std::size_t k = 0; k < count; ++k) row[k] = draw<T>(bits, k == 0 ? T{1} : row[0]);
    if (count > 1 && bits() % 8 == 0) row[bits() % count] = special[bits() % special.size()];
    add_row(row);
  }
  return columns;
}

// How far off, in units of the last place of the exact result, or of `scale` if that is larger;
// infinite: of another kind (NaN, infinity, sign). Below 64 times the least normal number all is
// the same: what is made on the way may be denormal.
template <class T>
double error_of(double got, const wide& exact, const wide& scale) {
  constexpr double wrong = std::numeric_limits<double>::infinity();
  if (exact.is_nan() || std::isnan(got)) return exact.is_nan() && std::isnan(got) ? 0 : wrong;
  const wide largest(static_cast<double>(std::numeric_limits<T>::max()));
  if (std::isinf(got) || exact.is_infinite()) {
    // Above the largest by some units: either.
    const bool is_same_side = std::signbit(got) == exact.is_negative();
    const bool is_near =
        magnitude(exact) > largest * wide(1 - 1e-6) &&
        std::abs(got) > static_cast<double>(std::numeric_limits<T>::max()) * (1 - 1e-6);
    return is_same_side && is_near ? 0 : wrong;
  }
  const double nothing = std::ldexp(1.0, format<T>::least + 6);
  if (std::abs(got) <= nothing && magnitude(exact) < wide(nothing)) return 0;
  if (magnitude(exact) > largest)
    return std::abs(got) >= largest.to_double() * (1 - 1e-6) ? 0 : wrong;
  const auto& size = magnitude(exact) > scale ? exact : scale;
  const auto place =
      std::max<long>(size.is_zero() ? format<T>::least : size.exponent(), format<T>::least) -
      format<T>::digits;
  auto off = magnitude(wide(got) - exact);
  mpfr_mul_2si(off.get(), off.get(), -place, MPFR_RNDN);
  return off.to_double();
}

std::uint64_t seeds() {
  const auto* n = std::getenv("TROUPE_SEEDS");
  return n != nullptr ? std::strtoull(n, nullptr, 10) : 1;
}

struct worst {
  double error = 0;
  std::string where;
};

// Arithmetic of threads that run kernels, for a while: multiple precision wants that of C.
struct as_kernels_compute {
  as_kernels_compute() {
    std::fegetenv(&before);
    set_up_kernel_thread();
  }
  ~as_kernels_compute() { std::fesetenv(&before); }
  std::fenv_t before{};
};

template <class T>
worst worst_of(test::kernel_harness& harness, const std::string& type, std::size_t count,
               bool is_predicate, const wide_rule& rule) {
  worst w;
  for (std::uint64_t seed = 1; seed <= seeds(); ++seed) {
    auto columns = draw_operands<T>(count, 20'000, seed);
    if (type == "sigmoid_grad" || type == "tanh_grad")
      for (auto& y : columns[1]) y = as_result(type, y);
    if (type == "gelu_grad")  // times a slope that is next to nothing: either
      for (auto& dy : columns[0])
        if (std::isinf(dy)) dy = T{1};
    const auto n = static_cast<std::int64_t>(columns[0].size());
    std::vector<tensor> in;
    for (const auto& c : columns)
      in.push_back(tensor::of<T>(format<T>::type, shape{n}, std::span<const T>(c)));
    const auto out = [&] {
      const as_kernels_compute now;
      return harness.one(type, in, {is_predicate ? dtype::boolean : format<T>::type, {n}});
    }();
    std::vector<wide> x(count);
    for (std::int64_t i = 0; i < n; ++i) {
      bool is_any_denormal = false;
      const auto take = [&](bool flush) {
        for (std::size_t k = 0; k < count; ++k) {
          const T at = columns[k][static_cast<std::size_t>(i)], zeroed = without_denormal(at);
          is_any_denormal |= zeroed != at && !std::isnan(at);
          x[k] = wide(static_cast<double>(flush ? zeroed : at));
        }
        return rule(x);
      };
      auto exact = take(true);
      const double got = is_predicate ? (out.template data<boolean>()[i] ? 1.0 : 0.0)
                                      : static_cast<double>(out.template data<T>()[i]);
      auto error = error_of<T>(got, exact, scale_of<T>(type, x));
      // Of -0 an odd function is -0.
      if (count == 1 && x[0].is_zero() && exact.is_zero() &&
          std::signbit(got) != exact.is_negative())
        error = std::numeric_limits<double>::infinity();
      // Functions of the C library look at the bits, so they see denormal numbers.
      if (error > 0 && is_any_denormal) {
        exact = take(false);
        error = std::min(error, error_of<T>(got, exact, scale_of<T>(type, x)));
      }
      if (!(error > w.error)) continue;
      w.error = error;
      w.where.clear();
      for (const auto& v : x) w.where += fmt::format("{:.17g}, ", v.to_double());
      w.where += fmt::format("got {:.17g}, expected {:.17g}", got, exact.to_double());
    }
  }
  return w;
}

struct half_format {
  int digits, least;
  double largest;
};
// To the nearest number of a format, by halves to even: in f64 the quotient is exact.
double rounded_to(double x, const half_format& f) {
  if (x == 0 || !std::isfinite(x)) return x;
  const double place = std::ldexp(1.0, std::max(std::ilogb(x), f.least) - f.digits);
  const double y = std::nearbyint(x / place) * place;
  return std::abs(y) > f.largest ? std::copysign(INFINITY, x) : y;
}

struct fixture {
  test::kernel_harness harness;
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(precision, fixture)

BOOST_AUTO_TEST_CASE(element_wise_ops_are_right_for_numbers_of_all_sizes) {
  const auto table = make_op_table();
  std::size_t tested = 0;
  for (const auto& [type, row] : table.rows()) {
    // Of conditions and conversions: below.
    if (!row.is_elementwise || !row.types.has(dtype::f32) || type == "where" || type == "cast")
      continue;
    BOOST_TEST_CONTEXT(type) {
      const auto rule = wide_rules().find(type);
      BOOST_REQUIRE_MESSAGE(rule != wide_rules().end(), "the op has no rule in multiple precision");
      const bool is_predicate = type == "equal" || type == "not_equal" || type == "is_nan" ||
                                type.starts_with("less") || type.starts_with("greater");
      const auto narrow = worst_of<float>(harness, type, row.inputs, is_predicate, rule->second);
      const auto full = worst_of<double>(harness, type, row.inputs, is_predicate, rule->second);
      BOOST_TEST_MESSAGE(fmt::format("{:20} f32 {:8.3g} of {:4}, f64 {:8.3g} of {:4}", type,
                                     narrow.error, op_cases::allowed(type), full.error,
                                     op_cases::allowed_in_f64(type)));
      BOOST_TEST(narrow.error <= op_cases::allowed(type), "f32: " << narrow.where);
      BOOST_TEST(full.error <= op_cases::allowed_in_f64(type), "f64: " << full.where);
    }
    ++tested;
  }
  BOOST_TEST(tested > 40u);
}

// Rounded once, to the nearest, of two the even one; beyond the largest infinite.
BOOST_AUTO_TEST_CASE(conversions_between_floating_types_round_once) {
  const auto limits_of = [](dtype t) {
    return t == dtype::f16    ? half_format{10, -14, 65504}
           : t == dtype::bf16 ? half_format{7, -126, static_cast<double>(0x1.fep127F)}
                              : half_format{23, -126, static_cast<double>(0x1.fffffep127F)};
  };
  const auto check = [&]<class T>(T, dtype to) {
    const auto in = draw_operands<T>(1, 20'000, 7)[0];
    const auto n = static_cast<std::int64_t>(in.size());
    const tensor out = [&] {
      const as_kernels_compute now;
      return harness.one("cast", {tensor::of<T>(format<T>::type, shape{n}, std::span<const T>(in))},
                         {to, {n}}, {{"to", static_cast<std::int64_t>(to)}});
    }();
    const auto f = limits_of(to);
    for (std::int64_t i = 0; i < n; ++i) {
      const auto x = static_cast<double>(without_denormal(in[static_cast<std::size_t>(i)]));
      const double got = to == dtype::f16    ? static_cast<double>(to_f32(out.data<f16>()[i]))
                         : to == dtype::bf16 ? static_cast<double>(to_f32(out.data<bf16>()[i]))
                                             : static_cast<double>(out.data<float>()[i]);
      const double expected = rounded_to(x, f);
      const bool is_nothing = std::abs(expected) < 0x1p-126 && std::abs(got) < 0x1p-126;
      BOOST_TEST_REQUIRE((got == expected || (std::isnan(got) && std::isnan(x)) || is_nothing),
                         fmt::format("{} to {}: {:.17g} became {:.17g}, expected {:.17g}",
                                     to_string(format<T>::type), to_string(to), x, got, expected));
    }
  };
  for (const auto to : {dtype::f16, dtype::bf16, dtype::f32}) check(double{}, to);
  for (const auto to : {dtype::f16, dtype::bf16}) check(float{}, to);
}

// Rows of 1 to 70 numbers of sizes from 2^-40 to 2^40, so that neither partial sums nor products of
// some overflow; for softmax also rows that hold infinities and the largest numbers.
BOOST_AUTO_TEST_CASE(reductions_are_right_for_numbers_of_many_sizes) {
  using row = std::vector<wide>;
  struct reduction {
    const char* op;
    bool is_of_exponentials;
    double allowed;
    std::function<row(const row&)> rule;
    std::function<wide(const row&)> scale;  // in the last place of which errors count
  };
  const auto none = [](const row&) { return wide(0.0); };
  const auto sizes = [](const row& x) {
    wide sum(0.0);
    for (const auto& v : x) sum = sum + magnitude(v);
    return sum;
  };
  const auto largest = [](const row& x) {
    wide most(0.0);
    for (const auto& v : x)
      if (!v.is_infinite() && magnitude(v) > most) most = magnitude(v);
    return most;
  };
  const auto folded = [](wide (*join)(const wide&, const wide&), double first) {
    return [join, first](const row& x) {
      wide y(first);
      for (const auto& v : x) y = join(y, v);
      return row{y};
    };
  };
  const auto shares = [](const row& x) {
    wide most = x[0], sum(0.0);
    for (const auto& v : x)
      if (most < v) most = v;
    row all;
    for (const auto& v : x) {
      all.push_back(v == most ? wide(1.0) : power_of_e(v - most));
      sum = sum + all.back();
    }
    for (auto& v : all) v = v / sum;
    return all;
  };
  const reduction all[] = {
      {"reduce_sum", false, 2, folded([](const wide& a, const wide& b) { return a + b; }, 0),
       sizes},
      {"reduce_prod", false, 40, folded([](const wide& a, const wide& b) { return a * b; }, 1),
       none},
      {"reduce_max", false, 0.5,
       folded([](const wide& a, const wide& b) { return a < b ? b : a; }, -INFINITY), none},
      {"reduce_min", false, 0.5,
       folded([](const wide& a, const wide& b) { return b < a ? b : a; }, INFINITY), none},
      {"cumulative_sum", false, 8,
       [](const row& x) {
         row y{x[0]};
         for (std::size_t i = 1; i < x.size(); ++i) y.push_back(y.back() + x[i]);
         return y;
       },
       sizes},
      // Of small shares: the difference to the largest number is rounded.
      {"softmax", true, 40, shares, none},
      {"log_softmax", true, 2,
       [&](const row& x) {
         auto y = shares(x);
         for (auto& v : y) v = wide::of1(mpfr_log, v);
         return y;
       },
       [&](const row& x) { return largest(x) + wide(1.0); }},
  };
  const auto check = [&]<class T>(T, const reduction& r) {
    const auto type = format<T>::type;
    std::mt19937_64 bits(11);
    std::uniform_real_distribution<double> unit(-1, 1);
    worst w;
    for (int i = 0; i < 1'000; ++i) {
      const auto n = static_cast<std::int64_t>(1 + bits() % 70);
      // Of exponentials: down to where a share is denormal.
      const int most = r.is_of_exponentials                      ? 1 + static_cast<int>(bits() % 6)
                       : std::string_view(r.op) == "reduce_prod" ? 1
                                                                 : 40;
      std::vector<T> x(static_cast<std::size_t>(n));
      for (auto& v : x)
        v = static_cast<T>(std::ldexp(unit(bits), static_cast<int>(bits() % (2 * most)) - most));
      if (r.is_of_exponentials && i % 10 == 0)
        x[bits() % x.size()] = -std::numeric_limits<T>::infinity();
      if (r.is_of_exponentials && i % 10 == 1) x[bits() % x.size()] = std::numeric_limits<T>::max();
      if (r.is_of_exponentials && i % 10 == 2)
        x[bits() % x.size()] = -std::numeric_limits<T>::max();
      if (r.is_of_exponentials && n == 1 && std::isinf(x[0])) continue;  // 0 / 0
      const bool is_row = std::string_view(r.op).starts_with("reduce_");
      const tensor out = [&] {
        const as_kernels_compute now;
        const attributes axis{{"axis", std::int64_t{0}}};
        return harness.one(r.op, {tensor::of<T>(type, shape{n}, std::span<const T>(x))},
                           {type, is_row ? shape{} : shape{n}}, is_row ? attributes{} : axis);
      }();
      row exactly;
      for (const T v : x) exactly.emplace_back(static_cast<double>(v));
      const auto expected = r.rule(exactly);
      const auto scale = r.scale(exactly);
      for (std::size_t k = 0; k < expected.size(); ++k) {
        const auto got = static_cast<double>(out.data<T>()[k]);
        const auto error = error_of<T>(got, expected[k], scale);
        if (!(error > w.error)) continue;
        w.error = error;
        w.where = fmt::format("row {}, element {} of {}: got {:.17g}, expected {:.17g}", i, k, n,
                              got, expected[k].to_double());
      }
    }
    BOOST_TEST_MESSAGE(
        fmt::format("{:20} {} {:8.3g} of {}", r.op, to_string(type), w.error, r.allowed));
    BOOST_TEST(w.error <= r.allowed, r.op << " of " << to_string(type) << ": " << w.where);
  };
  for (const auto& r : all) {
    check(float{}, r);
    check(double{}, r);
  }
}

BOOST_AUTO_TEST_SUITE_END()
#else
BOOST_AUTO_TEST_SUITE(precision)
BOOST_AUTO_TEST_CASE(is_skipped_without_mpfr) {
  BOOST_TEST_MESSAGE("skipped: this build has no MPFR (tools/setup --tests installs it)");
}
BOOST_AUTO_TEST_SUITE_END()
#endif
