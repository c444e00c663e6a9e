#include "tools/troupe-sim/scenario.hpp"

#include "troupe/runtime/checkpoint/checkpoint_store.hpp"
#include "troupe/runtime/jobs/placement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <random>
#include <set>

namespace troupe {

namespace {

constexpr std::int64_t ms = 1'000'000;
constexpr std::int64_t s = 1000 * ms;
constexpr std::string_view fault_names[sim_fault_kinds] = {
    "kill",    "kill-client", "freeze",    "cut",        "partition", "slow",  "lose", "twice",
    "reorder", "join",        "disk-full", "disk-error", "bit-flip",  "leave", "fail", "power"};
constexpr const char* checkpoint_folder = "/checkpoints";
constexpr std::string_view planted_failure = "it was made to fail";
constexpr std::size_t faults_max = 6;
constexpr std::uint32_t joins_max = 2;

bool touches_disk(sim_fault_kind k) {
  return k == sim_fault_kind::disk_full || k == sim_fault_kind::disk_error ||
         k == sim_fault_kind::bit_flip;
}

// Ends a fault that lasts.
struct ending {
  std::int64_t at_ns = 0;
  bool is_fault = true;  // until it ends nobody expects progress
  std::function<void()> run;
};

// One run of a scenario.
class history final : private apply_probe {
 public:
  history(const sim_scenario& sc, sim_tables& tables, const sim_data& data,
          sim_reference& reference, const planted_bugs* bugs)
      : sc_(sc),
        tables_(tables),
        data_(data),
        reference_(reference),
        cluster_(tables, options(sc, bugs, this)) {}

  sim_verdict run() {
    cluster_.program().hear = [this](const std::string& text) { tell(text); };
    auto& p = cluster_.program();
    try {
      verdict_.violation = live();
    } catch (const std::exception& e) {  // what is asked of a process that is gone, mostly
      watch_failures();
      note_wrong(fmt::format("the simulation cannot go on: {}", e.what()));
      verdict_.violation = violation_;
    }
    verdict_.recoveries += p.resumed.size();
    verdict_.virtual_ns = cluster_.now_ns();
    verdict_.messages = cluster_.messages();
    verdict_.trace_hash = cluster_.orders();
    thaw_all();
    const bool is_clean = cluster_.finish();
    watch_failures();
    if (const auto& wrong = cluster_.mistakes_of_order(); !wrong.empty())
      note_wrong(wrong.front() + " (IN-14)");
    verdict_.device_steps = cluster_.device_steps();
    if (verdict_.violation.empty()) verdict_.violation = violation_;
    if (!is_clean && verdict_.violation.empty())
      verdict_.violation = "an actor outlives its process (IN-7)";
    return verdict_;
  }

 private:
  static sim_cluster_options options(const sim_scenario& sc, const planted_bugs* bugs,
                                     apply_probe* probe) {
    return {.seed = sc.seed,
            .nodes = sc.nodes,
            .ps_nodes = sc.ps_nodes,
            .is_one_machine = sc.is_one_machine,
            .bugs = bugs,
            .probe = probe,
            .gpus = sc.shape.gpus};
  }

  // IN-8.
  void on_apply(const apply_seen& a) override {
    const auto [at, is_new] =
        written_.try_emplace({raw(a.job), a.epoch, a.variable, a.is_replica,
                              sc_.shape.all_reduce && a.is_replica ? raw(a.node) : 0},
                             a.node, a.version);
    if (is_new) return;
    auto& [node, version] = at->second;
    if (node != a.node)
      note_wrong(fmt::format("two nodes write {} '{}' in epoch {} (IN-8)",
                             a.is_replica ? "the replica of" : "variable", a.variable, a.epoch));
    else if (a.version != version + 1)
      note_wrong(fmt::format("{} '{}' goes from version {} to {} in epoch {} (IN-8)",
                             a.is_replica ? "the replica of" : "variable", a.variable, version,
                             a.version, a.epoch));
    version = a.version;
  }

