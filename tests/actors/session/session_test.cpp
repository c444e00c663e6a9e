// A program's view of the engine, alone in one process: real threads, real kernels.

#include "troupe/actors/session/session.hpp"

#include "tests/support/events.hpp"
#include "tests/support/image_folder.hpp"
#include "troupe/devices/files/safetensors.hpp"
#include "troupe/runtime/layers/layers.hpp"

#include <boost/test/unit_test.hpp>
#include <fmt/format.h>

#include <numeric>
#include <set>

using namespace troupe;

namespace {

struct outcome {
  std::vector<float> losses;
  std::string hash, failure;
  training_totals totals;
};

outcome train(const std::string& folder, training_options o, std::uint32_t threads,
              std::int64_t batch) {
  auto s = session::open({.threads = threads});
  BOOST_REQUIRE(s);
  auto data = open_idx(folder, false);
  BOOST_REQUIRE(data);
  graph g((*s)->ops());
  auto b = idx_batch(g, *data, {.batch = batch, .seed = 5, .parts = o.workers});
  auto logits = dense(relu(dense(b.images, 16, "hidden")), 10, "out");
  auto loss = softmax_cross_entropy(logits, b.labels, b.scale);
  auto run = (*s)->train(g, loss, o);
  BOOST_REQUIRE_MESSAGE(run, (run ? "" : run.error().text()));
  outcome out;
  while (auto e = test::next_event(**run)) {
    if (e->type == training_event::kind::loss) out.losses.push_back(e->loss);
    if (e->type == training_event::kind::failed) out.failure = e->text;
    if (e->type == training_event::kind::finished) out.totals = e->totals;
    if (e->type == training_event::kind::variables) {
      std::vector<named_tensor> tensors;
      for (auto& [name, value] : e->variables) tensors.push_back({name, value});
      out.hash = weights_hash(tensors);
    }
  }
  return out;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(session)

BOOST_FIXTURE_TEST_CASE(threads_fusing_and_credits_change_no_bit_of_synchronous_training,
                        image_folder) {
  // 200 samples in global batches of 48: the last one of an epoch has 8, and its parts 4 and 4.
  const training_options base{.workers = 2, .shards = 2, .steps = 15};
  const auto expected = train(path, base, 1, 24);
  BOOST_TEST(expected.failure == "");
  BOOST_TEST(expected.losses.size() == 15u);
  BOOST_TEST(expected.losses.back() < expected.losses.front());
  for (const bool fuse : {true, false})
    for (const std::uint32_t threads : {1u, 2u, 3u})
      for (const std::uint32_t credits : {1u, 3u}) {
        auto o = base;
        o.compile.fuse = fuse;
        o.compile.credits = credits;
        const auto got = train(path, o, threads, 24);
        BOOST_TEST(got.losses == expected.losses, boost::test_tools::per_element());
        BOOST_TEST(got.hash == expected.hash);
      }
  for (bool compile_options::* pass : {&compile_options::fold, &compile_options::simplify,
                                       &compile_options::share, &compile_options::share_memory}) {
    auto o = base;
    o.compile.*pass = false;
    BOOST_TEST(train(path, o, 1, 24).hash == expected.hash);
  }
}

std::vector<std::pair<std::string, optimizer_spec>> all_optimizers() {
  return {{"sgd",
           troupe::sgd(
               {.learning_rate = 0.05, .momentum = 0.9, .nesterov = true, .weight_decay = 1e-3})},
          {"adam", adam({.learning_rate = 0.01})},
          {"adamw", adamw({.learning_rate = 0.01, .clip_norm = 1})},
          {"rmsprop", rmsprop({.learning_rate = 1e-3, .momentum = 0.5, .centered = true})},
          {"adagrad", adagrad({.learning_rate = 0.03, .clip_value = 0.5})}};
}

BOOST_FIXTURE_TEST_CASE(every_optimizer_trains_with_the_same_bits_on_any_threads_and_shards,
                        image_folder) {
  std::set<std::string> hashes;
  for (const auto& [name, optimizer] : all_optimizers()) {
    const training_options base{.workers = 2,
                                .optimizer = optimizer,
                                .schedule = cosine({.steps = 40, .minimum = 0.1, .warmup = 3}),
                                .steps = 40};
    const auto expected = train(path, base, 1, 24);
    BOOST_TEST(expected.failure == "");
    // Five steps are a data epoch.
    const auto& l = expected.losses;
    const auto first = std::accumulate(l.begin(), l.begin() + 5, 0.0F),
               last = std::accumulate(l.end() - 5, l.end(), 0.0F);
    BOOST_TEST(last < 0.95F * first, name << ": " << first << " to " << last);
    hashes.insert(expected.hash);
    auto o = base;
    o.shards = 3;
    o.compile.fuse = false;
    const auto got = train(path, o, 3, 24);
    BOOST_TEST(got.losses == expected.losses, boost::test_tools::per_element());
    BOOST_TEST(got.hash == expected.hash, name);
    o.update = update_kind::async;
    const auto async = train(path, o, 2, 24);
    BOOST_TEST(async.failure == "");
    for (const auto& w : async.totals.workers) BOOST_TEST(w.applied == 40u);
  }
  BOOST_TEST(hashes.size() == 5u);
}

// Each optimizer, and SGD that changes the pushed rows alone; with several workers, asynchronous
// ones, and through a checkpoint.
BOOST_FIXTURE_TEST_CASE(rows_that_are_pushed_give_the_bits_of_whole_gradients, image_folder) {
  const auto outcome_of = [&](training_options o, bool is_sparse) {
    auto s = troupe::session::open({.threads = 2});
    BOOST_REQUIRE(s);
    auto data = open_idx(path, false);
    graph g((*s)->ops());
    auto b = idx_batch(g, *data, {.batch = 24, .seed = 5, .parts = o.workers});
    const auto table =
        variable(g, {dtype::f32, {300, 10}}, {initializer_spec::kind::uniform, 0.1}, "table");
    const auto seen = add(dense(b.images, 10, "out"), embedding(table, add(b.labels, b.labels)));
    o.compile.sparse_pushes = is_sparse;
    auto run = (*s)->train(g, softmax_cross_entropy(seen, b.labels, b.scale), o);
    BOOST_REQUIRE_MESSAGE(run, (run ? "" : run.error().text()));
    std::pair<std::vector<float>, std::string> out;
    while (auto e = test::next_event(**run)) {
      if (e->type == training_event::kind::loss) out.first.push_back(e->loss);
      if (e->type == training_event::kind::failed) BOOST_ERROR(e->text);
      if (e->type != training_event::kind::variables) continue;
      std::vector<named_tensor> tensors;
      for (auto& [name, value] : e->variables) tensors.push_back({name, value});
      out.second = weights_hash(tensors);
    }
    return out;
  };
  auto optimizers = all_optimizers();
  optimizers.emplace_back("plain", troupe::sgd({.learning_rate = 0.5}));
  for (const auto& [name, optimizer] : optimizers) {
    training_options sync{.workers = 3,
                          .optimizer = optimizer,
                          .schedule = warm_up(4),
                          .steps = 12,
                          .compile = {.name = name}};
    auto async = sync, first = sync, rest = sync;
    async.update = update_kind::async;
    async.workers = 1;  // alone it is deterministic
    for (const auto& o : {sync, async}) {
      const auto whole = outcome_of(o, false), rows = outcome_of(o, true);
      BOOST_TEST(rows.first == whole.first, boost::test_tools::per_element());
      BOOST_TEST(rows.second == whole.second, name);
    }
    first.steps = 5;
    first.checkpoints.folder = rest.checkpoints.folder = path + "/rows";
    rest.checkpoints.resume = true;
    (void)outcome_of(first, true);
    BOOST_TEST(outcome_of(rest, true).second == outcome_of(sync, false).second, name);
  }
}

BOOST_FIXTURE_TEST_CASE(a_schedule_changes_the_learning_rate_step_by_step, image_folder) {
  const training_options base{.optimizer = adam({}), .steps = 6};
  auto scheduled = base, late = base;
  scheduled.schedule = step_decay({.every = 3, .decay = 0.5});
  late.schedule = step_decay({.every = 6, .decay = 0.5});
  const auto a = train(path, base, 1, 24), b = train(path, scheduled, 1, 24),
             c = train(path, late, 1, 24);
  // That of step 3 is made before its update.
  for (std::size_t i = 0; i < 4; ++i) BOOST_TEST(a.losses[i] == b.losses[i]);
  BOOST_TEST(a.losses[4] != b.losses[4]);
  BOOST_TEST(a.hash == c.hash);
}

BOOST_FIXTURE_TEST_CASE(gradients_are_clipped_in_the_graph_where_their_common_norm_is_too_large,
                        image_folder) {
  training_options o{.workers = 2, .steps = 10};
  const auto plain = train(path, o, 1, 24);
  o.clip_global_norm = 1e6;
  BOOST_TEST(train(path, o, 1, 24).hash == plain.hash);
  o.clip_global_norm = 0.1;
  const auto clipped = train(path, o, 1, 24),
             unfused = (o.compile.fuse = false, train(path, o, 2, 24));
  BOOST_TEST(clipped.failure == "");
  BOOST_TEST(clipped.hash != plain.hash);
  BOOST_TEST(clipped.hash == unfused.hash);
}

BOOST_FIXTURE_TEST_CASE(an_optimizer_that_cannot_be_is_refused_before_anything_starts,
                        image_folder) {
  auto s = troupe::session::open({});
  BOOST_REQUIRE(s);
  const auto refusal = [&](const training_options& o) {
    graph g((*s)->ops());
    const auto w = variable(g, {dtype::f32, {3}}, {}, "w");
    auto run = (*s)->train(g, reduce_sum(mul(w, w)), o);
    return run ? std::string("none") : run.error().text();
  };
  BOOST_TEST(refusal({.optimizer = adam({.beta1 = 1.5})}).find("beta1 1.5 is not in [0, 1)") !=
             std::string::npos);
  BOOST_TEST(
      refusal({.optimizer = rmsprop({.learning_rate = -1})}).find("learning rate -1 is below 0") !=
      std::string::npos);
  BOOST_TEST(refusal({.schedule = linear({.steps = 0})}).find("schedule linear") !=
             std::string::npos);
  BOOST_TEST(refusal({.clip_global_norm = -2}).find("clip global norm") != std::string::npos);
}

// One that was stopped half way goes on to the bits of one that was not; one with another optimizer
// does not.
BOOST_FIXTURE_TEST_CASE(every_optimizer_goes_on_from_its_checkpoint_with_the_same_bits,
                        image_folder) {
  for (const auto& [name, optimizer] : all_optimizers()) {
    training_options whole{.optimizer = optimizer,
                           .schedule = linear({.steps = 20, .minimum = 0.1}),
                           .steps = 20,
                           .compile = {.name = name}};
    const auto expected = train(path, whole, 1, 24);
    auto first = whole, rest = whole;
    first.steps = 9;
    first.checkpoints.folder = rest.checkpoints.folder = path + "/checkpoints";
    rest.checkpoints.resume = true;
    BOOST_TEST(train(path, first, 1, 24).failure == "");
    const auto got = train(path, rest, 1, 24);
    BOOST_TEST(got.failure == "");
    BOOST_TEST(got.losses.size() == 11u, name);
    BOOST_TEST(got.hash == expected.hash, name);
  }
  auto s = troupe::session::open({});
  BOOST_REQUIRE(s);
  auto data = open_idx(path, false);
  graph g((*s)->ops());
  auto b = idx_batch(g, *data, {.batch = 24, .seed = 5});
  auto loss = softmax_cross_entropy(dense(relu(dense(b.images, 16, "hidden")), 10, "out"), b.labels,
                                    b.scale);
  const auto run = (*s)->train(
      g, loss,
      {.optimizer = adam({}),
       .steps = 20,
       .checkpoints = {.folder = path + "/checkpoints", .resume = true, .rebatch = true},
       .compile = {.name = "sgd"}});
  BOOST_TEST_REQUIRE(!run);
  BOOST_TEST(
      run.error().text().find(
          "it has velocity for variable 'hidden/bias', but this run's optimizer needs first_moment, second_moment") !=
          std::string::npos,
      run.error().text());
}

BOOST_FIXTURE_TEST_CASE(a_part_may_be_empty, image_folder) {
  // 200 samples in global batches of 199: the second step of an epoch has one sample, for one of
  // the workers.
  const auto got = train(path, {.workers = 199, .shards = 1, .steps = 4}, 1, 1);
  BOOST_TEST(got.failure == "");
  BOOST_TEST(got.losses.size() == 4u);
}

BOOST_FIXTURE_TEST_CASE(asynchronous_training_applies_every_gradient_once, image_folder) {
  const auto got =
      train(path, {.workers = 3, .shards = 2, .update = update_kind::async, .steps = 20}, 2, 16);
  BOOST_TEST(got.failure == "");
  BOOST_TEST(got.losses.size() == 60u);
  BOOST_TEST_REQUIRE(got.totals.workers.size() == 3u);
  for (const auto& w : got.totals.workers) {
    BOOST_TEST(w.fed == 20u);
    BOOST_TEST(w.applied == 20u);
    BOOST_TEST(w.dropped + w.in_flight == 0u);
  }
}

BOOST_FIXTURE_TEST_CASE(stopping_a_training_ends_it_with_the_reason, image_folder) {
  auto s = troupe::session::open({});
  BOOST_REQUIRE(s);
  auto data = open_idx(path, false);
  graph g((*s)->ops());
  auto b = idx_batch(g, *data, {.batch = 16});
  auto run = (*s)->train(g, softmax_cross_entropy(dense(b.images, 10, "out"), b.labels, b.scale),
                         {.steps = 1'000'000});
  BOOST_REQUIRE(run);
  std::string reason;
  while (auto e = test::next_event(**run)) {
    if (e->type == training_event::kind::loss && e->step == 10) (*run)->stop("enough");
    BOOST_TEST((e->type != training_event::kind::failed));  // it is none
    if (e->type == training_event::kind::stopped) reason = e->text;
  }
  BOOST_TEST(reason == "enough");
}

// JC-10: with the bits of a training of as many steps, and the losses of all of them.
BOOST_FIXTURE_TEST_CASE(a_training_that_is_finished_early_is_one_of_fewer_steps, image_folder) {
  auto s = troupe::session::open({});
  BOOST_REQUIRE(s);
  auto data = open_idx(path, false);
  const auto run_for = [&](std::uint64_t steps, std::uint64_t finish_at) {
    graph g((*s)->ops());
    auto b = idx_batch(g, *data, {.batch = 16, .seed = 5, .parts = 2});
    auto run = (*s)->train(g, softmax_cross_entropy(dense(b.images, 10, "out"), b.labels, b.scale),
                           {.workers = 2,
                            .shards = 2,
                            .optimizer = adam({.learning_rate = 1e-3}),
                            .steps = steps,
                            .may_finish = true});
    BOOST_REQUIRE_MESSAGE(run, (run ? "" : run.error().text()));
    outcome out;
    std::uint64_t version = 0;
    bool has_finished = false;
    while (auto e = test::next_event(**run)) {
      if (e->type == training_event::kind::loss) {
        BOOST_TEST(e->step == out.losses.size());
        out.losses.push_back(e->loss);
        if (e->step == finish_at) (*run)->finish();
      }
      BOOST_TEST((e->type != training_event::kind::failed), e->text);
      has_finished = has_finished || e->type == training_event::kind::finished;
      if (e->type != training_event::kind::variables) continue;
      version = e->step;
      std::vector<named_tensor> tensors;
      for (auto& [name, value] : e->variables) tensors.push_back({name, value});
      out.hash = weights_hash(tensors);
    }
    BOOST_TEST(has_finished);
    BOOST_TEST(version == out.losses.size());
    return out;
  };
  const auto early = run_for(1'000'000, 10);
  BOOST_TEST(early.losses.size() > 10U);
  BOOST_TEST(early.losses.size() < 1'000'000U);
  const auto whole = run_for(early.losses.size(), 1'000'000);
  BOOST_TEST(early.hash == whole.hash);
  BOOST_TEST(early.losses == whole.losses, boost::test_tools::per_element());
}

// JC-15: what a program of one's own calls; where it goes on it has the losses behind those that
// were told, and comes to the bits of a training that nothing disturbed.
BOOST_FIXTURE_TEST_CASE(a_training_that_is_suspended_goes_on_from_exactly_there, image_folder) {
  auto s = troupe::session::open({});
  BOOST_REQUIRE(s);
  auto data = open_idx(path, false);
  constexpr std::uint64_t endless = 1'000'000'000;
  const auto run_for = [&](checkpoint_options saved, bool all_reduce, std::uint64_t steps,
                           std::vector<float>& losses) {
    graph g((*s)->ops());
    auto b = idx_batch(g, *data, {.batch = 16, .seed = 5, .parts = 2});
    auto run = (*s)->train(g, softmax_cross_entropy(dense(b.images, 10, "out"), b.labels, b.scale),
                           {.workers = 2,
                            .shards = all_reduce ? 1U : 2U,
                            .all_reduce = all_reduce,
                            .optimizer = adam({.learning_rate = 1e-3}),
                            .steps = steps,
                            .checkpoints = std::move(saved)});
    BOOST_REQUIRE_MESSAGE(run, (run ? "" : run.error().text()));
    std::string hash;
    bool is_asked = steps != endless;
    while (auto e = test::next_event(**run)) {
      if (e->type == training_event::kind::loss) {
        BOOST_TEST_REQUIRE(e->step == losses.size());
        losses.push_back(e->loss);
        if (!std::exchange(is_asked, true)) (*run)->suspend("enough");
      }
      BOOST_TEST((e->type != training_event::kind::failed), e->text);
      if (e->type == training_event::kind::suspended) {
        BOOST_TEST(e->step == losses.size());
        BOOST_TEST(e->totals.checkpoints == 1U);
        hash = "suspended";
      }
      if (e->type != training_event::kind::variables) continue;
      std::vector<named_tensor> tensors;
      for (auto& [name, value] : e->variables) tensors.push_back({name, value});
      hash = weights_hash(tensors);
    }
    return hash;
  };
  for (const bool all_reduce : {false, true}) {
    std::vector<float> whole, parts;
    const checkpoint_options saved{.folder = fmt::format("{}/suspended-{}", path, all_reduce),
                                   .resume = true};
    BOOST_TEST(run_for(saved, all_reduce, endless, parts) == "suspended");
    BOOST_TEST(run_for(saved, all_reduce, endless, parts) == "suspended");
    const auto steps = parts.size() + 40;
    BOOST_TEST(run_for(saved, all_reduce, steps, parts) == run_for({}, all_reduce, steps, whole));
    BOOST_TEST(parts == whole, boost::test_tools::per_element());
  }
}

BOOST_FIXTURE_TEST_CASE(a_training_that_cannot_be_suspended_says_so_and_stops, image_folder) {
  auto s = troupe::session::open({});
  BOOST_REQUIRE(s);
  auto data = open_idx(path, false);
  for (const bool has_folder : {false, true}) {
    graph g((*s)->ops());
    auto b = idx_batch(g, *data, {.batch = 16});
    auto run =
        (*s)->train(g, softmax_cross_entropy(dense(b.images, 10, "out"), b.labels, b.scale),
                    {.steps = 1'000'000,
                     .observe_every = has_folder ? 1'000U : 0U,
                     .checkpoints = {.folder = has_folder ? path + "/saved" : std::string()}});
    BOOST_REQUIRE_MESSAGE(run, (run ? "" : run.error().text()));
    (*run)->suspend("enough");
    std::string notes, reason;
    while (auto e = test::next_event(**run)) {
      if (e->type == training_event::kind::note) notes += e->text;
      if (e->type == training_event::kind::stopped) reason = e->text;
    }
    BOOST_TEST(reason == "enough");
    BOOST_TEST(notes.find(has_folder ? "observe_every" : "nothing of it is kept") !=
               std::string::npos);
  }
}

BOOST_AUTO_TEST_CASE(what_cannot_outlive_its_program_is_told) {
  auto s = troupe::session::open({});
  BOOST_REQUIRE(s);
  graph g((*s)->ops());
  const auto loss = reduce_sum(variable(g, {dtype::f32, {3}}, {}, "w"));
  const auto refused = (*s)->train(g, loss, {.outlives_program = true});
  BOOST_REQUIRE(!refused);
  BOOST_TEST(refused.error().text().find("this session is alone") != std::string::npos);
  BOOST_TEST(!(*s)->attach("job"));
  auto run = (*s)->train(g, loss, {.steps = 1'000'000});
  BOOST_REQUIRE(run);
  (*run)->finish();  // its shards keep nothing
  bool is_told = false;
  while (auto e = test::next_event(**run)) {
    if (e->type == training_event::kind::note && e->text.find("may_finish") != std::string::npos) {
      is_told = true;
      (*run)->detach();
    }
    if (e->type == training_event::kind::note &&
        e->text.find("ends with its program") != std::string::npos)
      (*run)->stop("enough");
  }
  BOOST_TEST(is_told);
}

BOOST_FIXTURE_TEST_CASE(a_training_may_be_stopped_before_it_has_started, image_folder) {
  auto s = troupe::session::open({});
  BOOST_REQUIRE(s);
  auto data = open_idx(path, false);
  graph g((*s)->ops());
  auto b = idx_batch(g, *data, {.batch = 16});
  auto run = (*s)->train(g, softmax_cross_entropy(dense(b.images, 10, "out"), b.labels, b.scale),
                         {.steps = 1'000'000});
  BOOST_REQUIRE(run);
  (*run)->stop("enough");
  std::string reason;
  while (auto e = test::next_event(**run))
    if (e->type == training_event::kind::stopped) reason = e->text;
  BOOST_TEST(reason == "enough");
}

BOOST_AUTO_TEST_CASE(a_training_that_needs_a_feed_is_refused) {
  auto s = troupe::session::open({});
  BOOST_REQUIRE(s);
  graph g((*s)->ops());
  auto run = (*s)->train(
      g, reduce_sum(mul(input(g, {dtype::f32, {3}}, "x"), variable(g, {dtype::f32, {3}}, {}, "w"))),
      {});
  BOOST_REQUIRE(!run);
  BOOST_TEST(run.error().text().find("input") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(fetching_what_was_not_fed_is_an_error_and_harms_nothing) {
  auto s = troupe::session::open({});
  BOOST_REQUIRE(s);
  graph g((*s)->ops());
  const auto x = input(g, {dtype::f32, {2}}, "x"), y = input(g, {dtype::f32, {2}}, "y");
  const value sum = reduce_sum(add(x, y));
  auto run = (*s)->compile(g, {&sum, 1});
  BOOST_REQUIRE(run);
  BOOST_TEST(bool((*run)->feed("x", tensor::of({1, 2}, {2}))));
  auto none = (*run)->fetch();
  BOOST_REQUIRE(!none);
  BOOST_TEST((none.error().code() == error_code::usage));
  BOOST_TEST(none.error().text().find("'y'") != std::string::npos);
  BOOST_TEST(bool((*run)->feed("y", tensor::of({3, 4}, {2}))));
  auto out = (*run)->fetch();
  BOOST_REQUIRE(out);
  BOOST_TEST(*std::as_const((*out)[0]).data<float>() == 10.0f);
}

BOOST_AUTO_TEST_CASE(a_graph_is_stepped_with_feeds_and_fetches) {
  auto s = troupe::session::open({});
  BOOST_REQUIRE(s);
  graph g((*s)->ops());
  auto x = input(g, {dtype::f32, *shape::from(std::vector<dim>{batch_of(4), {2, 0}})}, "x");
  const value fetches[] = {relu(x), reduce_sum(x)};
  auto run = (*s)->compile(g, fetches);
  BOOST_REQUIRE(run);
  for (int i = 1; i <= 20; ++i) {
    const auto rows = 1 + i % 4;
    std::vector<float> values(static_cast<std::size_t>(2 * rows), -1.0f);
    values[0] = float(i);
    const std::pair<std::string_view, tensor> feeds[] = {
        {"x", tensor::of<float>(dtype::f32, {rows, 2}, values)}};
    auto out = (*run)->step(feeds);
    BOOST_REQUIRE(out);
    BOOST_TEST(std::as_const((*out)[0]).data<float>()[0] == float(i));
    BOOST_TEST(std::as_const((*out)[0]).data<float>()[1] == 0.0f);
    BOOST_TEST(*std::as_const((*out)[1]).data<float>() == float(i - 2 * rows + 1));
  }
}

BOOST_AUTO_TEST_CASE(feeding_what_does_not_fit_is_an_error_and_harms_nothing) {
  auto s = troupe::session::open({});
  BOOST_REQUIRE(s);
  graph g((*s)->ops());
  const value sum = reduce_sum(input(g, {dtype::f32, {2}}, "x"));
  auto run = (*s)->compile(g, {&sum, 1});
  BOOST_REQUIRE(run);
  BOOST_TEST(!(*run)->feed("y", tensor::of({1, 2}, {2})));
  BOOST_TEST(!(*run)->feed("x", tensor()));
  BOOST_TEST(!(*run)->feed("x", tensor::of({1, 2, 3}, {3})));
  const std::pair<std::string_view, tensor> feeds[] = {{"x", tensor::of({1, 2}, {2})}};
  auto out = (*run)->step(feeds);
  BOOST_REQUIRE(out);
  BOOST_TEST(*std::as_const((*out)[0]).data<float>() == 3.0f);
}

BOOST_AUTO_TEST_CASE(a_step_whose_feeds_are_wrong_feeds_nothing) {
  auto s = troupe::session::open({});
  BOOST_REQUIRE(s);
  graph g((*s)->ops());
  const value sum =
      reduce_sum(add(input(g, {dtype::f32, {2}}, "x"), input(g, {dtype::f32, {2}}, "y")));
  auto run = (*s)->compile(g, {&sum, 1});
  BOOST_REQUIRE(run);
  using feeds = std::vector<std::pair<std::string_view, tensor>>;
  const auto one = tensor::of({1, 2}, {2}), two = tensor::of({3, 4}, {2}),
             wrong = tensor::of({1, 2, 3}, {3});
  const std::pair<feeds, const char*> cases[] = {
      {{{"x", one}}, "input 'y' is not fed"},
      {{{"x", one}, {"y", wrong}}, "input 'y' takes f32[2], and was given f32[3]"},
      {{{"x", one}, {"z", two}}, "the graph has no input 'z': the fetched values need 'x', 'y'"},
      {{{"x", one}, {"x", two}, {"y", two}}, "input 'x' is given twice for one step"},
  };
  for (const auto& [given, text] : cases) {
    const auto out = (*run)->step(given);
    BOOST_REQUIRE(!out);
    BOOST_TEST(out.error().text().find(text) != std::string::npos, out.error().text());
  }
  auto out = (*run)->step(feeds{{"x", one}, {"y", two}});
  BOOST_REQUIRE(out);
  BOOST_TEST(*std::as_const((*out)[0]).data<float>() == 10.0f);
}

// The values of a cancelled step never come, those of the next one do.
BOOST_AUTO_TEST_CASE(a_step_is_cancelled_before_or_after_its_values_are_there) {
  auto s = troupe::session::open({});
  BOOST_REQUIRE(s);
  graph g((*s)->ops());
  const value y = 2 * input(g, {dtype::f32, {1}}, "x");
  auto run = (*s)->compile(g, {&y, 1});
  BOOST_REQUIRE(run);
  BOOST_TEST(!(*run)->cancel());
  std::uint64_t wanted = 0;
  for (int i = 0; i < 200; ++i) {
    BOOST_REQUIRE(bool((*run)->feed("x", tensor::of({float(i)}, {1}))));
    if (i % 3 != 0) {
      BOOST_TEST(bool((*run)->cancel()));
      continue;
    }
    const auto out = (*run)->fetch();
    BOOST_REQUIRE(out);
    BOOST_TEST(*std::as_const((*out)[0]).data<float>() == float(2 * i));
    ++wanted;
  }
  BOOST_TEST(wanted == 67u);
  BOOST_TEST(!(*run)->cancel());
}

// The values of each stream come by themselves, and belong to one step.
BOOST_AUTO_TEST_CASE(
    values_of_several_streams_come_in_the_order_asked_for_and_a_cancelled_step_whole) {
  auto s = troupe::session::open({.threads = 2});
  BOOST_REQUIRE(s);
  graph g((*s)->ops());
  const auto x = input(g, {dtype::f32, {1}}, "x");
  std::vector<value> out;
  for (int i = 0; i < 60; ++i) {
    const auto on = g.device_scope(i % 3 == 0 ? "/cpu:0" : "/cpu:1");
    out.push_back(x * float(i));
  }
  auto run = (*s)->compile(g, out, {.fuse = false});
  BOOST_REQUIRE_MESSAGE(run, (run ? "" : run.error().text()));
  for (int step = 0; step < 200; ++step) {
    BOOST_REQUIRE(bool((*run)->feed("x", tensor::of({float(step + 1)}, {1}))));
    if (step % 4 == 1) {
      BOOST_TEST(bool((*run)->cancel()));
      continue;
    }
    const auto values = (*run)->fetch();
    BOOST_REQUIRE(values);
    BOOST_TEST_REQUIRE(values->size() == 60U);
    for (int i = 0; i < 60; ++i)
      BOOST_TEST_REQUIRE(*std::as_const((*values)[static_cast<std::size_t>(i)]).data<float>() ==
                         float(i) * float(step + 1));
  }
}

// Products that take far longer than a millisecond. Whether the deadline passes before or while
// they run, the next step is right.
BOOST_AUTO_TEST_CASE(a_step_that_takes_too_long_is_given_up_and_the_next_one_is_right) {
  auto s = troupe::session::open({});
  BOOST_REQUIRE(s);
  graph g((*s)->ops());
  const auto x = input(g, {dtype::f32, {1024, 1024}}, "x");
  value y = x;
  for (int i = 0; i < 4; ++i) y = matmul(y, x);
  const value fetches[] = {y, reduce_sum(x)};
  auto run = (*s)->compile(g, fetches);
  BOOST_REQUIRE(run);
  const auto ones = [](float with) {
    auto t = tensor::make({dtype::f32, {1024, 1024}});
    std::fill_n(t.data<float>(), t.elements(), with);
    return t;
  };
  for (float with : {1.0f, 2.0f, 3.0f}) {
    const std::pair<std::string_view, tensor> feeds[] = {{"x", ones(with)}};
    const auto out = (*run)->step(feeds, std::chrono::milliseconds(0));
    BOOST_REQUIRE(!out);
    BOOST_TEST((out.error().code() == error_code::timed_out));
    BOOST_TEST(out.error().text().find("step ") == 0u, out.error().text());
  }
  const std::pair<std::string_view, tensor> feeds[] = {{"x", ones(0.5f)}};
  const auto out = (*run)->step(feeds);
  BOOST_REQUIRE(out);
  BOOST_TEST(*std::as_const((*out)[1]).data<float>() == 524288.0f);
}

BOOST_AUTO_TEST_CASE(a_graph_that_does_not_fit_names_the_users_line) {
  auto s = troupe::session::open({});
  BOOST_REQUIRE(s);
  graph g((*s)->ops());
  auto x = input(g, {dtype::f32, {2, 3}}, "x");
  const value wrong = matmul(x, x);
  auto run = (*s)->compile(g, {&wrong, 1});
  BOOST_REQUIRE(!run);
  BOOST_TEST((run.error().code() == error_code::usage));
  BOOST_TEST(run.error().text().find("session_test.cpp") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_constant_is_computed_once_and_its_tensor_given_out_in_every_step) {
  auto s = troupe::session::open({});
  BOOST_REQUIRE(s);
  graph g((*s)->ops());
  const std::int64_t numbers[] = {1, -2, 3};
  const auto c = constant(g, tensor::of<std::int64_t>(dtype::i64, {3}, numbers), "numbers");
  const auto x = input(g, {dtype::i64, {3}}, "x");
  const value fetches[] = {c, add(c, x)};
  auto run = (*s)->compile(g, fetches);
  BOOST_REQUIRE_MESSAGE(run, (run ? "" : run.error().text()));
  std::vector<tensor> constants;
  for (std::int64_t k = 0; k < 5; ++k) {
    const std::int64_t fed[] = {k, k, k};
    const std::pair<std::string_view, tensor> feeds[] = {
        {"x", tensor::of<std::int64_t>(dtype::i64, {3}, fed)}};
    const auto got = (*run)->step(feeds);
    BOOST_REQUIRE_MESSAGE(got, (got ? "" : got.error().text()));
    for (std::size_t i = 0; i < 3; ++i) {
      BOOST_TEST((*got)[0].data<std::int64_t>()[i] == numbers[i]);
      BOOST_TEST((*got)[1].data<std::int64_t>()[i] == numbers[i] + k);
    }
    constants.push_back((*got)[0]);
  }
  for (const auto& t : constants)
    BOOST_TEST(t.data<std::int64_t>() == constants[0].data<std::int64_t>());
}

BOOST_AUTO_TEST_CASE(two_sessions_live_side_by_side) {
  auto a = troupe::session::open({}), b = troupe::session::open({.threads = 2});
  BOOST_REQUIRE(a);
  BOOST_REQUIRE(b);
  for (auto* s : {&a, &b}) {
    graph g((**s)->ops());
    const value y = relu(input(g, {dtype::f32, {1}}, "x"));
    auto run = (**s)->compile(g, {&y, 1});
    BOOST_REQUIRE(run);
    const std::pair<std::string_view, tensor> feeds[] = {{"x", tensor::of({2}, {1})}};
    BOOST_TEST(bool((*run)->step(feeds)));
  }
}

BOOST_AUTO_TEST_SUITE_END()
