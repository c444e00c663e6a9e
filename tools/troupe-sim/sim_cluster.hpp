#pragma once
// A whole cluster in one actor system and one thread: the nodes, links, members, jobs, archives and
// ops of production over a network and a disk in memory.
//
// A seed chooses which runnable actor handles its next message, and whether the network's next
// event comes first. Time is virtual: messages inside a process take none, events of the network
// do.
//
// SC-1  The same seed and the same calls give the same history; orders() tells histories apart.
// SC-2  An event due within near_ns may overtake any message, a later one only comes when no actor
//       is runnable.
// SC-3  finish() ends everything and tells whether an actor was left over.
// SC-4  A process that is killed does nothing more from that message on; one that is frozen does
//       nothing until it is thawed.
// SC-5  What breaks in a callback of the network ends the process whose it is, and in an actor what
//       production ends with that; failures() tells. In a message to the program it is in
//       sim_program::broken. So step() and finish() throw nothing but what `done` of run_until()
//       throws.
// SC-6  A node's devices, of which its record tells, are asynchronous host devices on one chip,
//       which runs a piece of work when the seed says so, and before time goes on; that of a
//       process that is killed or frozen does nothing more.
//
// Threading: one thread.

#include "tools/troupe-sim/sim_disk.hpp"
#include "troupe/actors/base/scheduler.hpp"
#include "troupe/actors/cluster/member.hpp"
#include "troupe/actors/job/job_actor.hpp"
#include "troupe/actors/net/sim_transport.hpp"
#include "troupe/actors/node/node_actor.hpp"
#include "troupe/actors/plan/device_streams.hpp"
#include "troupe/devices/async_host/async_host_chip.hpp"
#include "troupe/devices/device/order_checker.hpp"
#include "troupe/devices/host/host_device.hpp"
#include "troupe/runtime/graph/op_table.hpp"
#include "troupe/runtime/insight/snapshot.hpp"

#include <caf/actor_system.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace troupe {

// What all simulated processes share because it never changes.
struct sim_tables {
  op_table ops = make_op_table();
  kernel_table kernels = make_host_kernels();
  host_device device;
};

// What a program of the simulation has heard.
struct sim_program {
  job_id job{};
  bool has_started = false;
  std::vector<job_progress> losses;
  std::vector<job_variables> variables;
  // Of each of the texts, as it comes.
  std::function<void(const std::string&)> hear = [](const std::string&) {};
  std::vector<std::string> workers_lost, recovering, resumed, notes;
  std::optional<training_totals> finished;
  std::optional<job_failed> failed;        // or stopped
  std::optional<std::uint64_t> suspended;  // at that step
  std::optional<job_has_moved> moved;
  std::string not_attached;    // why
  bool has_come_back = false;  // to a job that it had before
  // By worker: the step after its last loss; what was told before is told again to who comes back.
  std::map<std::uint32_t, std::uint64_t> next_loss;
  std::vector<node_answer> answers;
  std::vector<trace_page> pages;
  std::uint32_t goodbyes = 0;  // of nodes and members that ended
  // What an invariant said that broke while a message was taken; "": none did.
  std::string broken;
  std::function<std::int64_t()> now_ns;
  std::int64_t over_ns = 0, worker_lost_ns = 0;

  // What it has heard of its job, for the next one.
  void forget_job() {
    has_started = false;
    losses.clear(), variables.clear(), workers_lost.clear(), recovering.clear(), resumed.clear(),
        notes.clear();
    finished.reset(), failed.reset(), moved.reset();
    not_attached.clear(), next_loss.clear();
    has_come_back = false;
  }

  bool is_over() const { return finished || failed || moved; }
};

struct sim_cluster_options {
  std::uint64_t seed = 1;
  std::uint32_t nodes = 3;      // beside the client
  std::uint32_t ps_nodes = 0;   // how many of them, the last ones, take shards only
  bool is_one_machine = false;  // a killed process can be looked up
  const planted_bugs* bugs = nullptr;
  apply_probe* probe = nullptr;    // is told of every version that a shard makes
  std::uint64_t memory_bytes = 0;  // of a node, for jobs; 0: no limit
  std::uint32_t gpus = 0;          // of each node
  // Of the node of that process: node_environment::host_work.
  std::function<caf::actor(std::uint32_t process, job_id, node_id from)> host_work{};
};

