#include "tests/support/repetitions.hpp"
#include "troupe/runtime/layers/layers.hpp"
#include "troupe/runtime/plan/plan.hpp"

#include "troupe/runtime/compile/compile.hpp"
#include "troupe/runtime/graph/op_table.hpp"

#include "schema/plan.capnp.h"

#include <boost/test/unit_test.hpp>

#include <capnp/any.h>
#include <capnp/message.h>
#include <capnp/serialize.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>

using namespace troupe;

namespace {

const tensor_spec vector3{dtype::f32, {3}};

// A plan from 2 workers over 3 nodes with everything in it: shards, transfers, groups, a feed.
troupe::plan rich_plan() {
  const auto ops = make_op_table();
  graph g(ops);
  const auto data =
      idx_batch(g, {.path = "p", .samples = 100, .rows = 2, .columns = 2}, {.batch = 8});
  const auto x = add(add(data.images, input(g, {dtype::f32, {4}}, "offset")),
                     constant(g, tensor::of({1, 2, 3, 4}, {4}), "table"));
  const auto loss =
      softmax_cross_entropy(dense(relu(dense(x, 5, "a")), 10, "b"), data.labels, data.scale);
  training_spec s;
  s.workers = 2;
  s.shards = 2;
  s.steps = 6;
  s.observe_every = 3;
  s.seed = 77;
  s.tasks = 4;
  s.task_names = {"/job:worker/task:0", "/job:worker/task:1", "/job:ps/task:0",
                  "/job:client/task:0"};
  s.worker_task = {0, 1};
  s.shard_task = {2, 2};
  s.client_task = 3;
  auto p = compile_training(g, loss, s, {.name = "rich"});
  BOOST_TEST_REQUIRE(bool(p), (p ? "" : p.error().text()));
  p->libraries = {{{"own_ops", "1.0", 0x123456789abcdef0U}, {"relu", "add"}},
                  {{"others", "0.1-rc2", 1}, {"dense"}}};
  return *p;
}

// A chain of `n` ops in a row, closed to a ring if wanted.
plan chain(std::uint32_t n, bool is_ring) {
  plan p;
  p.name = "chain";
  p.tasks = {{"/job:client/task:0", true, {}}};
  for (std::uint32_t i = 0; i < n; ++i) {
    planned_actor a;
    a.name = fmt::format("op_{}", i);
    a.ops = {{"neg", a.name, {}, {}, {"user.cpp", i + 1}}};
    a.source = {"user.cpp", i + 1};
    a.output_specs = {vector3};
    a.outputs.resize(1);
    p.actors.push_back(std::move(a));
  }
  const auto join = [&](std::uint32_t from, std::uint32_t to) {
    const auto e = static_cast<std::uint32_t>(p.edges.size());
    p.edges.push_back(
        {{from, 0}, {to, static_cast<std::uint32_t>(p.actors[to].inputs.size())}, vector3, 2});
    p.actors[from].outputs[0].push_back(e);
    p.actors[to].ops[0].operands.push_back(static_cast<std::int32_t>(p.actors[to].inputs.size()));
    p.actors[to].inputs.push_back(e);
  };
  for (std::uint32_t i = 0; i + 1 < n; ++i) join(i, i + 1);
  if (is_ring) join(n - 1, 0);
  return p;
}

std::uint32_t index_of(const plan& p, actor_kind kind) {
  for (std::uint32_t i = 0; i < p.actors.size(); ++i)
    if (p.actors[i].kind == kind) return i;
  return 0;
}

std::string text_of(const result<void>& r) { return r ? "no error" : r.error().text(); }
std::string text_of(const result<plan>& r) { return r ? "no error" : r.error().text(); }

}  // namespace

BOOST_AUTO_TEST_SUITE(plan)

BOOST_AUTO_TEST_CASE(a_plan_comes_back_from_bytes_as_it_was) {
  const auto p = rich_plan();
  const auto bytes = encode(p);
  const auto back = decode_plan(bytes);
  BOOST_TEST_REQUIRE(bool(back), text_of(back));
  BOOST_TEST((*back == p));
  BOOST_TEST((encode(*back) == bytes));
}

