// LSTM, GRU and RNN: each step's ops one after the other, since the length is known. What the input
// gives of all steps is one product.

#include "troupe/runtime/onnx/node.hpp"

#include <algorithm>
#include <array>
#include <functional>

namespace troupe::onnx {
namespace {

using activation = std::function<value(value)>;

struct activation_kind {
  std::string_view name;
  double alpha, beta;  // where the attributes do not say
  bool takes_alpha, takes_beta;
  value (*f)(const node& n, value x, double alpha, double beta);
};

constexpr std::array<activation_kind, 11> activation_kinds{{
    {"Sigmoid", 0, 0, false, false,
     [](const node&, value x, double, double) { return sigmoid(x); }},
    {"Tanh", 0, 0, false, false, [](const node&, value x, double, double) { return tanh(x); }},
    {"Relu", 0, 0, false, false, [](const node&, value x, double, double) { return relu(x); }},
    {"Softplus", 0, 0, false, false,
     [](const node&, value x, double, double) { return softplus(x); }},
    {"Softsign", 0, 0, false, false,
     [](const node& n, value x, double, double) {
       return div(x, add(abs(x), n.number_like(x, 1)));
     }},
    {"Elu", 1, 0, true, false, [](const node&, value x, double a, double) { return elu(x, a); }},
    {"LeakyRelu", 0.01, 0, true, false,
     [](const node&, value x, double a, double) { return leaky_relu(x, a); }},
    {"ThresholdedRelu", 1, 0, true, false,
     [](const node& n, value x, double a, double) {
       return where(greater_equal(x, n.number_like(x, a)), x, n.number_like(x, 0));
     }},
    {"HardSigmoid", 0.2, 0.5, true, true,
     [](const node& n, value x, double a, double b) {
       return clip(add(mul(x, n.number_like(x, a)), n.number_like(x, b)), 0, 1);
     }},
    {"ScaledTanh", 1, 1, true, true,
     [](const node& n, value x, double a, double b) {
       return mul(tanh(mul(x, n.number_like(x, b))), n.number_like(x, a));
     }},
    {"Affine", 1, 0, true, true,
     [](const node& n, value x, double a, double b) {
       return add(mul(x, n.number_like(x, a)), n.number_like(x, b));
     }},
}};

std::string in_lower_case(std::string text) {
  for (auto& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

// Those of all directions; numbers are taken in their order by whoever takes one.
std::vector<activation> activations_of(const node& n, std::vector<std::string> names,
                                       std::size_t count) {
  if (n.has("activations")) names = n.texts("activations");
  if (names.size() != count)
    n.refuse(fmt::format("attribute 'activations' has {} names, expected {}", names.size(), count));
  const auto alphas = n.reals("activation_alpha"), betas = n.reals("activation_beta");
  const double limit = n.real("clip", 0);
  std::size_t next_alpha = 0, next_beta = 0;
  std::vector<activation> all;
  for (const auto& name : names) {
    const auto at = std::ranges::find_if(activation_kinds, [&](const auto& k) {
      return in_lower_case(std::string(k.name)) == in_lower_case(name);
    });
    if (at == activation_kinds.end())
      n.refuse(fmt::format("attribute 'activations': there is no '{}'", shown(name)));
    const auto next = [](bool takes, const std::vector<float>& from, std::size_t& i, double other) {
      return takes && i < from.size() ? static_cast<double>(from[i++]) : other;
    };
    const auto alpha = next(at->takes_alpha, alphas, next_alpha, at->alpha),
               beta = next(at->takes_beta, betas, next_beta, at->beta);
    all.push_back([&n, f = at->f, alpha, beta, limit](value x) {
      return f(n, limit > 0 ? clip(x, -limit, limit) : x, alpha, beta);
    });
  }
  return all;
}

// One direction: what its steps need.
struct direction {
  value input;           // [t, n, gates * h]: of all steps, with the biases that only add up
  value recurrent;       // [gates * h, h]
  value recurrent_bias;  // [gates * h]
  value peepholes;       // [3 * h]; invalid: none
  std::vector<activation> f;
  std::int64_t hidden = 0;
  // Gate i of a vector that has all of them along its last axis.
  value gate(value all, std::int64_t i) const {
    std::vector<range> part(spec(all).shape.rank());
    part.back() = {.begin = i * hidden, .end = (i + 1) * hidden};
    return slice(all, part);
  }
  value weights(std::int64_t i) const {
    return slice(recurrent, {range{.begin = i * hidden, .end = (i + 1) * hidden}});
  }
};

struct state {
  value h, c;
};
using step_rule = std::function<state(const direction&, value, const state&)>;

value times(value h, value weights) { return matmul(h, weights, false, true); }

state lstm_step(const node& n, const direction& d, value x, const state& s, bool is_coupled) {
  const auto all = add(add(x, times(s.h, d.recurrent)), d.recurrent_bias);
  const auto peeped = [&](std::int64_t gate, std::int64_t peephole, value c) {
    const auto g = d.gate(all, gate);
    return d.peepholes.is_valid() ? add(g, mul(c, d.gate(d.peepholes, peephole))) : g;
  };
  const auto i = d.f[0](peeped(0, 0, s.c));
  const auto forget = is_coupled ? sub(n.number_like(i, 1), i) : d.f[0](peeped(2, 2, s.c));
  const auto c = add(mul(forget, s.c), mul(i, d.f[1](d.gate(all, 3))));
  const auto o = d.f[0](peeped(1, 1, c));
  return {mul(o, d.f[2](c)), c};
}

state gru_step(const node& n, const direction& d, value x, const state& s, bool is_linear_first) {
  const auto gate = [&](std::int64_t i) {
    return d.f[0](add(add(d.gate(x, i), times(s.h, d.weights(i))), d.gate(d.recurrent_bias, i)));
  };
  const auto z = gate(0), r = gate(1);
  const auto bias = d.gate(d.recurrent_bias, 2);
  const auto seen = is_linear_first ? mul(r, add(times(s.h, d.weights(2)), bias))
                                    : add(times(mul(r, s.h), d.weights(2)), bias);
  const auto h = d.f[1](add(d.gate(x, 2), seen));
  return {add(mul(sub(n.number_like(z, 1), z), h), mul(z, s.h)), {}};
}

// x [t, n, i], W [d, gates h, i], R [d, gates h, h], B [d, 2 gates h], lengths [n], first h [d, n,
// h], first c, P [d, 3 h] -> all h [t, d, n, h], last h [d, n, h], last c.
values recurrent(const node& n, std::int64_t gates, const std::vector<std::string>& names,
                 const step_rule& step) {
  constexpr std::int64_t steps_max = 4096;
  const bool is_batch_first = n.integer("layout", 0) != 0;
  const auto swapped = [&](value v) { return is_batch_first ? transpose(v, {1, 0, 2}) : v; };
  const auto x = swapped(n.in(0));
  const auto s = n.sizes(x), w = n.sizes(n.in(1)), own = n.sizes(n.in(2));
  const auto way = n.text("direction", "forward");
  if (way != "forward" && way != "reverse" && way != "bidirectional")
    n.refuse(fmt::format(
        "attribute 'direction' is '{}', expected forward, reverse or bidirectional", way));
  const std::int64_t directions = way == "bidirectional" ? 2 : 1;
  const auto hidden = own.size() == 3 ? own[2] : 0;
  if (s.size() != 3 || hidden < 1 || w != integers{directions, gates * hidden, s[2]} ||
      own != integers{directions, gates * hidden, hidden} ||
      n.integer("hidden_size", hidden) != hidden)
    n.refuse(fmt::format("{}, weights {} and {} do not fit {}", to_string(spec(n.in(0))),
                         to_string(spec(n.in(1))), to_string(spec(n.in(2))), way));
  if (s[0] < 1 || s[0] > steps_max)
    n.refuse(fmt::format("{} steps, expected 1 to {}", s[0], steps_max));
  const auto type = spec(x).type;
  const auto f = activations_of(
      n,
      [&] {
        auto all = names;
        if (directions == 2) all.insert(all.end(), names.begin(), names.end());
        return all;
      }(),
      names.size() * static_cast<std::size_t>(directions));
  const auto of_direction = [&](value v, std::int64_t d) {
    auto dims = n.sizes(v);
    if (dims.empty()) n.refuse("an operand is one number, expected one of each direction");
    dims.erase(dims.begin());
    return n.reshaped(slice(v, {range{.begin = d, .end = d + 1}}), dims);
  };
  value lengths;
  if (n.has(4)) lengths = n.reshaped(n.converted(n.in(4), dtype::i64), {s[1], 1});
  std::vector<value> all(static_cast<std::size_t>(directions)), last_h, last_c;
  for (std::int64_t d = 0; d < directions; ++d) {
    const bool is_backward = way == "reverse" || d == 1;
    direction now;
    now.hidden = hidden;
    now.recurrent = of_direction(n.in(2), d);
    const auto per = static_cast<std::ptrdiff_t>(names.size());
    now.f.assign(f.begin() + d * per, f.begin() + (d + 1) * per);
    auto input = times(n.reshaped(x, {s[0] * s[1], s[2]}), of_direction(n.in(1), d));
    now.recurrent_bias = n.number(0, type);
    if (n.has(3)) {
      const auto both = of_direction(n.in(3), d);
      const auto half = [&](std::int64_t i) {
        return slice(both, {range{.begin = i * gates * hidden, .end = (i + 1) * gates * hidden}});
      };
      input = add(input, half(0));
      now.recurrent_bias = half(1);
    } else {
      now.recurrent_bias = n.filled(type, {gates * hidden}, 0);
    }
    now.input = n.reshaped(input, {s[0], s[1], gates * hidden});
    if (n.has(7)) now.peepholes = of_direction(n.in(7), d);
    const auto first = [&](std::size_t i) {
      return n.has(i) ? of_direction(swapped(n.in(i)), d) : n.filled(type, {s[1], hidden}, 0);
    };
    state at{first(5), first(6)};
    std::vector<value> made(static_cast<std::size_t>(s[0]));
    for (std::int64_t k = 0; k < s[0]; ++k) {
      const auto t = is_backward ? s[0] - 1 - k : k;
      const auto of_step =
          n.reshaped(slice(now.input, {range{.begin = t, .end = t + 1}}), {s[1], gates * hidden});
      auto next = step(now, of_step, at);
      auto shown_h = next.h;
      if (lengths.is_valid()) {  // behind its end a row stays as it is, and gives zeros
        const auto is_in = less(n.number(static_cast<double>(t), dtype::i64), lengths);
        shown_h = where(is_in, next.h, n.number(0, type));
        next.h = where(is_in, next.h, at.h);
        if (next.c.is_valid()) next.c = where(is_in, next.c, at.c);
      }
      made[static_cast<std::size_t>(t)] = shown_h;
      at = next;
    }
    all[static_cast<std::size_t>(d)] = stack(made, 0);
    last_h.push_back(at.h);
    if (at.c.is_valid()) last_c.push_back(at.c);
  }
  auto y = stack(all, 1);
  if (is_batch_first) y = transpose(y, {2, 0, 1, 3});
  values out{y, swapped(stack(last_h, 0))};
  if (!last_c.empty()) out.push_back(swapped(stack(last_c, 0)));
  return out;
}

values lstm(node& n) {
  const bool is_coupled = n.integer("input_forget", 0) != 0;
  return recurrent(n, 4, {"Sigmoid", "Tanh", "Tanh"},
                   [&](const direction& d, value x, const state& s) {
                     return lstm_step(n, d, x, s, is_coupled);
                   });
}

values gru(node& n) {
  const bool is_linear_first = n.integer("linear_before_reset", 0) != 0;
  return recurrent(n, 3, {"Sigmoid", "Tanh"}, [&](const direction& d, value x, const state& s) {
    return gru_step(n, d, x, s, is_linear_first);
  });
}

values rnn(node& n) {
  return recurrent(n, 1, {"Tanh"}, [&](const direction& d, value x, const state& s) {
    return state{d.f[0](add(add(x, times(s.h, d.recurrent)), d.recurrent_bias)), {}};
  });
}

// Before opset 7 other attributes gave other shapes.
rule since_7(rule r) {
  return widening([r = std::move(r)](node& n) {
    if (n.opset < 7) n.refuse("before opset 7 it is not supported");
    return r(n);
  });
}

}  // namespace

void add_recurrent(rules& r) {
  r["LSTM"] = since_7(lstm);
  r["GRU"] = since_7(gru);
  r["RNN"] = since_7(rnn);
}

}  // namespace troupe::onnx