class sim_cluster {
 public:
  static constexpr std::int64_t near_ns = 1'000'000;
  static constexpr std::int64_t ms = 1'000'000;

  sim_cluster(sim_tables& tables, const sim_cluster_options& options);
  ~sim_cluster();
  sim_cluster(const sim_cluster&) = delete;
  sim_cluster& operator=(const sim_cluster&) = delete;

  // Processes 0..nodes-1 are nodes, the next one is the client; then come nodes that were added.
  std::uint32_t client() const noexcept { return options_.nodes; }
  std::uint32_t processes() const noexcept { return static_cast<std::uint32_t>(processes_.size()); }
  const member_info& info(std::uint32_t process) const {
    return processes_[process]->member->self();
  }
  std::vector<member_info> nodes() const;
  sim_program& program() noexcept { return program_; }
  // For actors of a test, which lives where that process has its own (SC-4). SC-3: the test's
  // handles go before finish().
  const caf::actor& node(std::uint32_t process) const { return processes_[process]->node; }
  caf::execution_unit* unit(std::uint32_t process) const { return processes_[process]->unit; }
  caf::actor_system& system() noexcept { return *system_; }
  sim_network& network() noexcept { return network_; }
  std::mt19937_64& random() noexcept { return random_; }
  std::int64_t now_ns() const noexcept { return network_.now_ns(); }

  // Runs until every process has a link to every other. False: it did not come to that.
  bool form();
  void run_job(std::shared_ptr<const job_request> request);
  void stop_job(const std::string& reason);
  // The program asks for the job of that name; until it has it, or forgets it.
  void attach_job(const std::string& name);
  void forget_attach();
  // What else it wishes for its job.
  void wish(job_wish w);
  // The node of `to` gets a message as if `from` had sent it.
  void deliver(std::uint32_t to, std::uint32_t from, control_message body);
  // One message or one event; false: nothing is left to do.
  bool step();
  // Until `done` says so; false: `limit_ns` of virtual time have passed before.
  bool run_until(const std::function<bool()>& done, std::int64_t limit_ns);
  void run_for(std::int64_t ns) {
    run_until([] { return false; }, ns);
  }
  // An actor whose next message is of this type ("stop_part_actors") is not chosen until "" lets it
  // go.
  void hold(std::string message) { held_ = std::move(message); }

