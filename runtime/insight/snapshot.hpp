#pragma once
// What a node answers when it is asked what it does, as values, and a cluster's answers put
// together.
//
// Every time is an age in seconds, counted on the clock of the node that answers up to its answer:
// 3.5 means "3.5 seconds ago". So times of several nodes compare without synchronised clocks.
// Answers of different nodes are taken at slightly different moments; who compares them must not
// believe a difference below skew_seconds.
//
// SN-1  Parsing takes any bytes and allocates in proportion to answer_bytes_max: the result is a
//       snapshot or an error that names the place. Unknown keys are skipped, missing keys keep
//       their defaults, a key of the wrong type is an error, ratios and ages are finite and >= 0,
//       and control characters in texts become spaces (they end up on terminals).
// SN-2  parse(to_json(x)) == x, for any x whose texts are UTF-8 without control characters and
//       whose numbers are finite, with at most three decimals.
// SN-3  After merge() every node id, actor id and job id is listed once, sorted by name with
//       numbers in them as numbers.
// SN-4  to_json(node_answer) leaves actors out, and counts them, rather than exceed what parsing
//       takes.
// SN-5  Every node that sees a happening notes it, so that it is known when nodes are lost, and
//       merge() lists it once: as the node told it that saw it first. Events are one happening
//       where kind and `about` are equal, and `about` is not empty. What may happen again and again
//       (a member is unreachable, or back) is another happening where a node notes it a second
//       time, or same_happening_seconds later. Of two members that meet, the one that began earlier
//       notes that the other one has joined, and every member that of itself.

#include "troupe/schema/error.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

// JSON of one node's answer: about 25,000 actors of 600 bytes and 50 values each. The values are
// limited too, since one of three bytes may take a hundred in memory.
inline constexpr std::size_t answer_bytes_max = std::size_t{16} << 20;
inline constexpr std::size_t answer_values_max = std::size_t{2} << 20;
inline constexpr double skew_seconds = 1.0;  // answers this close count as simultaneous

enum class node_state : std::uint8_t { alive, unreachable, dead, left };
enum class actor_state : std::uint8_t {
  idle,
  running,
  waiting_for_input,
  waiting_for_credit,
  ended,
  waiting_for_thread,    // it could go on, but its thread runs another actor
  waiting_for_resource,  // that another actor has
};
enum class job_state : std::uint8_t {
  running,
  done,
  failed,
  recovering,
  stopped,
  paused,
  suspended
};
std::string_view to_string(node_state s) noexcept;   // "alive", ...
std::string_view to_string(actor_state s) noexcept;  // "waiting for input", ...
std::string_view to_string(job_state s) noexcept;    // "running", ...
// Done, failed, stopped or suspended.
constexpr bool is_over(job_state s) noexcept {
  return s == job_state::done || s == job_state::failed || s == job_state::stopped ||
         s == job_state::suspended;
}

struct device_snapshot {
  std::string name;                // "gpu:0"
  std::string hardware;            // "NVIDIA H100 80GB HBM3"
  std::uint64_t memory_bytes = 0;  // that jobs may use; 0: no limit but the machine's

  friend bool operator==(const device_snapshot&, const device_snapshot&) = default;
};

// What a process says of itself: where it runs, what it may use of its machine, and has used.
struct process_use {
  std::string host;                    // name of its machine or container
  std::string version;                 // of Troupe
  std::uint64_t cores = 0;             // that it may run on
  double cpu_seconds = 0;              // of all its threads
  double uptime_seconds = 0;           // since it began
  std::uint64_t memory_bytes = 0;      // resident
  std::vector<std::string> libraries;  // of ops and stages that were loaded: names of files
};

// One life of one process.
struct node_snapshot {
  std::string id;    // hexadecimal, unique to this life
  std::string name;  // "n1": unique among the living
  std::uint64_t pid = 0;
  std::string kind;  // "node" or "client"
  std::string job;   // "worker", "ps", "data" or "": what --job said
  std::string address;
  std::vector<device_snapshot> devices;  // gpu:0, gpu:1, ...
  std::vector<std::string> labels;       // "rack=3": what --label said
  std::uint64_t incarnation = 0;
  node_state state = node_state::alive;
  std::string reason;              // of a state other than alive, for a person
  double unreachable_seconds = 0;  // age of a state other than alive
  // Of who answered for itself: the names of the members that a link leads to from there.
  std::vector<std::string> reaches{};
  // Of who answered for itself: cores that it may run on, and processor time of its process.
  std::uint64_t cores = 0;
  double cpu_seconds = 0;
  // Of who answered for itself: its machine's name, its version, its age, its threads that run ops
  // of the host, resident memory, what jobs may use of it (0: no limit), libraries of --load.
  std::string host, version;
  double uptime_seconds = 0;
  std::uint64_t threads = 0, memory_bytes = 0, memory_max_bytes = 0;
  std::vector<std::string> libraries{};
  // Of merge(): how many nodes that answered have not heard of it yet, or have no link to it. Not
  // written to JSON.
  std::uint32_t unknown_to = 0, unreached_by = 0;

