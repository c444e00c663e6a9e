#pragma once
// The disk of this machine, over POSIX calls. Threading: any thread, no state.

#include "troupe/devices/files/disk.hpp"

namespace troupe {

std::unique_ptr<disk> make_host_disk();

}  // namespace troupe
