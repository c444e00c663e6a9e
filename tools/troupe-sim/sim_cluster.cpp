#include "tools/troupe-sim/sim_cluster.hpp"

#include "troupe/actors/base/failing.hpp"
#include "troupe/actors/base/tell.hpp"
#include "troupe/actors/disk/archive.hpp"
#include "troupe/actors/plan/device_streams.hpp"
#include "troupe/actors/process/process_supervisor.hpp"
#include "troupe/devices/async_host/async_host_backend.hpp"
#include "troupe/runtime/wire/node_devices.hpp"

#include <caf/event_based_actor.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace troupe {

namespace {

constexpr std::uint64_t wall_clock_start_ns = 1'700'000'000'000'000'000;
constexpr std::uint64_t steps_max = 1'000'000;  // messages and events of one run_until()
constexpr const char* hardware = "asynchronous host";

sim_options draw_options(std::mt19937_64& random) {
  constexpr std::int64_t us = 1000;
  const std::int64_t spans[] = {20 * us, 400 * us, 3000 * us};
  return {.delay_min_ns = 10 * us, .delay_max_ns = spans[random() % 3]};
}

std::uint64_t mixed(std::uint64_t hash, std::uint64_t with) {
  return (hash ^ with) * 0x9e3779b97f4a7c15U ^ (hash >> 29);
}

caf::behavior program_actor(caf::event_based_actor* self, sim_program* p) {
  self->set_exception_handler([p](caf::scheduled_actor* who, std::exception_ptr& thrown) {
    auto reason = reason_of(who, thrown);
    p->broken = failure_text(reason).value_or("");
    return reason;
  });
  return {
      [p](const job_started& m) {
        p->job = m.job;
        p->has_started = true;
      },
      [p](const job_progress& m) {
        auto& next = p->next_loss[m.worker];
        if (m.step < next && p->has_come_back) return;
        next = std::max(next, m.step + 1);
        p->losses.push_back(m);
      },
      [p](job_variables& m) { p->variables.push_back(std::move(m)); },
      [p](job_recovering& m) {
        p->hear(m.text);
        (m.has_resumed ? p->resumed : p->recovering).push_back(std::move(m.text));
      },
      [p](job_note& m) {
        p->hear(m.text);
        p->notes.push_back(std::move(m.text));
      },
      [p](worker_lost& m) {
        p->hear(m.text);
        p->workers_lost.push_back(std::move(m.text));
        p->worker_lost_ns = p->now_ns();
      },
      [p](job_finished& m) {
        p->hear(fmt::format("finished after {} losses", p->losses.size()));
        p->finished = std::move(m.totals);
        p->over_ns = p->now_ns();
      },
      [p](job_stopped& m) {
        p->failed = job_failed{std::move(m.reason), m.totals};
        p->over_ns = p->now_ns();
      },
      [p](job_suspended& m) {
        p->suspended = m.step;
        p->over_ns = p->now_ns();
      },
      [p](job_has_moved& m) {
        p->moved = m;
        p->over_ns = p->now_ns();
      },
      [p](const attach_failed& m) { p->not_attached = m.text; },
      [p](job_failed& m) {
        p->hear(m.line);
        p->failed = std::move(m);
        p->over_ns = p->now_ns();
      },
      [p](const answered& m) {
        auto parsed = parse_node_answer(m.json);
        expects(bool(parsed), "a node's answer can be parsed");
        p->answers.push_back(std::move(*parsed));
      },
      [p](send_control& m) { p->pages.push_back(std::move(std::get<trace_page>(m.body))); },
      [p](node_ended) { ++p->goodbyes; },
      [p](left_cluster) { ++p->goodbyes; },
  };
}

// What a process does that was asked to leave.
caf::behavior leaver(caf::event_based_actor* self, caf::actor node, caf::actor member,
                     std::shared_ptr<bool> has_left) {
  return {
      [self, node](node_drained) {
        tell(self->context(), node,
             end_node{"was asked to leave", caf::actor_cast<caf::actor>(self)});
      },
      [self, member](node_ended) {
        tell(self->context(), member,
             leave_cluster{"was asked to leave", caf::actor_cast<caf::actor>(self)});
      },
      [self, has_left](left_cluster) {
        *has_left = true;
        self->quit();
      },
  };
}

}  // namespace

