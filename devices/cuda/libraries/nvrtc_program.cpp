#include "troupe/devices/cuda/libraries/nvrtc_program.hpp"

#include "troupe/devices/cuda/cuda_error.hpp"
#include "troupe/devices/cuda/libraries/shared_library.hpp"

#include <fmt/format.h>
#include <nvrtc.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <fstream>
#include <utility>

namespace troupe::cuda {
namespace {

struct text_of_header {
  const char* name;
  const char* text;
};

constexpr text_of_header headers[] = {
#include "devices/cuda/embedded_headers.inc"
    // What our headers take of the standard library.
    {"cstddef", "#pragma once\nnamespace std { using size_t = decltype(sizeof(0)); }\n"},
    {"cstdint", R"(#pragma once
namespace std {
using int8_t = signed char; using int16_t = short; using int32_t = int; using int64_t = long long;
using uint8_t = unsigned char; using uint16_t = unsigned short; using uint32_t = unsigned int; using uint64_t = unsigned long long;
}
)"},
    {"string_view", R"(#pragma once
namespace std { struct string_view { const char* text = ""; constexpr string_view() = default; __host__ __device__ constexpr string_view(const char* t) : text(t) {} }; }
)"},
    {"bit", R"(#pragma once
namespace std { template <class To, class From> __host__ __device__ constexpr To bit_cast(const From& from) noexcept { return __builtin_bit_cast(To, from); } }
)"},
    {"type_traits", R"(#pragma once
#include <cstdint>
namespace std {
template <class A, class B> inline constexpr bool is_same_v = false;
template <class A> inline constexpr bool is_same_v<A, A> = true;
template <class T> inline constexpr bool is_floating_point_v = is_same_v<T, float> || is_same_v<T, double>;
template <class T> inline constexpr bool is_integral_v = is_same_v<T, bool> || is_same_v<T, int8_t> || is_same_v<T, int16_t> || is_same_v<T, int32_t> || is_same_v<T, int64_t> ||
    is_same_v<T, uint8_t> || is_same_v<T, uint16_t> || is_same_v<T, uint32_t> || is_same_v<T, uint64_t>;
template <class T> inline constexpr bool is_signed_v = T(-1) < T(0);
template <class T> struct unsigned_of { using type = T; };
template <> struct unsigned_of<int8_t> { using type = uint8_t; };
template <> struct unsigned_of<int16_t> { using type = uint16_t; };
template <> struct unsigned_of<int32_t> { using type = uint32_t; };
template <> struct unsigned_of<int64_t> { using type = uint64_t; };
template <class T> using make_unsigned_t = typename unsigned_of<T>::type;
}
)"},
    {"limits", R"(#pragma once
#include <type_traits>
namespace std {
template <class T> struct numeric_limits {
  static constexpr bool is_of_floats = is_floating_point_v<T>;
  static constexpr bool has_infinity = is_of_floats;
  static constexpr int digits = is_same_v<T, float> ? 24 : is_same_v<T, double> ? 53 : int(sizeof(T) * 8) - (is_signed_v<T> ? 1 : 0);
  __host__ __device__ static constexpr T infinity() { return T(__builtin_bit_cast(float, 0x7f800000)); }
  __host__ __device__ static constexpr T quiet_NaN() { return T(__builtin_bit_cast(float, 0x7fc00000)); }
  __host__ __device__ static constexpr T max() { return is_signed_v<T> ? T(~(1ULL << (sizeof(T) * 8 - 1))) : T(~0ULL); }
  __host__ __device__ static constexpr T min() { return is_signed_v<T> ? T(1ULL << (sizeof(T) * 8 - 1)) : T(0); }
};
}
)"},
    {"cmath", R"(#pragma once
namespace std {
__device__ inline float abs(float x) { return ::fabsf(x); }
__device__ inline double abs(double x) { return ::fabs(x); }
__device__ inline float sqrt(float x) { return ::sqrtf(x); }
__device__ inline double sqrt(double x) { return ::sqrt(x); }
__device__ inline float fma(float a, float b, float c) { return ::fmaf(a, b, c); }
__device__ inline double fma(double a, double b, double c) { return ::fma(a, b, c); }
__device__ inline float floor(float x) { return ::floorf(x); }
__device__ inline double floor(double x) { return ::floor(x); }
__device__ inline float ceil(float x) { return ::ceilf(x); }
__device__ inline double ceil(double x) { return ::ceil(x); }
__device__ inline float nearbyint(float x) { return ::nearbyintf(x); }
__device__ inline double nearbyint(double x) { return ::nearbyint(x); }
__device__ inline double exp(double x) { return ::exp(x); }
__device__ inline double log(double x) { return ::log(x); }
__device__ inline double log1p(double x) { return ::log1p(x); }
__device__ inline double pow(double a, double b) { return ::pow(a, b); }
__device__ inline double erf(double x) { return ::erf(x); }
__device__ inline double erfc(double x) { return ::erfc(x); }
__device__ inline double sin(double x) { return ::sin(x); }
__device__ inline double cos(double x) { return ::cos(x); }
__device__ inline double tanh(double x) { return ::tanh(x); }
__device__ inline float fmod(float a, float b) { return ::fmodf(a, b); }
__device__ inline double fmod(double a, double b) { return ::fmod(a, b); }
__device__ inline double tan(double x) { return ::tan(x); }
__device__ inline double expm1(double x) { return ::expm1(x); }
__device__ inline double asin(double x) { return ::asin(x); }
__device__ inline double acos(double x) { return ::acos(x); }
__device__ inline double atan(double x) { return ::atan(x); }
__device__ inline double sinh(double x) { return ::sinh(x); }
__device__ inline double cosh(double x) { return ::cosh(x); }
__device__ inline double asinh(double x) { return ::asinh(x); }
__device__ inline double acosh(double x) { return ::acosh(x); }
__device__ inline double atanh(double x) { return ::atanh(x); }
}
)"},
};

// No contraction and no denormal numbers, as on the host; quotients and roots are rounded correctly
// by default.
constexpr std::array options{"--std=c++20", "--fmad=false", "--ftz=true", "-default-device"};

constexpr std::array<char, 8> magic{'T', 'R', 'K', 'B', '0', '0', '0', '1'};
struct file_head {
  std::array<char, 8> mark;
  std::uint64_t size, hash;
};

std::string hex_of(std::string_view text) {
  const auto h = XXH3_128bits(text.data(), text.size());
  return fmt::format("{:016x}{:016x}", h.high64, h.low64);
}

}  // namespace

std::filesystem::path binary_folder::file_of(std::string_view key) const {
  return folder_ / fmt::format("{}.bin", key);
}

std::optional<std::vector<char>> binary_folder::read(std::string_view key) const {
  if (folder_.empty()) return std::nullopt;
  std::ifstream in(file_of(key), std::ios::binary);
  file_head head{};
  if (!in.read(reinterpret_cast<char*>(&head), sizeof head) || head.mark != magic)
    return std::nullopt;
  constexpr std::uint64_t size_max = std::uint64_t{64} << 20;
  if (head.size == 0 || head.size > size_max) return std::nullopt;
  std::vector<char> bytes(head.size);
  if (!in.read(bytes.data(), static_cast<std::streamsize>(head.size)) ||
      XXH3_64bits(bytes.data(), bytes.size()) != head.hash)
    return std::nullopt;
  return bytes;
}

bool binary_folder::write(std::string_view key, std::span<const char> bytes) const {
  if (folder_.empty()) return false;
  static std::atomic<std::uint64_t> number{0};  // so that two writers of one process differ
  std::error_code ignored;
  std::filesystem::create_directories(folder_, ignored);
  const auto to = file_of(key);
  const auto beside = folder_ / fmt::format("{}.{}.{}.new", key, ::getpid(), number.fetch_add(1));
  const file_head head{magic, bytes.size(), XXH3_64bits(bytes.data(), bytes.size())};
  {
    std::ofstream out(beside, std::ios::binary | std::ios::trunc);
    out.write(reinterpret_cast<const char*>(&head), sizeof head);
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    out.close();
    if (!out) {
      std::filesystem::remove(beside, ignored);
      return false;
    }
  }
  std::filesystem::rename(beside, to, ignored);
  if (!ignored) return true;
  std::filesystem::remove(beside, ignored);
  return false;
}

struct kernel_compiler::api {
  decltype(&::nvrtcVersion) version_of;
  decltype(&::nvrtcGetErrorString) text_of;
  decltype(&::nvrtcGetNumSupportedArchs) count_architectures;
  decltype(&::nvrtcGetSupportedArchs) architectures;
  decltype(&::nvrtcCreateProgram) create;
  decltype(&::nvrtcDestroyProgram) destroy;
  decltype(&::nvrtcCompileProgram) compile;
  decltype(&::nvrtcGetProgramLogSize) log_size;
  decltype(&::nvrtcGetProgramLog) log;
  decltype(&::nvrtcGetCUBINSize) cubin_size;
  decltype(&::nvrtcGetCUBIN) cubin;
  decltype(&::nvrtcGetPTXSize) ptx_size;
  decltype(&::nvrtcGetPTX) ptx;
  std::string version;
  std::vector<int> known;  // 75, 80, ...

