// The usual loop around a step.

#include "tests/support/event_reader.hpp"
#include "tests/support/wait.hpp"
#include "troupe/actors/session/fit.hpp"
#include "troupe/actors/session/session.hpp"
#include "troupe/devices/files/safetensors.hpp"
#include "troupe/devices/files/scratch_folder.hpp"
#include "troupe/runtime/graph/build.hpp"
#include "troupe/runtime/layers/layers.hpp"
#include "troupe/runtime/layers/updates.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

using namespace troupe;

namespace {

// One variable, to which each step adds 1; a validation says what the test fed it.
struct counting {
  std::unique_ptr<session> s;
  std::unique_ptr<graph> g;
  std::unique_ptr<variable_store> store;
  std::unique_ptr<graph_runner> r;

  counting() {
    auto opened = session::open({.gpus = "none"});
    BOOST_TEST_REQUIRE(bool(opened));
    s = std::move(*opened);
    g = std::make_unique<graph>(s->ops());
    const auto w = variable(*g, {dtype::f32, {}}, {}, "w");
    const auto said = input(*g, {dtype::f32, batch_of(8, {})}, "said");
    named(w * 2.0F, "loss");
    named(reduce_mean(said), "metric");
    assign_add(w, constant(*g, 1.0F), "train");
    BOOST_TEST_REQUIRE(!g->first_error(), (g->first_error() ? g->first_error()->text() : ""));
    store = s->make_store();
    BOOST_TEST_REQUIRE(bool(store->initialize(*g)));
    r = s->runner(*g, *store);
  }
  static void named(value v, const char* name) { v.owner->node(v.node).name = name; }
  float w() const { return *(*store->get("w")).data<float>(); }
};

// A validation of two batches, of one and three rows, that say the number of the epoch.
batch_source saying(std::vector<float> of_epoch) {
  return [of_epoch](std::uint64_t epoch, std::uint64_t step) -> next_batch {
    if (step == 2) return std::nullopt;
    const auto x = of_epoch.at(epoch);
    const auto t = step == 0 ? tensor::of({x + 3}, {1}) : tensor::of({x - 1, x - 1, x - 1}, {3});
    return fed_batch{{"said", t}};
  };
}

}  // namespace

BOOST_AUTO_TEST_SUITE(fit)

BOOST_AUTO_TEST_CASE(epochs_are_told_and_logged) {
  counting c;
  auto folder = scratch_folder::make("fit");
  BOOST_TEST_REQUIRE(bool(folder));
  const auto log = (*folder)->path() + "/log.jsonl";
  std::vector<double> losses;
  const auto done = troupe::fit(*c.r, *c.store,
                                {.epochs = 3,
                                 .training = times(4),
                                 .validation = saying({5, 4, 6}),
                                 .metrics = {"metric"},
                                 .log_file = log,
                                 .on_step = [&](std::uint64_t, double loss) {
                                   losses.push_back(loss);
                                   return true;
                                 }});
  BOOST_TEST_REQUIRE(bool(done), (done ? "" : done.error().text()));
  BOOST_TEST((done->why == fit_end::epochs));
  BOOST_TEST(done->steps == 12U);
  BOOST_TEST(done->best_epoch == 1U);
  BOOST_TEST(done->best == 4);
  BOOST_TEST_REQUIRE(done->epochs.size() == 3U);
  BOOST_TEST(done->epochs[1].loss == 11);  // 8, 10, 12, 14
  BOOST_TEST(done->epochs[2].metrics == std::vector<double>{6});
  BOOST_TEST((done->epochs[0].is_best && done->epochs[1].is_best && !done->epochs[2].is_best));
  BOOST_TEST(losses.size() == 12U);
  BOOST_TEST(c.w() == 12);
  std::ifstream in(log);
  std::string line, last;
  int lines = 0;
  while (std::getline(in, line)) last = line, ++lines;
  BOOST_TEST(lines == 3);
  BOOST_TEST(last.find("{\"epoch\":2,\"steps\":12,\"seconds\":") == 0U, last);
  BOOST_TEST(
      last.find(",\"loss\":19,\"validation/metric\":6,\"is_best\":false}") != std::string::npos,
      last);
}

