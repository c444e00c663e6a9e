#include "troupe/actors/net/tcp_connection.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <string>
#include <utility>

namespace troupe {
namespace {

constexpr std::size_t iovecs_max = 64;
constexpr std::size_t iovecs_per_frame = 3;
// What one call reads is then checksummed, so it should not be larger than a core's cache.
constexpr std::size_t read_bytes_max = 256 * 1024;
// What is encrypted at a time, before it is written.
constexpr std::size_t encrypt_bytes_max = 128 * 1024;
constexpr std::byte tls_begins{0x16};   // a record of a handshake
constexpr std::byte frame_begins{'T'};  // frame_magic

bool would_block(int number) noexcept { return number == EAGAIN || number == EWOULDBLOCK; }

}  // namespace

struct tcp_connection::gathered {
  std::array<iovec, iovecs_max> pieces;
  std::size_t count = 0;
  std::size_t bytes = 0;
  std::size_t skip = 0;  // bytes of the first frame that are with the kernel already

  void add(const std::byte* data, std::size_t n) noexcept {
    const std::size_t skipped = std::min(skip, n);
    skip -= skipped;
    if (n == skipped) return;
    pieces[count++] = {const_cast<std::byte*>(data) + skipped, n - skipped};
    bytes += n - skipped;
  }
};

std::shared_ptr<tcp_connection> tcp_connection::make(std::shared_ptr<tcp_shared> shared,
                                                     unique_fd fd, bool is_accepted) {
  std::shared_ptr<tcp_connection> c(
      new tcp_connection(std::move(shared), std::move(fd), is_accepted));
  c->shared_->connections.emplace(c.get(), c);
  c->shared_->loop.add(c->fd_.get(), c, false, false);
  return c;
}

tcp_connection::tcp_connection(std::shared_ptr<tcp_shared> shared, unique_fd fd, bool is_accepted)
    : shared_(std::move(shared)),
      fd_(std::move(fd)),
      peer_(peer_of(fd_.get())),
      is_on_loopback_(is_loopback(peer_)),
      is_accepted_(is_accepted),
      is_stranger_(is_accepted),
      number_(++shared_->last_connection) {
  if (is_stranger_) ++shared_->counters.strangers;
  const auto& guard = shared_->guard;
  if (guard.covers(local_address_of(fd_.get()), peer_))
    tls_ = std::make_unique<tls_channel>(guard.context,
                                         is_accepted ? tls_role::acceptor : tls_role::initiator);
  if (is_on_loopback_)
    configure({.send_buffer_bytes = shared_->options.loopback_send_buffer_bytes});
}

tcp_connection::~tcp_connection() { end(); }

// Who may have as many places as he likes: an address, and of IPv6 a network, since a machine there
// has 2^64 of them.
static std::string origin_of(const address& a) {
  in6_addr host6;
  if (inet_pton(AF_INET6, a.host.substr(0, a.host.find('%')).c_str(), &host6) != 1) return a.host;
  return {reinterpret_cast<const char*>(&host6), sizeof host6 / 2};
}

void tcp_connection::turn_one_away(tcp_shared& shared, const address& newcomer) {
  std::map<std::string, std::size_t> places;
  for (const auto& [at, weak] : shared.connections)
    if (at->is_stranger_) ++places[origin_of(at->peer_)];
  const auto own = origin_of(newcomer);
  ++places[own];
  const auto largest = std::ranges::max_element(
      places, {}, [&](const auto& p) { return std::pair(p.second, p.first == own); });
  std::shared_ptr<tcp_connection> victim;
  const auto stays_longer = [](const tcp_connection& c) {
    return std::pair(c.has_spoken_, c.number_);
  };
  // Nobody of it is here where each origin has one place, and the newcomer's would have, too.
  const bool is_newcomer = places.size() > 1 && largest->first == own && largest->second == 1;
  for (const auto& [at, weak] : shared.connections)
    if (at->is_stranger_ && (is_newcomer || origin_of(at->peer_) == largest->first) &&
        (victim == nullptr || stays_longer(*at) < stays_longer(*victim)))
      if (auto c = weak.lock()) victim = std::move(c);
  if (victim != nullptr)
    victim->lost(error(error_code::denied,
                       "it has not authenticated itself, and too many other "
                       "connections wait to"),
                 frame_fault::none);
}

void tcp_connection::start(channel_handler& handler) {
  handler_ = &handler;
  if (early_loss_ != nullptr) {
    shared_->loop.defer([self = shared_from_this()] {
      if (self->early_loss_ != nullptr)
        self->lost(std::move(*std::exchange(self->early_loss_, nullptr)), frame_fault::none);
    });
    return;
  }
  if (state_ != state::open) return;
  if (tls_ && !has_received_) {
    tls_->start();
    if (wants_to_write()) flush_later();
  }
  watch();
}

void tcp_connection::send(outgoing_frame frame) {
  if (state_ != state::open || early_loss_ != nullptr) return;
  expects(frame.length == 0 ||
              (frame.payload && frame.offset + frame.length <= frame.payload.size_bytes()),
          "a frame's payload is outside of its tensor");
  unsent_bytes_ += prelude_bytes + frame.header.size() + frame.length;
  was_above_ = was_above_ || unsent_bytes_ > low_bytes_;
  queue_.push_back({std::move(frame), {}, false, false});
  if (!watches_write_) flush_later();
}

void tcp_connection::on_writable(std::size_t low_bytes, std::function<void()> fn) {
  low_bytes_ = low_bytes;
  writable_ = std::move(fn);
  was_above_ = unsent_bytes_ > low_bytes_;
}

void tcp_connection::trust_peer() {
  decoder_.trust_peer();
  if (tls_) tls_->allow_large_reads();
  no_stranger_any_more();
}

void tcp_connection::configure(const channel_options& options) {
  if (!fd_) return;
  if (options.send_buffer_bytes != 0) {
    const int bytes = static_cast<int>(std::min<std::size_t>(options.send_buffer_bytes, 1u << 30));
    setsockopt(fd_.get(), SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
  }
  if (options.unsent_bytes != 0) {
    const int bytes = static_cast<int>(std::min<std::size_t>(options.unsent_bytes, 1u << 30));
    setsockopt(fd_.get(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &bytes, sizeof bytes);
  }
}

void tcp_connection::read_peer_memory(const peer_memory& m) {
  memory_ = m;
  decoder_.admit_payloads_that_stay();
}

// A connection to an address of our own comes from that address. Where TLS is wanted everywhere,
// nothing goes around it.
bool tcp_connection::is_within_machine() const {
  if (tls_ && shared_->guard.scope == tls_scope::everywhere) return false;
  return is_on_loopback_ || (fd_ && local_address_of(fd_.get()).host == peer_.host);
}

std::vector<std::byte> tcp_connection::binding() const {
  if (!tls_ || !tls_->is_open()) return {};
  const auto b = tls_->binding();
  return {b.begin(), b.end()};
}

void tcp_connection::close() {
  word_.withdraw();  // so what is gathered from now on goes over the socket
  handler_ = nullptr;
  writable_ = nullptr;
  if (state_ == state::closing) return;
  // Before TLS is ready nothing can be said any more.
  if (state_ != state::open || early_loss_ != nullptr || (tls_ && !tls_->is_open())) return end();
  linger();
}

void tcp_connection::linger() {
  state_ = state::closing;
  linger_ = shared_->loop.after(shared_->options.linger_ns, [weak = weak_from_this()] {
    if (auto self = weak.lock()) self->end();
  });
  flush_later();
}

void tcp_connection::abort() {
  handler_ = nullptr;
  writable_ = nullptr;
  end();
}

void tcp_connection::on_ready(bool readable, bool writable) {
  const auto self = shared_from_this();
  if (writable && wants_to_write()) write_some();
  if (!readable || state_ == state::dead) return;
  if (state_ == state::closing) return drain();
  if (handler_ != nullptr) return read_some();
  // Nobody to tell yet, and the descriptor would report its end again and again.
  early_loss_ = std::make_unique<error>(
      error_code::unreachable,
      fmt::format("the connection to {} was closed by the peer", to_string(peer_)));
  shared_->loop.remove(fd_.get());
  no_stranger_any_more();
}

void tcp_connection::read_some() {
  if (goes_on_later_) return;
  read_in_place_bytes_ = 0;
  if (tls_ && !answers_plainly_)
    read_protected();
  else
    read_plain();
}

// 0: nothing is there, or the connection has ended.
std::size_t tcp_connection::read_socket(std::span<iovec> pieces) {
  for (;;) {
    const ssize_t n = ::readv(fd_.get(), pieces.data(), static_cast<int>(pieces.size()));
    if (n > 0) {
      shared_->counters.bytes_received += static_cast<std::size_t>(n);
      return static_cast<std::size_t>(n);
    }
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && would_block(errno)) return 0;
    if (n < 0)
      lost({error_code::unreachable,
            fmt::format("the connection to {} broke: {}", to_string(peer_), system_message(errno))},
           frame_fault::none);
    else
      stream_ended();
    return 0;
  }
}

void tcp_connection::stream_ended() {
  if (answers_plainly_)
    return lost(error(error_code::denied, shared_->guard.why_not_plain()), frame_fault::protection);
  const frame_fault fault = decoder_.finish();
  lost({error_code::unreachable,
        fmt::format("the connection to {} was closed by the peer{}", to_string(peer_),
                    fault == frame_fault::none ? "" : " in the middle of a frame")},
       fault);
}

// Whether these first bytes begin what this connection is to be. False: it has ended, or the other
// end says in plain bytes why it does not go on.
bool tcp_connection::goes_on_after(std::span<const std::byte> first) {
  if (std::exchange(has_received_, true)) return true;
  if (!tls_) {
    if (!is_accepted_ || first.front() != tls_begins) return true;
    refuse_plainly(refusal::protection, shared_->guard.why_not_tls());
    return false;
  }
  if (first.front() != frame_begins) return true;
  if (is_accepted_) {
    refuse_plainly(refusal::protection, shared_->guard.why_not_plain());
    return false;
  }
  answers_plainly_ = true;
  return true;
}

void tcp_connection::read_plain() {
  std::size_t budget = shared_->options.event_bytes_max;
  while (state_ == state::open) {
    const auto space = decoder_.space();
    std::array<iovec, 2> pieces;
    std::size_t count = 0;
    std::size_t asked = 0;
    for (const auto& s : space) {
      const std::size_t n = std::min(s.size(), read_bytes_max - asked);
      if (n == 0) continue;
      pieces[count++] = {s.data(), n};
      asked += n;
    }
    const auto got = read_socket(std::span(pieces).first(count));
    if (got == 0) return;
    if (!has_received_ &&
        !goes_on_after({static_cast<const std::byte*>(pieces[0].iov_base), std::size_t{1}}))
      return;
    decoder_.filled(got);
    if (!handle_events()) return;
    if (got < asked || got >= budget) return;  // drained, or another connection's turn
    budget -= got;
  }
}

void tcp_connection::read_protected() {
  std::size_t budget = shared_->options.event_bytes_max;
  while (state_ == state::open && handler_ != nullptr && decrypt(budget)) {
    const auto room = tls_->wire_space();
    iovec piece{room.data(), room.size()};
    const auto got = read_socket({&piece, 1});
    if (got == 0) break;
    if (!goes_on_after(room.first(got))) return;
    if (answers_plainly_) {
      const auto space = decoder_.space()[1];
      const auto n = std::min(got, space.size());
      std::ranges::copy(room.first(n), space.begin());
      decoder_.filled(n);
      if (handle_events()) read_plain();
      return;
    }
    tls_->wire_filled(got);
  }
  if (state_ == state::open && wants_to_write()) flush_later();
}

// What is here already. True: more has to come from the socket.
bool tcp_connection::decrypt(std::size_t& budget) {
  for (;;) {
    const bool was_open = tls_->is_open();
    std::size_t got = 0;
    for (const auto& s : decoder_.space()) {
      if (s.empty()) continue;
      const auto n = tls_->read(s);
      got += n;
      if (n < s.size()) break;
    }
    if (!was_open && tls_->is_open()) ++shared_->counters.protected_connections;
    if (got == 0) {
      if (tls_->state() == tls_channel::status::failed) return protection_failed(), false;
      if (tls_->state() == tls_channel::status::closed) return stream_ended(), false;
      return true;
    }
    decoder_.filled(got);
    if (!handle_events()) return false;
    if (got >= budget) {  // another connection's turn
      if (tls_->has_input()) go_on_later();
      return false;
    }
    budget -= got;
  }
}

// False when the connection, or the handler's interest in it, has ended.
bool tcp_connection::handle_events() {
  for (;;) {
    switch (decoder_.next()) {
      case frame_decoder::event::need_bytes: return true;
      case frame_decoder::event::header_ready: {
        if (!take_payload()) return false;
        break;
      }
      case frame_decoder::event::frame_complete: {
        const auto& p = decoder_.prelude();
        if (answers_plainly_ && p.kind != frame_kind::refuse) break;
        peer_reads_ = peer_reads_ || (p.flags & flag_reads_memory) != 0;
        has_spoken_ = true;
        handler_->on_frame(
            {p.kind, p.sequence, p.ack, decoder_.header(), decoder_.payload(), p.payload_length});
        if (state_ != state::open) return false;
        if (read_in_place_bytes_ >= shared_->options.event_bytes_max) {
          go_on_later();
          return false;
        }
        break;
      }
      case frame_decoder::event::failed:
        if (answers_plainly_) return stream_ended(), false;
        lost(decoder_.fault_error().while_doing(to_string(peer_)), decoder_.fault());
        return false;
    }
  }
}

// False as handle_events().
bool tcp_connection::take_payload() {
  const auto& p = decoder_.prelude();
  const auto destination =
      handler_->payload_destination(p.kind, decoder_.header(), p.payload_length);
  if (state_ != state::open) return false;
  if (destination.empty()) {
    decoder_.discard();
  } else if (!p.payload_stays()) {
    decoder_.deliver_to(destination);
  } else if (memory_->read(destination, p.payload_address)) {
    shared_->counters.bytes_read_in_place += destination.size();
    read_in_place_bytes_ += destination.size();
    decoder_.read_in_place(destination);
  } else {
    decoder_.unreadable();
    lost({error_code::unreachable, fmt::format("the connection to {} broke: {}", to_string(peer_),
                                               decoder_.fault_error().message())},
         frame_fault::unreadable);
    return false;
  }
  return true;
}

// Other connections' turn, although the socket may have no more to say.
void tcp_connection::go_on_later() {
  goes_on_later_ = true;
  shared_->loop.defer([weak = weak_from_this()] {
    const auto self = weak.lock();
    if (self == nullptr) return;
    self->goes_on_later_ = false;
    self->read_in_place_bytes_ = 0;
    if (self->state_ == state::open && self->handler_ != nullptr && self->handle_events())
      self->read_some();
  });
}

// While closing: what still comes is thrown away, so that the kernel does not answer it with a
// reset, which would destroy our last frames on their way.
void tcp_connection::drain() {
  std::array<std::byte, 64 * 1024> nowhere;
  const ssize_t n = ::read(fd_.get(), nowhere.data(), nowhere.size());
  if (n == 0 || (n < 0 && errno != EINTR && !would_block(errno))) end();
}

void tcp_connection::flush_later() {
  if (std::exchange(flush_is_coming_, true)) return;
  shared_->loop.defer([weak = weak_from_this()] {
    const auto self = weak.lock();
    if (self == nullptr) return;
    self->flush_is_coming_ = false;
    if (self->state_ != state::dead && self->early_loss_ == nullptr) self->write_some();
  });
}

bool tcp_connection::wants_to_write() const noexcept {
  if (!tls_) return !queue_.empty();
  if (answers_plainly_) return false;
  return !tls_->to_wire().empty() || (tls_->is_open() && !queue_.empty());
}

void tcp_connection::write_some() {
  if (tls_)
    write_protected();
  else
    write_frames();
  if (state_ == state::dead) return;
  if (queue_.empty() && state_ == state::closing) finish_sending();
  if (state_ != state::dead) watch();
  if (was_above_ && unsent_bytes_ <= low_bytes_) {
    was_above_ = false;
    if (const auto fn = writable_) fn();
  }
}

void tcp_connection::write_protected() {
  std::size_t budget = shared_->options.event_bytes_max;
  while (wants_to_write() && budget > 0) {
    const auto bytes = tls_->to_wire();
    if (bytes.empty()) {
      encrypt_some();
      if (tls_->state() == tls_channel::status::failed)
        return state_ == state::open ? protection_failed() : end();
      continue;
    }
    const ssize_t n = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) {
      if (errno == EINTR) continue;
      if (would_block(errno)) return;
      return lost({error_code::unreachable, fmt::format("the connection to {} broke: {}",
                                                        to_string(peer_), system_message(errno))},
                  frame_fault::none);
    }
    const auto sent = static_cast<std::size_t>(n);
    shared_->counters.bytes_sent += sent;
    tls_->written(sent);
    if (sent < bytes.size()) return;
    budget -= std::min(budget, sent);
  }
}

// Of the frames in front, as much as is written at a time. Small ones share a record.
void tcp_connection::encrypt_some() {
  std::size_t room = encrypt_bytes_max;
  while (room > 0 && !queue_.empty()) {
    auto& q = queue_.front();
    const auto payload = seal(q);
    std::size_t skip = front_done_;
    std::size_t done = 0;
    for (const std::span<const std::byte> piece :
         {std::span<const std::byte>(q.prelude), std::span<const std::byte>(q.frame.header),
          q.stays ? std::span<const std::byte>{} : payload}) {
      const auto skipped = std::min(skip, piece.size());
      skip -= skipped;
      const auto n = std::min(piece.size() - skipped, room);
      tls_->send(piece.subspan(skipped, n));
      room -= n;
      done += n;
    }
    written(done);
  }
  tls_->flush();
}

void tcp_connection::write_frames() {
  std::size_t budget = shared_->options.event_bytes_max;
  while (!queue_.empty() && budget > 0) {
    gathered g = gather();
    msghdr message{};
    message.msg_iov = g.pieces.data();
    message.msg_iovlen = g.count;
    const ssize_t n = ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) {
      if (errno == EINTR) continue;
      if (would_block(errno)) break;
      return lost({error_code::unreachable, fmt::format("the connection to {} broke: {}",
                                                        to_string(peer_), system_message(errno))},
                  frame_fault::none);
    }
    const auto sent = static_cast<std::size_t>(n);
    shared_->counters.bytes_sent += sent;
    written(sent);
    if (sent < g.bytes) break;
    budget -= std::min(budget, sent);
  }
}

