// The gates of a topology over several processes, each alone: its node, its links, its director and
// its program are mailboxes of the test, which says what comes and when.

#include "troupe/actors/flow/gate_actor.hpp"

#include "tests/support/wait.hpp"
#include "troupe/actors/base/scheduler.hpp"
#include "troupe/actors/base/tell.hpp"
#include "troupe/actors/flow/flow_run.hpp"
#include "troupe/actors/messages/stream_messages.hpp"
#include "troupe/actors/messages/work_messages.hpp"
#include "troupe/runtime/flow/flow.hpp"

#include <boost/test/unit_test.hpp>

#include <caf/actor_system.hpp>
#include <caf/scoped_actor.hpp>

#include <atomic>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

using namespace troupe;

namespace {

constexpr job_id job{0x77};
constexpr node_id program_id{1}, n1{2}, n2{3}, stranger{9};

// What it has learnt is lost with its node.
struct adds {
  std::int64_t sum = 0;
  static constexpr auto fields = troupe::fields<&adds::sum>("sum");
  std::int64_t operator()(std::int64_t x) {
    if (x == 666) throw std::runtime_error("item of doom");
    return sum += x;
  }
};
// Others make again what it had.
struct negates {
  std::int64_t operator()(std::int64_t x) const { return -x; }
};
struct cannot_open {
  std::int64_t operator()(std::int64_t x) const { return x; }
  result<void> open() { return error(error_code::not_found, "no such table"); }
};
struct cannot_be_made {
  static inline std::atomic<bool> is_on_node{false};
  static inline std::atomic<bool> throws_exception{true};
  cannot_be_made() {
    if (!is_on_node) return;
    if (throws_exception) throw std::runtime_error("no room for it");
    throw 7;
  }
  std::int64_t operator()(std::int64_t x) const { return x; }
};

const stage_library& gate_stages() {
  static const stage_library all(
      "gates", "1",
      {stage_of<adds>("adds"), stage_of<negates>("negates"), stage_of<cannot_open>("cannot_open"),
       stage_of<cannot_be_made>("cannot_be_made")});
  return all;
}

// One system for all, and whom the test stands in for.
struct mailboxes {
  mailboxes()
      : system(config.pinned()), node(system), program(system), link(system), director(system) {}

  template <class Message>
  void say(Message m) {
    tell(nullptr, gate, std::move(m));
  }
  // The next message of that type; what else has come is kept.
  template <class Message>
  Message next(caf::scoped_actor& who, const std::string& what,
               const std::source_location& where = std::source_location::current()) {
    std::optional<Message> got;
    who->receive([&](Message& m) { got = std::move(m); }, caf::after(test::hang) >> [] {});
    after_message();
    if (!got) test::fail_waiting("for", what, test::hang, where);
    return std::move(*got);
  }
  template <class Message>
  bool has(caf::scoped_actor& who) {
    bool has_come = false;
    who->receive([&](Message&) { has_come = true; },
                 caf::after(std::chrono::milliseconds(0)) >> [] {});
    after_message();
    return has_come;
  }
  std::vector<std::byte> word_to(node_id to, part_word kind) {
    auto w = next<send_word>(node, "a word");
    BOOST_TEST((w.job == job));
    BOOST_TEST((w.to == to));
    BOOST_TEST_REQUIRE(word_of(w.bytes).has_value());
    BOOST_TEST(static_cast<int>(*word_of(w.bytes)) == static_cast<int>(kind));
    return std::move(w.bytes);
  }
  void is_to_bind(node_id peer) {
    BOOST_TEST((next<bind_stream>(node, "a stream to be bound").peer == peer));
  }
  caf::actor handle(caf::scoped_actor& who) { return caf::actor_cast<caf::actor>(who); }
  void bound(node_id peer, std::string error = "") {
    say(stream_bound{peer, error.empty() ? handle(link) : caf::actor(), error});
  }
  void came(node_id from, std::vector<std::byte> bytes) {
    say(work_word_came{job, from, std::move(bytes)});
  }

