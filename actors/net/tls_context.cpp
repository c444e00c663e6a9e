#include "troupe/actors/net/tls_context.hpp"

#include "troupe/actors/net/tls_keys.hpp"

#include <fmt/format.h>
#include <openssl/core_names.h>
#include <openssl/err.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

namespace troupe {
namespace {

constexpr std::size_t shared_key_bytes = 32;

std::string openssl_says() {
  const auto code = ERR_peek_error();
  const char* text = ERR_reason_error_string(code);
  ERR_clear_error();
  return text != nullptr ? text : "no reason is given";
}

// HKDF-SHA256 (RFC 5869): what the proof of a handshake uses of the token says nothing of this key.
secret key_of(const secret& token) {
  const openssl_ptr<EVP_KDF, EVP_KDF_free> kdf(EVP_KDF_fetch(nullptr, "HKDF", nullptr));
  expects(kdf != nullptr, "OpenSSL has HKDF");
  const openssl_ptr<EVP_KDF_CTX, EVP_KDF_CTX_free> context(EVP_KDF_CTX_new(kdf.get()));
  const auto text = token.text();
  std::string digest = "SHA256", salt = "troupe", label = "troupe tls 1 pre-shared key";
  const std::array<OSSL_PARAM, 5> parameters{
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest.data(), 0),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, const_cast<char*>(text.data()),
                                        text.size()),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SALT, salt.data(), salt.size()),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, label.data(), label.size()),
      OSSL_PARAM_construct_end()};
  std::string key(shared_key_bytes, '\0');
  const bool is_made = EVP_KDF_derive(context.get(), reinterpret_cast<unsigned char*>(key.data()),
                                      key.size(), parameters.data()) == 1;
  expects(is_made, "OpenSSL derives a key");
  secret out(key);
  wipe(key);
  return out;
}

