#pragma once
// A plan: everything that the nodes of a job need to run it, as a value. The compiler makes it, the
// wire carries it (schema/plan.capnp), a node checks it and spawns its part.
//
// Actors and edges are numbered by their position in the plan; ids are the same on every node of
// the job.
//
// PL-1  edges[i].from.actor and .to.actor are below actors.size(), their ports exist, and both ends
//       name the edge.
// PL-2  Every input port has exactly one edge; every output port has one or more, only an op's may
//       have none (its value is not used then).
// PL-3  An edge joins actors of one task, except from a `send` to its `receive`, and between ranks
//       of a collective.
// PL-4  Every directed cycle goes through a shard (whose version 0 exists before the first step),
//       what comes back in a loop (input 1 of a loop_enter), or ranks of a collective.
// PL-5  Every edge has 1..credits_max credits, and carries what its output port makes.
// PL-6  Nobody starts behind its last step, and a shard starts at one version, or at one step of
//       each worker.
// PL-8  The uses of a buffer are output ports of ops of its task and stream, and fit into it. Who
//       reads what a use makes (also through ops that hand it on) are ops of that task and stream,
//       none of which comes behind the next use.
// PL-9  Ops of branches and loops are alone in their actor and have the ports that
//       runtime/plan/loop_rules.hpp gives them; what is in a loop has a level of 2 at least. There,
//       some input of an op is not sticky; of ops that make up branches and loops, only input 0 of
//       a branch may be.
// PL-10 Fetches that have places are one to the program: these are 0, 1, 2, ..., each once.
// PL-11 A collective is a group: one actor for each rank, on a task of its own, each with the same
//       collective_spec but for its rank. Edges join any two ranks of which one sends the other
//       something, from the task of one to that of the other, and carry pieces. A rank on a device
//       (planned_collective::buckets) is of an all-reduce that sums f32; ranks of its group are on
//       devices of the same number, and rank 0 sends each other one the id of their communicator,
//       once.
// PL-12 An op on a device stream is a segment: its kernels are its ops one after the other, take
//       inputs or values made before, and put what they make at an output port or in its arena,
//       where no two values lie over each other while somebody is to read them. It is in no loop,
//       and has no buffers of the plan. What it takes and makes is memory of its device, as with a
//       shard there: a copy brings it in, out, or across from another device of its task; all
//       others take and make memory of the host.
// PL-7  Libraries have a name, a version and ops; a name stands once, and an op belongs to one
//       library at most.

#include "troupe/runtime/plan/collective.hpp"
#include "troupe/runtime/plan/optimizer.hpp"
#include "troupe/schema/attributes.hpp"
#include "troupe/schema/error.hpp"
#include "troupe/schema/ids.hpp"
#include "troupe/schema/library_id.hpp"
#include "troupe/schema/tensor_spec.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

inline constexpr std::uint32_t credits_max = 4096;
inline constexpr std::size_t plan_actors_max = 1'000'000;
inline constexpr std::size_t plan_edges_max = 8'000'000;
inline constexpr std::size_t plan_tasks_max = 65'536;
inline constexpr std::size_t plan_buffers_max = 8'000'000;
inline constexpr std::uint32_t steps_in_flight_max = credits_max;
inline constexpr std::size_t plan_library_ops_max = 4096;  // of one library
inline constexpr std::size_t plan_bytes_max = std::size_t{1} << 30;
inline constexpr std::int64_t tensor_bytes_max = std::int64_t{1} << 40;

// Kinds of actors, in plans and in the registry.
enum class actor_kind : std::uint8_t {
  op = 0,
  shard,
  send,
  receive,
  feed,
  fetch,  // planned
  stream,
  job,
  node,
  member,
  link,
  supervisor,  // of a node
  collective,
  copy,  // planned
};
std::string_view to_string(actor_kind k) noexcept;

// The line of the user's program that made an op.
struct source_line {
  std::string file;
  std::uint32_t line = 0;
  friend bool operator==(const source_line&, const source_line&) = default;
};

