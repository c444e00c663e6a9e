#include "troupe/actors/process/process.hpp"

#include "troupe/actors/base/deadline.hpp"
#include "troupe/actors/base/failing.hpp"
#include "troupe/actors/base/mailbox.hpp"
#include "troupe/actors/base/scheduler.hpp"
#include "troupe/actors/base/tell.hpp"
#include "troupe/actors/cluster/dns_discovery.hpp"
#include "troupe/actors/cluster/local_discovery.hpp"
#include "troupe/actors/cluster/member.hpp"
#include "troupe/actors/disk/archive.hpp"
#include "troupe/actors/net/io_loop.hpp"
#include "troupe/actors/net/tcp_transport.hpp"
#include "troupe/actors/plan/device_streams.hpp"
#include "troupe/actors/process/load_library.hpp"
#include "troupe/actors/process/process_supervisor.hpp"
#include "troupe/devices/files/host_disk.hpp"
#include "troupe/devices/gpus/gpus.hpp"
#include "troupe/devices/host/host_device.hpp"
#include "troupe/runtime/graph/op_table.hpp"
#include "troupe/runtime/plan/device_name.hpp"
#include "troupe/runtime/text/address.hpp"
#include "troupe/schema/version.hpp"

#include <caf/actor_system.hpp>
#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <new>
#include <system_error>

namespace troupe {

namespace {

void random_bytes(std::span<std::byte> out) {
  const bool ok =
      RAND_bytes(reinterpret_cast<unsigned char*>(out.data()), static_cast<int>(out.size())) == 1;
  expects(ok, "the system gives random bytes");
}

std::uint64_t wall_clock_ns() {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                        std::chrono::system_clock::now().time_since_epoch())
                                        .count());
}

// The second number of Linux's statm, in pages; 0 where it is not there.
std::uint64_t resident_bytes() {
  std::ifstream counts("/proc/self/statm");
  std::uint64_t all = 0, resident = 0;
  const auto page = ::sysconf(_SC_PAGESIZE);
  return counts >> all >> resident && page > 0 ? resident * static_cast<std::uint64_t>(page) : 0;
}

process_use use_of_this_process(std::chrono::steady_clock::time_point began,
                                const std::vector<std::string>& libraries) {
  process_use u;
  char host[256] = {};
  if (::gethostname(host, sizeof host - 1) == 0) u.host = host;
  u.version = version();
  u.uptime_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  u.memory_bytes = resident_bytes();
  for (const auto& file : libraries) u.libraries.push_back(file.substr(file.rfind('/') + 1));
  cpu_set_t cores;
  if (::sched_getaffinity(0, sizeof cores, &cores) == 0)
    u.cores = static_cast<std::uint64_t>(CPU_COUNT(&cores));
  rusage r{};
  if (::getrusage(RUSAGE_SELF, &r) == 0)
    u.cpu_seconds = double(r.ru_utime.tv_sec + r.ru_stime.tv_sec) +
                    double(r.ru_utime.tv_usec + r.ru_stime.tv_usec) * 1e-6;
  return u;
}

std::int64_t monotonic_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// How long the calling thread was ready to run while others had the CPUs (the second number of
// Linux's schedstat); 0 where the kernel does not count it.
std::int64_t waited_for_cpu_ns() {
  std::ifstream counts("/proc/thread-self/schedstat");
  std::int64_t ran = 0, waited = 0;
  return counts >> ran >> waited ? waited : 0;
}

// Equal in two processes only where each may ask the kernel whether the other's pid lives:
// containers of one host, or two machines of one name, differ in their process namespace or their
// boot; and only where a refused connection means that nobody is there, which differs with the
// network namespace.
std::string host_identity() {
  char name[256] = {};
  std::string identity = ::gethostname(name, sizeof name - 1) == 0 ? name : "localhost";
  for (const char* kind : {"/proc/self/ns/pid", "/proc/self/ns/net"}) {
    struct stat space{};
    if (::stat(kind, &space) == 0) identity += fmt::format("/{}", space.st_ino);
  }
  if (std::ifstream boot("/proc/sys/kernel/random/boot_id"); boot) {
    std::string id;
    boot >> id;
    identity += "/" + id;
  }
  return identity;
}

// One line, by one write: other threads may print too.
void say(const std::string& text) {
  const auto line = fmt::format("troupe: process {}: {}\n", ::getpid(), text);
  [[maybe_unused]] const auto put = ::write(STDERR_FILENO, line.data(), line.size());
}

// Without what has failed the process would look alive to others and answer nobody, so it ends, and
// they notice at once.
void give_up(const std::string& why) {
  say("ends after a failure: " + why);
  ::_exit(1);
}

