#include "troupe/runtime/compile/explain.hpp"

#include "tests/support/graph_files.hpp"
#include "tests/support/source_folder.hpp"
#include "troupe/runtime/analysis/memory_budget.hpp"
#include "troupe/runtime/compile/graph_file.hpp"

#include <boost/test/unit_test.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

using namespace troupe;

namespace {

const auto ops = make_op_table();

std::string error_of(const auto& r) { return r ? "no error" : r.error().text(); }

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

task_map three_nodes() {
  task_map where;
  where.task_names = {"/job:worker/task:0", "/job:worker/task:1", "/job:ps/task:0",
                      "/job:client/task:0"};
  for (std::uint32_t t = 0; t < 4; ++t) where.roles.emplace_back(where.task_names[t], t);
  where.worker_task = {0, 1};
  where.shard_task = {2, 1};
  where.client_task = 3;
  return where;
}

training_spec spread() {
  training_spec s;
  s.workers = 2;
  s.shards = 2;
  s.steps = 10;
  return s;
}

explained_plan planned(graph& g, value loss, const training_spec& spec = {},
                       const task_map* where = nullptr, compile_options options = {}) {
  auto e = plan_training(g, loss, spec, options, where);
  BOOST_TEST_REQUIRE(bool(e), error_of(e));
  return std::move(*e);
}

explained_plan planned_steps(graph& g, value fetch, compile_options options = {}) {
  auto e = plan_steps(g, {&fetch, 1}, options);
  BOOST_TEST_REQUIRE(bool(e), error_of(e));
  return std::move(*e);
}

const pass_report& pass(const explained_plan& e, std::string_view name) {
  const auto at = std::ranges::find(e.report.passes, name, &pass_report::pass);
  BOOST_TEST_REQUIRE((at != e.report.passes.end()), "there is no pass " << name);
  return *at;
}

std::string changes(const explained_plan& e, std::string_view name) {
  std::string out;
  for (const auto& c : pass(e, name).changes) out += c.text() + "\n";
  return out;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(explain_plan)

BOOST_AUTO_TEST_CASE(RP_3_EX_2_the_plan_is_that_of_a_job_with_and_without_a_report) {
  for (const bool fuse : {true, false}) {
    graph g(ops);
    const auto loss = test::loss_of(g);
    auto where = three_nodes();
    auto spec = spread();
    spec.is_recoverable = true;
    const auto e = planned(g, loss, spec, &where, {.fuse = fuse});
    spec.tasks = 4;
    spec.task_names = where.task_names, spec.worker_task = where.worker_task,
    spec.shard_task = where.shard_task, spec.client_task = where.client_task;
    const auto p = compile_training(g, loss, spec, {.fuse = fuse});
    BOOST_TEST_REQUIRE(bool(p), error_of(p));
    BOOST_TEST((*p == e.plan));

    graph h(ops);
    const auto again = test::loss_of(h);
    const auto steps = compile_steps(h, {&again, 1}, {.fuse = fuse});
    BOOST_TEST_REQUIRE(bool(steps), error_of(steps));
    BOOST_TEST((*steps == planned_steps(h, again, {.fuse = fuse}).plan));
  }
}

// The head of compile.hpp is what people read; the report is what ran.
BOOST_AUTO_TEST_CASE(passes_run_in_the_order_that_compile_hpp_tells) {
  std::ifstream in(test::source_folder() + "/runtime/compile/compile.hpp");
  std::vector<std::string> told;
  for (std::string line; std::getline(in, line) && line.find("#include") != 0;)
    if (line.starts_with("//   ")) {
      std::istringstream words(line.substr(5));
      for (std::string w; words >> w;)
        if (w != "->" && w != "|") told.push_back(w);
    }
  graph g(ops);
  const auto loss = test::loss_of(g);
  auto spec = spread();
  spec.update = update_kind::sync;
  const auto e = planned(g, loss, spec, nullptr, {.fast = true, .precision = precision_kind::bf16});
  graph h(ops);
  const auto fetched = test::loss_of(h);
  const auto steps = planned_steps(h, fetched);
  for (const auto* report : {&e.report, &steps.report}) {
    BOOST_TEST(report->passes.size() > 10U);
    auto at = told.begin();
    for (const auto& p : report->passes) {
      at = std::find(at, told.end(), p.pass);
      BOOST_TEST_REQUIRE((at != told.end()),
                         p.pass << " is not in the head of compile.hpp, or earlier there");
    }
  }
}

BOOST_AUTO_TEST_CASE(EX_1_a_graph_stays_as_it_was) {
  graph g(ops);
  const auto loss = test::loss_of(g);
  const auto before = encode_graph(g, {.loss = loss});
  const auto first = explain(g, loss), second = explain(g, loss);
  BOOST_TEST_REQUIRE(bool(first), error_of(first));
  BOOST_TEST(*first == *second);
  BOOST_TEST((*encode_graph(g, {.loss = loss}) == *before));
  // Also where there is an error: x has no gradient with respect to any variable.
  const auto x = input(g, {dtype::f32, {}}, "x");
  const auto wrong = explain(g, x);
  BOOST_TEST(has(error_of(wrong), "explain_plan_test.cpp"));
  BOOST_TEST(!g.first_error().has_value());
}

BOOST_AUTO_TEST_CASE(RP_1_what_one_pass_leaves_is_what_the_next_one_begins_with) {
  graph g(ops);
  const auto where = three_nodes();
  const auto e = planned(g, test::loss_of(g), spread(), &where);
  for (std::size_t i = 1; i < e.report.passes.size(); ++i)
    BOOST_TEST(e.report.passes[i].before == e.report.passes[i - 1].after, e.report.passes[i].pass);
  BOOST_TEST(e.report.passes.front().pass == "gradients");
  BOOST_TEST(e.report.passes.front().before == g.nodes().size());
  BOOST_TEST(e.report.passes.back().after == e.plan.actors.size());
  std::string names;
  for (const auto& p : e.report.passes) names += p.pass + (p.counts_actors ? "! " : " ");
  BOOST_TEST(
      names ==
      "gradients prune fold simplify share pack_pushes replicate! fuse! place! begin! order_reads! partition! credits! share_memory! ");
  graph h(ops);
  names.clear();
  for (const auto& p : planned_steps(h, test::loss_of(h)).report.passes)
    names += p.pass + (p.counts_actors ? "! " : " ");
  BOOST_TEST(
      names ==
      "prune fold simplify share lower! fuse! place! begin! order_reads! partition! credits! share_memory! ");
}

BOOST_AUTO_TEST_CASE(passes_tell_what_they_changed_and_why_with_the_users_line) {
  graph g(ops);
  const auto x = input(g, {dtype::f32, {4}}, "x");
  const auto nobody = exp(x);
  const auto folded = x * (constant(g, 2.0F) + constant(g, 3.0F));
  const auto simplified = folded * constant(g, 1.0F, "one");
  const auto shared = sqrt(abs(simplified)) + sqrt(abs(simplified));
  const auto e = planned_steps(g, reduce_sum(shared) - reduce_max(shared));
  BOOST_TEST(nobody.is_valid());
  BOOST_TEST(
      has(changes(e, "prune"), "'exp' is left out: nothing that is asked for depends on it ("));
  BOOST_TEST(has(changes(e, "prune"), "explain_plan_test.cpp:"));
  BOOST_TEST(has(changes(e, "fold"), "'add' is a constant, f32[]: add of constants, computed now"));
  BOOST_TEST(has(changes(e, "simplify"), "'mul_1' is multiplied by 1: 'mul' is used instead"));
  BOOST_TEST(
      has(changes(e, "share"), "'abs_1' computes the same abs as 'abs', which is used for both"));
  BOOST_TEST(has(changes(e, "share"), "'sqrt_1' computes the same sqrt as 'sqrt'"));
  BOOST_TEST(
      has(changes(e, "fuse"),
          "'mul' is fused with abs, sqrt into one actor: they work element by element, and no other op reads the values in between ("),
      changes(e, "fuse"));
  BOOST_TEST(has(changes(planned_steps(g, neg(neg(x))), "simplify"),
                 "is the negative of a negative: 'x' is used instead"));
  BOOST_TEST(
      has(changes(planned_steps(g, x + constant(g, 0.0F)), "simplify"), "has 0 added to it"));
  BOOST_TEST(has(changes(planned_steps(g, x - constant(g, 0.0F)), "simplify"),
                 "has 0 subtracted from it"));
}

BOOST_AUTO_TEST_CASE(a_training_tells_of_variables_rows_gates_places_crossings_and_single_credits) {
  graph g(ops);
  const auto batch = text_batch(g, {.path = "a text", .bytes = 10'000}, {.batch = 2, .context = 8});
  const auto unused = variable(g, {dtype::f32, {3}}, zeros(), "unused");
  const auto logits = [&] {
    const auto device = g.device_scope("/job:worker/task:0");
    return dense(embedding(batch.tokens, 4096, 16, "table"), 256, "logits");
  }();
  const auto loss = reduce_sum(cross_entropy(logits, batch.targets)) * batch.scale;
  const auto where = three_nodes();
  auto spec = spread();
  spec.is_recoverable = true;
  // Variables of the scope would have to be on the workers' node, where no shard is.
  auto there = where;
  there.shard_task = {0, 1};
  const auto e = planned(g, loss, spec, &there);
  BOOST_TEST(unused.is_valid());
  BOOST_TEST(has(changes(e, "gradients"),
                 "'unused' is not trained: no gradient flows from the loss to it"));
  BOOST_TEST(has(changes(e, "gradients"), "is trained: its gradient is 'gradients/"));
  BOOST_TEST(
      has(changes(e, "pack_pushes"), "' is pushed by the rows that a step has read: at most "),
      changes(e, "pack_pushes"));
  BOOST_TEST(has(changes(e, "replicate"), "is held by shard 0"));
  BOOST_TEST(
      has(changes(e, "replicate"), "/after' is put in, for each worker: the gradient waits for"));
  BOOST_TEST(has(changes(e, "place"), "is on /job:worker/task:0, stream "));
  BOOST_TEST(has(changes(e, "place"), "as its device '/job:worker/task:0' asks"));
  BOOST_TEST(has(changes(e, "partition"), "and its receive are put in: "));
  BOOST_TEST(has(changes(e, "credits"),
                 "has one credit, not 2: an item is received before the next one is made"));

  // Worker 1 has its part of the scope on the node of worker 0.
  const auto text = explain(e);
  BOOST_TEST(has(text, "its device '/job:worker/task:0' is there, and not with worker 1"), text);
  BOOST_TEST(has(text, "with worker 0, where its device '/job:worker/task:0' may be"));
  BOOST_TEST(has(text, "with worker 1"));
  BOOST_TEST(has(text, "with the program"));
  BOOST_TEST(has(text, "with its producer"));
  BOOST_TEST(has(text, "with its reader '"));
}

BOOST_AUTO_TEST_CASE(RP_2_changes_beyond_the_limit_are_counted) {
  graph g(ops);
  const auto x = input(g, {dtype::f32, {4}}, "x");
  for (std::size_t i = 0; i < pass_report::changes_max + 7; ++i) exp(x);
  const auto e = planned_steps(g, abs(x));
  BOOST_TEST(pass(e, "prune").changes.size() == pass_report::changes_max);
  BOOST_TEST(pass(e, "prune").more == 7U);
  BOOST_TEST(pass(e, "prune").changes.front().op == "exp");
  BOOST_TEST(has(explain(e), fmt::format("... and {} more", pass_report::changes_max + 7 - 6)));
}

BOOST_AUTO_TEST_CASE(RP_4_there_is_a_reason_for_every_actor_and_replicas_have_theirs) {
  graph g(ops);
  auto where = three_nodes();
  where.replica_task = {1, 2};
  auto spec = spread();
  spec.is_recoverable = spec.has_replicas = true;
  const auto e = planned(g, test::loss_of(g), spec, &where);
  BOOST_TEST(e.report.placements.size() < e.plan.actors.size());
  BOOST_TEST(has(changes(e, "begin"), "'replica/0/dense_2/weights' is put in on /job:"));
  const auto text = explain(e);
  BOOST_TEST(has(text, "on another node than its shard, whose copy it is"));
  for (std::size_t i = 0; i < e.report.placements.size(); ++i) {
    const auto& r = e.report.placements[i];
    const auto& a = e.plan.actors[i];
    if (r.owner == placement_reason::kind::shard)
      BOOST_TEST(a.task == where.shard_task[r.index], a.name);
    if (r.owner == placement_reason::kind::client) BOOST_TEST(a.task == 3U, a.name);
    if (r.owner == placement_reason::kind::worker && !r.is_by_wish)
      BOOST_TEST(a.task == where.worker_task[r.index], a.name);
  }
}

BOOST_AUTO_TEST_CASE(
    the_text_has_memory_by_task_the_largest_actors_credits_and_edges_between_tasks) {
  graph g(ops);
  const auto where = three_nodes();
  const auto e = planned(g, test::loss_of(g), spread(), &where, {.name = "mnist"});
  const auto text = explain(e);
  BOOST_TEST(
      text.starts_with("mnist: trains, synchronously, 10 steps of 2 workers with 2 shards, sgd; "),
      text);
  for (const char* part :
       {"\npasses\n", "  replicate ", " ops -> ", "\nwhere actors are, and why\n",
        "  /job:client/task:0 (the program): ", "\nmemory, at the bounds of shapes", "  largest:\n",
        "  all tensors, once ", "\ncredits\n", "with 2 credits\n", "\nedges between tasks\n",
        "  /job:worker/task:0 to /job:ps/task:0: "})
    BOOST_TEST(has(text, part), part);
  std::uint64_t sum = 0;
  const auto needs = memory_by_actor(e.plan);
  for (std::size_t i = 0; i < needs.size(); ++i)
    if (e.plan.actors[i].task == 1) sum += needs[i];
  BOOST_TEST(sum == memory_of_part(e.plan, 1).bytes);
  graph h(ops);
  BOOST_TEST(has(explain(planned(h, test::loss_of(h))), "\nno edge joins two tasks\n"));
}

BOOST_AUTO_TEST_CASE(a_graph_that_does_not_compile_is_an_error_with_the_users_line) {
  graph g(ops);
  const auto device = g.device_scope("/job:none/task:3");
  const auto loss = reduce_sum(variable(g, {dtype::f32, {3}}, zeros(), "w"));
  const auto where = three_nodes();
  const auto e = plan_training(g, loss, spread(), {}, &where);
  BOOST_TEST(has(error_of(e), "explain_plan_test.cpp:"), error_of(e));
  BOOST_TEST(has(error_of(e), "/job:none/task:3"));
}

BOOST_AUTO_TEST_CASE(the_picture_has_a_box_for_every_actor_and_an_arrow_for_every_edge) {
  graph g(ops);
  const auto where = three_nodes();
  const auto e = planned(g, test::loss_of(g), spread(), &where);
  const auto p = picture_of(e);
  BOOST_TEST(p.boxes.size() == e.plan.actors.size());
  BOOST_TEST(p.arrows.size() == e.plan.edges.size());
  const auto crossings =
      std::ranges::count(p.arrows, picture_arrow::kind::crossing, &picture_arrow::type);
  BOOST_TEST(crossings == std::ranges::count_if(e.plan.actors, [](const auto& a) {
               return a.kind == actor_kind::send;
             }));
  for (const auto& a : p.arrows)
    if (!a.is_back) BOOST_TEST(p.boxes[a.from].layer < p.boxes[a.to].layer);
  for (const auto& b : p.boxes)
    if (b.name == "worker/0/dense_2/matmul+add")
      BOOST_TEST(has(b.tooltip, "2 ops, stream "), b.tooltip);
}

BOOST_AUTO_TEST_SUITE_END()
