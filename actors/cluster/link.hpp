#pragma once
// The link to one life of one peer: two connections, what travels on them, and the actor in front
// of it.
//
//   link_actor
//   message       from           effect                                             answer
//   send_tensor   send actors    chunks of a tensor on the data lane                -
//   send_piece    ranks          chunks of a part of a tensor on the data lane      -
//   return_credit receive actors, ranks  credits for the peer's send actor or rank, batched  -
//   send_control  node           a message on the control lane                      -
//   answered      node           the answer to the peer's query                     -
//   bind_job      node           edges of that job end here                         job_bound
//   unbind_job    node           they do not any more; what comes is dropped        -
//   bind_stream   node           a stream to and from the peer begins here          stream_bound to
//                                                                                   `who`
//   send_stream   work           chunks of a value on the data lane                 -, or
//                                                                                   stream_bound
//                                                                                   with an error
//   unbind_stream node           it ends here; what comes is dropped                -
//   end_actor     member         end                                                -
//
// link_core does the work: it is driven by the actor's messages and by the callbacks of the
// transport, all on the I/O worker.
//
// LK-1  What was sent is kept until the peer acknowledged it; lost connections are replaced and
//       resent (runtime/wire/link_session.hpp).
// LK-2  A chunk is read into the tensor it belongs to, and only if it is the next one of its edge:
//       a repeated chunk never touches a tensor that was passed on.
// LK-3  What does not match (generation, job, epoch, edge, shape) is dropped and counted, and harms
//       nothing.
// LK-4  Frames of one round of the I/O worker leave together: a credit never costs a system call of
//       its own.
// LK-5  When credits go out, so does the acknowledgement of what they are for: a sender's tensors
//       are free as early as its credits are.
// LK-6  A connection on which nothing is acknowledged for stall_ns, while the peer is heard, is
//       replaced: something between the two may swallow one connection and leave the other.
// LK-7  A tensor that a process of this machine reads where it lies (actors/net/peer_memory.hpp) is
//       held by its frame, and so not written again (tensor::is_unique), until the frame is
//       acknowledged: also one that is withdrawn, while the connection stands that has told where
//       it is. A connection that ends, and a link that closes, withdraws its word before any tensor
//       goes (PE-3). What the peer has in memory that cannot be read from here after all comes over
//       the wire: the connection is replaced once, and none of the link says anything of reading
//       from then on.
// LK-8  What is copied to a device from here is read into page-locked memory, while there are
//       buffers of it (devices/memory/landing_pool.hpp); what is sent out of such is read from
//       there when it is written to the socket. That is so within a machine, too: drivers map
//       page-locked memory in ways that no other process can read. To read into such is an ordinary
//       copy.
// LK-9  A stream is an edge of its own, without credits, and LK-2, LK-3 and LK-7 hold for it. A
//       value that finds no memory ends the stream here, since what follows can be of no use; who
//       has bound it is told. What was sent of a stream arrives also when it has ended here.
// LK-10 No more credits come back for an edge than items went out on it: more are an error of the
//       link, and no actor sees them.
// Supervision: link_policy. A link that fails is given up at both ends; the member makes a new one,
// after its back-off.
// Ends: when membership says that the peer is dead or has left.
// Threading: the I/O worker.

#include "troupe/actors/messages/node_messages.hpp"
#include "troupe/actors/messages/stream_messages.hpp"
#include "troupe/actors/net/transport.hpp"
#include "troupe/devices/memory/buffer_pool.hpp"
#include "troupe/devices/memory/landing_pool.hpp"
#include "troupe/runtime/insight/actor_record.hpp"
#include "troupe/runtime/supervision/supervision_tree.hpp"
#include "troupe/runtime/trace/trace_ring.hpp"
#include "troupe/runtime/wire/link_session.hpp"

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>

