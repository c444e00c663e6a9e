#include "troupe/runtime/jobs/job_journal.hpp"

#include "schema/journal.capnp.h"
#include "troupe/runtime/compile/graph_file.hpp"
#include "troupe/runtime/plan/plan_parts.hpp"

#include <capnp/message.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace troupe {

namespace {

using plan_parts::list_size;
using plan_parts::misread;

constexpr std::size_t journal_bytes_max = std::size_t{64} << 20;
constexpr std::uint32_t workers_max = 1U << 20U, successors_max = 64, data_max = 1000;

// Many pointers may show the same bytes.
std::string short_text(capnp::Text::Reader t) {
  constexpr std::size_t text_max = 8192;
  if (t.size() > text_max) throw misread{fmt::format("a text has {} bytes", t.size())};
  return {t.begin(), t.size()};
}

template <class List>
void put(List to, const std::vector<std::uint64_t>& from) {
  for (unsigned i = 0; i < to.size(); ++i) to.set(i, from[i]);
}

template <class List>
void put(List to, const std::vector<node_id>& from) {
  for (unsigned i = 0; i < to.size(); ++i) to.set(i, raw(from[i]));
}

void expect_at_most(const char* what, std::uint64_t n, std::uint64_t most) {
  if (n > most) throw misread{fmt::format("{} {}, at most {} are allowed", n, what, most)};
}

template <class List>
std::vector<std::uint64_t> numbers_of(List from) {
  std::vector<std::uint64_t> out;
  for (auto n : from) out.push_back(n);
  return out;
}

template <class List>
std::vector<node_id> nodes_of(List from) {
  std::vector<node_id> out;
  for (auto n : from) out.push_back(node_id{n});
  return out;
}

}  // namespace

// --- recipe --------------------------------------------------------------------------------------

std::vector<std::byte> encode(const job_recipe& r) {
  capnp::MallocMessageBuilder message;
  auto to = message.initRoot<wire::JobRecipe>();
  to.setGraph({reinterpret_cast<const kj::byte*>(r.graph.data()), r.graph.size()});
  to.setOnFailure(static_cast<std::uint8_t>(r.on_failure));
  to.setFailuresMax(r.limits.failures_max);
  to.setWindowNs(r.limits.window_ns);
  to.setInVainMax(r.limits.in_vain_max);
  to.setDelayNs(r.limits.delay_ns);
  to.setDelayMaxNs(r.limits.delay_max_ns);
  const auto& c = r.checkpoints;
  to.setFolder(c.folder);
  to.setEverySteps(c.every_steps);
  to.setEveryNs(c.every_ns);
  to.setKeep(r.keep);
  to.setFirstEpoch(c.epoch);
  if (c.resume_from) {
    to.setHasResumed(true);
    to.setResumedEpoch(c.resume_from->epoch);
    to.setResumedStep(c.resume_from->step);
    put(to.initResumedWorkerSteps(list_size(c.resume_from->worker_steps)),
        c.resume_from->worker_steps);
  }
  return plan_parts::to_bytes(message);
}

result<job_recipe> decode_recipe(std::span<const std::byte> bytes) {
  job_recipe out;
  auto read = plan_parts::read_message(
      bytes, journal_bytes_max, "a job's recipe", [&](capnp::MessageReader& m, std::uint64_t) {
        auto from = m.getRoot<wire::JobRecipe>();
        const auto graph = from.getGraph();
        const auto first = reinterpret_cast<const std::byte*>(graph.begin());
        out.graph.assign(first, first + graph.size());
        if (from.getOnFailure() > static_cast<std::uint8_t>(failure_policy::resume))
          throw misread{fmt::format("failure policy {} is unknown", from.getOnFailure())};
        out.on_failure = static_cast<failure_policy>(from.getOnFailure());
        out.limits = {from.getFailuresMax(), from.getWindowNs(), from.getInVainMax(),
                      from.getDelayNs(), from.getDelayMaxNs()};
        if (out.limits.window_ns < 0 || out.limits.delay_ns < 0 || out.limits.delay_max_ns < 0)
          throw misread{"a limit of restarts is below 0"};
        auto& c = out.checkpoints;
        c.folder = std::string(from.getFolder().begin(), from.getFolder().size());
        c.every_steps = from.getEverySteps();
        c.every_ns = from.getEveryNs();
        c.epoch = from.getFirstEpoch();
        out.keep = from.getKeep();
        if (!from.getHasResumed()) return;
        expect_at_most("workers", from.getResumedWorkerSteps().size(), workers_max);
        c.resume_from = known_checkpoint{from.getResumedEpoch(), from.getResumedStep(),
                                         numbers_of(from.getResumedWorkerSteps())};
      });
  if (!read) return std::move(read.error());
  return out;
}

