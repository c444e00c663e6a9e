#include "troupe/actors/inspect/guest.hpp"

#include <openssl/rand.h>
#include <unistd.h>

#include <algorithm>

namespace troupe {

namespace {

constexpr int dials_max = 3;
constexpr std::int64_t redial_ns = 20'000'000;

void fill_randomly(std::span<std::byte> out) {
  const bool ok =
      RAND_bytes(reinterpret_cast<unsigned char*>(out.data()), static_cast<int>(out.size())) == 1;
  expects(ok, "the system gives random bytes");
}

}  // namespace

handshake_options guest_options(const std::string& cluster, const secret& token) {
  handshake_options o;
  o.cluster = cluster;
  o.token = token;
  std::uint64_t id = 0;
  fill_randomly(std::as_writable_bytes(std::span(&id, 1)));
  o.self.id = node_id{id | 1};
  o.self.kind = member_kind::tool;
  o.self.name = "tool";
  o.self.pid = static_cast<std::uint32_t>(::getpid());
  return o;
}

void guest_connection::connect(const address& at, std::int64_t timeout_ns) {
  status_ = status::connecting;
  to_ = at;
  end_ns_ = net_.now_ns() + bounded_wait_ns(timeout_ns);
  dials_left_ = dials_max;
  broke_.reset();
  received_ = 0;
  dial();
}

void guest_connection::dial() {
  --dials_left_;
  const auto left_ns = std::max<std::int64_t>(1, end_ns_ - net_.now_ns());
  net_.connect(to_, left_ns, [this, alive = is_alive_](result<std::unique_ptr<channel>> c) {
    if (!*alive || status_ != status::connecting) return;
    if (!c) return fail(broke_ ? *broke_ : c.error());
    connection_ = std::move(*c);
    fill_randomly(options_.nonce);
    shake_.emplace(options_, net_.now_ns());
    connection_->start(*this);
    advance();
  });
}

void guest_connection::send(const control_message& m) {
  if (status_ == status::ready)
    connection_->send({frame_kind::control, 0, received_, encode(m), {}, 0, 0});
}

void guest_connection::close() {
  if (status_ == status::failed || status_ == status::closed) return;
  status_ = status::closed;
  if (connection_) connection_->close();
}

void guest_connection::on_frame(const received_frame& f) {
  if (status_ == status::connecting) {
    if (f.kind == frame_kind::hello) shake_->bind_to(connection_->binding());
    shake_->on_frame(f.kind, f.header);
    return advance();
  }
  if (status_ != status::ready) return;
  received_ = std::max(received_, f.sequence);
  if (f.kind != frame_kind::control || f.header.empty()) return;
  if (auto m = decode_control(f.header)) on_message(std::move(*m));
}

void guest_connection::on_closed(const error& why, frame_fault fault) {
  if (status_ != status::connecting) return fail(why);
  shake_->on_closed(why, fault);
  if (shake_->why() != refusal::lost || dials_left_ == 0) return advance();
  if (!broke_) broke_ = why;
  net_.after(redial_ns, [this, alive = is_alive_] {
    if (*alive && status_ == status::connecting) dial();
  });
}

void guest_connection::advance() {
  for (auto& f : shake_->take_outgoing())
    connection_->send({f.kind, 0, 0, std::move(f.header), {}, 0, 0});
  if (shake_->is_proven()) connection_->trust_peer();
  if (shake_->state() == handshake::status::refused) return fail(shake_->reason());
  if (shake_->state() != handshake::status::established || status_ != status::connecting) return;
  status_ = status::ready;
  on_ready();
}

void guest_connection::fail(const error& e) {
  if (status_ == status::failed || status_ == status::closed) return;
  status_ = status::failed;
  on_failed(e);
}

}  // namespace troupe
