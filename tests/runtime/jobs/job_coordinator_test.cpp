#include "troupe/runtime/graph/build.hpp"
#include "troupe/runtime/graph/op_table.hpp"
#include "troupe/runtime/jobs/job_coordinator.hpp"

#include <boost/test/unit_test.hpp>

#include <fmt/format.h>

using namespace troupe;

namespace {

constexpr node_id client{99}, n1{1}, n2{2}, n3{3};
constexpr std::int64_t s = 1'000'000'000;

member_info member(node_id id, member_kind kind = member_kind::node) {
  member_info m;
  m.id = id;
  m.name = fmt::format("n{}", raw(id));
  m.pid = static_cast<std::uint32_t>(raw(id));
  m.start_time_ns = raw(id);
  m.kind = kind;
  return m;
}

training_program make_program(update_kind update, std::uint32_t workers, bool is_recoverable,
                              bool has_cuts = false, bool has_replicas = false,
                              const std::string& library = "", const std::string& device = "") {
  auto ops = make_op_table();
  auto row = *ops.find("square");
  if (!library.empty()) row.library = std::make_shared<const library_id>(library, "1.0", 5);
  ops.add("own", row);
  graph g(ops);
  const auto w = variable(g, {dtype::f32, {2}}, {}, "w");
  const auto b = variable(g, {dtype::f32, {2}}, {}, "b");
  training_spec t;
  t.workers = workers;
  t.shards = 2;
  t.update = update;
  t.steps = 10;
  t.is_recoverable = is_recoverable;
  t.has_cuts = has_cuts;
  t.has_replicas = has_replicas;
  const value product[] = {mul(w, b)};
  const auto loss = reduce_sum(
      library.empty() ? product[0] : g.add("own", product, {}, "own", source_location::current()));
  auto made = compile_program(g, loss, t, {.name = "training", .device = device});
  BOOST_TEST_REQUIRE(bool(made), (made ? "" : made.error().text()));
  return *made;
}

// A coordinator with the world around it played by the test.
struct world {
  std::optional<job_coordinator> job;
  std::vector<job_action::send> sent;
  std::vector<job_event> told;
  std::size_t claims = 0, manifests = 0, drops = 0, credits = 0;

  world(failure_policy policy, update_kind update = update_kind::sync, std::string folder = "",
        std::vector<node_id> replicas = {}, const std::string& library = "",
        const std::string& device = "", bool outlives = false,
        std::shared_ptr<const kept_journal> after = nullptr, bool may_finish = false,
        std::size_t message_bytes_max = 1 << 20) {
    job_setup setup;
    if (outlives) setup.recipe = std::make_shared<const std::vector<std::byte>>(8);
    setup.after = std::move(after);
    setup.why_after = "c1, which coordinated it, has died or left";
    setup.has_failed_before = true;
    setup.id = job_id{7};
    setup.name = "training";
    setup.client = client;
    setup.program = make_program(update, 2, policy != failure_policy::stop || may_finish,
                                 !folder.empty(), !replicas.empty(), library, device);
    setup.roles = {{n1, n2}, {n3, n3}, std::move(replicas)};
    setup.on_failure = policy;
    setup.checkpoints.folder = std::move(folder);
    std::vector<member_info> members{member(client, member_kind::client), member(n1), member(n2),
                                     member(n3)};
    for (auto& m : members)
      if (!library.empty()) m.libraries = {{library, "1.0", 5}};
    for (auto& m : members)
      if (!device.empty() && m.id != n3 && m.id != client) m.devices = {{"chip", 0, 1}};
    job.emplace(std::move(setup), members, message_bytes_max);
    job->begin(0);
    take();
  }

  void take() {
    for (auto& a : job->take_actions()) {
      if (auto* x = std::get_if<job_action::send>(&a)) sent.push_back(std::move(*x));
      if (auto* x = std::get_if<job_event>(&a)) told.push_back(std::move(*x));
      claims += std::holds_alternative<job_action::claim_epoch>(a);
      manifests += std::holds_alternative<job_action::write_manifest>(a);
      drops += std::holds_alternative<job_action::drop_cut>(a);
      if (auto* x = std::get_if<job_action::give_loss_credits>(&a)) credits += x->count;
    }
  }

  // As a process that does not stand still.
  void pass_until(std::int64_t now) {
    for (; last_tick + s / 2 < now; job->tick(last_tick += s / 2)) {
    }
    job->tick(last_tick = now);
  }
  std::int64_t last_tick = 0;

  template <class Body>
  std::vector<node_id> sent_to() {
    std::vector<node_id> out;
    for (const auto& m : sent)
      if (std::holds_alternative<Body>(m.body)) out.push_back(m.to);
    return out;
  }
  const place_part* last_place() const {
    const place_part* last = nullptr;
    for (const auto& m : sent)
      if (auto* p = std::get_if<place_part>(&m.body)) last = p;
    return last;
  }
  std::string last(job_event_kind k) const {
    std::string text = "not told";
    for (const auto& e : told)
      if (e.kind == k) text = e.text;
    return text;
  }

  void all_placed(std::initializer_list<node_id> nodes) {
    for (auto n : nodes) job->on_placed(n, {job_id{7}, job->epoch(), "", {}});
    job->on_local_part(job->epoch());
    take();
    BOOST_TEST_REQUIRE((job->phase() == job_phase::running));
  }
  void losses(std::uint64_t first, std::uint64_t end) {
    for (auto t = first; t < end; ++t) job->on_loss(0, t, float(t));
    take();
  }
  // Whoever was sent a journal says that it has it.
  void kept() {
    for (const auto& m : std::exchange(sent, {})) {
      if (auto* k = std::get_if<keep_journal>(&m.body))
        job->on_kept(m.to, {job_id{7}, k->number, {}});
      before.push_back(m);
    }
    take();
  }
  std::vector<job_action::send> before;  // what was sent until kept()
  std::size_t moves() const {
    return static_cast<std::size_t>(std::count_if(
        told.begin(), told.end(), [](const auto& e) { return e.kind == job_event_kind::moved; }));
  }
  void halted(node_id from, std::vector<kept_report> kept = {}) {
    job->on_halted(from, {job_id{7}, job->epoch(), std::move(kept), {}, 0});
    take();
  }
};

std::vector<kept_report> both(std::vector<std::uint64_t> versions) {
  const auto newest = versions.back();
  return {{"b", versions, {newest, newest}}, {"w", versions, {newest, newest}}};
}

}  // namespace

BOOST_AUTO_TEST_SUITE(job_coordinator)

BOOST_AUTO_TEST_CASE(a_plan_without_room_in_a_message_is_given_piece_by_piece) {
  world w(failure_policy::stop, update_kind::sync, "", {}, "", "", false, nullptr, false, 100);
  BOOST_TEST(w.sent_to<place_part>().size() == 4U);
  const auto* placing = w.last_place();
  BOOST_TEST(placing->plan.empty());
  const auto id = placing->plan_id;
  BOOST_TEST(id.bytes > 100U);
  BOOST_TEST_REQUIRE(id.bytes <= blob_piece_bytes);
  // Here alone they need not be asked for.
  for (const auto& m : w.sent)
    if (const auto* p = std::get_if<place_part>(&m.body))
      BOOST_TEST((p->blobs_here != nullptr) == (m.to == client));
  // Who asks is at it, and not mute.
  for (const auto n : {n2, n3, client}) w.job->on_placed(n, {job_id{7}, 1, "", {}});
  for (int i = 1; i <= 4; ++i) {
    w.pass_until(i * (troupe::job_coordinator::answer_max_ns - s));
    w.job->on_want_blob(n1, {job_id{7}, id, 0});
    w.take();
    BOOST_TEST((w.job->phase() == job_phase::placing));
  }
  BOOST_TEST((w.sent_to<blob_piece>() == std::vector<node_id>(4, n1)));
  const auto& piece = std::get<blob_piece>(w.sent.back().body);
  BOOST_TEST(piece.error == "");
  const auto read = decode_plan(piece.bytes);
  BOOST_TEST_REQUIRE(bool(read));
  BOOST_TEST((*read == w.job->current_plan()));
  w.job->on_want_blob(n1, {job_id{7}, {1, 2, 3}, 0});
  w.take();
  BOOST_TEST(std::get<blob_piece>(w.sent.back().body).error != "");
}

BOOST_AUTO_TEST_CASE(JC_16_nodes_with_other_data_are_told_and_no_training_begins_with_them) {
  const auto placed = [](std::uint32_t epoch, std::uint64_t hash) {
    return part_placed{job_id{7}, epoch, "", {}, {{"training data in /d", hash}}};
  };
  {
    world w(failure_policy::resume);
    w.job->on_placed(n1, placed(1, 5));
    w.job->on_placed(n2, placed(1, 6));
    w.take();
    BOOST_TEST((w.job->phase() == job_phase::over));
    const auto text = w.last(job_event_kind::failed);
    BOOST_TEST(
        text.find("the training data in /d has other contents than on n1") != std::string::npos,
        text);
    BOOST_TEST(text.find("n2") != std::string::npos);
  }
  // One that comes when something is trained is left out.
  world w(failure_policy::resume);
  for (const auto n : {n1, n2, n3, client}) w.job->on_placed(n, placed(1, 5));
  w.job->on_local_part(1);
  w.take();
  BOOST_TEST_REQUIRE((w.job->phase() == job_phase::running));
  w.losses(0, 2);
  w.job->on_lost(n1, "died", false);
  w.take();
  for (const auto n : {n2, client}) w.halted(n);
  w.halted(n3, both({1, 2}));
  w.pass_until(10 * s);
  w.take();
  const auto epoch = w.job->epoch();
  BOOST_TEST_REQUIRE((w.job->phase() == job_phase::placing));
  w.job->on_placed(n2, placed(epoch, 6));
  w.take();
  BOOST_TEST((w.job->phase() == job_phase::halting));
  BOOST_TEST(w.last(job_event_kind::recovering).find("other contents than on n1") !=
             std::string::npos);
  for (const auto n : {n2, client}) w.halted(n);
  w.halted(n3, both({1, 2}));
  w.pass_until(20 * s);
  w.take();
  BOOST_TEST_REQUIRE((w.job->phase() == job_phase::placing));
  BOOST_TEST(std::count(w.job->nodes().begin(), w.job->nodes().end(), n2) == 0);
}