class sim_cluster::meeting_place final : public rendezvous {
 public:
  meeting_place(std::vector<place>& table, std::uint32_t self) : table_(table), self_(self) {}

  void look(std::vector<node_id> known, found_handler found) override {
    std::vector<place> out;
    for (const auto& p : table_)
      if (raw(p.id) != 0 && !std::ranges::binary_search(known, p.id)) out.push_back(p);
    found(std::move(out));
  }
  result<void> announce(const member_info& m) override {
    table_[self_] = {m.address, m.id};
    return {};
  }

 private:
  std::vector<place>& table_;
  std::uint32_t self_;
};

// The disk as one process has it: the files are shared, and outlive it.
class sim_cluster::process_disk final : public troupe::disk {
 public:
  explicit process_disk(sim_disk& files) : files_(files) {}

  void end() {
    is_gone_ = true;
    locks_.clear();
  }

  result<std::unique_ptr<disk_file>> create(const std::string& path, create_mode mode) override {
    if (is_gone_) return gone();
    return files_.create(path, mode);
  }
  result<std::vector<std::byte>> read(const std::string& path, std::uint64_t bytes_max) override {
    if (is_gone_) return gone();
    return files_.read(path, bytes_max);
  }
  result<std::uint64_t> size(const std::string& path) override {
    if (is_gone_) return gone();
    return files_.size(path);
  }
  result<void> rename(const std::string& from, const std::string& to) override {
    if (is_gone_) return gone();
    return files_.rename(from, to);
  }
  result<void> remove(const std::string& path) override {
    if (is_gone_) return gone();
    return files_.remove(path);
  }
  result<std::vector<std::string>> list(const std::string& folder) override {
    if (is_gone_) return gone();
    return files_.list(folder);
  }
  result<void> make_folder(const std::string& path) override {
    if (is_gone_) return gone();
    return files_.make_folder(path);
  }
  result<void> sync_folder(const std::string& path) override {
    if (is_gone_) return gone();
    return files_.sync_folder(path);
  }
  // The system takes a lock back when its process ends, whatever objects stay behind here.
  result<std::unique_ptr<disk_lock>> lock(const std::string& path) override {
    if (is_gone_) return gone();
    auto taken = files_.lock(path);
    if (!taken) return taken;
    auto shared = std::make_shared<std::unique_ptr<disk_lock>>(std::move(*taken));
    locks_.push_back(shared);
    return std::unique_ptr<disk_lock>(std::make_unique<held>(shared));
  }

 private:
  class held final : public disk_lock {
   public:
    explicit held(std::shared_ptr<std::unique_ptr<disk_lock>> lock) : lock_(std::move(lock)) {}
    ~held() override {
      if (auto lock = lock_.lock()) lock->reset();
    }

   private:
    std::weak_ptr<std::unique_ptr<disk_lock>> lock_;
  };
  static error gone() { return {error_code::failed, "the process is gone"}; }

  sim_disk& files_;
  bool is_gone_ = false;
  std::vector<std::shared_ptr<std::unique_ptr<disk_lock>>> locks_;
};

sim_cluster::sim_cluster(sim_tables& tables, const sim_cluster_options& options)
    : tables_(tables),
      options_(options),
      random_(options.seed * 0x9e3779b97f4a7c15U + 1),
      network_(random_(), draw_options(random_)) {
  const std::uint32_t eagerness[] = {2, 4, 16, 64};
  network_one_in_ = eagerness[random_() % 4];
  if (options_.gpus > 0) device_one_in_ = eagerness[random_() % 4];
  set_up_kernel_thread();  // streams run on this one
  config_.seeded();
  system_ = std::make_unique<caf::actor_system>(config_);
  scheduler_ = &static_cast<seeded_scheduler&>(system_->scheduler());
  program_.now_ns = [this] { return now_ns(); };
  program_actor_ = spawn_on(*system_, nullptr, &program_actor, &program_);
  table_.resize(options_.nodes + 1);
  for (std::uint32_t i = 0; i <= options_.nodes; ++i)
    processes_.push_back(
        make_process(i, i < options_.nodes ? member_kind::node : member_kind::client));
}