  // "": all that must hold held.
  std::string live() {
    if (!cluster_.form()) return "the processes did not find each other";
    if (auto begun = begin(); !begun.empty()) return begun;
    const auto first = cluster_.messages();
    std::size_t next = 0;
    std::int64_t deadline = cluster_.now_ns() + simulator::patience_ns;
    while (true) {
      const auto time = cluster_.now_ns();
      const bool is_over = cluster_.run_until(
          [&] {
            watch();
            return !violation_.empty() || is_done() ||
                   (next < sc_.faults.size() &&
                    cluster_.messages() - first >= sc_.faults[next].at) ||
                   (!endings_.empty() && cluster_.now_ns() >= endings_.front().at_ns);
          },
          std::max<std::int64_t>(ms, deadline - cluster_.now_ns()));
      if (!violation_.empty()) return violation_;
      if (is_done()) break;
      if (!is_over && cluster_.now_ns() == time)
        return fmt::format(
            "time stands still: actors send each other messages without end; {} (IN-5)",
            told_last());
      if (!is_over && cluster_.now_ns() >= deadline) tell_waits();
      if (!is_over && cluster_.now_ns() >= deadline)
        return fmt::format("no progress for {} s after the last fault: {} losses, {} (IN-5)",
                           simulator::patience_ns / s, losses(), told_last());
      end_faults();
      if (next < sc_.faults.size() && cluster_.messages() - first >= sc_.faults[next].at) {
        strike(sc_.faults[next++]);
        ++verdict_.faults;
        deadline = cluster_.now_ns() + simulator::patience_ns;
      }
      for (const auto& e : endings_)
        if (e.is_fault) deadline = std::max(deadline, e.at_ns + simulator::patience_ns);
    }
    return judge();
  }

  bool is_done() {
    const auto& p = cluster_.program();
    return cluster_.is_alive(cluster_.client()) && (p.finished || p.failed || has_ended_alone_);
  }

  // --- the job -----------------------------------------------------------------------------------

  std::string begin() {
    const auto self = cluster_.info(cluster_.client());
    std::vector<member_info> nodes = nodes_in_order(cluster_.nodes());
    auto request = make_sim_request(tables_, data_, sc_.shape, nodes, self.id);
    if (!request) return "the job does not compile: " + request.error().text();
    // And those of the program before.
    kept_bytes_each_ = 4 * edge_bytes(*(*request)->program, sc_.shape);
    kept_bytes_max_ += kept_bytes_each_;
    (*request)->limits = {.failures_max = 1000, .in_vain_max = 30};
    if (!sc_.shape.checkpoints.folder.empty()) {
      auto o = sc_.shape.checkpoints;
      o.resume = true;
      auto opened = open_job_folder(cluster_.disk_of(cluster_.client()), o, *(*request)->program,
                                    {self.name, self.host, self.pid, 1});
      if (!opened)
        return opened.error().code() == error_code::failed
                   ? retry_later()
                   : "the folder cannot be opened: " + opened.error().text();
      if (opened->resume_from) ++verdict_.resumed_from_disk;
      std::vector<std::string> notes;
      first_ =
          opened->resume_from ? opened->resume_from->worker_steps : std::vector<std::uint64_t>{};
      take_over(std::move(*opened), o, **request, notes);
      verdict_.story.insert(verdict_.story.end(), notes.begin(), notes.end());
    }
    if (sc_.shape.outlives)
      if (auto ok = add_recipe(**request, tables_, data_, sc_.shape); !ok) return ok.error().text();
    cluster_.run_job(*request);
    return {};
  }

  // --- a job that outlives its program (IN-15) ---------------------------------------------------

  void attach(std::uint32_t life) {
    kept_bytes_max_ += kept_bytes_each_;
    cluster_.program().not_attached.clear();
    cluster_.attach_job("training");
    look_for_job(life);
  }

  // Until the program has it, or nobody else has.
  void look_for_job(std::uint32_t life) {
    after(
        300 * ms,
        [this, life] {
          auto& p = cluster_.program();
          if (life != client_life_ || !cluster_.is_alive(cluster_.client()) || p.has_started ||
              p.is_over())
            return;
          if (p.not_attached.starts_with("the job is over: done")) {
            has_ended_alone_ = true;
            return;
          }
          if (!p.not_attached.empty()) return attach(life);  // it has moved meanwhile
          if (is_job_anywhere()) return look_for_job(life);
          cluster_.forget_attach();
          if (nodes_in_order(cluster_.nodes()).empty()) return attach_or_begin(life);
          note_wrong(begin());
        },
        false);
  }

  bool is_job_anywhere() {
    for (std::uint32_t i = 0; i < cluster_.processes(); ++i) {
      if (!cluster_.is_alive(i)) continue;
      if (cluster_.is_frozen(i)) return true;  // perhaps
      if (cluster_.is_ending(i)) continue;
      for (const auto& j : cluster_.ask(i).jobs)
        if (j.name == "training" && !is_over(j.state)) return true;
    }
    return false;
  }

  void attach_or_begin(std::uint32_t life) {
    after(700 * ms, [this, life] {
      if (life != client_life_ || !cluster_.is_alive(cluster_.client())) return;  // killed again
      attach(life);
    });
  }

