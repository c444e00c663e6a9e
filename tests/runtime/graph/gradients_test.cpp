// The gradient of every op, and the gradient of that, against central differences in f64, over
// random shapes; and the table of ops in the documentation, which is made here.

#include "tests/support/op_cases.hpp"
#include "tests/support/repetitions.hpp"
#include "tests/support/source_folder.hpp"
#include "troupe/devices/host/host_device.hpp"
#include "troupe/runtime/compile/compile.hpp"
#include "troupe/runtime/graph/control_flow.hpp"
#include "troupe/runtime/graph/on_device.hpp"
#include "troupe/runtime/graph/op_table.hpp"
#include "troupe/runtime/graph/ops.hpp"
#include "troupe/runtime/layers/eager.hpp"
#include "troupe/runtime/plan/loop_rules.hpp"

#include <boost/test/unit_test.hpp>

#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <map>
#include <set>
#include <sstream>

using namespace troupe;
using namespace troupe::op_cases;

namespace {

constexpr std::uint64_t cases_of_page = 30;  // which says how many derivatives were compared
constexpr std::uint64_t cases_each = repetitions(cases_of_page);
constexpr std::int64_t elements_each = 6;  // of an operand, whose derivatives are compared

// An op with operands, as a function of its floating operands: the weighed sum of its results
// (order 0), or that of its gradients (order 1), whose own gradients are then those of second
// order.
class op_function {
 public:
  op_function(const op_table& ops, const kernel_table& kernels, std::string type, drawn_case drawn,
              std::uint64_t seed)
      : e_(ops, kernels, device_),
        type_(std::move(type)),
        attrs_(std::move(drawn.attrs)),
        seed_(seed) {
    for (const auto& a : drawn.operands) operands_.push_back(to_tensor(a));
  }

  std::vector<tensor>& operands() { return operands_; }

  struct outcome {
    double value = 0;
    std::vector<tensor> gradients;  // by operand; none: it does not flow
    std::string error;
    bool has_result = true;  // that is a number
  };
  outcome at(int order, bool wants_gradients) {
    const eager::tape tape(e_);
    outcome o;
    std::vector<value> x;
    for (const auto& t : operands_) x.push_back(e_.value_of(t));
    auto sum = weighed(results(x), 1);
    if (sum.is_valid() && order == 1) {
      const auto once = gradients(e_, sum, x);
      sum = weighed(once, 2);
    }
    if (const auto error = e_.take_error()) {
      o.error = error->text();
      return o;
    }
    o.has_result = sum.is_valid();
    if (!o.has_result) return o;
    o.value = e_.read(sum)->data<double>()[0];
    if (!wants_gradients) return o;
    for (const auto& g : gradients(e_, sum, x)) {
      if (g.is_valid() && g.spec() != x[o.gradients.size()].spec())
        o.error = fmt::format("operand {} is {}, its gradient {}", o.gradients.size(),
                              to_string(x[o.gradients.size()].spec()), to_string(g.spec()));
      o.gradients.push_back(g.is_valid() ? *e_.read(g) : tensor());
    }
    if (const auto error = e_.take_error()) o.error = error->text();
    return o;
  }

 private:
  std::vector<value> results(std::span<const value> x) {
    const auto y = e_.add(type_, x, attrs_, "op", source_location::current());
    std::vector<value> all;
    if (!y.is_valid()) return all;
    for (std::uint32_t k = 0; k < e_.node(y.node).outputs.size(); ++k)
      all.push_back({&e_, y.node, k});
    return all;
  }
  // Of those that are f64, every element with a weight of its own; invalid: there are none.
  value weighed(std::span<const value> all, std::uint64_t stream) {
    drawer weights(seed_ + stream * 1000);
    value sum;
    for (const auto& v : all) {
      if (!v.is_valid() || v.spec().type != dtype::f64) continue;
      const auto w =
          e_.value_of(to_tensor(weights.values(dtype::f64, sizes_of(v.spec().shape), 0.5, 1.5)));
      const auto part = reduce_sum(mul(v, w));
      sum = sum.is_valid() ? add(sum, part) : part;
    }
    return sum;
  }

