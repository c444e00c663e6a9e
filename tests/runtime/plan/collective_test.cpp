#include "tests/support/repetitions.hpp"
#include "troupe/runtime/firing/collective_state.hpp"

#include <boost/test/unit_test.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <deque>
#include <map>
#include <random>

using namespace troupe;

namespace {

using algorithm = collective_algorithm;
using kind = collective_kind;

// A group of ranks over a network that delays by seed. What is sent of a result is read when it
// arrives, as from memory that the sender shares.
class group {
 public:
  struct flight {
    std::uint32_t from = 0, key = 0;
    std::uint64_t step = 0;
    const float* bytes = nullptr;
    std::int64_t elements = 0;
    std::uint32_t depth = 0;  // messages one after the other that led to it
  };
  struct rank {
    explicit rank(const collective_spec& s, std::uint32_t credits) : spec(s), state(s, credits) {}
    collective_spec spec;
    collective_state state;
    std::vector<std::vector<float>> parts;
    std::vector<float> result;
    std::vector<std::vector<float>> slots;
    std::vector<std::uint32_t> slot_depth, piece_depth, slot_peer;
    std::map<std::uint32_t, std::deque<flight>> early;  // by peer
    std::uint64_t bytes_sent = 0;
    std::uint32_t depth = 0;
    std::uint64_t steps = 0;
  };

  group(collective_spec s, std::uint32_t credits, std::uint64_t seed, std::uint64_t steps)
      : random_(seed), steps_(steps), lot_(credit_lot(credits)) {
    for (std::uint32_t r = 0; r < s.ranks(); ++r) {
      s.rank = r;
      const auto ok = check(s);
      BOOST_REQUIRE_MESSAGE(ok, (ok ? std::string() : ok.error().text()));
      ranks_.emplace_back(s, credits);
      auto& k = ranks_.back();
      k.slots.resize(k.state.slots());
      k.slot_depth.resize(k.state.slots());
      k.slot_peer.resize(k.state.slots());
      k.piece_depth.resize(k.state.pieces().size());
    }
  }

  // The numbers of part k at a step.
  static float number(std::uint64_t step, std::uint32_t part, std::int64_t i) {
    std::minstd_rand g(static_cast<std::uint32_t>(1 + i * 131 + part * 7919 + step * 104729));
    g.discard(3);
    return static_cast<float>(g()) / 1e8F - 10.0F;
  }

  void run() {
    while (true) {
      std::vector<std::pair<std::uint32_t, std::uint32_t>> wires;
      for (const auto& [wire, queue] : flights_)
        if (!queue.empty()) wires.push_back(wire);
      std::vector<std::uint32_t> idle;
      for (std::uint32_t r = 0; r < ranks_.size(); ++r)
        if (!ranks_[r].state.has_begun() && ranks_[r].steps < steps_) idle.push_back(r);
      const auto choices = wires.size() + idle.size() + credits_.size();
      if (choices == 0) return;
      auto at = random_() % choices;
      if (at < wires.size()) {
        deliver(wires[at]);
      } else if (at -= wires.size(); at < idle.size()) {
        begin(idle[at]);
      } else {
        at -= idle.size();
        const auto [of, peer] = credits_[at];
        credits_.erase(credits_.begin() + static_cast<std::ptrdiff_t>(at));
        ranks_[of].state.on_credit(peer, lot_);
        carry_out(of);
      }
    }
  }

  std::vector<rank>& ranks() { return ranks_; }
  std::function<void(rank&, std::uint64_t)> on_finished = [](rank&, std::uint64_t) {};
  std::uint32_t most_under_way = 0;

 private:
  void begin(std::uint32_t r) {
    auto& k = ranks_[r];
    k.parts.clear();
    for (const auto p : k.spec.parts[r]) {
      k.parts.emplace_back(static_cast<std::size_t>(k.spec.elements));
      for (std::int64_t i = 0; i < k.spec.elements; ++i)
        k.parts.back()[static_cast<std::size_t>(i)] = number(k.steps, p, i);
    }
    k.result.assign(static_cast<std::size_t>(k.spec.elements), -1e30F);
    std::fill(k.piece_depth.begin(), k.piece_depth.end(), 0);
    k.state.begin();
    carry_out(r);
  }

