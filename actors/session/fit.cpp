#include "troupe/actors/session/fit.hpp"

#include "troupe/actors/session/event_file.hpp"
#include "troupe/actors/session/record_file.hpp"
#include "troupe/devices/files/idx_sampler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <thread>

namespace troupe {
namespace {

result<double> number_of(const tensor& t, std::string_view name) {
  if (t.spec() != tensor_spec{dtype::f32, {}})
    return error(error_code::usage,
                 fmt::format("fit: '{}' is {}, but f32[] is wanted", name, to_string(t.spec())));
  return static_cast<double>(*t.data<float>());
}

std::vector<graph_runner::feed> feeds_of(const fed_batch& batch) {
  std::vector<graph_runner::feed> out;
  for (const auto& [name, value] : batch) out.emplace_back(name, value);
  return out;
}

double rows_of(const fed_batch& batch) {
  if (batch.empty() || !batch.front().second || batch.front().second.shape().rank() == 0) return 1;
  return static_cast<double>(batch.front().second.shape().size(0));
}

class fitting {
 public:
  fitting(graph_runner& r, variable_store& store, const fit_options& o)
      : runner_(r), store_(store), o_(o) {}

  result<fit_report> run() {
    if (auto ok = check(); !ok) return std::move(ok.error());
    if (auto ok = open_log(); !ok) return std::move(ok.error());
    if (auto ok = open_events(); !ok) return std::move(ok.error());
    if (auto ok = open_record(); !ok) return std::move(ok.error());
    auto ended = epochs();
    if (ended && events_) ended = of_events(events_->close());
    if (ended && record_) ended = of_record(record_->close());
    if (o_.keeps_best && !best_.empty())
      if (auto ok = store_.set(std::move(best_)); !ok && ended) return std::move(ok.error());
    if (!ended) return std::move(ended.error());
    return std::move(out_);
  }

 private:
  struct closer {
    void operator()(std::FILE* f) const { std::fclose(f); }
  };

  result<void> check() const {
    const auto refuse = [](std::string why) {
      return error(error_code::usage, "fit: " + std::move(why));
    };
    if (!o_.training) return refuse("there are no batches to train on");
    if (!o_.validation && !o_.metrics.empty())
      return refuse(
          fmt::format("metric '{}' is of a validation, and there is none", o_.metrics.front()));
    if (!o_.validation && o_.validator != nullptr)
      return refuse("there is a validator, and no validation");
    if (!(o_.at_least >= 0))
      return refuse(fmt::format("at_least is {}, but a gain is 0 or more", o_.at_least));
    if (!runner_.is_on(store_)) return refuse("the runner is not one on this store");
    if (o_.validator != nullptr && !o_.validator->is_on(store_))
      return refuse("the validator is not a runner on this store");
    return {};
  }

  result<void> epochs() {
    for (std::uint64_t e = 0; e < o_.epochs; ++e) {
      const auto began = std::chrono::steady_clock::now();
      const auto before = out_.steps;
      const auto seconds = [&] {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
      };
      epoch_report told{.epoch = e};
      if (auto ok = train(told); !ok) return std::move(ok.error());
      const auto training_seconds = seconds();
      if (o_.validation)
        if (auto ok = validate(told); !ok) return std::move(ok.error());
      if (auto ok = judge(told); !ok) return std::move(ok.error());
      told.seconds = seconds();
      if (auto ok = write(told); !ok) return ok;
      if (auto ok = show_epoch(told, out_.steps - before, training_seconds); !ok) return ok;
      out_.epochs.push_back(told);
      if (o_.on_epoch && !o_.on_epoch(told)) is_called_off_ = true;
      if (is_called_off_) {
        out_.why = fit_end::callback;
        break;
      }
      if (o_.patience > 0 && e - out_.best_epoch >= o_.patience) {
        out_.why = fit_end::no_progress;
        break;
      }
    }
    return {};
  }

  result<void> open_log() {
    if (o_.log_file.empty()) return {};
    log_.reset(std::fopen(o_.log_file.c_str(), "a"));
    if (!log_)
      return error(error_code::failed, fmt::format("fit: {} cannot be written", o_.log_file));
    return {};
  }

  result<void> open_events() {
    if (o_.tensorboard.empty()) return {};
    auto opened = event_file::open(o_.tensorboard);
    if (!opened) return of_events(std::move(opened.error()));
    events_ = std::move(*opened);
    return of_events(events_->begin_at(0));
  }

