#include "troupe/runtime/checkpoint/checkpoint_store.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>

namespace troupe {
namespace {

// "." of what is named from here on, "/" of what is named from the top; nothing above these.
std::string parent_of(const std::string& path) {
  const auto slash = path.rfind('/');
  if (slash == std::string::npos) return path == "." ? "" : ".";
  if (slash == 0) return path == "/" ? "" : "/";
  return path.substr(0, slash);
}

std::string join(std::string folder, std::string_view name) {
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  if (folder.empty()) return std::string(name);
  return fmt::format("{}{}{}", folder, folder == "/" ? "" : "/", name);
}

// Any folder above may be new, so the names in all of them are synced. Beyond the nearest `ours`,
// one that may not even be opened is none that was made here.
result<void> make_durable_folder(disk& d, const std::string& path, int ours) {
  if (auto ok = d.make_folder(path); !ok) return ok;
  for (auto folder = parent_of(path); !folder.empty(); folder = parent_of(folder), --ours)
    if (auto ok = d.sync_folder(folder);
        !ok && (ours > 0 || ok.error().code() != error_code::usage))
      return ok;
  return {};
}

result<void> write_claim(disk& d, const std::string& folder, disk_file& file,
                         const std::string& text) {
  if (auto ok = file.write(std::as_bytes(std::span(text))); !ok) return ok;
  if (auto ok = file.sync(); !ok) return ok;
  if (auto ok = file.close(); !ok) return ok;
  return d.sync_folder(folder);
}

// Of a planted bug: write_whole() without a sync.
template <class Seen>
result<void> write_unsynced(disk& d, const std::string& path,
                            std::span<const std::span<const std::byte>> pieces, const Seen& seen) {
  const auto temporary = path + std::string(temporary_suffix);
  auto file = d.create(temporary, disk::create_mode::replace);
  if (!file) return std::move(file.error());
  for (const auto& piece : pieces) {
    seen(piece);
    if (auto ok = (*file)->write(piece); !ok) return ok;
  }
  if (auto ok = (*file)->close(); !ok) return ok;
  return d.rename(temporary, path);
}

// Of a checkpoint's folder: what this class may have put there.
bool is_known(std::string_view name) {
  if (name.ends_with(temporary_suffix)) name.remove_suffix(temporary_suffix.size());
  return name == manifest_file_name || is_part_file_name(name);
}

// The tensors that a part must hold, with their specs.
std::map<std::string, tensor_spec> expected_tensors(const checkpoint_part& part,
                                                    const checkpoint_manifest& m) {
  std::map<std::string_view, const checkpoint_variable*> variables;
  for (const auto& v : m.variables) variables[v.name] = &v;
  std::map<std::string, tensor_spec> expected;
  for (const auto& name : part.variables) {
    const auto* v = variables.at(name);
    expected[name] = v->spec;
    for (const auto& slot : v->slots) expected[slot_tensor_name(name, slot)] = v->spec;
  }
  return expected;
}

void compare_tensors(std::map<std::string, tensor_spec> expected,
                     std::span<const safetensors_entry> entries, const std::string& path,
                     std::vector<std::string>& problems) {
  for (const auto& e : entries) {
    const auto at = expected.find(e.name);
    if (at == expected.end()) {
      problems.push_back(fmt::format("{}: holds a tensor {} that the manifest does not name", path,
                                     in_quotes(e.name)));
      continue;
    }
    if (at->second != e.spec)
      problems.push_back(fmt::format("{}: tensor {} is {}, the manifest says {}", path,
                                     in_quotes(e.name), to_string(e.spec), to_string(at->second)));
    expected.erase(at);
  }
  for (const auto& [name, spec] : expected)
    problems.push_back(fmt::format("{}: lacks the tensor {}", path, in_quotes(name)));
}

}  // namespace

checkpoint_store::checkpoint_store(disk& d, const std::string& folder, std::string job,
                                   const planted_bugs* bugs)
    : disk_(d), job_(std::move(job)), folder_(join(folder, job_folder_name(job_))), bugs_(bugs) {}

checkpoint_store checkpoint_store::at_folder(disk& d, std::string job_folder) {
  checkpoint_store store(d, {}, {});
  store.folder_ = std::move(job_folder);
  return store;
}

std::string checkpoint_store::folder_of(checkpoint_id id) const {
  return join(folder_, checkpoint_folder_name(id));
}

std::string checkpoint_store::path_of(checkpoint_id id, std::string_view file) const {
  return join(folder_of(id), file);
}

result<std::vector<std::string>> checkpoint_store::names() {
  auto found = disk_.list(folder_);
  if (!found && found.error().code() == error_code::not_found) return std::vector<std::string>{};
  return found;
}

result<void> checkpoint_store::make_job_folder() { return make_durable_folder(disk_, folder_, 1); }

result<void> checkpoint_store::make_checkpoint_folder(checkpoint_id id) {
  return make_durable_folder(disk_, folder_of(id), 2);
}

std::string checkpoint_store::claimed_by(std::uint32_t epoch) {
  const auto path = join(folder_, epoch_file_name(epoch));
  const auto bytes = disk_.read(path, claim_bytes_max);
  const auto who =
      bytes ? parse_claimant(*bytes, path) : result<checkpoint_claimant>(bytes.error());
  return fmt::format("epoch {} of job {} was claimed by {}", epoch, job_,
                     who ? describe(*who) : "a client that has not written its name yet");
}

result<std::unique_ptr<disk_lock>> checkpoint_store::lock_job() {
  if (auto ok = make_job_folder(); !ok) return std::move(ok.error());
  auto lock = disk_.lock(join(folder_, lock_file_name));
  if (lock || lock.error().code() != error_code::denied) return lock;
  const auto newest = newest_epoch();
  return error(error_code::denied,
               fmt::format("job {} is in use: {}{}", job_, lock.error().message(),
                           newest && *newest > 0 ? "; " + claimed_by(*newest) : ""));
}

result<std::uint32_t> checkpoint_store::newest_epoch() {
  const auto found = names();
  if (!found) return found.error();
  std::uint32_t newest = 0;
  for (const auto& name : *found) {
    if (const auto epoch = parse_epoch_file_name(name)) newest = std::max(newest, *epoch);
    if (const auto id = parse_checkpoint_folder_name(name)) newest = std::max(newest, id->epoch);
  }
  return newest;
}

result<std::uint32_t> checkpoint_store::claim_epoch(const checkpoint_claimant& who) {
  if (auto ok = make_job_folder(); !ok) return std::move(ok.error());
  const auto newest = newest_epoch();
  if (!newest) return newest.error();
  if (*newest == std::numeric_limits<std::uint32_t>::max())
    return error(error_code::usage,
                 fmt::format("{}: there is no epoch after {}", folder_, *newest));
  const auto epoch = *newest + 1;
  const auto path = join(folder_, epoch_file_name(epoch));
  auto file = disk_.create(path, disk::create_mode::exclusive);
  if (!file && file.error().code() == error_code::denied)
    return error(error_code::denied, claimed_by(epoch));
  if (!file) return std::move(file.error());
  if (auto ok = write_claim(disk_, folder_, **file, to_text(who)); !ok) {
    file->reset();
    [[maybe_unused]] const auto removed = disk_.remove(path);  // one that stays costs a number
    return std::move(ok.error());
  }
  return epoch;
}

result<void> checkpoint_store::expect_unclaimed(std::uint32_t known,
                                                std::span<const checkpoint_claimant> rivals,
                                                const checkpoint_claimant* who) {
  const auto found = names();
  if (!found) return found.error();
  const auto is_same = [](const checkpoint_claimant& a, const checkpoint_claimant& b) {
    return a.host == b.host && a.pid == b.pid;
  };
  for (const auto& name : *found) {
    const auto epoch = parse_epoch_file_name(name);
    if (!epoch || *epoch <= known) continue;
    const auto bytes = disk_.read(join(folder_, name), claim_bytes_max);
    const auto other =
        bytes ? parse_claimant(*bytes, name) : result<checkpoint_claimant>(bytes.error());
    if (!other) continue;
    if ((who != nullptr && !is_same(*other, *who)) ||
        std::any_of(rivals.begin(), rivals.end(),
                    [&](const auto& r) { return is_same(r, *other); }))
      return error(error_code::denied, claimed_by(*epoch));
  }
  return {};
}

// A checkpoint that is visible stays as it is (CS-2).
result<void> checkpoint_store::expect_invisible(checkpoint_id id) {
  const auto path = path_of(id, manifest_file_name);
  const auto there = disk_.size(path);
  if (there)
    return error(error_code::denied,
                 fmt::format("{} already exists: a checkpoint is written only once", path));
  if (there.error().code() != error_code::not_found) return there.error();
  return {};
}

result<checkpoint_part> checkpoint_store::write_part(checkpoint_id id, std::uint32_t number,
                                                     std::span<const named_tensor> tensors) {
  checkpoint_part part;
  part.file = part_file_name(number);
  const auto path = path_of(id, part.file);
  for (const auto& t : tensors) {
    const auto [variable, slot] = split_tensor_name(t.name);
    const bool is_value = variable.size() == t.name.size();
    if (!is_variable_name(variable) || (!is_value && !is_slot_name(slot)))
      return error(error_code::usage, fmt::format("cannot write {}: {} is no name of a tensor",
                                                  path, in_quotes(t.name)));
    if (is_value) part.variables.push_back(t.name);
  }
  const auto layout = lay_out_safetensors(path, tensors);
  if (!layout) return layout.error();
  if (auto ok = expect_invisible(id); !ok) return std::move(ok.error());
  if (auto ok = make_checkpoint_folder(id); !ok) return std::move(ok.error());
  std::vector<std::span<const std::byte>> pieces{std::as_bytes(std::span(layout->head))};
  for (const auto* t : layout->order) pieces.push_back(std::as_const(t->values).bytes());
  content_hash hash;
  const auto count = [&](std::span<const std::byte> bytes) {
    hash.add(bytes);
    part.bytes += bytes.size();
  };
  const bool is_hasty = bugs_ != nullptr && bugs_->syncs_no_parts;
  if (auto ok = is_hasty ? write_unsynced(disk_, path, pieces, count)
                         : write_whole(disk_, path, pieces, count);
      !ok)
    return std::move(ok.error());
  part.hash = hash.text();
  return part;
}

result<void> checkpoint_store::check_size(checkpoint_id id, const checkpoint_part& part) {
  const auto path = path_of(id, part.file);
  const auto size = disk_.size(path);
  if (!size) return size.error();
  if (*size != part.bytes)
    return error(error_code::usage,
                 fmt::format("{}: has {} bytes, and should have {}", path, *size, part.bytes));
  return {};
}

result<void> checkpoint_store::write_manifest(const checkpoint_manifest& m) {
  const checkpoint_id id{m.epoch, m.step};
  const auto path = path_of(id, manifest_file_name);
  const auto text = to_text(m, path);
  if (!text) return text.error();
  if (m.job != job_)
    return error(error_code::usage,
                 fmt::format("cannot write {}: it is of job {}, not of {}", path, m.job, job_));
  if (auto ok = expect_invisible(id); !ok) return ok;
  for (const auto& part : m.parts)
    if (auto ok = check_size(id, part); !ok)
      return std::move(ok.error().while_doing(
          fmt::format("cannot write {}, because a part of it is missing", path)));
  if (auto ok = make_checkpoint_folder(id); !ok) return ok;
  const std::span<const std::byte> pieces[] = {std::as_bytes(std::span(*text))};
  return write_whole(disk_, path, pieces);
}

result<checkpoint_manifest> checkpoint_store::read_manifest(checkpoint_id id) {
  const auto path = path_of(id, manifest_file_name);
  const auto bytes = disk_.read(path, manifest_bytes_max);
  if (!bytes) return bytes.error();
  auto m = parse_manifest(*bytes, path);
  if (m && ((m->job != job_ && !job_.empty()) || checkpoint_id{m->epoch, m->step} != id))
    return error(
        error_code::usage,
        fmt::format("{}: says that it is {} of job {}: its folder was renamed or copied", path,
                    checkpoint_folder_name({m->epoch, m->step}), job_folder_name(m->job)));
  return m;
}

result<checkpoint_list> checkpoint_store::list() {
  const auto found = names();
  if (!found) return found.error();
  std::vector<checkpoint_id> ids;
  for (const auto& name : *found)
    if (const auto id = parse_checkpoint_folder_name(name)) ids.push_back(*id);
  std::sort(ids.rbegin(), ids.rend());
  checkpoint_list all;
  for (const auto id : ids) {
    auto m = read_manifest(id);
    if (m)
      all.checkpoints.push_back({id, std::move(*m), ""});
    else if (m.error().code() == error_code::not_found)
      all.incomplete.push_back(id);
    else
      all.checkpoints.push_back({id, std::nullopt, m.error().message()});
  }
  return all;
}

result<std::vector<std::byte>> checkpoint_store::read_part(checkpoint_id id,
                                                           const checkpoint_part& part) {
  if (auto ok = check_size(id, part); !ok) return std::move(ok.error());
  const auto path = path_of(id, part.file);
  auto bytes = disk_.read(path, part.bytes);
  if (!bytes || hash_of(*bytes) == part.hash) return bytes;
  return error(error_code::usage,
               fmt::format("{}: is damaged: its hash is not that of the manifest", path));
}

std::vector<std::string> checkpoint_store::verify(const checkpoint_manifest& m,
                                                  checkpoint_check check) {
  const checkpoint_id id{m.epoch, m.step};
  if (const auto ok = check_manifest(m, path_of(id, manifest_file_name)); !ok)
    return {ok.error().message()};
  std::vector<std::string> problems;
  for (const auto& part : m.parts) {
    if (check == checkpoint_check::sizes) {
      if (const auto ok = check_size(id, part); !ok) problems.push_back(ok.error().message());
      continue;
    }
    const auto path = path_of(id, part.file);
    const auto bytes = read_part(id, part);
    const auto entries = bytes ? parse_safetensors_entries(*bytes, path)
                               : result<std::vector<safetensors_entry>>(bytes.error());
    if (entries)
      compare_tensors(expected_tensors(part, m), *entries, path, problems);
    else
      problems.push_back(entries.error().message());
  }
  return problems;
}

result<latest_checkpoint> checkpoint_store::latest_whole(checkpoint_lineage run) {
  auto all = list();
  if (!all) return std::move(all.error());
  latest_checkpoint latest;
  std::optional<checkpoint_id> found;
  std::vector<std::pair<checkpoint_id, std::string>> passed_over;
  for (auto& c : all->checkpoints) {
    if (!run.has(c.id)) continue;
    const auto problems = c.manifest ? verify(*c.manifest) : std::vector{c.problem};
    if (problems.empty()) {
      found = c.id;
      latest.manifest = std::move(c.manifest);
      break;
    }
    const auto more =
        problems.size() > 1 ? fmt::format(" (and {} more problems)", problems.size() - 1) : "";
    passed_over.emplace_back(c.id, problems.front() + more);
  }
  for (const auto id : all->incomplete)
    if (run.has(id) && (!found || id > *found))
      passed_over.emplace_back(
          id, fmt::format("{}: has no manifest: it was not finished", folder_of(id)));
  std::sort(passed_over.rbegin(), passed_over.rend());
  for (auto& [id, line] : passed_over) latest.passed_over.push_back(std::move(line));
  return latest;
}

result<std::vector<named_tensor>> checkpoint_store::load_part(checkpoint_id id,
                                                              const checkpoint_part& part) {
  const auto path = path_of(id, part.file);
  if (!is_part_file_name(part.file))
    return error(error_code::usage,
                 fmt::format("cannot load {}: that is no part of a checkpoint", path));
  const auto bytes = read_part(id, part);
  if (!bytes) return bytes.error();
  auto tensors = parse_safetensors(*bytes, path);
  if (!tensors) return tensors;
  for (const auto& name : part.variables)
    if (std::none_of(tensors->begin(), tensors->end(),
                     [&](const auto& t) { return t.name == name; }))
      return error(error_code::usage,
                   fmt::format("{}: lacks the tensor {}", path, in_quotes(name)));
  return tensors;
}

// The manifest first, durably: what is then left behind is no checkpoint (CS-3). False: nothing was
// there to remove.
result<bool> checkpoint_store::remove_checkpoint(checkpoint_id id) {
  const auto folder = folder_of(id);
  auto files = disk_.list(folder);
  if (!files && files.error().code() == error_code::not_found) return false;
  if (!files) return std::move(files.error());
  const auto has_manifest = std::erase(*files, manifest_file_name) > 0;
  if (has_manifest) {
    if (auto ok = disk_.remove(join(folder, manifest_file_name)); !ok) return std::move(ok.error());
    if (auto ok = disk_.sync_folder(folder); !ok) return std::move(ok.error());
  }
  const auto unknown = std::stable_partition(files->begin(), files->end(), is_known);
  for (auto file = files->begin(); file != unknown; ++file)
    if (auto ok = disk_.remove(join(folder, *file)); !ok) return std::move(ok.error());
  if (unknown != files->end()) return has_manifest || unknown != files->begin();
  if (auto ok = disk_.remove(folder); !ok) return std::move(ok.error());
  return true;
}

result<void> checkpoint_store::remove_unfinished(checkpoint_id given_up) {
  const auto all = list();
  if (!all) return all.error();
  for (const auto id : all->incomplete)
    if (id == given_up || id.epoch < given_up.epoch)
      if (auto done = remove_checkpoint(id); !done) return std::move(done.error());
  return {};
}

result<std::vector<checkpoint_id>> checkpoint_store::prune(std::size_t keep, checkpoint_check check,
                                                           checkpoint_lineage run) {
  if (keep == 0)
    return error(error_code::usage,
                 fmt::format("{}: at least one checkpoint must be kept", folder_));
  const auto all = list();
  if (!all) return all.error();
  std::vector<checkpoint_id> whole;
  for (const auto& c : all->checkpoints)
    if (whole.size() < keep && run.has(c.id) && c.manifest && verify(*c.manifest, check).empty())
      whole.push_back(c.id);
  std::vector<checkpoint_id> old;
  for (const auto& c : all->checkpoints)
    if (whole.size() == keep && c.id < whole.back()) old.push_back(c.id);
  for (const auto id : all->incomplete)
    if (!whole.empty() && id < whole.front()) old.push_back(id);
  std::sort(old.begin(), old.end());
  // Who made the ones that stay may have died before their names were durable.
  const auto make_durable = [&]() -> result<void> {
    for (const auto id : whole)
      if (auto ok = disk_.sync_folder(folder_of(id)); !ok) return ok;
    return disk_.sync_folder(folder_);
  };
  if (old.empty()) return old;
  if (auto ok = make_durable(); !ok) return std::move(ok.error());
  std::vector<checkpoint_id> removed;
  for (const auto id : old) {
    const auto done = remove_checkpoint(id);
    if (!done) return done.error();
    if (*done) removed.push_back(id);
  }
  if (!removed.empty())
    if (auto ok = disk_.sync_folder(folder_); !ok) return std::move(ok.error());
  return removed;
}

}  // namespace troupe