  // The newest checkpoint, if it is of the last step.
  std::string judge_end_alone() {
    cluster_.disk().run_all();
    checkpoint_store store(cluster_.disk(), checkpoint_folder, "training");
    auto latest = store.latest_whole();
    if (!latest || !latest->manifest) return "the job has ended without a checkpoint (IN-15)";
    const auto& m = *latest->manifest;
    const auto steps =
        sc_.shape.steps * (sc_.shape.update == update_kind::sync ? 1 : sc_.shape.workers);
    if (m.step != steps)
      return fmt::format("the job has ended, and its last checkpoint is of step {} of {} (IN-15)",
                         m.step, steps);
    if (sc_.shape.update != update_kind::sync) return {};
    const auto& wanted = reference_.of(sc_.shape);
    std::map<std::string, std::vector<float>> got;
    for (const auto& part : m.parts) {
      auto tensors = store.load_part({m.epoch, m.step}, part);
      if (!tensors) return tensors.error().text() + " (IN-15)";
      for (const auto& t : *tensors)
        if (t.values.type() == dtype::f32) got[t.name] = floats(t.values);
    }
    for (const auto& [name, value] : wanted.variables)
      if (const auto at = got.find(name); at == got.end() || !same_bits(at->second, value))
        return fmt::format("variable {} of the last checkpoint differs (IN-15)", name);
    return {};
  }

  // A full or broken disk: a person would start the program again.
  std::string retry_later() {
    if (!sc_.shape.checkpoints.folder.empty() && sc_.faults.empty())
      return "the disk fails by itself";
    begin_again(client_life_);
    return {};
  }

  void note_wrong(const std::string& wrong) {
    if (violation_.empty() && !wrong.empty()) violation_ = wrong;
  }

  // --- faults ------------------------------------------------------------------------------------

  void sort_endings() {
    std::stable_sort(endings_.begin(), endings_.end(),
                     [](const auto& a, const auto& b) { return a.at_ns < b.at_ns; });
  }
  void after(std::int64_t ns, std::function<void()> f, bool is_fault = true) {
    endings_.push_back({cluster_.now_ns() + ns, is_fault, std::move(f)});
    cluster_.network().stop_at(cluster_.now_ns() + ns);
    sort_endings();
  }
  void end_faults() {
    while (!endings_.empty() && cluster_.now_ns() >= endings_.front().at_ns) {
      auto f = std::move(endings_.front().run);
      endings_.erase(endings_.begin());
      f();
    }
  }

  // A node that lives, by number; nullopt: nobody does.
  std::optional<std::uint32_t> node(std::uint32_t n) const {
    std::vector<std::uint32_t> living;
    for (std::uint32_t i = 0; i < cluster_.processes(); ++i)
      if (i != cluster_.client() && cluster_.is_alive(i)) living.push_back(i);
    if (living.empty()) return std::nullopt;
    return living[n % living.size()];
  }
  std::optional<std::uint32_t> process(std::uint32_t n) const {
    const auto i = n % cluster_.processes();
    return cluster_.is_alive(i) ? std::optional(i) : node(n);
  }

  void strike(const sim_fault& f) {
    tell(to_string(f));
    switch (f.kind) {
      case sim_fault_kind::kill: return kill(f);
      case sim_fault_kind::kill_client: return kill_client(f);
      case sim_fault_kind::freeze:
        if (const auto n = node(f.a); n && !cluster_.is_frozen(*n)) {
          cluster_.freeze(*n);
          after(f.ns, [this, n = *n] { cluster_.thaw(n); });
        }
        return;
      case sim_fault_kind::cut:
        if (const auto a = process(f.a), b = process(f.b); a && b && *a != *b) cluster_.cut(*a, *b);
        return;
      case sim_fault_kind::partition: return condition(f, {.is_blocked = true});
      case sim_fault_kind::slow: return condition(f, {.slow_ns = 30 * ms});
      case sim_fault_kind::lose: return condition(f, {.lost_one_in = 20});
      case sim_fault_kind::twice: return condition(f, {.doubled_one_in = 5});
      case sim_fault_kind::reorder: return condition(f, {.reordered_one_in = 10});
      case sim_fault_kind::join: (void)cluster_.add_node(); return;
      case sim_fault_kind::disk_full:
        cluster_.disk().set_capacity(cluster_.disk().used_bytes() + f.a % 2000);
        return after(f.ns, [this] { cluster_.disk().set_capacity(~std::uint64_t{0}); });
      case sim_fault_kind::disk_error:
        return cluster_.disk().fail(cluster_.disk().operations() + f.a % 20,
                                    sim_disk::fault::broken, 1 + f.b % 5);
      case sim_fault_kind::bit_flip: return flip(f);
      case sim_fault_kind::leave:
        if (const auto n = node(f.a); n && !cluster_.is_frozen(*n)) {
          cluster_.leave(*n);
          replace(*n, f.ns);
        }
        return;
      case sim_fault_kind::fail: return fail_actor(f);
      case sim_fault_kind::power: return power(f);
    }
  }