// Streams of a task: those of the host are 0, 1, ..., taken modulo those that its node has; device
// gpu:N is device_stream(N), and has to be there.
inline constexpr std::uint32_t first_device_stream = 1U << 24U, devices_max = 256;
constexpr std::uint32_t device_stream_of(std::uint32_t device) noexcept {
  return first_device_stream + device;
}
constexpr bool is_device_stream(std::uint32_t stream) noexcept {
  return stream >= first_device_stream;
}
constexpr std::uint32_t device_of(std::uint32_t stream) noexcept {
  return stream - first_device_stream;
}
// Its number among a node's: `host_streams`, then devices.
constexpr std::uint32_t worker_of(std::uint32_t stream, std::uint32_t host_streams) noexcept {
  return is_device_stream(stream) ? host_streams + device_of(stream) : stream % host_streams;
}
std::string stream_text(std::uint32_t stream);  // "stream 1", "gpu:0"

// How an edge gets into a device's memory, out of it, or across from another one's.
enum class copy_kind : std::uint8_t { none = 0, in = 1, out = 2, across = 3 };
std::string_view to_string(copy_kind k) noexcept;

// One op of an op actor. A fused group is a list: each op after the first takes the result of an
// earlier one.
struct planned_op {
  std::string type;  // name in the op table and the kernel table
  std::string name;  // unique in the graph
  attributes attrs;
  // >= 0: input port of the actor; < 0: output 0 of ops[-1 - operand].
  std::vector<std::int32_t> operands;
  source_line source;
  friend bool operator==(const planned_op&, const planned_op&) = default;
};

// A reader reads its part of a batch: the worker's number stands in its attributes.
inline bool is_reader(const attributes& attrs) { return attrs.has("parts"); }

// The type of an op that hands over what its node keeps of variable `variable` (an attribute):
// values, then each slot of its optimizer.
inline constexpr std::string_view hand_over_op = "hand_over";

// The type of an op that packs rows with their indices (devices/host/packed_rows.hpp):
// pack_rows(indices, rows), "rows": how many the matrix has.
inline constexpr std::string_view pack_rows_op = "pack_rows";
// What it makes for indices of this shape; nullopt: too large.
std::optional<tensor_spec> packed_spec(const shape& indices, std::size_t width);
// Whether a tensor holds packed rows of a variable.
bool are_rows_of(const tensor_spec& packed, const tensor_spec& variable) noexcept;

// The type of an op that hands on what comes from another stream, to all who take it on its own.
inline constexpr std::string_view relay_op = "relay";

// The type of an op that hands on what it takes where a condition holds, and else a dead token:
// pass_if(value, condition).
inline constexpr std::string_view pass_if_op = "pass_if";

// What happens where an op makes a NaN or an infinity.
enum class nan_policy : std::uint8_t {
  ignore = 0,  // nobody looks
  stop = 1,    // the step fails, and says which op was the first
  warn = 2,    // that is said, once for each op; training goes on with it
  // That is said; of a worker whose loss or gradients have one, the step's gradients are not
  // applied.
  skip = 3,
};
std::string_view to_string(nan_policy p) noexcept;
std::optional<nan_policy> nan_policy_named(std::string_view name) noexcept;

enum class update_kind : std::uint8_t { sync = 0, async = 1 };

// The names of the client's fetches in a training.
inline constexpr std::string_view loss_fetch = "loss", variables_fetch = "variables";

// How the first value of a variable is made: a pure function of (seed, variable name, element).
struct initializer_spec {
  enum class kind : std::uint8_t {
    zeros = 0,
    uniform = 1,
    normal = 2,
    constant = 3,
    first = 4
  } type = kind::zeros;
  // Uniform in [-limit, limit); normal: the standard deviation; constant: the number; first: that
  // of element 0, others are 0.
  double limit = 0;
  friend bool operator==(const initializer_spec&, const initializer_spec&) = default;
};

// A variable that follows what its workers push: v += rate (sum / samples - v). No optimizer has to
// do with it.
struct moving_average_spec {
  double rate = 0;
  std::uint32_t samples = 1;
  friend bool operator==(const moving_average_spec&, const moving_average_spec&) = default;
};

// A variable f32[2] {scale of a loss, good steps since it has changed}
// (runtime/plan/precision.hpp). Workers push f32[2], whose element 0 is 1 where their gradients are
// finite, else 0.
struct loss_scale_update {
  std::uint64_t grows_every = 2000;  // good steps
  std::uint32_t samples = 1;         // of an update
  friend bool operator==(const loss_scale_update&, const loss_scale_update&) = default;
};