// The frame's prelude, when its time has come; gives the payload.
std::span<const std::byte> tcp_connection::seal(queued& q) {
  const outgoing_frame& f = q.frame;
  const std::span<const std::byte> payload =
      f.length > 0 ? std::as_const(f.payload).bytes().subspan(f.offset, f.length)
                   : std::span<const std::byte>{};
  if (q.is_sealed) return payload;
  q.stays = stays(f);
  if (q.stays) unsent_bytes_ -= f.length;
  q.prelude =
      make_prelude({f.kind, f.sequence, f.ack, memory_.has_value(), q.stays}, f.header, payload,
                   !tls_ && shared_->options.checksum_payloads &&
                       (shared_->options.checksum_on_loopback || !is_on_loopback_));
  q.is_sealed = true;
  return payload;
}

// As many frames as fit into one call and one event. Their checksums are made here: a payload is
// read twice in a row, and the second time it is in the cache.
tcp_connection::gathered tcp_connection::gather() {
  gathered g;
  g.skip = front_done_;
  for (auto& q : queue_) {
    if (g.count + iovecs_per_frame > iovecs_max || g.bytes >= shared_->options.event_bytes_max)
      break;
    const outgoing_frame& f = q.frame;
    const auto payload = seal(q);
    g.add(q.prelude.data(), q.prelude.size());
    g.add(f.header.data(), f.header.size());
    if (!q.stays) g.add(payload.data(), payload.size());
  }
  return g;
}

