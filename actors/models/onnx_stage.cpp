#include "troupe/actors/models/onnx_stage.hpp"

#include "troupe/actors/flow/model_stage.hpp"
#include "troupe/actors/session/session.hpp"
#include "troupe/runtime/onnx/onnx_import.hpp"
#include "troupe/schema/version.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
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

std::string names_of(const std::vector<onnx_port>& ports) {
  std::string text;
  for (const auto& p : ports) text += (text.empty() ? "" : ", ") + p.name;
  return text.empty() ? "there are none" : "there are " + text;
}

}  // namespace

// A file, and its graph for each shape of a row.
class model::loaded {
 public:
  static result<std::shared_ptr<loaded>> get(const std::string& path, const model_options& o);

  // One row, or several along a first dimension.
  result<tensor> run(const tensor& x) {
    const bool is_row = rank_ && x.shape().rank() + 1 == *rank_;
    if (rank_ && !is_row && x.shape().rank() != *rank_)
      return refuse(fmt::format("'{}' has {} dimensions, with that of the batch, and an item is {}",
                                input_, *rank_, to_string(x.spec())));
    if (!is_row && x.shape().rank() == 0)
      return refuse(fmt::format("'{}' takes rows, and an item is a single number", input_));
    if (!is_row) return rows(x);
    auto out = rows(x.part(0, with_rows(x.spec(), dim{1, 0})));
    if (!out) return out;
    return out->part(0, row_of(out->spec()));
  }
  result<std::vector<tensor>> run(const std::vector<tensor>& batch) {
    if (batch.empty()) return std::vector<tensor>();
    // Items that have the batch's dimension: each has a row.
    const auto& first = batch.front();
    const bool has_batch = rank_ && first.shape().rank() == *rank_ && first.shape().size(0) == 1;
    std::vector<tensor> parts;
    if (has_batch)
      for (const auto& x : batch)
        parts.push_back(x.shape().rank() > 0 && x.shape().size(0) == 1 ? x.part(0, row_of(x.spec()))
                                                                       : x);
    auto all = stack(has_batch ? parts : batch);
    if (!all) return std::move(all.error());
    auto out = rows(*all);
    if (!out) return std::move(out.error());
    auto each = unstack(*out);
    if (each && has_batch)
      for (auto& y : *each) y = y.part(0, with_rows(y.spec(), dim{1, 0}));
    return each;
  }

 private:
  struct compiled {
    std::unique_ptr<graph> g;
    std::unique_ptr<graph_runner> runner;
    std::string feed, fetch;
    std::uint64_t rows = 0;  // at most, or, where they are fixed, exactly
    bool is_fixed = false;
    std::uint64_t used = 0;
  };

  loaded(session& s, onnx_model m, std::string path, const model_options& o)
      : session_(s), model_(std::move(m)), path_(std::move(path)), options_(o) {}

  error refuse(const std::string& why, error_code code = error_code::usage) const {
    return {code, path_ + ": " + why};
  }

  result<void> find_ports() {
    const auto& inputs = model_.inputs();
    const auto& outputs = model_.outputs();
    if (inputs.size() != 1)
      return refuse("a stage feeds one input, and " + names_of(inputs) +
                    ": use a graph_runner in a stage of your own");
    const auto* in = &inputs.front();
    if (outputs.empty()) return refuse("it has no output");
    output_ = outputs.front().name;
    if (!options_.output.empty()) {
      const auto at = std::ranges::find(outputs, options_.output, &onnx_port::name);
      if (at == outputs.end())
        return refuse(fmt::format("it has no output '{}': {}", options_.output, names_of(outputs)));
      output_ = at->name;
    }
    input_ = in->name;
    if (in->dims && in->dims->empty())
      return refuse(fmt::format("'{}' is a single number: a stage feeds rows", input_));
    if (!in->dims) return {};
    rank_ = in->dims->size();
    if (*rank_ > shape::rank_max)
      return refuse(fmt::format("'{}' has {} dimensions", input_, *rank_));
    if (const auto n = in->dims->front().size; n && *n > 0)
      fixed_rows_ = static_cast<std::uint64_t>(*n);
    // Compiled now, where the file says all: so an op that is missing is told before anything runs.
    std::vector<dim> row;
    for (std::size_t i = 1; i < in->dims->size(); ++i) {
      if (!(*in->dims)[i].size) return {};
      row.push_back({*(*in->dims)[i].size, 0});
    }
    const auto s = shape::from(row);
    if (!s || !in->element) return {};
    if (auto c = of({*in->element, *s}, 1); !c) return std::move(c.error());
    return {};
  }

