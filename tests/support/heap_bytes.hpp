#pragma once
// How many bytes of the heap are in use, of all threads.

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#include <sanitizer/allocator_interface.h>
#else
#include <malloc.h>
#endif

namespace troupe::test {

inline std::size_t heap_bytes() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return __sanitizer_get_current_allocated_bytes();
#else
  const auto i = mallinfo2();
  return i.uordblks + i.hblkhd;
#endif
}

}  // namespace troupe::test