BOOST_AUTO_TEST_CASE(fetches_put_together_what_is_fetched_and_nothing_twice) {
  const auto ops = make_op_table();
  graph g(ops);
  const auto x = input(g, vector3, "x");
  std::vector<value> out;
  for (int i = 0; i < 40; ++i) {
    const auto on = g.device_scope(fmt::format("/cpu:{}", i % 2));
    out.push_back(neg(x));
  }
  const auto good = compile_steps(g, out, {.fuse = false, .share = false});
  BOOST_TEST_REQUIRE(bool(good), text_of(good));
  std::vector<std::uint32_t> fetches;
  for (std::uint32_t i = 0; i < good->actors.size(); ++i)
    if (good->actors[i].kind == actor_kind::fetch) fetches.push_back(i);
  BOOST_TEST_REQUIRE(fetches.size() == 2U);
  const auto says = [&](auto change) {
    auto p = *good;
    change(p.actors[fetches[0]], p.actors[fetches[1]]);
    return text_of(check(p));
  };
  BOOST_TEST(says([](auto&, auto&) {}) == "no error");
  // Another order is one, too.
  BOOST_TEST(says([](auto& a, auto& b) { std::swap(a.places, b.places); }) == "no error");
  BOOST_TEST(says([](auto& a, auto&) { a.places[3] = a.places[4]; }) ==
             "fetch 'fetch': place 8 of 40 values is taken twice, or does not exist (PL-10)");
  BOOST_TEST(says([](auto&, auto& b) { b.places[0] = 40; }) ==
             "fetch 'fetch/1': place 40 of 40 values is taken twice, or does not exist (PL-10)");
  BOOST_TEST(
      says([](auto& a, auto&) { a.places.pop_back(); }) ==
      "fetch 'fetch': it has 19 places for 20 inputs: only a fetch that waits for all inputs has "
      "places, one for each input (PL-10)");
  BOOST_TEST(
      says([](auto& a, auto&) { a.fires_on_any = true; }) ==
      "fetch 'fetch': it has 20 places for 20 inputs: only a fetch that waits for all inputs has "
      "places, one for each input (PL-10)");
  // One without places is another fetch, not a part of this one.
  BOOST_TEST(says([](auto& a, auto&) { a.places.clear(); }) != "no error");
}

BOOST_AUTO_TEST_CASE(every_optimizer_and_schedule_comes_back_from_bytes_as_it_was) {
  const optimizer_spec optimizers[] = {
      sgd({.learning_rate = 0.5,
           .momentum = 0.25,
           .nesterov = true,
           .weight_decay = 0.125,
           .clip_value = 3,
           .clip_norm = 4}),
      adam({.beta1 = 0.5, .beta2 = 0.25, .epsilon = 0.125}), adamw({.weight_decay = 0.5}),
      rmsprop({.alpha = 0.5, .momentum = 0.25, .centered = true}),
      adagrad({.learning_rate_decay = 0.5, .initial_accumulator = 0.25})};
  const learning_rate_schedule schedules[] = {warm_up(7),
                                              step_decay({.every = 3, .decay = 0.5}),
                                              exponential({.decay = 0.5}),
                                              cosine({.steps = 9, .minimum = 0.5, .warmup = 2}),
                                              linear({.steps = 8}),
                                              inverse_square_root({.timescale = 5})};
  for (const auto& o : optimizers)
    for (const auto& s : schedules) {
      auto p = rich_plan();
      p.actors[0].shard.optimizer = o;
      p.actors[0].shard.schedule = s;
      const auto back = decode_plan(encode(p));
      BOOST_TEST_REQUIRE(bool(back), text_of(back));
      BOOST_TEST((*back == p));
    }
}

