// Tunes a model in the ONNX format on new data. Its weights become variables of a store, of which
// those of the last layer, or those that --tune names, are trained; the others are frozen: no
// update names them. The variables are saved as safetensors, by the names that the file gives them,
// and another run, or any other program, can start from those; --save-onnx writes the whole model,
// for programs that run such files.
//
// Data are two files of NumPy's: inputs [n, ..], and targets [n] of whole numbers (classes: cross
// entropy) or of floats, as the model's output is (mean square). Without files the program draws
// inputs, and classes by a rule of its own. A tenth of all rows is held back, and the goal is that
// the loss over them falls.
//
//   tune_onnx model.onnx --x x.npy --y y.npy --tune head --epochs 10 --save tuned.safetensors
//   troupe-node & tune_onnx model.onnx --cluster default

#include <troupe/onnx.hpp>
#include <troupe/program.hpp>
#include <troupe/troupe.hpp>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <random>

using namespace troupe;

namespace {

struct tuning_options : cluster_program {
  std::string model, x, y, from, save, save_onnx, losses, on = "/job:worker/task:0",
                                                          optimizer = "adam";
  std::vector<std::string> tune;
  std::uint64_t epochs = 5, seed = 1, retries = 10;
  std::int64_t batch = 32, rows = 640;
  double learning_rate = 1e-3, hold_back = 0.1;
  bool shuffle = true, saves_optimizers = false;
};

struct rows_of_data {
  tensor x, y;  // y: i32 [n], or f32
};

error wrong(std::string text) { return {error_code::usage, std::move(text)}; }

tensor rows_of(const tensor& t, std::int64_t first, std::int64_t count) {
  std::vector<dim> dims;
  for (const auto n : t.shape().sizes()) dims.push_back({n, 0});
  dims[0].size = count;
  auto out = tensor::make({t.type(), *shape::from(dims)});
  const auto row = t.size_bytes() / static_cast<std::size_t>(t.shape().size(0));
  std::memcpy(out.bytes().data(), t.bytes().data() + row * static_cast<std::size_t>(first),
              out.size_bytes());
  return out;
}

result<rows_of_data> read_data(const tuning_options& o) {
  auto x = load_npy(o.x);
  if (!x) return x.error();
  auto y = load_npy(o.y);
  if (!y) return y.error();
  if (y->type() == dtype::i64) {  // NumPy's usual whole numbers
    auto small = tensor::make({dtype::i32, y->shape()});
    std::ranges::transform(std::span(y->data<std::int64_t>(), std::size_t(y->elements())),
                           small.data<std::int32_t>(),
                           [](std::int64_t n) { return static_cast<std::int32_t>(n); });
    y = small;
  }
  for (const auto& [file, t] : {std::pair{o.x, *x}, {o.y, *y}})
    if (t.shape().rank() == 0 || t.shape().size(0) < 2)
      return wrong(
          fmt::format("{}: it has {}, but several rows are wanted", file, to_string(t.spec())));
  if (x->shape().size(0) != y->shape().size(0))
    return wrong(fmt::format("{} has {} rows, and {} has {}", o.x, x->shape().size(0), o.y,
                             y->shape().size(0)));
  return rows_of_data{*x, *y};
}

// Inputs, and of each the class that a matrix, drawn once, finds in them.
result<rows_of_data> draw_data(const tuning_options& o, const std::vector<std::int64_t>& row,
                               std::int64_t classes) {
  std::vector<dim> dims{{o.rows, 0}};
  std::int64_t width = 1;
  for (const auto n : row) dims.push_back({n, 0}), width *= n;
  rows_of_data d{tensor::make({dtype::f32, *shape::from(dims)}),
                 tensor::make({dtype::i32, {o.rows}})};
  std::mt19937_64 random(o.seed);
  const auto part = [&] { return 2 * (static_cast<float>(random() >> 40U) * 0x1p-24F) - 1; };
  std::vector<float> rule(static_cast<std::size_t>(width * classes));
  for (auto& w : rule) w = part();
  for (std::int64_t i = 0; i < o.rows; ++i) {
    auto* of = d.x.data<float>() + i * width;
    std::vector<float> scores(static_cast<std::size_t>(classes));
    for (std::int64_t k = 0; k < width; ++k) {
      of[k] = part();
      for (std::int64_t c = 0; c < classes; ++c)
        scores[static_cast<std::size_t>(c)] +=
            of[k] * rule[static_cast<std::size_t>(k * classes + c)];
    }
    d.y.data<std::int32_t>()[i] =
        static_cast<std::int32_t>(std::ranges::max_element(scores) - scores.begin());
  }
  return d;
}

// The model with its loss and the update "train", and what they are made on.
struct tuning {
  explicit tuning(const session& s) : g(s.ops()) {}

