#include "tools/troupe-tool/timeline.hpp"

#include "tests/support/trace_file.hpp"

#include <boost/test/unit_test.hpp>

#include <limits>
#include <random>
#include <string>
#include <vector>

using namespace troupe;
using test::read_timeline;

namespace {

constexpr std::uint32_t everywhere = trace_event::everywhere;
constexpr std::uint32_t waited_for_input =
    static_cast<std::uint32_t>(actor_state::waiting_for_input) << 24;
constexpr std::uint32_t waited_for_credit =
    static_cast<std::uint32_t>(actor_state::waiting_for_credit) << 24;

traced_actor actor(std::uint32_t number, actor_kind kind, std::string name,
                   std::vector<std::uint32_t> inputs, std::vector<std::uint32_t> outputs) {
  traced_actor a{number,
                 1,
                 kind,
                 std::move(name),
                 kind == actor_kind::op ? "matmul+relu" : std::string(to_string(kind)),
                 {},
                 std::move(inputs),
                 std::move(outputs),
                 {}};
  a.ports.resize(a.outputs.size());
  return a;
}

node_recording node(std::string name, std::uint64_t id, std::int64_t began) {
  node_recording n;
  n.id = node_id{id};
  n.name = std::move(name);
  n.pid = 100;
  n.kind = "node";
  n.clock = {0, 50'000};
  n.began_ns = began;
  n.ended_ns = began + 10'000;
  n.is_whole = true;
  n.parts[1] = {1, job_id{5}, 2, "mnist", "/job:worker/task:" + std::to_string(id)};
  n.lanes.resize(2);
  n.lanes[0].name = "cpu:0";
  n.lanes[0].is_stream = true;
  n.lanes[1].name = "network";
  return n;
}

// n1: reader -0-> matmul -1-> send ~2~> n2: receive -3-> shard -4-> (back, not drawn)
cluster_recording two_nodes() {
  auto a = node("n1", 1, 1'000'000), b = node("n2", 2, 1'000'500);
  for (auto x :
       {actor(1, actor_kind::op, "reader", {}, {0}), actor(2, actor_kind::op, "matmul", {0}, {1}),
        actor(3, actor_kind::send, "send", {1}, {2})})
    a.actors[x.number] = x;
  a.actors[3].peer = node_id{2};
  a.lanes[0].events = {
      {1'000'000, 1'001'000, trace_kind::firing, 1, 7, everywhere, 0, 0},
      {1'001'000, 1'003'000, trace_kind::firing, 2, 7, everywhere, 0, 0},
      {1'003'000, 1'003'200, trace_kind::firing, 3, 7, everywhere, 0, 0},
      {1'003'500, 1'006'000, trace_kind::idle, trace_nobody, 0, everywhere, 0, 0},
      {1'006'000, 1'006'100, trace_kind::firing, 2, 8, everywhere, waited_for_input, 0}};
  a.lanes[1].events = {{1'003'300, 1'005'000, trace_kind::transfer, 3, 7, everywhere, 0, 4096}};
  for (auto x : {actor(1, actor_kind::receive, "receive", {2}, {3}),
                 actor(2, actor_kind::shard, "shard", {3}, {4})})
    b.actors[x.number] = x;
  b.lanes[0].events = {
      {1'000'500, 1'004'000, trace_kind::idle, trace_nobody, 0, everywhere, 0, 0},
      {1'004'000, 1'004'200, trace_kind::firing, 1, 7, everywhere, waited_for_input, 0},
      {1'004'200, 1'004'900, trace_kind::apply, 2, 7, 0, 0, 0},
      {1'004'900, 1'005'000, trace_kind::emit, 2, 8, 0, waited_for_credit | 1, 0}};
  b.lanes[0].running = 2;
  b.lanes[1].is_asleep = true;
  cluster_recording r;
  r.cluster = "lab";
  r.duration_ns = 1'000'000'000;
  r.nodes = {std::move(a), std::move(b)};
  return r;
}

const test::trace_file::slice& slice(const test::trace_file& f, std::uint64_t process,
                                     std::uint64_t thread, std::size_t i) {
  return f.slices.at({process, thread}).at(i);
}

command timeline_of(std::string job = "") {
  command c;
  c.action = verb::timeline;
  c.id = std::move(job);
  c.duration_ns = 1'000'000'000;
  return c;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(timeline)

BOOST_AUTO_TEST_CASE(firings_transfers_waits_and_arrows_are_where_they_belong) {
  const auto f = read_timeline(two_nodes());
  BOOST_TEST(f.processes.at(1) == "n1 /job:worker/task:1");
  BOOST_TEST((f.threads.at({1, 1}) == "cpu:0"));
  BOOST_TEST((f.threads.at({1, 1000}) == "to n2"));
  const auto& matmul = slice(f, 1, 1, 1);
  BOOST_TEST(matmul.name == "matmul");
  BOOST_TEST(matmul.category == "op");
  BOOST_TEST(matmul.args.dump() == R"({"job":"mnist","step":7,"type":"matmul+relu"})");
  BOOST_TEST(matmul.begin_ns == 1000);
  BOOST_TEST(matmul.end_ns == 3000);
  const auto& wait = slice(f, 1, 1, 3);
  BOOST_TEST(wait.name == "waiting");
  BOOST_TEST(wait.args.dump() ==
             R"({"next":"matmul","step":8,"waited_for":"input in0, from reader"})");
  const auto& sent = slice(f, 1, 1000, 0);
  BOOST_TEST(sent.category == "transfer");
  BOOST_TEST(sent.args.at("bytes") == 4096);
  BOOST_TEST(sent.args.at("edge") == 2);
  BOOST_TEST(slice(f, 2, 1, 3).args.at("waited_for") == "a credit of out0");
  // Both ran and slept when the recording ended.
  BOOST_TEST(slice(f, 2, 1, 4).args.at("is_finished") == false);
  BOOST_TEST(slice(f, 2, 1, 4).end_ns == 10'500);
  BOOST_TEST(slice(f, 2, 2, 0).name == "idle");
  // reader -> matmul -> send -> receive -> shard.
  BOOST_TEST(f.arrows.size() == 4u);
  BOOST_TEST(f.arrows_across() == 1u);
  for (const auto& [id, a] : f.arrows) {
    BOOST_TEST(a.first.at_ns <= a.second.at_ns);
    if (a.first.process != a.second.process) {
      BOOST_TEST(f.at(a.first)->name == "send");
      BOOST_TEST(f.at(a.second)->name == "receive");
    }
  }
  BOOST_TEST(f.summary.slices == 9u);
  BOOST_TEST(f.other_data.at("nodes").size() == 2u);
}

BOOST_AUTO_TEST_CASE(TI_3_ends_of_items_that_came_from_or_go_elsewhere_are_left_out) {
  auto r = two_nodes();
  r.nodes[1].lanes[0].events.erase(r.nodes[1].lanes[0].events.begin() + 1);  // receive
  const auto f = read_timeline(r);
  BOOST_TEST(f.arrows.size() == 2u);
  // Of another epoch, or another job, the same edge and step is another item.
  r = two_nodes();
  r.nodes[1].parts[1].epoch = 3;
  BOOST_TEST(read_timeline(r).arrows.size() == 3u);
  r.nodes[1].parts[1] = {1, job_id{6}, 2, "other", "t"};
  BOOST_TEST(read_timeline(r).arrows.size() == 3u);
}

BOOST_AUTO_TEST_CASE(TI_3_an_arrow_of_what_was_taken_while_its_emitter_went_on_leads_forward) {
  auto r = two_nodes();
  auto& taken = r.nodes[1].lanes[0].events;
  taken[0].end_ns = taken[1].begin_ns = 1'003'100;  // send lasts until 1'003'200
  for (const auto& [id, a] : read_timeline(r).arrows) BOOST_TEST(a.first.at_ns <= a.second.at_ns);
  // And where the taker was busy with something else when it was emitted.
  r = two_nodes();
  r.nodes[1].lanes[0].events[1].begin_ns = 1'001'000;
  r.nodes[1].lanes[0].events.erase(r.nodes[1].lanes[0].events.begin());
  for (const auto& [id, a] : read_timeline(r).arrows) BOOST_TEST(a.first.at_ns <= a.second.at_ns);
}

// A slice that was cut off where its node began to record has lost when the item was emitted.
BOOST_AUTO_TEST_CASE(TI_3_what_was_emitted_before_its_node_recorded_has_no_arrow) {
  auto r = two_nodes();
  const auto all = read_timeline(r).arrows.size();
  auto& sender = r.nodes[0];
  sender.began_ns = 1'003'100;
  std::erase_if(sender.lanes[0].events, [](const auto& e) { return e.end_ns < 1'003'100; });
  sender.lanes[0].events[0].begin_ns = 1'003'100;  // it was sent before
  auto& taken = r.nodes[1].lanes[0].events;
  taken[0].end_ns = taken[1].begin_ns = 1'002'000;
  taken[1].end_ns = 1'003'000;
  const auto f = read_timeline(r);
  BOOST_TEST(f.arrows.size() < all);
  BOOST_TEST(f.arrows_across() == 0u);
  for (const auto& [id, a] : f.arrows) BOOST_TEST(a.first.at_ns <= a.second.at_ns);
}

BOOST_AUTO_TEST_CASE(the_id_of_an_arrow_follows_from_the_item_alone) {
  const auto one = read_timeline(two_nodes());
  auto r = two_nodes();
  std::swap(r.nodes[0], r.nodes[1]);
  r.nodes[0].clock.ahead_ns = 77;
  const auto other = read_timeline(r);
  for (const auto& [id, a] : one.arrows) BOOST_TEST(other.arrows.contains(id));
}

BOOST_AUTO_TEST_CASE(TI_2_transfers_that_overlap_have_rows_of_their_own) {
  auto r = two_nodes();
  r.nodes[0].lanes[1].events = {
      {1'003'000, 1'005'000, trace_kind::transfer, 3, 7, everywhere, 0, 1},
      {1'003'500, 1'004'000, trace_kind::transfer, 3, 8, everywhere, 0, 1},
      {1'004'000, 1'006'000, trace_kind::transfer, 3, 9, everywhere, 0, 1},
      {1'005'000, 1'006'000, trace_kind::transfer, 3, 10, everywhere, 0, 1}};
  const auto f = read_timeline(r);
  BOOST_TEST((f.threads.at({1, 1000}) == "to n2"));
  BOOST_TEST((f.threads.at({1, 1001}) == "to n2 (2)"));
  BOOST_TEST(!f.threads.contains({1, 1002}));
  BOOST_TEST(f.count("transfer") == 4u);
}

BOOST_AUTO_TEST_CASE(TI_4_times_are_the_tools) {
  auto r = two_nodes();
  r.nodes[1].clock.ahead_ns = 500'000'000;
  for (auto* t : {&r.nodes[1].began_ns, &r.nodes[1].ended_ns}) *t += 500'000'000;
  for (auto& l : r.nodes[1].lanes)
    for (auto& e : l.events) e.begin_ns += 500'000'000, e.end_ns += 500'000'000;
  const auto f = read_timeline(r), plain = read_timeline(two_nodes());
  BOOST_TEST(slice(f, 2, 1, 1).begin_ns == slice(plain, 2, 1, 1).begin_ns);
  BOOST_TEST(f.other_data.at("nodes")[1].at("clock_ahead_seconds") == 0.5);
}

BOOST_AUTO_TEST_CASE(one_job_of_several_is_shown_alone) {
  auto r = two_nodes();
  r.nodes[1].parts[1].job_name = "other";
  for (const std::string& job : {std::string("mnist"), std::string("0000000000000005")}) {
    if (job.size() > 5) r.nodes[1].parts[1].job = job_id{6};
    const auto f = read_timeline(r, job);
    BOOST_TEST(f.count("op") == 3u);
    BOOST_TEST(f.count("receive") == 0u);
    BOOST_TEST(f.count("shard") == 0u);
    BOOST_TEST(f.arrows_across() == 0u);
  }
}

BOOST_AUTO_TEST_CASE(what_a_device_ran_has_rows_of_its_own_and_an_arrow_from_who_enqueued_it) {
  auto n = node("n1", 1, 1'000'000);
  auto copy_in = actor(1, actor_kind::copy, "x/in", {0}, {1}),
       segment = actor(2, actor_kind::op, "segment", {1}, {2}),
       copy_out = actor(3, actor_kind::copy, "y/out", {2}, {3});
  segment.kernels = {"layer/matmul+relu", "loss"};
  for (auto x : {copy_in, segment, copy_out}) n.actors[x.number] = x;
  n.lanes.resize(4);
  n.lanes[0].name = "gpu:0";
  n.lanes[0].events = {{1'000'000, 1'000'100, trace_kind::firing, 1, 7, everywhere, 0, 0},
                       {1'000'100, 1'000'200, trace_kind::firing, 2, 7, everywhere, 0, 0},
                       {1'000'200, 1'000'300, trace_kind::firing, 2, 8, everywhere, 0, 0},
                       {1'004'000, 1'004'100, trace_kind::firing, 3, 7, everywhere, 0, 0}};
  n.lanes[1].name = "gpu:0/compute", n.lanes[2].name = "gpu:0/copy_in",
  n.lanes[3].name = "gpu:0/copy_out";
  n.lanes[1].events = {{1'001'000, 1'001'500, trace_kind::kernel, 2, 7, 0, 0, 0},
                       {1'001'500, 1'002'000, trace_kind::kernel, 2, 7, 1, 0, 0},
                       {1'003'000, 1'003'400, trace_kind::replay, 2, 8, 2, 0, 0},
                       {1'003'400, 1'003'500, trace_kind::kernel, 2, 9, everywhere, 0, 0}};
  n.lanes[2].events = {{1'000'050, 1'000'950, trace_kind::copy, 1, 7, everywhere, 0, 4096}};
  n.lanes[3].events = {{1'002'000, 1'003'900, trace_kind::copy, 3, 7, everywhere, 0, 64}};
  cluster_recording r;
  r.duration_ns = 1'000'000'000;
  r.nodes = {std::move(n)};
  const auto f = read_timeline(r);
  BOOST_TEST((f.threads.at({1, 2}) == "gpu:0/compute"));
  const auto& first = slice(f, 1, 2, 0);
  BOOST_TEST(first.name == "layer/matmul+relu");
  BOOST_TEST(first.category == "kernel");
  BOOST_TEST(first.args.dump() == R"({"job":"mnist","step":7,"type":"matmul+relu"})");
  BOOST_TEST(slice(f, 1, 2, 1).name == "loss");
  const auto& replay = slice(f, 1, 2, 2);
  BOOST_TEST(replay.name == "segment");
  BOOST_TEST(replay.category == "replay");
  BOOST_TEST(replay.args.at("kernels") == 2);
  BOOST_TEST(slice(f, 1, 2, 3).name == "segment");  // a kernel without a number is its actor
  const auto& in = slice(f, 1, 3, 0);
  BOOST_TEST(in.category == "memcpy");
  BOOST_TEST(in.args.at("bytes") == 4096);
  BOOST_TEST(slice(f, 1, 4, 0).args.at("bytes") == 64);
  // x/in -> segment -> y/out (step 7), and for each of the four firings its work on the device; of
  // step 9 no firing is there.
  BOOST_TEST(f.arrows.size() == 2u + 4u);
  std::size_t to_device = 0, from_device = 0;
  for (const auto& [id, a] : f.arrows) {
    BOOST_TEST(a.first.at_ns <= a.second.at_ns);
    to_device += a.first.thread == 1 && a.second.thread != 1;
    from_device += a.first.thread != 1 && a.second.thread == 1;
    if (a.first.thread == 4) BOOST_TEST(f.at(a.second)->name == "y/out");
  }
  BOOST_TEST(to_device == 3u);
  BOOST_TEST(from_device == 1u);
  BOOST_TEST(read_timeline(r, "other").count("kernel") == 0u);
}

BOOST_AUTO_TEST_CASE(names_of_any_kind_give_a_valid_file) {
  auto r = two_nodes();
  r.nodes[0].name = "\"\\\n\xff{}";
  r.nodes[0].actors[1].name = "a \"quote\", a \\, a \x01 and half a character \xc3";
  r.nodes[0].parts[1].job_name = "{0}";
  r.nodes[0].lanes[0].name = "%s";
  r.silent = {{"n3 \xff", "no answer"}};
  (void)read_timeline(r);
}

BOOST_AUTO_TEST_CASE(TI_1_TI_2_TI_3_hold_whatever_a_node_says) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 300; ++i) {
    auto r = two_nodes();
    for (auto& n : r.nodes) {
      const auto any_time = [&] {
        return random() % 8 == 0 ? trace_time_max_ns
                                 : static_cast<std::int64_t>(1'000'000 + random() % 20'000);
      };
      if (random() % 4 == 0) n.began_ns = any_time();
      if (random() % 4 == 0) n.ended_ns = any_time();
      if (random() % 4 == 0)
        n.clock.ahead_ns = random() % 2 == 0 ? trace_time_max_ns : -trace_time_max_ns;
      for (auto& l : n.lanes) {
        l.running = static_cast<std::uint32_t>(random() % 5);
        for (int k = 0; k < 20; ++k)
          l.events.push_back(
              {any_time(), any_time(), static_cast<trace_kind>(1 + random() % trace_kind_last),
               static_cast<std::uint32_t>(random() % 5), random() % 3,
               random() % 2 == 0 ? everywhere : static_cast<std::uint32_t>(random() % 4),
               static_cast<std::uint32_t>(random()), random()});
      }
      for (auto& [number, a] : n.actors) {
        if (random() % 4 == 0) a.part = 99;
        if (random() % 2 == 0) a.kernels = {"a", "b"};
        if (random() % 4 == 0) a.inputs.assign(3, static_cast<std::uint32_t>(random() % 4));
      }
    }
    (void)read_timeline(r);
  }
}

BOOST_AUTO_TEST_CASE(nothing_that_ran_is_a_valid_file_and_a_line) {
  cluster_recording r;
  r.duration_ns = 1'000'000'000;
  r.nodes = {node("n1", 1, 5)};
  r.nodes[0].lanes[0].is_asleep = true;
  const auto f = read_timeline(r);
  BOOST_TEST(f.count("wait") == 1u);
  const auto o = answer_timeline(timeline_of(), r, f.summary);
  BOOST_TEST(o.exit_code == 0);
  BOOST_TEST(o.err == "troupe: 1 s of 1 node: 0 slices, 0 arrows: nothing ran meanwhile\n");
  BOOST_TEST(answer_timeline(timeline_of("x"), r, f.summary)
                 .err.find("nothing of job 'x' ran meanwhile") != std::string::npos);
  BOOST_TEST(read_timeline({}).slices.empty());
}

BOOST_AUTO_TEST_CASE(what_is_missing_is_said_and_makes_it_partial) {
  auto r = two_nodes();
  r.silent = {{"n3", "no answer within 2.0 s"}};
  auto f = read_timeline(r);
  auto o = answer_timeline(timeline_of(), r, f.summary);
  BOOST_TEST(o.exit_code == 4);
  BOOST_TEST(o.err.find("troupe: node n3 did not answer: no answer within 2.0 s") !=
             std::string::npos);
  BOOST_TEST(f.other_data.at("silent")[0].at("name") == "n3");
  r = two_nodes();
  r.nodes[0].lanes[0].lost = 12;
  r.nodes[1].left_out = 3;
  f = read_timeline(r);
  BOOST_TEST(f.summary.lost == 15u);
  BOOST_TEST(f.other_data.at("events_lost") == 15);
  BOOST_TEST(f.other_data.at("nodes")[0].at("events_lost_by_thread").at("cpu:0") == 12);
  o = answer_timeline(timeline_of(), r, f.summary);
  BOOST_TEST(o.exit_code == 4);
  BOOST_TEST(o.err.find("node n1, cpu:0: 12 events") != std::string::npos);
  BOOST_TEST(o.err.find("node n2: 3 events are missing") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_job_that_is_not_there_is_not_found) {
  job_snapshot j;
  j.name = "mnist", j.id = "1f";
  for (const char* name : {"", "mnist", "1f"}) BOOST_TEST(bool(check_job(name, {j})));
  const auto missing = check_job("mnits", {j});
  BOOST_TEST_REQUIRE(!missing);
  BOOST_TEST((missing.error().code() == error_code::not_found));
  BOOST_TEST(missing.error().message() == "there is no job 'mnits' here; did you mean mnist?");
}

BOOST_AUTO_TEST_CASE(progress_is_a_line) {
  BOOST_TEST(progress_line(timeline_of(), {400'000'000, 3, 12345}) ==
             "recording 0.4 of 1 s on 3 nodes, 12345 events");
  BOOST_TEST(progress_line(timeline_of(), {0, 1, 0}) == "recording 0.0 of 1 s on 1 node, 0 events");
}

BOOST_AUTO_TEST_SUITE_END()
