// The pass that lets ops write into each other's memory: what it does to small graphs, and that no
// order of messages lets a value be written over before it was read, or anything wait for ever.

#include "tests/support/repetitions.hpp"
#include "troupe/runtime/analysis/memory_budget.hpp"
#include "troupe/runtime/compile/compile.hpp"
#include "troupe/runtime/compile/passes/passes.hpp"
#include "troupe/runtime/firing/shared_buffer.hpp"
#include "troupe/runtime/graph/op_table.hpp"
#include "troupe/runtime/layers/layers.hpp"

#include <boost/test/unit_test.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <random>
#include <set>

using namespace troupe;

namespace {

struct fixture {
  op_table ops = make_op_table();
  graph g{ops};

  value x(const char* name = "x", std::int64_t n = 4) {
    return input(g, {dtype::f32, {n, n}}, name);
  }
  plan compile(std::vector<value> fetches, bool fuse = false, std::uint32_t credits = 1) {
    auto p = compile_steps(g, fetches, {.fuse = fuse, .credits = credits});
    BOOST_TEST_REQUIRE(bool(p), (p ? "" : p.error().text()));
    return std::move(*p);
  }
};

// "matmul:0 matmul_1:1 relu:1! ...": the ops in order, with their buffers; '!': in place, '-':
// memory of its own, '=': handed on.
std::string text_of(const plan& p) {
  std::string out;
  for (const auto& a : p.actors) {
    if (a.kind != actor_kind::op) continue;
    out += fmt::format("{}{}:", out.empty() ? "" : " ", a.name);
    for (std::size_t i = 0; i < a.outputs.size(); ++i)
      out += buffer_of(a, i) < 0 ? "-" : std::to_string(buffer_of(a, i));
    out += a.in_place >= 0 ? "!" : a.forwards_input ? "=" : "";
  }
  return out;
}

std::uint64_t buffer_bytes(const plan& p) {
  std::uint64_t sum = 0;
  for (const auto& b : p.buffers) sum += b.bytes;
  return sum;
}

// The most that is alive at once, of what stands in buffers, if ops run in the plan's order.
std::uint64_t live_bytes(const plan& p) {
  std::vector<std::int64_t> change(p.actors.size() + 1);
  std::vector<std::vector<std::uint32_t>> last(p.actors.size());
  for (auto i = p.actors.size(); i-- > 0;) {
    const auto& a = p.actors[i];
    for (std::size_t port = 0; port < a.outputs.size(); ++port) {
      auto until = static_cast<std::uint32_t>(i);
      for (const auto e : a.outputs[port]) {
        const auto to = p.edges[e].to.actor;
        until = std::max(until,
                         p.actors[to].forwards_input && p.edges[e].to.port == 0 ? last[to][0] : to);
      }
      last[i].push_back(until);
      if (buffer_of(a, port) < 0 || a.forwards_input) continue;
      change[i] += static_cast<std::int64_t>(a.output_specs[port].size_bytes());
      change[until + std::size_t{1}] -=
          static_cast<std::int64_t>(a.output_specs[port].size_bytes());
    }
  }
  std::int64_t now = 0, most = 0;
  for (const auto c : change) most = std::max(most, now += c);
  return static_cast<std::uint64_t>(most);
}

// Plays a plan of one stream in a random order: which actor is looked at next, when the program
// feeds and takes, for some steps. Values are numbers that stand in the memory that the plan gives.
class player {
 public:
  player(const plan& p, std::uint64_t seed)
      : p_(p),
        random_(seed),
        inlets_(p.actors.size()),
        fired_(p.actors.size()),
        room_(p.edges.size()) {
    for (const auto& b : p.buffers) buffers_.emplace_back(b.bytes, p.steps_in_flight);
    uses_.resize(p.actors.size());
    for (std::uint32_t i = 0; i < p.actors.size(); ++i) {
      inlets_[i].resize(p.actors[i].inputs.size());
      for (std::size_t port = 0; port < p.actors[i].buffers.size() && !p.actors[i].forwards_input;
           ++port)
        if (const auto b = buffer_of(p.actors[i], port); b >= 0)
          uses_[i].emplace_back(
              port, buffers_[static_cast<std::size_t>(b)].add_use(i, p.actors[i].in_place >= 0));
    }
    for (std::size_t e = 0; e < p.edges.size(); ++e) room_[e] = p.edges[e].credits;
  }