  graph g;
  std::string input;  // that is fed with rows
  std::vector<std::string> tuned, frozen;
  std::vector<std::pair<std::string, tensor>> weights;  // of the file
  std::vector<onnx_value> inputs, outputs;              // of the model
  std::int64_t batch = 0;                               // as far as the file leaves it open
  rows_of_data training, held;
  bool has_classes = false;
};

bool begins_as_one_of(const std::string& name, const std::vector<std::string>& begins) {
  return std::ranges::any_of(begins, [&](const auto& b) { return name.starts_with(b); });
}

// Which variables are tuned: those whose names --tune begins, or the weights and bias that the
// model uses last.
result<void> choose(tuning& t, const tuning_options& o) {
  const auto count = t.weights.size();
  for (std::size_t i = 0; i < count; ++i) {
    const auto& name = t.weights[i].first;
    const bool is_tuned = o.tune.empty() ? i + 2 >= count : begins_as_one_of(name, o.tune);
    (is_tuned ? t.tuned : t.frozen).push_back(name);
  }
  if (!t.tuned.empty()) return {};
  std::vector<std::string> all;
  for (const auto& [name, value] : t.weights) all.push_back(name);
  return wrong(all.empty() ? fmt::format("{} has no weights", o.model)
                           : fmt::format("--tune {}: no weights begin so; {} has: {}",
                                         fmt::join(o.tune, ","), o.model, fmt::join(all, ", ")));
}

result<void> build(tuning& t, const tuning_options& o) {
  const auto model = load_onnx(o.model);
  if (!model) return model.error();
  if (model->inputs().size() != 1 || model->inputs()[0].element != dtype::f32 ||
      !model->inputs()[0].dims || model->inputs()[0].dims->empty())
    return wrong(fmt::format("{}: one input of f32 rows is wanted", o.model));
  const auto& port = model->inputs()[0];
  std::vector<std::int64_t> row;
  if (!o.x.empty()) {
    auto read = read_data(o);
    if (!read) return read.error();
    t.training = *read;
    for (const auto n : read->x.shape().sizes().subspan(1)) row.push_back(n);
  } else {
    for (std::size_t i = 1; i < port.dims->size(); ++i) {
      if (!(*port.dims)[i].size)
        return wrong(fmt::format("{}: the size of a row of '{}' is open: give --x and --y", o.model,
                                 port.name));
      row.push_back(*(*port.dims)[i].size);
    }
  }
  // Where the file has a size for the batch, it stays.
  const auto fixed = (*port.dims)[0].size;
  t.batch = fixed.value_or(o.batch);
  std::vector<dim> dims{fixed ? dim{*fixed, 0} : batch_of(o.batch)};
  for (const auto n : row) dims.push_back({n, 0});

  const auto there = t.g.device_scope(o.on);
  auto built = model->build(t.g, {.shapes = {{port.name, {dtype::f32, *shape::from(dims)}}},
                                  .weights_are_variables = true});
  if (!built) return built.error();
  t.input = t.g.node(built->inputs.at(0).at.node).name;
  t.weights = std::move(built->weights);
  t.inputs = built->inputs, t.outputs = built->outputs;
  if (auto chosen = choose(t, o); !chosen) return chosen.error();
  const auto out = built->outputs[0].at;
  if (o.x.empty()) {
    if (out.spec().shape.rank() != 2)
      return wrong(
          fmt::format("{}: its output is {}, and data are only drawn for logits [n, "
                      "classes]: give --x and --y",
                      o.model, to_string(out.spec())));
    auto drawn = draw_data(o, row, out.spec().shape.size(1));
    if (!drawn) return drawn.error();
    t.training = *drawn;
  }

  t.has_classes = t.training.y.type() == dtype::i32;
  std::vector<dim> of_targets{dims[0]};
  for (const auto n : t.training.y.shape().sizes().subspan(1)) of_targets.push_back({n, 0});
  const auto y = input(t.g, {t.training.y.type(), *shape::from(of_targets)}, "targets");
  const auto loss = named(
      t.has_classes ? reduce_mean(cross_entropy(out, y)) : reduce_mean(square(out - y)), "loss");
  if (t.has_classes) named(accuracy(out, y), "accuracy");
  std::vector<value> tuned;
  for (const auto& v : t.g.variables())
    if (std::ranges::count(t.tuned, t.g.node(v.node).name) > 0) tuned.push_back(v);
  minimize(loss, tuned,
           o.optimizer == "sgd" ? sgd({.learning_rate = o.learning_rate, .momentum = 0.9})
                                : adam({.learning_rate = o.learning_rate}));
  if (t.g.first_error()) return *t.g.first_error();

  // Rows that are held back are the last ones.
  const auto all = t.training.x.shape().size(0);
  auto held = std::max<std::int64_t>(1, static_cast<std::int64_t>(double(all) * o.hold_back));
  auto trained = all - held;
  if (fixed) held -= held % *fixed, trained -= trained % *fixed;  // whole batches only
  if (held < 1 || trained < 1)
    return wrong(fmt::format("{} rows are too few for batches of {}", all, t.batch));
  t.held = {rows_of(t.training.x, all - held, held), rows_of(t.training.y, all - held, held)};
  t.training = {rows_of(t.training.x, 0, trained), rows_of(t.training.y, 0, trained)};
  return {};
}

struct outcome {
  fit_report fitted;
  double before = 0;  // the loss over what is held back
  bool is_frozen = true;
};

result<outcome> tune(session& s, tuning& t, const tuning_options& o) {
  const auto store = s.make_store();
  if (auto set = store->set(t.weights); !set) return set.error();
  if (!o.from.empty())
    if (auto loaded = store->load(o.from); !loaded) return loaded.error();
  std::vector<tensor> frozen;
  for (const auto& name : t.frozen) {
    auto at = store->get(name);
    if (!at) return at.error();
    frozen.push_back(*at);
  }
  const auto r = s.runner(t.g, *store, {.name = "tuning"});

  outcome told;
  const auto rows = [&](const rows_of_data& d, std::optional<std::uint64_t> by) {
    return batches_of({{t.input, d.x}, {"targets", d.y}}, t.batch, by);
  };
  const auto held = rows(t.held, std::nullopt);
  double counted = 0;
  for (std::uint64_t i = 0;; ++i) {
    const auto next = held(0, i);
    if (next.failure) return *next.failure;
    if (!next.batch) break;
    const auto& [x, y] = std::tie((*next.batch)[0].second, (*next.batch)[1].second);
    const auto n = double(x.shape().size(0));
    auto out = r->run({{t.input, x}, {"targets", y}}, {"loss"});
    if (!out) return out.error();
    told.before += n * double(*out->front().data<float>());
    counted += n;
  }
  told.before /= counted;

  std::string losses;
  auto fitted =
      fit(*r, *store,
          {.epochs = o.epochs,
           .training = rows(t.training, o.shuffle ? std::optional(o.seed) : std::nullopt),
           .validation = held,
           .metrics = t.has_classes ? std::vector<std::string>{"loss", "accuracy"}
                                    : std::vector<std::string>{"loss"},
           .retries = o.retries,
           .on_epoch =
               [&](const epoch_report& e) {
                 say_error(fmt::format(
                     "epoch {}: loss {:.5f}, of rows held back {:.5f}{}", e.epoch + 1, e.loss,
                     e.metrics[0],
                     t.has_classes ? fmt::format(", {:.1f} % are right", 100 * e.metrics[1]) : ""));
                 return true;
               },
           .on_step =
               [&](std::uint64_t step, double loss) {
                 losses += fmt::format("{},{:.9g}\n", step, loss);
                 return true;
               }});
  if (!fitted) return fitted.error();
  told.fitted = std::move(*fitted);
  for (std::size_t i = 0; i < frozen.size(); ++i) {
    auto now = store->get(t.frozen[i]);
    if (!now) return now.error();
    told.is_frozen = told.is_frozen && std::ranges::equal(now->bytes(), frozen[i].bytes());
  }
  if (!o.save.empty())
    if (auto saved = store->save(o.save, {.optimizers = o.saves_optimizers}); !saved)
      return saved.error();
  if (!o.save_onnx.empty()) {
    onnx_save_options how{.inputs = t.inputs};
    for (const auto& [name, weight] : t.weights) {
      auto now = store->get(name);
      if (!now) return now.error();
      how.variables.emplace_back(name, *now);
    }
    if (auto saved = save_onnx(t.g, t.outputs, o.save_onnx, how); !saved)
      return error(saved.error()).while_doing("--save-onnx");
  }
  if (!o.losses.empty()) {
    auto* file = std::fopen(o.losses.c_str(), "w");
    const bool is_written = file != nullptr && write_text(file, losses);
    if (file == nullptr || std::fclose(file) != 0 || !is_written)
      return error(error_code::failed, fmt::format("{}: losses cannot be written there", o.losses));
  }
  return told;
}

}  // namespace

