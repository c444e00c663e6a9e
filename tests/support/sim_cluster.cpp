#include "tests/support/sim_cluster.hpp"

#include "actors/tell.hpp"

#include <caf/event_based_actor.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace troupe {

namespace {

constexpr std::uint64_t wall_clock_start_ns = 1'700'000'000'000'000'000;
constexpr std::uint64_t steps_max = 20'000'000;  // messages and events of one run_until()

sim_options draw_options(std::mt19937_64& random) {
  constexpr std::int64_t us = 1000;
  const std::int64_t spans[] = {20 * us, 400 * us, 3000 * us};
  return {.delay_min_ns = 10 * us, .delay_max_ns = spans[random() % 3]};
}

std::uint64_t mixed(std::uint64_t hash, std::uint64_t with) {
  return (hash ^ with) * 0x9e3779b97f4a7c15U ^ (hash >> 29);
}

caf::behavior program_actor(caf::event_based_actor*, sim_program* p) {
  return {
      [p](const job_started& m) {
        p->job = m.job;
        p->has_started = true;
      },
      [p](const job_progress& m) { p->losses.push_back(m); },
      [p](job_variables& m) { p->variables.push_back(std::move(m)); },
      [p](job_recovering& m) {
        (m.has_resumed ? p->resumed : p->recovering).push_back(std::move(m.text));
      },
      [p](job_note& m) { p->notes.push_back(std::move(m.text)); },
      [p](worker_lost& m) {
        p->workers_lost.push_back(std::move(m.text));
        p->worker_lost_ns = p->now_ns();
      },
      [p](job_finished& m) {
        p->finished = std::move(m.totals);
        p->over_ns = p->now_ns();
      },
      [p](job_failed& m) {
        p->failed = std::move(m);
        p->over_ns = p->now_ns();
      },
      [p](const answered& m) {
        auto parsed = parse_node_answer(m.json);
        expects(bool(parsed), "a node's answer can be parsed");
        p->answers.push_back(std::move(*parsed));
      },
      [p](node_ended) { ++p->goodbyes; },
      [p](left_cluster) { ++p->goodbyes; },
  };
}

}  // namespace

class sim_cluster::meeting_place final : public rendezvous {
 public:
  meeting_place(std::vector<place>& table, std::uint32_t self) : table_(table), self_(self) {}

  std::vector<place> find(const std::function<bool(node_id)>& is_known) override {
    std::vector<place> out;
    for (const auto& p : table_)
      if (raw(p.id) != 0 && !is_known(p.id)) out.push_back(p);
    return out;
  }
  result<void> announce(const member_info& m) override {
    table_[self_] = {m.address, m.id};
    return {};
  }

 private:
  std::vector<place>& table_;
  std::uint32_t self_;
};

sim_cluster::sim_cluster(sim_tables& tables, const sim_cluster_options& options)
    : tables_(tables), options_(options), random_(options.seed * 0x9e3779b97f4a7c15U + 1), network_(random_(), draw_options(random_)) {
  const std::uint32_t eagerness[] = {2, 4, 16, 64};
  network_one_in_ = eagerness[random_() % 4];
  set_up_kernel_thread();  // streams run on this one
  config_.seeded();
  system_ = std::make_unique<caf::actor_system>(config_);
  scheduler_ = &static_cast<seeded_scheduler&>(system_->scheduler());
  program_.now_ns = [this] { return now_ns(); };
  program_actor_ = spawn_on(*system_, nullptr, &program_actor, &program_);
  table_.resize(options_.nodes + 1);
  for (std::uint32_t i = 0; i <= options_.nodes; ++i) start_process(i, i < options_.nodes ? member_kind::node : member_kind::client);
}

sim_cluster::~sim_cluster() {
  // A test that failed half-way: what is left over is not waited for.
  if (system_ != nullptr) finish();
}

