// Which ops compute in halves, where casts stand, and the arithmetic of the loss scale.

#include "troupe/runtime/compile/compile.hpp"
#include "troupe/runtime/compile/passes/passes.hpp"
#include "troupe/runtime/graph/op_table.hpp"
#include "troupe/runtime/layers/layers.hpp"
#include "troupe/runtime/plan/precision.hpp"
#include "troupe/runtime/shards/shard_update.hpp"

#include <boost/test/unit_test.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

using namespace troupe;

namespace {

struct fixture {
  op_table ops = make_op_table();
  graph g{ops};

  value matrix(const char* name, std::int64_t rows = 4, std::int64_t columns = 4) {
    return input(g, {dtype::f32, {rows, columns}}, name);
  }
  value weights(const char* name, std::int64_t rows = 4, std::int64_t columns = 4) {
    return variable(g, {dtype::f32, {rows, columns}}, uniform(0.1), name);
  }
  troupe::passes::flow flow_of(std::vector<value> roots) {
    BOOST_TEST_REQUIRE(!g.first_error().has_value(),
                       (g.first_error() ? g.first_error()->text() : ""));
    return troupe::passes::prune(g, roots);
  }
  troupe::passes::flow mixed(std::vector<value> roots, dtype half = dtype::bf16) {
    return troupe::passes::mixed_precision(flow_of(std::move(roots)), half);
  }
};

// "x = input f32; x/bf16 = cast(x) bf16; matmul = matmul(x/bf16, x/bf16) bf16; -> matmul"
std::string text_of(const troupe::passes::flow& f) {
  std::string out;
  const auto name = [&](troupe::passes::op_ref r) {
    return f.ops[r.op].name + (r.output == 0 ? "" : fmt::format(":{}", r.output));
  };
  for (const auto& op : f.ops) {
    out += fmt::format("{} = {}", op.name, op.type);
    for (std::size_t i = 0; i < op.inputs.size(); ++i)
      out += (i == 0 ? "(" : ", ") + name(op.inputs[i]);
    out += fmt::format("{} {}; ", op.inputs.empty() ? "" : ")", to_string(op.outputs[0].type));
  }
  out += "->";
  for (const auto& r : f.roots) out += " " + name(r);
  return out;
}

std::size_t count(const troupe::passes::flow& f, std::string_view type) {
  return static_cast<std::size_t>(
      std::count_if(f.ops.begin(), f.ops.end(), [&](const auto& op) { return op.type == type; }));
}

// What the engine will ask of every op: its own shape rule makes what it is said to make of what it
// takes.
void check_specs(const troupe::passes::flow& f, const op_table& ops) {
  std::set<std::string> names;
  for (const auto& op : f.ops) {
    BOOST_TEST(names.insert(op.name).second, op.name << " stands twice");
    std::vector<tensor_spec> in;
    for (const auto& r : op.inputs) {
      BOOST_TEST_REQUIRE(r.op < static_cast<std::uint32_t>(&op - f.ops.data()));  // PS-1
      in.push_back(f.ops[r.op].outputs[r.output]);
    }
    const auto made = ops.find(op.type)->shapes(op.attrs, in, nullptr);
    BOOST_TEST_REQUIRE(bool(made), op.name << ": " << (made ? "" : made.error().text()));
    BOOST_TEST((*made == op.outputs), op.name);
  }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(mixed_precision)

BOOST_AUTO_TEST_CASE(products_take_and_make_halves_and_what_is_around_them_stays_as_it_was) {
  fixture f;
  const auto x = f.matrix("x"), w = f.weights("w"), b = f.weights("b", 1);
  const auto flow = f.mixed({reduce_sum(relu(add(matmul(x, w), b)))});
  BOOST_TEST(
      text_of(flow) ==
      "x = input f32; w = variable f32; b = variable f32; x/bf16 = cast(x) bf16; w/bf16 = cast(w) bf16; matmul = matmul(x/bf16, w/bf16) bf16; "
      "matmul/f32 = cast(matmul) f32; add = add(matmul/f32, b) f32; relu = relu(add) f32; reduce_sum = reduce_sum(relu) f32; -> reduce_sum");
  check_specs(flow, f.ops);
  const auto f16 = f.mixed({matmul(x, w)}, dtype::f16);
  BOOST_TEST(
      text_of(f16) ==
      "x = input f32; w = variable f32; x/f16 = cast(x) f16; w/f16 = cast(w) f16; matmul_1 = matmul(x/f16, w/f16) f16; matmul_1/f32 = cast(matmul_1) f32; -> matmul_1/f32");
}

// MX-1.
BOOST_AUTO_TEST_CASE(MX_1_a_value_is_cast_once_for_all_who_need_it) {
  fixture f;
  const auto x = f.matrix("x"), w = f.weights("w");
  const auto y = matmul(x, w);
  const auto flow = f.mixed({add(exp(y), neg(y)), matmul(matmul(x, w, true), w, false, true)});
  BOOST_TEST(count(flow, "cast") == 4U);  // x, w, y, and the last product, which is asked for
  check_specs(flow, f.ops);
}

// MX-2.
BOOST_AUTO_TEST_CASE(MX_2_what_moves_elements_between_products_moves_halves) {
  fixture f;
  const auto x = f.matrix("x"), w = f.weights("w");
  const auto y = transpose(reshape(matmul(x, w), {2, 2, 4}), {1, 0, 2});
  const auto flow = f.mixed({reduce_sum(matmul(reshape(y, {4, 4}), w))});
  BOOST_TEST(
      text_of(flow) ==
      "x = input f32; w = variable f32; x/bf16 = cast(x) bf16; w/bf16 = cast(w) bf16; matmul = matmul(x/bf16, w/bf16) bf16; reshape = reshape(matmul) bf16; "
      "transpose = transpose(reshape) bf16; reshape_1 = reshape(transpose) bf16; matmul_1 = matmul(reshape_1, w/bf16) bf16; matmul_1/f32 = cast(matmul_1) f32; "
      "reduce_sum = reduce_sum(matmul_1/f32) f32; -> reduce_sum");
  check_specs(flow, f.ops);
  // Of f32, for products alone: cast before it is moved. Where somebody else wants it, behind.
  const auto moved = transpose(w);
  BOOST_TEST(text_of(f.mixed({reduce_sum(matmul(x, moved))}))
                 .find("w/bf16 = cast(w) bf16; transpose_1 = transpose(w/bf16) bf16; ") !=
             std::string::npos);
  BOOST_TEST(text_of(f.mixed({reduce_sum(matmul(x, moved)), exp(moved)}))
                 .find("transpose_1 = transpose(w) f32; ") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(casts_of_the_program_are_not_doubled) {
  fixture f;
  const auto x = f.matrix("x"), w = f.weights("w");
  const auto y = cast(matmul(x, w), dtype::bf16);  // made so anyway
  const auto z = matmul(y, cast(w, dtype::bf16));  // the program's own halves
  const auto flow = f.mixed({z, reduce_sum(cast(z, dtype::f64))});
  check_specs(flow, f.ops);
  const auto text = text_of(flow);
  BOOST_TEST(text.find("matmul_1 = matmul(matmul, cast_1) bf16; cast_2 = cast(matmul_1) f64; ") !=
                 std::string::npos,
             text);
  BOOST_TEST(text.ends_with("-> matmul_1 reduce_sum"), text);
}

BOOST_AUTO_TEST_CASE(other_types_stay_and_so_do_sums_normalisation_softmax_and_losses) {
  fixture f;
  const auto d = input(f.g, {dtype::f64, {3, 3}}, "d");
  const auto labels = input(f.g, {dtype::i32, {4}}, "labels");
  const auto x = f.matrix("x"), w = f.weights("w");
  const auto h = layer_norm(softmax(matmul(x, w)), "norm");
  const auto loss = softmax_cross_entropy(matmul(h, w), labels, constant(f.g, 0.25F));
  const auto flow = f.mixed({matmul(d, d), loss, reduce_sum(h)});
  check_specs(flow, f.ops);
  for (const auto& op : flow.ops)
    for (const auto& s : op.outputs)
      if (s.type == dtype::bf16) BOOST_TEST((op.type == "cast" || op.type == "matmul"), op.name);
  BOOST_TEST(count(flow, "matmul") == 3U);
}

BOOST_AUTO_TEST_CASE(gradients_are_treated_as_what_they_are_of) {
  fixture f;
  const auto x = input(f.g, {dtype::f32, batch_of(8, {3, 12, 12})}, "x"),
             w = variable(f.g, {dtype::f32, {4, 3, 3, 3}}, {}, "w");
  const auto qkv = f.weights("qkv", 1, 24);
  const auto y = relu(conv2d(x, w));
  const auto text =
      attention(add(input(f.g, {dtype::f32, {2, 5, 24}}, "tokens"), qkv), {.heads = 2});
  const auto loss = add(reduce_sum(y), reduce_sum(square(text)));
  const auto all = std::vector{w, qkv};
  auto roots = gradients(f.g, loss, all);
  roots.insert(roots.begin(), loss);
  const auto flow = f.mixed(roots, dtype::f16);
  check_specs(flow, f.ops);
  for (const auto& op : flow.ops)
    if (op.type.starts_with("conv2d") || op.type.starts_with("attention"))
      BOOST_TEST((op.outputs[0].type == dtype::f16), op.name);
  for (const auto& r : flow.roots)
    BOOST_TEST((flow.ops[r.op].outputs[r.output].type == dtype::f32));
}

BOOST_AUTO_TEST_CASE(
    each_device_casts_the_variables_that_it_reads_and_what_is_made_is_cast_where_it_is_made) {
  fixture f;
  const auto w = f.weights("w");
  std::vector<value> roots;
  for (const auto* device : {"/cpu:0", "/cpu:1"}) {
    const auto on = f.g.device_scope(device);
    const auto y = matmul(w, w);
    roots.push_back(matmul(exp(y), w));
  }
  const auto flow = f.mixed(roots);
  check_specs(flow, f.ops);
  std::map<std::string, std::size_t> of_w;
  for (const auto& op : flow.ops)
    if (op.type == "cast" && flow.ops[op.inputs[0].op].name == "w") ++of_w[op.device];
  BOOST_TEST(of_w.size() == 2U);
  for (const auto& [device, n] : of_w) BOOST_TEST(n == 1U, device);
  for (const auto& op : flow.ops)
    if (op.type == "cast" && flow.ops[op.inputs[0].op].type == "exp")
      BOOST_TEST(op.device == flow.ops[op.inputs[0].op].device);
}

// A variable that a loop reads is cast outside of it; what the loop makes, in it.
BOOST_AUTO_TEST_CASE(casts_lie_in_the_branch_or_loop_of_what_they_cast) {
  fixture f;
  auto x = f.matrix("x"), w = f.weights("w");
  auto n = input(f.g, {dtype::i32, {}}, "n");
  auto one = constant(f.g, 1, dtype::i32);
  const auto looped = while_loop(
      {n, x}, [&](auto v) { return greater(v[0], constant(f.g, 0, dtype::i32)); },
      [&](auto v) { return std::vector<value>{sub(v[0], one), tanh(matmul(v[1], w))}; },
      {.iterations_max = 9})[1];
  const auto chosen =
      cond(greater(n, one), [&] { return matmul(looped, w); }, [&] { return exp(looped); });
  const auto loss = reduce_sum(chosen);
  auto roots = gradients(f.g, loss, std::vector{w});
  roots.insert(roots.begin(), loss);
  for (const auto& wanted : {std::vector{loss}, roots}) {
    const auto flow = f.mixed(wanted);
    std::size_t of_w = 0, in_loops = 0;
    for (const auto& op : flow.ops) {
      if (op.type != "cast") continue;
      const auto& of = flow.ops[op.inputs[0].op];
      if (of.name == "w") {
        ++of_w;
        BOOST_TEST(op.loop_level == 0);
        BOOST_TEST(op.region == 0U);
      }
      if (of.output_places.empty())
        BOOST_TEST((op.loop_level == of.loop_level && op.region == of.region), op.name);
      in_loops += op.loop_level > 0 ? 1 : 0;
    }
    BOOST_TEST(of_w == 1U);
    BOOST_TEST(in_loops >= 2U);
    const auto p = compile_steps(f.g, wanted, {.precision = precision_kind::bf16});
    BOOST_TEST(bool(p), (p ? "" : p.error().text()));
  }
}

BOOST_AUTO_TEST_CASE(the_report_says_what_computes_in_halves) {
  fixture f;
  const auto x = f.matrix("x"), w = f.weights("w");
  compile_report report;
  const auto p =
      compile_steps(f.g, std::vector{reduce_sum(matmul(reshape(matmul(x, w), {4, 4}), w))},
                    {.precision = precision_kind::f16, .report = &report});
  BOOST_REQUIRE(p);
  const auto at = std::find_if(report.passes.begin(), report.passes.end(),
                               [](const auto& r) { return r.pass == "mixed_precision"; });
  BOOST_REQUIRE(at != report.passes.end());
  std::string all;
  for (const auto& c : at->changes) all += c.text() + "\n";
  for (const auto* says : {"'matmul' computes in f16", "'w' is cast to f16 once a step",
                           "'reshape' moves f16", "mixed_precision_test.cpp"})
    BOOST_TEST(all.find(says) != std::string::npos, all);
  BOOST_TEST((std::find_if(report.passes.begin(), report.passes.end(),
                           [](const auto& r) { return r.pass == "simplify"; }) < at));
  const auto plain = compile_steps(f.g, std::vector{reduce_sum(matmul(x, w))}, {});
  const auto none =
      compile_steps(f.g, std::vector{reduce_sum(matmul(x, w))}, {.precision = precision_kind::f32});
  BOOST_REQUIRE(plain && none);
  for (const auto& s : plain->actors)
    for (const auto& op : s.ops) BOOST_TEST(op.type != "cast");
}

// --- the scale of the loss

// LSC-3.
BOOST_AUTO_TEST_CASE(LSC_3_a_scale_is_halved_down_to_1_and_doubled_after_good_steps_in_a_row) {
  float s[2] = {65'536, 0};
  const auto step = [&](bool is_good) {
    update_loss_scale(s, is_good, 3);
    return std::pair(s[0], s[1]);
  };
  BOOST_TEST((step(true) == std::pair(65'536.0F, 1.0F)));
  BOOST_TEST((step(true) == std::pair(65'536.0F, 2.0F)));
  BOOST_TEST((step(false) == std::pair(32'768.0F, 0.0F)));
  for (int i = 0; i < 2; ++i) (void)step(true);
  BOOST_TEST((step(true) == std::pair(65'536.0F, 0.0F)));
  for (int i = 0; i < 40; ++i) (void)step(false);
  BOOST_TEST(s[0] == 1.0F);
  for (int i = 0; i < 3 * 200; ++i) (void)step(true);
  BOOST_TEST(s[0] == 0x1p127F);
  float odd[2] = {1.5F, 0};
  update_loss_scale(odd, false, 1);
  BOOST_TEST(odd[0] == 1.0F);
}

// UP-2 of a scale: a sum gives the bits of all.
BOOST_AUTO_TEST_CASE(a_scale_falls_where_one_worker_is_not_finite) {
  shard_spec s;
  s.spec = {dtype::f32, {2}};
  s.loss_scale = loss_scale_update{2, 3};
  s.steps = {9, 9, 9};
  const float good[] = {1, 1}, bad[] = {0, 0}, three[] = {3, 3}, two[] = {2, 2};
  const auto after = [&](std::vector<const float*> samples) {
    float in[] = {8, 1}, out[] = {0, 0}, slot_in[] = {5, 6}, slot_out[] = {0, 0};
    const stepped slot{slot_in, slot_out};
    apply_to_shard(s, {}, {in, out}, {&slot, 1}, samples, 2);
    BOOST_TEST(slot_out[0] == 5);
    return std::pair(out[0], out[1]);
  };
  BOOST_TEST((after({good, good, good}) == std::pair(16.0F, 0.0F)));
  BOOST_TEST((after({three}) == std::pair(16.0F, 0.0F)));
  BOOST_TEST((after({good, bad, good}) == std::pair(4.0F, 0.0F)));
  BOOST_TEST((after({two}) == std::pair(4.0F, 0.0F)));
}

BOOST_AUTO_TEST_CASE(what_is_no_scale_is_refused) {
  for (const auto* text :
       {"", "Dynamic", "0", "-1", "inf", "nan", "1e39", "1e-39", "1024x", "0x10", " 8"}) {
    const auto s = parse_loss_scale(text);
    BOOST_TEST(!s, text);
    if (!s) BOOST_TEST(s.error().text().find("loss scale") != std::string::npos, s.error().text());
  }
  BOOST_TEST((*parse_loss_scale("dynamic") == dynamic_loss_scale()));
  BOOST_TEST((*parse_loss_scale("1024") == fixed_loss_scale(1024)));
  BOOST_TEST((*parse_loss_scale("0.5") == fixed_loss_scale(0.5)));
  BOOST_TEST(!check(dynamic_loss_scale(0.5)));
  BOOST_TEST(!check(dynamic_loss_scale(8, 0)));
  BOOST_TEST(!check(dynamic_loss_scale(8, growth_steps_max + 1)));
  BOOST_TEST(bool(check(dynamic_loss_scale(8, growth_steps_max))));
  for (const auto p : {precision_kind::f32, precision_kind::bf16, precision_kind::f16})
    BOOST_TEST((precision_named(to_string(p)) == p));
  BOOST_TEST(!precision_named("fp16"));
}

training_spec of_workers(std::uint32_t n) {
  training_spec s;
  s.workers = n;
  s.steps = 5;
  return s;
}

// A program of a small product, as it is compiled.
result<training_program> compiled(const compile_options& o, std::uint32_t workers = 1,
                                  std::uint64_t grows_every = 0, double clip = 0) {
  op_table ops = make_op_table();
  graph g(ops);
  const auto x = input(g, {dtype::f32, {4, 3}}, "x"),
             w = variable(g, {dtype::f32, {3, 2}}, uniform(0.1), "w");
  auto options = o;
  if (grows_every != 0) options.loss_scale = dynamic_loss_scale(65'536, grows_every);
  auto spec = of_workers(workers);
  spec.clip_global_norm = clip;
  return compile_program(g, reduce_sum(square(matmul(x, w))), spec, options);
}

BOOST_AUTO_TEST_CASE(a_dynamic_scale_is_a_variable_of_the_training) {
  const auto p = compiled({.precision = precision_kind::f16}, 3);
  BOOST_TEST_REQUIRE(bool(p), (p ? "" : p.error().text()));
  const auto variables = p->variables();
  BOOST_TEST_REQUIRE(variables.size() == 2U);
  BOOST_TEST(variables[0].first == "loss_scale");
  const auto places = p->place({.task_names = {"/job:client/task:0"},
                                .roles = {{"/job:client/task:0", 0}},
                                .worker_task = {0, 0, 0},
                                .shard_task = {0},
                                .client_task = 0},
                               {});
  BOOST_TEST_REQUIRE(bool(places), (places ? "" : places.error().text()));
  BOOST_TEST((*decode_plan(encode(*places)) == *places));
  for (const auto& a : places->actors) {
    if (a.kind != actor_kind::shard) continue;
    BOOST_TEST(a.shard.leaves_out_marked);
    BOOST_TEST((a.shard.loss_scale == (a.shard.variable == "loss_scale"
                                           ? std::optional(loss_scale_update{2'000, 3})
                                           : std::nullopt)));
  }
  for (const auto& wrong : {loss_scale_update{0, 3}, loss_scale_update{growth_steps_max + 1, 3},
                            loss_scale_update{5, 0}}) {
    auto bad = *places;
    for (auto& a : bad.actors)
      if (a.shard.loss_scale) a.shard.loss_scale = wrong;
    const auto ok = check(bad);
    BOOST_TEST_REQUIRE(!ok);
    BOOST_TEST(ok.error().text().find("a loss scale of type") != std::string::npos,
               ok.error().text());
  }
  BOOST_TEST(compiled({.precision = precision_kind::bf16})->variables().size() == 1U);
  BOOST_TEST(compiled({.precision = precision_kind::f16, .loss_scale = fixed_loss_scale(1024)})
                 ->variables()
                 .size() == 1U);
  BOOST_TEST(compiled({.loss_scale = dynamic_loss_scale()})->variables().size() == 2U);
}

// A graph that is compiled again, for a run that goes on, has the same variables.
BOOST_AUTO_TEST_CASE(a_graph_has_one_scale_however_often_it_is_compiled) {
  op_table ops = make_op_table();
  graph g(ops);
  const auto x = input(g, {dtype::f32, {4, 3}}, "x"),
             w = variable(g, {dtype::f32, {3, 2}}, uniform(0.1), "w");
  const auto loss = reduce_sum(square(matmul(x, w)));
  for (int i = 0; i < 3; ++i) {
    const auto p = compile_program(g, loss, of_workers(1), {.precision = precision_kind::f16});
    BOOST_TEST_REQUIRE(bool(p), (p ? "" : p.error().text()));
    BOOST_TEST_REQUIRE(p->variables().size() == 2U);
    BOOST_TEST(p->variables()[0].first == "loss_scale");
  }
}

BOOST_AUTO_TEST_CASE(what_counts_is_part_of_the_fingerprint_and_the_schedule) {
  const auto value_of = [](const training_program& p, std::string_view key) {
    for (const auto& [k, v] : p.schedule())
      if (k == key) return v;
    return std::string("none");
  };
  const auto plain = compiled({}), half = compiled({.precision = precision_kind::bf16}),
             scaled = compiled({.precision = precision_kind::f16}),
             often = compiled({.precision = precision_kind::f16}, 1, 7);
  BOOST_REQUIRE(plain && half && scaled && often);
  BOOST_TEST(value_of(*plain, "precision") == "none");
  BOOST_TEST(value_of(*plain, "loss_scale") == "none");
  BOOST_TEST(value_of(*half, "precision") == "bf16");
  BOOST_TEST(value_of(*scaled, "loss_scale") == "dynamic from 65536, every 2000 steps");
  const std::set prints{plain->fingerprint(), half->fingerprint(), scaled->fingerprint(),
                        often->fingerprint()};
  BOOST_TEST(prints.size() == 4U);
}

BOOST_AUTO_TEST_CASE(what_cannot_go_with_a_scale_is_refused_and_says_what_can) {
  const auto refusal = [](const compile_options& o) {
    const auto p = compiled(o);
    return p ? std::string("none") : p.error().text();
  };
  BOOST_TEST(refusal({.on_nan = nan_policy::stop, .precision = precision_kind::f16})
                 .find("use 'ignore', 'warn' or 'skip'") != std::string::npos);
  BOOST_TEST(refusal({.on_nan = nan_policy::stop, .precision = precision_kind::bf16}) == "none");
  BOOST_TEST(refusal({.loss_scale = fixed_loss_scale(0)}).find("loss scale 0") !=
             std::string::npos);
  BOOST_TEST(refusal({.precision = precision_kind{9}}).find("no precision 9") != std::string::npos);
  const auto clipped = compiled({.precision = precision_kind::f16}, 2, 0, 1.0);
  BOOST_TEST(bool(clipped), (clipped ? "" : clipped.error().text()));
}

BOOST_AUTO_TEST_SUITE_END()
