// A node process: joins its cluster and runs what jobs place on it, until SIGTERM or SIGINT.

#include "tools/troupe-node/node_log.hpp"
#include "troupe/actors/flow/stage_host.hpp"
#include "troupe/actors/models/onnx_stage.hpp"
#include "troupe/actors/process/process.hpp"
#include "troupe/actors/process/service_manager.hpp"
#include "troupe/actors/program/protection_flags.hpp"
#include "troupe/devices/files/signals.hpp"
#include "troupe/runtime/plan/device_name.hpp"
#include "troupe/runtime/text/byte_size.hpp"
#include "troupe/runtime/text/duration.hpp"
#include "troupe/runtime/wire/member_info.hpp"
#include "troupe/schema/version.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <optional>
#include <utility>

int main(int argc, char** argv) {
  troupe::process_options options;
  options.cluster = "default";
  std::string memory, gpu_memory;
  CLI::App app{
      "A node of a Troupe cluster. Without arguments it listens on loopback and finds the other nodes of this user on this machine.",
      "troupe-node"};
  app.footer(
      "Prints \"listening HOST:PORT\" when it is ready. SIGTERM leaves the cluster gracefully: work that can\n"
      "move (--on-failure resume) does so first, for up to 30 s; a second one ends that.\n"
      "A member named with --join that is not there yet is tried again.\n"
      "Its log is on stderr (--log-level off: none); troupe logs NODE shows its last lines from anywhere.\n"
      "SIGHUP opens the file of --log-to file:PATH anew, for logrotate.\n"
      "Exit codes: 0 left gracefully, 2 usage, 5 denied (token, cluster name or version of the member to join),\n"
      "6 no such file (--load).");
  app.add_option("--cluster", options.cluster, "Name of the cluster")
      ->capture_default_str()
      ->envname("TROUPE_CLUSTER");
  app.add_option(
      "--listen", options.listen,
      "HOST:PORT; beyond loopback a token is required. 0.0.0.0:PORT and [::]:PORT listen "
      "at all addresses of this machine, and others are told the one by which the first "
      "of them and this node meet");
  app.add_option("--announce", options.announce,
                 "HOST:PORT that others are told to reach this node at, where it differs from "
                 "--listen (containers, address translation, port mappings); port 0: the one that "
                 "it listens on");
  app.add_option("--join", options.join,
                 "HOST:PORT of a member, or several with commas; dns:NAME:PORT: members at all "
                 "addresses of that name, which is looked up again and again; may be repeated")
      ->delimiter(',')
      ->envname("TROUPE_JOIN");
  app.add_option("--job", options.job,
                 "What this node is for: worker, ps (parameter shards only), or data (stages of "
                 "pipelines only)")
      ->check(CLI::IsMember({"worker", "ps", "data"}));
  app.add_option("--name", options.name,
                 "Its name, for people and for devices of graphs (/node:NAME); else one is made up")
      ->check(CLI::Validator(
          [](const std::string& s) -> std::string {
            return troupe::is_node_name(s) ? "" : "up to 64 letters, digits, '_', '-' and '.'";
          },
          "NAME"));
  app.add_option("--label", options.labels,
                 "KEY=VALUE that devices of graphs may name (/label:rack=3); may be repeated")
      ->check(CLI::Validator(
          [](const std::string& s) -> std::string {
            return troupe::is_node_label(s)
                       ? ""
                       : "KEY=VALUE of up to 64 letters, digits, '_', '-' and '.'";
          },
          "KEY=VALUE"))
      ->expected(1, static_cast<int>(troupe::labels_max));
  std::string lease;
  app.add_option("--lease", lease,
                 "How long others wait for a sign of life of this node before they hold it dead "
                 "(1s to 1h; 1s); a process that ends is noticed at once");
  app.add_option("--threads", options.streams,
                 "Threads that run ops (host streams); they share large ops")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--memory", memory,
                 "Bytes that jobs may use here (2GiB); a job that needs more is refused");
  app.add_option(
         "--gpus", options.gpus,
         "Devices: auto (all chips), none, N (N virtual devices, which share the chips) or host:N "
         "(N asynchronous host devices, which stand in for a chip)")
      ->capture_default_str();
  app.add_option("--gpu-memory", gpu_memory, "Bytes that jobs may use on each device (2GiB)");
  app.add_option("--load", options.load,
                 "Shared library of ops or stages of your own, which jobs and topologies may use "
                 "here; may be repeated");
  std::string reads = "auto";
  app.add_option(
         "--direct-reads", reads,
         "How tensors come from nodes on the same machine. auto: read directly from their memory, "
         "in one copy, where the system allows it; on: the same, and every process of this user "
         "may read this one where Yama restricts that; off: over sockets")
      ->check(CLI::IsMember({"auto", "on", "off"}))
      ->capture_default_str();
  app.add_option("--token-file", options.token_file, "File with the cluster's token")
      ->envname("TROUPE_TOKEN_FILE");
  troupe::add_protection_flags(app, options.protect);
  troupe::log_options log_to;
  std::string log_level = "info", log_format = "text";
  app.add_option("--log-level", log_level, "The least that is logged")
      ->check(CLI::IsMember({"trace", "debug", "info", "warning", "error", "off"}))
      ->capture_default_str();
  app.add_option("--log-format", log_format, "Lines of text, or each line an object of JSON")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  app.add_option("--log-to", log_to.to,
                 "Where the log goes: stderr, file:PATH (lines are added to it) or journal "
                 "(systemd's)")
      ->capture_default_str();
  app.set_version_flag("--version", fmt::format("troupe-node {}", troupe::version()));
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    fmt::print(stderr, "troupe-node: {} (see --help)\n", e.what());
    return 2;
  }
  if (options.cluster.empty()) {
    fmt::print(stderr, "troupe-node: --cluster: the name of the cluster is empty\n");
    return 2;
  }
  if (!memory.empty()) {
    auto bytes = troupe::parse_byte_size(memory);
    if (!bytes) {
      fmt::print(stderr, "troupe-node: --memory: {}\n", bytes.error().text());
      return 2;
    }
    if (*bytes == 0) {
      fmt::print(
          stderr,
          "troupe-node: --memory: 0 bytes would leave no room for any job; leave it out for no limit\n");
      return 2;
    }
    options.memory_bytes = *bytes;
  }

  if (!lease.empty()) {
    const auto span = troupe::parse_duration(lease);
    if (!span || *span < troupe::lease_min_ns || *span > troupe::lease_max_ns) {
      fmt::print(stderr, "troupe-node: --lease: {}\n",
                 span ? fmt::format("{} is not from 1s to 1h", lease) : span.error().text());
      return 2;
    }
    options.lease = std::chrono::nanoseconds(*span);
  }
  options.reads = *troupe::parse_direct_reads(reads);

  if (!gpu_memory.empty()) {
    auto bytes = troupe::parse_byte_size(gpu_memory);
    if (!bytes || *bytes == 0) {
      fmt::print(stderr, "troupe-node: --gpu-memory: {}\n",
                 bytes
                     ? "0 bytes would leave no room for any job; leave it out for all that there is"
                     : bytes.error().text());
      return 2;
    }
    options.gpu_memory_bytes = *bytes;
  }

  // Blocked in every thread that is started from here on, and waited for below.
  sigset_t signals;
  sigemptyset(&signals);
  // Blocked they would be seen even where they are ignored (SIG-2).
  for (const int ends : {SIGTERM, SIGINT})
    if (troupe::is_heeded(ends)) sigaddset(&signals, ends);
  sigaddset(&signals, SIGUSR1);                                     // on_denied
  if (log_to.to.starts_with("file:")) sigaddset(&signals, SIGHUP);  // the log has a thread, too
  const int leave_asked = SIGRTMIN;
  sigaddset(&signals, leave_asked);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  troupe::take_writes_as_errors();

  std::optional<troupe::error> denied;  // written once, before the signal
  options.on_denied = [&denied](const troupe::error& why) {
    if (denied) return;
    denied = why;
    ::kill(::getpid(), SIGUSR1);
  };
  troupe::library_list stages{&troupe::model::library()};
  for (const auto& file : options.load) {
    const auto library = troupe::load_stages(file);
    if (!library) {
      fmt::print(stderr, "troupe-node: {}\n", library.error().text());
      return static_cast<int>(library.error().code());
    }
    if (*library == nullptr) continue;
    for (const auto* other : stages)
      if (other->name() == (*library)->name()) {
        fmt::print(stderr, "troupe-node: --load {}: a stage library {} is loaded already\n", file,
                   other->name());
        return 2;
      }
    stages.push_back(*library);
  }
  log_to.level = *troupe::parse_log_level(log_level);
  log_to.format = log_format == "json" ? troupe::log_format::json : troupe::log_format::text;
  auto opened = troupe::node_log::open(log_to);
  if (!opened) {
    fmt::print(stderr, "troupe-node: {}\n", opened.error().text());
    return static_cast<int>(opened.error().code());
  }
  const auto log = std::move(*opened);  // outlives the process, whose actors write
  options.on_line = [&log = *log](const troupe::event& line, std::uint64_t unix_ns) {
    log.write(line, unix_ns);
  };
  options.host_work = troupe::host_stages(std::move(stages));
  options.on_leave_asked = [leave_asked] { ::kill(::getpid(), leave_asked); };
  auto process = troupe::process::start(options);
  if (!process) {
    fmt::print(stderr, "troupe-node: {}\n", process.error().text());
    return static_cast<int>(process.error().code());
  }
  fmt::print("listening {}\n", (*process)->address());
  std::fflush(stdout);
  troupe::tell_service_manager(fmt::format("READY=1\nSTATUS=cluster {}, listening {}",
                                           options.cluster, (*process)->address()));
  const auto& name = (*process)->self().name;
  log->write(troupe::event_level::info, name,
             fmt::format("troupe-node {} of cluster {} listens at {}", troupe::version(),
                         options.cluster, (*process)->address()));
  int signal = SIGHUP;
  while (signal == SIGHUP) {
    sigwait(&signals, &signal);
    if (signal != SIGHUP) break;
    if (const auto again = log->reopen(); !again)
      log->write(troupe::event_level::error, name, again.error().text());
  }
  troupe::tell_service_manager("STOPPING=1\nSTATUS=hands its work over");
  if (signal == leave_asked) signal = SIGTERM;
  if (signal == SIGUSR1 && denied) {
    fmt::print(stderr, "troupe-node: {}\n", denied->text());
    (*process)->leave("was denied");
    return static_cast<int>(denied->code());
  }
  // Work that can move does so first; a second signal ends the wait.
  if (signal == SIGTERM)
    (void)(*process)->drain(std::chrono::seconds(30), [&] {
      sigset_t waiting;
      return sigpending(&waiting) == 0 &&
             (sigismember(&waiting, SIGTERM) == 1 || sigismember(&waiting, SIGINT) == 1);
    });
  (*process)->leave(signal == SIGTERM ? "was asked to leave" : "was interrupted");
  return 0;
}
