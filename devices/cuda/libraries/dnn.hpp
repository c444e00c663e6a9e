#pragma once
// Convolutions by cuDNN, which is loaded when the first one is planned.
//
// The functions of its first interface, not its graphs: a graph's plans are objects of a C++ header
// that is not part of the toolkit, and a convolution alone gains nothing by them.
//
// Threading: any; one call into cuDNN at a time, which is microseconds.
//
// DN-1  Only algorithms that give the same bits in every run are chosen; without tf32 only those
//       that multiply as the type says.

#include "troupe/devices/cuda/cuda_kernel.hpp"

#include <memory>
#include <string>

namespace troupe::cuda {

class dnn {
 public:
  // Of the current device. Error: there is no cuDNN, or the program was built without its headers.
  static result<std::unique_ptr<dnn>> make(std::string device);
  virtual ~dnn() = default;
  virtual result<chip_services::plan_ref> plan(const convolution& c) = 0;
  virtual result<void> convolve(const launch_site& at, const chip_services::plan& p, void* x,
                                void* w, void* y, std::byte* workspace) = 0;
};

}  // namespace troupe::cuda