bool tcp_connection::stays(const outgoing_frame& f) const noexcept {
  const auto& o = shared_->options;
  return payloads_stay() && f.sequence != 0 && f.length != 0 && f.length >= o.stays_bytes_min &&
         !f.payload.is_pinned() && !(o.checksum_payloads && o.checksum_on_loopback);
}

void tcp_connection::written(std::size_t n) {
  unsent_bytes_ -= n;
  front_done_ += n;
  while (!queue_.empty()) {
    const std::size_t size = queue_.front().wire_bytes();
    if (front_done_ < size) break;
    front_done_ -= size;
    queue_.pop_front();
  }
}

void tcp_connection::watch() {
  if (!fd_ || early_loss_ != nullptr) return;
  const bool read = handler_ != nullptr || state_ == state::closing;
  const bool write = wants_to_write() && !flush_is_coming_;
  if (read == watches_read_ && write == watches_write_) return;
  watches_read_ = read;
  watches_write_ = write;
  shared_->loop.change(fd_.get(), read, write);
}

void tcp_connection::finish_sending() {
  if (sending_is_over_) return;
  if (tls_ && !std::exchange(says_goodbye_, true)) {
    tls_->close();
    write_protected();
    if (state_ == state::dead) return;
  }
  if (tls_ && !tls_->to_wire().empty()) return;
  sending_is_over_ = true;
  ::shutdown(fd_.get(), SHUT_WR);
}

