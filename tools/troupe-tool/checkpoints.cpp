#include "tools/troupe-tool/checkpoints.hpp"

#include "tools/troupe-tool/table.hpp"
#include "troupe/runtime/checkpoint/checkpoint_store.hpp"
#include "troupe/runtime/text/byte_size.hpp"
#include "troupe/runtime/text/json_line.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <ctime>
#include <string>
#include <vector>

namespace troupe {

namespace {

struct found_checkpoint {
  std::string job, folder, made;
  checkpoint_id id;
  bool is_finished = false;
  std::uint64_t bytes = 0;
  std::size_t parts = 0, variables = 0;
  std::vector<std::string> problems;

  std::string state() const {
    if (!is_finished) return "not finished";
    return problems.empty() ? "whole" : "damaged";
  }
};

std::string utc(std::uint64_t unix_ns) {
  const auto seconds = static_cast<std::time_t>(unix_ns / 1'000'000'000);
  std::tm parts{};
  return ::gmtime_r(&seconds, &parts) == nullptr ? "?"
                                                 : fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", parts);
}

found_checkpoint describe(checkpoint_store& store, const listed_checkpoint& c,
                          checkpoint_check check) {
  found_checkpoint f;
  f.folder = store.folder_of(c.id);
  f.id = c.id;
  f.is_finished = true;
  if (!c.manifest) {
    f.problems = {c.problem};
    return f;
  }
  f.job = c.manifest->job;
  f.made = utc(c.manifest->made_unix_ns);
  f.parts = c.manifest->parts.size();
  f.variables = c.manifest->variables.size();
  for (const auto& p : c.manifest->parts) f.bytes += p.bytes;
  f.problems = store.verify(*c.manifest, check);
  return f;
}

// Those of one job's folder, the newest first.
result<void> look_into(disk& d, const std::string& folder, checkpoint_check check,
                       std::vector<found_checkpoint>& out) {
  auto store = checkpoint_store::at_folder(d, folder);
  const auto all = store.list();
  if (!all) return all.error();
  for (const auto& c : all->checkpoints) out.push_back(describe(store, c, check));
  for (const auto id : all->incomplete) {
    found_checkpoint f;
    f.folder = store.folder_of(id);
    f.id = id;
    out.push_back(std::move(f));
  }
  return {};
}

bool is_job_folder(const std::vector<std::string>& names) {
  return std::any_of(names.begin(), names.end(), [](const auto& n) {
    return parse_checkpoint_folder_name(n) || parse_epoch_file_name(n);
  });
}

result<std::vector<found_checkpoint>> look(const command& c, disk& d) {
  const auto names = d.list(c.id);
  if (!names) return error(error_code::not_found, names.error().message());
  const auto check =
      c.action == verb::verify_checkpoints ? checkpoint_check::contents : checkpoint_check::sizes;
  std::vector<std::string> folders;
  if (is_job_folder(*names)) folders.push_back(c.id);
  for (const auto& n : *names)
    if (const auto inner = folders.empty() || folders[0] != c.id
                               ? d.list(c.id + "/" + n)
                               : result<std::vector<std::string>>(std::vector<std::string>{});
        inner && is_job_folder(*inner))
      folders.push_back(c.id + "/" + n);
  std::vector<found_checkpoint> out;
  for (const auto& folder : folders)
    if (auto ok = look_into(d, folder, check, out); !ok) return std::move(ok.error());
  if (out.empty())
    return error(error_code::not_found, fmt::format("{} has no checkpoint in it", c.id));
  return out;
}

nlohmann::ordered_json to_json(const found_checkpoint& f) {
  nlohmann::ordered_json j;
  j["job"] = f.job;
  j["epoch"] = f.id.epoch;
  j["step"] = f.id.step;
  j["folder"] = f.folder;
  j["state"] = f.state();
  j["made"] = f.made;
  j["size_bytes"] = f.bytes;
  j["parts"] = f.parts;
  j["variables"] = f.variables;
  j["problems"] = f.problems;
  return j;
}

}  // namespace

outcome answer_checkpoints(const command& c, disk& d, std::size_t width) {
  const auto found = look(c, d);
  if (!found) return answer_error(found.error());
  outcome o;
  table t({{"STEP", true},
           {"EPOCH", true},
           {"STATE"},
           {"SIZE", true},
           {"VARIABLES", true, 0, 3},
           {"PARTS", true, 0, 2},
           {"MADE", false, 0, 1},
           {"FOLDER"}});
  auto list = nlohmann::ordered_json::array();
  for (const auto& f : *found) {
    if (f.is_finished && !f.problems.empty()) o.exit_code = static_cast<int>(error_code::failed);
    if (c.json) {
      list.push_back(to_json(f));
      continue;
    }
    t.add({fmt::format("{}", f.id.step), fmt::format("{}", f.id.epoch), f.state(),
           f.bytes == 0 ? "-" : format_bytes(f.bytes), fmt::format("{}", f.variables),
           fmt::format("{}", f.parts), f.made.empty() ? "-" : f.made, f.folder});
    for (const auto& p : f.problems) o.err += fmt::format("troupe: {}\n", p);
  }
  o.out = c.json ? json_line(list) + "\n" : t.draw(width).text;
  return o;
}

}  // namespace troupe