  void kill(std::uint32_t process);
  // A new life in the place of a killed one.
  void restart(std::uint32_t process);
  // One more node; its number is behind that of the client.
  std::uint32_t add_node();
  // Drains, leaves the cluster and ends, as troupe-node does on SIGTERM.
  void leave(std::uint32_t process);
  void freeze(std::uint32_t process);
  void thaw(std::uint32_t process);
  bool is_frozen(std::uint32_t process) const { return processes_[process]->is_frozen; }
  void set_condition(std::uint32_t from, std::uint32_t to, const sim_condition& c) {
    network_.set_condition(processes_[from]->host, processes_[to]->host, c);
  }
  sim_disk& disk() noexcept { return disk_; }
  // As a program on that process sees it: what it does fails once the process is killed.
  troupe::disk& disk_of(std::uint32_t process) { return *processes_[process]->files; }
  void cut(std::uint32_t a, std::uint32_t b) {
    network_.cut(processes_[a]->host, processes_[b]->host);
  }
  void give_up_link(std::uint32_t at, std::uint32_t to) {
    processes_[at]->member->give_up_link(info(to).id, "the test says so");
  }
  // An actor of this kind, as CAF names it, fails there. False: none had anything to do for that
  // long.
  bool fail_actor(std::uint32_t process, std::string_view kind, const std::string& text,
                  std::int64_t limit_ns = 20'000 * ms);
  // Why the process ended, by itself; "": it did not.
  const std::string& crash(std::uint32_t process) const { return processes_[process]->crash; }
  // What its supervisor has started again.
  const std::vector<std::string>& restarts(std::uint32_t process) const {
    return processes_[process]->restarts;
  }
  // "host2.5 ended by itself: ..." and what supervisors have started again, of all processes that
  // there were, also after finish().
  const std::vector<std::string>& failures() const noexcept { return failures_; }
  // "host2.5", as failures() names it.
  const std::string& host(std::uint32_t process) const { return processes_[process]->host; }
  bool is_alive(std::uint32_t process) const { return !processes_[process]->is_killed; }
  // It leaves, has left, or fails: perhaps nobody there answers.
  bool is_ending(std::uint32_t process) const {
    const auto& p = *processes_[process];
    return p.is_leaving || *p.has_left || p.has_failing || !p.crash.empty();
  }

  // What a node says of itself, its actors, jobs and events.
  node_answer ask(std::uint32_t process);
  // A page of its timeline.
  trace_page trace(std::uint32_t process, const trace_query& query);
  // Frames that all processes have dropped for this reason.
  std::uint64_t drops(drop_reason r) const;
  // Bytes of tensors that all processes keep because they were not acknowledged.
  std::size_t kept_bytes() const;
  // What the checkers of devices of all processes that there were have found; after finish().
  const std::vector<std::string>& mistakes_of_order() const noexcept { return mistakes_; }
  std::uint64_t device_steps() const noexcept { return device_steps_; }  // pieces of work
  // Actors of any job on this process that have not ended.
  std::size_t job_actors(std::uint32_t process);

  // Ends all processes; true: no actor was left over.
  bool finish();
  // A hash over the sequence of (actor, message, event) so far.
  std::uint64_t orders() const noexcept { return orders_; }
  std::uint64_t messages() const noexcept { return messages_; }

 private:
  class meeting_place;
  class process_disk;
  struct process {
    process(sim_network& net, std::string name) : host(std::move(name)), transport(net, host) {}
    std::unique_ptr<troupe::disk> files;
    caf::execution_unit* unit = nullptr;
    caf::actor archive, supervisor;
    std::string crash;
    std::vector<std::string> restarts;
    order_checker checker;
    std::shared_ptr<async_host_chip> chip;  // null: no devices
    std::vector<std::shared_ptr<device_streams>> devices;
    std::uint32_t pid = 0;
    bool is_frozen = false, is_leaving = false;
    bool has_failing = false;  // an actor was made to fail; nobody may have noticed yet
    std::shared_ptr<bool> has_left = std::make_shared<bool>(false);
    std::string host;
    sim_transport transport;
    std::shared_ptr<coarse_clock> clock = std::make_shared<coarse_clock>();
    std::mt19937_64 random;
    std::unique_ptr<rendezvous> places;
    std::shared_ptr<member_core> member;
    caf::actor node, member_actor, leaver;
    bool is_killed = false;
  };

  std::unique_ptr<process> make_process(std::uint32_t number, member_kind kind);
  void reap();
  void run_event();
  void add_devices(process& p, node_environment& n);
  bool step_device();
  void note_mistakes(const process& p);
  void give_up(process& p, const std::string& why);
  bool has_process(std::uint32_t pid) const;
  bool may_run(const caf::execution_unit* home) const;
  std::optional<std::size_t> choose();
  bool draw(std::uint32_t one_in) { return random_() % one_in == 0; }

  sim_tables& tables_;
  sim_cluster_options options_;
  std::mt19937_64 random_;
  sim_network network_;
  std::vector<rendezvous::place> table_;  // where processes say that they are
  std::vector<std::unique_ptr<process>> processes_, dead_;
  sim_disk disk_;
  std::set<const caf::execution_unit*> stopped_;  // of processes that are killed or frozen
  std::uint32_t lives_ = 0;
  bool is_finishing_ = false, has_leavers_ = false;
  scheduler_config config_;
  std::unique_ptr<caf::actor_system> system_;
  seeded_scheduler* scheduler_ = nullptr;
  sim_program program_;
  caf::actor program_actor_;
  std::uint32_t network_one_in_ = 4;  // how eagerly events overtake messages
  std::string held_;
  std::uint64_t orders_ = 0, messages_ = 0;
  std::uint64_t last_query_ = 0;
  std::vector<std::string> failures_, mistakes_;
  std::uint64_t device_steps_ = 0;
  std::uint32_t device_one_in_ = 4;  // how eagerly devices work
};

}  // namespace troupe
