# Warnings are GCC's, for Troupe's own sources, and errors only where Troupe itself is the project. Another compiler says what it says by itself.
# Flags are for C++ alone: nvcc, which takes neither these nor -march, gets its own where its target stands.
set(TROUPE_NOT_CUDA $<NOT:$<COMPILE_LANGUAGE:CUDA>>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options("$<${TROUPE_NOT_CUDA}:-Wall;-Wextra;-Wpedantic;-Wconversion>")
  if(PROJECT_IS_TOP_LEVEL)
    add_compile_options($<${TROUPE_NOT_CUDA}:-Werror>)
  endif()
  # GCC 12 sees overflows and null pointers in inlined standard library code that are not there.
  add_compile_options("$<${TROUPE_NOT_CUDA}:-Wno-stringop-overflow;-Wno-array-bounds;-Wno-maybe-uninitialized;-Wno-restrict;-Wno-null-dereference>")
endif()

# Names of sources in objects and messages are relative to the source folder, so that they do not differ between clones. Those that ccache passes on are relative to the build folder.
if(PROJECT_IS_TOP_LEVEL)
  file(RELATIVE_PATH up ${PROJECT_BINARY_DIR} ${PROJECT_SOURCE_DIR})
  add_compile_options("$<${TROUPE_NOT_CUDA}:-ffile-prefix-map=${PROJECT_SOURCE_DIR}/=;-ffile-prefix-map=${up}=;-ffile-prefix-map=include/troupe/=;-ffile-prefix-map=${PROJECT_BINARY_DIR}/include/troupe/=>")
endif()

# Compiles the sources of a target in `groups` groups, each as one: a build from scratch takes a quarter less time. Names in their anonymous
# namespaces must then differ within a group; a file's own name says which that is, so that a new file moves no other. Builds without
# TROUPE_UNITY see whether each source includes what it uses. With SANITIZED only under sanitizers: what is fast or measured stays in sources of its own, since a
# compiler inlines less in a larger one (a hop in groups: 13 % slower). ALONE: sources that stand in no group. (CMake's own groups include sources by absolute
# paths, which no cache finds again from another folder.)
function(troupe_unite target groups)
  cmake_parse_arguments(arg "SANITIZED" "" "ALONE" ${ARGN})
  if(NOT TROUPE_UNITY OR (arg_SANITIZED AND NOT TROUPE_SANITIZE))
    return()
  endif()
  target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)  # a source that is included is no header
  get_target_property(sources ${target} SOURCES)
  set(left "")
  foreach(source ${sources})
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR} NORMALIZE)
    get_filename_component(name ${source} NAME)
    cmake_path(IS_PREFIX PROJECT_BINARY_DIR ${source} is_generated)
    if(is_generated OR name IN_LIST arg_ALONE OR NOT name MATCHES "\\.cpp$")
      list(APPEND left ${source})
      continue()
    endif()
    string(MD5 hash ${name})
    string(SUBSTRING ${hash} 0 6 hash)
    math(EXPR group "0x${hash} % ${groups}")
    cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${PROJECT_SOURCE_DIR})
    string(APPEND group_${group} "#include \"${source}\"\n")
  endforeach()
  math(EXPR last "${groups} - 1")
  foreach(group RANGE ${last})
    if(group_${group})
      set(file ${CMAKE_CURRENT_BINARY_DIR}/groups/${target}_${group}.cpp)
      file(CONFIGURE OUTPUT ${file} CONTENT "${group_${group}}" @ONLY)
      list(APPEND left ${file})
    endif()
  endforeach()
  set_target_properties(${target} PROPERTIES SOURCES "${left}")
endfunction()

# For what reads arguments and writes texts: -O1 takes the compiler two thirds of what -O3 does (troupe-sim's main(): 17 s instead of 27), and nobody waits for such code.
function(troupe_compile_quickly target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
endfunction()

# Headers that most sources of a target include, compiled once before them, where a build is from scratch (TROUPE_UNITY). A build without sees whether each source includes what it uses.
function(troupe_precompile target)
  if(NOT TROUPE_UNITY)
    return()
  endif()
  target_precompile_headers(${target} PRIVATE ${ARGN})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    target_compile_options(${target} PRIVATE "SHELL:-Xclang -fno-pch-timestamp")  # or ccache takes each for another one
  endif()
endfunction()

# One interface target with what every target of Troupe is built with, and every program that links it: headers have code, too.
add_library(troupe_options INTERFACE)
target_compile_features(troupe_options INTERFACE cxx_std_20)
# Headers are included as "troupe/LAYER/ROOM/NAME.hpp", here by a link to the source folder: so nothing of ours meets a user's own runtime/plan.hpp.
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/include)
file(CREATE_LINK ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}/include/troupe SYMBOLIC)
target_include_directories(troupe_options INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/actors/api> $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>
                                                    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
# What is nobody else's: tools, tests and apps by their folders, and generated files in the build folder.
include_directories(${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR})
# No contraction: a fused multiply-add is an op of its own, so that vector bodies and tails give equal bits.
target_compile_options(troupe_options INTERFACE $<${TROUPE_NOT_CUDA}:-ffp-contract=off>)
if(TROUPE_ARCH)
  target_compile_options(troupe_options INTERFACE $<${TROUPE_NOT_CUDA}:-march=${TROUPE_ARCH}>)
endif()
if(TROUPE_SANITIZE)
  target_compile_options(troupe_options INTERFACE "$<${TROUPE_NOT_CUDA}:-fsanitize=${TROUPE_SANITIZE};-fno-omit-frame-pointer>")
  target_link_options(troupe_options INTERFACE -fsanitize=${TROUPE_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 20)  # newer ones define it themselves, as GCC does
    string(REGEX MATCH "address|thread" kind "${TROUPE_SANITIZE}")
    string(TOUPPER "__SANITIZE_${kind}__" macro)
    target_compile_definitions(troupe_options INTERFACE ${macro}=1)
  endif()
  if(TROUPE_SANITIZE MATCHES "undefined")
    target_compile_options(troupe_options INTERFACE $<${TROUPE_NOT_CUDA}:-fno-sanitize-recover=all>)
    # Checks of pointers are a third of the compiler's time. A null pointer and what lies outside of an object are AddressSanitizer's to find; parsers of bytes run with
    # all checks as fuzz targets.
    target_compile_options(troupe_options INTERFACE $<${TROUPE_NOT_CUDA}:-fno-sanitize=null,alignment,vptr,object-size,nonnull-attribute,returns-nonnull-attribute,return>)
  endif()
  if(TROUPE_SANITIZE MATCHES "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(troupe_options INTERFACE $<${TROUPE_NOT_CUDA}:-Wno-tsan>)
  endif()
endif()

# For targets with loops over numbers. Nobody reads the flags of floating-point exceptions, or errno after a square root, and without
# them GCC turns selects into vector blends and takes roots of whole vectors; values are the same.
add_library(troupe_loops INTERFACE)
target_compile_options(troupe_loops INTERFACE -fno-trapping-math -fno-math-errno)

find_program(TROUPE_MOLD mold)
if(TROUPE_MOLD)
  target_link_options(troupe_options INTERFACE $<BUILD_INTERFACE:-fuse-ld=mold>)
endif()
