// The disk's actor on a folder of this machine: what it answers to each request, also where it
// cannot do it.

#include "troupe/actors/disk/disk_actor.hpp"

#include "tests/devices/temporary_folder.hpp"
#include "tests/support/wait.hpp"
#include "troupe/actors/base/scheduler.hpp"
#include "troupe/actors/base/tell.hpp"
#include "troupe/devices/files/host_disk.hpp"
#include "troupe/runtime/checkpoint/checkpoint_store.hpp"

#include <boost/test/unit_test.hpp>

#include <caf/actor_system.hpp>
#include <caf/scoped_actor.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

using namespace troupe;

namespace {

constexpr job_id job{5};

tensor row(float a, float b) { return tensor::of({a, b}, {2}); }
bool are(const tensor& t, float a, float b) {
  return t && t.elements() == 2 && t.data<float>()[0] == a && t.data<float>()[1] == b;
}

save_shard shard(const std::string& variable, tensor values, std::vector<std::uint64_t> applied,
                 std::vector<std::pair<std::string, tensor>> state = {}) {
  save_shard s;
  s.job = job;
  s.epoch = 1;
  s.step = 7;
  s.variable = variable;
  s.applied = std::move(applied);
  s.values = std::move(values);
  s.state = std::move(state);
  return s;
}

std::uint32_t epoch_of(const epoch_claimed& c) {
  BOOST_REQUIRE_MESSAGE(*c.epoch, (*c.epoch ? "" : c.epoch->error().text()));
  return **c.epoch;
}

struct asked_disk {
  asked_disk() : system(config.pinned()), self(system) {
    auto& scheduler = static_cast<pinned_scheduler&>(system.scheduler());
    actor = spawn_disk(system, scheduler.disk(), *files);
  }

  // The answer to a request, which has the same place as it.
  template <class Answer, class Request>
  Answer ask(Request r) {
    tell(nullptr, actor,
         disk_work{std::make_shared<const disk_request>(std::move(r)),
                   caf::actor_cast<caf::actor>(self)});
    std::shared_ptr<disk_answer> got;
    self->receive([&](disk_done& m) { got = std::move(m.answer); },
                  caf::after(test::hang) >> [] {});
    after_message();
    BOOST_TEST_REQUIRE((got != nullptr), "waited for the disk's answer");
    BOOST_TEST_REQUIRE(std::holds_alternative<Answer>(*got));
    return std::get<Answer>(std::move(*got));
  }

  claim_next claim() const {
    claim_next c;
    c.folder = folder.path();
    c.name = "job";
    c.who = {"program", "host", 17, 1};
    return c;
  }
  write_part part(std::vector<save_shard> shards) const {
    write_part w;
    w.about.job = job;
    w.about.epoch = 1;
    w.about.folder = folder.path();
    w.about.name = "job";
    w.shards = std::move(shards);
    return w;
  }
  // Of `w`, which has a slot, and `b`, as step 7 of epoch 1.
  write_cut cut() {
    const auto saved = ask<part_saved>(part(
        {shard("w", row(1, 2), {3, 4}, {{"velocity", row(5, 6)}}), shard("b", row(7, 8), {3, 4})}));
    BOOST_TEST(saved.error == "");
    BOOST_TEST(saved.step == 7U);
    BOOST_TEST(saved.worker_steps == (std::vector<std::uint64_t>{3, 4}),
               boost::test_tools::per_element());
    BOOST_TEST(saved.variables == (std::vector<std::string>{"b", "w"}),
               boost::test_tools::per_element());
    write_cut c;
    c.folder = folder.path();
    c.manifest.job = "job";
    c.manifest.epoch = 1;
    c.manifest.step = 7;
    c.manifest.worker_steps = saved.worker_steps;
    c.manifest.parts = {{saved.file, saved.bytes, saved.hash, saved.variables}};
    c.manifest.variables = {{"b", {dtype::f32, {2}}, {}}, {"w", {dtype::f32, {2}}, {"velocity"}}};
    return c;
  }
  void publish() {
    BOOST_TEST(epoch_of(ask<epoch_claimed>(claim())) == 1U);
    const auto written = ask<cut_written>(cut());
    BOOST_REQUIRE_MESSAGE(*written.written,
                          (*written.written ? "" : written.written->error().text()));
  }
  load_shards load(std::map<std::string, std::vector<std::string>> variables) const {
    load_shards l;
    l.job = job;
    l.epoch = 2;
    l.folder = folder.path();
    l.name = "job";
    l.checkpoint = checkpoint_folder_name({1, 7});
    l.variables = std::move(variables);
    return l;
  }
  std::string refusal(const load_shards& l) {
    const auto loaded = ask<shards_loaded>(l);
    BOOST_TEST(loaded.shards.empty());
    return loaded.error;
  }

