# One interface target with the flags that every target of Troupe is built with.
add_library(troupe_options INTERFACE)
target_include_directories(troupe_options INTERFACE ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR})
# No contraction: a fused multiply-add is an op of its own, so that vector bodies and tails give equal bits.
target_compile_options(troupe_options INTERFACE -Wall -Wextra -Wpedantic -Wconversion -Werror -ffp-contract=off)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 sees overflows and null pointers in inlined standard library code that are not there.
  target_compile_options(troupe_options INTERFACE -Wno-stringop-overflow -Wno-array-bounds -Wno-maybe-uninitialized
                                                  -Wno-restrict -Wno-null-dereference)
endif()
if(TROUPE_ARCH)
  target_compile_options(troupe_options INTERFACE -march=${TROUPE_ARCH})
endif()
if(TROUPE_SANITIZE)
  target_compile_options(troupe_options INTERFACE -fsanitize=${TROUPE_SANITIZE} -fno-omit-frame-pointer)
  target_link_options(troupe_options INTERFACE -fsanitize=${TROUPE_SANITIZE})
  if(TROUPE_SANITIZE MATCHES "undefined")
    target_compile_options(troupe_options INTERFACE -fno-sanitize-recover=all)
  endif()
  if(TROUPE_SANITIZE MATCHES "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(troupe_options INTERFACE -Wno-tsan)
  endif()
endif()

# For targets with loops over numbers. Nobody reads the flags of floating-point exceptions, and without them GCC turns selects
# into vector blends; values are the same.
add_library(troupe_loops INTERFACE)
target_compile_options(troupe_loops INTERFACE -fno-trapping-math)

find_program(TROUPE_MOLD mold)
if(TROUPE_MOLD)
  target_link_options(troupe_options INTERFACE -fuse-ld=mold)
endif()
