#pragma once
// The devices of a process: CUDA chips, each one device or several virtual ones, or asynchronous
// host devices, which stand in for them on any machine.
//
// Threading: any; what is found is opened by one thread each. Ownership: `kernels` outlives the
// devices.
//
// GP-1  Where there is no chip, `auto` finds nothing, and says why.

#include "troupe/devices/device/device_backend.hpp"
#include "troupe/devices/kernel.hpp"
#include "troupe/schema/error.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace troupe {

struct gpu_options {
  // "auto": every chip of the machine is a device. "none". "N": N devices, which share the chips.
  // "host:N": N asynchronous host devices, whose kernels are the host's.
  std::string which = "auto";
  std::uint64_t limit_bytes = 0;  // of each; 0: its part of the chip's memory
};

struct found_gpu {
  std::string name;                // "gpu:0"
  std::string hardware;            // "NVIDIA H100 80GB HBM3"
  std::uint64_t memory_bytes = 0;  // that jobs may use; 0: no limit but the machine's
  std::function<result<std::shared_ptr<device_backend>>()> open;
};
struct found_gpus {
  std::vector<found_gpu> gpus;
  std::string why_none;  // where there are none
};

// Errors: usage, for what `which` cannot mean; not_found, where chips are asked for and there are
// none.
result<found_gpus> find_gpus(const gpu_options& o, const kernel_table& kernels);

}  // namespace troupe
