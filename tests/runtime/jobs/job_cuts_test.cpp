#include "troupe/runtime/jobs/job_cuts.hpp"

#include <boost/test/unit_test.hpp>

#include <cstdint>
#include <string>
#include <vector>

using namespace troupe;

namespace {

constexpr std::int64_t s = 1'000'000'000;
constexpr node_id a{1}, b{2};

part_saved part(std::uint64_t step, std::vector<std::uint64_t> worker_steps) {
  part_saved p;
  p.epoch = 1;
  p.step = step;
  p.worker_steps = std::move(worker_steps);
  return p;
}

troupe::job_cuts cuts_of_two() {
  troupe::job_cuts c(0, 10 * s, 0);
  c.begin(0);
  c.begin_epoch({a, b});
  return c;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(job_cuts)

BOOST_AUTO_TEST_CASE(are_due_by_time_by_steps_or_when_wanted) {
  troupe::job_cuts by_time(0, 10 * s, 0), by_steps(20, 0, 5), neither(0, 0, 0);
  by_time.begin(3 * s);
  BOOST_TEST(!by_time.is_due(12 * s, 1000));
  BOOST_TEST(by_time.is_due(13 * s, 0));
  BOOST_TEST(!by_steps.is_due(1000 * s, 24));
  BOOST_TEST(by_steps.is_due(0, 25));
  BOOST_TEST(!neither.is_due(1000 * s, 1000));
  neither.want();
  BOOST_TEST(neither.is_due(0, 0));
  BOOST_TEST(neither.ask(0, 0) == 1u);
  BOOST_TEST(!neither.is_due(1000 * s, 1000));
}

BOOST_AUTO_TEST_CASE(are_made_one_at_a_time_until_one_takes_too_long) {  // CU-1
  auto c = cuts_of_two();
  c.ask(10 * s, 4);
  BOOST_TEST(!c.is_due(10 * s + troupe::job_cuts::making_max_ns - 1, 4));
  BOOST_TEST(c.is_due(10 * s + troupe::job_cuts::making_max_ns, 4));
  BOOST_TEST(c.on_saved(a, part(4, {2, 2}), ""));
  BOOST_TEST(c.on_saved(b, part(4, {2, 2}), ""));
  BOOST_TEST(!c.is_due(1000 * s, 4));  // a manifest is due
  BOOST_TEST(c.take_manifests(std::vector<std::uint64_t>{2, 2}).size() == 1u);
  BOOST_TEST(!c.is_due(1000 * s, 4));  // and being written
  BOOST_TEST(c.on_manifest(4, 1));
  BOOST_TEST(!c.on_manifest(4, 1));
  BOOST_TEST(c.is_due(1000 * s, 4));
}

BOOST_AUTO_TEST_CASE(are_written_when_the_program_has_all_losses) {  // CU-2
  auto c = cuts_of_two();
  c.on_saved(a, part(5, {2, 3}), "");
  BOOST_TEST(c.take_manifests(std::vector<std::uint64_t>{9, 9}).empty());  // of one node
  c.on_saved(b, part(5, {2, 3}), "");
  BOOST_TEST(c.take_manifests(std::vector<std::uint64_t>{2, 2}).empty());
  BOOST_TEST(!c.is_idle());
  const auto m = c.take_manifests(std::vector<std::uint64_t>{2, 3});
  BOOST_REQUIRE(m.size() == 1u);
  BOOST_TEST(m[0].step == 5u);
  BOOST_TEST(m[0].epoch == 1u);
  BOOST_TEST(m[0].parts.size() == 2u);
  BOOST_TEST((m[0].worker_steps == std::vector<std::uint64_t>{2, 3}));
}

BOOST_AUTO_TEST_CASE(of_which_a_part_was_not_saved_or_is_of_other_steps_are_lost) {  // CU-3
  auto c = cuts_of_two();
  c.on_saved(a, part(5, {2, 3}), "the disk is full");
  BOOST_TEST(!c.on_saved(b, part(5, {2, 3}), ""));
  BOOST_TEST(c.why_lost() == "the disk is full");
  c.on_saved(a, part(6, {3, 3}), "");
  BOOST_TEST(!c.on_saved(b, part(6, {2, 4}), ""));
  BOOST_TEST(c.why_lost() == "its parts hold different steps because a worker was lost");
  BOOST_TEST(c.is_idle());
}

BOOST_AUTO_TEST_CASE(of_an_epoch_that_ends_are_forgotten) {
  auto c = cuts_of_two();
  c.ask(0, 0);
  c.on_saved(a, part(5, {2, 3}), "");
  c.on_saved(a, part(4, {2, 2}), "");
  c.on_saved(b, part(4, {2, 2}), "");
  c.end_epoch();
  BOOST_TEST(c.take_manifests(std::vector<std::uint64_t>{9, 9}).empty());
  c.begin_epoch({a, b});
  BOOST_TEST(c.is_due(10 * s, 0));
  c.on_saved(b, part(5, {2, 3}), "");
  BOOST_TEST(c.take_manifests(std::vector<std::uint64_t>{9, 9}).empty());
}

BOOST_AUTO_TEST_CASE(that_are_lost_in_a_row_are_told_of_ever_more_rarely) {  // CU-4
  auto c = cuts_of_two();
  std::vector<std::uint64_t> told;
  for (std::uint64_t step = 1; step <= 9; ++step)
    if (c.lost(step, "full")) told.push_back(step);
  BOOST_TEST((told == std::vector<std::uint64_t>{1, 2, 4, 8}));
  BOOST_TEST(c.written(10).value() ==
             "the checkpoint of step 10 was written; the 9 before it were not");
  BOOST_TEST(!c.written(11));
  BOOST_TEST(c.lost(12, "full").value() == "the checkpoint of step 12 was not written: full");
  BOOST_TEST(!c.written(13));
  BOOST_TEST(c.count() == 3u);
}

BOOST_AUTO_TEST_SUITE_END()
