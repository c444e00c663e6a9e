#include "troupe/runtime/wire/handshake.hpp"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace troupe {
namespace {

constexpr std::size_t hello_fixed_bytes = 8 + nonce_bytes;
constexpr std::size_t proof_bytes = 32;
constexpr std::size_t reason_bytes_max = 512;
constexpr std::byte no_lane{255};

// What a stranger sent, safe to be printed on a terminal.
std::string printable(std::span<const std::byte> bytes) {
  std::string text;
  for (std::byte b : bytes) {
    const auto c = std::to_integer<char>(b);
    text.push_back(c >= 0x20 && c < 0x7f ? c : '?');
  }
  return text;
}

std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span<const char>(text.data(), text.size()));
}

std::uint16_t version_in(std::span<const std::byte> hello) {
  return static_cast<std::uint16_t>(std::to_integer<unsigned>(hello[0]) |
                                    std::to_integer<unsigned>(hello[1]) << 8);
}

std::string clusters_differ(std::span<const std::byte> caller, std::span<const std::byte> called) {
  return fmt::format(
      "a node of cluster '{}' called a node of cluster '{}': give both the same --cluster",
      printable(caller), printable(called));
}

}  // namespace

std::string_view to_string(refusal r) noexcept {
  constexpr std::string_view names[refusal_count] = {
      "none",      "malformed", "wrong version", "wrong cluster", "wrong token", "itself",
      "timed out", "lost",      "crossing",      "forgotten",     "held dead",   "protection"};
  return names[static_cast<std::size_t>(r)];
}

std::vector<std::byte> encode_refusal(refusal why, std::string_view text) {
  const auto reason = as_bytes(text).first(std::min(text.size(), reason_bytes_max));
  std::vector<std::byte> header(1 + reason.size());
  header[0] = static_cast<std::byte>(why);
  std::ranges::copy(reason, header.begin() + 1);
  return header;
}

handshake::handshake(handshake_options options, std::int64_t now_ns)
    : options_(std::move(options)), deadline_ns_(now_ns + handshake_timeout_ns) {
  expects(!options_.cluster.empty() && options_.cluster.size() <= cluster_name_max,
          "a cluster's name has 1 to 64 bytes");
  send_hello();
}

void handshake::send_hello() {
  own_hello_.resize(hello_fixed_bytes);
  own_hello_[0] = std::byte{protocol_version & 0xff};
  own_hello_[1] = std::byte{protocol_version >> 8};
  own_hello_[2] =
      options_.role == handshake_role::initiator ? static_cast<std::byte>(options_.lane) : no_lane;
  own_hello_[3] = static_cast<std::byte>(options_.cluster.size());
  std::copy(options_.nonce.begin(), options_.nonce.end(), own_hello_.begin() + 8);
  const auto name = as_bytes(options_.cluster);
  own_hello_.insert(own_hello_.end(), name.begin(), name.end());
  send(frame_kind::hello, own_hello_);
}

handshake::status handshake::on_frame(frame_kind kind, std::span<const std::byte> header) {
  if (status_ == status::established || status_ == status::refused) return status_;
  if (kind == frame_kind::refuse) {
    on_refuse(header);
  } else if (kind == frame_kind::hello && step_ == step::hello) {
    on_hello(header);
  } else if (kind == frame_kind::proof && step_ == step::proof) {
    on_proof(header);
  } else if (kind == frame_kind::identity && step_ == step::identity) {
    on_identity(header);
  } else {
    malformed(fmt::format("a frame of kind {} came out of order", to_string(kind)));
  }
  return status_;
}

void handshake::on_hello(std::span<const std::byte> header) {
  if (header.size() < 2) return malformed("a hello of less than two bytes");
  if (const auto version = version_in(header); version != protocol_version)
    return end(
        refusal::wrong_version, error_code::denied,
        fmt::format(
            "one node speaks protocol version {}, the other one version {}: run the same release on both",
            std::min(version, protocol_version), std::max(version, protocol_version)),
        true);
  if (header.size() < hello_fixed_bytes) return malformed("a hello that is too short");
  const auto name = header.subspan(hello_fixed_bytes);
  const bool is_zero = std::all_of(header.begin() + 4, header.begin() + 8,
                                   [](std::byte b) { return b == std::byte{0}; });
  if (name.empty() || name.size() > cluster_name_max ||
      name.size() != std::to_integer<std::size_t>(header[3]) || !is_zero)
    return malformed("a hello whose cluster name has a wrong length");
  const auto lane = header[2];
  const bool is_acceptor = options_.role == handshake_role::acceptor;
  const bool is_lane_right = is_acceptor ? lane <= std::byte{1} : lane == no_lane;
  if (!is_lane_right)
    return malformed(
        fmt::format("a hello for the unknown lane {}", std::to_integer<unsigned>(lane)));
  if (std::equal(options_.nonce.begin(), options_.nonce.end(), header.begin() + 8))
    return malformed("a hello that repeats this node's own nonce");
  const auto own_name = as_bytes(options_.cluster);
  if (!std::ranges::equal(name, own_name))
    return end(refusal::wrong_cluster, error_code::denied,
               is_acceptor ? clusters_differ(name, own_name) : clusters_differ(own_name, name),
               true);
  if (is_acceptor) options_.lane = static_cast<troupe::lane>(lane);
  peer_hello_.assign(header.begin(), header.end());
  step_ = step::proof;
  if (!is_acceptor) {
    const auto proof = proof_of(handshake_role::initiator);
    send(frame_kind::proof, {proof.begin(), proof.end()});
  }
}

