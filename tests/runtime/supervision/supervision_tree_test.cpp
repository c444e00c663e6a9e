#include "troupe/runtime/supervision/supervision_tree.hpp"

#include <boost/test/unit_test.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <set>

using namespace troupe;

namespace {

constexpr std::int64_t ms = 1'000'000, s = 1000 * ms;
constexpr restart_limits few{.failures_max = 3,
                             .window_ns = 10 * s,
                             .in_vain_max = 100,
                             .delay_ns = 100 * ms,
                             .delay_max_ns = 300 * ms};
const std::string boom = "boom";

// A tree whose actions are carried out at once, unless the test does it: "start a", "stop b".
struct driver {
  supervision_tree tree;
  std::map<std::string, supervised_id> id;
  std::map<supervised_id, std::string> name;
  std::vector<std::string> done;
  std::int64_t now = 0;
  bool by_hand = false;

  explicit driver(restart_strategy strategy, const restart_limits& limits = few)
      : tree("test", strategy, limits) {}

  driver& child(const std::string& n, restart_kind kind = restart_kind::permanent,
                supervised_id under = top_supervisor) {
    return remember(n, tree.add_child(under, n, kind));
  }
  driver& supervisor(const std::string& n, restart_strategy strategy,
                     const restart_limits& limits = few) {
    return remember(n, tree.add_supervisor(top_supervisor, n, strategy, limits));
  }
  driver& remember(const std::string& n, supervised_id i) {
    id[n] = i;
    name[i] = n;
    return *this;
  }