  void deliver(std::pair<std::uint32_t, std::uint32_t> wire) {
    const auto f = flights_[wire].front();
    flights_[wire].pop_front();
    take(wire.second, f);
    carry_out(wire.second);
  }

  // In lots, as actors do.
  void give_back(std::uint32_t to, std::uint32_t from) {
    if (++owed_[{to, from}] % lot_ == 0) credits_.emplace_back(to, from);
  }

  void take(std::uint32_t r, const flight& f) {
    auto& k = ranks_[r];
    const auto slot = k.state.on_chunk(f.from, f.step, f.key);
    BOOST_REQUIRE_MESSAGE(slot, (slot ? std::string() : slot.error().text()));
    if (!*slot) {
      // What is kept here is kept in memory of this rank.
      kept_.emplace_back(f.bytes, f.bytes + f.elements);
      auto kept = f;
      kept.bytes = kept_.back().data();
      return k.early[f.from].push_back(kept);
    }
    k.slots[**slot].assign(f.bytes, f.bytes + f.elements);
    k.slot_depth[**slot] = f.depth;
    k.slot_peer[**slot] = f.from;
  }

  void carry_out(std::uint32_t r) {
    auto& k = ranks_[r];
    while (auto a = k.state.next()) std::visit([&](const auto& x) { apply(r, k, x); }, *a);
  }

  float* piece(rank& k, std::uint32_t p) { return k.result.data() + k.state.pieces()[p].offset; }
  std::size_t size(rank& k, std::uint32_t p) {
    return static_cast<std::size_t>(k.state.pieces()[p].elements);
  }

  void apply(std::uint32_t r, rank& k, const collective_reduce& a) {
    std::vector<float> sum;
    for (const auto& o : a.operands) {
      const float* from = nullptr;
      if (o.of == collective_operand::kind::part)
        from = k.parts[o.index].data() + k.state.pieces()[a.piece].offset;
      if (o.of == collective_operand::kind::result) from = piece(k, a.piece);
      if (o.of == collective_operand::kind::slot) {
        BOOST_REQUIRE_EQUAL(k.slots[o.index].size(), size(k, a.piece));
        from = k.slots[o.index].data();
        k.piece_depth[a.piece] = std::max(k.piece_depth[a.piece], k.slot_depth[o.index]);
        give_back(k.slot_peer[o.index], r);
      }
      if (sum.empty() && &o == &a.operands.front())
        sum.assign(from, from + size(k, a.piece));
      else
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += from[i];
    }
    std::copy(sum.begin(), sum.end(), piece(k, a.piece));
  }
  void apply(std::uint32_t r, rank& k, const collective_copy& a) {
    BOOST_REQUIRE_EQUAL(k.slots[a.slot].size(), size(k, a.piece));
    std::copy(k.slots[a.slot].begin(), k.slots[a.slot].end(), piece(k, a.piece));
    k.piece_depth[a.piece] = std::max(k.piece_depth[a.piece], k.slot_depth[a.slot]);
    give_back(k.slot_peer[a.slot], r);
  }
  void apply(std::uint32_t, rank& k, const collective_own& a) {
    const auto* from = k.parts[a.part].data() + k.state.pieces()[a.piece].offset;
    std::copy(from, from + size(k, a.piece), piece(k, a.piece));
  }
  void apply(std::uint32_t r, rank& k, const collective_send& a) {
    const float* bytes = nullptr;
    if (a.part >= 0) {  // parts are let go when their step is over: the network has them
      const auto* from =
          k.parts[static_cast<std::size_t>(a.part)].data() + k.state.pieces()[a.piece].offset;
      kept_.emplace_back(from, from + size(k, a.piece));
      bytes = kept_.back().data();
    } else {
      bytes = piece(k, a.piece);
    }
    k.bytes_sent += size(k, a.piece) * sizeof(float);
    auto& queue = flights_[{r, a.peer}];
    queue.push_back({r, a.key, k.state.step(), bytes, k.state.pieces()[a.piece].elements,
                     k.piece_depth[a.piece] + 1});
    most_under_way =
        std::max<std::uint32_t>(most_under_way, static_cast<std::uint32_t>(queue.size()));
  }
  void apply(std::uint32_t r, rank& k, const collective_finished& a) {
    BOOST_REQUIRE_EQUAL(a.step, k.steps);
    for (const auto d : k.piece_depth) k.depth = std::max(k.depth, d);
    on_finished(k, a.step);
    ++k.steps;
    // Results go on to whoever takes them; the next step has its own.
    kept_.push_back(std::move(k.result));
    for (auto& [peer, queue] : k.early) {
      const auto all = std::exchange(queue, {});
      for (const auto& f : all) take(r, f);
    }
  }

