#include "troupe/runtime/flow/topology_control.hpp"

#include "troupe/runtime/flow/file_stages.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace troupe {
namespace {

std::string_view text_of(replica_reason r) {
  switch (r) {
    case replica_reason::as_said: return "as was asked for";
    case replica_reason::suffices: return "they are not busy all the time";
    case replica_reason::no_help: return "more made it no faster";
    case replica_reason::no_thread: return "they are busy, and so are all threads";
    case replica_reason::all: return "they are busy, and there are no more";
  }
  return {};
}

}  // namespace

// --- wishes --------------------------------------------------------------------------------------

topology_wishes::node* topology_wishes::closed() noexcept {
  static node end;
  return &end;
}

void topology_wishes::replace(replacements r) {
  auto one = std::make_unique<node>(node{std::move(r), newest_.load()});
  do {
    if (one->next == closed()) return;
  } while (!newest_.compare_exchange_weak(one->next, one.get()));
  (void)one.release();
}

std::vector<topology_wishes::replacements> topology_wishes::take_replacements() {
  std::vector<replacements> all;
  auto* n = newest_.load();
  while (n != nullptr && n != closed() && !newest_.compare_exchange_weak(n, nullptr)) {
  }
  if (n == closed()) return all;
  while (n != nullptr) {
    const std::unique_ptr<node> one(n);
    all.push_back(std::move(one->what));
    n = one->next;
  }
  std::ranges::reverse(all);
  return all;
}

void topology_wishes::close() {
  auto* n = newest_.exchange(closed());
  while (n != nullptr && n != closed()) {
    const std::unique_ptr<node> one(n);
    n = one->next;
  }
}

// --- another function ----------------------------------------------------------------------------

namespace {

// As the user knows it: without the number of a replica.
std::string_view name_of(const flow_stage_info& s) { return s.base.empty() ? s.name : s.base; }

std::string what_differs(const function_contract& now, const function_contract& f) {
  if (*now.takes != *f.takes) return "takes other items";
  if (*now.makes != *f.makes) return "makes other items";
  if (now.makes_at_end != f.makes_at_end)
    return now.makes_at_end ? "makes something of each item, and the one before at its end alone"
                            : "makes nothing of an item, and the one before does";
  if (now.makes_one && !f.makes_one)
    return "may make more or fewer items than it is given, and the one before makes one of each";
  if (!now.state.empty() && now.state != f.state)
    return fmt::format("keeps {} in its state, and the one before {}",
                       f.state.empty() ? "nothing" : f.state, now.state);
  return {};
}

}  // namespace

result<topology_wishes::replacements> replacements_for(const flow_graph& g, std::string_view stage,
                                                       replacing_function f) {
  topology_wishes::replacements all;
  std::uint32_t stages = 0;
  auto change = std::make_shared<stage_change>();
  change->name = stage;
  change->trial = f.trial;
  change->make = std::move(f.make);
  for (std::uint32_t i = 0; i < g.stages().size(); ++i) {
    const auto& s = g.stages()[i];
    if (s.name != stage && name_of(s) != stage) continue;
    const auto refuse = [&](const std::string& why) {
      return error(error_code::usage, fmt::format("{}: {}", stage, why));
    };
    if (s.kind == "deal" || s.kind == "gather") continue;
    if (s.contract == nullptr) return refuse("the function of a " + s.kind + " stays");
    if (s.is_elsewhere) return refuse("it runs on nodes, which have its function from a library");
    if (const auto differs = what_differs(*s.contract, f.contract); !differs.empty())
      return refuse("the new function " + differs);
    if (f.borrows != nullptr && f.borrows != s.borrows)
      return refuse(fmt::format("the new function borrows {}, and the one before {}",
                                f.borrows->name(),
                                s.borrows == nullptr ? "nothing" : "from another resource"));
    const bool is_copied = s.replicas > 1 || s.control != nullptr || s.stands_by > 0 ||
                           s.on_error.what == error_policy::kind::restart;
    if (!f.is_copyable && is_copied)
      return refuse(
          "the new function cannot be copied, so there are neither replicas of it nor restarts");
    if (f.trial > 0 && !f.items_are_copyable)
      return refuse("its items cannot be copied, so there is no trial: leave it out");
    if (s.replica == 0 && s.stands_by == 0 && ++stages > 1)
      return refuse("several stages are called so; give them names (.name)");
    auto r = std::make_shared<stage_replacement>();
    r->stage = i;
    r->change = change;
    try {
      r->what = change->make();
      if (s.stands_by == 0)
        if (auto ok = r->what->open(); !ok)
          return error(ok.error().code(),
                       fmt::format("{}: it cannot begin: {}", stage, ok.error().message()));
    } catch (const std::exception& e) {
      return error(error_code::failed, fmt::format("{}: {}", stage, e.what()));
    } catch (...) {
      return error(error_code::failed,
                   fmt::format("{}: it threw something that is no exception", stage));
    }
    all.push_back(std::move(r));
  }
  if (all.empty())
    return error(error_code::not_found, fmt::format("there is no stage '{}' here", stage));
  change->waiting.store(static_cast<std::uint32_t>(all.size()));
  return all;
}