  test::temporary_folder folder;
  std::unique_ptr<disk> files = make_host_disk();
  scheduler_config config;
  caf::actor_system system;
  caf::scoped_actor self;
  caf::actor actor;
};

bool says(const std::string& text, std::string_view what) {
  return text.find(what) != std::string::npos;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(disk_actor)

BOOST_FIXTURE_TEST_CASE(what_was_saved_is_loaded, asked_disk) {
  publish();
  const auto loaded = ask<shards_loaded>(load({{"w", {"velocity"}}, {"b", {}}}));
  BOOST_TEST(loaded.error == "");
  BOOST_TEST((loaded.job == job));
  BOOST_TEST(loaded.epoch == 2U);
  BOOST_TEST_REQUIRE(loaded.shards.size() == 2U);
  const auto& w = *loaded.shards.at("w");
  BOOST_TEST_REQUIRE(w.slots.size() == 1U);
  BOOST_TEST(w.slots[0].version.value_or(0) == 7U);
  BOOST_TEST(are(w.slots[0].values, 1, 2));
  BOOST_TEST_REQUIRE(w.slots[0].state.size() == 1U);
  BOOST_TEST(are(w.slots[0].state[0], 5, 6));
  BOOST_TEST(are(loaded.shards.at("b")->slots.at(0).values, 7, 8));
  // The next one to claim is told of it.
  auto next = claim();
  next.wants_checkpoint = next.wants_lock = true;
  const auto claimed = ask<epoch_claimed>(next);
  BOOST_TEST(epoch_of(claimed) == 2U);
  BOOST_TEST((claimed.lock != nullptr));
  BOOST_TEST_REQUIRE(claimed.newest.has_value());
  BOOST_TEST(claimed.newest->step == 7U);
}

BOOST_FIXTURE_TEST_CASE(what_a_checkpoint_has_not_is_told, asked_disk) {
  publish();
  BOOST_TEST(says(refusal(load({{"z", {}}})), "lacks variable 'z'"));
  BOOST_TEST(says(refusal(load({{"w", {}}})),
                  "it has velocity for variable 'w', but this run's optimizer needs no slots"));
  auto other = load({{"w", {"velocity"}}});
  other.checkpoint = "../w";
  BOOST_TEST(says(refusal(other), "'../w' is no name of a checkpoint"));
  other.checkpoint = checkpoint_folder_name({1, 8});
  BOOST_TEST(says(refusal(other), "does not exist on this node: every node needs the same folder"));
  // One of which somebody has damaged the list of what is in it.
  int damaged = 0;
  for (const auto& e : std::filesystem::recursive_directory_iterator(folder.path()))
    if (e.path().filename() == manifest_file_name)
      std::ofstream(e.path(), std::ios::trunc) << "{", ++damaged;
  BOOST_TEST(damaged == 1);
  BOOST_TEST(says(refusal(load({{"b", {}}})), manifest_file_name));
}

BOOST_FIXTURE_TEST_CASE(variables_of_different_steps_are_no_part, asked_disk) {
  const auto saved =
      ask<part_saved>(part({shard("w", row(1, 2), {3}), shard("b", row(1, 2), {4})}));
  BOOST_TEST(saved.error == "variables w and b hold different steps");
  BOOST_TEST(saved.file == "");
}

BOOST_FIXTURE_TEST_CASE(a_cut_of_an_epoch_that_is_over_is_denied, asked_disk) {
  BOOST_TEST(epoch_of(ask<epoch_claimed>(claim())) == 1U);
  const auto old = cut();
  BOOST_TEST(epoch_of(ask<epoch_claimed>(claim())) == 2U);
  const auto written = ask<cut_written>(old);
  BOOST_TEST(written.step == 7U);
  BOOST_TEST(written.epoch == 1U);
  BOOST_TEST_REQUIRE(!*written.written);
  BOOST_TEST((written.written->error().code() == error_code::denied));
  BOOST_TEST(says(written.written->error().text(), "another program has resumed it"));
  // Nothing is left of it.
  BOOST_TEST(says(refusal(load({{"b", {}}})), "does not exist on this node"));
}

BOOST_FIXTURE_TEST_CASE(an_epoch_that_a_rival_has_claimed_is_denied, asked_disk) {
  publish();
  auto mine = claim();
  mine.who = {"node", "other", 18, 2};
  mine.known_epoch = 0;
  mine.rivals = {{"program", "host", 17, 0}};
  const auto denied = ask<epoch_claimed>(mine);
  BOOST_TEST_REQUIRE(!*denied.epoch);
  BOOST_TEST((denied.epoch->error().code() == error_code::denied));
  mine.known_epoch = 1;
  BOOST_TEST(epoch_of(ask<epoch_claimed>(mine)) == 2U);
}

BOOST_FIXTURE_TEST_CASE(a_cut_that_is_given_up_goes, asked_disk) {
  (void)ask<part_saved>(part({shard("w", row(1, 2), {3})}));
  const auto files_there = [&] {
    return std::ranges::count_if(std::filesystem::recursive_directory_iterator(folder.path()),
                                 [](const auto& e) { return e.is_regular_file(); });
  };
  BOOST_TEST(files_there() > 0);
  drop_cut d;
  d.folder = folder.path();
  d.name = "job";
  d.id = {1, 7};
  (void)ask<cut_dropped>(d);
  BOOST_TEST(files_there() == 0);
}

// What the archive says where the actor has failed.
BOOST_FIXTURE_TEST_CASE(what_was_not_carried_out_is_refused_with_the_reason, asked_disk) {
  const auto refused = [](auto request) { return refusal_of(disk_request(request), "why"); };
  const auto saved = std::get<part_saved>(refused(part({shard("w", row(1, 2), {3})})));
  BOOST_TEST(saved.error == "why");
  BOOST_TEST(saved.step == 7U);
  const auto loaded = std::get<shards_loaded>(refused(load({{"w", {}}})));
  BOOST_TEST(loaded.error == "why");
  BOOST_TEST(loaded.epoch == 2U);
  BOOST_TEST(std::get<epoch_claimed>(refused(claim())).epoch->error().message() == "why");
  write_cut c;
  c.manifest.step = 9;
  const auto written = std::get<cut_written>(refused(c));
  BOOST_TEST(written.step == 9U);
  BOOST_TEST(written.written->error().message() == "why");
  BOOST_TEST((std::holds_alternative<cut_dropped>(refused(drop_cut{}))));
}

BOOST_AUTO_TEST_SUITE_END()