// A writer that knew neither: SGD at a constant rate.
BOOST_AUTO_TEST_CASE(what_older_plans_do_not_say_is_what_they_meant) {
  auto p = rich_plan();
  const auto bytes = encode(p);
  auto words = kj::heapArray<capnp::word>(bytes.size() / sizeof(capnp::word));
  std::memcpy(words.begin(), bytes.data(), bytes.size());
  capnp::FlatArrayMessageReader reader(words);
  capnp::MallocMessageBuilder older;
  older.setRoot(reader.getRoot<wire::Plan>());
  older.getRoot<wire::Plan>().disownLibraries();
  std::size_t shards = 0;
  for (auto a : older.getRoot<wire::Plan>().getActors())
    if (a.getKind() == static_cast<std::uint8_t>(actor_kind::shard)) {
      a.getShard().disownOptimizerNumbers();
      a.getShard().disownSchedule();
      ++shards;
    }
  BOOST_TEST(shards > 0U);
  const auto old_words = capnp::messageToFlatArray(older);
  const auto back = decode_plan(
      std::as_bytes(std::span(old_words.asBytes().begin(), old_words.asBytes().size())));
  BOOST_TEST_REQUIRE(bool(back), text_of(back));
  p.libraries.clear();
  BOOST_TEST((*back == p));
}

BOOST_AUTO_TEST_CASE(a_schedule_of_an_unknown_kind_is_refused) {
  const auto bytes = encode(rich_plan());
  auto words = kj::heapArray<capnp::word>(bytes.size() / sizeof(capnp::word));
  std::memcpy(words.begin(), bytes.data(), bytes.size());
  capnp::FlatArrayMessageReader reader(words);
  capnp::MallocMessageBuilder newer;
  newer.setRoot(reader.getRoot<wire::Plan>());
  newer.getRoot<wire::Plan>().getActors()[0].getShard().getSchedule().setKind(6);
  const auto new_words = capnp::messageToFlatArray(newer);
  const auto back = decode_plan(
      std::as_bytes(std::span(new_words.asBytes().begin(), new_words.asBytes().size())));
  BOOST_TEST(text_of(back).find("there is no schedule 6") != std::string::npos, text_of(back));
}

