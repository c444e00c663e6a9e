// What updates make of a variable.

#include "troupe/runtime/graph/build.hpp"
#include "troupe/runtime/graph/op_table.hpp"
#include "troupe/runtime/layers/updates.hpp"
#include "troupe/runtime/shards/shard_update.hpp"
#include "troupe/runtime/stores/variable_entry.hpp"

#include <boost/test/unit_test.hpp>

#include <array>
#include <memory>
#include <string>
#include <vector>

using namespace troupe;

namespace {

std::vector<float> numbers_in(const tensor& t) {
  return {t.data<float>(), t.data<float>() + t.elements()};
}
tensor row(const std::vector<float>& values) {
  return tensor::of<float>(dtype::f32, {static_cast<std::int64_t>(values.size())}, values);
}
tensor scalar(float x) { return tensor::of<float>(dtype::f32, {}, std::vector{x}); }
tensor truth(bool x) { return tensor::of<bool>(dtype::boolean, {}, std::array{x}); }

struct one_variable {
  op_table ops = make_op_table();
  graph g{ops};
  value w = variable(g, {dtype::f32, {3}}, {}, "w");
  value d = input(g, {dtype::f32, {3}}, "d");
};

troupe::variable_entry entry_of(const std::vector<float>& values) { return {{row(values)}, {}}; }

}  // namespace

BOOST_AUTO_TEST_SUITE(variable_entry)

BOOST_AUTO_TEST_CASE(an_optimizer_goes_as_in_a_training) {
  for (const auto& o :
       {sgd({.learning_rate = 0.1}), sgd({.learning_rate = 0.1, .momentum = 0.9}), adam({}),
        adamw({}), rmsprop({.momentum = 0.5, .centered = true}), adagrad({})}) {
    one_variable m;
    const auto schedule = step_decay({.every = 2, .decay = 0.5});
    apply(o, m.w, m.d, {.schedule = schedule});
    BOOST_TEST_REQUIRE(!m.g.first_error().has_value());
    auto now = std::make_shared<const troupe::variable_entry>(entry_of({1, -2, 3}));
    std::vector<float> values{1, -2, 3};
    std::vector<std::vector<float>> slots;
    for (const auto& s : slots_of(o)) slots.emplace_back(3, s.initial);
    for (std::uint64_t step = 0; step < 6; ++step) {
      const auto gradient = row({0.5F, float(step), -1});
      auto next = updated(*now, m.g.updates()[0], {gradient});
      BOOST_TEST_REQUIRE(bool(next));
      std::vector<stepped> state;
      for (auto& s : slots) state.push_back({s.data(), s.data()});
      const auto* g = gradient.data<float>();
      update_shard(o, schedule, {step + 1, step}, {values.data(), values.data()}, state,
                   std::array{g}, 3);
      BOOST_TEST(numbers_in(next->value.now) == values);
      const auto& kept = next->states.at(o.type);
      BOOST_TEST(kept.updates == step + 1);
      BOOST_TEST_REQUIRE(kept.slots.size() == slots.size());
      for (std::size_t i = 0; i < slots.size(); ++i)
        BOOST_TEST(numbers_in(kept.slots[i].now) == slots[i]);
      now = std::make_shared<const troupe::variable_entry>(std::move(*next));
    }
  }
}

// Momentum that has decayed is zero, as on the threads of a training, and not denormal.
BOOST_AUTO_TEST_CASE(the_arithmetic_is_that_of_kernels_in_any_thread) {
  const auto smallest = [] {
    volatile float x = 1e-38F;
    x = x / 8;
    return static_cast<float>(x);
  };
  const auto own = smallest();  // of this thread, which may have run kernels before
  one_variable m;
  apply(sgd({.learning_rate = 1, .momentum = 0.5}), m.w, m.d);
  auto now = *updated(entry_of({0, 0, 0}), m.g.updates()[0], {row({1e-37F, 1e-37F, 1})});
  for (int i = 0; i < 5; ++i) now = *updated(now, m.g.updates()[0], {row({0, 0, 0})});
  BOOST_TEST(numbers_in(now.states.at("sgd").slots[0].now) == (std::vector<float>{0, 0, 0.03125F}));
  BOOST_TEST((smallest() == own));  // it has its own arithmetic again
}

