#include "troupe/runtime/stores/store_files.hpp"

#include "troupe/runtime/text/printable.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace troupe {
namespace {

constexpr std::string_view updates_slot = "updates";
constexpr std::size_t told_most = 8;

// Names in it are anybody's.
error bad_file(std::string_view file, const std::string& what) {
  return error(error_code::usage, fmt::format("{}: {}", file, printable(what)));
}

struct slot_name {
  std::string_view variable, state, type, slot;
};

// None: a value.
std::optional<slot_name> parse(std::string_view name, const unnamed_state& unnamed) {
  const auto hash = name.find('#');
  if (hash == std::string_view::npos) return std::nullopt;
  slot_name out{name.substr(0, hash), unnamed.optimizer, unnamed.optimizer, name.substr(hash + 1)};
  const auto last = out.slot.rfind('/');
  if (last == std::string_view::npos || last == 0) return out;
  const auto before = out.slot.rfind('/', last - 1);
  if (before == std::string_view::npos) return out;
  out.state = out.slot.substr(0, before);
  out.type = out.slot.substr(before + 1, last - before - 1);
  out.slot = out.slot.substr(last + 1);
  return out;
}

// An optimizer of this type that has these slots; what else it is does not matter here.
std::optional<optimizer_spec> optimizer_with(std::string_view type,
                                             const std::map<std::string, tensor>& slots) {
  optimizer_spec o;
  o.type = type;
  o.momentum = slots.contains("velocity") ? 0.9 : 0;
  o.centered = slots.contains("gradient_average");
  if (!check(o)) return std::nullopt;
  auto names = slot_names(o);
  std::ranges::sort(names);
  if (!std::ranges::equal(names, slots, {}, {}, [](const auto& s) { return s.first; }))
    return std::nullopt;
  return o;
}

// What a file tells of one state of one variable.
struct read_state {
  std::string type;
  std::map<std::string, tensor> slots;
  std::uint64_t updates = 0;
};

error unfit(std::string what) { return {error_code::usage, std::move(what)}; }

result<optimizer_state> state_of(const read_state& read, std::string_view name,
                                 std::string_view variable, const tensor_spec& spec) {
  for (const auto& [slot, t] : read.slots)
    if (t.spec() != spec)
      return unfit(fmt::format("'{}' is {}, and slot '{}' of state '{}' is {}", variable,
                               to_string(spec), slot, name, to_string(t.spec())));
  const auto o = optimizer_with(read.type, read.slots);
  if (!o) {
    std::vector<std::string> slots;
    for (const auto& [slot, t] : read.slots) slots.push_back(slot);
    return unfit(
        fmt::format("state '{}' of '{}' has the slots '{}', which are not those of an "
                    "optimizer '{}'",
                    name, variable, fmt::join(slots, "', '"), read.type));
  }
  optimizer_state out{*o, read.updates, {}};
  for (const auto& slot : slots_of(*o))
    out.slots.push_back({read.slots.at(std::string(slot.name))});
  return out;
}

std::string some_of(const std::vector<std::string>& all) {
  const auto told = static_cast<std::ptrdiff_t>(std::min(all.size(), told_most));
  return fmt::format("{}{}", fmt::join(all.begin(), all.begin() + told, "; "),
                     all.size() > told_most ? fmt::format("; and {} more", all.size() - told_most)
                                            : std::string());
}

}  // namespace

bool is_stored_name(std::string_view name) noexcept {
  return !name.empty() && name != "__metadata__" && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.' || c == '/';
  });
}

std::vector<named_tensor> tensors_of(const store_view& view, bool with_optimizers) {
  std::vector<named_tensor> out;
  for (const auto& v : view.variables) {
    out.push_back({v.name, v.entry->value.now});
    if (!with_optimizers) continue;
    for (const auto& [state, s] : v.entry->states) {
      const auto name = [&](std::string_view slot) {
        return fmt::format("{}#{}/{}/{}", v.name, state, s.optimizer.type, slot);
      };
      const auto slots = slots_of(s.optimizer);
      for (std::size_t i = 0; i < slots.size(); ++i)
        out.push_back({name(slots[i].name), s.slots[i].now});
      const auto updates = static_cast<std::int64_t>(s.updates);
      out.push_back({name(updates_slot), tensor::of<std::int64_t>(dtype::i64, {}, {&updates, 1})});
    }
  }
  return out;
}

