// Trainings that outlive their programs: two programs of this process and the nodes of a cluster,
// with the threads and links that real ones have.

#include "tests/support/events.hpp"
#include "tests/support/image_folder.hpp"
#include "tests/support/two_nodes.hpp"
#include "troupe/devices/files/safetensors.hpp"
#include "troupe/runtime/layers/layers.hpp"

#include <boost/test/unit_test.hpp>

#include <filesystem>
#include <string>
#include <vector>

using namespace troupe;

namespace {

constexpr std::uint64_t endless = 1'000'000;

training_options lasting(const std::string& folder) {
  training_options o{.workers = 2,
                     .shards = 2,
                     .optimizer = sgd({.learning_rate = 0.05}),
                     .seed = 9,
                     .steps = endless,
                     .on_failure = failure_policy::resume,
                     .outlives_program = true};
  o.checkpoints.folder = folder;
  o.compile.name = "job";
  return o;
}

result<std::unique_ptr<training>> begin_training(session& s, const std::string& images,
                                                 const training_options& o) {
  auto data = open_idx(images, false);
  BOOST_REQUIRE(data);
  graph g(s.ops());
  auto b = idx_batch(g, *data, {.batch = 16, .seed = 5, .parts = o.workers});
  return s.train(g, softmax_cross_entropy(dense(b.images, 10, "out"), b.labels, b.scale), o);
}

// What a program was told, up to `losses` of them, or the end.
struct told {
  std::vector<float> losses;
  std::vector<std::uint64_t> steps;
  std::optional<training_event> last;
  std::string hash, notes;

  void follow(training& run, std::size_t most = endless) {
    while (losses.size() < most) {
      auto e = test::next_event(run);
      if (!e) return;
      using enum training_event::kind;
      if (e->type == loss) losses.push_back(e->loss), steps.push_back(e->step);
      if (e->type == note) notes += e->text + "\n";
      if (e->type == variables) {
        std::vector<named_tensor> all;
        for (auto& [name, value] : e->variables) all.push_back({name, value});
        hash = weights_hash(all);
      }
      if (e->type == finished || e->type == stopped || e->type == detached || e->type == failed)
        last = std::move(e);
    }
  }
  bool ends_with(training_event::kind k) const { return last && last->type == k; }
  std::string text() const { return last ? last->text : "it has not ended"; }
};

bool says(const std::string& text, std::string_view what) {
  return text.find(what) != std::string::npos;
}

struct cluster : image_folder, test::own_nodes {
  explicit cluster(const std::string& name)
      : own_nodes(name, {{.name = "n1"}, {.name = "n2"}}), name_(name) {
    other = another();
  }
  std::unique_ptr<session> another() const {
    auto opened = session::open(
        {.cluster = name_, .timeout = std::chrono::seconds(30), .lease = test::own_lease});
    BOOST_REQUIRE_MESSAGE(opened, (opened ? "" : opened.error().text()));
    test::wait_until("the other program is linked to both nodes",
                     [&] { return (*opened)->nodes().size() == 2; });
    return std::move(*opened);
  }
  std::string checkpoints() const { return path + "/checkpoints"; }
  std::unique_ptr<training> begin() {
    auto run = begin_training(client(), path, lasting(checkpoints()));
    BOOST_REQUIRE_MESSAGE(run, (run ? "" : run.error().text()));
    return std::move(*run);
  }
  // A program that had the job hears that it has gone before its node does.
  std::unique_ptr<training> attach(session& s) const {
    std::unique_ptr<training> there;
    test::wait_until("the program's node knows that the job has gone", [&] {
      auto run = s.attach("job", test::hang);
      if (run) return there = std::move(*run), true;
      const auto text = run.error().text();
      BOOST_REQUIRE_MESSAGE(text.find("this program has job 'job' already") != std::string::npos,
                            text);
      return false;
    });
    return there;
  }
  // Of as many steps alone, in one process.
  told undisturbed(std::uint64_t steps) const {
    auto s = session::open({});
    BOOST_REQUIRE(s);
    auto o = lasting("");
    o.outlives_program = false;
    o.on_failure = failure_policy::stop;
    o.steps = steps;
    auto run = begin_training(**s, path, o);
    BOOST_REQUIRE_MESSAGE(run, (run ? "" : run.error().text()));
    told t;
    t.follow(**run);
    return t;
  }
  void is_as_undisturbed(const told& t) const {
    const auto wanted = undisturbed(t.losses.size());
    BOOST_TEST(t.losses == wanted.losses, boost::test_tools::per_element());
    BOOST_TEST(t.hash == wanted.hash);
    for (std::size_t i = 0; i < t.steps.size(); ++i) BOOST_REQUIRE(t.steps[i] == i);
  }