// The node that was the first to say what it has read may be the one with the stale copy, and gone.
BOOST_AUTO_TEST_CASE(JC_16_until_something_is_trained_nodes_are_compared_anew) {
  const auto placed = [](std::uint32_t epoch, std::uint64_t hash) {
    return part_placed{job_id{7}, epoch, "", {}, {{"training data in /d", hash}}};
  };
  world w(failure_policy::resume);
  w.job->on_placed(n1, placed(1, 5));
  w.job->on_lost(n1, "died", false);
  w.take();
  for (const auto n : {n2, n3, client}) w.halted(n);
  w.pass_until(10 * s);
  w.take();
  BOOST_TEST_REQUIRE((w.job->phase() == job_phase::placing));
  const auto epoch = w.job->epoch();
  for (const auto n : {n2, n3, client}) w.job->on_placed(n, placed(epoch, 6));
  w.job->on_local_part(epoch);
  w.take();
  BOOST_TEST((w.job->phase() == job_phase::running));
}

BOOST_AUTO_TEST_CASE(JC_17_who_refuses_its_part_is_left_out_where_others_can_take_it) {
  const part_placed refused{job_id{7}, 1, "it has 1.0 MiB for jobs", {}, {}};
  world w(failure_policy::resume);
  w.job->on_placed(n1, refused);
  w.take();
  BOOST_TEST((w.job->phase() == job_phase::halting));
  w.job->on_placed(n2, refused);  // which it had said before it heard of that
  w.take();
  for (const auto n : {n1, n2, n3, client}) w.halted(n);
  w.pass_until(s);
  w.take();
  BOOST_TEST_REQUIRE((w.job->phase() == job_phase::placing));
  for (const auto n : {n1, n2})
    BOOST_TEST(std::count(w.job->nodes().begin(), w.job->nodes().end(), n) == 0);
  w.all_placed({n3, client});
}

BOOST_AUTO_TEST_CASE(JC_17_who_keeps_variables_is_not_left_out) {
  world w(failure_policy::resume);
  w.all_placed({n1, n2, n3, client});
  w.losses(0, 2);
  w.job->on_lost(n1, "died", false);
  w.take();
  for (const auto n : {n2, client}) w.halted(n);
  w.halted(n3, both({1, 2}));
  w.pass_until(10 * s);
  w.take();
  BOOST_TEST_REQUIRE((w.job->phase() == job_phase::placing));
  w.job->on_placed(n3, {job_id{7}, w.job->epoch(), "it has no memory left", {}, {}});
  w.take();
  for (const auto n : {n2, client}) w.halted(n);
  w.halted(n3, both({1, 2}));
  w.pass_until(20 * s);
  w.take();
  BOOST_TEST_REQUIRE((w.job->phase() == job_phase::placing));
  BOOST_TEST(std::count(w.job->nodes().begin(), w.job->nodes().end(), n3) > 0);
  BOOST_TEST(w.last_place() != nullptr);
  BOOST_TEST((w.job->roles().shards == std::vector<node_id>{n3, n3}));
}

BOOST_AUTO_TEST_CASE(everybody_is_placed_then_started) {
  world w(failure_policy::stop);
  BOOST_TEST(w.sent_to<place_part>().size() == 4U);
  BOOST_TEST((w.job->phase() == job_phase::placing));
  w.all_placed({n1, n2, n3, client});
  BOOST_TEST(w.sent_to<start_part>().size() == 4U);
  BOOST_TEST((w.told.back().kind == job_event_kind::started));
}

// SV-1: a collective that breaks off may be told before the death that it follows from.
BOOST_AUTO_TEST_CASE(a_derived_failure_gives_way_to_its_cause_and_is_believed_when_none_comes) {
  for (const bool has_cause : {true, false}) {
    world w(failure_policy::stop);
    w.all_placed({n1, n2, n3, client});
    w.job->tick(5 * s);
    w.job->on_ended(
        n1,
        {job_id{7}, w.job->epoch(), "gpu:0: rank 1 is gone", "all_reduce/gpu:0/0", 3, {}, 0, true});
    w.job->on_ended(
        n3, {job_id{7}, w.job->epoch(), "another one", "all_reduce/gpu:0/2", 3, {}, 0, true});
    w.job->tick(6 * s);
    w.take();
    BOOST_TEST(w.last(job_event_kind::failed) == "not told");
    if (has_cause) w.job->on_lost(n2, "no sign of life", false);
    w.take();
    BOOST_TEST((w.last(job_event_kind::failed) != "not told") == has_cause);
    w.job->tick(7 * s);
    w.take();
    const auto text = w.last(job_event_kind::failed);
    BOOST_TEST(
        text.find(
            has_cause
                ? "node n2"
                : "node n1 (pid 1), actor all_reduce/gpu:0/0, step 3: gpu:0: rank 1 is gone") !=
            std::string::npos,
        text);
    BOOST_TEST((text.find("is gone") != std::string::npos) == !has_cause, text);
  }
}

BOOST_AUTO_TEST_CASE(a_job_that_stops_on_failure_names_the_node_and_ends_everywhere) {
  world w(failure_policy::stop);
  w.all_placed({n1, n2, n3, client});
  w.job->on_lost(n2, "no sign of life", false);
  w.take();
  BOOST_TEST((w.told.back().kind == job_event_kind::failed));
  BOOST_TEST(w.told.back().text.find("node n2 (pid 2)") != std::string::npos);
  BOOST_TEST(w.sent_to<stop_part>().size() >= 3U);
  w.job->on_lost(n1, "too", false);  // JC-1
  w.take();
  BOOST_TEST((w.told.back().text.find("n2") != std::string::npos));
}

BOOST_AUTO_TEST_CASE(JC_2_a_worker_that_is_lost_is_placed_elsewhere_once_all_others_have_halted) {
  world w(failure_policy::resume);
  w.all_placed({n1, n2, n3, client});
  w.losses(0, 5);
  w.sent.clear();
  w.job->on_lost(n2, "no sign of life", false);
  w.take();
  BOOST_TEST((w.job->phase() == job_phase::halting));
  BOOST_TEST(w.sent_to<halt_part>().size() == 3U);
  BOOST_TEST(w.sent_to<place_part>().empty());
  w.halted(n1);
  w.halted(client);
  BOOST_TEST(w.sent_to<place_part>().empty());
  w.halted(n3, both({4, 5}));
  BOOST_TEST((w.job->phase() == job_phase::placing));
  BOOST_TEST(w.job->epoch() == 2U);
  // Variables stay where they are.
  BOOST_TEST((w.job->roles().shards == std::vector<node_id>{n3, n3}));
  // A worker counts as two shards.
  BOOST_TEST((w.job->roles().workers == std::vector<node_id>{n1, n1}));
  auto p = decode_plan(w.last_place()->plan);
  BOOST_TEST_REQUIRE(bool(p));
  for (const auto& a : p->actors)
    if (a.kind == actor_kind::shard) {
      BOOST_TEST(a.shard.version == 5U);
      BOOST_TEST((a.shard.restore == restore_kind::kept));
    }
  w.all_placed({n1, n3, client});
  BOOST_TEST(w.last(job_event_kind::resumed) == "goes on from step 5 (epoch 2)");
}

BOOST_AUTO_TEST_CASE(RC_2_no_cut_is_behind_a_loss_that_the_program_has_not_got) {
  world w(failure_policy::resume);
  w.all_placed({n1, n2, n3, client});
  w.losses(0, 4);
  w.job->on_lost(n2, "gone", false);
  w.halted(n1), w.halted(client), w.halted(n3, both({4, 5}));
  const auto p = decode_plan(w.last_place()->plan);
  for (const auto& a : p->actors)
    if (a.kind == actor_kind::shard) BOOST_TEST(a.shard.version == 4U);
}

BOOST_AUTO_TEST_CASE(JC_3_reports_of_another_epoch_change_nothing) {
  world w(failure_policy::resume);
  w.all_placed({n1, n2, n3, client});
  w.job->on_lost(n2, "gone", false);
  w.halted(n1), w.halted(client), w.halted(n3, both({0}));
  w.job->on_placed(n1, {job_id{7}, 1, "", {}});
  w.job->on_placed(n3, {job_id{7}, 1, "", {}});
  w.job->on_placed(client, {job_id{7}, 1, "", {}});
  w.job->on_local_part(1);
  w.job->on_ended(n1, {job_id{7}, 1, "late news", "x", 0, {}, 0});
  w.job->on_halted(n1, {job_id{7}, 1, {}, {}, 0});
  BOOST_TEST((w.job->phase() == job_phase::placing));
}

BOOST_AUTO_TEST_CASE(JC_4_a_loss_is_told_once_and_when_its_step_is_committed) {
  world w(failure_policy::resume);
  w.all_placed({n1, n2, n3, client});
  const auto told = [&] {
    return std::count_if(w.told.begin(), w.told.end(),
                         [](const auto& e) { return e.kind == job_event_kind::loss; });
  };
  w.losses(0, 1);
  BOOST_TEST(told() == 0);
  w.losses(1, 3);
  BOOST_TEST(told() == 2);
  w.losses(1, 3);  // made again
  BOOST_TEST(told() == 2);
  w.losses(3, 4);
  BOOST_TEST(told() == 3);
}