namespace troupe {

// Of all links of a process together: more than that is no accident of one of them, and the member
// fails.
inline constexpr supervision_policy link_policy{.restart = restart_kind::permanent,
                                                .strategy = restart_strategy::one_for_one,
                                                .limits = {.failures_max = 10,
                                                           .window_ns = 60'000'000'000,
                                                           .in_vain_max = 20,
                                                           .delay_ns = 100'000'000,
                                                           .delay_max_ns = 5'000'000'000}};

struct link_hooks {
  std::function<void(node_id)> heard;  // any frame came
  // A control message for the node or the membership.
  std::function<void(node_id, control_message)> control;
  std::function<void(node_id)> lane_lost;  // a connection ended
  // ... since its bytes were none that the peer can have sent: before lane_lost. May be empty.
  std::function<void(node_id, const error&)> damaged;
  std::function<void(node_id, const error&)> broken;  // the link cannot go on (LS-4, LS-5)
  // A tensor of that job was dropped for want of memory.
  std::function<void(job_id, std::string)> no_memory;
};

class link_core {
 public:
  static constexpr std::int64_t stall_ns = 10'000'000'000;

  link_core(transport& net, caf::actor_system& sys, caf::execution_unit* worker, node_id self,
            member_info peer, link_hooks hooks, std::shared_ptr<actor_record> record,
            const planted_bugs* bugs = nullptr, std::shared_ptr<trace_lane> timeline = nullptr);
  ~link_core();
  link_core(const link_core&) = delete;
  link_core& operator=(const link_core&) = delete;

  const member_info& peer() const noexcept { return peer_; }
  link_session& session() noexcept { return session_; }
  const std::shared_ptr<actor_record>& record() const noexcept { return record_; }

  // A proven connection for `l`; the peer has received up to `peer_received` of what we sent on it.
  // `memory`: the peer's, if it can be read from here; `word`: what the peer was told to look at
  // before it reads ours.
  void attach(lane l, std::unique_ptr<channel> connection, std::uint64_t peer_received,
              const std::optional<peer_memory>& memory = {}, own_probe word = {});
  void send(control_message body);                    // numbered, resent if need be
  void send_unnumbered(const control_message& body);  // now or never: heartbeats, fences
  void send(send_tensor m);
  void send(send_piece m);
  void give_back(const return_credit& m);
  void bind(bind_job m);
  void unbind(job_id job);
  // `self`: the actor in front, for stream_bound.
  void bind(bind_stream m, caf::actor self);
  void end_stream(job_id job);
  void send(send_stream m);
  void on_tick();  // acknowledgements that are due, connections that stall
  void close();

 private:
  struct lane_io final : channel_handler {
    std::span<std::byte> payload_destination(frame_kind kind, std::span<const std::byte> header,
                                             std::uint32_t payload_length) override;
    void on_frame(const received_frame& frame) override;
    void on_closed(const error& why, frame_fault fault) override;

    link_core* owner = nullptr;
    lane which = lane::control;
    std::unique_ptr<channel> connection;
    std::uint64_t acknowledged = 0;  // what the peer had at the last tick
    std::int64_t progress_ns = 0;    // when it had more, or everything
  };
  // The tensor of an edge or a stream that is being read.
  struct incoming {
    std::uint64_t sequence = 0;  // its
    std::uint64_t offset = 0;    // what has arrived of it
    tensor value;
  };
  // An edge whose consumer is here.
  struct incoming_edge {
    port_actor receiver;
    std::uint32_t port = 0;                 // its
    std::shared_ptr<piece_desk> desk;       // of a rank
    std::shared_ptr<landing_pool> landing;  // of what is copied to a device
    tensor_spec bound;
    buffer_pool pool;
    incoming now{};
  };
  struct bound_stream {
    caf::actor who;
    std::uint64_t sent = 0;  // values
    incoming now{};
  };
  struct bound_job {
    std::uint32_t epoch = 0;
    std::uint32_t part = 0;
    std::shared_ptr<const plan> job_plan;
    std::map<std::uint32_t, incoming_edge> incoming;
    struct sender {
      port_actor actor;
      std::uint32_t outlet = 0;  // of its, which leads here
      std::uint64_t out = 0;     // sent, and no credit has come back for it: LK-10
    };
    std::map<std::uint32_t, sender> senders;  // send actors and ranks, by edge
  };
  static void count_sent(bound_job& job, std::uint32_t edge) {
    if (const auto at = job.senders.find(edge); at != job.senders.end()) ++at->second.out;
  }
  // A tensor on its way, for the timeline that is being recorded.
  struct traced_transfer {
    std::uint64_t sequence = 0;  // of its last frame
    std::int64_t begin_ns = 0;
    std::uint64_t subject = 0, step = 0, bytes = 0;
  };
  struct current_chunk {
    incoming* into = nullptr;       // null: discard
    incoming_edge* edge = nullptr;  // whose that is; null: a stream's
    chunk_header header;
    tensor orphan;  // what a connection still writes into, of a job that ended meanwhile
  };

  void on_chunk(const received_frame& frame);
  void on_control(const received_frame& frame);
  // Leads chunk_ to what wants exactly this chunk next, with memory for it; to nothing: dropped and
  // counted.
  void take_chunk(const chunk_header& h, std::uint32_t payload_length);
  // The same where a job or a stream has that id; or why it is dropped.
  std::optional<drop_reason> take_of_job(const chunk_header& h, std::uint32_t payload_length);
  std::optional<drop_reason> take_of_stream(bound_stream& s, const chunk_header& h,
                                            std::uint32_t payload_length);
  // Likewise, and who has bound it is told why.
  void fail_stream(job_id job, std::string why);
  void forget_chunk(job_id job);
  void grant(const credit_batch& batch);
  void schedule_flush();
  void flush();
  void send_ack(lane l);
  void pump(lane l);
  void trace_sent(const bound_job& job, std::uint32_t edge, std::uint64_t step,
                  std::uint64_t bytes);
  void trace_acknowledged();
  void on_lane_closed(lane l);
  bool is_stalled(lane l, std::int64_t now);

  transport& net_;
  caf::actor_system& system_;
  caf::execution_unit* worker_;
  member_info peer_;
  link_hooks hooks_;
  std::shared_ptr<actor_record> record_;
  link_session session_;
  std::array<lane_io, lane_count> lanes_;
  std::map<job_id, bound_job> jobs_;
  std::map<job_id, bound_stream> streams_;
  current_chunk chunk_;
  bool is_flush_due_ = false;
  bool reads_failed_ = false;  // LK-7
  std::deque<traced_transfer> traced_;
  std::shared_ptr<trace_lane> trace_;  // of this worker; null: nobody records
  const planted_bugs* bugs_;           // tests only
  std::uint32_t credits_seen_ = 0;
  std::shared_ptr<bool> is_alive_;  // for the flush that may come after our end
};

// The actor in front of `core`, on the worker of the transport's loop.
caf::actor spawn_link(caf::actor_system& sys, caf::execution_unit* worker,
                      std::shared_ptr<link_core> core);

}  // namespace troupe