BOOST_AUTO_TEST_CASE(what_breaks_an_invariant_is_an_error_that_names_the_actor) {
  using spoiler = std::function<void(troupe::plan&)>;
  const auto first = [](troupe::plan& p, actor_kind k) -> planned_actor& {
    return p.actors[index_of(p, k)];
  };
  const std::pair<spoiler, const char*> cases[] = {
      {[](auto& p) { p.edges[0].from.actor = 9999; }, "PL-1"},
      {[](auto& p) { p.edges[0].to.actor = 9999; }, "PL-1"},
      {[](auto& p) { p.edges[0].from.port = 99; }, "leaves output 99, which it lacks (PL-1)"},
      {[](auto& p) { p.edges[0].to.port = 99; }, "enters input 99, which it lacks (PL-1)"},
      {[](auto& p) { p.edges.pop_back(); }, "it names edge"},
      {[&](auto& p) { first(p, actor_kind::op).outputs[0].clear(); }, "not named at both ends"},
      {[&](auto& p) {
         auto& o = first(p, actor_kind::op).outputs[0];
         o.push_back(o[0]);
       },
       "or is named twice (PL-1)"},
      {[&](auto& p) { first(p, actor_kind::shard).outputs[0].clear(); },
       "shard 'shard/0/a/bias': nobody takes output 0 (PL-2)"},
      {[](auto& p) { std::swap(p.edges[0].to, p.edges[1].to); }, "(PL-2)"},
      {[](auto& p) { p.actors[0].task = 99; }, "it is on task 99 of 4 (PL-1)"},
      {[&](auto& p) { first(p, actor_kind::op).task = 3; }, "without a send (PL-3)"},
      {[&](auto& p) { first(p, actor_kind::send).kind = actor_kind::feed; },
       "it cannot have 1 inputs and 1 outputs (PL-2)"},
      {[&](auto& p) {
         auto& a = first(p, actor_kind::receive);
         a.kind = actor_kind::op;
         a.ops = {{"neg", "x", {}, {0}, {}}};
       },
       "only a send may, and must, go to a receive (PL-3)"},
      {[](auto& p) { p.edges[3].credits = 0; }, "has 0 credits, but needs 1..4096 (PL-5)"},
      {[](auto& p) { p.edges[3].credits = credits_max + 1; },
       "has 4097 credits, but needs 1..4096 (PL-5)"},
      {[](auto& p) { p.edges[3].spec.type = dtype::u8; }, "(PL-5)"},
      {[&](auto& p) { first(p, actor_kind::op).ops.clear(); }, "it has no op to run"},
      {[&](auto& p) { first(p, actor_kind::op).ops[0].operands = {-1}; },
       "takes operand -1, which does not exist"},
      {[&](auto& p) { first(p, actor_kind::op).ops[0].operands = {7}; },
       "takes operand 7, which does not exist"},
      {[&](auto& p) {
         first(p, actor_kind::op).ops[0].operands = {std::numeric_limits<std::int32_t>::min()};
       },
       "which does not exist"},
      {[](auto& p) { p.actors[1].name = p.actors[0].name; }, "two actors have this name"},
      {[](auto& p) { p.actors[1].name.clear(); }, "an actor has no name"},
      {[](auto& p) { p.actors[0].kind = actor_kind::link; }, "a plan has no actors of this kind"},
      {[](auto& p) { p.actors[0].output_specs.pop_back(); }, "specs for"},
      {[](auto& p) { p.actors[0].output_specs[0].shape = shape{std::int64_t{1} << 40}; },
       "a tensor has more than"},
      {[](auto& p) { p.tasks.clear(); }, "a plan needs at least one task"},
      {[](auto& p) { p.tasks[0].name = "/tpu:1"; }, "name of a task: device '/tpu:1'"},
      {[](auto& p) { p.workers = 3; }, "step counts do not fit 3 workers"},
      {[](auto& p) { p.actors[0].shard.steps[1] = 5; }, "different numbers of steps"},
      {[](auto& p) { p.actors[0].shard.readers.pop_back(); }, "outputs do not fit 2 readers"},
      {[](auto& p) { p.actors[0].shard.readers[0].worker = 2; }, "a reader is for worker 2 of 2"},
      {[](auto& p) { p.actors[0].shard.readers[0].worker = -2; }, "a reader is for worker -2 of 2"},
      {[](auto& p) { p.actors[0].shard.readers[0].at_end = true; },
       "a reader for a worker must read every version"},
      {[](auto& p) { p.actors[0].shard.readers[2].stride = 0; }, "versions, reads nothing"},
      {[](auto& p) { p.actors[0].shard.readers[2].first = 7; }, "versions, reads nothing"},
      {[](auto& p) { p.actors[0].shard.update = update_kind::async; }, "versions, reads nothing"},
      {[](auto& p) { p.actors[0].shard.optimizer.type = "lion"; }, "optimizer 'lion'"},
      {[](auto& p) { p.actors[0].shard.optimizer.learning_rate = -1; },
       "learning rate -1 is below 0 (PL-1)"},
      {[](auto& p) { p.actors[0].shard.optimizer.beta2 = 1; }, "beta2 1 is not in [0, 1) (PL-1)"},
      {[](auto& p) {
         p.actors[0].shard.optimizer.epsilon = std::numeric_limits<double>::infinity();
       },
       "epsilon inf is not a finite number (PL-1)"},
      {[](auto& p) { p.actors[0].shard.optimizer.clip_norm = std::nan(""); },
       "clip norm nan is not a finite number (PL-1)"},
      {[](auto& p) { p.actors[0].shard.schedule.decay = std::nan(""); },
       "decay nan is not in (0, 1] (PL-1)"},
      {[](auto& p) { p.actors[0].shard.schedule.every = 0; },
       "every 0 steps is not possible, use 1 or more (PL-1)"},
      {[](auto& p) {
         p.actors[0].shard.schedule.type = static_cast<learning_rate_schedule::kind>(9);
       },
       "there is no schedule 9 (PL-1)"},
      {[](auto& p) { p.actors[0].shard.schedule = cosine({}); },
       "steps 0 are not more than the 0 of its warmup (PL-1)"},
      {[](auto& p) { p.actors[0].shard.initializer.limit = std::nan(""); },
       "the limit nan of its initial values is not a finite number (PL-1)"},
      {[](auto& p) { p.actors[0].shard.pushes_rows = true; },
       "worker 0 pushes f32[5], which are no rows of f32[5] (PL-5)"},
      {[](auto& p) {
         p.actors[0].shard.restore = restore_kind::handed;  // without the ports
         p.actors[0].shard.optimizer = adam({});
       },
       "its 2 inputs and 2 step counts do not fit 2 workers"},
      {[](auto& p) { p.actors[0].shard.optimizer.momentum = std::nan(""); }, "momentum nan"},
      {[](auto& p) { p.actors[0].shard.variable.clear(); }, "its variable must have a name"},
      {[](auto& p) { p.libraries[0].library.name.clear(); }, "have 1..64 bytes (PL-7)"},
      {[](auto& p) { p.libraries[0].library.version.clear(); }, "have 1..64 bytes (PL-7)"},
      {[](auto& p) { p.libraries[0].library.version.assign(65, '1'); }, "have 1..64 bytes (PL-7)"},
      {[](auto& p) { p.libraries[1].library.name = "own_ops"; },
       "library 'own_ops' is named twice (PL-7)"},
      {[](auto& p) { p.libraries[0].ops.clear(); },
       "library 'own_ops' has 0 ops, and needs 1..4096 (PL-7)"},
      {[](auto& p) { p.libraries[0].ops.assign(4097, "x"); }, "library 'own_ops' has 4097 ops"},
      {[](auto& p) { p.libraries[1].ops = {"relu"}; },
       "library 'others' names an op that has no name, has too long a name, or is named before"},
      {[](auto& p) { p.libraries[0].ops = {""}; },
       "library 'own_ops' names an op that has no name"},
      {[](auto& p) { p.libraries.resize(17); },
       "a plan needs at most 16 libraries, this one has 17 (PL-7)"},
  };
  const auto good = rich_plan();
  BOOST_TEST(text_of(check(good)) == "no error");
  for (const auto& [spoil, says] : cases) {
    auto p = good;
    spoil(p);
    const auto text = text_of(check(p));
    BOOST_TEST(text.find(says) != std::string::npos, text << "\n  should say: " << says);
  }
}

