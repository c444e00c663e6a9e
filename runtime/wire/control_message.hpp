#pragma once
// The bodies of frames as C++ values, and their Cap'n Proto form (schema/wire.capnp, which has the
// protocol in prose).
//
// Decoding takes any bytes from a proven peer: limits are checked, enumerations and counts
// validated, and what does not fit is an error that names the field. Encoding cannot fail.

#include "troupe/runtime/plan/blob_id.hpp"
#include "troupe/runtime/shards/kept_shard.hpp"
#include "troupe/runtime/trace/trace.hpp"
#include "troupe/runtime/wire/member_info.hpp"
#include "troupe/schema/error.hpp"
#include "troupe/schema/ids.hpp"
#include "troupe/schema/tensor_spec.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace troupe {

struct plan;

struct heartbeat {
  std::uint64_t count = 0;
};
struct view_update {
  std::vector<member_info> members;
};
struct leave {
  std::string reason;
};
struct credit_return {
  job_id job{};
  std::uint32_t epoch = 0, edge = 0, count = 0;
};
struct credit_batch {
  std::vector<credit_return> credits;
};
struct place_part {
  job_id job{};
  std::uint32_t epoch = 0;
  std::vector<std::byte> plan;
  std::vector<node_id> nodes;  // by task
  // Folder of checkpoints, with one of the job in it; empty: it writes none.
  std::string checkpoints;
  // Name of the checkpoint that the shards begin with; empty: what the node keeps, or nothing.
  std::string restore_from;
  // Where the coordinator dies another node goes on with the job, and the part waits for that.
  bool may_move = false;
  // The plan where it is too large for a message: `plan` is empty. bytes == 0: it is not.
  blob_id plan_id{};
  // To a part in the coordinator's own process, which the message does not leave: the plan as it
  // is, and `plan` is empty; or what the plan names.
  std::shared_ptr<const troupe::plan> here{};
  std::shared_ptr<const blob_map> blobs_here{};
};
// To the coordinator: that blob of the plan, from `offset` on. Answer: blob_piece.
struct want_blob {
  job_id job{};
  blob_id id{};
  std::uint64_t offset = 0;
};
inline constexpr std::size_t blob_piece_bytes = std::size_t{512} << 10;  // but for the last one
struct blob_piece {
  job_id job{};
  blob_id id{};
  std::uint64_t offset = 0;
  std::vector<std::byte> bytes{};
  std::string error{};  // empty: none
};
struct data_hash {
  std::string what;  // for people: "training data in /data/mnist"
  std::uint64_t hash = 0;
};
struct part_placed {
  job_id job{};
  std::uint32_t epoch = 0;
  std::string error{};  // empty: placed
  node_id unlinked{};   // the node that no link leads to, where that is the error
  // What its part reads from files that are on every node: the same everywhere.
  std::vector<data_hash> data{};
};
// To everybody who takes part in an epoch that does not go on: end its actors, keep the variables.
// Answer: part_halted.
struct halt_part {
  job_id job{};
  std::uint32_t epoch = 0;
  std::string reason;
};
struct start_part {
  job_id job{};
};
struct stop_part {
  job_id job{};
  std::string reason;  // job_done_reason, or why the job failed
};
inline constexpr std::string_view job_done_reason = "done";
// In front of why a training was stopped, which is no failure.
inline constexpr std::string_view job_stopped_prefix = "stopped: ";
// In front of where a training was suspended, which is no failure either.
inline constexpr std::string_view job_suspended_prefix = "suspended: ";
struct shard_report {
  std::uint32_t actor = 0;
  std::vector<std::uint64_t> received, applied, dropped, duplicates;  // by worker
};
struct part_halted {
  job_id job{};
  std::uint32_t epoch = 0;
  std::vector<kept_report> kept;
  std::vector<shard_report> shards;
  std::uint64_t data_messages = 0;
};
// Coordinator: what your workers make next is not in cut `mark` any more.
struct begin_cut {
  job_id job{};
  std::uint32_t epoch = 0, mark = 0;
};
// From the program's node: it has given up the step, and with it all before: their loops end. What
// the step computes beside them goes on, and is dropped where it is fetched.
struct cancel_run {
  job_id job{};
  std::uint32_t epoch = 0;
  std::uint64_t step = 0;
};
// Coordinator: every variable and replica of the epoch has begun; what nodes keep of them beside
// those may go.
struct epoch_begun {
  job_id job{};
  std::uint32_t epoch = 0;
};
// To coordinators: the node wants to leave; its work is to go elsewhere first.
struct leaving_node {
  job_id job{};
};
// A node's part of a cut is on disk, or not.
struct part_saved {
  job_id job{};
  std::uint32_t epoch = 0;
  std::uint64_t step = 0;
  std::string error;                        // empty: saved
  std::vector<std::uint64_t> worker_steps;  // whose gradients are in it
  std::string file, hash;
  std::uint64_t bytes = 0;
  std::vector<std::string> variables;
};
struct part_ended {
  job_id job{};
  std::uint32_t epoch = 0;
  std::string error, actor;  // empty: all actors have done their steps
  std::uint64_t step = 0;
  std::vector<shard_report> shards;
  std::uint64_t data_messages = 0;  // items that the part's actors received
  // The error may follow from the end of another node (SV-1)
  bool is_derived = false;
};
// To the coordinator: something that people want to know, of an actor that goes on.
struct part_noted {
  job_id job{};
  std::uint32_t epoch = 0;
  std::string actor;
  std::uint64_t step = 0;
  std::string text;

