// Reinforcement learning with an environment in C++: threads play CartPole by the policy as it is,
// a learner trains it from what they have played, and both go on at once. Players read the policy
// from the store that the learner changes; a run sees one version of it, never half of a step.
//
// The environment is that of Barto, Sutton, Anderson: Neuronlike adaptive elements that can solve
// difficult learning control problems (1983), with episodes of at most 200 steps; it is solved at a
// mean return of 195 over 100 episodes. The learner follows the policy's gradient, with returns as
// advantages (Williams: Simple statistical gradient-following algorithms for connectionist
// reinforcement learning, 1992).
//
//   troupe-node & troupe-node & troupe-node &
//   play_cartpole --cluster default --policy-on /job:worker/task:0 --learner-on /job:worker/task:1

#include <troupe/program.hpp>
#include <troupe/troupe.hpp>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>
#include <thread>

using namespace troupe;

namespace {

struct cartpole_options : cluster_program {
  std::string policy_on = "/job:worker/task:0", learner_on = "/job:worker/task:1";
  std::uint32_t players = 2, episodes_max = 5000;
  std::uint64_t seed = 1;
};

constexpr std::int64_t poles = 8;  // that a player plays at once
constexpr std::int64_t rows_max = 8192;
constexpr std::size_t episodes_per_update = 16, steps_max = 200;
constexpr double solved = 195;

struct cartpole {
  std::array<double, 4> state{};  // x, its speed, the pole's angle, its speed

  void begin(std::mt19937_64& random) {
    for (auto& s : state) s = (double(random() >> 11U) * 0x1p-53 - 0.5) * 0.1;
  }
  // False: the pole has fallen, or the cart has left.
  bool step(bool right) {
    const double force = right ? 10 : -10, cosine = std::cos(state[2]), sine = std::sin(state[2]);
    const double push = (force + 0.05 * state[3] * state[3] * sine) / 1.1;
    const double turns =
        (9.8 * sine - cosine * push) / (0.5 * (4.0 / 3 - 0.1 * cosine * cosine / 1.1));
    const double speeds = push - 0.05 * turns * cosine / 1.1;
    state[0] += 0.02 * state[1];
    state[1] += 0.02 * speeds;
    state[2] += 0.02 * state[3];
    state[3] += 0.02 * turns;
    return std::abs(state[0]) <= 2.4 && std::abs(state[2]) <= 12 * 2 * 3.14159265358979 / 360;
  }
};

struct episode {
  std::vector<float> states;  // four a step
  std::vector<std::int32_t> actions;
};

value policy(value states) { return dense(tanh(dense(states, 32, "hidden")), 2, "actions"); }

// What players run: the logits of a few poles.
void build_policy(graph& g, const cartpole_options& o) {
  const auto there = g.device_scope(o.policy_on);
  named(policy(input(g, {dtype::f32, {poles, 4}}, "states")), "logits");
}

// What the learner runs: the update "train".
void build_learner(graph& g, const cartpole_options& o) {
  const auto there = g.device_scope(o.learner_on);
  const auto states = input(g, {dtype::f32, batch_of(rows_max, {4})}, "states");
  const auto actions = input(g, {dtype::i32, batch_of(rows_max, {})}, "actions");
  const auto advantages = input(g, {dtype::f32, batch_of(rows_max, {})}, "advantages");
  const auto logits = policy(states);
  const auto loss = reduce_mean(cross_entropy(logits, actions) * advantages);
  minimize(loss, adam({.learning_rate = 0.01}));
}

// Episodes that were played, and returns of the last hundred.
class table {
 public:
  // Waits while the learner has more than enough: who plays ahead of it plays by an old policy.
  void add(episode e, const std::stop_token& stops) {
    std::unique_lock lock(mutex_);
    taken_.wait(lock, stops, [&] { return waiting_.size() < 4 * episodes_per_update; });
    if (stops.stop_requested()) return;
    returns_.push_back(double(e.actions.size()));
    if (returns_.size() > 100) returns_.pop_front();
    ++played_;
    waiting_.push_back(std::move(e));
    changed_.notify_one();
  }
  void fail(const error& e) {
    const std::scoped_lock lock(mutex_);
    failure_ = e;
    changed_.notify_one();
  }
  // Those that wait, once there are enough.
  result<std::vector<episode>> take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return failure_ || waiting_.size() >= episodes_per_update; });
    if (failure_) return *failure_;
    taken_.notify_all();
    return std::exchange(waiting_, {});
  }
  std::pair<std::uint64_t, double> score() {
    const std::scoped_lock lock(mutex_);
    return {played_, returns_.size() < 100
                         ? 0
                         : std::accumulate(returns_.begin(), returns_.end(), 0.0) / 100};
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::condition_variable_any taken_;
  std::vector<episode> waiting_;
  std::deque<double> returns_;
  std::uint64_t played_ = 0;
  std::optional<error> failure_;
};