BOOST_AUTO_TEST_CASE(without_a_node_the_job_waits_and_goes_on_with_the_next_one) {
  world w(failure_policy::resume);
  w.all_placed({n1, n2, n3, client});
  for (auto n : {n1, n2, n3}) w.job->on_lost(n, "gone", false);
  w.halted(client);
  BOOST_TEST((w.job->phase() == job_phase::waiting));
  w.job->tick(100 * s);
  BOOST_TEST((w.job->phase() == job_phase::waiting));
  w.job->on_member(member(node_id{4}));
  w.take();
  BOOST_TEST((w.job->phase() == job_phase::placing));
  BOOST_TEST((w.job->roles().workers == std::vector<node_id>{node_id{4}, node_id{4}}));
  w.all_placed({node_id{4}, client});
}

BOOST_AUTO_TEST_CASE(JC_6_a_job_without_a_node_is_given_up_in_the_end) {
  world w(failure_policy::resume);
  w.all_placed({n1, n2, n3, client});
  for (auto n : {n1, n2, n3}) w.job->on_lost(n, "gone", false);
  w.halted(client);
  w.pass_until(troupe::job_coordinator::waiting_max_ns + s);
  w.take();
  BOOST_TEST((w.told.back().kind == job_event_kind::failed));
}

BOOST_AUTO_TEST_CASE(
    SV_5_an_actor_that_fails_again_and_again_at_one_step_is_given_up_with_its_own_words) {
  world w(failure_policy::resume);
  std::int64_t now = 0;
  int recoveries = 0;
  for (; recoveries < 50 && w.job->phase() != job_phase::over; ++recoveries) {
    for (int i = 0; i < 1000 && w.job->phase() == job_phase::pausing; ++i)
      w.job->tick(now += s / 10);
    w.take();
    w.all_placed({n1, n2, n3, client});
    w.job->on_ended(
        n1, {job_id{7}, w.job->epoch(), "matmul got no memory", "worker/0/matmul", 0, {}, 0});
    w.take();
    for (auto n : {n1, n2, client}) w.halted(n);
    if (w.job->phase() == job_phase::halting) w.halted(n3, both({0}));
  }
  BOOST_TEST(recoveries == 7);
  BOOST_TEST((w.told.back().kind == job_event_kind::failed));
  BOOST_TEST(w.told.back().text.find("worker/0/matmul") != std::string::npos);
  BOOST_TEST(w.told.back().text.find("given up after 6 attempts in a row without a step forward") !=
             std::string::npos);
}

