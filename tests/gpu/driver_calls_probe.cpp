// Checks driver_calls.so on a driver that does nothing, by the ways of the CUDA runtime; needs no
// GPU.
//
//   LD_PRELOAD=driver_calls.so driver_calls_probe FAKE_DRIVER

#include "tests/gpu/driver_calls.hpp"

#include <cstdio>
#include <cstdlib>

using troupe::test::driver_calls;

namespace {

int failures = 0;
void check(bool is_fine, const char* what) {
  if (is_fine) return;
  std::printf("failed: %s\n", what);
  ++failures;
}

driver_calls now() {
  driver_calls c;
  if (!driver_calls_now(c)) {
    std::printf("failed: driver_calls.so is not preloaded\n");
    std::exit(1);
  }
  return c;
}

using finder = int (*)(const char*, void**, int, std::uint64_t, int*);
template <class Function>
Function find(finder f, const char* name) {
  void* at = nullptr;
  int status = -1;
  check(f(name, &at, 13000, 1, &status) == 0 && at != nullptr && status == 0, name);
  return reinterpret_cast<Function>(at);
}

int calls_of_host = 0;
void count_call(void* data) { calls_of_host += *static_cast<int*>(data); }

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  void* driver = ::dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  check(driver != nullptr, "the fake driver opens");
  if (driver == nullptr) return 1;
  const auto here = [&](const char* name) { return ::dlsym(driver, name); };
  const auto first = reinterpret_cast<finder>(here("cuGetProcAddress_v2"));
  const auto f = find<finder>(first, "cuGetProcAddress");  // the runtime asks for it by itself
  using of_stream = int (*)(void*);
  const auto synchronize = find<of_stream>(f, "cuStreamSynchronize");
  const auto release = find<of_stream>(f, "cuMemFree");
  const auto query = find<of_stream>(f, "cuStreamQuery");
  const auto launch = find<int (*)(void*, unsigned, unsigned, unsigned, unsigned, unsigned,
                                   unsigned, unsigned, void*, void**, void**)>(f, "cuLaunchKernel");
  const auto copy =
      find<int (*)(std::uint64_t, const void*, std::size_t, void*)>(f, "cuMemcpyHtoDAsync");
  const auto later = find<int (*)(void*, void (*)(void*), void*)>(f, "cuLaunchHostFunc");
  (void)find<void*>(f, "cuPointerGetAttribute");
  void* none = nullptr;
  check(f("cuNothing", &none, 13000, 1, nullptr) == 500 && none == nullptr,
        "what is not there stays so");

  check(now().waits == 0 && now().enqueues == 0, "finding counts nothing");
  check(query(nullptr) == 600 && now().waits == 0, "a query is handed through and does not count");
  int number = 42;
  void* arguments[] = {&number};
  check(launch(nullptr, 1, 1, 1, 1, 1, 3, 77, nullptr, arguments, arguments + 1) == 0,
        "eleven arguments come through");
  check(now().enqueues == 1 && now().waits == 0, "a launch is enqueued");

  check(synchronize(nullptr) == 0 && now().waits == 1 &&
            std::strcmp(now().last_wait, "cuStreamSynchronize") == 0,
        "a synchronisation counts");
  check(release(nullptr) == 0 && now().waits == 2 && std::strcmp(now().last_wait, "cuMemFree") == 0,
        "and memory that is given back, of the same address");
  check(reinterpret_cast<int (*)()>(here("cuCtxSynchronize"))() == 0 && now().waits == 3,
        "and what dlsym() found");
  check(find<of_stream>(f, "cuStreamSynchronize") == synchronize,
        "the same function again is the same");
  check(reinterpret_cast<int (*)()>(here("fake_waits"))() == 3, "the driver was called each time");

  check(copy(0, reinterpret_cast<void* (*)()>(here("fake_pinned"))(), 16, nullptr) == 0 &&
            now().waits == 3,
        "a copy from page-locked memory does not wait");
  check(copy(0, &number, 16, nullptr) == 0 && now().waits == 4, "one from pageable memory does");
  check(now().enqueues == 3, "both are enqueued");

  const auto call_one = reinterpret_cast<void (*)()>(here("fake_call_one"));
  int one = 1;
  check(later(nullptr, &count_call, &one) == 0 && now().overlaps == 0, "a host function");
  call_one();
  check(calls_of_host == 1, "is called with its data");
  check(later(nullptr, &count_call, &one) == 0 && now().overlaps == 0,
        "the next one overlaps nothing");
  check(later(nullptr, &count_call, &one) == 0 && now().overlaps == 1, "the one behind it does");
  call_one(), call_one();
  check(calls_of_host == 3 && now().host_functions == 3, "all are called");
  std::printf("%s\n", failures == 0 ? "driver_calls counts what it should" : "failed");
  return failures == 0 ? 0 : 1;
}