  scheduler_config config;
  caf::actor_system system;
  caf::scoped_actor node, program, link, director;
  caf::actor gate;
};

// source -> `stage`, on nodes -> an end.
template <class Stage>
topology_description describe_one(flow_graph& g, Stage stage, stage_options o) {
  o.on = "/job:worker";
  collect(map(source(g, [] { return std::optional<std::int64_t>(); }), stage, o));
  BOOST_TEST_REQUIRE(bool(g.check()));
  const std::vector<place_node> nodes{{"n1", "worker", {}}, {"n2", "worker", {}}};
  const auto places = place_on_nodes(g, nodes);
  BOOST_TEST_REQUIRE(bool(places));
  auto d = describe(g, *places, {&gate_stages()});
  BOOST_TEST_REQUIRE(bool(d));
  d->name = "lines";
  d->processes = {{raw(program_id), "program", "host"}, {raw(n1), "n1", "host"}};
  if (std::ranges::find(*places, 2U) != places->end())
    d->processes.push_back({raw(n2), "n2", "host"});
  mark_elsewhere(g, *places);
  return std::move(*d);
}

tensor items(const flow_graph& g, std::uint32_t edge, const std::vector<std::int64_t>& values,
             bool is_last = false) {
  std::vector<flow_item> all;
  for (auto v : values) {
    flow_item it;
    it.value = any_value(std::int64_t{v});
    it.origin.number = all.size();
    it.bytes = sizeof v;
    all.push_back(std::move(it));
  }
  auto frame = items_frame(edge, all, is_last, far_end_of(g, edge, true), 0, 1 << 20);
  BOOST_TEST_REQUIRE(bool(frame));
  return *frame;
}
std::vector<std::int64_t> values_of(const flow_graph& g, std::uint32_t edge, const tensor& frame) {
  auto read = items_of(frame, far_end_of(g, edge, true), 0);
  BOOST_TEST_REQUIRE(read.has_value());
  std::vector<std::int64_t> all;
  for (auto& it : read->items)
    if (it.value) all.push_back(it.value.get<std::int64_t>());
  return all;
}
tensor no_frame() {
  auto t = tensor::make({dtype::u8, {3}});
  for (auto& b : t.bytes()) b = std::byte{99};
  return t;
}

// --- the program's -------------------------------------------------------------------------------

struct program_gate : mailboxes {
  // The system waits for it.
  ~program_gate() {
    if (gate)
      say(end_parts{std::make_shared<std::promise<void>>(), false, error(error_code::failed, "")});
    gate = nullptr;
  }

  template <class Stage>
  void begin(Stage stage, stage_options o = {}) {
    graph = std::make_shared<flow_graph>();
    what = describe_one(*graph, stage, o);
    for (std::uint32_t i = 0; i < what.edges.size(); ++i)
      graph->edge_at(i).items_max = what.edges[i].items_max;
    const flow_group whole(graph);
    BOOST_TEST_REQUIRE(!whole.failure());
    view = view_of(graph, whole);
    view->pulses.push_back(std::make_shared<group_pulse>());
    auto& scheduler = static_cast<pinned_scheduler&>(system.scheduler());
    gate = spawn_program_gate(system, scheduler.service(),
                              {handle(node), job, what, view, handle(program)});
    BOOST_TEST((next<join_work>(node, "it joins").job == job));
    for (std::uint32_t i = 1; i < what.processes.size(); ++i) {
      is_to_bind(node_id{what.processes[i].id});
      const auto told =
          body_of<place_word>(word_to(node_id{what.processes[i].id}, part_word::place));
      BOOST_TEST_REQUIRE(told.has_value());
      BOOST_TEST(told->own == i);
      BOOST_TEST(told->topology == raw(job));
      BOOST_TEST(told->what.name == "lines");
    }
  }
  // On n1 alone: stage 1, which edge 0 leads to and edge 1 from.
  void begin_one() { begin(adds{}); }
  void begin_replicas() { begin(negates{}, {.replicas = 2}); }
  void place_all() {
    for (std::uint32_t i = 1; i < what.processes.size(); ++i) {
      bound(node_id{what.processes[i].id});
      came(node_id{what.processes[i].id}, word_bytes(part_word::placed));
    }
    placed = next<parts_placed>(program, "all are placed");
  }
  void begin_director() {
    auto r = std::make_shared<flow_routes>();
    r->from.assign(what.edges.size(), nullptr);
    r->to.assign(what.edges.size(), nullptr);
    for (std::uint32_t i = 0; i < what.edges.size(); ++i) {
      if (what.stages[what.edges[i].from].process == 0) r->from[i] = handle(link);
      if (what.stages[what.edges[i].to].process == 0) r->to[i] = handle(link);
    }
    say(flow_begin{nullptr, std::move(r), handle(director)});
  }
  // It runs, as far as this gate is concerned.
  void start() {
    place_all();
    begin_director();
    say(flow_resume{});
  }
  void comes(node_id from, tensor frame) { say(stream_value{from, std::move(frame)}); }
  error failure() {
    auto e = next<parts_ended>(program, "it has failed");
    BOOST_TEST(e.has_failed);
    return std::move(e.why);
  }
  void end(bool has_failed = false, const std::string& why = "") {
    if (!gate) return;
    auto left = std::make_shared<std::promise<void>>();
    auto has_left = left->get_future();
    say(end_parts{std::move(left), has_failed, error(error_code::failed, why)});
    gate = nullptr;
    BOOST_TEST_REQUIRE((has_left.wait_for(test::hang) == std::future_status::ready),
                       "waited for the gate to leave");
    (void)next<leave_work>(node, "it leaves");
  }