  // False: nothing could go on before all steps were done.
  bool play(std::uint64_t steps) {
    std::set<std::uint32_t> open;
    for (std::uint32_t i = 0; i < p_.actors.size(); ++i) open.insert(i);
    while (!open.empty()) {
      std::vector<std::uint32_t> order(open.begin(), open.end());
      std::shuffle(order.begin(), order.end(), random_);
      bool has_fired = false;
      for (const auto i : order) {
        if (!fire(i)) continue;
        has_fired = true;
        if (fired_[i] == steps) open.erase(i);
        break;
      }
      if (!has_fired) return false;
    }
    return true;
  }
  std::uint64_t wrong() const noexcept { return wrong_; }

 private:
  struct item {
    tensor value;
    std::uint64_t expected = 0;
  };

  bool fire(std::uint32_t i) {
    const auto& a = p_.actors[i];
    const auto step = fired_[i];
    for (const auto& in : inlets_[i])
      if (in.empty()) return false;
    for (const auto& port : a.outputs)
      for (const auto e : port)
        if (room_[e] == 0) return false;
    for (const auto& [port, use] : uses_[i])
      if (!buffer(a, port).try_begin(use, step)) return false;
    std::vector<item> taken;
    for (auto& in : inlets_[i]) {
      taken.push_back(std::move(in.front()));
      in.pop_front();
      wrong_ += std::as_const(taken.back().value).data<std::uint64_t>()[0] != taken.back().expected
                    ? 1U
                    : 0U;
    }
    for (const auto e : a.inputs) ++room_[e];
    for (std::size_t port = 0; port < a.outputs.size(); ++port) make(i, port, step, taken);
    taken.clear();
    for (std::size_t in = 0; in < a.inputs.size(); ++in) {
      const auto from = p_.edges[a.inputs[in]].from;
      if (buffer_of(p_.actors[from.actor], from.port) >= 0 &&
          static_cast<std::int32_t>(in) != a.in_place)
        buffer(p_.actors[from.actor], from.port).release(step);
    }
    for (const auto& [port, use] : uses_[i])
      if (a.outputs[port].empty()) buffer(a, port).end_turn(step);
    ++fired_[i];
    return true;
  }

  void make(std::uint32_t i, std::size_t port, std::uint64_t step, const std::vector<item>& taken) {
    const auto& a = p_.actors[i];
    item out{{}, (step * p_.actors.size() + i) * 8 + port};
    if (a.forwards_input) {
      out = taken[0];
      if (buffer_of(a, 0) >= 0)
        buffer(a, 0).add_readers(step, static_cast<std::uint32_t>(a.outputs[0].size()));
    } else if (buffer_of(a, port) >= 0) {
      const auto use = std::find_if(uses_[i].begin(), uses_[i].end(), [&](const auto& u) {
                         return u.first == port;
                       })->second;
      out.value = buffer(a, port).begin(
          use, step, static_cast<std::uint32_t>(a.outputs[port].size()), a.output_specs[port]);
      out.value.data<std::uint64_t>()[0] = out.expected;
    } else {
      out.value = tensor::make({dtype::f64, {1}});
      out.value.data<std::uint64_t>()[0] = out.expected;
    }
    for (const auto e : a.outputs[port]) {
      --room_[e];
      inlets_[p_.edges[e].to.actor][p_.edges[e].to.port].push_back(out);
    }
  }

  troupe::shared_buffer& buffer(const planned_actor& a, std::size_t port) {
    return buffers_[static_cast<std::size_t>(buffer_of(a, port))];
  }