  result<std::unique_ptr<compiled>> compile(const tensor_spec& row, dim rows) const {
    auto c = std::make_unique<compiled>();
    c->g = std::make_unique<graph>(session_.ops());
    c->rows = static_cast<std::uint64_t>(rows.size);
    c->is_fixed = rows != batch_of(rows.size);
    const auto build = [&] {
      return model_.build(*c->g, {.shapes = {{input_, with_rows(row, rows)}}});
    };
    const auto build_there = [&] {
      const auto scope = c->g->device_scope(options_.device);
      return build();
    };
    auto built = options_.device.empty() ? build() : build_there();
    // It names the file.
    if (!built) return error(built.error().code(), built.error().message());
    const auto in = std::ranges::find(built->inputs, input_, &onnx_value::name);
    const auto out = std::ranges::find(built->outputs, output_, &onnx_value::name);
    if (in == built->inputs.end() || out == built->outputs.end())
      return refuse(fmt::format("'{}' does not depend on '{}'", output_, input_));
    c->feed = c->g->node(in->at.node).name;
    c->fetch = c->g->node(out->at.node).name;
    if (out->at.output > 0) c->fetch += ":" + std::to_string(out->at.output);
    c->runner = session_.runner(*c->g, {.name = "model"});
    return c;
  }
  // For `n` rows: with any number of them; or, where the file says how many, or has ops that need
  // the number (a Reshape to -1), with so many at a time, or a power of two.
  result<std::shared_ptr<compiled>> of(const tensor_spec& row, std::uint64_t n) {
    const std::lock_guard lock(mutex_);
    const auto known = [&](std::uint64_t rows) -> std::shared_ptr<compiled>& {
      return compiled_[fmt::format("{} {}", to_string(row), rows)];
    };
    const auto use = [&](std::shared_ptr<compiled> c) {
      c->used = ++uses_;
      return c;
    };
    const auto add = [&](std::uint64_t rows, dim d) -> result<std::shared_ptr<compiled>> {
      auto c = compile(row, d);
      if (!c) {
        compiled_.erase(fmt::format("{} {}", to_string(row), rows));
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

  result<tensor> once(compiled& c, tensor x) const {
    auto out = c.runner->run({{c.feed, std::move(x)}}, {c.fetch});
    if (!out) return refuse(out.error().message(), out.error().code());
    return std::move(out->front());
  }
  result<tensor> rows(const tensor& x) {
    const auto row = row_of(x.spec());
    const auto n = static_cast<std::uint64_t>(x.shape().size(0));
    if (n == 0) return refuse("a batch without rows");
    auto found = of(row, n);
    if (!found) return std::move(found.error());
    const auto held = *found;
    auto& c = *held;
    if (n == c.rows || (n < c.rows && !c.is_fixed)) {
      auto y = once(c, x);
      if (y && (y->shape().rank() == 0 || static_cast<std::uint64_t>(y->shape().size(0)) != n))
        return refuse(fmt::format("'{}' is {} for {} rows", output_, to_string(y->spec()), n));
      return y;
    }
    // So many at a time; the last ones are filled up where the number is fixed.
    const auto row_bytes = x.size_bytes() / n;
    tensor all;
    for (std::uint64_t at = 0; at < n; at += c.rows) {
      const auto some = std::min(c.rows, n - at);
      const auto fed = c.is_fixed ? c.rows : some;
      auto part = tensor::make(with_rows(row, dim{static_cast<std::int64_t>(fed), 0}));
      std::memcpy(part.bytes().data(), x.bytes().data() + at * row_bytes, some * row_bytes);
      std::memset(part.bytes().data() + some * row_bytes, 0, (fed - some) * row_bytes);
      auto y = once(c, std::move(part));
      if (!y) return y;
      if (y->shape().rank() == 0 || static_cast<std::uint64_t>(y->shape().size(0)) != fed)
        return refuse(fmt::format("'{}' is {} for {} rows", output_, to_string(y->spec()), fed));
      const auto out_row = row_of(y->spec());
      const auto out_bytes = y->size_bytes() / fed;
      if (!all) all = tensor::make(with_rows(out_row, dim{static_cast<std::int64_t>(n), 0}));
      std::memcpy(all.bytes().data() + at * out_bytes, std::as_const(*y).bytes().data(),
                  some * out_bytes);
    }
    return all;
  }

  session& session_;
  onnx_model model_;
  std::string path_;
  model_options options_;
  std::string input_, output_;
  std::optional<std::size_t> rank_;  // of the input, with the batch's dimension
  std::optional<std::uint64_t> fixed_rows_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<compiled>> compiled_;  // by the spec of a row, and rows
  std::uint64_t uses_ = 0;
};

result<std::shared_ptr<model::loaded>> model::loaded::get(const std::string& path,
                                                          const model_options& o) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<loaded>> all;
  const std::lock_guard lock(mutex);
  // A file that was written anew is another one.
  std::error_code ignored;
  const auto written = std::filesystem::last_write_time(path, ignored).time_since_epoch().count();
  auto& known =
      all[fmt::format("{}\n{}\n{}\n{}\n{}", path, written, o.batch_max, o.output, o.device)];
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
  std::shared_ptr<loaded> l(new loaded(**s, std::move(*file), path, o));
  if (auto ok = l->find_ports(); !ok) return std::move(ok.error());
  known = l;
  return l;
}

model::model(std::string path, model_options options)
    : path_(std::move(path)), options_(std::move(options)) {}

result<void> model::open() {
  auto l = loaded::get(path_, options_);
  if (!l) return std::move(l.error());
  loaded_ = std::move(*l);
  return {};
}

result<tensor> model::operator()(const tensor& x) const {
  if (loaded_ == nullptr) return error(error_code::usage, path_ + ": open() was not called");
  return loaded_->run(x);
}
result<std::vector<tensor>> model::operator()(const std::vector<tensor>& batch) const {
  if (loaded_ == nullptr) return error(error_code::usage, path_ + ": open() was not called");
  return loaded_->run(batch);
}

const stage_library& model::library() {
  static const stage_library stages(
      "troupe.models", std::string(version()),
      {stage_of<model, tensor>("model"), stage_of<model, std::vector<tensor>>("model_of_batches")});
  return stages;
}

}  // namespace troupe