  std::shared_ptr<flow_graph> graph;
  topology_description what;
  std::shared_ptr<topology_view> view;
  parts_placed placed;
};

// --- a node's ------------------------------------------------------------------------------------

struct node_gate : mailboxes {
  node_gate() {
    auto& scheduler = static_cast<pinned_scheduler&>(system.scheduler());
    gate = spawn_node_gate(
        {{&system, scheduler.service(), handle(node), n1, 1}, job, program_id, {&gate_stages()}});
  }
  ~node_gate() {
    if (gate) came(program_id, word_bytes(part_word::end, refused_word{}));
    gate = nullptr;  // the system waits for it
  }
  template <class Stage>
  void place(Stage stage) {
    what = describe_one(graph, stage, {});
    came(program_id, word_bytes(part_word::place, place_word{1, raw(job), what}));
  }
  // It runs `adds`.
  void start() {
    place(adds{});
    is_to_bind(program_id);
    bound(program_id);
    (void)word_to(program_id, part_word::placed);
    came(program_id, word_bytes(part_word::start));
    listing = next<list_work>(node, "tools can see it").work;
  }
  void comes(tensor frame) { say(stream_value{program_id, std::move(frame)}); }
  refused_word refusal(part_word kind = part_word::refused) {
    for (;;) {
      auto w = next<send_word>(node, "a refusal");
      if (word_of(w.bytes) == part_word::counts) continue;
      BOOST_TEST((word_of(w.bytes) == kind));
      const auto body = body_of<refused_word>(w.bytes);
      BOOST_TEST_REQUIRE(body.has_value());
      return *body;
    }
  }
  void has_left() { (void)next<leave_work>(node, "it leaves"); }

