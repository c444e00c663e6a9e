#pragma once
// Which CUDA devices a machine has, or in one line why it has none.
//
// The texts are a pure function of what the driver says, so that they are tested where there is
// none.
//
// FD-1  No driver, a driver too old, no device, an index beyond: an error (not_found) of one line
//       that says what to do.

#include "troupe/schema/error.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::cuda {

struct chip {
  int index = 0;
  std::string name;          // "NVIDIA H100 80GB HBM3"
  int major = 0, minor = 0;  // compute capability
  std::uint64_t memory_bytes = 0;
  int multiprocessors = 0;
};

// What the runtime and the driver answered.
struct driver_answer {
  int driver_version = 0;   // 13000 for CUDA 13.0; 0: no driver
  int runtime_version = 0;  // that the program was built with
  int status = 0;           // of asking for the number of devices: a cudaError_t
  std::string status_text;
  int devices = 0;
};

// "13.0" of 13000.
std::string version_text(int version);
// Empty: there are devices.
std::string why_none(const driver_answer& a);
// Whether there is an index'th; `device`: "gpu:3".
result<void> check_index(const driver_answer& a, std::string_view device, int index);
// The lowest compute capability that the program has code for: 7.5.
result<void> check_capability(std::string_view device, std::string_view name, int major, int minor);

driver_answer ask_driver();
result<std::vector<chip>> find_chips();

}  // namespace troupe::cuda