// An output port of a shard, and which versions it sends. Item number n of the port is the variable
//   sync:   at version first + n * stride (version v = the value after v applied steps)
//   async:  for a worker: once that worker's gradients of steps < n were applied, whatever others
//           did
// A port with at_end sends one item: the value after the last gradient of every worker (or its
// death).
struct shard_reader {
  std::int32_t worker = -1;  // >= 0: logical worker; -1: an observer
  std::uint64_t first = 0;
  std::uint64_t stride = 1;
  bool at_end = false;
  friend bool operator==(const shard_reader&, const shard_reader&) = default;
};

// Where a shard's first values come from.
enum class restore_kind : std::uint8_t {
  initial = 0,  // the initializer
  // What the node keeps of the variable: from the epoch before, or read from a checkpoint.
  kept = 1,
  // What another node keeps of it: values and slots come in, once, each at one more input port.
  handed = 2,
};

// A parameter shard: owner of one part of one variable. Input port i takes the gradients of logical
// worker i.
struct shard_spec {
  std::string variable;
  tensor_spec spec;
  std::uint32_t shard = 0;  // k of --shards
  update_kind update = update_kind::sync;
  optimizer_spec optimizer;
  learning_rate_schedule schedule{};
  // The optimizer's slots are there and stay as they began.
  std::optional<moving_average_spec> average{};
  std::optional<loss_scale_update> loss_scale{};  // they do here, too
  // A gradient whose first element is not finite marks a step (async: itself) that leaves values
  // and slots as they are; counted as dropped, sync: of all workers.
  bool leaves_out_marked = false;
  initializer_spec initializer;
  std::uint64_t seed = 0;
  bool pushes_rows = false;           // gradients come as packed rows
  std::vector<std::uint64_t> steps;   // gradients that each worker sends in all
  std::vector<shard_reader> readers;  // one per output port; of a replica: workers on its node
  // Of an epoch that goes on where another one ended:
  restore_kind restore = restore_kind::initial;
  bool is_saved = false;      // that is a checkpoint
  std::uint64_t version = 0;  // sync: to begin with
  // Async, of what is handed over: by worker, the gradients in it.
  std::vector<std::uint64_t> handed{};
  std::vector<std::uint64_t>
      start{};                  // by worker: the first step whose gradient it sends; empty: 0
  bool is_recoverable = false;  // a worker that is lost comes back, in a later epoch
  // Of a job that can be recovered: how many versions older than the current one stay with their
  // optimizer state.
  std::uint32_t keeps = 0;
  // Of a job that writes checkpoints:
  // Sync: a cut at every version that this divides; 0: only where a gradient is marked.
  std::uint64_t cut_every = 0;
  bool cuts_at_end = false;  // a last one when all gradients are applied
  // Of a job with replicas: what is applied goes on to the variable's replica, a shard on another
  // node, at one more output port (sync: the gradients' sum) or one per logical worker (async: each
  // gradient); see forward_ports(). Workers on the replica's node read there.
  bool forwards = false;
  bool follows = false;  // it is the replica; sync: its only input port takes the sums
  // Its only input port takes what a collective made of all workers' gradients; sync, counted as a
  // gradient of each worker.
  bool takes_sums = false;
  friend bool operator==(const shard_spec&, const shard_spec&) = default;
};

// Values and every slot: ports and tensors of a variable that is handed over.
std::size_t hand_over_ports(const shard_spec& s) noexcept;
// Output ports of a shard that lead to its replica; they come behind those of its readers.
std::size_t forward_ports(const shard_spec& s) noexcept;
// Tensors that a shard keeps its versions in: one for the current version, one for each older one
// that is kept, and one for each observer that may be late.
std::uint32_t version_slots(const shard_spec& s) noexcept;
// Index in `steps` and `start` of what a worker's reader gets: all synchronous workers have the
// same, and a replica knows their sums only.
std::size_t source_of(const shard_spec& s, const shard_reader& r) noexcept;

// Gradients come in at so many ports.
std::size_t gradient_ports(const shard_spec& s) noexcept;

