// The library of driver_calls.hpp. With TROUPE_DRIVER_CALLS=FILE it also writes, at the program's
// end, how often each waiting call was made.

#include "tests/gpu/driver_calls.hpp"

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string_view>
#include <utility>

namespace {

using word = std::uintptr_t;
// No function of the driver that is counted takes more (cuLaunchKernel takes eleven), or a number
// in floating point: what a caller did not pass is handed on as it lies there.
using any_function = word (*)(word, word, word, word, word, word, word, word, word, word, word,
                              word);

enum class kind : std::uint8_t { none, waits, copies, enqueues, host_function, finds };

constexpr std::array waiting{"cuCtxSynchronize", "cuStreamSynchronize", "cuEventSynchronize",
                             "cuMemcpy",         "cuMemcpyPeer",        "cuMemcpyHtoD",
                             "cuMemcpyDtoH",     "cuMemcpyDtoD",        "cuMemcpyDtoA",
                             "cuMemcpyAtoD",     "cuMemcpyHtoA",        "cuMemcpyAtoH",
                             "cuMemcpyAtoA",     "cuMemcpy2D",          "cuMemcpy2DUnaligned",
                             "cuMemcpy3D",       "cuMemcpy3DPeer",      "cuMemsetD8",
                             "cuMemsetD16",      "cuMemsetD32",         "cuMemsetD2D8",
                             "cuMemsetD2D16",    "cuMemsetD2D32",       "cuMemAlloc",
                             "cuMemAllocPitch",  "cuMemAllocManaged",   "cuMemAllocHost",
                             "cuMemHostAlloc",   "cuMemHostRegister",   "cuMemHostUnregister",
                             "cuMemFree",        "cuMemFreeHost",       "cuModuleLoad",
                             "cuModuleLoadData", "cuModuleLoadDataEx",  "cuModuleLoadFatBinary",
                             "cuModuleUnload",   "cuLibraryLoadData",   "cuLibraryLoadFromFile",
                             "cuLibraryUnload"};
constexpr std::array copying{"cuMemcpyAsync", "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync"};
constexpr std::array enqueueing{
    "cuLaunchKernel",    "cuLaunchKernelEx",  "cuLaunchCooperativeKernel", "cuGraphLaunch",
    "cuMemcpyDtoDAsync", "cuMemcpyPeerAsync", "cuMemcpy2DAsync",           "cuMemcpy3DAsync",
    "cuMemsetD8Async",   "cuMemsetD16Async",  "cuMemsetD32Async"};

// "cuMemcpyHtoD" of "cuMemcpyHtoD_v2_ptds".
std::string_view base_of(std::string_view name) {
  for (const std::string_view end : {"_ptds", "_ptsz"})
    if (name.ends_with(end)) name.remove_suffix(end.size());
  if (name.size() > 3 && name[name.size() - 3] == '_' && name[name.size() - 2] == 'v' &&
      name.back() >= '1' && name.back() <= '9')
    name.remove_suffix(3);
  return name;
}

template <std::size_t N>
const char* find(const std::array<const char*, N>& all, std::string_view name) {
  for (const char* n : all)
    if (name == n) return n;
  return nullptr;
}

std::pair<kind, const char*> kind_of(std::string_view full) {
  const auto name = base_of(full);
  if (const char* n = find(waiting, name)) return {kind::waits, n};
  if (const char* n = find(copying, name)) return {kind::copies, n};
  if (const char* n = find(enqueueing, name)) return {kind::enqueues, n};
  if (name == "cuLaunchHostFunc") return {kind::host_function, "cuLaunchHostFunc"};
  if (name == "cuGetProcAddress") return {kind::finds, "cuGetProcAddress"};
  return {kind::none, nullptr};
}

struct slot {
  any_function original = nullptr;
  const char* name = nullptr;  // without its version
  kind what = kind::none;
  std::atomic<std::uint64_t> calls{0};
};
constexpr std::size_t slots_max = 256;  // names, each with few versions

// All that is counted; made first and never destroyed, since libraries call the driver until the
// process is gone.
struct counts {
  std::mutex mutex;  // of adding slots
  std::array<slot, slots_max> slots;
  std::size_t used = 0;
  std::atomic<std::uint64_t> waits{0}, enqueues{0}, host_functions{0}, called{0}, overlaps{0};
  std::atomic<const char*> last_wait{""};
  std::atomic<any_function> attribute_of{nullptr};  // cuPointerGetAttribute
};
counts& all() {
  static auto* const made = new counts;
  return *made;
}

void count_wait(const char* name) {
  ++all().waits;
  all().last_wait = name;
}

bool is_pageable(word address) {
  const auto ask = all().attribute_of.load();
  if (ask == nullptr || address == 0) return false;
  constexpr word memory_type = 2, invalid_value = 1;
  unsigned int type = 0;
  return (ask(reinterpret_cast<word>(&type), memory_type, address, 0, 0, 0, 0, 0, 0, 0, 0, 0) &
          0xFFFFFFFFU) == invalid_value;
}

struct host_function {
  void (*fn)(void*);
  void* data;
};
void call_host_function(void* data) {
  const auto f = *static_cast<host_function*>(data);
  delete static_cast<host_function*>(data);
  ++all().called;
  f.fn(f.data);
}

void* in_front_of(const char* name, void* original);

word called(std::size_t index, word a, word b, word c, word d, word e, word f, word g, word h,
            word i, word j, word k, word l) {
  auto& s = all().slots[index];
  ++s.calls;
  switch (s.what) {
    case kind::waits: count_wait(s.name); break;
    case kind::copies:
      ++all().enqueues;
      if (is_pageable(a) || is_pageable(b))
        count_wait("a copy on a stream from or to pageable memory");
      break;
    case kind::enqueues: ++all().enqueues; break;
    case kind::host_function: {
      if (all().host_functions.load() > all().called.load()) ++all().overlaps;
      ++all().host_functions;
      auto* held =
          new host_function{reinterpret_cast<void (*)(void*)>(b), reinterpret_cast<void*>(c)};
      const auto status = s.original(a, reinterpret_cast<word>(&call_host_function),
                                     reinterpret_cast<word>(held), d, e, f, g, h, i, j, k, l);
      if ((status & 0xFFFFFFFFU) != 0) {
        delete held;
        ++all().called;  // it never will be
      }
      return status;
    }
    case kind::finds: {
      const auto status = s.original(a, b, c, d, e, f, g, h, i, j, k, l);
      auto** found = reinterpret_cast<void**>(b);
      if ((status & 0xFFFFFFFFU) == 0 && found != nullptr && *found != nullptr)
        *found = in_front_of(reinterpret_cast<const char*>(a), *found);
      return status;
    }
    case kind::none: break;
  }
  return s.original(a, b, c, d, e, f, g, h, i, j, k, l);
}

template <std::size_t I>
word standing_in(word a, word b, word c, word d, word e, word f, word g, word h, word i, word j,
                 word k, word l) {
  return called(I, a, b, c, d, e, f, g, h, i, j, k, l);
}
template <std::size_t... I>
constexpr std::array<any_function, sizeof...(I)> stand_ins(std::index_sequence<I...>) {
  return {&standing_in<I>...};
}
constexpr auto functions = stand_ins(std::make_index_sequence<slots_max>());

// What a caller is given instead of `original`, which the driver calls `name`.
void* in_front_of(const char* name, void* original) {
  if (base_of(name) == "cuPointerGetAttribute")
    all().attribute_of = reinterpret_cast<any_function>(original);
  const auto [what, known] = kind_of(name);
  if (what == kind::none) return original;
  const std::lock_guard lock(all().mutex);
  for (std::size_t i = 0; i < all().used; ++i) {
    if (reinterpret_cast<void*>(all().slots[i].original) == original &&
        all().slots[i].name == known)
      return reinterpret_cast<void*>(functions[i]);
    // It went through here before.
    if (reinterpret_cast<void*>(functions[i]) == original) return original;
  }
  if (all().used == slots_max) {
    std::fprintf(stderr, "driver_calls: more than %zu functions: %s is not counted\n", slots_max,
                 name);
    return original;
  }
  auto& s = all().slots[all().used];
  s.original = reinterpret_cast<any_function>(original);
  s.name = known;
  s.what = what;
  return reinterpret_cast<void*>(functions[all().used++]);
}

using dlsym_function = void* (*)(void*, const char*);
dlsym_function original_dlsym() {
  static const auto found = [] {
    // Of the C library, of earlier ones, of other processors.
    for (const char* version : {"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17"})
      if (void* at = ::dlvsym(RTLD_NEXT, "dlsym", version); at != nullptr)
        return reinterpret_cast<dlsym_function>(at);
    std::fprintf(stderr, "driver_calls: this C library has no dlsym that is known\n");
    std::abort();
  }();
  return found;
}

[[gnu::destructor]] void report() {
  const char* file = std::getenv("TROUPE_DRIVER_CALLS");
  if (file == nullptr) return;
  std::FILE* out = std::fopen(file, "a");
  if (out == nullptr) return;
  std::fprintf(
      out,
      "waiting calls %llu, enqueued %llu, host functions %llu, of them %llu before an earlier one was called\n",
      static_cast<unsigned long long>(all().waits), static_cast<unsigned long long>(all().enqueues),
      static_cast<unsigned long long>(all().host_functions),
      static_cast<unsigned long long>(all().overlaps));
  for (std::size_t i = 0; i < all().used; ++i)
    if (const auto& s = all().slots[i]; s.what == kind::waits && s.calls != 0)
      std::fprintf(out, "  %s %llu\n", s.name, static_cast<unsigned long long>(s.calls));
  std::fclose(out);
}

}  // namespace

extern "C" {

[[gnu::visibility("default")]] void* dlsym(void* __restrict handle,
                                           const char* __restrict name) noexcept {
  const auto original = original_dlsym();
  if (std::strncmp(name, "cu", 2) != 0) return original(handle, name);
  void* found = original(handle, name);
  return found != nullptr ? in_front_of(name, found) : nullptr;
}

[[gnu::visibility("default")]] void troupe_driver_calls(troupe::test::driver_calls* to) {
  auto& a = all();
  *to = {};
  to->waits = a.waits;
  to->enqueues = a.enqueues;
  to->host_functions = a.host_functions;
  to->overlaps = a.overlaps;
  std::strncpy(to->last_wait, a.last_wait, sizeof to->last_wait - 1);
}

}  // extern "C"