BOOST_AUTO_TEST_CASE(an_error_names_the_users_line) {
  auto p = chain(3, false);
  p.edges[1].credits = 0;
  BOOST_TEST(text_of(check(p)) ==
             "user.cpp:2: op 'op_1': edge 1 to 'op_2' has 0 credits, but needs 1..4096 (PL-5)");
}

BOOST_AUTO_TEST_CASE(PL_4_a_cycle_is_named_actor_by_actor) {
  BOOST_TEST(text_of(check(chain(3, false))) == "no error");
  BOOST_TEST(
      text_of(check(chain(3, true)))
              .find(
                  "a cycle without a shard can never start: 'op_1' -> 'op_2' -> 'op_0' -> 'op_1' (PL-4)") !=
          std::string::npos,
      text_of(check(chain(3, true))));
  BOOST_TEST(text_of(check(chain(1, true))).find("'op_0' -> 'op_0'") != std::string::npos,
             text_of(check(chain(1, true))));
  // Behind a cycle there are innocent ops: they are not named.
  auto p = chain(4, false);
  p.edges.push_back({{1, 0}, {0, 0}, vector3, 2});
  p.actors[1].outputs[0].push_back(3);
  p.actors[0].inputs.push_back(3);
  p.actors[0].ops[0].operands.push_back(0);
  const auto text = text_of(check(p));
  BOOST_TEST(text.find("'op_0' -> 'op_1'") != std::string::npos, text);
  BOOST_TEST(text.find("op_3") == std::string::npos, text);
  BOOST_TEST(!decode_plan(encode(p)));
}

BOOST_AUTO_TEST_CASE(PL_4_a_cycle_of_a_million_actors_is_found_without_recursion) {
  const auto p = chain(1'000'000, true);
  const auto text = text_of(check(p));
  BOOST_TEST(text.find("999988 more") != std::string::npos, text);
}