int main(int argc, char** argv) {
  tuning_options o;
  o.program = "tune_onnx";
  o.roles = {"/job:worker/task:0"};
  o.parse(argc, argv, "Tunes the last layers of a model in the ONNX format.", [&](CLI::App& app) {
    app.add_option("model", o.model, "The model's file")->required();
    auto* x = app.add_option("--x", o.x, "Inputs, a .npy file: [n, ..] of f32");
    auto* y = app.add_option("--y", o.y, "Targets, a .npy file: [n] of classes, or floats");
    x->needs(y), y->needs(x);
    app.add_option("--tune", o.tune,
                   "Begins of the names of weights that are tuned "
                   "(default: the two that the model uses last)")
        ->delimiter(',');
    app.add_option("--from", o.from, "Start from the variables of this safetensors file");
    app.add_option("--save", o.save, "Write the variables to this safetensors file");
    app.add_option("--save-onnx", o.save_onnx,
                   "Write the tuned model to this file in the ONNX format");
    app.add_flag("--save-optimizer", o.saves_optimizers,
                 "Also what the optimizer keeps, with which another run goes on");
    app.add_option("--losses", o.losses, "Write the loss of each step to this file");
    app.add_option("--optimizer", o.optimizer, "adam, or sgd (with a momentum of 0.9)")
        ->check(CLI::IsMember({"adam", "sgd"}))
        ->capture_default_str();
    app.add_option("--learning-rate", o.learning_rate, "Its learning rate")->capture_default_str();
    app.add_option("--epochs", o.epochs, "Rounds over the data")
        ->check(CLI::Range(1, 1'000'000))
        ->capture_default_str();
    app.add_option("--batch", o.batch, "Rows of a step, where the file leaves that open")
        ->check(CLI::Range(1, 1 << 20))
        ->capture_default_str();
    app.add_option("--rows", o.rows, "Rows that are drawn without --x")
        ->check(CLI::Range(2, 1 << 24))
        ->capture_default_str();
    app.add_option("--hold-back", o.hold_back, "Share of rows, the last ones, that are not learnt")
        ->check(CLI::Range(0.0, 0.9))
        ->capture_default_str();
    app.add_flag("--shuffle,!--no-shuffle", o.shuffle,
                 "Each epoch in an order of its own (default)");
    app.add_option("--on", o.on, "Device of the model")->capture_default_str();
    app.add_option("--retries", o.retries, "How often a step that failed is made again")
        ->capture_default_str();
    app.add_option("--seed", o.seed, "Of the order of rows, and of rows that are drawn")
        ->capture_default_str();
  });
  if (!o.save_onnx.empty())
    if (auto ok = can_save_onnx(o.save_onnx); !ok)
      return o.fail(error(ok.error()).while_doing("--save-onnx"));
  auto s = o.open();
  if (!s) return o.fail(s.error());
  tuning t(**s);
  if (auto built = build(t, o); !built) return o.fail(built.error());
  const auto told = tune(**s, t, o);
  if (!told) return o.fail(told.error());
  const auto& last = told->fitted.epochs.back();
  const auto after = last.metrics[0];
  const bool is_good = told->is_frozen && after < told->before;
  o.tell(
      fmt::format("{} of {} weights tuned in {} steps, the others {}: the loss of rows held back "
                  "{} from {:.5f} to {:.5f}",
                  t.tuned.size(), t.weights.size(), told->fitted.steps,
                  told->is_frozen ? "kept their bits" : "CHANGED",
                  after < told->before ? "fell" : "did NOT fall:", told->before, after),
      fmt::format("{{\"good\":{},\"steps\":{},\"tuned\":{},\"frozen\":{},\"are_frozen\":{},"
                  "\"loss_before\":{:.9g},\"loss_after\":{:.9g},\"last_loss\":{:.9g}}}",
                  is_good, told->fitted.steps, t.tuned.size(), t.frozen.size(), told->is_frozen,
                  told->before, after, last.loss));
  return is_good ? 0 : 1;
}