  void carry_out() {
    for (auto actions = tree.take_actions(); !actions.empty(); actions = tree.take_actions())
      for (const auto& a : actions) act(a);
  }
  void act(const supervision_action& a) {
    switch (a.kind) {
      case supervision_action_kind::start:
        done.push_back("start " + name.at(a.who));
        if (!by_hand) tree.on_started(a.who, now);
        return;
      case supervision_action_kind::stop:
        done.push_back("stop " + name.at(a.who));
        if (!by_hand) tree.on_ended(a.who, std::nullopt, now);
        return;
      case supervision_action_kind::escalate:
        done.push_back("escalate " + a.cause.where_and_why());
        return;
      case supervision_action_kind::give_up:
        done.push_back("give up " + a.cause.where_and_why());
        return;
    }
  }
  void start() { tree.start(now), carry_out(); }
  void started(const std::string& n) { tree.on_started(id.at(n), now), carry_out(); }
  void fail(const std::string& n, bool is_derived = false) {
    tree.on_ended(id.at(n), boom, now, is_derived), carry_out();
  }
  void end(const std::string& n) { tree.on_ended(id.at(n), std::nullopt, now), carry_out(); }
  void wait(std::int64_t ns) { now += ns, tree.tick(now), carry_out(); }
  std::string take() {
    std::string out;
    for (const auto& d : std::exchange(done, {})) out += (out.empty() ? "" : ", ") + d;
    return out;
  }
};

struct strategy_case {
  restart_strategy strategy;
  std::string fails;
  std::string expected;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(supervision_tree)

BOOST_AUTO_TEST_CASE(SU_2_children_start_in_order_each_when_the_one_before_it_runs) {
  for (const auto strategy : {restart_strategy::one_for_one, restart_strategy::one_for_all,
                              restart_strategy::rest_for_one}) {
    driver d(strategy);
    d.child("a").child("b").by_hand = true;
    d.start();
    BOOST_TEST(d.take() == "start a");
    BOOST_TEST(d.tree.is_starting(d.id["a"]));
    d.started("a");
    BOOST_TEST(d.take() == "start b");
    d.started("b");
    BOOST_TEST(d.tree.is_running(top_supervisor));
    BOOST_TEST(d.take() == "");
    BOOST_TEST(!d.tree.deadline_ns().has_value());
  }
}

BOOST_AUTO_TEST_CASE(SU_2_a_strategy_says_who_is_stopped_and_started_with_whom) {
  const strategy_case cases[] = {
      {restart_strategy::one_for_one, "a", "start a"},
      {restart_strategy::one_for_one, "b", "start b"},
      {restart_strategy::one_for_all, "a", "stop c, stop b, start a, start b, start c"},
      {restart_strategy::one_for_all, "b", "stop c, stop a, start a, start b, start c"},
      {restart_strategy::rest_for_one, "a", "stop c, stop b, start a, start b, start c"},
      {restart_strategy::rest_for_one, "b", "stop c, start b, start c"},
      {restart_strategy::rest_for_one, "c", "start c"},
  };
  for (const auto& c : cases) {
    driver d(c.strategy);
    d.child("a").child("b").child("c").start();
    d.take();
    d.fail(c.fails);
    BOOST_TEST_CONTEXT(to_string(c.strategy) << ", " << c.fails << " fails")
    BOOST_TEST(d.take() == c.expected);
  }
}

BOOST_AUTO_TEST_CASE(SU_2_nobody_starts_while_somebody_is_being_stopped) {
  driver d(restart_strategy::one_for_all);
  d.child("a").child("b").child("c").start();
  d.take();
  d.by_hand = true;
  d.fail("a");
  BOOST_TEST(d.take() == "stop c");
  d.wait(10 * s);
  BOOST_TEST(d.take() == "");
  d.end("c");
  BOOST_TEST(d.take() == "stop b");
  d.end("b");
  BOOST_TEST(d.take() == "start a");
  d.started("a");
  BOOST_TEST(d.take() == "start b");
}

BOOST_AUTO_TEST_CASE(a_kind_of_restart_says_after_which_end_there_is_one) {
  driver d(restart_strategy::one_for_one);
  d.child("permanent")
      .child("transient", restart_kind::transient)
      .child("temporary", restart_kind::temporary)
      .start();
  d.take();
  d.end("permanent");
  BOOST_TEST(d.take() == "start permanent");
  d.fail("transient");
  d.wait(100 * ms);
  BOOST_TEST(d.take() == "start transient");
  d.end("transient");
  d.fail("temporary");
  d.wait(10 * s);
  BOOST_TEST(d.take() == "");
  BOOST_TEST(d.tree.log().own_count() == 3u);
}

BOOST_AUTO_TEST_CASE(a_temporary_child_that_is_stopped_with_others_stays_so) {
  driver d(restart_strategy::one_for_all);
  d.child("a")
      .child("temporary", restart_kind::temporary)
      .child("done", restart_kind::transient)
      .start();
  d.end("done");
  d.take();
  d.fail("a");
  BOOST_TEST(d.take() == "stop temporary, start a");
}

BOOST_AUTO_TEST_CASE(SU_1_who_fails_to_start_has_failed) {
  driver d(restart_strategy::rest_for_one);
  d.child("a").child("b").by_hand = true;
  d.start();
  d.fail("a");
  BOOST_TEST(d.take() == "start a, start a");
  d.fail("a");
  BOOST_TEST(d.take() == "");
  BOOST_TEST(*d.tree.deadline_ns() == 100 * ms);
  d.wait(100 * ms);
  d.started("a");
  BOOST_TEST(d.take() == "start a, start b");
}

BOOST_AUTO_TEST_CASE(SU_1_reports_that_fit_nothing_are_ignored) {
  driver d(restart_strategy::one_for_one);
  d.child("a").by_hand = true;
  d.fail("a");
  d.started("a");
  BOOST_TEST(!d.tree.is_running(d.id["a"]));
  d.start();
  d.started("a");
  d.started("a");
  d.tree.on_ended(supervised_id{77}, boom, 0);
  d.tree.on_ended(top_supervisor, boom, 0);
  d.tree.remove(d.id["a"], 0);
  d.fail("a");
  BOOST_TEST(d.take() == "start a");
  BOOST_TEST(!d.tree.log().has_failed());
}

BOOST_AUTO_TEST_CASE(SU_1_who_is_stopped_while_it_starts_is_stopped_once) {
  driver d(restart_strategy::one_for_all);
  d.child("a").child("b").start();
  d.take();
  d.by_hand = true;
  d.fail("b");
  d.end("a");
  BOOST_TEST(d.take() == "stop a, start a");
  d.started("a");
  BOOST_TEST(d.take() == "start b");
  d.fail("a");  // while b starts
  BOOST_TEST(d.take() == "stop b");
  d.started("b");  // it did not know yet
  BOOST_TEST(d.take() == "");
  d.end("b");
  d.wait(100 * ms);
  BOOST_TEST(d.take() == "start a");
}

BOOST_AUTO_TEST_CASE(SU_5_the_back_off_grows_and_a_quiet_window_forgives) {
  driver d(restart_strategy::one_for_one, {.failures_max = 10,
                                           .window_ns = 10 * s,
                                           .in_vain_max = 100,
                                           .delay_ns = 100 * ms,
                                           .delay_max_ns = 300 * ms});
  d.child("a").start();
  d.take();
  for (const std::int64_t delay : {0 * ms, 100 * ms, 200 * ms, 300 * ms, 300 * ms}) {
    d.fail("a");
    if (delay > 0) {
      BOOST_TEST(*d.tree.deadline_ns() == d.now + delay);
      d.wait(delay - 1);
      BOOST_TEST(d.take() == "");
      d.wait(1);
    }
    BOOST_TEST(d.take() == "start a");
  }
  d.wait(10 * s + 1);
  d.fail("a");
  BOOST_TEST(d.take() == "start a");
}

BOOST_AUTO_TEST_CASE(SU_3_who_fails_too_often_ends_its_supervisor_after_the_others) {
  driver d(restart_strategy::one_for_one);
  d.child("a").child("b").start();
  for (int i = 0; i < 3; ++i) d.fail("b"), d.wait(300 * ms);
  d.take();
  d.by_hand = true;
  d.fail("b");
  BOOST_TEST(d.take() == "stop a");
  BOOST_TEST_REQUIRE(d.tree.verdict() != nullptr);
  BOOST_TEST(!d.tree.is_over());
  d.end("a");
  BOOST_TEST(d.take() == "give up actor b: boom; test: 4 failures within 10 s");
  BOOST_TEST(d.tree.is_over());
  d.fail("a");
  d.wait(100 * s);
  BOOST_TEST(d.take() == "");
}

BOOST_AUTO_TEST_CASE(SU_3_failures_that_lie_apart_are_not_too_many) {
  driver d(restart_strategy::one_for_one);
  d.child("a").start();
  for (int i = 0; i < 50; ++i) d.fail("a"), d.wait(4 * s);
  BOOST_TEST(d.tree.is_running(d.id["a"]));
}

BOOST_AUTO_TEST_CASE(SU_3_a_supervisor_that_escalates_is_started_again_and_counts_from_0) {
  driver d(restart_strategy::rest_for_one);
  d.child("a")
      .supervisor("group", restart_strategy::one_for_one)
      .child("b", restart_kind::permanent, d.id["group"])
      .child("z");
  d.start();
  BOOST_TEST(d.take() == "start a, start b, start z");
  const auto fail_often = [&] {
    for (int i = 0; i < 3; ++i) d.fail("b"), d.wait(300 * ms);
    d.take();
    d.fail("b");
  };
  fail_often();
  BOOST_TEST(
      d.take() ==
      "escalate actor group/b: boom; group: 4 failures within 10 s, stop z, start b, start z");
  for (int i = 0; i < 2; ++i) {
    fail_often();
    d.wait(300 * ms);
    d.take();
  }
  fail_often();
  BOOST_TEST(
      d.take() ==
      "escalate actor group/b: boom; group: 4 failures within 10 s, stop z, stop a, "
      "give up actor group/b: boom; group: 4 failures within 10 s; test: 4 failures within 10 s");
  BOOST_TEST(d.tree.log().own_count() == 16u);
}

BOOST_AUTO_TEST_CASE(SU_3_a_supervisor_that_restarts_nobody_fails_with_the_failure_itself) {
  driver d(restart_strategy::one_for_one, no_restarts);
  d.child("a", restart_kind::transient).child("b").start();
  d.end("a");
  d.take();
  d.fail("b");
  BOOST_TEST(d.take() == "give up actor b: boom");
}

BOOST_AUTO_TEST_CASE(SU_4_what_follows_from_a_failure_is_noted_and_not_counted) {
  driver d(restart_strategy::one_for_all, {.failures_max = 1,
                                           .window_ns = 10 * s,
                                           .in_vain_max = 100,
                                           .delay_ns = 100 * ms,
                                           .delay_max_ns = s});
  d.child("a").child("b").child("c").start();
  d.take();
  d.by_hand = true;
  d.fail("b");
  d.fail("a");  // before its turn to be stopped
  d.fail("c");  // instead of ending
  BOOST_TEST(d.take() == "stop c, start a");
  BOOST_TEST(d.tree.log().own_count() == 1u);
  BOOST_TEST(d.tree.log().derived_count() == 2u);
  BOOST_TEST(d.tree.log().root()->actor == "b");
}

BOOST_AUTO_TEST_CASE(SU_4_a_derived_failure_never_escalates_and_waits_before_it_starts_again) {
  driver d(restart_strategy::one_for_one, {.failures_max = 0,
                                           .window_ns = 10 * s,
                                           .in_vain_max = 100,
                                           .delay_ns = 100 * ms,
                                           .delay_max_ns = s});
  d.child("a").start();
  d.take();
  for (int i = 0; i < 20; ++i) {
    d.fail("a", true);
    BOOST_TEST(d.take() == "");
    d.wait(100 * ms);
    BOOST_TEST(d.take() == "start a");
  }
  BOOST_TEST(d.tree.log().own_count() == 0u);
}

BOOST_AUTO_TEST_CASE(stop_ends_everything_from_the_last_to_the_first) {
  driver d(restart_strategy::one_for_one);
  d.child("a").supervisor("group", restart_strategy::one_for_all);
  d.child("b", restart_kind::permanent, d.id["group"])
      .child("c", restart_kind::permanent, d.id["group"])
      .child("z")
      .start();
  d.take();
  d.fail("a");
  d.fail("a");  // waits for its back-off
  d.take();
  d.tree.stop(d.now);
  d.carry_out();
  BOOST_TEST(d.take() == "stop z, stop c, stop b");
  BOOST_TEST(d.tree.is_over());
  d.wait(10 * s);
  BOOST_TEST(d.take() == "");
  driver unstarted(restart_strategy::one_for_one);
  unstarted.child("a").tree.stop(0);
  BOOST_TEST(unstarted.tree.is_over());
}

BOOST_AUTO_TEST_CASE(children_come_and_go_while_a_tree_runs) {
  driver d(restart_strategy::one_for_one);
  d.supervisor("links", restart_strategy::one_for_one).start();
  d.child("b", restart_kind::permanent, d.id["links"]);
  d.wait(0);
  BOOST_TEST(d.take() == "start b");
  d.fail("b");
  d.fail("b");
  d.take();
  BOOST_TEST(d.tree.deadline_ns().has_value());
  d.tree.remove(d.id["b"], d.now);
  d.wait(10 * s);
  BOOST_TEST(d.take() == "");
  BOOST_TEST(!d.tree.deadline_ns().has_value());
}

// --- by chance -----------------------------------------------------------------------------------

namespace {

// Children that start, end and fail after a while, in a tree of up to three levels.
class model {
 public:
  explicit model(std::uint64_t seed) : random_(seed), tree_("top", strategy(), limits()) {
    groups_[top_supervisor] = {top_supervisor, strategy_, limits_, {}};
    grow(top_supervisor, 1);
    if (random_() % 4 == 0 && !children_.empty())
      always_fails_ =
          std::next(children_.begin(), static_cast<std::ptrdiff_t>(random_() % children_.size()))
              ->first;
  }

