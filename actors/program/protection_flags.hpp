#pragma once
// The flags that say how a process's connections are protected: of nodes, of the tool and of every
// program that uses a cluster.

#include "troupe/runtime/wire/wire_protection.hpp"

namespace troupe {

// --tls, --insecure, --tls-certificate, --tls-key, --tls-ca. `app` is a CLI::App; `protect`
// outlives it.
template <class App>
void add_protection_flags(App& app, wire_protection& protect) {
  app.add_flag("--tls", protect.tls,
               "Protect connections (TLS) on loopback, too; beyond it they are unless --insecure");
  app.add_flag("--insecure", protect.insecure,
               "Do not protect connections beyond loopback: who is on the way can read them and "
               "take them over");
  app.add_option("--tls-certificate", protect.certificate,
                 "File with this process's certificate (PEM): connections are protected by "
                 "certificates of both ends instead of by the token, on loopback, too")
      ->type_name("FILE");
  app.add_option("--tls-key", protect.key, "File with its private key (PEM, without a passphrase)")
      ->type_name("FILE");
  app.add_option("--tls-ca", protect.ca,
                 "File with the CA (PEM) that has signed the certificates of all processes of the "
                 "cluster")
      ->type_name("FILE");
}

}  // namespace troupe
