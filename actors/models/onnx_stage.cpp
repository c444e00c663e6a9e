#include "troupe/actors/models/onnx_stage.hpp"

#include "troupe/actors/flow/model_stage.hpp"
#include "troupe/actors/session/session.hpp"
#include "troupe/runtime/onnx/onnx_import.hpp"
#include "troupe/schema/version.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

namespace troupe {
namespace {

// One for all models of a process. It is never ended: stages end in threads of a topology's actors,
// where the end of another actor system waits for itself, and at the process's end what it uses may
// be gone.
result<session*> shared_session(const std::string& device) {
  static std::mutex mutex;
  static auto& opened = *new std::map<bool, std::unique_ptr<session>>;  // with devices, or without
  const std::lock_guard lock(mutex);
  auto& known = opened[!device.empty()];
  if (known != nullptr) return known.get();
  session_options o;
  o.threads = std::max(1U, std::thread::hardware_concurrency());
  o.gpus = device.empty() ? "none" : "auto";
  auto s = session::open(o);
  if (!s) return std::move(s.error());
  known = std::move(*s);
  return known.get();
}

tensor_spec with_rows(const tensor_spec& row, dim rows) {
  std::vector<dim> dims{rows};
  for (std::size_t i = 0; i < row.shape.rank(); ++i) dims.push_back(row.shape[i]);
  return {row.type, *shape::from(dims)};
}
tensor_spec row_of(const tensor_spec& all) {
  std::vector<dim> dims;
  for (std::size_t i = 1; i < all.shape.rank(); ++i) dims.push_back(all.shape[i]);
  return {all.type, *shape::from(dims)};
}

constexpr std::uint64_t batch_limit = 1U << 16;
constexpr std::size_t shapes_max = 16;  // that stay compiled
constexpr int fillings_checked = 2;     // of a model, before it is believed

std::string names_of(const std::vector<onnx_port>& ports) {
  std::string text;
  for (const auto& p : ports) text += (text.empty() ? "" : ", ") + p.name;
  return text.empty() ? "there are none" : "there are " + text;
}

}  // namespace

// A file, and its graph for each shape of a row.
class onnx_ports {
 public:
  // Without names: its only input, and its first output.
  static result<std::shared_ptr<onnx_ports>> get(const std::string& path, const model_options& o,
                                                 const std::vector<std::string>& inputs,
                                                 const std::vector<std::string>& outputs);

