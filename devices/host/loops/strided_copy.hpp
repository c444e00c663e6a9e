#pragma once
// Moves the elements of one box of a tensor to a box of another: the loops of transpose, slice,
// pad, concat, tile and their gradients. Used in devices/host/ only.
//
// Threading: a value; run() may be called from several threads.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace troupe::host {

class strided_copy {
 public:
  struct loop {
    std::int64_t size = 1;
    std::int64_t to = 0, from = 0;  // elements from one position to the next
  };

  strided_copy() = default;
  // Loops outermost first. Elements of 1, 2, 4 or 8 bytes. No element is written twice.
  strided_copy(std::vector<loop> loops, std::size_t element_bytes);

  void run(std::byte* to, const std::byte* from) const noexcept;

 private:
  template <class T>
  void run_as(T* to, const T* from) const noexcept;

  std::vector<loop> around_;  // outermost first
  loop rows_, columns_;       // inside of these
  std::size_t element_bytes_ = 4;
};

// The steps of a dense tensor of these sizes.
std::vector<std::int64_t> dense_steps(std::span<const std::int64_t> sizes);

}  // namespace troupe::host
