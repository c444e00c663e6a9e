// Trains a small network of an op that Troupe does not have, own_op/own_ops.cpp: the byte that
// follows some others. In this process, or over nodes that have loaded the same library:
// troupe-node --load libown_ops.so.

#include "apps/support/text_options.hpp"

#include <troupe/op_library.hpp>
#include <troupe/program.hpp>
#include <troupe/troupe.hpp>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

using namespace troupe;

struct own_options : text_options {
  std::int64_t width = 64;
  double beta = 1.5;
  std::string load;
};

// A user's op is called like the others: a function that adds it to the graph of its operands.
static value swish_gate(value a, value b, double beta,
                        source_location where = source_location::current()) {
  if (!a.is_valid() || !b.is_valid()) return {};  // the graph knows why
  const value operands[] = {a, b};
  return a.owner->add("swish_gate", operands, {{"beta", beta}}, "swish_gate", where);
}

// tokens [n, context] -> logits [n, context, 256].
static value next_byte(value tokens, const own_options& o) {
  const auto x = embedding(tokens, 256, o.width, "bytes");
  const auto gated = swish_gate(dense(x, o.width, "values"), dense(x, o.width, "gates"), o.beta);
  return dense(x * 0.5 + gated, 256, "logits");
}

static result<void> train(session& s, const text_info& text, const own_options& o,
                          training_report& report) {
  graph g(s.ops());
  auto batch = text_batch(g, text, {.batch = o.batch, .context = o.context, .seed = o.seed});
  auto loss = reduce_sum(cross_entropy(next_byte(batch.tokens, o), batch.targets)) * batch.scale;

  if (!o.save_graph.empty()) return report.save_graph(g, loss, o.training(o.steps));
  auto run = s.train(g, loss, o.training(o.steps));
  if (!run) return run.error();
  report.begin(
      {.samples = o.tokens_per_step() * double(o.steps), .steps = o.steps, .unit = "tokens"});
  return report.follow(**run);
}

int main(int argc, char** argv) {
  own_options o;
  o.program = "train_own_op";
  o.name = "own_op";
  o.context = 32;
  o.parse(
      argc, argv,
      "Trains a network with an op of its own on a text, here or over nodes that have it (troupe-node --load).",
      "adam", [&](CLI::App& app) {
        app.add_option("--width", o.width, "Features of a byte")
            ->check(CLI::Range(1, 4096))
            ->capture_default_str();
        app.add_option("--beta", o.beta, "Slope of the gate")->capture_default_str();
        app.add_option("--load", o.load,
                       "The op from this shared library, not from the one that is linked in");
      });
  training_report report(o);
  auto text = open_text(o.text);
  if (!text) return report.fail(text.error());
  if (auto ready = report.prepare(); !ready) return report.fail(ready.error());

  auto where = o.session([&] { return report.is_interrupted(); });
  if (o.load.empty())
    where.libraries = {troupe_op_library()};
  else
    where.load = {o.load};
  auto s = session::open(where);
  if (!s) return report.fail(s.error());
  if (auto trained = train(**s, *text, o, report); !trained) return report.fail(trained.error());
  if (!o.save_graph.empty()) return 0;
  if (auto saved = report.save(); !saved) return report.fail(saved.error());
  return report.finish("loss", report.mean_loss(),
                       fmt::format("loss {:.4f} of the last steps", report.mean_loss()));
}
