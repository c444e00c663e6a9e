// What bounds the rate: the right one is named, and the gain is what theory says.

#include "troupe/runtime/insight/slow.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

using namespace troupe;

namespace {

constexpr int looks_made = 100;

// A hundred looks, of which each actor is busy, starved and blocked in the first so many.
struct scene {
  struct part {
    std::string name, thread;
    int busy = 0, starved = 0, blocked = 0;
    bool is_source = false;
    std::string kind = "stage", job_id = "1f";
  };
  std::vector<part> parts;
  double cores = 0, cpu_each_second = 0;
  std::function<void(cluster_snapshot&, int)> more = [](auto&, int) {};

  std::vector<cluster_snapshot> looks() const {
    std::vector<cluster_snapshot> all;
    for (int i = 0; i < looks_made; ++i) {
      cluster_snapshot c;
      c.cluster = "default";
      node_snapshot n;
      n.id = "a", n.name = "n1", n.kind = "node";
      n.cores = static_cast<std::uint64_t>(cores);
      n.cpu_seconds = cpu_each_second * 0.02 * i;
      c.nodes = {n};
      job_snapshot j;
      j.id = "1f", j.name = "pipe";
      j.started_seconds = 5 + 0.02 * i;
      j.step = static_cast<std::uint64_t>(1000 + 4 * i);
      c.jobs = {j};
      for (const auto& p : parts) {
        actor_snapshot a;
        a.id = "n1." + p.name, a.name = p.name, a.kind = p.kind, a.node = "n1";
        a.job = "pipe", a.job_id = p.job_id;
        a.thread = p.thread;
        // Not all in the same looks.
        const int at = (i * 37 + static_cast<int>(p.name.size()) * 11) % looks_made;
        a.state = at < p.busy                           ? actor_state::running
                  : at < p.busy + p.starved             ? actor_state::waiting_for_input
                  : at < p.busy + p.starved + p.blocked ? actor_state::waiting_for_credit
                                                        : actor_state::waiting_for_thread;
        if (!p.is_source) {
          port_snapshot in;
          in.name = "in0", in.peer = "x", in.peer_node = "n1";
          a.ports.push_back(in);
        }
        c.actors.push_back(a);
      }
      more(c, i);
      all.push_back(std::move(c));
    }
    return all;
  }
  slow_answer explain() const {
    auto a = explain_slow(looks(), "");
    BOOST_TEST_REQUIRE(bool(a), (a ? "" : a.error().text()));
    for (const auto& s : a->shares)
      BOOST_TEST(std::abs(s.busy + s.starved + s.blocked + s.ready - 1) < 1e-9);  // BR-1
    return *a;
  }
};

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

scene pipeline() {
  scene s;
  s.parts = {{.name = "read", .thread = "t0", .busy = 20, .blocked = 80, .is_source = true},
             {.name = "decode", .thread = "t1", .busy = 96, .starved = 2},
             {.name = "train", .thread = "t2", .busy = 60, .starved = 40}};
  return s;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(slow)

BOOST_AUTO_TEST_CASE(a_busy_stage_is_named_with_whom_it_starves_and_what_a_replica_gives) {
  const auto a = pipeline().explain();
  BOOST_TEST((a.kind == bound_kind::thread));
  BOOST_TEST(a.actor == "decode");
  BOOST_TEST(std::abs(a.rate - 200) < 1e-6);
  BOOST_TEST(a.root ==
             "Job pipe, 200 items/s: decode bounds it: busy 96 %; it starves train (40 %) and "
             "blocks read (80 %). 2 replicas instead of 1, on a thread of its own: +60 %");
  BOOST_TEST(std::abs(a.gain - 0.6) < 0.01);  // then train is full
  BOOST_TEST(has(a.text(), "\n  decode    96 %      2 %      0 %    2 %"), a.text());
  BOOST_TEST(has(a.json(), "\"busy_ratio\":0.96"));
}

BOOST_AUTO_TEST_CASE(replicas_are_one_stage_and_a_further_one_gives_its_part) {
  auto s = pipeline();
  s.parts[1] = {.name = "decode/0", .thread = "t1", .busy = 96, .starved = 2};
  s.parts.push_back({.name = "decode/1", .thread = "t3", .busy = 94, .starved = 2});
  s.parts[2].busy = 30, s.parts[2].starved = 70;
  const auto a = s.explain();
  BOOST_TEST(a.actor == "decode");
  BOOST_TEST(a.mend == "3 replicas instead of 2, on a thread of its own");
  BOOST_TEST(std::abs(a.gain - 0.5) < 0.01);
}

BOOST_AUTO_TEST_CASE(what_a_mend_gives_ends_at_the_cores_of_the_node) {
  auto s = pipeline();
  s.parts[2].busy = 20, s.parts[2].starved = 80;
  s.cores = 2, s.cpu_each_second = 1.6;
  BOOST_TEST(std::abs(s.explain().gain - 0.25) < 0.02);
  s.cpu_each_second = 0.1;  // it sleeps, or waits for a disk
  BOOST_TEST(std::abs(s.explain().gain - 1.0) < 0.02);
}

BOOST_AUTO_TEST_CASE(stages_that_share_a_thread_bound_it_together) {
  scene s;
  s.parts = {{.name = "read", .thread = "t0", .busy = 10, .blocked = 90, .is_source = true},
             {.name = "decode", .thread = "t1", .busy = 60},
             {.name = "resize", .thread = "t1", .busy = 60}};
  // Of one thread only one runs at a time: the second one in what the first has left.
  s.more = [](auto& c, int i) {
    const int at = (i * 37 + 66) % looks_made;
    c.actors[1].state = at < 58 ? actor_state::running : actor_state::waiting_for_thread;
    c.actors[2].state = at >= 60 ? actor_state::running : actor_state::waiting_for_thread;
  };
  const auto a = s.explain();
  BOOST_TEST(a.actor == "decode");
  BOOST_TEST(has(a.root, "the thread t1 of node n1 bounds it: busy 98 %, 59 % of that with decode"),
             a.root);
  // Half of decode's items elsewhere: resize stays.
  BOOST_TEST(a.gain > 0.9);
}

BOOST_AUTO_TEST_CASE(who_feeds_too_slowly_is_the_program) {
  scene s;
  s.parts = {{.name = "matmul", .thread = "cpu:0", .busy = 30, .kind = "op"}};
  s.more = [](auto& c, int i) {
    auto& op = c.actors[0];
    actor_snapshot feed;
    feed.id = "n1.feed", feed.name = "x", feed.kind = "feed", feed.node = "n1";
    feed.job = "pipe", feed.job_id = "1f", feed.thread = "cpu:0";
    feed.state = actor_state::waiting_for_input;
    port_snapshot in;
    in.name = "in0", in.peer = "program", in.is_waiting = true;
    feed.ports = {in};
    if (op.state == actor_state::running) feed.ports[0].is_waiting = false;
    op.ports[0].peer = "x";
    op.ports[0].is_waiting = op.state == actor_state::waiting_for_input;
    if (op.state != actor_state::running) {
      op.state = actor_state::waiting_for_input;
      op.ports[0].is_waiting = true;
    }
    c.actors.push_back(feed);
    (void)i;
  };
  const auto a = s.explain();
  BOOST_TEST((a.kind == bound_kind::program), a.root);
  BOOST_TEST(std::abs(a.share - 0.7) < 0.01);
  BOOST_TEST(has(a.root, "A program that never lets it wait: +233 %"), a.root);
}

BOOST_AUTO_TEST_CASE(a_step_in_which_one_waits_for_another_is_bound_by_who_is_waited_for) {
  scene s;
  s.parts = {{.name = "matmul", .thread = "cpu:0", .busy = 60, .starved = 40, .kind = "op"},
             {.name = "apply", .thread = "cpu:1", .busy = 0, .starved = 60, .kind = "op"}};
  s.more = [](auto& c, int) {
    for (auto& a : c.actors) a.ports[0].is_waiting = a.state == actor_state::waiting_for_input;
    const bool first = c.actors[0].state == actor_state::running;
    c.actors[1].state = first ? actor_state::waiting_for_input : actor_state::running;
    c.actors[1].ports[0].is_waiting = first;
    c.actors[1].ports[0].peer = "matmul";
    c.actors[0].ports[0].peer = "apply";
  };
  const auto a = s.explain();
  BOOST_TEST((a.kind == bound_kind::step), a.root);
  BOOST_TEST(a.actor == "matmul");
  BOOST_TEST(std::abs(a.gain - (1 / 0.7 - 1)) < 0.02, a.root);
}

BOOST_AUTO_TEST_CASE(a_source_that_has_nothing_waits_for_the_outside) {
  scene s;
  s.parts = {{.name = "tcp", .thread = "t0", .busy = 5, .starved = 95, .is_source = true},
             {.name = "print", .thread = "t1", .busy = 5, .starved = 95}};
  const auto a = s.explain();
  BOOST_TEST((a.kind == bound_kind::outside), a.root);
  BOOST_TEST(a.actor == "tcp");
}

BOOST_AUTO_TEST_CASE(BR_2_the_order_of_the_lists_changes_nothing) {
  const auto s = pipeline();
  auto looks = s.looks();
  const auto expected = explain_slow(looks, "pipe")->json();
  for (auto& c : looks) std::ranges::reverse(c.actors);
  BOOST_TEST(explain_slow(looks, "pipe")->json() == expected);
}

BOOST_AUTO_TEST_CASE(BR_3_few_looks_and_jobs_that_do_not_run_are_not_judged) {
  auto looks = pipeline().looks();
  looks.resize(looks_least - 1);
  auto a = explain_slow(looks, "pipe");
  BOOST_TEST_REQUIRE(bool(a));
  BOOST_TEST((a->kind == bound_kind::not_known));
  looks = pipeline().looks();
  for (auto& c : looks) c.jobs[0].state = job_state::done;
  a = explain_slow(looks, "pipe");
  BOOST_TEST_REQUIRE(bool(a));
  BOOST_TEST((a->kind == bound_kind::not_known));
  BOOST_TEST(has(a->root, "it is done"));
  BOOST_TEST((explain_slow(looks, "").error().code() == error_code::not_found));
  // Nor one that stands still, or was placed anew.
  looks = pipeline().looks();
  for (auto& c : looks) c.jobs[0].step = 7;
  a = explain_slow(looks, "pipe");
  BOOST_TEST_REQUIRE(bool(a));
  BOOST_TEST((a->kind == bound_kind::not_known));
  BOOST_TEST(has(a->root, "no step of it has ended"), a->root);
  looks = pipeline().looks();
  for (std::size_t i = 50; i < looks.size(); ++i) looks[i].jobs[0].epoch = 2;
  a = explain_slow(looks, "pipe");
  BOOST_TEST_REQUIRE(bool(a));
  BOOST_TEST((a->kind == bound_kind::not_known));
  BOOST_TEST(has(a->root, "it was placed anew"), a->root);
  looks = pipeline().looks();
  for (auto& c : looks) c.jobs[0].state = job_state::done;
  BOOST_TEST((explain_slow(looks, "moon").error().code() == error_code::not_found));
  BOOST_TEST((explain_slow({}, "").error().code() == error_code::usage));
  auto two = pipeline().looks();
  for (auto& c : two) c.jobs.push_back(c.jobs[0]), c.jobs[1].id = "2", c.jobs[1].name = "other";
  BOOST_TEST((explain_slow(two, "").error().code() == error_code::usage));
}

BOOST_AUTO_TEST_SUITE_END()
