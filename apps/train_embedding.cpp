// Trains a large table of which a step reads a few rows: the byte that follows two others. A worker
// pushes the gradients of these rows, not of the whole table. In this process, or over the nodes of
// a cluster.

#include "apps/support/text_options.hpp"

#include <troupe/program.hpp>
#include <troupe/troupe.hpp>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

using namespace troupe;

struct table_options : text_options {
  std::int64_t width = 32;
  bool pushes_rows = true;
};

// tokens [n, context] -> logits [n, context - 1, 256]: each pair of bytes has a row of the table.
static value next_byte(value tokens, const table_options& o) {
  const auto first = slice(tokens, {{}, {0, o.context - 1}}),
             second = slice(tokens, {{}, {1, o.context}});
  return dense(embedding(first * 256 + second, 65'536, o.width, "pairs"), 256, "logits");
}

static result<void> train(session& s, const text_info& text, const table_options& o,
                          training_report& report) {
  graph g(s.ops());
  auto batch = text_batch(g, text, {.batch = o.batch, .context = o.context, .seed = o.seed});
  auto loss = reduce_sum(cross_entropy(next_byte(batch.tokens, o),
                                       slice(batch.targets, {{}, {1, o.context}}))) *
              batch.scale;

  auto how = o.training(o.steps);
  how.compile.sparse_pushes = o.pushes_rows;
  if (!o.save_graph.empty()) return report.save_graph(g, loss, how);
  auto run = s.train(g, loss, how);
  if (!run) return run.error();
  report.begin(
      {.samples = o.tokens_per_step() * double(o.steps), .steps = o.steps, .unit = "tokens"});
  return report.follow(**run);
}

int main(int argc, char** argv) {
  table_options o;
  o.program = "train_embedding";
  o.name = "embedding";
  o.context = 32;
  std::string pushes = "rows";
  o.parse(argc, argv,
          "Trains a table of embeddings, a row for each pair of bytes, on a text, here or over the "
          "nodes of a cluster.",
          "adagrad", [&](CLI::App& app) {
            app.add_option("--width", o.width, "Features of a pair")
                ->check(CLI::Range(1, 4096))
                ->capture_default_str();
            app.add_option(
                   "--pushes", pushes,
                   "What a worker sends of the table's gradient. rows: the rows that the step has "
                   "read; whole: the whole table; results are the same")
                ->check(CLI::IsMember({"rows", "whole"}))
                ->capture_default_str();
          });
  o.pushes_rows = pushes == "rows";
  training_report report(o);
  if (o.context < 2)
    return report.fail(error(error_code::usage, "--context: a pair needs 2 bytes"));
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