  static result<void> of_events(result<void> done) {
    if (!done) done.error().while_doing("fit: tensorboard");
    return done;
  }

  result<void> open_record() {
    if (o_.record.empty()) return {};
    auto opened = record_file::open(o_.record);
    if (!opened) return of_record(std::move(opened.error()));
    record_ = std::move(*opened);
    return of_record(record_->begin_at(0));
  }

  static result<void> of_record(result<void> done) {
    if (!done) done.error().while_doing("fit: record");
    return done;
  }

  result<void> show_step(double loss) {
    if (!is_kept(out_.steps)) return {};
    if (record_)
      if (auto ok = record_->add({.step = out_.steps, .loss = loss}); !ok)
        return of_record(std::move(ok));
    if (!events_) return {};
    return of_events(events_->add_scalar(o_.loss, out_.steps, loss));
  }

  // At the epoch's last step.
  result<void> show_epoch(const epoch_report& told, std::uint64_t steps, double training_seconds) {
    const auto each = [&](const auto& add) {
      result<void> ok = add("epoch/" + o_.loss, told.loss);
      for (std::size_t i = 0; ok && i < told.metrics.size(); ++i)
        ok = add("validation/" + metric_name(i), told.metrics[i]);
      if (ok && training_seconds > 0)
        ok = add("steps_per_second", static_cast<double>(steps) / training_seconds);
      return ok;
    };
    const auto step = told.steps - 1;
    if (record_) {
      auto ok = each([&](const std::string& name, double x) {
        return record_->add({.step = step, .metric = name, .value = x});
      });
      if (ok) ok = record_->flush();
      if (!ok) return of_record(std::move(ok));
    }
    if (!events_) return {};
    auto ok =
        each([&](const std::string& tag, double x) { return events_->add_scalar(tag, step, x); });
    if (ok) ok = events_->flush();
    return of_events(std::move(ok));
  }

  const std::string& metric_name(std::size_t i) const {
    return o_.metrics.empty() ? o_.loss : o_.metrics[i];
  }

  // A step that failed has changed nothing. A node that is gone makes what went before a usage
  // error, until another has its place.
  result<std::vector<tensor>> step(graph_runner& r, const fed_batch& batch,
                                   std::span<const std::string_view> fetches,
                                   std::span<const std::string_view> updates, bool& has_stepped) {
    const auto feeds = feeds_of(batch);
    std::optional<error> first;
    for (std::uint64_t attempt = 0;; ++attempt) {
      auto out = r.step(feeds, fetches, updates);
      if (out) {
        has_stepped = true;
        return out;
      }
      const auto code = out.error().code();
      const bool may_pass =
          code == error_code::failed || (code == error_code::usage && has_stepped);
      if (!may_pass || attempt >= o_.retries) return first ? std::move(*first) : std::move(out);
      if (!first) first = out.error();
      std::this_thread::sleep_for(std::chrono::milliseconds(
          20 * std::min<std::uint64_t>(attempt + 1, 25)));  // until the loss is known, or mended
    }
  }

  result<void> train(epoch_report& told) {
    const std::string_view fetches[] = {o_.loss}, updates[] = {o_.update};
    double sum = 0;
    std::uint64_t steps = 0;
    for (;; ++steps) {
      auto batch = o_.training(told.epoch, steps);
      if (batch.failure) return std::move(*batch.failure);
      if (!batch.batch) break;
      const auto values = step(runner_, *batch.batch, fetches, updates, has_trained_);
      if (!values) return values.error();
      const auto loss = number_of((*values)[0], o_.loss);
      if (!loss) return loss.error();
      sum += *loss;
      if (auto ok = show_step(*loss); !ok) return ok;
      ++out_.steps;
      if (o_.on_step && !o_.on_step(out_.steps - 1, *loss)) {
        is_called_off_ = true;
        ++steps;
        break;
      }
    }
    if (steps == 0)
      return error(
          error_code::usage,
          fmt::format("fit: epoch {} has no batch to train on: a source begins anew in each "
                      "epoch, with step 0",
                      told.epoch));
    told.loss = sum / static_cast<double>(steps);
    told.steps = out_.steps;
    return {};
  }