  void run() {
    tree_.start(now_);
    carry_out();
    while (now_ < quiet_from_ns + 60 * s && !tree_.is_over()) step();
    check_rest();
    tree_.stop(now_);
    carry_out();
    for (int i = 0; i < 10'000 && !tree_.is_over(); ++i) step();
    check(tree_.is_over(), "a stop ends everything");
    for (const auto& [id, c] : children_) check(!c.is_alive, "nobody is left");
  }

  std::uint64_t restarts = 0, escalations = 0;
  bool has_given_up = false;
  std::string problem;

 private:
  static constexpr std::int64_t quiet_from_ns = 30 * s;
  struct group {
    supervised_id under{};
    restart_strategy strategy{};
    restart_limits limits{};
    std::vector<supervised_id> members;  // in the order of starting, supervisors too
  };
  struct child {
    supervised_id under{};
    restart_kind restart{};
    bool is_alive = false, is_stopping = false, is_up = false, is_done = false;
    std::deque<std::int64_t> starts;
  };
  struct event {
    enum { up, fails, ends, stopped } kind;
    supervised_id who;
    std::uint64_t life;
  };

  restart_strategy strategy() { return strategy_ = static_cast<restart_strategy>(random_() % 3); }
  // Who supervises supervisors looks back further: they fail less often.
  const restart_limits& limits(int level = 0) {
    const std::int64_t windows[] = {100 * s, 20 * s, 5 * s};
    return limits_ = {.failures_max = static_cast<std::uint32_t>(random_() % 5),
                      .window_ns = windows[level],
                      .in_vain_max = 1000,
                      .delay_ns = static_cast<std::int64_t>(random_() % 100) * ms,
                      .delay_max_ns = s};
  }

  void grow(supervised_id under, int level) {
    for (auto n = 1 + random_() % 3; n > 0; --n) {
      if (level < 3 && random_() % 3 == 0) {
        const auto how = strategy();
        const auto id = tree_.add_supervisor(under, "group", how, limits(level));
        groups_[id] = {under, how, limits_, {}};
        groups_[under].members.push_back(id);
        grow(id, level + 1);
        continue;
      }
      const restart_kind kinds[] = {restart_kind::permanent, restart_kind::permanent,
                                    restart_kind::transient, restart_kind::temporary};
      const auto kind = kinds[random_() % 4];
      const auto id = tree_.add_child(under, "child", kind);
      children_[id] = {under, kind, false, false, false, false, {}};
      groups_[under].members.push_back(id);
    }
  }

  void check(bool holds, std::string_view what) {
    if (!holds && problem.empty()) problem = fmt::format("at {} ms: {}", now_ / ms, what);
  }
  void later(std::int64_t ns, event e) { events_.emplace(now_ + ns, e); }
  std::int64_t some(std::int64_t most) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(most));
  }

