#include "tests/support/certificates.hpp"

#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <atomic>
#include <cstdio>
#include <stdexcept>

namespace troupe::test {
namespace {

using key_ptr = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
using certificate_ptr = std::unique_ptr<X509, decltype(&X509_free)>;

void check_made(bool is_made, const char* what) {
  if (!is_made) throw std::runtime_error(std::string("a test's certificate: ") + what);
}

key_ptr new_key() {
  key_ptr key(EVP_EC_gen("P-256"), &EVP_PKEY_free);
  check_made(key != nullptr, "no key");
  return key;
}

certificate_ptr new_certificate(const std::string& name, EVP_PKEY* key, std::int64_t from_s,
                                std::int64_t until_s, bool is_ca, X509* issuer,
                                EVP_PKEY* issuer_key) {
  static std::atomic<long> serial{1};
  certificate_ptr c(X509_new(), &X509_free);
  X509_set_version(c.get(), 2);
  ASN1_INTEGER_set(X509_get_serialNumber(c.get()), serial++);
  X509_gmtime_adj(X509_getm_notBefore(c.get()), from_s);
  X509_gmtime_adj(X509_getm_notAfter(c.get()), until_s);
  X509_set_pubkey(c.get(), key);
  X509_NAME* subject = X509_get_subject_name(c.get());
  X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  X509* by = issuer != nullptr ? issuer : c.get();
  X509_set_issuer_name(c.get(), X509_get_subject_name(by));
  X509V3_CTX context;
  X509V3_set_ctx(&context, by, c.get(), nullptr, nullptr, 0);
  X509_EXTENSION* limits = X509V3_EXT_conf_nid(nullptr, &context, NID_basic_constraints,
                                               is_ca ? "critical,CA:TRUE" : "CA:FALSE");
  check_made(limits != nullptr && X509_add_ext(c.get(), limits, -1) == 1, "no constraints");
  X509_EXTENSION_free(limits);
  check_made(X509_sign(c.get(), issuer_key, EVP_sha256()) != 0, "not signed");
  return c;
}

void write_certificate(const std::string& path, X509* c) {
  std::FILE* f = std::fopen(path.c_str(), "w");
  check_made(f != nullptr && PEM_write_X509(f, c) == 1 && std::fclose(f) == 0, "not written");
}

void write_key(const std::string& path, EVP_PKEY* key) {
  std::FILE* f = std::fopen(path.c_str(), "w");
  check_made(f != nullptr &&
                 PEM_write_PrivateKey(f, key, nullptr, nullptr, 0, nullptr, nullptr) == 1 &&
                 std::fclose(f) == 0 && ::chmod(path.c_str(), 0600) == 0,
             "no key written");
}

}  // namespace

struct certificate_authority::keys {
  key_ptr key;
  certificate_ptr certificate;
};

certificate_authority::certificate_authority(std::string folder, const std::string& name)
    : folder_(std::move(folder)), file_(folder_ + "/" + name + ".pem") {
  auto key = new_key();
  auto certificate = new_certificate(name, key.get(), -3600, 3600, true, nullptr, key.get());
  write_certificate(file_, certificate.get());
  keys_ = std::make_unique<keys>(keys{std::move(key), std::move(certificate)});
}

certificate_authority::~certificate_authority() = default;

wire_protection certificate_authority::issue(const std::string& name, std::int64_t from_s,
                                             std::int64_t until_s, const std::string& ca) const {
  const auto key = new_key();
  const auto c = new_certificate(name, key.get(), from_s, until_s, false, keys_->certificate.get(),
                                 keys_->key.get());
  wire_protection out;
  out.certificate = folder_ + "/" + name + ".pem";
  out.key = folder_ + "/" + name + ".key";
  out.ca = ca.empty() ? file_ : ca;
  write_certificate(out.certificate, c.get());
  write_key(out.key, key.get());
  return out;
}

wire_protection certificate_authority::self_signed(const std::string& name) const {
  const auto key = new_key();
  const auto c = new_certificate(name, key.get(), -3600, 3600, false, nullptr, key.get());
  wire_protection out;
  out.certificate = folder_ + "/" + name + ".pem";
  out.key = folder_ + "/" + name + ".key";
  out.ca = file_;
  write_certificate(out.certificate, c.get());
  write_key(out.key, key.get());
  return out;
}

}  // namespace troupe::test