// --- replicas ------------------------------------------------------------------------------------

replica_controls::replica_controls(const flow_graph& g) {
  for (std::uint32_t i = 0; i < g.stages().size(); ++i) {
    const auto& s = g.stages()[i];
    if (s.is_hidden) continue;
    if (s.replica == 0)
      stages_.push_back({std::string(name_of(s)),
                         s.replicas,
                         s.control,
                         s.control != nullptr && s.is_kept && !s.is_recovered,
                         {}});
    stages_.back().instances.push_back(i);
  }
}

const replica_controls::named* replica_controls::find(std::string_view stage) const {
  const auto at = std::ranges::find(stages_, stage, &named::name);
  return at == stages_.end() ? nullptr : &*at;
}

error replica_controls::unknown(std::string_view stage) const {
  std::string names;
  for (const auto& s : stages_)
    if (s.control != nullptr) names += (names.empty() ? "" : ", ") + s.name;
  return error(error_code::not_found,
               fmt::format("there is no stage '{}' here; those whose replicas may change: {}",
                           stage, names.empty() ? "none" : names));
}

result<void> replica_controls::set(std::string_view stage, std::uint32_t count) const {
  const auto* s = find(stage);
  if (s == nullptr) return unknown(stage);
  if (s->control == nullptr)
    return error(error_code::usage,
                 fmt::format("{} has {} replica{}, whose number stays: it changes where the stage "
                             "was described with .replicas = between(1, 8), or automatic on "
                             "several threads",
                             stage, s->replicas, s->replicas == 1 ? "" : "s"));
  if (count < 1 || count > s->control->most)
    return error(error_code::usage,
                 fmt::format("{} has from 1 to {} replicas", stage, s->control->most));
  s->control->is_set.store(true);
  s->control->reason.store(replica_reason::as_said);
  s->control->working.store(count);
  return {};
}

result<void> replica_controls::move(std::string_view stage, std::string_view node,
                                    const std::vector<std::string>& nodes) const {
  const auto* s = find(stage);
  if (s == nullptr) return unknown(stage);
  if (!s->moves)
    return error(
        error_code::usage,
        fmt::format("{} stays where it is: there are stages to move where replicas on nodes "
                    "keep nothing from item to item, and fewer work than there are "
                    "(.replicas = between(1, 4), .on = ...)",
                    stage));
  const auto node_of = [&](std::uint32_t replica) -> std::string_view {
    const auto i = s->instances[replica];
    return i < nodes.size() ? nodes[i] : std::string_view();
  };
  auto& c = *s->control;
  if (c.is_moving.exchange(true))
    return error(error_code::failed,
                 fmt::format("{} is being moved by somebody else; ask again", stage));
  const auto working = c.working.load();
  std::uint32_t leaves = no_port, comes = no_port;
  bool is_there = false;
  for (std::uint32_t k = 0; k < c.most; ++k) {
    const auto replica = c.order[k].load();
    const bool is_on = node_of(replica) == node && !c.is_lost[replica].load();
    is_there = is_there || is_on;
    if (k < working && !is_on && leaves == no_port) leaves = k;
    if (k >= working && is_on && comes == no_port) comes = k;
  }
  const bool moves = is_there && leaves != no_port && comes != no_port;
  if (moves) {
    const auto replica = c.order[comes].load();
    c.order[comes].store(c.order[leaves].load());
    c.order[leaves].store(replica);
    c.moves.fetch_add(1);
  }
  c.is_moving.store(false);
  if (!is_there)
    return error(error_code::not_found, fmt::format("{} has no replica on {}", stage, node));
  if (!moves && leaves != no_port)
    return error(error_code::not_found,
                 fmt::format("all replicas of {} on {} work already", stage, node));
  return {};
}

result<std::uint32_t> replica_controls::working(std::string_view stage) const {
  const auto* s = find(stage);
  if (s == nullptr) return unknown(stage);
  return s->control == nullptr ? s->replicas : s->control->working.load();
}

std::uint32_t replica_controls::most(std::string_view stage) const {
  const auto* s = find(stage);
  return s == nullptr ? 0 : s->control == nullptr ? s->replicas : s->control->most;
}

std::string replica_controls::text() const {
  std::string all;
  for (const auto& s : stages_)
    if (s.control != nullptr)
      all += fmt::format("{}: {} of {} replicas work: {}\n", s.name, s.control->working.load(),
                         s.control->most, text_of(s.control->reason.load()));
  return all;
}

std::string replica_controls::json() const {
  std::string all;
  for (const auto& s : stages_)
    if (s.control != nullptr)
      all += fmt::format(R"({}{{"stage":{},"working":{},"most":{},"why":"{}"}})",
                         all.empty() ? "" : ",", json_text(s.name), s.control->working.load(),
                         s.control->most, text_of(s.control->reason.load()));
  return "[" + all + "]";
}

}  // namespace troupe