BOOST_AUTO_TEST_CASE(memory_of_the_version_before_is_used_once_nobody_reads_it) {
  one_variable m;
  apply(adam({}), m.w, m.d);
  const auto next = [&](const std::shared_ptr<const troupe::variable_entry>& now) {
    return std::make_shared<const troupe::variable_entry>(
        *updated(*now, m.g.updates()[0], {row({1, 2, 3})}));
  };
  auto now = next(next(std::make_shared<const troupe::variable_entry>(entry_of({1, 2, 3}))));
  const auto* memory = now->value.spare.data<float>();
  const auto* slot = now->states.at("adam").slots[0].spare.data<float>();
  now = next(now);
  BOOST_TEST(now->value.now.data<float>() == memory);
  BOOST_TEST(now->states.at("adam").slots[0].now.data<float>() == slot);
  const auto reader = now;  // has a version and keeps it
  const auto read = numbers_in(reader->value.now);
  for (int i = 0; i < 4; ++i) now = next(now);
  BOOST_TEST(numbers_in(reader->value.now) == read);
  const auto held = now->value.spare;  // as a run has what it reads
  BOOST_TEST(next(now)->value.now.data<float>() != held.data<float>());
}

BOOST_AUTO_TEST_CASE(rates_and_conditions_are_those_of_the_run) {
  one_variable m;
  const auto rate = input(m.g, {dtype::f32, {}}, "rate");
  const auto when = input(m.g, {dtype::boolean, {}}, "when");
  apply(sgd({.learning_rate = 0.5}), m.w, m.d, {.rate = rate, .when = when});
  const auto& u = m.g.updates()[0];
  const auto next = updated(entry_of({1, 1, 1}), u, {row({1, 2, 4}), scalar(0.5F), truth(true)});
  BOOST_TEST(numbers_in(next->value.now) == (std::vector<float>{0.75F, 0.5F, 0}));
  BOOST_TEST(is_made({row({1, 2, 4}), scalar(0.5F), truth(true)}));
  BOOST_TEST(!is_made({row({1, 2, 4}), scalar(0.5F), truth(false)}));
}

BOOST_AUTO_TEST_CASE(what_assigns_adds_or_averages_keeps_what_optimizers_have) {
  one_variable m;
  apply(adam({}), m.w, m.d);
  assign(m.w, m.d, "set");
  assign_add(m.w, m.d, "count");
  auto now = *updated(entry_of({1, 2, 3}), m.g.updates()[0], {row({1, 1, 1})});
  const auto moment = numbers_in(now.states.at("adam").slots[0].now);
  now = *updated(now, m.g.updates()[1], {row({4, 5, 6})});
  BOOST_TEST(numbers_in(now.value.now) == (std::vector<float>{4, 5, 6}));
  now = *updated(now, m.g.updates()[2], {row({1, 1, 1})});
  BOOST_TEST(numbers_in(now.value.now) == (std::vector<float>{5, 6, 7}));
  BOOST_TEST(numbers_in(now.states.at("adam").slots[0].now) == moment);
}

BOOST_AUTO_TEST_CASE(another_optimizer_needs_a_state_of_its_own) {
  one_variable m;
  apply(adam({}), m.w, m.d, {.name = "a", .state = "mine"});
  apply(sgd({}), m.w, m.d, {.name = "b", .state = "mine"});
  apply(sgd({}), m.w, m.d, {.name = "c"});
  const auto now = *updated(entry_of({1, 2, 3}), m.g.updates()[0], {row({1, 1, 1})});
  const auto refused = updated(now, m.g.updates()[1], {row({1, 1, 1})});
  BOOST_TEST_REQUIRE(!refused);
  BOOST_TEST(refused.error().text().find("state 'mine' of variable 'w' was made by adam, and sgd "
                                         "cannot go on with it") != std::string::npos,
             refused.error().text());
  BOOST_TEST(updated(now, m.g.updates()[2], {row({1, 1, 1})})->states.size() == 2U);
  // Of one type, with as many slots, which are others.
  apply(rmsprop({.momentum = 0.5}), m.w, m.d, {.name = "d"});
  apply(rmsprop({.centered = true}), m.w, m.d, {.name = "e"});
  const auto with_velocity = *updated(now, m.g.updates()[3], {row({1, 1, 1})});
  BOOST_TEST(!updated(with_velocity, m.g.updates()[4], {row({1, 1, 1})}));
}