void tcp_connection::lost(error why, frame_fault fault) {
  if (fault != frame_fault::none) shared_->faults.count(fault);
  end();
  report(std::move(why), fault);
}

// To a peer that cannot go on with us, since one of us wants TLS and the other one does not, or
// that has not proven itself to ours: what is plain is this one frame.
void tcp_connection::refuse_plainly(refusal why, const std::string& text) {
  if (tls_) {
    queue_.clear();
    front_done_ = unsent_bytes_ = 0;
    tls_.reset();
  }
  send({frame_kind::refuse, 0, 0, encode_refusal(why, text), {}, 0, 0});
  shared_->faults.count(frame_fault::protection);
  word_.withdraw();
  linger();
  say_last_words(error(error_code::denied, text));
}

void tcp_connection::protection_failed() {
  const auto text = tls_->reason();
  if (is_accepted_ && !tls_->has_answered()) return refuse_plainly(tls_->why(), text);
  // OpenSSL has a word for the peer, which has to get there.
  queue_.clear();
  front_done_ = unsent_bytes_ = 0;
  shared_->faults.count(frame_fault::protection);
  word_.withdraw();
  linger();
  const bool is_final = !has_spoken_ && tls_->is_verdict();
  say_last_words(error(is_final ? error_code::denied : error_code::failed, text));
}

// Before the owner hears of it, who may let go of the connection at once.
void tcp_connection::say_last_words(error why) {
  auto* owner = std::exchange(handler_, nullptr);
  writable_ = nullptr;
  write_some();
  if (owner != nullptr) owner->on_closed(why, frame_fault::protection);
}

void tcp_connection::report(error why, frame_fault fault) {
  if (channel_handler* h = std::exchange(handler_, nullptr)) h->on_closed(why, fault);
}

void tcp_connection::no_stranger_any_more() {
  if (std::exchange(is_stranger_, false)) --shared_->counters.strangers;
}

void tcp_connection::end() {
  if (state_ == state::dead) return;
  word_.withdraw();
  state_ = state::dead;
  no_stranger_any_more();
  shared_->connections.erase(this);
  if (linger_ != timer_id{}) shared_->loop.cancel(linger_);
  shared_->loop.remove(fd_.get());
  fd_.reset();
  queue_.clear();
  unsent_bytes_ = 0;
}

}  // namespace troupe