struct port_ref {
  std::uint32_t actor = 0;
  std::uint32_t port = 0;
  friend bool operator==(const port_ref&, const port_ref&) = default;
};

struct planned_edge {
  port_ref from;
  port_ref to;
  tensor_spec spec;  // the bound, where symbolic
  std::uint32_t credits = 2;
  friend bool operator==(const planned_edge&, const planned_edge&) = default;
};

// One rank of a collective. The vector that is reduced is its tensors one after the other, each at
// a multiple of piece_alignment elements. Input ports: the tensors of the rank's first part, those
// of the second, ..., then one for each rank that it takes from. Output ports: the tensors of the
// result, then one for each rank that it sends to. Where there are slices a part has one tensor: of
// an all_gather the input is a slice, of a reduce_scatter the output, of which there is one for
// each own part (`tensors`).
struct planned_collective {
  collective_spec spec;
  std::uint32_t tensors = 1;
  // On a device: the tensors are reduced in so many operations, one after the other in this order,
  // each of so many of them. Empty: on the host.
  std::vector<std::uint32_t> buckets{};
  // On a device: sums have the order of the parts, else that of the device's own all-reduce.
  bool is_in_order = true;
  // Logical ones, whose parts the rank has, in the order of these.
  std::vector<std::uint32_t> workers{};
  std::vector<std::uint32_t> peers_from, peers_to;  // ranks, ascending
  std::size_t own_parts() const noexcept {
    return spec.rank < spec.parts.size() ? spec.parts[spec.rank].size() : 0;
  }
  std::size_t own_inputs() const noexcept {
    return own_parts() * (spec.kind == collective_kind::reduce_scatter ? 1 : tensors);
  }
  bool is_on_device() const noexcept { return !buckets.empty(); }
  friend bool operator==(const planned_collective&, const planned_collective&) = default;
};
// What an edge between ranks carries: the bytes of a piece, or (on devices) of an id.
tensor_spec piece_spec(const collective_spec& s);
tensor_spec piece_spec(const planned_collective& c);
// Ranks that its rank sends something to, or takes something from.
collective_peers peers_of(const planned_collective& c);
// The tensors of each bucket: first, and behind the last.
std::vector<std::pair<std::uint32_t, std::uint32_t>> buckets_of(const planned_collective& c);
// Where tensor k of a vector begins, and (k = tensors.size()) how many elements there are in all.
std::int64_t offset_in_vector(std::span<const tensor_spec> tensors, std::size_t k) noexcept;

// One kernel of a segment: an op, or a fused group, whose ops' operands are the kernel's. Values of
// a segment are numbered as kernels make them, output by output.
struct planned_kernel {
  std::uint32_t first_op = 0;          // its ops end where the next kernel's begin
  std::vector<std::int32_t> operands;  // >= 0: input port of the actor; < 0: value -1 - operand
  std::vector<tensor_spec> results;    // bounds of the values that it makes
  // Of each: >= 0: in the arena, in bytes, a multiple of arena_alignment_bytes; < 0: output port -1
  // - place.
  std::vector<std::int64_t> places;
  friend bool operator==(const planned_kernel&, const planned_kernel&) = default;
};
inline constexpr std::uint64_t arena_alignment_bytes = 256;