  result<void> validate(epoch_report& told) {
    std::vector<std::string_view> fetches(o_.metrics.begin(), o_.metrics.end());
    if (fetches.empty()) fetches.emplace_back(o_.loss);
    auto& r = o_.validator != nullptr ? *o_.validator : runner_;
    told.metrics.assign(fetches.size(), 0);
    double rows = 0;
    for (std::uint64_t i = 0;; ++i) {
      auto batch = o_.validation(told.epoch, i);
      if (batch.failure) return std::move(*batch.failure);
      if (!batch.batch) break;
      if (rows_of(*batch.batch) == 0) continue;
      const auto values = step(r, *batch.batch, fetches, {}, has_validated_);
      if (!values) return values.error();
      const auto weight = rows_of(*batch.batch);
      for (std::size_t m = 0; m < fetches.size(); ++m) {
        const auto x = number_of((*values)[m], fetches[m]);
        if (!x) return x.error();
        told.metrics[m] += weight * *x;
      }
      rows += weight;
    }
    if (rows == 0) return error(error_code::usage, "fit: the validation has no batch with a row");
    for (auto& m : told.metrics) m /= rows;
    return {};
  }

  // NaN is no better than anything.
  result<void> judge(epoch_report& told) {
    const auto x = told.metrics.empty() ? told.loss : told.metrics.front();
    const auto gain = o_.is_larger_better ? x - out_.best : out_.best - x;
    told.is_best = !std::isnan(x) && (!has_best_ || gain > o_.at_least);
    if (!told.is_best) return {};
    has_best_ = true;
    out_.best = x;
    out_.best_epoch = told.epoch;
    if (o_.keeps_best) {
      best_ = store_.snapshot().variables;
      const auto changed = runner_.changed_by(o_.update);
      std::erase_if(best_, [&](const auto& v) { return !std::ranges::count(changed, v.first); });
    }
    if (o_.save_best.empty()) return {};
    return store_.save(o_.save_best, {.optimizers = o_.saves_optimizers});
  }

  result<void> write(const epoch_report& told) {
    if (!log_) return {};
    const auto number = [](double x) {
      return std::isfinite(x) ? fmt::format("{}", x) : std::string("null");
    };
    auto line = fmt::format("{{\"epoch\":{},\"steps\":{},\"seconds\":{:.6f},\"loss\":{}",
                            told.epoch, told.steps, told.seconds, number(told.loss));
    for (std::size_t i = 0; i < told.metrics.size(); ++i)
      line += fmt::format(",\"validation/{}\":{}", metric_name(i), number(told.metrics[i]));
    line += fmt::format(",\"is_best\":{}}}\n", told.is_best);
    if (std::fputs(line.c_str(), log_.get()) < 0 || std::fflush(log_.get()) != 0)
      return error(error_code::failed, fmt::format("fit: {} cannot be written", o_.log_file));
    return {};
  }

