// Threads share one train op: each of them calls step({feeds}, {}, {"train"}) of one runner, on one
// graph and one store, as often as it likes. Synchronously their steps have the effects of some
// order, one after the other; asynchronously gradients are computed at once, each from the
// variables as they then are, and applied one by one.
//
// Which gradients were applied is counted: beside the model, the loss has a ledger with an entry
// per thread, whose gradient in a step of thread t is 1 at entry t. Its own optimizer subtracts
// that; so at the end each entry has to be minus the steps of its thread.
//
// (train_from_threads is the other way round: there Troupe makes the steps, of as many workers as a
// training has, and threads feed them. Here the threads make the steps.)
//
//   troupe-node & share_one_update --cluster default

#include <troupe/program.hpp>
#include <troupe/troupe.hpp>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <random>
#include <thread>

using namespace troupe;

namespace {

struct sharing_options : cluster_program {
  std::string on = "/job:worker/task:0";
  std::vector<std::uint32_t> trainers{1, 2, 4, 8};
  std::uint64_t steps = 400, seed = 1;
  std::int64_t batch = 128, width = 128;
};

constexpr std::int64_t entries = 64;  // of the ledger: threads at most

// The update "train", of the model and of the ledger.
void build(graph& g, const sharing_options& o) {
  const auto there = g.device_scope(o.on);
  const auto x = input(g, {dtype::f32, {o.batch, 2}}, "x");
  const auto y = input(g, {dtype::f32, {o.batch, 1}}, "y");
  const auto whose = input(g, {dtype::f32, {entries}}, "whose");
  value told;
  {
    const auto scope = g.name_scope("model");
    told = dense(tanh(dense(tanh(dense(x, o.width, "one")), o.width, "two")), 1, "out");
  }
  const auto ledger = variable(g, {dtype::f32, {entries}}, zeros(), "ledger");
  const auto loss = named(reduce_mean(square(told - y)), "loss");
  const auto both = loss + reduce_sum(ledger * whose);
  // Also from gradients that are eight steps old.
  minimize(both, variables_in(g, "model/"), sgd({.learning_rate = 0.02}));
  minimize(both, {ledger}, sgd({.learning_rate = 1}));
}

struct batch {
  tensor x, y;
};
batch draw(std::mt19937_64& random, std::int64_t rows) {
  batch b{tensor::make({dtype::f32, {rows, 2}}), tensor::make({dtype::f32, {rows, 1}})};
  const auto part = [&] { return 2 * (static_cast<float>(random() >> 40U) * 0x1p-24F) - 1; };
  for (std::int64_t i = 0; i < rows; ++i) {
    const auto p = b.x.data<float>()[2 * i] = part(), q = b.x.data<float>()[2 * i + 1] = part();
    b.y.data<float>()[i] = std::sin(3 * p) * q;
  }
  return b;
}

tensor entry_of(std::uint32_t thread) {
  auto t = tensor::make({dtype::f32, {entries}});
  for (std::int64_t i = 0; i < entries; ++i) t.data<float>()[i] = i == thread ? 1.0F : 0.0F;
  return t;
}

// A step that failed, as when a node dies, has changed nothing, and is made again; once the graph
// has run, also after a usage error: the node that a device names may be missing for a while.
template <class Step>
auto again(Step step, bool has_run = true) {
  for (int attempt = 0;; ++attempt) {
    auto out = step();
    if (out || attempt == 50 || (!has_run && out.error().code() == error_code::usage)) return out;
    std::this_thread::sleep_for(std::chrono::milliseconds(40));
  }
}

result<double> loss_of(graph_runner& r, const sharing_options& o) {
  std::mt19937_64 random(~o.seed);
  double sum = 0;
  for (int i = 0; i < 10; ++i) {
    const auto b = draw(random, o.batch);
    auto out = again([&] { return r.run({{"x", b.x}, {"y", b.y}}, {"loss"}); }, i > 0);
    if (!out) return out.error();
    sum += double(*out->front().data<float>()) / 10;
  }
  return sum;
}

struct outcome {
  std::uint32_t trainers = 0;
  update_kind update = update_kind::sync;
  double steps_per_second = 0, before = 0, after = 0;  // losses
  std::uint64_t missed = 0;                            // entries of the ledger that are wrong
  bool is_good() const { return missed == 0 && after < before; }
};

result<outcome> train(session& s, const graph& g, const sharing_options& o, std::uint32_t trainers,
                      update_kind update) {
  const auto store = s.make_store();
  if (auto ready = store->initialize(g, o.seed); !ready) return ready.error();
  const auto r = s.runner(g, *store, {.name = "shared"});
  outcome told{.trainers = trainers, .update = update};
  auto before = loss_of(*r, o);
  if (!before) return before.error();
  told.before = *before;

  // All threads together make o.steps steps.
  const auto steps_of = [&](std::uint32_t t) {
    return o.steps / trainers + (t < o.steps % trainers ? 1 : 0);
  };
  std::vector<result<void>> ended(trainers);
  const auto began = std::chrono::steady_clock::now();
  {
    std::vector<std::jthread> threads;
    for (std::uint32_t t = 0; t < trainers; ++t)
      threads.emplace_back([&, t] {
        std::mt19937_64 random(o.seed * 1000 + t);
        const auto whose = entry_of(t);
        for (std::uint64_t i = 0; i < steps_of(t) && ended[t]; ++i) {
          const auto b = draw(random, o.batch);
          auto made = again([&] {
            return r->step({{"x", b.x}, {"y", b.y}, {"whose", whose}}, {}, {"train"},
                           {.update = update});
          });
          if (!made) ended[t] = made.error();
        }
      });
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  for (const auto& e : ended)
    if (!e) return e.error();
  told.steps_per_second = double(o.steps) / took.count();

  auto after = loss_of(*r, o);
  if (!after) return after.error();
  told.after = *after;
  const auto ledger = store->get("ledger");
  if (!ledger) return ledger.error();
  for (std::uint32_t t = 0; t < entries; ++t) {
    const auto steps = t < trainers ? steps_of(t) : 0;
    if (ledger->data<float>()[t] != -static_cast<float>(steps)) ++told.missed;
  }
  return told;
}

}  // namespace

int main(int argc, char** argv) {
  sharing_options o;
  o.program = "share_one_update";
  o.roles = {"/job:worker/task:0"};
  o.threads = 2;
  o.parse(
      argc, argv, "Trains by many threads that make steps of one graph at once.",
      [&](CLI::App& app) {
        app.add_option("--trainers", o.trainers, "Threads that make steps; several to compare")
            ->delimiter(',')
            ->check(CLI::Range(std::int64_t{1}, entries))
            ->capture_default_str();
        app.add_option("--steps", o.steps, "Of all threads together")
            ->check(CLI::Range(1, 1 << 24))  // so far the ledger counts, in f32
            ->capture_default_str();
        app.add_option("--batch", o.batch, "Rows of a step")
            ->check(CLI::Range(1, 1 << 20))
            ->capture_default_str();
        app.add_option("--width", o.width, "Units of each layer")
            ->check(CLI::Range(1, 1 << 14))
            ->capture_default_str();
        app.add_option("--on", o.on, "Device of the graph")->capture_default_str();
        app.add_option("--seed", o.seed, "Of initial values and batches")->capture_default_str();
      });
  auto s = o.open();
  if (!s) return o.fail(s.error());
  graph g((*s)->ops());
  build(g, o);
  std::string text, json;
  bool is_good = true;
  for (const auto trainers : o.trainers)
    for (const auto update : {update_kind::sync, update_kind::async}) {
      const auto told = train(**s, g, o, trainers, update);
      if (!told) return o.fail(told.error());
      is_good = is_good && told->is_good();
      const std::string_view kind = update == update_kind::sync ? "sync" : "async";
      text += fmt::format("{} {:2} threads, {:5}: {:6.0f} steps/s, loss {:.4f} -> {:.4f}, {}",
                          text.empty() ? "" : "\n", trainers, kind, told->steps_per_second,
                          told->before, told->after,
                          told->missed == 0
                              ? "every gradient was applied once"
                              : fmt::format("{} threads' gradients were NOT", told->missed));
      json += fmt::format(
          "{}{{\"trainers\":{},\"update\":\"{}\",\"steps_per_second\":{:.1f},"
          "\"loss_before\":{:.6f},\"loss_after\":{:.6f},\"missed\":{}}}",
          json.empty() ? "" : ",", trainers, kind, told->steps_per_second, told->before,
          told->after, told->missed);
    }
  o.tell(text, fmt::format("{{\"good\":{},\"runs\":[{}]}}", is_good, json));
  return is_good ? 0 : 1;
}