  // The next one of its kind that has something to do. Some take their process along, which then
  // comes again.
  void fail_actor(const sim_fault& f) {
    static constexpr std::string_view kinds[] = {"port_actor", "port_actor", "port_actor",
                                                 "supervisor", "link",       "disk",
                                                 "archive",    "member",     "node"};
    const auto n = node(f.a);
    if (!n || cluster_.is_frozen(*n)) return;
    const auto kind = kinds[f.b % std::size(kinds)];
    const auto host = cluster_.host(*n);
    const bool has_failed = cluster_.fail_actor(*n, kind, std::string(planted_failure), 300 * ms);
    // Nobody but the archive holds the disk actor, which then ends with it, perhaps before the
    // process does.
    if (has_failed && kind == "archive")
      excused_.insert(host + ": the disk actor was started again, after its failure: it ended");
    tell(fmt::format("{} of process {} {}", kind, *n, has_failed ? "fails" : "had nothing to do"));
    after(f.ns + s, [this, n = *n] {
      if (!cluster_.is_alive(n)) cluster_.restart(n);
    });
  }

  // Afterwards the disk has what was promised.
  void power(const sim_fault& f) {
    for (std::uint32_t i = 0; i < cluster_.processes(); ++i)
      if (i != cluster_.client() && cluster_.is_alive(i)) {
        cluster_.kill(i);
        after(f.ns, [this, i] {
          if (!cluster_.is_alive(i)) cluster_.restart(i);
        });
      }
    kill_client(f);
    cluster_.disk().crash(f.a);
    note_wrong(judge_disk());
  }

  void kill(const sim_fault& f) {
    const auto n = node(f.a);
    if (!n) return;
    cluster_.kill(*n);
    after(f.ns, [this, n = *n] {
      if (!cluster_.is_alive(n)) cluster_.restart(n);
    });
  }

  // A new node in the place of one that leaves, when it has left.
  void replace(std::uint32_t n, std::int64_t ns) {
    after(
        ns, [this, n, ns] { cluster_.is_alive(n) ? replace(n, ns) : cluster_.restart(n); }, false);
  }

  void kill_client(const sim_fault& f) {
    if (!cluster_.is_alive(cluster_.client())) return;
    keep_what_was_told();
    cluster_.kill(cluster_.client());
    ++client_life_;
    after(f.ns, [this] {
      cluster_.program().forget_job();
      cluster_.restart(cluster_.client());
      if (sc_.shape.outlives)
        attach_or_begin(client_life_);
      else
        begin_again(client_life_);
    });
  }

  // It finds the cluster first, as every program does.
  void begin_again(std::uint32_t life) {
    after(700 * ms, [this, life] {
      if (life != client_life_ || !cluster_.is_alive(cluster_.client())) return;  // killed again
      if (nodes_in_order(cluster_.nodes()).empty()) return begin_again(life);
      note_wrong(begin());
    });
  }

  void condition(const sim_fault& f, const sim_condition& c) {
    const auto a = process(f.a), b = process(f.b);
    if (!a || !b || *a == *b) return;
    cluster_.set_condition(*a, *b, c);
    if (!f.is_one_way) cluster_.set_condition(*b, *a, c);
    after(f.ns, [this, a = *a, b = *b] {
      cluster_.set_condition(a, b, {});
      cluster_.set_condition(b, a, {});
    });
  }

  void flip(const sim_fault& f) {
    const std::string folder = std::string(checkpoint_folder) + "/training";
    auto names = cluster_.disk().list(folder);
    if (!names || names->empty()) return;
    const auto& name = (*names)[f.a % names->size()];
    if (!name.starts_with("step-")) return;
    auto files = cluster_.disk().list(folder + "/" + name);
    if (!files || files->empty()) return;
    const auto path = folder + "/" + name + "/" + (*files)[f.b % files->size()];
    if (path.ends_with(".tmp")) return;
    const auto bytes = cluster_.disk().contents(path);
    if (bytes && !bytes->empty() && cluster_.disk().is_durable(path))
      cluster_.disk().flip(path, (f.a ^ f.b) % (8 * bytes->size()));
  }

  bool is_any_frozen() {
    for (std::uint32_t i = 0; i < cluster_.processes(); ++i)
      if (cluster_.is_frozen(i)) return true;
    return false;
  }

  void thaw_all() {
    for (std::uint32_t i = 0; i < cluster_.processes(); ++i)
      if (cluster_.is_frozen(i)) cluster_.thaw(i);
  }

  // --- what must hold ----------------------------------------------------------------------------

  std::size_t losses() { return told_.size() + cluster_.program().losses.size(); }

  std::string told_last() {
    const auto& p = cluster_.program();
    if (!p.notes.empty()) return p.notes.back();
    if (!p.recovering.empty()) return p.recovering.back();
    return "nothing was told";
  }