void handshake::on_proof(std::span<const std::byte> header) {
  if (header.size() != proof_bytes) return malformed("a proof of a wrong length");
  const auto other = options_.role == handshake_role::initiator ? handshake_role::acceptor
                                                                : handshake_role::initiator;
  const auto wanted = proof_of(other);
  if (CRYPTO_memcmp(wanted.data(), header.data(), proof_bytes) != 0)
    return end(
        refusal::wrong_token, error_code::denied,
        fmt::format("wrong token for cluster '{}': use the same --token-file on all of its nodes",
                    printable(as_bytes(options_.cluster))),
        true);
  step_ = step::identity;
  if (options_.role == handshake_role::acceptor) {
    const auto proof = proof_of(handshake_role::acceptor);
    send(frame_kind::proof, {proof.begin(), proof.end()});
  } else {
    send_identity();
  }
}

void handshake::on_identity(std::span<const std::byte> header) {
  auto found = decode_identity(header);
  if (!found) return malformed(found.error().message());
  if (found->lane != options_.lane) return malformed("an identity for another lane than the hello");
  if (raw(found->member.id) == 0) return malformed("an identity without a node id");
  if (!is_acceptor() && found->link != options_.link)
    return malformed("an identity for another link than ours");
  if (found->member.id == options_.self.id)
    return end(refusal::itself, error_code::denied, "this node has connected to itself", true);
  peer_ = std::move(*found);
  const bool decides = options_.role == handshake_role::acceptor;
  step_ = decides ? step::owner : step::done;
  status_ = decides ? status::decide : status::established;
}

void handshake::on_refuse(std::span<const std::byte> header) {
  const auto code = header.empty() ? 0U : std::to_integer<unsigned>(header[0]);
  const auto text = header.subspan(std::min<std::size_t>(header.size(), 1));
  is_by_peer_ = true;
  const auto why =
      code == 0 || code >= refusal_count ? refusal::malformed : static_cast<refusal>(code);
  // What a member says of our life and of a link counts from who has proven itself: anybody who
  // answers at its address could end them else.
  const bool is_of_members = why == refusal::held_dead || why == refusal::forgotten ||
                             why == refusal::crossing || why == refusal::itself;
  if (is_of_members && !is_proven())
    return end(refusal::lost, error_code::unreachable,
               "it was refused by somebody who has not proven to be of the cluster", false);
  end(why, error_code::denied,
      fmt::format("refused by the peer: {}",
                  printable(text.first(std::min(text.size(), reason_bytes_max)))),
      false);
}

handshake::status handshake::on_time(std::int64_t now_ns) {
  if (now_ns >= deadline_ns_ && (status_ == status::running || status_ == status::decide))
    end(refusal::timed_out, error_code::timed_out,
        fmt::format("the peer has not proven itself within {} s",
                    handshake_timeout_ns / 1'000'000'000),
        true);
  return status_;
}

handshake::status handshake::on_closed(const error& why, frame_fault fault) {
  if (status_ == status::running || status_ == status::decide) {
    const bool is_lost = fault == frame_fault::none || fault == frame_fault::truncated;
    end(is_lost                             ? refusal::lost
        : fault == frame_fault::bad_version ? refusal::wrong_version
        : fault == frame_fault::protection  ? refusal::protection
                                            : refusal::malformed,
        why.code(), why.message(), false);
    outgoing_.clear();
  }
  return status_;
}

void handshake::accept(std::uint64_t received) {
  if (status_ != status::decide) return;
  options_.received = received;
  send_identity();
  step_ = step::done;
  status_ = status::established;
}

void handshake::refuse(refusal why, std::string text) {
  if (status_ == status::running || status_ == status::decide)
    end(why, error_code::denied, std::move(text), true);
}

std::vector<handshake_frame> handshake::take_outgoing() { return std::exchange(outgoing_, {}); }

void handshake::send_identity() {
  send(frame_kind::identity, encode(identity{options_.self, options_.lane, options_.received,
                                             is_acceptor() ? peer_->member.id : options_.expected,
                                             link(), begins(), options_.probe}));
}

void handshake::send(frame_kind kind, std::vector<std::byte> header) {
  outgoing_.push_back({kind, std::move(header)});
}

void handshake::end(refusal why, error_code code, std::string text, bool tells_peer) {
  if (tells_peer) send(frame_kind::refuse, encode_refusal(why, text));
  status_ = status::refused;
  refusal_ = why;
  reason_.emplace(code, std::move(text));
}

void handshake::malformed(std::string text) {
  end(refusal::malformed, error_code::denied,
      fmt::format("the first frames of a connection are wrong: {}", text), true);
}

std::array<std::byte, 32> handshake::proof_of(handshake_role prover) const {
  const bool is_initiator = options_.role == handshake_role::initiator;
  const auto& first = is_initiator ? own_hello_ : peer_hello_;
  const auto& second = is_initiator ? peer_hello_ : own_hello_;
  // Hellos tell their own length, so their concatenation is unambiguous.
  const auto label =
      as_bytes(prover == handshake_role::initiator ? "troupe initiator 2" : "troupe acceptor 2");
  std::vector<std::byte> message(label.begin(), label.end());
  message.insert(message.end(), first.begin(), first.end());
  message.insert(message.end(), second.begin(), second.end());
  message.insert(message.end(), binding_.begin(), binding_.end());
  std::array<std::byte, proof_bytes> mac{};
  unsigned length = 0;
  const auto token = options_.token.text();
  // Without a token a key of no bytes, which is no null pointer to every OpenSSL.
  const auto* made =
      HMAC(EVP_sha256(), token.empty() ? "" : token.data(), static_cast<int>(token.size()),
           reinterpret_cast<const unsigned char*>(message.data()), message.size(),
           reinterpret_cast<unsigned char*>(mac.data()), &length);
  expects(made != nullptr && length == proof_bytes, "OpenSSL made no HMAC-SHA256");
  return mac;
}

}  // namespace troupe
