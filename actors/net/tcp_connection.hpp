#pragma once
// One TCP connection of a tcp_transport: a queue of frames out, a decoder of frames in. The channel
// that its owner holds is a handle (tcp_channel), so that a connection can finish its last writes,
// or its current callback, after the owner let go.
//
// A payload stays where it is if the peer has said that it reads here (a flag of its frames), we
// have told it where (let_peer_read), checksums are not asked for on loopback too, and it is large
// and in ordinary memory; a frame that is not numbered is never acknowledged, so its payload never
// stays. When the frame is with the kernel, this holds its tensor no longer: who sent it does
// (TR-4). The word is withdrawn as the first thing when the connection ends, in whatever way.
//
// A protected connection has a tls_channel between its socket and its frames: what is to be sent
// waits until the handshake of TLS is done. A peer that begins without TLS, or with it where it is
// not wanted, is told why in one plain frame `refuse`, and lost. Frames carry no checksums then,
// since every record has a better one.
//
// Threading: the io_loop's. Invariants TR-1..TR-7 of actors/net/transport.hpp.

#include "troupe/actors/net/io_loop.hpp"
#include "troupe/actors/net/tcp_socket.hpp"
#include "troupe/actors/net/tcp_transport.hpp"
#include "troupe/actors/net/tls_channel.hpp"

#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>

namespace troupe {

class tcp_connection;

// What all connections of one transport share.
struct tcp_shared {
  tcp_shared(io_loop& l, const tcp_options& o) : loop(l), options(o) {}

  io_loop& loop;
  tcp_options options;
  protection guard;
  tcp_counters counters;
  fault_counters faults;
  std::unordered_map<tcp_connection*, std::weak_ptr<tcp_connection>> connections;
  std::uint64_t last_connection = 0;
};

class tcp_connection final : public io_loop::fd_handler,
                             public std::enable_shared_from_this<tcp_connection> {
 public:
  // `is_accepted`: it counts as a stranger until trust_peer().
  static std::shared_ptr<tcp_connection> make(std::shared_ptr<tcp_shared> shared, unique_fd fd,
                                              bool is_accepted);
  ~tcp_connection() override;
  // Makes room for a stranger from `newcomer`: of the origin that has most places, or as many as
  // `newcomer` with its own, the one that has been here longest goes, a silent one first.
  static void turn_one_away(tcp_shared& shared, const address& newcomer);

  void start(channel_handler& handler);
  void send(outgoing_frame frame);
  std::size_t unsent_bytes() const noexcept { return unsent_bytes_; }
  void on_writable(std::size_t low_bytes, std::function<void()> fn);
  void trust_peer();
  void configure(const channel_options& options);
  void read_peer_memory(const peer_memory& m);
  void let_peer_read(own_probe word) { word_ = std::move(word); }
  bool payloads_stay() const noexcept { return peer_reads_ && word_; }
  bool payloads_may_stay() const noexcept { return static_cast<bool>(word_); }
  bool is_within_machine() const;
  std::vector<std::byte> binding() const;
  void close();
  void abort();
  const address& peer_address() const noexcept { return peer_; }
  address local_address() const { return fd_ ? local_address_of(fd_.get()) : address{}; }

  void on_ready(bool readable, bool writable) override;

 private:
  enum class state : std::uint8_t { open, closing, dead };
  struct queued {
    outgoing_frame frame;
    std::array<std::byte, prelude_bytes> prelude;
    bool is_sealed = false;
    bool stays = false;  // the payload

    std::size_t wire_bytes() const noexcept {
      return prelude_bytes + frame.header.size() + (stays ? 0 : frame.length);
    }
  };
  struct gathered;

  tcp_connection(std::shared_ptr<tcp_shared> shared, unique_fd fd, bool is_accepted);
  void read_some();
  void read_plain();
  std::size_t read_socket(std::span<iovec> pieces);
  void read_protected();
  bool decrypt(std::size_t& budget);
  bool goes_on_after(std::span<const std::byte> first);
  void stream_ended();
  bool handle_events();
  bool take_payload();
  bool stays(const outgoing_frame& f) const noexcept;
  void go_on_later();
  void drain();
  void write_some();
  void write_frames();
  void write_protected();
  void encrypt_some();
  bool wants_to_write() const noexcept;
  std::span<const std::byte> seal(queued& q);
  gathered gather();
  void written(std::size_t n);
  void flush_later();
  void watch();
  void finish_sending();
  void lost(error why, frame_fault fault);
  void refuse_plainly(refusal why, const std::string& text);
  void protection_failed();
  void say_last_words(error why);
  void linger();
  void report(error why, frame_fault fault);
  void no_stranger_any_more();
  void end();

  std::shared_ptr<tcp_shared> shared_;
  unique_fd fd_;
  address peer_;
  bool is_on_loopback_ = false;
  const bool is_accepted_;
  std::unique_ptr<tls_channel> tls_;  // null: not protected
  bool answers_plainly_ = false;      // the acceptor does, where it was to be protected
  bool has_received_ = false;
  channel_handler* handler_ = nullptr;
  frame_decoder decoder_;
  std::optional<peer_memory> memory_;    // of the peer, if it can be read
  own_probe word_;                       // what it looks at here
  bool peer_reads_ = false;              // and it does
  std::size_t read_in_place_bytes_ = 0;  // in this event
  bool goes_on_later_ = false;           // frames are here that are the next event's
  std::deque<queued> queue_;
  std::size_t front_done_ = 0;  // bytes of queue_.front() that are with the kernel
  std::size_t unsent_bytes_ = 0;
  std::size_t low_bytes_ = 0;
  std::function<void()> writable_;
  bool was_above_ = false;
  std::unique_ptr<error> early_loss_;  // broken before start()
  timer_id linger_{};
  state state_ = state::open;
  bool is_stranger_ = false;
  bool has_spoken_ = false;   // a whole frame has come
  std::uint64_t number_ = 0;  // in the order in which connections were made
  bool flush_is_coming_ = false;
  bool says_goodbye_ = false;  // over TLS
  bool sending_is_over_ = false;
  bool watches_read_ = false;
  bool watches_write_ = false;
};

class tcp_channel final : public channel {
 public:
  explicit tcp_channel(std::shared_ptr<tcp_connection> c) : connection_(std::move(c)) {}
  ~tcp_channel() override {
    if (!closed_) connection_->abort();
  }

  void start(channel_handler& handler) override { connection_->start(handler); }
  void send(outgoing_frame frame) override { connection_->send(std::move(frame)); }
  std::size_t unsent_bytes() const override { return connection_->unsent_bytes(); }
  void on_writable(std::size_t low_bytes, std::function<void()> fn) override {
    connection_->on_writable(low_bytes, std::move(fn));
  }
  void trust_peer() override { connection_->trust_peer(); }
  void configure(const channel_options& options) override { connection_->configure(options); }
  void read_peer_memory(const peer_memory& m) override { connection_->read_peer_memory(m); }
  void let_peer_read(own_probe word) override { connection_->let_peer_read(std::move(word)); }
  bool payloads_may_stay() const override { return connection_->payloads_may_stay(); }
  std::vector<std::byte> binding() const override { return connection_->binding(); }
  bool is_within_machine() const override { return connection_->is_within_machine(); }
  void close() override {
    closed_ = true;
    connection_->close();
  }
  void abort() override { connection_->abort(); }
  const address& peer_address() const override { return connection_->peer_address(); }
  address local_address() const override { return connection_->local_address(); }

 private:
  std::shared_ptr<tcp_connection> connection_;
  bool closed_ = false;
};

}  // namespace troupe
