// A driver that does nothing, for the test of driver_calls.so: found as the CUDA runtime finds the
// real one. Only what the test calls is there.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

int waits_seen = 0;
std::vector<std::pair<void (*)(void*), void*>> waiting;
char pinned[64];

int synchronize(void*) {
  ++waits_seen;
  return 0;
}
int launch(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned depth, unsigned shared,
           void*, void** arguments, void** extra) {
  // Arguments on the stack must come through, up to the last one.
  return depth == 3 && shared == 77 && arguments != nullptr &&
                 *static_cast<int*>(arguments[0]) == 42 && extra == arguments + 1
             ? 0
             : 1;
}
int copy(std::uint64_t, const void*, std::size_t n, void*) { return n == 16 ? 0 : 1; }
int call_later(void*, void (*fn)(void*), void* data) {
  if (fn == nullptr) return 1;
  waiting.emplace_back(fn, data);
  return 0;
}
int attribute(void* to, int what, std::uint64_t address) {
  if (what != 2) return 2;
  if (address < reinterpret_cast<std::uint64_t>(pinned) ||
      address >= reinterpret_cast<std::uint64_t>(pinned + sizeof pinned))
    return 1;
  const unsigned int host = 1;
  std::memcpy(to, &host, sizeof host);
  return 0;
}
int query(void*) { return 600; }

}  // namespace

extern "C" {

[[gnu::visibility("default")]] int cuGetProcAddress_v2(const char* name, void** to, int version,
                                                       std::uint64_t flags, int* status) {
  if (version != 13000 || flags != 1) return 1;
  if (status != nullptr) *status = 0;
  const auto is = [&](const char* n) { return std::strcmp(name, n) == 0; };
  *to = is("cuStreamSynchronize") || is("cuMemFree") ? reinterpret_cast<void*>(&synchronize)
        : is("cuLaunchKernel")                       ? reinterpret_cast<void*>(&launch)
        : is("cuMemcpyHtoDAsync")                    ? reinterpret_cast<void*>(&copy)
        : is("cuLaunchHostFunc")                     ? reinterpret_cast<void*>(&call_later)
        : is("cuPointerGetAttribute")                ? reinterpret_cast<void*>(&attribute)
        : is("cuStreamQuery")                        ? reinterpret_cast<void*>(&query)
        : is("cuGetProcAddress")                     ? reinterpret_cast<void*>(&cuGetProcAddress_v2)
                                                     : nullptr;
  return *to != nullptr ? 0 : 500;
}
[[gnu::visibility("default")]] int cuCtxSynchronize() { return synchronize(nullptr); }
// What the test asks of it.
[[gnu::visibility("default")]] int fake_waits() { return waits_seen; }
[[gnu::visibility("default")]] void* fake_pinned() { return pinned; }
[[gnu::visibility("default")]] void fake_call_one() {
  const auto next = waiting.front();
  waiting.erase(waiting.begin());
  next.first(next.second);
}

}  // extern "C"