  friend bool operator==(const node_snapshot&, const node_snapshot&) = default;
};

// One end of one edge: an output port with two consumers is two of these, with equal names.
struct port_snapshot {
  // "in0", "out1": inputs start with "in", outputs with "out". Listed while the actor waits for
  // `peer`: "buffer", memory that it reads; "thread", which it runs on; "resource NAME", which it
  // has.
  std::string name;
  std::string peer;           // name of the actor of the same job at the other end, or "program"
  std::string peer_node;      // name of that actor's node
  std::uint64_t credits = 0;  // held by this end, if it is an output: free buffers
  std::uint64_t credits_max = 0;
  std::uint64_t queued = 0;  // items that are here and not yet used
  // The actor waits for this port: an input for an item, an output for a credit.
  bool is_waiting = false;
  double since_seconds = 0;  // age of that wait
  // Items come only at the end of the job or many steps apart: a wait lasts by design.
  bool is_sparse = false;
  // Items that have come, or gone out: what the other end has sent and this one not seen is on its
  // way. Credits that this input has given back to another process.
  std::uint64_t items = 0, returned = 0;

  bool is_input() const noexcept { return name.starts_with("in"); }
  friend bool operator==(const port_snapshot&, const port_snapshot&) = default;
};

struct actor_snapshot {
  std::string id;      // "n1.17": its node's name and its index there
  std::string kind;    // to_string(actor_kind)
  std::string name;    // unique in its job, or on its node if it belongs to no job
  std::string node;    // name
  std::string job;     // name of its job, or ""
  std::string job_id;  // id of its job, or "": two jobs may have one name
  actor_state state = actor_state::idle;
  double since_seconds = 0;  // age of the state
  std::uint64_t messages_in = 0, messages_out = 0;
  std::uint64_t bytes_in = 0, bytes_out = 0;
  double busy_ratio = 0;  // of the last second or two of its node, 0..1
  std::uint64_t queue = 0;
  std::uint64_t steps = 0;
  std::uint64_t iteration = 0;  // of the condition of a loop: how often it has gone round
  std::string thread{};         // of its node, that it runs on: one actor at a time; "": not known
  std::vector<port_snapshot> ports;

  // Whether it waits at a port, and that tells something: not by design.
  bool waits_at(const port_snapshot& p) const noexcept {
    return p.is_waiting && !p.is_sparse && state != actor_state::ended;
  }
  friend bool operator==(const actor_snapshot&, const actor_snapshot&) = default;
};

struct job_snapshot {
  std::string id;
  std::string name;
  job_state state = job_state::running;
  std::uint64_t workers = 0, shards = 0;
  std::string update;  // "sync", "async" or "": not a training job
  // Done, of all (0: not known before). Async: gradients of all workers.
  std::uint64_t step = 0, steps = 0;
  double started_seconds = 0;
  double ended_seconds = 0;               // age of the end, 0 while it runs
  std::string client;                     // name of the node that coordinates it
  std::vector<std::string> participants;  // names of nodes
  std::string cause;                      // one line, of a failed or stopped job
  std::uint64_t epoch = 1;                // counts its placings
  std::uint64_t recoveries = 0;           // of them, those after a failure
  std::uint64_t checkpoints = 0;          // written

  // Mean over its running time; 0 before the first step.
  double steps_per_second() const noexcept;
  // The cause as it is told under a heading that names the job: without "job mnist failed: ".
  std::string_view bare_cause() const noexcept;
  friend bool operator==(const job_snapshot&, const job_snapshot&) = default;
};

enum class event_kind : std::uint8_t {
  note,  // anything else; also what a later version has, and this one does not know
  member_joined,
  member_left,
  member_lost,         // held dead
  member_unreachable,  // silent, or without a link
  member_back,         // it was unreachable, or the link to it had been given up
  link_lost,           // given up, with all that it kept
  node_rejoined,       // the node was held dead, and goes on with a new id
  node_leaving,        // the node was asked to leave
  join_refused,        // connections of others: token, cluster, version, certificate
  cluster_conflict,    // another half of the cluster runs jobs, too
  job_began,
  job_placed,      // its parts run
  job_recovering,  // its parts end, after a failure or to be placed anew
  job_recovered,   // it goes on, or has another coordinator
  job_moved,       // another process coordinates it
  job_done,
  job_failed,
  job_stopped,
  job_suspended,
  job_note,
  checkpoint_written,
  actor_failed,
  message_ignored,  // of somebody who may not say that
};
// Of lines of logs, too. Events are info or above.
enum class event_level : std::uint8_t { trace, debug, info, warning, error };
std::string_view to_string(event_kind k) noexcept;   // "note", "member joined", ...
std::string_view to_string(event_level l) noexcept;  // "trace", ...
event_level level_of(event_kind k) noexcept;         // that its events have, mostly

