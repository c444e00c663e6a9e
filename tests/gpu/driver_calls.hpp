#pragma once
// Counts of calls into the CUDA driver, by interposition: LD_PRELOAD driver_calls.so, and ask for
// them by driver_calls_now().
//
// The CUDA runtime, linked statically or not, and every library of CUDA's reach the driver by
// dlsym() for cuGetProcAddress and by that for all else; the library stands in front of both.
//
// DRV-1  A waiting call is one that may wait for the device, or keep it from running:
//        synchronisations, copies and fills without a stream, allocations and their ends, loading
//        and unloading of code, and copies on a stream from or to pageable memory.
// DRV-2  An overlap is a host function that was enqueued while an earlier one had not been called
//        yet: work of the one was enqueued before work of the other had ended.
//
// Threading: any.

#include <dlfcn.h>

#include <cstdint>
#include <cstring>

namespace troupe::test {

struct driver_calls {
  std::uint64_t waits = 0;           // DRV-1
  std::uint64_t enqueues = 0;        // kernels, graphs, copies and fills on streams
  std::uint64_t host_functions = 0;  // enqueued
  std::uint64_t overlaps = 0;        // DRV-2
  char last_wait[64] = {};           // its name
};

// false: driver_calls.so is not there.
inline bool driver_calls_now(driver_calls& to) {
  const auto ask =
      reinterpret_cast<void (*)(driver_calls*)>(::dlsym(RTLD_DEFAULT, "troupe_driver_calls"));
  if (ask != nullptr) ask(&to);
  return ask != nullptr;
}

}  // namespace troupe::test
