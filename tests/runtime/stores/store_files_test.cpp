// Variables and what optimizers keep of them, in files.

#include "troupe/runtime/stores/store_files.hpp"

#include <boost/test/unit_test.hpp>

#include <string>
#include <vector>

using namespace troupe;

namespace {

tensor row(const std::vector<float>& values) {
  return tensor::of<float>(dtype::f32, {static_cast<std::int64_t>(values.size())}, values);
}
tensor count(std::int64_t n) { return tensor::of<std::int64_t>(dtype::i64, {}, {&n, 1}); }
std::vector<float> numbers_in(const tensor& t) {
  return {t.data<float>(), t.data<float>() + t.elements()};
}

store_view view_of(const std::vector<loaded_variable>& all) {
  store_view out;
  for (const auto& v : all)
    out.variables.push_back({v.name, std::make_shared<const variable_entry>(v.entry), 0});
  return out;
}

// By an empty store, which would take all of it.
std::string refusal(std::vector<named_tensor> tensors, const unnamed_state& unnamed = {}) {
  auto read = variables_of(std::move(tensors), "some.safetensors", unnamed);
  if (!read) return read.error().text();
  const auto taken = fit(std::move(*read), {}, "some.safetensors");
  return taken ? "" : taken.error().text();
}

}  // namespace

BOOST_AUTO_TEST_SUITE(store_files)

BOOST_AUTO_TEST_CASE(what_was_saved_comes_back) {
  std::vector<loaded_variable> all{{"a/b", {{row({1, 2})}, {}}}, {"w", {{row({3})}, {}}}};
  all[0].entry.states["adam"] = {adam({}), 7, {{row({4, 5})}, {row({6, 7})}}};
  all[0].entry.states["own/name"] = {rmsprop({.momentum = 0.3, .centered = true}),
                                     9,
                                     {{row({1, 1})}, {row({2, 2})}, {row({3, 3})}}};
  all[1].entry.states["sgd"] = {sgd({}), 2, {{row({8})}}};
  const auto back = variables_of(tensors_of(view_of(all), true), "f");
  BOOST_TEST_REQUIRE(bool(back), (back ? "" : back.error().text()));
  BOOST_TEST_REQUIRE(back->size() == 2U);
  for (std::size_t i = 0; i < 2; ++i) {
    BOOST_TEST((*back)[i].name == all[i].name);
    BOOST_TEST(numbers_in((*back)[i].entry.value.now) == numbers_in(all[i].entry.value.now));
    BOOST_TEST_REQUIRE((*back)[i].entry.states.size() == all[i].entry.states.size());
    for (const auto& [name, state] : all[i].entry.states) {
      const auto& read = (*back)[i].entry.states.at(name);
      BOOST_TEST(read.optimizer.type == state.optimizer.type);
      BOOST_TEST(read.updates == state.updates);
      BOOST_TEST_REQUIRE(read.slots.size() == state.slots.size());
      for (std::size_t k = 0; k < state.slots.size(); ++k)
        BOOST_TEST(numbers_in(read.slots[k].now) == numbers_in(state.slots[k].now));
    }
  }
  const auto values = tensors_of(view_of(all), false);
  BOOST_TEST(values.size() == 2U);
}

BOOST_AUTO_TEST_CASE(checkpoints_of_trainings_name_no_state) {
  const auto read =
      variables_of({{"w", row({1})}, {"w#first_moment", row({2})}, {"w#second_moment", row({3})}},
                   "f", {"adam", 12});
  BOOST_TEST_REQUIRE(bool(read), (read ? "" : read.error().text()));
  const auto& state = (*read)[0].entry.states.at("adam");
  BOOST_TEST(state.updates == 12U);
  BOOST_TEST(numbers_in(state.slots[1].now) == std::vector<float>{3});
}