// What happened on a node, or a line of its log.
struct event {
  double since_seconds = 0;
  std::string node;  // that noted it: its name
  std::string text;
  event_kind kind = event_kind::note;
  event_level level = event_level::info;
  std::string job{}, job_id{};  // name and id of the job that it concerns, or ""
  // What the happening is, for all nodes that see it (SN-5): the id of a life of a member, or of a
  // job and its epoch. Empty: nobody else notes it.
  std::string about{};
  std::string node_id{};     // the life that noted it
  std::uint64_t number = 0;  // counts the events of a process, from 1; 0: an older version's

  friend bool operator==(const event&, const event&) = default;
};
event make_event(event_kind kind, std::string text, std::string about = {});
event make_job_event(event_kind kind, const std::string& job, std::string job_id, std::string text,
                     std::string about = {});

inline constexpr double same_happening_seconds = 10;
// SN-5, for events of several nodes in any order: oldest first.
std::vector<event> each_happening_once(std::vector<event> events);

// What one node says: about itself, and how it sees the others.
struct node_answer {
  std::string cluster;
  node_snapshot self;
  std::vector<node_snapshot> peers;
  std::vector<actor_snapshot> actors;
  std::vector<job_snapshot> jobs;
  std::vector<event> events;
  std::vector<event> lines{};         // of its log, where they are asked for
  std::uint64_t actors_left_out = 0;  // what did not fit into the answer
  // To a request that asks for more than an answer; empty: it does not concern this node.
  std::string said;

  friend bool operator==(const node_answer&, const node_answer&) = default;
};

// A node that was asked and did not answer.
struct silent_node {
  std::string name;
  std::string reason;  // "no answer within 2 s", "connection refused"

  friend bool operator==(const silent_node&, const silent_node&) = default;
};

// Which events, or lines of its log, a node still had when it answered.
struct event_range {
  std::string node, node_id;
  std::uint64_t first = 0, last = 0;  // numbers; 0: none
  bool is_of_lines = false;
  friend bool operator==(const event_range&, const event_range&) = default;
};

// What a node says to a request to do something.
struct node_word {
  std::string node, text;
  friend bool operator==(const node_word&, const node_word&) = default;
};

struct cluster_snapshot {
  std::string cluster;
  std::vector<node_snapshot> nodes;
  std::vector<actor_snapshot> actors;
  std::vector<job_snapshot> jobs;
  std::vector<event> events;   // oldest first, each happening once (SN-5)
  std::vector<event> lines{};  // of all logs, oldest first; neither is in its JSON
  std::vector<event_range> ranges{};
  std::vector<silent_node> silent;
  std::vector<node_word> said;  // not in its JSON
  std::uint64_t actors_left_out = 0;

  friend bool operator==(const cluster_snapshot&, const cluster_snapshot&) = default;
};

// Puts answers together. A node's own word counts most, except that a node which another one cannot
// reach is unreachable, with that one's name; of a job counts the word of its client, else of who
// has seen most steps.
cluster_snapshot merge(std::span<const node_answer> answers, std::vector<silent_node> silent = {});

// By id, since two jobs may have one name; by name where an id is missing.
bool belongs(const actor_snapshot& a, const job_snapshot& j) noexcept;

// "n2" before "n10".
bool natural_less(std::string_view a, std::string_view b) noexcept;

// --- JSON: one line, keys with units -------------------------------------------------------------

// What is written of a number: ages to the millisecond, ratios to a tenth of a per cent.
double three_decimals(double x) noexcept;

std::string to_json(const node_answer& a);
std::string to_json(const cluster_snapshot& c);
std::string to_json(const node_snapshot& n);
std::string to_json(const actor_snapshot& a);  // with its ports
std::string to_json(const job_snapshot& j);
// Lists are arrays.
std::string to_json(std::span<const node_snapshot> nodes);
std::string to_json(std::span<const actor_snapshot> actors);
std::string to_json(std::span<const job_snapshot> jobs);
std::string to_json(std::span<const event> events);

result<node_answer> parse_node_answer(std::string_view json);
result<cluster_snapshot> parse_cluster_snapshot(std::string_view json);

}  // namespace troupe