result<training_program> make_program(const job_recipe& r, const role_map& roles, node_id client,
                                      const op_table& ops) {
  auto saved = decode_graph(r.graph, ops);
  if (!saved) return std::move(saved.error());
  if (!saved->use.loss || !saved->use.training)
    return error(error_code::usage, "a job's recipe has no loss, or does not say how to train it");
  auto spec = saved->use.training->spec;
  if (roles.workers.size() != spec.workers || roles.shards.size() != spec.shards)
    return error(
        error_code::usage,
        fmt::format("a job's journal has {} workers and {} shards, and its recipe {} and {}",
                    roles.workers.size(), roles.shards.size(), spec.workers, spec.shards));
  set_places(spec, place_roles(roles, client));
  auto options = saved->use.training->options;
  options.name = saved->use.name;
  return compile_program(*saved->graph, *saved->use.loss, spec, options);
}

// --- journal -------------------------------------------------------------------------------------

std::vector<std::byte> encode(const job_journal& j) {
  capnp::MallocMessageBuilder message;
  auto to = message.initRoot<wire::JobJournal>();
  to.setEpoch(j.epoch);
  to.setCoordinator(raw(j.coordinator));
  put(to.initSuccessors(list_size(j.successors)), j.successors);
  put(to.initWorkers(list_size(j.roles.workers)), j.roles.workers);
  put(to.initShards(list_size(j.roles.shards)), j.roles.shards);
  put(to.initReplicas(list_size(j.roles.replicas)), j.roles.replicas);
  to.setShardsFollowWorkers(j.roles.shards_follow_workers);
  put(to.initFirstSteps(list_size(j.first_steps)), j.first_steps);
  put(to.initNextLosses(list_size(j.next_losses)), j.next_losses);
  auto fed = to.initFed(list_size(j.closed));
  auto dropped = to.initDropped(list_size(j.closed));
  for (unsigned w = 0; w < fed.size(); ++w) {
    fed.set(w, j.closed[w].fed);
    dropped.set(w, j.closed[w].dropped);
  }
  to.setDataMessages(j.data_messages);
  to.setRecoveries(j.recoveries);
  to.setCheckpoints(j.checkpoints);
  to.setLastStep(j.last_step);
  to.setIsFinishing(j.is_finishing);
  to.setIsSuspending(j.is_suspending);
  to.setInVain(j.in_vain);
  to.setProgress(j.progress);
  to.setStartedUnixNs(j.started_unix_ns);
  auto losses = to.initLosses(list_size(j.losses));
  for (unsigned i = 0; i < losses.size(); ++i) {
    losses[i].setStep(j.losses[i].step);
    losses[i].setWorker(j.losses[i].worker);
    losses[i].setLoss(j.losses[i].loss);
  }
  auto data = to.initData(list_size(j.data));
  for (unsigned i = 0; i < data.size(); ++i) {
    data[i].setWhat(j.data[i].what);
    data[i].setHash(j.data[i].hash);
    data[i].setNode(j.data[i].node);
  }
  return plan_parts::to_bytes(message);
}