BOOST_AUTO_TEST_CASE(what_does_not_fit_together_is_named) {
  const auto has = [](const std::string& text, const std::string& part) {
    BOOST_TEST(text.find("some.safetensors: ") == 0U, text);
    BOOST_TEST(text.find(part) != std::string::npos, text);
  };
  has(refusal({{"n", count(1)}}), "'n' is i64[], but variables are f32");
  has(refusal({{"w#adam/adam/first_moment", row({1})}}), "what an optimizer keeps of 'w'");
  has(refusal({{"w", row({1})}, {"w#adam/adam/first_moment", row({1})}}),
      "has the slots 'first_moment', which are not those of an optimizer 'adam'");
  has(refusal({{"w", row({1})}, {"w#sgd/sgd/velocity", row({1, 2})}}),
      "'w' is f32[1], and slot 'velocity' of state 'sgd' is f32[2]");
  has(refusal({{"w", row({1})}, {"w#s/wizard/velocity", row({1})}}), "an optimizer 'wizard'");
  has(refusal({{"w", row({1})}, {"w#s/sgd/velocity", row({1})}, {"w#s/sgd/updates", count(-1)}}),
      "is not a count");
  has(refusal({{"w", row({1})}, {"w#velocity", row({1})}}), "names no variable, or no optimizer");
  has(refusal({{"w", row({1})}, {"w#s/sgd/velocity", row({1})}, {"w#s/adam/updates", count(1)}}),
      "that state is one of optimizer");
  has(refusal({{"w", row({1})}, {"w", row({2})}}), "'w' is there twice");
  has(refusal({{"", row({1})}}), "a tensor has no name");
  has(refusal({{"w", row({1})},
               {"w#s/sgd/velocity", row({1})},
               {"w#s/sgd/updates", count(std::int64_t{1} << 62)}}),
      "is not a count");
  const auto odd = refusal({{"a\nb\033", count(1)}});
  BOOST_TEST((odd.find('\n') == std::string::npos && odd.find('\033') == std::string::npos), odd);
}

BOOST_AUTO_TEST_CASE(a_store_takes_what_it_has_and_is_told_the_rest) {
  const auto there = view_of({{"a", {{row({1, 2})}, {}}}, {"b", {{row({3})}, {}}}});
  auto some = fit({{"a", {{row({5, 6})}, {}}}, {"z", {{row({7})}, {}}}}, there, "f");
  BOOST_TEST_REQUIRE(bool(some));
  BOOST_TEST_REQUIRE(some->changes.size() == 1U);
  BOOST_TEST(some->changes[0].name == "a");
  BOOST_TEST(some->missing == std::vector<std::string>{"b"});
  BOOST_TEST(some->unused == std::vector<std::string>{"z"});
  const auto other = fit({{"a", {{row({5})}, {}}}}, there, "f");
  BOOST_TEST(other.error().text() ==
             "f: sizes or types differ: 'a' is f32[1] there and f32[2] here");
  const auto nothing = fit({{"z", {{row({5})}, {}}}}, there, "f");
  BOOST_TEST_REQUIRE(bool(nothing));
  BOOST_TEST(
      (nothing->changes.empty() && nothing->unused.size() == 1 && nothing->missing.size() == 2));
  BOOST_TEST(fit({{"z", {{row({5})}, {}}}}, {}, "f")->changes.size() == 1U);
  BOOST_TEST(fit({}, there, "f").error().text() == "f: there is no variable in it");
}

// Files of others have more than variables: what the store does not have is left out, whatever it
// is.
BOOST_AUTO_TEST_CASE(what_no_variable_can_be_is_left_out_or_an_error) {
  const auto there = view_of({{"w", {{row({1})}, {}}}});
  const auto read = [](std::vector<named_tensor> tensors) {
    return *variables_of(std::move(tensors), "f");
  };
  const auto some = fit(read({{"w", row({2})},
                              {"batches", count(3)},
                              {"odd name", row({1})},
                              {"v", row({1})},
                              {"v#sgd/sgd/velocity", row({1, 2})}}),
                        there, "f");
  BOOST_TEST_REQUIRE(bool(some), (some ? "" : some.error().text()));
  BOOST_TEST(some->unused == (std::vector<std::string>{"batches", "odd name", "v"}));
  BOOST_TEST(some->changes.size() == 1U);
  BOOST_TEST(fit(read({{"w", count(3)}}), there, "f").error().text() ==
             "f: 'w' is i64[], but variables are f32");
  BOOST_TEST(fit(read({{"odd name", row({1})}}), {}, "f").error().text() ==
             "f: 'odd name' is no name of a variable");
  for (const auto* name : {"__metadata__", "", "a b", "a#b", "a\n"})
    BOOST_TEST(!is_stored_name(name));
  for (const auto* name : {"a", "dense_1/weights", "layer1.0.weight"})
    BOOST_TEST(is_stored_name(name));
}

BOOST_AUTO_TEST_CASE(what_a_file_says_nothing_of_stays) {
  loaded_variable here{"w", {{row({1})}, {}}}, file{"w", {{row({2})}, {}}};
  here.entry.states["adam"] = {adam({}), 7, {{row({4})}, {row({5})}}};
  here.entry.states["mine"] = {sgd({}), 2, {{row({6})}}};
  file.entry.states["adam"] = {adam({}), 9, {{row({7})}, {row({8})}}};
  const auto taken = fit({file}, view_of({here}), "f");
  BOOST_TEST_REQUIRE(bool(taken));
  const auto& states = taken->changes[0].entry->states;
  BOOST_TEST(states.at("adam").updates == 9U);
  BOOST_TEST(states.at("mine").updates == 2U);
}

BOOST_AUTO_TEST_SUITE_END()