BOOST_AUTO_TEST_CASE(PL_4_a_cycle_through_a_shard_is_fine) {
  const auto p = rich_plan();  // shard -> worker -> gradient -> shard
  BOOST_TEST(bool(check(p)));
}

BOOST_AUTO_TEST_CASE(bytes_that_are_no_plan_are_errors) {
  BOOST_TEST(text_of(decode_plan({})).find("not a plan") != std::string::npos);
  const std::vector<std::byte> odd(13);
  BOOST_TEST(text_of(decode_plan(odd)).find("not whole words") != std::string::npos);
  const std::vector<std::byte> zeros(64);
  BOOST_TEST(!bool(decode_plan(zeros)));
  const std::vector<std::byte> ones(64, std::byte{0xff});
  BOOST_TEST(!bool(decode_plan(ones)));
}

BOOST_AUTO_TEST_CASE(a_plan_cut_anywhere_is_an_error) {
  const auto bytes = encode(rich_plan());
  for (std::size_t n = 0; n < bytes.size(); n += 8)
    BOOST_TEST_REQUIRE(!bool(decode_plan(std::span(bytes).first(n))));
}

BOOST_AUTO_TEST_CASE(twenty_thousand_mutations_are_errors_or_plans_that_pass_every_check) {
  const auto good = encode(rich_plan());
  std::mt19937_64 random(2024);
  std::size_t errors = 0, survivors = 0;
  for (std::uint64_t i = 0; i < repetitions(20'000); ++i) {
    auto bytes = good;
    const auto changes = 1 + random() % 8;
    for (std::uint64_t k = 0; k < changes; ++k) {
      // Half of the changes hit the beginning, where the lists and their lengths are.
      const auto at =
          random() % (random() % 2 == 0 ? std::min<std::size_t>(bytes.size(), 512) : bytes.size());
      switch (random() % 4) {
        case 0: bytes[at] ^= static_cast<std::byte>(1U << (random() % 8)); break;
        case 1: bytes[at] = static_cast<std::byte>(random()); break;
        case 2: bytes[at] = std::byte{0xff}; break;
        default: std::swap(bytes[at], bytes[random() % bytes.size()]);
      }
    }
    if (random() % 10 == 0) bytes.resize(random() % (bytes.size() + 1));
    const auto p = decode_plan(bytes);
    if (p) {
      ++survivors;
      BOOST_TEST_REQUIRE(bool(check(*p)));
    } else {
      ++errors;
      BOOST_TEST_REQUIRE(!p.error().message().empty());
    }
  }
  BOOST_TEST_MESSAGE(errors << " errors, " << survivors << " valid plans");
  BOOST_TEST(errors > repetitions(5'000));
  // Names and numbers may change without breaking anything.
  BOOST_TEST(survivors > repetitions(100));
}

BOOST_AUTO_TEST_CASE(
    a_list_that_claims_more_than_its_bytes_hold_is_refused_before_memory_is_taken) {
  // A list of elements of no size costs nothing to claim: here 2^28 tasks, actors, edges, files or
  // libraries in a few words.
  for (const unsigned pointer : {1U, 2U, 3U, 4U, 5U}) {
    capnp::MallocMessageBuilder message;
    message.initRoot<wire::Plan>().setName("job");
    message.getRoot<capnp::AnyStruct>()
        .getPointerSection()[pointer]
        .initAs<capnp::List<capnp::Void>>(1U << 28U);
    const auto words = capnp::messageToFlatArray(message);
    BOOST_TEST(words.asBytes().size() < 512U);
    const auto p =
        decode_plan(std::as_bytes(std::span(words.asBytes().begin(), words.asBytes().size())));
    BOOST_TEST(!bool(p));
    BOOST_TEST(text_of(p).find("not a plan") != std::string::npos, text_of(p));
  }
}

BOOST_AUTO_TEST_CASE(constants_carry_their_bytes_in_the_plan_and_equal_ones_are_equal_plans) {
  const auto of = [](std::initializer_list<float> values) {
    auto p = chain(2, false);
    const auto t = tensor::of(values, {2});
    p.actors[0].ops[0].attrs.set("data", shared_bytes({t.bytes().begin(), t.bytes().end()}));
    return p;
  };
  const auto p = of({1, 2});
  BOOST_TEST((p == of({1, 2})));
  BOOST_TEST(!(p == of({1, 3})));
  const auto back = decode_plan(encode(p));
  BOOST_TEST_REQUIRE(bool(back), text_of(back));
  const auto data = back->actors[0].ops[0].attrs.data("data");
  BOOST_TEST_REQUIRE(data.view().size() == 8U);
  BOOST_TEST(std::ranges::equal(data.view(), tensor::of({1, 2}, {2}).bytes()));
  BOOST_TEST((*back == p));
}

BOOST_AUTO_TEST_CASE(
    pointers_that_share_the_bytes_of_one_constant_are_refused_before_memory_is_taken) {
  // 200 attributes of 64 KiB each, which all lie at one place: twelve megabytes from a message of
  // 70 KiB.
  capnp::MallocMessageBuilder m(1U << 15U);  // one segment, so that pointers are plain
  auto root = m.initRoot<wire::Plan>();
  auto attrs = root.initActors(1)[0].initOps(1)[0].initAttributes(200);
  std::vector<kj::byte> bytes(std::size_t{1} << 16U);
  attrs[0].setData(capnp::Data::Reader(bytes.data(), bytes.size()));
  auto words = capnp::messageToFlatArray(m);
  // The attribute's pointer section has the name and the union; the pointer of the first one,
  // moved, serves all.
  std::vector<std::byte> flat(words.asBytes().size());
  std::memcpy(flat.data(), words.asBytes().begin(), flat.size());
  capnp::FlatArrayMessageReader reader(words);
  const auto list = reader.getRoot<wire::Plan>().getActors()[0].getOps()[0].getAttributes();
  const auto data = list[0].getData();
  const auto data_word = static_cast<std::int64_t>((data.begin() - words.asBytes().begin()) / 8);
  // Find the word that points there: offset (30 bits, signed) from the word behind it, kind 1,
  // elements of one byte, their number.
  const auto word_at = [&](std::size_t i) {
    std::uint64_t w = 0;
    std::memcpy(&w, flat.data() + 8 * i, 8);
    return w;
  };
  std::size_t pointer = 0;
  for (std::size_t i = 1; i < flat.size() / 8; ++i)
    if (const auto w = word_at(i);
        (w & 3U) == 1 && (w >> 32U & 7U) == 2 && (w >> 35U) == bytes.size() &&
        static_cast<std::int64_t>(i) + 1 + (static_cast<std::int32_t>(w) >> 2) == data_word)
      pointer = i;
  BOOST_TEST_REQUIRE(pointer != 0U);
  constexpr std::size_t words_each = 4;  // two of data, two of pointers
  for (std::size_t k = 1; k < 200; ++k) {
    const auto at = pointer + k * words_each;
    const auto offset =
        static_cast<std::uint32_t>((data_word - static_cast<std::int64_t>(at) - 1) << 2) | 1U;
    const auto w = (word_at(pointer) & 0xffffffff00000000U) | offset;
    std::memcpy(flat.data() + 8 * at, &w, 8);
    // Which of the union it is.
    std::memcpy(flat.data() + 8 * (pointer - 3 + k * words_each), flat.data() + 8 * (pointer - 3),
                16);
  }
  const auto p = decode_plan(flat);
  BOOST_TEST_REQUIRE(!p);
  BOOST_TEST(p.error().text().find("more elements than the bytes can hold") != std::string::npos,
             p.error().text());
}

BOOST_AUTO_TEST_CASE(random_bytes_are_errors) {
  std::mt19937_64 random(7);
  for (std::uint64_t i = 0; i < repetitions(20'000); ++i) {
    std::vector<std::byte> bytes(8 * (random() % 64));
    for (auto& b : bytes) b = static_cast<std::byte>(random() % 3 == 0 ? random() : 0);
    BOOST_TEST_REQUIRE(!bool(decode_plan(bytes)));
  }
}

BOOST_AUTO_TEST_SUITE_END()