  std::unique_ptr<session> other;

 private:
  std::string name_;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(outliving)

BOOST_AUTO_TEST_CASE(a_training_goes_on_when_its_program_detaches_and_another_ends_it) {
  cluster c("outliving_detach");
  auto run = c.begin();
  told first;
  first.follow(*run, 20);
  run->detach();
  first.follow(*run);
  BOOST_TEST(first.ends_with(training_event::kind::detached), first.text());
  BOOST_TEST(says(first.text(), " coordinates the job now"), first.text());
  BOOST_TEST(!run->next().has_value());
  BOOST_TEST(says(run->make_feeder(0).error().text(), "is_fed is not set"));
  run.reset();  // which stops nothing any more

  auto again = c.attach(*c.other);
  told second;
  // Those from before it came are told, too.
  second.follow(*again, first.losses.size() + 20);
  again->finish();
  second.follow(*again);
  BOOST_TEST(second.ends_with(training_event::kind::finished), second.text());
  BOOST_TEST(second.losses.size() < endless);
  c.is_as_undisturbed(second);

  const auto late = c.client().attach("job", test::hang);
  BOOST_REQUIRE(!late);
  BOOST_TEST((late.error().code() == error_code::failed));
  BOOST_TEST(says(late.error().text(), "the job is over: done"), late.error().text());
}

BOOST_AUTO_TEST_CASE(who_attaches_takes_a_training_from_the_program_that_has_it) {
  cluster c("outliving_taken");
  auto run = c.begin();
  told first;
  first.follow(*run, 10);
  const auto own = c.client().attach("job", test::hang);
  BOOST_TEST(says(own ? "" : own.error().text(), "this program has job 'job' already"));
  auto taken = c.attach(*c.other);
  first.follow(*run);
  BOOST_TEST(first.ends_with(training_event::kind::detached), first.text());
  told second;
  second.follow(*taken, first.losses.size() + 10);
  BOOST_TEST_REQUIRE(second.losses.size() >= first.losses.size());
  BOOST_TEST(std::equal(first.losses.begin(), first.losses.end(), second.losses.begin()));
  // And back, to the program that began it.
  auto back = c.attach(c.client());
  second.follow(*taken);
  BOOST_TEST(second.ends_with(training_event::kind::detached), second.text());
  told third;
  third.follow(*back, second.losses.size() + 10);
  back->stop("enough");
  third.follow(*back);
  BOOST_TEST(third.ends_with(training_event::kind::stopped), third.text());
  BOOST_TEST(third.text() == "enough");
}

BOOST_AUTO_TEST_CASE(a_program_that_gives_its_training_up_stops_it) {
  cluster c("outliving_given_up");
  auto run = c.begin();
  told first;
  first.follow(*run, 5);
  run.reset();
  const auto late = c.other->attach("job", test::hang);
  BOOST_REQUIRE(!late);
  BOOST_TEST(says(late.error().text(), "the job is over: "), late.error().text());
}

BOOST_AUTO_TEST_CASE(the_node_that_coordinates_it_goes_and_another_one_does) {
  cluster c("outliving_leaves");
  auto run = c.begin();
  told first;
  first.follow(*run, 10);
  run->detach();
  first.follow(*run);
  BOOST_TEST(first.ends_with(training_event::kind::detached), first.text());
  auto again = c.attach(*c.other);
  told second;
  second.follow(*again, first.losses.size() + 5);
  again->detach();
  second.follow(*again);
  BOOST_TEST(second.ends_with(training_event::kind::detached), second.text());
  BOOST_TEST(says(second.text(), "n1") != says(second.text(), "n2"), second.text());
  // Whichever has it.
  c.leave(says(second.text(), "n1") ? 0 : 1);
  auto third_run = c.attach(c.client());
  told third;
  third.follow(*third_run, second.losses.size() + 5);
  third_run->finish();
  third.follow(*third_run);
  BOOST_TEST(third.ends_with(training_event::kind::finished), third.text());
  c.is_as_undisturbed(third);
}

BOOST_AUTO_TEST_CASE(what_nobody_has_is_given_to_nobody) {
  cluster c("outliving_nobody");
  const auto none = c.client().attach("no_such_job", std::chrono::milliseconds(200));
  BOOST_REQUIRE(!none);
  BOOST_TEST((none.error().code() == error_code::timed_out));
  BOOST_TEST(says(none.error().text(),
                  "no process has given job 'no_such_job' away within 200 ms: troupe list jobs"),
             none.error().text());
}

BOOST_AUTO_TEST_SUITE_END()