  // Of a history without progress: who waits for what.
  void tell_waits() {
    for (std::uint32_t i = 0; i < cluster_.processes(); ++i) {
      if (!cluster_.is_alive(i) || cluster_.is_frozen(i)) continue;
      for (const auto& a : cluster_.ask(i).actors) {
        if (a.job.empty() || a.state == actor_state::ended) continue;
        std::string ports;
        for (const auto& port : a.ports)
          ports += fmt::format(" {}{}={}", port.is_waiting ? "*" : "", port.name,
                               port.is_input() ? port.queued : port.credits);
        verdict_.story.push_back(fmt::format("{}: {} {} is {} after {} steps:{}", a.node, a.kind,
                                             a.name, to_string(a.state), a.steps, ports));
      }
    }
  }

  void tell(const std::string& text) {
    verdict_.story.push_back(fmt::format("{:.3f} s: {}", double(cluster_.now_ns()) * 1e-9, text));
  }

  // No process has ended by itself, and none has started an actor again, but after a failure that
  // was planted.
  void watch_failures() {
    if (const auto& text = cluster_.program().broken; !text.empty())
      note_wrong("the program: " + text);
    for (; failures_seen_ < cluster_.failures().size(); ++failures_seen_)
      if (const auto& text = cluster_.failures()[failures_seen_];
          text.find(planted_failure) == std::string::npos && !excused_.contains(text))
        note_wrong(text + " (IN-4)");
  }

  // After every message: cheap.
  void watch() {
    auto& p = cluster_.program();
    watch_failures();
    if (p.moved && cluster_.is_alive(cluster_.client())) {
      if (!p.moved->is_lost) note_wrong("the job was given away, and nobody has asked (IN-15)");
      p.moved.reset();
      p.has_started = false;
      p.has_come_back = true;
      attach(client_life_);
    }
    for (; seen_ < p.recovering.size(); ++seen_)
      if (const auto& text = p.recovering[seen_];
          text.find(" died: ") == std::string::npos &&
          text.find("left the cluster") == std::string::npos &&
          text.find("refused its part") == std::string::npos &&
          text.find("is not known here") == std::string::npos &&
          text.find("considered this process dead") == std::string::npos &&
          text.find("which coordinated it, has died or left") == std::string::npos &&
          text.find(planted_failure) == std::string::npos)
        note_wrong(fmt::format("an actor failed: {} (IN-4)", text));
    if (seen_ > p.recovering.size()) seen_ = p.recovering.size();
    if (++watched_ % 64 == 0)
      if (const auto kept = cluster_.kept_bytes(); kept > kept_bytes_max_)
        note_wrong(fmt::format(
            "links keep {} bytes of tensors, and the credits of all edges allow {} (IN-9)", kept,
            kept_bytes_max_));
  }

  void keep_what_was_told() {
    auto& p = cluster_.program();
    told_.insert(told_.end(), p.losses.begin(), p.losses.end());
    verdict_.recoveries += p.resumed.size();
  }

  std::string judge() {
    auto& p = cluster_.program();
    if (p.failed) return "the job failed: " + p.failed->line;
    if (has_ended_alone_) {
      if (auto wrong = judge_end_alone(); !wrong.empty()) return wrong;
      return judge_disk();
    }
    verdict_.checkpoints += p.finished->checkpoints;
    if (auto wrong = check_ledger(*p.finished, sc_.shape, false); !wrong.empty())
      return wrong + " (IN-3)";
    if (auto wrong = sc_.shape.update == update_kind::sync ? judge_sync() : judge_async();
        !wrong.empty())
      return wrong;
    if (auto wrong = judge_disk(); !wrong.empty()) return wrong;
    if (auto wrong = judge_losses(); !wrong.empty()) return wrong;
    heal();
    std::string wrong;
    // A part that may move waits for its next coordinator (NO-2).
    const int tries_max = sc_.shape.outlives ? 340 : 40;
    for (int tries = 0; tries < tries_max; ++tries) {
      cluster_.run_for(100 * ms);
      wrong = left_over(cluster_, sc_.shape.outlives);
      if (wrong.empty()) break;
    }
    if (!wrong.empty()) return wrong + " (IN-7)";
    for (int tries = 0; tries < 6; ++tries)
      if (cluster_.form()) return {};
    return "30 s after the last fault not all processes hold all others alive (IN-13)";
  }

  // What still stands still or is cut off goes on, and learns that the job is over.
  void heal() {
    // Longer than any patience: LK-6.
    if (sc_.seed % 4 == 0 && is_any_frozen()) cluster_.run_for(11 * s);
    thaw_all();
    for (std::uint32_t a = 0; a < cluster_.processes(); ++a)
      for (std::uint32_t b = 0; b < cluster_.processes(); ++b)
        if (a != b) cluster_.set_condition(a, b, {});
    cluster_.run_for(2 * s);
  }

