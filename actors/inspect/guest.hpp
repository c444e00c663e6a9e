#pragma once
// A connection of a guest to one node: it proves that it holds the cluster's token, asks, and
// becomes no member.
//
//   connect() -> connecting -> ready (on_ready) -> ... messages (on_message) ... -> failed
//   (on_failed), or closed by its owner
//
// GU-1  on_failed comes at most once for each connect(), with the reason; after it, and after
//       close(), nothing comes.
// GU-2  Every frame that leaves acknowledges what has arrived, so that the node keeps nothing for
//       longer than between two questions.
// GU-3  A connection that breaks before the node has proven itself, and that was not refused, is
//       made again, some times within the time that connect() was given: a node that has just
//       begun, or begins another life, lets go of connections.
// Threading: that of the transport. Callbacks may close the connection.

#include "troupe/actors/net/tcp_transport.hpp"
#include "troupe/runtime/wire/handshake.hpp"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace troupe {

// What `options.self` is of a tool, and how it proves itself.
handshake_options guest_options(const std::string& cluster, const secret& token);

// Nobody waits longer than twenty days, which poll() can count in milliseconds.
inline std::int64_t bounded_wait_ns(std::int64_t timeout_ns) noexcept {
  return std::clamp<std::int64_t>(timeout_ns, 0, std::int64_t{20} * 24 * 3600 * 1'000'000'000);
}

class guest_connection final : private channel_handler {
 public:
  enum class status : std::uint8_t { connecting, ready, failed, closed };

  guest_connection(tcp_transport& net, handshake_options options)
      : net_(net), options_(std::move(options)) {}

  std::function<void()> on_ready = [] {};
  std::function<void(control_message)> on_message = [](control_message) {};
  std::function<void(const error&)> on_failed = [](const error&) {};

  ~guest_connection() { *is_alive_ = false; }

  // Once more where it has failed.
  void connect(const address& at, std::int64_t timeout_ns);
  void send(const control_message& m);
  void close();

  status state() const noexcept { return status_; }
  const member_info& peer() const noexcept { return shake_->peer(); }  // from on_ready on

 private:
  std::span<std::byte> payload_destination(frame_kind, std::span<const std::byte>,
                                           std::uint32_t) override {
    return {};
  }
  void on_frame(const received_frame& f) override;
  void on_closed(const error& why, frame_fault fault) override;
  void advance();
  void dial();
  void fail(const error& e);

  tcp_transport& net_;
  handshake_options options_;
  std::unique_ptr<channel> connection_;
  std::optional<handshake> shake_;
  status status_ = status::connecting;
  address to_;
  std::int64_t end_ns_ = 0;
  int dials_left_ = 0;
  std::optional<error> broke_;  // why the first connection did
  std::shared_ptr<bool> is_alive_ = std::make_shared<bool>(true);
  std::uint64_t received_ = 0;  // the last numbered frame
};

}  // namespace troupe
