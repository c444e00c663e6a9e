#pragma once
// Calls of C libraries whose function for errors must not return. devices/images/ only.
//
// It jumps back to attempt(). What the jump skips has nothing to destroy: the library's own frames,
// and steps that are lambdas over references. Everything that owns something stands outside of
// attempt(), and the libraries' own memory belongs to owners there.

#include <array>
#include <csetjmp>
#include <cstddef>
#include <type_traits>

namespace troupe::images {

struct library_failure {
  std::jmp_buf jump;
  std::array<char, 256> text{};  // what the library says
};

// False: the step ended in the library's function for errors.
template <class Step>
bool attempt(library_failure& failure, const Step& step) {
  static_assert(std::is_trivially_destructible_v<Step>);
  if (setjmp(failure.jump) != 0) return false;
  step();
  return true;
}

}  // namespace troupe::images