  std::string judge_sync() {
    auto& p = cluster_.program();
    const auto& wanted = reference_.of(sc_.shape);
    // Each program tells every step once, in order; one that resumes begins where its checkpoint
    // does.
    std::uint64_t expected = first_.empty() ? 0 : first_.front();
    // Where two coordinators did not see each other, one goes on from what the other one wrote.
    const bool lacks_some = std::any_of(p.notes.begin(), p.notes.end(), [](const auto& note) {
      return note.find("another coordinator made") != std::string::npos;
    });
    for (const auto& l : p.losses) {
      if (lacks_some && l.step > expected) expected = l.step;
      if (l.step != expected++)
        return fmt::format("the loss of step {} was told where that of step {} was due (IN-1)",
                           l.step, expected - 1);
      if (!same_bits({l.loss}, {wanted.losses[l.step]}))
        return fmt::format("the loss of step {} differs from that of one process (IN-1)", l.step);
    }
    if (expected != sc_.shape.steps && !lacks_some)
      return fmt::format("{} of {} steps were told (IN-1)", expected, sc_.shape.steps);
    for (const auto& l : told_)
      if (!same_bits({l.loss}, {wanted.losses[l.step]}))
        return fmt::format(
            "the loss of step {}, told before the program was killed, differs (IN-1)", l.step);
    auto got = collect(p);
    got.losses = wanted.losses;
    auto wrong = difference(got, wanted);
    return wrong.empty() ? "" : wrong + " (IN-1)";
  }

  std::string judge_async() {
    // Nothing counts what was applied but the ledger (IN-3)
    if (sc_.shape.optimizer != 0 || sc_.shape.is_mixed) return {};
    const auto wanted = double(sc_.shape.steps * sc_.shape.workers);
    const auto counted = applied_by_counter(cluster_.program());
    return counted == wanted
               ? ""
               : fmt::format(
                     "{} gradients are to be applied, and the variable that counts them has seen {} (IN-2)",
                     wanted, counted);
  }

  // Where nodes do not reach each other, more than one of them is lost to the job: nothing is said
  // of such histories.
  std::string judge_losses() {
    using enum sim_fault_kind;
    const auto count = [&](std::initializer_list<sim_fault_kind> kinds) {
      return std::count_if(sc_.faults.begin(), sc_.faults.end(), [&](const auto& f) {
        return std::find(kinds.begin(), kinds.end(), f.kind) != kinds.end();
      });
    };
    const auto& p = cluster_.program();
    const auto deaths = count({sim_fault_kind::kill, freeze, fail}), leaves = count({leave});
    if (sc_.shape.on_failure != failure_policy::resume ||
        count({kill_client, sim_fault_kind::power, partition, lose}) > 0)
      return {};
    const auto lost = std::find_if(p.notes.begin(), p.notes.end(), [](const auto& note) {
      return note.starts_with("variables are lost");
    });
    if (deaths == 0 && !p.recovering.empty())
      return "a node that left in good order caused a recovery: " + p.recovering.front() +
             " (IN-11)";
    const bool is_calm = deaths == 0 && count({disk_full, disk_error}) == 0;
    if (is_calm && !sc_.shape.checkpoints.folder.empty() && p.finished->checkpoints == 0)
      return "no checkpoint was written (IN-12)";
    if (lost == p.notes.end()) return {};
    if (deaths == 0) return *lost + ", and nobody died (IN-11)";
    const bool had_shards =
        p.recovering.empty() || p.recovering.front().find("shard") != std::string::npos;
    if (deaths + leaves == 1 && sc_.shape.has_replicas)
      return *lost + ", in spite of replicas (IN-10)";
    // Workers are on nodes of their own.
    if (deaths + leaves == 1 && sc_.shape.all_reduce && sc_.shape.workers > 1)
      return *lost + ", in spite of the copies on other nodes (IN-10)";
    if (deaths + leaves == 1 && !had_shards)
      return *lost + ", and the only node that died had none (IN-10)";
    return {};
  }

  std::string judge_disk() {
    if (sc_.shape.checkpoints.folder.empty()) return {};
    cluster_.disk().run_all();
    cluster_.disk().set_capacity(~std::uint64_t{0});
    const bool is_damaged = std::any_of(sc_.faults.begin(), sc_.faults.end(), [](const auto& f) {
      return f.kind == sim_fault_kind::bit_flip;
    });
    checkpoint_store store(cluster_.disk(), checkpoint_folder, "training");
    auto all = store.list();
    if (!all) return "the checkpoints cannot be listed: " + all.error().text() + " (IN-6)";
    for (const auto& c : all->checkpoints) {
      if (is_damaged) continue;
      if (!c.manifest) return c.problem + " (IN-6)";
      if (const auto wrong = store.verify(*c.manifest); !wrong.empty())
        return wrong.front() + " (IN-6)";
    }
    return {};
  }