struct planned_actor {
  actor_kind kind = actor_kind::op;
  std::string name;             // unique in the plan: "worker/0/dense_1/matmul"
  std::uint32_t task = 0;       // index into tasks
  std::uint32_t stream = 0;     // device stream of the task, modulo the streams that the node has
  std::vector<planned_op> ops;  // kind op
  std::vector<planned_kernel> kernels{};  // kind op on a device: a segment
  // Of a segment: what its values need that no port takes.
  std::uint64_t arena_bytes = 0;
  copy_kind copy = copy_kind::none;                 // kind copy
  shard_spec shard;                                 // kind shard
  std::optional<planned_collective> collective{};   // kind collective
  std::vector<std::uint32_t> inputs;                // edge per input port
  std::vector<std::vector<std::uint32_t>> outputs;  // edges per output port
  std::vector<tensor_spec> output_specs;            // per output port, bounds
  std::uint64_t start = 0;                          // firings that were done in earlier epochs
  std::uint64_t steps = 0;                          // fires this often, those included, then ends
  // Op: what it makes next carries the mark of a cut that was asked for.
  bool marks_cuts = false;
  // Send: its producer gets the credit back only when the consumer's process has the item.
  bool awaits_receipt = false;
  // Op: per output port, a number in plan::buffers; -1: memory of its own. Empty: all have their
  // own.
  std::vector<std::int32_t> buffers{};
  bool forwards_input = false;  // op: output 0 is input 0, the same tensor
  std::int32_t in_place = -1;   // op: the input port whose buffer output 0 is written over
  // In loops: the level of the outermost body around it; a step of it ends with what is dead at or
  // below (runtime/plan/loop_rules.hpp)
  std::uint16_t loop_level = 0;
  // Op in a loop: by input port, not 0: the item stays for all firings until one that is dead at or
  // below this level. Empty: none does.
  std::vector<std::uint16_t> sticky{};
  // Fetch of asynchronous workers: one firing per item of any port, not per tag.
  bool fires_on_any = false;
  // Fetch of a graph that is stepped: by input port, where its value stands among all that the
  // program fetches. Empty: it is alone.
  std::vector<std::uint32_t> places{};
  source_line source;  // the user's line that it comes from; empty where there is none
  friend bool operator==(const planned_actor&, const planned_actor&) = default;
};

// Whether an actor's outputs lie in the memory of its stream's device.
inline bool makes_device_memory(const planned_actor& a) noexcept {
  return is_device_stream(a.stream) && (a.kind == actor_kind::op || a.kind == actor_kind::shard ||
                                        a.kind == actor_kind::collective ||
                                        (a.kind == actor_kind::copy && a.copy != copy_kind::out));
}
// Whether it takes memory of its stream's device.
inline bool takes_device_memory(const planned_actor& a) noexcept {
  return is_device_stream(a.stream) && (a.kind == actor_kind::op || a.kind == actor_kind::shard ||
                                        a.kind == actor_kind::collective);
}
// Ranks on the host run beside the links.
inline bool runs_beside_links(const planned_actor& a) noexcept {
  return a.kind == actor_kind::collective && !is_device_stream(a.stream);
}

// Memory that ops of one stream write in turn: runtime/firing/shared_buffer.hpp.
struct planned_buffer {
  std::uint32_t task = 0, stream = 0;
  std::uint64_t bytes = 0;
  friend bool operator==(const planned_buffer&, const planned_buffer&) = default;
};
// Of output `port`; -1: none.
inline std::int32_t buffer_of(const planned_actor& a, std::size_t port) noexcept {
  return port < a.buffers.size() ? a.buffers[port] : -1;
}

struct planned_task {
  std::string name;        // "/job:worker/task:0"
  bool is_client = false;  // runs in the program that started the job
  node_id node{};          // filled in when the job is placed
  friend bool operator==(const planned_task&, const planned_task&) = default;
};

// A library that the nodes must have, the same build of it, and the ops of the plan that are its.
struct planned_library {
  library_id library;
  std::vector<std::string> ops;
  friend bool operator==(const planned_library&, const planned_library&) = default;
};

struct plan {
  std::string name;  // of the job
  std::uint64_t seed = 0;
  update_kind update = update_kind::sync;
  std::uint32_t workers = 0;  // logical workers (0: not a training plan)
  std::uint32_t shards = 0;
  std::vector<planned_task> tasks;
  std::vector<planned_actor> actors;
  std::vector<planned_edge> edges;
  std::vector<planned_buffer> buffers{};
  std::uint32_t steps_in_flight = 1;  // copies of every buffer; see compile.hpp
  nan_policy on_nan = nan_policy::ignore;
  // Whose ops stand in it; all other ops ship with Troupe.
  std::vector<planned_library> libraries{};
  friend bool operator==(const plan&, const plan&) = default;
};

// Checks PL-1..PL-12 and names the actor, edge and user's line that break one. Nothing may be
// spawned from a plan that has not passed.
result<void> check(const plan& p);

// Cap'n Proto, unpacked. Decoding takes any bytes: limits first, then check().
std::vector<std::byte> encode(const plan& p);
result<plan> decode_plan(std::span<const std::byte> bytes);

}  // namespace troupe
