// Trainings that pipelines feed: the bits of a training that reads the same samples itself, also
// where it goes back; and how each of the two ends with the other.

#include "tests/support/events.hpp"
#include "tests/support/image_folder.hpp"
#include "tests/support/training_outcome.hpp"
#include "tests/support/two_nodes.hpp"
#include "tests/support/wait.hpp"
#include "troupe/actors/flow/feed_training.hpp"
#include "troupe/actors/flow/stage_host.hpp"
#include "troupe/devices/files/idx_file.hpp"
#include "troupe/devices/host/host_device.hpp"
#include "troupe/runtime/flow/stage_library.hpp"
#include "troupe/runtime/flow/typed_sources.hpp"
#include "troupe/runtime/layers/layers.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace troupe;

namespace {

constexpr std::int64_t pixels = 784, batch_size = 20;
constexpr std::uint64_t feed_steps = 30;  // three epochs of 200

struct picture {
  tensor images;  // f32 [784]
  std::int32_t labels = 0;
  static constexpr auto fields =
      troupe::fields<&picture::images, &picture::labels>("images", "labels");
};

struct of_other_name {
  tensor pictures;
  std::int32_t labels = 0;
  static constexpr auto fields =
      troupe::fields<&of_other_name::pictures, &of_other_name::labels>("pictures", "labels");
};
struct mixed_row {
  float a = 0;
  bool b = false;
  std::array<std::int32_t, 2> c{};
  std::vector<double> d;
  tensor e;
  static constexpr auto fields =
      troupe::fields<&mixed_row::a, &mixed_row::b, &mixed_row::c, &mixed_row::d, &mixed_row::e>(
          "a", "b", "c", "d", "e");
};

// As idx_batch has them.
struct as_floats {
  picture operator()(labelled_image i) const {
    auto t = tensor::make({dtype::f32, {pixels}});
    const auto* from = std::as_const(i.pixels).data<std::uint8_t>();
    for (std::int64_t k = 0; k < pixels; ++k) t.data<float>()[k] = float(from[k]) / 255;
    return {std::move(t), i.label};
  }
};

const stage_library& picture_stages() {
  static const stage_library library("pictures", "1",
                                     {stage_of<as_floats, sample<labelled_image>>("as_floats")});
  return library;
}

struct pictures : image_folder {
  pictures() {
    flow_graph g;
    const auto all = collect(
        read_idx_pairs(g, path + "/train-images-idx3-ubyte*", path + "/train-labels-idx1-ubyte*"));
    const auto ok = drain(g);
    BOOST_REQUIRE_MESSAGE(ok, (ok ? "" : ok.error().text()));
    list = *all;
    BOOST_REQUIRE(list.size() == 200U);
  }
  std::vector<labelled_image> list;

