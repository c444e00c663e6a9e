# Every package that Troupe needs, as targets. tools/setup installs them.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(CapnProto REQUIRED)  # its check for libatomic needs C among the languages
# Debian's oneDNN computes with GCC's OpenMP, also in a program of another compiler: a second one would not hear how many threads it may take.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  find_package(OpenMP REQUIRED COMPONENTS CXX)
  set(TROUPE_OPENMP OpenMP::OpenMP_CXX)
else()
  find_library(TROUPE_OPENMP NAMES libgomp.so.1 gomp REQUIRED)
endif()
find_package(OpenSSL REQUIRED)
find_package(ZLIB REQUIRED)
find_package(PNG REQUIRED)
find_package(JPEG REQUIRED)  # libjpeg-turbo: devices/images/jpeg_image.cpp looks
find_package(nlohmann_json REQUIRED)
find_package(Protobuf REQUIRED)
find_package(spdlog REQUIRED)  # of troupe-node alone
get_target_property(spdlog_definitions spdlog::spdlog INTERFACE_COMPILE_DEFINITIONS)
if(NOT "SPDLOG_FMT_EXTERNAL" IN_LIST spdlog_definitions)
  message(FATAL_ERROR "spdlog has a copy of fmt of its own, which would stand beside the system's: install one that is built with SPDLOG_FMT_EXTERNAL (Debian's libspdlog-dev)")
endif()

find_package(TBB QUIET)  # for troupe-bench alone, which leaves out what it lacks

# CLI11's package file differs between distributions, its header does not.
find_path(CLI11_INCLUDE_DIR CLI/CLI.hpp REQUIRED)
add_library(troupe_cli11 INTERFACE)
target_include_directories(troupe_cli11 SYSTEM INTERFACE ${CLI11_INCLUDE_DIR})

# oneDNN's package file asks for OpenCL headers, which nothing here uses.
find_path(DNNL_INCLUDE_DIR oneapi/dnnl/dnnl.hpp REQUIRED)
find_library(DNNL_LIBRARY dnnl REQUIRED)
add_library(troupe_dnnl INTERFACE)
target_include_directories(troupe_dnnl SYSTEM INTERFACE ${DNNL_INCLUDE_DIR})
target_link_libraries(troupe_dnnl INTERFACE ${DNNL_LIBRARY} ${TROUPE_OPENMP})

# Boost.Asio and Boost.Beast, header only.
find_path(BOOST_ASIO_INCLUDE_DIR boost/beast.hpp REQUIRED)
add_library(troupe_asio INTERFACE)
target_include_directories(troupe_asio SYSTEM INTERFACE ${BOOST_ASIO_INCLUDE_DIR})
target_link_libraries(troupe_asio INTERFACE Threads::Threads)
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")  # Asio 1.74 looks for the coroutines that Clang had before C++20
  target_compile_definitions(troupe_asio INTERFACE BOOST_ASIO_HAS_CO_AWAIT=1 BOOST_ASIO_HAS_STD_COROUTINE=1)
endif()

# xxHash, header only.
find_path(XXHASH_INCLUDE_DIR xxhash.h REQUIRED)
add_library(troupe_xxhash INTERFACE)
target_include_directories(troupe_xxhash SYSTEM INTERFACE ${XXHASH_INCLUDE_DIR})
target_compile_definitions(troupe_xxhash INTERFACE $<BUILD_INTERFACE:XXH_INLINE_ALL>)

# Zstandard's package file has other targets in each version.
find_path(ZSTD_INCLUDE_DIR zstd.h REQUIRED)
find_library(ZSTD_LIBRARY zstd REQUIRED)
add_library(troupe_zstd INTERFACE)
target_include_directories(troupe_zstd SYSTEM INTERFACE ${ZSTD_INCLUDE_DIR})
target_link_libraries(troupe_zstd INTERFACE ${ZSTD_LIBRARY})

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

# CUDA: found, or left out with everything else built as before. Headers and the static runtime are all that is taken at build time: NVRTC, cuBLASLt, cuDNN,
# NCCL and the driver are loaded at run time where they are (devices/cuda/libraries/shared_library.hpp), so one binary runs on machines with and without them.
# Builds with sanitizers are without it unless it is ON: they test what kernels compute on the host, and what NVIDIA's libraries do is not for them to judge.
set(TROUPE_CUDA AUTO CACHE STRING "CUDA devices: AUTO (where the toolkit is found, without sanitizers), ON or OFF")
set(TROUPE_HAS_CUDA OFF)
if(TROUPE_CUDA STREQUAL "ON" OR (TROUPE_CUDA STREQUAL "AUTO" AND NOT TROUPE_SANITIZE))
  find_package(CUDAToolkit 13 QUIET)
  if(CUDAToolkit_FOUND)
    include(CheckLanguage)
    check_language(CUDA)
    find_path(CUBLASLT_INCLUDE_DIR cublasLt.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
    find_path(NVRTC_INCLUDE_DIR nvrtc.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
    find_path(CUDNN_INCLUDE_DIR cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
    find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
    if(CMAKE_CUDA_COMPILER AND CUBLASLT_INCLUDE_DIR AND NVRTC_INCLUDE_DIR AND TARGET CUDA::cudart_static)
      set(CMAKE_CUDA_ARCHITECTURES OFF)  # CMake 3.25 does not know 90a; devices/CMakeLists.txt has the flags
      enable_language(CUDA)
      if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # nor that nvcc takes C++20
        set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
        set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
        set(CMAKE_CUDA20_COMPILE_FEATURES cuda_std_20)
        list(APPEND CMAKE_CUDA_COMPILE_FEATURES cuda_std_20)
      endif()
      set(CMAKE_CUDA_STANDARD 20)
      set(CMAKE_CUDA_STANDARD_REQUIRED ON)
      set(CMAKE_CUDA_COMPILER_LAUNCHER ${TROUPE_LAUNCH})
      set(TROUPE_HAS_CUDA ON)
    endif()
  endif()
  if(TROUPE_CUDA STREQUAL "ON" AND NOT TROUPE_HAS_CUDA)
    message(FATAL_ERROR "TROUPE_CUDA is ON, but the CUDA toolkit (13 or newer, with nvcc, cuBLASLt's and NVRTC's headers) was not found; set CUDAToolkit_ROOT, or leave TROUPE_CUDA at AUTO")
  endif()
endif()
message(STATUS "CUDA devices: ${TROUPE_HAS_CUDA}")