sim_cluster::~sim_cluster() {
  // A test that failed half-way: what is left over is not waited for.
  if (system_ != nullptr) finish();
}

std::unique_ptr<sim_cluster::process> sim_cluster::make_process(std::uint32_t number,
                                                                member_kind kind) {
  auto p = std::make_unique<process>(network_, fmt::format("host{}.{}", number, lives_));
  p->pid = 100 + lives_++;
  p->unit = scheduler_->make_unit();
  p->files = std::make_unique<process_disk>(disk_);
  if (table_.size() <= number) table_.resize(number + 1);
  p->random.seed(random_());
  p->places = std::make_unique<meeting_place>(table_, number);
  const auto wall_clock = [this] {
    return wall_clock_start_ns + static_cast<std::uint64_t>(now_ns());
  };
  member_environment m;
  m.self.id = node_id{p->random() | 1};
  m.self.start_time_ns = wall_clock() + number;
  m.self.name = member_name(m.self.id);
  m.self.host = options_.is_one_machine ? "machine" : p->host;
  m.self.pid = p->pid;
  m.self.kind = kind;
  for (std::uint32_t i = 0; kind == member_kind::node && i < options_.gpus; ++i)
    add_device(m.self.devices, hardware, 0);
  if (kind == member_kind::node && number < options_.nodes &&
      number + options_.ps_nodes >= options_.nodes)
    m.self.job = "ps";
  m.cluster = "simulated";
  m.token = "token";
  m.net = &p->transport;
  m.places = p->places.get();
  m.clock = p->clock;
  m.random = [random = &p->random](std::span<std::byte> out) {
    for (auto& b : out) b = static_cast<std::byte>((*random)());
  };
  m.wall_clock_ns = wall_clock;
  m.bugs = options_.bugs;
  const auto lane_of_links = m.lane =
      std::make_shared<trace_lane>([this] { return now_ns(); }, trace_lane::worker_events);
  m.process_exists = [this](std::uint32_t pid) { return has_process(pid); };
  p->member = std::make_shared<member_core>(std::move(m));
  const bool listens = bool(p->member->listen(address{p->host, 0}));
  expects(listens, "a simulated process can listen");
  node_environment n;
  n.self = p->member->self();
  n.cluster = "simulated";
  n.clock = p->clock;
  n.wall_clock_ns = wall_clock;
  n.now_ns = [this] { return now_ns(); };
  n.ops = &tables_.ops;
  n.kernels = &tables_.kernels;
  n.device = &tables_.device;
  n.streams.push_back(p->unit);
  if (kind == member_kind::node) add_devices(*p, n);
  n.service = p->unit;
  n.archive = p->archive = spawn_archive(*system_, p->unit);
  n.supervisor = p->supervisor = spawn_process_supervisor(
      *system_, p->unit,
      {n.now_ns, p->archive, p->files.get(), p->unit,
       [this, raw = p.get()](const std::string& why) { give_up(*raw, why); },
       [this, raw = p.get()](const std::string& what) {
         raw->restarts.push_back(what);
         failures_.push_back(fmt::format("{}: {}", raw->host, what));
       }});
  n.memory_bytes = options_.memory_bytes;
  n.bugs = options_.bugs;
  n.probe = options_.probe;
  if (options_.host_work)
    n.host_work = [this, number](job_id job, node_id from) {
      return options_.host_work(number, job, from);
    };
  n.lanes.push_back({"network", false, lane_of_links});
  p->node = spawn_node(*system_, std::move(n));
  p->member_actor = spawn_member(*system_, p->unit, p->member, p->node);
  tell(nullptr, p->supervisor, watch{"archive", archive_policy, p->archive});
  tell(nullptr, p->supervisor, watch{"node", node_policy, p->node});
  tell(nullptr, p->supervisor, watch{"member", member_policy, p->member_actor});
  tell(nullptr, p->node, set_member{p->member_actor});
  return p;
}