BOOST_AUTO_TEST_CASE(steps_and_epochs_are_written_for_tensorboard) {
  counting c;
  auto folder = scratch_folder::make("fit");
  BOOST_TEST_REQUIRE(bool(folder));
  const auto runs = (*folder)->path() + "/runs/1";
  const auto done = troupe::fit(*c.r, *c.store,
                                {.epochs = 2,
                                 .training = times(4),
                                 .validation = saying({5, NAN}),
                                 .metrics = {"metric"},
                                 .tensorboard = runs});
  BOOST_TEST_REQUIRE(bool(done), (done ? "" : done.error().text()));
  const auto files = test::files_in(runs);
  BOOST_TEST_REQUIRE(files.size() == 1U);
  const auto events = test::events_of(files[0]);
  BOOST_TEST_REQUIRE(events.size() == 2U + 8 + 2 * 3);
  BOOST_TEST((events[1].is_start && events[1].step == 0U));
  const auto has = [&](const char* tag, std::uint64_t step, float value) {
    const auto at =
        std::ranges::find_if(events, [&](const auto& e) { return e.tag == tag && e.step == step; });
    BOOST_TEST_REQUIRE((at != events.end()), tag << " of step " << step);
    if (std::isnan(value))
      BOOST_TEST(std::isnan(at->value), tag << " is " << at->value);
    else
      BOOST_TEST(at->value == value, tag << " is " << at->value);
  };
  for (std::uint64_t i = 0; i < 8; ++i) has("loss", i, 2 * static_cast<float>(i));
  has("epoch/loss", 3, 3);
  has("epoch/loss", 7, 11);
  has("validation/metric", 3, 5);
  has("validation/metric", 7, NAN);
  BOOST_TEST(std::ranges::count(events, "steps_per_second", &test::read_event::tag) == 2);
  // A run that is broken off has its file, too.
  const auto ended = troupe::fit(
      *c.r, *c.store,
      {.epochs = 9, .training = times(2), .tensorboard = runs, .on_step = [](auto, auto) {
         return false;
       }});
  BOOST_TEST_REQUIRE(bool(ended));
  const auto both = test::files_in(runs);
  BOOST_TEST_REQUIRE(both.size() == 2U);
  const auto second = test::events_of(both[both[0] == files[0] ? 1 : 0]);
  BOOST_TEST(std::ranges::count(second, "loss", &test::read_event::tag) == 1);
}

BOOST_AUTO_TEST_CASE(steps_and_epochs_are_recorded_for_other_tools) {
  counting c;
  auto folder = scratch_folder::make("fit");
  BOOST_TEST_REQUIRE(bool(folder));
  const auto record = (*folder)->path() + "/run.csv";
  // The second one replaces the first.
  for (int i = 0; i < 2; ++i) {
    const auto done = troupe::fit(*c.r, *c.store,
                                  {.epochs = 2,
                                   .training = times(3),
                                   .validation = saying({5, 4}),
                                   .metrics = {"metric"},
                                   .record = record});
    BOOST_TEST_REQUIRE(bool(done), (done ? "" : done.error().text()));
  }
  std::ifstream in(record);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  // A head, a line for each step, three for each epoch.
  BOOST_TEST_REQUIRE(lines.size() == 1U + 6 + 2 * 3);
  BOOST_TEST(lines[1].starts_with("0,"));
  BOOST_TEST(lines[3].ends_with("Z,16,,,0,,"), lines[3]);  // step 2, after six others: 2 * 8
  BOOST_TEST(lines[4].ends_with(",epoch/loss,14"), lines[4]);
  BOOST_TEST(lines[5].ends_with(",validation/metric,5"), lines[5]);
  BOOST_TEST(lines[6].find(",steps_per_second,") != std::string::npos, lines[6]);
  const auto bad = troupe::fit(*c.r, *c.store, {.training = times(1), .record = "run.txt"});
  BOOST_TEST_REQUIRE(!bad);
  BOOST_TEST(bad.error().text().find("fit: record: 'run.txt' is no name of a record") !=
             std::string::npos);
}