  auto batches(topology& t, std::uint64_t step, std::uint32_t replicas, std::uint64_t epochs = 0,
               const std::string& on = "") {
    const auto drawn = samples(
        t, list,
        {.seed = 5, .epochs = epochs, .from = step * static_cast<std::uint64_t>(batch_size)});
    return batch(map(drawn, as_floats{}, {.replicas = replicas, .on = on}),
                 {.count = static_cast<std::uint64_t>(batch_size)});
  }
};

value network(const value& images, const value& labels, const value& scale) {
  return softmax_cross_entropy(dense(relu(dense(images, 12, "hidden")), 10, "out"), labels, scale);
}
value fed_loss(graph& g, std::int64_t rows) {
  const auto images = input(g, {dtype::f32, {rows, pixels}}, "images");
  const auto labels = input(g, {dtype::i32, {rows}}, "labels");
  return network(images, labels, constant(g, 1.0F / float(batch_size)));
}

training_options options_of_fed(std::uint32_t workers, std::uint64_t steps = feed_steps) {
  return {.workers = workers,
          .shards = 2,
          .optimizer = adam({.learning_rate = 0.01}),
          .seed = 3,
          .steps = steps,
          .is_fed = true};
}

// What is told of a training by its events.
struct seen_events {
  test::outcome all;
  std::vector<std::uint64_t> began_at;
  void operator()(const training_event& e) {
    using kind = training_event::kind;
    if (e.type == kind::loss) all.losses.push_back(e.loss);
    if (e.type == kind::failed) all.failure = e.text;
    if (e.type == kind::stopped) all.stopped = e.text;
    if (e.type == kind::started || e.type == kind::resumed) began_at.push_back(e.step);
    if (e.type != kind::variables) return;
    std::vector<named_tensor> tensors;
    for (const auto& [name, value] : e.variables) tensors.push_back({name, value});
    all.hash = weights_hash(tensors);
  }
};

std::unique_ptr<training> begun(session& s, graph& g, const value& loss,
                                const training_options& o) {
  auto run = s.train(g, loss, o);
  BOOST_REQUIRE_MESSAGE(run, (run ? "" : run.error().text()));
  return std::move(*run);
}

// The same samples, read by the graph.
test::outcome read_by_graph(const std::string& folder, std::uint32_t workers) {
  auto s = session::open({});
  BOOST_REQUIRE(s);
  auto data = open_idx(folder, false);
  BOOST_REQUIRE(data);
  graph g((*s)->ops());
  auto o = options_of_fed(workers);
  o.is_fed = false;
  auto b = idx_batch(g, *data, {.batch = batch_size / workers, .seed = 5, .parts = workers});
  const auto run = begun(**s, g, network(b.images, b.labels, b.scale), o);
  return test::follow(*run);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(feed_training)

BOOST_FIXTURE_TEST_CASE(FED_1_a_fed_training_has_the_bits_of_one_that_reads_itself, pictures) {
  for (const auto& [workers, replicas] :
       {std::pair(1U, 1U), std::pair(2U, 1U), std::pair(4U, 3U)}) {
    const auto expected = read_by_graph(path, workers);
    BOOST_TEST(expected.failure == "");
    auto s = session::open({});
    BOOST_REQUIRE(s);
    graph g((*s)->ops());
    const auto run = begun(**s, g, fed_loss(g, batch_size / workers), options_of_fed(workers));
    seen_events seen;
    const auto end = feed(
        *run, [&, r = replicas](topology& t, std::uint64_t step) { return batches(t, step, r); },
        std::ref(seen));
    BOOST_REQUIRE_MESSAGE(end, (end ? "" : end.error().text()));
    BOOST_TEST((end->type == training_event::kind::finished));
    BOOST_TEST(seen.all.losses == expected.losses, boost::test_tools::per_element());
    BOOST_TEST(seen.all.hash == expected.hash);
    BOOST_TEST(seen.began_at == std::vector<std::uint64_t>{0}, boost::test_tools::per_element());
  }
}

// Nodes leave and come; samples are made on them; it goes back to a step before and is fed again.
BOOST_FIXTURE_TEST_CASE(a_training_that_goes_back_is_fed_from_that_step_by_nodes_too, pictures) {
  const auto expected = read_by_graph(path, 2);
  const auto worker = [](const std::string& name) {
    test::own_node n;
    n.job = "worker";
    n.name = name;
    n.host_work = host_stages({&picture_stages()});
    return n;
  };
  test::own_nodes nodes("fed-by-pipeline", {worker("n1"), worker("n2"), worker("n3")});
  auto& s = nodes.client();
  graph g(s.ops());
  auto o = options_of_fed(2);
  o.on_failure = failure_policy::resume;
  const auto run = begun(s, g, fed_loss(g, batch_size / 2), o);
  seen_events seen;
  const auto end = feed(
      *run,
      [&](topology& t, std::uint64_t step) {
        t.use(picture_stages());
        return batches(t, step, 2, 0, "/job:worker");
      },
      [&](const training_event& e) {
        seen(e);
        if (e.type != training_event::kind::loss) return;
        if (e.step == 5) nodes.leave(0);
        if (e.step == 20) nodes.leave(0);
      },
      {.topology = {.member = &s}});
  BOOST_REQUIRE_MESSAGE(end, (end ? "" : end.error().text()));
  BOOST_TEST(seen.all.losses == expected.losses, boost::test_tools::per_element());
  BOOST_TEST(seen.all.hash == expected.hash);
  BOOST_TEST(seen.began_at.size() >= 2U);
}

// The last node goes, and another one comes only after a while: what fed the training until then
// has ended, and that is no failure of the pipeline.
BOOST_FIXTURE_TEST_CASE(a_recovery_may_take_its_time, pictures) {
  const auto expected = read_by_graph(path, 1);
  test::own_nodes nodes("fed-late", {{.name = "n1"}});
  auto& s = nodes.client();
  graph g(s.ops());
  auto o = options_of_fed(1);
  o.on_failure = failure_policy::resume;
  const auto run = begun(s, g, fed_loss(g, batch_size), o);
  seen_events seen;
  bool has_left = false, has_come = false;
  std::size_t idle = 0;
  const auto end = feed(
      *run,
      [&](topology& t, std::uint64_t step) {
        return map(batches(t, step, 1), [](std::vector<picture> b) {
          std::this_thread::sleep_for(std::chrono::milliseconds(80));
          return b;
        });
      },
      [&](const training_event& e) {
        if (e.type == training_event::kind::none && has_left && !has_come && ++idle == 40) {
          nodes.add({.name = "n2"});
          has_come = true;
        }
        // It begins at step 0 again, with the variables that went with their node.
        if (e.type == training_event::kind::loss && e.step == 5 && !std::exchange(has_left, true))
          nodes.leave(0);
        seen(e);
      });
  BOOST_REQUIRE_MESSAGE(end, (end ? "" : end.error().text()));
  BOOST_TEST(has_come);
  BOOST_TEST(seen.all.losses == expected.losses, boost::test_tools::per_element());
  BOOST_TEST(seen.all.hash == expected.hash);
}

BOOST_FIXTURE_TEST_CASE(each_batch_is_one_workers_where_steps_are_asynchronous, pictures) {
  auto s = session::open({.threads = 2});
  BOOST_REQUIRE(s);
  graph g((*s)->ops());
  auto o = options_of_fed(3);
  o.update = update_kind::async;
  const auto run = begun(**s, g, fed_loss(g, batch_size), o);
  seen_events seen;
  const auto end = feed(
      *run, [&](topology& t, std::uint64_t step) { return batches(t, step, 1); }, std::ref(seen));
  BOOST_REQUIRE_MESSAGE(end, (end ? "" : end.error().text()));
  BOOST_TEST(seen.all.losses.size() == 3 * feed_steps);
  BOOST_REQUIRE(end->totals.workers.size() == 3U);
  for (const auto& w : end->totals.workers) BOOST_TEST(w.applied == feed_steps);
}

BOOST_FIXTURE_TEST_CASE(a_flow_that_ends_too_early_is_an_error_or_the_end_of_the_training,
                        pictures) {
  auto s = session::open({});
  BOOST_REQUIRE(s);
  const auto train = [&](const training_options& o, const feed_options& how, seen_events& seen) {
    graph g((*s)->ops());
    const auto run = begun(**s, g, fed_loss(g, batch_size), o);
    return feed(
        *run, [&](topology& t, std::uint64_t step) { return batches(t, step, 1, 1); },
        std::ref(seen), how);
  };
  seen_events first, second, third;
  const auto too_early = train(options_of_fed(1), {}, first);
  BOOST_REQUIRE(!too_early);
  BOOST_TEST(
      too_early.error().text().find("the flow has ended after 10 batches") != std::string::npos,
      too_early.error().text());
  BOOST_TEST(first.all.failure == too_early.error().text());
  auto o = options_of_fed(1);
  o.may_finish = true;
  const auto ends = train(o, {.finishes_with_flow = true}, second);
  BOOST_REQUIRE_MESSAGE(ends, (ends ? "" : ends.error().text()));
  BOOST_TEST((ends->type == training_event::kind::finished));
  BOOST_TEST(second.all.losses.size() == 10U);
  // As many steps as the flow has batches.
  const auto all = train(options_of_fed(1, 10), {}, third);
  BOOST_REQUIRE_MESSAGE(all, (all ? "" : all.error().text()));
  BOOST_TEST(third.all.losses == second.all.losses, boost::test_tools::per_element());
  BOOST_TEST(third.all.hash == second.all.hash);
}

// What the flow has given is trained on, all of it, also where steps are slow and the flow cannot
// be described again.
BOOST_FIXTURE_TEST_CASE(a_training_that_ends_with_its_flow_has_made_all_of_its_steps, pictures) {
  auto s = session::open({});
  BOOST_REQUIRE(s);
  for (const std::uint32_t workers : {1U, 2U}) {
    auto o = options_of_fed(workers, 1'000);
    o.may_finish = true;
    o.compile.credits = 4;
    graph g((*s)->ops());
    const auto run = begun(**s, g, fed_loss(g, batch_size / workers), o);
    seen_events seen;
    std::size_t described = 0;
    const auto end = feed(
        *run,
        [&](topology& t, std::uint64_t step) {
          ++described;
          return batches(t, step, 1, described == 1 ? 1 : 0);
        },
        [&](const training_event& e) {
          seen(e);
          // Slow to take its losses, so that steps wait.
          if (e.type == training_event::kind::loss)
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        },
        {.finishes_with_flow = true});
    BOOST_REQUIRE_MESSAGE(end, (end ? "" : end.error().text()));
    BOOST_TEST((end->type == training_event::kind::finished));
    BOOST_TEST(seen.all.losses.size() == 10U);
    BOOST_TEST(described == 1U);
    auto all = options_of_fed(workers, 10);
    graph h((*s)->ops());
    const auto again = begun(**s, h, fed_loss(h, batch_size / workers), all);
    seen_events expected;
    BOOST_REQUIRE(bool(feed(
        *again, [&](topology& t, std::uint64_t step) { return batches(t, step, 1); },
        std::ref(expected))));
    BOOST_TEST(seen.all.hash == expected.all.hash);
    BOOST_TEST(seen.all.losses == expected.all.losses, boost::test_tools::per_element());
  }
  // A flow of nothing.
  auto o = options_of_fed(1);
  o.may_finish = true;
  graph g((*s)->ops());
  const auto run = begun(**s, g, fed_loss(g, batch_size), o);
  const auto nothing = feed(*run,
                            [](topology& t, std::uint64_t) {
                              return batch(from(t, std::vector<picture>{}), {.count = 20});
                            },
                            {}, {.finishes_with_flow = true});
  BOOST_REQUIRE(!nothing);
  BOOST_TEST(nothing.error().text().find("the flow has ended after 0 batches") != std::string::npos,
             nothing.error().text());
}

// What comes behind the last step, whatever it is, is not the training's.
BOOST_FIXTURE_TEST_CASE(what_comes_behind_the_last_step_fails_nothing, pictures) {
  auto s = session::open({});
  BOOST_REQUIRE(s);
  for (int i = 0; i < 5; ++i) {
    graph g((*s)->ops());
    const auto run = begun(**s, g, fed_loss(g, batch_size), options_of_fed(1, 4));
    seen_events seen;
    const auto end = feed(
        *run,
        [&](topology& t, std::uint64_t) {
          auto few = list;
          few.resize(4 * batch_size + 3);  // the last batch has three
          return batch(map(samples(t, few, {.epochs = 1}), as_floats{}), {.count = 20});
        },
        std::ref(seen));
    BOOST_REQUIRE_MESSAGE(end, (end ? "" : end.error().text()));
    BOOST_TEST((end->type == training_event::kind::finished));
    BOOST_TEST(seen.all.losses.size() == 4U);
  }
}

BOOST_FIXTURE_TEST_CASE(a_training_that_has_begun_is_fed_from_its_step_on, pictures) {
  auto s = session::open({});
  BOOST_REQUIRE(s);
  graph g((*s)->ops());
  const auto run = begun(**s, g, fed_loss(g, batch_size), options_of_fed(1, 4));
  BOOST_TEST(!run->about().began_at);
  while (auto e = test::next_event(*run))
    if (e->type == training_event::kind::started) break;
  BOOST_REQUIRE(bool(run->about().began_at));
  BOOST_TEST(*run->about().began_at == 0U);
  std::size_t idle = 0;
  const auto end = feed(
      *run, [&](topology& t, std::uint64_t step) { return batches(t, step, 1); },
      [&](const training_event& e) { idle += e.type == training_event::kind::none ? 1 : 0; });
  BOOST_REQUIRE_MESSAGE(end, (end ? "" : end.error().text()));
  BOOST_TEST((end->type == training_event::kind::finished));
}

BOOST_FIXTURE_TEST_CASE(each_ends_with_the_other, pictures) {
  auto s = session::open({});
  BOOST_REQUIRE(s);
  // A stage fails: the training is stopped.
  {
    graph g((*s)->ops());
    const auto run = begun(**s, g, fed_loss(g, batch_size), options_of_fed(1));
    seen_events seen;
    const auto end = feed(
        *run,
        [&](topology& t, std::uint64_t step) {
          auto some = map(batches(t, step, 1),
                          [n = 0](std::vector<picture> b) mutable -> result<std::vector<picture>> {
                            if (++n == 4) return error(error_code::failed, "the fourth is none");
                            return b;
                          });
          return some;
        },
        std::ref(seen));
    BOOST_REQUIRE(!end);
    BOOST_TEST(end.error().text().find("the fourth is none") != std::string::npos,
               end.error().text());
    BOOST_TEST(seen.all.losses.size() <= 3U);
  }
  // Somebody stops the training: the pipeline ends, which has no end of its own.
  {
    graph g((*s)->ops());
    const auto run = begun(**s, g, fed_loss(g, batch_size), options_of_fed(1, 1'000'000));
    seen_events seen;
    const auto end = feed(
        *run, [&](topology& t, std::uint64_t step) { return batches(t, step, 2); },
        [&](const training_event& e) {
          seen(e);
          if (e.type == training_event::kind::loss && e.step == 12) run->stop("enough");
        });
    BOOST_REQUIRE_MESSAGE(end, (end ? "" : end.error().text()));
    BOOST_TEST((end->type == training_event::kind::stopped));
    BOOST_TEST(seen.all.stopped == "enough");
  }
}

BOOST_FIXTURE_TEST_CASE(what_is_wrong_with_what_is_fed_is_said, pictures) {
  auto s = session::open({});
  BOOST_REQUIRE(s);
  const auto says = [&](auto&& describe, const std::string& text, std::uint32_t workers = 1) {
    graph g((*s)->ops());
    const auto run = begun(**s, g, fed_loss(g, batch_size / workers), options_of_fed(workers));
    const auto end = feed(*run, describe);
    BOOST_REQUIRE(!end);
    BOOST_TEST(end.error().text().find(text) != std::string::npos, end.error().text());
  };
  says(
      [&](topology& t, std::uint64_t step) {
        return map(batches(t, step, 1), [](std::vector<picture> b) {
          std::vector<of_other_name> other;
          for (auto& p : b) other.push_back({p.images, p.labels});
          return other;
        });
      },
      "no input 'pictures'");
  says(
      [&](topology& t, std::uint64_t step) {
        return batch(map(samples(t, list, {.from = step}), as_floats{}), {.count = 3});
      },
      "input 'images' takes");
  says(
      [&](topology& t, std::uint64_t step) {
        return batch(map(samples(t, list, {.from = step}), as_floats{}), {.count = 3});
      },
      "has 3 rows, and the training 4 workers", 4);
  says([&](topology& t,
           std::uint64_t) { return batch(from(t, std::vector<picture>{}), {.count = 0}); },
       "batch: .count is 0");
  says(
      [&](topology& t, std::uint64_t) {
        return batch(from(t, std::vector<picture>(batch_size)), {.count = 20});
      },
      "'images' has no tensor");
  graph g((*s)->ops());
  auto data = open_idx(path, false);
  auto b = idx_batch(g, *data, {.batch = 20});
  auto o = options_of_fed(1, 2);
  o.is_fed = false;
  const auto run = begun(**s, g, network(b.images, b.labels, b.scale), o);
  const auto refused =
      feed(*run, [&](topology& t, std::uint64_t step) { return batches(t, step, 1); });
  BOOST_REQUIRE(!refused);
  BOOST_TEST((refused.error().code() == error_code::usage));
}

BOOST_AUTO_TEST_CASE(fields_of_all_kinds_become_tensors) {
  std::vector<mixed_row> rows;
  for (int i = 0; i < 3; ++i)
    rows.push_back({float(i), i == 1, {i, -i}, {double(i), 2, 3}, tensor::of({float(i)}, {1})});
  const auto all = fed_batch_of(rows);
  BOOST_REQUIRE(all);
  BOOST_REQUIRE(all->size() == 5U);
  const auto spec = [&](std::size_t i) { return to_string((*all)[i].second.spec()); };
  BOOST_TEST((*all)[0].first == "a");
  BOOST_TEST(spec(0) == to_string(tensor_spec{dtype::f32, {3}}));
  BOOST_TEST(spec(1) == to_string(tensor_spec{dtype::u8, {3}}));
  BOOST_TEST(spec(2) == to_string(tensor_spec{dtype::i32, {3, 2}}));
  BOOST_TEST(spec(3) == to_string(tensor_spec{dtype::f64, {3, 3}}));
  BOOST_TEST(spec(4) == to_string(tensor_spec{dtype::f32, {3, 1}}));
  for (int i = 0; i < 3; ++i) {
    BOOST_TEST((*all)[0].second.data<float>()[i] == float(i));
    BOOST_TEST((*all)[1].second.data<std::uint8_t>()[i] == (i == 1 ? 1 : 0));
    BOOST_TEST((*all)[2].second.data<std::int32_t>()[2 * i + 1] == -i);
    BOOST_TEST((*all)[3].second.data<double>()[3 * i] == double(i));
    BOOST_TEST((*all)[4].second.data<float>()[i] == float(i));
  }
  rows[2].d.pop_back();
  const auto unequal = fed_batch_of(rows);
  BOOST_REQUIRE(!unequal);
  BOOST_TEST(unequal.error().text().find("'d' of number 2") != std::string::npos);
}

BOOST_AUTO_TEST_SUITE_END()