result<job_journal> decode_journal(std::span<const std::byte> bytes) {
  job_journal out;
  auto read = plan_parts::read_message(
      bytes, journal_bytes_max, "a job's journal", [&](capnp::MessageReader& m, std::uint64_t) {
        auto from = m.getRoot<wire::JobJournal>();
        expect_at_most("successors", from.getSuccessors().size(), successors_max);
        const auto workers = from.getNextLosses().size();
        expect_at_most("workers", workers, workers_max);
        expect_at_most("shards", from.getShards().size(), workers_max);
        if (workers == 0 || from.getWorkers().size() != workers ||
            from.getFirstSteps().size() != workers || from.getFed().size() != workers ||
            from.getDropped().size() != workers)
          throw misread{"its lists of workers differ in length"};
        if (from.getShards().size() == 0 || (from.getReplicas().size() != 0 &&
                                             from.getReplicas().size() != from.getShards().size()))
          throw misread{"its lists of shards differ in length"};
        out.epoch = from.getEpoch();
        out.coordinator = node_id{from.getCoordinator()};
        out.successors = nodes_of(from.getSuccessors());
        out.roles.workers = nodes_of(from.getWorkers());
        out.roles.shards = nodes_of(from.getShards());
        out.roles.replicas = nodes_of(from.getReplicas());
        out.roles.shards_follow_workers = from.getShardsFollowWorkers();
        out.first_steps = numbers_of(from.getFirstSteps());
        out.next_losses = numbers_of(from.getNextLosses());
        for (unsigned w = 0; w < workers; ++w) {
          if (out.next_losses[w] < out.first_steps[w])
            throw misread{"a worker has fewer losses than it began with"};
          out.closed.push_back({.fed = from.getFed()[w], .dropped = from.getDropped()[w]});
        }
        out.data_messages = from.getDataMessages();
        out.recoveries = from.getRecoveries();
        out.checkpoints = from.getCheckpoints();
        out.last_step = from.getLastStep();
        out.is_finishing = from.getIsFinishing();
        out.is_suspending = from.getIsSuspending();
        out.in_vain = from.getInVain();
        out.progress = from.getProgress();
        out.started_unix_ns = from.getStartedUnixNs();
        for (auto l : from.getLosses()) {
          if (l.getWorker() >= workers)
            throw misread{fmt::format("a loss is of worker {} of {}", l.getWorker(), workers)};
          out.losses.push_back({l.getStep(), l.getWorker(), l.getLoss()});
        }
        expect_at_most("data that nodes read", from.getData().size(), data_max);
        for (auto d : from.getData())
          out.data.push_back({short_text(d.getWhat()), d.getHash(), short_text(d.getNode())});
      });
  if (!read) return std::move(read.error());
  return out;
}

void loss_history::add(const told_loss& l) {
  losses_.push_back(l);
  if (losses_.size() <= losses_max) return;
  losses_.pop_front();
}

// --- journals that are kept ----------------------------------------------------------------------

result<void> kept_journals::keep(node_id from, job_id job, std::uint64_t number,
                                 std::span<const std::byte> recipe,
                                 std::span<const std::byte> journal) {
  auto state = decode_journal(journal);
  if (!state) return std::move(state.error());
  const auto at = jobs_.find(job);
  if (recipe.empty()) {
    if (at == jobs_.end() || at->second.from != from)
      return error(error_code::usage, "a job's journal came without its recipe");
    at->second.number = number;
    at->second.losses.add(state->losses);
    state->losses.clear();
    at->second.journal = std::move(*state);
    return {};
  }
  // Of two coordinators the one of the newer epoch has the job (JJ-2).
  if (at != jobs_.end() && at->second.from != from && at->second.journal.epoch > state->epoch)
    return error(error_code::denied, "the job has another coordinator");
  auto how = decode_recipe(recipe);
  if (!how) return std::move(how.error());
  kept_journal k{
      from, number, std::make_shared<const job_recipe>(std::move(*how)), std::move(*state), {}};
  k.losses.add(std::exchange(k.journal.losses, {}));
  jobs_.insert_or_assign(job, std::move(k));
  return {};
}

void kept_journals::forget(node_id from, job_id job, std::uint64_t epoch) {
  const auto at = jobs_.find(job);
  if (at != jobs_.end() && (at->second.from == from || at->second.journal.epoch < epoch))
    jobs_.erase(at);
}

std::optional<kept_journal> kept_journals::take(node_id from, job_id job) {
  const auto at = jobs_.find(job);
  if (at == jobs_.end() || at->second.from != from) return std::nullopt;
  auto out = std::move(at->second);
  jobs_.erase(at);
  return out;
}

std::vector<std::pair<job_id, kept_journal>> kept_journals::take_orphans(
    const std::function<bool(node_id)>& is_alive) {
  std::vector<std::pair<job_id, kept_journal>> out;
  for (auto at = jobs_.begin(); at != jobs_.end();) {
    const auto& j = at->second.journal;
    const auto own = std::find(j.successors.begin(), j.successors.end(), self_);
    if (is_alive(at->second.from) || own == j.successors.end() ||
        std::any_of(j.successors.begin(), own, is_alive)) {
      ++at;
      continue;
    }
    out.emplace_back(at->first, std::move(at->second));
    at = jobs_.erase(at);
  }
  return out;
}

void kept_journals::on_rejoined(node_id self) {
  self_ = self;
  jobs_.clear();
}

}  // namespace troupe
