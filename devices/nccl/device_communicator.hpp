#pragma once
// NCCL behind devices/device/device_collective.hpp: a communicator on streams of a CUDA device, and
// a thread that asks it how far it is, so that nobody else has to ask again and again.
//
// Threading: as devices/device/device_collective.hpp says.

#include "troupe/devices/device/device_collective.hpp"

#include <memory>
#include <string>

namespace troupe::nccl {

// The device's chip is the calling thread's.
result<std::unique_ptr<device_communicator>> begin_on_device(const communicator_id& id, int rank,
                                                             int ranks, std::string device,
                                                             communicator_changed changed);

}  // namespace troupe::nccl
