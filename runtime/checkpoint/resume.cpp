#include "troupe/runtime/checkpoint/resume.hpp"

#include "troupe/devices/files/idx_sampler.hpp"
#include "troupe/runtime/checkpoint/checkpoint_store.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>

namespace troupe {
namespace {

// The same variables always; the same numbers unless they may change.
result<void> check_fit(const checkpoint_manifest& m, const checkpoint_options& o,
                       const training_program& program) {
  // A scale of the loss is a variable: before variables are compared, what has one and what has
  // not.
  auto differences = compare_schedule(m, program.schedule());
  const auto is_of_precision = [](const std::string& d) {
    return d.starts_with("precision:") || d.starts_with("loss_scale:");
  };
  const auto wanted = program.variables();
  if (m.variables.size() != wanted.size() &&
      std::any_of(differences.begin(), differences.end(), is_of_precision)) {
    std::erase_if(differences, [&](const std::string& d) { return !is_of_precision(d); });
    return error(
        error_code::usage,
        fmt::format(
            "the checkpoint was made in another precision, or with another scale of the loss: {}; give --precision and --loss-scale as they were",
            fmt::join(differences, "; ")));
  }
  for (const auto& [name, spec] : wanted) {
    const auto at = std::find_if(m.variables.begin(), m.variables.end(),
                                 [&](const auto& v) { return v.name == name; });
    if (at == m.variables.end())
      return error(
          error_code::usage,
          fmt::format("the checkpoint is of another graph: it has no variable '{}'", name));
    if (at->spec != spec)
      return error(
          error_code::usage,
          fmt::format("the checkpoint is of another graph: variable '{}' is {} there, and {} here",
                      name, to_string(at->spec), to_string(spec)));
  }
  if (m.variables.size() != wanted.size())
    return error(error_code::usage,
                 fmt::format("the checkpoint is of another graph: it has {} variables, this one {}",
                             m.variables.size(), wanted.size()));
  const auto slots = slot_names(program.spec().optimizer);
  for (const auto& v : m.variables)
    if (auto fits = compare_slots(v.name, v.slots, slots); !fits) return fits;
  if (!differences.empty() && !o.rebatch)
    return error(
        error_code::usage,
        fmt::format(
            "the checkpoint was made by another graph or schedule, or with another --fast, --precision, --loss-scale or --on-nan skip, which change the graph: {}; --rebatch goes on with its variables, from the "
            "beginning of its data epoch",
            fmt::join(differences, "; ")));
  return {};
}

std::uint64_t number_in(const checkpoint_manifest& m, std::string_view key) {
  for (const auto& [name, text] : m.schedule)
    if (name == key) return std::strtoull(text.c_str(), nullptr, 10);
  return 0;
}

// The first step, by the new schedule, of the data epoch that the checkpoint is in.
result<std::uint64_t> first_of_epoch(const checkpoint_manifest& m,
                                     const training_program& program) {
  const auto samples = number_in(m, "samples"), batch = number_in(m, "batch"),
             workers = number_in(m, "workers");
  if (samples == 0 || batch == 0 || workers == 0 || m.worker_steps.empty())
    return error(error_code::usage, "the checkpoint does not say how its data were batched");
  const auto old = idx_schedule{samples, batch, workers, 0}.steps_per_epoch();
  const auto done = *std::min_element(m.worker_steps.begin(), m.worker_steps.end());
  return done / old * program.steps_per_epoch();
}

result<std::optional<known_checkpoint>> begin_at(checkpoint_store& store,
                                                 const checkpoint_options& o,
                                                 const training_program& program,
                                                 std::vector<std::string>& notes) {
  using none = std::optional<known_checkpoint>;
  auto latest = store.latest_whole();
  if (!latest) return latest.error();
  for (const auto& line : latest->passed_over) notes.push_back("passed over: " + line);
  if (!latest->manifest) {
    if (o.resume)
      notes.push_back(fmt::format("there is no {}checkpoint in {}: begins at step 0",
                                  latest->passed_over.empty() ? "" : "whole ", store.folder()));
    return none();
  }
  const auto& m = *latest->manifest;
  if (!o.resume)
    return error(
        error_code::usage,
        fmt::format(
            "{} has checkpoints of this job up to step {}: --resume goes on with them; another --name or "
            "another folder begins anew",
            store.folder(), m.step));
  if (auto fits = check_fit(m, o, program); !fits) return fits.error();
  known_checkpoint k{m.epoch, m.step, m.worker_steps};
  if (o.rebatch && !compare_schedule(m, program.schedule()).empty()) {
    auto first = first_of_epoch(m, program);
    if (!first) return first.error();
    k.worker_steps.assign(program.spec().workers, *first);
  }
  for (auto s : k.worker_steps)
    if (s > program.spec().steps)
      return error(error_code::usage,
                   fmt::format("the checkpoint is of step {}, and this run has {} steps", s,
                               program.spec().steps));
  notes.push_back(fmt::format("goes on with the checkpoint of step {} in {}", m.step,
                              store.folder_of({m.epoch, m.step})));
  return none(std::move(k));
}

}  // namespace

result<opened_folder> open_job_folder(disk& d, const checkpoint_options& o,
                                      const training_program& program,
                                      const checkpoint_claimant& who) {
  checkpoint_store store(d, o.folder, program.name());
  opened_folder out;
  auto lock = store.lock_job();
  if (!lock) return error(lock.error()).while_doing("--checkpoint");
  out.lock = std::move(*lock);
  auto begun = begin_at(store, o, program, out.notes);
  if (!begun) return begun.error();
  out.resume_from = std::move(*begun);
  auto epoch = store.claim_epoch(who);
  if (!epoch) return epoch.error();
  out.epoch = *epoch;
  return out;
}

}  // namespace troupe
