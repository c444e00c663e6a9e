#pragma once
// What a process wants done to protect its connections: the flags --tls, --insecure,
// --tls-certificate, --tls-key and --tls-ca, as they were given. actors/net/tls_context.hpp makes
// keys of it.
//
// Threading: a value.

#include <string>

namespace troupe {

struct wire_protection {
  bool tls = false;       // also on loopback; beyond it always, unless `insecure`
  bool insecure = false;  // nowhere
  // Files in PEM format, all three or none: the certificate of this process (with those between it
  // and the CA, if any), its private key, and the CA that has signed the certificates of all
  // processes of the cluster. None: keys come from the cluster's token.
  std::string certificate{};
  std::string key{};
  std::string ca{};

  bool has_files() const noexcept { return !certificate.empty() || !key.empty() || !ca.empty(); }
};

}  // namespace troupe
