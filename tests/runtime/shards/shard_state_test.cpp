#include "troupe/runtime/shards/shard_state.hpp"

#include <boost/test/unit_test.hpp>

#include <map>
#include <random>
#include <set>

using namespace troupe;

namespace {

using arrival = shard_state::arrival;

shard_spec make_spec(update_kind update, std::uint32_t workers, std::uint64_t steps) {
  shard_spec s;
  s.variable = "w";
  s.spec = tensor_spec{dtype::f32, {2, 3}};
  s.update = update;
  s.steps.assign(workers, steps);
  for (std::uint32_t w = 0; w < workers; ++w)
    s.readers.push_back({.worker = static_cast<std::int32_t>(w)});
  return s;
}

shard_spec with_observer(shard_spec s, std::uint64_t every) {
  s.readers.push_back({.worker = -1, .first = every, .stride = every});
  return s;
}

shard_spec with_end(shard_spec s) {
  s.readers.push_back({.worker = -1, .at_end = true});
  return s;
}

// Runs everything that can be done; readers in `open` have a credit whenever one is claimed.
std::vector<std::string> drain(shard_state& s, const std::set<std::uint32_t>& open) {
  std::vector<std::string> done;
  while (auto action = s.next()) {
    if (auto* c = std::get_if<shard_claim>(&*action)) {
      if (open.contains(c->reader))
        s.on_credit(c->reader);
      else
        done.push_back("claim " + std::to_string(c->reader));
    } else if (auto* a = std::get_if<shard_apply>(&*action)) {
      done.push_back("apply " + std::to_string(a->worker) + ":" + std::to_string(a->step));
    } else {
      const auto& x = std::get<shard_send>(*action);
      done.push_back("send " + std::to_string(x.reader) + ":" + std::to_string(x.item) + "=v" +
                     std::to_string(x.version));
    }
  }
  return done;
}

using texts = std::vector<std::string>;

}  // namespace

BOOST_AUTO_TEST_SUITE(shard_state)

BOOST_AUTO_TEST_CASE(sync_applies_a_step_when_all_gradients_are_here) {
  troupe::shard_state s(make_spec(update_kind::sync, 2, 2), 1);
  BOOST_TEST(drain(s, {0, 1}) == (texts{"send 0:0=v0", "send 1:0=v0"}),
             boost::test_tools::per_element());
  BOOST_TEST((*s.on_gradient(1, 0) == arrival::queued));
  BOOST_TEST(drain(s, {0, 1}).empty());
  BOOST_TEST((s.waiting() == shard_wait{shard_wait::kind::gradient, 0, 0}));
  BOOST_TEST((*s.on_gradient(0, 0) == arrival::queued));
  BOOST_TEST(drain(s, {0, 1}) == (texts{"apply -1:0", "send 0:1=v1", "send 1:1=v1"}),
             boost::test_tools::per_element());
  BOOST_TEST((*s.on_gradient(0, 1) == arrival::queued));
  BOOST_TEST((*s.on_gradient(1, 1) == arrival::queued));
  BOOST_TEST(drain(s, {0, 1}) == (texts{"apply -1:1"}), boost::test_tools::per_element());
  BOOST_TEST(s.is_finished());
  BOOST_TEST((s.waiting() == shard_wait{}));
}

BOOST_AUTO_TEST_CASE(SS_1_a_repeated_gradient_is_dropped_and_counted) {
  troupe::shard_state s(make_spec(update_kind::async, 1, 3), 1);
  drain(s, {0});
  BOOST_TEST((*s.on_gradient(0, 0) == arrival::queued));
  BOOST_TEST((*s.on_gradient(0, 0) == arrival::dropped));
  drain(s, {0});
  BOOST_TEST((*s.on_gradient(0, 0) == arrival::dropped));
  BOOST_TEST((s.ledger()[0] == shard_ledger{.received = 3, .applied = 1, .duplicates = 2}));
}

BOOST_AUTO_TEST_CASE(a_gap_and_a_step_too_many_are_errors_that_name_worker_and_step) {
  troupe::shard_state s(make_spec(update_kind::async, 2, 3), 1);
  auto gap = s.on_gradient(1, 1);
  BOOST_REQUIRE(!gap);
  BOOST_TEST(gap.error().text() == "variable 'w': gradient of worker 1, step 1: step 0 is missing");
  auto beyond = s.on_gradient(0, 3);
  BOOST_REQUIRE(!beyond);
  BOOST_TEST(beyond.error().text() ==
             "variable 'w': gradient of worker 0, step 3: the worker has 3 steps only");
}