BOOST_AUTO_TEST_CASE(it_ends_early_with_the_best_weights) {
  counting c;
  auto folder = scratch_folder::make("fit");
  BOOST_TEST_REQUIRE(bool(folder));
  const auto file = (*folder)->path() + "/best.safetensors";
  const auto done = troupe::fit(*c.r, *c.store,
                                {.epochs = 100,
                                 .training = times(1),
                                 .validation = saying({5, 3, 4, NAN, 3.5F, 9, 9}),
                                 .metrics = {"metric"},
                                 .patience = 3,
                                 .keeps_best = true,
                                 .save_best = file});
  BOOST_TEST_REQUIRE(bool(done), (done ? "" : done.error().text()));
  BOOST_TEST((done->why == fit_end::no_progress));
  BOOST_TEST(done->epochs.size() == 5U);
  BOOST_TEST(done->best_epoch == 1U);
  BOOST_TEST(c.w() == 2);  // as after the second epoch
  const auto saved = load_safetensors(file);
  BOOST_TEST_REQUIRE(bool(saved));
  BOOST_TEST(*(*saved)[0].values.data<float>() == 2);
  // The larger the better, by at least so much.
  const auto up = troupe::fit(*c.r, *c.store,
                              {.epochs = 100,
                               .training = times(1),
                               .validation = saying({1, 1.5F, 1.9F, 9}),
                               .metrics = {"metric"},
                               .patience = 2,
                               .at_least = 1,
                               .is_larger_better = true});
  BOOST_TEST_REQUIRE(bool(up));
  BOOST_TEST(up->epochs.size() == 3U);
  BOOST_TEST(up->best == 1);
}

// Whatever ends it, and nothing but what it trains goes back.
BOOST_AUTO_TEST_CASE(the_best_weights_are_kept_also_when_a_source_fails) {
  counting c;
  BOOST_TEST_REQUIRE(bool(c.store->set("other", tensor::of({0}, {1}))));
  const auto done = troupe::fit(
      *c.r, *c.store,
      {.epochs = 9,
       .training = [](std::uint64_t epoch, std::uint64_t step) -> next_batch {
         if (epoch == 3) return error(error_code::failed, "the disk is gone");
         if (step == 0) return fed_batch{};
         return std::nullopt;
       },
       .validation = saying({5, 3, 4}),
       .metrics = {"metric"},
       .keeps_best = true,
       .on_epoch =
           [&](const auto& e) {
             return bool(c.store->set("other", tensor::of({static_cast<float>(e.epoch)}, {1})));
           }});
  BOOST_TEST_REQUIRE(!done);
  BOOST_TEST(done.error().text() == "the disk is gone");
  BOOST_TEST(c.w() == 2);
  BOOST_TEST(*(*c.store->get("other")).data<float>() == 2);
  const auto lost = troupe::fit(*c.r, *c.store,
                                {.epochs = 2,
                                 .training = times(1),
                                 .validation = saying({NAN, NAN}),
                                 .metrics = {"metric"},
                                 .keeps_best = true});
  BOOST_TEST_REQUIRE(bool(lost));
  BOOST_TEST(std::isnan(lost->best));
}

