#include "tools/troupe-tool/context_answers.hpp"

#include "tools/troupe-tool/near_names.hpp"
#include "tools/troupe-tool/table.hpp"
#include "troupe/runtime/text/json_line.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace troupe {

namespace {

std::string protection_text(const wire_protection& p) {
  if (p.insecure) return "insecure";
  return p.has_files() ? "certificates" : p.tls ? "tls" : "-";
}

std::string dash_if_empty(std::string text) { return text.empty() ? "-" : text; }

std::string cluster_of(const cluster_place& p) { return p.cluster.empty() ? "default" : p.cluster; }

// A file is meant where the context is made, not where it is used.
std::string absolute(const std::string& file) {
  std::error_code none;
  const auto path = std::filesystem::absolute(file, none);
  return file.empty() || none ? file : path.lexically_normal().string();
}

outcome list_contexts(const command& c, const surroundings& around) {
  const auto& in_use = around.context.empty() ? around.known.current : around.context;
  if (c.json) {
    auto all = around.known;
    all.current = in_use;
    return {0, to_json(all) + "\n", {}};
  }
  if (around.known.places.empty())
    return {0, "no contexts; troupe context set NAME --join HOST:PORT makes one\n", {}};
  table t({{"IN USE"}, {"NAME"}, {"CLUSTER"}, {"JOIN"}, {"TOKEN FILE"}, {"PROTECTION"}});
  for (const auto& [name, p] : around.known.places)
    t.add({name == in_use ? "*" : "", name, cluster_of(p),
           dash_if_empty(fmt::format("{}", fmt::join(p.join, ","))), dash_if_empty(p.token_file),
           protection_text(p.protect)});
  return {0, t.draw(0).text, {}};
}

outcome show_context(const command& c, const surroundings& around) {
  std::string used;
  const auto place = resolve_place(c.place, c.id.empty() ? c.context : c.id, around, used);
  if (!place) return answer_error(place.error());
  if (c.json) return {0, to_json(*place) + "\n", {}};
  return {
      0,
      fmt::format("context     {}\ncluster     {}\njoin        {}\ntoken file  {}\n"
                  "protection  {}\nfile        {}\n",
                  used.empty() ? "- (flags, environment and defaults)" : used, cluster_of(*place),
                  dash_if_empty(fmt::format("{}", fmt::join(place->join, ","))),
                  dash_if_empty(place->token_file), protection_text(place->protect),
                  dash_if_empty(around.file)),
      {}};
}

error unknown_context(const std::string& name, const contexts& known) {
  std::vector<std::string> names;
  for (const auto& [one, place] : known.places) names.push_back(one);
  return {error_code::not_found,
          fmt::format("there is no context '{}'{}; troupe context list shows all", name,
                      did_you_mean(name, names))};
}

result<void> set_one(const command& c, contexts& known, std::string& said) {
  auto place = c.place;
  if (auto ok = check_place(place); !ok) return ok;
  for (auto* file :
       {&place.token_file, &place.protect.certificate, &place.protect.key, &place.protect.ca})
    *file = absolute(*file);
  const bool is_known = known.places.contains(c.id);
  known.places[c.id] = std::move(place);
  said = fmt::format("{} is {}{}", c.id, is_known ? "changed" : "made",
                     known.current == c.id
                         ? ""
                         : fmt::format("; troupe context use {} makes it the one in use", c.id));
  return {};
}

result<void> change_one(const command& c, const surroundings& around, contexts& known,
                        std::string& said) {
  if (c.action == verb::set_context) return set_one(c, known, said);
  constexpr std::string_view none = "-";
  if (c.action == verb::use_context && c.id == none) {
    known.current.clear();
    said = "none is in use";
    return {};
  }
  if (!known.places.contains(c.id)) return unknown_context(c.id, known);
  if (c.action == verb::use_context) {
    known.current = c.id;
    said = fmt::format("{} is in use{}", c.id,
                       around.context.empty() || around.context == c.id
                           ? ""
                           : fmt::format(", but where TROUPE_CONTEXT says otherwise, as here ({})",
                                         around.context));
    return {};
  }
  known.places.erase(c.id);
  if (known.current == c.id) known.current.clear();
  said = fmt::format("{} is removed", c.id);
  return {};
}

outcome name_contexts(const surroundings& around) {
  std::string out;
  for (const auto& [name, place] : around.known.places) out += name + "\n";
  return {0, out, {}};
}

}  // namespace

outcome answer_contexts(const command& c, const surroundings& around) {
  if (!around.why_unknown.empty())
    return answer_error(error(error_code::usage, around.why_unknown));
  if (c.action == verb::names) return name_contexts(around);
  if (c.action == verb::list_contexts) return list_contexts(c, around);
  if (c.action == verb::show_context) return show_context(c, around);
  std::string said;
  const auto next = change_contexts(
      around.file, [&](contexts& known) { return change_one(c, around, known, said); });
  if (!next) return answer_error(next.error());
  return {0, c.json ? to_json(*next) + "\n" : said + "\n", {}};
}

}  // namespace troupe