  std::minstd_rand random_;
  std::uint64_t steps_;
  std::vector<rank> ranks_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::deque<flight>> flights_;
  std::uint32_t lot_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> owed_;
  // Lots on their way to: rank, from: peer.
  std::vector<std::pair<std::uint32_t, std::uint32_t>> credits_;
  std::deque<std::vector<float>> kept_;
};

collective_spec spec_of(kind k, algorithm a, std::vector<std::vector<std::uint32_t>> parts,
                        std::int64_t elements, std::int64_t piece = 16) {
  collective_spec s;
  s.kind = k;
  s.algorithm = a;
  s.parts = std::move(parts);
  s.elements = elements;
  s.piece_elements = piece;
  return s;
}

std::vector<std::vector<std::uint32_t>> one_each(std::uint32_t ranks) {
  std::vector<std::vector<std::uint32_t>> parts(ranks);
  for (std::uint32_t r = 0; r < ranks; ++r) parts[r] = {r};
  return parts;
}

std::uint32_t bits(float f) { return std::bit_cast<std::uint32_t>(f); }

// Every rank has the sum of all parts: the same bits, those of the order of parts where that is
// promised.
void reduce_everywhere(const collective_spec& s, std::uint64_t seed, std::uint32_t credits = 2,
                       std::uint64_t steps = 3) {
  const auto parts = parts_of(s);
  credits = std::max(credits, fewest_credits(s));
  std::map<std::uint64_t, std::vector<float>> first;
  group g(s, credits, seed, steps);
  g.on_finished = [&](group::rank& k, std::uint64_t step) {
    const auto [at, is_new] = first.try_emplace(step, k.result);
    const bool is_ordered = s.algorithm == algorithm::exchange || s.algorithm == algorithm::direct;
    for (std::int64_t i = 0; i < s.elements; ++i) {
      float ordered = group::number(step, 0, i);
      double exact = ordered;
      for (std::uint32_t p = 1; p < parts; ++p) {
        ordered += group::number(step, p, i);
        exact += group::number(step, p, i);
      }
      const auto got = k.result[static_cast<std::size_t>(i)];
      BOOST_REQUIRE_EQUAL(bits(got), bits(at->second[static_cast<std::size_t>(i)]));
      if (is_ordered) BOOST_REQUIRE_EQUAL(bits(got), bits(ordered));
      BOOST_REQUIRE_SMALL(got - exact, 1e-4 * static_cast<double>(parts));
    }
  };
  g.run();
  for (auto& r : g.ranks()) BOOST_REQUIRE_EQUAL(r.steps, steps);
  BOOST_REQUIRE_LE(g.most_under_way, credits);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(collective)

BOOST_AUTO_TEST_CASE(CO_1_CO_2_CO_3_every_rank_has_the_sum_in_any_order_of_messages) {
  for (const auto a : {algorithm::exchange, algorithm::direct, algorithm::ring, algorithm::halving,
                       algorithm::tree})
    for (std::uint32_t ranks = 1; ranks <= 9; ++ranks)
      for (std::uint64_t seed = 0; seed < repetitions(10); ++seed) {
        std::minstd_rand random(static_cast<std::uint32_t>(seed + 1 + ranks * 100));
        auto s = spec_of(kind::all_reduce, a, one_each(ranks),
                         static_cast<std::int64_t>(random() % 400));
        s.root = static_cast<std::uint32_t>(random() % ranks);
        BOOST_TEST_CONTEXT(fmt::format("{} of {} ranks, {} elements, root {}, seed {}",
                                       to_string(a), ranks, s.elements, s.root, seed))
        reduce_everywhere(s, seed, 1 + static_cast<std::uint32_t>(random() % 4));
      }
}

BOOST_AUTO_TEST_CASE(CO_3_ranks_may_have_several_parts_or_none) {
  for (const auto a : {algorithm::exchange, algorithm::direct, algorithm::ring, algorithm::halving,
                       algorithm::tree})
    for (std::uint64_t seed = 0; seed < repetitions(60); ++seed) {
      std::minstd_rand random(static_cast<std::uint32_t>(seed + 1));
      const auto ranks = 1 + static_cast<std::uint32_t>(random() % 6),
                 parts = ranks + static_cast<std::uint32_t>(random() % 6);
      const bool may_lack = a == algorithm::exchange || a == algorithm::direct;
      std::vector<std::vector<std::uint32_t>> of(ranks);
      for (std::uint32_t p = 0; p < parts; ++p)
        of[!may_lack && p < ranks ? p : random() % ranks].push_back(p);
      BOOST_TEST_CONTEXT(fmt::format("{}, seed {}", to_string(a), seed))
      reduce_everywhere(
          spec_of(kind::all_reduce, a, of, static_cast<std::int64_t>(random() % 300), 32), seed);
    }
}

BOOST_AUTO_TEST_CASE(CM_2_ranks_of_many_parts_never_wait_for_credits_that_are_owed) {
  for (const auto a : {algorithm::exchange, algorithm::direct})
    for (std::uint32_t parts = 1; parts <= 17; ++parts)
      for (const std::int64_t elements : {32, 32 * 4}) {
        std::vector<std::vector<std::uint32_t>> of(2);
        for (std::uint32_t p = 0; p < 2 * parts; ++p) of[p % 2].push_back(p);
        const auto s = spec_of(kind::all_reduce, a, of, elements);
        for (const auto credits :
             {fewest_credits(s), fewest_credits(s) + 1, std::max(8U, fewest_credits(s))})
          BOOST_TEST_CONTEXT(fmt::format("{}, {} parts each, {} elements, {} credits", to_string(a),
                                         parts, elements, credits))
        for (std::uint64_t seed = 0; seed < repetitions(5); ++seed)
          reduce_everywhere(s, seed, credits, 4);
      }
}

BOOST_AUTO_TEST_CASE(can_scatter_gather_broadcast_and_wait_for_all) {
  for (std::uint32_t ranks = 1; ranks <= 7; ++ranks)
    for (std::uint64_t seed = 0; seed < repetitions(20); ++seed) {
      std::minstd_rand random(static_cast<std::uint32_t>(seed + 1 + ranks * 100));
      const auto elements = static_cast<std::int64_t>(random() % 500);
      const auto parts = ranks + static_cast<std::uint32_t>(random() % 4);
      // CO-5: slices belong to parts, of which a rank may have several.
      std::vector<std::vector<std::uint32_t>> of(ranks);
      for (std::uint32_t p = 0; p < parts; ++p)
        of[p < ranks ? ranks - 1 - p : random() % ranks].push_back(p);
      const auto in_slices = parts * static_cast<std::int64_t>(random() % 50);
      for (const auto a : {algorithm::direct, algorithm::ring}) {
        const auto credits = fewest_credits(spec_of(kind::reduce_scatter, a, of, in_slices));
        group scatter(spec_of(kind::reduce_scatter, a, of, in_slices), credits, seed, 2);
        scatter.on_finished = [&](group::rank& k, std::uint64_t step) {
          for (const auto own : of[k.spec.rank]) {
            const auto [from, to] = slice_of(k.spec, own);
            for (auto i = from; i < to; ++i) {
              double exact = 0;
              for (std::uint32_t p = 0; p < parts; ++p) exact += group::number(step, p, i);
              BOOST_REQUIRE_SMALL(k.result[static_cast<std::size_t>(i)] - exact, 1e-3);
            }
          }
        };
        scatter.run();
        group gather(spec_of(kind::all_gather, a, of, in_slices), credits, seed, 2);
        gather.on_finished = [&](group::rank& k, std::uint64_t step) {
          for (std::uint32_t p = 0; p < parts; ++p) {
            const auto [from, to] = slice_of(k.spec, p);
            for (auto i = from; i < to; ++i)
              BOOST_REQUIRE_EQUAL(bits(k.result[static_cast<std::size_t>(i)]),
                                  bits(group::number(step, p, i)));
          }
        };
        gather.run();
        for (auto* g : {&scatter, &gather})
          for (auto& r : g->ranks()) BOOST_REQUIRE_EQUAL(r.steps, 2U);
      }
      for (const auto a : {algorithm::direct, algorithm::tree}) {
        auto s = spec_of(kind::broadcast, a, one_each(ranks), elements);
        s.root = static_cast<std::uint32_t>(random() % ranks);
        group broadcast(s, 2, seed, 3);
        broadcast.on_finished = [&](group::rank& k, std::uint64_t step) {
          for (std::int64_t i = 0; i < elements; ++i)
            BOOST_REQUIRE_EQUAL(bits(k.result[static_cast<std::size_t>(i)]),
                                bits(group::number(step, s.root, i)));
        };
        broadcast.run();
        for (auto& r : broadcast.ranks()) BOOST_REQUIRE_EQUAL(r.steps, 3U);
      }
      std::uint64_t begun = 0;
      group barrier(spec_of(kind::barrier, algorithm::exchange, one_each(ranks), 0), 2, seed, 2);
      barrier.on_finished = [&](group::rank& k, std::uint64_t step) {
        for (auto& other : barrier.ranks())
          BOOST_REQUIRE(other.steps > step || other.state.has_begun() || &other == &k);
        ++begun;
      };
      barrier.run();
      BOOST_REQUIRE_EQUAL(begun, 2 * ranks);
    }
}

BOOST_AUTO_TEST_CASE(costs_the_messages_and_bytes_that_the_header_says) {
  for (const std::uint32_t ranks : {2U, 3U, 4U, 5U, 8U}) {
    const std::int64_t elements = 16 * 840;
    const auto n = static_cast<std::uint64_t>(elements) * 4;
    const auto cost = [&](algorithm a) {
      group g(spec_of(kind::all_reduce, a, one_each(ranks), elements, 16 * 840), 64, 1, 1);
      g.run();
      std::uint64_t most = 0;
      std::uint32_t depth = 0;
      for (auto& r : g.ranks())
        most = std::max(most, r.bytes_sent), depth = std::max(depth, r.depth);
      return std::pair(depth, most);
    };
    const auto log2 = static_cast<std::uint32_t>(std::bit_width(ranks - 1));
    const bool is_power = std::has_single_bit(ranks);
    const auto share = 2 * n * (ranks - 1) / ranks;
    const auto slack = n / ranks / 4;  // parts end where vectors do
    BOOST_TEST(cost(algorithm::exchange).first == 1U);
    BOOST_TEST(cost(algorithm::exchange).second == (ranks - 1) * n);
    BOOST_TEST(cost(algorithm::direct).first == 2U);
    BOOST_TEST(cost(algorithm::direct).second <= share + slack);
    BOOST_TEST(cost(algorithm::ring).first == 2 * (ranks - 1));
    BOOST_TEST(cost(algorithm::ring).second <= share + slack);
    if (is_power) {
      BOOST_TEST(cost(algorithm::halving).first == 2 * log2);
      BOOST_TEST(cost(algorithm::halving).second <= share + slack);
    } else {
      BOOST_TEST(cost(algorithm::halving).first == 2 * (log2 - 1) + 2);
      BOOST_TEST(cost(algorithm::halving).second <= 2 * n + n);
    }
    BOOST_TEST(cost(algorithm::tree).first <= 2 * log2);
    BOOST_TEST(cost(algorithm::tree).second <= log2 * n);
  }
}

BOOST_AUTO_TEST_CASE(the_algorithm_follows_from_bytes_ranks_and_parts) {
  constexpr std::size_t gradient = 803'840;
  BOOST_TEST((choose_algorithm(kind::all_reduce, gradient, 2, 2, false) == algorithm::exchange));
  // A part more is as many bytes more.
  BOOST_TEST((choose_algorithm(kind::all_reduce, gradient, 2, 3, false) == algorithm::direct));
  BOOST_TEST((choose_algorithm(kind::all_reduce, 8 * gradient, 2, 2, false) == algorithm::direct));
  BOOST_TEST((choose_algorithm(kind::all_reduce, gradient, 4, 4, false) == algorithm::direct));
  BOOST_TEST((choose_algorithm(kind::all_reduce, 4096, 4, 4, false) == algorithm::exchange));
  BOOST_TEST((choose_algorithm(kind::reduce_scatter, 4096, 2, 2, false) == algorithm::direct));
  BOOST_TEST((choose_algorithm(kind::all_reduce, gradient, 9, 9, true) == algorithm::halving));
  BOOST_TEST((choose_algorithm(kind::all_reduce, 8 * gradient, 9, 9, true) == algorithm::ring));
  BOOST_TEST((choose_algorithm(kind::broadcast, gradient, 2, 2, false) == algorithm::direct));
  BOOST_TEST((choose_algorithm(kind::broadcast, gradient, 4, 4, false) == algorithm::tree));
}

BOOST_AUTO_TEST_CASE(CM_1_what_no_list_has_is_an_error_that_names_it) {
  auto s = spec_of(kind::all_reduce, algorithm::direct, one_each(3), 64);
  collective_state state(s, 2);
  BOOST_TEST(!state.on_chunk(0, 0, 0));  // itself
  BOOST_TEST(!state.on_chunk(3, 0, 0));
  BOOST_TEST(!state.on_chunk(1, 0, 1000));
  const auto first = state.on_chunk(1, 0, 0);
  BOOST_REQUIRE(first);
  BOOST_TEST(first->has_value());
  const auto again = state.on_chunk(1, 0, 0);
  BOOST_REQUIRE(!again);
  BOOST_TEST(again.error().text().find("rank 1 sent piece 0") != std::string::npos);
  const auto early = state.on_chunk(1, 1, 0);
  BOOST_REQUIRE(early);
  BOOST_TEST(!early->has_value());
}

BOOST_AUTO_TEST_CASE(is_refused_where_numbers_do_not_fit) {
  const auto good = spec_of(kind::all_reduce, algorithm::ring, one_each(3), 64);
  BOOST_TEST(bool(check(good)));
  auto bad = good;
  bad.rank = 3;
  BOOST_TEST(!check(bad));
  bad = good;
  bad.parts[1] = {};
  BOOST_TEST(!check(bad));
  bad = good;
  bad.parts[1] = {0};
  BOOST_TEST(!check(bad));
  bad = good;
  bad.piece_elements = 17;
  BOOST_TEST(!check(bad));
  bad = good;
  bad.type = dtype::bf16;
  BOOST_TEST(!check(bad));
  bad = good;
  bad.kind = kind::broadcast;
  BOOST_TEST(!check(bad));
  bad = spec_of(kind::broadcast, algorithm::direct, {{0}, {}}, 64);
  BOOST_TEST(bool(check(bad)));
  bad.root = 1;  // has nothing
  BOOST_TEST(!check(bad));
  BOOST_TEST(bool(check(spec_of(kind::all_gather, algorithm::ring, one_each(3), 66))));
  // Slices are of one size.
  BOOST_TEST(!check(spec_of(kind::all_gather, algorithm::ring, one_each(3), 64)));
  BOOST_TEST(!check(spec_of(kind::reduce_scatter, algorithm::direct, {{0, 1}, {}}, 64)));
  bad = good;
  bad.type = dtype::i32;
  bad.reduction = reduction_kind::mean;
  BOOST_TEST(!check(bad));
}

BOOST_AUTO_TEST_SUITE_END()