  friend bool operator==(const part_noted&, const part_noted&) = default;
};
// --- jobs that outlive their coordinator (runtime/jobs/job_journal.hpp) --------------------------

// From the coordinator, to a node that would coordinate the job after it. Answer: journal_kept.
struct keep_journal {
  job_id job{};
  std::uint64_t number = 0;
  // recipe: empty: as it was told before. Both: the node is needed no more; `number`: the epoch.
  std::vector<std::byte> recipe, journal;
};
struct journal_kept {
  job_id job{};
  std::uint64_t number = 0;
  std::string error{};  // empty: kept
};
// From the coordinator, to one that has kept its newest journal: the job is yours.
struct give_job {
  job_id job{};
  std::string reason;
};
// From a program, to every node: whoever coordinates the job of that name or id, give it to me.
// Answer: keep_journal and give_job, or job_refused.
struct ask_for_job {
  std::string job;
};
struct job_refused {
  std::string job, reason;
};
// From a node, to a former coordinator: `node` has the job since that epoch.
struct job_moved {
  job_id job{};
  std::uint32_t epoch = 0;
  node_id node{};
};

// --- work that is no job (actors/messages/stream_messages.hpp) -----------------------------------

// What processes say to each other about a work that is theirs.
struct work_word {
  job_id job{};
  std::vector<std::byte> bytes;
};
// A control frame's header has 16 MiB (runtime/wire/frame.hpp), and the rest of the message needs
// less than 100 bytes of them; round, and far below.
inline constexpr std::size_t work_word_bytes_max = std::size_t{15} << 20;

struct query {
  std::uint64_t id = 0;
  std::string request;
};
struct answer {
  std::uint64_t id = 0;
  std::string json;
};
struct lost_peer {
  job_id job{};
  node_id node{};
  std::string reason;
  bool has_left = false;  // in good order
};
// "You are dead to us": what the sender's side of the cluster weighs
// (runtime/cluster/membership.hpp).
struct fenced {
  std::string reason;
  std::uint32_t nodes = 0, jobs = 0;        // alive, running
  std::uint64_t founder_start_time_ns = 0;  // of the founder among the living
  node_id founder{};

  friend bool operator==(const fenced&, const fenced&) = default;
};

using control_message =
    std::variant<heartbeat, view_update, leave, credit_batch, place_part, part_placed, start_part,
                 stop_part, part_ended, query, answer, lost_peer, fenced, halt_part, part_halted,
                 begin_cut, part_saved, leaving_node, epoch_begun, trace_query, trace_page,
                 part_noted, cancel_run, keep_journal, journal_kept, give_job, ask_for_job,
                 job_refused, job_moved, work_word, want_blob, blob_piece>;

// Whether the node takes it, which runs parts and jobs; the others are for the link, the
// membership, or whoever asked. The order of the variant says nothing.
bool is_for_node(const control_message& m);

std::vector<std::byte> encode(const control_message& m);
result<control_message> decode_control(std::span<const std::byte> bytes);

enum class lane : std::uint8_t { control = 0, data = 1 };
std::string_view to_string(lane l) noexcept;

// A word of a process, by which another one of its machine finds out whether it can read there
// (actors/net/peer_memory.hpp).
struct memory_probe {
  std::uint64_t address = 0, value = 0;  // address 0: there is none
  friend bool operator==(const memory_probe&, const memory_probe&) = default;
};

// The body of an identity frame (runtime/wire/handshake.hpp): who speaks, and where its lane goes
// on.
struct identity {
  member_info member;
  troupe::lane lane = lane::control;
  std::uint64_t received = 0;  // every sequence up to here has arrived on this lane of the link
  node_id expected{};          // whom the initiator means to reach; 0: whoever it is
  std::uint64_t link = 0;      // which link
  bool begins = false;         // it begins with this connection
  memory_probe probe{};        // where to try whether the speaker's memory can be read
};

std::vector<std::byte> encode(const identity& i);
result<identity> decode_identity(std::span<const std::byte> bytes);

// The header of a chunk frame: whose bytes follow.
struct chunk_header {
  job_id job{};
  std::uint32_t epoch = 0;
  std::uint32_t edge = 0;
  node_id sender{}, receiver{};
  tag t;
  std::uint64_t sequence = 0;
  tensor_spec spec;
  std::uint64_t offset = 0;  // of this chunk in the tensor
  std::uint32_t part = 0;    // of a collective: the key of a piece
};

std::vector<std::byte> encode(const chunk_header& h);
result<chunk_header> decode_chunk(std::span<const std::byte> bytes);

inline constexpr std::size_t view_members_max = 4096;

}  // namespace troupe