void sim_cluster::add_devices(process& p, node_environment& n) {
  if (options_.gpus == 0) return;
  p.chip = std::make_shared<async_host_chip>(
      async_host_options{.seed = p.random(), .checker = &p.checker});
  for (std::uint32_t i = 0; i < options_.gpus; ++i) {
    const auto name = fmt::format("gpu:{}", i);
    p.devices.push_back(std::make_shared<device_streams>(
        *system_, p.unit, name, hardware,
        [this, name, chip = p.chip]() -> result<std::shared_ptr<device_backend>> {
          return make_async_host_backend(name, chip, tables_.kernels);
        },
        *p.clock, n.now_ns));
    n.streams.push_back(p.unit);
  }
  n.devices = p.devices;
}

bool sim_cluster::has_process(std::uint32_t pid) const {
  return std::any_of(processes_.begin(), processes_.end(),
                     [&](const auto& p) { return p->pid == pid && !p->is_killed; });
}

std::vector<member_info> sim_cluster::nodes() const {
  std::vector<member_info> out;
  for (std::uint32_t i = 0; i < processes(); ++i)
    if (i != client() && is_alive(i)) out.push_back(info(i));
  return out;
}

// --- running -------------------------------------------------------------------------------------

std::optional<std::size_t> sim_cluster::choose() {
  const auto n = scheduler_->runnable();
  if (n == 0) return std::nullopt;
  const auto first = random_() % n;
  std::optional<std::size_t> chosen;
  for (std::size_t k = 0; k < n; ++k) {
    const auto i = (first + k) % n;
    const auto next = scheduler_->look(i);
    if (!held_.empty() && std::string_view(next.message).ends_with(held_ + "E")) continue;
    if (!may_run(next.home)) continue;
    if (!chosen) chosen = i;
    // Some actors are slow while others can run, and which ones is the seed's choice.
    if (mixed(options_.seed, next.id) % 8 == 0 && !draw(8)) continue;
    chosen = i;
    break;
  }
  if (chosen) {
    const auto next = scheduler_->look(*chosen);
    orders_ = mixed(mixed(orders_, next.id), std::hash<std::string_view>()(next.message));
  }
  return chosen;
}

// SC-4.
bool sim_cluster::may_run(const caf::execution_unit* home) const {
  return is_finishing_ || !stopped_.contains(home);
}

// Who has left is gone, and so is who could not go on.
void sim_cluster::reap() {
  for (std::uint32_t i = 0; i < processes(); ++i)
    if ((*processes_[i]->has_left || !processes_[i]->crash.empty()) && !processes_[i]->is_killed)
      kill(i);
}

// SC-6.
bool sim_cluster::step_device() {
  const auto first = random_() % processes_.size();
  for (std::size_t k = 0; k < processes_.size(); ++k) {
    const auto i = (first + k) % processes_.size();
    auto& p = *processes_[i];
    if (p.chip == nullptr || !may_run(p.unit) || !p.chip->step()) continue;
    ++device_steps_;
    orders_ = mixed(orders_, 2 + i);
    return true;
  }
  return false;
}

void sim_cluster::note_mistakes(const process& p) {
  for (const auto& r : p.checker.reports())
    mistakes_.push_back(fmt::format("{}: {}", p.host, r.text()));
}

// SC-5, as process.cpp has it. That nobody is at home in an event is a mistake of the simulation
// itself.
void sim_cluster::run_event() {
  try {
    network_.run_one();
  } catch (const std::exception& e) {
    const auto at = std::find_if(processes_.begin(), processes_.end(),
                                 [&](const auto& p) { return p->host == network_.running_host(); });
    if (at == processes_.end()) throw;
    give_up(**at, fmt::format("network: {}", e.what()));
  }
}

void sim_cluster::give_up(process& p, const std::string& why) {
  p.crash = why;
  has_leavers_ = true;
  failures_.push_back(fmt::format("{} ended by itself: {}", p.host, why));
}

