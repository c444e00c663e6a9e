#include "troupe/actors/net/tls_channel.hpp"

#include "troupe/actors/net/tls_keys.hpp"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace troupe {
namespace {

// A stranger's record at most, and its frame.
constexpr std::size_t small_space_bytes = 17 * 1024;
constexpr std::size_t large_space_bytes = 128 * 1024;
constexpr std::string_view exporter_label = "EXPORTER-Channel-Binding";
constexpr unsigned char shared_key_cipher[] = {0x13, 0x01};  // TLS_AES_128_GCM_SHA256

std::string subject_of(X509* certificate) {
  char name[160] = {};
  X509_NAME_oneline(X509_get_subject_name(certificate), name, sizeof name);
  return name;
}

std::string says_alert(int alert) {
  const std::string name = SSL_alert_desc_string_long(alert);
  switch (alert) {
    case SSL_AD_UNKNOWN_CA:
      return "the peer does not trust this process's certificate: the CA that the peer has in "
             "--tls-ca has to have signed it";
    case SSL_AD_CERTIFICATE_EXPIRED:
      return "the peer does not accept this process's certificate, which has expired: make a new "
             "one (--tls-certificate)";
    case SSL_AD_BAD_CERTIFICATE:
    case SSL_AD_UNSUPPORTED_CERTIFICATE:
    case SSL_AD_CERTIFICATE_REVOKED:
    case SSL_AD_CERTIFICATE_UNKNOWN:
      return fmt::format(
          "the peer does not accept this process's certificate ({}): look at what the peer says, "
          "and make another one (--tls-certificate)",
          name);
    case SSL_AD_CERTIFICATE_REQUIRED:
      return "the peer wants a certificate: give --tls-certificate, --tls-key and --tls-ca";
    case SSL_AD_BAD_RECORD_MAC:
    case SSL_AD_UNEXPECTED_MESSAGE:
    case SSL_AD_DECRYPT_ERROR:
    case SSL_AD_DECODE_ERROR:
    case SSL_AD_RECORD_OVERFLOW:
      return fmt::format(
          "the peer got other bytes than this process sent ({}): they were changed "
          "on the way",
          name);
    default: return fmt::format("the peer refuses it ({})", name);
  }
}

}  // namespace

struct tls_channel::engine {
  openssl_ptr<SSL, SSL_free> ssl;
  std::vector<std::byte> in;  // bytes [in_begin, in_end) of the wire are not used up
  std::size_t in_begin = 0, in_end = 0;
  std::size_t in_bytes = small_space_bytes;
  std::vector<std::byte> out;  // bytes from out_begin on are not written
  std::size_t out_begin = 0;
  bool has_sent = false;

  int take(char* to, int n) {
    const auto count = std::min(in_end - in_begin, static_cast<std::size_t>(std::max(n, 0)));
    std::memcpy(to, in.data() + in_begin, count);
    in_begin += count;
    return static_cast<int>(count);
  }
  void put(const char* from, int n) {
    const auto bytes = std::as_bytes(std::span(from, static_cast<std::size_t>(std::max(n, 0))));
    out.insert(out.end(), bytes.begin(), bytes.end());
  }
};

// What OpenSSL calls.
struct tls_hooks {
  static tls_channel& of(const SSL* ssl) {
    return *static_cast<tls_channel*>(SSL_get_app_data(const_cast<SSL*>(ssl)));
  }