BOOST_AUTO_TEST_CASE(rows_come_in_the_order_in_which_a_training_reads_them) {
  counting c;
  const auto x = tensor::of({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, {10});
  graph g(c.s->ops());
  const value rows = gather(constant(g, x), index_batch(g, 10, {.batch = 4, .seed = 7}).ids);
  const auto read = c.s->compile(g, {&rows, 1});
  BOOST_TEST_REQUIRE(bool(read));
  auto source = batches_of({{"x", x}}, 4, 7);
  for (std::uint64_t step = 0; step < 9; ++step) {
    const auto fed = source(step / 3, step % 3);
    BOOST_TEST_REQUIRE(fed.batch.has_value());
    const auto there = (*read)->step({});
    BOOST_TEST_REQUIRE(bool(there));
    BOOST_TEST(std::ranges::equal(fed.batch->front().second.bytes(), (*there)[0].bytes()));
  }
}

BOOST_AUTO_TEST_CASE(rows_come_in_batches) {
  const auto x = tensor::of({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, {5, 2});
  const auto y = tensor::of({0, 2, 4, 6, 8}, {5});
  for (const auto seed : {std::optional<std::uint64_t>(), std::optional<std::uint64_t>(3)}) {
    const auto source = batches_of({{"x", x}, {"y", y}}, 2, seed);
    std::vector<std::vector<float>> epochs;
    for (std::uint64_t e = 0; e < 2; ++e) {
      std::vector<float> seen;
      for (std::uint64_t i = 0;; ++i) {
        auto b = source(e, i);
        BOOST_TEST_REQUIRE(!b.failure.has_value());
        if (!b.batch) break;
        const auto& [a, c] = std::pair((*b.batch)[0].second, (*b.batch)[1].second);
        BOOST_TEST(a.shape().size(0) == (i < 2 ? 2 : 1));
        for (std::int64_t k = 0; k < c.elements(); ++k) {
          seen.push_back(c.data<float>()[k]);
          BOOST_TEST(a.data<float>()[2 * k] == seen.back());  // of one row
        }
      }
      BOOST_TEST(seen.size() == 5U);
      epochs.push_back(seen);
      std::ranges::sort(seen);
      BOOST_TEST(seen == (std::vector<float>{0, 2, 4, 6, 8}));
    }
    BOOST_TEST((epochs[0] == epochs[1]) == !seed.has_value());
  }
  BOOST_TEST(batches_of({{"x", x}, {"y", tensor::of({1}, {1})}}, 2)(0, 0).failure.has_value());
  BOOST_TEST(batches_of({}, 2)(0, 0).failure.has_value());
}

BOOST_AUTO_TEST_CASE(callbacks_end_it) {
  counting c;
  const auto one = troupe::fit(
      *c.r, *c.store,
      {.epochs = 5, .training = times(10), .on_epoch = [](const auto& e) { return e.epoch < 1; }});
  BOOST_TEST_REQUIRE(bool(one));
  BOOST_TEST((one->why == fit_end::callback));
  BOOST_TEST(one->steps == 20U);
  const auto two =
      troupe::fit(*c.r, *c.store,
                  {.epochs = 5, .training = times(10), .on_step = [](std::uint64_t step, double) {
                     return step < 12;
                   }});
  BOOST_TEST_REQUIRE(bool(two));
  BOOST_TEST(two->steps == 13U);
  BOOST_TEST(two->epochs.size() == 2U);
}

BOOST_AUTO_TEST_CASE(what_is_wrong_is_told) {
  counting c;
  const auto has = [](const auto& out, const std::string& part) {
    BOOST_TEST_REQUIRE(!out);
    BOOST_TEST(out.error().text().find(part) != std::string::npos, out.error().text());
  };
  has(troupe::fit(*c.r, *c.store, {}), "no batches");
  has(troupe::fit(*c.r, *c.store, {.training = times(1), .loss = "lost"}), "no 'lost'");
  has(troupe::fit(*c.r, *c.store, {.training = times(1), .validation = times(0)}), "no batch");
  has(troupe::fit(*c.r, *c.store, {.training = times(0)}), "epoch 0 has no batch to train on");
  has(troupe::fit(*c.r, *c.store, {.training = times(1), .metrics = {"metric"}}),
      "metric 'metric' is of a validation");
  has(troupe::fit(*c.r, *c.store, {.training = times(1), .at_least = NAN}), "at_least is nan");
  const auto other = c.s->make_store();
  has(troupe::fit(*c.r, *other, {.training = times(1)}), "not one on this store");
  has(troupe::fit(*c.r, *c.store, {.training = times(1), .log_file = "/dev/full"}),
      "cannot be written");
  has(troupe::fit(*c.r, *c.store, {.training = times(1), .log_file = "/no/such/folder/log"}),
      "cannot be written");
  has(troupe::fit(*c.r, *c.store, {.training = times(1), .tensorboard = "/dev/null"}),
      "fit: tensorboard: cannot make the folder /dev/null: Not a directory");
  has(troupe::fit(*c.r, *c.store, {.training = [](std::uint64_t, std::uint64_t) -> next_batch {
        return error(error_code::failed, "the file has ended");
      }}),
      "the file has ended");
  has(find_learning_rate(*c.s, *c.g, *c.store, {.training = times(1), .from = 0}), "1e-37 <= from");
  has(find_learning_rate(*c.s, *c.g, *c.store, {.training = times(1), .rate = "said"}),
      "no update 'train' has the input 'said' as its rate");
}

// Batches differ, so the loss rises and falls by itself.
BOOST_AUTO_TEST_CASE(a_loss_that_wavers_does_not_end_the_search) {
  auto s = session::open({.gpus = "none"});
  BOOST_TEST_REQUIRE(bool(s));
  graph g((*s)->ops());
  const auto w = variable(g, {dtype::f32, {4}}, filled_with(1), "w");
  const auto noise = input(g, {dtype::f32, {}}, "noise");
  const auto loss = named(reduce_sum(square(w)) * noise, "loss");
  minimize(loss, sgd({.learning_rate = 1}), {.rate = input(g, {dtype::f32, {}}, "rate")});
  BOOST_TEST_REQUIRE(!g.first_error(), (g.first_error() ? g.first_error()->text() : ""));
  const auto store = (*s)->make_store();
  BOOST_TEST_REQUIRE(bool(store->initialize(g)));
  const auto batches = [](std::uint64_t, std::uint64_t step) -> next_batch {
    return fed_batch{{"noise", tensor::of({step % 3 == 1 ? 1.4F : 1.0F}, {})}};
  };
  const auto found =
      find_learning_rate(**s, g, *store, {.training = batches, .from = 1e-5, .to = 100});
  BOOST_TEST_REQUIRE(bool(found), (found ? "" : found.error().text()));
  BOOST_TEST(found->losses.size() > 40U);
  BOOST_TEST((found->suggested > 0.005 && found->suggested < 0.5), found->suggested);
}

// What is no tensor is an error, in a validation too.
BOOST_AUTO_TEST_CASE(an_empty_tensor_is_an_error) {
  counting c;
  const auto done = troupe::fit(*c.r, *c.store,
                                {.training = times(1),
                                 .validation = [](std::uint64_t, std::uint64_t) -> next_batch {
                                   return fed_batch{{"said", tensor{}}};
                                 },
                                 .metrics = {"metric"}});
  BOOST_TEST_REQUIRE(!done);
  BOOST_TEST(done.error().text().find("no tensor") != std::string::npos, done.error().text());
}

// A parabola, on which plain descent goes well up to a rate of 1 and badly from 1 on.
BOOST_AUTO_TEST_CASE(a_learning_rate_is_found_on_a_copy) {
  auto s = session::open({.gpus = "none"});
  BOOST_TEST_REQUIRE(bool(s));
  graph g((*s)->ops());
  const auto w = variable(g, {dtype::f32, {4}}, filled_with(1), "w");
  const auto loss = reduce_sum(square(w));
  g.node(loss.node).name = "loss";
  const auto rate = input(g, {dtype::f32, {}}, "rate");
  minimize(loss, sgd({.learning_rate = 1}), {.rate = rate});
  const auto store = (*s)->make_store();
  BOOST_TEST_REQUIRE(bool(store->initialize(g)));
  const auto found =
      find_learning_rate(**s, g, *store, {.training = times(7), .from = 1e-5, .to = 100});
  BOOST_TEST_REQUIRE(bool(found), (found ? "" : found.error().text()));
  BOOST_TEST(found->losses.size() > 10U);
  BOOST_TEST(found->losses.size() < 100U);  // it stopped where it grew
  BOOST_TEST((found->suggested > 0.005 && found->suggested < 0.5), found->suggested);
  BOOST_TEST(*(*store->get("w")).data<float>() == 1);
}

BOOST_AUTO_TEST_SUITE_END()