  flow_graph graph;
  topology_description what;
  std::shared_ptr<const listed_work> listing;
};

bool says(const std::string& text, std::string_view what) {
  return text.find(what) != std::string::npos;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(gate_actor)

BOOST_FIXTURE_TEST_CASE(parts_are_placed_when_all_nodes_have_said_so_and_streams_are_bound,
                        program_gate) {
  begin_replicas();
  bound(n1);
  came(n1, word_bytes(part_word::placed));
  came(n2, word_bytes(part_word::placed));
  say(start_parts{});  // an answer that comes after all before
  (void)word_to(n1, part_word::start);
  (void)word_to(n2, part_word::start);
  BOOST_TEST(!has<parts_placed>(program));
  bound(n2);
  placed = next<parts_placed>(program, "all are placed");
  BOOST_TEST_REQUIRE(placed.far.size() == what.edges.size());
  for (std::uint32_t i = 0; i < what.edges.size(); ++i) {
    const bool leads_away =
        what.stages[what.edges[i].from].process == 0 && what.stages[what.edges[i].to].process != 0;
    const bool leads_here =
        what.stages[what.edges[i].to].process == 0 && what.stages[what.edges[i].from].process != 0;
    BOOST_TEST(placed.far[i].has_value() == (leads_away || leads_here));
    if (placed.far[i]) BOOST_TEST((placed.far[i]->link == handle(link)));
  }
  // Bound once more, and placed once more: it is told once.
  bound(n2);
  came(n2, word_bytes(part_word::placed));
  end();
  BOOST_TEST(!has<parts_placed>(program));
}

BOOST_FIXTURE_TEST_CASE(what_nodes_count_is_kept_and_the_end_comes_when_all_are_over,
                        program_gate) {
  begin_one();
  start();
  counts_word c;
  stage_count one;
  one.stage = 1;
  one.items_in = 11;
  one.skipped = 2;
  one.busy = 0.5F;
  auto of_another = one;
  of_another.stage = 0;
  auto of_none = one;
  of_none.stage = 1000;
  c.stages = {one, of_another, of_none};
  came(n1, word_bytes(part_word::counts, c));
  came(n1, word_bytes(part_word::over));
  BOOST_TEST(!next<parts_ended>(program, "all parts are over").has_failed);
  BOOST_TEST(view->stages[1]->items_in == 11U);
  BOOST_TEST(view->stages[1]->skipped == 2U);
  BOOST_TEST(view->busy[1] == 0.5F);
  BOOST_TEST(view->stages[0]->items_in == 0U);  // counts of others are not its to tell
  came(n1, word_bytes(part_word::over));
  end();
  BOOST_TEST(!has<parts_ended>(program));
  const auto how = body_of<refused_word>(word_to(n1, part_word::end));
  BOOST_TEST_REQUIRE(how.has_value());
  BOOST_TEST(int(how->code) == 0);
}

BOOST_FIXTURE_TEST_CASE(nodes_are_told_how_it_failed, program_gate) {
  begin_one();
  start();
  end(true, "another stage did");
  const auto how = body_of<refused_word>(word_to(n1, part_word::end));
  BOOST_TEST_REQUIRE(how.has_value());
  BOOST_TEST(int(how->code) == static_cast<int>(error_code::failed));
  BOOST_TEST(how->why == "another stage did");
}

BOOST_FIXTURE_TEST_CASE(what_several_nodes_lack_is_told_together, program_gate) {
  begin_replicas();
  bound(n1), bound(n2);
  const auto lack = [](error_code code, const char* why) {
    return word_bytes(part_word::refused, refused_word{static_cast<std::uint8_t>(code), why});
  };
  came(n1, lack(error_code::not_found, "has no stage library gates"));
  came(n2, lack(error_code::not_found, "has gates 0.9, not 1"));
  const auto why = failure();
  BOOST_TEST((why.code() == error_code::not_found));
  const auto text = why.message();
  BOOST_TEST(text.starts_with("n1 has no stage library gates; negates/0 (gate_actor_test.cpp:"),
             text);
  BOOST_TEST(says(text, ") is to run there: start it with --load FILE, the library's; n2 has"),
             text);
  BOOST_TEST(text.ends_with("build the program and the node's library of the same source"), text);
}

BOOST_FIXTURE_TEST_CASE(a_refusal_without_a_reason_or_a_known_code_is_one_too, program_gate) {
  begin_one();
  bound(n1);
  came(n1, word_bytes(part_word::refused, refused_word{200, ""}));
  const auto why = failure();
  BOOST_TEST((why.code() == error_code::failed));
  BOOST_TEST(why.message().starts_with("n1 refuses; adds ("), why.message());
}

BOOST_FIXTURE_TEST_CASE(a_stage_that_cannot_begin_is_told_by_its_own_line, program_gate) {
  begin_one();
  bound(n1);
  came(n1, word_bytes(part_word::refused,
                      refused_word{static_cast<std::uint8_t>(error_code::not_found),
                                   "adds (x.cpp:1): it cannot begin: no such table"}));
  BOOST_TEST(failure().message() == "adds (x.cpp:1): it cannot begin: no such table; on n1");
}

BOOST_FIXTURE_TEST_CASE(what_is_not_linked_yet_is_tried_again_at_each_tick, program_gate) {
  begin_one();
  say(gate_tick{});  // nothing is known to be missing
  bound(n1, "no link leads there");
  came(n1, word_bytes(part_word::unlinked, text_word{""}));
  say(gate_tick{});
  is_to_bind(n1);
  (void)word_to(n1, part_word::again);
  say(gate_tick{});
  BOOST_TEST(!has<bind_stream>(node));
  place_all();
  say(gate_tick{});  // no more
  end();
  (void)word_to(n1, part_word::end);
  BOOST_TEST(!has<bind_stream>(node));
}

BOOST_FIXTURE_TEST_CASE(a_stream_that_breaks_later_ends_it, program_gate) {
  begin_one();
  start();
  bound(stranger, "of no interest");
  bound(n1, "no memory for a value");
  BOOST_TEST(failure().message() == "no memory for a value");
}

BOOST_FIXTURE_TEST_CASE(a_word_that_does_not_arrive_ends_it, program_gate) {
  begin_one();
  start();
  say(word_refused{job, stranger, "of no interest"});
  say(word_refused{job, n1, "no link leads there"});
  const auto why = failure();
  BOOST_TEST((why.code() == error_code::unreachable));
  BOOST_TEST(why.message() == "n1: no link leads there");
}

BOOST_AUTO_TEST_CASE(GT_3_words_that_nobody_knows_end_it_with_the_name_of_who_sent_them) {
  const std::byte cut_off[] = {std::byte{1}};
  const auto with = [&](part_word kind) {
    auto w = word_bytes(kind);
    w.insert(w.end(), std::begin(cut_off), std::end(cut_off));
    return w;
  };
  const std::vector<std::vector<std::byte>> words{
      {},
      {std::byte{0}},
      {std::byte{200}},
      word_bytes(part_word::start),  // only a program says that
      with(part_word::counts),
      with(part_word::unlinked),
      with(part_word::refused),
      with(part_word::failed)};
  for (const auto& w : words) {
    program_gate g;
    g.begin_one();
    g.came(stranger, w);
    g.came(program_id, w);
    g.came(n1, w);
    BOOST_TEST(g.failure().message() == "n1: it sent a word that nobody knows");
    g.came(n1, w);  // the first failure counts
    g.end();
    BOOST_TEST(!g.has<parts_ended>(g.program));
  }
}

BOOST_FIXTURE_TEST_CASE(frames_go_to_whom_they_are_for_in_order, program_gate) {
  begin_one();
  place_all();
  begin_director();
  // GT-1: until it may go on, it keeps them.
  comes(n1, items(*graph, 1, {1, 2}));
  comes(stranger, no_frame());
  say(flow_halt{7});
  auto halted = next<group_halted>(director, "it stands still");
  BOOST_TEST(halted.group == 1U);
  BOOST_TEST(halted.number == 7U);
  BOOST_TEST(!has<flow_frame>(link));
  comes(n1, items(*graph, 1, {3}, true));
  say(flow_resume{});
  for (const auto& wanted : {std::vector<std::int64_t>{1, 2}, std::vector<std::int64_t>{3}}) {
    const auto f = next<flow_frame>(link, "items of a node");
    BOOST_TEST(f.edge == 1U);
    BOOST_TEST(values_of(*graph, 1, f.frame) == wanted, boost::test_tools::per_element());
  }
  // How many were taken there, and that no more are wanted.
  view->edges[0]->put_items = 10;
  comes(n1, taken_frame(0, 4, 40));
  say(flow_halt{8});
  (void)next<group_halted>(director, "it stands still");
  BOOST_TEST(view->edges[0]->taken_items == 4U);
  BOOST_TEST(view->edges[0]->taken_bytes == 40U);
  BOOST_TEST(!has<flow_room>(link));
  say(flow_resume{});
  view->edges[0]->producer_waits = true;
  comes(n1, taken_frame(0, 5, 50));
  BOOST_TEST(next<flow_room>(link, "room").edge == 0U);
  BOOST_TEST(!view->edges[0]->producer_waits);
  comes(n1, closed_frame(0));
  BOOST_TEST(next<flow_closed>(link, "nobody wants more").edge == 0U);
  // It surrenders without a part, and then passes nothing on.
  say(flow_halt{9});
  (void)next<group_halted>(director, "it stands still");
  say(flow_surrender{});
  const auto given = next<group_surrendered>(director, "it surrenders");
  BOOST_TEST(given.group == 1U);
  BOOST_TEST((given.part == nullptr));
}

BOOST_AUTO_TEST_CASE(GT_3_frames_that_are_none_end_it_with_the_name_of_who_sent_them) {
  const auto refused = [](auto make) {
    program_gate g;
    g.begin_one();
    g.start();
    g.view->edges[0]->put_items = 10;
    g.view->edges[0]->taken_items = 5;
    g.comes(n1, make(g));
    BOOST_TEST(g.failure().message() == "n1: it sent what is no frame");
    g.end();
    BOOST_TEST(!g.has<flow_frame>(g.link));
    BOOST_TEST(!g.has<flow_closed>(g.link));
    BOOST_TEST(g.view->edges[0]->taken_items == 5U);
  };
  refused([](auto&) { return no_frame(); });
  refused([](auto&) { return closed_frame(1000); });
  refused([](auto&) { return closed_frame(1); });            // whose producer it is itself
  refused([](auto& g) { return items(*g.graph, 0, {1}); });  // that it takes
  refused([](auto&) { return taken_frame(0, 11, 0); });      // more than were put
  refused([](auto&) { return taken_frame(0, 4, 0); });       // fewer than before
  refused([](auto&) {
    const auto whole = taken_frame(0, 6, 0);
    auto part = tensor::make({dtype::u8, {static_cast<std::int64_t>(whole.size_bytes()) - 1}});
    std::ranges::copy(whole.bytes().first(part.size_bytes()), part.bytes().begin());
    return part;
  });
}

BOOST_FIXTURE_TEST_CASE(a_lost_node_whose_stage_had_learnt_something_ends_it, program_gate) {
  begin_one();
  start();
  say(node_lost{stranger, "n9", "it died"});
  say(node_lost{n1, "n1", "it died"});
  BOOST_TEST(failure().message() ==
             "n1 was lost (it died); adds ran there; what adds had learnt is lost: a stage that "
             "keeps it in a member `state` survives");
  BOOST_TEST(view->stages[1]->is_over);
  BOOST_TEST(!has<lose_stages>(director));
}

BOOST_FIXTURE_TEST_CASE(a_node_that_is_lost_before_anything_runs_ends_it, program_gate) {
  begin_replicas();
  say(node_lost{n2, "n2", "it died"});
  const auto why = failure();
  BOOST_TEST((why.code() == error_code::unreachable));
  BOOST_TEST(why.message() ==
             "n2 was lost (it died); negates/1 ran there, before the topology had begun");
}

BOOST_FIXTURE_TEST_CASE(GT_4_what_a_lost_node_had_is_made_again_and_it_is_not_heard_any_more,
                        program_gate) {
  begin_replicas();
  start();
  std::uint32_t lost = 0, edge_of_lost = 0, edge_of_other = 0;
  for (std::uint32_t i = 0; i < what.stages.size(); ++i)
    if (what.stages[i].process == 2) lost = i;
  for (std::uint32_t i = 0; i < what.edges.size(); ++i) {
    if (what.stages[what.edges[i].from].process == 2) edge_of_lost = i;
    if (what.stages[what.edges[i].from].process == 1) edge_of_other = i;
  }
  say(flow_halt{1});
  comes(n2, items(*graph, edge_of_lost, {1}));
  comes(n1, items(*graph, edge_of_other, {2}));
  say(node_lost{n2, "n2", "it died"});
  const auto stages = next<lose_stages>(director, "what is lost").stages;
  BOOST_TEST(stages == std::vector{lost}, boost::test_tools::per_element());
  BOOST_TEST(next<part_lost>(program, "a line about it").text ==
             "n2 was lost (it died); negates/1 ran there: what it had is made again");
  say(node_lost{n2, "n2", "once more"});
  comes(n2, items(*graph, edge_of_lost, {3}));
  came(n2, word_bytes(part_word::failed, refused_word{1, "of no interest"}));
  say(flow_resume{});
  const auto f = next<flow_frame>(link, "items of the other node");
  BOOST_TEST(f.edge == edge_of_other);
  // The other one is enough for an end; the lost one is told nothing.
  came(n1, word_bytes(part_word::over));
  BOOST_TEST(!next<parts_ended>(program, "all parts are over").has_failed);
  end();
  BOOST_TEST(!has<flow_frame>(link));
  BOOST_TEST(!has<part_lost>(program));
  (void)word_to(n1, part_word::end);
  BOOST_TEST(!has<send_word>(node));
}

BOOST_FIXTURE_TEST_CASE(a_node_that_goes_after_all_has_come_is_no_loss, program_gate) {
  begin_one();
  start();
  comes(n1, items(*graph, 1, {1}, true));
  came(n1, word_bytes(part_word::over));
  say(node_lost{n1, "n1", "it left"});
  BOOST_TEST(!next<parts_ended>(program, "all parts are over").has_failed);
  end();
  BOOST_TEST(!has<parts_ended>(program));
}

BOOST_FIXTURE_TEST_CASE(what_a_node_sent_before_it_went_may_be_missing, program_gate) {
  begin_one();
  start();
  came(n1, word_bytes(part_word::over));
  BOOST_TEST(!next<parts_ended>(program, "all parts are over").has_failed);
  say(node_lost{n1, "n1", "it left"});
  BOOST_TEST(failure().message().starts_with("n1 was lost (it left); adds ran there"));
}

BOOST_FIXTURE_TEST_CASE(a_program_that_is_out_of_its_cluster_is_told, program_gate) {
  begin_one();
  start();
  say(node_lost{program_id, "program", "it was silent for too long"});
  BOOST_TEST(failure().message() ==
             "this program is out of its cluster: it was silent for too long");
}

BOOST_FIXTURE_TEST_CASE(a_node_runs_its_part_between_its_streams, node_gate) {
  start();
  const auto j = listing->job("n1");
  BOOST_TEST(j.name == "lines");
  BOOST_TEST(j.client == "");
  BOOST_TEST((j.state == job_state::running));
  comes(items(graph, 0, {1, 2, 3}));
  comes(items(graph, 0, {4}, true));
  std::vector<std::int64_t> got;
  bool is_last = false;
  while (!is_last) {
    const auto m = next<send_stream>(link, "what it makes of the items");
    BOOST_TEST((m.job == job));
    const auto head = head_of(m.value);
    BOOST_TEST_REQUIRE(head.has_value());
    if (head->kind != frame_kind::items) continue;
    BOOST_TEST(head->edge == 1U);
    for (const auto v : values_of(graph, 1, m.value)) got.push_back(v);
    is_last = head->is_last;
  }
  BOOST_TEST(got == (std::vector<std::int64_t>{1, 3, 6, 10}), boost::test_tools::per_element());
  // The last counts come before the end.
  std::uint64_t counted = 0;
  for (bool is_over = false; !is_over;) {
    const auto w = next<send_word>(node, "its end");
    if (word_of(w.bytes) == part_word::over) is_over = true;
    if (const auto c = body_of<counts_word>(w.bytes); word_of(w.bytes) == part_word::counts && c)
      for (const auto& s : c->stages) {
        BOOST_TEST(s.stage == 1U);
        counted = s.items_in;
      }
  }
  BOOST_TEST(counted == 4U);
  came(program_id, word_bytes(part_word::end, refused_word{}));
  has_left();
  BOOST_TEST((listing->job("n1").state == job_state::done));
}

BOOST_FIXTURE_TEST_CASE(a_stage_that_fails_on_a_node_is_told, node_gate) {
  start();
  comes(items(graph, 0, {666}));
  const auto why = refusal(part_word::failed);
  BOOST_TEST(int(why.code) == static_cast<int>(error_code::failed));
  BOOST_TEST(says(why.why, "adds (gate_actor_test.cpp:"), why.why);
  BOOST_TEST(says(why.why, "item of doom"), why.why);
  came(program_id, word_bytes(part_word::end, refused_word{1, "how its program tells it"}));
  has_left();
  const auto j = listing->job("n1");
  BOOST_TEST((j.state == job_state::failed));
  BOOST_TEST(says(j.cause, "item of doom"), j.cause);  // known first here
}

BOOST_FIXTURE_TEST_CASE(what_the_program_says_of_the_end_is_listed, node_gate) {
  start();
  came(program_id, word_bytes(part_word::end, refused_word{1, "another stage did"}));
  has_left();
  BOOST_TEST((listing->job("n1").state == job_state::failed));
  BOOST_TEST(listing->job("n1").cause == "another stage did");
}

BOOST_FIXTURE_TEST_CASE(GT_5_a_part_ends_with_its_program, node_gate) {
  start();
  say(node_lost{stranger, "n9", "it died"});
  say(node_lost{program_id, "program", "it died"});
  has_left();
  BOOST_TEST((listing->job("n1").state == job_state::failed));
  BOOST_TEST(listing->job("n1").cause == "its program was lost");
  gate = nullptr;
}

BOOST_FIXTURE_TEST_CASE(a_part_that_has_not_started_ends_at_once, node_gate) {
  place(adds{});
  is_to_bind(program_id);
  came(stranger, word_bytes(part_word::end, refused_word{}));  // is not its program
  came(program_id, {});                                        // nor is that a word
  came(program_id, word_bytes(part_word::start));              // it is not placed
  came(program_id, word_bytes(part_word::end, refused_word{}));
  has_left();
  BOOST_TEST(!has<send_word>(node));
  BOOST_TEST(!has<list_work>(node));
  gate = nullptr;
}

BOOST_FIXTURE_TEST_CASE(a_node_that_is_told_of_no_topology_leaves, node_gate) {
  came(program_id, word_bytes(part_word::start));
  has_left();
  BOOST_TEST(!has<send_word>(node));
  gate = nullptr;
}

BOOST_FIXTURE_TEST_CASE(streams_of_a_node_are_bound_again_when_its_program_says_so, node_gate) {
  place(adds{});
  is_to_bind(program_id);
  bound(program_id, "no link leads there");
  BOOST_TEST(body_of<text_word>(word_to(program_id, part_word::unlinked))->text ==
             "no link leads there");
  came(program_id, word_bytes(part_word::again));
  is_to_bind(program_id);
  bound(stranger);
  bound(program_id);
  (void)word_to(program_id, part_word::placed);
  // One that breaks later ends the part.
  bound(program_id, "no memory for a value");
  BOOST_TEST(refusal(part_word::failed).why == "no memory for a value");
  has_left();
  gate = nullptr;
}

BOOST_FIXTURE_TEST_CASE(GT_3_a_frame_that_is_none_ends_the_part_of_a_node, node_gate) {
  start();
  comes(no_frame());
  BOOST_TEST(refusal(part_word::failed).why == "program: it sent what is no frame");
  has_left();
  gate = nullptr;
}

BOOST_FIXTURE_TEST_CASE(items_of_no_source_end_the_part_of_a_node, node_gate) {
  start();
  std::vector<flow_item> some(1);
  some[0].value = any_value(std::int64_t{1});
  some[0].origin.source = 1000;
  auto frame = items_frame(0, some, false, far_end_of(graph, 0, true), 0, 1 << 20);
  BOOST_TEST_REQUIRE(bool(frame));
  comes(*frame);
  const auto why = refusal(part_word::failed).why;
  BOOST_TEST(says(why, "source ("), why);
  BOOST_TEST(says(why, "): what came from another process is no item"), why);
}

BOOST_AUTO_TEST_CASE(what_a_node_cannot_run_it_refuses_and_leaves) {
  const auto refused = [](auto place) {
    node_gate g;
    place(g);
    const auto why = g.refusal();
    g.has_left();
    g.gate = nullptr;
    return why;
  };
  BOOST_TEST(refused([](auto& g) { g.came(program_id, word_bytes(part_word::place)); }).why ==
             "was told of a topology in bytes that are none");
  BOOST_TEST(refused([](auto& g) {
               auto d = describe_one(g.graph, adds{}, {});
               d.stages[1].library = "others";
               g.came(program_id, word_bytes(part_word::place, place_word{1, raw(job), d}));
             }).why == "has no stage library others");
  BOOST_TEST(refused([](auto& g) {
               auto d = describe_one(g.graph, adds{}, {});
               d.processes[1].id = raw(stranger);
               g.came(program_id, word_bytes(part_word::place, place_word{1, raw(job), d}));
             }).why == "was told of a topology as if it were another node");
  const auto why = refused([](auto& g) { g.place(cannot_open{}); });
  BOOST_TEST(int(why.code) == static_cast<int>(error_code::not_found));
  BOOST_TEST(says(why.why, "cannot_open (gate_actor_test.cpp:"), why.why);
  BOOST_TEST(says(why.why, "it cannot begin: no such table"), why.why);
  for (const bool throws_exception : {true, false}) {
    cannot_be_made::throws_exception = throws_exception;
    const auto told = refused([](auto& g) {
      auto d = describe_one(g.graph, cannot_be_made{}, {});
      cannot_be_made::is_on_node = true;
      g.came(program_id, word_bytes(part_word::place, place_word{1, raw(job), d}));
    });
    cannot_be_made::is_on_node = false;
    BOOST_TEST(told.why == (throws_exception ? "cannot make a stage: no room for it"
                                             : "cannot make a stage: it threw no exception"));
  }
}

BOOST_AUTO_TEST_SUITE_END()