  static int read(BIO* bio, char* to, int n) {
    auto& e = *static_cast<tls_channel::engine*>(BIO_get_data(bio));
    BIO_clear_retry_flags(bio);
    if (e.in_begin < e.in_end) return e.take(to, n);
    BIO_set_retry_read(bio);
    return -1;
  }
  static int write(BIO* bio, const char* from, int n) {
    BIO_clear_retry_flags(bio);
    static_cast<tls_channel::engine*>(BIO_get_data(bio))->put(from, n);
    return n;
  }
  static long control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }
  static int create(BIO* bio) {
    BIO_set_init(bio, 1);
    return 1;
  }

  static SSL_SESSION* session_of(SSL* ssl) {
    const auto key = of(ssl).context_->of_openssl().shared_key.text();
    openssl_ptr<SSL_SESSION, SSL_SESSION_free> s(SSL_SESSION_new());
    const auto* cipher = SSL_CIPHER_find(ssl, shared_key_cipher);
    if (s == nullptr || cipher == nullptr ||
        SSL_SESSION_set1_master_key(s.get(), reinterpret_cast<const unsigned char*>(key.data()),
                                    key.size()) != 1 ||
        SSL_SESSION_set_cipher(s.get(), cipher) != 1 ||
        SSL_SESSION_set_protocol_version(s.get(), TLS1_3_VERSION) != 1)
      return nullptr;
    return s.release();
  }
  // The initiator's: which key it offers.
  static int use_key(SSL* ssl, const EVP_MD*, const unsigned char** id, std::size_t* id_bytes,
                     SSL_SESSION** session) {
    const auto& identity = of(ssl).context_->of_openssl().identity;
    *session = session_of(ssl);
    *id = reinterpret_cast<const unsigned char*>(identity.data());
    *id_bytes = identity.size();
    return *session != nullptr ? 1 : 0;
  }
  // The acceptor's: the key that is offered, if it is ours.
  static int find_key(SSL* ssl, const unsigned char* id, std::size_t id_bytes,
                      SSL_SESSION** session) {
    auto& ch = of(ssl);
    const auto& keys = ch.context_->of_openssl();
    *session = nullptr;
    const std::string_view offered(reinterpret_cast<const char*>(id), id_bytes);
    if (offered != keys.identity) {
      ch.note(refusal::wrong_cluster,
              fmt::format("a node of another cluster called a node of cluster '{}': give both the "
                          "same --cluster, and run the same release on both",
                          keys.cluster));
      return 1;
    }
    *session = session_of(ssl);
    return *session != nullptr ? 1 : 0;
  }
  // What OpenSSL found of a certificate; it forgets the certificate when it refuses one.
  static int verified(int is_good, X509_STORE_CTX* check) {
    if (is_good == 1) return 1;
    auto* ssl =
        static_cast<SSL*>(X509_STORE_CTX_get_ex_data(check, SSL_get_ex_data_X509_STORE_CTX_idx()));
    auto& ch = of(ssl);
    X509* shown = X509_STORE_CTX_get0_cert(check);
    ch.note(refusal::protection, fmt::format("the peer's certificate ({}) is not accepted: {}",
                                             shown != nullptr ? subject_of(shown) : "?",
                                             why_not_verified(X509_STORE_CTX_get_error(check),
                                                              ch.context_->of_openssl().files.ca)));
    return 0;
  }
  static int client_hello(SSL* ssl, int* alert) {
    auto& ch = of(ssl);
    const unsigned char* unused = nullptr;
    std::size_t length = 0;
    const bool offers_key = SSL_client_hello_get0_ext(ssl, TLSEXT_TYPE_psk, &unused, &length) == 1;
    if (offers_key != ch.context_->has_certificates()) return SSL_CLIENT_HELLO_SUCCESS;
    ch.note(refusal::protection,
            "one process protects its connections with certificates, the other one with the "
            "cluster's token: give --tls-certificate, --tls-key and --tls-ca to both, or to "
            "neither");
    *alert = SSL_AD_HANDSHAKE_FAILURE;
    return SSL_CLIENT_HELLO_ERROR;
  }
};

openssl_ptr<BIO_METHOD, BIO_meth_free> make_tls_bytes() {
  openssl_ptr<BIO_METHOD, BIO_meth_free> m(BIO_meth_new(BIO_TYPE_SOURCE_SINK, "tls_channel"));
  expects(m != nullptr, "OpenSSL has memory for a table of functions");
  BIO_meth_set_read(m.get(), &tls_hooks::read);
  BIO_meth_set_write(m.get(), &tls_hooks::write);
  BIO_meth_set_ctrl(m.get(), &tls_hooks::control);
  BIO_meth_set_create(m.get(), &tls_hooks::create);
  return m;
}

int on_client_hello(SSL* ssl, int* alert, void*) { return tls_hooks::client_hello(ssl, alert); }

std::string why_not_verified(long code, const std::string& ca_file) {
  const std::string why = X509_verify_cert_error_string(code);
  switch (code) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return fmt::format("{}: make one that is valid now, and compare the clocks of both machines",
                         why);
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
      return fmt::format(
          "the CA in {} has not signed it ({}): give both processes certificates of "
          "one CA, and --tls-ca with that CA's",
          ca_file, why);
    default: return why;
  }
}