// TLS 1.3 alone, with fresh keys for each connection, no tickets and no early data.
openssl_ptr<SSL_CTX, SSL_CTX_free> make_ssl() {
  openssl_ptr<SSL_CTX, SSL_CTX_free> ssl(SSL_CTX_new(TLS_method()));
  expects(ssl != nullptr, "OpenSSL has TLS");
  bool is_set = SSL_CTX_set_min_proto_version(ssl.get(), TLS1_3_VERSION) == 1;
  is_set = is_set && SSL_CTX_set_max_proto_version(ssl.get(), TLS1_3_VERSION) == 1;
  // Both with SHA-256, as the pre-shared key asks.
  is_set = is_set && SSL_CTX_set_ciphersuites(
                         ssl.get(), "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256") == 1;
  is_set = is_set && SSL_CTX_set1_groups_list(ssl.get(), "X25519:P-256") == 1;
  is_set = is_set && SSL_CTX_set_num_tickets(ssl.get(), 0) == 1;
  expects(is_set, "OpenSSL has TLS 1.3");
  SSL_CTX_set_options(ssl.get(), SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION);
  SSL_CTX_clear_options(ssl.get(), SSL_OP_ENABLE_MIDDLEBOX_COMPAT);
  SSL_CTX_set_session_cache_mode(ssl.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_max_early_data(ssl.get(), 0);
  SSL_CTX_set_max_cert_list(ssl.get(), 32 << 10);  // of a peer that has proven nothing yet
  // Also with a shared key: a peer that shows a certificate instead is not trusted.
  SSL_CTX_set_verify(ssl.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  SSL_CTX_set_client_hello_cb(ssl.get(), &on_client_hello, nullptr);
  // OpenSSL would ask on the terminal.
  SSL_CTX_set_default_passwd_cb(ssl.get(), [](char*, int, int, void*) { return -1; });
  return ssl;
}

// Whether a file that a flag names can be read at all: OpenSSL's words for it help nobody.
result<void> check_file(const char* flag, const std::string& path, bool is_secret) {
  struct stat of{};
  if (::stat(path.c_str(), &of) != 0 || ::access(path.c_str(), R_OK) != 0) {
    const int number = errno;
    return error(error_code::usage,
                 fmt::format("{} {}: {}", flag, path, std::generic_category().message(number)));
  }
  if (!S_ISREG(of.st_mode))
    return error(error_code::usage, fmt::format("{} {}: is not a file", flag, path));
  if (is_secret && of.st_uid != ::geteuid() && of.st_uid != 0)
    return error(error_code::denied,
                 fmt::format("{} {}: belongs to user {}, and this process runs as user {}", flag,
                             path, of.st_uid, ::geteuid()));
  if (is_secret && (of.st_mode & 077) != 0)
    return error(error_code::denied,
                 fmt::format("{} {}: others may read or write it (mode {:o}); run: chmod 600 {}",
                             flag, path, of.st_mode & 0777, path));
  return {};
}

error bad_file(const char* flag, const std::string& path, const char* what) {
  return {error_code::usage, fmt::format("{} {}: is no {} in PEM format that OpenSSL can read ({})",
                                         flag, path, what, openssl_says())};
}

}  // namespace

tls_context::tls_context(std::unique_ptr<keys> k) : keys_(std::move(k)) {}
tls_context::~tls_context() = default;

bool tls_context::has_certificates() const noexcept { return keys_->shared_key.empty(); }

result<std::shared_ptr<const tls_context>> tls_context::of_token(const std::string& cluster,
                                                                 const secret& token) {
  if (token.empty())
    return error(error_code::usage,
                 "connections are protected with the cluster's token, and there is none: give "
                 "--token-file, or --tls-certificate, --tls-key and --tls-ca");
  auto k = std::make_unique<keys>();
  k->ssl = make_ssl();
  k->bytes = make_tls_bytes();
  k->cluster = cluster;
  k->identity = "troupe tls 1 " + cluster;
  k->shared_key = key_of(token);
  return std::shared_ptr<const tls_context>(new tls_context(std::move(k)));
}

result<std::shared_ptr<const tls_context>> tls_context::of_files(const wire_protection& files) {
  const std::array<std::pair<const char*, const std::string*>, 3> given{
      {{"--tls-certificate", &files.certificate},
       {"--tls-key", &files.key},
       {"--tls-ca", &files.ca}}};
  for (const auto& [flag, path] : given)
    if (path->empty())
      return error(error_code::usage,
                   fmt::format("{} is missing: certificates need --tls-certificate, --tls-key and "
                               "--tls-ca, each with a file",
                               flag));
  for (const auto& [flag, path] : given)
    if (auto ok = check_file(flag, *path, path == &files.key); !ok) return ok.error();
  auto k = std::make_unique<keys>();
  k->ssl = make_ssl();
  k->bytes = make_tls_bytes();
  k->files = files;
  ERR_clear_error();
  if (SSL_CTX_use_certificate_chain_file(k->ssl.get(), files.certificate.c_str()) != 1)
    return bad_file("--tls-certificate", files.certificate, "certificate");
  if (SSL_CTX_use_PrivateKey_file(k->ssl.get(), files.key.c_str(), SSL_FILETYPE_PEM) != 1) {
    const bool fits_not = ERR_GET_REASON(ERR_peek_error()) == X509_R_KEY_VALUES_MISMATCH ||
                          ERR_GET_REASON(ERR_peek_error()) == X509_R_KEY_TYPE_MISMATCH;
    if (!fits_not) return bad_file("--tls-key", files.key, "private key (without a passphrase)");
    ERR_clear_error();
    return error(error_code::usage,
                 fmt::format("--tls-key {}: is not the key of the certificate {}: give the key "
                             "that the certificate was made for",
                             files.key, files.certificate));
  }
  if (SSL_CTX_check_private_key(k->ssl.get()) != 1) {
    ERR_clear_error();
    return error(error_code::usage,
                 fmt::format("--tls-key {}: is not the key of the certificate {}: give the key "
                             "that the certificate was made for",
                             files.key, files.certificate));
  }
  if (SSL_CTX_load_verify_file(k->ssl.get(), files.ca.c_str()) != 1)
    return bad_file("--tls-ca", files.ca, "certificate of a CA");
  return std::shared_ptr<const tls_context>(new tls_context(std::move(k)));
}

result<void> tls_context::check() const {
  if (!has_certificates()) return {};
  X509* own = SSL_CTX_get0_certificate(keys_->ssl.get());
  STACK_OF(X509)* between = nullptr;
  SSL_CTX_get0_chain_certs(keys_->ssl.get(), &between);
  const auto& files = keys_->files;
  const openssl_ptr<X509_STORE_CTX, X509_STORE_CTX_free> check(X509_STORE_CTX_new());
  const bool is_ready =
      check != nullptr &&
      X509_STORE_CTX_init(check.get(), SSL_CTX_get_cert_store(keys_->ssl.get()), own, between) == 1;
  expects(is_ready, "OpenSSL has memory to check a certificate");
  const bool is_good = X509_verify_cert(check.get()) == 1;
  ERR_clear_error();
  if (!is_good)
    return error(
        error_code::denied,
        fmt::format("--tls-certificate {}: others will not accept it: {}", files.certificate,
                    why_not_verified(X509_STORE_CTX_get_error(check.get()), files.ca)));
  for (const int purpose : {X509_PURPOSE_SSL_SERVER, X509_PURPOSE_SSL_CLIENT})
    if (X509_check_purpose(own, purpose, 0) != 1)
      return error(error_code::denied,
                   fmt::format("--tls-certificate {}: may not be used for TLS by both who connects "
                               "and who is connected to: leave out its extended key usage, or give "
                               "it serverAuth and clientAuth",
                               files.certificate));
  return {};
}

bool protection::covers(const address& own, const address& peer) const noexcept {
  if (context == nullptr || scope == tls_scope::nowhere) return false;
  return scope == tls_scope::everywhere || !is_loopback(own) || !is_loopback(peer);
}

// Both ends say the same words.
std::string protection::why_not_plain() const {
  if (scope == tls_scope::beyond_loopback)
    return "one process wants TLS, as all do beyond loopback, and the other one speaks without: "
           "leave out its --insecure, give it --tls where an address of loopback leads it to "
           "another machine (a tunnel, a port of a container), and run the same release on both";
  if (context != nullptr && context->has_certificates())
    return "one process has --tls-certificate, and the other one speaks without TLS: give "
           "--tls-certificate, --tls-key and --tls-ca to both";
  return "one process has --tls, and the other one speaks without TLS: give --tls to both, or to "
         "neither";
}

std::string protection::why_not_tls() const {
  if (is_insecure) return "one process wants TLS, and the other one has --insecure: leave that out";
  return "one process wants TLS on loopback, and the other one does not: give --tls (or "
         "--tls-certificate, --tls-key and --tls-ca) to both, or to neither";
}

result<protection> make_protection(const wire_protection& wanted, const std::string& cluster,
                                   const secret& token) {
  if (wanted.insecure && (wanted.tls || wanted.has_files()))
    return error(error_code::usage,
                 fmt::format("--insecure and {} exclude each other: leave one of them out",
                             wanted.tls ? "--tls" : "--tls-certificate"));
  if (wanted.insecure) return protection{nullptr, tls_scope::nowhere, true};
  if (wanted.has_files()) {
    auto made = tls_context::of_files(wanted);
    if (!made) return made.error();
    if (auto good = (*made)->check(); !good) return good.error();
    return protection{std::move(*made), tls_scope::everywhere, false};
  }
  if (token.empty() && !wanted.tls) return protection{};
  auto made = tls_context::of_token(cluster, token);
  if (!made) return made.error();
  return protection{std::move(*made),
                    wanted.tls ? tls_scope::everywhere : tls_scope::beyond_loopback, false};
}

}  // namespace troupe
