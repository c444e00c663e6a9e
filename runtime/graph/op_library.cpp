#include "troupe/runtime/graph/op_library.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <map>
#include <memory>
#include <set>
#include <utility>

namespace troupe {
namespace {

// One line, whatever a library calls itself.
bool is_printable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 127; });
}

result<library_id> identify(const op_library& l) {
  library_id id{l.name != nullptr ? l.name : "", l.version != nullptr ? l.version : "", l.abi};
  for (const auto& text : {id.name, id.version})
    if (text.empty() || text.size() > library_text_bytes_max || !is_printable(text))
      return error(
          error_code::usage,
          fmt::format("its name and its version have 1..{} letters, digits and signs, no space",
                      library_text_bytes_max));
  return id;
}

// Rows without what is called later, and names that are taken.
result<void> check_rows(const op_table& ops, const kernel_table& kernels, const op_table& new_ops,
                        const kernel_table& new_kernels) {
  const auto refuse = [](std::string text) { return error(error_code::usage, std::move(text)); };
  if (new_ops.rows().empty()) return refuse("it adds no op");
  if (new_ops.rows().size() > plan_library_ops_max)
    return refuse(fmt::format("it adds {} ops, at most {} are allowed", new_ops.rows().size(),
                              plan_library_ops_max));
  for (const auto& [type, row] : new_ops.rows()) {
    if (type.empty() || !is_printable(type))
      return refuse("the name of an op is empty, or has spaces");
    if (const auto* taken = ops.find(type))
      return refuse(fmt::format("op '{}' is taken: it {}", type,
                                taken->library ? "is one of library " + to_string(*taken->library)
                                               : "ships with Troupe"));
    if (kernels.find(type) != nullptr || type == hand_over_op)
      return refuse(fmt::format("op '{}' is taken: it ships with Troupe", type));
    if (!row.shapes) return refuse(fmt::format("op '{}' has no shape rule", type));
    const auto* kernel = new_kernels.find(type);
    if (row.is_forwarding && row.inputs == 0)
      return refuse(fmt::format("op '{}' forwards its operand 0, but has no operands", type));
    if (!row.is_forwarding && (kernel == nullptr || !kernel->make))
      return refuse(fmt::format("op '{}' has no kernel", type));
  }
  for (const auto& [type, row] : new_kernels.rows())
    if (new_ops.find(type) == nullptr)
      return refuse(fmt::format("kernel '{}' belongs to no op that it adds", type));
  return {};
}

result<void> add_checked(op_table& ops, kernel_table& kernels, const op_library& l) {
  if (l.abi != op_library_abi())
    return error(
        error_code::usage,
        fmt::format(
            "it was built for another Troupe or by another compiler: its ABI is {:016x}, and this program's {:016x}; "
            "build it anew with this Troupe ({}) and its compiler",
            l.abi, op_library_abi(), version()));
  const auto id = identify(l);
  if (!id) return id.error();
  const auto present = libraries_of(ops);
  for (const auto& other : present)
    if (other.name == id->name)
      return error(error_code::usage,
                   fmt::format("a library of that name is there already, {}", to_string(other)));
  if (present.size() >= libraries_max)
    return error(
        error_code::usage,
        fmt::format("{} libraries are there already, and that is the limit", present.size()));
  if (l.add == nullptr) return error(error_code::usage, "it has no function that adds ops");
  op_table new_ops;
  kernel_table new_kernels;
  l.add(new_ops, new_kernels);
  if (auto ok = check_rows(ops, kernels, new_ops, new_kernels); !ok) return ok;
  const auto shared = std::make_shared<const library_id>(*id);
  for (auto [type, row] : new_ops.rows()) {
    row.library = shared;
    ops.add(type, std::move(row));
  }
  for (const auto& [type, row] : new_kernels.rows()) kernels.add(type, row);
  return {};
}

std::string label(const op_library& l, std::string_view from) {
  // OL-1.
  if (l.abi != op_library_abi() || l.name == nullptr)
    return fmt::format("op library {}", from.empty() ? "without a name" : from);
  const auto name = std::string_view(l.name).substr(0, library_text_bytes_max);
  return fmt::format("op library {}{}", is_printable(name) ? name : "",
                     from.empty() ? "" : fmt::format(" ({})", from));
}

}  // namespace