  // A tensor for each input: one row each, or several along a first dimension, of all.
  result<std::vector<tensor>> run(std::vector<tensor> item) {
    if (auto ok = is_whole(item); !ok) return std::move(ok.error());
    const auto is_row = looks_like_row(item);
    if (!is_row) return std::move(is_row.error());
    if (!*is_row) return rows(item);
    for (auto& x : item) x = x.part(0, with_rows(x.spec(), dim{1, 0}));
    auto out = rows(item);
    if (out)
      for (auto& y : *out) y = y.part(0, row_of(y.spec()));
    return out;
  }
  // Of each item one row.
  result<std::vector<std::vector<tensor>>> run(const std::vector<std::vector<tensor>>& batch) {
    if (batch.empty()) return std::vector<std::vector<tensor>>();
    for (const auto& item : batch)
      if (auto ok = is_whole(item); !ok) return std::move(ok.error());
    // Items that have the batch's dimension: each has a row.
    std::vector<tensor> fed;
    bool has_batch = true;
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      const auto& first = batch.front()[i].shape();
      has_batch =
          has_batch && inputs_[i].rank && first.rank() == *inputs_[i].rank && first.size(0) == 1;
    }
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      std::vector<tensor> parts;
      for (const auto& item : batch) {
        const auto& x = item[i];
        parts.push_back(has_batch && x.shape().rank() > 0 && x.shape().size(0) == 1
                            ? x.part(0, row_of(x.spec()))
                            : x);
      }
      auto all = stack(parts);
      if (!all) return refuse(fmt::format("'{}': {}", inputs_[i].name, all.error().message()));
      fed.push_back(std::move(*all));
    }
    auto out = rows(fed);
    if (!out) return std::move(out.error());
    std::vector<std::vector<tensor>> items(batch.size());
    for (auto& y : *out) {
      auto each = unstack(y);
      if (!each) return std::move(each.error());
      for (std::size_t n = 0; n < items.size(); ++n)
        items[n].push_back(has_batch ? (*each)[n].part(0, with_rows((*each)[n].spec(), dim{1, 0}))
                                     : std::move((*each)[n]));
    }
    return items;
  }

 private:
  struct port {
    std::string name;
    std::optional<std::size_t> rank;  // with the batch's dimension
  };
  struct compiled {
    std::unique_ptr<graph> g;
    std::unique_ptr<graph_runner> runner;
    std::vector<std::string> feeds, fetches;
    std::uint64_t rows = 0;  // at most, or, where they are fixed, exactly
    bool is_fixed = false;
    std::uint64_t used = 0;
  };
  using specs = std::vector<tensor_spec>;  // of a row of each input

  onnx_ports(session& s, onnx_model m, std::string path, const model_options& o)
      : session_(s), model_(std::move(m)), path_(std::move(path)), options_(o) {}

  error refuse(const std::string& why, error_code code = error_code::usage) const {
    return {code, path_ + ": " + why};
  }

  result<void> is_whole(const std::vector<tensor>& item) const {
    for (std::size_t i = 0; i < inputs_.size(); ++i)
      if (!item[i]) return refuse(fmt::format("'{}' of an item is no tensor", inputs_[i].name));
    return {};
  }
  result<bool> looks_like_row(const std::vector<tensor>& item) const {
    std::optional<bool> all;
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      const auto& [name, rank] = inputs_[i];
      const auto& x = item[i];
      const bool is_row = rank && x.shape().rank() + 1 == *rank;
      if (rank && !is_row && x.shape().rank() != *rank)
        return refuse(
            fmt::format("'{}' has {} dimensions, with that of the batch, and an item is {}", name,
                        *rank, to_string(x.spec())));
      if (!is_row && x.shape().rank() == 0)
        return refuse(fmt::format("'{}' takes rows, and an item is a single number", name));
      if (all && *all != is_row)
        return refuse(fmt::format("an item has {} for '{}', and {} for '{}'",
                                  *all ? "one row" : "the batch's dimension", inputs_[0].name,
                                  is_row ? "one row" : "the batch's dimension", name));
      all = is_row;
    }
    return all.value_or(true);
  }

  result<void> find_ports(const std::vector<std::string>& feeds,
                          const std::vector<std::string>& fetches) {
    if (model_.outputs().empty()) return refuse("it has no output");
    if (feeds.empty() && model_.inputs().size() != 1)
      return refuse("a model feeds one input, and " + names_of(model_.inputs()) +
                    ": use model_of<In, Out>, whose structs name them");
    for (const auto& name : fetches)
      if (std::ranges::find(model_.outputs(), name, &onnx_port::name) == model_.outputs().end())
        return refuse(fmt::format("it has no output '{}': {}", name, names_of(model_.outputs())));
    outputs_ = fetches.empty() ? std::vector{model_.outputs().front().name} : fetches;
    for (const auto& name : feeds)
      if (std::ranges::find(model_.inputs(), name, &onnx_port::name) == model_.inputs().end())
        return refuse(fmt::format("it has no input '{}': {}", name, names_of(model_.inputs())));
    for (const auto& in : model_.inputs())
      if (!feeds.empty() && std::ranges::find(feeds, in.name) == feeds.end())
        return refuse(fmt::format("nobody feeds '{}'", in.name));
    specs row;
    for (const auto& name : feeds.empty() ? std::vector{model_.inputs().front().name} : feeds)
      if (auto ok = add_input(*std::ranges::find(model_.inputs(), name, &onnx_port::name), row);
          !ok)
        return ok;
    // Compiled now, where the file says all: so an op that is missing is told before anything runs.
    if (row.size() < inputs_.size()) return {};
    if (auto c = of(row, 1); !c) return std::move(c.error());
    return {};
  }
  // `row`: with its spec of a row, where the file says that.
  result<void> add_input(const onnx_port& in, specs& row) {
    inputs_.push_back({in.name, std::nullopt});
    if (!in.dims) return {};
    if (in.dims->empty())
      return refuse(fmt::format("'{}' is a single number: a stage feeds rows", in.name));
    if (in.dims->size() > shape::rank_max)
      return refuse(fmt::format("'{}' has {} dimensions", in.name, in.dims->size()));
    inputs_.back().rank = in.dims->size();
    if (const auto n = in.dims->front().size; n && *n > 0) {
      const auto rows = static_cast<std::uint64_t>(*n);
      if (fixed_rows_ && *fixed_rows_ != rows)
        return refuse(
            fmt::format("'{}' has {} rows, and others have {}", in.name, rows, *fixed_rows_));
      fixed_rows_ = rows;
    }
    std::vector<dim> dims;
    for (std::size_t i = 1; i < in.dims->size(); ++i) {
      if (!(*in.dims)[i].size) return {};
      dims.push_back({*(*in.dims)[i].size, 0});
    }
    if (const auto s = shape::from(dims); s && in.element) row.push_back({*in.element, *s});
    return {};
  }

  result<std::unique_ptr<compiled>> compile(const specs& row, dim rows) const {
    auto c = std::make_unique<compiled>();
    c->g = std::make_unique<graph>(session_.ops());
    c->rows = static_cast<std::uint64_t>(rows.size);
    c->is_fixed = rows != batch_of(rows.size);
    onnx_build_options how;
    for (std::size_t i = 0; i < inputs_.size(); ++i)
      how.shapes.emplace_back(inputs_[i].name, with_rows(row[i], rows));
    const auto build = [&] { return model_.build(*c->g, how); };
    const auto build_there = [&] {
      const auto scope = c->g->device_scope(options_.device);
      return build();
    };
    auto built = options_.device.empty() ? build() : build_there();
    // It names the file.
    if (!built) return error(built.error().code(), built.error().message());
    for (const auto& [name, rank] : inputs_) {
      const auto in = std::ranges::find(built->inputs, name, &onnx_value::name);
      if (in == built->inputs.end() && inputs_.size() == 1)
        return refuse(fmt::format("'{}' does not depend on '{}'", outputs_[0], name));
      // Exporters leave inputs that nothing needs: those are not fed.
      c->feeds.push_back(in == built->inputs.end() ? "" : c->g->node(in->at.node).name);
    }
    for (const auto& name : outputs_) {
      const auto out = std::ranges::find(built->outputs, name, &onnx_value::name);
      if (out == built->outputs.end()) return refuse(fmt::format("'{}' is not computed", name));
      auto fetch = c->g->node(out->at.node).name;
      if (out->at.output > 0) fetch += ":" + std::to_string(out->at.output);
      c->fetches.push_back(std::move(fetch));
    }
    c->runner = session_.runner(*c->g, {.name = "model"});
    return c;
  }
  static std::string key_of(const specs& row, std::uint64_t rows) {
    std::string text;
    for (const auto& s : row) text += to_string(s) + " ";
    return text + std::to_string(rows);
  }
  // For `n` rows: with any number of them; or, where the file says how many, or has ops that need
  // the number (a Reshape to -1), with so many at a time, or a power of two.
  result<std::shared_ptr<compiled>> of(const specs& row, std::uint64_t n) {
    const std::lock_guard lock(mutex_);
    const auto known = [&](std::uint64_t rows) -> std::shared_ptr<compiled>& {
      return compiled_[key_of(row, rows)];
    };
    const auto use = [&](std::shared_ptr<compiled> c) {
      c->used = ++uses_;
      return c;
    };
    const auto add = [&](std::uint64_t rows, dim d) -> result<std::shared_ptr<compiled>> {
      auto c = compile(row, d);
      if (!c) {
        compiled_.erase(key_of(row, rows));
        return std::move(c.error());
      }
      keep_few();
      return known(rows) = std::shared_ptr<compiled>(std::move(*c));
    };
    if (fixed_rows_) {
      if (auto& c = known(*fixed_rows_); c != nullptr) return use(c);
      auto c = add(*fixed_rows_, dim{static_cast<std::int64_t>(*fixed_rows_), 0});
      return c ? use(*c) : std::move(c);
    }
    if (auto& c = known(0); c != nullptr) return use(c);
    const auto most = std::clamp<std::uint64_t>(options_.batch_max, 1, batch_limit);
    const auto exact = std::bit_ceil(std::min(n, most));
    if (auto& c = known(exact); c != nullptr) return use(c);
    auto any = add(0, batch_of(static_cast<std::int64_t>(most)));
    if (any) return use(*any);
    auto c = add(exact, dim{static_cast<std::int64_t>(exact), 0});
    return c ? use(*c) : std::move(any);
  }
  // Shapes that came long ago go; who still runs them holds them.
  void keep_few() {
    std::erase_if(compiled_, [](const auto& c) { return c.second == nullptr; });
    while (compiled_.size() >= shapes_max)
      compiled_.erase(
          std::ranges::min_element(compiled_, {}, [](const auto& c) { return c.second->used; }));
  }

  // With `n` rows, which all outputs have.
  result<std::vector<tensor>> once(compiled& c, std::vector<tensor> fed, std::uint64_t n) const {
    std::vector<graph_runner::feed> feeds;
    for (std::size_t i = 0; i < fed.size(); ++i)
      if (!c.feeds[i].empty()) feeds.emplace_back(c.feeds[i], std::move(fed[i]));
    const std::vector<std::string_view> fetches(c.fetches.begin(), c.fetches.end());
    auto out = c.runner->run(feeds, fetches);
    if (!out) return refuse(out.error().message(), out.error().code());
    for (std::size_t i = 0; i < outputs_.size(); ++i)
      if (const auto& s = (*out)[i].shape();
          s.rank() == 0 || static_cast<std::uint64_t>(s.size(0)) != n)
        return refuse(
            fmt::format("'{}' is {} for {} rows", outputs_[i], to_string((*out)[i].spec()), n));
    return out;
  }
  result<std::vector<tensor>> rows(const std::vector<tensor>& all) {
    const auto n = static_cast<std::uint64_t>(all.front().shape().size(0));
    specs row;
    for (std::size_t i = 0; i < all.size(); ++i) {
      row.push_back(row_of(all[i].spec()));
      if (static_cast<std::uint64_t>(all[i].shape().size(0)) != n)
        return refuse(fmt::format("'{}' has {} rows, and '{}' has {}", inputs_[0].name, n,
                                  inputs_[i].name, all[i].shape().size(0)));
    }
    if (n == 0) return refuse("a batch without rows");
    auto found = of(row, n);
    if (!found) return std::move(found.error());
    const auto held = *found;
    auto& c = *held;
    if (n == c.rows || (n < c.rows && !c.is_fixed)) return once(c, all, n);
    // A model whose rows see each other is run with those that there are, and no others.
    if (c.is_fixed && rows_mix_ && n <= options_.batch_max) return exactly(all, row, n);
    // So many at a time; the last ones are filled up where the number is fixed.
    std::vector<tensor> made(outputs_.size());
    for (std::uint64_t at = 0; at < n; at += c.rows) {
      const auto some = std::min(c.rows, n - at);
      const auto fed = c.is_fixed ? c.rows : some;
      std::vector<tensor> parts;
      for (std::size_t i = 0; i < all.size(); ++i) {
        const auto row_bytes = all[i].size_bytes() / n;
        auto part = tensor::make(with_rows(row[i], dim{static_cast<std::int64_t>(fed), 0}));
        std::memcpy(part.bytes().data(), all[i].bytes().data() + at * row_bytes, some * row_bytes);
        std::memset(part.bytes().data() + some * row_bytes, 0, (fed - some) * row_bytes);
        parts.push_back(std::move(part));
      }
      auto out = once(c, std::move(parts), fed);
      if (!out) return out;
      if (fed > some && fillings_ < fillings_checked) {
        ++fillings_;
        const auto right = check_filling(all, row, at, some, *out);
        if (!right) return right;
        out = right;
      }
      for (std::size_t i = 0; i < made.size(); ++i) {
        const auto& y = std::as_const((*out)[i]);
        const auto out_bytes = y.size_bytes() / static_cast<std::uint64_t>(y.shape().size(0));
        if (!made[i])
          made[i] = tensor::make(with_rows(row_of(y.spec()), dim{static_cast<std::int64_t>(n), 0}));
        std::memcpy(made[i].bytes().data() + at * out_bytes, y.bytes().data(), some * out_bytes);
      }
    }
    return made;
  }

  // Rows `at` to `at + some` alone.
  static std::vector<tensor> rows_from(const std::vector<tensor>& all, std::uint64_t at,
                                       std::uint64_t some) {
    std::vector<tensor> parts;
    for (const auto& x : all) {
      const auto bytes = x.size_bytes() / static_cast<std::uint64_t>(x.shape().size(0));
      auto part =
          tensor::make(with_rows(row_of(x.spec()), dim{static_cast<std::int64_t>(some), 0}));
      std::memcpy(part.bytes().data(), x.bytes().data() + at * bytes, some * bytes);
      parts.push_back(std::move(part));
    }
    return parts;
  }
  // Compiled for so many rows, and no others.
  result<std::vector<tensor>> exactly(const std::vector<tensor>& all, const specs& row,
                                      std::uint64_t n) {
    std::shared_ptr<compiled> c;
    {
      const std::lock_guard lock(mutex_);
      auto& known = compiled_[key_of(row, n)];
      if (known == nullptr) {
        auto made = compile(row, dim{static_cast<std::int64_t>(n), 0});
        if (!made) return std::move(made.error());
        known = std::shared_ptr<compiled>(std::move(*made));
      }
      known->used = ++uses_;
      c = known;
      keep_few();
    }
    return once(*c, all, n);
  }
  // What came of `some` rows and others that fill them up, or, where that is not what comes of
  // them alone, that. Where the file does not let them be alone, it stays.
  result<std::vector<tensor>> check_filling(const std::vector<tensor>& all, const specs& row,
                                            std::uint64_t at, std::uint64_t some,
                                            const std::vector<tensor>& filled) {
    auto alone = exactly(rows_from(all, at, some), row, some);
    if (!alone) return filled;
    for (std::size_t i = 0; i < filled.size(); ++i)
      if (!are_close((*alone)[i], filled[i])) {
        rows_mix_ = true;
        return alone;
      }
    return filled;
  }
  // The first rows of `b`, but for how sums are rounded.
  static bool are_close(const tensor& a, const tensor& b) {
    const auto bytes = a.size_bytes();
    if (bytes > b.size_bytes() || a.type() != b.type()) return false;
    if (a.type() != dtype::f32) return std::memcmp(a.bytes().data(), b.bytes().data(), bytes) == 0;
    const auto *x = a.data<float>(), *y = b.data<float>();
    for (std::int64_t i = 0; i < a.elements(); ++i)
      if (x[i] != y[i] && !(std::abs(x[i] - y[i]) <= 1e-3F * std::max(std::abs(x[i]), 1e-3F)) &&
          !(std::isnan(x[i]) && std::isnan(y[i])))
        return false;
    return true;
  }

  session& session_;
  onnx_model model_;
  std::string path_;
  model_options options_;
  std::vector<port> inputs_;
  std::vector<std::string> outputs_;
  std::optional<std::uint64_t> fixed_rows_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<compiled>> compiled_;  // by the specs of a row, and rows
  std::uint64_t uses_ = 0;
  std::atomic<int> fillings_{0};       // that were checked
  std::atomic<bool> rows_mix_{false};  // what comes of a row depends on the others
};