  const plan& p_;
  std::mt19937_64 random_;
  std::vector<troupe::shared_buffer> buffers_;
  std::vector<std::vector<std::pair<std::size_t, std::uint32_t>>> uses_;
  std::vector<std::vector<std::deque<item>>> inlets_;
  std::vector<std::uint64_t> fired_;
  std::vector<std::uint32_t> room_;
  std::uint64_t wrong_ = 0;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(share_memory)

BOOST_AUTO_TEST_CASE(a_chain_needs_two_buffers_and_what_is_fetched_its_own) {
  fixture f;
  auto y = f.x();
  for (int i = 0; i < 5; ++i) y = matmul(y, y);
  BOOST_TEST(text_of(f.compile({y})) == "matmul:0 matmul_1:1 matmul_2:0 matmul_3:1 matmul_4:-");
}

BOOST_AUTO_TEST_CASE(an_element_wise_op_writes_over_what_it_is_the_last_to_read) {
  fixture f;
  const auto a = matmul(f.x(), f.x("y")), b = relu(a), c = exp(b), d = mul(c, c);
  // d takes c twice, so that it could not begin before it is done with it.
  BOOST_TEST(text_of(f.compile({matmul(d, d)})) == "matmul:0 relu:0! exp:0! mul:1 matmul_1:-");
}

BOOST_AUTO_TEST_CASE(what_somebody_reads_later_stays) {
  fixture f;
  const auto a = matmul(f.x(), f.x("y")), b = relu(a), c = exp(b);
  BOOST_TEST(text_of(f.compile({matmul(c, a)})) == "matmul:0 relu:1 exp:1! matmul_1:-");
}

BOOST_AUTO_TEST_CASE(what_is_handed_on_is_in_use_until_it_was_read_there) {
  fixture f;
  const auto a = matmul(f.x(), f.x("y")), b = stop_gradient(a), c = transpose(f.x("z")),
             d = reduce_sum(b);
  const auto e = reduce_sum(c);
  BOOST_TEST(text_of(f.compile({add(e, d)})) ==
             "matmul:0 stop_gradient:0= transpose:1 reduce_sum:2 reduce_sum_1:0 add:-");
}

BOOST_AUTO_TEST_CASE(other_streams_have_other_memory_and_what_crosses_has_its_own) {
  fixture f;
  value a, b;
  {
    const auto first = f.g.device_scope("/cpu:0");
    a = matmul(matmul(f.x(), f.x("y")), f.x("z"));
  }
  {
    const auto second = f.g.device_scope("/cpu:1");
    b = matmul(matmul(a, a), f.x("u"));
  }
  BOOST_TEST(text_of(f.compile({b})) == "matmul:0 matmul_1:- matmul_2:1 matmul_3:-");
}

BOOST_AUTO_TEST_CASE(a_buffer_is_as_large_as_the_largest_that_it_takes) {
  fixture f;
  const auto small = matmul(f.x("a", 4), f.x("b", 4)), large = matmul(f.x("c", 16), f.x("d", 16));
  const auto y = mul(reduce_sum(small), reduce_sum(matmul(large, large)));
  const auto p = f.compile({y});
  BOOST_TEST(bool(check(p)));
  BOOST_TEST(buffer_bytes(p) < 3u * 16 * 16 * 4);
}

// Best fit leaves a little; of the models' graphs no more than a fifth of what is alive at once.
BOOST_AUTO_TEST_CASE(a_training_step_takes_little_more_than_what_is_alive_at_once) {
  fixture f;
  const auto data =
      idx_batch(f.g, {.path = "p", .samples = 1000, .rows = 28, .columns = 28}, {.batch = 64});
  auto x = reshape(data.images, {0, 1, 28, 28});
  x = max_pool2d(relu(conv2d(x, 32, {5, 5}, "conv_1", {.same = true})));
  x = max_pool2d(relu(conv2d(x, 64, {5, 5}, "conv_2", {.same = true})));
  const auto loss = softmax_cross_entropy(
      dense(relu(dense(reshape(x, {0, 7 * 7 * 64}), 512, "dense_1")), 10, "dense_2"), data.labels,
      data.scale);
  const auto p = compile_training(f.g, loss, {}, {});
  BOOST_TEST_REQUIRE(bool(p), (p ? "" : p.error().text()));
  BOOST_TEST(buffer_bytes(*p) <= live_bytes(*p) * 6 / 5);
  BOOST_TEST_MESSAGE(fmt::format("buffers {} bytes, alive at once {}, all tensors {}, needed {}",
                                 buffer_bytes(*p), live_bytes(*p), bytes_of_all_tensors(*p, 0),
                                 memory_of_part(*p, 0).bytes));
  BOOST_TEST(p->steps_in_flight == 1u);
}

// SB-3, and PL-8 as the compiler makes it.
BOOST_AUTO_TEST_CASE(
    in_no_order_of_messages_is_a_value_written_over_or_does_anything_wait_for_ever) {
  const auto seeds = repetitions(60);
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    fixture f;
    std::mt19937_64 random(seed);
    const auto below = [&](std::uint64_t n) { return static_cast<std::size_t>(random() % n); };
    std::vector<value> values{f.x("x"), f.x("y")};
    for (std::size_t i = 0, n = 3 + below(40); i < n; ++i) {
      const auto a = values[below(values.size())], b = values[below(values.size())];
      switch (below(6)) {
        case 0: values.push_back(matmul(a, b)); break;
        case 1: values.push_back(add(a, b)); break;
        case 2: values.push_back(relu(a)); break;
        case 3: values.push_back(transpose(a)); break;
        case 4: values.push_back(reshape(a, {4, 4})); break;
        default: values.push_back(mul(transpose(a), b)); break;
      }
    }
    std::vector<value> fetches{values.back()};
    if (below(2) == 0) fetches.push_back(values[2 + below(values.size() - 2)]);
    const auto credits = static_cast<std::uint32_t>(1 + below(3));
    for (const bool fuse : {false, true}) {
      const auto p = f.compile(fetches, fuse, credits);
      player game(p, seed);
      BOOST_TEST_REQUIRE(game.play(5),
                         fmt::format("seed {}: nothing can go on\n{}", seed, text_of(p)));
      BOOST_TEST_REQUIRE(game.wrong() == 0u,
                         fmt::format("seed {}: a value was written over\n{}", seed, text_of(p)));
    }
  }
}

// --- PL-8: what no compiler makes ---

BOOST_AUTO_TEST_CASE(PL_8_plans_whose_memory_would_be_written_too_early_are_refused) {
  fixture f;
  auto y = f.x();
  for (int i = 0; i < 5; ++i) y = matmul(y, y);
  const auto good = f.compile({y});
  const auto op = [](plan& p, std::string_view name) -> planned_actor& {
    return *std::find_if(p.actors.begin(), p.actors.end(),
                         [&](const auto& a) { return a.name == name; });
  };
  const std::vector<std::pair<const char*, std::function<void(plan&)>>> cases{
      {"whose value is still to be read", [&](plan& p) { op(p, "matmul_1").buffers = {0}; }},
      {"names buffer 7 of 2", [&](plan& p) { op(p, "matmul_1").buffers = {7}; }},
      {"names buffer -2", [&](plan& p) { op(p, "matmul_1").buffers = {-2}; }},
      {"larger than buffer", [](plan& p) { p.buffers[0].bytes = 63; }},
      {"another stream", [](plan& p) { p.buffers[0].stream = 1; }},
      {"buffers for 1 outputs", [&](plan& p) { op(p, "matmul_1").buffers = {1, 1}; }},
      {"does not run after it on the same stream",
       [&](plan& p) { p.buffers.push_back({0, 0, 64}), op(p, "matmul_4").buffers = {2}; }},
      {"over input 2", [&](plan& p) { op(p, "matmul_1").in_place = 2; }},
      {"does not hold the input", [&](plan& p) { op(p, "matmul_1").in_place = 0; }},
      {"writes over more than once",
       [&](plan& p) { op(p, "matmul_1").in_place = 0, op(p, "matmul_1").buffers = {0}; }},
      {"forwards an input that is in another buffer",
       [&](plan& p) { op(p, "matmul_1").forwards_input = true; }},
      {"0 steps in flight", [](plan& p) { p.steps_in_flight = 0; }},
      {"4097 steps in flight", [](plan& p) { p.steps_in_flight = 4097; }},
      {"bytes on task", [](plan& p) { p.buffers[1].task = 9; }},
  };
  for (const auto& [text, damage] : cases) {
    auto p = good;
    damage(p);
    const auto ok = check(p);
    BOOST_TEST_REQUIRE(!ok, text);
    BOOST_TEST(ok.error().text().find(text) != std::string::npos,
               text << ": " << ok.error().text());
    BOOST_TEST(ok.error().text().find("PL-8") != std::string::npos);
  }
  BOOST_TEST(bool(check(good)));
  const auto again = decode_plan(encode(good));
  BOOST_TEST_REQUIRE(bool(again));
  BOOST_CHECK(*again == good);
}

BOOST_AUTO_TEST_SUITE_END()
