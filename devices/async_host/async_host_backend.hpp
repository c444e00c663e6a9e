#pragma once
// The host's kernels on the asynchronous host device: what a graph computes there has the host's
// bits, in the order and at the times of device streams.
//
// Threading: as devices/device/device_backend.hpp says; kernels run on the thread of their stream,
// one at a time.
// Ownership: `kernels` outlives it, and so does the checker of the options. It has its chip, unless
// several share one.

#include "troupe/devices/async_host/async_host_chip.hpp"
#include "troupe/devices/device/device_backend.hpp"
#include "troupe/devices/kernel.hpp"

#include <memory>
#include <string>

namespace troupe {

// `limit_bytes` as of async_host_chip::make_device.
std::shared_ptr<device_backend> make_async_host_backend(std::string name,
                                                        std::shared_ptr<async_host_chip> chip,
                                                        const kernel_table& kernels,
                                                        std::uint64_t limit_bytes = 0);

}  // namespace troupe
