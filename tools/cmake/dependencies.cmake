# Every package that Troupe needs, as targets. tools/setup installs them.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(CapnProto REQUIRED)  # its check for libatomic needs C among the languages
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(OpenSSL REQUIRED)
find_package(ZLIB REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(Protobuf REQUIRED)

# CLI11's package file differs between distributions, its header does not.
find_path(CLI11_INCLUDE_DIR CLI/CLI.hpp REQUIRED)
add_library(troupe_cli11 INTERFACE)
target_include_directories(troupe_cli11 SYSTEM INTERFACE ${CLI11_INCLUDE_DIR})

# oneDNN's package file asks for OpenCL headers, which nothing here uses.
find_path(DNNL_INCLUDE_DIR oneapi/dnnl/dnnl.hpp REQUIRED)
find_library(DNNL_LIBRARY dnnl REQUIRED)
add_library(troupe_dnnl INTERFACE)
target_include_directories(troupe_dnnl SYSTEM INTERFACE ${DNNL_INCLUDE_DIR})
target_link_libraries(troupe_dnnl INTERFACE ${DNNL_LIBRARY} OpenMP::OpenMP_CXX)

# xxHash, header only.
find_path(XXHASH_INCLUDE_DIR xxhash.h REQUIRED)
add_library(troupe_xxhash INTERFACE)
target_include_directories(troupe_xxhash SYSTEM INTERFACE ${XXHASH_INCLUDE_DIR})
target_compile_definitions(troupe_xxhash INTERFACE $<BUILD_INTERFACE:XXH_INLINE_ALL>)

# CAF 0.17 has no package file. The scheduler uses parts that are public but meant for CAF itself, hence the exact version.
find_path(CAF_INCLUDE_DIR caf/config.hpp REQUIRED)
find_library(CAF_CORE_LIBRARY caf_core REQUIRED)
file(STRINGS ${CAF_INCLUDE_DIR}/caf/config.hpp CAF_VERSION_LINE REGEX "#define CAF_VERSION [0-9]+")
if(NOT CAF_VERSION_LINE MATCHES "1706")
  message(FATAL_ERROR "Troupe needs CAF 0.17.6 (Debian's libcaf-dev), found: ${CAF_VERSION_LINE}")
endif()
add_library(troupe_caf INTERFACE)
target_include_directories(troupe_caf SYSTEM INTERFACE ${CAF_INCLUDE_DIR})
target_link_libraries(troupe_caf INTERFACE ${CAF_CORE_LIBRARY} Threads::Threads)

# CUDA and NCCL: found or left out. Nothing uses them yet; devices/ is the only place that may.
find_package(CUDAToolkit QUIET)
