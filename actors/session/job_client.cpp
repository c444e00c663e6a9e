#include "troupe/actors/session/job_client.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace troupe {

result<fed_input*> fed_inputs::find(std::string_view name, const tensor& value) {
  auto at = inputs_.find(name);
  if (at == inputs_.end())
    return error(error_code::usage, fmt::format("the graph has no input '{}'{}", name, known()));
  if (!value) return error(error_code::usage, fmt::format("input '{}' was given no tensor", name));
  const auto& spec = at->second.spec;
  if (value.type() != spec.type || !spec.shape.admits(value.shape()))
    return error(error_code::usage, fmt::format("input '{}' takes {}, and was given {}", name,
                                                to_string(spec), to_string(value.spec())));
  return &at->second;
}

result<std::vector<fed_input*>> fed_inputs::find_all(feeds values) {
  std::vector<fed_input*> to;
  ++calls_;
  for (const auto& [name, value] : values) {
    auto at = find(name, value);
    if (!at) return std::move(at.error());
    if (std::exchange((*at)->found, calls_) == calls_)
      return error(error_code::usage, fmt::format("input '{}' is given twice for one step", name));
    to.push_back(*at);
  }
  for (const auto& [name, f] : inputs_)
    if (f.found != calls_)
      return error(error_code::usage, fmt::format("input '{}' is not fed", name));
  return to;
}

void fed_inputs::on_ready(const feed_ready& m) {
  if (const auto at = by_actor_.find(m.feed); at != by_actor_.end()) ++at->second->room;
}

std::shared_ptr<const job_request> request_of(plan p) {
  std::vector<node_id> nodes;
  for (const auto& t : p.tasks) nodes.push_back(t.node);
  return std::make_shared<const job_request>(job_request{std::move(p), std::move(nodes), true});
}

std::string fed_inputs::known() const {
  constexpr std::size_t names_max = 8;
  if (inputs_.empty()) return ": the fetched values need no input";
  std::string text;
  std::size_t n = 0;
  for (const auto& [name, f] : inputs_)
    if (n++ < names_max)
      text += (text.empty() ? ": the fetched values need '" : ", '") + name + "'";
  return n > names_max ? fmt::format("{} and {} more", text, n - names_max) : text;
}

}  // namespace troupe
