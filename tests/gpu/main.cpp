// Tests that need a CUDA device. Without one: one line that says why, and 77, which ctest counts as
// skipped.

#define BOOST_TEST_NO_MAIN
#define BOOST_TEST_ALTERNATIVE_INIT_API
#include "troupe/devices/cuda/libraries/find_devices.hpp"

#include <boost/test/unit_test.hpp>

#include <cstdio>
#include <string_view>

int main(int argc, char** argv) {
  bool asks_only = false;
  for (int i = 1; i < argc; ++i)
    asks_only = asks_only || std::string_view(argv[i]).starts_with("--help") ||
                std::string_view(argv[i]).starts_with("--list_content");
  if (!asks_only) {
    const auto chips = troupe::cuda::find_chips();
    if (!chips) {
      std::printf("skipped: %s\n", chips.error().text().c_str());
      return 77;
    }
    for (const auto& c : *chips)
      std::printf("%s, compute capability %d.%d\n", c.name.c_str(), c.major, c.minor);
  }
  return boost::unit_test::unit_test_main([] { return true; }, argc, argv);
}