  void step() {
    const auto deadline = tree_.deadline_ns();
    if (events_.empty() || (deadline && *deadline <= events_.begin()->first)) {
      check(!deadline || *deadline > now_, "tick() left something to do");
      now_ = deadline ? std::max(*deadline, now_) : now_ + s;
      tree_.tick(now_);
      return carry_out();
    }
    const auto [at, e] = *events_.begin();
    events_.erase(events_.begin());
    now_ = at;
    happen(e);
    carry_out();
  }

  void happen(const event& e) {
    auto& c = children_.at(e.who);
    if (!c.is_alive || e.life != lives_[e.who]) return;
    if (e.kind == event::up) {
      c.is_up = true;
      return tree_.on_started(e.who, now_);
    }
    c.is_alive = c.is_up = false;
    const bool was_stopping = std::exchange(c.is_stopping, false);
    const bool fails = e.kind == event::fails || (e.kind == event::stopped && random_() % 8 == 0);
    c.is_done = !was_stopping && (c.restart == restart_kind::temporary ||
                                  (c.restart == restart_kind::transient && !fails));
    const auto text = fails ? std::optional<std::string>(
                                  fmt::format("failure of {}", static_cast<std::uint32_t>(e.who)))
                            : std::nullopt;
    tree_.on_ended(e.who, text, now_, fails && e.who != always_fails_ && random_() % 8 == 0);
  }