result<std::shared_ptr<onnx_ports>> onnx_ports::get(const std::string& path, const model_options& o,
                                                    const std::vector<std::string>& inputs,
                                                    const std::vector<std::string>& outputs) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<onnx_ports>> all;
  const std::lock_guard lock(mutex);
  // A file that was written anew is another one.
  std::error_code ignored;
  const auto written = std::filesystem::last_write_time(path, ignored).time_since_epoch().count();
  auto& known = all[fmt::format("{}\n{}\n{}\n{}\n{}\n{}", path, written, o.batch_max, o.device,
                                fmt::join(inputs, "\t"), fmt::join(outputs, "\t"))];
  if (auto l = known.lock()) return l;
  auto file = load_onnx(path);
  if (!file) {
    auto where = std::filesystem::path(path).is_relative()
                     ? fmt::format(" (in {})", std::filesystem::current_path(ignored).string())
                     : std::string();
    return error(file.error().code(), file.error().message() + where);
  }
  auto s = shared_session(o.device);
  if (!s) return std::move(s.error());
  std::shared_ptr<onnx_ports> l(new onnx_ports(**s, std::move(*file), path, o));
  if (auto ok = l->find_ports(inputs, outputs); !ok) return std::move(ok.error());
  known = l;
  return l;
}

result<std::shared_ptr<onnx_ports>> open_onnx(const std::string& path, const model_options& o,
                                              const std::vector<std::string>& inputs,
                                              const std::vector<std::string>& outputs) {
  return onnx_ports::get(path, o, inputs, outputs);
}
result<std::vector<tensor>> run_onnx(const std::shared_ptr<onnx_ports>& model,
                                     const std::string& path, std::vector<tensor> item) {
  if (model == nullptr) return error(error_code::usage, path + ": open() was not called");
  return model->run(std::move(item));
}
result<std::vector<std::vector<tensor>>> run_onnx(const std::shared_ptr<onnx_ports>& model,
                                                  const std::string& path,
                                                  const std::vector<std::vector<tensor>>& batch) {
  if (model == nullptr) return error(error_code::usage, path + ": open() was not called");
  return model->run(batch);
}

model::model(std::string path, model_options options)
    : path_(std::move(path)), options_(std::move(options)) {}

result<void> model::open() {
  auto l = open_onnx(
      path_, options_, {},
      options_.output.empty() ? std::vector<std::string>{} : std::vector{options_.output});
  if (!l) return std::move(l.error());
  loaded_ = std::move(*l);
  return {};
}

result<tensor> model::operator()(const tensor& x) const {
  auto out = run_onnx(loaded_, path_, std::vector{x});
  if (!out) return std::move(out.error());
  return std::move(out->front());
}
result<std::vector<tensor>> model::operator()(const std::vector<tensor>& batch) const {
  std::vector<std::vector<tensor>> items;
  for (const auto& x : batch) items.push_back({x});
  auto out = run_onnx(loaded_, path_, items);
  if (!out) return std::move(out.error());
  std::vector<tensor> all;
  for (auto& y : *out) all.push_back(std::move(y.front()));
  return all;
}

const stage_library& model::library() {
  static const stage_library stages(
      "troupe.models", std::string(version()),
      {stage_of<model, tensor>("model"), stage_of<model, std::vector<tensor>>("model_of_batches")});
  return stages;
}

}  // namespace troupe
