#pragma once
// A kernel that makes its result piece by piece, so that who uses the pieces finds them in the
// cache: the first op of a fused group.
//
// PW-1  makes_pieces(): every element of output 0 is told once as finished, after it was written
//       for the last time and before run_by_pieces() returns.
// PW-2  A piece is told on the thread that made it, as its `worker`, below the threads of the team
//       that the kernel was made with; no two threads have the same worker at once.

#include "troupe/devices/kernel.hpp"

#include <cstddef>
#include <cstdint>

namespace troupe::host {

// Output elements of a piece, about: 512 KiB of f32, which stay in a second-level cache.
inline constexpr std::int64_t piece_elements = 131'072;

class piece_user {
 public:
  // Elements `first` to `end` - 1 of output 0.
  virtual void finished(std::int64_t first, std::int64_t end, std::size_t worker) noexcept = 0;

 protected:
  ~piece_user() = default;
};

class piecewise_kernel : public kernel {
 public:
  // Of the shapes that it is prepared for. False: run() only.
  virtual bool makes_pieces() const noexcept = 0;
  virtual result<void> run_by_pieces(const tag& t, std::span<const tensor> inputs,
                                     std::span<tensor> outputs, piece_user& user) = 0;
};

}  // namespace troupe::host