BOOST_AUTO_TEST_CASE(what_is_assigned_is_a_copy_and_has_the_size_of_the_variable) {
  one_variable m;
  assign(m.w, m.d, "set");
  assign_add(m.w, m.d, "add");
  apply(adam({}), m.w, m.d);
  auto given = row({7, 8, 9});
  const auto next = *updated(entry_of({1, 2, 3}), m.g.updates()[0], {given});
  given.data<float>()[0] = 0;
  BOOST_TEST(numbers_in(next.value.now) == (std::vector<float>{7, 8, 9}));
  for (const auto& u : m.g.updates()) {
    const auto refused = updated(entry_of({1, 2}), u, {row({1, 2, 3})});
    BOOST_TEST_REQUIRE(!refused);
    BOOST_TEST(refused.error().text().find("variable 'w' is f32[3] in this graph, and f32[2] in "
                                           "the store") != std::string::npos,
               refused.error().text());
  }
}

// What a program writes, and what it is told.
BOOST_AUTO_TEST_CASE(mistakes_are_told_with_the_line) {
  const auto told = [](auto&& build) {
    one_variable m;
    build(m);
    return m.g.first_error() ? m.g.first_error()->text() : std::string("nothing");
  };
  const auto has = [&](const std::string& text, const std::string& part) {
    BOOST_TEST(text.find(part) != std::string::npos, text);
    BOOST_TEST(text.find("variable_entry_test.cpp:") != std::string::npos, text);
  };
  has(told([](auto& m) { assign(m.d, m.w, "set"); }),
      "'d' is no variable, but the result of input");
  has(told([](auto& m) { assign(m.w, reduce_sum(m.d), "set"); }),
      "variable 'w' is f32[3], and the new value is f32[]");
  has(told([](auto& m) { apply(adam({}), m.w, reduce_sum(m.d)); }), "and the gradient is f32[]");
  has(told([](auto& m) { apply(adam({.beta1 = 2}), m.w, m.d); }), "beta1 2");
  has(told([](auto& m) { apply(adam({}), m.w, m.d, {.rate = m.d}); }), "a rate is f32[]");
  has(told([](auto& m) { apply(adam({}), m.w, m.d, {.when = m.d}); }), "`when` is bool[]");
  has(told([](auto& m) { assign(m.w, m.d, ""); }), "it has no name");
  has(told([](auto& m) { assign(m.w, m.d, "a\nb"); }), "letters, digits");
  has(told([](auto& m) { minimize(reduce_sum(m.w), {value{}}, sgd({})); }),
      "one of its variables is none of this graph");
  has(told([](auto& m) { assign(m.w, value{}, "set"); }), "there is no value");
  has(told([](auto& m) { minimize(reduce_sum(m.d), sgd({})); }), "no gradient flows from loss");
  has(told([](auto& m) {
        const auto v = variable(m.g, {dtype::f32, {3}}, {}, "v");
        minimize(reduce_sum(m.w * m.w), {m.w, v}, sgd({}));
      }),
      "to variable 'v'");
  has(told([](auto& m) { minimize(reduce_sum(m.w * m.w), std::vector<value>{}, sgd({})); }),
      "there is no variable");
  has(told([](auto& m) { apply(sgd({}), m.w, m.d, {.state = "a b"}); }), "letters, digits");
  const auto in_a_branch = [](auto& m) {
    const auto c = input(m.g, {dtype::boolean, {}}, "c");
    cond(
        c,
        [&] {
          assign_add(m.w, constant(m.g, tensor::of({1, 1, 1}, {3})), "add");
          return m.d;
        },
        [&] { return m.d * 2.0F; });
  };
  has(told(in_a_branch), "it stands in a branch or a loop");
  has(told([](auto& m) { named(top_k(m.d, 2).indices, "best"); }), "it is output 1 of 'top_k'");
  has(told([](auto& m) { named(m.d, "e"); }), "it is input 'd', which has its name already");
  has(told([](auto& m) {
        named(m.d * 2.0F, "loss");
        named(m.d * 3.0F, "loss");
      }),
      "named 'loss': the mul of ");
  BOOST_TEST(told([](auto& m) { minimize(reduce_sum(m.w * m.d), sgd({})); }) == "nothing");
  one_variable m;
  const auto scope = m.g.name_scope("inner");
  variable(m.g, {dtype::f32, {1}}, {}, "v");
  BOOST_TEST(variables_in(m.g, "inner/").size() == 1U);
  BOOST_TEST(variables_in(m.g, "").size() == 2U);
}

BOOST_AUTO_TEST_SUITE_END()