class loop_events final : public event_source {
 public:
  explicit loop_events(io_loop& loop) : loop_(loop) {}
  // What breaks in a callback of the transport leaves the member or a link half done, and no
  // actor's handler is there to end.
  bool poll(int timeout_ms) override {
    try {
      return loop_.poll(timeout_ms) > 0;
    } catch (const std::exception& e) {
      give_up(fmt::format("network: {}", e.what()));
    }
    return true;
  }
  void wake() override { loop_.wake(); }

 private:
  io_loop& loop_;
};

member_info describe_self(const process_options& options) {
  member_info m;
  std::uint64_t id = 0;
  random_bytes(std::as_writable_bytes(std::span(&id, 1)));
  m.id = node_id{id | 1};  // 0 is nobody
  m.start_time_ns = wall_clock_ns();
  m.name = options.name.empty() ? member_name(m.id) : options.name;
  m.labels = options.labels;
  m.lease_ns = options.lease.count();
  m.host = host_identity();
  m.pid = static_cast<std::uint32_t>(::getpid());
  m.kind = options.kind;
  m.job = options.job;
  m.streams = options.streams;
  return m;
}

}  // namespace

// What the options say; a member that runs no ops needs none.
result<found_gpus> gpus_of(const process_options& o, const kernel_table& kernels) {
  if (o.gpu_backends.empty()) {
    const bool is_guest = o.kind == member_kind::client && !o.cluster.empty() && o.gpus == "auto";
    return find_gpus({.which = is_guest ? "none" : o.gpus, .limit_bytes = o.gpu_memory_bytes},
                     kernels);
  }
  found_gpus out;
  for (const auto& b : o.gpu_backends)
    out.gpus.push_back({b->device().name(), b->device().hardware(),
                        b->device().memory().limit_bytes,
                        [b]() -> result<std::shared_ptr<device_backend>> { return b; }});
  return out;
}

// In the order in which they are needed; destroyed from the end.
struct process::parts {
  io_loop loop;
  loop_events events{loop};
  tcp_transport net{loop, tcp_options{.checksum_on_loopback = false}};
  std::shared_ptr<coarse_clock> clock = std::make_shared<coarse_clock>();
  op_table ops = make_op_table();
  kernel_table kernels = make_host_kernels();
  host_device device;
  std::unique_ptr<disk> files = make_host_disk();
  std::unique_ptr<local_discovery> discovery;
  std::unique_ptr<dns_discovery> names;  // null: --join has none
  std::shared_ptr<member_core> member;
  scheduler_config config;
  std::unique_ptr<caf::actor_system> system;
  caf::actor node, member_actor, archive, supervisor;
  std::vector<std::shared_ptr<device_streams>> devices;
  std::uint32_t streams = 1;
  std::string listens_at;
  std::atomic<bool> has_ended = false;
  pid_t pid = ::getpid();
};

process::process(std::unique_ptr<parts> p) : parts_(std::move(p)) {}

result<std::unique_ptr<process>> process::start(const process_options& options) {
  // A session in a static object ends after what is registered while it lives, as OpenSSL's own end
  // would be; links that are made meanwhile need it.
  OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr);
  try {
    return begin(options);
  } catch (const std::system_error& e) {  // descriptors, threads
    return error(
        error_code::failed,
        fmt::format("this process cannot start: {} (ulimit -a shows what it may use)", e.what()));
  } catch (const std::bad_alloc&) {
    return error(error_code::failed,
                 "this process cannot start: no memory is left (ulimit -a shows what it may use)");
  }
}

