// A generative adversarial network in a loop of the program's own: two losses and two optimizers
// take turns, each with its own variables, over any number of batches. The generator learns to make
// points of a ring, the discriminator to tell them from true ones. Another graph draws from the
// generator meanwhile, on the same variables.
//
// Here or over nodes, with equal bits: devices say where each network stands. A node that dies
// costs the step under way, which changed nothing and is made again.
//
//   troupe-node --name one & troupe-node --name two &
//   train_gan --cluster default --generator-on /node:one --discriminator-on /node:two

#include <troupe/program.hpp>
#include <troupe/troupe.hpp>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numbers>
#include <random>
#include <thread>

using namespace troupe;

namespace {

struct gan_options : cluster_program {
  std::string generator_on = "/job:worker/task:0", discriminator_on = "/job:worker/task:1";
  std::uint64_t steps = 2000, seed = 1, retries = 50;
  std::uint32_t accumulate = 1;
  std::int64_t batch = 64;
  std::string save;
};

constexpr std::int64_t noise_width = 4, width = 32;

value generator(value noise) {
  auto& g = *noise.owner;
  const auto scope = g.name_scope("generator");
  auto x = relu(dense(noise, width, "one"));
  x = relu(dense(x, width, "two"));
  return dense(x, 2, "out");
}

// Above 0: it takes the point for a true one.
value discriminator(value points) {
  auto& g = *points.owner;
  const auto scope = g.name_scope("discriminator");
  auto x = leaky_relu(dense(points, width, "one"), 0.2);
  x = leaky_relu(dense(x, width, "two"), 0.2);
  return dense(x, 1, "out");
}

// The updates "discriminator" and "generator". With several batches per update, "accumulate" adds
// the discriminator's gradients up, and "discriminator" applies their mean.
void build(graph& g, const gan_options& o) {
  const auto noise = input(g, {dtype::f32, {o.batch, noise_width}}, "noise");
  const auto real = input(g, {dtype::f32, {o.batch, 2}}, "real");
  value made, told_real, told_made;
  {
    const auto there = g.device_scope(o.generator_on);
    made = generator(noise);
  }
  const auto there = g.device_scope(o.discriminator_on);
  {
    const auto shared = g.share_variables();
    told_real = discriminator(real);
    told_made = discriminator(made);
  }
  const auto mean = [&](value v) { return reduce_sum(v) * (1.0 / double(o.batch)); };
  const auto loss_of_discriminator =
      named(mean(softplus(neg(told_real))) + mean(softplus(told_made)), "discriminator_loss");
  const auto loss_of_generator = named(mean(softplus(neg(told_made))), "generator_loss");
  const auto how = adam({.learning_rate = 2e-3, .beta1 = 0.5});
  minimize(loss_of_generator, variables_in(g, "generator/"), how, {.name = "generator"});
  const auto of_discriminator = variables_in(g, "discriminator/");
  if (o.accumulate == 1) {
    minimize(loss_of_discriminator, of_discriminator, how, {.name = "discriminator"});
    return;
  }
  const auto gradients_now = gradients(g, loss_of_discriminator, of_discriminator);
  for (std::size_t i = 0; i < of_discriminator.size(); ++i) {
    const auto& w = of_discriminator[i];
    const auto sum = variable(g, w.spec(), zeros(), g.node(w.node).name + "/sum");
    assign_add(sum, gradients_now[i], "accumulate");
    apply(how, w, sum * (1.0 / double(o.accumulate)), {.name = "discriminator"});
    assign(sum, broadcast_like(constant(g, 0.0F), sum), "discriminator");
  }
}

class draws {
 public:
  explicit draws(std::uint64_t seed) : random_(seed) {}
  tensor noise(std::int64_t rows) {
    auto t = tensor::make({dtype::f32, {rows, noise_width}});
    for (std::int64_t i = 0; i < t.elements(); ++i) t.data<float>()[i] = 2 * part() - 1;
    return t;
  }
  // Points of a ring around 0, of radius 1.
  tensor ring(std::int64_t rows) {
    auto t = tensor::make({dtype::f32, {rows, 2}});
    for (std::int64_t i = 0; i < rows; ++i) {
      const auto angle = 2 * std::numbers::pi_v<float> * part();
      t.data<float>()[2 * i] = std::cos(angle), t.data<float>()[2 * i + 1] = std::sin(angle);
    }
    return t;
  }

