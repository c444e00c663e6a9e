// Trains a language model of bytes, a small transformer: in this process, or over the nodes of a
// cluster.

#include "apps/support/text_options.hpp"

#include <troupe/program.hpp>
#include <troupe/troupe.hpp>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

using namespace troupe;

struct model_options : text_options {
  std::int64_t layers = 4, width = 128, heads = 4;
  double dropout = 0;
};

// tokens [n, context] -> logits [n, context, 256] of the byte that comes next.
static value language_model(graph& g, value tokens, const model_options& o) {
  auto x = embedding(tokens, 256, o.width, "bytes") +
           variable(g, {dtype::f32, {o.context, o.width}}, normal(0.02), "places");
  for (std::int64_t i = 1; i <= o.layers; ++i) {
    const auto block = g.name_scope(fmt::format("block_{}", i));
    x = x + dropout(self_attention(layer_norm(x, "norm_1"), {.heads = o.heads, .causal = true},
                                   "attention"),
                    o.dropout);
    const auto hidden = gelu(dense(layer_norm(x, "norm_2"), 4 * o.width, "dense_1"));
    x = x + dropout(dense(hidden, o.width, "dense_2"), o.dropout);
  }
  return dense(layer_norm(x, "norm"), 256, "logits");
}

static result<void> train(session& s, const text_info& text, const model_options& o,
                          training_report& report) {
  graph g(s.ops());
  auto batch = text_batch(g, text, {.batch = o.batch, .context = o.context, .seed = o.seed});
  auto loss =
      reduce_sum(cross_entropy(language_model(g, batch.tokens, o), batch.targets)) * batch.scale;

  if (!o.save_graph.empty()) return report.save_graph(g, loss, o.training(o.steps));
  auto run = s.train(g, loss, o.training(o.steps));
  if (!run) return run.error();
  report.begin(
      {.samples = o.tokens_per_step() * double(o.steps), .steps = o.steps, .unit = "tokens"});
  return report.follow(**run);
}

int main(int argc, char** argv) {
  model_options o;
  o.program = "train_language_model";
  o.name = "language_model";
  o.parse(
      argc, argv,
      "Trains a language model of bytes, a transformer, on a text, here or over the nodes of a cluster.",
      "adamw", [&](CLI::App& app) {
        app.add_option("--layers", o.layers, "Blocks of attention and two dense layers")
            ->check(CLI::Range(1, 1000))
            ->capture_default_str();
        app.add_option("--width", o.width, "Features of a byte")
            ->check(CLI::Range(1, 1 << 16))
            ->capture_default_str();
        app.add_option("--heads", o.heads, "Attention heads; their number must divide the width")
            ->check(CLI::Range(1, 1 << 16))
            ->capture_default_str();
        app.add_option("--dropout", o.dropout,
                       "Dropout: probability that a feature of a block's output is left out")
            ->check(CLI::Range(0.0, 0.99))
            ->capture_default_str();
      });
  if (o.width % o.heads != 0)
    o.usage_error(fmt::format("--heads {} does not divide --width {}", o.heads, o.width));
  training_report report(o);
  auto text = open_text(o.text);
  if (!text) return report.fail(text.error());
  if (auto ready = report.prepare(); !ready) return report.fail(ready.error());

  auto s = session::open(o.session([&] { return report.is_interrupted(); }));
  if (!s) return report.fail(s.error());
  if (auto trained = train(**s, *text, o, report); !trained) return report.fail(trained.error());
  if (!o.save_graph.empty()) return 0;
  if (auto saved = report.save(); !saved) return report.fail(saved.error());
  return report.finish("loss", report.mean_loss(),
                       fmt::format("loss {:.4f} of the last steps", report.mean_loss()));
}