void play(graph_runner& r, table& to, std::uint64_t seed, const std::stop_token& stops) {
  std::mt19937_64 random(seed);
  std::array<cartpole, poles> all;
  std::array<episode, poles> told;
  for (auto& c : all) c.begin(random);
  while (!stops.stop_requested()) {
    auto states = tensor::make({dtype::f32, {poles, 4}});
    for (std::size_t i = 0; i < all.size(); ++i)
      std::ranges::transform(all[i].state, states.data<float>() + 4 * i,
                             [](double x) { return static_cast<float>(x); });
    const auto logits = r.run({{"states", states}}, {"logits"});
    if (!logits) return to.fail(logits.error());
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto* l = (*logits)[0].data<float>() + 2 * i;
      const bool right =
          double(random() >> 11U) * 0x1p-53 < 1 / (1 + std::exp(double(l[0]) - double(l[1])));
      auto& e = told[i];
      e.states.insert(e.states.end(), states.data<float>() + 4 * i,
                      states.data<float>() + 4 * i + 4);
      e.actions.push_back(right ? 1 : 0);
      if (all[i].step(right) && e.actions.size() < steps_max) continue;
      to.add(std::exchange(e, {}), stops);
      all[i].begin(random);
    }
  }
}

// Each step's return, less the mean of all, over their deviation.
std::vector<float> advantages_of(const std::vector<episode>& all) {
  constexpr double discount = 0.99;
  std::vector<double> returns;
  for (const auto& e : all) {
    std::vector<double> own(e.actions.size());
    double sum = 0;
    for (auto i = own.size(); i-- > 0;) own[i] = sum = 1 + discount * sum;
    returns.insert(returns.end(), own.begin(), own.end());
  }
  const auto n = double(returns.size());
  const auto mean = std::accumulate(returns.begin(), returns.end(), 0.0) / n;
  double squares = 0;
  for (const auto r : returns) squares += (r - mean) * (r - mean);
  const auto deviation = std::sqrt(squares / n) + 1e-6;
  std::vector<float> out;
  for (const auto r : returns) out.push_back(static_cast<float>((r - mean) / deviation));
  return out;
}

result<void> learn(graph_runner& r, std::vector<episode> all) {
  std::size_t rows = 0;
  for (const auto& e : all) rows += e.actions.size();
  while (rows > rows_max) rows -= all.back().actions.size(), all.pop_back();
  const auto n = static_cast<std::int64_t>(rows);
  std::vector<float> states;
  std::vector<std::int32_t> actions;
  for (const auto& e : all) {
    states.insert(states.end(), e.states.begin(), e.states.end());
    actions.insert(actions.end(), e.actions.begin(), e.actions.end());
  }
  const auto advantages = advantages_of(all);
  auto done = r.step({{"states", tensor::of<float>(dtype::f32, {n, 4}, states)},
                      {"actions", tensor::of<std::int32_t>(dtype::i32, {n}, actions)},
                      {"advantages", tensor::of<float>(dtype::f32, {n}, advantages)}},
                     {}, {"train"});
  return done ? result<void>() : done.error();
}

struct outcome {
  bool is_solved = false;
  std::uint64_t episodes = 0, updates = 0;
  double mean_return = 0;
};

result<outcome> run(session& s, const cartpole_options& o) {
  graph playing(s.ops()), learning(s.ops());
  build_policy(playing, o);
  build_learner(learning, o);
  const auto store = s.make_store();
  if (auto ready = store->initialize(learning, o.seed); !ready) return ready.error();
  const auto players = s.runner(playing, *store, {.name = "players"});
  const auto learner = s.runner(learning, *store, {.name = "learner"});
  table t;
  std::vector<std::jthread> threads;
  for (std::uint32_t p = 0; p < o.players; ++p)
    threads.emplace_back(
        [&, p](const std::stop_token& stops) { play(*players, t, o.seed * 1000 + p, stops); });
  outcome told;
  while (!told.is_solved && told.episodes < o.episodes_max) {
    auto played = t.take();
    if (!played) return played.error();
    if (auto learnt = learn(*learner, std::move(*played)); !learnt) return learnt.error();
    std::tie(told.episodes, told.mean_return) = t.score();
    told.is_solved = told.mean_return >= solved;
    if (++told.updates % 10 == 0)
      say_error(fmt::format("{} episodes, {} updates: mean return {:.1f}", told.episodes,
                            told.updates, told.mean_return));
  }
  return told;
}

}  // namespace

int main(int argc, char** argv) {
  cartpole_options o;
  o.program = "play_cartpole";
  o.roles = {"/job:worker/task:0", "/job:worker/task:1"};
  o.threads = 2;
  o.parse(argc, argv, "Learns to balance a pole: players and a learner, at once, on one policy.",
          [&](CLI::App& app) {
            app.add_option("--policy-on", o.policy_on, "Device of the policy that players run")
                ->capture_default_str();
            app.add_option("--learner-on", o.learner_on, "Device of the learner")
                ->capture_default_str();
            app.add_option("--players", o.players, "Threads that play, 8 poles each")
                ->check(CLI::Range(1, 256))
                ->capture_default_str();
            app.add_option("--episodes", o.episodes_max, "Gives up after so many")
                ->capture_default_str();
            app.add_option("--seed", o.seed, "Of initial values and games")->capture_default_str();
          });
  const auto began = std::chrono::steady_clock::now();
  auto s = o.open();
  if (!s) return o.fail(s.error());
  const auto told = run(**s, o);
  if (!told) return o.fail(told.error());
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  o.tell(
      fmt::format("{} after {} episodes, {} updates and {:.1f} s: mean return {:.1f}",
                  told->is_solved ? "solved" : "not solved", told->episodes, told->updates,
                  took.count(), told->mean_return),
      fmt::format("{{\"solved\":{},\"episodes\":{},\"updates\":{},\"mean_return\":{:.2f},"
                  "\"seconds\":{:.3f}}}",
                  told->is_solved, told->episodes, told->updates, told->mean_return, took.count()));
  return told->is_solved ? 0 : 1;
}