bool sim_cluster::step() {
  if (has_leavers_) reap();
  const bool is_near =
      network_.has_events() && network_.next_event_ns() <= network_.now_ns() + near_ns;
  if (options_.gpus > 0 && draw(device_one_in_) && step_device()) return true;
  if (!is_near || !draw(network_one_in_)) {
    if (const auto i = choose()) {
      ++messages_;
      scheduler_->run(*i);
      return true;
    }
    if (options_.gpus > 0 && step_device()) return true;
  }
  if (!network_.has_events()) return choose().has_value();
  orders_ = mixed(orders_, 1);
  run_event();
  return true;
}

bool sim_cluster::run_until(const std::function<bool()>& done, std::int64_t limit_ns) {
  const auto end = now_ns() + limit_ns;
  for (std::uint64_t n = 0; n < steps_max; ++n) {
    if (done()) return true;
    if (now_ns() >= end || !step()) return false;
  }
  return false;
}

bool sim_cluster::form() {
  const auto is_formed = [this] {
    const auto living = std::count_if(processes_.begin(), processes_.end(),
                                      [](const auto& p) { return !p->is_killed; });
    for (std::uint32_t i = 0; i < processes(); ++i) {
      if (!is_alive(i)) continue;
      const auto answer = ask(i);
      const auto links = std::count_if(answer.actors.begin(), answer.actors.end(),
                                       [](const auto& a) { return a.kind == "link"; });
      if (links < living - 1) return false;
    }
    return true;
  };
  for (int tries = 0; tries < 100; ++tries) {
    run_for(50 * ms);
    if (is_formed()) return true;
  }
  return false;
}

void sim_cluster::run_job(std::shared_ptr<const job_request> request) {
  tell(nullptr, processes_[client()]->node, troupe::run_job{std::move(request), program_actor_});
}

void sim_cluster::stop_job(const std::string& reason) {
  tell(nullptr, processes_[client()]->node, stop_own_job{program_actor_, reason});
}

void sim_cluster::attach_job(const std::string& name) {
  tell(nullptr, processes_[client()]->node, troupe::attach_job{name, program_actor_});
}

void sim_cluster::forget_attach() {
  tell(nullptr, processes_[client()]->node, troupe::forget_attach{program_actor_});
}

void sim_cluster::wish(job_wish w) {
  tell(nullptr, processes_[client()]->node, wish_of_own_job{program_actor_, w, 0, {}});
}

void sim_cluster::deliver(std::uint32_t to, std::uint32_t from, control_message body) {
  tell(nullptr, processes_[to]->node, peer_message{info(from).id, std::move(body)});
}

void sim_cluster::kill(std::uint32_t process) {
  auto& p = *processes_[process];
  p.is_killed = true;
  stopped_.insert(p.unit);
  static_cast<process_disk&>(*p.files).end();
  network_.kill(p.host);
}

void sim_cluster::restart(std::uint32_t process) {
  expects(processes_[process]->is_killed, "who restarts was killed");
  dead_.push_back(std::move(processes_[process]));
  processes_[process] =
      make_process(process, process == client() ? member_kind::client : member_kind::node);
}

std::uint32_t sim_cluster::add_node() {
  processes_.push_back(make_process(processes(), member_kind::node));
  return processes() - 1;
}

void sim_cluster::leave(std::uint32_t process) {
  auto& p = *processes_[process];
  if (std::exchange(p.is_leaving, true)) return;
  has_leavers_ = true;
  p.leaver = spawn_on(*system_, p.unit, &leaver, p.node, p.member_actor, p.has_left);
  tell(nullptr, p.node, drain_node{p.leaver});
}

bool sim_cluster::fail_actor(std::uint32_t process, std::string_view kind, const std::string& text,
                             std::int64_t limit_ns) {
  return run_until(
      [&] {
        for (std::size_t i = 0; i < scheduler_->runnable(); ++i) {
          const auto next = scheduler_->look(i);
          if (next.home != processes_[process]->unit || next.actor != kind) continue;
          scheduler_->fail(i, text);
          processes_[process]->has_failing = true;
          return true;
        }
        return false;
      },
      limit_ns);
}

void sim_cluster::freeze(std::uint32_t process) {
  auto& p = *processes_[process];
  p.is_frozen = true;
  stopped_.insert(p.unit);
  network_.freeze(p.host);
}

