#pragma once
// A process of Troupe: one node in one actor system, with its threads, its clock and its network.
// troupe-node is one of these, and so is every program that runs jobs, alone or as a client of a
// cluster.
//
// PZ-1  In a child of fork(), which has none of the threads, it does nothing any more: it ends
//       without a word, and leaves its memory as it is.
//
// Threads: `streams` host streams, one service worker, one for the disk, one I/O worker. start(),
// end() and leave() from the program's thread.
// Ownership: everything of the process lives here; two of them live side by side in one program.
// Mailboxes of programs may outlive end(), and keep it by shared_from_this(); not leave().

#include "troupe/actors/net/peer_memory.hpp"
#include "troupe/actors/node/node_actor.hpp"
#include "troupe/devices/files/disk.hpp"
#include "troupe/runtime/wire/control_message.hpp"
#include "troupe/runtime/wire/wire_protection.hpp"
#include "troupe/schema/error.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace troupe {

class device_backend;
class host_device;
class kernel_table;
class op_table;
struct op_library;

// Of the process that is asked to host work: where its actors run, and who it is.
struct work_host {
  caf::actor_system* system = nullptr;
  caf::execution_unit* service = nullptr;
  caf::actor node;
  node_id self{};
  std::uint32_t streams = 1;
};

struct process_options {
  std::string cluster;  // empty: alone, reachable by nobody
  member_kind kind = member_kind::node;
  std::string job;                  // "worker", "ps", "data" or ""
  std::string name;                 // empty: made of its id
  std::vector<std::string> labels;  // "rack=3"
  // How long others wait for a sign of life of this process before they hold it dead: from one
  // second to an hour; 0: one second.
  std::chrono::nanoseconds lease{0};
  std::string listen;  // HOST:PORT; empty: a free port on loopback
  // HOST:PORT that others are told to reach this process at, where it is not the one above
  // (containers, address translation, port mappings); port 0: the one that it listens on. Empty:
  // the address above, or at a wildcard the one by which the first peer and it meet.
  std::string announce{};
  std::vector<std::string> join;  // HOST:PORT
  std::string token_file;         // empty: the token of this user's clusters on this machine
  // Beyond loopback connections are protected (TLS 1.3), by the token unless this names
  // certificates.
  wire_protection protect{};
  std::uint32_t streams = 1;
  std::uint64_t memory_bytes = 0;  // 0: no limit
  // Of tensors of other processes of this machine, out of their memory.
  direct_reads reads = direct_reads::automatic;
  // Devices: --gpus auto, none, N or host:N, and the memory of each (devices/gpus/gpus.hpp). Or,
  // for tests, these and no others.
  std::string gpus = "auto";
  std::uint64_t gpu_memory_bytes = 0;
  std::vector<std::shared_ptr<device_backend>> gpu_backends{};
  std::vector<const op_library*> libraries;  // of users' ops, linked into the program; not null
  std::vector<std::string> load;             // files of such
  // A tool asks the process to leave. On an actor's thread.
  std::function<void()> on_leave_asked;
  // A word has come from that node, for work that nobody has joined here: who is to join it
  // (actors/messages/stream_messages.hpp); null: nobody. On an actor's thread, perhaps before
  // start() has returned.
  std::function<caf::actor(const work_host&, job_id, node_id from)> host_work;
  // Each line of the process's log, when it is noted: what happened (troupe events), and what is
  // less than that. On an actor's thread, which must not wait; perhaps before start() has returned,
  // and until leave() has.
  std::function<void(const event&, std::uint64_t unix_ns)> on_line{};
  // A member of `join` will never have us (token, cluster, version) and nobody else is known. On
  // the I/O thread.
  std::function<void(const error&)> on_denied;
};

class process : public std::enable_shared_from_this<process> {
 public:
  // Errors: usage (bad address, port in use, token file, a library of ops, flags of `protect` that
  // exclude each other, its files), not_found (such a file), denied (a token is required beyond
  // loopback; a certificate that others will not accept).
  static result<std::unique_ptr<process>> start(const process_options& options);
  ~process();  // leaves, if leave() was not called

  caf::actor_system& system();
  const caf::actor& node() const;
  // Its record; what does not change of it may be read from any thread, and at a wildcard its
  // address does.
  const member_info& self() const;
  // HOST:PORT at which it listens, at a wildcard too. What others are told is its record's.
  const std::string& address() const;
  const op_table& ops() const;
  const kernel_table& kernels() const;
  host_device& device() const;
  disk& files() const;
  std::uint32_t streams() const;
  // Lets jobs move their work to other nodes, for at most that long. False: some of it is still
  // here.
  bool drain(std::chrono::milliseconds timeout, const std::function<bool()>& is_cancelled);
  // Ends jobs and parts, whose programs are told, and says goodbye to the cluster. Threads stay,
  // and mailboxes of programs: what they send to the node reaches nobody.
  void end(const std::string& reason);
  // The same, and ends all actors and threads.
  void leave(const std::string& reason);
  // Whether the node is there to be asked for something. Errors: failed: it has ended, or this is a
  // child of fork(). From any thread.
  result<void> check_is_there() const;
  // This is a child of fork() of the process that start() was called in. From any thread.
  bool is_forked() const;

 private:
  struct parts;
  explicit process(std::unique_ptr<parts> p);
  static result<std::unique_ptr<process>> begin(const process_options& options);
  std::unique_ptr<parts> parts_;
};

}  // namespace troupe