  void carry_out() {
    for (auto actions = tree_.take_actions(); !actions.empty(); actions = tree_.take_actions())
      for (const auto& a : actions) act(a);
  }

  void act(const supervision_action& a) {
    check(!has_given_up, "give_up is the last action");
    switch (a.kind) {
      case supervision_action_kind::start: return on_start(a.who, children_.at(a.who));
      case supervision_action_kind::stop: {
        auto& c = children_.at(a.who);
        check(c.is_alive && !c.is_stopping, "SU-1: only who runs is stopped, and once");
        c.is_stopping = true;
        const auto& members = groups_.at(c.under).members;
        for (auto behind = std::find(members.begin(), members.end(), a.who) + 1;
             behind != members.end(); ++behind)
          check(!is_alive(*behind), "SU-2: the last one is stopped first");
        return later(some(50 * ms), {event::stopped, a.who, lives_[a.who]});
      }
      case supervision_action_kind::escalate: ++escalations; break;
      case supervision_action_kind::give_up:
        has_given_up = true;
        for (const auto& [id, c] : children_)
          check(!c.is_alive, "SU-3: who gives up has stopped its children");
        break;
    }
    check(a.cause.text.find("failure of ") == 0 || a.cause.text.find("it ended") == 0,
          "SU-4: the cause is a child's failure");
    for (const auto m : groups_.at(a.who).members)
      check(!is_alive(m), "SU-3: who escalates has stopped its children");
  }