void sim_cluster::thaw(std::uint32_t process) {
  auto& p = *processes_[process];
  p.is_frozen = false;
  if (!p.is_killed) stopped_.erase(p.unit);
  network_.thaw(p.host);
}

// --- looking -------------------------------------------------------------------------------------

node_answer sim_cluster::ask(std::uint32_t process) {
  program_.answers.clear();
  tell(nullptr, processes_[process]->node,
       troupe::ask{++last_query_, "actors jobs events", program_actor_});
  const bool has_answered = run_until([this] { return !program_.answers.empty(); }, 10'000 * ms);
  expects(has_answered, "a node answers");
  return std::move(program_.answers.front());
}

trace_page sim_cluster::trace(std::uint32_t process, const trace_query& query) {
  program_.pages.clear();
  tell(nullptr, processes_[process]->node, ask_trace{query, program_actor_});
  const bool has_answered = run_until([this] { return !program_.pages.empty(); }, 10'000 * ms);
  expects(has_answered, "a node gives a page");
  return std::move(program_.pages.front());
}

std::uint64_t sim_cluster::drops(drop_reason r) const {
  std::uint64_t n = 0;
  for (const auto& p : processes_) n += p->member->drops(r);
  return n;
}

std::size_t sim_cluster::kept_bytes() const {
  std::size_t n = 0;
  for (const auto& p : processes_) n += p->member->kept_bytes();
  return n;
}

std::size_t sim_cluster::job_actors(std::uint32_t process) {
  std::size_t n = 0;
  for (const auto& a : ask(process).actors)
    if (!a.job_id.empty() && a.kind != "job" && a.state != actor_state::ended) ++n;
  return n;
}

// --- the end -------------------------------------------------------------------------------------

bool sim_cluster::finish() {
  hold("");
  is_finishing_ = true;
  // For the goodbyes.
  if (!program_.broken.empty())
    program_actor_ = spawn_on(*system_, nullptr, &program_actor, &program_);
  for (auto& p : dead_) processes_.push_back(std::move(p));
  dead_.clear();
  network_.set_filter({});
  network_.set_forger({});
  program_.goodbyes = 0;
  std::uint32_t expected = 0;
  for (auto& p : processes_) {
    network_.thaw(p->host);
    if (*p->has_left) continue;
    // It was killed, or is about to leave, or may be gone: whom it tells is not us.
    if (p->is_leaving || p->has_failing || !p->crash.empty()) {
      tell(nullptr, p->node, end_node{"the test ends", {}});
      continue;
    }
    tell(nullptr, p->node, end_node{"the test ends", program_actor_});
    ++expected;
  }
  bool is_clean = run_until([&] { return program_.goodbyes == expected; }, 5000 * ms);
  for (auto& p : processes_) {
    if (*p->has_left) continue;
    if (p->is_killed || p->is_leaving || p->has_failing) {
      tell(nullptr, p->member_actor, end_actor{});
      continue;
    }
    tell(nullptr, p->member_actor, leave_cluster{"the test ends", program_actor_});
    ++expected;
  }
  is_clean = run_until([&] { return program_.goodbyes == expected; }, 5000 * ms) && is_clean;
  for (auto& p : processes_) {
    // It was killed before.
    if (p->leaver) tell(nullptr, std::exchange(p->leaver, nullptr), left_cluster{});
    for (const auto& d : p->devices) d->synchronize();
    for (const auto& d : p->devices) d->end_actors();
    tell(nullptr, p->supervisor, end_actor{});
    p->supervisor = nullptr;
    p->node = nullptr;
    p->archive = nullptr;
    p->member_actor = nullptr;
    p->member.reset();
  }
  program_actor_ = nullptr;
  while (scheduler_->runnable() > 0) scheduler_->run(0);
  run_for(300 * ms);
  for (const auto& p : processes_) note_mistakes(*p);
  const auto left = system_->registry().running();
  if (left > 0) system_->await_actors_before_shutdown(false);
  system_.reset();
  processes_.clear();
  return is_clean && left == 0;
}

}  // namespace troupe
