#include "troupe/runtime/insight/why.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

using namespace troupe;

namespace {

// A cluster made by hand. Actors are added with their waits.
struct scene {
  cluster_snapshot c;

  explicit scene(std::vector<std::string> nodes = {"c1", "n1", "n2"}) {
    c.cluster = "default";
    for (const auto& name : nodes) {
      node_snapshot n;
      n.id = "id-" + name;
      n.name = name;
      n.pid = 4000 + c.nodes.size();
      n.kind = name[0] == 'c' ? "client" : "node";
      c.nodes.push_back(n);
    }
    job_snapshot j;
    j.id = "1f";
    j.name = "mnist";
    j.step = 12, j.steps = 400;
    j.started_seconds = 60;
    j.client = "c1";
    j.participants = nodes;
    c.jobs.push_back(j);
  }

  actor_snapshot& add(const std::string& name, const std::string& node, actor_state state,
                      double since, const std::string& kind = "op") {
    actor_snapshot a;
    a.id = node + "." + std::to_string(c.actors.size());
    a.kind = kind;
    a.name = name;
    a.node = node;
    a.job = "mnist", a.job_id = "1f";
    a.state = state;
    a.since_seconds = since;
    c.actors.push_back(a);
    return c.actors.back();
  }
  // An actor that waits for input from (or for credit of) each of the peers.
  actor_snapshot& waits(const std::string& name, const std::string& node,
                        const std::vector<port_snapshot>& ports, const std::string& kind = "op") {
    double since = 0;
    for (const auto& p : ports) since = std::max(since, p.since_seconds);
    auto& a = add(
        name, node,
        ports.at(0).is_input() ? actor_state::waiting_for_input : actor_state::waiting_for_credit,
        since, kind);
    a.ports = ports;
    return a;
  }
  node_snapshot& node(const std::string& name) {
    return *std::find_if(c.nodes.begin(), c.nodes.end(),
                         [&](const auto& n) { return n.name == name; });
  }
  why_answer explain() const {
    auto answer = troupe::explain(c, "");
    BOOST_TEST_REQUIRE(bool(answer));
    return *answer;
  }
};

port_snapshot in(const std::string& peer, const std::string& node, double since, int port = 0) {
  return {"in" + std::to_string(port), peer, node, 0, 2, 0, true, since};
}
port_snapshot out(const std::string& peer, const std::string& node, double since, int port = 0) {
  return {"out" + std::to_string(port), peer, node, 0, 2, 0, true, since};
}
constexpr auto running = actor_state::running;

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}
std::string path(const why_answer& a) {
  std::string out;
  for (const auto& l : a.chain) out += l.actor + " > ";
  return out + (a.chain.empty() ? "" : a.chain.back().peer);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(why)

BOOST_AUTO_TEST_CASE(the_walk_ends_at_a_running_actor_across_nodes) {
  scene s;
  s.waits("loss", "c1", {in("w0/send", "n1", 3.0)}, "fetch");
  s.waits("w0/send", "n1", {in("w0/matmul", "n1", 3.1)}, "send");
  s.add("w0/matmul", "n1", running, 3.2);
  const auto a = s.explain();
  BOOST_TEST((a.kind == root_kind::actor_running));
  BOOST_TEST(a.actor == "w0/matmul");
  BOOST_TEST(a.node == "n1");
  BOOST_TEST(path(a) == "loss > w0/send > w0/matmul");
  BOOST_TEST(a.text() ==
             "Job mnist, step 12 of 400: op w0/matmul (n1.2) on node n1 runs, for 3.2 s.\n"
             "  loss (c1) waits for input in0 from w0/matmul, for 3.0 s");
}

BOOST_AUTO_TEST_CASE(a_stopped_worker_is_named_with_its_pid_and_the_actor_expected_there) {
  scene s;
  s.waits("loss", "c1", {in("w0/send", "n1", 3.0)}, "fetch");
  s.waits("w0/send", "n1", {in("w0/loss", "n1", 3.0)}, "send");
  s.waits("w0/loss", "n1", {in("w0/receive", "n1", 3.1)});
  s.waits("w0/receive", "n1", {in("shard0/send", "n2", 3.2)}, "receive");
  s.c.silent = {{"n2", "no answer within 2 s"}};
  s.node("n2").state = node_state::unreachable;
  s.node("n2").unreachable_seconds = 2.4;
  const auto a = s.explain();
  BOOST_TEST((a.kind == root_kind::node_lost));
  BOOST_TEST(a.node == "n2");
  BOOST_TEST(a.since_seconds == 2.4);
  BOOST_TEST(
      a.root ==
      "Job mnist, step 12 of 400: node n2 (pid 4002) is unreachable, for 2.4 s (no answer within 2 s); "
      "shard0/send is expected there");
  BOOST_TEST(a.also.empty());
}

BOOST_AUTO_TEST_CASE(a_node_that_only_does_not_answer_is_lost_for_as_long_as_it_is_waited_for) {
  scene s;
  s.waits("loss", "c1", {in("w0/send", "n2", 3.0)}, "fetch");
  s.c.silent = {{"n2", "no answer within 2 s"}};
  const auto a = s.explain();
  BOOST_TEST(has(
      a.root,
      "node n2 (pid 4002) does not answer, for 3.0 s (no answer within 2 s); w0/send is expected there"));
}

BOOST_AUTO_TEST_CASE(a_lost_node_outweighs_older_waits) {
  scene s;
  s.waits("loss", "c1", {in("x", "c1", 30.0, 0), in("w1/send", "n2", 5.0, 1)}, "fetch");
  s.waits("x", "c1", {in("program", "", 30.0)}, "feed");
  s.node("n2").state = node_state::dead;
  const auto a = s.explain();
  BOOST_TEST((a.kind == root_kind::node_lost));
  BOOST_TEST(has(a.root, "node n2 (pid 4002) is dead"));
  BOOST_TEST_REQUIRE(a.also.size() == 1u);
  BOOST_TEST(has(a.also[0], "waits for the program to feed it, for 30.0 s"));
}

BOOST_AUTO_TEST_CASE(a_lost_participant_is_mentioned_though_no_chain_leads_there) {
  scene s;
  s.waits("loss", "c1", {in("w0/send", "n1", 0.1)}, "fetch");
  s.add("w0/send", "n1", running, 0.1, "send");
  s.c.silent = {{"n2", "no answer within 2 s"}};
  const auto a = s.explain();
  BOOST_TEST((a.kind == root_kind::moving));
  BOOST_TEST_REQUIRE(a.also.size() == 1u);
  BOOST_TEST(a.also[0] == "node n2 (pid 4002) does not answer (no answer within 2 s)");
  BOOST_TEST(has(a.text(), "\nAlso, node n2 (pid 4002) does not answer"));
}

BOOST_AUTO_TEST_CASE(a_feed_that_never_comes_is_the_root) {
  scene s;
  s.waits("y", "c1", {in("add", "c1", 9.0)}, "fetch");
  s.waits("add", "c1", {in("x", "c1", 9.0)});
  s.waits("x", "c1", {in("program", "", 9.1)}, "feed");
  const auto a = s.explain();
  BOOST_TEST((a.kind == root_kind::program_feed));
  BOOST_TEST(has(a.root, "feed x (c1.2) on node c1 waits for the program to feed it, for 9.1 s"));
  BOOST_TEST(path(a) == "y > add > x > program");
}

BOOST_AUTO_TEST_CASE(of_several_waits_the_oldest_leads_to_the_root) {
  scene s;
  s.waits("y", "c1", {in("busy", "c1", 0.02, 0), in("x", "c1", 40.0, 1)}, "fetch");
  s.add("busy", "c1", running, 0.01);
  s.waits("x", "c1", {in("program", "", 40.0)}, "feed");
  const auto a = s.explain();
  BOOST_TEST((a.kind == root_kind::program_feed));
  BOOST_TEST(a.also.empty());  // what runs for 10 ms is no news
}

BOOST_AUTO_TEST_CASE(a_fetch_that_the_program_does_not_empty_blocks_what_another_fetch_waits_for) {
  scene s;
  s.waits("a", "c1", {in("both", "c1", 7.0)}, "fetch");
  s.waits("both", "c1", {out("b", "c1", 7.5)});
  s.waits("b", "c1", {out("program", "", 8.0)}, "fetch");
  const auto a = s.explain();
  BOOST_TEST((a.kind == root_kind::program_fetch));
  BOOST_TEST(has(
      a.root,
      "the program does not take the values of fetch b (c1.2) on node c1, which is full, for 8.0 s"));
  BOOST_TEST(path(a) == "a > both > b > program");
  BOOST_TEST(a.chain[1].is_credit);
  BOOST_TEST(has(a.text(), "both (c1) waits for a credit of out0 from b, for 7.5 s"));
}

BOOST_AUTO_TEST_CASE(a_full_edge_with_a_slow_consumer_ends_at_the_consumer) {
  scene s;
  s.waits("loss", "c1", {in("fork", "n1", 4.0)}, "fetch");
  s.waits("fork", "n1", {out("slow", "n1", 4.0)});
  s.add("slow", "n1", running, 4.1).ports = {{"in0", "fork", "n1", 0, 1, 1, false, 0}};
  const auto a = s.explain();
  BOOST_TEST((a.kind == root_kind::actor_running));
  BOOST_TEST(a.actor == "slow");
}

BOOST_AUTO_TEST_CASE(ports_against_the_state_are_not_followed) {
  scene s;  // an op that waits for credit has old flags at its inputs, which say nothing
  s.waits("loss", "c1", {in("fork", "n1", 4.0)}, "fetch");
  auto& fork = s.waits("fork", "n1", {out("slow", "n1", 4.0)});
  fork.ports.push_back(in("reader", "n1", 50.0));
  s.add("slow", "n1", running, 4.1);
  s.add("reader", "n1", running, 50.0);
  BOOST_TEST(s.explain().actor == "slow");
}

BOOST_AUTO_TEST_CASE(an_old_circle_of_waits_is_printed) {
  scene s;
  s.waits("loss", "c1", {in("join", "n1", 6.0)}, "fetch");
  s.waits("join", "n1", {in("right", "n1", 5.0)});
  s.waits("right", "n1", {in("fork", "n1", 5.5)});
  s.waits("fork", "n1", {out("join", "n1", 5.2)});
  const auto a = s.explain();
  BOOST_TEST((a.kind == root_kind::cycle));
  BOOST_TEST(a.since_seconds == 5.0);
  BOOST_TEST(has(
      a.root,
      "3 actors wait for each other in a circle, for 5.0 s: join for input from right, right for input from "
      "fork, fork for a credit from join"));
  BOOST_TEST(path(a) == "loss > join > right > fork > join");
}

BOOST_AUTO_TEST_CASE(an_actor_that_waits_for_itself_is_a_circle_of_one) {
  scene s;
  s.waits("loop", "n1", {in("loop", "n1", 5.0)});
  BOOST_TEST(
      has(s.explain().root, "an actor waits for itself, for 5.0 s: loop for input from loop"));
}

BOOST_AUTO_TEST_CASE(a_job_with_nothing_but_a_young_circle_goes_on) {
  scene s;
  s.waits("loss", "c1", {in("a", "n1", 0.004)}, "fetch");
  s.waits("a", "n1", {in("b", "n2", 0.002)});
  s.waits("b", "n2", {in("a", "n1", 0.002)});
  const auto answer = s.explain();
  BOOST_TEST((answer.kind == root_kind::moving));
  BOOST_TEST(answer.chain.empty());
  BOOST_TEST(has(answer.root, "it goes on"));
}

BOOST_AUTO_TEST_CASE(a_young_circle_is_only_the_difference_between_two_answers) {
  scene s;
  s.waits("loss", "c1", {in("a", "n1", 0.004, 0), in("op", "n1", 0.003, 1)}, "fetch");
  s.waits("a", "n1", {in("b", "n2", 0.002)});
  s.waits("b", "n2", {in("a", "n1", 0.002)});
  s.add("op", "n1", running, 1.5);
  BOOST_TEST((s.explain().kind == root_kind::actor_running));
}

BOOST_AUTO_TEST_CASE(a_job_in_which_all_is_young_goes_on_whatever_waits_by_design) {
  scene s;
  auto at_end = in("op", "n1", 95.0);
  at_end.is_sparse = true;
  s.waits("variables", "c1", {at_end}, "fetch");
  s.waits("loss", "c1", {in("op", "n1", 0.2)}, "fetch");
  s.waits("op", "n1", {in("other", "n2", 0.1)});
  s.add("other", "n2", running, 0.02);
  s.add("job/mnist", "c1", running, 60, "job");
  BOOST_TEST((s.explain().kind == root_kind::moving));
  BOOST_TEST(s.explain().text() ==
             "Job mnist, step 12 of 400: it goes on, and no wait is older than 1.0 s.");
  s.c.actors[3].since_seconds = 1.5;  // a long kernel is the root
  BOOST_TEST((s.explain().kind == root_kind::actor_running));
  s.c.actors[3].since_seconds = 0.02;
  s.c.actors[1].ports[0].since_seconds = 1.5;  // so is whatever a long step is at
  BOOST_TEST((s.explain().kind == root_kind::actor_running));
  s.c.actors[1].ports[0].since_seconds = 0.2;
  s.node("n2").state = node_state::unreachable;
  BOOST_TEST((s.explain().kind == root_kind::node_lost));
}

// An item lies in the mailbox of `join`, whose thread runs `slow`: it waits for that, and not for
// who has sent the item and waits for its credit.
BOOST_AUTO_TEST_CASE(who_could_go_on_waits_for_what_its_thread_runs) {
  scene s;
  s.waits("loss", "c1", {in("join", "n1", 6.0)}, "fetch");
  s.waits("fork", "n1", {out("join", "n1", 5.2)});
  s.waits("join", "n1", {{"thread", "slow", "n1", 0, 0, 0, true, 4.0}});
  s.add("slow", "n1", running, 4.0);
  const auto a = s.explain();
  BOOST_TEST((a.kind == root_kind::actor_running));
  BOOST_TEST(a.actor == "slow");
  BOOST_TEST(has(a.text(), "join (n1) waits for its thread, which runs slow, for 4.0 s"));
  BOOST_TEST(has(a.json(), "\"waits_for\":\"thread\""));
  // Another job's.
  s.c.actors[2].ports[0].peer = "big of job other";
  const auto other = s.explain();
  BOOST_TEST((other.kind == root_kind::actor_running));
  BOOST_TEST(has(other.root, "big of job other runs on node n1, for 4.0 s"), other.root);
  // Nobody's: it has just become free.
  s.c.actors[2].ports[0].peer = "";
  s.c.actors[2].state = actor_state::waiting_for_thread;
  BOOST_TEST(has(s.explain().root, "has what it waits for, and its thread has not come to it"));
}

BOOST_AUTO_TEST_CASE(what_has_been_sent_and_has_not_come_is_on_its_way) {
  scene s;
  s.waits("loss", "c1", {in("far", "n1", 6.0)}, "fetch");
  auto comes = in("send", "n2", 5.0);
  comes.items = 6;
  s.waits("far", "n1", {comes}, "receive");
  auto goes = out("far", "n1", 4.9);
  goes.items = 7;
  s.waits("send", "n2", {goes}, "send");
  const auto a = s.explain();
  BOOST_TEST((a.kind == root_kind::on_the_way), a.text());
  BOOST_TEST(has(a.root,
                 "receive far (n1.1) on node n1 has waited for 5.0 s, and what it waits for is on "
                 "its way from n2"),
             a.root);
  // All has come, and no credit has gone back: they do wait for each other.
  s.c.actors[1].ports[0].items = 7;
  s.c.actors[1].ports[0].returned = 5;
  BOOST_TEST((s.explain().kind == root_kind::cycle));
  // The last credit is on its way back.
  s.waits("loss", "c1", {in("send", "n2", 7.0, 1)}, "fetch");
  s.c.actors[1].ports[0].is_waiting = false;
  s.c.actors[1].state = actor_state::running;
  s.c.actors[1].since_seconds = 0.1;
  s.c.actors[1].ports[0].returned = 6;
  BOOST_TEST((s.explain().kind == root_kind::on_the_way));
}

// Its consumer was replaced, and counts anew: nothing is on its way.
BOOST_AUTO_TEST_CASE(what_ends_of_stages_have_counted_is_not_compared) {
  scene s;
  auto takes = in("reads", "n1", 6.0);
  takes.items = 2;
  s.waits("writes", "c1", {takes}, "stage");
  auto puts = out("writes", "c1", 0.0);
  puts.items = 900, puts.is_waiting = false;
  auto comes = in("first", "n1", 5.0);
  comes.items = 900;
  s.waits("reads", "n1", {comes, puts}, "stage");
  s.add("first", "n1", actor_state::running, 4.0, "stage");
  const auto a = s.explain();
  BOOST_TEST((a.kind == root_kind::actor_running), a.text());
}

// All three wait for each other in one look, and for long; in the look before two had seen less.
BOOST_AUTO_TEST_CASE(a_circle_is_believed_if_it_stands_in_two_looks) {
  scene s;
  s.waits("loss", "c1", {in("join", "n1", 6.0)}, "fetch");
  s.waits("join", "n1", {in("right", "n1", 5.0)});
  s.waits("right", "n1", {in("fork", "n1", 5.5)});
  s.waits("fork", "n1", {out("join", "n1", 5.2)});
  const auto look = [&](const scene& before) {
    auto answer = troupe::explain(s.c, "mnist", &before.c);
    BOOST_TEST_REQUIRE(bool(answer));
    return *answer;
  };
  scene before = s;
  BOOST_TEST((look(before).kind == root_kind::cycle));
  const auto changed = [&](auto&& change) {
    scene b = s;
    change(b);
    return look(b);
  };
  BOOST_TEST((changed([](auto& b) { b.c.actors[2].messages_in = 5; }).kind == root_kind::moving));
  BOOST_TEST((changed([](auto& b) { b.c.actors[3].state = running; }).kind == root_kind::moving));
  BOOST_TEST((changed([](auto& b) { b.c.actors.pop_back(); }).kind == root_kind::moving));
  BOOST_TEST((changed([](auto& b) { b.c.jobs[0].epoch = 7; }).kind == root_kind::moving));
  // What it says then is so.
  s.c.actors[2].messages_in = 7;
  const auto a = look(before);
  BOOST_TEST(has(a.root, "it goes on, with 7 messages, and its oldest wait is 6.0 s old"), a.root);
}

BOOST_AUTO_TEST_CASE(a_loop_that_goes_round_is_named) {
  scene s;
  s.waits("loss", "c1", {in("body", "n1", 6.0)}, "fetch");
  s.waits("body", "n1", {in("asks", "n1", 0.0)});
  s.waits("asks", "n1", {in("body", "n1", 0.0)});
  scene before = s;
  before.c.actors[2].iteration = 100;
  s.c.actors[2].iteration = 350;
  s.c.actors[2].messages_in = 250;
  const auto a = troupe::explain(s.c, "mnist", &before.c);
  BOOST_TEST_REQUIRE(bool(a));
  BOOST_TEST((a->kind == root_kind::loop_running));
  BOOST_TEST(a->actor == "asks");
  BOOST_TEST(has(a->root,
                 "the loop of op asks (n1.2) on node n1 goes round: 350 times by now, 250 of them "
                 "between two looks; others have waited for 6.0 s"),
             a->root);
}

BOOST_AUTO_TEST_CASE(an_actor_that_ended_is_the_root_once_it_ended_long_ago) {
  scene s;
  s.waits("loss", "c1", {in("reader", "n1", 5.0, 0), in("op", "n1", 20.0, 1)}, "fetch");
  s.add("reader", "n1", actor_state::ended, 6.0);
  s.add("op", "n1", running, 20.0);
  BOOST_TEST((s.explain().kind == root_kind::actor_ended));
  BOOST_TEST(has(s.explain().root, "op reader (n1.1) on node n1 ended 6.0 s ago"));
  s.c.actors[1].since_seconds = 0.1;  // its last message may be on its way
  BOOST_TEST((s.explain().kind == root_kind::actor_running));
}

BOOST_AUTO_TEST_CASE(an_actor_that_its_node_does_not_know_is_missing) {
  scene s;
  s.waits("loss", "c1", {in("gone", "n1", 5.0)}, "fetch");
  BOOST_TEST((s.explain().kind == root_kind::actor_missing));
  BOOST_TEST(has(s.explain().root, "node n1 answers but has no actor gone of this job"));
  s.c.actors_left_out = 1;
  BOOST_TEST((s.explain().kind == root_kind::unexplained));
  BOOST_TEST(has(s.explain().root, "not among the actors that were listed"));
}

BOOST_AUTO_TEST_CASE(a_peer_on_a_node_that_nobody_lists_is_lost) {
  scene s;
  s.waits("loss", "c1", {in("gone", "n7", 5.0)}, "fetch");
  BOOST_TEST(has(s.explain().root, "node n7 is not known, for 5.0 s; gone is expected there"));
}

BOOST_AUTO_TEST_CASE(an_idle_actor_at_the_end_says_that_nothing_reached_it) {
  scene s;
  s.waits("loss", "c1", {in("w0/send", "n1", 5.0)}, "fetch");
  s.add("w0/send", "n1", actor_state::idle, 5.5, "send");
  BOOST_TEST((s.explain().kind == root_kind::actor_idle));
  BOOST_TEST(has(s.explain().root, "send w0/send (n1.1) on node n1 has not begun, for 5.5 s"));
}

BOOST_AUTO_TEST_CASE(a_wait_without_a_name_is_unexplained) {
  scene s;
  s.waits("loss", "c1", {in("", "", 5.0)}, "fetch");
  BOOST_TEST(has(
      s.explain().root,
      "fetch loss (c1.0) on node c1 is waiting for input, for 5.0 s, but does not say for which actor"));
  s.c.actors[0].ports.clear();
  BOOST_TEST((s.explain().kind == root_kind::unexplained));
}

BOOST_AUTO_TEST_CASE(without_fetches_every_waiting_actor_is_a_start) {
  scene s;  // the client is frozen, so its fetches are not to be seen
  s.waits("w0/send", "n1", {out("loss/receive", "c1", 8.0)}, "send");
  s.waits("w0/loss", "n1", {out("w0/send", "n1", 7.0)});
  s.c.silent = {{"c1", "no answer within 2 s"}};
  const auto a = s.explain();
  BOOST_TEST((a.kind == root_kind::node_lost));
  BOOST_TEST(a.node == "c1");
  BOOST_TEST(has(a.root, "loss/receive is expected there"));
}

BOOST_AUTO_TEST_CASE(whoever_has_a_resource_is_the_root_or_another_job) {
  scene s;
  port_snapshot db{"resource db", "stores", "n1", 0, 0, 0, true, 4.0};
  s.waits("asks", "n1", {db}, "stage");
  s.add("stores", "n1", running, 5.0, "stage");
  BOOST_TEST(has(s.explain().root, "stage stores (n1.1) on node n1 runs, for 5.0 s"));

  scene other;
  db.peer = db.peer_node = "";
  other.waits("asks", "n1", {db}, "stage");
  BOOST_TEST(has(other.explain().root,
                 "stage asks (n1.0) on node n1 waits for resource db, which is lent to somebody "
                 "else than this job, for 4.0 s"),
             other.explain().root);
}

BOOST_AUTO_TEST_CASE(waits_that_last_by_design_are_not_walked_while_anything_else_waits) {
  scene s;
  auto at_end = in("shard/send", "n2", 95.0);
  at_end.is_sparse = true;
  s.waits("variables", "c1", {at_end}, "fetch");
  s.waits("shard/send", "n2", {at_end}, "send");
  s.waits("loss", "c1", {in("w0/send", "n1", 3.0)}, "fetch");
  s.waits("w0/send", "n1", {in("w0/loss", "n1", 3.0)}, "send");
  s.add("w0/loss", "n1", running, 3.0);
  s.node("n1").state = node_state::unreachable;
  BOOST_TEST((s.explain().kind == root_kind::node_lost));
  BOOST_TEST(path(s.explain()) == "loss > w0/send");
  // Also where the program's own fetch does not wait just now.
  s.c.actors[2].state = actor_state::idle;
  s.node("n1").state = node_state::alive;
  BOOST_TEST(path(s.explain()) == "w0/send > w0/loss");
}

BOOST_AUTO_TEST_CASE(at_the_end_of_a_job_the_waits_by_design_are_the_ones_that_count) {
  scene s;
  auto at_end = in("shard/send", "n2", 95.0);
  at_end.is_sparse = true;
  s.waits("variables", "c1", {at_end}, "fetch");
  s.add("loss", "c1", actor_state::ended, 3.0, "fetch");
  s.add("w0/loss", "n1", actor_state::ended, 3.0);
  s.waits("shard/send", "n2", {at_end}, "send");
  s.node("n2").state = node_state::dead;
  BOOST_TEST((s.explain().kind == root_kind::node_lost));
  BOOST_TEST(path(s.explain()) == "variables > shard/send");
}

BOOST_AUTO_TEST_CASE(a_job_without_actors_ends_at_its_lost_participant) {
  scene s;
  BOOST_TEST(has(s.explain().root, "no node lists an actor of it"));
  s.node("n1").state = node_state::dead;
  BOOST_TEST((s.explain().kind == root_kind::node_lost));
  BOOST_TEST(s.explain().node == "n1");
}

BOOST_AUTO_TEST_CASE(actors_of_another_job_of_the_same_name_are_not_mixed_in) {
  scene s;
  auto& other = s.waits("loss", "c1", {in("x", "c1", 90.0)}, "fetch");
  other.job_id = "2a";
  s.waits("loss", "c1", {in("op", "n1", 2.0)}, "fetch");
  s.add("op", "n1", running, 2.0);
  const auto a = s.explain();
  BOOST_TEST((a.kind == root_kind::actor_running));
  BOOST_TEST(a.chain.size() == 1u);
}

BOOST_AUTO_TEST_CASE(ended_jobs_tell_their_end) {
  scene s;
  s.c.jobs[0].state = job_state::failed;
  s.c.jobs[0].ended_seconds = 3;
  s.c.jobs[0].cause = "node n2 died at step 12";
  BOOST_TEST(s.explain().text() ==
             "Job mnist, step 12 of 400: failed 3.0 s ago: node n2 died at step 12.");
  s.c.jobs[0].state = job_state::done;
  BOOST_TEST((s.explain().kind == root_kind::job_done));
  s.c.jobs.clear();
  BOOST_TEST((s.explain().kind == root_kind::no_job));
  BOOST_TEST(troupe::why(s.c) == "No job runs in cluster default.");
}

BOOST_AUTO_TEST_CASE(without_a_name_the_running_job_in_the_worst_state_is_explained) {
  scene s;
  s.add("op", "n1", running, 2.0);
  auto second = s.c.jobs[0];
  second.id = "2a", second.name = "stuck";
  auto third = s.c.jobs[0];
  third.id = "3b", third.name = "over", third.state = job_state::done;
  s.c.jobs.push_back(second), s.c.jobs.push_back(third);
  auto& fetch = s.waits("loss", "c1", {in("w", "n2", 1.0)}, "fetch");
  fetch.job = "stuck", fetch.job_id = "2a";
  s.node("n2").state = node_state::unreachable;
  BOOST_TEST(s.explain().job == "stuck");
  BOOST_TEST(troupe::explain(s.c, "mnist")->job == "mnist");
  BOOST_TEST(troupe::explain(s.c, "3b")->job == "over");
}

BOOST_AUTO_TEST_CASE(an_unknown_job_is_not_found_and_the_known_ones_are_named) {
  const auto a = troupe::explain(scene().c, "minst");
  BOOST_TEST_REQUIRE(!a);
  BOOST_TEST((a.error().code() == error_code::not_found));
  BOOST_TEST(troupe::why(scene().c, "minst") ==
             "no job 'minst' in cluster default; there are: mnist");
}

BOOST_AUTO_TEST_CASE(WH_1_a_long_chain_costs_linear_time_and_is_shortened_in_the_paragraph_only) {
  scene s;
  constexpr int length = 100'000;
  s.c.actors.reserve(length + 2);
  s.waits("loss", "c1", {in("op0", "n1", 5.0)}, "fetch");
  for (int i = 0; i < length; ++i)
    s.waits("op" + std::to_string(i), "n1", {in("op" + std::to_string(i + 1), "n1", 5.0)});
  s.add("op" + std::to_string(length), "n1", running, 5.0);
  const auto a = s.explain();
  BOOST_TEST(a.actor == "op100000");
  BOOST_TEST(a.chain.size() == 100'001u);
  BOOST_TEST(a.text().size() < 2000u);
  BOOST_TEST(has(a.text(), "\n  (99989 more, which --json lists)\n"));
}

BOOST_AUTO_TEST_CASE(one_link_that_is_left_out_is_one_link) {
  scene s;
  s.waits("loss", "c1", {in("op0", "n1", 5.0)}, "fetch");
  for (int i = 0; i < 12; ++i)
    s.waits("op" + std::to_string(i), "n1", {in("op" + std::to_string(i + 1), "n1", 5.0)});
  s.add("op12", "n1", running, 5.0);
  BOOST_TEST(s.explain().chain.size() == 13u);
  BOOST_TEST(has(s.explain().text(), "\n  (1 more, which --json lists)\n  op"));
}

BOOST_AUTO_TEST_CASE(WH_2_the_order_of_the_lists_changes_nothing) {
  scene s;
  s.waits("loss", "c1", {in("a", "n1", 5.0, 0), in("b", "n1", 5.0, 1)}, "fetch");
  s.waits("variables", "c1", {in("b", "n1", 5.0, 0), in("a", "n1", 5.0, 1)}, "fetch");
  s.waits("a", "n1", {in("c", "n2", 5.0)});
  s.waits("b", "n1", {in("d", "n2", 5.0), in("c", "n2", 5.0)});
  s.waits("c", "n2", {in("a", "n1", 5.0)});
  s.waits("d", "n2", {in("b", "n1", 5.0)});
  const auto expected = s.explain().text();
  std::mt19937 random(1);
  for (int i = 0; i < 200; ++i) {
    std::shuffle(s.c.actors.begin(), s.c.actors.end(), random);
    std::shuffle(s.c.nodes.begin(), s.c.nodes.end(), random);
    for (auto& a : s.c.actors) std::shuffle(a.ports.begin(), a.ports.end(), random);
    BOOST_TEST_REQUIRE(s.explain().text() == expected);
  }
}

BOOST_AUTO_TEST_CASE(the_structured_answer_is_one_line_of_JSON) {
  scene s;
  s.waits("loss", "c1", {in("op", "n1", 3.0)}, "fetch");
  s.add("op", "n1", running, 3.5);
  BOOST_TEST(
      s.explain().json() ==
      R"({"kind":"actor running","job":"mnist","actor":"op","node":"n1","since_seconds":3.5,)"
      R"("root":"Job mnist, step 12 of 400: op op (n1.1) on node n1 runs, for 3.5 s",)"
      R"("chain":[{"actor":"loss","id":"c1.0","node":"c1","port":"in0","waits_for":"input","peer":"op","peer_node":"n1",)"
      R"("since_seconds":3.0}],"also":[]})");
}

BOOST_AUTO_TEST_SUITE_END()