BOOST_AUTO_TEST_CASE(SS_3_async_sends_a_worker_its_next_item_when_its_own_gradient_was_applied) {
  troupe::shard_state s(make_spec(update_kind::async, 2, 3), 1);
  drain(s, {0, 1});
  BOOST_TEST((*s.on_gradient(0, 0) == arrival::queued));
  BOOST_TEST(drain(s, {0, 1}) == (texts{"apply 0:0", "send 0:1=v1"}),
             boost::test_tools::per_element());
  BOOST_TEST((*s.on_gradient(0, 1) == arrival::queued));
  BOOST_TEST(drain(s, {0, 1}) == (texts{"apply 0:1", "send 0:2=v2"}),
             boost::test_tools::per_element());
  BOOST_TEST((*s.on_gradient(1, 0) == arrival::queued));
  BOOST_TEST(drain(s, {0, 1}) == (texts{"apply 1:0", "send 1:1=v3"}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(
    SS_4_an_observer_without_credit_keeps_its_version_and_stops_the_shard_when_the_slots_are_taken) {
  troupe::shard_state s(with_observer(make_spec(update_kind::sync, 1, 4), 1), 2);
  BOOST_TEST(drain(s, {0}) == (texts{"send 0:0=v0"}), boost::test_tools::per_element());
  BOOST_TEST((*s.on_gradient(0, 0) == arrival::queued));
  BOOST_TEST(drain(s, {0}) == (texts{"apply -1:0", "send 0:1=v1", "claim 1"}),
             boost::test_tools::per_element());
  BOOST_TEST((*s.on_gradient(0, 1) == arrival::queued));
  BOOST_TEST(drain(s, {0}) == (texts{"apply -1:1", "send 0:2=v2"}),
             boost::test_tools::per_element());
  BOOST_TEST((*s.on_gradient(0, 2) == arrival::queued));
  BOOST_TEST(drain(s, {0}).empty());  // versions 1 and 2 are awaited, both slots taken
  BOOST_TEST((s.waiting() == shard_wait{shard_wait::kind::credit, 1, 0}));
  s.on_credit(1);
  BOOST_TEST(drain(s, {0}) == (texts{"send 1:0=v1", "claim 1", "apply -1:2", "send 0:3=v3"}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(SS_5_a_credit_that_nobody_claimed_is_a_broken_invariant) {
  troupe::shard_state s(make_spec(update_kind::sync, 1, 1), 1);
  BOOST_CHECK_THROW(s.on_credit(0), broken_invariant);
}

BOOST_AUTO_TEST_CASE(SS_10_a_step_is_applied_when_the_replica_has_the_one_before) {
  auto spec = make_spec(update_kind::sync, 2, 3);
  spec.forwards = true;
  troupe::shard_state s(spec, 1);
  BOOST_TEST(drain(s, {0, 1}) == (texts{"claim 2", "send 0:0=v0", "send 1:0=v0"}),
             boost::test_tools::per_element());
  BOOST_TEST(bool(s.on_gradient(0, 0)));
  BOOST_TEST(bool(s.on_gradient(1, 0)));
  BOOST_TEST(drain(s, {0, 1}).empty());
  BOOST_TEST((s.waiting() == shard_wait{shard_wait::kind::credit, 2, 0}));
  s.on_credit(2);
  // The next claim is made at once: its credit says that step 0 is committed.
  BOOST_TEST(drain(s, {0, 1}) == (texts{"apply -1:0", "claim 2", "send 0:1=v1", "send 1:1=v1"}),
             boost::test_tools::per_element());
  BOOST_TEST(bool(s.on_gradient(0, 1)));
  BOOST_TEST(bool(s.on_gradient(1, 1)));
  BOOST_TEST(drain(s, {0, 1}).empty());
  s.on_credit(2);
  BOOST_TEST(drain(s, {0, 1}).front() == "apply -1:1");
}

BOOST_AUTO_TEST_CASE(SS_10_async_every_worker_has_its_own_way_to_the_replica) {
  auto spec = make_spec(update_kind::async, 2, 3);
  spec.forwards = true;
  troupe::shard_state s(spec, 1);
  BOOST_TEST(drain(s, {0, 1, 2}) == (texts{"claim 3", "send 0:0=v0", "send 1:0=v0"}),
             boost::test_tools::per_element());
  BOOST_TEST(bool(s.on_gradient(0, 0)));
  BOOST_TEST(drain(s, {0, 1, 2}) == (texts{"apply 0:0", "send 0:1=v1"}),
             boost::test_tools::per_element());
  BOOST_TEST(bool(s.on_gradient(1, 0)));
  BOOST_TEST(drain(s, {0, 1, 2}).empty());
  s.on_credit(3);
  BOOST_TEST(drain(s, {0, 1, 2}).front() == "apply 1:0");
}

BOOST_AUTO_TEST_CASE(
    a_synchronous_replica_takes_sums_and_sends_versions_to_whichever_workers_read_it) {
  auto spec = make_spec(update_kind::sync, 1, 3);
  spec.follows = true;
  spec.readers = {{.worker = 2}, {.worker = 4}};
  spec.version = 1;
  spec.start = {1};
  troupe::shard_state s(spec, 1, {.version = 1, .applied = {1}});
  BOOST_TEST(drain(s, {0}) == (texts{"send 0:1=v1", "claim 1"}), boost::test_tools::per_element());
  // Without the version there is no gradient.
  BOOST_TEST((s.waiting() == shard_wait{shard_wait::kind::credit, 1, 1}));
  s.on_credit(1);
  BOOST_TEST(drain(s, {0, 1}) == (texts{"send 1:1=v1"}), boost::test_tools::per_element());
  BOOST_TEST((s.waiting() == shard_wait{shard_wait::kind::gradient, 0, 1}));
  BOOST_TEST((*s.on_gradient(0, 1) == arrival::queued));
  BOOST_TEST(drain(s, {0, 1}) == (texts{"apply -1:1", "send 0:2=v2", "send 1:2=v2"}),
             boost::test_tools::per_element());
  BOOST_TEST((*s.on_gradient(0, 2) == arrival::queued));
  BOOST_TEST(drain(s, {0, 1}) == (texts{"apply -1:2"}), boost::test_tools::per_element());
  BOOST_TEST(s.is_finished());
}

BOOST_AUTO_TEST_CASE(SS_6_async_goes_on_without_a_lost_worker_and_ends) {
  troupe::shard_state s(with_end(make_spec(update_kind::async, 2, 2)), 1);
  drain(s, {0, 1, 2});
  BOOST_TEST((*s.on_gradient(1, 0) == arrival::queued));
  BOOST_TEST(bool(s.worker_lost(1)));
  BOOST_TEST((*s.on_gradient(1, 1) == arrival::dropped));
  BOOST_TEST(drain(s, {0, 1, 2}) == (texts{"apply 1:0"}), boost::test_tools::per_element());
  BOOST_TEST(!s.is_finished());
  BOOST_TEST((s.waiting() == shard_wait{shard_wait::kind::gradient, 0, 0}));
  BOOST_TEST((*s.on_gradient(0, 0) == arrival::queued));
  drain(s, {0, 1, 2});
  BOOST_TEST((*s.on_gradient(0, 1) == arrival::queued));
  BOOST_TEST(drain(s, {0, 1, 2}) == (texts{"apply 0:1", "send 2:0=v3"}),
             boost::test_tools::per_element());
  BOOST_TEST(s.is_finished());
  BOOST_TEST((s.ledger()[1] == shard_ledger{.received = 2, .applied = 1, .dropped = 1}));
}

BOOST_AUTO_TEST_CASE(SS_7_sync_fails_when_a_worker_is_lost_in_the_middle) {
  troupe::shard_state s(make_spec(update_kind::sync, 2, 3), 1);
  drain(s, {0, 1});
  BOOST_TEST(bool(s.on_gradient(0, 0)));
  BOOST_TEST(bool(s.on_gradient(1, 0)));
  auto lost = s.worker_lost(1);
  BOOST_REQUIRE(!lost);
  BOOST_TEST(lost.error().text() ==
             "variable 'w': worker 1 was lost before its gradient of step 1");
  BOOST_TEST(drain(s, {0, 1}).empty());
  BOOST_TEST(!bool(s.on_gradient(0, 1)));
  BOOST_TEST(!s.is_finished());
}

BOOST_AUTO_TEST_CASE(sync_does_not_mind_the_loss_of_a_worker_that_has_sent_everything) {
  troupe::shard_state s(with_end(make_spec(update_kind::sync, 2, 1)), 1);
  drain(s, {0, 1, 2});
  BOOST_TEST(bool(s.on_gradient(1, 0)));
  BOOST_TEST(bool(s.worker_lost(1)));
  BOOST_TEST(bool(s.on_gradient(0, 0)));
  BOOST_TEST(drain(s, {0, 1, 2}) == (texts{"apply -1:0", "send 2:0=v1"}),
             boost::test_tools::per_element());
  BOOST_TEST(s.is_finished());
}

// --- random runs against a naive reference -------------------------------------------------------
//
// The reference remembers the whole history: which (worker, step) made which version. The shard
// gets random gradients (with repeats), late credits and losses; every action is checked against
// the history, and against the slots, which hold the version last written into them.

namespace {

struct model {
  shard_spec spec;
  troupe::shard_state state;
  std::mt19937_64 random;
  std::vector<std::uint64_t> sent, applied, items;  // by worker: gradients; by reader: items
  std::vector<std::uint64_t> received, dropped, duplicates;
  std::vector<bool> lost;
  std::vector<std::optional<std::uint64_t>> slots;
  std::vector<std::uint32_t> claims;
  std::set<std::uint32_t> granted;  // of ports to the replica
  std::set<std::pair<std::uint32_t, std::uint64_t>> history;
  std::uint64_t version = 0;
  bool is_saving = false;
  std::vector<std::vector<std::uint64_t>> cuts;  // applied, by worker
  std::vector<std::uint32_t> marks;              // by worker: for its next gradient

  model(const shard_spec& s, std::uint32_t n, std::uint64_t seed)
      : spec(s),
        state(s, n),
        random(seed),
        sent(s.steps.size()),
        applied(s.steps.size()),
        items(s.readers.size()),
        received(s.steps.size()),
        dropped(s.steps.size()),
        duplicates(s.steps.size()),
        lost(s.steps.size()),
        slots(n),
        marks(s.steps.size()) {
    slots[0] = 0;
  }

  std::uint64_t below(std::uint64_t n) { return random() % n; }

  void apply_one(std::uint32_t worker, std::uint64_t step) {
    BOOST_REQUIRE((history.emplace(worker, step).second));  // SS-1
    BOOST_REQUIRE_EQUAL(step, applied[worker]++);
    BOOST_REQUIRE_LT(step, sent[worker]);
  }

  void on(const shard_apply& a) {
    BOOST_REQUIRE(slots[a.from] == version);
    const auto port = static_cast<std::uint32_t>(spec.readers.size() +
                                                 static_cast<std::size_t>(std::max(a.worker, 0)));
    if (spec.forwards) BOOST_REQUIRE_EQUAL(granted.erase(port), 1U);  // SS-10
    if (spec.update == update_kind::sync) {
      BOOST_REQUIRE_EQUAL(a.worker, -1);
      BOOST_REQUIRE_EQUAL(a.step, version);
      for (std::uint32_t w = 0; w < applied.size(); ++w) apply_one(w, a.step);
    } else {
      apply_one(static_cast<std::uint32_t>(a.worker), a.step);
    }
    BOOST_REQUIRE_EQUAL(a.version, ++version);
    slots[a.to] = version;
  }
  void on(const shard_claim& c) { claims.push_back(c.reader); }
  void on(const shard_cut& c) {
    BOOST_REQUIRE(!is_saving);  // SS-9
    BOOST_REQUIRE_EQUAL(c.step, version);
    BOOST_REQUIRE(slots[c.slot] == version);
    is_saving = true;
    cuts.push_back(applied);
  }
  void on(const shard_send& s) {
    const auto& r = spec.readers[s.reader];
    BOOST_REQUIRE_EQUAL(s.item, items[s.reader]++);  // SS-3: in order, each once
    BOOST_REQUIRE(slots[s.slot] == s.version);       // SS-4: still there
    if (r.at_end) {
      for (std::size_t w = 0; w < applied.size(); ++w)
        BOOST_REQUIRE(applied[w] == (lost[w] ? sent[w] : spec.steps[w]));
      BOOST_REQUIRE_EQUAL(s.version, version);
    } else if (r.worker < 0) {
      BOOST_REQUIRE_EQUAL(s.version, r.first + s.item * r.stride);
    } else {
      BOOST_REQUIRE_GE(applied[static_cast<std::size_t>(r.worker)], s.item);
      if (spec.update == update_kind::sync) BOOST_REQUIRE_EQUAL(s.version, s.item);
    }
  }

  void drain() {
    while (auto action = state.next()) std::visit([this](const auto& a) { on(a); }, *action);
    for (std::size_t w = 0; w < applied.size(); ++w) {  // SS-2
      BOOST_REQUIRE(state.ledger()[w].received == received[w]);
      BOOST_REQUIRE(state.ledger()[w].applied == applied[w]);
      BOOST_REQUIRE(state.ledger()[w].dropped == dropped[w]);
      BOOST_REQUIRE(state.ledger()[w].duplicates == duplicates[w]);
    }
  }

  void send_gradient() {
    const auto w = static_cast<std::uint32_t>(below(sent.size()));
    if (sent[w] != 0 && below(4) == 0) {  // again
      BOOST_REQUIRE((*state.on_gradient(w, below(sent[w])) == arrival::dropped));
      ++received[w], ++(lost[w] ? dropped[w] : duplicates[w]);
    } else if (!lost[w] && sent[w] < items[w] &&
               sent[w] < spec.steps[w]) {  // a worker answers the items that it was sent
      BOOST_REQUIRE(
          (*state.on_gradient(w, sent[w]++, std::exchange(marks[w], 0)) == arrival::queued));
      ++received[w];
    }
  }
  void grant() {
    if (claims.empty()) return;
    const auto i = below(claims.size());
    state.on_credit(claims[i]);
    if (claims[i] >= spec.readers.size()) BOOST_REQUIRE(granted.insert(claims[i]).second);
    claims.erase(claims.begin() + static_cast<std::ptrdiff_t>(i));
  }
  void save() {
    if (std::exchange(is_saving, false)) state.on_saved();
  }
  void lose() {
    const auto w = static_cast<std::uint32_t>(below(lost.size()));
    lost[w] = true;
    BOOST_REQUIRE(bool(state.worker_lost(w)));
  }
};

std::uint64_t items_expected(const model& m, std::size_t reader) {
  const auto& r = m.spec.readers[reader];
  if (r.at_end) return 1;
  if (r.worker >= 0) return m.spec.steps[0];
  return m.spec.steps[0] / r.stride;
}

}  // namespace

BOOST_AUTO_TEST_CASE(random_runs_keep_all_invariants_and_end) {
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    BOOST_TEST_CONTEXT("seed " << seed) {
      std::mt19937_64 choose(seed);
      const bool is_sync = choose() % 2 == 0;
      auto spec = make_spec(is_sync ? update_kind::sync : update_kind::async, 1 + choose() % 4,
                            1 + choose() % 12);
      if (is_sync && choose() % 2 == 0) spec = with_observer(std::move(spec), 1 + choose() % 3);
      if (!is_sync || choose() % 2 == 0) spec = with_end(std::move(spec));
      if (is_sync)
        spec.keeps = static_cast<std::uint32_t>(choose() % 3), spec.cut_every = choose() % 4;
      spec.cuts_at_end = choose() % 2 == 0;
      spec.forwards = choose() % 3 == 0;
      model m(spec, troupe::version_slots(spec) + static_cast<std::uint32_t>(choose() % 2), seed);
      const bool may_lose = !is_sync && choose() % 2 == 0;
      int patience = 20'000;
      while (!m.state.is_finished() && --patience > 0) {
        if (m.below(3) == 0)
          m.grant();
        else
          m.send_gradient();
        if (may_lose && m.below(40) == 0) m.lose();
        if (m.below(4) == 0) m.save();
        if (!is_sync && m.below(60) == 0) m.marks.assign(m.marks.size(), 1);
        if (m.below(3) != 0) m.drain();
      }
      m.drain();
      BOOST_REQUIRE_MESSAGE(patience > 0, "waits for " << static_cast<int>(m.state.waiting().type)
                                                       << " " << m.state.waiting().index << " "
                                                       << m.state.waiting().step << ", version "
                                                       << m.version);
      for (std::size_t r = 0; r < spec.readers.size(); ++r) {
        const auto w = spec.readers[r].worker;
        if (w < 0 || !m.lost[static_cast<std::size_t>(w)])
          BOOST_REQUIRE_EQUAL(m.items[r], items_expected(m, r));
      }
      for (std::size_t w = 0; w < spec.steps.size(); ++w)
        if (!m.lost[w]) BOOST_REQUIRE_EQUAL(m.applied[w], spec.steps[w]);
      if (spec.cuts_at_end && m.version > 0) BOOST_REQUIRE((m.cuts.back() == m.applied));
      if (is_sync && spec.cut_every > 0)
        BOOST_REQUIRE_GE(m.cuts.size(), spec.steps[0] / spec.cut_every);
    }
  }
}

// Two shards get the same gradients in different orders; a cut is the same on both.
// With all-reduce a copy takes the sums that its shard takes, marks included, and saves nothing.
BOOST_AUTO_TEST_CASE(SS_9_who_follows_gives_out_no_cut) {
  for (const bool follows : {false, true}) {
    auto spec = make_spec(update_kind::sync, 1, 6);
    spec.follows = follows;
    troupe::shard_state s(spec, troupe::version_slots(spec));
    std::vector<std::uint64_t> cuts;
    for (std::uint64_t step = 0; step < 6; ++step) {
      BOOST_REQUIRE((*s.on_gradient(0, step, step == 3 ? 1 : 0) == arrival::queued));
      while (auto a = s.next()) {
        if (auto* c = std::get_if<shard_claim>(&*a)) s.on_credit(c->reader);
        if (auto* c = std::get_if<shard_cut>(&*a)) cuts.push_back(c->step), s.on_saved();
      }
    }
    BOOST_TEST(cuts == (follows ? std::vector<std::uint64_t>{} : std::vector<std::uint64_t>{3}),
               boost::test_tools::per_element());
  }
}

BOOST_AUTO_TEST_CASE(SS_9_a_marked_cut_holds_the_same_steps_on_all_shards) {
  std::size_t cuts = 0;
  for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
    BOOST_TEST_CONTEXT("seed " << seed) {
      std::mt19937_64 random(seed);
      const auto below = [&](std::uint64_t n) { return random() % n; };
      const auto workers = static_cast<std::uint32_t>(1 + below(4));
      const auto steps = 4 + below(20);
      const auto spec = with_end(make_spec(update_kind::async, workers, steps));
      // By worker and step.
      std::vector<std::vector<std::uint64_t>> marked(workers, std::vector<std::uint64_t>(steps));
      const auto wanted = 1 + below(steps - 2);
      for (std::size_t w = 0; w < workers; ++w)
        marked[w][wanted + below(std::min<std::uint64_t>(2, steps - wanted))] = 1;
      std::vector<std::vector<std::uint64_t>> seen;
      for (int shard = 0; shard < 2; ++shard) {
        troupe::shard_state s(spec, troupe::version_slots(spec));
        std::vector<std::uint64_t> sent(workers), applied(workers);
        for (int patience = 0; patience < 10'000 && !s.is_finished(); ++patience) {
          const auto w = static_cast<std::uint32_t>(below(workers));
          if (sent[w] < steps && sent[w] <= applied[w]) {
            BOOST_REQUIRE(
                (*s.on_gradient(w, sent[w], static_cast<std::uint32_t>(marked[w][sent[w]])) ==
                 arrival::queued));
            ++sent[w];
          }
          while (auto a = s.next()) {
            if (auto* apply = std::get_if<shard_apply>(&*a))
              ++applied[static_cast<std::size_t>(apply->worker)];
            if (auto* claim = std::get_if<shard_claim>(&*a)) s.on_credit(claim->reader);
            if (std::get_if<shard_cut>(&*a) == nullptr) continue;
            seen.push_back(applied);
            s.on_saved();
          }
        }
        BOOST_REQUIRE(s.is_finished());
      }
      BOOST_REQUIRE_EQUAL(seen.size(), 2u);
      BOOST_REQUIRE((seen[0] == seen[1]));
      for (std::size_t w = 0; w < workers; ++w) BOOST_REQUIRE_EQUAL(marked[w][seen[0][w]], 1u);
      cuts += seen.size();
    }
  }
  BOOST_TEST(cuts == 2000u);
}

BOOST_AUTO_TEST_CASE(an_epoch_goes_on_with_what_another_left) {
  auto spec = with_end(make_spec(update_kind::sync, 2, 10));
  spec.keeps = 1;
  spec.version = 4;
  spec.start = {4, 4};
  troupe::shard_state s(spec, troupe::version_slots(spec), {4, {4, 4}});
  BOOST_TEST(s.version() == 4u);
  BOOST_TEST((*s.on_gradient(0, 3) == arrival::dropped));  // SS-1: applied in the epoch before
  BOOST_TEST(s.ledger()[0].duplicates == 1u);
  BOOST_TEST(!s.on_gradient(0, 5));  // a gap
  BOOST_TEST((*s.on_gradient(0, 4) == arrival::queued));
  BOOST_TEST((*s.on_gradient(1, 4) == arrival::queued));
  std::optional<shard_apply> applied;
  std::optional<shard_send> sent;
  while (auto a = s.next()) {
    if (auto* c = std::get_if<shard_claim>(&*a)) s.on_credit(c->reader);
    if (auto* x = std::get_if<shard_apply>(&*a)) applied = *x;
    if (auto* x = std::get_if<shard_send>(&*a); x != nullptr && !sent) sent = *x;
  }
  BOOST_REQUIRE(applied && sent);
  BOOST_TEST(sent->item == 4u);
  BOOST_TEST(sent->version == 4u);
  BOOST_TEST(applied->version == 5u);
  BOOST_TEST(applied->from != applied->to);  // SS-8
  BOOST_TEST((s.kept_in(applied->from) == std::optional<std::uint64_t>(4)));
  BOOST_TEST((s.kept_in(applied->to) == std::optional<std::uint64_t>(5)));
}

BOOST_AUTO_TEST_CASE(RC_3_older_versions_stay_until_newer_ones_take_their_slots) {
  auto spec = with_end(make_spec(update_kind::sync, 2, 10));
  spec.keeps = 2;
  spec.version = 4;
  spec.start = {4, 4};
  troupe::shard_state s(spec, troupe::version_slots(spec), {4, {4, 4}, {3, 2}});
  const auto kept = [&] {
    std::set<std::uint64_t> versions;
    for (std::uint32_t i = 0; i < troupe::version_slots(spec); ++i)
      if (const auto v = s.kept_in(i)) versions.insert(*v);
    return versions;
  };
  BOOST_TEST((kept() == std::set<std::uint64_t>{2, 3, 4}));
  for (std::uint64_t step = 4; step < 6; ++step) {
    for (std::uint32_t w = 0; w < 2; ++w) BOOST_TEST((*s.on_gradient(w, step) == arrival::queued));
    while (auto a = s.next())
      if (auto* c = std::get_if<shard_claim>(&*a)) s.on_credit(c->reader);
    BOOST_TEST((kept() == std::set<std::uint64_t>{step - 1, step, step + 1}));
  }
}

BOOST_AUTO_TEST_CASE(async_variables_may_be_ahead_of_the_cut_that_they_go_on_from) {
  auto spec = with_end(make_spec(update_kind::async, 2, 10));
  spec.start = {3, 5};
  troupe::shard_state s(spec, 1, {9, {4, 5}});
  BOOST_TEST((*s.on_gradient(0, 3) == arrival::dropped));  // made again, applied before
  BOOST_TEST((*s.on_gradient(0, 4) == arrival::queued));
  BOOST_TEST((*s.on_gradient(1, 5) == arrival::queued));
  std::uint64_t applied = 0;
  while (auto a = s.next()) {
    if (auto* c = std::get_if<shard_claim>(&*a)) s.on_credit(c->reader);
    applied += std::holds_alternative<shard_apply>(*a);
  }
  BOOST_TEST(applied == 2u);
  BOOST_TEST(s.version() == 11u);
  BOOST_TEST((s.ledger()[0] == shard_ledger{6, 5, 0, 1}));
}

BOOST_AUTO_TEST_SUITE_END()