  host_device device_;
  eager e_;
  std::string type_;
  attributes attrs_;
  std::uint64_t seed_;
  std::vector<tensor> operands_;
};

struct checks {
  std::size_t derivatives = 0;  // that were compared
  bool flows = false;           // through some operand
};

// Central differences of order 4: errors are about h^4 and 1e-16 / h.
double difference(op_function& f, int order, double& x) {
  const double h = 1e-4, from = x;
  const auto value_at = [&](double by) {
    x = from + by * h;
    return f.at(order, false).value;
  };
  const double slope = (8 * (value_at(1) - value_at(-1)) - (value_at(2) - value_at(-2))) / (12 * h);
  x = from;
  return slope;
}

checks check(op_function& f, int order, drawer& d) {
  checks done;
  const auto exact = f.at(order, true);
  BOOST_TEST_REQUIRE(exact.error.empty(), exact.error);
  if (!exact.has_result) return done;
  for (std::size_t k = 0; k < f.operands().size(); ++k) {
    auto& t = f.operands()[k];
    if (t.type() != dtype::f64) continue;
    done.flows = done.flows || exact.gradients[k];
    for (std::int64_t n = 0; n < std::min(elements_each, t.elements()); ++n) {
      const auto i = t.elements() <= elements_each ? n : d.below(t.elements());
      const double slope = difference(f, order, t.data<double>()[i]);
      const double got = exact.gradients[k] ? exact.gradients[k].data<double>()[i] : 0;
      BOOST_TEST_REQUIRE(
          std::abs(got - slope) <= 1e-6 * (1 + std::abs(slope) + std::abs(exact.value) * 1e-3),
          "operand " << k << ", element " << i << ": " << got << ", and by differences " << slope);
      ++done.derivatives;
    }
  }
  return done;
}

// What has no derivative where it jumps, and is constant elsewhere, or is made of integers, has
// nothing to check.
struct row_of_table {
  std::size_t first = 0, second = 0;  // derivatives that were compared
  bool flows = false;
};

const std::map<std::string, row_of_table>& results() {
  static const auto all = [] {
    std::map<std::string, row_of_table> rows;
    const auto ops = make_op_table();
    const auto kernels = make_host_kernels();
    for (const auto& [type, row] : ops.rows()) {
      if (!row.gradient || row.is_forwarding || !(row.types.has(dtype::f64) || type == "where"))
        continue;
      if (type == "argmax" || type == "argmin" || type.starts_with("random_")) continue;
      auto& sums = rows[type];
      drawer d(7);
      for (std::uint64_t i = 0; i < cases_each; ++i) {
        auto c = draw(d, type, row, dtype::f64);
        if (!c) continue;
        if (type == "cast") c->attrs.set("to", std::int64_t{static_cast<std::uint8_t>(dtype::f64)});
        if (type == "where")
          for (auto& a : c->operands)
            if (a.spec.type == dtype::f32) a.spec.type = dtype::f64;
        std::string specs;
        for (const auto& a : c->operands) specs += " " + to_string(a.spec);
        BOOST_TEST_CONTEXT(type << specs << ", case " << i) {
          op_function f(ops, kernels, type, std::move(*c), i);
          const auto first = check(f, 0, d);
          sums.flows = sums.flows || first.flows;
          sums.first += first.derivatives;
          if (first.flows) sums.second += check(f, 1, d).derivatives;
        }
      }
    }
    return rows;
  }();
  return all;
}

std::string types_of(const op_row& row) {
  if (row.types.is_empty())
    return row.inputs == 0 ? "as asked for" : row.is_control ? "all" : "any";
  if (row.types == all_types) return "all";
  return to_string(row.types);
}

std::string gradient_of(const std::string& type, const op_row& row) {
  if (row.inputs == 0) return "";
  if (row.is_control) return type == loop_stack_op ? "none" : "of its branches or loop";
  if (row.is_forwarding) return type == "stop_gradient" ? "none" : "";
  const auto at = results().find(type);
  return at != results().end() && at->second.flows ? "yes, twice" : "none";
}

std::string table() {
  std::string text =
      "# Ops\n\n"
      "All ops that a plan may contain. [ops.hpp](../ops.hpp) has the functions that add them to a graph,\n"
      "with shapes and rules; some add several ops. `tests/runtime/graph/gradients_test.cpp` checks this\n"
      "page; with `TROUPE_WRITE_DOCS=1` it writes it.\n\n"
      "- **types**: of the first operand.\n"
      "- **gradient**: for at least one operand; *twice*: the gradient has one, too. *none*: mostly step\n"
      "  functions, constants and whole numbers. Empty: sources, and ops that forward an operand; for\n"
      "  collectives see [collectives.hpp](../collectives.hpp).\n"
      "- **derivatives**: how many, of first and second order, were compared with central differences in\n"
      "  f64, over random shapes with broadcasting.\n"
      "- **error**: allowed for f32, for element-wise ops also for f64, in units of the last place (0.5 is\n"
      "  correctly rounded; moving elements, comparing and counting are exact). Element-wise ops:\n"
      "  against multiple precision, for numbers of all exponents, infinities and NaN among them\n"
      "  (`tests/runtime/graph/precision_test.cpp`); all, against plain loops in f64 over 100 random\n"
      "  shapes; of sums and products: of their largest terms. Denormal numbers are zeros; a result\n"
      "  below 7.6e-37 (f64: 1.4e-306) may be, too. A sum or product is infinite where what it has\n"
      "  added up on the way is beyond the type.\n\n"
      "| op | operands | types | gradient | derivatives | error |\n|---|---|---|---|---|---|\n";
  std::size_t first = 0, second = 0;
  const auto ops = make_op_table();
  for (const auto& [type, row] : ops.rows()) {
    const auto at = results().find(type);
    const bool is_checked = at != results().end() && at->second.flows;
    if (is_checked) first += at->second.first, second += at->second.second;
    text +=
        fmt::format("| {} | {} | {} | {} | {} | {} |\n", type,
                    row.inputs_max == std::numeric_limits<std::uint32_t>::max()
                        ? fmt::format("{} or more", row.inputs)
                    : row.inputs_max != 0 ? fmt::format("{} to {}", row.inputs, row.inputs_max)
                                          : fmt::format("{}", row.inputs),
                    types_of(row), gradient_of(type, row),
                    is_checked ? fmt::format("{} + {}", at->second.first, at->second.second) : "",
                    row.types.has(dtype::f32) && !row.is_forwarding &&
                            !type.starts_with("random_") && type != "dropout_mask"
                        ? row.is_elementwise && row.types.has(dtype::f64)
                              ? fmt::format("{}, {}", allowed(type), op_cases::allowed_in_f64(type))
                              : fmt::format("{}", allowed(type))
                        : "");
  }
  return text + fmt::format("\n{} ops; {} derivatives of first order and {} of second.\n",
                            ops.rows().size(), first, second);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(gradients)

BOOST_AUTO_TEST_CASE(what_splits_a_tensor_is_put_together_without_a_zero) {
  const auto ops = make_op_table();
  const auto types_of = [&](std::vector<std::pair<std::int64_t, std::int64_t>> ranges) {
    graph g(ops);
    auto w = variable(g, {dtype::f32, {4, 6}}, {}, "w");
    value loss;
    for (const auto& [begin, end] : ranges) {
      auto part = reduce_sum(exp(slice(w, {{}, {begin, end}})));
      loss = loss.is_valid() ? loss + part : part;
    }
    const auto made = troupe::gradients(g, loss, std::vector{w});
    BOOST_REQUIRE_MESSAGE(!g.first_error(), (g.first_error() ? g.first_error()->text() : ""));
    const auto needed = g.needed_by(made);
    std::map<std::string, int> types;
    for (const auto& n : g.nodes())
      if (needed[n.index] && (n.type == "concat" || n.type == "put_slice" || n.type == "add"))
        ++types[n.type];
    std::string text;
    for (const auto& [type, n] : types) text += fmt::format("{} {} ", n, type);
    return text;
  };
  BOOST_TEST(types_of({{0, 2}, {2, 4}, {4, 6}}) == "1 concat ");
  BOOST_TEST(types_of({{4, 6}, {2, 4}, {0, 2}}) == "1 concat ");
  BOOST_TEST(types_of({{1, 2}, {2, 5}}) == "1 concat 1 put_slice ");  // not the whole of it
  BOOST_TEST(types_of({{0, 3}, {2, 6}}) == "1 add 2 put_slice ");     // they overlap
  BOOST_TEST(types_of({{0, 6}, {0, 6}}) == "1 add 2 put_slice ");
}

namespace {

// What gradients add to a graph: "type on device" of each op that is needed for them and not for
// the loss, sorted, each once.
std::string placed_gradients(graph& g, value loss, std::span<const value> of) {
  const auto made = troupe::gradients(g, loss, of);
  BOOST_REQUIRE_MESSAGE(!g.first_error(), (g.first_error() ? g.first_error()->text() : ""));
  const auto forward = g.needed_by(std::span(&loss, 1)), needed = g.needed_by(made);
  std::set<std::string> all;
  for (const auto& n : g.nodes())
    if (needed[n.index] && !forward[n.index])
      all.insert(fmt::format("{} on {}; ", n.type, n.device.empty() ? "the host" : n.device));
  std::string text;
  for (const auto& one : all) text += one;
  return text;
}

}  // namespace

BOOST_AUTO_TEST_CASE(towers_have_their_backward_pass_on_their_own_devices) {
  const auto ops = make_op_table();
  const auto towers = [&](const std::string& device_of_w, std::array<const char*, 2> devices) {
    graph g(ops);
    const auto w = on_device(g, device_of_w, source_location::current(),
                             [&] { return variable(g, {dtype::f32, {4, 4}}, {}, "w"); });
    value loss;
    for (const auto* device : devices) {
      const auto x = input(g, {dtype::f32, {2, 4}}, "x");
      const auto on = g.device_scope(device);
      const auto part = reduce_sum(exp(matmul(x, w)));
      loss = loss.is_valid() ? loss + part : part;
    }
    auto text = placed_gradients(g, loss, std::array{w});
    const auto at = text.find("add on ");
    BOOST_REQUIRE(at != std::string::npos);
    const auto sum = text.substr(at, text.find(';', at) - at);
    text.erase(at, sum.size() + 2);
    BOOST_TEST(text.find("host") == std::string::npos, text);
    for (const auto* device : devices)
      BOOST_TEST(text.find(fmt::format("matmul on {};", device)) != std::string::npos, text);
    return sum;
  };
  BOOST_TEST(towers("", {"/gpu:0", "/gpu:1"}) == "add on the host");  // where the variable is
  BOOST_TEST(towers("/gpu:1", {"/gpu:0", "/gpu:1"}) == "add on /gpu:1");
  BOOST_TEST(towers("/gpu:2", {"/gpu:0", "/gpu:1"}) == "add on /gpu:2");
  BOOST_TEST(towers("", {"/gpu:1", "/gpu:1"}) == "add on /gpu:1");
  BOOST_TEST(towers("/gpu:0", {"/gpu:1", "/gpu:1"}) == "add on /gpu:1");
  // Its shard is there, not what a worker makes of it.
  BOOST_TEST(towers("/job:ps/task:0/gpu:0", {"/gpu:0", "/gpu:1"}) == "add on the host");
}

BOOST_AUTO_TEST_CASE(a_sum_of_gradients_from_several_devices_stands_where_the_value_does) {
  const auto ops = make_op_table();
  graph g(ops);
  const auto w = variable(g, {dtype::f32, {4}}, {}, "w");
  const auto on = [&](const char* device, const auto& make) {
    const auto scope = g.device_scope(device);
    return make();
  };
  const auto x = on("/gpu:2", [&] { return exp(w); });
  const auto a = on("/gpu:0", [&] { return reduce_sum(sin(x)); }),
             b = on("/gpu:1", [&] { return reduce_sum(cos(x)); }),
             c = on("/gpu:1", [&] { return reduce_sum(sqrt(x)); });
  const auto loss = on("/gpu:2", [&] { return a + b + c; });
  const auto text = placed_gradients(g, loss, std::array{w});
  BOOST_TEST(text.find("host") == std::string::npos, text);
  // The two from /gpu:1 there, and that with the one from /gpu:0 beside x.
  BOOST_TEST(text.find("add on /gpu:1; add on /gpu:2; ") != std::string::npos, text);
  BOOST_TEST(text.find("add on /gpu:0") == std::string::npos, text);
}

BOOST_AUTO_TEST_CASE(slices_are_joined_and_halves_added_up_on_their_device) {
  const auto ops = make_op_table();
  graph g(ops);
  const auto w = variable(g, {dtype::f32, {4, 6}}, {}, "w"),
             u = variable(g, {dtype::f32, {4, 6}}, {}, "u");
  value loss;
  {
    const auto on = g.device_scope("/gpu:1");
    loss = reduce_sum(exp(slice(w, {{}, {0, 3}}))) + reduce_sum(exp(slice(w, {{}, {3, 6}})));
    const auto h = cast(exp(u), dtype::bf16);
    loss = loss + reduce_sum(cast(matmul(h, transpose(h, {1, 0})), dtype::f32));
  }
  const auto text = placed_gradients(g, loss, std::array{w, u});
  BOOST_TEST(text.find("concat on /gpu:1; ") != std::string::npos, text);
  BOOST_TEST(text.find("host") == std::string::npos, text);
}

// What is done to a variable's gradient before it is pushed.
BOOST_AUTO_TEST_CASE(scales_and_clips_of_a_gradient_stand_beside_it) {
  const auto ops = make_op_table();
  graph g(ops);
  value loss;
  for (const auto* device : {"/gpu:0", "/gpu:1"}) {
    const auto w = variable(g, {dtype::f32, {4, 4}}, {}, fmt::format("w{}", device[5]));
    const auto on = g.device_scope(device);
    const auto part = reduce_sum(exp(matmul(w, w)));
    loss = loss.is_valid() ? loss + part : part;
  }
  const auto before = g.nodes().size();
  training_spec s;
  s.clip_global_norm = 1;
  const auto p = compile_training(g, loss, s, {.loss_scale = dynamic_loss_scale(512, 7)});
  BOOST_REQUIRE_MESSAGE(p, (p ? std::string() : p.error().text()));
  std::set<std::string> clipped;
  for (std::size_t i = before; i < g.nodes().size(); ++i) {
    const auto& n = g.node(static_cast<std::uint32_t>(i));
    if (n.outputs[0].shape.rank() != 2) continue;
    BOOST_TEST(!n.device.empty(), n.name);
    if (n.type == "mul" && n.name.find('/') == std::string::npos) clipped.insert(n.device);
  }
  BOOST_TEST(clipped == (std::set<std::string>{"/gpu:0", "/gpu:1"}),
             boost::test_tools::per_element());
}

// There, and so does a sum of gradients: hard placement has nothing to say against it.
BOOST_AUTO_TEST_CASE(gradients_in_loops_and_branches_stand_on_the_host) {
  const auto ops = make_op_table();
  graph g(ops);
  value w;
  {
    const auto on = g.device_scope("/gpu:0");
    w = variable(g, {dtype::f32, {4}}, {}, "w");
  }
  const auto x = input(g, {dtype::f32, {4}}, "x");
  const auto looped = while_loop(
      {x}, [&](std::span<const value> v) { return less(reduce_sum(v[0]), constant(g, 3.0F)); },
      [&](std::span<const value> v) { return std::vector{v[0] * w + w}; }, {.iterations_max = 4});
  const auto chosen =
      cond(less(reduce_sum(x), constant(g, 0.0F)), [&] { return w * w; }, [&] { return w + x; });
  const auto p = compile_training(g, reduce_sum(looped[0] + chosen), {}, {.soft_placement = false});
  BOOST_REQUIRE_MESSAGE(p, (p ? std::string() : p.error().text()));
}

// What computes in f16 and bf16 gives the gradients of the same numbers in f64, but for roundings
// of operands, results and gradients. Differences would see nothing but those.
BOOST_AUTO_TEST_CASE(gradients_of_halves_are_those_of_f64_but_for_their_rounding) {
  const auto ops = make_op_table();
  const auto kernels = make_host_kernels();
  host_device device;
  for (const auto* type : {"matmul", "conv2d", "conv2d_input_grad", "conv2d_weights_grad",
                           "attention", "attention_grad"})
    for (const auto half : {dtype::f16, dtype::bf16}) {
      std::size_t compared = 0;
      drawer d(11);
      for (std::uint64_t i = 0; i < cases_each; ++i) {
        const auto c = draw(d, type, *ops.find(type), half);
        if (!c) continue;
        std::string specs;
        for (const auto& a : c->operands) specs += " " + to_string(a.spec);
        const auto at = [&](dtype t, int order) {
          eager e(ops, kernels, device);
          drawer weights(i);
          std::vector<value> x, in;
          for (auto a : c->operands) {
            a.spec.type = dtype::f64;
            x.push_back(e.value_of(to_tensor(a)));
            in.push_back(t == dtype::f64 ? x.back() : cast(x.back(), t));
          }
          const auto weighed = [&](std::span<const value> all) {
            value sum;
            for (const auto& v : all) {
              if (!v.is_valid()) continue;
              auto w = e.value_of(
                  to_tensor(weights.values(dtype::f64, sizes_of(v.spec().shape), 0.5, 1.5)));
              const auto part = reduce_sum(mul(cast(v, dtype::f64), w));
              sum = sum.is_valid() ? add(sum, part) : part;
            }
            return sum;
          };
          const auto y = e.add(type, in, c->attrs, "op", source_location::current());
          std::vector<value> results;
          for (std::uint32_t k = 0; y.is_valid() && k < e.node(y.node).outputs.size(); ++k)
            results.push_back({&e, y.node, k});
          auto sum = weighed(results);
          std::vector<value> made;
          for (int n = 0; n <= order && sum.is_valid(); ++n) {
            made = troupe::gradients(e, sum, x);
            if (n < order) sum = weighed(made);
          }
          std::vector<tensor> out;
          for (const auto& m : made) out.push_back(m.is_valid() ? *e.read(m) : tensor());
          const auto error = e.take_error();
          BOOST_TEST_REQUIRE(!error, type << specs << ": " << (error ? error->text() : ""));
          return out;
        };
        for (const int order : {0, 1}) {
          const auto exact = at(dtype::f64, order), got = at(half, order);
          for (std::size_t k = 0; k < exact.size(); ++k) {
            if (!exact[k] || !got[k]) continue;
            double largest = 0;
            for (std::int64_t n = 0; n < exact[k].elements(); ++n)
              largest = std::max(largest, std::abs(exact[k].data<double>()[n]));
            // Of eight roundings at most between an operand and its gradient, near the largest.
            const double most = 8 * largest * (half == dtype::f16 ? 0x1p-11 : 0x1p-8) +
                                (half == dtype::f16 ? 0x1p-22 : 0);
            for (std::int64_t n = 0; n < exact[k].elements(); ++n) {
              const auto off = std::abs(got[k].data<double>()[n] - exact[k].data<double>()[n]);
              BOOST_TEST_REQUIRE(off <= most, type << specs << ", case " << i << ", order " << order
                                                   << ", operand " << k << ": off by " << off
                                                   << ", at most " << most);
              ++compared;
            }
          }
        }
      }
      BOOST_TEST(compared > repetitions(1000),
                 type << " of " << to_string(half) << ": " << compared);
    }
}

BOOST_AUTO_TEST_CASE(the_table_of_ops_in_the_documentation_is_that_of_the_tests) {
  if (cases_each != cases_of_page) return;
  const std::string path = test::source_folder() + "/runtime/graph/ops/README.md";
  if (std::getenv("TROUPE_WRITE_DOCS") != nullptr) std::ofstream(path) << table();
  std::stringstream written;
  written << std::ifstream(path).rdbuf();
  BOOST_TEST((written.str() == table()),
             path << " is not what the tests find: run this test with TROUPE_WRITE_DOCS=1");
}

BOOST_AUTO_TEST_CASE(gradients_of_every_op_and_their_gradients_agree_with_differences) {
  std::size_t first = 0, second = 0;
  for (const auto& [type, r] : results()) {
    BOOST_TEST_MESSAGE(fmt::format("{:20} {:5} derivatives, {:5} of second order{}", type, r.first,
                                   r.second, r.flows ? "" : ", constant"));
    if (r.flows) BOOST_TEST(r.first > repetitions(20), type << ": " << r.first << " derivatives");
    first += r.first, second += r.second;
  }
  BOOST_TEST_MESSAGE(
      fmt::format("{} derivatives of {} ops, {} of second order", first, results().size(), second));
  BOOST_TEST(results().size() > 70u);
}

BOOST_AUTO_TEST_SUITE_END()