tls_channel::tls_channel(std::shared_ptr<const tls_context> context, tls_role role,
                         std::uint64_t rekey_records)
    : context_(std::move(context)),
      role_(role),
      engine_(std::make_unique<engine>()),
      rekey_records_(rekey_records) {
  const auto& keys = context_->of_openssl();
  engine_->ssl.reset(SSL_new(keys.ssl.get()));
  BIO* bio = BIO_new(keys.bytes.get());
  if (engine_->ssl == nullptr || bio == nullptr) {
    BIO_free(bio);
    throw std::bad_alloc();
  }
  SSL* ssl = engine_->ssl.get();
  BIO_set_data(bio, engine_.get());
  SSL_set_bio(ssl, bio, bio);
  SSL_set_app_data(ssl, this);
  if (!context_->has_certificates()) {
    SSL_set_psk_use_session_callback(ssl, &tls_hooks::use_key);
    SSL_set_psk_find_session_callback(ssl, &tls_hooks::find_key);
    // The acceptor asks for nothing but the key (TLS-2).
    if (role_ == tls_role::acceptor) SSL_set_verify(ssl, SSL_VERIFY_NONE, nullptr);
  } else {
    SSL_set_verify(ssl, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, &tls_hooks::verified);
  }
  if (role_ == tls_role::initiator)
    SSL_set_connect_state(ssl);
  else
    SSL_set_accept_state(ssl);
}

tls_channel::~tls_channel() = default;

void tls_channel::start() {
  if (role_ == tls_role::initiator && status_ == status::handshaking) handshake_on();
}

std::span<std::byte> tls_channel::wire_space() {
  auto& e = *engine_;
  if (e.in.size() < e.in_bytes) e.in.resize(e.in_bytes);
  if (e.in_begin != 0) {
    std::memmove(e.in.data(), e.in.data() + e.in_begin, e.in_end - e.in_begin);
    e.in_end -= e.in_begin;
    e.in_begin = 0;
  }
  return std::span(e.in).subspan(e.in_end);
}

void tls_channel::wire_filled(std::size_t n) {
  expects(n <= engine_->in.size() - engine_->in_end, "more bytes than wire_space() had room for");
  engine_->in_end += n;
}

void tls_channel::allow_large_reads() { engine_->in_bytes = large_space_bytes; }

bool tls_channel::has_input() const noexcept {
  const auto& e = *engine_;
  return (status_ == status::handshaking || status_ == status::open) &&
         (e.in_begin < e.in_end || SSL_pending(e.ssl.get()) > 0);
}

void tls_channel::handshake_on() {
  SSL* ssl = engine_->ssl.get();
  ERR_clear_error();
  const int r = SSL_do_handshake(ssl);
  if (r != 1) {
    if (SSL_get_error(ssl, r) != SSL_ERROR_WANT_READ) return fail();
    engine_->has_sent = engine_->has_sent || !engine_->out.empty();
    return;
  }
  engine_->has_sent = true;
  // TLS-2, whatever OpenSSL took.
  const bool is_proven = context_->has_certificates()
                             ? SSL_get_verify_result(ssl) == X509_V_OK &&
                                   openssl_ptr<X509, X509_free>(SSL_get1_peer_certificate(ssl))
                             : SSL_session_reused(ssl) == 1;
  if (!is_proven || SSL_version(ssl) != TLS1_3_VERSION) {
    note(refusal::protection, "the peer has not shown what TLS was to prove");
    return fail();
  }
  status_ = status::open;
}

std::size_t tls_channel::read(std::span<std::byte> to) {
  if (status_ == status::handshaking) handshake_on();
  SSL* ssl = engine_->ssl.get();
  std::size_t total = 0;
  while (status_ == status::open && total < to.size()) {
    std::size_t got = 0;
    ERR_clear_error();
    const int r = SSL_read_ex(ssl, to.data() + total, to.size() - total, &got);
    if (r == 1) {
      total += got;
      continue;
    }
    const int what = SSL_get_error(ssl, r);
    if (what == SSL_ERROR_WANT_READ) break;
    if (what == SSL_ERROR_ZERO_RETURN)
      status_ = status::closed;
    else
      fail();
  }
  return total;
}