result<std::vector<loaded_variable>> variables_of(std::vector<named_tensor> tensors,
                                                  std::string_view file,
                                                  const unnamed_state& unnamed) {
  std::map<std::string, tensor> values;
  std::map<std::string, std::map<std::string, read_state>, std::less<>> states;
  for (auto& t : tensors) {
    const auto slot = parse(t.name, unnamed);
    if (!slot) {
      if (t.name.empty()) return bad_file(file, "a tensor has no name");
      if (!values.emplace(t.name, std::move(t.values)).second)
        return bad_file(file, fmt::format("'{}' is there twice", t.name));
      continue;
    }
    if (slot->variable.empty() || slot->state.empty())
      return bad_file(file, fmt::format("'{}' names no variable, or no optimizer", t.name));
    auto& state = states[std::string(slot->variable)][std::string(slot->state)];
    if (!state.type.empty() && state.type != slot->type)
      return bad_file(
          file, fmt::format("'{}': that state is one of optimizer '{}', too", t.name, state.type));
    state.type = slot->type;
    if (slot->slot == updates_slot) {
      if (t.values.spec() != tensor_spec{dtype::i64, {}} || *t.values.data<std::int64_t>() < 0 ||
          *t.values.data<std::int64_t>() > static_cast<std::int64_t>(schedule_steps_max))
        return bad_file(file, fmt::format("'{}' is not a count, i64[] from 0 to 2^48", t.name));
      state.updates = static_cast<std::uint64_t>(*t.values.data<std::int64_t>());
    } else if (t.values.type() != dtype::f32 ||
               !state.slots.emplace(slot->slot, std::move(t.values)).second) {
      return bad_file(file, fmt::format("'{}' is not f32, or there twice", t.name));
    } else if (t.name.find('/', slot->variable.size()) == std::string::npos) {
      state.updates = unnamed.updates;
    }
  }
  for (const auto& [variable, of] : states)
    if (!values.contains(variable))
      return bad_file(
          file, fmt::format("it has what an optimizer keeps of '{}', but not its value", variable));
  std::vector<loaded_variable> out;
  for (auto& [name, value] : values) {
    loaded_variable v{name, {{value}, {}}, {}};
    if (value.type() != dtype::f32)
      v.problem = fmt::format("'{}' is {}, but variables are f32", name, to_string(value.spec()));
    else if (!is_stored_name(name))
      v.problem = fmt::format("'{}' is no name of a variable", name);
    if (const auto of = states.find(name); of != states.end() && v.problem.empty())
      for (const auto& [state, read] : of->second) {
        auto made = state_of(read, state, name, value.spec());
        if (made)
          v.entry.states.emplace(state, std::move(*made));
        else
          v.problem = made.error().message();
      }
    out.push_back(std::move(v));
  }
  return out;
}

result<fitted> fit(std::vector<loaded_variable> loaded, const store_view& there,
                   std::string_view file) {
  std::map<std::string_view, const variable_entry*> known;
  for (const auto& v : there.variables) known.emplace(v.name, v.entry.get());
  std::set<std::string> names;
  fitted out;
  std::vector<std::string> misfits;
  for (auto& v : loaded) {
    names.insert(v.name);
    const auto at = known.find(v.name);
    if (at == known.end() && !known.empty()) {
      out.unused.push_back(v.name);
    } else if (!v.problem.empty()) {
      return bad_file(file, v.problem);
    } else if (at != known.end() && at->second->value.now.spec() != v.entry.value.now.spec()) {
      misfits.push_back(fmt::format("'{}' is {} there and {} here", v.name,
                                    to_string(v.entry.value.now.spec()),
                                    to_string(at->second->value.now.spec())));
    } else {
      // What a file says nothing of stays: values of others do not end an optimizer's state.
      if (at != known.end())
        for (const auto& [name, state] : at->second->states)
          v.entry.states.try_emplace(name, state);
      out.changes.push_back(
          {v.name, std::make_shared<const variable_entry>(std::move(v.entry)), 0});
    }
  }
  for (const auto& v : there.variables)
    if (!names.contains(v.name)) out.missing.push_back(v.name);
  if (!misfits.empty())
    return bad_file(file, fmt::format("sizes or types differ: {}", some_of(misfits)));
  if (loaded.empty()) return bad_file(file, "there is no variable in it");
  return out;
}

}  // namespace troupe