  result<void> bind(const shared_library& l) {
    const std::pair<void*, const char*> all[] = {
        {&version_of, "nvrtcVersion"},
        {&text_of, "nvrtcGetErrorString"},
        {&count_architectures, "nvrtcGetNumSupportedArchs"},
        {&architectures, "nvrtcGetSupportedArchs"},
        {&create, "nvrtcCreateProgram"},
        {&destroy, "nvrtcDestroyProgram"},
        {&compile, "nvrtcCompileProgram"},
        {&log_size, "nvrtcGetProgramLogSize"},
        {&log, "nvrtcGetProgramLog"},
        {&cubin_size, "nvrtcGetCUBINSize"},
        {&cubin, "nvrtcGetCUBIN"},
        {&ptx_size, "nvrtcGetPTXSize"},
        {&ptx, "nvrtcGetPTX"},
    };
    for (const auto& [to, name] : all) {
      auto found = l.symbol(name);
      if (!found) return std::move(found.error());
      std::memcpy(to, &*found, sizeof(void*));
    }
    return {};
  }
  result<void> check(nvrtcResult status, std::string_view call) const {
    if (status == NVRTC_SUCCESS) return {};
    return call_failed({}, call, text_of(status), {});
  }
};

kernel_compiler::kernel_compiler(std::unique_ptr<api> a, std::filesystem::path folder)
    : api_(std::move(a)), folder_(std::move(folder)) {}
kernel_compiler::~kernel_compiler() = default;

result<std::unique_ptr<kernel_compiler>> kernel_compiler::make(std::filesystem::path folder) {
  constexpr std::array files{"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};
  auto library = shared_library::open(
      {"NVRTC", files, "the NVRTC library of CUDA 13 (NVIDIA's package cuda-nvrtc-13-0)"});
  if (!library) return std::move(library.error());
  auto a = std::make_unique<api>();
  if (auto ok = a->bind(*library); !ok) return std::move(ok.error());
  int major = 0, minor = 0, count = 0;
  if (auto ok = a->check(a->version_of(&major, &minor), "nvrtcVersion"); !ok)
    return std::move(ok.error());
  if (auto ok = a->check(a->count_architectures(&count), "nvrtcGetNumSupportedArchs"); !ok)
    return std::move(ok.error());
  a->known.resize(static_cast<std::size_t>(count));
  if (auto ok = a->check(a->architectures(a->known.data()), "nvrtcGetSupportedArchs"); !ok)
    return std::move(ok.error());
  a->version = fmt::format("{}.{}", major, minor);
  return std::unique_ptr<kernel_compiler>(new kernel_compiler(std::move(a), std::move(folder)));
}

std::string kernel_compiler::version() const { return api_->version; }

compiler_stats kernel_compiler::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

result<binary> kernel_compiler::compile(const std::string& source, int major, int minor,
                                        std::string_view what) {
  const int chip = major * 10 + minor;
  int below = 0;
  for (const auto a : api_->known)
    if (a <= chip) below = std::max(below, a);
  if (below == 0)
    return error(error_code::failed,
                 fmt::format("{}: NVRTC {} makes no code for compute capability {}.{}", what,
                             api_->version, major, minor));
  const auto architecture =
      below == chip ? fmt::format("sm_{}", chip) : fmt::format("compute_{}", below);
  std::string all = source;
  for (const auto& h : headers) all += h.text;
  for (const auto* o : options) all += o;
  const auto key = hex_of(all + architecture + api_->version);

  const std::lock_guard lock(mutex_);
  if (const auto at = kept_.find(key); at != kept_.end()) {
    ++stats_.from_memory;
    return at->second;
  }
  if (auto bytes = folder_.read(key)) {
    ++stats_.from_folder;
    return kept_[key] = std::make_shared<const std::vector<char>>(std::move(*bytes));
  }
  auto made = compile_now(source, architecture, what);
  if (!made) return made;
  ++stats_.compiled;
  (void)folder_.write(key, **made);  // NP-3
  kept_[key] = *made;
  return made;
}

result<binary> kernel_compiler::compile_now(const std::string& source,
                                            const std::string& architecture,
                                            std::string_view what) const {
  std::array<const char*, std::size(headers)> names{}, texts{};
  for (std::size_t i = 0; i < names.size(); ++i) {
    names[i] = headers[i].name;
    texts[i] = headers[i].text;
  }
  nvrtcProgram program = nullptr;
  if (auto ok =
          api_->check(api_->create(&program, source.c_str(), "troupe_kernel.cu",
                                   static_cast<int>(names.size()), texts.data(), names.data()),
                      "nvrtcCreateProgram");
      !ok)
    return std::move(ok.error());
  struct destroyer {
    const api& a;
    nvrtcProgram& p;
    ~destroyer() { a.destroy(&p); }
  } at_end{*api_, program};
  const auto chip = "--gpu-architecture=" + architecture;
  std::vector<const char*> all(options.begin(), options.end());
  all.push_back(chip.c_str());
  if (const auto status = api_->compile(program, static_cast<int>(all.size()), all.data());
      status != NVRTC_SUCCESS) {
    std::size_t size = 0;
    std::string log;
    if (api_->log_size(program, &size) == NVRTC_SUCCESS && size > 1) {
      log.resize(size);
      (void)api_->log(program, log.data());
      log.resize(size - 1);  // without the 0 at the end
    }
    return error(error_code::failed, fmt::format("{}: NVRTC {}: {}\n{}", what, api_->version,
                                                 api_->text_of(status), log));
  }
  const bool is_binary = architecture.starts_with("sm_");
  std::size_t size = 0;
  if (auto ok = api_->check((is_binary ? api_->cubin_size : api_->ptx_size)(program, &size),
                            "nvrtcGetCUBINSize");
      !ok)
    return std::move(ok.error());
  std::vector<char> bytes(size);
  if (auto ok = api_->check((is_binary ? api_->cubin : api_->ptx)(program, bytes.data()),
                            "nvrtcGetCUBIN");
      !ok)
    return std::move(ok.error());
  return binary(std::make_shared<const std::vector<char>>(std::move(bytes)));
}

}  // namespace troupe::cuda
