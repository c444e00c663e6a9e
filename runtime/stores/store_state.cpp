#include "troupe/runtime/stores/store_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace troupe {
namespace {

using sorted_names = std::vector<std::string_view>;

sorted_names sorted_names_of(const std::vector<std::string>& all) {
  sorted_names out(all.begin(), all.end());
  std::ranges::sort(out);
  return out;
}

bool share_a_name(const sorted_names& a, const sorted_names& b) {
  for (auto i = a.begin(), k = b.begin(); i != a.end() && k != b.end();) {
    if (*i == *k) return true;
    *i < *k ? ++i : ++k;
  }
  return false;
}

}  // namespace

// Both write something (VS-2).
bool store_state::conflict(const waiting& a, const waiting& b) {
  return a.request.all || b.request.all || share_a_name(a.writes, b.writes) ||
         share_a_name(a.writes, b.reads) || share_a_name(a.reads, b.writes);
}

result<std::vector<store_grant>> store_state::begin(store_request r) {
  std::vector<std::string_view> missing;
  for (const auto& name : r.reads)
    if (!variables_.contains(name)) missing.emplace_back(name);
  for (const auto& name : r.writes)
    if (!r.makes && !variables_.contains(name) && !std::ranges::count(missing, name))
      missing.emplace_back(name);
  if (!missing.empty()) {
    constexpr std::size_t most = 8;
    const auto told = std::min(missing.size(), most);
    return error(
        error_code::not_found,
        fmt::format("the store has no variable '{}'{}: initialize the store for this "
                    "graph, or load them",
                    fmt::join(missing.begin(), missing.begin() + told, "', '"),
                    missing.size() > most ? fmt::format(" and {} more", missing.size() - most)
                                          : std::string()));
  }
  if (r.writes.empty() && !r.all) return std::vector{grant_of(r)};
  requests_.push_back({std::move(r), {}, {}});
  const auto at = std::prev(requests_.end());
  at->reads = sorted_names_of(at->request.reads);
  at->writes = sorted_names_of(at->request.writes);
  if (must_wait(at)) {
    ++counts_.waited;
    return std::vector<store_grant>{};
  }
  at->is_granted = true;
  return std::vector{grant_of(at->request)};
}

std::vector<store_grant> store_state::commit(std::uint64_t id,
                                             std::vector<stored_variable> changes) {
  const auto at = std::ranges::find_if(
      requests_, [&](const waiting& w) { return w.request.id == id && w.is_granted; });
  if (at == requests_.end()) return {};
  std::erase_if(changes, [&](const stored_variable& v) {
    return !v.entry ||
           !(at->request.all || std::ranges::binary_search(at->writes, std::string_view(v.name)));
  });
  ++counts_.commits;
  if (!changes.empty()) ++version_;
  for (auto& v : changes)
    variables_.insert_or_assign(std::move(v.name), kept{std::move(v.entry), version_});
  return end(at);
}

std::vector<store_grant> store_state::give_up(std::uint64_t id) {
  const auto at =
      std::ranges::find_if(requests_, [&](const waiting& w) { return w.request.id == id; });
  if (at == requests_.end()) return {};
  ++counts_.given_up;
  return end(at);
}

store_view store_state::all() const {
  store_view out{version_, {}};
  out.variables.reserve(variables_.size());
  for (const auto& [name, v] : variables_) out.variables.push_back({name, v.entry, v.version});
  return out;
}

store_view store_state::view_of(const std::vector<std::string>& names) const {
  store_view out{version_, {}};
  out.variables.reserve(names.size());
  for (const auto& name : names)
    if (const auto at = variables_.find(name); at != variables_.end())
      out.variables.push_back({name, at->second.entry, at->second.version});
  return out;
}

store_grant store_state::grant_of(const store_request& r) const {
  return {r.id, view_of(r.reads), r.all ? all() : view_of(r.writes)};
}

bool store_state::must_wait(const std::list<waiting>::const_iterator& at) const {
  return std::any_of(requests_.begin(), at, [&](const waiting& w) { return conflict(w, *at); });
}

std::vector<store_grant> store_state::end(std::list<waiting>::iterator at) {
  requests_.erase(at);
  return grant_next();
}

std::vector<store_grant> store_state::grant_next() {
  std::vector<store_grant> out;
  for (auto at = requests_.begin(); at != requests_.end(); ++at)
    if (!at->is_granted && !must_wait(at)) {
      at->is_granted = true;
      out.push_back(grant_of(at->request));
    }
  return out;
}

}  // namespace troupe