std::string to_string(const library_id& l) { return fmt::format("{} {}", l.name, l.version); }

result<void> add_ops(op_table& ops, kernel_table& kernels, const op_library& library,
                     std::string_view from) {
  const auto refuse = [&](const error& why) {
    return error(why.code(), why.text()).while_doing(label(library, from));
  };
  try {
    if (auto ok = add_checked(ops, kernels, library); !ok) return refuse(ok.error());
    return {};
  } catch (const std::exception& e) {
    return refuse(error(error_code::usage, fmt::format("adding its ops failed: {}", e.what())));
  } catch (...) {
    return refuse(error(error_code::usage,
                        "adding its ops failed: it threw something that is not a std::exception"));
  }
}

std::vector<library_id> libraries_of(const op_table& ops) {
  std::set<library_id> all;
  for (const auto& [type, row] : ops.rows())
    if (row.library) all.insert(*row.library);
  return {all.begin(), all.end()};
}

std::vector<planned_library> libraries_of(std::span<const std::string_view> types,
                                          const op_table& ops) {
  std::map<library_id, std::set<std::string>> used;
  for (const auto type : types) {
    std::string name(type);
    if (const auto* row = ops.find(name); row != nullptr && row->library)
      used[*row->library].insert(std::move(name));
  }
  std::vector<planned_library> out;
  for (const auto& [library, names] : used) out.push_back({library, {names.begin(), names.end()}});
  return out;
}

std::string lack_of(const library_id& needed, std::span<const library_id> present) {
  if (std::ranges::find(present, needed) != present.end()) return {};
  const auto at = std::ranges::find(present, needed.name, &library_id::name);
  if (at == present.end())
    return fmt::format("has no library of that name: start it with troupe-node --load");
  if (at->version != needed.version) return fmt::format("has {}", to_string(*at));
  return fmt::format("has it from another build: its ABI is {:016x}, and {:016x} is needed",
                     at->abi, needed.abi);
}

std::string lack_of(std::span<const planned_library> needed, std::span<const library_id> present,
                    std::string_view who) {
  for (const auto& [library, ops] : needed)
    if (const auto lack = lack_of(library, present); !lack.empty())
      return fmt::format("op '{}' needs library {}, and {} {}", ops.front(), to_string(library),
                         who, lack);
  return {};
}

std::string lack_of(const plan& p, std::uint32_t own, const op_table& ops, std::string_view who) {
  if (auto lack = lack_of(p.libraries, libraries_of(ops), who); !lack.empty()) return lack;
  std::map<std::string_view, const library_id*> named;
  for (const auto& [library, types] : p.libraries)
    for (const auto& type : types) named.emplace(type, &library);
  // Every op is here what it is for the plan.
  const auto check = [&](const std::string& type) -> std::string {
    const auto at = named.find(type);
    const auto* needed = at != named.end() ? at->second : nullptr;
    const auto* row = ops.find(type);
    if (row == nullptr)
      return needed == nullptr
                 ? fmt::format("op '{}' is unknown on {}", type, who)
                 : fmt::format(
                       "op '{}' of library {} is unknown on {}, which has a library of that name "
                       "and version without this op",
                       type, to_string(*needed), who);
    if ((needed == nullptr) != (row->library == nullptr) ||
        (needed != nullptr && *needed != *row->library))
      return fmt::format(
          "op '{}' {} for the plan, but on {} it {}", type,
          needed == nullptr ? "ships with Troupe" : "is one of library " + to_string(*needed), who,
          row->library == nullptr ? "ships with Troupe"
                                  : "is one of library " + to_string(*row->library));
    return {};
  };
  for (const auto& [type, library] : named)
    if (auto lack = check(std::string(type)); !lack.empty()) return lack;
  for (const auto& a : p.actors) {
    if (a.task != own || a.kind != actor_kind::op) continue;
    for (const auto& op : a.ops) {
      if (op.type == hand_over_op) continue;
      if (auto lack = check(op.type); !lack.empty())
        return fmt::format("op '{}': {}", op.name, lack);
    }
  }
  return {};
}

}  // namespace troupe
