#include "troupe/runtime/compile/graph_file.hpp"
#include "troupe/runtime/graph/build.hpp"
#include "troupe/runtime/graph/op_table.hpp"
#include "troupe/runtime/jobs/job_journal.hpp"

#include <boost/test/unit_test.hpp>

#include <random>

using namespace troupe;

namespace {

constexpr node_id client{99}, n1{1}, n2{2}, n3{3};

std::vector<std::byte> a_graph(std::uint32_t workers = 2) {
  const auto ops = make_op_table();
  graph g(ops);
  const auto loss = reduce_sum(
      mul(variable(g, {dtype::f32, {2}}, {}, "w"), variable(g, {dtype::f32, {2}}, {}, "b")));
  training_spec spec;
  spec.workers = workers;
  spec.shards = 2;
  spec.steps = 10;
  spec.is_recoverable = spec.has_cuts = true;
  auto bytes =
      encode_graph(g, {.name = "training", .loss = loss, .training = graph_training{spec, {}}});
  BOOST_TEST_REQUIRE(bool(bytes));
  return *bytes;
}

job_recipe recipe() {
  job_recipe r;
  r.graph = a_graph();
  r.on_failure = failure_policy::resume;
  r.limits = {5, 6'000, 7, 8'000, 9'000};
  r.checkpoints = {"/checkpoints", 100, 200, known_checkpoint{3, 40, {40, 40}}, 4};
  r.keep = 2;
  return r;
}

job_journal journal(std::uint32_t epoch = 5) {
  job_journal j;
  j.epoch = epoch;
  j.coordinator = client;
  j.successors = {n1, n2};
  j.roles = {{n1, n2}, {n3, n3}, {n1, n1}, true};
  j.first_steps = {4, 4};
  j.next_losses = {9, 9};
  j.closed = {{.fed = 7, .dropped = 1}, {.fed = 6}};
  j.data_messages = 11;
  j.recoveries = 12;
  j.checkpoints = 13;
  j.last_step = 14;
  j.is_finishing = true;
  j.is_suspending = true;
  j.data = {{"training data in /d", 5, "n1"}};
  j.in_vain = 3;
  j.progress = 8;
  j.started_unix_ns = 15;
  j.losses = {{7, 0, 0.5F}, {8, 1, -1.5F}};
  return j;
}

bool is_alive_but(node_id n, std::initializer_list<node_id> dead) {
  return std::find(dead.begin(), dead.end(), n) == dead.end();
}

}  // namespace

BOOST_AUTO_TEST_SUITE(job_journal)

BOOST_AUTO_TEST_CASE(a_recipe_and_a_journal_come_back_as_they_were) {
  const auto r = decode_recipe(encode(recipe()));
  BOOST_TEST_REQUIRE(bool(r));
  BOOST_TEST((r->graph == recipe().graph));
  BOOST_TEST((r->on_failure == failure_policy::resume));
  BOOST_TEST(r->limits.failures_max == 5U);
  BOOST_TEST(r->limits.delay_max_ns == 9'000);
  BOOST_TEST(r->checkpoints.folder == "/checkpoints");
  BOOST_TEST(r->checkpoints.epoch == 4U);
  BOOST_TEST_REQUIRE(bool(r->checkpoints.resume_from));
  BOOST_TEST(r->checkpoints.resume_from->step == 40U);
  BOOST_TEST(r->keep == 2U);
  const auto j = decode_journal(encode(journal()));
  BOOST_TEST_REQUIRE(bool(j));
  BOOST_TEST((*j == journal()));
}

BOOST_AUTO_TEST_CASE(the_training_of_a_recipe_compiles_for_whoever_coordinates_it) {
  const auto ops = make_op_table();
  const auto r = recipe();
  const auto there = make_program(r, journal().roles, n1, ops);
  BOOST_TEST_REQUIRE(bool(there), (there ? "" : there.error().text()));
  BOOST_TEST(there->name() == "training");
  BOOST_TEST(there->spec().steps == 10U);
  BOOST_TEST(there->variables().size() == 2U);
  BOOST_TEST(!make_program(r, {{n1}, {n2, n2}}, n1, ops));  // another number of workers
  auto damaged = r;
  damaged.graph[damaged.graph.size() / 2] ^= std::byte{1};
  BOOST_TEST(!make_program(damaged, journal().roles, n1, ops));
}

BOOST_AUTO_TEST_CASE(JJ_3_any_bytes_are_a_value_or_an_error) {
  std::mt19937_64 random(1);
  for (const auto& whole : {encode(recipe()), encode(journal())}) {
    std::size_t read = 0;
    for (int i = 0; i < 2000; ++i) {
      auto bytes = whole;
      for (auto flips = 1 + random() % 4; flips > 0; --flips)
        bytes[random() % bytes.size()] ^= std::byte(1 + random() % 255);
      if (random() % 4 == 0) bytes.resize(random() % bytes.size());
      read += bool(decode_recipe(bytes)) + bool(decode_journal(bytes));
    }
    BOOST_TEST(read > 0U);
  }
  BOOST_TEST(!decode_journal({}));
  auto uneven = journal();
  uneven.first_steps = {4};
  BOOST_TEST(!decode_journal(encode(uneven)));
  auto backwards = journal();
  backwards.first_steps = {10, 4};
  BOOST_TEST(!decode_journal(encode(backwards)));
  auto stranger = journal();
  stranger.losses.push_back({1, 2, 0});  // of worker 2 of 2
  BOOST_TEST(!decode_journal(encode(stranger)));
}

BOOST_AUTO_TEST_CASE(JJ_4_the_newest_losses_are_kept) {
  loss_history h;
  for (std::uint64_t t = 0; t < loss_history::losses_max + 5; ++t) h.add({t, 0, 0});
  BOOST_TEST(h.newest().size() == loss_history::losses_max);
  BOOST_TEST(h.newest().front().step == 5U);
}

BOOST_AUTO_TEST_CASE(JJ_2_the_first_successor_that_lives_takes_the_job_when_its_coordinator_dies) {
  kept_journals first(n1), second(n2), other(n3);
  const auto r = encode(recipe()), j = encode(journal());
  for (auto* k : {&first, &second, &other}) BOOST_TEST(bool(k->keep(client, job_id{7}, 1, r, j)));
  for (auto* k : {&first, &second, &other})
    BOOST_TEST(k->take_orphans([](node_id) { return true; }).empty());
  const auto is_alive = [](node_id n) { return is_alive_but(n, {client}); };
  BOOST_TEST(second.take_orphans(is_alive).empty());
  BOOST_TEST(other.take_orphans(is_alive).empty());  // it is no successor
  const auto taken = first.take_orphans(is_alive);
  BOOST_TEST_REQUIRE(taken.size() == 1U);
  BOOST_TEST((taken[0].first == job_id{7}));
  BOOST_TEST(taken[0].second.losses.newest().size() == 2U);
  BOOST_TEST(first.take_orphans(is_alive).empty());  // it has it
  BOOST_TEST(second.take_orphans([](node_id n) { return is_alive_but(n, {client, n1}); }).size() ==
             1U);
}

BOOST_AUTO_TEST_CASE(news_come_with_a_recipe_first_and_add_losses) {
  kept_journals k(n1);
  const auto r = encode(recipe());
  auto news = journal();
  BOOST_TEST(!k.keep(client, job_id{7}, 1, {}, encode(news)));  // no recipe yet
  BOOST_TEST(bool(k.keep(client, job_id{7}, 1, r, encode(news))));
  news.losses = {{9, 0, 2.0F}};
  news.next_losses = {10, 9};
  BOOST_TEST(bool(k.keep(client, job_id{7}, 2, {}, encode(news))));
  BOOST_TEST(!k.keep(n3, job_id{7}, 3, {}, encode(news)));  // it is not that one's
  BOOST_TEST(!k.keep(client, job_id{7}, 3, r, std::vector<std::byte>(16)));
  const auto got = k.take(client, job_id{7});
  BOOST_TEST_REQUIRE(bool(got));
  BOOST_TEST(got->number == 2U);
  BOOST_TEST(got->journal.next_losses[0] == 10U);
  BOOST_TEST(got->losses.newest().size() == 3U);
  BOOST_TEST(!k.take(client, job_id{7}));
}

// A coordinator that was held dead may come back with an old journal.
BOOST_AUTO_TEST_CASE(JJ_2_of_two_coordinators_the_one_of_the_newer_epoch_is_believed) {
  kept_journals k(n1);
  const auto r = encode(recipe());
  BOOST_TEST(bool(k.keep(n2, job_id{7}, 1, r, encode(journal(6)))));
  BOOST_TEST(!k.keep(client, job_id{7}, 9, r, encode(journal(5))));
  k.forget(client, job_id{7}, 6);  // not its coordinator's
  BOOST_TEST(k.has(job_id{7}));
  BOOST_TEST(bool(k.keep(n3, job_id{7}, 1, r, encode(journal(8)))));
  BOOST_TEST(!k.take(n2, job_id{7}));
  BOOST_TEST(bool(k.take(n3, job_id{7})));
}

BOOST_AUTO_TEST_CASE(who_has_rejoined_is_nobodys_successor) {
  kept_journals k(n1);
  BOOST_TEST(bool(k.keep(client, job_id{7}, 1, encode(recipe()), encode(journal()))));
  k.on_rejoined(node_id{50});
  BOOST_TEST(k.take_orphans([](node_id) { return false; }).empty());
}

BOOST_AUTO_TEST_SUITE_END()
