#pragma once
// What a tls_context is made of, for the two sources that call OpenSSL's TLS and nobody else.
//
// Threading: immutable once made. Ownership: that of the context.

#include "troupe/actors/net/tls_context.hpp"

#include <openssl/bio.h>
#include <openssl/ssl.h>

#include <memory>
#include <string>

namespace troupe {

template <auto Free>
struct openssl_deleter {
  template <class T>
  void operator()(T* p) const noexcept {
    Free(p);
  }
};
template <class T, auto Free>
using openssl_ptr = std::unique_ptr<T, openssl_deleter<Free>>;

struct tls_context::keys {
  openssl_ptr<SSL_CTX, SSL_CTX_free> ssl;
  openssl_ptr<BIO_METHOD, BIO_meth_free> bytes;  // between OpenSSL and the buffers of a channel
  std::string cluster;
  std::string identity;  // of the key: the cluster, with a label
  secret shared_key;     // empty: certificates
  wire_protection files;
};

// actors/net/tls_channel.cpp: bytes, and what it has to say of a peer's first message.
openssl_ptr<BIO_METHOD, BIO_meth_free> make_tls_bytes();
int on_client_hello(SSL* ssl, int* alert, void*);
// "certificate has expired", with what to do.
std::string why_not_verified(long code, const std::string& ca_file);

}  // namespace troupe
