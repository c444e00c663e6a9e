#include "troupe/actors/cluster/link.hpp"

#include "troupe/actors/base/failing.hpp"
#include "troupe/actors/base/scheduler.hpp"
#include "troupe/actors/base/tell.hpp"
#include "troupe/runtime/text/byte_size.hpp"

#include <caf/actor_system.hpp>
#include <caf/event_based_actor.hpp>
#include <caf/stateful_actor.hpp>
#include <fmt/format.h>

namespace troupe {

namespace {

bool is_stream_value(const tensor_spec& spec) {
  return spec.type == dtype::u8 && spec.shape.rank() == 1 && spec.size_bytes() > 0 &&
         spec.size_bytes() <= stream_value_bytes_max;
}

std::string no_memory_for(const tensor_spec& spec, const member_info& from) {
  return fmt::format("this node has no memory for a tensor of {} ({}) from {}", to_string(spec),
                     format_bytes(spec.size_bytes()), from.name);
}

}  // namespace

link_core::link_core(transport& net, caf::actor_system& sys, caf::execution_unit* worker,
                     node_id self, member_info peer, link_hooks hooks,
                     std::shared_ptr<actor_record> record, const planted_bugs* bugs,
                     std::shared_ptr<trace_lane> timeline)
    : net_(net),
      system_(sys),
      worker_(worker),
      peer_(std::move(peer)),
      hooks_(std::move(hooks)),
      record_(std::move(record)),
      session_(self, peer_.id, {}, bugs),
      trace_(std::move(timeline)),
      bugs_(bugs),
      is_alive_(std::make_shared<bool>(true)) {
  for (std::size_t i = 0; i < lane_count; ++i) {
    lanes_[i].owner = this;
    lanes_[i].which = static_cast<lane>(i);
  }
}

link_core::~link_core() { close(); }

void link_core::attach(lane l, std::unique_ptr<channel> connection, std::uint64_t peer_received,
                       const std::optional<peer_memory>& memory, own_probe word) {
  auto& io = lanes_[static_cast<std::size_t>(l)];
  io.connection = std::move(connection);
  io.progress_ns = 0;
  if (l == lane::data && word) io.connection->let_peer_read(std::move(word));
  if (l == lane::data && memory && !reads_failed_) io.connection->read_peer_memory(*memory);
  io.connection->start(io);
  if (auto connected = session_.connected(l, peer_received); !connected)
    return hooks_.broken(peer_.id, connected.error());
  pump(l);
}

void link_core::send(control_message body) {
  record_->count_out(0);
  if (auto sent = session_.send(lane::control, frame_kind::control, encode(body)); !sent) {
    if (!session_.is_closed()) hooks_.broken(peer_.id, sent.error());
    return;
  }
  schedule_flush();
}

void link_core::send_unnumbered(const control_message& body) {
  auto& io = lanes_[0];
  if (session_.state(lane::control) != lane_state::up || !io.connection) return;
  io.connection->send(
      {frame_kind::control, 0, session_.take_ack(lane::control), encode(body), {}, 0, 0});
}

void link_core::send(send_tensor m) {
  auto at = jobs_.find(m.job);
  if (at == jobs_.end()) return session_.count_drop(drop_reason::unknown_job);
  chunk_header h{m.job,
                 at->second.epoch,
                 m.edge,
                 session_.self(),
                 session_.peer(),
                 m.t,
                 m.sequence,
                 m.value ? m.value.spec() : tensor_spec{dtype::u8, {0}},
                 0};
  const auto bytes = m.value ? m.value.size_bytes() : 0;
  count_sent(at->second, m.edge);
  record_->count_out(bytes);
  for_each_chunk(bytes, [&](chunk_part part) {
    h.offset = part.offset;
    // On a closed link nobody waits for it any more.
    (void)session_.send(lane::data, frame_kind::chunk, encode(h), m.value, part);
  });
  if (trace_ != nullptr && trace_->is_on()) trace_sent(at->second, m.edge, m.t.step, bytes);
  schedule_flush();
}

void link_core::send(send_piece m) {
  auto at = jobs_.find(m.job);
  if (at == jobs_.end()) return session_.count_drop(drop_reason::unknown_job);
  const dim length{static_cast<std::int64_t>(m.length_bytes), 0};
  chunk_header h{m.job,
                 at->second.epoch,
                 m.edge,
                 session_.self(),
                 session_.peer(),
                 m.t,
                 m.sequence,
                 {dtype::u8, *shape::from({&length, 1})},
                 0,
                 m.part};
  count_sent(at->second, m.edge);
  record_->count_out(m.length_bytes);
  for_each_chunk(m.length_bytes, [&](chunk_part part) {
    h.offset = part.offset;
    (void)session_.send(lane::data, frame_kind::chunk, encode(h), m.value,
                        {m.offset_bytes + part.offset, part.length});
  });
  if (trace_ != nullptr && trace_->is_on())
    trace_sent(at->second, m.edge, m.t.step, m.length_bytes);
  schedule_flush();
}

void link_core::send(send_stream m) {
  auto at = streams_.find(m.job);
  if (at == streams_.end()) return session_.count_drop(drop_reason::unknown_job);
  if (!m.value || !is_stream_value(m.value.spec()))
    return fail_stream(
        m.job, fmt::format("what is sent on a stream is u8[n], of 1 byte to 2 GiB, and not {}",
                           m.value ? to_string(m.value.spec()) : "nothing"));
  chunk_header h;
  h.job = m.job;
  h.sender = session_.self();
  h.receiver = session_.peer();
  h.sequence = at->second.sent++;
  h.spec = m.value.spec();
  record_->count_out(m.value.size_bytes());
  for_each_chunk(m.value.size_bytes(), [&](chunk_part part) {
    h.offset = part.offset;
    (void)session_.send(lane::data, frame_kind::chunk, encode(h), m.value, part);
  });
  schedule_flush();
}

void link_core::trace_sent(const bound_job& job, std::uint32_t edge, std::uint64_t step,
                           std::uint64_t bytes) {
  const auto sender = job.job_plan->edges[edge].from.actor;
  const auto last =
      session_.acknowledged_frames(lane::data) + session_.unacknowledged_frames(lane::data);
  traced_.push_back(
      {last, trace_->now_ns(), std::uint64_t{job.part} << 32 | (sender + 1), step, bytes});
}

void link_core::trace_acknowledged() {
  for (; !traced_.empty() && traced_.front().sequence <= session_.acknowledged_frames(lane::data);
       traced_.pop_front())
    trace_->transfer(traced_.front().begin_ns, traced_.front().subject, traced_.front().step,
                     traced_.front().bytes);
}

void link_core::give_back(const return_credit& m) {
  auto at = jobs_.find(m.job);
  if (at == jobs_.end()) return;
  if (bugs_ != nullptr && bugs_->forgets_credits && ++credits_seen_ % 8 == 0) return;
  session_.return_credit(m.job, at->second.epoch, m.edge, m.count);
  schedule_flush();
}

void link_core::bind(bind_job m) {
  bound_job b;
  b.epoch = m.epoch;
  b.part = m.part;
  b.job_plan = m.job_plan;
  const auto& p = *m.job_plan;
  for (std::uint32_t e = 0; e < p.edges.size(); ++e) {
    const auto& edge = p.edges[e];
    if (p.actors[edge.from.actor].task == p.actors[edge.to.actor].task) continue;
    const auto& receiver = m.handles->actors[edge.to.actor];
    const auto& sender = m.handles->actors[edge.from.actor];
    if (receiver && p.tasks[p.actors[edge.from.actor].task].node == peer_.id) {
      const auto desk = m.handles->desks.find(edge.to.actor);
      const auto landing = m.handles->landings.find({edge.to.actor, 0});
      b.incoming.emplace(
          e, incoming_edge{receiver, edge.to.port,
                           desk != m.handles->desks.end() ? desk->second : nullptr,
                           landing != m.handles->landings.end() ? landing->second : nullptr,
                           edge.spec, buffer_pool(edge.spec.size_bytes(), 2 * edge.credits + 1)});
    }
    if (sender && p.tasks[p.actors[edge.to.actor].task].node == peer_.id) {
      std::uint32_t outlet = 0;
      for (std::uint32_t port = 0; port < edge.from.port; ++port)
        outlet += static_cast<std::uint32_t>(p.actors[edge.from.actor].outputs[port].size());
      b.senders.emplace(e, bound_job::sender{sender, outlet});
    }
  }
  forget_chunk(m.job);
  // What earlier epochs sent has no taker any more, and epochs may follow each other faster than
  // acknowledgements come.
  const auto& data = lanes_[static_cast<std::size_t>(lane::data)].connection;
  const auto is_over = [&](std::span<const std::byte> header) {
    const auto h = decode_chunk(header);
    return h && h->job == m.job && h->epoch < m.epoch;
  };
  session_.withdraw(lane::data, is_over, data && data->payloads_may_stay());
  jobs_.insert_or_assign(m.job, std::move(b));
}

void link_core::unbind(job_id job) {
  forget_chunk(job);
  jobs_.erase(job);
}

void link_core::bind(bind_stream m, caf::actor self) {
  auto& s = streams_[m.job];
  s.who = std::move(m.who);
  tell(worker_, s.who, stream_bound{peer_.id, std::move(self), {}});
}

void link_core::end_stream(job_id job) {
  forget_chunk(job);
  streams_.erase(job);
}

void link_core::fail_stream(job_id job, std::string why) {
  const auto who = streams_.at(job).who;
  end_stream(job);
  tell(worker_, who, stream_bound{peer_.id, nullptr, std::move(why)});
}

// A chunk of the job or stream may be half read: what it is of goes, while its memory has to stay
// until the connection has read the rest.
void link_core::forget_chunk(job_id job) {
  if (chunk_.into == nullptr || chunk_.header.job != job) return;
  chunk_.orphan = std::move(chunk_.into->value);
  chunk_.into = nullptr;
}

void link_core::on_tick() {
  const auto now = net_.now_ns();
  for (auto l : {lane::control, lane::data}) {
    auto& io = lanes_[static_cast<std::size_t>(l)];
    if (io.connection && session_.ack_due(l, now)) send_ack(l);
    if (io.connection && is_stalled(l, now)) on_lane_closed(l);
  }
}

// LK-6.
bool link_core::is_stalled(lane l, std::int64_t now) {
  auto& io = lanes_[static_cast<std::size_t>(l)];
  const auto has = session_.acknowledged_frames(l);
  if (session_.unacknowledged_frames(l) == 0 || has != io.acknowledged || io.progress_ns == 0)
    io.progress_ns = now;
  io.acknowledged = has;
  return now - io.progress_ns > stall_ns;
}

// An empty frame that carries the ack only.
void link_core::send_ack(lane l) {
  lanes_[static_cast<std::size_t>(l)].connection->send(
      {frame_kind::control, 0, session_.take_ack(l), {}, {}, 0, 0});
}

void link_core::close() {
  if (!*is_alive_) return;
  *is_alive_ = false;
  for (auto& io : lanes_)  // before their tensors go (LK-7)
    if (io.connection) {
      io.connection->close();
      io.connection.reset();
    }
  session_.close();
  chunk_ = {};  // what it leads to goes
  jobs_.clear();
  streams_.clear();
  traced_.clear();
}

// --- what arrives --------------------------------------------------------------------------------

std::span<std::byte> link_core::lane_io::payload_destination(frame_kind kind,
                                                             std::span<const std::byte> header,
                                                             std::uint32_t payload_length) {
  if (kind != frame_kind::chunk || which != lane::data) return {};
  auto& c = owner->chunk_;
  c.into = nullptr;  // also where the header is none
  c.orphan = tensor();
  auto h = decode_chunk(header);
  if (!h) {
    owner->session_.count_drop(drop_reason::unknown_edge);
    return {};
  }
  c.header = *h;
  owner->take_chunk(*h, payload_length);
  if (c.into == nullptr) return {};
  return c.into->value.bytes().subspan(h->offset, payload_length);
}

void link_core::lane_io::on_frame(const received_frame& frame) {
  auto& link = *owner;
  auto alive = link.is_alive_;  // a hook may end the link
  link.hooks_.heard(link.peer_.id);
  if (!*alive) return;
  if (auto acked = link.session_.acknowledged(which, frame.ack); !acked)
    return link.hooks_.broken(link.peer_.id, acked.error());
  if (!link.traced_.empty()) link.trace_acknowledged();
  const auto bytes = prelude_bytes + frame.header.size() + frame.payload_length;
  switch (link.session_.arrived(which, frame.sequence, bytes, link.net_.now_ns())) {
    case link_session::arrival::drop:
      if (which == lane::data) link.chunk_.into = nullptr;
      return;
    case link_session::arrival::close: link.on_lane_closed(which); return;
    case link_session::arrival::deliver: break;
  }
  if (frame.header.empty()) return;
  if (frame.kind == frame_kind::chunk && which == lane::data)
    link.on_chunk(frame);
  else if (frame.kind == frame_kind::control)
    link.on_control(frame);
}

void link_core::lane_io::on_closed(const error& why, frame_fault fault) {
  const bool is_damaged = fault != frame_fault::none && fault != frame_fault::truncated &&
                          fault != frame_fault::unreadable;
  if (is_damaged && owner->hooks_.damaged) owner->hooks_.damaged(owner->peer_.id, why);
  owner->reads_failed_ = owner->reads_failed_ || fault == frame_fault::unreadable;
  owner->on_lane_closed(which);
}

void link_core::on_lane_closed(lane l) {
  session_.lost(l, net_.now_ns());
  auto gone = std::move(lanes_[static_cast<std::size_t>(l)].connection);
  hooks_.lane_lost(peer_.id);
}

void link_core::on_control(const received_frame& frame) {
  auto m = decode_control(frame.header);
  if (!m) return session_.count_drop(drop_reason::unknown_job);
  record_->count_in(0);
  if (auto* credits = std::get_if<credit_batch>(&*m)) return grant(*credits);
  hooks_.control(peer_.id, std::move(*m));
}

void link_core::grant(const credit_batch& batch) {
  for (const auto& c : batch.credits) {
    auto job = jobs_.find(c.job);
    if (job == jobs_.end()) {
      session_.count_drop(drop_reason::unknown_job);
      continue;
    }
    auto sender = job->second.senders.find(c.edge);
    if (job->second.epoch != c.epoch && (bugs_ == nullptr || !bugs_->admits_other_epochs))
      session_.count_drop(drop_reason::other_epoch);
    else if (sender == job->second.senders.end())
      session_.count_drop(drop_reason::unknown_edge);
    else if (auto& out = sender->second.out; c.count <= out) {
      out -= c.count;
      tell(worker_, sender->second.actor, credit{sender->second.outlet, c.count});
    } else if (bugs_ == nullptr || !bugs_->admits_other_epochs) {  // LK-10
      return hooks_.broken(
          peer_.id, error(error_code::failed,
                          fmt::format("{} gives {} credits back for edge {} of job {:016x}, where "
                                      "{} are out",
                                      peer_.name, c.count, c.edge, raw(c.job), out)));
    }
  }
}

void link_core::take_chunk(const chunk_header& h, std::uint32_t payload_length) {
  chunk_.into = nullptr;
  if (!session_.admits(h.sender, h.receiver) && (bugs_ == nullptr || !bugs_->admits_other_lives))
    return;
  auto stream = streams_.find(h.job);
  const auto dropped = stream != streams_.end() ? take_of_stream(stream->second, h, payload_length)
                                                : take_of_job(h, payload_length);
  if (dropped) session_.count_drop(*dropped);
}

std::optional<drop_reason> link_core::take_of_job(const chunk_header& h,
                                                  std::uint32_t payload_length) {
  auto job = jobs_.find(h.job);
  if (job == jobs_.end()) return drop_reason::unknown_job;
  if (job->second.epoch != h.epoch && (bugs_ == nullptr || !bugs_->admits_other_epochs))
    return drop_reason::other_epoch;
  auto at = job->second.incoming.find(h.edge);
  if (at == job->second.incoming.end()) return drop_reason::unknown_edge;
  auto& edge = at->second;
  auto& now = edge.now;
  if (h.sequence != now.sequence || h.offset > now.offset) return drop_reason::duplicate;
  if (h.t.dead != 0) {  // a dead token has no tensor
    if (h.offset != 0 || payload_length != 0) return drop_reason::unknown_edge;
    now.value = tensor();
    chunk_.into = &now, chunk_.edge = &edge;
    return {};
  }
  if (h.spec.type != edge.bound.type || !edge.bound.shape.admits(h.spec.shape))
    return drop_reason::unknown_edge;
  if (h.offset + payload_length > h.spec.size_bytes()) return drop_reason::unknown_edge;
  if (h.offset < now.offset) return drop_reason::duplicate;
  if (h.offset == 0) {
    try {
      now.value = edge.desk && edge.desk->destination
                      ? edge.desk->destination(edge.port, h.t.step, h.part)
                  : edge.landing ? edge.landing->take(h.spec)
                                 : tensor();
      if (!now.value || now.value.spec() != h.spec) now.value = edge.pool.take(h.spec);
    } catch (const std::bad_alloc&) {
      hooks_.no_memory(h.job, no_memory_for(h.spec, peer_));
      return drop_reason::unknown_edge;
    }
  }
  if (now.value.spec() != h.spec) return drop_reason::unknown_edge;
  chunk_.into = &now, chunk_.edge = &edge;
  return {};
}

std::optional<drop_reason> link_core::take_of_stream(bound_stream& s, const chunk_header& h,
                                                     std::uint32_t payload_length) {
  if (h.epoch != 0) return drop_reason::other_epoch;
  if (h.edge != 0 || !is_stream_value(h.spec) || payload_length == 0 ||
      h.offset + payload_length > h.spec.size_bytes())
    return drop_reason::unknown_edge;
  auto& now = s.now;
  if (h.sequence != now.sequence || h.offset != now.offset) return drop_reason::duplicate;
  if (h.offset == 0) {
    try {
      now.value = tensor::make(h.spec);
    } catch (const std::bad_alloc&) {
      fail_stream(h.job, no_memory_for(h.spec, peer_));
      return drop_reason::unknown_edge;
    }
  }
  if (now.value.spec() != h.spec) return drop_reason::unknown_edge;
  chunk_.into = &now, chunk_.edge = nullptr;
  return {};
}

void link_core::on_chunk(const received_frame& frame) {
  expects(bugs_ == nullptr || !bugs_->breaks_in_callbacks || frame.sequence % 16 != 0,
          "it was planted at every sixteenth chunk");
  if (frame.payload_length == 0) {  // an empty tensor: nobody asked where its bytes go
    auto h = decode_chunk(frame.header);
    if (!h) return session_.count_drop(drop_reason::unknown_edge);
    chunk_.header = *h;
    take_chunk(*h, 0);
  }
  auto* into = std::exchange(chunk_.into, nullptr);
  if (into == nullptr) return;
  into->offset += frame.payload_length;
  if (into->offset < chunk_.header.spec.size_bytes()) return;
  record_->count_in(into->offset);
  ++into->sequence;
  into->offset = 0;
  if (chunk_.edge != nullptr)
    tell(worker_, chunk_.edge->receiver,
         tensor_ready{chunk_.edge->port, chunk_.header.part, chunk_.header.t,
                      std::move(into->value)});
  else
    tell(worker_, streams_.at(chunk_.header.job).who,
         stream_value{peer_.id, std::move(into->value)});
}

// --- what leaves ---------------------------------------------------------------------------------

void link_core::schedule_flush() {
  if (std::exchange(is_flush_due_, true)) return;
  net_.after(0, [this, alive = is_alive_] {
    if (*alive) flush();
  });
}

void link_core::flush() {
  is_flush_due_ = false;
  const bool gives_credits = session_.has_credits();
  if (gives_credits) {
    if (auto sent = session_.send(lane::control, frame_kind::control,
                                  encode(control_message(credit_batch{session_.take_credits()})));
        !sent)
      return hooks_.broken(peer_.id, sent.error());
  }
  pump(lane::control);
  pump(lane::data);
  // Data that went the other way took the acknowledgement along.
  if (gives_credits && session_.owes_ack(lane::data) &&
      lanes_[static_cast<std::size_t>(lane::data)].connection)
    send_ack(lane::data);
}

void link_core::pump(lane l) {
  auto& io = lanes_[static_cast<std::size_t>(l)];
  while (io.connection) {
    const auto* f = session_.next_to_write(l);
    if (f == nullptr) return;
    io.connection->send(
        {f->kind, f->sequence, session_.take_ack(l), f->header, f->payload, f->offset, f->length});
  }
}

// --- the actor -----------------------------------------------------------------------------------

namespace {

struct link_actor_state {
  static inline const char* name = "link";
  std::shared_ptr<link_core> core;
};

caf::behavior link_actor(caf::stateful_actor<link_actor_state>* self,
                         std::shared_ptr<link_core> core) {
  self->state.core = std::move(core);
  self->set_exception_handler(&reason_of);
  auto& s = self->state;
  return {
      [&s](send_tensor& m) {
        after_message();  // what does not fit a socket is written later, outside of CAF
        s.core->send(std::move(m));
      },
      [&s](send_piece& m) {
        after_message();
        s.core->send(std::move(m));
      },
      [&s](const return_credit& m) { s.core->give_back(m); },
      [&s](send_control& m) { s.core->send(std::move(m.body)); },
      [&s](answered& m) { s.core->send(control_message(answer{m.id, std::move(m.json)})); },
      [self, &s](bind_job& m) {
        const auto job = m.job;
        const auto node = m.node;
        s.core->bind(std::move(m));
        tell(self->context(), node, job_bound{job});
      },
      [&s](const unbind_job& m) { s.core->unbind(m.job); },
      [self, &s](bind_stream& m) { s.core->bind(std::move(m), caf::actor_cast<caf::actor>(self)); },
      [&s](send_stream& m) {
        after_message();
        s.core->send(std::move(m));
      },
      [&s](const unbind_stream& m) { s.core->end_stream(m.job); },
      [self](end_actor) { self->quit(); },
  };
}

}  // namespace

caf::actor spawn_link(caf::actor_system& sys, caf::execution_unit* worker,
                      std::shared_ptr<link_core> core) {
  return spawn_on(sys, worker, &link_actor, std::move(core));
}

}  // namespace troupe