result<std::unique_ptr<process>> process::begin(const process_options& options) {
  if (!options.name.empty() && !is_node_name(options.name))
    return error(error_code::usage, fmt::format("'{}' is no name of a node", options.name));
  if (options.labels.size() > labels_max)
    return error(error_code::usage, fmt::format("{} labels: a node has {} at most",
                                                options.labels.size(), labels_max));
  for (const auto& l : options.labels)
    if (!is_node_label(l))
      return error(error_code::usage, fmt::format("'{}' is no label KEY=VALUE", l));
  if (const auto lease = options.lease.count();
      lease != 0 && (lease < lease_min_ns || lease > lease_max_ns))
    return error(error_code::usage,
                 fmt::format("a lease of {:.3g} s: it is from 1 s to 1 h", double(lease) * 1e-9));
  auto p = std::make_unique<parts>();
  p->streams = std::max<std::uint32_t>(1, options.streams);
  if (options.kind == member_kind::node && options.listen.empty())
    for (const auto& j : options.join)
      if (const auto seed = parse_join(j); seed && !is_loopback(seed->at))
        return error(
            error_code::usage,
            fmt::format(
                "--join {} is another machine, whose nodes could not reach this one on loopback: "
                "give --listen HOST:PORT, an address of this machine, too",
                j));
  const auto at = parse_address(options.listen.empty() ? "127.0.0.1:0" : options.listen);
  if (!at) return at.error();
  std::vector<troupe::address> names;
  auto seeds = split_joins(options.join, names);
  if (!seeds) return seeds.error();
  if (!options.announce.empty()) {
    const auto told = parse_address(options.announce);
    if (!told) return error(error_code::usage, "--announce: " + told.error().message());
    if (is_wildcard(*told))
      return error(error_code::usage,
                   fmt::format("--announce {}: that means every address of a machine, and nobody "
                               "can connect there; give the one that others reach",
                               options.announce));
  }
  for (const auto* library : options.libraries)
    if (auto added = add_ops(p->ops, p->kernels, *library); !added) return added.error();
  for (const auto& file : options.load)
    if (auto loaded = load_ops(p->ops, p->kernels, file); !loaded) return loaded.error();
  auto gpus = gpus_of(options, p->kernels);
  if (!gpus) return std::move(gpus.error());
  member_environment env;
  env.self = describe_self(options);
  env.self.libraries = libraries_of(p->ops);
  for (const auto& g : gpus->gpus) add_device(env.self.devices, g.hardware, g.memory_bytes);
  env.cluster = options.cluster.empty() ? "alone" : options.cluster;
  env.seeds = std::move(*seeds);
  env.announced = options.announce;
  env.net = &p->net;
  env.clock = p->clock;
  env.random = random_bytes;
  env.reads = options.reads;
  permit_reads(options.reads);
  env.on_denied = options.on_denied;
  env.wall_clock_ns = wall_clock_ns;
  env.waited_for_cpu_ns = waited_for_cpu_ns;
  env.process_exists = [](std::uint32_t pid) {
    return ::kill(static_cast<pid_t>(pid), 0) == 0 || errno != ESRCH;
  };
  if (!options.cluster.empty()) {
    if (!is_loopback(*at) && options.token_file.empty())
      return error(
          error_code::denied,
          fmt::format("--listen {} is reachable from other machines: it needs --token-file",
                      options.listen));
    auto found = local_discovery::open(options.cluster, options.token_file, p->loop);
    if (!found) return found.error();
    p->discovery = std::move(*found);
    env.token = p->discovery->token();
    auto guard = make_protection(options.protect, options.cluster, env.token);
    if (!guard) return guard.error();
    p->net.protect(std::move(*guard));
    if (options.protect.insecure) {
      env.warning =
          "--insecure: connections beyond loopback are neither encrypted nor protected against "
          "changes on the way; who is on the way can take them over";
      if (!options.on_line) say("WARNING: " + env.warning);  // else its log says so
    }
    env.places = p->discovery.get();
    if (!names.empty()) {
      p->names = std::make_unique<dns_discovery>(std::move(names), env.places, p->loop);
      env.places = p->names.get();
    }
  }
  auto lane_of_io = std::make_shared<trace_lane>(monotonic_ns, trace_lane::worker_events);
  env.lane = lane_of_io;
  p->loop.on_sleep(
      [lane_of_io](bool sleeps) { sleeps ? lane_of_io->falls_asleep() : lane_of_io->wakes(); });
  p->member = std::make_shared<member_core>(std::move(env));
  if (!options.cluster.empty()) {
    auto listening = p->member->listen(*at);
    if (!listening) return listening.error();
    p->listens_at = to_string(*listening);
  }

  p->config.streams = p->streams;
  p->config.io = &p->events;
  p->config.team = &p->device.team();
  p->config.on_stream_thread = [](std::uint32_t) { set_up_kernel_thread(); };
  node_environment node;
  for (std::uint32_t i = 0; i < p->streams; ++i) {
    node.meters.push_back(std::make_shared<stream_meter>(monotonic_ns));
    p->config.lanes.emplace_back(node.meters.back(), &node.meters.back()->lane);
  }
  for (const char* name : {"service", "disk", "network"}) {
    auto lane = std::string_view(name) == "network"
                    ? lane_of_io
                    : std::make_shared<trace_lane>(monotonic_ns, trace_lane::worker_events);
    node.lanes.push_back({name, false, lane});
    p->config.lanes.push_back(std::move(lane));
  }
  p->config.devices = static_cast<std::uint32_t>(gpus->gpus.size());
  for (std::size_t i = 0; i < gpus->gpus.size(); ++i) {
    node.meters.push_back(std::make_shared<stream_meter>(monotonic_ns));
    p->config.lanes.emplace_back(node.meters.back(), &node.meters.back()->lane);
  }
  p->config.pinned();
  p->system = std::make_unique<caf::actor_system>(p->config);
  auto& workers = static_cast<pinned_scheduler&>(p->system->scheduler());
  node.self = p->member->self();
  node.cluster = options.cluster;
  node.clock = p->clock;
  node.wall_clock_ns = wall_clock_ns;
  node.use = [began = std::chrono::steady_clock::now(), libraries = options.load] {
    return use_of_this_process(began, libraries);
  };
  node.now_ns = monotonic_ns;
  node.ops = &p->ops;
  node.kernels = &p->kernels;
  node.device = &p->device;
  node.memory_bytes = options.memory_bytes;
  node.on_leave_asked = options.on_leave_asked;
  node.on_line = options.on_line;
  // Asked by the node, which is there by then; not held by it, since it holds this.
  if (options.host_work)
    node.host_work = [host_work = options.host_work, all = p.get(), service = workers.service()](
                         job_id job, node_id from) {
      return host_work(
          {all->system.get(), service, all->node, all->member->self().id, all->streams}, job, from);
    };
  for (std::uint32_t i = 0; i < p->streams; ++i) node.streams.push_back(workers.stream(i));
  for (std::uint32_t i = 0; i < p->config.devices; ++i) {
    auto& g = gpus->gpus[i];
    node.streams.push_back(workers.device(i));
    p->devices.push_back(std::make_shared<device_streams>(
        *p->system, workers.device(i), std::move(g.name), std::move(g.hardware), std::move(g.open),
        *p->clock, monotonic_ns));
  }
  node.devices = p->devices;
  node.why_no_devices = gpus->why_none;
  node.service = workers.service();
  node.io = workers.io();
  node.archive = p->archive = spawn_archive(*p->system, workers.service());
  node.supervisor = p->supervisor = spawn_process_supervisor(
      *p->system, workers.service(),
      {monotonic_ns, p->archive, p->files.get(), workers.disk(), give_up, say});
  on_failure(p->supervisor,
             [](const std::string& text) { give_up("actor process_supervisor: " + text); });
  p->node = spawn_node(*p->system, std::move(node));
  p->member_actor = spawn_member(*p->system, workers.io(), p->member, p->node);
  tell(nullptr, p->supervisor, watch{"archive", archive_policy, p->archive});
  tell(nullptr, p->supervisor, watch{"node", node_policy, p->node});
  tell(nullptr, p->supervisor, watch{"member", member_policy, p->member_actor});
  tell(nullptr, p->node, set_member{p->member_actor});
  forget_logger();
  return std::unique_ptr<process>(new process(std::move(p)));
}

