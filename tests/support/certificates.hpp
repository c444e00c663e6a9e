#pragma once
// Certificates for tests, made when they run, with files in a folder of their own.
//
// Threading: one thread each.

#include "troupe/runtime/wire/wire_protection.hpp"

#include <cstdint>
#include <memory>
#include <string>

namespace troupe::test {

class certificate_authority {
 public:
  // In `folder`, which is there: NAME.pem.
  certificate_authority(std::string folder, const std::string& name);
  ~certificate_authority();

  const std::string& file() const noexcept { return file_; }
  // A certificate of that name with its key, valid from one moment to another (seconds from now);
  // `ca`: the file that its owner checks others with, empty: this one's.
  wire_protection issue(const std::string& name, std::int64_t from_s = -3600,
                        std::int64_t until_s = 3600, const std::string& ca = {}) const;
  // One that nobody but itself has signed.
  wire_protection self_signed(const std::string& name) const;

 private:
  struct keys;
  std::unique_ptr<keys> keys_;
  std::string folder_, file_;
};

}  // namespace troupe::test