 private:
  float part() { return static_cast<float>(random_() >> 40U) * 0x1p-24F; }
  std::mt19937_64 random_;
};

struct outcome {
  double generator_loss = 0, discriminator_loss = 0, radius = 0, distance = 0;
  std::uint64_t made_again = 0;
  std::string hash;
};

// A step that failed has changed nothing, and is made again.
result<std::vector<tensor>> step(graph_runner& r, const gan_options& o, outcome& told,
                                 std::initializer_list<graph_runner::feed> feeds,
                                 std::initializer_list<std::string_view> fetches,
                                 std::initializer_list<std::string_view> updates) {
  for (std::uint64_t attempt = 0;; ++attempt) {
    auto out = r.step(feeds, fetches, updates);
    if (out || out.error().code() == error_code::usage || attempt == o.retries) return out;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // others notice the loss, too
    if (told.made_again++ == 0)
      say_error(fmt::format("{}: made again: {}", o.program, out.error().text()));
  }
}

result<outcome> train(session& s, const gan_options& o) {
  graph g(s.ops()), sampling(s.ops());
  build(g, o);
  // What draws has the generator alone, in this process.
  named(generator(input(sampling, {dtype::f32, {256, noise_width}}, "noise")), "points");
  const auto store = s.make_store();
  if (auto ready = store->initialize(g, o.seed); !ready) return ready.error();
  const auto trainer = s.runner(g, *store, {.name = "gan"});
  const auto sampler = s.runner(sampling, *store, {.name = "samples"});
  outcome told;
  draws d(o.seed);
  for (std::uint64_t i = 0; i < o.steps; ++i) {
    for (std::uint32_t k = 0; o.accumulate > 1 && k < o.accumulate; ++k) {
      const auto noise = d.noise(o.batch), real = d.ring(o.batch);
      auto added = step(*trainer, o, told, {{"noise", noise}, {"real", real}}, {}, {"accumulate"});
      if (!added) return added.error();
    }
    const auto noise = d.noise(o.batch), real = d.ring(o.batch);
    auto first = o.accumulate > 1 ? step(*trainer, o, told, {}, {}, {"discriminator"})
                                  : step(*trainer, o, told, {{"noise", noise}, {"real", real}},
                                         {"discriminator_loss"}, {"discriminator"});
    if (!first) return first.error();
    const auto more = d.noise(o.batch);
    auto second = step(*trainer, o, told, {{"noise", more}}, {"generator_loss"}, {"generator"});
    if (!second) return second.error();
    if (!first->empty()) told.discriminator_loss = double(*(*first)[0].data<float>());
    told.generator_loss = double(*(*second)[0].data<float>());
    if ((i + 1) % std::max<std::uint64_t>(1, o.steps / 10) != 0) continue;
    auto drawn = step(*sampler, o, told, {{"noise", d.noise(256)}}, {"points"}, {});
    if (!drawn) return drawn.error();
    const auto* p = (*drawn)[0].data<float>();
    told.radius = told.distance = 0;
    for (int k = 0; k < 256; ++k) {
      const auto radius = std::hypot(double(p[2 * k]), double(p[2 * k + 1]));
      told.radius += radius / 256;
      told.distance += std::abs(radius - 1) / 256;
    }
    say_error(fmt::format("step {}: losses {:.3f} and {:.3f}; points lie {:.3f} off the ring",
                          i + 1, told.discriminator_loss, told.generator_loss, told.distance));
  }
  if (!o.save.empty())
    if (auto saved = store->save(o.save, {.optimizers = true}); !saved) return saved.error();
  std::vector<named_tensor> all;
  for (auto& [name, value] : store->snapshot().variables) all.push_back({name, value});
  told.hash = weights_hash(all);
  return told;
}

}  // namespace

int main(int argc, char** argv) {
  gan_options o;
  o.program = "train_gan";
  o.roles = {"/job:worker/task:0", "/job:worker/task:1"};
  o.parse(argc, argv, "Trains a generative adversarial network in a loop of its own.",
          [&](CLI::App& app) {
            app.add_option("--generator-on", o.generator_on, "Device of the generator")
                ->capture_default_str();
            app.add_option("--discriminator-on", o.discriminator_on, "Device of the discriminator")
                ->capture_default_str();
            app.add_option("--steps", o.steps, "Updates of each network")->capture_default_str();
            app.add_option("--batch", o.batch, "Points per batch")
                ->check(CLI::Range(1, 1 << 20))
                ->capture_default_str();
            app.add_option("--accumulate", o.accumulate, "Batches per update of the discriminator")
                ->check(CLI::Range(1, 1000))
                ->capture_default_str();
            app.add_option("--seed", o.seed, "Of initial values and points")->capture_default_str();
            app.add_option("--retries", o.retries, "How often a step that failed is made again")
                ->capture_default_str();
            app.add_option("--save", o.save, "Write all variables to this safetensors file");
          });
  auto s = o.open();
  if (!s) return o.fail(s.error());
  const auto told = train(**s, o);
  if (!told) return o.fail(told.error());
  o.tell(fmt::format("after {} steps points lie {:.3f} off the ring", o.steps, told->distance),
         fmt::format("{{\"steps\":{},\"generator_loss\":{},\"discriminator_loss\":{},"
                     "\"mean_radius\":{:.4f},\"mean_distance\":{:.4f},\"made_again\":{},"
                     "\"weights_hash\":\"{}\"}}",
                     o.steps, told->generator_loss, told->discriminator_loss, told->radius,
                     told->distance, told->made_again, told->hash));
  return 0;
}