process::~process() {
  if (is_forked())
    static_cast<void>(parts_.release());  // PZ-1
  else
    leave("the process ends");
}

caf::actor_system& process::system() { return *parts_->system; }
const caf::actor& process::node() const { return parts_->node; }
const member_info& process::self() const { return parts_->member->self(); }
const std::string& process::address() const { return parts_->listens_at; }
const op_table& process::ops() const { return parts_->ops; }
const kernel_table& process::kernels() const { return parts_->kernels; }
host_device& process::device() const { return parts_->device; }
disk& process::files() const { return *parts_->files; }
std::uint32_t process::streams() const { return parts_->streams; }

bool process::drain(std::chrono::milliseconds timeout, const std::function<bool()>& is_cancelled) {
  const mailbox self(*parts_->system);
  tell(nullptr, parts_->node, drain_node{self.handle()});
  const deadline end(timeout);
  bool is_drained = false;
  while (!is_drained && !end.is_over() && !is_cancelled())
    self->receive([&](node_drained) { is_drained = true; },
                  caf::after(std::chrono::milliseconds(50)) >> [] {});
  return is_drained;
}

bool process::is_forked() const { return ::getpid() != parts_->pid; }

result<void> process::check_is_there() const {
  if (is_forked())
    return error(error_code::failed,
                 fmt::format("process {} was forked from process {}, which opened the session, and "
                             "has none of its threads: open another session here, or fork before "
                             "one is opened",
                             ::getpid(), parts_->pid));
  if (parts_->has_ended.load())
    return error(error_code::failed,
                 "the session has ended, and all that it gave out with it: keep the session until "
                 "that is done");
  return {};
}

void process::end(const std::string& reason) {
  auto& p = *parts_;
  if (is_forked() || p.has_ended.exchange(true)) return;
  {
    const mailbox self(*p.system);
    tell(nullptr, p.node, end_node{reason, self.handle()});
    self->receive([](node_ended) {});
    tell(nullptr, p.member_actor, leave_cluster{reason, self.handle()});
    self->receive([](left_cluster) {});
  }
  tell(nullptr, p.supervisor, end_actor{});
  // No actor of a part enqueues any more, and what devices were given tells actors that it is done;
  // those of streams take back and let go until their end.
  for (const auto& d : p.devices) d->synchronize();
  for (const auto& d : p.devices) d->end_actors();
}

void process::leave(const std::string& reason) {
  auto& p = *parts_;
  if (is_forked() || p.system == nullptr) return;
  end(reason);
  p.node = nullptr;
  p.member_actor = nullptr;
  p.archive = nullptr;
  p.supervisor = nullptr;
  p.system.reset();
}

}  // namespace troupe