void sim_cluster::start_process(std::uint32_t number, member_kind kind) {
  auto p = std::make_unique<process>(network_, fmt::format("host{}", number));
  p->random.seed(random_());
  p->places = std::make_unique<meeting_place>(table_, number);
  const auto wall_clock = [this] { return wall_clock_start_ns + static_cast<std::uint64_t>(now_ns()); };
  member_environment m;
  m.self.id = node_id{p->random() | 1};
  m.self.start_time_ns = wall_clock() + number;
  m.self.name = member_name(m.self.id);
  m.self.host = options_.is_one_machine ? "machine" : p->host;
  m.self.pid = 100 + number;
  m.self.kind = kind;
  if (kind == member_kind::node && number + options_.ps_nodes >= options_.nodes) m.self.job = "ps";
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
  m.process_exists = [this](std::uint32_t pid) { return !processes_[pid - 100]->is_killed; };
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
  n.streams.push_back(nullptr);
  n.bugs = options_.bugs;
  p->node = spawn_node(*system_, std::move(n));
  p->member_actor = spawn_member(*system_, nullptr, p->member, p->node);
  tell(nullptr, p->node, set_member{p->member_actor});
  processes_.push_back(std::move(p));
}

std::vector<member_info> sim_cluster::nodes() const {
  std::vector<member_info> out;
  for (std::uint32_t i = 0; i < client(); ++i) out.push_back(info(i));
  return out;
}

// --- running ---------------------------------------------------------------------------------------------------------------------

std::optional<std::size_t> sim_cluster::choose() {
  const auto n = scheduler_->runnable();
  if (n == 0) return std::nullopt;
  const auto first = random_() % n;
  std::optional<std::size_t> chosen;
  for (std::size_t k = 0; k < n; ++k) {
    const auto i = (first + k) % n;
    const auto next = scheduler_->look(i);
    if (!held_.empty() && std::string_view(next.message).ends_with(held_ + "E")) continue;
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

bool sim_cluster::step() {
  const bool is_near = network_.has_events() && network_.next_event_ns() <= network_.now_ns() + near_ns;
  if (!is_near || !draw(network_one_in_)) {
    if (const auto i = choose()) {
      ++messages_;
      scheduler_->run(*i);
      return true;
    }
  }
  if (!network_.has_events()) return scheduler_->runnable() > 0;
  orders_ = mixed(orders_, 1);
  network_.run_one();
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
    for (std::uint32_t i = 0; i <= client(); ++i) {
      const auto answer = ask(i);
      const auto links = std::count_if(answer.actors.begin(), answer.actors.end(), [](const auto& a) { return a.kind == "link"; });
      if (links < static_cast<std::ptrdiff_t>(client())) return false;
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
  tell(nullptr, processes_.back()->node, troupe::run_job{std::move(request), program_actor_});
}

void sim_cluster::stop_job(const std::string& reason) { tell(nullptr, processes_.back()->node, stop_own_job{program_actor_, reason}); }

void sim_cluster::kill(std::uint32_t process) {
  processes_[process]->is_killed = true;
  network_.kill(processes_[process]->host);
}

// --- looking ---------------------------------------------------------------------------------------------------------------------

node_answer sim_cluster::ask(std::uint32_t process) {
  program_.answers.clear();
  tell(nullptr, processes_[process]->node, troupe::ask{++last_query_, "actors jobs events", program_actor_});
  const bool has_answered = run_until([this] { return !program_.answers.empty(); }, 10'000 * ms);
  expects(has_answered, "a node answers");
  return std::move(program_.answers.front());
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

// --- the end ---------------------------------------------------------------------------------------------------------------------

bool sim_cluster::finish() {
  hold("");
  network_.set_filter({});
  network_.set_forger({});
  program_.goodbyes = 0;
  std::uint32_t expected = 0;
  for (auto& p : processes_) {
    network_.thaw(p->host);
    tell(nullptr, p->node, end_node{"the test ends", program_actor_});
    ++expected;
  }
  bool is_clean = run_until([&] { return program_.goodbyes == expected; }, 5000 * ms);
  for (auto& p : processes_) {
    if (p->is_killed) {
      tell(nullptr, p->member_actor, end_actor{});
      continue;
    }
    tell(nullptr, p->member_actor, leave_cluster{"the test ends", program_actor_});
    ++expected;
  }
  is_clean = run_until([&] { return program_.goodbyes == expected; }, 5000 * ms) && is_clean;
  for (auto& p : processes_) {
    p->node = nullptr;
    p->member_actor = nullptr;
    p->member.reset();
  }
  program_actor_ = nullptr;
  while (scheduler_->runnable() > 0) scheduler_->run(0);
  run_for(300 * ms);
  const auto left = system_->registry().running();
  if (left > 0) system_->await_actors_before_shutdown(false);
  system_.reset();
  processes_.clear();
  return is_clean && left == 0;
}

}  // namespace troupe