  const sim_scenario& sc_;
  sim_tables& tables_;
  const sim_data& data_;
  sim_reference& reference_;
  std::vector<ending> endings_;
  std::vector<job_progress> told_;    // by programs that were killed
  std::vector<std::uint64_t> first_;  // the steps that the last program began with
  std::uint32_t client_life_ = 0;
  // By job, epoch, variable.
  std::map<std::tuple<std::uint64_t, std::uint32_t, std::string, bool, std::uint64_t>,
           std::pair<node_id, std::uint64_t>>
      written_;
  std::size_t kept_bytes_max_ = 0, kept_bytes_each_ = 0;
  bool has_ended_alone_ = false;  // while no program was attached
  std::uint64_t watched_ = 0;
  std::size_t seen_ = 0;           // of the failures that were told
  std::size_t failures_seen_ = 0;  // of those of processes
  // Of those: what follows from a planted one without its words.
  std::set<std::string> excused_;
  std::string violation_;
  sim_verdict verdict_;
  sim_cluster cluster_;  // the last one, since until it has ended it tells of all that happens
};

sim_fault draw_fault(std::mt19937_64& random, const std::vector<sim_fault_kind>& kinds,
                     std::uint64_t span) {
  const auto below = [&](std::uint64_t n) { return random() % n; };
  sim_fault f;
  f.at = below(span);
  f.kind = kinds[below(kinds.size())];
  f.a = static_cast<std::uint32_t>(below(1 << 20));
  f.b = static_cast<std::uint32_t>(below(1 << 20));
  f.is_one_way = below(2) == 0;
  const std::int64_t lengths[] = {50 * ms, 300 * ms, 900 * ms, 1500 * ms, 4000 * ms};
  f.ns = lengths[below(5)] + static_cast<std::int64_t>(below(100 * ms));
  // Longer than any patience: LK-6.
  if (f.kind == sim_fault_kind::freeze && below(4) == 0) f.ns += 11'000 * ms;
  return f;
}

}  // namespace

std::string_view to_string(sim_fault_kind k) noexcept {
  return fault_names[static_cast<std::size_t>(k)];
}

std::string to_string(const sim_fault& f) {
  return fmt::format("{} at message {} (a {}, b {}{}, {} ms)", to_string(f.kind), f.at, f.a, f.b,
                     f.is_one_way ? ", one way" : "", f.ns / ms);
}

result<std::vector<sim_fault_kind>> parse_faults(std::string_view list) {
  std::vector<sim_fault_kind> out;
  if (list == "none") return out;
  for (std::size_t at = 0; at <= list.size();) {
    const auto end = std::min(list.find(',', at), list.size());
    const auto name = list.substr(at, end - at);
    at = end + 1;
    const auto found = std::find(std::begin(fault_names), std::end(fault_names), name);
    if (name == "all")
      for (std::size_t k = 0; k < sim_fault_kinds; ++k)
        out.push_back(static_cast<sim_fault_kind>(k));
    else if (found != std::end(fault_names))
      out.push_back(static_cast<sim_fault_kind>(found - std::begin(fault_names)));
    else
      return error(error_code::usage,
                   fmt::format("there is no fault '{}'; there are: all, none, {}", name, [] {
                     std::string names;
                     for (auto n : fault_names)
                       names += std::string(names.empty() ? "" : ", ") + std::string(n);
                     return names;
                   }()));
  }
  return out;
}

std::size_t edge_bytes(const training_program& program, const sim_job_shape& shape) {
  task_map apart;  // everything on a task of its own
  const auto task = [&](std::string name) {
    apart.roles.emplace_back(name, static_cast<std::uint32_t>(apart.task_names.size()));
    apart.task_names.push_back(std::move(name));
    return static_cast<std::uint32_t>(apart.task_names.size() - 1);
  };
  for (std::uint32_t w = 0; w < shape.workers; ++w)
    apart.worker_task.push_back(task(fmt::format("/job:worker/task:{}", w)));
  for (std::uint32_t k = 0; k < shape.shards; ++k)
    apart.shard_task.push_back(task(fmt::format("/job:ps/task:{}", k)));
  for (std::uint32_t k = 0; k < shape.shards && shape.has_replicas; ++k)
    apart.replica_task.push_back(task(fmt::format("/job:replica/task:{}", k)));
  apart.client_task = task("/job:client/task:0");
  const auto p = program.place(apart, {});
  expects(bool(p), "a job that compiles can be placed");
  std::size_t bytes = 0;
  for (const auto& e : p->edges)
    if (p->actors[e.from.actor].task != p->actors[e.to.actor].task)
      bytes += e.credits * e.spec.size_bytes();
  // Values and slots that are handed over, to a shard and its replica, or to a copy on the node of
  // each worker.
  const std::size_t copies = shape.all_reduce ? 1 + shape.workers : 2;
  for (const auto& [name, spec] : program.variables())
    bytes += (1 + slot_count(program.spec().optimizer)) * 2 * copies * spec.size_bytes();
  return bytes;
}

sim_scenario draw_scenario(std::uint64_t seed, const sim_limits& limits) {
  std::mt19937_64 random(seed * 0x9e3779b97f4a7c15U + 77);
  const auto below = [&](std::uint64_t n) { return random() % n; };
  sim_scenario sc;
  sc.seed = seed;
  sc.nodes = limits.nodes != 0 ? limits.nodes : static_cast<std::uint32_t>(3 + below(5));
  sc.ps_nodes = below(4) == 0 ? 1 : 0;
  sc.is_one_machine = below(2) == 0;
  sc.shape.workers =
      static_cast<std::uint32_t>(1 + below(std::min<std::uint64_t>(3, sc.nodes - sc.ps_nodes)));
  sc.shape.shards = static_cast<std::uint32_t>(1 + below(3));
  sc.shape.update = below(3) == 0 ? update_kind::async : update_kind::sync;
  sc.shape.steps = limits.steps != 0 ? limits.steps : 4 + below(12);
  sc.shape.observe_every = 0;
  const std::uint64_t policy = below(8);
  sc.shape.on_failure = policy == 0 ? failure_policy::restart : failure_policy::resume;
  sc.shape.has_replicas = policy > 0 && below(2) == 0;
  if (below(3) != 0) {
    sc.shape.checkpoints.folder = checkpoint_folder;
    sc.shape.checkpoints.every_steps = 1 + below(4);
    sc.shape.checkpoints.keep = static_cast<std::uint32_t>(1 + below(3));
  }
  // Not from `random`: what else a seed draws stays as it is.
  if (limits.draws_optimizer)
    sc.shape.optimizer =
        static_cast<std::uint32_t>(std::mt19937_64(seed + 4711)() % sim_optimizers);
  sc.shape.is_mixed = limits.is_mixed;
  if (limits.all_reduce && sc.shape.update == update_kind::sync) {
    sc.shape.all_reduce = true;
    sc.shape.has_replicas = false;
  }
  if (limits.outlives && sc.shape.on_failure == failure_policy::resume) {
    sc.shape.outlives = true;
    sc.shape.checkpoints.folder = checkpoint_folder;
    sc.shape.checkpoints.every_steps = std::max<std::uint64_t>(1, sc.shape.checkpoints.every_steps);
    sc.shape.checkpoints.keep = std::max<std::uint32_t>(1, sc.shape.checkpoints.keep);
  }
  sc.shape.gpus = limits.gpus;
  sc.shape.calls_collectives = limits.calls_collectives && sc.shape.update == update_kind::sync;
  std::vector<sim_fault_kind> kinds;
  for (auto k : limits.faults)
    if (!touches_disk(k) || !sc.shape.checkpoints.folder.empty()) kinds.push_back(k);
  const auto span = 300 + 300 * sc.shape.steps * sc.shape.workers;
  const auto n = kinds.empty() ? 0 : below(faults_max + 1);
  std::uint32_t joins = 0;
  for (std::uint64_t i = 0; i < n; ++i) {
    auto f = draw_fault(random, kinds, span);
    if (f.kind == sim_fault_kind::join && ++joins > joins_max) continue;
    sc.faults.push_back(f);
  }
  std::stable_sort(sc.faults.begin(), sc.faults.end(),
                   [](const auto& a, const auto& b) { return a.at < b.at; });
  return sc;
}

result<std::unique_ptr<simulator>> simulator::make() {
  auto data = sim_data::make();
  if (!data) return data.error();
  return std::unique_ptr<simulator>(new simulator(std::move(*data)));
}

sim_verdict simulator::run(const sim_scenario& sc, const planted_bugs* bugs) {
  (void)reference_.of(sc.shape);  // not within the history
  return history(sc, tables_, data_, reference_, bugs).run();
}

sim_scenario simulator::shrink(sim_scenario sc, const planted_bugs* bugs, std::size_t runs_max) {
  for (bool has_shrunk = true; has_shrunk && runs_max > 0;) {
    has_shrunk = false;
    for (std::size_t i = 0; i < sc.faults.size() && runs_max > 0; ++i, --runs_max) {
      auto fewer = sc;
      fewer.faults.erase(fewer.faults.begin() + static_cast<std::ptrdiff_t>(i));
      if (run(fewer, bugs).violation.empty()) continue;
      sc = std::move(fewer);
      has_shrunk = true;
      break;
    }
  }
  return sc;
}

}  // namespace troupe