void tls_channel::write_record(std::span<const std::byte> plain) {
  SSL* ssl = engine_->ssl.get();
  ERR_clear_error();
  if (records_ == rekey_records_) {  // TLS-5
    records_ = 0;
    ++key_changes_;
    SSL_key_update(ssl, SSL_KEY_UPDATE_NOT_REQUESTED);
  }
  ++records_;
  std::size_t put = 0;
  if (SSL_write_ex(ssl, plain.data(), plain.size(), &put) != 1) fail();
}

void tls_channel::send(std::span<const std::byte> plain) {
  while (!plain.empty() && status_ == status::open) {
    if (gathered_.empty() && plain.size() >= record_bytes) {
      write_record(plain.first(record_bytes));
      plain = plain.subspan(record_bytes);
      continue;
    }
    const auto n = std::min(plain.size(), record_bytes - gathered_.size());
    gathered_.insert(gathered_.end(), plain.begin(), plain.begin() + static_cast<long>(n));
    plain = plain.subspan(n);
    if (gathered_.size() == record_bytes) flush();
  }
}

void tls_channel::flush() {
  if (gathered_.empty() || status_ != status::open) return;
  write_record(gathered_);
  gathered_.clear();
}

void tls_channel::close() {
  if (status_ != status::open && status_ != status::closed) return;
  flush();
  ERR_clear_error();
  (void)SSL_shutdown(engine_->ssl.get());
}

std::span<const std::byte> tls_channel::to_wire() const noexcept {
  return std::span(engine_->out).subspan(engine_->out_begin);
}

void tls_channel::written(std::size_t n) {
  auto& e = *engine_;
  expects(n <= e.out.size() - e.out_begin, "more bytes than to_wire() had");
  e.out_begin += n;
  if (e.out_begin < e.out.size()) return;
  e.out.clear();
  e.out_begin = 0;
}

std::array<std::byte, 32> tls_channel::binding() const {
  std::array<std::byte, 32> out{};
  const bool is_made =
      SSL_export_keying_material(engine_->ssl.get(), reinterpret_cast<unsigned char*>(out.data()),
                                 out.size(), exporter_label.data(), exporter_label.size(), nullptr,
                                 0, 0) == 1;
  expects(is_made, "binding() of a channel that is not open");
  return out;
}

bool tls_channel::has_answered() const noexcept { return engine_->has_sent; }

void tls_channel::note(refusal why, std::string text) {
  if (why_ != refusal::none) return;
  why_ = why;
  reason_ = std::move(text);
}

void tls_channel::fail() {
  const bool was_open = std::exchange(status_, status::failed) == status::open;
  const auto code = ERR_peek_error();
  const int reason = ERR_GET_REASON(code);
  const char* words = ERR_reason_error_string(code);
  const auto& keys = context_->of_openssl();
  if (code != 0 && ERR_GET_LIB(code) == ERR_LIB_SSL && reason > SSL_AD_REASON_OFFSET) {
    note(refusal::protection, says_alert(reason - SSL_AD_REASON_OFFSET));
  } else if (was_open) {
    is_verdict_ = why_ != refusal::none;
    note(refusal::protection,
         fmt::format("bytes of a protected connection were changed, left out or put in on the way "
                     "({})",
                     words != nullptr ? words : "TLS"));
  } else if (reason == SSL_R_BINDER_DOES_NOT_VERIFY) {
    note(refusal::wrong_token,
         fmt::format("wrong token for cluster '{}': use the same --token-file on all of its nodes "
                     "(or the first message was changed on the way)",
                     keys.cluster));
  } else if (reason == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE) {
    note(refusal::protection,
         "the peer shows no certificate: give it --tls-certificate, --tls-key and --tls-ca");
  } else {
    is_verdict_ = why_ != refusal::none;
    note(refusal::protection,
         fmt::format("the first bytes of a protected connection are wrong ({}): they were changed "
                     "on the way, or the peer is no process of Troupe",
                     words != nullptr ? words : "TLS"));
  }
  ERR_clear_error();
  // TLS-3: an alert that says less than who uses this can say.
  if (role_ == tls_role::acceptor && !engine_->has_sent) {
    engine_->out.clear();
    engine_->out_begin = 0;
  }
  if (role_ == tls_role::initiator) engine_->has_sent = true;
  gathered_.clear();
}

}  // namespace troupe
