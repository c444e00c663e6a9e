// Orders of samples, shuffles and caches of pipelines.

#include "troupe/devices/files/idx_sampler.hpp"
#include "troupe/runtime/flow/drain.hpp"
#include "troupe/runtime/flow/sample_stages.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <atomic>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <vector>

using namespace troupe;

namespace {

std::vector<std::string> names(std::size_t n) {
  std::vector<std::string> all;
  for (std::size_t i = 0; i < n; ++i) all.push_back("s" + std::to_string(i));
  return all;
}

std::vector<sample<std::string>> drawn(const sample_options& o, std::size_t n = 10) {
  flow_graph g;
  const auto all = collect(samples(g, names(n), o));
  const auto ok = drain(g);
  BOOST_REQUIRE_MESSAGE(ok, (ok ? "" : ok.error().text()));
  return *all;
}

std::vector<int> drained(flow_graph& g, const flow<int>& f) {
  const auto all = collect(f);
  const auto ok = drain(g);
  BOOST_REQUIRE_MESSAGE(ok, (ok ? "" : ok.error().text()));
  return *all;
}

// Counts how often it is called, by all of its copies.
struct counting_length {
  std::shared_ptr<std::atomic<int>> calls = std::make_shared<std::atomic<int>>(0);
  std::size_t operator()(std::string s) const {
    ++*calls;
    return s.size();
  }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(sample_stages)

BOOST_AUTO_TEST_CASE(SAM_1_samples_are_a_function_of_their_number) {
  const auto all = drawn({.seed = 7, .epochs = 3});
  BOOST_REQUIRE(all.size() == 30U);
  for (std::uint64_t n = 0; n < all.size(); ++n) {
    BOOST_TEST(all[n].number == n);
    BOOST_TEST(all[n].value == "s" + std::to_string(all[n].index));
    BOOST_TEST(all[n].random == random_of_sample(7, n));
  }
  for (const std::uint64_t from : {1U, 9U, 10U, 17U, 29U, 30U, 31U}) {
    const auto rest = drawn({.seed = 7, .epochs = 3, .from = from});
    BOOST_REQUIRE(rest.size() == 30U - std::min<std::uint64_t>(30, from));
    for (std::size_t i = 0; i < rest.size(); ++i) {
      BOOST_TEST(rest[i].number == from + i);
      BOOST_TEST(rest[i].index == all[from + i].index);
    }
  }
  const auto other = drawn({.seed = 8, .epochs = 3});
  BOOST_TEST(!std::equal(all.begin(), all.end(), other.begin(),
                         [](const auto& a, const auto& b) { return a.index == b.index; }));
}

BOOST_AUTO_TEST_CASE(SAM_2_an_epoch_has_every_sample_once) {
  const auto all = drawn({.seed = 3, .epochs = 4});
  for (std::size_t e = 0; e < 4; ++e) {
    std::set<std::uint64_t> seen;
    for (std::size_t i = 0; i < 10; ++i) seen.insert(all[e * 10 + i].index);
    BOOST_TEST(seen.size() == 10U);
  }
  const auto plain = drawn({.is_shuffled = false, .epochs = 2});
  for (std::size_t i = 0; i < 20; ++i) BOOST_TEST(plain[i].index == i % 10);
}

BOOST_AUTO_TEST_CASE(SAM_3_epochs_have_the_order_of_idx_batch_and_large_ones_take_no_memory) {
  const sample_order small(5, 2, 1'000);
  const auto expected = permutation(5, 2, 1'000);
  for (std::uint64_t i = 0; i < 1'000; ++i) BOOST_TEST(small.at(i) == expected[i]);
  // Of a data set too large to be listed: positions that are looked at have indices of their own,
  // within the count, and another epoch has another order.
  for (const auto count : {sample_order::listed_max + 1, std::uint64_t{20'000'000},
                           std::uint64_t{1} << 40, (std::uint64_t{1} << 40) + 1}) {
    const sample_order one(5, 0, count), two(5, 1, count);
    std::set<std::uint64_t> seen;
    std::uint64_t same = 0, first_half = 0;
    constexpr std::uint64_t looks = 20'000;
    for (std::uint64_t i = 0; i < looks; ++i) {
      const auto at = one.at(count / looks * i);
      BOOST_REQUIRE(at < count);
      seen.insert(at);
      same += at == two.at(count / looks * i) ? 1 : 0;
      first_half += at < count / 2 ? 1 : 0;
    }
    BOOST_TEST(seen.size() == looks);
    BOOST_TEST(same < 10U);
    // 10,000 of 20,000, give or take six deviations of 70.
    BOOST_TEST(first_half > 9'576U);
    BOOST_TEST(first_half < 10'424U);
  }
  // All of it, of one that is just too large.
  const auto count = sample_order::listed_max + 3;
  const sample_order whole(9, 0, count);
  std::vector<bool> seen(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto at = whole.at(i);
    if (at >= count || seen[at]) BOOST_FAIL("index " << at << " comes twice, or is too large");
    seen[at] = true;
  }
}

BOOST_AUTO_TEST_CASE(a_stage_takes_the_value_of_a_sample) {
  flow_graph g;
  const auto all = samples(g, names(4), {.is_shuffled = false});
  const auto by_value = collect(map(all, [](std::string s) { return s + "!"; }));
  const auto by_reference = collect(map(all, [](const std::string& s) { return s.size(); }));
  const auto with_numbers = collect(
      map(all, [](sample<std::string> s) { return s.value + ":" + std::to_string(s.number); }));
  BOOST_REQUIRE(drain(g));
  BOOST_TEST(by_value->at(3) == "s3!");
  BOOST_TEST(by_reference->at(3) == 2U);
  BOOST_TEST(with_numbers->at(3) == "s3:3");
}

BOOST_AUTO_TEST_CASE(no_samples_are_a_mistake) {
  flow_graph g;
  (void)collect(samples(g, std::vector<int>{}));
  const auto ok = drain(g);
  BOOST_REQUIRE(!ok);
  BOOST_TEST(ok.error().text().find("samples: there are none") != std::string::npos);
  BOOST_TEST(ok.error().text().find("sample_stages_test.cpp:") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_shuffle_keeps_every_item_and_its_order_is_that_of_the_seed) {
  std::vector<int> numbers(500);
  std::iota(numbers.begin(), numbers.end(), 0);
  const auto shuffled = [&](std::uint64_t seed, std::uint64_t hold) {
    flow_graph g;
    return drained(g, shuffle(from(g, numbers), {.seed = seed, .hold = hold}));
  };
  const auto one = shuffled(1, 100);
  BOOST_TEST(one == shuffled(1, 100), boost::test_tools::per_element());
  BOOST_TEST((one != shuffled(2, 100)));
  auto sorted = one;
  std::sort(sorted.begin(), sorted.end());
  BOOST_TEST(sorted == numbers, boost::test_tools::per_element());
  // An item leaves once so many behind it have come, at the earliest.
  std::size_t moved = 0;
  for (std::size_t i = 0; i < one.size(); ++i) {
    BOOST_TEST(one[i] <= static_cast<int>(i) + 100);
    moved += one[i] != static_cast<int>(i) ? 1 : 0;
  }
  BOOST_TEST(moved > 450U);
  BOOST_TEST(shuffled(1, 1) == numbers, boost::test_tools::per_element());
  const auto whole = shuffled(3, 1'000);
  BOOST_TEST((whole != numbers));
  BOOST_TEST(whole.size() == 500U);
}

BOOST_AUTO_TEST_CASE(flows_are_interleaved_in_turn_and_the_longer_ones_go_on) {
  flow_graph g;
  const auto got = drained(g, interleave(std::vector{from(g, {0, 3, 6, 8}), from(g, {1, 4}),
                                                     from(g, {2, 5, 7, 9, 10})}));
  BOOST_REQUIRE(got.size() == 11U);
  for (int i = 0; i < 11; ++i) BOOST_TEST(got[static_cast<std::size_t>(i)] == i);
}

BOOST_AUTO_TEST_CASE(what_was_made_once_is_not_made_again) {
  for (const std::uint32_t replicas : {1U, 3U}) {
    flow_graph g;
    counting_length f;
    const auto calls = f.calls;
    const auto all = collect(
        cached(samples(g, names(20), {.seed = 2, .epochs = 5}), f, {}, {.replicas = replicas}));
    BOOST_REQUIRE(drain(g));
    BOOST_TEST(*calls == 20);
    BOOST_REQUIRE(all->size() == 100U);
    for (std::uint64_t n = 0; n < all->size(); ++n) {
      BOOST_TEST((*all)[n].number == n);
      BOOST_TEST((*all)[n].value == ((*all)[n].index < 10 ? 2U : 3U));
    }
  }
}

// What is kept stays: a third that fits is made once.
BOOST_AUTO_TEST_CASE(a_cache_keeps_what_fits) {
  struct big {
    std::shared_ptr<std::atomic<int>> calls = std::make_shared<std::atomic<int>>(0);
    result<std::vector<std::uint8_t>> operator()(int i) const {
      ++*calls;
      if (i == 7) return error(error_code::failed, "seven is none");
      return std::vector<std::uint8_t>(10'000, static_cast<std::uint8_t>(i));
    }
  };
  flow_graph g;
  big f;
  const auto calls = f.calls;
  std::vector<int> numbers(30);
  std::iota(numbers.begin(), numbers.end(), 0);
  const auto all = collect(
      cached(samples(g, numbers, {.epochs = 4}), f, {.bytes = 105'000}, {.on_error = skip()}));
  BOOST_REQUIRE(drain(g));
  BOOST_TEST(all->size() == 29U * 4);
  for (const auto& s : *all) {
    BOOST_TEST(s.value.size() == 10'000U);
    BOOST_TEST(s.value.front() == s.index);
  }
  // Ten of 10,000 bytes fit. What fails is tried each time.
  BOOST_TEST(*calls == 10 + 20 * 4);
}

namespace {
struct measured {
  tensor values;
  std::vector<tensor> more;
  static constexpr auto fields =
      troupe::fields<&measured::values, &measured::more>("values", "more");
};
}  // namespace

BOOST_AUTO_TEST_CASE(SAM_4_who_writes_into_what_it_was_given_changes_nothing_else) {
  const auto writes = [](sample<measured> s) {
    s.value.values.data<float>()[0] += 1;
    s.value.more[0].data<float>()[0] += 1;
    return s.value.values.data<float>()[0] + s.value.more[0].data<float>()[0];
  };
  std::vector<measured> data;
  for (int i = 0; i < 3; ++i)
    data.push_back({tensor::of({float(i)}, {1}), {tensor::of({float(10 * i)}, {1})}});
  flow_graph g;
  const auto direct = collect(map(samples(g, data, {.is_shuffled = false, .epochs = 3}), writes));
  const auto kept = collect(
      map(cached(samples(g, std::vector{0, 1, 2}, {.is_shuffled = false, .epochs = 3}),
                 [](int i) {
                   return measured{tensor::of({float(i)}, {1}), {tensor::of({float(10 * i)}, {1})}};
                 }),
          writes));
  BOOST_REQUIRE(drain(g));
  for (const auto& all : {direct, kept}) {
    BOOST_REQUIRE(all->size() == 9U);
    for (std::size_t i = 0; i < 9; ++i) BOOST_TEST((*all)[i] == 11 * float(i % 3) + 2);
  }
}

BOOST_AUTO_TEST_CASE(a_cache_stays_in_the_program) {
  flow_graph g;
  (void)collect(cached(from(g, {1, 2}), [](int i) { return i; }, {}, {.on = "/job:worker"}));
  const auto ok = drain(g);
  BOOST_REQUIRE(!ok);
  BOOST_TEST(ok.error().text().find("leave .on out") != std::string::npos, ok.error().text());
}

BOOST_AUTO_TEST_SUITE_END()