  graph_runner& runner_;
  variable_store& store_;
  const fit_options& o_;
  fit_report out_;
  bool has_best_ = false, is_called_off_ = false;
  bool has_trained_ = false, has_validated_ = false;  // at least one step of each went well
  std::vector<std::pair<std::string, tensor>> best_;
  std::unique_ptr<std::FILE, closer> log_;
  std::unique_ptr<event_file> events_;
  std::unique_ptr<record_file> record_;
};

}  // namespace

batch_source times(std::uint64_t steps) {
  return [steps](std::uint64_t, std::uint64_t step) -> next_batch {
    if (step < steps) return fed_batch{};
    return std::nullopt;
  };
}

batch_source batches_of(std::vector<std::pair<std::string, tensor>> data, std::int64_t rows,
                        std::optional<std::uint64_t> shuffled_by) {
  return [data = std::move(data), rows, shuffled_by, order = std::vector<std::uint32_t>(),
          of_epoch = std::optional<std::uint64_t>()](std::uint64_t epoch,
                                                     std::uint64_t step) mutable -> next_batch {
    const auto refuse = [](std::string why) {
      return error(error_code::usage, "batches_of: " + std::move(why));
    };
    if (data.empty() || rows < 1) return refuse("there are no data, or batches of no row");
    const auto rows_in = [](const tensor& t) {
      return t && t.shape().rank() > 0 ? t.shape().size(0) : std::int64_t{-1};
    };
    const auto all = rows_in(data.front().second);
    for (const auto& [name, t] : data)
      if (rows_in(t) != all || all < 0)
        return refuse(
            fmt::format("'{}' is {}, and '{}' {}: they have as many rows each", name,
                        t ? to_string(t.spec()) : "no tensor", data.front().first,
                        data.front().second ? to_string(data.front().second.spec()) : "no tensor"));
    const auto first = static_cast<std::int64_t>(step) * rows;
    if (first >= all) return std::nullopt;
    if (shuffled_by && of_epoch != epoch) {
      if (all > std::numeric_limits<std::uint32_t>::max()) return refuse("there are too many rows");
      order = permutation(*shuffled_by, epoch, static_cast<std::uint32_t>(all));
      of_epoch = epoch;
    }
    const auto count = std::min(rows, all - first);
    fed_batch out;
    for (const auto& [name, t] : data) {
      std::vector<dim> dims;
      for (const auto n : t.shape().sizes()) dims.push_back({n, 0});
      dims[0].size = count;
      auto part = tensor::make({t.type(), *shape::from(dims)});
      const auto bytes = t.size_bytes() / static_cast<std::size_t>(all);
      for (std::int64_t i = 0; i < count; ++i) {
        const auto at = static_cast<std::size_t>(first + i);
        const auto row = shuffled_by ? std::size_t{order[at]} : at;
        std::ranges::copy(t.bytes().subspan(row * bytes, bytes),
                          part.bytes().begin() +
                              static_cast<std::ptrdiff_t>(static_cast<std::size_t>(i) * bytes));
      }
      out.emplace_back(name, std::move(part));
    }
    return out;
  };
}

result<fit_report> fit(graph_runner& r, variable_store& store, const fit_options& options) {
  return fitting(r, store, options).run();
}

static bool is_rate_of(const graph& g, const rate_options& o) {
  const auto at = std::ranges::find(g.nodes(), o.rate, &graph_node::name);
  return at != g.nodes().end() && std::ranges::any_of(g.updates(), [&](const auto& u) {
           return u.name == o.update && u.rate.is_valid() &&
                  g.needed_by(std::span(&u.rate, 1))[at->index];
         });
}

result<rate_report> find_learning_rate(session& s, const graph& g, const variable_store& store,
                                       const rate_options& o) {
  if (!(o.from >= 1e-37 && o.to > o.from && o.to <= 1e37) || o.steps < 2 || !o.training)
    return error(
        error_code::usage,
        fmt::format("find_learning_rate: rates from {} to {} in {} steps: it needs 1e-37 <= "
                    "from < to <= 1e37, two steps, and batches",
                    o.from, o.to, o.steps));
  if (!is_rate_of(g, o))
    return error(
        error_code::usage,
        fmt::format("find_learning_rate: no update '{}' has the input '{}' as its rate: give "
                    "it as minimize_options::rate",
                    o.update, o.rate));
  const auto copy = s.make_store();
  if (auto ok = copy->set(store.snapshot().variables); !ok) return std::move(ok.error());
  const auto r = s.runner(g, *copy);
  const std::string_view fetches[] = {o.loss}, updates[] = {o.update};
  rate_report out;
  double smoothed = 0, least = std::numeric_limits<double>::infinity(), first = 0, best_rate = 0;
  constexpr double memory = 0.8;
  std::uint64_t epoch = 0, of_epoch = 0;
  for (std::uint64_t i = 0; i < o.steps; ++i) {
    auto batch = o.training(epoch, of_epoch++);
    if (!batch.failure && !batch.batch) {
      of_epoch = 0;
      batch = o.training(++epoch, of_epoch++);
    }
    if (batch.failure) return std::move(*batch.failure);
    if (!batch.batch) return error(error_code::usage, "find_learning_rate: an epoch has no batch");
    const auto rate =
        o.from * std::pow(o.to / o.from, static_cast<double>(i) / static_cast<double>(o.steps - 1));
    auto feeds = feeds_of(*batch.batch);
    std::erase_if(feeds, [&](const auto& f) { return f.first == o.rate; });
    feeds.emplace_back(o.rate, tensor::of({static_cast<float>(rate)}, {}));
    const auto values = r->step(feeds, fetches, updates);
    if (!values) return values.error();
    const auto loss = number_of((*values)[0], o.loss);
    if (!loss) return loss.error();
    out.losses.emplace_back(rate, *loss);
    // Without the bias of its beginning.
    smoothed = memory * smoothed + (1 - memory) * *loss;
    const auto now = smoothed / (1 - std::pow(memory, static_cast<double>(i + 1)));
    if (i == 0) first = now;
    if (now < least) least = now, best_rate = rate;
    if (std::isnan(now) || (i > 0 && now > first + std::max(first - least, std::abs(first)))) break;
  }
  if (least < first) out.suggested = best_rate / 10;
  return out;
}

}  // namespace troupe