  bool is_alive(supervised_id who) const {
    if (const auto at = children_.find(who); at != children_.end()) return at->second.is_alive;
    const auto& members = groups_.at(who).members;
    return std::any_of(members.begin(), members.end(), [this](auto m) { return is_alive(m); });
  }

  void on_start(supervised_id who, child& c) {
    check(!c.is_alive, "SU-1: nobody runs twice");
    check_order(who, c.under);
    check_limits(c);
    c.is_alive = true;
    c.is_stopping = c.is_up = c.is_done = false;
    const auto life = ++lives_[who];
    restarts += life > 1 ? 1 : 0;
    const bool is_faulty = now_ < quiet_from_ns || who == always_fails_;
    if (who == always_fails_) return later(1 + some(50 * ms), {event::fails, who, life});
    later(some(30 * ms), {event::up, who, life});
    if (is_faulty && random_() % 2 == 0)
      later(some(4 * s), {random_() % 4 == 0 ? event::ends : event::fails, who, life});
  }

  // SU-2: of those who build on `who`, or end with it, nobody runs; nobody starts or ends beside
  // it.
  void check_order(supervised_id who, supervised_id under) {
    const auto& g = groups_.at(under);
    bool is_behind = false;
    for (const auto m : g.members) {
      if (m == who) is_behind = true;
      if (m == who) continue;
      if (is_behind && g.strategy != restart_strategy::one_for_one)
        check(!is_alive(m), "SU-2: who comes later starts later");
      if (const auto c = children_.find(m); c != children_.end() && c->second.is_alive)
        check(c->second.is_up && !c->second.is_stopping, "SU-2: one after the other");
    }
  }

  // SU-3. Each life of a supervisor gives a child at most failures_max + 1 starts within a window;
  // a start follows its failure by at most delay_max_ns and the ends of others, for which a second
  // is plenty. Derived failures, and normal ends, cost a start each.
  void check_limits(child& c) {
    c.starts.push_back(now_);
    while (now_ - c.starts.front() > 2 * s) c.starts.pop_front();
    std::uint64_t most = 1;
    for (auto g = c.under;; g = groups_.at(g).under) {
      most *= groups_.at(g).limits.failures_max + 1;
      if (g == top_supervisor) break;
    }
    check(c.starts.size() <= most + tree_.log().derived_count(), "SU-3: limits are kept");
  }

  void check_rest() {
    if (always_fails_ && children_.at(*always_fails_).restart != restart_kind::temporary) {
      // It may be done already, or wait for somebody who has ended for good; else nothing stops its
      // way up.
      check(has_given_up || lives_[*always_fails_] == 0,
            "SU-3: what fails for ever reaches the top");
      return;
    }
    if (has_given_up) return;
    check(events_.empty() && !tree_.deadline_ns(), "SU-6: a tree comes to rest");
    check(tree_.is_running(top_supervisor), "SU-6: the top runs");
    for (const auto& [id, c] : children_)
      if (c.restart == restart_kind::permanent)
        check(c.is_alive && c.is_up, "SU-6: who shall run does");
  }

  std::mt19937_64 random_;
  restart_strategy strategy_{};
  restart_limits limits_;
  troupe::supervision_tree tree_;
  std::map<supervised_id, group> groups_;
  std::map<supervised_id, child> children_;
  std::map<supervised_id, std::uint64_t> lives_;
  std::multimap<std::int64_t, event> events_;
  std::optional<supervised_id> always_fails_;
  std::int64_t now_ = 0;
};

}  // namespace

BOOST_AUTO_TEST_CASE(all_invariants_hold_whoever_starts_and_ends_when) {
  std::uint64_t restarts = 0, escalations = 0, given_up = 0;
  for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
    model m(seed);
    m.run();
    if (!m.problem.empty()) BOOST_ERROR(fmt::format("seed {}: {}", seed, m.problem));
    restarts += m.restarts;
    escalations += m.escalations;
    given_up += m.has_given_up ? 1 : 0;
  }
  BOOST_TEST_MESSAGE(
      fmt::format("{} restarts, {} escalations, {} gave up", restarts, escalations, given_up));
  BOOST_TEST(restarts > 1000U);
  BOOST_TEST(escalations > 100U);
  BOOST_TEST(given_up > 100U);
  BOOST_TEST(given_up < 900U);
}

BOOST_AUTO_TEST_SUITE_END()
