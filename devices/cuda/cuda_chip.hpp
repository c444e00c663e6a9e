#pragma once
// A chip as kernels use it: launches, copies, and the libraries, each loaded when something first
// needs it.
//
// Threading: plans on any thread, the rest as the stream that it is for.
// Ownership: outlives kernels and plans; binaries of generated kernels stay loaded until it ends.
//
// CC-1  A library that is missing is an error of the op that needs it, at prepare(): the others
//       run.
// CC-2  Every call is on the chip: whoever calls has made it current (cuda_device does) or uses one
//       chip alone.

#include "troupe/devices/cuda/cuda_kernel.hpp"
#include "troupe/devices/cuda/libraries/find_devices.hpp"

#include <filesystem>
#include <memory>
#include <string>

namespace troupe::cuda {

struct chip_options {
  std::filesystem::path binary_folder;  // of generated kernels; empty: in memory alone
  // Else the compiled element-wise kernels, as where there is none.
  bool uses_nvrtc = true;
};
// For binaries of this user on this machine: $XDG_CACHE_HOME/troupe/kernels, else
// ~/.cache/troupe/kernels; empty where neither is known.
std::filesystem::path default_binary_folder();

class cuda_chip : public chip_services {
 public:
  // Errors: there is no such chip, or it is too old (find_devices.hpp).
  static result<std::unique_ptr<cuda_chip>> make(std::string device, int index,
                                                 const chip_options& options);
  virtual const chip& hardware() const noexcept = 0;
  // Makes the chip the calling thread's.
  virtual result<void> make_current() const = 0;
};

}  // namespace troupe::cuda