BOOST_AUTO_TEST_CASE(JC_18_a_program_that_stood_still_blames_nobody) {
  constexpr auto most = troupe::job_coordinator::answer_max_ns;
  world w(failure_policy::stop);
  w.job->tick(2 * most);
  BOOST_TEST((w.job->phase() == job_phase::placing));
  w.last_tick = 2 * most;
  w.pass_until(3 * most - s);
  BOOST_TEST((w.job->phase() == job_phase::placing));
  w.pass_until(3 * most + s);
  w.take();
  BOOST_TEST((w.job->phase() == job_phase::over));
  BOOST_TEST(w.last(job_event_kind::failed).find("has not answered for 30 s") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_part_that_does_not_end_is_left_behind) {
  world w(failure_policy::resume);
  w.all_placed({n1, n2, n3, client});
  w.job->on_lost(n2, "gone", false);
  w.halted(client), w.halted(n3, both({0}));
  w.pass_until(troupe::job_coordinator::answer_max_ns + s);
  w.take();
  BOOST_TEST((w.job->phase() == job_phase::placing));
  BOOST_TEST((w.job->roles().workers == std::vector<node_id>{n3, n3}));
  // It is alive, and no longer mute (JC-8).
  w.all_placed({n3, client});
  w.losses(0, 2);
  w.pass_until(troupe::job_coordinator::answer_max_ns + troupe::job_coordinator::excluded_ns +
               2 * s);
  w.job->on_member(member(node_id{5}));
  w.halted(client), w.halted(n3, both({1, 2}));
  BOOST_TEST(std::count(w.job->roles().workers.begin(), w.job->roles().workers.end(), n1) == 1);
}

BOOST_AUTO_TEST_CASE(a_node_that_joins_is_given_work_if_that_makes_somebody_less_busy) {
  world w(failure_policy::resume);
  w.all_placed({n1, n2, n3, client});
  w.job->on_lost(n2, "gone", false);
  w.halted(n1), w.halted(client), w.halted(n3, both({0}));
  w.all_placed({n1, n3, client});
  BOOST_TEST((w.job->roles().workers == std::vector<node_id>{n1, n1}));
  w.losses(0, 1);
  w.job->on_member(member(node_id{5}));
  BOOST_TEST((w.job->phase() == job_phase::halting));
  w.halted(client), w.halted(n3, both({0})), w.halted(n1);
  BOOST_TEST(w.job->roles().workers.size() == 2U);
  BOOST_TEST((w.job->roles().workers[0] != w.job->roles().workers[1]));
  w.all_placed({n1, n3, node_id{5}, client});
  BOOST_TEST(w.job->totals().recoveries == 1U);  // that was none
}

BOOST_AUTO_TEST_CASE(a_node_that_comes_while_the_job_is_placed_gets_work_when_it_runs) {
  world w(failure_policy::resume);
  w.all_placed({n1, n2, n3, client});
  w.job->on_lost(n2, "gone", false);
  w.halted(n1), w.halted(client), w.halted(n3, both({0}));
  BOOST_TEST_REQUIRE((w.job->phase() == job_phase::placing));
  w.job->on_member(member(node_id{5}));
  w.take();
  BOOST_TEST_REQUIRE((w.job->phase() == job_phase::placing));
  for (auto n : {n1, n3, client}) w.job->on_placed(n, {job_id{7}, w.job->epoch(), "", {}});
  w.job->on_local_part(w.job->epoch());
  w.take();
  BOOST_TEST((w.job->phase() == job_phase::running));  // JC-7
  w.losses(0, 1);
  BOOST_TEST((w.job->phase() == job_phase::halting));
  BOOST_TEST(w.last(job_event_kind::note).find("n5 has joined") != std::string::npos);
}

// --- libraries of ops ---

BOOST_AUTO_TEST_CASE(PM_4_a_node_that_lacks_a_library_of_the_job_gets_no_work_and_is_named) {
  world w(failure_policy::resume, update_kind::sync, "", {}, "own_ops");
  w.all_placed({n1, n2, n3, client});
  w.losses(0, 1);
  w.job->on_member(member(node_id{5}));  // without it
  w.take();
  BOOST_TEST((w.job->phase() == job_phase::running));
  BOOST_TEST(
      w.last(job_event_kind::note) ==
      "gets no work: op 'own' needs library own_ops 1.0, and n5 has no library of that name: start it with troupe-node --load");
  w.job->on_lost(n2, "gone", false);
  w.halted(n1), w.halted(client), w.halted(n3, both({0}));
  for (const auto n : w.job->nodes()) BOOST_TEST((n != node_id{5}));
  w.all_placed({n1, n3, client});
  w.losses(1, 2);
  auto able = member(node_id{6});
  able.libraries = {{"own_ops", "1.0", 5}};
  w.job->on_member(able);
  BOOST_TEST((w.job->phase() == job_phase::halting));
}

// --- devices ---

// n1 and n2 have gpu:0, n3 has none.
struct on_devices : world {
  on_devices() : world(failure_policy::resume, update_kind::sync, "", {}, "", "/gpu:0") {
    all_placed({n1, n2, n3, client});
    losses(0, 1);
  }
  bool is_used(node_id n) const {
    return std::find(job->roles().workers.begin(), job->roles().workers.end(), n) !=
           job->roles().workers.end();
  }
};

member_info with_a_device(node_id id) {
  auto m = member(id);
  m.devices = {{"chip", 0, 1}};
  return m;
}

BOOST_FIXTURE_TEST_CASE(PM_5_in_a_recovery_workers_move_to_nodes_with_their_device_alone,
                        on_devices) {
  job->on_member(member(node_id{5}));  // idle, and without
  take();
  BOOST_TEST_REQUIRE((job->phase() == job_phase::halting));  // for the shards
  halted(n1), halted(n2), halted(client), halted(n3, both({0, 1}));
  BOOST_TEST(!is_used(node_id{5}));
  BOOST_TEST((job->roles().shards != std::vector<node_id>{n3, n3}));
  for (auto n : job->nodes()) job->on_placed(n, {job_id{7}, job->epoch(), "", {}});
  job->on_local_part(job->epoch());
  take();
  BOOST_TEST_REQUIRE((job->phase() == job_phase::running));
  job->on_lost(n2, "gone", false);
  halted(n1), halted(client), halted(n3, both({0, 1})), halted(node_id{5}, both({0, 1}));
  BOOST_TEST_REQUIRE((job->phase() == job_phase::placing));
  BOOST_TEST((job->roles().workers == std::vector<node_id>{n1, n1}));
}

BOOST_FIXTURE_TEST_CASE(PM_5_without_a_node_that_has_the_device_a_job_waits_for_one, on_devices) {
  job->on_lost(n1, "gone", false), job->on_lost(n2, "gone", false);
  halted(client), halted(n3, both({0, 1}));
  BOOST_TEST_REQUIRE((job->phase() == job_phase::waiting));
  const auto says = last(job_event_kind::note);
  BOOST_TEST(says.find("waits for a node that takes work: ") != std::string::npos, says);
  BOOST_TEST(says.find("job_coordinator_test.cpp:") != std::string::npos, says);
  BOOST_TEST(
      says.find("is to run on gpu:0, and no node that takes workers has it: n3 has no device") !=
          std::string::npos,
      says);
  job->tick(500 * s);
  job->on_member(member(node_id{5}));
  take();
  BOOST_TEST((job->phase() == job_phase::waiting));
  BOOST_TEST(last(job_event_kind::note).find("n5 has no device") != std::string::npos);
  job->on_member(with_a_device(node_id{6}));
  take();
  BOOST_TEST_REQUIRE((job->phase() == job_phase::placing));
  BOOST_TEST((job->roles().workers == std::vector<node_id>{node_id{6}, node_id{6}}));
}

BOOST_FIXTURE_TEST_CASE(JC_6_who_comes_and_has_no_device_does_not_prolong_the_waiting, on_devices) {
  job->on_lost(n1, "gone", false), job->on_lost(n2, "gone", false);
  halted(client), halted(n3, both({0, 1}));
  BOOST_TEST_REQUIRE((job->phase() == job_phase::waiting));
  pass_until(400 * s);
  job->on_member(member(node_id{5}));
  pass_until(601 * s);
  take();
  BOOST_TEST((job->phase() == job_phase::over));
  BOOST_TEST(job->cause().find("no node that takes work has come for 600 s") != std::string::npos,
             job->cause());
  BOOST_TEST(job->cause().find("is to run on gpu:0") != std::string::npos, job->cause());
}

// The one node with the device is alive, and excluded for a while.
BOOST_FIXTURE_TEST_CASE(a_job_that_waits_for_a_node_takes_one_that_is_no_longer_excluded,
                        on_devices) {
  job->on_lost(n2, "gone", false);
  halted(n1), halted(client), halted(n3, both({0, 1}));
  BOOST_TEST_REQUIRE((job->phase() == job_phase::placing));
  job->on_placed(n3, {job_id{7}, job->epoch(), "no link to n1", n1});
  take();
  halted(n1), halted(client), halted(n3, both({0, 1}));
  const auto since = 1 * s;  // a back-off may come first
  job->tick(since);
  take();
  BOOST_TEST_REQUIRE((job->phase() == job_phase::waiting));
  job->tick(since + troupe::job_coordinator::excluded_ns / 2);
  BOOST_TEST((job->phase() == job_phase::waiting));
  job->tick(since + troupe::job_coordinator::excluded_ns);
  take();
  BOOST_TEST((job->phase() == job_phase::placing));
  BOOST_TEST((job->roles().workers == std::vector<node_id>{n1, n1}));
}

BOOST_FIXTURE_TEST_CASE(
    work_of_a_device_stays_on_a_node_that_wants_to_leave_until_another_one_has_it, on_devices) {
  job->on_lost(n2, "gone", false);
  halted(n1), halted(client), halted(n3, both({0, 1}));
  all_placed({n1, n3, client});
  losses(1, 2);
  job->on_leaving(n1);
  take();
  BOOST_TEST((job->phase() == job_phase::running));
  BOOST_TEST(last(job_event_kind::note).find("its work stays until one comes") != std::string::npos,
             last(job_event_kind::note));
  job->on_member(with_a_device(node_id{6}));
  take();
  BOOST_TEST_REQUIRE((job->phase() == job_phase::halting));
  halted(n1), halted(client), halted(n3, both({1, 2}));
  BOOST_TEST((job->roles().workers == std::vector<node_id>{node_id{6}, node_id{6}}));
}

// --- nodes that do not reach each other ---

BOOST_AUTO_TEST_CASE(JC_8_whom_another_node_holds_dead_gets_work_again_after_a_while) {
  world w(failure_policy::resume);
  w.all_placed({n1, n2, n3, client});
  w.losses(0, 4);
  w.job->on_lost_by(n1, n2, "no sign of life", false);
  w.take();
  BOOST_TEST_REQUIRE((w.job->phase() == job_phase::halting));
  BOOST_TEST(w.sent_to<halt_part>().size() == 3U);
  w.halted(n1), w.halted(client), w.halted(n3, both({3, 4}));
  BOOST_TEST((w.job->roles().workers == std::vector<node_id>{n1, n1}));
  w.all_placed({n1, n3, client});
  w.losses(4, 6);
  w.job->tick(troupe::job_coordinator::excluded_ns + s);
  w.job->on_lost(n1, "gone", false);  // as we see it ourselves: for good
  w.halted(client), w.halted(n3, both({5, 6}));
  BOOST_TEST((w.job->roles().workers == std::vector<node_id>{n2, n2}));
}

BOOST_AUTO_TEST_CASE(JC_8_of_two_nodes_that_hold_each_other_dead_one_goes_on) {
  world w(failure_policy::resume);
  w.all_placed({n1, n2, n3, client});
  w.losses(0, 4);
  w.job->on_lost_by(n1, n2, "no sign of life", false);
  w.job->on_lost_by(n2, n1, "no sign of life", false);
  w.take();
  w.halted(client), w.halted(n3, both({3, 4}));
  BOOST_TEST_REQUIRE((w.job->phase() == job_phase::halting));
  w.halted(n1);
  BOOST_TEST((w.job->roles().workers == std::vector<node_id>{n1, n1}));
  w.all_placed({n1, n3, client});
  w.job->on_lost_by(n2, n3, "no sign of life", false);  // late: it is not believed any more
  w.take();
  BOOST_TEST((w.job->phase() == job_phase::running));
  BOOST_TEST(w.job->totals().recoveries == 1U);
}

// Its part has been told to end: nobody waits for it, and what it kept is gone.
BOOST_AUTO_TEST_CASE(JC_8_who_hands_variables_over_and_is_held_dead_is_not_waited_for) {
  world w(failure_policy::resume);
  w.all_placed({n1, n2, n3, client});
  w.losses(0, 4);
  w.job->on_leaving(n3);
  w.take();
  w.halted(n1), w.halted(n2), w.halted(client), w.halted(n3, both({3, 4}));
  BOOST_TEST_REQUIRE((w.job->phase() == job_phase::placing));
  w.job->on_lost_by(n1, n3, "no sign of life", false);
  w.take();
  w.halted(n1), w.halted(n2), w.halted(n3, both({3, 4})), w.halted(client);
  BOOST_TEST((w.job->phase() != job_phase::halting));
  BOOST_TEST(w.last(job_event_kind::note).find("variables are lost") == 0U,
             w.last(job_event_kind::note));
}

BOOST_AUTO_TEST_CASE(JC_8_who_holds_the_program_dead_goes_and_the_program_does_not) {
  world w(failure_policy::resume);
  w.all_placed({n1, n2, n3, client});
  w.losses(0, 4);
  w.job->on_lost_by(n1, client, "no sign of life", false);
  w.take();
  w.halted(n2), w.halted(client), w.halted(n3, both({3, 4}));
  BOOST_TEST((w.job->phase() == job_phase::placing));
  BOOST_TEST((w.job->roles().workers == std::vector<node_id>{n2, n2}));
}

// Their parts have ended, and whether they reach each other is seen when the next ones are placed.
BOOST_AUTO_TEST_CASE(JC_8_what_nodes_say_of_each_other_between_epochs_takes_no_variable_away) {
  world w(failure_policy::resume, update_kind::sync, "/checkpoints");
  w.all_placed({n1, n2, n3, client});
  w.losses(0, 4);
  w.job->on_lost(n2, "gone", false);
  w.halted(n1), w.halted(client), w.halted(n3, both({3, 4}));
  BOOST_TEST_REQUIRE((w.job->phase() == job_phase::claiming));
  w.job->on_lost_by(n1, n3, "no sign of life", false);
  w.job->on_epoch(2U, {});
  w.take();
  BOOST_TEST((w.job->phase() == job_phase::placing));
  BOOST_TEST((w.job->roles().shards == std::vector<node_id>{n3, n3}));
}

BOOST_AUTO_TEST_CASE(JC_8_of_two_unlinked_nodes_the_one_that_keeps_less_is_left_out) {
  for (const bool says_n1 : {true, false}) {
    world w(failure_policy::resume);
    w.all_placed({n1, n2, n3, client});
    w.losses(0, 5);
    w.job->on_lost(n2, "gone", false);
    w.halted(n1), w.halted(client), w.halted(n3, both({4, 5}));
    BOOST_TEST_REQUIRE((w.job->phase() == job_phase::placing));
    const auto from = says_n1 ? n1 : n3, other = says_n1 ? n3 : n1;
    w.job->on_placed(from, {job_id{7}, w.job->epoch(), "no link", other});
    w.take();
    w.halted(n1), w.halted(client), w.halted(n3, both({4, 5}));
    for (int i = 1; i < 50 && w.job->phase() == job_phase::pausing; ++i) w.job->tick(i * s / 10);
    w.take();
    BOOST_TEST_REQUIRE((w.job->phase() == job_phase::placing));
    BOOST_TEST((w.job->roles().shards == std::vector<node_id>{n3, n3}));
    BOOST_TEST((w.job->roles().workers == std::vector<node_id>{n3, n3}));
    const auto p = decode_plan(w.last_place()->plan);
    for (const auto& a : p->actors)
      if (a.kind == actor_kind::shard) BOOST_TEST(a.shard.version == 5U);
  }
}

// n1 has one that n2 has, too, n3 one that nobody else has.
BOOST_AUTO_TEST_CASE(JC_8_of_two_unlinked_nodes_the_one_stays_that_keeps_what_nobody_else_does) {
  world w(failure_policy::resume);
  w.all_placed({n1, n2, n3, client});
  w.losses(0, 5);
  w.job->on_ended(n2, {job_id{7}, w.job->epoch(), "no memory", "worker/1/mul", 4, {}, 0});
  const auto all = both({4, 5});
  w.halted(client), w.halted(n1, {all[0]}), w.halted(n2, {all[0]}), w.halted(n3, {all[1]});
  BOOST_TEST_REQUIRE((w.job->phase() == job_phase::placing));
  w.job->on_placed(n1, {job_id{7}, w.job->epoch(), "no link", n3});
  w.take();
  w.halted(client), w.halted(n1, {all[0]}), w.halted(n2, {all[0]}), w.halted(n3, {all[1]});
  for (int i = 1; i < 50 && w.job->phase() == job_phase::pausing; ++i) w.job->tick(i * s / 10);
  w.take();
  BOOST_TEST_REQUIRE((w.job->phase() == job_phase::placing));
  BOOST_TEST(std::count(w.job->nodes().begin(), w.job->nodes().end(), n1) == 0);
  const auto p = decode_plan(w.last_place()->plan);
  for (const auto& a : p->actors)
    if (a.kind == actor_kind::shard) BOOST_TEST(a.shard.version == 5U);
}

// --- replicas ---

struct replicated : world {
  explicit replicated(update_kind update = update_kind::sync)
      : world(failure_policy::resume, update, "", {n1, n1}) {
    all_placed({n1, n2, n3, client});
  }

  std::vector<const planned_actor*> actors(actor_kind kind) {
    placed = *decode_plan(last_place()->plan);
    std::vector<const planned_actor*> out;
    for (const auto& a : placed.actors)
      if (a.kind == kind) out.push_back(&a);
    return out;
  }
  plan placed;
};

BOOST_AUTO_TEST_CASE(every_shard_forwards_to_its_replica_on_another_node) {
  replicated w;
  std::size_t shards = 0, replicas = 0;
  for (const auto* a : w.actors(actor_kind::shard)) {
    const auto node = w.job->nodes()[a->task];
    BOOST_TEST((a->shard.follows ? node == n1 : node == n3));
    BOOST_TEST(a->shard.forwards == !a->shard.follows);
    BOOST_TEST(a->shard.keeps == 2U);
    ++(a->shard.follows ? replicas : shards);
  }
  BOOST_TEST(shards == 2U);
  BOOST_TEST(replicas == 2U);
}

// Replicas are on n1, as worker 0 is: what they are sent brings it the versions too.
BOOST_AUTO_TEST_CASE(a_worker_reads_at_the_replica_that_is_on_its_node) {
  for (const auto update : {update_kind::sync, update_kind::async}) {
    replicated w(update);
    std::size_t reads = 0;
    for (const auto* a : w.actors(actor_kind::op)) {
      if (a->ops.front().type != "read") continue;
      const auto& from = w.placed.actors[w.placed.edges[a->inputs.front()].from.actor];
      const bool is_there = w.job->nodes()[a->task] == n1;
      BOOST_TEST((from.kind == (is_there ? actor_kind::shard : actor_kind::receive)), a->name);
      BOOST_TEST(from.shard.follows == is_there, a->name);
      ++reads;
    }
    BOOST_TEST(reads == 4U);
    for (const auto* a : w.actors(actor_kind::shard)) {
      BOOST_TEST_REQUIRE(!a->shard.readers.empty());
      // Worker 0; worker 1 and the program.
      BOOST_TEST(a->shard.readers.size() == (a->shard.follows ? 1U : 2U));
      BOOST_TEST(a->shard.readers.front().worker == (a->shard.follows ? 0 : 1));
    }
  }
}

BOOST_AUTO_TEST_CASE(JC_4_with_replicas_a_loss_is_told_two_steps_later) {
  replicated w;
  const auto told = [&] {
    return std::count_if(w.told.begin(), w.told.end(),
                         [](const auto& e) { return e.kind == job_event_kind::loss; });
  };
  w.losses(0, 2);
  BOOST_TEST(told() == 0);
  w.losses(2, 3);
  BOOST_TEST(told() == 1);
}

BOOST_AUTO_TEST_CASE(PM_3_the_replica_of_a_lost_shard_becomes_the_shard_and_nothing_is_lost) {
  replicated w;
  w.losses(0, 6);
  w.job->on_lost(n3, "gone", false);
  w.take();
  w.halted(n2), w.halted(client), w.halted(n1, both({3, 4, 5}));
  BOOST_TEST_REQUIRE((w.job->phase() == job_phase::placing));
  BOOST_TEST((w.job->roles().shards == std::vector<node_id>{n1, n1}));
  BOOST_TEST((w.job->roles().replicas == std::vector<node_id>{n2, n2}));
  for (const auto* a : w.actors(actor_kind::shard)) {
    BOOST_TEST(a->shard.version == 5U);
    BOOST_TEST(
        (a->shard.restore == (a->shard.follows ? restore_kind::handed : restore_kind::kept)));
  }
  w.all_placed({n1, n2, client});
  BOOST_TEST(w.last(job_event_kind::resumed).find("goes on from step 5") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(without_another_node_there_is_no_replica_until_one_comes) {
  replicated w;
  w.losses(0, 6);
  w.job->on_lost(n3, "gone", false), w.job->on_lost(n2, "gone", false);
  w.halted(client), w.halted(n1, both({4, 5, 6}));
  BOOST_TEST((w.job->roles().replicas == std::vector<node_id>{node_id{}, node_id{}}));
  w.all_placed({n1, client});
  BOOST_TEST(w.last(job_event_kind::note).find("no replica") != std::string::npos);
  w.job->on_member(member(node_id{5}));
  w.losses(6, 7);
  BOOST_TEST_REQUIRE((w.job->phase() == job_phase::halting));
  w.halted(client), w.halted(n1, both({5, 6, 7}));
  BOOST_TEST((w.job->roles().replicas != std::vector<node_id>{node_id{}, node_id{}}));
}

BOOST_AUTO_TEST_CASE(JC_7_a_copy_is_there_before_the_work_is_spread_anew) {
  replicated w;
  w.job->on_member(member(node_id{5}));
  w.losses(0, 2);  // the shards have begun
  BOOST_TEST((w.job->phase() == job_phase::running));
  w.losses(2, 3);  // and their replicas
  BOOST_TEST((w.job->phase() == job_phase::halting));
}

// The new shards are on a node that dies before it has them.
BOOST_AUTO_TEST_CASE(who_keeps_variables_is_released_only_when_the_epoch_has_begun_everywhere) {
  replicated w;
  w.losses(0, 6);
  w.job->on_leaving(n3);
  w.take();
  w.halted(n1, both({4, 5, 6})), w.halted(n2), w.halted(client), w.halted(n3, both({4, 5, 6}));
  BOOST_TEST_REQUIRE((w.job->phase() == job_phase::placing));
  w.all_placed({n1, n2, n3, client});
  w.losses(6, 8);
  BOOST_TEST(w.sent_to<stop_part>().empty());  // a replica may still be waiting
  w.losses(8, 9);
  BOOST_TEST((w.sent_to<stop_part>() == std::vector<node_id>{n3}));
  BOOST_TEST(w.sent_to<epoch_begun>().size() >= 2U);
}

BOOST_AUTO_TEST_CASE(
    a_node_that_leaves_hands_its_variables_over_and_is_released_when_they_are_used) {
  world w(failure_policy::resume);
  w.all_placed({n1, n2, n3, client});
  w.losses(0, 4);
  w.job->on_leaving(n3);
  w.take();
  BOOST_TEST((w.job->phase() == job_phase::halting));
  w.halted(n1), w.halted(n2), w.halted(client), w.halted(n3, both({3, 4}));
  BOOST_TEST_REQUIRE((w.job->phase() == job_phase::placing));
  for (auto n : w.job->roles().shards) BOOST_TEST((n == n1 || n == n2));
  const auto p = decode_plan(w.last_place()->plan);
  BOOST_TEST_REQUIRE(bool(p));
  std::size_t handed = 0;
  for (const auto& a : p->actors) {
    if (a.kind == actor_kind::shard)
      BOOST_TEST((a.shard.restore == restore_kind::handed && a.shard.version == 4));
    if (a.kind != actor_kind::op || a.ops.front().type != hand_over_op) continue;
    ++handed;
    BOOST_TEST((w.job->nodes()[a.task] == n3));
  }
  BOOST_TEST(handed == 2U);
  w.all_placed({n1, n2, n3, client});
  BOOST_TEST(w.sent_to<stop_part>().empty());
  w.losses(4, 5);  // every shard has begun
  BOOST_TEST((w.sent_to<stop_part>() == std::vector<node_id>{n3}));
  w.job->on_lost(n3, "was asked to leave", true);
  w.take();
  BOOST_TEST((w.job->phase() == job_phase::running));  // nobody notices
  BOOST_TEST(w.job->totals().recoveries == 0U);
}

BOOST_AUTO_TEST_CASE(a_node_that_wants_to_leave_stays_while_there_is_no_other) {
  world w(failure_policy::resume);
  w.all_placed({n1, n2, n3, client});
  w.job->on_lost(n1, "gone", false);
  w.job->on_lost(n2, "gone", false);
  w.halted(client), w.halted(n3, both({0}));
  w.all_placed({n3, client});
  w.job->on_leaving(n3);
  w.take();
  BOOST_TEST((w.job->phase() == job_phase::running));
  BOOST_TEST(w.last(job_event_kind::note).find("no other node") != std::string::npos);
  w.losses(0, 1);
  w.job->on_member(member(node_id{6}));
  BOOST_TEST((w.job->phase() == job_phase::halting));
  w.halted(client), w.halted(n3, both({0}));
  BOOST_TEST((w.job->roles().shards == std::vector<node_id>{node_id{6}, node_id{6}}));
}

BOOST_AUTO_TEST_CASE(JC_9_a_node_that_wants_to_leave_while_an_epoch_is_claimed_gets_no_part_of_it) {
  world w(failure_policy::resume, update_kind::sync, "/checkpoints");
  w.all_placed({n1, n2, n3, client});
  w.losses(0, 4);
  w.job->on_lost(n2, "gone", false);
  w.halted(n1), w.halted(client), w.halted(n3, both({3, 4}));
  BOOST_TEST_REQUIRE((w.job->phase() == job_phase::claiming));
  BOOST_TEST((w.job->roles().workers == std::vector<node_id>{n1, n1}));
  w.job->on_leaving(n1);
  w.job->on_epoch(2U, {});
  w.take();
  BOOST_TEST((w.job->phase() == job_phase::claiming));
  BOOST_TEST(w.claims == 2U);
  w.job->on_epoch(3U, {});
  w.take();
  BOOST_TEST((w.job->phase() == job_phase::placing));
  BOOST_TEST((w.job->roles().workers == std::vector<node_id>{n3, n3}));
  BOOST_TEST((w.sent_to<stop_part>().back() == n1));
}

BOOST_AUTO_TEST_CASE(JC_9_without_another_node_the_epoch_begins_on_one_that_wants_to_leave) {
  world w(failure_policy::resume, update_kind::sync, "/checkpoints");
  w.all_placed({n1, n2, n3, client});
  w.losses(0, 4);
  w.job->on_lost(n1, "gone", false), w.job->on_lost(n2, "gone", false);
  w.halted(client), w.halted(n3, both({3, 4}));
  BOOST_TEST_REQUIRE((w.job->phase() == job_phase::claiming));
  w.job->on_leaving(n3);
  w.job->on_epoch(2U, {});
  w.take();
  BOOST_TEST((w.job->phase() == job_phase::placing));
  BOOST_TEST(w.claims == 1U);
  BOOST_TEST(
      w.last(job_event_kind::note).find("its work stays until one comes") != std::string::npos,
      w.last(job_event_kind::note));
}

BOOST_AUTO_TEST_CASE(lost_variables_come_from_a_checkpoint_under_a_claimed_epoch) {
  world w(failure_policy::resume, update_kind::sync, "/checkpoints");
  w.all_placed({n1, n2, n3, client});
  w.losses(0, 8);
  w.job->on_lost(n3, "gone", false);
  w.halted(n1), w.halted(n2), w.halted(client);
  BOOST_TEST((w.job->phase() == job_phase::claiming));
  BOOST_TEST(w.claims == 1U);
  w.job->on_epoch(error(error_code::failed, "no space left"), {});  // the disk may come back
  w.take();
  BOOST_TEST((w.job->phase() == job_phase::pausing));
  w.job->tick(10 * s);
  w.take();
  BOOST_TEST(w.claims == 2U);
  w.job->on_epoch(5U, known_checkpoint{1, 6, {6, 6}});
  w.take();
  BOOST_TEST(w.job->epoch() == 5U);
  BOOST_TEST(w.last_place()->restore_from == "step-000000000006.epoch-1");
  const auto p = decode_plan(w.last_place()->plan);
  for (const auto& a : p->actors)
    if (a.kind == actor_kind::shard) BOOST_TEST(a.shard.version == 6U);
}

BOOST_AUTO_TEST_CASE(another_program_that_has_the_job_ends_this_one) {
  world w(failure_policy::resume, update_kind::sync, "/checkpoints");
  w.all_placed({n1, n2, n3, client});
  w.job->on_lost(n1, "gone", false);
  w.halted(n2), w.halted(n3, both({0})), w.halted(client);
  w.job->on_epoch(error(error_code::denied, "epoch 4 was claimed by client c2"), {});
  w.take();
  BOOST_TEST(w.last(job_event_kind::failed).find("claimed by client c2") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_checkpoint_is_written_when_all_parts_are_saved_and_all_their_losses_told) {
  world w(failure_policy::resume, update_kind::sync, "/checkpoints");
  w.all_placed({n1, n2, n3, client});
  w.losses(0, 3);
  part_saved saved{job_id{7}, 1, 4, "", {4, 4}, "part-0.safetensors", "00", 10, {"b", "w"}};
  w.job->on_saved(n3, saved);
  w.take();
  BOOST_TEST(w.manifests == 0U);
  w.losses(3, 4);
  BOOST_TEST(w.manifests == 1U);
  w.job->on_manifest(4, 1, {});
  BOOST_TEST(w.job->totals().checkpoints == 1U);
  saved.step = 5, saved.error = "no space left";
  w.job->on_saved(n3, saved);
  w.take();
  BOOST_TEST(w.manifests == 1U);
  BOOST_TEST(w.last(job_event_kind::note).find("the checkpoint of step 5 was not written") !=
             std::string::npos);
  BOOST_TEST((w.job->phase() == job_phase::running));  // training goes on
}

BOOST_AUTO_TEST_CASE(checkpoints_that_fail_in_a_row_are_dropped_and_told_of_less_and_less) {
  world w(failure_policy::resume, update_kind::sync, "/checkpoints");
  w.all_placed({n1, n2, n3, client});
  const auto notes = [&] {
    return std::count_if(w.told.begin(), w.told.end(),
                         [](const auto& e) { return e.kind == job_event_kind::note; });
  };
  const auto before = notes();
  part_saved saved{job_id{7}, 1,  0,         "no space left", {}, "part-0.safetensors",
                   "00",      10, {"b", "w"}};
  for (saved.step = 1; saved.step <= 9; ++saved.step) {
    w.job->on_saved(n3, saved);
    w.take();
  }
  BOOST_TEST(w.drops == 9U);
  BOOST_TEST(w.manifests == 0U);
  BOOST_TEST(notes() - before == 4);  // 1, 2, 4, 8
  BOOST_TEST(
      w.last(job_event_kind::note)
          .find(
              "the checkpoint of step 8 was not written, and neither were the 7 before it: node ") !=
      std::string::npos);
  saved.error.clear(), saved.worker_steps = {10, 10};
  w.losses(0, 10);
  w.job->on_saved(n3, saved);
  w.take();
  w.job->on_manifest(10, 1, {});
  w.take();
  BOOST_TEST(w.last(job_event_kind::note) ==
             "the checkpoint of step 10 was written; the 9 before it were not");
}

BOOST_AUTO_TEST_CASE(a_part_that_is_saved_when_its_epoch_has_ended_makes_no_checkpoint) {
  world w(failure_policy::resume, update_kind::sync, "/checkpoints");
  w.all_placed({n1, n2, n3, client});
  w.losses(0, 6);
  w.job->on_member(member(node_id{5}));  // the work is spread anew
  w.take();
  w.halted(n1), w.halted(n2), w.halted(client), w.halted(n3, both({5, 6}));
  BOOST_TEST_REQUIRE((w.job->phase() == job_phase::claiming));
  w.job->on_saved(n3, {job_id{7}, 1, 4, "", {4, 4}, "part-0.safetensors", "00", 10, {"b", "w"}});
  w.take();
  BOOST_TEST(w.manifests == 0U);
}

BOOST_AUTO_TEST_CASE(JC_5_what_is_made_again_is_in_the_ledger) {
  world w(failure_policy::resume);
  w.all_placed({n1, n2, n3, client});
  w.losses(0, 6);
  w.job->on_lost(n3, "gone", false);  // with all variables: back to step 0
  w.halted(n1), w.halted(n2), w.halted(client);
  w.all_placed({n1, n2, client});
  const auto t = w.job->totals();
  for (const auto& a : t.workers) {
    BOOST_TEST(a.fed == 6U);
    BOOST_TEST(a.applied == 0U);
    BOOST_TEST(a.in_flight == 6U);
  }
  BOOST_TEST(t.redone == 12U);
}

// --- ends before the last step -------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(JC_1_a_training_that_is_stopped_has_not_failed) {
  world w(failure_policy::stop);
  w.all_placed({n1, n2, n3, client});
  w.job->on_stop("enough");
  w.take();
  BOOST_TEST((w.told.back().kind == job_event_kind::stopped));
  BOOST_TEST(w.told.back().text == "enough");
  BOOST_TEST(w.last(job_event_kind::failed) == "not told");
  BOOST_TEST(w.sent_to<stop_part>().size() == 4U);
}

BOOST_AUTO_TEST_CASE(JC_10_a_job_that_is_to_finish_ends_where_it_has_got_to) {
  for (const auto policy :
       {failure_policy::resume, failure_policy::restart, failure_policy::stop}) {
    world w(policy, update_kind::sync, "", {}, "", "", false, nullptr, true);
    w.all_placed({n1, n2, n3, client});
    w.losses(0, 4);
    BOOST_TEST(bool(w.job->on_finish()));
    w.take();
    BOOST_TEST((w.job->phase() == job_phase::halting));
    w.halted(n1), w.halted(n2), w.halted(n3, both({2, 3})), w.halted(client);
    BOOST_TEST_REQUIRE((w.job->phase() == job_phase::placing));
    BOOST_TEST(w.job->totals().recoveries == 0U);
    const auto p = decode_plan(w.last_place()->plan);
    for (const auto& a : p->actors)
      if (a.kind == actor_kind::shard) {
        BOOST_TEST(a.shard.version == 3U);
        BOOST_TEST((a.shard.steps == std::vector<std::uint64_t>{4, 4}));
      }
    w.all_placed({n1, n2, n3, client});
    w.losses(3, 4);
    for (auto n : {n1, n2, n3, client}) w.job->on_ended(n, {job_id{7}, 2, "", "", 0, {}, 0, false});
    w.take();
    BOOST_TEST((w.told.back().kind == job_event_kind::finished));
    std::size_t losses = 0;
    for (const auto& e : w.told) losses += e.kind == job_event_kind::loss;
    BOOST_TEST(losses == 4U);
  }
}

// A shard has applied gradients of a step whose loss nobody was told yet: one that begins with more
// than the last step was refused, and ended the job.
BOOST_AUTO_TEST_CASE(JC_10_a_job_that_is_to_finish_ends_behind_what_its_shards_have_applied) {
  for (const auto update : {update_kind::sync, update_kind::async}) {
    world w(failure_policy::resume, update);
    w.all_placed({n1, n2, n3, client});
    w.losses(0, 3);
    BOOST_TEST(bool(w.job->on_finish()));
    w.take();
    auto kept = both({3, 4});
    kept.front().versions = {2, 3};
    kept.front().applied = {3, 3};
    kept.back().applied = {4, update == update_kind::sync ? 4U : 3U};
    w.halted(n1), w.halted(n2), w.halted(n3, kept), w.halted(client);
    BOOST_TEST_REQUIRE((w.job->phase() == job_phase::placing));
    const auto p = decode_plan(w.last_place()->plan);
    BOOST_TEST_REQUIRE(bool(p));
    for (const auto& a : p->actors)
      if (a.kind == actor_kind::shard)
        BOOST_TEST((a.shard.steps == std::vector<std::uint64_t>{4, 4}));
  }
}

BOOST_AUTO_TEST_CASE(JC_15_a_job_is_suspended_when_the_checkpoint_of_its_last_step_is_there) {
  for (const bool is_written : {true, false}) {
    world w(failure_policy::stop, update_kind::sync, "/folder");
    w.all_placed({n1, n2, n3, client});
    w.losses(0, 4);
    BOOST_TEST(bool(w.job->on_suspend("enough")));
    w.take();
    BOOST_TEST(w.last(job_event_kind::note) ==
               "is to be suspended at the step that it has got to: enough");
    w.halted(n1), w.halted(n2), w.halted(n3, both({4})), w.halted(client);
    w.job->on_epoch(2, {});
    w.all_placed({n1, n2, n3, client});
    BOOST_TEST(w.last(job_event_kind::resumed) == "ends at step 4 with a checkpoint (epoch 2)");
    w.job->on_saved(
        n3, {job_id{7}, 2, 4, is_written ? "" : "the disk is full", {4, 4}, "f", {}, 1, {}});
    for (auto n : {n1, n2, n3, client}) w.job->on_ended(n, {job_id{7}, 2, "", "", 0, {}, 0, false});
    w.take();
    if (is_written) {
      BOOST_TEST(w.manifests == 1U);
      BOOST_TEST((w.job->phase() == job_phase::running));  // until it is there
      w.job->on_manifest(4, 2, {});
      w.take();
      BOOST_TEST((w.told.back().kind == job_event_kind::suspended));
      BOOST_TEST(w.told.back().step == 4U);
      BOOST_TEST(w.told.back().text == "at step 4: enough");
    } else {
      BOOST_TEST((w.told.back().kind == job_event_kind::failed));
      BOOST_TEST(w.told.back().text.find("its checkpoint was not written") != std::string::npos);
    }
  }
}

BOOST_AUTO_TEST_CASE(JC_15_a_job_that_gets_to_its_last_step_before_it_is_suspended_is_done) {
  world w(failure_policy::stop, update_kind::sync, "/folder");
  w.all_placed({n1, n2, n3, client});
  w.losses(0, 10);
  BOOST_TEST(bool(w.job->on_suspend("enough")));
  w.take();
  w.halted(n1), w.halted(n2), w.halted(n3, both({9, 10})), w.halted(client);
  w.job->on_epoch(2, {});
  w.all_placed({n1, n2, n3, client});
  w.job->on_saved(n3, {job_id{7}, 2, 10, "", {10, 10}, "f", {}, 1, {}});
  for (auto n : {n1, n2, n3, client}) w.job->on_ended(n, {job_id{7}, 2, "", "", 0, {}, 0, false});
  w.job->on_manifest(10, 2, {});
  w.take();
  BOOST_TEST((w.told.back().kind == job_event_kind::finished));
}

// Nobody waits for a node that might come: who asked for it wants the job's end in any case.
BOOST_AUTO_TEST_CASE(JC_15_a_job_that_is_to_be_suspended_waits_for_no_node) {
  world w(failure_policy::resume, update_kind::sync, "/folder");
  w.all_placed({n1, n2, n3, client});
  w.losses(0, 4);
  BOOST_TEST(bool(w.job->on_suspend("enough")));
  w.take();
  for (auto n : {n1, n2, n3}) w.job->on_lost(n, "gone", false);
  w.halted(client);
  w.take();
  BOOST_TEST((w.told.back().kind == job_event_kind::stopped));
  BOOST_TEST(w.told.back().text.find("what is kept is its newest checkpoint") != std::string::npos,
             w.told.back().text);
}

// CU-5, JC-13: its last checkpoint would be made again and again, to be no better.
BOOST_AUTO_TEST_CASE(JC_15_a_job_that_has_diverged_is_not_suspended) {
  world w(failure_policy::stop, update_kind::sync, "/folder");
  w.all_placed({n1, n2, n3, client});
  w.losses(0, 4);
  BOOST_TEST(bool(w.job->on_suspend("enough")));
  w.take();
  w.halted(n1), w.halted(n2), w.halted(n3, both({4})), w.halted(client);
  w.job->on_epoch(2, {});
  w.all_placed({n1, n2, n3, client});
  const auto why = fmt::format("w has nan (its element 0): {}", diverged_text);
  w.job->on_saved(n3, {job_id{7}, 2, 4, why, {4, 4}, "f", {}, 1, {}});
  for (auto n : {n1, n2, n3, client}) w.job->on_ended(n, {job_id{7}, 2, "", "", 0, {}, 0, false});
  w.take();
  BOOST_TEST(w.manifests == 0U);
  BOOST_TEST(w.drops == 1U);
  BOOST_TEST((w.told.back().kind == job_event_kind::failed));
}

BOOST_AUTO_TEST_CASE(a_job_without_checkpoints_cannot_be_suspended) {
  world w(failure_policy::resume);
  w.all_placed({n1, n2, n3, client});
  const auto no = w.job->on_suspend("enough");
  BOOST_TEST_REQUIRE(!no);
  BOOST_TEST(no.error().text().find("--checkpoint DIR") != std::string::npos);
  BOOST_TEST((w.job->phase() == job_phase::running));
}

BOOST_AUTO_TEST_CASE(JC_10_a_job_that_recovers_finishes_with_the_next_epoch) {
  world w(failure_policy::resume);
  w.all_placed({n1, n2, n3, client});
  w.losses(0, 4);
  w.job->on_lost(n1, "gone", false);
  BOOST_TEST(bool(w.job->on_finish()));
  w.halted(n2), w.halted(n3, both({4})), w.halted(client);
  const auto p = decode_plan(w.last_place()->plan);
  for (const auto& a : p->actors)
    if (a.kind == actor_kind::shard)
      BOOST_TEST((a.shard.steps == std::vector<std::uint64_t>{4, 4}));
}

BOOST_AUTO_TEST_CASE(a_job_that_is_to_finish_while_it_is_placed_does_so_when_it_runs) {
  world w(failure_policy::resume);
  BOOST_TEST(bool(w.job->on_finish()));
  for (auto n : {n1, n2, n3, client}) w.job->on_placed(n, {job_id{7}, 1, "", {}});
  w.job->on_local_part(1);
  w.take();
  BOOST_TEST((w.job->phase() == job_phase::halting));
  w.halted(n1), w.halted(n2), w.halted(n3), w.halted(client);
  const auto p = decode_plan(w.last_place()->plan);
  for (const auto& a : p->actors)
    if (a.kind == actor_kind::shard)  // JC-10: one step at least
      BOOST_TEST((a.shard.steps == std::vector<std::uint64_t>{1, 1}));
}

BOOST_AUTO_TEST_CASE(a_training_whose_shards_keep_nothing_cannot_finish_early) {
  world w(failure_policy::stop);
  w.all_placed({n1, n2, n3, client});
  const auto no = w.job->on_finish();
  BOOST_TEST_REQUIRE(!no);
  BOOST_TEST(no.error().text().find("may_finish") != std::string::npos);
  BOOST_TEST((w.job->phase() == job_phase::running));
}

// --- other coordinators --------------------------------------------------------------------------

namespace {

world moving(std::shared_ptr<const kept_journal> after = nullptr) {
  return {failure_policy::resume, update_kind::sync, "/checkpoints", {}, "", "", true,
          std::move(after)};
}

std::shared_ptr<const kept_journal> left(std::uint64_t steps) {
  kept_journal k;
  k.from = node_id{98};
  k.journal.epoch = 4;
  k.journal.coordinator = k.from;
  k.journal.roles = {{n1, n2}, {n3, n3}};
  k.journal.first_steps = {0, 0};
  k.journal.next_losses = {steps, steps};
  k.journal.closed = {{.fed = steps}, {.fed = steps}};
  k.journal.recoveries = 2;
  for (std::uint64_t t = 0; t < steps; ++t) k.losses.add({t, 0, float(t)});
  return std::make_shared<const kept_journal>(std::move(k));
}

}  // namespace

BOOST_AUTO_TEST_CASE(JC_11_a_loss_is_used_up_when_the_successors_have_it) {
  auto w = moving();
  BOOST_TEST(w.sent_to<keep_journal>().size() == 2U);
  w.all_placed({n1, n2, n3, client});
  w.kept(), w.kept();
  w.losses(0, 2);
  BOOST_TEST(w.credits == 0U);
  BOOST_TEST(w.sent_to<keep_journal>().size() == 2U);
  w.kept();
  BOOST_TEST(w.credits == 2U);
  // Without any it is used up at once.
  w.job->on_lost(n1, "gone", false);
  w.job->on_lost(n2, "gone", false);
  w.job->on_lost(n3, "gone", false);
  w.losses(2, 3);
  BOOST_TEST(w.credits == 3U);
}

BOOST_AUTO_TEST_CASE(a_successor_goes_on_where_its_coordinator_died) {
  auto w = moving(left(6));
  BOOST_TEST((w.job->phase() == job_phase::claiming));
  BOOST_TEST(w.claims == 1U);
  w.job->on_epoch(5U, {});
  w.take();
  BOOST_TEST((w.job->phase() == job_phase::halting));
  BOOST_TEST(w.sent_to<halt_part>().size() == 4U);
  for (const auto& m : w.sent)
    if (auto* h = std::get_if<halt_part>(&m.body)) BOOST_TEST(h->epoch == 5U);
  BOOST_TEST(w.last(job_event_kind::recovering).find("which coordinated it") != std::string::npos);
  w.halted(n1), w.halted(n2), w.halted(n3, both({6, 7})), w.halted(client);
  BOOST_TEST((w.job->phase() == job_phase::claiming));
  w.job->on_epoch(6U, {});
  w.take();
  const auto p = decode_plan(w.last_place()->plan);
  for (const auto& a : p->actors)
    if (a.kind == actor_kind::shard) BOOST_TEST(a.shard.version == 6U);
  BOOST_TEST(w.last_place()->may_move);
  w.all_placed({n1, n2, n3, client});
  w.losses(6, 8);
  BOOST_TEST(w.job->totals().recoveries == 3U);
  std::uint64_t first = 99;
  for (const auto& e : w.told)
    if (e.kind == job_event_kind::loss) first = std::min(first, e.step);
  BOOST_TEST(first == 6U);  // each is told once
}

BOOST_AUTO_TEST_CASE(a_program_that_detaches_gives_the_job_to_a_node_that_has_all) {
  auto w = moving();
  w.all_placed({n1, n2, n3, client});
  w.kept(), w.kept();
  w.losses(0, 3);
  BOOST_TEST(bool(w.job->on_detach()));
  w.take();
  BOOST_TEST((w.job->phase() == job_phase::halting));
  w.kept();
  BOOST_TEST(w.sent_to<give_job>().empty());
  w.halted(n1), w.halted(n2), w.halted(n3, both({3})), w.halted(client);
  BOOST_TEST((w.job->phase() == job_phase::handing));
  BOOST_TEST(w.sent_to<give_job>().empty());  // the last journal is on its way
  w.kept(), w.kept();
  BOOST_TEST((w.sent_to<give_job>() == std::vector{n1}));
  BOOST_TEST(w.moves() == 0U);  // JC-14
  w.job->on_moved({job_id{7}, 5, n1});
  w.take();
  BOOST_TEST(w.moves() == 1U);
  BOOST_TEST((w.job->phase() == job_phase::over));
  for (const auto& m : w.before) BOOST_TEST(!std::holds_alternative<stop_part>(m.body));
}

BOOST_AUTO_TEST_CASE(a_job_whose_next_coordinator_dies_on_the_way_stays) {
  auto w = moving();
  w.all_placed({n1, n2, n3, client});
  w.kept(), w.kept();
  BOOST_TEST(bool(w.job->on_detach()));
  w.take();
  w.halted(n1), w.halted(n2), w.halted(n3, both({0})), w.halted(client);
  BOOST_TEST((w.job->phase() == job_phase::handing));
  w.job->on_lost(n1, "gone", false);
  w.take();
  BOOST_TEST((w.job->phase() == job_phase::claiming));
  BOOST_TEST(w.moves() == 0U);
}

// It had the journal, and died before it had claimed an epoch, or said that it cannot go on.
BOOST_AUTO_TEST_CASE(JC_14_a_job_that_was_given_away_stays_where_nobody_takes_it) {
  for (const bool has_died : {true, false}) {
    auto w = moving();
    w.all_placed({n1, n2, n3, client});
    w.kept(), w.kept();
    BOOST_TEST(bool(w.job->on_detach()));
    w.take();
    w.halted(n1), w.halted(n2), w.halted(n3, both({0})), w.halted(client);
    w.kept(), w.kept();
    BOOST_TEST_REQUIRE(w.sent_to<give_job>().size() == 1U);
    if (has_died)
      w.job->on_lost(n1, "gone", false);
    else
      w.job->on_kept(n1, {job_id{7}, 3, "nobody waits for it there"});
    w.take();
    BOOST_TEST((w.job->phase() == job_phase::claiming));
    BOOST_TEST(w.moves() == 0U);
    // And who could not take it is not given it at once again.
    if (!has_died) BOOST_TEST(!w.job->on_hand_over(n1));
  }
}

BOOST_AUTO_TEST_CASE(JC_12_a_process_that_ends_when_it_has_given_the_job_away_stops_nobody) {
  auto w = moving();
  w.all_placed({n1, n2, n3, client});
  w.kept(), w.kept();
  BOOST_TEST(bool(w.job->on_detach()));
  w.take();
  w.halted(n1), w.halted(n2), w.halted(n3, both({0})), w.halted(client);
  w.kept(), w.kept();
  BOOST_TEST_REQUIRE(w.sent_to<give_job>().size() == 1U);
  w.job->on_stop("the process ends");
  w.take();
  BOOST_TEST((w.job->phase() == job_phase::over));
  BOOST_TEST(w.moves() == 1U);
  BOOST_TEST(w.sent_to<stop_part>().empty());
}

// Else the next one would meet a claim of somebody who lives, and give it up.
BOOST_AUTO_TEST_CASE(a_job_that_is_asked_for_while_an_epoch_is_claimed_is_given_with_that_epoch) {
  auto w = moving(left(6));
  BOOST_TEST(bool(w.job->on_hand_over(n1)));
  w.take();
  BOOST_TEST((w.job->phase() == job_phase::claiming));
  w.job->on_epoch(5U, {});
  w.take();
  BOOST_TEST((w.job->phase() == job_phase::handing));
  std::uint32_t epoch = 0;
  for (int i = 0; i < 3; ++i) {
    for (const auto& m : w.sent)
      if (auto* k = std::get_if<keep_journal>(&m.body); k && m.to == n1 && !k->journal.empty())
        epoch = decode_journal(k->journal)->epoch;
    if (!w.sent_to<give_job>().empty()) break;
    w.kept();
  }
  BOOST_TEST(epoch == 5U);
  BOOST_TEST((w.sent_to<give_job>() == std::vector{n1}));
}

BOOST_AUTO_TEST_CASE(a_job_that_was_given_to_somebody_whose_claim_is_denied_is_given_back) {
  auto w = moving(left(6));
  w.job->on_epoch(error(error_code::denied, "epoch 5 was claimed by n1"), {});
  w.take();
  BOOST_TEST(w.moves() == 1U);
  BOOST_TEST((w.sent_to<journal_kept>() == std::vector{node_id{98}}));
}

// SV-5: what kills whoever coordinates it would kill the cluster.
BOOST_AUTO_TEST_CASE(a_job_whose_coordinators_die_without_a_step_forward_is_given_up) {
  auto k = *left(6);
  k.journal.in_vain = 6;
  k.journal.progress = 12;  // of two workers
  auto w = moving(std::make_shared<const kept_journal>(k));
  BOOST_TEST(w.last(job_event_kind::failed).find("without a step forward") != std::string::npos);
  k.journal.progress = 10;
  auto other = moving(std::make_shared<const kept_journal>(k));
  BOOST_TEST((other.job->phase() == job_phase::claiming));
}

BOOST_AUTO_TEST_CASE(JC_10_a_job_finishes_though_its_coordinator_died_meanwhile) {
  auto k = *left(6);
  k.journal.is_finishing = true;
  auto w = moving(std::make_shared<const kept_journal>(k));
  w.job->on_epoch(5U, {});
  w.take();
  w.halted(n1), w.halted(n2), w.halted(n3, both({6})), w.halted(client);
  w.job->on_epoch(6U, {});
  w.take();
  const auto p = decode_plan(w.last_place()->plan);
  for (const auto& a : p->actors)
    if (a.kind == actor_kind::shard)
      BOOST_TEST((a.shard.steps == std::vector<std::uint64_t>{6, 6}));
}

BOOST_AUTO_TEST_CASE(who_asks_for_a_job_that_ends_with_its_program_is_refused) {
  world w(failure_policy::resume);
  w.all_placed({n1, n2, n3, client});
  BOOST_TEST(!w.job->on_detach());
  BOOST_TEST(!w.job->on_hand_over(n1));
  auto m = moving();
  BOOST_TEST(!m.job->on_hand_over(node_id{55}));  // not known here
}

BOOST_AUTO_TEST_CASE(JC_12_who_has_lost_the_job_stops_nobody) {
  for (const int how : {0, 1, 2}) {
    auto w = moving();
    w.all_placed({n1, n2, n3, client});
    w.kept(), w.kept();
    w.sent.clear();
    w.job->on_moved({job_id{7}, 0, n1});  // of an older epoch: nothing
    BOOST_TEST((w.job->phase() == job_phase::running));
    if (how == 0) w.job->on_moved({job_id{7}, 9, n1});
    if (how == 1) w.job->on_let_go();
    if (how == 2) {
      w.job->on_lost(n1, "gone", false);
      w.take();
      w.halted(n2), w.halted(n3, both({0})), w.halted(client);
      w.job->on_epoch(error(error_code::denied, "epoch 4 was claimed by n2"), {});
    }
    w.take();
    BOOST_TEST(w.moves() == 1U);
    BOOST_TEST(w.last(job_event_kind::failed) == "not told");
    BOOST_TEST((w.job->phase() == job_phase::over));
    for (const auto& m : w.sent)
      if (how != 2) BOOST_TEST(!std::holds_alternative<stop_part>(m.body));
  }
}

BOOST_AUTO_TEST_CASE(a_node_that_could_not_go_on_is_no_successor) {
  auto w = moving();
  w.all_placed({n1, n2, n3, client});
  w.job->on_kept(n1, {job_id{7}, 1, "an op is not known here"});
  w.take();
  BOOST_TEST(w.last(job_event_kind::note).find("an op is not known here") != std::string::npos);
  w.kept(), w.kept();
  bool is_told = false;
  for (const auto& m : w.before)
    if (auto* k = std::get_if<keep_journal>(&m.body))
      is_told = is_told || (m.to == n3 && !k->recipe.empty());
  BOOST_TEST(is_told);  // instead
}

BOOST_AUTO_TEST_SUITE_END()
