#include "troupe/actors/flow/model_stage.hpp"

#include <fmt/format.h>

#include <cstring>
#include <string_view>

namespace troupe {

result<tensor> stack(const std::vector<tensor>& parts) {
  if (parts.empty()) return error(error_code::usage, "a batch of no tensors");
  for (std::size_t i = 0; i < parts.size(); ++i)
    if (!parts[i])
      return error(error_code::usage, fmt::format("number {} of a batch is no tensor", i));
  const auto& spec = parts.front().spec();
  std::vector<dim> dims{{static_cast<std::int64_t>(parts.size()), 0}};
  for (std::size_t i = 0; i < spec.shape.rank(); ++i) dims.push_back(spec.shape[i]);
  const auto s = shape::from(dims);
  if (!s)
    return error(error_code::usage, fmt::format("{} tensors of {} are too many for one",
                                                parts.size(), to_string(spec)));
  for (std::size_t i = 1; i < parts.size(); ++i)
    if (parts[i].spec() != spec)
      return error(error_code::usage,
                   fmt::format("a batch of different tensors: number 0 is {}, number {} is {}",
                               to_string(spec), i, to_string(parts[i].spec())));
  auto all = tensor::make({spec.type, *s});
  auto* to = all.bytes().data();
  for (const auto& p : parts) {
    std::memcpy(to, p.bytes().data(), p.size_bytes());
    to += p.size_bytes();
  }
  return all;
}

result<std::vector<tensor>> unstack(const tensor& all) {
  const auto& spec = all.spec();
  if (spec.shape.rank() == 0) return error(error_code::usage, "a single number is no batch");
  std::vector<dim> rest;
  for (std::size_t i = 1; i < spec.shape.rank(); ++i) rest.push_back(spec.shape[i]);
  const tensor_spec one{spec.type, *shape::from(rest)};
  std::vector<tensor> parts;
  const auto* from = all.bytes().data();
  for (std::int64_t i = 0; i < spec.shape.size(0); ++i) {
    auto t = tensor::make(one);
    std::memcpy(t.bytes().data(), from, t.size_bytes());
    from += t.size_bytes();
    parts.push_back(std::move(t));
  }
  return parts;
}

graph_stage::graph_stage(session& s, const graph& g, std::string feed, std::string fetch,
                         const compile_options& options)
    : runner_(s.runner(g, options)), feed_(std::move(feed)), fetch_(std::move(fetch)) {}
graph_stage::graph_stage(std::shared_ptr<graph_runner> runner, std::string feed, std::string fetch)
    : runner_(std::move(runner)), feed_(std::move(feed)), fetch_(std::move(fetch)) {}

static result<void> is_whole(const std::vector<std::string>& feeds,
                             const std::vector<tensor>& item) {
  for (std::size_t i = 0; i < feeds.size(); ++i)
    if (!item[i])
      return error(error_code::usage, fmt::format("'{}' of an item is no tensor", feeds[i]));
  return {};
}

result<std::vector<tensor>> run_ports(graph_runner& r, const std::vector<std::string>& feeds,
                                      const std::vector<std::string>& fetches,
                                      std::vector<tensor> item) {
  std::vector<graph_runner::feed> fed;
  if (auto ok = is_whole(feeds, item); !ok) return std::move(ok.error());
  for (std::size_t i = 0; i < item.size(); ++i) fed.emplace_back(feeds[i], std::move(item[i]));
  const std::vector<std::string_view> names(fetches.begin(), fetches.end());
  return r.run(fed, names);
}

result<std::vector<std::vector<tensor>>> run_ports(graph_runner& r,
                                                   const std::vector<std::string>& feeds,
                                                   const std::vector<std::string>& fetches,
                                                   const std::vector<std::vector<tensor>>& batch) {
  std::vector<tensor> fed;
  for (const auto& item : batch)
    if (auto ok = is_whole(feeds, item); !ok) return std::move(ok.error());
  for (std::size_t i = 0; i < feeds.size(); ++i) {
    std::vector<tensor> parts;
    for (const auto& item : batch) parts.push_back(item[i]);
    auto all = stack(parts);
    if (!all)
      return error(all.error().code(), fmt::format("'{}': {}", feeds[i], all.error().message()));
    fed.push_back(std::move(*all));
  }
  auto out = run_ports(r, feeds, fetches, std::move(fed));
  if (!out) return std::move(out.error());
  std::vector<std::vector<tensor>> items(batch.size());
  for (std::size_t i = 0; i < out->size(); ++i) {
    auto parts = unstack((*out)[i]);
    if (!parts) return std::move(parts.error());
    if (parts->size() != batch.size())
      return error(error_code::failed, fmt::format("'{}' has {} rows for a batch of {}", fetches[i],
                                                   parts->size(), batch.size()));
    for (std::size_t n = 0; n < items.size(); ++n) items[n].push_back(std::move((*parts)[n]));
  }
  return items;
}

result<tensor> graph_stage::operator()(tensor x) const {
  auto out = run_ports(*runner_, {feed_}, {fetch_}, std::vector<tensor>{std::move(x)});
  if (!out) return std::move(out.error());
  return std::move(out->front());
}

result<std::vector<tensor>> graph_stage::operator()(std::vector<tensor> batch) const {
  std::vector<std::vector<tensor>> items;
  for (auto& x : batch) items.push_back({std::move(x)});
  auto out = run_ports(*runner_, {feed_}, {fetch_}, items);
  if (!out) return std::move(out.error());
  std::vector<tensor> all;
  for (auto& y : *out) all.push_back(std::move(y.front()));
  return all;
}

}  // namespace troupe
