#pragma once
// What the connections of a process are protected with (TLS 1.3), and which of them are.
//
// Keys come from the cluster's token (an external pre-shared key, with an exchange of fresh keys
// for each connection, so that a token that becomes known later opens nothing that was recorded),
// or from certificates: then both ends show one, and both check it against the CA. Names in
// certificates are not compared with addresses, which change: whoever the CA has signed is let in,
// if it proves the token, too (runtime/wire/handshake.hpp).
//
// TLC-1  A connection that is to be protected is so, or ends: nothing that comes over it can make
//       this process go on without.
//
// Threading: immutable; used on any thread. Ownership: connections share it, and keep it.

#include "troupe/runtime/text/address.hpp"
#include "troupe/runtime/wire/secret.hpp"
#include "troupe/runtime/wire/wire_protection.hpp"
#include "troupe/schema/error.hpp"

#include <cstdint>
#include <memory>
#include <string>

namespace troupe {

class tls_context {
 public:
  // Ends meet only if both have the same token and the same cluster.
  static result<std::shared_ptr<const tls_context>> of_token(const std::string& cluster,
                                                             const secret& token);
  // `certificate`, `key` and `ca` of `files`. Errors name the flag and the file: usage (one of the
  // three is missing, a file that is no PEM, a key that does not fit the certificate), not_found
  // (no such file), denied (a key that others may read).
  static result<std::shared_ptr<const tls_context>> of_files(const wire_protection& files);
  ~tls_context();
  tls_context(const tls_context&) = delete;
  tls_context& operator=(const tls_context&) = delete;

  bool has_certificates() const noexcept;
  // Of files: whether others will accept the certificate. Errors: denied (it has expired, or the CA
  // has not signed it).
  result<void> check() const;

  struct keys;  // for tls_channel.cpp
  const keys& of_openssl() const noexcept { return *keys_; }

 private:
  explicit tls_context(std::unique_ptr<keys> k);
  std::unique_ptr<keys> keys_;
};

// Which connections are protected.
enum class tls_scope : std::uint8_t {
  nowhere,          // --insecure, or there is nothing to protect them with
  beyond_loopback,  // where either end has an address that is not a loopback one
  everywhere,       // --tls, certificates
};

struct protection {
  std::shared_ptr<const tls_context> context{};  // null: none, whatever `scope` says
  tls_scope scope = tls_scope::beyond_loopback;
  bool is_insecure = false;  // --insecure

  // Whether a connection between these two addresses is.
  bool covers(const address& own, const address& peer) const noexcept;
  // Why a connection that is to be protected (or not to be) does not go on with a peer that begins
  // without TLS (or with it): for both ends, with the flags that help.
  std::string why_not_plain() const;
  std::string why_not_tls() const;
};

// Of a process: errors as of_token(), of_files() and check(), and usage: flags that exclude each
// other. Without a token and files nothing is protected.
result<protection> make_protection(const wire_protection& wanted, const std::string& cluster,
                                   const secret& token);

}  // namespace troupe
